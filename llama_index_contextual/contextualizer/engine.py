"""From segments to contexts: what the ledger holds, what must be asked, what is asked again, and what failed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from llama_index.core.schema import BaseNode

from llama_index_contextual.calls import describe, is_retryable
from llama_index_contextual.contextualizer.outcomes import Outcome, Settled, Work, read_reply
from llama_index_contextual.contextualizer.requests import (
    ChunksPerCall,
    ContextRequest,
    group_requests,
    keyed,
    plan_keyed,
    single_requests,
)
from llama_index_contextual.contextualizer.scheduler import Scheduler
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.contextualizer.senders import Reply
from llama_index_contextual.contextualizer.writer import ContextWriter
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from llama_index_contextual.templates import ContextPrompt

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
