"""The vectors of a version as FAISS indexes, one for each part: writing, reading and searching them.

An index is exact, or compact if it is large: RaBitQ (one bit per dimension), refined with half-precision vectors. An
exact scan reads every vector for every query. RaBitQ reads about a thirtieth of that data, and its best hits are ranked
again with 16-bit vectors. It needs half the disk space. Its accuracy depends on the vectors, so it is measured on the
vectors to be stored.

Source: Gao, Long, "RaBitQ: Quantizing High-Dimensional Vectors with a Theoretical Error Bound for Approximate Nearest
Neighbor Search", SIGMOD 2024; FAISS's fast-scan implementation of it.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import faiss
import numpy as np
import xxhash
from numpy.typing import NDArray

from llama_index_contextual.config import FaissIndex
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Hits, Scale, top
from llama_index_contextual.index.manifest import FAISS_FILE, SAMPLE_FILE, check_faiss

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.part import Part
    from llama_index_contextual.index.version import VersionNodes

SAMPLE = 1_024
"""Number of vectors used to estimate the mean and deviation of the similarities if not all vectors are compared;
the deviation is accurate to about 2 %."""

BLOCK = 1_000
"""Maximum number of vectors to copy together; for larger numbers, FAISS would start threads."""

_COPIED = 4_096  # number of vectors that a merge copies together


class VectorWriter:
    """Writer of the vectors of a part, in the order of its nodes.

    Args:
        kind: Type of the index; see `compress`.
    """

    def __init__(self, kind: FaissIndex) -> None:
        self._kind = kind
        self._index: Any = None

    def add(self, doc_id: str, nodes: Sequence[BaseNode], vectors: NDArray[np.float32]) -> None:
        """Add the unit vectors of the chunks of a document; shape (n, dimensions)."""
        self._add(vectors)

    def copy(self, part: Part) -> None:
        """Add the vectors of the live rows of another part."""
        rows = np.arange(part.size) if part.rows is None else part.rows
        for start in range(0, len(rows), _COPIED):
            self._add(part.index.reconstruct_batch(rows[start : start + _COPIED]))

    def _add(self, vectors: NDArray[np.float32]) -> None:
        if self._index is None:
            self._index = faiss.IndexFlatIP(vectors.shape[1])
        self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))

    def finish(self, directory: Path, ids: Sequence[str]) -> int | None:
        """Write the vectors as an index, which is compact if that is accurate enough, and return their length.

        Args:
            directory: Directory of the part.
            ids: Ids of the nodes, which determine the sample used to measure the accuracy.
        """
        if self._index is None:
            return None
        write_index(compress(self._index, self._kind, ids), directory / FAISS_FILE)
        return int(self._index.d)


class FaissVectors:
    """The vectors of a version in files.

    Args:
        nodes: The chunks of the version.
        dimensions: Length of the vectors.
    """

    def __init__(self, nodes: VersionNodes, dimensions: int) -> None:
        self._nodes = nodes
        self._dimensions = dimensions

    def rank(self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank by cosine similarity; see `ChunkIndex.rank_vectors`."""
        mask = self._nodes.mask(filters)
        if mask is not None and not mask.any():
            return NO_HITS, NO_SCALE
        query = vector[None]
        scores, rows, similarities = [np.zeros(0, dtype=np.float32)], [np.zeros(0, dtype=np.int64)], []
        for start, part in self._nodes.first_rows():
            allowed = None if mask is None else mask[start : start + part.size]
            if part.rows is not None:
                passing, allowed = allowed, np.zeros(part.index.ntotal, dtype=np.bool_)
                allowed[part.rows] = True if passing is None else passing
            of_hits, hits, of_all = search_index(part.index, query, min(k, part.size), allowed)
            if part.rows is not None:
                hits = np.searchsorted(part.rows, hits)
                of_all = None if of_all is None else of_all[part.rows]
            scores.append(of_hits)
            rows.append(hits + start)
            similarities.append(of_all)
        best, places = top(np.concatenate(scores), k)  # ties are in the order of the rows
        if len(best) == 0:
            return NO_HITS, NO_SCALE
        compared = [of_all for of_all in similarities if of_all is not None]
        if len(compared) == len(similarities):
            everything = compared[0] if len(compared) == 1 else np.concatenate(compared)
        else:
            everything = products(self._sample, vector)
        scale = Scale(float(everything.mean()), float(everything.std()))
        # Because of rounding, the product of two unit vectors may exceed 1.
        return Hits(np.concatenate(rows)[places], np.clip(best.astype(np.float64), -1.0, 1.0)), scale

    def of_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit vectors of some rows; shape (rows, dimensions)."""
        vectors = np.zeros((len(rows), self._dimensions), dtype=np.float32)
        for selected, part, places in self._nodes.places(rows):
            vectors[selected] = reconstructed(part.index, places)
        return vectors

    @cached_property
    def _sample(self) -> NDArray[np.float32]:
        return sample_of(self._nodes.parts, self._dimensions)


# ---- sample ----------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The rows of a part with the smallest hashes of their ids.

    Attributes:
        rows: The rows, in ascending order; shape (n,).
        hashes: Their hashes; shape (n,).
        vectors: Their vectors; shape (n, dimensions).
        limit: All rows with hashes up to this value are in the sample.
    """

    rows: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    vectors: NDArray[np.float32]
    limit: int


