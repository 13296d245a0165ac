"""Evaluation of a retriever on a question set, with metrics and an assertion for tests.

A metric is a pure function that compares the ranking for one question with the question's evidence. Its value is
between 0 and 1; if nothing was retrieved, it is 0.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding, similarity
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import (
    Evidence,
    Question,
    ResultChunk,
    as_question,
    evidence_notes,
    load_questions,
    require_files,
)
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.retrievers.base import respond_of
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.response import RerankerUse
from llama_index_contextual.search.results import RetrievedChunk

FIRST = 5
"""Number of passages per question that are used to compute the context relevance."""


def context_relevance(embed_model: BaseEmbedding, answers: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return the mean cosine similarity of each question to its first five passages, or 0 if there are none.

    This figure needs no evidence, but does not measure correctness: passages that share words with the question are
    similar to it, whether or not they answer it. Each text is embedded once, without its context.

    Args:
        embed_model: Any LlamaIndex embedding model.
        answers: Pairs of a question and its passages, best first.
    """
    texts = list(dict.fromkeys(text for _, passages in answers for text in passages[:FIRST]))
    vectors = dict(zip(texts, embed_model.get_text_embedding_batch(texts), strict=True)) if texts else {}
    means = []
    for question, passages in answers:
        query = embed_model.get_query_embedding(question) if passages else []
        values = [similarity(query, vectors[text]) for text in passages[:FIRST]]
        means.append(float(np.nan_to_num(np.mean(values))) if values else 0.0)  # a zero vector has no direction
    return means


# ---- Metrics ---------------------------------------------------------------------------------------------------------

Ranks = Sequence[int | None]
"""For each evidence item, the rank (starting at 1) of the first result that contains it, or None if none does."""


def recall(ranks: Ranks, k: int) -> float:
    """Return the fraction of evidence items that the first k results contain.

    Example:
        >>> recall([1, 7, None], 5)
        0.3333333333333333
    """
    return len(_ranks_up_to(ranks, k)) / len(ranks)


def precision(relevant: Sequence[bool], k: int) -> float:
    """Return the fraction of the first k results that contain evidence; missing results count as irrelevant.

    Args:
        relevant: Whether each result, in order, contains any evidence item.
        k: Number of results.

    Example:
        >>> precision([True, False, True], 5)
        0.4
    """
    return sum(relevant[:k]) / k


def reciprocal_rank(ranks: Ranks) -> float:
    """Return 1 / rank of the first result with any evidence; the mean over all questions is the MRR.

    Source: Voorhees, "The TREC-8 Question Answering Track Report", 1999.

    Example:
        >>> reciprocal_rank([None, 4, 2])
        0.5
    """
    return max((1 / rank for rank in ranks if rank is not None), default=0.0)


def ndcg(ranks: Ranks, k: int = 10) -> float:
    """Return nDCG@k, by the pieces of evidence found.

    Each evidence item has a gain of 1 at the rank of the first result that contains it. The ideal ranking has one item
    in each of the top results. Results that contain several items may exceed it, so the value is at most 1: a first
    result with all items is a full hit.

    Source: Järvelin, Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", TOIS 2002 (log2).

    Example:
        >>> ndcg([1, 1, 1]), round(ndcg([1, 3]), 4)  # (1 + 1/2) / (1 + 1/log2(3))
        (1.0, 0.9197)
    """
    ideal = sum(1 / math.log2(1 + rank) for rank in range(1, min(len(ranks), k) + 1))
    return min(1.0, sum(1 / math.log2(1 + rank) for rank in _ranks_up_to(ranks, k)) / ideal)


def _ranks_up_to(ranks: Ranks, k: int) -> list[int]:
    return [rank for rank in ranks if rank is not None and rank <= k]


# ---- Evaluations -----------------------------------------------------------------------------------------------------

KS = (1, 5, 10, 20)
NDCG_K = 10


class HasRetriever(Protocol):
    """An object that has a retriever, such as a `Project`."""

    def as_retriever(self, *, similarity_top_k: int) -> BaseRetriever:
        """Return a retriever that returns `similarity_top_k` results."""


