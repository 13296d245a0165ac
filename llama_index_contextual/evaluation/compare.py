"""Compare retrievers on the same questions, with intervals, p-values and a recommendation.

`compare` accepts any retrievers. `compare_variants` indexes a project's documents with several kinds of context in a
temporary directory and compares the results.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import MetadataMode
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import LOCAL, ContextKind, Mode, ProjectConfig
from llama_index_contextual.contextualizer.cost import EmbeddingCount, PriceTable, Tokens
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import ConfigurationError, InputError, Remedy
from llama_index_contextual.evaluation import metrics
from llama_index_contextual.evaluation.questions import (
    QUESTIONS,
    Evidence,
    Question,
    absent_files,
    generate_questions,
    ids_by_name,
    require_files,
)
from llama_index_contextual.evaluation.run import KS, Evaluation, Questions, Retrievable, ShowProgress, evaluate, read
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.project_file import project_ledger, scratch, write_lock
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.changes import arun
from llama_index_contextual.ingestion.estimate import estimate
from llama_index_contextual.ingestion.pipeline import make_stages
from llama_index_contextual.ingestion.plan import RunOptions
from llama_index_contextual.ingestion.state import HasState, ProjectState
from llama_index_contextual.models import embedding_identity, load_embed_model, model_name
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.live import LiveIndexes

RELEVANT = 0.05
"""Mean difference that a question set should be able to detect; if it cannot, the recommendation mentions this."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The paired difference between two retrievers.

    Attributes:
        metric: Name of the metric.
        baseline: Name of the baseline.
        variant: Name of the other retriever.
        mean: Mean difference over the questions; above 0 if the variant is better.
        low: Lower end of the 95 % interval (paired bootstrap).
        high: Upper end of the interval.
        p_value: Two-sided p-value of a paired permutation test.
        detectable: The smallest mean difference that this number of questions would probably detect (see
            `detectable_difference`), or None if it cannot be estimated.
    """

    metric: str
    baseline: str
    variant: str
    mean: float
    low: float
    high: float
    p_value: float
    detectable: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the p-value is below 5 %."""
        return self.p_value < metrics.ALPHA

    def __str__(self) -> str:
        """Return the difference in percentage points."""
        mean, low, high = (100 * value for value in (self.mean, self.low, self.high))
        return f"{mean:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, p = {self.p_value:.2g}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The evaluations of several retrievers on the same questions; the first retriever is the baseline.

    Attributes:
        evaluations: The evaluations in the order given.
        metric: Metric of the recommendation.
        costs: Cost of the retrievers on these documents in dollars, by name, if known.
        notes: Notes on the figures, one sentence each.
        seed: Seed of the random numbers.
    """

    evaluations: Sequence[Evaluation]
    metric: str
    costs: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """Names of the retrievers."""
        return [evaluation.name for evaluation in self.evaluations]

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluation with this name."""
        return self.evaluations[self.names.index(name)]

    def difference(self, baseline: str, variant: str, metric: str | None = None) -> Difference:
        """Return how much better `variant` is than `baseline`."""
        metric = metric or self.metric
        values = self._values(baseline, variant, metric)
        interval = metrics.bootstrap_interval(values, seed=self.seed)
        return Difference(
            metric=metric,
            baseline=baseline,
            variant=variant,
            mean=interval.mean,
            low=interval.low,
            high=interval.high,
            p_value=metrics.permutation_p_value(values, seed=self.seed),
            detectable=metrics.detectable_difference(values),
        )

    def _values(self, baseline: str, variant: str, metric: str | None = None) -> NDArray[np.float64]:
        metric = metric or self.metric
        return self[variant].values(metric) - self[baseline].values(metric)

    def differences(self, metric: str | None = None) -> list[Difference]:
        """Return the differences between all pairs of retrievers."""
        return [self.difference(one, other, metric) for one, other in combinations(self.names, 2)]

    def cost_per_point(self, variant: str, metric: str | None = None) -> float | None:
        """Return the dollars per percentage point gained over the baseline; None if unknown or if there is no gain."""
        cost, baseline = self.costs.get(variant), self.costs.get(self.names[0])
        points = 100 * self.difference(self.names[0], variant, metric).mean
        return None if cost is None or points <= 0 else (cost - (baseline or 0.0)) / points

    @property
    def recommended(self) -> str:
        """Name of the recommended retriever.

        This is the best of the cheapest retrievers, unless a more expensive one is significantly better.
        """
        by_cost = self._names_by_cost()
        least = self.costs.get(by_cost[0])
        cheapest = [
            name for name in by_cost if name == by_cost[0] or (least is not None and self.costs.get(name) == least)
        ]
        chosen = max(cheapest, key=lambda name: round(self[name].mean(self.metric), 9))
        for name in (name for name in by_cost if name not in cheapest):
            difference = self.difference(chosen, name)
            if difference.significant and difference.mean > 0:
                chosen = name
        return chosen

    def _names_by_cost(self) -> list[str]:
        """Return the names, cheapest first; retrievers with unknown cost come last, in the order given."""
        if self.costs.get(self.names[0]) is None:
            return self.names

        def cost(name: str) -> float:
            known = self.costs.get(name)
            return math.inf if known is None else known

        return sorted(self.names, key=cost)

    @property
    def recommendation(self) -> str:
        """The recommendation and its reasons, in a few sentences."""
        chosen, first, number = self.recommended, self.names[0], len(self.evaluations[0].results)
        on = f"in {self.metric} on {pluralize(number, 'question')}"
        others = [name for name in self.names if name != chosen]
        gain = self.difference(first, chosen)
        if chosen == first or gain.mean <= 0:
            less = "" if chosen == first else "it costs less, and "
            advice = f"Use {chosen!r}: {less}{self._not_better(chosen, others)} {on}."
        else:
            doubt = "" if gain.significant else ", though not significantly,"
            others.remove(first)
            rest = f", and {self._not_better(chosen, others)}" if others else ""
            advice = f"Use {chosen!r}: it is better than {first!r} {on} ({gain}){doubt}{self._price(chosen)}{rest}."
        return " ".join([advice, *self._doubts(chosen)])

    def _price(self, chosen: str) -> str:
        cost = self.cost_per_point(chosen)
        if cost is None:
            return ""
        return f" at ${cost:.2f} per point" if cost > 0 else " at no extra cost"

    def _not_better(self, chosen: str, others: Sequence[str]) -> str:
        parts = [f"{name!r} ({self.difference(chosen, name)})" for name in others]
        verb = "is" if len(parts) == 1 else "are"
        return f"{' and '.join(parts)} {verb} not significantly better"

    def _doubts(self, chosen: str) -> Iterator[str]:
        """Yield a sentence if there are too few questions to distinguish the recommended retriever from another."""
        number = len(self.evaluations[0].results)
        differences = [self.difference(chosen, name) for name in self.names if name != chosen]
        undecided = [difference for difference in differences if not difference.significant]
        if undecided and number < metrics.FEWEST:
            yield f"With fewer than {metrics.FEWEST} questions no difference can be significant: use more."
        widest = max(undecided, key=lambda difference: difference.detectable or 0.0, default=None)
        if widest is None or widest.detectable is None or widest.detectable <= RELEVANT:
            return
        needed = metrics.questions_needed(self._values(widest.baseline, widest.variant), RELEVANT)
        yield (
            f"The questions are too few to tell {widest.baseline!r} from {widest.variant!r} if they differ by less than"
            f" {100 * widest.detectable:.1f} points (5 % level, 80 % power); about {needed:,} questions would show"
            f" {100 * RELEVANT:.0f} points."
        )

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self.evaluations), self.recommendation])


