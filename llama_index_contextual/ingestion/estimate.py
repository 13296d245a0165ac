"""Estimate the cost of an ingestion without sending anything.

`estimate` reads and chunks the documents as an ingestion would, and counts the LLM calls for contexts that are not yet
in the ledger. The same `CostCounter` computes the expected cost of a run while its documents are read.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import Contextualizer, with_context
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.sending import BatchReplies
from llama_index_contextual.contextualizer.tokens import (
    CONTEXT_TOKENS,
    EmbeddingCount,
    TokenCounter,
    count_segment,
    expected_context_tokens,
)
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.plan import IngestInput, SkippedDocument, plan_run
from llama_index_contextual.ingestion.report import IngestProgress, ProgressCounter
from llama_index_contextual.ingestion.stages import Executor, Stages
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import contextual_model, provider_of
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import MARGIN, Prices, SenderKind, money, round_up
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.money.tokens import Tokens
from llama_index_contextual.readers import SkippedFile

SECONDS_TO_FIRST_TOKEN = 1.0
TOKENS_PER_SECOND = 70.0
"""Assumed output speed of an LLM, which is stated in the estimate."""


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Estimated cost of an ingestion with the project's settings, computed without sending anything.

    Attributes:
        model: Name of the LLM that writes contexts, or None if there is none.
        embed_model: Name of the embedding model, or None if there is no semantic index.
        documents: Number of documents that need work.
        chunks: Number of chunks in these documents.
        tokens: Tokens of the chunks, with overlaps counted twice.
        known_contexts: Number of chunks whose context is already in the ledger.
        contexts: LLM calls that generate the missing contexts, and their tokens. In a batch, no tokens are assumed to
            be read from the provider's cache.
        sender: "live", "flex" or "batch".
        context_dollars: Price of the contexts, or None if it is unknown.
        live_dollars: Price of the contexts with single calls, live or in the flex tier, or None if it is unknown.
        batch_dollars: Price of the contexts in a batch, or None if it is unknown or the provider has no Batch API.
        minutes: Expected duration of the LLM calls that generate contexts; None for a batch, which takes up to 24
            hours.
        embedding_tokens: Tokens of the texts to embed.
        embedding_dollars: Price of the embeddings, or None if it is unknown.
        max_cost: Limit that should be sufficient for `ingest`, or None if a price is unknown. It is 1.5 times the
            price, plus the reserve for a call in flight. For a batch, it is at least the reserves for all of its
            requests.
        prices: Name and release of the price table.
        assumptions: Assumptions behind the figures, as sentences.
        skipped: Files that will not be read, each with the reason.
    """

    model: str | None
    embed_model: str | None
    documents: int
    chunks: int
    tokens: int
    known_contexts: int
    contexts: Tokens
    sender: SenderKind
    context_dollars: float | None
    live_dollars: float | None
    batch_dollars: float | None
    minutes: float | None
    embedding_tokens: int
    embedding_dollars: float | None
    max_cost: float | None
    prices: str
    assumptions: Sequence[str]
    skipped: Sequence[SkippedFile] = ()

    @property
    def dollars(self) -> float | None:
        """Total cost, or None if a price is unknown."""
        if self.context_dollars is None or self.embedding_dollars is None:
            return None
        return self.context_dollars + self.embedding_dollars

    @property
    def cheaper(self) -> Literal["live", "batch"] | None:
        """The cheaper way to request the contexts: "live" for single calls, or "batch".

        None if both cost the same, a price is unknown, or the provider has no Batch API.
        """
        live, batch = self.live_dollars, self.batch_dollars
        if live is None or batch is None or live == batch:
            return None
        return "live" if live < batch else "batch"

    def _comparison(self) -> str:
        """Return a sentence that compares the price with that of the other way, or an empty string."""
        if self.cheaper is None:
            return ""
        live, batch = money(self.live_dollars), money(self.batch_dollars)
        if self.sender != "batch":
            less = "less" if self.cheaper == "batch" else "more"
            return f"A batch would cost {less}: {batch} instead of {live} for the contexts."
        if self.cheaper == "batch":
            return f"Live calls would cost more: {live} instead of {batch} for the contexts."
        reason = "because they read most of each segment from the provider's cache"
        return f"Live calls would cost less, {reason}: {live} instead of {batch} for the contexts."

    def summary(self) -> str:
        """Return one line with the number of LLM calls that generate contexts and the cost of the run."""
        documents, chunks = pluralize(self.documents, "document"), pluralize(self.chunks, "chunk")
        calls = pluralize(self.contexts.calls, "call")
        line = f"{documents}, {chunks}: {calls} for contexts, {money(self.dollars)}"
        return f"{line}. {self._comparison()}" if self.sender == "batch" and self.cheaper == "live" else line

    def to_dict(self) -> dict[str, object]:
        """Return the estimate as JSON values."""
        return {**asdict(self), "dollars": self.dollars, "cheaper": self.cheaper}

    def __str__(self) -> str:
        counts = ((self.documents, "document"), (self.chunks, "chunk"), (self.tokens, "token"))
        line = ", ".join(pluralize(number, noun) for number, noun in counts)
        known = f"; {pluralize(self.known_contexts, 'context')} from the ledger" if self.known_contexts else ""
        lines = [f"{line}{known}"]
        if self.contexts.calls:
            inputs = f"{self.contexts.input_tokens:,} input tokens ({self.contexts.cached_tokens:,} cached)"
            outputs = f"{self.contexts.output_tokens:,} output tokens"
            time = "at most 24 h" if self.minutes is None else f"{self.minutes:,.1f} min"
            calls, price = pluralize(self.contexts.calls, "call"), money(self.context_dollars)
            lines.append(f"contexts ({self.model}, {self.sender}): {calls}, {inputs}, {outputs}, {time}, {price}")
        if self.embed_model is not None:
            tokens, price = pluralize(self.embedding_tokens, "token"), money(self.embedding_dollars)
            lines.append(f"embeddings ({self.embed_model}): {tokens}, {price}")
        lines += filter(None, [self._comparison()])
        limit = f"; a limit of {money(self.max_cost)} is sufficient" if self.max_cost else ""
        lines.append(f"total with these settings: {money(self.dollars)} by {self.prices}{limit}")
        return "\n".join([*lines, *self.assumptions])

    __repr__ = __str__


