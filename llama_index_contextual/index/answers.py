"""Cache of model answers on disk, in one SQLite file that can be discarded at any time.

The file has a rollback journal and is opened anew for each operation, so that several processes can use it. Problems
with the file are logged instead of raised: a damaged file is discarded, and a file that cannot be used is left
unchanged. Only `clear` raises an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import xxhash

from llama_index_contextual.index import files
from llama_index_contextual.index.kvstore import Database

logger = logging.getLogger(__name__)
T = TypeVar("T")

ANSWERS_FILE = "answers.sqlite"

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, answer BLOB NOT NULL,"
    " checksum BLOB NOT NULL, form TEXT NOT NULL, question TEXT NOT NULL)"
)
_PATIENCE = 2.0
_MAX_BYTES = 64_000
_MAX_QUESTIONS = 3
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class _DamageError(Exception):
    """A row has changed since it was written."""


class AnswerFile:
    """Store for model answers, identified by keys. If there are too many answers, the oldest are removed.

    Args:
        path: The file. It is created when the first answer is stored, and only its owner can read it.
        max_entries: Maximum number of answers. Answers of more than 64,000 bytes are not stored.
    """

    def __init__(self, path: Path, *, max_entries: int = 1000) -> None:
        self.path = path
        self._max_entries = max_entries

    def __len__(self) -> int:
        count = "SELECT count(*) FROM answers"
        return self._attempt(lambda file: int(file.query(count)[0][0]), 0) if self.path.exists() else 0

    def get(self, key: str) -> bytes | None:
        """Return the answer stored under a key, or None if there is none."""

        def read(file: Database) -> bytes | None:
            for answer, checksum in file.query("SELECT answer, checksum FROM answers WHERE key = ?", (key,)):
                if checksum != _checksum(key, answer):
                    raise _DamageError("a checksum is wrong")
                return bytes(answer)
            return None

        return self._attempt(read, None) if self.path.exists() else None

    def questions(self, form: str) -> list[str]:
        """Return the questions of a form to which answers are stored, the most recent first; at most three."""
        query = (
            "SELECT question FROM answers WHERE form = ? AND typeof(question) = 'text'"
            f" GROUP BY question ORDER BY max(number) DESC LIMIT {_MAX_QUESTIONS}"
        )
        if not self.path.exists():
            return []
        return self._attempt(lambda file: [question for (question,) in file.query(query, (form,))], [])

    def put(
        self,
        key: str,
        answer: bytes,
        *,
        form: str = "",
        question: str = "",
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Store an answer.

        Args:
            key: Key of the answer.
            answer: The answer.
            form: Key that the question shares with its other spellings.
            question: The question.
            is_current: Function that returns whether the answer may still be stored; it is called while no other
                process can `clear` the file.
        """

        def write(file: Database) -> None:
            with file.transaction() as connection:
                if not is_current():
                    return
                row = (key, answer, _checksum(key, answer), form, question)
                columns = "key, answer, checksum, form, question"
                connection.execute(f"INSERT OR REPLACE INTO answers ({columns}) VALUES (?, ?, ?, ?, ?)", row)
                connection.execute(
                    "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?", (self._max_entries,)
                )

        if len(answer) <= _MAX_BYTES:
            self._attempt(write, None)

    def clear(self) -> None:
        """Remove all answers, and overwrite their text in the file.

        Raises:
            OSError: The file cannot be removed.
        """
        if not self.path.exists():
            return
        try:
            with self._open() as file:
                file.execute("DELETE FROM answers")
        except (sqlite3.Error, OSError):
            self._discard()

    @contextlib.contextmanager
    def _open(self) -> Iterator[Database]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(descriptor)
        with contextlib.closing(Database(self.path, access="durable", patience=_PATIENCE)) as file:
            file.query("PRAGMA secure_delete = ON")
            file.execute(_TABLE)
            yield file

    def _attempt(self, work: Callable[[Database], T], otherwise: T) -> T:
        try:
            with self._open() as file:
                return work(file)
        except (sqlite3.Error, _DamageError) as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if code in _DAMAGED:
                logger.warning("%s is damaged (%s) and was discarded: its answers are asked again.", self.path, error)
                with contextlib.suppress(OSError):
                    self._discard()
            else:
                logger.warning("%s cannot be used (%s): answers are neither read from it nor kept.", self.path, error)
        except OSError as error:
            logger.warning("%s cannot be used (%s): answers are neither read from it nor kept.", self.path, error)
        return otherwise

    def _discard(self) -> None:
        for name in (f"{self.path.name}-journal", self.path.name):
            files.remove(self.path.with_name(name))


def _checksum(key: str, answer: bytes) -> bytes:
    return xxhash.xxh3_64(key.encode() + answer).digest()
