"""Answers as LlamaIndex responses with their sources and the report on their citations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse

from llama_index_contextual.answering.citations import CitationReport
from llama_index_contextual.answering.usage import AnswerUsage
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk

_EXCERPT = 320
"""Number of characters of an excerpt."""

_BEFORE_QUOTATION = 80
"""Number of characters of an excerpt before the quotation that it shows."""


@dataclass
class GroundedResponse(Response):
    """An answer with its passages and the report on its citations.

    Attributes:
        found: Whether the documents answer the question, according to the search and the model.
        partial: Why the answer is not complete, in a sentence; None when it is.
        citations: Report on the citations; None if no model was called, or the answer is from the conversation alone.
        retrieval: The search that returned the passages.
        original: The text of the model, if it differs from the answer.
        reasoning: The reasoning before the answer, in the style "chain_of_thought".
        from_cache: Whether the answer comes from the cache.
        verdict: The verdict of the judge, or its error; None without a judge.
        usage: Tokens and list price of the calls for the answer; None if no model was called.
    """

    found: bool = True
    partial: str | None = None
    citations: CitationReport | None = None
    retrieval: RetrievalResponse | None = None
    original: str | None = None
    reasoning: str | None = None
    from_cache: bool = False
    verdict: dict[str, Any] | None = None
    usage: AnswerUsage | None = None

    @property
    def sources(self) -> list[Source]:
        """The sources of the passages; the first is Source 1."""
        return [Source.of(hit.node) for hit in self.source_nodes]

    @property
    def cited_sources(self) -> list[tuple[int, Source]]:
        """The sources that the answer cites, with their numbers.

        The source of a passage from which the answer quotes is the place of each quotation.
        """
        if self.citations is None:
            return []
        sources, places = self.sources, self.citations.quoted_places()
        cited = sorted(self.citations.cited)
        return [(number, place) for number in cited for place in places.get(number) or [sources[number - 1]]]

    @property
    def shown_sources(self) -> list[tuple[int, Source]]:
        """The sources to list under the answer: the cited ones, or all if none is cited; empty if `found` is False."""
        return (self.cited_sources or list(enumerate(self.sources, start=1))) if self.found else []

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values, with an excerpt of each passage."""
        names = ("found", "partial", "reasoning", "from_cache", "verdict")
        return {
            "answer": self.response,
            **{name: getattr(self, name) for name in names},
            "usage": None if self.usage is None else self.usage.to_dict(),
            "sources": [self._source_dict(number) for number in range(1, len(self.source_nodes) + 1)],
            "citations": None if self.citations is None else self.citations.to_dict(),
            "retrieval": None if self.retrieval is None else self.retrieval.to_dict(texts=False),
        }

    def _source_dict(self, number: int) -> dict[str, Any]:
        """Return a passage with its label, its place, and an excerpt around the first quotation from it."""
        hit = RetrievedChunk.of(number, self.source_nodes[number - 1])
        text = hit.excerpt("" if self.retrieval is None else self.retrieval.query, _EXCERPT)
        places = {} if self.citations is None else self.citations.quoted_places()
        for place in places.get(number, ())[:1]:
            if place.start_char is not None and hit.source.start_char is not None:
                text = visible(hit.text[max(0, place.start_char - hit.source.start_char - _BEFORE_QUOTATION) :])
        return {
            "number": number,
            "label": str(hit.source),
            "cited": self.citations is not None and number in self.citations.cited,
            **asdict(hit.source),
            "excerpt": text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 2]} …",
        }


@dataclass
class GroundedStream(StreamingResponse):
    """A streamed answer; `get_response` reads it to the end and returns the checked answer."""

    finish: Callable[[], GroundedResponse] = field(repr=False, kw_only=True)

    def get_response(self) -> GroundedResponse:
        """Return the complete, checked answer."""
        for _ in self.response_gen:
            pass
        return self.finish()


@dataclass
class AsyncGroundedStream(AsyncStreamingResponse):
    """A streamed answer; `aget_response` reads it to the end and returns the checked answer."""

    finish: Callable[[], GroundedResponse] = field(repr=False, kw_only=True)

    async def aget_response(self) -> GroundedResponse:
        """Return the complete, checked answer."""
        async for _ in self.response_gen:
            pass
        return await asyncio.to_thread(self.finish)

    async def get_response(self) -> GroundedResponse:
        """Return the same as `aget_response`; this is LlamaIndex's name for it."""
        return await self.aget_response()