def compare(
    retrievers: Mapping[str, Retrievable],
    questions: Questions,
    *,
    ks: Sequence[int] = KS,
    metric: str | None = None,
    costs: Mapping[str, float | None] | None = None,
    notes: Sequence[str] = (),
    embed_model: BaseEmbedding | None = None,
    seed: int = 0,
    progress: ShowProgress | None = None,
) -> Comparison:
    """Evaluate several retrievers on the same questions.

    Args:
        retrievers: LlamaIndex retrievers or projects by name: first the baseline, then the others, in order of cost
            unless `costs` are given.
        questions: Questions, or the path of a question file.
        ks: Numbers of results to evaluate.
        metric: Metric of the recommendation; None for nDCG@10, or at the largest of `ks` if that is smaller.
        costs: Cost of each retriever on these documents in dollars, if known.
        notes: Notes on the figures, one sentence each.
        embed_model: Model for the context relevance; None leaves it out.
        seed: Seed of the random numbers for intervals and p-values.
        progress: Called after each question, counting over all retrievers.

    Raises:
        InputError: There are fewer than two retrievers, there are no questions, or the metric is unknown.

    Example:
        >>> print(compare({"plain": plain, "hybrid": hybrid}, "questions.jsonl").recommendation)  # doctest: +SKIP
    """
    if len(retrievers) < 2:
        raise InputError("A comparison needs at least two retrievers.", value=list(retrievers))
    loaded = read(questions)
    total = len(loaded) * len(retrievers)
    evaluations = []
    for at, (name, retriever) in enumerate(retrievers.items()):
        before = at * len(loaded)
        report = None if progress is None else (lambda done, _, before=before: progress(before + done, total))
        evaluations.append(evaluate(retriever, loaded, name=name, ks=ks, embed_model=embed_model, progress=report))
    metric = metric or evaluations[0].main_metric
    evaluations[0].values(metric)  # raises an error if the metric is unknown
    return Comparison(
        evaluations=tuple(evaluations), metric=metric, costs=dict(costs or {}), notes=tuple(notes), seed=seed
    )


