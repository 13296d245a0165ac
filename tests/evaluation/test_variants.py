"""Variants of a project: the same documents, built beside it, removed afterwards, paid for once."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ContextKind, ProjectConfig, TokenPrice
from llama_index_contextual.errors import InputError, NoVersionError, ProjectLockedError
from llama_index_contextual.evaluation.compare import workspace
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.evaluation.run import VariantProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.project_file import write_lock
from tests.evaluation.support import QUESTIONS
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

PRICES = {"ScriptedLLM:scripted": TokenPrice(input=2.0, cached=0.5, output=8.0)}


@pytest.fixture
def filled(project: Project, text_folder: Path) -> Project:
    project.ingest([text_folder])
    return project


def names_in(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_the_variants_differ_in_context_only_and_are_removed(filled: Project) -> None:
    live = filled.versions()
    found = filled.compare(QUESTIONS, variants=("none", "structural"), ks=[1, 3])
    assert found.names == ["none", "structural"]
    for name, has_context in (("none", False), ("structural", True)):
        chunks = [chunk for result in found[name].results for chunk in result.results]
        assert all((chunk.context is not None) == has_context for chunk in chunks)
    assert found.costs == {"none": 0.0, "structural": 0.0}
    assert found.notes == ("2 of 2 documents, 2 chunks, 2 questions.",)
    assert filled.versions() == live
    assert names_in(filled.directory.parent) == {filled.name}


def test_a_variant_answers_as_a_project_with_its_settings(
    filled: Project, manager: ProjectManager, text_folder: Path
) -> None:
    found = filled.compare(QUESTIONS, variants=("none", "structural"), ks=[3])
    plain = manager.create("plain", ProjectConfig.local(context="none"))
    plain.ingest([text_folder])
    for result in found["none"].results:
        expected = plain.retrieve(result.question.text, top_k=3)
        assert [(c.node_id, c.score) for c in result.results] == [(c.node_id, c.score) for c in expected]


def test_contexts_are_paid_for_once_and_their_cost_is_known(manager: ProjectManager, text_folder: Path) -> None:
    with LoopbackProvider() as provider, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-test")
        patch.setenv("OPENAI_API_BASE", provider.api_base)
        project = manager.create("a", ProjectConfig.local(llm="openai:gpt-4.1"))
        project.ingest([text_folder])
        first = project.compare(QUESTIONS, variants=("none", "llm"), ks=[3])
        asked = len(provider.calls())
        again = project.compare(QUESTIONS, variants=("none", "llm"), ks=[3])
        assert asked == 2
        assert len(provider.calls()) == asked
    assert first.costs == again.costs
    assert first.costs["none"] == 0
    assert first.costs["llm"] is not None
    assert first.costs["llm"] > 0
    assert project.info().ledger.contexts == 2


def test_chunks_whose_context_failed_are_noted(manager: ProjectManager, text_folder: Path) -> None:
    llm = ScriptedLLM()
    llm.enqueue(*[ValueError("no")] * 2)
    project = manager.create("a", ProjectConfig.local(), llm=llm)
    project.ingest([text_folder])
    found = project.compare(QUESTIONS, variants=("none", "llm"), ks=[3])
    assert "The LLM failed for 2 chunks of 'llm': their context is structural." in found.notes


def test_progress_says_what_is_being_done(filled: Project) -> None:
    told: list[VariantProgress] = []
    filled.compare(QUESTIONS, variants=("none", "structural"), progress=told.append)
    stages = list(dict.fromkeys((p.stage, p.name) for p in told))
    assert stages == [("price", ""), ("build", "none"), ("ask", "")]
    assert (told[-1].done, told[-1].total) == (4, 4)


# ---- a sample ------------------------------------------------------------------------------------------------------


def test_a_sample_keeps_documents_with_evidence_and_their_questions(filled: Project) -> None:
    asked = [
        Question(id="a", text="error TS-999", evidence=[Evidence(file="manual.txt", text="the pump runs dry")]),
        Question(id="b", text="revenue", evidence=[Evidence(file="quarter.md", text="grew by 3 %")]),
    ]
    found = filled.compare(asked, variants=("none", "structural"), sample=1)
    assert len(found["none"].results) == 1
    assert {c.source.file_name for r in found["none"].results for c in r.results} <= {"manual.txt", "quarter.md"}
    assert found.notes[0] == (
        "1 of 2 documents, 1 chunk, 1 question. Left out because of evidence outside the sample: 1 question."
    )
    assert found["structural"].mean("recall@1") == 1


def test_a_sample_as_large_as_the_project_is_the_project(filled: Project) -> None:
    found = filled.compare(QUESTIONS, variants=("none", "structural"), sample=2)
    assert found.notes == ("2 of 2 documents, 2 chunks, 2 questions.",)


def test_evidence_that_is_a_chunk_places_its_question_too(filled: Project) -> None:
    chunk = filled.retrieve("TS-999", top_k=1)[0]
    asked = [Question(text="error TS-999", evidence=[Evidence(chunk_id=chunk.node_id)])]
    found = filled.compare(asked, variants=("none", "structural"), sample=1)
    assert found["none"].mean("recall@1") == found["structural"].mean("recall@1") == 1


@pytest.mark.parametrize(("size", "message"), [(0, "use at least one"), (1, "use a larger one")])
def test_a_sample_without_any_question_is_an_error(filled: Project, size: int, message: str) -> None:
    both = [Evidence(file="manual.txt", text="pump"), Evidence(file="quarter.md", text="revenue")]
    with pytest.raises(InputError, match=message):
        filled.compare([Question(text="?", evidence=both)], variants=("none", "structural"), sample=size)


# ---- the price before ----------------------------------------------------------------------------------------------


def test_nothing_is_sent_when_it_would_cost_more_than_allowed(filled: Project) -> None:
    llm = ScriptedLLM()
    filled._llm = llm
    filled.config = filled.config.changed(prices=PRICES)
    with pytest.raises(InputError, match=r"2 documents would cost about \$0\.00\d\d, more than max_cost \(\$0\.0001\)"):
        filled.compare(QUESTIONS, max_cost=0.0001)
    filled.config = filled.config.changed(prices={})
    with pytest.raises(InputError, match="cannot be estimated: set the prices of the models"):
        filled.compare(QUESTIONS, max_cost=0.0001)
    assert llm.history == []
    filled.compare(QUESTIONS)
    assert len(llm.history) == 2


def test_the_price_is_told_before_anything_is_built_and_can_stop_it(filled: Project) -> None:
    llm = ScriptedLLM()
    filled._llm = llm
    filled.config = filled.config.changed(prices=PRICES)
    prices: list[float | None] = []

    def stop_at_the_price(progress: VariantProgress) -> None:
        assert progress.stage == "price"
        prices.append(progress.dollars)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled.compare(QUESTIONS, progress=stop_at_the_price)
    assert prices[0] is not None
    assert prices[0] > 0
    assert llm.history == []
    assert names_in(filled.directory.parent) == {filled.name}


def test_a_sweep_is_priced_before_anything_is_built(filled: Project) -> None:
    llm = ScriptedLLM()
    filled._llm = llm
    filled.config = filled.config.changed(prices=PRICES)
    told: list[VariantProgress] = []
    with pytest.raises(InputError, match=r"2 documents would cost about \$0\.00\d\d, more than max_cost"):
        filled.sweep(QUESTIONS, contexts=["llm"], chunk_sizes=[20], max_cost=0.0001, progress=told.append)
    assert told == []
    assert llm.history == []
    filled.sweep(QUESTIONS, contexts=["llm"], chunk_sizes=[800], max_cost=1.0, progress=told.append)
    assert told[0].stage == "price"
    assert told[0].dollars is not None
    assert 0 < told[0].dollars < 1
    assert told[-1].name == "llm, 800 tokens"


def test_a_sample_says_what_all_documents_would_cost(filled: Project) -> None:
    filled._llm = ScriptedLLM()
    filled.config = filled.config.changed(prices=PRICES)
    kinds: list[ContextKind] = ["none", "structural", "llm"]
    found = filled.compare([QUESTIONS[1]], variants=kinds, sample=1)
    (price,) = [note for note in found.notes if "would cost" in note]
    assert re.fullmatch(r"'llm' for all 2 documents would cost about \$0\.00\d\d more\.", price)
    filled.config = filled.config.changed(prices={})
    found = filled.compare([QUESTIONS[1]], variants=kinds, sample=1)
    assert "'llm' for all 2 documents would cost an unknown amount more." in found.notes


def test_without_an_llm_and_with_the_local_embedding_nothing_is_spent(filled: Project) -> None:
    told: list[VariantProgress] = []
    filled.compare(QUESTIONS, variants=("none", "structural"), max_cost=0.0, progress=told.append)
    assert told[0].dollars == 0


# ---- without questions ---------------------------------------------------------------------------------------------


def test_without_questions_the_llm_writes_some_and_their_chunk_is_the_evidence(
    manager: ProjectManager, text_folder: Path
) -> None:
    llm = ScriptedLLM(default="1. What does TS-999 mean?\n2. Which valve is closed?\n3. One too many?")
    project = manager.create("a", ProjectConfig.local(), llm=llm)
    project.ingest([text_folder])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = project.compare(variants=("none", "structural"), number=3, ks=[3])
    asked = [result.question for result in found["none"].results]
    assert [question.text for question in asked[:2]] == ["What does TS-999 mean?", "Which valve is closed?"]
    assert len(asked) == 3
    assert len(llm.history) == 2
    for question in asked:
        (item,) = question.evidence
        assert item.file is not None
        assert item.span is not None
        assert project.read(item.file, *item.span) in "".join(llm.history)
    context = project.retrieve("TS-999", top_k=1)[0].context
    assert context
    assert not any(context in prompt for prompt in llm.history)
    assert found.notes[-1] == "The questions were written by ScriptedLLM:scripted, each from one chunk."


def test_an_llm_that_writes_no_question_is_an_error(manager: ProjectManager, text_folder: Path) -> None:
    project = manager.create("a", ProjectConfig.local(), llm=ScriptedLLM(default="\n"))
    project.ingest([text_folder])
    with pytest.raises(InputError, match="wrote no question"):
        project.compare(variants=("none", "structural"))


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variants", [("none",), (), ("none", "none"), ("none", "best")])
def test_variants_are_two_or_three_of_three(filled: Project, variants: Any) -> None:
    with pytest.raises(InputError, match="give two or three of none, structural, llm"):
        filled.compare(QUESTIONS, variants=variants)


def test_an_empty_project_has_nothing_to_compare(project: Project) -> None:
    with pytest.raises(NoVersionError):
        project.compare(QUESTIONS, variants=("none", "structural"))
    assert names_in(project.directory.parent) == {project.name}


def test_an_error_leaves_nothing_behind(filled: Project) -> None:
    with pytest.raises(InputError, match="no metric"):
        filled.compare(QUESTIONS, variants=("none", "structural"), metric="f1")
    assert names_in(filled.directory.parent) == {filled.name}


@pytest.mark.parametrize("stage", ["build", "ask"])
def test_ctrl_c_leaves_nothing_behind_and_the_project_as_it_was(filled: Project, stage: str) -> None:
    def interrupt(progress: VariantProgress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    live = filled.versions()
    with pytest.raises(KeyboardInterrupt):
        filled.compare(QUESTIONS, variants=("none", "structural"), progress=interrupt)
    assert names_in(filled.directory.parent) == {filled.name}
    assert filled.versions() == live
    assert filled.compare(QUESTIONS, variants=("none", "structural")).names == ["none", "structural"]


def test_what_an_interrupted_comparison_left_is_removed(filled: Project) -> None:
    left = filled.directory.with_name(f".{filled.name}.compare") / "1" / "versions"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    assert filled.compare(QUESTIONS, variants=("none", "structural")).names == ["none", "structural"]
    assert names_in(filled.directory.parent) == {filled.name}


def test_two_comparisons_of_one_project_do_not_share_their_place(filled: Project) -> None:
    with workspace(filled._origin()), pytest.raises(ProjectLockedError):
        filled.compare(QUESTIONS, variants=("none", "structural"))


def test_a_project_that_is_being_written_is_not_built_anew(filled: Project) -> None:
    with write_lock(filled.directory), pytest.raises(ProjectLockedError, match="'reports'"):
        filled.compare(QUESTIONS, variants=("none", "structural"))
    assert names_in(filled.directory.parent) == {filled.name}


def test_the_place_of_a_comparison_is_no_project(filled: Project, manager: ProjectManager) -> None:
    with workspace(filled._origin()):
        assert manager.list() == [filled.name]


# ---- a sweep -------------------------------------------------------------------------------------------------------


def test_a_sweep_has_a_row_for_every_combination(filled: Project) -> None:
    found = filled.sweep(
        QUESTIONS, chunk_sizes=[20, 800], contexts=["none", "structural"], modes=["lexical", "hybrid"], top_ks=[1, 3]
    )
    keys = [(row.context, row.chunk_size, row.mode, row.top_k) for row in found.rows]
    assert keys == [
        (context, size, mode, k)
        for context in ("none", "structural")
        for size in (20, 800)
        for mode in ("lexical", "hybrid")
        for k in (1, 3)
    ]
    small, large = found.rows[0], found.rows[4]
    assert small.chunks > large.chunks == 2
    assert small.tokens < large.tokens
    assert names_in(filled.directory.parent) == {filled.name}


def test_a_row_says_what_an_evaluation_of_that_setting_says(filled: Project) -> None:
    from llama_index_contextual.evaluation.run import evaluate

    (row,) = filled.sweep(QUESTIONS, modes=["hybrid"], top_ks=[2]).rows
    expected = evaluate(filled, QUESTIONS, ks=[2])
    assert row.recall == expected.mean("recall@2")
    assert row.precision == expected.mean("precision@2")
    counts = [sum(c.node.metadata["token_count"] for c in r.results) for r in expected.results]
    assert row.tokens == sum(counts) / len(counts)


def test_the_best_setting_has_the_highest_recall_at_the_largest_k(filled: Project) -> None:
    found = filled.sweep(QUESTIONS, contexts=["none", "structural"], top_ks=[1, 3])
    best = found.best()
    assert best.top_k == 3
    assert best.recall == max(row.recall for row in found.rows if row.top_k == 3)
    assert found.best(1).top_k == 1


def test_chunks_of_several_sizes_cannot_be_evidence(filled: Project) -> None:
    asked = [Question(text="?", evidence=[Evidence(chunk_id="c")])]
    with pytest.raises(InputError, match="chunks of another size have other ids"):
        filled.sweep(asked, chunk_sizes=[400, 800])


def test_a_sweep_of_nothing_is_an_error(filled: Project) -> None:
    with pytest.raises(InputError, match="no settings to evaluate"):
        filled.sweep(QUESTIONS, modes=[])
    with pytest.raises(InputError, match="no settings to evaluate"):
        filled.sweep(QUESTIONS, top_ks=[0])
