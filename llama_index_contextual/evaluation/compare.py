"""Two or more retrievers on the same questions: differences with intervals and p-values, and what to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from llama_index.core.base.embeddings.base import BaseEmbedding

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.run import KS, Evaluation, Questions, Retrievable, ShowProgress, evaluate, read
from llama_index_contextual.evaluation.significance import bootstrap_interval, permutation_p_value
from llama_index_contextual.wording import counted

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
        on = f"in {self.metric} on {counted(number, 'question')}"
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
