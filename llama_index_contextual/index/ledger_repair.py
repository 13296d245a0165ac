"""Check and repair the file of a ledger.

A ledger is repaired only if the checksum of a row is wrong, or if SQLite finds the file malformed after it has rolled
back an interrupted write. It is then replaced by a new file with all rows that can still be read.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from llama_index_contextual.errors import CorruptVersionError, FormatError, LedgerError
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, TABLES, Ledger, Row, is_sound
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.versions import live_if_sound, version_directory

DAMAGED = ".damaged"
_RANGES = ("", *(f"{byte:02x}" for byte in range(256)), "g")
"""Bounds of the key ranges used to read a damaged table; most keys are hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """Condition of the file of a ledger.

    Attributes:
        malformed: Problem that SQLite reports for the file, or None.
        damaged: Keys of the rows with a wrong checksum, by table.
    """

    malformed: str | None = None
    damaged: Mapping[str, Sequence[str]] = field(default_factory=dict)


def check_ledger(path: Path) -> LedgerState:
    """Check a ledger, after SQLite has rolled back an interrupted write.

    Raises:
        FormatError: The file was written by another release.
        LedgerError: The file cannot be checked.
    """
    try:
        with closing(Ledger(path, read_only=True)) as ledger:
            if malformed := ledger.malformed():
                return LedgerState(malformed=malformed)
            return LedgerState(damaged=ledger.damaged_rows())
    except CorruptVersionError as error:
        fault = error.problem.split(". ")[0].removesuffix(".")
        return LedgerState(malformed=fault.removeprefix(f"{LEDGER_FILE} is damaged (").removesuffix(")"))


def repair_ledger(project_dir: Path) -> None:
    """Replace a damaged ledger by a new one with its undamaged rows; create a new ledger if it is missing.

    Raises:
        FormatError: The ledger was written by another release.
        LedgerError: The ledger cannot be checked, so it was not changed.
    """
    path = project_dir / LEDGER_FILE
    if is_missing(path):
        if expects_ledger(project_dir):
            Ledger(path).close()
        return
    if check_ledger(path) == LedgerState():
        return
    new = path.with_name(f"{path.name}{files.NEW}")
    try:
        files.copy(path, _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}")))
        with closing(Ledger(new)) as ledger:
            salvage(path, ledger)
        files.remove(path.with_name(f"{path.name}-journal"))  # otherwise SQLite would apply it to the new file
        files.rename(new, path)
    except OSError as error:
        raise LedgerError(
            f"{path.name} could not be repaired ({error.strerror or error}): make its folder writable and make room for"
            f" a copy on its disk, then try again; the ledger was not changed."
        ) from error


def salvage(damaged: Path, ledger: Ledger) -> None:
    """Copy all rows that can still be read from a damaged ledger to a new one.

    Args:
        damaged: The damaged file, which is only read.
        ledger: The new ledger.
    """
    with ledger.transaction():
        for table in ("contexts", "embeddings", "batch_replies", "batches", "runs", "pages"):
            ledger.insert(table, _readable(damaged, table), replace=False)
        # Without its batch, a request would be neither answered nor sent again.
        batches = {batch.file_id for batch in ledger.batches.open_batches()}
        requests = (row for row in _readable(damaged, "batch_requests") if row[1] in batches)
        ledger.insert("batch_requests", requests, replace=False)


def _readable(damaged: Path, table: str) -> Iterator[Row]:
    """Yield the undamaged rows of a table that can be read; some may be repeated.

    Rows after a damaged page are read backwards from the end, and rows between damaged pages by key range.
    """
    key = TABLES[table][0]
    with suppress(sqlite3.DatabaseError):
        yield from _select(damaged, table, f"ORDER BY {key}")
        return
    for first, last in zip(_RANGES, (*_RANGES[1:], "\U0010ffff"), strict=True):
        for order in ("ASC", "DESC"):
            with suppress(sqlite3.DatabaseError):
                yield from _select(
                    damaged, table, f"WHERE {key} >= '{first}' AND {key} < '{last}' ORDER BY {key} {order}"
                )
                break


def _select(damaged: Path, table: str, rest: str) -> Iterator[Row]:
    # Not mode=ro, because nothing can be read until an interrupted write is rolled back.
    uri = f"{damaged.resolve().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True)) as source:
        source.execute("PRAGMA query_only = ON")
        source.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        for row in source.execute(f"SELECT * FROM {table} {rest}"):
            if is_sound(table, row):
                yield row[: len(TABLES[table])]


def damaged_ledgers(project_dir: Path) -> list[Path]:
    """Return the copies of damaged ledgers that were kept by repairs, and their journals."""
    return sorted(project_dir.glob(f"{LEDGER_FILE}{DAMAGED}*"))


def _free_name(path: Path) -> Path:
    """Return `path`, or, if it exists, the same path with a number appended."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return path if not path.exists() else next(name for name in numbered if not name.exists())


def is_missing(path: Path) -> bool:
    """Return whether there is no ledger, or an empty file."""
    return not path.exists() or path.stat().st_size == 0


def expects_ledger(project_dir: Path) -> bool:
    """Return whether a project must have a ledger, because the live version has contexts from an LLM."""
    name = live_if_sound(project_dir)
    try:
        return name is not None and read_manifest(version_directory(project_dir, name)).config.get("context") == "llm"
    except (CorruptVersionError, FormatError):
        return False
