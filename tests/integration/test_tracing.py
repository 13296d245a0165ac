"""OpenInference traces of searches and answers: id, score, text and metadata of each hit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "openinference.instrumentation.llama_index", reason='spans need: pip install "llama-index-contextual[otel]"'
)

from llama_index.core.llms import MockLLM
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.results import RetrievalResponse

QUESTION = "What does error TS-999 mean?"


@pytest.fixture
def filled(project: Project, tiny_folder: Path) -> Project:
    """A project of three documents."""
    project.ingest([tiny_folder])
    return project


@pytest.fixture
def exporter(filled: Project) -> Iterator[InMemorySpanExporter]:
    """The spans of everything that is done after the ingestion."""
    result, tracing = InMemorySpanExporter(), TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(result))
    instrumentor = LlamaIndexInstrumentor()
    instrumentor.instrument(tracer_provider=tracing, skip_dep_check=True)
    yield result
    instrumentor.uninstrument()


def span_of(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The one span of that name."""
    (span,) = (span for span in exporter.get_finished_spans() if span.name == name)
    return span


def hits(span: ReadableSpan) -> list[dict[str, Any]]:
    """The documents that a span names, in their order."""
    results: dict[int, dict[str, Any]] = {}
    for key, value in (span.attributes or {}).items():
        if key.startswith("retrieval.documents."):
            _, _, number, _, field = key.split(".")
            results.setdefault(int(number), {})[field] = value
    return [results[number] for number in sorted(results)]


def assert_all_is_told(span: ReadableSpan, response: RetrievalResponse) -> None:
    """See that a span names every hit of a response."""
    message = hits(span)
    assert len(message) == len(response) > 1
    for hit, chunk in zip(message, response, strict=True):
        assert (hit["id"], hit["content"], hit["score"]) == (chunk.node_id, chunk.text, pytest.approx(chunk.score))
        facts = json.loads(hit["metadata"])
        assert (facts["file_name"], facts["context"]) == (chunk.source.file_name, chunk.context)


def test_a_search_names_every_hit(filled: Project, exporter: InMemorySpanExporter) -> None:
    response = filled.retrieve(QUESTION, top_k=3)
    span = span_of(exporter, "ProjectRetriever.respond")
    assert_all_is_told(span, response)
    assert span.attributes is not None
    assert (span.attributes["openinference.span.kind"], span.attributes["input.value"]) == ("RETRIEVER", QUESTION)


def test_a_span_of_an_answer_contains_search_and_model_call(
    filled: Project, manager: ProjectManager, exporter: InMemorySpanExporter
) -> None:
    answer = manager.load("reports", llm=MockLLM()).as_query_engine(similarity_top_k=3).query(QUESTION)
    outer, search = span_of(exporter, "GroundedQueryEngine.query"), span_of(exporter, "ProjectRetriever.arespond")
    assert_all_is_told(search, filled.retrieve(QUESTION, top_k=3))
    assert outer.attributes is not None
    assert (outer.attributes["input.value"], outer.attributes["output.value"]) == (QUESTION, str(answer))
    assert outer.parent is None
    spans = exporter.get_finished_spans()
    of_this_question = [span for span in spans if span.context.trace_id == outer.context.trace_id]
    assert search in of_this_question
    assert "LLM" in {(span.attributes or {}).get("openinference.span.kind") for span in of_this_question}


def test_without_a_listener_no_nodes_are_created_for_events(filled: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: RetrievalResponse) -> None:
        raise AssertionError("nobody listens")

    monkeypatch.setattr(RetrievalResponse, "to_nodes", refuse)
    assert len(filled.retrieve(QUESTION, top_k=2)) == 2
