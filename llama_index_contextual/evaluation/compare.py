"""Two or more retrievers on the same questions: differences with intervals and p-values, and what to use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import LOCAL, ContextKind, Mode, ProjectConfig
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.contextualizer.estimate import EmbeddingCount
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.generate import QUESTIONS, generate_questions
from llama_index_contextual.evaluation.metrics import bootstrap_interval, permutation_p_value
from llama_index_contextual.evaluation.questions import Question
from llama_index_contextual.evaluation.run import (
    KS,
    Evaluation,
    Questions,
    Retrievable,
    ShowProgress,
    ShowVariants,
    VariantProgress,
    evaluate,
    read,
    told,
)
from llama_index_contextual.evaluation.sample import Sample, absent_files, draw
from llama_index_contextual.ingestion.estimate import estimate
from llama_index_contextual.ingestion.pipeline import make_stages
from llama_index_contextual.ingestion.plan import RunOptions
from llama_index_contextual.ingestion.report import ReportProgress
from llama_index_contextual.ingestion.run import arun
from llama_index_contextual.models import embedding_identity, load_llm, model_name
from llama_index_contextual.retrievers.live import LiveIndexes, ProjectRetriever
from llama_index_contextual.storage import files
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.project_file import project_ledger, write_lock
from llama_index_contextual.storage.scratch import scratch
from llama_index_contextual.storage.version import OpenVersion

ALPHA = 0.05
"""Differences with a smaller p-value are called significant."""

_MAIN_K = 10


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much better one retriever is than another, question by question.

    Attributes:
        metric: Name of the metric.
        baseline: Name of the retriever that is compared with.
        variant: Name of the other.
        mean: Mean difference, above 0 where the variant is better.
        low: Lower end of the 95 % interval (paired bootstrap).
        high: Upper end.
        p_value: Two-sided, of a paired permutation test.
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
        """Whether chance alone gives such a difference in fewer than 5 % of cases."""
        return self.p_value < ALPHA

    def __str__(self) -> str:
        """Return the difference in points of a per cent."""
        mean, low, high = (100 * value for value in (self.mean, self.low, self.high))
        return f"{mean:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, p = {self.p_value:.2g}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several retrievers on the same questions; the first one is what the others are compared with.

    Attributes:
        evaluations: In the order given, cheapest first.
        metric: What the recommendation goes by.
        costs: Dollars that a variant costs on these documents, by name, as far as known.
        notes: Sentences about what the figures stand for.
        seed: Of the random numbers.
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
        values = self[variant].values(metric) - self[baseline].values(metric)
        interval = bootstrap_interval(values, seed=self.seed)
        return Difference(
            metric=metric,
            baseline=baseline,
            variant=variant,
            mean=interval.mean,
            low=interval.low,
            high=interval.high,
            p_value=permutation_p_value(values, seed=self.seed),
        )

    def differences(self, metric: str | None = None) -> list[Difference]:
        """Return the differences of all pairs."""
        return [self.difference(one, other, metric) for one, other in combinations(self.names, 2)]

    def cost_per_point(self, variant: str, metric: str | None = None) -> float | None:
        """Return the dollars that one point of a per cent more than the baseline costs.

        None where the cost is not known or there is no gain.
        """
        cost, baseline = self.costs.get(variant), self.costs.get(self.names[0])
        points = 100 * self.difference(self.names[0], variant, metric).mean
        return None if cost is None or points <= 0 else (cost - (baseline or 0.0)) / points

    @property
    def recommended(self) -> str:
        """Name of the retriever to use: the first one that no later one beats significantly."""
        chosen = self.names[0]
        for name in self.names[1:]:
            found = self.difference(chosen, name)
            if found.significant and found.mean > 0:
                chosen = name
        return chosen

    @property
    def recommendation(self) -> str:
        """What to use and why, in one sentence."""
        chosen, first, number = self.recommended, self.names[0], len(self.evaluations[0].results)
        on = f"in {self.metric} on {pluralize(number, 'question')}"
        others = [name for name in self.names if name not in (chosen, first)]
        if chosen == first:
            return f"Use {chosen!r}: {self._not_better(chosen, others)} {on}."
        gain = f"it is better than {first!r} {on} ({self.difference(first, chosen)})"
        cost = self.cost_per_point(chosen)
        price = "" if cost is None else (f" at ${cost:.2f} per point" if cost else " at no cost")
        rest = f", and {self._not_better(chosen, others)}" if others else ""
        return f"Use {chosen!r}: {gain}{price}{rest}."

    def __repr__(self) -> str:
        return "\n".join([*map(repr, self.evaluations), self.recommendation])

    def _not_better(self, chosen: str, others: Sequence[str]) -> str:
        parts = [f"{name!r} ({self.difference(chosen, name)})" for name in others]
        verb = "is" if len(parts) == 1 else "are"
        return f"{' and '.join(parts)} {verb} not significantly better"


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
    """Ask several retrievers the same questions.

    Args:
        retrievers: LlamaIndex retrievers or projects by name: first what the others are compared with, then from the
            cheapest to the dearest.
        questions: Questions, or a file of them.
        ks: Numbers of results to look at.
        metric: What the recommendation goes by; None takes recall@10, or recall at the largest of `ks` without a 10.
        costs: Dollars that each costs on these documents, as far as known.
        notes: Sentences about what the figures stand for.
        embed_model: For the context relevance; None leaves it out.
        seed: Of the random numbers behind intervals and p-values.
        progress: Called as questions are answered, over all retrievers.

    Raises:
        InputError: There are fewer than two retrievers, no questions, or no such metric.

    Example:
        >>> print(compare({"plain": plain, "hybrid": hybrid}, "questions.jsonl").recommendation)  # doctest: +SKIP
    """
    if len(retrievers) < 2:
        raise InputError("A comparison needs at least two retrievers.", value=list(retrievers))
    asked = read(questions)
    total = len(asked) * len(retrievers)
    evaluations = []
    for at, (name, retriever) in enumerate(retrievers.items()):
        before = at * len(asked)
        told = None if progress is None else (lambda done, _, before=before: progress(before + done, total))
        evaluations.append(evaluate(retriever, asked, name=name, ks=ks, embed_model=embed_model, progress=told))
    most = max(ks)
    metric = metric or (f"recall@{_MAIN_K}" if _MAIN_K in ks else f"recall@{most}")
    evaluations[0].values(metric)
    return Comparison(
        evaluations=tuple(evaluations), metric=metric, costs=dict(costs or {}), notes=tuple(notes), seed=seed
    )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What variants need of their project.

    Attributes:
        directory: Where it is.
        config: Its settings.
        live: Its live version.
        llm: Writes contexts; None makes the one that the settings name when the first context is due.
        load_embed_model: Gives the model that embeds chunks and queries.
        model_id: What to call the model of `llm`; None takes its own name.
    """

    directory: Path
    config: ProjectConfig
    live: LiveIndexes
    llm: LLM | None
    load_embed_model: Callable[[], BaseEmbedding]
    model_id: str | None = None

    @property
    def llm_name(self) -> str:
        """Name of the LLM, as prices and reports know it."""
        return self.config.llm if self.llm is None else model_name(self.llm, self.model_id)

    @property
    def version(self) -> OpenVersion:
        """The live version.

        Raises:
            NoVersionError: Nothing has been ingested yet.
        """
        return self.live.current().version


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A project's documents with other settings, ready for questions.

    Attributes:
        config: The settings.
        live: The version.
        chunks: Number of chunks.
        cost: Dollars that its contexts cost, whenever they were paid; None where it is not known.
        failures: Chunks whose context the LLM failed to write; they have the structural one.
    """

    config: ProjectConfig
    live: LiveIndexes
    chunks: int
    cost: float | None
    failures: int = 0

    def as_retriever(self, *, similarity_top_k: int, mode: Mode | None = None) -> BaseRetriever:
        """Return a retriever that gives so many results."""
        return ProjectRetriever(self.live, self.config, mode=mode, similarity_top_k=similarity_top_k)


class Workspace:
    """Builds the variants of one comparison.

    Args:
        origin: The project.
        directory: An empty directory that is removed afterwards.
    """

    def __init__(self, origin: Origin, directory: Path) -> None:
        self._origin, self._directory = origin, directory
        self._built = 0
        self._open = ExitStack()

    def build(
        self,
        config: ProjectConfig,
        *,
        left_out: frozenset[str] = frozenset(),
        progress: ReportProgress | None = None,
    ) -> Variant:
        """Return the project's documents with these settings; what was paid for before comes from the ledger.

        Where the live version has been built with them, it is asked itself.

        Args:
            config: The settings.
            left_out: Ids of documents that the variant does not have.
            progress: Called as the work proceeds.

        Raises:
            ModelError: A model cannot be made or reached; what was paid for is in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        origin, version = self._origin, self._origin.version
        built_with = ProjectConfig.recorded(version.manifest.config)
        with ExitStack() as stack:
            stack.enter_context(write_lock(origin.directory))
            ledger = stack.enter_context(project_ledger(origin.directory))
            if not left_out and not config.rebuild_fields(built_with):
                records = version.manifest.documents
                failures = sum(len(record.fallback_chunks) for record in records)
                cost = _cost(version, config, origin.llm_name, ledger)
                chunks = version.manifest.chunks
                return Variant(config=config, live=origin.live, chunks=chunks, cost=cost, failures=failures)
            self._built += 1
            directory = self._directory / str(self._built)
            files.make_directory(directory)
            embed_model = origin.load_embed_model() if config.faiss else None
            stages = make_stages(
                config, ledger=ledger, llm=origin.llm, embed_model=embed_model, model_id=origin.model_id
            )
            report = run_sync(
                lambda: arun(
                    [],
                    RunOptions(remove=left_out, purpose="compare"),
                    project_dir=directory,
                    config=config,
                    stages=stages,
                    before=version,
                    progress=progress,
                )
            )
            live = LiveIndexes(directory, origin.directory.name, lambda _: origin.load_embed_model())
            built = live.current().version
            self._open.callback(built.close)
            return Variant(
                config=config,
                live=live,
                chunks=report.chunks,
                cost=_cost(built, config, origin.llm_name, ledger),
                failures=len(report.failures),
            )

    def close(self) -> None:
        """Close the variants."""
        self._open.close()


