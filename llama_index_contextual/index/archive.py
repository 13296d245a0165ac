"""A whole project as one file, which other machines import: its settings, its live version and its ledger.

The file is a ZIP archive. Its list of contents is written last, with the SHA-256 of every file:

project.json                      the settings
versions/v000003/manifest.json    the live version
parts/p000001/…                   the files of its parts, with the pictures of figures
ledger.jsonl                      contexts, embeddings, pages and receipts, as `export_ledger` writes them (optional)
archive.json                      format, name and version of the project; size and SHA-256 of the files above

An import checks the whole archive first, then adds the parts that are missing, and makes the version live in the same
way as an ingestion does. A version in use is therefore never a mixture, regardless of interruptions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from llama_index_contextual._utils.files import open_file
from llama_index_contextual.errors import CorruptVersionError, FormatError, InputError, NoVersionError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger_lines import export_ledger, read_ledger
from llama_index_contextual.index.manifest import (
    BUILDING,
    FIGURES_DIRECTORY,
    FIGURES_FILE,
    FORMAT,
    MANIFEST,
    PARTS,
    Manifest,
    check_files,
    read_manifest,
    require_format,
    with_checksum,
    without_checksum,
)
from llama_index_contextual.index.pictures import parse_sizes, read_sizes, sha256_of
from llama_index_contextual.index.project_file import (
    PROJECT_FILE,
    is_project,
    project_ledger,
    read_config,
    require_existing,
    write_lock,
)
from llama_index_contextual.index.versions import (
    VERSIONS,
    current_name,
    publish_manifest,
    version_directory,
    version_names,
    write_current,
)

CONTENTS = "archive.json"
LEDGER = "ledger.jsonl"
_BLOCK = 1 << 20
_MAX_JSON = 1 << 28
_TRIES = 3  # exports without a lock, before writers are locked out


@dataclass(frozen=True, kw_only=True)
class ProjectCopy:
    """A project that was exported or imported.

    Attributes:
        name: Name of the project that was exported.
        version: Name of its live version.
        documents: Number of documents.
        bytes: Size of the archive; 0 if it did not have to be read.
        is_new: Whether the import changed the project.
    """

    name: str
    version: str
    documents: int
    bytes: int
    is_new: bool = True


# ---- export ----------------------------------------------------------------------------------------------------------


def write_archive(project_dir: Path, path: Path, *, ledger: bool = True) -> ProjectCopy:
    """Write the live version of a project, its settings and its ledger to an archive.

    Other processes may publish versions in the meantime: the archive contains one version, which was live during the
    export.

    Args:
        project_dir: Directory of the project.
        path: The file to write; it appears only when it is complete.
        ledger: Whether to include the ledger, so that an import can be continued without paying again.

    Raises:
        CorruptVersionError: A file of the version is damaged.
        InputError: The vectors are in an engine, such as Qdrant.
        LedgerError: A provider is still working on a batch.
        NoVersionError: Nothing has been ingested yet.
    """
    for _ in range(_TRIES):
        name = current_name(require_existing(project_dir))
        try:
            return _write(project_dir, name, path, ledger=ledger)
        except (CorruptVersionError, FileNotFoundError):
            if name in version_names(project_dir):
                raise
            # The version was removed by newer ones during the export.
    with write_lock(project_dir):
        return _write(project_dir, current_name(project_dir), path, ledger=ledger)


def _write(project_dir: Path, version: str | None, path: Path, *, ledger: bool) -> ProjectCopy:
    if version is None:
        raise NoVersionError(
            f"Project {project_dir.name!r} has no version yet: ingest documents first.", name=project_dir.name
        )
    directory = version_directory(project_dir, version)
    manifest = read_manifest(directory)
    if manifest.engine != "files":
        raise InputError(
            f"The vectors of project {project_dir.name!r} are in {manifest.engine}, which other machines can use"
            f" directly: share its server, or set backend to 'files' and rebuild the project.",
            value=project_dir.name,
        )
    with TemporaryDirectory() as scratch:
        sources = {PROJECT_FILE: project_dir / PROJECT_FILE, f"{VERSIONS}/{version}/{MANIFEST}": directory / MANIFEST}
        expected: dict[str, str] = {}
        for part in manifest.parts:
            for name, entry in part.files.items():
                sources[f"{PARTS}/{part.name}/{name}"] = project_dir / PARTS / part.name / name
                expected[f"{PARTS}/{part.name}/{name}"] = entry.sha256
            for picture in read_sizes(project_dir / PARTS / part.name) if FIGURES_FILE in part.files else ():
                name = f"{PARTS}/{part.name}/{FIGURES_DIRECTORY}/{picture}"
                sources[name] = project_dir / name
                expected[name] = sha256_of(picture)
        if ledger:
            sources[LEDGER] = Path(scratch) / LEDGER
            export_ledger(project_dir, sources[LEDGER])

        def fill(file: IO[bytes]) -> None:
            contents = {}
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                for name, source in sources.items():
                    with open_file(source) as data, archive.open(_entry(name), "w", force_zip64=True) as member:
                        contents[name] = _copy(data, member.write)
                    if name in expected and contents[name][1] != expected[name]:
                        raise CorruptVersionError(
                            f"{name} has changed since it was published: run `verify`.",
                            name=project_dir.name,
                            file=name,
                        )
                listed = {"format": FORMAT, "name": project_dir.name, "version": version, "files": contents}
                archive.writestr(_entry(CONTENTS), with_checksum(listed))

        files.replace_with(path, fill)
    return ProjectCopy(name=project_dir.name, version=version, documents=manifest.documents, bytes=path.stat().st_size)


def _entry(name: str) -> zipfile.ZipInfo:
    """Return the entry of a file, without a time, so that equal projects give equal archives."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _copy(source: IO[bytes], write: Callable[[bytes], object], most: int | None = None) -> tuple[int, str]:
    """Pass the bytes of a file on, at most one more than `most`, and return their number and SHA-256."""
    hasher, size = hashlib.sha256(), 0
    while (block := source.read(_BLOCK)) and (most is None or size <= most):
        hasher.update(block)
        size += len(block)
        write(block)
    return size, hasher.hexdigest()


