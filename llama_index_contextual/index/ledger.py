"""Permanent store of contexts, embeddings and OCR results, so that none of them is paid for or computed twice.

The ledger is one SQLite file with a rollback journal, and each commit is synced to disk. A row is committed as soon as
the answer arrives, so a crash loses at most the calls in flight. The key of a row is the SHA-256 of the complete call
input; for contextual embedding models, see `document_keys`. Each row has a checksum, and damaged rows are treated as
missing.

Statements wait for a limited time if another program has locked the file. SQLite errors are translated into
`ProjectError` or a subclass, with a message that explains what to do. A file is reported as damaged only if SQLite
reports it as malformed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from llama_index_contextual._utils.files import require_open_files
from llama_index_contextual.errors import (
    CorruptVersionError,
    FormatError,
    LedgerBusyError,
    LedgerError,
    ProjectError,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.kvstore import Database, is_busy
from llama_index_contextual.metadata import has_surrogate, storable_text
from llama_index_contextual.money.receipt import Receipt, Receipts

logger = logging.getLogger(__name__)
Row = tuple[Any, ...]

LEDGER_FILE = "ledger.sqlite"
DAMAGED = ".damaged"
FORMAT_VERSION = 3
PATIENCE_WRITING = 60.0
PATIENCE_READING = 5.0
"""Maximum number of seconds to wait while another program has locked the file.

