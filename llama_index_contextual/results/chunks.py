"""A passage that was found: where it stands, and what each index said of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from llama_index.core.schema import BaseNode, NodeWithScore
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual.excerpts import excerpt
from llama_index_contextual.forks import cached_property

COMMANDS = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class LegScore:
    """What one index said of a chunk.

    Attributes:
        score: Cosine similarity (-1 to 1) of the semantic index, BM25 (above 0) of the others.
        rank: Position in that index's ranking, from 1; of the documents, that of the chunk's document.
        matched_terms: Terms of the query that the lexical index found in the chunk or its context.
    """

    score: float
    rank: int
    matched_terms: tuple[str, ...] = ()


class ScoredChunk(NodeWithScore):
    """A LlamaIndex `NodeWithScore` that carries the evidence of each index."""

    semantic: LegScore | None = Field(default=None, description="What the semantic index said.")
    lexical: LegScore | None = Field(default=None, description="What the lexical index said.")
    document: LegScore | None = Field(default=None, description="What the index of documents said of its document.")
    relevance: float | None = Field(default=None, description="Probability that the passage is relevant.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "ScoredChunk"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a passage stands.

    Attributes:
        file_name: Name of the file.
        file_path: Path as seen from the parent of the folder that was given.
        doc_id: Id of the document.
        page_start: Physical page of its first character, from 1.
        page_end: Physical page of its last character.
        page_label: Printed number of its first page.
        section: Path of headings above it.
        title: Title of the document.
        segment_index: Which segment of the document, from 0.
        chunk_index: Which chunk of the document, from 0.
        start_char: Offset of its first character in the document's text.
        end_char: Offset behind its last character.
    """

    file_name: str | None = None
    file_path: str | None = None
    doc_id: str | None = None
    page_start: int | None = None
    page_end: int | None = None
    page_label: str | None = None
    section: str | None = None
    title: str | None = None
    segment_index: int | None = None
    chunk_index: int | None = None
    start_char: int | None = None
    end_char: int | None = None

    @classmethod
    def of(cls, node: BaseNode) -> Source:
        """Return the source of a node of any parser; what its metadata does not say is None."""
        names = ("file_name", "file_path", "page_start", "page_end", "page_label", "section", "title")
        found = {name: node.metadata.get(name) for name in (*names, "segment_index", "chunk_index")}
        return cls(
            doc_id=node.ref_doc_id,
            start_char=getattr(node, "start_char_idx", None),
            end_char=getattr(node, "end_char_idx", None),
            **found,
        )

    def __str__(self) -> str:
        line = keys.source_line({k: v for k, v in asdict(self).items() if v is not None})
        return visible(line.removeprefix("Source: ") or self.doc_id or "unknown source")


@dataclass(frozen=True)
class RetrievedChunk:
    """One result.

    Attributes:
        rank: From 1.
        node: The LlamaIndex node.
        score: Score of the fused ranking; comparable within one answer only.
        relevance: Estimated probability that the passage is relevant, calibrated with the local settings; None unless
            both indexes answered.
        semantic: What the semantic index said, or None where it did not find the chunk.
        lexical: What the lexical index said, or None where it did not find the chunk.
        document: What the index of documents said of the chunk's document, or None where it was not asked or the
            document's name and opening have no term of the query.
    """

    rank: int
    node: BaseNode
    score: float
    relevance: float | None = None
    semantic: LegScore | None = None
    lexical: LegScore | None = None
    document: LegScore | None = None

    @classmethod
    def of(cls, rank: int, scored: NodeWithScore) -> RetrievedChunk:
        """Return the result for a LlamaIndex node."""
        said = (getattr(scored, name, None) for name in ("relevance", "semantic", "lexical", "document"))
        return cls(rank, scored.node, float(scored.score or 0.0), *said)

    @classmethod
    def made(
        cls,
        rank: int,
        node: BaseNode,
        score: float,
        evidence: Mapping[str, LegScore],
        relevance: float | None = None,
    ) -> RetrievedChunk:
        """Return the result for a node, its score, and what each index said of it."""
        semantic, lexical, document = map(evidence.get, ("semantic", "lexical", "document"))
        return cls(rank, node, score, relevance, semantic, lexical, document)

    @property
    def node_id(self) -> str:
        """Id of the chunk."""
        return self.node.node_id

    @property
    def text(self) -> str:
        """The original text, never the context."""
        return self.node.get_content()

    @property
    def context(self) -> str | None:
        """What situates the chunk in its document, or None."""
        return self.node.metadata.get(keys.CONTEXT) or None

    @cached_property
    def source(self) -> Source:
        """Where the passage stands."""
        return Source.of(self.node)

    def to_node(self) -> ScoredChunk:
        """Return the result as a LlamaIndex node that carries the evidence."""
        # As it is: what is checked here already takes longer to check than to find.
        return ScoredChunk.model_construct(
            node=self.node,
            score=self.score,
            relevance=self.relevance,
            semantic=self.semantic,
            lexical=self.lexical,
            document=self.document,
        )

    def __repr__(self) -> str:
        text = textwrap.shorten(visible(self.text), 60, placeholder=" …")
        return f"RetrievedChunk(rank={self.rank}, score={self.score:.4f}, source={str(self.source)!r}, text={text!r})"

    def excerpt(self, query: str, width: int) -> str:
        """Return the text in one line, from shortly before the terms for which it was found, or the query's words."""
        terms = self.lexical.matched_terms if self.lexical else (word[0] for word in re.finditer(r"\w{4,64}", query))
        return excerpt(visible(self.text), terms, width)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; the node is left out."""
        out = {name: getattr(self, name) for name in ("rank", "node_id", "text", "context", "score", "relevance")}
        for leg in ("semantic", "lexical", "document"):
            evidence: LegScore | None = getattr(self, leg)
            out[leg] = None if evidence is None else {"score": evidence.score, "rank": evidence.rank}
        if self.lexical is not None:
            out["lexical"]["matched_terms"] = list(self.lexical.matched_terms)
        out["source"] = asdict(self.source)
        return out


def visible(text: str) -> str:
    """Return the text without what would command a terminal or turn the direction of writing."""
    return " ".join(COMMANDS.sub(" ", text).split())
