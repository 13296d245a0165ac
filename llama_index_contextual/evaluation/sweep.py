"""A project's documents with several chunk sizes, modes and kinds of context: one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ContextKind, Mode, ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.compare import Origin, Variant, price_of_all, require_affordable, workspace
from llama_index_contextual.evaluation.questions import Question
from llama_index_contextual.evaluation.run import (
    Evaluation,
    Questions,
    ShowVariants,
    VariantProgress,
    evaluate,
    read,
    told,
)
from llama_index_contextual.evaluation.sample import absent_files, draw
from llama_index_contextual.node_parser.tokens import count_tokens

MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")
TOP_KS = (5, 10, 20)
OVERLAP = 0.1
"""Share of a chunk that it has in common with the next, whatever its size."""


@dataclass(frozen=True, kw_only=True)
class SweepSetting:
    """What is tried.

    Attributes:
        context: Who wrote the contexts.
        chunk_size: Tokens of a chunk, at most.
        mode: Which indexes answered.
        top_k: Results of a search.
    """

    context: ContextKind
    chunk_size: int
    mode: Mode
    top_k: int

    @property
    def name(self) -> str:
        """The setting without top_k: one line of the chart."""
        return f"{self.context}, {self.chunk_size} tokens, {self.mode}"


@dataclass(frozen=True, kw_only=True)
class SweepRow(SweepSetting):
    """One setting, and how well it retrieves.

    Attributes:
        recall: Mean recall@top_k.
        precision: Mean precision@top_k.
        ndcg: Mean nDCG@top_k.
        tokens: Mean tokens of the passages that an LLM would read.
        p50_ms: Median of the response times.
        chunks: Chunks in the index.
        cost: Dollars for contexts, or None where it is not known.
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
    """The settings that were tried.

    Attributes:
        rows: In the order of contexts, chunk sizes, modes and numbers of results.
        questions: Number of questions.
        notes: Sentences about what the figures stand for.
    """

    rows: Sequence[SweepRow]
    questions: int
    notes: Sequence[str] = ()

    def best(self, top_k: int | None = None) -> SweepRow:
        """Return the setting with the highest recall at a number of results (default: the largest), then nDCG."""
        k = max(row.top_k for row in self.rows) if top_k is None else top_k
        return max((row for row in self.rows if row.top_k == k), key=lambda row: (row.recall, row.ndcg))

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        return (
            f"{pluralize(len(self.rows), 'setting')} on {pluralize(self.questions, 'question')}, the best one"
            f" {self.best()}"
        )


def sweep_variants(
    origin: Origin,
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
    """Try every combination; a version is built for each chunk size and kind of context, and removed afterwards.

    Args:
        origin: The project.
        questions: Questions, or a file of them; their evidence must not be chunks where several sizes are tried.
        chunk_sizes: Tokens; none takes the project's.
        contexts: Kinds of context; none takes the project's.
        modes: Which indexes answer.
        top_ks: Numbers of results.
        sample: Documents to build, at most; None takes all.
        max_cost: Dollars that contexts and embeddings may cost; nothing is built where the price is higher or unknown.
        seed: Of the random numbers.
        progress: Called as the work proceeds; with the price before anything is built, where it may raise.

    Raises:
        InputError: There is nothing to try, the evidence cannot be compared over chunk sizes, or the cost would be
            higher than `max_cost`.
        ConfigurationError: A chunk size, kind of context or mode cannot be.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    asked = read(questions)
    sizes = tuple(chunk_sizes) or (origin.config.chunk_size,)
    kinds = tuple(contexts) or (origin.config.context,)
    if not modes or not top_ks or min(top_ks) < 1:
        raise InputError("There is nothing to try: give at least one mode and one number of results.")
    _require_comparable(asked, sizes, origin.config)
    configs = [variant_config(origin.config, kind, size) for kind in kinds for size in sizes]
    drawn = draw(origin.version, asked, sample, seed=seed)
    tell = progress or (lambda _: None)
    dollars = price_of_all(origin, configs, left_out=drawn.left_out)
    require_affordable(dollars, max_cost, drawn.documents)
    tell(VariantProgress(stage="price", dollars=dollars))
    rows: list[SweepRow] = []
    with workspace(origin) as space:
        for config in configs:
            name = f"{config.context}, {config.chunk_size} tokens"
            variant = space.build(config, left_out=drawn.left_out, progress=told(tell, name))
            for mode in modes:
                rows += _rows(variant, mode, drawn.questions, sorted(set(top_ks)))
    documents = origin.version.manifest.documents
    count = pluralize(len(drawn.questions), "question")
    note = f"{drawn.documents} of {pluralize(len(documents), 'document')}, {count}."
    notes = (note, *absent_files(documents, drawn.questions))
    return Sweep(rows=tuple(rows), questions=len(drawn.questions), notes=notes)


def _require_comparable(questions: Sequence[Question], sizes: Sequence[int], config: ProjectConfig) -> None:
    by_chunk = any(item.chunk_id is not None for question in questions for item in question.evidence)
    if by_chunk and set(sizes) != {config.chunk_size}:
        raise InputError(
            "The evidence names chunks, and chunks of another size have other ids: give spans, pages or texts instead."
        )


def variant_config(config: ProjectConfig, kind: ContextKind, size: int) -> ProjectConfig:
    """Return the settings with another kind of context and another chunk size; the overlap keeps its share."""
    if size == config.chunk_size:
        return config.changed(context=kind)
    return config.changed(context=kind, chunk_size=size, chunk_overlap=int(OVERLAP * size))


def _rows(variant: Variant, mode: Mode, questions: Sequence[Question], top_ks: Sequence[int]) -> list[SweepRow]:
    retriever = variant.as_retriever(similarity_top_k=max(top_ks), mode=mode)
    found = evaluate(retriever, questions, ks=top_ks)
    tokens = _tokens(found)
    return [
        SweepRow(
            context=variant.config.context,
            chunk_size=variant.config.chunk_size,
            mode=mode,
            top_k=k,
            recall=found.mean(f"recall@{k}"),
            precision=found.mean(f"precision@{k}"),
            ndcg=float(np.mean([metrics.ndcg(result.ranks, k) for result in found.results])),
            tokens=float(np.mean([sum(row[:k]) for row in tokens])),
            p50_ms=1000 * found.response_time(50),
            chunks=variant.chunks,
            cost=variant.cost,
        )
        for k in top_ks
    ]


def _tokens(found: Evaluation) -> list[list[int]]:
    counts: dict[str, int] = {}
    for result in found.results:
        for chunk in result.results:
            if chunk.node_id not in counts:
                counts[chunk.node_id] = chunk.node.metadata.get("token_count") or count_tokens(chunk.text)
    return [[counts[chunk.node_id] for chunk in result.results] for result in found.results]
