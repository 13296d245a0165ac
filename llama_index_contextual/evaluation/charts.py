"""Charts as SVG, drawn by matplotlib without its global state."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.evaluation.compare import Difference
from llama_index_contextual.readers.discovery import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PIP = 'pip install "llama-index-contextual[eval]"'
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
"""The palette of Okabe and Ito, which is distinguishable with any colour vision."""

_GREY = "#555555"
_WIDTH = 48
_STROKES = ("-", "--", ":", "-.")
_MARKS = "os^Dv<>"


def line_chart(
    lines: Mapping[str, Sequence[tuple[int, float]]],
    *,
    x: str,
    y: str,
    looks: Mapping[str, tuple[int, int, int]] | None = None,
) -> str:
    """Return an SVG with one line for each name.

    Args:
        lines: Points (x, y in per cent) by name, in the order of the legend.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        looks: Numbers of the colour, stroke and marker by name, from 0; lines that share a setting can share a number.
            None gives each line its own colour and marker.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """

    def draw(axes: Axes) -> None:
        for at, (name, points) in enumerate(lines.items()):
            xs, ys = zip(*points, strict=True)
            colour, stroke, mark = looks[name] if looks else (at, at // len(COLOURS), at)
            axes.plot(
                *(xs, ys),
                color=COLOURS[colour % len(COLOURS)],
                linestyle=_STROKES[stroke % len(_STROKES)],
                marker=_MARKS[mark % len(_MARKS)],
                markersize=5,
                linewidth=1.8,
            )
        ticks = sorted({point[0] for points in lines.values() for point in points})
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        if len(lines) > 1:
            legend = axes.legend(
                axes.get_lines(), _labels(lines), frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0)
            )
            _disable_math(legend.get_texts())

    return _svg(draw, height=max(3.4, 0.27 * len(lines) + 0.6))


def bar_chart(bars: Mapping[str, tuple[float, float, float]], *, x: str) -> str:
    """Return an SVG with a horizontal bar and its interval for each name.

    Args:
        bars: Value, lower end and upper end in per cent, by name, from top to bottom.
        x: Label of the axis.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """

    def draw(axes: Axes) -> None:
        for at, (value, low, high) in enumerate(bars.values()):
            axes.barh(at, value, height=0.55, color=COLOURS[at % len(COLOURS)])
            axes.plot([low, high], [at, at], color="black", linewidth=1.4, marker="|", markersize=8)
        _rows(axes, _labels(bars), x)
        axes.set_xlim(0, 100)

    return _svg(draw, height=0.9 + 0.45 * len(bars))


def interval_chart(differences: Sequence[Difference], *, x: str) -> str:
    """Return an SVG with the interval of each difference in percentage points, and a line at zero.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """

    def draw(axes: Axes) -> None:
        for at, row in enumerate(differences):
            colour = _GREY if not row.significant else (COLOURS[2] if row.mean > 0 else COLOURS[1])
            axes.plot([100 * row.low, 100 * row.high], [at, at], color=colour, linewidth=2.2)
            axes.plot([100 * row.mean], [at], color=colour, marker="o", markersize=7)
        axes.axvline(0, color="black", linewidth=0.9)
        _rows(axes, _labels(f"{row.variant} − {row.baseline}" for row in differences), x)

    return _svg(draw, height=0.9 + 0.42 * len(differences))


def _rows(axes: Axes, names: Sequence[str], x: str) -> None:
    axes.set_yticks(range(len(names)), list(names))
    _disable_math(axes.get_yticklabels())
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(x)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)


def _labels(names: Iterable[str]) -> list[str]:
    return [one_line(name, _WIDTH) for name in names]


def _disable_math(texts: Sequence[Any]) -> None:
    for text in texts:
        text.set_parse_math(False)  # a name with two $ is not a formula


def require_matplotlib() -> None:
    """Check that matplotlib is installed.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(f"Charts need a package that is not installed: {PIP}") from error


def _svg(draw: Callable[[Axes], None], *, height: float) -> str:
    require_matplotlib()
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, height), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
