"""Reports of evaluations, comparisons and sweeps, as CSV, JSON or one HTML page.

The page is rendered by Jinja2 with autoescape, so that documents and questions cannot inject markup.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.evaluation.charts import PIP, bar_chart, interval_chart, line_chart, require_matplotlib
from llama_index_contextual.evaluation.compare import Comparison, Difference
from llama_index_contextual.evaluation.metrics import bootstrap_interval
from llama_index_contextual.evaluation.run import Evaluation, QuestionResult
from llama_index_contextual.evaluation.sweep import Sweep, SweepRow
from llama_index_contextual.index import files

if TYPE_CHECKING:
    from jinja2 import Template


Result = Evaluation | Comparison | Sweep

MAX_FAILURES = 50
"""Maximum number of failed questions on a page."""
MAX_NEGATIVES = 5
"""Maximum number of hard negatives of a failed question in the JSON report."""
MAX_PAGE_NEGATIVES = 3
"""Maximum number of hard negatives of a failed question on a page."""

_SNIPPET = 280
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


# ---- Reports ---------------------------------------------------------------------------------------------------------


def check_report(path: str | Path) -> None:
    """Check that a report can be written, before a long evaluation.

    Raises:
        InputError: The extension is not .csv, .json or .html, or the folder does not exist.
        ConfigurationError: A package for the HTML page is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in _WRITERS:
        raise InputError(f"{path.name} is not a report: use the extension .csv, .json or .html.", value=str(path))
    files.require_folder(path)
    if path.suffix.lower() == ".html":
        require_packages()


def write_report(result: Result, path: str | Path) -> Path:
    """Write a report, in the format of the extension: .csv, .json or .html.

    Raises:
        InputError: The extension is another one, or the folder does not exist.
        ConfigurationError: A package for the HTML page is not installed.
    """
    check_report(path)
    path = Path(path)
    files.replace(path, _WRITERS[path.suffix.lower()](result).encode("utf-8", "replace"))
    return path


def to_csv(result: Result) -> str:
    """Return one row for each question and retriever, or for each setting of a sweep.

    An apostrophe is put before any text that a spreadsheet would interpret as a formula.
    """
    rows = result.table() if isinstance(result, Sweep) else _question_rows(evaluations_of(result))
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return file.getvalue()


def to_json(result: Result) -> str:
    """Return the figures, all questions with their results, and the hard negatives of failed questions, as JSON."""
    return json.dumps(to_dict(result), ensure_ascii=False, indent=1, allow_nan=False)


def to_html(result: Result) -> str:
    """Return a self-contained HTML page with charts.

    Raises:
        ConfigurationError: matplotlib or Jinja2 is not installed.
    """
    if isinstance(result, Sweep):
        return sweep_page(result)
    return comparison_page(result) if isinstance(result, Comparison) else evaluation_page(result)


def to_dict(result: Result) -> dict[str, Any]:
    """Return a result as JSON values."""
    if isinstance(result, Sweep):
        return {"questions": result.questions, "notes": list(result.notes), "settings": result.table()}
    evaluations = [
        {"summary": evaluation.summary(), "questions": [_question(evaluation, result) for result in evaluation.results]}
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
        "differences": [difference_row(difference) for difference in all_differences(result)],
        "variants": evaluations,
    }


def evaluations_of(result: Evaluation | Comparison) -> Sequence[Evaluation]:
    """Return the evaluations in a result."""
    return result.evaluations if isinstance(result, Comparison) else (result,)


def _question(evaluation: Evaluation, result: QuestionResult) -> dict[str, Any]:
    k = max(evaluation.ks)
    failed = any(rank is None for rank in result.ranks)
    return {
        "id": result.question.id,
        "question": result.question.text,
        "ranks": list(result.ranks),
        "ms": 1000 * result.seconds,
        "context_relevance": result.context_relevance,
        "results": [chunk.node_id for chunk in result.results],
        "hard_negatives": [
            {"node_id": chunk.node_id, "source": str(chunk.source), "rank": chunk.rank, "text": chunk.text}
            for chunk in (result.hard_negatives(k)[:MAX_NEGATIVES] if failed else ())
        ],
    }


def _question_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    rows = []
    for evaluation in evaluations:
        columns = {metric: evaluation.values(metric) for metric in evaluation.metrics}
        for at, result in enumerate(evaluation.results):
            rows.append(
                {
                    "variant": evaluation.name,
                    "id": result.question.id,
                    "question": result.question.text,
                    **{metric: round(float(values[at]), 6) for metric, values in columns.items()},
                    "ms": round(1000 * result.seconds, 3),
                    "context_relevance": result.context_relevance,
                    "ranks": " ".join("absent" if rank is None else str(rank) for rank in result.ranks),
                }
            )
    return rows


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


_WRITERS = {".csv": to_csv, ".json": to_json, ".html": to_html}


# ---- The HTML page ---------------------------------------------------------------------------------------------------


