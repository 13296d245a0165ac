"""Find out on a sample of documents whether contexts written by an LLM pay off for a project, before paying for all.

The LLM writes contexts for the sample only. All other documents keep their structural contexts and compete with the
sample in the search, so that a question is as hard as among all documents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.evaluation.compare import (
    Comparison,
    Difference,
    ShowVariants,
    Variant,
    VariantProgress,
    built_variants,
    compare,
    detectable_difference,
    rerank_price,
    total_price,
    variant_estimate,
    variant_notes,
    with_evidence_notes,
)
from llama_index_contextual.evaluation.questions import PER_CHUNK, QUESTIONS, generate_questions, require_number
from llama_index_contextual.evaluation.run import KS, Questions, as_questions
from llama_index_contextual.evaluation.sample import draw_sample
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.state import HasState, ProjectState
from llama_index_contextual.models import model_name
from llama_index_contextual.money.price import Prices, money
from llama_index_contextual.money.tokens import Tokens

STRUCTURAL, LLM = "structural", "llm"

SAMPLE = 20
"""Default number of documents in a sample."""
WORTHWHILE = 0.02
"""Smallest mean gain that is assumed to be worth its price."""
FEWEST_WITHOUT_GAIN = 50
"""Minimum number of questions to rule out a gain: with fewer, a gain in a few per cent of them could remain unseen."""

_PROMPT_TOKENS = 200
_QUESTION_TOKENS = 40

Verdict = Literal["worth it", "not worth it", "not measurable"]


@dataclass(frozen=True, kw_only=True)
class Payoff(Comparison):
    """Comparison of structural contexts with contexts that an LLM wrote for a sample of documents.

    Attributes:
        sample: Ids of the documents in the sample.
        documents: Number of documents in the project.
        questions_outside: Number of questions that were left out because of evidence outside the sample.
        rest: LLM calls for the contexts of the other documents, and their tokens, at the token counts of the sample.
        rest_dollars: Price of these contexts and of their embeddings in dollars, or None if it is unknown.
    """

    sample: Sequence[str]
    documents: int
    questions_outside: int
    rest: Tokens
    rest_dollars: float | None

    @property
    def gain(self) -> Difference:
        """Difference between the LLM's contexts and structural contexts."""
        return self.difference(STRUCTURAL, LLM)

    @property
    def verdict(self) -> Verdict:
        """Whether the LLM's contexts are worth their price, by the interval of the gain.

        They are not if the interval is below `WORTHWHILE`, and they are if the gain is significant and the interval is
        above zero. Anything else is not measurable with these questions.
        """
        gain = self.gain
        if gain.high < WORTHWHILE and self._number >= FEWEST_WITHOUT_GAIN:
            return "not worth it"
        return "worth it" if gain.significant and gain.low > 0 else "not measurable"

    @property
    def questions_needed(self) -> int:
        """Number of questions that would decide with a probability of 80 % if the mean and the deviation stay the same.

        This is the number with which the interval would exclude either zero or `WORTHWHILE`.
        """
        mean, detectable = self.gain.mean, 0.0
        if self._number > 1:
            detectable = detectable_difference(self._values(STRUCTURAL, LLM, self.metric))
        distance = max(mean, WORTHWHILE - mean)
        return max(FEWEST_WITHOUT_GAIN, math.ceil(self._number * (detectable / distance) ** 2))

    @property
    def _number(self) -> int:
        return len(self.evaluations[0].results)

    @property
    def recommended(self) -> str:
        """The LLM's contexts if they are worth their price, otherwise structural contexts."""
        return LLM if self.verdict == "worth it" else STRUCTURAL

    @property
    def recommendation(self) -> str:
        """The recommendation with its reasons, in a few sentences."""
        gain, verdict = self.gain, self.verdict
        on = f"in {self.metric} on {pluralize(self._number, 'question')}"
        if verdict == "worth it":
            price = f" The other {self._others} would cost {money(self.rest_dollars)}." if self._others else ""
            return f"LLM contexts are worth it: the gain {on} is {gain}.{price}"
        if verdict == "not worth it":
            least = f"{100 * WORTHWHILE:.0f} points"
            return f"LLM contexts are not worth it: the gain {on} is {gain}, and the interval is below {least}."
        outside = ""
        if self.questions_outside:
            outside = f"; {self.questions_outside:,} of yours are about documents outside the sample"
        return (
            f"Not measurable with so few questions: the gain {on} is {gain}."
            f" About {self.questions_needed:,} questions would be needed{outside}."
        )

    @property
    def _others(self) -> str:
        number = self.documents - len(self.sample)
        return pluralize(number, "document") if number else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict, the sample and the price of the other documents as JSON values."""
        return {
            "verdict": self.verdict,
            "questions_needed": self.questions_needed if self.verdict == "not measurable" else None,
            "sample": list(self.sample),
            "documents": self.documents,
            "rest": {**asdict(self.rest), "dollars": self.rest_dollars},
        }


@suggests_keywords
def evaluate_payoff(
    project: HasState,
    questions: Questions | None = None,
    *,
    sample: int = SAMPLE,
    seed: int = 0,
    number: int = QUESTIONS,
    ks: Sequence[int] = KS,
    metric: str | None = None,
    rerank: str | None = None,
    max_cost: float | None = None,
    progress: ShowVariants | None = None,
) -> Payoff:
    """Have the LLM write contexts for a sample of documents, and compare them with structural contexts.

    The sample represents the folders, file types and lengths of the documents, and contains documents with evidence.
    All documents are searched. The variants are built next to the project and removed afterwards; their contexts and
    embeddings are kept in the project's ledger, so that they are not paid for again if the project uses them.

    Args:
        project: The project.
        questions: Questions, or the path of a question file; None has the LLM write questions about the sample.
        sample: Number of documents for which the LLM writes contexts.
        seed: Number that determines the sample.
        number: Number of questions to write if none are given.
        ks: Numbers of results for which the metrics are computed.
        metric: Metric for the recommendation, as in `compare`.
        rerank: Value of the `rerank` setting to use for both variants, as in `evaluate`.
        max_cost: Maximum cost of contexts, embeddings, questions and reranking in dollars; nothing is sent if the cost
            is higher or unknown.
        progress: Called first with the cost, before anything is sent, and then as the work proceeds. It may raise an
            exception to stop.

    Raises:
        InputError: No question has its evidence in the sample, a number is not positive, or the cost is higher than
            `max_cost`.
        ModelError: A model cannot be loaded or reached.
        NoVersionError: Nothing has been ingested yet.
        ProjectLockedError: Another process is writing to the project.

    Example:
        >>> print(evaluate_payoff(project, "questions.jsonl", sample=20).recommendation)  # doctest: +SKIP
    """
    origin, report = project.state, progress or (lambda _: None)
    version = origin.live.current()
    question_list = [] if questions is None else as_questions(questions)
    sample_questions, outside = draw_sample(version, question_list, sample, seed=seed)
    sample_ids = [record.doc_id for record in version.records if record.doc_id not in outside]
    configs = {kind: origin.config.changed(context=kind) for kind in (STRUCTURAL, LLM)}
    other_prices = [rerank_price(origin, rerank, len(sample_questions) or number, max(ks, default=0))] * len(configs)
    if questions is None:
        other_prices.append(_question_price(origin, number))
    with built_variants(
        origin,
        configs,
        sample=frozenset(sample_ids),
        max_cost=max_cost,
        report=report,
        other_prices=other_prices,
    ) as variants:
        if questions is None:
            report(VariantProgress(stage="questions"))
            sample_questions = generate_questions(
                version, origin.answering_llm(), number=number, doc_ids=frozenset(sample_ids)
            )
        report(VariantProgress(stage="ask"))
        rest, rest_dollars = _rest(origin, variants[LLM], frozenset(sample_ids))
        comparison = compare(
            variants,
            sample_questions,
            ks=ks,
            metric=metric,
            rerank=rerank,
            costs={name: variant.cost for name, variant in variants.items()},
            notes=[
                *_notes(len(sample_ids), len(version.records), len(sample_questions), len(question_list)),
                *variant_notes(origin, variants, frozenset()),
                *_rest_notes(len(outside), rest, rest_dollars),
            ],
        )
    return Payoff(
        **vars(with_evidence_notes(comparison, origin)),
        sample=tuple(sample_ids),
        documents=len(version.records),
        questions_outside=max(0, len(question_list) - len(sample_questions)),
        rest=rest,
        rest_dollars=rest_dollars,
    )


def _question_price(origin: ProjectState, number: int) -> float | None:
    """Return the price in dollars of having the LLM write questions about chunks, or None if it is unknown."""
    require_number(number)
    calls = math.ceil(number / PER_CHUNK)
    input_tokens = calls * (origin.config.chunk_size + _PROMPT_TOKENS)
    tokens = Tokens(calls=calls, input_tokens=input_tokens, output_tokens=number * _QUESTION_TOKENS)
    return Prices(origin.config.prices).dollars(model_name(origin.answering_llm(), origin.model_id), tokens)


def _rest(origin: ProjectState, variant: Variant, sample: frozenset[str]) -> tuple[Tokens, float | None]:
    """Return the calls and tokens for the documents outside the sample, and their price including the embeddings."""
    estimate = variant_estimate(origin, variant.config, RunOptions(remove=sample))
    tokens = estimate.contexts
    report = variant.report
    if report is not None and report.estimated is not None and report.paid is not None:
        tokens = scaled(tokens, expected=report.estimated.contexts, actual=report.paid.contexts)
    dollars: float | None = 0.0
    if estimate.model is not None and tokens.calls:
        dollars = Prices(variant.config.prices).dollars(estimate.model, tokens, sender=estimate.sender)
    return tokens, total_price([dollars, estimate.embedding_dollars])


def scaled(tokens: Tokens, *, expected: Tokens, actual: Tokens) -> Tokens:
    """Return estimated tokens, corrected by the ratio of actual to expected tokens of other calls.

    Example:
        >>> expected = Tokens(calls=10, input_tokens=1_000, output_tokens=500)
        >>> actual = Tokens(calls=11, input_tokens=1_100, cached_tokens=550, output_tokens=800)
        >>> scaled(Tokens(calls=100, input_tokens=20_000, output_tokens=5_000), expected=expected, actual=actual)
        Tokens(calls=110, input_tokens=22000, cached_tokens=11000, output_tokens=8000, ...)
    """
    if not (expected.calls and expected.input_tokens and actual.input_tokens):
        return tokens
    input_tokens = tokens.input_tokens * actual.input_tokens / expected.input_tokens
    per_call = tokens.calls / expected.calls
    return Tokens(
        calls=round(per_call * actual.calls),
        input_tokens=round(input_tokens),
        cached_tokens=round(input_tokens * actual.cached_tokens / actual.input_tokens),
        output_tokens=round(per_call * actual.output_tokens),
        written_tokens=round(input_tokens * actual.written_tokens / actual.input_tokens),
    )


def _notes(sample: int, documents: int, questions: int, all_questions: int) -> Iterator[str]:
    number = pluralize(questions, "question")
    yield f"LLM contexts for {sample} of {pluralize(documents, 'document')}; all are searched. {number}."
    if not all_questions:
        yield "The LLM wrote the questions about single passages: your own questions are a better measure."
    elif questions < all_questions:
        outside = pluralize(all_questions - questions, "question")
        yield f"Left out because of evidence outside the sample: {outside}."


def _rest_notes(documents: int, rest: Tokens, dollars: float | None) -> Iterator[str]:
    if documents:
        calls = f"{pluralize(rest.calls, 'call')}, {rest.input_tokens:,} input tokens ({rest.cached_tokens:,} cached)"
        remainder = pluralize(documents, "other document")
        yield (
            f"Contexts for the {remainder}, at the token counts of the sample: {calls}, {rest.output_tokens:,} output"
            f" tokens, {money(dollars)} with their embeddings."
        )
