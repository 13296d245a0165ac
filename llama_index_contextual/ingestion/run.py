"""Ingestion runs: build and publish a version from inputs and the previous version, and report on it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import Contextualized
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.errors import InputError, Remedy
from llama_index_contextual.index.manifest import Manifest
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion.executors import Executor, LocalExecutor
from llama_index_contextual.ingestion.pipeline import abuild, acollect_replies, paid_stages, spending_of
from llama_index_contextual.ingestion.plan import (
    IngestInput,
    Intake,
    Job,
    Plan,
    RunOptions,
    jobs_of,
    nothing_to_ingest,
    plan_run,
    remedy_for,
)
from llama_index_contextual.ingestion.report import IngestReport, ProgressCounter, ReportProgress
from llama_index_contextual.ingestion.stages import Stages, cut, model_notices
from llama_index_contextual.ingestion.sync import OtherFilesChanged

_CHARACTERS_IN_TIME = 10_000_000
"""Characters that may take the time limit of a file to divide; longer documents may take longer in proportion."""


async def arun(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    *,
    project_dir: Path,
    config: ProjectConfig,
    make_stages: Callable[[], Stages],
    before: OpenVersion | None,
    progress: ReportProgress | None,
    executor: Executor | None = None,
) -> IngestReport:
    """Build and publish a version; without changes, nothing is published.

    Args:
        inputs: Paths, Documents and nodes.
        options: Options of the run.
        project_dir: Folder of the project.
        config: Settings of the project.
        make_stages: Returns the components that process a document; not called if there is nothing to do, so that no
            model is loaded then.
        before: The previous version, or None.
        progress: Called with the progress of the run.
        executor: Reads, cuts and embeds the documents; None does it in this process.

    Raises:
        InputError: There is nothing to ingest.
        BudgetExceededError: The next call could exceed `max_cost`.
    """
    started = time.monotonic()
    executor = executor or LocalExecutor()
    records = [] if before is None else before.records
    intake, plan = await asyncio.to_thread(plan_run, inputs, options, config, before)
    named: Collection[str] = intake.hashes
    if not inputs and not options.retry_failed:
        named = {record.doc_id for record in records}
    live = None if before is None else before.name
    chunks = 0 if before is None else before.manifest.chunks
    if plan.changes_nothing and (before is not None or options.sync is not None):
        return _report(plan, intake, named, live, chunks, started)
    stages = await asyncio.to_thread(make_stages)
    builder = VersionBuilder(project_dir, config, before, plan.not_kept)
    failed = intake.postponed(plan)
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        counter = _counter(progress, plan, intake, writes_contexts=config.context == "llm")
        reader = stack.enter_context(
            executor.make_reader(
                options,
                config,
                intake,
                page_store=stages.ledger,
                on_file=counter.reading,
                on_page=counter.read_page,
            )
        )
        if before is not None:
            moved = set(plan.moved)
            await run_to_completion(
                partial(builder.keep, (record for record in plan.keep if record.doc_id not in moved))
            )
            for record in plan.keep:
                if record.doc_id in moved:
                    await run_to_completion(partial(builder.take_over, before, record))
        unread = set(plan.to_read).difference(failed)
        # After an interruption the reading thread may still be running; without documents to read it ends.
        stack.callback(unread.clear)
        prices = PriceTable(config.prices)
        spending = stack.enter_context(
            spending_of(stages, prices, max_cost=options.max_cost, purpose=options.purpose).receipted()
        )
        counter.spent = lambda: spending.actual.dollars
        spending.planned_share = lambda: counter.planned_share
        replies = await acollect_replies(
            stages,
            lambda: jobs_of(plan, replace(intake, skipped=[], warnings=[]), reader, before, unread, []),
            submit=options.batch,
            spending=spending,
            gives_up_unread=options.requests_held_back,
            on_progress=lambda state: counter.batches(state.done, state.requests),
        )
        counter.enter("ingest")
        stages = executor.place(paid_stages(stages, spending, replies, retries_refused=options.requests_held_back))
        if (others_changed := intake.others_changed(unread, inputs, options.limits)) is not None:
            stack.callback(others_changed.cancel)
            stages = replace(stages, others_changed=others_changed)
        jobs = jobs_of(plan, intake, reader, before, unread, failed)
        jobs = _count_jobs(_cut_jobs(jobs, stages, intake, failed, options.limits.max_seconds), counter, failed)
        try:
            outcome = await abuild(jobs, stages, builder, counter=counter, batches_ahead=executor.batches_ahead)
        except OtherFilesChanged:
            intake.give_way(unread)
            report = _report(plan, intake, named, live, chunks, started, without=plan.to_read)
            return report.with_receipt(spending, writes=config.context == "llm")
        if replies is not None:
            replies.close(spending)
        emptied = _keep_former_content(builder, before, plan, failed)
        if not builder.documents and not options.remove and not intake.removed:
            if options.sync is not None:  # the folders may be filled later
                return _report(plan, intake, named, live, chunks, started, without=failed)
            raise InputError(nothing_to_ingest(intake.skipped), value=inputs, remedy=remedy_for(intake.skipped))
        plan.drop.extend(emptied)
        if options.retry_failed and not _has_new_contexts(plan, outcome):
            plan.keep.extend(plan.rework)
            plan.rework.clear()
        if before is not None and not _has_changed(plan, failed):
            report = _report(plan, intake, named, before.name, chunks, started, without=failed)
            return report.completed(outcome).with_receipt(spending, writes=config.context == "llm")
        counter.enter("publish")
        publish = partial(
            builder.publish,
            embed_model=stages.embed_model_name,
            automatic=options.sync is not None and options.sync.watching and not intake.removes_many,
            keeps=live if intake.removes_many else None,
        )
        manifest = await run_to_completion(publish)
        intake.forget_interruptions(unread)
        counter.enter("done")
    report = _report(plan, intake, named, manifest.version, manifest.chunks, started, without=failed)
    report = replace(report.completed(outcome), notices=model_notices(stages, config, before, project=project_dir.name))
    return report.with_receipt(spending, writes=config.context == "llm")


def preview(
    inputs: Sequence[IngestInput], options: RunOptions, config: ProjectConfig, before: OpenVersion | None
) -> IngestReport:
    """Return the report that a run would probably have; nothing is read, sent or written.

    Files that turn out to be unreadable are listed as added or updated.
    """
    started = time.monotonic()
    intake, plan = plan_run(inputs, options, config, before)
    if before is None:
        return _report(plan, intake, intake.hashes, None, 0, started)
    return _report(plan, intake, intake.hashes, before.name, before.manifest.chunks, started)


def _has_changed(plan: Plan, failed: Collection[str]) -> bool:
    """Return whether there is anything to publish apart from documents that could not be read."""
    return bool(plan.rework or plan.drop or plan.moved or any(doc_id not in failed for doc_id in plan.to_read))


def _has_new_contexts(plan: Plan, outcome: Contextualized) -> bool:
    """Return whether chunks of the reworked documents have a context that had failed before, or have changed."""
    before = {node_id for record in plan.rework for node_id in record.fallback_chunks}
    return before != {failure.node_id for failure in outcome.failures}


def _counter(progress: ReportProgress | None, plan: Plan, intake: Intake, *, writes_contexts: bool) -> ProgressCounter:
    todo = plan.to_read
    size = sum(intake.size(doc_id) for doc_id in todo) + sum(record.characters for record in plan.rework)
    return ProgressCounter(
        progress,
        documents_total=len(todo) + len(plan.rework),
        bytes_total=size,
        writes_contexts=writes_contexts,
    )


def _cut_jobs(jobs: Iterator[Job], stages: Stages, intake: Intake, failed: list[str], seconds: float) -> Iterator[Job]:
    """Yield jobs with their chunks; a document that takes too long to divide is skipped like an unreadable file."""
    for job in jobs:
        if job.nodes is not None or job.document is None:
            yield job
            continue
        limit = seconds * max(1.0, len(job.document.text) / _CHARACTERS_IN_TIME)
        try:
            nodes = cut(job.document, stages.parsers, seconds=limit, check=stages.require_unchanged)
        except TimeoutError:
            reason = f"takes more than {limit:.0f} seconds to divide into chunks: split it into smaller files"
            intake.skip(job.doc_id, reason)
            failed.append(job.doc_id)
        else:
            yield replace(job, nodes=nodes)


def _count_jobs(jobs: Iterator[Job], counter: ProgressCounter, failed: Sequence[str]) -> Iterator[Job]:
    """Yield jobs, and count the documents that were read or could not be read."""
    counted = 0
    for done, job in enumerate(jobs, start=1):
        counter.read(done + len(failed) - counted, size=job.size)
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
        record = before.record(doc_id) if doc_id in updated else plan.rename.get(doc_id)
        if record is not None and record.chunks:
            builder.dropped.discard(record.doc_id)
            builder.keep([record])
        elif record is not None:
            emptied.append(record.doc_id)
    return emptied


def _report(
    plan: Plan,
    intake: Intake,
    named: Collection[str],
    version: str | None,
    chunks: int,
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
        chunks=chunks,
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
    records = () if before is None else before.records
    known = {record.doc_id for record in records}
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in known]:
        raise InputError(
            f"Project {project_dir.name!r} has no document {unknown[0]!r}{nearest(unknown[0], known)}",
            value=unknown[0],
            remedy=Remedy(
                "`project.documents()` returns all of them",
                "`llama-index-contextual documents {project}` lists all of them",
            ),
        )
    remaining = [record for record in records if record.doc_id not in doc_ids]
    version = None if before is None else before.name
    if before is not None and doc_ids:
        version = _publish(project_dir, config, before, dropped=doc_ids).version
    return IngestReport(
        version=version,
        removed=tuple(record.doc_id for record in records if record.doc_id in doc_ids),
        chunks=sum(record.chunks for record in remaining),
        seconds=time.monotonic() - started,
    )


def rewrite(project_dir: Path, config: ProjectConfig, before: OpenVersion) -> str:
    """Publish the documents of a version without traces of those that are gone, and return the name of the new version.

    Args:
        project_dir: Folder of the project; the caller must hold its lock.
        config: Settings of the project.
        before: The live version.
    """
    return _publish(project_dir, config, before, rewrite=True).version


def settings_of(manifest: Manifest, config: ProjectConfig) -> ProjectConfig:
    """Return the settings of a project, without changes that need a rebuild since a version was built."""
    built_with = ProjectConfig(**manifest.config)
    return config.changed(**{name: getattr(built_with, name) for name in config.rebuild_fields(built_with)})


def _publish(
    project_dir: Path,
    config: ProjectConfig,
    before: OpenVersion,
    *,
    dropped: Collection[str] = (),
    rewrite: bool = False,
) -> Manifest:
    """Publish the documents of a version without some of them, with the settings that it was built with."""
    builder = VersionBuilder(project_dir, settings_of(before.manifest, config), before, set(dropped))
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        builder.keep(record for record in before.records if record.doc_id not in dropped)
        return builder.publish(embed_model=before.manifest.embed_model, rewrite=rewrite)
