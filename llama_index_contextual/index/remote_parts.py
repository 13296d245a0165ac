"""Parts of a version whose chunks an engine keeps: what is new is sent to the engine, and the rest is written.

The chunks of a part are collected in a scratch file first, because the weights of their terms depend on the mean length
of a chunk, which the first part of a collection decides. They are sent with the number of the new version, so that no
reader sees them before the version is live. Parts are merged without the engine.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

import numpy as np
from llama_index.core.schema import BaseNode, MetadataMode
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BackendError, CorruptVersionError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.bm25 import (
    COUNTS_FILE,
    LexicalIndexBuilder,
    TermCounts,
    TermCountsBuilder,
    length_norms,
)
from llama_index_contextual.index.collection import Engine, Key, StoredChunk, View
from llama_index_contextual.index.documents import DocumentIndexBuilder
from llama_index_contextual.index.engine import drop_unpublished, drop_unused, use_engine
from llama_index_contextual.index.manifest import (
    BM25_DIRECTORY,
    CHUNKS_DIRECTORY,
    DOCSTORE,
    DOCUMENTS_DIRECTORY,
    DocumentRecord,
    PartEntry,
)
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.index.part import DocumentFrame, Part, finish_part, store_frame
from llama_index_contextual.index.qdrant_index import QdrantIndex, tune
from llama_index_contextual.index.records import write_records
from llama_index_contextual.index.remote import (
    SAMPLE,
    RemotePart,
    RemoteVersionStore,
    sampled_rows,
    save_sample,
)
from llama_index_contextual.index.remote_docstore import RemoteDocumentStore, missing
from llama_index_contextual.index.remote_terms import TermStatistics, chunk_terms, part_terms
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import number

logger = logging.getLogger(__name__)

_SCRATCH = "chunks.sqlite"


class RemoteParts:
    """The parts of a version that is being built, whose chunks an engine keeps.

    Args:
        project_dir: The project.
        config: Its settings.
        engine: The engine.
        version: Name of the new version.
    """

    def __init__(self, project_dir: Path, config: ProjectConfig, engine: Engine, version: str) -> None:
        self._project_dir = project_dir
        self._config = config
        self._engine = engine
        self._version = number(version)
        self._is_rebuilt = False

    def writer(self, directory: Path, parts: Sequence[Part], dropped: Sequence[Part]) -> RemotePartWriter:
        """Return a writer of a part.

        Args:
            directory: Directory of the part.
            parts: The other parts of the version so far.
            dropped: Parts that the version may still contain, if new content of their documents cannot be read.
        """
        return RemotePartWriter(directory, self._config, self._engine, self._version, parts, dropped)

    def end(self, before: OpenVersion | None, kept: Sequence[Part], parts: Sequence[Part]) -> None:
        """Let the chunks die that the new version does not contain.

        Args:
            before: The previous version.
            kept: Its parts as far as the new version contains them.
            parts: The parts of the new version.

        Raises:
            CorruptVersionError: The engine has another number of chunks than the parts.
        """
        alive = {record.doc_id for part in kept for record in part.records}
        if before is None or not alive:
            self._engine.end(None, self._version)
        elif gone := [record.doc_id for record in before.records if record.doc_id not in alive]:
            self._engine.end(gone, self._version)
        if before is not None and before.without:  # of these parts, the documents may be unknown
            alive_keys = {key for part in parts for key in _keys_of(part)}
            strays = [key for key in self._engine.keys(View(self._version)) if key not in alive_keys]
            self._engine.end_chunks(strays, self._version)
        self._is_rebuilt = not alive
        expected, actual = sum(part.size for part in parts), self._engine.count(View(self._version))
        if actual != expected:
            raise CorruptVersionError(
                f"The collection {self._engine.collection.name!r} at {self._engine.collection.url} has"
                f" {pluralize(actual, 'chunk')} of the new version instead of {expected}, so it is not published",
                name=self._project_dir.name,
                remedy=Remedy(
                    "call `verify(repair=True)`, which names the documents to ingest again",
                    "run `llama-index-contextual verify {project} --repair`, which names the documents to ingest again",
                ),
            )

    def published(self, parts: Sequence[Part], directory: Path, dimensions: int | None) -> None:
        """Remove chunks that no version contains any more, and choose how to search the new version, which is live."""
        try:
            drop_unused(self._project_dir, self._engine)
            if dimensions is not None:
                index = QdrantIndex(RemoteVersionStore(parts, directory), language=None, dimensions=dimensions)
                tune(self._project_dir, index, is_rebuilt=self._is_rebuilt)
        except BackendError as error:
            logger.warning(
                "Version %s is published, but chunks of removed versions are still in the collection; the next version"
                " removes them. %s",
                directory.name,
                error,
            )


def _keys_of(part: Part) -> list[Key]:
    store = cast(RemoteDocumentStore, part.docstore)
    return store.keys_of_rows(np.arange(len(part.document_of)) if part.rows is None else part.rows)


def remote_parts(project_dir: Path, config: ProjectConfig, next_name: Callable[[Path], str]) -> RemoteParts | None:
    """Prepare the engine of a project for a new version; None if its settings name no engine.

    Args:
        project_dir: The project, whose write lock must be held.
        config: Its settings.
        next_name: Returns the name of the next version.
    """
    engine = use_engine(project_dir, config)
    if engine is None:
        return None
    drop_unpublished(project_dir, engine)
    return RemoteParts(project_dir, config, engine, next_name(project_dir))


class RemotePartWriter:
    """Writer of a part whose chunks an engine keeps.

    It contains either new documents, or the documents of other parts.

    Args:
        directory: Directory of the part, from `versions.next_part`.
        config: Settings of the project.
        engine: The engine.
        version: Number of the version.
        parts: The other parts of the version so far, which have numbers of terms and the mean length.
        dropped: Parts that the version may still contain: their terms keep their numbers too.

    Attributes:
        records: Records of the documents that were added.
        chunks: Number of their chunks.
    """

    def __init__(
        self,
        directory: Path,
        config: ProjectConfig,
        engine: Engine,
        version: int,
        parts: Sequence[Part],
        dropped: Sequence[Part],
    ) -> None:
        self.directory = directory
        self.chunks = 0
        self._config = config
        self._engine = engine
        self._version = version
        self._parts, self._dropped = parts, dropped
        self.records: list[DocumentRecord] = []
        self._store = RemoteDocumentStore(directory / DOCSTORE, engine, access="build")
        self._scratch = NodeTable(directory / _SCRATCH)
        self._vectors: list[NDArray[np.float32]] = []
        self._lexical = LexicalIndexBuilder(language=config.language)
        self._documents = DocumentIndexBuilder(language=config.language)
        self._copied: list[tuple[TermCounts, TermStatistics, NDArray[np.bool_]]] = []
        self._sources: list[Part] = []

    def known(self, node_ids: Sequence[str]) -> list[str]:
        """Return the ids of nodes that the part contains, among `node_ids`."""
        return self._store.known(node_ids)

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
            store_frame(self._store, record.doc_id, frame)
        if not nodes:
            return
        self.chunks += len(nodes)
        self._scratch.add(nodes)
        self._store.add_places(nodes, self._version)
        if self._config.builds_semantic and vectors is not None:
            self._vectors.append(vectors)
        if self._config.builds_lexical:
            self._lexical.add(node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes)
            self._documents.add(nodes)

    def copy(self, part: Part) -> None:
        """Add the live documents of another part.

        Raises:
            CorruptVersionError: A file of the part has changed since it was published.
        """
        part.require_sound()
        live = part.live_documents
        self._sources.append(part)
        numbers = np.arange(len(part.chunks_of)) if live is None else np.where(live, np.cumsum(live) - 1, -1)
        store = cast(RemoteDocumentStore, part.docstore)
        self._store.copy_places(store, part.live, np.where(numbers >= 0, numbers + len(self.records), -1))
        self.records += part.records
        if self._config.builds_lexical:
            counts, statistics = part_terms(part)
            entries = part.live_entries
            self._copied.append(
                (counts, statistics, np.ones(len(counts.lengths), dtype=np.bool_) if entries is None else entries)
            )
            of_documents = TermCounts.load(part.directory / DOCUMENTS_DIRECTORY, len(counts.lengths))
            sizes = np.fromiter((record.chunks for record in part.records if record.chunks), dtype=np.int64)
            self._documents.add_counts(of_documents, entries, sizes)
        self.chunks += part.size

    def finish(self, merged_from: str | None = None) -> PartEntry:
        """Send the chunks to the engine, write the rest, and complete the part; a version can name it afterwards.

        Args:
            merged_from: Checksum of the parts that it was merged from and of the settings; None if it was not merged.
        """
        if self._config.builds_lexical:
            files.make_directory(self.directory / BM25_DIRECTORY)
        mean = next((mean for part in self._parts if (mean := RemotePart.of(part).mean_length)), None)
        dimensions = self._vectors[0].shape[1] if self._vectors else None
        if self._copied or not len(self._scratch):
            dimensions = self._finish_copy()
        else:
            mean = self._send(dimensions, mean)
            if dimensions is not None:
                wanted = dict.fromkeys(sampled_rows(self.chunks).tolist())
                sample = [vector for row, vector in enumerate(self._rows()) if row in wanted]
                save_sample(self.directory, np.array(sample))
        self._store.write_records([asdict(record) for record in self.records])
        self._store.write_values()
        write_records(self.directory, self.records)
        self._scratch.close()
        for path in self.directory.glob(f"{_SCRATCH}*"):
            files.remove(path)
        files.let_write(self.directory / DOCSTORE, self._store.close)
        RemotePart(mean).save(self.directory)
        return finish_part(
            self.directory,
            documents=len(self.records),
            chunks=self.chunks,
            dimensions=dimensions,
            merged_from=merged_from,
        )

    def discard(self) -> None:
        """Remove the unfinished part."""
        self._scratch.close()
        self._store.close()
        files.remove_tree(self.directory)

    # ---- new documents -----------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of the chunks."""
        return itertools.chain.from_iterable(self._vectors)

    def _send(self, dimensions: int | None, mean: float | None) -> float:
        """Send the chunks to the engine, and return the mean length with which the weights were computed."""
        chunks_of = np.fromiter((record.chunks for record in self.records), dtype=np.int64)
        document_of = np.repeat(np.arange(len(chunks_of), dtype=np.int32), chunks_of)
        facets = self._store.add_values(self._scratch.iterate(), document_of)
        counts = self._lexical.build().counts()
        lengths = counts.lengths if self._config.builds_lexical else np.zeros(self.chunks, dtype=np.int32)
        mean = mean or float(lengths.mean()) or 1.0
        norms = length_norms(lengths, mean)
        weights = (counts.frequencies / (norms[counts.holders] + counts.frequencies)).astype(np.float32)
        numbers = _term_numbers(counts.vocabulary, [*self._parts, *self._dropped])
        terms = np.repeat(numbers, np.diff(counts.pointers))
        order = np.argsort(counts.holders, kind="stable")
        starts = np.searchsorted(counts.holders[order], np.arange(self.chunks + 1))

        def stored() -> Iterator[StoredChunk]:
            vectors = itertools.repeat(None) if dimensions is None else self._rows()
            for row, (node, vector) in enumerate(zip(self._scratch.iterate(), vectors, strict=False)):
                at = order[starts[row] : starts[row + 1]]
                yield StoredChunk(
                    node=node,
                    born=self._version,
                    doc_id=self.records[document_of[row]].doc_id,
                    facets=facets[row],
                    length=int(lengths[row]),
                    norm=float(norms[row]),
                    terms=terms[at],
                    weights=weights[at],
                    vector=vector,
                )

        self._engine.write(stored(), dimensions)
        if self._config.builds_lexical:
            entry_of = np.repeat(np.arange(np.count_nonzero(chunks_of)), chunks_of[chunks_of > 0])
            of_documents, squares, means = _by_document(counts, weights, entry_of)
            total = np.bincount(entry_of, weights=lengths).astype(np.int64)
            of_documents.save(self.directory / BM25_DIRECTORY)
            if self.chunks <= SAMPLE:
                self._save_chunk_terms(counts)
            TermStatistics(numbers, means, squares, total).save(self.directory / BM25_DIRECTORY)
            self._documents.build().lexical_index.save(self.directory / DOCUMENTS_DIRECTORY)
        return mean

    def _save_chunk_terms(self, counts: TermCounts) -> None:
        files.make_directory(self.directory / CHUNKS_DIRECTORY)
        counts.save(self.directory / CHUNKS_DIRECTORY)

    # ---- documents of other parts ------------------------------------------------------------------------------------

    def _finish_copy(self) -> int | None:
        """Write the terms and the sample of documents of other parts, and return the length of the vectors."""
        if self._config.builds_lexical:
            builder, lengths = TermCountsBuilder(), [np.zeros(0, dtype=np.int64)]
            for counts, statistics, live in self._copied:
                builder.add_counts(counts, live)
                lengths.append(statistics.lengths[live])
            merged = builder.build()
            sums, numbers = np.zeros((3, len(merged.vocabulary))), np.zeros(len(merged.vocabulary), dtype=np.int32)
            for counts, statistics, live in self._copied:
                chunks = np.where(live[counts.holders], counts.frequencies, 0)
                term_of = np.repeat(np.arange(len(counts.vocabulary)), np.diff(counts.pointers))
                held = np.bincount(term_of, weights=chunks, minlength=len(counts.vocabulary))
                at = np.array([merged.vocabulary.get(term, -1) for term in counts.vocabulary], dtype=np.int64)
                kept = at >= 0
                sums[:, at[kept]] += held[kept] * np.stack(
                    [np.ones(int(kept.sum())), statistics.means[kept], statistics.squares[kept]]
                )
                numbers[at[kept]] = statistics.numbers[kept]
            means, squares = (sums[1:] / np.maximum(sums[0], 1)).astype(np.float32)
            merged.save(self.directory / BM25_DIRECTORY)
            if self.chunks <= SAMPLE and all(_has_chunk_terms(source) for source in self._sources):
                of_chunks = TermCountsBuilder()
                for source in self._sources:
                    of_chunks.add_counts(chunk_terms(source), source.live)
                self._save_chunk_terms(of_chunks.build())
            TermStatistics(numbers, means, squares, np.concatenate(lengths)).save(self.directory / BM25_DIRECTORY)
            self._documents.build().lexical_index.save(self.directory / DOCUMENTS_DIRECTORY)
        if not (self._config.builds_semantic and self.chunks):
            return None
        keys = self._store.keys_of_rows(sampled_rows(self.chunks))
        found = self._engine.vectors(keys)
        if lost := [node_id for node_id, _ in keys if node_id not in found]:
            raise missing(lost[0])
        sample = np.asarray([found[node_id] for node_id, _ in keys], dtype=np.float32)
        save_sample(self.directory, sample)
        return int(sample.shape[1])


