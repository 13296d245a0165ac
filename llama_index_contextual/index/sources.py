"""Paths of the files that documents were read from, so that their pages can be shown next to the text.

A version stores no path, only the SHA-256 of one, so that it can be passed on. The paths themselves are kept in
`sources.json` in the project's directory: it is not part of a version and is not exported. A project works without it.
It has one path on each line after the first, as a JSON string, so that new paths are appended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.forks import new_lock
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ReadError
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import content_key
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.readers.base import is_own_key
from llama_index_contextual.readers.discovery import content_hash, printable, unescaped

logger = logging.getLogger(__name__)

SOURCES_FILE = "sources.json"

_HEAD = b'{"format": 1}\n'
"""First line of the file; each further line is a path."""
_MAX_NAMESAKES = 32
"""Number of files with the same name that are compared with a document."""
_MAX_FILES = 200_000
"""Number of files that are listed in the folders of documents."""
_LISTED_SECONDS = 30.0
_MAX_HASHES = 4096


def origin(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of the real path of a file, by which it is recognized without storing the path."""
    return origin_of(os.path.realpath(path))


def origin_of(real_path: str) -> str:
    """Return the SHA-256 of a path without links."""
    return hashlib.sha256(os.fsencode(real_path)).hexdigest()


def content_hash_with(digest: str, facts: Mapping[str, Any]) -> str:
    """Return the content hash of a document whose file has the xxh3 `digest`, including the user's metadata of it."""
    return content_key(digest, json.dumps(facts, sort_keys=True)) if facts else digest


def former_facts(version: OpenVersion, record: DocumentRecord) -> list[dict[str, Any]]:
    """Return what the user's metadata of a document may have been: without a title, and with it if there is one.

    A title may come from the user or from the file; only the content hash of an unchanged file tells.
    """
    if (frame := version.frame(record.doc_id)) is None:
        return [{}]
    # Metadata that a reader finds in a file is never embedded.
    own = {
        k: v for k, v in frame.metadata.items() if not is_own_key(k) and k not in {keys.TITLE, *frame.excluded_embed}
    }
    title = frame.metadata.get(keys.TITLE)
    return [own] if title is None else [own, {**own, keys.TITLE: title}]


# ---- sources.json ----------------------------------------------------------------------------------------------------


def read_sources(project_dir: Path) -> dict[str, str]:
    """Return the path of each file by its origin; none if the file is missing or damaged."""
    return {origin_of(path): path for path in _read_paths(project_dir)}


def _read_paths(project_dir: Path) -> list[str]:
    try:
        content = files.read(project_dir / SOURCES_FILE)
        if not content.startswith(_HEAD):
            raise ValueError("not a list of paths")
        entries = map(_path_in, content.splitlines()[1:])
        return [path for path in entries if isinstance(path, str) and "\0" not in path]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        logger.warning(
            "%s/%s cannot be read (%s) and is written anew by the next ingest.",
            project_dir.name,
            SOURCES_FILE,
            type(error).__name__,
        )
        return []


def inputs_of(project_dir: Path, records: Iterable[DocumentRecord]) -> dict[str, str]:
    """Return what to ingest to read documents again under the same ids: the folder that was given, or the file.

    Args:
        project_dir: Directory of the project.
        records: Records of the documents.

    Returns:
        The path by document id, for the documents whose file still exists.
    """
    paths, inputs = read_sources(project_dir), {}
    for record in records:
        path = Path(paths.get(record.origin or "", ""))
        names = tuple(map(unescaped, record.doc_id.split("/")))
        if path.is_file():
            is_below = len(names) > 1 and path.parts[-len(names) :] == names
            inputs[record.doc_id] = str(path.parents[len(names) - 2] if is_below else path)
    return inputs


def sources_fault(project_dir: Path, origins: Collection[str]) -> str | None:
    """Return what is wrong with the file, or None; a project without it is sound.

    Args:
        project_dir: Directory of the project.
        origins: Origins of the documents of the live version.
    """
    if not (project_dir / SOURCES_FILE).exists():
        return None
    missing = len(set(origins) - read_sources(project_dir).keys())
    return f"has no path for {pluralize(missing, 'file')} of the live version" if missing else None


