"""Costs on the command line: estimates, limits, receipts, and models that end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.records import CHAT_PATH, ApiError
from tests.support.server import LoopbackProvider


@pytest.fixture
def project(root: Path) -> Project:
    """An empty project "a" whose contexts are written by an LLM."""
    return ProjectManager(root).create("a", ProjectConfig())


def test_the_limit_of_an_estimate_is_sufficient_for_the_ingest(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    result = run("estimate", "a", text_folder)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("2 documents, 2 chunks, ")
    assert lines[1].startswith("contexts (openai:gpt-6-luna, live): 2 calls, ")
    assert "total with these settings: $" in result.out
    assert "contexts (openai:gpt-6-luna, batch): 2 calls, " in run("estimate", "a", text_folder, "--batch").out
    estimated = run("estimate", "a", text_folder, "--json").json
    (limit,) = re.findall(r"a limit of \$([\d.]+) is sufficient", result.out)
    assert estimated["max_cost"] == float(limit)
    done = run("ingest", "a", text_folder, "--quiet", "--max-cost", limit)
    assert done.code == 0
    assert f"{len(provider.chat_calls)} calls (estimated {estimated['contexts']['calls']})" in done.out
    assert "by genai-prices" in done.out
    written = project.retrieve("pump")[0].written_context or ""
    assert f"Context: {written[:60]}" in run("search", "a", "pump").out


def test_reaching_max_cost_is_a_one_line_error_with_advice(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    result = run("ingest", "a", text_folder, "--quiet", "--max-cost", "0.0001")
    assert (result.code, result.out, provider.calls()) == (1, "", [])
    assert result.err.startswith("Error: The cost limit of $0.0001 is reached: ")
    assert result.err.count("\n") == 1
    (limit,) = re.findall(r"run the command again with --max-cost ([\d.]+), or without it", result.err)
    assert run("ingest", "a", text_folder, "--quiet", "--max-cost", limit).code == 0


def test_the_cost_of_a_project_is_shown_in_total_and_by_run(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    empty = run("cost", "a")
    assert empty.out == "Nothing was sent to a paid model so far: $0.00.\n"
    assert "cost so far" not in run("info", "a").out
    provider.fault("drop_in_body", 1, CHAT_PATH)
    run("ingest", "a", text_folder, "--quiet")
    first, last = run("cost", "a").out.splitlines()
    models = re.escape("openai:gpt-6-luna + openai:text-embedding-3-small; ")
    assert re.match(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d  ingest  \$0\.\d+  {models}", first)
    assert "booked for calls without a reply" in first
    assert re.match(r"total: \$0\.\d+ in 1 run, of which \$0\.\d+ for calls of unknown price, without", last)
    data = run("cost", "a", "--json").json
    assert data["dollars"] == data["runs"][0]["dollars"] == project.cost().dollars
    assert run("info", "a", "--json").json["cost"] == data
    assert "cost so far" in run("info", "a").out


def test_failed_contexts_are_reported_with_the_command_to_retry_and_counted_by_info(
    provider: LoopbackProvider, tmp_path: Path, text_folder: Path
) -> None:
    root = ["--root", str(tmp_path / "my projects")]
    ProjectManager(root[1]).create("a", ProjectConfig.local(context="llm", chunk_size=40, chunk_overlap=0))
    provider.enqueue(*(ApiError(400, f"The prompt of request req_{number} was blocked.") for number in range(4)))
    first, second, third = run("ingest", "a", text_folder, "--quiet", *root).err.splitlines()
    assert first.startswith("no LLM context for 4 chunks, such as reports/")
    assert re.search(r"refused the request \(400\): The prompt of request req_\d was blocked\.", first)
    assert second == "These chunks have the structural context. To request their contexts again:"
    assert third == f"  llama-index-contextual retry a --root '{root[1]}'"
    fallback = "fallback      4 chunks without an LLM context (see `retry`)\n"
    assert fallback in run("info", "a", *root).out
    assert run("info", "a", *root, "--json").json["fallback_chunks"] == 4
    assert run("retry", "a", *root, "--quiet").err == ""
    assert "fallback" not in run("info", "a", *root).out
