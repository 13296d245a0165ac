"""Build a version: keep documents of the previous version, write new documents to parts, merge parts, and publish.

A version keeps the parts of the previous version and adds a part with the new documents, so the time needed to add
documents does not depend on the size of the project. If a document is removed or changed, its part is rewritten without
it. To keep searches fast, small parts are merged when there are more than eight; see `merged_from`. A part whose
derived data are outdated is rewritten as well; see `index/derived.py`. Readers are not affected, because the parts that
they use remain in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from llama_index_contextual._version import __version__
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.figures import Figure, read_picture
from llama_index_contextual.index import versions
from llama_index_contextual.index.derived import is_outdated
from llama_index_contextual.index.languages import languages_of
from llama_index_contextual.index.manifest import DocumentRecord, Manifest
from llama_index_contextual.index.part import DocumentFrame, Part
from llama_index_contextual.index.part_writer import PartWriter
from llama_index_contextual.index.qdrant import drop_unpublished, use_engine
from llama_index_contextual.index.version import OpenVersion

if TYPE_CHECKING:
    from llama_index_contextual.index.remote import RemoteVectorWriter, RemoteVersion
    from llama_index_contextual.index.vectors import VectorWriter

PART_CHUNKS = 10_000
"""Maximum number of chunks in a part, which determines the time needed to change a document."""

MAX_SMALL_PARTS = 8
"""Maximum number of parts after the last full part, not counting parts that are being added."""

_FULL = 0.5  # fraction of the maximum at which a part counts as full and is not merged with others
_GROWTH = 2  # a part is merged with later parts if it is at most this many times as large as all of them together


@dataclass
class VersionBuilder:
    """Builder of a version.

    Attributes:
        project_dir: Folder of the project.
        config: Settings of the project.
        before: The previous version, or None; its documents are kept unless they are in `dropped`.
        dropped: Ids of the documents of the previous version that are not kept.
        appended: Number of documents that were added.
        remake: Whether to make all derived data again, even if they are current; see `index/derived.py`.
    """

    project_dir: Path
    config: ProjectConfig
    before: OpenVersion | None = None
    dropped: set[str] = field(default_factory=set)
    appended: int = 0
    remake: bool = False

    def __post_init__(self) -> None:
        versions.remove_leftovers(self.project_dir)
        self._remote = self._remote_version()
        self._name = versions.next_name(self.project_dir)
        self._parts: list[Part] = []
        self._opened: list[Part] = []
        self._writer: PartWriter | None = None
        self._dimensions = None if self.before is None else self.before.manifest.dimensions
        # When variants of the documents are compared, each variant is built in its own directory.
        self._shares = (
            self.before is not None
            and self.before.directory.parent.parent == self.project_dir
            and self.before.manifest.engine == self.config.engine
        )
        self._base: Sequence[Part] = self.before.parts if self.before is not None and self._shares else []

    def _remote_version(self) -> RemoteVersion | None:
        """Prepare the engine for the vectors of the new version, or return None if vectors are stored in files."""
        engine = use_engine(self.project_dir, self.config)
        if engine is None:
            return None
        # Imported here, because versions stored in files do not need it.
        from llama_index_contextual.index.remote import RemoteVersion

        drop_unpublished(self.project_dir, engine)
        return RemoteVersion(self.project_dir, engine, versions.next_name(self.project_dir))

    def _make_writer(self) -> PartWriter:
        directory = versions.next_part(self.project_dir, self._name)
        return PartWriter(directory, self.config, self._vector_writer() if self.config.builds_semantic else None)

    def _vector_writer(self) -> VectorWriter | RemoteVectorWriter:
        if self._remote is not None:
            return self._remote.writer()
        # Imported here, because faiss is slow to import.
        from llama_index_contextual.index.vectors import VectorWriter

        return VectorWriter()

    @property
    def documents(self) -> int:
        """Number of documents in the new version so far."""
        return self.appended + len(self._kept_ids())

    def _kept_ids(self) -> set[str]:
        """Return the ids of kept documents whose parts the new version shares with the previous version."""
        return {record.doc_id for part in self._base for record in part.records} - self.dropped

    def append(
        self,
        record: DocumentRecord,
        nodes: Sequence[BaseNode],
        vectors: NDArray[np.float32] | None,
        frame: DocumentFrame | None,
        pictures: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Add a document.

        Args:
            record: Record of the document.
            nodes: Chunks of the document.
            vectors: Unit vectors of the chunks, or None if there is no semantic index.
            frame: Frame of the document, or None if it was passed as nodes.
            pictures: Pictures of its figures, by their SHA-256 hash; others are taken from the previous version.

        Raises:
            InputError: The version already contains a chunk with the same id, or vectors of another length.
        """
        if duplicate := self._existing_id([node.node_id for node in nodes]):
            raise InputError(
                f"Node {duplicate!r} of {record.doc_id!r} has the id of a node of another document: assign a unique"
                f" id.",
                value=duplicate,
            )
        if vectors is not None and len(vectors):
            self._require_dimensions(vectors.shape[1])
        if self._writer is not None and self._writer.chunks + len(nodes) > PART_CHUNKS and self._writer.chunks:
            self._finish_part()
        if self._writer is None:
            self._writer = self._make_writer()
        self._writer.add(record, nodes, vectors, frame, partial(self._picture, pictures))
        self.appended += 1

    def _picture(self, pictures: Mapping[str, bytes], figure: Figure) -> bytes | None:
        """Return the picture of a figure, or None if it is neither among the pictures nor in the previous version."""
        if figure.sha256 in pictures:
            return pictures[figure.sha256]
        for part in () if self.before is None else self.before.parts:
            if figure.file_name in part.pictures:
                with suppress(CorruptVersionError):
                    return read_picture(part.figures_folder / figure.file_name)
        return None

    def _existing_id(self, node_ids: Sequence[str]) -> str | None:
        """Return one of the given ids that the new version already contains, or None if it contains none of them."""
        if self._writer is not None and (existing_ids := self._writer.existing_ids(node_ids)):
            return existing_ids[0]
        for part in (*self._base, *self._parts):
            for node_id, position in part.docstore.positions(node_ids).items():
                if part in self._parts or part.records[part.document_of[position - 1]].doc_id not in self.dropped:
                    return node_id
        return None

    def _require_dimensions(self, dimensions: int) -> None:
        if self._dimensions is None or not (self._writer or self.documents):
            self._dimensions = dimensions
        if dimensions != self._dimensions:
            raise InputError(
                f"An embedding has {dimensions} dimensions, the index {self._dimensions}: it was built with another"
                f" embedding model."
            )

    def _finish_part(self) -> None:
        if self._writer is not None:
            self._parts.append(self._finish(self._writer))

    def keep(self, records: Iterable[DocumentRecord]) -> None:
        """Keep documents of the previous version. If their parts cannot be shared, the documents are copied."""
        if self.before is not None and not self._shares:
            for record in records:
                self.take_over(self.before, record)

    def take_over(self, before: OpenVersion, record: DocumentRecord) -> None:
        """Copy a document from the previous version, including its vectors, and add it with a new record."""
        nodes = list(before.docstore.iterate(doc_id=record.doc_id))
        vectors = None
        if self.config.builds_semantic and nodes:
            rows = before.docstore.rows([node.node_id for node in nodes])
            vectors = before.index.vectors(np.asarray(rows, dtype=np.int64))
        self.append(record, nodes, vectors, before.frame(record.doc_id))

    def publish(self, *, embed_model: str | None, automatic: bool = False, keeps: str | None = None) -> Manifest:
        """Finish the parts and make the version live.

        Args:
            embed_model: Name of the embedding model, or None if there is no semantic index.
            automatic: Whether the version is published by a program that watches folders.
            keeps: Name of the previous version, if it must be kept as long as the new version.
        """
        self._finish_part()
        kept_ids = self._kept_ids()
        parts = [*self._kept_parts(), *self._parts]
        has_vectors = any(part.has_semantic and part.size for part in parts)
        manifest = Manifest(
            version=self._name,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            package=__version__,
            config=self.config.model_dump(),
            embed_model=embed_model if has_vectors else None,
            dimensions=self._dimensions if has_vectors else None,
            documents=sum(len(part.records) for part in parts),
            chunks=sum(part.size for part in parts),
            size=sum(part.bytes for part in parts),
            parts=[part.entry for part in parts],
            automatic=automatic,
            keeps=keeps,
            languages=languages_of(record for part in parts for record in part.records),
        )
        if self._remote is not None:
            records = () if self.before is None else self.before.records
            gone = [record.doc_id for record in records if record.doc_id not in kept_ids] if kept_ids else None
            has_strays = self.before is not None and bool(self.before.without)
            self._remote.mark_removed(gone, parts, has_strays=has_strays)
        versions.publish_manifest(self.project_dir, manifest, keep_versions=self.config.keep_versions)
        if self._remote is not None:
            self._remote.published(self._name)
        return manifest

    def _kept_parts(self) -> list[Part]:
        """Return parts that contain the kept documents of the previous version.

        Parts with dropped documents are rewritten without them, parts with outdated derived data are rewritten with
        current ones, and small parts are merged.
        """
        base = [part for part in self._base if not self.dropped.issuperset(part.records.by_id)]
        sizes = [sum(record.chunks for record in part.records if record.doc_id not in self.dropped) for part in base]
        start = merged_from(sizes)
        groups = [[part] for part in base[:start]]
        if start < len(base):
            groups.append(base[start:])
        return [group[0] if self._is_shareable(group) else self._merge(group) for group in groups]

    def _is_shareable(self, group: Sequence[Part]) -> bool:
        """Return whether a group of parts is a single part that can be used as it is."""
        part = group[0]
        return len(group) == 1 and not self._is_outdated(part) and self.dropped.isdisjoint(part.records.by_id)

    def _is_outdated(self, part: Part) -> bool:
        return self.remake or is_outdated(part.entry.derived, self.config)

    def _merge(self, parts: Sequence[Part]) -> Part:
        self._writer = self._make_writer()
        for part in parts:
            self._writer.copy(part, self.dropped, remake=self._is_outdated(part))
        return self._finish(self._writer)

    def _finish(self, writer: PartWriter) -> Part:
        part = writer.finish()
        self._writer = None
        self._opened.append(part)
        return part

    def discard(self) -> None:
        """Remove the unpublished version and its parts, without affecting the live version."""
        opened, self._opened = self._opened, []
        self._parts, self._base = [], []
        for part in opened:
            part.release()
        if self._writer is not None:
            self._writer.discard()
        versions.remove_leftovers(self.project_dir)


def merged_from(sizes: Sequence[int]) -> int:
    """Return the index of the first part to merge with all later parts, or the number of parts if none are merged.

    Parts are merged if more than eight parts come after the last full part. The last two parts are merged, together
    with each part before them that is at most twice as large as all later parts together. The sizes of the remaining
    parts therefore decrease quickly, and the number of times that a chunk is copied grows only with the logarithm of
    the number of chunks.

    Args:
        sizes: Numbers of chunks of the parts.

    Example:
        >>> merged_from([1_000] + [10] * 7), merged_from([1_000] + [10] * 8)
        (8, 1)
    """
    full = [at for at, size in enumerate(sizes) if size >= _FULL * PART_CHUNKS]
    start = full[-1] + 1 if full else 0
    if len(sizes) - start <= MAX_SMALL_PARTS:
        return len(sizes)
    first, together = len(sizes) - 1, sizes[-1]
    while first > start and (first == len(sizes) - 1 or sizes[first - 1] <= _GROWTH * together):
        if together + sizes[first - 1] > PART_CHUNKS:
            break
        first -= 1
        together += sizes[first]
    return first
