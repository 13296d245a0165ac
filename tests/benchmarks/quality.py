"""Recall of this package on the question sets: `python -m tests.benchmarks.quality --data DATA`.

Measures every set in each mode, without contexts (none), with structural contexts and, if the set has recorded
contexts, with both. An LLM replays the recorded contexts, so they are processed like any LLM's contexts. The settings
are `ProjectConfig.local()` except for the context; with `--embedding`, they are the default settings with a transformer
on this machine (see `transformer`). No key and no network are needed. Then prints the difference between hybrid search
and the better of the two rankings, the effect of the contexts, and the means over the sets.

`--out FILE` writes the ranks for every question. `--against FILE` compares the results with ranks written earlier, by
the same command at another commit or by `python -m tests.benchmarks.stock`. Differences are paired, with 95 % bootstrap
confidence intervals and p-values from a permutation test.

`--components` measures nothing. It counts the questions for which other ids, another order or other scores than from
`Project.retrieve` are given by the retrievers, built by hand from the index of a project without options
(`HybridRetriever` and its parts), by `Project.as_retriever`, or for the question with other white space, invisible
characters or another Unicode form (see `FORMS`). It fails if there are any.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_contextual import HybridRetriever, LexicalRetriever, SemanticRetriever
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import DEFAULT_LLM, Mode, ProjectConfig
from llama_index_contextual.evaluation.compare import bootstrap_interval, permutation_p_value
from llama_index_contextual.money.price import Prices
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.replay import ReplayingLLM
from tests.benchmarks.sets import ALL_SETS, KS, SETS, QuestionSet, RecordedContext, load, ndcg, recall, score
from tests.benchmarks.transformer import transformer

Ranks = Sequence[Sequence[int | None]]
"""For each question the rank of each item of its evidence, None beyond the last result."""

MODES: tuple[Mode, ...] = ("lexical", "semantic", "hybrid")
MEASURES: dict[str, Callable[[Sequence[int | None]], float]] = {
    **{f"R@{k}": partial(recall, k=k) for k in KS},
    "nDCG@10": ndcg,
}
HEAD = "".join(f"  {name:6s}" for name in MEASURES)

CONTEXTS: dict[str, dict[str, Any]] = {
    "none": {"context": "none"},
    "structural": {"context": "structural"},
    "both": {"context": "llm"},
}
"""The settings of each kind of context; those with an LLM need recorded contexts."""

NEAREST = {
    "none": ("none",),
    "structural": ("structural", "none"),
    "both": ("both", "none"),
}
"""What each kind of context is compared with in results that may lack it, the nearest first."""


FORMS: Mapping[str, Callable[[str], str]] = {
    "line break": lambda text: f"{text}\n",
    "outer": lambda text: f"\t {text} \u00a0",
    "runs": lambda text: text.replace(" ", " \n\t "),
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "invisible": lambda text: f"\ufeff{text[:1]}\u200b{text[1:]}\u2060".replace(" ", "\u00ad "),
}
"""Forms of a question that have the same meaning."""


def contexts_of(questions: QuestionSet, wanted: Sequence[str] = tuple(CONTEXTS)) -> list[str]:
    """Return the wanted kinds of context that a set can be measured with."""
    return [name for name in wanted if CONTEXTS[name]["context"] != "llm" or questions.contexts]


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
    if report.context_lengths:
        print(f"  {questions.name}, recorded contexts: {report.context_lengths}; {dict(report.context_findings)}")
        print_price(manager, questions, questions.contexts)
    for file in report.skipped:
        print(f"  skipped {file.path}: {file.reason}")
    return project


def print_price(manager: ProjectManager, questions: QuestionSet, contexts: Sequence[RecordedContext]) -> None:
    """Print what contexts of this length cost with the default LLM, with and without the provider's cache."""
    config = ProjectConfig.local().changed(context="llm", llm=DEFAULT_LLM)
    name = f"{questions.name}-price"
    estimate = manager.create(name, config).estimate(questions.inputs())
    length = statistics.fmean(count_tokens(context.context) for context in contexts)
    thousands = estimate.chunks / 1_000
    cached = replace(estimate.contexts, output_tokens=round(length * estimate.chunks))
    uncached = replace(cached, cached_tokens=0, written_tokens=0)
    with_cache, without = (Prices().dollars(DEFAULT_LLM, tokens) or 0.0 for tokens in (cached, uncached))
    print(
        f"  {questions.name}, {DEFAULT_LLM}, per 1,000 chunks: {cached.input_tokens / thousands:,.0f} tokens sent,"
        f" {cached.cached_tokens / thousands:,.0f} of them from the cache, {length * 1_000:,.0f} written;"
        f" ${with_cache / thousands:.2f}, without the cache ${without / thousands:.2f}"
    )
    manager.delete(name)


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that the benchmarks of ranking share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=ALL_SETS, default=list(SETS))
    parser.add_argument("--contexts", nargs="*", choices=CONTEXTS, default=list(CONTEXTS))
    parser.add_argument("--embedding", type=Path, help="folder of a sentence-transformers model; default: WordLlama")
    parser.add_argument("--chunk-size", type=int, default=800, help="tokens; 180 for a model that reads 256")
    parser.add_argument("--cache", type=Path, help="folder for the vectors of --embedding")
    return parser


