"""Retrieval from an index: by meaning, by words, or by both with fused rankings."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import bm25s
import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.indices.vector_store.retrievers import VectorIndexRetriever
from llama_index.core.llms import LLM, MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.storage.docstore.types import BaseDocumentStore
from llama_index.core.vector_stores.types import MetadataFilters
from llama_index.core.vector_stores.utils import metadata_dict_to_node
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.retrievers.bm25.base import DEFAULT_PERSIST_FILENAME
from llama_index.vector_stores.faiss import FaissVectorStore
from numpy.typing import NDArray

from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.config import Fusion, default
from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.base import NO_HITS, NO_SCALE, Chunk, ChunkIndex, Hits, Scale
from llama_index_contextual.index.bm25 import LexicalIndex, QueryTerms
from llama_index_contextual.index.documents import DocumentIndex
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.retrievers.base import (
    CheckedRetriever,
    alimit_query,
    as_bundle,
    limit_query,
    query_of,
    specificity_of,
)
from llama_index_contextual.search.confidence import RANKED
from llama_index_contextual.search.rank import (
    FusionSettings,
    Leg,
    Ranking,
    fused,
    hits_of,
    lexical_leg,
    normalise_weights,
    reciprocal_rank_fusion,
    score_fusion,
    semantic_leg,
)
from llama_index_contextual.search.response import LEGS
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.search import SearchSettings, best_chunks, number_of_results, require_positive
from llama_index_contextual.stores import IndexVectorStore, stock_bm25, write_bm25

_L2 = 1  # faiss.METRIC_L2, without the import, which is slow
_STOCK_OPTIONS = ("stemmer", "token_pattern", "skip_stemming", "tokenizer")
"""Options of LlamaIndex's BM25Retriever for its own tokenizer."""


