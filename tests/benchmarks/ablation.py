"""What each part of the reranking by the best unit contributes: `python -m tests.benchmarks.ablation --data DATA`.

Measures nDCG@10 of hybrid search in each set and kind of context, with all parts and with one part less at a time:

- words: the words of the best unit.
- meaning: the direction of the best unit.
- header: the words of the title, the file name and the section, which count for every unit of a passage.
- context: the words of the context, which do the same.
- everything: the order of the fused scores.

The settings are those of `quality`. Differences are paired, with 95 % bootstrap intervals and p-values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from typing import Any
from unittest import mock

import numpy as np

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search import spotlight
from llama_index_contextual.search.spotlight import Matches
from tests.benchmarks.quality import build, bundle, interval, options, settings_of
from tests.benchmarks.sets import KS, SENTENCE_SETS, SETS, QuestionSet, load, ndcg, score

_NOWHERE = property(lambda matches: np.zeros_like(matches.contains))

PARTS: Mapping[str, tuple[object, Mapping[str, Any]]] = {
    "words": (spotlight, {"WORDS_WEIGHT": 0.0}),
    "meaning": (spotlight, {"MEANING_WEIGHT": 0.0}),
    "header": (Matches, {"_in_header": _NOWHERE}),
    "context": (Matches, {"_in_context": _NOWHERE}),
    "everything": (spotlight, {"WORDS_WEIGHT": 0.0, "MEANING_WEIGHT": 0.0}),
}
"""What is replaced to leave a part out."""


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.set_defaults(sets=[*SETS, *SENTENCE_SETS], contexts=["none", "structural"])
    arguments = parser.parse_args()
    config, embed_model = settings_of(arguments)
    gains: dict[str, list[float]] = {part: [] for part in PARTS}
    for name, context in product(arguments.sets, arguments.contexts):
        questions = load(arguments.data, name)
        with tempfile.TemporaryDirectory() as root:
            project = build(ProjectManager(root), questions, context, config=config, embed_model=embed_model)
            whole = measured(project, questions)
            print(f"{name:14s} {context:10s} {np.mean(whole):5.1f}", flush=True)
            for part, (owner, values) in PARTS.items():
                with ExitStack() as stack:
                    for attribute, value in values.items():
                        stack.enter_context(mock.patch.object(owner, attribute, value))
                    differences = [one - other for one, other in zip(measured(project, questions), whole, strict=True)]
                gains[part].append(float(np.mean(differences)))
                print(f"  without {part:12s} {interval(differences)}", flush=True)
    for part, means in gains.items():
        print(f"mean of {len(means)} without {part:12s} {np.mean(means):+.2f}")


def measured(project: Project, questions: QuestionSet) -> list[float]:
    """Return the nDCG@10 of each question in per cent."""
    retriever = project.as_retriever(mode="hybrid", similarity_top_k=max(KS))
    _, _, ranks = score(questions.questions, lambda question: retriever.respond(bundle(question)).results)
    return [100 * ndcg(of_question) for of_question in ranks]


if __name__ == "__main__":
    main()