@contextlib.contextmanager
def workspace(origin: Origin) -> Iterator[Workspace]:
    """Give a place for variants beside the project, and remove it at the end, also what an interrupted one left.

    Raises:
        ProjectLockedError: The project is being compared by another process.
    """
    with scratch(origin.directory) as directory, contextlib.closing(Workspace(origin, directory)) as space:
        yield space


def _cost(version: OpenVersion, config: ProjectConfig, llm: str, ledger: Ledger) -> float | None:
    """Return the dollars that the LLM's contexts of a version cost by the ledger."""
    if config.context != "llm":
        return 0.0
    contexts = [
        node.metadata[keys.CONTEXT]
        for node in version.docstore.iterate()
        if node.metadata.get(keys.CONTEXT_SOURCE) == "llm" and not node.metadata.get(keys.CONTEXT_GIVEN)
    ]
    used = ledger.usage(contexts)
    if used is None:
        return None
    return PriceTable(config.prices).dollars(
        llm,
        input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
        sender=config.service_tier or "live",
    )


def price(origin: Origin, config: ProjectConfig, *, left_out: frozenset[str] = frozenset()) -> float | None:
    """Return the dollars that building a variant would cost now, or None where a price is not known.

    What is in the project's ledger costs nothing.

    Args:
        origin: The project.
        config: The settings of the variant.
        left_out: Ids of documents that it does not have.
    """
    model = origin.load_embed_model() if config.faiss else None
    name = None if model is None else embedding_identity(model)
    if config.context != "llm" and name in (None, LOCAL):
        return 0.0
    with contextlib.closing(Ledger(origin.directory / LEDGER_FILE, read_only=True)) as ledger:
        return estimate(
            [],
            RunOptions(remove=left_out),
            config=config,
            stages=make_stages(config, ledger=ledger, llm=origin.llm, embed_model=None, model_id=origin.model_id),
            embedding=EmbeddingCount(name, getattr(model, "dimensions", None)),
            before=origin.version,
            sender=config.service_tier or "live",
        ).dollars


