"""What becomes of chunks: a context, or a sentence that says why there is none. Pure."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

from llama_index.core.llms import LLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode
from pydantic import Field, PrivateAttr, field_validator

from llama_index_contextual._utils.calls import RetryPolicy, describe, is_retryable
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.templates import ContextPrompt, check_template
from llama_index_contextual.contextualizer.base import ChunkContext, Contextualizer, Progress, Segment
from llama_index_contextual.contextualizer.batch import BatchReplies
from llama_index_contextual.contextualizer.limits import Limiter
from llama_index_contextual.contextualizer.prompts import (
    DEFAULT_PROMPT,
    ChunksPerCall,
    ContextRequest,
    group_requests,
    judge,
    keyed,
    plan_keyed,
    read_group,
    single_requests,
)
from llama_index_contextual.contextualizer.scheduler import (
    Budget,
    ContextWriter,
    LiveSender,
    Reply,
    Scheduler,
    Sender,
    ServiceTier,
)
from llama_index_contextual.contextualizer.structural import StructuralContextualizer
from llama_index_contextual.errors import ConfigurationError, ContextualError, ContextualizationError
from llama_index_contextual.models import llm_identity, load_llm, preload, provider_of
from llama_index_contextual.retirement import default_llm
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry


@dataclass(frozen=True)
class Outcome:
    """What became of one chunk.

    Attributes:
        context: Its context, or None.
        paid: Whether a provider was asked for it in this call.
        problem: Why there is none, as a sentence.
        error: What was raised, if anything was.
    """

    context: str | None
    paid: bool = False
    problem: str = ""
    error: Exception | None = None


Settled = Callable[[Segment, BaseNode, Outcome], None]
"""Called when a chunk has its outcome; may raise a ContextualError, which stops the run."""


@dataclass
class Work:
    """The chunks of a segment that wait for a context, by key."""

    segment: Segment
    chunks: dict[str, list[BaseNode]]
    settled: Settled

    def wanted(self, keys: Iterable[str]) -> dict[str, BaseNode]:
        """Return one chunk of each key."""
        return {key: self.chunks[key][0] for key in keys}

    def settle(self, key: str, outcome: Outcome) -> None:
        """Give all chunks of a key their outcome; it is paid for once."""
        for chunk in self.chunks.pop(key):
            self.settled(self.segment, chunk, outcome)
            outcome = Outcome(outcome.context, False, outcome.problem, outcome.error)


def read_reply(request: ContextRequest, reply: Reply, model: str) -> tuple[dict[str, str], dict[str, Outcome]]:
    """Return the contexts that an answer holds, and what is wrong with the others, by the keys of the request.

    Args:
        request: What was asked.
        reply: What was answered.
        model: Name of the LLM, for the sentences.
    """
    numbers = request.ids or (0,)
    answers = read_group(reply.text, request.ids) if request.ids else {0: reply.text}
    # What is complete in an answer to several chunks is good, however the answer ends.
    reason = None if request.ids else reply.finish_reason
    good: dict[str, str] = {}
    bad: dict[str, Outcome] = {}
    for key, chunk, number in zip(request.keys, request.chunks, numbers, strict=True):
        verdict = judge(answers.get(number, ""), chunk.get_content(), reason)
        if verdict.context is not None:
            good[key] = verdict.context
        else:
            bad[key] = Outcome(None, problem=f"{model!r} {verdict.problem}.")
    return good, bad


TIMES = 4
"""How often a chunk is asked for whose answers are no contexts; of several chunks in one call, twice together."""

_TIMES_TOGETHER = 2

_REFUSALS = ("content_filter", "refusal")


class Engine:
    """Finds the contexts of segments, many of them at the same time; serves all calls of one run.

    Args:
        scheduler: Sends requests.
        prompt: The template.
        model: Name of the LLM.
        chunks_per_call: Chunks of one request, at most.
        ledger: Contexts that were paid for, or None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        prompt: ContextPrompt,
        model: str,
        chunks_per_call: ChunksPerCall,
        ledger: Ledger | None,
    ) -> None:
        self._scheduler, self._prompt, self._model = scheduler, prompt, model
        self._chunks_per_call = chunks_per_call
        self._ledger = ledger
        self._writer = None if ledger is None else ContextWriter(ledger)
        # Without a ledger, what was asked in this run is still not asked again.
        self._memory: dict[str, str] = {}
        self._asked: dict[str, asyncio.Event] = {}
        self._runs = itertools.count()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        """Give this engine, and wait in the end until what has arrived is in the ledger."""
        try:
            yield self
        finally:
            if self._writer is not None:
                await self._writer.close()

    def stop(self, error: ContextualError) -> None:
        """Send nothing more; `run` raises the error when the calls in flight are over."""
        self._scheduler.stop(error)

    async def run(self, work: Iterable[tuple[Segment, Sequence[BaseNode]]], settled: Settled) -> None:
        """Find contexts; segments are drawn as there is room for them.

        Args:
            work: Segments, and the chunks of each that need a context.
            settled: Called for each chunk, in no certain order.

        Raises:
            ContextualError: The run was stopped. What had arrived is in the ledger.
        """
        this = next(self._runs)
        try:
            async with asyncio.TaskGroup() as group:
                for segment, chunks in work:
                    await self._scheduler.segments.acquire(this)
                    group.create_task(self._segment(segment, chunks, settled))
        except BaseExceptionGroup as failed:
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):  # one around another, as tasks begin tasks
                first = first.exceptions[0]
            raise first from first.__cause__
        self._scheduler.check()

    async def _segment(self, segment: Segment, chunks: Sequence[BaseNode], settled: Settled) -> None:
        try:
            by_key = await asyncio.to_thread(keyed, segment, chunks, prompt=self._prompt, model=self._model)
            await self._find(Work(segment, by_key, settled))
        except ContextualError as error:
            self._scheduler.stop(error)
        finally:
            self._scheduler.segments.release()

    async def _find(self, work: Work) -> None:
        while work.chunks:
            others = [self._asked[key] for key in work.chunks if key in self._asked]
            mine = [key for key in work.chunks if key not in self._asked]
            # Taken before the ledger is read: what arrives meanwhile by another call would be asked for again.
            self._asked.update((key, asyncio.Event()) for key in mine)
            try:
                for key, context in (await self._known(mine)).items():
                    work.settle(key, Outcome(context))
                await self._ask_for(work, [key for key in mine if key in work.chunks])
            finally:
                for key in mine:
                    self._asked.pop(key).set()
            for other in others:
                await other.wait()
            self._scheduler.check()

    async def _known(self, keys: Sequence[str]) -> dict[str, str]:
        if self._ledger is None or not keys:
            return {key: self._memory[key] for key in keys if key in self._memory}
        return await asyncio.to_thread(self._ledger.contexts, keys)

    async def _ask_for(self, work: Work, keys: Sequence[str]) -> None:
        if not keys:
            return
        requests = await asyncio.to_thread(self._plan, work.segment, work.wanted(keys))
        await self._ask_all(work, requests, asked=1)

    def _plan(self, segment: Segment, wanted: Mapping[str, BaseNode]) -> list[ContextRequest]:
        found = plan_keyed(segment, wanted, prompt=self._prompt, chunks_per_call=self._chunks_per_call)
        for request in found:
            _ = request.input_tokens, request.cache_key  # counted and hashed here, not in the event loop
        return found

    async def _ask_all(self, work: Work, requests: Sequence[ContextRequest], *, asked: int) -> None:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(self._ask(work, request, asked=asked))

    async def _ask(self, work: Work, request: ContextRequest, *, asked: int) -> None:
        """Settle the chunks of a request; what must stop the run stops it without cutting off other calls.

        Args:
            work: Where the chunks wait.
            request: What is asked.
            asked: For which time its chunks are asked for.
        """
        try:
            failed, final = await self._try(work, request)
            if failed and request.ids:
                alone = final or asked >= _TIMES_TOGETHER
                await self._ask_all(work, self._again(work.segment, request, failed, alone=alone), asked=asked + 1)
            elif failed and asked < TIMES and not final:
                await self._ask(work, request, asked=asked + 1)
            else:
                for key, outcome in failed.items():
                    work.settle(key, outcome)
        except ContextualError as error:
            self._scheduler.stop(error)

    def _again(
        self, segment: Segment, request: ContextRequest, failed: Iterable[str], *, alone: bool
    ) -> list[ContextRequest]:
        """Return what asks again for the chunks of a request that got no context: together, or each on its own."""
        chunks = dict(zip(request.keys, request.chunks, strict=True))
        wanted = {key: chunks[key] for key in failed}
        if not alone and len(wanted) > 1:
            return group_requests(segment, wanted, prompt=self._prompt, size=len(wanted))
        return single_requests(segment, wanted, prompt=self._prompt)

    async def _try(self, work: Work, request: ContextRequest) -> tuple[dict[str, Outcome], bool]:
        """Send a request, keep and settle what is good.

        Returns:
            What failed, by key, and whether it makes no sense to ask the same again.
        """
        async with AsyncExitStack() as flight:
            try:
                reply = await flight.enter_async_context(self._scheduler.call(request))
            except Exception as error:  # noqa: BLE001 - any LLM class may raise anything; the report tells what
                return self._refused(work, request, error)
            good, bad = read_reply(request, reply, self._model)
            for key, why in (await self._keep(reply, good)).items():
                del good[key]
                bad[key] = Outcome(None, problem=f"{self._model!r} gave an answer that cannot be stored.", error=why)
        for key, context in good.items():
            work.settle(key, Outcome(context, paid=True))
        return bad, bool(request.ids) and reply.finish_reason in _REFUSALS

    def _refused(self, work: Work, request: ContextRequest, error: Exception) -> tuple[dict[str, Outcome], bool]:
        self._scheduler.check()
        sentence = describe(error, setting="llm", model=self._model)
        outcome = Outcome(None, problem=sentence, error=error)
        if request.ids and is_retryable(error):
            for key in request.keys:  # each alone would fail as well
                work.settle(key, outcome)
            return {}, True
        return dict.fromkeys(request.keys, outcome), True

    async def _keep(self, reply: Reply, good: Mapping[str, str]) -> Mapping[str, Exception]:
        """Store contexts, and return the keys of those that cannot be stored, with the reason."""
        if self._writer is None:
            self._memory.update(good)
            return {}
        entries = []
        for place, (key, context) in enumerate(good.items()):
            part = reply.usage.share(len(good), place)
            entries.append(
                LedgerEntry(
                    key=key,
                    context=context,
                    model=self._model,
                    input_tokens=part.input_tokens,
                    cached_tokens=part.cached_tokens,
                    output_tokens=part.output_tokens,
                )
            )
        return await self._writer.add(entries) if entries else {}


