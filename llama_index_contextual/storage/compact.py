"""Compact index: RaBitQ (one bit per dimension), refined with vectors of half precision.

An exact scan reads every vector for every query. RaBitQ reads about a thirtieth of that, and its best hits are ranked
again by 16-bit vectors. It needs half the disk space. Its accuracy depends on the vectors, so it is measured on the
vectors to be stored.

Source: Gao, Long, "RaBitQ: Quantizing High-Dimensional Vectors with a Theoretical Error Bound for Approximate Nearest
Neighbor Search", SIGMOD 2024; FAISS's fast-scan implementation of it.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import FaissIndex
from llama_index_contextual.storage.scan import inner_products, top

WORTHWHILE_BYTES = 32 << 20
"""Size in bytes below which exact vectors are scanned in a few milliseconds, so that a compact index has no benefit."""

MIN_RECALL = 0.99
PROBED_K = 20

_FACTORY = "RaBitQfs,Refine(SQfp16)"
_PROBES = 64
# Number of RaBitQ hits that are ranked again: one row in 50, within these bounds.
_POOL = (400, 1_000)
_POOL_SHARE = 50
_POOL_PER_HIT = 2
_BLOCK = 1_024


def compress(flat: Any, kind: FaissIndex) -> Any:
    """Return the index to store: either the exact one or a compact one.

    Args:
        flat: A `faiss.IndexFlatIP`.
        kind: `flat`, `rabitq`, or `auto`. `auto` chooses the compact index if there are enough vectors and its
            recall@20 on them is at least 0.99.
    """
    if kind == "flat" or (kind == "auto" and flat.ntotal * flat.d * 4 < WORTHWHILE_BYTES):
        return flat
    vectors = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
    compact = faiss.index_factory(flat.d, _FACTORY, faiss.METRIC_INNER_PRODUCT)
    compact.train(vectors)
    compact.add(vectors)
    return compact if kind == "rabitq" or probed_recall(vectors, compact) >= MIN_RECALL else flat


def probed_recall(vectors: NDArray[np.float32], index: Any) -> float:
    """Measure recall@20 of an index against an exact search, with means of pairs of its own vectors as queries.

    A stored vector itself would be too easy to find.

    Args:
        vectors: More than 20 unit vectors; shape (n, dimensions).
        index: A compact index of these vectors.
    """
    pairs = np.random.default_rng(0).integers(0, len(vectors), (_PROBES, 2))
    queries = np.ascontiguousarray(vectors[pairs].mean(axis=1), dtype=np.float32)
    exact = inner_products(faiss.swig_ptr(vectors), vectors.shape, queries)
    shares = []
    for query, scores in zip(queries, exact, strict=True):
        best = set(top(scores, PROBED_K)[1].tolist())
        shares.append(len(best & set(search(index, query[None], PROBED_K, None)[1].tolist())) / len(best))
    return float(np.mean(shares))


def search(
    index: Any, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scores and rows of the k best hits, best first.

    Args:
        index: A compact index.
        query: The query's embedding; shape (1, dimensions).
        k: Maximum number of hits.
        mask: Rows to rank. All of them are compared by 16-bit vectors, because RaBitQ cannot skip rows.
    """
    if mask is not None:
        allowed = np.flatnonzero(mask)
        blocks = [
            index.reconstruct_batch(allowed[start : start + _BLOCK]) @ query[0]
            for start in range(0, len(allowed), _BLOCK)
        ]
        scores, places = top(np.concatenate(blocks), k)
        return scores, allowed[places]
    k = min(k, index.ntotal)
    if k <= 0:
        return np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int64)
    parameters = faiss.IndexRefineSearchParameters(k_factor=max(1.0, _pool(k, index.ntotal) / k))  # type: ignore[call-arg]
    scores, rows = index.search(query, k, params=parameters)
    is_hit = rows[0] >= 0
    return scores[0][is_hit], rows[0][is_hit]


def _pool(k: int, size: int) -> int:
    least, most = _POOL
    return min(max(least, min(size // _POOL_SHARE, most), _POOL_PER_HIT * k), size)