def price_of_all(origin: Origin, configs: Iterable[ProjectConfig], *, left_out: frozenset[str]) -> float | None:
    """Return the dollars that building several variants would cost now, or None where a price is not known."""
    prices = [price(origin, config, left_out=left_out) for config in configs]
    known = [dollars for dollars in prices if dollars is not None]
    return sum(known) if len(known) == len(prices) else None


def require_affordable(dollars: float | None, max_cost: float | None, documents: int) -> None:
    """Do nothing where a price is within the limit, or there is none.

    Raises:
        InputError: It is higher, or not known.
    """
    if max_cost is None:
        return
    if dollars is None:
        raise InputError(
            "The cost cannot be told beforehand: give the models' prices in the setting `prices`, or leave max_cost out"
            " and take a small sample."
        )
    if dollars > max_cost:
        raise InputError(
            f"{pluralize(documents, 'document')} would cost about ${dollars:.4f}, more than max_cost (${max_cost:.4f}):"
            f" take a smaller sample or a cheaper LLM.",
            value=max_cost,
        )


KINDS: tuple[ContextKind, ...] = ("none", "structural", "llm")
"""From the cheapest to the dearest."""


def compare_variants(
    origin: Origin,
    questions: Questions | None = None,
    *,
    variants: Sequence[ContextKind] = KINDS,
    sample: int | None = None,
    ks: Sequence[int] = KS,
    metric: str | None = None,
    max_cost: float | None = None,
    number: int = QUESTIONS,
    seed: int = 0,
    progress: ShowVariants | None = None,
) -> Comparison:
    """Build the documents of a project with several kinds of context, ask all the same questions, and say which pays.

    The variants are built beside the project and removed afterwards; contexts and embeddings that are paid for stay in
    its ledger. Answers to a sample of the documents are easier to find than among all: compare the differences.

    Args:
        origin: The project.
        questions: Questions, or a file of them; None lets the project's LLM write some.
        variants: Kinds of context, at least two; the first one is what the others are compared with.
        sample: Documents to build, at most: those with evidence first; None takes all.
        ks: Numbers of results to look at.
        metric: What the recommendation goes by; None takes recall@10.
        max_cost: Dollars that contexts and embeddings may cost; nothing is built where the price is higher or unknown.
            Questions that the LLM writes are not counted.
        number: Questions to write when there are none.
        seed: Of the random numbers.
        progress: Called as the work proceeds; with the price before anything is built, where it may raise.

    Raises:
        InputError: A variant is unknown or there are fewer than two, no question has its evidence in the sample, or
            the cost would be higher than `max_cost`.
        ModelError: A variant or the questions need an LLM that cannot be made or reached.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.
    """
    kinds = _checked(variants)
    tell = progress or (lambda _: None)
    if questions is None:
        tell(VariantProgress(stage="questions", total=number))
        llm = origin.llm or load_llm(origin.config.llm, timeout=origin.config.call_timeout)
        asked: Sequence[Question] = generate_questions(origin.version, llm, number=number, seed=seed)
    else:
        asked = read(questions)
    drawn = draw(origin.version, asked, sample, seed=seed)
    configs = {kind: origin.config.changed(context=kind) for kind in kinds}
    dollars = price_of_all(origin, configs.values(), left_out=drawn.left_out)
    require_affordable(dollars, max_cost, drawn.documents)
    tell(VariantProgress(stage="price", dollars=dollars))
    with workspace(origin) as space:
        built: dict[str, Variant] = {}
        for kind in kinds:
            built[kind] = space.build(configs[kind], left_out=drawn.left_out, progress=told(tell, kind))
        return compare(
            built,
            drawn.questions,
            ks=ks,
            metric=metric,
            costs={kind: variant.cost for kind, variant in built.items()},
            notes=_notes(origin, asked, drawn, built, generated=questions is None),
            seed=seed,
            progress=lambda done, total: tell(VariantProgress(stage="ask", done=done, total=total)),
        )


