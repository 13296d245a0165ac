"""What a document passes: parsers, contextualizer, embedding, as a project's settings ask for them.

The components are ordinary ones of LlamaIndex; here they meet the ledger, and the account of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, MetadataMode, TransformComponent
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import LOCAL, ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, LLMContextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.base import Contextualized, with_context
from llama_index_contextual.contextualizer.estimate import expect
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT
from llama_index_contextual.contextualizer.spending import Spending
from llama_index_contextual.embeddings.batching import aembed, aembed_parts, unpaid
from llama_index_contextual.ingestion.jobs import Job, span_of
from llama_index_contextual.models import embedding_identity, preload
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.retirement import retirement_notice
from llama_index_contextual.storage.ledger import Ledger, vector_key


@dataclass(frozen=True, kw_only=True)
class Stages:
    """The components that a document passes.

    Attributes:
        parsers: Segment and chunk parser.
        contextualizer: Writes the contexts, or None for plain RAG.
        embed_model: Embeds the chunks, or None without a semantic index.
        embed_model_name: Its name.
        ledger: Keeps what was paid for.
        spending: Books what embeddings cost, and what is to be expected of the documents, or None.
    """

    parsers: Sequence[TransformComponent]
    contextualizer: Contextualizer | None
    embed_model: BaseEmbedding | None
    embed_model_name: str | None
    ledger: Ledger
    spending: Spending | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Stages]:
        """Give stages for one run, whose batches share the contextualizer's client and limits."""
        if self.contextualizer is None:
            yield self
            return
        async with self.contextualizer.opened() as ready:
            yield replace(self, contextualizer=ready)

    def parse(self, job: Job) -> list[BaseNode]:
        """Return the chunks of a document, with the contexts that an LLM has written for them before."""
        if job.document is None:
            return list(job.nodes or [])
        nodes: Sequence[BaseNode] = [job.document]
        for parser in self.parsers:
            nodes = parser(nodes)
        for node in nodes if job.contexts else ():
            if (context := job.contexts.get(span_of(node))) is not None:
                node.metadata |= {keys.CONTEXT: context, keys.CONTEXT_SOURCE: "llm", keys.CONTEXT_GIVEN: True}
        return list(nodes)

    def expect(self, nodes: Sequence[BaseNode]) -> None:
        """Add what the chunks of a document will need to what the run expects."""
        writer = self.contextualizer
        if self.spending is None or not isinstance(writer, LLMContextualizer):
            return
        expect(
            self.spending,
            writer,
            nodes,
            embed_model=None if self.embed_model_name == LOCAL else self.embed_model_name,
            is_batched=None if writer.replies is None else writer.replies.has,
        )

    async def acontextualize(self, nodes: Sequence[BaseNode], progress: Callable[[int], None]) -> Contextualized:
        """Return the chunks with their contexts."""
        if self.contextualizer is None:
            progress(len(nodes))
            return Contextualized([with_context(node, None) for node in nodes], [], 0)
        return await self.contextualizer.acontextualize(nodes, progress=progress)

    async def aembed(self, nodes: Sequence[BaseNode]) -> NDArray[np.float32] | None:
        """Return the unit vectors of chunks; those that were paid for before come from the ledger."""
        if self.embed_model is None or self.embed_model_name is None or not nodes:
            return None
        texts = await asyncio.to_thread(_texts_to_embed, nodes)
        if self.embed_model_name == LOCAL:
            return await aembed(self.embed_model, texts, name=LOCAL)
        names, known = await asyncio.to_thread(self._known_vectors, self.embed_model_name, texts)
        asked = {name: text for name, text in zip(names, texts, strict=True) if name not in known}
        if asked:
            known.update(await self._aembed_paid(self.embed_model, asked, self.embed_model_name))
            length = len(known[next(iter(asked))])
            # What has another length than the model's vectors of today cannot stand in one index with them.
            odd = {name: text for name, text in zip(names, texts, strict=True) if len(known[name]) != length}
            if odd:
                known.update(await self._aembed_paid(self.embed_model, odd, self.embed_model_name))
        return np.stack([known[name] for name in names])

    def _known_vectors(self, model: str, texts: Sequence[str]) -> tuple[list[str], dict[str, NDArray[np.float32]]]:
        """Return the key of each text, and the vectors of those that were paid for before."""
        # One model gives vectors of the length that it is asked for.
        length = getattr(self.embed_model, "dimensions", None)
        names = [vector_key(text, model, length) for text in texts]
        return names, self.ledger.vectors(names, dimensions=length)

    async def _aembed_paid(
        self, model: BaseEmbedding, asked: Mapping[str, str], name: str
    ) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of texts by their keys; each answer is in the ledger before the next call is sent."""
        await asyncio.to_thread(preload, model)
        names, texts = list(asked), list(asked.values())
        paid = unpaid if self.spending is None else partial(self.spending.embedding, name)
        found: dict[str, NDArray[np.float32]] = {}
        async with aclosing(aembed_parts(model, texts, name=name, paid=paid)) as answers:
            async for places, vectors in answers:
                answered = {names[at]: vector for at, vector in zip(places, vectors, strict=True)}
                found.update(answered)
                # A vector of zeros is not kept: it says nothing, and may be the provider's mistake.
                kept = [key for key, vector in answered.items() if vector.any()]
                if kept:
                    rows = np.stack([answered[key] for key in kept])
                    await asyncio.to_thread(self.ledger.add_vectors, name, kept, rows)
        return found


def notices_of(stages: Stages, *, project: str) -> tuple[str, ...]:
    """Return what is to be known about the models of a run: one that writes contexts and ends."""
    writer = stages.contextualizer
    notice = retirement_notice(writer.model, project=project) if isinstance(writer, LLMContextualizer) else None
    return () if notice is None else (notice,)


def _texts_to_embed(nodes: Sequence[BaseNode]) -> list[str]:
    return [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def make_stages(
    config: ProjectConfig,
    *,
    ledger: Ledger,
    llm: LLM | None,
    embed_model: BaseEmbedding | None,
    model_id: str | None = None,
) -> Stages:
    """Return the stages that a document passes.

    Args:
        config: The settings of the project.
        ledger: Keeps what was paid for.
        llm: Writes contexts; None makes the one that the settings name when the first context is due.
        embed_model: Embeds chunks, or None without a semantic index.
        model_id: What to call the model of `llm`; None takes its own name.

    Raises:
        ModelError: A model cannot be told from others.
    """
    return Stages(
        parsers=(
            SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_overlap),
            ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap),
        ),
        contextualizer=_contextualizer(config, ledger, llm, model_id),
        embed_model=embed_model,
        embed_model_name=None if embed_model is None else embedding_identity(embed_model),
        ledger=ledger,
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
        variables=config.context_variables,
        chunks_per_call=config.chunks_per_call,
        num_workers=config.llm_concurrency,
        call_timeout=config.call_timeout,
        requests_per_minute=config.requests_per_minute,
        tokens_per_minute=config.tokens_per_minute,
        service_tier=config.service_tier,
        segment_size=config.segment_size,
        ledger=ledger,
    )
