"""Base class of contextualizers, the segments they work on, their results, and structural contexts.

A contextualizer processes one segment of a document at a time. Segments are rebuilt from the chunks alone. Chunks from
`ChunkNodeParser` store the span of their segment in their metadata. Nodes from other parsers are grouped by document
and combined in order into windows of `segment_size` tokens.

A structural context contains the document's title, the section path, the beginning of the document and, if requested,
summaries of the previous and the next chunk. It is deterministic, needs no LLM and costs nothing.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from llama_index.core.schema import BaseNode, TransformComponent
from pydantic import ConfigDict, Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.redaction import get_logger, scrub
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import default
from llama_index_contextual.contextualizer.checks import Finding
from llama_index_contextual.contextualizer.opening import opening_of
from llama_index_contextual.embeddings.batching import pack
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index.languages import language_of_texts

logger = get_logger(__name__)

HOLE = "\n[…]\n"
"""Marker for missing text between two chunks of a segment."""
_BETWEEN = "\n\n"
_OPENING_CHUNKS = 5
_HEADING = re.compile(r"^#{1,6} (\S.*)$", re.MULTILINE)
MAX_CONTEXT_TOKENS = 200
"""Maximum number of tokens in a context."""
MIN_CONTEXT_TOKENS = 50
"""Minimum number of tokens that the context written by an LLM should have."""
MAX_LINE_TOKENS = 60
"""Maximum number of tokens in a line of a context in another language."""
THIN_TOKENS = 15
"""Number of tokens below which a context is too short to situate a chunk."""


@dataclass(frozen=True)
class Segment:
    """Part of a document that a contextualizer works on.

    Attributes:
        doc_id: Id of the document.
        title: Title of the document, or its file name, or None.
        file_name: Name of the file, or None.
        opening: First lines that identify the document, from the first chunks of the call; see `opening_of`.
        begins_document: Whether the segment starts with the document's first chunk.
        section: Section path at the beginning of the segment, or None.
        facts: Named facts about the document, or an empty string.
        text: Text of the segment, including the overlap with neighbouring segments.
        chunks: Chunks of the segment, in order of occurrence.
        starts: Offset of each chunk in `text`.
        document_size: Number of chunks in the document.
        before: Last chunk before the segment, or None.
        after: First chunk after the segment, or None.
        first_heading: First Markdown heading in the first chunk of the document, or an empty string.
    """

    doc_id: str
    title: str | None
    file_name: str | None
    opening: str
    begins_document: bool
    section: str | None
    text: str
    chunks: tuple[BaseNode, ...]
    starts: tuple[int, ...] = ()
    document_size: int = 0
    facts: str = ""
    before: BaseNode | None = None
    after: BaseNode | None = None
    first_heading: str = ""

    @cached_property
    def ambiguous(self) -> frozenset[str]:
        """Chunk texts that occur in more than one section."""
        sections: dict[str, set[str]] = {}
        for chunk in self.chunks:
            sections.setdefault(chunk.get_content(), set()).add(str(chunk.metadata.get(keys.SECTION)))
        return frozenset(text for text, names in sections.items() if len(names) > 1)

    @cached_property
    def language(self) -> str:
        """Language of the text, or an empty string if it is not recognised."""
        return language_of_texts([self.text])


def segments(nodes: Sequence[BaseNode], *, segment_size: int) -> list[Segment]:
    """Return the segments of all documents in `nodes`, in the order in which the documents occur.

    Args:
        nodes: Chunks of any number of documents.
        segment_size: Tokens per window for nodes from a parser that does not create segments.
    """
    documents: dict[str, list[BaseNode]] = {}
    for node in nodes:
        documents.setdefault(node.ref_doc_id or node.node_id, []).append(node)
    return [segment for doc_id, chunks in documents.items() for segment in _of_document(doc_id, chunks, segment_size)]


ChunkPlace = tuple[str, int, int]
"""Text of a chunk without white space, and how many chunks of its document with this text precede it and exist."""


def chunk_places(nodes: Sequence[BaseNode]) -> list[ChunkPlace]:
    """Return the places of all chunks of a document, by which they are found again if the rest of the text changes."""
    texts = ["".join(node.get_content().split()) for node in nodes]
    counts, earlier = Counter(texts), Counter[str]()
    places = []
    for text in texts:
        places.append((text, earlier[text], counts[text]))
        earlier[text] += 1
    return places


def _of_document(doc_id: str, nodes: Sequence[BaseNode], segment_size: int) -> Iterable[Segment]:
    chunks = sorted(nodes, key=_start)
    first = chunks[0]
    texts = (chunk.get_content() for chunk in chunks[:_OPENING_CHUNKS])
    opening = opening_of(texts, keys.label_of(first.metadata, keys.TITLE))
    heading = _HEADING.search(first.get_content())
    positions, longest = [_start(chunk) for chunk in chunks], max(len(chunk.get_content()) for chunk in chunks)
    offset, neighbours = 0, [None, *chunks, None]
    for group in _groups(chunks, segment_size):
        start, end = _segment_span(group)
        # Only these chunks can overlap the segment. Comparing every segment with all chunks of a document is too slow.
        near = chunks[bisect_right(positions, start - longest) : bisect_left(positions, end)]
        text, starts = _segment_text(near, group, start, end)
        yield Segment(
            doc_id=doc_id,
            title=keys.label_of(first.metadata, keys.TITLE) or keys.label_of(first.metadata, keys.FILE_NAME) or None,
            file_name=keys.label_of(first.metadata, keys.FILE_NAME) or None,
            opening=opening,
            begins_document=group[0] is first,
            section=keys.label_of(group[0].metadata, keys.SECTION) or None,
            text=text,
            chunks=tuple(group),
            starts=starts,
            document_size=len(chunks),
            facts=str(first.metadata.get(keys.FACTS) or ""),
            before=neighbours[offset],
            after=neighbours[offset + len(group) + 1],
            first_heading=heading[1] if heading else "",
        )
        offset += len(group)


def _groups(chunks: Sequence[BaseNode], segment_size: int) -> list[list[BaseNode]]:
    if all(keys.SEGMENT_INDEX in chunk.metadata for chunk in chunks):
        return [list(group) for _, group in groupby(chunks, key=lambda chunk: chunk.metadata[keys.SEGMENT_INDEX])]
    return list(pack(chunks, lambda chunk: (count_tokens(chunk.get_content()),), (segment_size,)))


def _segment_span(group: Sequence[BaseNode]) -> tuple[int, int]:
    """Return the start and end offsets of the segment that contains a group of chunks."""
    start, end = group[0].metadata.get(keys.SEGMENT_START), group[-1].metadata.get(keys.SEGMENT_END)
    if isinstance(start, int) and isinstance(end, int):
        return start, end
    return _start(group[0]), max(_start(c) + len(c.get_content()) for c in group)


def _segment_text(
    chunks: Sequence[BaseNode], group: Sequence[BaseNode], start: int, end: int
) -> tuple[str, tuple[int, ...]]:
    """Return the text of a segment, and the offsets of its chunks in this text."""
    if any(getattr(chunk, "start_char_idx", None) is None for chunk in group):
        texts = [chunk.get_content() for chunk in group]
        return _BETWEEN.join(texts), tuple(accumulate((len(t) + len(_BETWEEN) for t in texts[:-1]), initial=0))
    nodes = (c for c in chunks if getattr(c, "start_char_idx", None) is not None)
    text, starts = join([c for c in nodes if _start(c) < end and _start(c) + len(c.get_content()) > start], start, end)
    # A chunk from another parser may be empty and not occur in the text.
    return text, tuple(starts.get(chunk.node_id, 0) for chunk in group)


def join(chunks: Sequence[BaseNode], start: int, end: int) -> tuple[str, dict[str, int]]:
    """Return the text between two offsets of a document, assembled from the document's chunks in order.

    White space between chunks becomes a line break. A missing chunk is logged and marked with `HOLE`.

    Returns:
        The text, and a mapping of chunk ids to offsets in this text.
    """
    pieces: list[str] = []
    starts: dict[str, int] = {}
    at, last, length = start, None, 0
    for chunk in chunks:
        text, begin = chunk.get_content(), _start(chunk)
        if pieces and begin > at:
            pieces.append("\n" if _follows(last, chunk) else HOLE)
            length += len(pieces[-1])
            if pieces[-1] == HOLE:
                logger.warning("Chunks of %s are missing before character %d.", chunk.ref_doc_id, begin)
        starts[chunk.node_id] = max(0, length - max(0, at - begin))
        pieces.append(text[max(0, at - begin) : max(0, end - begin)])
        length += len(pieces[-1])
        at, last = max(at, begin + len(text)), chunk
    return "".join(pieces), starts


def _follows(last: BaseNode | None, chunk: BaseNode) -> bool:
    """Return whether a chunk is next to the previous chunk; assume that it is if either chunk has no index."""
    before = None if last is None else last.metadata.get(keys.CHUNK_INDEX)
    number = chunk.metadata.get(keys.CHUNK_INDEX)
    return before is None or number is None or number <= before + 1


def _start(node: BaseNode) -> int:
    return getattr(node, "start_char_idx", None) or 0


Progress = Callable[[int], None]
"""Callback that receives the number of chunks just finished."""

SegmentWork = tuple[Segment, list[BaseNode]]
"""A segment, with its chunks that need a context."""


@dataclass(frozen=True)
class ChunkFailure:
    """A chunk whose context could not be written as requested, or that could not be embedded.

    Attributes:
        node_id: Id of the chunk.
        doc_id: Id of its document.
        error: Description of the error and how to fix it.
        is_held_back: Whether `retry_failed` requires `max_cost` to request the context again, because the LLM refused
            to write it, or because the provider may charge for a reply that cannot be read.
        step: The step that failed: "context" or "embedding".
    """

    node_id: str
    doc_id: str
    error: str
    is_held_back: bool = False
    step: Literal["context", "embedding"] = "context"


@dataclass(frozen=True)
class ChunkContext:
    """The context of one chunk.

    Attributes:
        text: The context, without lines in other languages.
        source: Origin of the context: "llm", "structural", or "none".
        error: Reason why the context could not be written as requested, or None.
        paid: Whether the context was requested from a provider in this call.
        structure: Structural line to put before the text, or an empty string.
        tokens: Number of tokens before the context was shortened; 0 if an LLM did not write it in this call.
        is_held_back: Whether the context is requested again only if `max_cost` is given; see `ChunkFailure`.
        findings: What was wrong with a context that an LLM wrote, before it was checked.
        is_kept: Whether the context was written when the rest of the segment was read differently.
        lines: Lines in other languages, each of which begins with the code of its language.
    """

    text: str
    source: str
    error: str | None = None
    paid: bool = False
    structure: str = ""
    tokens: int = 0
    is_held_back: bool = False
    findings: Collection[Finding] = ()
    is_kept: bool = False
    lines: Sequence[str] = ()

    @classmethod
    def of_llm(cls, written: str, *, paid: bool = False, tokens: int = 0) -> ChunkContext:
        """Return a context in the form in which the ledger stores it, with lines in other languages below the text."""
        text = written.split("\n")
        lines = [line for line in text if keys.LANGUAGE_LINE.fullmatch(line)]
        text = [line for line in text if line not in lines]
        return cls("\n".join(text), "llm", paid=paid, tokens=tokens, lines=tuple(lines))

    @classmethod
    def failed(cls, error: str, *, is_held_back: bool = False) -> ChunkContext:
        """Return the result for a chunk whose context could not be written."""
        return cls("", "none", error, is_held_back=is_held_back)

    @property
    def written(self) -> str:
        """The context in the form in which the ledger stores it; see `of_llm`."""
        return "\n".join((self.text, *self.lines))

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata that stores this context in a chunk."""
        head = f"{self.structure}\n" if self.structure else ""
        values = {keys.CONTEXT: head + self.written, keys.CONTEXT_SOURCE: self.source}
        return {**values, keys.CONTEXT_WRITTEN_AT: len(head)} if head else values


