"""Retries, messages of failed calls, and the bridge between sync and async code."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import os
import pydoc
import threading
import warnings
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual._utils import calls
from llama_index_contextual._utils.calls import (
    ProviderError,
    RetryPolicy,
    acall,
    call,
    describe,
    is_connection_error,
    is_retryable,
    may_be_charged,
    redacted_error,
    retry_after,
    run_sync,
    twin,
)
from llama_index_contextual.errors import InputError


def api_error(status: int, code: str | None = None, headers: dict[str, str] | None = None) -> openai.APIStatusError:
    """Return the error that the OpenAI client raises for an answer."""
    request = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")
    response = httpx.Response(status, headers=headers, request=request)
    return openai.APIStatusError("The provider's own words.", response=response, body={"code": code})


CONNECTION = openai.APIConnectionError(request=httpx.Request("POST", "http://127.0.0.1"))
TIMEOUT = openai.APITimeoutError(request=httpx.Request("POST", "http://127.0.0.1"))


# ---- what is tried again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        *(api_error(status) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)),
        CONNECTION,
        TIMEOUT,
        ConnectionResetError(),
        TimeoutError(),
        httpx.ReadError("broken"),
        httpx.ConnectError("not there"),
        httpx.RemoteProtocolError("broken"),
        RuntimeError("Event loop is closed"),
        json.JSONDecodeError("broken off", "{", 1),
    ],
    ids=repr,
)
def test_temporary_errors_are_retryable(error: Exception) -> None:
    assert is_retryable(error)


@pytest.mark.parametrize(
    "error",
    [
        *(api_error(status) for status in (400, 401, 403, 404, 413, 422)),
        api_error(429, "insufficient_quota"),
        api_error(500, "model_not_found"),
        ProviderError("input length exceeds the context length", status_code=500),
        ValueError("odd"),
        KeyError("odd"),
        RuntimeError("odd"),
    ],
    ids=repr,
)
def test_permanent_errors_are_not_retryable(error: Exception) -> None:
    assert not is_retryable(error)


# ---- how long is waited ----------------------------------------------------------------------------------------------


@given(attempt=st.integers(1, 30), base=st.floats(0.001, 10), most=st.floats(0.001, 60))
def test_delays_double_with_jitter_up_to_a_limit(attempt: int, base: float, most: float) -> None:
    policy = RetryPolicy(attempts=31, base_delay=base, max_delay=most)
    whole = min(most, base * 2 ** (attempt - 1))
    delay = policy.delay(attempt, TimeoutError())
    assert delay is not None
    assert 0.5 * whole <= delay <= whole


def test_the_last_attempt_is_followed_by_none() -> None:
    policy = RetryPolicy(attempts=3)
    assert [policy.delay(attempt, TimeoutError()) is None for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert RetryPolicy(attempts=1).delay(1, TimeoutError()) is None
    assert policy.delay(1, ValueError()) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "20", "retry-after": "7"}, 0.02),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_retry_after_can_be_a_number_of_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(api_error(429, headers=headers)) == seconds


def test_an_error_without_a_response_has_no_retry_after() -> None:
    assert retry_after(CONNECTION) is None
    assert retry_after(ValueError()) is None


def test_retry_after_replaces_the_delay_of_the_policy_unless_it_is_too_long() -> None:
    policy = RetryPolicy(attempts=5, base_delay=1000, max_delay=1, max_retry_after=120)
    assert policy.delay(1, api_error(429, headers={"retry-after": "90"})) == 90
    assert policy.delay(1, api_error(429, headers={"retry-after": "121"})) is None
    assert policy.delay(1, api_error(429, headers={"retry-after": "inf"})) is None


# ---- calling ---------------------------------------------------------------------------------------------------------


class Flaky:
    """Fails with the given errors, one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"

    async def later(self) -> str:
        return self()


def runs() -> list[Callable[[Flaky, RetryPolicy], str]]:
    return [call, lambda flaky, policy: asyncio.run(acall(flaky.later, policy))]


QUICK = RetryPolicy(attempts=4, base_delay=0)


@pytest.mark.parametrize("run", runs(), ids=["sync", "async"])
def test_a_call_is_repeated_until_it_succeeds(run: Callable[..., str]) -> None:
    flaky = Flaky(TimeoutError(), api_error(500), CONNECTION)
    assert run(flaky, QUICK) == "answer"
    assert flaky.calls == 4


