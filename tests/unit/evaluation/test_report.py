"""Reports: the figures equal those of the result, and questions and documents cannot inject markup."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import Comparison, Sweep, SweepRow, compare
from llama_index_contextual.evaluation.report import to_csv, to_html, to_json, write_report
from llama_index_contextual.evaluation.run import Evaluation, evaluate
from tests.unit.evaluation.support import FixedRetriever, by_id

HOSTILE = "<script>alert(1)</script> $\\frac{$ \x1b[31m {{ 7 * 7 }}"
ASKED = [by_id("one", "a"), by_id("=1+1", "b"), by_id(HOSTILE, "c", "d")]
WEAK = FixedRetriever({"one": ["x", "a"], HOSTILE: ["<img src=x onerror=alert(2)>", "c"]})
STRONG = FixedRetriever({"one": ["a"], "=1+1": ["b"], HOSTILE: ["c", "d"]})


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return evaluate(WEAK, ASKED, name="weak", ks=[1, 5])


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    costs = {"weak": 0.0, HOSTILE: None}
    return compare({"weak": WEAK, HOSTILE: STRONG}, ASKED, ks=[1, 5], costs=costs, notes=["3 <b>questions</b>."])


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    def row(mode: str, k: int) -> SweepRow:
        figures = {"recall": k / 20, "precision": 0.1, "ndcg": 0.5, "tokens": 1234.5, "p50_ms": 2.0, "cost": None}
        setting = {"context": "none", "chunk_size": 400, "rerank": None, "mode": mode, "top_k": k}
        return SweepRow(**setting, figures=figures)  # type: ignore[arg-type]

    return Sweep(
        rows=[row(mode, k) for mode in ("lexical", "hybrid") for k in (5, 20)],
        questions=3,
        measure="recall",
        notes=("3.",),
    )


class Page(HTMLParser):
    """The tags, addresses and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.mark.parametrize("kind", ["evaluation", "comparison", "sweep"])
def test_a_page_has_bars_and_runs_and_loads_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    html = to_html(request.getfixturevalue(kind))
    page = Page(html)
    assert page.addresses == []
    assert not {"script", "iframe", "link", "object", "img", "b"} & set(page.tags)
    assert 'class="bar" style="--share: ' in html
    assert "{{" not in html.replace("{{ 7 * 7 }}", "")


def test_questions_and_documents_cannot_inject_markup(comparison: Comparison) -> None:
    text = Page(to_html(comparison)).text
    assert "<script>alert(1)</script>" in text
    assert "{{ 7 * 7 }}" in text
    assert "3 <b>questions</b>." in text
    assert "Text of <img src=x onerror=alert(2)>." in text


def test_a_page_shows_figures_recommendation_and_failures(comparison: Comparison) -> None:
    html = to_html(comparison)
    text = " ".join(Page(html).text.split())
    assert comparison.recommendation in text
    assert html.count("<circle") == len(json.loads(to_json(comparison))["differences"])
    assert re.search(rf"recall@5 {100 * comparison['weak'].mean('recall@5'):.1f} 100.0", text)
    assert "Without all evidence among the first 5 results: 2 of 3 questions" in text
    assert ": 0 of 3 questions" in text
    assert "ranks of its evidence: absent" in text


def test_a_sweep_has_a_row_for_every_setting(sweep: Sweep) -> None:
    rows = csv.DictReader(io.StringIO(to_csv(sweep)))
    assert [(row["mode"], row["top_k"], row["cost"]) for row in rows][:2] == [
        ("lexical", "5", ""),
        ("lexical", "20", ""),
    ]
    page = Page(to_html(sweep))
    assert page.tags.count("tr") == 1 + 4
    assert "Best recall@20: none, 400 tokens, lexical, no reranking (100.0 %)." in page.text


def test_csv_has_a_row_for_every_question_and_variant(comparison: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison))))
    assert [(row["variant"], row["ranks"]) for row in rows[:3]] == [
        ("weak", "2"),
        ("weak", "absent"),
        ("weak", "2 absent"),
    ]
    assert [float(row["recall@5"]) for row in rows[:3]] == [1, 0, 0.5]
    assert len(rows) == 6


def test_a_text_that_a_spreadsheet_would_execute_is_marked(evaluation: Evaluation) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(evaluation))))
    assert [row["question"] for row in rows] == ["one", "'=1+1", HOSTILE]


def test_json_lists_the_hard_negatives(evaluation: Evaluation) -> None:
    report_values = json.loads(to_json(evaluation))
    assert report_values["summary"]["recall@5"] == pytest.approx((1 + 0 + 0.5) / 3)
    one, _, hostile = report_values["questions"]
    assert (one["ranks"], one["results"], one["hard_negatives"]) == ("2", ["x", "a"], [])
    assert hostile["ranks"] == "2 absent"
    assert [(bad["rank"], bad["text"]) for bad in hostile["hard_negatives"]] == [
        (1, "Text of <img src=x onerror=alert(2)>.")
    ]


def test_json_of_a_comparison_contains_differences_costs_and_recommendation(comparison: Comparison) -> None:
    report_values = json.loads(to_json(comparison))
    assert report_values["recommendation"] == comparison.recommendation
    assert report_values["costs"] == {"weak": 0.0, HOSTILE: None}
    first = report_values["differences"][0]
    second = 1 / math.log2(3)  # gain at rank 2; the third question has two items
    weak = (second + 0 + second / (1 + second)) / 3
    assert (first["metric"], first["baseline"], first["mean"]) == ("nDCG@5", "weak", pytest.approx(1 - weak))
    assert len(report_values["variants"]) == 2


@pytest.mark.parametrize("name", ["r.csv", "r.json", "r.HTML"])
def test_the_extension_decides_the_format(evaluation: Evaluation, tmp_path: Path, name: str) -> None:
    path = write_report(evaluation, tmp_path / name)
    head = {"csv": "variant,", "json": "{", "html": "<!DOCTYPE"}[name.partition(".")[2].lower()]
    assert path.read_text(encoding="utf-8").startswith(head)
    with pytest.raises(InputError, match=r"r\.pdf is not a report: use the extension \.csv, \.json or \.html"):
        write_report(evaluation, tmp_path / "r.pdf")
