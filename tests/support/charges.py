"""What a provider charges for calls, by its own records, and replies whose token counts differ from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llama_index_contextual.money.price import Price, Prices
from llama_index_contextual.money.tokens import Tokens
from tests.support.records import CHAT_PATH, CONTEXTUAL_PATH, EMBEDDINGS_PATH, Answer, Record, Request

Tamper = Callable[[Request, Answer], None]


def cost_at(
    records: Iterable[Record], *, prices: Mapping[str, Price] | None = None, embeddings: str = "openai"
) -> float:
    """Return what a provider charges for calls at list prices, by what its models have worked on.

    Args:
        records: The calls.
        prices: Prices of models that are not in the table.
        embeddings: Provider of the models at OpenAI's endpoint for embeddings.
    """
    table, total = Prices(prices or {}), 0.0
    providers = {CHAT_PATH: "openai", EMBEDDINGS_PATH: embeddings, CONTEXTUAL_PATH: "voyage"}
    for record in records:
        usage = record.worked or record.usage or {}
        details = usage.get("prompt_tokens_details") or {}
        tokens = Tokens(
            input_tokens=usage.get("prompt_tokens", usage.get("total_tokens")),
            cached_tokens=details.get("cached_tokens", 0),
            output_tokens=usage.get("completion_tokens", 0) if record.path == CHAT_PATH else 0,
        )
        sender = "batch" if record.batch_id else "live"
        total += table.dollars(f"{providers[record.path]}:{record.body['model']}", tokens, sender=sender) or 0.0
    return total


def charged_times(factor: int, path: str) -> Tamper:
    """Report and charge so many times the tokens of the calls to an endpoint."""

    def tamper(request: Request, answer: Answer) -> None:
        if request.path == path and answer.usage is not None:
            # The same object is in the reply and in the provider's record.
            answer.usage.update({name: factor * answer.usage[name] for name in _names(answer.usage)})
            details = answer.usage.get("prompt_tokens_details")
            if details:
                details["cached_tokens"] *= factor

    return tamper


NO_COUNTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "missing": lambda _: None,
    "zero": lambda usage: dict.fromkeys(_names(usage), 0),
    "negative": lambda usage: dict.fromkeys(_names(usage), -1_000_000),
    "absurd": lambda usage: dict.fromkeys(_names(usage), 10**30),
    "null": lambda usage: dict.fromkeys(_names(usage)),
    "text": lambda usage: dict.fromkeys(_names(usage), "many"),
    "strings": lambda usage: {name: f"{usage[name]}" for name in _names(usage)},
    "fractions": lambda usage: {name: float(usage[name]) for name in _names(usage)},
    "a list": lambda usage: [usage],
}
"""Forms in which token counts are replaced; those of "strings" and "fractions" can still be read."""


def _names(usage: Mapping[str, Any]) -> list[str]:
    return [name for name, count in usage.items() if isinstance(count, int)]


def reported_as(form: str, path: str) -> Tamper:
    """Replace the token counts in replies from an endpoint, but not in the provider's records."""

    def tamper(request: Request, answer: Answer) -> None:
        if request.path == path and answer.usage is not None and isinstance(answer.payload, dict):
            answer.payload = {**answer.payload, "usage": NO_COUNTS[form](answer.usage)}

    return tamper