@pytest.mark.parametrize("run", runs(), ids=["sync", "async"])
def test_a_failed_call_raises_a_redacted_copy_of_the_last_error(run: Callable[..., str]) -> None:
    flaky = Flaky(*[TimeoutError()] * 3, api_error(503))
    with pytest.raises(ProviderError, match=r"The provider's own words\.") as raised:
        run(flaky, QUICK)
    assert type(raised.value).__name__ == "APIStatusError"
    assert raised.value.status_code == 503
    assert flaky.calls == 4


@pytest.mark.parametrize("run", runs(), ids=["sync", "async"])
def test_a_call_with_a_permanent_error_is_sent_once(run: Callable[..., str]) -> None:
    flaky = Flaky(api_error(401))
    with pytest.raises(ProviderError):
        run(flaky, QUICK)
    assert flaky.calls == 1


def replace_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Replace the sleep between two calls, which other threads must not call."""
    monkeypatch.setattr(tenacity.nap, "time", SimpleNamespace(sleep=sleep))


def test_the_delay_is_the_requested_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    thread, real = threading.current_thread(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if threading.current_thread() is thread:
            waited.append(seconds)
        else:
            await real(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    replace_sleep(monkeypatch, waited.append)
    limited = api_error(429, headers={"retry-after": "33"})
    asyncio.run(acall(Flaky(limited).later, RetryPolicy()))
    call(Flaky(limited), RetryPolicy())
    assert waited == [33, 33]


async def test_failures_that_do_not_count_are_repeated_beyond_the_number_of_attempts() -> None:
    limited, broken = api_error(429), ConnectionResetError()
    reports: list[tuple[str, bool]] = []
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    with pytest.raises(ConnectionError):
        await acall(
            Flaky(limited, limited, broken, limited, broken).later,
            RetryPolicy(attempts=2),
            sleep=sleep,
            counts=lambda error: getattr(error, "status_code", None) != 429,
            on_failure=lambda error, delay: reports.append((type(error).__name__, delay is None)),
        )
    limit, connection = "APIStatusError", "ConnectionResetError"
    assert reports == [(limit, False), (limit, False), (connection, False), (limit, False), (connection, True)]
    assert len(delays) == 4


async def test_an_exception_of_the_callback_ends_a_call() -> None:
    def on_failure(_error: Exception, _delay: float | None) -> None:
        raise InputError("The run was stopped.", value=None)

    flaky = Flaky(ConnectionResetError())
    with pytest.raises(InputError, match="The run was stopped"):
        await acall(flaky.later, RetryPolicy(), on_failure=on_failure)


async def test_a_cancelled_call_is_not_repeated() -> None:
    started: list[int] = []

    async def send() -> None:
        started.append(1)
        await asyncio.Event().wait()

    task = asyncio.create_task(acall(send, QUICK))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started == [1]


async def test_a_cancelled_wait_ends_at_once() -> None:
    flaky = Flaky(TimeoutError())
    task = asyncio.create_task(acall(flaky.later, RetryPolicy(base_delay=3600, max_delay=3600)))
    await asyncio.sleep(0)
    assert flaky.calls == 1
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=300)
    assert done
    assert task.cancelled()


def test_an_interrupted_wait_or_call_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_seconds: float) -> None:
        raise KeyboardInterrupt

    flaky = Flaky(TimeoutError())
    replace_sleep(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        call(flaky, RetryPolicy())
    assert flaky.calls == 1
    with pytest.raises(KeyboardInterrupt):
        call(interrupt, RetryPolicy())


async def test_a_call_whose_client_turned_the_cancellation_into_an_error_is_not_repeated() -> None:
    started: list[int] = []

    async def send() -> str:
        started.append(1)
        if len(started) == 1:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise TimeoutError("the client's own time was up that instant")
        return "answer"

    task = asyncio.create_task(acall(send, QUICK))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert started == [1]


# ---- stand-ins -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        *(api_error(status, headers={"retry-after": "7"}) for status in (400, 401, 404, 429, 500)),
        *(CONNECTION, TIMEOUT, TimeoutError(), ConnectionResetError(104, "reset"), httpx.ReadError("broken")),
        *(ValueError("Unknown model 'x'"), RuntimeError("Event loop is closed"), json.JSONDecodeError("off", "{", 1)),
        api_error(429, "insufficient_quota"),
    ],
    ids=repr,
)
def test_a_redacted_error_is_treated_like_its_original(error: Exception) -> None:
    other = redacted_error(error)
    assert (type(other).__name__, type(other).__module__) == (type(error).__name__, type(error).__module__)
    assert str(other) == str(error)
    assert is_retryable(other) == is_retryable(error)
    assert retry_after(other) == retry_after(error)
    assert is_connection_error(other) == is_connection_error(error)
    assert describe(other, setting="llm", model=MODEL) == describe(error, setting="llm", model=MODEL)


def test_a_redacted_error_keeps_the_causes_and_the_traceback() -> None:
    def fail() -> None:
        raise CONNECTION from httpx.ConnectError("name not known")

    with pytest.raises(openai.APIConnectionError) as raised:
        fail()
    other = redacted_error(raised.value)
    assert other.__traceback__ is raised.value.__traceback__
    assert repr(other.__cause__) == "ConnectError('name not known')"


def test_an_error_of_the_package_is_not_replaced() -> None:
    error = InputError("Ask something.")
    assert redacted_error(error) is error


# ---- sentences -------------------------------------------------------------------------------------------------------

MODEL = "openai:gpt-4.1"


def refused(status: int, text: str, code: str | None = None) -> ProviderError:
    """Return an error for a response of a server."""
    return ProviderError(text, status_code=status, code=code)


PAGE = "<html><head><title>404 Not Found</title></head><body>nginx</body></html>"
ADDRESS = "The server of 'openai:gpt-4.1' has nothing at this address (404): check the address of the server"
OFFERS = "The provider does not offer the model 'openai:gpt-4.1'"
TOO_LONG = "The prompt is longer than the context window of 'openai:gpt-4.1'"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (refused(404, "Error code: 404 - {'detail': 'Not Found'}"), ADDRESS),
        (refused(404, "404 page not found"), ADDRESS),
        (refused(404, "Unexpected endpoint or method. (POST /chat/completions)"), ADDRESS),
        (refused(404, "Resource not found", code="404"), ADDRESS),
        (refused(404, "model 'x' not found, try pulling it first"), OFFERS),
        (refused(404, "The model `x` does not exist.", code="NotFoundError"), OFFERS),
        (refused(404, "Not found", code="DeploymentNotFound"), OFFERS),
        (refused(404, PAGE), "The address of 'openai:gpt-4.1' returned a web page (“404 Not Found”)"),
        (refused(403, PAGE), "The address of 'openai:gpt-4.1' returned a web page"),
        (refused(502, PAGE), "The provider of 'openai:gpt-4.1' keeps returning 502"),
        (refused(400, "This model's maximum context length is 128 tokens."), TOO_LONG),
        (refused(400, "The decoder prompt (length 5000) is longer than the maximum model length of 2048."), TOO_LONG),
        (refused(400, "input length and `max_tokens` exceed context limit: 199000 + 4096 > 200000"), TOO_LONG),
        (refused(400, "The input token count (1200000) exceeds the maximum number of tokens allowed (9)."), TOO_LONG),
        (refused(422, "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 8000 `inputs` tokens"), TOO_LONG),
        (refused(400, "Range of input length should be [1, 30720]"), TOO_LONG),
        (refused(400, "Input is too long for requested model."), TOO_LONG),
        (refused(400, "prompt is too long: 208310 tokens > 200000 maximum"), TOO_LONG),
        (refused(500, "input length exceeds the context length"), TOO_LONG),
        (refused(413, "Request too large for model `x`: Limit 6000, Requested 9000"), TOO_LONG),
        (refused(400, "Invalid value: maximum of 4 stop sequences"), "The provider of 'openai:gpt-4.1' refused the"),
        (refused(500, "The model runner has unexpectedly stopped"), "The provider of 'openai:gpt-4.1' keeps returning"),
    ],
    ids=lambda value: str(value) if isinstance(value, Exception) else "",
)
def test_the_words_of_a_server_decide_between_the_model_the_address_and_the_length(
    error: ProviderError, sentence: str
) -> None:
    assert describe(error, setting="llm", model=MODEL).startswith(sentence)


@pytest.mark.parametrize("body", ["", '{"id": '])
def test_an_unreadable_response_is_a_fault_of_the_server(body: str) -> None:
    error = redacted_error(json.JSONDecodeError("Expecting value", body, 0))
    assert "keeps returning nothing, or text that is not valid JSON" in describe(error, setting="llm", model=MODEL)


def test_an_error_within_a_reply_is_shown_with_its_message_alone() -> None:
    class ResponseError(Exception):
        error, status_code = "No GPU is free", -1

    class APIStatusError(Exception):
        status_code, body = 200, {"type": "error", "error": {"type": "server_error", "message": "No GPU is free"}}

    within_a_stream = describe(redacted_error(APIStatusError("{'type': 'error'}")), setting="llm", model=MODEL)
    sentence = describe(redacted_error(ResponseError("No GPU is free (status code: -1)")), setting="llm", model=MODEL)
    expected = "The server of 'openai:gpt-4.1' returned an error instead of a reply: No GPU is free."
    assert sentence == within_a_stream == expected


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (api_error(401), "The provider of 'openai:gpt-4.1' refused the API key: check the key in the environment."),
        (
            api_error(403),
            "The provider of 'openai:gpt-4.1' refused access: check that the key has access to this model in your"
            " region.",
        ),
        (
            api_error(404),
            "The provider does not offer the model 'openai:gpt-4.1': change the setting 'llm' to one that it offers.",
        ),
        (
            api_error(429, "insufficient_quota"),
            "The account behind 'openai:gpt-4.1' has no quota left: top it up, then run the same call again.",
        ),
        (
            api_error(429),
            "The provider of 'openai:gpt-4.1' keeps returning 429 (rate limit): lower the concurrency, or try again"
            " later.",
        ),
        (
            api_error(502),
            "The provider of 'openai:gpt-4.1' keeps returning 502 (server error): run the same call again later.",
        ),
        (
            CONNECTION,
            "The provider of 'openai:gpt-4.1' cannot be reached: check the address and the network, then try again.",
        ),
        (api_error(400), "The provider of 'openai:gpt-4.1' refused the request (400): The provider's own words."),
        (ValueError("first\n second"), "'openai:gpt-4.1' failed: ValueError: first second"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_failure_has_a_message(error: Exception, sentence: str) -> None:
    assert describe(error, setting="llm", model=MODEL) == sentence


def test_an_unknown_model_is_recognised_by_status_code_or_text() -> None:
    errors = [api_error(404), api_error(400, "model_not_found"), ValueError("Unknown model 'x'. Please provide ...")]
    for error in errors:
        assert "change the setting 'embed_model'" in describe(error, setting="embed_model", model="m")


class ConnectTimeout(Exception):
    """No connection came about, by the name that httpx gives it."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "charged"),
    [
        (api_error(400), False),
        (api_error(429), False),
        (api_error(500), False),
        (api_error(503), False),
        (api_error(408), True),
        (api_error(502), True),
        (api_error(504), True),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (ConnectionRefusedError(), False),
        (caused(TimeoutError(), ConnectTimeout()), False),
        (json.JSONDecodeError("cut off", "{", 1), True),
        (ValueError("Unknown model 'x'. Please provide ..."), False),
        (KeyError("choices"), True),
    ],
    ids=repr,
)
def test_only_a_refused_or_unsent_call_costs_nothing_for_certain(error: Exception, charged: bool) -> None:
    assert may_be_charged(error) is charged


