"""LlamaIndex's own fusion of the same retrievers, as the reference for reciprocal rank fusion."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever

from llama_index_contextual import (
    LexicalRetriever,
    Project,
    ProjectConfig,
    ProjectManager,
    SemanticRetriever,
)
from llama_index_contextual.search.rank import CANDIDATES
from tests.support.examples import DATA

QUESTIONS = (
    "What does error TS-999 mean?",
    "Which chlorine value is required in the high zone?",
    "Who approves expenses above the limit?",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the example documents, in files."""
    project = ProjectManager(tmp_path_factory.mktemp("card")).create("card", ProjectConfig.local())
    project.ingest([path for path in sorted(DATA.iterdir()) if path.suffix in (".md", ".txt")])
    return project


def legs(project: Project, **options: Any) -> tuple[SemanticRetriever, LexicalRetriever]:
    return SemanticRetriever(project.index, **options), LexicalRetriever(project.live_version.index, **options)


def test_llama_indexs_own_query_fusion_retriever_answers_as_reciprocal_rank_fusion_does(project: Project) -> None:
    settings = {"fusion": "rrf", "semantic_weight": 0.5, "document_weight": 0.0}
    # LlamaIndex counts ranks from 0 with the constant 60, which is ranks from 1 with 59; its weights are 1 and 1.
    retriever = project.as_retriever(top_k=100).changed(**settings, rrf_k=59, rerank=None)
    stock = QueryFusionRetriever(
        [*legs(project, similarity_top_k=CANDIDATES, spotlight=False)],
        mode="reciprocal_rerank",
        num_queries=1,
        similarity_top_k=100,
        use_async=False,
        llm=MockLLM(),
    )
    for question in QUESTIONS:
        hits = retriever.retrieve(question)
        expected = {hit.node.node_id: hit.score for hit in stock.retrieve(question)}
        assert {hit.node.node_id: 2 * hit.score for hit in hits} == pytest.approx(expected)
        assert [2 * hit.score for hit in hits] == pytest.approx(list(expected.values()))  # equal but for ties
