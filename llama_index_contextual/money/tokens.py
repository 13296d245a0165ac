"""Tokens of calls, as counted in this package and as reported by the providers."""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Tokens:
    """Number of calls and their tokens.

    Attributes:
        calls: Number of calls.
        input_tokens: Tokens of the prompts, including cached tokens.
        cached_tokens: Prompt tokens read from the provider's cache.
        output_tokens: Tokens of the answers.
        written_tokens: Prompt tokens written to the provider's cache, if the provider reports them.
        estimated_calls: Number of the calls whose tokens were counted locally, because the provider did not report
            them.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0
    estimated_calls: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(*map(operator.add, astuple(self), astuple(other)))

    @classmethod
    def maximum(cls, input_tokens: int, output_tokens: int) -> Tokens:
        """Return the tokens to reserve for a call, assuming that its whole prompt is written to the cache."""
        return cls(1, input_tokens, 0, output_tokens, written_tokens=input_tokens)

    @property
    def is_estimated(self) -> bool:
        """Whether some tokens were counted locally, because the provider did not report them."""
        return self.estimated_calls > 0

    @property
    def cache_hit_rate(self) -> float:
        """Fraction of the input tokens that were read from the cache."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


@dataclass(frozen=True)
class Usage:
    """Tokens of a call as counted by the provider; None for counts that the provider does not report.

    Attributes:
        input_tokens: Tokens of the prompt, including cached tokens.
        cached_tokens: Prompt tokens read from the provider's cache.
        output_tokens: Tokens of the answer.
        written_tokens: Prompt tokens written to the provider's cache.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    written_tokens: int | None = None

    def updated(self, raw: Any) -> Usage:
        """Return the counts after a piece of a stream in the provider's format, whose counts replace earlier ones."""
        counts = self
        for holder in (raw, field_of(raw, "message")):
            reported = field_of(holder, "usage")
            usage = usage_of(reported)
            output = usage.output_tokens
            if output is None:
                output = _count(reported, "output_tokens")
            counts = Usage(
                counts.input_tokens if usage.input_tokens is None else usage.input_tokens,
                usage.cached_tokens or counts.cached_tokens,
                counts.output_tokens if output is None else output,
                usage.written_tokens or counts.written_tokens,
            )
        return counts


@dataclass
class EmbeddingUsage:
    """Tokens of an embedding request as counted by the provider.

    Attributes:
        calls: Number of calls that were sent, if the model's client reports them.
        counts: Token count of each reply, or None if the provider did not report it.
    """

    calls: int = 0
    counts: list[int | None] = field(default_factory=list)

    @property
    def tokens(self) -> int | None:
        """Total number of tokens, or None unless the provider reported it for every reply."""
        return self.reported if self.counts and None not in self.counts else None

    @property
    def reported(self) -> int:
        """Total of the counts that the provider reported."""
        return sum(count or 0 for count in self.counts)

    @property
    def is_answered(self) -> bool:
        """Whether a reply was reported for every call."""
        return bool(self.counts) and len(self.counts) >= self.calls


MAX_REPORTED_TOKENS = 2**31
"""Upper limit for a plausible token count in a provider's reply."""


def field_of(holder: Any, *path: str) -> Any:
    """Return a field of a provider's reply, which is an object or parsed JSON, or None if there is no such field."""
    for name in path:
        holder = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    return holder


def reported_tokens(count: object) -> int | None:
    """Return a token count from a provider's reply as an integer, or None if it is not a plausible count.

    Some servers send numbers as strings or with a fraction.

    Example:
        >>> reported_tokens(12), reported_tokens("12"), reported_tokens(12.0)
        (12, 12, 12)
        >>> reported_tokens(-1), reported_tokens(True), reported_tokens("many"), reported_tokens(10**30)
        (None, None, None, None)
    """
    if isinstance(count, str) and count.isdecimal() and len(count) < len(str(MAX_REPORTED_TOKENS)):
        count = int(count)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    return count if type(count) is int and 0 <= count <= MAX_REPORTED_TOKENS else None


def usage_of(usage: Any) -> Usage:
    """Return a provider's token counts; counts that are missing or implausible are None.

    Anthropic's input token count excludes cache reads and writes; the count returned here includes them. A prompt
    without tokens is implausible, and no more tokens can be cached than the prompt has.
    """
    if prompt := _count(usage, "prompt_tokens"):
        details = field_of(usage, "prompt_tokens_details")
        cached, written = _count(details, "cached_tokens"), _count(details, "cache_write_tokens")
        output = _count(usage, "completion_tokens")
    elif (uncached := _count(usage, "input_tokens")) is not None:
        cached, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        prompt, output = uncached + (cached or 0) + (written or 0), _count(usage, "output_tokens")
    if not prompt:
        return Usage()
    cached = None if cached is None else min(cached, prompt)
    written = None if written is None else min(written, prompt - (cached or 0))
    return Usage(prompt, cached, output, written)


def _count(holder: Any, name: str) -> int | None:
    return reported_tokens(field_of(holder, name))
