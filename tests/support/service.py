"""The service of the provider: settings, checks, routes and the model endpoints."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.support.batches import Batches, BatchPlan
from tests.support.cache import PrefixCache, serialize_prompt
from tests.support.chat import chat_answer, check_chat, output_limit
from tests.support.embeddings import check_embeddings, embeddings_answer
from tests.support.faults import ERROR_KINDS, Fault, Faults
from tests.support.files import Files
from tests.support.limits import RateLimiter
from tests.support.recorder import Recorder
from tests.support.records import CHAT_PATH, CONTEXTUAL_PATH, MODEL_PATHS, Answer, ApiError, Request
from tests.support.replies import Reply, ReplyFunction, default_reply
from tests.support.tokens import DEFAULT_ENCODING, TOKEN_BYTES
from tests.support.voyage import check_contextual, contextual_answer, voyage_error

LISTED_MODELS = ("gpt-4o-mini", "gpt-4.1-mini", "text-embedding-3-small", "text-embedding-3-large")
# Replies of tests may block (on an event, say); each needs a thread of its own then.
REPLY_THREADS = 128

ScriptedReply = str | Reply | ReplyFunction | ApiError


@dataclass(eq=False, kw_only=True, repr=False)
class Service(Recorder, Faults):
    """The endpoints; every setting may be changed at any time.

    Attributes:
        reply: What the model says, as a function of the request, run in a thread of its own; it
            may return a `Reply` and raise an `ApiError`. Default: a context made of the words
            of the chunk.
        context_tokens: Length of the default context.
        reasoning_tokens: Tokens of every answer that are charged and not shown, within the limit of the answer.
        usage_factor: How many times the tokens of a chat call are reported that it took.
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
        batch_max_bytes: The largest input file of a batch.
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
    batch_max_bytes: int = 200_000_000
    tamper: Callable[[Request, Answer], None] | None = None
    seed: int = 0
    errors: list[BaseException] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Set up the parts that keep state."""
        self._queue: deque[ScriptedReply] = deque()
        self._cache = PrefixCache()
        self._limiter = RateLimiter()
        self._files = Files()
        self._batches = Batches(self._run_line, self._files, self.seed)

    def enqueue(self, *replies: ScriptedReply) -> None:
        """Script the next chat replies, used first in, first out, in order of arrival."""
        self._queue.extend(replies)

    def _open_threads(self) -> None:
        self._threads = ThreadPoolExecutor(REPLY_THREADS, thread_name_prefix="reply")

    async def answer(self, request: Request, fault: Fault | None) -> Answer:
        """Answer a request."""
        try:
            self._check_key(request)
            if fault and fault.kind in ERROR_KINDS:
                raise fault.error()
            return await self._route(request, fault)
        except ApiError as error:
            return voyage_error(error.answer()) if request.path == CONTEXTUAL_PATH else error.answer()

    def delay(self, request: Request, answer: Answer) -> float:
        """Return the seconds still to wait before an answer is sent."""
        if answer.status != 200 or request.path not in MODEL_PATHS:
            return 0.0
        latency = self.latency(request) if callable(self.latency) else self.latency
        return request.arrived + latency - time.perf_counter()

    async def _route(self, request: Request, fault: Fault | None) -> Answer:
        method, parts = request.method, request.path.removeprefix("/v1/").split("/")
        if method == "POST" and request.body is None:
            raise ApiError(400, "We could not parse the JSON body of your request.")
        match (method, parts):
            case ("POST", ["chat", "completions"] | ["embeddings"] | ["contextualizedembeddings"]):
                return await self._run_model(request, fault)
            case ("GET", ["models"]):
                names = LISTED_MODELS if self.models is None else tuple(self.models)
                return Answer(payload={"object": "list", "data": [_model(name) for name in names]})
            case ("GET", ["models", name]):
                self._check_model(name)
                return Answer(payload=_model(name))
            case (_, ["files", *rest]):
                return self._route_files(request, rest)
            case (_, ["batches", *rest]):
                return await self._route_batches(request, rest)
        raise _unknown_url(request)

    def _route_files(self, request: Request, parts: list[str]) -> Answer:
        match (request.method, parts):
            case ("POST", []):
                return self._files.upload(request, self.batch_max_bytes)
            case ("GET", [file_id]):
                return Answer(payload=self._files.get(file_id).info)
            case ("GET", [file_id, "content"]):
                return Answer(content=self._files.get(file_id).content)
            case ("DELETE", [file_id]):
                return self._files.delete(file_id)
        raise _unknown_url(request)

    async def _route_batches(self, request: Request, parts: list[str]) -> Answer:
        match (request.method, parts):
            case ("POST", []):
                return self._batches.create(request, self.batch_plan, self.batch_max_requests)
            case ("GET", []):
                return self._batches.listed(request.query)
            case ("GET", [batch_id]):
                return await self._batches.poll(batch_id)
            case ("POST", [batch_id, "cancel"]):
                return await self._batches.cancel(batch_id)
        raise _unknown_url(request)

    async def _run_line(self, request: Request) -> Answer:
        """Answer a line of a batch; the prefix cache, rate limits and faults are not for batches."""
        try:
            answer = await self._run_model(request, None)
        except ApiError as error:
            answer = error.answer()
        self.record_batch_line(request, answer)
        return answer

    async def _run_model(self, request: Request, fault: Fault | None) -> Answer:
        self._check_model(request.model)
        hide_usage = fault is not None and fault.kind == "missing_usage"
        if request.path == CHAT_PATH:
            return await self._chat(request, fault, hide_usage)
        if request.path == CONTEXTUAL_PATH:
            inputs, tokens = check_contextual(request, self.embedding_encoding)
            headers = self._admit(request, tokens)
            answer = contextual_answer(request, inputs, tokens, self.embedding_dimensions)
            answer.headers = headers
            return answer
        texts, tokens = check_embeddings(request, self.embedding_encoding)
        headers = self._admit(request, tokens)
        answer = embeddings_answer(request, texts, tokens, self.embedding_dimensions, hide_usage=hide_usage)
        answer.headers = headers
        return answer

    async def _chat(self, request: Request, fault: Fault | None, hide_usage: bool) -> Answer:
        check_chat(request)
        prompt = serialize_prompt(request)
        headers = self._admit(request, len(prompt) // TOKEN_BYTES + (output_limit(request.fields) or 0))
        # Looked up before anything is awaited: the cache as it was when the request arrived.
        cached = 0 if request.batch_id else self._cache.lookup(request, prompt)
        reply = await self._next_reply(request)
        distort = fault.distort if fault else _unchanged
        answer = chat_answer(
            request,
            reply,
            prompt=prompt,
            cached=cached,
            distort=distort,
            hide_usage=hide_usage,
            reasoning=self.reasoning_tokens,
            factor=self.usage_factor,
        )
        answer.headers = headers
        return answer

    async def _next_reply(self, request: Request) -> Reply:
        source = self._queue.popleft() if self._queue else self.reply
        if source is None:
            return default_reply(request, self.context_tokens)
        if callable(source):
            future = asyncio.get_running_loop().run_in_executor(self._threads, source, request)
            await asyncio.wait([future])
            error = future.exception()
            if error is not None and not isinstance(error, ApiError):
                self.errors.append(error)
                raise ApiError(500, f"The reply function raised {error!r}.", type="server_error") from error
            source = future.result()
        if isinstance(source, ApiError):
            raise source
        return source if isinstance(source, Reply) else Reply(source)

    def _admit(self, request: Request, tokens: int) -> dict[str, str]:
        if request.batch_id:
            return {}
        limits = {"rpm": self.rpm, "tpm": self.tpm}
        return self._limiter.admit(request.model, tokens, request.arrived, window=self.rate_window, **limits)

    def _check_key(self, request: Request) -> None:
        if self.require_key is None:
            return
        inputs = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not inputs:
            raise ApiError(401, "You didn't provide an API key.")
        if inputs != self.require_key:
            shown = f"{inputs[:3]}***{inputs[-2:]}"
            raise ApiError(401, f"Incorrect API key provided: {shown}.", code="invalid_api_key")

    def _check_model(self, name: str) -> None:
        if not name:
            raise ApiError(400, "you must provide a model parameter")
        known = not name.startswith("no-such") if self.models is None else name in self.models
        if not known:
            message = f"The model `{name}` does not exist or you do not have access to it."
            raise ApiError(404, message, code="model_not_found")


def _unchanged(reply: Reply) -> Reply:
    return reply


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "loopback"}


def _unknown_url(request: Request) -> ApiError:
    message = f"Invalid URL ({request.method} {request.path})"
    return ApiError(404, message)
