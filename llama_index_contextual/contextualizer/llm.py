"""Contexts written by an LLM.

`LLMContextualizer` contains the settings, and an `LLMSession` the state of a run. The session looks up contexts in the
ledger, requests missing contexts, repeats requests whose answers are unusable, and commits the new contexts to the
ledger. Its `Scheduler` sends requests within the rate limits, retries failed calls, and stops the run if necessary; a
`FailureStreak` shows whether any request can succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from llama_index.core.llms import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.schema import BaseNode
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import (
    ReplyError,
    RetryPolicy,
    acall,
    awithout_secrets,
    describe,
    is_connection_error,
    is_json_error,
    is_retryable,
    is_too_long,
    run_to_completion,
)
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual._utils.templates import ContextPrompt, check_template, require_known
from llama_index_contextual.config import DEFAULT_LLM, LANGUAGES, ContextLanguages, default
from llama_index_contextual.contextualizer import prompts
from llama_index_contextual.contextualizer.base import (
    ChunkContext,
    ContextSession,
    Contextualizer,
    Progress,
    Segment,
    SegmentWork,
    StructuralContextualizer,
    has_given_context,
    segments,
)
from llama_index_contextual.contextualizer.checks import Finding, SegmentFacts, check_context, check_line
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT, ContextRequest, Reply
from llama_index_contextual.contextualizer.sending import BatchReplies, LiveSender, Sender, ServiceTier
from llama_index_contextual.contextualizer.tokens import TokenCounter
from llama_index_contextual.errors import (
    BudgetExceededError,
    ConfigurationError,
    ContextualError,
    LedgerBusyError,
    ModelError,
    ProjectError,
    Remedy,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.models import (
    Provider,
    llm_identity,
    load_llm,
    provider_of,
    settings_llm,
)
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.tokens import Tokens

logger = get_logger(__name__)

_CALLS_PER_GROUP = 64
_PROMPT_NAME = "context_prompt"


class LLMContextualizer(Contextualizer, PromptMixin):
    """Ask an LLM for one or two sentences that situate each chunk in its segment.

    Contexts shorter than 15 tokens are reported. If the LLM refuses to write a context, this is recorded in the
    ledger, and the context is not requested again.

    The first call for a segment is sent alone, so that the provider caches the segment for the following calls. If the
    call for a chunk still fails after all retries, the chunk gets the structural context and is reported; other chunks
    are not affected. An error that affects all calls, such as an invalid key, an unknown model, an exhausted quota or
    an unreachable provider, raises `ModelError`, and so do the same failure of the first requests and a run in which
    every request fails because of the server or the settings.

    A context may only contain names, numbers and dates that are in its segment, in the prompt or in `variables`; other
    sentences are removed, and a chunk without any gets the structural context. See `checks`.

    An answer without a context is requested once more, with more room if it was too short, but not if the model would
    answer the same prompt in the same way.

    `get_prompts` and `update_prompts` give access to the template as "context_prompt".

    Args:
        llm: Any LlamaIndex LLM; if None, `model` is loaded before the first call. If neither is given, the LLM assigned
            to LlamaIndex's `Settings.llm` is used, if any.
        model: Name of the LLM, as in `ProjectConfig.llm`; taken from `llm` if an LLM is passed.
        model_id: Name for the model in `llm`, such as "my-model@2", if the model has no name or keeps its name when
            its weights change. The ledger and LlamaIndex's cache distinguish models by this name.
        prompt: Template with {header}, {segment} and {chunk}, or a LlamaIndex PromptTemplate.
        variables: Values of additional variables in the template, such as a glossary.
        num_workers: Maximum number of concurrent calls.
        call_timeout: Timeout of a call in seconds if `model` is loaded; None for the provider's default.
        requests_per_minute: Maximum number of calls per minute; None for no limit.
        tokens_per_minute: Maximum number of prompt tokens per minute; None for no limit.
        service_tier: "flex" for slower responses at half the price, if the provider offers this tier.
        on_structure: Whether to put the structural line (title, section, opening) before the LLM's sentences. The line
            identifies the document, and the sentences situate the chunk in it.
        context_languages: Languages, such as ["en", "de"], for each of which the call also asks for a line with the
            names, the subject and the terms of the chunk, unless the segment is in this language. The lines are
            indexed and embedded with the context, and the structural contexts of failed chunks have none.
        neighbours: Whether the structural line also summarises the previous and the next chunk, with the longest clause
            of the context that the LLM wrote for each of them. If a neighbour is in another segment, a clause of its
            text is used instead. This needs no additional calls.
        retries_refused: Whether to retry contexts that the LLM refused to write in earlier runs.
        renews_kept: Whether to request contexts again that were written when the title or other text of the segment was
            read differently.
        ledger: Store of contexts that have already been paid for: a `Ledger`, or a file that is created if it does not
            exist. In an `IngestionPipeline`, pass a ledger: with only the pipeline's own cache, a change to any
            document causes every context to be requested again.
        retry: Retry policy for failed calls.

    Raises:
        ConfigurationError: The prompt template lacks a required variable or contains an unknown variable.

    Example:
        >>> from llama_index.core.llms import MockLLM
        >>> from llama_index.core.schema import TextNode
        >>> contextualizer = LLMContextualizer(llm=MockLLM(max_tokens=5), model_id="mock")
        >>> contextualizer([TextNode(text="Revenue grew by 3 %.")])[0].metadata["context_source"]
        'llm'
    """

    llm: LLM | None = Field(default=None, exclude=True, repr=False)  # not shown, because it may contain a key
    model: str = DEFAULT_LLM
    prompt: str = DEFAULT_PROMPT
    variables: dict[str, str] = Field(default_factory=dict)
    num_workers: int = Field(default=default("llm_concurrency"), gt=0)
    call_timeout: float | None = Field(default=None, gt=0)
    requests_per_minute: int | None = Field(default=None, gt=0)
    tokens_per_minute: int | None = Field(default=None, gt=0)
    service_tier: ServiceTier | None = None
    on_structure: bool = True
    neighbours: bool = False
    context_languages: ContextLanguages = Field(default_factory=list)
    retries_refused: bool = Field(default=False, exclude=True)
    renews_kept: bool = Field(default=False, exclude=True)
    ledger: Ledger | Path | None = Field(default=None, exclude=True, repr=False)
    retry: RetryPolicy = Field(default=RetryPolicy(attempts=12, base_delay=0.25, max_delay=2.0), exclude=True)

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
            values["prompt"] = prompt_value.template
            values["variables"] = {**prompt_value.kwargs, **values.get("variables", {})}
        if isinstance(values.get("prompt", DEFAULT_PROMPT), str):
            # Checked here because pydantic would wrap the message in a ValidationError.
            values["prompt"] = check_template(values.get("prompt", DEFAULT_PROMPT), values.get("variables"))
        super().__init__(**values)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "LLMContextualizer"

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the settings for `from_dict`, including the ledger's path but not the LLM or other objects."""
        data: dict[str, Any] = super().to_dict(**kwargs)
        if not self.context_languages:  # LlamaIndex's cache must keep the keys of earlier releases
            del data["context_languages"]
        return {**data, "ledger": str(self.ledger)} if isinstance(self.ledger, Path) else data

    def _get_prompts(self) -> dict[str, BasePromptTemplate]:
        return {_PROMPT_NAME: PromptTemplate(self.prompt).partial_format(**self.variables)}

    def _get_prompt_modules(self) -> dict[str, PromptMixin]:
        return {}

    def _update_prompts(self, prompts_dict: dict[str, BasePromptTemplate]) -> None:
        """Replace the template and its variables; this also changes the keys under which contexts are stored."""
        require_known(prompts_dict, [_PROMPT_NAME])
        if (template := prompts_dict.get(_PROMPT_NAME)) is None:
            return
        if not isinstance(template, PromptTemplate):
            kind = type(template).__name__
            raise ConfigurationError(
                f"The context prompt is a {kind}: pass a PromptTemplate, so that providers can cache its beginning.",
                setting=_PROMPT_NAME,
            )
        self.prompt = check_template(template.template, template.kwargs)
        self.variables = dict(template.kwargs)

    @property
    def structural(self) -> StructuralContextualizer:
        """Contextualizer for chunks whose call failed."""
        return StructuralContextualizer(segment_size=self.segment_size, neighbours=self.neighbours)

    @property
    def lines(self) -> StructuralContextualizer | None:
        """Contextualizer for the structural lines before the LLM's sentences, or None if there are no such lines."""
        return self.structural if self.on_structure else None

    @property
    def template(self) -> ContextPrompt:
        """Prompt template with its variables."""
        return ContextPrompt(self.prompt, self.variables)

    def line_languages(self, segment: Segment) -> tuple[str, ...]:
        """Return the codes of the languages in which the contexts of a segment should contain a line."""
        return tuple(code for code in self.context_languages if LANGUAGES[code] != segment.language)

    @property
    def groups_ahead(self) -> int:
        """Number of groups of chunks to start in advance, so that `num_workers` calls are in flight."""
        return 1 + math.ceil(self.num_workers / _CALLS_PER_GROUP)

    def missing(
        self, nodes: Sequence[BaseNode], ledger: Ledger
    ) -> Iterator[tuple[Segment, list[BaseNode], dict[str, str], dict[str, str]]]:
        """Yield each segment, its chunks that need a call, its contexts in the ledger, and those that are kept.

        The contexts are mapped from node ids. Kept contexts were written for the same chunks when the rest of the
        segment was read differently. Chunks whose context the LLM refused to write in an earlier run are left out,
        unless `retries_refused` is set.

        Args:
            nodes: All chunks of one or more documents.
            ledger: Store of contexts that have already been paid for.
        """
        for segment in segments(nodes, segment_size=self.segment_size):
            chunks = [chunk for chunk in segment.chunks if not has_given_context(chunk)]
            by_key = self.chunks_by_key(segment, chunks)
            contexts = ledger.contexts(list(by_key))
            refusals = set() if self.retries_refused else ledger.refusals(list(by_key))
            by_node = {chunk.node_id: contexts[key] for key in contexts for chunk in by_key[key]}
            ids = {chunk.node_id for key in refusals for chunk in by_key[key]} | by_node.keys()
            missing = [chunk for chunk in chunks if chunk.node_id not in ids]
            kept = self.kept(segment, missing, ledger)
            yield segment, [chunk for chunk in missing if chunk.node_id not in kept], by_node, kept

    def kept(self, segment: Segment, chunks: Sequence[BaseNode], ledger: Ledger) -> dict[str, str]:
        """Return contexts that were written for the same chunks when their file was read differently, by node id.

        Args:
            segment: The segment.
            chunks: Chunks of the segment whose contexts are not in the ledger.
            ledger: Store of contexts that have already been paid for.
        """
        if self.renews_kept or not chunks:
            return {}
        prompt = prompts.with_lines(self.template, self.line_languages(segment))
        by_key = prompts.former_keys(segment, chunks, prompt=prompt, model=self.model)
        contexts = ledger.contexts(list(by_key))
        kept = {chunk.node_id: contexts[key] for key in contexts for chunk in by_key[key]}
        former = {chunk.node_id: chunk.metadata.get(keys.FORMER_CONTEXT) for chunk in chunks}
        return kept | {node_id: context for node_id, context in former.items() if context}

    def requests(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ContextRequest]:
        """Return the requests for the contexts of a segment's chunks; chunks with the same key share a request.

        Args:
            segment: The segment.
            chunks: Chunks of the segment that need a context.
        """
        first_of = {key: same[0] for key, same in self.chunks_by_key(segment, chunks).items()}
        return self.requests_by_key(segment, first_of)

    def requests_by_key(self, segment: Segment, chunks: Mapping[str, BaseNode]) -> list[ContextRequest]:
        """Return the requests for the contexts of chunks, which are given by the keys of their contexts."""
        if not chunks:
            return []
        line_languages = self.line_languages(segment)
        prompt = prompts.with_lines(self.template, line_languages)
        return prompts.context_requests(segment, chunks, prompt=prompt, line_languages=line_languages)

    def chunks_by_key(self, segment: Segment, chunks: Sequence[BaseNode]) -> dict[str, list[BaseNode]]:
        """Group a segment's chunks by the keys under which the ledger stores their contexts."""
        prompt = prompts.with_lines(self.template, self.line_languages(segment))
        return prompts.chunks_by_key(segment, chunks, prompt=prompt, model=self.model)

    def chunk_keys(self, nodes: Sequence[BaseNode], source: str) -> list[str]:
        """Return keys that do not depend on the rest of a chunk's segment; see `prompts.chunk_keys`."""
        prompt = prompts.with_lines(self.template, self.context_languages)
        return prompts.chunk_keys(nodes, prompt=prompt, model=self.model, segment_size=self.segment_size, source=source)

    @asynccontextmanager
    async def session(
        self,
        ledger: Ledger | None = None,
        account: Account | None = None,
        *,
        replies: BatchReplies | None = None,
        sender: Sender | None = None,
    ) -> AsyncIterator[LLMSession]:
        """Provide a session that uses one client and one rate limit for all calls, even concurrent calls.

        Args:
            ledger: Store of contexts that have already been paid for; None for the one in the settings, if any.
            account: Account that approves each call before it is sent, and records its cost.
            replies: Batch replies; contexts whose request was in no batch are requested with live calls.
            sender: Object that answers requests instead of the LLM.
        """
        async with AsyncExitStack() as stack:
            if ledger is None:
                ledger = await run_to_completion(partial(stack.enter_context, self._open_ledger()))
            scheduler = Scheduler(self, stack, account=account, sender=sender)
            session = LLMSession(self, ledger, scheduler, replies)
            stack.push_async_callback(session.close)
            yield session
            scheduler.require_written()

    @contextmanager
    def _open_ledger(self) -> Iterator[Ledger]:
        """Provide the ledger of the settings, which is closed afterwards unless it was passed as an object."""
        if isinstance(self.ledger, Ledger):
            yield self.ledger
            return
        if self.ledger is not None:
            files.make_directory(self.ledger.parent)
        with contextlib.closing(Ledger(self.ledger)) as ledger:
            yield ledger

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        async with self.session() as session:
            return (await session._acontexts_of_all([(segment, list(chunks))], lambda _done: None))[0]


