"""What a leg of a hybrid search offers beyond LlamaIndex's BaseRetriever: a ranking without touching a node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.retrievers.instrument import without_span
from llama_index_contextual.retrievers.lexical_index import LexicalQuery
from llama_index_contextual.retrievers.queries import as_bundle, require_positive
from llama_index_contextual.retrievers.trace import Evidence, Trace
from llama_index_contextual.storage.docstore import SQLiteDocumentStore

Ranking = list[tuple[str, float]]
"""(node id, score), best first."""


@dataclass
class WeightedQuery(QueryBundle):
    """A question that the lexical indexes are asked in other words than the semantic one.

    Attributes:
        lexical_texts: What they are asked, with the weight of each text's terms; empty for the question itself.
    """

    lexical_texts: tuple[tuple[str, float], ...] = field(default=(), repr=False)


@runtime_checkable
class Responding(Protocol):
    """A retriever that says more than its nodes."""

    def respond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Return the results with their evidence."""
        ...

    async def arespond(self, bundle: QueryBundle) -> RetrievalResponse:
        """Do as `respond` does, without blocking the event loop."""
        ...


def respond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Return what a retriever of any kind finds."""
    if isinstance(retriever, Responding):
        return retriever.respond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, retriever.retrieve(bundle))


async def arespond_of(retriever: BaseRetriever, bundle: QueryBundle) -> RetrievalResponse:
    """Do as `respond_of` does, without blocking the event loop."""
    if isinstance(retriever, Responding):
        return await retriever.arespond(bundle)
    return RetrievalResponse.of_nodes(bundle.query_str, await retriever.aretrieve(bundle))


@runtime_checkable
class Specific(Protocol):
    """A retriever that knows how specific a question is among its passages."""

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is, or None where that is not known."""
        ...


def specificity_of(retriever: BaseRetriever, text: str) -> float | None:
    """Return how specific a text is among the passages of a retriever: 1 where its terms could just single out one.

    It is the sum of the inverse document frequencies of its terms over the logarithm of the number of passages: were
    terms independent, as many passages as `N ** (1 - specificity)` would hold them all. None where a retriever has no
    terms.

    Source: Spärck Jones, "A statistical interpretation of term specificity and its application in retrieval", Journal
    of Documentation 28, 1972.
    """
    return retriever.specificity(text) if isinstance(retriever, Specific) else None


class Found(NamedTuple):
    """A node of an answer, its score, and what each index said of it."""

    node: BaseNode
    score: float
    evidence: Evidence


class CheckedRetriever(BaseRetriever):
    """A retriever that refuses what is not a query with a sentence, before LlamaIndex looks at it."""

    @without_span
    def retrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Return the nodes that answer a query best.

        Raises:
            InputError: It is neither a text nor a QueryBundle.
        """
        as_bundle(str_or_query_bundle)
        return super().retrieve(str_or_query_bundle)

    @without_span
    async def aretrieve(self, str_or_query_bundle: QueryType) -> list[NodeWithScore]:
        """Do as `retrieve` does, without blocking the event loop."""
        as_bundle(str_or_query_bundle)
        return await super().aretrieve(str_or_query_bundle)


class RankingRetriever(CheckedRetriever):
    """A retriever that can rank without touching a node, and fetch the nodes afterwards.

    A subclass implements `docstore` and `trace`, and `prepare` and `aprepare` when it has something to wait for.
    """

    @property
    @abstractmethod
    def docstore(self) -> SQLiteDocumentStore:
        """Where the nodes are."""

    # Not abstract: LlamaIndex would make a span of every call, which costs more than ranking a thousand chunks.
    def trace(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Trace:
        """Rank at least the k best; only nodes that pass the filters count."""
        raise NotImplementedError(f"{type(self).__name__} does not rank: implement `trace`.")

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the k best (node id, score), best first; only nodes that pass the filters count."""
        hits = self.trace(query, k, filters).hits.first(k)
        ids = self.docstore.ids
        return [(ids[row], score) for row, score in zip(hits.rows.tolist(), hits.scores.tolist(), strict=True)]

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Await what `trace` would block for, such as the query's embedding; a copy is returned, never a change."""
        return bundle

    def prepare(self, bundle: QueryBundle) -> QueryBundle:
        """Do as `aprepare` does, and block."""
        return bundle

    def prepare_many(self, bundles: list[QueryBundle]) -> list[QueryBundle]:
        """Return the queries with what is cheaper to find out for all of them at once, such as their embeddings."""
        return bundles

    def fetch(self, trace: Trace, k: int, evidence: Sequence[Evidence] | None = None) -> list[Found]:
        """Return the k best nodes of a ranking by one fetch, with their evidence, which may be known already."""
        hits, ids = trace.hits.first(k), self.docstore.ids
        nodes = self.docstore.get_nodes([ids[row] for row in hits.rows.tolist()])
        said = (trace.evidence(k) if evidence is None else evidence)[: len(nodes)]
        return [Found(*found) for found in zip(nodes, hits.scores.tolist(), said, strict=True)]

    def search(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> list[NodeWithScore]:
        """Return the k best nodes with their evidence; each index ranks once."""
        trace = self.trace(as_bundle(query), require_positive(k), filters)
        return [RetrievedChunk.made(rank, *found).to_node() for rank, found in enumerate(self.fetch(trace, k), start=1)]


def lexical_query(bundle: QueryBundle) -> LexicalQuery:
    """Return what the lexical indexes are asked: the question, or what a conversation made of it."""
    weighted = bundle.lexical_texts if isinstance(bundle, WeightedQuery) else ()
    return weighted or bundle.query_str


def with_terms(bundle: QueryBundle, texts: Sequence[str], weight: float) -> WeightedQuery:
    """Return the query with the terms of more texts, each at a weight, for the lexical indexes."""
    asked = lexical_query(bundle)
    whole = ((asked, 1.0),) if isinstance(asked, str) else asked
    lexical_texts = (*whole, *((text, weight) for text in texts))
    if isinstance(bundle, WeightedQuery):
        return replace(bundle, lexical_texts=lexical_texts)
    return WeightedQuery(
        bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, lexical_texts
    )
