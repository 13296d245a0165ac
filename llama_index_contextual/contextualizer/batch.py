"""The files of OpenAI's Batch API: requests as JSON lines in parts that one batch takes, replies read back. Pure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from llama_index.core.llms import LLM

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual.contextualizer.prompts import ContextRequest, Usage
from llama_index_contextual.contextualizer.scheduler import LiveSender, Reply, Sender, reply_of
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.models import load_llm, provider_of
from llama_index_contextual.storage.batches import BatchJournal, BatchReply, OpenBatch
from llama_index_contextual.storage.ledger import content_key
from llama_index_contextual.storage.storable import storable_text

ENDPOINT = "/v1/chat/completions"
MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000


def request_line(custom_id: str, body: Mapping[str, Any]) -> bytes:
    """Return one request as a line of the file that is uploaded."""
    line = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": dict(body)}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def split(
    lines: Iterable[tuple[str, bytes]], *, max_requests: int = MAX_REQUESTS, max_bytes: int = MAX_BYTES
) -> Iterator[list[tuple[str, bytes]]]:
    """Yield requests in parts that one batch takes: at most so many requests, and so many bytes.

    Example:
        >>> [len(part) for part in split([("a", b"1234"), ("b", b"12"), ("c", b"12345")], max_bytes=6)]
        [2, 1]
    """
    part: list[tuple[str, bytes]] = []
    size = 0
    for custom_id, line in lines:
        if part and (len(part) >= max_requests or size + len(line) > max_bytes):
            yield part
            part, size = [], 0
        part.append((custom_id, line))
        size += len(line)
    if part:
        yield part


def parse_output(content: bytes) -> Iterator[BatchReply]:
    """Yield the replies of an output file, in its order; what is no reply of a model is left out."""
    for line in content.split(b"\n"):
        try:
            raw = json.loads(line)
            custom_id, body = raw["custom_id"], raw["response"]["body"]
            if not body["choices"] or not isinstance(custom_id, str) or storable_text(custom_id) != custom_id:
                continue
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # whatever has no reply is asked again
        reply = reply_of(body)
        yield BatchReply(
            custom_id=custom_id,
            text=storable_text(reply.text),
            finish_reason=reply.finish_reason,
            input_tokens=reply.usage.input_tokens,
            cached_tokens=reply.usage.cached_tokens,
            output_tokens=reply.usage.output_tokens,
        )


logger = get_logger(__name__)
T = TypeVar("T")

POLL_SECONDS = 20.0
FINISHED = frozenset({"completed", "expired", "cancelled", "failed"})


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """How far the provider is.

    Attributes:
        batches: Batches that are not finished.
        requests: Requests of all batches of this run, the finished ones included.
        done: Requests that are answered, or failed.
    """

    batches: int
    requests: int
    done: int


class BatchRunner:
    """Sends requests as batches and takes the replies.

    Args:
        journal: Remembers what is under way, and keeps the replies.
        client: An `openai.AsyncOpenAI`.
        model: Name of the model, as in the settings.
        poll_seconds: Seconds between two looks at the batches; None for 20.
        max_requests: Requests of one batch, at most.
        max_bytes: Bytes of one upload, at most.
        tell: Called as the provider proceeds.
        uploaded: Called with the id of an upload and those of its requests, before a batch is made of it.
        answered: Called with the id of an upload and the replies of its batch, before they are kept.
        policy: When a failed call is sent again.
    """

    def __init__(
        self,
        journal: BatchJournal,
        client: Any,
        *,
        model: str,
        poll_seconds: float | None = None,
        max_requests: int = MAX_REQUESTS,
        max_bytes: int = MAX_BYTES,
        tell: Callable[[BatchProgress], None] | None = None,
        uploaded: Callable[[str, Sequence[str]], None] | None = None,
        answered: Callable[[str, Sequence[BatchReply]], None] | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._journal, self._client, self._model = journal, client, model
        self._poll_seconds = POLL_SECONDS if poll_seconds is None else poll_seconds
        self._tell, self._uploaded, self._answered = tell, uploaded, answered
        self._limits = {"max_requests": max_requests, "max_bytes": max_bytes}
        self._policy = policy or RetryPolicy()
        self._requests = self._done = self._unanswered = 0

    async def submit(self, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        """Send requests, and return how many; those that are under way or answered already are left out.

        Args:
            requests: Id and body of each; drawn one by one, in a thread.

        Raises:
            ModelError: The provider does not take them.
        """
        sent = 0
        parts = split(self._new(requests), **self._limits)
        while part := await asyncio.to_thread(next, parts, None):
            file_id = await self._upload(b"".join(line for _, line in part))
            custom_ids = [custom_id for custom_id, _ in part]
            if self._uploaded is not None:
                self._uploaded(file_id, custom_ids)
            self._journal.uploaded(file_id, model=self._model, custom_ids=custom_ids)
            await self._start(file_id)
            sent += len(part)
        return sent

    def _new(self, requests: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, bytes]]:
        seen: set[str] = set()  # equal documents ask for the same, and an id must not be in a batch twice
        for custom_id, body in requests:
            if custom_id not in seen and not self._journal.knows(custom_id):
                seen.add(custom_id)
                yield custom_id, request_line(custom_id, body)

    async def collect(self) -> int:
        """Wait until no batch is under way, and keep the replies of each as soon as it is finished.

        A batch that expired or was cancelled leaves what it had answered; the rest can be submitted again.

        Returns:
            The number of requests without a reply.

        Raises:
            ModelError: The provider refused a batch, or cannot be reached.
        """
        await self._adopt()
        known = {batch.file_id: batch.requests for batch in self._journal.open_batches(self._model)}
        self._requests += sum(known.values())
        while pending := self._journal.open_batches(self._model):
            running = 0
            for batch in pending:
                running += await self._look(batch)
            left = len(self._journal.open_batches(self._model))
            if self._tell is not None:
                self._tell(BatchProgress(batches=left, requests=self._requests, done=self._done + running))
            if left:
                await asyncio.sleep(self._poll_seconds)
        unanswered, self._unanswered = self._unanswered, 0
        return unanswered

    async def _upload(self, content: bytes) -> str:
        upload = ("contexts.jsonl", content, "application/jsonl")
        file = await self._call(lambda: self._client.files.create(file=upload, purpose="batch"))
        return str(file.id)

    async def _look(self, batch: OpenBatch) -> int:
        """Take the replies of a batch if it is finished; return the requests that a running one has done."""
        try:
            found = await self._call(lambda: self._client.batches.retrieve(batch.batch_id))
        except ModelError as error:
            if _status(error) != 404:
                raise
            self._forget(batch, f"The provider does not know batch {batch.batch_id} any more; it is asked again.")
            return 0
        if found.status not in FINISHED:
            counts = found.request_counts
            return counts.completed + counts.failed if counts else 0
        replies: Sequence[BatchReply] = ()
        if found.output_file_id:
            content = await self._call(lambda: self._client.files.content(found.output_file_id))
            replies = list(parse_output(content.content))
        if self._answered is not None:
            self._answered(batch.file_id, replies)
        self._journal.closed(batch.file_id, replies)
        self._done += batch.requests
        self._unanswered += batch.requests - len(replies)
        if len(replies) < batch.requests and found.status != "failed":
            logger.warning(
                "Batch %s is %s with %d of %d replies; the rest is asked again.",
                batch.batch_id,
                found.status,
                len(replies),
                batch.requests,
            )
        if found.status == "failed":
            raise ModelError(
                f"The provider of {self._model!r} refused the batch {batch.batch_id}: {_reason(found)} Nothing of it"
                f" was answered; run the same call again, or without batch.",
                setting="llm",
            )
        return 0

    async def _adopt(self) -> None:
        """Make batches of uploads whose process ended before it knew whether there is one."""
        orphans = [batch for batch in self._journal.open_batches(self._model) if batch.batch_id is None]
        if not orphans:
            return
        started = await self._started_of({orphan.file_id for orphan in orphans})
        for orphan in orphans:
            if orphan.file_id in started:
                self._journal.started(orphan.file_id, started[orphan.file_id])
                continue
            try:
                await self._start(orphan.file_id)
            except ModelError as error:
                if _status(error) not in (400, 404):
                    raise
                self._forget(orphan, f"The provider does not take upload {orphan.file_id}; it is asked again.")

    async def _started_of(self, file_ids: Collection[str]) -> dict[str, str]:
        """Return the batches that the provider made of some uploads, by the upload; the newest are looked at first."""
        found: dict[str, str] = {}
        after: dict[str, str] = {}
        while True:
            listed = await self._call(partial(self._client.batches.list, limit=100, **after))
            found |= {batch.input_file_id: batch.id for batch in listed.data if batch.input_file_id in file_ids}
            if len(found) == len(file_ids) or not (listed.has_more and listed.data):
                return found
            after = {"after": listed.data[-1].id}

    def _forget(self, batch: OpenBatch, warning: str) -> None:
        logger.warning(warning)
        self._journal.closed(batch.file_id, [])
        self._unanswered += batch.requests

    async def _start(self, file_id: str) -> None:
        batch = await self._call(
            lambda: self._client.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")
        )
        self._journal.started(file_id, batch.id)

    async def _call(self, send: Callable[[], Awaitable[T]]) -> T:
        try:
            return await acall(send, self._policy)
        except Exception as error:  # whatever the client raises, the run stops with a sentence, and this is its cause
            raise ModelError(describe(error, setting="llm", model=self._model), setting="llm") from error


def _status(error: ModelError) -> int | None:
    return getattr(error.__cause__, "status_code", None)


def _reason(batch: Any) -> str:
    data = (batch.errors.data if batch.errors else None) or []
    message = str(data[0].message or data[0].code) if data else "it gave no reason."
    return message if message.endswith(".") else f"{message}."


ROUNDS = 3
"""What an expired batch did not reach is sent in another one, so often in all; the rest is sent live."""


class BatchReplies:
    """The replies of batches, each of them given once: a request that is asked again is sent live.

    Args:
        journal: Keeps the replies.
        model: Name of the LLM, as in the settings.
    """

    def __init__(self, journal: BatchJournal, model: str) -> None:
        self._journal, self._model = journal, model
        self._used: set[str] = set()
        self._booked: set[str] = set()

    def id_of(self, request: ContextRequest) -> str:
        """Return by what a request is known again: everything that is asked, and of whom."""
        return content_key("batch", self._model, request.prompt)

    def has(self, request: ContextRequest) -> bool:
        """Return whether the reply to a request is here and was not given yet."""
        custom_id = self.id_of(request)
        return custom_id not in self._used and self._journal.reply(custom_id) is not None

    def is_booked(self, request: ContextRequest) -> bool:
        """Return whether this run has booked what the reply costs when it came."""
        return self.id_of(request) in self._booked

    def note_booked(self, custom_id: str) -> None:
        """Remember that a reply is booked, and is not to be when it is used."""
        self._booked.add(custom_id)

    def take(self, request: ContextRequest) -> Reply | None:
        """Return the reply to a request the first time that it is asked for."""
        custom_id = self.id_of(request)
        found = None if custom_id in self._used else self._journal.reply(custom_id)
        if found is None:
            return None
        self._used.add(custom_id)
        return Reply(
            found.text, Usage(found.input_tokens, found.cached_tokens, found.output_tokens), found.finish_reason
        )

    def over(self, live: Sender) -> Sender:
        """Return a sender that answers from the replies, and by another one where there is none."""
        return _BatchFirst(self, live)

    def forget_used(self) -> None:
        """Remove what was given: its contexts are in the ledger."""
        self._journal.forget_replies(self._used)
        self._used.clear()


class _BatchFirst:
    def __init__(self, replies: BatchReplies, live: Sender) -> None:
        self._replies, self._live = replies, live

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        return self._replies.take(request) or await self._live.send(request)


class _Bodies(LiveSender):
    """The JSON of requests as a live call would send it."""

    def body(self, request: ContextRequest) -> dict[str, Any]:
        """Return the body of a request."""
        from llama_index.llms.openai.utils import to_openai_message_dicts

        llm = cast(Any, self._llm)
        messages = to_openai_message_dicts([self._message(request)], model=llm.model)
        return {"messages": messages, **llm._get_model_kwargs(**self._options(request))}


def require_batch_api(model: str) -> None:
    """Refuse a model whose provider has no Batch API.

    Raises:
        ConfigurationError: It has none.
    """
    provider = provider_of(model)
    if provider is None or not provider.has_batch_api:
        raise ConfigurationError(
            f"{model!r} cannot be asked in batches: that is for OpenAI's models. Leave batch out.", setting="llm"
        )


async def asend_batches(
    llm: LLM | None,
    model: str,
    journal: BatchJournal,
    requests: Callable[[], Iterator[ContextRequest]] | None,
    *,
    tell: Callable[[BatchProgress], None] | None = None,
    **options: Any,
) -> None:
    """Send requests in batches and wait for their replies; without requests, wait for what is under way.

    Args:
        llm: The LLM; None loads the one of that name.
        model: Its name, as in the settings.
        journal: Remembers what is under way, and keeps the replies.
        requests: Gives the requests that need an answer, each time that it is called.
        tell: Called as the provider proceeds.
        **options: For `BatchRunner`.

    Raises:
        ConfigurationError: The provider has no Batch API.
        ModelError: The provider refuses the requests, or cannot be reached.
    """
    require_batch_api(model)
    given = llm or load_llm(model)
    replies = BatchReplies(journal, model)
    async with own_client(given) as lent:
        bodies = _Bodies(lent)
        runner = BatchRunner(journal, cast(Any, lent)._get_aclient(), model=model, tell=tell, **options)
        await runner.collect()
        for _ in range(ROUNDS if requests is not None else 0):
            found = requests() if requests is not None else iter(())
            await runner.submit((replies.id_of(request), bodies.body(request)) for request in found)
            if not await runner.collect():
                break
