"""Check and repair of the file of a ledger.

A ledger is repaired only if a checksum of a row is wrong, or if SQLite finds the file malformed after it has rolled
back an interrupted write, with the file locked.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from llama_index_contextual.errors import CorruptVersionError, FormatError, LedgerError
from llama_index_contextual.index import files
from llama_index_contextual.index.check import read_manifest
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.ledger_lines import salvage
from llama_index_contextual.index.project_file import ledger_identity, record_ledger
from llama_index_contextual.index.versions import live_if_sound, version_directory

DAMAGED = ".damaged"

_JOURNAL = "-journal"


@dataclass(frozen=True, kw_only=True)
class LedgerState:
    """Condition of the file of a ledger.

    Attributes:
        malformed: What SQLite finds wrong with the file, or None.
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
        locked: Whether to lock the file against writing during the check.

    Raises:
        FormatError: The file was written by a newer release.
        LedgerError: The file cannot be checked.
    """
    try:
        with closing(Ledger(path, read_only=True)) as ledger, ledger.block_writers() if locked else nullcontext():
            if malformed := ledger.damage():
                return LedgerState(malformed=malformed, identity=ledger.identity)
            return LedgerState(damaged=ledger.damaged_rows(), identity=ledger.identity)
    except CorruptVersionError as error:
        fault = str(getattr(error, "problem", error)).split(". ")[0].removesuffix(".")
        return LedgerState(malformed=fault.removeprefix(f"{LEDGER_FILE} is damaged (").removesuffix(")"))


def repair_ledger(project_dir: Path) -> None:
    """Remove damaged rows, or replace a malformed file by a new one; begin a new ledger if that of a project is gone.

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
    journal, journal_copy = (
        path.with_name(f"{path.name}{_JOURNAL}"),
        path.with_name(f"{path.name}{_JOURNAL}{files.NEW}"),
    )
    try:
        if journal.exists():
            files.copy(journal, journal_copy)  # SQLite removes the journal when it has rolled back
        try:
            _mend_ledger(path, journal_copy, recorded)
        finally:
            files.remove(journal_copy)
    except OSError as error:
        raise LedgerError(
            f"{path.name} could not be repaired ({error.strerror or error}): make its folder writable and make room for"
            f" a copy on its disk, then try again; the ledger was not changed."
        ) from error


def _mend_ledger(path: Path, journal: Path, recorded: str | None) -> None:
    state = check_ledger(path, locked=True)
    if state.malformed is None and state.damaged:
        with closing(Ledger(path)) as ledger:
            is_mended = ledger.remove_damaged_rows()
    else:
        is_mended = state.malformed is None
    if not is_mended:
        _start_anew(path, journal, recorded or state.identity)
    elif recorded is not None and state.identity not in (None, recorded):
        record_ledger(path.parent, state.identity)


def _start_anew(path: Path, journal: Path, identity: str | None) -> None:
    """Keep a copy of a damaged ledger, and replace it by a new one with all rows that can still be read."""
    damaged = _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}"))
    files.copy(path, damaged)
    if journal.exists():
        files.rename(journal, damaged.with_name(f"{damaged.name}{_JOURNAL}"))
    new = path.with_name(f"{path.name}{files.NEW}")
    with closing(Ledger(new, identity=identity)) as ledger:
        salvage(path, ledger)
    if (stale := path.with_name(f"{path.name}{_JOURNAL}")).exists():
        files.remove(stale)  # otherwise SQLite would apply it to the new file
    files.rename(new, path)


def damaged_ledgers(project_dir: Path) -> list[Path]:
    """Return the damaged ledgers that repairs have kept, and their journals."""
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
