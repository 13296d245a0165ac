"""Ingestion pipeline: parse, contextualize, embed and store documents.

`Stages` holds the components that process a document: ordinary LlamaIndex components, selected by the settings and
connected to the ledger and to the run's account. `abuild` processes documents in batches of chunks and stores them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, Document, MetadataMode, TransformComponent
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import DEFAULT_LLM, LOCAL, ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.base import ChunkContext, ChunkFailure, Contextualized, with_context
from llama_index_contextual.contextualizer.cost import (
    CONTEXT_TOKENS,
    Bill,
    CallForm,
    EmbeddingCount,
    PriceTable,
    SenderKind,
    Spending,
    Tokens,
    count_segment,
    expected_context_tokens,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT, ContextRequest
from llama_index_contextual.contextualizer.sending import BatchProgress, BatchReplies, asend_batches
from llama_index_contextual.embeddings.batching import fault_of
from llama_index_contextual.embeddings.contextual import (
    ContextualEmbedding,
    GroupVectors,
    Vectors,
    aembed,
    aembed_groups,
    book_nothing,
    document_parts,
    unusable,
    unusable_error,
)
from llama_index_contextual.embeddings.windows import Window, WindowSplitter, average, window_splitter
from llama_index_contextual.errors import ConfigurationError, ContextualError, Remedy
from llama_index_contextual.index.ledger import Ledger, document_keys, vector_key
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.part import DocumentFrame
from llama_index_contextual.index.receipts import RunCost
from llama_index_contextual.index.writer import VersionBuilder
from llama_index_contextual.ingestion.plan import FileReader, Intake, Job, span_of
from llama_index_contextual.ingestion.report import ProgressCounter
from llama_index_contextual.models import embedding_identity, is_in_process
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.readers import DocumentReader
from llama_index_contextual.readers.ocr import PageStore

logger = get_logger(__name__)


@dataclass(frozen=True)
class _Unit:
    """Texts that are embedded together: one chunk or, for a contextual model, the chunks of a document.

    Attributes:
        places: Positions of the chunks.
        keys: Ledger key of each chunk's vector.
        windows: The text of one chunk, divided into windows; or the texts of several chunks, one window for each.
        model: Model name under which the vectors are stored.
    """

    places: Sequence[int]
    keys: tuple[str, ...]
    windows: Sequence[Window]
    model: str

    def outcome(self, answer: GroupVectors) -> tuple[dict[str, Vectors], dict[str, str]]:
        """Return the usable vectors of the chunks, and the faults of the others, by ledger key.

        If a chunk is embedded in several windows, its vector is the average of their vectors.
        """
        rows, faults = answer.rows, answer.faults
        if len(self.windows) > len(self.keys):
            rows = average(self.windows, rows)
            fault = next(iter(faults.values()), fault_of(rows[0]))
            faults = {} if fault is None else {0: fault}
        vectors = {key: row for at, (key, row) in enumerate(zip(self.keys, rows, strict=True)) if at not in faults}
        return vectors, {self.keys[at]: fault for at, fault in faults.items()}


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Components that process a document.

    Attributes:
        parsers: Segment parser and chunk parser.
        contextualizer: Contextualizer, or None for plain RAG.
        embed_model: Embedding model, or None if there is no semantic index.
        embed_model_name: Name of the embedding model.
        ledger: Store of contexts and vectors that have already been paid for.
        spending: Account of the run, or None.
        splitter: Splitter for texts that are too long for the embedding model, or None.
        counter: Counter of the expected cost of the run, or None.
        dimensions: Length of the vectors in the previous version, or None.
        stopping: Event that is set when the run ends early.
    """

    parsers: Sequence[TransformComponent]
    contextualizer: Contextualizer | None
    embed_model: BaseEmbedding | None
    embed_model_name: str | None
    ledger: Ledger
    spending: Spending | None = None
    splitter: WindowSplitter | None = None
    counter: CostCounter | None = None
    dimensions: int | None = None
    stopping: threading.Event = field(default_factory=threading.Event)

    def require_running(self) -> None:
        """Raise an error if the run has ended, so that work in other threads also stops.

        Raises:
            ContextualError: The run has ended.
        """
        if self.stopping.is_set():
            raise ContextualError("The run has ended.")

    def stop(self, error: ContextualError) -> None:
        """Stop sending calls and raise this error when the calls in flight have finished."""
        if self.contextualizer is not None:
            self.contextualizer.stop(error)
        if self.spending is not None:
            self.spending.stop(error)

    def parse(self, job: Job) -> list[BaseNode]:
        """Return the chunks of a document, including contexts that an LLM wrote earlier."""
        if job.document is None:
            return list(job.nodes or [])
        nodes = cut(job.document, self.parsers) if job.nodes is None else job.nodes
        written = {node.node_id: job.contexts[span] for node in nodes if (span := span_of(node)) in job.contexts}
        for node in nodes:
            if node.node_id in written:
                node.metadata |= ChunkContext(written[node.node_id], "llm").to_metadata() | {keys.CONTEXT_GIVEN: True}
        lines = self.contextualizer.lines if isinstance(self.contextualizer, LLMContextualizer) else None
        if written and lines is not None:
            lines.put_below(nodes, written)
        return list(nodes)

    async def acontextualize(self, nodes: Sequence[BaseNode], progress: Callable[[int], None]) -> Contextualized:
        """Return the chunks with their contexts."""
        if self.contextualizer is None:
            progress(len(nodes))
            return Contextualized([with_context(node, None) for node in nodes], [], 0)
        return await self.contextualizer.acontextualize(nodes, progress=progress)

    async def aembed(self, nodes: Sequence[BaseNode]) -> tuple[Vectors | None, list[ChunkFailure]]:
        """Return the unit vectors of chunks, taken from the ledger if possible, and the chunks without a usable vector.

        The vector of a chunk without a usable vector is zero.

        Raises:
            ModelError: The model failed, or no vector is usable.
        """
        model, name = self.embed_model, self.embed_model_name
        if model is None or name is None or not nodes:
            return None, []
        if name == LOCAL:
            texts = await asyncio.to_thread(lambda: [node.get_content(MetadataMode.EMBED) for node in nodes])
            return await aembed(model, texts, name=LOCAL), []
        units = await asyncio.to_thread(self._units, nodes)
        every = [key for unit in units for key in unit.keys]
        length = getattr(model, "dimensions", None)  # length requested from the model, if any
        known = await asyncio.to_thread(self.ledger.vectors, every, dimensions=length)
        faults: dict[str, str] = {}
        if missing := [unit for unit in units if not known.keys() >= set(unit.keys)]:
            new = await self._aembed_new(model, name, missing, faults)
            known.update(new)
            # Stored vectors of a different length cannot be in the same index as vectors that the model returns now.
            length = next(map(len, new.values()), None)
            other = {key for key, vector in known.items() if len(vector) != (length or len(vector))}
            if others := [unit for unit in units if not other.isdisjoint(unit.keys)]:
                known = {key: vector for key, vector in known.items() if key not in other}
                known.update(await self._aembed_new(model, name, others, faults))
        if not known and self.dimensions is None:
            raise unusable_error(name, next(iter(faults.values())))
        zeros = np.zeros(next(map(len, known.values()), self.dimensions or 0), dtype=np.float32)
        places = {place: key for unit in units for place, key in zip(unit.places, unit.keys, strict=True)}
        failures = [
            ChunkFailure(node.node_id, node.ref_doc_id or "", unusable(name, faults[key]), step="embedding")
            for place, node in enumerate(nodes)
            if (key := places[place]) not in known
        ]
        return np.stack([known.get(places[place], zeros) for place in range(len(nodes))]), failures

    def _units(self, nodes: Sequence[BaseNode]) -> list[_Unit]:
        """Group the texts of chunks, including their contexts, into units that are embedded together."""
        model, name = self.embed_model, self.embed_model_name or ""
        length = getattr(model, "dimensions", None)
        texts = [node.get_content(MetadataMode.EMBED) for node in nodes]
        if isinstance(model, ContextualEmbedding):
            parts = [(part, [texts[at] for at in part]) for part in document_parts(model, nodes, texts)]
            return [
                _Unit(part, tuple(document_keys(sent, name, length)), [Window(text, 1) for text in sent], name)
                for part, sent in parts
            ]
        units = []
        for at, (node, text) in enumerate(zip(nodes, texts, strict=True)):
            windows, stored_name = [Window(text, 1)], name
            if self.splitter is not None:
                body = len(node.get_content(MetadataMode.NONE).rstrip())
                windows = self.splitter.split(text, max(0, len(text) - body))
                stored_name = name if len(windows) == 1 else self.splitter.name(name)
            units.append(_Unit([at], (vector_key(text, stored_name, length),), windows, stored_name))
        return units

    async def _aembed_new(
        self, model: BaseEmbedding, name: str, units: Sequence[_Unit], faults: dict[str, str]
    ) -> dict[str, Vectors]:
        """Embed the units and return a mapping of ledger keys to vectors.

        The vectors of each response are stored in the ledger before the next call. Unusable vectors are left out, and
        their faults are added to `faults`.
        """
        units = list({unit.keys: unit for unit in units}.values())
        vectors: dict[str, Vectors] = {}
        texts = [[window.text for window in unit.windows] for unit in units]
        booking = book_nothing
        if self.spending is not None:
            booking = self.spending.free_call if is_in_process(name) else partial(self.spending.embedding, name)
        async with aclosing(aembed_groups(model, texts, name=name, booking=booking)) as answers:
            async for answer in answers:
                answered: dict[str, dict[str, Vectors]] = defaultdict(dict)
                for at, of_unit in answer.items():
                    usable, unusable_ones = units[at].outcome(of_unit)
                    answered[units[at].model].update(usable)
                    faults.update(unusable_ones)
                for stored_name, by_key in answered.items():
                    if by_key:
                        rows = np.stack(list(by_key.values()))
                        await asyncio.to_thread(self.ledger.add_vectors, stored_name, list(by_key), rows)
                    vectors.update(by_key)
        return vectors


