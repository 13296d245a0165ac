"""Find the sentence or table row in a passage that answers a question.

In a chunk of 800 tokens, the answer is usually in one place. `Spotlight` compares a question with the units of a
passage, which are its sentences and table rows. The comparison has three uses: to mark the place that answers the
question, to rank passages with a good match higher, and to measure how much of a question one place covers, which
determines the confidence of a search.

The text before a passage indicates the subject of its units, so it is included in each comparison. Words are compared
with the context before the passage, and meanings with its title, file name, section and column headers.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from heapq import nlargest
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.tokens import replace_surrogates
from llama_index_contextual.config import LOCAL
from llama_index_contextual.embeddings.batching import cut_to_input, product_in_blocks, unit_vectors
from llama_index_contextual.embeddings.words import embedded, word_vectors
from llama_index_contextual.index.analysis import Analyzer, cut_query
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.readers.boundaries import Rank, structural_offsets

if TYPE_CHECKING:
    from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
    from llama_index_contextual.search.rank import Leg, Ranking

Floats = NDArray[np.float32]

LONG_LINE = 160
"""Number of characters above which a line is divided into sentences. Shorter lines are rows, items or sentences."""

SIMILAR = 0.5
"""Cosine similarity above which two words match partially; the match is weighted by the squared similarity."""

WORDS_WEIGHT, MEANING_WEIGHT = 0.4, 0.8
"""Weights of the best unit's scores in the ranking, relative to the weights of the chunk's BM25 and cosine similarity.

The values were chosen on five question sets. With half or twice these values, the mean result is nearly the same.
`python -m tests.benchmarks.settings --data DATA --vary words_weight meaning_weight` prints the effect.
"""

DIMENSIONS = 128
"""Number of word vector dimensions that are used. Using all 256 would take longer without improving the ranking."""

DEVIATION = 0.1
"""Standard deviation of the cosine similarities between a question and all chunks, with WordLlama's vectors.

On five question sets, it was 0.08 to 0.10. A constant works as well as the deviation measured in each project, and does
not depend on the embedding model.
"""

WHOLE_LENGTH = 800
"""Mean number of tokens of the compared hits for which the weights were chosen.

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

_CELLS = re.compile(r"\S  +\S|\t|\|")  # text with separate cells, also of a Markdown table
_NUMBER = re.compile(r"(?<!\w)\d[\d.,]*")
_YEAR = re.compile(r"(?:\d\d?\.\d\d?\.)?(?:19|20)\d\d")  # or a date such as 31.12.2025
_HEADING = 40  # a shorter line that ends with a letter, a colon or an asterisk is a heading, unless it is a table row
_ROW = re.compile(r"\S  +\S|\t|\s\d.*\s\d")  # text with separate cells or several figures
_WRAPPED = 50  # a line of at least this length may be continued by a line that begins in lower case or with a figure
_FIGURE = (
    r"0\.\d|\d{1,3}(?:\.\d{3})+\s|"  # a decimal number, or thousands separated by full stops
    r"\d{1,2}\.\s+(?:Januar|Februar|März|April|Mai|Ju[nl]i|August|September|Oktober|November|Dezember)\b"
)
_NUMBERED = re.compile(rf"(?!{_FIGURE})(?:\d{{1,3}}[.)]\s|\d[\d.]*\s+[^\W\d_a-zß-ÿ])")  # an item or a heading
_FEW_TERMS = 3
_QUESTION_PARTS = re.compile(r"(?<=[.!?;:。！？；：])\s*")
_AVERAGE_LENGTH, _LENGTH_SHARE, _LENGTH_POWER = 40.0, 0.4, 0.25  # for length normalisation; lengths are in words
_CODE_SHARE = 0.3
_CODE_START = re.compile(
    r"\s*(?:[\])}]+[,;]?\s*$"
    r"|def |class |import |from \w+ import|return\b|#include|pub |fn |let |const |var |use |//|/\*|\*/|@\w)"
)
_ASSIGNMENT = re.compile(r"\w\s*[+*/|&-]?=\s*\S")
_CALL_START = re.compile(r"\w\(")
_TINY = 1e-9  # avoids division by zero
_MAX_WORDS = 200_000
_LONG_WORD = 100  # longer character sequences without white space are not compared with similar words
_MAX_TERMS = 64  # maximum number of terms of a question; memory use is proportional to terms × words
_REMEMBERED = 2_000  # number of passages whose units are cached


