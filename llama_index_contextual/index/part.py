"""Parts of versions: immutable directories with documents, their chunks and the indexes of them.

Several versions can share a part, and each may leave out some of its documents (`Part.gone`). Within a process, all
versions that are open at the same time share the open files of a part. Files whose checksums have been verified are not
verified again as long as their inode, size and modification time are the same.

A reader verifies all files of a part before it uses any of them. A writer that only adds documents verifies the files
that it reads, which are the document stores, and checks only the sizes of the others. Publishing neither reads nor
copies those files, and the new version keeps the original checksums of the part, so readers still detect damage. Before
a part is copied, all its files are verified (`Part.require_sound`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import files
from llama_index_contextual.index.bm25 import LexicalIndexBuilder, TermCounts
from llama_index_contextual.index.documents import document_entry
from llama_index_contextual.index.manifest import (
    BM25_DIRECTORY,
    BORN_FILE,
    BUILDING,
    DOCSTORE,
    DOCUMENTS_DIRECTORY,
    FAISS_FILE,
    PART_MANIFEST,
    RECORDS,
    DocumentRecord,
    Files,
    Manifest,
    PartEntry,
    PartManifest,
    RecordIndex,
    check_contents,
    check_files,
    check_headers,
    checksum,
    damage_error,
    part_directory,
    read_part,
)
from llama_index_contextual.index.nodes import FRAMES, Nodes, NodeTable

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, Document
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.index.qdrant import Key
    from llama_index_contextual.index.remote import RemoteVectorWriter
    from llama_index_contextual.index.vectors import VectorWriter

T = TypeVar("T")

_CHECKSUM = "xxh3"
_REMEMBERED = 64  # number of closed parts whose descriptions and records are kept in memory

Ranges = Sequence[tuple[int, int]]
"""Numbers in ascending order, as ranges (first, last)."""

FileStates = Mapping[str, tuple[int, int, int]]
"""Inode, size and time of modification of each file."""


class Description:
    """State of the files of a part when this process last read them.

    Args:
        directory: Directory of the part.
        entry: Entry of the part in the manifest of a version.
        files: The files.
        states: State of the files before they were read; None if they must be read again next time.

    Attributes:
        records: The records of its documents, once they have been read.
        compared: Names of the files whose checksums have been verified.
    """

    def __init__(self, directory: Path, entry: PartEntry, files: Files, states: FileStates | None = None) -> None:
        self.directory = directory
        self.entry = replace(entry, gone=())
        self.files = files
        self.records: RecordIndex | None = None
        self.compared: set[str] = set()
        self._states = states

    def is_valid(self, entry: PartEntry) -> bool:
        """Return whether the files have not changed, given the entry of the part in another version."""
        if entry.xxh3 != self.entry.xxh3:
            return False
        return self._states is not None and self._states == file_states(self.directory, self._states)

    def compare(self, names: Iterable[str]) -> None:
        """Compare files with their checksums, unless this has already been done.

        Raises:
            CorruptVersionError: A file is missing or has changed.
        """
        remaining = {name: self.files[name] for name in names if name not in self.compared}
        check_contents(self.directory, remaining, "xxh3")
        self.compared.update(remaining)


def file_states(directory: Path, names: Iterable[str]) -> FileStates | None:
    """Return the state of files, or None if one of them is missing."""
    folder = os.fspath(directory)
    try:
        states = {name: os.stat(os.path.join(folder, name)) for name in names}
    except OSError:
        return None
    return {name: (state.st_ino, state.st_size, state.st_mtime_ns) for name, state in states.items()}


class _OpenFiles:
    """The open files of a part, shared by all versions in this process.

    Attributes:
        description: The files.
        users: Number of versions that use them.
    """

    def __init__(self, description: Description) -> None:
        self.description = description
        self.users = 0
        self._lock = threading.RLock()
        self._values: dict[str, Any] = {}

    def get(self, name: str, make: Callable[[], T]) -> T:
        """Return the result of the first call of `make` for a name."""
        with self._lock:
            if name not in self._values:
                self._values[name] = make()
            return cast(T, self._values[name])

    def close(self) -> None:
        """Close the files; they are opened again when they are used."""
        with self._lock:
            if (docstore := self._values.get(DOCSTORE)) is not None:
                docstore.close()
            self._values.clear()


class Part:
    """An open part of a version, without removed documents.

    Its files are opened when they are first used, and closed when all versions have released them. Rows and document
    numbers include removed documents; see `live` and `live_documents`.

    Args:
        opened: Its open files.
        gone: Numbers of the removed documents.
    """

    def __init__(self, opened: _OpenFiles, gone: Ranges = ()) -> None:
        self.gone = gone
        self.directory = opened.description.directory
        self.files = opened.description.files
        self._opened = opened

    # ---- files, which all versions share -----------------------------------------------------------------------------

    @property
    def entry(self) -> PartEntry:
        """The entry of the part in the manifest of the version."""
        return replace(self._opened.description.entry, gone=self.gone)

    def require_sound(self) -> None:
        """Compare all files with their checksums before they are copied.

        Raises:
            CorruptVersionError: A file is missing or has changed.
        """
        self._opened.description.compare(self.files)

    def release(self) -> None:
        """Close the files if no other version uses the part."""
        if _parts.release(self._opened):
            self._opened.close()
        for name in ("docstore", "index"):
            self.__dict__.pop(name, None)

    @property
    def has_semantic(self) -> bool:
        """Whether the part has vectors."""
        return FAISS_FILE in self.files or BORN_FILE in self.files

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(int(entry["bytes"]) for entry in self.files.values())

    @cached_property
    def docstore(self) -> NodeTable:
        """The chunks."""
        return self.shared(DOCSTORE, lambda: NodeTable(self.directory / DOCSTORE, access="read"))

    @cached_property
    def index(self) -> Any:
        """The FAISS index, memory-mapped."""
        from llama_index_contextual.index.vectors import read_index

        return self.shared(FAISS_FILE, lambda: read_index(self.directory / FAISS_FILE))

    @property
    def born(self) -> NDArray[np.int32]:
        """The version in which the vector of each row was added, if an engine stores the vectors; shape (rows,)."""
        return self.shared(BORN_FILE, lambda: files.mapped(self.directory / BORN_FILE, np.int32))

    def vector_keys(self, rows: NDArray[np.int64] | None = None) -> list[Key]:
        """Return the keys under which an engine stores the vectors of the given rows, or of all live rows."""
        if BORN_FILE not in self.files:
            return []
        wanted = (np.arange(len(self.born)) if self.rows is None else self.rows) if rows is None else rows
        ids = self.docstore.ids
        return [(ids[row], born) for row, born in zip(wanted.tolist(), self.born[wanted].tolist(), strict=True)]

    def load_terms(self) -> TermCounts:
        """Open the terms of the chunks."""
        return TermCounts.load(self.directory / BM25_DIRECTORY, len(self.document_of))

    def load_document_terms(self) -> TermCounts:
        """Open the terms of the document entries; documents without chunks have no entry."""
        return TermCounts.load(self.directory / DOCUMENTS_DIRECTORY, int(np.count_nonzero(self.chunks_of)))

    @cached_property
    def record_index(self) -> RecordIndex:
        """The records of all documents, indexed by number, id, origin and content."""
        description = self._opened.description
        if description.records is None:
            description.records = RecordIndex([DocumentRecord(**record) for record in self.docstore.records()])
        return description.records

    @property
    def chunks_of(self) -> NDArray[np.int64]:
        """The number of chunks of each document; shape (documents,)."""
        return self.record_index.chunks

    @cached_property
    def document_of(self) -> NDArray[np.int32]:
        """The number of the document of each row; shape (rows,)."""
        documents = np.arange(len(self.chunks_of), dtype=np.int32)
        return self.shared("document_of", lambda: np.repeat(documents, self.chunks_of))

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return an object created from the files of this part and shared by all versions."""
        return self._opened.get(name, make)

    # ---- what of it the version contains -----------------------------------------------------------------------------

    @cached_property
    def live_documents(self) -> NDArray[np.bool_] | None:
        """Which documents are live, by number; None if all are."""
        if not self.gone:
            return None
        live = np.ones(len(self.chunks_of), dtype=np.bool_)
        for first, last in self.gone:
            live[first : last + 1] = False
        return live

    @cached_property
    def live_entries(self) -> NDArray[np.bool_] | None:
        """Which entries of the document index are live, or None if all are; documents without chunks have no entry."""
        return None if self.live_documents is None else self.live_documents[self.chunks_of > 0]

    @cached_property
    def live(self) -> NDArray[np.bool_] | None:
        """Which rows of the part are live; None if all are."""
        return None if self.live_documents is None else self.live_documents[self.document_of]

    @cached_property
    def rows(self) -> NDArray[np.int64] | None:
        """The live rows of the part; None if all are live."""
        return None if self.live is None else np.flatnonzero(self.live)

    @cached_property
    def size(self) -> int:
        """Number of live rows."""
        return int(self.chunks_of.sum()) if self.rows is None else len(self.rows)

    @cached_property
    def records(self) -> Sequence[DocumentRecord]:
        """The records of the live documents."""
        records, live = self.record_index.records, self.live_documents
        return records if live is None else [records[at] for at in np.flatnonzero(live).tolist()]

    def has(self, doc_id: str) -> bool:
        """Return whether a document is live in this part."""
        number = self.record_index.by_id.get(doc_id)
        return number is not None and (self.live_documents is None or bool(self.live_documents[number]))

    def is_live(self, row: int) -> bool:
        """Return whether a row of the part is live."""
        return self.live is None or bool(self.live[row])

    def without(self, doc_ids: Iterable[str]) -> Part:
        """Return the part with more documents removed; it is released together with this one."""
        numbers = {self.record_index.by_id[doc_id] for doc_id in doc_ids if self.has(doc_id)}
        if not numbers:
            return self
        gone = {number for first, last in self.gone for number in range(first, last + 1)}
        return Part(self._opened, ranges(gone | numbers))

    def mask(self, filters: MetadataFilters | None) -> NDArray[np.bool_] | None:
        """Return which of the live rows pass the filters, or None without filters."""
        mask = self.docstore.mask(filters)
        return mask if mask is None or self.rows is None else mask[self.rows]


