"""Check and repair a project: the files of its versions, its ledger, and leftovers of interrupted runs.

Files are compared with their SHA-256; the ledger is checked by SQLite and row by row. A ledger is repaired only if a
checksum of a row is wrong, or if SQLite finds the file malformed after it has rolled back an interrupted write, with
the file locked. Anything that prevents the check is reported as such.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import (
    BackendError,
    CorruptVersionError,
    FormatError,
    LedgerError,
    ProjectError,
    ProjectNotFoundError,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.check import is_damage, part_directory, read_manifest
from llama_index_contextual.index.current import (
    CURRENT,
    VERSIONS,
    current_name,
    leftovers,
    live_if_sound,
    remove_unused_parts,
    remove_version,
    version_directory,
    version_names,
)
from llama_index_contextual.index.engine import COLLECTION_FILE
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.ledger_lines import salvage
from llama_index_contextual.index.manifest import PARTS, PartEntry
from llama_index_contextual.index.project_file import (
    PROJECT_FILE,
    ledger_identity,
    read_config,
    record_ledger,
    write_lock,
)
from llama_index_contextual.index.remote_check import damaged_chunks, drop_leftover_chunks, leftover_chunks
from llama_index_contextual.index.salvage import (
    Condition,
    DamagedVersion,
    inspect_part,
    records_of_part,
)
from llama_index_contextual.index.sources import SOURCES_FILE, sources_fault
from llama_index_contextual.index.version import OpenVersion

DAMAGED = ".damaged"
LEFTOVER = "was left by an interrupted run"

_JOURNAL = "-journal"
_MAX_LISTED, _KEY_LENGTH = 5, 12
_ROWS = {
    "contexts": "context",
    "embeddings": "embedding",
    "batches": "batch",
    "batch_requests": "request of a batch",
    "batch_replies": "reply of a batch",
    "runs": "receipt",
    "pages": "scanned page",
}
_UPGRADE = "pip install --upgrade llama-index-contextual"


@dataclass(frozen=True)
class Problem:
    """A problem found in a project.

    Attributes:
        file: Path of the file, relative to the project.
        message: Description of the problem.
        remedy: Command that solves it.
        harmless: Whether queries still work.
        documents: Ids of the documents in a damaged part, if they can be read.
    """

    file: str
    message: str
    remedy: str
    harmless: bool = False
    documents: Sequence[str] = ()


@dataclass(frozen=True)
class VerifyReport:
    """Result of checking a project.

    Attributes:
        versions: Names of the versions that were checked, oldest first.
        problems: The problems; empty if there are none.
    """

    versions: Sequence[str]
    problems: Sequence[Problem]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged; leftovers of interrupted writers do not count as damage."""
        return all(problem.harmless for problem in self.problems)


def verify_project(project_dir: Path) -> VerifyReport:
    """Check every version, the settings and the ledger of a project.

    Every byte of a version counts. Of the ledger, each row has a checksum, and SQLite checks the structure around the
    rows. A changed bit that neither finds has no effect: it is in a free page, in the unused space of a page, or in a
    field of the header that SQLite does not need, such as a counter of changes or the number of the release that wrote
    the file. The next write may overwrite it. The file with the paths of documents has no checksum; it is compared with
    the documents of the live version.

    Args:
        project_dir: Directory of the project.

    Raises:
        ProjectNotFoundError: The project was deleted.
    """
    if not project_dir.is_dir():
        raise ProjectNotFoundError(
            f"Project {project_dir.name!r} does not exist any more in {project_dir.parent}: it was deleted or moved.",
            name=project_dir.name,
        )
    names = version_names(project_dir)
    checked = _check_versions(project_dir, names)
    collection = _collection(project_dir, names, checked)
    sound = [name for name in names if name not in checked.faults]
    problems = [
        *_settings(project_dir),
        *_current(project_dir, sound),
        *_versions(project_dir, sound, checked),
        *_ledger(project_dir),
        *_sources(project_dir, sound),
        *collection,
        *_leftovers(project_dir),
    ]
    return VerifyReport(names, sorted(problems, key=lambda problem: problem.harmless))


