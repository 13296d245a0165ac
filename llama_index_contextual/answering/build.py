"""Query and chat engines over the retriever of a project, from the options in `options.py`.

Options that only LlamaIndex's `RetrieverQueryEngine` has select that engine instead of a grounded one, with a warning
that it checks no citations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from functools import partial
from typing import Any, TypeVar, get_args

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.chat_engine.types import ChatMode as LlamaIndexChatMode
from llama_index.core.llms import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode

from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.chat_engine import ChatMode, GroundedChatEngine
from llama_index_contextual.answering.intent import IntentRetriever, SearchPlan, search_plans
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.options import (
    CHAT_STORE_KEY,
    HISTORY_TOKENS,
    STOCK_OPTIONS,
    TURNS,
    ChatEngineOptions,
    EngineOptions,
    Intents,
    QueryEngineOptions,
)
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.query_engine import AnswerOptions, GroundedQueryEngine
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.answering.usage import AnswerAccount
from llama_index_contextual.config import Adjacent, ProjectConfig
from llama_index_contextual.contextualizer.cost import PriceTable, Tokens, money
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.part import load_frame
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.models import model_name
from llama_index_contextual.postprocessor import AdjacentChunkMerger
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.results import RetrievalResponse

T = TypeVar("T")

_OPTIONS_OF_BOTH = frozenset(
    {"top_k", "intents", "text_qa_template", "node_postprocessors", "streaming", "callback_manager"}
)


@dataclass(frozen=True)
class Keywords:
    """The keywords that both engines spell out, and the cache that `cache=True` selects."""

    streaming: bool = False
    node_postprocessors: Sequence[BaseNodePostprocessor] = ()
    text_qa_template: BasePromptTemplate | None = None
    system_prompt: str | None = None
    project_cache: AnswerCache | None = None

    def given(self) -> dict[str, object]:
        """Return the keywords that are not empty."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "project_cache"}
        return {name: value or None for name, value in values.items()}


# ---- engines ---------------------------------------------------------------------------------------------------------


def query_engine(
    retriever: ProjectRetriever,
    load_embed_model: Callable[[], BaseEmbedding],
    llm: LLM,
    options: QueryEngineOptions,
    account: AnswerAccount,
    common: Keywords,
    *,
    response_mode: ResponseMode | str | None = None,
) -> BaseQueryEngine:
    """Return a grounded engine, or LlamaIndex's own if one of its own options is given.

    The response mode "compact" means the grounded engine: like that mode, it puts all passages into one prompt.

    Args:
        retriever: The retriever.
        load_embed_model: Returns the embedding model for follow-up questions.
        llm: LLM that writes the answer.
        options: Options of both engines.
        account: Prices of the answers, and where their cost is recorded.
        common: The keywords that both engines spell out.
        response_mode: How LlamaIndex's own engine writes its answer.

    Raises:
        ConfigurationError: A value is invalid, or options of both engines are given.
    """
    named: dict[str, Any] = {**common.given(), **options}
    given = {name: value for name, value in named.items() if value is not None}
    stock = {name: given.pop(name) for name in STOCK_OPTIONS if name in given}
    if response_mode is not None and (stock or response_mode != ResponseMode.COMPACT):
        stock["response_mode"] = response_mode
    if not stock:
        return grounded_engine(retriever, load_embed_model, llm, options, account, common)
    if foreign := sorted(given.keys() - _OPTIONS_OF_BOTH):
        raise ConfigurationError(
            f"`{min(stock)}` selects LlamaIndex's own engine, which has no `{foreign[0]}`: omit one of them.",
            setting=foreign[0],
        )
    if response_mode is not None and response_mode not in list(ResponseMode):
        known = ", ".join(one.value for one in ResponseMode)
        raise ConfigurationError(f"response_mode={response_mode!r} is unknown: use {known}.", setting="response_mode")
    warnings.warn(
        f"`{min(stock)}` selects LlamaIndex's own engine: its answers are not checked for citations and quotations, and"
        f" a search without results is not answered with `not_found`."
        f"{_cost_of(response_mode, retriever, llm, account.prices)}",
        UserWarning,
        stacklevel=4,  # the caller of `Project.as_query_engine`, whose keywords are checked first
    )
    engine: BaseQueryEngine = RetrieverQueryEngine.from_args(
        by_intent(retriever, _given(options.get("intents"), retriever.config.intents), lambda: llm),
        llm=llm,
        node_postprocessors=list(common.node_postprocessors),
        callback_manager=options.get("callback_manager"),
        streaming=common.streaming,
        text_qa_template=common.text_qa_template,
        **stock,
    )
    return engine


_CALLS_PER_PASSAGE = frozenset({"refine", "accumulate"})
"""Response modes with a call for each passage."""


