"""Batches that expire, fail or are cancelled: their replies are kept, and the rest is left to the user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.money.price import money
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.budgets import SMALL, write_documents
from tests.integration.ingestion.support import interrupt_batch, nodes_of, passages
from tests.support.batches import BatchPlan
from tests.support.charges import cost_at
from tests.support.cli import run
from tests.support.records import Request
from tests.support.replies import Reply, default_reply
from tests.support.server import LoopbackProvider

CONFIG: dict[str, Any] = {"llm": "openai:gpt-4.1", "indexes": "lexical", **SMALL}

PLANS = {
    "expired partly": BatchPlan(ending="expired", finished=4),
    "expired wholly": BatchPlan(ending="expired", finished=0),
    "expired, no error file": BatchPlan(ending="expired", finished=4, error_output="missing"),
    "cancelled partly": BatchPlan(ending="cancelled", finished=4),
    "cancelled wholly": BatchPlan(ending="cancelled", finished=0),
    "failed": BatchPlan(ending="failed"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "documents", parts=6)


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    return manager.create("p", ProjectConfig(**CONFIG))


def sources(project: Project) -> list[str]:
    return sorted(node.metadata["context_source"] for node in nodes_of(project))


def fail_some(request: Request) -> str | Reply:
    """Answer nothing for passages with an odd number."""
    is_odd = any(f"Passage {number} of" in request.chunk for number in (1, 3, 5))
    return Reply("") if is_odd else default_reply(request, 100)


# ---- the question ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_the_replies_are_kept_and_the_rest_is_reported_with_the_cost_of_both_ways(
    provider: LoopbackProvider, project: Project, folder: Path, plan: BatchPlan
) -> None:
    provider.batch_plan = plan
    limit = project.estimate([folder], batch=True).max_cost
    report = project.ingest([folder], batch=True, max_cost=limit)
    assert provider.chat_calls == [], "nothing was sent live"
    assert len({record.batch_id for record in provider.batch_history}) <= 1, "nor in another batch"
    answered = len(provider.batch_history)
    assert sources(project) == ["llm"] * answered + ["structural"] * (report.chunks - answered)
    assert len(report.failures) == report.chunks - answered > 0
    assert {failure.is_held_back for failure in report.failures} == {False}
    assert report.paid is not None
    assert report.paid.dollars == pytest.approx(cost_at(provider.charged()))
    incomplete = report.incomplete_batch
    assert incomplete is not None
    assert incomplete.requests == len(report.failures)
    assert report.to_dict()["incomplete_batch"] == vars(incomplete)
    live, batch = (project.estimate(retry_failed=True, batch=in_batch) for in_batch in (False, True))
    assert incomplete.live_dollars == pytest.approx(live.context_dollars)
    assert incomplete.batch_dollars == pytest.approx(batch.context_dollars)
    shown = str(report)
    assert f"live calls would cost about {money(live.context_dollars)}, and a new batch about" in shown
    assert "request their contexts again: project.retry_failed() or project.retry_failed(batch=True)" in shown


@pytest.mark.parametrize(
    ("plan", "batch"),
    [
        *(pytest.param(plan, False, id=f"{name}, live") for name, plan in PLANS.items()),
        *(pytest.param(PLANS[name], True, id=f"{name}, batch") for name in ("expired partly", "failed")),
    ],
)
def test_a_retry_sends_the_rest_the_way_that_the_user_chooses(
    provider: LoopbackProvider, project: Project, folder: Path, plan: BatchPlan, batch: bool
) -> None:
    provider.batch_plan = plan
    incomplete = project.ingest([folder], batch=True).incomplete_batch
    assert incomplete is not None
    before = cost_at(provider.charged())
    provider.batch_plan = BatchPlan()
    report = project.retry_failed(batch=batch)
    assert (report.failures, report.incomplete_batch) == ((), None)
    assert set(sources(project)) == {"llm"}
    calls = len(provider.chat_calls), len(provider.batch_history)
    assert sum(calls) == report.chunks, "nothing was paid for twice"
    assert calls[0] == (0 if batch else incomplete.requests)
    expected = incomplete.batch_dollars if batch else incomplete.live_dollars
    assert cost_at(provider.charged()) - before == pytest.approx(expected, rel=0.15)
    assert project.cost().dollars == pytest.approx(cost_at(provider.charged()))


def test_a_retry_whose_batch_expires_too_is_a_question_again(provider: LoopbackProvider, project: Project) -> None:
    provider.batch_plan = BatchPlan(ending="expired")
    left = []
    for retry in (lambda: project.ingest(passages(8), batch=True), *[lambda: project.retry_failed(batch=True)] * 3):
        report: IngestReport = retry()
        left.append(0 if report.incomplete_batch is None else report.incomplete_batch.requests)
    assert left == [4, 2, 1, 1], "half of each batch is answered"
    assert provider.chat_calls == []
    assert project.retry_failed().failures == ()
    assert len(provider.chat_calls) == 1


@pytest.mark.parametrize("error_output", ["whole", "missing", "gone"])
def test_requests_that_fail_within_a_batch_are_a_question(
    provider: LoopbackProvider, project: Project, error_output: Any
) -> None:
    class Some:
        def __contains__(self, custom_id: object) -> bool:
            return str(custom_id)[0] in "01234567"

    provider.batch_plan = BatchPlan(failing=Some(), error_output=error_output)
    report = project.ingest(passages(20), batch=True)
    assert provider.chat_calls == []
    assert report.incomplete_batch is not None
    assert 0 < report.incomplete_batch.requests == len(report.failures) < 20
    assert {failure.error for failure in report.failures} == {
        "The server had an error while processing your request."
        if error_output == "whole"
        else "the provider failed to answer its request in a batch"
    }


def test_an_unusable_reply_of_a_batch_is_not_replaced_by_a_live_call(
    provider: LoopbackProvider, project: Project
) -> None:
    provider.reply = fail_some
    report = project.ingest(passages(6), batch=True)
    assert provider.chat_calls == []
    assert len(provider.batch_history) == 6
    assert [failure.node_id for failure in report.failures] == ["n1", "n3", "n5"]
    assert report.incomplete_batch is not None
    assert report.incomplete_batch.requests == 3
    provider.reply = None
    assert project.retry_failed(batch=True).failures == ()
    assert (provider.chat_calls, len(provider.batch_history)) == ([], 9)


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
@pytest.mark.parametrize("ending", ["expired", "cancelled", "failed"])
def test_a_batch_that_a_later_run_collects_is_not_replaced_by_live_calls(
    provider: LoopbackProvider, project: Project, ending: Any, batch: bool
) -> None:
    provider.batch_plan = BatchPlan(polls=None, ending=ending)
    with pytest.raises(KeyboardInterrupt):
        project.ingest(passages(6), batch=True, progress=interrupt_batch)
    provider.advance_batch("batch_1", ending)
    answered = len(provider.batch_history)
    provider.batch_plan = BatchPlan()
    report = project.ingest([*passages(6), *passages(2, name="new")], batch=batch)
    if batch:
        assert (report.failures, report.incomplete_batch, provider.chat_calls) == ((), None, [])
        return
    assert len(provider.chat_calls) == 2, "the new ones, which were in no batch"
    assert report.incomplete_batch is not None
    assert report.incomplete_batch.requests == len(report.failures) == 6 - answered
    assert project.retry_failed().failures == ()
    assert len(provider.chat_calls) == 2 + 6 - answered


def test_a_limit_holds_for_a_retry_in_a_batch(provider: LoopbackProvider, project: Project) -> None:
    provider.batch_plan = BatchPlan(ending="cancelled")
    project.ingest(passages(8), batch=True)
    spent = cost_at(provider.charged())
    with pytest.raises(BudgetExceededError):
        project.retry_failed(batch=True, max_cost=0.0001)
    assert cost_at(provider.charged()) == spent


def test_a_reply_that_cannot_be_read_is_requested_in_a_new_batch_within_the_limit_that_the_user_names(
    provider: LoopbackProvider, project: Project
) -> None:
    provider.batch_plan = BatchPlan(output="missing")
    assert len(project.ingest(passages(4), batch=True).failures) == 4
    assert len(project.retry_failed(batch=True).failures) == 4
    assert len(provider.batch_history) == 4
    report = project.retry_failed(batch=True, max_cost=1.0)
    assert {failure.is_held_back for failure in report.failures} == {True}, "it could not be read again"
    provider.batch_plan = BatchPlan()
    done = project.retry_failed(batch=True, max_cost=1.0)
    assert (done.failures, provider.chat_calls, len(provider.batch_history)) == ((), [], 12)
    assert project.cost().dollars is not None
    assert project.cost().dollars >= cost_at(provider.charged())


def test_without_a_batch_api_a_retry_cannot_be_sent_in_a_batch(provider: LoopbackProvider, project: Project) -> None:
    provider.batch_plan = BatchPlan(ending="expired", finished=0)
    project.ingest(passages(2), batch=True)
    other = ProjectManager(project.directory.parent).load("p")
    other.update_config(context="structural")
    with pytest.raises(ConfigurationError, match="Settings have changed"):
        other.retry_failed(batch=True)


# ---- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ingest", "sync"])
def test_a_command_ends_with_code_1_and_names_both_commands_and_their_cost(
    provider: LoopbackProvider, manager: ProjectManager, project: Project, folder: Path, command: str
) -> None:
    provider.batch_plan = BatchPlan(ending="cancelled", finished=2)
    options = ["--root", str(manager.root), "--quiet"]
    result = run(command, "p", folder, "--batch", *options)
    assert result.code == 1
    live, batch = (
        money(project.estimate(retry_failed=True, batch=in_batch).context_dollars) for in_batch in (False, True)
    )
    sentence = r"note \d+ contexts could not be taken from a batch, and nothing was sent live: live calls would cost"
    assert re.search(rf"{sentence} about {re.escape(live)}, and a new batch about {re.escape(batch)}", result.err)
    assert "no LLM context for" in result.err
    retry = f"  llama-index-contextual retry p --root {manager.root}"
    assert result.err.splitlines()[-2:] == [retry, f"  llama-index-contextual retry p --batch --root {manager.root}"]
    again = run("retry", "p", "--batch", *options, "--json")
    assert again.code == 1
    assert again.json["incomplete_batch"]["requests"] == len(again.json["failures"]) > 0
    assert provider.chat_calls == []
    done = run("retry", "p", *options)
    assert (done.code, done.err) == (0, "")
    assert provider.chat_calls


def test_a_file_that_is_read_for_the_batch_and_for_the_version_is_reported_once(
    provider: LoopbackProvider, project: Project, folder: Path
) -> None:
    (folder / "blank.txt").write_bytes(b"  ")
    report = project.ingest([folder], batch=True)
    assert len(provider.batch_history) == report.chunks > 0
    assert [Path(file.path).name for file in report.skipped] == ["blank.txt"]
