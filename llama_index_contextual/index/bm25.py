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
import math
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import (
    DEFAULT_LANGUAGE,
    Analyzer,
    Memory,
    cut_query,
    fold,
    is_period,
    joined_terms,
    tokens,
)
from llama_index_contextual.index.hits import NO_SCALE, Hits, Scale, mean_and_deviation, top
from llama_index_contextual.index.variants import (
    MAX_SPELLED,
    Correction,
    Variant,
    find_variants,
    may_be_corrected,
    spelling_candidates,
)

PERIOD_WEIGHT = 0.25
"""Weight of a fiscal year or quarter in the index of chunks, reduced because the year itself is also a term."""

MAX_TERMS = 256
"""Maximum number of distinct query terms. If there are more, only the terms with the largest weights are searched."""

_RESPELLED = 1_000  # size of the cache of spelling candidates
_CACHED_POSTINGS = 1_000_000  # maximum number of rows in the cached postings, eight bytes each
_K1, _B = 1.5, 0.75
_LAST = chr(sys.maxunicode)  # sorts after all characters
_PENDING = 1_000_000  # number of term occurrences that are counted together
TERMS_FILE = "terms.bin"
_COUNTS_FILE = "counts.bin"

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
        terms: The terms, sorted; the number of a term is its position.
        by_ending: Numbers of the terms, sorted by the reversed terms; shape (terms,).
        pointers: Start of each term's entries in the next two arrays; shape (terms + 1,).
        holders: For each term, the rows of the texts that contain it, in ascending order; shape (entries,).
        frequencies: Frequency of the term in each of these texts; shape (entries,).
        lengths: Number of terms in each text, counting repetitions but not numbers; shape (texts,).
    """

    terms: Sequence[str]
    by_ending: NDArray[np.int32]
    pointers: NDArray[np.int64]
    holders: NDArray[np.int32]
    frequencies: NDArray[np.int32]
    lengths: NDArray[np.int32]

    def number_of(self, term: str) -> int | None:
        """Return the number of a term, or None if the term is unknown."""
        return self._numbers[term]

    @cached_property
    def _numbers(self) -> Memory[int | None]:
        """The numbers of the terms that were looked up."""
        terms = self.terms  # not `self`: a reference cycle would keep the files of the arrays open

        def find(term: str) -> int | None:
            number = bisect_left(terms, term)
            return number if number < len(terms) and terms[number] == term else None

        return Memory(find)

    def frequencies_of(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Return the rows that contain a term and the term's frequency in each row, or None if the term is unknown."""
        number = self.number_of(term)
        if number is None:
            return None
        start, stop = self.pointers[number], self.pointers[number + 1]
        return self.holders[start:stop], self.frequencies[start:stop]

    def holders_of(self, term: str) -> int:
        """Return the number of texts that contain a term."""
        number = self.number_of(term)
        return 0 if number is None else int(self.pointers[number + 1] - self.pointers[number])

    @cached_property
    def with_marks(self) -> Mapping[str, Sequence[str]]:
        """The terms with marks, by what remains of them without the marks."""
        terms: defaultdict[str, list[str]] = defaultdict(list)
        for term in self.terms:
            if not term.isascii() and (plain := fold(term, "")).isascii():
                terms[plain].append(term)
        return dict(terms)

    def beginning_with(self, part: str) -> Sequence[str]:
        """Return the terms that begin with a string, sorted."""
        return self.terms[bisect_left(self.terms, part) : bisect_left(self.terms, f"{part}{_LAST}")]

    def ending_with(self, part: str) -> list[str]:
        """Return the terms that end with a string."""
        start, stop = (
            bisect_left(self.by_ending, end, key=lambda number: self.terms[number][::-1])
            for end in (part[::-1], f"{part[::-1]}{_LAST}")
        )
        return [self.terms[number] for number in self.by_ending[start:stop].tolist()]

    def containing(self, part: str, *, is_first: bool) -> Iterator[tuple[str, str]]:
        """Yield the terms that begin or end with a part, and the rest of each."""
        if is_first:
            yield from ((term, term[len(part) :]) for term in self.beginning_with(part) if term != part)
        else:
            yield from ((term, term[: -len(part)]) for term in self.ending_with(part) if term != part)

    def save(self, directory: Path) -> None:
        """Write the terms to one file and the arrays to another, without syncing."""
        files.make_directory(directory)
        files.write(directory / TERMS_FILE, "\n".join(self.terms).encode(), sync=False)
        pointers = self.pointers.astype(np.int64).view(np.int32)
        arrays = (pointers, self.by_ending, self.holders, self.frequencies, self.lengths)
        files.write_array(directory / _COUNTS_FILE, np.concatenate(arrays).astype(np.int32))

    @classmethod
    def load(cls, directory: Path, texts: int) -> Self:
        """Load saved counts as memory-mapped arrays.

        Args:
            directory: Directory of the index.
            texts: Number of texts in the index.
        """
        content = files.read(directory / TERMS_FILE).decode()
        terms = content.split("\n") if content else []
        everything = files.mmap(directory / _COUNTS_FILE, np.int32)
        first = 2 * (len(terms) + 1)
        entries = (len(everything) - first - len(terms) - texts) // 2
        sizes = (first, len(terms), entries, entries)
        pointers, by_ending, holders, frequencies, lengths = np.split(everything, np.cumsum(sizes))
        return cls(terms, by_ending, pointers.view(np.int64), holders, frequencies, lengths)


