"""Retrieval by words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import bm25s
import numpy as np
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.retrievers.bm25.base import DEFAULT_PERSIST_FILENAME
from numpy.typing import NDArray

from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.config import AUTO, default
from llama_index_contextual.errors import InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import DEFAULT_LANGUAGE
from llama_index_contextual.index.base import Chunk, ChunkIndex
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.index.languages import language_of_texts
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.index.units import Units
from llama_index_contextual.retrievers.base import CheckedRetriever, search_nodes
from llama_index_contextual.search.filters import Filters, to_filters
from llama_index_contextual.search.search import SearchSettings, number_of_results
from llama_index_contextual.stores import IndexVectorStore, stock_bm25, write_bm25

_STOCK_OPTIONS = ("stemmer", "token_pattern", "skip_stemming", "tokenizer")
"""Options of LlamaIndex's BM25Retriever for its own tokenizer."""


class NodeIndex:
    """In-memory index of nodes by their terms, without vectors; see `ChunkIndex`.

    Args:
        nodes: The nodes.
        language: Language of the nodes, see `Analyzer`; `auto` to recognise it.
    """

    dimensions: int | None = None
    documents: DocumentIndex | None = None

    def __init__(self, nodes: Sequence[BaseNode], *, language: str = default("language")) -> None:
        self.docstore = NodeTable()
        self.docstore.add(nodes)
        if language == AUTO:
            language = language_of_texts([node.get_content() for node in nodes]) or DEFAULT_LANGUAGE
        texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in self.docstore.iterate())
        self.lexical = LexicalIndex.build(texts, language=language)

    @property
    def ids(self) -> Sequence[str]:
        """Node id of each row."""
        return self.docstore.ids

    def rank_vectors(
        self, vector: NDArray[np.float32], k: int, filters: MetadataFilters | None = None
    ) -> tuple[Hits, Scale]:
        """Return no hits."""
        return NO_HITS, NO_SCALE

    def rank_terms(self, terms: QueryTerms, k: int, filters: MetadataFilters | None = None) -> tuple[Hits, Scale]:
        """Rank by BM25; see `ChunkIndex.rank_terms`."""
        return self.lexical.rank(terms, k, self.docstore.mask(filters))

    def fetch(self, rows: Sequence[int]) -> list[Chunk]:
        """Return the chunks of the given rows, in the order given."""
        return [Chunk.from_node(node) for node in self.docstore.get_nodes([self.ids[row] for row in rows])]

    def units(self, rows: NDArray[np.int64]) -> Units:
        """Return the units of the given rows, in the order given."""
        passages = ((chunk.text, chunk.metadata) for chunk in self.fetch(rows.tolist()))
        return Units.of(passages, self.lexical.analyzer, has_vectors=False)


