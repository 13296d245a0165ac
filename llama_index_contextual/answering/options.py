"""The options of the query and chat engines, each described once.

`Project.as_query_engine` and `Project.as_chat_engine` take them as keywords; their signatures, the command line and the
guide are made from this table. An option that is None or not given has the value of the project's setting of the same
name, whose description is the setting's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Any, Literal, TypedDict

from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import ChatMode as LlamaIndexChatMode
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.storage.chat_store.base import BaseChatStore
from pydantic import BaseModel

from llama_index_contextual._utils.keywords import Option
from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.intent import SearchPlan
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.config import Adjacent, Mode, described
from llama_index_contextual.retrievers.conversational import BlendWeights

Intents = bool | Literal["llm"] | Mapping[str, SearchPlan | Mapping[str, Any]]
"""Whether to search by intent: True (patterns and words), "llm" (also ask the LLM), or a dict of search plans.

The dict may have intents of your own. If a plan has a description, the LLM is asked too.
"""

TURNS = 3
HISTORY_TOKENS = 1000
CHAT_STORE_KEY = "chat_history"


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
    chat_content_qa_template: Annotated[BasePromptTemplate | None, Option("Its multimodal prompt for an answer.")]
    chat_content_refine_template: Annotated[
        BasePromptTemplate | None, Option("Its multimodal prompt to refine an answer.")
    ]
    output_cls: Annotated[type[BaseModel] | None, Option("Pydantic class of its answer.")]
    use_async: Annotated[bool | None, Option("Whether it calls the model asynchronously.")]
    verbose: Annotated[bool | None, Option("Whether it prints.")]
    multimodal: Annotated[bool | None, Option("Whether it reads images too.")]


class _NumberOption(TypedDict, total=False):
    """The other name of the number of results."""

    top_k: Annotated[int | None, Option("The same as `similarity_top_k`.")]


class QueryEngineOptions(EngineOptions, _NumberOption, _StockOptions, total=False):
    """Further options of `Project.as_query_engine`."""


class ChatEngineOptions(EngineOptions, _NumberOption, total=False):
    """Further options of `Project.as_chat_engine`."""

    chat_mode: Annotated[
        LlamaIndexChatMode | str | None,
        Option(
            '`mode` in LlamaIndex\'s words: "best" is "blend", "condense_question" and "condense_plus_context" are'
            ' "condense", "context" is "simple".'
        ),
    ]
    search_mode: Annotated[Mode | None, Option("As `mode` in `retrieve`.")]
    turns: Annotated[int, Option("Number of previous exchanges used in searches and in the prompt.", default=TURNS)]
    history_tokens: Annotated[
        int,
        Option(
            "Maximum number of tokens of exchanges in the prompt; the oldest are left out first.",
            default=HISTORY_TOKENS,
        ),
    ]
    chat_store: Annotated[BaseChatStore | None, Option("Store of the history.")]
    chat_store_key: Annotated[str, Option("Name of this conversation in the store.", default=CHAT_STORE_KEY)]


STOCK_OPTIONS = tuple(_StockOptions.__annotations__)
"""Names of the options that select LlamaIndex's own engine."""