def sample_of(parts: Sequence[Part], dimensions: int) -> NDArray[np.float32]:
    """Return the vectors of at most 1,024 nodes, chosen by the hashes of their ids; shape (n, dimensions).

    The sample does not depend on how the nodes are distributed over parts, except that it may be a little smaller if
    some nodes have been removed. Versions share the samples of their parts.
    """
    drawn = [(part, part_sample(part)) for part in parts if part.size]
    limit = min((sample.limit for _, sample in drawn), default=0)
    hashes, vectors = [np.zeros(0, dtype=np.uint64)], [np.zeros((0, dimensions), dtype=np.float32)]
    for part, sample in drawn:
        chosen = sample.hashes <= limit
        if part.live is not None:
            chosen &= part.live[sample.rows]
        hashes.append(sample.hashes[chosen])
        vectors.append(sample.vectors[chosen])
    smallest = np.argsort(np.concatenate(hashes), kind="stable")[:SAMPLE]
    return np.asarray(np.concatenate(vectors)[np.sort(smallest)])


def part_sample(part: Part) -> Sample:
    """Return the sample of a part, which is shared by all versions."""
    return part.shared("sample", partial(_draw, part))


def _draw(part: Part) -> Sample:
    ids = part.docstore.ids
    rows, hashes = sampled(ids, SAMPLE)
    if SAMPLE_FILE in part.files:
        vectors = files.mapped(part.directory / SAMPLE_FILE, np.float32).reshape(len(rows), -1)
    else:
        vectors = reconstructed(part.index, rows)
    limit: Any = np.iinfo(np.uint64).max if len(rows) == len(ids) else hashes[-1]
    order = np.argsort(rows)
    return Sample(rows[order], hashes[order], vectors[order], int(limit))


