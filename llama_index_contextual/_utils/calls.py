"""Calls to models: limited retries, errors without API keys, and a bridge between sync and async code.

This module retries failed calls, using tenacity. The retries of the providers' own clients are disabled in `models.py`,
because otherwise the numbers of attempts would be multiplied.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import inspect
import json
import os
import random
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, overload

from tenacity import AsyncRetrying, RetryCallState, Retrying

from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual.errors import ContextualError

T = TypeVar("T")
P = ParamSpec("P")

RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
RETRYABLE_NAMES = frozenset(
    {"APIConnectionError", "APITimeoutError", "ConnectError", "ConnectTimeout", "RemoteProtocolError", "ReadError"}
)


class ProviderError(Exception):
    """Copy of an exception from a model's client, without API keys; see `redacted_error`.

    Attributes:
        status_code: HTTP status of the response, or None.
        code: The provider's error code, or None.
        retry_after: Seconds to wait, as requested by the provider, or None.
        param: Name of the parameter that the provider rejects, or None.
        detail: The provider's message, without the status and other fields of the response.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        param: str | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(scrub(message))
        self.status_code, self.code, self.retry_after, self.param = status_code, code, retry_after, param
        self.detail = scrub(detail or message)


ReplyFault = Literal["page", "error", "no_json", "no_answer", "no_text", "no_end", "unreadable"]


class ReplyError(ProviderError):
    """A response of a model's server that is not a reply, although it has the status of success.

    Attributes:
        fault: "page" for a web page, "error" for an error in the body, "no_json" for other text, "no_answer" for a
            reply without choices, "no_text" for an answer of another type, "no_end" for a stream that ends before the
            answer, or "unreadable" if the client library cannot process the response.
    """

    def __init__(self, fault: ReplyFault, detail: str = "", **fields: Any) -> None:
        super().__init__(detail, **fields)
        self.fault = fault

    @classmethod
    def of_body(cls, body: Any) -> ReplyError:
        """Return the error for a body that is not a reply.

        Args:
            body: The text, or the parsed JSON.
        """
        if isinstance(body, str):
            start = body[:_LONGEST_BODY].lstrip()
            if not start.startswith("<"):
                return cls("no_json", start)
            title = _TITLE.search(body[:_LONGEST_BODY])
            return cls("page", " ".join(title[1].split()) if title else "")
        error = body.get("error") if isinstance(body, Mapping) else None
        if not error:
            return cls("no_answer")
        if not isinstance(error, Mapping):
            return cls("error", str(error))
        code = error.get("code")
        status = code if type(code) is int and 400 <= code <= 599 else None
        name = code if isinstance(code, str) else error.get("type")
        message = str(error.get("message") or error.get("detail") or error)
        return cls("error", message, status_code=status, code=name if isinstance(name, str) else None)


_LONGEST_BODY = 4_000
_TITLE = re.compile(r"<title[^<>]{0,100}>([^<>]{1,200})", re.IGNORECASE)


_COMMON_BASES = (TimeoutError, ConnectionError, ValueError, RuntimeError)
_LONGEST_CHAIN = 8


def redacted_error(error: BaseException, *, depth: int = _LONGEST_CHAIN) -> Exception:
    """Return a copy of an exception from a model's client, with the same class name but without API keys.

    The original exception contains the provider's response and the request, including its headers. The copy has the
    original traceback and the original message with any keys removed; chained exceptions are copied in the same way.
    Exceptions defined by this package are returned unchanged.
    """
    if isinstance(error, (ContextualError, ProviderError)):
        return error
    status, code, param = (getattr(error, name, None) for name in ("status_code", "code", "param"))
    replacement: ProviderError = _reply_error(error) or _kind_like(type(error))(
        str(error),
        status_code=status if isinstance(status, int) else None,
        code=scrub(code) if isinstance(code, str) else None,
        retry_after=retry_after(error),
        param=scrub(param) if isinstance(param, str) else None,
        detail=_detail(error),
    )
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None and depth:
        replacement.__cause__ = redacted_error(cause, depth=depth - 1)
    return replacement.with_traceback(error.__traceback__)


def _detail(error: BaseException) -> str:
    """Return the message in the body of an error response, or an empty string."""
    if isinstance(message := getattr(error, "error", None), str):  # Ollama's
        return message
    body = getattr(error, "body", None)
    body = body.get("error", body) if isinstance(body, Mapping) else None
    message = body.get("message") or body.get("detail") if isinstance(body, Mapping) else body
    return message if isinstance(message, str) else ""


_FAULTS_OF_CODE = (AttributeError, IndexError, KeyError, TypeError, UnboundLocalError)


