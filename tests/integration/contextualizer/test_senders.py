"""Requests to each provider, and the fields of its answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from llama_index.core.base.llms.types import CachePoint, ChatMessage, ChatResponse, TextBlock
from llama_index.core.llms import LLM
from llama_index.llms.openai import OpenAI
from openai.types.shared.reasoning_effort import ReasoningEffort
from pydantic import PrivateAttr

from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.contextualizer.prompts import Reply, reply_of
from llama_index_contextual.contextualizer.sending import LiveSender
from llama_index_contextual.contextualizer.tokens import CacheRules, TokenCounter
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.models import PROVIDERS
from llama_index_contextual.money.tokens import Usage, usage_of
from tests.integration.contextualizer.segments_of import corpus
from tests.support.models import ScriptedLLM
from tests.support.records import ApiError, Request
from tests.support.replies import Reply as Said
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT
from tests.unit.readers.examples import sections


class Recording(ScriptedLLM):
    """Remembers messages and options as they came."""

    _sent: list[tuple[list[ChatMessage], dict[str, Any]]] = PrivateAttr(default_factory=list)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Note the call, and answer."""
        self._sent.append((list(messages), kwargs))
        return await super().achat(messages)


def of_class(name: str) -> type[Recording]:
    """Return a model that gives this as the name of its class."""
    return type(name, (Recording,), {"class_name": classmethod(lambda _: name), "__module__": __name__})


Anthropic, Ollama, Like = map(of_class, ("Anthropic_LLM", "Ollama_llm", "OpenAILike"))


def test_openai_requests_have_one_text_and_a_cache_key_per_segment() -> None:
    with LoopbackProvider() as provider:
        llm = OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="k", max_retries=0)
        LLMContextualizer(llm=llm)(corpus(2, 2, words=9))
        LLMContextualizer(llm=llm, service_tier="flex")(corpus(1, 1, words=9))
    *single, flex = [call.body for call in provider.chat_calls]
    names = {"messages", "model", "stream", "temperature", "prompt_cache_key", "max_tokens"}
    assert all(set(body) == names for body in single)
    assert {body["max_tokens"] for body in single} == {400}, "twice the longest context"
    assert len({body["prompt_cache_key"] for body in single}) == 2
    assert all(len(body["prompt_cache_key"]) <= 64 for body in single)
    assert flex["service_tier"] == "flex"


def options_of(llm: LLM) -> dict[str, Any]:
    request = SimpleNamespace(prefix=SimpleNamespace(cache_key="k"), answer_tokens=None, line_languages=())
    return LiveSender(llm)._options(request)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "effort", "hidden"),
    [
        ("gpt-6-luna", "none", 0),
        ("gpt-5.1", "none", 0),
        ("gpt-5-mini", "minimal", 1_000),
        ("o3-mini", "low", 4_000),
        ("gpt-5.2-chat-latest", None, 16_000),
        ("gpt-5-pro", None, 16_000),
    ],
)
def test_a_reasoning_model_gets_the_lowest_effort_and_room_for_reasoning(
    model: str, effort: str | None, hidden: int
) -> None:
    options = options_of(OpenAI(model=model, api_key="k"))
    assert options.get("reasoning_effort") == effort
    assert options["max_tokens"] == 400 + hidden


def test_every_effort_that_is_sent_is_one_that_the_client_knows() -> None:
    known = {value for part in get_args(ReasoningEffort) for value in get_args(part)}
    assert {effort for _, effort in PROVIDERS["openai"].efforts} - {None} <= known


def test_values_set_by_the_user_on_a_model_are_kept() -> None:
    chosen = options_of(OpenAI(model="gpt-6-luna", api_key="k", reasoning_effort="high"))
    assert "reasoning_effort" not in chosen
    assert chosen["max_tokens"] == 400 + 32_000
    more = options_of(OpenAI(model="o3", api_key="k", additional_kwargs={"reasoning_effort": "medium"}))
    assert "reasoning_effort" not in more
    for own in ({"max_tokens": 150}, {"additional_kwargs": {"max_completion_tokens": 150}}):
        assert "max_tokens" not in options_of(OpenAI(model="gpt-4.1", api_key="k", **own))


def test_the_lowest_effort_and_the_limit_use_the_providers_parameter_names() -> None:
    with LoopbackProvider() as provider:
        llm = OpenAI(model="gpt-5-mini", api_base=provider.api_base, api_key="k", max_retries=0)
        LLMContextualizer(llm=llm)(corpus(1, 1, words=9))
    (call,) = provider.chat_calls
    assert (call.body["reasoning_effort"], call.body["max_completion_tokens"]) == ("minimal", 1_400)
    assert "max_tokens" not in call.body


def test_a_call_with_a_long_answer_does_not_exceed_max_cost() -> None:
    with LoopbackProvider(reply=lambda request: Said("Long and longer. " * 5_000)) as provider:
        llm = OpenAI(model="gpt-4.1", api_base=provider.api_base, api_key="k", max_retries=0)
        nodes = LLMContextualizer(llm=llm)(corpus(1, 3, words=9))
    assert provider.totals()["completion_tokens"] <= 3 * 400
    assert all(node.metadata["context_source"] == "llm" for node in nodes)


