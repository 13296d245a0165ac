"""Manifests of versions and parts: names of the files, records of documents, and checks of the files.

Files are checked before any library parses them. The headers of FAISS files are compared with the sizes of the files:
FAISS allocates as much memory as the header specifies, so a damaged header can terminate the process.

parts/p000001/                     a part, which several versions may share
  part.json                        content of the part, with size and checksums of every file
  docstore.sqlite                  chunks, records of the documents, and data to reconstruct them
  documents.json                   copy of the records, used to list the documents of a damaged part
  default__vector_store.faiss      vectors (absent without the semantic index)
  born.bin, sample.bin             in place of the FAISS file if an engine stores the vectors
  bm25/                            lexical index (absent without it)
  bm25/documents/                  index of documents by name and opening
versions/v000001/
  manifest.json                    the parts of the version, and the documents removed from each

Each chunk of a part has one row: row r is the r-th chunk in the document store and in each index. The rows of a
document are consecutive, and the documents are in the order of their numbers.
"""

from __future__ import annotations

import errno
import functools
import json
import re
import struct
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, overload

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import TypeAdapter

from llama_index_contextual.errors import CorruptVersionError, FormatError, Remedy
from llama_index_contextual.index import files

FORMAT = 1
"""Layout of versions, parts and project.json. Before the first release, they had a `format_version` instead."""
MANIFEST = "manifest.json"
PART_MANIFEST = "part.json"
PARTS = "parts"
BUILDING = ".building"
"""Suffix of a directory that is being written."""
DOCSTORE = "docstore.sqlite"
RECORDS = "documents.json"
VECTOR_STORE = "vector_store.faiss"
FAISS_FILE = f"default__{VECTOR_STORE}"  # as LlamaIndex names the file of a default vector store
BM25_DIRECTORY = "bm25"
DOCUMENTS_DIRECTORY = "bm25/documents"
BORN_FILE = "born.bin"
"""The versions in which the vectors of a part were added; only used if an engine stores them."""
SAMPLE_FILE = "sample.bin"

_CHECKSUM = "xxh3"
_PART_NAME = re.compile(r"p\d{6,}(-\d+)?")


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    """Record of a document in a version.

    Attributes:
        doc_id: Id of the document; a relative path with forward slashes if it was read from a file.
        content_hash: xxh3 of the file, or of text and metadata if there is no file.
        path: Path of its file, without links; None if it was passed as a Document or as nodes.
        facts: The user's metadata for its file, or None.
        file_name: Name of its file, or None.
        title: Its title, or None.
        chunks: Number of its chunks.
        tokens: Number of tokens of its chunks; overlaps are counted twice.
        characters: Length of its text.
        fallback_chunks: Ids of chunks for which the LLM failed to write a context.
    """

    doc_id: str
    content_hash: str
    path: str | None = field(default=None, repr=False)
    facts: Mapping[str, Any] | None = field(default=None, hash=False)
    file_name: str | None = None
    title: str | None = None
    chunks: int = 0
    tokens: int = 0
    characters: int = 0
    fallback_chunks: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fallback_chunks", tuple(self.fallback_chunks))  # a list when read from JSON


Files = Mapping[str, Mapping[str, Any]]
"""Size (`bytes`), `xxh3` and `sha256` of each file, by its path relative to the directory that contains them."""


@dataclass(frozen=True, kw_only=True)
class PartManifest:
    """Manifest of a part.

    Attributes:
        part: Name of the part.
        documents: Number of its documents.
        chunks: Number of their chunks.
        dimensions: Length of the vectors, or None without vectors.
        files: Its files.
        format: Layout of the files.
    """

    part: str
    documents: int
    chunks: int
    dimensions: int | None
    files: Files = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> bytes:
        """Return the manifest as JSON, including a checksum of itself."""
        return _sealed(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, *, file: str) -> PartManifest:
        """Read the manifest of a part.

        Raises:
            CorruptVersionError: The data is not the manifest of a part, or is damaged.
            FormatError: The manifest was written by a newer release, or before the first one.
        """
        return _read(cls, data, file)


