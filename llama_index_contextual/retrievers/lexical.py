"""Lexical retrieval: rank chunks by BM25 over their contextualised text."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.bm25 import MAX_TERMS, LexicalIndex, QueryTerms
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.scan import top
from llama_index_contextual.retrievers.base import Ranking, RankingRetriever, lexical_query
from llama_index_contextual.search.fusion import Hits, Scale
from llama_index_contextual.search.queries import as_bundle, number_of_results, require_positive

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
        # BM25Retriever.__init__ would build an index and keep every node as JSON.
        BaseRetriever.__init__(self, callback_manager=callback_manager, verbose=verbose)
        self.lexical_index = lexical_index
        self._docstore = docstore
        self.similarity_top_k = number_of_results(similarity_top_k, top_k, 20)
        self._filters = filters
        self._owns_docstore = False
        if lexical_index.size != len(docstore):
            raise InputError(
                f"The lexical index contains {pluralize(lexical_index.size, 'text')}, the document store"
                f" {pluralize(len(docstore), 'node')}: they do not belong together."
            )

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
        retriever._owns_docstore = owned
        return retriever

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank the k best chunks by BM25; scores are above 0.

        Raises:
            InputError: k is not positive.
        """
        k = require_positive(k)
        terms = self.lexical_index.query(lexical_query(as_bundle(query)))
        scores = all_scores = self.lexical_index.scores(terms)
        mask = self.docstore.mask(filters or self._filters)
        if mask is not None:
            scores = np.where(mask, scores, 0.0)
        best, rows = top(scores, k, above=0.0)
        hits = Hits(rows, best.astype(np.float64))
        # The zero of the scale is 0: chunks without a term of the query count as 0 in the fusion.
        scale = functools.cache(lambda: Scale(0.0, float(all_scores.std())))  # used by fusion and by confidence
        return Ranking(
            hits, self.docstore.ids, name="lexical", terms=terms, scale=scale, warnings=omission_warnings(terms)
        )

    def specificity(self, text: str) -> float:
        """Return how specific a text is among the chunks; see `specificity_of`."""
        return self.lexical_index.specificity(text)

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """The document store with the nodes."""
        return self._docstore

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        k = self.similarity_top_k
        return [*self.fetch(self.rank(query_bundle, k), k)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def persist(self, path: str, encoding: str = "utf-8", **kwargs: Any) -> None:
        """Write the index with its settings, and its nodes unless they belong to a given document store."""
        directory = Path(path)
        self.lexical_index.save(directory)
        if self._owns_docstore:
            self.docstore.persist(str(directory / NODES_FILE))

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
        retriever._owns_docstore = docstore is None
        return retriever


def omission_warnings(terms: QueryTerms) -> tuple[str, ...]:
    """Return a warning if terms of a query are not searched."""
    if not terms.omitted:
        return ()
    limit, number = MAX_TERMS, MAX_TERMS + terms.omitted
    return (
        f"The query has {number:,} different terms: only the {limit} with the largest weights were searched lexically.",
    )


def _docstore_of(index: VectorStoreIndex) -> BaseDocumentStore:
    """Return the store with the nodes of an index, whose own docstore is empty if its vector store has one."""
    own = getattr(index.vector_store, "docstore", None)
    return own if isinstance(own, SQLiteDocumentStore) else index.docstore
