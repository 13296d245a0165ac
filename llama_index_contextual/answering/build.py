"""Build query and chat engines over a project's retriever and describe their options.

`Project.as_query_engine` and `Project.as_chat_engine` take the options as keyword arguments. Their signatures, the
command line and the guide are generated from the TypedDicts below. If an option is None or omitted, the project's
setting with the same name applies. The setting's description also describes the option.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from functools import partial
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import ChatMode as LlamaIndexChatMode
from llama_index.core.llms import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.storage.chat_store.base import BaseChatStore

from llama_index_contextual._utils.keywords import Option
from llama_index_contextual.answering import chat_engine as chat
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.intent import IntentRetriever, SearchPlan
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.query_engine import AnswerCache, AnswerOptions, GroundedQueryEngine
from llama_index_contextual.answering.response import AnswerAccount
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.config import Mode, described
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.models import model_name
from llama_index_contextual.money.price import money
from llama_index_contextual.money.tokens import Tokens
from llama_index_contextual.retrievers.conversational import BlendWeights, ConversationalRetriever
from llama_index_contextual.retrievers.project import ProjectRetriever

T = TypeVar("T")

# ---- options ---------------------------------------------------------------------------------------------------------

Intents = bool | Literal["llm"] | Mapping[str, SearchPlan | Mapping[str, Any]]
"""Value of the `intents` option: True uses patterns and words, "llm" also asks the LLM, a dict gives search plans."""


class EngineOptions(TypedDict, total=False):
    """Options for query and chat engines.

    Attributes:
        intents: True adapts the search to the intent of the question, with the plans in `answering.intent.PLANS`; "llm"
            has the LLM classify questions whose wording does not make the intent clear; a dict replaces individual
            plans.
        system_prompt: Replaces the rules and the style; {not_found} is replaced by `not_found`.
        text_qa_template: Template of the message with {context_str}, the numbered passages, and {query_str}.
        node_postprocessors: Postprocessors that are applied to the hits first.
        context: Whether the model sees the context of a chunk along with its text.
        not_found: Answer if nothing was found, or if the passages do not answer the question; the default is in German
            if the question is.
        small_talk: Reply to chitchat, if `intents` is set; the default is in German if the question is.
        reference_date: Current date, or a function that returns it, to resolve time words such as "last quarter".
        guards: A `Guards` object may also be passed.
        cache: Cache of answers. True: a cache in the project's directory; None: the `answer_cache` setting.
        judge: A `Judge` object may also be passed.
        timeouts: Timeouts of calls to the model; None: those in the project's settings.
        callback_manager: Receives LlamaIndex's events.
    """

    intents: Intents | None
    system_prompt: str | None
    text_qa_template: BasePromptTemplate | None
    node_postprocessors: Sequence[BaseNodePostprocessor] | None
    style: Annotated[str | None, Option(described("style"))]
    answer_tokens: Annotated[int | None, Option(described("answer_tokens"))]
    context: Annotated[bool, Option(default=True)]
    min_confidence: Annotated[float | None, Option(described("min_confidence"))]
    translate: Annotated[bool | None, Option(described("translate"))]
    not_found: Annotated[str, Option(default=NOT_FOUND)]
    small_talk: Annotated[str, Option(default=SMALL_TALK)]
    reference_date: date | Callable[[], date] | None
    guards: Annotated[Guards | bool | None, Option(described("guards"))]
    cache: AnswerCache | bool | None
    judge: Annotated[Judge | bool | None, Option(described("judge"))]
    timeouts: Timeouts | None
    callback_manager: CallbackManager | None


class ChatEngineOptions(EngineOptions, total=False):
    """Additional options for `Project.as_chat_engine`.

    Attributes:
        chat_mode: LlamaIndex's name for `mode`: "best" means "blend", "condense_question" and "condense_plus_context"
            mean "condense", and "context" means "simple".
        search_mode: Indexes to search, as `mode` in `retrieve`.
        turns: Number of previous exchanges used in searches and in the prompt.
        history_tokens: Maximum number of tokens of exchanges in the prompt; the oldest are left out first.
        chat_store: Store of the history.
        chat_store_key: Name of this conversation in the store.
    """

    chat_mode: LlamaIndexChatMode | str | None
    search_mode: Mode | None
    turns: Annotated[int, Option(default=chat.TURNS)]
    history_tokens: Annotated[int, Option(default=chat.HISTORY_TOKENS)]
    chat_store: BaseChatStore | None
    chat_store_key: Annotated[str, Option(default=chat.CHAT_STORE_KEY)]


# ---- engines ---------------------------------------------------------------------------------------------------------

_STOCK_OPTIONS = frozenset({"text_qa_template", "node_postprocessors", "streaming", "callback_manager"})
"""Options that LlamaIndex's own engine also accepts."""

_CHAT_MODES = {
    "best": "blend",
    "condense_question": "condense",
    "condense_plus_context": "condense",
    "context": "simple",
}
"""Mapping from LlamaIndex's chat modes to the modes of the chat engine."""


