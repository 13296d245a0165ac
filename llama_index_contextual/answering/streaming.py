"""Stream answers from a model, with timeouts, partial answers, and a filter for the text to show.

`AnswerStream` calls the model and streams its text. After an error or a timeout, the text received so far is a partial
answer.
`StreamFilter` determines which part of the text can be shown so far: it removes reasoning and citations of sources that
do not exist and, with guards, holds back incomplete blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from llama_index.core.llms import LLM, ChatMessage, ChatResponse, CustomLLM

from llama_index_contextual._utils.calls import (
    ReplyError,
    RetryPolicy,
    acall,
    describe,
    is_connection_error,
    is_json_error,
    is_timeout,
    is_too_long,
    keep_runner,
    redacted_error,
    take_runner,
)
from llama_index_contextual._utils.clients import LOCAL_TIMEOUT, address_of, shared_clients
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.reasoning import OPENING_CHARACTERS, ReasoningFilter, without_reasoning
from llama_index_contextual._utils.redaction import KeyFilter, scrub
from llama_index_contextual.answering.citations import CitationFilter, Passage
from llama_index_contextual.answering.guards import Guards, is_closed
from llama_index_contextual.answering.prompts import ANSWER_MARK
from llama_index_contextual.answering.response import AnswerUsage, GroundedResponse, record_call
from llama_index_contextual.errors import ConfigurationError, ModelError, Remedy
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.models import is_self_hosted, model_name, provider_of, speaks_openai
from llama_index_contextual.money.tokens import Usage, field_of

T = TypeVar("T")

STOPPED = "Reading stopped before the end of the answer."

_RETRY = RetryPolicy(attempts=3)
_MARK = re.compile(rf"^[ \t#>*_]*{ANSWER_MARK}[*_]*\s*", re.MULTILINE)
_LONGEST_MARK = 200  # characters of a line that can begin with the mark
# Text at the start of a block that later characters cannot turn into a link, a tag or code. This includes citations
# unless they look like a link.
_PLAIN = re.compile(
    r"(?:[^<\[\]!`~\\\x00-\x08\x0b-\x1f\x7f-\x9f\ue000-\uf8ff]|!(?=[^\[])"
    r"|\[(?:(?:sources? )?\d+(?:, ?\d+)*|\^\d+)\](?=[^(:\[]))*",
    re.IGNORECASE,
)
# Indented text after a blank line may belong to the list before it.
_BLANK = re.compile(r"(?:(?<!\n)\n\n++|\n[ \t]++\n++)(?=\S)")


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts for calls to a model, in seconds.

    An answer that is not streamed is received in pieces too, so the first two timeouts also apply to it.

    Attributes:
        first_token: Time until the answer starts, including retries after an error.
        between_tokens: Time between two pieces of the answer.
        whole: Time until the end of an answer that is not streamed; text received by then is a partial answer.

    Raises:
        ConfigurationError: A timeout is not greater than 0.
    """

    first_token: float = 30.0
    between_tokens: float = 10.0
    whole: float = 60.0

    def __post_init__(self) -> None:
        if not min(self.first_token, self.between_tokens, self.whole) > 0:
            raise ConfigurationError("Timeouts: all must be above 0 seconds.", setting="timeouts")

    @classmethod
    def for_model(cls, llm: LLM, **seconds: float | None) -> Timeouts:
        """Return the timeouts for a model; a value of None selects the default, which is longer for local models.

        Example:
            >>> from llama_index.llms.openai import OpenAI
            >>> Timeouts.for_model(OpenAI(api_key="any", api_base="http://localhost:8000/v1"), whole=90)
            Timeouts(first_token=300.0, between_tokens=60.0, whole=90)
        """
        usual = LOCAL_TIMEOUTS if is_self_hosted(llm) or lock_of(llm) is not None else cls()
        return replace(usual, **{name: value for name, value in seconds.items() if value is not None})