class RankingRetriever(CheckedRetriever):
    """A retriever that ranks the rows of an index first, and then fetches the nodes of the best rows.

    Attributes:
        chunk_index: The index.
        similarity_top_k: Number of results that `retrieve` returns.
        spotlight: Whether `retrieve` reranks the first nodes by their best sentence or table row.
    """

    chunk_index: ChunkIndex
    similarity_top_k: int
    spotlight: bool

    @property
    def ranks_rows(self) -> bool:
        """Whether `rank` can be used. Otherwise, only `retrieve` can."""
        return True

    # `rank` is not an abstract method, because LlamaIndex creates a span for every call of an abstract method, which
    # takes longer than ranking a thousand chunks.
    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank at least the k best nodes that pass the filters.

        Raises:
            InputError: k is not positive, or the query does not fit the index.
        """
        # To the same depth for all usual values of k, so that the results do not depend on k.
        leg = self.leg(as_bundle(query), max(RANKED, require_positive(k)), filters)
        return Ranking(leg.hits, self.chunk_index.ids, [leg])

    def leg(self, query: QueryBundle, k: int, filters: MetadataFilters | None = None) -> Leg:
        """Rank the k best nodes in this retriever's only index."""
        raise NotImplementedError(f"{type(self).__name__} does not rank in a single index: implement `leg`.")

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the chunks, for use in filters.

        The list is empty if the index has no document store.
        """
        docstore = getattr(self.chunk_index, "docstore", None) if self.ranks_rows else None
        return [] if docstore is None else list(docstore.metadata_keys())

    def fetch(self, ranking: Ranking, k: int, question: str) -> list[RetrievedChunk]:
        """Return the k best nodes of a ranking, each with its evidence and its best-matching sentence or row."""
        ranking, chunks, spots = best_chunks(
            self.chunk_index, ranking, question, count=k, results=k, rerank=self.spotlight
        )
        return [RetrievedChunk.of_hit(hit) for hit in hits_of(ranking, chunks[:k], ranking.evidence(k), spots)]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        k = self.similarity_top_k
        return [*self.fetch(self.rank(query_bundle, k), k, query_of(query_bundle).text)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


# ---- semantic --------------------------------------------------------------------------------------------------------


class SemanticRetriever(VectorIndexRetriever, RankingRetriever):
    """Rank chunks by the cosine similarity of their contextualised embeddings to the query's embedding.

    Any other LlamaIndex index is searched by its vector store, whose scores are returned. Distances, which a FAISS
    index with the L2 metric returns, are negated, so that the highest score is the best.

    Args:
        index: The index of a project, `project.index`, or any other VectorStoreIndex.
        similarity_top_k: Number of results that `retrieve` returns; None for the default of the `top_k` setting.
        top_k: The same as `similarity_top_k`.
        filters: Metadata filters; only nodes that pass them are ranked.
        spotlight: Whether the first nodes are reranked by their best sentence or table row, if the index belongs to a
            project. For other indexes, use `SpotlightRerank`.
        embed_model: Model that embeds the query; None uses the model of the index.
        callback_manager: Manager that receives LlamaIndex's events.
    """

    def __init__(
        self,
        index: VectorStoreIndex,
        *,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        spotlight: bool = SearchSettings.spotlight,
        embed_model: BaseEmbedding | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(
            index,
            similarity_top_k=number_of_results(similarity_top_k, top_k, SearchSettings.k),
            filters=filters,
            embed_model=embed_model,
            callback_manager=callback_manager,
        )
        self.spotlight = spotlight
        self._embedder = QueryEmbedder(self._embed_model)

    @property
    def ranks_rows(self) -> bool:
        """True if the index belongs to a project."""
        return isinstance(self._vector_store, IndexVectorStore)

    @property
    def chunk_index(self) -> ChunkIndex:  # type: ignore[override]
        """The index of the project.

        Raises:
            InputError: The index does not belong to a project.
        """
        if not isinstance(self._vector_store, IndexVectorStore):
            raise InputError("SemanticRetriever ranks rows only in the index of a project: use retrieve().")
        return self._vector_store.client

    def leg(self, query: QueryBundle, k: int, filters: MetadataFilters | None = None) -> Leg:
        """Rank the k best chunks by cosine similarity. A zero vector has no hits.

        Raises:
            InputError: The query's embedding does not fit the index.
            ModelError: The embedding model cannot be reached.
        """
        question = query_of(query)
        embedding = self._embedder.unit(question.embedded) if question.embedding is None else question.embedding
        return semantic_leg(self.chunk_index, embedding, k, filters or self._filters, model=self._embedder.name)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.ranks_rows:
            return super(VectorIndexRetriever, self)._retrieve(query_bundle)
        return self._results(self._get_nodes_with_embeddings(self._embedded(query_bundle)))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.ranks_rows:
            return await super(VectorIndexRetriever, self)._aretrieve(query_bundle)
        bundle = await asyncio.to_thread(self._embedded, query_bundle)
        return self._results(await self._aget_nodes_with_embeddings(bundle))

    def _embedded(self, bundle: QueryBundle) -> QueryBundle:
        """Return a query with its embedding, if the vector store needs one."""
        question = query_of(bundle)
        embedding = bundle.embedding
        if embedding is None and self._needs_embedding():
            embedding = self._embedder.embed(question.embedded)
        return QueryBundle(question.text, embedding=embedding)

    def _results(self, hits: Sequence[NodeWithScore]) -> list[NodeWithScore]:
        return [
            RetrievedChunk.of(rank, NodeWithScore(node=hit.node, score=score))
            for rank, (hit, score) in enumerate(_similarities(hits, self._vector_store), start=1)
        ]


def _similarities(hits: Sequence[NodeWithScore], store: object) -> list[tuple[NodeWithScore, float]]:
    """Return hits with their scores, best first.

    Args:
        hits: The hits.
        store: The vector store that returned them. With the L2 metric, FAISS returns distances, which are negated.
    """
    has_distances = isinstance(store, FaissVectorStore) and store.client.metric_type == _L2
    scored = [(hit, -(hit.score or 0.0) if has_distances else hit.score or 0.0) for hit in hits]
    return sorted(scored, key=itemgetter(1), reverse=True)


# ---- lexical ---------------------------------------------------------------------------------------------------------


class NodeIndex:
    """In-memory index of nodes by their terms, without vectors; see `ChunkIndex`.

    Args:
        nodes: The nodes.
        language: Language of the stemmer; see `Analyzer`.
    """

    dimensions: int | None = None
    documents: DocumentIndex | None = None

    def __init__(self, nodes: Sequence[BaseNode], *, language: str = default("language")) -> None:
        self.docstore = NodeTable()
        self.docstore.add(nodes)
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
        return [Chunk.of(node) for node in self.docstore.get_nodes([self.ids[row] for row in rows])]


class LexicalRetriever(BM25Retriever, RankingRetriever):
    """Rank chunks by BM25 on their text and context. Terms such as TS-999 match as a whole and in part.

    Chunks without any term of the query are not returned.

    Args:
        index: An index with terms, such as `project.live_version.index`.
        similarity_top_k: Number of results that `retrieve` returns; None for the default of the `top_k` setting.
        top_k: The same as `similarity_top_k`.
        filters: Metadata filters; only nodes that pass them are ranked.
        spotlight: Whether the first nodes are reranked by their best sentence or table row.
        callback_manager: Manager that receives LlamaIndex's events.
        verbose: As for LlamaIndex's retrievers.

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
        filters: MetadataFilters | None = None,
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
        # BM25Retriever.__init__ would build an index and keep every node as JSON.
        RankingRetriever.__init__(self, callback_manager, verbose=verbose)
        self.chunk_index = index
        self.similarity_top_k = number_of_results(similarity_top_k, top_k, SearchSettings.k)
        self.spotlight = spotlight
        self._lexical, self._filters = index.lexical, filters

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
        given = list(nodes or []) if store is None else list(store.docs.values())
        return cls(NodeIndex(given, language=language or default("language")), **options)

    def leg(self, query: QueryBundle, k: int, filters: MetadataFilters | None = None) -> Leg:
        """Rank the k best chunks with a BM25 score above 0."""
        return lexical_leg(self.chunk_index, query_of(query).lexical, k, filters or self._filters)

    def specificity(self, text: str) -> float:
        """Return the specificity of a text among the chunks; see `specificity_of`."""
        return self._lexical.specificity(text)

    # BM25Retriever is the first base class, so its methods would be used otherwise.
    _retrieve = RankingRetriever._retrieve
    _aretrieve = RankingRetriever._aretrieve

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
            stored = {**parse_json((Path(path) / DEFAULT_PERSIST_FILENAME).read_text(encoding))}
            nodes = [metadata_dict_to_node(row) for row in bm25s.BM25.load(path, load_corpus=True).corpus]
            written = {name: stored[name] for name in ("similarity_top_k", "language") if name in stored}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} was not written by `persist` of a BM25 retriever: {error}", value=path) from error
        if "top_k" in options:
            del written["similarity_top_k"]
        return cls.from_defaults(nodes=nodes, **{**written, **options})


