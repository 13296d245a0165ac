"""Tokens of calls and embeddings, and their prices.

Prices come from the table in the installed package `genai-prices`, without network access; the settings may override
them. The table contains no discounts: according to their price pages, OpenAI and Anthropic charge half for batches, and
OpenAI half for `service_tier="flex"`.

Token counts follow the rules of the providers: tokens added by the chat format, tokens read from and written to the
cache, and the maximum length of an answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Literal

from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import TokenPrice
from llama_index_contextual.contextualizer.base import MAX_CONTEXT_TOKENS, ChunkContext, Segment, with_context
from llama_index_contextual.contextualizer.prompts import RESPONSE_FORMAT, ContextRequest
from llama_index_contextual.contextualizer.structural import StructuralContextualizer
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.embeddings.contextual import ContextualEmbedding, document_parts
from llama_index_contextual.index.ledger import Ledger, document_keys, vector_key
from llama_index_contextual.models import HIDDEN_TOKENS, Reasoning, is_in_process, provider_of


@dataclass(frozen=True)
class Tokens:
    """Number of calls and their tokens.

    Attributes:
        calls: Number of calls.
        input_tokens: Tokens of the prompts, including cached ones.
        cached_tokens: Tokens of the prompts read from the provider's cache.
        output_tokens: Tokens of the answers.
        written_tokens: Tokens of the prompts written to the provider's cache, if it reports them.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    written_tokens: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            self.written_tokens + other.written_tokens,
        )

    @property
    def cache_hit_rate(self) -> float:
        """Share of the input tokens that came from the cache."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else 0.0


# ---- Prices ----------------------------------------------------------------------------------------------------------

SenderKind = Literal["live", "flex", "batch"]

FACTORS: Mapping[SenderKind, float] = {"live": 1.0, "flex": 0.5, "batch": 0.5}
"""Price of a call as a fraction of the list price."""

FREE = TokenPrice(input=0.0, cached=0.0, output=0.0)

_PACKAGE = "genai-prices"
_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "voyage": "voyageai"}
_MILLION = 1_000_000
# Small enough for the lowest tier: some models charge more for very long prompts.
_SAMPLE = 1_000


@dataclass(frozen=True)
class PriceTable:
    """Prices of models.

    Args:
        overrides: Prices by name of the model, as in `ProjectConfig.prices`; they take precedence over the table.

    Example:
        >>> tokens = Tokens(input_tokens=9_000, cached_tokens=8_000, output_tokens=100)
        >>> round(PriceTable().dollars("openai:gpt-4.1", tokens), 4)
        0.0068
        >>> PriceTable().dollars("openai:no-such-model", tokens) is None
        True
    """

    overrides: Mapping[str, TokenPrice] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Name and release of the table, with the models whose price is set by the settings."""
        own = f" and custom prices for {', '.join(sorted(self.overrides))}" if self.overrides else ""
        return f"{_PACKAGE} {version(_PACKAGE)}{own}"

    def price(self, model: str) -> TokenPrice | None:
        """Return the list price of a model, or None if it is unknown.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1" or "local".
        """
        if model in self.overrides:
            return self.overrides[model]
        return FREE if is_in_process(model) else _listed(model)

    def dollars(self, model: str, tokens: Tokens, *, sender: SenderKind = "live") -> float | None:
        """Return the price of tokens in dollars, or None if the price of the model is unknown.

        Args:
            model: Name as in the settings.
            tokens: Tokens of calls, or of texts to embed.
            sender: How the calls are sent, which determines the discount.
        """
        price = self.price(model)
        if price is None:
            return None
        cached = price.input if price.cached is None else price.cached
        price_of_writing = price.input if price.written is None else price.written
        uncached = tokens.input_tokens - tokens.cached_tokens - tokens.written_tokens
        total = uncached * price.input + tokens.output_tokens * price.output
        total += tokens.cached_tokens * cached + tokens.written_tokens * price_of_writing
        return FACTORS[sender] * total / _MILLION


def money(dollars: float | None) -> str:
    """Format an amount: with cents, or with two significant digits below ten cents.

    Example:
        >>> money(1234.5), money(0.0123), money(0.0), money(None)
        ('$1,234.50', '$0.012', '$0.00', 'an unknown price')
    """
    if dollars is None:
        return "an unknown price"
    if dollars >= 0.1 or not dollars:
        return f"${dollars:,.2f}"
    return f"${float(f'{dollars:.2g}'):.10f}".rstrip("0")


