"""Cost estimate of an ingestion, which compares the options for requesting contexts without sending anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig, TokenPrice
from llama_index_contextual.contextualizer.base import with_context
from llama_index_contextual.contextualizer.cost import (
    CONTEXT_TOKENS,
    AnswerLimit,
    CallForm,
    PriceTable,
    SenderKind,
    money,
)
from llama_index_contextual.contextualizer.estimate import (
    MARGIN,
    SECONDS_TO_FIRST_TOKEN,
    TOKENS_PER_SECOND,
    ContextCount,
    CostOption,
    EmbeddingCount,
    count_texts,
    missing,
    options_of,
    requests_of,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ChunksPerCall
from llama_index_contextual.ingestion.pipeline import Stages, model_notices
from llama_index_contextual.ingestion.plan import IngestInput, RunOptions, jobs_of, make_reader, plan_run
from llama_index_contextual.models import provider_of
from llama_index_contextual.readers import SkippedFile
from llama_index_contextual.storage.version import OpenVersion

COMPARED: tuple[ChunksPerCall, ...] = (1, 4, "all")
"""Numbers of chunks per call that every estimate compares."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Cost estimate of an ingestion, made without sending anything.

    Attributes:
        model: Name of the LLM that writes contexts, or None without one.
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
        notices: Other notices, such as the retirement of a model.
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
    notices: Sequence[str] = ()

    @property
    def dollars(self) -> float | None:
        """Total cost with the current settings, or None if a price is unknown."""
        contexts = 0.0 if self.chosen is None else self.chosen.dollars
        return None if contexts is None or self.embedding_dollars is None else contexts + self.embedding_dollars

    @property
    def max_cost(self) -> float | None:
        """Limit with which `ingest` should complete, or None if a price is unknown.

        It leaves room for contexts and answers that are longer than expected, and for the reserves of calls in flight.
        """
        contexts = 0.0 if self.chosen is None else self.chosen.max_cost
        if contexts is None or self.embedding_dollars is None:
            return None
        return _rounded_up(contexts + MARGIN * self.embedding_dollars)

    def in_short(self) -> str:
        """Return in one line how many calls are sent for contexts, and what the run costs."""
        calls = pluralize(0 if self.chosen is None else self.chosen.calls, "call")
        documents, chunks = pluralize(self.documents, "document"), pluralize(self.chunks, "chunk")
        return f"{documents}, {chunks}: {calls} for contexts, {money(self.dollars)}"

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "dollars": self.dollars, "max_cost": self.max_cost}

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def _rounded_up(dollars: float) -> float:
    """Round an amount up to the digits that `money` shows."""
    digits = 2 if dollars >= 0.1 or not dollars else 1 - math.floor(math.log10(dollars))
    scale = float(10**digits)
    return math.ceil(round(dollars * scale, 6)) / scale


def estimate(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    *,
    config: ProjectConfig,
    stages: Stages,
    embedding: EmbeddingCount,
    before: OpenVersion | None,
    sender: SenderKind,
    project: str = "NAME",
) -> CostEstimate:
    """Read and chunk the documents of a call, and count the calls that its ingestion would send.

    Args:
        inputs: Inputs of the ingestion.
        options: Options of the ingestion.
        config: Settings of the project.
        stages: Components that process a document.
        embedding: Counter to which the texts to embed are added.
        before: The previous version, or None.
        sender: How the run would send its calls.
        project: Name of the project, for commands in messages.
    """
    intake, plan = plan_run(inputs, options, config, before)
    counter = _Counter(stages, embedding)
    with make_reader(options, config, page_store=stages.ledger) as reader:
        for job in jobs_of(plan, intake, reader, before, plan.to_read, []):
            counter.add(stages.parse(job))
    prices = PriceTable(config.prices)
    cost_options = list(counter.options(prices))
    return CostEstimate(
        model=None if counter.writer is None else counter.writer.model,
        embed_model=embedding.model,
        documents=counter.documents,
        chunks=counter.chunks,
        tokens=counter.tokens,
        known_contexts=counter.known,
        options=cost_options,
        chosen=counter.chosen(cost_options, sender),
        embedding_tokens=embedding.tokens,
        embedding_dollars=prices.dollars(embedding.model, input_tokens=embedding.tokens) if embedding.model else 0.0,
        prices=prices.version,
        assumptions=tuple(counter.assumptions(prices)),
        skipped=tuple(intake.skipped),
        notices=model_notices(stages, project=project),
    )


