"""Immutable versions of a project: built aside, synced, verified, and published by replacing one small file.

versions/v000001/
  manifest.json                    what is in the version, with the size and the checksums of every file
  docstore.sqlite                  chunks
  default__vector_store.faiss      vectors (absent without the semantic index)
  index_store.json                 LlamaIndex's index struct, kept empty
  graph_store.json                 LlamaIndex's graph store, empty
  bm25/                            lexical index (absent without it)
CURRENT                            the name of the live version
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.graph_stores.simple import SimpleGraphStore
from llama_index.core.storage.index_store.simple_index_store import SimpleIndexStore
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, SimpleVectorStore

from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.docstore import SQLiteDocumentStore

FORMAT_VERSION = 1
CURRENT = "CURRENT"
VERSIONS = "versions"
MANIFEST = "manifest.json"
DOCSTORE = "docstore.sqlite"
VECTOR_STORE = "vector_store.faiss"
FAISS_FILE = f"{DEFAULT_VECTOR_STORE}__{VECTOR_STORE}"
BM25_DIRECTORY = "bm25"
INDEX_ID = "contextual"
BUILDING = ".building"

_NAME = re.compile(r"v\d{6,}")
Check = Literal["size", "xxh3", "sha256"]


@dataclass(frozen=True, kw_only=True)
class DocumentRecord:
    """What a version remembers of one document.

    Attributes:
        doc_id: Id of the document, relative and with forward slashes.
        content_hash: xxh3 of the file, or of the text where the document came without a file.
        file_name: Name of its file, or None.
        title: Its title, or None.
        chunks: Number of its chunks.
        tokens: Tokens of its chunks, overlaps counted twice.
        characters: Length of its text.
        gaps: (start, text) of the white space that stands between chunks, so that any span can be read again.
        fallback_chunks: Ids of chunks whose context the LLM failed to write.
    """

    doc_id: str
    content_hash: str
    file_name: str | None = None
    title: str | None = None
    chunks: int = 0
    tokens: int = 0
    characters: int = 0
    gaps: Sequence[tuple[int, str]] = ()
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

    def to_json(self) -> bytes:
        """Return the manifest as it is written."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1).encode()

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
            return cls(**{**raw, "documents": [DocumentRecord(**document) for document in raw["documents"]]})
        except (ValueError, TypeError, KeyError) as error:
            raise damaged(file, f"is not a manifest ({type(error).__name__})") from error


def damaged(file: str, what: str) -> CorruptVersionError:
    """Return the error that names a damaged file and the ways out."""
    return CorruptVersionError(
        f"{file} {what}. Go back to the version before with `rollback`, or ingest the documents again:"
        f" contexts that were paid for are taken from the ledger.",
        file=file,
    )


class OpenVersion:
    """A published version, opened read-only; its parts are read when they are first used.

    Args:
        directory: versions/<name> of a project.
        check: How the files are compared with the manifest before they are parsed.
    """

    def __init__(self, directory: Path, *, check: Check = "xxh3") -> None:
        self.directory = directory
        self.name = directory.name
        self.manifest = _read_manifest(directory)
        _check_files(directory, self.manifest, check)

    @property
    def has_semantic(self) -> bool:
        """Whether the version has a semantic index."""
        return FAISS_FILE in self.manifest.files

    @property
    def has_lexical(self) -> bool:
        """Whether the version has a lexical index."""
        return any(name.startswith(f"{BM25_DIRECTORY}/") for name in self.manifest.files)

    @property
    def bm25_directory(self) -> Path:
        """Where the lexical index is."""
        return self.directory / BM25_DIRECTORY

    @cached_property
    def docstore(self) -> SQLiteDocumentStore:
        """The chunks."""
        return SQLiteDocumentStore(self.directory / DOCSTORE, access="read")

    @cached_property
    def storage_context(self) -> StorageContext:
        """The version as a LlamaIndex StorageContext that cannot be changed."""
        return _storage_context(self.directory, self.docstore)

    def read_text(self, record: DocumentRecord, start: int, end: int) -> str:
        """Return a span of a document's original text, rebuilt from its chunks and the gaps between them."""
        text = [" "] * record.characters
        for node in self.docstore.iterate(doc_id=record.doc_id):
            at = node.start_char_idx or 0  # type: ignore[attr-defined]
            content = node.get_content()
            text[at : at + len(content)] = content
        for at, gap in record.gaps:
            text[at : at + len(gap)] = gap
        return "".join(text[max(0, start) : end])


def open_storage_context(version_dir: str | Path) -> StorageContext:
    """Return a version as a LlamaIndex StorageContext that cannot be changed.

    The index struct lives in memory, because LlamaIndex writes it back when an index is loaded.

    Args:
        version_dir: versions/<name> of a project.

    Raises:
        CorruptVersionError: A file is damaged, missing or belongs elsewhere.
        FormatError: A newer release wrote it.

    Example:
        >>> load_index_from_storage(open_storage_context(version_dir), embed_model=embed_model)  # doctest: +SKIP
    """
    return OpenVersion(Path(version_dir)).storage_context