The limit is higher for writing, because lost answers cost money."""

TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "contexts": ("key", "context", "model", "created", "input_tokens", "cached_tokens", "output_tokens"),
        "embeddings": ("key", "vector", "model", "created"),
        "batches": ("file_id", "batch_id", "model", "created"),
        "batch_requests": ("custom_id", "file_id"),
        "batch_replies": ("custom_id", "text", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"),
        "runs": ("run", "receipt"),
        "pages": ("key", "page", "engine", "created"),
        "chunk_contexts": ("key", "context", "model", "created"),
    }
)
"""The columns of each table, starting with the key; a column with the checksum is added at the end."""

_TYPES: Mapping[str, tuple[Any, ...]] = {
    "contexts": (str, str, str, float, int | None, int | None, int | None),
    "embeddings": (str, bytes, str, float),
    "batches": (str, str | None, str, float),
    "batch_requests": (str, str),
    "batch_replies": (str, str, str | None, int | None, int | None, int | None),
    "runs": (str, str),
    "pages": (str, str, str, float),
    "chunk_contexts": (str, str, str, float),
}
_LATER_TABLES = frozenset({"chunk_contexts"})
"""Tables that are created in an existing ledger, because earlier releases did not have them."""

_SQL = {str: "TEXT NOT NULL", bytes: "BLOB NOT NULL", float: "REAL NOT NULL", str | None: "TEXT", int | None: "INTEGER"}
_MAX_COUNT = 2**53

FIELDS = ("key", "context", "model", "input_tokens", "cached_tokens", "output_tokens")
_BLOCK = 500  # number of rows that are read together
_KEY_AMONG_OTHERS = re.compile(r"(?P<own>\w+):(?P<digest>\w+):(?P<before>[0-9]+):(?P<number>[0-9]+)")


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """A context written by an LLM.

    Attributes:
        key: Key of the context; see `content_key`.
        context: The LLM's answer after cleaning; empty if the LLM refused to write a context.
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
        batched_requests: Number of requests in batches that the provider is still processing.
        pages: Number of scanned pages that were read by OCR.
    """

    contexts: int
    embeddings: int
    input_tokens: int
    output_tokens: int
    batched_requests: int = 0
    pages: int = 0


def content_key(*parts: str) -> str:
    """Return the SHA-256 of the parts of a call's input. ("a", "bc") and ("ab", "c") have different keys."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class ContentKeys:
    """Keys of calls whose inputs begin with the same parts, which are hashed only once.

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
    """Return the key of a text's embedding.

    Args:
        text: The text to embed.
        model: Name of the model.
        dimensions: Requested length of the vector, or None if the model has only one length.
    """
    return content_key(model, text) if dimensions is None else content_key(model, str(dimensions), text)


def stored_name(model: str, prefix: str) -> str:
    """Return the name under which vectors of passages with a prefix are stored in the ledger.

    Example:
        >>> stored_name("ollama:bge-m3", ""), stored_name("openai-like:multilingual-e5-small", "passage: ")
        ('ollama:bge-m3', "openai-like:multilingual-e5-small after 'passage: '")
    """
    return f"{model} after {prefix!r}" if prefix else model


def document_keys(texts: Sequence[str], model: str, dimensions: int | None) -> list[str]:
    """Return the embedding keys of texts that a contextual model embeds together.

    A key consists of the key of the text itself, a digest of all texts, the position of the text, and the number of
    texts. A vector is therefore reused only if all of these are the same.

    Args:
        texts: The texts, in the order in which they are sent.
        model: Name of the model.
        dimensions: Requested length of the vectors, or None.
    """
    digest = content_key(*texts)
    return [f"{vector_key(text, model, dimensions)}:{digest}:{at}:{len(texts)}" for at, text in enumerate(texts)]


# ---- errors and checksums --------------------------------------------------------------------------------------------


def translate_error(error: sqlite3.Error, name: str) -> ProjectError:
    """Translate an SQLite error into a `ProjectError` with a message that explains what to do.

    Args:
        error: The error.
        name: Name of the ledger file.
    """
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damage_error(name, str(error))
    if is_busy(error):
        return LedgerBusyError(
            f"{name} is locked by another program ({error}): wait until it has finished, or close it (a backup, a"
            f" database browser), then try again; if no program holds it, its file system cannot lock files: move the"
            f" project to a local disk."
        )
    return LedgerError(
        f"{name} cannot be read or written ({error}): check that this user may write to the file and its folder, that"
        f" there is free space, and quotas and limits of file sizes, then try again; committed data is kept."
    )


def damage_error(name: str, why: str) -> CorruptVersionError:
    """Return the error for a damaged ledger."""
    return CorruptVersionError(
        f"{name} is damaged ({why}). `verify --repair` keeps all rows that can still be read; queries still work.",
        file=name,
    )


def row_checksum(table: str, values: Sequence[Any]) -> bytes:
    """Return the xxh3 checksum of a row, computed from its values and the name of its table."""
    columns = [len(value) if isinstance(value, bytes) else value for value in values]
    digest = xxhash.xxh3_64(json.dumps([table, *columns]).encode())
    for value in values:
        if isinstance(value, bytes):
            digest.update(value)
    return digest.digest()


def is_sound(table: str, row: Row) -> bool:
    """Return whether the checksum in a row's last column is correct and the row's vector, if any, can be used."""
    *values, checksum = row
    return bool(checksum == row_checksum(table, values)) and (table != "embeddings" or is_vector(values[1]))


def is_plausible(table: str, values: Sequence[Any]) -> bool:
    """Return whether the values of an imported row have the types and ranges that its table requires."""
    if not all(map(isinstance, values, _TYPES[table])) or not values[0]:
        return False
    if any(isinstance(value, int) and not (type(value) is int and 0 <= value < _MAX_COUNT) for value in values):
        return False
    if any(isinstance(value, str) and has_surrogate(value) for value in values):
        return False
    if table == "embeddings":  # stored vectors are unit vectors
        return is_vector(values[1]) and bool(abs(np.linalg.norm(np.frombuffer(values[1], dtype="<f4")) - 1) < 1e-3)
    return True


def is_vector(blob: bytes) -> bool:
    """Return whether bytes represent a vector that an index can use: finite and not zero."""
    if not blob or len(blob) % 4:
        return False
    vector = np.frombuffer(blob, dtype="<f4")
    return bool(np.isfinite(vector).all() and vector.any())


# ---- the ledger ------------------------------------------------------------------------------------------------------


class Ledger(Database):
    """The ledger of one project, or of an `LLMContextualizer` in a pipeline.

    Damaged rows are treated as missing, so their contexts and embeddings are requested again. SQLite errors are
    translated into the exceptions below, which can be raised when the ledger is opened and whenever it is used.

    Args:
        path: The file, which is created if it does not exist, or None for a ledger in memory.
        read_only: Whether to leave the file unchanged; a missing or empty file is treated as an empty ledger. An
            interrupted write is still rolled back, because the file cannot be read otherwise.

    Raises:
        FormatError: The file was written by another release.
        CorruptVersionError: The file is damaged.
        LedgerBusyError: Another program has locked the file.
        LedgerError: The file cannot be opened, read or written.
    """

    def __init__(self, path: str | Path | None, *, read_only: bool = False) -> None:
        file = None if path is None else Path(path)
        self._name = "The ledger in memory" if file is None else file.name
        self._warned = False
        if read_only and (file is None or is_missing(file)):
            file, read_only = None, False
        if read_only:
            super().__init__(file, access="inspect", patience=PATIENCE_READING)
        else:
            super().__init__(file, access="durable", patience=PATIENCE_WRITING)
        try:
            self._tables = TABLES.keys() - self._missing_tables()
            if self._tables != TABLES.keys() and not read_only:
                with self.transaction():  # another process may have created them in the meantime
                    self._create_tables(self._missing_tables())
                self._tables = set(TABLES)
        except BaseException:
            self.close()
            raise

    def _open(self) -> sqlite3.Connection:
        connection = super()._open()
        # Damaged bytes must not prevent other rows from being read.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError):
            raise  # caused by the call, not by the file
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN:
                require_open_files()
            raise translate_error(error, self._name) from error

    def _missing_tables(self) -> set[str]:
        """Check the format of the file, and return the tables to create: all in a new file, later ones in an old one.

        In an old file that is opened as read-only, the later tables are treated as empty.
        """
        names = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        ((version,),) = self.query("PRAGMA user_version")
        if not names and not version:
            return set(TABLES)
        if version not in (0, FORMAT_VERSION):  # 0 before the first release
            raise FormatError(
                f"{self._name} has format {version}, this release reads {FORMAT_VERSION}: upgrade"
                f" llama-index-contextual, or run `ledger export` with the release that wrote it, and `ledger import`"
                f" for a new project."
            )
        if missing := sorted(TABLES.keys() - names - _LATER_TABLES):
            raise damage_error(self._name, f"it has no table {missing[0]!r}")
        return TABLES.keys() - names

    def _create_tables(self, tables: Collection[str]) -> None:
        for table, columns in TABLES.items():
            if table not in tables:
                continue
            first, *rest = (f"{name} {_SQL[kind]}" for name, kind in zip(columns, _TYPES[table], strict=True))
            key = f"{first.removesuffix(' NOT NULL')} PRIMARY KEY"
            self._connection.execute(f"CREATE TABLE {table} ({', '.join((key, *rest, 'checksum BLOB'))}) WITHOUT ROWID")
        if len(tables) == len(TABLES):
            self._connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    # ---- rows -------------------------------------------------------------------------------------------------------

    def rows(self, table: str, clauses: str = "", parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the undamaged rows of a table, without their checksums.

        Args:
            table: Name of the table.
            clauses: WHERE, ORDER BY and LIMIT clauses of the SELECT.
            parameters: Parameters of `clauses`.
        """
        if table not in self._tables:
            return []
        rows = self.query(f"SELECT {_column_list(table)} FROM {table} {clauses}", parameters)
        sound = [row[: len(TABLES[table])] for row in rows if is_sound(table, row)]
        if len(sound) < len(rows) and not self._warned:
            self._warned = True
            logger.warning(
                "%s has damaged rows: they are not used and will be requested again. `verify` lists them,"
                " `verify --repair` removes them.",
                self._name,
            )
        return sound

    def insert(self, table: str, rows: Iterable[Sequence[Any]], *, replace: bool = True) -> None:
        """Insert rows with their checksums within an open transaction.

        Args:
            table: Name of the table.
            rows: The rows, each with all columns except the checksum.
            replace: Whether to replace a row with the same key.
        """
        marks = ", ".join("?" * (len(TABLES[table]) + 1))
        self._connection.executemany(
            f"INSERT OR {'REPLACE' if replace else 'IGNORE'} INTO {table} VALUES ({marks})",
            ((*row, row_checksum(table, row)) for row in rows),
        )

    def damaged_rows(self) -> dict[str, list[str]]:
        """Return the keys of damaged rows, by table. Tables without damaged rows are left out."""
        damaged_keys: dict[str, list[str]] = {}
        with self._lock, self._errors():
            for table in filter(self._tables.__contains__, TABLES):
                select = f"SELECT {_column_list(table)} FROM {table}"
                rows = self._wait_for_lock(partial(self._connection.execute, select))
                if keys := [str(row[0]) for row in rows if not is_sound(table, row)]:
                    damaged_keys[table] = keys
        return damaged_keys

    def malformed(self) -> str | None:
        """Return the first problem that SQLite's integrity check finds, or None."""
        answer = str(self.query("PRAGMA integrity_check(1)")[0][0])
        return None if answer == "ok" else answer

    # ---- contexts, embeddings and pages ------------------------------------------------------------------------------

    @property
    def batches(self) -> BatchJournal:
        """The journal of the batches that providers are processing."""
        return BatchJournal(self)

    @property
    def receipts(self) -> Receipts:
        """The receipts with the costs of all runs."""
        return Receipts(self)

    def contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the contexts stored for the given keys, by key."""
        return {key: context for key, context, *_ in self.rows("contexts", *_one_of(keys)) if context}

    def refusals(self, keys: Sequence[str]) -> set[str]:
        """Return the subset of the given keys for which the LLM refused to write a context."""
        return {key for key, context, *_ in self.rows("contexts", *_one_of(keys)) if not context}

    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        """Add contexts and refusals, and commit them to disk before returning."""
        now = time.time()
        rows = [(e.key, e.context, e.model, now, e.input_tokens, e.cached_tokens, e.output_tokens) for e in entries]
        with self.transaction():
            self.insert("contexts", rows)

    def chunk_contexts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the contexts stored for chunks of unchanged files, by key; see `chunk_keys`."""
        return {key: context for key, context, *_ in self.rows("chunk_contexts", *_one_of(keys)) if context}

    def add_chunk_contexts(self, model: str, contexts: Mapping[str, str]) -> None:
        """Add and commit contexts for chunks of unchanged files, by key; existing contexts are replaced."""
        now = time.time()
        with self.transaction():
            self.insert("chunk_contexts", [(key, context, model, now) for key, context in contexts.items()])

    def vectors(self, keys: Sequence[str], *, dimensions: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return a mapping of the given keys to their embeddings, which all have the same length.

        Keys without an embedding of this length are left out.

        Args:
            keys: Keys of the embeddings.
            dimensions: Length of the vectors, or None for the most frequent length.
        """
        rows = self.rows("embeddings", *_one_of(keys))
        vectors: dict[str, NDArray[np.float32]] = {row[0]: np.frombuffer(row[1], dtype="<f4") for row in rows}
        if dimensions is None and vectors:
            ((dimensions, _),) = Counter(map(len, vectors.values())).most_common(1)
        return {key: vector for key, vector in vectors.items() if len(vector) == dimensions}

    def add_vectors(self, model: str, keys: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Add and commit embeddings, one row of `vectors` per key."""
        now = time.time()
        rows = [(key, row.astype("<f4").tobytes(), model, now) for key, row in zip(keys, vectors, strict=True)]
        with self.transaction():
            self.insert("embeddings", rows)

    def page(self, key: str) -> str | None:
        """Return the OCR result for a scanned page, or None if it is not in the ledger."""
        rows = self.rows("pages", "WHERE key = ?", (key,))
        return rows[0][1] if rows else None

    def add_page(self, key: str, page: str, engine: str) -> None:
        """Add the OCR result for a scanned page, and commit it to disk before returning.

        If the ledger is read-only, as in an estimate, the result is not stored, and the page is read again later.
        """
        if self.access == "inspect":
            return
        with self.transaction():
            self.insert("pages", [(key, page, engine, time.time())])

    def iterate(self, table: str) -> Iterator[Row]:
        """Yield the undamaged rows of a table, sorted by key."""
        if table not in self._tables:
            return
        key = TABLES[table][0]
        keys = [of_row for (of_row,) in self.query(f"SELECT {key} FROM {table} ORDER BY {key}")]
        for at in range(0, len(keys), _BLOCK):
            clause, parameters = _one_of(keys[at : at + _BLOCK], key)
            yield from self.rows(table, f"{clause} ORDER BY {key}", parameters)

    def add_rows(self, rows: Iterable[tuple[str, Row]]) -> None:
        """Add rows to several tables in one transaction.

        A context replaces an existing context with the same key; in other tables, existing rows are kept. A receipt
        that is not yet in this ledger gets a new number.
        """
        with self.transaction():
            known = [replace(run, run=0) for run in self.receipts.cost().runs]
            for table, row in rows:
                if table == "runs":
                    receipt = replace(Receipt(**json.loads(row[1])), run=0)
                    if receipt not in known:
                        self.receipts.insert(receipt)
                else:
                    self.insert(table, [row], replace=table == "contexts")

    def keep_only(
        self, contexts: Collection[str], documents: Sequence[Sequence[str]], *, dry_run: bool = False
    ) -> tuple[int, int]:
        """Remove rows that are no longer needed, and return the numbers of removed contexts and embeddings.

        Batches and OCR results cannot be attributed to a document, so all of them are removed. If a running batch were
        kept, its replies would restore removed contexts; OCR results can be produced again at no charge. Refusals are
        kept, because they contain no text and repeating the requests would cost money. The removed text remains in
        unused parts of the file, which `copy_to` does not copy.

        Args:
            contexts: Contexts to keep.
            documents: Texts of the chunks of each document, in document order. Embeddings of these texts are kept for
                every model; embeddings from contextual models are kept only if the neighbouring chunks are the same.
            dry_run: Whether to only count the rows. Contexts stored for chunks of unchanged files are not counted,
                because they repeat other contexts.
        """
        contexts_to_keep = [key for key, context, *_ in self.rows("contexts") if not context or context in contexts]
        models = self.query("SELECT DISTINCT model, length(vector) / 4 FROM embeddings")
        keys = [key for (key,) in self.query("SELECT key FROM embeddings")]
        embeddings_to_keep = _live_keys(keys, documents, [(name, size) for name, of in models for size in (None, of)])
        removed = []
        with self.transaction() as connection:
            for table, live_keys in (("contexts", contexts_to_keep), ("embeddings", embeddings_to_keep)):
                others = f"FROM {table} WHERE key NOT IN (SELECT value FROM json_each(?))"
                removed.append(connection.execute(f"SELECT count(*) {others}", (json.dumps(live_keys),)).fetchone()[0])
                if not dry_run:
                    connection.execute(f"DELETE {others}", (json.dumps(live_keys),))
            if not dry_run:
                for table in (*BATCH_TABLES, "pages"):
                    connection.execute(f"DELETE FROM {table}")
                others = "FROM chunk_contexts WHERE context NOT IN (SELECT value FROM json_each(?))"
                connection.execute(f"DELETE {others}", (json.dumps([*contexts]),))
        return removed[0], removed[1]

    def copy_to(self, path: Path) -> None:
        """Write all rows, without deleted data, to a new file, and sync it."""
        files.let_write(path, lambda: self.query("VACUUM INTO ?", (str(path),)))
        files.sync_file(path)

    def usage(self, contexts: Sequence[str]) -> tuple[int, int, int] | None:
        """Return the numbers of tokens used to generate the given contexts, or None if any number is unknown.

        Args:
            contexts: The contexts of the chunks; a context that is listed several times is counted each time.

        Returns:
            The number of prompt tokens, the number of prompt tokens that the provider read from its cache, and the
            number of answer tokens.
        """
        stored = self.rows("contexts", "WHERE context != ''")
        tokens = {context: (sent, cached or 0, answered) for _, context, _, _, sent, cached, answered in stored}
        rows = [tokens.get(context, (None,)) for context in contexts]
        if any(None in row for row in rows):
            return None
        sent, cached, answered = (sum(column) for column in zip((0, 0, 0), *rows, strict=True))
        return sent, cached, answered

    def info(self) -> LedgerInfo:
        """Return the number of contexts, embeddings, tokens and other entries in the ledger."""
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

    def mean_context_tokens(self, model: str, *, line_tokens: int = 0) -> float | None:
        """Return the mean number of tokens in a model's contexts, or None if there are fewer than 20 contexts.

        Args:
            model: Name of the model.
            line_tokens: Number of tokens that each further line of a context has, which are not included.
        """
        ((number, mean),) = self.query(
            "SELECT count(output_tokens), avg(max(0, output_tokens - ? * (length(context) - length(replace(context,"
            " char(10), ''))))) FROM contexts WHERE model = ? AND context != ''",
            (line_tokens, model),
        )
        return float(mean) if number >= 20 else None


def is_missing(path: Path) -> bool:
    """Return whether a ledger does not exist or is an empty file."""
    return not os.path.lexists(path) or (path.is_file() and not path.stat().st_size)


def damaged_ledgers(project_dir: Path) -> list[Path]:
    """Return the paths of the damaged ledgers that repairs have kept, and of their journals."""
    return sorted(project_dir.glob(f"{LEDGER_FILE}{DAMAGED}*"))


def _column_list(table: str) -> str:
    return ", ".join((*TABLES[table], "checksum"))


def _one_of(keys: Sequence[str], column: str = "key") -> tuple[str, tuple[str]]:
    return f"WHERE {column} IN (SELECT value FROM json_each(?))", (json.dumps(keys),)


def _live_keys(
    keys: Iterable[str], documents: Sequence[Sequence[str]], models: Iterable[tuple[str, int | None]]
) -> list[str]:
    """Return the subset of the given keys that belong to the chunks of the given documents.

    Args:
        keys: Keys of embeddings.
        documents: Texts of the chunks of each document, in document order.
        models: Names of models, each with a requested vector length or None.
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
"""The tables of the batch journal."""


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A batch whose replies have not arrived yet.

    Attributes:
        file_id: The provider's id of the uploaded requests.
        batch_id: The provider's id of the batch; None if the process ended before the id was known.
        model: Name of the model, as in the settings.
        created: Time of the upload, in seconds since 1970.
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
        finish_reason: Reason why the answer ended, as reported by the provider.
        input_tokens: Tokens of the prompt, or None if the provider did not report them.
        cached_tokens: Input tokens that the provider read from its cache.
        output_tokens: Tokens of the answer.
        written_tokens: Input tokens that the provider wrote to its cache. They are not stored, because the cost of the
            reply is recorded when it arrives.
    """

    custom_id: str
    text: str
    finish_reason: str | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    written_tokens: int | None = field(default=None, compare=False)


class BatchJournal:
    """Journal of the batches that providers are processing, with their requests and replies.

    If a process stops, the next process finds the batch and fetches its replies, so they are not paid for again. A
    reply is kept until its contexts are in the ledger.

    Args:
        store: The open ledger.
    """

    def __init__(self, store: Ledger) -> None:
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
        """Return the ids of uploaded requests whose replies have not arrived yet."""
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
        """Return the open batches of a model, oldest first, or of all models if `model` is None."""
        counts = dict(self._store.query("SELECT file_id, count(*) FROM batch_requests GROUP BY file_id"))
        rows = self._store.rows("batches", "ORDER BY created, file_id")
        batches = [
            OpenBatch(file_id=file_id, batch_id=batch_id, model=name, created=created, requests=counts.get(file_id, 0))
            for file_id, batch_id, name, created in rows
        ]
        return [batch for batch in batches if model in (None, batch.model)]

    def file_of(self, custom_id: str) -> str | None:
        """Return the upload id of a request that was sent and whose reply has not been read yet, otherwise None."""
        # A request whose batch is not recorded is ignored, because its reply would never be fetched.
        files = [file_id for _, file_id in self._store.rows("batch_requests", "WHERE custom_id = ?", (custom_id,))]
        return next((each for each in files if self._store.rows("batches", "WHERE file_id = ?", (each,))), None)

    def reply(self, custom_id: str) -> BatchReply | None:
        """Return the reply to a request, or None if no reply is stored."""
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
    return astuple(replace(reply, text=storable_text(reply.text)))[: len(TABLES["batch_replies"])]