@dataclass(frozen=True, kw_only=True)
class PartEntry:
    """A part of a version.

    Attributes:
        name: Name of the part.
        xxh3: Checksum of its part.json, which contains those of its files.
        gone: Numbers of its documents that the version does not contain, as ranges (first, last).
    """

    name: str
    xxh3: str
    gone: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of a version.

    Attributes:
        version: Name of the version.
        created: Time of publication in UTC, ISO 8601.
        package: Release of this package that wrote it.
        config: The project's settings at that time.
        embed_model: Name of the embedding model, or None without a semantic index.
        dimensions: Length of the vectors, or None.
        documents: Number of documents.
        chunks: Number of chunks.
        size: Bytes of its files.
        parts: The parts, in the order of their rows.
        automatic: Whether it was published by a program that watches folders.
        keeps: Name of the previous version, if this one removed many documents; it is then kept as long as this one.
        format: Layout of the version.
    """

    version: str
    created: str
    package: str
    config: Mapping[str, Any]
    embed_model: str | None
    dimensions: int | None
    documents: int
    chunks: int
    size: int = 0
    parts: Sequence[PartEntry] = ()
    automatic: bool = False
    keeps: str | None = None
    format: int = FORMAT

    @property
    def engine(self) -> str:
        """Where the vectors are stored: "files", or the name of an engine, such as "qdrant"."""
        return str(self.config["backend"]).partition(":")[0]

    def to_json(self) -> bytes:
        """Return the manifest as JSON, including a checksum of itself."""
        content = asdict(self)
        if not self.automatic:
            del content["automatic"]
        if self.keeps is None:
            del content["keeps"]
        return _sealed(content)

    @classmethod
    def from_json(cls, data: bytes, *, file: str) -> Manifest:
        """Read a manifest.

        Raises:
            CorruptVersionError: The data is not a manifest, or is damaged.
            FormatError: The manifest was written by a newer release, or before the first one.
        """
        return _read(cls, data, file)


T = TypeVar("T", Manifest, PartManifest)


def _sealed(content: Mapping[str, Any]) -> bytes:
    return json.dumps({**content, _CHECKSUM: checksum(content)}, ensure_ascii=False, indent=1).encode()


def _read(kind: type[T], data: bytes, file: str) -> T:
    try:
        raw = json.loads(data)
        require_format(raw, file)
        if raw.pop(_CHECKSUM) != checksum(raw):
            raise damage_error(file, "has changed since it was published")
        kind(**raw)  # rejects unknown keys; pydantic rejects values of a wrong type
        manifest: T = _types()[kind.__name__].validate_python(raw)
        for name, entry in getattr(manifest, "files", {}).items():
            _check_entry(name, entry)
        for part in getattr(manifest, "parts", ()):
            _check_part(part)
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damage_error(file, f"is not a manifest ({type(error).__name__})") from error


def require_format(raw: Mapping[str, Any], file: str, *, name: str | None = None) -> None:
    """Check that this release can read a file with a `format`.

    Args:
        raw: Content of the file.
        file: The file, for the message.
        name: Name of the project, if known.

    Raises:
        FormatError: The file was written by a newer release, or before the first one.
    """
    if "format_version" in raw:
        raise FormatError(f"{file} was written before the first release", name=name, remedy=_TAKE_ALONG)
    if raw["format"] > FORMAT:
        raise FormatError(
            f"{file} has format {raw['format']}, this release reads up to {FORMAT}: upgrade llama-index-contextual.",
            name=name,
        )


@functools.cache
def _types() -> Mapping[str, TypeAdapter[Any]]:
    return {kind.__name__: TypeAdapter(kind) for kind in (Manifest, PartManifest)}


def _check_entry(name: str, entry: Mapping[str, Any]) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is outside the version")
    if not (type(entry["bytes"]) is int and isinstance(entry["xxh3"], str) and isinstance(entry["sha256"], str)):
        raise TypeError(f"{name!r} has no size and checksums")


def _check_part(part: PartEntry) -> None:
    if not _PART_NAME.fullmatch(part.name):
        raise ValueError(f"{part.name!r} is not the name of a part")
    numbers = [-1, *(number for pair in part.gone for number in pair)]
    if any(first > last for first, last in part.gone) or numbers != sorted(numbers):
        raise ValueError(f"the documents of {part.name} that are gone are not in order")


def checksum(content: Mapping[str, Any]) -> str:
    """Return the xxh3 (64 bits) of a JSON object in hexadecimal, regardless of white space and the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())


