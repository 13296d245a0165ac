"""Sweep of retrieval settings: chunk sizes, modes and kinds of context on the same questions, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import ContextKind, Mode, ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.questions import Question, absent_files
from llama_index_contextual.evaluation.run import (
    Evaluation,
    Questions,
    ShowVariants,
    VariantProgress,
    build_progress,
    evaluate,
    read,
)
from llama_index_contextual.evaluation.variants import Variant, draw_sample, price_of_all, require_affordable, workspace
from llama_index_contextual.ingestion.state import HasState

MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")
TOP_KS = (5, 10, 20)
OVERLAP = 0.1
"""Chunk overlap, as a share of the chunk size."""


@dataclass(frozen=True, kw_only=True)
class SweepSetting:
    """One combination of settings.

    Attributes:
        context: Kind of context.
        chunk_size: Maximum number of tokens of a chunk.
        mode: Indexes that are searched.
        top_k: Number of results of a search.
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
    """The retrieval figures of one setting.

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


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The result of a sweep.

    Attributes:
        rows: One row per setting, in the order of contexts, chunk sizes, modes and numbers of results.
        questions: Number of questions.
        notes: Notes on the figures, in sentences.
    """

    rows: Sequence[SweepRow]
    questions: int
    notes: Sequence[str] = ()

    def best(self, top_k: int | None = None) -> SweepRow:
        """Return the setting with the highest recall at `top_k` (default: the largest); nDCG breaks ties."""
        k = max(row.top_k for row in self.rows) if top_k is None else top_k
        return max((row for row in self.rows if row.top_k == k), key=lambda row: (row.recall, row.ndcg))

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values."""
        return [asdict(row) for row in self.rows]

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
    top_ks: Sequence[int] = TOP_KS,
    sample: int | None = None,
    max_cost: float | None = None,
    seed: int = 0,
    progress: ShowVariants | None = None,
) -> Sweep:
    """Evaluate every combination of settings; a variant is built for each chunk size and kind of context.

    Args:
        project: The project.
        questions: Questions, or the path of a question file; with several chunk sizes, their evidence must not be
            chunks.
        chunk_sizes: Chunk sizes in tokens; empty for the project's.
        contexts: Kinds of context; empty for the project's.
        modes: Modes of retrieval.
        top_ks: Numbers of results.
        sample: Maximum number of documents to build; None for all.
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
    sizes = tuple(chunk_sizes) or (origin.config.chunk_size,)
    kinds = tuple(contexts) or (origin.config.context,)
    if not modes or not top_ks or min(top_ks) < 1:
        raise InputError("There are no settings to evaluate: pass at least one mode and one number of results.")
    _require_comparable(loaded, sizes, origin.config)
    configs = [variant_config(origin.config, kind, size) for kind in kinds for size in sizes]
    subset = draw_sample(origin.live.current(), loaded, sample, seed=seed)
    report = progress or (lambda _: None)
    dollars = price_of_all(origin, configs, excluded=subset.excluded)
    require_affordable(dollars, max_cost, subset.documents)
    report(VariantProgress(stage="price", dollars=dollars))
    rows: list[SweepRow] = []
    with workspace(origin) as space:
        for config in configs:
            name = f"{config.context}, {config.chunk_size} tokens"
            variant = space.build(config, excluded=subset.excluded, progress=build_progress(report, name))
            for mode in modes:
                rows += _rows(variant, mode, subset.questions, sorted(set(top_ks)))
    documents = origin.live.current().records
    count = pluralize(len(subset.questions), "question")
    note = f"{subset.documents} of {pluralize(len(documents), 'document')}, {count}."
    notes = (note, *absent_files(documents, subset.questions))
    return Sweep(rows=tuple(rows), questions=len(subset.questions), notes=notes)


def _require_comparable(questions: Sequence[Question], sizes: Sequence[int], config: ProjectConfig) -> None:
    by_chunk = any(item.chunk_id is not None for question in questions for item in question.evidence)
    if by_chunk and set(sizes) != {config.chunk_size}:
        raise InputError(
            "The evidence names chunks, and chunks of another size have other ids: use spans, pages or texts instead."
        )


def variant_config(config: ProjectConfig, kind: ContextKind, size: int) -> ProjectConfig:
    """Return the settings with another kind of context and chunk size; the overlap is scaled with the size."""
    if size == config.chunk_size:
        return config.changed(context=kind)
    return config.changed(context=kind, chunk_size=size, chunk_overlap=int(OVERLAP * size))


def _rows(variant: Variant, mode: Mode, questions: Sequence[Question], top_ks: Sequence[int]) -> list[SweepRow]:
    retriever = variant.as_retriever(similarity_top_k=max(top_ks), mode=mode)
    evaluation = evaluate(retriever, questions, ks=top_ks)
    tokens = _tokens(evaluation)
    return [
        SweepRow(
            context=variant.config.context,
            chunk_size=variant.config.chunk_size,
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
    """Return the token counts of the results of each question."""
    counts: dict[str, int] = {}
    for result in evaluation.results:
        for chunk in result.results:
            if chunk.node_id not in counts:
                counts[chunk.node_id] = chunk.node.metadata.get("token_count") or count_tokens(chunk.text)
    return [[counts[chunk.node_id] for chunk in result.results] for result in evaluation.results]
