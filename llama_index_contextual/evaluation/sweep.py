"""Sweep over settings: compare all combinations of chunk size, kind of context, mode and number of results.

`sweep_variants` evaluates the retrieved passages, and `sweep_answers` the answers of an LLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Generic, TypeVar, Unpack

import numpy as np
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate

from llama_index_contextual._utils.keywords import suggests_keywords, takes
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.answering.batch import QA, Predictions, answer_many
from llama_index_contextual.answering.build import EngineBuilder, EngineOptions
from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.answering.response import AnswerAccount
from llama_index_contextual.config import ContextKind, Mode, ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.compare import (
    Plan,
    Sample,
    ShowVariants,
    Variant,
    VariantProgress,
    built_variants,
    draw_sample,
)
from llama_index_contextual.evaluation.questions import Question, absent_files
from llama_index_contextual.evaluation.run import Evaluation, Questions, evaluate, read
from llama_index_contextual.ingestion.state import HasState
from llama_index_contextual.retrievers.project import ProjectRetriever

MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")
OVERLAP = 0.1
"""Chunk overlap as a share of the chunk size."""


@dataclass(frozen=True, kw_only=True)
class SweepSetting:
    """One combination of settings.

    Attributes:
        context: Kind of context.
        chunk_size: Maximum number of tokens of a chunk.
        mode: Indexes to search.
        top_k: Number of search results.
    """

    context: ContextKind
    chunk_size: int
    mode: Mode
    top_k: int

    @property
    def name(self) -> str:
        """The setting without `top_k`; each name is one line of the chart."""
        return f"{self.context}, {self.chunk_size} tokens, {self.mode}"


@dataclass(frozen=True, kw_only=True)
class SweepRow(SweepSetting):
    """Retrieval figures for one setting.

    Attributes:
        recall: Mean recall@top_k.
        precision: Mean precision@top_k.
        ndcg: Mean nDCG@top_k.
        tokens: Mean number of tokens of the passages of a question.
        p50_ms: Median response time in milliseconds.
        chunks: Number of chunks in the index.
        cost: Cost of the contexts in dollars; None if unknown.
    """

    recall: float
    precision: float
    ndcg: float
    tokens: float
    p50_ms: float
    chunks: int
    cost: float | None

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key for the best setting: the largest number of results, then recall, then nDCG."""
        return self.top_k, self.recall, self.ndcg

    def figures(self) -> dict[str, Any]:
        """Return the setting and its figures as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class AnswerRow(SweepSetting):
    """The answers for one setting.

    Attributes:
        predictions: The answers.
    """

    predictions: Predictions = field(repr=False)

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key for the best setting: F1, then exact match, then fewer results."""
        return self.predictions.f1 or 0.0, self.predictions.exact or 0.0, -self.top_k

    def figures(self) -> dict[str, Any]:
        """Return the setting and its figures as JSON values; scores are None if no question has a correct answer."""
        setting = {name: getattr(self, name) for name in ("context", "chunk_size", "mode", "top_k")}
        figures = {name: value for name, value in self.predictions.summary().items() if name != "usage"}
        return {**setting, **figures, **{name: self.predictions.settings.get(name) for name in ("model", "style")}}


Row = TypeVar("Row", SweepRow, AnswerRow)


