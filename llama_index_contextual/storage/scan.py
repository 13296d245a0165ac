"""The exact scan: one inner product for each row of a matrix that may lie anywhere in a mapped file."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.errors import InputError

F = TypeVar("F", np.float32, np.float64)

_BLOCK = 128  # rows that stay in the processor's cache while several queries go over them


def inner_products(matrix: Any, shape: tuple[int, int], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner product of every query with every row, by FAISS's own loop over one row.

    No thread is started, no setting of FAISS or OpenMP is touched, other Python threads go on meanwhile, and the rows
    may begin at any byte, as they do in the middle of a mapped file. The result for a query is the same whatever
    other queries come with it.

    Args:
        matrix: A `float *` of FAISS's: `index.get_xb()` or `faiss.swig_ptr(array)`.
        shape: Rows and dimensions.
        queries: Shape (n, dimensions), C order.

    Returns:
        Shape (n, rows).
    """
    rows, dimensions = shape
    found = np.empty((len(queries), rows), dtype=np.float32)
    if len(queries) == 1:
        _scan(found[0], queries[0], matrix, dimensions, rows)
        return found
    view = faiss.rev_swig_ptr(matrix, rows * dimensions).reshape(rows, dimensions)
    for start in range(0, rows, _BLOCK):
        block = view[start : start + _BLOCK]
        pointer = faiss.swig_ptr(block)
        for query, out in zip(queries, found, strict=True):
            _scan(out[start : start + _BLOCK], query, pointer, dimensions, len(block))
    return found


def products(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner product of a query with every row, as `inner_products` does: NumPy's would wait for threads.

    Args:
        rows: Shape (n, dimensions), C order.
        query: Shape (dimensions,).

    Returns:
        Shape (n,).

    Raises:
        InputError: The query has another length than the rows.
    """
    if len(rows) and rows.shape[1] != len(query):
        raise InputError(f"The query's embedding has {len(query)} dimensions, the index {rows.shape[1]}.")
    (found,) = inner_products(faiss.swig_ptr(rows), rows.shape, query[None])
    return np.asarray(found, dtype=np.float32)


def _scan(out: NDArray[np.float32], query: NDArray[np.float32], matrix: Any, dimensions: int, rows: int) -> None:
    faiss.fvec_inner_products_ny(faiss.swig_ptr(out), faiss.swig_ptr(query), matrix, dimensions, rows)  # type: ignore[attr-defined]


def top(scores: NDArray[F], k: int, *, above: float = -math.inf) -> tuple[NDArray[F], NDArray[np.int64]]:
    """Return the k best scores and their rows, best first, ties in the order of the rows.

    Args:
        scores: Shape (n,).
        k: Hits, at most.
        above: Scores that are not above this are no hits.
    """
    k = min(k, len(scores))
    if k <= 0:
        return scores[:0], np.zeros(0, dtype=np.int64)
    # A partition alone would take any of those that tie for the last place.
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    rows = np.flatnonzero(scores >= least if least > above else scores > above)
    rows = rows[np.argsort(-scores[rows], kind="stable")][:k]
    return scores[rows], rows