def repair_project(project_dir: Path) -> VerifyReport:
    """Remove damaged versions that are not live, recover a damaged ledger, and check the project again.

    The live version does not change; if it is damaged, use `rebuild`.

    Raises:
        ProjectLockedError: Another process is writing.
        FormatError: The ledger was written by a newer release.
        LedgerError: The ledger cannot be checked, so it was not changed.
    """
    with write_lock(project_dir):
        names = version_names(project_dir)
        live = live_if_sound(project_dir)
        checked = _check_versions(project_dir, names)
        _check_chunks(project_dir, names, checked)
        drop_leftover_chunks(project_dir, names)
        for name, faults in checked.faults.items():
            if live not in (None, name) and any(map(is_damage, faults)):
                remove_version(project_dir, name)
        remove_unused_parts(project_dir)
        _repair_ledger(project_dir)
    return verify_project(project_dir)


def _repair_ledger(project_dir: Path) -> None:
    path, recorded = project_dir / LEDGER_FILE, ledger_identity(project_dir)
    if _is_missing(path):
        if _expects_ledger(project_dir, recorded):
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


def _command(project_dir: Path, *words: str) -> str:
    # Always with --root, as the project need not be in the default root.
    name, root = shlex.quote(project_dir.name), shlex.quote(str(project_dir.parent))
    return " ".join(("llama-index-contextual", words[0], name, *words[1:], "--root", root))


def _settings(project_dir: Path) -> Iterator[Problem]:
    verify = _command(project_dir, "verify")
    try:
        read_config(project_dir)
    except FormatError as error:
        yield Problem(PROJECT_FILE, _fault(error, PROJECT_FILE), _other_format(error))
    except FileNotFoundError:
        message = "is missing: restore it from a backup, or create the project again, which keeps its ledger"
        yield Problem(PROJECT_FILE, message, _command(project_dir, "create"))
    except (ProjectError, OSError) as error:
        yield Problem(PROJECT_FILE, _fault(error, f"{project_dir.name}/{PROJECT_FILE}"), verify)


def _sources(project_dir: Path, sound: Sequence[str]) -> Iterator[Problem]:
    """Compare the paths of files with the documents of the live version."""
    live = live_if_sound(project_dir)
    if live is None or live not in sound:
        return
    with closing(OpenVersion(version_directory(project_dir, live), check="size")) as version:
        origins = {record.origin for record in version.records if record.origin is not None}
    if fault := sources_fault(project_dir, origins):
        message = f"{fault}: their pages are shown only if their folder is named; searches are not affected"
        yield Problem(SOURCES_FILE, message, _command(project_dir, "ingest", "PATHS"), harmless=True)


def _current(project_dir: Path, sound: Sequence[str]) -> Iterator[Problem]:
    again = _command(project_dir, "ingest", "PATHS", "--replace")
    remedy = _command(project_dir, "rollback", f"--to {sound[-1]}") if sound else again
    try:
        live = current_name(project_dir)
    except CorruptVersionError as error:
        yield Problem(CURRENT, _fault(error, CURRENT), remedy)
        return
    if live is not None and not version_directory(project_dir, live).is_dir():
        yield Problem(CURRENT, f"names {live}, which does not exist", remedy)


@dataclass
class _Checked:
    """Result of comparing versions with their checksums.

    Attributes:
        faults: The errors of each damaged version.
        conditions: The condition of the parts of each version.
        parts: The condition of each part, by its entry.
    """

    faults: dict[str, list[Exception]] = field(default_factory=dict)
    conditions: dict[str, list[Condition]] = field(default_factory=dict)
    parts: dict[PartEntry, Condition] = field(default_factory=dict)

    def documents(self, project_dir: Path) -> dict[str, tuple[str, ...]]:
        """Return the ids of the documents of each damaged part, by its name; none if they cannot be read."""
        return {
            entry.name: tuple(
                record.doc_id for record in records_of_part(project_dir / PARTS / entry.name, condition)[0]
            )
            for entry, condition in self.parts.items()
            if condition.faults
        }