# ---- hybrid ----------------------------------------------------------------------------------------------------------


class HybridRetriever(QueryFusionRetriever, RankingRetriever):
    """Fuse the weighted rankings of several retrievers and fetch only the nodes of the result.

    The rankings of a `SemanticRetriever` and a `LexicalRetriever` for the same index are fused without reading any
    nodes, and the document scores of the index are added. For other retrievers, and for several generated queries,
    LlamaIndex's own code is used with the same weighted fusion by node id. The nodes that the retrievers return are not
    changed.

    The defaults are those of a project, so that a `SemanticRetriever` and a `LexicalRetriever` for the index of a
    project give the results of `project.retrieve`, unless its settings have been changed.

    Args:
        retrievers: The retrievers to fuse ("legs").
        retriever_weights: One weight per leg, not all zero. None for the weights of a project's settings if one of two
            legs searches vectors and the other is a BM25 retriever, or for equal weights. If only one of several legs
            has a weight above 0, the result has the order of that leg, without document scores.
        similarity_top_k: Number of results that `retrieve` returns; None for the default of the `top_k` setting.
        top_k: The same as `similarity_top_k`.
        candidates: Number of hits taken from each leg before fusion, if the legs rank rows of the same index. Other
            retrievers use their own number of results.
        fusion: Whether to fuse reciprocal ranks or scaled scores.
        rrf_k: Constant used in reciprocal rank fusion.
        document_weight: Weight of the document scores, relative to the legs' weights, whose sum is scaled to 1. Score
            fusion increases this weight if documents have more than ten chunks on average, and decreases it if they
            have fewer.
        spotlight: Whether the first nodes are reranked by their best sentence or table row (only for score fusion
            of legs that share an index).
        sibling_weight: Share of the best chunk's score that is added to each chunk of the same document.
        filters: Metadata filters; only nodes that pass them are ranked. Filters require legs with the same index, and a
            single query.
        llm: LLM that writes additional queries if num_queries > 1.
        num_queries: Number of queries, including the given query.
        **kwargs: Further arguments for `QueryFusionRetriever`.

    Raises:
        ConfigurationError: There are no legs, a weight is NaN, infinite or negative, all weights are zero, or the
            filters cannot be applied in every leg.
    """

    def __init__(
        self,
        retrievers: list[BaseRetriever],
        *,
        retriever_weights: list[float] | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        candidates: int = FusionSettings.candidates,
        fusion: Fusion = FusionSettings.by,
        rrf_k: float = FusionSettings.rrf_k,
        document_weight: float = FusionSettings.document_weight,
        sibling_weight: float = FusionSettings.sibling_weight,
        spotlight: bool = SearchSettings.spotlight,
        filters: MetadataFilters | None = None,
        llm: LLM | None = None,
        num_queries: int = 1,
        **kwargs: Any,
    ) -> None:
        if "mode" in kwargs:
            raise ConfigurationError(
                "HybridRetriever: use `fusion`, 'score' or 'rrf', instead of `mode`.", setting="mode"
            )
        try:
            weights = _default_weights(retrievers)
            if retriever_weights is not None:
                weights = normalise_weights(retriever_weights, len(retrievers))
        except ValueError as error:
            raise ConfigurationError(f"HybridRetriever: {error}.", setting="retriever_weights") from None
        for name, weight in (("document_weight", document_weight), ("sibling_weight", sibling_weight)):
            if not (isinstance(weight, Real) and math.isfinite(weight) and weight >= 0):
                raise ConfigurationError(
                    f"HybridRetriever: {name} ({weight!r}) must be a finite number and not negative.", setting=name
                )
        super().__init__(
            retrievers,
            # Without an LLM, the base class would use Settings.llm, which requires a key even for a single query.
            llm=llm or (MockLLM() if num_queries <= 1 else None),
            mode=FUSION_MODES.RECIPROCAL_RANK,
            similarity_top_k=number_of_results(similarity_top_k, top_k, SearchSettings.k),
            num_queries=num_queries,
            retriever_weights=weights,
            **kwargs,
        )
        self.settings = FusionSettings(
            by=fusion,
            weights=weights,
            rrf_k=rrf_k,
            candidates=candidates,
            document_weight=document_weight,
            sibling_weight=sibling_weight,
        )
        self.spotlight = spotlight
        self._filters = filters
        self._legs = [one for one in retrievers if isinstance(one, RankingRetriever)]
        if filters is not None and not self.ranks_rows:
            raise ConfigurationError(
                "HybridRetriever: filters need a SemanticRetriever and a LexicalRetriever over the same chunks, and a"
                " single query: pass filters to each retriever instead.",
                setting="filters",
            )

    @property
    def ranks_rows(self) -> bool:
        """True if the legs can be fused by row: all of them rank the same rows, and there is a single query."""
        legs = [one for one in self._retrievers if isinstance(one, SemanticRetriever | LexicalRetriever)]
        legs = [leg for leg in legs if leg.ranks_rows]
        rows = {id(getattr(leg.chunk_index, "docstore", leg.chunk_index)) for leg in legs}
        return self.num_queries <= 1 and len(legs) == len(self._retrievers) and len(rows) == 1

    @property
    def chunk_index(self) -> ChunkIndex:  # type: ignore[override]
        """The index that all legs use."""
        return self._legs[0].chunk_index

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Rank with every leg, fuse the rankings, and add the document scores.

        Raises:
            InputError: k is not positive, or the legs do not rank the rows of the same index.
        """
        if not self.ranks_rows:
            raise InputError(
                "HybridRetriever ranks rows only if it has a SemanticRetriever and a LexicalRetriever over the same"
                " chunks, and a single query: use retrieve()."
            )
        bundle, depth = as_bundle(query), max(self.settings.candidates, require_positive(k))
        legs = [one.leg(bundle, depth, filters or self._filters) for one in self._legs]
        settings, index = replace(self.settings, candidates=depth), self.chunk_index
        return fused(legs, index.ids, settings, documents=index.documents, query=query_of(bundle).lexical)

    def specificity(self, text: str) -> float | None:
        """Return the specificity of a text for the first retriever that can measure it; see `specificity_of`."""
        values = (specificity_of(retriever, text) for retriever in self._retrievers)
        return next((value for value in values if value is not None), None)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.ranks_rows:
            return super(QueryFusionRetriever, self)._retrieve(query_bundle)
        return super()._retrieve(limit_query(query_bundle)[0])

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self.ranks_rows:
            return await super(QueryFusionRetriever, self)._aretrieve(query_bundle)
        limited, _ = await alimit_query(query_bundle)
        return await super()._aretrieve(limited)

    def _reciprocal_rerank_fusion(self, results: dict[tuple[str, int], list[NodeWithScore]]) -> list[NodeWithScore]:
        """Fuse the weighted hits of retrievers that do not share an index, by node id.

        The results are new objects that contain the evidence of the original hits.
        """
        rankings, chunks = [], dict[str, dict[str, Any]]()
        for (_, leg), hits in results.items():
            retriever = self._retrievers[leg]
            store = None if isinstance(retriever, SemanticRetriever) else getattr(retriever, "_vector_store", None)
            rankings.append([(hit.node.node_id, score) for hit, score in _similarities(hits, store)])
            for hit in hits:
                fields = chunks.setdefault(hit.node.node_id, {"node": hit.node})
                for name in LEGS:
                    if (evidence := getattr(hit, name, None)) is not None:
                        fields.setdefault(name, evidence)
        weights = [self._retriever_weights[leg] for _, leg in results]
        if self.settings.by == "score":
            ranking = score_fusion(rankings, weights)
        else:
            ranking = reciprocal_rank_fusion(rankings, weights, k=self.settings.rrf_k)
        return [
            RetrievedChunk(rank=rank, score=score, **chunks[node_id])
            for rank, (node_id, score) in enumerate(ranking, start=1)
        ]


def _default_weights(retrievers: Sequence[BaseRetriever]) -> list[float]:
    """Return the weights of a project for a vector retriever and a BM25 retriever, or equal weights for others.

    Raises:
        ValueError: There are no retrievers.
    """
    kinds = [isinstance(one, VectorIndexRetriever) - isinstance(one, BM25Retriever) for one in retrievers]
    if sorted(kinds) == [-1, 1]:
        semantic, lexical = FusionSettings.weights
        return [semantic if kind > 0 else lexical for kind in kinds]
    return normalise_weights([1.0] * len(retrievers), len(retrievers))