def _reply_error(error: BaseException) -> ReplyError | None:
    """Return a `ReplyError` for an exception raised by a client library that expected another response, or None."""
    if is_json_error(error):
        reply_error = ReplyError.of_body(getattr(error, "doc", ""))
        return reply_error if reply_error.fault == "page" else None  # other text may be a reply that was cut off
    if type(error).__name__ == "ValidationError" and callable(faults := getattr(error, "errors", None)):
        inputs = [fault.get("input") for fault in faults() if isinstance(fault, Mapping)]
        bodies = [value for value in inputs if isinstance(value, Mapping)]
        return ReplyError.of_body(bodies[0]) if bodies else ReplyError("no_text")
    status = getattr(error, "status_code", None)
    is_api_error = type(error).__name__ in ("APIError", "APIStatusError", "ResponseError")
    if is_api_error and not (isinstance(status, int) and status >= 400):
        return ReplyError("error", _detail(error) or str(error), code=getattr(error, "code", None))  # within a stream
    return ReplyError("unreadable", str(error)) if isinstance(error, _FAULTS_OF_CODE) else None


def is_json_error(error: BaseException) -> bool:
    """Return whether a response could not be parsed as JSON."""
    return isinstance(error, json.JSONDecodeError) or type(error).__name__ == "JSONDecodeError"


def _kind_like(kind: type[BaseException]) -> type[ProviderError]:
    bases = (ProviderError, *(base for base in _COMMON_BASES if issubclass(kind, base)))
    return type(kind.__name__, bases, {"__module__": kind.__module__, "__doc__": ProviderError.__doc__})


async def awithout_secrets(send: Callable[[], Awaitable[T]]) -> T:
    """Await `send()`, replacing any exception with its `redacted_error`."""
    try:
        return await send()
    except Exception as error:  # noqa: BLE001 - clients raise exceptions of any class; the replacement is raised
        replacement = redacted_error(error)
    raise replacement


