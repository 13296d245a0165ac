"""Follow-up questions: the question blended with what was asked and answered before, in both indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType

from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.retrievers.analysis import Analyzer
from llama_index_contextual.retrievers.base import (
    CheckedRetriever,
    WeightedQuery,
    arespond_of,
    respond_of,
    specificity_of,
)
from llama_index_contextual.retrievers.queries import bounded, shortened, with_warnings
from llama_index_contextual.retrievers.response import QueryBlend, RetrievalResponse
from llama_index_contextual.retrievers.semantic import QueryEmbedder
from llama_index_contextual.retrievers.time_words import explicit_times

_WORDS = Analyzer("none")


@dataclass
class ConversationQuery(WeightedQuery):
    """A question with the conversation before it.

    Attributes:
        history: The messages before the question, oldest first.
        rewrite: The question made stand-alone, by whoever can; it is searched instead, and nothing is blended.

    Example:
        >>> query = ConversationQuery("And for water?", history=[ChatMessage("How long does food last?")])
        >>> str(query), query.history[0].role.value
        ('And for water?', 'user')
    """

    history: Sequence[ChatMessage] = ()
    rewrite: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.history, list | tuple) or not all(isinstance(one, ChatMessage) for one in self.history):
            raise InputError("The history of a query is not a list of ChatMessages: give those.", value=self.history)
        if not isinstance(self.rewrite, str | None):
            raise InputError("The rewritten question is not a text: give one, or None.", value=self.rewrite)


@dataclass(frozen=True, kw_only=True)
class BlendWeights:
    """How much of the conversation goes into a search.

    Attributes:
        turns: Questions before the current one that count.
        question: Weight of the current question's embedding.
        history: Weight of the mean of the embeddings of the questions before.
        history_terms: Weight of each term of a question before, in the lexical indexes; 1 is a term of the question.
        answer_terms: Weight of each term of the last answer, at most.
        answer_total: Weight of all terms of the last answer together, at most, so that a long one does not outweigh
            the question.
        alone: How specific a question is (see `specificity_of`) at which the conversation counts by half: in full when
            it is less specific by 0.5, not at all when it is more so. Infinity lets it count in full for any question.

    Raises:
        ConfigurationError: A weight is negative or not finite, or the question's is 0.
    """

    turns: int = 3
    question: float = 2.0
    history: float = 1.0
    history_terms: float = 0.1
    answer_terms: float = 0.15
    answer_total: float = 4.0
    alone: float = 2.0

    def __post_init__(self) -> None:
        values = (self.turns, self.history, self.history_terms, self.answer_terms, self.answer_total)
        numbers = all(isinstance(value, int | float) for value in (self.question, self.alone, *values))
        usable = numbers and np.isfinite([self.question, *values]).all() and self.question > 0 and min(values) >= 0
        if not (usable and self.alone >= 0):
            raise ConfigurationError(
                "BlendWeights: every weight must be a finite number and not negative, `question` above 0, `alone` at"
                " least 0.",
                setting="weights",
            )

    def counting(self, specificity: float | None) -> BlendWeights:
        """Return the weights for a question that is so specific: the conversation's are less, or its turns are none.

        Example:
            >>> [BlendWeights().counting(specificity).history for specificity in (None, 0.4, 2.0, 3.1)]
            [1.0, 1.0, 0.5, 0.0]
        """
        if specificity is None:
            return self
        share = min(1.0, max(0.0, self.alone + 0.5 - specificity))
        scaled = {
            name: share * getattr(self, name) for name in ("history", "history_terms", "answer_terms", "answer_total")
        }
        return replace(self, turns=self.turns if share else 0, **scaled)


class ConversationalRetriever(CheckedRetriever):
    """Searches a follow-up question together with the conversation before it, over any retriever.

    It keeps nothing: the conversation comes with the query, as a `ConversationQuery`. The embedding is that of the
    question and the mean of those of the last questions, weighted and normalised; the lexical indexes are asked for
    the question's terms, for those of the last questions at a small weight and for those of the last answer at a
    smaller one. The more specific a question is by itself, the less the conversation counts, so that a new topic is
    not pulled back to the one before; a question that stands alone goes through untouched, as does one without history.

    Args:
        retriever: What searches. Retrievers of this package take both parts; others take the embedding.
        embed_model: The model that embeds their queries; None leaves the embedding to the retriever.
        weights: How much of the conversation counts.
        reference_date: The day on which is asked, or what gives it, such as `date.today`: "last quarter" is then
            searched as "last quarter (Q3 2026)". None leaves time words as they are.
        judged: Whether a blended question has a confidence too: by one more search, that of a question in which the
            one before it stands. Confidence is calibrated for questions in words, not for a blend.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> from llama_index_contextual.retrievers import LexicalRetriever
        >>> nodes = [TextNode(text="Food keeps for three days."), TextNode(text="Boil water first.")]
        >>> retriever = ConversationalRetriever(LexicalRetriever.from_defaults(nodes=nodes))
        >>> query = ConversationQuery("Why?", history=[ChatMessage("Must I boil it?")])
        >>> retriever.respond(query)[0].text
        'Boil water first.'
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        *,
        embed_model: BaseEmbedding | None = None,
        weights: BlendWeights | None = None,
        reference_date: date | Callable[[], date] | None = None,
        judged: bool = False,
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.judged = judged
        self.reference_date = reference_date
        self.weights = weights or BlendWeights()
        self._embedder = None if embed_model is None else QueryEmbedder(embed_model)

    def respond(self, query: QueryType) -> RetrievalResponse:
        """Return the results with their evidence and what was searched.

        Raises:
            InputError: The query is empty, or not a query.
            ModelError: The embedding model cannot be reached.
        """
        bundle, notes = bounded(query)
        asked, blend = self._plan(bundle)
        if self._embedder is not None and blend is not None and blend.embedded:
            vectors = self._embedder.embed_many([(text,) for text, _ in blend.embedded])
            asked = replace(asked, embedding=_blended(vectors, blend))
        told = with_warnings(_told(respond_of(self.retriever, asked), query, blend), notes)
        joined = self._joined(asked, blend)
        return told if joined is None else _judged(told, respond_of(self.retriever, joined))

    async def arespond(self, query: QueryType) -> RetrievalResponse:
        """Do as `respond` does, without blocking the event loop."""
        bundle, notes = await asyncio.to_thread(bounded, query)
        asked, blend = await asyncio.to_thread(self._plan, bundle)
        if self._embedder is not None and blend is not None and blend.embedded:
            vectors = await self._embedder.aembed_many([(text,) for text, _ in blend.embedded])
            asked = replace(asked, embedding=_blended(vectors, blend))
        told = with_warnings(_told(await arespond_of(self.retriever, asked), query, blend), notes)
        joined = self._joined(asked, blend)
        return told if joined is None else _judged(told, await arespond_of(self.retriever, joined))

    def _joined(self, asked: QueryBundle, blend: QueryBlend | None) -> QueryBundle | None:
        """Return the question in which the one before it stands; None where the search has a confidence already."""
        if not self.judged or _is_alone(blend):
            return None
        return QueryBundle(" ".join([*_said(asked, MessageRole.USER, last=1), asked.query_str]))

    def explicit(self, text: str) -> str:
        """Return a question as it is searched: with the dates of its time words, where the day is known."""
        if self.reference_date is None:
            return text
        today = self.reference_date() if callable(self.reference_date) else self.reference_date
        return explicit_times(text, today)

    def _plan(self, bundle: QueryBundle) -> tuple[QueryBundle, QueryBlend | None]:
        """Return the query to search, still without an embedding, and what it is blended from."""
        if isinstance(bundle, ConversationQuery) and bundle.rewrite:
            rewritten = self.explicit(shortened(bundle.rewrite))
            return QueryBundle(rewritten), QueryBlend(rewritten=rewritten)
        text = self.explicit(bundle.query_str)
        asked = bundle if text == bundle.query_str else replace(bundle, query_str=text)
        weights, questions = self.weights, _said(asked, MessageRole.USER, last=self.weights.turns)
        if questions:
            weights = weights.counting(specificity_of(self.retriever, text))
        if not (isinstance(asked, ConversationQuery) and questions and weights.turns):
            return asked, None if asked is bundle else QueryBlend(rewritten=text)
        blend = QueryBlend(
            embedded=self._embedded(asked, questions, weights), lexical=_lexical(asked, questions, weights)
        )
        return replace(asked, lexical_texts=blend.lexical), blend

    def _embedded(
        self, query: ConversationQuery, questions: Sequence[str], weights: BlendWeights
    ) -> tuple[tuple[str, float], ...]:
        lexical_only = getattr(self.retriever, "mode", None) == "lexical"
        if self._embedder is None or query.embedding is not None or lexical_only:
            return ()
        share = weights.history / len(questions)
        return ((query.query_str, weights.question), *((text, share) for text in questions))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.respond(query_bundle).to_nodes()

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self.arespond(query_bundle)).to_nodes()


