"""Documents into a version, many of them in flight: memory holds a few batches of them, and the lexical terms."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from llama_index.core.schema import BaseNode
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.contextualizer.base import ChunkFailure, Contextualized
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.jobs import Job
from llama_index_contextual.ingestion.stages import Stages
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.version import DocumentFrame

BATCH_CHUNKS = 256


async def abuild(
    jobs: Iterable[Job],
    stages: Stages,
    builder: VersionBuilder,
    *,
    report: Callable[[int, int, int], None],
) -> Contextualized:
    """Bring documents into a version that is being built.

    Args:
        jobs: The documents, read as they are needed.
        stages: What they pass.
        builder: Where they go.
        report: Called with (documents, chunks, bytes) that were just done.

    Returns:
        What went wrong and what was paid; without the nodes.
    """
    failures: list[ChunkFailure] = []
    paid = 0
    batches = _batches(jobs, stages)
    async with stages.opened() as opened:
        begun = _Begun(opened, report)
        try:
            while batch := await asyncio.to_thread(next, batches, None):
                begun.add(batch)
                while begun.is_full:
                    paid += await _finish(begun, builder, failures)
            while begun.tasks:
                paid += await _finish(begun, builder, failures)
        except BaseException as error:
            await begun.abandon(error)
            raise
    return Contextualized([], failures, paid)


Batch = list[tuple[Job, list[BaseNode]]]
Worked = tuple[Contextualized, NDArray[np.float32] | None]


class _Begun:
    """Batches that are worked on at the same time, oldest first.

    Args:
        stages: What their chunks pass.
        report: Called with (documents, chunks, bytes) that were just done.
    """

    def __init__(self, stages: Stages, report: Callable[[int, int, int], None]) -> None:
        self._stages, self.report = stages, report
        self._ahead = 0 if stages.contextualizer is None else stages.contextualizer.batches_ahead
        self.tasks: deque[tuple[Batch, _Share, asyncio.Task[Worked]]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the oldest must be finished before another one is begun."""
        return len(self.tasks) > self._ahead

    def add(self, batch: Batch) -> None:
        """Begin a batch."""
        nodes = [node for _, chunks in batch for node in chunks]
        share = _Share(sum(job.size for job, _ in batch), len(nodes))
        self.tasks.append((batch, share, asyncio.create_task(self._work(nodes, share))))

    async def _work(self, nodes: list[BaseNode], share: _Share) -> Worked:
        result = await self._stages.acontextualize(nodes, lambda done: self.report(0, done, share.take(done)))
        return result, await self._stages.aembed(result.nodes)

    async def abandon(self, error: BaseException) -> None:
        """End all batches; calls in flight are waited for, unless the run was cancelled, because they are paid for."""
        if isinstance(error, ContextualError) and self._stages.contextualizer is not None:
            self._stages.contextualizer.stop(error)
        else:
            for _, _, task in self.tasks:
                task.cancel()
        await asyncio.gather(*(task for _, _, task in self.tasks), return_exceptions=True)


async def _finish(begun: _Begun, builder: VersionBuilder, failures: list[ChunkFailure]) -> int:
    """Store the oldest batch, and return the number of contexts that were paid for."""
    batch, share, task = begun.tasks[0]
    result, vectors = await task
    begun.tasks.popleft()
    failures += result.failures
    await asyncio.to_thread(_append, builder, batch, result, vectors)
    begun.report(len(batch), 0, share.rest())
    return result.paid


class _Share:
    """Deals out the bytes of a batch: four fifths by the chunks that have their context, the rest when all is stored.

    Args:
        size: Bytes of the batch.
        chunks: Chunks of the batch.
    """

    def __init__(self, size: int, chunks: int) -> None:
        self._size, self._for_contexts, self._chunks = size, size * 4 // 5, chunks
        self._done = self._taken = 0

    def take(self, chunks: int) -> int:
        """Return the bytes that so many more chunks stand for."""
        self._done += chunks
        taken, self._taken = self._taken, self._for_contexts * self._done // self._chunks
        return self._taken - taken

    def rest(self) -> int:
        """Return the bytes that were not taken yet."""
        return self._size - self._taken


def _batches(jobs: Iterable[Job], stages: Stages) -> Iterator[Batch]:
    """Yield documents with their chunks, in batches of at least `BATCH_CHUNKS` chunks."""
    batch: Batch = []
    size = 0
    for job in jobs:
        chunks = stages.parse(job)
        stages.expect(chunks)
        batch.append((job, chunks))
        size += len(chunks)
        if size >= BATCH_CHUNKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _append(
    builder: VersionBuilder,
    batch: Sequence[tuple[Job, list[BaseNode]]],
    result: Contextualized,
    vectors: NDArray[np.float32] | None,
) -> None:
    failed = {failure.node_id for failure in result.failures}
    at = 0
    for job, chunks in batch:
        done = result.nodes[at : at + len(chunks)]
        for node in done if job.contexts else ():
            node.metadata.pop(keys.CONTEXT_GIVEN, None)  # an LLM of this project wrote it, for the same text
        record = _record(job, done, [node.node_id for node in done if node.node_id in failed])
        rows = None if vectors is None else vectors[at : at + len(chunks)]
        builder.append(record, done, rows, _frame(job, done))
        at += len(chunks)


def _record(job: Job, nodes: Sequence[BaseNode], fallback: Sequence[str]) -> DocumentRecord:
    facts = job.document.metadata if job.document is not None else nodes[0].metadata
    ends = [getattr(node, "end_char_idx", None) or 0 for node in nodes]
    ends += [(getattr(node, "start_char_idx", None) or 0) + len(node.get_content()) for node in nodes]
    return DocumentRecord(
        doc_id=job.doc_id,
        content_hash=job.content_hash,
        origin=job.origin,
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
