"""The chat engine: the conversation and its history; the query engine below it has no state."""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import AgentChatResponse, BaseChatEngine, StreamingAgentChatResponse
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.storage.chat_store.base import BaseChatStore

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual.answering.prompts import condense_messages
from llama_index_contextual.answering.query_engine import Draft, GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.answering.streaming import STOPPED, Completion
from llama_index_contextual.errors import ConfigurationError, InputError, ModelError
from llama_index_contextual.node_parser.tokens import count_tokens
from llama_index_contextual.retrievers.conversational import ConversationQuery
from llama_index_contextual.retrievers.queries import shortened
from llama_index_contextual.storage import files
from llama_index_contextual.storage.storable import storable_text

ChatMode = Literal["blend", "condense", "simple"]

_MODES = ("blend", "condense", "simple")
_ELLIPSIS = "… "
_LONGEST_TOKEN = 128  # characters of the longest token of o200k_base, which consists of spaces
_SENTENCE_CUT = re.compile(r"[.!?][\"'”’)\]*_]*\s+|[。！？]|\n")
_WORD_CUT = re.compile(r"\s+")


@dataclass
class GroundedChatResponse(AgentChatResponse):
    """The answer of a turn; `grounded` is the full response of the query engine."""

    grounded: GroundedResponse | None = None


@dataclass
class GroundedChatStream(StreamingAgentChatResponse):
    """The streamed answer of a turn; `grounded` and `metadata` are set at its end."""

    grounded: GroundedResponse | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class GroundedChatEngine(BaseChatEngine):
    """Chat engine over passages: the search and the prompt include the last exchanges, as far as they fit.

    Args:
        engine: The query engine; its retriever should accept `ConversationQuery` objects.
        mode: "blend" searches for the question together with the conversation, without another call; "condense" asks
            the model for a standalone question first; "simple" searches for the question as it is.
        turns: Number of exchanges to consider.
        history_tokens: Maximum number of tokens of the exchanges in the prompt; the oldest are dropped first, and of an
            exchange that is longer, the beginning.
        chat_store: The store of the history.
        chat_store_key: Key of this conversation in the store.

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
        turns: int = 3,
        history_tokens: int = 1000,
        chat_store: BaseChatStore | None = None,
        chat_store_key: str = "chat_history",
    ) -> None:
        if mode not in _MODES:
            raise ConfigurationError(f"Chat mode {mode!r} is unknown: use {', '.join(_MODES)}.", setting="mode")
        if min(turns, history_tokens) < 0:
            raise ConfigurationError("turns and history_tokens must not be negative.", setting="turns")
        self.engine = engine
        self.mode = mode
        self.turns = turns
        self.history_tokens = history_tokens
        self._store = chat_store or SimpleChatStore()
        self._key = chat_store_key

    @property
    def callback_manager(self) -> CallbackManager:
        """Callback manager of the query engine."""
        return self.engine.callback_manager

    # ---- History -----------------------------------------------------------------------------------------------------

    @property
    def chat_history(self) -> list[ChatMessage]:
        """All messages so far."""
        return list(self._store.get_messages(self._key))

    def reset(self) -> None:
        """Clear the conversation."""
        self._store.set_messages(self._key, [])

    def save(self, path: str | Path) -> None:
        """Write the conversation to a JSON file, atomically."""
        rows = [
            {"role": message.role.value, "content": storable_text(message.content or "")}
            for message in self.chat_history
        ]
        files.replace(Path(path), json.dumps(rows, ensure_ascii=False, indent=1).encode())

    def load(self, path: str | Path) -> None:
        """Continue a conversation that was written by `save`.

        Raises:
            InputError: The file does not exist or does not contain a conversation.
        """
        content = _read(path)
        try:
            messages = [ChatMessage(role=row["role"], content=row["content"]) for row in json.loads(content)]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is not a conversation written by `save`.", value=str(path)) from error
        self._store.set_messages(self._key, messages)

    def _recent(self) -> list[ChatMessage]:
        """Return the last exchanges, oldest first, beginning with a question."""
        questions = [at for at, message in enumerate(self.chat_history) if message.role == MessageRole.USER]
        last = questions[len(questions) - min(self.turns, len(questions)) :]
        return self.chat_history[last[0] :] if last else []

    def _within_budget(self, recent: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the last exchanges that fit `history_tokens`; if not even the last one fits, its newest part."""
        starts = [at for at, message in enumerate(recent) if message.role == MessageRole.USER]
        for start in starts:
            messages = list(recent[start:])
            if sum(count_tokens(message.content or "") for message in messages) <= self.history_tokens:
                return messages
        return _newest_part(recent[starts[-1] :], self.history_tokens) if starts else []

    def _remember(self, question: str, response: GroundedResponse) -> None:
        for role, content in ((MessageRole.USER, shortened(question)), (MessageRole.ASSISTANT, response.response)):
            self._store.add_message(self._key, ChatMessage(role=role, content=content))

    def _begin(self, message: str, chat_history: list[ChatMessage] | None) -> list[ChatMessage]:
        if not isinstance(message, str):
            raise InputError(f"The message is of type {type(message).__name__}: pass a string.", value=message)
        if not message.strip():
            raise InputError("The message is empty: ask a question.", value=message)
        if chat_history is not None:
            self._store.set_messages(self._key, list(chat_history))
        return self._recent()

    # ---- Search ------------------------------------------------------------------------------------------------------

    async def _adraft(self, message: str, recent: Sequence[ChatMessage]) -> Draft:
        history = () if self.mode == "simple" else tuple(recent)
        query = ConversationQuery(message, history=history, rewrite=await self._arewrite(message, recent))
        return await self.engine.adraft(query, history=self._within_budget(recent))

    async def _arewrite(self, message: str, recent: Sequence[ChatMessage]) -> str | None:
        """Return the standalone question; None if it is not needed or the model failed."""
        conversation = self._within_budget(recent)
        if self.mode != "condense" or not conversation:
            return None
        try:
            completion = await self.engine.answer_stream.acomplete(condense_messages(shortened(message), conversation))
        except ModelError:
            return None  # fall back to "blend", which needs no model; the response's `blend` shows it
        rewritten = completion.text.strip().strip('"“”')
        return rewritten if rewritten and completion.problem is None else None

    # ---- Turns -------------------------------------------------------------------------------------------------------

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatResponse:
        """Answer a message.

        Args:
            message: The question.
            chat_history: Replaces the conversation so far.

        Raises:
            InputError: The message is empty.
            ModelError: The model cannot be reached, or does not begin to answer in time; the history is unchanged.
        """
        return run_sync(lambda: self.achat(message, chat_history))

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatResponse:
        """Answer a message like `chat`, without blocking the event loop."""
        draft = await self._adraft(message, self._begin(message, chat_history))
        response = cast(GroundedResponse, await self.engine.aanswer(draft))
        self._remember(message, response)
        return GroundedChatResponse(
            response=response.response or "",
            source_nodes=response.source_nodes,
            metadata=response.metadata,
            grounded=response,
        )

    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatStream:
        """Stream the answer to a message: read `response_gen`; at its end the turn is added to the history."""
        recent = self._begin(message, chat_history)
        draft = run_sync(lambda: self._adraft(message, recent))
        stream = GroundedChatStream(source_nodes=draft.hits, is_writing_to_memory=False)
        completion = Completion()

        def pieces() -> Generator[ChatResponse, None, None]:
            try:
                for piece in self.engine.stream(draft, completion):
                    yield _as_response(piece)
            except GeneratorExit:
                self._stop(stream, message, draft, completion)
                raise
            self._end(stream, message, draft, completion)

        stream.chat_stream = pieces()
        return stream

    async def astream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatStream:
        """Stream the answer to a message like `stream_chat`: read `async_response_gen`."""
        draft = await self._adraft(message, self._begin(message, chat_history))
        stream = GroundedChatStream(source_nodes=draft.hits, is_writing_to_memory=False)
        completion = Completion()

        async def pieces() -> AsyncGenerator[ChatResponse, None]:
            try:
                async for piece in self.engine.astream(draft, completion):
                    yield _as_response(piece)
            except (GeneratorExit, asyncio.CancelledError):
                self._stop(stream, message, draft, completion)
                raise
            await asyncio.to_thread(self._end, stream, message, draft, completion)

        stream.achat_stream = pieces()
        return stream

    def _stop(self, stream: GroundedChatStream, message: str, draft: Draft, completion: Completion) -> None:
        """Record a partial answer if any of it was shown; with a judge, nothing is shown before the verdict."""
        judging = self.engine.judge is not None and completion.answer is None
        if draft.ready is not None or (completion.text and not judging):
            completion.problem = STOPPED
            self._end(stream, message, draft, completion)

    def _end(self, stream: GroundedChatStream, message: str, draft: Draft, completion: Completion) -> None:
        stream.grounded = self.engine.finish(draft, completion)
        stream.metadata = stream.grounded.metadata or {}
        self._remember(message, stream.grounded)


