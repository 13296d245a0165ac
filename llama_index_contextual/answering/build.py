"""Build query and chat engines over a project's retriever, and describe their options.

`Project.as_query_engine` and `Project.as_chat_engine` take the options as keywords. Their signatures, the command line
and the guide are generated from these tables. An option that is None or omitted takes its value from the project's
setting with the same name, and shares its description.

An option that only LlamaIndex's `RetrieverQueryEngine` supports selects that engine instead of a grounded one. A
warning says that it does not check citations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, TypeVar, get_args

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import ChatMode as LlamaIndexChatMode
from llama_index.core.llms import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, ResponseMode
from llama_index.core.storage.chat_store.base import BaseChatStore
from pydantic import BaseModel

from llama_index_contextual._utils.keywords import Option, nearest
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering import chat_engine as chat
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.intent import IntentRetriever, SearchPlan, search_plans
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.query_engine import AnswerCache, AnswerOptions, GroundedQueryEngine
from llama_index_contextual.answering.response import AnswerAccount
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.config import Adjacent, Mode, described
from llama_index_contextual.contextualizer.cost import Tokens, money
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.part import load_frame
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.models import model_name
from llama_index_contextual.postprocessor import AdjacentChunkMerger
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.results import RetrievalResponse

T = TypeVar("T")

# ---- options ---------------------------------------------------------------------------------------------------------

Intents = bool | Literal["llm"] | Mapping[str, SearchPlan | Mapping[str, Any]]
"""Whether to search by intent: True (patterns and words), "llm" (also ask the LLM), or a dict of search plans.

The dict may contain custom intents. If a plan has a description, the LLM is asked too.
"""


class EngineOptions(TypedDict, total=False):
    """Options of every engine."""

    intents: Annotated[
        Intents | None,
        Option(
            "True adapts the search to the intent of the question, as defined by `PLANS` in `answering.intent`: the"
            ' number of passages, the indexes, a search for each side of a comparison, no search for chitchat. "llm"'
            " also asks the model if the wording does not decide; a dict of plans replaces individual plans."
        ),
    ]
    style: Annotated[str | None, Option(described("style"))]
    answer_tokens: Annotated[int | None, Option(described("answer_tokens"))]
    context: Annotated[bool, Option("Whether the model sees the context of a chunk along with its text.", default=True)]
    min_confidence: Annotated[float | None, Option(described("min_confidence"))]
    not_found: Annotated[
        str, Option("Answer if nothing was found, or if the passages do not answer the question.", default=NOT_FOUND)
    ]
    small_talk: Annotated[str, Option("Reply to chitchat, if `intents` is set.", default=SMALL_TALK)]
    weights: Annotated[
        BlendWeights | None, Option("Weights of the conversation in the search for a follow-up question.")
    ]
    reference_date: Annotated[
        date | Callable[[], date] | None,
        Option('Current date, or a function that returns it, to resolve time words such as "last quarter".'),
    ]
    adjacent: Annotated[Adjacent | None, Option(described("adjacent"))]
    guards: Annotated[Guards | bool | None, Option(described("guards") + " Guards of your own may be passed as well.")]
    cache: Annotated[
        AnswerCache | bool | None,
        Option(
            "Cache of answers; True keeps them in the project's directory, where `remove` and `forget` clear them. None"
            " applies the setting `answer_cache`."
        ),
    ]
    judge: Annotated[
        Judge | bool | None, Option(described("judge") + " A judge of your own may be passed; True uses `llm`.")
    ]
    timeouts: Annotated[
        Timeouts | None,
        Option(
            "Timeouts of calls to the model; None uses the settings `first_token_timeout`, `between_tokens_timeout`"
            " and `call_timeout`."
        ),
    ]
    callback_manager: Annotated[CallbackManager | None, Option("Receives LlamaIndex's events.")]


class _StockOptions(TypedDict, total=False):
    """Options of LlamaIndex's `RetrieverQueryEngine.from_args` that the grounded engines do not have."""

    response_synthesizer: Annotated[
        BaseSynthesizer | None, Option("As in `RetrieverQueryEngine.from_args`, like all following options.")
    ]
    refine_template: Annotated[BasePromptTemplate | None, Option("Its prompt to refine an answer.")]
    summary_template: Annotated[BasePromptTemplate | None, Option("Its prompt for a summary.")]
    simple_template: Annotated[BasePromptTemplate | None, Option("Its prompt without passages.")]
    output_cls: Annotated[type[BaseModel] | None, Option("Pydantic class of its answer.")]


class QueryEngineOptions(EngineOptions, _StockOptions, total=False):
    """Further options of `Project.as_query_engine`."""

    top_k: Annotated[int | None, Option("The same as `similarity_top_k`.")]


