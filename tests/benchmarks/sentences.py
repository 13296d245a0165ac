"""Check whether the marked sentence is part of the evidence: `python -m tests.benchmarks.sentences --data DATA`.

For each question, the first result that contains at least half of an evidence item is examined, with the local
settings. Prints the share of these results whose mark overlaps the evidence, the share in which the mark or the second
best sentence does, and the median length of the marks. Evidence without offsets is located by its words. `--all`
examines all such results. `--sample` prints marks with their pages and sections, so that you can compare them with the
documents.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.units import Units
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.rank import CANDIDATES, semantic_list
from llama_index_contextual.search.response import Mark
from llama_index_contextual.search.search import Query, SearchSettings, rank, with_best_units
from llama_index_contextual.search.spotlight import Spot, match_units
from tests.benchmarks.quality import build
from tests.benchmarks.sets import QuestionSet, load

SETS = ("contracts", "corpora", "conversations")
RESULTS = 20


@dataclass(frozen=True)
class Judged:
    """The mark of a result, and whether it or the second best unit overlaps the evidence."""

    question: str
    mark: Mark
    first: bool
    second: bool


def located(chunk: Chunk, item: dict[str, Any]) -> tuple[int, int] | None:
    """Return the span of an evidence item in a chunk that contains at least half of it, or None."""
    if chunk.metadata["file_name"] != item["file"] or chunk.start is None:
        return None
    if "text" in item:
        match = re.search(r"\W+".join(map(re.escape, re.findall(r"\w+", item["text"]))), chunk.text)
        return None if match is None else match.span()
    start, end = (offset - chunk.start for offset in item["span"])
    inside = min(end, len(chunk.text)) - max(start, 0)
    return (start, end) if inside >= 0.5 * (end - start) else None


def judged(project: Project, questions: QuestionSet, *, every: bool) -> Iterator[Judged]:
    """Search for each question, and judge the mark of the first result, or of all, with an item of its evidence."""
    live = project.live_version
    index, embedder = live.index, live.embedder
    settings = SearchSettings.of(project.config, mode="hybrid", k=RESULTS, filters=None)
    for question in questions.questions:
        text = question.text
        semantic = semantic_list(index, embedder.unit([text]), CANDIDATES, model=embedder.name)
        ranking = rank(Query.of(text), semantic, index, settings, "hybrid", CANDIDATES, model=embedder.name)
        ranking, spots, *_ = with_best_units(index, ranking, text, results=RESULTS, rerank=True)
        chunks = index.fetch(ranking.hits.rows[:RESULTS].tolist())
        for chunk, spot in zip(chunks, spots, strict=False):
            spans = [span for item in question.evidence if (span := located(chunk, item)) is not None]
            if not spans or spot.end == spot.start:
                continue
            blank = chunk.text[: spot.start] + " " * (spot.end - spot.start) + chunk.text[spot.end :]
            others = Units.of([(blank, chunk.metadata)], index.lexical.analyzer)
            (second,) = match_units(ranking, others, text, index.lexical).spots()
            yield Judged(
                text,
                Mark.of(chunk, spot.start, spot.end),
                overlaps(spot, spans),
                overlaps(spot, spans) or overlaps(second, spans),
            )
            if not every:
                break


def overlaps(spot: Spot, spans: list[tuple[int, int]]) -> bool:
    """Return whether a unit shares a character with one of the spans."""
    return any(min(spot.end, end) > max(spot.start, start) for start, end in spans)


def main() -> None:
    """Print a line for each set, and the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=SETS, choices=SETS)
    parser.add_argument("--all", action="store_true", help="judge all results with evidence, not only the first")
    parser.add_argument("--sample", type=int, default=0, help="number of marks to print for each set")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    for name in options.sets:
        questions = load(options.data, name)
        with tempfile.TemporaryDirectory() as folder:
            project = build(ProjectManager(folder), questions, "structural")
            rows = list(judged(project, questions, every=options.all))
        first, second = (100 * sum(flags) / len(rows) for flags in ([r.first for r in rows], [r.second for r in rows]))
        length = median(row.mark.end - row.mark.start for row in rows)
        shares = f"first {first:.1f} %, first two {second:.1f} %"
        print(f"{name}: {len(rows)} results, {shares}, median {length:.0f} characters")
        for row in random.Random(options.seed).sample(rows, min(options.sample, len(rows))):
            print(f"  {row.question[:200]!r}\n    {row.mark.text[:300]!r}")


if __name__ == "__main__":
    main()
