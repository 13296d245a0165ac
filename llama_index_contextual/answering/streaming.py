"""What of a model's words is the answer, and when it can be shown."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.llms import LLM

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe
from llama_index_contextual._utils.clients import PerLoop
from llama_index_contextual._utils.redaction import KeyFilter
from llama_index_contextual.answering.guards import Guards, is_closed
from llama_index_contextual.answering.prompts import ANSWER_MARK
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.models import answer_identity, model_name
from llama_index_contextual.storage.storable import storable_text

_MARK = re.compile(rf"^[ \t#>*_]*{ANSWER_MARK}[*_]*\s*", re.MULTILINE)
# What is indented may belong to the list before the blank line.
_BLANK = re.compile(r"\n[ \t]*\n+(?=\S)")


def split_reasoning(text: str, style: str) -> tuple[str | None, str]:
    """Return the reasoning, if the style asks for one, and the answer, which begins on a line of its own.

    Example:
        >>> split_reasoning("Source 1 tells so.\\nAnswer: Yes.", "chain_of_thought")
        ('Source 1 tells so.', 'Yes.')
    """
    mark = _MARK.search(text) if style == "chain_of_thought" else None
    if mark is None:
        return None, text.strip()
    return text[: mark.start()].strip(), text[mark.end() :].strip()


class StreamFilter:
    """Lets the answer through as it streams: no reasoning, and with guards only whole blocks, cleaned.

    A link may stand on two lines, but not in two paragraphs; code may have blank lines, and is shown when it ends.

    Args:
        style: Of the answer.
        guards: What every block passes; None lets everything through at once.
    """

    def __init__(self, style: str, guards: Guards | None = None) -> None:
        self._reasoning: str | None = "" if style == "chain_of_thought" else None
        self._guards = guards
        self._open = ""
        self._seen = 0
        self._shown = ""

    def feed(self, piece: str) -> str:
        """Return what can be shown now; it may be empty."""
        if self._reasoning is not None:
            self._reasoning += piece
            mark = _MARK.search(self._reasoning)
            piece = "" if mark is None else self._reasoning[mark.end() :]
            if not piece:
                return ""
            self._reasoning = None
        if self._guards is None:
            return piece
        self._open += piece
        shown = ""
        while (blank := _BLANK.search(self._open, self._seen)) is not None:
            shown += self._block(self._guards, blank)
        return shown

    def _block(self, guards: Guards, blank: re.Match[str]) -> str:
        """Return what stands before a blank line with that line, or nothing where one goes on in the other.

        A block that begins without white space behind one that is closed means what it means alone.
        """
        block = guards.clean(self._open[: blank.start()]) + blank[0]
        if guards.sanitise and not (is_closed(block) and block.lstrip() == block):
            self._seen = blank.end()
            return ""
        self._open, self._seen = self._open[blank.end() :], 0
        self._shown += block
        return block

    def rest(self) -> str:
        """Return what was held back: a last block, or words that never came to an answer."""
        held = (self._reasoning or "") + self._open
        return self._guards.clean(held, behind=self._shown) if self._guards else held


_RETRY = RetryPolicy(attempts=3)

STOPPED = "Whoever read the answer stopped before its end."


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """How long to wait for a model, in seconds.

    Attributes:
        first_token: Until the answer begins, attempts after an error included.
        between_tokens: From one piece of the answer to the next.
        whole: Until an answer that is not read as it comes is whole; what has come by then is a partial answer.

    Raises:
        ConfigurationError: One is not above 0.
    """

    first_token: float = 30.0
    between_tokens: float = 10.0
    whole: float = 60.0

    def __post_init__(self) -> None:
        if not min(self.first_token, self.between_tokens, self.whole) > 0:
            raise ConfigurationError("Timeouts: all must be above 0 seconds.", setting="timeouts")


@dataclass
class Spoken:
    """What a model said.

    Attributes:
        text: As far as it came.
        problem: Why it is not whole, in a sentence; None when it is, and not before its end has come.
        answer: The answer that was made of it, once one was made.
    """

    text: str = ""
    problem: str | None = STOPPED
    answer: Any = None


class AnswerStream:
    """A model that is asked for one answer after the other.

    Args:
        llm: The model.
        timeouts: How long to wait.
    """

    def __init__(self, llm: LLM, timeouts: Timeouts | None = None) -> None:
        self.name = model_name(llm)
        self.identity = answer_identity(llm)
        self.timeouts = timeouts or Timeouts()
        self._llm: PerLoop[LLM] = PerLoop(lambda: llm)

    async def astream(self, messages: Sequence[ChatMessage], spoken: Spoken) -> AsyncGenerator[str, None]:
        """Yield the pieces of an answer, and note in `spoken` what came; once begun, it ends without an error.

        Whoever stops reading, or is cancelled, leaves an answer that is not whole.

        Raises:
            ModelError: The answer did not begin.
        """
        pieces, piece = await self._begin(messages)
        problem: str | None = None
        keys = KeyFilter()
        try:
            while piece is not None:
                if part := keys.feed(storable_text(piece.delta or "")):
                    spoken.text += part
                    yield part
                if _finish_reason(piece) == "length":
                    problem = "The answer has reached the model's limit of tokens."
                # Not `wait_for`, which forgets (Python 3.11) that it was cancelled when a piece comes that instant.
                async with asyncio.timeout(self.timeouts.between_tokens):
                    piece = await anext(pieces, None)
            if rest := keys.rest():
                spoken.text += rest
                yield rest
            if not spoken.text.strip():
                problem = problem or "The model gave an empty answer."
            spoken.problem = problem
        except TimeoutError:
            spoken.problem = f"The model said nothing more for {self.timeouts.between_tokens:g} seconds."
        except Exception as error:  # noqa: BLE001 - any LLM class may raise anything
            # The part that came was paid for and read: it is the answer, marked as what it is.
            spoken.problem = f"The answer broke off. {self._sentence(error)}"
        finally:
            await _close(pieces)
        if rest := keys.rest():  # of an answer that broke off
            spoken.text += rest
            yield rest

    async def _begin(self, messages: Sequence[ChatMessage]) -> tuple[AsyncIterator[ChatResponse], ChatResponse | None]:
        model = await self._llm.running()

        async def first() -> tuple[AsyncIterator[ChatResponse], ChatResponse | None]:
            pieces = aiter(await model.astream_chat(list(messages)))
            piece = await anext(pieces, None)
            while piece is not None and not piece.delta and _finish_reason(piece) is None:
                piece = await anext(pieces, None)
            return pieces, piece

        try:
            async with asyncio.timeout(self.timeouts.first_token):
                return await acall(first, _RETRY)
        except TimeoutError:
            seconds = f"{self.timeouts.first_token:g}"
        except Exception as error:  # as above; nothing has come that could be kept
            raise ModelError(self._sentence(error), setting="llm") from error
        message = f"{self.name!r} did not begin to answer within {seconds} seconds: try again, or allow it more."
        raise ModelError(message, setting="llm")  # not from the timeout, whose context are errors of the client

    def _sentence(self, error: Exception) -> str:
        return describe(error, setting="llm", model=self.name)

    async def aspeak(self, messages: Sequence[ChatMessage]) -> Spoken:
        """Return an answer when it is whole, or as far as it came.

        Raises:
            ModelError: The answer did not begin.
        """
        spoken, seconds = Spoken(), f"{self.timeouts.whole:g}"
        try:
            async with asyncio.timeout(self.timeouts.whole):
                async for _ in self.astream(messages, spoken):
                    pass
        except TimeoutError as error:
            if not spoken.text:
                message = f"{self.name!r} gave no answer within {seconds} seconds: try again, or allow it more."
                raise ModelError(message, setting="llm") from error
            spoken.problem = f"The answer was not whole after {seconds} seconds."
        return spoken

    def stream(self, messages: Sequence[ChatMessage], spoken: Spoken) -> Generator[str, None, None]:
        """Do as `astream` does, for callers without an event loop, or inside one."""
        pieces: SimpleQueue[str | None] = SimpleQueue()
        running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()
        failed: list[BaseException] = []

        async def pump() -> None:
            running.set_result((asyncio.get_running_loop(), asyncio.current_task()))
            async for piece in self.astream(messages, spoken):
                pieces.put(piece)

        async def ended() -> list[BaseException]:
            (error,) = await asyncio.gather(pump(), return_exceptions=True)
            return [] if error is None else [error]

        def run() -> None:
            try:
                failed.extend(asyncio.run(ended()))
            finally:
                pieces.put(None)

        thread = threading.Thread(target=run, name="answer", daemon=True)
        thread.start()
        try:
            while (piece := pieces.get()) is not None:
                yield piece
        finally:
            if thread.is_alive():  # whoever reads has stopped: so does the model
                loop, task = running.result()
                with contextlib.suppress(RuntimeError):  # the loop has come to its end meanwhile
                    if task is not None:
                        loop.call_soon_threadsafe(task.cancel)
            thread.join()
        for error in failed:
            raise error


def _finish_reason(piece: ChatResponse) -> str | None:
    choices = getattr(piece.raw, "choices", None)
    return getattr(choices[0], "finish_reason", None) if choices else None


async def _close(pieces: AsyncIterator[ChatResponse]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