def without_secrets(send: Callable[[], T]) -> T:
    """Return the result of `send()`, replacing any exception with its `redacted_error`."""
    try:
        return send()
    except Exception as error:  # noqa: BLE001 - as above
        replacement = redacted_error(error)
    raise replacement


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Number of attempts for a call, and the delays between them.

    Attributes:
        attempts: Total number of attempts, including the first.
        base_delay: Delay in seconds before the second attempt; it is doubled before each further attempt, with jitter.
        max_delay: Longest delay in seconds, unless the provider requests a longer delay with Retry-After.
        max_retry_after: Longest Retry-After delay in seconds; if the provider requests more, the call is not repeated.
    """

    attempts: int = 5
    base_delay: float = 0.5
    max_delay: float = 20.0
    max_retry_after: float = 120.0

    def delay(self, attempt: int, error: Exception) -> float | None:
        """Return the delay in seconds after a failed attempt, or None if the call should not be repeated.

        Attempts are numbered from 1.
        """
        if attempt >= self.attempts or not is_retryable(error):
            return None
        seconds = retry_after(error)
        if seconds is not None:
            return seconds if seconds <= self.max_retry_after else None
        return float(min(self.max_delay, self.base_delay * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))


def is_retryable(error: BaseException) -> bool:
    """Return whether a call that failed with this error may succeed later."""
    code = getattr(error, "code", None)
    if code in ("insufficient_quota", "model_not_found"):
        return False
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status in RETRYABLE_STATUS and not is_too_long(error)
    if isinstance(error, ReplyError):
        return error.fault == "no_end"
    # A truncated response may not be valid JSON. A client that was used in several event loops may keep a connection
    # that belongs to a closed loop; it drops the connection when a call fails.
    is_closed_loop = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
    return is_connection_error(error) or is_json_error(error) or is_closed_loop


def is_connection_error(error: BaseException) -> bool:
    """Return whether there was no response because the provider or the network is down."""
    return isinstance(error, (ConnectionError, TimeoutError)) or type(error).__name__ in RETRYABLE_NAMES


def is_timeout(error: BaseException) -> bool:
    """Return whether the provider was reached but did not answer within the timeout of the client.

    The timeout of OpenAI's client may also mean that there was no connection; its cause distinguishes the two.
    """
    causes = {type(error).__name__, type(error.__cause__).__name__}
    is_late = isinstance(error, TimeoutError) or causes & {"APITimeoutError", "ReadTimeout", "WriteTimeout"}
    return bool(is_late) and not causes & {"ConnectTimeout", "PoolTimeout"}


_NEVER_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ConnectionRefusedError", "gaierror"})
_MAYBE_CHARGED = frozenset({408, 499, 502, 504, 522, 524})


def may_be_charged(error: BaseException) -> bool:
    """Return whether the provider may charge for a failed call, because it may have processed the call.

    If a provider refuses a call or fails, it returns a status code and charges nothing. If a gateway timed out, its
    status code does not show whether the provider processed the call. If there is no status code, the response was
    late, lost or unreadable, unless there was no connection at all.
    """
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status in _MAYBE_CHARGED
    if isinstance(error, ValueError) and "nknown model" in str(error):
        return False  # LlamaIndex's own check, before anything is sent
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in _NEVER_SENT:
            return False
        cause = cause.__cause__ or cause.__context__
    return True


def retry_after(error: BaseException) -> float | None:
    """Return the number of seconds to wait according to the provider's Retry-After header, or None."""
    if isinstance(error, ProviderError):
        return error.retry_after
    headers = getattr(getattr(error, "response", None), "headers", None)
    if headers is None:
        return None
    if (milliseconds := _as_float(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    return _as_float(headers.get("retry-after"))


def _as_float(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:  # a date, which model providers do not send
        return None


def call(send: Callable[[], T], policy: RetryPolicy) -> T:
    """Call `send()` until it succeeds and return the result, or raise the `redacted_error` of the last failure."""
    return Retrying(**_strategy(policy))(functools.partial(without_secrets, send))


async def acall(
    send: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], Awaitable[None]] | None = None,
    counts: Callable[[Exception], bool] = lambda _error: True,
    on_failure: Callable[[Exception, float | None], None] = lambda _error, _delay: None,
) -> T:
    """Await `send()` until it succeeds and return the result, or raise the `redacted_error` of the last failure.

    Args:
        send: Function that makes one attempt.
        policy: Number of attempts, and the delays between them.
        sleep: Function that waits for the given number of seconds before another attempt; None for `asyncio.sleep`.
        counts: Function that returns whether a failure counts towards the number of attempts.
        on_failure: Called after each failure with the error and the delay before the next attempt, or None if there is
            no other attempt. An exception that it raises ends the call.
    """
    cancelled = cancellations()

    async def attempt() -> T:
        try:
            return await awithout_secrets(send)
        except Exception as error:  # a client may raise any exception, which is raised again
            if cancellations() > cancelled:
                raise asyncio.CancelledError from error
            raise

    return await AsyncRetrying(sleep=sleep or asyncio.sleep, **_strategy(policy, counts, on_failure))(attempt)


def _strategy(
    policy: RetryPolicy,
    counts: Callable[[Exception], bool] = lambda _error: True,
    on_failure: Callable[[Exception, float | None], None] = lambda _error, _delay: None,
) -> dict[str, Any]:
    """Return arguments that make tenacity retry the errors covered by `policy` and re-raise all others."""
    failures, delay = 0, None

    def is_repeated(state: RetryCallState) -> bool:
        nonlocal failures, delay
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, Exception):  # success, or an exception such as KeyboardInterrupt and CancelledError
            return False
        failures += counts(error)
        delay = policy.delay(max(1, failures), error)
        on_failure(error, delay)
        return delay is not None

    return {"retry": is_repeated, "wait": lambda _state: delay or 0.0}


def cancellations() -> int:
    """Return the number of times that cancellation of the current task has been requested.

    If a client's own timeout expires just when its task is cancelled, the client mistakes the cancellation for the
    timeout and raises a different error. Callers therefore check whether this number has changed before they retry a
    call.
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


_TOO_LONG = re.compile(
    r"context[ _](?:length|window|size|limit)|maximum context|(?:prompt|input|request) (?:is )?too (?:long|large)"
    r"|too many (?:input )?tokens|exceeds? the (?:available )?context|maximum (?:model|prompt|input|sequence) length"
    r"|(?:prompt|input|token)s?\b.{0,80}exceeds? the (?:maximum|limit|model['’]s max)|range of input length"
    r"|max_new_tokens.{0,20} must be <=|reduce the length of the (?:messages|prompt|input)",
    re.IGNORECASE,
)
_LONGEST_DETAIL = 300


def is_too_long(error: BaseException) -> bool:
    """Return whether a provider rejected a prompt because it is longer than the model's context window."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    is_rejected = not isinstance(status, int) or status in (400, 413, 422, 500) or status < 0
    return is_rejected and _TOO_LONG.search(f"{code} {error}") is not None