def require_packages() -> None:
    """Check that the packages for HTML pages are installed.

    Raises:
        ConfigurationError: matplotlib or Jinja2 is not installed.
    """
    _template()
    require_matplotlib()


def evaluation_page(evaluation: Evaluation) -> str:
    """Return the HTML page of an evaluation."""
    title = f"Retrieval of {evaluation.name}" if evaluation.name else "Retrieval"
    return _render(title=title, evaluations=[evaluation])


def comparison_page(comparison: Comparison) -> str:
    """Return the HTML page of a comparison."""
    differences = all_differences(comparison)
    on_metric = [difference for difference in differences if difference.metric == comparison.metric]
    chart = _image(interval_chart(on_metric, x=f"{comparison.metric}: difference in points, 95 % interval"))
    return _render(
        title="Retrieval compared",
        evaluations=comparison.evaluations,
        recommendation=comparison.recommendation,
        notes=comparison.notes,
        differences=differences,
        difference_chart=chart,
        metric=comparison.metric,
        costs=_costs(comparison),
    )


def sweep_page(sweep: Sweep) -> str:
    """Return the HTML page of a sweep, with one table and one chart."""
    lines: dict[str, list[tuple[int, float]]] = {}
    looks: dict[str, tuple[int, int, int]] = {}
    kinds = [list(dict.fromkeys(column)) for column in zip(*map(_kind, sweep.rows), strict=True)]
    for row in sweep.rows:
        lines.setdefault(row.name, []).append((row.top_k, 100 * row.recall))
        colour, stroke, mark = (known.index(part) for known, part in zip(kinds, _kind(row), strict=True))
        looks[row.name] = (colour, stroke, mark)
    best = sweep.best()
    return _render(
        title="Settings compared",
        notes=sweep.notes,
        recommendation=f"Best recall@{best.top_k}: {best.name} ({100 * best.recall:.1f} %).",
        sweep=sweep.rows,
        best=best,
        sweep_chart=_image(line_chart(lines, x="results (top k)", y="recall in per cent", looks=looks)),
    )


def _kind(row: SweepRow) -> tuple[str | int, ...]:
    return row.mode, row.context, row.chunk_size


def all_differences(comparison: Comparison) -> list[Difference]:
    """Return the differences of all pairs, first in the metric of the recommendation, then in the others."""
    shown = [
        comparison.metric,
        *(metric for metric in _columns(comparison.evaluations[0]) if not metric.startswith(("precision@", "hit@"))),
    ]
    return [difference for metric in dict.fromkeys(shown) for difference in comparison.differences(metric)]


def difference_row(difference: Difference) -> dict[str, Any]:
    """Return a difference as JSON values."""
    return {**asdict(difference), "significant": difference.significant}


def _render(*, evaluations: Sequence[Evaluation] = (), **values: Any) -> str:
    columns = _columns(evaluations[0]) if evaluations else []
    charts = _charts(evaluations, columns) if evaluations else {}
    return _template().render(
        evaluations=evaluations,
        summaries=[evaluation.summary() for evaluation in evaluations],
        columns=columns,
        most_failures=MAX_FAILURES,
        negatives=MAX_PAGE_NEGATIVES,
        snippet=_SNIPPET,
        pluralize=pluralize,
        **charts,
        **values,
    )


def _columns(evaluation: Evaluation) -> list[str]:
    ks = evaluation.ks
    rest = (f"{metric}@{k}" for metric in ("hit", "precision") for k in ks)
    others = [metric for metric in evaluation.metrics if metric.partition("@")[0] not in ("recall", "hit", "precision")]
    return [*(f"recall@{k}" for k in ks), *others, *rest]


def _charts(evaluations: Sequence[Evaluation], columns: Sequence[str]) -> dict[str, str]:
    recalls = [metric for metric in columns if metric.startswith("recall@")]
    lines = {
        evaluation.name or "recall": [
            (int(metric.partition("@")[2]), 100 * evaluation.mean(metric)) for metric in recalls
        ]
        for evaluation in evaluations
    }
    ndcg = next(metric for metric in columns if metric.startswith("nDCG@"))
    bars = {}
    for evaluation in evaluations:
        interval = bootstrap_interval(evaluation.values(ndcg))
        bars[evaluation.name or ndcg] = (100 * interval.mean, 100 * interval.low, 100 * interval.high)
    return {
        "recall_chart": _image(line_chart(lines, x="results (k)", y="recall@k in per cent")),
        "ndcg_chart": _image(bar_chart(bars, x=f"{ndcg} in per cent, with its 95 % interval")),
    }


def _costs(comparison: Comparison) -> list[tuple[str, float | None, float | None]]:
    costs = comparison.costs
    return [(name, costs[name], comparison.cost_per_point(name)) for name in comparison.names if name in costs]


def _image(svg: str) -> str:
    """Return an SVG as a data URL for an image element, where scripts do not run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


@cache
def _template() -> Template:
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise ConfigurationError(f"HTML reports need a package that is not installed: {PIP}") from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = (package_files(__package__) / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(text)
