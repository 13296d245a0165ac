"""Is a project sound? Every file against its SHA-256, the ledger by SQLite's own check, and what was left behind."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.storage.ledger import LEDGER_FILE
from llama_index_contextual.storage.publish import (
    CURRENT,
    VERSIONS,
    current_name,
    leftovers,
    version_directory,
    version_names,
)
from llama_index_contextual.storage.version import OpenVersion


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
    problems = [*_current(project_dir, names), *_versions(project_dir, names), *_ledger(project_dir)]
    problems += [
        Problem(path.relative_to(project_dir).as_posix(), "was left by an interrupted run", "ingest", harmless=True)
        for path in leftovers(project_dir)
    ]
    return VerifyReport(names, problems)


def _command(project_dir: Path, *words: str) -> str:
    return " ".join(("llama-index-contextual", words[0], project_dir.name, *words[1:]))


def _current(project_dir: Path, names: Sequence[str]) -> Iterator[Problem]:
    newest = names[-1] if names else ""
    try:
        live = current_name(project_dir)
    except CorruptVersionError:
        live = "?"
    if live is None and names:
        yield Problem(CURRENT, "is missing", _command(project_dir, "rollback", f"--to {newest}"))
    elif live is not None and live not in names:
        remedy = _command(project_dir, "rollback", f"--to {newest}") if names else _command(project_dir, "ingest")
        yield Problem(CURRENT, "names no version that is there", remedy)


def _versions(project_dir: Path, names: Sequence[str]) -> Iterator[Problem]:
    sound: list[str] = []
    damaged: list[tuple[str, Exception]] = []
    for name in names:
        try:
            OpenVersion(version_directory(project_dir, name), check="sha256").close()
            sound.append(name)
        except (CorruptVersionError, FormatError) as error:
            damaged.append((name, error))
    for name, found in damaged:
        file = getattr(found, "file", None) or f"{VERSIONS}/{name}"
        remedy = _command(project_dir, "rollback", f"--to {sound[-1]}") if sound else _command(project_dir, "ingest")
        yield Problem(file, str(found).split(". ")[0], remedy)


def _ledger(project_dir: Path) -> Iterator[Problem]:
    path = project_dir / LEDGER_FILE
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            ((answer,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        yield Problem(
            LEDGER_FILE,
            f"is damaged ({answer})",
            _command(project_dir, "ledger", "import", "BACKUP.jsonl") + " after moving the damaged file away",
        )