class LexicalRetriever(BM25Retriever, CheckedRetriever):
    """Rank chunks by BM25 on their text and context. Terms such as TS-999 match as a whole and in part.

    Chunks without any term of the query are not returned.

    Args:
        index: An index with terms, such as `project.live_version.index`.
        similarity_top_k: Number of results that `retrieve` returns; None for the default of the `top_k` setting.
        top_k: The same as `similarity_top_k`.
        filters: Filters in any form; see `to_filters`. Only nodes that pass them are ranked.
        spotlight: Whether the first nodes are reranked by their best sentence or table row.
        callback_manager: Manager that receives LlamaIndex's events.
        verbose: As for LlamaIndex's retrievers.

    Attributes:
        chunk_index: The index.

    Raises:
        InputError: The index has no terms.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> nodes = [TextNode(text="Error TS-999: pump dry."), TextNode(text="Pump curves.")]
        >>> retriever = LexicalRetriever.from_defaults(nodes=nodes)
        >>> [hit.node.text for hit in retriever.retrieve("TS-999")]
        ['Error TS-999: pump dry.']
    """

    def __init__(
        self,
        index: ChunkIndex,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
        spotlight: bool = SearchSettings.spotlight,
        callback_manager: CallbackManager | None = None,
        verbose: bool = False,
    ) -> None:
        if not hasattr(index, "lexical"):
            raise InputError(
                "LexicalRetriever needs an index with terms, such as `project.live_version.index`: for nodes, a"
                " document store or a LlamaIndex index, use LexicalRetriever.from_defaults().",
                value=index,
            )
        if index.lexical is None:
            raise InputError("This version has no lexical index: create the project with indexes='hybrid'.")
        super().__init__(
            existing_bm25=_unused_bm25(),
            similarity_top_k=number_of_results(similarity_top_k, top_k, SearchSettings.k),
            callback_manager=callback_manager,
            verbose=verbose,
        )
        self.chunk_index = index
        self.spotlight = spotlight
        self._lexical, self._filters = index.lexical, to_filters(filters)

    @property
    def settings(self) -> SearchSettings:
        """The settings of a search."""
        return SearchSettings(mode="lexical", k=self.similarity_top_k, filters=self._filters, spotlight=self.spotlight)

    @classmethod
    def from_defaults(  # type: ignore[override]
        cls,
        index: VectorStoreIndex | None = None,
        nodes: Sequence[BaseNode] | None = None,
        docstore: BaseDocumentStore | None = None,
        *,
        language: str | None = None,
        **options: Any,
    ) -> Self:
        """Build an in-memory index from nodes, from a document store, or from the nodes of another index.

        Nothing is built for the index of a project, `project.index`, if the project has a lexical index.

        Args:
            index: A LlamaIndex index with a document store.
            nodes: The nodes.
            docstore: A document store.
            language: Language of the stemmer, see `Analyzer`; None for the language of the project or the default of
                the `language` setting.
            **options: Further arguments for the constructor.

        Raises:
            InputError: None or more than one of `index`, `nodes` and `docstore` is given, or an option belongs to the
                tokenizer of LlamaIndex's BM25Retriever.
        """
        if sum(source is not None for source in (index, nodes, docstore)) != 1:
            raise InputError("Give exactly one of index, nodes and docstore.")
        if unused := [name for name in _STOCK_OPTIONS if options.pop(name, None)]:
            raise InputError(f"LexicalRetriever has its own tokenizer: omit `{unused[0]}`, or choose a `language`.")
        vectors = None if index is None else index.vector_store
        if language is None and isinstance(vectors, IndexVectorStore) and vectors.client.lexical is not None:
            return cls(vectors.client, **options)
        store = docstore if index is None else index.docstore
        chunks = list(nodes or []) if store is None else list(store.docs.values())
        return cls(NodeIndex(chunks, language=language or default("language")), **options)

    def specificity(self, text: str) -> float:
        """Return the specificity of a text among the chunks; see `specificity_of`."""
        return self._lexical.specificity(text)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return search_nodes(query_bundle, self.chunk_index, self.settings)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def get_persist_args(self) -> dict[str, Any]:
        """Return the options that `persist` writes."""
        language = self._lexical.analyzer.language
        return {"similarity_top_k": self.similarity_top_k, "verbose": self._verbose, "language": language}

    def persist(self, path: str, encoding: str = "utf-8", **kwargs: Any) -> None:
        """Write the chunks to a directory for `from_persist_dir`, also for that of LlamaIndex's BM25Retriever.

        Args:
            path: The directory; files with the same names are replaced.
            encoding: Encoding of the file with the options.
            **kwargs: Ignored.

        Raises:
            InputError: The retriever has filters, or no chunk contains a word for LlamaIndex's BM25Retriever.
        """
        if self._filters is not None:
            raise InputError(
                "Filters are not persisted: persist a retriever without filters, and pass filters= to from_persist_dir."
            )
        chunks = self.chunk_index.fetch(range(len(self.chunk_index.ids)))
        stock = stock_bm25([chunk.node for chunk in chunks], top_k=self.similarity_top_k)
        if stock is None:
            raise InputError("No chunk contains a word that LlamaIndex's BM25Retriever indexes: nothing was written.")
        directory = Path(path)
        write_bm25(stock, directory, encoding)
        files.replace(directory / DEFAULT_PERSIST_FILENAME, json.dumps(self.get_persist_args()).encode(encoding))

    @classmethod
    def from_persist_dir(cls, path: str, encoding: str = "utf-8", **options: Any) -> Self:
        """Build an in-memory index of the chunks that `persist` or LlamaIndex's BM25Retriever has written.

        Args:
            path: The directory.
            encoding: Encoding of the file with the options.
            **options: Further arguments for `from_defaults`, which override those that were written.

        Raises:
            InputError: The directory was not written by `persist`.
        """
        try:
            settings = {**parse_json((Path(path) / DEFAULT_PERSIST_FILENAME).read_text(encoding))}
            nodes = [metadata_dict_to_node(row) for row in bm25s.BM25.load(path, load_corpus=True).corpus]
            arguments = {name: settings[name] for name in ("similarity_top_k", "language") if name in settings}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path} was not written by `persist` of a BM25 retriever: {error}. Pass a folder that it has written,"
                f" such as `bm25` in an export; for a project, use LexicalRetriever(project.live_version.index).",
                value=path,
            ) from error
        if "top_k" in options:
            del arguments["similarity_top_k"]
        return cls.from_defaults(nodes=nodes, **{**arguments, **options})


def _unused_bm25() -> bm25s.BM25:
    """Return an empty index for LlamaIndex's BM25Retriever, which would otherwise keep every node as JSON."""
    index = bm25s.BM25()
    index.scores = {}
    return index
