"""Results of `evaluate` as bars: the share of questions whose evidence is among the first results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.errors import ConfigurationError

AMONG = 5
"""Number of results among which the evidence must be."""

_NAMES = {"none": "The text alone", "structural": "With its place in the document", "llm": "With contexts by the LLM"}


@dataclass(frozen=True)
class Bar:
    """The result of one retriever.

    Attributes:
        name: Name of the retriever or of its settings.
        label: The same in words.
        percent: The share of the evidence that is among the first results, in per cent.
    """

    name: str
    label: str
    percent: float


@dataclass(frozen=True)
class Chart:
    """The results of an evaluation, a comparison or a sweep.

    Attributes:
        questions: Number of questions.
        bars: The results.
    """

    questions: int
    bars: Sequence[Bar]


def read_chart(path: Path) -> Chart:
    """Read a report that `evaluate --report FILE.json` has written.

    Raises:
        ConfigurationError: The file is not such a report.
    """
    try:
        return _chart_of(parse_json(path.read_bytes()))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} is not a report of `evaluate`: write one with `evaluate NAME QUESTIONS --report results.json`.",
            setting="evaluation",
        ) from error


def _chart_of(report: Mapping[str, Any]) -> Chart:
    if "settings" in report:
        rows = [row for row in report["settings"] if row["top_k"] == AMONG]
        return Chart(
            int(report["questions"]),
            [_bar(f"{row['context']}, {row['chunk_size']} tokens, {row['mode']}", row["recall"]) for row in rows],
        )
    summaries = [variant["summary"] for variant in report.get("variants") or [report]]
    bars = [_bar(summary["name"], summary[f"recall@{AMONG}"]) for summary in summaries]
    return Chart(int(summaries[0]["questions"]), bars)


def _bar(name: str, share: float) -> Bar:
    return Bar(name, _NAMES.get(name, name or "This project"), min(100.0, max(0.0, 100 * float(share))))
