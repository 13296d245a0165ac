"""Reports on evaluations, comparisons and sweeps as CSV, JSON or an HTML page.

The page is rendered by Jinja2 with autoescaping, so that documents and questions cannot inject markup.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import Comparison, Difference
from llama_index_contextual.evaluation.run import Evaluation, QuestionResult
from llama_index_contextual.evaluation.sweep import AnswerRow, Sweep, SweepRow
from llama_index_contextual.index import files

Result = Evaluation | Comparison | Sweep[SweepRow] | Sweep[AnswerRow]

MAX_FAILURES = 50
"""Maximum number of failed questions on a page."""
MAX_NEGATIVES = 5
"""Maximum number of hard negatives of a failed question in the JSON report."""
MAX_PAGE_NEGATIVES = 3
"""Maximum number of hard negatives of a failed question on a page."""

_SNIPPET = 280
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def check_report(path: str | Path) -> None:
    """Check before a long evaluation that its report can be written.

    Raises:
        InputError: The extension is not .csv, .json or .html, or the folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"{path.name} is not a report: use the extension .csv, .json or .html.", value=str(path))
    files.require_folder(path)


def write_report(result: Result, path: str | Path) -> Path:
    """Write a report in the format given by the extension: .csv, .json or .html.

    Raises:
        InputError: The extension is unknown, or the folder does not exist.
    """
    check_report(path)
    path = Path(path)
    files.replace(path, _WRITERS[path.suffix.lower()](result).encode("utf-8", "replace"))
    return path


def to_csv(result: Result) -> str:
    """Return one row for each question and retriever, or for each setting of a sweep.

    Text that a spreadsheet would interpret as a formula is prefixed with an apostrophe.
    """
    rows = result.table() if isinstance(result, Sweep) else _question_rows(_evaluations_of(result))
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def to_json(result: Result) -> str:
    """Return as JSON the figures, all questions with their results, and the hard negatives of failed questions."""
    return json.dumps(to_dict(result), ensure_ascii=False, indent=1, allow_nan=False)


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result as JSON values."""
    if isinstance(result, Sweep):
        return {"questions": result.questions, "notes": list(result.notes), "settings": result.table()}
    evaluations = [
        {"summary": evaluation.summary(), "questions": [_question(evaluation, result) for result in evaluation.results]}
        for evaluation in _evaluations_of(result)
    ]
    if isinstance(result, Evaluation):
        return evaluations[0]
    return {
        "recommendation": result.recommendation,
        "metric": result.metric,
        "notes": list(result.notes),
        "costs": dict(result.costs),
        "cost_per_point": {name: result.cost_per_point(name) for name in result.names[1:]},
        "differences": [
            {**asdict(difference), "significant": difference.significant} for difference in _all_differences(result)
        ],
        "variants": evaluations,
    }


def _evaluations_of(result: Evaluation | Comparison) -> Sequence[Evaluation]:
    return result.evaluations if isinstance(result, Comparison) else (result,)


def _all_differences(comparison: Comparison) -> list[Difference]:
    """Return the differences between all pairs, first for the metric of the recommendation, then for the others."""
    others = (name for name in comparison.evaluations[0].metrics if not name.startswith(("precision@", "hit@")))
    metrics = dict.fromkeys([comparison.metric, *others])
    return [difference for metric in metrics for difference in comparison.differences(metric)]


def _question(evaluation: Evaluation, result: QuestionResult) -> dict[str, Any]:
    failed = any(rank is None for rank in result.ranks)
    negatives = result.hard_negatives(max(evaluation.ks))[:MAX_NEGATIVES] if failed else ()
    return {
        "id": result.question.id,
        "question": result.question.text,
        "ranks": list(result.ranks),
        "ms": 1000 * result.seconds,
        "context_relevance": result.context_relevance,
        "results": [chunk.node_id for chunk in result.results],
        "hard_negatives": [
            {"node_id": chunk.node_id, "source": str(chunk.source), "rank": chunk.rank, "text": chunk.text}
            for chunk in negatives
        ],
    }


def _question_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    return [
        {
            "variant": evaluation.name,
            "id": result.question.id,
            "question": result.question.text,
            **{metric: round(evaluation.value(metric, result), 6) for metric in evaluation.metrics},
            "ms": round(1000 * result.seconds, 3),
            "context_relevance": result.context_relevance,
            "ranks": " ".join("absent" if rank is None else str(rank) for rank in result.ranks),
        }
        for evaluation in evaluations
        for result in evaluation.results
    ]


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


# ---- The HTML page ---------------------------------------------------------------------------------------------------


def to_html(result: Result) -> str:
    """Return a self-contained HTML page with bars and intervals that loads no other files."""
    from jinja2 import Environment

    values: dict[str, Any] = {"pluralize": pluralize, "snippet": _SNIPPET}
    if isinstance(result, Sweep):
        values |= _of_sweep(result)
    else:
        values |= _of_evaluations(_evaluations_of(result))
        if isinstance(result, Comparison):
            values |= _of_comparison(result)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = (package_files(__package__) / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(template).render(values)


def _of_evaluations(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    name = evaluations[0].name
    return {
        "title": f"Retrieval of {name}" if name else "Retrieval",
        "evaluations": evaluations,
        "summaries": [evaluation.summary() for evaluation in evaluations],
        "most_failures": MAX_FAILURES,
        "negatives": MAX_PAGE_NEGATIVES,
    }


def _of_comparison(comparison: Comparison) -> dict[str, Any]:
    differences, costs = _all_differences(comparison), comparison.costs
    return {
        "title": "Retrieval compared",
        "recommendation": comparison.recommendation,
        "notes": comparison.notes,
        "differences": differences,
        "reach": max(max(abs(row.low), abs(row.high)) for row in differences) or 1.0,
        "metric": comparison.metric,
        "costs": [(name, costs[name], comparison.cost_per_point(name)) for name in comparison.names if name in costs],
    }


def _of_sweep(sweep: Sweep[SweepRow] | Sweep[AnswerRow]) -> dict[str, Any]:
    best = sweep.best()
    figure = 100 * (best.figures()[sweep.measure] or 0.0)
    return {
        "title": "Settings compared",
        "notes": sweep.notes,
        "recommendation": f"Best {sweep.measure}@{best.top_k}: {best.name} ({figure:.1f} %).",
        "sweep": sweep.rows,
        "best": best,
        "measure": sweep.measure,
    }


_WRITERS: Mapping[str, Callable[[Result], str]] = {".csv": to_csv, ".json": to_json, ".html": to_html}