MARGIN = 1.5
"""Factor by which a limit exceeds the estimate.

It leaves room for longer answers, prefixes evicted from the cache, and contexts that are requested once more because
they are very short.
"""


def round_up(dollars: float) -> float:
    """Round an amount up to the digits that `money` shows.

    Example:
        >>> round_up(0.01231), round_up(1.231)
        (0.013, 1.24)
    """
    digits = 2 if dollars >= 0.1 or not dollars else 1 - math.floor(math.log10(dollars))
    scale = float(10**digits)
    return math.ceil(round(dollars * scale, 6)) / scale


@lru_cache(maxsize=64)
def _listed(model: str) -> TokenPrice | None:
    provider, _, name = model.partition(":")
    if provider not in _PROVIDERS or not name:
        return None
    from genai_prices import Usage, calc_price

    def per_million(**tokens: int) -> float:
        price = calc_price(Usage(**tokens), model_ref=name, provider_id=_PROVIDERS[provider])
        return float(price.total_price) * _MILLION / _SAMPLE

    try:
        list_price = per_million(input_tokens=_SAMPLE)
        written = per_million(input_tokens=_SAMPLE, cache_write_tokens=_SAMPLE)
        return TokenPrice(
            input=list_price,
            cached=per_million(input_tokens=_SAMPLE, cache_read_tokens=_SAMPLE),
            output=per_million(output_tokens=_SAMPLE),
            written=None if written == list_price else written,
        )
    except LookupError:
        return None


# ---- Calls for contexts ----------------------------------------------------------------------------------------------

CONTEXT_TOKENS = 100
"""Expected tokens of a context, without reasoning, until the ledger has a mean."""

# As documented by OpenAI: 3 tokens per message and 3 before the answer, plus the name of the role.
_BEFORE_TEXT = 3
_CHAT_TOKENS = 7
_JSON_TOKENS = 5
_JSON_TOKENS_PER_CONTEXT = 11


@dataclass(frozen=True)
class CacheRules:
    """Rules by which a provider reads tokens from its cache.

    Attributes:
        minimum: Tokens of the shortest prefix that is cached.
        step: Number of tokens by which longer prefixes grow.
    """

    minimum: int
    step: int = 1

    def cached(self, prefix: int) -> int:
        """Return how many tokens of a prefix of this length come from the cache.

        Example:
            >>> CacheRules(1024, 128).cached(1_300), CacheRules(1024, 128).cached(1_023)
            (1280, 0)
        """
        if prefix < self.minimum:
            return 0
        return self.minimum + (prefix - self.minimum) // self.step * self.step


@dataclass(frozen=True)
class CallForm:
    """Properties of calls to a model that determine their token counts.

    Attributes:
        cache: Rules of the provider's cache, or None if it has none that affects the bill.
        sends_schema: Whether the JSON schema for several contexts is sent, which counts as input.
    """

    cache: CacheRules | None = None
    sends_schema: bool = False

    @classmethod
    def of(cls, model: str) -> CallForm:
        """Return the form of calls to a model.

        Args:
            model: Name as in the settings, such as "openai:gpt-4.1".
        """
        provider = provider_of(model)
        if provider is None or provider.cache not in ("prefix", "point"):
            return cls(None, provider is not None and provider.takes_json_schema)
        step = 128 if provider.cache == "prefix" else 1
        return cls(CacheRules(provider.min_cached_tokens, step), provider.takes_json_schema)

    def overhead(self, request: ContextRequest) -> int:
        """Return the input tokens of a call in addition to its text."""
        return _CHAT_TOKENS + (_schema_tokens() if self.sends_schema and request.response_format else 0)

    def input_tokens(self, request: ContextRequest) -> int:
        """Return the input tokens of a call as a provider counts them."""
        return self.overhead(request) + request.input_tokens

    def cached_tokens(self, first: ContextRequest, other: ContextRequest) -> int:
        """Return the tokens that a call reads from the cache after another call of its segment was answered."""
        if self.cache is None or first.prefix != other.prefix:
            return 0
        ends = (at for at, (a, b) in enumerate(zip(first.suffix, other.suffix, strict=False)) if a != b)
        common = first.suffix[: next(ends, len(first.suffix))] if self.cache.step > 1 else ""
        # The last common characters may belong to a token that continues differently.
        common_tokens = max(0, count_tokens(common) - 1)
        return self.cache.cached(self._cache_point(other) + common_tokens)

    def written_tokens(self, request: ContextRequest, cached: int) -> int:
        """Return the tokens that a call writes to the cache: up to the cache point, or all, depending on the provider.

        Args:
            request: The call.
            cached: Tokens that it reads from the cache.
        """
        if self.cache is None:
            return 0
        length = self._cache_point(request) if self.cache.step == 1 else self.input_tokens(request)
        return max(0, self.cache.cached(length) - cached)

    def _cache_point(self, request: ContextRequest) -> int:
        return self.overhead(request) - _CHAT_TOKENS + _BEFORE_TEXT + request.prefix_tokens