def test_a_long_error_is_shortened() -> None:
    assert len(describe(ValueError("x" * 10_000), setting="llm", model=MODEL)) < 400


# ---- coroutines from anywhere ----------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="none")


async def read() -> tuple[str, asyncio.AbstractEventLoop]:
    return VARIABLE.get(), asyncio.get_running_loop()


async def test_a_coroutine_inside_a_loop_runs_in_a_separate_loop_with_the_same_context() -> None:
    VARIABLE.set("inside")
    value, loop = run_sync(read)
    assert value == "inside"
    assert loop is not asyncio.get_running_loop()


async def test_errors_are_raised_from_the_other_loop() -> None:
    async def fail() -> Any:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run_sync(fail)


def test_blocking_calls_reuse_an_event_loop_with_a_context_of_their_own() -> None:
    VARIABLE.set("first")
    _, loop = run_sync(read)
    VARIABLE.set("second")
    assert run_sync(read) == ("second", loop)


async def test_blocking_calls_inside_a_loop_reuse_another_one() -> None:
    loops = {run_sync(read)[1] for _ in range(3)}
    assert len(loops) == 1
    assert asyncio.get_running_loop() not in loops


def test_concurrent_blocking_calls_have_loops_of_their_own() -> None:
    barrier = threading.Barrier(3)

    async def meet() -> asyncio.AbstractEventLoop:
        await asyncio.to_thread(barrier.wait, 300)
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(3) as threads:
        loops = {future.result() for future in [threads.submit(run_sync, meet) for _ in range(3)]}
    assert len(loops) == 3


