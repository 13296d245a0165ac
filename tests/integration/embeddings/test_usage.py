"""Token counts of embedding replies: what a provider reports is booked, and what it does not report is an estimate."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.embeddings import BaseEmbedding

from llama_index_contextual import ContextualEmbedding
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.contextual import aembed_groups
from llama_index_contextual.embeddings.replies import report_usage
from llama_index_contextual.errors import BudgetExceededError
from llama_index_contextual.models import model_name
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import Prices
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.embeddings.providers import MODELS, OPENAI, PER_TOKEN, PRICE, billed, embedded, openai
from tests.integration.ingestion.support import passages
from tests.support.cli import run
from tests.support.models import CountingEmbedding
from tests.support.records import EMBEDDINGS_PATH, Answer, Request
from tests.support.server import LoopbackProvider


@pytest.fixture
def provider(every_provider: LoopbackProvider) -> LoopbackProvider:
    return every_provider


def usage(change: Callable[[Any], Any]) -> Callable[[Request, Answer], None]:
    """Replace the usage in replies; the provider's own record is not changed."""

    def tamper(_: Request, answer: Answer) -> None:
        if answer.status == 200 and answer.usage is not None:
            answer.payload = {**answer.payload, "usage": change(answer.payload.get("usage"))}

    return tamper


# ---- every kind of model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1, 100])
@pytest.mark.parametrize("kind", MODELS)
def test_the_tokens_that_the_provider_reports_are_booked(
    provider: LoopbackProvider, manager: ProjectManager, kind: str, factor: int
) -> None:
    provider.usage_factor = factor
    project, report = embedded(manager, MODELS[kind](provider))
    assert report.paid is not None
    assert (report.paid.embedding_tokens, report.paid.estimated_embedding_tokens) == (billed(provider), 0)
    assert report.paid.dollars == pytest.approx(billed(provider) * PER_TOKEN)
    (cost,) = project.cost().runs
    assert (cost.embedding_tokens, cost.dollars, cost.is_estimated) == (billed(provider), report.paid.dollars, False)
    assert f"{billed(provider):,} tokens embedded" in report.receipt()
    assert "about" not in report.receipt()


NO_COUNTS: dict[str, Any] = {
    "missing": lambda _: None,
    "empty": lambda _: {},
    "zero": lambda _: {"prompt_tokens": 0, "total_tokens": 0},
    "negative": lambda _: {"prompt_tokens": -5, "total_tokens": -5},
    "absurd": lambda _: {"prompt_tokens": 10**30, "total_tokens": 10**30},
    "null": lambda _: {"prompt_tokens": None, "total_tokens": None},
    "words": lambda _: {"prompt_tokens": "some", "total_tokens": "many"},
    "a list": lambda _: [5, 5],
    "a number": lambda _: 5,
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in ("OpenAI", "Voyage") for name in NO_COUNTS),
        *(("OpenAI's interface", "missing"), ("Azure", "missing")),
    ],
)
def test_without_a_usable_count_the_tokens_are_an_estimate_which_is_said_everywhere(
    provider: LoopbackProvider, manager: ProjectManager, kind: str, name: str
) -> None:
    provider.tamper = usage(NO_COUNTS[name])
    project, report = embedded(manager, MODELS[kind](provider))
    assert report.paid is not None
    assert report.paid.estimated_embedding_tokens == report.paid.embedding_tokens == billed(provider)
    assert report.paid.is_estimated
    assert report.receipt().startswith(f"about {billed(provider)} tokens embedded; about $0.0000")
    assert f"estimated: the provider did not report {billed(provider)} embedded tokens" in str(report)
    assert report.to_dict()["paid"]["estimated_embedding_tokens"] == billed(provider)  # type: ignore[index]
    cost = project.cost()
    assert cost.is_estimated
    assert cost.runs[0].estimated_embedding_tokens == billed(provider)
    assert json.loads(json.dumps(cost.to_dict()))["runs"][0]["is_estimated"] is True


def test_a_model_that_reports_nothing_is_an_estimate_and_one_can_report_by_itself(manager: ProjectManager) -> None:
    class Reporting(CountingEmbedding):
        reports: bool = True

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            if self.reports:
                report_usage(1_000)
            return super()._get_text_embeddings(texts)

    class Together(ContextualEmbedding):
        model_name: str = "together@1"

        def _get_document_embeddings(self, documents: list[list[str]]) -> list[list[list[float]]]:
            report_usage(sum(map(len, documents)))
            return [[[1.0, float(len(text))] for text in texts] for texts in documents]

        def _get_query_embedding(self, query: str) -> list[float]:
            return [1.0, 1.0]

    def tokens(name: str, model: BaseEmbedding) -> tuple[int, int]:
        paid = manager.create(name, ProjectConfig(context="none"), embed_model=model).ingest(passages(24)).paid
        assert paid is not None
        return paid.embedding_tokens, paid.estimated_embedding_tokens

    silent = tokens("silent", Reporting(embed_batch_size=6, reports=False))
    assert silent[0] == silent[1] > 0
    assert tokens("reporting", Reporting(embed_batch_size=6)) == (4_000, 0)
    assert tokens("together", Together()) == (24, 0)


