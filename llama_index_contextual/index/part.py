"""Parts of versions: immutable directories with documents, their chunks and their indexes.

Several versions can share a part. Within a process, all versions that are open at the same time share its open files.
Every file is checked against its checksum before it is first used. The check is skipped while a version has the part
open and no inode, size or modification time has changed.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.embeddings.words import words_identity
from llama_index_contextual.figures import Figure
from llama_index_contextual.index import files
from llama_index_contextual.index.bm25 import TERMS_FILE, TermCounts
from llama_index_contextual.index.derived import OLDEST_READ, DerivedBuilder
from llama_index_contextual.index.fields import column_of
from llama_index_contextual.index.manifest import (
    ADDED_FILE,
    BM25_DIRECTORY,
    DOCSTORE,
    DOCUMENTS_DIRECTORY,
    FAISS_FILE,
    FIGURES_DIRECTORY,
    FIGURES_FILE,
    UNITS_FILE,
    DocumentRecord,
    Manifest,
    PartEntry,
    Records,
    check_files,
    part_directory,
    read_records,
)
from llama_index_contextual.index.nodes import FRAMES, NodeTable
from llama_index_contextual.index.pictures import figures_of, read_sizes
from llama_index_contextual.index.units import Units

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode, Document

    from llama_index_contextual.index.qdrant import Key

T = TypeVar("T")


class Part:
    """A part of one or more versions.

    The files are opened on first use and closed when no version uses them any more.

    Args:
        directory: Directory of the part.
        entry: Entry of the part in the manifest of a version.

    Attributes:
        files: Manifest entries of the files, by file name.
    """

    def __init__(self, directory: Path, entry: PartEntry) -> None:
        self.directory = directory
        self.entry = entry
        self.files = entry.files
        self._states = self._file_states()  # recorded before the files are verified
        self._users = 0
        self._lock = Lock()
        self._values: dict[str, Any] = {}

    # ---- sharing -----------------------------------------------------------------------------------------------------

    def acquire(self) -> Part:
        """Increment the part's user count and return the part."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """Decrement the part's user count, and close the files if it reaches zero.

        The files are reopened if they are needed later.
        """
        with self._lock:
            self._users -= 1
            if self._users == 0:
                if DOCSTORE in self._values:
                    self.docstore.close()
                self._values.clear()

    def is_unchanged(self) -> bool:
        """Return whether no file has changed since the files were verified."""
        return self._states is not None and self._states == self._file_states()

    def _file_states(self) -> list[tuple[int, int, int]] | None:
        """Return the inode, size and modification time of each file, or None if any file is missing."""
        try:
            states = [os.stat(self.directory / name) for name in self.files]
        except OSError:
            return None
        return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in states]

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return the value cached under a name; on first use, call `make` and cache the result.

        Closing the part clears the cache.
        """
        with self._lock:
            if name not in self._values:
                self._values[name] = make()
            return cast(T, self._values[name])

    # ---- content -----------------------------------------------------------------------------------------------------

    @property
    def has_semantic(self) -> bool:
        """True if the part has vectors."""
        return FAISS_FILE in self.files or ADDED_FILE in self.files

    @property
    def bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(entry.bytes for entry in self.files.values()) + sum(self.pictures.values())

    @property
    def figures_folder(self) -> Path:
        """Folder with the pictures of the figures."""
        return self.directory / FIGURES_DIRECTORY

    @property
    def pictures(self) -> Mapping[str, int]:
        """Names of the files with the pictures of figures, and their sizes."""
        return self.shared(FIGURES_FILE, lambda: read_sizes(self.directory)) if FIGURES_FILE in self.files else {}

    def figures_of(self, doc_id: str) -> list[Figure]:
        """Return the figures of a document that have a picture."""
        raw = self.docstore.get_extra(FRAMES, doc_id)
        return [] if raw is None else figures_of(raw["metadata"])

    @property
    def records(self) -> Records:
        """The records of the documents."""
        return self.shared("records", lambda: read_records(self.directory))

    @property
    def chunks_of(self) -> NDArray[np.int64]:
        """Number of chunks in each document; shape (documents,)."""
        return self.shared("chunks_of", lambda: np.array([record.chunks for record in self.records], dtype=np.int64))

    @property
    def document_of(self) -> NDArray[np.int32]:
        """Position of each row's document in `records`; shape (rows,)."""
        documents = np.arange(len(self.records), dtype=np.int32)
        return self.shared("document_of", lambda: np.repeat(documents, self.chunks_of))

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.document_of)

    @property
    def docstore(self) -> NodeTable:
        """The chunks."""
        return self.shared(DOCSTORE, lambda: self._with_fields(NodeTable(self.directory / DOCSTORE, access="read")))

    def _with_fields(self, table: NodeTable) -> NodeTable:
        """Make the fields of the documents available to the filters of their chunks."""
        records, document_of = self.records, self.document_of  # not `self`: a cycle would keep the files open
        table.document_column = lambda key: column_of(key, records, document_of)
        return table

    def documents(self, is_selected: NDArray[np.bool_]) -> Iterator[tuple[DocumentRecord, list[BaseNode]]]:
        """Yield each selected document that has chunks, with its chunks.

        Args:
            is_selected: For each document, whether it is selected; shape (documents,).
        """
        nodes = self.docstore.iterate()
        for selected, record in zip(is_selected.tolist(), self.records, strict=True):
            chunks = list(islice(nodes, record.chunks))
            if selected and chunks:
                yield record, chunks

    @property
    def index(self) -> Any:
        """The memory-mapped FAISS index."""
        from llama_index_contextual.index.faiss_index import read_index

        return self.shared(FAISS_FILE, lambda: read_index(self.directory / FAISS_FILE))

    @property
    def added_in(self) -> NDArray[np.int32]:
        """Number of the version that added each row's vector, if an engine stores the vectors; shape (rows,)."""
        return self.shared(ADDED_FILE, lambda: files.mmap(self.directory / ADDED_FILE, np.int32))

    def vector_keys(self, rows: NDArray[np.int64] | None = None) -> list[Key]:
        """Return the keys under which an engine stores the vectors of the given rows, or of all rows."""
        if ADDED_FILE not in self.files:
            return []
        ids, positions = self.docstore.ids, np.arange(self.size) if rows is None else rows
        return [
            (ids[row], added_in)
            for row, added_in in zip(positions.tolist(), self.added_in[positions].tolist(), strict=True)
        ]

    # ---- derived data ------------------------------------------------------------------------------------------------

    @property
    def terms(self) -> TermCounts:
        """Term counts of the chunks."""
        return self.shared(BM25_DIRECTORY, lambda: self._load_terms(BM25_DIRECTORY, self.size))

    @property
    def document_terms(self) -> TermCounts:
        """Term counts of the document entries, one for each document that has chunks."""
        entries = int(np.count_nonzero(self.chunks_of))
        return self.shared(DOCUMENTS_DIRECTORY, lambda: self._load_terms(DOCUMENTS_DIRECTORY, entries))

    def _load_terms(self, name: str, texts: int) -> TermCounts:
        if f"{name}/{TERMS_FILE}" not in self.files:
            return self.remade.terms[name].build()
        return TermCounts.load(self.directory / name, texts)

    @property
    def remade(self) -> DerivedBuilder:
        """The derived data, made from the chunks in memory, for a part that lacks a file or has an old one."""
        return self.shared("remade", self._remake)

    def _remake(self) -> DerivedBuilder:
        builder = DerivedBuilder(has_terms=self.entry.derived.language is not None)
        for record, nodes in self.documents(np.ones(len(self.records), dtype=np.bool_)):
            builder.add(nodes, record.language)
        return builder

    @property
    def units(self) -> Units:
        """The units of the chunks; without directions if these were made from other word vectors."""
        return self.shared(UNITS_FILE, self._load_units)

    def _load_units(self) -> Units:
        if UNITS_FILE not in self.files or self.entry.derived.edition < OLDEST_READ:
            return self.remade.units.build()
        units = Units.load(self.directory / UNITS_FILE)
        return units if self.entry.derived.words == words_identity() else units.without_directions()


