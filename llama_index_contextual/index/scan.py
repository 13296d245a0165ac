"""Exact search: inner products of queries with all rows of a matrix, which may be memory-mapped."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.errors import InputError

_BLOCK = 128  # number of rows that fit into the processor's cache for several queries


def inner_products(matrix: Any, shape: tuple[int, int], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner product of every query with every row, computed by FAISS.

    The computation starts no threads, changes no settings of FAISS or OpenMP, and lets other Python threads run. The
    rows need not be aligned, so they can be in the middle of a mapped file. The result for a query does not depend on
    other queries.

    Args:
        matrix: A FAISS `float *`: `index.get_xb()` or `faiss.swig_ptr(array)`.
        shape: Number of rows and of dimensions.
        queries: The queries; shape (n, dimensions), C order.

    Returns:
        The products; shape (n, rows).
    """
    rows, dimensions = shape
    scores = np.empty((len(queries), rows), dtype=np.float32)
    if len(queries) == 1:
        _scan(scores[0], queries[0], matrix, dimensions, rows)
        return scores
    view = faiss.rev_swig_ptr(matrix, rows * dimensions).reshape(rows, dimensions)
    for start in range(0, rows, _BLOCK):
        block = view[start : start + _BLOCK]
        pointer = faiss.swig_ptr(block)
        for query, out in zip(queries, scores, strict=True):
            _scan(out[start : start + _BLOCK], query, pointer, dimensions, len(block))
    return scores


def products(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner product of one query with every row of an array, see `inner_products`.

    Unlike NumPy's product, it does not wait for other threads.

    Args:
        rows: The vectors; shape (n, dimensions), C order.
        query: The query; shape (dimensions,).

    Returns:
        The products; shape (n,).

    Raises:
        InputError: The query and the rows have different numbers of dimensions.
    """
    if len(rows) and rows.shape[1] != len(query):
        raise InputError(f"The query's embedding has {len(query)} dimensions, the index {rows.shape[1]}.")
    (scores,) = inner_products(faiss.swig_ptr(rows), rows.shape, query[None])
    return np.asarray(scores, dtype=np.float32)


def _scan(out: NDArray[np.float32], query: NDArray[np.float32], matrix: Any, dimensions: int, rows: int) -> None:
    faiss.fvec_inner_products_ny(faiss.swig_ptr(out), faiss.swig_ptr(query), matrix, dimensions, rows)  # type: ignore[attr-defined]
