"""Context written by any LlamaIndex LLM that sees the segment and the chunk: the published method."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, Self

from llama_index.core.llms import LLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import BaseNode
from pydantic import Field, PrivateAttr, field_validator

from llama_index_contextual.calls import RetryPolicy
from llama_index_contextual.clients import own_client
from llama_index_contextual.contextualizer.base import ChunkContext, Contextualizer, Progress
from llama_index_contextual.contextualizer.batch_sender import BatchReplies
from llama_index_contextual.contextualizer.engine import Engine
from llama_index_contextual.contextualizer.limits import Limiter
from llama_index_contextual.contextualizer.outcomes import Outcome
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT
from llama_index_contextual.contextualizer.requests import ChunksPerCall, ContextRequest
from llama_index_contextual.contextualizer.scheduler import Budget, Scheduler
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.contextualizer.senders import LiveSender, Reply, Sender, ServiceTier
from llama_index_contextual.contextualizer.structural import StructuralContextualizer
from llama_index_contextual.errors import ConfigurationError, ContextualError, ContextualizationError
from llama_index_contextual.models import llm_identity, load_llm, preload, provider_of
from llama_index_contextual.retirement import default_llm
from llama_index_contextual.storage.ledger import Ledger
from llama_index_contextual.templates import ContextPrompt, check_template

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
        connected = await self._stack.enter_async_context(own_client(llm, self._limiter.heed))
        return LiveSender(connected, service_tier=given.service_tier)


def _load(given: LLMContextualizer) -> LLM:
    loaded = given.llm or load_llm(given.model, timeout=given.call_timeout)
    preload(loaded)
    return loaded
