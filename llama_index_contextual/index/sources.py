"""Find the original files of documents, and remember the downloads of files at URLs."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.errors import ReadError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import DocumentRecord, with_checksum, without_checksum
from llama_index_contextual.readers.files import content_hash, is_url, unescaped

DOWNLOADS_FILE = "downloads.json"

_MAX_NAMESAKES = 32
"""Maximum number of files per folder that are compared with a document because they have the same name."""
_MAX_HASHES = 4096


def inputs_of(records: Iterable[DocumentRecord]) -> dict[str, str]:
    """Find the folder or file from which each document can be ingested again under the same id.

    Args:
        records: Records of the documents.

    Returns:
        A mapping of document ids to paths, for documents whose files still exist, and to URLs.
    """
    inputs = {}
    for record in records:
        if is_url(record.path):
            inputs[record.doc_id] = str(record.path)
        elif Path(record.path or "").is_file():
            inputs[record.doc_id] = str(input_of(record))
    return inputs


def input_of(record: DocumentRecord) -> Path:
    """Return the folder or file from which a document was ingested, even if it no longer exists."""
    path = Path(record.path or "")
    names = tuple(map(unescaped, record.doc_id.split("/")))
    is_below = len(names) > 1 and path.parts[-len(names) :] == names
    return path.parents[len(names) - 2] if is_below else path


# ---- downloads -------------------------------------------------------------------------------------------------------


def read_downloads(project_dir: Path) -> dict[str, tuple[str, str]]:
    """Return the fingerprint and the xxh3 hash of each file that earlier runs have downloaded, by URL.

    The result is empty if the file is missing or damaged: the files are then downloaded again.
    """
    try:
        rows = without_checksum(parse_json(files.read(project_dir / DOWNLOADS_FILE)))["downloads"]
        return {str(url): (str(fingerprint), str(digest)) for url, (fingerprint, digest) in rows.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def store_downloads(project_dir: Path, downloads: Mapping[str, tuple[str, str]]) -> None:
    """Store the result of `read_downloads` for later runs, if it has changed. The write lock must be held."""
    if downloads:
        if downloads != read_downloads(project_dir):
            rows = {url: list(downloads[url]) for url in sorted(downloads)}
            files.replace(project_dir / DOWNLOADS_FILE, with_checksum({"downloads": rows}))
    elif (project_dir / DOWNLOADS_FILE).is_file():
        files.remove(project_dir / DOWNLOADS_FILE)


# ---- finding a document's original file ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceFile:
    """The original file of a document, or the reason why there is none.

    Attributes:
        path: Path of the file; None if it was not found or has changed.
        digest: xxh3 checksum of the file, or "" if there is no path.
        problem: Reason why there is no path; "text" means that the document was not read from a file.
    """

    path: Path | None
    digest: str = ""
    problem: Literal["changed", "missing", "text"] | None = None


class SourceFinder:
    """Finder for the original files of a project's documents.

    A file is accepted only if its content is the same as when it was ingested. The finder is thread-safe.

    Args:
        folders: Folders to search for files that are no longer in their original place.
    """

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self._folders = [Path(os.path.realpath(folder)) for folder in folders]
        self._lock = Lock()
        self._hashes: dict[tuple[str, int, int, int], str] = {}

    def find(self, record: DocumentRecord) -> SourceFile:
        """Return the original file of a document, or the reason why it was not found."""
        if record.path is None:
            return SourceFile(None, problem="text")
        has_changed = False
        for path in self._candidates(record, Path(record.path)):
            digest = self._digest(path)
            if digest is None:
                continue
            if digest == record.content_hash:
                return SourceFile(path, digest)
            has_changed = True
        return SourceFile(None, problem="changed" if has_changed else "missing")

    def _candidates(self, record: DocumentRecord, former: Path) -> Iterator[Path]:
        if not is_url(record.path):
            yield former
        names = record.doc_id.split("/")
        for folder in self._folders:
            for at in range(len(names)):
                path = folder.joinpath(*names[at:])
                if path.is_relative_to(folder) and ".." not in path.parts:
                    yield path
        yield from self._namesakes(record)

    def _namesakes(self, record: DocumentRecord) -> Iterator[Path]:
        name = glob.escape(record.file_name or record.doc_id.rpartition("/")[2])
        for folder in self._folders:
            yield from itertools.islice(folder.rglob(name), _MAX_NAMESAKES)

    def _digest(self, path: Path) -> str | None:
        """Return the cached or computed xxh3 checksum of a file, or None if it cannot be read."""
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
