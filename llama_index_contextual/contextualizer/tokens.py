"""Count the tokens of requests for contexts before they are sent.

A `TokenCounter` counts the tokens of calls according to a provider's rules: tokens added by the chat format, tokens
read from and written to the cache, and the maximum length of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_index.core.llms import LLM

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.contextualizer.base import MAX_CONTEXT_TOKENS, MAX_LINE_TOKENS
from llama_index_contextual.contextualizer.prompts import ContextRequest, Reply
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.models import HIDDEN_TOKENS, provider_of
from llama_index_contextual.money.tokens import Tokens

CONTEXT_TOKENS = 100
"""Expected number of tokens in a context, without reasoning, if the ledger does not provide a mean yet."""
LINE_TOKENS = 40
"""Expected number of tokens in a line of a context in another language."""

# According to OpenAI: 3 tokens per message, 3 before the answer, and 1 for the name of the role.
_BEFORE_TEXT = 3
_CHAT_TOKENS = 7


# For another answer after one that reached its limit; the last one for a model that may reason in the text.
_MORE = 4
_SPACIOUS = 2_000
_ROOM_TO_REASON = 8_000


@dataclass(frozen=True)
class CacheRules:
    """Rules for a provider's prompt cache.

    Attributes:
        minimum: Number of tokens in the shortest prefix that is cached.
        step: Increment of the length of a cached prefix, in tokens.
    """

    minimum: int
    step: int = 1

    def cached(self, prefix: int) -> int:
        """Return how many tokens come from the cache if the common prefix has `prefix` tokens.

        Example:
            >>> CacheRules(1024, 128).cached(1_300), CacheRules(1024, 128).cached(1_023)
            (1280, 0)
        """
        if prefix < self.minimum:
            return 0
        return self.minimum + (prefix - self.minimum) // self.step * self.step


@dataclass(frozen=True)
class TokenCounter:
    """Properties of calls to a model that determine their token counts.

    Attributes:
        cache: Rules for the provider's cache, or None if no cache affects the cost.
        sends_limit: Whether the maximum length of the answer is sent.
        effort: Value of `reasoning_effort` that is sent, or None.
        hidden_tokens: Maximum number of reasoning tokens in an answer, which are charged but not visible.
        user_limit: Maximum length of an answer set on the LLM by the user, or None.
        may_reason: Whether the model may reason in the text of its answers, as many local models do.
    """

    cache: CacheRules | None = None
    sends_limit: bool = False
    effort: str | None = None
    hidden_tokens: int = 0
    user_limit: int | None = None
    may_reason: bool = False

    @classmethod
    def for_model(cls, model: str, llm: LLM | None = None) -> TokenCounter:
        """Determine the properties of calls to a model.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1".
            llm: LLM passed by the user, or None; values set on the LLM are never overridden.
        """
        provider = provider_of(model)
        extra: dict[str, Any] = getattr(llm, "additional_kwargs", None) or {}
        names = ("max_completion_tokens", "max_tokens", "num_predict")
        limit = next((extra[name] for name in names if extra.get(name)), getattr(llm, "max_tokens", None))
        limit = limit if isinstance(limit, int) and limit > 0 else None
        if provider is None:
            return cls(user_limit=limit)
        step = {"prefix": 128, "point": 1}.get(provider.cache or "")
        cache = None if step is None else CacheRules(provider.min_cached_tokens, step)
        counter = cls(cache, user_limit=limit)
        name = model.partition(":")[2]
        if getattr(llm, "thinking_dict", None):
            return counter
        if provider.plain_models is None:
            return replace(counter, sends_limit=limit is None, may_reason=True)
        # For Anthropic, the limit may not have been set by the user: LlamaIndex's class has a default of 512.
        if limit is None or provider.cache != "prefix":
            counter = replace(counter, sends_limit=True, user_limit=None)
        if provider.is_plain(name):
            return counter
        effort = getattr(llm, "reasoning_effort", None) or extra.get("reasoning_effort")
        if effort is not None:
            return replace(counter, hidden_tokens=HIDDEN_TOKENS.get(effort, HIDDEN_TOKENS[None]))
        lowest = provider.lowest_effort(name)
        return replace(counter, effort=lowest, hidden_tokens=HIDDEN_TOKENS[lowest])

    def input_tokens(self, request: ContextRequest) -> int:
        """Return the number of input tokens of a call as the provider counts them."""
        return _CHAT_TOKENS + request.input_tokens

    def cached_tokens(self, first: ContextRequest, request: ContextRequest) -> int:
        """Return how many tokens `request` reads from the cache.

        Assumes that `first`, a call for the same segment, has completed before `request` is sent.
        """
        if self.cache is None or first.prefix != request.prefix:
            return 0
        ends = (at for at, (a, b) in enumerate(zip(first.suffix, request.suffix, strict=False)) if a != b)
        common = first.suffix[: next(ends, len(first.suffix))] if self.cache.step > 1 else ""
        # The last common characters may belong to a token that differs between the two prompts.
        common_tokens = max(0, count_tokens(common) - 1)
        return self.cache.cached(_BEFORE_TEXT + request.prefix.tokens + common_tokens)

    def written_tokens(self, request: ContextRequest, cached: int) -> int:
        """Return how many tokens a call writes to the cache.

        Depending on the provider, the prompt is cached completely or up to the cache point.

        Args:
            request: The call.
            cached: Number of tokens that the call reads from the cache.
        """
        if self.cache is None:
            return 0
        point = _BEFORE_TEXT + request.prefix.tokens
        length = point if self.cache.step == 1 else self.input_tokens(request)
        return max(0, self.cache.cached(length) - cached)

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens in an answer.

        This is the user's limit or, if there is none, twice the maximum length of a context plus the reasoning tokens.
        """
        return 2 * MAX_CONTEXT_TOKENS + self.hidden_tokens if self.user_limit is None else self.user_limit

    def limit(self, request: ContextRequest) -> int:
        """Return the maximum number of tokens in the answer to a request, with room for lines in other languages."""
        lines = 2 * MAX_LINE_TOKENS * len(request.line_languages) if self.user_limit is None else 0
        return request.answer_tokens or self.max_tokens + lines

    def maximum(self, request: ContextRequest) -> Tokens:
        """Return the maximum token counts of a call, whose whole prompt is assumed to be written to the cache."""
        return Tokens.maximum(self.input_tokens(request), self.limit(request))

    @property
    def more_tokens(self) -> int | None:
        """Maximum number of tokens for another answer after one that was too short; None if the user sets the limit."""
        spacious = _ROOM_TO_REASON if self.may_reason else _SPACIOUS
        return max(_MORE * self.max_tokens, spacious) if self.user_limit is None else None

    def tokens_of(self, request: ContextRequest, reply: Reply) -> Tokens:
        """Return the token counts reported for an answered call.

        Missing counts are computed locally, assuming that nothing was read from the cache.
        """
        usage, output = reply.usage, reply.output_tokens
        if output is None:
            output = count_tokens(reply.text) + self.hidden_tokens
        if usage.input_tokens is None:
            return replace(Tokens.maximum(self.input_tokens(request), output), estimated_calls=1)
        cached, written = usage.cached_tokens or 0, usage.written_tokens or 0
        return Tokens(1, usage.input_tokens, cached, output, written, estimated_calls=int(not reply.is_counted))


