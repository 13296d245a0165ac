"""The components that process a document: parsers, contextualizer and embedding model, as the settings say."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, Document, MetadataMode, TransformComponent
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import LOCAL, ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.base import ChunkContext, Contextualized, segments, with_context
from llama_index_contextual.contextualizer.cost import (
    CallForm,
    EmbeddingCount,
    count_segment,
)
from llama_index_contextual.contextualizer.llm import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT, ContextRequest
from llama_index_contextual.contextualizer.spending import Bill, CallBudget, Spending
from llama_index_contextual.embeddings.batching import Booking, aembed, book_nothing
from llama_index_contextual.embeddings.contextual import ContextualEmbedding, aembed_documents, document_parts
from llama_index_contextual.embeddings.windows import Window, WindowSplitter, aembed_windows, window_splitter
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index.ledger import Ledger, document_keys, vector_key
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.ingestion.plan import Job, span_of
from llama_index_contextual.ingestion.sync import OtherFilesChanged
from llama_index_contextual.models import embedding_identity, is_in_process, preload
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.retirement import retirement_notice

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Components that process a document.

    Attributes:
        parsers: Segment parser and chunk parser.
        contextualizer: Contextualizer, or None for plain RAG.
        embed_model: Embedding model, or None without a semantic index.
        embed_model_name: Name of the embedding model.
        ledger: Store of contexts and vectors already paid for.
        spending: Account of the run, or None.
        splitter: Splits texts that are longer than the embedding model reads, or None.
        windowed: Ids of the chunks embedded in windows so far.
        others_changed: Ends when the run is to be given up because other files have changed; or None.
    """

    parsers: Sequence[TransformComponent]
    contextualizer: Contextualizer | None
    embed_model: BaseEmbedding | None
    embed_model_name: str | None
    ledger: Ledger
    spending: Spending | None = None
    splitter: WindowSplitter | None = None
    windowed: set[str] = field(default_factory=set)
    others_changed: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Stages]:
        """Provide stages for one run, whose batches share the contextualizer's client and limits."""
        if self.contextualizer is None:
            yield self
            return
        async with self.contextualizer.session() as ready:
            yield replace(self, contextualizer=ready)

    def require_unchanged(self) -> None:
        """Require that no other files have changed for which the run is to be given up.

        Raises:
            OtherFilesChanged: Other files have changed.
        """
        if self.others_changed is not None and self.others_changed.done():
            raise OtherFilesChanged

    async def unless_others_change(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, which is cancelled if other files change.

        Raises:
            OtherFilesChanged: Other files have changed.
        """
        if self.others_changed is None:
            return await work
        running = asyncio.ensure_future(work)
        try:
            await asyncio.wait([running, self.others_changed], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise OtherFilesChanged
            return running.result()
        finally:
            running.cancel()

    def stop(self, error: ContextualError) -> None:
        """Send no further calls; those in flight are completed, and then this error is raised."""
        if self.contextualizer is not None:
            self.contextualizer.stop(error)
        if self.spending is not None:
            self.spending.stop(error)

    def parse(self, job: Job) -> list[BaseNode]:
        """Return the chunks of a document, with contexts that an LLM wrote for them earlier."""
        if job.document is None:
            return list(job.nodes or [])
        nodes = cut(job.document, self.parsers) if job.nodes is None else job.nodes
        written = {node.node_id: job.contexts[span] for node in nodes if (span := span_of(node)) in job.contexts}
        for node in nodes:
            if node.node_id in written:
                node.metadata |= ChunkContext(written[node.node_id], "llm").to_metadata() | {keys.CONTEXT_GIVEN: True}
        lines = self.contextualizer.lines if isinstance(self.contextualizer, LLMContextualizer) else None
        if written and lines is not None:
            lines.put_below(nodes, written)
        return list(nodes)

    def add_estimate(self, nodes: Sequence[BaseNode]) -> None:
        """Add the expected cost of the chunks of a document to the account of the run."""
        writer, spending = self.contextualizer, self.spending
        if spending is None or not isinstance(writer, LLMContextualizer):
            return
        model, context_tokens = writer.model, spending.context_tokens
        form = CallForm.of(model)
        name = None if self.embed_model_name == LOCAL else self.embed_model_name
        contextual = self.embed_model if isinstance(self.embed_model, ContextualEmbedding) else None
        embedding = EmbeddingCount(name, None, self.ledger, contextual)
        for segment, chunks, contexts in writer.missing(nodes):
            live: list[ContextRequest] = []
            batch: list[ContextRequest] = []
            for request in writer.requests(segment, chunks):
                if writer.replies is None or not writer.replies.is_unread(request):
                    (batch if writer.replies is not None and writer.replies.has(request) else live).append(request)
            tokens = count_segment(live, form, context_tokens=context_tokens)
            spending.estimated += spending.bill(model, tokens, sender=writer.service_tier or "live")
            tokens = count_segment(batch, replace(form, cache=None), context_tokens=context_tokens)
            spending.estimated += spending.bill(model, tokens, sender="batch")
            embedding.add_segment(segment, chunks, contexts, context_tokens, structural=writer.lines)
        embedding.end_document()
        if embedding.model is not None:
            spending.estimated += spending.embedding_bill(embedding.model, embedding.tokens)

    def add_held_back(self, result: Contextualized) -> None:
        """Add the maximum cost of the contexts that were not requested to the account of the run."""
        writer, spending = self.contextualizer, self.spending
        held_back = {failure.node_id for failure in result.failures if failure.is_held_back}
        if not held_back or spending is None or not isinstance(writer, LLMContextualizer):
            return
        budget = CallBudget(spending, writer.model, llm=writer.llm, sender=writer.service_tier or "live")
        for segment in segments(result.nodes, segment_size=writer.segment_size):
            for request in writer.requests(segment, [c for c in segment.chunks if c.node_id in held_back]):
                spending.held_back += Bill(dollars=budget.bound(request))

    async def acontextualize(self, nodes: Sequence[BaseNode], progress: Callable[[int], None]) -> Contextualized:
        """Return the chunks with their contexts."""
        if self.contextualizer is None:
            progress(len(nodes))
            return Contextualized([with_context(node, None) for node in nodes], [], 0)
        return await self.contextualizer.acontextualize(nodes, progress=progress)

    async def aembed(self, nodes: Sequence[BaseNode]) -> NDArray[np.float32] | None:
        """Return the unit vectors of chunks, from the ledger where it has them."""
        if self.embed_model is None or self.embed_model_name is None or not nodes:
            return None
        texts = await asyncio.to_thread(self._texts_to_embed, nodes)
        if self.embed_model_name == LOCAL:
            return await aembed(self.embed_model, [window.text for (window,) in texts], name=LOCAL)
        if isinstance(self.embed_model, ContextualEmbedding):
            whole = [window.text for (window,) in texts]
            return await self._aembed_documents(self.embed_model, self.embed_model_name, nodes, whole)
        self.windowed.update(node.node_id for node, windows in zip(nodes, texts, strict=True) if len(windows) > 1)
        text_keys, known = await asyncio.to_thread(self._known_vectors, self.embed_model_name, nodes, texts)
        new = {key: text for key, text in zip(text_keys, texts, strict=True) if key not in known}
        if new:
            known.update(await self._aembed_new(self.embed_model, new, self.embed_model_name))
            length = len(known[next(iter(new))])
            # Stored vectors of another length do not fit into one index with those that the model returns now.
            others = {key: text for key, text in zip(text_keys, texts, strict=True) if len(known[key]) != length}
            if others:
                known.update(await self._aembed_new(self.embed_model, others, self.embed_model_name))
        return np.stack([known[key] for key in text_keys])

    async def _aembed_documents(
        self, model: ContextualEmbedding, name: str, nodes: Sequence[BaseNode], texts: Sequence[str]
    ) -> NDArray[np.float32]:
        """Return the unit vectors of chunks by a contextual model, from the ledger for documents it has completely."""
        parts = await asyncio.to_thread(document_parts, model, nodes, texts)
        sent = [[texts[at] for at in part] for part in parts]
        keys_of = await asyncio.to_thread(
            lambda: [document_keys(document, name, model.dimensions) for document in sent]
        )
        every = [key for document in keys_of for key in document]
        known = await asyncio.to_thread(self.ledger.vectors, every, dimensions=model.dimensions)
        new = {tuple(ks): document for ks, document in zip(keys_of, sent, strict=True) if not known.keys() >= {*ks}}
        if new:
            known.update(await self._aembed_new_documents(model, new, name))
            length = len(known[next(iter(new))[0]])
            # Stored vectors of another length do not fit into one index with those that the model returns now.
            others = {
                tuple(ks): document for ks, document in zip(keys_of, sent, strict=True) if len(known[ks[0]]) != length
            }
            if others:
                known.update(await self._aembed_new_documents(model, others, name))
        rows = np.empty((len(nodes), len(known[every[0]])), dtype=np.float32)
        rows[[at for part in parts for at in part]] = [known[key] for key in every]
        return rows

    async def _aembed_new_documents(
        self, model: ContextualEmbedding, new: Mapping[tuple[str, ...], list[str]], name: str
    ) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of documents by key; each answer is stored in the ledger before the next call is sent."""
        await asyncio.to_thread(preload, model)
        text_keys = list(new)
        by_key: dict[str, NDArray[np.float32]] = {}
        requests = aembed_documents(model, list(new.values()), name=name, booking=self._booking(name))
        async with aclosing(requests) as answers:
            async for answer in answers:
                answered = [key for at in answer for key in text_keys[at]]
                by_key.update(await self._store(name, answered, np.concatenate(list(answer.values()))))
        return by_key

    def _booking(self, name: str) -> Booking:
        if self.spending is None:
            return book_nothing
        return self.spending.free_call if is_in_process(name) else partial(self.spending.embedding, name)

    async def _store(
        self, name: str, text_keys: Sequence[str], vectors: NDArray[np.float32]
    ) -> dict[str, NDArray[np.float32]]:
        """Commit the vectors of an answer to the ledger, and return them by key."""
        # A vector of zeros carries no information, and may be a mistake of the provider: do not store it.
        nonzero = np.flatnonzero(vectors.any(axis=1)).tolist()
        if nonzero:
            await asyncio.to_thread(self.ledger.add_vectors, name, [text_keys[at] for at in nonzero], vectors[nonzero])
        return dict(zip(text_keys, vectors, strict=True))

    def _texts_to_embed(self, nodes: Sequence[BaseNode]) -> list[list[Window]]:
        """Return the text of each chunk with its context, in windows if the model does not read it completely."""
        texts = [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        if self.splitter is None:
            return [[Window(text, 1)] for text in texts]
        bodies = [len(node.get_content(metadata_mode=MetadataMode.NONE).rstrip()) for node in nodes]
        return [self.splitter.split(text, max(0, len(text) - body)) for text, body in zip(texts, bodies, strict=True)]

    def _name_of_vectors(self, model: str, windows: Sequence[Window]) -> str:
        """Return the name under which the ledger stores the vector of a text."""
        return model if self.splitter is None or len(windows) == 1 else self.splitter.name(model)

    def vector_keys(self, nodes: Sequence[BaseNode]) -> list[tuple[str, str]]:
        """Return the key of the vector of each chunk in the ledger, and the name of the model that it is stored with.

        The local model has none, because its vectors are not stored.
        """
        if self.embed_model_name is None or self.embed_model_name == LOCAL or not nodes:
            return []
        texts, name = self._texts_to_embed(nodes), self.embed_model_name
        if not isinstance(self.embed_model, ContextualEmbedding):
            return self._keys_of(name, nodes, texts)
        embedded = [window.text for (window,) in texts]
        keys_of: dict[int, str] = {}
        for part in document_parts(self.embed_model, nodes, embedded):
            of_part = document_keys([embedded[at] for at in part], name, self.embed_model.dimensions)
            keys_of.update(zip(part, of_part, strict=True))
        return [(keys_of[at], name) for at in range(len(nodes))]

    def _keys_of(
        self, model: str, nodes: Sequence[BaseNode], texts: Sequence[Sequence[Window]]
    ) -> list[tuple[str, str]]:
        # Some models return vectors of the requested length.
        length = getattr(self.embed_model, "dimensions", None)
        names = [self._name_of_vectors(model, windows) for windows in texts]
        whole = (node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes)
        return [(vector_key(text, name, length), name) for text, name in zip(whole, names, strict=True)]

    def _known_vectors(
        self, model: str, nodes: Sequence[BaseNode], texts: Sequence[Sequence[Window]]
    ) -> tuple[list[str], dict[str, NDArray[np.float32]]]:
        """Return the key of each text, and the vectors in the ledger."""
        text_keys = [key for key, _ in self._keys_of(model, nodes, texts)]
        return text_keys, self.ledger.vectors(text_keys, dimensions=getattr(self.embed_model, "dimensions", None))

    async def _aembed_new(
        self, model: BaseEmbedding, new: Mapping[str, Sequence[Window]], name: str
    ) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of texts by key; each answer is stored in the ledger before the next call is sent."""
        await asyncio.to_thread(preload, model)
        text_keys, texts = list(new), list(new.values())
        by_key: dict[str, NDArray[np.float32]] = {}
        async with aclosing(aembed_windows(model, texts, name=name, booking=self._booking(name))) as answers:
            async for places, vectors in answers:
                rows_of: dict[str, list[int]] = {}
                for row, at in enumerate(places):
                    rows_of.setdefault(self._name_of_vectors(name, texts[at]), []).append(row)
                for stored_name, rows in rows_of.items():
                    answered = [text_keys[places[row]] for row in rows]
                    by_key.update(await self._store(stored_name, answered, vectors[rows]))
        return by_key


def make_parsers(config: ProjectConfig) -> tuple[TransformComponent, TransformComponent]:
    """Return the segment parser and the chunk parser for the settings of a project."""
    return (
        SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_size // 10),
        ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap, name_facts=True),
    )


def cut(
    document: Document,
    parsers: Iterable[TransformComponent],
    *,
    seconds: float = math.inf,
    check: Callable[[], None] | None = None,
) -> Sequence[BaseNode]:
    """Return the chunks of a document.

    Args:
        document: The document.
        parsers: The segment parser and the chunk parser.
        seconds: Limit of the wall-clock time, which is checked before each segment is divided.
        check: Called before each segment is divided; an exception that it raises ends the work.

    Raises:
        TimeoutError: The limit is exceeded.
    """
    deadline = time.monotonic() + seconds

    def require_time() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError
        if check is not None:
            check()

    nodes: Sequence[BaseNode] = [document]
    for parser in parsers:
        nodes = parser(Checked(nodes, require_time))
    return nodes


class Checked(list[BaseNode]):
    """Nodes over which a loop calls a function before each one, which may raise an exception."""

    def __init__(self, nodes: Iterable[BaseNode], check: Callable[[], None]) -> None:
        super().__init__(nodes)
        self._check = check

    def __iter__(self) -> Iterator[BaseNode]:
        for node in super().__iter__():
            self._check()
            yield node


def model_notices(
    stages: Stages, config: ProjectConfig, before: OpenVersion | None, *, project: str
) -> tuple[str, ...]:
    """Return notices about the models of a run: retirement of the LLM that writes contexts, chunks in windows.

    `create` announces the retirement for the first run.
    """
    writer, notices = stages.contextualizer, []
    if isinstance(writer, LLMContextualizer) and before is not None:
        has_changed = before.manifest.config.get("llm") != config.llm
        published = None if has_changed else datetime.fromisoformat(before.manifest.created).date()
        if notice := retirement_notice(writer.model, project=project, published=published):
            notices.append(notice)
    if stages.windowed and stages.splitter is not None:
        what = "chunk was" if len(stages.windowed) == 1 else "chunks were"
        notices.append(
            f"{len(stages.windowed):,} {what} embedded in windows of at most {stages.splitter.limit:,} tokens, which"
            f" is what {stages.embed_model_name!r} reads; their vectors were averaged"
        )
    return tuple(notices)


def make_stages(
    config: ProjectConfig,
    *,
    ledger: Ledger,
    llm: LLM | None,
    embed_model: BaseEmbedding | None,
    model_id: str | None = None,
) -> Stages:
    """Return the stages for the settings of a project.

    Args:
        config: Settings of the project.
        ledger: Store of contexts and vectors already paid for.
        llm: LLM that writes contexts; None loads the one named in the settings for the first context.
        embed_model: Embedding model, or None without a semantic index.
        model_id: Name for the model of `llm`; None uses its own name.

    Raises:
        ModelError: A model has no name that distinguishes it from others.
    """
    embed_model_name = None if embed_model is None else embedding_identity(embed_model)
    splitter = None
    # A contextual model divides documents itself.
    is_divided = embed_model_name == LOCAL or isinstance(embed_model, ContextualEmbedding)
    if embed_model is not None and embed_model_name is not None and not is_divided:
        splitter = window_splitter(embed_model, embed_model_name, config.embed_window)
    return Stages(
        parsers=make_parsers(config),
        contextualizer=_contextualizer(config, ledger, llm, model_id),
        embed_model=embed_model,
        embed_model_name=embed_model_name,
        ledger=ledger,
        splitter=splitter,
    )


def _contextualizer(
    config: ProjectConfig, ledger: Ledger, llm: LLM | None, model_id: str | None
) -> Contextualizer | None:
    if config.context == "none":
        return None
    if config.context == "structural":
        return StructuralContextualizer(segment_size=config.segment_size)
    return LLMContextualizer(
        llm=llm,
        model_id=model_id,
        model=config.llm,
        prompt=config.context_prompt or DEFAULT_PROMPT,
        chunks_per_call=config.chunks_per_call,
        num_workers=config.llm_concurrency,
        call_timeout=config.call_timeout,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        service_tier=config.service_tier,
        segment_size=config.segment_size,
        ledger=ledger,
    )
