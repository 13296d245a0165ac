"""Reports: one CSV row or JSON object for each question, and one HTML page that needs nothing else."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import page
from llama_index_contextual.evaluation.compare import Comparison
from llama_index_contextual.evaluation.run import Evaluation, QuestionResult
from llama_index_contextual.evaluation.sweep import Sweep
from llama_index_contextual.storage import files

Result = Evaluation | Comparison | Sweep

NEGATIVES = 5
"""Results of a failed question that are reported as hard negatives, at most."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def check_report(path: str | Path) -> None:
    """Do nothing where a report of that name can be written, so that nobody waits for figures that get lost.

    Raises:
        InputError: The name ends otherwise than .csv, .json or .html, or its folder is not there.
        ConfigurationError: A package for the HTML page is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"{path.name} is no report: end its name with .csv, .json or .html.", value=str(path))
    files.require_folder(path)
    if path.suffix.lower() == ".html":
        page.require_packages()


def write_report(result: Result, path: str | Path) -> Path:
    """Write a report; the name's ending says which kind: .csv, .json or .html.

    Raises:
        InputError: The ending is another one, or the folder is not there.
        ConfigurationError: A package for the HTML page is not installed.
    """
    check_report(path)
    path = Path(path)
    files.replace(path, _WRITERS[path.suffix.lower()](result).encode("utf-8", "replace"))
    return path


def to_csv(result: Result) -> str:
    """Return one row for each question and retriever, or for each setting of a sweep.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    rows = result.table() if isinstance(result, Sweep) else _question_rows(evaluations_of(result))
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def to_json(result: Result) -> str:
    """Return the figures, every question with its results, and what failed, as JSON."""
    return json.dumps(to_dict(result), ensure_ascii=False, indent=1, allow_nan=False)


def to_html(result: Result) -> str:
    """Return one HTML page with charts, which loads nothing else.

    Raises:
        ConfigurationError: matplotlib or Jinja2 is not installed.
    """
    if isinstance(result, Sweep):
        return page.sweep_page(result)
    return page.comparison_page(result) if isinstance(result, Comparison) else page.evaluation_page(result)


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result as JSON values."""
    if isinstance(result, Sweep):
        return {"questions": result.questions, "notes": list(result.notes), "settings": result.table()}
    evaluations = [
        {"summary": evaluation.summary(), "questions": [_question(evaluation, found) for found in evaluation.results]}
        for evaluation in evaluations_of(result)
    ]
    if isinstance(result, Evaluation):
        return evaluations[0]
    return {
        "recommendation": result.recommendation,
        "metric": result.metric,
        "notes": list(result.notes),
        "costs": dict(result.costs),
        "cost_per_point": {name: result.cost_per_point(name) for name in result.names[1:]},
        "differences": [page.difference_row(found) for found in page.all_differences(result)],
        "variants": evaluations,
    }


def evaluations_of(result: Evaluation | Comparison) -> Sequence[Evaluation]:
    """Return the evaluations in a result."""
    return result.evaluations if isinstance(result, Comparison) else (result,)


def _question(evaluation: Evaluation, found: QuestionResult) -> dict[str, Any]:
    k = max(evaluation.ks)
    failed = any(rank is None for rank in found.ranks)
    return {
        "id": found.question.id,
        "question": found.question.text,
        "ranks": list(found.ranks),
        "ms": 1000 * found.seconds,
        "context_relevance": found.context_relevance,
        "results": [chunk.node_id for chunk in found.results],
        "hard_negatives": [
            {"node_id": chunk.node_id, "source": str(chunk.source), "rank": chunk.rank, "text": chunk.text}
            for chunk in (found.hard_negatives(k)[:NEGATIVES] if failed else ())
        ],
    }


def _question_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    rows = []
    for evaluation in evaluations:
        columns = {metric: evaluation.values(metric) for metric in evaluation.metrics}
        for at, found in enumerate(evaluation.results):
            rows.append(
                {
                    "variant": evaluation.name,
                    "id": found.question.id,
                    "question": found.question.text,
                    **{metric: round(float(values[at]), 6) for metric, values in columns.items()},
                    "ms": round(1000 * found.seconds, 3),
                    "context_relevance": found.context_relevance,
                    "ranks": " ".join("absent" if rank is None else str(rank) for rank in found.ranks),
                }
            )
    return rows


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


_WRITERS = {".csv": to_csv, ".json": to_json, ".html": to_html}
