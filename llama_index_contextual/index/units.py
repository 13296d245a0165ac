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
import math
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
from llama_index_contextual.index.analysis import Analyzer, joined_terms, tokens
from llama_index_contextual.index.cutting import FIRST_OF_TEXT, Unit, units_of

DIMENSIONS = 64
"""Number of dimensions of WordLlama's vectors that are stored."""

_TERM_BYTES = 3
_PENDING = 50_000  # number of words that are processed together
_MAX_WORDS = 100_000  # number of remembered words
_SKETCH = 40  # number of terms in the sketch of a row
_NO_TERM = (1 << 16) - 1
_LONGEST = 100  # number of characters of a word that are embedded
_SHIFTS = (0, 2, 4, 6)  # of the four numbers in a byte
_ALIGNMENT = 64
_DIGIT = re.compile(r"\d")

Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Units:
    """The units of passages, which are identified by their row numbers.

    Attributes:
        firsts: The first unit of each row, followed by the number of units; shape (rows + 1,).
        table: The fields of each unit, next to each other, so that a row is read from one place; shape (units,). Each
            field is also an attribute.
        term_firsts: The first term of each row, followed by the number of terms; shape (rows + 1,).
        terms: Checksums of the distinct terms of each unit; shape (terms, 3).
        sketches: Last two bytes of the smallest checksums in each row, by which similar rows are recognised (Broder,
            "On the resemblance and containment of documents", 1997); shape (rows, 40).
    """

    firsts: Array
    table: Array
    term_firsts: Array
    terms: NDArray[np.uint8]
    sketches: NDArray[np.uint16]

    @property
    def kinds(self) -> Array:
        """Kind of each unit; shape (units,). The first two units of each row are its header and its context."""
        return self.table["kinds"]

    @property
    def starts(self) -> Array:
        """Offset of each unit in the text of its row; shape (units,)."""
        return self.table["starts"]

    @property
    def ends(self) -> Array:
        """Offset after each unit; shape (units,)."""
        return self.table["ends"]

    @property
    def heads(self) -> Array:
        """For a table row, how many units before it the column headers are; 0 for other units; shape (units,)."""
        return self.table["heads"]

    @property
    def words(self) -> Array:
        """Number of words in each unit; shape (units,)."""
        return self.table["words"]

    @property
    def term_counts(self) -> Array:
        """Number of distinct terms in each unit; shape (units,)."""
        return self.table["term_counts"]

    @property
    def directions(self) -> NDArray[np.uint8]:
        """Direction of each unit together with the header of its row, four numbers in a byte.

        The shape is (units, dimensions / 4), or (units, 0) if there are no word vectors.
        """
        return self.table["directions"]

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
        if len({part.directions.shape[1] for part in parts}) > 1:
            parts = [part.without_directions() for part in parts]
        return cls(
            firsts=_stacked([part.firsts for part in parts]),
            table=np.concatenate([part.table for part in parts]),
            term_firsts=_stacked([part.term_firsts for part in parts]),
            terms=np.concatenate([part.terms for part in parts]),
            sketches=np.concatenate([part.sketches for part in parts]),
        )

    def take(self, rows: NDArray[np.int64]) -> Units:
        """Return the units of the given rows, in the given order."""
        firsts, table = _selected(self.firsts, self.table, rows)
        term_firsts, terms = _selected(self.term_firsts, self.terms, rows)
        return Units(firsts, table, term_firsts, terms, self.sketches[rows])

    def without_directions(self) -> Units:
        """Return the same units without directions."""
        columns = {name: self.table[name] for name in _COLUMNS}
        return replace(self, table=_table(columns, np.zeros((len(self.table), 0), dtype=np.uint8)))

    def contain(self, terms: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each unit contains each of the given terms; shape (terms, units)."""
        if not terms:
            return np.zeros((0, len(self.kinds)), dtype=np.bool_)
        of_terms = checksums(terms)
        distinct = np.array(sorted(set(of_terms.tolist())), dtype=np.uint32)
        contains = np.zeros((len(distinct), len(self.kinds)), dtype=np.bool_)
        # Most stored terms differ in the first two bytes, so that only a few of them are compared in full.
        is_likely = np.zeros(1 << 16, dtype=np.bool_)
        is_likely[distinct & 0xFFFF] = True
        firsts = np.ndarray(len(self.terms), "<u2", self.terms, strides=(_TERM_BYTES,))
        entries = np.flatnonzero(is_likely.take(firsts))
        stored = self.terms[entries] @ _BYTES
        places = distinct.searchsorted(stored)
        is_equal = distinct.take(places, mode="clip") == stored
        entries, places = entries[is_equal], places[is_equal]
        units = np.cumsum(self.term_counts, dtype=np.int64).searchsorted(entries, side="right")
        contains[places, units] = True
        return contains[distinct.searchsorted(of_terms)]

    def shared(self, share: float) -> NDArray[np.float64]:
        """Return the share of the distinct terms of each row that also occur in other rows; shape (rows,).

        The share is estimated from the sketches.

        Args:
            share: Share of the rows in which a term must occur, and at least in two.
        """
        least = max(2, math.ceil(share * self.rows))
        ordered = np.sort(self.sketches, axis=None)
        is_shared = np.zeros(_NO_TERM + 1, dtype=np.bool_)
        is_shared[ordered[least - 1 :][ordered[least - 1 :] == ordered[: len(ordered) - least + 1]]] = True
        is_shared[_NO_TERM] = False
        shared, terms = is_shared.take(self.sketches), self.sketches != _NO_TERM
        shares: NDArray[np.float64] = shared.sum(axis=1) / np.maximum(terms.sum(axis=1), 1)
        return shares

    def similarities(self, vector: Floats) -> Floats:
        """Return the cosine similarity of each unit and a unit vector, or zeros without directions; shape (units,).

        Args:
            vector: The vector; shape (dimensions,).
        """
        if not self.directions.shape[1]:
            return np.zeros(len(self.kinds), dtype=np.float32)
        # The products of a byte's four numbers with the vector are looked up by the place and the value of the byte.
        count = self.directions.shape[1]
        products = (vector.reshape(count, -1) @ _NUMBERS.T).ravel()
        places = self.directions + np.arange(0, len(products), 256)
        lengths = np.sqrt(np.einsum("ub->u", _SQUARES.take(self.directions)))
        similarities: Floats = np.einsum("ub->u", products.take(places)) / lengths
        return np.where(self.words > 0, similarities, np.float32(0.0))

    # ---- file --------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the arrays to a file, without syncing it.

        The file begins with its header: a line of JSON with the type, the shape and the offset of each array.
        """
        arrays = {each.name: np.ascontiguousarray(getattr(self, each.name)) for each in fields(self)}
        header, at = {}, 0
        for name, array in arrays.items():
            header[name] = {"type": array.dtype.descr, "shape": array.shape, "offset": at}
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
            fields_of = [(field, kind, *map(tuple, shape)) for field, kind, *shape in entry["type"]]
            dtype = np.dtype(fields_of if fields_of[0][0] else fields_of[0][1])
            start = len(header) + entry["offset"]
            stop = start + dtype.itemsize * int(np.prod(entry["shape"], dtype=np.int64))
            arrays[name] = data[start:stop].view(dtype).reshape(entry["shape"])
        if "sketches" not in arrays:  # in files of the second edition of derived data
            rows = len(arrays["term_firsts"]) - 1
            term_firsts: NDArray[np.int64] = arrays["term_firsts"].astype(np.int64)
            of_rows = np.repeat(np.arange(rows), term_firsts[1:] - term_firsts[:-1])
            arrays["sketches"] = _sketches(of_rows, (arrays["terms"] @ _BYTES).astype(np.int64), rows)
        return cls(**arrays)


_COLUMNS = ("kinds", "starts", "ends", "heads", "words", "term_counts")
_NUMBERS = 2.0 * (np.arange(256)[:, None] >> np.array(_SHIFTS) & 3).astype(np.float32) - 3.0
"""The four numbers in a byte, for each of its values; shape (256, 4)."""
_BYTES = np.array([1, 1 << 8, 1 << 16], dtype=np.uint32)
_SQUARES = np.square(_NUMBERS).sum(axis=1)


def _stacked(firsts: Sequence[Array]) -> Array:
    """Return the first items of the rows of several groups, one group after another."""
    counts = np.concatenate([np.zeros(0, dtype=np.int64), *(np.diff(group).astype(np.int64) for group in firsts)])
    return _smallest(np.cumsum(np.append(0, counts)))


def _selected(firsts: Array, items: Array, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array]:
    """Return the first item of each of the given rows after they have been selected, and the selected items."""
    starts, stops = firsts[rows].astype(np.int64), firsts[rows + 1].astype(np.int64)
    selected = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(stops - starts, out=selected[1:])
    # Plain bytes are joined several times as fast as fields.
    size = items.dtype.itemsize * math.prod(items.shape[1:])
    data = items.view(np.uint8).reshape(len(items), size)
    spans = map(slice, starts.tolist(), stops.tolist())
    joined = np.concatenate([data[:0], *[data[span] for span in spans]])
    return selected, joined.reshape(-1).view(items.dtype).reshape(-1, *items.shape[1:])


def _table(columns: Mapping[str, Array], directions: NDArray[np.uint8]) -> Array:
    """Return the fields of units, next to each other; integers have the smallest types that hold them."""
    integers = {name: _smallest(columns[name]) for name in _COLUMNS}
    types = [(name, column.dtype) for name, column in integers.items()]
    table = np.empty(len(directions), dtype=[*types, ("directions", np.uint8, directions.shape[1:])])
    for name, column in integers.items():
        table[name] = column
    table["directions"] = directions
    return table


def _smallest(numbers: Array) -> Array:
    """Return numbers, none of them negative, in the smallest unsigned type that holds them."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def checksums(terms: Sequence[str]) -> NDArray[np.uint32]:
    """Return the checksums of terms, as they are stored; shape (terms,)."""
    return np.array([_checksum(term) for term in terms], dtype=np.uint32)


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
        self._analyzer = analyzer
        self._has_vectors = has_vectors and bool(words_identity())
        self._vocabularies: dict[Analyzer | None, _Vocabulary] = {}
        self._groups: list[Units] = []
        self._passages: list[list[Unit]] = []
        self._words: list[list[str]] = []
        self._pending = 0
        self._pending_analyzer = analyzer

    def add(self, text: str, metadata: Mapping[str, object], analyzer: Analyzer | None = None) -> list[str]:
        """Add a passage, whose row comes after the rows of earlier passages, and return the words of its text.

        Args:
            text: The passage.
            metadata: Its metadata.
            analyzer: Analyzer for its language; None for the analyzer of the builder.
        """
        if (analyzer := analyzer or self._analyzer) is not self._pending_analyzer:
            self._convert()
            self._pending_analyzer = analyzer
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
        units = Units.join(self._groups or [_converted([], [], self._vocabulary())])
        self._groups = [units]
        columns = {name: units.table[name] for name in _COLUMNS}
        return replace(
            units,
            firsts=_smallest(units.firsts),
            table=_table(columns, units.directions),
            term_firsts=_smallest(units.term_firsts),
        )

    def _convert(self) -> None:
        if self._passages:
            self._groups.append(_converted(self._passages, self._words, self._vocabulary()))
            self._passages, self._words, self._pending = [], [], 0

    def _vocabulary(self) -> _Vocabulary:
        """Return the vocabulary of the pending passages."""
        analyzer = self._pending_analyzer
        if analyzer not in self._vocabularies:
            self._vocabularies[analyzer] = _Vocabulary(analyzer, has_vectors=self._has_vectors)
        return self._vocabularies[analyzer]


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
    sizes = vocabulary.counts[numbers]
    starts = (np.cumsum(vocabulary.counts) - vocabulary.counts)[numbers]
    terms = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
    keys = np.repeat(of_words, sizes) << 32 | vocabulary.terms[terms]
    if vocabulary.analyzer is not None and vocabulary.analyzer.has_periods:
        dated = (at for at, unit in enumerate(units) if _DIGIT.search(unit.text))
        of_periods = [at << 32 | _checksum(term) for at in dated for term in joined_terms(words[at])]
        keys = np.append(keys, np.array(of_periods, dtype=np.int64))
    keys.sort()  # faster than `np.unique`
    keys = keys[np.diff(keys, prepend=-1) > 0]
    term_counts = np.bincount(keys >> 32, minlength=len(units))
    columns: dict[str, Array] = {
        "kinds": np.fromiter((unit.kind for unit in units), dtype=np.uint8),
        "starts": np.fromiter((unit.start for unit in units), dtype=np.int64),
        "ends": np.fromiter((unit.end for unit in units), dtype=np.int64),
        "heads": np.fromiter((unit.head for unit in units), dtype=np.int64),
        "words": counts,
        "term_counts": term_counts,
    }
    return Units(
        firsts=firsts,
        table=_table(columns, _directions(vocabulary.vectors, numbers, counts, firsts)),
        term_firsts=np.append(0, np.cumsum(term_counts))[firsts],
        terms=np.ascontiguousarray((keys & 0xFFFFFFFF).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_TERM_BYTES]),
        sketches=_sketches(np.repeat(np.arange(len(passages)), np.diff(firsts))[keys >> 32], keys, len(passages)),
    )


def _sketches(of_rows: NDArray[np.int64], keys: NDArray[np.int64], rows: int) -> NDArray[np.uint16]:
    """Return the sketch of each row, given the row and the checksum of each term."""
    pairs = of_rows << 32 | keys & 0xFFFFFFFF
    pairs.sort()
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    of_pairs = pairs >> 32
    places = np.arange(len(pairs)) - of_pairs.searchsorted(np.arange(rows))[of_pairs]
    is_first = places < _SKETCH
    sketches = np.full((rows, _SKETCH), _NO_TERM, dtype="<u2")
    sketches[of_pairs[is_first], places[is_first]] = pairs[is_first] & 0xFFFF
    return sketches


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
