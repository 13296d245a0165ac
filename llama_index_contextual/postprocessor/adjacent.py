"""Merge adjacent chunks of a document into one passage, without repeating overlaps and with exact offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, NodeRelationship, NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.docstore.types import BaseDocumentStore
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import without_secrets
from llama_index_contextual._utils.redaction import watch
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.part import load_frame
from llama_index_contextual.models import settings_embed_model
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.stores import IndexDocumentStore

Gap = Callable[[int, int], str | None]
"""Returns the text of the document between two offsets, or None if it is not known."""

T = TypeVar("T")

_MOST_UNKNOWN = 2
"""Maximum number of unknown characters between linked chunks that are assumed to be white space: a paragraph break."""

_MOST_SECTIONS = 3

_NEIGHBOURS = (NodeRelationship.PREVIOUS, NodeRelationship.NEXT)
_OF_FIRST = (
    *(keys.PAGE_START, keys.PAGE_LABEL, keys.SEGMENT_INDEX, keys.SEGMENT_START, keys.SEGMENT_END),
    *(keys.CHUNK_INDEX, keys.TABLE_HEAD),
)
"""Metadata that a passage takes from its first chunk."""


# ---- passages --------------------------------------------------------------------------------------------------------


@dataclass
class Passage:
    """Consecutive chunks of one document, without missing text between them.

    Attributes:
        start: Offset of the first character in the document.
        text: The text of the passage.
        nodes: The chunks, in the order of the text.
    """

    start: int
    text: str
    nodes: list[TextNode] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Offset after the last character."""
        return self.start + len(self.text)

    def take(self, node: TextNode, gap: Gap, max_tokens: int) -> bool:
        """Append a chunk that begins no earlier than this passage.

        Return False if text is missing between them, or the passage would become too long.
        """
        start, text = span_start(node), node.text
        between = ""
        if start > self.end:
            white_space = gap(self.end, start)
            if white_space is None and follows(self.nodes[-1], node):
                white_space = _white_space(start - self.end)
            if white_space is None or white_space.strip():
                return False
            between = white_space
        shared = max(0, self.end - start)
        at = start - self.start
        # Wrong offsets (from a parser that searched for repeated text) must not garble a passage.
        if self.text[at : at + len(text)] != text[:shared]:
            return False
        longer = self.text + between + text[shared:]
        if len(longer) > len(self.text) and count_tokens(longer) > max_tokens:
            return False
        self.text = longer
        self.nodes.append(node)
        return True


def join(nodes: Iterable[TextNode], gap: Gap, max_tokens: int) -> list[Passage]:
    """Return the passages that chunks of one document form, in the order of the text, without repeated overlaps.

    Args:
        nodes: Chunks with offsets, in any order.
        gap: Returns the text between two offsets.
        max_tokens: Maximum number of tokens of a passage of several chunks.
    """
    passages: list[Passage] = []
    for node in sorted(nodes, key=lambda node: (span_start(node), -len(node.text))):
        if not passages or not passages[-1].take(node, gap, max_tokens):
            passages.append(Passage(span_start(node), node.text, [node]))
    return passages


def has_span(node: object) -> bool:
    """Return whether a node has offsets in its document that agree with the length of its text."""
    if not isinstance(node, TextNode) or node.ref_doc_id is None:
        return False
    start, end = node.start_char_idx, node.end_char_idx
    return start is not None and end is not None and end - start == len(node.text) > 0


def span_start(node: TextNode) -> int:
    """Return the offset of a node's first character."""
    return node.start_char_idx or 0


def follows(node: TextNode, other: TextNode) -> bool:
    """Return whether `other` is the next chunk of the document."""
    if node.next_node is not None and node.next_node.node_id == other.node_id:
        return True
    if other.prev_node is not None and other.prev_node.node_id == node.node_id:
        return True
    here, there = (n.metadata.get(keys.CHUNK_INDEX) for n in (node, other))
    return isinstance(here, int) and here + 1 == there


