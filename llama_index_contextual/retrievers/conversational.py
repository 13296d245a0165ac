"""Retrieval for follow-up questions: in each index, search for the question together with the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
from dataclasses_json import config
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.schema import QueryBundle, QueryType

from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.analysis import Analyzer, cut_query
from llama_index_contextual.retrievers.base import (
    CheckedRetriever,
    WeightedQuery,
    alimit_query,
    arespond_of,
    limit_query,
    respond_of,
    specificity_of,
)
from llama_index_contextual.search.response import QueryBlend
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.search.search import with_warnings
from llama_index_contextual.search.time_words import explicit_times

_WORDS = Analyzer("none")


def _messages_to_json(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    return [message.model_dump(mode="json") for message in messages]


def _messages_from_json(rows: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    return [ChatMessage.model_validate(row) for row in rows]


@dataclass
class ConversationQuery(WeightedQuery):
    """A question and the conversation before it.

    Attributes:
        history: The messages before the question, oldest first.
        rewrite: The question rewritten to stand alone, for example by an LLM; if given, it is searched for without the
            history.

    Example:
        >>> query = ConversationQuery("And for water?", history=[ChatMessage("How long does food last?")])
        >>> str(query), query.history[0].role.value
        ('And for water?', 'user')
    """

    history: Sequence[ChatMessage] = field(
        default=(), metadata=config(encoder=_messages_to_json, decoder=_messages_from_json)
    )
    rewrite: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.history, list | tuple) or not all(
            isinstance(turn, ChatMessage) for turn in self.history
        ):
            raise InputError("The history of a query must be a list of ChatMessages.", value=self.history)
        if not isinstance(self.rewrite, str | None):
            raise InputError("The rewritten question must be a text or None.", value=self.rewrite)


@dataclass(frozen=True, kw_only=True)
class BlendWeights:
    """Weights of the conversation in a search.

    Attributes:
        turns: Number of previous questions that are used.
        question: Weight of the current question's embedding.
        history: Weight of the mean of the previous questions' embeddings.
        history_terms: Weight of each term of a previous question in the lexical indexes; terms of the current question
            have the weight 1.
        answer_terms: Maximum weight of each term of the last answer.
        answer_total: Maximum weight of all terms of the last answer together, so that a long answer does not outweigh
            the question.
        alone: Specificity of a question (see `specificity_of`) at which the conversation has half its weight. The
            weight is full up to `alone` - 0.5, and zero from `alone` + 0.5. If `alone` is infinite, the weight is
            always full.
    """

    turns: int = 3
    question: float = 2.0
    history: float = 1.0
    history_terms: float = 0.1
    answer_terms: float = 0.15
    answer_total: float = 4.0
    alone: float = 2.0

    def counting(self, specificity: float | None) -> BlendWeights:
        """Return the weights for a question of the given specificity.

        The more specific the question is, the less weight the conversation has.

        Example:
            >>> [BlendWeights().counting(specificity).history for specificity in (None, 0.4, 2.0, 3.1)]
            [1.0, 1.0, 0.5, 0.0]
        """
        if specificity is None:
            return self
        share = min(1.0, max(0.0, self.alone + 0.5 - specificity))
        weights = {
            name: share * getattr(self, name) for name in ("history", "history_terms", "answer_terms", "answer_total")
        }
        return replace(self, turns=self.turns if share else 0, **weights)


class ConversationalRetriever(CheckedRetriever):
    """Search for a follow-up question together with the previous conversation, using any retriever.

    The retriever has no state: the conversation is part of the query, a `ConversationQuery`. The embedding is the
    normalised weighted sum of the question's embedding and the mean of the last questions' embeddings. The lexical
    indexes are searched for the terms of the question and, with small weights, for the terms of the last questions and
    the last answer. The more specific a question is, the less weight the conversation has, so that the user can change
    the topic. A question that stands alone or has no history is not changed.

    Args:
        retriever: The retriever to search with. Retrievers from this package use the embedding and the terms; other
            retrievers use only the embedding.
        embed_model: The embedding model for queries. If it is None, the retriever embeds the question alone.
        weights: Weights of the conversation.
        reference_date: The date of the question, or a function that returns it, such as `date.today`. It is used to
            add explicit dates, as in "last quarter (Q3 2026)". None leaves relative time expressions unchanged.

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
    ) -> None:
        super().__init__()
        self.retriever = retriever
        self.reference_date = reference_date
        self.weights = weights or BlendWeights()
        self._embedder = None if embed_model is None else QueryEmbedder(embed_model)

    def respond(self, query: QueryType) -> RetrievalResponse:
        """Return the results with their evidence, and the texts that were searched for.

        Raises:
            InputError: The query is empty, or neither a string nor a QueryBundle.
            ModelError: The embedding model cannot be reached.
        """
        bundle, notes = limit_query(query)
        search_query, blend = self._prepare(bundle)
        return with_warnings(_for_question(respond_of(self.retriever, search_query), query, blend), notes)

    async def arespond(self, query: QueryType) -> RetrievalResponse:
        """Asynchronous version of `respond`."""
        bundle, notes = await alimit_query(query)
        if self.reference_date is None and not isinstance(bundle, ConversationQuery):
            search_query, blend = bundle, None  # without a thread, as there is nothing to do
        else:
            search_query, blend = await asyncio.to_thread(self._prepare, bundle)
        return with_warnings(_for_question(await arespond_of(self.retriever, search_query), query, blend), notes)

    def explicit(self, text: str) -> str:
        """Add explicit dates for relative time expressions, such as "last month", to a question.

        Without a reference date, return the question unchanged.
        """
        if self.reference_date is None:
            return text
        today = self.reference_date() if callable(self.reference_date) else self.reference_date
        return explicit_times(text, today)

    def _prepare(self, bundle: QueryBundle) -> tuple[QueryBundle, QueryBlend | None]:
        """Return the query to search for and the texts that it combines, or None if the question is not changed."""
        search_query, blend = self._plan(bundle)
        if self._embedder is not None and blend is not None and blend.embedded:
            vectors = self._embedder.embed_many([(text,) for text, _ in blend.embedded])
            search_query = replace(search_query, embedding=_blend_vectors(vectors, blend))
        return search_query, blend

    def _plan(self, bundle: QueryBundle) -> tuple[QueryBundle, QueryBlend | None]:
        """Return the query to search for, without its embedding, and the texts that it combines; see `_prepare`."""
        if isinstance(bundle, ConversationQuery) and bundle.rewrite:
            text = self.explicit(cut_query(bundle.rewrite))
            return QueryBundle(text), QueryBlend(rewritten=text)
        text = self.explicit(bundle.query_str)
        query = bundle if text == bundle.query_str else replace(bundle, query_str=text)
        weights, questions = self.weights, _messages(query, MessageRole.USER, last=self.weights.turns)
        if questions:
            weights = weights.counting(specificity_of(self.retriever, text))
        if not (isinstance(query, ConversationQuery) and questions and weights.turns):
            return query, None if query is bundle else QueryBlend(rewritten=text)
        blend = QueryBlend(
            embedded=self._embedding_texts(query, questions, weights), lexical=_lexical_texts(query, questions, weights)
        )
        return replace(query, lexical_texts=blend.lexical), blend

    def _embedding_texts(
        self, query: ConversationQuery, questions: Sequence[str], weights: BlendWeights
    ) -> tuple[tuple[str, float], ...]:
        lexical_only = getattr(self.retriever, "mode", None) == "lexical"
        if self._embedder is None or query.embedding is not None or lexical_only:
            return ()
        share = weights.history / len(questions)
        return ((query.query_str, weights.question), *((text, share) for text in questions))


