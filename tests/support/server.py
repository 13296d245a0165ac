"""A provider of models on the loopback interface, for tests: the APIs of OpenAI, Azure, Voyage, Ollama and Anthropic.

It is a real HTTP server: the real clients talk to it, directly or through LlamaIndex, and nothing is patched. Answers
are deterministic; usage, cached tokens and limits follow the rules of the service. Without settings, a chat call
answers with a context of about 100 tokens made of the words of the chunk in the prompt:

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

Script what goes wrong with `provider.fault("rate_limit", retry_after=0.5)` and
`provider.fail_randomly(0.2, seed=1, kinds=["server_error", "drop"])`; the kinds are listed in `faults.py`. Let calls
pile up without sleeping:

    with provider.hold():           # arrived calls are not answered
        ...                         # start calls in threads or tasks
        provider.wait_in_flight(8)  # returns once eight have arrived
    provider.in_flight_max          # 8

A call is in flight from its arrival to its answer, so without a hold or a latency, calls are answered as fast as they
are read and hardly overlap.

`provider.write_log(path)` exports the log, of which `log_check.check(path)` recomputes the totals on its own. An
exception in a reply function answers with 500 and is raised when the `with` block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from aiohttp import web

from llama_index_contextual._utils.tokens import get_tokenizer
from tests.support import anthropic, ollama
from tests.support.batches import Batches, BatchPlan, Files
from tests.support.embeddings import check_embeddings, embeddings_answer
from tests.support.faults import Fault, Faults
from tests.support.limits import RateLimiter
from tests.support.recorder import PATIENCE, Recorder
from tests.support.records import CHAT_PATH, CONTEXTUAL_PATH, MODEL_PATHS, Answer, ApiError, Record, Request
from tests.support.replies import Reply, ReplyFunction, chat_answer, check_chat, default_reply, output_limit
from tests.support.tokens import DEFAULT_ENCODING, TOKEN_BYTES, PrefixCache, count, serialize_prompt
from tests.support.voyage import check_contextual, contextual_answer

LISTED_MODELS = ("gpt-4o-mini", "gpt-4.1-mini", "text-embedding-3-small", "text-embedding-3-large")
BACKLOG = 512
# Replies of tests may block (on an event, say); each needs a thread of its own then.
REPLY_THREADS = 128

_AZURE = re.compile(r"^/openai/deployments/[^/]+")

ScriptedReply = str | Reply | ReplyFunction | ApiError


@dataclass(eq=False, kw_only=True, repr=False)
class LoopbackProvider(Recorder, Faults):
    """The provider, in a thread of its own; every setting may be changed at any time.

    Attributes:
        reply: What the model says, as a function of the request, run in a thread of its own; it
            may return a `Reply` and raise an `ApiError`. Default: a context made of the words
            of the chunk.
        context_tokens: Length of the default context.
        reasoning_tokens: Tokens of every answer that are charged and not shown, within the limit of the answer.
        usage_factor: How many times the tokens of a call are reported and charged that it took.
        latency: Seconds from the arrival of a chat or embedding call to its answer, or a function
            of the request; errors are answered at once.
        require_key: The only API key accepted; None accepts all, and none.
        models: Known models; None knows all but those named "no-such...".
        rpm: Requests a model takes per window, enforced.
        tpm: Prompt tokens (with the output tokens asked for) a model takes per window, enforced.
        rate_window: Seconds of the window of the rate limits.
        embedding_dimensions: Dimensions of embeddings when the request does not say.
        embedding_encoding: Encoding that counts embedding inputs. The real models count in
            "cl100k_base", which is available too.
        batch_plan: How batches created from now on proceed.
        batch_max_requests: The most requests in a batch.
        tamper: Called with a request and its answer just before that is sent; it may change the answer in any way,
            also in ways that no `Reply` can express. Requests that a fault hits are left out. It runs in the
            server's loop, so it must not block.
        seed: Seed of the order of batch results.
        errors: Exceptions raised by reply functions or inside the server.
    """

    reply: ReplyFunction | None = None
    context_tokens: int = 100
    reasoning_tokens: int = 0
    usage_factor: int = 1
    latency: float | Callable[[Request], float] = 0.0
    require_key: str | None = None
    models: Collection[str] | None = None
    rpm: int | None = None
    tpm: int | None = None
    rate_window: float = 60.0
    embedding_dimensions: int = 1536
    embedding_encoding: str = DEFAULT_ENCODING
    batch_plan: BatchPlan = field(default_factory=BatchPlan)
    batch_max_requests: int = 50_000
    tamper: Callable[[Request, Answer], None] | None = None
    seed: int = 0
    errors: list[BaseException] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Set up the state of the server."""
        self._queue: deque[ScriptedReply] = deque()
        self._cache, self._limiter, self._files = PrefixCache(), RateLimiter(), Files()
        self._batches = Batches(self._run_line, self._files, self.seed)
        self._port = 0
        self._thread: threading.Thread | None = None
        self._ids = itertools.count(1)

    # ---- control -----------------------------------------------------------------------------------------------------

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

    def __enter__(self) -> LoopbackProvider:
        """Start the server; the first start of a process also loads the tokenizer."""
        get_tokenizer()
        self._threads = ThreadPoolExecutor(REPLY_THREADS, thread_name_prefix="reply")
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Stop the server and raise the first error inside it, unless another one is on its way."""
        self.stop()
        if kind is None and self.errors:
            raise self.errors[0]

    def enqueue(self, *replies: ScriptedReply) -> None:
        """Script the next chat replies, used first in, first out, in order of arrival."""
        self._queue.extend(replies)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep chat and embedding calls from being answered within the block."""
        self._set_gate(False)
        try:
            yield
        finally:
            self._set_gate(True)

    def advance_batch(self, batch_id: str, to: str) -> None:
        """Move a batch at once to a given status."""
        asyncio.run_coroutine_threadsafe(self._batches.advance(batch_id, to), self._loop).result()

    def reset(self) -> None:
        """Forget log, faults, scripted replies, errors, prefix cache and rate limits."""
        self.clear_history()
        self.clear_faults()
        self._queue.clear()
        self.errors.clear()
        self._cache, self._limiter = PrefixCache(), RateLimiter()

    def _set_gate(self, is_open: bool) -> None:
        async def change() -> None:
            (self._gate.set if is_open else self._gate.clear)()

        # Waiting for it makes the change precede every request sent afterwards.
        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    # ---- HTTP --------------------------------------------------------------------------------------------------------

    async def _main(self, ready: Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._gate = asyncio.Event(), asyncio.Event()
        self._gate.set()
        quiet = logging.Logger("provider", logging.CRITICAL)  # errors are in `errors`
        # A client that leaves cancels the handler of its request.
        http = web.Server(
            self._serve, request_factory=_message, handler_cancellation=True, access_log=None, logger=quiet
        )
        server = await self._loop.create_server(http, "127.0.0.1", 0, backlog=BACKLOG)
        ready.set_result(server.sockets[0].getsockname()[1])
        await self._stopping.wait()
        server.close()
        for connection in http.connections:
            connection.force_close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, message: web.BaseRequest) -> web.StreamResponse:
        raw = await message.read()
        request = Request(
            id=next(self._ids),
            method=message.method,
            path=_AZURE.sub("/v1", message.path),
            headers={name.lower(): value for name, value in message.headers.items()},
            raw=raw,
            body=_parsed(message.content_type, raw),
            connection_id=message.get_extra_info("peername", ("", 0))[1],
            arrived=time.perf_counter(),
            query=dict(message.query),
        )
        # From here to the answer, nothing yields to other requests, unless it has to wait.
        record = self.begin(request)
        try:
            fault = self.pick_fault(request)
            record.fault = fault.kind if fault else None
            answer = await self._work(request, fault, record)
            await self._wait(message, request, fault, answer)
            return await self._send(message, request, record, answer)
        except ConnectionError:
            if message.transport is not None:
                message.transport.close()
            raise
        except Exception as error:
            self.errors.append(error)
            raise
        finally:
            self.finish(record, None)

    async def _work(self, request: Request, fault: Fault | None, record: Record) -> Answer:
        if fault and (fault.kind == "drop" or (fault.kind == "hang" and fault.seconds is None)):
            return Answer()
        answer = await self._answer(request, fault)
        record.worked = answer.usage if answer.status == 200 else None
        return answer

    async def _wait(self, message: web.BaseRequest, request: Request, fault: Fault | None, answer: Answer) -> None:
        """Return when the answer is due."""
        if message.transport is None or (fault and fault.kind == "drop"):
            raise ConnectionResetError
        if fault and fault.kind == "hang":
            await asyncio.sleep(PATIENCE if fault.seconds is None else fault.seconds)
        if request.path in MODEL_PATHS:
            if answer.status == 200:
                latency = self.latency(request) if callable(self.latency) else self.latency
                if latency > 0:
                    await asyncio.sleep(request.arrived + latency - time.perf_counter())
            await self._gate.wait()

    async def _send(
        self, message: web.BaseRequest, request: Request, record: Record, answer: Answer
    ) -> web.StreamResponse:
        answer.headers["x-request-id"] = f"req_{request.id}"
        if (
            self.tamper is not None
            and request.path in {*MODEL_PATHS, ollama.EMBED, ollama.CHAT}
            and record.fault is None
        ):
            self.tamper(request, answer)
        parts, kind = _rendered(answer, broken=record.fault == "malformed_json")
        response = web.StreamResponse(status=answer.status, headers={"content-type": kind} | answer.headers)
        response.content_length = None if answer.events is not None else sum(map(len, parts))
        # Complete before the first byte is out: what the client sends after reading the
        # answer finds the prompt in the cache and one call less in flight.
        self.finish(record, answer)
        if answer.prompt and answer.status == 200:
            self._cache.add(request, answer.prompt)
        await response.prepare(message)
        dropped = record.fault == "drop_in_body"
        if dropped:
            parts = parts[: len(parts) // 2] or [parts[0][: len(parts[0]) // 2]]
        for part in parts:
            await response.write(part)
        if dropped:
            raise ConnectionResetError
        await response.write_eof()
        return response

    # ---- the service -------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, fault: Fault | None) -> Answer:
        try:
            self._check_key(request)
            if fault and fault.error:
                raise fault.error
            answer = await self._route(request, fault)
        except ApiError as error:
            answer = error.answer()
            if request.path == CONTEXTUAL_PATH:
                answer.payload = {"detail": str(error)}
        if fault and fault.kind == "missing_usage":
            answer.payload.pop("usage")
        return answer

    async def _route(self, request: Request, fault: Fault | None) -> Answer:
        if request.body is None:
            raise ApiError(400, "We could not parse the JSON body of your request.")
        match request.method, request.path.strip("/").split("/")[1:]:
            case "POST", ["chat", "completions"] | ["embeddings"] | ["contextualizedembeddings"]:
                return await self._run_model(request, fault)
            case "POST", ["messages"]:
                return anthropic.messages_answer(request, await self._next_reply(request))
            case "POST", ["show" | "embed" | "chat"]:
                return await self._run_ollama(request, fault)
            case "GET", ["models"]:
                names = LISTED_MODELS if self.models is None else self.models
                data = [{"id": name, "object": "model", "created": 0, "owned_by": "loopback"} for name in names]
                return Answer(payload={"object": "list", "data": data})
            case "POST", ["files"]:
                return self._files.upload(request)
            case "GET", ["files", file_id]:
                return Answer(payload=self._files.get(file_id).info)
            case "GET", ["files", file_id, "content"]:
                return Answer(content=self._files.get(file_id).content)
            case "POST", ["batches"]:
                return self._batches.create(request, self.batch_plan, self.batch_max_requests)
            case "GET", ["batches"]:
                return self._batches.listed(request.query)
            case "GET", ["batches", batch_id]:
                return await self._batches.poll(batch_id)
        raise ApiError(404, f"Invalid URL ({request.method} {request.path})")

    async def _run_line(self, request: Request) -> Answer:
        """Answer a line of a batch; the prefix cache, rate limits and faults are not for batches."""
        try:
            answer = await self._run_model(request, None)
        except ApiError as error:
            answer = error.answer()
        if self.tamper is not None:
            self.tamper(request, answer)
        self.record_batch_line(request, answer)
        return answer

    async def _run_model(self, request: Request, fault: Fault | None) -> Answer:
        self._check_model(request)
        if request.path == CHAT_PATH:
            return await self._chat(request, fault)
        contextual = request.path == CONTEXTUAL_PATH
        check, answer_to = (
            (check_contextual, contextual_answer) if contextual else (check_embeddings, embeddings_answer)
        )
        tokens = check(request, self.embedding_encoding)
        headers = self._admit(request, tokens)
        answer = answer_to(request, self.usage_factor * tokens, self.embedding_dimensions)
        answer.headers = headers
        return answer

    async def _chat(self, request: Request, fault: Fault | None) -> Answer:
        check_chat(request)
        prompt = serialize_prompt(request)
        headers = self._admit(request, len(prompt) // TOKEN_BYTES + (output_limit(request.fields) or 0))
        # Looked up before anything is awaited: the cache as it was when the request arrived.
        cached = 0 if request.batch_id else self._cache.lookup(request, prompt)
        answer = chat_answer(
            request,
            await self._next_reply(request),
            prompt=prompt,
            cached=cached,
            distort=fault.distort if fault else lambda reply: reply,
            reasoning=self.reasoning_tokens,
            factor=self.usage_factor,
        )
        answer.headers = headers
        return answer

    async def _run_ollama(self, request: Request, fault: Fault | None) -> Answer:
        if request.model.startswith("no-such"):
            return Answer(status=404, payload={"error": f"model '{request.model}' not found"})
        match request.path:
            case ollama.SHOW:
                return ollama.show_answer()
            case ollama.EMBED:
                tokens = sum(count(text, self.embedding_encoding) for text in request.inputs)
                return ollama.embed_answer(request, self.usage_factor * tokens)
        return ollama.ollama_chat_answer(request, await self._next_reply(request))

    async def _next_reply(self, request: Request) -> Reply:
        source = self._queue.popleft() if self._queue else self.reply
        if source is None:
            return default_reply(request, self.context_tokens)
        if callable(source):
            try:
                source = await self._called(source, request)
            except ApiError:
                raise
            except Exception as error:
                self.errors.append(error)
                raise ApiError(500, f"The reply function raised {error!r}.", type="server_error") from error
        if isinstance(source, ApiError):
            raise source
        return source if isinstance(source, Reply) else Reply(source)

    async def _called(self, reply: ReplyFunction, request: Request) -> str | Reply:
        """Call a reply function in a thread; the model works to the end, also if the client leaves."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, reply, request)
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            if self._stopping.is_set():
                raise
            await asyncio.wait([future])
        return future.result()

    def _admit(self, request: Request, tokens: int) -> dict[str, str]:
        if request.batch_id:
            return {}
        limits = {"rpm": self.rpm, "tpm": self.tpm}
        return self._limiter.admit(request.model, tokens, request.arrived, window=self.rate_window, **limits)

    def _check_key(self, request: Request) -> None:
        key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if self.require_key not in (None, key):
            raise ApiError(401, f"Incorrect API key provided: {key[:3]}***{key[-2:]}.", code="invalid_api_key")

    def _check_model(self, request: Request) -> None:
        name = request.model
        known = not name.startswith("no-such") if self.models is None else name in self.models
        if not name or not known:
            message = f"The model `{name}` does not exist or you do not have access to it."
            raise ApiError(404, message, code="model_not_found")


def _message(message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]) -> web.BaseRequest:
    """Return a request whose body may have any size."""
    return web.BaseRequest(message, payload, protocol, writer, task, task.get_loop(), client_max_size=0)


def _parsed(kind: str, raw: bytes) -> Any:
    """Return the JSON body, an empty object for a form or no body, None when it is broken."""
    if not raw or kind.startswith("multipart/"):
        return {}
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _rendered(answer: Answer, *, broken: bool) -> tuple[list[bytes], str]:
    """Return the parts of the body of an answer, whose JSON may be cut in half, and their type."""

    def cut(text: str) -> bytes:
        return (text[: len(text) // 2] if broken else text).encode()

    if answer.events is not None:
        events = answer.events[:1] if broken else answer.events
        return [answer.frame.encode().replace(b"{}", cut(event)) for event in events], "text/event-stream"
    if answer.content is not None:
        return [answer.content], "application/octet-stream"
    return [cut(json.dumps(answer.payload))], "application/json"