def _cost_of(mode: ResponseMode | str | None, retriever: ProjectRetriever, llm: LLM, prices: PriceTable) -> str:
    """Return a sentence on the calls for a question in a response mode with many of them; empty for others."""
    if mode is None or ResponseMode(mode).value not in _CALLS_PER_PASSAGE:
        return ""
    calls = retriever.similarity_top_k
    tokens = Tokens(calls=calls, input_tokens=calls * retriever.config.chunk_size)
    dollars = prices.dollars(model_name(llm), tokens)
    price = "" if dollars is None else f", {money(dollars)} without the answers"
    return (
        f" Each question takes {pluralize(calls, 'call')}, one for each passage: up to {tokens.input_tokens:,} tokens"
        f" of passages{price}. `similarity_top_k` reduces the number."
    )


def grounded_engine(
    retriever: ProjectRetriever,
    load_embed_model: Callable[[], BaseEmbedding],
    llm: LLM,
    options: EngineOptions,
    account: AnswerAccount,
    common: Keywords,
) -> GroundedQueryEngine:
    """Return an engine that accepts follow-up questions, and searches more widely if the confidence is low.

    Raises:
        ConfigurationError: A value is invalid.
    """
    config = retriever.config
    embed_model = load_embed_model() if retriever.embeds else None
    intents: Intents = _given(options.get("intents"), config.intents)
    answer_options = AnswerOptions(
        style=_given(options.get("style"), config.style),
        answer_tokens=_given(options.get("answer_tokens"), config.answer_tokens),
        context=_given(options.get("context"), True),
        min_confidence=_given(options.get("min_confidence"), config.min_confidence),
        not_found=_given(options.get("not_found"), NOT_FOUND),
        small_talk=_given(options.get("small_talk"), SMALL_TALK),
        system_prompt=common.system_prompt,
        replies={name: plan.reply for name, plan in plans_of(intents).items() if plan.reply is not None},
    )
    conversational = partial(
        ConversationalRetriever,
        embed_model=embed_model,
        weights=_instance("weights", options.get("weights"), BlendWeights),
        reference_date=_given(options.get("reference_date"), _day(config.reference_date)),
    )
    timeouts = _given(_instance("timeouts", options.get("timeouts"), Timeouts), _timeouts(config))
    return GroundedQueryEngine(
        conversational(by_intent(retriever, intents, lambda: llm)),
        llm,
        wider=conversational(retriever.widened()),
        merging=_merging(_given(options.get("adjacent"), config.adjacent), retriever, embed_model),
        options=answer_options,
        timeouts=timeouts,
        node_postprocessors=common.node_postprocessors,
        streaming=common.streaming,
        guards=_given(options.get("guards"), config.guards),
        cache=_instance(
            "cache",
            _given(options.get("cache"), bool(config.answer_cache)),
            AnswerCache,
            lambda: common.project_cache,
        ),
        judge=_instance(
            "judge", _given(options.get("judge"), config.judge), Judge, lambda: Judge(llm, timeouts=timeouts)
        ),
        text_qa_template=common.text_qa_template,
        account=account,
        document_map=partial(_document_map, retriever),
        callback_manager=options.get("callback_manager"),
    )


def chat_engine(
    retriever: ProjectRetriever,
    load_embed_model: Callable[[], BaseEmbedding],
    llm: LLM,
    options: ChatEngineOptions,
    account: AnswerAccount,
    common: Keywords,
    *,
    mode: ChatMode,
    memory: BaseMemory | None,
) -> GroundedChatEngine:
    """Return a chat engine over a grounded engine; without the option `weights`, the defaults with `turns` are used.

    Raises:
        ConfigurationError: A value is invalid.
    """
    turns, chat_mode = _given(options.get("turns"), TURNS), options.get("chat_mode")
    weighted: ChatEngineOptions = {**options, "weights": options.get("weights") or BlendWeights(turns=turns)}
    return GroundedChatEngine(
        grounded_engine(retriever, load_embed_model, llm, weighted, account, common),
        mode=mode if chat_mode is None else _mode_of(chat_mode, mode),
        turns=turns,
        history_tokens=_given(options.get("history_tokens"), HISTORY_TOKENS),
        chat_store=options.get("chat_store"),
        chat_store_key=_given(options.get("chat_store_key"), CHAT_STORE_KEY),
        memory=memory,
    )


_CHAT_MODES: Mapping[str, ChatMode] = {
    "best": "blend",
    "condense_question": "condense",
    "condense_plus_context": "condense",
    "context": "simple",
    "blend": "blend",
    "condense": "condense",
}
"""Modes of the grounded engine by LlamaIndex's names, and by their own where both mean the same."""


