"""Compare retrievers and settings on the same questions, with confidence intervals, p-values and a recommendation.

`compare` accepts any retrievers. `compare_variants` indexes a project's documents with several kinds of context in a
temporary directory and compares the results. `sweep_variants` and `sweep_answers` try all combinations of chunk size,
kind of context, reranker, mode and number of results: `sweep_variants` evaluates the retrieved passages, and
`sweep_answers` the answers of an LLM.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal, Unpack

import numpy as np
from llama_index.core.llms import LLM
from numpy.typing import ArrayLike, NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.keywords import accepts, suggests_keywords
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.answering.batch import QA, Predictions, answer_many
from llama_index_contextual.answering.build import EngineBuilder, EngineOptions
from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.answering.response import AnswerAccount
from llama_index_contextual.config import LOCAL, SPOTLIGHT, ContextKind, Mode, ProjectConfig, default
from llama_index_contextual.errors import InputError, Remedy
from llama_index_contextual.evaluation.questions import Evidence, Question, evidence_notes
from llama_index_contextual.evaluation.run import (
    KS,
    NO_RERANK,
    Evaluation,
    Questions,
    Retrievable,
    as_questions,
    evaluate,
    retrieved_evidence,
)
from llama_index_contextual.evaluation.sample import draw_sample
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.project_file import project_ledger, scratch, write_lock
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.pipeline import make_pipeline
from llama_index_contextual.ingestion.report import IngestProgress, IngestReport
from llama_index_contextual.ingestion.run import IngestRun
from llama_index_contextual.ingestion.state import HasState, ProjectState
from llama_index_contextual.models import embedding_identity, model_name
from llama_index_contextual.money.price import Prices
from llama_index_contextual.money.tokens import Tokens
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.live import LiveIndexes, LiveVersions
from llama_index_contextual.search.rerank import LLM_RERANK, PASSAGE_TOKENS

# ---- Significance ----------------------------------------------------------------------------------------------------

RESAMPLES = 10_000
ALPHA = 0.05
"""Significance level: a difference with a smaller p-value is significant."""
POWER = 0.8
"""Statistical power, the probability that a difference of the detectable size is significant."""
FEWEST = 6
"""Minimum number of questions for a significant difference; with 5 questions, the p-value is at least 2 / 2**5."""
RELEVANT = 0.05
"""Mean difference that a question set should be able to detect; otherwise, the recommendation includes a warning."""

_EXACT_UP_TO = 12
_QUANTILES = NormalDist().inv_cdf(1 - ALPHA / 2) + NormalDist().inv_cdf(POWER)


def bootstrap_interval(values: ArrayLike, *, seed: int = 0) -> tuple[float, float]:
    """Return the ends of the 95 % bootstrap confidence interval (percentile method) for the mean.

    For a paired comparison, `values` contains one difference per question, shape (questions,).

    Source: Efron, Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.

    Example:
        >>> bootstrap_interval([1.0, 1.0, 1.0])
        (1.0, 1.0)
    """
    row = np.asarray(values, dtype=np.float64)
    samples = np.random.default_rng(seed).integers(0, len(row), (RESAMPLES, len(row)))
    low, high = np.quantile(row[samples].mean(axis=1), [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def permutation_p_value(differences: ArrayLike) -> float:
    """Return the two-sided p-value of a paired randomisation test.

    Under the null hypothesis the sign of each difference is random. With up to 12 nonzero differences, all assignments
    of signs are tested; with more differences, random assignments and the observed assignment are tested, so that p is
    never 0.

    Args:
        differences: One difference per question, shape (questions,).

    Source: Smucker, Allan, Carterette, "A Comparison of Statistical Significance Tests for Information Retrieval
    Evaluation", CIKM 2007.

    Example:
        >>> permutation_p_value([1.0, 1.0, 1.0, 1.0])  # 2 of the 16 assignments of signs
        0.125
    """
    row = np.asarray(differences, dtype=np.float64)
    row = row[row != 0]
    # Allow for rounding, so that sums that are mathematically equal count as equal.
    statistic = abs(row.sum()) - 1e-9 * np.abs(row).sum()
    if len(row) <= _EXACT_UP_TO:
        signs = 1 - 2 * ((np.arange(2 ** len(row))[:, None] >> np.arange(len(row))) & 1)
        return float((np.abs(signs @ row) >= statistic).mean())
    signs = 1 - 2 * np.random.default_rng(0).integers(0, 2, (RESAMPLES, len(row)))
    return float(((np.abs(signs @ row) >= statistic).sum() + 1) / (RESAMPLES + 1))


def detectable_difference(differences: ArrayLike) -> float:
    """Return the smallest mean difference that is significant at the 5 % level with a probability of 80 %.

    This is the minimum detectable effect of a paired two-sided test: (1.96 + 0.84) s / sqrt(n), with the standard
    deviation s of the n observed differences.

    Source: Sakai, "Topic Set Size Design", Information Retrieval Journal 19, 2016.

    Example:
        >>> differences = [0.3, -0.1, 0.2, 0.0, 0.1, -0.2, 0.4, 0.1]  # s = 0.2
        >>> round(detectable_difference(differences), 4)  # 2.8016 * 0.2 / sqrt(8)
        0.1981
    """
    row = np.asarray(differences, dtype=np.float64)
    return float(_QUANTILES * row.std(ddof=1) / math.sqrt(len(row)))


# ---- Comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Paired difference between two retrievers.

    Attributes:
        metric: Name of the metric.
        baseline: Name of the baseline.
        variant: Name of the other retriever.
        mean: Mean difference over the questions; positive if the variant is better.
        low: Lower end of the 95 % confidence interval (paired bootstrap).
        high: Upper end of the interval.
        p_value: Two-sided p-value of a paired permutation test.
    """

    metric: str
    baseline: str
    variant: str
    mean: float
    low: float
    high: float
    p_value: float

    @property
    def significant(self) -> bool:
        """Whether the p-value is below 5 %."""
        return self.p_value < ALPHA

    def __str__(self) -> str:
        """Return the difference as text, in percentage points."""
        mean, low, high = (100 * value for value in (self.mean, self.low, self.high))
        return f"{mean:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, p = {self.p_value:.2g}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Evaluations of several retrievers on the same questions; the first retriever is the baseline.

    Attributes:
        evaluations: The evaluations in the order given.
        metric: Metric for the recommendation.
        costs: Cost of each retriever for these documents in dollars, by name, if known.
        notes: Notes on the figures, one sentence each.
    """

    evaluations: Sequence[Evaluation]
    metric: str
    costs: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """Names of the retrievers."""
        return [evaluation.name for evaluation in self.evaluations]

    def __getitem__(self, name: str) -> Evaluation:
        """Return the evaluation with this name."""
        return self.evaluations[self.names.index(name)]

    def difference(self, baseline: str, variant: str, metric: str | None = None) -> Difference:
        """Return the difference between `variant` and `baseline`, which is positive if `variant` is better."""
        metric = metric or self.metric
        values = self._values(baseline, variant, metric)
        low, high = bootstrap_interval(values)
        return Difference(
            metric=metric,
            baseline=baseline,
            variant=variant,
            mean=float(values.mean()),
            low=low,
            high=high,
            p_value=permutation_p_value(values),
        )

    def _values(self, baseline: str, variant: str, metric: str) -> NDArray[np.float64]:
        return self[variant].values(metric) - self[baseline].values(metric)

    def differences(self, metric: str | None = None) -> list[Difference]:
        """Return the differences between all pairs of retrievers."""
        return [self.difference(name, baseline, metric) for name, baseline in combinations(self.names, 2)]

    @property
    def recommended(self) -> str:
        """Name of the recommended retriever.

        This is the best retriever in the cheapest group, unless more expensive retrievers are significantly better;
        then it is the best of these in their group.
        """
        cheapest, *dearer = self._by_cost()
        best = self._best(cheapest)
        for names in dearer:
            gains = [self.difference(best, name) for name in names]
            best = self._best([gain.variant for gain in gains if gain.significant and gain.mean > 0] or [best])
        return best

    def _best(self, names: Sequence[str]) -> str:
        """Return the name with the highest mean; if several have the same mean, the one with the highest nDCG."""
        return max(
            names, key=lambda name: [round(self[name].mean(m), 9) for m in (self.metric, self[name].main_metric)]
        )

    def _by_cost(self) -> list[list[str]]:
        """Return the names in groups of equal cost, cheapest first.

        Each retriever of unknown cost forms a separate group at the end, in the order given. If the cost of the first
        retriever is unknown, every retriever forms a separate group.
        """
        if self.costs.get(self.names[0]) is None:
            return [[name] for name in self.names]
        groups: dict[float, list[str]] = {}
        for name in self.names:
            if (cost := self.costs.get(name)) is not None:
                groups.setdefault(cost, []).append(name)
        by_cost = [groups[cost] for cost in sorted(groups)]
        return [*by_cost, *([name] for name in self.names if self.costs.get(name) is None)]

    @property
    def recommendation(self) -> str:
        """The recommendation with its reasons, in a few sentences."""
        best, first, number = self.recommended, self.names[0], len(self.evaluations[0].results)
        on = f"in {self.metric} on {pluralize(number, 'question')}"
        other_names = [name for name in self.names if name != best]
        gain = self.difference(first, best)
        if best == first or gain.mean <= 0:
            less = "" if best == first else "it costs less, and "
            advice = f"Use {best!r}: {less}{self._not_better(best, other_names)} {on}."
        else:
            other_names.remove(first)
            addition = f", and {self._not_better(best, other_names)}" if other_names else ""
            reason = f"it is better than {first!r} {on} ({gain})"
            if not gain.significant:
                reason = f"the difference {on} is not significant ({gain})"
            names = repr(best) if gain.significant else f"{first!r} or {best!r}"
            advice = f"Use {names}: {reason}{addition}."
        return advice + self.sample_warning(best)

    def _not_better(self, best: str, other_names: Sequence[str]) -> str:
        parts = [f"{name!r} ({self.difference(best, name)})" for name in other_names]
        verb = "is" if len(parts) == 1 else "are"
        return f"{' and '.join(parts)} {verb} not significantly better"

    def sample_warning(self, best: str) -> str:
        """Return a warning if there are too few questions for a reliable recommendation, otherwise an empty string."""
        value_rows = [
            self._values(best, name, self.metric)
            for name in self.names
            if name != best and not self.difference(best, name).significant
        ]
        number = len(self.evaluations[0].results)
        if value_rows and number < FEWEST:
            return f" With fewer than {FEWEST} questions no difference can be significant: use more."
        detectable = max(map(detectable_difference, value_rows), default=0.0)
        if detectable <= RELEVANT:
            return ""
        return (
            f" The questions are too few to detect differences below {100 * detectable:.1f} points (5 % level, 80 %"
            f" power); about {math.ceil(number * (detectable / RELEVANT) ** 2):,} questions would show"
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
    rerank: str | None = None,
    costs: Mapping[str, float | None] | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Evaluate several retrievers on the same questions.

    Args:
        retrievers: LlamaIndex retrievers or projects, by name, starting with the baseline. Unless `costs` is given,
            they should be in order of increasing cost.
        questions: Questions, or the path of a question file.
        ks: Numbers of results for which the metrics are computed.
        metric: Metric for the recommendation; None uses nDCG@10, or nDCG at the largest of `ks` if this is smaller.
        rerank: Value of the `rerank` setting to use for all projects, as in `evaluate`.
        costs: Cost of each retriever for these documents in dollars, by name, if known.
        notes: Notes on the figures, one sentence each.

    Raises:
        InputError: There are fewer than two retrievers or no questions, or the metric is unknown.

    Example:
        >>> print(compare({"plain": plain, "hybrid": hybrid}, "questions.jsonl").recommendation)  # doctest: +SKIP
    """
    if len(retrievers) < 2:
        raise InputError("A comparison needs at least two retrievers.", value=list(retrievers))
    question_list = as_questions(questions)
    evaluations = [
        evaluate(retriever, question_list, name=name, ks=ks, rerank=rerank) for name, retriever in retrievers.items()
    ]
    metric = metric or evaluations[0].main_metric
    evaluations[0].values(metric)  # raises an error if the metric is unknown
    notes = tuple(dict.fromkeys([*notes, *(note for evaluation in evaluations for note in evaluation.notes)]))
    return Comparison(evaluations=tuple(evaluations), metric=metric, costs=dict(costs or {}), notes=notes)