class _Counter:
    """Counter of calls and tokens, document by document."""

    def __init__(self, stages: Stages, embedding: EmbeddingCount) -> None:
        self._stages, self._embedding = stages, embedding
        self.writer = stages.contextualizer if isinstance(stages.contextualizer, LLMContextualizer) else None
        self._counts: list[ContextCount] = []
        self._context_tokens: float = CONTEXT_TOKENS
        if self.writer is not None:
            self._counts = [ContextCount(n) for n in dict.fromkeys((*COMPARED, self.writer.chunks_per_call))]
            self._limit = AnswerLimit.of(self.writer.model, self.writer.llm)
            hidden = self._limit.expected_hidden_tokens
            self._context_tokens = stages.ledger.mean_context_tokens(self.writer.model) or CONTEXT_TOKENS + hidden
        self.documents = self.chunks = self.tokens = self.known = 0

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Count the chunks of a document."""
        self.documents += 1
        self.chunks += len(nodes)
        self.tokens += sum(node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes)
        if self.writer is None:
            contextualizer = self._stages.contextualizer
            written = nodes if contextualizer is None else contextualizer.contextualize(nodes).nodes
            self._embedding.add([with_context(node, None) for node in written], self._stages.ledger)
        else:
            self._add_missing(self.writer, nodes)

    def _add_missing(self, writer: LLMContextualizer, nodes: Sequence[BaseNode]) -> None:
        form = CallForm.of(writer.model)
        for segment, todo, known in missing(writer, nodes):
            self.known += len(known)
            for count in self._counts if todo else ():
                requests = requests_of(writer, segment, todo, count.chunks_per_call)
                count.add(requests, form, self._limit, self._context_tokens)
            count_texts(self._embedding, segment, todo, known, self._stages.ledger, self._context_tokens)

    def chosen(self, options: Sequence[CostOption], sender: SenderKind) -> CostOption | None:
        """Return the option selected by the settings."""
        wanted = (None if self.writer is None else self.writer.chunks_per_call, sender)
        return next((option for option in options if (option.chunks_per_call, option.sender) == wanted), None)

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
            if count.tokens.calls:
                yield from options_of(count, self.writer.model, prices, senders, self.writer.num_workers)

    def assumptions(self, prices: PriceTable) -> Iterator[str]:
        """Yield the assumptions behind the figures."""
        for name in (self._embedding.model, None if self.writer is None else self.writer.model):
            if name is not None and prices.price(name) is None:
                yield f"The price of {name!r} is unknown: set it in the setting 'prices' to see an amount."
        if self.writer is None or not any(count.tokens.calls for count in self._counts):
            return
        yield (
            f"Assumptions: a context has {self._context_tokens:.0f} tokens; an answer starts after"
            f" {SECONDS_TO_FIRST_TOKEN:g} s and arrives at {TOKENS_PER_SECOND:g} tokens per second;"
            f" {pluralize(self.writer.num_workers, 'call')} at a time."
        )
        if (cache := CallForm.of(self.writer.model).cache) is not None:
            yield (
                f"The provider caches prefixes of at least {cache.minimum:,} tokens; the first call of a segment writes"
                f" to the cache{_cache_write_price(prices.price(self.writer.model))}."
            )
        if hidden := self._limit.hidden_tokens:
            yield (
                f"The model reasons before it answers: reasoning tokens are charged as well, up to {hidden:,} per call."
            )
        yield "Failed calls and repeated requests are not included; flex calls may take longer."


def _cache_write_price(price: TokenPrice | None) -> str:
    if price is None or price.written is None:
        return ""
    return f", which costs {money(price.written)} instead of {money(price.input)} per million tokens"


CHOSEN = "→"
_HEADINGS = ("  chunks/call", "sender", "calls", "input", "cached", "output", "time", "price")


def _lines(estimated: CostEstimate) -> Iterator[str]:
    counts = ((estimated.documents, "document"), (estimated.chunks, "chunk"), (estimated.tokens, "token"))
    line = ", ".join(pluralize(number, noun) for number, noun in counts)
    known = pluralize(estimated.known_contexts, "context")
    yield f"{line}; {known} from the ledger" if estimated.known_contexts else line
    rows = [_row(option, chosen=option is estimated.chosen) for option in estimated.options]
    if rows:
        widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
        for row in (_HEADINGS, *rows):
            left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[2:-1], widths[2:-1], strict=True)]
            yield "  ".join([*left, *right, row[-1]])
    if estimated.embed_model is not None:
        price = money(estimated.embedding_dollars)
        yield f"embeddings ({estimated.embed_model}): {pluralize(estimated.embedding_tokens, 'token')}, {price}"
    limit = "" if not estimated.max_cost else f"; a limit (max_cost) of {money(estimated.max_cost)} is sufficient"
    yield f"total with these settings: {money(estimated.dollars)} by {estimated.prices}{limit}"
    yield from estimated.assumptions
    yield from estimated.notices
    if any(map(_is_range, estimated.options)):
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
