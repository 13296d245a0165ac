"""Estimate the cost of an ingestion without sending anything.

`estimate` reads and chunks the documents as an ingestion would, and counts the LLM calls for contexts that are not yet
in the ledger. The same `CostCounter` computes the expected cost of a run while its documents are read.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer.base import (
    ChunkContext,
    Contextualizer,
    Segment,
    with_context,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import ContextRequest
from llama_index_contextual.contextualizer.sending import BatchReplies
from llama_index_contextual.contextualizer.tokens import (
    CONTEXT_TOKENS,
    LINE_TOKENS,
    TokenCounter,
    count_segment,
    expected_context_tokens,
)
from llama_index_contextual.embeddings.batching import embedding_tokens
from llama_index_contextual.embeddings.contextual import ContextualEmbedding, document_parts
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger, document_keys, stored_name, vector_key
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.pipeline import Executor, Pipeline
from llama_index_contextual.ingestion.plan import IngestInput, SkippedDocument, plan_run
from llama_index_contextual.ingestion.report import IngestProgress, ProgressCounter, kept_contexts
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import contextual_model, provider_of
from llama_index_contextual.money.account import Account
from llama_index_contextual.money.price import MARGIN, Prices, SenderKind, money, round_up
from llama_index_contextual.money.receipt import Receipt
from llama_index_contextual.money.tokens import Tokens
from llama_index_contextual.readers import SkippedFile
from llama_index_contextual.readers.remote import RemoteFiles

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
        kept_contexts: Number of chunks of unchanged files that keep their contexts, although the title or other text of
            their segment is read differently now.
        contexts: LLM calls that generate the missing contexts, and their tokens. In a batch, no tokens are assumed to
            be read from the provider's cache.
        sender: "live", "flex" or "batch".
        context_dollars: Price of the contexts, or None if it is unknown.
        live_dollars: Price of the contexts with single calls, live or in the flex tier, or None if it is unknown.
        batch_dollars: Price of the contexts in a batch, or None if it is unknown or the provider has no Batch API.
        minutes: Expected duration of the LLM calls that generate contexts; None for a batch, which takes up to 24
            hours, and for an LLM on the user's own server or of an unknown provider, whose speed is not known.
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
    kept_contexts: int = 0
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
        from_ledger = f"; {pluralize(self.known_contexts, 'context')} from the ledger" if self.known_contexts else ""
        lines = [f"{line}{from_ledger}"]
        if self.kept_contexts:
            lines.append(f"kept {kept_contexts(self.kept_contexts)}")
        if self.contexts.calls:
            inputs = f"{self.contexts.input_tokens:,} input tokens ({self.contexts.cached_tokens:,} cached)"
            outputs = f"{self.contexts.output_tokens:,} output tokens"
            time = "at most 24 h" if self.sender == "batch" else "duration unknown"
            time = time if self.minutes is None else f"{self.minutes:,.1f} min"
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
        ledger: Store of contexts and vectors that have already been paid for.
        sender: How requests that have no batch reply yet are sent.
        context_tokens: Expected number of tokens in a context.
        embed_model_name: Name of the embedding model; None counts no embeddings.
        embed_model: The embedding model, or None if its dimensions are not set and it embeds each chunk by itself.
        passage_prefix: Prefix of passages for an embedding model on a server.
        replies: Batch replies, or None.

    Attributes:
        model: Name of the LLM that writes contexts, or None.
        known_contexts: Number of chunks whose context is in the ledger.
        kept_contexts: As in `CostEstimate`.
        contexts: LLM calls that generate the missing contexts, and their tokens, by sender. With live calls, the first
            call of each segment fills the provider's cache; in a batch, no tokens are assumed to be read from the
            cache.
        alternative: Tokens of the same calls in a batch or, if they are sent in a batch, of single calls.
        reserve: Tokens of the longest call or of the whole batch, whose price must be reserved before sending.
        embedding_tokens: Number of tokens in the texts to embed.
    """

    def __init__(
        self,
        writer: Contextualizer | None,
        ledger: Ledger,
        sender: SenderKind,
        context_tokens: float,
        *,
        embed_model_name: str | None,
        embed_model: BaseEmbedding | None,
        passage_prefix: str = "",
        replies: BatchReplies | None = None,
    ) -> None:
        self._writer, self._ledger, self._sender, self._replies = writer, ledger, sender, replies
        self._dimensions = getattr(embed_model, "dimensions", None)
        self._contextual = embed_model if isinstance(embed_model, ContextualEmbedding) else None
        self.model = writer.model if isinstance(writer, LLMContextualizer) else None
        self.embed_model_name = embed_model_name
        self._passage_prefix = passage_prefix
        self.context_tokens = context_tokens
        self.known_contexts = 0
        self.kept_contexts = 0
        self.contexts: dict[SenderKind, Tokens] = defaultdict(Tokens)
        self.alternative = Tokens()
        self.reserve = Tokens()
        self.embedding_tokens = 0

    def add(self, nodes: Sequence[BaseNode]) -> None:
        """Count the chunks of a document."""
        writer = self._writer
        document: list[tuple[BaseNode, float]] = []
        if isinstance(writer, LLMContextualizer):
            counter = TokenCounter.for_model(writer.model, writer.llm)
            for segment, chunks, contexts, kept in writer.missing(nodes, self._ledger):
                self.known_contexts += len(contexts)
                self.kept_contexts += len(kept)
                self._add_requests(writer.requests(segment, chunks), counter)
                if self.embed_model_name is not None:
                    document += self._with_contexts(segment, chunks, contexts | kept, writer)
        else:
            contextualized = nodes if writer is None else writer.contextualize(nodes).nodes
            document += [(with_context(node, None), 0.0) for node in contextualized]
        if self.embed_model_name is not None:
            self._add_embeddings(document, self.embed_model_name)

    def _add_requests(self, requests: Iterable[ContextRequest], counter: TokenCounter) -> None:
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
            main, alternative = replace(counter, cache=None), counter
            if sender != "batch":
                main, alternative = alternative, main
            self.contexts[sender] += count(main)
            self.alternative += count(alternative)
            for most in map(main.maximum, group):
                self.reserve = self.reserve + most if sender == "batch" else _larger(self.reserve, most)

    def _with_contexts(
        self,
        segment: Segment,
        chunks: Sequence[BaseNode],
        contexts: Mapping[str, str],
        writer: LLMContextualizer,
    ) -> Iterator[tuple[BaseNode, float]]:
        """Yield the chunks of a segment with their contexts, and the number of tokens of those not written yet.

        Args:
            segment: The segment.
            chunks: Chunks of the segment whose contexts have not been written yet.
            contexts: Contexts that cost nothing, by node id.
            writer: Contextualizer of the run.
        """
        structural, lines = writer.lines, LINE_TOKENS * len(writer.line_languages(segment))
        missing = {chunk.node_id for chunk in chunks}
        of_llm = [chunk for chunk in segment.chunks if chunk.node_id in missing or chunk.node_id in contexts]
        new_contexts = [ChunkContext.of_llm(contexts.get(chunk.node_id, "")) for chunk in of_llm]
        if structural is not None:
            new_contexts = structural.add_structure(segment, of_llm, new_contexts)
        by_id = {chunk.node_id: context for chunk, context in zip(of_llm, new_contexts, strict=True)}
        for node in segment.chunks:
            tokens = self.context_tokens + lines if node.node_id in missing else 0.0
            yield with_context(node, by_id.get(node.node_id)), tokens

    def _add_embeddings(self, document: Sequence[tuple[BaseNode, float]], model: str) -> None:
        """Count the chunks of a document, except those whose vectors are in the ledger.

        If chunks are embedded together and any of their vectors is missing, all of them are counted.

        Args:
            document: Each chunk with its context, and the expected number of tokens that the text lacks.
            model: Name of the embedding model.
        """
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node, _ in document]
        if self._contextual is None:
            parts = [[at] for at in range(len(document))]
            name = stored_name(model, self._passage_prefix)
            part_keys = [[vector_key(text, name, self._dimensions)] for text in texts]
        else:
            parts = document_parts(self._contextual, [node for node, _ in document], texts)
            part_keys = [document_keys([texts[at] for at in part], model, self._dimensions) for part in parts]
        vectors = self._ledger.vectors([key for of_part in part_keys for key in of_part])
        for part, of_part in zip(parts, part_keys, strict=True):
            expected = sum(document[at][1] for at in part)
            if expected or not vectors.keys() >= {*of_part}:
                self.embedding_tokens += sum(embedding_tokens(texts[at]) for at in part) + round(expected)

    def receipt(self, account: Account) -> Receipt:
        """Return the expected receipt for the calls and tokens counted so far, at the prices of an account."""
        receipts = [
            account.receipt(self.model or "", tokens, sender=sender) for sender, tokens in self.contexts.items()
        ]
        if self.embed_model_name is not None:
            receipts.append(account.embedding_receipt(self.embed_model_name, self.embedding_tokens))
        return sum(receipts, Receipt())


