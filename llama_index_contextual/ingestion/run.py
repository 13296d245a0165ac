"""Ingestion runs: build and publish a version from inputs and the previous version, and report on it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.errors import InputError
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.pipeline import (
    Stages,
    abuild,
    acollect_replies,
    model_notices,
    paid_stages,
    spending_of,
)
from llama_index_contextual.ingestion.plan import (
    IngestInput,
    Intake,
    Job,
    Plan,
    RunOptions,
    jobs_of,
    make_reader,
    nothing_to_ingest,
    plan_run,
)
from llama_index_contextual.ingestion.report import IngestReport, ProgressCounter, ReportProgress
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.version import OpenVersion


async def arun(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    *,
    project_dir: Path,
    config: ProjectConfig,
    stages: Stages,
    before: OpenVersion | None,
    progress: ReportProgress | None,
) -> IngestReport:
    """Build and publish a version; without changes, nothing is published.

    Args:
        inputs: Paths, Documents and nodes.
        options: Options of the run.
        project_dir: Folder of the project.
        config: Settings of the project.
        stages: Components that process a document.
        before: The previous version, or None.
        progress: Called with the progress of the run.

    Raises:
        InputError: There is nothing to ingest.
        BudgetExceededError: The next call could exceed `max_cost`.
    """
    started = time.monotonic()
    records = [] if before is None else before.manifest.documents
    intake, plan = await asyncio.to_thread(plan_run, inputs, options, config, before)
    named: Collection[str] = intake.hashes
    if not inputs and not options.retry_failed:
        named = {record.doc_id for record in records}
    if before is not None and plan.changes_nothing:
        return _report(plan, intake, named, before.name, records, started)
    builder = VersionBuilder(project_dir, config)
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        counter = _counter(progress, plan, intake)
        reader = stack.enter_context(
            make_reader(options, config, page_store=stages.ledger, on_scanned_page=counter.scanned)
        )
        if before is not None:
            for record in plan.keep:
                await run_to_completion(partial(builder.take_over, before, record))
        failed: list[str] = []
        unread = set(plan.to_read)
        # After an interruption the reading thread may still be running; without documents to read it ends.
        stack.callback(unread.clear)
        prices = PriceTable(config.prices)
        spending = stack.enter_context(
            spending_of(stages, prices, max_cost=options.max_cost, purpose=options.purpose).receipted()
        )
        counter.spent = lambda: spending.actual.dollars
        replies = await acollect_replies(
            stages,
            lambda: jobs_of(plan, replace(intake, skipped=[], warnings=[]), reader, before, unread, []),
            submit=options.batch,
            spending=spending,
            on_progress=lambda state: counter.batches(state.done, state.requests),
        )
        counter.enter("ingest")
        stages = paid_stages(stages, spending, replies)
        jobs = _count_jobs(jobs_of(plan, intake, reader, before, unread, failed), counter, failed)
        outcome = await abuild(jobs, stages, builder, report=counter.add)
        emptied = _keep_former_content(builder, before, plan, failed)
        if not builder.records and not options.remove:
            raise InputError(nothing_to_ingest(intake.skipped), value=inputs)
        plan.drop.extend(emptied)
        if before is not None and not _has_changed(plan, failed):
            return _report(plan, intake, named, before.name, records, started, without=failed)
        counter.enter("publish")
        manifest = await run_to_completion(partial(builder.publish, embed_model=stages.embed_model_name))
        counter.enter("done")
    if replies is not None:
        replies.forget_used()
    report = _report(plan, intake, named, manifest.version, manifest.documents, started, without=failed)
    report = replace(report.completed(outcome), notices=model_notices(stages, project=project_dir.name))
    return report.with_receipt(spending, writes=config.context == "llm")


def _has_changed(plan: Plan, failed: Collection[str]) -> bool:
    """Return whether there is anything to publish apart from documents that could not be read."""
    return bool(plan.rework or plan.drop or plan.moved or any(doc_id not in failed for doc_id in plan.to_read))


def _counter(progress: ReportProgress | None, plan: Plan, intake: Intake) -> ProgressCounter:
    todo = plan.to_read
    size = sum(intake.size(doc_id) for doc_id in todo) + sum(record.characters for record in plan.rework)
    return ProgressCounter(progress, documents_total=len(todo) + len(plan.rework), bytes_total=size)


def _count_jobs(jobs: Iterator[Job], counter: ProgressCounter, failed: Sequence[str]) -> Iterator[Job]:
    """Yield jobs, and count the documents that were read or could not be read."""
    counted = 0
    for done, job in enumerate(jobs, start=1):
        counter.read(done + len(failed) - counted)
        counted = done + len(failed)
        yield job


def _keep_former_content(
    builder: VersionBuilder, before: OpenVersion | None, plan: Plan, failed: Collection[str]
) -> list[str]:
    """Keep the previous content of documents whose new file cannot be read; return the ids of those without any."""
    emptied: list[str] = []
    updated = set(plan.update)
    if before is None:
        return emptied
    for doc_id in failed:
        record = before.manifest.document(doc_id) if doc_id in updated else plan.rename.get(doc_id)
        if record is not None and record.chunks:
            builder.take_over(before, record)
        elif record is not None:
            emptied.append(record.doc_id)
    return emptied


def _report(
    plan: Plan,
    intake: Intake,
    named: Collection[str],
    version: str,
    records: Sequence[DocumentRecord],
    started: float,
    *,
    without: Collection[str] = (),
) -> IngestReport:
    unchanged = [record.doc_id for record in plan.keep if record.doc_id in named]
    unchanged += [doc_id for doc_id in plan.update if doc_id in without and doc_id not in plan.drop]
    unchanged += [record.doc_id for doc_id, record in plan.rename.items() if doc_id in without]
    return IngestReport(
        version=version,
        added=tuple(doc_id for doc_id in plan.add if doc_id not in without),
        updated=tuple(doc_id for doc_id in plan.update if doc_id not in without),
        renamed={record.doc_id: doc_id for doc_id, record in plan.rename.items() if doc_id not in without},
        unchanged=tuple(unchanged),
        rebuilt=tuple(record.doc_id for record in plan.rework),
        removed=tuple(plan.drop),
        missing=tuple(doc_id for doc_id in intake.missing if doc_id not in plan.drop),
        skipped=tuple(intake.skipped),
        warnings=tuple(intake.warnings),
        chunks=sum(record.chunks for record in records),
        seconds=time.monotonic() - started,
    )


def remove_documents(
    doc_ids: Collection[str], *, project_dir: Path, config: ProjectConfig, before: OpenVersion | None
) -> IngestReport:
    """Publish a version without some documents; if there are none to remove, nothing is published.

    Settings changed since the previous version was built do not apply yet: they take effect with the next rebuild.

    Args:
        doc_ids: Ids of the documents.
        project_dir: Folder of the project; the caller must hold its lock.
        config: Settings of the project.
        before: The live version, or None.

    Raises:
        InputError: The live version does not contain one of the documents.
    """
    started = time.monotonic()
    records = () if before is None else before.manifest.documents
    known = {record.doc_id for record in records}
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in known]:
        raise InputError(f"Project {project_dir.name!r} has no document {unknown[0]!r}.", value=unknown[0])
    remaining = [record for record in records if record.doc_id not in doc_ids]
    version = None if before is None else before.name
    if before is not None and doc_ids:
        version = _publish(remaining, project_dir, config, before)
    return IngestReport(
        version=version,
        removed=tuple(record.doc_id for record in records if record.doc_id in doc_ids),
        chunks=sum(record.chunks for record in remaining),
        seconds=time.monotonic() - started,
    )


def _publish(records: Sequence[DocumentRecord], project_dir: Path, config: ProjectConfig, before: OpenVersion) -> str:
    built_with = ProjectConfig.recorded(before.manifest.config)
    pending = config.rebuild_fields(built_with)
    builder = VersionBuilder(project_dir, config.changed(**{name: getattr(built_with, name) for name in pending}))
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        for record in records:
            builder.take_over(before, record)
        return builder.publish(embed_model=before.manifest.embed_model).version