class Contextualized(NamedTuple):
    """Chunks with their contexts, in the order of the input.

    Attributes:
        nodes: Copies of the nodes; the input is not changed.
        failures: Chunks whose context could not be written as requested.
        paid: Number of contexts requested from a provider.
        thin: Ids of the chunks whose context is very short.
        lengths: Numbers of tokens in the contexts that an LLM wrote in this call, before they were shortened.
        findings: Numbers of contexts with each kind of fault, before they were checked; see `Finding`.
        kept: Number of contexts that were written when the rest of the segment was read differently.
    """

    nodes: list[BaseNode]
    failures: list[ChunkFailure]
    paid: int
    thin: Sequence[str] = ()
    lengths: Sequence[int] = ()
    findings: Mapping[Finding, int] = MappingProxyType({})
    kept: int = 0


class Contextualizer(TransformComponent):
    """Base class for transformations that add a context to each chunk.

    The context is embedded and indexed with the text of the chunk.

    A subclass implements `_acontexts`, which returns the contexts for chunks of one segment. Chunks that already have a
    context keep it. Chunks from any node parser can be used.

    Args:
        segment_size: Tokens per window for nodes from a parser that does not create segments.
    """

    model_config = ConfigDict(extra="forbid")

    segment_size: int = Field(default=default("segment_size"), gt=0)

    @abstractmethod
    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        """Return one context for each of the given chunks of a segment, in the order given."""

    @property
    def groups_ahead(self) -> int:
        """Number of groups of chunks to start ahead of the current group."""
        return 0

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ContextSession]:
        """Provide a session, whose calls share expensive resources, such as a client, for one run."""
        yield ContextSession(self)

    async def acontextualize(self, nodes: Sequence[BaseNode], *, progress: Progress | None = None) -> Contextualized:
        """Return the chunks with their contexts, and the failures.

        Args:
            nodes: All chunks of one or more documents; the segments are rebuilt from them.
            progress: Called whenever chunks are finished.
        """
        async with self.session() as session:
            return await session.acontextualize(nodes, progress=progress)

    def contextualize(self, nodes: Sequence[BaseNode], *, progress: Progress | None = None) -> Contextualized:
        """Blocking version of `acontextualize`, which also works inside a running event loop."""
        return run_sync(lambda: self.acontextualize(nodes, progress=progress))

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Return the chunks with their contexts; failures are logged."""
        return _log_failures(self.contextualize(nodes))

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        """Return the chunks with their contexts; failures are logged."""
        return _log_failures(await self.acontextualize(nodes))


class ContextSession:
    """One run of a contextualizer. The contextualizer holds the settings, and the session everything else.

    Args:
        settings: The contextualizer.
    """

    def __init__(self, settings: Contextualizer) -> None:
        self._settings = settings

    async def acontextualize(self, nodes: Sequence[BaseNode], *, progress: Progress | None = None) -> Contextualized:
        """Return the chunks with their contexts, and the failures; see `Contextualizer.acontextualize`."""
        work = await asyncio.to_thread(self._work, nodes)
        contexts: dict[str, ChunkContext] = {}
        report = progress or (lambda _done: None)
        if with_context_already := len(nodes) - sum(len(chunks) for _, chunks in work):
            report(with_context_already)
        for (_, chunks), document_contexts in zip(work, await self._acontexts_of_all(work, report), strict=True):
            contexts.update((chunk.node_id, context) for chunk, context in zip(chunks, document_contexts, strict=True))
        return await asyncio.to_thread(_contextualized, nodes, contexts)

    async def _acontexts_of_all(self, work: Sequence[SegmentWork], progress: Progress) -> list[list[ChunkContext]]:
        """Return the contexts of all segments. A subclass can process several segments concurrently."""
        contexts = []
        for segment, chunks in work:
            contexts.append(await self._settings._acontexts(segment, chunks))
            progress(len(chunks))
        return contexts

    def stop(self, error: ContextualError) -> None:
        """Stop sending calls because of an error elsewhere; calls in flight may finish."""

    def _work(self, nodes: Sequence[BaseNode]) -> list[SegmentWork]:
        """Return each segment with its chunks that need a context."""
        work = [
            (segment, [chunk for chunk in segment.chunks if not has_given_context(chunk)])
            for segment in segments(nodes, segment_size=self._settings.segment_size)
        ]
        return [(segment, chunks) for segment, chunks in work if chunks]


def _contextualized(nodes: Sequence[BaseNode], contexts: Mapping[str, ChunkContext]) -> Contextualized:
    new = {name: context for name, context in contexts.items() if context.tokens}
    return Contextualized(
        nodes=[with_context(node, contexts.get(node.node_id)) for node in nodes],
        failures=[
            ChunkFailure(node.node_id, node.ref_doc_id or "", scrub(error), contexts[node.node_id].is_held_back)
            for node in nodes
            if node.node_id in contexts and (error := contexts[node.node_id].error)
        ],
        paid=sum(context.paid for context in contexts.values()),
        thin=tuple(name for name, context in new.items() if count_tokens(context.text) < THIN_TOKENS),
        lengths=tuple(context.tokens for context in new.values()),
        findings=Counter(finding for context in contexts.values() for finding in context.findings),
        kept=sum(context.is_kept for context in contexts.values()),
    )


def has_given_context(node: BaseNode) -> bool:
    """Return whether a chunk has a context that must be kept because it was written by hand or marked as given."""
    is_given = node.metadata.get(keys.CONTEXT_GIVEN) or node.metadata.get(keys.CONTEXT_SOURCE, "given") == "given"
    return bool(node.metadata.get(keys.CONTEXT) and is_given)


def with_context(node: BaseNode, context: ChunkContext | None) -> BaseNode:
    """Return a copy of a node with its context, and exclude metadata keys that must not be embedded or shown to LLMs.

    The keys that only the node parsers read are removed; a foreign parser passes them on.

    Args:
        node: A chunk from any parser.
        context: Its context; None keeps an existing context and its source.
    """
    metadata = {key: value for key, value in node.metadata.items() if key not in keys.INTERNAL_KEYS}
    if context is not None:
        metadata.pop(keys.CONTEXT_WRITTEN_AT, None)
        metadata |= context.to_metadata()
    elif metadata.get(keys.CONTEXT):
        if metadata.get(keys.CONTEXT_SOURCE) in (None, "", "none"):
            metadata[keys.CONTEXT_SOURCE] = "given"
    else:
        metadata[keys.CONTEXT_SOURCE] = "none"
    if not metadata.get(keys.CONTEXT):
        metadata.pop(keys.CONTEXT, None)
    line = metadata.pop(keys.SOURCE_LINE, None) or keys.source_line(metadata)
    fields = {keys.SOURCE_LINE: line} if line else {}
    fields |= {k: metadata[k] for k in (keys.CONTEXT,) if k in metadata} | metadata
    update: dict[str, Any] = {
        "metadata": fields,
        "excluded_embed_metadata_keys": keys.excluded_embed_keys(node.excluded_embed_metadata_keys),
        "excluded_llm_metadata_keys": keys.excluded_llm_keys(node.excluded_llm_metadata_keys),
        "metadata_template": keys.METADATA_TEMPLATE,
        "relationships": dict(node.relationships),
    }
    if "text_template" in type(node).model_fields:
        update["text_template"] = keys.TEXT_TEMPLATE
    return node.model_copy(update=update)


def _log_failures(result: Contextualized) -> list[BaseNode]:
    for failure in result.failures:
        logger.warning("Chunk %s of %s: %s", failure.node_id, failure.doc_id, failure.error)
    return result.nodes


# ---- Structural contexts ---------------------------------------------------------------------------------------------

_LONGEST_WORD = 40
_MAX_TITLE_TOKENS = 40
_MAX_SECTION_TOKENS = 25
# A paged document with more chunks than this is assumed to begin with a cover page, whose first lines identify the
# document. The rest of the cover would only take up space in hundreds of contexts.
_LONG_DOCUMENT = 100
_COVER_CHARACTERS = 150
NEIGHBOUR_TOKENS = 30
"""Maximum number of tokens in the summary of a neighbouring chunk."""
_SUMMARISED_CHARACTERS = 1_500
_CLAUSE_END = re.compile(r"(?<=[.!?:;])\s|[。！？：；]")


class StructuralContextualizer(Contextualizer):
    """Build contexts from the document's title, file name and opening, and the chunk's section path.

    Args:
        max_tokens: Maximum number of tokens in a context, without the summaries of neighbours. The limit is 50 % higher
            for documents with pages, whose titles and section names are longer.
        neighbours: Whether to add a summary of the previous and of the next chunk, of at most 30 tokens each: the
            section, if it differs, and the longest clause that the chunk itself does not contain.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> node = TextNode(text="Revenue grew by 3 %.", metadata={"title": "ACME Q2 2023", "section": "Results"})
        >>> StructuralContextualizer()([node])[0].metadata["context"]
        'ACME Q2 2023. Section: Results.'
    """

    max_tokens: int = Field(default=120, gt=0)
    neighbours: bool = False

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "StructuralContextualizer"

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return await asyncio.to_thread(self.contexts, segment, chunks)

    def contexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        """Return one context for each of the given chunks of a segment."""
        parts = zip(self.structural_lines(segment, chunks), self._summaries(segment, chunks, {}), strict=True)
        return [ChunkContext(_joined(*lines), "structural") for lines in parts]

    def structural_lines(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[str]:
        """Return the structural line for each of the given chunks, without summaries of neighbours."""
        head = _document_line(segment)
        # A single chunk already contains the opening. If there are several chunks, the opening is added even to the
        # first chunk. Otherwise, this chunk would contain the words of the opening only once and rank below the other
        # chunks, which contain these words in addition to their own text.
        alone = segment.begins_document and len(segment.chunks) == 1
        opening = "" if alone else segment.opening
        if segment.document_size > _LONG_DOCUMENT and keys.PAGE_START in segment.chunks[0].metadata:
            opening = _shortened(opening, _COVER_CHARACTERS)
        return [self._write(head, opening, chunk) for chunk in chunks]

    def add_structure(
        self, segment: Segment, chunks: Sequence[BaseNode], contexts: Sequence[ChunkContext]
    ) -> list[ChunkContext]:
        """Put structural lines before contexts that were written by an LLM.

        A line and its context together have at most 200 tokens, without the summaries of neighbours; the line is
        shortened if necessary.

        Args:
            segment: The segment.
            chunks: Chunks of the segment.
            contexts: Their contexts; contexts from other sources are not changed.
        """
        of_llm = {
            c.node_id: context.text for c, context in zip(chunks, contexts, strict=True) if context.source == "llm"
        }
        lines, summaries = self.structural_lines(segment, chunks), self._summaries(segment, chunks, of_llm)
        free = [max(0, MAX_CONTEXT_TOKENS - count_tokens(context.text)) for context in contexts]
        structure = [
            _joined(truncate(line, n), summary) for line, n, summary in zip(lines, free, summaries, strict=True)
        ]
        return [
            replace(context, structure=before) if context.source == "llm" else context
            for before, context in zip(structure, contexts, strict=True)
        ]

    def _summaries(self, segment: Segment, chunks: Sequence[BaseNode], of_llm: Mapping[str, str]) -> list[str]:
        """Return the summaries of each chunk's neighbours; `of_llm` maps chunk ids to contexts from an LLM."""
        if not self.neighbours:
            return [""] * len(chunks)
        row = [segment.before, *segment.chunks, segment.after]
        places = {chunk.node_id: at for at, chunk in enumerate(segment.chunks, start=1)}
        lines = []
        for chunk in chunks:
            at = places[chunk.node_id]
            near = (("Before", row[at - 1]), ("After", row[at + 1]))
            summaries = [
                (label, _summary(neighbour, chunk, of_llm)) for label, neighbour in near if neighbour is not None
            ]
            lines.append(_joined(*(f"{label}: {summary}." for label, summary in summaries if summary)))
        return lines

    def _write(self, head: str, opening: str, chunk: BaseNode) -> str:
        """Join the parts of a context, most informative first, and truncate the result to the limit."""
        section = keys.label_of(chunk.metadata, keys.SECTION)
        parts = [head, f"Section: {truncate(section, _MAX_SECTION_TOKENS)}." if section else ""]
        parts += [f"Begins: {opening}" if opening else ""]
        limit = self.max_tokens * 3 // 2 if keys.PAGE_START in chunk.metadata else self.max_tokens
        return truncate(_joined(*parts), limit)


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _summary(node: BaseNode, neighbour: BaseNode, of_llm: Mapping[str, str]) -> str:
    """Return the section of a chunk, if its neighbour's section differs, and its longest clause that is not shared.

    The clause comes from the context that an LLM wrote for the chunk; then the section is omitted. If there is no such
    context, the clause comes from the chunk's text.
    """
    text, shared = of_llm.get(node.node_id), of_llm.get(neighbour.node_id, "")
    section = keys.label_of(node.metadata, keys.SECTION)
    if text or section == keys.label_of(neighbour.metadata, keys.SECTION):
        section = ""
    if not text:
        text, shared = node.get_content()[:_SUMMARISED_CHARACTERS], neighbour.get_content()
    text, shared = (" ".join(words.split()) for words in (text, shared))
    clauses = [clause.strip(" .:;") for clause in _CLAUSE_END.split(text) if clause not in shared]
    return truncate(": ".join(filter(None, (section, max(clauses, key=len, default="")))), NEIGHBOUR_TOKENS)


