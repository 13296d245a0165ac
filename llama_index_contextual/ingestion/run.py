"""One ingest run: prepare, process, publish.

`aingest` locks the project and opens its ledger and its live version. The run is then prepared: `IngestRun` matches the
inputs with the documents of this version and plans an action for each document. If there is work to do, `abuild` reads
and cuts the documents, passes them in groups to a `GroupProcessor`, which contextualizes, embeds and stores them in a
new version, and publishes this version.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import LOCAL, ProjectConfig
from llama_index_contextual.contextualizer.base import ContextSession, Contextualized, Contextualizer, with_context
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.sending import BatchProgress, BatchReplies, asend_batches
from llama_index_contextual.contextualizer.tokens import expected_context_tokens
from llama_index_contextual.embeddings.languages import unknown_languages
from llama_index_contextual.errors import ConfigurationError, ContextualError, InputError, ProjectLockedError, Remedy
from llama_index_contextual.index.dates import document_date, sketch_of
from llama_index_contextual.index.derived import is_outdated
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.manifest import DocumentRecord, Manifest
from llama_index_contextual.index.part import DocumentFrame
from llama_index_contextual.index.project_file import project_ledger, write_lock
from llama_index_contextual.index.sources import store_downloads
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion.estimate import CostCounter
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.pipeline import Embedder, Executor, InterruptibleNodes, Pipeline
from llama_index_contextual.ingestion.plan import (
    FOR_LATER,
    POSTPONED,
    IngestInput,
    Job,
    SkippedDocument,
    nothing_to_ingest,
    plan_run,
)
from llama_index_contextual.ingestion.report import (
    ContextLengths,
    IngestProgress,
    IngestReport,
    ProgressCounter,
    ReportProgress,
    progress_bar,
    store_skipped,
)
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import own_prefixes
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.readers.files import is_url
from llama_index_contextual.readers.remote import RemoteFiles

logger = get_logger(__name__)

GROUP_CHUNKS = 256
"""Minimum number of chunks that are processed together."""

GROUP_PICTURE_BYTES = 50_000_000
"""Size of the pictures of figures, in bytes, from which a group with fewer chunks is processed."""

SYNC_BYTES = 20_000_000
"""Maximum total size, in bytes, of the files that a watching sync reads at a time. Larger files are read alone."""

PATIENCE = 10.0
"""Seconds to wait for calls in flight when the run is cancelled."""

NOTHING = Contextualized([], [], 0)
"""Results of a run that has not processed any document."""

_CHARACTERS_IN_TIME = 10_000_000
"""Document length, in characters, above which the time limit for chunking grows with the length."""


_LOCK_SECONDS = 0.2
"""Time between two attempts to lock a project."""


async def _lock(stack: contextlib.AsyncExitStack, directory: Path, seconds: float) -> None:
    """Hold the write lock of a project until the stack is closed; wait for another writer.

    Raises:
        ProjectLockedError: Another process or thread is still writing after the given number of seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            stack.enter_context(write_lock(directory))
            return
        except ProjectLockedError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise
        await asyncio.sleep(min(left, _LOCK_SECONDS))


