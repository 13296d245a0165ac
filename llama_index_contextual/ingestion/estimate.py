"""Estimate the cost of an ingestion and compare options for requesting contexts, without sending anything.

`estimate` reads and chunks the documents as an ingestion would. For each number of chunks per call, a `CallCount`
counts the calls for contexts that are not in the ledger. A `CostOption` holds their cost for one way of sending them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig, TokenPrice
from llama_index_contextual.contextualizer.base import with_context
from llama_index_contextual.contextualizer.cost import (
    CONTEXT_TOKENS,
    MARGIN,
    CallForm,
    EmbeddingCount,
    PriceTable,
    SenderKind,
    Tokens,
    count_segment,
    expected_context_tokens,
    money,
    round_up,
    rounds,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ChunksPerCall, ContextRequest
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.pipeline import Executor, Stages
from llama_index_contextual.ingestion.plan import IngestInput, RunOptions, plan_run
from llama_index_contextual.ingestion.report import IngestProgress, ProgressCounter
from llama_index_contextual.models import provider_of
from llama_index_contextual.readers import SkippedFile

COMPARED: tuple[ChunksPerCall, ...] = (1, 4, "all")
"""Numbers of chunks per call that every estimate compares."""

SECONDS_TO_FIRST_TOKEN = 1.0
TOKENS_PER_SECOND = 70.0
"""Assumed speed of a model, stated in the estimate."""


@dataclass(frozen=True, kw_only=True)
class CostOption:
    """Cost of one option for requesting contexts.

    Attributes:
        chunks_per_call: Number of chunks per call.
        sender: "live", "flex" or "batch".
        calls: Number of calls.
        input_tokens: Tokens of the prompts, including cached ones.
        cached_tokens: Prompt tokens read from the provider's cache; assumed to be none in a batch.
        output_tokens: Tokens of the answers.
        dollars: Price, or None if it is unknown.
        dollars_if_cached: For a batch, the price if its calls read as many tokens from the cache as live calls do.
        minutes: Expected duration; None for a batch, which takes up to 24 hours.
        max_cost: Limit in dollars that should be sufficient for all calls: 1.5 times the price plus the reserve for one
            call; for a batch, at least the reserves for all of its requests.
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


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Cost estimate of an ingestion, made without sending anything.

    Attributes:
        model: Name of the LLM that writes contexts, or None if there is none.
        embed_model: Name of the embedding model, or None without a semantic index.
        documents: Number of documents that need work.
        chunks: Number of their chunks.
        tokens: Tokens of the chunks, with overlaps counted twice.
        known_contexts: Number of chunks whose context is already in the ledger.
        options: Cost of the missing contexts for each number of chunks per call and each way of sending.
        chosen: Option selected by the settings, or None if no contexts are missing.
        embedding_tokens: Tokens of the texts to embed.
        embedding_dollars: Price of the embeddings, or None if it is unknown.
        prices: Name and release of the price table.
        assumptions: Assumptions behind the figures, as sentences.
        skipped: Files that will not be read, each with its reason.
    """

    model: str | None
    embed_model: str | None
    documents: int
    chunks: int
    tokens: int
    known_contexts: int
    options: Sequence[CostOption]
    chosen: CostOption | None
    embedding_tokens: int
    embedding_dollars: float | None
    prices: str
    assumptions: Sequence[str]
    skipped: Sequence[SkippedFile] = ()

    @property
    def dollars(self) -> float | None:
        """Total cost with the current settings, or None if a price is unknown."""
        contexts = 0.0 if self.chosen is None else self.chosen.dollars
        return None if contexts is None or self.embedding_dollars is None else contexts + self.embedding_dollars

    @property
    def max_cost(self) -> float | None:
        """Limit that should be sufficient for `ingest`, or None if a price is unknown.

        It leaves room for contexts and answers that are longer than expected, and for the reserves of calls in flight.
        """
        contexts = 0.0 if self.chosen is None else self.chosen.max_cost
        if contexts is None or self.embedding_dollars is None:
            return None
        return round_up(contexts + MARGIN * self.embedding_dollars)

    def in_short(self) -> str:
        """Return a line with the number of calls for contexts and the cost of the run."""
        calls = pluralize(0 if self.chosen is None else self.chosen.calls, "call")
        documents, chunks = pluralize(self.documents, "document"), pluralize(self.chunks, "chunk")
        return f"{documents}, {chunks}: {calls} for contexts, {money(self.dollars)}"

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "dollars": self.dollars, "max_cost": self.max_cost}

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


@dataclass
class CallCount:
    """Counter of calls for contexts, for one number of chunks per call.

    Attributes:
        chunks_per_call: Number of chunks per call.
        tokens: Calls and tokens, if the first call of each segment fills the provider's cache.
        calls_by_segment: Number of calls for each segment.
        reserve: Tokens for which money is reserved before the calls are sent.
        largest_reserve: The same for a single call: the longest prompt and the longest answer.
    """

    chunks_per_call: ChunksPerCall
    tokens: Tokens = field(default_factory=Tokens)
    calls_by_segment: list[int] = field(default_factory=list)
    reserve: Tokens = field(default_factory=Tokens)
    largest_reserve: Tokens = field(default_factory=Tokens)

    def add(self, requests: Sequence[ContextRequest], form: CallForm, context_tokens: float) -> None:
        """Count the calls for one segment."""
        self.tokens += count_segment(requests, form, context_tokens=context_tokens)
        self.calls_by_segment.append(len(requests))
        for request in requests:
            maximum, largest = form.maximum(request), self.largest_reserve
            self.reserve += maximum
            self.largest_reserve = Tokens.maximum(
                max(maximum.input_tokens, largest.input_tokens), max(maximum.output_tokens, largest.output_tokens)
            )

    def minutes(self, concurrency: int) -> float:
        """Return the expected duration of the calls in minutes, given the number of concurrent calls."""
        seconds = SECONDS_TO_FIRST_TOKEN + self.tokens.output_tokens / self.tokens.calls / TOKENS_PER_SECOND
        return rounds(self.calls_by_segment, concurrency) * seconds / 60

    def option(self, sender: SenderKind, model: str, prices: PriceTable, concurrency: int) -> CostOption:
        """Return the cost of the calls for one way of sending them."""
        is_batch = sender == "batch"
        tokens = replace(self.tokens, cached_tokens=0, written_tokens=0) if is_batch else self.tokens
        dollars = prices.dollars(model, tokens, sender=sender)
        cached = prices.dollars(model, self.tokens, sender=sender) if is_batch else None
        if cached is not None and dollars is not None:  # few tokens are read from the cache, and writing costs extra
            dollars = max(cached, dollars)
        # All requests in a batch are in flight at the same time.
        reserve = prices.dollars(model, self.reserve if is_batch else self.largest_reserve, sender=sender)
        max_cost = None
        if dollars is not None and reserve is not None:
            max_cost = max(reserve, MARGIN * dollars) if is_batch else MARGIN * dollars + reserve
        return CostOption(
            chunks_per_call=self.chunks_per_call,
            sender=sender,
            calls=tokens.calls,
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cached_tokens,
            output_tokens=tokens.output_tokens,
            dollars=dollars,
            dollars_if_cached=cached,
            minutes=None if is_batch else self.minutes(concurrency),
            max_cost=max_cost,
        )


def estimate(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    config: ProjectConfig,
    stages: Stages,
    embedding: EmbeddingCount,
    before: OpenVersion | None,
) -> CostEstimate:
    """Read and chunk documents, and count the calls that their ingestion would send.

    Args:
        inputs: Inputs of the ingestion.
        options: Options of the ingestion.
        config: Settings of the project.
        stages: Components that process a document.
        embedding: Counter of the tokens to embed, starting at zero.
        before: The previous version, or None.
    """
    intake, plan = plan_run(inputs, options, config, before)
    counter = _Counter(stages, embedding)
    silent = ProgressCounter(None, IngestProgress(stage="ingest"))
    with Executor().reader(intake, config, stages.ledger, silent) as reader:
        for job in plan.jobs(intake, reader, before, plan.to_read):
            counter.add(stages.parse(job))
    prices = PriceTable(config.prices)
    embedding_dollars: float | None = 0.0
    if embedding.model is not None and embedding.tokens:
        embedding_dollars = prices.dollars(embedding.model, Tokens(input_tokens=embedding.tokens))
    cost_options = list(counter.options(prices))
    sender = "batch" if options.batch else config.service_tier or "live"
    return CostEstimate(
        model=None if counter.writer is None else counter.writer.model,
        embed_model=embedding.model,
        documents=counter.documents,
        chunks=counter.chunks,
        tokens=counter.tokens,
        known_contexts=counter.known_contexts,
        options=cost_options,
        chosen=counter.chosen(cost_options, sender),
        embedding_tokens=embedding.tokens,
        embedding_dollars=embedding_dollars,
        prices=prices.version,
        assumptions=tuple(counter.assumptions(prices)),
        skipped=tuple(intake.skipped),
    )


class _Counter:
    """Counter of calls and tokens, document by document."""

    def __init__(self, stages: Stages, embedding: EmbeddingCount) -> None:
        self._stages, self.embedding = stages, embedding
        self.writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
        self._counts: list[CallCount] = []
        self._context_tokens: float = CONTEXT_TOKENS
        if self.writer is not None:
            model, llm = self.writer.model, self.writer.llm
            self._counts = [CallCount(n) for n in dict.fromkeys((*COMPARED, self.writer.chunks_per_call))]
            self._form = CallForm.of(model, llm)
            self._context_tokens = expected_context_tokens(model, llm, stages.ledger)
        self.documents = self.chunks = self.tokens = self.known_contexts = 0

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Count the chunks of a document."""
        self.documents += 1
        self.chunks += len(nodes)
        self.tokens += sum(node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes)
        if self.writer is None:
            contextualizer = self._stages.contextualizer
            contextualized = nodes if contextualizer is None else contextualizer.contextualize(nodes).nodes
            self.embedding.add([with_context(node, None) for node in contextualized])
            self.embedding.end_document()
            return
        for segment, chunks, contexts in self.writer.missing(nodes):
            self.known_contexts += len(contexts)
            for count in self._counts:
                requests = self.writer.requests(segment, chunks, count.chunks_per_call)
                count.add(requests, self._form, self._context_tokens)
            self.embedding.add_segment(segment, chunks, contexts, self._context_tokens, structural=self.writer.lines)
        self.embedding.end_document()

    def chosen(self, options: Sequence[CostOption], sender: str) -> CostOption | None:
        """Return the option selected by the settings."""
        selected = (None if self.writer is None else self.writer.chunks_per_call, sender)
        return next((option for option in options if (option.chunks_per_call, option.sender) == selected), None)

    def options(self, prices: PriceTable) -> Iterator[CostOption]:
        """Yield the options for requesting the missing contexts, with their cost."""
        if self.writer is None:
            return
        provider = provider_of(self.writer.model)
        senders: list[SenderKind] = ["live"]
        if provider is not None and "flex" in provider.service_tiers:
            senders.append("flex")
        if provider is not None and provider.has_batch_api:
            senders.append("batch")
        for count in self._counts:
            for sender in senders if count.tokens.calls else ():
                yield count.option(sender, self.writer.model, prices, self.writer.num_workers)

    def assumptions(self, prices: PriceTable) -> Iterator[str]:
        """Yield the assumptions behind the figures."""
        for name in (self.embedding.model, None if self.writer is None else self.writer.model):
            if name is not None and prices.price(name) is None:
                yield f"The price of {name!r} is unknown: set it in the setting 'prices' to see an amount."
        if self.writer is None or not any(count.tokens.calls for count in self._counts):
            return
        yield (
            f"Assumptions: a context has {self._context_tokens:.0f} tokens; an answer starts after"
            f" {SECONDS_TO_FIRST_TOKEN:g} s and arrives at {TOKENS_PER_SECOND:g} tokens per second;"
            f" {pluralize(self.writer.num_workers, 'call')} at a time."
        )
        if (cache := self._form.cache) is not None:
            yield (
                f"The provider caches prefixes of at least {cache.minimum:,} tokens; the first call of a segment writes"
                f" to the cache{_cache_write_price(prices.price(self.writer.model))}."
            )
        if hidden := self._form.hidden_tokens:
            yield (
                f"The model reasons before it answers: reasoning tokens are charged as well, up to {hidden:,} per call."
            )
        yield (
            "Failed calls and repeated requests are not included. A context of fewer than 15 words, which is rare, is"
            " requested once more; the limit leaves room for some of them. Flex calls may take longer."
        )


