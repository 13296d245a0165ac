"""Timeouts of synchronous models, which LlamaIndex runs in the event loop: a stalled model must not stop it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from llama_index.core.base.llms.types import CompletionResponse, CompletionResponseGen, LLMMetadata
from llama_index.core.llms import CustomLLM
from pydantic import PrivateAttr

from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.errors import ModelError
from tests.integration.retrievers.corpus import FixedRetriever, hits

LATER = 120.0  # never reached: an event ends each wait before
NO_BEGINNING = Timeouts(first_token=0.2, between_tokens=LATER, whole=LATER)
NO_END = Timeouts(first_token=LATER, between_tokens=0.2, whole=LATER)
PATIENT = Timeouts(first_token=LATER, between_tokens=LATER, whole=LATER)


class StallingLLM(CustomLLM):
    """A synchronous model that sends nothing, or only its first piece, until `go` is set."""

    begins: bool = False

    _go: threading.Event = PrivateAttr(default_factory=threading.Event)
    _running: int = PrivateAttr(default=0)
    _most_running: int = PrivateAttr(default=0)

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex asks a model about itself."""
        return LLMMetadata(model_name="stalling")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the whole answer."""
        return list(self.stream_complete(prompt))[-1]

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Stream the answer."""

        def pieces() -> Iterator[CompletionResponse]:
            self._running += 1
            self._most_running = max(self._most_running, self._running)
            text = ""
            for number, word in enumerate(("The pump runs ", "dry ", "[Source 1].")):
                if number == self.begins:
                    self._go.wait(LATER)
                text += word
                yield CompletionResponse(text=text, delta=word)
            self._running -= 1

        return pieces()


@pytest.fixture
def stalling() -> Iterator[StallingLLM]:
    llm = StallingLLM()
    yield llm
    llm._go.set()


def engine_of(llm: StallingLLM, timeouts: Timeouts = NO_BEGINNING, **options: Any) -> GroundedQueryEngine:
    return GroundedQueryEngine(FixedRetriever(hits(a=1.0)), llm, timeouts=timeouts, **options)


async def test_a_synchronous_model_that_does_not_begin_is_given_up_and_does_not_stop_the_event_loop(
    stalling: StallingLLM,
) -> None:
    with pytest.raises(ModelError, match=r"did not begin to answer within 0\.2 seconds"):
        await engine_of(stalling).aquery("Why?")
    assert not stalling._go.is_set()


@pytest.mark.parametrize("streaming", [False, True])
def test_what_a_synchronous_model_sent_before_it_stalled_is_a_partial_answer(
    stalling: StallingLLM, streaming: bool
) -> None:
    stalling.begins = True
    response: Any = engine_of(stalling, NO_END, streaming=streaming).query("Why?")
    answer = response.get_response() if streaming else response
    assert answer.response == "The pump runs"
    assert answer.partial == "The model sent nothing for 0.2 seconds (`between_tokens_timeout`)."


def test_a_model_that_was_given_up_is_busy_until_its_call_ends(stalling: StallingLLM) -> None:
    engine = engine_of(stalling)
    with pytest.raises(ModelError, match="did not begin"):
        engine.query("Why?")
    with pytest.raises(ModelError, match="did not begin"):
        engine.query("Why?")
    stalling._go.set()
    assert str(engine_of(stalling, PATIENT).query("Why?")) == "The pump runs dry [Source 1]."


def test_a_synchronous_model_answers_one_question_at_a_time(stalling: StallingLLM) -> None:
    engine = engine_of(stalling, PATIENT)

    async def ask() -> list[str]:
        asked = [asyncio.ensure_future(engine.aquery(f"Why {number}?")) for number in range(5)]
        stalling._go.set()
        return [str(answer) for answer in await asyncio.gather(*asked)]

    assert set(asyncio.run(ask())) == {"The pump runs dry [Source 1]."}
    assert stalling._most_running == 1


def test_an_error_of_a_synchronous_model_is_reported(stalling: StallingLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise MemoryError("no room for the model")

    monkeypatch.setattr(StallingLLM, "stream_complete", broken)
    with pytest.raises(ModelError, match="no room for the model"):
        engine_of(stalling, PATIENT).query("Why?")
    monkeypatch.undo()
    stalling._go.set()
    assert cast(GroundedResponse, engine_of(stalling, PATIENT).query("Why?")).partial is None
