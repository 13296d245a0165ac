"""Cost of an ingestion: the estimate, the limit, the receipt, and batches."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.money.price import money
from llama_index_contextual.money.tokens import Tokens
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import files_of, interrupt_batch, nodes_of
from tests.support.batches import BatchPlan
from tests.support.charges import cost_at
from tests.support.cli import run
from tests.support.log_check import check
from tests.support.server import LoopbackProvider

CONFIG = {"embed_model": "openai:text-embedding-3-small", "context": "llm", "llm": "openai:gpt-4.1"}
SIZES = {"segment_size": 2000, "chunk_size": 200, "chunk_overlap": 20}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two documents, with three segments and with one."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for name, parts in (("long.md", 12), ("short.md", 2)):
        text = "".join(
            f"## Part {part}\n\n"
            + " ".join(f"Line {n} of {name} part {part} tells fact {n}." for n in range(30))
            + "\n\n"
            for part in range(parts)
        )
        (folder / name).write_text(text)
    return folder


def project_of(manager: ProjectManager, name: str = "costs", **changes: object) -> Project:
    return manager.create(name, ProjectConfig(**{**CONFIG, **SIZES, **changes}))


def contexts_of(project: Project) -> dict[str, str]:
    return {node.node_id: node.metadata["context"] for node in nodes_of(project)}


# ---- estimate ------------------------------------------------------------------------------------------------------


def test_an_estimate_sends_nothing_writes_nothing_and_needs_no_key(
    manager: ProjectManager, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(manager)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = files_of(project.directory)
    found = project.estimate([folder])
    assert files_of(project.directory) == before
    assert (found.documents, found.model) == (2, "openai:gpt-4.1")
    assert found.dollars
    json.dumps(found.to_dict())


def test_the_estimate_is_that_of_the_settings(manager: ProjectManager, folder: Path) -> None:
    live = project_of(manager, llm_concurrency=2).estimate([folder])
    assert (live.sender, live.contexts.calls) == ("live", live.chunks)
    assert live.contexts.cached_tokens > 0
    # The first call of a segment is sent alone; the others are sent in pairs. An answer starts after a second.
    seconds_of_a_call = 1 + live.contexts.output_tokens / live.chunks / 70
    assert live.minutes == pytest.approx((1 + math.ceil(live.chunks / 2)) * seconds_of_a_call / 60)
    flex = project_of(manager, "flex", service_tier="flex").estimate([folder])
    assert flex.context_dollars == pytest.approx(live.context_dollars / 2)  # type: ignore[operator]
    batch = project_of(manager, "batch").estimate([folder], batch=True)
    assert (batch.sender, batch.minutes) == ("batch", None)
    # A batch is assumed to read nothing from the cache; otherwise it would cost half of the live price.
    assert batch.contexts.cached_tokens == 0
    assert flex.context_dollars < batch.context_dollars < live.context_dollars  # type: ignore[operator]
    assert f"; a limit of {money(live.max_cost)} is sufficient" in str(live)
    assert "genai-prices" in str(live)


@pytest.mark.parametrize("llm", ["ollama:llama3.1", "openai-like:gemma"])
def test_the_duration_is_unknown_for_a_server_of_ones_own(manager: ProjectManager, folder: Path, llm: str) -> None:
    own = project_of(manager, llm=llm).estimate([folder])
    assert own.minutes is None
    assert "duration unknown" in str(own)
    assert "tokens per second" not in str(own)


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
@pytest.mark.parametrize("sizes", [SIZES, {"segment_size": 2_000, "chunk_size": 600, "chunk_overlap": 60}], ids=str)
def test_the_estimate_states_whether_a_batch_or_live_calls_are_cheaper(
    manager: ProjectManager, folder: Path, sizes: dict[str, int], batch: bool
) -> None:
    # With small chunks, live calls read most of each prompt from the cache at a tenth of the price.
    prices = {"openai:gpt-4.1": {"input": 2.0, "cached": 0.2, "output": 8.0}}
    project = project_of(manager, **sizes, prices=prices)
    both = {sender: project.estimate([folder], batch=sender == "batch").context_dollars for sender in ("live", "batch")}
    found = project.estimate([folder], batch=batch)
    assert (found.live_dollars, found.batch_dollars) == (both["live"], both["batch"])
    cheaper = "live" if both["live"] < both["batch"] else "batch"  # type: ignore[operator]
    assert cheaper == ("live" if sizes is SIZES else "batch")
    assert found.cheaper == found.to_dict()["cheaper"] == cheaper
    live, batched = money(both["live"]), money(both["batch"])
    sentence = {
        (False, "live"): f"A batch would cost more: {batched} instead of {live} for the contexts.",
        (False, "batch"): f"A batch would cost less: {batched} instead of {live} for the contexts.",
        (True, "batch"): f"Live calls would cost more: {live} instead of {batched} for the contexts.",
        (True, "live"): "Live calls would cost less, because they read most of each segment from the provider's cache:"
        f" {live} instead of {batched} for the contexts.",
    }[batch, cheaper]
    assert sentence in str(found).splitlines()
    assert ("Live calls would cost less" in found.summary()) == (batch and cheaper == "live")
    options = [folder, "--root", manager.root, *(["--batch"] if batch else [])]
    assert sentence in run("estimate", "costs", *options).out.splitlines()
    assert run("estimate", "costs", *options, "--json").json["cheaper"] == cheaper


def test_without_a_batch_api_or_a_price_nothing_is_compared(manager: ProjectManager, folder: Path) -> None:
    other = project_of(manager, llm="ollama:llama3.1", prices={"ollama:llama3.1": {"input": 1.0}}).estimate([folder])
    assert other.live_dollars == other.context_dollars
    assert (other.batch_dollars, other.cheaper) == (None, None)
    unknown = project_of(manager, "unknown", llm="openai:of-tomorrow").estimate([folder])
    assert unknown.cheaper is unknown.live_dollars is unknown.batch_dollars is None
    assert "would cost" not in f"{other}{unknown}"
    flex = project_of(manager, "flex", service_tier="flex").estimate([folder])
    assert (flex.live_dollars, flex.cheaper) == (flex.context_dollars, "live")


def test_the_receipt_agrees_with_the_estimate_and_with_the_log(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path, tmp_path: Path
) -> None:
    project = project_of(manager)
    found = project.estimate([folder])
    assert provider.calls() == []
    report = project.ingest([folder])
    log = check(provider.write_log(tmp_path / "log.jsonl"), embedding_encoding="cl100k_base")
    assert log["mismatches"] == 0
    paid = report.paid.contexts
    assert paid == Tokens(log["chat_calls"], log["prompt_tokens"], log["cached_tokens"], log["completion_tokens"])
    assert report.paid.embedding_tokens == log["embedding_tokens"]
    for expected in (report.estimated.contexts, found.contexts):
        assert expected.calls == paid.calls  # type: ignore[attr-defined]
        assert expected.input_tokens == pytest.approx(paid.input_tokens, rel=0.01)
        assert expected.cached_tokens == pytest.approx(paid.cached_tokens, rel=0.03)
    assert report.estimated.dollars == pytest.approx(found.dollars, rel=0.001)
    assert report.paid.dollars == pytest.approx(found.dollars, rel=0.1)
    assert report.cache_hit_rate == pytest.approx(paid.cached_tokens / paid.input_tokens)
    assert report.prices == found.prices
    assert "estimated" in str(report)


def test_contexts_and_embeddings_in_the_ledger_cost_nothing(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    project = project_of(manager)
    project.ingest([folder / "short.md"])
    found = project.estimate([folder])
    assert found.documents == 1, "the other one is unchanged"
    project.update_config(chunk_overlap=21)
    again = project.estimate([folder])
    assert again.documents == 2
    assert again.known_contexts >= 0
    project.update_config(chunk_overlap=20, embed_window=8_000)
    rebuilt = project.estimate([folder / "short.md"])
    assert (rebuilt.documents, rebuilt.known_contexts) == (1, rebuilt.chunks)
    assert (rebuilt.contexts.calls, rebuilt.embedding_tokens, rebuilt.dollars) == (0, 0, 0.0)


def test_an_estimate_without_a_price_has_tokens_and_a_note(manager: ProjectManager, folder: Path) -> None:
    project = project_of(manager, llm="openai:of-tomorrow")
    found = project.estimate([folder])
    assert found.contexts.input_tokens
    assert found.dollars is None
    assert "The price of 'openai:of-tomorrow' is unknown" in str(found)
    project.update_config(prices={"openai:of-tomorrow": {"input": 1.0}})
    assert project.estimate([folder]).dollars


def test_without_an_llm_only_embeddings_cost(provider: LoopbackProvider, manager: ProjectManager, folder: Path) -> None:
    project = project_of(manager, context="structural")
    found = project.estimate([folder])
    assert (found.model, found.contexts.calls) == (None, 0)
    report = project.ingest([folder])
    assert report.paid.embedding_tokens == found.embedding_tokens
    assert report.paid.dollars == found.dollars
    assert manager.create("local", ProjectConfig.local()).estimate([folder]).dollars == 0.0


def test_a_new_first_sentence_is_paid_for_in_the_first_segment_only(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    project = project_of(manager)
    first = project.ingest([folder / "long.md"])
    text = (folder / "long.md").read_text()
    (folder / "long.md").write_text(f"Some words were put before all others.\n\n{text}")
    again = project.ingest([folder / "long.md"])
    assert again.updated == ("long.md",)
    segments = {node.metadata["segment_index"] for node in nodes_of(project)}
    assert len(segments) >= 3
    assert 0 < again.contexts_paid <= first.contexts_paid / 2


# ---- limit ---------------------------------------------------------------------------------------------------------


def test_a_run_uses_its_limit_to_the_last_call_that_fits_and_keeps_the_contexts_paid_for(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    project = project_of(manager, llm_concurrency=2, indexes="lexical")
    whole = project.estimate([folder]).dollars
    assert whole
    limit = whole / 3
    with pytest.raises(
        BudgetExceededError, match=r"cost limit of \$\S+ is reached: .* Nothing is published; .* To continue, run"
    ) as raised:
        project.ingest([folder], max_cost=limit)
    assert project.versions() == []
    spent = cost_at(provider.charged())
    assert limit * 0.8 <= spent <= limit
    assert raised.value.spent == pytest.approx(spent)
    assert project.cost().dollars == pytest.approx(spent)
    assert project.info().ledger.contexts == len(provider.chat_calls), "the answers to calls in flight are kept"
    report = project.ingest([folder], max_cost=whole)
    assert len(provider.chat_calls) == report.chunks, "no context was paid for twice"


@pytest.mark.parametrize("unknown", [{"llm": "openai:of-tomorrow"}, {"embed_model": "openai:of-tomorrow"}], ids=str)
def test_a_limit_is_refused_without_a_price(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path, unknown: dict[str, str]
) -> None:
    with pytest.raises(ConfigurationError, match="the price of 'openai:of-tomorrow' is unknown"):
        project_of(manager, **unknown).ingest([folder], max_cost=5.0)
    assert provider.calls() == []


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
def test_a_run_with_the_limit_of_the_estimate_completes(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path, batch: bool
) -> None:
    project = project_of(manager)
    found = project.estimate([folder], batch=batch)
    assert found.max_cost is not None
    assert found.dollars is not None
    assert found.max_cost == float(money(found.max_cost).removeprefix("$")), "it can be copied from the text"
    report = project.ingest([folder], batch=batch, max_cost=found.max_cost)
    assert (provider.chat_calls == [], provider.batch_history == []) == (batch, not batch)
    assert (report.chunks, report.failures) == (found.chunks, ())
    assert report.paid.dollars <= found.max_cost


def test_reserves_do_not_stop_a_run_whose_limit_is_its_price(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    whole = project_of(manager, indexes="lexical").ingest([folder]).paid
    provider.reset()
    report = project_of(manager, "again", indexes="lexical").ingest([folder], max_cost=whole.dollars * 1.01)
    assert report.chunks == report.contexts_paid


# ---- batches -------------------------------------------------------------------------------------------------------


def test_a_batch_builds_the_same_version_at_half_the_price(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    live, batched = project_of(manager, "live"), project_of(manager, "batched")
    live.ingest([folder])
    calls = len(provider.chat_calls)
    states: list[IngestProgress] = []
    report = batched.ingest([folder], batch=True, progress=states.append)
    assert len(provider.chat_calls) == calls, "nothing was sent live"
    assert len(provider.batch_history) == calls
    assert contexts_of(batched) == contexts_of(live)
    assert report.paid.contexts.calls == calls
    assert report.paid.contexts.cached_tokens == 0
    found = batched.estimate([folder], replace=True)
    assert found.documents == 0
    estimate = project_of(manager, "third").estimate([folder], batch=True)
    assert report.paid.dollars == pytest.approx(estimate.dollars, rel=0.05)
    assert any(state.stage == "batch" and state.batch_total == calls for state in states)
    assert states[-1].dollars == report.paid.dollars
    with closing(Ledger(batched.directory / LEDGER_FILE)) as ledger:
        assert not ledger.batches.has_replies()


def test_a_later_ingest_collects_the_batch_of_an_interrupted_process(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    provider.batch_plan = BatchPlan(polls=None)
    project = project_of(manager)
    with pytest.raises(KeyboardInterrupt):
        project.ingest([folder], batch=True, progress=interrupt_batch)
    assert project.versions() == []
    waiting = project.info().ledger.batched_requests
    assert waiting == project.estimate([folder]).chunks
    provider.advance_batch("batch_1", "completed")
    report = manager.load("costs").ingest([folder])
    assert report.contexts_paid == waiting == len(provider.batch_history)
    assert provider.chat_calls == []
    assert project.info().ledger.batched_requests == 0


def test_a_batch_under_way_brings_nothing_back_that_was_forgotten(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    project = project_of(manager)
    project.ingest([folder / "short.md"])
    provider.batch_plan = BatchPlan(polls=None)
    with pytest.raises(KeyboardInterrupt):
        project.ingest([folder / "long.md"], batch=True, progress=interrupt_batch)
    waiting = project.info().ledger.batched_requests
    assert waiting
    assert project.forget().batched_requests == waiting
    provider.advance_batch("batch_1", "completed")
    report = project.ingest([Document(text="Another document about something else.")])
    assert project.info().ledger.batched_requests == 0
    with closing(Ledger(project.directory / LEDGER_FILE)) as ledger:
        assert not ledger.batches.has_replies()
        assert ledger.info().contexts == report.chunks


def test_live_calls_leave_room_in_the_limit_for_a_batch_in_progress(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    provider.batch_plan = BatchPlan(polls=None)
    project = project_of(manager, indexes="lexical", llm_concurrency=1)
    with pytest.raises(KeyboardInterrupt):
        project.ingest([folder / "short.md"], batch=True, progress=interrupt_batch)
    provider.advance_batch("batch_1", "completed")
    limit = 2 * cost_at(provider.charged())
    assert limit
    with pytest.raises(BudgetExceededError):
        project.ingest([folder], max_cost=limit)
    assert provider.chat_calls, "the longer document comes first"
    assert cost_at(provider.charged()) <= limit


def test_a_batch_that_could_exceed_the_limit_is_not_sent(
    provider: LoopbackProvider, manager: ProjectManager, folder: Path
) -> None:
    with pytest.raises(BudgetExceededError):
        project_of(manager).ingest([folder], batch=True, max_cost=0.001)
    assert provider.history == []


def test_other_providers_have_no_batches(manager: ProjectManager, folder: Path) -> None:
    project = manager.create("mock", ProjectConfig.local(context="llm"), llm=MockLLM(), model_id="m")
    with pytest.raises(ConfigurationError, match="does not support batches, only OpenAI's models do"):
        project.ingest([folder], batch=True)
    with pytest.raises(ConfigurationError, match="Batches require contexts written by an LLM"):
        manager.create("local", ProjectConfig.local()).ingest([folder], batch=True)
