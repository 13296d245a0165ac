"""Functions that change a project: ingest, sync, remove, forget, repair and update settings.

Every change to the documents builds a new version next to the live version and then publishes it. `arun` does this for
the inputs of an ingestion or a sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict, get_args

from llama_index.core.schema import BaseNode

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual._utils.keywords import Option, nearest
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import Contextualized
from llama_index_contextual.contextualizer.sending import IncompleteBatch
from llama_index_contextual.contextualizer.tokens import EmbeddingCount
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    FormatError,
    InputError,
    NoVersionError,
    Remedy,
)
from llama_index_contextual.index.answers import ANSWERS_FILE, AnswerFile
from llama_index_contextual.index.derived import is_outdated
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.manifest import Manifest, read_manifest
from llama_index_contextual.index.project_file import (
    project_ledger,
    read_config,
    record_embed_object,
    write_config,
    write_lock,
)
from llama_index_contextual.index.qdrant import check_backend
from llama_index_contextual.index.sources import inputs_of
from llama_index_contextual.index.verify import ForgetReport, PartFaults, Repair, forget, only_derived, records_of
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate
from llama_index_contextual.ingestion.pipeline import (
    Executor,
    Stages,
    abuild,
    acollect_replies,
    cut,
    paid_stages,
    spending_of,
)
from llama_index_contextual.ingestion.plan import (
    FOR_LATER,
    FileReader,
    IngestInput,
    Intake,
    Job,
    Plan,
    RunOptions,
    nothing_to_ingest,
    plan_run,
)
from llama_index_contextual.ingestion.report import (
    IngestProgress,
    IngestReport,
    ProgressCounter,
    ReportProgress,
    progress_bar,
    store_skipped,
)
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import ModelSetting, contextual_model, missing_for
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.readers import ReadLimits, SkippedFile
from llama_index_contextual.readers.documents import FileMetadata

# ---- options ---------------------------------------------------------------------------------------------------------


class ReadingOptions(TypedDict, total=False):
    """Options for reading files and requesting contexts, shared by `ingest`, `estimate` and `sync_folders`.

    Attributes:
        file_metadata: Function that returns additional metadata for a file path, a dict of JSON values. Without it,
            documents keep the metadata of earlier calls; `lambda path: {}` removes it.
        limits: Limits for reading one file.
        passwords: Passwords of encrypted PDFs: one for all, or one for each path, document id or file name; the key "*"
            stands for all other files. They are not stored.
        batch: Request contexts in batches, which the provider answers within 24 hours at half the price per token; its
            prompt cache may be less effective for them. If the process ends before that, the same call or any later one
            fetches the replies. If a batch expires, fails or is cancelled, its replies are kept, and the report lists
            the other contexts with the cost of a retry; they are never requested with live calls instead.
    """

    file_metadata: FileMetadata | None
    limits: ReadLimits | None
    passwords: Mapping[str, str] | str | None
    batch: Annotated[bool, Option(default=False)]


class IngestOptions(ReadingOptions, total=False):
    """Additional options for `ingest`.

    Attributes:
        progress: Called with the progress of the run.
        ray: Address of a Ray cluster (extra `ray`), whose nodes read and split files, and embed texts unless the
            embedding model is behind an API: "auto" for the cluster of this machine, HOST:PORT, or "local" to start Ray
            on this machine for this call. Chunks, contexts and vectors are the same as in a local run. This machine
            must be a node of the cluster and have the project; all nodes need access to the files under the same paths,
            and the same version of this package.
    """

    progress: ReportProgress | None
    ray: str | None


class FolderOptions(ReadingOptions, total=False):
    """Additional options for `sync_folders`.

    Attributes:
        progress: Called with the progress of the run.
        allow_empty: Whether all documents of a folder may be removed. Otherwise, an error is raised, because a drive
            that is not mounted looks like an empty folder.
        allow_many: Whether more than a tenth of the documents of a folder, and more than one, may be removed at once.
            Otherwise, an error is raised unless `remove` lists their ids, because the folder may not have been
            completely restored. The version before such a removal is kept as long as the version after it.
        watching: Whether the caller watches the folders and calls again after every change. Small files are then read
            first, about 20 MB at a time, and larger ones left for a later call. `keep_versions` counts the version
            separately, so that it does not displace the versions of other calls.
        unreadable: Files that an earlier call could not read, from `skipped` in its report. They are not read again
            until their content changes, and are listed with the same reason.
        settle: Number of seconds to watch the files first; a file that changes during that time is probably still being
            written, and is left for a later call.
    """

    progress: ReportProgress | None
    allow_empty: Annotated[bool, Option(default=False)]
    allow_many: Annotated[bool, Option(default=False)]
    watching: Annotated[bool, Option(default=False)]
    unreadable: Annotated[Collection[SkippedFile], Option(default=())]
    settle: Annotated[float, Option(default=0.0)]


def _run_options(given: Mapping[str, Any], **more: Any) -> RunOptions:
    names = {field.name for field in dataclasses.fields(RunOptions)}
    return RunOptions(**{name: value for name, value in given.items() if name in names and value is not None}, **more)


def _items(inputs: Iterable[IngestInput] | IngestInput) -> list[IngestInput]:
    if isinstance(inputs, str | os.PathLike | BaseNode) or not isinstance(inputs, Iterable):
        return [inputs]
    return list(inputs)


# ---- runs ------------------------------------------------------------------------------------------------------------


async def aingest(
    state: ProjectState,
    inputs: Iterable[IngestInput] | IngestInput,
    options: IngestOptions,
    *,
    show_progress: bool,
    **more: Any,
) -> IngestReport:
    """Add and update documents, in this process or on a Ray cluster; see `Project.ingest`."""
    run, items, progress = _run_options(options, **more), _items(inputs), options.get("progress")
    async with contextlib.AsyncExitStack() as stack:
        executor, address = None, options.get("ray")
        if address is not None:
            executor = await stack.enter_async_context(_on_ray(state, address, batch=run.batch))
        return await achange(state, items, run, show_progress=show_progress, progress=progress, executor=executor)


async def async_folders(
    state: ProjectState,
    folders: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    options: FolderOptions,
    remove: Collection[str] | bool = True,
    *,
    dry_run: bool,
    show_progress: bool,
    max_cost: float | None,
) -> IngestReport:
    """Synchronise the documents with folders; see `Project.sync_folders`."""
    paths: list[IngestInput] = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not paths:
        raise InputError("There is no folder to sync: pass at least one.", value=paths)
    removable = None if remove is True else frozenset([remove] if isinstance(remove, str) else remove or ())
    allow_many = options.get("allow_many", False) or dry_run or removable is not None
    run = _run_options({**options, "allow_many": allow_many}, purpose="sync", max_cost=max_cost, removable=removable)
    if not dry_run:
        return await achange(state, paths, run, show_progress=show_progress, progress=options.get("progress"))

    def preview() -> IngestReport:
        with state.open_live() as before:
            return _IngestRun.of(paths, run, state.config, before).report()

    return await asyncio.to_thread(preview)


async def achange(
    state: ProjectState,
    inputs: Sequence[IngestInput],
    options: RunOptions,
    *,
    show_progress: bool = False,
    progress: ReportProgress | None = None,
    executor: Executor | None = None,
) -> IngestReport:
    """Lock the project, open its ledger, and execute one run."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(write_lock(state.directory))
        # Another program may keep the ledger locked for a while.
        ledger = await run_to_completion(partial(stack.enter_context, project_ledger(state.directory)))
        former = state.version_to_build_on(replace=options.replace)
        before = await asyncio.to_thread(stack.enter_context, former)
        if progress is None and show_progress:
            progress = stack.enter_context(progress_bar())
        report = await arun(
            inputs,
            options,
            project_dir=state.directory,
            config=state.config,
            make_stages=lambda: state.stages(ledger, state.embed_model if state.config.builds_semantic else None),
            before=before,
            progress=progress,
            executor=executor,
        )
        if report.version is not None:
            await run_to_completion(state.remember_embed_model)
        if inputs:
            skipped = [file for file in report.skipped if file.reason not in FOR_LATER]
            await run_to_completion(partial(store_skipped, state.directory, skipped))
        return report