def _has_terms(part: Part) -> bool:
    return f"{BM25_DIRECTORY}/{COUNTS_FILE}" in part.files


def _has_chunk_terms(source: Part) -> bool:
    return f"{CHUNKS_DIRECTORY}/{COUNTS_FILE}" in source.files


def _term_numbers(vocabulary: Mapping[str, int], parts: Sequence[Part]) -> NDArray[np.int32]:
    """Return the number of each term in the collection: the one that another part has given it, or a new one."""
    known = [part_terms(part) for part in {part.directory: part for part in parts}.values() if _has_terms(part)]
    highest = max((int(statistics.numbers.max(initial=-1)) for _, statistics in known), default=-1)
    numbers = np.full(len(vocabulary), -1, dtype=np.int32)
    for at, term in enumerate(vocabulary):
        for counts, statistics in known:
            if (number := counts.vocabulary.get(term)) is not None:
                numbers[at] = statistics.numbers[number]
                break
        else:
            highest += 1
            numbers[at] = highest
    return numbers


def _by_document(
    counts: TermCounts, weights: NDArray[np.float32], document_of: NDArray[np.int64]
) -> tuple[TermCounts, NDArray[np.float32], NDArray[np.float32]]:
    """Return in how many chunks of each document a term occurs, and the mean square and mean of its weights.

    Args:
        counts: The terms of the chunks.
        weights: The weight of each entry of `counts`.
        document_of: The document of each chunk, ascending.
    """
    size = len(counts.vocabulary)
    term_of = np.repeat(np.arange(size, dtype=np.int64), np.diff(counts.pointers))
    pairs, chunks = np.unique(term_of << 32 | document_of[counts.holders], return_counts=True)
    pointers = np.searchsorted(pairs >> 32, np.arange(size + 1))
    documents = (pairs & 0xFFFFFFFF).astype(np.int32)
    frequencies = chunks.astype(np.int32)
    number_of_documents = int(document_of[-1]) + 1 if len(document_of) else 0
    distinct = np.bincount(documents, weights=frequencies, minlength=number_of_documents).astype(np.int32)
    totals = np.maximum(np.diff(counts.pointers), 1)
    moments = (np.bincount(term_of, weights=weights.astype(np.float64) ** power, minlength=size) for power in (2, 1))
    squares, means = ((moment / totals).astype(np.float32) for moment in moments)
    by_document = TermCounts(counts.vocabulary, pointers.astype(np.int64), documents, frequencies, distinct)
    return by_document, squares, means
