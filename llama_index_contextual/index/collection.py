"""Qdrant collection of a project, which holds its vectors if they are not stored in files.

Text, terms and metadata are still stored in the parts of the project, and CURRENT determines the live version.

collection.json         in the directory of the project: engine, address and name of the collection

`index/remote.py` uses the collection to write and rank the vectors of a version.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from dataclasses import asdict, replace
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BackendError, CorruptVersionError, FormatError, ProjectError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.project_file import read_config
from llama_index_contextual.index.qdrant import Collection, QdrantEngine
from llama_index_contextual.index.versions import (
    current_name,
    directories,
    number,
    remove_version,
    version_directory,
    version_names,
)

logger = logging.getLogger(__name__)

COLLECTION_FILE = "collection.json"
FILES = "files"
"""Name of the backend that needs no engine."""


def check_backend(config: ProjectConfig) -> None:
    """Check that the backend of a new project can be reached and supports the settings.

    Raises:
        ConfigurationError: It does not support the settings; the message says what to do.
        BackendError: It does not respond.
    """
    if config.engine != FILES:
        QdrantEngine.check(config)
        QdrantEngine(Collection(config.engine, _address(config), "")).ping()


def _address(config: ProjectConfig) -> str:
    return config.backend.partition(":")[2]


# ---- the collection of a project -------------------------------------------------------------------------------------


def read_collection(project_dir: Path) -> Collection | None:
    """Return the content of collection.json, or None if there is no such file.

    Raises:
        ProjectError: The file is damaged.
    """
    try:
        return Collection(**json.loads(files.read(project_dir / COLLECTION_FILE)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ProjectError(
            f"{COLLECTION_FILE} of project {project_dir.name!r} is damaged ({type(error).__name__}): restore it from a"
            f" backup; without it, the collection of the project cannot be found.",
            name=project_dir.name,
        ) from error


def write_collection(project_dir: Path, collection: Collection) -> None:
    """Replace collection.json."""
    files.replace(project_dir / COLLECTION_FILE, json.dumps(asdict(collection), indent=1).encode())


def open_engine(project_dir: Path) -> QdrantEngine:
    """Open the collection of a project, at the address in its settings.

    Raises:
        ProjectError: The project has no collection.
    """
    engine = _engine(project_dir)
    if engine is None:
        raise ProjectError(
            f"{COLLECTION_FILE} of project {project_dir.name!r} is missing: restore it from a backup; without it, the"
            f" collection of the project cannot be found.",
            name=project_dir.name,
        )
    return engine


def _engine(project_dir: Path) -> QdrantEngine | None:
    """Open the collection of a project, or return None if it has none."""
    collection = read_collection(project_dir)
    if collection is None:
        return None
    with contextlib.suppress(ProjectError):  # in that case, the address of the last writer is the best guess
        config = read_config(project_dir)
        if config.engine == collection.backend:
            collection = replace(collection, url=_address(config))
    return QdrantEngine(collection)


def use_engine(project_dir: Path, config: ProjectConfig) -> QdrantEngine | None:
    """Open the collection for writing, naming it the first time; return None if vectors are stored in files.

    The project's write lock must be held.

    Raises:
        ProjectError: There are versions with vectors, but no collection at the address in the settings.
    """
    if config.engine == FILES:
        return None
    known, address = read_collection(project_dir), _address(config)
    if known is None or known.backend != config.engine:
        known = Collection(config.engine, address, f"contextual-{uuid.uuid4().hex}")
        write_collection(project_dir, known)
    elif known.url != address:
        former, known = known, replace(known, url=address)
        if _has_vectors(project_dir) and not QdrantEngine(known).exists():
            raise ProjectError(
                f"There is no collection {known.name!r} at {known.url}: set backend to the address of the server"
                f" that has it ({former.url} until now), or copy it to the new one with a snapshot. Without a copy, set"
                f" backend to 'files', `rebuild` and `forget`, then set the new address and `rebuild` again.",
                name=project_dir.name,
            )
        write_collection(project_dir, known)
    return QdrantEngine(known)


def _has_vectors(project_dir: Path) -> bool:
    """Return whether an engine stores the vectors of any version."""
    for name in version_names(project_dir):
        with contextlib.suppress(CorruptVersionError, FormatError):
            manifest = read_manifest(version_directory(project_dir, name))
            if manifest.dimensions is not None and manifest.engine != FILES:
                return True
    return False


def drop_unpublished(project_dir: Path, engine: QdrantEngine) -> None:
    """Remove vectors left by an interrupted writer, and all versions after the live one.

    After a rollback, the next version is based on the live one. The versions in between are removed first, because
    their changes to the vectors are undone.

    Args:
        project_dir: The project, whose write lock must be held.
        engine: Its collection.
    """
    live = _base(project_dir)
    for name in directories(project_dir):
        if number(name) > live:
            remove_version(project_dir, name)
    engine.drop_after(live)


def _base(project_dir: Path) -> int:
    """Return the number of the live version, or of the newest one if CURRENT is damaged; 0 if there is none."""
    try:
        name = current_name(project_dir)
    except ProjectError:
        name = next(reversed(version_names(project_dir)), None)
    return 0 if name is None else number(name)


def drop_unused(project_dir: Path, engine: QdrantEngine) -> None:
    """Remove the vectors that no version on disk contains."""
    names = version_names(project_dir)
    if names:
        engine.drop_before(min(map(number, names)))


def forget_vectors(project_dir: Path, live: str, *, is_remote: bool) -> None:
    """Remove all vectors that the live version does not contain.

    Args:
        project_dir: The project, whose write lock must be held.
        live: Name of the live version.
        is_remote: Whether the engine stores its vectors.
    """
    if not is_remote:
        delete_collection(project_dir)
    elif (engine := _engine(project_dir)) is not None:
        engine.drop_after(number(live))
        engine.drop_before(number(live))


def delete_unused_collection(project_dir: Path) -> None:
    """Remove the collection if all versions store their vectors in files, or log a warning if the server is down."""
    if read_collection(project_dir) is not None and not _has_vectors(project_dir):
        try:
            delete_collection(project_dir)
        except BackendError as error:
            logger.warning("The collection of project %s is not needed any more. %s", project_dir.name, error)


def delete_collection(project_dir: Path) -> None:
    """Remove the collection of a project, if it has one, and collection.json.

    Raises:
        BackendError: The engine does not respond.
    """
    if (engine := _engine(project_dir)) is None:
        return
    try:
        engine.delete()
    except BackendError as error:
        raise BackendError(
            f"{error} If the server is gone for good, remove {COLLECTION_FILE} from {project_dir} first: then the"
            f" collection is left alone.",
            url=error.url,
        ) from error
    files.remove(project_dir / COLLECTION_FILE)
