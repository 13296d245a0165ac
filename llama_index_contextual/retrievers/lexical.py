"""Lexical retrieval: rank chunks by BM25 over their contextualised text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.retrievers.base import RankingRetriever
from llama_index_contextual.retrievers.queries import query_of
from llama_index_contextual.search.rank import Leg, lexical_leg
from llama_index_contextual.search.search import number_of_results, require_positive
from llama_index_contextual.stores.docstore import SQLiteDocumentStore
from llama_index_contextual.stores.store_index import StoreIndex

NODES_FILE = "nodes.sqlite"


class LexicalRetriever(BM25Retriever, RankingRetriever):
    """Rank chunks by BM25 over their text and its context; exact terms such as TS-999 also match as a whole.

    Chunks without any term of the query are not returned. The index is memory-mapped and contains no nodes: they are
    read from the document store.

    Args:
        lexical_index: The index; row i is the i-th node of the document store.
        docstore: The document store with the nodes.
        similarity_top_k: Number of results of `retrieve`, 20 by default.
        top_k: The same.
        filters: Only nodes that pass are ranked.

    Raises:
        InputError: Index and document store do not belong together.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> nodes = [TextNode(text="Error TS-999: pump dry."), TextNode(text="Pump curves.")]
        >>> retriever = LexicalRetriever.from_defaults(nodes=nodes)
        >>> [hit.node.text for hit in retriever.retrieve("TS-999")]
        ['Error TS-999: pump dry.']
    """

    def __init__(
        self,
        lexical_index: LexicalIndex,
        docstore: SQLiteDocumentStore,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        if lexical_index.size != len(docstore):
            raise InputError(
                f"The lexical index contains {pluralize(lexical_index.size, 'text')}, the document store"
                f" {pluralize(len(docstore), 'node')}: they do not belong together."
            )
        self._open(
            StoreIndex(docstore, lexical=lexical_index),
            lexical_index,
            similarity_top_k=similarity_top_k,
            top_k=top_k,
            filters=filters,
            callback_manager=callback_manager,
            verbose=verbose,
        )

    def _open(
        self,
        index: ChunkIndex,
        lexical_index: LexicalIndex,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        # BM25Retriever.__init__ would build an index and keep every node as JSON.
        BaseRetriever.__init__(self, callback_manager=callback_manager, verbose=verbose)
        self._chunk_index, self._lexical_index = index, lexical_index
        self.similarity_top_k = number_of_results(similarity_top_k, top_k, 20)
        self._filters = filters
        self._owned: SQLiteDocumentStore | None = None

    @classmethod
    def from_defaults(  # type: ignore[override]
        cls,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: BaseDocumentStore | None = None,
        *,
        language: str = "english",
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        **kwargs: Any,
    ) -> Self:
        """Build the index over nodes, over all nodes of a document store, or over the nodes of an index.

        Raises:
            InputError: None or more than one of `index`, `nodes` and `docstore` is given.
        """
        if sum(source is not None for source in (index, nodes, docstore)) != 1:
            raise InputError("Give exactly one of index, nodes and docstore.")
        nodes_store = docstore if index is None else _docstore_of(index)
        owned = not isinstance(nodes_store, SQLiteDocumentStore)
        store = SQLiteDocumentStore() if not isinstance(nodes_store, SQLiteDocumentStore) else nodes_store
        if owned:
            store.add_documents(list(nodes_store.docs.values()) if nodes_store is not None else list(nodes or []))
        texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in store.iterate())
        lexical_index = LexicalIndex.build(texts, language=language)
        k = number_of_results(similarity_top_k, top_k, 20)
        retriever = cls(lexical_index, store, similarity_top_k=k, filters=filters, **kwargs)
        retriever._owned = store if owned else None
        return retriever

    @classmethod
    def over(cls, index: ChunkIndex, **options: Any) -> Self:
        """Return a retriever over any index with terms, such as that of a project's version.

        Raises:
            InputError: The index has no terms.
        """
        if index.lexical is None:
            raise InputError("The index has no terms: create the project with the setting bm25.")
        retriever = cls.__new__(cls)
        retriever._open(index, index.lexical, **options)
        return retriever

    @property
    def chunk_index(self) -> ChunkIndex:
        """The index."""
        return self._chunk_index

    def leg(self, query: QueryBundle, k: int, filters: MetadataFilters | None = None) -> Leg:
        """Rank the k best chunks by BM25; scores are above 0.

        Raises:
            InputError: k is not positive.
        """
        return lexical_leg(self._chunk_index, query_of(query).lexical, require_positive(k), filters or self._filters)

    def specificity(self, text: str) -> float:
        """Return how specific a text is among the chunks; see `specificity_of`."""
        return self.lexical_index.specificity(text)

    @property
    def lexical_index(self) -> LexicalIndex:
        """The terms of the chunks."""
        return self._lexical_index

    # BM25Retriever comes first in the order of the base classes.
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return super(BM25Retriever, self)._retrieve(query_bundle)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await super(BM25Retriever, self)._aretrieve(query_bundle)

    def persist(self, path: str, encoding: str = "utf-8", **kwargs: Any) -> None:
        """Write the index with its settings, and its nodes unless they belong to a given document store."""
        directory = Path(path)
        self.lexical_index.save(directory)
        if self._owned is not None:
            self._owned.persist(str(directory / NODES_FILE))

    @classmethod
    def from_persist_dir(
        cls, path: str, encoding: str = "utf-8", *, docstore: SQLiteDocumentStore | None = None, **kwargs: Any
    ) -> Self:
        """Open an index, memory-mapped, with the settings that it was built with.

        Args:
            path: The directory.
            encoding: Has no effect.
            docstore: The document store with the nodes; None for the nodes in the directory.
            **kwargs: Further arguments of the constructor.

        Raises:
            InputError: The directory has no index, or it has no nodes and no `docstore` is given.
        """
        directory = Path(path)
        index = LexicalIndex.load(directory)
        if docstore is None and not (directory / NODES_FILE).is_file():
            raise InputError(f"{directory} contains no nodes: pass the document store that the index was built over.")
        store = docstore if docstore is not None else SQLiteDocumentStore(directory / NODES_FILE, access="read")
        retriever = cls(index, store, **kwargs)
        retriever._owned = store if docstore is None else None
        return retriever


def _docstore_of(index: VectorStoreIndex) -> BaseDocumentStore:
    """Return the store with the nodes of an index, whose own docstore is empty if its vector store has one."""
    own = getattr(index.vector_store, "docstore", None)
    return own if isinstance(own, SQLiteDocumentStore) else index.docstore
