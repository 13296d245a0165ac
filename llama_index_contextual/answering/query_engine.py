"""What an answer is written by, and what it is written from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual.answering.cache import AnswerCache, cache_key
from llama_index_contextual.answering.citations import Passage, check_citations
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.prompts import (
    NOT_FOUND,
    SMALL_TALK,
    answer_messages,
    clarification_messages,
    confidence_line,
    system_prompt,
)
from llama_index_contextual.answering.response import AsyncGroundedStream, GroundedResponse, GroundedStream
from llama_index_contextual.answering.streaming import AnswerStream, Spoken, StreamFilter, Timeouts, split_reasoning
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.postprocessor import AdjacentChunkMerger, ContextWindowPacker
from llama_index_contextual.retrievers.base import without_span
from llama_index_contextual.retrievers.conversational import ConversationalRetriever
from llama_index_contextual.retrievers.queries import as_bundle, bounded, with_warnings
from llama_index_contextual.retrievers.response import RetrievalResponse, Source


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How an answer is written.

    Attributes:
        style: "instruction", "persona" (few words), "chain_of_thought", or rules of one's own.
        answer_tokens: Tokens of the passages that the model reads, at most.
        max_passages: Passages that the model reads, at most; None for as many as fit.
        context: Whether the model sees the generated context, marked as background.
        min_confidence: Confidence of a search below which the answer is `not_found`, without a call to the model; it
            holds for follow-ups too, which then need a second search each. None leaves the decision to the model,
            which is told the confidence. Searches without a confidence are always answered.
        not_found: The answer where nothing was found, and what the model is told to write when the passages do not
            answer.
        small_talk: What is said to chitchat, where questions are searched by their intent.

    Raises:
        ConfigurationError: A number is out of range.
    """

    style: str = "instruction"
    answer_tokens: int = 8000
    max_passages: int | None = None
    context: bool = True
    min_confidence: float | None = None
    not_found: str = NOT_FOUND
    small_talk: str = SMALL_TALK

    def __post_init__(self) -> None:
        for name in ("answer_tokens", "max_passages"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"{name}={value} is invalid: it must be at least 1.", setting=name)
        if self.min_confidence is not None and not 0 <= self.min_confidence <= 1:
            raise ConfigurationError(
                f"min_confidence={self.min_confidence} is invalid: it is a probability, 0 to 1.",
                setting="min_confidence",
            )


@dataclass(frozen=True)
class Draft:
    """What an answer is about to be written from.

    Attributes:
        question: What was asked.
        retrieval: The search.
        hits: The passages that the model reads.
        messages: All that it reads.
        ready: The answer, where the model need not be asked: there is nothing to answer from, or it was given before.
    """

    question: str
    retrieval: RetrievalResponse
    hits: list[NodeWithScore]
    messages: list[ChatMessage]
    ready: GroundedResponse | None = None


