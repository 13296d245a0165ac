"""Chat engine that keeps the conversation history and uses a stateless query engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.memory import BaseMemory, ChatMemoryBuffer
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.schema import QueryBundle
from llama_index.core.storage.chat_store.base import BaseChatStore

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual._utils.templates import enclosed, require_known
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual._utils.tokens import TokenMap, count_tokens
from llama_index_contextual.answering.intent import IntentRetriever, empty_response, unsearched_intent
from llama_index_contextual.answering.prompts import CONDENSE, conversation_text, require_template
from llama_index_contextual.answering.query_engine import Draft, GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse, calls_made
from llama_index_contextual.answering.streaming import STOPPED, Completion, blocking
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.analysis import cut_query, cut_text
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.retrievers.base import alimit_query
from llama_index_contextual.retrievers.conversational import ConversationQuery

ChatMode = Literal["blend", "condense", "simple"]

TURNS = 3
HISTORY_TOKENS = 1000
CHAT_STORE_KEY = "chat_history"

_MODES = ("blend", "condense", "simple")
_ROLES = (MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT)
_ELLIPSIS = "… "
_LONGEST_TOKEN = 128  # length of the longest token in o200k_base, which consists of spaces


@dataclass
class GroundedChatResponse(AgentChatResponse):
    """Answer to one message; `grounded` is the full response of the query engine."""

    grounded: GroundedResponse | None = None


@dataclass
class GroundedChatStream(StreamingAgentChatResponse):
    """Streamed answer to one message; `grounded` and `metadata` are set when the stream ends."""

    grounded: GroundedResponse | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class GroundedChatEngine(BaseChatEngine, PromptMixin):
    """Chat engine that uses recent exchanges of the conversation in its searches and prompts.

    A question about the conversation itself, such as "What did you just say?", is answered from the conversation,
    without a search. Thanks and greetings are answered with `small_talk`, without calling the model.

    `get_prompts` and `update_prompts` give access to "condense_prompt" ({history} and {question}) and to the prompts
    of the query engine, whose names begin with "query_engine:".

    Args:
        engine: The query engine; its retriever should accept `ConversationQuery` objects.
        mode: "blend" searches for the question and the conversation together, without an extra call; "condense" asks
            the model for a standalone question first; "simple" searches for the unchanged question.
        turns: Number of recent exchanges to consider.
        history_tokens: Maximum number of tokens for these exchanges in the prompt. The oldest exchanges are omitted
            first; if the last exchange alone is too long, only the end of each of its messages is included.
        chat_store: Store for the history.
        chat_store_key: Key of this conversation in the store.
        memory: LlamaIndex memory that holds the conversation, such as `Memory` or `ChatMemoryBuffer`, instead of a
            store. The prompt then contains the messages that the memory returns for the question, and `history_tokens`
            has no effect; searches still use the last `turns` exchanges.

    Raises:
        ConfigurationError: The mode is unknown, or a number is negative.

    Example:
        >>> chat = project.as_chat_engine()  # doctest: +SKIP
        >>> print(chat.chat("How long does food keep?"))  # doctest: +SKIP
        Three days [Source 1].
        >>> print(chat.chat("And water?"))  # doctest: +SKIP
        Two weeks [Source 1].
    """

    def __init__(
        self,
        engine: GroundedQueryEngine,
        *,
        mode: ChatMode = "blend",
        turns: int = TURNS,
        history_tokens: int = HISTORY_TOKENS,
        chat_store: BaseChatStore | None = None,
        chat_store_key: str = CHAT_STORE_KEY,
        memory: BaseMemory | None = None,
    ) -> None:
        if mode not in _MODES:
            raise ConfigurationError(f"Chat mode {mode!r} is unknown: use {', '.join(_MODES)}.", setting="mode")
        if min(turns, history_tokens) < 0:
            raise ConfigurationError("turns and history_tokens must not be negative.", setting="turns")
        self.engine = engine
        self.mode = mode
        self.turns = turns
        self.history_tokens = history_tokens
        self._has_own_memory = memory is not None
        self.memory = memory or ChatMemoryBuffer.from_defaults(
            chat_store=chat_store,
            chat_store_key=chat_store_key,
            tokenizer_fn=str.split,  # this tokenizer is not used, but loading the default takes a second
        )
        self._condense_prompt: BasePromptTemplate = PromptTemplate(CONDENSE)

    def _get_prompts(self) -> dict[str, BasePromptTemplate]:
        return {"condense_prompt": self._condense_prompt}

    def _get_prompt_modules(self) -> dict[str, PromptMixin]:
        return {"query_engine": self.engine}

    def _update_prompts(self, prompts_dict: dict[str, BasePromptTemplate]) -> None:
        require_known(prompts_dict, self._get_prompts())
        if "condense_prompt" in prompts_dict:
            self._condense_prompt = require_template("condense_prompt", prompts_dict["condense_prompt"])

    @property
    def callback_manager(self) -> CallbackManager:
        """Callback manager of the query engine."""
        return self.engine.callback_manager

    # ---- History -----------------------------------------------------------------------------------------------------

    @property
    def chat_history(self) -> list[ChatMessage]:
        """All messages so far."""
        return list(self.memory.get_all())

    def reset(self) -> None:
        """Clear the conversation."""
        self.memory.reset()

    def save(self, path: str | Path) -> None:
        """Write the conversation to a JSON file atomically."""
        rows = [
            {"role": message.role.value, "content": storable_text(message.content or "")}
            for message in self.chat_history
        ]
        files.replace(Path(path), json.dumps(rows, ensure_ascii=False, indent=1).encode())

    def load(self, path: str | Path) -> None:
        """Replace the conversation with one written by `save`.

        Raises:
            InputError: The file does not contain a conversation.
        """
        try:
            rows = parse_json(Path(path).read_bytes())
            messages = [ChatMessage(role=row["role"], content=row["content"]) for row in rows]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is not a conversation written by `save`.", value=str(path)) from error
        self.memory.set(messages)

    def _recent(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the most recent exchanges, oldest first, starting with a question."""
        questions = [at for at, message in enumerate(messages) if message.role == MessageRole.USER]
        last = questions[len(questions) - min(self.turns, len(questions)) :]
        return list(messages[last[0] :]) if last else []

    def _within_budget(self, recent: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the most recent exchanges that fit into `history_tokens`.

        If even the last exchange does not fit, return only the end of each of its messages.
        """
        starts = [at for at, message in enumerate(recent) if message.role == MessageRole.USER]
        for start in starts:
            messages = list(recent[start:])
            if sum(count_tokens(message.content or "") for message in messages) <= self.history_tokens:
                return messages
        if not starts:
            return []
        last, quarter = recent[starts[-1] :], self.history_tokens // 4
        budgets = [(last[0], quarter), *((message, self.history_tokens - quarter) for message in last[1:][-1:])]
        texts = [(message.role, end_of(message.content or "", budget)) for message, budget in budgets]
        return [ChatMessage(role=role, content=text) for role, text in texts if texts[0][1] and text]

    async def _aprompt_history(self, message: str, recent: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the messages of the conversation that are included in the prompt."""
        if not self._has_own_memory:
            return self._within_budget(recent)
        messages = await self.memory.aget(input=message)
        return [turn for turn in messages if turn.role in _ROLES and (turn.content or "").strip()]

    # ---- Search ------------------------------------------------------------------------------------------------------

    async def _adraft(self, message: str, chat_history: list[ChatMessage] | None) -> Draft:
        await alimit_query(message)  # raises an error if the message is empty or not a string
        if chat_history is not None:
            await self.memory.aset(list(chat_history))
        recent = self._recent(await self.memory.aget_all())
        # With intents, the search plans determine which messages need a search.
        by_intent = isinstance(self.engine.retriever.retriever, IntentRetriever)
        if not by_intent and (intent := unsearched_intent(cut_query(message), recent)) is not None:
            response = empty_response(QueryBundle(message), intent)
            return await self.engine.aprepare(message, response, history=await self._aprompt_history(message, recent))
        history = () if self.mode == "simple" else tuple(recent)
        with calls_made() as calls:
            rewrite = await self._arewrite(message, recent)
        query = ConversationQuery(message, history=history, rewrite=rewrite)
        return await self.engine.adraft(query, history=await self._aprompt_history(message, recent), calls=calls)

    async def _arewrite(self, message: str, recent: Sequence[ChatMessage]) -> str | None:
        """Have the model rewrite a follow-up question as a standalone question.

        Return None if this is not necessary or if the model fails.
        """
        conversation = self._within_budget(recent)
        if self.mode != "condense" or not conversation:
            return None
        template = self._condense_prompt.get_template()
        history = enclosed(conversation_text(conversation), template)
        question = enclosed(cut_query(message), template)
        # If the model fails, "blend" is used, which needs no model; the response's `blend` shows this.
        return await self.engine.arewrite(self._condense_prompt.format_messages(history=history, question=question))

    # ---- Turns -------------------------------------------------------------------------------------------------------

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatResponse:
        """Answer a message. If the model writes no answer, the response says why, and the history is unchanged.

        Args:
            message: The question.
            chat_history: Messages that replace the conversation so far, or None.

        Raises:
            InputError: The message is empty.
            ModelError: The model cannot be reached or does not begin to answer in time; the history is unchanged.
        """
        with self.callback_manager.as_trace("chat"):
            draft = await self._adraft(message, chat_history)
            response = cast(GroundedResponse, await self.engine.aanswer(draft))
        if not response.is_missing:
            await self.memory.aput_messages(_exchange(message, response))
        return GroundedChatResponse(
            response=response.response or "",
            source_nodes=response.source_nodes,
            metadata=response.metadata,
            grounded=response,
        )

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatResponse:
        """Blocking version of `achat`."""
        return run_sync(lambda: self.achat(message, chat_history))

    async def astream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatStream:
        """Stream the answer to a message through `async_response_gen`, and then add the turn to the history."""
        with self.callback_manager.as_trace("chat"):
            draft = await self._adraft(message, chat_history)
            stream = GroundedChatStream(source_nodes=draft.hits, is_writing_to_memory=False)
            payload = {EventPayload.QUERY_STR.value: draft.question}
            with self.callback_manager.event(CBEventType.SYNTHESIZE, payload=payload) as event:
                event.on_end(payload={EventPayload.RESPONSE: stream})
        completion = Completion()

        async def pieces() -> AsyncGenerator[ChatResponse, None]:
            try:
                async with aclosing(self.engine.astream(draft, completion)) as parts:
                    async for part in parts:
                        yield ChatResponse(message=ChatMessage(part, role=MessageRole.ASSISTANT), delta=part)
            except (GeneratorExit, asyncio.CancelledError):
                # Record only text that was shown: with a judge, nothing is shown before the verdict.
                needs_judge = self.engine.judge is not None and completion.answer is None
                if draft.ready is not None or (completion.text and not needs_judge):
                    completion.problem = STOPPED
                    self._finish_stream(stream, message, draft, completion)
                raise
            await asyncio.to_thread(self._finish_stream, stream, message, draft, completion)

        stream.achat_stream = pieces()
        return stream

    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatStream:
        """Blocking version of `astream_chat`, which streams the answer through `response_gen`."""
        stream = run_sync(lambda: self.astream_chat(message, chat_history))
        pieces, stream.achat_stream = cast("AsyncGenerator[ChatResponse, None]", stream.achat_stream), None
        stream.chat_stream = blocking(pieces)
        return stream

    def _finish_stream(self, stream: GroundedChatStream, message: str, draft: Draft, completion: Completion) -> None:
        stream.grounded = self.engine.finish(draft, completion)
        stream.metadata = stream.grounded.metadata or {}
        if not stream.grounded.is_missing:
            self.memory.put_messages(_exchange(message, stream.grounded))


def end_of(text: str, max_tokens: int) -> str:
    """Limit text to a number of tokens, replacing its beginning with "… " if necessary.

    Example:
        >>> end_of("The pump runs dry. Call the operator at once.", 7)
        '… Call the operator at once.'
    """
    if count_tokens(text) <= max_tokens:
        return text
    tail = text[-max_tokens * _LONGEST_TOKEN :]  # long enough, because no token is longer
    tokens = TokenMap.from_text(tail)
    for count in range(max_tokens - 1, 0, -1):  # the end alone may have more tokens than within the text
        end = _ELLIPSIS + tail[tokens.offset(max(0, len(tokens) - count)) :].strip()
        if end != _ELLIPSIS and count_tokens(end) <= max_tokens:
            return end
    return ""


def _exchange(question: str, response: GroundedResponse) -> list[ChatMessage]:
    texts = ((MessageRole.USER, cut_text(question)), (MessageRole.ASSISTANT, response.response))
    return [ChatMessage(role=role, content=content) for role, content in texts]
