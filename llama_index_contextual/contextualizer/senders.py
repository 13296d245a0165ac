"""How a request reaches a model, and what comes back, whatever the provider calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, runtime_checkable

from llama_index.core.base.llms.types import CacheControl, CachePoint, TextBlock
from llama_index.core.llms import LLM, ChatMessage

from llama_index_contextual.contextualizer.cost import AnswerLimit
from llama_index_contextual.contextualizer.requests import ContextRequest, Usage
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.models import HIDDEN_TOKENS, Provider, model_name, provider_of
from llama_index_contextual.redaction import scrub
from llama_index_contextual.storage.storable import storable_text

ServiceTier = Literal["flex"]

FLEX_TIMEOUT = 900.0
"""Seconds: what is cheaper may take its time."""

_MOST_TOKENS = 2**31
"""No call has more; a larger count is nonsense, which SQLite may not be able to keep."""

_FINISHED = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}


@dataclass(frozen=True)
class Reply:
    """What a model answered.

    Attributes:
        text: Its text.
        usage: Tokens by its provider's count.
        finish_reason: Why it stopped: "stop", "length", "content_filter", "refusal", another word of the provider's,
            or None where it gave none.
        attempts: Calls that it took.
        seconds: How long the last of them took.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    attempts: int = 1
    seconds: float = 0.0


@runtime_checkable
class Sender(Protocol):
    """Sends one request and waits for its answer; a failure is raised as it comes, and nothing is sent again."""

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        ...


class LiveSender:
    """Sends requests to a LlamaIndex LLM, in the way in which its provider caches what they share.

    Args:
        llm: Any LlamaIndex LLM.
        service_tier: "flex" for half the price of live calls and longer waits, where the provider has it.

    Raises:
        ConfigurationError: The provider has no such tier.
    """

    def __init__(self, llm: LLM, *, service_tier: ServiceTier | None = None) -> None:
        self._llm = llm
        self._provider = provider_of(model_name(llm)) or Provider(pip="")
        if service_tier is not None and service_tier not in self._provider.service_tiers:
            raise ConfigurationError(
                f"{model_name(llm)!r} has no service tier {service_tier!r}: set service_tier to None.",
                setting="service_tier",
            )
        self._service_tier = service_tier
        self._limit = AnswerLimit.of(model_name(llm), llm)

    async def send(self, request: ContextRequest) -> Reply:
        """Return the answer to a request."""
        try:
            response = await self._llm.achat([self._message(request)], **self._options(request))
        except Exception as error:
            if self._limit.effort is None or not _refuses_effort(error):
                raise
            # A model that takes another effort than its name lets expect; what it has refused is not charged.
            self._limit = replace(self._limit, effort=None, hidden_tokens=HIDDEN_TOKENS[None])
            response = await self._llm.achat([self._message(request)], **self._options(request))
        reply = reply_of(response.raw)
        return Reply(scrub(response.message.content or ""), reply.usage, reply.finish_reason)

    def _message(self, request: ContextRequest) -> ChatMessage:
        if self._provider.cache != "point" or request.prefix_tokens < self._provider.min_cached_tokens:
            return ChatMessage(role="user", content=request.prompt)
        point = CachePoint(cache_control=CacheControl(type="ephemeral"))
        return ChatMessage(role="user", blocks=[TextBlock(text=request.prefix), point, TextBlock(text=request.suffix)])

    def _options(self, request: ContextRequest) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self._provider.takes_cache_key:
            options["prompt_cache_key"] = request.cache_key
        if self._provider.takes_json_schema and request.response_format is not None:
            options["response_format"] = request.response_format
        if self._limit.sent:
            options["max_tokens"] = self._limit.most(request)
        if self._limit.effort is not None:
            options["reasoning_effort"] = self._limit.effort
        if self._service_tier is not None:
            options |= {"service_tier": self._service_tier, "timeout": FLEX_TIMEOUT}
        return options


def _refuses_effort(error: Exception) -> bool:
    return getattr(error, "status_code", None) == 400 and "reasoning" in str(error)


def reply_of(raw: Any) -> Reply:
    """Return what a provider's own answer says, as an object of its client or as the JSON it was made of.

    OpenAI's, Anthropic's and Ollama's forms are known; of others, only the form is taken that agrees with these.
    """
    choices = _get(raw, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = _get(choice, "message") or _get(raw, "message")
    text = _get(message, "content")
    reason = _get(choice, "finish_reason") or _get(raw, "stop_reason") or _get(raw, "done_reason")
    if _get(message, "refusal"):
        reason = "refusal"
    known = _FINISHED.get(reason, reason) if isinstance(reason, str) else None
    known = None if known is None else storable_text(known)
    return Reply(scrub(text) if isinstance(text, str) else "", usage_of(_get(raw, "usage")), known)


def usage_of(usage: Any) -> Usage:
    """Return a provider's count of tokens; what it does not give is None.

    Anthropic counts what it reads from and writes into its cache beside the input; here it is a part of it.
    """
    count = _counts(usage)
    if (given := count("prompt_tokens")) is not None:
        details = _counts(_get(usage, "prompt_tokens_details"))
        return Usage(given, details("cached_tokens"), count("completion_tokens"), details("cache_write_tokens"))
    if (given := count("input_tokens")) is not None:
        read = count("cache_read_input_tokens")
        written = count("cache_creation_input_tokens")
        return Usage(given + (read or 0) + (written or 0), read, count("output_tokens"), written)
    return Usage()


def _counts(holder: Any) -> Callable[[str], int | None]:
    def count(name: str) -> int | None:
        found = _get(holder, name)
        return found if type(found) is int and 0 <= found <= _MOST_TOKENS else None

    return count


def _get(holder: Any, name: str) -> Any:
    return cast(Any, holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None))