class CostCounter:
    """Counter of the expected calls and tokens for contexts and embeddings, document by document.

    Args:
        writer: Contextualizer of the run, or None.
        ledger: Store of contexts that have already been paid for.
        embedding: Counter of the tokens to embed.
        sender: How requests that have no batch reply yet are sent.
        context_tokens: Expected number of tokens in a context.
        replies: Batch replies, or None.

    Attributes:
        model: Name of the LLM that writes contexts, or None.
        known_contexts: Number of chunks whose context is in the ledger.
        contexts: LLM calls that generate the missing contexts, and their tokens, by sender. With live calls, the first
            call of each segment fills the provider's cache; in a batch, no tokens are assumed to be read from the
            cache.
        alternative: Tokens of the same calls in a batch or, if they are sent in a batch, of single calls.
        reserve: Tokens of the longest call or of the whole batch, whose price must be reserved before sending.
    """

    def __init__(
        self,
        writer: Contextualizer | None,
        ledger: Ledger,
        embedding: EmbeddingCount,
        sender: SenderKind,
        context_tokens: float,
        *,
        replies: BatchReplies | None = None,
    ) -> None:
        self._writer, self._ledger, self._embedding, self._sender = writer, ledger, embedding, sender
        self._replies = replies
        self.model = writer.model if isinstance(writer, LLMContextualizer) else None
        self.context_tokens = context_tokens
        self.known_contexts = 0
        self.contexts: dict[SenderKind, Tokens] = defaultdict(Tokens)
        self.alternative = Tokens()
        self.reserve = Tokens()

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Count the chunks of a document."""
        writer = self._writer
        if isinstance(writer, LLMContextualizer):
            form = TokenCounter.of(writer.model, writer.llm)
            for segment, chunks, contexts in writer.missing(nodes, self._ledger):
                self.known_contexts += len(contexts)
                self._add_requests(writer.requests(segment, chunks), form)
                structural = writer.lines
                self._embedding.add_segment(segment, chunks, contexts, self.context_tokens, structural=structural)
        else:
            contextualized = nodes if writer is None else writer.contextualize(nodes).nodes
            self._embedding.add([with_context(node, None) for node in contextualized])
        self._embedding.end_document()

    def _add_requests(self, requests: Iterable[ContextRequest], form: TokenCounter) -> None:
        """Count the calls and tokens of the context requests for a segment, and update the reserve."""
        replies = self._replies
        by_sender: dict[SenderKind, list[ContextRequest]] = defaultdict(list)
        for request in requests:
            if replies is not None and replies.has(request):
                by_sender["batch"].append(request)
            elif replies is None or not (replies.is_unread(request) or replies.reason_unanswered(request)):
                by_sender[self._sender].append(request)
        for sender, group in by_sender.items():
            count = partial(count_segment, group, context_tokens=self.context_tokens)
            used, other = replace(form, cache=None), form
            if sender != "batch":
                used, other = other, used
            self.contexts[sender] += count(used)
            self.alternative += count(other)
            for most in map(used.maximum, group):
                self.reserve = self.reserve + most if sender == "batch" else _larger(self.reserve, most)

    def bill(self, spending: Account) -> Receipt:
        """Return the expected cost of the calls and tokens counted so far, at the prices of an account."""
        model, embedding = self.model or "", self._embedding
        bills = [spending.receipt(model, tokens, sender=sender) for sender, tokens in self.contexts.items()]
        if embedding.model is not None:
            bills.append(spending.embedding_receipt(embedding.model, embedding.tokens))
        return sum(bills, Receipt())


def _larger(first: Tokens, second: Tokens) -> Tokens:
    return Tokens.maximum(max(first.input_tokens, second.input_tokens), max(first.output_tokens, second.output_tokens))


def estimate_ingest(state: ProjectState, inputs: Sequence[IngestInput], options: RunOptions) -> CostEstimate:
    """Estimate the cost of a run; see `Project.estimate`."""
    embed_model = state.embed_model_name
    with (
        contextlib.closing(Ledger(state.directory / LEDGER_FILE, read_only=True)) as ledger,
        state.version_to_build_on(replace=options.replace) as before,
    ):
        given_model = state.passed_embed_model
        model = contextual_model(embed_model or "") if given_model is None else given_model
        contextual = model if isinstance(model, ContextualEmbedding) else None
        embedding = EmbeddingCount(embed_model, getattr(given_model, "dimensions", None), ledger, contextual)
        return estimate(inputs, options, state.config, state.stages(ledger, embeds=False), embedding, before)


def estimate(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    config: ProjectConfig,
    stages: Stages,
    embedding: EmbeddingCount,
    before: OpenVersion | None,
) -> CostEstimate:
    """Read and chunk documents, and count the calls that would be needed to ingest them.

    Args:
        inputs: Inputs of the ingestion.
        options: Options for the ingestion.
        config: Settings of the project.
        stages: Components that process a document.
        embedding: Counter of the tokens to embed, starting at zero.
        before: The previous version, or None.
    """
    sources, plan = plan_run(inputs, options, config, before)
    sender: SenderKind = "batch" if options.batch else config.service_tier or "live"
    prices, writer = Prices(config.prices), stages.contextualizer
    context_tokens: float = CONTEXT_TOKENS
    if isinstance(writer, LLMContextualizer):
        context_tokens = expected_context_tokens(writer.model, writer.llm, stages.ledger)
    counter = CostCounter(writer, stages.ledger, embedding, sender, context_tokens)
    tokens: list[list[int]] = []
    silent = ProgressCounter(None, IngestProgress(stage="ingest"))
    skipped = [*sources.skipped]
    with Executor().reader(sources, config, stages.ledger, silent) as reader:
        for job in plan.jobs(sources, reader, before):
            if isinstance(job, SkippedDocument):
                skipped.append(job.file)
                continue
            nodes = stages.parse(job)
            tokens.append([node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes])
            counter.add(nodes)
    contexts = counter.contexts[sender]
    dollars: float | None = 0.0
    reserve: float | None = 0.0
    live: float | None = 0.0
    batch: float | None = None
    if counter.model is not None and contexts.calls:
        dollars = prices.dollars(counter.model, contexts, sender=sender)
        reserve = prices.dollars(counter.model, counter.reserve, sender=sender)
        other: SenderKind = (config.service_tier or "live") if options.batch else "batch"
        other_dollars = prices.dollars(counter.model, counter.alternative, sender=other)
        live, batch = (other_dollars, dollars) if options.batch else (dollars, other_dollars)
        provider = provider_of(counter.model)
        if provider is None or not provider.is_openai:
            batch = None
    embedding_dollars: float | None = 0.0
    if embedding.model is not None and embedding.tokens:
        embedding_dollars = prices.dollars(embedding.model, Tokens(input_tokens=embedding.tokens))
    max_cost = None
    if dollars is not None and reserve is not None and embedding_dollars is not None:
        contexts_limit = max(reserve, MARGIN * dollars) if options.batch else MARGIN * dollars + reserve
        max_cost = round_up(contexts_limit + MARGIN * embedding_dollars)
    return CostEstimate(
        model=counter.model,
        embed_model=embedding.model,
        documents=len(tokens),
        chunks=sum(map(len, tokens)),
        tokens=sum(map(sum, tokens)),
        known_contexts=counter.known_contexts,
        contexts=contexts,
        sender=sender,
        context_dollars=dollars,
        live_dollars=live,
        batch_dollars=batch,
        minutes=None if options.batch else _minutes(contexts, config.llm_concurrency),
        embedding_tokens=embedding.tokens,
        embedding_dollars=embedding_dollars,
        max_cost=max_cost,
        prices=prices.version,
        assumptions=tuple(_assumptions(counter, embedding, config, prices)),
        skipped=tuple(skipped),
    )


def _minutes(contexts: Tokens, concurrency: int) -> float:
    """Return the expected duration, in minutes, of the LLM calls that generate contexts."""
    if not contexts.calls:
        return 0.0
    seconds = SECONDS_TO_FIRST_TOKEN + contexts.output_tokens / contexts.calls / TOKENS_PER_SECOND
    rounds = 1 + math.ceil(contexts.calls / concurrency)  # the first call of a segment is sent alone
    return rounds * seconds / 60


def _assumptions(
    counter: CostCounter, embedding: EmbeddingCount, config: ProjectConfig, prices: Prices
) -> Iterator[str]:
    """Yield sentences that state the assumptions behind an estimate and any unknown prices."""
    for name in (embedding.model, counter.model):
        if name is not None and prices.price(name) is None:
            yield f"The price of {name!r} is unknown: set it in the setting 'prices' to see an amount."
    if counter.contexts:
        yield (
            f"Assumptions: a context has {counter.context_tokens:.0f} tokens; an answer starts after"
            f" {SECONDS_TO_FIRST_TOKEN:g} s and arrives at {TOKENS_PER_SECOND:g} tokens per second;"
            f" {pluralize(config.llm_concurrency, 'call')} at a time. Failed calls are not included; the limit"
            f" leaves room for some of them. Reasoning is charged as output."
        )