@dataclass(frozen=True, kw_only=True)
class Sweep(Generic[Row]):
    """The result of a sweep.

    Attributes:
        rows: One row per setting, in the order of contexts, chunk sizes, modes and numbers of results.
        questions: Number of questions.
        measure: The figure shown in the chart, between 0 and 1.
        notes: Notes on the figures, one sentence each.
    """

    rows: Sequence[Row]
    questions: int
    measure: str
    notes: Sequence[str] = ()

    def best(self, top_k: int | None = None) -> Row:
        """Return the best setting, or the best one with `top_k` results; see `order` of the rows."""
        return max((row for row in self.rows if top_k in (None, row.top_k)), key=lambda row: row.order)

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values."""
        return [row.figures() for row in self.rows]

    def __repr__(self) -> str:
        return (
            f"{pluralize(len(self.rows), 'setting')} on {pluralize(self.questions, 'question')}, the best one is"
            f" {self.best()}"
        )


@suggests_keywords
def sweep_variants(
    project: HasState,
    questions: Questions,
    *,
    chunk_sizes: Sequence[int] = (),
    contexts: Sequence[ContextKind] = (),
    modes: Sequence[Mode] = MODES,
    top_ks: Sequence[int] = (5, 10, 20),
    sample: int | None = None,
    max_cost: float | None = None,
    seed: int = 0,
    progress: ShowVariants | None = None,
) -> Sweep[SweepRow]:
    """Evaluate every combination of settings; a variant is built for each chunk size and kind of context.

    Args:
        project: The project.
        questions: Questions, or the path of a question file; with several chunk sizes, their evidence must not be
            chunks.
        chunk_sizes: Chunk sizes in tokens; empty for the project's.
        contexts: Kinds of context; empty for the project's.
        modes: Modes of retrieval.
        top_ks: Numbers of results.
        sample: Maximum number of documents to index; None for all.
        max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if the cost is higher or
            unknown.
        seed: Seed of the random numbers.
        progress: Called as the work proceeds, first with the cost before anything is built; it may raise to stop.

    Raises:
        InputError: There are no settings, the evidence is not comparable across chunk sizes, or the cost is higher
            than `max_cost`.
        ConfigurationError: A chunk size, kind of context or mode is invalid.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    origin, loaded = project.state, read(questions)
    if not modes or not top_ks or min(top_ks) < 1:
        raise InputError("There are no settings to evaluate: pass at least one mode and one number of results.")
    _require_comparable(loaded, chunk_sizes, origin.config)
    plans = _plans(origin.config, contexts, chunk_sizes)
    subset = draw_sample(origin.live.current(), loaded, sample, seed=seed)
    with built_variants(origin, plans, subset, max_cost=max_cost, report=progress or (lambda _: None)) as built:
        rows = [
            row
            for variant, mode in product(built.values(), modes)
            for row in _rows(variant, mode, subset.questions, sorted(set(top_ks)))
        ]
    documents = origin.live.current().records
    count = pluralize(len(subset.questions), "question")
    note = f"{subset.documents} of {pluralize(len(documents), 'document')}, {count}."
    notes = (note, *absent_files(documents, subset.questions))
    return Sweep(rows=tuple(rows), questions=len(subset.questions), measure="recall", notes=notes)


def _require_comparable(questions: Sequence[Question], sizes: Sequence[int], config: ProjectConfig) -> None:
    by_chunk = any(item.chunk_id is not None for question in questions for item in question.evidence)
    if by_chunk and set(sizes) - {config.chunk_size}:
        raise InputError(
            "The evidence names chunks, and chunks of another size have other ids: use spans, pages or texts instead."
        )


def _plans(config: ProjectConfig, contexts: Sequence[ContextKind], sizes: Sequence[int]) -> dict[str, Plan]:
    """Return the settings for each kind of context and chunk size; the overlap is scaled with the size."""
    plans = {}
    for kind, size in product(contexts or [config.context], sizes or [config.chunk_size]):
        overlap = config.chunk_overlap if size == config.chunk_size else int(OVERLAP * size)
        changed = config.changed(context=kind, chunk_size=size, chunk_overlap=overlap)
        plans[f"{kind}, {size} tokens"] = Plan(changed)
    return plans


def _rows(variant: Variant, mode: Mode, questions: Sequence[Question], top_ks: Sequence[int]) -> list[SweepRow]:
    retriever = variant.as_retriever(similarity_top_k=max(top_ks), mode=mode)
    evaluation = evaluate(retriever, questions, ks=top_ks)
    tokens = _tokens(evaluation)
    return [
        SweepRow(
            context=variant.plan.config.context,
            chunk_size=variant.plan.config.chunk_size,
            mode=mode,
            top_k=k,
            recall=evaluation.mean(f"recall@{k}"),
            precision=evaluation.mean(f"precision@{k}"),
            ndcg=float(np.mean([metrics.ndcg(result.ranks, k) for result in evaluation.results])),
            tokens=float(np.mean([sum(row[:k]) for row in tokens])),
            p50_ms=1000 * evaluation.response_time(50),
            chunks=variant.chunks,
            cost=variant.cost,
        )
        for k in top_ks
    ]


