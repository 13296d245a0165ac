"""The file of a ledger: its format and identity, the checksum of every row, and what SQLite's errors mean.

Another program may hold the file, so statements wait for it, for a limited time. An error of SQLite leaves as an error
of this package that says what to do; only what SQLite itself calls malformed is called damaged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import xxhash
from llama_index.core.storage.kvstore.types import DEFAULT_COLLECTION

from llama_index_contextual.errors import (
    CorruptVersionError,
    FormatError,
    LedgerBusyError,
    LedgerError,
    ProjectError,
)
from llama_index_contextual.storage.kvstore import KV_TABLE, SQLiteKVStore
from llama_index_contextual.storage.storable import has_surrogate

logger = logging.getLogger(__name__)
T = TypeVar("T")
Row = tuple[Any, ...]

FORMAT_VERSION = 2
"""1: no checksums, no identity; 2: every row has a checksum, the format row the ledger's identity."""
PATIENCE_WRITING = 60.0
PATIENCE_READING = 5.0
"""Seconds to wait for another program that holds the file; answers that cost money wait longer than questions."""

TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "contexts": ("key", "context", "model", "created", "input_tokens", "cached_tokens", "output_tokens"),
        "embeddings": ("key", "vector", "model", "created"),
        "batches": ("file_id", "batch_id", "model", "created"),
        "batch_requests": ("custom_id", "file_id"),
        "batch_replies": ("custom_id", "text", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"),
        "runs": ("run", "receipt"),
    }
)
"""The columns of each table, its key first; the checksum follows them."""

_TYPES: Mapping[str, tuple[Any, ...]] = {
    "contexts": (str, str, str, float, int | None, int | None, int | None),
    "embeddings": (str, bytes, str, float),
    "batches": (str, str | None, str, float),
    "batch_requests": (str, str),
    "batch_replies": (str, str, str | None, int | None, int | None, int | None),
    "runs": (str, str),
}
_SQL = {str: "TEXT NOT NULL", bytes: "BLOB NOT NULL", float: "REAL NOT NULL", str | None: "TEXT", int | None: "INTEGER"}
_MAX_COUNT = 2**53

_CANNOT_LOCK = (
    *(sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_IOERR_RDLOCK, sqlite3.SQLITE_IOERR_UNLOCK),
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
)
_CANNOT_ROLL_BACK = (
    *(sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY, sqlite3.SQLITE_READONLY_CANTLOCK),
    *(sqlite3.SQLITE_READONLY_CANTINIT, sqlite3.SQLITE_READONLY_DIRECTORY),
)
_ADVICE: dict[int, str] = {
    sqlite3.SQLITE_READONLY: "is read-only ({}): make the file and its folder writable for this user",
    sqlite3.SQLITE_FULL: "cannot be written ({}): free space on its disk, then try again; what was committed is kept",
    sqlite3.SQLITE_IOERR: "cannot be read or written ({}): check its disk, its mount, quotas and limits of file sizes,"
    " then try again; what was committed is kept",
}
_ADVICE |= dict.fromkeys(
    (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH),
    "cannot be opened ({}): see that this user may read and write the file and its folder",
)
_ADVICE |= dict.fromkeys(
    _CANNOT_LOCK, "cannot be locked ({}): move the project to a local disk, or mount its file system with locks"
)
_ADVICE |= dict.fromkeys(
    _CANNOT_ROLL_BACK,
    "waits for an interrupted write to be undone, which cannot be done here ({}): make its folder writable for this"
    " user, then run `verify`; nothing is lost",
)
_BUSY = (
    "is held by another program ({}): wait until that has finished, or close it (a backup, a database browser), then"
    " try again; if nothing holds it, its file system cannot lock files: move the project to a local disk"
)