def estimate_run(
    state: ProjectState, inputs: Iterable[IngestInput] | IngestInput, options: ReadingOptions, **more: Any
) -> CostEstimate:
    """Estimate the cost of a run; see `Project.estimate`."""
    run, embed_model, items = _run_options(options, **more), state.embed_model_name, _items(inputs)
    with (
        contextlib.closing(Ledger(state.directory / LEDGER_FILE, read_only=True)) as ledger,
        state.version_to_build_on(replace=run.replace) as before,
    ):
        passed = state.passed_embed_model
        model = contextual_model(embed_model or "") if passed is None else passed
        contextual = model if isinstance(model, ContextualEmbedding) else None
        embedding = EmbeddingCount(embed_model, getattr(passed, "dimensions", None), ledger, contextual)
        return estimate(items, run, state.config, state.stages(ledger, None), embedding, before)


# ---- one run ---------------------------------------------------------------------------------------------------------

_CHARACTERS_IN_TIME = 10_000_000
"""Document length, in characters, above which the time limit for chunking grows with the length."""


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
    """Build a new version and publish it if anything has changed.

    Args:
        inputs: Paths, Documents and nodes.
        options: Options for the run.
        project_dir: Folder of the project.
        config: Settings of the project.
        make_stages: Function that returns the components that process a document. It is not called if there is nothing
            to do, to avoid loading a model.
        before: The previous version, or None.
        progress: Called with the progress of the run.
        executor: Executor that reads, cuts and embeds the documents; None does this in the current process.

    Raises:
        InputError: There is nothing to ingest.
        BudgetExceededError: The next call could exceed `max_cost`.
    """
    run = await asyncio.to_thread(_IngestRun.of, inputs, options, config, before)
    if run.changes_nothing and (before is not None or options.is_sync):
        return await run.update_derived(project_dir)
    stages, executor = await asyncio.to_thread(make_stages), executor or Executor()
    if before is not None and before.manifest.embed_model == stages.embed_model_name:
        stages = replace(stages, dimensions=before.manifest.dimensions)
    with contextlib.ExitStack() as stack:
        builder = VersionBuilder(project_dir, config, before, run.plan.not_kept)
        stack.callback(builder.discard)
        if options.watching:
            run.intake.postpone(run.plan)
        counter = run.counter(progress)
        reader = stack.enter_context(executor.reader(run.intake, config, stages.ledger, counter))
        await run_to_completion(partial(builder.keep, run.plan.keep))
        prices = Prices(config.prices)
        spending = stack.enter_context(
            spending_of(stages, prices, max_cost=options.max_cost, purpose=options.purpose).receipted()
        )
        counter.spent = lambda: spending.actual.dollars
        spending.planned_share = lambda: counter.state.share_read
        outcome, incomplete = await run.process(builder, reader, stages, spending, counter, executor)
        report = await run.publish_changes(builder, stages, outcome, counter)
    estimated = spending.estimated if config.context == "llm" else None
    paid = spending.booked
    return replace(report, incomplete_batch=incomplete, estimated=estimated, paid=paid, prices=spending.prices.version)