def test_anthropic_gets_a_cache_point_between_segment_and_chunk() -> None:
    llm = Anthropic(model_name="claude-sonnet-4-5")
    LLMContextualizer(llm=llm)(corpus(1, 4, words=400))
    for (message,), options in llm._sent[:2]:
        prefix, point, suffix = message.blocks
        assert isinstance(prefix, TextBlock)
        assert isinstance(point, CachePoint)
        assert isinstance(suffix, TextBlock)
        assert prefix.text.endswith("<chunk>\n")
        assert suffix.text.startswith("Part ")
        assert point.cache_control.type == "ephemeral"
        assert options == {"max_tokens": 400}


def test_a_model_that_refuses_the_lowest_effort_is_called_without_one() -> None:
    def answer(request: Request) -> Said:
        if "reasoning_effort" in request.fields:
            message = "Unsupported value: 'none' is not supported with the 'gpt-5.4' model."
            raise ApiError(400, message, param="reasoning_effort", code="unsupported_value")
        return Said("A context about pumps, as long as it has to be to situate a passage in its report.")

    with LoopbackProvider(reply=answer) as provider:
        llm = OpenAI(model="gpt-5.4", api_base=provider.api_base, api_key="k", max_retries=0)
        nodes = LLMContextualizer(llm=llm, num_workers=1)(corpus(1, 3, words=9))
    assert [call.status for call in provider.chat_calls] == [400, 200, 200, 200]
    assert all(node.metadata["context_source"] == "llm" for node in nodes)


@pytest.mark.parametrize(
    ("model", "least"),
    [("claude-sonnet-4-5", 1024), ("claude-opus-4-7", 2048), ("claude-haiku-4-5", 4096), ("claude-opus-4-6", 4096)],
)
def test_a_prefix_too_short_for_the_model_is_not_marked_for_caching(model: str, least: int) -> None:
    sender = LiveSender(Anthropic(model_name=model))
    blocks = {}
    for tokens in (least - 1, least):
        prefix = SimpleNamespace(text="Shared.", tokens=tokens)
        request = SimpleNamespace(prefix=prefix, suffix="Own.", prompt="Shared.Own.")
        blocks[tokens] = len(sender._message(request).blocks)  # type: ignore[arg-type]
    assert blocks == {least - 1: 1, least: 3}
    assert TokenCounter.for_model(f"anthropic:{model}").cache == CacheRules(least, 1)


@pytest.mark.parametrize(("kind", "expected"), [(Like, {"max_tokens": 400}), (Ollama, {}), (Recording, {})])
def test_other_providers_get_one_text_without_their_own_options(
    kind: type[Recording], expected: dict[str, Any]
) -> None:
    llm = kind()
    LLMContextualizer(llm=llm)(corpus(1, 1, words=9))
    ((message,), options) = llm._sent[0]
    assert isinstance(message.content, str)
    assert "<chunk>" in message.content
    assert options == expected


def test_ollama_processes_one_segment_at_a_time() -> None:
    llm = Ollama()
    LLMContextualizer(llm=llm, num_workers=8)(corpus(3, 3, words=9))
    assert llm.most_running == 1
    documents = [prompt.partition("of document ")[2][0] for prompt in llm.history]
    assert documents == ["0"] * 3 + ["1"] * 3 + ["2"] * 3


@pytest.mark.parametrize("kind", [Like, Anthropic, Recording])
def test_an_unsupported_service_tier_is_refused(kind: type[Recording]) -> None:
    with pytest.raises(ConfigurationError, match="has no service tier 'flex': set service_tier to None"):
        LLMContextualizer(llm=kind(), service_tier="flex")(corpus(1, 1, words=9))


# ---- answers ---------------------------------------------------------------------------------------------------------


ANSWERS = {
    title.partition(":")[0]: [line.split(" => ") for line in block.split("\n")]
    for title, (block, *_) in sections("answers", ROOT / "tests" / "unit" / "contextualizer").items()
}


def objects(text: str) -> Any:
    """Return a value of JSON with objects that have attributes."""
    return json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))


@pytest.mark.parametrize(("usage", "counts"), ANSWERS["usage"])
def test_token_counts_of_all_providers_have_one_form(usage: str, counts: str) -> None:
    expected = Usage(*map(json.loads, counts.split()))
    assert usage_of(json.loads(usage)) == usage_of(objects(usage)) == expected
    assert usage_of(None) == Usage()


@pytest.mark.parametrize(("raw", "reply"), ANSWERS["replies"])
def test_finish_reasons_of_all_providers_have_one_form(raw: str, reply: str) -> None:
    text, reason = json.loads(reply)
    assert reply_of(json.loads(raw)) == Reply(text, finish_reason=reason)
