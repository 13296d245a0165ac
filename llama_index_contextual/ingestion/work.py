"""What a run has to do: its options, what becomes of each document, and the documents themselves as they are needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import has_given_context
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.ingestion.identity import origin
from llama_index_contextual.ingestion.jobs import ChunkSpan, IngestInput, Intake, Job, span_of
from llama_index_contextual.ingestion.plan import Plan, make_plan
from llama_index_contextual.readers import DocumentReader, ReadLimits
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.version import OpenVersion


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How one run differs from the plain case.

    Attributes:
        replace: Make the version exactly the inputs.
        moved: Files have a new place: those whose ids match are the same documents.
        remove: Ids of documents to leave out.
        retry_failed: Process documents again that have chunks whose context failed.
        file_metadata: Gives further facts about a file.
        limits: What one file may cost.
        passwords: Passwords of encrypted PDFs.
        max_cost: Dollars that the run must not pass, or None.
        batch: Ask for contexts in batches of the provider.
        purpose: What the run is for; stands in its receipt.
    """

    replace: bool = False
    moved: bool = False
    remove: frozenset[str] = frozenset()
    retry_failed: bool = False
    file_metadata: FileMetadata | None = None
    limits: ReadLimits = field(default_factory=ReadLimits)
    passwords: Mapping[str, str] | str | None = None
    max_cost: float | None = None
    batch: bool = False
    purpose: Literal["ingest", "rebuild", "retry", "compare"] = "ingest"


def plan_run(
    inputs: Sequence[IngestInput], options: RunOptions, config: ProjectConfig, before: OpenVersion | None
) -> tuple[Intake, Plan]:
    """Return the documents of a call, and what becomes of each document.

    Raises:
        ConfigurationError: Only what has failed shall be asked again, and settings have changed.
        InputError: Something cannot be ingested, or two inputs have one id.
        PathNotFoundError: A path does not exist.
    """
    records = [] if before is None else before.manifest.documents
    changed = [] if before is None else config.rebuild_fields(ProjectConfig.recorded(before.manifest.config))
    if changed and options.retry_failed:
        _require_nothing_failed(records, changed)
    intake = Intake.of(
        inputs,
        records,
        file_metadata=options.file_metadata,
        limits=options.limits,
        replaces=options.replace,
        moved=options.moved,
    )
    plan = make_plan(
        records,
        intake.hashes,
        replace=options.replace,
        remove=options.remove,
        rebuild=bool(changed) and not options.retry_failed,
        retry_failed=options.retry_failed,
        new=intake.identities.new,
        renamed=intake.identities.renamed,
        moved={doc_id: origin(intake.files[doc_id].path) for doc_id in intake.identities.moved},
    )
    return intake, plan


def _require_nothing_failed(records: Sequence[DocumentRecord], changed: Sequence[str]) -> None:
    """Refuse to ask for single contexts again where other settings would give the rest another one."""
    if any(record.fallback_chunks for record in records):
        raise ConfigurationError(
            f"Settings have changed since the live version was built ({', '.join(changed)}): `rebuild` processes all"
            f" documents by them, those with failed chunks too; or set them back.",
            setting=changed[0],
        )


def make_reader(options: RunOptions, config: ProjectConfig) -> DocumentReader:
    """Return what reads the files of a run."""
    return DocumentReader(
        limits=options.limits,
        passwords=options.passwords,
        pdf_engine=config.pdf_engine,
        file_metadata=options.file_metadata,
    )


def jobs_of(
    plan: Plan,
    intake: Intake,
    reader: DocumentReader,
    before: OpenVersion | None,
    wanted: Collection[str],
    failed: list[str],
) -> Iterator[Job]:
    """Yield the documents that need work, one after the other.

    A file that has the content of a document, renamed or not, gets the contexts that an LLM has written for that.

    Args:
        plan: What becomes of each document.
        intake: Those that were given.
        reader: Reads files.
        before: The version before, or None.
        wanted: Ids of those of the given ones to read.
        failed: Gets the ids of those that cannot be read.
    """
    if before is None:
        yield from intake.jobs(reader, wanted, failed)
        return
    for record in plan.rework:
        yield _job_of_record(before, record)
    records = {record.content_hash: record for record in before.manifest.documents}
    for job in intake.jobs(reader, wanted, failed):
        same = None if plan.rebuild else records.get(job.content_hash)
        yield job if same is None else replace(job, contexts=_written_contexts(before, same))


def _written_contexts(before: OpenVersion, record: DocumentRecord) -> dict[ChunkSpan, str]:
    return {
        span_of(node): node.metadata[keys.CONTEXT]
        for node in before.docstore.iterate(doc_id=record.doc_id)
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm"
    }


def _job_of_record(before: OpenVersion, record: DocumentRecord) -> Job:
    document = before.document(record)
    nodes = None if document else [_without_context(node) for node in before.docstore.iterate(doc_id=record.doc_id)]
    return Job(document, nodes, record.doc_id, record.content_hash, record.characters, record.origin)


def _without_context(node: BaseNode) -> BaseNode:
    if has_given_context(node):
        return node
    metadata = {k: v for k, v in node.metadata.items() if k not in (keys.CONTEXT, keys.CONTEXT_SOURCE)}
    return node.model_copy(update={"metadata": metadata})
