"""Check a project: every file against its SHA-256, the ledger as a whole and row by row, and what was left behind.

A ledger is repaired only where SQLite itself, with an interrupted write undone and the file locked, calls it malformed,
or where a row has another checksum. Whatever keeps it from being checked is reported as what it is.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import CorruptVersionError, FormatError, LedgerError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.check import read_manifest
from llama_index_contextual.storage.current import (
    CURRENT,
    NEW,
    VERSIONS,
    current_name,
    leftovers,
    live_if_sound,
    remove_version,
    version_directory,
    version_names,
)
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.ledger_lines import salvage
from llama_index_contextual.storage.project_file import ledger_identity, record_ledger, write_lock
from llama_index_contextual.storage.version import OpenVersion

DAMAGED = ".damaged"
LEFT_BEHIND = "was left by an interrupted run"

_JOURNAL = "-journal"
_SHOWN, _SHOWN_KEY = 5, 12
_ROWS = {
    "contexts": "context",
    "embeddings": "embedding",
    "batches": "batch",
    "batch_requests": "request of a batch",
    "batch_replies": "reply of a batch",
}
_UPGRADE = "pip install --upgrade llama-index-contextual"


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was written.

    Attributes:
        file: The file, relative to the project.
        message: What is wrong.
        remedy: The command that mends it.
        harmless: Whether queries are answered all the same.
    """

    file: str
    message: str
    remedy: str
    harmless: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """What a check of a project found.

    Attributes:
        versions: Names of the versions that were checked, oldest first.
        problems: What is wrong; empty in a sound project.
    """

    versions: Sequence[str]
    problems: Sequence[Problem]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged; what was left behind by an interrupted writer is no damage."""
        return all(problem.harmless for problem in self.problems)


def verify_project(project_dir: Path) -> VerifyReport:
    """Check every version and the ledger of a project.

    Args:
        project_dir: The project.
    """
    names = version_names(project_dir)
    damage = _damaged_versions(project_dir, names)
    sound = [name for name in names if name not in damage]
    problems = [
        *_current(project_dir, sound),
        *_versions(project_dir, sound, damage),
        *_ledger(project_dir),
        *_left_behind(project_dir),
    ]
    return VerifyReport(names, sorted(problems, key=lambda problem: problem.harmless))


def repair_project(project_dir: Path) -> VerifyReport:
    """Remove what is damaged and not live, keep what can be read of a damaged ledger, and check the project again.

    The live version is left as it is: `rollback`, or `ingest` with `replace`, mends that.

    Raises:
        ProjectLockedError: Another process is writing.
        FormatError: A newer release wrote the ledger.
        LedgerError: The ledger cannot be checked, so it is left as it is.
    """
    with write_lock(project_dir):
        names = version_names(project_dir)
        live = live_if_sound(project_dir)
        for name, found in _damaged_versions(project_dir, names).items():
            if live not in (None, name) and not isinstance(found, FormatError):
                remove_version(project_dir, name)
        _repair_ledger(project_dir)
    return verify_project(project_dir)


def _repair_ledger(project_dir: Path) -> None:
    path, recorded = project_dir / LEDGER_FILE, ledger_identity(project_dir)
    if _is_missing(path):
        if _expects_ledger(project_dir, recorded):
            with closing(Ledger(path)) as ledger:
                record_ledger(project_dir, ledger.identity)
        return
    journal, kept = path.with_name(f"{path.name}{_JOURNAL}"), path.with_name(f"{path.name}{_JOURNAL}{NEW}")
    try:
        if journal.exists():
            files.copy(journal, kept)  # SQLite removes it when it has undone what it says
        try:
            _mend_ledger(path, kept, recorded)
        finally:
            files.remove(kept)
    except OSError as error:
        raise LedgerError(
            f"{path.name} could not be repaired ({error.strerror or error}): see that its folder can be written and its"
            f" disk has room for a copy, then try again; it is left as it is."
        ) from error


def _mend_ledger(path: Path, journal: Path, recorded: str | None) -> None:
    state = _check_ledger(path, locked=True)
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
    """Put a copy of a damaged ledger aside, and a new one with what can be read of it in its place, in one step."""
    damaged = _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}"))
    files.copy(path, damaged)
    if journal.exists():
        files.rename(journal, damaged.with_name(f"{damaged.name}{_JOURNAL}"))
    new = path.with_name(f"{path.name}{NEW}")
    with closing(Ledger(new, identity=identity)) as ledger:
        salvage(path, ledger)
    if (stale := path.with_name(f"{path.name}{_JOURNAL}")).exists():
        files.remove(stale)  # it must not be undone in the new file
    files.rename(new, path)


def damaged_ledgers(project_dir: Path) -> list[Path]:
    """Return the damaged ledgers that a repair has put aside, and their journals."""
    return sorted(project_dir.glob(f"{LEDGER_FILE}{DAMAGED}*"))


def _free_name(path: Path) -> Path:
    """Return `path`, or the same with a number behind: what was put aside before may still be of use."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return path if not path.exists() else next(name for name in numbered if not name.exists())


def _command(project_dir: Path, *words: str) -> str:
    # With the root folder, which need not be the one that the command takes by itself.
    name, root = shlex.quote(project_dir.name), shlex.quote(str(project_dir.parent))
    return " ".join(("llama-index-contextual", words[0], name, *words[1:], "--root", root))


