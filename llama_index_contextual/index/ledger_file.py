"""SQLite file of a ledger: format, identity, checksums of the rows, and translation of SQLite errors.

Statements wait for a limited time if another program has locked the file. An SQLite error is raised as an error of this
package whose message says what to do. A file is reported as damaged only if SQLite reports it as malformed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import xxhash

from llama_index_contextual.errors import (
    CorruptVersionError,
    FormatError,
    LedgerBusyError,
    LedgerError,
    ProjectError,
)
from llama_index_contextual.index.kvstore import KV_TABLE, Database, is_busy
from llama_index_contextual.index.storable import has_surrogate

logger = logging.getLogger(__name__)
Row = tuple[Any, ...]

FORMAT_VERSION = 3
_COLLECTION = "data"
PATIENCE_WRITING = 60.0
PATIENCE_READING = 5.0
"""Seconds to wait for a lock of another program. Writing waits longer, because losing an answer costs money."""

TABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "contexts": ("key", "context", "model", "created", "input_tokens", "cached_tokens", "output_tokens"),
        "embeddings": ("key", "vector", "model", "created"),
        "batches": ("file_id", "batch_id", "model", "created"),
        "batch_requests": ("custom_id", "file_id"),
        "batch_replies": ("custom_id", "text", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"),
        "runs": ("run", "receipt"),
        "pages": ("key", "page", "engine", "created"),
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
}
_SQL = {str: "TEXT NOT NULL", bytes: "BLOB NOT NULL", float: "REAL NOT NULL", str | None: "TEXT", int | None: "INTEGER"}
_MAX_COUNT = 2**53

_CANNOT_OPEN = "cannot be opened ({}): allow this user to read and write the file and its folder"
_ADVICE = {
    sqlite3.SQLITE_READONLY: "is read-only ({}): make the file and its folder writable for this user",
    sqlite3.SQLITE_READONLY_ROLLBACK: "has an interrupted write that must be rolled back first ({}): make its folder"
    " writable for this user, then run `verify`; nothing is lost",
    sqlite3.SQLITE_FULL: "cannot be written ({}): free space on its disk, then try again; committed data is kept",
    sqlite3.SQLITE_IOERR: "cannot be read or written ({}): check its disk, its mount, its locks, quotas and limits of"
    " file sizes, then try again; committed data is kept",
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_PERM: _CANNOT_OPEN,
    sqlite3.SQLITE_AUTH: _CANNOT_OPEN,
}
_BUSY = (
    "is locked by another program ({}): wait until it has finished, or close it (a backup, a database browser), then"
    " try again; if no program holds it, its file system cannot lock files: move the project to a local disk"
)


def translate_error(error: sqlite3.Error, name: str) -> ProjectError:
    """Translate an SQLite error into an error of this package whose message says what to do.

    Args:
        error: The error.
        name: Name of the ledger's file.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damage_error(name, str(error))
    if is_busy(error):
        return LedgerBusyError(f"{name} {_BUSY.format(error)}.")
    advice = _ADVICE.get(code) or _ADVICE.get(code & 0xFF) or "cannot be used ({}): check that it is a ledger"
    return LedgerError(f"{name} {advice.format(error)}.")


def damage_error(name: str, why: str) -> CorruptVersionError:
    """Return the error for a damaged ledger."""
    return CorruptVersionError(
        f"{name} is damaged ({why}). `verify --repair` keeps all rows that can still be read; queries still work.",
        file=name,
    )


def row_checksum(table: str, values: Sequence[Any]) -> bytes:
    """Return the xxh3 of a row, computed from the name of its table and all its columns."""
    columns = [len(value) if isinstance(value, bytes) else value for value in values]
    digest = xxhash.xxh3_64(json.dumps([table, *columns]).encode())
    for value in values:
        if isinstance(value, bytes):
            digest.update(value)
    return digest.digest()


def is_sound(table: str, row: Row) -> bool:
    """Return whether the checksum in the last column of a row is correct and its vector, if any, can be used."""
    *values, checksum = row
    return bool(checksum == row_checksum(table, values)) and (table != "embeddings" or is_vector(values[1]))


def is_plausible(table: str, values: Sequence[Any]) -> bool:
    """Return whether values have the types and ranges that a row requires; used to check imported rows."""
    if not all(map(isinstance, values, _TYPES[table])) or not values[0]:
        return False
    if any(isinstance(value, int) and not (type(value) is int and 0 <= value < _MAX_COUNT) for value in values):
        return False
    if any(isinstance(value, str) and has_surrogate(value) for value in values):
        return False
    if table == "embeddings":  # all of them have length 1
        return is_vector(values[1]) and bool(abs(np.linalg.norm(np.frombuffer(values[1], dtype="<f4")) - 1) < 1e-3)
    return True


def is_vector(blob: bytes) -> bool:
    """Return whether bytes represent a vector that an index can use: finite and not zero."""
    if not blob or len(blob) % 4:
        return False
    vector = np.frombuffer(blob, dtype="<f4")
    return bool(np.isfinite(vector).all() and vector.any())


