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
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.ledger_lines import salvage
from llama_index_contextual.storage.receipts import Receipts, RunCost
from tests.benchmarks.budgets import CASES, SMALL, cost_at, run_case
from tests.integration.ingestion.support import interrupt_batch, passages
from tests.support.batches import BatchPlan
from tests.support.models import ScriptedLLM
from tests.support.records import CHAT_PATH
from tests.support.server import LoopbackProvider

BY_NAME = {case.name: case for case in CASES}
CONFIG: dict[str, Any] = {**SMALL, "llm": "openai:gpt-4.1", "faiss": False}


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
    case = replace(slow, config={"call_timeout": 2.0, "faiss": False}, provider={"latency": 3600.0}, share=0.5)
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
    assert paid.cost().booked == report.paid.unsettled_dollars > 0


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
    paid.export_contexts(tmp_path / "contexts.jsonl")
    other = manager.create("other", ProjectConfig(**CONFIG))
    other.import_contexts(tmp_path / "contexts.jsonl")
    assert other.ingest(passages(3)).contexts_paid == 0
    assert other.cost().runs == ()
    paid.update_config(bm25=True, chunks_per_call=2)
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
            ledger.receipts.write(RunCost(paid=paid, ended=1.0))
        ledger._kv.execute("UPDATE runs SET receipt = replace(receipt, '\"paid\": 1.0', '\"paid\": 0.0')")
        cost = ledger.receipts.cost()
        assert (cost.dollars, cost.damaged) == (2.0, 1)


def test_a_receipt_is_written_before_money_is_spent_but_not_for_every_call(
    provider: LoopbackProvider, paid: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[RunCost] = []
    real_write = Receipts.write

    def write(self: Receipts, receipt: RunCost) -> RunCost:
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
