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

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import cut_to_input, product_in_blocks, unit_vectors
from llama_index_contextual.embeddings.words import embedded
from llama_index_contextual.index.analysis import Analyzer, cut_query
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.cutting import Kind
from llama_index_contextual.index.units import DIMENSIONS, Units

if TYPE_CHECKING:
    from llama_index_contextual.index.bm25 import LexicalIndex
    from llama_index_contextual.search.rank import Leg, Ranking

Floats = NDArray[np.float32]

WORDS_WEIGHT, MEANING_WEIGHT = 0.4, 0.8
"""Weights of the best unit's scores in the ranking, relative to the weights of the chunk's BM25 and cosine similarity.

The values were chosen on five question sets. With half or twice these values, the mean result is nearly the same.
`python -m tests.benchmarks.settings --data DATA --vary words_weight meaning_weight` prints the effect.
"""

DEVIATION = 0.1
"""Standard deviation of the cosine similarities between a question and all chunks, with WordLlama's vectors.

On five question sets, it was 0.08 to 0.10. A constant works as well as the deviation measured in each project, and does
not depend on the embedding model.
"""

WHOLE_LENGTH = 3_200
"""Mean number of characters of the compared hits for which the weights were chosen.

In shorter chunks, the best unit is a larger part of the chunk and adds less to its score, so the weights are reduced in
proportion. `python -m tests.benchmarks.settings --vary whole_length --embedding MODEL` prints the effect.
"""

COMPARED, COMPARED_OF_MANY = 20, 50
"""Number of hits that are reranked; the second number is used if more than 20 results are requested."""

OF_HEADER, OF_NEIGHBOUR = 0.05, 0.2
"""Weights of terms in the text before the passage and in neighbouring units, for choosing the unit to mark.

The first weight is small because the text before the passage applies to all units. `python -m
tests.benchmarks.sentences` prints the effect.
"""

OF_TABLE_HEAD = 0.99
"""Weight of terms in the column headers above a table row, for choosing the unit to mark.

A row with a term of its own is preferred to the column headers, and the column headers to a row without one. `python
-m tests.benchmarks.sentences` prints how often the right unit is marked.
"""

_FEW_TERMS = 3
_QUESTION_PARTS = re.compile(r"(?<=[.!?;:。！？；：])\s*")
_AVERAGE_LENGTH, _LENGTH_SHARE, _LENGTH_POWER = 40.0, 0.4, 0.25  # for length normalisation; lengths are in words