class LedgerFile(Database):
    """SQLite file with the tables of a ledger.

    Args:
        path: The file, which is created if it does not exist; None keeps everything in memory.
        read_only: Do not change the file: a missing or empty file is treated as an empty ledger. An interrupted write
            is still rolled back, because nothing can be read until then.
        identity: Identity for a new ledger; None generates one.

    Raises:
        FormatError: The file was written by a newer release.
        CorruptVersionError: The file is damaged.
        LedgerBusyError: Another program has locked the file.
        LedgerError: The file cannot be opened, read or written.

    Attributes:
        identity: Unique id of this ledger; None while it is being opened.
    """

    def __init__(self, path: Path | None, *, read_only: bool = False, identity: str | None = None) -> None:
        self.identity: str | None = None
        self._name = "The ledger in memory" if path is None else path.name
        self._warned = False
        if read_only and (path is None or not path.exists() or path.stat().st_size == 0):
            path, read_only = None, False
        access, patience = ("inspect", PATIENCE_READING) if read_only else ("durable", PATIENCE_WRITING)
        super().__init__(path, access=access, patience=patience)  # type: ignore[arg-type]
        try:
            if not self._has_format() and not read_only:
                with self.transaction():
                    if not self._has_format():  # another process may have created it meanwhile
                        self._create(identity)
                self._has_format()
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
            raise translate_error(error, self._name) from error

    @contextlib.contextmanager
    def block_writers(self) -> Iterator[None]:
        """Lock the file so that other programs cannot write to it, even if it was opened for reading."""
        self.query("PRAGMA query_only = OFF")
        with self.transaction():
            yield

    # ---- format -----------------------------------------------------------------------------------------------------

    def _has_format(self) -> bool:
        """Read the identity and return True if the file is a ledger; return False if it is new."""
        names = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if foreign := sorted(names - {"kv", *TABLES}):
            raise damage_error(self._name, f"it is not a ledger: it contains the table {foreign[0]!r}")
        try:
            row = self.get("format", _COLLECTION) if "kv" in names else None
            if row is None:
                if any(self.query(f"SELECT 1 FROM {table} LIMIT 1") for table in names - {"kv"}):
                    raise ValueError("it is missing")
                return False
            version = int(row["version"])
            if version > FORMAT_VERSION:
                raise FormatError(
                    f"{self._name} has format {version}, this release reads up to {FORMAT_VERSION}:"
                    f" upgrade llama-index-contextual."
                )
            if row.get("xxh3") != _seal(row):
                raise ValueError("its checksum is wrong")
            if version < FORMAT_VERSION:
                raise FormatError(
                    f"{self._name} has format {version}, this release reads {FORMAT_VERSION}: run `ledger export` with"
                    f" the commit that wrote it, and `ledger import` for a new project."
                )
            if missing := sorted(TABLES.keys() - names):
                raise ValueError(f"its table {missing[0]!r} is missing")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damage_error(self._name, f"its format cannot be read: {error}") from error
        self.identity = row["id"]
        return True

    def _create(self, identity: str | None) -> None:
        """Create the tables and the row with the format; a transaction must be open."""
        execute = self._connection.execute
        execute(KV_TABLE)
        for table, columns in TABLES.items():
            first, *rest = (f"{name} {_SQL[kind]}" for name, kind in zip(columns, _TYPES[table], strict=True))
            key = f"{first.removesuffix(' NOT NULL')} PRIMARY KEY"
            execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join((key, *rest, 'checksum BLOB'))}) WITHOUT ROWID")
        row = {"version": FORMAT_VERSION, "id": identity or uuid.uuid4().hex}
        value = json.dumps(row | {"xxh3": _seal(row)})
        execute("INSERT OR REPLACE INTO kv VALUES (?, 'format', ?)", (_COLLECTION, value))

    # ---- rows -------------------------------------------------------------------------------------------------------

    def rows(self, table: str, clauses: str = "", parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the undamaged rows of a table, without their checksums.

        Args:
            table: Name of the table.
            clauses: WHERE, ORDER BY and LIMIT clauses of the SELECT.
            parameters: Parameters of `clauses`.
        """
        rows = self.query(f"SELECT {_columns(table)} FROM {table} {clauses}", parameters)
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
        """Insert rows with their checksums; a transaction must be open.

        Args:
            table: Name of the table.
            rows: The rows, each with all columns except the checksum.
            replace: Whether to replace a row with the same key.
        """
        marks = ", ".join("?" * (len(TABLES[table]) + 1))
        typed = (tuple(map(_as_stored, _TYPES[table], row)) for row in rows)
        self._connection.executemany(
            f"INSERT OR {'REPLACE' if replace else 'IGNORE'} INTO {table} VALUES ({marks})",
            ((*row, row_checksum(table, row)) for row in typed),
        )

    def damaged_rows(self) -> dict[str, list[str]]:
        """Return the keys of damaged rows by table; tables without any are left out."""
        damaged_keys: dict[str, list[str]] = {}
        with self._lock, self._errors():
            names = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in TABLES.keys() & names:
                select = f"SELECT {_columns(table)} FROM {table}"
                rows = self._wait_for_lock(partial(self._connection.execute, select))
                if keys := [str(row[0]) for row in rows if not is_sound(table, row)]:
                    damaged_keys[table] = keys
        return damaged_keys

    def malformed(self) -> str | None:
        """Return the first problem that SQLite's integrity check finds, or None."""
        answer = str(self.query("PRAGMA integrity_check(1)")[0][0])
        return None if answer == "ok" else answer


def _columns(table: str) -> str:
    return ", ".join((*TABLES[table], "checksum"))


def _as_stored(kind: Any, value: Any) -> Any:
    """Convert a number to the type that SQLite returns, so that the checksum stays the same."""
    if value is None or kind not in (float, int | None):
        return value
    return float(value) if kind is float else int(value)


def _seal(row: Mapping[str, Any]) -> str:
    content = json.dumps({name: value for name, value in row.items() if name != "xxh3"}, sort_keys=True)
    return xxhash.xxh3_64_hexdigest(content.encode())
