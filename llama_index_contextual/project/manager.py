"""Create, list, load and delete projects in a root folder."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Unpack

from llama_index_contextual._utils.files import explains_limit
from llama_index_contextual._utils.keywords import accepts, suggests_attributes
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    InputError,
    PathNotFoundError,
    ProjectError,
    ProjectExistsError,
    ProjectNotFoundError,
    Remedy,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.answers import ANSWERS_FILE
from llama_index_contextual.index.archive import Archive, ProjectCopy, write_archive
from llama_index_contextual.index.inbox import INBOX, LOG_FILE, REMOVED, WAITING
from llama_index_contextual.index.ledger import LEDGER_FILE, damaged_ledgers
from llama_index_contextual.index.ledger_lines import LedgerRows, export_ledger
from llama_index_contextual.index.manifest import PARTS, read_manifest
from llama_index_contextual.index.project_file import (
    LOCK_FILE,
    PROJECT_FILE,
    check_name,
    existing_project,
    is_project,
    no_link,
    project_names,
    read_config,
    remove_scratch,
    write_config,
    write_lock,
)
from llama_index_contextual.index.qdrant import COLLECTION_FILE, check_backend, delete_collection
from llama_index_contextual.index.sources import DOWNLOADS_FILE, read_downloads, store_downloads
from llama_index_contextual.index.verify import VerifyReport, repair_project, verify_project
from llama_index_contextual.index.versions import CURRENT, VERSIONS, current_name, version_directory, write_current
from llama_index_contextual.ingestion.report import SKIPPED_FILE
from llama_index_contextual.ingestion.state import ModelObjects, ProjectState, require_llm
from llama_index_contextual.models import missing_for
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.files import is_url, printable
from llama_index_contextual.readers.remote import RemoteFiles
from llama_index_contextual.readers.urls import RemoteError, checked_url

logger = logging.getLogger(__name__)

_WINDOWS = os.name == "nt"
_LEDGER = (LEDGER_FILE, f"{LEDGER_FILE}-journal")
"""The ledger, and the journal with which SQLite repairs it after an interruption. They are kept or deleted together."""
_REPORTS = (
    *(ANSWERS_FILE, f"{ANSWERS_FILE}-journal"),
    *(name for file in (SKIPPED_FILE, DOWNLOADS_FILE) for name in (file, f"{file}.new")),
)
"""Cached answers, the files that the last run skipped, and the downloads of earlier runs."""
_ADDED = (INBOX, WAITING, REMOVED, LOG_FILE)
"""Files that users added in the Workbench."""
_DELETED = (
    VERSIONS,
    PARTS,
    *_ADDED,
    *_REPORTS,
    *_LEDGER,
    COLLECTION_FILE,
    CURRENT,
    f"{CURRENT}.new",
    f"{PROJECT_FILE}.new",
)
"""The files and directories of a project, except its settings, in order of deletion. CURRENT is set to `none` first,
so that readers see an empty project; project.json is deleted last, so that an interrupted deletion can be repeated.
"""
_OWN_FILES = frozenset({*_DELETED, PROJECT_FILE, LOCK_FILE})


@suggests_attributes(
    dict.fromkeys(("get", "open", "get_project", "open_project"), "load(name)")
    | {"from_documents": "create(name), and then ingest(documents) of the project"}
)
@explains_limit
class ProjectManager:
    """Manager for the projects in a root folder.

    Args:
        root: The root folder; it is created with the first project.

    Example:
        >>> manager = ProjectManager("knowledge")  # doctest: +SKIP
        >>> project = manager.create("contracts", ProjectConfig.local())  # doctest: +SKIP
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @accepts(ModelObjects)
    def create(self, name: str, config: ProjectConfig | None = None, **models: Unpack[ModelObjects]) -> Project:
        """Create an empty project.

        A missing key or package for a model is only logged at level INFO (the command line prints the message),
        because it may be available by the time the model is needed, and `estimate` works without it.

        Args:
            name: Letters, digits, spaces, `-`, `_` and single dots, at most 64 characters.
            config: Settings of the project; None uses the defaults.
            **options

        Raises:
            ConfigurationError: `model_id` is given without `llm`.
            InputError: The name is not a valid directory name on every system, or the directory contains other files.
            ModelError: The settings contain a model from an unknown provider.
            ProjectExistsError: A project with this name already exists.
        """
        require_llm(models)
        directory = no_link(self.root / check_name(name))
        if is_project(directory):
            raise _exists(name)
        self._require_free(directory)
        config = config or ProjectConfig()
        check_backend(config)
        notes = missing_for_models(config, objects=[name for name, model in models.items() if model is not None])
        files.make_directory(directory)
        # Sync even if the directory already existed, because an interrupted run may not have written it to disk.
        files.sync_directory(self.root)
        files.sync_directory(self.root.absolute().parent)
        with write_lock(directory):
            if is_project(directory):
                raise _exists(name)
            # Files left behind by an interrupted deletion must not become part of the new project.
            _remove_own(directory, keep=_LEDGER)
            write_current(directory, None)
            write_config(directory, config)
        for note in notes:
            logger.info(note)
        project = Project(ProjectState(directory, config, **models))
        project.created = True
        project.state.warn_of_settings()
        return project

    @accepts(ModelObjects)
    def get_or_create(self, name: str, config: ProjectConfig | None = None, **models: Unpack[ModelObjects]) -> Project:
        """Open a project, or create it if it does not exist; `Project.created` is true if it was created.

        Args:
            name: As for `create`.
            config: Settings for a new project; an existing project must have the same settings. None accepts the
                settings of an existing project and uses the defaults for a new project.
            **options

        Raises:
            ConfigurationError: The project exists with different settings; the message lists them.
            InputError: The name is not a valid directory name on every system, or the directory contains other files.

        Example:
            >>> project = ProjectManager("knowledge").get_or_create("contracts")  # doctest: +SKIP
        """
        if not is_project(no_link(self.root / check_name(name))):
            try:
                return self.create(name, config, **models)
            except ProjectExistsError:
                pass  # another process has created it in the meantime
        project = self.load(name, **models)
        if config is not None:
            _require_same(name, project.config, config)
        return project

    @accepts(ModelObjects)
    def load(self, name: str, **models: Unpack[ModelObjects]) -> Project:
        """Open a project.

        Args:
            name: Name of the project.
            **options

        Raises:
            ConfigurationError: `model_id` is given without `llm`.
            ProjectNotFoundError: There is no project with this name.
            ProjectError: The project's project.json is damaged.
            FormatError: The project was written by a newer release.
        """
        directory = self._existing(name)
        config = read_config(directory)
        return Project(ProjectState(directory, config, **models))

    def verify(self, name: str, *, repair: bool = False) -> VerifyReport:
        """Check a project like `Project.verify`, even if it cannot be loaded because its project.json is damaged.

        Args:
            name: Name of the project.
            repair: As for `Project.verify`; the live version is only repaired if the project can be loaded.

        Raises:
            ProjectNotFoundError: There is no project with this name.
        """
        directory = no_link(self.root / check_name(name))
        try:
            project = self.load(name)
        except ProjectError as error:  # the report contains the error
            if isinstance(error, ProjectNotFoundError) and not (directory / VERSIONS).is_dir():
                raise
            return (repair_project if repair else verify_project)(directory)
        return project.verify(repair=repair)

    def export_ledger(self, name: str, path: str | Path) -> LedgerRows:
        """Export the ledger of a project, even if the project cannot be opened; see `index.ledger_lines.export_ledger`.

        Raises:
            ProjectNotFoundError: There is no project with this name.
            LedgerError: A provider is still processing a batch.
        """
        return export_ledger(self._existing(name), path)

    def export_project(self, name: str, target: str | Path, *, ledger: bool = True) -> ProjectCopy:
        """Export a whole project as one file, from which other machines import it; see `index.archive`.

        Other processes may publish versions in the meantime.

        Args:
            name: Name of the project.
            target: The file to write, or its URL, such as "s3://bucket/contracts.zip"; it is replaced.
            ledger: Whether to include the contexts and embeddings that were paid for.

        Raises:
            CorruptVersionError: A file of the live version is damaged.
            InputError: The target cannot be written, or the vectors of the project are in an engine, such as Qdrant.
            LedgerError: A provider is still working on a batch.
            NoVersionError: Nothing has been ingested yet.
        """
        directory = self._existing(name)
        if not is_url(target):
            return write_archive(directory, Path(target), ledger=ledger)
        url = checked_url(str(target))
        with RemoteFiles(allow_private=True) as remote, TemporaryDirectory() as scratch, _as_input_error(url):
            path = Path(scratch) / "project.zip"
            copy = write_archive(directory, path, ledger=ledger)
            remote.upload(path, url)
            return copy

    def import_project(
        self, source: str | Path, name: str | None = None, *, allow_private_addresses: bool = False
    ) -> ProjectCopy:
        """Import a project from a file that `export_project` wrote, or update an earlier import.

        The whole file is checked before anything is changed. Searches in other processes change to the new version at
        once, as after an ingestion. If a URL has not changed since the last import, it is not downloaded again.

        Args:
            source: The file, or its URL.
            name: Name of the project here; None uses the name of the project that was exported.
            allow_private_addresses: Whether a web server at an internal address may be asked.

        Raises:
            CorruptVersionError: The file is damaged or incomplete; nothing was changed.
            InputError: The file cannot be read, or the project has been changed on this machine.
            ProjectLockedError: Another process is writing to the project.
        """
        if not is_url(source):
            path = Path(source)
            if not path.is_file():
                raise PathNotFoundError(f"{path} does not exist: name a file that was exported.", value=[str(path)])
            return self._import(path, name)[0]
        url = checked_url(str(source))
        with (
            RemoteFiles(allow_private=allow_private_addresses) as remote,
            TemporaryDirectory() as scratch,
            _as_input_error(url),
        ):
            fingerprint = remote.fingerprint(url)
            if name is not None and is_project(directory := no_link(self.root / check_name(name))):
                version = current_name(directory)
                if version and fingerprint and read_downloads(directory).get(url) == (fingerprint, version):
                    documents = read_manifest(version_directory(directory, version)).documents
                    return ProjectCopy(name=name, version=version, documents=documents, bytes=0, is_new=False)
            path = Path(scratch) / "project.zip"
            remote.download(url, path)
            copy, directory = self._import(path, name)
            if remote.fingerprint(url) == fingerprint:
                with write_lock(directory):
                    store_downloads(directory, {**read_downloads(directory), url: (fingerprint, copy.version)})
            return copy

    def _import(self, path: Path, name: str | None) -> tuple[ProjectCopy, Path]:
        with Archive(path) as archive:
            directory = no_link(self.root / check_name(archive.name if name is None else name))
            if not is_project(directory):
                self._require_free(directory)
                files.make_directory(directory)
                files.sync_directory(self.root)
            with write_lock(directory):
                is_new = archive.publish_in(directory)
            copy = ProjectCopy(
                name=archive.name,
                version=archive.version,
                documents=archive.manifest.documents,
                bytes=path.stat().st_size,
                is_new=is_new,
            )
            return copy, directory

    def list(self) -> list[str]:
        """Return the names of all projects, sorted."""
        return project_names(self.root)

    def delete(self, name: str, *, keep_ledger: bool = False) -> None:
        """Delete a project permanently; other files in its directory are kept.

        Args:
            name: Name of the project.
            keep_ledger: Whether to keep `ledger.sqlite`, so that a new project with the same name reuses its contexts.

        Raises:
            ProjectNotFoundError: There is no project with this name.
            ProjectLockedError: Another process is writing to the project.
        """
        directory = self._existing(name)
        with write_lock(directory):
            remove_scratch(directory)
            write_current(directory, None)
            delete_collection(directory)
            _remove_own(directory, keep=_LEDGER if keep_ledger else ())
            for path in damaged_ledgers(directory):
                files.remove(path)
            files.remove(directory / PROJECT_FILE)
            files.sync_directory(directory)
            if not _WINDOWS:
                # Remove it while the lock is held: afterwards, the file may belong to another process.
                files.remove(directory / LOCK_FILE)
        if _WINDOWS:
            files.remove(directory / LOCK_FILE)
        files.remove_if_empty(directory)

    def _existing(self, name: str) -> Path:
        return existing_project(self.root, name)

    def _require_free(self, directory: Path) -> None:
        """Check that the directory of a new project contains no other files.

        Raises:
            InputError: The directory contains other files, or is a file.
        """
        for path in (self.root, directory):
            if path.exists() and not path.is_dir():
                raise InputError(f"{path} is a file: choose another name or another root folder.", value=str(path))
        own_names = {*_OWN_FILES, *(path.name for path in damaged_ledgers(directory))}
        foreign = sorted(p.name for p in directory.iterdir() if p.name not in own_names) if directory.exists() else []
        if foreign:
            raise InputError(
                f"The folder {directory} contains other files ({foreign[0]!r}): a project needs its own folder;"
                f" choose another name or another root folder.",
                value=directory.name,
            )


