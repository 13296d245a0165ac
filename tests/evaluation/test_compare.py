"""Comparisons of retrievers: differences, cost per point and the recommendation."""

from __future__ import annotations

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import Comparison, compare
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from tests.evaluation.support import FixedRetriever, by_id

ASKED = [by_id(f"q{n}", f"a{n}") for n in range(20)]


def retriever(count: int) -> FixedRetriever:
    """Return a retriever that finds the evidence of the first `count` questions."""
    return FixedRetriever({f"q{n}": [f"a{n}" if n < count else "x"] for n in range(20)})


def compare_counts(**counts: int) -> Comparison:
    return compare({name: retriever(number) for name, number in counts.items()}, ASKED, ks=[5])


def test_a_difference_has_mean_interval_and_p_value() -> None:
    difference = compare_counts(none=8, structural=16).difference("none", "structural")
    expected = [0] * 8 + [1] * 8 + [0] * 4
    assert (difference.metric, difference.mean) == ("recall@5", pytest.approx(8 / 20))
    interval = bootstrap_interval(expected)
    assert (difference.low, difference.high) == (interval.low, interval.high)
    assert difference.p_value == permutation_p_value(expected) == 2 / 2**8
    assert difference.significant
    assert (
        str(difference)
        == f"+40.0 points, 95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, p = 0.0078"
    )


def test_swapping_the_retrievers_changes_the_sign() -> None:
    comparison = compare_counts(none=8, structural=16)
    one, other = comparison.difference("none", "structural"), comparison.difference("structural", "none")
    assert other.mean == -one.mean
    assert other.p_value == one.p_value
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low))


def test_every_pair_is_compared() -> None:
    pairs = [(d.baseline, d.variant) for d in compare_counts(none=8, structural=9, llm=10).differences()]
    assert pairs == [("none", "structural"), ("none", "llm"), ("structural", "llm")]


def test_a_significantly_better_retriever_is_recommended_with_its_gain() -> None:
    comparison = compare_counts(none=8, structural=16)
    assert comparison.recommended == "structural"
    assert comparison.recommendation.startswith(
        "Use 'structural': it is better than 'none' in recall@5 on 20 questions (+40.0 points"
    )


def test_an_insignificant_gain_is_not_recommended() -> None:
    comparison = compare_counts(none=8, structural=10)
    assert comparison.recommended == "none"
    assert "'structural' (+10.0 points" in comparison.recommendation
    assert comparison.recommendation.endswith("is not significantly better in recall@5 on 20 questions.")


def test_a_more_expensive_retriever_must_beat_the_cheaper_one_not_only_the_baseline() -> None:
    assert compare_counts(none=2, structural=14, llm=15).recommended == "structural"
    assert compare_counts(none=2, structural=10, llm=20).recommended == "llm"
    assert compare_counts(none=14, structural=2, llm=14).recommended == "none"


def test_cost_per_point_counts_the_cost_above_the_baseline() -> None:
    costs = {"none": 0.0, "llm": 8.0}
    comparison = compare({"none": retriever(8), "llm": retriever(16)}, ASKED, ks=[5], costs=costs)
    assert comparison.cost_per_point("llm") == pytest.approx(8.0 / 40)
    assert "at $0.20 per point" in comparison.recommendation


def test_cost_per_point_is_none_without_a_gain_or_a_known_cost() -> None:
    two = {"none": retriever(8), "llm": retriever(8)}
    assert compare(two, ASKED, ks=[5], costs={"none": 0.0, "llm": 8.0}).cost_per_point("llm") is None
    assert compare({**two, "llm": retriever(16)}, ASKED, ks=[5], costs={"llm": None}).cost_per_point("llm") is None


def test_recall_at_10_is_the_default_metric() -> None:
    two = {"a": retriever(1), "b": retriever(2)}
    assert compare(two, ASKED).metric == "recall@10"
    assert compare(two, ASKED, ks=[3, 7]).metric == "recall@7"
    assert compare(two, ASKED, metric="MRR").metric == "MRR"


def test_progress_counts_over_all_retrievers() -> None:
    calls: list[tuple[int, int]] = []
    compare({"a": retriever(1), "b": retriever(2)}, ASKED, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(n, 40) for n in range(1, 41)]


def test_one_retriever_or_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(InputError, match="at least two retrievers"):
        compare({"a": retriever(1)}, ASKED)
    with pytest.raises(InputError, match="no metric 'recall@50'"):
        compare({"a": retriever(1), "b": retriever(2)}, ASKED, metric="recall@50")