@dataclass(frozen=True)
class _IngestRun:
    """One run, with its inputs, plan and start time."""

    inputs: Sequence[IngestInput]
    options: RunOptions
    config: ProjectConfig
    before: OpenVersion | None
    intake: Intake
    plan: Plan
    started: float

    @classmethod
    def of(
        cls,
        inputs: Sequence[IngestInput],
        options: RunOptions,
        config: ProjectConfig,
        before: OpenVersion | None,
    ) -> _IngestRun:
        started = time.monotonic()
        intake, plan = plan_run(inputs, options, config, before)
        intake.skip_unreadable(plan.to_read)
        return cls(inputs, options, config, before, intake, plan, started)

    @property
    def changes_nothing(self) -> bool:
        """True if there is nothing to do, apart from files that are already known to be unreadable."""
        plan = self.plan
        return not (plan.rework or plan.drop or set(plan.to_read).difference(self.intake.failed))

    async def update_derived(self, project_dir: Path) -> IngestReport:
        """Publish the documents with current derived data, unless they are current, and return the report."""
        before = self.before
        if before is None or not any(is_outdated(part.entry.derived, self.config) for part in before.parts):
            return self.report()
        publish = partial(_publish_copy, project_dir, self.config, before, automatic=self.options.watching)
        report = self.report(await run_to_completion(publish))
        if self.options.purpose != "rebuild":
            return report
        return replace(report, rebuilt=report.unchanged, unchanged=())

    def counter(self, progress: ReportProgress | None) -> ProgressCounter:
        """Return the run's progress counter, which calls `progress`."""
        documents = len(self.plan.to_read) + len(self.plan.rework)
        writes = self.config.context == "llm"
        return ProgressCounter(
            progress, IngestProgress(stage="ingest", documents_total=documents, writes_contexts=writes)
        )

    async def process(
        self,
        builder: VersionBuilder,
        reader: FileReader,
        stages: Stages,
        spending: Account,
        counter: ProgressCounter,
        executor: Executor,
    ) -> tuple[Contextualized, IncompleteBatch | None]:
        """Read, contextualize, embed and add documents, and return the requests that batches left open."""
        plan, intake, before, options = self.plan, self.intake, self.before, self.options
        accepts_cost = options.retry_failed and options.max_cost is not None
        replies = await acollect_replies(
            stages,
            lambda: plan.jobs(replace(intake, skipped=[], failed=list(intake.failed), warnings=[]), reader, before),
            submit=options.batch,
            spending=spending,
            accepts_cost=accepts_cost,
            on_progress=lambda state: counter.set(stage="batch", batch_done=state.done, batch_total=state.requests),
        )
        counter.set(stage="ingest")
        stages = paid_stages(stages, spending, replies, retries_refused=accepts_cost)
        stages = await asyncio.to_thread(executor.embedding_stages, stages)
        jobs = self._cut(plan.jobs(intake, reader, before), stages, counter)
        outcome = await abuild(jobs, stages, builder, progress=counter, batches_ahead=executor.batches_ahead)
        if replies is None:
            return outcome, None
        replies.close()
        return outcome, replies.incomplete

    def _cut(self, jobs: Iterator[Job], stages: Stages, counter: ProgressCounter) -> Iterator[Job]:
        """Cut the documents into chunks and yield the jobs with their chunks.

        A document that takes too long is skipped in the same way as an unreadable file.
        """
        done = 0
        for job in jobs:
            stages.require_running()
            if job.nodes is None and job.document is not None:
                limit = self.options.limits.max_seconds * max(1.0, len(job.document.text) / _CHARACTERS_IN_TIME)
                try:
                    nodes = cut(job.document, stages.parsers, seconds=limit, check=stages.require_running)
                except TimeoutError:
                    reason = f"takes more than {limit:.0f} seconds to divide into chunks: split it into smaller files"
                    self.intake.skip(job.doc_id, reason)
                    continue
                job = replace(job, nodes=nodes)
            done += 1
            counter.set(documents_read=done + len(self.intake.failed), document="", pages_done=0, pages_total=0)
            yield job
        counter.set(documents_read=done + len(self.intake.failed))

    async def publish_changes(
        self, builder: VersionBuilder, stages: Stages, outcome: Contextualized, counter: ProgressCounter
    ) -> IngestReport:
        """Publish the version if anything has changed, and return the report."""
        plan, intake, options, before = self.plan, self.intake, self.options, self.before
        self._keep_former_content(builder)
        if not builder.documents and not options.remove and not intake.removed:
            if options.is_sync:  # not an error, because files may be added to the folders later
                return self.report()
            raise InputError(nothing_to_ingest(intake.skipped), value=self.inputs)
        if options.retry_failed and not self._has_progress(outcome):
            plan.keep.extend(plan.rework)
            plan.rework.clear()
        has_read = any(doc_id not in intake.failed for doc_id in plan.to_read)
        if before is not None and not (has_read or plan.rework or plan.drop):
            return self.report().completed(outcome)
        counter.set(stage="publish")
        publish = partial(
            builder.publish,
            embed_model=stages.embed_model_name,
            automatic=options.watching,
            keeps=before.name if before is not None and intake.removes_many else None,
        )
        manifest = await run_to_completion(publish)
        counter.set(stage="done")
        return self.report(manifest).completed(outcome)

    def _keep_former_content(self, builder: VersionBuilder) -> None:
        """Keep the previous content of documents whose changed or renamed file cannot be read."""
        for doc_id in self.intake.failed:
            record = self.plan.rename.get(doc_id)
            if self.before is not None and doc_id in self.plan.update:
                record = self.before.record(doc_id)
            if record is not None:
                builder.dropped.discard(record.doc_id)
                builder.keep([record])

    def _has_progress(self, outcome: Contextualized) -> bool:
        """Return whether the set of failed chunks has changed in the reprocessed documents."""
        before = {
            (step, node_id)
            for record in self.plan.rework
            for step, node_ids in record.failed_chunks.items()
            for node_id in node_ids
        }
        return before != {(failure.step, failure.node_id) for failure in outcome.failures}

    def report(self, manifest: Manifest | None = None) -> IngestReport:
        """Return the report of the run.

        Args:
            manifest: The version that was published, or None.
        """
        plan, intake = self.plan, self.intake
        if manifest is None and self.before is not None:
            manifest = self.before.manifest
        failed = frozenset(intake.failed)
        names_all = not self.inputs and not self.options.retry_failed
        unchanged = [record.doc_id for record in plan.keep if names_all or record.doc_id in intake.sources]
        unchanged += [doc_id for doc_id in plan.update if doc_id in failed and doc_id not in plan.drop]
        unchanged += [record.doc_id for doc_id, record in plan.rename.items() if doc_id in failed]
        return IngestReport(
            version=None if manifest is None else manifest.version,
            added=tuple(doc_id for doc_id in plan.add if doc_id not in failed),
            updated=tuple(doc_id for doc_id in plan.update if doc_id not in failed),
            renamed={record.doc_id: doc_id for doc_id, record in plan.rename.items() if doc_id not in failed},
            unchanged=tuple(unchanged),
            rebuilt=tuple(record.doc_id for record in plan.rework),
            removed=tuple(plan.drop),
            missing=tuple(doc_id for doc_id in intake.missing if doc_id not in plan.drop),
            skipped=tuple(intake.skipped),
            warnings=tuple(intake.warnings),
            chunks=0 if manifest is None else manifest.chunks,
            seconds=time.monotonic() - self.started,
        )