def _mode_of(chat_mode: LlamaIndexChatMode | str, mode: ChatMode) -> ChatMode:
    name = str(getattr(chat_mode, "value", chat_mode))
    if name == "simple":
        raise ConfigurationError(
            "chat_mode='simple' is a chat without documents: use LlamaIndex's SimpleChatEngine, or chat_mode='context',"
            " which searches for each message as it is.",
            setting="chat_mode",
        )
    if name in ("react", "openai"):
        raise ConfigurationError(
            f"chat_mode={name!r} is an agent: pass project.as_tool() to LlamaIndex's FunctionAgent or ReActAgent.",
            setting="chat_mode",
        )
    if name not in _CHAT_MODES:
        known = ", ".join(_CHAT_MODES)
        raise ConfigurationError(
            f"chat_mode={name!r} is unknown{nearest(name, _CHAT_MODES)}. Its values are {known}.", setting="chat_mode"
        )
    if mode not in ("blend", _CHAT_MODES[name]):
        raise ConfigurationError(
            f"mode={mode!r} and chat_mode={name!r} contradict each other: omit one of them.", setting="chat_mode"
        )
    return _CHAT_MODES[name]


# ---- parts of an engine ----------------------------------------------------------------------------------------------


def by_intent(retriever: ProjectRetriever, intents: Intents, load_llm: Callable[[], LLM]) -> BaseRetriever:
    """Return a retriever that searches every question by its intent; without `intents`, the given one.

    Raises:
        ConfigurationError: `intents` is invalid.
    """
    if intents is False:
        return retriever
    if intents not in (True, "llm") and not isinstance(intents, Mapping):
        raise ConfigurationError(
            f"intents={intents!r} is unknown: use True, False, 'llm' or a table of SearchPlans.", setting="intents"
        )
    plans = plans_of(intents)
    asks_llm = intents == "llm" or any(plan.description for plan in plans.values())

    def planned(plan: SearchPlan) -> BaseRetriever:
        share = plan.semantic_weight
        weights: dict[str, Any] = {} if share is None else {"semantic_weight": share}
        # Lexical mode was chosen so that questions are not sent to an embedding model.
        mode = None if retriever.mode == "lexical" else plan.mode
        return retriever.changed(mode=mode, similarity_top_k=plan.top_k, **weights)

    llm = load_llm() if asks_llm else None
    return IntentRetriever(planned, plans=plans, llm=llm, language=retriever.config.language)


def plans_of(intents: Intents) -> dict[str, SearchPlan]:
    """Return the search plans of the option `intents`.

    Raises:
        ConfigurationError: A plan is invalid.
    """
    return search_plans(intents) if isinstance(intents, Mapping) else {}


def _given(option: T | None, setting: T) -> T:
    return setting if option is None else option


def _day(setting: str | None) -> date | Callable[[], date] | None:
    if setting is None:
        return None
    return date.today if setting == "today" else date.fromisoformat(setting)


def _timeouts(config: ProjectConfig) -> Timeouts:
    whole = Timeouts.whole if config.call_timeout is None else config.call_timeout
    return Timeouts(first_token=config.first_token_timeout, between_tokens=config.between_tokens_timeout, whole=whole)


def _instance(name: str, value: Any, kind: type[T], usual: Callable[[], T | None] | None = None) -> T | None:
    """Return the object selected by an option: the default one for True, if there is one, and None for False."""
    if value is None or (usual is not None and value is False):
        return None
    if usual is not None and value is True:
        return usual()
    if isinstance(value, kind):
        return value
    choices = f"a {kind.__name__}" if usual is None else f"True, False or a {kind.__name__}"
    raise ConfigurationError(f"{name}={value!r} is invalid: pass {choices}.", setting=name)


def _document_map(retriever: ProjectRetriever, version: str | None, doc_id: str) -> DocumentMap | None:
    """Return the pages and headings of a document, or None if it has none or its version was removed."""
    docstore = retriever.docstore_of(version)
    frame = None if docstore is None else load_frame(docstore.nodes, doc_id)
    return None if frame is None else DocumentMap.from_metadata(dict(frame.metadata))


def _merging(
    adjacent: Adjacent, retriever: ProjectRetriever, embed_model: BaseEmbedding | None
) -> Callable[[RetrievalResponse], AdjacentChunkMerger]:
    """Return a function that creates the merger for the hits of a search."""
    if adjacent not in get_args(Adjacent):
        known = ", ".join(get_args(Adjacent))
        raise ConfigurationError(f"adjacent is {adjacent!r}, which is unknown: use {known}.", setting="adjacent")
    if adjacent == "expand" and embed_model is None:
        raise ConfigurationError(
            "adjacent is 'expand', which compares embeddings, and this search has none: use 'bridge'.",
            setting="adjacent",
        )

    def merger(response: RetrievalResponse) -> AdjacentChunkMerger:
        docstore = None if adjacent == "merge" else retriever.docstore_of(response.version)
        if docstore is None:  # or the version was removed, and its chunks can no longer be fetched
            return AdjacentChunkMerger()
        return AdjacentChunkMerger(bridge=True, expand=adjacent == "expand", docstore=docstore, embed_model=embed_model)

    return merger
