"""What documents will cost, counted from their chunks: nothing is sent, nothing is written."""

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
"""How fast a model is taken to answer; both are assumptions, and the estimate says so."""


def missing(
    contextualizer: LLMContextualizer, nodes: Sequence[BaseNode]
) -> Iterator[tuple[Segment, list[BaseNode], dict[str, str]]]:
    """Yield each segment with its chunks that need a call, and the contexts of others in the ledger by node id.

    Args:
        contextualizer: Who would write the contexts.
        nodes: All chunks of one or more documents.
    """
    prompt, ledger = contextualizer.template, contextualizer.ledger
    for segment in segments(nodes, segment_size=contextualizer.segment_size):
        wanted = [chunk for chunk in segment.chunks if not has_given_context(chunk)]
        by_key = keyed(segment, wanted, prompt=prompt, model=contextualizer.model)
        found = {} if ledger is None else ledger.contexts(list(by_key))
        known = {chunk.node_id: found[key] for key in found for chunk in by_key[key]}
        yield segment, [chunk for chunk in wanted if chunk.node_id not in known], known


def requests_of(
    contextualizer: LLMContextualizer,
    segment: Segment,
    chunks: Sequence[BaseNode],
    chunks_per_call: ChunksPerCall | None = None,
) -> list[ContextRequest]:
    """Return the calls that a contextualizer makes first for some chunks of a segment.

    Args:
        contextualizer: Who would write the contexts.
        segment: The segment.
        chunks: Those of its chunks that need a context.
        chunks_per_call: Chunks of a call; None takes the contextualizer's.
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
    """Adds up the calls for contexts, for one number of chunks a call.

    Attributes:
        chunks_per_call: How many chunks a call asks for.
        tokens: Calls and tokens, where the first call of a segment warms the provider's cache.
        segments: Calls of each segment.
        most: Tokens for which money is put aside before the calls are sent.
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
        """Count the calls of one segment, and return them."""
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
        """Return how long the calls take, so many at a time, if a model answers as fast as it is taken to."""
        if not self.tokens.calls:
            return 0.0
        seconds = SECONDS_TO_FIRST_TOKEN + self.tokens.output_tokens / self.tokens.calls / TOKENS_PER_SECOND
        return rounds(self.segments, concurrency) * seconds / 60


@dataclass
class EmbeddingCount:
    """Adds up the texts to embed.

    Attributes:
        model: Name of the embedding model, or None without one.
        dimensions: Length of vector that it is asked for, if it is asked.
        texts: Number of texts.
        tokens: Their tokens.
    """

    model: str | None
    dimensions: int | None = None
    texts: int = 0
    tokens: int = 0

    def add(self, nodes: Sequence[BaseNode], ledger: Ledger | None, *, more: float = 0) -> None:
        """Count chunks whose vector is not in the ledger.

        Args:
            nodes: The chunks, with their contexts as far as they are known.
            ledger: Vectors that were paid for.
            more: Tokens of the context of each chunk that is still to be written.
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
    """Add what the chunks of a document will need to what a run expects.

    Args:
        spending: Of which run.
        contextualizer: Who writes the contexts.
        nodes: All chunks of the document.
        embed_model: Name of the embedding model, or None without one, or where it costs nothing.
        is_batched: Says whether the answer of a request has come in a batch.
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
        embedding: Where they are counted.
        segment: The segment.
        todo: Its chunks whose context is still to be written.
        known: The contexts of others, by node id.
        ledger: Vectors that were paid for.
        context_tokens: Tokens of a context.
    """
    waiting = {node.node_id for node in todo}
    contexts = {node_id: ChunkContext(context, "llm") for node_id, context in known.items()}
    ready = [with_context(n, contexts.get(n.node_id)) for n in segment.chunks if n.node_id not in waiting]
    embedding.add(ready, ledger)
    embedding.add([with_context(node, None) for node in todo], None, more=context_tokens)


@dataclass(frozen=True, kw_only=True)
class CostOption:
    """What contexts cost in one way of asking for them.

    Attributes:
        chunks_per_call: How many chunks a call asks for.
        sender: "live", "flex" or "batch".
        calls: Number of calls.
        input_tokens: Tokens of the prompts, the cached ones included.
        cached_tokens: Those of them from the provider's cache; none are counted on in a batch.
        output_tokens: Tokens of the answers.
        dollars: Price, or None where it is not known.
        dollars_if_cached: For a batch, the price if its calls found as many tokens in the cache as live ones.
        minutes: How long it takes; None for a batch, which takes up to 24 hours.
        max_cost: The limit in dollars with which all calls can be sent: half as much again as the price, and what is
            put aside for a call in flight; for a batch, what is put aside for all of its requests.
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
    """Yield what the counted calls cost, by sender."""
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
"""How much more than the estimate a limit leaves room for: longer answers, and prefixes that the cache has lost."""


def _limit(
    count: ContextCount, dollars: float | None, model: str, prices: PriceTable, sender: SenderKind
) -> float | None:
    # The requests of a batch are all under way at once.
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
