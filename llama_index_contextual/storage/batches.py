"""Batches that a provider works on: which were sent, what each asks for, and the replies that have come.

They are tables of the ledger's file, so a process that stops forgets nothing: the next one finds the batch, takes its
replies and pays for none of them again. A reply is kept until its contexts are in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llama_index_contextual.storage.ledger_file import TABLES, LedgerFile
from llama_index_contextual.storage.storable import storable_text

BATCH_TABLES = ("batches", "batch_requests", "batch_replies")
"""What is removed when nothing of the batches shall come back."""


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A batch whose replies are not here yet.

    Attributes:
        file_id: The provider's id of the uploaded requests.
        batch_id: The provider's id of the batch; None where the process ended before it was told.
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
        custom_id: Names the request.
        text: What the model said.
        finish_reason: Why it stopped, by the provider's word.
        input_tokens: Tokens of the prompt, or None where the provider gave no count.
        cached_tokens: Those of them from the provider's cache.
        output_tokens: Tokens of the answer.
    """

    custom_id: str
    text: str
    finish_reason: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class BatchJournal:
    """The batches of one project.

    Args:
        store: The open ledger file.
    """

    def __init__(self, store: LedgerFile) -> None:
        self._store = store

    def uploaded(self, file_id: str, *, model: str, custom_ids: Iterable[str]) -> None:
        """Note requests that were uploaded, before a batch is made of them."""
        rows = [(custom_id, file_id) for custom_id in custom_ids]
        with self._store.transaction():
            self._store.insert("batches", [(file_id, None, model, time.time())])
            self._store.insert("batch_requests", rows)

    def started(self, file_id: str, batch_id: str) -> None:
        """Note the batch that was made of an upload."""
        with self._store.transaction():
            rows = self._store.rows("batches", "WHERE file_id = ?", (file_id,))
            self._store.insert("batches", [(file_id, batch_id, model, created) for _, _, model, created in rows])

    def closed(self, file_id: str, replies: Sequence[BatchReply]) -> None:
        """Keep the replies of a batch and forget the batch, in one step."""
        rows = [
            (r.custom_id, storable_text(r.text), r.finish_reason, r.input_tokens, r.cached_tokens, r.output_tokens)
            for r in replies
        ]
        with self._store.transaction() as connection:
            self._store.insert("batch_replies", rows)
            connection.execute("DELETE FROM batch_requests WHERE file_id = ?", (file_id,))
            connection.execute("DELETE FROM batches WHERE file_id = ?", (file_id,))

    def open_batches(self, model: str | None = None) -> list[OpenBatch]:
        """Return the batches whose replies are not here yet, oldest first; those of one model, if it is given."""
        counts = dict(self._store.query("SELECT file_id, count(*) FROM batch_requests GROUP BY file_id"))
        rows = self._store.rows("batches", "ORDER BY created, file_id")
        found = [OpenBatch(file_id=f, batch_id=b, model=m, created=c, requests=counts.get(f, 0)) for f, b, m, c in rows]
        return [batch for batch in found if model in (None, batch.model)]

    def knows(self, custom_id: str) -> bool:
        """Return whether a request is under way or answered, so that it must not be sent again."""
        if self.reply(custom_id) is not None:
            return True
        # Without its batch nobody would take the reply.
        files = [file_id for _, file_id in self._store.rows("batch_requests", "WHERE custom_id = ?", (custom_id,))]
        return any(self._store.rows("batches", "WHERE file_id = ?", (file_id,)) for file_id in files)

    def reply(self, custom_id: str) -> BatchReply | None:
        """Return the answer to a request, or None."""
        rows = self._store.rows("batch_replies", "WHERE custom_id = ?", (custom_id,))
        if not rows:
            return None
        reply = BatchReply(**dict(zip(TABLES["batch_replies"], rows[0], strict=True)))
        return replace(reply, text=storable_text(reply.text))

    def has_replies(self) -> bool:
        """Return whether any reply is kept."""
        return bool(self._store.query("SELECT 1 FROM batch_replies LIMIT 1"))

    def forget_replies(self, custom_ids: Iterable[str]) -> None:
        """Remove replies that were used."""
        with self._store.transaction() as connection:
            connection.executemany(
                "DELETE FROM batch_replies WHERE custom_id = ?", [(custom_id,) for custom_id in custom_ids]
            )
