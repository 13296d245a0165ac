"""Contexts of many chunks: looked up in the ledger, or requested from an LLM, live or in batches.

`ContextRun` plans the requests, sends them through the scheduler, and repeats those whose answers are unusable. The
result for each chunk is an `Outcome`: a context, or the reason why there is none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from llama_index.core.schema import BaseNode

from llama_index_contextual._utils.calls import describe, is_retryable
from llama_index_contextual._utils.templates import ContextPrompt
from llama_index_contextual.contextualizer.base import (
    Segment,
)
from llama_index_contextual.contextualizer.batch import BatchReplies
from llama_index_contextual.contextualizer.prompts import (
    REFUSED,
    ChunksPerCall,
    ContextRequest,
    group_requests,
    is_thin,
    judge,
    keyed,
    plan_keyed,
    read_group,
    single_requests,
)
from llama_index_contextual.contextualizer.scheduler import (
    ContextWriter,
    Reply,
    Scheduler,
)
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index.ledger import Ledger, LedgerEntry


@dataclass(frozen=True)
class Outcome:
    """Result for one chunk.

    Attributes:
        context: Its context, or None.
        paid: Whether this call requested it from a provider.
        problem: Reason why there is no context, as a sentence.
        error: Exception that was raised, or None.
        is_thin: Whether the context is very short although the LLM was asked twice.
        is_held_back: Whether it is requested again only on purpose.
    """

    context: str | None
    paid: bool = False
    problem: str = ""
    error: Exception | None = None
    is_thin: bool = False
    is_held_back: bool = False


OutcomeCallback = Callable[[Segment, BaseNode, Outcome], None]
"""Callback that receives the outcome of each chunk; a ContextualError that it raises stops the run."""


@dataclass
class Work:
    """Chunks of a segment that still need a context, by key.

    Attributes:
        segment: The segment.
        chunks: Chunks by the key of their context; chunks with the same key get the same context.
        on_outcome: Receives the outcome of each chunk.
        thin: Contexts that are very short, by key; the LLM is asked once more.
    """

    segment: Segment
    chunks: dict[str, list[BaseNode]]
    on_outcome: OutcomeCallback
    thin: dict[str, str] = field(default_factory=dict)

    def one_per_key(self, keys: Iterable[str]) -> dict[str, BaseNode]:
        """Return one chunk for each key."""
        return {key: self.chunks[key][0] for key in keys}

    def settle(self, key: str, outcome: Outcome) -> None:
        """Pass the outcome on for all chunks of a key; only the first one counts as paid.

        If the LLM fails when it is asked once more for a very short context, that context is kept.
        """
        if outcome.context is None and key in self.thin:
            outcome = Outcome(self.thin[key], paid=True, is_thin=True)
        for chunk in self.chunks.pop(key):
            self.on_outcome(self.segment, chunk, outcome)
            outcome = replace(outcome, paid=False)


def read_reply(request: ContextRequest, reply: Reply, model: str) -> tuple[dict[str, str], dict[str, Outcome]]:
    """Return the contexts in an answer, and the outcomes of the chunks without one, by the keys of the request.

    Args:
        request: The request.
        reply: The answer.
        model: Name of the LLM, for messages.
    """
    numbers = request.ids or (0,)
    answers = read_group(reply.text, request.ids) if request.ids else {0: reply.text}
    # The complete contexts in a JSON answer are usable even if the answer was cut off.
    reason = None if request.ids else reply.finish_reason
    good: dict[str, str] = {}
    bad: dict[str, Outcome] = {}
    for key, chunk, number in zip(request.keys, request.chunks, numbers, strict=True):
        verdict = judge(answers.get(number, ""), chunk.get_content(), reason)
        if verdict.context is not None:
            good[key] = verdict.context
        else:
            is_refusal = verdict.problem == REFUSED
            bad[key] = Outcome(None, problem=f"{model!r} {verdict.problem}.", is_held_back=is_refusal)
    return good, bad


TIMES = 4
"""Maximum number of requests for a chunk whose answers are unusable, but no refusals."""

_TIMES_TOGETHER = 2
"""Number of these requests that contain several chunks; the others contain one chunk each."""

_REFUSALS = ("content_filter", "refusal")
_UNREAD = (
    "its reply in a batch cannot be read, but may be charged: its maximum price stays booked, and the next run tries to"
    " read it again"
)


class ContextRun:
    """Obtain the contexts of many segments concurrently; one serves all calls of a run.

    Args:
        scheduler: Sends the requests.
        prompt: Template of the prompt.
        model: Name of the LLM.
        chunks_per_call: Maximum number of chunks per request.
        ledger: Store of contexts already paid for, or None.
        retries_refused: Whether contexts that the LLM refused in earlier runs are requested again.
        replies: Replies of the provider's batches, or None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        prompt: ContextPrompt,
        model: str,
        chunks_per_call: ChunksPerCall,
        ledger: Ledger | None,
        retries_refused: bool = False,
        replies: BatchReplies | None = None,
    ) -> None:
        self._scheduler, self._prompt, self._model = scheduler, prompt, model
        self._chunks_per_call = chunks_per_call
        self._ledger, self._retries_refused, self._replies = ledger, retries_refused, replies
        self._writer = None if ledger is None else ContextWriter(ledger)
        # Contexts without a ledger, and refusals, are at least not requested twice in the same run; a refusal is "".
        self._memory: dict[str, str] = {}
        self._pending: dict[str, asyncio.Event] = {}
        self._runs = itertools.count()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ContextRun]:
        """Provide this object; on exit, wait until all contexts received are in the ledger."""
        try:
            yield self
        finally:
            if self._writer is not None:
                await self._writer.close()

    def stop(self, error: ContextualError) -> None:
        """Send no further calls; `run` raises the error when the calls in flight have ended."""
        self._scheduler.stop(error)

    async def run(self, work: Iterable[tuple[Segment, Sequence[BaseNode]]], on_outcome: OutcomeCallback) -> None:
        """Obtain contexts; segments are drawn from the iterable as slots become free.

        Args:
            work: Segments with those of their chunks that need a context.
            on_outcome: Called once for each chunk, in any order.

        Raises:
            ContextualError: The run was stopped. The contexts received until then are in the ledger.
        """
        number = next(self._runs)
        try:
            async with asyncio.TaskGroup() as group:
                for segment, chunks in work:
                    await self._scheduler.segments.acquire(number)
                    group.create_task(self._run_segment(segment, chunks, on_outcome))
        except BaseExceptionGroup as failed:
            first: BaseException = failed
            while isinstance(first, BaseExceptionGroup):  # nested, as tasks start tasks
                first = first.exceptions[0]
            raise first from first.__cause__
        self._scheduler.check()

    async def _run_segment(self, segment: Segment, chunks: Sequence[BaseNode], on_outcome: OutcomeCallback) -> None:
        try:
            by_key = await asyncio.to_thread(keyed, segment, chunks, prompt=self._prompt, model=self._model)
            await self._complete(Work(segment, by_key, on_outcome))
        except ContextualError as error:
            self._scheduler.stop(error)
        finally:
            self._scheduler.segments.release()

    async def _complete(self, work: Work) -> None:
        """Settle all chunks of a segment; keys that another segment is already waiting for are left to that one."""
        while work.chunks:
            others = [self._pending[key] for key in work.chunks if key in self._pending]
            mine = [key for key in work.chunks if key not in self._pending]
            # Reserve the keys before reading the ledger: otherwise two segments could request the same context.
            self._pending.update((key, asyncio.Event()) for key in mine)
            try:
                for key, context in (await asyncio.to_thread(self._known, mine)).items():
                    work.settle(key, Outcome(context) if context else self._refusal)
                await self._request(work, [key for key in mine if key in work.chunks])
            finally:
                for key in mine:
                    self._pending.pop(key).set()
            for other in others:
                await other.wait()
            self._scheduler.check()

    def _known(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the known contexts by key; an empty one stands for a refusal."""
        known = {key: self._memory[key] for key in keys if key in self._memory}
        missing = [key for key in keys if key not in known]
        if self._ledger is None or not missing:
            return known
        if not self._retries_refused:
            known |= dict.fromkeys(self._ledger.refusals(missing), "")
        return known | self._ledger.contexts(missing)

    @property
    def _refusal(self) -> Outcome:
        return Outcome(None, problem=f"{self._model!r} {REFUSED}.", is_held_back=True)

    async def _request(self, work: Work, keys: Sequence[str]) -> None:
        if not keys:
            return
        requests, unread = await asyncio.to_thread(self._plan, work.segment, work.one_per_key(keys))
        for request in unread:
            for key in request.keys:
                work.settle(key, Outcome(None, problem=_UNREAD, is_held_back=True))
        await self._ask_all(work, requests, times=1)

    def _plan(
        self, segment: Segment, chunks: Mapping[str, BaseNode]
    ) -> tuple[list[ContextRequest], list[ContextRequest]]:
        """Return the requests to send, and those that were sent in a batch whose reply could not be read."""
        requests = plan_keyed(segment, chunks, prompt=self._prompt, chunks_per_call=self._chunks_per_call)
        for request in requests:
            _ = request.input_tokens, request.cache_key  # computed in this thread, not in the event loop
        sent: list[ContextRequest] = []
        unread: list[ContextRequest] = []
        for request in requests:
            (unread if self._replies is not None and self._replies.is_unread(request) else sent).append(request)
        return sent, unread

    async def _ask_all(self, work: Work, requests: Sequence[ContextRequest], *, times: int) -> None:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(self._ask(work, request, times=times))

    async def _ask(self, work: Work, request: ContextRequest, *, times: int) -> None:
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
            elif failed and times < TIMES and not final:
                await self._ask(work, request, times=times + 1)
            else:
                for key, outcome in failed.items():
                    work.settle(key, outcome)
        except ContextualError as error:
            self._scheduler.stop(error)

    def _again(
        self, segment: Segment, request: ContextRequest, failed: Iterable[str], *, alone: bool
    ) -> list[ContextRequest]:
        """Return new requests for the chunks that got no context: several chunks in one, or one each."""
        chunks = dict(zip(request.keys, request.chunks, strict=True))
        again = {key: chunks[key] for key in failed}
        if not alone and len(again) > 1:
            return group_requests(segment, again, prompt=self._prompt, size=len(again))
        return single_requests(segment, again, prompt=self._prompt)

    async def _try(self, work: Work, request: ContextRequest) -> tuple[dict[str, Outcome], bool]:
        """Send a request; store and settle the usable contexts.

        Returns:
            The failures by key, and whether the same request must not be sent again.
        """
        async with AsyncExitStack() as flight:
            try:
                reply = await flight.enter_async_context(self._scheduler.call(request))
            except Exception as error:  # noqa: BLE001 - any LLM class may raise anything; the report shows it
                return self._failed(work, request, error)
            good, bad = read_reply(request, reply, self._model)
            good = {key: max(work.thin.get(key, ""), context, key=len) for key, context in good.items()}
            is_refusal = reply.finish_reason in _REFUSALS or any(outcome.is_held_back for outcome in bad.values())
            # One of several chunks may be accepted alone, and a very short context stays in the ledger.
            refused = [key for key in bad if is_refusal and not request.ids and key not in work.thin]
            for key, reason in (await self._store(reply, good | dict.fromkeys(refused, ""))).items():
                del good[key]
                bad[key] = Outcome(
                    None, problem=f"{self._model!r} returned an answer that cannot be stored.", error=reason
                )
        for key, context in good.items():
            if is_thin(context) and key not in work.thin:
                work.thin[key] = context
                bad[key] = Outcome(context, paid=True, is_thin=True)
            else:
                work.settle(key, Outcome(context, paid=True, is_thin=is_thin(context)))
        return bad, is_refusal

    def _failed(self, work: Work, request: ContextRequest, error: Exception) -> tuple[dict[str, Outcome], bool]:
        self._scheduler.check()
        message = describe(error, setting="llm", model=self._model)
        outcome = Outcome(None, problem=message, error=error)
        if request.ids and is_retryable(error):
            for key in request.keys:  # requests for single chunks would fail as well
                work.settle(key, outcome)
            return {}, True
        return dict.fromkeys(request.keys, outcome), True

    async def _store(self, reply: Reply, good: Mapping[str, str]) -> Mapping[str, Exception]:
        """Store contexts and refusals, and return the errors of those that cannot be stored, by key."""
        self._memory.update((key, context) for key, context in good.items() if self._writer is None or not context)
        if self._writer is None:
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
