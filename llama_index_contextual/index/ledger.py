"""Permanent store of contexts, embeddings and scanned pages, so that nothing is paid for or read by OCR twice.

The ledger is one SQLite file with rollback journal and full sync. A row is committed as soon as its answer has arrived,
so a crash loses at most the calls in flight. The key of a row is a SHA-256 over the whole input of the call; for
contextual embedding models, see `document_keys`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual.index import files
from llama_index_contextual.index.batches import BATCH_TABLES, BatchJournal
from llama_index_contextual.index.ledger_file import TABLES, LedgerFile, Row
from llama_index_contextual.index.receipts import Receipts, RunCost
from llama_index_contextual.index.storable import storable_text

LEDGER_FILE = "ledger.sqlite"

FIELDS = ("key", "context", "model", "input_tokens", "cached_tokens", "output_tokens")
_MAX_VARIABLES = 900


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A context that an LLM has written.

    Attributes:
        key: Key of the call, see `content_key`.
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
    """Return a SHA-256 over all parts of the input of a call; ("a", "bc") and ("ab", "c") have different keys."""
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
        """Return the key of an input with one or more further parts."""
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

    A key contains the key of the text itself, a digest of all texts, the place of the text among them and their number:
    the vector is used again only if all of them are the same.

    Args:
        texts: The texts, in the order in which they are sent.
        model: Name of the model.
        dimensions: Length of the vectors that was requested, or None.
    """
    digest = content_key(*texts)
    return [f"{vector_key(text, model, dimensions)}:{digest}:{at}:{len(texts)}" for at, text in enumerate(texts)]


class _LiveVectors:
    """Keys of the embeddings of live documents.

    Args:
        documents: Texts of the chunks of each document, in the order of the document.
        models: Names of models with the lengths of their vectors.
    """

    def __init__(self, documents: Sequence[Sequence[str]], models: Collection[tuple[str, int | None]]) -> None:
        self._documents = documents
        self._places: dict[str, list[tuple[int, int]]] = {}
        for of, texts in enumerate(documents):
            for at, text in enumerate(texts):
                for model in models:
                    self._places.setdefault(vector_key(text, *model), []).append((of, at))
        self._digest = cache(self._digest_of)

    def __contains__(self, key: str) -> bool:
        own, _, others = key.partition(":")
        places = self._places.get(own, [])
        match others.split(":"):
            case [""]:
                return bool(places)
            case [digest, before, number] if before.isdecimal() and number.isdecimal():
                starts = ((of, at - int(before)) for of, at in places)
                return any(start >= 0 and self._digest(of, start, int(number)) == digest for of, start in starts)
        return False

    def _digest_of(self, document: int, start: int, number: int) -> str:
        return content_key(*self._documents[document][start : start + number])


