"""Ask about two things at once: `python -m tests.benchmarks.halves --data DATA`.

Each question joins two questions of a set with "and". Prints how often the results that are shown contain evidence for
both halves, if the results end at the usual limit, and if the hit that answers the rest of the question is added; how
often the first 20 hits contain both; and the mean number of results, in brackets for the questions alone.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search import spotlight
from tests.benchmarks.quality import build
from tests.benchmarks.sets import Question, first_ranks, load

SETS = ("corpora", "conversations", "tables", "manuals", "xquad_de", "xquad_ar")
PAIRS, LONGEST = 150, 140


def joined(first: Question, second: Question) -> str:
    """Return one question for two."""
    return f"{first.text.rstrip('?؟. ')} and {second.text[0].lower()}{second.text[1:]}"


def shown(project: Project, questions: list[tuple[str, list[Question]]]) -> tuple[int, int, float]:
    """Return how often both halves are shown, how often they are among the first 20 hits, and the mean of results."""
    both = found = results = 0
    for text, parts in questions:
        response = project.retrieve(text, top_k=20, min_relevance="auto")
        first, everything = list(response.results), [*response.results, *response.folded]
        both += all(any(first_ranks(first, part.evidence)) for part in parts)
        found += all(any(first_ranks(everything, part.evidence)) for part in parts)
        results += len(first)
    return both, found, results / len(questions)


def main() -> None:
    """Print the figures of each set, without and with the hit that answers the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    options = parser.parse_args()
    rest = spotlight.REST
    for name in options.sets:
        questions, chance = load(options.data, name), random.Random(5)
        short = [question for question in questions.questions if len(question.text) < LONGEST]
        alone = [(one.text, [one]) for one in chance.sample(short, min(PAIRS, len(short)))]
        pairs = [chance.sample(short, 2) for _ in range(PAIRS)]
        with tempfile.TemporaryDirectory() as folder:
            project = build(ProjectManager(folder), questions, "structural")
            for spotlight.REST in (1.1, rest):
                both, found, results = shown(project, [(joined(*pair), pair) for pair in pairs])
                _, _, of_one = shown(project, alone)
                end = "at the limit" if spotlight.REST > 1 else "with the rest"
                print(
                    f"{name:14s} {end:13s} both halves shown {both:3d} of {PAIRS}, among 20 {found:3d};"
                    f" {results:.1f} results ({of_one:.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
