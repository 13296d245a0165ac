"""Failed retrievals of each step on shared sets: `python -m tests.benchmarks.steps --data ../shared/data`.

What `evaluate --steps` measures, with the local embedding: embeddings alone, then the structural context, the recorded
LLM contexts if the set has some, BM25, the spotlight, and the reranker that `--rerank` names. No key, no network. The
filings need the extra `pdfium`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from llama_index_contextual.evaluation.questions import load_questions
from llama_index_contextual.evaluation.report import write_chart, write_report
from llama_index_contextual.evaluation.steps import Steps, evaluate_steps
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import available, build
from tests.benchmarks.sets import load

SETS = ("contracts", "filings")
"""The sets whose questions the package reads as they are."""


def main() -> None:
    """Print a table for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--rerank", help="name or folder of a cross-encoder")
    parser.add_argument("--out", type=Path, help="folder for SET.svg and SET.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        for name in available(arguments.sets):
            questions = load(arguments.data, name)
            context = "both" if questions.contexts else "structural"
            project = build(ProjectManager(root), questions, context)
            # Without recorded contexts, the limit of 0 skips the LLM even if a key is set.
            steps = evaluate_steps(
                project, load_questions(arguments.data / name / "questions.jsonl"), rerank=arguments.rerank, max_cost=0
            )
            show(name, steps)
            if arguments.out:
                write_chart(steps, arguments.out / f"{name}.svg")
                write_report(steps, arguments.out / f"{name}.json")


def show(name: str, steps: Steps) -> None:
    """Print the table of a set."""
    print(f"{name}: {' '.join(steps.notes)}")
    print(f"{'step':22s} failed, %  95 % interval    change (95 % interval)      p  fewer  in all    p        ms")
    for step in steps.steps():
        if step.failed is None or step.interval is None or step.seconds is None:
            print(f"{step.name:22s} skipped: {step.skipped}")
            continue
        low, high = (100 * end for end in step.interval)
        line = f"{step.name:22s} {100 * step.failed:9.1f}  {low:5.1f} to {high:5.1f}  "
        if step.previous is None or step.first is None:
            line += " " * 57
        else:
            one, shares = step.previous, [100 * (share or 0.0) for share in (step.fewer, step.fewer_than_first)]
            line += f"{0 - 100 * one.mean:+6.1f} ({0 - 100 * one.high:+5.1f} to {0 - 100 * one.low:+5.1f})"
            line += f"  {one.p_value:7.2g}{'*' if one.significant else ' '}"
            line += f" {shares[0]:4.0f} %  {shares[1]:4.0f} %  {step.first.p_value:7.2g}"
        print(f"{line}  {1000 * step.seconds:6.1f}", flush=True)
    print(steps.recommendation, flush=True)


if __name__ == "__main__":
    main()
