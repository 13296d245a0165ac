"""Find the sentence or table row in a passage that answers a question.

In a chunk of 800 tokens, the answer is usually in one place. The units of a passage, which are its sentences and table
rows, are compared with the question. The comparison has three uses: to mark the place that answers the question, to
rank passages with a good match higher, and to measure how much of a question one place covers, which determines the
confidence of a search.

The text before a passage indicates the subject of its units, so it is included in each comparison: for ranking, words
are compared with the context, title, file name, section and column headers, and meanings with all of these but the
context. For the confidence, the context does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import cut_to_input
from llama_index_contextual.embeddings.words import embedded
from llama_index_contextual.index.analysis import cut_query
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.cutting import Kind
from llama_index_contextual.index.units import DIMENSIONS, Units

if TYPE_CHECKING:
    from llama_index_contextual.index.bm25 import LexicalIndex
    from llama_index_contextual.search.rank import RankedList, Ranking

Floats = NDArray[np.float32]

WORDS_WEIGHT, MEANING_WEIGHT = 0.4, 0.8
"""Weights of the best unit's scores in the ranking, relative to the weights of the chunk's BM25 and cosine similarity.

The values were chosen on five question sets. With half or twice these values, the mean nDCG@10 of nine sets changes by
at most 0.3 points (`python -m tests.benchmarks.settings --data DATA --vary words_weight meaning_weight`).
"""

DEVIATION = 0.1
"""Standard deviation of the cosine similarities between a question and all chunks, with WordLlama's vectors.

On five question sets, it was 0.08 to 0.10. A constant works as well as the deviation measured in each project, and does
not depend on the embedding model.
"""

COMPARED, COMPARED_OF_MANY = 20, 50
"""Number of hits that are reranked; the second number is used if more than 20 results are requested."""

OF_HEADER, OF_NEIGHBOUR = 0.05, 0.2
"""Weights of terms in the text before the passage and in neighbouring units, for choosing the unit to mark.

The first weight is small because the text before the passage applies to all units. `python -m
tests.benchmarks.sentences` prints the effect.
"""

OF_HEAD, HEADS = 0.95, 3
"""Weight of terms in the units that head a table row, and how many of them are considered, one above another.

A row with a term of its own is preferred to its heads, and a head to rows without one. `python -m
tests.benchmarks.sentences` prints how often the right unit is marked.
"""

OF_FIGURES = 1.05
"""Factor for rows with figures, which answer more questions than other units with the same terms."""

OF_PASSAGES, SIMILAR = 1 / 3, 0.75
"""Limits from which a passage is one of several similar passages, such as handbooks with the same text for each site.

In a similar passage, at least three of four terms also occur in a third of the compared passages. `python -m
tests.benchmarks.policies` prints the effect.
"""

REST = 0.15
"""Smallest share of a question, by the weight of its terms, that a further result must add to those that are shown.

