"""The loopback provider, used by real clients."""

from __future__ import annotations

import asyncio
import doctest
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from pydantic import BaseModel

from tests.support import log_check, server
from tests.support.batches import BatchPlan
from tests.support.cache import STEP, PrefixCache, serialize_prompt
from tests.support.limits import format_wait
from tests.support.recorder import PATIENCE
from tests.support.records import ApiError, Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT
from tests.support.tokens import TOKEN_BYTES, count, encode, encoding, pieces

OPTIONS: dict[str, Any] = {"api_key": "sk-test", "max_retries": 0, "reuse_client": False}
MODEL = "gpt-4o-mini"
PROMPT = "Situate <chunk>{}</chunk> within the document."


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider() as running:
        yield running


def llm_of(provider: LoopbackProvider, **options: Any) -> OpenAI:
    return OpenAI(**{"model": MODEL, "api_base": provider.api_base} | OPTIONS | options)


def embedding_of(provider: LoopbackProvider, **options: Any) -> OpenAIEmbedding:
    return OpenAIEmbedding(api_base=provider.api_base, **OPTIONS, **options)


def raw(provider: LoopbackProvider, **options: Any) -> openai.OpenAI:
    # Certificates, of no use on plain HTTP, would take most of the time to open a client.
    plain = openai.DefaultHttpxClient(verify=False)
    defaults: dict[str, Any] = {"api_key": "sk-test", "max_retries": 0, "http_client": plain}
    return openai.OpenAI(base_url=provider.api_base, **defaults | options)


@pytest.fixture
def client(provider: LoopbackProvider) -> Iterator[openai.OpenAI]:
    with raw(provider) as opened:
        yield opened


