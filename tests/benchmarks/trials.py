"""Search a set with many settings of the fusion, while each index ranks each question only once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.versions import version_directory
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.base import Ranking, RankingRetriever
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.queries import as_bundle
from llama_index_contextual.search.response import RetrievedChunk
from tests.benchmarks.sets import KS, Question, first_ranks


class Remembering(RankingRetriever):
    """A retriever that ranks each question once for each number of candidates."""

    def __init__(self, retriever: RankingRetriever) -> None:
        super().__init__()
        self._retriever = retriever
        self._bundles: dict[str, QueryBundle] = {}
        self._rankings: dict[tuple[str, int], Ranking] = {}

    @property
    def docstore(self) -> SQLiteDocumentStore:
        """The document store with the nodes."""
        return self._retriever.docstore

    def rank(self, query: QueryType, k: int, filters: MetadataFilters | None = None) -> Ranking:
        """Return the ranking of the question, which has no filters here."""
        text = as_bundle(query).query_str
        if (text, k) not in self._rankings:
            if text not in self._bundles:
                self._bundles[text] = self._retriever.prepare(QueryBundle(text))
            self._rankings[text, k] = self._retriever.rank(self._bundles[text], k)
        return self._rankings[text, k]

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        raise NotImplementedError


class Trials(SearchableVersion):
    """The live version of a project, searched in hybrid mode without filters.

    Args:
        project: The project.
    """

    def __init__(self, project: Project) -> None:
        version = project.info().version
        assert version is not None
        super().__init__(version_directory(project.directory, version), lambda *_: project.embed_model)
        self._config = project.config
        self._chunks: dict[str, RetrievedChunk] = {}

    @cached_property
    def semantic(self) -> Any:
        """The semantic retriever."""
        return Remembering(super().semantic)

    @cached_property
    def lexical(self) -> Any:
        """The lexical retriever."""
        return Remembering(super().lexical)

    def ranks(self, questions: Sequence[Question], **changes: Any) -> list[list[int | None]]:
        """Return the ranks of the evidence of each question with changed settings."""
        retriever = self.retriever("hybrid", self._config.changed(**changes))
        results = []
        for question in questions:
            best = [node_id for node_id, _ in retriever.rank(question.text, max(KS)).first(max(KS))]
            if new := [node_id for node_id in best if node_id not in self._chunks]:
                for node in self.docstore.get_nodes(new):
                    self._chunks[node.node_id] = RetrievedChunk.of(1, NodeWithScore(node=node))
            results.append(first_ranks([self._chunks[node_id] for node_id in best], question.evidence))
        return results