def _larger(first: Tokens, second: Tokens) -> Tokens:
    return Tokens.maximum(max(first.input_tokens, second.input_tokens), max(first.output_tokens, second.output_tokens))


def estimate_ingest(state: ProjectState, inputs: Sequence[IngestInput], options: RunOptions) -> CostEstimate:
    """Estimate the cost of a run; see `Project.estimate`."""
    with (
        contextlib.closing(Ledger(state.directory / LEDGER_FILE, read_only=True)) as ledger,
        state.version_to_build_on(replace=options.replace) as previous,
        state.remote_files(options.limits) as remote,
    ):
        name, model = state.embed_model_name, state.passed_embed_model
        model = contextual_model(name or "") if model is None else model
        pipeline = state.pipeline(ledger, embeds=False, renews_kept=options.renew)
        return estimate(
            inputs,
            options,
            state.config,
            pipeline,
            previous,
            remote,
            embed_model_name=name,
            embed_model=model,
            passage_prefix=state.passage_prefix,
        )


def estimate(
    inputs: Sequence[IngestInput],
    options: RunOptions,
    config: ProjectConfig,
    pipeline: Pipeline,
    previous: OpenVersion | None,
    remote: RemoteFiles | None = None,
    *,
    embed_model_name: str | None,
    embed_model: BaseEmbedding | None,
    passage_prefix: str = "",
) -> CostEstimate:
    """Read and chunk documents, and count the calls that would be needed to ingest them.

    Args:
        inputs: Inputs of the ingestion.
        options: Options for the ingestion.
        config: Settings of the project.
        pipeline: Components that process a document, as the settings select them.
        previous: The previous version, or None.
        remote: Access to files at URLs; None if there are none among the inputs.
        embed_model_name: As for `CostCounter`.
        embed_model: As for `CostCounter`.
        passage_prefix: As for `CostCounter`.
    """
    sources, plan = plan_run(inputs, options, config, previous, remote)
    sender: SenderKind = "batch" if options.batch else config.service_tier or "live"
    prices, writer = Prices(config.prices), pipeline.contextualizer
    context_tokens: float = CONTEXT_TOKENS
    if isinstance(writer, LLMContextualizer):
        context_tokens = expected_context_tokens(writer.model, writer.llm, pipeline.ledger)
    counter = CostCounter(
        writer,
        pipeline.ledger,
        sender,
        context_tokens,
        embed_model_name=embed_model_name,
        embed_model=embed_model,
        passage_prefix=passage_prefix,
    )
    tokens: list[list[int]] = []
    silent = ProgressCounter(None, IngestProgress(stage="ingest"))
    skipped = [*sources.skipped]
    with Executor().reader(sources, config, pipeline.ledger, silent) as reader:
        for job in plan.jobs(sources, reader, previous):
            if isinstance(job, SkippedDocument):
                skipped.append(job.file)
                continue
            nodes = pipeline.parse(job)
            tokens.append([node.metadata.get(keys.TOKEN_COUNT) or 0 for node in nodes])
            counter.add(nodes)
    contexts = counter.contexts[sender]
    dollars: float | None = 0.0
    reserve: float | None = 0.0
    live: float | None = 0.0
    batch: float | None = None
    provider = provider_of(counter.model or "")
    if counter.model is not None and contexts.calls:
        dollars = prices.dollars(counter.model, contexts, sender=sender)
        reserve = prices.dollars(counter.model, counter.reserve, sender=sender)
        alternative: SenderKind = (config.service_tier or "live") if options.batch else "batch"
        other_dollars = prices.dollars(counter.model, counter.alternative, sender=alternative)
        live, batch = (other_dollars, dollars) if options.batch else (dollars, other_dollars)
        if provider is None or not provider.is_openai:
            batch = None
    embedding_dollars: float | None = 0.0
    if embed_model_name is not None and counter.embedding_tokens:
        embedding_dollars = prices.dollars(embed_model_name, Tokens(input_tokens=counter.embedding_tokens))
    max_cost = None
    if dollars is not None and reserve is not None and embedding_dollars is not None:
        contexts_limit = max(reserve, MARGIN * dollars) if options.batch else MARGIN * dollars + reserve
        max_cost = round_up(contexts_limit + MARGIN * embedding_dollars)
    has_speed = provider is not None and not (provider.is_self_hosted or provider.needs_address)
    is_known = not options.batch and (has_speed or not contexts.calls)
    minutes = _minutes(contexts, config.llm_concurrency) if is_known else None
    return CostEstimate(
        model=counter.model,
        embed_model=embed_model_name,
        documents=len(tokens),
        chunks=sum(map(len, tokens)),
        tokens=sum(map(sum, tokens)),
        known_contexts=counter.known_contexts,
        kept_contexts=counter.kept_contexts,
        contexts=contexts,
        sender=sender,
        context_dollars=dollars,
        live_dollars=live,
        batch_dollars=batch,
        minutes=minutes,
        embedding_tokens=counter.embedding_tokens,
        embedding_dollars=embedding_dollars,
        max_cost=max_cost,
        prices=prices.version,
        assumptions=tuple(_assumptions(counter, config, prices, has_duration=minutes is not None)),
        skipped=tuple(skipped),
    )