def test_the_command_line_marks_estimates(provider: LoopbackProvider, manager: ProjectManager, tmp_path: Path) -> None:
    provider.tamper = usage(lambda _: None)
    project = manager.create("p", ProjectConfig(context="none", embed_model=OPENAI))
    (tmp_path / "a.txt").write_text("The pump runs dry.")
    options = ["--root", str(manager.root)]
    assert re.search(r"about \d+ tokens embedded; about \$\S+ by", run("ingest", "p", tmp_path / "a.txt", *options).out)
    shown = run("cost", "p", *options).out
    assert re.search(r"ingest  about \$.*estimated: the provider did not report all tokens", shown)
    assert "total: about $" in shown
    assert run("cost", "p", *options, "--json").json["is_estimated"] is True
    assert "cost so far   about $" in run("info", "p", *options).out
    provider.tamper = None
    (tmp_path / "b.txt").write_text("Close valve 7.")
    project.ingest([tmp_path / "b.txt"])
    assert [one["is_estimated"] for one in run("cost", "p", *options, "--json").json["runs"]] == [True, False]


# ---- concurrency, failures and limits --------------------------------------------------------------------------------


async def test_concurrent_runs_with_one_model_object_get_their_own_counts(provider: LoopbackProvider) -> None:
    model = MODELS["OpenAI's interface"](provider)
    accounts = [Account(Prices({"m": PRICE})) for _ in range(6)]

    async def embed(number: int) -> None:
        texts = [[f"text {number} " + "word " * number] for _ in range(12)]
        async for _ in aembed_groups(model, texts, name="m", account=accounts[number]):
            await asyncio.sleep(0)

    await asyncio.gather(*(embed(number) for number in range(6)))
    for number, account in enumerate(accounts):
        mine = [record for record in provider.embedding_calls if f"text {number} " in record.text]
        assert len(mine) == 2
        assert account.actual.embedding_tokens == sum(record.usage["prompt_tokens"] for record in mine)  # type: ignore[index]


@pytest.mark.parametrize("retries", [0, 5])
def test_every_attempt_of_an_object_that_retries_by_itself_is_booked(
    provider: LoopbackProvider, manager: ProjectManager, retries: int
) -> None:
    provider.fault("drop_in_body", 2, EMBEDDINGS_PATH)
    model = openai(provider, max_retries=retries)
    _, report = embedded(manager, model)
    assert report.paid is not None
    assert (report.paid.unsettled_calls, len(provider.embedding_calls)) == (2, 3)
    assert report.paid.dollars == pytest.approx(billed(provider) * PER_TOKEN)
    assert model.max_retries == retries


def test_amounts_booked_before_the_ratio_was_known_are_raised_by_it(
    provider: LoopbackProvider, manager: ProjectManager
) -> None:
    provider.usage_factor = 100
    provider.fault("drop_in_body", 1, EMBEDDINGS_PATH)
    answers: list[Answer] = []

    def first_without_usage(request: Request, answer: Answer) -> None:
        answers.append(answer)
        if len(answers) == 1:
            usage(lambda _: None)(request, answer)

    provider.tamper = first_without_usage
    model = openai(provider, embed_batch_size=8)
    project, report = embedded(manager, model)
    assert report.paid is not None
    assert report.paid.unsettled_calls == 1
    assert report.paid.estimated_embedding_tokens > 0
    assert report.paid.dollars == project.cost().dollars >= billed(provider) * PER_TOKEN


@pytest.mark.parametrize("factor", [1, 2, 100])
def test_a_run_stops_before_its_limit_is_exceeded_by_more_than_the_call_in_flight(
    provider: LoopbackProvider, manager: ProjectManager, factor: int
) -> None:
    provider.usage_factor = factor
    model = openai(provider, embed_batch_size=1)
    nodes = passages(24)
    config = ProjectConfig(context="none", prices={model_name(model): PRICE})
    project = manager.create("p", config, embed_model=model)
    limit = project.estimate(nodes).dollars
    assert limit
    limit /= 2
    with pytest.raises(BudgetExceededError) as raised:
        project.ingest(nodes, max_cost=limit)
    spent = billed(provider) * PER_TOKEN
    largest = max(record.worked["total_tokens"] for record in provider.embedding_calls if record.worked) * PER_TOKEN
    assert spent <= (limit if factor == 1 else limit + largest)
    assert raised.value.spent == pytest.approx(spent)
    assert project.cost().dollars == pytest.approx(spent)
    advice = {1: "(`estimate` names one)", 2: "(about 2.0 times what", 100: "(about 100 times what"}[factor]
    assert f"a higher max_cost {advice}" in str(raised.value)
    report = project.ingest(nodes, max_cost=factor * 2.1 * limit)
    assert report.failures == ()
    assert len({record.text for record in provider.embedding_calls}) == len(provider.embedding_calls) == 24


def test_the_tokens_of_one_model_do_not_raise_the_reserves_of_another() -> None:
    account = Account(Prices({"a": PRICE, "b": PRICE}), max_cost=1.0)

    async def embed() -> None:
        async with account.embedding("a", 1_000) as first:
            first.counts.append(100_000)
        async with account.embedding("a", 1_000) as second:
            assert account._in_flight == pytest.approx(100_000 * PER_TOKEN)
            second.counts.append(1_000)
        async with account.embedding("b", 1_000) as third:
            assert account._in_flight == pytest.approx(1_000 * PER_TOKEN)
            third.counts.append(1_000)

    asyncio.run(embed())
    assert account.actual.embedding_tokens == 102_000
