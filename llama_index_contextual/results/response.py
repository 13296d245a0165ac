"""The answer of a search: its passages, how sure it is, and why each passage stands where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, Literal

from llama_index.core.schema import NodeWithScore

from llama_index_contextual.results.chunks import COMMANDS, LegScore, RetrievedChunk, Source, visible
from llama_index_contextual.wording import counted

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
        head = f"{counted(len(self.results), 'result')} for {query!r} ({self.mode_used}{sure})"
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
