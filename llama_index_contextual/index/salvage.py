"""Read what is sound in a damaged version, so that `rebuild` restores the documents of its damaged parts.

If the document store of a damaged part is sound, the chunks are taken from it, and the vectors too if their file is
sound. Otherwise the documents are read again from their files, if these are known and have not changed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import CorruptVersionError, FormatError, ReadError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.check import check_contents, is_damage, part_directory, read_manifest, read_part
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.manifest import (
    DOCSTORE,
    FAISS_FILE,
    PART_MANIFEST,
    RECORDS,
    DocumentRecord,
    Files,
    Manifest,
    PartEntry,
    PartManifest,
    damage_error,
)
from llama_index_contextual.index.part import Description, LivePart, Part, open_parts
from llama_index_contextual.index.records import RecordIndex
from llama_index_contextual.index.remote_check import lost_documents
from llama_index_contextual.index.sources import content_hash_with, facts_of, read_sources
from llama_index_contextual.index.version import OpenVersion, load_frame
from llama_index_contextual.readers.discovery import FileRef, content_hash, discover

Facts = Sequence[Mapping[str, Any]]

_LISTED = 20  # number of documents that an error names; the exception has all of them
_MERGED_FROM = re.compile(rb'"merged_from": "([0-9a-f]{32})"')
_UNREADABLE = (OSError, sqlite3.Error, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Errors of reading a file that may be damaged."""


def open_or_salvage(directory: Path) -> OpenVersion:
    """Open a version whose files may be damaged: as a `DamagedVersion` if they are.

    Raises:
        CorruptVersionError: The manifest of the version is damaged, or a file cannot be read, but may be sound.
        FormatError: A file was written by a newer release.
    """
    manifest = read_manifest(directory)
    conditions = inspect_parts(directory, manifest)
    faults = [fault for condition in conditions for fault in condition.faults]
    if (fault := next(itertools.filterfalse(is_damage, faults), None)) is not None:
        raise fault
    if faults:
        return DamagedVersion(directory, conditions)
    version = OpenVersion(directory, check="size")
    if version.is_remote and lost_documents(version):
        version.close()
        return DamagedVersion(directory, conditions)
    return version


def inspect_parts(directory: Path, manifest: Manifest) -> list[Condition]:
    """Return the condition of each part of a version.

    Raises:
        FormatError: A part was written by a newer release.
    """
    return [inspect_part(part_directory(directory, entry.name), entry, manifest.dimensions) for entry in manifest.parts]


@dataclass(frozen=True)
class Original:
    """The unchanged file of a document.

    Attributes:
        ref: The file.
        content_hash: Content hash of the document.
        facts: The user's metadata of it.
    """

    ref: FileRef
    content_hash: str
    facts: Mapping[str, Any]


