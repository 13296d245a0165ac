"""Events and spans of calls, as received by LlamaIndex's own handlers and by OpenInference's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from pydantic import PrivateAttr

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.contextualizer.scheduler import ContextCallEvent
from tests.integration.contextualizer.segments_of import corpus
from tests.support.server import LoopbackProvider


class Collecting(BaseEventHandler):
    """Keeps our events."""

    _events: list[ContextCallEvent] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the handler."""
        return "Collecting"

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Keep an event."""
        if isinstance(event, ContextCallEvent):
            self._events.append(event)


@pytest.fixture
def events() -> Iterator[list[ContextCallEvent]]:
    handler, root = Collecting(), get_dispatcher()
    root.add_event_handler(handler)
    yield handler._events
    root.event_handlers.remove(handler)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(context_tokens=20) as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


def contextualizer() -> LLMContextualizer:
    return LLMContextualizer(model="openai:gpt-4o-mini", retry=RetryPolicy(attempts=3, base_delay=0.001))


def test_every_attempt_is_an_event_with_its_tokens(provider: LoopbackProvider, events: list[ContextCallEvent]) -> None:
    provider.fault("server_error")
    nodes = corpus(1, 5)
    contextualizer()(nodes)
    failed, again, *others = events
    assert (failed.attempt, failed.input_tokens, failed.node_ids) == (1, None, ["doc-0-0"])
    assert failed.error is not None
    assert (again.attempt, again.error, again.node_ids, again.doc_id) == (2, None, ["doc-0-0"], "doc-0")
    assert {event.model for event in events} == {"openai:gpt-4o-mini"}
    assert all(event.seconds > 0 for event in events)
    assert sum(event.input_tokens or 0 for event in events) == provider.totals()["prompt_tokens"]
    assert sum(event.cached_tokens or 0 for event in others) == provider.totals()["cached_tokens"] > 0
    assert sum(event.output_tokens or 0 for event in events) == provider.totals()["completion_tokens"]
    assert ContextCallEvent.class_name() == again.model_dump()["class_name"]


def test_openinference_records_a_span_per_call_around_the_models_span(
    provider: LoopbackProvider, caplog: pytest.LogCaptureFixture
) -> None:
    instrumentation = pytest.importorskip("openinference.instrumentation.llama_index")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, tracing = InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = instrumentation.LlamaIndexInstrumentor()
    instrumentor.instrument(tracer_provider=tracing, skip_dep_check=True)
    try:
        with caplog.at_level(logging.WARNING, logger="openinference"):
            contextualizer()(corpus(2, 2, words=30))
    finally:
        instrumentor.uninstrument()
    assert [record for record in caplog.records if record.name.startswith("openinference")] == []
    spans = exporter.get_finished_spans()
    ours = [span for span in spans if span.name == "Scheduler.context_call"]
    assert len(ours) == len(provider.chat_calls) == 4
    for span in ours:
        calls = json.loads(span.attributes["input.value"])  # type: ignore[index, arg-type]
        answer = json.loads(span.attributes["output.value"])  # type: ignore[index, arg-type]
        assert (len(calls["node_ids"]), calls["attempt"]) == (1, 1)
        assert calls["doc_id"] in ("doc-0", "doc-1")
        assert answer["usage"]["input_tokens"] > 0
        assert len(span.attributes["input.value"]) < 1000, "neither prompt nor segment"  # type: ignore[index, arg-type]
        inner = [other for other in spans if other.parent and other.parent.span_id == span.context.span_id]
        assert [other.name for other in inner] == ["OpenAI.achat"]
        assert inner[0].attributes["llm.token_count.prompt"] == answer["usage"]["input_tokens"]  # type: ignore[index]