def settings_of(arguments: argparse.Namespace) -> tuple[ProjectConfig, BaseEmbedding | None]:
    """Return the settings and the embedding of the command line, None for the one of the settings."""
    sizes: dict[str, Any] = {"chunk_size": arguments.chunk_size, "chunk_overlap": arguments.chunk_size // 10}
    if arguments.embedding is None:
        return ProjectConfig.local(**sizes), None
    return ProjectConfig(**sizes), transformer(arguments.embedding, arguments.cache)


def main() -> None:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--out", type=Path, help="file for the ranks of every question")
    parser.add_argument("--components", action="store_true", help="compare the retrievers with the project")
    parser.add_argument("--against", type=Path, nargs="*", default=[], help="files written with --out")
    arguments = parser.parse_args()
    config, embed_model = settings_of(arguments)
    if arguments.components:
        raise SystemExit(compare_components(arguments, config, embed_model))
    baselines = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in arguments.against}
    kept: dict[str, Ranks] = {}
    print(f"{'set':14s} {'context':11s} {'mode':9s}{HEAD}")
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.sets:
            questions = load(arguments.data, name)
            for context in contexts_of(questions, arguments.contexts):
                started = time.time()
                project = build(ProjectManager(root), questions, context, config=config, embed_model=embed_model)
                built = time.time() - started
                kept.update(measured(project, questions, f"{name}/{context}"))
                print(f"  {project.info().chunks} chunks, built in {built:.1f} s", flush=True)
                if arguments.out:  # after each, as the whole can take an hour with a transformer
                    arguments.out.write_text(json.dumps(kept), encoding="utf-8")
    hybrid = {key: ranks for key, ranks in kept.items() if key.endswith("/hybrid")}
    for former, key in combinations(hybrid, 2):
        if former.split("/")[0] == key.split("/")[0]:
            print(f"{key} − {former.split('/')[1]}: {differences(hybrid[key], hybrid[former])}", flush=True)
    for context in arguments.contexts:
        _print_means(context, {key: ranks for key, ranks in hybrid.items() if key.split("/")[1] == context})
    for label, baseline in baselines.items():
        print_against(label, hybrid, baseline)


def compare_components(
    arguments: argparse.Namespace, config: ProjectConfig, embed_model: BaseEmbedding | None
) -> str | None:
    """Print the number of questions with other results by set, context and mode, and return a message if any has."""
    total = 0
    with tempfile.TemporaryDirectory() as root:
        for name in arguments.sets:
            questions = load(arguments.data, name)
            texts = [question.text for question in questions.questions]
            for context in contexts_of(questions, arguments.contexts):
                project = build(ProjectManager(root), questions, context, config=config, embed_model=embed_model)
                for mode in MODES:
                    counts = differences_from_project(project, texts, mode)
                    total += sum(counts.values())
                    shown = ", ".join(f"{door} {count}" for door, count in counts.items())
                    print(f"{name:14s} {context:11s} {mode:9s} {len(texts)} questions; different: {shown}", flush=True)
    return f"{total} differences" if total else None


def differences_from_project(project: Project, texts: Sequence[str], mode: Mode) -> dict[str, int]:
    """Return the number of questions with other results than from `Project.retrieve`, by door or form."""
    expected = [results(project.retrieve(text, mode=mode)) for text in texts]
    component, retriever = by_hand(project, mode), project.as_retriever(mode=mode)
    doors: dict[str, Callable[[str], Iterable[NodeWithScore]]] = {
        type(component).__name__: component.retrieve,
        "as_retriever": retriever.retrieve,
        **{name: lambda text, form=form: project.retrieve(form(text), mode=mode) for name, form in FORMS.items()},
    }
    return {
        door: sum(results(ask(text)) != hits for text, hits in zip(texts, expected, strict=True))
        for door, ask in doors.items()
    }