class DamagedVersion(OpenVersion):
    """A damaged version, as far as it can be read.

    Its `parts` are the sound ones, then the damaged ones of which the document store is sound.

    Args:
        directory: versions/<name> of a project.
        conditions: Condition of its parts, from `inspect_parts`.

    Attributes:
        faults: The errors of the damaged files.
        damaged: Ids of the documents of the damaged parts that can be read.
        originals: Files of the other documents of damaged parts.
        lost: Documents that cannot be restored, and why.
        unnamed: Number of further documents that cannot be restored, and whose ids cannot be read.

    Raises:
        CorruptVersionError: The manifest of the version is damaged.
        FormatError: The version was written by a newer release.
    """

    def __init__(self, directory: Path, conditions: Sequence[Condition]) -> None:
        self.directory, self.name = directory, directory.name
        whole = read_manifest(directory)
        self.faults: list[Exception] = []
        self.originals: list[Original] = []
        self.lost: dict[str, str] = {}
        sound: list[PartEntry] = []
        readable: list[LivePart] = []
        unreadable: list[DocumentRecord] = []
        self._sources = read_sources(directory.parent.parent)
        for entry, condition in zip(whole.parts, conditions, strict=True):
            place = part_directory(directory, entry.name)
            if not condition.faults:
                sound.append(entry)
                continue
            self.faults += condition.faults
            if DOCSTORE in condition.sound:
                part = Part(Description(place, entry, condition.sound, compared=condition.sound))
                part.users = 1
                readable.append(LivePart(part, entry.gone))
            else:
                records, facts = records_of_part(place, condition)
                for first, last in reversed(entry.gone):
                    del records[first : last + 1]
                unreadable += records
                self._find_originals(records, facts, is_certain=RECORDS in condition.sound)
        self.manifest = replace(whole, parts=sound)
        self.parts = [*open_parts(directory, self.manifest, "size"), *readable]
        if self.is_remote and (lost := lost_documents(self)):
            self.faults.append(
                CorruptVersionError(f"The collection lacks chunks of {pluralize(len(lost), 'document')}.")
            )
            records = [record for record in self.records if record.doc_id in lost]
            facts = {record.doc_id: _facts_in(self, record.doc_id) for record in records}
            for name in ("docstore", "records"):
                self.__dict__.pop(name, None)
            self.parts = [part.without(lost) for part in self.parts]
            unreadable += records
            self._find_originals(records, facts, is_certain=True)
        self.damaged = {record.doc_id for part in readable for record in part.records}
        self.unnamed = max(0, whole.documents - len(self.records) - len(unreadable))

    def _find_originals(
        self, records: Sequence[DocumentRecord], facts: Mapping[str, Facts], *, is_certain: bool
    ) -> None:
        for record in records:
            original = self._original(record, facts.get(record.doc_id, ()), is_certain=is_certain)
            if isinstance(original, str):
                self.lost[record.doc_id] = original
            else:
                self.originals.append(original)

    def _original(self, record: DocumentRecord, variants: Facts, *, is_certain: bool) -> Original | str:
        """Return the file of a document, or the reason why it cannot be read again.

        Args:
            record: The record of the document.
            variants: What the user's metadata of it may have been.
            is_certain: Whether the record has its checksum; otherwise, its id must be one of the file.
        """
        if record.origin is None:
            return "it was not read from a file"
        if (path := self._sources.get(record.origin)) is None:
            return "the path of its file is not known"
        discovery = discover([path])
        if not discovery.files:
            return f"its file {discovery.skipped[0].reason}"
        if not is_certain and record.doc_id not in discovery.files[0].ids():
            return "its id cannot be read with certainty"
        try:
            digest = content_hash(Path(path))
        except ReadError as error:
            return f"its file {error.reason}"
        for facts in ({}, *variants):
            if content_hash_with(digest, facts) == record.content_hash:
                return Original(replace(discovery.files[0], doc_id=record.doc_id), record.content_hash, facts)
        return "its file has changed"

    def stored_vectors(self, doc_id: str) -> Any | None:
        """Return the unit vectors of the chunks of a document in a damaged part; None if their file is damaged."""
        part = next(part.part for part in self.parts if part.has(doc_id))
        if FAISS_FILE not in part.files:
            return None
        return part.index.reconstruct_batch((part.document_of == part.numbers[doc_id]).nonzero()[0])

    def loss(self, unread: Mapping[str, str]) -> CorruptVersionError | None:
        """Return the error that names the documents that cannot be restored, or None.

        Args:
            unread: Further documents that cannot be restored, and why.
        """
        lost = self.lost | dict(unread)
        if not lost and not self.unnamed:
            return None
        shown = [f"{doc_id} ({reason})" for doc_id, reason in list(lost.items())[:_LISTED]]
        others = len(lost) - len(shown) + self.unnamed
        names = "; ".join([*shown, *([f"{others} more"] if others else [])])
        fault = str(getattr(self.faults[0], "problem", self.faults[0])).removesuffix(".")
        number = pluralize(len(lost) + self.unnamed, "document")
        again = "and ingest these documents again"
        return CorruptVersionError(
            f"{fault}. {number} cannot be restored: {names}. Nothing was changed.",
            name=self.directory.parent.parent.name,
            file=getattr(self.faults[0], "file", None),
            documents=tuple(lost),
            remedy=Remedy(
                f"Restore their files and call `rebuild` again, or call `rebuild(allow_loss=True)` {again}",
                f"Restore their files and run the command again, or add --allow-loss {again}",
            ),
        )


@dataclass(frozen=True)
class Condition:
    """Condition of the files of a part.

    Attributes:
        sound: The files that have their checksums.
        faults: The errors of the others; that of the manifest of a part first.
        is_another: Whether the directory contains another part than the version was published with.
    """

    sound: Files
    faults: Sequence[CorruptVersionError] = ()
    is_another: bool = False


def inspect_files(place: Path, described: Files) -> Condition:
    """Compare every file with its SHA-256.

    Args:
        place: Directory of a part.
        described: Its files.
    """
    sound: dict[str, Mapping[str, Any]] = {}
    faults: list[CorruptVersionError] = []
    for name, expected in described.items():
        try:
            check_contents(place, {name: expected}, "sha256")
            sound[name] = expected
        except CorruptVersionError as error:
            faults.append(error)
    return Condition(sound, faults)


def inspect_part(place: Path, entry: PartEntry, dimensions: int | None) -> Condition:
    """Compare every file of a part with its SHA-256.

    Args:
        place: Directory of the part.
        entry: Its entry in the manifest of a version.
        dimensions: Length of the vectors of the version, or None.

    Raises:
        FormatError: The part was written by a newer release.
    """
    try:
        described = read_part(place, entry).files
    except CorruptVersionError as error:
        return _inspect_without_manifest(place, entry, dimensions, error)
    return inspect_files(place, described)


