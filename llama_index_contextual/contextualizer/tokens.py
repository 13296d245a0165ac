"""Count the tokens of requests for contexts and of texts to embed, before they are sent.

A `TokenCounter` counts the tokens of calls according to a provider's rules: tokens added by the chat format, tokens
read from and written to the cache, and the maximum length of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.contextualizer.base import (
    MAX_CONTEXT_TOKENS,
    ChunkContext,
    Segment,
    StructuralContextualizer,
    with_context,
)
from llama_index_contextual.contextualizer.prompts import ContextRequest, Reply
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.embeddings.contextual import ContextualEmbedding, document_parts
from llama_index_contextual.index.ledger import Ledger, document_keys, vector_key
from llama_index_contextual.models import HIDDEN_TOKENS, provider_of
from llama_index_contextual.money.tokens import Tokens

CONTEXT_TOKENS = 100
"""Expected number of tokens in a context, without reasoning, if the ledger does not provide a mean yet."""

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
    def of(cls, model: str, llm: LLM | None = None) -> TokenCounter:
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
        form = cls(cache, user_limit=limit)
        name = model.partition(":")[2]
        if getattr(llm, "thinking_dict", None):
            return form
        if provider.plain_models is None:
            return replace(form, sends_limit=limit is None, may_reason=True)
        # For Anthropic, the limit may not have been set by the user: LlamaIndex's class has a default of 512.
        if limit is None or provider.cache != "prefix":
            form = replace(form, sends_limit=True, user_limit=None)
        if provider.is_plain(name):
            return form
        effort = getattr(llm, "reasoning_effort", None) or extra.get("reasoning_effort")
        if effort is not None:
            return replace(form, hidden_tokens=HIDDEN_TOKENS.get(effort, HIDDEN_TOKENS[None]))
        lowest = provider.lowest_effort(name)
        return replace(form, effort=lowest, hidden_tokens=HIDDEN_TOKENS[lowest])

    def input_tokens(self, request: ContextRequest) -> int:
        """Return the number of input tokens of a call as the provider counts them."""
        return _CHAT_TOKENS + request.input_tokens

    def cached_tokens(self, first: ContextRequest, other: ContextRequest) -> int:
        """Return how many tokens `other` reads from the cache.

        Assumes that `first`, a call for the same segment, has completed before `other` is sent.
        """
        if self.cache is None or first.prefix != other.prefix:
            return 0
        ends = (at for at, (a, b) in enumerate(zip(first.suffix, other.suffix, strict=False)) if a != b)
        common = first.suffix[: next(ends, len(first.suffix))] if self.cache.step > 1 else ""
        # The last common characters may belong to a token that differs between the two prompts.
        common_tokens = max(0, count_tokens(common) - 1)
        return self.cache.cached(_BEFORE_TEXT + other.prefix.tokens + common_tokens)

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

    def maximum(self, request: ContextRequest) -> Tokens:
        """Return the maximum token counts of a call, whose whole prompt is assumed to be written to the cache."""
        return Tokens.maximum(self.input_tokens(request), request.answer_tokens or self.max_tokens)

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

    The default includes reasoning tokens.

    Args:
        model: Name as in the settings.
        llm: LLM passed by the user, or None.
        ledger: Store of contexts that have already been paid for.
    """
    mean = ledger.mean_context_tokens(model)
    return mean or CONTEXT_TOKENS + TokenCounter.of(model, llm).hidden_tokens // 8


def count_segment(
    requests: Sequence[ContextRequest], form: TokenCounter, *, context_tokens: float = CONTEXT_TOKENS
) -> Tokens:
    """Return the number of calls and tokens for a segment, whose first call is answered before the others are sent.

    Args:
        requests: All calls for the segment, in the order in which they are sent.
        form: Properties of the calls.
        context_tokens: Expected number of tokens in a context.
    """
    cached = [form.cached_tokens(requests[0], request) if at else 0 for at, request in enumerate(requests)]
    return Tokens(
        calls=len(requests),
        input_tokens=sum(map(form.input_tokens, requests)),
        cached_tokens=sum(cached),
        output_tokens=len(requests) * round(context_tokens),
        written_tokens=sum(map(form.written_tokens, requests, cached)),
    )


@dataclass
class EmbeddingCount:
    """Counter of the tokens to embed.

    Attributes:
        model: Name of the embedding model, or None if there is none.
        dimensions: Requested length of the vectors, or None for the model's default.
        ledger: Store of vectors that have already been paid for, or None.
        contextual: The embedding model if it embeds the chunks of a document together, or None.
        tokens: Number of tokens in the texts to embed.
    """

    model: str | None
    dimensions: int | None
    ledger: Ledger | None
    contextual: ContextualEmbedding | None = None
    tokens: int = 0
    _document: list[tuple[BaseNode, float]] = field(default_factory=list)

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Add a document's chunks, which already contain their contexts."""
        self._document += [(node, 0.0) for node in nodes]

    def add_segment(
        self,
        segment: Segment,
        chunks: Sequence[BaseNode],
        contexts: Mapping[str, str],
        context_tokens: float,
        *,
        structural: StructuralContextualizer | None = None,
    ) -> None:
        """Add the chunks of a segment.

        Args:
            segment: The segment.
            chunks: Chunks of the segment whose contexts have not been written yet.
            contexts: Contexts from the ledger, by node id.
            context_tokens: Expected number of tokens in a context.
            structural: Contextualizer for the structural lines before the contexts, or None if there are no such lines.
        """
        if self.model is None:
            return
        missing = {chunk.node_id for chunk in chunks}
        of_llm = [chunk for chunk in segment.chunks if chunk.node_id in missing or chunk.node_id in contexts]
        written = [ChunkContext(contexts.get(chunk.node_id, ""), "llm") for chunk in of_llm]
        if structural is not None:
            written = structural.add_structure(segment, of_llm, written)
        by_id = {chunk.node_id: context for chunk, context in zip(of_llm, written, strict=True)}
        self._document += [
            (with_context(node, by_id.get(node.node_id)), context_tokens if node.node_id in missing else 0.0)
            for node in segment.chunks
        ]

    def end_document(self) -> None:
        """Count the chunks added since the previous document, except those whose vectors are in the ledger.

        If chunks are embedded together and any of their vectors is missing, all of them are counted.
        """
        document, self._document = self._document, []
        if self.model is None:
            return
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node, _ in document]
        if self.contextual is None:
            parts = [[at] for at in range(len(document))]
            keys = [[vector_key(text, self.model, self.dimensions)] for text in texts]
        else:
            parts = document_parts(self.contextual, [node for node, _ in document], texts)
            keys = [document_keys([texts[at] for at in part], self.model, self.contextual.dimensions) for part in parts]
        known = {} if self.ledger is None else self.ledger.vectors([key for of_part in keys for key in of_part])
        for part, of_part in zip(parts, keys, strict=True):
            expected = sum(document[at][1] for at in part)
            if expected or not known.keys() >= {*of_part}:
                self.tokens += sum(embedding_tokens(texts[at]) for at in part) + round(expected)
