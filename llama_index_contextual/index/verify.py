"""Check and repair the versions and the ledger of a project, remove leftovers, and forget removed documents.

Files are checked against their SHA-256 checksums. SQLite checks the structure of the ledger, and each of its rows has a
checksum. If a check cannot be completed, this is also reported as a problem.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path, PurePosixPath

from llama_index.core.schema import MetadataMode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize, quote_word
from llama_index_contextual.errors import (
    BackendError,
    CorruptVersionError,
    FormatError,
    LedgerError,
    NoSpaceError,
    ProjectError,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.derived import has_outdated_edition, is_derived
from llama_index_contextual.index.kvstore import sqlite_uri
from llama_index_contextual.index.ledger import (
    DAMAGED,
    LEDGER_FILE,
    TABLES,
    Ledger,
    Row,
    damaged_ledgers,
    is_missing,
    is_sound,
)
from llama_index_contextual.index.manifest import (
    FIGURES_FILE,
    MANIFEST,
    PARTS,
    RECORDS,
    Check,
    DocumentRecord,
    Manifest,
    PartEntry,
    check_files,
    is_damage,
    part_directory,
    read_manifest,
    read_records,
)
from llama_index_contextual.index.pictures import is_picture, picture_faults
from llama_index_contextual.index.project_file import (
    PROJECT_FILE,
    project_ledger,
    read_config,
    remove_scratch,
    require_existing,
    write_lock,
)
from llama_index_contextual.index.qdrant import COLLECTION_FILE, FILES, forget_vectors, open_engine, read_collection
from llama_index_contextual.index.sources import inputs_of
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import (
    CURRENT,
    VERSIONS,
    current_name,
    leftovers,
    live_if_sound,
    number,
    remove_unused_parts,
    remove_version,
    version_directory,
    version_names,
)

LEFTOVER = "was left by an interrupted run"
OUTDATED = "has derived data of an earlier release, which the next ingest makes again"

_MAX_LISTED = 5
_UPGRADE = "pip install --upgrade llama-index-contextual"


@dataclass(frozen=True)
class Problem:
    """A problem found in a project.

    Attributes:
        file: Path of the file, relative to the project.
        message: Description of the problem.
        remedy: Command that solves the problem.
        harmless: Whether queries work despite the problem.
        documents: Ids of the documents in a damaged part, if they can be read.
    """

    file: str
    message: str
    remedy: str
    harmless: bool = False
    documents: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Repair of a damaged live version.

    Attributes:
        version: Name of the version that was published without the damaged parts and is now live.
        former: Name of the damaged version, which stays on disk until the next repair.
        missing: Ids of the documents in damaged parts, each with the file or folder to ingest again; None if the
            document was not read from a file, or if the file no longer exists.
        unnamed: Number of further missing documents whose ids could not be read.
        remade: Number of documents whose derived data, such as the lexical index, were damaged and made again from
            their chunks.
    """

    version: str
    former: str
    missing: Mapping[str, str | None] = field(default_factory=dict)
    unnamed: int = 0
    remade: int = 0

    def lines(self) -> list[str]:
        """Return a description of the repair."""
        lines = [f"Version {self.version} is live: {self.former} without its damaged {self._damaged}."]
        if self.remade:
            lines.append(f"The derived data of {pluralize(self.remade, 'document')} were made again.")
        again = [doc_id for doc_id, path in self.missing.items() if path is not None]
        if again:
            inputs = ", ".join(sorted({path for path in self.missing.values() if path is not None}))
            lines.append(f"Ingest {pluralize(len(again), 'document')} again from {inputs}: {', '.join(again)}.")
        if lost := [doc_id for doc_id, path in self.missing.items() if path is None]:
            lines.append(
                f"{pluralize(len(lost), 'document')} without a file can only be ingested again, or restored with the"
                f" files of {self.former} from a backup: {', '.join(lost)}."
            )
        if self.unnamed:
            lines.append(f"The ids of {pluralize(self.unnamed, 'more document')} cannot be read.")
        return lines

    @property
    def _damaged(self) -> str:
        return "files" if self.remade and not (self.missing or self.unnamed) else "parts"


