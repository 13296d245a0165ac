"""Send context requests to an LLM, one at a time or through OpenAI's Batch API.

`LiveSender` sends one request. For batches, requests are uploaded as JSON Lines files, and replies are read from output
files. `asend_batches` does both for a run: it uses a `BatchRunner` to submit batches and collect their replies. The
journal in the ledger records the batches in progress, so that a later run can collect their replies. `BatchReplies`
reserves and records the cost of the requests, and provides the replies to the run that writes contexts. That run never
sends a request live that was in one of its batches, because a live call can cost twice as much.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from llama_index.core.base.llms.types import CacheControl, CachePoint, TextBlock
from llama_index.core.llms import LLM, ChatMessage

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe, redacted_error, rejected_parameter
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.reasoning import without_reasoning
from llama_index_contextual._utils.redaction import get_logger, scrub
from llama_index_contextual._utils.text import parse_json, pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.contextualizer.prompts import ContextRequest, Reply, reply_of
from llama_index_contextual.contextualizer.tokens import CONTEXT_TOKENS, TokenCounter, expected_output
from llama_index_contextual.embeddings.batching import pack
from llama_index_contextual.errors import ConfigurationError, ModelError, Remedy
from llama_index_contextual.index.ledger import BatchJournal, BatchReply, OpenBatch, content_key
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.models import HIDDEN_TOKENS, Provider, load_llm, model_name, provider_of
from llama_index_contextual.money.account import Account, Reservation
from llama_index_contextual.money.price import SenderKind, money
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.money.tokens import Tokens, Usage

logger = get_logger(__name__)
T = TypeVar("T")

# ---- Live calls ------------------------------------------------------------------------------------------------------

ServiceTier = Literal["flex"]

FLEX_TIMEOUT = 900.0
"""Timeout in seconds for calls in the flex tier, which are slower."""


@runtime_checkable
class Sender(Protocol):
    """Protocol for objects that send a single request without retries and raise errors unchanged."""

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        ...


class LiveSender:
    """Send requests to a LlamaIndex LLM so that its provider can cache their common prefix.

    Args:
        llm: Any LlamaIndex LLM.
        service_tier: "flex" for slower responses at half the price, if the provider offers this tier.

    Raises:
        ConfigurationError: The provider does not offer this tier.
    """

    def __init__(self, llm: LLM, *, service_tier: ServiceTier | None = None) -> None:
        self._llm = llm
        self._provider = provider_of(model_name(llm)) or Provider()
        if service_tier is not None and not self._provider.is_openai:
            raise ConfigurationError(
                f"{model_name(llm)!r} has no service tier {service_tier!r}",
                setting="service_tier",
                remedy=Remedy(
                    "set service_tier to None",
                    "remove it with `llama-index-contextual configure {project} service_tier=null`",
                ),
            )
        self._service_tier = service_tier
        self._counter = TokenCounter.for_model(model_name(llm), llm)
        self._limit = self._provider.limit_option
        self._rejected: set[str] = set()

    @property
    def is_deterministic(self) -> bool:
        """Whether the model answers the same prompt in the same way, so that a request need not be repeated."""
        extra = getattr(self._llm, "additional_kwargs", None) or {}
        temperature = extra.get("temperature", getattr(self._llm, "temperature", None))
        return temperature == 0 and "temperature" not in self._rejected

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request.

        A parameter that the provider rejects is left out of the request and of all further requests; the rejected call
        is not charged.
        """
        while True:
            options = self._options(request)
            if request.answer_tokens is not None and self._limit not in self._rejected:
                options[self._limit] = request.answer_tokens
            try:
                response = await self._model(options).achat([self._message(request)], **options)
                break
            except Exception as error:
                names = {"temperature", *options}  # another call may have been rejected for the same reason
                if "temperature" in options:
                    names.remove("temperature")  # already left out
                if (name := rejected_parameter(redacted_error(error), names)) is None:
                    raise
                self._reject(name, error)
        reply = reply_of(response.raw)
        return replace(reply, text=scrub(response.message.content or ""))

    def _model(self, options: dict[str, Any]) -> LLM:
        """Return the model, with the limit of Ollama, which is not an option of a call."""
        limit, settings = options.pop("num_predict", None), getattr(self._llm, "additional_kwargs", None)
        if limit is None or settings is None:
            return self._llm
        return self._llm.model_copy(update={"additional_kwargs": {"num_predict": limit, **settings}})

    def _reject(self, name: str, error: Exception) -> None:
        self._rejected.add(name)
        if name == "reasoning_effort":
            self._counter = replace(self._counter, effort=None, hidden_tokens=HIDDEN_TOKENS[None])
        elif name == "max_tokens" and _OTHER_LIMIT in str(error):
            self._limit = _OTHER_LIMIT

    def _message(self, request: ContextRequest) -> ChatMessage:
        if self._provider.cache != "point" or request.prefix.tokens < self._provider.min_cached_tokens:
            return ChatMessage(role="user", content=request.prompt)
        point = CachePoint(cache_control=CacheControl(type="ephemeral"))
        return ChatMessage(
            role="user", blocks=[TextBlock(text=request.prefix.text), point, TextBlock(text=request.suffix)]
        )

    def _options(self, request: ContextRequest) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._provider.is_openai:
            options["prompt_cache_key"] = request.prefix.cache_key
        if self._counter.sends_limit:
            options[self._limit] = self._counter.limit(request)
        if self._counter.effort is not None:
            options["reasoning_effort"] = self._counter.effort
        if self._service_tier is not None:
            options |= {"service_tier": self._service_tier, "timeout": FLEX_TIMEOUT}
        options = {name: value for name, value in options.items() if name not in self._rejected}
        if "temperature" in self._rejected:
            options["temperature"] = self._omitted
        return options

    @property
    def _omitted(self) -> Any:
        """Value that makes a client leave out a parameter that the model's class sends."""
        if not hasattr(self._llm, "reuse_client"):
            return None
        from openai import NOT_GIVEN

        return NOT_GIVEN