class ChatEngineOptions(EngineOptions, total=False):
    """Further options of `Project.as_chat_engine`."""

    top_k: Annotated[int | None, Option("The same as `similarity_top_k`.")]
    chat_mode: Annotated[
        LlamaIndexChatMode | str | None,
        Option(
            '`mode` in LlamaIndex\'s words: "best" is "blend", "condense_question" and "condense_plus_context" are'
            ' "condense", "context" is "simple".'
        ),
    ]
    search_mode: Annotated[Mode | None, Option("As `mode` in `retrieve`.")]
    turns: Annotated[
        int, Option("Number of previous exchanges used in searches and in the prompt.", default=chat.TURNS)
    ]
    history_tokens: Annotated[
        int,
        Option(
            "Maximum number of tokens of exchanges in the prompt; the oldest are left out first.",
            default=chat.HISTORY_TOKENS,
        ),
    ]
    chat_store: Annotated[BaseChatStore | None, Option("Store of the history.")]
    chat_store_key: Annotated[str, Option("Name of this conversation in the store.", default=chat.CHAT_STORE_KEY)]


_STOCK_OPTIONS = tuple(_StockOptions.__annotations__)
"""Names of the options that select LlamaIndex's own engine."""


# ---- engines ---------------------------------------------------------------------------------------------------------

_OPTIONS_OF_BOTH = frozenset(
    {"top_k", "intents", "text_qa_template", "node_postprocessors", "streaming", "callback_manager"}
)
_CALLS_PER_PASSAGE = frozenset({"refine", "accumulate"})
"""Response modes that make one call per passage."""

_CHAT_MODES: Mapping[str, chat.ChatMode] = {
    "best": "blend",
    "condense_question": "condense",
    "condense_plus_context": "condense",
    "context": "simple",
    "blend": "blend",
    "condense": "condense",
}
"""Chat modes of the grounded engine, by LlamaIndex's names and, where both mean the same, by their own names."""

_AGENT = "an agent: pass project.as_tool() to LlamaIndex's FunctionAgent or ReActAgent."
_REFUSED_CHAT_MODES = {
    "simple": "a chat without documents: use LlamaIndex's SimpleChatEngine, or chat_mode='context', which searches for"
    " each message as it is.",
    "react": _AGENT,
    "openai": _AGENT,
}


