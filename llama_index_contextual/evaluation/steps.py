"""Count the failed retrievals of each step from embeddings alone to a reranker, on a user's own questions.

A retrieval fails to the extent that evidence is missing from the first k results (1 − recall@k). Each step adds to the
previous one: embeddings, the structural context, the LLM's context, BM25, the best sentence, and a reranker.

Source: Anthropic, "Introducing Contextual Retrieval", 2024, which reports 35 % fewer failed retrievals with contextual
embeddings, 49 % with contextual BM25 in addition, and 67 % with a reranker in addition, at k = 20.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import DEFAULT_LLM, SPOTLIGHT, ContextKind, Mode, ProjectConfig
from llama_index_contextual.errors import ConfigurationError, Remedy
from llama_index_contextual.evaluation.compare import (
    Comparison,
    Difference,
    ShowVariants,
    VariantProgress,
    bootstrap_interval,
    built_variants,
    compare,
    price,
    rerank_price,
    sample_notes,
    total_price,
    variant_estimate,
    variant_notes,
    with_evidence_notes,
)
from llama_index_contextual.evaluation.run import KS, NO_RERANK, Questions, as_questions
from llama_index_contextual.evaluation.sample import draw_sample
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.state import HasState, ProjectState
from llama_index_contextual.models import missing_for
from llama_index_contextual.money.price import money
from llama_index_contextual.search.response import RerankerChoice
from llama_index_contextual.search.spotlight import COMPARED, COMPARED_OF_MANY

EMBEDDINGS = "embeddings"
STRUCTURAL = "+ structural context"
LLM_CONTEXT = "+ LLM context"
LEXICAL = "+ BM25"
SENTENCE = "+ spotlight"
RERANKER = "+ reranker"
WITHOUT_LLM = "without LLM context"
"""Control that shows what the LLM's context adds to the other steps: spotlight and BM25 with structural context."""
ORDER = (EMBEDDINGS, STRUCTURAL, LLM_CONTEXT, LEXICAL, SENTENCE, RERANKER, WITHOUT_LLM)