PartFaults = Mapping[str, Sequence[CorruptVersionError]]
"""Mapping of part names to the errors found in each part of a project."""


def only_derived(faults: Sequence[CorruptVersionError]) -> bool:
    """Return whether only derived data of a part are damaged, which can be made again from its chunks.

    Pictures of figures do not count: without them, the documents can still be read.
    """
    files = [PurePosixPath(error.file or "").parts[2:] for error in without_pictures(faults)]
    return bool(files) and all(file and is_derived("/".join(file)) for file in files)


def without_pictures(faults: Sequence[CorruptVersionError]) -> list[CorruptVersionError]:
    """Return the errors of a part except those about pictures of figures."""
    return [error for error in faults if not is_picture(error.file)]


def damaged_pictures(faults: Sequence[CorruptVersionError]) -> set[str]:
    """Return the names of the pictures of figures that are missing or damaged."""
    return {PurePosixPath(error.file or "").name for error in faults if is_picture(error.file)}


PublishSound = Callable[[str, PartFaults], Repair]
"""Function that takes the name of a version and publishes the version again without its damaged parts."""


@dataclass(frozen=True)
class VerifyReport:
    """Result of checking a project.

    Attributes:
        versions: Names of the versions that were checked, oldest first.
        problems: The problems; empty if there are none.
        repair: The repair of the live version, or None if nothing was repaired.
    """

    versions: Sequence[str]
    problems: Sequence[Problem]
    repair: Repair | None = None

    @property
    def sound(self) -> bool:
        """True if nothing is damaged; leftovers of interrupted writers do not count as damage."""
        return all(problem.harmless for problem in self.problems)


def verify_project(project_dir: Path, known: PartFaults | None = None, *, quick: bool = False) -> VerifyReport:
    """Check every version, the settings and the ledger of a project.

    Every byte of a version is checked. In the ledger, each row has a checksum, and SQLite checks the structure of the
    file. A changed bit that neither check finds has no effect: it is in a free page, in the unused space of a page, or
    in a header field that SQLite does not need, such as a change counter or the SQLite release that wrote the file. The
    next write may overwrite it.

    Args:
        project_dir: Directory of the project.
        known: The errors of parts that have just been checked and need not be checked again.
        quick: Whether to compare only the sizes of the files, and not to read the rows of the ledger or the vectors in
            an engine.

    Raises:
        ProjectNotFoundError: The project was deleted.
    """
    names = version_names(require_existing(project_dir))
    checked = _check_versions(project_dir, names, known, "size" if quick else "sha256")
    collection = _collection(project_dir, [] if quick else names, checked)
    sound = [name for name in names if name not in checked.faults]
    problems = [
        *_settings(project_dir),
        *_current(project_dir, sound),
        *_versions(project_dir, sound, checked),
        *_derived(project_dir, checked),
        *_ledger(project_dir, quick=quick),
        *collection,
        *_leftovers(project_dir),
    ]
    return VerifyReport(names, sorted(problems, key=lambda problem: problem.harmless))


