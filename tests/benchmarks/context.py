"""Where the gain of a context comes from: `python -m tests.benchmarks.context --data ../shared/data`.

1. Every set with each kind of context (see `quality`) and document weights from 0 to 0.8: if a context only told which
   document a chunk belongs to, a larger weight of the document would replace it.
2. The two legs next to the hybrid, at the default weight.
3. The structural line without title and file name, without its opening (and so without terms), and without its terms:
   alone, and before the LLM's sentences.
4. Questions on the contracts without their "Consider the … between …;", inside a filter on the file: here the document
   is known, and only the place in it is to be found.

Local settings (WordLlama). No key, no network.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.contextualizer.base import ChunkContext, segments, with_context
from llama_index_contextual.contextualizer.structural import StructuralContextualizer
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.live import ProjectRetriever
from tests.benchmarks.quality import available, build, bundle, contexts_of
from tests.benchmarks.sets import SETS, Question, QuestionSet, first_ranks, load, ndcg, recall

PARTS = ("weights", "legs", "line", "file")
KS = (1, 3, 5, 10, 20)
DOCUMENT_WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.8)
LEGS: tuple[Mode, ...] = ("lexical", "semantic", "hybrid")
ABLATIONS: dict[str, dict[str, Any]] = {
    "whole line": {},
    "without title": {"title": None, "file_name": None},
    "without opening": {"opening": ""},
    "without terms": {"text": ""},
}
"""What is taken out of the structural line: fields of the `Segment` that it is written from."""

Ranks = list[list[int | None]]
_PREFIX = re.compile(r"Consider the .*?;\s*", re.DOTALL)


def ranks(retriever: ProjectRetriever, questions: Sequence[Question]) -> Ranks:
    """Return for each question the ranks of its evidence among the first 20 results."""
    return [first_ranks(retriever.respond(bundle(q.text)).results, q.evidence) for q in questions]


def row(label: str, of: Ranks) -> str:
    """Return recall at each k and nDCG@10, in per cent."""
    measures: list[Callable[..., float]] = [*(partial(recall, k=k) for k in KS), ndcg]
    return f"{label:46s}" + "".join(f"{100 * sum(map(measure, of)) / len(of):8.1f}" for measure in measures)


def difference(label: str, ranks_: Ranks, baseline: Ranks) -> str:
    """Return the difference in nDCG@10 with its 95 % interval, and p by permutation."""
    gains = [100 * (ndcg(a) - ndcg(b)) for a, b in zip(ranks_, baseline, strict=True)]
    result, p = bootstrap_interval(gains), permutation_p_value(gains)
    return f"{label:46s} nDCG@10 {result.mean:+.1f} ({result.low:+.1f} to {result.high:+.1f}), p = {p:.2g}"


def by_weight(questions: QuestionSet, projects: Mapping[str, Project]) -> None:
    """Print every kind of context with every document weight, and what `both` changes against each single kind."""
    default = ProjectConfig.model_fields["document_weight"].default
    at_default: dict[str, Ranks] = {}
    for context, project in projects.items():
        retriever = project.as_retriever(similarity_top_k=max(KS))
        for weight in DOCUMENT_WEIGHTS:
            result = ranks(retriever.changed(document_weight=weight), questions.questions)
            print(row(f"{questions.name:14s} {context:11s} document weight {weight:.1f}", result), flush=True)
            if weight == default:
                at_default[context] = result
    last = list(projects)[-1]
    for context in list(projects)[:-1]:
        print(difference(f"{questions.name:14s} {last} − {context}", at_default[last], at_default[context]))


def legs(questions: QuestionSet, projects: Mapping[str, Project]) -> None:
    """Print both legs and the hybrid for every kind of context."""
    for context, project in projects.items():
        for mode in LEGS:
            retriever = project.as_retriever(mode=mode, similarity_top_k=max(KS))
            print(row(f"{questions.name:14s} {context:11s} {mode}", ranks(retriever, questions.questions)), flush=True)


class AblatedContextualizer(StructuralContextualizer):
    """Writes the structural line from a changed segment."""

    changes: dict[str, Any]

    def contexts(self, segment: Any, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        """Return the contexts of the chunks of a segment."""
        return super().contexts(replace(segment, **self.changes), chunks)


def ablated(project: Project, contextualizer: AblatedContextualizer) -> Iterator[BaseNode]:
    """Yield the chunks of a project with a structural line, before the LLM's sentences if they have any."""
    for document in project.documents():
        chunks = project.chunks(document.doc_id)
        for segment in segments(chunks, segment_size=contextualizer.segment_size):
            written = [ChunkContext(chunk.metadata.get("context", ""), "llm") for chunk in segment.chunks]
            if any(context.text for context in written):
                lines = contextualizer.below(segment, segment.chunks, written)
            else:
                lines = contextualizer.contexts(segment, segment.chunks)
            for chunk, line in zip(segment.chunks, lines, strict=True):
                yield with_context(chunk, replace(line, source="given"))


def ablations(manager: ProjectManager, questions: QuestionSet, projects: Mapping[str, Project]) -> None:
    """Print the structural line with parts of it taken out, alone and before the LLM's sentences."""
    for context, label in (("none", "structural"), ("llm", "both")):
        if context not in projects:
            continue
        for name, changes in ABLATIONS.items():
            project = manager.create("ablated", projects[context].config.changed(context="none"))
            project.ingest(list(ablated(projects[context], AblatedContextualizer(changes=changes))))
            result = ranks(project.as_retriever(similarity_top_k=max(KS)), questions.questions)
            print(row(f"{questions.name:14s} {label:11s} {name}", result), flush=True)
            manager.delete("ablated")


def within_file(questions: QuestionSet, projects: Mapping[str, Project]) -> None:
    """Print questions without the name of their contract, inside a filter on its file."""
    for context, project in projects.items():
        retriever = project.as_retriever(similarity_top_k=max(KS))
        result: Ranks = []
        for question in questions.questions:
            text, count = _PREFIX.subn("", question.text, count=1)
            if not count:
                raise ValueError(f"the question names no contract: {question.text}")
            of_file = MetadataFilters(filters=[MetadataFilter(key="file_name", value=question.evidence[0]["file"])])
            result += ranks(retriever.changed(filters=of_file), [Question(text, question.evidence)])
        print(row(f"{questions.name:14s} {context:11s} within the file", result), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    print(" " * 46 + "".join(f"{f'R@{k}':>8s}" for k in KS) + " nDCG@10")
    for name in available(arguments.sets):
        questions = load(arguments.data, name)
        with tempfile.TemporaryDirectory() as root:
            manager = ProjectManager(root)
            projects = {context: build(manager, questions, context) for context in contexts_of(questions)}
            if "weights" in arguments.parts:
                by_weight(questions, projects)
            if "legs" in arguments.parts:
                legs(questions, projects)
            if "line" in arguments.parts:
                ablations(manager, questions, projects)
            if "file" in arguments.parts and name == "contracts":
                within_file(questions, projects)


if __name__ == "__main__":
    main()
