"""A published version for LlamaIndex's own stores: its StorageContext, and the files that the context persists.

docstore.json, index_store.json, graph_store.json     SimpleDocumentStore, SimpleIndexStore, SimpleGraphStore
default__vector_store.json                            FaissVectorStore (inner product)
bm25/                                                 BM25Retriever
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from fsspec import AbstractFileSystem
from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.graph_stores.simple import SimpleGraphStore
from llama_index.core.graph_stores.types import DEFAULT_PERSIST_FNAME as GRAPH_STORE_FNAME
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.docstore.simple_docstore import SimpleDocumentStore
from llama_index.core.storage.docstore.types import DEFAULT_PERSIST_FNAME as DOCSTORE_FNAME
from llama_index.core.storage.index_store.simple_index_store import SimpleIndexStore
from llama_index.core.storage.index_store.types import DEFAULT_PERSIST_FNAME as INDEX_STORE_FNAME
from llama_index.core.storage.storage_context import DEFAULT_PERSIST_DIR, StorageContext
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE, SimpleVectorStore
from llama_index.core.vector_stores.types import DEFAULT_PERSIST_FNAME as VECTOR_STORE_FNAME
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_contextual.errors import InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import BM25_DIRECTORY, MANIFEST
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.stores.docstore import IndexDocumentStore

INDEX_ID = "contextual"

_UNFINISHED = ".unfinished-export"


@dataclass
class VersionStorageContext(StorageContext):
    """The stores of a published version, which cannot be changed.

    Attributes:
        has_semantic: Whether the version has a semantic index.
        has_lexical: Whether the version has a lexical index.
    """

    has_semantic: bool = False
    has_lexical: bool = False

    def persist(
        self,
        persist_dir: str | os.PathLike[str] = DEFAULT_PERSIST_DIR,
        docstore_fname: str = DOCSTORE_FNAME,
        index_store_fname: str = INDEX_STORE_FNAME,
        vector_store_fname: str = VECTOR_STORE_FNAME,
        image_store_fname: str = "image_store.json",
        graph_store_fname: str = GRAPH_STORE_FNAME,
        pg_graph_store_fname: str = "property_graph_store.json",
        fs: AbstractFileSystem | None = None,
    ) -> None:
        """Write all stores and the lexical index as files that LlamaIndex's own classes load.

        Files of the same names are replaced. A version contains neither images nor property graphs.

        Args:
            persist_dir: Target directory.
            docstore_fname: File of the nodes.
            index_store_fname: File of the index struct.
            vector_store_fname: File of the vectors, after "default__".
            image_store_fname: Not used.
            graph_store_fname: File of the empty graph store.
            pg_graph_store_fname: Not used.
            fs: File system of the directory; None for local files.

        Raises:
            InputError: The directory is a published version.

        Example:
            >>> project.storage_context.persist("stock")  # doctest: +SKIP
            >>> StorageContext.from_defaults(
            ...     persist_dir="stock", vector_store=FaissVectorStore.from_persist_dir("stock")
            ... )  # doctest: +SKIP
            >>> BM25Retriever.from_persist_dir("stock/bm25")  # doctest: +SKIP
        """
        names = {
            "docstore_fname": docstore_fname,
            "index_store_fname": index_store_fname,
            "vector_store_fname": vector_store_fname,
            "graph_store_fname": graph_store_fname,
        }
        if fs is not None:
            with tempfile.TemporaryDirectory() as temporary:
                self.write(Path(temporary), names)
                fs.makedirs(str(persist_dir), exist_ok=True)
                fs.put(f"{temporary}/", f"{persist_dir}/", recursive=True)
            return
        directory = Path(persist_dir).resolve()
        if (directory / MANIFEST).exists():
            raise InputError(f"{directory} is a published version: persist into another directory.", value=persist_dir)
        building = self.build_beside(directory, names)
        files.make_directory(directory)
        files.remove_tree(directory / BM25_DIRECTORY)
        for path in sorted(building.iterdir()):
            files.rename(path, directory / path.name)
        files.remove_tree(building)
        files.sync_directory(directory)

    def build_beside(self, directory: Path, names: dict[str, str] | None = None) -> Path:
        """Write and sync all files in a new directory next to the given one, and return it."""
        building = directory.with_name(f"{directory.name}{_UNFINISHED}")
        files.remove_tree(building)
        files.make_directory(building)
        self.write(building, names or {})
        for path in files.walk(building):
            files.sync_file(path)
        for below in sorted({path.parent for path in files.walk(building)}):
            files.sync_directory(below)
        return building

    def write(self, directory: Path, names: dict[str, str]) -> None:
        """Write all files into an empty directory."""
        nodes = list(cast(IndexDocumentStore, self.docstore).iterate())
        docstore, index_store = SimpleDocumentStore(), SimpleIndexStore()
        docstore.add_documents(nodes)
        stock = StorageContext(
            docstore=docstore, index_store=index_store, vector_stores={}, graph_store=SimpleGraphStore()
        )
        if self.has_semantic:
            rows = {str(row): node.node_id for row, node in enumerate(nodes)}
            index_store.add_index_struct(IndexDict(index_id=INDEX_ID, nodes_dict=rows))
            store: Any = self.vector_store
            stock.vector_stores[DEFAULT_VECTOR_STORE] = store.to_stock()
        files.let_write(directory, lambda: stock.persist(directory, **names))
        if self.has_lexical and nodes:
            files.make_directory(directory / BM25_DIRECTORY)
            files.let_write(directory / BM25_DIRECTORY, lambda: _export_bm25(nodes, directory / BM25_DIRECTORY))


def storage_context_of(version: OpenVersion) -> VersionStorageContext:
    """Return a version as a LlamaIndex StorageContext that cannot be changed.

    The index struct is kept in memory, because LlamaIndex writes to it when an index is loaded.
    """
    index_store = SimpleIndexStore()
    vector_store: BasePydanticVectorStore = SimpleVectorStore()
    if version.has_semantic:
        # Imported here, because faiss is slow to import and not needed without vectors.
        from llama_index_contextual.stores.vector_store import IndexVectorStore

        vector_store = IndexVectorStore(version.index, version_directory=str(version.directory))
        index_store.add_index_struct(IndexDict(index_id=INDEX_ID))
    return VersionStorageContext(
        docstore=IndexDocumentStore(version.docstore),
        index_store=index_store,
        vector_stores={DEFAULT_VECTOR_STORE: vector_store},
        graph_store=SimpleGraphStore(),
        has_semantic=version.has_semantic,
        has_lexical=version.has_lexical,
    )


def open_storage_context(version_dir: str | Path) -> VersionStorageContext:
    """Open a version as a LlamaIndex StorageContext that cannot be changed.

    Args:
        version_dir: versions/<name> of a project.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by another release.

    Example:
        >>> load_index_from_storage(open_storage_context(version_dir), embed_model=embed_model)  # doctest: +SKIP
    """
    return storage_context_of(OpenVersion(Path(version_dir)))


def export_version(context: VersionStorageContext, directory: Path) -> None:
    """Write a version for LlamaIndex's own stores; the directory appears only when it is complete.

    Args:
        context: The stores of the version.
        directory: Target directory, which must be empty or not exist.

    Raises:
        InputError: The directory is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty: export into a new directory.", value=directory)
    directory = directory.resolve()
    building = context.build_beside(directory)
    if directory.exists():
        files.remove_if_empty(directory)
    files.rename(building, directory)


def _export_bm25(nodes: list[BaseNode], directory: Path) -> None:
    """Build an index for LlamaIndex's BM25Retriever, whose tokens differ from those of this package."""
    from llama_index.retrievers.bm25 import BM25Retriever

    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
    if any(text.strip() for text in texts):
        BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(20, len(nodes))).persist(
            str(directory), show_progress=False
        )