# ---- Variants of a project -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class VariantProgress:
    """Progress of a comparison or a sweep.

    Attributes:
        stage: The current stage.
        name: Name of the variant, or "" for all variants.
        done: Number of chunks or questions done.
        total: Number of questions; 0 if unknown.
        dollars: Estimated cost, in the stage "price"; None if unknown.
    """

    stage: Literal["questions", "price", "build", "ask"]
    name: str = ""
    done: int = 0
    total: int = 0
    dollars: float | None = None


ShowVariants = Callable[[VariantProgress], None]


@dataclass(frozen=True)
class Sample:
    """Sample of the documents of a version, with the questions whose evidence is in them.

    Attributes:
        questions: The questions, in the order of the set.
        excluded: Ids of the documents that are not in the sample.
        documents: Number of documents in the sample.
    """

    questions: Sequence[Question]
    excluded: frozenset[str]
    documents: int


def draw_sample(version: OpenVersion, questions: Sequence[Question], size: int | None, *, seed: int = 0) -> Sample:
    """Draw documents with evidence at random; return them with the questions whose evidence they fully contain.

    Documents without evidence fill the rest of the sample, since they compete in retrieval.

    Args:
        version: The version with the documents.
        questions: The whole question set.
        size: Maximum number of documents; None for all.
        seed: Seed of the random numbers.

    Raises:
        InputError: The size is not positive or too small for any question, or the version contains none of the files
            with evidence.
    """
    require_files(version.records, questions)
    ids = [record.doc_id for record in version.records]
    if size is not None and size < 1:
        raise InputError(f"The sample has {size} documents: use at least one.", value=size)
    if size is None or size >= len(ids):
        return Sample(questions, frozenset(), len(ids))
    needed = _documents_of(version, questions)
    order = random.Random(seed)
    groups = sorted({group for group in needed if group}, key=sorted)
    order.shuffle(groups)
    chosen: set[str] = set()
    for group in groups:
        if len(chosen | group) <= size:
            chosen |= group
    selected = [question for question, group in zip(questions, needed, strict=True) if group and group <= chosen]
    if not selected:
        raise InputError(
            f"No question has all its evidence in a sample of {pluralize(size, 'document')}: use a larger one, and"
            f" name files or chunks in the evidence.",
            value=size,
        )
    others = [doc_id for doc_id in ids if doc_id not in chosen]
    chosen |= set(order.sample(others, min(len(others), size - len(chosen))))
    return Sample(selected, frozenset(ids) - chosen, len(chosen))


def _documents_of(version: OpenVersion, questions: Sequence[Question]) -> list[frozenset[str]]:
    """Return the documents with evidence for each question; empty if the document of any evidence item is unknown."""
    by_name = ids_by_name(version.records)
    chunk_ids = [item.chunk_id for question in questions for item in question.evidence if item.chunk_id is not None]
    chunks = version.docstore.get_nodes(version.docstore.known(list(dict.fromkeys(chunk_ids))))
    by_chunk = {chunk.node_id: {chunk.ref_doc_id} for chunk in chunks if chunk.ref_doc_id is not None}

    def documents(item: Evidence) -> set[str]:
        if item.chunk_id is not None:
            return by_chunk.get(item.chunk_id, set())
        return by_name.get(item.file or "", set())

    groups = []
    for question in questions:
        sets = [documents(item) for item in question.evidence]
        groups.append(frozenset().union(*sets) if all(sets) else frozenset())
    return groups