class Ledger:
    """The ledger of one project, or of an `LLMContextualizer` in a pipeline.

    Damaged rows are treated as missing, so their contexts and embeddings are requested again. SQLite errors are raised
    as errors of this package. All errors can be raised on opening and on use.

    Args:
        path: The file, which is created if it does not exist; None keeps everything in memory.
        read_only: Do not change the file; a missing or empty file is treated as an empty ledger.
        identity: Identity of a ledger that is created; None generates one.

    Raises:
        FormatError: The file was written by a newer release.
        CorruptVersionError: The file is damaged.
        LedgerBusyError: Another program has locked the file.
        LedgerError: The file cannot be opened, read or written.

    Attributes:
        path: The file.
        batches: The batches that a provider is working on.
        receipts: The costs of all runs.
    """

    def __init__(self, path: str | Path | None, *, read_only: bool = False, identity: str | None = None) -> None:
        path = None if path is None else Path(path)
        self.path = path or Path("ledger in memory")
        self._kv = LedgerFile(path, read_only=read_only, identity=identity)
        self.batches = BatchJournal(self._kv)
        self.receipts = Receipts(self._kv)

    @property
    def identity(self) -> str | None:
        """Unique id of this ledger; None for format 1 that has not been opened for writing yet."""
        return self._kv.identity

    def context(self, key: str) -> str | None:
        """Return the context with this key, or None."""
        return self.contexts([key]).get(key)

    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the contexts with these keys, if they are in the ledger."""
        rows = (row for part in _parts(keys) for row in self._kv.rows("contexts", *_one_of(part)))
        return {key: context for key, context, *_ in map(_storable, rows) if context}

    def refusals(self, keys: Sequence[str]) -> set[str]:
        """Return those keys for which the LLM refused to write a context."""
        return {row[0] for part in _parts(keys) for row in self._kv.rows("contexts", *_one_of(part)) if not row[1]}

    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        """Commit contexts and refusals; they are on disk when this returns."""
        now = time.time()
        rows = [(e.key, e.context, e.model, now, e.input_tokens, e.cached_tokens, e.output_tokens) for e in entries]
        with self._kv.transaction():
            self._kv.insert("contexts", rows)

    def vectors(self, keys: Sequence[str], *, dimensions: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the embeddings with these keys, if they are in the ledger; all have the same length.

        Args:
            keys: Keys of the embeddings.
            dimensions: Length of the vectors; None selects the most frequent one.
        """
        rows = (row for part in _parts(keys) for row in self._kv.rows("embeddings", *_one_of(part)))
        vectors: dict[str, NDArray[np.float32]] = {row[0]: np.frombuffer(row[1], dtype="<f4") for row in rows}
        if dimensions is None and vectors:
            ((dimensions, _),) = Counter(map(len, vectors.values())).most_common(1)
        return {key: vector for key, vector in vectors.items() if len(vector) == dimensions}

    def add_vectors(self, model: str, keys: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Commit embeddings, one row of `vectors` per key."""
        now = time.time()
        rows = [(key, row.astype("<f4").tobytes(), model, now) for key, row in zip(keys, vectors, strict=True)]
        with self._kv.transaction():
            self._kv.insert("embeddings", rows)

    def page(self, key: str) -> str | None:
        """Return the scanned page with this key as it was read by OCR, or None."""
        rows = self._kv.rows("pages", "WHERE key = ?", (key,))
        return rows[0][1] if rows else None

    def add_page(self, key: str, page: str, engine: str) -> None:
        """Commit a scanned page that was read by OCR; it is on disk when this returns."""
        with self._kv.transaction():
            self._kv.insert("pages", [(key, page, engine, time.time())])

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the sound rows of a table, sorted by key."""
        key = TABLES[table][0]
        keys = [of_row for (of_row,) in self._kv.query(f"SELECT {key} FROM {table} ORDER BY {key}")]
        for part in _parts(keys):
            rows = self._kv.rows(table, f"WHERE {key} IN ({', '.join('?' * len(part))}) ORDER BY {key}", part)
            yield from map(_storable, rows) if table == "contexts" else rows

    def add_rows(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Add rows to several tables in one transaction.

        A context replaces that of the same key. Other rows are kept, and a receipt gets a number of this ledger unless
        the ledger has it already.
        """
        with self._kv.transaction():
            known = [replace(run, run=0) for run in self.receipts.cost().runs]
            for table, row in rows:
                if table == "runs":
                    receipt = replace(RunCost(**json.loads(row[1])), run=0)
                    if receipt not in known:
                        self.receipts.insert(receipt)
                else:
                    self._kv.insert(table, [row], replace=table == "contexts")

    def restore(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Copy rows of the same table of another ledger in one transaction; existing rows are kept."""
        with self._kv.transaction():
            self._kv.insert(table, rows, replace=False)

    def keep_only(
        self, contexts: Collection[str], documents: Sequence[Sequence[str]], *, dry_run: bool = False
    ) -> tuple[int, int]:
        """Remove all other rows, and return the number of contexts and of embeddings removed.

        Requests and replies of batches and scanned pages cannot be attributed to a document, so all of them are
        removed: replies whose contexts are not stored yet, running batches, whose replies would bring removed contexts
        back, and pages, which cost only time. Refusals are kept: they contain no text, and asking again would cost
        money. The removed text remains in unused parts of the file; `copy_to` does not copy it.

        Args:
            contexts: Contexts to keep.
            documents: Texts of the chunks of each document, in the order of the document, whose embeddings to keep, of
                any model. Of those by contextual models, only embeddings among the same neighbours are kept.
            dry_run: Only count the rows.
        """
        storable = set(map(storable_text, contexts))
        context_keys = {key for key, context, *_ in self._contexts() if context in storable}
        context_keys |= {key for key, *_ in self._kv.rows("contexts", "WHERE context = ''")}
        models = self._kv.query("SELECT DISTINCT model, length(vector) / 4 FROM embeddings")
        vector_keys = _LiveVectors(
            documents, {model for name, length in models for model in ((name, None), (name, length))}
        )
        with self._kv.transaction() as connection:
            removed = []
            for table, keys_to_keep in (("contexts", context_keys), ("embeddings", vector_keys)):
                # As bytes, because a damaged key may not be valid UTF-8.
                keys = connection.execute(f"SELECT CAST(key AS BLOB) FROM {table}").fetchall()
                others = [(key,) for (key,) in keys if key.decode("utf-8", "surrogateescape") not in keys_to_keep]
                removed.append(len(others))
                if not dry_run:
                    connection.executemany(f"DELETE FROM {table} WHERE key = CAST(? AS TEXT)", others)
            for table in () if dry_run else (*BATCH_TABLES, "pages"):
                connection.execute(f"DELETE FROM {table}")
        return removed[0], removed[1]

    def copy_to(self, path: Path) -> None:
        """Write all rows, without deleted data, to a new file, and sync it."""
        files.let_write(path, lambda: self._kv.query("VACUUM INTO ?", (str(path),)))
        files.sync_file(path)

    def usage(self, contexts: Sequence[str]) -> LedgerUsage | None:
        """Return the tokens used to write some contexts, or None if the usage of one is unknown.

        Args:
            contexts: The contexts of the chunks; one that is listed several times counts several times.
        """
        tokens = {
            context: (sent, cached or 0, answered) for _, context, _, _, sent, cached, answered in self._contexts()
        }
        rows = [tokens.get(storable_text(context), (None,)) for context in contexts]
        if any(None in row for row in rows):
            return None
        sent, cached, answered = (sum(column) for column in zip((0, 0, 0), *rows, strict=True))
        return LedgerUsage(input_tokens=sent, cached_tokens=cached, output_tokens=answered)

    def info(self) -> LedgerInfo:
        """Return the size of the ledger."""
        contexts, sent, answered = self._kv.query(
            "SELECT total(context != ''), total(input_tokens), total(output_tokens) FROM contexts"
        )[0]
        ((embeddings,),) = self._kv.query("SELECT count(*) FROM embeddings")
        return LedgerInfo(
            contexts=int(contexts),
            embeddings=embeddings,
            input_tokens=int(sent),
            output_tokens=int(answered),
            batched_requests=sum(batch.requests for batch in self.batches.open_batches()),
            pages=self._kv.query("SELECT count(*) FROM pages")[0][0],
        )

    def mean_context_tokens(self, model: str, *, at_least: int = 20) -> float | None:
        """Return the mean number of tokens of a model's answers, or None if there are fewer than `at_least`."""
        ((number, mean),) = self._kv.query(
            "SELECT count(output_tokens), avg(output_tokens) FROM contexts WHERE model = ? AND context != ''", (model,)
        )
        return float(mean) if number >= at_least else None

    def entries(self) -> list[LedgerEntry]:
        """Return all contexts, sorted by key."""
        rows = (dict(zip(TABLES["contexts"], row, strict=True)) for row in self._contexts("ORDER BY key"))
        return [LedgerEntry(**{field: row[field] for field in FIELDS}) for row in rows]

    def block_writers(self) -> AbstractContextManager[object]:
        """Lock the file against writing by other programs for the duration of a `with` block."""
        return self._kv.block_writers()

    def damage(self) -> str | None:
        """Return the result of SQLite's integrity check, or None if the file is sound. Also see `damaged_rows`."""
        return self._kv.malformed()

    def damaged_rows(self) -> dict[str, list[str]]:
        """Return the keys of damaged rows by table."""
        return self._kv.damaged_rows()

    def remove_damaged_rows(self) -> bool:
        """Remove damaged rows, and return whether all of them could be removed."""
        return self._kv.remove_damaged_rows()

    def close(self) -> None:
        """Close the file."""
        self._kv.close()

    def _contexts(self, order: str = "") -> Iterator[Row]:
        return (row for row in map(_storable, self._kv.rows("contexts", order)) if row[1])


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[at : at + _MAX_VARIABLES] for at in range(0, len(keys), _MAX_VARIABLES))


def _one_of(keys: Sequence[str]) -> tuple[str, Sequence[str]]:
    return f"WHERE key IN ({', '.join('?' * len(keys))})", keys


def _storable(row: Row) -> Row:
    """Clean the text of a context, as earlier releases stored the LLM's answer unchanged."""
    return (row[0], storable_text(row[1]), *row[2:])
