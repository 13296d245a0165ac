"""The LLM contextualizer through LlamaIndex's own OpenAI class, against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.llms.openai import OpenAI
from pydantic import PrivateAttr

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy
from llama_index_contextual.contextualizer import Contextualized, LLMContextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.prompts import MAX_CONTEXT_TOKENS
from llama_index_contextual.errors import ContextualizationError, ModelError
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.retirement import how_to_switch
from llama_index_contextual.storage.ledger import Ledger
from llama_index_contextual.storage.ledger_lines import export_contexts
from tests.integration.contextualizer.samples import chunks, loose
from tests.support.faults import FaultKind
from tests.support.nodes import written
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider

MODEL = "openai:gpt-4o-mini"
QUICK = RetryPolicy(attempts=3, base_delay=0.001)
TEXTS = ("Alpha pumps water.", "Beta pumps oil.", "Gamma pumps steam.")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(context_tokens=20) as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


def contextualizer(**options: object) -> LLMContextualizer:
    return LLMContextualizer(**{"model": MODEL, "retry": QUICK, **options})  # type: ignore[arg-type]


def run(**options: object) -> Contextualized:
    return contextualizer(**options).contextualize(loose(*TEXTS))


def sources(done: Contextualized) -> list[str]:
    return [node.metadata["context_source"] for node in done.nodes]


def prompts(provider: LoopbackProvider) -> list[str]:
    return [record.body["messages"][0]["content"] for record in provider.chat_calls]


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_each_chunk_gets_the_answer_of_its_own_call(provider: LoopbackProvider) -> None:
    nodes = chunks()
    done = contextualizer().contextualize(nodes)
    assert (done.failures, done.paid) == ([], len(nodes))
    answers = {record.body["messages"][0]["content"].split("<chunk>\n")[1]: record.reply for record in provider.history}
    assert len(answers) == len(provider.chat_calls) == len(nodes)
    for node in done.nodes:
        (answer,) = [reply for calls, reply in answers.items() if node.get_content().strip() in calls]
        assert written(node) == answer
    assert {record.body["model"] for record in provider.chat_calls} == {"gpt-4o-mini"}
    assert {record.body["temperature"] for record in provider.chat_calls} == {0.0}


def test_the_prompts_of_a_segment_share_every_byte_up_to_the_chunk(provider: LoopbackProvider) -> None:
    nodes = chunks()
    contextualizer()(nodes)
    shared = {prompt.partition("\n<chunk>\n")[0].encode() for prompt in prompts(provider)}
    segments = {(node.ref_doc_id, node.metadata["segment_index"]) for node in nodes}
    assert len(shared) == len(segments) < len(nodes)


def test_the_shared_prefix_is_read_from_the_providers_cache(provider: LoopbackProvider, tmp_path: Path) -> None:
    long = [f"{text} " * 130 for text in TEXTS]
    ledger = Ledger(tmp_path / "ledger.sqlite")
    contextualizer(num_workers=1, ledger=ledger)(loose(*long))
    export_contexts(ledger, tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sorted(row["cached_tokens"] > 1024 for row in rows) == [False, True, True]
    assert sum(row["input_tokens"] for row in rows) == provider.totals()["prompt_tokens"]
    assert sum(row["cached_tokens"] for row in rows) == provider.totals()["cached_tokens"]
    assert sum(row["output_tokens"] for row in rows) == provider.totals()["completion_tokens"]


def test_the_concurrency_limit_is_used_and_not_exceeded(provider: LoopbackProvider) -> None:
    nodes = loose(*(f"Part {n} of it." for n in range(9)))
    with ThreadPoolExecutor(1) as thread:
        with provider.hold():
            running = thread.submit(contextualizer(num_workers=3).contextualize, nodes)
            provider.wait_in_flight(3)
        assert running.result().failures == []
    assert provider.in_flight_max == 3
    assert len(provider.chat_calls) == 9


def test_a_second_run_sends_nothing(provider: LoopbackProvider, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    first = run(ledger=ledger)
    sent = len(provider.chat_calls)
    second = run(ledger=Ledger(tmp_path / "ledger.sqlite"))
    assert len(provider.chat_calls) == sent == len(TEXTS)
    assert (second.nodes, second.paid) == (first.nodes, 0)


def test_usage_that_the_server_leaves_out_is_unknown(provider: LoopbackProvider, tmp_path: Path) -> None:
    provider.fault("missing_usage", times=None)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    assert run(ledger=ledger).failures == []
    assert (ledger.info().contexts, ledger.info().input_tokens) == (len(TEXTS), 0)


# ---- what may succeed later ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry_after", [0.001, "0", None])
def test_a_rate_limit_waits_as_long_as_the_provider_requests(
    retry_after: float | str | None, provider: LoopbackProvider
) -> None:
    provider.fault("rate_limit", times=2, retry_after=retry_after, match="Beta pumps oil.\n</chunk>")
    # Without Retry-After the policy's own delay counts; with it, it must not: the delay would be an hour.
    policy = QUICK if retry_after is None else RetryPolicy(attempts=3, base_delay=3600, max_delay=3600)
    done = run(retry=policy)
    assert (done.failures, sources(done)) == ([], ["llm"] * 3)
    assert len(provider.chat_calls) == len(TEXTS) + 2


def test_a_wait_that_is_too_long_is_not_started(provider: LoopbackProvider) -> None:
    provider.fault("rate_limit", times=None, retry_after=3600, match="Beta pumps oil.\n</chunk>")
    done = run()
    assert len(provider.chat_calls) == len(TEXTS)
    assert "keeps returning 429 (rate limit): lower the concurrency, or try again later" in done.failures[0].error


@pytest.mark.parametrize("kind", ["server_error", "unavailable", "drop", "drop_in_body", "malformed_json"])
def test_a_short_outage_is_retried_without_an_error(kind: FaultKind, provider: LoopbackProvider) -> None:
    provider.fault(kind, match="Beta pumps oil.\n</chunk>")
    done = run()
    assert (done.failures, sources(done)) == ([], ["llm"] * 3)
    assert len(provider.chat_calls) == len(TEXTS) + 1


class ImpatientOnce(OpenAI):
    """Waits half a second for the first answer about Beta, and as long as it takes for all others."""

    _provider: LoopbackProvider = PrivateAttr()
    _waited: list[str] = PrivateAttr(default_factory=list)

    async def achat(self, messages: Sequence[ChatMessage], **options: Any) -> ChatResponse:
        """Ask; the second question about Beta is sent when the first one has arrived."""
        if "Beta pumps oil.\n</chunk>" in str(messages[0].content):
            if self._waited:
                await asyncio.to_thread(self._provider.wait_until, self._is_hanging)
            else:
                options["timeout"] = httpx.Timeout(PATIENCE, read=0.5)
            self._waited.append("Beta")
        return await super().achat(messages, **options)

    def _is_hanging(self) -> bool:
        return any(call.fault == "hang" for call in self._provider.chat_calls)


def test_a_call_without_an_answer_is_sent_again(provider: LoopbackProvider) -> None:
    provider.fault("hang", match="Beta pumps oil.\n</chunk>")
    llm = ImpatientOnce(model="gpt-4o-mini", api_base=provider.api_base, api_key="k", max_retries=0, reuse_client=False)
    llm._provider = provider
    assert run(llm=llm).failures == []
    assert len(provider.chat_calls) == len(TEXTS) + 1
    assert llm._waited == ["Beta", "Beta"]


# ---- what fails for one chunk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "calls", "sentence"),
    [
        ("server_error", 3, "keeps returning 500 (server error): run the same call again later"),
        ("drop", 3, "cannot be reached: check the address and the network, then try again"),
        ("content_filter_error", 1, "failed: BadRequestError: "),
        ("empty", 4, "answered with an empty context"),
        ("refusal", 1, "refused to write a context"),
        ("content_filter", 1, "refused to write a context"),
    ],
)
def test_a_chunk_that_fails_for_good_gets_the_structural_context(
    kind: FaultKind, calls: int, sentence: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None, match="Beta pumps oil.\n</chunk>")
    nodes = loose(*TEXTS, title="Pumps")
    done = contextualizer().contextualize(nodes)
    assert sources(done) == ["llm", "structural", "llm"]
    (failure,) = done.failures
    assert (failure.node_id, failure.doc_id) == (nodes[1].node_id, "loose")
    assert sentence in failure.error
    assert MODEL in failure.error
    assert done.nodes[1].metadata["context"] == StructuralContextualizer()(nodes)[1].metadata["context"]
    assert sum("Beta pumps oil.\n</chunk>" in prompt for prompt in prompts(provider)) == calls
    assert done.paid == 2


def test_failures_can_be_raised_instead(provider: LoopbackProvider) -> None:
    provider.fault("server_error", times=None, match="Beta pumps oil.\n</chunk>")
    with pytest.raises(ContextualizationError, match="keeps returning 500") as raised:
        run(on_error="raise", num_workers=1)
    assert raised.value.node_ids == ("loose-1",)
    assert type(raised.value.__cause__).__name__ == "InternalServerError"
    assert len(provider.chat_calls) == 2 + QUICK.attempts, "the third chunk is sent while the second one waits"


def test_a_tenth_of_calls_failing_does_not_fail_a_run(provider: LoopbackProvider) -> None:
    provider.fail_randomly(0.2, seed=4, kinds=["server_error", "rate_limit", "drop"], retry_after=0.001)
    done = contextualizer(retry=RetryPolicy(attempts=8, base_delay=0.001)).contextualize(
        loose(*(f"Part {n} of it." for n in range(12)))
    )
    assert (done.failures, set(sources(done))) == ([], {"llm"})
    assert len(provider.chat_calls) > 12


def test_a_long_answer_is_cut_at_a_sentence(provider: LoopbackProvider) -> None:
    provider.enqueue("<context>Context: " + "The pump of the mill needs oil. " * 60 + "</context>")
    (node,) = contextualizer()(loose("One."))
    context = node.metadata["context"]
    assert context.startswith("The pump")
    assert context.endswith("needs oil.")
    assert MAX_CONTEXT_TOKENS - 10 < count_tokens(context) <= MAX_CONTEXT_TOKENS


# ---- what fails for all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("invalid_key", "The provider of 'openai:gpt-4o-mini' refused the API key: check the key in the environment."),
        (
            "model_not_found",
            "The provider does not offer the model 'openai:gpt-4o-mini', whose retirement was announced for 2027-01-14."
            f" {how_to_switch()}",
        ),
        (
            "insufficient_quota",
            "The account behind 'openai:gpt-4o-mini' has no quota left: top it up, then run the same call again.",
        ),
    ],
)
def test_an_error_that_concerns_all_chunks_stops_the_run_with_a_message(
    kind: FaultKind, sentence: str, provider: LoopbackProvider
) -> None:
    provider.fault(kind, times=None)
    with pytest.raises(ModelError) as raised:
        run(num_workers=1)
    assert str(raised.value) == sentence
    assert raised.value.setting == "llm"
    assert isinstance(raised.value.__cause__, ProviderError)
    assert raised.value.__cause__.status_code in (401, 404, 429)
    assert len(provider.chat_calls) == 1, "neither is the call repeated nor the next chunk sent"


def test_a_key_that_the_provider_refuses_is_not_shown(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.require_key = "sk-right"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-0123456789")
    with pytest.raises(ModelError, match="refused the API key") as raised:
        run()
    assert "0123456789" not in str(raised.value)


def test_an_unknown_model_name_is_an_error_with_a_message(provider: LoopbackProvider) -> None:
    with pytest.raises(ModelError, match="does not offer the model 'openai:gpt-nonsense': change the setting 'llm'"):
        run(model="openai:gpt-nonsense")
    assert provider.history == []


def test_an_unreachable_server_is_an_error_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))  # and nobody listens there, nor can while it is taken
        monkeypatch.setenv("OPENAI_API_BASE", f"http://127.0.0.1:{used.getsockname()[1]}/v1")
        with pytest.raises(ModelError) as raised:
            run()
    assert str(raised.value) == (
        "The provider of 'openai:gpt-4o-mini' cannot be reached: check the address and the network, then try again."
        " The run was stopped after 3 failures in a row."
    )


# ---- event loops -----------------------------------------------------------------------------------------------------


async def test_a_cancelled_run_leaves_neither_task_nor_call(provider: LoopbackProvider) -> None:
    with provider.hold():
        task = asyncio.create_task(contextualizer(num_workers=2).acontextualize(loose(*TEXTS)))
        await asyncio.to_thread(provider.wait_in_flight, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(provider.wait_until, lambda: provider.in_flight == 0)
    assert len(provider.chat_calls) == 2
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def ask(llm: OpenAI) -> None:
    await llm.achat([ChatMessage(content="Hello")])


def kept(provider: LoopbackProvider) -> OpenAI:
    """Return the stock class with its default: one client for all calls."""
    return OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="k", max_retries=0)


@pytest.mark.usefixtures("lasting_connections")
def test_a_reused_client_fails_in_a_second_event_loop(
    provider: LoopbackProvider,
) -> None:
    stock = kept(provider)
    asyncio.run(ask(stock))
    with pytest.raises(openai.APIConnectionError):
        asyncio.run(ask(stock))
    provider.wait_until(lambda: len(provider.chat_calls) == 2)


@pytest.mark.usefixtures("lasting_connections")
@pytest.mark.parametrize("given", ["by name", "as an object"])
def test_one_contextualizer_serves_several_event_loops_and_pays_once(
    given: str, provider: LoopbackProvider, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what others have left open
    caplog.clear()
    ours = contextualizer(num_workers=2, **({"llm": kept(provider)} if given == "as an object" else {}))
    for _ in range(2):
        assert sources(Contextualized(asyncio.run(ours.acall(loose(*TEXTS))), [], 0)) == ["llm"] * 3
        assert sources(ours.contextualize(loose(*TEXTS))) == ["llm"] * 3
    assert len(provider.chat_calls) == 4 * len(TEXTS)
    connections = {record.connection_id for record in provider.chat_calls}
    assert len(connections) <= 4 * 2, "a connection for each worker and loop, not for each call"
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == [], "clients are closed in their loop"


# ---- how often a failing call is sent --------------------------------------------------------------------------------


def test_a_policy_without_delays_sends_no_additional_calls(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda least, _most: least)
    provider.fault("server_error", times=None)
    done = contextualizer(retry=RetryPolicy(attempts=4, base_delay=0.02)).contextualize(loose("One."))
    assert len(done.failures) == 1
    assert len(provider.chat_calls) == 4


def test_llama_index_multiplies_attempts_and_this_package_follows_its_policy(
    provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.fault("server_error", times=None)
    done = contextualizer(retry=RetryPolicy(attempts=4, base_delay=0.001)).contextualize(loose("One."))
    assert len(done.failures) == 1
    assert len(provider.chat_calls) == 4

    provider.clear_history()
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    stock = OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="k")
    with pytest.raises(openai.InternalServerError):
        stock.chat([ChatMessage(content="Hello")])
    assert len(provider.chat_calls) == 12