@dataclass(frozen=True)
class EngineBuilder:
    """Builder of engines over a project's retriever.

    The methods take as keywords the options of the TypedDicts above and those of `Project.as_query_engine`. An option
    that is None takes its default value.

    Attributes:
        retriever: The retriever.
        load_embed_model: Returns the embedding model for follow-up questions.
        llm: LLM that writes the answers.
        account: Prices of the answers, and the function that records their cost.
        cache: The cache that `cache=True` selects.
    """

    retriever: ProjectRetriever
    load_embed_model: Callable[[], BaseEmbedding]
    llm: LLM
    account: AnswerAccount
    cache: AnswerCache

    def query_engine(
        self, options: Mapping[str, Any], *, response_mode: ResponseMode | str | None = None
    ) -> BaseQueryEngine:
        """Return a grounded engine, or LlamaIndex's own engine if an option that only it supports is given.

        The response mode "compact" selects the grounded engine, which also puts all passages into one prompt.

        Raises:
            ConfigurationError: A value is invalid, or options of both engines are combined.
        """
        given = _given(options)
        stock = {name: given.pop(name) for name in _STOCK_OPTIONS if name in given}
        if response_mode is not None and (stock or response_mode != ResponseMode.COMPACT):
            stock["response_mode"] = response_mode
        if not stock:
            return self.grounded_engine(options)
        if foreign := sorted(given.keys() - _OPTIONS_OF_BOTH):
            raise ConfigurationError(
                f"`{min(stock)}` selects LlamaIndex's own engine, which has no `{foreign[0]}`: omit one of them.",
                setting=foreign[0],
            )
        if response_mode is not None and response_mode not in list(ResponseMode):
            known = ", ".join(one.value for one in ResponseMode)
            message = f"response_mode={response_mode!r} is unknown: use {known}."
            raise ConfigurationError(message, setting="response_mode")
        warnings.warn(
            f"`{min(stock)}` selects LlamaIndex's own engine: its answers are not checked for citations and quotations,"
            f" and a search without results is not answered with `not_found`.{self._cost_of(response_mode)}",
            UserWarning,
            stacklevel=4,  # the caller of `Project.as_query_engine`, whose keywords are checked first
        )
        given.pop("top_k", None)
        intents = given.pop("intents", self.retriever.config.intents)
        searching = by_intent(self.retriever, intents, lambda: self.llm)
        engine: BaseQueryEngine = RetrieverQueryEngine.from_args(searching, llm=self.llm, **given, **stock)
        return engine

    def _cost_of(self, mode: ResponseMode | str | None) -> str:
        """Return a warning if a response mode makes many calls per question, or an empty string."""
        if mode is None or ResponseMode(mode).value not in _CALLS_PER_PASSAGE:
            return ""
        calls = self.retriever.similarity_top_k
        tokens = Tokens(calls=calls, input_tokens=calls * self.retriever.config.chunk_size)
        dollars = self.account.prices.dollars(model_name(self.llm), tokens)
        price = "" if dollars is None else f", {money(dollars)} without the answers"
        return (
            f" Each question takes {pluralize(calls, 'call')}, one for each passage: up to {tokens.input_tokens:,}"
            f" tokens of passages{price}. `similarity_top_k` reduces the number."
        )

    def grounded_engine(self, options: Mapping[str, Any]) -> GroundedQueryEngine:
        """Return an engine that accepts follow-up questions and widens the search if the confidence is low.

        Raises:
            ConfigurationError: A value is invalid.
        """
        config, given = self.retriever.config, _given(options)
        embed_model = self.load_embed_model() if self.retriever.embeds else None
        intents: Intents = given.get("intents", config.intents)
        settings = {name: getattr(config, name) for name in ("style", "answer_tokens", "min_confidence")}
        answer_options = AnswerOptions(
            **settings | {one.name: given[one.name] for one in fields(AnswerOptions) if one.name in given},
            replies={name: plan.reply for name, plan in plans_of(intents).items() if plan.reply is not None},
        )
        conversational = partial(
            ConversationalRetriever,
            embed_model=embed_model,
            weights=_instance("weights", given.get("weights"), BlendWeights),
            reference_date=given.get("reference_date", _day(config.reference_date)),
        )
        timeouts = _instance("timeouts", given.get("timeouts"), Timeouts) or Timeouts(
            first_token=config.first_token_timeout,
            between_tokens=config.between_tokens_timeout,
            whole=Timeouts.whole if config.call_timeout is None else config.call_timeout,
        )
        cache, judge = given.get("cache", bool(config.answer_cache)), given.get("judge", config.judge)
        unchanged = ("node_postprocessors", "streaming", "text_qa_template", "callback_manager")
        return GroundedQueryEngine(
            conversational(by_intent(self.retriever, intents, lambda: self.llm)),
            self.llm,
            wider=conversational(self.retriever.widened()),
            merging=_merging(given.get("adjacent", config.adjacent), self.retriever),
            options=answer_options,
            timeouts=timeouts,
            guards=given.get("guards", config.guards),
            cache=_instance("cache", cache, AnswerCache, lambda: self.cache),
            judge=_instance("judge", judge, Judge, lambda: Judge(self.llm, timeouts=timeouts)),
            account=self.account,
            document_map=partial(_document_map, self.retriever),
            **{name: given[name] for name in unchanged if name in given},
        )

    def chat_engine(
        self, options: Mapping[str, Any], *, mode: chat.ChatMode, memory: BaseMemory | None
    ) -> chat.GroundedChatEngine:
        """Return a chat engine over a grounded engine; without `weights`, the defaults with `turns` are used.

        Raises:
            ConfigurationError: A value is invalid.
        """
        given = _given(options)
        weights = BlendWeights(turns=given.get("turns", chat.TURNS))
        own = ("turns", "history_tokens", "chat_store", "chat_store_key")
        return chat.GroundedChatEngine(
            self.grounded_engine({"weights": weights, **given}),
            mode=_mode_of(given["chat_mode"], mode) if "chat_mode" in given else mode,
            memory=memory,
            **{name: given[name] for name in own if name in given},
        )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _mode_of(chat_mode: LlamaIndexChatMode | str, mode: chat.ChatMode) -> chat.ChatMode:
    name, problem = str(getattr(chat_mode, "value", chat_mode)), None
    if name in _REFUSED_CHAT_MODES:
        problem = f"chat_mode={name!r} is {_REFUSED_CHAT_MODES[name]}"
    elif name not in _CHAT_MODES:
        known = ", ".join(_CHAT_MODES)
        problem = f"chat_mode={name!r} is unknown{nearest(name, _CHAT_MODES)}. Its values are {known}."
    elif mode not in ("blend", _CHAT_MODES[name]):
        problem = f"mode={mode!r} and chat_mode={name!r} contradict each other: omit one of them."
    if problem is not None:
        raise ConfigurationError(problem, setting="chat_mode")
    return _CHAT_MODES[name]


# ---- parts of an engine ----------------------------------------------------------------------------------------------


def by_intent(retriever: ProjectRetriever, intents: Intents, load_llm: Callable[[], LLM]) -> BaseRetriever:
    """Return a retriever that searches according to intent, or the given retriever if `intents` is not set.

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


def _day(setting: str | None) -> date | Callable[[], date] | None:
    if setting is None:
        return None
    return date.today if setting == "today" else date.fromisoformat(setting)


def _instance(name: str, value: Any, kind: type[T], usual: Callable[[], T | None] | None = None) -> T | None:
    """Return the object that an option selects: the default, if there is one, for True, and None for False."""
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


def _merging(adjacent: Adjacent, retriever: ProjectRetriever) -> Callable[[RetrievalResponse], AdjacentChunkMerger]:
    """Return a function that creates the merger for the hits of a search."""
    if adjacent not in get_args(Adjacent):
        known = ", ".join(get_args(Adjacent))
        raise ConfigurationError(f"adjacent is {adjacent!r}, which is unknown: use {known}.", setting="adjacent")

    def merger(response: RetrievalResponse) -> AdjacentChunkMerger:
        docstore = None if adjacent == "merge" else retriever.docstore_of(response.version)
        if docstore is None:  # or the version was removed, so its chunks can no longer be fetched
            return AdjacentChunkMerger()
        return AdjacentChunkMerger(bridge=True, docstore=docstore)

    return merger