_REJECTED = re.compile(
    r"unsupported|(?:not|n['’]t|no longer) (?:be )?(?:support|permit|allow|accept|available|recogni[sz]e)|unknown"
    r"|unrecogni[sz]ed|unexpected|invalid|extra|deprecated|only the default|too large|must be|should be",
    re.IGNORECASE,
)


_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*")


def rejected_parameter(error: BaseException, names: Collection[str]) -> str | None:
    """Return the parameter of a request that the provider does not accept for the model, or None.

    Args:
        error: The error of the call.
        names: Names of the parameters that the caller can leave out.
    """
    text = f"{getattr(error, 'param', None)} {error}"
    if getattr(error, "status_code", None) not in (400, 422) or is_too_long(error) or not _REJECTED.search(text):
        return None
    words = (match[0] for match in _NAME.finditer(text))
    parts = (part for word in words for part in (word.replace(".", "_"), *word.split(".")))
    return next((part for part in parts if part in names), None)  # a later one may be the one to use instead


_FAULTS: Mapping[ReplyFault, str] = {
    "page": "The address of {model} returned a web page{title} instead of a reply, as a sign-in page or a proxy does:"
    " check the address of the server, and that this computer is signed in to the network.",
    "error": "The server of {model} returned an error instead of a reply: {detail}",
    "no_json": "The server of {model} returned text that is not a reply ({detail}): check the address of the server.",
    "no_answer": "The server of {model} returned a reply without an answer: check the address of the server, and that"
    " the model is a chat model.",
    "no_text": "The server of {model} returned an answer that is not text: check that the model is a chat model.",
    "no_end": "The connection to {model} ended before the end of the reply: try again.",
    "unreadable": "The client library of {model} could not process the call or the reply ({detail}): check that the"
    " server has the interface of this provider.",
}
_NO_PATH = re.compile(r"not found|endpoint|route|\bpath|\burl", re.IGNORECASE)
_OF_MODEL = re.compile(r"model|deployment", re.IGNORECASE)
_LONGER = "increase the setting 'call_timeout' or the timeout of the model object"


def describe(error: BaseException, *, setting: str, model: str) -> str:
    """Return a message, without secrets, that explains why a call to a model failed and what to do.

    Args:
        error: The exception that the client raised.
        setting: Name of the project setting that specifies the model, such as "llm".
        model: Name of the model, as in the settings.
    """
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    text = scrub(" ".join(str(error).split()))  # before truncation: part of a key would not be recognised
    if status in (401, 403, 404) and text.startswith("<"):
        return describe(ReplyError.of_body(text), setting=setting, model=model)
    if status == 401 or code == "invalid_api_key":
        return f"The provider of {model!r} refused the API key: check the key in the environment."
    if status == 403:
        return f"The provider of {model!r} refused access: check that the key has access to this model in your region."
    if status == 404 and _NO_PATH.search(text) and not _OF_MODEL.search(f"{code} {text}"):
        return (
            f"The server of {model!r} has nothing at this address (404): check the address of the server, including its"
            f" path, such as /v1."
        )
    if status == 404 or code == "model_not_found" or "nknown model" in str(error):
        return f"The provider does not offer the model {model!r}: change the setting {setting!r} to one that it offers."
    if code == "insufficient_quota" or status == 402:
        return f"The account behind {model!r} has no quota left: top it up, then run the same call again."
    if status == 429:
        return f"The provider of {model!r} keeps returning 429 (rate limit): lower the concurrency, or try again later."
    if is_too_long(error):
        return f"The prompt is longer than the context window of {model!r}."
    if is_timeout(error):
        remedy = "pass the model as an object with a longer `timeout`" if setting == "embed_model" else _LONGER
        return f"The provider of {model!r} did not answer within the timeout of the call: try again, or {remedy}."
    if is_connection_error(error):
        return f"The provider of {model!r} cannot be reached: check the address and the network, then try again."
    if isinstance(status, int) and status >= 500:
        return f"The provider of {model!r} keeps returning {status} (server error): run the same call again later."
    if isinstance(error, RecursionError):
        return f"{model!r} failed: its reply is nested too deeply; run the same call again, or choose another model."
    detail = error.detail if isinstance(error, ProviderError) else scrub(_detail(error)) or text
    detail = " ".join(detail.split())[:_LONGEST_DETAIL].rstrip(".")
    if isinstance(error, ReplyError):
        title = f" (“{detail}”)" if detail else ""
        sentence = _FAULTS[error.fault].format(model=repr(model), detail=detail, title=title)
        return sentence if sentence.endswith(".") else f"{sentence}."
    if is_json_error(error):
        return (
            f"The server of {model!r} keeps returning nothing, or text that is not valid JSON: check the address of the"
            f" server."
        )
    if isinstance(status, int) and status >= 400:
        return f"The provider of {model!r} refused the request ({status}): {detail}."
    return f"{model!r} failed: {type(error).__name__}: {text[:_LONGEST_DETAIL]}"