def _on_ray(state: ProjectState, address: str, *, batch: bool) -> AbstractAsyncContextManager[Executor]:
    """Return the executor for a run on a Ray cluster.

    Raises:
        ConfigurationError: Ray is not installed, or it cannot be used for this run.
    """
    if batch:
        raise ConfigurationError(
            "Batches cannot be combined with Ray: the cluster would wait up to 24 hours for the provider",
            setting="batch",
            remedy=Remedy("omit batch or ray", "omit --batch or --ray"),
        )
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(
            'Ingestion on a cluster needs Ray: pip install "llama-index-contextual[ray]"', setting="ray"
        )
    from llama_index_contextual.ingestion.ray import ray_executor

    return ray_executor(address, state.passed_embed_model)


# ---- removing documents and versions ---------------------------------------------------------------------------------


def remove_documents(state: ProjectState, doc_ids: Sequence[str] | str) -> IngestReport:
    """Publish a version without some documents and clear the cached answers; see `Project.remove`."""
    started = time.monotonic()
    unwanted = frozenset([doc_ids] if isinstance(doc_ids, str) else doc_ids)
    with write_lock(state.directory), state.open_live() as before:
        records = {} if before is None else {record.doc_id: record for record in before.records}
        if unknown := sorted(unwanted - records.keys()):
            raise InputError(
                f"Project {state.name!r} has no document {unknown[0]!r}{nearest(unknown[0], records)}",
                value=unknown[0],
                remedy=Remedy(
                    "`project.documents()` returns all of them",
                    "`llama-index-contextual documents {project}` lists all of them",
                ),
            )
        manifest = None if before is None else before.manifest
        if before is not None and unwanted:
            manifest = _publish_copy(
                state.directory, _settings_of(before.manifest, state.config), before, dropped=unwanted
            )
    AnswerFile(state.directory / ANSWERS_FILE).clear()
    return IngestReport(
        version=None if manifest is None else manifest.version,
        removed=tuple(doc_id for doc_id in records if doc_id in unwanted),
        chunks=0 if manifest is None else manifest.chunks,
        seconds=time.monotonic() - started,
    )


