"""Places of quotations: the label of a quotation is that of its own section and page, however long its passage is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from llama_index.core.schema import MetadataMode

from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.metadata import context_parts
from llama_index_contextual.postprocessor import MergedChunk
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.postprocessor.documents import chunks_of, hit
from tests.integration.retrievers.corpus import FixedRetriever
from tests.support.examples import DATA
from tests.support.models import ScriptedLLM
from tests.support.pdf_files import lines, pdf_of

PARTS = ("Intake", "Filter", "Pump", "Valve", "Meter")
QUESTION = "At how many bar do the parts of the station open?"

SECTIONS = [
    f"## {part}\n\nThe {part.lower()} opens at {bar} bar. " + "Read the gauge before and after. " * 8
    for bar, part in enumerate(PARTS, start=2)
]
MANUAL = "# Station\n\n" + "\n\n".join(SECTIONS)
SMALL: dict[str, Any] = {"chunk_size": 100, "chunk_overlap": 20}


def ask(project: Project, answer: str, question: str = QUESTION, **options: Any) -> GroundedResponse:
    engine = project.as_query_engine(llm=ScriptedLLM(default=answer), **options)
    return cast(GroundedResponse, engine.query(question))


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project of one document whose chunks are all hits; tests do not change it."""
    folder = tmp_path_factory.mktemp("station")
    (folder / "manual.md").write_text(MANUAL, encoding="utf-8")
    project = ProjectManager(folder / "knowledge").create("station", ProjectConfig.local(**SMALL))
    project.ingest([folder / "manual.md"])
    return project


@pytest.mark.parametrize("parts", [[part] for part in PARTS] + [["Filter", "Valve"]], ids=str)
def test_a_quotation_from_a_merged_passage_is_labelled_by_its_own_section(station: Project, parts: list[str]) -> None:
    words = [f"The {part.lower()} opens at {PARTS.index(part) + 2} bar" for part in parts]
    response = ask(station, ", ".join(f"“{one}”" for one in words) + " [Source 1].")
    assert isinstance(response.source_nodes[0], MergedChunk)
    quotations: Any = response.citations.quotations  # type: ignore[union-attr]
    assert {quotation.status for quotation in quotations} == {"verified"}
    assert [station.read("manual.md", one.source.start_char, one.source.end_char) for one in quotations] == words
    labels = [f"manual.md, section Station > {part}" for part in parts]
    assert [str(source) for _, source in response.cited_sources] == labels
    as_json = json.loads(json.dumps(response.to_dict()))
    assert [quotation["label"] for quotation in as_json["citations"]["quotations"]] == labels


def test_a_passage_over_several_sections_names_all_in_the_prompt_and_that_of_the_best_sentence_in_lists(
    manager: ProjectManager, tmp_path: Path
) -> None:
    (tmp_path / "manual.md").write_text(MANUAL, encoding="utf-8")
    project = manager.create("whole", ProjectConfig.local(chunk_size=1000))
    project.ingest([tmp_path / "manual.md"])
    (found,) = project.retrieve("At how many bar does the valve open?")
    whole, best = (
        "manual.md, section Station > Intake; Filter; Pump; Valve; Meter",
        "manual.md, section Station > Valve",
    )
    assert (str(found.source), str(found.place)) == (whole, best)
    assert found.node.get_content(MetadataMode.LLM).startswith(f"Source: {whole}\n")
    llm = ScriptedLLM(default="It opens at 5 bar [Source 1].")
    response = cast(GroundedResponse, project.as_query_engine(llm=llm).query("At how many bar does the valve open?"))
    assert f"[Source 1]\nSource: {whole}\n" in llm.history[0]
    assert [str(source) for _, source in response.cited_sources] == [best]
    result = project.document_tools().search("At how many bar does the valve open?")
    assert f"[Source 1] {whole}\n" in str(result)
    assert result.passages[0].section == "Station > Valve"


def test_a_quotation_is_labelled_by_its_own_page(manager: ProjectManager, tmp_path: Path) -> None:
    pages = [lines([f"Tank {number} holds {number * 10} litres of water."]) for number in range(1, 5)]
    (tmp_path / "tanks.pdf").write_bytes(pdf_of(pages).data())
    project = manager.create("tanks", ProjectConfig.local())
    project.ingest([tmp_path / "tanks.pdf"])
    response = ask(project, "“Tank 3 holds 30 litres of water” [Source 1].", "How much does tank 3 hold?")
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


def test_the_model_reads_the_background_of_each_merged_chunk(manager: ProjectManager, tmp_path: Path) -> None:
    (tmp_path / "manual.md").write_text(MANUAL, encoding="utf-8")
    contexts = ScriptedLLM()
    words = ("intake", "filter", "pump", "valve", "meter", "gauge", "tank")
    contexts.enqueue(
        *(f"The chunk is about the {word} of the pumping station and how it is operated." for word in words)
    )
    project = manager.create("written", ProjectConfig.local(**SMALL, context="llm"), llm=contexts)
    project.ingest([tmp_path / "manual.md"])
    llm = ScriptedLLM(default="Yes [Source 1].")
    response = cast(GroundedResponse, project.as_query_engine(llm=llm).query(QUESTION))
    (passage,) = response.source_nodes
    assert isinstance(passage, MergedChunk)
    background = llm.history[0].partition("Background: ")[2].partition("\nText:")[0]
    written = [context_parts(chunk.metadata)[1] for chunk in passage.chunks]
    assert len(set(written)) == len(written) > 3
    assert background.splitlines() == written


def test_the_best_hit_is_in_the_prompt_if_nearly_all_of_a_document_is_retrieved(project: Project) -> None:
    project.ingest([DATA / "station-manual.md"])
    response = project.retrieve("What does error TS-999 mean?")
    assert len(response) > 10
    assert "watchdog reset" in response[0].text
    for answer_tokens in (600, 1500, 4000, 8000):
        llm = ScriptedLLM(default="A watchdog reset [Source 1].")
        project.as_query_engine(llm=llm, answer_tokens=answer_tokens).query(response.query)
        assert "**TS-999, watchdog reset.**" in llm.history[0]


def test_json_of_an_answer_has_labelled_excerpts_instead_of_whole_passages(project: Project, tmp_path: Path) -> None:
    filler = "The gauge is read in the morning and in the evening by the operator on duty. " * 60
    (tmp_path / "manual.md").write_text(f"# Pump\n\n{filler}\n\nError TS-999 means that it runs dry.\n\n{filler}")
    project.ingest([tmp_path / "manual.md"])
    as_json = ask(project, "“means that it runs dry” [Source 1].", "What does error TS-999 mean?").to_dict()
    (source,) = as_json["sources"]
    assert (source["number"], source["label"], source["cited"]) == (1, "manual.md, section Pump", True)
    assert "means that it runs dry" in source["excerpt"]
    assert len(source["excerpt"]) <= 320
    assert len(json.dumps(as_json)) < len(filler)
    assert not [result for result in as_json["retrieval"]["results"] if {"text", "context"} & set(result)]
