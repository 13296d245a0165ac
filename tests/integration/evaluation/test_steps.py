"""Steps of a project: what each one searches, what it costs, and which ones are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_contextual.config import DEFAULT_LLM, ContextKind, Mode, ProjectConfig
from llama_index_contextual.errors import ConfigurationError, InputError, ModelError
from llama_index_contextual.evaluation.compare import (
    VariantProgress,
    compare,
    compare_variants,
    rerank_price,
    sweep_variants,
)
from llama_index_contextual.evaluation.run import KS, evaluate
from llama_index_contextual.evaluation.steps import (
    EMBEDDINGS,
    LEXICAL,
    LLM_CONTEXT,
    RERANKER,
    SENTENCE,
    STRUCTURAL,
    WITHOUT_LLM,
    Steps,
    evaluate_steps,
    telling_cutoff,
)
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import write_texts
from tests.support.models import ScriptedLLM
from tests.unit.evaluation.support import QUESTIONS, FixedRetriever, by_id

PRICES = {"ScriptedLLM:scripted": Price(input=2.0, output=8.0)}
FREE = [EMBEDDINGS, STRUCTURAL, LEXICAL, SENTENCE]


@pytest.fixture
def llm(filled: Project) -> ScriptedLLM:
    """The LLM of the project, with a price."""
    filled.state.llm = llm = ScriptedLLM()
    filled.state.config = filled.config.changed(prices=PRICES)
    return llm


def first_hits(steps: Steps, name: str) -> list[tuple[str, float | None]]:
    return [(result.results[0].node_id, result.results[0].score) for result in steps[name].results]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "The settings name no LLM: set `llm`. With openai:gpt-6-luna, 2 calls for contexts would cost $0.00"),
        ({"llm": DEFAULT_LLM}, "needs OPENAI_API_KEY, which is not set. 2 calls for contexts would cost $0.00"),
    ],
)
def test_without_an_llm_or_its_key_the_llm_is_skipped_with_its_price_and_the_rest_costs_nothing(
    filled: Project, settings: dict[str, Any], reason: str
) -> None:
    filled.update_config(**settings)
    steps = evaluate_steps(filled, QUESTIONS, k=1)
    assert (steps.names, steps.metric) == (FREE, "recall@1")
    assert steps.prices == dict.fromkeys(FREE, 0.0)
    assert list(steps.skipped) == [LLM_CONTEXT, RERANKER]
    assert reason in steps.skipped[LLM_CONTEXT]
    assert steps.skipped[RERANKER] == "No model is named: use the `rerank` option or setting."


def test_each_step_searches_like_a_project_with_its_settings(
    filled: Project, manager: ProjectManager, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = evaluate_steps(filled, QUESTIONS, k=1)
    folder = write_texts(tmp_path / "texts")
    settings: dict[str, tuple[ContextKind, Mode, str | None]] = {
        EMBEDDINGS: ("none", "semantic", None),
        STRUCTURAL: ("structural", "semantic", None),
        LEXICAL: ("structural", "hybrid", None),
        SENTENCE: ("structural", "hybrid", "spotlight"),
    }
    elsewhere = ProjectManager(tmp_path / "elsewhere")
    for at, (name, (context, mode, rerank)) in enumerate(settings.items()):
        project = elsewhere.create(f"p{at}", ProjectConfig.local(context=context, mode=mode, rerank=rerank))
        project.ingest([folder])
        hits = [project.retrieve(question.text, top_k=1)[0] for question in QUESTIONS]
        assert [score for _, score in first_hits(steps, name)] == [hit.score for hit in hits], name


def test_contexts_are_paid_for_once_and_compared_with_the_steps_without_them(filled: Project, llm: ScriptedLLM) -> None:
    first = evaluate_steps(filled, QUESTIONS, k=1)
    assert first.names == [EMBEDDINGS, STRUCTURAL, LLM_CONTEXT, LEXICAL, SENTENCE, WITHOUT_LLM]
    price = first.prices[LLM_CONTEXT]
    assert price is not None
    assert price > 0
    assert sum(dollars or 0 for dollars in first.prices.values()) == price
    assert len(llm.history) == 2
    for name, has_context in ((LEXICAL, True), (WITHOUT_LLM, False)):
        chunks = [chunk for result in first[name].results for chunk in result.results]
        assert all((chunk.written_context == llm.default) == has_context for chunk in chunks)
    filled.state.config = filled.config.changed(prices={})
    filled.state.llm = llm
    again = evaluate_steps(filled, QUESTIONS, k=1, max_cost=0.0)
    assert again.prices == dict.fromkeys(first.names, 0.0)
    assert len(llm.history) == 2


def test_a_limit_of_0_measures_what_costs_nothing(filled: Project, llm: ScriptedLLM) -> None:
    steps = evaluate_steps(filled, QUESTIONS, k=1, max_cost=0.0)
    assert steps.names == FREE
    assert steps.skipped[LLM_CONTEXT].endswith(", and the limit is $0.00.")
    assert llm.history == []


def test_a_reranker_is_the_last_step_and_its_price_is_included(filled: Project, llm: ScriptedLLM) -> None:
    events: list[VariantProgress] = []
    llm.default = "[2, 1]"
    with pytest.raises(InputError, match="would cost about"):
        evaluate_steps(filled, QUESTIONS, k=1, rerank="llm", max_cost=0.0, progress=events.append)
    assert (events, llm.history) == ([], [])
    without = evaluate_steps(filled, QUESTIONS, k=1, rerank="llm", max_cost=0.2129)
    assert without.names == [*FREE, RERANKER]
    assert without.skipped[LLM_CONTEXT].endswith(", the other steps $0.21, and the limit is $0.21.")
    steps = evaluate_steps(filled, QUESTIONS, k=1, rerank="llm", max_cost=0.3, progress=events.append)
    # 2 questions with 50 passages of at most 520 tokens, each read twice: 104,000 tokens in, 600 out
    assert steps.prices[RERANKER] == pytest.approx((104_000 * 2 + 600 * 8) / 1e6)
    assert rerank_price(filled.state, "llm", len(QUESTIONS), 100) == pytest.approx(2 * (steps.prices[RERANKER] or 0))
    assert events[0].dollars == pytest.approx(sum(dollars or 0 for dollars in steps.prices.values()))
    assert steps.names[-2:] == [RERANKER, WITHOUT_LLM]
    turned = [node_id for node_id, _ in first_hits(steps, RERANKER)]
    assert all(one != other for one, (other, _) in zip(turned, first_hits(steps, SENTENCE), strict=True))


def test_a_reranker_that_cannot_be_loaded_is_an_error_before_anything_is_built(
    filled: Project, llm: ScriptedLLM, tmp_path: Any
) -> None:
    events: list[VariantProgress] = []
    for method in (evaluate_steps, compare_variants):
        with pytest.raises(ModelError, match=r"there is no such folder"):
            method(filled, QUESTIONS, rerank=str(tmp_path / "absent"), progress=events.append)  # type: ignore[operator]
    assert (events, llm.history) == ([], [])


def test_a_reranker_of_which_no_model_is_on_this_machine_is_skipped(
    filled: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_index_contextual.search.rerank.local_models", lambda *_: iter(()))
    reason = evaluate_steps(filled, QUESTIONS, k=1, rerank="auto").skipped[RERANKER]
    assert reason.startswith("rerank='auto' selects no model: there is no cross-encoder on this machine: install")


def test_the_spotlight_is_skipped_where_it_has_no_effect(filled: Project) -> None:
    filled.update_config(fusion="rrf")
    assert evaluate_steps(filled, QUESTIONS, k=1).skipped[SENTENCE] == "It has no effect with fusion='rrf'."


def test_a_project_without_embeddings_has_no_steps(filled: Project) -> None:
    filled.update_config(indexes="lexical")
    with pytest.raises(ConfigurationError, match="builds a lexical index only: set indexes='hybrid'"):
        evaluate_steps(filled, QUESTIONS)


# ---- the `rerank` option of the other evaluations ------------------------------------------------------------------


def test_a_comparison_and_a_sweep_can_use_other_rerankers(filled: Project) -> None:
    comparison = compare_variants(filled, QUESTIONS, variants=["none", "structural"], rerank="none")
    plain = evaluate(filled, QUESTIONS, rerank="none")
    assert [r.results for r in comparison["structural"].results] == [r.results for r in plain.results]
    sweep = sweep_variants(filled, QUESTIONS, reranks=["none", "spotlight"], modes=["hybrid"], top_ks=[1, 5])
    assert [(row.rerank, row.top_k) for row in sweep.rows] == [
        (rerank, k) for rerank in (None, "spotlight") for k in (1, 5)
    ]
    assert [row["rerank"] for row in sweep.table()][:2] == ["none", "none"]
    assert sweep_variants(filled, QUESTIONS, modes=["hybrid"], top_ks=[1]).rows[0].rerank == "spotlight"


def test_steps_are_compared_at_the_most_results_at_which_they_differ() -> None:
    first, third = FixedRetriever({"q": ["a", "b", "c"]}), FixedRetriever({"q": ["b", "c", "a"]})
    comparison = compare({"first": first, "third": third}, [by_id("q", "a")], ks=KS, metric="recall@20")
    assert telling_cutoff(comparison, KS) == 1
    assert telling_cutoff(comparison, (5, 20)) == 20
