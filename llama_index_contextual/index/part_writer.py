"""Write a part of a version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.figures import Figure
from llama_index_contextual.index import files
from llama_index_contextual.index.derived import DerivedBuilder, current_entry
from llama_index_contextual.index.languages import language_of_document
from llama_index_contextual.index.manifest import (
    BM25_DIRECTORY,
    BUILDING,
    DOCSTORE,
    DOCUMENTS_DIRECTORY,
    FIGURES_DIRECTORY,
    DocumentRecord,
    FileEntry,
    PartEntry,
    check_files,
    damage_error,
    write_records,
)
from llama_index_contextual.index.nodes import FRAMES, NodeTable
from llama_index_contextual.index.part import DocumentFrame, Part, open_part
from llama_index_contextual.index.pictures import PictureWriter, figures_of

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

    from llama_index_contextual.index.remote import RemoteVectorWriter
    from llama_index_contextual.index.vectors import VectorWriter


class PartWriter:
    """Writer for a part.

    Args:
        directory: Directory of the part, as returned by `versions.next_part`.
        config: Settings of the project.
        vectors: Writer for the vectors; None if there is no semantic index.

    Attributes:
        records: Records of the documents that were added.
        chunks: Number of chunks of these documents.
    """

    def __init__(
        self, directory: Path, config: ProjectConfig, vectors: VectorWriter | RemoteVectorWriter | None
    ) -> None:
        self.directory = directory
        self.records: list[DocumentRecord] = []
        self.chunks = 0
        self._docstore = NodeTable(directory / DOCSTORE)
        self._vectors = vectors
        self._config = config
        self._entry = current_entry(config)
        self._derived = DerivedBuilder(has_terms=config.builds_lexical)
        self._pictures = PictureWriter(directory)

    def existing_ids(self, node_ids: Sequence[str]) -> list[str]:
        """Return the subset of the given node ids that the part already contains."""
        return self._docstore.existing_ids(node_ids)

    def add(
        self,
        record: DocumentRecord,
        nodes: Sequence[BaseNode],
        vectors: NDArray[np.float32] | None,
        frame: DocumentFrame | None,
        read_picture: Callable[[Figure], bytes | None] = lambda figure: None,
    ) -> None:
        """Add a document; see `VersionBuilder.append`.

        Args:
            record: Record of the document.
            nodes: Its chunks.
            vectors: Their vectors.
            frame: Its frame.
            read_picture: Function that returns the picture of a figure, or None if it is lost.
        """
        record = self._with_language(record, nodes)
        self.records.append(record)
        if frame is not None:
            self._docstore.put_extra(FRAMES, record.doc_id, asdict(frame))
            self._pictures.add(figures_of(frame.metadata), read_picture)
        if not nodes:
            return
        self.chunks += len(nodes)
        # The vectors are stored only in the index.
        self._docstore.add(
            [node if node.embedding is None else node.model_copy(update={"embedding": None}) for node in nodes]
        )
        if self._vectors is not None and vectors is not None:
            self._vectors.add(record.doc_id, nodes, vectors)
        self._derived.add(nodes, record.language)

    def _with_language(self, record: DocumentRecord, nodes: Sequence[BaseNode]) -> DocumentRecord:
        language = language_of_document(record.doc_id, nodes, self._config)
        return record if language == record.language else replace(record, language=language)

    def copy(self, part: Part, dropped: Collection[str], *, remake: bool) -> None:
        """Add documents of another part.

        Args:
            part: The part.
            dropped: Ids of the documents that are not added.
            remake: Whether to make the derived data again instead of copying them.
        """
        is_kept = np.array([record.doc_id not in dropped for record in part.records], dtype=np.bool_)
        records = {record.doc_id: record for record in part.records if record.doc_id not in dropped}
        kept_rows = is_kept[part.document_of]
        self._docstore.copy_from(part.docstore, kept_rows, set(records))
        if self._vectors is not None and kept_rows.any():
            self._vectors.copy(part, np.flatnonzero(kept_rows))
        if remake:
            for record, nodes in part.documents(is_kept):
                records[record.doc_id] = self._with_language(record, nodes)
                self._derived.add(nodes, records[record.doc_id].language)
        else:
            if self._derived.terms:
                self._derived.terms[BM25_DIRECTORY].add_counts(part.terms, kept_rows)
                self._derived.terms[DOCUMENTS_DIRECTORY].add_counts(part.document_terms, is_kept[part.chunks_of > 0])
            self._derived.units.add_units(part.units.take(np.flatnonzero(kept_rows)))
        if part.pictures:
            names = {figure.file_name for doc_id in records for figure in part.figures_of(doc_id)}
            sizes = {name: size for name, size in part.pictures.items() if name in names}
            self._pictures.copy(part.figures_folder, sizes)
        self.records += records.values()
        self.chunks += int(np.count_nonzero(kept_rows))

    def finish(self) -> Part:
        """Write the indexes, sync and verify the files, rename the part, and open it.

        Afterwards, the part can be listed in the manifest of a version.
        """
        write_records(self.directory, self.records)
        self._docstore.index_metadata()
        ids = self._docstore.ids
        files.let_write(self.directory / DOCSTORE, self._docstore.close)
        if self._vectors is not None and self.chunks:
            self._vectors.finish(self.directory, ids)
        self._derived.save(self.directory)
        self._pictures.finish()
        described = _describe_files(self.directory)
        for directory in sorted({path.parent for path in files.walk(self.directory)}):
            files.sync_directory(directory)
        self._check(described)
        target = self.directory.with_name(self.directory.name.removesuffix(BUILDING))
        files.rename(self.directory, target)
        entry = PartEntry(name=target.name, files=described, derived=self._entry)
        return open_part(target, entry, is_new=True)

    def _check(self, described: Mapping[str, FileEntry]) -> None:
        check_files(self.directory, described, "size")
        with contextlib.closing(NodeTable(self.directory / DOCSTORE, access="read")) as docstore:
            if len(docstore) != self.chunks:
                fault = f"contains {pluralize(len(docstore), 'chunk')} instead of {self.chunks}"
                raise damage_error(DOCSTORE, fault)

    def discard(self) -> None:
        """Remove the unfinished part."""
        self._docstore.close()
        files.remove_tree(self.directory)


def _describe_files(directory: Path) -> dict[str, FileEntry]:
    descriptions: dict[str, FileEntry] = {}
    for path in files.walk(directory):
        files.sync_file(path)
        if path.parent.name == FIGURES_DIRECTORY:  # listed in `FIGURES_FILE`
            continue
        descriptions[path.relative_to(directory).as_posix()] = FileEntry(
            bytes=path.stat().st_size, xxh3=files.xxh3(path), sha256=files.sha256(path)
        )
    return descriptions
