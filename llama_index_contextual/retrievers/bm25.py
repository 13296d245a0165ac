"""BM25 index over texts: terms of a query with corrected spelling, scores, building and files."""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import bm25s
import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.errors import InputError
from llama_index_contextual.retrievers.analysis import Analyzer, Memory, edit_distance_one, may_be_misspelt, tokens
from llama_index_contextual.retrievers.periods import is_period
from llama_index_contextual.retrievers.queries import shortened
from llama_index_contextual.storage import files

# bm25s sets its logger to DEBUG at import, which would show its messages in every application with a root handler.
logging.getLogger("bm25s").setLevel(logging.NOTSET)

SETTINGS_FILE = "settings.json"
PERIOD_WEIGHT = 0.25
"""Weight of a fiscal year or quarter in the index of chunks: its year is a term as well, and counts there already."""

GUESS_WEIGHT = 0.5
"""Weight of all spelling candidates of an unknown word together; a term of the query has 1."""

MAX_TERMS = 256
"""Maximum number of distinct terms of a query that are searched: those with the largest weight."""

MAX_SPELLED = 8
"""Maximum number of unknown words of a query whose spelling is corrected: the first ones."""

_RESPELLED = 1_000  # size of the cache of spelling candidates

LexicalQuery = str | Sequence[tuple[str, float]] | Mapping[str, float]
"""A text, texts with the weight of each of their terms, or terms with their weights.

A term of several texts has the sum of its weights.
"""

Postings = tuple[NDArray[np.int32], NDArray[np.float32]]
"""The rows that contain a term, ascending, and its contribution to the score of each."""