# ---- Variants of a project -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class VariantProgress:
    """Progress of a comparison or a sweep.

    Attributes:
        stage: The current stage; during "questions", the LLM writes the questions.
        name: Name of the variant, or "" for all variants.
        dollars: Estimated cost in dollars, during the "price" stage; None if unknown.
    """

    stage: Literal["price", "build", "questions", "ask"]
    name: str = ""
    dollars: float | None = None


ShowVariants = Callable[[VariantProgress], None]

_TOKENS_OF_ID = 3
"""Tokens of an id with its comma in an LLM's list of passages."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A project's documents, indexed with different settings.

    Attributes:
        config: The settings.
        live: The indexes.
        cost: Cost of the contexts in dollars, including contexts from earlier runs; None if unknown.
        price: Estimated price in dollars of what was not in the ledger before; None if unknown.
        report: Report on the contexts and embeddings that were requested; None if nothing was built.
    """

    config: ProjectConfig
    live: LiveIndexes
    cost: float | None
    price: float | None = None
    report: IngestReport | None = None

    @property
    def failures(self) -> int:
        """Number of chunks that have only a structural context because the LLM failed."""
        return sum(len(record.fallback_chunks) for record in self.live.current().records)

    @property
    def unembedded(self) -> int:
        """Number of chunks for which the embedding model returned no usable vector."""
        return sum(len(record.unembedded_chunks) for record in self.live.current().records)

    def as_retriever(self, *, similarity_top_k: int, mode: Mode | None = None) -> ProjectRetriever:
        """Return a retriever that returns `similarity_top_k` results."""
        return ProjectRetriever(self.live, self.config, mode=mode, similarity_top_k=similarity_top_k)


