"""Sweeps with answers: every combination is answered and scored; table and chart are written."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.answering.batch import QA
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import VariantProgress, sweep_answers
from llama_index_contextual.evaluation.report import write_report
from llama_index_contextual.project.project import Project
from tests.support.models import ScriptedLLM

ASKED = [
    QA(question="What does error TS-999 mean?", answers=["The pump runs dry"]),
    QA(question="What does error TS-999 mean?", answers=["A valve"], evidence="nowhere at all"),
]


def swept(project: Project, **options: Any) -> Any:
    llm = ScriptedLLM(default="The pump runs dry [Source 1].")
    return sweep_answers(project, ASKED, llm=llm, min_confidence=0.0, **options)


def test_every_combination_is_answered_and_scored(filled: Project) -> None:
    recorded: list[VariantProgress] = []
    sweep = swept(filled, chunk_sizes=[20, 800], modes=["lexical", "hybrid"], top_ks=[2, 1], progress=recorded.append)
    assert [(row.chunk_size, row.mode, row.top_k) for row in sweep.rows] == [
        (size, mode, k) for size in (20, 800) for mode in ("lexical", "hybrid") for k in (1, 2)
    ]
    figures = sweep.rows[0].to_dict()
    assert (figures["exact"], figures["f1"], figures["failed_retrievals"], figures["errors"]) == (0.5, 0.5, 1, 0)
    assert (figures["questions"], figures["model"], figures["style"]) == (2, "ScriptedLLM:scripted", "instruction")
    assert {len(row.predictions.rows[0].hits) for row in sweep.rows if row.top_k == 1} == {1}
    assert [step.stage for step in recorded if step.stage != "build"] == ["price", *["ask"] * 8]
    assert [path.name for path in filled.directory.parent.iterdir()] == [filled.name]


def test_the_best_has_the_fewest_results_of_equal_f1_and_reports_have_table_and_chart(
    filled: Project, tmp_path: Path
) -> None:
    sweep = swept(filled, top_ks=[2, 1])
    assert sweep.best().top_k == 1
    write_report(sweep, tmp_path / "answers.csv")
    page = write_report(sweep, tmp_path / "answers.html").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "answers.csv").read_text())))
    assert [(row["top_k"], row["f1"]) for row in rows] == [("1", "0.5"), ("2", "0.5")]
    assert "Best f1@1: " in page
    assert page.count('class="bar"') == 2


@pytest.mark.parametrize("options", [{"top_ks": []}, {"top_ks": [0]}])
def test_a_sweep_of_nothing_is_an_error(filled: Project, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="nothing to evaluate"):
        swept(filled, **options)
    with pytest.raises(InputError, match="nothing to evaluate"):
        sweep_answers(filled, [], llm=ScriptedLLM())