@dataclass(frozen=True)
class DocumentFrame:
    """Data to reconstruct a Document from its chunks.

    Attributes:
        metadata: The Document's metadata, including pages and headings.
        excluded_embed: Metadata keys that are not embedded.
        excluded_llm: Metadata keys that are not shown to the LLM.
        gaps: Text that is not in any chunk, such as white space between chunks, as (start, text).
    """

    metadata: Mapping[str, Any]
    excluded_embed: Sequence[str]
    excluded_llm: Sequence[str]
    gaps: Sequence[tuple[int, str]]

    @classmethod
    def of(cls, document: Document, spans: Sequence[tuple[int, int]]) -> DocumentFrame:
        """Return the frame of a document, given the spans of its chunks, which may overlap."""
        gaps, at = [], 0
        for start, end in (*sorted(spans), (len(document.text), len(document.text))):
            if start > at:
                gaps.append((at, document.text[at:start]))
            at = max(at, end)
        return cls(
            metadata=document.metadata,
            excluded_embed=document.excluded_embed_metadata_keys,
            excluded_llm=document.excluded_llm_metadata_keys,
            gaps=gaps,
        )


def store_frame(docstore: NodeTable, doc_id: str, frame: DocumentFrame) -> None:
    """Store the frame of a document in a version that is being built."""
    content = asdict(frame)
    docstore.put_extra(FRAMES, doc_id, {**content, _CHECKSUM: checksum(content)})