def _tokens(evaluation: Evaluation) -> list[list[int]]:
    """Return the token counts of the results for each question."""
    chunks = {chunk.node_id: chunk for result in evaluation.results for chunk in result.results}
    counts = {
        node_id: chunk.node.metadata.get("token_count") or count_tokens(chunk.text) for node_id, chunk in chunks.items()
    }
    return [[counts[chunk.node_id] for chunk in result.results] for result in evaluation.results]


@takes(EngineOptions)
def sweep_answers(
    project: HasState,
    questions: Sequence[QA],
    *,
    llm: LLM | None = None,
    chunk_sizes: Sequence[int] = (),
    contexts: Sequence[ContextKind] = (),
    modes: Sequence[Mode] = (),
    top_ks: Sequence[int] = (3, 5, 10),
    concurrency: int = 8,
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
    system_prompt: str | None = None,
    text_qa_template: BasePromptTemplate | None = None,
    node_postprocessors: Sequence[BaseNodePostprocessor] = (),
    **options: Unpack[EngineOptions],
) -> Sweep[AnswerRow]:
    """Answer the questions with every combination of settings; variants are built temporarily for this.

    Args:
        project: The project.
        questions: Questions with their correct answers.
        llm: LLM that writes the answers; None uses the project's.
        chunk_sizes: Chunk sizes in tokens; empty for the project's.
        contexts: Kinds of context; empty for the project's.
        modes: Modes of retrieval; empty for the project's.
        top_ks: Numbers of results.
        concurrency: Maximum number of questions answered at the same time.
        max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if the cost is higher or
            unknown. The cost of the answers is not included.
        progress: Called as the work proceeds, first with the cost before anything is built; it may raise to stop.
        system_prompt: As in `Project.as_query_engine`, like all following options.
        text_qa_template: Template of the message with passages and question.
        node_postprocessors: Applied to the hits first.
        **options

    Raises:
        InputError: There are no settings or questions, or the cost is higher than `max_cost`.
        ConfigurationError: A chunk size, kind of context or mode is invalid.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    origin = project.state
    if not questions or not top_ks or min(top_ks) < 1:
        raise InputError("There is nothing to evaluate: pass at least one question and one positive number of results.")
    plans = _plans(origin.config, contexts, chunk_sizes)
    report = progress or (lambda _: None)
    everything = Sample((), frozenset(), len(origin.live.current().records))
    answering, account = llm or origin.answering_llm(), AnswerAccount.of(origin.directory, origin.config.prices)
    cache = AnswerCache.of(origin.directory)
    engine_options = {
        "system_prompt": system_prompt,
        "text_qa_template": text_qa_template,
        "node_postprocessors": list(node_postprocessors) or None,
        **options,
    }
    rows: list[AnswerRow] = []
    with built_variants(origin, plans, everything, max_cost=max_cost, report=report) as built:
        for variant, mode, k in product(built.values(), modes or [origin.config.mode], sorted(set(top_ks))):
            config = variant.plan.config
            retriever = ProjectRetriever(variant.live, config, mode=mode, similarity_top_k=k)
            builder = EngineBuilder(retriever, lambda: origin.embed_model, answering, account, cache)
            engine = builder.grounded_engine(engine_options)
            row = AnswerRow(
                context=config.context,
                chunk_size=config.chunk_size,
                mode=mode,
                top_k=k,
                predictions=answer_many(engine, questions, concurrency=concurrency),
            )
            report(VariantProgress(stage="ask", name=row.name, done=len(questions), total=len(questions)))
            rows.append(row)
    return Sweep(rows=tuple(rows), questions=len(questions), measure="f1")