class QueryTerms:
    """The terms of a query, looked up in an index.

    Args:
        index: The index.
        counts: The distinct terms of the query, in order, with their weights.
        omitted: Number of distinct terms of the query that are not searched.
        variants: Those of the terms that are searched in addition to the terms of the query.

    Attributes:
        known: The terms that the index contains.
        postings: Postings of each term in `known`.
        frequencies: Number of rows that contain each term in `known`.
    """

    def __init__(
        self,
        index: LexicalIndex,
        counts: Mapping[str, float],
        omitted: int = 0,
        variants: Mapping[str, Variant] = MappingProxyType({}),
    ) -> None:
        postings_of = zip(counts, index.postings([*counts]), strict=True)
        matches = [(term, postings) for term, postings in postings_of if postings is not None]
        self.counts = counts
        self.omitted = omitted
        self.variants = variants
        self.known = tuple(term for term, _ in matches)
        self.postings = [postings for _, postings in matches]
        self.frequencies = np.array([len(rows) for rows, _ in self.postings], dtype=np.int64)
        self.size = index.size
        self.analyzer = index.analyzer

    @cached_property
    def rows(self) -> NDArray[np.int32]:
        """The rows that contain each term in `known`, one term after another; shape (postings of all terms,)."""
        return np.concatenate([rows for rows, _ in self.postings])

    @cached_property
    def weights(self) -> dict[str, float]:
        """Each term's weight times its idf, log(1 + (N - n + 0.5) / (n + 0.5)); unknown terms are included."""
        holders = dict(zip(self.known, self.frequencies.tolist(), strict=True))
        counts = ((term, count, holders.get(term, 0)) for term, count in self.counts.items())
        return {term: count * math.log1p((self.size - n + 0.5) / (n + 0.5)) for term, count, n in counts}

    def contain(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of the given rows contains each term in `known`; shape (terms, rows)."""
        numbers = rows.astype(np.int32)
        holders = np.empty((len(self.known), len(rows)), dtype=np.int32)
        for number, (of_term, _) in enumerate(self.postings):
            of_term.take(of_term.searchsorted(numbers), mode="clip", out=holders[number])
        contains: NDArray[np.bool_] = holders == numbers
        return contains


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
        self._parts = [*zip(parts, starts, strict=False)]
        self._norms = np.concatenate(
            [np.zeros(0), *(_K1 * (1 - _B + _B * of_part / mean) for of_part in lengths)], dtype=np.float64
        )
        self._respelled: LRUCache[str, list[Correction]] = LRUCache(_RESPELLED)
        self._postings: LRUCache[str, Postings] = LRUCache(_CACHED_POSTINGS, lambda postings: len(postings[0]))

    @classmethod
    def build(cls, texts: Iterable[str], *, language: str = DEFAULT_LANGUAGE) -> LexicalIndex:
        """Build an index in which row i is the i-th text."""
        builder = LexicalIndexBuilder(language=language)
        builder.add_texts(texts)
        return cls(builder.analyzer, [builder.build()])

    def query(self, query: LexicalQuery) -> QueryTerms:
        """Return the terms of a query with their postings.

        Question words are left out, unless the query has no other words. Fiscal years and quarters have the weight
        `PERIOD_WEIGHT`.

        Variants of the terms are searched too; see the `variants` module. If a query is long, only its
        beginning is read (see `cut_query`), and only the 256 terms with the largest weights are searched.
        """
        if isinstance(query, Mapping):
            return QueryTerms(self, query)
        weighted_texts = [(query, 1.0)] if isinstance(query, str) else query
        texts = [(cut_query(text), weight) for text, weight in weighted_texts if weight > 0]
        counts = _term_weights(texts, self.analyzer.query_terms) or _term_weights(texts, self.analyzer.terms)
        counts = {term: weight * (PERIOD_WEIGHT if is_period(term) else 1.0) for term, weight in counts.items()}
        terms = QueryTerms(self, counts) if len(counts) <= MAX_TERMS else self._heaviest(counts)
        variants = [] if terms.omitted else list(find_variants(self, texts, terms.counts))
        if len(terms.known) < len(terms.counts):
            variants += self._corrections(texts, variants)
        weights = dict(terms.counts)
        for variant in variants:
            weights[variant.term] = max(weights.get(variant.term, 0.0), variant.weight)
        if weights == terms.counts:
            return terms
        new = {one.term: one for one in variants if one.term not in terms.counts}
        return QueryTerms(self, weights, terms.omitted, new)

    def _corrections(self, texts: Sequence[tuple[str, float]], others: Sequence[Variant]) -> Iterator[Variant]:
        """Yield spelling candidates for the words of a query that no text contains.

        A word whose terms have variants is known, unless these are only parts of it, which it may contain by chance:
        then one typing error is corrected.

        Args:
            texts: The texts of the query with their weights.
            others: The variants.
        """
        known = {one.of for one in others if one.kind != "compound" or len(one.term) > len(one.of)}
        of_compounds = {variant.of for variant in others}
        for word, terms, weight in itertools.islice(self._unknown_words(texts, known), MAX_SPELLED):
            for one in self._spelling_candidates(word, 2 if of_compounds.isdisjoint(terms) else 1):
                yield Variant(one.term, word.casefold(), weight * one.weight, "spelling", one.word)

    def _heaviest(self, counts: Mapping[str, float]) -> QueryTerms:
        """Reduce a query with too many terms to the terms with the largest product of weight and idf."""
        terms = QueryTerms(self, counts)
        known = frozenset(terms.known)
        ordered = sorted(counts, key=lambda term: (term not in known, -terms.weights[term]))  # ties keep their order
        heaviest = frozenset(ordered[:MAX_TERMS])
        heaviest_counts = {term: weight for term, weight in counts.items() if term in heaviest}
        return QueryTerms(self, heaviest_counts, len(counts) - len(heaviest_counts))

    def _unknown_words(
        self, texts: Sequence[tuple[str, float]], others: Set[str]
    ) -> Iterator[tuple[str, list[str], float]]:
        """Yield the distinct words that no text contains and that may be misspelt, with their terms and weights."""
        words: dict[str, float] = {}
        for text, weight in texts:
            for token in filter(may_be_corrected, tokens(text)):
                words[token] = max(words.get(token, 0.0), weight)
        for word, weight in words.items():
            terms = self.analyzer.query_terms(word)
            if terms and others.isdisjoint(terms) and not any(map(self.holders, terms)):
                yield word, terms, weight

    def _spelling_candidates(self, token: str, most_errors: int) -> list[Correction]:
        candidates = self._respelled.get(token)
        if candidates is None:
            candidates = spelling_candidates(self, token, most_errors=most_errors)
            self._respelled.put(token, candidates)
        return candidates

    def holders(self, term: str) -> int:
        """Return the number of texts that contain a term."""
        return sum(counts.holders_of(term) for counts, _ in self._parts)

    def known(self, terms: Iterable[str]) -> set[str]:
        """Return the subset of the given terms that the index contains."""
        return {term for term in terms if any(counts.number_of(term) is not None for counts, _ in self._parts)}

    def containing(self, part: str, *, is_first: bool) -> Iterator[tuple[str, str]]:
        """Yield the terms that begin or end with a part, and the rest of each; see `TermCounts.containing`."""
        terms = itertools.chain.from_iterable(one.containing(part, is_first=is_first) for one, _ in self._parts)
        yield from dict(terms).items()

    def with_marks(self, term: str) -> set[str]:
        """Return the terms that are equal to a term without marks, except for their marks."""
        return set().union(*(counts.with_marks.get(term, ()) for counts, _ in self._parts))

    def beginning_with(self, letter: str) -> set[str]:
        """Return the terms that begin with a letter."""
        return set().union(*(counts.beginning_with(letter) for counts, _ in self._parts))

    def specificity(self, text: str) -> float:
        """Return the specificity of a text: the summed idf of its terms, divided by the logarithm of the row count."""
        terms = self.query(text)
        return sum(terms.weights[term] for term in terms.known) / math.log1p(self.size or 1)

    def scores(self, query: LexicalQuery | QueryTerms) -> NDArray[np.float32]:
        """Return the BM25 score of every row, which is 0 for rows without any query term."""
        terms = query if isinstance(query, QueryTerms) else self.query(query)
        scores = np.zeros(self.size, dtype=np.float32)
        if terms.known:
            weights = [np.float32(terms.counts[term]) for term in terms.known]
            values = [
                each if weight == 1 else weight * each
                for weight, (_, each) in zip(weights, terms.postings, strict=True)
            ]
            np.add.at(scores, terms.rows, np.concatenate(values))
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
        scale = Scale(0.0, mean_and_deviation(scores)[1]) if len(scores) else NO_SCALE
        best, rows = top(scores if mask is None else np.where(mask, scores, np.float32(0.0)), k, above=0.0)
        return Hits(rows, best.astype(np.float64)), scale

    def postings(self, terms: Sequence[str]) -> list[Postings | None]:
        """Return the postings of terms, or None for each unknown term."""
        postings = self._postings.get_all(terms)
        if missing := [at for at, of_term in enumerate(postings) if of_term is None]:
            computed = self._computed_postings([terms[at] for at in missing])
            for at, of_term in zip(missing, computed, strict=True):
                postings[at] = of_term
            self._postings.put_all((terms[at], of_term) for at in missing if (of_term := postings[at]) is not None)
        return postings

    def _computed_postings(self, terms: Sequence[str]) -> list[Postings | None]:
        """Compute the postings of several terms together, because most of them are short."""
        rows, frequencies = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int32)]
        sizes = [0] * len(terms)
        for at, term in enumerate(terms):
            for counts, start in self._parts:
                if (entries := counts.frequencies_of(term)) is not None:
                    rows.append(entries[0] + np.int32(start) if start else entries[0])
                    frequencies.append(entries[1])
                    sizes[at] += len(entries[0])
        holders, counts_of = np.concatenate(rows), np.concatenate(frequencies)
        idf = [np.float32(math.log(1 + (self.size - size + 0.5) / (size + 0.5))) for size in sizes]
        saturated = counts_of / (self._norms[holders] + counts_of)
        values = (np.repeat(np.array(idf, dtype=np.float32), sizes) * saturated).astype(np.float32)
        stops = itertools.accumulate(sizes)
        spans = [slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
        # Copies, so that the cache does not keep the arrays of all terms.
        return [
            (holders[span].copy(), values[span].copy()) if size else None
            for size, span in zip(sizes, spans, strict=True)
        ]


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
        numbers = np.fromiter(map(self.vocabulary.__getitem__, counts.terms), dtype=np.int64)
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
        self._entries = [(entries, frequencies)]
        terms = list(self.vocabulary)
        # Terms that occur only in texts that were not added are left out.
        numbers = np.unique(entries >> 32)
        ordered = sorted(numbers.tolist(), key=terms.__getitem__)
        ranks = np.zeros(len(terms), dtype=np.int64)
        ranks[ordered] = np.arange(len(ordered))
        entries = ranks[entries >> 32] << 32 | entries & 0xFFFFFFFF
        order = np.argsort(entries, kind="stable")
        entries = entries[order]
        ordered_terms = [terms[number] for number in ordered]
        return TermCounts(
            ordered_terms,
            np.array(sorted(range(len(ordered)), key=lambda number: ordered_terms[number][::-1]), dtype=np.int32),
            np.searchsorted(entries >> 32, np.arange(len(ordered) + 1)).astype(np.int64),
            (entries & 0xFFFFFFFF).astype(np.int32),
            frequencies[order],
            np.concatenate([np.zeros(0, dtype=np.int32), *self._lengths]),
        )


class LexicalIndexBuilder(TermCountsBuilder):
    """Build `TermCounts` from texts.

    Args:
        language: Language of the texts; see `Analyzer`.
    """

    def __init__(self, *, language: str = DEFAULT_LANGUAGE) -> None:
        super().__init__()
        self.analyzer = Analyzer(language, has_periods=True)
        self._words: dict[Analyzer, tuple[Memory[tuple[int, ...]], Memory[int]]] = {}

    def add_texts(self, texts: Iterable[str]) -> None:
        """Add texts, whose rows come after the rows of earlier texts."""
        for text in texts:
            self.add_words(tokens(text))

    def add_words(
        self,
        words: Sequence[str],
        analyzer: Analyzer | None = None,
        others: Iterable[tuple[Sequence[str], Analyzer]] = (),
    ) -> None:
        """Add a text.

        Args:
            words: Its tokens; see `analysis.tokens`.
            analyzer: Analyzer for its language; None for the language of the builder.
            others: Tokens of its parts in other languages, with their analyzers.
        """
        terms: list[int] = []
        length = 0
        for part, of_language in ((words, analyzer or self.analyzer), *others):
            numbers, numerals = self._memories(of_language)
            terms += itertools.chain.from_iterable(map(numbers.__getitem__, part))
            terms += map(self.vocabulary.__getitem__, joined_terms(part))
            length -= sum(map(numerals.__getitem__, part))
        self.add(np.array(terms, dtype=np.int32), length + len(terms))

    def _memories(self, analyzer: Analyzer) -> tuple[Memory[tuple[int, ...]], Memory[int]]:
        """Return, for each token, the numbers of its terms, and the number of its terms if it has no letters, or 0.

        A token without letters is, for example, a figure in a table.
        """
        if analyzer not in self._words:

            def numbers(token: str) -> tuple[int, ...]:
                return tuple(map(self.vocabulary.__getitem__, analyzer.analyse(token)))

            def numerals(token: str) -> int:
                return 0 if any(map(str.isalpha, token)) else len(analyzer.analyse(token))

            self._words[analyzer] = Memory(numbers), Memory(numerals)
        return self._words[analyzer]
