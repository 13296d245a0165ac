"""Permanent store of contexts, embeddings and OCR results, so that nothing is paid for or read by OCR twice.

The ledger is one SQLite file with a rollback journal and full sync. A row is committed as soon as the answer arrives,
so a crash loses at most the calls in flight. The key of a row is the SHA-256 of the whole input of the call; for
contextual embedding models, see `document_keys`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index import files
from llama_index_contextual.index.ledger_file import TABLES, LedgerFile, Row
from llama_index_contextual.index.receipts import Receipts, RunCost
from llama_index_contextual.index.storable import storable_text

LEDGER_FILE = "ledger.sqlite"

FIELDS = ("key", "context", "model", "input_tokens", "cached_tokens", "output_tokens")
_BLOCK = 500  # number of rows that are read together
_KEY_AMONG_OTHERS = re.compile(r"(?P<own>\w+):(?P<digest>\w+):(?P<before>[0-9]+):(?P<number>[0-9]+)")


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A context written by an LLM.

    Attributes:
        key: Key of the context, see `content_key`.
        context: The LLM's answer, cleaned; empty if the LLM refused.
        model: Name of the LLM.
        input_tokens: Tokens of the prompt as counted by the provider, or None if unknown.
        cached_tokens: Input tokens that the provider read from its cache.
        output_tokens: Tokens of the answer.
    """

    key: str
    context: str
    model: str
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class LedgerInfo:
    """Size of a ledger.

    Attributes:
        contexts: Number of contexts.
        embeddings: Number of vectors.
        input_tokens: Tokens of all prompts as counted by the providers.
        output_tokens: Tokens of all answers.
        batched_requests: Number of requests in batches that the provider is still working on.
        pages: Number of scanned pages that were read by OCR.
    """

    contexts: int
    embeddings: int
    input_tokens: int
    output_tokens: int
    batched_requests: int = 0
    pages: int = 0


@dataclass(frozen=True, kw_only=True)
class LedgerUsage:
    """Number of tokens used to write some contexts.

    Attributes:
        input_tokens: Tokens of the prompts.
        cached_tokens: Input tokens that the provider read from its cache.
        output_tokens: Tokens of the answers.
    """

    input_tokens: int
    cached_tokens: int
    output_tokens: int


