"""The package does what its one-line specification promises, sentence by sentence.

"custom NodeParsers for 8000-token segments and 800-token chunks, a TransformComponent that adds LLM context, a
QueryFusionRetriever that combines FAISS and BM25 retrievers, all persisted through StorageContext per project."
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import NodeParser
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TransformComponent
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_contextual import (
    ChunkNodeParser,
    HybridRetriever,
    LexicalRetriever,
    LLMContextualizer,
    Project,
    ProjectConfig,
    ProjectManager,
    SegmentNodeParser,
    SemanticRetriever,
    open_storage_context,
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


def ids(hits: list[NodeWithScore]) -> list[str]:
    return [hit.node.node_id for hit in hits]


def legs(project: Project, **options: Any) -> tuple[SemanticRetriever, LexicalRetriever]:
    return SemanticRetriever(project.index, **options), LexicalRetriever(project.live_version.index, **options)


def test_custom_node_parsers_for_8000_token_segments_and_800_token_chunks() -> None:
    assert issubclass(SegmentNodeParser, NodeParser)
    assert issubclass(ChunkNodeParser, NodeParser)
    assert SegmentNodeParser().segment_size == 8_000
    assert ChunkNodeParser().chunk_size == 800


def test_a_transform_component_that_adds_llm_context() -> None:
    assert issubclass(LLMContextualizer, TransformComponent)


def test_a_query_fusion_retriever_over_the_faiss_and_bm25_retrievers_answers_as_the_project_does(
    project: Project,
) -> None:
    assert issubclass(HybridRetriever, QueryFusionRetriever)
    assert issubclass(LexicalRetriever, BM25Retriever)
    semantic, lexical = legs(project)
    hybrid = HybridRetriever([semantic, lexical])
    for retriever, mode in ((hybrid, None), (semantic, "semantic"), (lexical, "lexical")):
        for question in QUESTIONS:
            expected = project.retrieve(question, mode=mode)
            hits = retriever.retrieve(question)
            assert ids(hits) == ids([*expected.results])
            assert [hit.score for hit in hits] == [hit.score for hit in expected.results]


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


def test_all_persisted_through_storage_context_per_project(project: Project, tmp_path: Path) -> None:
    version = project.live_version
    context = project.storage_context
    assert context.docstore.docs.keys() == set(version.index.ids)
    assert context.vector_store.to_dict()["version_directory"] == str(version.directory)
    assert open_storage_context(version.directory).docstore.docs == context.docstore.docs

    live = project.index.as_retriever(similarity_top_k=5)
    context.persist(tmp_path / "stock")
    stock = load_index_from_storage(
        StorageContext.from_defaults(
            persist_dir=str(tmp_path / "stock"), vector_store=FaissVectorStore.from_persist_dir(str(tmp_path / "stock"))
        ),
        embed_model=version.embed_model,
    ).as_retriever(similarity_top_k=5)
    for question in QUESTIONS:
        assert ids(stock.retrieve(question)) == ids(live.retrieve(question))
        assert [hit.score for hit in stock.retrieve(question)] == pytest.approx(
            [hit.score for hit in live.retrieve(question)], abs=1e-6
        )