ContextCallback = Callable[[Segment, BaseNode, ChunkContext], None]
"""Callback that receives the context or the failure of each chunk; if it raises a ContextualError, the run stops."""


@dataclass(frozen=True)
class _Work:
    """Chunks of a segment that still need a context.

    Attributes:
        segment: The segment.
        chunks: Chunks by the key of their context; chunks with the same key get the same context.
        on_context: Callback that receives the context of each chunk.
    """

    segment: Segment
    chunks: dict[str, list[BaseNode]]
    on_context: ContextCallback

    def deliver(self, key: str, context: ChunkContext) -> None:
        """Pass the context to the callback for every chunk with this key; only the first is marked as paid."""
        for chunk in self.chunks.pop(key):
            self.on_context(self.segment, chunk, context)
            context = replace(context, paid=False)


class _Outcome(NamedTuple):
    """Result of a request.

    Attributes:
        context: The context or the failure.
        is_unusable: Whether the model answered, but without a context.
        needs_room: Whether a longer answer might contain a context.
        has_reasoning: Whether the answer consisted of reasoning.
    """

    context: ChunkContext
    is_unusable: bool = False
    needs_room: bool = False
    has_reasoning: bool = False


_WITH_ROOM = ", also with a higher limit"

_UNREAD = (
    "its reply in a batch cannot be read, but may be charged: its maximum price stays booked, and the next run tries to"
    " read it again"
)


