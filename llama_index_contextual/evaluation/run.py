"""How far a comparison or a sweep is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import QueryBundle
from numpy.typing import NDArray

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.questions import Passage, Question, load_questions
from llama_index_contextual.evaluation.sample import require_files
from llama_index_contextual.ingestion.report import ReportProgress
from llama_index_contextual.retrievers.response import RetrievedChunk
from llama_index_contextual.storage.manifest import DocumentRecord


@dataclass(frozen=True, kw_only=True)
class VariantProgress:
    """How far a comparison or a sweep is.

    Attributes:
        stage: What is being done.
        name: Name of the variant, or "" where it concerns all.
        done: Chunks or questions that are done.
        total: Questions in all; 0 where it is not known.
        dollars: What is about to be spent ("price"), or None where it is not known.
    """

    stage: Literal["questions", "price", "build", "ask"]
    name: str = ""
    done: int = 0
    total: int = 0
    dollars: float | None = None


ShowVariants = Callable[[VariantProgress], None]


def told(tell: ShowVariants, name: str) -> ReportProgress:
    """Return what tells how far the building of a variant is."""
    return lambda progress: tell(VariantProgress(stage="build", name=name, done=progress.chunks_done))


FIRST = 5
"""Passages of a question that are looked at."""


def context_relevance(embed_model: BaseEmbedding, answers: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Return for each question the mean cosine similarity with its first five passages; 0 without any.

    It needs no evidence and measures no correctness: passages that share the question's words are similar to it,
    whether they answer it or not. Each text is embedded once, without its context.

    Args:
        embed_model: Any LlamaIndex embedding.
        answers: (question, passages, best first).
    """
    texts = list(dict.fromkeys(text for _, passages in answers for text in passages[:FIRST]))
    vectors = dict(zip(texts, map(_unit, embed_model.get_text_embedding_batch(texts)), strict=True)) if texts else {}
    found = []
    for question, passages in answers:
        query = _unit(embed_model.get_query_embedding(question)) if passages else None
        found.append(float(np.mean([query @ vectors[text] for text in passages[:FIRST]])) if query is not None else 0.0)
    return found


def _unit(vector: Sequence[float]) -> NDArray[np.float64]:
    row = np.nan_to_num(np.asarray(vector, dtype=np.float64))
    length = float(np.linalg.norm(row))
    return row / length if length else row


KS = (1, 5, 10, 20)
NDCG_K = 10

_AT_K = {"recall": metrics.recall, "hit": metrics.hit, "nDCG": metrics.ndcg}

ShowProgress = Callable[[int, int], None]
"""Called with (questions answered, questions in all)."""


class HasRetriever(Protocol):
    """What is not a retriever itself but gives one, such as a `Project`."""

    def as_retriever(self, *, similarity_top_k: int) -> BaseRetriever:
        """Return a retriever that gives so many results."""


@runtime_checkable
class HasDocuments(Protocol):
    """What can list its documents, such as a `Project`."""

    def documents(self) -> Sequence[DocumentRecord]:
        """Return the documents."""


Retrievable = BaseRetriever | HasRetriever
Questions = Sequence[Question] | str | Path


@dataclass(frozen=True, kw_only=True)
class QuestionResult:
    """What a retriever answered to one question.

    Attributes:
        question: The question.
        results: Best first.
        ranks: For each evidence item, the rank (from 1) of the first result that holds it, or None.
        relevant: For each result, whether it holds any evidence.
        seconds: From the question to the results.
        context_relevance: Mean cosine similarity of question and first passages, or None where it was not asked for.
    """

    question: Question
    results: Sequence[RetrievedChunk]
    ranks: Sequence[int | None]
    relevant: Sequence[bool]
    seconds: float
    context_relevance: float | None = None

    def hard_negatives(self, k: int) -> list[RetrievedChunk]:
        """Return those of the first k results that hold no evidence: what came instead."""
        return [chunk for chunk, good in zip(self.results[:k], self.relevant, strict=False) if not good]

    def __repr__(self) -> str:
        ranks = ", ".join("not found" if rank is None else f"rank {rank}" for rank in self.ranks)
        among = pluralize(len(self.results), "result")
        return f"QuestionResult({self.question.text!r}: {ranks or 'no evidence'} in {among})"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A retriever's answers to a question set.

    Attributes:
        name: What the retriever is called.
        results: One per question, in the order of the set.
        ks: The numbers of results that are looked at, ascending.
    """

    name: str
    results: Sequence[QuestionResult]
    ks: Sequence[int] = field(default=KS)

    @property
    def metrics(self) -> list[str]:
        """The names that `values` and `mean` take."""
        at_k = [f"{metric}@{k}" for metric in ("recall", "precision", "hit") for k in self.ks]
        return [*at_k, "MRR", "MAP", f"nDCG@{min(NDCG_K, max(self.ks))}"]

    def values(self, metric: str) -> NDArray[np.float64]:
        """Return a metric of every question, shape (questions,), between 0 and 1.

        Args:
            metric: "MRR", "MAP", or recall, precision, hit, nDCG with a number up to the largest of `ks`: "recall@5".

        Raises:
            InputError: There is no such metric.
        """
        score = _metric(metric, max(self.ks))
        return np.array([score(result) for result in self.results])

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over all questions, between 0 and 1."""
        return float(self.values(metric).mean())

    def response_time(self, percentile: float) -> float:
        """Return a percentile (0 to 100) of the seconds from question to results."""
        return float(np.percentile([result.seconds for result in self.results], percentile))

    @property
    def context_relevance(self) -> float | None:
        """Mean embedding similarity of questions and passages, or None where it was not asked for."""
        found = [r.context_relevance for r in self.results if r.context_relevance is not None]
        return float(np.mean(found)) if found else None

    def failures(self, k: int | None = None) -> list[QuestionResult]:
        """Return the questions with evidence that the first k results (default: all) do not hold, worst first."""
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
        asked = pluralize(len(self.results), "question")
        return f"{self.name or 'Evaluation'}, {asked}, in per cent: {means}; {times}"