def _storage_context(directory: Path, docstore: SQLiteDocumentStore) -> StorageContext:
    index_store = SimpleIndexStore()
    vector_stores: dict[str, Any] = {DEFAULT_VECTOR_STORE: SimpleVectorStore()}
    if (directory / FAISS_FILE).exists():
        from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore

        store = UnitFaissVectorStore.from_persist_path(str(directory / FAISS_FILE), docstore=docstore)
        vector_stores = {DEFAULT_VECTOR_STORE: store}
        index_store.add_index_struct(IndexDict(index_id=INDEX_ID))
    return StorageContext(
        docstore=docstore, index_store=index_store, vector_stores=vector_stores, graph_store=SimpleGraphStore()
    )


# ---- publishing ----------------------------------------------------------------------------------------------------


def current_name(project_dir: Path) -> str | None:
    """Return the name of the live version, or None before the first is published.

    Raises:
        CorruptVersionError: The file does not hold a version's name.
    """
    try:
        name = files.read(project_dir / CURRENT).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    if not _NAME.fullmatch(name):
        raise damaged(CURRENT, "does not hold the name of a version")
    return name


def version_names(project_dir: Path) -> list[str]:
    """Return the names of all published versions, oldest first."""
    directory = project_dir / VERSIONS
    if not directory.is_dir():
        return []
    return sorted((p.name for p in directory.iterdir() if _NAME.fullmatch(p.name)), key=lambda name: int(name[1:]))


def start_building(project_dir: Path) -> Path:
    """Return an empty directory for the next version; what an interrupted writer left is removed."""
    versions = project_dir / VERSIONS
    files.make_directory(versions)
    for leftover in versions.glob(f"*{BUILDING}"):
        files.remove_tree(leftover)
    names = version_names(project_dir)
    number = int(names[-1][1:]) + 1 if names else 1
    directory = versions / f"v{number:06d}{BUILDING}"
    files.make_directory(directory)
    return directory


def persist(storage_context: StorageContext, directory: Path) -> None:
    """Write a StorageContext into the directory of a version, by its own `persist`."""
    storage_context.persist(directory, docstore_fname=DOCSTORE, vector_store_fname=VECTOR_STORE)


def publish(
    project_dir: Path,
    building: Path,
    *,
    make_manifest: Callable[[str, str], Manifest],
    keep_versions: int,
) -> Manifest:
    """Make a built version the live one: sync, write the manifest, verify, rename, replace CURRENT, remove old ones.

    Args:
        project_dir: The project.
        building: What `start_building` returned, filled.
        make_manifest: (name, time) -> the manifest, without its files.
        keep_versions: Versions that stay on disk.
    """
    name = building.name.removesuffix(BUILDING)
    manifest = make_manifest(name, datetime.now(UTC).isoformat(timespec="seconds"))
    manifest = Manifest(**{**vars(manifest), "files": _describe_files(building)})
    files.write(building / MANIFEST, manifest.to_json())
    for directory in {path.parent for path in files.walk(building)}:
        files.sync_directory(directory)
    _check_built(building, manifest)
    files.rename(building, project_dir / VERSIONS / name)
    files.replace(project_dir / CURRENT, f"{name}\n".encode())
    _prune(project_dir, keep_versions)
    return manifest


def _describe_files(directory: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in files.walk(directory):
        files.sync_file(path)
        found[path.relative_to(directory).as_posix()] = {
            "bytes": path.stat().st_size,
            "xxh3": files.xxh3(path),
            "sha256": files.sha256(path),
        }
    return found


def _check_built(building: Path, manifest: Manifest) -> None:
    _check_files(building, manifest, "size")
    docstore = SQLiteDocumentStore(building / DOCSTORE, access="read")
    try:
        if len(docstore) != manifest.chunks:
            raise damaged(DOCSTORE, f"holds {len(docstore)} chunks instead of {manifest.chunks}")
    finally:
        docstore.close()


def _prune(project_dir: Path, keep: int) -> None:
    """Remove all but the newest versions; never the live one nor its predecessor."""
    live = current_name(project_dir)
    names = version_names(project_dir)
    protected = {live, *names[-max(2, keep) :]}
    if live in names and names.index(live) > 0:
        protected.add(names[names.index(live) - 1])
    for name in names:
        if name not in protected:
            files.remove_tree(project_dir / VERSIONS / name)


# ---- checking ------------------------------------------------------------------------------------------------------


def _read_manifest(directory: Path) -> Manifest:
    shown = f"{VERSIONS}/{directory.name}/{MANIFEST}"
    try:
        manifest = Manifest.from_json(files.read(directory / MANIFEST), file=shown)
    except FileNotFoundError as error:
        raise damaged(shown, "is missing") from error
    if manifest.version != directory.name.removesuffix(BUILDING):
        raise damaged(shown, f"belongs to version {manifest.version}")
    return manifest


def _check_files(directory: Path, manifest: Manifest, check: Check) -> None:
    for name, expected in manifest.files.items():
        path, shown = directory / name, f"{VERSIONS}/{directory.name}/{name}"
        if not path.is_file():
            raise damaged(shown, "is missing")
        if path.stat().st_size != expected["bytes"]:
            raise damaged(shown, f"has {path.stat().st_size} bytes instead of {expected['bytes']}")
        if check != "size" and getattr(files, check)(path) != expected[check]:
            raise damaged(shown, "has another content than when it was published")
