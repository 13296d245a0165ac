"""Recall of this package on the shared sets: `python -m tests.benchmarks.quality --data ../shared/data`.

Every set, with each mode, without context (none), with the structural one, and where the set has recorded contexts,
with those (llm) and with both. The recorded contexts come from an LLM that replays them, so they take the way of any
LLM's contexts. No key, no network, no reranker; `ProjectConfig.local()` but for the context. Next to it, the results of
the stock LlamaIndex assembly (FAISS inner product on unit vectors, BM25Retriever, QueryFusionRetriever), as recorded in
the data folder's README. Then how far the hybrid is above the better leg, what context changes, with intervals and
p-values, and the means of the sets. The filings need the extra `pdfium` and are skipped without it.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import QueryBundle

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.replay import ReplayingLLM
from tests.benchmarks.sets import KS, SETS, QuestionSet, load, ndcg, recall, score

Measure = Callable[[Sequence[int | None]], float]
MODES: tuple[Mode, ...] = ("lexical", "semantic", "hybrid")
STOCK = {
    ("codebase", "none"): ((41.8, 70.6, 78.5, 82.3), (28.8, 57.5, 65.2, 74.4), (44.6, 72.6, 80.8, 87.2)),
    ("codebase", "llm"): ((53.6, 84.2, 89.0, 93.4), (36.2, 66.7, 77.9, 81.2), (53.1, 84.6, 89.3, 92.7)),
    ("contracts", "none"): ((10.2, 44.2, 58.9, 68.4), (6.3, 20.6, 25.9, 31.1), (10.3, 35.0, 50.1, 65.3)),
    ("corpora", "none"): ((70.4, 95.3, 98.2, 99.0), (48.4, 79.7, 87.9, 93.6), (59.5, 90.2, 95.4, 98.4)),
    ("conversations", "none"): ((26.2, 59.6, 71.1, 78.4), (20.8, 55.0, 67.6, 76.3), (26.7, 62.2, 72.1, 82.8)),
}


CONTEXTS: dict[str, dict[str, Any]] = {
    "none": {"context": "none"},
    "structural": {"context": "structural"},
    "llm": {"context": "llm", "context_on_structure": False},
    "both": {"context": "llm", "context_on_structure": True},
}
"""The settings of each kind of context; those with an LLM need recorded contexts."""


def contexts_of(questions: QuestionSet, wanted: Sequence[str] = tuple(CONTEXTS)) -> list[str]:
    """Return the wanted kinds of context that a set can be measured with."""
    return [name for name in wanted if questions.contexts or CONTEXTS[name]["context"] != "llm"]


def build(
    manager: ProjectManager,
    questions: QuestionSet,
    context: str,
    *,
    config: ProjectConfig | None = None,
    embed_model: BaseEmbedding | None = None,
) -> Project:
    """Ingest a set with one kind of context.

    Args:
        manager: Creates the project.
        questions: The set.
        context: A key of `CONTEXTS`.
        config: The other settings; None for the local ones.
        embed_model: Embeds instead of the model of the settings.

    Raises:
        RuntimeError: A chunk did not get the context that was asked for.
    """
    settings = (config or ProjectConfig.local()).changed(**CONTEXTS[context])
    llm = ReplayingLLM(questions.contexts) if settings.context == "llm" else None
    project = manager.create(f"{questions.name}-{context}", settings, llm=llm, embed_model=embed_model)
    report = project.ingest(questions.inputs())
    if report.failures:
        raise RuntimeError(f"{questions.name}, {context}: {len(report.failures)} chunks failed")
    for file in report.skipped:
        print(f"  skipped {file.path}: {file.reason}")
    return project


def available(names: Sequence[str]) -> list[str]:
    """Return the sets that can be read here, and print why another cannot."""
    if "filings" in names and importlib.util.find_spec("pypdfium2") is None:
        print("filings: skipped, as pypdfium2 is not installed (extra `pdfium`)")
        return [name for name in names if name != "filings"]
    return list(names)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--contexts", nargs="*", choices=CONTEXTS, default=list(CONTEXTS))
    arguments = parser.parse_args()
    head = "".join(f"  R@{k:<4d}" for k in KS)
    print(f"{'set':14s} {'context':11s} {'mode':9s}{head}  nDCG@10   stock: R@1, 5, 10, 20")
    hybrid: dict[str, list[list[float]]] = {}
    with tempfile.TemporaryDirectory() as root:
        for name in available(arguments.sets):
            questions = load(arguments.data, name)
            by_context: dict[str, list[list[int | None]]] = {}
            for context in contexts_of(questions, arguments.contexts):
                started = time.time()
                project = build(ProjectManager(root), questions, context)
                built = time.time() - started
                legs: dict[Mode, dict[int, float]] = {}
                for at, mode in enumerate(MODES):
                    retriever = project.as_retriever(mode=mode, similarity_top_k=max(KS))
                    recalls, gain, ranks = score(
                        questions.questions, lambda q, r=retriever: r.respond(bundle(q)).results
                    )
                    stock = STOCK.get((name, context))
                    beside = ", ".join(f"{value:.1f}" for value in stock[at]) if stock else ""
                    figures = "".join(f"  {recalls[k]:5.1f} " for k in KS)
                    print(f"{name:14s} {context:11s} {mode:9s}{figures}  {gain:5.1f}     {beside}", flush=True)
                    if name == "filings":
                        print(f"{name:14s} {context:11s} {mode:9s}{_any_page(ranks)}  (any of the pages)", flush=True)
                    legs[mode] = recalls
                    if mode == "hybrid":
                        hybrid.setdefault(context, []).append([*recalls.values(), gain])
                        by_context[context] = ranks
                above = (legs["hybrid"][k] - max(legs["lexical"][k], legs["semantic"][k]) for k in KS)
                print(f"{name:14s} {context:11s} − better leg{''.join(f'{gain:+6.1f}  ' for gain in above)}")
                print(f"  {project.info().chunks} chunks, built in {built:.1f} s", flush=True)
            _print_differences(name, by_context)
    for context, figures in hybrid.items():
        *means, gain = (sum(column) / len(figures) for column in zip(*figures, strict=True))
        shown = "".join(f"  {value:5.1f} " for value in means)
        print(f"mean of {len(figures)} sets {context:11s} hybrid   {shown}  {gain:5.1f}")


def _print_differences(name: str, by_context: dict[str, list[list[int | None]]]) -> None:
    """Print what each context changes against the first one: 95 % bootstrap intervals, p by permutation."""
    (first, baseline), *others = by_context.items()
    for context, ranks in others:
        measures: dict[str, Measure] = {f"recall@{k}": partial(recall, k=k) for k in KS[1:]}
        for measure, value in {**measures, "nDCG@10": ndcg}.items():
            gains = [100 * (value(a) - value(b)) for a, b in zip(ranks, baseline, strict=True)]
            result, p = bootstrap_interval(gains), permutation_p_value(gains)
            interval = f"{result.mean:+.1f} ({result.low:+.1f} to {result.high:+.1f}), p = {p:.2g}"
            print(f"{name:14s} {context} − {first}, hybrid, {measure}: {interval}", flush=True)


def _any_page(ranks: Sequence[Sequence[int | None]]) -> str:
    """Return the share of questions of which at least one item of evidence is among the first k."""
    best = [min((rank for rank in of_question if rank), default=max(KS) + 1) for of_question in ranks]
    return "".join(f"  {100 * sum(rank <= k for rank in best) / len(best):5.1f} " for k in KS)


def bundle(question: str) -> QueryBundle:
    """Return a question as retrievers take it."""
    return QueryBundle(question)


if __name__ == "__main__":
    main()