async def aingest(
    state: ProjectState,
    inputs: Sequence[IngestInput],
    options: RunOptions,
    *,
    show_progress: bool = False,
    progress: ReportProgress | None = None,
    ray: str | None = None,
) -> IngestReport:
    """Execute one run; see `Project.ingest`.

    Args:
        state: State of the project.
        inputs: Paths, Documents and nodes.
        options: Options for the run.
        show_progress: Whether to show a progress bar if `progress` is None.
        progress: Called with the progress of the run.
        ray: Address of a Ray cluster that reads, cuts and embeds the documents, or None for this process.
    """
    async with contextlib.AsyncExitStack() as stack:
        executor = Executor()
        if ray is not None:
            if any(map(is_url, inputs)):
                raise ConfigurationError(
                    "Ray cannot read URLs, because they are downloaded to a folder of this machine: mount the source on"
                    " all nodes and ingest the folder",
                    setting="ray",
                    remedy=Remedy("or omit ray", "or omit --ray"),
                )
            executor = await stack.enter_async_context(_on_ray(state, ray, batch=options.batch))
        await _lock(stack, state.directory, options.wait)
        # Another program may keep the ledger locked for a while.
        ledger = await run_to_completion(partial(stack.enter_context, project_ledger(state.directory)))
        version = state.version_to_build_on(replace=options.replace)
        previous = await asyncio.to_thread(stack.enter_context, version)
        if progress is None and show_progress:
            progress = stack.enter_context(progress_bar())
        remote = stack.enter_context(state.remote_files(options.limits))
        run = await asyncio.to_thread(IngestRun, inputs, options, state.config, previous, remote)
        if run.changes_nothing:  # no model is loaded
            report = await run.aupdate_derived(state.directory)
        else:
            pipeline = await asyncio.to_thread(
                state.pipeline, ledger, retries_refused=options.accepts_cost, renews_kept=options.renew
            )
            report = await run.abuild(pipeline, state.directory, progress=progress, executor=executor)
        if report.version is not None:
            await run_to_completion(state.remember_embed_model)
        if inputs:
            skipped = [file for file in report.skipped if file.reason not in FOR_LATER]
            await run_to_completion(partial(store_skipped, state.directory, skipped))
            await run_to_completion(partial(store_downloads, state.directory, remote.fetched))
        return report


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