def evaluate(
    retriever: Retrievable,
    questions: Questions,
    *,
    name: str = "",
    ks: Sequence[int] = KS,
    embed_model: BaseEmbedding | None = None,
    progress: ShowProgress | None = None,
) -> Evaluation:
    """Ask a retriever every question, one after the other, and compare what it finds with the evidence.

    Args:
        retriever: Any LlamaIndex retriever, or a project.
        questions: Questions, or a file of them.
        name: What the retriever is called in reports.
        ks: Numbers of results to look at; the largest is what is asked for.
        embed_model: Embeds questions and passages for the context relevance; None leaves it out.
        progress: Called as the questions are answered.

    Raises:
        InputError: There is no question, a number of results is not positive, the file cannot be read, the retriever
            gives fewer results than are looked at, or a project has none of the files that hold the evidence.

    Example:
        >>> evaluate(project, "questions.jsonl").mean("recall@20")  # doctest: +SKIP
    """
    asked = read(questions)
    ks = _checked(ks)
    if isinstance(retriever, HasDocuments):
        require_files(retriever.documents(), asked)
    answering = _retriever(retriever, max(ks))
    results: list[QuestionResult] = []
    for done, question in enumerate(asked, start=1):
        results.append(_answer(answering, question, max(ks)))
        if progress is not None:
            progress(done, len(asked))
    if embed_model is not None:
        relevances = context_relevance(embed_model, [(r.question.text, [c.text for c in r.results]) for r in results])
        results = [replace(r, context_relevance=value) for r, value in zip(results, relevances, strict=True)]
    return Evaluation(name=name, results=tuple(results), ks=ks)


def read(questions: Questions) -> Sequence[Question]:
    """Return the questions, read from their file where one is named.

    Raises:
        InputError: There is none, or the file cannot be read.
    """
    found = load_questions(questions) if isinstance(questions, (str, Path)) else list(questions)
    if not found:
        raise InputError("There is no question to ask: give at least one.", value=questions)
    return found


def _checked(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks or min(ks) < 1:
        raise InputError(f"The numbers of results are {list(ks)}: give at least one, from 1.", value=ks)
    return tuple(sorted(set(ks)))


def _retriever(retriever: Retrievable, k: int) -> BaseRetriever:
    if not isinstance(retriever, BaseRetriever):
        return retriever.as_retriever(similarity_top_k=k)
    given = getattr(retriever, "similarity_top_k", None)
    if isinstance(given, int) and given < k:
        raise InputError(
            f"The retriever gives {pluralize(given, 'result')}, but {k} are looked at: make it with"
            f" similarity_top_k={k}, or give smaller `ks`.",
            value=given,
        )
    return retriever


def _answer(retriever: BaseRetriever, question: Question, k: int) -> QuestionResult:
    started = time.perf_counter()
    nodes = retriever.retrieve(QueryBundle(question.text))[:k]
    seconds = time.perf_counter() - started
    passages = [Passage(RetrievedChunk.of(rank, node)) for rank, node in enumerate(nodes, start=1)]
    return QuestionResult(
        question=question,
        results=tuple(passage.chunk for passage in passages),
        ranks=tuple(question.ranks(passages)),
        relevant=tuple(question.held_by(passage) for passage in passages),
        seconds=seconds,
    )


def _metric(name: str, most: int) -> Callable[[QuestionResult], float]:
    kind, at, number = name.partition("@")
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


_SHOWN = 5


def assert_recall(retriever: Retrievable, questions: Questions, *, k: int = 10, at_least: float) -> Evaluation:
    """Fail a test when the mean recall@k of a question set is too low; the message lists the worst questions.

    Args:
        retriever: A project, or any LlamaIndex retriever.
        questions: Questions, or a file of them.
        k: Results to look at.
        at_least: Between 0 and 1.

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
    found = evaluation.mean(f"recall@{k}")
    if found < at_least:
        raise AssertionError(_message(evaluation, found, k, at_least))
    return evaluation


def _message(evaluation: Evaluation, found: float, k: int, at_least: float) -> str:
    failed = evaluation.failures(k)
    missed = f"{len(failed)} of {pluralize(len(evaluation.results), 'question')}, the worst first"
    lines = [f"recall@{k} is {found:.4f}, below {at_least}; without all evidence: {missed}:"]
    for result in failed[:_SHOWN]:
        instead = next(iter(result.hard_negatives(k)), None)
        came = f"first came {instead.source}" if instead else "nothing was found"
        missing = f"{metrics.recall(result.ranks, k):.2f} of its evidence found"
        lines.append(f"  {result.question.id or '-'} {result.question.text[:120]!r}: {missing}; {came}")
    return "\n".join(lines)
