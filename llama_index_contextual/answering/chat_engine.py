"""A conversation with the documents: it keeps the history, everything below it is stateless."""

from __future__ import annotations

import asyncio
import json
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
from llama_index_contextual.answering.streaming import STOPPED, Spoken
from llama_index_contextual.errors import ConfigurationError, InputError, ModelError
from llama_index_contextual.node_parser.tokens import count_tokens
from llama_index_contextual.retrievers.conversational import ConversationQuery
from llama_index_contextual.retrievers.queries import shortened
from llama_index_contextual.storage import files
from llama_index_contextual.storage.storable import storable_text

ChatMode = Literal["blend", "condense", "simple"]

_MODES = ("blend", "condense", "simple")


@dataclass
class GroundedChatResponse(AgentChatResponse):
    """A turn's answer, with what it rests on."""

    grounded: GroundedResponse | None = None


@dataclass
class GroundedChatStream(StreamingAgentChatResponse):
    """A turn's answer as it comes; `grounded` and `metadata` are there when it has ended."""

    grounded: GroundedResponse | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class GroundedChatEngine(BaseChatEngine):
    """Chats over passages: the last exchanges go into the search and, as far as they fit, into the prompt.

    Args:
        engine: Searches and answers; its retriever should take `ConversationQuery`s.
        mode: "blend" searches the question together with the conversation, without a further call; "condense" lets the
            model make the question stand alone first; "simple" searches the question as it was asked.
        turns: Exchanges that count.
        history_tokens: Tokens of the exchanges in the prompt, at most; the oldest are left out first.
        chat_store: Where the history is kept.
        chat_store_key: Name of this conversation there.

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
        """Where the events of the engine go."""
        return self.engine.callback_manager

    # ---- the history -------------------------------------------------------------------------------------------------

    @property
    def chat_history(self) -> list[ChatMessage]:
        """All messages so far."""
        return list(self._store.get_messages(self._key))

    def reset(self) -> None:
        """Forget the conversation."""
        self._store.set_messages(self._key, [])

    def save(self, path: str | Path) -> None:
        """Write the conversation as JSON; the file is there whole or not at all."""
        rows = [
            {"role": message.role.value, "content": storable_text(message.content or "")}
            for message in self.chat_history
        ]
        files.replace(Path(path), json.dumps(rows, ensure_ascii=False, indent=1).encode())

    def load(self, path: str | Path) -> None:
        """Go on with a conversation that `save` wrote.

        Raises:
            InputError: The file is not there or holds no conversation.
        """
        content = _read(path)
        try:
            messages = [ChatMessage(role=row["role"], content=row["content"]) for row in json.loads(content)]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} holds no conversation: it is not what `save` writes.", value=str(path)) from error
        self._store.set_messages(self._key, messages)

    def _recent(self) -> list[ChatMessage]:
        """Return the last exchanges, oldest first, the first one a question."""
        questions = [at for at, message in enumerate(self.chat_history) if message.role == MessageRole.USER]
        counted = questions[len(questions) - min(self.turns, len(questions)) :]
        return self.chat_history[counted[0] :] if counted else []

    def _prompted(self, recent: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the last of those exchanges that fit the budget."""
        starts = [at for at, message in enumerate(recent) if message.role == MessageRole.USER]
        for start in starts:
            kept = list(recent[start:])
            if sum(count_tokens(message.content or "") for message in kept) <= self.history_tokens:
                return kept
        return []

    def _remember(self, question: str, response: GroundedResponse) -> None:
        for role, content in ((MessageRole.USER, shortened(question)), (MessageRole.ASSISTANT, response.response)):
            self._store.add_message(self._key, ChatMessage(role=role, content=content))

    def _begin(self, message: str, chat_history: list[ChatMessage] | None) -> list[ChatMessage]:
        if not isinstance(message, str):
            raise InputError(f"The message is of type {type(message).__name__}: give a text.", value=message)
        if not message.strip():
            raise InputError("The message is empty: ask something.", value=message)
        if chat_history is not None:
            self._store.set_messages(self._key, list(chat_history))
        return self._recent()

    # ---- the search --------------------------------------------------------------------------------------------------

    async def _adraft(self, message: str, recent: Sequence[ChatMessage]) -> Draft:
        history = () if self.mode == "simple" else tuple(recent)
        query = ConversationQuery(message, history=history, rewrite=await self._arewrite(message, recent))
        return await self.engine.adraft(query, history=self._prompted(recent))

    async def _arewrite(self, message: str, recent: Sequence[ChatMessage]) -> str | None:
        """Return the question made stand-alone; None where nothing is to be done or the model could not."""
        if self.mode != "condense" or not recent:
            return None
        try:
            spoken = await self.engine.speaker.aspeak(condense_messages(shortened(message), recent))
        except ModelError:
            return None  # the blend needs no model: see the response's `blend`
        rewritten = spoken.text.strip().strip('"“”')
        return rewritten if rewritten and spoken.problem is None else None

    # ---- turns -------------------------------------------------------------------------------------------------------

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatResponse:
        """Answer a message.

        Args:
            message: The question.
            chat_history: Replaces the conversation so far.

        Raises:
            InputError: The message is empty.
            ModelError: The model cannot be reached, or does not begin in time; the history stays as it was.
        """
        return run_sync(lambda: self.achat(message, chat_history))

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatResponse:
        """Do as `chat` does, without blocking the event loop."""
        draft = await self._adraft(message, self._begin(message, chat_history))
        response = cast(GroundedResponse, await self.engine.aanswer(draft))
        self._remember(message, response)
        return GroundedChatResponse(
            response=str(response), source_nodes=response.source_nodes, metadata=response.metadata, grounded=response
        )

    def stream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatStream:
        """Answer a message as it comes: read `response_gen`; it is in the history when it has been read."""
        recent = self._begin(message, chat_history)
        draft = run_sync(lambda: self._adraft(message, recent))
        made = GroundedChatStream(source_nodes=draft.hits, is_writing_to_memory=False)
        spoken = Spoken()

        def noted() -> Generator[ChatResponse, None, None]:
            try:
                for piece in self.engine.shown(draft, spoken):
                    yield _as_response(piece)
            except GeneratorExit:
                self._stopped(made, message, draft, spoken)
                raise
            self._ended(made, message, draft, spoken)

        made.chat_stream = noted()
        return made

    async def astream_chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> GroundedChatStream:
        """Answer a message as it comes: read `async_response_gen`."""
        draft = await self._adraft(message, self._begin(message, chat_history))
        made = GroundedChatStream(source_nodes=draft.hits, is_writing_to_memory=False)
        spoken = Spoken()

        async def noted() -> AsyncGenerator[ChatResponse, None]:
            try:
                async for piece in self.engine.ashown(draft, spoken):
                    yield _as_response(piece)
            except (GeneratorExit, asyncio.CancelledError):
                self._stopped(made, message, draft, spoken)
                raise
            await asyncio.to_thread(self._ended, made, message, draft, spoken)

        made.achat_stream = noted()
        return made

    def _stopped(self, made: GroundedChatStream, message: str, draft: Draft, spoken: Spoken) -> None:
        """Remember what was read of an answer; before a judge has spoken, nothing was."""
        unread = draft.ready is None and (not spoken.text or (self.engine.judge is not None and spoken.answer is None))
        if not unread:
            spoken.problem = STOPPED
            self._ended(made, message, draft, spoken)

    def _ended(self, made: GroundedChatStream, message: str, draft: Draft, spoken: Spoken) -> None:
        made.grounded = self.engine.finished(draft, spoken)
        made.metadata = made.grounded.metadata or {}
        self._remember(message, made.grounded)


def _as_response(piece: str) -> ChatResponse:
    return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=piece), delta=piece)


def _read(path: str | Path) -> bytes:
    try:
        return files.read(Path(path))
    except FileNotFoundError as error:
        raise InputError(f"{path} is not there.", value=str(path)) from error
