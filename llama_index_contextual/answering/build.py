"""Engines over a project's retrievers, from keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import date
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.query_engine import RetrieverQueryEngine

from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.chat_engine import GroundedChatEngine
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.intent import INTENTS, Intent, IntentRetriever, SearchPlan
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.query_engine import AnswerOptions, GroundedQueryEngine
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.postprocessor import AdjacentChunkMerger
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever
from llama_index_contextual.retrievers.live import ProjectRetriever
from llama_index_contextual.retrievers.response import RetrievalResponse

T = TypeVar("T")

Intents = bool | Literal["llm"] | Mapping[Intent, SearchPlan]
"""Whether questions are searched by their intent: by patterns and words, with the LLM for the rest, or by a table."""

Adjacent = Literal["merge", "bridge", "expand"]
"""What is read where hits stand side by side: they, a chunk between two as well, or all that is on the topic."""

_OPTIONS = frozenset(field.name for field in fields(AnswerOptions))
_CHAT = frozenset({"turns", "history_tokens", "chat_store", "chat_store_key"})
_SEARCH = frozenset({"weights", "reference_date", "intents", "adjacent"})
_ENGINE = frozenset({"guards", "cache", "judge", "timeouts", "node_postprocessors", "streaming", "callback_manager"})
_OWN = _OPTIONS | _SEARCH | _ENGINE
_STOCK = frozenset(inspect.signature(RetrieverQueryEngine.from_args).parameters) - {"retriever", "llm", "kwargs"}


def query_engine(
    retriever: ProjectRetriever, load_embed_model: Callable[[], BaseEmbedding], llm: LLM, /, **options: Any
) -> BaseQueryEngine:
    """Return a grounded engine; with options that only `RetrieverQueryEngine.from_args` has, a stock one.

    Args:
        retriever: The search.
        load_embed_model: Gives the model that embeds follow-up questions.
        llm: Writes the answer.
        **options: Of `GroundedQueryEngine`, `AnswerOptions` and `ConversationalRetriever`.

    Raises:
        ConfigurationError: An option is unknown or wrong, or of the other engine.
    """
    _require_known(options, _OWN | _STOCK)
    stock_only = sorted(set(options) & (_STOCK - _OWN))
    if not stock_only:
        return grounded_engine(retriever, load_embed_model, llm, **options)
    if foreign := sorted(set(options) - _STOCK - {"intents"}):
        raise ConfigurationError(
            f"`{stock_only[0]}` gives LlamaIndex's own engine, which knows no `{foreign[0]}`: leave one of them out.",
            setting=foreign[0],
        )
    searched = by_intent(retriever, options.pop("intents", False), lambda: llm)
    stock: BaseQueryEngine = RetrieverQueryEngine.from_args(searched, llm=llm, **options)
    return stock


def grounded_engine(
    retriever: ProjectRetriever,
    load_embed_model: Callable[[], BaseEmbedding],
    llm: LLM,
    /,
    *,
    weights: BlendWeights | None = None,
    reference_date: date | Callable[[], date] | None = None,
    intents: Intents = False,
    adjacent: Adjacent = "merge",
    **options: Any,
) -> GroundedQueryEngine:
    """Return an engine whose search knows conversations, and a wider one for when it is not confident.

    Raises:
        ConfigurationError: An option is unknown or wrong.
    """
    _require_known(options, _OWN)
    embed_model = load_embed_model() if retriever.embeds else None
    conversational = partial(
        ConversationalRetriever,
        embed_model=embed_model,
        weights=_instance("weights", weights, BlendWeights),
        reference_date=reference_date,
        judged=options.get("min_confidence") is not None,
    )
    timeouts = _instance("timeouts", options.get("timeouts"), Timeouts)
    if timeouts is None and retriever.config.call_timeout is not None:
        timeouts = options["timeouts"] = Timeouts(whole=retriever.config.call_timeout)
    options["guards"] = _instance("guards", options.get("guards"), Guards, Guards)
    options["cache"] = _instance("cache", options.get("cache"), AnswerCache, AnswerCache)
    options["judge"] = _instance("judge", options.get("judge"), Judge, lambda: Judge(llm, timeouts=timeouts))
    return GroundedQueryEngine(
        conversational(by_intent(retriever, intents, lambda: llm)),
        llm,
        wider=conversational(retriever.widened()),
        merging=_merging(adjacent, retriever, embed_model),
        options=AnswerOptions(
            **{
                "context": retriever.config.context_in_answer,
                "answer_tokens": retriever.config.answer_tokens,
                **{name: value for name, value in options.items() if name in _OPTIONS},
            }
        ),
        **{name: value for name, value in options.items() if name not in _OPTIONS},
    )


def by_intent(retriever: ProjectRetriever, intents: Intents, load_llm: Callable[[], LLM]) -> BaseRetriever:
    """Return a retriever that searches every question by its intent; without `intents`, the one that was given.

    Raises:
        ConfigurationError: `intents` is neither of what it can be.
    """
    if intents is False:
        return retriever
    plans = intents if isinstance(intents, Mapping) else None
    if plans is None and intents not in (True, "llm"):
        raise ConfigurationError(
            f"intents={intents!r} is unknown: use True, False, 'llm' or a table of SearchPlans.", setting="intents"
        )
    for intent, plan in (plans or {}).items():
        if intent not in INTENTS or not isinstance(plan, SearchPlan):
            raise ConfigurationError(
                f"intents={{{intent!r}: {plan!r}}} cannot be: the table has a SearchPlan for {', '.join(INTENTS)}.",
                setting="intents",
            )

    def planned(plan: SearchPlan) -> BaseRetriever:
        share = plan.semantic_weight
        weights: dict[str, Any] = {} if share is None else {"semantic_weight": share, "lexical_weight": 1 - share}
        return retriever.changed(mode=plan.mode, similarity_top_k=plan.top_k, **weights)

    return IntentRetriever(planned, plans=plans, llm=load_llm() if intents == "llm" else None)


def chat_engine(
    retriever: ProjectRetriever,
    load_embed_model: Callable[[], BaseEmbedding],
    llm: LLM,
    /,
    *,
    weights: BlendWeights | None = None,
    **options: Any,
) -> GroundedChatEngine:
    """Return a chat engine that reads the three best passages, unless told otherwise.

    Args:
        retriever: The search.
        load_embed_model: Gives the model that embeds questions.
        llm: Answers, and makes questions stand alone.
        weights: How much of the conversation counts in a search; None takes the usual ones with `turns`.
        **options: Of `GroundedChatEngine`, `GroundedQueryEngine` and `AnswerOptions`.

    Raises:
        ConfigurationError: An option is unknown or wrong.
    """
    _require_known(options, _OWN | _CHAT | {"mode"})
    chat = {name: options.pop(name) for name in (*_CHAT, "mode") if name in options}
    usual = {"max_passages": None if options.get("intents") else 3}
    blend = weights or BlendWeights(turns=chat.get("turns", BlendWeights.turns))
    return GroundedChatEngine(
        grounded_engine(retriever, load_embed_model, llm, weights=blend, **{**usual, **options}), **chat
    )


def _require_known(options: Mapping[str, Any], known: frozenset[str]) -> None:
    if unknown := sorted(set(options) - known):
        raise ConfigurationError(
            f"The option {unknown[0]!r} is unknown. There are: {', '.join(sorted(known))}.", setting=unknown[0]
        )


def _instance(name: str, value: Any, kind: type[T], usual: Callable[[], T] | None = None) -> T | None:
    """Return what an option stands for: True for the usual one, where there is one, and False for none."""
    if value is None or (usual is not None and value is False):
        return None
    if usual is not None and value is True:
        return usual()
    if isinstance(value, kind):
        return value
    choices = f"a {kind.__name__}" if usual is None else f"True, False or a {kind.__name__}"
    raise ConfigurationError(f"{name}={value!r} cannot be: give {choices}.", setting=name)


def _merging(
    adjacent: Adjacent, retriever: ProjectRetriever, embed_model: BaseEmbedding | None
) -> Callable[[RetrievalResponse], AdjacentChunkMerger]:
    """Return what gives the merger for the hits of a search."""
    if adjacent not in get_args(Adjacent):
        known = ", ".join(get_args(Adjacent))
        raise ConfigurationError(f"adjacent={adjacent!r} is unknown: use {known}.", setting="adjacent")
    if adjacent == "expand" and embed_model is None:
        raise ConfigurationError(
            "adjacent='expand' compares embeddings, and this search has none: use 'bridge'.", setting="adjacent"
        )

    def merger(found: RetrievalResponse) -> AdjacentChunkMerger:
        docstore = None if adjacent == "merge" else retriever.docstore_of(found.version)
        if docstore is None:  # or the version is gone: its chunks cannot be fetched any more
            return AdjacentChunkMerger()
        return AdjacentChunkMerger(bridge=True, expand=adjacent == "expand", docstore=docstore, embed_model=embed_model)

    return merger
