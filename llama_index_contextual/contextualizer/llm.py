"""Contexts written by an LLM.

`LLMContextualizer` contains the settings. For each run it opens a `ContextRun`, which looks up contexts in the ledger,
requests the others through the scheduler, and repeats requests whose answers are unusable. The `ContextWriter` commits
contexts to the ledger.
"""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from llama_index.core.llms import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.schema import BaseNode
from pydantic import Field, PrivateAttr, field_validator

from llama_index_contextual._utils.calls import RetryPolicy, describe, is_retryable, run_to_completion
from llama_index_contextual._utils.templates import ContextPrompt, check_template, require_known
from llama_index_contextual.config import DEFAULT_LLM
from llama_index_contextual.contextualizer import prompts
from llama_index_contextual.contextualizer.base import (
    ChunkContext,
    Contextualizer,
    Progress,
    Segment,
    StructuralContextualizer,
    has_given_context,
    segments,
)
from llama_index_contextual.contextualizer.batch import BatchReplies
from llama_index_contextual.contextualizer.cost import Spending
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT, ChunksPerCall, ContextRequest, Reply
from llama_index_contextual.contextualizer.scheduler import STOPPING, Scheduler, Sender, ServiceTier
from llama_index_contextual.errors import ConfigurationError, ContextualError, ContextualizationError, LedgerBusyError
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.models import llm_identity, settings_llm

_CALLS_PER_BATCH = 64
_PROMPT_NAME = "context_prompt"


