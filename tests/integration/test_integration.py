"""Projects and components in LlamaIndex's agents, engines and pipelines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import (
    CitationQueryEngine,
    RetrieverQueryEngine,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.llms.openai import OpenAI

from llama_index_contextual import (
    ChunkNodeParser,
    Project,
    SegmentNodeParser,
    StructuralContextualizer,
    WordLlamaEmbedding,
)
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.tools.document_tools import tool_name
from tests.support.documents import MARKDOWN, TEXT
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"


@pytest.fixture
def filled(project: Project, tiny_folder: Path) -> Project:
    """A project of three documents."""
    project.ingest([tiny_folder])
    return project


def openai(provider: LoopbackProvider) -> OpenAI:
    """The real client, pointed at the loopback interface."""
    return OpenAI(model="gpt-4.1-mini", api_base=provider.api_base, api_key="sk-any", reuse_client=False)


class TestTool:
    def test_the_tool_description_lists_the_documents(self, filled: Project) -> None:
        tool = filled.as_tool()
        assert tool.metadata.name == "search_reports"
        assert "Searches the 3 documents of 'reports'" in tool.metadata.description
        assert "Tariff note" in tool.metadata.description
        assert json.loads(tool.metadata.fn_schema_str)["required"] == ["query"]

    def test_the_model_reads_passages_and_the_program_gets_the_response(self, filled: Project) -> None:
        result = filled.as_tool(top_k=2)(query=QUESTION)
        assert isinstance(result.raw_output, RetrievalResponse)
        assert result.raw_output.query == QUESTION
        assert len(result.raw_output) == 2
        best = result.raw_output[0]
        assert f"[Source 1] {best.source}\n{best.text}" in str(result)

    def test_an_error_reaches_the_model_as_a_message(self, project: Project) -> None:
        tool = project.as_tool(name="über alles!")
        assert re.fullmatch(r"ber_alles_[0-9a-f]{8}", tool.metadata.name or "")
        assert str(tool(query="x")).startswith("The search failed: Project 'reports' has no version yet")

    def test_projects_have_tools_with_different_names(self) -> None:
        names = [
            "契約",
            "報告",
            "договор",
            "отчёт",
            "über",
            "uber",
            "a b",
            "a_b",
            "a.b",
            "x" * 80,
            "x" * 81,
            "",
            "日" * 64,
        ]
        tools = [tool_name(name) for name in names]
        assert len(set(tools)) == len(names)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool) for tool in tools)
        assert tool_name("search_a-b_2") == "search_a-b_2"

    async def test_a_search_without_results_says_so(self, filled: Project) -> None:
        result = await filled.as_tool(mode="lexical").acall(query="zebra")
        assert str(result).startswith("Note: No passage was found. No document mentions “zebra”.")


class TestEngines:
    def test_a_retriever_query_engine_answers_with_sources(self, filled: Project) -> None:
        engine = RetrieverQueryEngine.from_args(filled.as_retriever(similarity_top_k=2), llm=MockLLM())
        answer = engine.query(QUESTION)
        assert answer.source_nodes[0].metadata["file_name"] == "manual.txt"
        assert len(answer.source_nodes) == 2

    def test_a_citation_query_engine_numbers_our_passages(self, filled: Project) -> None:
        engine = CitationQueryEngine(filled.as_retriever(similarity_top_k=2), llm=MockLLM())
        answer = engine.query(QUESTION)
        assert [node.node.get_content().partition(":")[0] for node in answer.source_nodes] == ["Source 1", "Source 2"]
        assert "TS-999 means that the pump runs dry" in answer.source_nodes[0].node.get_content()


def documents() -> list[Document]:
    """Two documents with ids that stay the same."""
    return [
        Document(text=MARKDOWN, doc_id="quarter.md", metadata={"title": "Second quarter"}),
        Document(text=TEXT, doc_id="manual.txt", metadata={"title": "Manual"}),
    ]


def pipeline(**options: object) -> IngestionPipeline:
    """All our components behind one another."""
    return IngestionPipeline(
        transformations=[SegmentNodeParser(), ChunkNodeParser(), StructuralContextualizer(), WordLlamaEmbedding()],
        **options,
    )


class TestPipeline:
    def test_a_cache_answers_the_second_run(self) -> None:
        ours = pipeline(cache=IngestionCache())
        first = ours.run(documents=documents())
        assert [node.node_id for node in ours.run(documents=documents())] == [node.node_id for node in first]
        assert len(ours.cache.cache._collections_mappings["llama_cache"]) == 4

    def test_another_vector_store_keeps_offsets_and_contexts(self) -> None:
        store, model = SimpleVectorStore(), WordLlamaEmbedding()
        nodes = pipeline().run(documents=documents())
        index = VectorStoreIndex(nodes, embed_model=model)
        assert isinstance(index.vector_store, type(store))
        best = index.as_retriever(similarity_top_k=1).retrieve("revenue of Orlen Valve Works")[0].node
        assert best.metadata["context"]
        assert MARKDOWN[best.start_char_idx : best.end_char_idx] == best.text
