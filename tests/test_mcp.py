"""The server of the Model Context Protocol, used by the protocol's own client."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason='the server needs the MCP SDK: pip install "llama-index-contextual[mcp]"')

from llama_index.llms.openai import OpenAI
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import CallToolResult, TextContent

from llama_index_contextual import mcp
from llama_index_contextual.answering.prompts import NOT_FOUND
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.mcp import MAX_CHARACTERS, make_server
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import TEXT
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"


@pytest.fixture
def filled(project: Project, tiny_folder: Path) -> Project:
    """A project of three documents."""
    project.ingest([tiny_folder])
    return project


async def called(server: Any, tool: str, **arguments: Any) -> CallToolResult:
    """What a client gets that calls one tool."""
    async with Client(server) as client:
        return await client.call_tool(tool, arguments)


def text_of(result: CallToolResult) -> str:
    """The text that the model reads."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_every_tool_is_listed_described_and_marked_as_reading_only(filled: Project) -> None:
    async with Client(make_server([filled])) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["ask", "list_documents", "read_passage", "search"]
    for tool in tools.values():
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
    assert tools["search"].input_schema["required"] == ["query"]
    assert tools["search"].input_schema["properties"].keys() == {"query", "project", "top_k", "mode"}


async def test_a_search_gives_passages_with_their_places(filled: Project) -> None:
    message = text_of(await called(make_server([filled]), "search", query=QUESTION, top_k=2))
    first = message.split("\n\n")[0]
    assert first.startswith("[Source 1] manual.txt")
    assert "\nPlace: doc_id 'reports/manual.txt', characters 0 to " in first
    assert "TS-999 means that the pump runs dry" in message
    assert message.count("[Source ") == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "search needs the argument `query`."),
        ({"query": None}, "The argument `query` of search cannot be None: it must be a valid string."),
        ({"query": 5}, "The argument `query` of search cannot be 5: it must be a valid string."),
        ({"query": " "}, "The query is empty: ask a question."),
        ({"query": "pump", "top_k": 1.5}, "The argument `top_k` of search cannot be 1.5: it must be a valid integer"),
        ({"query": "pump", "top_k": 0}, "top_k is 0: request at least one result."),
        ({"query": "pump", "mode": 7}, "of search cannot be 7: it must be 'semantic', 'lexical' or 'hybrid'."),
    ],
    ids=repr,
)
async def test_a_wrong_argument_is_an_error_with_a_message(
    filled: Project, arguments: dict[str, Any], sentence: str
) -> None:
    result = await called(make_server([filled]), "search", **arguments)
    assert result.is_error
    assert sentence in text_of(result)
    assert "pydantic" not in text_of(result)


async def test_a_question_of_a_megabyte_is_shortened_with_a_warning(filled: Project) -> None:
    message = text_of(await called(make_server([filled]), "search", query="pump " * 200_000))
    assert message.startswith("Note: The query has 1,000,000 characters: only its beginning, 31,999 characters, was")
    assert "TS-999 means that the pump runs dry" in message
    assert len(message) < 20_000


async def test_a_passage_is_read_exactly(filled: Project) -> None:
    result = await called(make_server([filled]), "read_passage", doc_id="reports/manual.txt", start=10, end=40)
    assert result.structured_content == {"text": TEXT[10:40], "next_start": 40}


async def test_a_long_document_is_read_in_parts(manager: ProjectManager, tmp_path: Path) -> None:
    text = "\n\n".join(f"Paragraph {number} of a long report." for number in range(1_500))
    (tmp_path / "long.txt").write_text(text)
    project = manager.create("long", ProjectConfig.local(faiss=False))
    project.ingest([tmp_path / "long.txt"])
    server, pieces, start = make_server([project]), [], 0
    while start is not None:
        content = (await called(server, "read_passage", doc_id="long.txt", start=start)).structured_content
        assert content is not None
        assert len(content["text"]) <= MAX_CHARACTERS
        pieces.append(content["text"])
        start = content["next_start"]
    assert "".join(pieces) == text
    assert len(pieces) > 1


