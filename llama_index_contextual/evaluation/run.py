"""Evaluate a retriever on a question set: results, ranks, metrics, and an assertion for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding, similarity
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.questions import Passage, Question, load_questions, require_files
from llama_index_contextual.search.results import RetrievedChunk

FIRST = 5
"""Number of passages per question that are used for the context relevance."""


def context_relevance(embed_model: BaseEmbedding, answers: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return the mean cosine similarity of each question with its first five passages; 0 without passages.

    This figure needs no evidence and does not measure correctness: passages that share words with the question are
    similar to it, regardless of whether they answer it. Each text is embedded once, without its context.

    Args:
        embed_model: Any LlamaIndex embedding.
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


KS = (1, 5, 10, 20)
NDCG_K = 10

_AT_K = {"recall": metrics.recall, "hit": metrics.hit, "nDCG": metrics.ndcg}
_SPELLINGS = {name.casefold(): name for name in (*_AT_K, "precision", "MRR", "MAP")}

ShowProgress = Callable[[int, int], None]
"""Callback that receives the number of questions done and the total."""


class HasRetriever(Protocol):
    """An object that has a retriever, such as a `Project`."""

    def as_retriever(self, *, similarity_top_k: int) -> BaseRetriever:
        """Return a retriever that returns `similarity_top_k` results."""


Retrievable = BaseRetriever | HasRetriever
Questions = Sequence[Question] | str | Path


@dataclass(frozen=True, kw_only=True)
class QuestionResult:
    """The results of a retriever for one question.

    Attributes:
        question: The question.
        results: The results, best first.
        ranks: For each evidence item, the rank (from 1) of the first result that contains it, or None.
        relevant: For each result, whether it contains any evidence.
        seconds: Response time.
        context_relevance: Mean cosine similarity of the question and its first passages; None if not computed.
    """

    question: Question
    results: Sequence[RetrievedChunk]
    ranks: Sequence[int | None]
    relevant: Sequence[bool]
    seconds: float
    context_relevance: float | None = None

    def hard_negatives(self, k: int) -> list[RetrievedChunk]:
        """Return the results among the first k that contain no evidence."""
        return [chunk for chunk, good in zip(self.results[:k], self.relevant, strict=False) if not good]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results of a retriever for a question set.

    Attributes:
        name: Name of the retriever.
        results: One result per question, in the order of the set.
        ks: Evaluated numbers of results, ascending.
    """

    name: str
    results: Sequence[QuestionResult]
    ks: Sequence[int] = field(default=KS)

    @property
    def main_metric(self) -> str:
        """The metric that compares retrievers by default: nDCG@10, or at the largest of `ks` if that is smaller.

        It rarely reaches its maximum: unlike recall@10, it also improves if evidence moves up from rank 5 to rank 1.
        """
        return f"nDCG@{min(NDCG_K, max(self.ks))}"

    @property
    def metrics(self) -> list[str]:
        """The metrics in reports; `values` and `mean` accept others too."""
        at_k = [f"{metric}@{k}" for metric in ("recall", "precision", "hit") for k in self.ks]
        return [*at_k, "MRR", "MAP", self.main_metric]

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return a metric for every question, shape (questions,), between 0 and 1.

        Args:
            metric: "MRR", "MAP", or recall, precision, hit or nDCG at a number up to the largest of `ks`, such as
                "recall@5"; letter case does not matter.

        Raises:
            InputError: The metric is unknown.
        """
        return np.array([self.value(metric, result) for result in self.results])

    def value(self, metric: str, result: QuestionResult) -> float:
        """Return a metric for one question; see `values`."""
        return _metric(metric, max(self.ks))(result)

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over all questions, between 0 and 1."""
        return float(self.values(metric).mean())

    def response_time(self, percentile: float) -> float:
        """Return a percentile (0 to 100) of the response times in seconds."""
        return float(np.percentile([result.seconds for result in self.results], percentile))

    @property
    def context_relevance(self) -> float | None:
        """Mean embedding similarity of questions and passages; None if not computed."""
        values = [r.context_relevance for r in self.results if r.context_relevance is not None]
        return float(np.mean(values)) if values else None

    def failures(self, k: int | None = None) -> list[QuestionResult]:
        """Return the questions with evidence missing from the first k results (default: all), worst first."""
        k = max(self.ks) if k is None else k
        failed = [result for result in self.results if metrics.recall(result.ranks, k) < 1]
        return sorted(failed, key=lambda result: metrics.recall(result.ranks, k))

    def summary(self) -> dict[str, float | int | str | None]:
        """Return the means, the response times in milliseconds, and the context relevance."""
        return {
            "name": self.name,
            "questions": len(self.results),
            **{metric: self.mean(metric) for metric in self.metrics},
            "p50_ms": 1000 * self.response_time(50),
            "p95_ms": 1000 * self.response_time(95),
            "context_relevance": self.context_relevance,
        }

    def __repr__(self) -> str:
        shown = [metric for metric in self.metrics if not metric.startswith(("precision", "hit", "MAP"))]
        means = ", ".join(f"{metric} {100 * self.mean(metric):.1f}" for metric in shown)
        times = f"p50 {1000 * self.response_time(50):.0f} ms, p95 {1000 * self.response_time(95):.0f} ms"
        number = pluralize(len(self.results), "question")
        return f"{self.name or 'Evaluation'}, {number}, in per cent: {means}; {times}"


