"""What a leg of a hybrid search offers beyond LlamaIndex's BaseRetriever: a ranking of ids, without touching a node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.errors import InputError
from llama_index_contextual.results import LegScore, ScoredChunk
from llama_index_contextual.storage.docstore import SQLiteDocumentStore

Ranking = list[tuple[str, float]]
"""(node id, score), best first."""


class RankingRetriever(BaseRetriever):
    """A retriever that can rank ids and fetch the nodes afterwards.

    A subclass implements `docstore`, `rank` and `evidence`, and `aprepare` when it has something to await.
    """

    @property
    @abstractmethod
    def docstore(self) -> SQLiteDocumentStore:
        """Where the nodes are."""

    @abstractmethod
    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the k best (node id, score), best first; only nodes that pass the filters count."""

    @abstractmethod
    def evidence(
        self, query: QueryType, ranking: Ranking, chosen: Sequence[str], filters: MetadataFilters | None = None
    ) -> dict[str, dict[str, LegScore]]:
        """Return for each chosen id that stands in `ranking` what this leg says of it, by the leg's name.

        Args:
            query: What `ranking` answers.
            ranking: What `rank` returned.
            chosen: The ids that matter.
            filters: Those that `rank` was given.
        """

    async def aprepare(self, bundle: QueryBundle) -> QueryBundle:
        """Await what `rank` would block for, such as the embedding of the query; a copy is returned, never a change."""
        return bundle

    def search(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> list[NodeWithScore]:
        """Return the k best nodes with their evidence."""
        bundle = as_bundle(query)
        ranking = self.rank(bundle, require_positive(k), filters)
        chosen = [node_id for node_id, _ in ranking]
        evidence = self.evidence(bundle, ranking, chosen, filters)
        return [
            ScoredChunk(node=node, score=score, **evidence.get(node.node_id, {}))
            for node, (_, score) in zip(self.docstore.get_nodes(chosen), ranking, strict=True)
        ]


def as_bundle(query: QueryType) -> QueryBundle:
    """Return the query as a QueryBundle."""
    return QueryBundle(query) if isinstance(query, str) else query


def require_positive(k: int) -> int:
    """Return k.

    Raises:
        InputError: It is not positive.
    """
    if k < 1:
        raise InputError(f"top_k is {k}: ask for at least one result.", value=k)
    return k


def leg_evidence(name: str, ranking: Ranking, chosen: Sequence[str]) -> dict[str, dict[str, LegScore]]:
    """Return score and rank of the chosen ids under the leg's name."""
    wanted = set(chosen)
    return {
        node_id: {name: LegScore(score=score, rank=rank)}
        for rank, (node_id, score) in enumerate(ranking, start=1)
        if node_id in wanted
    }