class Spot(NamedTuple):
    """Result of comparing the units of a passage with a question.

    Attributes:
        start: Offset in the passage of the unit to mark.
        end: Offset after this unit; equal to `start` if no unit matches.
        words: Largest total weight of the question's terms in any unit, including the text before the passage, on the
            scale of BM25. Similar words count partially.
        meaning: Largest cosine similarity between any unit and the question.
        is_code: Whether the passage is source code, for which the best unit is a poor indicator of relevance.
    """

    start: int
    end: int
    words: float
    meaning: float
    is_code: bool


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a passage, with their words as numbers in a `Vocabulary`.

    Attributes:
        spans: Start and end offset of the text to mark for each unit.
        heads: Index of the unit with the column headers of each table row; for other units, their own index.
        counts: Number of words in each unit.
        words: Numbers that identify the words of all units, in the order of the units.
        before: Numbers that identify the words in the text before the passage; see `HeadedText`.
        vectors: Direction vector of each unit together with the title, file name, section and column headers; shape
            (units, dimensions). None if there are no word vectors.
        is_code: Whether the passage is source code.
    """

    spans: Sequence[tuple[int, int]]
    heads: NDArray[np.int64]
    counts: NDArray[np.int32]
    words: NDArray[np.int32]
    before: NDArray[np.int32]
    vectors: Floats | None
    is_code: bool


class FoundTerms(NamedTuple):
    """The terms of a question in the words of a text.

    Attributes:
        distinct: Numbers of the distinct words in a `Vocabulary`.
        columns: Index in `distinct` of each word of the text.
        equal: 1 if the word contains the term, otherwise 0; shape (terms, distinct words).
    """

    distinct: NDArray[np.intp]
    columns: NDArray[np.int32]
    equal: Floats


class Vocabulary:
    """Numbered words, with the terms and the vector of each word.

    Args:
        analyzer: Analyzer that splits words into terms.
        embed: Function that returns a vector for each word, or None to use no vectors. The vector of a text is the sum
            of its word vectors.
    """

    def __init__(self, analyzer: Analyzer, embed: Callable[[Sequence[str]], Floats] | None) -> None:
        self._analyzer = analyzer
        self._embed = embed
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._known = 0
        self._of_term: dict[str, list[int]] = {}
        self._vectors: Floats | None = None

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Split each text into words and return the number of each word; new words are added to the vocabulary."""
        return [list(map(self._numbers.__getitem__, text.split())) for text in texts]

    def complete(self) -> None:
        """Compute the terms and vectors of words that were added since the last call."""
        count = len(self._numbers) - self._known
        if not count:
            return
        new = list(itertools.islice(reversed(self._numbers), count))[::-1]
        for number, word in enumerate(new, start=self._known):
            for term in set(self._analyzer.terms(word)):
                self._of_term.setdefault(term, []).append(number)
        if self._embed is not None:
            self._store(self._embed(new))
        self._known += count

    def _store(self, vectors: Floats) -> None:
        size = self._known + len(vectors)
        if self._vectors is None or size > len(self._vectors):
            larger = np.zeros((2 * size, vectors.shape[1]), dtype=np.float32)
            if self._vectors is not None:
                larger[: self._known] = self._vectors[: self._known]
            self._vectors = larger
        self._vectors[self._known : size] = vectors

    def find(self, terms: Collection[str], words: NDArray[np.int32]) -> FoundTerms:
        """Find terms in a text, given as the numbers of its words."""
        columns = np.full(len(self._numbers), -1, dtype=np.int32)
        columns[words] = 0
        distinct = np.flatnonzero(columns == 0)
        columns[distinct] = np.arange(len(distinct))
        equal = np.zeros((len(terms), len(distinct)), dtype=np.float32)
        for row, term in enumerate(terms):
            if (numbers := self._of_term.get(term)) is not None:
                of_term = columns[numbers]
                equal[row, of_term[of_term >= 0]] = 1.0
        return FoundTerms(distinct, columns[words], equal)

    @property
    def vectors(self) -> Floats | None:
        """The word vectors, one row per word number, followed by unused rows; None if there are no vectors."""
        return self._vectors

    @property
    def is_full(self) -> bool:
        """Whether the vocabulary has so many words that it should be replaced with an empty one."""
        return len(self._numbers) > _MAX_WORDS


