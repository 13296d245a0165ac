"""The verdict on LLM contexts follows the interval of their gain, never its mean alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llama_index_contextual.evaluation.payoff import FEWEST_WITHOUT_GAIN, Payoff, scaled
from llama_index_contextual.evaluation.report import to_dict
from llama_index_contextual.evaluation.run import Evaluation, QuestionResult
from llama_index_contextual.money.tokens import Tokens
from tests.unit.evaluation.support import by_id


def evaluation(name: str, ranks: Sequence[int | None]) -> Evaluation:
    results = [
        QuestionResult(question=by_id(f"q{at}", "c"), results=(), ranks=(rank,), relevant=(), seconds=0.001)
        for at, rank in enumerate(ranks)
    ]
    return Evaluation(name=name, results=results)


def payoff(before: Sequence[int | None], after: Sequence[int | None], **changes: Any) -> Payoff:
    """Return the result of questions whose evidence moved from some ranks to others."""
    values: dict[str, Any] = {
        "evaluations": [evaluation("structural", before), evaluation("llm", after)],
        "metric": "nDCG@10",
        "sample": ["a", "b"],
        "documents": 12,
        "questions_outside": 0,
        "rest": Tokens(calls=40, input_tokens=90_000, output_tokens=4_000),
        "rest_dollars": 0.25,
    }
    return Payoff(**{**values, **changes})


# From rank 1 to rank 2, the nDCG of a question with one item falls by 0.37.
BETTER, SAME, WORSE = (2, 1), (1, 1), (1, 2)


def moved(better: int, same: int, worse: int = 0, **changes: Any) -> Payoff:
    pairs = [BETTER] * better + [SAME] * same + [WORSE] * worse
    return payoff([before for before, _ in pairs], [after for _, after in pairs], **changes)


@pytest.mark.parametrize(
    ("better", "same", "worse", "verdict"),
    [
        (20, 30, 0, "worth it"),
        (20, 30, 3, "worth it"),
        (6, 0, 0, "worth it"),
        (5, 0, 0, "not measurable"),
        (8, 30, 4, "not measurable"),
        (0, FEWEST_WITHOUT_GAIN, 0, "not worth it"),
        (0, FEWEST_WITHOUT_GAIN - 1, 0, "not measurable"),
        (0, 30, 25, "not worth it"),
        (0, 5, 10, "not measurable"),
        (2, 300, 2, "not worth it"),
        (12, 1_200, 0, "not worth it"),
    ],
)
def test_the_verdict_follows_the_interval(better: int, same: int, worse: int, verdict: str) -> None:
    result = moved(better, same, worse)
    assert result.verdict == verdict
    assert result.recommended == ("llm" if verdict == "worth it" else "structural")


def test_the_recommendation_names_the_verdict_and_the_price_of_the_rest() -> None:
    worth, not_worth = moved(20, 30).recommendation, moved(0, 60).recommendation
    assert worth.startswith("LLM contexts are worth it: ")
    assert worth.endswith("The other 10 documents would cost $0.25.")
    assert not_worth.startswith("LLM contexts are not worth it: ")


def test_the_number_of_questions_that_would_decide_is_stated() -> None:
    few = moved(3, 9, 1)
    assert few.questions_needed > 13
    assert f"About {few.questions_needed:,} questions would be needed." in few.recommendation
    assert few.recommendation.startswith("Not measurable with so few questions: the gain in nDCG@10 on 13 questions is")
    factor = -(-few.questions_needed // 13)
    assert moved(3 * factor, 9 * factor, factor).verdict == "worth it"
    assert moved(0, 10).questions_needed == FEWEST_WITHOUT_GAIN
    assert moved(1, 0).questions_needed == FEWEST_WITHOUT_GAIN, "a single question has no deviation"
    outside = moved(3, 9, 1, questions_outside=7).recommendation
    assert outside.endswith("needed; 7 of yours are about documents outside the sample.")


def test_the_values_of_a_report_contain_the_verdict_and_the_price_of_the_rest() -> None:
    values = to_dict(moved(20, 30))["payoff"]
    assert (values["verdict"], values["questions_needed"], values["documents"]) == ("worth it", None, 12)
    assert (values["sample"], values["rest"]["calls"], values["rest"]["dollars"]) == (["a", "b"], 40, 0.25)
    assert to_dict(moved(0, 4))["payoff"]["questions_needed"] == FEWEST_WITHOUT_GAIN


def test_an_estimate_is_corrected_by_the_tokens_that_the_sample_took() -> None:
    rest = Tokens(calls=100, input_tokens=10_000, cached_tokens=9_000, output_tokens=5_000)
    expected = Tokens(calls=10, input_tokens=1_000, cached_tokens=900, output_tokens=500)
    assert scaled(rest, expected=expected, actual=expected) == rest
    actual = Tokens(calls=10, input_tokens=1_200, output_tokens=1_500, written_tokens=300)
    assert scaled(rest, expected=expected, actual=actual) == Tokens(100, 12_000, 0, 15_000, 3_000)
    assert scaled(rest, expected=Tokens(), actual=Tokens()) == rest, "all contexts were in the ledger"
