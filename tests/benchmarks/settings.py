"""Sensitivity of the results to the settings of the search: `python -m tests.benchmarks.settings --data DATA`.

Prints nDCG@10 for every set, with structural contexts and, if the set has recorded contexts, with both contexts: with
the default settings, and with one setting changed at a time. With `--embedding`, every set is also searched with a
transformer and chunks of `--chunk-size` tokens.

Then prints how much is lost if both embeddings have the same setting instead of the best one for each. Finally, each
set is left out once: the setting that is best for the other sets is compared with the default on this set, with the
confidence interval of the difference. `--vary NAME …` selects the settings to change. `context_neighbours`, which needs
another index, is changed only if it is selected.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search import spotlight
from tests.benchmarks.quality import build, contexts_of, interval, options, settings_of
from tests.benchmarks.sets import KS, QuestionSet, first_ranks, load, ndcg

VARIED: dict[str, Sequence[Any]] = {
    "semantic_weight": (0.0, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 1.0),
    "document_weight": (0.0, 0.05, 0.1, 0.2),
    "fusion": ("rrf",),
    "rrf_k": (60.0,),
    "rerank": (None,),
    "words_weight": (0.0, 0.2, 0.8),
    "meaning_weight": (0.0, 0.4, 1.6),
    "context_neighbours": (True,),
}
"""Values other than the defaults."""

CONSTANTS = {"words_weight": "WORDS_WEIGHT", "meaning_weight": "MEANING_WEIGHT"}
"""Constants of the spotlight that are varied like settings."""

REBUILT = ("context_neighbours",)
"""Settings that need another index."""

DEFAULT = "default"
SEED, DRAWS = 5, 2_000
Values = dict[str, NDArray[np.float64]]
"""nDCG@10 of each question in per cent, by what is changed."""


def variants(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the settings that are tried, by what they change."""
    results: dict[str, dict[str, Any]] = {DEFAULT: {}}
    for name in names:
        for value in VARIED[name]:
            more = {"fusion": "rrf", "semantic_weight": 0.5} if name in ("fusion", "rrf_k") else {}
            results[f"{name}={value}"] = {**more, name: value}
    return results


def measured(
    questions: QuestionSet,
    context: str,
    changes: Mapping[str, dict[str, Any]],
    config: ProjectConfig,
    embed_model: BaseEmbedding | None,
) -> Values:
    """Return nDCG@10 of every question with every variant of the settings."""
    with tempfile.TemporaryDirectory() as root:
        project, results = build(ProjectManager(root), questions, context, config=config, embed_model=embed_model), {}
        embedder = project.live_version.embedder
        bundles = [QueryBundle(one.text, embedding=embedder.embed([one.text])) for one in questions.questions]
        for label, settings in changes.items():
            searched = project
            if built := {name: settings[name] for name in REBUILT if name in settings}:
                manager, changed = ProjectManager(Path(root, label)), config.changed(**built)
                searched = build(manager, questions, context, config=changed, embed_model=embed_model)
            results[label] = _gains(searched, questions, bundles, settings)
        return results


def _gains(
    project: Project, questions: QuestionSet, bundles: Sequence[QueryBundle], changes: Mapping[str, Any]
) -> NDArray[np.float64]:
    constants = {CONSTANTS[name]: value for name, value in changes.items() if name in CONSTANTS}
    settings = {name: value for name, value in changes.items() if name not in (*CONSTANTS, *REBUILT)}
    retriever = project.as_retriever(similarity_top_k=max(KS)).changed(**settings)
    with mock.patch.multiple(spotlight, **constants) if constants else nullcontext():
        found = [retriever.respond(bundle).results for bundle in bundles]
    ranks = map(first_ranks, found, (one.evidence for one in questions.questions))
    return 100 * np.asarray([ndcg(of_question) for of_question in ranks])


def mean(label: str, results: Iterable[Values]) -> float:
    """Return the mean of the columns' means."""
    return float(np.mean([values[label].mean() for values in results]))