def by_hand(project: Project, mode: Mode) -> BaseRetriever:
    """Return the retriever of a mode, built from the index of a project without options."""
    legs = {"semantic": SemanticRetriever(project.index), "lexical": LexicalRetriever(project.live_version.index)}
    return legs[mode] if mode in legs else HybridRetriever([*legs.values()])


def results(hits: Iterable[NodeWithScore]) -> list[tuple[str, float | None]]:
    """Return the ids and scores of hits."""
    return [(hit.node.node_id, hit.score) for hit in hits]


def measured(project: Project, questions: QuestionSet, label: str) -> dict[str, Ranks]:
    """Print one line per mode, and return the ranks by label and mode."""
    kept = {}
    for mode in MODES:
        retriever = project.as_retriever(mode=mode, similarity_top_k=max(KS))
        _, _, ranks = score(questions.questions, lambda q, r=retriever: r.respond(bundle(q)).results)
        kept[f"{label}/{mode}"] = ranks
        print(row(f"{label.replace('/', ' ')} {mode}", ranks), flush=True)
        if questions.name == "filings":
            print(f"{'':36s}{_any_page(ranks)}  (any of the pages)", flush=True)
    better = max(MODES[:2], key=lambda mode: mean("nDCG@10", kept[f"{label}/{mode}"]))
    above = [mean(name, kept[f"{label}/hybrid"]) - mean(name, kept[f"{label}/{better}"]) for name in MEASURES]
    print(f"{f'  hybrid − {better}':36s}{''.join(f'{gain:+7.1f} ' for gain in above)}", flush=True)
    return kept


def mean(measure: str, ranks: Ranks) -> float:
    """Return the mean of a measure in per cent."""
    return 100 * sum(map(MEASURES[measure], ranks)) / len(ranks)


def row(label: str, ranks: Ranks) -> str:
    """Return a line with all measures in per cent."""
    name, _, rest = label.partition(" ")
    context, _, mode = rest.partition(" ")
    return f"{name:14s} {context:11s} {mode:9s}" + "".join(f"  {mean(measure, ranks):5.1f} " for measure in MEASURES)


def differences(ranks: Ranks, baseline: Ranks, measures: Sequence[str] = tuple(MEASURES)) -> str:
    """Return the paired difference in each measure with its 95 % interval, and p by permutation."""
    parts = []
    for name in measures:
        value = MEASURES[name]
        gains = [100 * (value(a) - value(b)) for a, b in zip(ranks, baseline, strict=True)]
        parts.append(f"{name} {interval(gains)}")
    return "; ".join(parts)


def interval(gains: Sequence[float], digits: int = 1) -> str:
    """Return the mean of paired differences with its 95 % bootstrap interval, and p by permutation."""
    average, p = sum(gains) / len(gains), permutation_p_value(gains)
    mean, low, high = (f"{value:+.{digits}f}" for value in (average, *bootstrap_interval(gains)))
    return f"{mean} ({low} to {high}, p {p:.2g})"


def print_against(label: str, results: Mapping[str, Ranks], baseline: Mapping[str, Ranks]) -> None:
    """Print the paired differences from another state, in its nearest kind of context."""
    for key, ranks in results.items():
        name, context, mode = key.split("/")
        nearest = [other for other in NEAREST[context] if f"{name}/{other}/{mode}" in baseline]
        if nearest:
            shown = differences(ranks, baseline[f"{name}/{nearest[0]}/{mode}"])
            print(f"{key} − {label}, {nearest[0]}: {shown}", flush=True)


def _print_means(context: str, results: Mapping[str, Ranks]) -> None:
    if results:
        means = [sum(mean(name, ranks) for ranks in results.values()) / len(results) for name in MEASURES]
        shown = "".join(f"  {value:5.1f} " for value in means)
        print(f"{f'mean of {len(results)} sets, {context}, hybrid':36s}{shown}", flush=True)


def _any_page(ranks: Ranks) -> str:
    """Return the share of questions of which at least one item of evidence is among the first k."""
    best = [min((rank for rank in of_question if rank), default=max(KS) + 1) for of_question in ranks]
    return "".join(f"  {100 * sum(rank <= k for rank in best) / len(best):5.1f} " for k in KS)


def bundle(question: str) -> QueryBundle:
    """Return a question as retrievers take it."""
    return QueryBundle(question)


if __name__ == "__main__":
    main()
