"""Publish a version without damaged parts.

Documents of a damaged part are kept if all of their chunks match their checksums and their vectors can be obtained
from the part, the ledger, or a model in this process. Others are copied from an older version that contains them in the
same state. The remaining documents are listed so that they can be ingested again. Readable contexts and vectors are
first written to the ledger, so that they are not paid for again.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import keyed
from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.index.ledger import LedgerEntry
from llama_index_contextual.index.manifest import (
    DOCSTORE,
    FAISS_FILE,
    PART_MANIFEST,
    PARTS,
    DocumentRecord,
    PartEntry,
    read_manifest,
)
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.index.part import DocumentFrame, has_sound_records, load_frame, records_of_part
from llama_index_contextual.index.remote import lost_documents
from llama_index_contextual.index.sources import inputs_of
from llama_index_contextual.index.vectors import read_index
from llama_index_contextual.index.verify import PartFaults, Repair
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import number, version_directory, version_names
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion.pipeline import Stages
from llama_index_contextual.ingestion.plan import without_context
from llama_index_contextual.models import is_in_process


def publish_sound(directory: Path, faults: PartFaults, config: ProjectConfig, stages: Stages) -> Repair:
    """Publish a version without those documents of damaged parts that cannot be read.

    Args:
        directory: Directory of the version; the write lock of its project must be held.
        faults: The errors in each part of the project.
        config: Settings of the project, without changes since the version was built that need a rebuild.
        stages: Components that process documents, and the ledger.
    """
    project_dir = directory.parent.parent
    whole = read_manifest(directory)
    damaged = {entry.name for entry, errors in faults.items() if errors}
    missing: list[DocumentRecord] = []
    kept: list[str] = []
    with ExitStack() as stack:
        before = OpenVersion(directory, reads=(), without=damaged)
        stack.callback(before.close)
        lost = set(lost_documents(before))
        missing += (record for record in before.records if record.doc_id in lost)
        sound = [record for record in before.records if record.doc_id not in lost]
        builder = VersionBuilder(project_dir, config, before, lost)
        stack.callback(builder.discard)
        builder.keep(sound)
        older = _older_versions(directory, damaged, config, stack)
        for entry in (entry for entry in whole.parts if entry.name in damaged):
            for document in _documents(project_dir / PARTS / entry.name, entry, faults[replace(entry, gone=())]):
                record = document.record
                _rescue(document.nodes, document.vectors, stages)
                vectors = _vectors(document, stages, whole.dimensions) if document.is_complete else None
                if document.is_complete and (vectors is not None or not config.builds_semantic or not document.nodes):
                    builder.append(record, document.nodes, vectors, document.frame)
                    kept.append(record.doc_id)
                elif _take_over(record, older, builder):
                    kept.append(record.doc_id)
                else:
                    missing.append(record)
        manifest = builder.publish(embed_model=whole.embed_model, keeps=directory.name)
    inputs = inputs_of(missing)
    return Repair(
        version=manifest.version,
        former=directory.name,
        kept=tuple(kept),
        missing={record.doc_id: inputs.get(record.doc_id) for record in missing},
        unnamed=max(0, whole.documents - manifest.documents - len(missing)),
    )


# ---- documents of a damaged part -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Document:
    """A document of a damaged part.

    Attributes:
        record: Its record.
        nodes: Its chunks that match their checksums.
        vectors: Their vectors, or None if the file with the vectors is damaged.
        frame: Its frame, or None.
        is_complete: Whether the whole document matches its checksums.
    """

    record: DocumentRecord
    nodes: list[BaseNode]
    vectors: NDArray[np.float32] | None = None
    frame: DocumentFrame | None = None
    is_complete: bool = False


def _documents(place: Path, entry: PartEntry, faults: Sequence[CorruptVersionError]) -> Iterator[_Document]:
    """Yield the documents of a damaged part, with whatever can be read of them."""
    damaged = {Path(fault.file or "").relative_to(f"{PARTS}/{entry.name}").as_posix() for fault in faults}
    gone = {number for first, last in entry.gone for number in range(first, last + 1)}
    records = records_of_part(place)
    live = [(at, record) for at, record in enumerate(records) if at not in gone]
    ends = np.cumsum([record.chunks for record in records]).tolist()
    is_certain = has_sound_records(place) or not {DOCSTORE, PART_MANIFEST} & damaged
    if not is_certain:
        yield from (_Document(record, []) for _, record in live)
        return
    try:
        docstore = NodeTable(place / DOCSTORE, access="read")
    except sqlite3.Error:
        yield from (_Document(record, []) for _, record in live)
        return
    has_vectors = not {FAISS_FILE, PART_MANIFEST} & damaged and (place / FAISS_FILE).exists()
    index = read_index(place / FAISS_FILE) if has_vectors else None
    with closing(docstore):
        for at, record in live:
            rows = range(ends[at] - record.chunks, ends[at])
            nodes = docstore.sound_nodes(row + 1 for row in rows)
            vectors = None
            if index is not None and nodes:
                vectors = index.reconstruct_batch(np.array([position - 1 for position in nodes]))
            frame, is_complete = None, len(nodes) == record.chunks
            try:
                frame = load_frame(docstore, record.doc_id, check=True)
            except (sqlite3.Error, ValueError, TypeError, KeyError):
                is_complete = False
            yield _Document(record, list(nodes.values()), vectors, frame, is_complete)


def _vectors(document: _Document, stages: Stages, dimensions: int | None) -> NDArray[np.float32] | None:
    """Return the vectors of a complete document without calling a provider, or None if any of them is missing."""
    if document.vectors is not None or not document.nodes or stages.embed_model_name is None:
        return document.vectors
    names = [key for key, _ in stages.vector_keys(document.nodes)]
    known = stages.ledger.vectors(names, dimensions=dimensions)
    if names and known.keys() >= set(names):
        return np.stack([known[name] for name in names])
    if stages.embed_model is not None and is_in_process(stages.embed_model_name):
        return run_sync(lambda: stages.aembed(document.nodes))
    return None


def _older_versions(directory: Path, damaged: set[str], config: ProjectConfig, stack: ExitStack) -> list[OpenVersion]:
    """Open the older versions that were built with the same settings and embedding model, latest first.

    Args:
        directory: Directory of the damaged version.
        damaged: Names of the damaged parts of the project.
        config: The settings that the version was built with.
        stack: Closes the versions.
    """
    versions: list[OpenVersion] = []
    project_dir, embed_model = directory.parent.parent, read_manifest(directory).embed_model
    for name in reversed([name for name in version_names(project_dir) if number(name) < number(directory.name)]):
        with contextlib.suppress(CorruptVersionError, FormatError):  # its manifest is damaged
            version = OpenVersion(version_directory(project_dir, name), reads=(), without=damaged)
            stack.callback(version.close)
            is_other = config.rebuild_fields(ProjectConfig(**version.manifest.config))
            if not is_other and not version.is_remote and version.manifest.embed_model == embed_model:
                versions.append(version)
    return versions


def _take_over(record: DocumentRecord, older: Sequence[OpenVersion], builder: VersionBuilder) -> bool:
    """Add a document from an older version that has it in the same state; return whether it was added."""
    for version in older:
        former = version.record(record.doc_id)
        if former is not None and (former.content_hash, former.facts) == (record.content_hash, record.facts):
            builder.take_over(version, replace(former, path=record.path))
            return True
    return False


# ---- the ledger ------------------------------------------------------------------------------------------------------


def _rescue(nodes: Sequence[BaseNode], vectors: NDArray[np.float32] | None, stages: Stages) -> None:
    """Write contexts and vectors of a document's chunks to the ledger, unless it already has them."""
    writer, ledger = stages.contextualizer, stages.ledger
    if isinstance(writer, LLMContextualizer):
        contexts = {
            node.node_id: keys.context_parts(node.metadata)[1]
            for node in nodes
            if node.metadata.get(keys.CONTEXT_SOURCE) == "llm"
        }
        entries = [
            LedgerEntry(key=key, context=context, model=writer.model)
            for segment, chunks, _ in writer.missing([without_context(node) for node in nodes])
            for key, same in keyed(segment, chunks, prompt=writer.template, model=writer.model).items()
            if (context := contexts.get(same[0].node_id))
        ]
        if entries:
            ledger.add_contexts(entries)
    if vectors is not None:
        names = stages.vector_keys(nodes)  # empty for the local model
        known = ledger.vectors([key for key, _ in names], dimensions=vectors.shape[1])
        missing = [(model, key, at) for at, (key, model) in enumerate(names) if key not in known]
        for model, group in itertools.groupby(sorted(missing), key=lambda item: item[0]):
            rows = {key: at for _, key, at in group}
            ledger.add_vectors(model, list(rows), vectors[list(rows.values())])