def _path_in(line: bytes) -> object:
    """Return the path in a line; None if it is incomplete, because writing it was interrupted."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _line(path: str) -> bytes:
    # ASCII: a path may contain bytes that are not text, which Python represents by lone surrogates.
    return json.dumps(path).encode("ascii")


def remember_sources(project_dir: Path, paths: Iterable[str | os.PathLike[str]]) -> None:
    """Add files to those whose paths are known; the project's write lock must be held.

    If the file cannot be written, a warning is logged: the version that was published is complete without it.
    """
    real_paths = {os.path.realpath(path) for path in paths}
    if not real_paths:
        return
    try:
        _add(project_dir, real_paths)
    except OSError as error:
        logger.warning(
            "%s/%s could not be written (%s): pages of the new files can only be shown if their folder is named.",
            project_dir.name,
            SOURCES_FILE,
            error.strerror or error,
        )


def _add(project_dir: Path, paths: Collection[str]) -> None:
    path = project_dir / SOURCES_FILE
    content = files.read(path) if path.is_file() else b""
    if not content.startswith(_HEAD):  # of format 1, damaged or missing
        files.replace(path, _content({*_read_paths(project_dir), *paths}))
        return
    known = set(content.splitlines())
    if lines := sorted({_line(path) for path in paths} - known):
        # The last line may be incomplete, because writing it was interrupted.
        start = b"" if content.endswith(b"\n") else b"\n"
        files.append(path, start + b"".join(line + b"\n" for line in lines))


def forget_sources(project_dir: Path, keep: Collection[str | None]) -> None:
    """Remove all paths whose origin is not in `keep`; the project's write lock must be held."""
    path = project_dir / SOURCES_FILE
    if not path.exists():
        return
    kept = {path for origin, path in read_sources(project_dir).items() if origin in keep}
    if not kept:
        files.remove(path)
        files.sync_directory(project_dir)
    elif files.read(path) != (content := _content(kept)):
        files.replace(path, content)


def _content(paths: Iterable[str]) -> bytes:
    return _HEAD + b"".join(_line(path) + b"\n" for path in sorted(paths))


# ---- Finding the file of a document ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    """The original file of a document, or the reason why there is none.

    Attributes:
        path: Its path; None if it was not found or has changed.
        digest: Its xxh3; "" without a path.
        problem: Why there is no path: "text" for a document that was not read from a file.
    """

    path: Path | None
    digest: str = ""
    problem: Literal["changed", "missing", "text"] | None = None


class SourceFinder:
    """Search for the original files of a project's documents.

    A file is accepted only if its content is the content that was ingested. It may be used from several threads.

    Args:
        project_dir: Directory of the project.
        folders: Folders with copies of the files, if they are no longer where they were ingested.
    """

    def __init__(self, project_dir: Path, folders: Sequence[Path] = ()) -> None:
        self._project_dir = project_dir
        self._folders = [Path(os.path.realpath(folder)) for folder in folders]
        self._lock = new_lock()
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self._paths_by_name: dict[str, list[Path]] = {}
        self._listed_at: float | None = None
        self._known: tuple[tuple[int, int, int], dict[str, str]] | None = None

    def find(self, version: OpenVersion, record: DocumentRecord) -> SourceFile:
        """Return the file of a document in a version."""
        if record.origin is None:
            return SourceFile(None, problem="text")
        expected = [{}, *former_facts(version, record)]
        has_changed = False
        remembered = self._sources().get(record.origin)
        for path in self._candidates(record, remembered):
            digest = self._digest(path)
            if digest is None:
                continue
            if any(content_hash_with(digest, facts) == record.content_hash for facts in expected):
                return SourceFile(path, digest)
            has_changed = True
        return SourceFile(None, problem="changed" if has_changed else "missing")

    def _sources(self) -> dict[str, str]:
        """Return the paths that the project knows; the file is read again only if it was replaced."""
        try:
            status = os.stat(self._project_dir / SOURCES_FILE)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            return {}
        with self._lock:
            if self._known is None or self._known[0] != stamp:
                self._known = stamp, read_sources(self._project_dir)
            return self._known[1]

    def _candidates(self, record: DocumentRecord, remembered: str | None) -> Iterator[Path]:
        if remembered is not None:
            yield Path(remembered)
        names = record.doc_id.split("/")
        for folder in self._folders:
            for at in range(len(names)):
                path = folder.joinpath(*names[at:])
                if path.is_relative_to(folder) and ".." not in path.parts:
                    yield path
        if self._folders:
            yield from self._namesakes(record)

    def _namesakes(self, record: DocumentRecord) -> list[Path]:
        name = record.file_name or record.doc_id.rpartition("/")[2]
        with self._lock:
            is_old = self._listed_at is None or time.monotonic() - self._listed_at > _LISTED_SECONDS
            if is_old and name not in self._paths_by_name:
                self._paths_by_name = _paths_by_name(self._folders)
                self._listed_at = time.monotonic()
            return self._paths_by_name.get(name, [])[:_MAX_NAMESAKES]

    def _digest(self, path: Path) -> str | None:
        """Return the xxh3 of a file, or None if there is no such file; known ones are not read again."""
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        key = (str(path), status.st_size, status.st_mtime_ns, status.st_ino)
        with self._lock:
            if key in self._hashes:
                return self._hashes[key]
        try:
            digest = content_hash(path)
        except ReadError:
            return None
        with self._lock:
            if len(self._hashes) >= _MAX_HASHES:
                self._hashes.clear()
            self._hashes[key] = digest
        return digest


def _paths_by_name(folders: Iterable[Path]) -> dict[str, list[Path]]:
    paths: dict[str, list[Path]] = {}
    count = 0
    for root in folders:
        for folder, subfolders, names in os.walk(root):
            subfolders.sort()
            for name in sorted(names):
                count += 1
                if count > _MAX_FILES:
                    logger.warning("The folders of documents contain more than %s files.", f"{_MAX_FILES:,}")
                    return paths
                paths.setdefault(printable(name), []).append(Path(folder, name))
    return paths
