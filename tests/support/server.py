"""An OpenAI-compatible HTTP provider on the loopback interface, for tests.

It is a real HTTP server: the real `openai` client talks to it, directly or through LlamaIndex,
and nothing is patched. Answers are deterministic; usage, cached tokens and limits follow the
rules of the service. Without settings, a chat call answers with a context of about 100 tokens
made of the words of the chunk in the prompt:

    >>> from llama_index.embeddings.openai import OpenAIEmbedding
    >>> from llama_index.llms.openai import OpenAI
    >>> options = {"api_key": "any", "max_retries": 0, "reuse_client": False}
    >>> with LoopbackProvider(latency=0.01) as provider:
    ...     llm = OpenAI(model="gpt-4o-mini", api_base=provider.api_base, **options)
    ...     embedding = OpenAIEmbedding(api_base=provider.api_base, **options)
    ...     first = llm.complete("Situate <chunk>Revenue grew by three percent.</chunk>").text
    ...     provider.enqueue("A scripted context.")
    ...     second = llm.complete("Situate <chunk>Costs fell.</chunk>").text
    ...     vector = embedding.get_text_embedding("Revenue grew.")
    >>> first.startswith("This passage is about"), second, len(vector)
    (True, 'A scripted context.', 1536)
    >>> [(call.path, call.status) for call in provider.calls()][0]
    ('/v1/chat/completions', 200)
    >>> provider.totals()["paid_calls"]
    3

As a fixture:

    @pytest.fixture
    def provider() -> Iterator[LoopbackProvider]:
        with LoopbackProvider() as provider:
            yield provider

Script what goes wrong with `provider.fault("rate_limit", retry_after=0.5)` and
`provider.fail_randomly(0.2, seed=1, kinds=["server_error", "drop"])`; the kinds are listed in
`faults.py`, the settings in `service.Service`. Let calls pile up without sleeping:

    with provider.hold():           # arrived calls are not answered
        ...                         # start calls in threads or tasks
        provider.wait_in_flight(8)  # returns once eight have arrived
    provider.in_flight_max          # 8

A call is in flight from its arrival to its answer, so without a hold or a latency, calls are
answered as fast as they are read and hardly overlap.

`provider.write_log(path)` exports the log; `python -m tests.support.log_check path` recomputes
its totals on its own. An exception in a reply function answers with 500 and is raised when the
`with` block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from tests.support.faults import Fault
from tests.support.recorder import PATIENCE
from tests.support.records import MODEL_PATHS, Answer, Record, Request
from tests.support.service import Service
from tests.support.tokens import encoding
from tests.support.wire import Stream, parse_json, read_message, render, send, send_half

BACKLOG = 512


@dataclass(eq=False, kw_only=True, repr=False)
class LoopbackProvider(Service):
    """The provider: a `Service` behind a socket, running in a thread of its own."""

    def __post_init__(self) -> None:
        """Set up the state of the server."""
        super().__post_init__()
        self._port = 0
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_ids = itertools.count(1)
        self._connection_ids = itertools.count(1)

    def __repr__(self) -> str:
        """Show the state, not the settings and the log."""
        state = f"on port {self._port}" if self._thread else "stopped"
        return f"<LoopbackProvider {state}, {len(self.history)} requests>"

    @property
    def url(self) -> str:
        """The address of the server, without the path of the API."""
        if self._thread is None:
            raise RuntimeError("the provider is not running")
        return f"http://127.0.0.1:{self._port}"

    @property
    def api_base(self) -> str:
        """The address to give to clients as `api_base` or `base_url`."""
        return f"{self.url}/v1"

    def start(self) -> LoopbackProvider:
        """Start the server; the first start of a process also loads the tokenizer."""
        encoding()
        self._open_threads()
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(ready)), name="provider", daemon=True)
        self._thread.start()
        self._port = ready.result(PATIENCE)
        return self

    def stop(self) -> None:
        """Stop the server, breaking all connections; the log stays readable."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._thread = None
            self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> LoopbackProvider:
        """Start the server."""
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop the server and raise the first error inside it, unless another one is on its way."""
        self.stop()
        if kind is None and self.errors:
            raise self.errors[0]

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep chat and embedding calls from being answered within the block."""
        self._set_gate(False)
        try:
            yield
        finally:
            self._set_gate(True)

    def advance_batch(self, batch_id: str, to: str | None = None) -> str:
        """Move a batch to its next status, or at once to a given one, and return the status."""
        return asyncio.run_coroutine_threadsafe(self._batches.advance(batch_id, to), self._loop).result()

    def reset(self) -> None:
        """Forget log, faults, scripted replies, errors, prefix cache and rate limits."""
        self.clear_history()
        self.clear_faults()
        self._queue.clear()
        self.errors.clear()
        self._cache.clear()
        self._limiter.clear()

    def _set_gate(self, is_open: bool) -> None:
        async def change() -> None:
            (self._gate.set if is_open else self._gate.clear)()

        # Waiting for it makes the change precede every request sent afterwards.
        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    async def _main(self, ready: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._gate = asyncio.Event(), asyncio.Event()
        self._gate.set()
        server = await self._loop.create_server(self._protocol, "127.0.0.1", 0, backlog=BACKLOG)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stopping.wait()
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        stream = Stream()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(stream, writer))
            self._tasks.add(task)
            task.add_done_callback(self._served)

        return asyncio.StreamReaderProtocol(stream, connected)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.errors.append(error)

    async def _serve(self, stream: Stream, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it."""
        connection_id = next(self._connection_ids)
        try:
            with contextlib.suppress(ConnectionError):
                while (message := await read_message(stream)) is not None:
                    request = Request(
                        id=next(self._request_ids),
                        method=message.method,
                        path=message.path,
                        headers=message.headers,
                        raw=message.body,
                        body=parse_json(message),
                        connection_id=connection_id,
                        arrived=time.perf_counter(),
                        query=message.query,
                    )
                    if not await self._exchange(request, stream, writer):
                        break
        finally:
            writer.close()

    async def _exchange(self, request: Request, stream: Stream, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection is kept."""
        record = self.begin(request)
        try:
            fault = self.pick_fault(request)
            record.fault = fault.kind if fault else None
            answer = await self._prepare(request, fault, stream, record)
            if answer is None or stream.gone.is_set():
                return False
            return await self._deliver(request, record, answer, writer)
        finally:
            self.finish(record, None)

    async def _prepare(self, request: Request, fault: Fault | None, stream: Stream, record: Record) -> Answer | None:
        """Return the answer once it is due, or None when there is none."""
        hangs = fault is not None and fault.kind == "hang"
        if fault and fault.kind == "drop":
            return None
        if fault and hangs and fault.seconds is None:
            await stream.pause(None)
            return None
        answer = await self.answer(request, fault)
        record.worked = answer.usage if answer.status == 200 else None
        if fault and hangs:
            await stream.pause(fault.seconds)
        await stream.pause(self.delay(request, answer))
        if request.path in MODEL_PATHS and not self._gate.is_set():
            await stream.pause_until(self._gate)
        return answer

    async def _deliver(self, request: Request, record: Record, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        answer.headers["x-request-id"] = f"req_{request.id}"
        if self.tamper is not None and request.path in MODEL_PATHS and record.fault is None:
            self.tamper(request, answer)
        head, parts = render(answer, broken=record.fault == "malformed_json")
        # Complete before the first byte is out: what the client sends after reading the
        # answer finds the prompt in the cache and one call less in flight.
        self.finish(record, answer)
        if answer.prompt and answer.status == 200:
            self._cache.add(request, answer.prompt)
        if record.fault == "drop_in_body":
            await send_half(writer, head, parts)
            return False
        await send(writer, head, parts)
        return request.headers.get("connection", "").lower() != "close"