def _inspect_without_manifest(
    place: Path, entry: PartEntry, dimensions: int | None, fault: CorruptVersionError
) -> Condition:
    """Find the files of a part that are sound although its manifest is damaged.

    If all are, a manifest that is made anew from them has the checksum that the version names. Otherwise, a file is
    sound if what remains of the manifest contains one of its checksums.
    """
    actual: dict[str, Mapping[str, Any]] = {}
    for path in files.walk(place):
        name = path.relative_to(place).as_posix()
        if name != PART_MANIFEST:
            with contextlib.suppress(OSError):
                actual[name] = files.describe(path)
    try:
        remains = files.read(place / PART_MANIFEST)
    except OSError:
        remains = b""
    if _is_complete(place, actual, entry, dimensions, remains):
        return Condition(actual, [fault])
    with contextlib.suppress(CorruptVersionError, FormatError):
        PartManifest.from_json(remains, file=PART_MANIFEST)
        return Condition({}, [fault], is_another=True)
    if f'"part": "{entry.name}"'.encode() not in remains:
        remains = b""
    sound = {
        name: checksums
        for name, checksums in actual.items()
        if any(checksums[kind].encode() in remains for kind in ("sha256", "xxh3"))
    }
    named = [name for name in actual if name not in sound and json.dumps(name).encode() in remains]
    shown = f"{place.parent.name}/{place.name}"
    others = [damage_error(f"{shown}/{name}", f"does not match the remains of {PART_MANIFEST}") for name in named]
    return Condition(sound, [fault, *others])


def _is_complete(place: Path, actual: Files, entry: PartEntry, dimensions: int | None, remains: bytes) -> bool:
    """Return whether the version was published with exactly these files in a part."""
    try:
        with closing(SQLiteDocumentStore(place / DOCSTORE, access="read")) as docstore:
            documents, chunks = len(docstore.records()), len(docstore)
    except _UNREADABLE:
        return False
    merged = {match[1].decode() for match in _MERGED_FROM.finditer(remains)}
    with contextlib.suppress(*_UNREADABLE):
        merged.add(_read_copy(place).get("merged_from"))
    return any(
        files.xxh3_of(
            PartManifest(
                part=entry.name,
                documents=documents,
                chunks=chunks,
                dimensions=length,
                merged_from=merged_from,
                files=actual,
            ).to_json()
        )
        == entry.xxh3
        for merged_from, length in itertools.product({None, *merged}, {None, dimensions})
    )


def records_of_part(place: Path, condition: Condition) -> tuple[list[DocumentRecord], Mapping[str, Facts]]:
    """Return the records of the documents of a damaged part, and what the user's metadata of files may have been.

    Without the copy of the records, they come from the document store; if both are damaged, from what can be read of
    them. Both results are empty if nothing can.

    Args:
        place: Directory of the part.
        condition: Condition of its files.
    """
    readers = [] if condition.is_another else [(RECORDS, _records_in_copy), (DOCSTORE, _records_in_docstore)]
    for _, read in sorted(readers, key=lambda reader: reader[0] not in condition.sound):
        with contextlib.suppress(*_UNREADABLE):
            return read(place)
    return [], {}


def write_copy_of_records(
    directory: Path, records: Sequence[DocumentRecord], docstore: SQLiteDocumentStore, merged_from: str | None = None
) -> None:
    """Write a copy of the records of a part, and of the user's metadata of files; it is not synced.

    Args:
        directory: Directory of the part.
        records: The records.
        docstore: Its document store.
        merged_from: As in the manifest of the part, which is made anew with it if it is damaged.
    """
    content = {"records": [asdict(record) for record in records], "facts": _facts_in_docstore(records, docstore)}
    if merged_from is not None:
        content["merged_from"] = merged_from
    data = json.dumps(content, ensure_ascii=False).encode()
    path = directory / RECORDS
    files.let_write(path, lambda: path.write_bytes(data))


def _facts_in_docstore(records: Sequence[DocumentRecord], docstore: SQLiteDocumentStore) -> dict[str, Facts]:
    with_facts = (records[at].doc_id for at in RecordIndex(records).with_facts)
    frames = ((doc_id, load_frame(docstore, doc_id)) for doc_id in with_facts)
    return {doc_id: facts_of(frame) for doc_id, frame in frames if frame is not None}


def _facts_in(version: OpenVersion, doc_id: str) -> Facts:
    frame = version.frame(doc_id)
    return () if frame is None else facts_of(frame)


def _read_copy(place: Path) -> dict[str, Any]:
    return dict(json.loads(files.read(place / RECORDS)))


def _records_in_copy(place: Path) -> tuple[list[DocumentRecord], Mapping[str, Facts]]:
    content = _read_copy(place)
    return [DocumentRecord(**record) for record in content["records"]], dict(content["facts"])


def _records_in_docstore(place: Path) -> tuple[list[DocumentRecord], Mapping[str, Facts]]:
    with closing(SQLiteDocumentStore(place / DOCSTORE, access="read")) as docstore:
        records = [DocumentRecord(**record) for record in docstore.records()]
        return records, _facts_in_docstore(records, docstore)