def joint_section(paths: Sequence[str | None]) -> str | None:
    """Return one path for the sections of chunks: the common part once, then the rest of each path.

    Of more than three paths, only the first and the last are named.

    Args:
        paths: The section of each chunk, in the order of the text; None for a chunk without a section.

    Example:
        >>> joint_section(["Manual > Faults > TS-998", "Manual > Faults > TS-999", "Manual > Repairs"])
        'Manual > Faults > TS-998; Faults > TS-999; Repairs'
    """
    distinct = [path.split(keys.SECTION_SEPARATOR) for path in dict.fromkeys(paths) if path]
    if len(distinct) < 2:
        return next((path for path in paths if path), None)
    shared = 0
    while all(len(path) > shared + 1 for path in distinct) and len({path[shared] for path in distinct}) == 1:
        shared += 1
    rest = [keys.SECTION_SEPARATOR.join(path[shared:]) for path in distinct]
    named = "; ".join(rest) if len(rest) <= _MOST_SECTIONS else f"{rest[0]} … {rest[-1]}"
    return keys.SECTION_SEPARATOR.join([*distinct[0][:shared], named])


def _white_space(length: int) -> str | None:
    if length > _MOST_UNKNOWN:
        return None
    return " " if length == 1 else "\n" * length


# ---- postprocessor ---------------------------------------------------------------------------------------------------