def _newest_part(exchange: Sequence[ChatMessage], budget: int) -> list[ChatMessage]:
    """Return a question and its answers cut to a budget, each at its beginning.

    The question takes up to a quarter of the budget, or more if the answers need less; of the answers, the last ones
    come first.
    """
    question, *answers = exchange
    size = count_tokens(question.content or "")
    needed = sum(count_tokens(message.content or "") for message in answers)
    room = budget - min(size, max(budget // 4, budget - needed))
    kept: list[ChatMessage] = []
    for message in reversed(answers):
        text = end_of(message.content or "", room)
        if not text:
            break
        room -= count_tokens(text)
        kept.append(ChatMessage(role=message.role, content=text))
    used = sum(count_tokens(message.content or "") for message in kept)
    text = end_of(question.content or "", budget - used)
    return [ChatMessage(role=question.role, content=text), *reversed(kept)] if text else []


def end_of(text: str, max_tokens: int) -> str:
    """Return the end of a text that fits a number of tokens, from the beginning of a sentence or a word, after "… ".

    Example:
        >>> end_of("The pump runs dry. Call the operator at once.", 8)
        '… Call the operator at once.'
    """
    if count_tokens(text) <= max_tokens:
        return text
    room = max_tokens - count_tokens(_ELLIPSIS)
    if room < 1:
        return ""
    tail = text[-room * _LONGEST_TOKEN :]  # tokens are shorter, so the end that fits is in here
    cuts = [match.end() for match in _SENTENCE_CUT.finditer(tail)]
    words = [match.end() for match in _WORD_CUT.finditer(tail)]
    for starts, least in ((cuts, room // 2), (words, 1), (range(len(tail)), 1)):
        # The number of tokens falls with the start, nearly always; the check of the whole makes sure.
        first = bisect_left(starts, True, key=lambda start: count_tokens(tail[start:]) <= room)
        for start in starts[first : first + 3]:
            end = tail[start:].strip()
            if count_tokens(end) >= least and count_tokens(_ELLIPSIS + end) <= max_tokens:
                return _ELLIPSIS + end
    return ""


def _as_response(piece: str) -> ChatResponse:
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=piece), delta=piece)


def _read(path: str | Path) -> bytes:
    try:
        return files.read(Path(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.", value=str(path)) from error