@contextlib.contextmanager
def built_variants(
    origin: ProjectState,
    configs: Mapping[str, ProjectConfig],
    excluded: frozenset[str] = frozenset(),
    *,
    sample: frozenset[str] | None = None,
    max_cost: float | None,
    report: ShowVariants,
    other_prices: Sequence[float | None] = (),
) -> Iterator[dict[str, Variant]]:
    """Report the price of variants of a project, build them next to the project, yield them, and then remove them.

    Contexts and embeddings in the project's ledger are reused, and new contexts and embeddings are added to the ledger.
    Files left over from an interrupted run are removed.

    Args:
        origin: The project.
        configs: The settings by name.
        excluded: Ids of documents to exclude.
        sample: Ids of the documents in which the other variants differ from the first one; None for all.
        max_cost: Maximum cost in dollars; None for no limit.
        report: Called first with the price, then as the work proceeds.
        other_prices: Prices in dollars of the calls that follow, such as those of `rerank_price`.

    Raises:
        InputError: There is a limit, and the cost exceeds it or is unknown.
        ModelError: A model cannot be loaded or reached; the replies received so far are in the ledger.
        ProjectLockedError: Another process is writing to the project or comparing its variants.
    """
    options = {name: RunOptions(remove=excluded, only=sample if at else None) for at, name in enumerate(configs)}
    prices = {name: price(origin, config, options[name]) for name, config in configs.items()}
    dollars = total_price([*prices.values(), *other_prices])
    require_affordable(dollars, max_cost)
    report(VariantProgress(stage="price", dollars=dollars))
    with scratch(origin.directory) as directory, ExitStack() as stack:
        variants: dict[str, Variant] = {}
        for name, config in configs.items():
            previous = origin.live if sample is None or not variants else next(iter(variants.values())).live
            variant = _build(origin, name, config, directory / str(len(variants)), previous, options[name], report)
            variants[name] = replace(variant, price=prices[name])
            if variant.live is not previous:
                stack.callback(variant.live.current().close)
        yield variants