class MergedChunk(RetrievedChunk):
    """A passage of several chunks, with the score and the evidence of its best hit."""

    chunks: list[TextNode] = Field(default_factory=list, description="The chunks, in the order of the text.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises this class."""
        return "MergedChunk"

    def chunk_at(self, start: int) -> TextNode | None:
        """Return the first chunk that contains the character at an offset of the document, or None."""
        return next(
            (chunk for chunk in self.chunks if span_start(chunk) <= start < span_start(chunk) + len(chunk.text)), None
        )


class AdjacentChunkMerger(BaseNodePostprocessor):
    """Merge consecutive hits of a document into one passage, in which overlaps are not repeated.

    A passage takes the position of its best hit and keeps its id, score and evidence; offsets, pages and sections are
    those of the whole passage, and its context has the sentences written for each chunk, one per line. A run of hits
    that is longer than `max_tokens` becomes several passages. Nodes without offsets are not changed. Without the
    docstore, chunks with white space between them are merged only if they are linked and at most two characters apart.

    `docstore` and `embed_model` are not serialised: set them again after `from_dict`.

    Example:
        >>> merger = AdjacentChunkMerger()
        >>> engine = project.as_query_engine(node_postprocessors=[merger])  # doctest: +SKIP
    """

    bridge: bool = Field(
        default=False, description="Whether to include a single chunk between two hits; needs the docstore."
    )
    expand: bool = Field(
        default=False,
        description="Whether to add neighbouring chunks to a passage while it keeps its similarity to the query; needs"
        " the docstore and the embedding model.",
    )
    keep: float = Field(
        default=0.95, gt=0, le=1, description="Share of its similarity that a passage must keep when it is expanded."
    )
    max_tokens: int = Field(
        default=2400,
        ge=1,
        description="Maximum number of tokens of a passage of several chunks. The default has room for three chunks of"
        " the default size: two hits and the chunk between them.",
    )
    docstore: BaseDocumentStore | None = Field(
        default=None, exclude=True, description="The document store with the chunks."
    )
    embed_model: BaseEmbedding | None = Field(
        default=None, exclude=True, repr=False, description="Embeds passages and query."
    )

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex serialises this class."""
        return "AdjacentChunkMerger"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        hits: dict[str, list[NodeWithScore]] = {}
        for hit in nodes:
            if has_span(hit.node):
                hits.setdefault(hit.node.ref_doc_id or "", []).append(hit)
        similarity = self._similarity(query_bundle)
        merged: dict[int, NodeWithScore] = {}  # by the position of the best hit
        places = {id(hit): place for place, hit in enumerate(nodes)}
        for doc_id, hits_of_document in hits.items():
            for passage in self._passages(doc_id, [_text_node(hit.node) for hit in hits_of_document], similarity):
                inside = _hits_inside(passage, hits_of_document)
                if not inside:
                    continue  # a neighbour whose offsets do not fit
                best = min(inside, key=lambda hit: (-(hit.score or 0.0), places[id(hit)]))
                merged[places[id(best)]] = best if len(passage.nodes) == 1 else _merge(passage, best)
        return [merged.get(at, hit) for at, hit in enumerate(nodes) if at in merged or not has_span(hit.node)]

    def _passages(
        self, doc_id: str, nodes: Sequence[TextNode], similarity: Callable[[str], float] | None
    ) -> list[Passage]:
        gap = _gap(self.docstore, doc_id)
        distinct = list({node.node_id: node for node in nodes}.values())
        passages = join(distinct, gap, self.max_tokens)
        if self.bridge:
            passages = join([*distinct, *self._between(passages)], gap, self.max_tokens)
        if similarity is not None:
            expanded = [node for passage in passages for node in self._expand(passage, gap, similarity)]
            passages = join({node.node_id: node for node in expanded}.values(), gap, self.max_tokens)
        return passages

    def _between(self, passages: Sequence[Passage]) -> list[TextNode]:
        """Return the chunks that are the only one between a passage and the next."""
        nexts = self._fetch(passage.nodes[-1].next_node for passage in passages[:-1])
        chunks = []
        for passage, other in pairwise(passages):
            link = passage.nodes[-1].next_node
            node = nexts.get(link.node_id) if link is not None else None
            if node is not None and node.next_node and node.next_node.node_id == other.nodes[0].node_id:
                chunks.append(node)
        return chunks

    def _expand(self, passage: Passage, gap: Gap, similarity: Callable[[str], float]) -> list[TextNode]:
        """Return the chunks of a passage and the neighbours with which it keeps its similarity to the query."""
        least = self.keep * similarity(passage.text)
        while True:
            first, last = passage.nodes[0], passage.nodes[-1]
            links = (first.prev_node, last.next_node)
            known = {node.node_id for node in passage.nodes}
            neighbours = [node for node in self._fetch(links).values() if node.node_id not in known]
            wider = [join([*passage.nodes, node], gap, self.max_tokens) for node in neighbours]
            fitting = [joined[0] for joined in wider if len(joined) == 1]
            scored = [(similarity(candidate.text), -candidate.start, candidate) for candidate in fitting]
            best = max(scored, key=lambda item: item[:2], default=None)
            if best is None or best[0] < least:
                return passage.nodes
            passage = best[2]

    def _fetch(self, links: Iterable[object]) -> dict[str, TextNode]:
        docstore = _require(self.docstore, "docstore", "bridge and expand")
        ids = list(dict.fromkeys(node_id for link in links if (node_id := getattr(link, "node_id", None))))
        nodes = docstore.get_nodes(ids, raise_error=False) if ids else []
        return {node.node_id: _text_node(node) for node in nodes if has_span(node)}

    def _similarity(self, query: QueryBundle | None) -> Callable[[str], float] | None:
        if not self.expand or query is None:
            return None
        model = _require(self.embed_model or settings_embed_model(), "embed_model", "expand")
        watch(model)
        question = query.query_str
        of_query = np.asarray(query.embedding or without_secrets(lambda: model.get_query_embedding(question)))

        def similarity(text: str) -> float:
            of_text = np.asarray(without_secrets(lambda: model.get_text_embedding(text)))
            length = float(np.linalg.norm(of_text) * np.linalg.norm(of_query))
            return float(of_query @ of_text) / length if length else 0.0

        return similarity


def _require(value: T | None, name: str, needed_by: str) -> T:
    if value is None:
        raise ConfigurationError(f"AdjacentChunkMerger needs `{name}` for {needed_by}: pass it.", setting=name)
    return value


def _gap(docstore: BaseDocumentStore | None, doc_id: str) -> Gap:
    """Return a function for the white space between chunks, from the document's frame if the docstore has one."""
    frame = load_frame(docstore.nodes, doc_id) if isinstance(docstore, IndexDocumentStore) else None
    gaps = dict(frame.gaps) if frame else {}

    def gap(start: int, end: int) -> str | None:
        text = gaps.get(start)
        return text if text is not None and len(text) == end - start else None

    return gap


def _hits_inside(passage: Passage, hits: Sequence[NodeWithScore]) -> list[NodeWithScore]:
    ids = {node.node_id for node in passage.nodes}
    return [hit for hit in hits if hit.node.node_id in ids]


def _merge(passage: Passage, best: NodeWithScore) -> MergedChunk:
    """Return a passage as a new node; the nodes of its chunks are not changed."""
    node, first, last = _text_node(best.node), passage.nodes[0], passage.nodes[-1]
    relationships = {k: v for k, v in node.relationships.items() if k not in _NEIGHBOURS}
    for kind, end in zip(_NEIGHBOURS, (first, last), strict=True):
        if kind in end.relationships:
            relationships[kind] = end.relationships[kind]
    whole = node.model_copy(
        update={
            "text": passage.text,
            "start_char_idx": passage.start,
            "end_char_idx": passage.end,
            "metadata": _metadata(passage, node),
            "relationships": relationships,
            "embedding": None,
        }
    )
    fields = {name: getattr(best, name) for name in type(best).model_fields if name in MergedChunk.model_fields}
    return MergedChunk(**{**fields, "node": whole, "chunks": passage.nodes})


def _metadata(passage: Passage, best: TextNode) -> dict[str, Any]:
    first = passage.nodes[0].metadata
    metadata = {**best.metadata, **{key: first[key] for key in _OF_FIRST if key in first}, **_context(passage, best)}
    if keys.TABLE_HEAD not in first:
        metadata.pop(keys.TABLE_HEAD, None)
    section = joint_section([n.metadata.get(keys.SECTION) for n in passage.nodes])
    if section is not None:
        metadata[keys.SECTION] = section
    pages = [n.metadata[keys.PAGE_END] for n in passage.nodes if n.metadata.get(keys.PAGE_END) is not None]
    if pages:
        metadata[keys.PAGE_END] = max(pages)
    confidences = [n.metadata[keys.OCR_CONFIDENCE] for n in passage.nodes if keys.OCR_CONFIDENCE in n.metadata]
    if confidences:
        metadata[keys.OCR_CONFIDENCE] = min(confidences)
    if keys.TOKEN_COUNT in metadata:
        metadata[keys.TOKEN_COUNT] = count_tokens(passage.text)
    if keys.SOURCE_LINE in metadata:
        metadata[keys.SOURCE_LINE] = keys.source_line(metadata)
    return metadata


def _context(passage: Passage, best: TextNode) -> dict[str, Any]:
    """Return the metadata of the joint context: the structural part of the best hit, and what was written for each."""
    written = {keys.context_parts(node.metadata)[1]: node for node in reversed(passage.nodes)}
    written.pop("", None)
    if not written:
        return {}
    structure, _ = keys.context_parts(best.metadata)
    before = f"{structure}\n" if structure else ""
    source = next(iter(written.values())).metadata.get(keys.CONTEXT_SOURCE)
    return {
        keys.CONTEXT: before + "\n".join(reversed(written)),
        keys.CONTEXT_WRITTEN_AT: len(before),
        **({} if source is None else {keys.CONTEXT_SOURCE: source}),
    }


def _text_node(node: BaseNode) -> TextNode:
    return cast(TextNode, node)  # checked by `has_span`
