"""OpenAI's Batch API: half the price of a token for answers within 24 hours.

Requests are uploaded as files of JSON lines, the provider answers them in any order, and its answers are files again.
What was sent is in the ledger before the provider begins, so the process can stop at any time and another one can take
the replies. Limits and states are those of https://platform.openai.com/docs/guides/batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from llama_index_contextual.calls import RetryPolicy, acall, describe
from llama_index_contextual.contextualizer.batch_files import (
    ENDPOINT,
    MAX_BYTES,
    MAX_REQUESTS,
    parse_output,
    request_line,
    split,
)
from llama_index_contextual.errors import ModelError
from llama_index_contextual.redaction import get_logger
from llama_index_contextual.storage.batches import BatchJournal, BatchReply, OpenBatch

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
