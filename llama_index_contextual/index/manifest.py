"""Manifests of versions, document records, and verification of files.

A manifest lists the parts of a version, with the checksums of all files. Files are checked before any library parses
them. The headers of FAISS files are compared with the file sizes, because FAISS allocates as much memory as the header
specifies, and a damaged header could therefore terminate the process.

parts/p000001/                     a part, which several versions may share
  docstore.sqlite                  chunks, and data to reconstruct their documents
  documents.json                   records of the documents
  default__vector_store.faiss      vectors (only if there is a semantic index)
  added_in.bin, sample.bin         in place of the FAISS file if an engine stores the vectors
  bm25/                            lexical index (optional)
  bm25/documents/                  index of documents by name and opening
  figures/, figures.json           pictures of the figures, and their list (only if there are any); see pictures.py
versions/v000001/
  manifest.json                    the parts of the version, with the size and checksums of each file

Each chunk of a part has one row: row r is the r-th chunk in the document store and in each index. The rows of a
document are consecutive, and the documents are in the order of their records.
"""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import xxhash
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from llama_index_contextual._utils.files import NOT_A_FILE, open_file, require_regular
from llama_index_contextual.errors import CorruptVersionError, FormatError, Remedy
from llama_index_contextual.index import files

FORMAT = 1
"""Format of versions, parts and project.json. In files from before the first release, the key is `format_version`."""
MANIFEST = "manifest.json"
PARTS = "parts"
BUILDING = ".building"
"""Suffix of a directory that is being written."""
DOCSTORE = "docstore.sqlite"
RECORDS = "documents.json"
FAISS_FILE = "default__vector_store.faiss"  # LlamaIndex's name for the file of a default vector store
BM25_DIRECTORY = "bm25"
UNITS_FILE = "units.bin"
DOCUMENTS_DIRECTORY = "bm25/documents"
ADDED_FILE = "added_in.bin"
"""File that records which version added each vector of a part. It exists only if an engine stores the vectors."""
SAMPLE_FILE = "sample.bin"
FIGURES_DIRECTORY = "figures"
FIGURES_FILE = "figures.json"

_CHECKSUM = "xxh3"


# ---- manifests -------------------------------------------------------------------------------------------------------


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is outside the part")
    return name


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Entry):
    """A file of a part.

    Attributes:
        bytes: Size of the file.
        xxh3: Checksum used to detect damage quickly.
        sha256: Cryptographic checksum, used for complete checks.
    """

    bytes: int
    xxh3: str
    sha256: str


class DerivedEntry(_Entry):
    """What the derived data of a part were made with; see `index/derived.py`.

    Attributes:
        edition: Edition of the derived data.
        language: The `language` setting, or None if there are no lexical indexes.
        languages: The `languages` setting.
        words: Identity of the word vectors from which the directions of the units were made; empty if there are none.
    """

    edition: int
    language: str | None
    languages: dict[str, str] = {}
    words: str


class PartEntry(_Entry):
    """A part of a version.

    Attributes:
        name: Name of the part.
        files: Files of the part, by path.
        derived: What the derived data of the part were made with.
    """

    name: Annotated[str, Field(pattern=r"^p\d{6,}(-\d+)?$")]
    files: dict[Annotated[str, AfterValidator(_inside)], FileEntry]
    derived: DerivedEntry


class Manifest(_Entry):
    """Manifest of a version.

    Attributes:
        version: Name of the version.
        created: Time of publication in UTC, in ISO 8601 format.
        package: Release of this package that wrote the version.
        config: The project's settings when the version was published.
        embed_model: Name of the embedding model, or None if there is no semantic index.
        dimensions: Length of the vectors, or None.
        documents: Number of documents.
        chunks: Number of chunks.
        size: Total size of the files in bytes.
        parts: The parts, in row order.
        automatic: Whether the version was published by a program that watches folders.
        keeps: Name of the previous version, if this version removed many documents; the previous version is then kept
            as long as this version.
        languages: Number of chunks in each language, the most frequent language first; "" if it is unknown.
        format: Format of the version.
    """

    version: str
    created: str
    package: str
    config: dict[str, Any]
    embed_model: str | None
    dimensions: int | None
    documents: int
    chunks: int
    size: int = 0
    parts: list[PartEntry] = []
    automatic: bool = False
    keeps: str | None = None
    languages: dict[str, int] = {}
    format: int = FORMAT

    @property
    def kind(self) -> Literal["manual", "automatic", "large removal"]:
        """Kind of version; old versions of each kind are removed separately."""
        if not self.automatic:
            return "manual"
        return "automatic" if self.keeps is None else "large removal"

    @property
    def engine(self) -> str:
        """Storage of the vectors: "files", or the name of an engine, such as "qdrant"."""
        return str(self.config["backend"]).partition(":")[0]

    def to_json(self) -> bytes:
        """Return the manifest as JSON, including its checksum."""
        return with_checksum(self.model_dump())

    @classmethod
    def from_json(cls, data: bytes, *, file: str) -> Manifest:
        """Read a manifest.

        Raises:
            CorruptVersionError: The data is not a manifest, or is damaged.
            FormatError: The manifest was written by a newer release, or before the first release.
        """
        try:
            raw = json.loads(data)
            require_format(raw, file)
            return cls.model_validate(without_checksum(raw))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damage_error(file, f"is not a manifest, or has changed ({type(error).__name__})") from error