def _minutes(contexts: Tokens, concurrency: int) -> float:
    """Return the expected duration, in minutes, of the LLM calls that generate contexts."""
    if not contexts.calls:
        return 0.0
    seconds = SECONDS_TO_FIRST_TOKEN + contexts.output_tokens / contexts.calls / TOKENS_PER_SECOND
    rounds = 1 + math.ceil(contexts.calls / concurrency)  # the first call of a segment is sent alone
    return rounds * seconds / 60


def _assumptions(counter: CostCounter, config: ProjectConfig, prices: Prices, *, has_duration: bool) -> Iterator[str]:
    """Yield sentences that state the assumptions behind an estimate and any unknown prices."""
    for name in (counter.embed_model_name, counter.model):
        if name is not None and prices.price(name) is None:
            yield f"The price of {name!r} is unknown: set it in the setting 'prices' to see an amount."
    if counter.contexts:
        lines = f", and a line in another language {LINE_TOKENS}" if config.context_languages else ""
        speed = (
            f"; an answer starts after {SECONDS_TO_FIRST_TOKEN:g} s and arrives at {TOKENS_PER_SECOND:g} tokens per"
            f" second; {pluralize(config.llm_concurrency, 'call')} at a time"
        )
        yield (
            f"Assumptions: a context has {counter.context_tokens:.0f} tokens{lines}{speed if has_duration else ''}."
            f" Failed calls are not included; the limit leaves room for some of them. Reasoning is charged as output."
        )