class IngestRun:
    """One run: planned when it is created, then executed by `abuild`.

    Args:
        inputs: Paths, Documents and nodes.
        options: Options for the run.
        config: Settings of the project.
        previous: The previous version, or None.
        remote: Access to files at URLs; None if there are none among the inputs.

    Attributes:
        plan: Action for each document.
        failed: Ids of documents that could not be read.
        skipped: Files that were not read, each with the reason.
        warnings: Warnings about files that were read.

    Raises:
        ConfigurationError: `retry_failed` is set, but settings have changed.
        InputError: An input cannot be ingested, or two inputs have the same id.
        PathNotFoundError: A path does not exist.
    """

    def __init__(
        self,
        inputs: Sequence[IngestInput],
        options: RunOptions,
        config: ProjectConfig,
        previous: OpenVersion | None,
        remote: RemoteFiles | None = None,
    ) -> None:
        self._started = time.monotonic()
        self._items, self._options, self._config, self._previous = inputs, options, config, previous
        self._inputs, self.plan = plan_run(inputs, options, config, previous, remote)
        self.failed: list[str] = []
        self.skipped = [*self._inputs.skipped]
        self.warnings = [*self._inputs.warnings]
        # Files that could not be read earlier and whose content has not changed since.
        reasons = {(file.path, file.content_hash): file.reason for file in options.unreadable}
        for document in (self._inputs.documents[doc_id] for doc_id in self.plan.to_read):
            path = None if document.ref is None else document.ref.shown
            if path is not None and (reason := reasons.get((path, document.digest))) is not None:
                self._skip(document.skip(reason))

    def _skip(self, document: SkippedDocument) -> None:
        self.failed.append(document.doc_id)
        self.skipped.append(document.file)

    @property
    def changes_nothing(self) -> bool:
        """True if there is nothing to do, apart from files that are already known to be unreadable.

        A first ingestion, unlike a sync, must find documents: `abuild` raises an error if there are none.
        """
        is_idle = not (self.plan.rework or self.plan.drop or set(self.plan.to_read).difference(self.failed))
        return is_idle and (self._previous is not None or self._options.is_sync)

    async def aupdate_derived(self, project_dir: Path) -> IngestReport:
        """Publish the documents with current derived data, unless they are current, and return the report."""
        previous = self._previous
        if previous is None or not any(is_outdated(part.entry.derived, self._config) for part in previous.parts):
            return self.report()
        publish = partial(publish_copy, project_dir, self._config, previous, automatic=self._options.watching)
        report = self.report(manifest=await run_to_completion(publish))
        if self._options.purpose != "rebuild":
            return report
        return replace(report, rebuilt=report.unchanged, unchanged=())

    async def abuild(
        self,
        pipeline: Pipeline,
        project_dir: Path,
        *,
        progress: ReportProgress | None = None,
        executor: Executor | None = None,
    ) -> IngestReport:
        """Process the documents, and publish a new version if anything has changed.

        Args:
            pipeline: Components that process a document, as the settings select them.
            project_dir: Folder of the project.
            progress: Called with the progress of the run.
            executor: Executor that reads, cuts and embeds the documents; None does this in the current process.

        Raises:
            InputError: There is nothing to ingest.
            BudgetExceededError: The next call could exceed `max_cost`.
        """
        options, config, previous, executor = self._options, self._config, self._previous, executor or Executor()
        with contextlib.ExitStack() as stack:
            builder = VersionBuilder(project_dir, config, previous, self.plan.not_kept)
            stack.callback(builder.discard)
            if options.watching:
                self._postpone_large_files()
            counter = ProgressCounter(
                progress,
                IngestProgress(
                    stage="ingest",
                    documents_total=len(self.plan.to_read) + len(self.plan.rework),
                    writes_contexts=config.context == "llm",
                ),
            )
            reader = stack.enter_context(executor.reader(self._inputs, config, pipeline.ledger, counter))
            await run_to_completion(partial(builder.keep, self.plan.keep))
            account = stack.enter_context(
                open_account(
                    pipeline, Prices(config.prices), max_cost=options.max_cost, purpose=options.purpose
                ).receipted()
            )
            counter.spent = lambda: account.actual.dollars
            account.planned_share = lambda: counter.state.share_read
            jobs = partial(self.plan.jobs, self._inputs, reader, previous, failed=self.failed)
            replies = await acollect_replies(
                pipeline,
                jobs,
                submit=options.batch,
                account=account,
                accepts_cost=options.accepts_cost,
                on_progress=lambda state: counter.set(stage="batch", batch_done=state.done, batch_total=state.requests),
            )
            counter.set(stage="ingest")
            is_same_model = previous is not None and previous.manifest.embed_model == pipeline.embed_model_name
            embedder = Embedder(
                model=await asyncio.to_thread(executor.embed_model, pipeline),
                name=pipeline.embed_model_name,
                ledger=pipeline.ledger,
                account=account,
                splitter=pipeline.splitter,
                dimensions=previous.manifest.dimensions if previous is not None and is_same_model else None,
            )
            async with contextlib.AsyncExitStack() as calls:
                session, ahead = None, executor.groups_ahead
                if (contextualizer := pipeline.contextualizer) is not None:  # the groups share its client and limits
                    session_context = open_session(contextualizer, pipeline.ledger, account, replies)
                    session = await calls.enter_async_context(session_context)
                    ahead = max(ahead, contextualizer.groups_ahead)
                processor = GroupProcessor(session, embedder, builder, counter, ahead)
                groups = self._groups(jobs(), pipeline, processor, cost_counter(pipeline, replies))
                try:
                    while group := await asyncio.to_thread(next, groups, None):
                        await processor.add(group)
                    await processor.finish()
                except BaseException as error:
                    await processor.abort(error)
                    raise
            if replies is not None:
                replies.close()
            report = await self._publish(builder, pipeline.embed_model_name, processor.outcome, counter)
        return replace(
            report,
            incomplete_batch=None if replies is None else replies.incomplete,
            estimated=account.estimated if config.context == "llm" else None,
            paid=account.total,
            prices=account.prices.version,
        )

    def _postpone_large_files(self) -> None:
        """Leave large files for the next sync, so that small files need not wait for them."""
        unread = (self._inputs.documents[doc_id] for doc_id in self.plan.to_read if doc_id not in self.failed)
        sizes = {document.doc_id: document.ref.size for document in unread if document.ref is not None}
        total, is_first = 0, not (self.plan.rework or self.plan.drop)
        for doc_id in sorted(sizes, key=sizes.__getitem__):
            total += sizes[doc_id]
            if total > SYNC_BYTES and not is_first:
                self._skip(self._inputs.documents[doc_id].skip(POSTPONED))
            is_first = False

    def _groups(
        self,
        jobs: Iterator[Job | SkippedDocument],
        pipeline: Pipeline,
        processor: GroupProcessor,
        cost: CostCounter | None,
    ) -> Iterator[JobGroup]:
        """Read and cut documents, and yield them with their chunks.

        Each group except the last has at least `GROUP_CHUNKS` chunks, or `GROUP_PICTURE_BYTES` of pictures. A file that
        takes too long is skipped in the same way as an unreadable file. Stored documents have no time limit, because
        their content must not be lost.
        """
        counter, reworked_ids = processor.counter, {record.doc_id for record in self.plan.rework}
        group: JobGroup = []
        size = count = pictures = 0
        for job in jobs:
            if isinstance(job, SkippedDocument):
                self._skip(job)
                continue
            self.warnings += job.warnings
            processor.require_running()
            limit = math.inf
            if job.document is not None and job.doc_id not in reworked_ids:
                limit = self._options.limits.max_seconds * max(1.0, len(job.document.text) / _CHARACTERS_IN_TIME)
            try:
                chunks = pipeline.parse(job, seconds=limit, check=processor.require_running)
            except TimeoutError:
                reason = f"takes more than {limit:.0f} seconds to divide into chunks: split it into smaller files"
                self._skip(self._inputs.documents[job.doc_id].skip(reason))
                continue
            count += 1
            counter.set(documents_read=count + len(self.failed), document="", pages_done=0, pages_total=0)
            if cost is not None:
                cost.add(chunks)
                processor.account.estimated = cost.receipt(processor.account)
            group.append((job, chunks))
            size += len(chunks)
            pictures += sum(map(len, job.pictures.values()))
            if size >= GROUP_CHUNKS or pictures >= GROUP_PICTURE_BYTES:
                yield group
                group, size, pictures = [], 0, 0
        counter.set(documents_read=count + len(self.failed))
        if group:
            yield group

    async def _publish(
        self, builder: VersionBuilder, embed_model: str | None, outcome: Contextualized, counter: ProgressCounter
    ) -> IngestReport:
        """Publish the version if anything has changed, and return the report."""
        plan, options, previous = self.plan, self._options, self._previous
        # Documents whose changed or renamed file cannot be read keep their previous content.
        for doc_id in self.failed:
            record = plan.rename.get(doc_id)
            if previous is not None and doc_id in plan.update:
                record = previous.record(doc_id)
            if record is not None:
                builder.dropped.discard(record.doc_id)
                builder.keep([record])
        if not builder.documents and not options.remove and not self._inputs.removed:
            if options.is_sync:  # not an error, because files may be added to the folders later
                return self.report()
            raise InputError(nothing_to_ingest(self.skipped), value=self._items)
        if options.retry_failed and not self._has_progress(outcome):
            self.plan = plan = replace(plan, keep=[*plan.keep, *plan.rework], rework=[])
        has_read = any(doc_id not in self.failed for doc_id in plan.to_read)
        if previous is not None and not (has_read or plan.rework or plan.drop):
            return self.report(outcome)
        counter.set(stage="publish")
        publish = partial(
            builder.publish,
            embed_model=embed_model,
            automatic=options.watching,
            keeps=previous.name if previous is not None and self._inputs.removes_many else None,
        )
        manifest = await run_to_completion(publish)
        counter.set(stage="done")
        return self.report(outcome, manifest)

    def _has_progress(self, outcome: Contextualized) -> bool:
        """Return whether the set of failed chunks has changed in the reprocessed documents."""
        former_failures = {
            (step, node_id)
            for record in self.plan.rework
            for step, node_ids in record.failed_chunks.items()
            for node_id in node_ids
        }
        return former_failures != {(failure.step, failure.node_id) for failure in outcome.failures}

    def report(self, outcome: Contextualized = NOTHING, manifest: Manifest | None = None) -> IngestReport:
        """Return the report of the run.

        Args:
            outcome: Results of the contextualizer and of the embedding model.
            manifest: The version that was published, or None.
        """
        plan, inputs = self.plan, self._inputs
        if manifest is None and self._previous is not None:
            manifest = self._previous.manifest
        failed = frozenset(self.failed)
        lists_all = not self._items and not self._options.retry_failed
        unchanged = [record.doc_id for record in plan.keep if lists_all or record.doc_id in inputs.documents]
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
            missing=tuple(doc_id for doc_id in inputs.missing if doc_id not in plan.drop),
            skipped=tuple(self.skipped),
            warnings=tuple(self.warnings),
            failures=tuple(outcome.failures),
            short_contexts=tuple(outcome.thin),
            context_lengths=ContextLengths.measure(outcome.lengths) if outcome.lengths else None,
            context_findings=dict(outcome.findings),
            contexts_paid=outcome.paid,
            contexts_kept=outcome.kept,
            chunks=0 if manifest is None else manifest.chunks,
            unknown_languages=None if manifest is None else unknown_languages(manifest.embed_model, manifest.languages),
            seconds=time.monotonic() - self._started,
        )


