"""JSON and values that are nested too deeply are refused in a sentence, by every door that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual._utils.calls import describe
from llama_index_contextual.config import ProjectConfig, environment_settings
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.evaluation.questions import parse_questions
from llama_index_contextual.index.ledger_lines import import_ledger
from llama_index_contextual.ingestion.report import SKIPPED_FILE, read_skipped
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.rerank import listed_ids
from tests.support.cli import run

DEPTHS = (90, 400, 700, 985, 3_000, 100_000)
VALUES = (400, 985, 3_000)


def lists(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


def objects(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def unclosed(depth: int) -> str:
    return "[" * depth


TEXTS = (lists, objects, unclosed)


def nested(depth: int) -> list[Any]:
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with one document; tests restore the files that they change."""
    project = ProjectManager(tmp_path_factory.mktemp("root")).create("p", ProjectConfig.local())
    project.ingest([Document(id_="a", text="The pump runs dry. " * 5, metadata={"kind": "x"})])
    return project


def outcome(call: Callable[[], object]) -> str:
    """Return the message of the expected error of a call, or "" if it returns."""
    try:
        call()
    except ContextualError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_from_outside(text: Callable[[int], str], depth: int, project: Project, tmp_path: Path) -> None:
    content = text(depth)
    file = tmp_path / "nested.json"
    file.write_text(content)
    for call in (
        lambda: import_ledger(project.directory, file),
        lambda: parse_questions(content.encode(), name="nested"),
        lambda: DocumentMap.from_metadata({"contextual_pages": content, "contextual_headings": content}),
        lambda: ProjectConfig(**environment_settings({"LLAMA_INDEX_CONTEXTUAL_PRICES": content})),
        lambda: listed_ids(content),
    ):
        assert "recursion depth" not in outcome(call)


@pytest.mark.parametrize("depth", VALUES)
@pytest.mark.parametrize("text", TEXTS)
async def test_filters_of_mcp_agno_and_commands(text: Callable[[int], str], depth: int, project: Project) -> None:
    agno, mcp = pytest.importorskip("llama_index_contextual.agno"), pytest.importorskip("llama_index_contextual.mcp")
    root = project.directory.parent
    for filters in (text(depth), f'{{"kind": {text(depth)}}}'):
        try:
            reply = str(await mcp.make_server([project]).call_tool("search", {"query": "pump", "filters": filters}))
        except Exception as error:  # noqa: BLE001 - the server's own error, whose message the client gets
            reply = str(error)
        replies = [reply, str(agno.ContextualKnowledge(project).retrieve("pump", filters=filters))]
        for condition in (filters, f"kind={filters}"):
            result = run("search", "p", "pump", "--filter", condition, "--root", root)
            replies.append(f"{result.out}{result.err}")
        assert not [each[:300] for each in replies if "recursion depth" in each or "Traceback" in each]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", ["project.json", "documents.json", "manifest.json", "collection.json", SKIPPED_FILE])
def test_a_file_of_a_project(text: Callable[[int], str], depth: int, name: str, project: Project) -> None:
    path = next(project.directory.rglob(name), project.directory / name)
    before = path.read_bytes() if path.exists() else None
    try:
        path.write_text(text(depth))
        manager = ProjectManager(project.directory.parent)
        assert "recursion depth" not in outcome(lambda: manager.load("p").retrieve("pump"))
        assert all("recursion depth" not in problem.message for problem in manager.verify("p").problems)
        assert read_skipped(project.directory) == []
    finally:
        path.unlink() if before is None else path.write_bytes(before)


@pytest.mark.parametrize("depth", VALUES)
def test_a_value_in_python(depth: int, project: Project) -> None:
    value = nested(depth)
    for call in (
        lambda: project.retrieve("pump", filters={"kind": value}),
        lambda: project.only({"kind": value}),
        lambda: ProjectConfig.local(prices=value),  # type: ignore[arg-type]
        lambda: project.update_config(acronyms=value),
        lambda: project.ingest([Document(id_="b", text="A note.", metadata={"kind": value})]),
    ):
        message = outcome(call)
        assert message
        assert "recursion depth" not in message


def test_metadata_may_be_nested_a_little(project: Project) -> None:
    value = json.loads(lists(20))
    project.ingest([Document(id_="nested", text="A nested note.", metadata={"kind": value})])
    assert project.chunks("nested")[0].metadata["kind"] == value
    project.remove("nested")


def test_the_reply_of_a_model() -> None:
    try:
        json.loads(lists(100_000))
    except RecursionError as error:
        message = describe(error, setting="llm", model="m")
    assert message == "'m' failed: its reply is nested too deeply; run the same call again, or choose another model."
