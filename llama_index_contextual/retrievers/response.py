"""A passage that was found: where it stands, and what each index said of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from llama_index.core.schema import BaseNode, NodeWithScore
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual._utils.text import excerpt, pluralize

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


_SHOWN = 400
"""Characters of a query that are shown, at most."""

_SHOWN_WORDS, _SHOWN_LETTERS = 50, 60

ConfidenceLevel = Literal["high", "medium", "low", "none"]


@dataclass(frozen=True)
class QueryBlend:
    """What a question was searched with, in a conversation or with words added to it.

    Attributes:
        embedded: Texts with their weights in the query's embedding, the question first; empty where nothing was
            embedded.
        lexical: Texts with the weight of each of their terms, the question first.
        rewritten: The stand-alone question that was searched in place of the one asked, or None.
    """

    embedded: tuple[tuple[str, float], ...] = ()
    lexical: tuple[tuple[str, float], ...] = ()
    rewritten: str | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a passage stands where it stands.

    Attributes:
        rank: From 1.
        node_id: Id of the chunk.
        source: Where it stands.
        score: Score of the ranking.
        arithmetic: How the score comes about.
        semantic: What the semantic index said, or None where it did not find the chunk.
        lexical: What the lexical index said, or None where it did not find the chunk.
        document: What the index of documents said of its document, or None.
        in_text: Terms of the query that stand in the text.
        in_context: Terms of the query that only the context has.
        missing: Terms of the query that neither has.
        why_not: Of a near miss, what it lacked against the last result.
    """

    rank: int
    node_id: str
    source: Source
    score: float
    arithmetic: str
    semantic: LegScore | None = None
    lexical: LegScore | None = None
    document: LegScore | None = None
    in_text: tuple[str, ...] = ()
    in_context: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    why_not: str | None = None

    def __str__(self) -> str:
        legs = (("semantic", self.semantic), ("lexical", self.lexical), ("document", self.document))
        said = ", ".join(f"{name} rank {leg.rank} ({leg.score:.4f})" for name, leg in legs if leg is not None)
        terms = (("in the text", self.in_text), ("only in the context", self.in_context), ("nowhere", self.missing))
        lines = [
            f"{self.rank}. {self.source}: {self.score:.4f}",
            f"   {said}",
            f"   {self.arithmetic}",
            *(f"   {where}: {_listed(words)}" for where, words in terms if words),
            *([f"   why not: {self.why_not}"] if self.why_not else []),
        ]
        return "\n".join(_visible_line(line) for line in lines)


@dataclass(frozen=True, kw_only=True)
class RetrievalResponse:
    """The answer of a search.

    Attributes:
        query: The question.
        mode_requested: Which indexes were asked for.
        mode_used: Which indexes answered.
        warnings: Sentences about what differs from what was asked for.
        results: Best first.
        confidence: Estimated probability that the documents answer the question, calibrated with the local settings;
            None unless both indexes answered.
        confidence_level: The same in words; "low" is what at most 3 in 100 answerable questions are, "none" means that
            nothing was found.
        version: Name of the version that answered.
        blend: What was searched where it is not the question alone: a conversation, dates, acronyms; or None.
        intent: What the question wants, where it was searched for that; some intents search nothing.
        explanations: Why each result stands where it stands; only where it was asked for.
        near_misses: What came next, and why not; only where it was asked for.
    """

    query: str
    mode_requested: str
    mode_used: str
    results: Sequence[RetrievedChunk]
    warnings: Sequence[str] = ()
    confidence: float | None = None
    confidence_level: ConfidenceLevel | None = None
    version: str | None = None
    blend: QueryBlend | None = None
    intent: str | None = None
    explanations: Sequence[Explanation] = ()
    near_misses: Sequence[Explanation] = ()

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[RetrievedChunk]:
        return iter(self.results)

    def __getitem__(self, index: int) -> RetrievedChunk:
        return self.results[index]

    @classmethod
    def of_nodes(cls, query: str, hits: Sequence[NodeWithScore]) -> RetrievalResponse:
        """Return what a retriever of any kind found."""
        results = tuple(RetrievedChunk.of(rank, hit) for rank, hit in enumerate(hits, start=1))
        return cls(query=query, mode_requested="retriever", mode_used="retriever", results=results)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        names = ("query", "mode_requested", "mode_used", "version", "confidence", "confidence_level")
        out = {name: getattr(self, name) for name in names}
        if self.intent is not None:
            out["intent"] = self.intent
        if self.blend is not None:
            out["blend"] = asdict(self.blend)
        if self.explanations:
            out["explanations"] = [asdict(one) for one in self.explanations]
            out["near_misses"] = [asdict(one) for one in self.near_misses]
        return {**out, "warnings": list(self.warnings), "results": [chunk.to_dict() for chunk in self.results]}

    def to_nodes(self) -> list[NodeWithScore]:
        """Return the results as LlamaIndex nodes that carry the evidence."""
        return [chunk.to_node() for chunk in self.results]

    def __repr__(self) -> str:
        sure = "" if self.confidence is None else f", confidence {self.confidence:.2f}, {self.confidence_level}"
        query = self.query if len(self.query) <= _SHOWN else f"{self.query[:_SHOWN]}…"
        head = f"{pluralize(len(self.results), 'result')} for {query!r} ({self.mode_used}{sure})"
        lines = [
            f"{chunk.rank:>3}. {chunk.source}  {_shorten(chunk.excerpt(self.query, 90))}" for chunk in self.results
        ]
        reasons = [str(one) for one in self.explanations]
        if self.near_misses:
            reasons += ["Near misses", *(str(one) for one in self.near_misses)]
        return "\n".join([head, *(f"  ! {visible(warning)}" for warning in self.warnings), *lines, *reasons])

    def _repr_html_(self) -> str:
        texts = [_shorten(chunk.excerpt(self.query, 300), 300) for chunk in self.results]
        rows = "".join(
            f"<tr><td>{chunk.rank}</td><td>{escape(str(chunk.source))}</td><td>{chunk.score:.4f}</td>"
            f"<td><i>{escape(_shorten(chunk.context or '', 200))}</i><br>{escape(text)}</td></tr>"
            for chunk, text in zip(self.results, texts, strict=True)
        )
        warnings = "".join(f"<p>{escape(visible(warning))}</p>" for warning in self.warnings)
        return (
            f"<p><b>{escape(_shorten(self.query[: 2 * _SHOWN], _SHOWN))}</b> ({escape(self.mode_used)})</p>{warnings}"
            f"<table><tr><th>#</th><th>source</th><th>score</th><th>context, text</th></tr>{rows}</table>"
        )


def _listed(words: Sequence[str]) -> str:
    """Return the words of a query for a reader: so many, and of each its beginning."""
    shown = [_shorten(word, _SHOWN_LETTERS) for word in words[:_SHOWN_WORDS]]
    more = [f"and {len(words) - len(shown):,} more"] if len(words) > len(shown) else []
    return ", ".join([*shown, *more])


def _visible_line(line: str) -> str:
    """Return a line without what would command a terminal, its indentation kept."""
    return COMMANDS.sub(" ", line)


def _shorten(text: str, width: int = 90) -> str:
    line = visible(text)
    return line if len(line) <= width else f"{line[: width - 1]}…"