def publish_copy(
    project_dir: Path,
    config: ProjectConfig,
    previous: OpenVersion,
    *,
    remove: Collection[str] = (),
    remake: bool = False,
    automatic: bool = False,
    keeps: str | None = None,
) -> Manifest:
    """Publish a copy of a version, without some of its documents and with current derived data; no model is called."""
    builder = VersionBuilder(project_dir, config, previous, set(remove), remake=remake)
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        builder.keep(record for record in previous.records if record.doc_id not in remove)
        return builder.publish(embed_model=previous.manifest.embed_model, automatic=automatic, keeps=keeps)


# ---- groups of documents ---------------------------------------------------------------------------------------------

JobGroup = list[tuple[Job, list[BaseNode]]]
"""Documents processed together, each with its chunks."""

GroupResult = tuple[Contextualized, NDArray[np.float32] | None]


class GroupProcessor:
    """Contextualize and embed groups of documents concurrently, and store them in order.

    Args:
        session: Session of the contextualizer, or None for plain RAG.
        embedder: Embedding of the chunks.
        builder: Builder of the version.
        counter: Counter of the finished work.
        ahead: Minimum number of groups to start ahead of the oldest group.

    Attributes:
        counter: Counter of the finished work.
        account: Account of the run.
    """

    def __init__(
        self,
        session: ContextSession | None,
        embedder: Embedder,
        builder: VersionBuilder,
        counter: ProgressCounter,
        ahead: int,
    ) -> None:
        self._session, self._embedder, self._builder = session, embedder, builder
        self.counter, self.account = counter, embedder.account
        self._ahead = ahead
        self._groups: deque[tuple[JobGroup, asyncio.Task[GroupResult]]] = deque()
        self._stopping = threading.Event()
        self._results: list[Contextualized] = []

    def require_running(self) -> None:
        """Raise an error if the run has ended, so that work in other threads also stops.

        Raises:
            ContextualError: The run has ended.
        """
        if self._stopping.is_set():
            raise ContextualError("The run has ended.")

    async def add(self, group: JobGroup) -> None:
        """Start to process a group, and wait for the oldest groups if too many are in progress."""
        nodes = [node for _, chunks in group for node in chunks]
        self.counter.add(chunks_total=len(nodes))
        self._groups.append((group, asyncio.create_task(self._process(nodes))))
        while len(self._groups) > self._ahead:
            await self._store_oldest()

    async def finish(self) -> None:
        """Wait for all groups and store them."""
        while self._groups:
            await self._store_oldest()

    async def _process(self, nodes: Sequence[BaseNode]) -> GroupResult:
        """Contextualize and embed the chunks of a group."""

        def on_contexts(number: int) -> None:
            self.counter.add(chunks_done=number)

        if self._session is None:
            on_contexts(len(nodes))
            result = Contextualized([with_context(node, None) for node in nodes], [], 0)
        else:
            result = await self._session.acontextualize(nodes, progress=on_contexts)
        vectors, failures = await self._embedder.aembed(result.nodes)
        self.counter.add(chunks_embedded=len(result.nodes) - len(failures))
        return result._replace(failures=[*result.failures, *failures]), vectors

    async def _store_oldest(self) -> None:
        """Wait for the oldest group and add it to the version."""
        group, task = self._groups[0]
        await asyncio.wait([task])  # unlike awaiting the task, this does not cancel its calls if the run is cancelled
        result, vectors = task.result()
        self._groups.popleft()
        await asyncio.to_thread(self._store, group, result, vectors)
        self.counter.add(documents_done=len(group))
        self._results.append(result._replace(nodes=[]))

    @property
    def outcome(self) -> Contextualized:
        """The results of all groups, without the nodes."""
        results = self._results
        return Contextualized(
            nodes=[],
            failures=[failure for result in results for failure in result.failures],
            paid=sum(result.paid for result in results),
            thin=tuple(node_id for result in results for node_id in result.thin),
            lengths=tuple(length for result in results for length in result.lengths),
            findings=sum((Counter(result.findings) for result in results), Counter()),
            kept=sum(result.kept for result in results),
        )

    def _store(self, group: JobGroup, result: Contextualized, vectors: NDArray[np.float32] | None) -> None:
        failed = {(failure.step, failure.node_id) for failure in result.failures}
        at = 0
        for job, chunks in group:
            nodes = result.nodes[at : at + len(chunks)]
            frame = None
            if job.document is not None:
                spans = [
                    (getattr(node, "start_char_idx", None) or 0, getattr(node, "end_char_idx", None) or 0)
                    for node in nodes
                ]
                frame = DocumentFrame.from_document(job.document, spans)
            self._builder.append(
                _record(
                    job,
                    nodes,
                    fallback=[node.node_id for node in nodes if ("context", node.node_id) in failed],
                    unembedded=[node.node_id for node in nodes if ("embedding", node.node_id) in failed],
                ),
                InterruptibleNodes(nodes, self.require_running),
                None if vectors is None else vectors[at : at + len(chunks)],
                frame,
                job.pictures,
            )
            at += len(chunks)

    async def abort(self, error: BaseException) -> None:
        """Stop all groups, but wait for calls in flight, because they are charged.

        After a cancellation, wait at most `PATIENCE` seconds, or until the next cancellation.
        """
        self._stopping.set()
        tasks = [task for _, task in self._groups]
        calls = self.account.calls_in_flight
        try:
            if isinstance(error, ContextualError):
                self._stop_calls(error)
                await asyncio.gather(*tasks, return_exceptions=True)
            elif isinstance(error, asyncio.CancelledError) and calls:
                self._stop_calls(ContextualError("The run was interrupted."))
                logger.warning(
                    "Interrupted: waiting at most %.0f s for %s in flight, which the provider may charge. To end the"
                    " run at once, interrupt it again (Ctrl-C).",
                    PATIENCE,
                    pluralize(calls, "call"),
                )
                await asyncio.wait(tasks, timeout=PATIENCE)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_calls(self, error: ContextualError) -> None:
        """Stop sending calls and raise this error when the calls in flight have finished."""
        if self._session is not None:
            self._session.stop(error)
        self.account.stop(error)


