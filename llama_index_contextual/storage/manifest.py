"""What is in a version, and the names of its files.

versions/v000001/
  manifest.json                    what is in the version, with the size and the checksums of every file
  docstore.sqlite                  chunks, and what is needed to have the documents again
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
"""1: texts plain or deflated; 2: plain or compressed by Zstandard."""
MANIFEST = "manifest.json"
DOCSTORE = "docstore.sqlite"
VECTOR_STORE = "vector_store.faiss"
FAISS_FILE = f"{DEFAULT_VECTOR_STORE}__{VECTOR_STORE}"
BM25_DIRECTORY = "bm25"
DOCUMENTS_DIRECTORY = "bm25/documents"

_CHECKSUM = "xxh3"


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    """What a version remembers of one document.

    Attributes:
        doc_id: Id of the document, relative and with forward slashes.
        content_hash: xxh3 of the file, or of text and metadata where the document came without a file.
        origin: SHA-256 of the path that its file was read from; None where it came as a Document or as nodes. The path
            itself is not kept.
        file_name: Name of its file, or None.
        title: Its title, or None.
        chunks: Number of its chunks.
        tokens: Tokens of its chunks, overlaps counted twice.
        characters: Length of its text.
        fallback_chunks: Ids of chunks whose context the LLM failed to write.
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
    """What is in a version.

    Attributes:
        version: Name of the version.
        created: When it was published, UTC, ISO 8601.
        package: Release of this package that wrote it.
        config: The project's settings at that time.
        embed_model: Name of the embedding model, or None without the semantic index.
        dimensions: Length of the vectors, or None.
        documents: The documents, in the order of their first chunk.
        files: Path relative to the version -> bytes, xxh3, sha256.
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
        """Return the manifest as it is written: with a checksum of its own, since no other file vouches for it."""
        content = asdict(self)
        return json.dumps({**content, _CHECKSUM: checksum(content)}, ensure_ascii=False, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, *, file: str) -> Manifest:
        """Read a manifest.

        Raises:
            CorruptVersionError: It is not one.
            FormatError: A newer release wrote it.
        """
        try:
            raw = json.loads(data)
            if raw["format_version"] > FORMAT_VERSION:
                raise FormatError(
                    f"{file} has format {raw['format_version']}, this release reads up to {FORMAT_VERSION}:"
                    f" upgrade llama-index-contextual."
                )
            if raw.pop(_CHECKSUM) != checksum(raw):
                raise damaged(file, "has changed since it was published")
            # This refuses unknown keys, and pydantic values of another type than they have.
            cls(**{**raw, "documents": [DocumentRecord(**document) for document in raw["documents"]]})
            manifest = _types().validate_python(raw)
            for name, entry in manifest.files.items():
                _check_entry(name, entry)
            return manifest
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(file, f"is not a manifest ({type(error).__name__})") from error


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
    """Return the xxh3 (64 bits) of a JSON object, in hexadecimal, whatever its layout and the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())


def damaged(file: str, what: str) -> CorruptVersionError:
    """Return the error that names a damaged file and the ways out."""
    return CorruptVersionError(
        f"{file} {what}. Go back to the version before with `rollback`, or ingest all documents again with"
        f" `replace=True`: contexts that were paid for are taken from the ledger.",
        file=file,
    )
