"""Comparisons of retrievers: differences and the recommendation."""

from __future__ import annotations

import re

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import Comparison, bootstrap_interval, compare, permutation_p_value
from tests.unit.evaluation.support import FixedRetriever, by_id

ASKED = [by_id(f"q{n}", f"a{n}") for n in range(20)]


def retriever(count: int) -> FixedRetriever:
    """Return a retriever that finds the evidence of the first `count` questions."""
    return FixedRetriever({f"q{n}": [f"a{n}" if n < count else "x"] for n in range(20)})


def compare_counts(**counts: int) -> Comparison:
    return compare({name: retriever(number) for name, number in counts.items()}, ASKED, ks=[5])


def test_a_difference_has_mean_interval_and_p_value() -> None:
    difference = compare_counts(none=8, structural=16).difference("none", "structural")
    expected = [0] * 8 + [1] * 8 + [0] * 4
    assert (difference.metric, difference.mean) == ("nDCG@5", pytest.approx(8 / 20))
    assert (difference.low, difference.high) == bootstrap_interval(expected)
    assert difference.p_value == permutation_p_value(expected) == 2 / 2**8
    assert difference.significant
    assert (
        str(difference)
        == f"+40.0 points, 95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, p = 0.0078"
    )


def test_a_significantly_better_retriever_is_recommended_with_its_gain() -> None:
    comparison = compare_counts(none=8, structural=16)
    assert comparison.recommended == "structural"
    assert comparison.recommendation.startswith(
        "Use 'structural': it is better than 'none' in nDCG@5 on 20 questions (+40.0 points"
    )
    assert comparison.recommendation.endswith("p = 0.0078).")


def test_without_a_gain_that_is_significant_the_recommendation_says_what_the_questions_can_show() -> None:
    # 2 of 20 differences are 1, the others 0: s² = (2 - 20 * 0.1²) / 19 = 0.0947, s = 0.3078.
    # (1.9600 + 0.8416) * 0.3078 / √20 = 0.1928; for 0.05, (2.8016 * 0.3078 / 0.05)² = 297.4 questions.
    comparison = compare_counts(none=8, structural=10)
    assert comparison.recommended == "none"
    assert "'structural' (+10.0 points" in comparison.recommendation
    assert "is not significantly better in nDCG@5 on 20 questions." in comparison.recommendation
    assert comparison.recommendation.endswith(
        "The questions are too few to detect differences below 19.3 points (5 % level, 80 % power); about 298 questions"
        " would show 5 points."
    )


def test_a_set_that_could_show_five_points_is_not_called_too_small() -> None:
    asked = [by_id(f"q{n}", f"a{n}") for n in range(400)]
    found = {f"q{n}": [f"a{n}"] for n in range(400)}
    other = {**found, "q0": ["x"], "q1": ["x"], "q2": ["x"]}
    comparison = compare({"none": FixedRetriever(other), "structural": FixedRetriever(found)}, asked, ks=[5])
    assert comparison.difference("none", "structural").p_value == 2 / 2**3
    assert comparison.recommendation.endswith("is not significantly better in nDCG@5 on 400 questions.")
    equal = compare_counts(none=8, structural=8)
    assert equal.recommendation.endswith("is not significantly better in nDCG@5 on 20 questions.")


def test_an_advice_that_is_not_significant_names_both() -> None:
    found = {"none": 8, "weak": 7, "structural": 10}
    comparison = compare(
        {name: retriever(n) for name, n in found.items()}, ASKED, ks=[5], costs=dict.fromkeys(found, 0)
    )
    assert re.match(r"Use 'none' or 'structural': .* not significant \(.*\), and 'weak' \(", comparison.recommendation)


def test_fewer_than_six_questions_show_nothing() -> None:
    comparison = compare({"none": retriever(0), "structural": retriever(5)}, ASKED[:5], ks=[5])
    assert comparison.difference("none", "structural").p_value == 2 / 2**5
    assert comparison.recommendation.endswith("With fewer than 6 questions no difference can be significant: use more.")


def free(**counts: int) -> Comparison:
    """Compare retrievers of which only those called "llm" and "both" cost something."""
    costs = {name: {"llm": 8.0, "both": 9.0}.get(name, 0.0) for name in counts}
    return compare({name: retriever(number) for name, number in counts.items()}, ASKED, ks=[5], costs=costs)


@pytest.mark.parametrize(
    ("counts", "of_free", "of_unknown_cost"),
    [
        ({"none": 8, "structural": 10}, "structural", "none"),
        ({"none": 10, "structural": 8}, "none", "none"),
        ({"none": 9, "structural": 9}, "none", "none"),
        # What costs money must be significantly better than what is free, and in any order.
        ({"none": 8, "structural": 10, "llm": 14}, "structural", "llm"),
        ({"none": 2, "structural": 10, "llm": 20}, "llm", "llm"),
        ({"none": 2, "structural": 10, "llm": 17, "both": 20}, "llm", "llm"),
        ({"none": 2, "structural": 10, "llm": 12, "both": 20}, "both", "both"),
        ({"llm": 10, "none": 8}, "none", "llm"),
        ({"llm": 20, "none": 8}, "llm", "llm"),
        # A more expensive one must beat the cheaper one, not only the baseline.
        ({"none": 2, "structural": 14, "llm": 15}, "structural", "structural"),
        ({"none": 14, "structural": 2, "llm": 14}, "none", "none"),
    ],
    ids=str,
)
def test_which_retriever_is_recommended(counts: dict[str, int], of_free: str, of_unknown_cost: str) -> None:
    assert free(**counts).recommended == of_free
    assert compare_counts(**counts).recommended == of_unknown_cost


@pytest.mark.parametrize("costs", [{"none": None, "llm": None}, {"llm": 0.0}, {"none": 0.0, "llm": None}], ids=str)
def test_if_a_cost_is_unknown_the_order_is_that_of_cost(costs: dict[str, float | None]) -> None:
    two = {"none": retriever(8), "llm": retriever(10)}
    assert compare(two, ASKED, ks=[5], costs=costs).recommended == "none"


def test_ndcg_at_10_is_the_default_metric() -> None:
    two = {"a": retriever(1), "b": retriever(2)}
    assert compare(two, ASKED).metric == "nDCG@10"
    assert compare(two, ASKED, ks=[3, 7]).metric == "nDCG@7"
    assert compare(two, ASKED, ks=[5, 20]).metric == "nDCG@10"
    assert compare(two, ASKED, metric="MRR").metric == "MRR"


def test_one_retriever_or_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(InputError, match="at least two retrievers"):
        compare({"a": retriever(1)}, ASKED)
    with pytest.raises(InputError, match="no metric 'recall@50'"):
        compare({"a": retriever(1), "b": retriever(2)}, ASKED, metric="recall@50")