def repair_project(project_dir: Path, publish_sound: PublishSound | None = None) -> VerifyReport:
    """Repair the ledger and the live version, remove leftovers and other damaged versions, and check the project again.

    A damaged live version is replaced by a new version without the damaged parts. If only the derived data of a part
    are damaged, they are made again. The damaged version stays on disk until the next repair, or until it is removed as
    an old version.

    Args:
        project_dir: Directory of the project.
        publish_sound: Function that publishes a version without its damaged parts; if None, the live version is not
            repaired.

    Raises:
        ProjectLockedError: Another process is writing.
        FormatError: The ledger was written by a newer release.
        LedgerError: The ledger cannot be checked, so it was not changed.
    """
    with write_lock(project_dir):
        _repair_ledger(project_dir)
        names = version_names(project_dir)
        live = live_if_sound(project_dir)
        checked = _check_versions(project_dir, names, None, "sha256")
        _check_vectors(project_dir, names, checked)
        if read_collection(project_dir) is not None:
            open_engine(project_dir).drop_after(_highest(names))
        repair = None
        if publish_sound is not None and live is not None and checked.is_repairable(live):
            repair = publish_sound(live, checked.parts)
        for name, faults in checked.faults.items():
            if live not in (None, name) and any(map(is_damage, faults)) and name in version_names(project_dir):
                remove_version(project_dir, name)
        remove_unused_parts(project_dir)
    return replace(verify_project(project_dir, checked.parts), repair=repair)


def command_for(project_dir: Path, *words: str) -> str:
    """Return a command for a project: the name of the command, and the arguments that follow the project's name."""
    # Always include --root, because the project may not be in the default root.
    name, root = quote_word(project_dir.name), quote_word(str(project_dir.parent))
    return " ".join(("llama-index-contextual", words[0], name, *words[1:], "--root", root))


def _settings(project_dir: Path) -> Iterator[Problem]:
    verify = command_for(project_dir, "verify")
    try:
        read_config(project_dir)
    except FormatError as error:
        yield Problem(PROJECT_FILE, _fault(error, PROJECT_FILE), _other_format(error))
    except FileNotFoundError:
        message = "is missing: restore it from a backup, or create the project again, which keeps its ledger"
        yield Problem(PROJECT_FILE, message, command_for(project_dir, "create"))
    except (ProjectError, OSError) as error:
        yield Problem(PROJECT_FILE, _fault(error, f"{project_dir.name}/{PROJECT_FILE}"), verify)


def _current(project_dir: Path, sound: Sequence[str]) -> Iterator[Problem]:
    again = command_for(project_dir, "ingest", "PATHS", "--replace")
    remedy = command_for(project_dir, "rollback", f"--to {sound[-1]}") if sound else again
    try:
        live = current_name(project_dir)
    except CorruptVersionError as error:
        yield Problem(CURRENT, _fault(error, CURRENT), remedy)
        return
    if live is not None and not version_directory(project_dir, live).is_dir():
        yield Problem(CURRENT, f"names {live}, which does not exist", remedy)


@dataclass
class _Checked:
    """Result of checking versions against their checksums.

    Attributes:
        parts: The errors of each part, by part name.
        faults: The errors of each damaged version, by version name.
        manifests: The readable manifests, by version name.
    """

    parts: dict[str, Sequence[CorruptVersionError]]
    faults: dict[str, list[Exception]] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)

    def is_repairable(self, name: str) -> bool:
        """Return whether a version is damaged, but can be repaired.

        Its manifest must be readable, and all its errors must be due to damage.
        """
        return name in self.manifests and name in self.faults and all(map(is_damage, self.faults[name]))


def _check_versions(project_dir: Path, names: Sequence[str], known: PartFaults | None, check: Check) -> _Checked:
    """Check the files of versions against their manifests, reading shared parts only once."""
    checked = _Checked(dict(known or {}))
    for name in names:
        directory = version_directory(project_dir, name)
        faults: list[Exception] = []
        try:
            manifest = checked.manifests[name] = read_manifest(directory)
            for entry in manifest.parts:
                if entry.name not in checked.parts:
                    checked.parts[entry.name] = _part_faults(part_directory(directory, entry.name), entry, check)
                faults += checked.parts[entry.name]
        except (CorruptVersionError, FormatError) as error:
            faults.append(error)
        # A writer may have removed an old version in the meantime.
        if faults and (directory.is_dir() or name == live_if_sound(project_dir)):
            checked.faults[name] = faults
    return checked