LOCAL_TIMEOUTS = Timeouts(first_token=300.0, between_tokens=60.0, whole=LOCAL_TIMEOUT)
"""Default timeouts for a model on a local server or in this process, which may run without a GPU."""


@dataclass
class Completion:
    """The text that a model has generated so far.

    Attributes:
        text: The text so far, without reasoning.
        problem: Sentence that explains why the text is not complete, or None if it is complete; `STOPPED` while text
            may still follow.
        calls: Token usage of the call, or None before its end.
        usage: Tokens and price of all calls for the answer, once they have been recorded.
        answer: The answer created from the text, or None before the end.
    """

    text: str = ""
    problem: str | None = STOPPED
    calls: AnswerUsage | None = None
    usage: AnswerUsage | None = None
    answer: GroundedResponse | None = None


class AnswerStream:
    """Obtain complete or streamed answers from a model, with retries and timeouts.

    Args:
        llm: The model.
        timeouts: Timeouts for the calls; None selects `Timeouts.for_model`.
    """

    def __init__(self, llm: LLM, timeouts: Timeouts | None = None) -> None:
        self.name = model_name(llm)
        self.timeouts = timeouts or Timeouts.for_model(llm)
        self._llm = llm  # its clients are kept as long as it exists
        self._clients = shared_clients(llm)
        self._address = address_of(llm)
        self._lock = lock_of(llm)
        provider = provider_of(self.name)
        self._accepts_schema = provider is not None and provider.is_openai
        self._options = {"stream_options": {"include_usage": True}} if speaks_openai(llm) else {}
        self._opening = 0 if _returns_reasoning_apart(llm) else OPENING_CHARACTERS

    async def acomplete(
        self, messages: Sequence[ChatMessage], *, response_format: Mapping[str, Any] | None = None
    ) -> Completion:
        """Return the complete answer, or the part received before an error or timeout.

        Args:
            messages: The prompt.
            response_format: JSON schema of the answer in OpenAI's format, sent only to models that accept a schema.

        Raises:
            ModelError: The model did not begin to answer.
        """
        completion, seconds = Completion(), f"{self.timeouts.whole:g}"
        try:
            async with (
                asyncio.timeout(self.timeouts.whole),
                aclosing(self.astream(messages, completion, response_format=response_format)) as pieces,
            ):
                async for _ in pieces:
                    pass
        except TimeoutError as error:
            if not completion.text:
                raise _late(f"{self.name!r} did not answer within {seconds} seconds", "call_timeout") from error
            completion.problem = f"The answer was not complete after {seconds} seconds (`call_timeout`)."
        return completion

    async def astream(
        self,
        messages: Sequence[ChatMessage],
        completion: Completion,
        *,
        response_format: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yield the pieces of an answer and record them in `completion`. After the first piece, no error is raised.

        If the consumer stops or is cancelled, the answer is partial.

        Raises:
            ModelError: The model did not begin to answer.
        """
        reply = _Reply(self._opening)
        parts: list[str] = []
        options: dict[str, Any] = dict(self._options)
        if response_format is not None and self._accepts_schema:
            options["response_format"] = response_format
        call_options = {name: value for name, value in options.items() if name not in self._clients.refused}
        pieces, piece = await self._begin(messages, reply, call_options)
        try:
            while piece is not None:
                for part in reply.feed(piece):
                    parts.append(part)
                    yield part
                # Do not use `wait_for`: in Python 3.11, it loses a cancellation that coincides with a piece.
                async with asyncio.timeout(self.timeouts.between_tokens):
                    piece = await anext(pieces, None)
            problem = self._problem_of(reply)
        except TimeoutError:
            seconds = f"{self.timeouts.between_tokens:g} seconds"
            problem = f"The model sent nothing for {seconds} (`between_tokens_timeout`)."
        except Exception as error:  # noqa: BLE001 - an LLM class may raise any exception
            # The text so far has been paid for and may have been shown, so keep it and mark it as partial.
            failure = ReplyError("no_end") if is_json_error(error) else redacted_error(error)
            problem = f"The answer broke off. {answer_error(failure, self.name, self._address)}"
        except (asyncio.CancelledError, GeneratorExit):
            parts += reply.flush(is_cut=True)  # no more pieces can be yielded
            raise
        finally:
            completion.text = "".join(parts)
            completion.calls = record_call(self.name, messages, reply.usage, reply.written)
            await _close_stream(pieces)
        for part in reply.flush(is_cut=problem is not None):
            parts.append(part)
            yield part
        completion.text = reply.answer("".join(parts), is_cut=problem is not None)
        completion.problem = problem if problem or completion.text.strip() else reply.empty_problem

    def _problem_of(self, reply: _Reply) -> str | None:
        """Return a sentence that explains why an answer is incomplete, or None if it is complete."""
        has_text = bool(without_reasoning(reply.written, is_cut=True).strip())
        if reply.refusal:
            return f"The model refused to answer: “{reply.refusal}”"
        if reply.finish_reason == "length":
            what = "" if has_text else " before it began"
            return f"The answer reached the model's token limit{what}."
        if reply.finish_reason in ("content_filter", "refusal"):
            what = "cut the answer off" if has_text else "withheld the answer"
            return f"The content filter of the provider of {self.name!r} {what}."
        if reply.is_broken_off:
            return f"The answer broke off. {describe(ReplyError('no_end'), setting='answer_llm', model=self.name)}"
        return None

    async def _begin(
        self, messages: Sequence[ChatMessage], reply: _Reply, options: Mapping[str, Any]
    ) -> tuple[AsyncIterator[ChatResponse], ChatResponse | None]:
        """Start the stream and return it with its first piece that contains text or a finish reason.

        If the server refuses an optional parameter, it is omitted, also from later calls.
        """
        model = await self._clients.running()

        async def first() -> tuple[AsyncIterator[ChatResponse], ChatResponse | None]:
            pieces: AsyncIterator[ChatResponse]
            if self._lock is None:
                pieces = aiter(await model.astream_chat(list(messages), **options))
            else:
                pieces = thread_stream(self._lock, lambda: model.stream_chat(list(messages)))
            piece = await anext(pieces, None)
            while piece is not None and not piece.delta and _finish_reason(piece) is None:
                reply.feed(piece)
                piece = await anext(pieces, None)
            return pieces, piece

        try:
            async with asyncio.timeout(self.timeouts.first_token):
                return await acall(first, _RETRY)
        except TimeoutError:
            seconds = f"{self.timeouts.first_token:g}"
        except Exception as error:  # an LLM class may raise any exception; there is no partial answer to keep
            if not (refused := _refused_options(error, options)):
                raise answer_error(error, self.name, self._address) from error
            other_options = {name: value for name, value in options.items() if name not in refused}
            start = await self._begin(messages, reply, other_options)
            self._clients.refused |= refused
            return start
        # Not chained, because the TimeoutError contains client errors.
        raise _late(f"{self.name!r} did not begin to answer within {seconds} seconds", "first_token_timeout")


def _refused_options(error: Exception, options: Mapping[str, Any]) -> set[str]:
    """Return the names of the optional parameters that a server may have refused; all if the error names none."""
    if getattr(error, "status_code", None) not in (400, 422):
        return set()
    message = f"{getattr(error, 'code', None)} {error}"
    names = {name for name in options if name in message or (name == "stream_options" and "include_usage" in message)}
    is_other = is_too_long(error) or _FILTERED.search(message)
    return names or (set() if is_other else set(options))


def _late(problem: str, setting: str) -> ModelError:
    """Return the error for a timeout, which names its setting."""
    return ModelError(
        problem,
        setting=setting,
        remedy=Remedy(
            f"try again, or increase the setting `{setting}`",
            f"try again, or increase the timeout with `llama-index-contextual configure {{project}} {setting}=SECONDS`",
        ),
    )


_FILTERED = re.compile(r"content[ _](?:filter|management policy|policy)", re.IGNORECASE)


def answer_error(error: Exception, model: str, address: str | None = None) -> ModelError:
    """Return an error that explains why a call to the answering model failed and how to solve the problem.

    Args:
        error: The exception raised by the client.
        model: Name of the model, as in the settings.
        address: Address of the model's server, or None if it is not known.
    """
    status = getattr(error, "status_code", None)
    if is_too_long(error):
        return ModelError(
            f"The prompt is longer than the context window of {model!r}.",
            setting="answer_tokens",
            remedy=Remedy(
                "let it read less, with answer_tokens=4000 or lower, or use a model with a larger window",
                "let it read less, with `llama-index-contextual configure {project} answer_tokens=4000` or lower, or"
                " name a model with a larger window with --llm",
            ),
        )
    if status in (400, 403, None) and _FILTERED.search(f"{getattr(error, 'code', None)} {error}"):
        return ModelError(
            f"The content filter of the provider of {model!r} refused the question or the passages: ask in other words,"
            f" or restrict the search to other files.",
            setting="llm",
        )
    if address is not None and status is None and is_connection_error(error) and not is_timeout(error):
        return ModelError(
            f"The provider of {model!r} cannot be reached at {address}: check that it is running, the network, and the"
            f" address.",
            setting="llm",
        )
    return ModelError(describe(error, setting="answer_llm", model=model), setting="llm")


class _Reply:
    """The reply of a model while it is received.

    Args:
        opening: Number of characters that are kept back because they may turn out to be reasoning.

    Attributes:
        finish_reason: Reason why the model stopped, or None if it is not known.
        refusal: Text with which the model refuses to answer, in a field of its own.
        usage: Tokens of the call as counted by the provider.
    """

    def __init__(self, opening: int) -> None:
        self.finish_reason: str | None = None
        self.refusal, self.usage = "", Usage()
        self._keys, self._filter = KeyFilter(), ReasoningFilter(opening=opening)
        self._written: list[str] = []
        self._has_reasoning_field = self._has_call = False
        self._is_done: bool | None = None

    @property
    def written(self) -> str:
        """The whole text so far, with the reasoning."""
        return "".join(self._written)

    @property
    def is_broken_off(self) -> bool:
        """Whether the reply has ended without the mark at the end of a reply of Ollama."""
        return self._is_done is False

    @property
    def empty_problem(self) -> str:
        """Sentence that explains why there is no answer."""
        if self._filter.has_reasoning or self._has_reasoning_field:
            return "The model wrote its reasoning, but no answer."
        if self._has_call or self.finish_reason in ("tool_use", "tool_calls", "function_call"):
            return "The model called a tool instead of writing an answer."
        return "The model returned an empty answer."

    def feed(self, piece: ChatResponse) -> list[str]:
        """Add a piece, and return the pieces of the answer that can be shown."""
        self.usage = self.usage.updated(piece.raw)
        choices = field_of(piece.raw, "choices")
        delta = (field_of(choices[0], "delta") if choices else None) or field_of(piece.raw, "message")
        fields = ("reasoning_content", "reasoning", "thinking")
        self._has_reasoning_field |= any(field_of(delta, name) for name in fields)
        self._has_call |= bool(field_of(delta, "tool_calls"))
        refusal = field_of(delta, "refusal")
        self.refusal += scrub(storable_text(refusal)) if isinstance(refusal, str) else ""
        self.finish_reason = _finish_reason(piece) or self.finish_reason
        if isinstance(piece.raw, Mapping) and "done" in piece.raw:  # in the format of Ollama
            self._is_done = piece.raw["done"] is True
        return self._show(self._keys.feed(storable_text(piece.delta or "")))

    def flush(self, *, is_cut: bool) -> list[str]:
        """Return the rest of the answer."""
        return [*self._show(self._keys.flush()), *self._filter.flush(is_cut=is_cut)]

    def _show(self, text: str) -> list[str]:
        if not text:
            return []
        self._written.append(text)
        return self._filter.feed(text)

    def answer(self, text: str, *, is_cut: bool) -> str:
        """Return the answer in the reply, which is shorter than what was shown if reasoning began without a mark."""
        return without_reasoning(self.written, is_cut=is_cut) if self._filter.has_shown_reasoning else text


_HOSTS = frozenset({"api.openai.com", "api.anthropic.com"})


def _returns_reasoning_apart(llm: LLM) -> bool:
    """Return whether the provider of a model never returns reasoning in the text of a reply."""
    address = address_of(llm)
    return urlsplit(address).hostname in _HOSTS if address else llm.class_name() == "Anthropic_LLM"


def _finish_reason(piece: ChatResponse) -> str | None:
    """Read the finish reason from a piece in the format of OpenAI, Anthropic or Ollama.

    Anthropic's "max_tokens" is returned as "length", as in the other formats. Without a finish reason, return None.
    """
    choices = field_of(piece.raw, "choices")
    reason = field_of(choices[0], "finish_reason") if choices else None
    reason = reason or field_of(piece.raw, "done_reason") or field_of(piece.raw, "stop_reason")
    reason = reason or field_of(field_of(piece.raw, "delta"), "stop_reason")
    return "length" if reason == "max_tokens" else reason if isinstance(reason, str) else None


async def _close_stream(pieces: AsyncIterator[ChatResponse]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


# ---- Streams and threads ---------------------------------------------------------------------------------------------


def blocking(stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Iterate over an asynchronous generator in synchronous code, even if an event loop is running.

    The generator runs in its own thread and is closed if the consumer stops.
    """
    runner, context = take_runner(), copy_context()

    async def item() -> tuple[T] | None:
        try:
            return (await anext(stream),)
        except StopAsyncIteration:
            return None

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return runner.run(coroutine, context=context)

    with ThreadPoolExecutor(1, "answer") as executor:
        try:
            while (result := executor.submit(run, item()).result()) is not None:
                yield result[0]
        finally:
            for task in asyncio.all_tasks(runner.get_loop()):  # waiting for an item was interrupted
                runner.get_loop().call_soon_threadsafe(task.cancel)
            executor.submit(run, stream.aclose()).result()
            keep_runner(runner)


async def thread_stream(
    busy: AbstractContextManager[Any], call: Callable[[], Iterable[ChatResponse]]
) -> AsyncGenerator[ChatResponse, None]:
    """Call a synchronous LLM in its own thread and yield the pieces of its answer.

    A thread cannot be stopped from outside. If a call is abandoned, its thread runs until the model returns the next
    piece, but does not prevent the process from exiting.

    Args:
        busy: Lock that is held until the call has ended, because concurrent calls can crash libraries such as
            llama.cpp.
        call: Function that calls the model.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()
    pieces: asyncio.Queue[ChatResponse | Exception | None] = asyncio.Queue()

    def send(piece: ChatResponse | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

    def run() -> None:
        try:
            with busy:
                for piece in () if stop.is_set() else call():
                    send(piece)
                    if stop.is_set():
                        break
            send(None)
        except Exception as error:  # noqa: BLE001 - an LLM class may raise any exception; raised in the consumer
            send(error)

    threading.Thread(target=copy_context().run, args=(run,), name="llm", daemon=True).start()
    try:
        while (piece := await pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece
    finally:
        stop.set()


_locks: WeakValueDictionary[int, Lock] = WeakValueDictionary()


def lock_of(llm: LLM) -> Lock | None:
    """Return the lock shared by all users of a synchronous LLM, or None for an asynchronous LLM."""
    # Look for the class that defines the method; the methods themselves cannot be compared, because instrumentation
    # wraps them at each access.
    if next((kind for kind in type(llm).__mro__ if "astream_chat" in vars(kind)), None) is not CustomLLM:
        return None
    return _locks.setdefault(id(llm), Lock())


# ---- Separating the answer from the reasoning ------------------------------------------------------------------------


def split_reasoning(text: str, style: str) -> tuple[str | None, str]:
    """Split a text into its reasoning (None if there is none) and its answer, which follows "Answer:" on a new line.

    Example:
        >>> split_reasoning("Source 1 says so.\\nAnswer: Yes.", "chain_of_thought")
        ('Source 1 says so.', 'Yes.')
    """
    mark = _MARK.search(text) if style == "chain_of_thought" else None
    if mark is None:
        return None, text.strip()
    return text[: mark.start()].strip(), text[mark.end() :].strip()


class StreamFilter:
    """Filter that removes reasoning and invalid citations from a streamed answer and applies guards to the rest.

    With guards, text is released block by block, because a Markdown link may span two lines but not two paragraphs.
    Code, which may contain blank lines, is released when it ends. Plain text at the beginning of a block is released
    immediately unless personal data is masked. The result does not depend on how the answer is divided into pieces.

    Args:
        style: The style of the answer.
        guards: Guards to apply to the text; None releases the text immediately.
        passages: The passages that can be cited; None leaves citations unchanged.
    """

    def __init__(self, style: str, guards: Guards | None = None, *, passages: Sequence[Passage] | None = None) -> None:
        self._reasoning: str | None = "" if style == "chain_of_thought" else None
        self._guards = guards
        self._citations = None if passages is None else CitationFilter(passages)
        self._open = ""
        self._plain = 0
        self._searched = 0

    def feed(self, piece: str) -> str:
        """Add a piece of the stream and return the text that can now be shown, which may be empty."""
        text = self._clean(piece)
        return text if self._citations is None else self._citations.feed(text)

    def _clean(self, piece: str) -> str:
        if self._reasoning is not None:
            self._reasoning += piece
            mark = _MARK.search(self._reasoning, self._searched)
            if mark is None:  # continue at the last line, unless it is too long to begin with the mark
                line = self._reasoning.rfind("\n", self._searched) + 1 or self._searched
                is_long = len(self._reasoning) - line > _LONGEST_MARK
                self._searched = len(self._reasoning) if is_long else line
            piece = "" if mark is None else self._reasoning[mark.end() :]
            if not piece:  # the rest of the mark may follow
                return ""
            self._reasoning, self._searched = None, 0
        if self._guards is None:
            return piece
        self._open += piece
        text = ""
        while (blank := _BLANK.search(self._open, self._searched)) is not None:
            text += self._release(self._guards, blank)
        if piece.strip():  # a blank line needs text after it
            self._searched = max(self._searched, len(self._open) - len(piece) + len(piece.rstrip()))
        if not self._guards.mask:
            plain = _PLAIN.match(self._open, self._plain)
            text += plain[0] if plain else ""
            self._plain += len(plain[0]) if plain else 0
        return text

    def _release(self, guards: Guards, blank: re.Match[str]) -> str:
        """Return the unreleased text of a block that ends at a blank line, including this line.

        Return an empty string if the block may continue after the line. A block is released if it is closed and does
        not start with white space, because such a block is rendered in the same way on its own.
        """
        block = guards.clean(self._open[: blank.start()]) + blank[0]
        if guards.sanitise and not (is_closed(block) and block.lstrip() == block):
            # Wait for more text after a long block: otherwise, code would be read anew at each of its blank lines.
            self._searched = blank.end() + len(block) // 8
            return ""
        remainder = block[self._plain :]
        self._open, self._plain, self._searched = self._open[blank.end() :], 0, 0
        return remainder

    def flush(self) -> str:
        """Return the text held back so far: the last block, or the reasoning if no answer follows it."""
        text = self._open
        if self._reasoning is not None:
            _, text = split_reasoning(self._reasoning, "chain_of_thought")
        if self._guards is not None:
            text = self._guards.clean(text)[self._plain :]
        return text if self._citations is None else self._citations.feed(text) + self._citations.flush()