class LLMContextualizer(Contextualizer, PromptMixin):
    """Ask an LLM for one or two sentences that situate each chunk in its segment.

    If an answer has fewer than 15 words (30 characters in scripts without spaces), the context is requested once more.
    If the second answer is too short as well, the longer one is kept and reported. A refusal is recorded in the ledger,
    and the context is not requested again.

    The first call for a segment is sent alone, so that the provider caches the segment for the calls that follow. If
    the call for a chunk still fails after all retries, the chunk gets the structural context and is reported; other
    chunks are not affected. An error that affects all calls, such as an invalid key, an unknown model, an exhausted
    quota or an unreachable provider, raises `ModelError`.

    `get_prompts` and `update_prompts` give access to the template as "context_prompt".

    Args:
        llm: Any LlamaIndex LLM; None loads `model` before the first call. If neither is given, the LLM assigned to
            LlamaIndex's `Settings.llm` is used, if any.
        model: Name of the LLM, as in `ProjectConfig.llm`; taken from `llm` if that is given.
        model_id: Name for the model in `llm`, such as "my-model@2", if the model has no name or keeps its name when
            its weights change. The ledger and LlamaIndex's cache use it to tell models apart.
        prompt: Template with {header}, {segment} and {chunk}, or a LlamaIndex PromptTemplate.
        variables: Values of additional variables in the template, such as a glossary.
        chunks_per_call: 1 is the published method; with more, or "all", the chunks are marked in the segment and the
            answer is JSON.
        num_workers: Maximum number of concurrent calls.
        call_timeout: Timeout of a call in seconds if `model` is loaded; None for the provider's default.
        requests_per_minute: Maximum number of calls per minute; None for no limit.
        tokens_per_minute: Maximum number of prompt tokens per minute; None for no limit.
        service_tier: "flex" for half the price but slower responses, if the provider offers it.
        on_structure: Whether to put the structural line (title, section, opening) before the LLM's sentences. The line
            identifies the document, and the sentences describe the place in it.
        on_error: "structural" to use the structural context for a chunk whose call failed, "raise" to raise the error.
        retries_refused: Whether to request contexts again that the LLM refused to write in earlier runs.
        ledger: Store of contexts that have already been paid for: a `Ledger`, or a file that is created if it does not
            exist. Pass one in an `IngestionPipeline`, whose own cache requests all contexts again if any document
            changes.
        spending: Account that approves each call before it is sent, and books its cost.
        sender: Answers requests instead of the LLM.
        replies: Replies to the provider's batches; the LLM writes the other contexts.
        retry: Retry policy for failed calls.

    Raises:
        ConfigurationError: The prompt template lacks a required variable or has an unknown one.
        ModelError: The LLM has no model name, and no `model_id` was given.

    Example:
        >>> from llama_index.core.llms import MockLLM
        >>> from llama_index.core.schema import TextNode
        >>> contextualizer = LLMContextualizer(llm=MockLLM(max_tokens=5), model_id="mock")
        >>> contextualizer([TextNode(text="Revenue grew by 3 %.")])[0].metadata["context_source"]
        'llm'
    """

    llm: LLM | None = Field(default=None, exclude=True, repr=False)  # not shown: it may contain a key
    model: str = DEFAULT_LLM
    prompt: str = DEFAULT_PROMPT
    variables: dict[str, str] = Field(default_factory=dict)
    chunks_per_call: ChunksPerCall = 1
    num_workers: int = Field(default=8, gt=0)
    call_timeout: float | None = Field(default=None, gt=0)
    requests_per_minute: int | None = Field(default=None, gt=0)
    tokens_per_minute: int | None = Field(default=None, gt=0)
    service_tier: ServiceTier | None = None
    on_structure: bool = True
    on_error: Literal["structural", "raise"] = "structural"
    retries_refused: bool = Field(default=False, exclude=True)
    ledger: Ledger | Path | None = Field(default=None, exclude=True, repr=False)
    spending: Spending | None = Field(default=None, exclude=True, repr=False)
    sender: Sender | None = Field(default=None, exclude=True, repr=False)
    replies: BatchReplies | None = Field(default=None, exclude=True, repr=False)
    retry: RetryPolicy = Field(default=RetryPolicy(attempts=12, base_delay=0.25, max_delay=2.0), exclude=True)

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
        """Return the settings for `from_dict`, with the path of the ledger but without the LLM and other objects."""
        data: dict[str, Any] = super().to_dict(**kwargs)
        return {**data, "ledger": str(self.ledger)} if isinstance(self.ledger, Path) else data

    def _get_prompts(self) -> dict[str, BasePromptTemplate]:
        return {_PROMPT_NAME: PromptTemplate(self.prompt).partial_format(**self.variables)}

    def _get_prompt_modules(self) -> dict[str, PromptMixin]:
        return {}

    def _update_prompts(self, prompts_dict: dict[str, BasePromptTemplate]) -> None:
        """Replace the template and its variables, which also changes the keys of contexts in the ledger."""
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
        """Yield each segment with those of its chunks that need a call, and the contexts from the ledger by node id.

        Chunks that the LLM refused before are in neither, unless `retries_refused` is set.

        Args:
            nodes: All chunks of one or more documents.
        """
        with self._open_ledger(read_only=True) as ledger:
            for segment in segments(nodes, segment_size=self.segment_size):
                chunks = [chunk for chunk in segment.chunks if not has_given_context(chunk)]
                by_key = self.keyed(segment, chunks)
                contexts = {} if ledger is None else ledger.contexts(list(by_key))
                refused = set() if ledger is None or self.retries_refused else ledger.refusals(list(by_key))
                known = {chunk.node_id: contexts[key] for key in contexts for chunk in by_key[key]}
                settled = {chunk.node_id for key in refused for chunk in by_key[key]} | known.keys()
                yield segment, [chunk for chunk in chunks if chunk.node_id not in settled], known

    @contextmanager
    def _open_ledger(self, *, read_only: bool = False) -> Iterator[Ledger | None]:
        """Provide the ledger; if it was given as a path, it is open only during the `with` block."""
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
        """Return the calls for the contexts of some chunks of a segment; chunks with the same key share a context.

        Args:
            segment: The segment.
            chunks: Chunks of the segment that need a context.
            chunks_per_call: Number of chunks per call; None uses the setting.
        """
        first_of = {key: same[0] for key, same in self.keyed(segment, chunks).items()}
        return self.plan(segment, first_of, chunks_per_call) if chunks else []

    def keyed(self, segment: Segment, chunks: Sequence[BaseNode]) -> dict[str, list[BaseNode]]:
        """Group chunks of a segment by the keys of their contexts in the ledger."""
        return prompts.keyed(segment, chunks, prompt=self.template, model=self.model)

    def plan(
        self, segment: Segment, chunks: Mapping[str, BaseNode], chunks_per_call: ChunksPerCall | None = None
    ) -> list[ContextRequest]:
        """Return the calls for chunks given by key; `chunks_per_call` defaults to the setting."""
        size = chunks_per_call or self.chunks_per_call
        return prompts.plan_keyed(segment, chunks, prompt=self.template, chunks_per_call=size)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Self]:
        """Provide a contextualizer whose calls, including concurrent ones, share one client and one rate limit."""
        async with AsyncExitStack() as stack:
            ledger = await run_to_completion(partial(stack.enter_context, self._open_ledger()))
            context_run = ContextRun(self, ledger, Scheduler(self, stack))
            stack.push_async_callback(context_run.close)
            ready = self.model_copy()
            ready._context_run = context_run
            yield ready

    def stop(self, error: ContextualError) -> None:
        """Send no further calls because of an error elsewhere; calls in flight may finish."""
        if self._context_run is not None:
            self._context_run.stop(error)

    async def _acontexts_of_all(
        self, work: Sequence[tuple[Segment, list[BaseNode]]], progress: Progress
    ) -> list[list[ChunkContext]]:
        if self._context_run is None:
            async with self.session() as ready:
                return await ready._acontexts_of_all(work, progress)
        contexts: dict[str, ChunkContext] = {}

        def on_context(segment: Segment, chunk: BaseNode, context: ChunkContext) -> None:
            contexts[chunk.node_id] = context if context.error is None else self._fallback(segment, chunk, context)
            progress(1)

        await self._context_run.run(work, on_context)
        written = [[contexts[chunk.node_id] for chunk in chunks] for _, chunks in work]
        if (lines := self.lines) is None:
            return written
        return await asyncio.to_thread(
            lambda: [lines.below(*item, of_item) for item, of_item in zip(work, written, strict=True)]
        )

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return (await self._acontexts_of_all([(segment, list(chunks))], lambda _done: None))[0]

    def _fallback(self, segment: Segment, chunk: BaseNode, failed: ChunkContext) -> ChunkContext:
        if self.on_error == "raise":
            raise ContextualizationError(str(failed.error), node_ids=(chunk.node_id,)) from failed.cause
        (structural,) = self.structural.contexts(segment, [chunk])
        return replace(failed, text=structural.text, source=structural.source)