def _build(
    origin: ProjectState,
    name: str,
    config: ProjectConfig,
    directory: Path,
    live: LiveIndexes,
    options: RunOptions,
    report: ShowVariants,
) -> Variant:
    """Build a variant from other indexes in a new directory, or use these indexes if they have the same settings."""
    previous, result = live.current(), None
    with write_lock(origin.directory), project_ledger(origin.directory) as ledger:
        if options.remove or config.rebuild_fields(ProjectConfig(**previous.manifest.config)):
            files.make_directory(directory)
            model = origin.embed_model if config.builds_semantic else None
            pipeline = make_pipeline(config, ledger=ledger, llm=origin.llm, embed_model=model, model_id=origin.model_id)
            settings = config.changed(backend="files")  # a temporary variant is stored in files
            run = IngestRun([], replace(options, purpose="compare"), settings, previous)

            def on_progress(_: IngestProgress) -> None:
                report(VariantProgress(stage="build", name=name))

            if run.changes_nothing:
                result = run_sync(lambda: run.aupdate_derived(directory))
            else:
                result = run_sync(lambda: run.abuild(pipeline, directory, progress=on_progress))
            rerankers = origin.live.versions.rerankers
            live = LiveIndexes(
                LiveVersions(directory, origin.directory.name, lambda *_: origin.embed_model, rerankers=rerankers)
            )
        cost = _cost(live.current(), config, origin.context_llm_name, ledger)
        return Variant(config=config, live=live, cost=cost, report=result)


def _cost(version: OpenVersion, config: ProjectConfig, llm: str, ledger: Ledger) -> float | None:
    """Return the cost in dollars of the LLM contexts in a version, computed from the token counts in the ledger.

    Return None if the token counts or the price are unknown.
    """
    if config.context != "llm":
        return 0.0
    contexts = [
        keys.context_parts(node.metadata)[1]
        for node in version.docstore.iterate()
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm" and not node.metadata.get(keys.CONTEXT_GIVEN)
    ]
    usage = ledger.usage(contexts)
    if usage is None:
        return None
    input_tokens, cached_tokens, output_tokens = usage
    tokens = Tokens(input_tokens=input_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens)
    return Prices(config.prices).dollars(llm, tokens, sender=config.service_tier or "live")