def _record(
    job: Job, nodes: Sequence[BaseNode], *, fallback: Sequence[str], unembedded: Sequence[str]
) -> DocumentRecord:
    facts = job.document.metadata if job.document is not None else nodes[0].metadata
    ends = [getattr(node, "end_char_idx", None) or 0 for node in nodes]
    ends += [(getattr(node, "start_char_idx", None) or 0) + len(node.get_content()) for node in nodes]
    text = job.document.text if job.document is not None else "\n".join(node.get_content() for node in nodes)
    name, title = (keys.label_of(dict(facts), key) for key in (keys.FILE_NAME, keys.TITLE))
    return DocumentRecord(
        doc_id=job.doc_id,
        content_hash=job.content_hash,
        path=job.path,
        source=job.origin,
        facts=job.facts,
        file_name=facts.get(keys.FILE_NAME),
        title=facts.get(keys.TITLE),
        date=document_date(facts, title, text, name or job.doc_id),
        file_date=_file_date(job.path),
        sketch=sketch_of(text),
        chunks=len(nodes),
        tokens=sum(node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes),
        characters=len(job.document.text) if job.document is not None else max(ends, default=0),
        fallback_chunks=tuple(fallback),
        unembedded_chunks=tuple(unembedded),
    )


def _file_date(path: str | None) -> str:
    """Return the day on which a file was last changed, in ISO format, or "" if it is unknown."""
    try:
        return "" if path is None else datetime.fromtimestamp(os.stat(path).st_mtime, UTC).date().isoformat()
    except (OSError, ValueError, OverflowError):
        return ""


