"""Places of quotations: the label of a quotation is that of its own section and page, however long its passage is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest
from llama_index.core.schema import QueryBundle

from llama_index_contextual.answering.intent import IntentRetriever
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.metadata import context_parts
from llama_index_contextual.node_parser.tokens import count_tokens
from llama_index_contextual.postprocessor import MergedChunk
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.postprocessor.documents import chunks_of, hit
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM
from tests.support.pdf_files import lines, pdf_of

PARTS = ("Intake", "Filter", "Pump", "Valve", "Meter")
QUESTION = "At how many bar do the parts of the station open?"


def manual() -> str:
    """Return a document with a section for each part, each shorter than a chunk."""
    sections = [
        f"## {part}\n\nThe {part.lower()} opens at {bar} bar. " + "Read the gauge before and after. " * 8
        for bar, part in enumerate(PARTS, start=2)
    ]
    return "# Station\n\n" + "\n\n".join(sections)


@pytest.fixture
def station(manager: ProjectManager, tmp_path: Path) -> Project:
    """A project in which every chunk of one document is a hit."""
    (tmp_path / "manual.md").write_text(manual(), encoding="utf-8")
    project = manager.create("station", ProjectConfig.local(chunk_size=100, chunk_overlap=20))
    project.ingest([tmp_path / "manual.md"])
    return project


def ask(project: Project, answer: str) -> GroundedResponse:
    engine = project.as_query_engine(llm=ScriptedLLM(default=answer))
    return cast(GroundedResponse, engine.query(QUESTION))


@pytest.mark.parametrize(("bar", "part"), list(enumerate(PARTS, start=2)))
def test_a_quotation_from_a_merged_passage_is_labelled_by_its_own_section(
    station: Project, bar: int, part: str
) -> None:
    words = f"The {part.lower()} opens at {bar} bar"
    response = ask(station, f"“{words}” [Source 1].")
    assert isinstance(response.source_nodes[0], MergedChunk)
    (quotation,) = response.citations.quotations  # type: ignore[union-attr]
    assert quotation.status == "verified"
    assert quotation.source is not None
    assert quotation.source.section == f"Station > {part}"
    start, end = quotation.source.start_char, quotation.source.end_char
    assert station.read("manual.md", start or 0, end) == words
    assert [str(source) for _, source in response.shown_sources] == [f"manual.md, section Station > {part}"]


def test_quotations_from_two_sections_of_a_passage_have_a_label_each(station: Project) -> None:
    response = ask(station, "“The filter opens at 3 bar”, “The valve opens at 5 bar” [Source 1].")
    assert [(number, source.section) for number, source in response.cited_sources] == [
        (1, "Station > Filter"),
        (1, "Station > Valve"),
    ]
    as_json = json.loads(json.dumps(response.to_dict()))
    assert [quotation["label"] for quotation in as_json["citations"]["quotations"]] == [
        "manual.md, section Station > Filter",
        "manual.md, section Station > Valve",
    ]


def test_a_quotation_is_labelled_by_its_own_page(manager: ProjectManager, tmp_path: Path) -> None:
    pages = [lines([f"Tank {number} holds {number * 10} litres of water."]) for number in range(1, 5)]
    (tmp_path / "tanks.pdf").write_bytes(pdf_of(pages).data())
    project = manager.create("tanks", ProjectConfig.local())
    project.ingest([tmp_path / "tanks.pdf"])
    engine = project.as_query_engine(llm=ScriptedLLM(default="“Tank 3 holds 30 litres of water” [Source 1]."))
    response = cast(GroundedResponse, engine.query("How much does tank 3 hold?"))
    assert [(source.page_start, source.page_end) for source in response.sources] == [(1, 4)]
    assert [(source.page_start, source.page_end) for _, source in response.cited_sources] == [(3, 3)]


def test_without_headings_of_the_document_a_quotation_has_the_section_of_its_chunk() -> None:
    text = "Boil all the water. Food keeps three days."
    nodes = chunks_of(text, [(0, 20), (20, 42)])
    for node, section in zip(nodes, ("Water", "Food"), strict=True):
        node.metadata["section"] = section
    found = [hit(nodes[0], 2.0), hit(nodes[1], 1.0)]
    engine = GroundedQueryEngine(FixedRetriever(found), ScriptedLLM(default="“Food keeps three days” [Source 1]."))
    response = cast(GroundedResponse, engine.query("How long?"))
    assert response.source_nodes[0].node.get_content() == text
    assert [source.section for _, source in response.cited_sources] == ["Food"]


def test_a_run_of_hits_is_merged_into_passages_of_limited_length(manager: ProjectManager, tmp_path: Path) -> None:
    text = "\n\n".join(f"Valve {number} of the pump station opens at {number} bar." for number in range(800))
    (tmp_path / "valves.txt").write_text(text, encoding="utf-8")
    project = manager.create("valves", ProjectConfig.local(top_k=12))
    project.ingest([tmp_path / "valves.txt"])
    engine = project.as_query_engine(llm=ScriptedLLM(default="Yes [Source 1]."), answer_tokens=20_000)
    response = cast(GroundedResponse, engine.query("At how many bar does a valve open?"))
    texts = [hit.node.get_content() for hit in response.source_nodes]
    assert len(project.chunks("valves.txt")) > 6
    assert 1 < len(texts) < len(project.chunks("valves.txt"))
    assert max(map(count_tokens, texts)) <= 2400


def test_the_model_reads_the_background_of_each_merged_chunk(manager: ProjectManager, tmp_path: Path) -> None:
    (tmp_path / "manual.md").write_text(manual(), encoding="utf-8")
    contexts = ScriptedLLM()
    words = ("intake", "filter", "pump", "valve", "meter", "gauge", "tank")
    contexts.enqueue(
        *(f"The chunk is about the {word} of the pumping station and how it is operated." for word in words)
    )
    project = manager.create(
        "written", ProjectConfig.local(chunk_size=100, chunk_overlap=20, context="llm"), llm=contexts
    )
    project.ingest([tmp_path / "manual.md"])
    llm = ScriptedLLM(default="Yes [Source 1].")
    response = cast(GroundedResponse, project.as_query_engine(llm=llm).query(QUESTION))
    (passage,) = response.source_nodes
    assert isinstance(passage, MergedChunk)
    background = llm.history[0].partition("Background: ")[2].partition("\nText:")[0]
    written = [context_parts(chunk.metadata)[1] for chunk in passage.chunks]
    assert len(set(written)) == len(written) > 3
    assert background.splitlines() == written


def test_a_retriever_by_intent_answers_a_text_as_it_answers_a_bundle() -> None:
    retriever = IntentRetriever(lambda _: FixedRetriever(hits(a=2.0, b=1.0)))
    assert [chunk.node_id for chunk in retriever.respond("Who paid?")] == ["a", "b"]
    assert retriever.respond("Who paid?") == retriever.respond(QueryBundle("Who paid?"))
    with pytest.raises(InputError):
        retriever.respond(3)  # type: ignore[arg-type]


async def test_a_retriever_by_intent_answers_a_text_asynchronously() -> None:
    retriever = IntentRetriever(lambda _: FixedRetriever(hits(a=2.0, b=1.0)))
    assert [chunk.node_id for chunk in await retriever.arespond("Who paid?")] == ["a", "b"]
