"""Engines over a project's retrievers, from keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date
from functools import partial
from typing import Any, Literal

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.query_engine import RetrieverQueryEngine

from llama_index_contextual.answering.chat_engine import GroundedChatEngine
from llama_index_contextual.answering.intent import Intent, SearchPlan
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.query_engine import AnswerOptions, GroundedQueryEngine
from llama_index_contextual.answering.routing import IntentRetriever
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever
from llama_index_contextual.retrievers.live import ProjectRetriever

Intents = bool | Literal["llm"] | Mapping[Intent, SearchPlan]
"""Whether questions are searched by their intent: by patterns and words, with the LLM for the rest, or by a table."""

_OPTIONS = {field.name for field in fields(AnswerOptions)}
_CHAT = {"mode", "turns", "history_tokens", "chat_store", "chat_store_key"}
_SEARCH = {"weights", "reference_date", "intents"}
_ENGINE = {"guards", "cache", "judge", "timeouts", "node_postprocessors", "streaming", "callback_manager"}


def query_engine(
    retriever: ProjectRetriever, load_embed_model: Callable[[], BaseEmbedding], llm: LLM, **options: Any
) -> BaseQueryEngine:
    """Return a grounded engine; with options of `RetrieverQueryEngine.from_args` that it does not have, a stock one.

    Args:
        retriever: The search.
        load_embed_model: Gives the model that embeds follow-up questions.
        llm: Writes the answer.
        **options: Of `GroundedQueryEngine`, `AnswerOptions` and `ConversationalRetriever`.
    """
    if set(options) - _OPTIONS - _ENGINE - _SEARCH:
        searched = by_intent(retriever, options.pop("intents", False), lambda: llm)
        stock: BaseQueryEngine = RetrieverQueryEngine.from_args(searched, llm=llm, **options)
        return stock
    return grounded_engine(retriever, load_embed_model, llm, **options)


def grounded_engine(
    retriever: ProjectRetriever,
    load_embed_model: Callable[[], BaseEmbedding],
    llm: LLM,
    *,
    weights: BlendWeights | None = None,
    reference_date: date | Callable[[], date] | None = None,
    intents: Intents = False,
    judge: Judge | bool | None = None,
    **options: Any,
) -> GroundedQueryEngine:
    """Return an engine whose search knows conversations, and a wider one for when it is not confident."""
    embed_model = None if retriever.mode == "lexical" else load_embed_model()
    conversational = partial(
        ConversationalRetriever, embed_model=embed_model, weights=weights, reference_date=reference_date
    )
    return GroundedQueryEngine(
        conversational(by_intent(retriever, intents, lambda: llm)),
        llm,
        wider=conversational(retriever.widened()),
        judge=Judge(llm, timeouts=options.get("timeouts")) if judge is True else judge or None,
        options=AnswerOptions(**{name: value for name, value in options.items() if name in _OPTIONS}),
        **{name: value for name, value in options.items() if name not in _OPTIONS},
    )


def by_intent(retriever: ProjectRetriever, intents: Intents, load_llm: Callable[[], LLM]) -> BaseRetriever:
    """Return a retriever that searches every question by its intent; without `intents`, the one that was given."""
    if not intents:
        return retriever

    def planned(plan: SearchPlan) -> BaseRetriever:
        share = plan.semantic_weight
        weights = {} if share is None else {"semantic_weight": share, "lexical_weight": 1 - share}
        return retriever.changed(mode=plan.mode, similarity_top_k=plan.top_k, **weights)

    plans = intents if isinstance(intents, Mapping) else None
    return IntentRetriever(planned, plans=plans, llm=load_llm() if intents == "llm" else None)


def chat_engine(
    retriever: ProjectRetriever, load_embed_model: Callable[[], BaseEmbedding], llm: LLM, **options: Any
) -> GroundedChatEngine:
    """Return a chat engine that reads the three best passages, unless told otherwise.

    Args:
        retriever: The search.
        load_embed_model: Gives the model that embeds questions.
        llm: Answers, and makes questions stand alone.
        **options: Of `GroundedChatEngine`, `GroundedQueryEngine` and `AnswerOptions`.
    """
    chat = {name: value for name, value in options.items() if name in _CHAT}
    rest = {
        "max_passages": None if options.get("intents") else 3,
        **{name: value for name, value in options.items() if name not in _CHAT},
    }
    weights = BlendWeights(turns=options.get("turns", BlendWeights.turns))
    return GroundedChatEngine(grounded_engine(retriever, load_embed_model, llm, weights=weights, **rest), **chat)