@dataclass(frozen=True)
class EngineBuilder:
    """Builder of engines over a project's retriever.

    The methods take the options that are defined in the TypedDicts above, and the options of `Project.as_query_engine`.
    None selects the default value of an option.

    Attributes:
        retriever: The retriever.
        load_embed_model: Function that returns the embedding model for follow-up questions.
        llm: LLM that writes the answers.
        account: Model prices, and the function that records the cost of answers.
        cache: The cache selected by `cache=True`.
    """

    retriever: ProjectRetriever
    load_embed_model: Callable[[], BaseEmbedding]
    llm: LLM
    account: AnswerAccount
    cache: AnswerCache

    def query_engine(self, options: Mapping[str, Any]) -> GroundedQueryEngine:
        """Return a query engine that accepts follow-up questions and widens the search if the confidence is low.

        Raises:
            ConfigurationError: A value is invalid.
        """
        config, values = self.retriever.config, _without_none(options)
        embed_model = self.load_embed_model() if self.retriever.embeds else None
        intents: Intents = values.get("intents", config.intents)
        settings = ("style", "answer_tokens", "min_confidence", "translate")
        settings_config = config.changed(**{name: values[name] for name in settings if name in values})
        answer_options = AnswerOptions(
            **{field.name: values[field.name] for field in fields(AnswerOptions) if field.name in values}
            | {name: getattr(settings_config, name) for name in settings}
        )
        conversational = partial(
            ConversationalRetriever,
            embed_model=embed_model,
            weights=BlendWeights(turns=values.get("turns", chat.TURNS)),
            reference_date=values.get("reference_date", _date(config.reference_date)),
        )
        timeouts = _instance("timeouts", values.get("timeouts"), Timeouts) or Timeouts.for_model(
            self.llm,
            first_token=config.first_token_timeout,
            between_tokens=config.between_tokens_timeout,
            whole=config.call_timeout,
        )
        cache, judge = values.get("cache", bool(config.answer_cache)), values.get("judge", config.judge)
        unchanged = ("node_postprocessors", "streaming", "text_qa_template", "callback_manager")
        return GroundedQueryEngine(
            conversational(by_intent(self.retriever, intents, lambda: self.llm)),
            self.llm,
            wider=conversational(self.retriever.with_more_results()),
            options=answer_options,
            timeouts=timeouts,
            guards=values.get("guards", config.guards),
            cache=_instance("cache", cache, AnswerCache, lambda: self.cache),
            judge=_instance("judge", judge, Judge, lambda: Judge(self.llm, timeouts=timeouts)),
            account=self.account,
            **{name: values[name] for name in unchanged if name in values},
        )

    def stock_engine(self, options: Mapping[str, Any], response_mode: ResponseMode | str) -> BaseQueryEngine:
        """Return LlamaIndex's own engine with the same search, and warn that this engine does not check citations.

        Raises:
            ConfigurationError: An option is given that this engine does not support.
        """
        values = _without_none(options)
        if foreign := sorted(values.keys() - _STOCK_OPTIONS):
            raise ConfigurationError(
                f"`response_mode` selects LlamaIndex's own engine, which has no `{foreign[0]}`: omit one of them.",
                setting=foreign[0],
            )
        calls = self.retriever.similarity_top_k
        tokens = Tokens(calls=calls, input_tokens=calls * self.retriever.config.chunk_size)
        dollars = self.account.prices.dollars(model_name(self.llm), tokens)
        price = "" if dollars is None else f", {money(dollars)} without the answers"
        warnings.warn(
            "`response_mode` selects LlamaIndex's own engine: its answers are not checked for citations. Modes such as"
            f" refine take a call for each passage: up to {calls} for a question{price}.",
            UserWarning,
            stacklevel=4,  # shows the line that called `Project.as_query_engine`, which is wrapped in a check
        )
        mode = ResponseMode(response_mode)
        engine: BaseQueryEngine = RetrieverQueryEngine.from_args(
            self.retriever, llm=self.llm, response_mode=mode, **values
        )
        return engine

    def chat_engine(
        self, options: Mapping[str, Any], *, mode: chat.ChatMode, memory: BaseMemory | None
    ) -> chat.GroundedChatEngine:
        """Return a chat engine over a query engine.

        Raises:
            ConfigurationError: A value is invalid.
        """
        values = _without_none(options)
        names = ("turns", "history_tokens", "chat_store", "chat_store_key")
        chat_options = {name: values[name] for name in names if name in values}
        if "chat_mode" in values:
            name = getattr(values["chat_mode"], "value", values["chat_mode"])
            mode = cast(chat.ChatMode, _CHAT_MODES.get(name, name))
        return chat.GroundedChatEngine(self.query_engine(options), mode=mode, memory=memory, **chat_options)


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


# ---- engine parts ----------------------------------------------------------------------------------------------------


def by_intent(retriever: ProjectRetriever, intents: Intents, load_llm: Callable[[], LLM]) -> BaseRetriever:
    """Return a retriever that routes questions by intent, or the given retriever if `intents` is False.

    Raises:
        ConfigurationError: `intents` is invalid.
    """
    if intents is False:
        return retriever

    def planned(plan: SearchPlan) -> BaseRetriever:
        share = plan.semantic_weight
        weights: dict[str, Any] = {} if share is None else {"semantic_weight": share}
        # Lexical mode overrides the plan, because the user may not want questions to be sent to an embedding model.
        mode = None if retriever.mode == "lexical" else plan.mode
        return retriever.changed(mode=mode, similarity_top_k=plan.top_k, **weights)

    plans: Any = {} if intents in (True, "llm") else intents
    return IntentRetriever(planned, plans=plans, llm=load_llm() if intents == "llm" else None)


def _date(setting: str | None) -> date | Callable[[], date] | None:
    if setting is None:
        return None
    return date.today if setting == "today" else date.fromisoformat(setting)


def _instance(name: str, value: Any, kind: type[T], usual: Callable[[], T | None] | None = None) -> T | None:
    """Return the object that an option selects.

    None and False select None, and True selects the default object. Any other value must be an instance of `kind`.
    """
    if value is None or (usual is not None and value is False):
        return None
    if usual is not None and value is True:
        return usual()
    if isinstance(value, kind):
        return value
    choices = f"a {kind.__name__}" if usual is None else f"True, False or a {kind.__name__}"
    raise ConfigurationError(f"{name}={value!r} is invalid: pass {choices}.", setting=name)
