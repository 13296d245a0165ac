"""A question is embedded in this process without events, unless something listens to them."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler

from llama_index_contextual.embeddings.queries import QueryEmbedder
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.embeddings.words import words_identity

NEEDS_WORDLLAMA = pytest.mark.skipif(not words_identity(), reason="needs the extra local")
QUESTION = "Why does the pump stop at night?"


@NEEDS_WORDLLAMA
def test_a_listener_receives_the_events_of_an_embedding() -> None:
    class Recorder(BaseEventHandler):
        def handle(self, event: Any, **kwargs: Any) -> None:
            names.append(event.class_name())

    names: list[str] = []
    silent = QueryEmbedder(WordLlamaEmbedding())
    plain = silent.unit([QUESTION])
    root, recorder = get_dispatcher(), Recorder()
    root.add_event_handler(recorder)
    try:
        observed = QueryEmbedder(WordLlamaEmbedding()).unit([QUESTION])
    finally:
        root.event_handlers.remove(recorder)
    assert names == ["EmbeddingStartEvent", "EmbeddingEndEvent"]
    assert observed == pytest.approx(plain, abs=1e-6)
    assert silent.embed([QUESTION]) == plain.tolist()


@NEEDS_WORDLLAMA
def test_a_callback_handler_receives_the_event_of_an_embedding() -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    model = WordLlamaEmbedding(callback_manager=CallbackManager([handler]))
    QueryEmbedder(model).unit([QUESTION])
    assert [pair[0].event_type.value for pair in handler.get_event_pairs()] == ["embedding"]
