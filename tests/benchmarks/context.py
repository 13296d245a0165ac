"""Measure which part of a context improves search: `python -m tests.benchmarks.context --data DATA`.

1. weights: every set with each kind of context (see `quality`) and document weights from 0 to 0.8. If a context only
   identified the document, a higher document weight would have the same effect. Then the differences between both
   contexts together and the other kinds, each with its own best document weight.
2. line: the structural line without title and file name, and without the opening.
3. file: questions about the contracts without their "Consider the … between …;", filtered by file. The document is
   then known, and only the passage has to be found.

The settings are local (WordLlama); with `--embedding`, they are the default settings with a transformer (see
`transformer`). No key and no network are needed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.contextualizer.base import StructuralContextualizer, segments, with_context
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.project import ProjectRetriever
from tests.benchmarks.quality import (
    MEASURES,
    Ranks,
    build,
    bundle,
    contexts_of,
    differences,
    mean,
    options,
    settings_of,
)
from tests.benchmarks.sets import KS, Question, QuestionSet, first_ranks, load

PARTS = ("weights", "line", "file")
DOCUMENT_WEIGHTS = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8)
ABLATIONS: dict[str, dict[str, Any]] = {
    "whole line": {},
    "without title": {"title": None, "file_name": None},
    "without opening": {"opening": ""},
}
"""What is left out of the structural line: fields of its `Segment`."""

_PREFIX = re.compile(r"Consider the .*?;\s*", re.DOTALL)


def ranks_of(retriever: ProjectRetriever, questions: Sequence[Question]) -> Ranks:
    """Return for each question the ranks of its evidence among the first 20 results."""
    return [first_ranks(retriever.respond(bundle(q.text)).results, q.evidence) for q in questions]


def print_row(label: str, ranks: Ranks) -> None:
    """Print all measures in per cent."""
    print(f"{label:46s}" + "".join(f"{mean(measure, ranks):8.1f}" for measure in MEASURES), flush=True)


def by_weight(questions: QuestionSet, projects: Mapping[str, Project]) -> None:
    """Print every kind of context with every document weight, and what both change against each single kind."""
    best: dict[str, tuple[float, Ranks]] = {}
    for context, project in projects.items():
        retriever = project.as_retriever(similarity_top_k=max(KS))
        by_weight = {
            weight: ranks_of(retriever.changed(document_weight=weight), questions.questions)
            for weight in DOCUMENT_WEIGHTS
        }
        for weight, ranks in by_weight.items():
            print_row(f"{questions.name:14s} {context:11s} document weight {weight:.1f}", ranks)
        best[context] = max(by_weight.items(), key=lambda item: mean("nDCG@10", item[1]))
    if "both" in best:
        weight, ranks = best.pop("both")
        for context, (other, baseline) in best.items():
            label = f"{questions.name:14s} both at {weight} − {context} at {other}, each at its best:"
            print(f"{label} {differences(ranks, baseline, ('R@1', 'nDCG@10'))}", flush=True)


class AblatedContextualizer(StructuralContextualizer):
    """Writes the structural line from a changed segment."""

    changes: dict[str, Any]

    def structural_lines(self, segment: Any, chunks: Sequence[BaseNode]) -> list[str]:
        """Return the lines of the chunks of a segment."""
        return super().structural_lines(replace(segment, **self.changes), chunks)


def ablated(project: Project, contextualizer: AblatedContextualizer) -> Iterator[BaseNode]:
    """Yield the chunks of a project without contexts, with a structural line."""
    for document in project.documents():
        chunks = project.chunks(document.doc_id)
        for segment in segments(chunks, segment_size=contextualizer.segment_size):
            lines = contextualizer.contexts(segment, segment.chunks)
            for chunk, line in zip(segment.chunks, lines, strict=True):
                yield with_context(chunk, replace(line, source="given"))


def ablations(
    manager: ProjectManager, questions: QuestionSet, plain: Project, embed_model: BaseEmbedding | None
) -> None:
    """Print the results with parts of the structural line left out."""
    for name, changes in ABLATIONS.items():
        project = manager.create("ablated", plain.config, embed_model=embed_model)
        project.ingest(list(ablated(plain, AblatedContextualizer(changes=changes))))
        ranks = ranks_of(project.as_retriever(similarity_top_k=max(KS)), questions.questions)
        print_row(f"{questions.name:14s} structural  {name}", ranks)
        manager.delete("ablated")


def within_file(questions: QuestionSet, projects: Mapping[str, Project]) -> None:
    """Print questions without the name of their contract, inside a filter on its file."""
    by_context: dict[str, Ranks] = {}
    for context, project in projects.items():
        retriever = project.as_retriever(similarity_top_k=max(KS))
        ranks: list[Sequence[int | None]] = []
        for question in questions.questions:
            text, count = _PREFIX.subn("", question.text, count=1)
            if not count:
                raise ValueError(f"the question names no contract: {question.text}")
            of_file = MetadataFilters(filters=[MetadataFilter(key="file_name", value=question.evidence[0]["file"])])
            ranks += ranks_of(retriever.changed(filters=of_file), [Question(text, question.evidence)])
        print_row(f"{questions.name:14s} {context:11s} within the file", ranks)
        by_context[context] = ranks
    for context, ranks in by_context.items():
        if context != "none":
            shown = differences(ranks, by_context["none"], ("R@1", "R@5", "nDCG@10"))
            print(f"{questions.name:14s} {context} − none, within the file: {shown}", flush=True)


def main() -> None:
    """Print the table."""
    parser = options(__doc__)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    config, embed_model = settings_of(arguments)
    print(" " * 46 + "".join(f"{name:>8s}" for name in MEASURES))
    for name in arguments.sets:
        questions = load(arguments.data, name)
        with tempfile.TemporaryDirectory() as root:
            manager = ProjectManager(root)
            projects = {
                context: build(manager, questions, context, config=config, embed_model=embed_model)
                for context in contexts_of(questions, arguments.contexts)
            }
            if "weights" in arguments.parts:
                by_weight(questions, projects)
            if "line" in arguments.parts and "none" in projects:
                ablations(manager, questions, projects["none"], embed_model)
            if "file" in arguments.parts and name == "contracts":
                within_file(questions, projects)


if __name__ == "__main__":
    main()