# ---- account of a run ------------------------------------------------------------------------------------------------


async def acollect_replies(
    pipeline: Pipeline,
    jobs: Callable[[], Iterator[Job | SkippedDocument]],
    *,
    submit: bool,
    account: Account,
    accepts_cost: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
) -> BatchReplies | None:
    """Wait for the batches in progress, and optionally send missing requests in new batches.

    Args:
        pipeline: Components that process a document, as the settings select them.
        jobs: Function that returns an iterator over the documents that need work; may be called more than once.
        submit: Whether to send missing requests; otherwise only wait for the batches in progress.
        account: Account of the run, which approves requests and records the cost of replies.
        accepts_cost: Whether to request contexts again that the LLM refused to write or whose reply cannot be read,
            although they may have been charged.
        on_progress: Called with the progress of the batches.

    Returns:
        The replies, or None if there are no batches.

    Raises:
        ConfigurationError: The contexts are not written by an LLM, or its provider has no Batch API.
        BudgetExceededError: A batch could exceed the limit; it was not sent.
        ModelError: The provider rejects the upload or is unreachable.
    """
    writer = pipeline.contextualizer
    if not isinstance(writer, LLMContextualizer):
        if submit:
            raise ConfigurationError(
                "Batches require contexts written by an LLM",
                setting="context",
                remedy=Remedy(
                    "set context to 'llm', or omit batch",
                    "run `llama-index-contextual configure {project} context=llm`, or omit --batch",
                ),
            )
        return None
    journal = pipeline.ledger.batches
    replies = BatchReplies(
        journal,
        writer.model,
        account,
        llm=writer.llm,
        live=writer.service_tier or "live",
        context_tokens=expected_context_tokens(writer.model, writer.llm, pipeline.ledger),
    )
    if not submit and not journal.open_batches(writer.model):
        return replies if journal.has_replies() else None

    def requests() -> Iterator[ContextRequest]:
        for job in jobs():
            if isinstance(job, SkippedDocument):
                continue
            for segment, chunks, *_ in writer.missing(pipeline.parse(job), pipeline.ledger):
                yield from writer.requests(segment, chunks)

    await asend_batches(
        writer.llm,
        replies,
        requests if submit else None,
        gives_up_unread=accepts_cost,
        on_progress=on_progress,
    )
    return replies