def rebuild_derived(state: ProjectState) -> IngestReport:
    """Publish the documents with derived data that are made again, without calling a model; see `Project.rebuild`."""
    started = time.monotonic()
    with write_lock(state.directory), state.open_live() as before:
        if before is None:
            raise InputError(nothing_to_ingest(()), value=None)
        config = _settings_of(before.manifest, state.config)
        manifest = _publish_copy(state.directory, config, before, remake=True)
        return IngestReport(
            version=manifest.version,
            rebuilt=tuple(before.records.by_id),
            chunks=manifest.chunks,
            seconds=time.monotonic() - started,
        )


def _publish_copy(
    project_dir: Path,
    config: ProjectConfig,
    before: OpenVersion,
    *,
    dropped: Collection[str] = (),
    remake: bool = False,
    automatic: bool = False,
    keeps: str | None = None,
) -> Manifest:
    """Publish a copy of a version, without some of its documents and with current derived data; no model is called."""
    builder = VersionBuilder(project_dir, config, before, set(dropped), remake=remake)
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        builder.keep(record for record in before.records if record.doc_id not in dropped)
        return builder.publish(embed_model=before.manifest.embed_model, automatic=automatic, keeps=keeps)


def _settings_of(manifest: Manifest, config: ProjectConfig) -> ProjectConfig:
    """Return the current settings, but with the version's values for settings whose change may require a model."""
    built_with = ProjectConfig(**manifest.config)
    fields = config.rebuild_fields(built_with, derived=False)
    return config.changed(**{name: getattr(built_with, name) for name in fields})


