"""Comparing retrievers on the same questions, with intervals, p-values and a recommendation.

`compare` takes any retrievers. `compare_variants` builds a project's documents with several kinds of context in a
temporary `Workspace` and compares those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray

from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ContextKind, ProjectConfig
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import ConfigurationError, InputError, Remedy
from llama_index_contextual.evaluation.generate import QUESTIONS, generate_questions
from llama_index_contextual.evaluation.metrics import (
    ALPHA,
    FEWEST,
    bootstrap_interval,
    detectable_difference,
    permutation_p_value,
    questions_needed,
)
from llama_index_contextual.evaluation.questions import Question, absent_files
from llama_index_contextual.evaluation.run import (
    KS,
    Evaluation,
    Questions,
    Retrievable,
    ShowProgress,
    ShowVariants,
    VariantProgress,
    build_progress,
    evaluate,
    read,
)
from llama_index_contextual.evaluation.variants import (
    Sample,
    Variant,
    draw_sample,
    embedding_cost,
    price,
    require_affordable,
    total_price,
    workspace,
)
from llama_index_contextual.ingestion.state import HasState, ProjectState
from llama_index_contextual.models import load_embed_model, model_name

RELEVANT = 0.05
"""Mean difference that a question set should be able to show; if it cannot, the recommendation says so."""


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
        detectable: The smallest mean difference that so many questions would probably show (see
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
        return self.p_value < ALPHA

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
        notes: Notes on the figures, in sentences.
        seed: Seed of the random numbers.
    """

    evaluations: Sequence[Evaluation]
    metric: str
    costs: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """The names of the retrievers."""
        return [evaluation.name for evaluation in self.evaluations]

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluation of that name."""
        return self.evaluations[self.names.index(name)]

    def difference(self, baseline: str, variant: str, metric: str | None = None) -> Difference:
        """Return how much better `variant` is than `baseline`."""
        metric = metric or self.metric
        values = self._values(baseline, variant, metric)
        interval = bootstrap_interval(values, seed=self.seed)
        return Difference(
            metric=metric,
            baseline=baseline,
            variant=variant,
            mean=interval.mean,
            low=interval.low,
            high=interval.high,
            p_value=permutation_p_value(values, seed=self.seed),
            detectable=detectable_difference(values),
        )

    def _values(self, baseline: str, variant: str, metric: str | None = None) -> NDArray[np.float64]:
        metric = metric or self.metric
        return self[variant].values(metric) - self[baseline].values(metric)

    def differences(self, metric: str | None = None) -> list[Difference]:
        """Return the differences of all pairs."""
        return [self.difference(one, other, metric) for one, other in combinations(self.names, 2)]

    def cost_per_point(self, variant: str, metric: str | None = None) -> float | None:
        """Return the dollars per percentage point gained over the baseline; None if unknown or without a gain."""
        cost, baseline = self.costs.get(variant), self.costs.get(self.names[0])
        points = 100 * self.difference(self.names[0], variant, metric).mean
        return None if cost is None or points <= 0 else (cost - (baseline or 0.0)) / points

    @property
    def recommended(self) -> str:
        """Name of the recommended retriever.

        This is the best one of those that cost least, unless a more expensive one is significantly better.
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
        """Return the names, the cheapest first; those of unknown cost last, in the order given."""
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
        """Yield a sentence if the questions are too few to tell the recommended retriever from another one."""
        number = len(self.evaluations[0].results)
        differences = [self.difference(chosen, name) for name in self.names if name != chosen]
        undecided = [difference for difference in differences if not difference.significant]
        if undecided and number < FEWEST:
            yield f"With fewer than {FEWEST} questions no difference can be significant: use more."
        widest = max(undecided, key=lambda difference: difference.detectable or 0.0, default=None)
        if widest is None or widest.detectable is None or widest.detectable <= RELEVANT:
            return
        needed = questions_needed(self._values(widest.baseline, widest.variant), RELEVANT)
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
        notes: Notes on the figures, in sentences.
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
    evaluations[0].values(metric)  # raises if there is no such metric
    return Comparison(
        evaluations=tuple(evaluations), metric=metric, costs=dict(costs or {}), notes=tuple(notes), seed=seed
    )


# ---- Comparison of variants ------------------------------------------------------------------------------------------

KINDS: tuple[ContextKind, ...] = ("none", "structural", "llm")
"""The kinds of context, from the cheapest to the most expensive."""

CONTEXTUAL_EMBEDDING = "contextual embedding"
"""Name of the variant without contexts whose embedding model embeds the chunks of a document together."""


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
    """Index the documents of a project with several kinds of context and evaluate all on the same questions.

    The variants are built next to the project and removed afterwards; their contexts and embeddings stay in the
    ledger of the project. Evidence is easier to find in a sample than among all documents: compare the differences,
    not the levels.

    Args:
        project: The project.
        questions: Questions, or the path of a question file; None has the project's LLM write some.
        variants: Kinds of context, at least two; the first is the baseline. With `contextual_embedding`, one is enough.
        contextual_embedding: Contextual embedding model, or its name, for one more variant: without contexts, with the
            vectors of this model. It comes before "llm", which is more expensive. The costs of all variants then
            include their embeddings.
        sample: Maximum number of documents to build, preferring those with evidence; None for all.
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
    plans: dict[str, tuple[ProjectConfig, BaseEmbedding | None]] = {
        kind: (origin.config.changed(context=kind), None) for kind in kinds
    }
    if contextual is not None:
        last = {"llm": plans.pop("llm")} if kinds[-1] == "llm" and len(kinds) > 1 else {}
        changed = origin.config.changed(context="none", embed_model=model_name(contextual))
        plans |= {CONTEXTUAL_EMBEDDING: (changed, contextual), **last}
    dollars = total_price(
        [price(origin, config, excluded=subset.excluded, embed_model=model) for config, model in plans.values()]
    )
    require_affordable(dollars, max_cost, subset.documents)
    report(VariantProgress(stage="price", dollars=dollars))
    with workspace(origin) as space:
        built: dict[str, Variant] = {}
        for name, (config, model) in plans.items():
            shown = build_progress(report, name)
            built[name] = space.build(config, excluded=subset.excluded, progress=shown, embed_model=model)
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
    """Return the model of the variant with a contextual embedding.

    Raises:
        ConfigurationError: The project has no semantic index.
        InputError: It is not a contextual embedding model, or it is the project's own.
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
        prices = {
            name: price(origin, variant.config, embed_model=variant.embed_model) for name, variant in built.items()
        }
        notes += [_whole(name, dollars, total) for name, dollars in prices.items() if dollars != 0]
    notes += absent_files(origin.live.current().records, sample.questions)
    if generated:
        notes.append(f"The questions were written by {origin.context_llm_name}, each from one chunk.")
    notes += [
        f"The LLM failed for {pluralize(variant.failures, 'chunk')} of {name!r}: their context is structural."
        for name, variant in built.items()
        if variant.failures
    ]
    return notes


def _whole(name: str, dollars: float | None, documents: int) -> str:
    more = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
    return f"{name!r} for all {documents} documents would cost {more} more."