def _part_faults(place: Path, entry: PartEntry, check: Check) -> list[CorruptVersionError]:
    """Check every file of a part against its size or checksum, and return an error for each damaged file."""
    faults: list[CorruptVersionError] = []
    for name, expected in entry.files.items():
        try:
            check_files(place, {name: expected}, check)
        except CorruptVersionError as error:
            faults.append(error)
    if FIGURES_FILE in entry.files and not any(error.file and error.file.endswith(FIGURES_FILE) for error in faults):
        faults += picture_faults(place, check)
    return faults


def _collection(project_dir: Path, names: Sequence[str], checked: _Checked) -> list[Problem]:
    """Check the vectors in an engine, add versions with damaged vectors to `checked`, and return other problems.

    Other problems are engine errors, and vectors left behind by interrupted writers.
    """
    verify = command_for(project_dir, "verify")
    try:
        _check_vectors(project_dir, names, checked)
        left = 0
        if read_collection(project_dir) is not None:
            left = open_engine(project_dir).leftovers(_highest(version_names(project_dir)))
    except BackendError as error:
        return [Problem(COLLECTION_FILE, f"could not be checked: {_fault(error, COLLECTION_FILE)}", verify)]
    except ProjectError as error:
        return [Problem(COLLECTION_FILE, _fault(error, COLLECTION_FILE), verify)]
    if not left:
        return []
    message = f"names a collection with {pluralize(left, 'vector')} {LEFTOVER.removeprefix('was ')}"
    return [Problem(COLLECTION_FILE, message, command_for(project_dir, "verify", "--repair"), harmless=True)]


def _check_vectors(project_dir: Path, names: Sequence[str], checked: _Checked) -> None:
    """Compare the vectors in an engine with the versions and add versions with damaged vectors to `checked`."""
    for name in names:
        manifest = checked.manifests.get(name)
        if name in checked.faults or manifest is None or manifest.engine == FILES:
            continue
        # Imported here, because versions stored in files do not need it.
        from llama_index_contextual.index.remote import check_vectors

        directory = version_directory(project_dir, name)
        try:
            with closing(OpenVersion(directory)) as version:
                check_vectors(directory, version.parts, version.manifest.dimensions or 0)
        except (CorruptVersionError, OSError, sqlite3.Error) as error:
            if not (directory / MANIFEST).exists():
                continue  # in the meantime, a writer has removed the version and then its vectors
            if not isinstance(error, CorruptVersionError):
                raise
            checked.faults[name] = [CorruptVersionError(str(error), file=COLLECTION_FILE, remedy=error.remedy)]


def _highest(names: Sequence[str]) -> int:
    """Return the number of the newest version, or 0 if there is none.

    Vectors with a higher number were never published.
    """
    return max(map(number, names), default=0)


def _versions(project_dir: Path, sound: Sequence[str], checked: _Checked) -> Iterator[Problem]:
    """Yield the problems found in versions.

    Damage to a part that several versions share is reported once: for the live version if it is affected, otherwise for
    the newest affected version.
    """
    live = live_if_sound(project_dir)
    problems: dict[str, Problem] = {}
    reported_parts: set[str] = set()
    for name in sorted(checked.faults, key=lambda name: (name == live, number(name)), reverse=True):
        remedy = _remedy(project_dir, name, live, sound, checked)
        for error in checked.faults[name]:
            file = getattr(error, "file", None) or f"{VERSIONS}/{name}"
            if file in problems:
                continue
            fault, part = _fault(error, file), next(iter(PurePosixPath(file).parts[1:]), "")
            is_whole_part = part in checked.parts and not is_picture(file)
            records = records_of(project_dir, part, checked.parts) if is_whole_part else []
            documents = tuple(record.doc_id for record in records)
            if (
                part not in reported_parts and is_whole_part
            ):  # only once, because several files of a part contain the same documents
                fault += _list(documents)
                reported_parts.add(part)
            problems[file] = Problem(file, fault, remedy, harmless=live not in (None, name), documents=documents)
    yield from problems.values()