_CALLS_PER_BATCH = 64


class LLMContextualizer(Contextualizer):
    """Asks an LLM for one or two sentences that situate each chunk in its segment.

    The first call of a segment goes out alone and brings the segment into the provider's prefix cache. A chunk whose
    call fails for good gets the structural context and is reported; it never stops the others. What can succeed for no
    chunk (no key, no such model, no quota, no provider) raises `ModelError`.

    Args:
        llm: Any LlamaIndex LLM; None loads `model` when the first call is due.
        model: Name of the LLM, as in `ProjectConfig.llm`; taken from `llm` when that is given.
        model_id: What to call the model of `llm` instead of its own name: "my-model@2" for one that has none, or whose
            name does not change with its weights. The ledger and LlamaIndex's cache tell models apart by it.
        prompt: Template with {header}, {segment} and {chunk}, or a LlamaIndex PromptTemplate.
        variables: Values of further variables of the template, such as a glossary.
        chunks_per_call: 1 is the published method; with more, or "all", the chunks are marked in the segment and the
            answer is JSON.
        num_workers: Calls in flight, at most.
        call_timeout: Seconds that a call may take, where `model` is loaded; None as usual for its provider.
        requests_per_minute: Calls sent in a minute, at most; None follows the provider's headers alone.
        tokens_per_minute: Tokens of prompts sent in a minute, at most; None likewise.
        service_tier: "flex" for half the price of live calls and longer waits, where the provider has it.
        on_error: What a chunk gets whose call failed: the structural context, or nothing: the error is raised.
        ledger: Where contexts are kept that were paid for.
        budget: Says before each call whether it may be sent.
        sender: Answers requests in the place of the LLM.
        replies: What a batch of the provider has answered already; the LLM is asked for the rest.

    Raises:
        ConfigurationError: The prompt template lacks a variable, or has one that is unknown.
        ModelError: `llm` does not say which model it is, and there is no `model_id`.

    Example:
        >>> from llama_index.core.llms import MockLLM
        >>> from llama_index.core.schema import TextNode
        >>> contextualizer = LLMContextualizer(llm=MockLLM(max_tokens=5), model_id="mock")
        >>> contextualizer([TextNode(text="Revenue grew by 3 %.")])[0].metadata["context_source"]
        'llm'
    """

    llm: LLM | None = Field(default=None, exclude=True, repr=False, description="The LLM; its key is never shown.")
    model: str = Field(default_factory=default_llm, description="Name of the LLM, as provider:name.")
    prompt: str = Field(default=DEFAULT_PROMPT, description="Template with {header}, {segment} and {chunk}.")
    variables: dict[str, str] = Field(default_factory=dict, description="Values of further variables of the template.")
    chunks_per_call: ChunksPerCall = Field(default=1, description="Chunks of one call, at most, or `all`.")
    num_workers: int = Field(default=8, gt=0, description="Calls in flight, at most.")
    call_timeout: float | None = Field(default=None, gt=0, description="Seconds that a call may take.")
    requests_per_minute: int | None = Field(default=None, gt=0, description="Calls sent in a minute, at most.")
    tokens_per_minute: int | None = Field(default=None, gt=0, description="Prompt tokens sent in a minute, at most.")
    service_tier: ServiceTier | None = Field(default=None, description="Tier of the provider's service.")
    on_error: Literal["structural", "raise"] = Field(
        default="structural", description="What a chunk gets whose call failed for good."
    )
    ledger: Ledger | None = Field(default=None, exclude=True, repr=False, description="Contexts that were paid for.")
    budget: Budget | None = Field(default=None, exclude=True, repr=False, description="Says what may be sent.")
    sender: Sender | None = Field(default=None, exclude=True, repr=False, description="Answers in the LLM's place.")
    replies: BatchReplies | None = Field(default=None, exclude=True, repr=False, description="Replies of batches.")
    retry: RetryPolicy = Field(
        default_factory=lambda: RetryPolicy(attempts=12, base_delay=0.25, max_delay=2.0),
        exclude=True,
        description="When a failed call is sent again.",
    )

    _structural: StructuralContextualizer = PrivateAttr(default_factory=StructuralContextualizer)
    _engine: Engine | None = PrivateAttr(default=None)

    def __init__(self, *, model_id: str | None = None, **values: Any) -> None:
        if isinstance(llm := values.get("llm"), LLM):
            values["model"] = llm_identity(llm, model_id)
        elif model_id is not None:
            raise ConfigurationError(
                "model_id names the object passed as llm=: pass that too, or leave model_id out.", setting="model_id"
            )
        given = values.get("prompt")
        if isinstance(given, PromptTemplate):
            values = {**values, "prompt": given.template, "variables": {**given.kwargs, **values.get("variables", {})}}
        if isinstance(values.get("prompt", DEFAULT_PROMPT), str):
            # pydantic would bury the sentence in a ValidationError
            values["prompt"] = check_template(values.get("prompt", DEFAULT_PROMPT), values.get("variables"))
        super().__init__(**values)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "LLMContextualizer"

    @field_validator("chunks_per_call")
    @classmethod
    def _positive(cls, value: ChunksPerCall) -> ChunksPerCall:
        if value != "all" and value < 1:
            raise ValueError("must be at least 1, or 'all'")
        return value

    @property
    def template(self) -> ContextPrompt:
        """The prompt with its variables."""
        return ContextPrompt(self.prompt, self.variables)

    @property
    def batches_ahead(self) -> int:
        """How many further batches of chunks should be begun while one is worked on, so that no call waits."""
        return 1 + math.ceil(self.num_workers / _CALLS_PER_BATCH)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        """Give a contextualizer whose calls, also concurrent ones, share one client and one set of limits."""
        limiter = Limiter(
            requests_per_minute=self.requests_per_minute, tokens_per_minute=self.tokens_per_minute
        )  # of this event loop
        async with AsyncExitStack() as stack:
            sender = self.sender or _LazySender(self, stack, limiter)
            scheduler = Scheduler(
                sender if self.replies is None else self.replies.over(sender),
                model=self.model,
                provider=provider_of(self.model),
                concurrency=self.num_workers,
                retry=self.retry,
                limiter=limiter,
                budget=self.budget,
                is_answered=None if self.replies is None else self.replies.has,
                prepare=sender.ready if isinstance(sender, _LazySender) else None,
            )
            engine = Engine(
                scheduler,
                prompt=self.template,
                model=self.model,
                chunks_per_call=self.chunks_per_call,
                ledger=self.ledger,
            )
            await stack.enter_async_context(engine.opened())
            ready = self.model_copy()
            ready._engine = engine
            yield ready

    def stop(self, error: ContextualError) -> None:
        """Send nothing more, because something else has failed; what is in flight is waited for."""
        if self._engine is not None:
            self._engine.stop(error)

    async def _acontexts_of_all(
        self, work: Sequence[tuple[Segment, list[BaseNode]]], progress: Progress
    ) -> list[list[ChunkContext]]:
        if self._engine is None:
            async with self.opened() as ready:
                return await ready._acontexts_of_all(work, progress)
        found: dict[str, ChunkContext] = {}

        def settled(segment: Segment, chunk: BaseNode, outcome: Outcome) -> None:
            found[chunk.node_id] = self._context(segment, chunk, outcome)
            progress(1)

        await self._engine.run(work, settled)
        return [[found[chunk.node_id] for chunk in chunks] for _, chunks in work]

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return (await self._acontexts_of_all([(segment, list(chunks))], lambda _done: None))[0]

    def _context(self, segment: Segment, chunk: BaseNode, outcome: Outcome) -> ChunkContext:
        if outcome.context is not None:
            return ChunkContext(outcome.context, "llm", paid=outcome.paid)
        if self.on_error == "raise":
            raise ContextualizationError(outcome.problem, node_ids=(chunk.node_id,)) from outcome.error
        (fallback,) = self._structural.contexts(segment, [chunk])
        return ChunkContext(fallback.text, fallback.source, outcome.problem)


class _LazySender:
    """Makes the LLM and its client when the first request is due: a complete ledger needs neither.

    Args:
        contextualizer: Whose LLM it is.
        stack: Closes the client.
        limiter: Follows the headers of the answers.
    """

    def __init__(self, contextualizer: LLMContextualizer, stack: AsyncExitStack, limiter: Limiter) -> None:
        self._contextualizer, self._stack, self._limiter = contextualizer, stack, limiter
        self._live: LiveSender | None = None
        self._making = asyncio.Lock()

    async def ready(self) -> LiveSender:
        """Return what sends; made at the first call."""
        if self._live is None:
            async with self._making:
                self._live = self._live or await self._make()
        return self._live

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        return await (await self.ready()).send(request)

    async def _make(self) -> LiveSender:
        given = self._contextualizer
        llm = await asyncio.to_thread(_load, given)
        connected = await self._stack.enter_async_context(own_client(llm, self._limiter.on_headers))
        return LiveSender(connected, service_tier=given.service_tier)


def _load(given: LLMContextualizer) -> LLM:
    loaded = given.llm or load_llm(given.model, timeout=given.call_timeout)
    preload(loaded)
    return loaded