@pytest.mark.parametrize(("start", "end"), [(0, -1), (20, 10), (-5, 0)])
async def test_a_span_that_ends_before_it_begins_is_empty(filled: Project, start: int, end: int) -> None:
    where = {"doc_id": "reports/manual.txt", "start": start, "end": end}
    result = await called(make_server([filled]), "read_passage", **where)
    assert result.structured_content == {"text": "", "next_start": max(0, start)}


async def test_the_documents_of_all_projects_are_listed(filled: Project, manager: ProjectManager) -> None:
    empty = manager.create("empty", ProjectConfig.local())
    result = (await called(make_server([filled, empty]), "list_documents")).structured_content
    assert result is not None
    assert (result["total"], result["next_start"]) == (3, None)
    listed = {(row["project"], row["doc_id"]): row["title"] for row in result["documents"]}
    assert listed == {
        ("reports", "reports/quarter.md"): "Orlen Valve Works, second quarter",
        ("reports", "reports/manual.txt"): "manual.txt",
        ("reports", "reports/tariff.pdf"): "Tariff note",
    }


async def test_many_documents_are_listed_in_parts(filled: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "MAX_DOCUMENTS", 2)
    server, names, start = make_server([filled]), [], 0
    while start is not None:
        content = (await called(server, "list_documents", start=start)).structured_content
        assert content is not None
        assert len(content["documents"]) <= 2
        assert content["total"] == 3
        names += [row["doc_id"] for row in content["documents"]]
        start = content["next_start"]
    assert names == [record.doc_id for record in filled.documents()]


@pytest.mark.parametrize(
    ("tool", "arguments", "sentence"),
    [
        ("search", {"query": " ", "project": "reports"}, "The query is empty: ask a question."),
        (
            "search",
            {"query": "x", "project": "nowhere"},
            "no project 'nowhere' here: choose one of 'reports', 'empty'",
        ),
        ("search", {"query": "x"}, "There are several projects: choose one of 'reports', 'empty'."),
        (
            "search",
            {"query": "x", "project": "empty"},
            "Project 'empty' has no version yet; run",
        ),
        ("read_passage", {"doc_id": "../x", "project": "reports"}, "Project 'reports' has no document '../x'."),
    ],
)
async def test_an_error_is_a_message_for_the_model(
    filled: Project, manager: ProjectManager, tool: str, arguments: dict[str, Any], sentence: str
) -> None:
    result = await called(make_server([filled, manager.create("empty", ProjectConfig.local())]), tool, **arguments)
    assert result.is_error
    assert sentence in text_of(result)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            "The pump runs dry [Source 1].",
            r"The pump runs dry \[Source 1\]\.\n\n"
            r"\[Source 1\] manual\.txt \(doc_id 'reports/manual\.txt', characters 0 to \d+\)",
        ),
        (NOT_FOUND, re.escape(NOT_FOUND)),  # sources would make it look as if they said so
    ],
    ids=["found", "not found"],
)
async def test_a_question_is_answered_by_the_projects_llm_with_sources(
    filled: Project, manager: ProjectManager, answer: str, told: str
) -> None:
    with LoopbackProvider() as provider:
        provider.enqueue(answer)
        llm = OpenAI(model="gpt-4.1", api_base=provider.api_base, api_key="any", max_retries=0, reuse_client=False)
        server = make_server([manager.load("reports", llm=llm)])
        assert re.fullmatch(told, text_of(await called(server, "ask", question=QUESTION)))


async def test_without_an_llm_the_passages_are_returned_with_a_note(filled: Project) -> None:
    message = text_of(await called(make_server([filled]), "ask", question=QUESTION))
    assert message.startswith("No LLM is available to write an answer: 'openai:gpt-4.1' needs OPENAI_API_KEY")
    assert "TS-999 means that the pump runs dry" in message


def test_a_server_needs_a_project() -> None:
    with pytest.raises(InputError, match="pass at least one"):
        make_server([])


async def test_the_command_serves_over_standard_input_and_output(filled: Project) -> None:
    command = ["-m", "llama_index_contextual", "mcp", "reports", "--root", str(filled.directory.parent)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(server) as client:
        result = await client.call_tool("search", {"query": QUESTION})
    assert "TS-999 means that the pump runs dry" in text_of(result)