Retrievable = BaseRetriever | HasRetriever
Questions = Sequence[Question | Mapping[str, Any]] | str | Path

NO_RERANK = "none"
"""Value of the `rerank` options for no reranking."""


@dataclass(frozen=True, kw_only=True)
class QuestionResult:
    """Results of a retriever for one question.

    Attributes:
        question: The question.
        results: The results, best first.
        ranks: For each evidence item, the rank (starting at 1) of the first result that contains it, or None.
        relevant: For each result, whether it contains any evidence.
        seconds: Response time.
        reranker: The model that reranked the results, and its time, or None.
        context_relevance: Mean cosine similarity between the question and its first passages; None if not computed.
    """

    question: Question
    results: Sequence[RetrievedChunk]
    ranks: Sequence[int | None]
    relevant: Sequence[bool]
    seconds: float
    reranker: RerankerUse | None = None
    context_relevance: float | None = None

    def hard_negatives(self, k: int) -> list[RetrievedChunk]:
        """Return the results among the first k that contain no evidence."""
        return [chunk for chunk, good in zip(self.results[:k], self.relevant, strict=False) if not good]


_METRIC = re.compile(r"(recall|precision|ndcg)@([1-9][0-9]{0,8})", re.ASCII | re.IGNORECASE)
_AT_K: Mapping[str, Callable[[QuestionResult, int], float]] = {
    "recall": lambda result, k: recall(result.ranks, k),
    "precision": lambda result, k: precision(result.relevant, k),
    "ndcg": lambda result, k: ndcg(result.ranks, k),
}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of a retriever for a question set.

    Attributes:
        name: Name of the retriever.
        results: One result per question, in the order of the set.
        ks: Numbers of results for which the metrics are computed, in ascending order.
        notes: Notes on the figures, one sentence each.
    """

    name: str
    results: Sequence[QuestionResult]
    ks: Sequence[int] = field(default=KS)
    notes: Sequence[str] = ()

    @property
    def main_metric(self) -> str:
        """Default metric for comparing retrievers: nDCG@10, or nDCG at the largest of `ks` if this is smaller.

        nDCG is better than recall at distinguishing good retrievers, because it still improves if evidence moves from
        rank 5 to rank 1.
        """
        return f"nDCG@{min(NDCG_K, max(self.ks))}"

    @property
    def metrics(self) -> list[str]:
        """The metrics in reports; `values` and `mean` also accept other metrics."""
        at_k = [f"{metric}@{k}" for metric in ("recall", "precision") for k in self.ks]
        return [*at_k, "MRR", self.main_metric]

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return the values of a metric for all questions, each between 0 and 1; shape (questions,).

        Args:
            metric: "MRR", or recall, precision or nDCG at a number of results, such as "recall@5", in any letter case;
                the number must not exceed the largest of `ks`.

        Raises:
            InputError: The metric is unknown.
        """
        return np.array([self.value(metric, result) for result in self.results])

    def value(self, metric: str, result: QuestionResult) -> float:
        """Return the value of a metric for one question; see `values`."""
        if metric.casefold() == "mrr":
            return reciprocal_rank(result.ranks)
        match = _METRIC.fullmatch(metric)
        if match is None or int(match[2]) > max(self.ks):
            raise InputError(
                f"There is no metric {metric!r}: use recall@k, precision@k, nDCG@k (k up to {max(self.ks)}) or MRR.",
                value=metric,
            )
        return _AT_K[match[1].casefold()](result, int(match[2]))

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over all questions, between 0 and 1."""
        return float(self.values(metric).mean())

    def response_time(self, percentile: float) -> float:
        """Return a percentile (0 to 100) of the response times in seconds."""
        return float(np.percentile([result.seconds for result in self.results], percentile))

    @property
    def reranker(self) -> RerankerUse | None:
        """The reranker of the first question, with the median of its time for all questions; None without a model."""
        uses = [result.reranker for result in self.results if result.reranker is not None]
        return replace(uses[0], seconds=float(np.median([use.seconds for use in uses]))) if uses else None

    @property
    def context_relevance(self) -> float | None:
        """Mean embedding similarity between questions and passages; None if not computed."""
        values = [r.context_relevance for r in self.results if r.context_relevance is not None]
        return float(np.mean(values)) if values else None

    def failures(self, k: int | None = None) -> list[QuestionResult]:
        """Return the results of questions for which some evidence is not in the first k results, worst first.

        By default, all results are considered.
        """
        k = max(self.ks) if k is None else k
        failed = [result for result in self.results if recall(result.ranks, k) < 1]
        return sorted(failed, key=lambda result: recall(result.ranks, k))

    def summary(self) -> dict[str, float | int | str | None]:
        """Return the means of the metrics, the response times in milliseconds, context relevance, and reranker."""
        reranker = self.reranker
        return {
            "name": self.name,
            "questions": len(self.results),
            **{metric: self.mean(metric) for metric in self.metrics},
            "p50_ms": 1000 * self.response_time(50),
            "p95_ms": 1000 * self.response_time(95),
            "context_relevance": self.context_relevance,
            **({} if reranker is None else {"reranker": reranker.model, "rerank_p50_ms": 1000 * reranker.seconds}),
        }

    def __repr__(self) -> str:
        metrics = [metric for metric in self.metrics if not metric.startswith("precision")]
        means = ", ".join(f"{metric} {100 * self.mean(metric):.1f}" for metric in metrics)
        times = f"p50 {1000 * self.response_time(50):.0f} ms, p95 {1000 * self.response_time(95):.0f} ms"
        if (reranker := self.reranker) is not None:
            times += f", of which {reranker.model} {1000 * reranker.seconds:.0f} ms (p50)"
        number = pluralize(len(self.results), "question")
        return "\n".join([f"{self.name or 'Evaluation'}, {number}, in per cent: {means}; {times}", *self.notes])


def evaluate(
    retriever: Retrievable,
    questions: Questions,
    *,
    name: str = "",
    ks: Sequence[int] = KS,
    rerank: str | None = None,
    embed_model: BaseEmbedding | None = None,
) -> Evaluation:
    """Evaluate a retriever on a question set, one question at a time.

    Args:
        retriever: Any LlamaIndex retriever, or a project.
        questions: Questions, dicts with the keys of a line in a question file, or the path of such a file.
        name: Name of the retriever in reports.
        ks: Numbers of results for which the metrics are computed; the largest number of results is retrieved.
        rerank: Value of the `rerank` setting to use for a project, or "none" for no reranking; None uses the project's
            setting.
        embed_model: Embedding model for the context relevance, or None to omit this figure.

    Raises:
        InputError: There are no questions, a number of results is not positive, the file cannot be read, the retriever
            returns fewer results than the largest of `ks`, a project contains none of the evidence, or `rerank` is
            given for a retriever that does not belong to a project.

    Example:
        >>> evaluate(project, "questions.jsonl").mean("recall@20")  # doctest: +SKIP
    """
    question_list = as_questions(questions)
    ks = _sorted_ks(ks)
    version = getattr(retriever, "live_version", None)  # only a project has versions
    if isinstance(version, OpenVersion):
        require_files(version.records, question_list)
    base_retriever = _with_rerank(_retriever(retriever, max(ks)), rerank)
    results = [_question_result(base_retriever, question, max(ks)) for question in question_list]
    if embed_model is not None:
        relevances = context_relevance(embed_model, [(r.question.text, [c.text for c in r.results]) for r in results])
        results = [replace(r, context_relevance=value) for r, value in zip(results, relevances, strict=True)]
    notes = (
        evidence_notes(version, question_list, retrieved_evidence(results)) if isinstance(version, OpenVersion) else ()
    )
    return Evaluation(name=name, results=tuple(results), ks=ks, notes=tuple(notes))


def retrieved_evidence(results: Iterable[QuestionResult]) -> set[Evidence]:
    """Return the items of evidence that any of the results contains."""
    pairs = [pair for result in results for pair in zip(result.question.evidence, result.ranks, strict=True)]
    return {item for item, rank in pairs if rank is not None}


def as_questions(questions: Questions) -> Sequence[Question]:
    """Return the given questions, or the questions in the file if a path is given.

    Raises:
        InputError: There are no questions, one of them is invalid, or the file cannot be read.
    """
    if isinstance(questions, (str, Path)):
        return load_questions(questions)
    question_list = [as_question(question, number) for number, question in enumerate(questions, start=1)]
    if not question_list:
        raise InputError("There are no questions: at least one is needed.", value=questions)
    return question_list


def _sorted_ks(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks or min(ks) < 1:
        raise InputError(f"The numbers of results are {list(ks)}: give at least one, each at least 1.", value=ks)
    return tuple(sorted(set(ks)))


def _retriever(retriever: Retrievable, k: int) -> BaseRetriever:
    if not isinstance(retriever, BaseRetriever):
        return retriever.as_retriever(similarity_top_k=k)
    top_k = getattr(retriever, "similarity_top_k", None)
    if isinstance(top_k, int) and top_k < k:
        raise InputError(
            f"The retriever returns {pluralize(top_k, 'result')}, but the evaluation needs {k}: create it with"
            f" similarity_top_k={k}, or use smaller `ks`.",
            value=top_k,
        )
    return retriever


def _with_rerank(retriever: BaseRetriever, rerank: str | None) -> BaseRetriever:
    """Return a project's retriever with another value of the `rerank` setting.

    Args:
        retriever: The retriever.
        rerank: The value, or "none" for no reranking; None returns the retriever unchanged.

    Raises:
        InputError: The retriever does not belong to a project.
    """
    if rerank is None:
        return retriever
    if not isinstance(retriever, ProjectRetriever):
        raise InputError(
            "`rerank` applies to projects and their retrievers only: pass a project, or omit `rerank`.", value=rerank
        )
    return retriever.changed(rerank=None if rerank == NO_RERANK else rerank)


def _question_result(retriever: BaseRetriever, question: Question, k: int) -> QuestionResult:
    started = time.perf_counter()
    response = respond_of(retriever, QueryBundle(question.text))
    seconds = time.perf_counter() - started
    passages = [ResultChunk(chunk) for chunk in response.results[:k]]
    return QuestionResult(
        question=question,
        results=tuple(passage.chunk for passage in passages),
        ranks=tuple(question.ranks(passages)),
        relevant=tuple(question.is_in(passage) for passage in passages),
        seconds=seconds,
        reranker=response.reranker,
    )


_MAX_LISTED = 5


def assert_recall(retriever: Retrievable, questions: Questions, *, k: int = 10, at_least: float) -> Evaluation:
    """Raise an AssertionError that lists the worst questions if the mean recall@k of a question set is too low.

    Args:
        retriever: A project, or any LlamaIndex retriever.
        questions: Questions, or the path of a question file.
        k: Number of results for which recall is computed.
        at_least: Minimum recall, between 0 and 1.

    Returns:
        The evaluation, for further checks.

    Raises:
        AssertionError: The recall is lower than `at_least`.
        InputError: `at_least` is not between 0 and 1, or the questions cannot be read.

    Example:
        >>> assert_recall(project, "questions.jsonl", k=10, at_least=0.9)  # doctest: +SKIP
    """
    if not 0 <= at_least <= 1:
        raise InputError(f"at_least is {at_least}: recall is between 0 and 1.", value=at_least)
    evaluation = evaluate(retriever, questions, ks=[k])
    mean = evaluation.mean(f"recall@{k}")
    if mean < at_least:
        failed = evaluation.failures(k)
        number = f"{len(failed)} of {pluralize(len(evaluation.results), 'question')}"
        lines = [f"recall@{k} is {mean:.4f}, below {at_least}; without all evidence: {number}, the worst first:"]
        for result in failed[:_MAX_LISTED]:
            share = recall(result.ranks, k)
            lines.append(f"  {result.question.id or '-'} {result.question.text[:120]!r}: {share:.2f} of its evidence")
        raise AssertionError("\n".join(lines))
    return evaluation