@dataclass(frozen=True, kw_only=True)
class Steps(Comparison):
    """Comparison of steps; `evaluations` contains the measured steps, and the first one is the baseline.

    A step with the LLM's contexts is recommended only if it is significantly better than the best step without them,
    and a reranker, which takes time for each question, only if it is significantly better than the steps before it.

    Attributes:
        prices: Price of each measured step in dollars, by name; None if unknown.
        skipped: Reason why each of the other steps was not measured, by name.
    """

    prices: Mapping[str, float | None]
    skipped: Mapping[str, str]

    def failed(self, name: str) -> float:
        """Return the fraction of the evidence that is not among the first k results of a step."""
        return 1 - self[name].mean(self.metric)

    def fewer(self, baseline: str, name: str) -> float | None:
        """Return the fraction of the baseline's failed retrievals that a step avoids, or None if it had none."""
        share = self.failed(baseline)
        return None if round(share, 9) == 0 else 1 - self.failed(name) / share

    def differences(self, metric: str | None = None) -> list[Difference]:
        """Return the differences of each step from the previous one and from the first one."""
        pairs = [(baseline, name) for name in self.names[1:] for baseline in (self._before(name), self.names[0])]
        return [self.difference(baseline, name, metric) for baseline, name in dict.fromkeys(pairs)]

    def _before(self, name: str) -> str:
        """Return the step with which a step is compared; for the control, this is the step that it replaces."""
        if name == WITHOUT_LLM:
            return SENTENCE if SENTENCE in self.names else LEXICAL
        steps = [step for step in ORDER if step in self.names]
        return steps[steps.index(name) - 1]

    def table(self) -> list[dict[str, Any]]:
        """Return a row of JSON values for each step, including the skipped ones, which have a reason and no figures.

        `failed` is the fraction of the evidence that is not among the first k results, with a 95 % interval from `low`
        to `high` (bootstrap). Changes are in failed retrievals, so that negative values are better, with their 95 %
        intervals and p-values; `fewer_than_previous` and `fewer_than_first` are the fractions of the failed retrievals
        that the step avoids, None if there were none. `dollars` is the price, without what was in the ledger. `p50_ms`
        is the median time of a search; for up to 512 questions, it does not include embedding the question.
        """
        return [self._row(name) for name in ORDER if name in self.names or name in self.skipped]

    def _row(self, name: str) -> dict[str, Any]:
        if name in self.skipped:
            return {**dict.fromkeys(self._row(self.names[0])), "step": name, "skipped": self.skipped[name]}
        evaluation = self[name]
        low, high = bootstrap_interval(1 - evaluation.values(self.metric))
        row = {"step": name, "failed": self.failed(name), "low": low, "high": high}
        for kind, baseline in (("previous", self._before(name)), ("first", self.names[0])):
            difference = None if name == self.names[0] else self.difference(baseline, name)
            row[kind] = difference and baseline
            # subtracted from 0, so that no change is 0.0 and not -0.0
            row[f"change_from_{kind}"] = difference and 0.0 - difference.mean
            row[f"low_from_{kind}"] = difference and 0.0 - difference.high
            row[f"high_from_{kind}"] = difference and 0.0 - difference.low
            row[f"p_from_{kind}"] = difference and difference.p_value
            row[f"fewer_than_{kind}"] = difference and self.fewer(baseline, name)
        row[evaluation.main_metric] = evaluation.mean(evaluation.main_metric)
        return {**row, "dollars": self.prices[name], "p50_ms": 1000 * evaluation.response_time(50), "skipped": None}

    def _by_cost(self) -> list[list[str]]:
        """Return the names in groups: without the LLM's contexts, with them, and with a reranker."""
        paid_steps = (LLM_CONTEXT, LEXICAL, SENTENCE) if LLM_CONTEXT in self.names else ()
        free = [name for name in self.names if name not in (*paid_steps, RERANKER)]
        groups = [free, *([name for name in self.names if name in group] for group in (paid_steps, (RERANKER,)))]
        return [group for group in groups if group]

    @property
    def recommendation(self) -> str:
        """The recommendation with its reasons, in a few sentences."""
        best, first = self.recommended, self.names[0]
        on = f"on {pluralize(len(self.evaluations[0].results), 'question')} ({self.metric})"
        gain, fewer = self.difference(first, best), self.fewer(first, best)
        if best == first:
            advice = f"Use {best!r}: no other step has significantly fewer failed retrievals {on}."
        elif not fewer:
            return f"No step has fewer failed retrievals than {first!r} {on}."
        else:
            share = f"{100 * fewer:.0f} % fewer failed retrievals than {first!r}"
            advice = f"Use {best!r}: {share} {on}, p = {gain.p_value:.2g}."
            if not gain.significant:
                advice = f"Use {first!r} or {best!r}: the difference {on} is not significant, p = {gain.p_value:.2g}."
            if best not in self._by_cost()[-1]:
                advice += " No step that costs more is significantly better."
        return advice + self.sample_warning(best)


class _Step(NamedTuple):
    """Settings of a step."""

    context: ContextKind
    mode: Mode
    rerank: str = NO_RERANK


