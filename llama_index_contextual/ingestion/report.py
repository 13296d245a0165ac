"""How far an ingestion is, and what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from llama_index_contextual.contextualizer.base import ChunkFailure
from llama_index_contextual.readers import FileWarning, SkippedFile


@dataclass(frozen=True, kw_only=True)
class IngestProgress:
    """How far an ingestion is.

    Attributes:
        stage: What is being done.
        documents_done: Documents that are complete.
        documents_total: Documents in all.
        chunks_done: Chunks that have their context.
        bytes_done: Bytes of the documents that are complete.
        bytes_total: Bytes of all documents.
    """

    stage: str
    documents_done: int = 0
    documents_total: int = 0
    chunks_done: int = 0
    bytes_done: int = 0
    bytes_total: int = 0


ReportProgress = Callable[[IngestProgress], None]


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """What an ingestion did.

    Attributes:
        version: Name of the version that is live now.
        added: Ids of new documents.
        updated: Ids of documents whose content has changed.
        unchanged: Ids of documents that were taken over from the version before.
        skipped: Files that were not read, each with its reason.
        warnings: What was noticed in files that were read.
        failures: Chunks whose context the LLM failed to write; they have the structural one.
        chunks: Chunks in the version.
        contexts_paid: Contexts that a provider was asked for in this run.
        seconds: Wall clock.
    """

    version: str | None
    added: Sequence[str] = ()
    updated: Sequence[str] = ()
    unchanged: Sequence[str] = ()
    skipped: Sequence[SkippedFile] = ()
    warnings: Sequence[FileWarning] = ()
    failures: Sequence[ChunkFailure] = ()
    chunks: int = 0
    contexts_paid: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        counts = f"{len(self.added)} added, {len(self.updated)} updated, {len(self.unchanged)} unchanged"
        lines = [f"Version {self.version}: {counts}, {len(self.skipped)} skipped, {self.chunks} chunks."]
        lines += [f"  skipped {file.path}: {file.reason}" for file in self.skipped]
        lines += [f"  {warning.path}: {warning.message}" for warning in self.warnings]
        lines += [f"  chunk {failure.node_id} of {failure.doc_id}: {failure.error}" for failure in self.failures]
        return "\n".join(lines)
