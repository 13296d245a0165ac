"""Journal of the batches that a provider is working on: their requests and replies.

The journal consists of tables in the file of the ledger. If a process stops, the next one finds the batch, fetches its
replies, and does not pay again. A reply is kept until its contexts are in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llama_index_contextual.index.ledger_file import TABLES, LedgerFile
from llama_index_contextual.index.storable import storable_text

BATCH_TABLES = ("batches", "batch_requests", "batch_replies")
"""The tables of the journal."""


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A batch whose replies have not arrived yet.

    Attributes:
        file_id: The provider's id of the uploaded requests.
        batch_id: The provider's id of the batch; None if the process ended before it was known.
        model: Name of the model, as in the settings.
        created: When the requests were uploaded, seconds since 1970.
        requests: Number of requests.
    """

    file_id: str
    batch_id: str | None
    model: str
    created: float
    requests: int


@dataclass(frozen=True, kw_only=True)
class BatchReply:
    """The answer to one request of a batch.

    Attributes:
        custom_id: Id of the request.
        text: Text of the model's answer.
        finish_reason: Why the model stopped, as reported by the provider.
        input_tokens: Tokens of the prompt, or None if the provider did not report them.
        cached_tokens: Input tokens that the provider read from its cache.
        output_tokens: Tokens of the answer.
    """

    custom_id: str
    text: str
    finish_reason: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class BatchJournal:
    """Journal of the batches of one project.

    Args:
        store: The open ledger file.
    """

    def __init__(self, store: LedgerFile) -> None:
        self._store = store

    def uploaded(self, file_id: str, *, model: str, custom_ids: Iterable[str]) -> None:
        """Record requests that were uploaded, before their batch is created."""
        rows = [(custom_id, file_id) for custom_id in custom_ids]
        with self._store.transaction():
            self._store.insert("batches", [(file_id, None, model, time.time())])
            self._store.insert("batch_requests", rows)

    def started(self, file_id: str, batch_id: str) -> None:
        """Record the batch that was created for an upload."""
        with self._store.transaction():
            rows = self._store.rows("batches", "WHERE file_id = ?", (file_id,))
            self._store.insert("batches", [(file_id, batch_id, model, created) for _, _, model, created in rows])

    def requests(self, file_id: str) -> set[str]:
        """Return the ids of the requests of an upload whose replies have not arrived yet."""
        return {custom_id for custom_id, _ in self._store.rows("batch_requests", "WHERE file_id = ?", (file_id,))}

    def closed(self, file_id: str, replies: Sequence[BatchReply]) -> None:
        """Store the replies of a batch and remove the batch, in one transaction."""
        with self._store.transaction() as connection:
            self._store.insert("batch_replies", map(_row, replies))
            connection.execute("DELETE FROM batch_requests WHERE file_id = ?", (file_id,))
            connection.execute("DELETE FROM batches WHERE file_id = ?", (file_id,))

    def read(self, file_id: str, replies: Sequence[BatchReply]) -> None:
        """Store some replies of a batch, which stays open for its other requests."""
        with self._store.transaction() as connection:
            self._store.insert("batch_replies", map(_row, replies))
            connection.executemany(
                "DELETE FROM batch_requests WHERE file_id = ? AND custom_id = ?",
                [(file_id, reply.custom_id) for reply in replies],
            )

    def open_batches(self, model: str | None = None) -> list[OpenBatch]:
        """Return the batches whose replies have not arrived yet, of one model or of all, oldest first."""
        counts = dict(self._store.query("SELECT file_id, count(*) FROM batch_requests GROUP BY file_id"))
        rows = self._store.rows("batches", "ORDER BY created, file_id")
        batches = [
            OpenBatch(file_id=file_id, batch_id=batch_id, model=name, created=created, requests=counts.get(file_id, 0))
            for file_id, batch_id, name, created in rows
        ]
        return [batch for batch in batches if model in (None, batch.model)]

    def has_request(self, custom_id: str) -> bool:
        """Return whether a request was sent or answered, so that it must not be sent again."""
        return self.reply(custom_id) is not None or self.is_open(custom_id)

    def is_open(self, custom_id: str) -> bool:
        """Return whether a request was sent and its reply has not been read."""
        # Without its batch, the reply would not be fetched.
        files = [file_id for _, file_id in self._store.rows("batch_requests", "WHERE custom_id = ?", (custom_id,))]
        return any(self._store.rows("batches", "WHERE file_id = ?", (file_id,)) for file_id in files)

    def reply(self, custom_id: str) -> BatchReply | None:
        """Return the reply to a request, or None."""
        rows = self._store.rows("batch_replies", "WHERE custom_id = ?", (custom_id,))
        if not rows:
            return None
        reply = BatchReply(**dict(zip(TABLES["batch_replies"], rows[0], strict=True)))
        return replace(reply, text=storable_text(reply.text))

    def has_replies(self) -> bool:
        """Return whether any replies are stored."""
        return bool(self._store.query("SELECT 1 FROM batch_replies LIMIT 1"))

    def forget_replies(self, custom_ids: Iterable[str]) -> None:
        """Remove replies whose contexts are in the ledger."""
        with self._store.transaction() as connection:
            connection.executemany(
                "DELETE FROM batch_replies WHERE custom_id = ?", [(custom_id,) for custom_id in custom_ids]
            )


def _row(reply: BatchReply) -> tuple[object, ...]:
    text = storable_text(reply.text)
    return (
        *(reply.custom_id, text, reply.finish_reason),
        *(reply.input_tokens, reply.cached_tokens, reply.output_tokens),
    )