@suggests_keywords
def evaluate_steps(
    project: HasState,
    questions: Questions,
    *,
    rerank: str | None = None,
    k: int | None = None,
    sample: int | None = None,
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
) -> Steps:
    """Count the failed retrievals of embeddings alone, and of each step that is added to them.

    The steps are the structural context, the LLM's context, BM25, the best sentence, and a reranker. Variants are built
    and removed as in `compare_variants`. The step with the LLM's context is skipped, with its price, if contexts are
    missing and the settings name no LLM or its key is not set, or if the cost with them would be higher than
    `max_cost`; the following steps then have the structural context. If it is not skipped, the steps up to the best
    sentence are also measured without it.

    Args:
        project: The project.
        questions: Questions, or the path of a question file.
        rerank: Reranker of the last step, as in the `rerank` setting; None uses the project's setting.
        k: Number of results among which the evidence must be; None uses the largest of `evaluation.run.KS` at which
            the steps differ.
        sample: Maximum number of documents to index, starting with documents that contain evidence; None for all.
        max_cost: Maximum cost of contexts, embeddings and reranking in dollars. 0 measures what costs nothing.
        progress: Called first with the cost, before anything is built, and then as the work proceeds. It may raise an
            exception to stop.

    Raises:
        InputError: No question has its evidence in the sample, `k` is not positive, or the cost without the LLM's
            contexts is higher than `max_cost`.
        ConfigurationError: The project has no embeddings.
        ModelError: A model cannot be loaded or reached.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.

    Example:
        >>> print(evaluate_steps(project, "questions.jsonl").recommendation)  # doctest: +SKIP
    """
    origin, report = project.state, progress or (lambda _: None)
    question_list = as_questions(questions)
    sample_questions, excluded = draw_sample(origin.live.current(), question_list, sample)
    if not origin.config.builds_semantic:
        raise ConfigurationError(
            "The steps begin with embeddings, and the project builds a lexical index only",
            setting="indexes",
            remedy=Remedy(
                "set indexes='hybrid', then rebuild",
                "run `llama-index-contextual configure {project} indexes=hybrid`, then `rebuild`",
            ),
        )
    base = origin.config.changed(indexes="hybrid")
    cutoffs, results = (KS, max(KS)) if k is None else ((k,), k)
    reranker = rerank or base.rerank or NO_RERANK
    choice = None if reranker == NO_RERANK else origin.live.versions.rerankers.choice(base.changed(rerank=reranker))
    has_model = choice is not None and choice.name != SPOTLIGHT
    reranking = rerank_price(origin, reranker, len(sample_questions), results) if has_model else 0.0
    steps, skipped = _steps(base, _no_llm(origin, base, excluded, max_cost, reranking), reranker, choice)
    configs: dict[str, ProjectConfig] = {step.context: base.changed(context=step.context) for step in steps.values()}
    with built_variants(
        origin,
        configs,
        excluded,
        max_cost=max_cost,
        report=report,
        other_prices=[reranking],
    ) as variants:
        retrievers = {}
        for name, step in steps.items():
            setting = None if step.rerank == NO_RERANK else step.rerank
            retriever = variants[step.context].as_retriever(similarity_top_k=results, mode=step.mode)
            retrievers[name] = retriever.changed(rerank=setting)
        for variant in variants.values():  # otherwise, only the first step with an index would embed the questions
            variant.live.current().embedder.embed_many([[question.text] for question in sample_questions])
        report(VariantProgress(stage="ask"))
        comparison = compare(
            retrievers,
            sample_questions,
            ks=[*(cutoff for cutoff in KS if cutoff < results), results],
            metric=f"recall@{results}",
            costs={name: variants[step.context].cost for name, step in steps.items()},
            notes=[
                *sample_notes(origin, sample_questions, excluded, len(question_list)),
                *variant_notes(origin, variants, excluded),
            ],
        )
        k = telling_cutoff(comparison, cutoffs)
        notes = [*comparison.notes, *_order_notes(steps, k), *_cutoff_notes(k, results)]
        comparison = replace(comparison, metric=f"recall@{k}", notes=notes)
        prices = dict.fromkeys(steps, 0.0) | {
            name: variants[steps[name].context].price for name in (EMBEDDINGS, STRUCTURAL, LLM_CONTEXT) if name in steps
        }
        if RERANKER in steps:
            prices[RERANKER] = reranking
    return Steps(**vars(with_evidence_notes(comparison, origin)), prices=prices, skipped=skipped)


