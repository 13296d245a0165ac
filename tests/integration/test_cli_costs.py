"""Costs on the command line: estimates, limits and receipts."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from llama_index.llms.openai.utils import ALL_AVAILABLE_MODELS
from typer.testing import CliRunner

from llama_index_contextual.cli import app as cli
from llama_index_contextual.config import DEFAULT_LLM, ProjectConfig
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retirement import NOTICE, Retirement, retirement_of
from tests.benchmarks.budgets import run_interrupted
from tests.integration.test_cli import at_a_terminal
from tests.support.records import CHAT_PATH
from tests.support.server import LoopbackProvider


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider() as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    root = tmp_path / "knowledge"
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(root))
    return ProjectManager(root).create("a", ProjectConfig())


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_an_estimate_is_a_table_with_the_chosen_row_marked(project: Project, text_folder: Path) -> None:
    code, out, err = run("estimate", "a", text_folder)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("2 documents, 2 chunks, ")
    assert lines[1].split() == ["chunks/call", "sender", "calls", "input", "cached", "output", "time", "price"]
    assert [line.split()[:3] for line in lines if line.startswith("→")] == [["→", "1", "live"]]
    assert "total with these settings: $" in out
    batched = run("estimate", "a", text_folder, "--batch")[1].splitlines()
    assert [line.split()[2] for line in batched if line.startswith("→")] == ["batch"]


def test_the_cost_is_shown_next_to_the_estimate(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    estimated = json.loads(run("estimate", "a", text_folder, "--json")[1])
    code, out, _ = run("ingest", "a", text_folder, "--quiet")
    assert code == 0
    calls = len(provider.chat_calls)
    assert f"{calls} calls (estimated {estimated['chosen']['calls']})" in out
    assert "by genai-prices" in out


def test_reaching_max_cost_is_a_one_line_error_with_advice(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    code, out, err = run("ingest", "a", text_folder, "--quiet", "--max-cost", "0.0001")
    assert (code, out) == (1, "")
    assert err.startswith("Error: The cost limit of $0.0001 is reached: ")
    assert err.count("\n") == 1
    assert provider.calls() == []
    (limit,) = re.findall(r"run the command again with --max-cost ([\d.]+), or without it", err)
    assert run("ingest", "a", text_folder, "--quiet", "--max-cost", limit)[0] == 0


def test_batch_without_an_llm_is_a_one_line_error(tmp_path: Path, project: Project, text_folder: Path) -> None:
    ProjectManager(tmp_path / "knowledge").create("b", ProjectConfig.local())
    code, _, err = run("ingest", "b", text_folder, "--quiet", "--batch")
    assert code == 1
    advice = "run `llama-index-contextual configure b context=llm`, or omit --batch."
    assert err == f"Error: Batches require contexts written by an LLM: {advice}\n"


def test_a_count_of_one_uses_the_singular(
    provider: LoopbackProvider, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch)
    file, questions = tmp_path / "note.txt", tmp_path / "questions.jsonl"
    file.write_text("The pump runs dry.")
    questions.write_text(json.dumps({"question": "What runs dry?", "evidence": ["The pump runs dry."]}))
    project.update_config(llm_concurrency=1)
    messages = [run("estimate", "a", file), run("ingest", "a", file)]
    file.write_text("The pump runs.")
    messages += [run("ingest", "a", file), run("rollback", "a"), run("verify", "a")]
    for command in (
        "info",
        "versions",
        "documents",
        "search a pump",
        f"evaluate a {questions} --k 1",
        "forget a --yes",
    ):
        name, *arguments = command.split()
        messages.append(run(name, *(arguments or ["a"])))
    messages += [run("ledger", "export", "a", tmp_path / "contexts.jsonl"), run("delete", "a")]
    assert [code for code, _, _ in messages] == [0] * (len(messages) - 1) + [1]  # nobody says yes
    output = " ".join(f"{out} {err}" for _, out, err in messages)
    for noun in ("document", "chunk", "context", "embedding", "version", "call", "question", "result", "paid context"):
        assert f"1 {noun}" in output, noun
    assert re.findall(r"(?<![\d.,/v])1 (?:[a-z]+ )?[a-z]+s\b.{20}", output) == []


# ---- what is booked, and what it has cost in all ---------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_calls_in_flight_at_an_interruption_are_booked(tmp_path: Path) -> None:
    row = run_interrupted(tmp_path, signal.SIGINT, calls=2, parts=6)
    assert row.counted > 0
    assert row.holds, row
    assert row.booked > 0


def test_the_cost_of_a_project_is_shown_in_total_and_by_run(
    provider: LoopbackProvider, project: Project, text_folder: Path, tmp_path: Path
) -> None:
    assert run("cost", "a") == (0, "total: $0.00 in 0 runs; the embeddings of questions are not included\n", "")
    assert "cost so far" not in run("info", "a")[1]
    provider.fault("drop_in_body", 1, CHAT_PATH)
    run("ingest", "a", text_folder, "--quiet")
    code, out, err = run("cost", "a")
    assert (code, err) == (0, "")
    first, last = out.splitlines()
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d  ingest  \$0\.\d+  openai:gpt-6-luna \+ openai:text-embedding-3-small; ", first
    )
    assert "booked for 1 timed-out or interrupted call" in first
    assert re.match(r"total: \$0\.\d+ in 1 run, of which \$0\.\d+ for calls of unknown price; ", last)
    data = json.loads(run("cost", "a", "--json")[1])
    assert data["dollars"] == data["runs"][0]["dollars"] == project.cost().dollars
    assert json.loads(run("info", "a", "--json")[1])["cost"] == data
    assert "cost so far" in run("info", "a")[1]


def test_the_limit_suggested_by_estimate_is_sufficient_for_ingest(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    out = run("estimate", "a", text_folder)[1]
    (limit,) = re.findall(r"a limit of \$([\d.]+) is sufficient", out)
    assert json.loads(run("estimate", "a", text_folder, "--json")[1])["max_cost"] == float(limit)
    assert run("ingest", "a", text_folder, "--quiet", "--max-cost", limit)[0] == 0


# ---- models that end -------------------------------------------------------------------------------------------------


RETIRED = "openai:gpt-4.1"


def set_clock(monkeypatch: pytest.MonkeyPatch, year: int, month: int, day: int) -> None:
    monkeypatch.setattr("llama_index_contextual.retirement.today", lambda: date(year, month, day))


def test_create_announces_the_retirement_of_a_model_chosen_within_60_days_of_it(
    provider: LoopbackProvider, project: Project, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, 2026, 11, 14)
    assert run("create", "early", "--set", f"llm={RETIRED}")[2] == ""
    set_clock(monkeypatch, 2026, 11, 15)
    code, _, err = run("create", "b", "--set", f"llm={RETIRED}")
    assert code == 0
    assert err.startswith(
        "note The provider retires 'openai:gpt-4.1' on 2027-01-14. Its successor is 'openai:gpt-6-luna':"
        " `llama-index-contextual configure b llm=openai:gpt-6-luna`"
    )
    assert "retires" not in "".join(run("estimate", "b", text_folder)[1:]), "once is enough"
    assert "retires" not in run("ingest", "b", text_folder, "--quiet")[2]
    for local in (["--local"], ["--local", "--set", f"llm={RETIRED}"], []):
        assert run("create", f"without {len(local)}", *local)[2] == "", "the model writes no contexts of the project"


def test_the_first_ingest_within_60_days_of_the_retirement_of_the_model_announces_it(
    provider: LoopbackProvider, project: Project, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ingest(number: int, *, ends: date) -> str:
        retirements = (Retirement(re.compile("openai:gpt-.*"), ends),)
        monkeypatch.setattr("llama_index_contextual.retirement.RETIREMENTS", retirements)
        monkeypatch.setattr("llama_index_contextual.retirement.today", lambda: ends - NOTICE)
        (text_folder / f"{number}.txt").write_text(f"Pump {number} runs.", encoding="utf-8")
        return run("ingest", "a", text_folder, "--quiet")[2]

    project.update_config(llm=RETIRED)
    run("ingest", "a", text_folder, "--quiet")
    published = date.fromisoformat((project.versions()[-1].created or "")[:10])
    later = published + NOTICE + timedelta(days=10)
    assert ingest(1, ends=later).startswith(f"note The provider retires '{RETIRED}' on {later.isoformat()}.")
    assert ingest(2, ends=published + NOTICE - timedelta(days=10)) == "", "the last version announced it"
    project.update_config(llm="openai:gpt-5.1")
    assert "retires 'openai:gpt-5.1'" in ingest(3, ends=published + NOTICE - timedelta(days=10)), "another model"


@pytest.mark.parametrize("day", [(2026, 6, 1), (2027, 1, 14), (2035, 1, 1)])
def test_the_default_llm_does_not_depend_on_the_date(
    day: tuple[int, int, int], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, *day)
    assert ProjectConfig().llm == LLMContextualizer().model == DEFAULT_LLM
    manager = ProjectManager(project.directory.parent)
    manager.create("kept", ProjectConfig(llm=RETIRED))
    assert manager.load("kept").config.llm == RETIRED
    file = project.directory / "project.json"
    content = json.loads(file.read_text())
    del content["config"]["llm"], content["xxh3"]
    file.write_text(json.dumps(content))
    assert manager.load("a").config.llm == DEFAULT_LLM, "written by hand"


def test_the_error_for_a_retired_model_names_its_successor_and_the_command(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    provider.models = ["gpt-6-luna", "text-embedding-3-small"]
    project.update_config(llm=RETIRED)
    code, _, err = run("ingest", "a", text_folder, "--quiet")
    assert code == 1
    assert (
        "'openai:gpt-4.1', whose retirement was announced for 2027-01-14. Its successor is 'openai:gpt-6-luna'" in err
    )
    assert "`llama-index-contextual configure NAME llm=openai:gpt-6-luna`" in err
    assert "the next `ingest` or `rebuild` requests the contexts of all documents from the new model" in err


def test_a_change_of_the_llm_requests_all_contexts_again_and_keeps_the_old_ones(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    first = project.ingest([text_folder])
    project.update_config(llm="openai:gpt-4.1-mini")
    assert project.estimate([text_folder]).known_contexts == 0
    assert project.ingest([text_folder]).contexts_paid == first.contexts_paid
    assert project.info().ledger.contexts == 2 * first.contexts_paid
    project.update_config(llm=DEFAULT_LLM)
    assert project.ingest([text_folder]).contexts_paid == 0


@pytest.mark.parametrize(
    ("model", "ends"),
    [
        ("openai:gpt-4.1-2025-04-14", date(2027, 1, 14)),
        ("openai:gpt-4o-mini", date(2027, 1, 14)),
        ("openai:ft:gpt-4.1-mini-2025-04-14:me::id", date(2027, 1, 14)),
        ("openai:gpt-5-nano", date(2026, 12, 11)),
        ("openai:gpt-5.1", date(2027, 4, 1)),
        ("openai:gpt-5.2", None),
        ("openai:gpt-6-luna", None),
        ("openai-like:gpt-4.1", None),
        ("openai:gpt-4.1x", None),
    ],
)
def test_snapshots_and_fine_tuned_models_retire_with_their_base_model(model: str, ends: date | None) -> None:
    result = retirement_of(model)
    assert (None if result is None else result.ends) == ends


def test_the_default_llm_is_priced_known_to_the_client_and_not_retired() -> None:
    assert retirement_of(DEFAULT_LLM) is None
    assert PriceTable().price(DEFAULT_LLM) is not None
    assert DEFAULT_LLM.removeprefix("openai:") in ALL_AVAILABLE_MODELS


def test_contexts_by_the_default_llm_are_requested_without_reasoning(
    provider: LoopbackProvider, project: Project, text_folder: Path
) -> None:
    assert project.ingest([text_folder]).contexts_paid == 2
    for call in provider.calls(CHAT_PATH):
        assert call.body["reasoning_effort"] == "none"
        assert call.body["model"] == "gpt-6-luna"