def main() -> None:
    """Print the tables."""
    parser = options(__doc__)
    parser.add_argument("--vary", nargs="*", choices=VARIED, default=[name for name in VARIED if name not in REBUILT])
    parser.set_defaults(contexts=["structural", "both"])
    arguments = parser.parse_args()
    changes = variants(arguments.vary)
    embeddings = {"local": (ProjectConfig.local(), None)}
    if arguments.embedding is not None:
        embeddings["transformer"] = settings_of(arguments)
    results: dict[tuple[str, str, str], Values] = {}
    for name in arguments.sets:
        questions = load(arguments.data, name)
        for context in contexts_of(questions, arguments.contexts):
            for embedding, (config, embed_model) in embeddings.items():
                values = measured(questions, context, changes, config, embed_model)
                results[name, context, embedding] = values
                print(f"{name}, {context}, {embedding}: ", end="")
                print("; ".join(f"{label} {gains.mean():.2f}" for label, gains in values.items()), flush=True)
    print_table(list(changes), results)
    print_gains(list(changes), results)
    if len(embeddings) > 1:
        print_cost_of_one(list(changes), results)
    print_left_out(list(changes), results)


def print_table(labels: Sequence[str], results: Mapping[tuple[str, str, str], Values]) -> None:
    """Print the mean of every variant in every column, and over the columns of each embedding."""
    embeddings = dict.fromkeys(key[-1] for key in results)
    print(f"{'changed':24s}" + "".join(f"{f'mean, {embedding}':>20s}" for embedding in embeddings) + f"{'mean':>8s}")
    for label in labels:
        means = [mean(label, (v for key, v in results.items() if key[-1] == embedding)) for embedding in embeddings]
        print(f"{label:24s}{''.join(f'{value:20.2f}' for value in means)}{mean(label, results.values()):8.2f}")


def print_gains(labels: Sequence[str], results: Mapping[tuple[str, str, str], Values]) -> None:
    """Print what the default gains against every other variant, in every column and in the mean of the columns."""
    for label in labels[1:]:
        gains = {key: values[DEFAULT] - values[label] for key, values in results.items()}
        for key, of_questions in gains.items():
            print(f"default against {label}, {', '.join(key)}: {interval(of_questions, digits=2)}")
        generator = np.random.default_rng(SEED)
        drawn = [generator.choice(one, (DRAWS, len(one))).mean(axis=1) for one in gains.values()]
        low, high = np.quantile(np.mean(drawn, axis=0), (0.025, 0.975))
        middle = float(np.mean([one.mean() for one in gains.values()]))
        print(f"default against {label}, mean of the columns: {middle:+.2f} ({low:+.2f} to {high:+.2f})")


def print_cost_of_one(labels: Sequence[str], results: Mapping[tuple[str, str, str], Values]) -> None:
    """Print the best setting for all columns, and what each embedding loses with it against its own best one."""
    one = max(labels, key=lambda label: mean(label, results.values()))
    print(f"best for all: {one}")
    for embedding in dict.fromkeys(key[-1] for key in results):
        own = [values for key, values in results.items() if key[-1] == embedding]
        best = max(labels, key=lambda label: mean(label, own))
        losses = {label: mean(best, own) - mean(label, own) for label in (one, DEFAULT)}
        shown = ", ".join(f"{label} loses {loss:.2f}" for label, loss in losses.items())
        print(f"best for {embedding}: {best}; {shown}")


def print_left_out(labels: Sequence[str], results: Mapping[tuple[str, str, str], Values]) -> None:
    """Print for each set what would be chosen without it, and what that gives on it."""
    for left_out in dict.fromkeys(key[0] for key in results):
        others = [values for key, values in results.items() if key[0] != left_out]
        if not others:
            continue
        chosen = max(labels, key=lambda label: mean(label, others))
        of_set = [values for key, values in results.items() if key[0] == left_out]
        gains = np.mean([values[chosen] - values[DEFAULT] for values in of_set], axis=0)
        print(f"without {left_out}: {chosen} is chosen; on {left_out} {interval(gains, digits=2)}")


if __name__ == "__main__":
    main()