class LexicalIndex:
    """A BM25 index over texts, which are identified by their rows.

    Args:
        analyzer: Turns text into terms.
        bm25: The matrix, or None if no text has a term.
        size: Number of texts.
    """

    def __init__(self, analyzer: Analyzer, bm25: bm25s.BM25 | None, size: int) -> None:
        self.analyzer = analyzer
        self._bm25 = bm25
        self.size = size
        self._respelled: LRUCache[str, dict[str, float]] = LRUCache(_RESPELLED)

    @classmethod
    def build(cls, texts: Iterable[str], *, language: str = "english") -> LexicalIndex:
        """Index texts; row i is the i-th text."""
        builder = LexicalIndexBuilder(language=language)
        builder.add(texts)
        return builder.build()

    def query(self, query: LexicalQuery) -> QueryTerms:
        """Return the terms of a query with their postings.

        Question words are left out, unless there are no others. Fiscal years and quarters have `PERIOD_WEIGHT`.

        For a word that no text contains, the terms that are one typing error away are searched too; they share
        `GUESS_WEIGHT` in proportion to the number of texts that contain them. Of a long query, only the beginning is
        read (see `shortened`), and only the 256 terms with the largest weight are searched.
        """
        if isinstance(query, Mapping):
            return QueryTerms(self, query)
        weighted_texts = [(query, 1.0)] if isinstance(query, str) else query
        texts = [(shortened(text), weight) for text, weight in weighted_texts if weight > 0]
        counts = _term_weights(texts, self.analyzer.query_terms) or _term_weights(texts, self.analyzer.terms)
        if self.analyzer.has_periods:
            counts = {term: weight * (PERIOD_WEIGHT if is_period(term) else 1.0) for term, weight in counts.items()}
        terms = self._heaviest(counts)
        if len(terms.known) == len(terms.counts):
            return terms
        corrected = dict(terms.counts)
        for word, weight in itertools.islice(self._unknown_words(texts), MAX_SPELLED):
            for term, share in self._spelling_candidates(word).items():
                corrected[term] = max(corrected.get(term, 0.0), weight * share)
        return terms if corrected == terms.counts else QueryTerms(self, corrected, terms.omitted)

    def _heaviest(self, counts: Mapping[str, float]) -> QueryTerms:
        """Return the terms to search: if there are too many, those with the largest weight times idf."""
        terms = QueryTerms(self, counts)
        if len(counts) <= MAX_TERMS:
            return terms
        known = frozenset(terms.known)
        ordered = sorted(counts, key=lambda term: (term not in known, -terms.weights[term]))  # ties as in the query
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
        """Return the terms of the index that are one typing error away from an unknown word, with their weights."""
        candidates = self._respelled.get(token)
        if candidates is None:
            near = self._vocabulary.keys() & self.analyzer.stems(edit_distance_one(token.casefold()))
            holders = {term: number for term in sorted(near) if (number := self._holders(term))}
            total = sum(holders.values())
            candidates = {term: GUESS_WEIGHT * number / total for term, number in holders.items()}
            self._respelled.put(token, candidates)
        return candidates

    def _holders(self, term: str) -> int:
        """Return the number of texts that contain a term."""
        postings = self.postings(term)
        return 0 if postings is None else len(postings[0])

    @property
    def _vocabulary(self) -> dict[str, int]:
        return {} if self._bm25 is None else self._bm25.vocab_dict

    def specificity(self, text: str) -> float:
        """Return how specific a text is: the sum of the idf of its terms over the logarithm of the number of rows."""
        terms = self.query(text)
        return sum(terms.weights[term] for term in terms.known) / math.log1p(self.size or 1)

    def scores(self, query: LexicalQuery | QueryTerms) -> NDArray[np.float32]:
        """Return the BM25 score of every row; 0 for rows without a term of the query."""
        terms = query if isinstance(query, QueryTerms) else self.query(query)
        scores = np.zeros(self.size, dtype=np.float32)
        for term, (holders, values) in zip(terms.known, terms.postings, strict=True):
            weight = np.float32(terms.counts[term])
            np.add.at(scores, holders, values if weight == 1 else weight * values)
        return scores

    def postings(self, term: str) -> Postings | None:
        """Return the rows that contain a term, and its contribution to their scores; None for an unknown term."""
        number = self._vocabulary.get(term)
        if number is None:
            return None
        indices, data, pointers = self._arrays
        start, stop = pointers[number], pointers[number + 1]
        return indices[start:stop], data[start:stop]

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
        scores = cast("bm25s.BM25", self._bm25).scores
        # Slicing a memory-mapped array is slow; slicing a view of the same memory is not.
        indices, data, pointers = (np.asarray(scores[name]).view(np.ndarray) for name in ("indices", "data", "indptr"))
        return indices, data, pointers

    def save(self, directory: Path) -> None:
        """Write the index and the settings that it was built with; replace an existing index."""
        files.make_directory(directory)
        for path in directory.glob("*.index.*"):
            # Overwriting the file would destroy this index if it is mapped from it.
            files.remove(path)
        settings = {
            "language": self.analyzer.language,
            "periods": self.analyzer.has_periods,
            "size": self.size,
            "empty": self._bm25 is None,
        }
        if (bm25 := self._bm25) is not None:
            files.let_write(directory, lambda: bm25.save(str(directory), show_progress=False))
            for path in directory.glob("*.index.*"):
                files.sync_file(path)
        files.write(directory / SETTINGS_FILE, json.dumps(settings).encode())

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Open an index, memory-mapped, with the settings that it was built with.

        Raises:
            InputError: The directory has no index.
        """
        try:
            settings = json.loads(files.read(directory / SETTINGS_FILE))
        except FileNotFoundError as error:
            message = f"{directory} contains no lexical index: persist a LexicalRetriever there first."
            raise InputError(message) from error
        bm25 = None if settings["empty"] else bm25s.BM25.load(str(directory), mmap=True, show_progress=False)
        # Indexes of earlier releases have no terms of periods.
        analyzer = Analyzer(settings["language"], has_periods=settings.get("periods", False))
        return cls(analyzer, bm25, settings["size"])


def _term_weights(texts: Sequence[tuple[str, float]], analyse: Callable[[str], list[str]]) -> dict[str, float]:
    """Return the distinct terms of texts with the sum of the weights of the texts that contain them."""
    weights: dict[str, float] = {}
    for text, weight in texts:
        for term in dict.fromkeys(analyse(text)):
            weights[term] = weights.get(term, 0.0) + weight
    return weights


class QueryTerms:
    """The terms of a query in an index.

    Args:
        index: The index.
        counts: The distinct terms of the query, in order, with their weights.
        omitted: Number of distinct terms of the query that are not searched.

    Attributes:
        known: The terms that the index contains.
        postings: For each of `known`, the rows that contain it, ascending, and its contribution to their scores.
    """

    def __init__(self, index: LexicalIndex, counts: Mapping[str, float], omitted: int = 0) -> None:
        matches = [(term, postings) for term in counts if (postings := index.postings(term)) is not None]
        self.counts = counts
        self.omitted = omitted
        self.known = tuple(term for term, _ in matches)
        self.postings = [postings for _, postings in matches]
        self.size = index.size
        self.analyzer = index.analyzer

    @cached_property
    def weights(self) -> dict[str, float]:
        """Weight of every term, also of unknown ones, times its idf, log(1 + (N - n + 0.5) / (n + 0.5))."""
        holders = {term: len(rows) for term, (rows, _) in zip(self.known, self.postings, strict=True)}
        counts = ((term, count, holders.get(term, 0)) for term, count in self.counts.items())
        return {term: count * math.log1p((self.size - n + 0.5) / (n + 0.5)) for term, count, n in counts}

    def matched(self, rows: Sequence[int]) -> list[tuple[str, ...]]:
        """Return for each row the terms that it contains."""
        row_ids = np.asarray(rows, dtype=np.int32)
        contains = np.empty((len(row_ids), len(self.known)), dtype=np.bool_)
        for at, (holders, _) in enumerate(self.postings):
            contains[:, at] = holders.take(holders.searchsorted(row_ids), mode="clip") == row_ids
        return [tuple(itertools.compress(self.known, row)) for row in contains.tolist()]


class LexicalIndexBuilder:
    """Build a `LexicalIndex` from texts that are added step by step.

    Args:
        language: A Snowball stemmer's name, or `none`.
    """

    def __init__(self, *, language: str = "english") -> None:
        self._analyzer = Analyzer(language, has_periods=True)
        self._vocabulary: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._numbers = Memory(self._term_numbers)
        self._rows: list[NDArray[np.int32]] = []

    def add(self, texts: Iterable[str]) -> None:
        """Add texts; their rows follow those of the texts added before."""
        for text in texts:
            words = tokens(text)
            numbers = itertools.chain.from_iterable(map(self._numbers.__getitem__, words))
            of_periods = map(self._vocabulary.__getitem__, self._analyzer.period_terms(words))
            self._rows.append(np.fromiter(itertools.chain(numbers, of_periods), dtype=np.int32))

    def _term_numbers(self, token: str) -> tuple[int, ...]:
        return tuple(map(self._vocabulary.__getitem__, self._analyzer.analyse(token)))

    def build(self) -> LexicalIndex:
        """Return the index."""
        if not self._vocabulary:
            return LexicalIndex(self._analyzer, None, len(self._rows))
        bm25 = SortedBM25(backend="numpy")
        bm25.index((self._rows, dict(self._vocabulary)), show_progress=False)
        return LexicalIndex(self._analyzer, bm25, len(self._rows))


class SortedBM25(bm25s.BM25):  # type: ignore[misc]
    """`bm25s.BM25` with Lucene's formula and a matrix built by one sort, several times as fast as text by text.

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
        """Return the matrix by columns: for each term, the texts that contain it, ascending, and its scores in them.

        Args:
            unique_token_ids: The numbers of all terms, from 0.
            corpus_token_ids: The numbers of each text's terms, with repetitions.
            show_progress: Has no effect.
            leave_progress: Has no effect.
        """
        self.nonoccurrence_array = None  # used only by other BM25 variants
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