def _cache_write_price(price: TokenPrice | None) -> str:
    if price is None or price.written is None:
        return ""
    return f", which costs {money(price.written)} instead of {money(price.input)} per million tokens"


CHOSEN = "→"
"""Mark for the row with the option that the settings select."""

_HEADINGS = ("  chunks/call", "sender", "calls", "input", "cached", "output", "time", "price")


def _lines(estimate: CostEstimate) -> Iterator[str]:
    counts = ((estimate.documents, "document"), (estimate.chunks, "chunk"), (estimate.tokens, "token"))
    line = ", ".join(pluralize(number, noun) for number, noun in counts)
    known = pluralize(estimate.known_contexts, "context")
    yield f"{line}; {known} from the ledger" if estimate.known_contexts else line
    rows = [_row(option, chosen=option is estimate.chosen) for option in estimate.options]
    if rows:
        widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
        for row in (_HEADINGS, *rows):
            left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[2:-1], widths[2:-1], strict=True)]
            yield "  ".join([*left, *right, row[-1]])
    if estimate.embed_model is not None:
        price = money(estimate.embedding_dollars)
        yield f"embeddings ({estimate.embed_model}): {pluralize(estimate.embedding_tokens, 'token')}, {price}"
    limit = "" if not estimate.max_cost else f"; a limit of {money(estimate.max_cost)} is sufficient"
    yield f"total with these settings: {money(estimate.dollars)} by {estimate.prices}{limit}"
    yield from estimate.assumptions
    if any(map(_is_range, estimate.options)):
        yield (
            "Tokens cost half in a batch. The higher price, on which the limit of a batch is based, assumes that its"
            " calls read nothing from the cache; the lower price, half of the live price, assumes that they read as"
            " much from it as live calls."
        )


def _is_range(option: CostOption) -> bool:
    return option.dollars_if_cached not in (None, option.dollars)


def _row(option: CostOption, *, chosen: bool) -> tuple[str, ...]:
    price = money(option.dollars)
    if _is_range(option):
        price = f"{money(option.dollars_if_cached)}–{price}"
    return (
        f"{CHOSEN if chosen else ' '} {option.chunks_per_call}",
        option.sender,
        f"{option.calls:,}",
        f"{option.input_tokens:,}",
        f"{option.cached_tokens:,}",
        f"{option.output_tokens:,}",
        "≤ 24 h" if option.minutes is None else f"{option.minutes:,.1f} min",
        price,
    )