@dataclass(frozen=True)
class Plan:
    """Settings of a variant.

    Attributes:
        config: The settings.
        embed_model: Embedding model; None for the project's.
    """

    config: ProjectConfig
    embed_model: BaseEmbedding | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A project's documents, indexed with other settings.

    Attributes:
        plan: The settings.
        live: The indexes.
        cost: Cost of the contexts in dollars, including those from earlier runs; None if unknown.
    """

    plan: Plan
    live: LiveIndexes
    cost: float | None

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return self.live.current().manifest.chunks

    @property
    def failures(self) -> int:
        """Number of chunks with only a structural context because the LLM failed."""
        return sum(len(record.fallback_chunks) for record in self.live.current().records)

    def as_retriever(self, *, similarity_top_k: int, mode: Mode | None = None) -> BaseRetriever:
        """Return a retriever that returns `similarity_top_k` results."""
        return ProjectRetriever(self.live, self.plan.config, mode=mode, similarity_top_k=similarity_top_k)


@contextlib.contextmanager
def built_variants(
    origin: ProjectState,
    plans: Mapping[str, Plan],
    sample: Sample,
    *,
    max_cost: float | None,
    report: ShowVariants,
) -> Iterator[dict[str, Variant]]:
    """Report the price of variants of a project, build them next to the project, and remove them at the end.

    Contexts and embeddings in the project's ledger are reused, and new ones are kept there. Files left over from an
    interrupted run are removed.

    Args:
        origin: The project.
        plans: The settings by name.
        sample: The documents.
        max_cost: Maximum cost in dollars; None for no limit.
        report: Called first with the price, then as the work proceeds.

    Raises:
        InputError: There is a limit, and the cost exceeds it or is unknown.
        ModelError: A model cannot be loaded or reached; the replies received so far are in the ledger.
        ProjectLockedError: Another process is writing to the project, or comparing variants of it.
    """
    dollars = total_price([price(origin, plan, excluded=sample.excluded) for plan in plans.values()])
    _require_affordable(dollars, max_cost, sample.documents)
    report(VariantProgress(stage="price", dollars=dollars))
    with scratch(origin.directory) as directory, ExitStack() as stack:
        built: dict[str, Variant] = {}
        for name, plan in plans.items():
            built[name] = _build(origin, name, plan, directory / str(len(built)), sample.excluded, report)
            if built[name].live is not origin.live:
                stack.callback(built[name].live.current().close)
        yield built


def _build(
    origin: ProjectState, name: str, plan: Plan, directory: Path, excluded: frozenset[str], report: ShowVariants
) -> Variant:
    """Build a variant in a new directory, or use the live version if its settings are the same."""
    config, before = plan.config, origin.live.current()
    with write_lock(origin.directory), project_ledger(origin.directory) as ledger:
        built_with = ProjectConfig(**before.manifest.config)
        live = origin.live
        if plan.embed_model is not None or excluded or config.rebuild_fields(built_with):
            files.make_directory(directory)
            model = plan.embed_model or (origin.embed_model if config.builds_semantic else None)
            stages = make_stages(config, ledger=ledger, llm=origin.llm, embed_model=model, model_id=origin.model_id)
            run_sync(
                lambda: arun(
                    [],
                    RunOptions(remove=excluded, purpose="compare"),
                    project_dir=directory,
                    config=config.changed(backend="files"),  # variants are temporary
                    make_stages=lambda: stages,
                    before=before,
                    progress=lambda state: report(VariantProgress(stage="build", name=name, done=state.chunks_done)),
                )
            )
            live = LiveIndexes(
                directory, origin.directory.name, lambda *_: plan.embed_model or origin.embed_model, origin.context_llm
            )
        cost = _cost(live.current(), config, origin.context_llm_name, ledger)
        return Variant(plan=plan, live=live, cost=cost)


def _cost(version: OpenVersion, config: ProjectConfig, llm: str, ledger: Ledger) -> float | None:
    """Return the cost in dollars of the contexts that an LLM wrote for a version, according to the ledger."""
    if config.context != "llm":
        return 0.0
    contexts = [
        keys.context_parts(node.metadata)[1]
        for node in version.docstore.iterate()
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm" and not node.metadata.get(keys.CONTEXT_GIVEN)
    ]
    used = ledger.usage(contexts)
    if used is None:
        return None
    tokens = Tokens(input_tokens=used.input_tokens, cached_tokens=used.cached_tokens, output_tokens=used.output_tokens)
    return PriceTable(config.prices).dollars(llm, tokens, sender=config.service_tier or "live")


def embedding_cost(variant: Variant) -> float | None:
    """Return the cost of embedding the chunks of a variant in dollars, including earlier runs; None if unknown."""
    version = variant.live.current()
    name = version.manifest.embed_model
    if name in (None, LOCAL):
        return 0.0
    texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in version.docstore.iterate())
    return PriceTable(variant.plan.config.prices).dollars(name, Tokens(input_tokens=sum(map(embedding_tokens, texts))))


def price(origin: ProjectState, plan: Plan, *, excluded: frozenset[str] = frozenset()) -> float | None:
    """Return the cost in dollars of building a variant now, or None if a price is unknown.

    Contexts and embeddings in the project's ledger cost nothing.

    Args:
        origin: The project.
        plan: The settings of the variant.
        excluded: Ids of documents to exclude.
    """
    config = plan.config
    model = plan.embed_model or (origin.embed_model if config.builds_semantic else None)
    name = None if model is None else embedding_identity(model)
    if config.context != "llm" and name in (None, LOCAL):
        return 0.0
    with contextlib.closing(Ledger(origin.directory / LEDGER_FILE, read_only=True)) as ledger:
        stages = make_stages(config, ledger=ledger, llm=origin.llm, embed_model=None, model_id=origin.model_id)
        contextual = model if isinstance(model, ContextualEmbedding) else None
        embedding = EmbeddingCount(name, getattr(model, "dimensions", None), ledger, contextual)
        return estimate([], RunOptions(remove=excluded), config, stages, embedding, origin.live.current()).dollars


def total_price(prices: Sequence[float | None]) -> float | None:
    """Return the sum of prices, or None if any of them is unknown."""
    known = [dollars for dollars in prices if dollars is not None]
    return sum(known) if len(known) == len(prices) else None


def _require_affordable(dollars: float | None, max_cost: float | None, documents: int) -> None:
    if max_cost is None:
        return
    if dollars is None:
        raise InputError(
            "The cost cannot be estimated: set the prices of the models in the setting `prices`",
            remedy=Remedy("or omit max_cost and use a small sample", "or omit --max-cost and use a small --sample"),
        )
    if dollars > max_cost:
        raise InputError(
            f"{pluralize(documents, 'document')} would cost about ${dollars:.4f}, more than the limit of"
            f" ${max_cost:.4f}: use a smaller sample or a cheaper LLM.",
            value=max_cost,
        )


# ---- Comparison of variants ------------------------------------------------------------------------------------------

KINDS: tuple[ContextKind, ...] = ("none", "structural", "llm")
"""The kinds of context, from the cheapest to the most expensive."""

CONTEXTUAL_EMBEDDING = "contextual embedding"
"""Name of the variant without contexts in which the chunks of a document are embedded together."""


@suggests_keywords
def compare_variants(
    project: HasState,
    questions: Questions | None = None,
    *,
    variants: Sequence[ContextKind] = KINDS,
    contextual_embedding: str | BaseEmbedding | None = None,
    sample: int | None = None,
    ks: Sequence[int] = KS,
    metric: str | None = None,
    max_cost: float | None = None,
    number: int = QUESTIONS,
    seed: int = 0,
    progress: ShowVariants | None = None,
) -> Comparison:
    """Index a project's documents with several kinds of context, and evaluate each on the same questions.

    The variants are built next to the project and removed afterwards; their contexts and embeddings are kept in the
    project's ledger. Evidence is easier to find in a sample than among all documents, so compare the differences rather
    than the absolute values.

    Args:
        project: The project.
        questions: Questions, or the path of a question file; None lets the project's LLM write some.
        variants: Kinds of context, at least two; the first is the baseline. With `contextual_embedding`, one is enough.
        contextual_embedding: Contextual embedding model, or its name, for an additional variant that has no contexts
            and uses the vectors of this model. This variant comes before "llm", which is more expensive. The costs of
            all variants then include their embeddings.
        sample: Maximum number of documents to index, preferring those with evidence; None for all.
        ks: Numbers of results to evaluate.
        metric: Metric of the recommendation; None for nDCG@10.
        max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if the cost is higher or
            unknown. Questions written by the LLM are not included.
        number: Number of questions to write if none are given.
        seed: Seed of the random numbers.
        progress: Called as the work proceeds, first with the cost before anything is built; it may raise to stop.

    Raises:
        InputError: A variant is unknown or there are fewer than two, no question has its evidence in the sample, or
            the cost is higher than `max_cost`.
        ModelError: A variant or the questions need a model that cannot be loaded or reached.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    origin = project.state
    kinds = _check_variants(variants, at_least=2 if contextual_embedding is None else 1)
    contextual = None if contextual_embedding is None else _contextual_model(origin, contextual_embedding)
    report = progress or (lambda _: None)
    if questions is None:
        report(VariantProgress(stage="questions", total=number))
        version, llm = origin.live.current(), origin.context_llm()
        loaded: Sequence[Question] = generate_questions(version, llm, number=number, seed=seed)
    else:
        loaded = read(questions)
    subset = draw_sample(origin.live.current(), loaded, sample, seed=seed)
    plans = {str(kind): Plan(origin.config.changed(context=kind)) for kind in kinds}
    if contextual is not None:
        last = {"llm": plans.pop("llm")} if kinds[-1] == "llm" and len(kinds) > 1 else {}
        changed = origin.config.changed(context="none", embed_model=model_name(contextual))
        plans |= {CONTEXTUAL_EMBEDDING: Plan(changed, contextual), **last}
    with built_variants(origin, plans, subset, max_cost=max_cost, report=report) as built:
        costs = {name: variant.cost for name, variant in built.items()}
        if contextual is not None:
            costs = {name: total_price([cost, embedding_cost(built[name])]) for name, cost in costs.items()}
        return compare(
            built,
            subset.questions,
            ks=ks,
            metric=metric,
            costs=costs,
            notes=_notes(origin, loaded, subset, built, generated=questions is None),
            seed=seed,
            progress=lambda done, total: report(VariantProgress(stage="ask", done=done, total=total)),
        )


