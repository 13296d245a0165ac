"""Tokens and prices of the calls for answers.

An answer can take several calls: the answer itself, the question rewritten for a conversation, the intent, the judge.
`calls_made` collects those that are made inside a search or a judgement, and `AnswerAccount` adds up all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from llama_index.core.base.llms.types import ChatMessage

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import TokenPrice
from llama_index_contextual.contextualizer.cost import PriceTable, Tokens, money
from llama_index_contextual.contextualizer.scheduler import usage_of
from llama_index_contextual.errors import ProjectError
from llama_index_contextual.index.project_file import record_answers_of
from llama_index_contextual.index.receipts import ANSWERS, RunCost

_TOKENS_OF_MESSAGE = 4  # as documented by OpenAI: 3, and the name of the role


@dataclass(frozen=True)
class ModelCalls:
    """Tokens of calls of one model.

    Attributes:
        model: Name of the model, as in the settings.
        tokens: Number of calls and their tokens.
        is_estimated: Whether the provider did not report the tokens, so that they were counted with o200k_base.
    """

    model: str
    tokens: Tokens
    is_estimated: bool = False


@dataclass(frozen=True, kw_only=True)
class AnswerUsage:
    """Tokens and list price of all calls for an answer.

    Attributes:
        models: Names of the models that were called.
        calls: Number of calls.
        input_tokens: Tokens of the prompts, including cached ones.
        cached_tokens: Input tokens that the provider read from its cache.
        output_tokens: Tokens of the replies.
        is_estimated: Whether a provider did not report the tokens, so that they were counted with o200k_base.
        dollars: List price, or None if that of a model is unknown.
        problem: Why the cost could not be added to the project's costs, in a sentence, or None.
    """

    models: tuple[str, ...]
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    is_estimated: bool
    dollars: float | None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the usage as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        about = "about " if self.is_estimated else ""
        cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
        price = "price unknown" if self.dollars is None else f"{about}{money(self.dollars)}"
        calls = f"{pluralize(self.calls, 'call')}, " if self.calls > 1 else ""
        return (
            f"{' + '.join(self.models)}: {calls}{about}{self.input_tokens:,} tokens in{cached},"
            f" {self.output_tokens:,} out, {price}"
        )


def add_up(usages: Sequence[AnswerUsage]) -> AnswerUsage | None:
    """Return the sum of the usages of several answers, or None without any."""
    if not usages:
        return None
    return AnswerUsage(
        models=tuple(dict.fromkeys(model for usage in usages for model in usage.models)),
        calls=sum(usage.calls for usage in usages),
        input_tokens=sum(usage.input_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        is_estimated=any(usage.is_estimated for usage in usages),
        dollars=_sum([usage.dollars for usage in usages]),
        problem=next((usage.problem for usage in usages if usage.problem), None),
    )


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


# ---- collecting calls ------------------------------------------------------------------------------------------------

_calls: ContextVar[list[ModelCalls] | None] = ContextVar("calls", default=None)


@contextmanager
def calls_made() -> Iterator[list[ModelCalls]]:
    """Yield a list that is filled with the calls made in the block, also by its threads and tasks."""
    made: list[ModelCalls] = []
    token = _calls.set(made)
    try:
        yield made
    finally:
        _calls.reset(token)


class Meter:
    """Tokens of one call, from the pieces of its stream.

    Args:
        model: Name of the model.
        messages: The prompt.
    """

    def __init__(self, model: str, messages: Sequence[ChatMessage]) -> None:
        self._model, self._messages = model, messages
        self._input: int | None = None
        self._output: int | None = None
        self._cached = self._written = 0

    def see(self, raw: Any) -> None:
        """Read the tokens in the provider's own form of a piece, if it has any; later pieces have larger numbers."""
        for holder in (raw, _field(raw, "message")):
            reported = _field(holder, "usage")
            usage = usage_of(reported)
            output = usage.output_tokens if usage.output_tokens is not None else _field(reported, "output_tokens")
            self._input = self._input if usage.input_tokens is None else usage.input_tokens
            self._output = output if type(output) is int else self._output
            self._cached = usage.cached_tokens or self._cached
            self._written = usage.written_tokens or self._written

    def end(self, text: str) -> ModelCalls:
        """Return the tokens of the call with this reply, and add them to the calls that `calls_made` collects."""
        sent, replied = self._input, self._output
        if sent is None:
            sent = sum(count_tokens(message.content or "") + _TOKENS_OF_MESSAGE for message in self._messages)
        tokens = Tokens(
            calls=1,
            input_tokens=sent,
            cached_tokens=self._cached,
            output_tokens=count_tokens(text) if replied is None else replied,
            written_tokens=self._written,
        )
        calls = ModelCalls(self._model, tokens, self._input is None or self._output is None)
        if (made := _calls.get()) is not None:
            made.append(calls)
        return calls


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


# ---- adding up -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnswerAccount:
    """Prices of calls, and the place where their cost is recorded.

    Args:
        prices: Prices of the models.
        record: Adds the cost of one model's calls to the costs of a project; None records nothing.
    """

    prices: PriceTable = field(default_factory=PriceTable)
    record: Callable[[RunCost], object] | None = None

    @classmethod
    def of(cls, project_dir: Path, prices: Mapping[str, TokenPrice]) -> AnswerAccount:
        """Return the account of a project: its prices, and its ledger."""
        return cls(PriceTable(prices), partial(record_answers_of, project_dir))

    def book(self, calls: Sequence[ModelCalls]) -> AnswerUsage | None:
        """Record the cost of calls and return their sum, or None without calls."""
        by_model: dict[str, list[ModelCalls]] = {}
        for one in calls:
            by_model.setdefault(one.model, []).append(one)
        return add_up([self._book(model, of_model) for model, of_model in by_model.items()])

    def _book(self, model: str, calls: Sequence[ModelCalls]) -> AnswerUsage:
        tokens = sum((one.tokens for one in calls), Tokens())
        dollars, problem, now = self.prices.dollars(model, tokens), None, time.time()
        receipt = RunCost(
            purpose=ANSWERS,
            started=now,
            ended=now,
            llm=model,
            calls=tokens.calls,
            estimated_calls=sum(one.is_estimated for one in calls),
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            paid=dollars,
            prices=self.prices.version,
        )
        try:
            if self.record is not None:
                self.record(receipt)
        except ProjectError as error:  # the answer is there; only its cost is missing from the project's
            problem = f"The cost of the answer was not recorded: {error}"
        return AnswerUsage(
            models=(model,),
            calls=tokens.calls,
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            is_estimated=bool(receipt.estimated_calls),
            dollars=dollars,
            problem=problem,
        )
