"""Variants of a project: the same documents, built next to it, removed afterwards, paid for once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ContextKind, ProjectConfig
from llama_index_contextual.errors import InputError, ProjectLockedError
from llama_index_contextual.evaluation.compare import VariantProgress, compare_variants, sweep_variants
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.index.project_file import scratch, write_lock
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT
from tests.unit.evaluation.support import QUESTIONS

PRICES = {"ScriptedLLM:scripted": Price(input=2.0, cached=0.5, output=8.0)}
FREE: tuple[ContextKind, ...] = ("none", "structural")


def names_in(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


@pytest.fixture(autouse=True)
def nothing_is_left_behind(filled: Project) -> Iterator[None]:
    """Whatever a test compares, the project is as it was, and nothing is next to it."""
    live = filled.versions()
    yield
    assert names_in(filled.directory.parent) == {filled.name}
    assert filled.versions() == live


@pytest.fixture
def llm(filled: Project) -> ScriptedLLM:
    """The LLM of the project, with a price."""
    filled.state.llm = llm = ScriptedLLM()
    filled.state.config = filled.config.changed(prices=PRICES)
    return llm


@pytest.fixture
def elsewhere(tmp_path: Path) -> ProjectManager:
    """Another root folder of projects."""
    return ProjectManager(tmp_path / "elsewhere")


def test_the_variants_differ_in_context_only_and_cost_nothing_without_an_llm(filled: Project) -> None:
    events: list[VariantProgress] = []
    comparison = compare_variants(filled, QUESTIONS, variants=FREE, ks=[1, 3], max_cost=0.0, progress=events.append)
    assert comparison.names == ["none", "structural"]
    for name, has_context in (("none", False), ("structural", True)):
        chunks = [chunk for result in comparison[name].results for chunk in result.results]
        assert all((chunk.context is not None) == has_context for chunk in chunks)
    assert comparison.costs == {"none": 0.0, "structural": 0.0}
    assert comparison.notes == ("2 of 2 documents, 2 questions.",)
    stages = list(dict.fromkeys((event.stage, event.name) for event in events))
    assert stages == [("price", ""), ("build", "none"), ("ask", "")]
    assert events[0].dollars == 0


def test_on_the_examples_the_free_context_is_recommended(elsewhere: ProjectManager) -> None:
    examples = ROOT / "examples" / "data"
    project = elsewhere.create("examples", ProjectConfig.local())
    project.ingest([examples])
    comparison = compare_variants(project, examples / "questions.jsonl", variants=FREE)
    # recall@10 is near its ceiling for both, and does not tell them apart.
    assert comparison["none"].mean("recall@10") > 0.9
    assert not comparison.difference("none", "structural", "recall@10").significant
    assert comparison.difference("none", "structural").significant
    assert comparison.recommendation.startswith("Use 'structural': it is better than 'none' in nDCG@10 on 23 questions")


def test_a_variant_retrieves_like_a_project_with_its_settings(
    filled: Project, elsewhere: ProjectManager, text_folder: Path
) -> None:
    comparison = compare_variants(filled, QUESTIONS, variants=FREE, ks=[3])
    plain = elsewhere.create("plain", ProjectConfig.local(context="none"))
    plain.ingest([text_folder])
    for result in comparison["none"].results:
        expected = plain.retrieve(result.question.text, top_k=3)
        assert [(c.node_id, c.score) for c in result.results] == [(c.node_id, c.score) for c in expected]


def test_contexts_are_paid_for_once_and_their_cost_is_known(
    elsewhere: ProjectManager, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackProvider() as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_API_BASE", provider.api_base)
        project = elsewhere.create("a", ProjectConfig.local(llm="openai:gpt-4.1"))
        project.ingest([text_folder])
        first, again = (compare_variants(project, QUESTIONS, variants=("none", "llm"), ks=[3]) for _ in range(2))
        assert len(provider.calls()) == 2
    assert first.costs == again.costs
    assert first.costs["none"] == 0
    assert first.costs["llm"] > 0
    assert project.info().ledger.contexts == 2


def test_chunks_whose_context_failed_are_noted(filled: Project, llm: ScriptedLLM) -> None:
    llm.enqueue(*[ValueError("no")] * 2)
    comparison = compare_variants(filled, QUESTIONS, variants=("none", "llm"), ks=[3])
    assert "The LLM failed for 2 chunks of 'llm': their context is structural." in comparison.notes


# ---- a sample ------------------------------------------------------------------------------------------------------


def test_a_sample_keeps_documents_with_evidence_and_their_questions(filled: Project) -> None:
    calls = [
        Question(id="a", text="error TS-999", evidence=[Evidence(file="manual.txt", text="the pump runs dry")]),
        Question(id="b", text="revenue", evidence=[Evidence(file="quarter.md", text="grew by 3 %")]),
    ]
    comparison = compare_variants(filled, calls, variants=FREE, sample=1)
    assert len(comparison["none"].results) == 1
    assert comparison.notes[:2] == (
        "1 of 2 documents, 1 question.",
        "Left out because of evidence outside the sample: 1 question.",
    )
    assert comparison["structural"].mean("recall@1") == 1
    assert compare_variants(filled, calls, variants=FREE, sample=2).notes == ("2 of 2 documents, 2 questions.",)


@pytest.mark.parametrize(("size", "message"), [(0, "use at least one"), (1, "use a larger one")])
def test_a_sample_without_any_question_is_an_error(filled: Project, size: int, message: str) -> None:
    both = [Evidence(file="manual.txt", text="pump"), Evidence(file="quarter.md", text="revenue")]
    with pytest.raises(InputError, match=message):
        compare_variants(filled, [Question(text="?", evidence=both)], variants=FREE, sample=size)


# ---- cost estimate -------------------------------------------------------------------------------------------------


def test_nothing_is_sent_if_the_cost_exceeds_the_limit(filled: Project, llm: ScriptedLLM) -> None:
    events: list[VariantProgress] = []
    message = r"would cost about \$0\.00\d\d, more than the limit of \$0\.0001"
    with pytest.raises(InputError, match=message):
        compare_variants(filled, QUESTIONS, max_cost=0.0001)
    with pytest.raises(InputError, match=message):
        sweep_variants(filled, QUESTIONS, contexts=["llm"], chunk_sizes=[20], max_cost=0.0001, progress=events.append)
    filled.state.config = filled.config.changed(prices={})
    with pytest.raises(InputError, match="cannot be estimated: set the prices of the models"):
        compare_variants(filled, QUESTIONS, max_cost=0.0001)
    assert (events, llm.history) == ([], [])
    compare_variants(filled, QUESTIONS)
    assert len(llm.history) == 2


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["build", "ask"])
def test_ctrl_c_leaves_nothing_behind_and_the_project_as_it_was(filled: Project, stage: str) -> None:
    def interrupt(progress: VariantProgress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_variants(filled, QUESTIONS, variants=FREE, progress=interrupt)
    assert names_in(filled.directory.parent) == {filled.name}
    assert compare_variants(filled, QUESTIONS, variants=FREE).names == ["none", "structural"]


def test_a_project_that_is_compared_or_written_to_is_not_compared(filled: Project, manager: ProjectManager) -> None:
    with scratch(filled.directory):
        assert manager.list() == [filled.name], "the temporary directory is not a project"
        with pytest.raises(ProjectLockedError):
            compare_variants(filled, QUESTIONS, variants=FREE)
    with write_lock(filled.directory), pytest.raises(ProjectLockedError, match="'reports'"):
        compare_variants(filled, QUESTIONS, variants=FREE)


# ---- a sweep -------------------------------------------------------------------------------------------------------


def test_a_sweep_has_a_row_for_every_combination_and_the_best_has_the_highest_recall(filled: Project) -> None:
    sweep = sweep_variants(
        filled, QUESTIONS, chunk_sizes=[20, 800], contexts=[*FREE], modes=["lexical", "hybrid"], top_ks=[1, 3]
    )
    keys = [(row.context, row.chunk_size, row.mode, row.top_k) for row in sweep.rows]
    assert keys == [
        (c, size, mode, k) for c in FREE for size in (20, 800) for mode in ("lexical", "hybrid") for k in (1, 3)
    ]
    small, large = sweep.rows[0].figures, sweep.rows[4].figures
    assert small["chunks"] > large["chunks"] == 2
    assert small["tokens"] < large["tokens"]
    highest = max(row.figures["recall"] for row in sweep.rows)
    fewest = min(row.top_k for row in sweep.rows if row.figures["recall"] == highest)
    assert (sweep.best().figures["recall"], sweep.best().top_k) == (highest, fewest)


@pytest.mark.parametrize(
    ("evidence", "options", "message"),
    [
        ({"chunk_id": "c"}, {"chunk_sizes": [400, 800]}, "chunks of another size have other ids"),
        ({"text": "pump"}, {"modes": []}, "nothing to evaluate"),
        ({"text": "pump"}, {"top_ks": [0]}, "nothing to evaluate"),
    ],
)
def test_a_sweep_that_cannot_be_evaluated_is_an_error(
    filled: Project, evidence: dict[str, str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        sweep_variants(filled, [Question(text="?", evidence=[Evidence(**evidence)])], **options)
