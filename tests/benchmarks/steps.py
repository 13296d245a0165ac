"""Failed retrievals of each step on the question sets: `python -m tests.benchmarks.steps --data DATA`.

Measures the same steps as `evaluate --steps`, with the local embedding: embeddings alone, then the structural context,
the recorded LLM contexts if the set has some, BM25, the spotlight, and the reranker given as `--rerank`. Then prints
the means over the sets with recorded contexts. No key and no network are needed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from llama_index_contextual.evaluation.compare import ALPHA
from llama_index_contextual.evaluation.questions import load_questions
from llama_index_contextual.evaluation.report import write_report
from llama_index_contextual.evaluation.run import KS
from llama_index_contextual.evaluation.steps import (
    LEXICAL,
    LLM_CONTEXT,
    ORDER,
    RERANKER,
    WITHOUT_LLM,
    Steps,
    evaluate_steps,
)
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import build, interval
from tests.benchmarks.sets import load

SETS = ("contracts", "codebase", "filings")
"""The sets with recorded contexts, and the filings, which have none."""
PUBLISHED = {LLM_CONTEXT: 35, LEXICAL: 49, RERANKER: 67}
"""Failed retrievals avoided at k = 20, in per cent of those of embeddings alone; see `evaluation.steps`."""


def main() -> None:
    """Print a table for each set and number of results, and the means over the sets with recorded contexts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--rerank", help="name or folder of a cross-encoder")
    parser.add_argument("--top-k", nargs="+", type=int, choices=KS, default=[20, 10, 5], help="numbers of results")
    parser.add_argument("--out", type=Path, help="folder for SET-K.svg, .json and .csv")
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    measured: dict[int, list[Steps]] = {k: [] for k in arguments.top_k}
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.sets:
            questions = load(arguments.data, name)
            context = "both" if questions.contexts else "structural"
            project = build(ProjectManager(root), questions, context)
            asked = load_questions(arguments.data / name / "questions.jsonl")
            # Without recorded contexts, the limit of 0 skips the LLM even if a key is set.
            steps = evaluate_steps(
                project,
                asked,
                rerank=arguments.rerank,
                k=max(arguments.top_k),
                max_cost=None if questions.contexts else 0,
            )
            print(f"{name}: {' '.join(steps.notes)}")
            for k in arguments.top_k:
                of_k = replace(steps, metric=f"recall@{k}")
                show(f"{name}, recall@{k}", of_k)
                if questions.contexts:
                    measured[k].append(of_k)
                for extension in ("svg", "json", "csv") if arguments.out else ():
                    write_report(of_k, arguments.out / f"{name}-{k}.{extension}")
    for k, of_sets in measured.items():
        if len(of_sets) > 1:
            show_means(k, of_sets)


def show(name: str, steps: Steps) -> None:
    """Print the table of a set."""
    print(name)
    print(
        f"{'step':22s} failed, %  95 % interval  change (95 % interval)             p   fewer  in all     nDCG     ms"
    )
    for row in steps.table():
        if row["skipped"]:
            print(f"{row['step']:22s} skipped: {row['skipped']}")
            continue
        line = f"{row['step']:22s} {100 * row['failed']:9.1f}  {100 * row['low']:5.1f} to {100 * row['high']:4.1f}"
        change = ""
        if row["previous"] is not None:
            mean, low, high = (100 * row[f"{end}_from_previous"] for end in ("change", "low", "high"))
            change = f"{mean:+6.1f} ({low:+5.1f} to {high:+5.1f}) {row['p_from_previous']:9.2g}"
            change += "*" if row["p_from_previous"] < ALPHA else " "
            change += "".join(f"{100 * (row[f'fewer_than_{kind}'] or 0):6.0f} %" for kind in ("previous", "first"))
        print(
            f"{line}  {change:51s} {100 * row[steps.evaluations[0].main_metric]:8.1f} {row['p50_ms']:6.1f}", flush=True
        )
    print(steps.recommendation, flush=True)


def show_means(k: int, of_sets: Sequence[Steps]) -> None:
    """Print the means over the sets, and the changes over all questions, with their 95 % intervals."""
    names = [name for name in ORDER if name != WITHOUT_LLM and all(name in steps.names for steps in of_sets)]
    metrics = (f"recall@{k}", of_sets[0].evaluations[0].main_metric)
    values = {(name, metric): [steps[name].values(metric) for steps in of_sets] for name in names for metric in metrics}
    means = {key: 100 * float(np.mean([one.mean() for one in ones])) for key, ones in values.items()}
    count = sum(map(len, values[names[0], metrics[0]]))
    print(f"mean of {len(of_sets)} sets; changes in {' and '.join(metrics)} over all {count} questions")
    for name, before in zip(names, [None, *names], strict=False):
        failed, first = (100 - means[one, metrics[0]] for one in (name, names[0]))
        line = f"{name:22s} {failed:5.1f} % failed, {metrics[1]} {means[name, metrics[1]]:5.1f}"
        if before is not None:
            published = f" (published: {PUBLISHED[name]} %)" if name in PUBLISHED else ""
            gains = [
                interval(list(100 * (np.concatenate(values[name, one]) - np.concatenate(values[before, one]))))
                for one in metrics
            ]
            line += f"; {100 * (1 - failed / first):4.0f} % fewer{published}; {'; '.join(gains)}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