def explained(error: sqlite3.Error, name: str) -> ProjectError:
    """Return what an error of SQLite means for a ledger, as a sentence with what to do.

    Args:
        error: The error.
        name: Name of the ledger's file.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(name, str(error))
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerBusyError(f"{name} {_BUSY.format(error)}.")
    advice = _ADVICE.get(code) or _ADVICE.get(code & 0xFF) or "cannot be used ({}): see that it is a ledger"
    return LedgerError(f"{name} {advice.format(error)}.")


def damaged(name: str, why: str) -> CorruptVersionError:
    """Return the error of a damaged ledger."""
    return CorruptVersionError(
        f"{name} is damaged ({why}). `verify --repair` keeps what can still be read of it; queries are answered all"
        f" the same.",
        file=name,
    )


def row_checksum(table: str, values: Sequence[Any]) -> bytes:
    """Return the checksum of a row: xxh3 over the name of its table and every column."""
    facts = [len(value) if isinstance(value, bytes) else value for value in values]
    digest = xxhash.xxh3_64(json.dumps([table, *facts]).encode())
    for value in values:
        if isinstance(value, bytes):
            digest.update(value)
    return digest.digest()


def is_sound(table: str, row: Row) -> bool:
    """Return whether a row is as it was written: by its checksum, or, of format 1, as far as that can be told."""
    values, checksum = row[: len(TABLES[table])], row[len(TABLES[table]) :]
    if not checksum:
        return is_plausible(table, values)
    return checksum[0] == row_checksum(table, values) and (table != "embeddings" or is_vector(values[1]))


def is_plausible(table: str, values: Sequence[Any]) -> bool:
    """Return whether a row without a checksum can be right."""
    if len(values) != len(TABLES[table]) or not all(map(isinstance, values, _TYPES[table])):
        return False
    if any(isinstance(value, int) and not 0 <= value < _MAX_COUNT for value in values):
        return False
    if any(isinstance(value, str) and has_surrogate(value) for value in values):
        return False  # it was no UTF-8
    if table == "embeddings":
        # All embeddings have the length of 1, and damaged ones hardly have.
        return is_vector(values[1]) and bool(abs(np.linalg.norm(np.frombuffer(values[1], dtype="<f4")) - 1) < 1e-3)
    return bool(values[0]) and (table != "contexts" or bool(values[1] and values[2]))


def is_vector(blob: bytes) -> bool:
    """Return whether bytes are a vector that an index can use: finite, and not zero."""
    if not blob or len(blob) % 4:
        return False
    vector = np.frombuffer(blob, dtype="<f4")
    return bool(np.isfinite(vector).all() and vector.any())


class LedgerFile(SQLiteKVStore):
    """One SQLite file with the tables of a ledger.

    A file of an earlier format is upgraded when it is opened for writing, in one transaction.

    Args:
        path: The file; it is created where it is missing. None keeps everything in memory.
        read_only: Change nothing: a missing or empty file counts as an empty ledger, one of an earlier format is read
            as it is. A write that was interrupted is undone first all the same, since nothing can be read before.
        identity: The identity of a ledger that is created; None makes one.

    Raises:
        FormatError: A newer release wrote it.
        CorruptVersionError: It is damaged.
        LedgerBusyError: Another program holds it.
        LedgerError: It cannot be opened, read or written.

    Attributes:
        identity: Tells this ledger from others; None before it is upgraded to format 2.
        has_checksums: Whether its rows have checksums, as those of format 2 have.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False, identity: str | None = None) -> None:
        self.identity: str | None = None
        self.has_checksums = False
        self._name = "The ledger in memory" if path is None else path.name
        self._patience = PATIENCE_READING if read_only else PATIENCE_WRITING
        self._warned = False
        if read_only and (path is None or not path.exists() or path.stat().st_size == 0):
            path, read_only = None, False
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._explaining())
            stack.callback(self._close_what_is_open)
            self._patiently(partial(super().__init__, path, access="inspect" if read_only else "durable"))
            if self._read_format() != FORMAT_VERSION and not read_only:
                with self.transaction():
                    if (found := self._read_format()) != FORMAT_VERSION:
                        self._upgrade(found, identity)
                self._read_format()
            stack.pop_all()

    def _prepare(self) -> None:
        """Create nothing before it is known that the file is a ledger."""

    def _connected(self) -> sqlite3.Connection:
        connection = super()._connected()
        # A byte that is damaged must not keep the rows around it from being read.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return connection

    def _close_what_is_open(self) -> None:
        if hasattr(self, "_connection"):
            self.close()

    # ---- waiting, and errors ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError, sqlite3.DataError):
            raise  # of the call, not of the file
        except sqlite3.DatabaseError as error:
            raise explained(error, self._name) from error

    def _patiently(self, work: Callable[[], T]) -> T:
        until = time.monotonic() + self._patience
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not is_busy or time.monotonic() >= until:
                    raise
                time.sleep(0.02)  # SQLite has waited itself, but for a few cases in which it refuses at once

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a SELECT; wait while another program writes."""
        with self._lock, self._explaining():
            return self._patiently(lambda: self._connection.execute(sql, parameters).fetchall())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for several statements that are committed together or not at all.

        Only the beginning and the commit can meet another program: what stands between them is run once.
        """
        with self._lock, self._explaining():
            self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            try:
                yield self._connection
                self._patiently(lambda: self._connection.execute("COMMIT"))
            except BaseException:
                # Where that fails, SQLite rolls back when the file is next opened.
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other programs from writing until the block ends, also where the file was opened to be read."""
        self.query("PRAGMA query_only = OFF")
        with self.transaction():
            yield

    # ---- format -----------------------------------------------------------------------------------------------------

    def _read_format(self) -> int | None:
        """Return the format, and take over what it says; None where the file is new."""
        names = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if foreign := sorted(names - {"kv", *TABLES}):
            raise damaged(self._name, f"it is not a ledger: it holds the table {foreign[0]!r}")
        try:
            row = self.get("format") if "kv" in names else None
            if row is None:
                if any(self.query(f"SELECT 1 FROM {table} LIMIT 1") for table in names - {"kv"}):
                    raise ValueError("it is missing")
                return None
            if row.get("xxh3", _seal(row)) != _seal(row):
                raise ValueError("it has another checksum")
            version = int(row["version"])
            if version > FORMAT_VERSION:
                raise FormatError(
                    f"{self._name} has format {version}, this release reads up to {FORMAT_VERSION}:"
                    f" upgrade llama-index-contextual."
                )
            if version < 1 or (version > 1 and "xxh3" not in row):
                raise ValueError("it is unknown")
            if missing := sorted(TABLES.keys() - names) if version > 1 else []:
                raise ValueError(f"its table {missing[0]!r} is missing")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(self._name, f"its format cannot be read: {error}") from error
        self.identity = row.get("id")
        self.has_checksums = version > 1
        return version

    def _upgrade(self, found: int | None, identity: str | None) -> None:
        """Create what is missing, and give every row that can be right its checksum."""
        execute = self._connection.execute
        execute(KV_TABLE)
        for table, columns in TABLES.items():
            first, *rest = (f"{name} {_SQL[kind]}" for name, kind in zip(columns, _TYPES[table], strict=True))
            key = f"{first.removesuffix(' NOT NULL')} PRIMARY KEY"
            execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join((key, *rest, 'checksum BLOB'))}) WITHOUT ROWID")
            if "checksum" not in {row[1] for row in execute(f"PRAGMA table_info({table})")}:
                execute(f"ALTER TABLE {table} ADD COLUMN checksum BLOB")
                self._add_checksums(table)
        row = {"version": FORMAT_VERSION, "id": identity or uuid.uuid4().hex}
        value = json.dumps(row | {"xxh3": _seal(row)})
        execute("INSERT OR REPLACE INTO kv VALUES (?, 'format', ?)", (DEFAULT_COLLECTION, value))

    def _add_checksums(self, table: str) -> None:
        columns = TABLES[table]
        rows = self._connection.execute(f"SELECT {', '.join(columns)} FROM {table}")
        sums = [(row_checksum(table, row), row[0]) for row in rows if is_plausible(table, row)]
        self._connection.executemany(f"UPDATE {table} SET checksum = ? WHERE {columns[0]} = ?", sums)

    # ---- rows -------------------------------------------------------------------------------------------------------

    def rows(self, table: str, where: str = "", parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of a table that are as they were written, without their checksums.

        Args:
            table: Its name.
            where: What follows in the SELECT.
            parameters: Of `where`.
        """
        rows = self.query(f"SELECT {self._columns(table)} FROM {table} {where}", parameters)
        sound = [row[: len(TABLES[table])] for row in rows if is_sound(table, row)]
        if len(sound) < len(rows) and not self._warned:
            self._warned = True
            logger.warning(
                "%s has damaged rows: they are not used, and asked for again. `verify` names them, `verify --repair`"
                " removes them.",
                self._name,
            )
        return sound

    def insert(self, table: str, rows: Iterable[Sequence[Any]], *, replace: bool = True) -> None:
        """Write rows, with their checksums, in a transaction that has begun.

        Args:
            table: Its name.
            rows: The rows, each with all columns but the checksum.
            replace: Take the place of a row with the same key; otherwise that stays.
        """
        marks = ", ".join("?" * (len(TABLES[table]) + 1))
        typed = (tuple(map(_as_stored, _TYPES[table], row)) for row in rows)
        self._connection.executemany(
            f"INSERT OR {'REPLACE' if replace else 'IGNORE'} INTO {table} VALUES ({marks})",
            ((*row, row_checksum(table, row)) for row in typed),
        )

    def has_table(self, name: str) -> bool:
        """Return whether there is a table: a ledger of format 1 that was opened to be read lacks some."""
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)))

    def damaged_rows(self) -> dict[str, list[str]]:
        """Return the keys of rows that are not as they were written, by table; only tables that have some."""
        found: dict[str, list[str]] = {}
        with self._lock, self._explaining():
            names = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in TABLES.keys() & names:
                select = f"SELECT {self._columns(table)} FROM {table}"
                rows = self._patiently(partial(self._connection.execute, select))
                if keys := [str(row[0]) for row in rows if not is_sound(table, row)]:
                    found[table] = keys
        return found

    def remove_damaged_rows(self) -> bool:
        """Remove the rows that are not as they were written, and return whether that could be done one by one."""
        try:
            with self.transaction() as connection:
                for table, keys in self.damaged_rows().items():
                    # What is not UTF-8 any more can only be given as bytes.
                    raw = [(key.encode("utf-8", "surrogateescape"),) for key in keys]
                    connection.executemany(f"DELETE FROM {table} WHERE {TABLES[table][0]} = CAST(? AS TEXT)", raw)
                # A request of a batch that is not known any more would not be answered, and not be sent again either.
                connection.execute("DELETE FROM batch_requests WHERE file_id NOT IN (SELECT file_id FROM batches)")
                if self.damaged_rows():
                    raise _OutOfOrderError
        except _OutOfOrderError:
            return False
        return True

    def malformed(self) -> str | None:
        """Return what SQLite's own check finds wrong with the file, or None."""
        answer = str(self.query("PRAGMA integrity_check(1)")[0][0])
        return None if answer == "ok" else answer

    def _columns(self, table: str) -> str:
        return ", ".join((*TABLES[table], "checksum") if self.has_checksums else TABLES[table])


class _OutOfOrderError(Exception):
    """A damaged row cannot be reached by its key."""


def _as_stored(kind: Any, value: Any) -> Any:
    """Return a number as the one that SQLite will give back: the checksum must be the same then."""
    if value is None or kind not in (float, int | None):
        return value
    return float(value) if kind is float else int(value)


def _seal(row: Mapping[str, Any]) -> str:
    content = json.dumps({name: value for name, value in row.items() if name != "xxh3"}, sort_keys=True)
    return xxhash.xxh3_64_hexdigest(content.encode())