@contextlib.contextmanager
def _as_input_error(url: str) -> Iterator[None]:
    """Convert the errors of a source to InputError."""
    try:
        yield
    except RemoteError as error:
        raise InputError(f"{printable(url)} {error.reason}. Nothing was changed.", value=url) from error
    except FileNotFoundError as error:
        raise PathNotFoundError(
            f"{printable(url)} does not exist: name a file that was exported.", value=[url]
        ) from error


def missing_for_models(config: ProjectConfig, *, objects: Collection[str] = ()) -> list[str]:
    """Return one sentence for each missing key or package of the models in the settings, without calling a model.

    Args:
        config: The settings.
        objects: Names of the models, "llm" or "embed_model", for which objects are passed.

    Raises:
        ModelError: The provider of a model is unknown, or has no models of this kind.
    """
    notes = []
    if "embed_model" not in objects and config.builds_semantic:
        notes.append(missing_for(config.embed_model, setting="embed_model"))
    if "llm" not in objects:
        of_llm = None if config.llm is None else missing_for(config.llm, setting="llm")
        if config.context == "llm":
            notes.append(of_llm)
        if config.answer_llm is not None:
            notes.append(missing_for(config.answer_llm, setting="answer_llm"))
    return list(dict.fromkeys(note for note in notes if note is not None))