def forget_rest(state: ProjectState, *, dry_run: bool) -> ForgetReport:
    """Remove all data that is not in the live version; see `Project.forget`."""
    with write_lock(state.directory), state.open_live() as live:
        if live is None:
            raise NoVersionError(
                f"Project {state.name!r} has no version yet",
                name=state.name,
                remedy=Remedy(
                    "delete the project to remove its ledger",
                    "`llama-index-contextual delete {project}` removes its ledger too",
                ),
            )
        if not dry_run:
            AnswerFile(state.directory / ANSWERS_FILE).clear()
            store_skipped(state.directory, ())
        return forget(state.directory, live, dry_run=dry_run)


def publish_repaired(state: ProjectState, live: str, faults: PartFaults) -> Repair:
    """Publish the live version without its damaged parts; see `Project.verify`. The write lock must be held."""
    directory = version_directory(state.directory, live)
    whole = read_manifest(directory)
    remade = [entry.name for entry in whole.parts if only_derived(faults[entry.name])]
    damaged = [entry.name for entry in whole.parts if faults[entry.name] and entry.name not in remade]
    missing = [record for part in damaged for record in records_of(state.directory, part, faults)]
    with contextlib.closing(OpenVersion(directory, without=damaged, remade=remade)) as before:
        lost = set(before.lost_documents())
        missing += (record for record in before.records if record.doc_id in lost)
        config = _settings_of(whole, state.config)
        manifest = _publish_copy(state.directory, config, before, dropped=lost, keeps=live)
    inputs = inputs_of(missing)
    return Repair(
        version=manifest.version,
        former=live,
        missing={record.doc_id: inputs.get(record.doc_id) for record in missing},
        unnamed=max(0, whole.documents - manifest.documents - len(missing)),
        remade=sum(len(records_of(state.directory, part, faults)) for part in remade),
    )


# ---- settings --------------------------------------------------------------------------------------------------------


def update_config(state: ProjectState, changes: Mapping[str, Any]) -> list[str]:
    """Change settings and return the names of settings that require a new version; see `Project.update_config`."""
    with write_lock(state.directory):
        # Another process may have changed the settings since they were read.
        config = read_config(state.directory).changed(**changes)
        for setting in get_args(ModelSetting):
            if changes.get(setting) is not None:
                missing_for(changes[setting], setting=setting)
        if "backend" in changes:
            check_backend(config)
        if changes.get("embed_model", state.config.embed_model) != state.config.embed_model:
            record_embed_object(state.directory, None)
        write_config(state.directory, config)
        pending = config.rebuild_fields(_built_with(state.directory) or state.config)
        state.reconfigure(config)
    state.warn_of_settings()
    return pending


def _built_with(directory: Path) -> ProjectConfig | None:
    """Return the settings that the live version was built with, or None if there is no readable version."""
    try:
        name = current_name(directory)
        if name is None:
            return None
        return ProjectConfig(**read_manifest(version_directory(directory, name)).config)
    except (CorruptVersionError, FormatError):
        return None