def _document_line(segment: Segment) -> str:
    title, name = segment.title, segment.file_name
    if title and name and title != name:
        return f"{truncate(title, _MAX_TITLE_TOKENS)} ({truncate(name, _MAX_TITLE_TOKENS)})."
    return f"{truncate(title, _MAX_TITLE_TOKENS)}." if title else ""


def _shortened(text: str, length: int) -> str:
    """Shorten a text to at most `length` characters, at a word boundary, and append an ellipsis."""
    if len(text) <= length:
        return text
    end = text.rfind(" ", 0, length + 1)
    return f"{text[: end if end > 0 else length]} …"


def truncate(text: str, max_tokens: int) -> str:
    """Truncate a text to at most `max_tokens` tokens at the end of a word.

    A very long word, such as a sentence in a script without spaces, is cut off within the word.
    """
    text = " ".join(text.split())
    if count_tokens(text) <= max_tokens:
        return text
    words = text.split(" ")
    count = _most(len(words), lambda n: count_tokens(" ".join(words[:n])) <= max_tokens)
    whole_words = " ".join(words[:count])
    if count and len(words[count]) <= _LONGEST_WORD:
        return whole_words
    head, word = f"{whole_words} " if whole_words else "", words[count]
    return (head + word[: _most(len(word), lambda n: count_tokens(head + word[:n]) <= max_tokens)]).strip()


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` for which `fits` is true; 0 is assumed to fit."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))