_FORMER_DEFAULTS = {"rerank_threshold": None}
"""Former defaults that existing projects keep, although the present defaults differ."""


def _require_same(name: str, config: ProjectConfig, settings: ProjectConfig) -> None:
    """Check that an existing project has the given settings.

    Raises:
        ConfigurationError: The settings differ.
    """
    before, after = config.model_dump(), settings.model_dump()
    explicit = settings.model_fields_set
    differences = [
        field
        for field in after
        if before[field] != after[field] and (field in explicit or before[field] != _FORMER_DEFAULTS.get(field, ...))
    ]
    if differences:
        difference_list = ", ".join(f"{field} is {before[field]!r}, not {after[field]!r}" for field in differences)
        raise ConfigurationError(
            f"Project {name!r} exists with other settings: {difference_list}",
            setting=differences[0] if len(differences) == 1 else None,
            remedy=Remedy(
                "pass no config to use its settings, or change them with `project.update_config(...)`",
                "change its settings with `llama-index-contextual configure {project} NAME=VALUE…`",
            ),
        )


def _exists(name: str) -> ProjectExistsError:
    return ProjectExistsError(
        f"Project {name!r} exists already",
        name=name,
        remedy=Remedy(
            "load it, delete it, or choose another name",
            "choose another name, or delete it first with `llama-index-contextual delete {project}`",
        ),
    )


def _remove_own(directory: Path, *, keep: Collection[str]) -> None:
    for entry in _DELETED:
        path = directory / entry
        if entry not in keep:
            (files.remove_tree if path.is_dir() and not path.is_symlink() else files.remove)(path)