def load_frame(docstore: Nodes, doc_id: str, *, check: bool = False) -> DocumentFrame | None:
    """Return the frame of a document stored by `store_frame`, or None.

    Raises:
        ValueError: `check` is set, and the frame does not match its checksum.
    """
    if (raw := docstore.get_extra(FRAMES, doc_id)) is None:
        return None
    expected = raw.pop(_CHECKSUM)
    if check and expected != checksum(raw):
        raise ValueError(f"The frame of {doc_id!r} has changed.")
    return DocumentFrame(**raw)


class PartWriter:
    """Writer of a part.

    Args:
        directory: Directory of the part, from `versions.next_part`.
        config: Settings of the project.
        vectors: Writer of the vectors; None without a semantic index.

    Attributes:
        records: Records of the documents that were added.
        chunks: Number of their chunks.
    """

    def __init__(
        self, directory: Path, config: ProjectConfig, vectors: VectorWriter | RemoteVectorWriter | None
    ) -> None:
        self.directory = directory
        self.records: list[DocumentRecord] = []
        self.chunks = 0
        self._docstore = NodeTable(directory / DOCSTORE)
        self._vectors = vectors
        self._lexical = LexicalIndexBuilder(language=config.language) if config.builds_lexical else None
        self._documents = LexicalIndexBuilder(language=config.language) if config.builds_lexical else None

    def known(self, node_ids: Sequence[str]) -> list[str]:
        """Return the ids among `node_ids` of nodes that the part contains."""
        return self._docstore.known(node_ids)

    def add(
        self,
        record: DocumentRecord,
        nodes: Sequence[BaseNode],
        vectors: NDArray[np.float32] | None,
        frame: DocumentFrame | None,
    ) -> None:
        """Add a document; see `VersionBuilder.append`."""
        self.records.append(record)
        if frame is not None:
            store_frame(self._docstore, record.doc_id, frame)
        if not nodes:
            return
        self.chunks += len(nodes)
        # The vectors are stored only in the index.
        self._docstore.add(
            [node if node.embedding is None else node.model_copy(update={"embedding": None}) for node in nodes]
        )
        if self._vectors is not None and vectors is not None:
            self._vectors.add(record.doc_id, nodes, vectors)
        if self._lexical is not None and self._documents is not None:
            from llama_index.core.schema import MetadataMode

            self._lexical.add_texts(node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes)
            self._documents.add_texts([document_entry(nodes)])

    def copy(self, part: Part) -> None:
        """Add the live documents of another part.

        Raises:
            CorruptVersionError: A file of the part has changed since it was published.
        """
        part.require_sound()
        records = part.records
        self.records += records
        self._docstore.copy_from(part.docstore, part.live, {record.doc_id for record in records})
        if self._vectors is not None and part.size:
            self._vectors.copy(part)
        if self._lexical is not None and self._documents is not None:
            self._lexical.add_counts(part.load_terms(), part.live)
            self._documents.add_counts(part.load_document_terms(), part.live_entries)
        self.chunks += part.size

    def finish(self) -> PartEntry:
        """Write the indexes and complete the part: sync it, write its manifest, verify it and rename it.

        After this, the part can be listed in a version.
        """
        self._docstore.write_records([asdict(record) for record in self.records])
        _write_records(self.directory, self.records)
        self._docstore.index_metadata()
        ids = self._docstore.ids
        files.let_write(self.directory / DOCSTORE, self._docstore.close)
        dimensions = self._vectors.finish(self.directory, ids) if self._vectors is not None and self.chunks else None
        if self._lexical is not None and self._documents is not None:
            self._lexical.build().save(self.directory / BM25_DIRECTORY)
            self._documents.build().save(self.directory / DOCUMENTS_DIRECTORY)
        name = self.directory.name.removesuffix(BUILDING)
        manifest = PartManifest(
            part=name,
            documents=len(self.records),
            chunks=self.chunks,
            dimensions=dimensions,
            files=_describe_files(self.directory),
        )
        content = manifest.to_json()
        files.write(self.directory / PART_MANIFEST, content)
        for directory in sorted({path.parent for path in files.walk(self.directory)}):
            files.sync_directory(directory)
        _check_built(self.directory, manifest)
        files.rename(self.directory, self.directory.with_name(name))
        return PartEntry(name=name, xxh3=files.xxh3_of(content))

    def discard(self) -> None:
        """Remove the unfinished part."""
        self._docstore.close()
        files.remove_tree(self.directory)


