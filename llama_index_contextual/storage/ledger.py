"""What was paid for, kept for ever: contexts and embeddings by the content that they were made from.

One SQLite file with rollback journal and full sync. A row is committed the moment its answer has arrived, so a crash
costs at most the calls in flight. A key is a SHA-256 over everything that went into the call.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.storage import files
from llama_index_contextual.storage.batches import BATCH_TABLES, BatchJournal
from llama_index_contextual.storage.ledger_file import TABLES, LedgerFile, Row
from llama_index_contextual.storage.receipts import Receipts
from llama_index_contextual.storage.storable import storable_text

LEDGER_FILE = "ledger.sqlite"

FIELDS = ("key", "context", "model", "input_tokens", "cached_tokens", "output_tokens")
_MAX_VARIABLES = 900


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A context that was paid for.

    Attributes:
        key: See `content_key`.
        context: The LLM's answer, cleaned.
        model: Name of the LLM.
        input_tokens: Tokens of the prompt by the provider's count, or None where it gave none.
        cached_tokens: Those of them that the provider took from its cache.
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
    """How much is in a ledger.

    Attributes:
        contexts: Number of contexts.
        embeddings: Number of vectors.
        input_tokens: Tokens of all prompts, by the providers' counts.
        output_tokens: Tokens of all answers.
        batched_requests: Requests that are under way in batches of the provider.
    """

    contexts: int
    embeddings: int
    input_tokens: int
    output_tokens: int
    batched_requests: int = 0


@dataclass(frozen=True, kw_only=True)
class LedgerUsage:
    """Tokens that contexts took.

    Attributes:
        input_tokens: Tokens of the prompts.
        cached_tokens: Those of them that the provider took from its cache.
        output_tokens: Tokens of the answers.
    """

    input_tokens: int
    cached_tokens: int
    output_tokens: int


def content_key(*parts: str) -> str:
    """Return the key of an answer: a SHA-256 over all parts of the question; ("a", "bc") and ("ab", "c") differ."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ContentKeys:
    """Keys of questions that begin alike: what they share is hashed once.

    Args:
        *shared: The first parts of each question.

    Example:
        >>> ContentKeys("a", "b").key("c") == content_key("a", "b", "c")
        True
    """

    def __init__(self, *shared: str) -> None:
        self._begun = hashlib.sha256(json.dumps(shared)[:-1].encode())

    def key(self, *parts: str) -> str:
        """Return the key of the question that goes on with one or more parts."""
        whole = self._begun.copy()
        whole.update(f", {json.dumps(parts)[1:]}".encode())
        return whole.hexdigest()


def vector_key(text: str, model: str, dimensions: int | None) -> str:
    """Return the key of the embedding of a text.

    Args:
        text: What is embedded.
        model: Name of the model.
        dimensions: Length of vector that the model was asked for; None where it gives but one.
    """
    return content_key(model, text) if dimensions is None else content_key(model, str(dimensions), text)