def telling_cutoff(comparison: Comparison, cutoffs: Sequence[int]) -> int:
    """Return the largest cutoff at which the steps differ in recall, or the largest if they never differ."""
    for cutoff in sorted(cutoffs, reverse=True):
        if len({evaluation.mean(f"recall@{cutoff}") for evaluation in comparison.evaluations}) > 1:
            return cutoff
    return max(cutoffs)


def _cutoff_notes(k: int, results: int) -> Iterator[str]:
    if k < results:
        yield f"The steps are compared at {pluralize(k, 'result')}: with more results, all find the same evidence."


def _order_notes(steps: Mapping[str, _Step], k: int) -> Iterator[str]:
    window = COMPARED if k <= COMPARED else COMPARED_OF_MANY
    if SENTENCE in steps and k >= window:
        yield f"{SENTENCE!r} sorts only the first {window} results, so recall@{k} does not change: use a smaller k."


def _no_llm(
    origin: ProjectState,
    config: ProjectConfig,
    excluded: frozenset[str],
    max_cost: float | None,
    reranking: float | None,
) -> str | None:
    """Return the reason why there can be no contexts from the LLM, or None.

    The limit applies to all steps, so the prices of the other variants and of the reranking are added.
    """
    options = RunOptions(remove=excluded)
    estimate = variant_estimate(origin, config.changed(context="llm"), options)
    if not estimate.contexts.calls:
        return None
    cost = f"{pluralize(estimate.contexts.calls, 'call')} for contexts would cost {money(estimate.dollars)}"
    if origin.llm is None and config.llm is None:
        return f"The settings name no LLM: set `llm`. With {DEFAULT_LLM}, {cost}."
    if origin.llm is None and (missing := missing_for(config.llm or "", setting="llm")):
        return f"{missing} {cost}."
    if max_cost is None:
        return None
    free: tuple[ContextKind, ...] = ("none", "structural")
    other_price = total_price([reranking, *(price(origin, config.changed(context=kind), options) for kind in free)])
    if (dollars := total_price([estimate.dollars, other_price])) is not None and dollars <= max_cost:
        return None
    more = "" if other_price == 0 else f", the other steps {money(other_price)}"
    return f"{cost}{more}, and the limit is {money(max_cost)}."


def _steps(
    config: ProjectConfig, no_llm: str | None, reranker: str, choice: RerankerChoice | None
) -> tuple[dict[str, _Step], dict[str, str]]:
    """Return the settings of each step, and the reason for each step that is skipped."""
    steps, skipped = {EMBEDDINGS: _Step("none", "semantic"), STRUCTURAL: _Step("structural", "semantic")}, {}
    context: ContextKind = "structural" if no_llm else "llm"
    if no_llm:
        skipped[LLM_CONTEXT] = no_llm
    else:
        steps[LLM_CONTEXT] = _Step("llm", "semantic")
    steps[LEXICAL] = _Step(context, "hybrid")
    if find_spec("wordllama") is None:
        skipped[SENTENCE] = 'This step needs WordLlama: pip install "llama-index-contextual[local]"'
    elif config.fusion != "score":
        skipped[SENTENCE] = f"It has no effect with fusion={config.fusion!r}."
    else:
        steps[SENTENCE] = _Step(context, "hybrid", SPOTLIGHT)
    if reranker in (NO_RERANK, SPOTLIGHT):
        skipped[RERANKER] = "No model is named: use the `rerank` option or setting."
    elif choice is None or choice.name == SPOTLIGHT:
        skipped[RERANKER] = f"rerank={reranker!r} selects no model{'' if choice is None else f': {choice.reason}'}."
    else:
        steps[RERANKER] = _Step(context, "hybrid", reranker)
    if not no_llm:
        steps[WITHOUT_LLM] = _Step("structural", "hybrid", steps.get(SENTENCE, steps[LEXICAL]).rerank)
    return steps, skipped
