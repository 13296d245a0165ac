"""Search in FAISS indexes, and vectors of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import FaissIndex
from llama_index_contextual.index import compact
from llama_index_contextual.index.faiss_file import write_index
from llama_index_contextual.index.hits import top
from llama_index_contextual.index.scan import inner_products

SAMPLE = 1_024
"""Number of vectors from which mean and deviation of the similarities are estimated if not all vectors are compared;
the deviation is accurate to about 2 %."""

BLOCK = 1_000
"""Number of vectors that are copied at once: for more of them, FAISS would start threads."""


class VectorWriter:
    """Writer of the vectors of a part, which are added in the order of its nodes."""

    def __init__(self) -> None:
        self._index: Any = None

    @property
    def dimensions(self) -> int | None:
        """Length of the vectors; None before the first ones are added."""
        return None if self._index is None else int(self._index.d)

    def add(self, vectors: NDArray[np.float32]) -> None:
        """Add unit vectors; shape (n, dimensions)."""
        if self._index is None:
            self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def write(self, path: Path, kind: FaissIndex, ids: Sequence[str]) -> None:
        """Write the vectors as an index, a compact one if `kind` allows it and it is accurate enough.

        Args:
            path: The file.
            kind: Type of the index; see `compact.py`.
            ids: Ids of the nodes, which determine the sample that the accuracy is measured with.
        """
        write_index(compact.compress(self._index, kind, ids if kind == "auto" else []), path)


def reconstructed(index: Any, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the vectors of some rows of an index; shape (rows, dimensions).

    For more than 1,000 of them, FAISS would start threads that a forked child does not have and would wait for.
    """
    vectors = np.empty((len(rows), index.d), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        index.reconstruct_batch(rows[start : start + BLOCK], vectors[start : start + BLOCK])
    return vectors


def search_index(
    index: Any, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32] | None]:
    """Return scores and rows of the k best hits, best first, and the scores of all rows if they were computed.

    Args:
        index: An inner-product index.
        query: A unit vector; shape (1, dimensions).
        k: Maximum number of hits.
        mask: Rows that may be hits; None for all.
    """
    if isinstance(index, faiss.IndexFlat):
        (everything,) = inner_products(index.get_xb(), (index.ntotal, index.d), query)
        if mask is None:
            return *top(everything, k), everything
        allowed = np.flatnonzero(mask)
        scores, places = top(everything[allowed], k)
        return scores, allowed[places], everything
    if isinstance(index, faiss.IndexRefine):
        return *compact.search(index, query, k, mask), None
    parameters = None
    if mask is not None:
        inverted = isinstance(index, faiss.IndexIVF)
        kind = faiss.SearchParametersIVF if inverted else faiss.SearchParameters
        parameters = kind(sel=faiss.IDSelectorBatch(np.flatnonzero(mask)))  # type: ignore[call-arg]
    scores, rows = index.search(query, k, params=parameters)
    is_hit = rows[0] >= 0
    return scores[0][is_hit], rows[0][is_hit], None