class LLMSession(ContextSession):
    """Obtain the contexts of many segments concurrently, from the ledger, the batch replies or the LLM.

    Args:
        settings: Contextualizer with the prompt and the model.
        ledger: Store of contexts that have already been paid for.
        scheduler: Scheduler that sends the requests.
        replies: Batch replies, or None.
    """

    _settings: LLMContextualizer

    def __init__(
        self, settings: LLMContextualizer, ledger: Ledger, scheduler: Scheduler, replies: BatchReplies | None
    ) -> None:
        super().__init__(settings)
        self._ledger, self._scheduler, self._replies = ledger, scheduler, replies
        self._unsaved: list[LedgerEntry] = []
        self._pending: dict[str, asyncio.Event] = {}

    async def close(self) -> None:
        """Commit contexts that could not be stored earlier because the ledger was locked.

        Raises:
            LedgerBusyError: The ledger is still locked by another program.
        """
        if self._unsaved:
            await run_to_completion(partial(self._ledger.add_contexts, self._unsaved))

    def stop(self, error: ContextualError) -> None:
        """Stop sending calls, and raise the error when the calls in flight have ended."""
        self._scheduler.stop(error)

    async def _acontexts_of_all(self, work: Sequence[SegmentWork], progress: Progress) -> list[list[ChunkContext]]:
        contexts: dict[str, ChunkContext] = {}

        def on_context(segment: Segment, chunk: BaseNode, context: ChunkContext) -> None:
            if context.error is not None:
                (structural,) = self._settings.structural.contexts(segment, [chunk])
                context = replace(context, text=structural.text, source=structural.source)
            contexts[chunk.node_id] = context
            progress(1)

        await self._run(work, on_context)
        await run_to_completion(partial(self._store_by_chunk, work, contexts))
        return await asyncio.to_thread(lambda: [self._finished(*item, contexts) for item in work])

    def _store_by_chunk(self, work: Sequence[SegmentWork], contexts: Mapping[str, ChunkContext]) -> None:
        """Store the contexts for a later run in which the rest of the segment is read differently."""
        new = {}
        for chunk in (chunk for _, chunks in work for chunk in chunks):
            key, context = chunk.metadata.get(keys.CHUNK_KEY), contexts[chunk.node_id]
            if key and context.source == "llm" and context.written != chunk.metadata.get(keys.FORMER_CONTEXT):
                new[key] = context.written
        if new:
            self._ledger.add_chunk_contexts(self._settings.model, new)

    def _finished(
        self, segment: Segment, chunks: Sequence[BaseNode], contexts: Mapping[str, ChunkContext]
    ) -> list[ChunkContext]:
        """Return the contexts of a segment's chunks after their check, with structural lines."""
        facts = SegmentFacts([self._settings.prompt, *self._settings.variables.values(), *prompts.texts_of(segment)])
        codes = set(self._settings.line_languages(segment))
        results = [self._checked(segment, chunk, contexts[chunk.node_id], facts, codes) for chunk in chunks]
        lines = self._settings.lines
        return results if lines is None else lines.add_structure(segment, chunks, results)

    def _checked(
        self, segment: Segment, chunk: BaseNode, context: ChunkContext, facts: SegmentFacts, codes: Set[str]
    ) -> ChunkContext:
        """Return a context without the sentences that do not pass the check, or the structural one if none remains.

        Args:
            segment: The segment.
            chunk: The chunk.
            context: Its context.
            facts: Words and numbers of the segment.
            codes: Codes of the languages in which the context should contain a line.
        """
        if context.source != "llm":
            return context
        result = check_context(context.text, chunk.get_content(), facts)
        lines = tuple(filter(None, (check_line(line, facts) for line in context.lines)))
        missing: Set[Finding] = set() if codes <= {line[:2] for line in lines} else {"missing_line"}
        findings = result.findings | missing
        if result.text:
            return replace(context, text=result.text, findings=findings, lines=lines)
        (structural,) = self._settings.structural.contexts(segment, [chunk])
        return replace(context, text=structural.text, source=structural.source, findings=findings, lines=())

    async def _run(self, work: Iterable[tuple[Segment, Sequence[BaseNode]]], on_context: ContextCallback) -> None:
        """Obtain the contexts of many segments, starting the next segment whenever a slot becomes free.

        Args:
            work: Segments, each with its chunks that need a context.
            on_context: Called once for each chunk, in any order.

        Raises:
            ContextualError: The run was stopped. The contexts received until then are in the ledger.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for segment, chunks in work:
                    await self._scheduler.segments.acquire()
                    group.create_task(self._run_segment(segment, chunks, on_context))
        except BaseExceptionGroup as failed:
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):  # nested because tasks start other tasks
                first = first.exceptions[0]
            raise first from first.__cause__
        self._scheduler.check()

    async def _run_segment(self, segment: Segment, chunks: Sequence[BaseNode], on_context: ContextCallback) -> None:
        try:
            by_key = await asyncio.to_thread(self._settings.chunks_by_key, segment, chunks)
            await self._complete(_Work(segment, by_key, on_context))
        except ContextualError as error:
            self._scheduler.stop(error)
        finally:
            self._scheduler.segments.release()

    async def _complete(self, work: _Work) -> None:
        """Obtain the contexts of all chunks, waiting for any that are already being requested for another segment."""
        while work.chunks:
            events = [self._pending[key] for key in work.chunks if key in self._pending]
            mine = [key for key in work.chunks if key not in self._pending]
            # Reserve the keys before reading the ledger; otherwise two segments could request the same context.
            self._pending.update((key, asyncio.Event()) for key in mine)
            try:
                for key, context in (await asyncio.to_thread(self._contexts, mine)).items():
                    work.deliver(key, ChunkContext.of_llm(context) if context else self._refusal)
                missing = {key: work.chunks[key][0] for key in mine if key in work.chunks}
                chunks = list(missing.values())
                kept = await asyncio.to_thread(self._settings.kept, work.segment, chunks, self._ledger)
                for key in [key for key, chunk in missing.items() if chunk.node_id in kept]:
                    kept_context = ChunkContext.of_llm(kept[missing.pop(key).node_id])
                    work.deliver(key, replace(kept_context, is_kept=True))
                requests = await asyncio.to_thread(self._plan, work.segment, missing)
                async with asyncio.TaskGroup() as group:
                    for request in requests:
                        group.create_task(self._ask(work, request))
            finally:
                for key in mine:
                    self._pending.pop(key).set()
            for event in events:
                await event.wait()
            self._scheduler.check()

    def _contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Look up contexts by key in the ledger and return the contexts found. An empty string means a refusal."""
        refusals = set() if self._settings.retries_refused else self._ledger.refusals(keys)
        return dict.fromkeys(refusals, "") | self._ledger.contexts(keys)

    @property
    def _refusal(self) -> ChunkContext:
        return ChunkContext.failed(f"{self._settings.model!r} {prompts.REFUSED}.", is_held_back=True)

    def _plan(self, segment: Segment, chunks: Mapping[str, BaseNode]) -> list[ContextRequest]:
        requests = self._settings.requests_by_key(segment, chunks)
        for request in requests:
            _ = request.input_tokens, request.prefix.cache_key  # cached here, outside the event loop
        return requests

    async def _ask(self, work: _Work, request: ContextRequest) -> None:
        """Obtain and deliver the context for a request. A fatal error stops the run, but not the calls in flight."""
        try:
            outcome = await self._try(request)
            alternative = self._scheduler.another(request, outcome) if outcome.is_unusable else None
            if alternative is not None:
                outcome = await self._try(alternative)
            if outcome.is_unusable:
                message = outcome.context.error or ""
                self._scheduler.note_failed_request(request, ModelError(message, setting="llm"), kind=message)
            work.deliver(request.key, outcome.context)
        except ContextualError as error:
            self._scheduler.stop(error)

    async def _try(self, request: ContextRequest) -> _Outcome:
        """Send a request once, and store the context or the refusal in the ledger."""
        replies = self._replies
        batch_reply = None if replies is None else replies.take(request)
        if replies is not None and batch_reply is None:
            if replies.is_unread(request):
                return _Outcome(ChunkContext.failed(_UNREAD, is_held_back=True))
            if (reason := replies.reason_unanswered(request)) is not None:
                replies.note_open(request)
                return _Outcome(ChunkContext.failed(reason))
        async with AsyncExitStack() as flight:
            try:
                live = self._scheduler.call(request)
                reply = await flight.enter_async_context(live) if batch_reply is None else batch_reply
            except STOPPING:
                raise
            except Exception as error:  # noqa: BLE001 - an LLM class may raise any exception; the report shows it
                cause = call_error(error, self._settings.model)
                self._scheduler.note_failed_request(request, cause, kind=kind_of(error), is_general=is_general(error))
                return _Outcome(ChunkContext.failed(cause.problem))
            extraction = prompts.extract_context(
                reply.text,
                request.chunk.get_content(),
                reply.finish_reason,
                has_reasoning=reply.has_reasoning,
                line_languages=request.line_languages,
            )
            context, problem, tokens = extraction
            if context is not None or problem == prompts.REFUSED:
                self._scheduler.note_written()
            if context is not None:
                await self._store(request, reply, context)
                return _Outcome(ChunkContext.of_llm(context, paid=True, tokens=tokens))
            if problem == prompts.REFUSED:
                await self._store(request, reply, "")
                return _Outcome(self._refusal)
        room = _WITH_ROOM if request.answer_tokens else ""
        failure = ChunkContext.failed(f"{self._settings.model!r} {problem}{room}.")
        if replies is not None and batch_reply is not None:
            replies.note_open(request)
            return _Outcome(failure)
        return _Outcome(
            failure, is_unusable=True, needs_room=extraction.needs_room, has_reasoning=extraction.has_reasoning
        )

    async def _store(self, request: ContextRequest, reply: Reply, context: str) -> None:
        """Commit a context, or an empty string for a refusal, to the ledger.

        The method returns only when the context is on disk, even if its task is cancelled in the meantime.

        Raises:
            LedgerError: The ledger cannot be written to; if it was locked, `close` tries again.
        """
        entry = LedgerEntry(
            key=request.key,
            context=context,
            model=self._settings.model,
            input_tokens=reply.usage.input_tokens,
            cached_tokens=reply.usage.cached_tokens,
            output_tokens=reply.usage.output_tokens,
        )
        try:
            await run_to_completion(partial(self._ledger.add_contexts, [entry]))
        except LedgerBusyError:
            self._unsaved.append(entry)
            raise


