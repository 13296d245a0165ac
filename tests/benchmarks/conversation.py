"""Recall for follow-up questions: `python -m tests.benchmarks.conversation --data DATA`.

The questions of `conversations` after the first turn are searched in five ways: the last question alone; the last
question and up to three before it as one text; with their embeddings blended (weight 2 for the question, 1 for the mean
of the three before it); with both indexes blended; and as rewritten by a person so that it can be understood on its
own. Then changes of topic: every rewritten question after the history of another conversation, which should not affect
the results. Differences are paired, with 95 % confidence intervals and p-values from a permutation test.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever, ConversationQuery
from llama_index_contextual.search.results import RetrievedChunk
from tests.benchmarks.quality import HEAD, Ranks, build, differences, options, row, settings_of
from tests.benchmarks.sets import KS, first_ranks, load
from tests.support.examples import rows as read_rows

Turn = dict[str, Any]
Search = Callable[[Turn], Sequence[RetrievedChunk]]


def searches(project: Project) -> dict[str, Search]:
    """Return the ways of asking a turn."""
    retriever = project.as_retriever(mode="hybrid", similarity_top_k=max(KS))
    embedding_only = BlendWeights(history_terms=0.0, answer_terms=0.0)
    seed = ConversationalRetriever(retriever, embed_model=project.embed_model, weights=embedding_only)
    ours = ConversationalRetriever(retriever, embed_model=project.embed_model)
    return {
        "question": lambda turn: project.retrieve(turn["question"], top_k=max(KS)).results,
        "in-one": lambda turn: project.retrieve(" ".join(_questions(turn)), top_k=max(KS)).results,
        "embeddings": lambda turn: seed.respond(_query(turn)).results,
        "both": lambda turn: ours.respond(_query(turn)).results,
        "rewrite": lambda turn: project.retrieve(turn["rewrite"], top_k=max(KS)).results,
    }


def _questions(turn: Turn) -> list[str]:
    calls = [message["content"] for message in turn["history"] if message["role"] == "user"]
    return [*calls[-3:], turn["question"]]


def _query(turn: Turn) -> ConversationQuery:
    return ConversationQuery(turn["question"], history=[ChatMessage(**message) for message in turn["history"]])


def switched(turns: Sequence[Turn]) -> list[Turn]:
    """Return the stand-alone questions, each behind a history that has nothing to do with it."""
    later = [turn for turn in turns if turn["history"]]
    created = []
    for at, turn in enumerate(turns):
        far = (later[(at + len(later) // 2 + step) % len(later)] for step in range(len(later)))
        other = next(one for one in far if one["id"].partition("<")[0] != turn["id"].partition("<")[0])
        created.append({**turn, "question": turn["rewrite"], "history": other["history"]})
    return created


def ranks_of(turns: Sequence[Turn], search: Search) -> Ranks:
    """Return the ranks of the evidence of each turn."""
    evidence = [[{"file": e["file"], "span": (e["start"], e["end"])} for e in turn["evidence"]] for turn in turns]
    return [first_ranks(search(turn), items) for turn, items in zip(turns, evidence, strict=True)]


def main() -> None:
    """Print the tables."""
    arguments = options(__doc__).parse_args()
    config, embed_model = settings_of(arguments)
    turns = read_rows(arguments.data / "conversations" / "questions.jsonl")
    cases = {"follow-up": [turn for turn in turns if turn["history"]], "new-topic": switched(turns)}
    with tempfile.TemporaryDirectory() as root:
        questions = load(arguments.data, "conversations")
        project = build(ProjectManager(root), questions, "none", config=config, embed_model=embed_model)
        for case, of_case in cases.items():
            results = {name: ranks_of(of_case, search) for name, search in searches(project).items()}
            print(f"{f'{len(of_case)} turns':36s}{HEAD}")
            for name, ranks in results.items():
                print(row(f"{case} {name} hybrid", ranks))
            for other in ("question", "embeddings", "rewrite"):
                print(f"both − {other}: {differences(results['both'], results[other])}", flush=True)


if __name__ == "__main__":
    main()
