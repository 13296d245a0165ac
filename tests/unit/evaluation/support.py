"""A small corpus with questions, and a retriever with fixed results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index_contextual.evaluation.questions import Evidence, Question

QUESTIONS = [
    Question(id="pump", text="What does error TS-999 mean?", evidence=[Evidence(text="the pump runs dry")]),
    Question(
        id="growth", text="How much did revenue grow?", evidence=[Evidence(file="quarter.md", text="grew by 3 %")]
    ),
]


class FixedRetriever(BaseRetriever):
    """Retriever that returns given chunks for each question.

    Args:
        answers: Ids of chunks by question, best first; other questions have no results.
        similarity_top_k: What a LlamaIndex retriever says about itself.
    """

    def __init__(self, answers: Mapping[str, Sequence[str]], similarity_top_k: int | None = None) -> None:
        super().__init__()
        self.answers = answers
        self.similarity_top_k = similarity_top_k
        self.asked: list[str] = []

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        self.asked.append(query_bundle.query_str)
        ids = self.answers.get(query_bundle.query_str, ())
        return [NodeWithScore(node=TextNode(id_=i, text=f"Text of {i}."), score=1 / n) for n, i in enumerate(ids, 1)]


def by_id(text: str, *chunk_ids: str) -> Question:
    """Return a question with these chunks as evidence."""
    return Question(id=text, text=text, evidence=[Evidence(chunk_id=chunk_id) for chunk_id in chunk_ids])