def _check_versions(project_dir: Path, names: Sequence[str]) -> _Checked:
    """Compare the files of versions with their checksums; a part that several versions share is read once."""
    checked = _Checked()
    for name in names:
        directory = version_directory(project_dir, name)
        conditions = checked.conditions[name] = []
        faults: list[Exception] = []
        try:
            manifest = read_manifest(directory)
            for entry in manifest.parts:
                part = replace(entry, gone=())
                if part not in checked.parts:
                    place = part_directory(directory, entry.name)
                    checked.parts[part] = inspect_part(place, part, manifest.dimensions)
                conditions.append(checked.parts[part])
            faults += [fault for condition in conditions for fault in condition.faults]
        except (CorruptVersionError, FormatError) as error:
            faults.append(error)
        # A writer may have removed an old version in the meantime.
        if faults and (directory.is_dir() or name == live_if_sound(project_dir)):
            checked.faults[name] = faults
    return checked


def _collection(project_dir: Path, names: Sequence[str], checked: _Checked) -> list[Problem]:
    """Add the versions with damaged chunks in an engine to `checked`, and return the other problems of the engine."""
    verify = _command(project_dir, "verify")
    try:
        _check_chunks(project_dir, names, checked)
        left = leftover_chunks(project_dir)
    except BackendError as error:
        return [Problem(COLLECTION_FILE, f"could not be checked: {_fault(error, COLLECTION_FILE)}", verify)]
    except ProjectError as error:
        return [Problem(COLLECTION_FILE, _fault(error, COLLECTION_FILE), verify)]
    if not left:
        return []
    message = f"names a collection with {pluralize(left, 'chunk')} {LEFTOVER.removeprefix('was ')}"
    return [Problem(COLLECTION_FILE, message, _command(project_dir, "verify", "--repair"), harmless=True)]


def _check_chunks(project_dir: Path, names: Sequence[str], checked: _Checked) -> None:
    """Add the versions with damaged chunks in an engine."""
    for name, error in damaged_chunks(project_dir, [name for name in names if name not in checked.faults]).items():
        checked.faults[name] = [error]


def _versions(project_dir: Path, sound: Sequence[str], checked: _Checked) -> Iterator[Problem]:
    live = live_if_sound(project_dir)
    problems: dict[str, Problem] = {}
    documents_of = checked.documents(project_dir)
    for name, faults in checked.faults.items():
        is_old = live not in (None, name)
        lost, remedy = "", _command(project_dir, "verify", "--repair")
        if (of_format := next((error for error in faults if isinstance(error, FormatError)), None)) is not None:
            remedy = _other_format(of_format)
        elif not is_old:
            lost, remedy = _restoration(project_dir, name, sound, checked, is_live=name == live)
        listed: set[str] = set()
        for error in faults:
            file = getattr(error, "file", None) or f"{VERSIONS}/{name}"
            part = next(iter(PurePosixPath(file).parts[1:]), "")
            documents = documents_of.get(part, ())
            fault = _fault(error, file)
            if part not in listed:  # several files of a part belong to the same documents
                fault += _list(documents)
                listed.add(part)
            problem = Problem(file, fault + lost, remedy, harmless=is_old, documents=documents)
            lost = ""
            # A part may belong to several versions: the live one decides.
            if file not in problems or not problem.harmless:
                problems[file] = problem
    yield from problems.values()


def _restoration(
    project_dir: Path, name: str, sound: Sequence[str], checked: _Checked, *, is_live: bool
) -> tuple[str, str]:
    """Return which documents of a damaged version are lost, and the command that restores most of them."""
    previous = _command(project_dir, "rollback", f"--to {sound[-1]}") if sound else None
    anew = _command(project_dir, "ingest", "PATHS", "--replace")
    if not all(map(is_damage, checked.faults[name])):
        return "", _command(project_dir, "verify")
    try:
        version = DamagedVersion(version_directory(project_dir, name), checked.conditions[name])
    except BackendError:  # reported with the engine
        return "", _command(project_dir, "verify")
    except (CorruptVersionError, FormatError):  # the manifest of the version is damaged
        return "", previous or anew
    with closing(version):
        number = len(version.lost) + version.unnamed
        lost = f"; {pluralize(number, 'document')} cannot be restored" if number else ""
        if is_live and not number:
            return lost, _command(project_dir, "rebuild")
        if is_live and previous is None and (len(version.records) or version.originals):
            return lost, _command(project_dir, "rebuild", "--allow-loss")
        return lost, previous or anew


