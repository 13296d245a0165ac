"""Steps: the arithmetic of failed retrievals, the recommendation, and the chart."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import compare
from llama_index_contextual.evaluation.report import to_csv, to_html, to_json, to_svg, write_report
from llama_index_contextual.evaluation.steps import (
    EMBEDDINGS,
    LEXICAL,
    LLM_CONTEXT,
    RERANKER,
    SENTENCE,
    STRUCTURAL,
    WITHOUT_LLM,
    Steps,
)
from tests.unit.evaluation.support import FixedRetriever, by_id

ASKED = [by_id(f"q{number}", f"c{number}") for number in range(20)]


def finding(*numbers: int) -> FixedRetriever:
    """Return a retriever that finds the evidence of these questions."""
    return FixedRetriever({f"q{number}": [f"c{number}"] for number in numbers})


def steps_of(found: dict[str, int], **skipped: str) -> Steps:
    """Return steps that find the evidence of the first questions, as many as given."""
    retrievers = {name: finding(*range(number)) for name, number in found.items()}
    compared = compare(retrievers, ASKED, ks=[1, 5], metric="recall@5")
    return Steps(**vars(compared), prices=dict.fromkeys(found, 0.0), skipped=skipped)


def test_a_step_is_compared_with_the_previous_and_with_the_first_one() -> None:
    steps = steps_of({EMBEDDINGS: 4, STRUCTURAL: 8, LEXICAL: 17, SENTENCE: 20}, **{LLM_CONTEXT: "No key."})
    assert [row["step"] for row in steps.table()] == [EMBEDDINGS, STRUCTURAL, LLM_CONTEXT, LEXICAL, SENTENCE]
    first, structural, skipped, lexical, sentence = steps.table()
    # 16, 12, 3 and 0 of 20 questions fail
    assert [row["failed"] for row in (first, structural, lexical, sentence)] == pytest.approx([0.8, 0.6, 0.15, 0])
    assert {first[name] for name in first if name.endswith(("previous", "first"))} == {None}
    assert structural["fewer_than_previous"] == structural["fewer_than_first"] == pytest.approx(1 - 12 / 16)
    assert lexical["fewer_than_previous"] == pytest.approx(1 - 3 / 12)
    assert lexical["fewer_than_first"] == pytest.approx(1 - 3 / 16)
    assert (lexical["previous"], lexical["change_from_previous"]) == (STRUCTURAL, pytest.approx(-9 / 20))
    assert lexical["low_from_previous"] < -9 / 20 < lexical["high_from_previous"] < 0
    assert lexical["p_from_previous"] == 2 / 2**9
    assert (lexical["first"], lexical["change_from_first"]) == (EMBEDDINGS, pytest.approx(-13 / 20))
    assert (sentence["low"], sentence["high"]) == (0, 0)
    assert first["low"] < 0.8 < first["high"]
    assert {name: value for name, value in skipped.items() if value} == {"step": LLM_CONTEXT, "skipped": "No key."}
    assert skipped.keys() == first.keys()


def test_without_failed_retrievals_there_is_no_reduction_and_no_negative_zero() -> None:
    row = steps_of({EMBEDDINGS: 20, STRUCTURAL: 20}).table()[1]
    assert row["fewer_than_previous"] is None
    assert json.dumps([row["change_from_previous"], row["low_from_first"]]) == "[0.0, 0.0]"


def test_the_control_replaces_the_spotlight_with_llm_context_and_is_no_step_before_the_reranker() -> None:
    found = {EMBEDDINGS: 2, STRUCTURAL: 4, LLM_CONTEXT: 8, LEXICAL: 12, SENTENCE: 16, RERANKER: 18, WITHOUT_LLM: 10}
    *_, reranker, control = steps_of(found).table()
    assert (reranker["previous"], control["previous"]) == (SENTENCE, SENTENCE)
    assert (control["step"], control["change_from_previous"]) == (WITHOUT_LLM, pytest.approx(6 / 20))
    assert control["fewer_than_previous"] == pytest.approx(1 - 10 / 4)


def test_of_equal_steps_the_one_with_the_better_order_is_recommended() -> None:
    retrievers = {EMBEDDINGS: finding(0), STRUCTURAL: FixedRetriever({"q0": ["x", "c0"], "q1": ["x", "c1"]})}
    retrievers[LEXICAL] = finding(0, 1)
    compared = compare(retrievers, ASKED, ks=[1, 5], metric="recall@5")
    assert Steps(**vars(compared), prices={}, skipped={}).recommended == LEXICAL


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        # The best step that costs nothing, even if the gain is not significant.
        ({EMBEDDINGS: 4, STRUCTURAL: 6, LEXICAL: 7, SENTENCE: 6}, LEXICAL),
        # 5 more of 20 are not significant (p = 1/16), 6 more are (p = 1/32): LLM contexts and rerankers must be.
        ({EMBEDDINGS: 4, STRUCTURAL: 4, LLM_CONTEXT: 7, LEXICAL: 8, SENTENCE: 9, WITHOUT_LLM: 4}, EMBEDDINGS),
        ({EMBEDDINGS: 4, STRUCTURAL: 4, LLM_CONTEXT: 10, LEXICAL: 9, SENTENCE: 11, WITHOUT_LLM: 5}, SENTENCE),
        ({EMBEDDINGS: 4, STRUCTURAL: 4, LEXICAL: 8, SENTENCE: 10, RERANKER: 15}, SENTENCE),
        ({EMBEDDINGS: 4, STRUCTURAL: 4, LEXICAL: 8, SENTENCE: 10, RERANKER: 16}, RERANKER),
        ({EMBEDDINGS: 4, STRUCTURAL: 4, LLM_CONTEXT: 9, LEXICAL: 12, SENTENCE: 14, WITHOUT_LLM: 12}, WITHOUT_LLM),
    ],
)
def test_a_step_that_costs_more_is_recommended_only_if_it_is_significantly_better(
    found: dict[str, int], chosen: str
) -> None:
    steps = steps_of(found)
    assert steps.recommended == chosen
    assert re.match(rf"Use ('{EMBEDDINGS}' or )?{re.escape(repr(chosen))}: ", steps.recommendation)


def test_the_recommendation_says_how_many_fewer_and_whether_that_is_significant() -> None:
    better, unclear = steps_of({EMBEDDINGS: 4, STRUCTURAL: 12}), steps_of({EMBEDDINGS: 4, STRUCTURAL: 5})
    assert better.recommendation == (
        "Use '+ structural context': 50 % fewer failed retrievals than 'embeddings' on 20 questions (recall@5), p ="
        " 0.0078."
    )
    assert unclear.recommendation.startswith(f"Use {EMBEDDINGS!r} or {STRUCTURAL!r}: the difference on ")
    assert "no other step has significantly fewer" in steps_of({EMBEDDINGS: 4, STRUCTURAL: 3}).recommendation
    with_reranker = steps_of({EMBEDDINGS: 4, STRUCTURAL: 12, RERANKER: 12})
    assert "No step that costs more is significantly better." in with_reranker.recommendation


# ---- reports -------------------------------------------------------------------------------------------------------

STEPS = steps_of(
    {EMBEDDINGS: 4, STRUCTURAL: 8, LEXICAL: 17, SENTENCE: 20},
    **{LLM_CONTEXT: "<b>No key.</b>", RERANKER: "No model is named."},
)


def test_csv_and_json_have_a_row_for_every_step() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(STEPS))))
    assert [row["failed"] for row in rows] == ["0.8", "0.6", "", "0.15000000000000002", "0.0", ""]
    assert rows[2]["skipped"] == "<b>No key.</b>"
    values = json.loads(to_json(STEPS))
    assert values["steps"][3]["change_from_previous"] == pytest.approx(-9 / 20)
    assert values["recommendation"] == STEPS.recommendation
    assert {row["metric"] for row in values["differences"]} == {"recall@5"}


def test_the_chart_has_a_bar_for_every_measured_step_as_wide_as_its_failures() -> None:
    svg = ET.fromstring(to_svg(STEPS))
    space = "{http://www.w3.org/2000/svg}"
    bars = [bar for bar in svg.iter(f"{space}rect") if "bar" in (bar.get("class") or "")]
    widths = [float(bar.get("width") or 0) for bar in bars]
    assert [round(width / widths[0], 2) for width in widths] == [1, 0.75, 0.19, 0]
    # The gain of 4 questions is not significant (p = 1/8), nor that of 3; that of 9 is.
    assert [bar.get("class") for bar in bars] == ["bar", "bar", "bar significant", "bar"]
    texts = [text.text for text in svg.iter(f"{space}text")]
    assert [texts.count(text) for text in ("skipped", "81 %", "15.0")] == [2, 1, 1]


def test_the_page_shows_the_chart_and_the_reason_for_a_skipped_step() -> None:
    html = to_html(STEPS)
    assert to_svg(STEPS) in html
    assert "skipped: &lt;b&gt;No key.&lt;/b&gt;" in html


def test_a_chart_is_an_svg_file(tmp_path: Path) -> None:
    assert write_report(STEPS, tmp_path / "steps.svg").read_text(encoding="utf-8") == to_svg(STEPS)
    with pytest.raises(
        InputError, match=r"steps\.png is not a report: use the extension \.csv, \.json, \.html or \.svg"
    ):
        write_report(STEPS, tmp_path / "steps.png")
    with pytest.raises(InputError, match=r"steps\.svg is not a report"):
        write_report(STEPS[EMBEDDINGS], tmp_path / "steps.svg")
