"""Pipeline of an ingestion: parse, contextualize, embed, store.

The components are ordinary LlamaIndex components, chosen by the settings of the project. The pipeline connects them
with the ledger and with the account of the run, and processes documents in batches of chunks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.contextualizer.base import Contextualized
from llama_index_contextual.contextualizer.batch import BatchProgress, BatchReplies, asend_batches
from llama_index_contextual.contextualizer.cost import (
    CONTEXT_TOKENS,
    PriceTable,
    SenderKind,
    expected_context_tokens,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.spending import CallBudget, Spending
from llama_index_contextual.errors import ConfigurationError, ContextualError, Remedy
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.part import DocumentFrame
from llama_index_contextual.index.receipts import RunCost
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion.plan import Job
from llama_index_contextual.ingestion.report import ProgressCounter
from llama_index_contextual.ingestion.stages import Checked, Stages
from llama_index_contextual.ingestion.sync import OtherFilesChanged

logger = get_logger(__name__)

T = TypeVar("T")


async def acollect_replies(
    stages: Stages,
    jobs: Callable[[], Iterator[Job]],
    *,
    submit: bool,
    spending: Spending,
    gives_up_unread: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
) -> BatchReplies | None:
    """Wait for the batches in progress, and optionally send missing requests in new ones.

    Args:
        stages: Components that process a document.
        jobs: Returns an iterator over the documents that need work; may be called more than once.
        submit: Whether to send missing requests; otherwise only wait for the batches in progress.
        spending: Account of the run, which approves requests and books replies.
        gives_up_unread: Whether requests may be sent again that may be charged although their reply cannot be read.
        on_progress: Called with the progress of the batches.

    Returns:
        The replies, or None if there are no batches.

    Raises:
        ConfigurationError: The contexts are not written by an LLM, or its provider has no Batch API.
        BudgetExceededError: A batch could exceed the limit; it was not sent.
        ModelError: The provider refuses the requests, or is unreachable.
    """
    writer = stages.contextualizer
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
    journal = stages.ledger.batches
    replies = BatchReplies(journal, writer.model)
    if not submit and not journal.open_batches(writer.model):
        return replies if journal.has_replies() else None

    def requests() -> Iterator[ContextRequest]:
        for job in jobs():
            for segment, chunks, _ in writer.missing(stages.parse(job)):
                yield from writer.requests(segment, chunks)

    await asend_batches(
        writer.llm,
        replies,
        requests if submit else None,
        spending=spending,
        gives_up_unread=gives_up_unread,
        on_progress=on_progress,
    )
    return replies


def spending_of(stages: Stages, prices: PriceTable, *, max_cost: float | None, purpose: str) -> Spending:
    """Return the account of a run.

    Args:
        stages: Components that process a document.
        prices: Prices of the models.
        max_cost: Limit in dollars, or None.
        purpose: Purpose of the run, for its receipt.

    Raises:
        ConfigurationError: There is a limit, and a price is unknown.
    """
    writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
    llm = None if writer is None else writer.model
    spending = Spending(
        prices,
        max_cost=max_cost,
        context_tokens=(
            CONTEXT_TOKENS if writer is None else expected_context_tokens(writer.model, writer.llm, stages.ledger)
        ),
        receipts=stages.ledger.receipts,
        receipt=RunCost(purpose=purpose, llm=llm, embed_model=stages.embed_model_name),
    )
    for name in (stages.embed_model_name, llm):
        if name is not None:
            spending.require_price(name)
    return spending


def paid_stages(
    stages: Stages, spending: Spending, replies: BatchReplies | None, *, retries_refused: bool = False
) -> Stages:
    """Return stages whose calls are booked in an account, and answered by batches where these have replies.

    Args:
        stages: Components that process a document.
        spending: Account of the run.
        replies: Replies of batches, or None.
        retries_refused: Whether contexts are requested again that the LLM refused in earlier runs.
    """
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        return replace(stages, spending=spending)
    sender: SenderKind = writer.service_tier or "live"
    budget = CallBudget(spending, writer.model, llm=writer.llm, sender=sender, replies=replies)
    writer = writer.model_copy(update={"budget": budget, "replies": replies, "retries_refused": retries_refused})
    return replace(stages, spending=spending, contextualizer=writer)


BATCH_CHUNKS = 256
"""Minimum number of chunks that are processed together."""

PATIENCE = 10.0
"""Seconds to wait for calls in flight when the run is cancelled."""


async def abuild(
    jobs: Iterable[Job],
    stages: Stages,
    builder: VersionBuilder,
    *,
    counter: ProgressCounter,
    batches_ahead: int = 0,
) -> Contextualized:
    """Process documents and add them to a version.

    Args:
        jobs: The documents, read on demand.
        stages: Components that process them.
        builder: Builder of the version.
        counter: Counter of the finished work.
        batches_ahead: Minimum number of batches to start ahead of the current one.

    Returns:
        The failures, the number of contexts paid for and the very short contexts, without the nodes.
    """
    total = Contextualized([], [], 0)
    batches = _batches(jobs, stages)
    async with stages.session() as session:
        running = _RunningBatches(session, counter, batches_ahead)
        try:
            while batch := await session.unless_others_change(asyncio.to_thread(next, batches, None)):
                running.start(batch)
                while running.is_full:
                    total = await _finish(running, builder, total)
            while running.tasks:
                total = await _finish(running, builder, total)
        except BaseException as error:
            await running.abort(error)
            raise
    return total


Batch = list[tuple[Job, list[BaseNode]]]
BatchResult = tuple[Contextualized, NDArray[np.float32] | None]


def _batches(jobs: Iterable[Job], stages: Stages) -> Iterator[Batch]:
    """Yield documents with their chunks, in batches of at least `BATCH_CHUNKS` chunks."""
    batch: Batch = []
    size = 0
    for job in jobs:
        chunks = stages.parse(job)
        stages.add_estimate(chunks)
        batch.append((job, chunks))
        size += len(chunks)
        if size >= BATCH_CHUNKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _RunningBatches:
    """Batches that are processed concurrently, the oldest first.

    Args:
        stages: Components that process the chunks.
        counter: Counter of the finished work.
        ahead: Minimum number of batches to start ahead of the oldest one.
    """

    def __init__(self, stages: Stages, counter: ProgressCounter, ahead: int) -> None:
        self.stages, self.counter = stages, counter
        self._ahead = max(ahead, 0 if stages.contextualizer is None else stages.contextualizer.batches_ahead)
        self.tasks: deque[tuple[Batch, _ByteCounter, asyncio.Task[BatchResult]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the oldest batch must be finished before another one is started."""
        return len(self.tasks) > self._ahead

    def start(self, batch: Batch) -> None:
        """Start processing a batch."""
        nodes = [node for _, chunks in batch for node in chunks]
        size = _ByteCounter(sum(job.size for job, _ in batch), len(nodes))
        self.counter.parsed(len(nodes))
        self.tasks.append((batch, size, asyncio.create_task(self._process(nodes, size))))

    async def _process(self, nodes: list[BaseNode], size: _ByteCounter) -> BatchResult:
        result = await self.stages.acontextualize(nodes, lambda done: self.counter.add(0, done, size.advance(done)))
        await asyncio.to_thread(self.stages.add_held_back, result)
        vectors = await self.stages.aembed(result.nodes)
        self.counter.embedded(len(result.nodes))
        return result, vectors

    async def abort(self, error: BaseException) -> None:
        """End all batches; calls in flight are completed, because they are charged.

        After a cancellation, they are awaited for at most `PATIENCE` seconds, or until the next cancellation.
        """
        tasks = [task for _, _, task in self.tasks]
        spending = self.stages.spending
        calls = 0 if spending is None else spending.calls_in_flight
        try:
            if isinstance(error, ContextualError) and (calls or not isinstance(error, OtherFilesChanged)):
                self.stages.stop(error)
                await asyncio.gather(*tasks, return_exceptions=True)
            elif isinstance(error, asyncio.CancelledError) and calls:
                self.stages.stop(ContextualError("The run was interrupted."))
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