def expected_context_tokens(model: str, llm: LLM | None, ledger: Ledger) -> float:
    """Return the expected number of tokens per context: the mean in the ledger or, if there is none, a default.

    The number does not include lines in other languages. The default includes reasoning tokens.

    Args:
        model: Name as in the settings.
        llm: LLM passed by the user, or None.
        ledger: Store of contexts that have already been paid for.
    """
    mean = ledger.mean_context_tokens(model, line_tokens=LINE_TOKENS)
    return mean or CONTEXT_TOKENS + TokenCounter.for_model(model, llm).hidden_tokens // 8


def expected_output(request: ContextRequest, context_tokens: float) -> int:
    """Return the expected number of output tokens of a call.

    Args:
        request: The call.
        context_tokens: Expected number of tokens in a context, without lines in other languages.
    """
    return round(context_tokens) + LINE_TOKENS * len(request.line_languages)


def count_segment(
    requests: Sequence[ContextRequest], counter: TokenCounter, *, context_tokens: float = CONTEXT_TOKENS
) -> Tokens:
    """Return the number of calls and tokens for a segment, whose first call is answered before the others are sent.

    Args:
        requests: All calls for the segment, in the order in which they are sent.
        counter: Counter for the model.
        context_tokens: Expected number of tokens in a context, without lines in other languages.
    """
    cached = [counter.cached_tokens(requests[0], request) if at else 0 for at, request in enumerate(requests)]
    return Tokens(
        calls=len(requests),
        input_tokens=sum(map(counter.input_tokens, requests)),
        cached_tokens=sum(cached),
        output_tokens=sum(expected_output(request, context_tokens) for request in requests),
        written_tokens=sum(map(counter.written_tokens, requests, cached)),
    )