# ---- import ----------------------------------------------------------------------------------------------------------


class Archive:
    """An archive whose files have all been checked. Use it as a context manager.

    Args:
        path: The archive.

    Attributes:
        name: Name of the project that was exported.
        manifest: Manifest of its version.

    Raises:
        CorruptVersionError: The file is not a complete archive.
        FormatError: It was written by a newer release.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with contextlib.ExitStack() as stack:
            try:
                self._zip = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_file(path))))
                raw = json.loads(self._read(CONTENTS, _MAX_JSON))
                require_format(raw, path.name)
                contents = without_checksum(raw)
                self.name, self.version = str(contents["name"]), str(contents["version"])
                self._files = {name: (int(size), str(sha256)) for name, (size, sha256) in contents["files"].items()}
                self.manifest = Manifest.from_json(
                    self._read(f"{VERSIONS}/{self.version}/{MANIFEST}", _MAX_JSON), file=MANIFEST
                )
                self._check()
            except FormatError:
                raise
            except (
                *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
                *(ValueError, TypeError, KeyError, AttributeError, OSError, CorruptVersionError),
            ) as error:
                raise CorruptVersionError(
                    f"{path.name} is not a complete copy of a project ({type(error).__name__}): if it is being written,"
                    f" try again afterwards; otherwise, export the project again. Nothing was changed.",
                    file=path.name,
                ) from error
            self._stack = stack.pop_all()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def _read(self, name: str, most: int) -> bytes:
        blocks: list[bytes] = []
        with self._zip.open(name) as member:
            size, _ = _copy(member, blocks.append, most)
        if size > most:
            raise ValueError(f"{name} is too large")
        return b"".join(blocks)

    def _check(self) -> None:
        """Check that the archive consists of exactly the files of the version, and every file."""
        described: dict[str, tuple[int, str]] = {}
        for part in self.manifest.parts:
            folder = f"{PARTS}/{part.name}"
            described |= {f"{folder}/{name}": (entry.bytes, entry.sha256) for name, entry in part.files.items()}
            sizes = parse_sizes(self._read(f"{folder}/{FIGURES_FILE}", _MAX_JSON)) if FIGURES_FILE in part.files else {}
            for picture, size in sizes.items():
                described[f"{folder}/{FIGURES_DIRECTORY}/{picture}"] = (size, sha256_of(picture))
        others = {PROJECT_FILE, f"{VERSIONS}/{self.version}/{MANIFEST}"}
        if self.manifest.version != self.version or self._files.keys() - {LEDGER} != described.keys() | others:
            raise ValueError("its list of contents does not match its version")
        for name, expected in self._files.items():
            with self._zip.open(name) as member:
                actual = _copy(member, lambda block: None, expected[0])
            if not actual == expected == described.get(name, expected):
                raise ValueError(f"{name} does not match its checksum")

    def _unpack(self, name: str, path: Path) -> None:
        """Write a file of the archive to a path, and check it again while it is read."""

        def fill(file: IO[bytes]) -> None:
            with self._zip.open(name) as member:
                if _copy(member, file.write, self._files[name][0]) != self._files[name]:
                    raise CorruptVersionError(f"{name} has changed during the import: try again.", file=name)

        files.write_with(path, fill)

    def publish_in(self, project_dir: Path) -> bool:
        """Make the version live in a project, which may be new; return False if it is live already.

        The write lock must be held.

        Raises:
            InputError: The project has versions of its own.
        """
        if not is_project(project_dir):
            write_current(project_dir, None)
            self._unpack(PROJECT_FILE, project_dir / f"{PROJECT_FILE}{files.NEW}")
            files.rename(project_dir / f"{PROJECT_FILE}{files.NEW}", project_dir / PROJECT_FILE)
        if self.version in version_names(project_dir):
            if read_manifest(version_directory(project_dir, self.version)) != self.manifest:
                raise self._other(project_dir)
            if current_name(project_dir) == self.version:
                return False
        for part in self.manifest.parts:
            directory = project_dir / PARTS / part.name
            if directory.exists():
                try:
                    check_files(directory, part.files, "sha256")
                except CorruptVersionError as error:
                    raise self._other(project_dir) from error
                continue
            building = directory.with_name(f"{part.name}{BUILDING}")
            folder = f"{PARTS}/{part.name}/"
            for name in (name for name in self._files if name.startswith(folder)):
                path = building / name.removeprefix(folder)
                files.make_directory(path.parent)
                self._unpack(name, path)
            for below in sorted({path.parent for path in files.walk(building)}):
                files.sync_directory(below)
            files.rename(building, directory)
        with TemporaryDirectory() as scratch, project_ledger(project_dir) as ledger:
            if LEDGER in self._files:
                self._unpack(LEDGER, Path(scratch) / LEDGER)
                read_ledger(ledger, Path(scratch) / LEDGER)
        self._unpack(PROJECT_FILE, project_dir / f"{PROJECT_FILE}{files.NEW}")
        files.rename(project_dir / f"{PROJECT_FILE}{files.NEW}", project_dir / PROJECT_FILE)
        if self.version in version_names(project_dir):
            write_current(project_dir, self.version)
        else:
            publish_manifest(project_dir, self.manifest, keep_versions=read_config(project_dir).keep_versions)
        return True

    def _other(self, project_dir: Path) -> InputError:
        return InputError(
            f"Project {project_dir.name!r} has a version {self.version} with other documents: it was changed on this"
            f" machine, or is a copy of another project",
            value=project_dir.name,
            remedy=Remedy(
                "import under another name, or delete the project first",
                "import with --name, or delete the project first with `llama-index-contextual delete {project}`",
            ),
        )