def _describe_files(directory: Path) -> dict[str, dict[str, object]]:
    descriptions: dict[str, dict[str, object]] = {}
    for path in files.walk(directory):
        files.sync_file(path)
        descriptions[path.relative_to(directory).as_posix()] = files.describe(path)
    return descriptions


def _check_built(building: Path, manifest: PartManifest) -> None:
    check_files(building, manifest.files, "size")
    check_headers(building, manifest.files)
    with contextlib.closing(NodeTable(building / DOCSTORE, access="read")) as docstore:
        if len(docstore) != manifest.chunks:
            raise damage_error(DOCSTORE, f"contains {pluralize(len(docstore), 'chunk')} instead of {manifest.chunks}")


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges (first, last).

    Example:
        >>> ranges([7, 1, 2, 3])
        [(1, 3), (7, 7)]
    """
    result: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if result and number == result[-1][1] + 1:
            result[-1] = result[-1][0], number
        else:
            result.append((number, number))
    return result


def open_parts(directory: Path, manifest: Manifest, reads: Collection[str] | None = None) -> list[Part]:
    """Open the parts of a version; the caller must release them.

    Args:
        directory: Directory of the version.
        manifest: Its manifest.
        reads: Names of the files in each part to compare with their checksums (None for all); only the sizes of the
            other files are checked.

    Raises:
        CorruptVersionError: A file is missing or has changed.
        FormatError: A part was written by a newer release.
    """
    with contextlib.ExitStack() as opened:
        parts: list[Part] = []
        for entry in manifest.parts:
            parts.append(Part(_parts.open(part_directory(directory, entry.name), entry, reads), entry.gone))
            opened.callback(parts[-1].release)  # unless all can be opened
        opened.pop_all()
    return parts


def open_written(directory: Path, entry: PartEntry) -> Part:
    """Open a part that this process has just written, computing the checksums from its files.

    Args:
        directory: Directory of the part.
        entry: Its entry in the manifest of a version.

    Raises:
        CorruptVersionError: A file is missing or its size has changed since it was written.
    """
    description = _describe(directory, entry)
    check_files(directory, description.files, "size")
    description.compared.update(description.files)
    return Part(_parts.add(description))


class _OpenParts:
    """The open files of all parts in this process, and the descriptions of recently used parts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[str, _OpenFiles] = weakref.WeakValueDictionary()
        self._descriptions: LRUCache[str, Description] = LRUCache(_REMEMBERED)

    def open(self, directory: Path, entry: PartEntry, reads: Collection[str] | None) -> _OpenFiles:
        """Return the files of a part after those named in `reads` (all if None) have been verified."""
        key = os.path.abspath(directory)
        with self._lock:
            opened = self._open.get(key)
        description = self._descriptions.get(key) if opened is None else opened.description
        if description is None or not description.is_valid(entry):
            description = _describe(directory, entry)
        if reads is not None:
            check_files(directory, description.files, "size")
        description.compare(description.files if reads is None else reads)
        return self.add(description)

    def add(self, description: Description) -> _OpenFiles:
        """Return the files of a part with this description."""
        key = os.path.abspath(description.directory)
        with self._lock:
            opened = self._open.get(key)
            if opened is None or opened.description is not description:
                opened = self._open[key] = _OpenFiles(description)
                self._descriptions.put(key, description)
            opened.users += 1
            return opened

    def release(self, opened: _OpenFiles) -> bool:
        """Decrease the number of users by one, and return whether none are left."""
        key = os.path.abspath(opened.description.directory)
        with self._lock:
            opened.users -= 1
            if opened.users == 0 and self._open.get(key) is opened:
                del self._open[key]
            return opened.users == 0


