"""Answers as LlamaIndex responses, with their sources, their citation report, and the cost of their calls.

An answer can require several calls: to rewrite the question in a conversation, to find the intent, to write the answer,
and to judge it. `calls_made` collects the calls made during a search or a judgement, and `AnswerAccount` records the
cost of all calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.answering.citations import NO_CITATION, CitationReport
from llama_index_contextual.errors import ProjectError
from llama_index_contextual.figures import Figure
from llama_index_contextual.index.project_file import record_answers_of
from llama_index_contextual.money.price import Price, Prices, money
from llama_index_contextual.money.receipt import ANSWERS, Receipt
from llama_index_contextual.money.tokens import Tokens, Usage
from llama_index_contextual.search.response import Source
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk

# ---- usage -----------------------------------------------------------------------------------------------------------

_TOKENS_OF_MESSAGE = 4  # according to OpenAI: 3, plus 1 for the name of the role


@dataclass(frozen=True, kw_only=True)
class AnswerUsage(Tokens):
    """Tokens and list price of the calls for an answer.

    Attributes:
        models: Names of the models that were called, as in the settings.
        dollars: List price, or None if the price of a model is unknown.
        problem: Sentence that explains why the cost could not be added to the project's costs, or None.
    """

    models: tuple[str, ...]
    dollars: float | None = None
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the usage as JSON values."""
        return {**asdict(self), "is_estimated": self.is_estimated}

    def __str__(self) -> str:
        about = "about " if self.is_estimated else ""
        cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
        price = "price unknown" if self.dollars is None else money(self.dollars, is_estimated=self.is_estimated)
        calls = f"{pluralize(self.calls, 'call')}, " if self.calls > 1 else ""
        return (
            f"{' + '.join(self.models)}: {calls}{about}{self.input_tokens:,} tokens in{cached},"
            f" {self.output_tokens:,} out, {price}"
        )


def add_up(usages: Sequence[AnswerUsage]) -> AnswerUsage | None:
    """Return the total of several usages, or None if there are none."""
    if not usages:
        return None
    prices = [usage.dollars for usage in usages if usage.dollars is not None]
    return AnswerUsage(
        **asdict(sum(usages, Tokens())),
        models=tuple(dict.fromkeys(model for usage in usages for model in usage.models)),
        dollars=sum(prices) if len(prices) == len(usages) else None,
        problem=next((usage.problem for usage in usages if usage.problem), None),
    )


_calls: ContextVar[list[AnswerUsage] | None] = ContextVar("calls", default=None)


@contextmanager
def calls_made() -> Iterator[list[AnswerUsage]]:
    """Provide a list to which all model calls in the block are added, including calls in threads and tasks."""
    calls: list[AnswerUsage] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def record_call(model: str, messages: Sequence[ChatMessage], usage: Usage, text: str) -> AnswerUsage:
    """Return the tokens of a call, and add them to the list from `calls_made`.

    Missing counts are estimated locally, and so is an output count of zero if there is a text.

    Args:
        model: Name of the model.
        messages: The prompt.
        usage: Tokens of the call as counted by the provider.
        text: The reply.
    """
    input_tokens, output_tokens = usage.input_tokens, usage.output_tokens if usage.output_tokens or not text else None
    is_estimated = input_tokens is None or output_tokens is None
    if input_tokens is None:
        input_tokens = sum(count_tokens(message.content or "") + _TOKENS_OF_MESSAGE for message in messages)
    call = AnswerUsage(
        models=(model,),
        calls=1,
        input_tokens=input_tokens,
        cached_tokens=usage.cached_tokens or 0,
        output_tokens=count_tokens(text) if output_tokens is None else output_tokens,
        written_tokens=usage.written_tokens or 0,
        estimated_calls=int(is_estimated),
    )
    if (calls := _calls.get()) is not None:
        calls.append(call)
    return call


@dataclass(frozen=True)
class AnswerAccount:
    """Call prices, and a function that records the cost of calls.

    Args:
        prices: Model prices.
        record: Function that adds the cost of a model's calls to the costs of a project; None records nothing.
    """

    prices: Prices = field(default_factory=Prices)
    record: Callable[[Receipt], object] | None = None

    @classmethod
    def from_project(cls, project_dir: Path, prices: Mapping[str, Price]) -> AnswerAccount:
        """Return the account of a project, with its prices and its ledger."""
        return cls(Prices(prices), partial(record_answers_of, project_dir))

    def charge(self, calls: Sequence[AnswerUsage]) -> AnswerUsage | None:
        """Record the cost of calls and return their total usage, or None if there are no calls."""
        by_model: dict[str, list[AnswerUsage]] = {}
        for call in calls:
            by_model.setdefault(call.models[0], []).append(call)
        return add_up([self._charge(model, of_model) for model, of_model in by_model.items()])

    def _charge(self, model: str, calls: Sequence[AnswerUsage]) -> AnswerUsage:
        total, now, problem = cast(AnswerUsage, add_up(calls)), time.time(), None
        dollars = self.prices.dollars(model, total)
        receipt = Receipt.for_calls(
            total, purpose=ANSWERS, started=now, ended=now, llm=model, paid=dollars, prices=self.prices.version
        )
        try:
            if self.record is not None:
                self.record(receipt)
        except ProjectError as error:  # the answer is kept although its cost could not be recorded
            problem = f"The cost of the answer was not recorded: {error}"
        return replace(total, dollars=dollars, problem=problem)


