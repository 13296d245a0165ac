"""Contexts that are not requested again without the user's word: refused ones, and those that a batch may charge."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from tests.benchmarks.budgets import cost_at
from tests.integration.ingestion.support import ids, passages
from tests.support.batches import BatchPlan
from tests.support.records import Request
from tests.support.replies import Reply, default_reply
from tests.support.server import LoopbackProvider

CONFIG: dict[str, Any] = {"llm": "openai:gpt-4.1", "faiss": False}


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    return manager.create("p", ProjectConfig(**CONFIG))


def refuse(request: Request) -> Reply:
    """Refuse passages with an odd number, as a content filter does."""
    if any(f"Passage {number} of" in request.chunk for number in (1, 3, 5)):
        return Reply("", finish_reason="content_filter")
    return default_reply(request, 100)


def limit_of(report: IngestReport) -> float:
    assert report.retry_max_cost is not None
    return report.retry_max_cost


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
def test_a_refusal_is_requested_once_and_not_again_by_a_retry_or_another_ingest(
    provider: LoopbackProvider, project: Project, batch: bool
) -> None:
    provider.reply = refuse
    report = project.ingest(passages(6), batch=batch)
    assert [failure.is_held_back for failure in report.failures] == [True] * 3
    assert len(provider.chat_calls) + len(provider.batch_history) == 6
    provider.clear_history()
    again = project.retry_failed()
    assert (again.version, again.rebuilt, len(again.failures)) == (report.version, (), 3)
    assert again.retry_max_cost == report.retry_max_cost
    assert len(project.versions()) == 1
    project.ingest([*passages(6), *passages(1, name="other")], batch=batch)
    assert project.rebuild().version is not None
    assert len(provider.chat_calls) + len(provider.batch_history) == 1, "the new one"


def test_a_refused_context_is_requested_again_with_the_limit_that_the_report_names(
    provider: LoopbackProvider, project: Project
) -> None:
    provider.reply = refuse
    report = project.ingest(passages(6))
    assert f"project.retry_failed(max_cost={limit_of(report)})" in str(report)
    provider.clear_history()
    assert len(project.retry_failed(max_cost=limit_of(report)).failures) == 3
    assert len(provider.chat_calls) == 3, "refused once more"
    provider.clear_history()
    provider.reply = None
    done = project.retry_failed(max_cost=limit_of(report))
    assert (done.failures, done.contexts_paid, done.retry_max_cost) == ((), 3, None)
    assert cost_at(provider.charged()) <= limit_of(report)
    assert project.ingest(passages(6)).contexts_paid == 0


def test_an_answer_that_declines_in_words_is_a_refusal(provider: LoopbackProvider, project: Project) -> None:
    provider.reply = lambda _request: "I'm sorry, but I can't help with that."
    report = project.ingest(passages(2))
    assert len(provider.chat_calls) == 2
    assert {failure.error for failure in report.failures} == {"'openai:gpt-4.1' refused to write a context."}


def test_refusals_survive_forgetting_and_are_no_contexts(provider: LoopbackProvider, project: Project) -> None:
    provider.reply = refuse
    project.ingest(passages(6))
    assert project.info().ledger.contexts == 3
    assert project.forget().contexts == 0
    provider.clear_history()
    project.retry_failed()
    assert provider.chat_calls == []
    with closing(Ledger(project.directory / LEDGER_FILE, read_only=True)) as ledger:
        assert len(ledger.entries()) == 3
    project.remove(ids(project))
    assert project.estimate(passages(6)).chosen is None, "a refused context is not counted"


def test_a_retry_publishes_what_it_has_got_although_other_contexts_failed_again(
    provider: LoopbackProvider, project: Project
) -> None:
    fault = provider.fault("content_filter_error", None, "Passage 0 of")
    provider.reply = refuse
    first = project.ingest(passages(2))
    assert len(first.failures) == 2
    assert "To request the others again: project.retry_failed()" in str(first)
    assert project.retry_failed().version == first.version
    fault.times = 0
    second = project.retry_failed()
    assert second.version != first.version
    assert [failure.node_id for failure in second.failures] == ["n1"]


# ---- batches that are charged and cannot be read ---------------------------------------------------------------------


@pytest.mark.parametrize("output", ["missing", "empty", "truncated"])
def test_a_charged_request_stays_booked_and_is_not_sent_again_before_its_reply_is_read(
    provider: LoopbackProvider, project: Project, output: Any
) -> None:
    provider.batch_plan = BatchPlan(output=output)
    limit = project.estimate(passages(9), batch=True).max_cost
    report = project.ingest(passages(9), batch=True, max_cost=limit)
    charged = cost_at(provider.charged())
    assert charged <= (report.paid.dollars or 0.0) <= limit
    assert report.paid.unsettled_calls == len(report.failures) > 0
    assert project.cost().dollars == pytest.approx(report.paid.dollars)
    assert {failure.is_held_back for failure in report.failures} == {True}
    assert "its reply in a batch cannot be read, but may be charged" in report.failures[0].error
    for again in (project.retry_failed(), project.ingest(passages(1, name="other"))):
        assert again.version is not None
    assert len(provider.chat_calls) == 1, "the new one"
    assert len(provider.batch_history) == 9
    assert cost_at(provider.charged()) <= project.cost().dollars


def test_a_charged_request_is_sent_again_for_the_sum_that_the_user_names_and_its_reserve_stays_spent(
    provider: LoopbackProvider, project: Project
) -> None:
    provider.batch_plan = BatchPlan(output="missing")
    report = project.ingest(passages(4), batch=True)
    booked = project.cost().booked
    assert booked > 0
    with pytest.raises(BudgetExceededError):
        project.retry_failed(max_cost=0.0)
    assert len(project.retry_failed().failures) == 4, "a limit that is too low accepts nothing"
    assert provider.chat_calls == []
    done = project.retry_failed(max_cost=limit_of(report))
    assert done.failures == ()
    assert len(provider.chat_calls) == 4
    assert (done.paid.dollars or 0.0) <= limit_of(report)
    cost = project.cost()
    assert cost.booked == pytest.approx(booked)
    assert cost.runs[0].unsettled_calls == 4
    assert cost.dollars == pytest.approx(booked + cost_at([call for call in provider.charged() if not call.batch_id]))


def test_a_later_run_books_the_replies_that_it_can_read_instead_of_the_reserve(
    provider: LoopbackProvider, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("llama_index_contextual.contextualizer.batch.parse_output", lambda _content: iter(()))
        assert len(project.ingest(passages(4), batch=True).failures) == 4
    done = project.retry_failed()
    assert (done.failures, provider.chat_calls, len(provider.batch_history)) == ((), [], 4)
    assert project.cost().booked == 0.0
    assert project.cost().dollars == pytest.approx(cost_at(provider.charged()))