class HeadedText(NamedTuple):
    """A passage to compare with a question, and the text before the passage.

    Attributes:
        text: The text of the passage.
        before: Text before the passage for comparing words: the context and column headers or, without a context, the
            same text as in `heading`.
        heading: Text before the passage for comparing meanings: title, file name, section and column headers.
    """

    text: str
    before: str
    heading: str

    @classmethod
    def of(cls, text: str, metadata: Mapping[str, object]) -> HeadedText:
        """Create an instance from the text and the metadata of a chunk."""
        head = metadata.get(keys.TABLE_HEAD)
        heading = _lined((*(metadata.get(name) for name in (keys.TITLE, keys.FILE_NAME, keys.SECTION)), head))
        context = metadata.get(keys.CONTEXT)
        return cls(text, _lined((context, head)) if context else heading, heading)


def _lined(values: Sequence[object]) -> str:
    return "\n".join(str(value) for value in values if value)


class Spotlight:
    """Compare questions with the units of passages, and cache the words and units.

    Args:
        analyzer: The analyzer of the index.
        embed: Function that returns word vectors; see `Vocabulary`. If it is None, words match only if they are equal,
            and the `meaning` of each passage is 0.

    Example:
        >>> spotlight = Spotlight(Analyzer("english"))
        >>> text = "Water is metered.\\nGarden water is free from May to September."
        >>> weights = {"garden": 3.0, "water": 1.0}
        >>> spot = spotlight.spots(weights, "Is garden water free?", [HeadedText(text, "", "")])[0]
        >>> text[spot.start : spot.end]
        'Garden water is free from May to September.'
    """

    def __init__(self, analyzer: Analyzer, embed: Callable[[Sequence[str]], Floats] | None = None) -> None:
        self.analyzer = analyzer
        self._embed = embed
        self._lock = Lock(self._forget)
        self._forget()

    def _forget(self) -> None:
        self._vocabulary = Vocabulary(self.analyzer, self._embed)
        self._units: LRUCache[HeadedText, Units] = LRUCache(_REMEMBERED)

    def spots(
        self, weights: Mapping[str, float], question: str, passages: Sequence[HeadedText], vector: Floats | None = None
    ) -> list[Spot]:
        """Return how well each passage matches a question.

        Args:
            weights: Weight of each term of the question, such as its idf.
            question: The question.
            passages: The passages.
            vector: Unit vector of the question in the vector space of `embed`, used to compare meanings; None to
                compare only words.
        """
        if not passages:
            return []
        with self._lock:
            if self._vocabulary.is_full:
                self._forget()
            asked = self._asked(question, weights)
            units = self._units_of(passages)
            filled = [one for one in units if one.spans]
            words = [*(one.words for one in filled), *(one.before for one in filled)]
            found = self._vocabulary.find(weights, np.concatenate(words)) if filled else None
            vectors = self._vocabulary.vectors
        spots = iter(() if found is None else _spots(filled, weights, asked, found, vectors, vector))
        return [next(spots) if one.spans else Spot(0, 0, 0.0, 0.0, False) for one in units]

    def _asked(self, question: str, weights: Mapping[str, float]) -> dict[str, int]:
        """Map each weighted term that occurs in the question to the vocabulary number of the word that contains it.

        New words are added to the vocabulary, which is completed in `_units_of`.
        """
        of_terms: dict[str, str] = {}
        for word in cut_query(question).split():
            if len(word) > _LONG_WORD:
                continue
            for term in self.analyzer.query_terms(word):
                of_terms.setdefault(term, word)
        known = [term for term in weights if term in of_terms]
        numbers = self._vocabulary.numbers([of_terms[term] for term in known])
        return {term: number for term, (number, *_) in zip(known, numbers, strict=True)}

    def _units_of(self, passages: Sequence[HeadedText]) -> list[Units]:
        known = {passage: one for passage in passages if (one := self._units.get(passage)) is not None}
        new = [passage for passage in dict.fromkeys(passages) if passage not in known]
        spans = [units(passage.text) for passage in new]
        words = [
            self._vocabulary.numbers([passage.before, passage.heading, *(passage.text[a:b] for a, b in of_passage)])
            for passage, of_passage in zip(new, spans, strict=True)
        ]
        self._vocabulary.complete()
        vectors = _directions(self._vocabulary.vectors, [texts for _, *texts in words])
        for passage, of_passage, (before, _, *of_units), of_vectors in zip(new, spans, words, vectors, strict=True):
            known[passage] = Units(
                _with_text_below(passage.text, of_passage),
                np.fromiter(_table_heads([passage.text[a:b] for a, b in of_passage]), dtype=np.int64),
                np.array(list(map(len, of_units)), dtype=np.int32),
                np.fromiter(itertools.chain.from_iterable(of_units), dtype=np.int32),
                np.array(before, dtype=np.int32),
                of_vectors,
                is_code(passage.text),
            )
            self._units.put(passage, known[passage])
        return [known[passage] for passage in passages]


