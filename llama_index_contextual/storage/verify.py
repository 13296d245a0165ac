"""Is a project sound? Every file against its SHA-256, the ledger by SQLite's own check, and what was left behind."""

from __future__ import annotations

import itertools
import shlex
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.current import (
    CURRENT,
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
from llama_index_contextual.storage.project_file import write_lock
from llama_index_contextual.storage.version import OpenVersion

DAMAGED = ".damaged"
LEFT_BEHIND = "was left by an interrupted run"

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
    """
    with write_lock(project_dir):
        names = version_names(project_dir)
        live = live_if_sound(project_dir)
        for name, found in _damaged_versions(project_dir, names).items():
            if live not in (None, name) and not isinstance(found, FormatError):
                remove_version(project_dir, name)
        path = project_dir / LEDGER_FILE
        if path.exists() and _damage_of_ledger(path):
            damaged = _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}"))
            files.rename(path, damaged)
            with closing(Ledger(path)) as ledger:
                salvage(damaged, ledger)
    return verify_project(project_dir)


def damaged_ledgers(project_dir: Path) -> list[Path]:
    """Return the damaged ledgers that a repair has put aside."""
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
    return str(error).split(". ")[0].removeprefix(f"{file} ")


def _ledger(project_dir: Path) -> Iterator[Problem]:
    path = project_dir / LEDGER_FILE
    if not path.exists():
        return
    try:
        if damage := _damage_of_ledger(path):
            yield Problem(LEDGER_FILE, f"is damaged ({damage})", _command(project_dir, "verify", "--repair"))
    except FormatError as error:
        yield Problem(LEDGER_FILE, _what(error, LEDGER_FILE), _UPGRADE)


def _damage_of_ledger(path: Path) -> str | None:
    """Return what is wrong with a ledger, or None.

    Raises:
        FormatError: A newer release wrote it.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            answer = str(connection.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if answer == "ok":
            with closing(Ledger(path)) as ledger:
                ledger.info()
    except CorruptVersionError as error:
        return _what(error, LEDGER_FILE)
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if answer == "ok" else answer


def _left_behind(project_dir: Path) -> Iterator[Problem]:
    for path in leftovers(project_dir):
        yield Problem(
            path.relative_to(project_dir).as_posix(),
            LEFT_BEHIND,
            _command(project_dir, "verify", "--repair"),
            harmless=True,
        )