# ---- Scheduling ------------------------------------------------------------------------------------------------------

STOPPING = (BudgetExceededError, ConfigurationError, ProjectError)
"""Errors after which no more calls are sent."""

_FATAL_STATUS = frozenset({401, 402, 403, 404})
_FATAL_CODES = frozenset({"insufficient_quota", "model_not_found", "invalid_api_key"})


def is_fatal(error: Exception) -> bool:
    """Return whether an error affects all calls, such as an unknown model, an invalid key or an exhausted quota."""
    return (
        getattr(error, "status_code", None) in _FATAL_STATUS
        or getattr(error, "code", None) in _FATAL_CODES
        or (isinstance(error, ValueError) and "nknown model" in str(error))
    )


def is_general(error: Exception) -> bool:
    """Return whether an error is not caused by the chunk in the request, but by the server or the settings."""
    is_rejected = str(getattr(error, "code", None)).startswith(("unsupported", "unknown_parameter"))
    return isinstance(error, ReplyError) or is_retryable(error) or is_fatal(error) or is_too_long(error) or is_rejected


def kind_of(error: Exception) -> str:
    """Return a name that errors of the same kind share."""
    if isinstance(error, ReplyError):
        return error.fault
    return "long" if is_too_long(error) else f"{type(error).__name__} {getattr(error, 'code', None)}"


