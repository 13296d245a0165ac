"""The HTML page of a report, by Jinja2 with autoescape: what documents and questions say stays text."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.evaluation.charts import PIP, bar_chart, interval_chart, line_chart, require_matplotlib
from llama_index_contextual.evaluation.compare import Comparison, Difference
from llama_index_contextual.evaluation.run import Evaluation
from llama_index_contextual.evaluation.significance import bootstrap_interval
from llama_index_contextual.evaluation.sweep import Sweep, SweepRow
from llama_index_contextual.wording import counted

if TYPE_CHECKING:
    from jinja2 import Template

FAILURES = 50
"""Failed questions on a page, at most."""
NEGATIVES = 3

_SNIPPET = 280


def require_packages() -> None:
    """Do nothing where pages can be made.

    Raises:
        ConfigurationError: matplotlib or Jinja2 is not installed.
    """
    _template()
    require_matplotlib()


def evaluation_page(evaluation: Evaluation) -> str:
    """Return the page of one evaluation."""
    title = f"Retrieval of {evaluation.name}" if evaluation.name else "Retrieval"
    return _render(title=title, evaluations=[evaluation])


def comparison_page(comparison: Comparison) -> str:
    """Return the page of a comparison."""
    differences = all_differences(comparison)
    on_metric = [found for found in differences if found.metric == comparison.metric]
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
    """Return the page of a sweep: one table, one chart."""
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
    """Return the differences of all pairs in the metric that decides, then in the others of the page."""
    shown = [
        comparison.metric,
        *(metric for metric in _columns(comparison.evaluations[0]) if not metric.startswith(("precision@", "hit@"))),
    ]
    return [found for metric in dict.fromkeys(shown) for found in comparison.differences(metric)]


def difference_row(found: Difference) -> dict[str, Any]:
    """Return a difference as JSON values."""
    return {**asdict(found), "significant": found.significant}


def _render(*, evaluations: Sequence[Evaluation] = (), **values: Any) -> str:
    columns = _columns(evaluations[0]) if evaluations else []
    charts = _charts(evaluations, columns) if evaluations else {}
    return _template().render(
        evaluations=evaluations,
        summaries=[evaluation.summary() for evaluation in evaluations],
        columns=columns,
        most_failures=FAILURES,
        negatives=NEGATIVES,
        snippet=_SNIPPET,
        counted=counted,
        **charts,
        **values,
    )


def _columns(evaluation: Evaluation) -> list[str]:
    ks = evaluation.ks
    rest = (f"{metric}@{k}" for metric in ("hit", "precision") for k in ks)
    return [*(f"recall@{k}" for k in ks), *evaluation.metrics[-3:], *rest]


def _charts(evaluations: Sequence[Evaluation], columns: Sequence[str]) -> dict[str, str]:
    recalls = [metric for metric in columns if metric.startswith("recall@")]
    lines = {
        evaluation.name or "recall": [
            (int(metric.partition("@")[2]), 100 * evaluation.mean(metric)) for metric in recalls
        ]
        for evaluation in evaluations
    }
    ndcg = columns[len(recalls) + 2]
    bars = {}
    for evaluation in evaluations:
        found = bootstrap_interval(evaluation.values(ndcg))
        bars[evaluation.name or ndcg] = (100 * found.mean, 100 * found.low, 100 * found.high)
    return {
        "recall_chart": _image(line_chart(lines, x="results (k)", y="recall@k in per cent")),
        "ndcg_chart": _image(bar_chart(bars, x=f"{ndcg} in per cent, with its 95 % interval")),
    }


def _costs(comparison: Comparison) -> list[tuple[str, float | None, float | None]]:
    costs = comparison.costs
    return [(name, costs[name], comparison.cost_per_point(name)) for name in comparison.names if name in costs]


def _image(svg: str) -> str:
    """Return an SVG as the address of an image, in which no script runs."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


@cache
def _template() -> Template:
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise ConfigurationError(f"HTML reports need a package that is not installed: {PIP}") from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = (files(__package__) / "report.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(text)
