"""BM25 index of texts: building, files, term frequencies, scores, and spelling correction of queries.

The index stores how often each term occurs in each text, and the length of each text. The weight of a term in a text
also depends on three other values: the number of texts, their mean length, and the number of texts with the term.
Weights are therefore computed when a query needs them, so that an index can consist of several parts. Except for
rounding, the scores are the same as in a single index built from all texts.

Numbers do not count towards the length of a text. Otherwise, the few words of a table with hundreds of figures would
weigh less than the same words in prose.

Source: the formula is Lucene's, with k1 = 1.5 and b = 0.75, as in bm25s (Lù, "BM25S: Orders of magnitude faster lexical
search via eager sparse scoring", 2024).
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.config import default
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import (
    Analyzer,
    Memory,
    cut_query,
    edit_distance_one,
    is_period,
    may_be_misspelt,
    periods,
    tokens,
)
from llama_index_contextual.index.hits import NO_SCALE, Hits, Scale, top

PERIOD_WEIGHT = 0.25
"""Weight of a fiscal year or quarter in the index of chunks, reduced because the year itself is also a term."""

GUESS_WEIGHT = 0.5
"""Total weight of the spelling candidates for an unknown word; a term of the query has weight 1."""

MAX_TERMS = 256
"""Maximum number of distinct query terms. If there are more, only the terms with the largest weights are searched."""

MAX_SPELLED = 8
"""Maximum number of unknown words whose spelling is corrected, counted from the start of the query."""

_RESPELLED = 1_000  # size of the cache of spelling candidates
_CACHED_POSTINGS = 1_000_000  # maximum number of rows in the cached postings, eight bytes each
_K1, _B = 1.5, 0.75
_PENDING = 1_000_000  # number of term occurrences that are counted together
_VOCABULARY_FILE = "terms.json"
COUNTS_FILE = "counts.bin"

LexicalQuery = str | Sequence[tuple[str, float]] | Mapping[str, float]
"""A string, several strings with the weights of their terms, or terms with their weights.

If a term occurs in several strings, its weights are added.
"""

Postings = tuple[NDArray[np.int32], NDArray[np.float32]]
"""The rows that contain a term, in ascending order, and the contribution of the term to the score of each row."""


@dataclass(frozen=True, eq=False)
class TermCounts:
    """Term frequencies in texts, which are identified by their row numbers.

    Attributes:
        vocabulary: Mapping of terms to their numbers.
        pointers: Start of each term's entries in the next two arrays; shape (terms + 1,).
        holders: For each term, the rows of the texts that contain it, in ascending order; shape (entries,).
        frequencies: Frequency of the term in each of these texts; shape (entries,).
        lengths: Number of terms in each text, counting repetitions but not numbers; shape (texts,).
    """

    vocabulary: Mapping[str, int]
    pointers: NDArray[np.int64]
    holders: NDArray[np.int32]
    frequencies: NDArray[np.int32]
    lengths: NDArray[np.int32]

    def frequencies_of(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Return the rows that contain a term and the term's frequency in each row, or None if the term is unknown."""
        number = self.vocabulary.get(term)
        if number is None:
            return None
        start, stop = self.pointers[number], self.pointers[number + 1]
        return self.holders[start:stop], self.frequencies[start:stop]

    def save(self, directory: Path) -> None:
        """Write the vocabulary to one file and the arrays to another, without syncing."""
        files.make_directory(directory)
        words = json.dumps(list(self.vocabulary), ensure_ascii=False)
        files.write(directory / _VOCABULARY_FILE, words.encode(), sync=False)
        arrays = (self.pointers.astype(np.int64).view(np.int32), self.holders, self.frequencies, self.lengths)
        files.write_array(directory / COUNTS_FILE, np.concatenate(arrays).astype(np.int32))

    @classmethod
    def load(cls, directory: Path, texts: int) -> Self:
        """Load saved counts as memory-mapped arrays.

        Args:
            directory: Directory of the index.
            texts: Number of texts in the index.
        """
        terms = json.loads(files.read(directory / _VOCABULARY_FILE))
        everything = files.mmap(directory / COUNTS_FILE, np.int32)
        first = 2 * (len(terms) + 1)
        entries = (len(everything) - first - texts) // 2
        holders, frequencies, lengths = np.split(everything[first:], [entries, 2 * entries])
        vocabulary = {term: number for number, term in enumerate(terms)}
        return cls(vocabulary, everything[:first].view(np.int64), holders, frequencies, lengths)