class GroundedQueryEngine(BaseQueryEngine):
    """Answers from passages only, names their sources, and checks what it says of them.

    Hits that stand side by side become one passage, and the best that fit the budget are read. When the search is not
    confident, `wider` is asked too. Where nothing was found, the answer is `options.not_found`, without a call to the
    model; otherwise the model decides whether the passages answer, and is told how confident the search is.

    Args:
        retriever: What searches; a `ConversationalRetriever` takes `ConversationQuery`s.
        llm: Writes the answer.
        wider: What is asked when the search is not confident: more candidates, more results.
        merging: Gives what merges the hits of a search that stand side by side; None merges what touches.
        options: How the answer is written.
        timeouts: How long to wait for the model.
        node_postprocessors: Put before the merging and packing, such as a reranker.
        streaming: Whether `query` returns the answer as it comes.
        guards: What every answer passes before it is shown; None shows the model's words.
        cache: Answers that were given before; None asks the model every time.
        judge: Looks at every answer before it is shown, streamed and partial ones too; None shows them at once.

    Example:
        >>> engine = project.as_query_engine(style="persona")  # doctest: +SKIP
        >>> print(engine.query("How long does food keep?"))  # doctest: +SKIP
        Three days [Source 1].
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        llm: LLM,
        *,
        wider: BaseRetriever | None = None,
        merging: Callable[[RetrievalResponse], BaseNodePostprocessor] | None = None,
        options: AnswerOptions | None = None,
        timeouts: Timeouts | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        streaming: bool = False,
        guards: Guards | None = None,
        cache: AnswerCache | None = None,
        judge: Judge | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(callback_manager)
        self.retriever = _conversational(retriever)
        self.wider = None if wider is None else _conversational(wider)
        self.options = options or AnswerOptions()
        self.streaming = streaming
        self.speaker = AnswerStream(llm, timeouts)
        self.guards = guards
        self.cache = cache
        self.judge = judge
        self._merging = merging or (lambda _: AdjacentChunkMerger())
        self._postprocessors = list(node_postprocessors)
        most = self.options.answer_tokens
        self._packer = _AnswerPacker(max_tokens=most, compress=True, min_tokens=min(64, most))
        system_prompt(self.options.style, self.options.not_found)  # an unknown style is told at once

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}

    @without_span
    def query(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Answer a question.

        Raises:
            InputError: It is empty, or neither a text nor a QueryBundle.
            ModelError: The model cannot be reached, or does not begin in time.
        """
        as_bundle(str_or_query_bundle)  # LlamaIndex would say in pydantic's words what is wrong
        return super().query(str_or_query_bundle)

    @without_span
    async def aquery(self, str_or_query_bundle: QueryType) -> RESPONSE_TYPE:
        """Do as `query` does, without blocking the event loop."""
        as_bundle(str_or_query_bundle)
        return await super().aquery(str_or_query_bundle)

    # ---- the search --------------------------------------------------------------------------------------------------

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the passages that an answer would be written from."""
        return self.draft(query_bundle).hits

    def draft(self, query: QueryBundle, *, history: Sequence[ChatMessage] = ()) -> Draft:
        """Search, and return what an answer would be written from.

        Raises:
            InputError: The question is empty, or not a question.
        """
        query, notes = bounded(query)  # what is not searched is not read by the model either
        found = self.retriever.respond(query)
        if self.wider is not None and self._wants_more(found):
            found = _better(found, self.wider.respond(query))
        return self._drafted(query, with_warnings(found, notes), history)

    async def adraft(self, query: QueryBundle, *, history: Sequence[ChatMessage] = ()) -> Draft:
        """Do as `draft` does, without blocking the event loop."""
        query, notes = await asyncio.to_thread(bounded, query)
        found = await self.retriever.arespond(query)
        if self.wider is not None and self._wants_more(found):
            found = _better(found, await self.wider.arespond(query))
        return await asyncio.to_thread(self._drafted, query, with_warnings(found, notes), history)

    def _wants_more(self, found: RetrievalResponse) -> bool:
        if found.mode_used == "none":  # a question that needs no search needs no wider one either
            return False
        if self.options.min_confidence is None:
            return not found.results or found.confidence_level in ("low", "none")
        return self._refuses(found)

    def _refuses(self, found: RetrievalResponse) -> bool:
        """Return whether the model is not asked: there are no hits, or the caller wants more confidence."""
        least = self.options.min_confidence
        too_low = least is not None and found.confidence is not None and found.confidence < least
        return too_low or not found.results

    def _drafted(self, query: QueryBundle, found: RetrievalResponse, history: Sequence[ChatMessage]) -> Draft:
        question, options = self.retriever.explicit(str(query)), self.options
        hits = [] if self._refuses(found) else self._packed(query, found)
        if hits:
            hits = _best(hits, options.max_passages)
            messages = answer_messages(
                question,
                hits,
                style=options.style,
                not_found=options.not_found,
                history=history,
                context=options.context,
                confidence=confidence_line(found),
            )
        elif history and found.intent == "clarification" and found.mode_used == "none":
            messages = clarification_messages(question, history, not_found=options.not_found)
        else:
            words = options.small_talk if found.intent == "chitchat" else options.not_found
            nothing = GroundedResponse(words, [], found=False, retrieval=found)
            return Draft(question, found, [], [], _with_metadata(nothing))
        kept = None if self.cache is None else self.cache.get(self._key(messages, found))
        ready = None if kept is None else _with_metadata(replace(kept, retrieval=found, from_cache=True))
        return Draft(question, found, hits, messages, ready)

    def _packed(self, query: QueryBundle, found: RetrievalResponse) -> list[NodeWithScore]:
        """Return the passages that fit, of the hits that the postprocessors leave."""
        hits = found.to_nodes()
        for postprocessor in self._postprocessors:
            hits = postprocessor.postprocess_nodes(hits, query_bundle=query)
        # Before they are merged, too: of a passage of many hits, the best might be what is cut away.
        packed = self._packer.postprocess_nodes(hits, query_bundle=query)
        packed = self._merging(found).postprocess_nodes(packed, query_bundle=query)
        return self._packer.postprocess_nodes(packed, query_bundle=query)

    # ---- the answer --------------------------------------------------------------------------------------------------

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self.answer(self.draft(query_bundle), streaming=self.streaming)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return await self.aanswer(await self.adraft(query_bundle), streaming=self.streaming)

    def answer(self, draft: Draft, *, streaming: bool = False) -> GroundedResponse | GroundedStream:
        """Write the answer to a draft.

        Raises:
            ModelError: The model cannot be reached, or does not begin in time.
        """
        if streaming:
            spoken = Spoken()
            return GroundedStream(self.shown(draft, spoken), draft.hits, finish=lambda: self.finished(draft, spoken))
        if draft.ready is not None:
            return draft.ready
        return self.finished(draft, run_sync(lambda: self.speaker.aspeak(draft.messages)))

    async def aanswer(self, draft: Draft, *, streaming: bool = False) -> GroundedResponse | AsyncGroundedStream:
        """Do as `answer` does, without blocking the event loop."""
        if streaming:
            spoken = Spoken()
            pieces = self.ashown(draft, spoken)
            return AsyncGroundedStream(pieces, draft.hits, finish=lambda: self.finished(draft, spoken))
        if draft.ready is not None:
            return draft.ready
        return await asyncio.to_thread(self.finished, draft, await self.speaker.aspeak(draft.messages))

    def shown(self, draft: Draft, spoken: Spoken) -> Generator[str, None, None]:
        """Yield what is to be read of an answer, as it comes."""
        if draft.ready is not None:
            yield str(draft.ready)
            return
        reveal = StreamFilter(self.options.style, self.guards)
        for piece in self.speaker.stream(draft.messages, spoken):
            if (part := reveal.feed(piece)) and self.judge is None:
                yield part
        if part := reveal.rest() if self.judge is None else str(self.finished(draft, spoken)):
            yield part

    async def ashown(self, draft: Draft, spoken: Spoken) -> AsyncGenerator[str, None]:
        """Yield what is to be read of an answer, as it comes."""
        if draft.ready is not None:
            yield str(draft.ready)
            return
        reveal = StreamFilter(self.options.style, self.guards)
        async with aclosing(self.speaker.astream(draft.messages, spoken)) as pieces:
            async for piece in pieces:
                if (part := reveal.feed(piece)) and self.judge is None:
                    yield part
        if part := reveal.rest() if self.judge is None else str(await asyncio.to_thread(self.finished, draft, spoken)):
            yield part

    def finished(self, draft: Draft, spoken: Spoken) -> GroundedResponse:
        """Return the answer with what the check of its citations found; it is kept if it is whole."""
        if draft.ready is not None:
            return draft.ready
        if spoken.answer is None:
            answer = self._made(draft, spoken)
            if self.judge is not None:
                answer = self.judge.review(self._hidden(draft.question), answer)
            spoken.answer = _with_metadata(answer)
            if self.cache is not None:
                self.cache.put(self._key(draft.messages, draft.retrieval), spoken.answer)
        return cast(GroundedResponse, spoken.answer)

    def _made(self, draft: Draft, spoken: Spoken) -> GroundedResponse:
        reasoning, text = split_reasoning(spoken.text, self.options.style)
        passages = [Passage(self._hidden(hit.node.get_content()), Source.of(hit.node)) for hit in draft.hits]
        clean = text if self.guards is None else self.guards.clean(text)
        # What is said from the conversation cites nothing.
        report = check_citations(clean, passages, question=self._hidden(draft.question)) if passages else None
        shown = clean if report is None else report.text
        return GroundedResponse(
            shown,
            draft.hits,
            found=bool(text.strip()) and self.options.not_found.rstrip(".") not in text,
            partial=spoken.problem,
            citations=report,
            retrieval=draft.retrieval,
            original=None if spoken.text == shown else self._hidden(spoken.text),
            reasoning=None if reasoning is None else self._hidden(reasoning),
        )

    def _hidden(self, text: str) -> str:
        return text if self.guards is None else self.guards.hide(text)

    def _key(self, messages: Sequence[ChatMessage], found: RetrievalResponse) -> str:
        settings = f"{self.options} {self.guards} {self.judge and self.judge.settings}"
        return cache_key(messages, model=self.speaker.identity, version=found.version, settings=settings)


class _AnswerPacker(ContextWindowPacker):
    budget: ClassVar[str] = "answer_tokens"


def _conversational(retriever: BaseRetriever) -> ConversationalRetriever:
    return retriever if isinstance(retriever, ConversationalRetriever) else ConversationalRetriever(retriever)


def _better(first: RetrievalResponse, second: RetrievalResponse) -> RetrievalResponse:
    """Return the response of more confidence; of no hits against some, those with hits."""
    rows = [(bool(found.results), found.confidence or 0.0) for found in (first, second)]
    return second if rows[1] > rows[0] else first


def _best(hits: list[NodeWithScore], count: int | None) -> list[NodeWithScore]:
    """Return the hits of highest score, in the order in which they are."""
    if count is None or len(hits) <= count:
        return hits
    chosen = sorted(range(len(hits)), key=lambda at: (-(hits[at].score or 0.0), at))[:count]
    return [hits[at] for at in sorted(chosen)]


def _with_metadata(response: GroundedResponse) -> GroundedResponse:
    """Return the response with the metadata of its nodes, as LlamaIndex's engines give it, and with our findings."""
    by_node: dict[str, Any] = {hit.node.node_id: hit.node.metadata for hit in response.source_nodes}
    findings = {key: value for key, value in response.to_dict().items() if key not in ("answer", "retrieval")}
    return replace(response, metadata={**by_node, **(response.metadata or {}), "answer": findings})