class CostCounter:
    """Counter of the expected calls and tokens for contexts and embeddings, document by document.

    Args:
        writer: Contextualizer of the run, or None.
        embedding: Counter of the tokens to embed.
        sender: How requests that have no batch reply yet are sent.
        context_tokens: Expected number of tokens in a context.

    Attributes:
        model: Name of the LLM that writes contexts, or None.
        known_contexts: Number of chunks whose context is in the ledger.
        contexts: LLM calls that generate the missing contexts, and their tokens, by sender. With live calls, the first
            call of each segment fills the provider's cache; in a batch, no tokens are assumed to be read from the
            cache.
        alternative: Tokens of the same calls in a batch or, if they are sent in a batch, of single calls.
        reserve: Tokens of the longest call or of the whole batch, whose price must be reserved before sending.
    """

    def __init__(
        self, writer: Contextualizer | None, embedding: EmbeddingCount, sender: SenderKind, context_tokens: float
    ) -> None:
        self._writer, self._embedding, self._sender = writer, embedding, sender
        self.model = writer.model if isinstance(writer, LLMContextualizer) else None
        self.context_tokens = context_tokens
        self.known_contexts = 0
        self.contexts: dict[SenderKind, Tokens] = defaultdict(Tokens)
        self.alternative = Tokens()
        self.reserve = Tokens()

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Count the chunks of a document."""
        writer = self._writer
        if isinstance(writer, LLMContextualizer):
            form = CallForm.of(writer.model, writer.llm)
            for segment, chunks, contexts in writer.missing(nodes):
                self.known_contexts += len(contexts)
                self._add_requests(writer.requests(segment, chunks), writer.replies, form)
                structural = writer.lines
                self._embedding.add_segment(segment, chunks, contexts, self.context_tokens, structural=structural)
        else:
            contextualized = nodes if writer is None else writer.contextualize(nodes).nodes
            self._embedding.add([with_context(node, None) for node in contextualized])
        self._embedding.end_document()

    def _add_requests(self, requests: Iterable[ContextRequest], replies: BatchReplies | None, form: CallForm) -> None:
        """Count the calls and tokens of the context requests for a segment, and update the reserve."""
        by_sender: dict[SenderKind, list[ContextRequest]] = defaultdict(list)
        for request in requests:
            if replies is not None and replies.has(request):
                by_sender["batch"].append(request)
            elif replies is None or not (replies.is_unread(request) or replies.reason_unanswered(request)):
                by_sender[self._sender].append(request)
        for sender, of_sender in by_sender.items():
            count = partial(count_segment, of_sender, context_tokens=self.context_tokens)
            used, other = replace(form, cache=None), form
            if sender != "batch":
                used, other = other, used
            self.contexts[sender] += count(used)
            self.alternative += count(other)
            for most in map(used.maximum, of_sender):
                self.reserve = self.reserve + most if sender == "batch" else _larger(self.reserve, most)

    def bill(self, spending: Spending) -> Bill:
        """Return the expected cost of the calls and tokens counted so far, at the prices of an account."""
        model, embedding = self.model or "", self._embedding
        bills = [spending.bill(model, tokens, sender=sender) for sender, tokens in self.contexts.items()]
        if embedding.model is not None:
            bills.append(spending.embedding_bill(embedding.model, embedding.tokens))
        return sum(bills, Bill())


def _larger(one: Tokens, other: Tokens) -> Tokens:
    return Tokens.maximum(max(one.input_tokens, other.input_tokens), max(one.output_tokens, other.output_tokens))


def make_parsers(config: ProjectConfig) -> tuple[TransformComponent, TransformComponent]:
    """Return the segment parser and the chunk parser for the settings of a project."""
    return (
        SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_size // 10),
        ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap),
    )


def cut(
    document: Document,
    parsers: Iterable[TransformComponent],
    *,
    seconds: float = math.inf,
    check: Callable[[], None] | None = None,
) -> Sequence[BaseNode]:
    """Return the chunks of a document.

    Args:
        document: The document.
        parsers: The segment parser and the chunk parser.
        seconds: Time limit, which is checked before each segment is divided.
        check: Called before each segment is divided; it may raise an exception to stop.

    Raises:
        TimeoutError: The limit is exceeded.
    """
    deadline = time.monotonic() + seconds

    def require_time() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
        if check is not None:
            check()

    nodes: Sequence[BaseNode] = [document]
    for parser in parsers:
        nodes = parser(Checked(nodes, require_time))
    return nodes


class Checked(list[BaseNode]):
    """List of nodes that calls a function before each node during iteration.

    The function may raise an exception to stop the iteration.
    """

    def __init__(self, nodes: Iterable[BaseNode], check: Callable[[], None]) -> None:
        super().__init__(nodes)
        self._check = check

    def __iter__(self) -> Iterator[BaseNode]:
        for node in super().__iter__():
            self._check()
            yield node


def make_stages(
    config: ProjectConfig,
    *,
    ledger: Ledger,
    llm: LLM | None,
    embed_model: BaseEmbedding | None,
    model_id: str | None = None,
) -> Stages:
    """Return the stages for the settings of a project.

    Args:
        config: Settings of the project.
        ledger: Store of contexts and vectors that have already been paid for.
        llm: LLM that writes contexts; None loads the LLM named in the settings when the first context is needed.
        embed_model: Embedding model, or None if there is no semantic index.
        model_id: Name for the model in `llm`; None uses the model's own name.

    Raises:
        ModelError: A model has no name that distinguishes it from other models.
    """
    embed_model_name = None if embed_model is None else embedding_identity(embed_model)
    splitter = None
    # A contextual model divides documents itself.
    is_divided = embed_model_name == LOCAL or isinstance(embed_model, ContextualEmbedding)
    if embed_model is not None and embed_model_name is not None and not is_divided:
        splitter = window_splitter(embed_model, embed_model_name, config.embed_window)
    return Stages(
        parsers=make_parsers(config),
        contextualizer=_contextualizer(config, ledger, llm, model_id),
        embed_model=embed_model,
        embed_model_name=embed_model_name,
        ledger=ledger,
        splitter=splitter,
    )


def _contextualizer(
    config: ProjectConfig, ledger: Ledger, llm: LLM | None, model_id: str | None
) -> Contextualizer | None:
    if config.context == "none":
        return None
    if config.context == "structural":
        return StructuralContextualizer(segment_size=config.segment_size, neighbours=config.context_neighbours)
    return LLMContextualizer(
        llm=llm,
        model_id=model_id,
        model=DEFAULT_LLM if config.llm is None else config.llm,
        prompt=config.context_prompt or DEFAULT_PROMPT,
        neighbours=config.context_neighbours,
        num_workers=config.llm_concurrency,
        call_timeout=config.call_timeout,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        service_tier=config.service_tier,
        segment_size=config.segment_size,
        ledger=ledger,
    )


class Executor:
    """Executor that reads, cuts and embeds documents in this process. A subclass can do this elsewhere.

    Everything else always stays in this process: the plan, the ledger, the account with its limit, the contextualizer,
    all calls to providers, and the version that is built.

    Attributes:
        batches_ahead: Minimum number of batches of chunks to start ahead of the current batch.
    """

    batches_ahead = 0

    def reader(
        self, intake: Intake, config: ProjectConfig, page_store: PageStore, progress: ProgressCounter
    ) -> AbstractContextManager[FileReader]:
        """Return the reader for the files of a run."""
        return DocumentReader(
            limits=intake.options.limits,
            passwords=intake.options.passwords,
            pdf_engine=config.pdf_engine,
            file_metadata=intake.facts.get,
            ocr=config.ocr,
            page_store=page_store,
            on_file=progress.reading,
            on_page=lambda done, total: progress.set(pages_done=done, pages_total=total),
        )

    def embedding_stages(self, stages: Stages) -> Stages:
        """Return stages whose embedding model runs on this executor."""
        return stages


# ---- account and batches of a run ------------------------------------------------------------------------------------


async def acollect_replies(
    stages: Stages,
    jobs: Callable[[], Iterator[Job]],
    *,
    submit: bool,
    spending: Spending,
    accepts_cost: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
) -> BatchReplies | None:
    """Wait for the batches in progress, and optionally send missing requests in new batches.

    Args:
        stages: Components that process a document.
        jobs: Function that returns an iterator over the documents that need work; may be called more than once.
        submit: Whether to send missing requests; otherwise only wait for the batches in progress.
        spending: Account of the run, which approves requests and records the cost of replies.
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
    replies = BatchReplies(journal, writer.model, spending, llm=writer.llm, live=writer.service_tier or "live")
    writer = writer.model_copy(update={"retries_refused": accepts_cost})
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
        gives_up_unread=accepts_cost,
        on_progress=on_progress,
    )
    return replies