def output_tokens(request: ContextRequest, context_tokens: float = CONTEXT_TOKENS) -> int:
    """Return the tokens of the answer to a call, given the tokens of a context."""
    tokens = len(request.keys) * context_tokens
    if request.ids:
        tokens += _JSON_TOKENS + _JSON_TOKENS_PER_CONTEXT * len(request.keys)
    return round(tokens)


@dataclass(frozen=True)
class AnswerLimit:
    """Maximum number of tokens of an answer, sent with each call or set on the LLM by the user.

    Attributes:
        is_sent: Whether a limit is sent with each call.
        effort: Value of `reasoning_effort` that is sent, or None.
        hidden_tokens: Maximum number of reasoning tokens in an answer, which are charged but not visible.
        user_limit: Limit that the user has set on the LLM, or None.
    """

    is_sent: bool = False
    effort: str | None = None
    hidden_tokens: int = 0
    user_limit: int | None = None

    @classmethod
    def of(cls, model: str, llm: LLM | None = None) -> AnswerLimit:
        """Return the limit for the answers of a model.

        Args:
            model: Name as in the settings.
            llm: LLM passed by the user, or None; values set on it are never overridden.
        """
        provider = provider_of(model)
        reasoning = None if provider is None else provider.reasoning(model.partition(":")[2])
        extra: dict[str, Any] = getattr(llm, "additional_kwargs", None) or {}
        limit = extra.get("max_completion_tokens") or extra.get("max_tokens") or getattr(llm, "max_tokens", None)
        limit = limit if isinstance(limit, int) and limit > 0 else None
        if provider is None or reasoning is None or getattr(llm, "thinking_dict", None):
            return cls(user_limit=limit)
        effort = getattr(llm, "reasoning_effort", None) or extra.get("reasoning_effort")
        if effort is not None and reasoning != Reasoning(None, 0):
            reasoning = Reasoning(None, HIDDEN_TOKENS.get(effort, HIDDEN_TOKENS[None]))
        # For Anthropic the value may not be the user's: LlamaIndex's class has a default limit of 512.
        if limit is not None and provider.cache == "prefix":
            return cls(effort=reasoning.effort, hidden_tokens=reasoning.hidden_tokens, user_limit=limit)
        return cls(is_sent=True, effort=reasoning.effort, hidden_tokens=reasoning.hidden_tokens)

    def max_tokens(self, request: ContextRequest) -> int:
        """Return the maximum number of tokens of an answer: twice the longest contexts, and the reasoning."""
        if self.user_limit is not None:
            return self.user_limit
        return output_tokens(request, 2 * MAX_CONTEXT_TOKENS) + self.hidden_tokens * (1 + len(request.keys) // 8)


def expected_context_tokens(model: str, llm: LLM | None, ledger: Ledger) -> float:
    """Return the expected tokens of a context: the mean in the ledger, or a default that includes the reasoning.

    Args:
        model: Name as in the settings.
        llm: LLM passed by the user, or None.
        ledger: Store of contexts already paid for.
    """
    mean = ledger.mean_context_tokens(model)
    return mean or CONTEXT_TOKENS + AnswerLimit.of(model, llm).hidden_tokens // 8


def count_segment(
    requests: Sequence[ContextRequest], form: CallForm, *, context_tokens: float = CONTEXT_TOKENS
) -> Tokens:
    """Return the calls and tokens of a segment whose first call is answered before the others are sent.

    Args:
        requests: All calls of the segment, in the order of sending.
        form: Properties of the calls.
        context_tokens: Expected tokens of a context.
    """
    cached = [form.cached_tokens(requests[0], request) if at else 0 for at, request in enumerate(requests)]
    return Tokens(
        calls=len(requests),
        input_tokens=sum(map(form.input_tokens, requests)),
        cached_tokens=sum(cached),
        output_tokens=sum(output_tokens(request, context_tokens) for request in requests),
        written_tokens=sum(map(form.written_tokens, requests, cached)),
    )


def rounds(calls_by_segment: Sequence[int], concurrency: int) -> int:
    """Return the length of the shortest schedule in which the first call of each segment is sent alone.

    Segments with the most calls start first. The length is counted in calls, which all take the same time.

    Example:
        >>> rounds([11] * 40, 16)  # 440 calls in 16 slots, none of them idle after the first round
        28
    """
    waiting = sorted((calls for calls in calls_by_segment if calls), reverse=True)
    ready = done = 0
    while waiting or ready:
        done += 1
        # Other calls wait for the first call of their segment, so first calls take precedence.
        started, waiting = waiting[:concurrency], waiting[concurrency:]
        ready = max(0, ready - (concurrency - len(started))) + sum(started) - len(started)
    return done


@lru_cache(maxsize=1)
def _schema_tokens() -> int:
    return count_tokens(json.dumps(RESPONSE_FORMAT["json_schema"]))


# ---- Embeddings ------------------------------------------------------------------------------------------------------


@dataclass
class EmbeddingCount:
    """Counter of the tokens to embed.

    Attributes:
        model: Name of the embedding model, or None without one.
        dimensions: Requested length of the vectors, or None for the model's default.
        ledger: Store of vectors already paid for, or None.
        contextual: The model if it embeds the chunks of a document together, which are then counted by
            `end_document`; else None.
        tokens: Tokens of the texts to embed.
    """

    model: str | None
    dimensions: int | None
    ledger: Ledger | None
    contextual: ContextualEmbedding | None = None
    tokens: int = 0
    _document: list[tuple[BaseNode, float]] = field(default_factory=list)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Count chunks with their contexts, except those whose vector is in the ledger."""
        if self.model is None:
            return
        if self.contextual is not None:
            self._document += [(node, 0.0) for node in nodes]
            return
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        keys = [vector_key(text, self.model, self.dimensions) for text in texts]
        known = {} if self.ledger is None else self.ledger.vectors(keys)
        self.tokens += sum(embedding_tokens(text) for text, key in zip(texts, keys, strict=True) if key not in known)

    def add_segment(
        self,
        segment: Segment,
        chunks: Sequence[BaseNode],
        contexts: Mapping[str, str],
        context_tokens: float,
        *,
        structural: StructuralContextualizer | None = None,
    ) -> None:
        """Count the chunks of a segment.

        Args:
            segment: The segment.
            chunks: Chunks of the segment whose contexts are not written yet.
            contexts: Contexts from the ledger, by node id.
            context_tokens: Expected tokens of a context.
            structural: Writes the structural lines before the contexts; None for contexts without them.
        """
        if self.model is None:
            return
        missing = {chunk.node_id for chunk in chunks}
        of_llm = [chunk for chunk in segment.chunks if chunk.node_id in missing or chunk.node_id in contexts]
        written = [ChunkContext(contexts.get(chunk.node_id, ""), "llm") for chunk in of_llm]
        if structural is not None:
            written = structural.below(segment, of_llm, written)
        by_id = {chunk.node_id: context for chunk, context in zip(of_llm, written, strict=True)}
        if self.contextual is not None:
            self._document += [
                (with_context(node, by_id.get(node.node_id)), context_tokens if node.node_id in missing else 0.0)
                for node in segment.chunks
            ]
            return
        self.add([with_context(n, by_id.get(n.node_id)) for n in segment.chunks if n.node_id not in missing])
        expected = (with_context(chunk, by_id[chunk.node_id]) for chunk in chunks)
        texts = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in expected)
        self.tokens += sum(map(embedding_tokens, texts)) + round(context_tokens * len(chunks))

    def end_document(self) -> None:
        """Count the chunks added since the last call, which belong to one document, for a contextual model.

        All chunks that are embedded together are counted unless all of their vectors are in the ledger.
        """
        if self.contextual is None or self.model is None:
            return
        nodes, extra = [node for node, _ in self._document], [tokens for _, tokens in self._document]
        self._document = []
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        for part in document_parts(self.contextual, nodes, texts):
            keys = document_keys([texts[at] for at in part], self.model, self.contextual.dimensions)
            known = {} if self.ledger is None or any(extra[at] for at in part) else self.ledger.vectors(keys)
            if len(known) < len(keys):
                self.tokens += sum(embedding_tokens(texts[at]) for at in part) + round(sum(extra[at] for at in part))
