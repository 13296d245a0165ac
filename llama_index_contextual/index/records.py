"""Records of documents, which can be found by id, file and content without reading all of them for every call."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.index.manifest import DocumentRecord


class RecordIndex:
    """The records of a part, by their numbers; the dictionaries are made when they are first used.

    Args:
        records: The records.
    """

    def __init__(self, records: Sequence[DocumentRecord]) -> None:
        self.records = records

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """The number of chunks of each document; shape (documents,)."""
        return np.fromiter((record.chunks for record in self.records), dtype=np.int64, count=len(self.records))

    @cached_property
    def by_id(self) -> Mapping[str, int]:
        """The number of each document, by its id."""
        return {record.doc_id: number for number, record in enumerate(self.records)}

    @cached_property
    def by_path(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the documents, by the path of their file."""
        return _numbers(record.path for record in self.records)

    @cached_property
    def by_content(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the documents, by their content hash."""
        return _numbers(record.content_hash for record in self.records)

    @cached_property
    def by_folded_id(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the documents, by their id as file systems compare it that ignore case."""
        return _numbers(_folded(record.doc_id) for record in self.records)


def _numbers(keys: Iterable[str | None]) -> Mapping[str, Sequence[int]]:
    numbers: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        if key is not None:
            numbers.setdefault(key, []).append(number)
    return numbers


class Records(Sequence[DocumentRecord]):
    """The records of the documents of a version, in the order of its parts.

    Args:
        parts: The records of each part, and which of them are live; None if all are.

    Example:
        >>> records = Records.of([DocumentRecord(doc_id="a", content_hash="1")])
        >>> records.get("a") is records[0], records.get("b")
        (True, None)
    """

    def __init__(self, parts: Sequence[tuple[RecordIndex, NDArray[np.bool_] | None]] = ()) -> None:
        self._parts = parts

    @classmethod
    def of(cls, records: Sequence[DocumentRecord]) -> Records:
        """Return records that are given one by one."""
        return records if isinstance(records, Records) else cls([(RecordIndex(records), None)])

    def __len__(self) -> int:
        return len(self._live)

    @overload
    def __getitem__(self, at: int) -> DocumentRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[DocumentRecord]: ...

    def __getitem__(self, at: int | slice) -> DocumentRecord | Sequence[DocumentRecord]:
        return self._live[at]

    def __iter__(self) -> Iterator[DocumentRecord]:
        return iter(self._live)

    @cached_property
    def _live(self) -> Sequence[DocumentRecord]:
        if len(self._parts) == 1 and self._parts[0][1] is None:
            return self._parts[0][0].records
        live: list[DocumentRecord] = []
        for index, mask in self._parts:
            numbers = range(len(index.records)) if mask is None else np.flatnonzero(mask).tolist()
            live += map(index.records.__getitem__, numbers)
        return live

    def get(self, doc_id: str) -> DocumentRecord | None:
        """Return the record of a document, or None."""
        for index, live in self._parts:
            number = index.by_id.get(doc_id)
            if number is not None and (live is None or live[number]):
                return index.records[number]
        return None

    def with_path(self, path: str) -> DocumentRecord | None:
        """Return the record of the document that was read from a file, or None."""
        return next(iter(self._live_ones(lambda index: index.by_path.get(path, ()))), None)

    def with_content(self, content_hash: str) -> list[DocumentRecord]:
        """Return the records of the documents with a content hash."""
        return self._live_ones(lambda index: index.by_content.get(content_hash, ()))

    def with_folded_id(self, doc_id: str) -> list[DocumentRecord]:
        """Return the records of the documents with an id, regardless of its case and Unicode normalization."""
        return self._live_ones(lambda index: index.by_folded_id.get(_folded(doc_id), ()))

    def _live_ones(self, numbers_of: Callable[[RecordIndex], Sequence[int]]) -> list[DocumentRecord]:
        return [
            index.records[number]
            for index, live in self._parts
            for number in numbers_of(index)
            if live is None or live[number]
        ]


def _folded(doc_id: str) -> str:
    """Return an id in the form in which file systems that ignore case, and those that normalize names, compare it."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", doc_id).casefold())