def _derived(project_dir: Path, checked: _Checked) -> Iterator[Problem]:
    live = live_if_sound(project_dir)
    manifest = None if live is None or live in checked.faults else checked.manifests.get(live)
    if manifest is not None and has_outdated_edition(manifest):
        yield Problem(f"{VERSIONS}/{live}", OUTDATED, command_for(project_dir, "rebuild", "--derived"), harmless=True)


def records_of(project_dir: Path, part: str, faults: PartFaults) -> Sequence[DocumentRecord]:
    """Return the document records of a part that may be damaged, or an empty list if they cannot be read."""
    if any(error.file == f"{PARTS}/{part}/{RECORDS}" for error in faults.get(part, ())):
        return []  # not read, because the file may have any size
    try:
        return read_records(project_dir / PARTS / part)
    except CorruptVersionError:
        return []


def _remedy(project_dir: Path, name: str, live: str | None, sound: Sequence[str], checked: _Checked) -> str:
    """Return the command that the user should run to repair a damaged version."""
    faults = checked.faults[name]
    if (of_format := next((error for error in faults if isinstance(error, FormatError)), None)) is not None:
        return _other_format(of_format)
    if not all(map(is_damage, faults)):
        return command_for(project_dir, "verify")
    if live is not None and name != live and (inputs := _missing_inputs(project_dir, name, live, checked)):
        return command_for(project_dir, "ingest", *map(quote_word, inputs))
    if live is not None and (name != live or checked.is_repairable(name)):
        return command_for(project_dir, "verify", "--repair")
    if sound:
        return command_for(project_dir, "rollback", f"--to {sound[-1]}")
    return command_for(project_dir, "ingest", "PATHS", "--replace")


def _missing_inputs(project_dir: Path, name: str, live: str, checked: _Checked) -> list[str]:
    """Return the files and folders to ingest in order to restore documents that were lost in a repair.

    The lost documents are in the damaged version, but not in the live version that replaced it.
    """
    former, now = checked.manifests.get(name), checked.manifests.get(live)
    if former is None or now is None or now.keeps != name or live in checked.faults:
        return []
    present = {record.doc_id for entry in now.parts for record in records_of(project_dir, entry.name, checked.parts)}
    lists = [records_of(project_dir, entry.name, checked.parts) for entry in former.parts]
    if not all(lists):  # the records of a part cannot be read
        return ["PATHS"]
    missing = (record for records in lists for record in records if record.doc_id not in present)
    return sorted(set(inputs_of(missing).values()))


def _list(documents: Sequence[str]) -> str:
    if not documents:
        return ""
    names = ", ".join(documents[:_MAX_LISTED])
    return f"; it belongs to {pluralize(len(documents), 'document')}: {names}{', …' if documents[_MAX_LISTED:] else ''}"


def _other_format(error: FormatError) -> str:
    return _UPGRADE if error.remedy is None else error.remedy.command_line


def _fault(error: Exception, file: str) -> str:
    """Return the first sentence of an error message, without the name of the file."""
    return str(getattr(error, "problem", error)).split(". ")[0].removeprefix(f"{file} ").removesuffix(".")


_RESTORE_LEDGER = (
    "restore it from a backup, or begin a new one, in which case all contexts and embeddings are requested and paid for"
    " again, and the costs so far are unknown"
)