`python -m tests.benchmarks.halves` prints the effect on questions about two things.
"""

# NumPy compares arrays with plain integers several times as fast as with members of an enumeration.
_TEXT, _HEADING, _ROW, _CODE, _FIGURES = map(int, (Kind.TEXT, Kind.HEADING, Kind.ROW, Kind.CODE, Kind.FIGURES))
_LONGEST = 1_000  # units with more words are rare, and count as having this many


class Spot(NamedTuple):
    """Result of comparing the units of a passage with a question.

    Attributes:
        start: Offset in the passage of the unit to mark.
        end: Offset after this unit; equal to `start` if no unit matches.
        words: Largest total weight of the question's terms in any unit, including the text before the passage.
        meaning: Largest cosine similarity between any unit and the question.
    """

    start: int
    end: int
    words: float
    meaning: float


@dataclass(frozen=True, eq=False)
class Matches:
    """The units of passages, compared with a question.

    Attributes:
        units: The units of the passages.
        weights: Weight of each term of the question, such as its idf.
        contains: Whether each unit contains each term; shape (terms, units).
        meaning: Cosine similarity between each unit and the question, or zeros; shape (units,).
    """

    units: Units
    weights: Mapping[str, float]
    contains: NDArray[np.bool_]
    meaning: Floats

    @classmethod
    def of(cls, units: Units, weights: Mapping[str, float], vector: Floats | None = None) -> Matches:
        """Compare units with a question.

        Args:
            units: The units.
            weights: Weight of each term of the question.
            vector: The question's embedding by WordLlama as a unit vector; shape (dimensions,). None to compare only
                words.
        """
        meaning = np.zeros(len(units.kinds), dtype=np.float32) if vector is None else units.similarities(vector)
        return cls(units, weights, units.contain(list(weights)), meaning)

    @property
    def is_code(self) -> NDArray[np.bool_]:
        """Whether each passage is source code, for which the best unit is a poor indicator of relevance."""
        is_code = self.units.kinds == _CODE
        if not is_code.any():
            return np.zeros(self.units.rows, dtype=np.bool_)
        return np.logical_or.reduceat(is_code, self.units.firsts[:-1])

    def spots(self) -> list[Spot]:
        """Return how well each passage matches the question."""
        units, firsts = self.units, self.units.firsts[:-1]
        if not len(firsts):
            return []
        kinds, of_passage = units.kinds.copy(), self._of_passage
        is_text = kinds >= _TEXT
        of_terms = np.array(list(self.weights.values()), dtype=np.float32)

        before = self._in_header | self._in_context
        words = np.where(is_text, _sums(of_terms, before | self.contains), 0.0)
        meaning = np.where(is_text, self.meaning, 0.0)

        # Mark the unit that contains most of the question's words; if several units tie, mark the longest. If no unit
        # contains any of these words, mark the unit that is closest in meaning.
        equal = (is_text & self.contains).astype(np.float32)
        near = _with_neighbours(equal)
        is_row = (kinds == _ROW) | (kinds == _FIGURES)
        if is_row.any() and (headed := np.flatnonzero(is_row & (units.heads > 0))).size:
            of_rows, heads, above = near[:, headed], headed, units.heads
            for _ in range(HEADS):
                heads = heads - above[heads]
                np.maximum(of_rows, OF_HEAD * equal[:, heads], out=of_rows)
            near[:, headed] = of_rows
        np.multiply(near, OF_HEADER, out=near, where=before)
        covered = _sums(of_terms, near)
        for passage in np.flatnonzero(units.shared(OF_PASSAGES) >= SIMILAR).tolist():
            # Similar passages share most terms of the question, so that the terms' weights do not distinguish the units
            # of one of them. A term in few of its units is more likely to belong to the answer than one in many.
            own = slice(firsts[passage], units.firsts[passage + 1])
            covered[own] = _sums(1 / np.maximum(equal[:, own].sum(axis=1), 1) ** 2, near[:, own])
        covered[kinds == _FIGURES] *= OF_FIGURES
        covered[~is_text] = -1.0
        # Sums are compared up to rounding errors; units with equal sums, by their length.
        lengths = np.minimum(units.words.astype(np.int64), _LONGEST)
        most_words = _first_of_largest((covered * 1e5).round() * (_LONGEST + 1) + lengths, firsts, of_passage)
        has_mark, marked = np.logical_or.reduceat(equal.any(axis=0), firsts), most_words
        if not has_mark.all():
            closest = _first_of_largest(np.where(is_text, self.meaning, -np.inf), firsts, of_passage)
            marked = np.where(has_mark, most_words, closest)
            has_mark |= np.logical_or.reduceat(meaning != 0, firsts)
        is_heading = kinds == _HEADING
        is_heading[units.firsts[1:] - 1] = False
        last = marked + is_heading[marked]  # a heading is marked with the text below it
        starts, ends = units.starts[marked] * has_mark, units.ends[last] * has_mark
        best = (np.maximum.reduceat(scores, firsts).tolist() for scores in (words, meaning))
        return list(map(Spot._make, zip(starts.tolist(), ends.tolist(), *best, strict=True)))

    def marked(self, spots: Sequence[Spot], passages: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return where passages contain each term: 2 in their mark, 1 only in their header, otherwise 0.

        Args:
            spots: The results of `spots`, in any order.
            passages: Number of the passage of each of them.

        Returns:
            An array of shape (spots, terms).
        """
        units, of_passage = self.units, self._of_passage
        if not spots or not self.weights:
            return np.zeros((len(spots), len(self.weights)), dtype=np.int8)
        places = np.empty(len(spots), dtype=np.int64)
        places[passages] = np.arange(len(spots))
        starts, ends = (np.array([spot[at] for spot in spots])[places][of_passage] for at in (0, 1))
        is_marked = (units.kinds >= _TEXT) & (units.starts >= starts) & (units.ends <= ends)
        in_mark = np.logical_or.reduceat(self.contains & is_marked, units.firsts[:-1], axis=1)
        in_header = self.contains.take(units.firsts[:-1], axis=1)
        return np.where(in_mark, np.int8(2), in_header.astype(np.int8)).T[passages]

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """Number of units of each passage."""
        sizes: NDArray[np.int64] = self.units.firsts[1:] - self.units.firsts[:-1]
        return sizes

    @cached_property
    def _of_passage(self) -> NDArray[np.int64]:
        """The passage of each unit."""
        return np.repeat(np.arange(self.units.rows), self._sizes)

    @cached_property
    def _in_header(self) -> NDArray[np.bool_]:
        """Whether the header of each unit's passage contains each term; shape (terms, units)."""
        return self.contains.take(self.units.firsts[:-1], axis=1).take(self._of_passage, axis=1)

    @property
    def _in_context(self) -> NDArray[np.bool_]:
        """Whether the context of each unit's passage contains each term; shape (terms, units)."""
        return self.contains.take(self.units.firsts[:-1] + 1, axis=1).take(self._of_passage, axis=1)

    def coverage(self, weights: Mapping[str, float], variants: Mapping[str, str] | None = None) -> NDArray[np.float64]:
        """Return the largest share of the question that one unit of each passage covers, with its header.

        Args:
            weights: Weights of the terms to cover.
            variants: Terms that cover another term of the question.

        Returns:
            The shares, from 0 to 1; shape (passages,).
        """
        firsts, total = self.units.firsts[:-1], sum(weights.values())
        if not len(firsts) or not total:
            return np.zeros(len(firsts))
        contains = self.contains | self._in_header
        rows = {term: row for row, term in enumerate(self.weights)}
        for variant, term in (variants or {}).items():
            if variant in rows and term in rows:
                contains[rows[term]] |= contains[rows[variant]]
        shares = np.array([weights.get(term, 0.0) / total for term in self.weights], dtype=np.float32)
        covered = _sums(shares, contains).astype(np.float64)
        covered[self.units.kinds < _TEXT] = 0.0  # the texts before a passage do not answer the question alone
        return np.minimum(np.maximum.reduceat(covered, firsts), 1.0)