def _lexical(
    query: ConversationQuery, questions: Sequence[str], weights: BlendWeights
) -> tuple[tuple[str, float], ...]:
    texts = [(query.query_str, 1.0), *((text, weights.history_terms) for text in questions)]
    for answer in _said(query, MessageRole.ASSISTANT, last=1):
        terms = len(set(_WORDS.terms(answer))) or 1
        texts.append((answer, min(weights.answer_terms, weights.answer_total / terms)))
    return tuple(texts)


def _blended(vectors: Sequence[Sequence[float]], blend: QueryBlend) -> list[float]:
    """Return the unit vector of the weighted sum of unit vectors, the first of which is the question's."""
    rows = np.asarray(vectors, dtype=np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    blended = np.asarray([weight for _, weight in blend.embedded]) @ rows
    length = float(np.linalg.norm(blended))
    # Questions that cancel each other out leave the current one.
    return (blended / length if length > 1e-9 else rows[0]).tolist()  # type: ignore[no-any-return]


def _told(found: RetrievalResponse, query: QueryType, blend: QueryBlend | None) -> RetrievalResponse:
    """Return a response with the question as it was asked and what was searched.

    Confidence and relevance are calibrated for questions that stand alone: a blend has none.
    """
    alone = _is_alone(blend)
    if found.blend is not None:  # the search has added terms
        blend = replace(blend or QueryBlend(), lexical=found.blend.lexical)
    if alone:
        return replace(found, query=str(query), blend=blend)
    results = tuple(replace(chunk, relevance=None) for chunk in found.results)
    return replace(found, query=str(query), blend=blend, results=results, confidence=None, confidence_level=None)


def _is_alone(blend: QueryBlend | None) -> bool:
    return blend is None or blend.rewritten is not None


def _judged(told: RetrievalResponse, joined: RetrievalResponse) -> RetrievalResponse:
    return replace(told, confidence=joined.confidence, confidence_level=joined.confidence_level)


def _said(query: QueryBundle, role: MessageRole, *, last: int) -> list[str]:
    """Return the last texts of one side of the conversation, oldest first, as far as they are searched."""
    texts = [message.content for message in getattr(query, "history", ()) if message.role == role and message.content]
    return [shortened(text) for text in texts[len(texts) - min(last, len(texts)) :]]