def run_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to completion, in a separate thread if an event loop is already running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(make)
    loop_and_task: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def main() -> T:
        loop_and_task.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await make()

    context = contextvars.copy_context()
    with ThreadPoolExecutor(max_workers=1) as executor:
        result = executor.submit(context.run, _run, main)
        try:
            return result.result()
        except KeyboardInterrupt:
            # If a notebook cell is interrupted, the work must not continue in the background and be published.
            loop, task = loop_and_task.result()
            while task is not None and not result.done():
                loop.call_soon_threadsafe(task.cancel)
                with contextlib.suppress(KeyboardInterrupt):  # a second interrupt ends the wait for calls in flight
                    wait([result])
            raise


def _run(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in an idle event loop, and cancel the tasks that it has left behind."""
    results: list[T] = []

    async def main() -> None:
        try:
            # The task itself has no result, because asyncio formats the task when it restores the signal handler.
            results.append(await make())
        finally:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    runner = take_runner()
    try:
        runner.run(main(), context=contextvars.copy_context())
    except (KeyboardInterrupt, SystemExit):
        runner.close()  # the loop may have been stopped anywhere
        raise
    except BaseException:
        keep_runner(runner)
        raise
    keep_runner(runner)
    return results[0]


# ---- event loops of blocking callers ---------------------------------------------------------------------------------

_MOST_IDLE = 16
_idle: list[asyncio.Runner] = []


def take_runner() -> asyncio.Runner:
    """Return an event loop that no other thread uses. Pass it to `keep_runner` or close it.

    An idle loop is reused, and with it the connections that clients have opened in it.
    """
    try:
        return _idle.pop()
    except IndexError:
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        runner.get_loop()  # before a coroutine is created, which must then be awaited
        return runner


def keep_runner(runner: asyncio.Runner) -> None:
    """Keep an event loop for the next blocking caller."""
    if len(_idle) < _MOST_IDLE:
        _idle.append(runner)
    else:
        runner.close()


@atexit.register
def _close_idle() -> None:
    """Close the idle event loops and the clients in them, without threads, which cannot be started at exit."""
    while _idle:
        loop = _idle.pop().get_loop()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


_of_parent: list[asyncio.Runner] = []


def _leave_to_parent() -> None:
    """Forget the event loops in a forked process; they are kept, because closing them would disturb the parent."""
    _of_parent.extend(_idle)
    _idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


async def run_to_completion(work: Callable[[], T]) -> T:
    """Run a function in a thread. If the calling task is cancelled, wait until the function has returned."""
    future = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


@overload
def twin(  # type: ignore[overload-overlap]  # a coroutine function always matches this overload
    work: Callable[P, Coroutine[Any, Any, T]], *, finish: bool = False
) -> Callable[P, T]: ...


@overload
def twin(work: Callable[P, T], *, finish: bool = False) -> Callable[P, Coroutine[Any, Any, T]]: ...


def twin(work: Callable[P, Any], *, finish: bool = False) -> Callable[P, Any]:
    """Return the blocking version of an async function or method, or the async version of a blocking one.

    The async version runs the blocking function in a thread; the blocking version can be called inside a running event
    loop (see `run_sync`). The signature and docstring stay the same. The name of the async version begins with "a":
    `ingest` and `aingest`, `estimate` and `aestimate`.

    Args:
        work: The function.
        finish: Whether a cancelled task waits until the function has returned; needed if the function changes files.

    Example:
        >>> async def adouble(number: int, *, times: int = 1) -> int:
        ...     return number * 2**times
        >>> double = twin(adouble)
        >>> double.__name__, double(3, times=2)
        ('double', 12)
        >>> asyncio.run(twin(double)(4))
        8
    """

    @functools.wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        return run_sync(lambda: work(*args, **kwargs))

    @functools.wraps(work)
    async def arun(*args: P.args, **kwargs: P.kwargs) -> Any:
        call = functools.partial(work, *args, **kwargs)
        return await (run_to_completion(call) if finish else asyncio.to_thread(call))

    is_async = inspect.iscoroutinefunction(work)
    function, name = (run, work.__name__.removeprefix("a")) if is_async else (arun, f"a{work.__name__}")
    function.__name__, function.__qualname__ = name, work.__qualname__.removesuffix(work.__name__) + name
    return suggests_keywords(function)