class Ledger:
    """The ledger of one project.

    A row that is not as it was written counts as absent, so it is asked for again. An error of SQLite is raised as one
    of this package.

    Args:
        path: The file; it is created when it is not there. None keeps everything in memory.
        read_only: Change nothing; a file that is missing or empty counts as an empty ledger.
        identity: The identity of a ledger that is created; None makes one.

    Raises:
        FormatError: A newer release wrote it.
        CorruptVersionError: It is damaged, here or when it is used.
        LedgerBusyError: Another program holds it, here or when it is used.
        LedgerError: It cannot be opened, read or written, here or when it is used.

    Attributes:
        path: The file.
        batches: The batches that a provider works on.
        receipts: What every run has cost.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False, identity: str | None = None) -> None:
        self.path = path or Path("ledger in memory")
        self._kv = LedgerFile(path, read_only=read_only, identity=identity)
        self.batches = BatchJournal(self._kv)
        self.receipts = Receipts(self._kv)

    @property
    def identity(self) -> str | None:
        """Tells this ledger from others; None for one of format 1 that was not opened for writing yet."""
        return self._kv.identity

    def context(self, key: str) -> str | None:
        """Return the context of that key, or None."""
        return self.contexts([key]).get(key)

    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the contexts that are known, by key."""
        rows = (row for part in _parts(keys) for row in self._kv.rows("contexts", *_one_of(part)))
        return {key: context for key, context, *_ in map(_mended, rows) if context}

    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        """Commit contexts; they are on the disk when this returns."""
        now = time.time()
        rows = [(e.key, e.context, e.model, now, e.input_tokens, e.cached_tokens, e.output_tokens) for e in entries]
        with self._kv.transaction():
            self._kv.insert("contexts", rows)

    def vectors(self, keys: Sequence[str], *, dimensions: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the embeddings that are known, by key; all of them have the same length.

        Args:
            keys: Their keys.
            dimensions: The length that was asked for; None takes that of most of them.
        """
        rows = (row for part in _parts(keys) for row in self._kv.rows("embeddings", *_one_of(part)))
        found: dict[str, NDArray[np.float32]] = {row[0]: np.frombuffer(row[1], dtype="<f4") for row in rows}
        if dimensions is None and found:
            ((dimensions, _),) = Counter(map(len, found.values())).most_common(1)
        return {key: vector for key, vector in found.items() if len(vector) == dimensions}

    def add_vectors(self, model: str, keys: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Commit embeddings, one row of `vectors` per key."""
        now = time.time()
        rows = [(key, row.astype("<f4").tobytes(), model, now) for key, row in zip(keys, vectors, strict=True)]
        with self._kv.transaction():
            self._kv.insert("embeddings", rows)

    def restore(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Commit rows of another ledger's table as they are, in one step; keys that are there already stay."""
        with self._kv.transaction():
            self._kv.insert(table, rows, replace=False)

    def keep_only(self, contexts: Collection[str], texts: Collection[str], *, dry_run: bool = False) -> tuple[int, int]:
        """Remove all other rows, and return how many contexts and embeddings that were.

        Nothing says whose the requests and replies of batches are. So all are given up: replies that wait to become
        contexts, and batches under way, whose replies would bring back what was removed. The text of all that stays in
        unused places of the file; `copy_to` leaves it behind.

        Args:
            contexts: Contexts whose rows stay.
            texts: Texts whose embeddings stay, by whatever model.
            dry_run: Count the rows only.
        """
        mended = set(map(storable_text, contexts))
        kept_contexts = {key for key, context, *_ in self._contexts() if context in mended}
        models = self._kv.query("SELECT DISTINCT model, length(vector) / 4 FROM embeddings")
        kept_vectors = {
            vector_key(text, *model)
            for name, length in models
            for model in ((name, None), (name, length))
            for text in texts
        }
        with self._kv.transaction() as connection:
            removed = []
            for table, kept in (("contexts", kept_contexts), ("embeddings", kept_vectors)):
                # As bytes, since a damaged key may not be UTF-8 any more.
                keys = connection.execute(f"SELECT CAST(key AS BLOB) FROM {table}").fetchall()
                gone = [(key,) for (key,) in keys if key.decode("utf-8", "surrogateescape") not in kept]
                removed.append(len(gone))
                if not dry_run:
                    connection.executemany(f"DELETE FROM {table} WHERE key = CAST(? AS TEXT)", gone)
            for table in () if dry_run else BATCH_TABLES:
                connection.execute(f"DELETE FROM {table}")
        return removed[0], removed[1]

    def copy_to(self, path: Path) -> None:
        """Write the rows, and nothing that was ever removed, to a new file, and sync it."""
        files.let_write(path, lambda: self._kv.query("VACUUM INTO ?", (str(path),)))
        files.sync_file(path)

    def usage(self, contexts: Sequence[str]) -> LedgerUsage | None:
        """Return the tokens that contexts took, each as often as it is given; None where one is not known.

        Args:
            contexts: The contexts, as they stand in the chunks.
        """
        tokens = {
            context: (given, cached or 0, answered) for _, context, _, _, given, cached, answered in self._contexts()
        }
        found = [tokens.get(storable_text(context), (None,)) for context in contexts]
        if any(None in counts for counts in found):
            return None
        given, cached, answered = (sum(column) for column in zip((0, 0, 0), *found, strict=True))
        return LedgerUsage(input_tokens=given, cached_tokens=cached, output_tokens=answered)

    def info(self) -> LedgerInfo:
        """Return how much is in the ledger."""
        contexts, given, answered = self._kv.query(
            "SELECT count(*), total(input_tokens), total(output_tokens) FROM contexts"
        )[0]
        ((embeddings,),) = self._kv.query("SELECT count(*) FROM embeddings")
        return LedgerInfo(
            contexts=contexts,
            embeddings=embeddings,
            input_tokens=int(given),
            output_tokens=int(answered),
            batched_requests=sum(batch.requests for batch in self.batches.open_batches()),
        )

    def mean_context_tokens(self, model: str, *, at_least: int = 20) -> float | None:
        """Return the mean tokens of a model's answers for one context, or None before there are `at_least` of them."""
        ((number, mean),) = self._kv.query(
            "SELECT count(output_tokens), avg(output_tokens) FROM contexts WHERE model = ?", (model,)
        )
        return float(mean) if number >= at_least else None

    def entries(self) -> list[LedgerEntry]:
        """Return all contexts, in the order of their keys."""
        rows = self._contexts("ORDER BY key")
        named = (dict(zip(TABLES["contexts"], row, strict=True)) for row in rows)
        return [LedgerEntry(**{field: row[field] for field in FIELDS}) for row in named]

    def held(self) -> AbstractContextManager[object]:
        """Keep other programs from writing until the block ends."""
        return self._kv.held()

    def damage(self) -> str | None:
        """Return what SQLite finds wrong with the file, or None; rows are another matter, see `damaged_rows`."""
        return self._kv.malformed()

    def damaged_rows(self) -> dict[str, list[str]]:
        """Return the keys of rows that are not as they were written, by table."""
        return self._kv.damaged_rows()

    def remove_damaged_rows(self) -> bool:
        """Remove these rows, and return whether all could be reached."""
        return self._kv.remove_damaged_rows()

    def close(self) -> None:
        """Close the file."""
        self._kv.close()

    def _contexts(self, order: str = "") -> Iterator[Row]:
        return (row for row in map(_mended, self._kv.rows("contexts", order)) if row[1])


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[at : at + _MAX_VARIABLES] for at in range(0, len(keys), _MAX_VARIABLES))


def _one_of(keys: Sequence[str]) -> tuple[str, Sequence[str]]:
    return f"WHERE key IN ({', '.join('?' * len(keys))})", keys


def _mended(row: Row) -> Row:
    """Return a context as a document store can keep it: earlier releases stored whatever an LLM had answered."""
    return (row[0], storable_text(row[1]), *row[2:])
