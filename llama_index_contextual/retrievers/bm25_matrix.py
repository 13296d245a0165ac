"""The BM25 matrix of many texts by one sort; bm25s counts text by text, which takes several times as long."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import bm25s
import numpy as np
from numpy.typing import NDArray

# bm25s sets its logger to DEBUG at import, so that every application with a root handler would see it.
logging.getLogger("bm25s").setLevel(logging.NOTSET)


class SortedBM25(bm25s.BM25):  # type: ignore[misc]
    """`bm25s` with Lucene's BM25, whose matrix is built over arrays.

    Example:
        >>> bm25 = SortedBM25()
        >>> bm25.index(([np.array([0, 1, 0]), np.array([1])], {"pump": 0, "dry": 1}), show_progress=False)
        >>> bm25.scores["indices"].tolist()
        [0, 0, 1]
    """

    def build_index_from_ids(
        self,
        unique_token_ids: Sequence[int],
        corpus_token_ids: Sequence[NDArray[np.int32]],
        show_progress: bool = True,
        leave_progress: bool = False,
    ) -> dict[str, Any]:
        """Return the matrix by columns: for each term, the texts that hold it, ascending, and what it adds to them.

        Args:
            unique_token_ids: The numbers of all terms, from 0.
            corpus_token_ids: The numbers of each text's terms, as often as it has them.
            show_progress: Has no effect.
            leave_progress: Has no effect.
        """
        self.nonoccurrence_array = None  # of other methods
        lengths = np.fromiter(map(len, corpus_token_ids), dtype=np.int64)
        texts_of_terms = np.repeat(np.arange(len(lengths)), lengths)
        occurrences = np.concatenate(corpus_token_ids).astype(np.int64) << 32 | texts_of_terms
        occurrences.sort()
        first = np.flatnonzero(np.diff(occurrences, prepend=-1))
        counts = np.diff(first, append=len(occurrences))
        terms, texts = occurrences[first] >> 32, (occurrences[first] & 0xFFFFFFFF).astype(self.int_dtype)
        holders = np.bincount(terms, minlength=len(unique_token_ids))
        idf = np.log(1 + (len(lengths) - holders + 0.5) / (holders + 0.5)).astype(self.dtype)
        norms = self.k1 * (1 - self.b + self.b * lengths / lengths.mean())
        return {
            "data": (idf[terms] * (counts / (norms[texts] + counts))).astype(self.dtype),
            "indices": texts,
            "indptr": np.concatenate([[0], np.cumsum(holders)]),
            "num_docs": len(lengths),
        }