def damage_error(file: str, fault: str) -> CorruptVersionError:
    """Return the error for a damaged file of a version; its message says what to do."""
    return CorruptVersionError(
        f"{file} {fault}.",
        file=file,
        # Without its manifest, the parts of a version are unknown.
        remedy=_WITHOUT_THE_VERSION if PurePosixPath(file).name == MANIFEST else _WITH_THE_OTHER_FILES,
    )


_TAKE_ALONG = Remedy(
    "export its ledger (`ProjectManager.export_ledger`), import the file into a new project"
    " (`import_ledger`), and ingest the documents there: nothing in the file is paid for again",
    "run `llama-index-contextual ledger export {project} paid.jsonl`, `ledger import` for a new project, and `ingest`"
    " the documents there: nothing in the file is paid for again",
)
_WITH_THE_OTHER_FILES = Remedy(
    "Publish a version without the damaged parts with `verify(repair=True)`, which names the documents to ingest again,"
    " or return to the previous version with `rollback`: contexts that were paid for are read from the ledger",
    "Publish a version without the damaged parts with `llama-index-contextual verify {project} --repair`, which names"
    " the documents to ingest again, or return to the previous version with `rollback`: contexts that were paid for are"
    " read from the ledger",
)
_WITHOUT_THE_VERSION = Remedy(
    "Return to the previous version with `rollback`, or ingest all documents again with `replace=True`: contexts that"
    " were paid for are read from the ledger",
    "Return to the previous version with `llama-index-contextual rollback {project}`, or run `ingest` for all documents"
    " again with --replace: contexts that were paid for are read from the ledger",
)


# ---- records of documents --------------------------------------------------------------------------------------------