def spending_of(stages: Stages, prices: PriceTable, *, max_cost: float | None, purpose: str) -> Spending:
    """Return the account of a run.

    Args:
        stages: Components that process a document.
        prices: Model prices.
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
    """Return stages that charge their calls to an account and use batch replies where available.

    Args:
        stages: Components that process a document.
        spending: Account of the run.
        replies: Batch replies, or None.
        retries_refused: Whether to retry contexts that the LLM refused to write in earlier runs.
    """
    writer = stages.contextualizer
    if not isinstance(writer, LLMContextualizer):
        return replace(stages, spending=spending)
    writer = writer.model_copy(update={"spending": spending, "replies": replies, "retries_refused": retries_refused})
    name = None if stages.embed_model_name == LOCAL else stages.embed_model_name
    contextual = stages.embed_model if isinstance(stages.embed_model, ContextualEmbedding) else None
    embedding = EmbeddingCount(name, getattr(stages.embed_model, "dimensions", None), stages.ledger, contextual)
    counter = CostCounter(writer, embedding, writer.service_tier or "live", spending.context_tokens)
    return replace(stages, spending=spending, contextualizer=writer, counter=counter)


BATCH_CHUNKS = 256
"""Minimum number of chunks that are processed together."""

PATIENCE = 10.0
"""Seconds to wait for calls in flight when the run is cancelled."""


async def abuild(
    jobs: Iterable[Job],
    stages: Stages,
    builder: VersionBuilder,
    *,
    progress: ProgressCounter,
    batches_ahead: int = 0,
) -> Contextualized:
    """Process documents and add them to a version.

    Args:
        jobs: The documents, read on demand.
        stages: Components that process the documents.
        builder: Builder of the version.
        progress: Counter of the finished work.
        batches_ahead: Minimum number of batches to start ahead of the current batch.

    Returns:
        The failures, the number of paid contexts, the very short contexts and the lengths of the contexts; the nodes
        are not included.
    """
    batches = _batches(jobs, stages)
    async with contextlib.AsyncExitStack() as stack:
        if stages.contextualizer is not None:  # all batches share one client and its limits
            session = await stack.enter_async_context(stages.contextualizer.session())
            stages = replace(stages, contextualizer=session)
        running = _RunningBatches(stages, builder, progress, batches_ahead)
        try:
            while batch := await asyncio.to_thread(next, batches, None):
                running.start(batch)
                while running.is_full:
                    await running.store_oldest()
            while running.batches:
                await running.store_oldest()
        except BaseException as error:
            await running.abort(error)
            raise
    return running.total


JobBatch = list[tuple[Job, list[BaseNode]]]
"""Documents processed together, each with its chunks."""

BatchResult = tuple[Contextualized, NDArray[np.float32] | None]


def _batches(jobs: Iterable[Job], stages: Stages) -> Iterator[JobBatch]:
    """Yield batches of documents with their chunks; each batch except the last has at least `BATCH_CHUNKS` chunks."""
    batch: JobBatch = []
    size = 0
    for job in jobs:
        chunks = stages.parse(job)
        if stages.counter is not None and stages.spending is not None:
            stages.counter.add(chunks)
            stages.spending.estimated = stages.counter.bill(stages.spending)
        batch.append((job, chunks))
        size += len(chunks)
        if size >= BATCH_CHUNKS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _RunningBatches:
    """Batches that are processed concurrently and stored in order.

    Args:
        stages: Components that process the chunks.
        builder: Builder of the version.
        progress: Counter of the finished work.
        ahead: Minimum number of batches to start ahead of the oldest batch.

    Attributes:
        batches: The batches in progress, oldest first.
        total: The results so far, without the nodes.
    """

    def __init__(self, stages: Stages, builder: VersionBuilder, progress: ProgressCounter, ahead: int) -> None:
        self._stages, self._builder, self._progress = stages, builder, progress
        self._ahead = max(ahead, 0 if stages.contextualizer is None else stages.contextualizer.batches_ahead)
        self.batches: deque[tuple[JobBatch, asyncio.Task[BatchResult]]] = deque()
        self.total = Contextualized([], [], 0)

    @property
    def is_full(self) -> bool:
        """True if the oldest batch must be finished before another batch is started."""
        return len(self.batches) > self._ahead

    def start(self, batch: JobBatch) -> None:
        """Start to contextualize and embed a batch of documents."""
        nodes = [node for _, chunks in batch for node in chunks]
        self._progress.add(chunks_total=len(nodes))
        self.batches.append((batch, asyncio.create_task(self._process(nodes))))

    async def _process(self, nodes: Sequence[BaseNode]) -> BatchResult:
        count = self._progress.add
        result = await self._stages.acontextualize(nodes, lambda contexts: count(chunks_done=contexts))
        vectors, failures = await self._stages.aembed(result.nodes)
        count(chunks_embedded=len(result.nodes) - len(failures))
        return result._replace(failures=[*result.failures, *failures]), vectors

    async def store_oldest(self) -> None:
        """Wait for the oldest batch and add it to the version."""
        batch, task = self.batches[0]
        await asyncio.wait([task])  # unlike awaiting the task, this does not cancel its calls if the run is cancelled
        result, vectors = task.result()
        self.batches.popleft()
        await asyncio.to_thread(self._append, batch, result, vectors)
        self._progress.add(documents_done=len(batch))
        total = self.total
        self.total = Contextualized(
            [],
            [*total.failures, *result.failures],
            total.paid + result.paid,
            (*total.thin, *result.thin),
            (*total.lengths, *result.lengths),
            Counter(total.findings) + Counter(result.findings),
        )

    def _append(self, batch: JobBatch, result: Contextualized, vectors: NDArray[np.float32] | None) -> None:
        failed = {(failure.step, failure.node_id) for failure in result.failures}
        at = 0
        for job, chunks in batch:
            done = result.nodes[at : at + len(chunks)]
            for node in done if job.contexts else ():
                node.metadata.pop(keys.CONTEXT_GIVEN, None)  # written by an LLM of this project, not by the user
            record = _record(
                job,
                done,
                fallback=[node.node_id for node in done if ("context", node.node_id) in failed],
                unembedded=[node.node_id for node in done if ("embedding", node.node_id) in failed],
            )
            rows = None if vectors is None else vectors[at : at + len(chunks)]
            self._builder.append(record, Checked(done, self._stages.require_running), rows, _frame(job, done))
            at += len(chunks)

    async def abort(self, error: BaseException) -> None:
        """Stop all batches, but wait for calls in flight, because they are charged.

        After a cancellation, wait at most `PATIENCE` seconds, or until the next cancellation.
        """
        self._stages.stopping.set()
        tasks = [task for _, task in self.batches]
        spending = self._stages.spending
        calls = 0 if spending is None else spending.calls_in_flight
        try:
            if isinstance(error, ContextualError):
                self._stages.stop(error)
                await asyncio.gather(*tasks, return_exceptions=True)
            elif isinstance(error, asyncio.CancelledError) and calls:
                self._stages.stop(ContextualError("The run was interrupted."))
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


def _record(
    job: Job, nodes: Sequence[BaseNode], *, fallback: Sequence[str], unembedded: Sequence[str]
) -> DocumentRecord:
    facts = job.document.metadata if job.document is not None else nodes[0].metadata
    ends = [getattr(node, "end_char_idx", None) or 0 for node in nodes]
    ends += [(getattr(node, "start_char_idx", None) or 0) + len(node.get_content()) for node in nodes]
    return DocumentRecord(
        doc_id=job.doc_id,
        content_hash=job.content_hash,
        path=job.path,
        facts=job.facts,
        file_name=facts.get(keys.FILE_NAME),
        title=facts.get(keys.TITLE),
        chunks=len(nodes),
        tokens=sum(node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes),
        characters=len(job.document.text) if job.document is not None else max(ends, default=0),
        fallback_chunks=tuple(fallback),
        unembedded_chunks=tuple(unembedded),
    )


def _frame(job: Job, nodes: Sequence[BaseNode]) -> DocumentFrame | None:
    if job.document is None:
        return None
    spans = [(getattr(n, "start_char_idx", None) or 0, getattr(n, "end_char_idx", None) or 0) for n in nodes]
    return DocumentFrame.from_document(job.document, spans)