class _IndexPart:
    """A part of an index.

    Args:
        counts: Term counts of the part.
        start: Row of the part's first text in the index.
        mean: Mean length of the texts in all parts.
    """

    def __init__(self, counts: TermCounts, start: int, mean: float) -> None:
        self.counts = counts
        self._start = start
        self._norms = np.asarray(_K1 * (1 - _B + _B * counts.lengths / mean), dtype=np.float64)

    def entries(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.float64]] | None:
        """Return the rows that contain a term, and the term's saturated frequency in each of these rows.

        The saturated frequency is frequency / (norm + frequency). The result is None if the term is unknown.
        """
        result = self.counts.frequencies_of(term)
        if result is None:
            return None
        holders, frequencies = result
        saturated = frequencies / (self._norms[holders] + frequencies)
        return (holders + np.int32(self._start) if self._start else holders), saturated


class QueryTerms:
    """The terms of a query, looked up in an index.

    Args:
        index: The index.
        counts: The distinct terms of the query, in order, with their weights.
        omitted: Number of distinct terms of the query that are not searched.

    Attributes:
        known: The terms that the index contains.
        postings: Postings of each term in `known`.
        frequencies: Number of rows that contain each term in `known`.
    """

    def __init__(self, index: LexicalIndex, counts: Mapping[str, float], omitted: int = 0) -> None:
        matches = [(term, postings) for term in counts if (postings := index.postings(term)) is not None]
        self.counts = counts
        self.omitted = omitted
        self.known = tuple(term for term, _ in matches)
        self.postings = [postings for _, postings in matches]
        self.frequencies = np.array([len(rows) for rows, _ in self.postings], dtype=np.int64)
        self.size = index.size
        self.analyzer = index.analyzer

    @cached_property
    def weights(self) -> dict[str, float]:
        """Each term's weight times its idf, log(1 + (N - n + 0.5) / (n + 0.5)); unknown terms are included."""
        holders = dict(zip(self.known, self.frequencies.tolist(), strict=True))
        counts = ((term, count, holders.get(term, 0)) for term, count in self.counts.items())
        return {term: count * math.log1p((self.size - n + 0.5) / (n + 0.5)) for term, count, n in counts}

    def contributions(self, number: int, rows: NDArray[np.int32]) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return a mask of the given rows that contain a term, and the term's contributions to their scores.

        The term is `known[number]`.
        """
        holders, values = self.postings[number]
        places = holders.searchsorted(rows)
        contains = holders.take(places, mode="clip") == rows
        return contains, values[places[contains]]

    def frequencies_within(self, number: int, starts: NDArray[np.int32], stops: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return, for each document, the number of its rows that contain a term.

        Args:
            number: Number of the term in `known`.
            starts: The first rows of the documents; shape (n,).
            stops: The rows after the last rows of the documents; shape (n,).
        """
        holders, _ = self.postings[number]
        return holders.searchsorted(stops) - holders.searchsorted(starts)

    def matched(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return, for each of the given rows, the query terms that it contains."""
        row_ids = np.asarray(rows, dtype=np.int32)
        contains = np.empty((len(row_ids), len(self.known)), dtype=np.bool_)
        for at, (holders, _) in enumerate(self.postings):
            contains[:, at] = holders.take(holders.searchsorted(row_ids), mode="clip") == row_ids
        return [tuple(itertools.compress(self.known, row)) for row in contains.tolist()]


class LexicalIndex:
    """A BM25 index of texts, which are identified by their row numbers.

    Args:
        analyzer: Analyzer that splits text into terms.
        parts: Term counts of each part. The rows of a part come after the rows of the previous parts.

    Attributes:
        size: Number of texts.
    """

    def __init__(self, analyzer: Analyzer, parts: Sequence[TermCounts] = ()) -> None:
        self.analyzer = analyzer
        lengths = [counts.lengths for counts in parts]
        starts = np.cumsum([0, *map(len, lengths)]).tolist()
        self.size = starts[-1]
        total = sum(int(of_part.sum(dtype=np.int64)) for of_part in lengths)
        mean = total / self.size if total else 1.0
        self._parts = [_IndexPart(part, start, mean) for part, start in zip(parts, starts, strict=False)]
        self._respelled: LRUCache[str, dict[str, float]] = LRUCache(_RESPELLED)
        self._postings: LRUCache[str, Postings] = LRUCache(_CACHED_POSTINGS, lambda postings: len(postings[0]))

    @classmethod
    def build(cls, texts: Iterable[str], *, language: str = default("language")) -> LexicalIndex:
        """Build an index in which row i is the i-th text."""
        builder = LexicalIndexBuilder(language=language)
        builder.add_texts(texts)
        return cls(builder.analyzer, [builder.build()])

    def query(self, query: LexicalQuery) -> QueryTerms:
        """Return the terms of a query with their postings.

        Question words are left out, unless the query has no other words. Fiscal years and quarters have the weight
        `PERIOD_WEIGHT`.

        If no text contains a word, terms that differ from it by one typing error are searched too. `GUESS_WEIGHT` is
        divided among these terms in proportion to the number of texts that contain them. If a query is long, only its
        beginning is read (see `cut_query`), and only the 256 terms with the largest weights are searched.
        """
        if isinstance(query, Mapping):
            return QueryTerms(self, query)
        weighted_texts = [(query, 1.0)] if isinstance(query, str) else query
        texts = [(cut_query(text), weight) for text, weight in weighted_texts if weight > 0]
        counts = _term_weights(texts, self.analyzer.query_terms) or _term_weights(texts, self.analyzer.terms)
        counts = {term: weight * (PERIOD_WEIGHT if is_period(term) else 1.0) for term, weight in counts.items()}
        terms = QueryTerms(self, counts) if len(counts) <= MAX_TERMS else self._heaviest(counts)
        if len(terms.known) == len(terms.counts):
            return terms
        corrected = dict(terms.counts)
        for word, weight in itertools.islice(self._unknown_words(texts), MAX_SPELLED):
            for term, share in self._spelling_candidates(word).items():
                corrected[term] = max(corrected.get(term, 0.0), weight * share)
        return terms if corrected == terms.counts else QueryTerms(self, corrected, terms.omitted)

    def _heaviest(self, counts: Mapping[str, float]) -> QueryTerms:
        """Reduce a query with too many terms to the terms with the largest product of weight and idf."""
        terms = QueryTerms(self, counts)
        known = frozenset(terms.known)
        ordered = sorted(counts, key=lambda term: (term not in known, -terms.weights[term]))  # ties keep their order
        heaviest = frozenset(ordered[:MAX_TERMS])
        heaviest_counts = {term: weight for term, weight in counts.items() if term in heaviest}
        return QueryTerms(self, heaviest_counts, len(counts) - len(heaviest_counts))

    def _unknown_words(self, texts: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
        """Yield the distinct words that no text contains and that may be misspelt, with their weights."""
        words: dict[str, float] = {}
        for text, weight in texts:
            for token in filter(may_be_misspelt, tokens(text)):
                words[token] = max(words.get(token, 0.0), weight)
        for word, weight in words.items():
            terms = self.analyzer.query_terms(word)
            if terms and not any(map(self._holders, terms)):
                yield word, weight

    def _spelling_candidates(self, token: str) -> dict[str, float]:
        """Return the terms in the index that differ from an unknown word by one typing error, with their weights."""
        candidates = self._respelled.get(token)
        if candidates is None:
            near = self._known_terms(self.analyzer.stems(edit_distance_one(token.casefold())))
            holders = {term: number for term in sorted(near) if (number := self._holders(term))}
            total = sum(holders.values())
            candidates = {term: GUESS_WEIGHT * number / total for term, number in holders.items()}
            self._respelled.put(token, candidates)
        return candidates

    def _holders(self, term: str) -> int:
        """Return the number of texts that contain a term."""
        postings = self.postings(term)
        return 0 if postings is None else len(postings[0])

    def _known_terms(self, terms: Iterable[str]) -> set[str]:
        """Return the subset of the given terms that the index contains."""
        return {term for term in terms if any(term in part.counts.vocabulary for part in self._parts)}

    def specificity(self, text: str) -> float:
        """Return the specificity of a text: the summed idf of its terms, divided by the logarithm of the row count."""
        terms = self.query(text)
        return sum(terms.weights[term] for term in terms.known) / math.log1p(self.size or 1)

    def scores(self, query: LexicalQuery | QueryTerms) -> NDArray[np.float32]:
        """Return the BM25 score of every row, which is 0 for rows without any query term."""
        terms = query if isinstance(query, QueryTerms) else self.query(query)
        scores = np.zeros(self.size, dtype=np.float32)
        for term, (holders, values) in zip(terms.known, terms.postings, strict=True):
            weight = np.float32(terms.counts[term])
            np.add.at(scores, holders, values if weight == 1 else weight * values)
        return scores

    def rank(self, terms: QueryTerms, k: int, mask: NDArray[np.bool_] | None = None) -> tuple[Hits, Scale]:
        """Return up to k rows with the highest scores above 0 and the scale of the scores; see `ChunkIndex.rank_terms`.

        Args:
            terms: The query.
            k: Maximum number of hits.
            mask: Mask of the rows to rank, or None for all rows.
        """
        scores = self.scores(terms)
        # The zero point of the scale is 0, because rows without any query term count as 0 in the fusion.
        scale = Scale(0.0, float(scores.std())) if len(scores) else NO_SCALE
        best, rows = top(scores if mask is None else np.where(mask, scores, np.float32(0.0)), k, above=0.0)
        return Hits(rows, best.astype(np.float64)), scale

    def postings(self, term: str) -> Postings | None:
        """Return the rows that contain a term, with the term's contribution to each score, or None if it is unknown."""
        postings = self._postings.get(term)
        if postings is None and (postings := self._computed_postings(term)) is not None:
            self._postings.put(term, postings)
        return postings

    def _computed_postings(self, term: str) -> Postings | None:
        entries = [result for part in self._parts if (result := part.entries(term)) is not None]
        if not entries:
            return None
        rows, saturated = entries[0] if len(entries) == 1 else map(np.concatenate, zip(*entries, strict=True))
        if len(rows) == 0:
            return None
        idf = np.float32(math.log(1 + (self.size - len(rows) + 0.5) / (len(rows) + 0.5)))
        return rows, (idf * saturated).astype(np.float32)


def _term_weights(texts: Sequence[tuple[str, float]], analyse: Callable[[str], list[str]]) -> dict[str, float]:
    """Return the distinct terms of weighted texts, each with the total weight of the texts that contain it."""
    weights: dict[str, float] = {}
    for text, weight in texts:
        for term in dict.fromkeys(analyse(text)):
            weights[term] = weights.get(term, 0.0) + weight
    return weights


class TermCountsBuilder:
    """Build `TermCounts` from texts and from other counts.

    Occurrences are counted a million at a time, so that memory use depends only on the number of entries.
    """

    def __init__(self) -> None:
        self.vocabulary: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._lengths: list[NDArray[np.int32]] = []
        self._size = 0
        # Entries as (number of the term << 32 | row), with their frequencies.
        self._entries: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
        self._pending: list[NDArray[np.int32]] = []
        self._pending_lengths: list[int] = []
        self._pending_terms = 0

    def add(self, terms: NDArray[np.int32], length: int | None = None) -> None:
        """Add a text, given as the numbers of its terms, including repetitions.

        Args:
            terms: Numbers of the terms in the vocabulary.
            length: Length of the text (see `TermCounts.lengths`), or None for the number of all terms.
        """
        self._pending.append(terms)
        self._pending_lengths.append(len(terms) if length is None else length)
        self._pending_terms += len(terms)
        if self._pending_terms >= _PENDING:
            self._count()

    def add_counts(self, counts: TermCounts, is_kept: NDArray[np.bool_]) -> None:
        """Add texts whose terms have already been counted.

        Args:
            counts: Term counts of the texts.
            is_kept: Mask of the texts to add; shape (texts,).
        """
        self._count()
        numbers = np.fromiter(map(self.vocabulary.__getitem__, counts.vocabulary), dtype=np.int64)
        terms = np.repeat(numbers, np.diff(counts.pointers))
        exists = is_kept[counts.holders]
        rows = (np.cumsum(is_kept) - 1 + self._size)[counts.holders][exists]
        # Indexing makes copies, so that the file of `counts` does not stay mapped.
        self._entries.append((terms[exists] << 32 | rows, counts.frequencies[exists]))
        self._lengths.append(counts.lengths[is_kept])
        self._size += len(self._lengths[-1])

    def _count(self) -> None:
        """Count the occurrences of the terms in the pending texts."""
        if not self._pending:
            return
        sizes = np.fromiter(map(len, self._pending), dtype=np.int32)
        rows = np.repeat(np.arange(self._size, self._size + len(sizes), dtype=np.int64), sizes)
        occurrences = np.concatenate(self._pending).astype(np.int64) << 32 | rows
        occurrences.sort()
        first = np.flatnonzero(np.diff(occurrences, prepend=-1))
        self._entries.append((occurrences[first], np.diff(first, append=len(occurrences)).astype(np.int32)))
        self._lengths.append(np.array(self._pending_lengths, dtype=np.int32))
        self._size += len(sizes)
        self._pending, self._pending_lengths, self._pending_terms = [], [], 0

    def build(self) -> TermCounts:
        """Return the counts."""
        self._count()
        entries = np.concatenate([np.zeros(0, dtype=np.int64), *(entries for entries, _ in self._entries)])
        frequencies = np.concatenate([np.zeros(0, dtype=np.int32), *(counts for _, counts in self._entries)])
        order = np.argsort(entries, kind="stable")
        entries, frequencies = entries[order], frequencies[order]
        self._entries = [(entries, frequencies)]
        # Terms that occur only in texts that were not added are left out.
        numbers, first = np.unique(entries >> 32, return_index=True)
        terms = list(self.vocabulary)
        return TermCounts(
            {terms[number]: at for at, number in enumerate(numbers.tolist())},
            np.append(first, len(entries)).astype(np.int64),
            (entries & 0xFFFFFFFF).astype(np.int32),
            frequencies,
            np.concatenate([np.zeros(0, dtype=np.int32), *self._lengths]),
        )


class LexicalIndexBuilder(TermCountsBuilder):
    """Build `TermCounts` from texts in one language.

    Args:
        language: Name of a Snowball stemmer, or `none`.
    """

    def __init__(self, *, language: str = default("language")) -> None:
        super().__init__()
        self.analyzer = Analyzer(language, has_periods=True)
        self._numbers = Memory(self._term_numbers)
        self._numerals = Memory(self._numeral_terms)

    def add_texts(self, texts: Iterable[str]) -> None:
        """Add texts, whose rows come after the rows of earlier texts."""
        for text in texts:
            self.add_words(tokens(text))

    def add_words(self, words: Sequence[str]) -> None:
        """Add a text, given as its tokens; see `analysis.tokens`."""
        numbers = itertools.chain.from_iterable(map(self._numbers.__getitem__, words))
        of_periods = map(self.vocabulary.__getitem__, periods(words))
        terms = np.fromiter(itertools.chain(numbers, of_periods), dtype=np.int32)
        self.add(terms, len(terms) - sum(map(self._numerals.__getitem__, words)))

    def _term_numbers(self, token: str) -> tuple[int, ...]:
        return tuple(map(self.vocabulary.__getitem__, self.analyzer.analyse(token)))

    def _numeral_terms(self, token: str) -> int:
        """Return the number of terms in a token without letters, such as a figure in a table, or 0 for other tokens."""
        return 0 if any(map(str.isalpha, token)) else len(self.analyzer.analyse(token))