def with_checksum(content: Mapping[str, Any]) -> bytes:
    """Encode a JSON object as bytes, with its checksum added."""
    return json.dumps({**content, _CHECKSUM: checksum(content)}, indent=1).encode()


def without_checksum(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object without its checksum.

    Raises:
        ValueError: The checksum is wrong or missing.
    """
    content = {key: value for key, value in raw.items() if key != _CHECKSUM}
    if raw.get(_CHECKSUM) != checksum(content):
        raise ValueError("The content does not match its checksum.")
    return content


def checksum(content: Mapping[str, Any]) -> str:
    """Return the 64-bit xxh3 checksum of a JSON object in hexadecimal, ignoring white space and key order."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())


def require_format(raw: Mapping[str, Any], file: str, *, name: str | None = None) -> None:
    """Check that this release can read the format of a file.

    Args:
        raw: Content of the file.
        file: Name of the file, for the error message.
        name: Name of the project, if known.

    Raises:
        FormatError: The file was written by a newer release, or before the first release.
    """
    if "format_version" in raw:
        raise FormatError(f"{file} was written before the first release", name=name, remedy=_TAKE_ALONG)
    if raw["format"] > FORMAT:
        raise FormatError(
            f"{file} has format {raw['format']}, this release reads up to {FORMAT}: upgrade llama-index-contextual.",
            name=name,
        )


def damage_error(file: str, fault: str) -> CorruptVersionError:
    """Return the error for a damaged file of a version, with a message that explains what to do."""
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


# ---- document records ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    """Record of a document in a version.

    Attributes:
        doc_id: Id of the document; a relative path with forward slashes if it was read from a file.
        content_hash: xxh3 checksum of the file, or of the text and metadata if there is no file.
        path: Path of the file with symbolic links resolved, or its URL, or None if the document was passed as a
            Document or as nodes.
        source: Name of the source of a Document that `sync_documents` added, or "".
        facts: The user's metadata for the file, or None.
        file_name: Name of the file, or None.
        title: Title of the document, or None.
        language: Language in which the document is analysed, or "" if it is unknown.
        date: Date in the document's metadata, title, first lines or file name, in ISO format, or "".
        file_date: Day of the last change of its file when it was read, in ISO format, or "".
        sketch: Numbers of which similar texts share many; see `sketch_of`.
        chunks: Number of chunks.
        tokens: Number of tokens in the chunks; overlaps are counted twice.
        characters: Length of the text in characters.
        fallback_chunks: Ids of chunks for which the LLM failed to write a context.
        unembedded_chunks: Ids of chunks for which the embedding model returned no usable vector.
    """

    doc_id: str
    content_hash: str
    path: str | None = field(default=None, repr=False)
    source: str = ""
    facts: Mapping[str, Any] | None = field(default=None, hash=False)
    file_name: str | None = None
    title: str | None = None
    language: str = ""
    date: str = ""
    file_date: str = ""
    sketch: Sequence[int] = field(default=(), repr=False)
    chunks: int = 0
    tokens: int = 0
    characters: int = 0
    fallback_chunks: Sequence[str] = ()
    unembedded_chunks: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("fallback_chunks", "unembedded_chunks", "sketch"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # a list when read from JSON

    @property
    def failed_chunks(self) -> Mapping[str, Sequence[str]]:
        """Ids of the chunks that `retry_failed` processes again, by the step that failed."""
        return {"context": self.fallback_chunks, "embedding": self.unembedded_chunks}

    @property
    def has_failed_chunks(self) -> bool:
        """Whether `retry_failed` processes chunks of the document again."""
        return bool(self.fallback_chunks or self.unembedded_chunks)


class Records(list[DocumentRecord]):
    """The document records of a version, in the order in which the documents' chunks are stored.

    The records must not be changed.

    Example:
        >>> records = Records([DocumentRecord(doc_id="a", content_hash="1")])
        >>> records.get("a") is records[0], records.get("b")
        (True, None)
    """

    @cached_property
    def by_id(self) -> Mapping[str, DocumentRecord]:
        """The record of each document, by document id."""
        return {record.doc_id: record for record in self}

    @cached_property
    def _by_path(self) -> Mapping[str | None, Sequence[DocumentRecord]]:
        return self._grouped(lambda record: record.path)

    @cached_property
    def _by_content(self) -> Mapping[str | None, Sequence[DocumentRecord]]:
        return self._grouped(lambda record: record.content_hash)

    def _grouped(self, key: Callable[[DocumentRecord], str | None]) -> Mapping[str | None, Sequence[DocumentRecord]]:
        groups: dict[str | None, list[DocumentRecord]] = {}
        for record in self:
            groups.setdefault(key(record), []).append(record)
        return groups

    def get(self, doc_id: str) -> DocumentRecord | None:
        """Return the record of a document, or None."""
        return self.by_id.get(doc_id)

    def with_path(self, path: str) -> DocumentRecord | None:
        """Return the record of the document that was read from a file, or None."""
        return next(iter(self._by_path.get(path, ())), None)

    def with_content(self, content_hash: str) -> Sequence[DocumentRecord]:
        """Return the records of the documents with the given content hash."""
        return self._by_content.get(content_hash, ())


def write_records(part: Path, records: Iterable[DocumentRecord]) -> None:
    """Write document records to the directory of a part, without syncing."""
    content = with_checksum({"records": [asdict(record) for record in records]})
    files.write(part / RECORDS, content, sync=False)


def read_records(part: Path) -> Records:
    """Read the document records from the directory of a part.

    Raises:
        CorruptVersionError: The file is missing or damaged.
    """
    label = _display_name(part, RECORDS)
    content = _content(part / RECORDS, label)
    try:
        return Records(DocumentRecord(**record) for record in without_checksum(json.loads(content))["records"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damage_error(label, "has changed since it was published") from error


# ---- file verification -----------------------------------------------------------------------------------------------

_FLAT_IP = b"IxFI"
# fourcc, dimensions, vectors, two unused numbers, is_trained, metric, and the number of floats that follow.
_FLAT_HEADER = struct.Struct("<4siqqq?iQ")
_INNER_PRODUCT = 0
_FLOAT = 4

Check = Literal["size", "xxh3", "sha256"]
"""Method for checking a file: its size only, a fast checksum, or a cryptographic checksum."""

DAMAGE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EFBIG),
    NOT_A_FILE,
)
"""Operating system error numbers that indicate damage. Other errors, such as missing permissions, may be temporary."""
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
    label = _display_name(directory, MANIFEST)
    manifest = Manifest.from_json(_content(directory / MANIFEST, label), file=label)
    if manifest.version != directory.name:
        raise damage_error(label, f"belongs to version {manifest.version}")
    return manifest


def part_directory(version_directory: Path, name: str) -> Path:
    """Return the directory of a part of a version."""
    return version_directory.parent.parent / PARTS / name


def check_version(directory: Path) -> None:
    """Check the files of a version against its manifest.

    Raises:
        CorruptVersionError: A file is missing or has changed.
        FormatError: The manifest was written by a newer release.
    """
    for entry in read_manifest(directory).parts:
        check_files(part_directory(directory, entry.name), entry.files, "xxh3")


def check_files(directory: Path, described: Mapping[str, FileEntry], check: Check) -> None:
    """Check files against their manifest entries, and the headers of FAISS files against the file sizes.

    Raises:
        CorruptVersionError: A file is missing, has changed or cannot be read.
    """
    for name, expected in described.items():
        path, label = directory / name, _display_name(directory, name)
        try:
            status = path.stat()
            require_regular(path, status)
            if (size := status.st_size) != expected.bytes:
                raise damage_error(label, f"has {size} bytes instead of {expected.bytes}")
            if check != "size" and getattr(files, check)(path) != getattr(expected, check):
                raise damage_error(label, "has changed since it was published")
            if name == FAISS_FILE:
                check_faiss(path, label=label)
        except FileNotFoundError as error:
            raise damage_error(label, "is missing") from error
        except OSError as error:
            raise _reading_error(label, error) from error


def _content(path: Path, label: str) -> bytes:
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise damage_error(label, "is missing") from error
    except OSError as error:
        raise _reading_error(label, error) from error


def is_damage(error: Exception) -> bool:
    """Return whether an error means that a version is damaged and not just temporarily unreadable."""
    cause = error.__cause__
    is_readable = not isinstance(cause, OSError) or cause.errno in DAMAGE
    return isinstance(error, CorruptVersionError) and is_readable


def _reading_error(label: str, error: OSError) -> CorruptVersionError:
    fault = f"cannot be read ({error.strerror or error})"
    if error.errno in DAMAGE:
        return damage_error(label, fault)
    return CorruptVersionError(f"{label} {fault}.", file=label, remedy=_TRY_AGAIN)


def _display_name(directory: Path, name: str) -> str:
    return f"{directory.parent.name}/{directory.name}/{name}"


def check_faiss(path: Path, *, label: str | None = None) -> None:
    """Check that a file is a flat FAISS index and that its size matches its header.

    Raises:
        CorruptVersionError: The file is not a flat FAISS index, or its size does not match.
    """
    label = label or path.name
    with open_file(path) as file:
        head = file.read(_FLAT_HEADER.size)
    if not head.startswith(_FLAT_IP) or len(head) < _FLAT_HEADER.size:
        raise damage_error(label, "is not a flat FAISS index")
    _, dimensions, vectors, _, _, _, metric, floats = _FLAT_HEADER.unpack(head)
    size = path.stat().st_size - _FLAT_HEADER.size
    is_valid = dimensions > 0 and vectors >= 0 and metric == _INNER_PRODUCT and floats == dimensions * vectors
    if not is_valid or size != floats * _FLOAT:
        raise damage_error(
            label, f"claims to contain {vectors} vectors of {dimensions} numbers, but has a different size"
        )