def _with_text_below(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of units, with short headings extended to the end of the next unit."""
    ends = [end for _, end in spans[1:]]
    extended = [
        (start, after if _is_heading(text[start:end]) else end)
        for (start, end), after in zip(spans, ends, strict=False)
    ]
    return [*extended, *spans[-1:]]


def _table_heads(units: Sequence[str]) -> Iterator[int]:
    """Yield, for each table row, the index of the row that starts the table and contains no figures, only years.

    For other units, and for rows of a table without such a row, yield their own index.
    """
    in_table, head = False, None
    for at, unit in enumerate(units):
        was_in_table, in_table = in_table, _CELLS.search(unit) is not None
        if in_table != was_in_table:
            head = at if in_table and all(map(_YEAR.fullmatch, _NUMBER.findall(unit))) else None
        yield at if head is None else head


def _is_heading(unit: str) -> bool:
    return len(unit) < _HEADING and (unit[-1].isalpha() or unit[-1] in ":*") and not _ROW.search(unit)


def _directions(vectors: Floats | None, passages: Sequence[Sequence[Sequence[int]]]) -> list[Floats | None]:
    """Return, for each passage, the normalised sum of the directions of each unit and the heading.

    Args:
        vectors: The word vectors, or None if there are none.
        passages: For each passage, the numbers of the words of its heading and of each unit.
    """
    if vectors is None or not passages:
        return [None] * len(passages)
    texts = [text for passage in passages for text in passage]
    of_words = vectors.take(np.fromiter(itertools.chain.from_iterable(texts), dtype=np.int64), axis=0)
    ends = itertools.accumulate(map(len, texts), initial=0)
    # A loop, because np.add.reduceat takes twice as long.
    directions = unit_vectors(np.stack([np.add.reduce(of_words[start:end]) for start, end in itertools.pairwise(ends)]))
    sizes = [len(passage) for passage in passages]
    headings = np.cumsum(sizes) - sizes
    directions = unit_vectors(directions + directions[np.repeat(headings, sizes)])
    return [directions[at + 1 : at + size].copy() for at, size in zip(headings.tolist(), sizes, strict=True)]


def _spots(
    units: Sequence[Units],
    weights: Mapping[str, float],
    asked: Mapping[str, int],
    found: FoundTerms,
    vectors: Floats | None,
    vector: Floats | None,
) -> list[Spot]:
    """Return, for each passage, how well its units match a question.

    For speed, the units of all passages are the columns of one array, followed by the texts before the passages.
    """
    counts = np.concatenate([one.counts for one in units])
    sizes = np.array([len(one.counts) for one in units], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    of_passage = np.repeat(np.arange(len(units)), sizes)
    of_terms = np.array(list(weights.values()), dtype=np.float32)[:, None]
    all_counts = np.append(counts, [len(one.before) for one in units])
    equal, credit = _matches(weights, asked, found, all_counts, vectors)
    before = equal[:, len(counts) + of_passage] > 0
    equal, credit = equal[:, : len(counts)], credit[:, : len(counts)]

    length = (1 - _LENGTH_SHARE + _LENGTH_SHARE * counts / _AVERAGE_LENGTH) ** _LENGTH_POWER
    words = (of_terms * np.where(before, 1.0, credit)).sum(axis=0) / length
    meaning = np.zeros(len(counts), dtype=np.float32)
    if vector is not None and vectors is not None:
        of_units = np.concatenate([one.vectors for one in units if one.vectors is not None])
        meaning = product_in_blocks(of_units, vector[:, None])[:, 0]

    # Mark the unit that contains most of the question's words; if several units tie, mark the longest. If no unit
    # contains any of these words, mark the unit that is closest in meaning.
    heads = np.concatenate([one.heads for one in units]) + np.repeat(starts, sizes)
    near = np.maximum(_with_neighbours(equal, starts), OF_TABLE_HEAD * equal[:, heads])
    covered = (of_terms * np.where(before, OF_HEADER, 1.0) * near).sum(axis=0)
    most_words = np.lexsort((-counts, -covered.round(5), of_passage))[starts]
    closest = np.lexsort((-meaning, of_passage))[starts]
    has_words = np.logical_or.reduceat(equal.any(axis=0), starts)
    spans = [span for one in units for span in one.spans]
    marked = [spans[at] for at in np.where(has_words, most_words, closest).tolist()]
    if not meaning.any():
        marked = [span if is_match else (0, 0) for span, is_match in zip(marked, has_words.tolist(), strict=True)]
    best = zip(np.maximum.reduceat(words, starts).tolist(), np.maximum.reduceat(meaning, starts).tolist(), strict=True)
    return [
        Spot(start, end, by_words, by_meaning, one.is_code)
        for one, (start, end), (by_words, by_meaning) in zip(units, marked, best, strict=True)
    ]


def _matches(
    weights: Mapping[str, float],
    asked: Mapping[str, int],
    found: FoundTerms,
    counts: NDArray[np.int64],
    vectors: Floats | None,
) -> tuple[Floats, Floats]:
    """Return how well each text matches each term of a question.

    Words that are similar to a word of the question count partially: if the cosine similarity is above `SIMILAR`, the
    weight of the match is the squared similarity.

    Args:
        weights: Weight of each term.
        asked: Numbers of the words of the question, by term.
        found: The terms in all texts together.
        counts: Number of words in each text.
        vectors: The word vectors, or None if there are none.

    Returns:
        Two arrays of shape (terms, texts): matches of equal words only, and matches of equal or similar words.
    """
    distinct, columns, equal = found
    credit = equal.copy()
    if vectors is not None and asked:
        rows = [row for row, term in enumerate(weights) if term in asked]
        of_asked = unit_vectors(vectors[[asked[term] for term in weights if term in asked]])
        of_words = vectors[distinct]
        lengths = np.sqrt(np.einsum("ij,ij->i", of_words, of_words))
        cosines = product_in_blocks(of_words, of_asked.T).T / np.maximum(lengths, _TINY)
        credit[rows] = np.maximum(equal[rows], np.where(cosines > SIMILAR, cosines, 0.0) ** 2)

    # Few words match any term, so only their positions in the texts are compared.
    matching = np.asarray(credit.any(axis=0))[columns]
    of_text = np.repeat(np.arange(len(counts)), counts)[matching]
    first = np.flatnonzero(np.diff(of_text, prepend=-1))

    def by_text(of_words: Floats) -> Floats:
        best = np.zeros((len(of_words), len(counts)), dtype=np.float32)
        if len(first):
            best[:, of_text[first]] = np.maximum.reduceat(of_words[:, columns[matching]], first, axis=1)
        return best

    return by_text(equal), by_text(credit)


def _with_neighbours(equal: Floats, starts: NDArray[np.int64]) -> Floats:
    """Return how well each unit matches each term, with partial credit if a neighbouring unit contains the term.

    Args:
        equal: 1 if the unit contains the term, otherwise 0; shape (terms, units).
        starts: Index of the first unit of each passage.
    """
    before, after = np.zeros_like(equal), np.zeros_like(equal)
    before[:, 1:], after[:, :-1] = equal[:, :-1], equal[:, 1:]
    before[:, starts] = 0.0
    after[:, starts[1:] - 1] = 0.0
    return np.maximum(equal, OF_NEIGHBOUR * np.maximum(before, after))


# ---- ranking ---------------------------------------------------------------------------------------------------------


def spots_of(
    ranking: Ranking,
    chunks: Sequence[Chunk],
    question: str,
    lexical: LexicalIndex | None = None,
    *,
    rerank: bool,
) -> list[Spot]:
    """Return, for each of the first hits of a ranking, how well its units match a question.

    Without WordLlama, words match only if they are equal, and `meaning` is 0.

    Args:
        ranking: The ranking.
        chunks: The chunks of its first hits.
        question: The question.
        lexical: Lexical index that provides the weights of the question's terms if the ranking is by meaning only. If
            it is None, only meanings are compared in that case.
        rerank: Whether the hits are reranked by `words` and `meaning`. If they are only marked, similar words count in
            `words` only if the ranking is by meaning.
    """
    question = replace_surrogates(question)  # WordLlama's tokenizer raises an error for surrogates
    semantic, terms = ranking.leg("semantic"), ranking.terms
    # Similar words do not change the marks, so WordLlama is not loaded for them.
    has_vectors = (rerank or semantic is not None) and find_spec("wordllama") is not None
    if terms is None and lexical is not None:
        terms = lexical.query(question)
    analyzer = Analyzer("none") if terms is None else terms.analyzer
    return _spotlight(analyzer.language, analyzer.has_periods, has_vectors).spots(
        _heaviest(terms),
        question,
        [HeadedText.of(chunk.text, chunk.metadata) for chunk in chunks],
        _question_vector(semantic, question) if has_vectors and semantic is not None else None,
    )


def spot_of(chunk: Chunk, question: str, lexical: LexicalIndex) -> Spot:
    """Return how well the units of one chunk match the words of a question, without comparing meanings."""
    terms = lexical.query(question)
    spotlight = _spotlight(terms.analyzer.language, terms.analyzer.has_periods, False)
    return spotlight.spots(_heaviest(terms), question, [HeadedText.of(chunk.text, chunk.metadata)])[0]


def _heaviest(terms: QueryTerms | None) -> dict[str, float]:
    """Return the terms with the largest weights (64 at most), sorted by weight."""
    weights = {} if terms is None else terms.weights
    return {term: weights[term] for term in nlargest(_MAX_TERMS, weights, key=weights.__getitem__)}


def spotlight_shares(ranking: Ranking, spots: Sequence[Spot], chunks: Sequence[Chunk]) -> NDArray[np.float64]:
    """Return the numbers to add to the scores of the first hits for their best sentence or row.

    The numbers are on the scale of the ranking's scores. If two rankings were fused by score, the unit is the standard
    deviation of BM25 or of the cosine similarity over all chunks. The numbers are 0 if WordLlama is not installed, if
    the rankings were fused by reciprocal ranks, or if at least half of the hits are source code.

    Args:
        ranking: The ranking.
        spots: The spots of its first hits.
        chunks: The same hits.

    Returns:
        The numbers for words and for meaning, none of them negative; shape (spots, 2).
    """
    shares = np.zeros((len(spots), 2))
    fusion = ranking.fusion
    if find_spec("wordllama") is None or (fusion is not None and fusion.by != "score"):
        return shares
    if 2 * sum(spot.is_code for spot in spots) >= len(spots):
        return shares
    for leg, weight in zip(ranking.legs, (1.0,) if fusion is None else fusion.weights, strict=True):
        unit = leg.scale.unit
        if leg.name == "lexical" and unit > 0:
            shares[:, 0] = WORDS_WEIGHT * weight / (1.0 if fusion is None else unit)
            shares[:, 0] *= [spot.words for spot in spots]
        elif leg.name == "semantic":
            shares[:, 1] = MEANING_WEIGHT * weight / DEVIATION * (unit if fusion is None else 1.0)
            shares[:, 1] *= [spot.meaning for spot in spots]
    return np.maximum(shares, 0.0) * min(1.0, float(np.mean([_token_count(chunk) for chunk in chunks])) / WHOLE_LENGTH)


def _token_count(chunk: Chunk) -> int:
    return chunk.metadata.get(keys.TOKEN_COUNT) or len(chunk.text) // 4


def _question_vector(leg: Leg, question: str) -> Floats:
    """Return the unit vector of a question in WordLlama's vector space, regardless of the project's embedding model."""
    if leg.model == LOCAL and leg.vector is not None:
        vector = leg.vector
    else:
        vector = embedded([cut_to_input(cut_query(question))])[0]
    direction: Floats = unit_vectors(vector[None, :DIMENSIONS])[0]
    return direction


@cache  # indexes with the same kind of analyzer share the words that have been looked up
def _spotlight(language: str, has_periods: bool, has_vectors: bool) -> Spotlight:
    embed = partial(word_vectors, dimensions=DIMENSIONS) if has_vectors else None
    return Spotlight(Analyzer(language, has_periods=has_periods), embed)


# ---- units -----------------------------------------------------------------------------------------------------------


def units(text: str) -> list[tuple[int, int]]:
    """Return the spans of the units of a text, which are its sentences and table rows, in order.

    Each line is a unit, for example a row, a list item or a heading. Lines of more than 160 characters are divided into
    sentences. If a line continues on the next line, as in hand-wrapped text, the two lines are joined.

    Example:
        >>> text = "| Zone | Tariff |\\n| Upper Vale | 2.95 |\\nThe tariff is reviewed."
        >>> [text[start:end] for start, end in units(text)]
        ['| Zone | Tariff |', '| Upper Vale | 2.95 |', 'The tariff is reviewed.']
    """
    return [unit for start, end in _lines(text) for unit in _sentences(text, start, end)]


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the lines that are not blank, with wrapped lines joined."""
    start = end = 0
    for line in text.splitlines(keepends=True):
        body = line.strip()
        is_continued = (
            end - start >= _WRAPPED
            and "|" not in body
            and (body[:1].islower() or (body[:1].isdigit() and _awaits_figure(text[start:end].strip(), body)))
        )
        if body and not is_continued:
            if text[start:end].strip():
                yield start, end
            start = end
        elif not body and text[start:end].strip():
            yield start, end
            start = end + len(line)
        end += len(line)
    if text[start:end].strip():
        yield start, end


def _awaits_figure(line: str, following: str) -> bool:
    """Return whether a sentence continues on a following line that begins with a figure.

    The lines of a table or a log begin with figures too, and so do the items of a list.
    """
    is_prose = len(line) > LONG_LINE or not line[:1].isdecimal()
    return is_prose and line.rstrip(",")[-1:].isalpha() and not _NUMBERED.match(following)


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the units of a line: its sentences if it is long, otherwise the whole line."""
    is_long = end - start > LONG_LINE
    cuts = structural_offsets(text[start:end], ranks=(Rank.SENTENCE,))[Rank.SENTENCE] if is_long else ()
    for first, last in itertools.pairwise([start, *(start + cut for cut in cuts), end]):
        if unit := text[first:last].lstrip():
            yield last - len(unit), last - len(unit) + len(unit.rstrip())


def is_code(text: str) -> bool:
    """Return whether a text is source code, that is, whether at least three in ten lines look like code.

    Example:
        >>> is_code("def area(r):\\n    return PI * r**2\\n"), is_code("The fee is due:\\nby the end of May.")
        (True, False)
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return bool(lines) and sum(map(_is_code_line, lines)) >= _CODE_SHARE * len(lines)


def _is_code_line(line: str) -> bool:
    return bool(
        line.rstrip().endswith(("{", "}", ";"))
        or "=>" in line
        or "::" in line
        or "->" in line
        or _CODE_START.match(line)
        or ("=" in line and _ASSIGNMENT.search(line))
        or _ends_with_call(line.rstrip())
    )


def _ends_with_call(line: str) -> bool:
    """Return whether a line ends with the call of a function, which a comma or another sign may follow."""
    call = line.removesuffix(line[-1]) if line[-1] in ";,:{" else line
    return call.endswith(")") and _CALL_START.search(call[:-1].rpartition(")")[2]) is not None


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


def coverage(
    text: str, header: str, parts: Sequence[Mapping[str, float]], analyzer: Analyzer, *, least: float = 0.0
) -> float:
    """Return the largest share of any part of a question that one unit covers together with the header, from 0 to 1.

    Args:
        text: Text of the passage.
        header: Text before the passage: title, file name, section and column headers.
        parts: Terms of the question with their weights, from `question_parts`.
        analyzer: The analyzer of the index.
        least: Minimum value to return, such as the coverage of another passage.

    Example:
        >>> analyzer = Analyzer("english")
        >>> parts = [{"garden": 3.0, "water": 1.0, "tariff": 1.0}]
        >>> coverage("Water is metered. Garden water is free.", "Tariffs of 2024", parts, analyzer)
        1.0
    """
    wanted = frozenset(term for part in parts for term in part)
    matching = analyzer.matching(wanted)
    of_header = matching(header)
    totals = [sum(part.values()) for part in parts]
    shares: dict[frozenset[str], float] = {}  # most units match the same few terms, or none

    def share(start: int, end: int) -> float:
        of_unit = matching(text[start:end])
        if of_unit not in shares:
            matched = of_header | of_unit
            covered = (sum(part[term] for term in part if term in matched) for part in parts)
            shares[of_unit] = max(one / total if total else 0.0 for one, total in zip(covered, totals, strict=True))
        return shares[of_unit]

    best = least
    for line in _lines(text):
        # A sentence cannot cover more than its line, so its line is checked first; most lines need no further check.
        if share(*line) > best:
            best = max(best, *(share(*unit) for unit in _sentences(text, *line)))
    return min(best, 1.0)
