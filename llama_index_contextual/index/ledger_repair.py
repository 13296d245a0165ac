"""Check and repair the file of a ledger.

A ledger is repaired only if the checksum of a row is wrong, or if SQLite finds the locked file malformed after it has
rolled back an interrupted write. It is then replaced by a new file with all rows that can still be read.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from llama_index_contextual.errors import CorruptVersionError, FormatError, LedgerError
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.ledger_file import TABLES, Row, is_sound
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.project_file import ledger_identity, record_ledger
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
        identity: Identity of the ledger, if it can be read.
    """

    malformed: str | None = None
    damaged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    identity: str | None = None


def check_ledger(path: Path, *, locked: bool = False) -> LedgerState:
    """Check a ledger, after SQLite has rolled back an interrupted write.

    Args:
        path: The file.
        locked: Whether to prevent writing to the file during the check.

    Raises:
        FormatError: The file was written by a newer release.
        LedgerError: The file cannot be checked.
    """
    try:
        with closing(Ledger(path, read_only=True)) as ledger, ledger.block_writers() if locked else nullcontext():
            if malformed := ledger.malformed():
                return LedgerState(malformed=malformed, identity=ledger.identity)
            return LedgerState(damaged=ledger.damaged_rows(), identity=ledger.identity)
    except CorruptVersionError as error:
        fault = str(getattr(error, "problem", error)).split(". ")[0].removesuffix(".")
        return LedgerState(malformed=fault.removeprefix(f"{LEDGER_FILE} is damaged (").removesuffix(")"))


def repair_ledger(project_dir: Path) -> None:
    """Replace a damaged ledger by a new one with its undamaged rows; create a new ledger if the file is missing.

    Raises:
        FormatError: The ledger was written by a newer release.
        LedgerError: The ledger cannot be checked, so it was not changed.
    """
    path, recorded = project_dir / LEDGER_FILE, ledger_identity(project_dir)
    if is_missing(path):
        if expects_ledger(project_dir, recorded):
            with closing(Ledger(path)) as ledger:
                record_ledger(project_dir, ledger.identity)
        return
    state = check_ledger(path, locked=True)
    if state.malformed is None and not state.damaged:
        if recorded is not None and state.identity not in (None, recorded):
            record_ledger(project_dir, state.identity)
        return
    try:
        _start_anew(path, recorded or state.identity)
    except OSError as error:
        raise LedgerError(
            f"{path.name} could not be repaired ({error.strerror or error}): make its folder writable and make room for"
            f" a copy on its disk, then try again; the ledger was not changed."
        ) from error


def _start_anew(path: Path, identity: str | None) -> None:
    """Keep a copy of a damaged ledger, and replace it by a new one with all rows that can still be read."""
    files.copy(path, _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}")))
    new = path.with_name(f"{path.name}{files.NEW}")
    with closing(Ledger(new, identity=identity)) as ledger:
        salvage(path, ledger)
    files.remove(path.with_name(f"{path.name}-journal"))  # otherwise SQLite would apply it to the new file
    files.rename(new, path)


def salvage(damaged: Path, ledger: Ledger) -> None:
    """Copy all rows that can still be read from a damaged ledger to a new one.

    Args:
        damaged: The damaged file, which is only read.
        ledger: The new ledger.
    """
    for table in ("contexts", "embeddings", "batch_replies", "batches", "runs", "pages"):
        ledger.restore(table, _readable(damaged, table))
    # Without its batch, a request would be neither answered nor sent again.
    batches = {batch.file_id for batch in ledger.batches.open_batches()}
    ledger.restore("batch_requests", (row for row in _readable(damaged, "batch_requests") if row[1] in batches))


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


def expects_ledger(project_dir: Path, recorded: str | None) -> bool:
    """Return whether a project must have a ledger: its identity is recorded, or the live version has LLM contexts."""
    if recorded is not None:
        return True
    name = live_if_sound(project_dir)
    try:
        return name is not None and read_manifest(version_directory(project_dir, name)).config.get("context") == "llm"
    except (CorruptVersionError, FormatError):
        return False