def _checked(variants: Sequence[ContextKind]) -> Sequence[ContextKind]:
    unknown = [kind for kind in variants if kind not in KINDS]
    if unknown or len(set(variants)) < 2 or len(set(variants)) < len(variants):
        raise InputError(
            f"The variants are {', '.join(map(repr, variants)) or 'none'}: give two or three of none, structural, llm.",
            value=variants,
        )
    return variants


def _notes(
    origin: Origin, asked: Sequence[Question], sample: Sample, built: dict[str, Variant], *, generated: bool
) -> list[str]:
    total = len(origin.version.manifest.documents)
    chunks = next(iter(built.values())).chunks
    asked_of = f"{pluralize(chunks, 'chunk')}, {pluralize(len(sample.questions), 'question')}"
    notes = [f"{sample.documents} of {pluralize(total, 'document')}, {asked_of}."]
    if not sample.is_whole:
        outside = pluralize(len(asked) - len(sample.questions), "question")
        notes[0] += f" Left out for evidence outside the sample: {outside}."
        notes.append("Fewer documents compete in a sample: the differences count, not the levels.")
        prices = {name: price(origin, variant.config) for name, variant in built.items()}
        notes += [_whole(name, dollars, total) for name, dollars in prices.items() if dollars != 0]
    notes += absent_files(origin.version.manifest.documents, sample.questions)
    if generated:
        notes.append(f"The questions were written by {origin.llm_name}, each from one chunk.")
    notes += [
        f"The LLM failed for {pluralize(variant.failures, 'chunk')} of {name!r}: there the context is structural."
        for name, variant in built.items()
        if variant.failures
    ]
    return notes


def _whole(name: str, dollars: float | None, documents: int) -> str:
    more = "an unknown amount" if dollars is None else f"about ${dollars:.4f}"
    return f"{name!r} for all {documents} documents would cost {more} more."
