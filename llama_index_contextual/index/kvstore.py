"""Connection to an SQLite file, shared by all threads.

A lock protects the connection. It costs little time, because statements are short and SQLite would serialise them
anyway. A published file is opened as read-only and immutable, so that SQLite neither looks for a journal nor writes
anything.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import quote_from_bytes

from llama_index_contextual._utils.files import require_open_files, require_regular
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.errors import NoSpaceError, ReadOnlyVersionError

T = TypeVar("T")

KV_TABLE = (
    "CREATE TABLE IF NOT EXISTS kv (collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (collection, key)) WITHOUT ROWID"
)

Access = Literal["read", "build", "durable", "inspect"]

_PRAGMAS: dict[Access, tuple[str, ...]] = {
    "read": (),
    # A version being built is discarded after a crash, and its files are synced before it is published. Pages are
    # large enough for several chunks, because a chunk that fills three quarters of a page would waste the rest.
    "build": ("PRAGMA page_size = 16384", "PRAGMA journal_mode = MEMORY", "PRAGMA synchronous = OFF"),
    # A rollback journal is used because SQLite before 3.51.3 can lose commits in WAL mode if there are two connections.
    # EXTRA is used because FULL does not sync the removal of the journal. After a power cut, the journal could
    # therefore reappear and undo the last commit. The last setting has an effect on macOS only; see `files.py`.
    "durable": (
        *("PRAGMA busy_timeout = 1000", "PRAGMA journal_mode = DELETE", "PRAGMA synchronous = EXTRA"),
        "PRAGMA fullfsync = ON",
    ),
    "inspect": ("PRAGMA busy_timeout = 1000", "PRAGMA query_only = ON"),
}


_CANNOT_WRITE = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_TRUNCATE)


class Database:
    """An SQLite database, in a file or in memory, with a table of JSON objects in addition to other tables.

    Args:
        path: The file, or None for a database in memory.
        access: `read` for a published file, `build` for a file that is discarded after a crash, `durable` for a file
            whose commits must survive a power cut, or `inspect` for reading a durable file. With `inspect`, SQLite may
            still roll back an interrupted write.
        patience: Seconds to wait if another program has locked the file.
    """

    def __init__(self, path: Path | None = None, *, access: Access = "build", patience: float = 0.0) -> None:
        self.path = path
        self.access = access
        self.patience = patience
        self._lock = Lock(delays_fork=True)  # SQLite has locks of its own
        # A forked child opens the file again; a database in memory is copied by the fork.
        self._opened: dict[int, sqlite3.Connection] = {}
        with self._lock, self._errors():
            self._wait_for_lock(lambda: self._connection)
        if access == "build":
            self.execute(KV_TABLE)

    def _open(self) -> sqlite3.Connection:
        """Open the file, which is closed when this object is garbage-collected."""
        connection = _connect(self.path, self.access)
        # A connection is part of a reference cycle (its statement cache). Without a finalizer, the connection and its
        # file would stay open until the next garbage collection, even if the version has been removed.
        weakref.finalize(self, _close_connection, connection, os.getpid())
        return connection

    @property
    def _connection(self) -> sqlite3.Connection:
        process = 0 if self.path is None else os.getpid()
        if process not in self._opened:
            self._opened[process] = self._open()
        return self._opened[process]

    def _errors(self) -> AbstractContextManager[None]:
        """Return a context manager that translates SQLite errors that the user can resolve."""
        return _needs_space(self.path)

    def _wait_for_lock(self, work: Callable[[], T]) -> T:
        until = time.monotonic() + self.patience
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() >= until:
                    raise
                time.sleep(0.02)  # SQLite has usually waited already, but sometimes it fails immediately

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a SELECT."""
        with self._lock, self._errors():
            return self._wait_for_lock(lambda: self._connection.execute(sql, parameters).fetchall())

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement in its own transaction and return the number of rows that it changed."""
        with self.transaction() as connection:
            return connection.execute(sql, parameters).rowcount

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for several statements that are committed together or not at all.

        Only BEGIN and COMMIT are repeated while another program has locked the file.
        """
        if self.access == "read":
            refuse_write()
        with self._lock, self._errors():
            self._wait_for_lock(lambda: self._connection.execute("BEGIN IMMEDIATE"))
            try:
                yield self._connection
                self._wait_for_lock(lambda: self._connection.execute("COMMIT"))
            except BaseException:
                # If this fails, SQLite rolls back when the file is opened again.
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection; the database cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def put(self, key: str, val: dict[str, Any], collection: str) -> None:
        """Store a JSON object under a key in a collection, replacing any object with the same key."""
        value = json.dumps(val, ensure_ascii=False)
        self.execute("INSERT OR REPLACE INTO kv VALUES (?, ?, ?)", (collection, key, value))

    def get(self, key: str, collection: str) -> dict[str, Any] | None:
        """Return the JSON object with this key in a collection, or None if there is none."""
        rows = self.query("SELECT value FROM kv WHERE collection = ? AND key = ?", (collection, key))
        return json.loads(rows[0][0]) if rows else None


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether an SQLite error means that another program has locked the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _needs_space(path: Path | None) -> Iterator[None]:
    """Convert an SQLite error within the context to NoSpaceError if SQLite could not write to the file.

    SQLite does not report whether the cause is a disk quota, a file size limit or something else.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF == sqlite3.SQLITE_CANTOPEN:
            require_open_files()
        if code not in (sqlite3.SQLITE_FULL, *_CANNOT_WRITE):
            raise
        reason = f"its disk is full, or a quota or a limit of file sizes (`ulimit -f`) is reached ({error})"
        raise NoSpaceError(str(path), reason) from error


def refuse_write() -> NoReturn:
    """Raise ReadOnlyVersionError."""
    raise ReadOnlyVersionError(
        "A published version does not change: use `project.ingest([...])` or `project.remove([...])`, which publish a"
        " new one. To change a copy in LlamaIndex's own stores (SimpleDocumentStore, FaissVectorStore), use"
        " `project.storage_context.to_stock()`."
    )


_INHERITED: list[sqlite3.Connection] = []
_closing = Lock(delays_fork=True)


def _close_connection(connection: sqlite3.Connection, process: int) -> None:
    """Close a connection, unless this is a forked child of the process that opened it."""
    if process == os.getpid():
        with _closing:
            connection.close()
    else:
        _INHERITED.append(connection)  # so that it is not closed by the garbage collector either


def _require_regular(path: Path) -> None:
    """Check that a file, if it exists, is a regular file, because SQLite would take a pipe for an empty database."""
    try:
        require_regular(path, path.stat())
    except FileNotFoundError:
        return
    except OSError as error:
        damage = sqlite3.DatabaseError(error.strerror)
        damage.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise damage from error


def sqlite_uri(path: PurePath) -> str:
    """Return the URI with which SQLite opens a file, whose path must be absolute.

    For a file on a network share, `Path.as_uri` returns "file://server/…", but SQLite refuses names of servers.
    """
    name = path.as_posix()
    return f"file://{'' if name.startswith('/') else '/'}{quote_from_bytes(os.fsencode(name), safe='/:')}"


def _connect(path: Path | None, access: Access) -> sqlite3.Connection:
    mode = {"read": "?mode=ro&immutable=1", "inspect": "?mode=rw"}.get(access, "")
    if path is not None:
        _require_regular(path)
    name = ":memory:" if path is None else f"{sqlite_uri(path.resolve())}{mode}"
    connection = sqlite3.connect(name, uri=path is not None, check_same_thread=False, isolation_level=None)
    try:
        for pragma in _PRAGMAS[access]:
            connection.execute(pragma)
    except sqlite3.Error:
        connection.close()  # a file that is not a database is only detected here
        raise
    return connection