def _lexical_texts(
    query: ConversationQuery, questions: Sequence[str], weights: BlendWeights
) -> tuple[tuple[str, float], ...]:
    texts = [(query.query_str, 1.0), *((text, weights.history_terms) for text in questions)]
    for answer in _messages(query, MessageRole.ASSISTANT, last=1):
        terms = len(set(_WORDS.terms(answer))) or 1
        texts.append((answer, min(weights.answer_terms, weights.answer_total / terms)))
    return tuple(texts)


def _blend_vectors(vectors: Sequence[Sequence[float]], blend: QueryBlend) -> list[float]:
    """Normalise the vectors of the texts in `blend.embedded`, and return their normalised weighted sum."""
    rows = np.asarray(vectors, dtype=np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    vector = np.asarray([weight for _, weight in blend.embedded]) @ rows
    length = float(np.linalg.norm(vector))
    # If the vectors cancel each other out, only the vector of the current question is used.
    return (vector / length if length > 1e-9 else rows[0]).tolist()  # type: ignore[no-any-return]


def _for_question(response: RetrievalResponse, query: QueryType, blend: QueryBlend | None) -> RetrievalResponse:
    """Return the response with the original question and the texts that were searched for."""
    if response.blend is not None:  # the search has added acronyms
        blend = replace(blend or QueryBlend(), lexical=response.blend.lexical)
    return replace(response, query=str(query), blend=blend)


def _messages(query: QueryBundle, role: MessageRole, *, last: int) -> list[str]:
    """Return the texts of the last messages with a role, oldest first, each cut to the length limit for queries."""
    texts = [message.content for message in getattr(query, "history", ()) if message.role == role and message.content]
    return [cut_query(text) for text in texts[len(texts) - min(last, len(texts)) :]]