def call_error(error: Exception, model: str) -> ModelError:
    """Return an error that explains why a request for a context failed, and what to do."""
    message = describe(error, setting="llm", model=model)
    if not is_too_long(error):
        return ModelError(message, setting="llm")
    return ModelError(
        message,
        setting="segment_size",
        remedy=Remedy(
            "let it read less, with segment_size=4000 or lower, or use a model with a larger window",
            "let it read less, with `llama-index-contextual configure {project} segment_size=4000` or lower, or use a"
            " model with a larger window",
        ),
    )


FIRST_REQUESTS = 5
"""Number of requests at the beginning of a run that must all fail in the same way to stop it."""

FIRST_RESPONSES = 6
"""Number of unreadable responses, each of which may be charged, that stop a run in which no request was answered."""

FAILURES_IN_A_ROW = 20
"""Number of requests that must fail in the same way without a context in between to stop a run.

After a context was written, only failures that the chunks do not cause are counted.
"""


class FailureStreak:
    """Circuit breaker: the failed requests since the last context that was written."""

    def __init__(self) -> None:
        self._has_written = False
        self._first: list[str] = []
        self._keys: defaultdict[str, set[str]] = defaultdict(set)
        self._last: ModelError | None = None
        self._is_general = True

    def note_sent(self, key: str) -> None:
        """Note that a request is sent."""
        if len(self._first) < FIRST_REQUESTS and key not in self._first:
            self._first.append(key)

    def note_written(self) -> None:
        """Note that the model has written or refused a context."""
        self._has_written = True
        self._keys.clear()

    def note_failed(self, key: str, error: ModelError, *, kind: str, is_general: bool) -> ModelError | None:
        """Note a failed request, and return the error with which to stop the run, or None to continue.

        Args:
            key: Key of the request.
            error: The error.
            kind: Name of the kind of error.
            is_general: Whether the cause is not the chunk in the request.
        """
        self._last, self._is_general = error, self._is_general and is_general
        (keys := self._keys[kind]).add(key)
        if not self._has_written and len(self._first) == FIRST_REQUESTS and keys.issuperset(self._first):
            return _stopped(error, f"The first {len(keys)} requests failed in this way, so the run was stopped")
        if (is_general or not self._has_written) and len(keys) >= FAILURES_IN_A_ROW:
            return _stopped(error, f"The last {len(keys)} requests failed in this way, so the run was stopped")
        return None

    @property
    def final_error(self) -> ModelError | None:
        """The error of a run in which every request failed, although no chunk is the cause; otherwise None."""
        if self._has_written or self._last is None or not self._is_general:
            return None
        return _stopped(self._last, "No context could be written")