_OTHER_LIMIT = "max_completion_tokens"


# ---- Files -----------------------------------------------------------------------------------------------------------

ENDPOINT = "/v1/chat/completions"
MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000


def request_line(custom_id: str, body: Mapping[str, Any]) -> bytes:
    """Return a request as one line of the file to upload."""
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": dict(body)}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def parse_output(content: bytes) -> Iterator[BatchReply]:
    """Yield the replies in an output file, in order; skip lines that are not replies from a model."""
    for line in content.split(b"\n"):
        try:
            raw = parse_json(line)
            custom_id, body = raw["custom_id"], raw["response"]["body"]
            if not body["choices"] or not isinstance(custom_id, str) or storable_text(custom_id) != custom_id:
                continue
        except (ValueError, KeyError, TypeError):
            continue  # requests without a reply are sent again
        reply = reply_of(body)
        text, output_tokens = without_reasoning(reply.text, is_cut=reply.finish_reason == "length"), reply.output_tokens
        if output_tokens is None and text != reply.text:
            output_tokens = count_tokens(reply.text)  # the reasoning is also charged
        yield BatchReply(
            custom_id=custom_id,
            text=storable_text(text),
            finish_reason=reply.finish_reason,
            input_tokens=reply.usage.input_tokens,
            cached_tokens=reply.usage.cached_tokens,
            output_tokens=output_tokens,
            written_tokens=reply.usage.written_tokens,
        )


def parse_errors(content: bytes) -> dict[str, str]:
    """Return the provider's messages in an error file, by request id."""
    messages = {}
    for line in content.split(b"\n"):
        try:
            raw = json.loads(line)
            error = raw.get("error") or raw["response"]["body"]["error"]
            messages[str(raw["custom_id"])] = scrub(storable_text(str(error["message"])))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return messages


# ---- Batches ---------------------------------------------------------------------------------------------------------

POLL_SECONDS = 20.0
FINISHED = frozenset({"completed", "expired", "cancelled", "failed"})
_UNANSWERED = {
    "completed": "the provider failed to answer its request in a batch",
    "expired": "its batch expired before the request was answered",
    "cancelled": "its batch was cancelled before the request was answered",
}
_NOT_SENT_AGAIN = "Its requests without a reply may be charged: they stay booked, and are not sent again."


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """Progress of the batches of a run.

    Attributes:
        batches: Number of unfinished batches.
        requests: Number of requests in all batches of this run, including finished batches.
        done: Number of requests that have been answered or have failed.
    """

    batches: int
    requests: int
    done: int


