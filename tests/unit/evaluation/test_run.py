"""Evaluations: every figure from the arithmetic, and failures with their hard negatives."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import compare
from llama_index_contextual.evaluation.questions import Question
from llama_index_contextual.evaluation.run import assert_recall, evaluate
from tests.support.models import CountingEmbedding
from tests.unit.evaluation.support import FixedRetriever, by_id

ASKED = [by_id("one", "a"), by_id("two", "b", "c"), by_id("three", "d")]
ANSWERS = {"one": ["a", "x"], "two": ["x", "c", "y"], "three": []}


def test_every_figure_follows_from_the_ranks() -> None:
    evaluation = evaluate(FixedRetriever(ANSWERS), ASKED, ks=[1, 5])
    assert [list(result.ranks) for result in evaluation.results] == [[1], [None, 2], [None]]
    assert evaluation.mean("recall@1") == pytest.approx((1 + 0 + 0) / 3)
    assert evaluation.mean("recall@5") == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert evaluation.mean("precision@5") == pytest.approx((1 / 5 + 1 / 5 + 0) / 3)
    assert evaluation.mean("MRR") == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert evaluation.mean("ndcg@5") == evaluation.mean("NDCG@5") == evaluation.mean("nDCG@5")
    assert (evaluation.mean("mrr"), evaluation.mean("Recall@5")) == (
        evaluation.mean("MRR"),
        evaluation.mean("recall@5"),
    )
    assert list(evaluation.values("recall@5")) == [1, 0.5, 0]
    assert evaluation.context_relevance is None, "without an embedding model"
    empty = evaluate(FixedRetriever({}), ASKED)
    assert {empty.mean(metric) for metric in empty.metrics} == {0.0}


def test_failures_are_sorted_worst_first_and_list_hard_negatives() -> None:
    failed = evaluate(FixedRetriever(ANSWERS), ASKED, ks=[5]).failures()
    assert [result.question.text for result in failed] == ["three", "two"]
    assert [chunk.node_id for chunk in failed[1].hard_negatives(5)] == ["x", "y"]
    assert [chunk.node_id for chunk in failed[1].hard_negatives(1)] == ["x"]
    assert failed[0].hard_negatives(5) == []


def test_repr_has_the_figures() -> None:
    compared = compare({"mine": FixedRetriever(ANSWERS), "other": FixedRetriever({})}, ASKED, ks=[1, 5])
    assert repr(compared["mine"]).startswith("mine, 3 questions, in per cent: recall@1 33.3, recall@5 50.0, MRR 50.0")
    assert [line.partition(" ")[0] for line in repr(compared).splitlines()] == ["mine,", "other,", "Use"]


def test_response_times_are_percentiles_of_the_questions() -> None:
    evaluation = evaluate(FixedRetriever(ANSWERS), ASKED)
    slowest = max(result.seconds for result in evaluation.results)
    assert 0 < evaluation.response_time(50) <= evaluation.response_time(95) <= slowest == evaluation.response_time(100)


def test_context_relevance_is_the_mean_similarity_with_the_first_passages() -> None:
    model = CountingEmbedding()
    questions = [by_id("text of a", "a"), by_id("nothing alike", "b"), by_id("none", "c")]
    evaluation = evaluate(FixedRetriever({"text of a": ["a"], "nothing alike": ["b"]}), questions, embed_model=model)
    values = [result.context_relevance for result in evaluation.results]
    assert values[0] == pytest.approx(1.0)
    assert values[1] < 0.5
    assert values[2] == 0
    assert evaluation.context_relevance == pytest.approx(sum(values) / 3)


def test_a_passage_that_answers_several_questions_is_embedded_once() -> None:
    model = CountingEmbedding()
    evaluate(FixedRetriever({"one": ["a", "x"], "two": ["x", "a"]}), ASKED, embed_model=model)
    assert sorted(model.texts) == ["Text of a.", "Text of x."]


def test_a_retriever_with_a_smaller_top_k_than_evaluated_is_an_error() -> None:
    with pytest.raises(
        InputError, match="returns 5 results, but the evaluation needs 20: create it with similarity_top_k=20"
    ):
        evaluate(FixedRetriever(ANSWERS, similarity_top_k=5), ASKED)
    evaluate(FixedRetriever(ANSWERS, similarity_top_k=5), ASKED, ks=[5])


@pytest.mark.parametrize("metric", ["recall", "recall@0", "recall@21", "recall@x", "MRR@5", "f1@5", "", "recall@²"])
def test_an_unknown_metric_is_an_error_that_names_the_known(metric: str) -> None:
    with pytest.raises(InputError, match="use recall@k, precision@k"):
        evaluate(FixedRetriever(ANSWERS), ASKED).values(metric)


@pytest.mark.parametrize(
    ("asked", "ks", "message"),
    [
        ([], [5], "There are no questions"),
        (ASKED, [0, 5], "give at least one, each at least 1"),
        (ASKED, [], "give at least one, each at least 1"),
    ],
)
def test_an_empty_question_set_or_invalid_ks_are_errors(asked: list[Question], ks: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(FixedRetriever(ANSWERS), asked, ks=ks)


# ---- assert_recall -------------------------------------------------------------------------------------------------


def test_recall_that_is_too_low_fails_with_the_worst_questions() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_recall(FixedRetriever(ANSWERS), ASKED, k=5, at_least=0.51)
    lines = str(caught.value).splitlines()
    assert lines[0] == "recall@5 is 0.5000, below 0.51; without all evidence: 2 of 3 questions, the worst first:"
    assert lines[1] == "  three 'three': 0.00 of its evidence"
    assert lines[2] == "  two 'two': 0.50 of its evidence"


def test_a_minimum_recall_above_one_is_an_input_error() -> None:
    with pytest.raises(InputError, match="recall is between 0 and 1"):
        assert_recall(FixedRetriever(ANSWERS), ASKED, k=5, at_least=90)


def test_questions_can_be_dicts_with_the_keys_of_a_line() -> None:
    asked: list[Question | dict[str, Any]] = [ASKED[0], {"question": "two", "id": 2, "relevant": ["b", "c"]}]
    assert evaluate(FixedRetriever(ANSWERS), asked, ks=[1, 5]).mean("recall@5") == pytest.approx((1 + 1 / 2) / 2)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"question": "Why?"}, r"Question 2: The question has no evidence: add "),
        ({"text": "Why?", "relevant": ["a"]}, r'Question 2: has no "question"\.'),
        ("Why?", r'Question 2 is of type str: pass a Question, or a dict with "question" and "relevant": '),
    ],
)
def test_what_is_not_a_question_is_an_input_error_with_its_number(question: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(FixedRetriever(ANSWERS), [ASKED[0], question])