def _check_variants(variants: Sequence[ContextKind], *, at_least: int) -> Sequence[ContextKind]:
    unknown = [kind for kind in variants if kind not in KINDS]
    if unknown or len(set(variants)) < at_least or len(set(variants)) < len(variants):
        number = "one to three" if at_least == 1 else "two or three"
        raise InputError(
            f"The variants are {', '.join(map(repr, variants)) or 'none'}: use {number} of none, structural, llm.",
            value=variants,
        )
    return variants


def _contextual_model(origin: ProjectState, wanted: str | BaseEmbedding) -> ContextualEmbedding:
    """Return the model for the variant with contextual embeddings.

    Raises:
        ConfigurationError: The project has no semantic index.
        InputError: The model is not a contextual embedding model, or the project already uses it.
        ModelError: The model cannot be loaded.
    """
    if not origin.config.builds_semantic:
        raise ConfigurationError(
            "The project has no semantic index, so embedding models make no difference",
            setting="indexes",
            remedy=Remedy(
                "set indexes='hybrid' and rebuild, or leave out the contextual embedding",
                "run `llama-index-contextual configure {project} indexes=hybrid` and `rebuild`, or omit"
                " --contextual-embedding",
            ),
        )
    model = load_embed_model(wanted) if isinstance(wanted, str) else wanted
    name = model_name(model)
    if not isinstance(model, ContextualEmbedding):
        raise InputError(
            f"{name!r} is not a contextual embedding model: use one such as 'voyage:voyage-context-3'",
            value=wanted,
            remedy=Remedy("or an object of a subclass of ContextualEmbedding", ""),
        )
    if name == origin.live.current().manifest.embed_model:
        raise InputError(
            f"{name!r} is the project's own embedding model, which the variant 'none' measures: leave it out, or"
            f" compare in a project with another embedding model.",
            value=wanted,
        )
    return model


def _notes(
    origin: ProjectState, questions: Sequence[Question], sample: Sample, built: dict[str, Variant], *, generated: bool
) -> list[str]:
    total = len(origin.live.current().records)
    chunks = next(iter(built.values())).chunks
    size = f"{pluralize(chunks, 'chunk')}, {pluralize(len(sample.questions), 'question')}"
    notes = [f"{sample.documents} of {pluralize(total, 'document')}, {size}."]
    if sample.excluded:
        outside = pluralize(len(questions) - len(sample.questions), "question")
        notes[0] += f" Left out because of evidence outside the sample: {outside}."
        notes.append("Fewer documents compete in a sample: compare the differences, not the levels.")
        for name, variant in built.items():
            if (dollars := price(origin, variant.plan)) != 0:
                more = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
                notes.append(f"{name!r} for all {total} documents would cost {more} more.")
    notes += absent_files(origin.live.current().records, sample.questions)
    if generated:
        notes.append(f"The questions were written by {origin.context_llm_name}, each from one chunk.")
    notes += [
        f"The LLM failed for {pluralize(variant.failures, 'chunk')} of {name!r}: their context is structural."
        for name, variant in built.items()
        if variant.failures
    ]
    return notes