def sampled(ids: Sequence[str], size: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the rows with the smallest hashes of their ids, and the hashes, in ascending order.

    The sample does not depend on the order of the rows. A sample of several sets of rows can be drawn from their
    samples.
    """
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(node_id.encode()) for node_id in ids), dtype=np.uint64)
    rows = np.argsort(hashes, kind="stable")[:size]
    return rows, hashes[rows]


# ---- one index -------------------------------------------------------------------------------------------------------


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
        index: An exact or compact index; see `compress`.
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
    return *search_compact(index, query, k, mask), None


# ---- inner products --------------------------------------------------------------------------------------------------

_ROWS_AT_ONCE = 128  # number of rows that fit in the processor's cache for several queries


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
    for start in range(0, rows, _ROWS_AT_ONCE):
        block = view[start : start + _ROWS_AT_ONCE]
        pointer = faiss.swig_ptr(block)
        for query, out in zip(queries, scores, strict=True):
            _scan(out[start : start + _ROWS_AT_ONCE], query, pointer, dimensions, len(block))
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


# ---- compact indexes -------------------------------------------------------------------------------------------------

WORTHWHILE_BYTES = 32 << 20
"""Size in bytes below which exact vectors are scanned in a few milliseconds, so a compact index has no benefit."""

MIN_RECALL = 0.99
PROBED_K = 20

_FACTORY = "RaBitQfs,Refine(SQfp16)"
_PROBES = 128
_SIMILARITY = 0.55  # cosine of a question and its best passage; in five sets of questions the median is 0.41 to 0.62
_NEIGHBOURS = 4
_CONFIDENCE = 2.0  # number of standard errors
# Number of RaBitQ hits that are ranked again: one row in 50, within these bounds, but at least several per requested
# hit, because the last hits of a long ranking, such as hybrid retrieval uses, are more difficult to find than the
# first.
_POOL = (400, 1_000)
_POOL_SHARE = 50
_POOL_PER_HIT = 8
_HALVES_AT_ONCE = 256  # number of vectors that fit in the processor's cache
_SIGN_AND_VALUE = np.int32(-0x7000_0001)  # all bits except the three after the sign
_SURPLUS = 3.0  # number of standard deviations that is added to the expected number of hits needed


def compress(flat: Any, kind: FaissIndex, ids: Sequence[str] = ()) -> Any:
    """Return the index to store: either the exact one or a compact one.

    Args:
        flat: A `faiss.IndexFlatIP`.
        kind: `flat`, `rabitq`, or `auto`. `auto` chooses the compact index if there are enough vectors and a cautious
            estimate of its recall@20 on them is at least 0.99.
        ids: Ids of the nodes, in the order of the vectors; only needed for `auto`.
    """
    if kind == "flat" or (kind == "auto" and flat.ntotal * flat.d * 4 < WORTHWHILE_BYTES):
        return flat
    vectors = faiss.rev_swig_ptr(flat.get_xb(), flat.ntotal * flat.d).reshape(flat.ntotal, flat.d)
    compact = faiss.index_factory(flat.d, _FACTORY, faiss.METRIC_INNER_PRODUCT)
    compact.train(vectors)
    compact.add(vectors)
    return compact if kind == "rabitq" or probed_recall(vectors, compact, ids) >= MIN_RECALL else flat


def probed_recall(vectors: NDArray[np.float32], index: Any, ids: Sequence[str]) -> float:
    """Measure recall@20 of an index against an exact search, and return a cautious estimate.

    The estimate is two standard errors below the mean, so that the exact index is kept in case of doubt.

    Args:
        vectors: More than 20 unit vectors; shape (n, dimensions).
        index: A compact index of these vectors.
        ids: Ids of their nodes, which determine the sample.
    """
    queries = _probes(vectors, ids)
    exact = inner_products(faiss.swig_ptr(vectors), vectors.shape, queries)
    shares = []
    for query, scores in zip(queries, exact, strict=True):
        best = set(top(scores, PROBED_K)[1].tolist())
        shares.append(len(best & set(search_compact(index, query[None], PROBED_K, None)[1].tolist())) / len(best))
    return float(np.mean(shares) - _CONFIDENCE * np.std(shares) / math.sqrt(len(shares)))


def _probes(vectors: NDArray[np.float32], ids: Sequence[str]) -> NDArray[np.float32]:
    """Return unit vectors that are as far from the vectors as questions are from passages; shape (n, dimensions).

    The sample does not depend on the order of the vectors. Each query is a vector of the sample, rotated until its
    cosine with that vector is typical of a question and its best passage. Half of the direction is towards other
    vectors and half is random: queries rotated only towards other vectors are easier than questions, and those rotated
    in a random direction are more difficult.
    """
    rows, hashes = sampled(ids, _PROBES)
    sample = vectors[rows]
    noise = [np.random.default_rng(int(seed)).standard_normal(vectors.shape[1]) for seed in hashes]
    others = sum(np.roll(sample, shift, axis=0) for shift in range(1, _NEIGHBOURS + 1))
    directions = unit_vectors(np.asarray(noise, dtype=np.float32)) + unit_vectors(np.asarray(others, dtype=np.float32))
    directions -= (directions * sample).sum(axis=1, keepdims=True) * sample
    sine = math.sqrt(1 - _SIMILARITY**2)
    return unit_vectors((_SIMILARITY * sample + sine * unit_vectors(directions)).astype(np.float32))


def search_compact(
    index: Any, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_] | None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scores and rows of the k best hits, best first.

    Args:
        index: A compact index.
        query: The query's embedding; shape (1, dimensions).
        k: Maximum number of hits.
        mask: Rows to rank; None for all. RaBitQ cannot skip rows: if few rows are allowed, all of them are compared by
            their 16-bit vectors; otherwise, more hits are requested, and those that are not allowed are dropped.
    """
    if mask is None:
        return _pooled(index, query, k)
    allowed = np.flatnonzero(mask)
    k = min(k, len(allowed))
    wanted = _wanted(k, len(allowed), index.ntotal)
    # Only as long as this is less work than comparing all rows that are allowed.
    while 0 < wanted < index.ntotal and _pool(wanted, index.ntotal) < len(allowed):
        scores, rows = _pooled(index, query, wanted)
        passing = mask[rows]
        if np.count_nonzero(passing) >= k:
            return scores[passing][:k], rows[passing][:k]
        wanted *= 2
    scores, places = top(_exact_scores(index, query[0], allowed), k)
    return scores, allowed[places]


def _wanted(k: int, allowed: int, size: int) -> int:
    """Return how many hits to request so that probably k of them are allowed, if `allowed` of `size` rows are."""
    if k == 0:
        return 0
    share = allowed / size
    return math.ceil((k + _SURPLUS * math.sqrt(k * (1 - share))) / share)


def _exact_scores(index: Any, query: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the inner products of a query and the 16-bit vectors of some rows; shape (rows,).

    FAISS would start threads to decode them, which takes longer than the work itself. If the bits of a 16-bit number
    are moved to the positions of the sign, exponent and mantissa of a 32-bit number, the result is the number times 2
    ** -112.
    """
    vectors: Any = faiss.downcast_index(index.refine_index)
    codes = faiss.rev_swig_ptr(vectors.codes.data(), vectors.ntotal * vectors.code_size)
    halves = codes.view(np.int16).reshape(vectors.ntotal, vectors.d)
    scaled = query * np.float32(2.0**112)
    scores = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _HALVES_AT_ONCE):
        bits = halves[rows[start : start + _HALVES_AT_ONCE]].astype(np.int32)
        bits <<= 13
        bits &= _SIGN_AND_VALUE
        scores[start : start + _HALVES_AT_ONCE] = products(bits.view(np.float32), scaled)
    return scores


def _pooled(index: Any, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
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


# ---- files -----------------------------------------------------------------------------------------------------------

_READING = threading.Lock()  # FAISS has one global limit for all readers

# OpenMP keeps worker threads for each calling thread. They do not exist in a forked child, which would wait for them.
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))


def write_index(index: Any, path: Path) -> None:
    """Write an index to a new file and sync it."""

    def fill(file: Any) -> None:
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]

    files.write_with(path, fill)


def read_index(path: Path) -> Any:
    """Open an index, mapped into memory if the system allows it; the file must not change afterwards.

    A mapped index opens immediately, is read as needed, and is shared between processes. An index is refused if its
    header specifies more data than the file contains.

    Args:
        path: The file.

    Raises:
        CorruptVersionError: The file is not a FAISS index, or its header does not match its size.
    """
    check_faiss(path)
    flags = faiss.IO_FLAG_MMAP_IFC if os.name != "nt" else 0
    with _READING:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
        try:
            return faiss.read_index(str(path), flags)
        except RuntimeError as error:
            raise CorruptVersionError(f"{path.name} is not a FAISS index: restore it, or build it again.") from error
        finally:
            faiss.set_deserialization_vector_byte_limit(before)