def price(origin: ProjectState, config: ProjectConfig, options: RunOptions | None = None) -> float | None:
    """Return the cost in dollars of building a variant now, or None if a price is unknown.

    Contexts and embeddings in the project's ledger cost nothing.

    Args:
        origin: The project.
        config: The settings of the variant.
        options: The documents to exclude, or to process; None for all documents.
    """
    is_local = not config.builds_semantic or embedding_identity(origin.embed_model) == LOCAL
    if config.context != "llm" and is_local:
        return 0.0
    return variant_estimate(origin, config, options or RunOptions()).dollars


def variant_estimate(origin: ProjectState, config: ProjectConfig, options: RunOptions) -> CostEstimate:
    """Return the estimate for building a variant now; see `price`."""
    model = origin.embed_model if config.builds_semantic else None
    name = None if model is None else embedding_identity(model)
    with contextlib.closing(Ledger(origin.directory / LEDGER_FILE, read_only=True)) as ledger:
        pipeline = make_pipeline(config, ledger=ledger, llm=origin.llm, embed_model=None, model_id=origin.model_id)
        previous = origin.live.current()
        return estimate([], options, config, pipeline, previous, embed_model_name=name, embed_model=model)


def rerank_price(origin: ProjectState, rerank: str | None, questions: int, k: int) -> float | None:
    """Return the price in dollars of reranking the results of some questions, or None if it is unknown.

    Only an LLM costs money. The price assumes that each passage is as long as the LLM may read, and is read twice.

    Args:
        origin: The project.
        rerank: The `rerank` option.
        questions: Number of questions.
        k: Number of results.

    Raises:
        ModelError: The reranker cannot be loaded.
    """
    config = origin.config
    name = rerank or config.rerank
    if name in (None, NO_RERANK, SPOTLIGHT):
        return 0.0
    origin.live.versions.rerankers.of(name, config)  # raises an error if the model cannot be loaded
    if name != LLM_RERANK:
        return 0.0
    passages = 2 * questions * max(k, config.rerank_candidates)
    tokens = Tokens(input_tokens=passages * PASSAGE_TOKENS, output_tokens=passages * _TOKENS_OF_ID)
    return Prices(config.prices).dollars(model_name(origin.answering_llm(), origin.model_id), tokens)


def total_price(dollars: Sequence[float | None]) -> float | None:
    """Return the sum of some prices, or None if one of them is unknown."""
    prices = [price for price in dollars if price is not None]
    return sum(prices) if len(prices) == len(dollars) else None


def require_affordable(dollars: float | None, max_cost: float | None) -> None:
    """Check that a price does not exceed a limit; None means no limit.

    Raises:
        InputError: The price is higher than the limit, or unknown.
    """
    if max_cost is None:
        return
    if dollars is None:
        raise InputError(
            "The cost cannot be estimated: set the prices of the models in the `prices` setting",
            remedy=Remedy("or omit max_cost and use a small sample", "or omit --max-cost and use a small --sample"),
        )
    if dollars > max_cost:
        raise InputError(
            f"The evaluation would cost about ${dollars:.4f}, more than the limit of ${max_cost:.4f}: use a smaller"
            f" sample or a cheaper LLM.",
            value=max_cost,
        )


# ---- Comparison of variants ------------------------------------------------------------------------------------------

KINDS: tuple[ContextKind, ...] = ("none", "structural", "llm")
"""The kinds of context, from the cheapest to the most expensive."""