def _current(project_dir: Path, sound: Sequence[str]) -> Iterator[Problem]:
    again = _command(project_dir, "ingest", "PATHS", "--replace")
    remedy = _command(project_dir, "rollback", f"--to {sound[-1]}") if sound else again
    try:
        live = current_name(project_dir)
    except CorruptVersionError as error:
        yield Problem(CURRENT, _what(error, CURRENT), remedy)
        return
    if live is not None and not version_directory(project_dir, live).is_dir():
        yield Problem(CURRENT, f"names {live}, which is not there", remedy)


def _damaged_versions(project_dir: Path, names: Sequence[str]) -> dict[str, Exception]:
    damage: dict[str, Exception] = {}
    for name in names:
        directory = version_directory(project_dir, name)
        try:
            OpenVersion(directory, check="sha256").close()
        except (CorruptVersionError, FormatError, OSError) as error:
            # A writer may have removed an old version meanwhile.
            if directory.is_dir() or name == live_if_sound(project_dir):
                damage[name] = error
    return damage


def _versions(project_dir: Path, sound: Sequence[str], damage: Mapping[str, Exception]) -> Iterator[Problem]:
    live = live_if_sound(project_dir)
    for name, found in damage.items():
        file = getattr(found, "file", None) or f"{VERSIONS}/{name}"
        if isinstance(found, FormatError):
            yield Problem(file, _what(found, file), _UPGRADE, harmless=live not in (None, name))
        elif live not in (None, name):
            yield Problem(file, _what(found, file), _command(project_dir, "verify", "--repair"), harmless=True)
        elif sound:
            yield Problem(file, _what(found, file), _command(project_dir, "rollback", f"--to {sound[-1]}"))
        else:
            yield Problem(file, _what(found, file), _command(project_dir, "ingest", "PATHS", "--replace"))


def _what(error: Exception, file: str) -> str:
    return str(error).split(". ")[0].removeprefix(f"{file} ").removesuffix(".")


@dataclass(frozen=True, kw_only=True)
class _LedgerState:
    malformed: str | None = None
    damaged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    identity: str | None = None


def _check_ledger(path: Path, *, locked: bool = False) -> _LedgerState:
    """Return what is wrong with a ledger, after SQLite has undone a write that was interrupted.

    Args:
        path: The file.
        locked: Keep other programs from writing meanwhile.

    Raises:
        FormatError: A newer release wrote it.
        LedgerError: It cannot be checked.
    """
    try:
        with closing(Ledger(path, read_only=True)) as ledger, ledger.held() if locked else nullcontext():
            if malformed := ledger.damage():
                return _LedgerState(malformed=malformed, identity=ledger.identity)
            return _LedgerState(damaged=ledger.damaged_rows(), identity=ledger.identity)
    except CorruptVersionError as error:
        return _LedgerState(malformed=_what(error, LEDGER_FILE).removeprefix("is damaged (").removesuffix(")"))


def _ledger(project_dir: Path) -> Iterator[Problem]:
    path, recorded = project_dir / LEDGER_FILE, ledger_identity(project_dir)
    repair = _command(project_dir, "verify", "--repair")
    restore = "restore it from a backup, or begin a new one, for which contexts are asked and paid for again"
    if _is_missing(path):
        if _expects_ledger(project_dir, recorded):
            what = "is empty" if path.exists() else "is missing"
            yield Problem(LEDGER_FILE, f"{what}: {restore}", repair)
        return
    try:
        state = _check_ledger(path)
    except FormatError as error:
        yield Problem(LEDGER_FILE, _what(error, LEDGER_FILE), _UPGRADE)
        return
    except LedgerError as error:
        message = f"could not be checked: it {_what(error, LEDGER_FILE)}"
        yield Problem(LEDGER_FILE, message, _command(project_dir, "verify"))
        return
    if state.malformed is not None:
        yield Problem(LEDGER_FILE, f"is damaged ({state.malformed})", repair)
        return
    if state.damaged:
        rows = "; ".join(
            f"{pluralize(len(keys), name)}: {', '.join(key[:_SHOWN_KEY] for key in keys[:_SHOWN])}"
            f"{', …' if len(keys) > _SHOWN else ''}"
            for table, keys in sorted(state.damaged.items())
            for name in (_ROWS[table],)
        )
        yield Problem(LEDGER_FILE, f"has damaged rows, which are not used and will be asked for again ({rows})", repair)
    if recorded is not None and state.identity != recorded:
        message = "is not the ledger that this project had: restore that from a backup, or take this one as it is"
        yield Problem(LEDGER_FILE, message, repair)


def _is_missing(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _expects_ledger(project_dir: Path, recorded: str | None) -> bool:
    """Return whether a project has had a ledger: it is recorded, or an LLM wrote the contexts that answer."""
    if recorded is not None:
        return True
    name = live_if_sound(project_dir)
    try:
        return name is not None and read_manifest(version_directory(project_dir, name)).config.get("context") == "llm"
    except (CorruptVersionError, FormatError):
        return False


def _left_behind(project_dir: Path) -> Iterator[Problem]:
    for path in leftovers(project_dir):
        yield Problem(
            path.relative_to(project_dir).as_posix(),
            LEFT_BEHIND,
            _command(project_dir, "verify", "--repair"),
            harmless=True,
        )
