"""What a document passes: parsers, contextualizer, embedding, as a project's settings ask for them.

The components are ordinary ones of LlamaIndex; here they meet the ledger, and the account of the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import LOCAL, ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.base import ChunkFailure, Contextualized, with_context
from llama_index_contextual.contextualizer.batch import BatchProgress, BatchReplies, asend_batches, require_batch_api
from llama_index_contextual.contextualizer.cost import CONTEXT_TOKENS, AnswerLimit, PriceTable, SenderKind
from llama_index_contextual.contextualizer.estimate import expect, missing, requests_of
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT, ContextRequest
from llama_index_contextual.contextualizer.spending import BatchAccount, CallBudget, Spending
from llama_index_contextual.embeddings.batching import aembed, aembed_parts, unpaid
from llama_index_contextual.errors import ConfigurationError, ContextualError
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.plan import Job, span_of
from llama_index_contextual.models import embedding_identity, preload
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.retirement import retirement_notice
from llama_index_contextual.storage.ledger import Ledger, vector_key
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.receipts import RunCost
from llama_index_contextual.storage.version import DocumentFrame


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The components that a document passes.

    Attributes:
        parsers: Segment and chunk parser.
        contextualizer: Writes the contexts, or None for plain RAG.
        embed_model: Embeds the chunks, or None without a semantic index.
        embed_model_name: Its name.
        ledger: Keeps what was paid for.
        spending: Books what embeddings cost, and what is to be expected of the documents, or None.
    """

    parsers: Sequence[TransformComponent]
    contextualizer: Contextualizer | None
    embed_model: BaseEmbedding | None
    embed_model_name: str | None
    ledger: Ledger
    spending: Spending | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Stages]:
        """Give stages for one run, whose batches share the contextualizer's client and limits."""
        if self.contextualizer is None:
            yield self
            return
        async with self.contextualizer.opened() as ready:
            yield replace(self, contextualizer=ready)

    def parse(self, job: Job) -> list[BaseNode]:
        """Return the chunks of a document, with the contexts that an LLM has written for them before."""
        if job.document is None:
            return list(job.nodes or [])
        nodes: Sequence[BaseNode] = [job.document]
        for parser in self.parsers:
            nodes = parser(nodes)
        for node in nodes if job.contexts else ():
            if (context := job.contexts.get(span_of(node))) is not None:
                node.metadata |= {keys.CONTEXT: context, keys.CONTEXT_SOURCE: "llm", keys.CONTEXT_GIVEN: True}
        return list(nodes)

    def expect(self, nodes: Sequence[BaseNode]) -> None:
        """Add what the chunks of a document will need to what the run expects."""
        writer = self.contextualizer
        if self.spending is None or not isinstance(writer, LLMContextualizer):
            return
        expect(
            self.spending,
            writer,
            nodes,
            embed_model=None if self.embed_model_name == LOCAL else self.embed_model_name,
            is_batched=None if writer.replies is None else writer.replies.has,
        )

    async def acontextualize(self, nodes: Sequence[BaseNode], progress: Callable[[int], None]) -> Contextualized:
        """Return the chunks with their contexts."""
        if self.contextualizer is None:
            progress(len(nodes))
            return Contextualized([with_context(node, None) for node in nodes], [], 0)
        return await self.contextualizer.acontextualize(nodes, progress=progress)

    async def aembed(self, nodes: Sequence[BaseNode]) -> NDArray[np.float32] | None:
        """Return the unit vectors of chunks; those that were paid for before come from the ledger."""
        if self.embed_model is None or self.embed_model_name is None or not nodes:
            return None
        texts = await asyncio.to_thread(_texts_to_embed, nodes)
        if self.embed_model_name == LOCAL:
            return await aembed(self.embed_model, texts, name=LOCAL)
        names, known = await asyncio.to_thread(self._known_vectors, self.embed_model_name, texts)
        asked = {name: text for name, text in zip(names, texts, strict=True) if name not in known}
        if asked:
            known.update(await self._aembed_paid(self.embed_model, asked, self.embed_model_name))
            length = len(known[next(iter(asked))])
            # What has another length than the model's vectors of today cannot stand in one index with them.
            odd = {name: text for name, text in zip(names, texts, strict=True) if len(known[name]) != length}
            if odd:
                known.update(await self._aembed_paid(self.embed_model, odd, self.embed_model_name))
        return np.stack([known[name] for name in names])

    def _known_vectors(self, model: str, texts: Sequence[str]) -> tuple[list[str], dict[str, NDArray[np.float32]]]:
        """Return the key of each text, and the vectors of those that were paid for before."""
        # One model gives vectors of the length that it is asked for.
        length = getattr(self.embed_model, "dimensions", None)
        names = [vector_key(text, model, length) for text in texts]
        return names, self.ledger.vectors(names, dimensions=length)

    async def _aembed_paid(
        self, model: BaseEmbedding, asked: Mapping[str, str], name: str
    ) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of texts by their keys; each answer is in the ledger before the next call is sent."""
        await asyncio.to_thread(preload, model)
        names, texts = list(asked), list(asked.values())
        paid = unpaid if self.spending is None else partial(self.spending.embedding, name)
        found: dict[str, NDArray[np.float32]] = {}
        async with aclosing(aembed_parts(model, texts, name=name, paid=paid)) as answers:
            async for places, vectors in answers:
                answered = {names[at]: vector for at, vector in zip(places, vectors, strict=True)}
                found.update(answered)
                # A vector of zeros is not kept: it says nothing, and may be the provider's mistake.
                kept = [key for key, vector in answered.items() if vector.any()]
                if kept:
                    rows = np.stack([answered[key] for key in kept])
                    await asyncio.to_thread(self.ledger.add_vectors, name, kept, rows)
        return found


def notices_of(stages: Stages, *, project: str) -> tuple[str, ...]:
    """Return what is to be known about the models of a run: one that writes contexts and ends."""
    writer = stages.contextualizer
    notice = retirement_notice(writer.model, project=project) if isinstance(writer, LLMContextualizer) else None
    return () if notice is None else (notice,)


def _texts_to_embed(nodes: Sequence[BaseNode]) -> list[str]:
    return [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def make_stages(
    config: ProjectConfig,
    *,
    ledger: Ledger,
    llm: LLM | None,
    embed_model: BaseEmbedding | None,
    model_id: str | None = None,
) -> Stages:
    """Return the stages that a document passes.

    Args:
        config: The settings of the project.
        ledger: Keeps what was paid for.
        llm: Writes contexts; None makes the one that the settings name when the first context is due.
        embed_model: Embeds chunks, or None without a semantic index.
        model_id: What to call the model of `llm`; None takes its own name.

    Raises:
        ModelError: A model cannot be told from others.
    """
    return Stages(
        parsers=(
            SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_overlap),
            ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap),
        ),
        contextualizer=_contextualizer(config, ledger, llm, model_id),
        embed_model=embed_model,
        embed_model_name=None if embed_model is None else embedding_identity(embed_model),
        ledger=ledger,
    )


def _contextualizer(
    config: ProjectConfig, ledger: Ledger, llm: LLM | None, model_id: str | None
) -> Contextualizer | None:
    if config.context == "none":
        return None
    if config.context == "structural":
        return StructuralContextualizer(segment_size=config.segment_size)
    return LLMContextualizer(
        llm=llm,
        model_id=model_id,
        model=config.llm,
        prompt=config.context_prompt or DEFAULT_PROMPT,
        variables=config.context_variables,
        chunks_per_call=config.chunks_per_call,
        num_workers=config.llm_concurrency,
        call_timeout=config.call_timeout,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        service_tier=config.service_tier,
        segment_size=config.segment_size,
        ledger=ledger,
    )


async def abring_replies(
    stages: Stages,
    jobs: Callable[[], Iterator[Job]],
    *,
    submit: bool,
    spending: Spending,
    tell: Callable[[BatchProgress], None] | None = None,
) -> BatchReplies | None:
    """Wait for the batches under way, and send what is missing in further ones.

    Args:
        stages: What a document passes.
        jobs: Gives the documents that need work, each time that it is called.
        submit: Whether to send what is missing; otherwise only what is under way is waited for.
        spending: Says what may be sent, and books what is answered.
        tell: Called as the provider proceeds.

    Returns:
        The replies, or None where no batch plays a part.

    Raises:
        ConfigurationError: No LLM writes the contexts, or its provider has no Batch API.
        BudgetExceededError: A batch could pass the limit; it was not sent.
        ModelError: The provider refuses the requests, or cannot be reached.
    """
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        if submit:
            raise ConfigurationError(
                "Batches are for contexts that an LLM writes: set context to 'llm', or leave batch out.",
                setting="context",
            )
        return None
    journal = stages.ledger.batches
    if submit:
        require_batch_api(writer.model)
    replies = BatchReplies(journal, writer.model)
    if not submit and not journal.open_batches(writer.model):
        return replies if journal.has_replies() else None
    account = BatchAccount(spending, writer.model, llm=writer.llm, replies=replies)

    def requests() -> Iterator[ContextRequest]:
        account.begin_round()
        seen: set[str] = set()
        for job in jobs():
            for segment, todo, _ in missing(writer, stages.parse(job)):
                for request in requests_of(writer, segment, todo) if todo else ():
                    custom_id = replies.id_of(request)
                    if custom_id not in seen and not journal.knows(custom_id):
                        seen.add(custom_id)
                        account.reserve(custom_id, request)
                        yield request

    await asend_batches(
        writer.llm,
        writer.model,
        journal,
        requests if submit else None,
        tell=tell,
        uploaded=account.sent,
        answered=account.book,
    )
    account.begin_round()
    return replies


def spending_of(stages: Stages, prices: PriceTable, *, max_cost: float | None, purpose: str) -> Spending:
    """Return the account of a run.

    Args:
        stages: What a document passes.
        prices: What models cost.
        max_cost: Dollars that the run must not pass, or None.
        purpose: What the run is for; stands in its receipt.

    Raises:
        ConfigurationError: There is a limit, and a price is not known.
    """
    writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
    mean = None if writer is None else stages.ledger.mean_context_tokens(writer.model)
    llm = None if writer is None else writer.model
    if mean is None and writer is not None:
        mean = CONTEXT_TOKENS + AnswerLimit.of(writer.model, writer.llm).expected_hidden_tokens
    spending = Spending(
        prices,
        max_cost=max_cost,
        context_tokens=mean or CONTEXT_TOKENS,
        receipts=stages.ledger.receipts,
        receipt=RunCost(purpose=purpose, llm=llm, embed_model=stages.embed_model_name),
    )
    for name in (stages.embed_model_name, llm):
        if name is not None:
            spending.require_price(name)
    return spending


def paid_stages(stages: Stages, spending: Spending, replies: BatchReplies | None) -> Stages:
    """Return the stages of a run whose calls are booked, and answered from batches where these have replies."""
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        return replace(stages, spending=spending)
    sender: SenderKind = writer.service_tier or "live"
    budget = CallBudget(spending, writer.model, llm=writer.llm, sender=sender, replies=replies)
    writer = writer.model_copy(update={"budget": budget, "replies": replies})
    return replace(stages, spending=spending, contextualizer=writer)


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