@suggests_keywords
def compare_variants(
    project: HasState,
    questions: Questions,
    *,
    variants: Sequence[ContextKind] = KINDS,
    sample: int | None = None,
    ks: Sequence[int] = KS,
    metric: str | None = None,
    rerank: str | None = None,
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
) -> Comparison:
    """Index a project's documents with several kinds of context and evaluate each variant on the same questions.

    The variants are built next to the project and removed afterwards; their contexts and embeddings are kept in the
    project's ledger. Evidence is easier to find in a sample than among all documents, so look at the differences rather
    than the absolute values.

    Args:
        project: The project.
        questions: Questions, or the path of a question file.
        variants: Kinds of context, at least two; the first is the baseline.
        sample: Maximum number of documents to index, starting with documents that contain evidence; None for all.
        ks: Numbers of results for which the metrics are computed.
        metric: Metric for the recommendation, as in `compare`.
        rerank: Value of the `rerank` setting to use for all variants, as in `evaluate`.
        max_cost: Maximum cost of contexts, embeddings and reranking in dollars; nothing is built if the cost is higher
            or unknown.
        progress: Called first with the cost, before anything is built, and then as the work proceeds. It may raise an
            exception to stop.

    Raises:
        InputError: A variant is unknown, there are fewer than two variants, no question has its evidence in the
            sample, or the cost is higher than `max_cost`.
        ModelError: A variant needs a model that cannot be loaded or reached.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    if not set(variants) <= set(KINDS) or not 2 <= len(variants) == len(set(variants)):
        raise InputError(
            f"The variants are {', '.join(map(repr, variants)) or 'none'}: use two or three of none, structural, llm.",
            value=variants,
        )
    origin, report = project.state, progress or (lambda _: None)
    question_list = as_questions(questions)
    sample_questions, excluded = draw_sample(origin.live.current(), question_list, sample)
    configs = {str(kind): origin.config.changed(context=kind) for kind in variants}
    reranking = [rerank_price(origin, rerank, len(sample_questions), max(ks, default=0))] * len(configs)
    with built_variants(origin, configs, excluded, max_cost=max_cost, report=report, other_prices=reranking) as by_name:
        report(VariantProgress(stage="ask"))
        comparison = compare(
            by_name,
            sample_questions,
            ks=ks,
            metric=metric,
            rerank=rerank,
            costs={name: variant.cost for name, variant in by_name.items()},
            notes=[
                *sample_notes(origin, sample_questions, excluded, len(question_list)),
                *variant_notes(origin, by_name, excluded),
            ],
        )
    return with_evidence_notes(comparison, origin)


def with_evidence_notes(comparison: Comparison, origin: ProjectState) -> Comparison:
    """Return a comparison of variants with notes on evidence that the project does not contain.

    Raises:
        InputError: The project contains none of the evidence.
    """
    results = [result for evaluation in comparison.evaluations for result in evaluation.results]
    questions = [result.question for result in comparison.evaluations[0].results]
    notes = evidence_notes(origin.live.current(), questions, retrieved_evidence(results))
    return replace(comparison, notes=(*comparison.notes, *notes))


def sample_notes(
    origin: ProjectState, questions: Sequence[Question], excluded: frozenset[str], all_questions: int
) -> Iterator[str]:
    """Yield notes on the documents and questions that were used, one sentence each."""
    records = origin.live.current().records
    number = pluralize(len(questions), "question")
    yield f"{len(records) - len(excluded)} of {pluralize(len(records), 'document')}, {number}."
    if excluded:
        outside = pluralize(all_questions - len(questions), "question")
        yield f"Left out because of evidence outside the sample: {outside}."
        yield "Fewer documents compete in a sample: compare the differences, not the levels."


def variant_notes(origin: ProjectState, variants: Mapping[str, Variant], excluded: frozenset[str]) -> Iterator[str]:
    """Yield notes on the cost and the failed chunks of variants, one sentence each."""
    for name, variant in variants.items():
        if excluded and (dollars := price(origin, variant.config)) != 0:
            more = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
            yield f"{name!r} for all documents would cost {more} more."
        if variant.failures:
            failed = pluralize(variant.failures, "chunk")
            yield f"The LLM failed for {failed} of {name!r}: their context is structural."
        if variant.unembedded:
            yield f"The embedding model failed for {pluralize(variant.unembedded, 'chunk')} of {name!r}."


# ---- Sweeps over settings --------------------------------------------------------------------------------------------

MODES: tuple[Mode, ...] = ("semantic", "lexical", "hybrid")
OVERLAP = 0.1
"""Chunk overlap as a fraction of the chunk size."""


@dataclass(frozen=True, kw_only=True)
class SweepRow:
    """One combination of settings and the figures measured with it.

    Attributes:
        context: Kind of context.
        chunk_size: Maximum number of tokens in a chunk.
        rerank: Value of the `rerank` setting.
        mode: Indexes to search.
        top_k: Number of search results.
        figures: Figures by name, as JSON values. From `sweep_variants`: the means of recall, precision and nDCG; the
            mean number of tokens in the passages retrieved per question; the median response time in milliseconds; the
            number of chunks; and the cost of the contexts in dollars. From `sweep_answers`: see `Predictions.summary`.
        predictions: The answers from `sweep_answers`, or None.
    """

    context: ContextKind
    chunk_size: int
    rerank: str | None
    mode: Mode
    top_k: int
    figures: Mapping[str, Any]
    predictions: Predictions | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The settings, except `top_k`, as text."""
        return f"{self.context}, {self.chunk_size} tokens, {self.mode}, {self.rerank or 'no'} reranking"

    def to_dict(self) -> dict[str, Any]:
        """Return the settings and their figures as JSON values."""
        setting = {name: getattr(self, name) for name in ("context", "chunk_size", "mode", "top_k")}
        return {**setting, "rerank": self.rerank or NO_RERANK, **self.figures}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Result of a sweep.

    Attributes:
        rows: One row per combination of settings, ordered by context, chunk size, reranker, mode and number of results.
        questions: Number of questions.
        measure: Name of the figure, between 0 and 1, by which the rows are ranked.
        notes: Notes on the figures, one sentence each.
    """

    rows: Sequence[SweepRow]
    questions: int
    measure: str
    notes: Sequence[str] = ()

    def best(self) -> SweepRow:
        """Return the row with the highest measure; if several rows share it, return the row with the fewest results."""
        return max(self.rows, key=lambda row: (row.figures[self.measure] or 0.0, -row.top_k))

    def table(self) -> list[dict[str, Any]]:
        """Return the rows as JSON values."""
        return [row.to_dict() for row in self.rows]

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
    reranks: Sequence[str] = (),
    modes: Sequence[Mode] = MODES,
    top_ks: Sequence[int] = (5, 10, 20),
    sample: int | None = None,
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
) -> Sweep:
    """Evaluate every combination of settings, after building a variant for each chunk size and kind of context.

    Args:
        project: The project.
        questions: Questions, or the path of a question file; with several chunk sizes, chunk ids cannot be used as
            evidence.
        chunk_sizes: Chunk sizes in tokens; if empty, the project's setting is used.
        contexts: Kinds of context; if empty, the project's setting is used.
        reranks: Values of the `rerank` setting, or "none" for no reranking; if empty, the project's setting is used.
        modes: Modes of retrieval.
        top_ks: Numbers of results.
        sample: Maximum number of documents to index; None for all.
        max_cost: Maximum cost of contexts, embeddings and reranking in dollars; nothing is built if the cost is higher
            or unknown.
        progress: Called first with the cost, before anything is built, and then as the work proceeds. It may raise an
            exception to stop.

    Raises:
        InputError: There are no settings, the evidence cannot be used with several chunk sizes, or the cost is higher
            than `max_cost`.
        ConfigurationError: A chunk size, kind of context or mode is invalid.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    origin, question_list = project.state, as_questions(questions)
    _require_settings(modes and top_ks, top_ks)
    _require_comparable(question_list, chunk_sizes, origin.config)
    sample_questions, excluded = draw_sample(origin.live.current(), question_list, sample)
    configs = _configs(origin.config, contexts, chunk_sizes)
    report = progress or (lambda _: None)
    rows: list[SweepRow] = []
    evidence: set[Evidence] = set()
    rerankers = reranks or [origin.config.rerank or NO_RERANK]
    once = [rerank_price(origin, rerank, len(sample_questions), max(top_ks)) for rerank in rerankers]
    reranking = once * len(configs) * len(modes)
    with built_variants(
        origin, configs, excluded, max_cost=max_cost, report=report, other_prices=reranking
    ) as variants:
        for variant, rerank, mode in product(variants.values(), rerankers, modes):
            retriever = variant.as_retriever(similarity_top_k=max(top_ks), mode=mode)
            evaluation = evaluate(retriever, sample_questions, ks=top_ks, rerank=rerank)
            rows += [_row(variant, rerank, mode, k, _figures(evaluation, variant, k)) for k in evaluation.ks]
            evidence |= retrieved_evidence(evaluation.results)
    notes = [
        *sample_notes(origin, sample_questions, excluded, len(question_list)),
        *evidence_notes(origin.live.current(), sample_questions, evidence),
    ]
    return Sweep(rows=tuple(rows), questions=len(sample_questions), measure="recall", notes=tuple(notes))