ContextCallback = Callable[[Segment, BaseNode, ChunkContext], None]
"""Callback that receives the context or the failure of each chunk; if it raises a ContextualError, the run stops."""


@dataclass
class _Work:
    """Chunks of a segment that still need a context.

    Attributes:
        segment: The segment.
        chunks: Chunks by the key of their context; chunks with the same key get the same context.
        on_context: Receives the context of each chunk.
        thin: Contexts that are very short, by key; the LLM is asked once more.
    """

    segment: Segment
    chunks: dict[str, list[BaseNode]]
    on_context: ContextCallback
    thin: dict[str, str] = field(default_factory=dict)

    def settle(self, key: str, context: ChunkContext) -> None:
        """Pass on the context for all chunks with this key; only the first one counts as paid.

        If the second request for a very short context fails, that context is kept.
        """
        if context.error is not None and key in self.thin:
            context = ChunkContext(self.thin[key], "llm", paid=True, is_thin=True)
        for chunk in self.chunks.pop(key):
            self.on_context(self.segment, chunk, context)
            context = replace(context, paid=False)


_TIMES = 4
"""Maximum number of requests for a chunk whose answers are unusable but are not refusals."""

_TIMES_TOGETHER = 2
"""Number of these requests that may contain several chunks; later ones contain one chunk each."""

_REFUSALS = ("content_filter", "refusal")
_UNREAD = (
    "its reply in a batch cannot be read, but may be charged: its maximum price stays booked, and the next run tries to"
    " read it again"
)


