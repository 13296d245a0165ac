"""The units of the passages of a part, stored as arrays, so that a search neither cuts passages nor reads their texts.

    row ──▶ its units: header, context, sentence, sentence, row …
    unit ──▶ kind, start and end, column headers, number of words, terms, direction

A term is stored as a checksum of three bytes: in the units of twenty passages, one of ten terms is confused with
another one in four of a thousand searches. The direction of a unit is that of the sum of its word vectors and of those
of the header, in the first 64 dimensions of WordLlama's vectors, in numbers of two bits. Without WordLlama, units have
no directions.
"""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.tokens import replace_surrogates
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.embeddings.words import word_vectors, words_identity
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import Analyzer, periods, tokens
from llama_index_contextual.index.cutting import FIRST_OF_TEXT, Unit, units_of

DIMENSIONS = 64
"""Number of dimensions of WordLlama's vectors that are stored."""

_TERM_BYTES = 3
_PENDING = 50_000  # number of words that are processed together
_MAX_WORDS = 100_000  # number of remembered words
_LONGEST = 100  # number of characters of a word that are embedded
_SHIFTS = (0, 2, 4, 6)  # of the four numbers in a byte
_ALIGNMENT = 64
_DIGIT = re.compile(r"\d")

Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Units:
    """The units of passages, which are identified by their row numbers. Integers have the smallest type that fits.

    Attributes:
        firsts: The first unit of each row, followed by the number of units; shape (rows + 1,).
        kinds: Kind of each unit; shape (units,). The first two units of each row are its header and its context.
        starts: Offset of each unit in the text of its row; shape (units,).
        ends: Offset after each unit; shape (units,).
        heads: For a table row, how many units before it the column headers are; 0 for other units; shape (units,).
        words: Number of words in each unit; shape (units,).
        term_counts: Number of distinct terms in each unit; shape (units,).
        term_firsts: The first term of each row, followed by the number of terms; shape (rows + 1,).
        terms: Checksums of the distinct terms of each unit; shape (terms, 3).
        directions: Direction of each unit together with the header of its row, four numbers in a byte; shape
            (units, dimensions / 4). The shape is (units, 0) if there are no word vectors.
    """

    firsts: Array
    kinds: Array
    starts: Array
    ends: Array
    heads: Array
    words: Array
    term_counts: Array
    term_firsts: Array
    terms: NDArray[np.uint8]
    directions: NDArray[np.uint8]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.firsts) - 1

    @classmethod
    def of(
        cls,
        passages: Iterable[tuple[str, Mapping[str, object]]],
        analyzer: Analyzer | None,
        *,
        has_vectors: bool = True,
    ) -> Units:
        """Cut passages, given as their texts and metadata, into units.

        Args:
            passages: The passages.
            analyzer: Analyzer that splits text into terms; None if there are no terms.
            has_vectors: Whether units have directions if WordLlama is installed.
        """
        builder = UnitsBuilder(analyzer, has_vectors=has_vectors)
        for text, metadata in passages:
            builder.add(text, metadata)
        return builder.build()

    @classmethod
    def join(cls, parts: Sequence[Units]) -> Units:
        """Return the units of several groups of rows, one group after another.

        If a group has no directions, the result has none.
        """
        parts = parts or [Units.of([], None)]
        if len(parts) == 1:
            return parts[0]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _PLAIN}
        width = min(part.directions.shape[1] for part in parts)
        return cls(
            firsts=_stacked([part.firsts for part in parts]),
            term_firsts=_stacked([part.term_firsts for part in parts]),
            directions=np.concatenate([part.directions[:, :width] for part in parts]),
            **joined,
        )

    def take(self, rows: NDArray[np.int64]) -> Units:
        """Return the units of the given rows, in the given order."""
        firsts, units = _selection(self.firsts, rows)
        term_firsts, terms = _selection(self.term_firsts, rows)
        selected = {name: getattr(self, name)[units] for name in _PLAIN if name != "terms"}
        return Units(
            firsts=firsts,
            term_firsts=term_firsts,
            terms=self.terms[terms],
            directions=self.directions[units],
            **selected,
        )

    def without_directions(self) -> Units:
        """Return the same units without directions."""
        return replace(self, directions=np.zeros((len(self.kinds), 0), dtype=np.uint8))

    def contain(self, terms: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each unit contains each of the given terms; shape (terms, units)."""
        if not terms:
            return np.zeros((0, len(self.kinds)), dtype=np.bool_)
        checksums, rows = np.unique([_checksum(term) for term in terms], return_inverse=True)
        contains = np.zeros((len(checksums), len(self.kinds)), dtype=np.bool_)
        stored = self.terms @ np.array([1, 1 << 8, 1 << 16], dtype=np.uint32)
        places = checksums.searchsorted(stored)
        entries = np.flatnonzero(checksums.take(places, mode="clip") == stored)
        units = np.cumsum(self.term_counts, dtype=np.int64).searchsorted(entries, side="right")
        contains[places[entries], units] = True
        return contains[rows]

    def similarities(self, vector: Floats) -> Floats:
        """Return the cosine similarity of each unit and a unit vector, or zeros without directions; shape (units,).

        Args:
            vector: The vector; shape (dimensions,).
        """
        if not self.directions.shape[1]:
            return np.zeros(len(self.kinds), dtype=np.float32)
        numbers = np.stack([self.directions >> shift & 3 for shift in _SHIFTS], axis=2)
        directions = 2.0 * numbers.reshape(-1, len(vector)).astype(np.float32) - 3.0
        lengths = np.sqrt(np.einsum("ij,ij->i", directions, directions))
        similarities: Floats = np.einsum("ij,j->i", directions, vector) / lengths
        return np.where(self.words > 0, similarities, np.float32(0.0))

    # ---- file --------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the arrays to a file, without syncing it.

        The file begins with its header: a line of JSON with the type, the shape and the offset of each array.
        """
        arrays = {each.name: np.ascontiguousarray(getattr(self, each.name)) for each in fields(self)}
        header, at = {}, 0
        for name, array in arrays.items():
            header[name] = {"type": array.dtype.str, "shape": array.shape, "offset": at}
            at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        line = json.dumps(header).encode()
        line += b" " * (-(len(line) + 1) % _ALIGNMENT) + b"\n"

        def fill(file: Any) -> None:
            file.write(line)
            for array in arrays.values():
                file.write(array.tobytes())
                file.write(bytes(-array.nbytes % _ALIGNMENT))

        files.write_with(path, fill, sync=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the arrays of a file, memory-mapped."""
        with path.open("rb") as file:
            header = file.readline()
        data, arrays = files.mmap(path, np.uint8), {}
        for name, entry in json.loads(header).items():
            dtype, start = np.dtype(entry["type"]), len(header) + entry["offset"]
            stop = start + dtype.itemsize * int(np.prod(entry["shape"], dtype=np.int64))
            arrays[name] = data[start:stop].view(dtype).reshape(entry["shape"])
        return cls(**arrays)


_PLAIN = ("kinds", "starts", "ends", "heads", "words", "term_counts", "terms")


def _stacked(firsts: Sequence[Array]) -> Array:
    """Return the first items of the rows of several groups, one group after another."""
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(np.diff(group).astype(np.int64) for group in firsts)])
    return _smallest(np.cumsum(np.append(0, counts)))


def _selection(firsts: Array, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first item of each of the given rows after they have been selected, and the items to select."""
    starts = firsts[rows].astype(np.int64)
    counts = firsts[rows + 1] - starts
    selected = np.append(0, np.cumsum(counts))
    return selected, np.arange(selected[-1]) + np.repeat(starts - selected[:-1], counts)


def _smallest(numbers: Array) -> Array:
    """Return numbers, none of them negative, in the smallest unsigned type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _checksum(term: str) -> int:
    return zlib.crc32(term.encode("utf-8", "replace")) & 0xFFFFFF


class UnitsBuilder:
    """Build `Units` from passages and from other units.

    Each distinct word is analysed and embedded once.

    Args:
        analyzer: Analyzer that splits text into terms; None if there are no terms.
        has_vectors: Whether units have directions if WordLlama is installed.
    """

    def __init__(self, analyzer: Analyzer | None, *, has_vectors: bool = True) -> None:
        self._vocabulary = _Vocabulary(analyzer, has_vectors=has_vectors and bool(words_identity()))
        self._groups: list[Units] = []
        self._passages: list[list[Unit]] = []
        self._words: list[list[str]] = []
        self._pending = 0

    def add(self, text: str, metadata: Mapping[str, object]) -> list[str]:
        """Add a passage, whose row comes after the rows of earlier passages, and return the words of its text."""
        units = units_of(text, metadata)
        words = [tokens(unit.text) for unit in units]
        self._passages.append(units)
        self._words += words
        self._pending += sum(map(len, words))
        if self._pending >= _PENDING:
            self._convert()
        return [*itertools.chain.from_iterable(words[FIRST_OF_TEXT:])]

    def add_units(self, units: Units) -> None:
        """Add the rows of other units."""
        self._convert()
        self._groups.append(units)

    def build(self) -> Units:
        """Return the units."""
        self._convert()
        units = Units.join(self._groups or [_converted([], [], self._vocabulary)])
        self._groups = [units]
        integers = (each.name for each in fields(units) if each.name not in ("terms", "directions"))
        return replace(units, **{name: _smallest(getattr(units, name)) for name in integers})

    def _convert(self) -> None:
        if self._passages:
            self._groups.append(_converted(self._passages, self._words, self._vocabulary))
            self._passages, self._words, self._pending = [], [], 0


class _Vocabulary:
    """Words with the checksums of their terms and with their vectors, which are columns."""

    def __init__(self, analyzer: Analyzer | None, *, has_vectors: bool) -> None:
        self.analyzer = analyzer
        self.has_vectors = has_vectors
        self._clear()

    def _clear(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        self._known = 0
        self.counts = np.zeros(0, dtype=np.int64)
        self.terms = np.zeros(0, dtype=np.uint32)
        self.vectors = np.zeros((DIMENSIONS if self.has_vectors else 0, 0), dtype=np.float32)

    def numbers(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each word; new words are analysed and embedded."""
        if self._known >= _MAX_WORDS:
            self._clear()
        numbers = np.fromiter(map(self._numbers.__getitem__, words), dtype=np.int64)
        new = list(itertools.islice(reversed(self._numbers), len(self._numbers) - self._known))[::-1]
        if new:
            terms = [()] * len(new) if self.analyzer is None else list(map(self.analyzer.analyse, new))
            self.counts = np.append(self.counts, list(map(len, terms)))
            checksums = map(_checksum, itertools.chain.from_iterable(terms))
            self.terms = np.append(self.terms, np.fromiter(checksums, dtype=np.uint32))
            if self.has_vectors:
                short = [word[:_LONGEST] for word in map(replace_surrogates, new)]
                self.vectors = np.concatenate([self.vectors, word_vectors(short, DIMENSIONS).T], axis=1)
            self._known = len(self._numbers)
        return numbers


def _converted(passages: Sequence[Sequence[Unit]], words: Sequence[Sequence[str]], vocabulary: _Vocabulary) -> Units:
    """Convert the units of passages, given with the words of each unit, to arrays."""
    units = list(itertools.chain.from_iterable(passages))
    firsts = np.append(0, np.cumsum([len(passage) for passage in passages], dtype=np.int64))
    counts = np.fromiter(map(len, words), dtype=np.int64)
    numbers = vocabulary.numbers(itertools.chain.from_iterable(words))
    of_words = np.repeat(np.arange(len(units)), counts)
    _, terms = _selection(np.append(0, np.cumsum(vocabulary.counts)), numbers)
    of_terms = np.repeat(of_words, vocabulary.counts[numbers])
    keys = of_terms << 32 | vocabulary.terms[terms]
    if vocabulary.analyzer is not None and vocabulary.analyzer.has_periods:
        dated = (at for at, unit in enumerate(units) if _DIGIT.search(unit.text))
        of_periods = [at << 32 | _checksum(term) for at in dated for term in periods(words[at])]
        keys = np.append(keys, np.array(of_periods, dtype=np.int64))
    keys.sort()  # faster than `np.unique`
    keys = keys[np.diff(keys, prepend=-1) > 0]
    term_counts = np.bincount(keys >> 32, minlength=len(units))
    return Units(
        firsts=firsts,
        kinds=np.fromiter((unit.kind for unit in units), dtype=np.uint8),
        starts=np.fromiter((unit.start for unit in units), dtype=np.int64),
        ends=np.fromiter((unit.end for unit in units), dtype=np.int64),
        heads=np.fromiter((unit.head for unit in units), dtype=np.int64),
        words=counts,
        term_counts=term_counts,
        term_firsts=np.append(0, np.cumsum(term_counts))[firsts],
        terms=(keys & 0xFFFFFFFF).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_TERM_BYTES],
        directions=_directions(vocabulary.vectors, numbers, counts, firsts),
    )


def _directions(
    vectors: Floats, numbers: NDArray[np.int64], counts: NDArray[np.int64], firsts: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the direction of each unit together with the header of its passage.

    Args:
        vectors: Vector of each word in the vocabulary; shape (dimensions, words).
        numbers: Numbers of the words of all units.
        counts: Number of words in each unit.
        firsts: The first unit of each passage, which is its header, followed by the number of units.
    """
    if not len(vectors) or not len(counts):
        return np.zeros((len(counts), len(vectors) // len(_SHIFTS)), dtype=np.uint8)
    sums = np.zeros((len(vectors), len(counts)), dtype=np.float32)
    filled = np.flatnonzero(counts)
    if len(filled):  # adding up columns is many times as fast as adding up rows
        sums[:, filled] = np.add.reduceat(vectors.take(numbers, axis=1), (np.cumsum(counts) - counts)[filled], axis=1)
    sums = unit_vectors(sums.T)
    headers = np.repeat(firsts[:-1], np.diff(firsts))
    return _packed(sums + sums[headers])


def _packed(directions: Floats) -> NDArray[np.uint8]:
    """Return directions in numbers of two bits, 0 to 3, which stand for -3, -1, 1 and 3 in a common unit.

    A number of more than the root mean square is large.
    """
    is_large = np.abs(directions) > np.sqrt((directions**2).mean(axis=1, keepdims=True))
    numbers = np.where(directions < 0, 1 - is_large, 2 + is_large).astype(np.uint8)
    packed = np.zeros((len(numbers), numbers.shape[1] // len(_SHIFTS)), dtype=np.uint8)
    for place, shift in enumerate(_SHIFTS):
        packed |= numbers[:, place :: len(_SHIFTS)] << shift
    return packed
