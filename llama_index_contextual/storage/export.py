"""Export of a version to a directory that LlamaIndex's own stores can load.

docstore.json, index_store.json, graph_store.json     SimpleDocumentStore, SimpleIndexStore, SimpleGraphStore
default__vector_store.json                            FaissVectorStore (inner product)
bm25/                                                 BM25Retriever
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.graph_stores.simple import SimpleGraphStore
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.storage.docstore.simple_docstore import SimpleDocumentStore
from llama_index.core.storage.index_store.simple_index_store import SimpleIndexStore
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.simple import DEFAULT_VECTOR_STORE

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
from llama_index_contextual.storage.manifest import BM25_DIRECTORY
from llama_index_contextual.storage.version import INDEX_ID, OpenVersion

_UNFINISHED = ".unfinished-export"


def export_version(version: OpenVersion, directory: Path) -> None:
    """Write a version for LlamaIndex's own stores; the directory appears only when it is complete.

    Args:
        version: The version.
        directory: Target directory, which must be empty or not exist.

    Raises:
        InputError: The directory is not empty.

    Example:
        >>> StorageContext.from_defaults(
        ...     persist_dir=directory, vector_store=FaissVectorStore.from_persist_dir(directory)
        ... )  # doctest: +SKIP
    """
    if directory.exists() and any(directory.iterdir()):
        raise InputError(f"{directory} is not empty: export into a new directory.", value=directory)
    directory = directory.resolve()
    building = directory.with_name(f"{directory.name}{_UNFINISHED}")
    files.remove_tree(building)
    files.make_directory(building)
    _write(version, building)
    for path in files.walk(building):
        files.sync_file(path)
    for below in sorted({path.parent for path in files.walk(building)}):
        files.sync_directory(below)
    if directory.exists():
        files.remove_if_empty(directory)
    files.rename(building, directory)


def _write(version: OpenVersion, directory: Path) -> None:
    nodes = list(version.docstore.iterate())
    docstore = SimpleDocumentStore()
    docstore.add_documents(nodes)
    index_store = SimpleIndexStore()
    context = StorageContext(
        docstore=docstore, index_store=index_store, vector_stores={}, graph_store=SimpleGraphStore()
    )
    if version.has_semantic:
        rows = {str(row): node.node_id for row, node in enumerate(nodes)}
        index_store.add_index_struct(IndexDict(index_id=INDEX_ID, nodes_dict=rows))
        store = cast(UnitFaissVectorStore, version.storage_context.vector_store)
        context.vector_stores[DEFAULT_VECTOR_STORE] = store.to_stock()
    files.let_write(directory, lambda: context.persist(directory))
    if version.has_lexical and nodes:
        files.make_directory(directory / BM25_DIRECTORY)
        files.let_write(directory / BM25_DIRECTORY, lambda: _export_bm25(nodes, directory / BM25_DIRECTORY))


def _export_bm25(nodes: list[BaseNode], directory: Path) -> None:
    """Build an index for LlamaIndex's BM25Retriever, whose tokens differ from those of this package."""
    from llama_index.retrievers.bm25 import BM25Retriever

    texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
    if any(text.strip() for text in texts):
        BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=min(20, len(nodes))).persist(
            str(directory), show_progress=False
        )
