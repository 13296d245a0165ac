"""Manifest of a version, and the names of its files.

versions/v000001/
  manifest.json                    content of the version, with size and checksums of every file
  docstore.sqlite                  chunks, and data to reconstruct the documents
  default__vector_store.faiss      vectors (absent without the semantic index)
  index_store.json                 LlamaIndex's index struct, kept empty
  graph_store.json                 LlamaIndex's graph store, empty
  bm25/                            lexical index (absent without it)
  bm25/documents/                  index of documents by name and opening
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

import xxhash
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE
from pydantic import TypeAdapter

from llama_index_contextual.errors import CorruptVersionError, FormatError

FORMAT_VERSION = 2
"""1: texts are plain or deflated. 2: texts are plain or compressed with Zstandard."""
MANIFEST = "manifest.json"
DOCSTORE = "docstore.sqlite"
VECTOR_STORE = "vector_store.faiss"
FAISS_FILE = f"{DEFAULT_VECTOR_STORE}__{VECTOR_STORE}"
BM25_DIRECTORY = "bm25"
DOCUMENTS_DIRECTORY = "bm25/documents"

_CHECKSUM = "xxh3"


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    """Record of a document in a version.

    Attributes:
        doc_id: Id of the document; a relative path with forward slashes if it was read from a file.
        content_hash: xxh3 of the file, or of text and metadata if there is no file.
        origin: SHA-256 of the path of its file, or None if it was passed as a Document or as nodes. The path itself is
            not stored.
        file_name: Name of its file, or None.
        title: Its title, or None.
        chunks: Number of its chunks.
        tokens: Number of tokens of its chunks; overlaps are counted twice.
        characters: Length of its text.
        fallback_chunks: Ids of chunks for which the LLM failed to write a context.
    """

    doc_id: str
    content_hash: str
    origin: str | None = None
    file_name: str | None = None
    title: str | None = None
    chunks: int = 0
    tokens: int = 0
    characters: int = 0
    fallback_chunks: Sequence[str] = ()


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
        documents: The documents, in the order of their first chunk.
        files: Size (`bytes`), `xxh3` and `sha256` of each file, by path relative to the version.
        format_version: Layout of the version's files.
    """

    version: str
    created: str
    package: str
    config: Mapping[str, Any]
    embed_model: str | None
    dimensions: int | None
    documents: Sequence[DocumentRecord]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return sum(document.chunks for document in self.documents)

    def document(self, doc_id: str) -> DocumentRecord | None:
        """Return the record of a document, or None."""
        return next((record for record in self.documents if record.doc_id == doc_id), None)

    def to_json(self) -> bytes:
        """Return the manifest as JSON, including a checksum of itself."""
        content = asdict(self)
        return json.dumps({**content, _CHECKSUM: checksum(content)}, ensure_ascii=False, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, *, file: str) -> Manifest:
        """Read a manifest.

        Raises:
            CorruptVersionError: The data is not a manifest, or is damaged.
            FormatError: The manifest was written by a newer release.
        """
        try:
            raw = json.loads(data)
            if raw["format_version"] > FORMAT_VERSION:
                raise FormatError(
                    f"{file} has format {raw['format_version']}, this release reads up to {FORMAT_VERSION}:"
                    f" upgrade llama-index-contextual."
                )
            if raw.pop(_CHECKSUM) != checksum(raw):
                raise damage_error(file, "has changed since it was published")
            # The constructor rejects unknown keys, and pydantic rejects values of a wrong type.
            cls(**{**raw, "documents": [DocumentRecord(**document) for document in raw["documents"]]})
            manifest = _types().validate_python(raw)
            for name, entry in manifest.files.items():
                _check_entry(name, entry)
            return manifest
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damage_error(file, f"is not a manifest ({type(error).__name__})") from error


@functools.cache
def _types() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def _check_entry(name: str, entry: Mapping[str, Any]) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(f"{name!r} is outside the version")
    if not (type(entry["bytes"]) is int and isinstance(entry["xxh3"], str) and isinstance(entry["sha256"], str)):
        raise TypeError(f"{name!r} has no size and checksums")


def checksum(content: Mapping[str, Any]) -> str:
    """Return the xxh3 (64 bits) of a JSON object in hexadecimal, regardless of white space and the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())


def damage_error(file: str, fault: str) -> CorruptVersionError:
    """Return the error for a damaged file of a version, which says what to do."""
    return CorruptVersionError(
        f"{file} {fault}. Return to the previous version with `rollback`, or ingest all documents again with"
        f" `replace=True`: contexts that were paid for are read from the ledger.",
        file=file,
    )
