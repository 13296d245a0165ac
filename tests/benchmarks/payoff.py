"""Recommendations from samples, compared with all documents: `python -m tests.benchmarks.payoff --data DATA`.

For each set with recorded contexts, `evaluate_payoff` is called with all documents, and then with samples of several
sizes and seeds, with the local embedding. An LLM replays the recorded contexts. No key and no network are needed.

A recommendation from a sample is right if it is that from all documents, and wrong if it is the opposite. It is open if
one of them is "not measurable".

Each size has two lines. For "drawn", the results for the questions about a sample are taken from all documents, which
is fast, so that there can be many samples. For "built", the contexts of the other documents are structural, as they
are when a user tries a sample. `--questions N` limits the questions to N, drawn for each seed.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.payoff import Payoff, evaluate_payoff
from llama_index_contextual.evaluation.questions import Question, load_questions
from llama_index_contextual.evaluation.sample import draw_sample
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.replay import ReplayingLLM
from tests.benchmarks.sets import load

SETS = ("contracts", "codebase")

Try = Callable[[Sequence[Question], int], Payoff]
"""Function that tries a sample for some questions and a seed."""


def main() -> None:
    """Print two lines for each set and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--sizes", nargs="*", type=int, default=[5, 10, 20])
    parser.add_argument("--seeds", type=int, default=50, help="number of samples that are drawn")
    parser.add_argument("--built", type=int, default=5, help="number of samples that are built")
    parser.add_argument("--questions", type=int, help="maximum number of questions; default: all")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.sets:
            project = built(ProjectManager(root), arguments.data, name)
            questions = load_questions(arguments.data / name / "questions.jsonl")
            documents = len(project.live_version.records)
            full = evaluate_payoff(project, questions, sample=documents)
            print(f"{name}, {documents} documents, {len(questions)} questions: {full.gain}: {full.verdict}", flush=True)
            for size in (size for size in arguments.sizes if size < documents or arguments.questions):
                ways = {
                    "drawn": (arguments.seeds, partial(drawn, project, full, size)),
                    "built": (arguments.built, partial(tried, project, size)),
                }
                for way, (seeds, attempt) in ways.items():
                    label = f"  {size:3d} documents, {way}"
                    outcomes = measured(label, attempt, questions, full.verdict, seeds, arguments.questions)
                    total += Counter({f"{outcome}, {way}": count for outcome, count in outcomes.items()})
    print("all samples:", "; ".join(f"{outcome} {count}" for outcome, count in sorted(total.items())))


def built(manager: ProjectManager, data: Path, name: str) -> Project:
    """Ingest a set with structural contexts, and an LLM that replays the recorded contexts."""
    questions = load(data, name)
    project = manager.create(name, ProjectConfig.local(), llm=ReplayingLLM(questions.contexts))
    project.ingest(questions.inputs())
    return project


def drawn(project: Project, full: Payoff, size: int, questions: Sequence[Question], seed: int) -> Payoff:
    """Return the results from all documents for the questions about a sample."""
    selected, _ = draw_sample(project.live_version, questions, size, seed=seed)
    evaluations = [
        replace(one, results=[result for result in one.results if result.question in selected])
        for one in full.evaluations
    ]
    return replace(full, evaluations=evaluations)


def tried(project: Project, size: int, questions: Sequence[Question], seed: int) -> Payoff:
    """Try a sample."""
    return evaluate_payoff(project, questions, sample=size, seed=seed)


def measured(
    label: str, attempt: Try, questions: Sequence[Question], expected: str, seeds: int, limit: int | None
) -> Counter[str]:
    """Print the verdicts from samples, and return how many are right, wrong or open."""
    verdicts: Counter[str] = Counter()
    gains, used = [], []
    for seed in range(seeds):
        some = questions if limit is None else random.Random(seed).sample(questions, min(limit, len(questions)))
        try:
            sample = attempt(some, seed)
        except InputError:  # no question about the sample
            verdicts["not measurable"] += 1
            continue
        verdicts[sample.verdict] += 1
        gains.append(100 * sample.gain.mean)
        used.append(len(sample.evaluations[0].results))
    outcomes: Counter[str] = Counter()
    for verdict, count in verdicts.items():
        is_open = "not measurable" in (verdict, expected)
        outcomes["open" if is_open else "right" if verdict == expected else "wrong"] += count
    gain = f"gain {np.mean(gains):+.1f} ± {np.std(gains):.1f}, {np.median(used):.0f} questions" if gains else "no gain"
    shown = ", ".join(f"{verdict} {verdicts[verdict]}" for verdict in ("worth it", "not worth it", "not measurable"))
    print(f"{label}, {gain}: {shown}; right {outcomes['right']}, wrong {outcomes['wrong']}", flush=True)
    return outcomes


if __name__ == "__main__":
    main()