def test_tasks_that_a_blocking_call_leaves_behind_are_cancelled() -> None:
    ended: list[str] = []

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def leave() -> None:
        tasks.append(asyncio.create_task(wait_for_ever()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    run_sync(leave)
    assert ended == ["cancelled"]
    assert tasks[0].cancelled()


@pytest.mark.parametrize(("error", "is_closed"), [(KeyboardInterrupt, True), (SystemExit, True), (ValueError, False)])
def test_the_loop_of_an_interrupted_call_is_not_used_again(error: type[BaseException], is_closed: bool) -> None:
    async def fail() -> None:
        raise error

    _, loop = run_sync(read)
    with pytest.raises(error):
        run_sync(fail)
    assert loop.is_closed() == is_closed
    assert (run_sync(read)[1] is loop) != is_closed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_event_loops_of_its_own() -> None:
    _, loop = run_sync(read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: libraries have threads
        child = os.fork()
    if child == 0:
        os._exit(7 if run_sync(read)[1] is not loop else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert run_sync(read)[1] is loop


class Twins:
    async def adouble(self, number: int, *, times: int = 1) -> int:
        """Double a number."""
        await asyncio.sleep(0)
        return number * 2**times

    double = twin(adouble)

    def halve(self, number: int, *, digits: int = 0) -> float:
        """Halve a number."""
        return round(number / 2, digits)

    ahalve = twin(halve)


@pytest.mark.parametrize("name", ["double", "halve"])
def test_a_derived_method_has_the_signature_and_the_documentation_of_its_twin(name: str) -> None:
    work, awaited = getattr(Twins, name), getattr(Twins, f"a{name}")
    assert inspect.signature(work) == inspect.signature(awaited)
    assert work.__doc__ == awaited.__doc__
    assert (work.__qualname__, awaited.__qualname__) == (f"Twins.{name}", f"Twins.a{name}")
    assert (inspect.iscoroutinefunction(work), inspect.iscoroutinefunction(awaited)) == (False, True)
    assert f"{name}(self, number: int" in pydoc.plain(pydoc.render_doc(Twins)).replace("'", "")


async def test_a_derived_method_runs_inside_and_outside_a_loop() -> None:
    assert (Twins().double(3, times=2), await asyncio.to_thread(Twins().double, 3)) == (12, 6)
    assert await Twins().ahalve(5, digits=1) == 2.5


def test_a_wrong_keyword_of_a_derived_method_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'time'"):
        Twins().double(3, time=2)  # type: ignore[call-arg]


def interrupt_calls(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], object]) -> None:
    """Let Ctrl-C interrupt each wait for the thread of another loop, after `wait`."""

    class Interrupted(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            future = super().submit(*arguments, **options)

            def result() -> None:
                wait()
                raise KeyboardInterrupt

            future.result = result  # type: ignore[method-assign, assignment]
            return future

    monkeypatch.setattr(calls, "ThreadPoolExecutor", Interrupted)


async def test_an_interrupted_call_stops_the_work_in_the_other_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    started, stopped = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    interrupt_calls(monkeypatch, lambda: started.wait(300))
    with pytest.raises(KeyboardInterrupt):
        run_sync(work)
    assert stopped.is_set()


async def test_a_second_interruption_ends_work_that_completes_something_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled, waits, is_cancelled = list[int](), list[int](), threading.Event()

    async def work() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                is_cancelled.set()
        raise asyncio.CancelledError

    def interrupted(*arguments: Any) -> None:
        waits.append(1)
        if len(waits) == 1:
            assert is_cancelled.wait(300)
            raise KeyboardInterrupt
        futures.wait(*arguments)

    interrupt_calls(monkeypatch, lambda: None)
    monkeypatch.setattr(calls, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sync(work)
    assert len(cancelled) == 2