class BatchRunner:
    """Submit requests in batches and collect the replies.

    Args:
        replies: Object that receives the replies, and reserves and records their cost.
        client: An `openai.AsyncOpenAI`.
        body: Function that returns the body of a request.
        on_progress: Called with the progress of the batches.
        policy: Retry policy for failed calls.

    Attributes:
        unread: Finished batches that stay open because replies cannot be read, as a mapping from upload ids to the
            number of requests that may be charged although their reply cannot be read.
    """

    def __init__(
        self,
        replies: BatchReplies,
        client: Any,
        body: Callable[[ContextRequest], Mapping[str, Any]],
        *,
        on_progress: Callable[[BatchProgress], None] | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._replies, self._journal, self._model = replies, replies.journal, replies.model
        self._client, self._body, self._on_progress = client, body, on_progress
        self._policy = policy or RetryPolicy()
        self._requests = self._done = 0
        self.unread: dict[str, int] = {}

    async def submit(self, requests: Iterable[ContextRequest]) -> int:
        """Send the requests that are not already in progress or answered, and return their number.

        Raises:
            BudgetExceededError: A request could exceed the limit.
            ModelError: The provider rejects the requests.
        """
        count = 0
        parts = pack(self._new(requests), lambda item: (1, len(item[1])), (MAX_REQUESTS, MAX_BYTES))
        while part := await asyncio.to_thread(next, parts, None):
            file_id = await self._upload(b"".join(line for _, line in part))
            custom_ids = [custom_id for custom_id, _ in part]
            self._replies.note_upload(file_id, custom_ids)
            self._journal.uploaded(file_id, model=self._model, custom_ids=custom_ids)
            await self._start(file_id)
            count += len(part)
        return count

    def _new(self, requests: Iterable[ContextRequest]) -> Iterator[tuple[str, bytes]]:
        """Yield the id and the line of each request that must be sent, after reserving its cost."""
        ids: set[str] = set()  # identical documents have identical requests, but ids in a batch must be unique
        for request in requests:
            custom_id = self._replies.id_of(request)
            if custom_id not in ids and not self._replies.is_sent(custom_id):
                ids.add(custom_id)
                self._replies.reserve(custom_id, request)
                yield custom_id, request_line(custom_id, self._body(request))

    async def collect(self) -> None:
        """Wait until all batches are finished, and store the replies of each batch as soon as it is finished.

        Replies of a batch that expired, failed or was cancelled are kept; its other requests remain unanswered, and
        `replies` records why. If the provider may charge for more requests than there are replies, the batch stays
        open: none of its requests is submitted again, and the next run tries again to read its replies.

        Raises:
            ModelError: The provider is unreachable.
        """
        await self._resume_uploads()
        self._requests += sum(batch.requests for batch in self._unfinished())
        while pending := self._unfinished():
            completed = 0
            for batch in pending:
                completed += await self._poll(batch)
            unfinished = len(self._unfinished())
            if self._on_progress is not None:
                self._on_progress(
                    BatchProgress(batches=unfinished, requests=self._requests, done=self._done + completed)
                )
            if unfinished:
                await asyncio.sleep(POLL_SECONDS)

    def _unfinished(self) -> list[OpenBatch]:
        return [batch for batch in self._journal.open_batches(self._model) if batch.file_id not in self.unread]

    async def _upload(self, content: bytes) -> str:
        upload = ("contexts.jsonl", content, "application/jsonl")
        file = await self._call(lambda: self._client.files.create(file=upload, purpose="batch"))
        return str(file.id)

    async def _poll(self, batch: OpenBatch) -> int:
        """Check the state of a batch and store its replies if it is finished.

        Return the number of finished requests if the batch is still in progress, otherwise 0.
        """
        try:
            remote = await self._call(lambda: self._client.batches.retrieve(batch.batch_id))
        except ModelError as error:
            if _status(error) != 404:
                raise
            logger.warning(
                "The provider does not know the batch %s; it may belong to another account. %s",
                batch.batch_id,
                _NOT_SENT_AGAIN,
            )
            self._finish(batch, [], unread=batch.requests)
            return 0
        counts = remote.request_counts
        if remote.status not in FINISHED:
            return counts.completed + counts.failed if counts else 0
        missing = self._journal.requests(batch.file_id)
        output = parse_output(await self._output(remote.output_file_id))
        replies = list({reply.custom_id: reply for reply in output if reply.custom_id in missing}.values())
        if counts:
            due = counts.completed - max(0, counts.total - len(missing))
        else:
            due = 0 if remote.status == "failed" else len(missing)
        unread = max(0, due - len(replies))
        if not unread:
            reply_ids = {reply.custom_id for reply in replies}
            errors = parse_errors(await self._output(remote.error_file_id)) if len(reply_ids) < len(missing) else {}
            reason = _UNANSWERED.get(remote.status) or f"the provider refused its batch: {_fault(remote)}"
            self._replies.unanswered.update({key: errors.get(key, reason) for key in missing - reply_ids})
        self._finish(batch, replies, unread=unread)
        if len(replies) < batch.requests:
            logger.warning(
                "Batch %s is %s with %d of %d replies%s",
                batch.batch_id,
                remote.status,
                len(replies),
                batch.requests,
                f", although the provider counts {due}. {_NOT_SENT_AGAIN}" if unread else ".",
            )
        return 0

    async def _output(self, file_id: str | None) -> bytes:
        """Return the content of an output file, or empty bytes if there is no file or the provider cannot find it."""
        if file_id is None:
            return b""
        try:
            return (await self._call(lambda: self._client.files.content(file_id))).content  # type: ignore[no-any-return]
        except ModelError as error:
            if _status(error) != 404:
                raise
            return b""

    def _finish(self, batch: OpenBatch, replies: Sequence[BatchReply], *, unread: int) -> None:
        self._replies.record_cost(batch, replies, unread=unread)
        self._done += batch.requests
        if unread:
            self._journal.read(batch.file_id, replies)
            self.unread[batch.file_id] = unread
        else:
            self._journal.closed(batch.file_id, replies)

    async def _resume_uploads(self) -> None:
        """For each upload whose batch was not recorded because of an interruption, find or create the batch."""
        orphans = [batch for batch in self._journal.open_batches(self._model) if batch.batch_id is None]
        if not orphans:
            return
        file_ids = {orphan.file_id for orphan in orphans}
        batch_ids = await self._call(partial(self._batch_ids, file_ids))
        for orphan in orphans:
            if orphan.file_id in batch_ids:
                self._journal.started(orphan.file_id, batch_ids[orphan.file_id])
                continue
            try:
                await self._start(orphan.file_id)
            except ModelError as error:
                if _status(error) not in (400, 404):
                    raise
                logger.warning("Upload %s was rejected by the provider.", orphan.file_id)
                reason = "the provider rejected the file with its request"
                self._replies.unanswered.update(dict.fromkeys(self._journal.requests(orphan.file_id), reason))
                self._finish(orphan, [], unread=0)

    async def _batch_ids(self, file_ids: Collection[str]) -> dict[str, str]:
        """Ask the provider which batches were created from the given uploads, and return batch ids by upload id."""
        by_upload: dict[str, str] = {}
        async for batch in self._client.batches.list(limit=100):
            if batch.input_file_id in file_ids:
                by_upload[batch.input_file_id] = batch.id
            if len(by_upload) == len(file_ids):
                break
        return by_upload

    async def _start(self, file_id: str) -> None:
        batch = await self._call(
            lambda: self._client.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")
        )
        self._journal.started(file_id, batch.id)

    async def _call(self, send: Callable[[], Awaitable[T]]) -> T:
        try:
            return await acall(send, self._policy)
        except Exception as error:  # any error from the client stops the run with a message
            raise ModelError(describe(error, setting="llm", model=self._model), setting="llm") from error


def _status(error: ModelError) -> int | None:
    return getattr(error.__cause__, "status_code", None)


def _fault(batch: Any) -> str:
    data = (batch.errors.data if batch.errors else None) or []
    return scrub(str(data[0].message or data[0].code)).rstrip(".") if data else "no reason was given"


# ---- Replies and their cost ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IncompleteBatch:
    """Requests that batches left without a usable reply, and the expected cost of requesting their contexts again.

    Attributes:
        requests: Number of requests.
        live_dollars: Cost of live calls, or None if the price of the model is unknown.
        batch_dollars: Cost of a new batch, or None if the price of the model is unknown.
    """

    requests: int
    live_dollars: float | None
    batch_dollars: float | None

    def __str__(self) -> str:
        live, batch = money(self.live_dollars, is_estimated=True), money(self.batch_dollars, is_estimated=True)
        return (
            f"{pluralize(self.requests, 'context')} could not be taken from a batch, and nothing was sent live: live"
            f" calls would cost {live}, and a new batch {batch}"
        )


class BatchReplies:
    """Batch replies and their cost.

    The maximum cost of a request is reserved while its batch is in progress; the actual cost is recorded when the reply
    arrives. Each reply is used only once.

    Args:
        journal: Journal that stores the replies.
        model: Name of the LLM, as in the settings.
        account: Account of the run.
        llm: The LLM if it was passed as an object.
        live: How a retry without a batch would send requests, which determines its price.
        context_tokens: Expected number of tokens in a context.

    Attributes:
        sends_live: Whether requests that were in no batch may be sent live.
        unanswered: Requests that a batch left unanswered, by id, each with the reason. They are not sent live in the
            same run.
        recorded: Ids of the requests whose cost was recorded when their reply arrived, so that this is done once.
        given_up: Batches whose unread requests may be sent again, as a mapping from upload ids to the number of unread
            requests that may be charged.
    """

    def __init__(
        self,
        journal: BatchJournal,
        model: str,
        account: Account,
        *,
        llm: LLM | None = None,
        live: SenderKind = "live",
        context_tokens: float = CONTEXT_TOKENS,
    ) -> None:
        self.journal, self.model = journal, model
        self.sends_live = True
        self.unanswered: dict[str, str] = {}
        self.recorded: set[str] = set()
        self.given_up: dict[str, int] = {}
        self._account, self._counter, self._live = account, TokenCounter.for_model(model, llm), live
        self._context_tokens = context_tokens
        self._used: set[str] = set()
        self._reserved: dict[str, Reservation] = {}
        self._first: dict[str, ContextRequest] = {}
        self._open: dict[SenderKind, Tokens] = defaultdict(Tokens)

    def id_of(self, request: ContextRequest) -> str:
        """Return the id of a request, a hash of the model and the prompt."""
        return content_key("batch", self.model, request.prompt)

    def has(self, request: ContextRequest) -> bool:
        """Return whether there is an unused reply to a request."""
        return self._unused(self.id_of(request)) is not None

    def is_sent(self, custom_id: str) -> bool:
        """Return whether a request has a reply or is in a batch, so that it must not be sent in another batch."""
        return self.journal.reply(custom_id) is not None or self._is_open(custom_id)

    def is_unread(self, request: ContextRequest) -> bool:
        """Return whether a request must not be sent because its reply is in a batch and could not be read."""
        return self._is_open(self.id_of(request))

    def _is_open(self, custom_id: str) -> bool:
        file_id = self.journal.file_of(custom_id)
        return file_id is not None and file_id not in self.given_up

    def reason_unanswered(self, request: ContextRequest) -> str | None:
        """Return why a request without a reply must not be sent live, or None if it may be sent."""
        reason = None if self.sends_live else "its request was in no batch"
        return self.unanswered.get(self.id_of(request), reason)

    def note_open(self, request: ContextRequest) -> None:
        """Add the expected cost of a request that the run leaves open to the cost of a retry."""
        first = self._first.setdefault(request.prefix.cache_key, request)
        length, output = self._counter.input_tokens(request), expected_output(request, self._context_tokens)
        cached = 0 if first is request else self._counter.cached_tokens(first, request)
        self._open[self._live] += Tokens(1, length, cached, output, self._counter.written_tokens(request, cached))
        self._open["batch"] += Tokens(1, length, 0, output)

    @property
    def incomplete(self) -> IncompleteBatch | None:
        """The requests that the run leaves open, with the cost of a retry, or None if there are none."""
        if not self._open:
            return None
        live, batch = (
            self._account.prices.dollars(self.model, self._open[sender], sender=sender)
            for sender in (self._live, "batch")
        )
        return IncompleteBatch(self._open["batch"].calls, live, batch)

    def take(self, request: ContextRequest) -> Reply | None:
        """Return the reply to a request and mark it as used, or return None if there is no unused reply."""
        custom_id = self.id_of(request)
        entry = self._unused(custom_id)
        if entry is None:
            return None
        self._used.add(custom_id)
        usage = Usage(entry.input_tokens, entry.cached_tokens, entry.output_tokens)
        reply = Reply(entry.text, usage, entry.finish_reason)
        if custom_id not in self.recorded:
            tokens = self._counter.tokens_of(request, reply)
            self._account.actual += self._account.receipt(self.model, tokens, sender="batch")
        return reply

    def _unused(self, custom_id: str) -> BatchReply | None:
        return None if custom_id in self._used else self.journal.reply(custom_id)

    def reserve(self, custom_id: str, request: ContextRequest) -> None:
        """Reserve the maximum cost of a request.

        Raises:
            BudgetExceededError: The request could exceed the limit.
        """
        self._reserved[custom_id] = self._account.reserve(self.model, self._counter.maximum(request), sender="batch")

    def release_unsent(self) -> None:
        """Release the reserves of requests that were not sent."""
        for call in self._reserved.values():
            call.release()
        self._reserved.clear()

    def note_upload(self, file_id: str, custom_ids: Sequence[str]) -> None:
        """Keep the reserves of uploaded requests until their replies arrive."""
        for custom_id in custom_ids:
            self.unanswered.pop(custom_id, None)
        self._account.reserve_batch(file_id, [self._reserved.pop(custom_id) for custom_id in custom_ids])

    def record_cost(self, batch: OpenBatch, replies: Sequence[BatchReply], *, unread: int) -> None:
        """Record the cost of a batch's replies, except replies without token counts, whose cost is recorded on use.

        Args:
            batch: A finished batch.
            replies: New replies of the batch.
            unread: Number of requests of the batch that may be charged although their reply cannot be read.
        """
        receipt = Receipt()
        for reply in replies:
            if reply.input_tokens is not None and reply.output_tokens is not None:
                counts = reply.input_tokens, reply.cached_tokens or 0, reply.output_tokens, reply.written_tokens or 0
                tokens = Tokens(1, *counts)
                receipt += self._account.receipt(self.model, tokens, sender="batch")
                self.recorded.add(reply.custom_id)
        self._account.actual += receipt
        if unread:
            self._account.read_batch(batch.file_id, paid=receipt.dollars or 0.0, unread=unread, requests=batch.requests)
        else:
            self._account.close_batch(batch.file_id)

    def close(self) -> None:
        """Remove the replies that were used and the batches that were abandoned.

        The contexts in the replies are in the ledger, and the cost of the batches remains recorded.
        """
        self.journal.forget_replies(self._used)
        self._used.clear()
        for file_id, unread in self.given_up.items():
            self._account.close_batch(file_id, unread=unread)
            self.journal.closed(file_id, [])


# ---- Batches of a run ------------------------------------------------------------------------------------------------


class _Bodies(LiveSender):
    """Builder of JSON bodies for batch requests, which are identical to the bodies of live calls."""

    def body(self, request: ContextRequest) -> dict[str, Any]:
        """Return the body of a request."""
        from llama_index.llms.openai.utils import to_openai_message_dicts

        llm = cast(Any, self._llm)
        messages = to_openai_message_dicts([self._message(request)], model=llm.model)
        return {"messages": messages, **llm._get_model_kwargs(**self._options(request))}


async def asend_batches(
    llm: LLM | None,
    replies: BatchReplies,
    requests: Callable[[], Iterator[ContextRequest]] | None,
    *,
    gives_up_unread: bool = False,
    on_progress: Callable[[BatchProgress], None] | None = None,
) -> None:
    """Send requests in batches and wait for their replies, including replies to batches already in progress.

    Args:
        llm: The LLM; None loads the model named in `replies`.
        replies: Object that receives the replies, approves the requests and records their cost.
        requests: Function that returns the requests that need an answer. None sends nothing.
        gives_up_unread: Whether to resend requests whose reply cannot be read, although they may have been charged.
        on_progress: Called with the progress of the batches.

    Raises:
        ConfigurationError: The provider has no Batch API.
        BudgetExceededError: A batch could exceed the limit; it was not sent.
        ModelError: The provider rejects the upload or is unreachable.
    """
    model = replies.model
    provider = provider_of(model)
    if provider is None or not provider.is_openai:
        raise ConfigurationError(
            f"{model!r} does not support batches, only OpenAI's models do",
            setting="llm",
            remedy=Remedy("omit batch", "omit --batch"),
        )
    replies.sends_live = requests is None
    async with own_client(llm or load_llm(model)) as connected:
        client = cast(Any, connected)._get_aclient()
        runner = BatchRunner(replies, client, _Bodies(connected).body, on_progress=on_progress)
        await runner.collect()
        if gives_up_unread:
            replies.given_up = dict(runner.unread)
        if requests is not None:
            try:
                await runner.submit(requests())
            finally:
                replies.release_unsent()
            await runner.collect()