# ---- responses -------------------------------------------------------------------------------------------------------

MAX_FIGURES = 5
"""Maximum number of figures of an answer."""
_EXCERPT = 320
"""Maximum number of characters in an excerpt."""


@dataclass
class GroundedResponse(Response):
    """An answer with its passages and its citation report.

    Attributes:
        found: Whether the documents answer the question, according to the search and the model.
        partial: Sentence that explains why the answer is not complete, or None if it is complete. If the model wrote no
            answer, `response` is this sentence too.
        citations: Report on the citations; None if no model was called, or if the answer is based only on the
            conversation.
        retrieval: The search that returned the passages.
        original: The model's text if it differs from the answer, or None.
        reasoning: The reasoning before the answer in the "chain_of_thought" style, or None.
        from_cache: Whether the answer comes from the cache.
        verdict: The verdict of the judge, or its error; None if there is no judge.
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
    def is_missing(self) -> bool:
        """Whether the model wrote no answer; `response` then explains why."""
        return self.partial is not None and self.response == self.partial

    @property
    def sources(self) -> list[Source]:
        """The sources of the passages; the first is Source 1."""
        return [Source.of(hit.node) for hit in self.source_nodes]

    @property
    def cited_sources(self) -> list[tuple[int, Source]]:
        """The sources cited in the answer, with their numbers.

        The sources of a cited passage are the places of the sentences and table rows that support the statements, or,
        without any, the one that matches the question best.
        """
        if self.citations is None:
            return []
        places = self.citations.cited_places()
        passage_places = [RetrievedChunk.of(number, hit).place for number, hit in enumerate(self.source_nodes, start=1)]
        numbers = sorted(self.citations.cited)
        return [(number, place) for number in numbers for place in places.get(number) or [passage_places[number - 1]]]

    @property
    def figures(self) -> list[Figure]:
        """The figures of the cited passages: those of the sentences that support the answer, each of them once."""
        figures: dict[tuple[str | None, str], Figure] = {}
        for number, source in self.cited_sources:
            hit = RetrievedChunk.of(number, self.source_nodes[number - 1])
            figures |= {(source.doc_id, figure.id): figure for figure in hit.figures_at([source])}
        return list(figures.values())[:MAX_FIGURES]

    @property
    def read_sources(self) -> list[tuple[int, Source]]:
        """The sources that the model read and did not cite, with their numbers; empty if `found` is False."""
        numbers = self.citations.cited if self.citations else ()
        return [
            (number, source)
            for number, source in enumerate(self.sources, start=1)
            if number not in numbers and self.found
        ]

    @property
    def citation_note(self) -> str:
        """Sentence that says that the answer cites no source, or an empty string."""
        return NO_CITATION if self.citations is not None and self.citations.cites_nothing else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values, with an excerpt of each passage."""
        retrieval = None if self.retrieval is None else self.retrieval.to_dict(texts=False)
        return {"answer": self.response, **self.summary(), "retrieval": retrieval}

    def summary(self) -> dict[str, Any]:
        """Return `to_dict` without the answer and the search."""
        names = ("found", "partial", "reasoning", "from_cache", "verdict")
        return {
            **{name: getattr(self, name) for name in names},
            "usage": None if self.usage is None else self.usage.to_dict(),
            "sources": [self._source_dict(number) for number in range(1, len(self.source_nodes) + 1)],
            "citations": None if self.citations is None else self.citations.to_dict(),
            **({"figures": [figure.to_dict() for figure in figures]} if (figures := self.figures) else {}),
        }

    def _source_dict(self, number: int) -> dict[str, Any]:
        """Return the number, label, source and excerpt of a passage as JSON values."""
        hit = RetrievedChunk.of(number, self.source_nodes[number - 1])
        text = hit.excerpt("" if self.retrieval is None else self.retrieval.query, _EXCERPT)
        return {
            "number": number,
            "label": str(hit.place),
            "cited": self.citations is not None and number in self.citations.cited,
            **asdict(hit.source),
            "spotlight": hit.spotlight_dict(),
            "excerpt": text if len(text) <= _EXCERPT else f"{text[: _EXCERPT - 2]} …",
        }


@dataclass
class GroundedStream(StreamingResponse):
    """Streamed answer; `get_response` reads the stream to the end and returns the checked answer."""

    finish: Callable[[], GroundedResponse] = field(repr=False, kw_only=True)

    def get_response(self) -> GroundedResponse:
        """Return the complete, checked answer."""
        for _ in self.response_gen:
            pass
        return self.finish()


@dataclass
class AsyncGroundedStream(AsyncStreamingResponse):
    """Streamed answer; `get_response` reads the stream to the end and returns the checked answer."""

    finish: Callable[[], GroundedResponse] = field(repr=False, kw_only=True)

    async def get_response(self) -> GroundedResponse:
        """Return the complete, checked answer."""
        async for _ in self.response_gen:
            pass
        return await asyncio.to_thread(self.finish)
