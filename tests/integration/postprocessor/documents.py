"""A document as chunks that overlap, touch, or leave white space between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.search.response import IndexScore
from llama_index_contextual.search.results import RetrievedChunk


def chunks_of(text: str, spans: Sequence[tuple[int, int]], *, doc_id: str = "doc", **facts: Any) -> list[TextNode]:
    """Return linked chunks of a document at these spans."""
    ids = [f"{doc_id}-{number}" for number in range(len(spans))]
    results = []
    for at, (start, end) in enumerate(spans):
        relationships = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)}
        if at:
            relationships[NodeRelationship.PREVIOUS] = RelatedNodeInfo(node_id=ids[at - 1])
        if at + 1 < len(spans):
            relationships[NodeRelationship.NEXT] = RelatedNodeInfo(node_id=ids[at + 1])
        metadata = {"chunk_index": at, "file_name": f"{doc_id}.md", "page_start": at + 1, "page_end": at + 2, **facts}
        results.append(
            TextNode(
                id_=ids[at],
                text=text[start:end],
                start_char_idx=start,
                end_char_idx=end,
                metadata=metadata,
                excluded_llm_metadata_keys=list(metadata),
                relationships=relationships,  # type: ignore[arg-type]
            )
        )
    return results


def hit(node: TextNode, score: float | None = 1.0, **evidence: IndexScore) -> RetrievedChunk:
    """Return a chunk as a result."""
    return RetrievedChunk(node=node, score=score, **evidence)


texts = st.text(st.sampled_from("abc de.\n é漢"), min_size=1, max_size=60)


@st.composite
def cut_documents(draw: st.DrawFn, doc_id: str = "doc") -> tuple[str, list[TextNode]]:
    """Draw a text and its stripped chunks in order of their starts, with or without overlaps."""
    text = draw(texts)
    spans = []
    start = end = 0
    while end < len(text):
        end = draw(st.integers(end + 1, min(len(text), end + 20)))
        piece = text[start:end]
        if piece.strip():
            first = start + len(piece) - len(piece.lstrip())
            spans.append((first, start + len(piece.rstrip())))
            start = draw(st.integers(first + 1, end))
    return text, chunks_of(text, list(dict.fromkeys(spans)), doc_id=doc_id)
