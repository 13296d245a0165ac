"""Failed retrievals of each step on the question sets: `python -m tests.benchmarks.steps --data DATA`.

Measures the same steps as `evaluate --steps`, with the local embedding: embeddings alone, then the structural context,
the recorded LLM contexts if the set has some, BM25, the spotlight, and the reranker given as `--rerank`. No key and no
network are needed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from llama_index_contextual.evaluation.compare import ALPHA
from llama_index_contextual.evaluation.questions import load_questions
from llama_index_contextual.evaluation.report import write_report
from llama_index_contextual.evaluation.steps import Steps, evaluate_steps
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import build
from tests.benchmarks.sets import load

SETS = ("contracts", "filings")
"""The sets whose questions the package reads as they are."""


def main() -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--rerank", help="name or folder of a cross-encoder")
    parser.add_argument("--top-k", nargs="*", type=int, default=[20], help="numbers of results")
    parser.add_argument("--out", type=Path, help="folder for SET-K.svg, .json and .csv")
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.sets:
            questions = load(arguments.data, name)
            context = "both" if questions.contexts else "structural"
            project = build(ProjectManager(root), questions, context)
            asked = load_questions(arguments.data / name / "questions.jsonl")
            for k in arguments.top_k:
                # Without recorded contexts, the limit of 0 skips the LLM even if a key is set.
                steps = evaluate_steps(project, asked, rerank=arguments.rerank, k=k, max_cost=0)
                show(f"{name}, recall@{k}", steps)
                for extension in ("svg", "json", "csv") if arguments.out else ():
                    write_report(steps, arguments.out / f"{name}-{k}.{extension}")


def show(name: str, steps: Steps) -> None:
    """Print the table of a set."""
    print(f"{name}: {' '.join(steps.notes)}")
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


if __name__ == "__main__":
    main()
