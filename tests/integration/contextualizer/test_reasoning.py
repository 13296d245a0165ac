"""Reasoning in the text of a reply reaches no context, no file of a project and no search."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.project.manager import ProjectManager
from tests.integration.contextualizer.samples import loose
from tests.support import ollama
from tests.support.nodes import written
from tests.support.reasoning import REPLIES, THOUGHT, WITHOUT_ANSWER, marks_in
from tests.support.reasoning import written as reply_of
from tests.support.records import CHAT_PATH, Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

MODEL = "openai:gpt-4o-mini"
CONTEXT = "From the lease of the workshop, on the notice period for both parties."
TEXTS = [f"Either party may end the lease within {days} days." for days in range(2, 2 + len(REPLIES))]


def test_contexts_have_no_reasoning_in_any_file_or_search(
    tmp_path: Path, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
    forms = itertools.cycle(REPLIES.values())
    provider.reply = lambda _: reply_of(next(forms), answer=CONTEXT)
    folder = tmp_path / "leases"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"lease-{number}.txt").write_text(text)
    project = ProjectManager(tmp_path / "knowledge").create("leases", ProjectConfig.local(llm=MODEL, context="llm"))
    report = project.ingest([folder])
    assert (list(report.failures), len(provider.chat_calls)) == ([], len(REPLIES))
    for path in project.directory.rglob("*"):
        assert not path.is_file() or b"secretly" not in path.read_bytes(), path
    hits = project.retrieve("the notice period", top_k=100)
    assert {hit.context.splitlines()[-1] for hit in hits if hit.context} == {CONTEXT}
    assert not [mark for hit in hits for mark in marks_in(hit.context)]
    assert not project.retrieve("secretly", mode="lexical").results


@pytest.mark.parametrize("name", WITHOUT_ANSWER)
def test_reasoning_alone_is_requested_once_more_with_more_room(provider: LoopbackProvider, name: str) -> None:
    provider.enqueue(reply_of(WITHOUT_ANSWER[name]), CONTEXT)
    done = LLMContextualizer(model=MODEL).contextualize(loose(TEXTS[0]))
    assert (done.failures, [written(node) for node in done.nodes]) == ([], [CONTEXT])
    first, second = (call.body["max_tokens"] for call in provider.chat_calls)
    assert second >= 4 * first


def test_an_opening_that_was_cut_off_while_the_model_reasoned_is_no_context(provider: LoopbackProvider) -> None:
    cut = Reply(f"{THOUGHT} {THOUGHT}", finish_reason="length")
    provider.enqueue(cut, cut)
    done = LLMContextualizer(model=MODEL).contextualize(loose(TEXTS[0]))
    (failure,) = done.failures
    assert failure.error == f"'{MODEL}' reached its token limit while it reasoned, also with a higher limit."
    assert len(provider.chat_calls) == 2


def test_an_honest_context_may_mention_a_mark(provider: LoopbackProvider) -> None:
    def reply(request: Request) -> str:
        return "From the manual of the parser, on the tag <think> that begins the reasoning of a model."

    provider.reply = reply
    done = LLMContextualizer(model=MODEL).contextualize(loose(TEXTS[0]))
    (node,) = done.nodes
    assert written(node).endswith("that begins the reasoning of a model.")


@pytest.fixture
def local(provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch) -> LoopbackProvider:
    """Return the provider as a server of local models."""
    pytest.importorskip("llama_index.llms.ollama", reason="needs llama-index-llms-ollama")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
    monkeypatch.setenv("OLLAMA_HOST", provider.url)
    return provider


@pytest.mark.parametrize("name", ["openai-like:qwen", "ollama:qwen"])
def test_a_local_model_gets_room_for_its_reasoning_after_it_was_cut_off_once(
    local: LoopbackProvider, name: str
) -> None:
    local.reply = lambda _: f"<think>{'The lease is about notice. ' * 100}</think>{CONTEXT}"
    nodes = [node for text in TEXTS[:4] for node in loose(text)]
    done = LLMContextualizer(model=name, num_workers=1).contextualize(nodes)
    assert (done.failures, {written(node) for node in done.nodes}) == ([], {CONTEXT})
    limits = [
        call.body["options"]["num_predict"] if name.startswith("ollama") else call.body["max_tokens"]
        for call in [*local.calls(CHAT_PATH), *local.calls(ollama.CHAT)]
    ]
    assert limits == [400, 8_000, 8_000, 8_000, 8_000]


@pytest.mark.parametrize("name", ["openai-like:tiny", "ollama:tiny"])
def test_a_small_model_that_does_not_stop_is_cut_off(local: LoopbackProvider, name: str) -> None:
    local.reply = lambda _: f"{CONTEXT} " * 1_000
    done = LLMContextualizer(model=name).contextualize(loose(TEXTS[0]))
    assert (done.failures, [written(node).startswith(CONTEXT) for node in done.nodes]) == ([], [True])
    assert len([*local.calls(CHAT_PATH), *local.calls(ollama.CHAT)]) == 1
