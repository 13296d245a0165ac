"""A transformer that reads little: `python -m tests.benchmarks.windows --data ../shared/data --model FOLDER`.

Sets with chunks of the default size, embedded by a sentence-transformers model of a local folder that reads less than
a chunk with its context (all-MiniLM-L6-v2 reads 256 tokens; `pip install "llama-index-contextual[huggingface]"`): once
cut off by the model, once in windows whose vectors are averaged, and for comparison by WordLlama (`local`). All are
searched semantically and hybrid, with the default settings. `--every 3` takes every third document of a folder, with
the questions about it, because encoding takes long. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.quality import CONTEXTS, build, bundle, contexts_of
from tests.benchmarks.sets import KS, SETS, QuestionSet, load, ndcg, score

WINDOWS: dict[str, int | str | None] = {"wordllama": None, "truncated": None, "windows": "auto"}
MODES: tuple[Mode, ...] = ("semantic", "hybrid")


def main() -> None:
    """Print the table, and how far windows are above truncation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=["codebase", "contracts"])
    parser.add_argument("--contexts", nargs="*", choices=CONTEXTS, default=["structural", "both"])
    parser.add_argument("--every", type=int, default=1, help="take every n-th document of a folder")
    parser.add_argument("--variants", nargs="*", choices=WINDOWS, default=list(WINDOWS))
    arguments = parser.parse_args()
    print(f"{'set':10s} {'context':10s} {'mode':9s} {'variant':10s}{''.join(f'  R@{k:<4d}' for k in KS)}  nDCG@10")
    for name in arguments.sets:
        questions = load(arguments.data, name)
        if questions.folder and arguments.every > 1:
            questions = _every(questions, arguments.every)
        for context in contexts_of(questions, arguments.contexts):
            measure(questions, context, f"huggingface:{arguments.model}", arguments.variants)


def measure(questions: QuestionSet, context: str, model: str, variants: Sequence[str]) -> None:
    """Print the figures of each variant, and how far windows are above the others."""
    gains: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as root:
        for variant in variants:
            name = "local" if variant == "wordllama" else model
            config = ProjectConfig.local(embed_model=name, embed_window=WINDOWS[variant])
            started = time.process_time()
            project = build(ProjectManager(Path(root) / variant), questions, context, config=config)
            built = time.process_time() - started
            for mode in MODES:
                retriever = project.as_retriever(mode=mode, similarity_top_k=max(KS))
                recalls, gain, ranks = score(questions.questions, lambda q, r=retriever: r.respond(bundle(q)).results)
                gains[variant, mode] = [100 * ndcg(result) for result in ranks]
                figures = "".join(f"  {recalls[k]:5.1f} " for k in KS)
                print(f"{questions.name:10s} {context:10s} {mode:9s} {variant:10s}{figures}  {gain:5.1f}", flush=True)
            print(f"  {project.info().chunks} chunks, built in {built:.1f} s of CPU time", flush=True)
    if "windows" not in variants:
        return
    for other in (variant for variant in variants if variant != "windows"):
        for mode in MODES:
            pairs = zip(gains["windows", mode], gains[other, mode], strict=True)
            difference = [a - b for a, b in pairs]
            result, p = bootstrap_interval(difference), permutation_p_value(difference)
            print(
                f"{questions.name:10s} {context:10s} {mode:9s} windows − {other}, nDCG@10:"
                f" {result.mean:+.1f} ({result.low:+.1f} to {result.high:+.1f}), p = {p:.2g}",
                flush=True,
            )


def _every(questions: QuestionSet, step: int) -> QuestionSet:
    """Return every n-th document, with the questions about it."""
    names = sorted({str(document.metadata["file_name"]) for document in questions.documents})[::step]
    few = replace(questions, questions=[q for q in questions.questions if q.evidence[0]["file"] in names])
    few.__dict__["documents"] = [d for d in questions.documents if d.metadata["file_name"] in names]
    return few


if __name__ == "__main__":
    main()