def content_key(*parts: str) -> str:
    """Return the SHA-256 of all parts of the input of a call; ("a", "bc") and ("ab", "c") have different keys."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ContentKeys:
    """Keys of calls whose inputs begin with the same parts; the shared parts are hashed only once.

    Args:
        *shared: The first parts of each input.

    Example:
        >>> ContentKeys("a", "b").key("c") == content_key("a", "b", "c")
        True
    """

    def __init__(self, *shared: str) -> None:
        self._prefix = hashlib.sha256(json.dumps(shared)[:-1].encode())

    def key(self, *parts: str) -> str:
        """Return the key of an input with one or more additional parts."""
        whole = self._prefix.copy()
        whole.update(f", {json.dumps(parts)[1:]}".encode())
        return whole.hexdigest()


def vector_key(text: str, model: str, dimensions: int | None) -> str:
    """Return the key of the embedding of a text.

    Args:
        text: The text to embed.
        model: Name of the model.
        dimensions: Length of the vector that was requested, or None if the model has only one.
    """
    return content_key(model, text) if dimensions is None else content_key(model, str(dimensions), text)


def document_keys(texts: Sequence[str], model: str, dimensions: int | None) -> list[str]:
    """Return the keys of the embeddings of texts that a contextual model embeds together.

    A key consists of the key of the text itself, a digest of all texts, the position of the text among them and their
    number: a vector is reused only if all of these are the same.

    Args:
        texts: The texts, in the order in which they are sent.
        model: Name of the model.
        dimensions: Length of the vectors that was requested, or None.
    """
    digest = content_key(*texts)
    return [f"{vector_key(text, model, dimensions)}:{digest}:{at}:{len(texts)}" for at, text in enumerate(texts)]


class Ledger(LedgerFile):
    """The ledger of one project, or of an `LLMContextualizer` in a pipeline.

    Damaged rows are treated as missing, so their contexts and embeddings are requested again. SQLite errors are raised
    as errors of this package. All errors can be raised on opening and on use.

    Args:
        path: The file, which is created if it does not exist; None keeps everything in memory.
        read_only: Do not change the file; a missing or empty file is treated as an empty ledger.
        identity: Identity for a new ledger; None generates one.

    Raises:
        FormatError: The file was written by another release.
        CorruptVersionError: The file is damaged.
        LedgerBusyError: Another program has locked the file.
        LedgerError: The file cannot be opened, read or written.
    """

    def __init__(self, path: str | Path | None, *, read_only: bool = False, identity: str | None = None) -> None:
        super().__init__(None if path is None else Path(path), read_only=read_only, identity=identity)

    @property
    def batches(self) -> BatchJournal:
        """The batches that a provider is working on."""
        return BatchJournal(self)

    @property
    def receipts(self) -> Receipts:
        """The costs of all runs."""
        return Receipts(self)

    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the contexts with these keys, if they are in the ledger."""
        return {key: context for key, context, *_ in self.rows("contexts", *_one_of(keys)) if context}

    def refusals(self, keys: Sequence[str]) -> set[str]:
        """Return the keys for which the LLM refused to write a context."""
        return {key for key, context, *_ in self.rows("contexts", *_one_of(keys)) if not context}

    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        """Commit contexts and refusals; they are on disk when this method returns."""
        now = time.time()
        rows = [(e.key, e.context, e.model, now, e.input_tokens, e.cached_tokens, e.output_tokens) for e in entries]
        with self.transaction():
            self.insert("contexts", rows)

    def vectors(self, keys: Sequence[str], *, dimensions: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the embeddings with these keys, if they are in the ledger; all have the same length.

        Args:
            keys: Keys of the embeddings.
            dimensions: Length of the vectors; None selects the most frequent one.
        """
        rows = self.rows("embeddings", *_one_of(keys))
        vectors: dict[str, NDArray[np.float32]] = {row[0]: np.frombuffer(row[1], dtype="<f4") for row in rows}
        if dimensions is None and vectors:
            ((dimensions, _),) = Counter(map(len, vectors.values())).most_common(1)
        return {key: vector for key, vector in vectors.items() if len(vector) == dimensions}

    def add_vectors(self, model: str, keys: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Commit embeddings, one row of `vectors` per key."""
        now = time.time()
        rows = [(key, row.astype("<f4").tobytes(), model, now) for key, row in zip(keys, vectors, strict=True)]
        with self.transaction():
            self.insert("embeddings", rows)

    def page(self, key: str) -> str | None:
        """Return the OCR result for the scanned page with this key, or None."""
        rows = self.rows("pages", "WHERE key = ?", (key,))
        return rows[0][1] if rows else None

    def add_page(self, key: str, page: str, engine: str) -> None:
        """Commit the OCR result for a scanned page; it is on disk when this method returns."""
        with self.transaction():
            self.insert("pages", [(key, page, engine, time.time())])

    def iterate(self, table: str) -> Iterator[Row]:
        """Yield the undamaged rows of a table, sorted by key."""
        key = TABLES[table][0]
        keys = [of_row for (of_row,) in self.query(f"SELECT {key} FROM {table} ORDER BY {key}")]
        for at in range(0, len(keys), _BLOCK):
            clause, parameters = _one_of(keys[at : at + _BLOCK], key)
            yield from self.rows(table, f"{clause} ORDER BY {key}", parameters)

    def add_rows(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Add rows to several tables in one transaction.

        A context replaces the existing one with the same key; existing rows of other tables are kept. A receipt that is
        not yet in this ledger gets a new number.
        """
        with self.transaction():
            known = [replace(run, run=0) for run in self.receipts.cost().runs]
            for table, row in rows:
                if table == "runs":
                    receipt = replace(RunCost(**json.loads(row[1])), run=0)
                    if receipt not in known:
                        self.receipts.insert(receipt)
                else:
                    self.insert(table, [row], replace=table == "contexts")

    def restore(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Copy rows of the same table of another ledger in one transaction; existing rows are kept."""
        with self.transaction():
            self.insert(table, rows, replace=False)

    def keep_only(
        self, contexts: Collection[str], documents: Sequence[Sequence[str]], *, dry_run: bool = False
    ) -> tuple[int, int]:
        """Remove all rows except those to keep, and return the number of contexts and of embeddings removed.

        Requests and replies of batches and OCR results cannot be attributed to a document, so all of them are
        removed: replies whose contexts are not stored yet, running batches, whose replies would bring removed contexts
        back, and OCR results, which can be produced again at no charge. Refusals are kept: they contain no text, and
        asking again would cost money. The removed text remains in unused parts of the file; `copy_to` does not copy it.

        Args:
            contexts: Contexts to keep.
            documents: Texts of the chunks of each document, in document order. Their embeddings by any model are kept;
                those by contextual models only if the neighbouring chunks are the same.
            dry_run: Only count the rows.
        """
        contexts_to_keep = [key for key, context, *_ in self.rows("contexts") if not context or context in contexts]
        models = self.query("SELECT DISTINCT model, length(vector) / 4 FROM embeddings")
        keys = [key for (key,) in self.query("SELECT key FROM embeddings")]
        embeddings_to_keep = _live_keys(keys, documents, [(name, size) for name, of in models for size in (None, of)])
        removed = []
        with self.transaction() as connection:
            for table, kept in (("contexts", contexts_to_keep), ("embeddings", embeddings_to_keep)):
                others = f"FROM {table} WHERE key NOT IN (SELECT value FROM json_each(?))"
                removed.append(connection.execute(f"SELECT count(*) {others}", (json.dumps(kept),)).fetchone()[0])
                if not dry_run:
                    connection.execute(f"DELETE {others}", (json.dumps(kept),))
            for table in () if dry_run else (*BATCH_TABLES, "pages"):
                connection.execute(f"DELETE FROM {table}")
        return removed[0], removed[1]

    def copy_to(self, path: Path) -> None:
        """Write all rows, without deleted data, to a new file, and sync it."""
        files.let_write(path, lambda: self.query("VACUUM INTO ?", (str(path),)))
        files.sync_file(path)

    def usage(self, contexts: Sequence[str]) -> LedgerUsage | None:
        """Return the number of tokens used to write some contexts, or None if it is unknown for any of them.

        Args:
            contexts: The contexts of the chunks; one that is listed several times counts several times.
        """
        stored = self.rows("contexts", "WHERE context != ''")
        tokens = {context: (sent, cached or 0, answered) for _, context, _, _, sent, cached, answered in stored}
        rows = [tokens.get(context, (None,)) for context in contexts]
        if any(None in row for row in rows):
            return None
        sent, cached, answered = (sum(column) for column in zip((0, 0, 0), *rows, strict=True))
        return LedgerUsage(input_tokens=sent, cached_tokens=cached, output_tokens=answered)

    def info(self) -> LedgerInfo:
        """Return the size of the ledger."""
        contexts, sent, answered = self.query(
            "SELECT total(context != ''), total(input_tokens), total(output_tokens) FROM contexts"
        )[0]
        ((embeddings,),) = self.query("SELECT count(*) FROM embeddings")
        return LedgerInfo(
            contexts=int(contexts),
            embeddings=embeddings,
            input_tokens=int(sent),
            output_tokens=int(answered),
            batched_requests=sum(batch.requests for batch in self.batches.open_batches()),
            pages=self.query("SELECT count(*) FROM pages")[0][0],
        )

    def mean_context_tokens(self, model: str, *, at_least: int = 20) -> float | None:
        """Return the mean number of tokens of a model's answers, or None if there are fewer than `at_least`."""
        ((number, mean),) = self.query(
            "SELECT count(output_tokens), avg(output_tokens) FROM contexts WHERE model = ? AND context != ''", (model,)
        )
        return float(mean) if number >= at_least else None


def _one_of(keys: Sequence[str], column: str = "key") -> tuple[str, tuple[str]]:
    return f"WHERE {column} IN (SELECT value FROM json_each(?))", (json.dumps(keys),)


def _live_keys(
    keys: Iterable[str], documents: Sequence[Sequence[str]], models: Iterable[tuple[str, int | None]]
) -> list[str]:
    """Return the keys that belong to embeddings of live documents.

    Args:
        keys: Keys of embeddings.
        documents: Texts of the chunks of each document, in the order of the document.
        models: Names of models with the lengths of their vectors.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for model in set(models):
        for of, texts in enumerate(documents):
            for at, text in enumerate(texts):
                places.setdefault(vector_key(text, *model), []).append((of, at))

    @cache
    def digest(of: int, start: int, number: int) -> str:
        return content_key(*documents[of][start : start + number])

    def is_live(key: str) -> bool:
        match = _KEY_AMONG_OTHERS.fullmatch(key)
        if match is None:
            return key in places
        before, number = int(match["before"]), int(match["number"])
        starts = ((of, at - before) for of, at in places.get(match["own"], ()))
        return any(start >= 0 and digest(of, start, number) == match["digest"] for of, start in starts)

    return list(filter(is_live, keys))


# ---- batches ---------------------------------------------------------------------------------------------------------

BATCH_TABLES = ("batches", "batch_requests", "batch_replies")
"""The tables of the journal of batches."""


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


@dataclass(frozen=True)
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
    """Journal of the batches that a provider is working on: their requests and replies.

    If a process stops, the next one finds the batch and fetches its replies, so they are not paid for again. A reply is
    kept until its contexts are in the ledger.

    Args:
        store: The open ledger file.
    """

    def __init__(self, store: LedgerFile) -> None:
        self._store = store

    def uploaded(self, file_id: str, *, model: str, custom_ids: Iterable[str]) -> None:
        """Record uploaded requests before their batch is created."""
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
            self._store.insert("batch_replies", map(_reply_row, replies))
            connection.execute("DELETE FROM batch_requests WHERE file_id = ?", (file_id,))
            connection.execute("DELETE FROM batches WHERE file_id = ?", (file_id,))

    def read(self, file_id: str, replies: Sequence[BatchReply]) -> None:
        """Store some replies of a batch, which stays open for its other requests."""
        with self._store.transaction() as connection:
            self._store.insert("batch_replies", map(_reply_row, replies))
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
        """Return whether a request has been sent or answered and must not be sent again."""
        return self.reply(custom_id) is not None or self.is_open(custom_id)

    def is_open(self, custom_id: str) -> bool:
        """Return whether a request was sent and its reply has not been read."""
        # Without its batch, the reply would not be fetched.
        files = [file_id for _, file_id in self._store.rows("batch_requests", "WHERE custom_id = ?", (custom_id,))]
        return any(self._store.rows("batches", "WHERE file_id = ?", (file_id,)) for file_id in files)

    def reply(self, custom_id: str) -> BatchReply | None:
        """Return the reply to a request, or None."""
        rows = self._store.rows("batch_replies", "WHERE custom_id = ?", (custom_id,))
        return BatchReply(*rows[0]) if rows else None

    def has_replies(self) -> bool:
        """Return whether any replies are stored."""
        return bool(self._store.query("SELECT 1 FROM batch_replies LIMIT 1"))

    def forget_replies(self, custom_ids: Iterable[str]) -> None:
        """Remove replies whose contexts are in the ledger."""
        with self._store.transaction() as connection:
            connection.executemany(
                "DELETE FROM batch_replies WHERE custom_id = ?", [(custom_id,) for custom_id in custom_ids]
            )


def _reply_row(reply: BatchReply) -> tuple[object, ...]:
    return astuple(replace(reply, text=storable_text(reply.text)))
