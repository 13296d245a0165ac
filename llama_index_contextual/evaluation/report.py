"""Evaluation, comparison, step and sweep reports in CSV, JSON or HTML format, and a chart of the steps as SVG.

The page and the chart are rendered by Jinja2 with autoescaping, so that documents and questions cannot inject markup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.batch import csv_text
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import Comparison, Difference, Sweep
from llama_index_contextual.evaluation.payoff import Payoff
from llama_index_contextual.evaluation.run import Evaluation
from llama_index_contextual.evaluation.steps import Steps
from llama_index_contextual.index import files
from llama_index_contextual.money.price import money

Result = Evaluation | Comparison | Sweep

MAX_FAILURES = 50
"""Maximum number of failed questions per retriever on an HTML page."""
MAX_NEGATIVES = 5
"""Maximum number of hard negatives listed for a failed question."""

CHART = ".svg"
"""Extension of a chart of steps."""

_SNIPPET = 280


def check_report(path: str | Path, *, chart: bool = False) -> None:
    """Check, before a long evaluation, that its report can be written.

    Args:
        path: The file.
        chart: Whether the report can be a chart (.svg), which only steps have.

    Raises:
        InputError: The extension is unknown, or the folder does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in (*_WRITERS, *((CHART,) if chart else ())):
        extensions = ".csv, .json, .html or .svg" if chart else ".csv, .json or .html"
        raise InputError(f"{path.name} is not a report: use the extension {extensions}.", value=str(path))
    files.require_folder(path)


def write_report(result: Result, path: str | Path) -> Path:
    """Write a report in the format given by the extension: .csv, .json or .html, or .svg for a chart of steps.

    Raises:
        InputError: The extension is unknown, or the folder does not exist.
    """
    check_report(path, chart=isinstance(result, Steps))
    path = Path(path)
    is_chart = path.suffix.lower() == CHART
    text = to_svg(result) if isinstance(result, Steps) and is_chart else _WRITERS[path.suffix.lower()](result)
    files.replace(path, text.encode("utf-8", "replace"))
    return path


def to_csv(result: Result) -> str:
    """Return a CSV report with one row for each question and retriever, for each step, or for each setting of a sweep.

    Text that a spreadsheet would interpret as a formula is prefixed with an apostrophe.
    """
    if isinstance(result, Sweep | Steps):
        rows = result.table()
    else:
        rows = [row for evaluation in _evaluations_of(result) for row in _question_rows(evaluation)]
    return csv_text(rows)


def to_json(result: Result) -> str:
    """Return a JSON report: figures, the results for every question, and the hard negatives of failed questions."""
    return json.dumps(to_dict(result), ensure_ascii=False, indent=1, allow_nan=False)


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result as JSON values."""
    if isinstance(result, Sweep):
        return {"questions": result.questions, "notes": list(result.notes), "settings": result.table()}
    if isinstance(result, Evaluation):
        return {"summary": result.summary(), "notes": list(result.notes), "questions": _question_rows(result)}
    return {
        **({"steps": result.table()} if isinstance(result, Steps) else {}),
        **({"payoff": result.to_dict()} if isinstance(result, Payoff) else {}),
        "recommendation": result.recommendation,
        "metric": result.metric,
        "notes": list(result.notes),
        "costs": dict(result.costs),
        "differences": [
            {**asdict(difference), "significant": difference.significant} for difference in _all_differences(result)
        ],
        "variants": [to_dict(evaluation) for evaluation in result.evaluations],
    }


def _evaluations_of(result: Evaluation | Comparison) -> Sequence[Evaluation]:
    return result.evaluations if isinstance(result, Comparison) else (result,)


def _all_differences(comparison: Comparison) -> list[Difference]:
    """Return the differences between all pairs of retrievers for each metric except precision.

    The differences in the metric used for the recommendation come first. For steps, they are the only ones.
    """
    if isinstance(comparison, Steps):
        return comparison.differences()
    names = (name for name in comparison.evaluations[0].metrics if not name.startswith("precision@"))
    metrics = dict.fromkeys([comparison.metric, *names])
    return [difference for metric in metrics for difference in comparison.differences(metric)]


def _question_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    return [
        {
            "variant": evaluation.name,
            "id": result.question.id,
            "question": result.question.text,
            **{metric: round(evaluation.value(metric, result), 6) for metric in evaluation.metrics},
            "ms": round(1000 * result.seconds, 3),
            "context_relevance": result.context_relevance,
            "ranks": " ".join("absent" if rank is None else str(rank) for rank in result.ranks),
            "results": [chunk.node_id for chunk in result.results],
            "hard_negatives": [
                {"node_id": chunk.node_id, "source": str(chunk.source), "rank": chunk.rank, "text": chunk.text}
                for chunk in (result.hard_negatives(max(evaluation.ks))[:MAX_NEGATIVES] if None in result.ranks else ())
            ],
        }
        for result in evaluation.results
    ]


# ---- HTML page -------------------------------------------------------------------------------------------------------


def to_html(result: Result) -> str:
    """Return a self-contained HTML page that shows the figures as bars and intervals."""
    values: dict[str, Any] = {
        "pluralize": pluralize,
        "snippet": _SNIPPET,
        "most_failures": MAX_FAILURES,
        "negatives": MAX_NEGATIVES,
    }
    if isinstance(result, Sweep):
        best = result.best()
        figure = 100 * (best.figures[result.measure] or 0.0)
        title = "Settings compared"
        values |= {"sweep": result, "best": best, "notes": result.notes}
        values["recommendation"] = f"Best {result.measure}@{best.top_k}: {best.name} ({figure:.1f} %)."
    else:
        evaluations = _evaluations_of(result)
        title = f"Retrieval of {evaluations[0].name}" if evaluations[0].name else "Retrieval"
        values |= {"evaluations": evaluations, "summaries": [evaluation.summary() for evaluation in evaluations]}
        values["notes"] = result.notes
    if isinstance(result, Comparison):
        title, differences = "Retrieval compared", _all_differences(result)
        reach = max(max(abs(row.low), abs(row.high)) for row in differences) or 1.0
        values |= {"differences": differences, "reach": reach, "costs": result.costs}
        values["recommendation"] = result.recommendation
    if isinstance(result, Steps):
        values |= {"steps": result.table(), "chart": to_svg(result), "money": money}
    return _rendered("report.html.jinja", {**values, "title": title})


def to_svg(steps: Steps) -> str:
    """Return a chart of the failed retrievals of each step, which needs neither fonts nor scripts."""
    rows = steps.table()
    questions = pluralize(len(steps.evaluations[0].results), "question")
    reach = max(row["high"] or 0.0 for row in rows) or 1.0
    return _rendered("steps.svg.jinja", {"metric": steps.metric, "steps": rows, "reach": reach, "questions": questions})


def _rendered(name: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = (package_files(__package__) / name).read_text(encoding="utf-8")
    return environment.from_string(template).render(values)


_WRITERS: Mapping[str, Callable[[Result], str]] = {".csv": to_csv, ".json": to_json, ".html": to_html}
