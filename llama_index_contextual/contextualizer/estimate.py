"""Count the calls and tokens that chunks will need, without sending or writing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual.contextualizer.base import ChunkContext, Segment, has_given_context, segments, with_context
from llama_index_contextual.contextualizer.cost import (
    AnswerLimit,
    CallForm,
    PriceTable,
    SenderKind,
    Tokens,
    count_segment,
    rounds,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ChunksPerCall, ContextRequest, keyed, plan_requests
from llama_index_contextual.contextualizer.spending import Spending
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.storage.ledger import Ledger, vector_key

SECONDS_TO_FIRST_TOKEN = 1.0
TOKENS_PER_SECOND = 70.0
"""Assumed speed of a model, stated in the estimate."""


def missing(
    contextualizer: LLMContextualizer, nodes: Sequence[BaseNode]
) -> Iterator[tuple[Segment, list[BaseNode], dict[str, str]]]:
    """Yield each segment with its chunks that need a call, and the contexts in the ledger by node id.

    Args:
        contextualizer: Contextualizer that would write the contexts.
        nodes: All chunks of one or more documents.
    """
    prompt, ledger = contextualizer.template, contextualizer.ledger
    for segment in segments(nodes, segment_size=contextualizer.segment_size):
        wanted = [chunk for chunk in segment.chunks if not has_given_context(chunk)]
        by_key = keyed(segment, wanted, prompt=prompt, model=contextualizer.model)
        contexts = {} if ledger is None else ledger.contexts(list(by_key))
        known = {chunk.node_id: contexts[key] for key in contexts for chunk in by_key[key]}
        yield segment, [chunk for chunk in wanted if chunk.node_id not in known], known


def requests_of(
    contextualizer: LLMContextualizer,
    segment: Segment,
    chunks: Sequence[BaseNode],
    chunks_per_call: ChunksPerCall | None = None,
) -> list[ContextRequest]:
    """Return the calls that a contextualizer plans for some chunks of a segment, without repeated requests.

    Args:
        contextualizer: Contextualizer that would write the contexts.
        segment: The segment.
        chunks: Chunks of the segment that need a context.
        chunks_per_call: Number of chunks per call; None uses the contextualizer's setting.
    """
    return plan_requests(
        segment,
        chunks,
        prompt=contextualizer.template,
        model=contextualizer.model,
        chunks_per_call=chunks_per_call or contextualizer.chunks_per_call,
    )


@dataclass
class ContextCount:
    """Counter of calls for contexts, for one number of chunks per call.

    Attributes:
        chunks_per_call: Number of chunks per call.
        tokens: Calls and tokens, if the first call of each segment fills the provider's cache.
        segments: Number of calls of each segment.
        most: Tokens for which money is reserved before the calls are sent.
        most_of_one: The same for the largest call.
    """

    chunks_per_call: ChunksPerCall
    tokens: Tokens = field(default_factory=Tokens)
    segments: list[int] = field(default_factory=list)
    most: Tokens = field(default_factory=Tokens)
    most_of_one: Tokens = field(default_factory=Tokens)

    def add(
        self, requests: Sequence[ContextRequest], form: CallForm, limit: AnswerLimit, context_tokens: float
    ) -> Tokens:
        """Count the calls of one segment, and return their tokens."""
        counted = count_segment(requests, form, context_tokens=context_tokens)
        self.tokens += counted
        self.segments.append(len(requests))
        for request in requests:
            given, answered = form.input_tokens(request), limit.most(request)
            self.most += Tokens(1, given, 0, answered, given)
            given = max(given, self.most_of_one.input_tokens)
            self.most_of_one = Tokens(1, given, 0, max(answered, self.most_of_one.output_tokens), given)
        return counted

    def minutes(self, concurrency: int) -> float:
        """Return the expected duration of the calls in minutes, given the number of concurrent calls."""
        if not self.tokens.calls:
            return 0.0
        seconds = SECONDS_TO_FIRST_TOKEN + self.tokens.output_tokens / self.tokens.calls / TOKENS_PER_SECOND
        return rounds(self.segments, concurrency) * seconds / 60


@dataclass
class EmbeddingCount:
    """Counter of texts to embed.

    Attributes:
        model: Name of the embedding model, or None without one.
        dimensions: Requested length of the vectors, or None for the model's default.
        texts: Number of texts.
        tokens: Number of their tokens.
    """

    model: str | None
    dimensions: int | None = None
    texts: int = 0
    tokens: int = 0

    def add(self, nodes: Sequence[BaseNode], ledger: Ledger | None, *, more: float = 0) -> None:
        """Count chunks whose vector is not in the ledger.

        Args:
            nodes: The chunks, with their contexts if these are known.
            ledger: Store of vectors already paid for, or None.
            more: Expected tokens of the context of each chunk, if the contexts are not written yet.
        """
        if self.model is None:
            return
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        keys = [vector_key(text, self.model, self.dimensions) for text in texts]
        known = ledger.vectors(keys) if ledger is not None and not more else {}
        new = [text for text, key in zip(texts, keys, strict=True) if key not in known]
        self.texts += len(new)
        self.tokens += sum(embedding_tokens(text) for text in new) + round(more * len(new))


def expect(
    spending: Spending,
    contextualizer: LLMContextualizer,
    nodes: Sequence[BaseNode],
    *,
    embed_model: str | None,
    is_batched: Callable[[ContextRequest], bool] | None = None,
) -> None:
    """Add the expected cost of the chunks of a document to the account of a run.

    Args:
        spending: Account of the run.
        contextualizer: Contextualizer that writes the contexts.
        nodes: All chunks of the document.
        embed_model: Name of the embedding model, or None without one or if it is free.
        is_batched: Returns whether the answer to a request has already arrived in a batch.
    """
    model, ledger = contextualizer.model, contextualizer.ledger
    form, context_tokens = CallForm.of(model), spending.context_tokens
    sender: SenderKind = contextualizer.service_tier or "live"
    embedding = EmbeddingCount(embed_model)
    for segment, todo, known in missing(contextualizer, nodes):
        requests = requests_of(contextualizer, segment, todo) if todo else []
        batched = [request for request in requests if is_batched is not None and is_batched(request)]
        live = [request for request in requests if request not in batched]
        spending.expect(model, count_segment(live, form, context_tokens=context_tokens), sender=sender)
        uncached = count_segment(batched, replace(form, cache=None), context_tokens=context_tokens)
        spending.expect(model, uncached, sender="batch")
        count_texts(embedding, segment, todo, known, ledger, context_tokens)
    if embed_model is not None:
        spending.expect_embeddings(embed_model, embedding.tokens)


def count_texts(
    embedding: EmbeddingCount,
    segment: Segment,
    todo: Sequence[BaseNode],
    known: Mapping[str, str],
    ledger: Ledger | None,
    context_tokens: float,
) -> None:
    """Count the texts of a segment that must be embedded.

    Args:
        embedding: Counter of texts to embed.
        segment: The segment.
        todo: Chunks of the segment that need a context.
        known: Contexts of the other chunks, by node id.
        ledger: Store of vectors already paid for, or None.
        context_tokens: Expected tokens of a context.
    """
    waiting = {node.node_id for node in todo}
    contexts = {node_id: ChunkContext(context, "llm") for node_id, context in known.items()}
    ready = [with_context(n, contexts.get(n.node_id)) for n in segment.chunks if n.node_id not in waiting]
    embedding.add(ready, ledger)
    embedding.add([with_context(node, None) for node in todo], None, more=context_tokens)


@dataclass(frozen=True, kw_only=True)
class CostOption:
    """Cost of one option for requesting contexts.

    Attributes:
        chunks_per_call: Number of chunks per call.
        sender: "live", "flex" or "batch".
        calls: Number of calls.
        input_tokens: Tokens of the prompts, including cached ones.
        cached_tokens: Tokens of the prompts read from the provider's cache; assumed to be none in a batch.
        output_tokens: Tokens of the answers.
        dollars: Price, or None if it is unknown.
        dollars_if_cached: For a batch, the price if its calls read as many tokens from the cache as live ones.
        minutes: Expected duration; None for a batch, which takes up to 24 hours.
        max_cost: Limit in dollars that should allow all calls: 1.5 times the price plus the reserve of one call; for a
            batch, at least the reserves of all of its requests.
    """

    chunks_per_call: ChunksPerCall
    sender: SenderKind
    calls: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    dollars: float | None
    dollars_if_cached: float | None = None
    minutes: float | None = None
    max_cost: float | None = None


def options_of(
    count: ContextCount, model: str, prices: PriceTable, senders: Sequence[SenderKind], concurrency: int
) -> Iterator[CostOption]:
    """Yield the cost of the counted calls for each sender."""
    for sender in senders:
        tokens = replace(count.tokens, cached_tokens=0, written_tokens=0) if sender == "batch" else count.tokens
        if_cached = _dollars(prices, model, count.tokens, sender) if sender == "batch" else None
        yield CostOption(
            chunks_per_call=count.chunks_per_call,
            sender=sender,
            calls=tokens.calls,
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            dollars=_dollars(prices, model, tokens, sender),
            dollars_if_cached=if_cached,
            minutes=None if sender == "batch" else count.minutes(concurrency),
            max_cost=_limit(count, _dollars(prices, model, tokens, sender), model, prices, sender),
        )


MARGIN = 1.5
"""Factor by which a limit exceeds the estimate, for longer answers and prefixes evicted from the cache."""


def _limit(
    count: ContextCount, dollars: float | None, model: str, prices: PriceTable, sender: SenderKind
) -> float | None:
    # The requests of a batch are all in flight at the same time.
    reserve = _dollars(prices, model, count.most if sender == "batch" else count.most_of_one, sender)
    if dollars is None or reserve is None:
        return None
    return max(reserve, MARGIN * dollars) if sender == "batch" else MARGIN * dollars + reserve


def _dollars(prices: PriceTable, model: str, tokens: Tokens, sender: SenderKind) -> float | None:
    return prices.dollars(
        model,
        input_tokens=tokens.input_tokens,
        cached_tokens=tokens.cached_tokens,
        output_tokens=tokens.output_tokens,
        written_tokens=tokens.written_tokens,
        sender=sender,
    )
