"""Search a set with many fusion settings, ranking each question only once in each index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.schema import NodeWithScore

from llama_index_contextual.project.project import Project
from llama_index_contextual.search.rank import CANDIDATES, RankedList, fuse_lists, lexical_list, semantic_list
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.search.search import SearchSettings, with_best_units
from tests.benchmarks.sets import KS, Question, first_ranks


class Trials:
    """The live version of a project, searched in hybrid mode without filters; each index is ranked once per question.

    Args:
        project: The project.
    """

    def __init__(self, project: Project) -> None:
        self._version = project.live_version
        self._config = project.config
        self._legs: dict[tuple[str, int], list[RankedList]] = {}
        self._chunks: dict[str, RetrievedChunk] = {}

    def ranks(self, questions: Sequence[Question], **changes: Any) -> list[list[int | None]]:
        """Return the ranks of the evidence of each question with changed settings."""
        config = self._config.changed(**changes)
        index, depth = self._version.index, max(CANDIDATES, max(KS))
        settings = SearchSettings.of(config, mode="hybrid", k=max(KS), filters=None)
        fusion = replace(settings.fusion, candidates=depth)
        results = []
        for question in questions:
            legs = self._ranked(question.text, depth)
            ranking = fuse_lists(legs, index.ids, fusion, documents=index.documents, query=question.text)
            ranking, *_ = with_best_units(index, ranking, question.text, results=max(KS), rerank=settings.spotlight)
            best = [node_id for node_id, _ in ranking.first(max(KS))]
            if new := [node_id for node_id in best if node_id not in self._chunks]:
                for node in index.docstore.get_nodes(new):
                    self._chunks[node.node_id] = RetrievedChunk.of(1, NodeWithScore(node=node))
            results.append(first_ranks([self._chunks[node_id] for node_id in best], question.evidence))
        return results

    def _ranked(self, text: str, depth: int) -> list[RankedList]:
        if (text, depth) not in self._legs:
            embedder, index = self._version.embedder, self._version.index
            self._legs[text, depth] = [
                semantic_list(index, embedder.unit([text]), depth, model=embedder.name),
                lexical_list(index, text, depth),
            ]
        return self._legs[text, depth]
