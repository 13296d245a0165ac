"""What was paid for, kept for ever: contexts and embeddings by the content that they were made from.

One SQLite file with rollback journal and full sync. A row is committed the moment its answer has arrived, so a crash
costs at most the calls in flight. A key is a SHA-256 over everything that went into the call.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.batches import BATCH_TABLES, BatchJournal
from llama_index_contextual.storage.kvstore import SQLiteKVStore

P = ParamSpec("P")
T = TypeVar("T")

FORMAT_VERSION = 1
LEDGER_FILE = "ledger.sqlite"

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS contexts (key TEXT PRIMARY KEY, context TEXT NOT NULL, model TEXT NOT NULL,"
    " created REAL NOT NULL, input_tokens INTEGER, cached_tokens INTEGER, output_tokens INTEGER) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS embeddings (key TEXT PRIMARY KEY, vector BLOB NOT NULL, model TEXT NOT NULL,"
    " created REAL NOT NULL) WITHOUT ROWID",
)
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


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CorruptVersionError:
    return CorruptVersionError(
        f"{path.name} is damaged ({error}). `verify --repair` keeps what can still be read of it; queries are answered"
        f" all the same.",
        file=path.name,
    )


def _names_damage(method: Callable[Concatenate[Ledger, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    @functools.wraps(method)
    def named(self: Ledger, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with _damage_named(self.path):
            return method(self, *args, **kwargs)

    return named


class Ledger:
    """The ledger of one project.

    Args:
        path: The file; it is created when it is not there. None keeps everything in memory.

    Raises:
        FormatError: A newer release wrote it.
        CorruptVersionError: It is damaged, here or when it is used.

    Attributes:
        path: The file.
        batches: The batches that a provider works on.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path or Path("ledger in memory")
        with contextlib.ExitStack() as stack:
            stack.enter_context(_damage_named(self.path))
            self._kv = SQLiteKVStore(path, access="durable")
            stack.callback(self._kv.close)
            found = self._format()
            if found is not None and found > FORMAT_VERSION:
                raise FormatError(
                    f"{self.path.name} has format {found}, this release reads up to {FORMAT_VERSION}:"
                    f" upgrade llama-index-contextual."
                )
            for statement in _SCHEMA:
                self._kv.execute(statement)
            self.batches = BatchJournal(self._kv)
            self.batches.prepare()
            if found is None:
                self._kv.put("format", {"version": FORMAT_VERSION})
            stack.pop_all()

    def _format(self) -> int | None:
        try:
            found = self._kv.get("format")
            return None if found is None else int(found["version"])
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged(self.path, error) from error

    @_names_damage
    def context(self, key: str) -> str | None:
        """Return the context of that key, or None."""
        rows = self._kv.query("SELECT context FROM contexts WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    @_names_damage
    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the contexts that are known, by key."""
        found: dict[str, str] = {}
        for at in range(0, len(keys), _MAX_VARIABLES):
            part = keys[at : at + _MAX_VARIABLES]
            marks = ", ".join("?" * len(part))
            found.update(self._kv.query(f"SELECT key, context FROM contexts WHERE key IN ({marks})", part))
        return found

    @_names_damage
    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        """Commit contexts; they are on the disk when this returns."""
        now = time.time()
        rows = [(e.key, e.context, e.model, now, e.input_tokens, e.cached_tokens, e.output_tokens) for e in entries]
        with self._kv.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO contexts VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    @_names_damage
    def vectors(self, keys: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the embeddings that are known, by key."""
        found: dict[str, NDArray[np.float32]] = {}
        for at in range(0, len(keys), _MAX_VARIABLES):
            part = keys[at : at + _MAX_VARIABLES]
            marks = ", ".join("?" * len(part))
            for key, blob in self._kv.query(f"SELECT key, vector FROM embeddings WHERE key IN ({marks})", part):
                found[key] = np.frombuffer(blob, dtype="<f4")
        return found

    @_names_damage
    def add_vectors(self, model: str, keys: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Commit embeddings, one row of `vectors` per key."""
        now = time.time()
        rows = [(key, row.astype("<f4").tobytes(), model, now) for key, row in zip(keys, vectors, strict=True)]
        with self._kv.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?, ?)", rows)

    @_names_damage
    def restore(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Commit rows of another ledger's table as they are, in one step; keys that are there already stay."""
        with self._kv.transaction() as connection:
            for row in rows:
                connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    @_names_damage
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
        found = self._kv.query("SELECT key, context FROM contexts")
        context_rows = [(key,) for key, context in found if context not in contexts]
        models = self._kv.query("SELECT DISTINCT model, length(vector) / 4 FROM embeddings")
        kept = {
            vector_key(text, *model)
            for name, length in models
            for model in ((name, None), (name, length))
            for text in texts
        }
        vector_rows = [(key,) for (key,) in self._kv.query("SELECT key FROM embeddings") if key not in kept]
        if dry_run:
            return len(context_rows), len(vector_rows)
        with self._kv.transaction() as connection:
            connection.executemany("DELETE FROM contexts WHERE key = ?", context_rows)
            connection.executemany("DELETE FROM embeddings WHERE key = ?", vector_rows)
            for table in BATCH_TABLES:
                connection.execute(f"DELETE FROM {table}")
        return len(context_rows), len(vector_rows)

    @_names_damage
    def copy_to(self, path: Path) -> None:
        """Write the rows, and nothing that was ever removed, to a new file, and sync it."""
        files.let_write(path, lambda: self._kv.query("VACUUM INTO ?", (str(path),)))
        files.sync_file(path)

    @_names_damage
    def usage(self, contexts: Sequence[str]) -> LedgerUsage | None:
        """Return the tokens that contexts took, each as often as it is given; None where one is not known.

        Args:
            contexts: The contexts, as they stand in the chunks.
        """
        rows = self._kv.query("SELECT context, input_tokens, ifnull(cached_tokens, 0), output_tokens FROM contexts")
        tokens = {context: counts for context, *counts in rows}
        found = [tokens.get(context, (None,)) for context in contexts]
        if any(None in counts for counts in found):
            return None
        given, cached, answered = (sum(column) for column in zip((0, 0, 0), *found, strict=True))
        return LedgerUsage(input_tokens=given, cached_tokens=cached, output_tokens=answered)

    @_names_damage
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

    @_names_damage
    def mean_context_tokens(self, model: str, *, at_least: int = 20) -> float | None:
        """Return the mean tokens of a model's answers for one context, or None before there are `at_least` of them."""
        ((number, mean),) = self._kv.query(
            "SELECT count(output_tokens), avg(output_tokens) FROM contexts WHERE model = ?", (model,)
        )
        return float(mean) if number >= at_least else None

    @_names_damage
    def entries(self) -> list[LedgerEntry]:
        """Return all contexts, in the order of their keys."""
        rows = self._kv.query(f"SELECT {', '.join(FIELDS)} FROM contexts ORDER BY key")
        return [LedgerEntry(**dict(zip(FIELDS, row, strict=True))) for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._kv.close()