def _ledger(project_dir: Path, *, quick: bool) -> Iterator[Problem]:
    path = project_dir / LEDGER_FILE
    repair = command_for(project_dir, "verify", "--repair")
    if is_missing(path):
        if live_if_sound(project_dir) is not None:  # every ingest creates a ledger
            fault = "is empty" if path.exists() else "is missing"
            yield Problem(LEDGER_FILE, f"{fault}: {_RESTORE_LEDGER}", repair)
        return
    try:
        malformed, damaged = _ledger_damage(path, quick=quick)
    except FormatError as error:
        yield Problem(LEDGER_FILE, _fault(error, LEDGER_FILE), _other_format(error))
        return
    except LedgerError as error:
        message = f"could not be checked: it {_fault(error, LEDGER_FILE)}"
        yield Problem(LEDGER_FILE, message, command_for(project_dir, "verify"))
        return
    if malformed is not None:
        yield Problem(LEDGER_FILE, f"is damaged ({malformed})", repair)
        return
    if damaged:
        rows = pluralize(sum(map(len, damaged.values())), "damaged row")
        yield Problem(LEDGER_FILE, f"has {rows}, which are not used and will be requested again", repair)


def _ledger_damage(path: Path, *, quick: bool = False) -> tuple[str | None, Mapping[str, Sequence[str]]]:
    """Check a ledger, or with `quick` only its structure. If a write was interrupted, SQLite rolls it back first.

    Returns:
        A tuple of two items: the problem that SQLite reports for the file, or None; and a mapping of table names to the
        keys of rows whose checksums are wrong.

    Raises:
        FormatError: The file was written by another release.
        LedgerError: The file cannot be checked.
    """
    try:
        with closing(Ledger(path, read_only=True)) as ledger:
            malformed = ledger.malformed()
            return malformed, {} if malformed or quick else ledger.damaged_rows()
    except CorruptVersionError as error:
        fault = error.problem.split(". ")[0].removesuffix(".")
        return fault.removeprefix(f"{LEDGER_FILE} is damaged (").removesuffix(")"), {}


def _leftovers(project_dir: Path) -> Iterator[Problem]:
    repair = command_for(project_dir, "verify", "--repair")
    for path in leftovers(project_dir):
        yield Problem(path.relative_to(project_dir).as_posix(), LEFTOVER, repair, harmless=True)


# ---- ledger repair ---------------------------------------------------------------------------------------------------

_RANGES = ("", *(f"{byte:02x}" for byte in range(256)), "g")
"""Bounds of the key ranges in which a damaged table is read; they are suited to hexadecimal keys."""


def _repair_ledger(project_dir: Path) -> None:
    """Replace a damaged ledger with a new ledger that contains its undamaged rows, or create a missing ledger.

    Raises:
        FormatError: The ledger was written by another release.
        LedgerError: The ledger cannot be checked, so it was not changed.
    """
    path = project_dir / LEDGER_FILE
    if is_missing(path):
        if live_if_sound(project_dir) is not None:
            Ledger(path).close()
        return
    if _ledger_damage(path) == (None, {}):
        return
    if not path.is_file():
        files.rename(path, _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}")))
        Ledger(path).close()
        return
    new = path.with_name(f"{path.name}{files.NEW}")
    try:
        files.copy(path, _free_name(path.with_name(f"{LEDGER_FILE}{DAMAGED}")))
        with closing(Ledger(new)) as ledger:
            salvage(path, ledger)
        files.remove(path.with_name(f"{path.name}-journal"))  # otherwise SQLite would apply it to the new file
        files.rename(new, path)
    except NoSpaceError:
        raise
    except OSError as error:
        raise LedgerError(
            f"{path.name} could not be repaired ({error.strerror or error}): make its folder writable and make room for"
            f" a copy on its disk, then try again; the ledger was not changed."
        ) from error


def salvage(damaged: Path, ledger: Ledger) -> None:
    """Copy all readable, undamaged rows of a damaged ledger to a new ledger.

    Args:
        damaged: The damaged file; its rows are not changed.
        ledger: The new ledger.
    """
    with ledger.transaction():
        for table in ("contexts", "embeddings", "batch_replies", "batches", "runs", "pages", "chunk_contexts"):
            ledger.insert(table, _sound_rows(damaged, table), replace=False)
        # Without its batch, a request would be neither answered nor sent again.
        batches = {batch.file_id for batch in ledger.batches.open_batches()}
        requests = (row for row in _sound_rows(damaged, "batch_requests") if row[1] in batches)
        ledger.insert("batch_requests", requests, replace=False)


