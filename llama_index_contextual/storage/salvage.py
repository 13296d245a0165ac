"""Read what is sound in a damaged version, so that `rebuild` restores the documents of its damaged parts.

If the document store of a damaged part is sound, the chunks are taken from it, and the vectors too if their file is
sound. Otherwise the documents are read again from their files, if these are known and have not changed.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import CorruptVersionError, FormatError, ReadError, Remedy
from llama_index_contextual.readers.discovery import FileRef, content_hash, discover
from llama_index_contextual.storage import files
from llama_index_contextual.storage.check import check_contents, part_directory, read_manifest, read_part
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.manifest import (
    DOCSTORE,
    FAISS_FILE,
    PART_MANIFEST,
    RECORDS,
    DocumentRecord,
    Files,
    PartEntry,
    PartManifest,
    damage_error,
)
from llama_index_contextual.storage.part import Description, LivePart, Part, open_parts
from llama_index_contextual.storage.records import RecordIndex
from llama_index_contextual.storage.remote_check import lost_documents
from llama_index_contextual.storage.sources import content_hash_with, facts_of, read_sources
from llama_index_contextual.storage.version import OpenVersion, load_frame

Facts = Sequence[Mapping[str, Any]]

_LISTED = 20  # number of documents that an error names; the exception has all of them


def open_or_salvage(directory: Path) -> OpenVersion:
    """Open a version whose files may be damaged: as a `DamagedVersion` if they are.

    Raises:
        CorruptVersionError: The manifest of the version is damaged.
        FormatError: A file was written by a newer release.
    """
    try:
        version = OpenVersion(directory, check="sha256")
    except (CorruptVersionError, OSError):
        return DamagedVersion(directory)
    if version.is_remote and lost_documents(version):
        version.close()
        return DamagedVersion(directory)
    return version


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

    Attributes:
        faults: The error of each damaged part.
        damaged: Ids of the documents of the damaged parts that can be read.
        originals: Files of the other documents of damaged parts.
        lost: Documents that cannot be restored, and why.
        unnamed: Number of further documents that cannot be restored, and whose ids cannot be read.

    Raises:
        CorruptVersionError: The manifest of the version is damaged.
        FormatError: A part was written by a newer release.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.name = directory, directory.name
        whole = read_manifest(directory)
        self.faults: list[Exception] = []
        self.originals: list[Original] = []
        self.lost: dict[str, str] = {}
        sound: list[PartEntry] = []
        readable: list[LivePart] = []
        unreadable: list[DocumentRecord] = []
        self._sources = read_sources(directory.parent.parent)
        for entry in (None,) if whole.files else whole.parts:
            place = directory if entry is None else part_directory(directory, entry.name)
            described, fault = (whole.files, None) if entry is None else _describe(place, entry, whole.dimensions)
            sound_files, faults = _sound_files(place, described)
            if fault is None and not faults and entry is not None:
                sound.append(entry)
                continue
            self.faults += [fault] if fault is not None else faults[:1]
            gone = () if entry is None else entry.gone
            if DOCSTORE in sound_files:
                records_of_whole = RecordIndex(whole.records) if entry is None else None
                part = Part(Description(place, entry, sound_files, records_of_whole, compared=sound_files))
                part.users = 1
                readable.append(LivePart(part, gone))
            else:
                records, facts = (list(whole.records), {}) if entry is None else _copy_of_records(place, sound_files)
                for first, last in reversed(gone):
                    del records[first : last + 1]
                unreadable += records
                self._find_originals(records, facts)
        self.manifest = replace(whole, parts=sound, files={}, records=())
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
            self._find_originals(records, facts)
        self.damaged = {record.doc_id for part in readable for record in part.records}
        self.unnamed = whole.documents - len(self.records) - len(unreadable)

    def _find_originals(self, records: Sequence[DocumentRecord], facts: Mapping[str, Facts]) -> None:
        for record in records:
            original = self._original(record, facts.get(record.doc_id, ()))
            if isinstance(original, str):
                self.lost[record.doc_id] = original
            else:
                self.originals.append(original)

    def _original(self, record: DocumentRecord, variants: Facts) -> Original | str:
        """Return the file of a document, or the reason why it cannot be read again."""
        if record.origin is None:
            return "it was not read from a file"
        if (path := self._sources.get(record.origin)) is None:
            return "the path of its file is not known"
        discovery = discover([path])
        if not discovery.files:
            return f"its file {discovery.skipped[0].reason}"
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


def _describe(place: Path, entry: PartEntry, dimensions: int | None) -> tuple[Files, Exception | None]:
    """Return the description of the files of a part, and the error if its manifest is damaged.

    A manifest that is made anew from sound files has the checksum that the version names.
    """
    try:
        return read_part(place, entry).files, None
    except FormatError:
        raise
    except CorruptVersionError as error:
        try:
            with closing(SQLiteDocumentStore(place / DOCSTORE, access="read")) as docstore:
                documents, chunks = len(docstore.records()), len(docstore)
            described = {path.relative_to(place).as_posix(): files.describe(path) for path in files.walk(place)}
        except (OSError, sqlite3.Error, ValueError):
            return {}, error
        described.pop(PART_MANIFEST, None)
        made = PartManifest(
            part=entry.name,
            documents=documents,
            chunks=chunks,
            dimensions=dimensions if FAISS_FILE in described else None,
            files=described,
        )
        return (described if files.xxh3_of(made.to_json()) == entry.xxh3 else {}), error


def _sound_files(place: Path, described: Files) -> tuple[Files, list[Exception]]:
    """Return the files that have their checksum, and the errors of the others."""
    sound: dict[str, Mapping[str, Any]] = {}
    faults: list[Exception] = []
    for name, expected in described.items():
        try:
            check_contents(place, {name: expected}, "sha256")
            sound[name] = expected
        except CorruptVersionError as error:
            faults.append(error)
        except OSError as error:
            shown = f"{place.parent.name}/{place.name}/{name}"
            faults.append(damage_error(shown, f"cannot be read ({error.strerror or error})"))
    return sound, faults


def records_of_part(place: Path, described: Files) -> list[DocumentRecord]:
    """Return the records of the documents of a damaged part; none if both its document store and its copy are damaged.

    Args:
        place: Directory of the part.
        described: Its files.
    """
    sound = _sound_files(place, {name: described[name] for name in (RECORDS, DOCSTORE) if name in described})[0]
    if RECORDS in sound:
        return _copy_of_records(place, sound)[0]
    if DOCSTORE in sound:
        with closing(SQLiteDocumentStore(place / DOCSTORE, access="read")) as docstore:
            return [DocumentRecord(**record) for record in docstore.records()]
    return []


def write_copy_of_records(directory: Path, records: Sequence[DocumentRecord], docstore: SQLiteDocumentStore) -> None:
    """Write a copy of the records of a part, and of the user's metadata of files; it is not synced.

    Args:
        directory: Directory of the part.
        records: The records.
        docstore: Its document store.
    """
    with_facts = (records[at].doc_id for at in RecordIndex(records).with_facts)
    frames = ((doc_id, load_frame(docstore, doc_id)) for doc_id in with_facts)
    facts = {doc_id: facts_of(frame) for doc_id, frame in frames if frame is not None}
    content = json.dumps({"records": [asdict(record) for record in records], "facts": facts}, ensure_ascii=False)
    path = directory / RECORDS
    files.let_write(path, lambda: path.write_bytes(content.encode()))


def _facts_in(version: OpenVersion, doc_id: str) -> Facts:
    frame = version.frame(doc_id)
    return () if frame is None else facts_of(frame)


def _copy_of_records(place: Path, sound: Files) -> tuple[list[DocumentRecord], Mapping[str, Facts]]:
    """Return the copy of the records of a part, and what the user's metadata of files may have been; or neither."""
    if RECORDS not in sound:
        return [], {}
    content = json.loads(files.read(place / RECORDS))
    return [DocumentRecord(**record) for record in content["records"]], content["facts"]
