"""Answers as LlamaIndex responses that say what they rest on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse

from llama_index_contextual.answering.citations import CitationReport
from llama_index_contextual.retrievers.response import RetrievalResponse, Source


@dataclass
class GroundedResponse(Response):
    """An answer with what it was written from and what the check of its citations found.

    Attributes:
        found: Whether the documents answer the question, as far as the search and the model say.
        partial: Why the answer is not whole, in a sentence; None when it is.
        citations: What the check found; None for an answer without a model's words, or from the conversation alone.
        retrieval: The search that the passages come from.
        original: What the model wrote, where that is not what is shown.
        reasoning: What a model that thinks step by step wrote before its answer.
        from_cache: Whether the answer was given before.
        verdict: What a judge said, or why it said nothing; None where none was asked.
    """

    found: bool = True
    partial: str | None = None
    citations: CitationReport | None = None
    retrieval: RetrievalResponse | None = None
    original: str | None = None
    reasoning: str | None = None
    from_cache: bool = False
    verdict: dict[str, Any] | None = None

    @property
    def sources(self) -> list[Source]:
        """Where the passages stand; the first is Source 1."""
        return [Source.of(hit.node) for hit in self.source_nodes]

    @property
    def cited_sources(self) -> list[tuple[int, Source]]:
        """The sources that the answer cites, with their numbers."""
        numbers = self.citations.cited if self.citations is not None else ()
        return [(number, self.sources[number - 1]) for number in sorted(numbers)]

    @property
    def shown_sources(self) -> list[tuple[int, Source]]:
        """What is listed under the answer: the sources that it cites, else all; none where nothing was found."""
        return (self.cited_sources or list(enumerate(self.sources, start=1))) if self.found else []

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        names = ("found", "partial", "reasoning", "from_cache", "verdict")
        return {
            "answer": self.response,
            **{name: getattr(self, name) for name in names},
            "sources": [{"number": at, **asdict(source)} for at, source in enumerate(self.sources, start=1)],
            "citations": None if self.citations is None else self.citations.to_dict(),
            "retrieval": None if self.retrieval is None else self.retrieval.to_dict(),
        }


@dataclass
class GroundedStream(StreamingResponse):
    """An answer as it comes; `get_response` reads it to its end and returns it checked."""

    finish: Callable[[], GroundedResponse] = field(repr=False, kw_only=True)

    def get_response(self) -> GroundedResponse:
        """Return the whole answer, checked."""
        for _ in self.response_gen:
            pass
        return self.finish()


@dataclass
class AsyncGroundedStream(AsyncStreamingResponse):
    """An answer as it comes; `aget_response` reads it to its end and returns it checked."""

    finish: Callable[[], GroundedResponse] = field(repr=False, kw_only=True)

    async def aget_response(self) -> GroundedResponse:
        """Return the whole answer, checked."""
        async for _ in self.response_gen:
            pass
        return await asyncio.to_thread(self.finish)

    async def get_response(self) -> GroundedResponse:
        """Do as `aget_response` does, under LlamaIndex's name."""
        return await self.aget_response()