def _sound_rows(damaged: Path, table: str) -> Iterator[Row]:
    """Yield the readable, undamaged rows of a table. Some rows may be yielded twice.

    If the table has a damaged page, it is read in key ranges. A range with a damaged page is read forwards up to that
    page, then backwards from the end of the range.
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
    # With mode=ro, SQLite could not roll back an interrupted write, which it must do before it reads anything.
    with closing(sqlite3.connect(f"{sqlite_uri(damaged.resolve())}?mode=rw", uri=True)) as source:
        source.execute("PRAGMA query_only = ON")
        source.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        for row in source.execute(f"SELECT * FROM {table} {rest}"):
            if is_sound(table, row):
                yield row[: len(TABLES[table])]


def _free_name(path: Path) -> Path:
    """Return `path` or, if it exists, the same path with a number appended."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return path if not path.exists() else next(name for name in numbered if not name.exists())


# ---- forget ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ForgetReport:
    """Versions and ledger rows that `forget` removed, or would remove in a dry run.

    Attributes:
        versions: Names of the removed versions.
        contexts: Number of contexts removed from the ledger.
        embeddings: Number of vectors removed from the ledger.
        batched_requests: Number of requests in running batches, whose replies will not be fetched.
    """

    versions: Sequence[str]
    contexts: int
    embeddings: int
    batched_requests: int = 0


def forget(project_dir: Path, live: OpenVersion, *, dry_run: bool = False) -> ForgetReport:
    """Remove all versions except the live version, and all ledger rows that are not used by the live version.

    A row is kept if it contains the context or the embedding of a live chunk. Earlier states of documents and contexts
    written with other settings are removed. Running batches are abandoned, because their replies would restore removed
    contexts. If the function is interrupted, it can be called again.

    Args:
        project_dir: Directory of the project, whose write lock must be held.
        live: The live version.
        dry_run: Whether to return the report without removing anything.

    Raises:
        ProjectLockedError: Another process is comparing variants of the documents.
    """
    others = [name for name in version_names(project_dir) if name != live.name]
    path = project_dir / LEDGER_FILE
    if not dry_run:
        remove_scratch(project_dir)
        for name in others:
            remove_version(project_dir, name)
        remove_unused_parts(project_dir, required=True)
        forget_vectors(project_dir, live.name, is_remote=live.is_remote)
        # Sync even if nothing was removed, because an earlier run may have been interrupted before it synced.
        for directory in filter(Path.is_dir, (project_dir / VERSIONS, project_dir / PARTS)):
            files.sync_directory(directory)
        for damaged in damaged_ledgers(project_dir):
            files.remove(damaged)
    if not path.exists():
        if not dry_run:
            files.sync_directory(project_dir)
        return ForgetReport(versions=others, contexts=0, embeddings=0)
    contexts: set[str] = set()
    documents: dict[str, list[tuple[int, str]]] = {}
    for node in live.docstore.iterate():
        contexts.add(keys.context_parts(node.metadata)[1])
        entry = (getattr(node, "start_char_idx", None) or 0, node.get_content(metadata_mode=MetadataMode.EMBED))
        documents.setdefault(node.ref_doc_id or node.node_id, []).append(entry)
    texts = [[text for _, text in sorted(chunks, key=itemgetter(0))] for chunks in documents.values()]
    new = path.with_name(f"{LEDGER_FILE}{files.NEW}")
    with project_ledger(project_dir) as ledger:
        batched = ledger.info().batched_requests
        removed = ledger.keep_only(contexts, texts, dry_run=dry_run)
        if not dry_run:
            ledger.copy_to(new)
    if not dry_run:
        files.rename(new, path)
    return ForgetReport(versions=others, contexts=removed[0], embeddings=removed[1], batched_requests=batched)