def open_parts(directory: Path, manifest: Manifest) -> list[Part]:
    """Open the parts of a version. The caller must release them.

    Args:
        directory: Directory of the version.
        manifest: Manifest of the version.

    Raises:
        CorruptVersionError: A file is missing or has changed.
    """
    with contextlib.ExitStack() as opened:
        parts: list[Part] = []
        for entry in manifest.parts:
            parts.append(open_part(part_directory(directory, entry.name), entry))
            opened.callback(parts[-1].release)  # if a later part cannot be opened
        opened.pop_all()
    return parts


_parts: weakref.WeakValueDictionary[str, Part] = weakref.WeakValueDictionary()


def open_part(directory: Path, entry: PartEntry, *, is_new: bool = False) -> Part:
    """Verify the files of a part and return the part, which the caller must release.

    If this process has just written the files, only their sizes are checked.
    """
    key = os.path.abspath(directory)
    part = _parts.get(key)
    if part is None or part.entry != entry or not part.is_unchanged():
        part = Part(directory, entry)
        check_files(directory, entry.files, "size" if is_new else "xxh3")
        _parts[key] = part
    return part.acquire()


@dataclass(frozen=True)
class DocumentFrame:
    """Data needed to reconstruct a Document from its chunks.

    Attributes:
        metadata: The Document's metadata, including pages and headings.
        excluded_embed: Metadata keys that are not embedded.
        excluded_llm: Metadata keys that are not shown to the LLM.
        gaps: Pieces of text that are in no chunk, such as white space between chunks, as (start, text) pairs.
    """

    metadata: Mapping[str, Any]
    excluded_embed: Sequence[str]
    excluded_llm: Sequence[str]
    gaps: Sequence[tuple[int, str]]

    @classmethod
    def from_document(cls, document: Document, spans: Sequence[tuple[int, int]]) -> DocumentFrame:
        """Create the frame of a document from the spans of its chunks, which may overlap."""
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