def _list(documents: Sequence[str]) -> str:
    if not documents:
        return ""
    shown = ", ".join(documents[:_MAX_LISTED])
    return f"; it belongs to {pluralize(len(documents), 'document')}: {shown}{', …' if documents[_MAX_LISTED:] else ''}"


def _other_format(error: FormatError) -> str:
    return _UPGRADE if error.remedy is None else error.remedy.command_line


def _fault(error: Exception, file: str) -> str:
    """Return the first sentence of an error message, without the name of the file."""
    return str(getattr(error, "problem", error)).split(". ")[0].removeprefix(f"{file} ").removesuffix(".")


@dataclass(frozen=True, kw_only=True)
class _LedgerState:
    malformed: str | None = None
    damaged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    identity: str | None = None


def _check_ledger(path: Path, *, locked: bool = False) -> _LedgerState:
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
                return _LedgerState(malformed=malformed, identity=ledger.identity)
            return _LedgerState(damaged=ledger.damaged_rows(), identity=ledger.identity)
    except CorruptVersionError as error:
        return _LedgerState(malformed=_fault(error, LEDGER_FILE).removeprefix("is damaged (").removesuffix(")"))


def _ledger(project_dir: Path) -> Iterator[Problem]:
    path, recorded = project_dir / LEDGER_FILE, ledger_identity(project_dir)
    repair = _command(project_dir, "verify", "--repair")
    restore = (
        "restore it from a backup, or begin a new one, in which case all contexts are requested and paid for again"
    )
    if _is_missing(path):
        if _expects_ledger(project_dir, recorded):
            fault = "is empty" if path.exists() else "is missing"
            yield Problem(LEDGER_FILE, f"{fault}: {restore}", repair)
        return
    try:
        state = _check_ledger(path)
    except FormatError as error:
        yield Problem(LEDGER_FILE, _fault(error, LEDGER_FILE), _other_format(error))
        return
    except LedgerError as error:
        message = f"could not be checked: it {_fault(error, LEDGER_FILE)}"
        yield Problem(LEDGER_FILE, message, _command(project_dir, "verify"))
        return
    if state.malformed is not None:
        yield Problem(LEDGER_FILE, f"is damaged ({state.malformed})", repair)
        return
    if state.damaged:
        rows = "; ".join(
            f"{pluralize(len(keys), name)}: {', '.join(key[:_KEY_LENGTH] for key in keys[:_MAX_LISTED])}"
            f"{', …' if len(keys) > _MAX_LISTED else ''}"
            for table, keys in sorted(state.damaged.items())
            for name in (_ROWS[table],)
        )
        yield Problem(LEDGER_FILE, f"has damaged rows, which are not used and will be requested again ({rows})", repair)
    if recorded is not None and state.identity != recorded:
        message = "is not the ledger of this project: restore that from a backup, or accept this one"
        yield Problem(LEDGER_FILE, message, repair)


def _is_missing(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _expects_ledger(project_dir: Path, recorded: str | None) -> bool:
    """Return whether a project must have a ledger: its identity is recorded, or the live version has LLM contexts."""
    if recorded is not None:
        return True
    name = live_if_sound(project_dir)
    try:
        return name is not None and read_manifest(version_directory(project_dir, name)).config.get("context") == "llm"
    except (CorruptVersionError, FormatError):
        return False


def _leftovers(project_dir: Path) -> Iterator[Problem]:
    for path in leftovers(project_dir):
        yield Problem(
            path.relative_to(project_dir).as_posix(),
            LEFTOVER,
            _command(project_dir, "verify", "--repair"),
            harmless=True,
        )