def _sums(of_terms: Floats, units: NDArray[Any]) -> Floats:
    """Return the weighted sum of the terms of each unit; unlike a product of matrices, this does not start threads.

    Args:
        of_terms: Weight of each term; shape (terms,).
        units: Share of each term in each unit; shape (terms, units).
    """
    sums: Floats = np.einsum("t,tu->u", of_terms, units, dtype=np.float32, casting="unsafe")
    return sums


def _first_of_largest(
    values: NDArray[Any], firsts: NDArray[np.int64], of_passage: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Return the first unit of each passage that has the largest value in the passage."""
    largest = np.flatnonzero(values == np.maximum.reduceat(values, firsts)[of_passage])
    return largest[largest.searchsorted(firsts)]


def _with_neighbours(equal: Floats) -> Floats:
    """Return how well each unit matches each term, with partial credit if a neighbouring unit contains the term.

    The units of different passages are not neighbours, because the first units of each passage are the texts before it.

    Args:
        equal: 1 if the unit contains the term, otherwise 0; shape (terms, units).
    """
    near: Floats = np.zeros_like(equal)
    near[:, 1:] = equal[:, :-1]
    near[:, :-1] = np.maximum(near[:, :-1], equal[:, 1:])
    np.maximum(equal, OF_NEIGHBOUR * near, out=near)
    return near


def answer_to_the_rest(marked: NDArray[np.int8], weights: Sequence[float], shown: int) -> int | None:
    """Return the index of the hit that answers a part of the question on which the first hits say nothing, or None.

    A question about two things is often answered by two passages, of which the second is less likely to be relevant by
    itself. It is the hit whose mark contains most of the terms, by weight, that neither the marks nor the headers of
    the first hits contain.

    Args:
        marked: Where each hit contains each term, from `Matches.marked`; shape (hits, terms).
        weights: Weight of each term.
        shown: Number of the first hits.
    """
    if not 0 < shown < len(marked):
        return None
    of_terms = np.array(weights) * (marked[:shown] == 0).all(axis=0)
    gains = np.einsum("t,ht->h", of_terms, marked[shown:] == 2)
    best = int(gains.argmax())
    return shown + best if gains[best] >= max(REST * sum(weights), 1e-9) else None


# ---- ranking ---------------------------------------------------------------------------------------------------------


def match_units(ranking: Ranking, units: Units, question: str, lexical: LexicalIndex | None = None) -> Matches:
    """Compare the units of the first hits of a ranking with the question.

    Args:
        ranking: The ranking.
        units: The units of its first hits.
        question: The question.
        lexical: Lexical index that provides the weights of the question's terms if the ranking is by meaning only. If
            it is None, only meanings are compared in that case.
    """
    semantic, terms = ranking.list_of("semantic"), ranking.terms
    if terms is None and lexical is not None:
        terms = lexical.query(question)
    vector = None
    if semantic is not None and units.directions.shape[1]:
        vector = _question_vector(semantic, question)
    return Matches.of(units, {} if terms is None else terms.weights, vector)


def spot_of(chunk: Chunk, question: str, lexical: LexicalIndex) -> Spot:
    """Return how well the units of one chunk match the words of a question, without comparing meanings."""
    terms = lexical.query(question)
    units = Units.of([(chunk.text, chunk.metadata)], terms.analyzer, has_vectors=False)
    return Matches.of(units, terms.weights).spots()[0]


def spotlight_shares(ranking: Ranking, spots: Sequence[Spot], matches: Matches) -> NDArray[np.float64]:
    """Return the numbers to add to the scores of the first hits for their best sentence or row.

    The numbers are on the scale of the ranking's scores. If two rankings were fused by score, the unit is the standard
    deviation of BM25 or of the cosine similarity over all chunks. If they were fused by reciprocal ranks, the hits are
    ranked by the words and by the meaning of their spots in the same way. The numbers are 0 if at least half of the
    hits are source code.

    Args:
        ranking: The ranking.
        spots: The spots of its first hits.
        matches: The units of at least these hits.

    Returns:
        The numbers for words and for meaning, none of them negative; shape (spots, 2).
    """
    shares = np.zeros((len(spots), 2))
    fusion = ranking.fusion
    if not spots or 2 * np.count_nonzero(matches.is_code[: len(spots)]) >= len(spots):
        return shares
    if fusion is not None and fusion.by == "rrf":
        weights = {ranked.name: weight for ranked, weight in zip(ranking.lists, fusion.weights, strict=True)}
        shares[:, 0] = weights["lexical"] * _reciprocal_ranks([spot.words for spot in spots], fusion.rrf_k)
        shares[:, 1] = weights["semantic"] * _reciprocal_ranks([spot.meaning for spot in spots], fusion.rrf_k)
        return shares
    for ranked, weight in zip(ranking.lists, (1.0,) if fusion is None else fusion.weights, strict=True):
        unit = ranked.scale.unit
        if ranked.name == "lexical" and unit > 0:
            shares[:, 0] = WORDS_WEIGHT * weight / (1.0 if fusion is None else unit)
            shares[:, 0] *= [spot.words for spot in spots]
        elif ranked.name == "semantic":
            shares[:, 1] = MEANING_WEIGHT * weight / DEVIATION * (unit if fusion is None else 1.0)
            shares[:, 1] *= [spot.meaning for spot in spots]
    return np.maximum(shares, 0.0)


def _reciprocal_ranks(values: Sequence[float], k: float) -> NDArray[np.float64]:
    """Return 1 / (k + rank) of each value, the largest first, or 0 for values that are not above 0."""
    scores = np.array(values)
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return np.where(scores > 0, 1.0 / (k + ranks), 0.0)


def _question_vector(ranked: RankedList, question: str) -> Floats:
    """Return the unit vector of a question in WordLlama's vector space, regardless of the project's embedding model."""
    if ranked.model == LOCAL and ranked.vector is not None:
        vector = ranked.vector[:DIMENSIONS]
    else:
        vector = embedded([cut_to_input(cut_query(question))])[0, :DIMENSIONS]
    return vector / (np.linalg.norm(vector) or np.float32(1.0))