class RecordIndex:
    """The records of a part, by number; the dictionaries are created when they are first used.

    Args:
        records: The records.
    """

    def __init__(self, records: Sequence[DocumentRecord]) -> None:
        self.records = records

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """The number of chunks of each document; shape (documents,)."""
        return np.fromiter((record.chunks for record in self.records), dtype=np.int64, count=len(self.records))

    @cached_property
    def by_id(self) -> Mapping[str, int]:
        """The number of each document, by its id."""
        return {record.doc_id: number for number, record in enumerate(self.records)}

    @cached_property
    def by_path(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the documents, by the path of their file."""
        return _numbers(record.path for record in self.records)

    @cached_property
    def by_content(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the documents, by their content hash."""
        return _numbers(record.content_hash for record in self.records)

    @cached_property
    def by_folded_id(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the documents, by their id in the form used by file systems that ignore case."""
        return _numbers(_folded(record.doc_id) for record in self.records)


def _numbers(keys: Iterable[str | None]) -> Mapping[str, Sequence[int]]:
    numbers: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        if key is not None:
            numbers.setdefault(key, []).append(number)
    return numbers


class Records(Sequence[DocumentRecord]):
    """The records of the documents of a version, in the order of its parts.

    Args:
        parts: The records of each part, and which of them are live (None if all are).

    Example:
        >>> records = Records.of([DocumentRecord(doc_id="a", content_hash="1")])
        >>> records.get("a") is records[0], records.get("b")
        (True, None)
    """

    def __init__(self, parts: Sequence[tuple[RecordIndex, NDArray[np.bool_] | None]] = ()) -> None:
        self._parts = parts

    @classmethod
    def of(cls, records: Sequence[DocumentRecord]) -> Records:
        """Create an instance from a sequence of records."""
        return records if isinstance(records, Records) else cls([(RecordIndex(records), None)])

    def __len__(self) -> int:
        return len(self._live)

    @overload
    def __getitem__(self, at: int) -> DocumentRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[DocumentRecord]: ...

    def __getitem__(self, at: int | slice) -> DocumentRecord | Sequence[DocumentRecord]:
        return self._live[at]

    def __iter__(self) -> Iterator[DocumentRecord]:
        return iter(self._live)

    @cached_property
    def _live(self) -> Sequence[DocumentRecord]:
        if len(self._parts) == 1 and self._parts[0][1] is None:
            return self._parts[0][0].records
        live: list[DocumentRecord] = []
        for index, mask in self._parts:
            numbers = range(len(index.records)) if mask is None else np.flatnonzero(mask).tolist()
            live += map(index.records.__getitem__, numbers)
        return live

    def get(self, doc_id: str) -> DocumentRecord | None:
        """Return the record of a document, or None."""
        for index, live in self._parts:
            number = index.by_id.get(doc_id)
            if number is not None and (live is None or live[number]):
                return index.records[number]
        return None

    def with_path(self, path: str) -> DocumentRecord | None:
        """Return the record of the document that was read from a file, or None."""
        return next(iter(self._live_ones(lambda index: index.by_path.get(path, ()))), None)

    def with_content(self, content_hash: str) -> list[DocumentRecord]:
        """Return the records of the documents with a content hash."""
        return self._live_ones(lambda index: index.by_content.get(content_hash, ()))

    def with_folded_id(self, doc_id: str) -> list[DocumentRecord]:
        """Return the records of the documents with an id, ignoring case and Unicode normalization."""
        return self._live_ones(lambda index: index.by_folded_id.get(_folded(doc_id), ()))

    def _live_ones(self, numbers_of: Callable[[RecordIndex], Sequence[int]]) -> list[DocumentRecord]:
        return [
            index.records[number]
            for index, live in self._parts
            for number in numbers_of(index)
            if live is None or live[number]
        ]


def _folded(doc_id: str) -> str:
    """Return an id in the form that is compared by file systems that ignore case or normalize names."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", doc_id).casefold())


# ---- comparison with the files ---------------------------------------------------------------------------------------

_FLAT_IP = b"IxFI"
# fourcc, dimensions, vectors, two unused numbers, is_trained, metric, and the number of floats that follow.
_FLAT_HEADER = struct.Struct("<4siqqq?iQ")
_INNER_PRODUCT = 0
_FLOAT = 4

Check = Literal["size", "xxh3", "sha256"]
"""How to check a file: by its size only, by a fast checksum, or by a cryptographic one."""

DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO)
"""Error numbers of the operating system that mean damage; others, such as for permissions, may be temporary."""
_TRY_AGAIN = Remedy(
    "Make the files of the project readable for this process, and try again",
    "Make the files of the project readable for this user, and try again",
)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a version.

    Raises:
        CorruptVersionError: The manifest is missing, damaged, or belongs to another version.
        FormatError: The manifest was written by a newer release.
    """
    shown = _shown(directory, MANIFEST)
    manifest = Manifest.from_json(_content(directory / MANIFEST, shown), file=shown)
    if manifest.version != directory.name:
        raise damage_error(shown, f"belongs to version {manifest.version}")
    return manifest


def part_directory(version_directory: Path, name: str) -> Path:
    """Return the directory of a part of a version."""
    return version_directory.parent.parent / PARTS / name


def read_part(directory: Path, entry: PartEntry) -> PartManifest:
    """Read the manifest of a part.

    Args:
        directory: Directory of the part.
        entry: Its entry in the manifest of a version.

    Raises:
        CorruptVersionError: The manifest is missing or damaged, or is not the one that the version refers to.
        FormatError: The part was written by a newer release.
    """
    shown = _shown(directory, PART_MANIFEST)
    content = _content(directory / PART_MANIFEST, shown)
    is_published = files.xxh3_of(content) == entry.xxh3
    try:
        manifest = PartManifest.from_json(content, file=shown)
    except FormatError:
        if is_published:
            raise
        raise damage_error(shown, "has changed since it was published") from None
    if manifest.part != directory.name:
        raise damage_error(shown, f"belongs to part {manifest.part}")
    if not is_published:
        raise damage_error(shown, "is not the one that the version was published with")
    return manifest


def check_version(directory: Path, check: Check) -> Manifest:
    """Compare a version and its parts with their manifests, and return the manifest of the version.

    Raises:
        CorruptVersionError: A file is missing or has changed.
        FormatError: A manifest was written by a newer release.
    """
    manifest = read_manifest(directory)
    for entry in manifest.parts:
        place = part_directory(directory, entry.name)
        check_contents(place, read_part(place, entry).files, check)
    return manifest


def check_contents(directory: Path, described: Files, check: Check) -> None:
    """Compare files with their description, and their headers with their sizes.

    Raises:
        CorruptVersionError: A file is missing, has changed or cannot be read.
    """
    check_files(directory, described, check)
    check_headers(directory, described)


def check_files(directory: Path, described: Files, check: Check) -> None:
    """Compare files with their description.

    Raises:
        CorruptVersionError: A file is missing, has changed or cannot be read.
    """
    for name, expected in described.items():
        path, shown = directory / name, _shown(directory, name)
        try:
            if not path.is_file():
                raise damage_error(shown, "is missing")
            if (size := path.stat().st_size) != expected["bytes"]:
                raise damage_error(shown, f"has {size} bytes instead of {expected['bytes']}")
            if check != "size" and getattr(files, check)(path) != expected[check]:
                raise damage_error(shown, "has changed since it was published")
        except OSError as error:
            raise _reading_error(shown, error) from error


def check_headers(directory: Path, described: Files) -> None:
    """Compare the headers of FAISS indexes with the sizes of their files.

    Raises:
        CorruptVersionError: A header does not match the size of its file.
    """
    for name in described:
        if name.endswith(".faiss"):
            check_faiss(directory / name, shown=_shown(directory, name))


def _content(path: Path, shown: str) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise damage_error(shown, "is missing") from error
    except OSError as error:
        raise _reading_error(shown, error) from error


def is_damage(error: Exception) -> bool:
    """Return whether an error means that a version is damaged and not just temporarily unreadable."""
    cause = error.__cause__
    is_readable = not isinstance(cause, OSError) or cause.errno in DAMAGE
    return isinstance(error, CorruptVersionError) and is_readable


def _reading_error(shown: str, error: OSError) -> CorruptVersionError:
    fault = f"cannot be read ({error.strerror or error})"
    if error.errno in DAMAGE:
        return damage_error(shown, fault)
    return CorruptVersionError(f"{shown} {fault}.", file=shown, remedy=_TRY_AGAIN)


def _shown(directory: Path, name: str) -> str:
    return f"{directory.parent.name}/{directory.name}/{name}"


def check_faiss(path: Path, *, shown: str | None = None) -> None:
    """Check that the size of a flat FAISS index matches its header. Indexes of other types are not checked.

    Raises:
        CorruptVersionError: The file is not a FAISS index, or its header does not match its size.
    """
    shown = shown or path.name
    with open(path, "rb") as file:
        head = file.read(_FLAT_HEADER.size)
    if not head.startswith(b"I"):
        raise damage_error(shown, "is not a FAISS index")
    if not head.startswith(_FLAT_IP):
        return
    if len(head) < _FLAT_HEADER.size:
        raise damage_error(shown, "ends inside its header")
    _, dimensions, vectors, _, _, _, metric, floats = _FLAT_HEADER.unpack(head)
    size = path.stat().st_size - _FLAT_HEADER.size
    if (
        dimensions <= 0
        or vectors < 0
        or metric != _INNER_PRODUCT
        or floats != dimensions * vectors
        or size != floats * _FLOAT
    ):
        raise damage_error(
            shown, f"claims to contain {vectors} vectors of {dimensions} numbers, but has a different size"
        )