def _require_settings(values: object, top_ks: Sequence[int]) -> None:
    if not values or min(top_ks) < 1:
        raise InputError(
            "There is nothing to evaluate: pass at least one question, mode and positive number of results."
        )


def _require_comparable(questions: Sequence[Question], sizes: Sequence[int], config: ProjectConfig) -> None:
    by_chunk = any(item.chunk_id is not None for question in questions for item in question.evidence)
    if by_chunk and set(sizes) - {config.chunk_size}:
        raise InputError(
            "The evidence names chunks, and chunks of another size have other ids: use spans, pages or texts instead."
        )


def _configs(config: ProjectConfig, contexts: Sequence[ContextKind], sizes: Sequence[int]) -> dict[str, ProjectConfig]:
    """Return the settings for each combination of context kind and chunk size, by name.

    If the chunk size differs from the project's setting, the overlap is a fixed fraction of the size.
    """
    configs = {}
    for kind, size in product(contexts or [config.context], sizes or [config.chunk_size]):
        overlap = config.chunk_overlap if size == config.chunk_size else int(OVERLAP * size)
        configs[f"{kind}, {size} tokens"] = config.changed(context=kind, chunk_size=size, chunk_overlap=overlap)
    return configs


def _row(
    variant: Variant, rerank: str, mode: Mode, top_k: int, figures: Mapping[str, Any], **answers: Predictions
) -> SweepRow:
    return SweepRow(
        context=variant.config.context,
        chunk_size=variant.config.chunk_size,
        rerank=None if rerank == NO_RERANK else rerank,
        mode=mode,
        top_k=top_k,
        figures=figures,
        **answers,
    )


