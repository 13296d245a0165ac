"""What every contextualizer does; a new one is one class with one method."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_index.core.schema import BaseNode, TransformComponent
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual.calls import run_sync
from llama_index_contextual.contextualizer.segments import Segment, segments
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.redaction import get_logger, scrub

logger = get_logger(__name__)

Progress = Callable[[int], None]
"""Called with the number of chunks that were just done."""


@dataclass(frozen=True)
class ChunkFailure:
    """A chunk whose context was not written as asked.

    Attributes:
        node_id: Id of the chunk.
        doc_id: Id of its document.
        error: What went wrong, and what to do.
    """

    node_id: str
    doc_id: str
    error: str


@dataclass(frozen=True)
class ChunkContext:
    """The context of one chunk.

    Attributes:
        text: The context.
        source: Who wrote it: "llm", "structural", or "none".
        error: Why it was not written as asked, or None.
        paid: Whether a provider was asked for it in this call.
    """

    text: str
    source: str
    error: str | None = None
    paid: bool = False


class Contextualized(NamedTuple):
    """Chunks with their contexts, in the order in which they were given.

    Attributes:
        nodes: New nodes; those that were given are unchanged.
        failures: Chunks whose context was not written as asked.
        paid: Number of contexts that a provider was asked for.
    """

    nodes: list[BaseNode]
    failures: list[ChunkFailure]
    paid: int


class Contextualizer(TransformComponent):
    """Puts a context before each chunk, where the embedding and the lexical index read it.

    A subclass implements `_acontexts`: the contexts of the chunks of one segment. Chunks that came with a context keep
    it. Works with the chunks of any node parser.
    """

    segment_size: int = Field(
        default=8000, gt=0, description="Tokens of a window over nodes whose parser knows no segments."
    )

    @abstractmethod
    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        """Return the contexts of some chunks of a segment, one each, in their order."""

    async def _acontexts_of_all(
        self, work: Sequence[tuple[Segment, list[BaseNode]]], progress: Progress
    ) -> list[list[ChunkContext]]:
        """Return the contexts of all segments; a subclass that waits for others overrides it with concurrency."""
        found = []
        for segment, chunks in work:
            found.append(await self._acontexts(segment, chunks))
            progress(len(chunks))
        return found

    @property
    def batches_ahead(self) -> int:
        """How many further batches of chunks should be begun while one is worked on, so that nobody waits."""
        return 0

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Contextualizer]:
        """Give a contextualizer for many calls of one run, which may share what is dear to make."""
        yield self

    def stop(self, error: ContextualError) -> None:
        """Send nothing more, because something else has failed; what is in flight is waited for."""

    async def acontextualize(self, nodes: Sequence[BaseNode], *, progress: Progress | None = None) -> Contextualized:
        """Return the chunks with their contexts, and what went wrong.

        Args:
            nodes: All chunks of one or more documents: the segments are rebuilt from them.
            progress: Called as chunks are done.
        """
        work = await asyncio.to_thread(self._work, nodes)
        contexts: dict[str, ChunkContext] = {}
        tell = progress or _ignore_progress
        if given := len(nodes) - sum(len(chunks) for _, chunks in work):
            tell(given)
        for (_, chunks), found in zip(work, await self._acontexts_of_all(work, tell), strict=True):
            contexts.update((chunk.node_id, context) for chunk, context in zip(chunks, found, strict=True))
        return await asyncio.to_thread(_contextualized, nodes, contexts)

    def _work(self, nodes: Sequence[BaseNode]) -> list[tuple[Segment, list[BaseNode]]]:
        """Return the segments, and the chunks of each that need a context."""
        found = segments(nodes, segment_size=self.segment_size)
        work = [(segment, [chunk for chunk in segment.chunks if not has_given_context(chunk)]) for segment in found]
        return [(segment, chunks) for segment, chunks in work if chunks]

    def contextualize(self, nodes: Sequence[BaseNode], *, progress: Progress | None = None) -> Contextualized:
        """Return the chunks with their contexts, and what went wrong; also from inside a running event loop."""
        return run_sync(lambda: self.acontextualize(nodes, progress=progress))

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Return the chunks with their contexts; failures are logged."""
        return _logged(self.contextualize(nodes))

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Return the chunks with their contexts; failures are logged."""
        return _logged(await self.acontextualize(nodes))


def _contextualized(nodes: Sequence[BaseNode], contexts: Mapping[str, ChunkContext]) -> Contextualized:
    return Contextualized(
        nodes=[with_context(node, contexts.get(node.node_id)) for node in nodes],
        failures=[
            ChunkFailure(node.node_id, node.ref_doc_id or "", scrub(error))
            for node in nodes
            if node.node_id in contexts and (error := contexts[node.node_id].error)
        ],
        paid=sum(context.paid for context in contexts.values()),
    )


def has_given_context(node: BaseNode) -> bool:
    """Return whether the context of a chunk is to stay: written by hand, or marked as given, whatever wrote it."""
    is_given = node.metadata.get(keys.CONTEXT_GIVEN) or node.metadata.get(keys.CONTEXT_SOURCE, "given") == "given"
    return bool(node.metadata.get(keys.CONTEXT) and is_given)


def with_context(node: BaseNode, context: ChunkContext | None) -> BaseNode:
    """Return a copy of a node that shows its context, and nothing else of ours, to the embedding and to BM25.

    Args:
        node: A chunk of any parser.
        context: Its context; None leaves the one that it came with, if any, and who wrote that.
    """
    metadata = dict(node.metadata)
    if context is not None:
        metadata[keys.CONTEXT], metadata[keys.CONTEXT_SOURCE] = context.text, context.source
    elif metadata.get(keys.CONTEXT):
        if metadata.get(keys.CONTEXT_SOURCE) in (None, "", "none"):
            metadata[keys.CONTEXT_SOURCE] = "given"
    else:
        metadata[keys.CONTEXT_SOURCE] = "none"
    if not metadata.get(keys.CONTEXT):
        metadata.pop(keys.CONTEXT, None)
    line = metadata.pop(keys.SOURCE_LINE, None) or keys.source_line(metadata)
    ordered = {keys.SOURCE_LINE: line} if line else {}
    ordered |= {k: metadata[k] for k in (keys.CONTEXT,) if k in metadata} | metadata
    update: dict[str, Any] = {
        "metadata": ordered,
        "excluded_embed_metadata_keys": keys.excluded_embed_keys(node.excluded_embed_metadata_keys),
        "excluded_llm_metadata_keys": keys.excluded_llm_keys(node.excluded_llm_metadata_keys),
        "metadata_template": keys.METADATA_TEMPLATE,
        "relationships": dict(node.relationships),
    }
    if "text_template" in type(node).model_fields:
        update["text_template"] = keys.TEXT_TEMPLATE
    return node.model_copy(update=update)


def _logged(result: Contextualized) -> list[BaseNode]:
    for failure in result.failures:
        logger.warning("Chunk %s of %s: %s", failure.node_id, failure.doc_id, failure.error)
    return result.nodes


def _ignore_progress(_done: int) -> None:
    return None