def open_account(pipeline: Pipeline, prices: Prices, *, max_cost: float | None, purpose: str) -> Account:
    """Return the account of a run.

    Args:
        pipeline: Components that process a document, as the settings select them.
        prices: Model prices.
        max_cost: Limit in dollars, or None.
        purpose: Purpose of the run, for its receipt.

    Raises:
        ConfigurationError: There is a limit, and a price is unknown.
    """
    writer = pipeline.contextualizer if isinstance(pipeline.contextualizer, LLMContextualizer) else None
    llm = None if writer is None else writer.model
    account = Account(
        prices,
        max_cost=max_cost,
        receipts=pipeline.ledger.receipts,
        receipt=Receipt(purpose=purpose, llm=llm, embed_model=pipeline.embed_model_name),
    )
    for name in (pipeline.embed_model_name, llm):
        if name is not None:
            account.require_price(name)
    return account


def open_session(
    contextualizer: Contextualizer, ledger: Ledger, account: Account, replies: BatchReplies | None
) -> AbstractAsyncContextManager[ContextSession]:
    """Return the session of a run, which charges its calls to an account and uses batch replies where available.

    Args:
        contextualizer: Contextualizer of the run.
        ledger: Store of contexts that have already been paid for.
        account: Account of the run.
        replies: Batch replies, or None.
    """
    if isinstance(contextualizer, LLMContextualizer):
        return contextualizer.session(ledger, account, replies=replies)
    return contextualizer.session()


def cost_counter(pipeline: Pipeline, replies: BatchReplies | None) -> CostCounter | None:
    """Return the counter of the expected cost of a run, or None if the contexts are not written by an LLM."""
    writer = pipeline.contextualizer
    if not isinstance(writer, LLMContextualizer):
        return None
    return CostCounter(
        writer,
        pipeline.ledger,
        writer.service_tier or "live",
        expected_context_tokens(writer.model, writer.llm, pipeline.ledger),
        embed_model_name=None if pipeline.embed_model_name == LOCAL else pipeline.embed_model_name,
        embed_model=pipeline.embed_model,
        passage_prefix="" if pipeline.embed_model is None else own_prefixes(pipeline.embed_model)[1],
        replies=replies,
    )
