"""Reported costs: neither a report nor a project states less than the provider charges."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.ledger_lines import export_ledger, import_ledger
from llama_index_contextual.index.verify import salvage
from llama_index_contextual.money.receipt import Receipt, Receipts
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.budgets import CASES, SMALL, run_case
from tests.integration.ingestion.support import ids, interrupt_batch, passages
from tests.support.batches import BatchPlan
from tests.support.charges import cost_at
from tests.support.models import ScriptedLLM
from tests.support.records import CHAT_PATH, Request
from tests.support.replies import Reply, default_reply
from tests.support.server import LoopbackProvider

BY_NAME = {case.name: case for case in CASES}
CONFIG: dict[str, Any] = {**SMALL, "llm": "openai:gpt-4.1", "indexes": "lexical"}
LIMIT = 0.1
"""A limit in dollars that is more than enough."""


@pytest.fixture
def paid(manager: ProjectManager) -> Project:
    """An empty project whose contexts are paid for."""
    return manager.create("paid", ProjectConfig(**CONFIG))


# ---- the cases of the benchmark, small -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["50 times the tokens", "lost connections", "no count of tokens", "reasoning too long"]
)
def test_the_stated_cost_is_at_least_what_the_provider_charges(name: str, tmp_path: Path) -> None:
    row = run_case(BY_NAME[name], tmp_path, parts=3)
    assert row.counted > 0
    assert row.holds, row


def test_every_attempt_that_times_out_is_booked(tmp_path: Path) -> None:
    slow = BY_NAME["slower than the timeout"]
    # Long enough to connect on a busy machine: a call that was never sent costs nothing.
    case = replace(slow, config={"call_timeout": 2.0, "indexes": "lexical"}, provider={"latency": 3600.0}, share=0.5)
    row = run_case(case, tmp_path, parts=3)
    assert row.holds, row
    assert row.ending == "stopped at the limit"
    assert row.said == row.in_all == row.booked
    assert 0 < row.booked <= row.limit


# ---- the report ------------------------------------------------------------------------------------------------------


def test_a_report_states_the_calls_of_unknown_cost(provider: LoopbackProvider, paid: Project) -> None:
    provider.fault("drop_in_body", 2, CHAT_PATH)
    report = paid.ingest(passages(4))
    assert report.failures == ()
    assert (report.paid.contexts.calls, report.paid.unsettled_calls) == (4, 2)
    assert report.paid.dollars == paid.cost().dollars >= cost_at(provider.charged())
    assert "for 2 calls of unknown cost (timed out, interrupted or not read from a batch)" in report.receipt()
    assert report.to_dict()["paid"]["unsettled_calls"] == 2  # type: ignore[index]
    assert paid.cost().booked == report.paid.unsettled > 0


def test_at_the_limit_calls_in_flight_are_completed_and_their_answers_kept(
    provider: LoopbackProvider, paid: Project
) -> None:
    provider.latency = 0.05
    limit = paid.estimate(passages(12)).dollars
    assert limit
    with pytest.raises(BudgetExceededError) as raised:
        paid.ingest(passages(12), max_cost=limit / 2)
    assert all(record.status == 200 for record in provider.chat_calls), "none was cut off"
    assert paid.info().ledger.contexts == len(provider.chat_calls) > 1
    assert raised.value.spent == pytest.approx(cost_at(provider.charged()))
    (enough,) = re.findall(r"run the same call again with max_cost=([\d.]+), or without one", str(raised.value))
    assert paid.ingest(passages(12), max_cost=float(enough)).failures == ()


def test_each_attempt_to_embed_is_booked(provider: LoopbackProvider, manager: ProjectManager) -> None:
    project = manager.create("embedded", ProjectConfig(context="none"))
    provider.fault("drop_in_body", 1, "/v1/embeddings")
    report = project.ingest(passages(3))
    assert report.paid.unsettled_calls == 1
    assert report.paid.dollars == pytest.approx(cost_at(provider.charged()))
    assert project.cost().runs[0].embedding_tokens == report.paid.embedding_tokens


# ---- cost of a project -----------------------------------------------------------------------------------------------


def test_a_project_states_its_cost_in_total_and_by_run(provider: LoopbackProvider, paid: Project) -> None:
    assert paid.cost().dollars == 0.0
    reports = [paid.ingest(passages(3)), paid.ingest(passages(2, name="m"))]
    paid.ingest(passages(2, name="m"))  # unchanged: nothing is sent, and there is no receipt
    cost = paid.cost()
    assert [run.dollars for run in cost.runs] == [report.paid.dollars for report in reports if report.paid]
    assert [(run.run, run.purpose, run.llm, run.calls) for run in cost.runs] == [
        (1, "ingest", "openai:gpt-4.1", 3),
        (2, "ingest", "openai:gpt-4.1", 2),
    ]
    assert all(run.ended and run.in_flight == 0.0 for run in cost.runs)
    assert cost.dollars == pytest.approx(cost_at(provider.charged()))
    assert paid.info().cost == cost


def test_contexts_from_the_ledger_or_an_import_cost_nothing(
    provider: LoopbackProvider, manager: ProjectManager, paid: Project, tmp_path: Path
) -> None:
    paid.ingest(passages(3))
    export_ledger(paid.directory, tmp_path / "contexts.jsonl")
    other = manager.create("other", ProjectConfig(**CONFIG))
    import_ledger(other.directory, tmp_path / "contexts.jsonl")
    assert other.ingest(passages(3)).contexts_paid == 0
    assert other.cost() == paid.cost()
    paid.update_config(indexes="lexical", llm_concurrency=2)
    paid.rebuild()
    assert len(paid.cost().runs) == 1


def test_receipts_survive_forgetting_and_salvage(provider: LoopbackProvider, paid: Project, tmp_path: Path) -> None:
    paid.ingest(passages(3))
    before = paid.cost()
    paid.forget()
    assert paid.cost() == before
    with closing(Ledger(tmp_path / "new.sqlite")) as ledger:
        salvage(paid.directory / LEDGER_FILE, ledger)
        assert ledger.receipts.cost() == before


def test_a_changed_receipt_is_reported_and_not_counted(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        for paid in (1.0, 2.0):
            ledger.receipts.write(Receipt(paid=paid, ended=1.0))
        ledger.execute("UPDATE runs SET receipt = replace(receipt, '\"paid\": 1.0', '\"paid\": 0.0')")
        cost = ledger.receipts.cost()
        assert (cost.dollars, cost.damaged) == (2.0, 1)


def test_a_receipt_is_written_before_money_is_spent_but_not_for_every_call(
    provider: LoopbackProvider, paid: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Receipt] = []
    real_write = Receipts.write

    def write(self: Receipts, receipt: Receipt) -> Receipt:
        written.append(receipt)
        return real_write(self, receipt)

    monkeypatch.setattr(Receipts, "write", write)
    paid.ingest(passages(40))
    assert written[0].calls == 0
    assert written[0].in_flight > 0
    assert written[-1].ended
    assert len(written) < 12
    assert all(run.dollars is not None for run in written)


def test_a_batch_in_progress_is_booked_until_its_replies_arrive(provider: LoopbackProvider, paid: Project) -> None:
    provider.batch_plan = BatchPlan(polls=None)
    with pytest.raises(KeyboardInterrupt):
        paid.ingest(passages(3), batch=True, progress=interrupt_batch)
    provider.advance_batch("batch_1", "completed")
    (run,) = paid.cost().runs
    assert run.dollars == run.booked >= cost_at(provider.charged()) > 0
    report = paid.ingest(passages(3))
    assert report.paid.dollars == pytest.approx(cost_at(provider.charged()))
    assert [run.booked for run in paid.cost().runs] == [0.0, 0.0]
    assert paid.cost().dollars == pytest.approx(cost_at(provider.charged()))


def test_a_run_with_an_unknown_price_is_counted_separately(manager: ProjectManager) -> None:
    llm = ScriptedLLM()
    llm.enqueue(TimeoutError("late"))
    project = manager.create("unknown", ProjectConfig(**CONFIG), llm=llm)
    report = project.ingest(passages(2))
    assert (report.paid.dollars, report.paid.unsettled_calls) == (None, 1)
    assert "of which for 1 call" not in report.receipt()
    assert "an unknown price" in report.receipt()
    assert (project.cost().dollars, project.cost().without_price) == (0.0, 1)


# ---- contexts that are not requested again without the user's word ---------------------------------------------------


PLAIN: dict[str, Any] = {"llm": "openai:gpt-4.1", "indexes": "lexical"}


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    return manager.create("p", ProjectConfig(**PLAIN))


def refuse(request: Request) -> Reply:
    """Refuse passages with an odd number, as a content filter does."""
    if any(f"Passage {number} of" in request.chunk for number in (1, 3, 5)):
        return Reply("", finish_reason="content_filter")
    return default_reply(request, 100)


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
    assert len(project.versions()) == 1
    project.ingest([*passages(6), *passages(1, name="other")], batch=batch)
    assert project.rebuild().version is not None
    assert len(provider.chat_calls) + len(provider.batch_history) == 1, "the new one"


def test_a_refused_context_is_requested_again_within_the_limit_that_the_user_names(
    provider: LoopbackProvider, project: Project
) -> None:
    provider.reply = refuse
    report = project.ingest(passages(6))
    assert "project.retry_failed(max_cost=...)" in str(report)
    provider.clear_history()
    assert len(project.retry_failed(max_cost=LIMIT).failures) == 3
    assert len(provider.chat_calls) == 3, "refused once more"
    provider.clear_history()
    provider.reply = None
    done = project.retry_failed(max_cost=LIMIT)
    assert (done.failures, done.contexts_paid) == ((), 3)
    assert cost_at(provider.charged()) <= LIMIT
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
        assert ledger.info().contexts == 3
    project.remove(ids(project))
    assert project.estimate(passages(6)).contexts.calls == 0, "a refused context is not counted"


def test_a_retry_publishes_what_it_has_got_although_other_contexts_failed_again(
    provider: LoopbackProvider, project: Project
) -> None:
    fault = provider.fault("content_filter_error", None, "Passage 0 of")
    provider.reply = refuse
    first = project.ingest(passages(2))
    assert len(first.failures) == 2
    assert "To request their contexts again: project.retry_failed(max_cost=...)" in str(first)
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
    project.ingest(passages(4), batch=True)
    booked = project.cost().booked
    assert booked > 0
    with pytest.raises(BudgetExceededError):
        project.retry_failed(max_cost=0.0)
    assert len(project.retry_failed().failures) == 4, "a limit that is too low accepts nothing"
    assert provider.chat_calls == []
    done = project.retry_failed(max_cost=LIMIT)
    assert done.failures == ()
    assert len(provider.chat_calls) == 4
    assert (done.paid.dollars or 0.0) <= LIMIT
    cost = project.cost()
    assert cost.booked == pytest.approx(booked)
    assert cost.runs[0].unsettled_calls == 4
    assert cost.dollars == pytest.approx(booked + cost_at([call for call in provider.charged() if not call.batch_id]))


def test_a_later_run_books_the_replies_that_it_can_read_instead_of_the_reserve(
    provider: LoopbackProvider, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("llama_index_contextual.contextualizer.sending.parse_output", lambda _content: iter(()))
        assert len(project.ingest(passages(4), batch=True).failures) == 4
    done = project.retry_failed()
    assert (done.failures, provider.chat_calls, len(provider.batch_history)) == ((), [], 4)
    assert project.cost().booked == 0.0
    assert project.cost().dollars == pytest.approx(cost_at(provider.charged()))
