"""Write, read and search the vectors of a version, which are stored in one exact FAISS index per part."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import has_idle_core
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.faiss_index import reconstructed, write_index
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale, mean_and_deviation, top
from llama_index_contextual.index.manifest import FAISS_FILE

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.part import Part
    from llama_index_contextual.index.version_nodes import VersionNodes


_LARGE = 4_000_000  # numbers in a matrix, for which a second thread saves more time than it takes to start


class VectorWriter:
    """Writer for the vectors of a part, in node order."""

    def __init__(self) -> None:
        self._index: Any = None

    def add(self, doc_id: str, nodes: Sequence[BaseNode], vectors: NDArray[np.float32]) -> None:
        """Add the unit vectors of a document's chunks; shape (n, dimensions)."""
        self._add(vectors)

    def copy(self, part: Part, rows: NDArray[np.int64]) -> None:
        """Add the vectors of the given rows of another part."""
        self._add(reconstructed(part.index, rows))

    def _add(self, vectors: NDArray[np.float32]) -> None:
        if self._index is None:
            self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def finish(self, directory: Path, ids: Sequence[str]) -> None:
        """Write the vectors to an index file.

        Args:
            directory: Directory of the part.
            ids: Ids of the nodes.
        """
        if self._index is not None:
            write_index(self._index, directory / FAISS_FILE)


class FaissVectors:
    """The vectors of a version, stored in FAISS files.

    Args:
        nodes: The chunks of the version.
        dimensions: Length of the vectors.
    """

    def __init__(self, nodes: VersionNodes, dimensions: int) -> None:
        self._nodes = nodes
        self._dimensions = dimensions

    def rank(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank chunks by cosine similarity; see `ChunkIndex.rank_vectors`."""
        mask = self._nodes.mask(filters)
        parts = [part for part in self._nodes.parts if part.size]
        if not parts or (mask is not None and not mask.any()):
            return NO_HITS, NO_SCALE
        similarities = np.concatenate([_similarities(part.index, vector) for part in parts])
        if mask is None:
            scores, rows = top(similarities, k)
        else:
            allowed = np.flatnonzero(mask)
            scores, places = top(similarities[allowed], k)
            rows = allowed[places]
        scale = Scale(*mean_and_deviation(similarities))
        # Because of rounding, the product of two unit vectors may exceed 1.
        return Hits(rows, np.clip(scores.astype(np.float64), -1.0, 1.0)), scale

    def of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of the given rows; shape (rows, dimensions)."""
        vectors = np.zeros((len(rows), self._dimensions), dtype=np.float32)
        for selected, part, places in self._nodes.places(rows):
            vectors[selected] = reconstructed(part.index, places)
        return vectors


# ---- inner products --------------------------------------------------------------------------------------------------


def products(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute the inner product of a query with every row of an array, using FAISS.

    Unlike NumPy's matrix product, this function starts at most one thread, and it lets other Python threads run.

    Args:
        rows: The vectors; shape (n, dimensions), C order.
        query: The query; shape (dimensions,).

    Returns:
        The products; shape (n,).

    Raises:
        InputError: The query and the rows have different numbers of dimensions.
    """
    return _scanned(faiss.swig_ptr(rows), rows.shape, query)


def _similarities(index: Any, query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner product of a query with every vector of an index."""
    return _scanned(index.get_xb(), (index.ntotal, index.d), query)


def _scanned(matrix: Any, shape: tuple[int, int], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner products of a query with the rows of a matrix in memory.

    A large matrix is shared between two threads if a core is idle.

    Args:
        matrix: FAISS pointer (`float *`) to the matrix, which need not be aligned.
        shape: Number of rows and columns of the matrix.
        query: The query; shape (columns,).
    """
    rows, dimensions = shape
    if rows and dimensions != len(query):
        raise InputError(f"The query's embedding has {len(query)} dimensions, the index {dimensions}.")
    scores = np.empty(rows, dtype=np.float32)
    if rows * dimensions < _LARGE or not has_idle_core():
        _compute(scores, query, matrix)
        return scores
    half = rows // 2
    rest = faiss.swig_ptr(faiss.rev_swig_ptr(matrix, rows * dimensions)[half * dimensions :])
    thread = Thread(target=_compute, args=(scores[half:], query, rest))
    thread.start()
    try:
        _compute(scores[:half], query, matrix)
    finally:
        thread.join()
    return scores


def _compute(scores: NDArray[np.float32], query: NDArray[np.float32], matrix: Any) -> None:
    """Compute the inner products of a query with as many rows of a matrix as there are scores."""
    faiss.fvec_inner_products_ny(faiss.swig_ptr(scores), faiss.swig_ptr(query), matrix, len(query), len(scores))  # type: ignore[attr-defined]