def ask(client: openai.OpenAI, text: str = "Hello", **options: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": [{"role": "user", "content": text}]} | options)


def test_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(server) == (0, 7)


# --- chat -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 200])
def test_default_contexts_are_deterministic_and_of_the_length_asked_for(provider: LoopbackProvider, size: int) -> None:
    provider.context_tokens = size
    llm = llm_of(provider)
    first, again, other = (
        llm.complete(PROMPT.format(chunk)).text for chunk in ("revenue grew fast", "revenue grew fast", "costs fell")
    )
    assert first == again != other
    assert abs(count(first) - size) <= 3
    assert "revenue" in first
    assert "costs" in other


@pytest.mark.asyncio
async def test_async_chat_and_streams_give_the_text_of_plain_chat(provider: LoopbackProvider) -> None:
    llm, messages = llm_of(provider), [ChatMessage(role="user", content=PROMPT.format("margins and cash"))]
    plain = (await llm.achat(messages)).message.content
    assert [part async for part in await llm.astream_chat(messages)][-1].message.content == plain
    streamed = await asyncio.to_thread(lambda: list(llm.stream_chat(messages)))
    assert streamed[-1].message.content == plain
    assert len(streamed) > 10


def test_stream_reports_usage_when_asked(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.enqueue("one two three")
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 3
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two three"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in ask(client, stream=True))


def test_usage_is_honest_and_recorded(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.enqueue("alpha beta")
    usage = ask(client, "Hello").usage
    # Start, "user", separator, "Hello", end; start, "assistant", separator.
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (8, 2, 10)
    (record,) = provider.history
    assert record.usage
    assert record.usage["prompt_tokens"] == 8
    assert record.reply == "alpha beta"
    assert record.status == 200
    assert record.arrived < record.completed  # type: ignore[operator]
    assert record.headers["authorization"] == "<redacted>"
    assert "sk-test" not in json.dumps(record.as_dict())


def test_output_limit_cuts_the_reply(provider: LoopbackProvider) -> None:
    response = llm_of(provider, max_tokens=12).complete("Hello")
    assert count(response.text) == 12
    assert response.raw.choices[0].finish_reason == "length"


class Situated(BaseModel):
    """A context with its chunk."""

    context: str
    ids: list[int]


def test_structured_replies_fit_the_schema(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "cash"}], response_format=Situated
    )
    assert isinstance(parsed.choices[0].message.parsed, Situated)
    called = llm_of(provider, model="gpt-4").structured_predict(Situated, PromptTemplate("Situate cash."))
    assert called.context
    assert called.ids == [0]
    assert provider.history[-1].body["tools"][0]["function"]["name"] == "Situated"
    assert "context" in json.loads(
        ask(client, "as json", response_format={"type": "json_object"}).choices[0].message.content
    )
    with pytest.raises(openai.BadRequestError, match="must contain the word 'json'"):
        ask(client, "plain", response_format={"type": "json_object"})


def test_replies_come_from_the_queue_then_from_the_function(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.reply = lambda request: f"about {request.chunk}"
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    provider.enqueue("first", Reply(tool_calls=[call], finish_reason="tool_calls"), ApiError(409, "busy"))
    assert ask(client).choices[0].message.content == "first"
    assert ask(client).choices[0].message.tool_calls[0].function.name == "f"
    with pytest.raises(openai.ConflictError):
        ask(client)
    assert ask(client, "<chunk>tax</chunk>").choices[0].message.content == "about tax"


def test_errors_of_a_reply_function_surface() -> None:
    def broken(request: Request) -> str:
        raise KeyError("oops")

    provider = LoopbackProvider(reply=broken)
    with pytest.raises(KeyError, match="oops"), provider, pytest.raises(openai.InternalServerError, match="oops"):
        ask(raw(provider))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"messages": []}, openai.BadRequestError),
        ({"n": 2}, openai.BadRequestError),
        ({"model": "no-such-model"}, openai.NotFoundError),
    ],
)
def test_wrong_requests_are_refused(client: openai.OpenAI, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ask(client, **options)


def test_keys_and_models_are_checked(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.require_key, provider.models = "sk-good", {"mine"}
    with pytest.raises(openai.AuthenticationError) as wrong:
        ask(client)
    assert wrong.value.code == "invalid_api_key"
    with raw(provider, api_key="sk-good") as allowed:
        assert [model.id for model in allowed.models.list()] == ["mine"]
        assert ask(allowed, model="mine").model == "mine"
        with pytest.raises(openai.NotFoundError) as unknown:
            ask(allowed)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            allowed.completions.create(model="mine", prompt="x")


# --- embeddings -------------------------------------------------------------------------------


def dot(first: list[float], second: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


@pytest.mark.asyncio
async def test_similar_texts_have_similar_unit_vectors(provider: LoopbackProvider) -> None:
    model = embedding_of(provider)
    texts = ["revenue grew three percent", "the revenue grew by three percent", "penguins live in the south"]
    near, nearer, far = await model.aget_text_embedding_batch(texts)
    assert len(near) == 1536
    assert dot(near, near) == pytest.approx(1.0)
    assert dot(near, nearer) > 0.7 > 0.3 > dot(near, far)
    assert await asyncio.to_thread(model.get_text_embedding, texts[0]) == near


def test_dimensions_and_encoding_formats(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    short = embedding_of(provider, dimensions=256).get_text_embedding("cash")
    assert len(short) == 256
    assert dot(short, short) == pytest.approx(1.0)
    create = client.embeddings.create
    options: dict[str, Any] = {"model": "text-embedding-3-small", "input": ["cash flow", "a b"]}
    packed, plain = create(**options), create(**options, encoding_format="float")
    assert provider.history[-2].body["encoding_format"] == "base64"
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding)
    tokens = create(model="text-embedding-3-small", input=[encoding().encode("a b")])
    assert tokens.data[0].embedding == packed.data[1].embedding
    assert tokens.usage.prompt_tokens == 2


@pytest.mark.parametrize(
    ("texts", "message", "accepted"),
    [
        (["a"] * 2049, "maximum length 2048, but got an array with length 2049", ["a"] * 2048),
        ([" a" * 8193], "maximum context length is 8192 tokens, however you requested 8193", [" a" * 8192]),
        ([" a" * 8000] * 37 + [" a" * 4001], "Requested 300001 tokens, max 300000", [" a" * 8000] * 37 + [" a" * 4000]),
        (["a", ""], "cannot be an empty string", ["a"]),
        ([], "input cannot be empty", ["a"]),
    ],
)
def test_embedding_limits(client: openai.OpenAI, texts: list[str], message: str, accepted: list[str]) -> None:
    create = client.embeddings.create
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        create(model="text-embedding-3-small", input=texts)
    assert isinstance(refused.value.body, dict)
    assert set(refused.value.body) == {"message", "type", "param", "code"}
    assert len(create(model="text-embedding-3-small", input=accepted, dimensions=8).data) == len(accepted)


# --- faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("rate_limit", openai.RateLimitError, "rate_limit_exceeded"),
        ("insufficient_quota", openai.RateLimitError, "insufficient_quota"),
        ("server_error", openai.InternalServerError, None),
        ("unavailable", openai.InternalServerError, None),
        ("content_filter_error", openai.BadRequestError, "content_filter"),
        ("model_not_found", openai.NotFoundError, "model_not_found"),
        ("invalid_key", openai.AuthenticationError, "invalid_api_key"),
    ],
)
def test_http_errors(
    provider: LoopbackProvider, kind: Any, error: type[openai.APIStatusError], code: str | None
) -> None:
    provider.fault(kind)
    with pytest.raises(error) as raised:
        llm_of(provider).complete("Hello")
    assert raised.value.code == code
    assert "retry-after" not in raised.value.response.headers
    assert llm_of(provider).complete("Hello").text
    assert [(call.fault, call.paid) for call in provider.history] == [(kind, False), (None, True)]


def test_retry_after_is_sent_as_given(provider: LoopbackProvider) -> None:
    provider.fault("rate_limit", retry_after=1.5)
    with pytest.raises(openai.RateLimitError) as raised:
        embedding_of(provider).get_text_embedding("cash")
    assert raised.value.response.headers["retry-after"] == "1.5"


@pytest.mark.parametrize(("kind", "status"), [("drop", 0), ("drop_in_body", 200)])
@pytest.mark.parametrize("stream", [False, True])
def test_dropped_connections(
    provider: LoopbackProvider, client: openai.OpenAI, kind: Any, status: int, stream: bool
) -> None:
    provider.fault(kind)
    with pytest.raises(Exception, match=r"Connection error|peer closed|disconnected"):
        list(ask(client, stream=stream))
    assert provider.history[0].status == status
    assert ask(client).choices


def test_hang_ends_with_the_client_or_with_its_time(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.fault("hang")
    with pytest.raises(openai.APITimeoutError):
        ask(client, timeout=0.05)
    # The client may have given up before the call arrived.
    provider.wait_until(lambda: [record.status for record in provider.history if record.completed] == [0])
    provider.fault("hang", seconds=0.05)
    started = time.perf_counter()
    assert ask(client).choices
    assert time.perf_counter() - started >= 0.05


def test_calls_given_up_during_the_latency_are_not_paid(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.latency = 30
    with pytest.raises(openai.APITimeoutError):
        ask(client, timeout=0.05)
    provider.wait_until(lambda: [record.paid for record in provider.history if record.completed] == [False])


def test_hang_ends_with_the_stop() -> None:
    with LoopbackProvider() as provider, ThreadPoolExecutor(1) as threads, raw(provider) as client:
        provider.fault("hang")
        waiting = threads.submit(ask, client)
        provider.wait_in_flight(1)
        provider.stop()
        assert isinstance(waiting.exception(PATIENCE), openai.APIConnectionError)
        assert provider.history[0].status == 0


def test_malformed_json_and_missing_usage(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.fault("malformed_json", times=2)
    with pytest.raises(json.JSONDecodeError):
        ask(client)
    with pytest.raises(json.JSONDecodeError):
        list(ask(client, stream=True))
    provider.fault("missing_usage")
    assert ask(client).usage is None
    assert provider.history[-1].usage is not None


@pytest.mark.parametrize(
    ("kind", "content", "finish_reason"),
    [
        ("empty", "", "stop"),
        ("refusal", None, "stop"),
        ("content_filter", '{"contexts": [{"id": 1', "content_filter"),
        ("length", '{"contexts": [{"id": 1', "length"),
        ("malformed_reply", '{"contexts": [{"id": 1', "stop"),
        ("wrong_ids", '{"contexts": [{"id": 1000001}, {"id": 1000002}]}', "stop"),
        ("duplicate_ids", '{"contexts": [{"id": 1}, {"id": 1}]}', "stop"),
    ],
)
def test_spoiled_replies(
    provider: LoopbackProvider, client: openai.OpenAI, kind: Any, content: str | None, finish_reason: str
) -> None:
    provider.enqueue('{"contexts": [{"id": 1}, {"id": 2}]}')
    provider.fault(kind)
    choice = ask(client).choices[0]
    assert (choice.message.content, choice.finish_reason) == (content, finish_reason)
    assert bool(choice.message.refusal) == (kind == "refusal")


def test_ids_in_other_forms_and_custom_changes(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.enqueue('<c id="a">x</c>', '{"a": "x", "b": "y"}', "abc")
    provider.fault("wrong_ids", times=2)
    provider.fault("mutate", mutate=str.upper)
    replies = [ask(client).choices[0].message.content for _ in range(3)]
    assert replies == ['<c id="a-unknown">x</c>', '{"a-unknown": "x", "b-unknown": "y"}', "ABC"]


def test_faults_hit_only_what_they_match(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.fault("server_error", times=None, match="poison")
    provider.fault("unavailable", match="/v1/models")
    provider.fault("rate_limit", times=1, after=1, match=lambda request: request.model == "slow")
    embedding_of(provider).get_text_embedding("fine")
    for _ in range(2):
        with pytest.raises(openai.InternalServerError):
            ask(client, "a poison word")
    with pytest.raises(openai.InternalServerError):
        client.models.list()
    ask(client, model="slow")
    with pytest.raises(openai.RateLimitError):
        ask(client, model="slow")
    ask(client, model="slow")
    with pytest.raises(ValueError, match="unknown fault"):
        provider.fault("nonsense")  # type: ignore[arg-type]


def test_random_faults_depend_on_seed_and_content_only() -> None:
    def failed(order: list[int], seed: int) -> set[int]:
        with LoopbackProvider() as provider, raw(provider) as client:
            provider.fail_randomly(0.3, seed=seed, kinds=["server_error", "rate_limit"], retry_after=1)
            hit = set()
            for number in order:
                try:
                    ask(client, f"chunk {number}")
                except (openai.InternalServerError, openai.RateLimitError):
                    hit.add(number)
            return hit

    numbers = list(range(40))
    first = failed(numbers, 1)
    assert first == failed(numbers[::-1], 1) != failed(numbers, 2)
    assert 4 <= len(first) <= 20


# --- limits, latency, concurrency -------------------------------------------------------------


def test_rate_limit_headers_and_enforced_limits(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    headers = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}]
    ).headers
    assert headers["x-ratelimit-remaining-requests"] == "9999"
    assert headers["x-ratelimit-remaining-tokens"] == "1999992"
    assert {"x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "x-request-id"} <= set(headers)
    provider.rpm, provider.rate_window = 2, 3600.0
    ask(client)
    ask(client)
    with pytest.raises(openai.RateLimitError, match="requests per min") as limited:
        ask(client)
    first, *_, last = (record.arrived for record in provider.history[-3:])
    # Two calls in an hour: the bucket, full at the first of them, gains one in half an hour.
    assert float(limited.value.response.headers["retry-after"]) == pytest.approx(1800 - (last - first), abs=0.001)
    provider.rpm, provider.tpm = None, 100
    with pytest.raises(openai.RateLimitError, match="tokens per min"):
        ask(client, "word " * 100)
    # A window of a tenth of a second refills within the waiting time told.
    provider.rpm, provider.tpm, provider.rate_window = 1, None, 0.1
    ask(client)
    with raw(provider, max_retries=5) as patient:
        assert ask(patient).choices


def test_format_of_waits() -> None:
    assert [format_wait(wait) for wait in (0, 0.12, 1.5, 60, 366.25)] == ["0ms", "120ms", "1.5s", "1m0s", "6m6.25s"]


def test_latency_is_fixed_or_by_request(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.latency = 0.05
    ask(client)
    (record,) = provider.history
    assert (record.completed or 0) - record.arrived >= 0.05
    provider.latency = lambda request: 3600.0 if request.chunk == "slow" else 0.0
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(ask, client, "slow")
        provider.wait_in_flight(1)
        ask(client, "fast")
        assert (provider.in_flight, slow.done()) == (1, False)
        provider.stop()
        assert isinstance(slow.exception(PATIENCE), openai.APIConnectionError)


@pytest.mark.asyncio
async def test_many_calls_in_flight(provider: LoopbackProvider) -> None:
    async with openai.AsyncOpenAI(base_url=provider.api_base, api_key="any", max_retries=0) as client:

        async def call(number: int) -> None:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": f"chunk {number}"}])

        with provider.hold():
            tasks = [asyncio.create_task(call(number)) for number in range(64)]
            await asyncio.to_thread(provider.wait_in_flight, 64)
            assert provider.in_flight == 64
            assert not any(task.done() for task in tasks)
        await asyncio.gather(*tasks)
    assert provider.in_flight_max == provider.in_flight_max_by_path["/v1/chat/completions"] == 64
    assert provider.in_flight == 0
    assert len({record.connection_id for record in provider.history}) == 64


def test_connections_are_kept(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    for _ in range(3):
        ask(client)
    assert len({record.connection_id for record in provider.history}) == 1


# --- prefix cache -----------------------------------------------------------------------------


def words(tokens: int) -> str:
    return "a" + " a" * (tokens - 1)


def cached(client: openai.OpenAI, messages: list[dict[str, str]], **options: Any) -> tuple[int, int]:
    usage = ask(client, messages=messages, **options).usage
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize(
    ("tokens", "expected"), [(1023, 0), (1024, 1024), (1100, 1024), (1151, 1024), (1152, 1152), (1280, 1280)]
)
def test_repeated_prompts_are_cached_in_steps(client: openai.OpenAI, tokens: int, expected: int) -> None:
    # Besides the content: start, "user", separator, end; start, "assistant", separator: 7 tokens.
    messages = [{"role": "user", "content": words(tokens - 7)}]
    assert cached(client, messages) == (tokens, 0)
    assert cached(client, messages) == (tokens, expected)


@pytest.mark.parametrize(("document", "expected"), [(1144, 1024), (1145, 1152)])
def test_common_prefix_ends_at_the_first_different_token(client: openai.OpenAI, document: int, expected: int) -> None:
    # Common: start, "system", separator, the document, end; start, "user", separator: document + 7.
    # After it: "x" or "y", end; start, "assistant", separator: 5 more.
    system = {"role": "system", "content": words(document)}
    one, two = ([system, {"role": "user", "content": text}] for text in ("x", "y"))
    assert cached(client, one) == (document + 12, 0)
    assert cached(client, two)[1] == expected


def test_models_and_keys_have_caches_of_their_own(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": words(1200)}]
    assert cached(client, messages) == (1207, 0)
    assert cached(client, messages, model="gpt-4.1-mini") == (1207, 0)
    assert cached(client, messages, prompt_cache_key="k") == (1207, 0)
    assert cached(client, messages, prompt_cache_key="k") == (1207, 1152)
    assert cached(client, messages) == (1207, 1152)


def test_failed_calls_leave_nothing_in_the_cache(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": words(1200)}]
    provider.fault("server_error")
    with pytest.raises(openai.InternalServerError):
        cached(client, messages)
    assert cached(client, messages) == (1207, 0)


def test_concurrent_first_calls_find_nothing(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": words(1200)}]
    with ThreadPoolExecutor(4) as threads:
        with provider.hold():
            waiting = [threads.submit(cached, client, messages) for _ in range(4)]
            provider.wait_in_flight(4)
        assert [call.result() for call in waiting] == [(1207, 0)] * 4
    assert cached(client, messages) == (1207, 1152)


# --- log --------------------------------------------------------------------------------------


def agreed(provider: LoopbackProvider, folder: Path) -> dict[str, int]:
    """Return the recomputed totals after comparing them with those of the provider."""
    checked = log_check.check(provider.write_log(folder / "log.jsonl"))
    assert {name: checked[name] for name in provider.totals()} == provider.totals()
    assert checked["mismatches"] == 0
    return checked


def test_log_check_agrees_on_a_mixed_log(provider: LoopbackProvider, client: openai.OpenAI, tmp_path: Path) -> None:
    system = {"role": "system", "content": "été\n\t  12345 " + "The report says it's 3.5% up.  " * 200}
    provider.fail_randomly(0.2, seed=3, kinds=["server_error", "length", "refusal", "missing_usage", "empty"])
    for number in [*range(12), 3, 4]:
        user = {"role": "user", "content": PROMPT.format(f"part {number}")}
        tool = {"type": "function", "function": {"name": "f", "parameters": Situated.model_json_schema()}}
        extra: dict[str, Any] = {"tools": [tool], "tool_choice": "required"} if number % 5 == 4 else {}
        try:
            ask(client, messages=[system, user], prompt_cache_key="k" if number % 3 else None, **extra)
        except openai.InternalServerError:
            continue
    provider.fail_randomly(0)
    embedding_of(provider).get_text_embedding_batch(["cash", "tax " * 50])
    checked = agreed(provider, tmp_path)
    assert checked["cached_tokens"] > 0
    assert checked["embedding_tokens"] == 52
    assert checked["repeated_prompts"] == checked["repeated_chunks"] == 2
    assert checked["calls"] == 15 > checked["paid_calls"]


def long_prompt(number: int) -> str:
    """Return a prompt of some 8,000 tokens, one of four documents and a chunk of it."""
    document = " ".join(f"Paragraph {part} tells of item {part * 7919 % 1000}." for part in range(900))
    return f"<document>{document[number % 4 :]}</document>\n" + PROMPT.format(f"item {number}")


@pytest.mark.asyncio
async def test_log_check_agrees_on_concurrent_calls_with_long_prompts(
    provider: LoopbackProvider, tmp_path: Path
) -> None:
    limit = asyncio.Semaphore(16)
    async with openai.AsyncOpenAI(base_url=provider.api_base, api_key="any", max_retries=0) as client:

        async def call(number: int) -> None:
            messages: list[Any] = [{"role": "user", "content": long_prompt(number)}]
            async with limit:
                await client.chat.completions.create(model=MODEL, messages=messages)

        with provider.hold():
            calls = [asyncio.create_task(call(number)) for number in range(110)]
            await asyncio.to_thread(provider.wait_in_flight, 16)
        await asyncio.gather(*calls)
    checked = agreed(provider, tmp_path)
    assert checked["paid_calls"] == 110
    assert checked["in_flight_max"] == 16
    # Each of the four documents is new until one of at most 16 calls with it is complete.
    assert checked["cached_tokens"] > (110 - 4 * 16) * 7_000
    assert checked["repeated_chunks"] == 0


def lines_run(call: Callable[[], object]) -> int:
    """Return how many lines of Python code a call runs, which a busy machine does not change."""
    lines, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_the_cache_takes_as_long_for_a_prompt_however_many_long_ones_it_holds() -> None:
    prefixes, taken = PrefixCache(), list[int]()
    for number in range(440):
        body = {"model": MODEL, "messages": [{"role": "user", "content": long_prompt(number)}]}
        request = Request(number, "POST", "/v1/chat/completions", {}, b"", body, 1, 0.0)
        prompt = serialize_prompt(request)
        assert len(prompt) // TOKEN_BYTES > 7_500
        assert (prefixes.lookup(request, prompt) > 7_500) == (number >= 4)
        taken.append(lines_run(partial(prefixes.lookup, request, prompt)))
        taken.append(lines_run(partial(prefixes.add, request, prompt)))
    steps = 7_500 // STEP
    assert steps < min(taken[8:]) <= max(taken[8:]) < 10 * steps


def test_log_check_counts_chunks_sent_again_only_after_a_success(
    provider: LoopbackProvider, client: openai.OpenAI, tmp_path: Path
) -> None:
    provider.fault("empty", match="retried")
    for text in ("retried", "retried", "again", "again", "again"):
        ask(client, PROMPT.format(text))
    ask(client, "Other words around <chunk>again</chunk>.")
    checked = agreed(provider, tmp_path)
    assert checked["repeated_prompts"] == 2
    assert checked["repeated_chunks"] == 3


def test_log_check_prints_and_reports_mismatches(
    provider: LoopbackProvider, client: openai.OpenAI, tmp_path: Path
) -> None:
    ask(client)
    path = provider.write_log(tmp_path / "log.jsonl")
    command = [sys.executable, "-m", "tests.support.log_check", str(path)]
    root = ROOT
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "paid_calls: 1\nprompt_tokens: 8\n" in done.stdout
    path.write_text(path.read_text().replace('"cached_tokens": 0, "finish', '"cached_tokens": 128, "finish'))
    assert log_check.check(path)["mismatches"] == 1


# --- batches ----------------------------------------------------------------------------------


def line(number: int, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": PROMPT.format(f"part {number}")}]
    body = {"model": MODEL, "messages": messages}
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body} | changes


def submit(client: openai.OpenAI, lines: list[dict[str, Any]]) -> str:
    content = "".join(json.dumps(item) + "\n" for item in lines).encode()
    file = client.files.create(file=("input.jsonl", content), purpose="batch")
    assert file.bytes == len(content)
    assert client.files.retrieve(file.id).purpose == "batch"
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "1"}
    )
    assert batch.status == "validating"
    return batch.id


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [json.loads(item) for item in client.files.content(file_id).text.splitlines()] if file_id else []


def test_batch_completes_by_polls(provider: LoopbackProvider, client: openai.OpenAI, tmp_path: Path) -> None:
    provider.batch_plan = BatchPlan(failing={"c3"}, stages=("validating", "in_progress", "finalizing"))
    batch_id = submit(client, [line(number) for number in range(20)])
    states = [client.batches.retrieve(batch_id) for _ in range(4)]
    assert [state.status for state in states] == ["in_progress", "finalizing", "completed", "completed"]
    done = states[-1]
    counts = done.request_counts
    assert counts
    assert (counts.total, counts.completed, counts.failed) == (20, 19, 1)
    output, errors = results(client, done.output_file_id), results(client, done.error_file_id)
    ids = [item["custom_id"] for item in output]
    assert len(set(ids)) == 19
    assert ids != sorted(ids, key=lambda item: int(item[1:]))
    assert all(item["response"]["body"]["choices"][0]["message"]["content"] for item in output)
    assert errors[0]["custom_id"] == "c3"
    assert errors[0]["response"]["status_code"] == 500
    used = sum(item["response"]["body"]["usage"]["total_tokens"] for item in output)
    assert done.usage
    assert done.usage.total_tokens == used
    assert agreed(provider, tmp_path)["batch_lines"] == 19


def test_batch_expires_with_partial_output(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    provider.batch_plan = BatchPlan(ending="expired", finished=4, polls=None)
    batch_id = submit(client, [line(number) for number in range(10)])
    assert client.batches.retrieve(batch_id).status == "validating"
    assert [provider.advance_batch(batch_id) for _ in range(3)] == ["in_progress", "expired", "expired"]
    done = client.batches.retrieve(batch_id)
    output, errors = results(client, done.output_file_id), results(client, done.error_file_id)
    assert len(output) == 4
    assert {item["error"]["code"] for item in errors} == {"batch_expired"}
    assert len({item["custom_id"] for item in output + errors}) == 10
    client.files.delete(str(done.output_file_id))
    with pytest.raises(openai.NotFoundError):
        client.files.content(str(done.output_file_id))


def test_batch_is_moved_to_a_status(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    batch_id = submit(client, [line(number) for number in range(4)])
    assert provider.advance_batch(batch_id, to="finalizing") == "finalizing"
    assert client.batches.retrieve(batch_id).status == "completed"
    failing = submit(client, [line(1)])
    assert provider.advance_batch(failing, to="failed") == "failed"
    assert client.batches.retrieve(failing).errors
    with pytest.raises(ValueError, match="unknown status"):
        provider.advance_batch(failing, to="done")


def test_batch_is_cancelled(client: openai.OpenAI) -> None:
    batch_id = submit(client, [line(number) for number in range(4)])
    assert client.batches.cancel(batch_id).status == "cancelling"
    done = client.batches.retrieve(batch_id)
    assert done.status == "cancelled"
    assert len(results(client, done.output_file_id)) == 2
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch_id)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([line(1), line(1)], "duplicate_custom_id"),
        ([line(1), line(2, url="/v1/embeddings")], "invalid_url"),
        ([line(1), line(2, body={"model": "other", "messages": []})], "mismatched_model"),
        ([line(1, custom_id="")], "missing_required_parameter"),
        ([], "empty_file"),
        ([line(number) for number in range(50_001)], "maximum_requests_exceeded"),
    ],
)
def test_batch_fails_validation(client: openai.OpenAI, lines: list[dict[str, Any]], code: str) -> None:
    done = client.batches.retrieve(submit(client, lines))
    assert done.status == "failed"
    assert done.errors
    assert done.errors.data
    assert done.errors.data[0].code == code


def test_batch_sizes_and_broken_lines(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    assert (provider.batch_max_requests, provider.batch_max_bytes) == (50_000, 200_000_000)
    provider.batch_max_bytes = 1000
    with pytest.raises(openai.APIStatusError, match="too large"):
        client.files.create(file=("input.jsonl", b"x" * 1001), purpose="batch")
    file = client.files.create(file=("input.jsonl", b'{"custom_id": \n'), purpose="batch")
    create = client.batches.create
    batch = create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert client.batches.retrieve(batch.id).errors.data[0].code == "invalid_json_line"  # type: ignore[union-attr,index]
    with pytest.raises(openai.NotFoundError):
        create(input_file_id="file-none", endpoint="/v1/chat/completions", completion_window="24h")


# --- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "The report's up 3.5%.  \n\n It ISN'T done... " * 400,
        "mixed ünï cödé 漢字 <|endoftext|> word " * 300,
        "x" * 5000,
        "",
    ],
)
@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_pieces_do_not_change_the_tokens(text: str, name: str) -> None:
    assert "".join(pieces(text)) == text
    assert count(text, name) == len(encoding(name).encode(text, disallowed_special=()))


def test_a_wall_of_spaces_can_be_counted() -> None:
    assert 0 < len(encode(" " * 1_200_000)) // TOKEN_BYTES < 1_200_000


def test_reset_forgets_everything(provider: LoopbackProvider, client: openai.OpenAI) -> None:
    released = threading.Event()
    provider.reply = lambda request: "late" if released.wait(PATIENCE) else "never"
    released.set()
    messages = [{"role": "user", "content": words(1200)}]
    cached(client, messages)
    provider.fault("drop", times=None)
    provider.enqueue("left over")
    provider.reset()
    assert not provider.history
    assert provider.in_flight_max == 0
    assert cached(client, messages) == (1207, 0)
    assert provider.history[0].reply == "late"
