"""The terms of a version whose chunks an engine keeps.

The engine finds the chunks with the best sums of term weights, each times the inverse document frequency of the query's
term in the version. The weight of a term in a chunk, frequency / (norm + frequency), contains the mean length of chunks
at the time it was stored. The hits are therefore scored again with the frequencies and the mean length of today: the
scores are those of an index in files, and as long as the mean length has hardly changed, so are the hits.

A part keeps how many chunks of each document contain a term, so that document frequencies are exact without the
documents that are gone; the mean and the mean square of the weights of each term; and the number of each term.

bm25/terms.json, bm25/counts.npy        `TermCounts` of documents: in how many of their chunks a term occurs
bm25/statistics.npy                     `TermStatistics`
bm25/chunks/                            `TermCounts` of the chunks, in a part of at most 2,048
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.bm25 import (
    COUNTS_FILE,
    LexicalIndex,
    LexicalQuery,
    Postings,
    QueryTerms,
    TermCounts,
    length_norms,
)
from llama_index_contextual.index.collection import TermHit
from llama_index_contextual.index.manifest import BM25_DIRECTORY, CHUNKS_DIRECTORY
from llama_index_contextual.index.part import Part
from llama_index_contextual.index.remote import RemotePart

STATISTICS_FILE = "statistics.npy"

DRIFT = 0.001
"""Relative change of the mean length from which more hits are requested."""

MAX_DRIFT = 0.01
"""Relative change from which `rebuild` stores the weights again."""


@dataclass(frozen=True, eq=False)
class TermStatistics:
    """Statistics of a part, next to its `TermCounts`.

    Attributes:
        numbers: Number of each term in the collection; shape (terms,).
        means: Mean weight of each term in the chunks that contain it; shape (terms,).
        squares: Mean square of these weights; shape (terms,).
        lengths: Number of terms of the chunks of each document, with repetitions; shape (documents with chunks,).
    """

    numbers: NDArray[np.int32]
    means: NDArray[np.float32]
    squares: NDArray[np.float32]
    lengths: NDArray[np.int64]

    def save(self, directory: Path) -> None:
        """Write the arrays into one file and sync it."""
        arrays = (self.numbers, self.means.view(np.int32), self.squares.view(np.int32), self.lengths.view(np.int32))

        def fill(file: IO[bytes]) -> None:
            array = np.concatenate(arrays).astype(np.int32)
            np.lib.format.write_array(file, array, version=(1, 0))

        files.write_with(directory / STATISTICS_FILE, fill)

    @classmethod
    def load(cls, directory: Path, terms: int) -> TermStatistics:
        """Read the arrays of a part with that number of terms."""
        everything = np.load(directory / STATISTICS_FILE)
        numbers, means, squares, lengths = np.split(everything, [terms, 2 * terms, 3 * terms])
        return cls(numbers, means.view(np.float32), squares.view(np.float32), lengths.view(np.int64))


PartTerms = tuple[TermCounts, TermStatistics]


def part_terms(part: Part) -> PartTerms:
    """Return the terms of a part, which all versions share."""

    def load() -> PartTerms:
        directory = part.directory / BM25_DIRECTORY
        counts = TermCounts.load(directory, int(np.count_nonzero(part.chunks_of)))
        return counts, TermStatistics.load(directory, len(counts.vocabulary))

    return part.shared(BM25_DIRECTORY, load)


@dataclass(frozen=True, eq=False)
class _Holders:
    """The documents with a term.

    Attributes:
        documents: Their rows in the index of documents, ascending.
        chunks: The number of chunks of each that contain the term.
        mean: Mean weight of the term in these chunks.
        square: Mean square of the weights.
        number: Number of the term in the collection.
    """

    documents: NDArray[np.int64]
    chunks: NDArray[np.int64]
    mean: float
    square: float
    number: int

    @property
    def total(self) -> int:
        """Number of chunks with the term."""
        return int(self.chunks.sum())


class RemoteQueryTerms(QueryTerms):
    """The terms of a query, and after the search their contributions to the scores of the hits.

    Args:
        index: The index.
        counts: The distinct terms of the query, in order, with their weights.
        omitted: Number of distinct terms of the query that are not searched.
    """

    def __init__(self, index: RemoteLexicalIndex, counts: Mapping[str, float], omitted: int = 0) -> None:
        matches = [(term, holders) for term in counts if (holders := index.holders(term)) is not None]
        self.counts = counts
        self.omitted = omitted
        self.known = tuple(term for term, _ in matches)
        self.holders = [holders for _, holders in matches]
        self.size = index.size
        self.analyzer = index.analyzer
        self.frequencies = np.array([holders.total for holders in self.holders], dtype=np.int64)
        self.idf = [np.float32(math.log(1 + (self.size - n + 0.5) / (n + 0.5))) for n in self.frequencies.tolist()]
        self._row_of: dict[int, int] = {}
        self._values = np.zeros((len(self.known), 0), dtype=np.float32)

    def query_weights(self) -> dict[int, float]:
        """Return the weights of the terms for the engine, by their numbers."""
        terms = zip(self.known, self.holders, self.idf, strict=True)
        return {holders.number: self.counts[term] * float(idf) for term, holders, idf in terms}

    def score(self, hits: Sequence[TermHit], rows: Sequence[int], mean_length: float) -> NDArray[np.float32]:
        """Compute and keep the contributions of the terms to the scores of hits, and return the scores.

        Args:
            hits: The hits.
            rows: The row of each.
            mean_length: Mean number of terms of a chunk.
        """
        norms = length_norms(np.array([hit.length for hit in hits], dtype=np.int32), mean_length)
        values = np.zeros((len(self.known), len(hits)), dtype=np.float32)
        scores = np.zeros(len(hits), dtype=np.float32)
        stored = _weights_in(hits, [holders.number for holders in self.holders])
        stored_norms = np.array([hit.norm for hit in hits])
        for number, (term, idf) in enumerate(zip(self.known, self.idf, strict=True)):
            weights = stored[number]
            frequencies = np.rint(weights * stored_norms / (1 - weights))
            values[number] = (idf * (frequencies / (norms + frequencies))).astype(np.float32)
            weight = np.float32(self.counts[term])
            scores += values[number] if weight == 1 else weight * values[number]
        self._row_of = {row: at for at, row in enumerate(rows)}
        self._values = values
        return scores

    def deviation(self, chunks_of: NDArray[np.int64]) -> float:
        """Return an estimate of the standard deviation of the scores of all chunks.

        Within a document, the terms are taken to be independent of each other.

        Args:
            chunks_of: The number of chunks of each document.
        """
        if not len(chunks_of):
            return 0.0
        means, squares, spread = np.zeros(len(chunks_of)), np.zeros(len(chunks_of)), np.zeros(len(chunks_of))
        for term, holders, idf in zip(self.known, self.holders, self.idf, strict=True):
            factor = self.counts[term] * float(idf)
            share = holders.chunks / chunks_of[holders.documents]
            mean = factor * holders.mean * share
            means[holders.documents] += mean
            squares[holders.documents] += factor**2 * holders.square * share
            spread[holders.documents] += mean**2
        shares = chunks_of / chunks_of.sum()
        second = float((shares * (squares + means**2 - spread)).sum())
        return math.sqrt(max(0.0, second - float((shares * means).sum()) ** 2))

    def contributions(self, number: int, rows: NDArray[np.int32]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which of some hits contain a term, and its contribution to the score of each that does."""
        values = self._values[number, [self._row_of[row] for row in rows.tolist()]]
        return values > 0, values[values > 0]

    def frequencies_within(
        self, number: int, documents: NDArray[np.int32], starts: NDArray[np.int32], stops: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Return the number of rows of each document that contain a term."""
        holders = self.holders[number]
        places = holders.documents.searchsorted(documents)
        contains = holders.documents.take(places, mode="clip") == documents
        return np.where(contains, holders.chunks.take(places, mode="clip"), 0)

    def matched(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return for each row the terms that it contains; none for rows that are no hits."""
        places = [self._row_of.get(row) for row in rows]
        return [
            ()
            if at is None
            else tuple(term for term, value in zip(self.known, self._values[:, at], strict=True) if value)
            for at in places
        ]


def _weights_in(hits: Sequence[TermHit], numbers: Sequence[int]) -> NDArray[np.float64]:
    """Return the stored weight of each term in each hit; shape (terms, hits)."""
    wanted, weights = np.asarray(numbers, dtype=np.int64), np.zeros((len(numbers), len(hits)))
    for at, hit in enumerate(hits):
        if len(hit.terms):
            places = hit.terms.searchsorted(wanted)
            contains = hit.terms.take(places, mode="clip") == wanted
            weights[contains, at] = hit.weights[places[contains]]
    return weights


class RemoteLexicalIndex(LexicalIndex):
    """The terms of a version whose chunks an engine keeps.

    Args:
        analyzer: Turns text into terms.
        parts: The parts of the version.

    Attributes:
        mean_length: Mean number of terms of a chunk.
        drift: Largest relative difference of the mean length that weights were stored with from the present one.
    """

    _terms = RemoteQueryTerms

    def __init__(self, analyzer: Analyzer, parts: Sequence[Part]) -> None:
        super().__init__(analyzer)
        self._terms_of: list[tuple[PartTerms, NDArray[np.int64]]] = []
        sizes, length, stored, start = [np.zeros(0, dtype=np.int64)], 0, set[float](), 0
        for part in parts:
            of_part = part_terms(part)
            chunks = part.chunks_of[part.chunks_of > 0]
            live = np.ones(len(chunks), dtype=np.bool_) if part.live_entries is None else part.live_entries
            self._terms_of.append((of_part, np.where(live, np.cumsum(live) - 1 + start, -1)))
            sizes.append(chunks[live])
            length += int(of_part[1].lengths[live].sum())
            start += len(sizes[-1])
            if (mean := RemotePart.of(part).mean_length) is not None:
                stored.add(mean)
        self.chunks_of = np.concatenate(sizes)
        self.size = int(self.chunks_of.sum())
        self.mean_length = length / self.size if length else 1.0
        self._of_chunks = _chunk_index(analyzer, parts)
        self.drift = max((abs(mean / self.mean_length - 1) for mean in stored), default=0.0)

    def deviation(self, terms: RemoteQueryTerms) -> float:
        """Return the standard deviation of the scores of all chunks, which is an estimate if there are large parts."""
        if self._of_chunks is not None:
            return float(self._of_chunks.scores(terms.counts).std())
        return terms.deviation(self.chunks_of)

    def query(self, query: LexicalQuery) -> RemoteQueryTerms:
        """Return the terms of a query; see `LexicalIndex.query`."""
        terms = super().query(query)
        return terms if isinstance(terms, RemoteQueryTerms) else RemoteQueryTerms(self, terms.counts, terms.omitted)

    def _known(self, terms: Iterable[str]) -> set[str]:
        return {term for term in terms if any(term in counts.vocabulary for (counts, _), _ in self._terms_of)}

    def _holders(self, term: str) -> int:
        holders = self.holders(term)
        return 0 if holders is None else holders.total

    def holders(self, term: str) -> _Holders | None:
        """Return the documents of the version that contain a term, or None."""
        documents, chunks, weights, number = [], [], np.zeros(2), -1
        for (counts, statistics), row_of in self._terms_of:
            if (entries := counts.of(term)) is None:
                continue
            rows = row_of[entries[0]]
            documents.append(rows[rows >= 0])
            chunks.append(entries[1][rows >= 0].astype(np.int64))
            at = counts.vocabulary[term]
            number = int(statistics.numbers[at])
            weights += chunks[-1].sum() * np.array([statistics.means[at], statistics.squares[at]], dtype=np.float64)
        if not sum(map(len, documents)):
            return None
        all_chunks = np.concatenate(chunks)
        mean, square = (weights / all_chunks.sum()).tolist()
        return _Holders(np.concatenate(documents), all_chunks, mean, square, number)

    def postings(self, term: str) -> Postings | None:
        """Raise an error, because the engine has the postings."""
        raise NotImplementedError("The postings of this version are in its engine.")

    def counts(self) -> TermCounts:
        """Raise an error, because the engine has the frequencies."""
        raise NotImplementedError("The frequencies of this version are in its engine.")


def _chunk_index(analyzer: Analyzer, parts: Sequence[Part]) -> LexicalIndex | None:
    """Return the index of the chunks of small parts; None if there is a part that is not."""
    if any(f"{CHUNKS_DIRECTORY}/{COUNTS_FILE}" not in part.files for part in parts):
        return None
    return LexicalIndex(analyzer, [(chunk_terms(part), part.live) for part in parts])


def chunk_terms(part: Part) -> TermCounts:
    """Return the terms of the chunks of a small part."""

    def load() -> TermCounts:
        return TermCounts.load(part.directory / CHUNKS_DIRECTORY, len(part.document_of))

    return part.shared(CHUNKS_DIRECTORY, load)