class Spot(NamedTuple):
    """Result of comparing the units of a passage with a question.

    Attributes:
        start: Offset in the passage of the unit to mark.
        end: Offset after this unit; equal to `start` if no unit matches.
        words: Largest total weight of the question's terms in any unit, including the text before the passage, on the
            scale of BM25.
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
        return np.logical_or.reduceat(self.units.kinds == Kind.CODE, self.units.firsts[:-1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of each passage in characters."""
        lengths: NDArray[np.int64] = self.units.ends[self.units.firsts[1:] - 1].astype(np.int64)
        return lengths

    def spots(self) -> list[Spot]:
        """Return how well each passage matches the question."""
        units, firsts = self.units, self.units.firsts[:-1]
        if not len(firsts):
            return []
        sizes = np.diff(units.firsts)
        of_passage = np.repeat(np.arange(len(sizes)), sizes)
        is_text = units.kinds >= Kind.TEXT
        of_terms = np.array(list(self.weights.values()), dtype=np.float32)[:, None]
        before = (self.contains[:, firsts] | self.contains[:, firsts + 1])[:, of_passage]

        length = (1 - _LENGTH_SHARE + _LENGTH_SHARE * units.words / _AVERAGE_LENGTH) ** _LENGTH_POWER
        words = np.where(is_text, (of_terms * (before | self.contains)).sum(axis=0) / length, 0.0)
        meaning = np.where(is_text, self.meaning, 0.0)

        # Mark the unit that contains most of the question's words; if several units tie, mark the longest. If no unit
        # contains any of these words, mark the unit that is closest in meaning.
        equal = np.where(is_text, self.contains, False).astype(np.float32)
        heads = np.arange(len(units.kinds)) - units.heads
        near = np.maximum(_with_neighbours(equal), OF_TABLE_HEAD * equal[:, heads])
        covered = np.where(is_text, (of_terms * np.where(before, OF_HEADER, 1.0) * near).sum(axis=0), -1.0)
        most_words = np.lexsort((-units.words.astype(np.int64), -covered.round(5), of_passage))[firsts]
        closest = np.lexsort((-meaning, ~is_text, of_passage))[firsts]
        has_words = np.logical_or.reduceat(equal.any(axis=0), firsts)
        has_mark = has_words | np.logical_or.reduceat(meaning != 0, firsts)
        marked = np.where(has_words, most_words, closest)
        starts, ends = units.starts[marked], units.ends[np.where(self._is_followed[marked], marked + 1, marked)]
        best = (np.maximum.reduceat(scores, firsts).tolist() for scores in (words, meaning))
        return [
            Spot(start, end, *scores) if is_marked else Spot(0, 0, *scores)
            for is_marked, start, end, *scores in zip(
                has_mark.tolist(), starts.tolist(), ends.tolist(), *best, strict=True
            )
        ]

    @property
    def _is_followed(self) -> NDArray[np.bool_]:
        """Whether each unit is a heading with text below it, which is marked with it."""
        is_heading: NDArray[np.bool_] = self.units.kinds == Kind.HEADING
        is_heading[self.units.firsts[1:] - 1] = False
        return is_heading

    def coverage(self, parts: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
        """Return the largest share of any part of the question that one unit of each passage covers, with its header.

        Args:
            parts: Terms of the question with their weights, from `question_parts`.

        Returns:
            The shares, from 0 to 1; shape (passages,).
        """
        firsts = self.units.firsts[:-1]
        if not len(firsts) or not self.weights:
            return np.zeros(len(firsts))
        rows = {term: row for row, term in enumerate(self.weights)}
        shares = np.zeros((len(rows), len(parts)), dtype=np.float32)
        for number, part in enumerate(parts):
            total = sum(part.values())
            for term, weight in part.items():
                shares[rows[term], number] = weight / total if total else 0.0
        of_header = np.repeat(self.contains[:, firsts], np.diff(self.units.firsts), axis=1)
        contains = (self.contains | of_header).T.astype(np.float32)
        covered = product_in_blocks(contains, shares).max(axis=1, initial=0.0).astype(np.float64)
        covered[self.units.kinds < Kind.TEXT] = 0.0  # the texts before a passage do not answer the question alone
        return np.minimum(np.maximum.reduceat(covered, firsts), 1.0)


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
    semantic, terms = ranking.leg("semantic"), ranking.terms
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
    deviation of BM25 or of the cosine similarity over all chunks. The numbers are 0 if the rankings were fused by
    reciprocal ranks, or if at least half of the hits are source code.

    Args:
        ranking: The ranking.
        spots: The spots of its first hits.
        matches: The units of at least these hits.

    Returns:
        The numbers for words and for meaning, none of them negative; shape (spots, 2).
    """
    shares = np.zeros((len(spots), 2))
    fusion = ranking.fusion
    if not spots or (fusion is not None and fusion.by != "score"):
        return shares
    if 2 * np.count_nonzero(matches.is_code[: len(spots)]) >= len(spots):
        return shares
    for leg, weight in zip(ranking.legs, (1.0,) if fusion is None else fusion.weights, strict=True):
        unit = leg.scale.unit
        if leg.name == "lexical" and unit > 0:
            shares[:, 0] = WORDS_WEIGHT * weight / (1.0 if fusion is None else unit)
            shares[:, 0] *= [spot.words for spot in spots]
        elif leg.name == "semantic":
            shares[:, 1] = MEANING_WEIGHT * weight / DEVIATION * (unit if fusion is None else 1.0)
            shares[:, 1] *= [spot.meaning for spot in spots]
    return np.maximum(shares, 0.0) * min(1.0, float(matches.lengths[: len(spots)].mean()) / WHOLE_LENGTH)


def _question_vector(leg: Leg, question: str) -> Floats:
    """Return the unit vector of a question in WordLlama's vector space, regardless of the project's embedding model."""
    if leg.model == LOCAL and leg.vector is not None:
        vector = leg.vector
    else:
        vector = embedded([cut_to_input(cut_query(question))])[0]
    direction: Floats = unit_vectors(vector[None, :DIMENSIONS])[0]
    return direction


def question_parts(question: str, weights: Mapping[str, float], analyzer: Analyzer) -> list[dict[str, float]]:
    """Return, for each sentence of a question, its terms with their weights.

    A question is often followed by definitions and instructions ("Answer in millions."), which do not occur in
    passages. Sentences with fewer than three terms are left out. If no sentence remains, all terms of the query form
    the only part.

    Args:
        question: The question.
        weights: Weights of all terms of the query, such as their idf.
        analyzer: The analyzer of the index.
    """
    parts = []
    for sentence in filter(None, _QUESTION_PARTS.split(question)):
        terms = dict.fromkeys(term for term in analyzer.query_terms(sentence) if term in weights)
        parts.append({term: weights[term] for term in terms})
    return [part for part in parts if len(part) >= _FEW_TERMS] or [dict(weights)]