class ContextRun:
    """Obtain the contexts of many segments concurrently; a single object serves a whole run.

    Args:
        settings: Prompt, model, number of chunks per call, and replies to batches.
        ledger: Store of contexts that have already been paid for, or None.
        scheduler: Sends the requests.
    """

    def __init__(self, settings: LLMContextualizer, ledger: Ledger | None, scheduler: Scheduler) -> None:
        self._settings, self._ledger, self._scheduler = settings, ledger, scheduler
        self._writer = None if ledger is None else ContextWriter(ledger)
        # Refusals (as "") and, without a ledger, contexts, so that they are not requested twice in the same run.
        self._memory: dict[str, str] = {}
        self._pending: dict[str, asyncio.Event] = {}

    async def close(self) -> None:
        """Wait until all received contexts are in the ledger."""
        if self._writer is not None:
            await self._writer.close()

    def stop(self, error: ContextualError) -> None:
        """Send no further calls; `run` raises the error when the calls in flight have ended."""
        self._scheduler.stop(error)

    async def run(self, work: Iterable[tuple[Segment, Sequence[BaseNode]]], on_context: ContextCallback) -> None:
        """Obtain contexts, starting new segments as slots become free.

        Args:
            work: Segments with those of their chunks that need a context.
            on_context: Called once for each chunk, in any order.

        Raises:
            ContextualError: The run was stopped. The contexts received before that are in the ledger.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for segment, chunks in work:
                    await self._scheduler.segments.acquire()
                    group.create_task(self._run_segment(segment, chunks, on_context))
        except BaseExceptionGroup as failed:
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):  # nested, because tasks start tasks
                first = first.exceptions[0]
            raise first from first.__cause__
        self._scheduler.check()

    async def _run_segment(self, segment: Segment, chunks: Sequence[BaseNode], on_context: ContextCallback) -> None:
        try:
            by_key = await asyncio.to_thread(self._settings.keyed, segment, chunks)
            await self._complete(_Work(segment, by_key, on_context))
        except ContextualError as error:
            self._scheduler.stop(error)
        finally:
            self._scheduler.segments.release()

    async def _complete(self, work: _Work) -> None:
        """Settle all chunks of a segment; wait for keys that are already being requested for another segment."""
        while work.chunks:
            others = [self._pending[key] for key in work.chunks if key in self._pending]
            mine = [key for key in work.chunks if key not in self._pending]
            # Reserve the keys before reading the ledger: otherwise two segments could request the same context.
            self._pending.update((key, asyncio.Event()) for key in mine)
            try:
                for key, context in (await asyncio.to_thread(self._known, mine)).items():
                    work.settle(key, ChunkContext(context, "llm") if context else self._refusal)
                if missing := {key: work.chunks[key][0] for key in mine if key in work.chunks}:
                    requests = await asyncio.to_thread(self._plan, work.segment, missing)
                    await self._ask_all(work, requests, times=1)
            finally:
                for key in mine:
                    self._pending.pop(key).set()
            for other in others:
                await other.wait()
            self._scheduler.check()

    def _known(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the known contexts by key; an empty string stands for a refusal."""
        known = {key: self._memory[key] for key in keys if key in self._memory}
        missing = [key for key in keys if key not in known]
        if self._ledger is None or not missing:
            return known
        if not self._settings.retries_refused:
            known |= dict.fromkeys(self._ledger.refusals(missing), "")
        return known | self._ledger.contexts(missing)

    @property
    def _refusal(self) -> ChunkContext:
        return ChunkContext.failed(f"{self._settings.model!r} {prompts.REFUSED}.", is_held_back=True)

    def _plan(self, segment: Segment, chunks: Mapping[str, BaseNode]) -> list[ContextRequest]:
        requests = self._settings.plan(segment, chunks)
        for request in requests:
            _ = request.input_tokens, request.prefix.cache_key  # computed in this thread, not in the event loop
        return requests

    async def _ask_all(self, work: _Work, requests: Sequence[ContextRequest], *, times: int) -> None:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(self._ask(work, request, times=times))

    async def _ask(self, work: _Work, request: ContextRequest, *, times: int) -> None:
        """Settle the chunks of a request; a fatal error stops the run, but not the calls in flight.

        Args:
            work: The chunks without a context.
            request: The request.
            times: How often its chunks have been requested, including this time.
        """
        try:
            failed, final = await self._try(work, request)
            if failed and request.ids:
                alone = final or times >= _TIMES_TOGETHER
                await self._ask_all(work, self._again(work.segment, request, failed, alone=alone), times=times + 1)
            elif failed and times < _TIMES and not final:
                await self._ask(work, request, times=times + 1)
            else:
                for key, context in failed.items():
                    work.settle(key, context)
        except ContextualError as error:
            self._scheduler.stop(error)

    def _again(
        self, segment: Segment, request: ContextRequest, failed: Iterable[str], *, alone: bool
    ) -> list[ContextRequest]:
        """Return new requests for the chunks without a context: one request for all of them, or one for each."""
        chunks = dict(zip(request.keys, request.chunks, strict=True))
        again = {key: chunks[key] for key in failed}
        size = 1 if alone else len(again)
        return self._settings.plan(segment, again, size)

    async def _try(self, work: _Work, request: ContextRequest) -> tuple[dict[str, ChunkContext], bool]:
        """Send a request; store and settle the usable contexts.

        Returns:
            The failures by key, and whether the same request must not be repeated.
        """
        replies = self._settings.replies
        if replies is not None and replies.is_unread(request):
            for key in request.keys:
                work.settle(key, ChunkContext.failed(_UNREAD, is_held_back=True))
            return {}, True
        async with AsyncExitStack() as flight:
            try:
                stored = None if replies is None else replies.take(request)
                live = self._scheduler.call(request)
                reply = await flight.enter_async_context(live) if stored is None else stored
            except STOPPING:
                raise
            except Exception as error:  # noqa: BLE001 - any LLM class may raise anything; the report shows it
                return self._failed(work, request, error)
            good, bad = self._read(request, reply)
            good = {key: max(work.thin.get(key, ""), context, key=len) for key, context in good.items()}
            is_refusal = reply.finish_reason in _REFUSALS or any(context.is_held_back for context in bad.values())
            # A chunk that was refused together with others may be accepted alone; a very short context is kept.
            refused = [key for key in bad if is_refusal and not request.ids and key not in work.thin]
            for key, cause in (await self._store(reply, good | dict.fromkeys(refused, ""))).items():
                del good[key]
                problem = f"{self._settings.model!r} returned an answer that cannot be stored."
                bad[key] = ChunkContext.failed(problem, cause=cause)
        for key, text in good.items():
            context = ChunkContext(text, "llm", paid=True, is_thin=prompts.is_thin(text))
            if context.is_thin and key not in work.thin:
                work.thin[key] = text
                bad[key] = context
            else:
                work.settle(key, context)
        return bad, is_refusal

    def _failed(self, work: _Work, request: ContextRequest, error: Exception) -> tuple[dict[str, ChunkContext], bool]:
        context = ChunkContext.failed(describe(error, setting="llm", model=self._settings.model), cause=error)
        if request.ids and is_retryable(error):
            for key in request.keys:  # requests for single chunks would fail as well
                work.settle(key, context)
            return {}, True
        return dict.fromkeys(request.keys, context), True

    def _read(self, request: ContextRequest, reply: Reply) -> tuple[dict[str, str], dict[str, ChunkContext]]:
        """Return the contexts in an answer, and the failures of the chunks without one, by key."""
        answers = prompts.read_group(reply.text, request.ids) if request.ids else {0: reply.text}
        # The complete contexts in a JSON answer are usable even if the answer was cut off.
        reason = None if request.ids else reply.finish_reason
        good: dict[str, str] = {}
        bad: dict[str, ChunkContext] = {}
        for key, chunk, number in zip(request.keys, request.chunks, request.ids or (0,), strict=True):
            verdict = prompts.judge(answers.get(number, ""), chunk.get_content(), reason)
            if verdict.context is not None:
                good[key] = verdict.context
            else:
                problem = f"{self._settings.model!r} {verdict.problem}."
                bad[key] = ChunkContext.failed(problem, is_held_back=verdict.problem == prompts.REFUSED)
        return good, bad

    async def _store(self, reply: Reply, good: Mapping[str, str]) -> Mapping[str, Exception]:
        """Store contexts and refusals, and return the errors of those that cannot be stored, by key."""
        self._memory.update((key, context) for key, context in good.items() if self._writer is None or not context)
        if self._writer is None:
            return {}
        entries = [
            LedgerEntry(
                key=key,
                context=context,
                model=self._settings.model,
                input_tokens=part.input_tokens,
                cached_tokens=part.cached_tokens,
                output_tokens=part.output_tokens,
            )
            for (key, context), part in zip(good.items(), reply.usage.shares(len(good)), strict=True)
        ]
        return await self._writer.add(entries) if entries else {}