def _stopped(error: ModelError, reason: str) -> ModelError:
    result = ModelError(f"{error.problem} {reason}; nothing was published.", setting=error.setting, remedy=error.remedy)
    result.__cause__ = error.__cause__
    return result


def is_rate_limit(error: Exception) -> bool:
    """Return whether a call was rejected because of a rate limit."""
    return getattr(error, "status_code", None) == 429


_MINUTE = 60.0
_SHORTEST_WAIT = 0.001


class Limiter:
    """Rate limiter that spaces calls evenly and pauses all calls after the provider reports a rate limit.

    Args:
        requests_per_minute: Maximum number of requests, or None.
        tokens_per_minute: Maximum number of prompt tokens, or None.
    """

    def __init__(self, *, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._per_request = _MINUTE / (requests_per_minute or math.inf)
        self._per_token = _MINUTE / (tokens_per_minute or math.inf)
        self._next = 0.0
        self._order = asyncio.Lock()
        self._stopped = asyncio.Event()

    async def enter(self, tokens: int) -> None:
        """Wait until a request with this number of tokens may be sent."""
        async with self._order:
            while (seconds := self._next - _now()) > 0 and not self._stopped.is_set():
                await self.sleep(max(seconds, _SHORTEST_WAIT))
            self._next = max(self._next, _now()) + max(self._per_request, tokens * self._per_token)

    def pause(self, seconds: float) -> None:
        """Delay all further requests by at least this many seconds."""
        self._next = max(self._next, _now() + seconds)

    async def sleep(self, seconds: float) -> None:
        """Sleep for the given number of seconds, or until `stop` is called."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)

    def stop(self) -> None:
        """Wake up all waiting calls."""
        self._stopped.set()


_NOTABLE_WAIT = 5.0
"""Number of seconds without an answer after which a rate limit is logged."""

_BETWEEN_NOTICES = 30.0


class Scheduler:
    """Send requests within the limits, retry failed requests, and stop the run if no call can succeed.

    Args:
        settings: Contextualizer with the LLM and its limits.
        stack: Exit stack that closes the LLM's client. The LLM is loaded for the first request, so it is not needed if
            all contexts are in the ledger.
        account: Account that approves each call and records its cost; None for one without a limit.
        sender: Object that answers requests instead of the LLM, or None.
    """

    def __init__(
        self,
        settings: LLMContextualizer,
        stack: AsyncExitStack,
        *,
        account: Account | None = None,
        sender: Sender | None = None,
    ) -> None:
        self._settings, self._stack = settings, stack
        self._sender = sender
        self._connecting = asyncio.Lock()
        self._provider = provider_of(settings.model) or Provider(pip="")
        # A provider with a single cache slot recomputes the prefix whenever the segment changes.
        concurrency = 1 if self._provider.cache == "slot" else settings.num_workers
        self._slots, self.segments = asyncio.Semaphore(concurrency), asyncio.Semaphore(concurrency)
        self._limiter = Limiter(
            requests_per_minute=settings.requests_per_minute, tokens_per_minute=settings.tokens_per_minute
        )
        self._prefix_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._cached_prefixes: set[str] = set()
        self._account = account or Account(Prices())
        self._counter = TokenCounter.for_model(settings.model, settings.llm)
        self._error: ContextualError | None = None
        self._answers, self._unreadable, self._was_reached = 0, 0, False
        self._context_tokens = 0
        self._cached_tokens: dict[str, int] = {}
        self._answer_tokens: int | None = None  # the limit of all answers, if the model reasons in them
        self._had_room: set[str] = set()  # the requests sent with this limit
        self._failing: set[str] = set()  # requests that have failed since the last answer
        self._streak = FailureStreak()
        self._limited_since, self._next_notice = math.inf, 0.0

    def stop(self, error: ContextualError) -> None:
        """Stop sending calls, and make waiting calls raise the first error passed to this method."""
        self._error = self._error or error
        self._limiter.stop()
        self._account.stop(self._error)

    def check(self) -> None:
        """Raise the error that stopped the run, if any."""
        if self._error is not None:
            raise self._error

    def note_written(self) -> None:
        """Note that the model has written or refused a context."""
        self._streak.note_written()
        self._account.note_context()

    def note_failed_request(
        self, request: ContextRequest, error: ModelError, *, kind: str, is_general: bool = False
    ) -> None:
        """Note a failed request, and stop the run if no request can succeed; see `FailureStreak.note_failed`."""
        if (fatal := self._streak.note_failed(request.key, error, kind=kind, is_general=is_general)) is not None:
            self.stop(fatal)

    def require_written(self) -> None:
        """Raise an error if every request of the run failed for the same general reason."""
        if (fatal := self._streak.final_error) is not None:
            raise fatal

    def another(self, request: ContextRequest, outcome: _Outcome) -> ContextRequest | None:
        """Return the request to send after an unusable answer, or None if it would be answered in the same way.

        A local model that reasons in its first answer will reason in all of them, so all further answers get more room.
        """
        if outcome.needs_room:
            more = self._counter.more_tokens
            if self._counter.may_reason and outcome.has_reasoning:
                self._answer_tokens = more
            return None if more is None or request.key in self._had_room else replace(request, answer_tokens=more)
        return None if getattr(self._sender, "is_deterministic", False) else request

    @asynccontextmanager
    async def call(self, request: ContextRequest) -> AsyncIterator[Reply]:
        """Provide the answer to a request, and occupy its slot until the block ends.

        The block should store the answer, so that an interruption can lose only the answers of calls in flight.

        Raises:
            ContextualError: The run was stopped because no call can succeed or the budget is exhausted.
            Exception: The last error that the provider's client raised for this request.
        """
        reply = await self._answer(request)
        try:
            yield reply
        finally:
            self._slots.release()

    async def _answer(self, request: ContextRequest) -> Reply:
        """Send a request and return the answer. A segment's first call is sent alone, so that its prefix is cached."""
        if self._provider.cache is None or request.prefix.tokens < self._provider.min_cached_tokens:
            return await self._call_with_retries(request)
        async with self._prefix_locks[request.prefix.cache_key]:
            if request.prefix.cache_key not in self._cached_prefixes:
                reply = await self._call_with_retries(request)
                self._cached_prefixes.add(request.prefix.cache_key)
                return reply
        return await self._call_with_retries(request)

    async def _call_with_retries(self, request: ContextRequest) -> Reply:
        """Send a request, with retries, and return the answer. The slot is released only if an error is raised."""
        await self._slots.acquire()
        first = before = self._answers

        async def attempt() -> Reply:
            nonlocal before
            before = self._answers
            return await self._call(request)

        def counts(error: Exception) -> bool:
            # A rate limit does not count as a failed attempt while the provider answers other calls.
            return not is_rate_limit(error) or self._answers == before

        def on_failure(error: Exception, delay: float | None) -> None:
            self._note_failed_attempt(request, error, is_last=delay is None and self._answers == first)
            self.check()
            if delay is not None and is_rate_limit(error):
                self._pause(delay)

        try:
            return await acall(
                attempt, self._settings.retry, sleep=self._limiter.sleep, counts=counts, on_failure=on_failure
            )
        except BaseException:
            self._slots.release()
            raise

    async def _call(self, request: ContextRequest) -> Reply:
        self.check()
        self._streak.note_sent(request.key)
        sender, settings = await self._connected(), self._settings
        if self._answer_tokens is not None:
            request = replace(request, answer_tokens=self._answer_tokens)
            self._had_room.add(request.key)
        await self._limiter.enter(request.input_tokens)
        async with self._account.call(
            settings.model,
            self._counter.maximum(request),
            sender=settings.service_tier or "live",
            expected=partial(self._expected, request),
        ) as call:
            reply = await awithout_secrets(partial(sender.send, request))
        tokens = self._counter.tokens_of(request, reply)
        call.settle(tokens)
        await self._account.acommit()
        self._cached_tokens[request.prefix.cache_key] = tokens.cached_tokens
        self._answers += 1
        self._context_tokens += tokens.output_tokens
        self._failing.clear()
        self._was_reached, self._limited_since = True, math.inf
        return reply

    def _expected(self, request: ContextRequest) -> Tokens | None:
        """Predict the tokens of a call, or return None if no call has been answered yet.

        The prediction is based on the cached tokens of the previous call with the same prefix and on the average length
        of the answers.
        """
        if not self._answers:
            return None
        length = self._counter.input_tokens(request)
        cached = min(length, self._cached_tokens.get(request.prefix.cache_key, 0))
        return Tokens(1, length, cached, round(self._context_tokens / self._answers))

    async def _connected(self) -> Sender:
        """Return the sender, after loading and connecting the LLM if necessary."""
        async with self._connecting:
            if self._sender is None:
                settings = self._settings
                load = partial(load_llm, settings.model, timeout=settings.call_timeout)
                llm = await asyncio.to_thread(load) if settings.llm is None else settings.llm
                llm = await self._stack.enter_async_context(own_client(llm))
                self._sender = LiveSender(llm, service_tier=settings.service_tier)
            return self._sender

    def _note_failed_attempt(self, request: ContextRequest, error: Exception, *, is_last: bool) -> None:
        """Record a failed call and stop the run if no call can succeed.

        A single request that keeps failing does not stop the run if the provider can be reached.

        Args:
            request: The request.
            error: The error.
            is_last: True if the call will not be repeated and no call has been answered since its first attempt.
        """
        if isinstance(error, STOPPING):
            self.stop(error)
            return
        reason = ""
        if not is_retryable(error) or is_rate_limit(error):
            self._failing.clear()
            self._was_reached = True
            if is_last and is_rate_limit(error) and not (self._answers or is_fatal(error)):
                reason = " The run was stopped, because no request was answered."
        else:
            self._failing.add(request.key)
            alone = len(self._failing) == 1 and (self._was_reached or not is_connection_error(error))
            self._unreadable += is_json_error(error)
            if self._unreadable >= FIRST_RESPONSES and not self._answers:
                reason = f" The run was stopped after {self._unreadable} such responses."
            elif is_last and not alone:
                reason = f" The run was stopped after {self._settings.retry.attempts} failures in a row."
        if reason or is_fatal(error):
            failure = ModelError(call_error(error, self._settings.model).problem + reason, setting="llm")
            failure.__cause__ = error
            self.stop(failure)

    def _pause(self, seconds: float) -> None:
        """Pause all calls because of a rate limit and log this if no response arrives for a long time."""
        self._limiter.pause(seconds)
        now = _now()
        self._limited_since = min(self._limited_since, now)
        if now + seconds - self._limited_since >= _NOTABLE_WAIT and now >= self._next_notice:
            self._next_notice = now + _BETWEEN_NOTICES
            until = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
            logger.warning(
                "The provider of %r limits the rate of calls (429): waiting until %s.", self._settings.model, until
            )


def _now() -> float:
    return asyncio.get_running_loop().time()