def _figures(evaluation: Evaluation, variant: Variant, k: int) -> dict[str, float | None]:
    passages = [chunk for result in evaluation.results for chunk in result.results[:k]]
    tokens = sum(chunk.node.metadata.get(keys.TOKEN_COUNT) or count_tokens(chunk.text) for chunk in passages)
    return {
        "recall": evaluation.mean(f"recall@{k}"),
        "precision": evaluation.mean(f"precision@{k}"),
        "ndcg": evaluation.mean(f"nDCG@{k}"),
        "tokens": tokens / len(evaluation.results),
        "p50_ms": 1000 * evaluation.response_time(50),
        "chunks": variant.live.current().manifest.chunks,
        "cost": variant.cost,
    }


@accepts(EngineOptions)
def sweep_answers(
    project: HasState,
    questions: Sequence[QA],
    *,
    llm: LLM | None = None,
    chunk_sizes: Sequence[int] = (),
    contexts: Sequence[ContextKind] = (),
    reranks: Sequence[str] = (),
    modes: Sequence[Mode] = (),
    top_ks: Sequence[int] = (3, 5, 10),
    concurrency: int = default("llm_concurrency"),
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
    **options: Unpack[EngineOptions],
) -> Sweep:
    """Answer the questions with every combination of settings, using temporary variants.

    Args:
        project: The project.
        questions: Questions with their correct answers.
        llm: LLM that writes the answers; None uses the project's LLM.
        chunk_sizes: Chunk sizes in tokens; if empty, the project's setting is used.
        contexts: Kinds of context; if empty, the project's setting is used.
        reranks: Values of the `rerank` setting, or "none" for no reranking; if empty, the project's setting is used.
        modes: Modes of retrieval; if empty, the project's setting is used.
        top_ks: Numbers of results.
        concurrency: Maximum number of questions to answer concurrently.
        max_cost: Maximum cost of contexts, embeddings and reranking in dollars; nothing is built if the cost is higher
            or unknown. The cost of the answers is not included.
        progress: Called first with the cost, before anything is built, and then as the work proceeds. It may raise an
            exception to stop.
        **options

    Raises:
        InputError: There are no settings or questions, or the cost is higher than `max_cost`.
        ConfigurationError: A chunk size, kind of context or mode is invalid.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    origin, report = project.state, progress or (lambda _: None)
    _require_settings(questions and top_ks, top_ks)
    answer_llm, account = (
        llm or origin.answering_llm(),
        AnswerAccount.from_project(origin.directory, origin.config.prices),
    )
    cache = AnswerCache.from_project(origin.directory)
    configs = _configs(origin.config, contexts, chunk_sizes)
    rerankers, modes = reranks or [origin.config.rerank or NO_RERANK], modes or [origin.config.mode]
    top_ks = sorted(set(top_ks))
    once = [rerank_price(origin, rerank, len(questions), k) for rerank, k in product(rerankers, top_ks)]
    reranking = once * len(configs) * len(modes)
    rows: list[SweepRow] = []
    with built_variants(origin, configs, max_cost=max_cost, report=report, other_prices=reranking) as variants:
        for variant, rerank, mode, k in product(variants.values(), rerankers, modes, top_ks):
            setting = None if rerank == NO_RERANK else rerank
            retriever = variant.as_retriever(similarity_top_k=k, mode=mode).changed(rerank=setting)
            builder = EngineBuilder(retriever, lambda: origin.embed_model, answer_llm, account, cache)
            predictions = answer_many(builder.query_engine(options), questions, concurrency=concurrency)
            figures = {name: value for name, value in predictions.summary().items() if name != "usage"}
            figures |= {name: predictions.settings.get(name) for name in ("model", "style")}
            rows.append(_row(variant, rerank, mode, k, figures, predictions=predictions))
            report(VariantProgress(stage="ask", name=rows[-1].name))
    return Sweep(rows=tuple(rows), questions=len(questions), measure="f1")
