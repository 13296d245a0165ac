"""Contexts written by an LLM.

`LLMContextualizer` contains the settings. For each run it opens a `ContextRun`, which looks up contexts in the ledger
and requests the others; see `writing.py`.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from llama_index.core.llms import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.schema import BaseNode
from pydantic import Field, PrivateAttr, field_validator

from llama_index_contextual._utils.calls import RetryPolicy, run_to_completion
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.templates import ContextPrompt, check_template, require_known
from llama_index_contextual.config import DEFAULT_LLM
from llama_index_contextual.contextualizer.base import (
    ChunkContext,
    Contextualizer,
    Progress,
    Segment,
    has_given_context,
    segments,
)
from llama_index_contextual.contextualizer.batch import BatchReplies
from llama_index_contextual.contextualizer.limits import Limiter
from llama_index_contextual.contextualizer.prompts import (
    DEFAULT_PROMPT,
    ChunksPerCall,
    ContextRequest,
    keyed,
    plan_requests,
)
from llama_index_contextual.contextualizer.scheduler import (
    Budget,
    LiveSender,
    Reply,
    Scheduler,
    Sender,
    ServiceTier,
)
from llama_index_contextual.contextualizer.structural import StructuralContextualizer
from llama_index_contextual.contextualizer.writing import ContextRun, Outcome
from llama_index_contextual.errors import ConfigurationError, ContextualError, ContextualizationError
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.models import llm_identity, load_llm, preload, provider_of, settings_llm

_CALLS_PER_BATCH = 64
_PROMPT_NAME = "context_prompt"


class LLMContextualizer(Contextualizer, PromptMixin):
    """Ask an LLM for one or two sentences that situate each chunk in its segment.

    An answer of fewer than 15 words (30 characters in scripts without spaces) is asked for once more; if it stays that
    short, the longer one is kept and reported. A refusal is recorded in the ledger, and the chunk is not asked for
    again.

    The first call of a segment is sent alone, so that the provider caches the segment for the calls that follow. If the
    call for a chunk finally fails, the chunk gets the structural context and is reported; the other chunks are not
    affected. An error that concerns all calls, such as an invalid key, an unknown model, an exhausted quota or an
    unreachable provider, raises `ModelError`.

    `get_prompts` and `update_prompts` give access to the template as "context_prompt".

    Args:
        llm: Any LlamaIndex LLM; None loads `model` before the first call. Without both, it is the LLM that was assigned
            to LlamaIndex's `Settings.llm`, if any.
        model: Name of the LLM, as in `ProjectConfig.llm`; taken from `llm` if that is given.
        model_id: Name for the model of `llm`, such as "my-model@2", if it has no name of its own or its name does not
            change with its weights. The ledger and LlamaIndex's cache distinguish models by it.
        prompt: Template with {header}, {segment} and {chunk}, or a LlamaIndex PromptTemplate.
        variables: Values of additional variables of the template, such as a glossary.
        chunks_per_call: 1 is the published method; with more, or "all", the chunks are marked in the segment and the
            answer is JSON.
        num_workers: Maximum number of concurrent calls.
        call_timeout: Timeout of a call in seconds when `model` is loaded; None for the provider's default.
        requests_per_minute: Maximum number of calls per minute; None relies on the provider's headers alone.
        tokens_per_minute: Maximum number of prompt tokens per minute; None relies on the provider's headers alone.
        service_tier: "flex" for half the price and longer response times, if the provider offers it.
        on_structure: Whether to put the structural line (title, section, opening) before the
            LLM's sentences: the line identifies the document, the sentences the place in it.
        on_error: "structural" to use the structural context for a chunk whose call failed, "raise" to raise the error.
        retries_refused: Whether to request contexts again that the LLM refused to write in earlier runs.
        ledger: Store of contexts already paid for: a file, which is created if it does not exist, or a `Ledger`. Pass
            one in an `IngestionPipeline`, whose own cache asks for all contexts again if any document changes.
        budget: Approves each call before it is sent.
        sender: Answers requests instead of the LLM.
        replies: Replies of the provider's batches; the LLM writes the rest.

    Raises:
        ConfigurationError: The prompt template lacks a required variable, or has an unknown one.
        ModelError: The LLM has no model name, and no `model_id` was given.

    Example:
        >>> from llama_index.core.llms import MockLLM
        >>> from llama_index.core.schema import TextNode
        >>> contextualizer = LLMContextualizer(llm=MockLLM(max_tokens=5), model_id="mock")
        >>> contextualizer([TextNode(text="Revenue grew by 3 %.")])[0].metadata["context_source"]
        'llm'
    """

    llm: LLM | None = Field(
        default=None, exclude=True, repr=False, description="The LLM; not shown: it may contain a key."
    )
    model: str = Field(default=DEFAULT_LLM, description="Name of the LLM, as provider:name.")
    prompt: str = Field(default=DEFAULT_PROMPT, description="Template with {header}, {segment} and {chunk}.")
    variables: dict[str, str] = Field(
        default_factory=dict, description="Values of additional variables of the template."
    )
    chunks_per_call: ChunksPerCall = Field(default=1, description="Maximum number of chunks per call, or `all`.")
    num_workers: int = Field(default=8, gt=0, description="Maximum number of concurrent calls.")
    call_timeout: float | None = Field(default=None, gt=0, description="Timeout of a call in seconds.")
    requests_per_minute: int | None = Field(default=None, gt=0, description="Maximum number of calls per minute.")
    tokens_per_minute: int | None = Field(default=None, gt=0, description="Maximum number of prompt tokens per minute.")
    service_tier: ServiceTier | None = Field(default=None, description="Service tier of the provider.")
    on_structure: bool = Field(
        default=True, description="Whether to put the structural line before the LLM's sentences."
    )
    on_error: Literal["structural", "raise"] = Field(
        default="structural", description="Fallback for a chunk whose call finally failed."
    )
    retries_refused: bool = Field(
        default=False, exclude=True, description="Whether to request contexts again that the LLM refused to write."
    )
    ledger: Ledger | Path | None = Field(
        default=None, exclude=True, repr=False, description="Store of contexts already paid for, or its file."
    )
    budget: Budget | None = Field(default=None, exclude=True, repr=False, description="Approves each call.")
    sender: Sender | None = Field(default=None, exclude=True, repr=False, description="Answers instead of the LLM.")
    replies: BatchReplies | None = Field(
        default=None, exclude=True, repr=False, description="Replies of the provider's batches."
    )
    retry: RetryPolicy = Field(
        default_factory=lambda: RetryPolicy(attempts=12, base_delay=0.25, max_delay=2.0),
        exclude=True,
        description="Retry policy for failed calls.",
    )

    _context_run: ContextRun | None = PrivateAttr(default=None)

    def __init__(self, *, model_id: str | None = None, **values: Any) -> None:
        if values.get("llm") is None and "model" not in values:
            values["llm"] = settings_llm()
        if isinstance(llm := values.get("llm"), LLM):
            values["model"] = llm_identity(llm, model_id)
        elif model_id is not None:
            raise ConfigurationError(
                "model_id names the object passed as llm=: pass that too, or omit model_id.", setting="model_id"
            )
        if isinstance(values.get("ledger"), str | os.PathLike):
            values["ledger"] = Path(values["ledger"])
        prompt_value = values.get("prompt")
        if isinstance(prompt_value, PromptTemplate):
            values = {
                **values,
                "prompt": prompt_value.template,
                "variables": {**prompt_value.kwargs, **values.get("variables", {})},
            }
        if isinstance(values.get("prompt", DEFAULT_PROMPT), str):
            # Checked here, because pydantic would wrap the message in a ValidationError.
            values["prompt"] = check_template(values.get("prompt", DEFAULT_PROMPT), values.get("variables"))
        super().__init__(**values)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "LLMContextualizer"

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the settings for `from_dict`, with the file of the ledger but without the LLM and other objects."""
        data: dict[str, Any] = super().to_dict(**kwargs)
        return {**data, "ledger": str(self.ledger)} if isinstance(self.ledger, Path) else data

    def _get_prompts(self) -> dict[str, BasePromptTemplate]:
        return {_PROMPT_NAME: PromptTemplate(self.prompt).partial_format(**self.variables)}

    def _get_prompt_modules(self) -> dict[str, PromptMixin]:
        return {}

    def _update_prompts(self, prompts_dict: dict[str, BasePromptTemplate]) -> None:
        """Replace the template and its variables, and with them the keys of the ledger."""
        require_known(prompts_dict, [_PROMPT_NAME])
        if (template := prompts_dict.get(_PROMPT_NAME)) is None:
            return
        if not isinstance(template, PromptTemplate):
            kind = type(template).__name__
            raise ConfigurationError(
                f"The context prompt is a {kind}: pass a PromptTemplate, whose beginning providers can cache.",
                setting=_PROMPT_NAME,
            )
        self.prompt = check_template(template.template, template.kwargs)
        self.variables = dict(template.kwargs)

    @field_validator("chunks_per_call")
    @classmethod
    def _positive(cls, value: ChunksPerCall) -> ChunksPerCall:
        if value != "all" and value < 1:
            raise ValueError("must be at least 1, or 'all'")
        return value

    @property
    def structural(self) -> StructuralContextualizer:
        """Contextualizer for chunks whose call failed."""
        return StructuralContextualizer(segment_size=self.segment_size)

    @property
    def lines(self) -> StructuralContextualizer | None:
        """Contextualizer for the lines before the LLM's sentences, or None without such lines."""
        return self.structural if self.on_structure else None

    @property
    def template(self) -> ContextPrompt:
        """Template of the prompt with its variables."""
        return ContextPrompt(self.prompt, self.variables)

    @property
    def batches_ahead(self) -> int:
        """Number of batches of chunks to start ahead of the current one, so that `num_workers` calls are in flight."""
        return 1 + math.ceil(self.num_workers / _CALLS_PER_BATCH)

    def missing(self, nodes: Sequence[BaseNode]) -> Iterator[tuple[Segment, list[BaseNode], dict[str, str]]]:
        """Yield each segment with its chunks that need a call, and the contexts in the ledger by node id.

        Chunks that the LLM refused before are in neither of them, unless they are requested again.

        Args:
            nodes: All chunks of one or more documents.
        """
        with self._open_ledger(read_only=True) as ledger:
            for segment in segments(nodes, segment_size=self.segment_size):
                chunks = [chunk for chunk in segment.chunks if not has_given_context(chunk)]
                by_key = keyed(segment, chunks, prompt=self.template, model=self.model)
                contexts = {} if ledger is None else ledger.contexts(list(by_key))
                refused = set() if ledger is None or self.retries_refused else ledger.refusals(list(by_key))
                known = {chunk.node_id: contexts[key] for key in contexts for chunk in by_key[key]}
                settled = {chunk.node_id for key in refused for chunk in by_key[key]} | known.keys()
                yield segment, [chunk for chunk in chunks if chunk.node_id not in settled], known

    @contextmanager
    def _open_ledger(self, *, read_only: bool = False) -> Iterator[Ledger | None]:
        """Provide the ledger; one that is given by its file is open for the duration of the `with` block only."""
        if not isinstance(self.ledger, Path):
            yield self.ledger
            return
        if not read_only:
            files.make_directory(self.ledger.parent)
        ledger = Ledger(self.ledger, read_only=read_only)
        try:
            yield ledger
        finally:
            ledger.close()

    def requests(
        self, segment: Segment, chunks: Sequence[BaseNode], chunks_per_call: ChunksPerCall | None = None
    ) -> list[ContextRequest]:
        """Return the calls for the contexts of some chunks of a segment, one context for chunks with the same key.

        Args:
            segment: The segment.
            chunks: Chunks of the segment that need a context.
            chunks_per_call: Number of chunks per call; None uses the setting.
        """
        if not chunks:
            return []
        return plan_requests(
            segment,
            chunks,
            prompt=self.template,
            model=self.model,
            chunks_per_call=chunks_per_call or self.chunks_per_call,
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Self]:
        """Provide a contextualizer whose calls, including concurrent ones, share one client and one rate limit."""
        # The limiter belongs to the running event loop.
        limiter = Limiter(requests_per_minute=self.requests_per_minute, tokens_per_minute=self.tokens_per_minute)
        async with AsyncExitStack() as stack:
            ledger = await run_to_completion(partial(stack.enter_context, self._open_ledger()))
            sender = self.sender or _LazySender(self, stack, limiter)
            scheduler = Scheduler(
                sender if self.replies is None else self.replies.with_fallback(sender),
                model=self.model,
                provider=provider_of(self.model),
                concurrency=self.num_workers,
                retry=self.retry,
                limiter=limiter,
                budget=self.budget,
                is_answered=None if self.replies is None else self.replies.has,
                prepare=sender.ready if isinstance(sender, _LazySender) else None,
            )
            context_run = ContextRun(
                scheduler,
                prompt=self.template,
                model=self.model,
                chunks_per_call=self.chunks_per_call,
                ledger=ledger,
                retries_refused=self.retries_refused,
                replies=self.replies,
            )
            await stack.enter_async_context(context_run.session())
            ready = self.model_copy()
            ready._context_run = context_run
            yield ready

    def stop(self, error: ContextualError) -> None:
        """Send no further calls because of an error elsewhere; calls in flight are completed."""
        if self._context_run is not None:
            self._context_run.stop(error)

    async def _acontexts_of_all(
        self, work: Sequence[tuple[Segment, list[BaseNode]]], progress: Progress
    ) -> list[list[ChunkContext]]:
        if self._context_run is None:
            async with self.session() as ready:
                return await ready._acontexts_of_all(work, progress)
        contexts: dict[str, ChunkContext] = {}

        def on_outcome(segment: Segment, chunk: BaseNode, outcome: Outcome) -> None:
            contexts[chunk.node_id] = self._context(segment, chunk, outcome)
            progress(1)

        await self._context_run.run(work, on_outcome)
        written = [[contexts[chunk.node_id] for chunk in chunks] for _, chunks in work]
        if (lines := self.lines) is None:
            return written
        return await asyncio.to_thread(
            lambda: [lines.below(*item, of_item) for item, of_item in zip(work, written, strict=True)]
        )

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return (await self._acontexts_of_all([(segment, list(chunks))], lambda _done: None))[0]

    def _context(self, segment: Segment, chunk: BaseNode, outcome: Outcome) -> ChunkContext:
        if outcome.context is not None:
            return ChunkContext(outcome.context, "llm", paid=outcome.paid, is_thin=outcome.is_thin)
        if self.on_error == "raise":
            raise ContextualizationError(outcome.problem, node_ids=(chunk.node_id,)) from outcome.error
        (fallback,) = self.structural.contexts(segment, [chunk])
        return ChunkContext(fallback.text, fallback.source, outcome.problem, is_held_back=outcome.is_held_back)


class _LazySender:
    """Sender that loads the LLM and its client for the first request: a complete ledger needs neither.

    Args:
        contextualizer: Provides the LLM or its name.
        stack: Closes the client.
        limiter: Receives the headers of the answers.
    """

    def __init__(self, contextualizer: LLMContextualizer, stack: AsyncExitStack, limiter: Limiter) -> None:
        self._contextualizer, self._stack, self._limiter = contextualizer, stack, limiter
        self._live: LiveSender | None = None
        self._lock = asyncio.Lock()

    async def ready(self) -> LiveSender:
        """Return the sender for the LLM, created on the first call."""
        if self._live is None:
            async with self._lock:
                self._live = self._live or await self._connect()
        return self._live

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        return await (await self.ready()).send(request)

    async def _connect(self) -> LiveSender:
        llm = await asyncio.to_thread(self._load)
        connected = await self._stack.enter_async_context(own_client(llm, self._limiter.on_headers))
        return LiveSender(connected, service_tier=self._contextualizer.service_tier)

    def _load(self) -> LLM:
        contextualizer = self._contextualizer
        llm = contextualizer.llm or load_llm(contextualizer.model, timeout=contextualizer.call_timeout)
        preload(llm)
        return llm
