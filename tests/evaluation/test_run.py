"""A retriever on a question set: every figure from the arithmetic, failures with what came instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import compare
from llama_index_contextual.evaluation.questions import Evidence, Question, write_questions
from llama_index_contextual.evaluation.run import assert_recall, evaluate
from llama_index_contextual.project.project import Project
from tests.evaluation.support import QUESTIONS, FixedRetriever, by_id
from tests.support.models import CountingEmbedding

ASKED = [by_id("one", "a"), by_id("two", "b", "c"), by_id("three", "d")]
ANSWERS = {"one": ["a", "x"], "two": ["x", "c", "y"], "three": []}


def test_every_figure_follows_from_the_ranks() -> None:
    found = evaluate(FixedRetriever(ANSWERS), ASKED, ks=[1, 5])
    assert [list(result.ranks) for result in found.results] == [[1], [None, 2], [None]]
    assert found.mean("recall@1") == pytest.approx((1 + 0 + 0) / 3)
    assert found.mean("recall@5") == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert found.mean("precision@5") == pytest.approx((1 / 5 + 1 / 5 + 0) / 3)
    assert found.mean("hit@5") == pytest.approx(2 / 3)
    assert found.mean("MRR") == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert found.mean("MAP") == pytest.approx((1 + (1 / 2) / 2 + 0) / 3)
    assert list(found.values("recall@5")) == [1, 0.5, 0]


def test_an_empty_retrieval_counts_as_zero_in_every_metric() -> None:
    found = evaluate(FixedRetriever({}), ASKED)
    assert {found.mean(metric) for metric in found.metrics} == {0.0}


def test_failed_questions_come_with_what_came_instead_worst_first() -> None:
    failed = evaluate(FixedRetriever(ANSWERS), ASKED, ks=[5]).failures()
    assert [result.question.text for result in failed] == ["three", "two"]
    assert [chunk.node_id for chunk in failed[1].hard_negatives(5)] == ["x", "y"]
    assert [chunk.node_id for chunk in failed[1].hard_negatives(1)] == ["x"]
    assert failed[0].hard_negatives(5) == []


def test_what_is_shown_in_a_notebook_is_a_line_with_the_figures() -> None:
    found = evaluate(FixedRetriever(ANSWERS), ASKED, name="mine", ks=[1, 5])
    shown = repr(found)
    assert shown.startswith("mine, 3 questions, in per cent: recall@1 33.3, recall@5 50.0, MRR 50.0, nDCG@5 ")
    assert "p50 " in shown
    assert "\n" not in shown
    assert repr(found.results[1]) == "QuestionResult('two': not found, rank 2 in 3 results)"
    both = repr(compare({"mine": FixedRetriever(ANSWERS), "other": FixedRetriever({})}, ASKED, ks=[5])).splitlines()
    assert [line.partition(",")[0] for line in both[:2]] == ["mine", "other"]
    assert both[2].startswith("Use 'mine'")


def test_no_more_results_are_looked_at_than_the_largest_k() -> None:
    found = evaluate(FixedRetriever({"one": ["x", "y", "a"]}), ASKED[:1], ks=[2])
    assert len(found.results[0].results) == 2
    assert found.mean("recall@2") == 0


def test_response_times_are_percentiles_of_the_questions() -> None:
    found = evaluate(FixedRetriever(ANSWERS), ASKED)
    slowest = max(result.seconds for result in found.results)
    assert 0 < found.response_time(50) <= found.response_time(95) <= slowest == found.response_time(100)


def test_context_relevance_is_the_mean_similarity_with_the_first_passages() -> None:
    model = CountingEmbedding()
    questions = [by_id("text of a", "a"), by_id("nothing alike", "b"), by_id("none", "c")]
    found = evaluate(FixedRetriever({"text of a": ["a"], "nothing alike": ["b"]}), questions, embed_model=model)
    values = [result.context_relevance for result in found.results]
    assert values[0] == pytest.approx(1.0)
    assert values[1] < 0.5
    assert values[2] == 0
    assert found.context_relevance == pytest.approx(sum(values) / 3)


def test_a_passage_that_answers_several_questions_is_embedded_once() -> None:
    model = CountingEmbedding()
    evaluate(FixedRetriever({"one": ["a", "x"], "two": ["x", "a"]}), ASKED, embed_model=model)
    assert sorted(model.texts) == ["Text of a.", "Text of x."]


def test_without_an_embedding_there_is_no_context_relevance() -> None:
    found = evaluate(FixedRetriever(ANSWERS), ASKED)
    assert found.context_relevance is None
    assert found.summary()["context_relevance"] is None


def test_progress_is_told_after_each_question() -> None:
    told: list[tuple[int, int]] = []
    evaluate(FixedRetriever(ANSWERS), ASKED, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_project_is_asked_for_as_many_results_as_are_looked_at(project: Project, text_folder: Path) -> None:
    project.ingest([text_folder])
    found = evaluate(project, QUESTIONS, ks=[1, 3])
    assert found.mean("recall@3") == 1
    assert all(0 < len(result.results) <= 3 for result in found.results)


def test_a_page_of_a_pdf_is_evidence(project: Project, tiny_folder: Path) -> None:
    project.ingest([tiny_folder])
    asked = [
        Question(
            text="Are exports of bronze fittings free of duty?", evidence=[Evidence(file="tariff.pdf", pages=(n, n))]
        )
        for n in (2, 3)
    ]
    assert list(evaluate(project, asked, ks=[1]).values("recall@1")) == [1, 0]


def test_a_retriever_that_gives_too_few_results_is_not_measured_at_a_larger_k() -> None:
    with pytest.raises(
        InputError, match="returns 5 results, but the evaluation needs 20: create it with similarity_top_k=20"
    ):
        evaluate(FixedRetriever(ANSWERS, similarity_top_k=5), ASKED)
    evaluate(FixedRetriever(ANSWERS, similarity_top_k=5), ASKED, ks=[5])


@pytest.mark.parametrize("metric", ["recall", "recall@0", "recall@21", "recall@x", "MRR@5", "f1@5", "", "recall@²"])
def test_an_unknown_metric_is_an_error_that_names_the_known(metric: str) -> None:
    with pytest.raises(InputError, match="use recall@k, precision@k"):
        evaluate(FixedRetriever(ANSWERS), ASKED).values(metric)


def test_without_questions_or_results_there_is_nothing_to_measure() -> None:
    with pytest.raises(InputError, match="There are no questions"):
        evaluate(FixedRetriever(ANSWERS), [])
    with pytest.raises(InputError, match="at least one number of results"):
        evaluate(FixedRetriever(ANSWERS), ASKED, ks=[0, 5])
    with pytest.raises(InputError, match="at least one number of results"):
        evaluate(FixedRetriever(ANSWERS), ASKED, ks=[])


# ---- in a user's own tests -----------------------------------------------------------------------------------------


def test_recall_that_is_high_enough_passes_and_is_returned() -> None:
    assert assert_recall(FixedRetriever(ANSWERS), ASKED, k=5, at_least=0.5).mean("recall@5") == pytest.approx(0.5)


def test_recall_that_is_too_low_fails_with_the_worst_questions() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_recall(FixedRetriever(ANSWERS), ASKED, k=5, at_least=0.51)
    lines = str(caught.value).splitlines()
    assert lines[0] == "recall@5 is 0.5000, below 0.51; without all evidence: 2 of 3 questions, the worst first:"
    assert lines[1] == "  three 'three': 0.00 of its evidence found; no results"
    assert lines[2] == "  two 'two': 0.50 of its evidence found; best result without evidence: unknown source"


def test_questions_may_be_named_by_their_file(tmp_path: Path) -> None:
    write_questions(ASKED, tmp_path / "q.jsonl")
    assert_recall(FixedRetriever(ANSWERS), tmp_path / "q.jsonl", k=5, at_least=0.5)


def test_a_share_beyond_one_is_an_error_of_the_test_itself() -> None:
    with pytest.raises(InputError, match="recall is between 0 and 1"):
        assert_recall(FixedRetriever(ANSWERS), ASKED, k=5, at_least=90)