class _ByteCounter:
    """Progress of a batch in bytes: four fifths in proportion to the chunks with a context, the rest when stored.

    Args:
        size: Bytes of the batch.
        chunks: Chunks of the batch.
    """

    def __init__(self, size: int, chunks: int) -> None:
        self._size, self._for_contexts, self._chunks = size, size * 4 // 5, chunks
        self._chunks_done = self._bytes_done = 0

    def advance(self, chunks: int) -> int:
        """Count finished chunks, and return the corresponding number of bytes."""
        self._chunks_done += chunks
        before, self._bytes_done = self._bytes_done, self._for_contexts * self._chunks_done // self._chunks
        return self._bytes_done - before

    def rest(self) -> int:
        """Return the bytes not counted yet."""
        return self._size - self._bytes_done


async def _finish(running: _RunningBatches, builder: VersionBuilder, total: Contextualized) -> Contextualized:
    """Store the oldest batch, and return the results so far, without the nodes."""
    batch, size, task = running.tasks[0]
    others_changed = running.stages.others_changed
    # If this run is cancelled, the calls of the task are completed first.
    await asyncio.wait([task, *([others_changed] if others_changed else ())], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        raise OtherFilesChanged
    result, vectors = task.result()
    running.tasks.popleft()
    await asyncio.to_thread(_append, builder, batch, result, vectors, running.stages)
    running.counter.add(len(batch), 0, size.rest())
    return Contextualized(
        [], [*total.failures, *result.failures], total.paid + result.paid, (*total.thin, *result.thin)
    )


def _append(
    builder: VersionBuilder,
    batch: Batch,
    result: Contextualized,
    vectors: NDArray[np.float32] | None,
    stages: Stages,
) -> None:
    failed = {failure.node_id for failure in result.failures}
    at = 0
    for job, chunks in batch:
        done = result.nodes[at : at + len(chunks)]
        for node in done if job.contexts else ():
            node.metadata.pop(keys.CONTEXT_GIVEN, None)  # written by an LLM of this project, not by the user
        record = _record(job, done, [node.node_id for node in done if node.node_id in failed])
        rows = None if vectors is None else vectors[at : at + len(chunks)]
        builder.append(record, Checked(done, stages.require_unchanged), rows, _frame(job, done))
        at += len(chunks)


def _record(job: Job, nodes: Sequence[BaseNode], fallback: Sequence[str]) -> DocumentRecord:
    facts = job.document.metadata if job.document is not None else nodes[0].metadata
    ends = [getattr(node, "end_char_idx", None) or 0 for node in nodes]
    ends += [(getattr(node, "start_char_idx", None) or 0) + len(node.get_content()) for node in nodes]
    return DocumentRecord(
        doc_id=job.doc_id,
        content_hash=job.content_hash,
        path=job.path,
        file_name=facts.get(keys.FILE_NAME),
        title=facts.get(keys.TITLE),
        chunks=len(nodes),
        tokens=sum(node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes),
        characters=len(job.document.text) if job.document is not None else max(ends, default=0),
        fallback_chunks=tuple(fallback),
    )


def _frame(job: Job, nodes: Sequence[BaseNode]) -> DocumentFrame | None:
    if job.document is None:
        return None
    spans = [(getattr(n, "start_char_idx", None) or 0, getattr(n, "end_char_idx", None) or 0) for n in nodes]
    return DocumentFrame.of(job.document, spans)