def evaluate(
    retriever: Retrievable,
    questions: Questions,
    *,
    name: str = "",
    ks: Sequence[int] = KS,
    embed_model: BaseEmbedding | None = None,
    progress: ShowProgress | None = None,
) -> Evaluation:
    """Evaluate a retriever on a question set, one question after the other.

    Args:
        retriever: Any LlamaIndex retriever, or a project.
        questions: Questions, or the path of a question file.
        name: Name of the retriever in reports.
        ks: Numbers of results to evaluate; the largest one is retrieved.
        embed_model: Model for the context relevance; None leaves it out.
        progress: Called after each question.

    Raises:
        InputError: There are no questions, a number of results is not positive, the file cannot be read, the retriever
            returns fewer results than the largest of `ks`, or a project contains none of the files with evidence.

    Example:
        >>> evaluate(project, "questions.jsonl").mean("recall@20")  # doctest: +SKIP
    """
    loaded = read(questions)
    ks = _sorted_ks(ks)
    documents = getattr(retriever, "documents", None)  # of a project
    if callable(documents):
        require_files(documents(), loaded)
    base_retriever = _retriever(retriever, max(ks))
    results: list[QuestionResult] = []
    for done, question in enumerate(loaded, start=1):
        results.append(_result(base_retriever, question, max(ks)))
        if progress is not None:
            progress(done, len(loaded))
    if embed_model is not None:
        relevances = context_relevance(embed_model, [(r.question.text, [c.text for c in r.results]) for r in results])
        results = [replace(r, context_relevance=value) for r, value in zip(results, relevances, strict=True)]
    return Evaluation(name=name, results=tuple(results), ks=ks)


def read(questions: Questions) -> Sequence[Question]:
    """Return the questions, loaded from the file if a path is given.

    Raises:
        InputError: There are no questions, or the file cannot be read.
    """
    loaded = load_questions(questions) if isinstance(questions, (str, Path)) else list(questions)
    if not loaded:
        raise InputError("There are no questions: at least one is needed.", value=questions)
    return loaded


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


def _result(retriever: BaseRetriever, question: Question, k: int) -> QuestionResult:
    started = time.perf_counter()
    nodes = retriever.retrieve(QueryBundle(question.text))[:k]
    seconds = time.perf_counter() - started
    passages = [Passage(RetrievedChunk.of(rank, node)) for rank, node in enumerate(nodes, start=1)]
    return QuestionResult(
        question=question,
        results=tuple(passage.chunk for passage in passages),
        ranks=tuple(question.ranks(passages)),
        relevant=tuple(question.is_in(passage) for passage in passages),
        seconds=seconds,
    )


def _metric(name: str, most: int) -> Callable[[QuestionResult], float]:
    given, at, number = name.partition("@")
    kind = _SPELLINGS.get(given.casefold(), given)
    if not at and kind in ("MRR", "MAP"):
        score = metrics.reciprocal_rank if kind == "MRR" else metrics.average_precision
        return lambda result: score(result.ranks)
    k = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0
    if kind == "precision" and 1 <= k <= most:
        return lambda result: metrics.precision(result.relevant, k)
    if kind not in _AT_K or not 1 <= k <= most:
        raise InputError(
            f"There is no metric {name!r}: use recall@k, precision@k, hit@k, nDCG@k (k up to {most}), MRR or MAP.",
            value=name,
        )
    return lambda result: _AT_K[kind](result.ranks, k)


_MAX_LISTED = 5


def assert_recall(retriever: Retrievable, questions: Questions, *, k: int = 10, at_least: float) -> Evaluation:
    """Fail a test if the mean recall@k of a question set is too low; the message lists the worst questions.

    Args:
        retriever: A project, or any LlamaIndex retriever.
        questions: Questions, or the path of a question file.
        k: Number of results to evaluate.
        at_least: Minimum recall, between 0 and 1.

    Returns:
        The evaluation, for further checks.

    Raises:
        AssertionError: The recall is lower.
        InputError: `at_least` is not between 0 and 1, or the questions cannot be read.

    Example:
        >>> assert_recall(project, "questions.jsonl", k=10, at_least=0.9)  # doctest: +SKIP
    """
    if not 0 <= at_least <= 1:
        raise InputError(f"at_least is {at_least}: recall is between 0 and 1.", value=at_least)
    evaluation = evaluate(retriever, questions, ks=[k])
    recall = evaluation.mean(f"recall@{k}")
    if recall < at_least:
        raise AssertionError(_message(evaluation, recall, k, at_least))
    return evaluation


def _message(evaluation: Evaluation, recall: float, k: int, at_least: float) -> str:
    failed = evaluation.failures(k)
    missed = f"{len(failed)} of {pluralize(len(evaluation.results), 'question')}, the worst first"
    lines = [f"recall@{k} is {recall:.4f}, below {at_least}; without all evidence: {missed}:"]
    for result in failed[:_MAX_LISTED]:
        wrong = next(iter(result.hard_negatives(k)), None)
        best = f"best result without evidence: {wrong.source}" if wrong else "no results"
        missing = f"{metrics.recall(result.ranks, k):.2f} of its evidence found"
        lines.append(f"  {result.question.id or '-'} {result.question.text[:120]!r}: {missing}; {best}")
    return "\n".join(lines)