def _describe(directory: Path, entry: PartEntry) -> Description:
    """Read the description of a part.

    Raises:
        CorruptVersionError: The description is missing or damaged, or is not the one that the version refers to.
        FormatError: The part was written by a newer release.
    """
    before = file_states(directory, [PART_MANIFEST])
    described = read_part(directory, entry).files
    states = file_states(directory, described)
    return Description(directory, entry, described, states=states and before and {**before, **states})


_parts = _OpenParts()


# ---- copy of the records, by which a damaged part names its documents ------------------------------------------------

_UNREADABLE = (OSError, sqlite3.Error, ValueError, TypeError, KeyError, AttributeError)


def _write_records(place: Path, records: Sequence[DocumentRecord]) -> None:
    """Write a copy of the records of a part, with its own checksum, without syncing."""
    content = {"records": [asdict(record) for record in records]}
    data = json.dumps({**content, "xxh3": checksum(content)}).encode()
    path = place / RECORDS
    files.let_write(path, lambda: path.write_bytes(data))


def records_of_part(place: Path, gone: Sequence[tuple[int, int]] = ()) -> list[DocumentRecord]:
    """Return the records of a part that may be damaged, from the copy if possible, or from the document store.

    Args:
        place: Directory of the part.
        gone: Numbers of the documents that are left out, as ranges (first, last).

    Returns:
        The records; none if they cannot be read.
    """
    for read in (_records_in_copy, _records_in_docstore):
        with contextlib.suppress(*_UNREADABLE):
            records = read(place)
            for first, last in reversed(gone):
                del records[first : last + 1]
            return records
    return []


def has_sound_records(place: Path) -> bool:
    """Return whether the copy of the records of a part matches its checksum."""
    try:
        return bool(_records_in_copy(place))
    except _UNREADABLE:
        return False


def _records_in_copy(place: Path) -> list[DocumentRecord]:
    content = json.loads(files.read(place / RECORDS))
    if content.pop("xxh3") != checksum(content):
        raise ValueError("The copy of the records has changed.")
    return [DocumentRecord(**record) for record in content["records"]]


def _records_in_docstore(place: Path) -> list[DocumentRecord]:
    with contextlib.closing(NodeTable(place / DOCSTORE, access="read")) as docstore:
        return [DocumentRecord(**record) for record in docstore.records()]