_ROW_ERRORS = (ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors that affect a single row; other errors affect the whole file."""


class ContextWriter:
    """Commit contexts to the ledger in a thread; contexts that arrive during a commit share the next one.

    A single context is thus committed immediately, while many contexts share a commit under load, and none of them
    waits for more than the commit in progress. A row that cannot be stored does not affect the others.

    Args:
        ledger: The ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[LedgerEntry] = []
        self._delayed: list[LedgerEntry] = []
        self._last: asyncio.Task[dict[str, Exception]] | None = None
        self._lock = asyncio.Lock()

    async def add(self, entries: Sequence[LedgerEntry]) -> dict[str, Exception]:
        """Commit contexts; they are on disk when this returns, and are committed even if the call is cancelled.

        Returns:
            The errors of contexts that cannot be stored, by key.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        if self._last is None or not self._waiting:
            self._last = asyncio.create_task(self._commit())
        self._waiting += entries
        refused = await asyncio.shield(self._last)
        return {entry.key: refused[entry.key] for entry in entries if entry.key in refused}

    async def close(self) -> None:
        """Wait until everything is committed; retry rows that could not be written because the ledger was locked.

        Raises:
            LedgerBusyError: The ledger is still locked by another program.
        """
        if self._last is not None:
            await asyncio.wait([self._last])  # commits end in the order in which they began
        if self._delayed:
            await run_to_completion(partial(self._store, self._delayed))
            self._delayed = []

    async def _commit(self) -> dict[str, Exception]:
        async with self._lock:
            rows, self._waiting = self._waiting, []
            try:
                return await asyncio.to_thread(self._store, rows)
            except LedgerBusyError:
                self._delayed += rows
                raise

    def _store(self, rows: Sequence[LedgerEntry]) -> dict[str, Exception]:
        try:
            self._ledger.add_contexts(rows)
        except _ROW_ERRORS as error:
            if len(rows) == 1:
                return {rows[0].key: error}
            return {key: cause for row in rows for key, cause in self._store([row]).items()}
        return {}
