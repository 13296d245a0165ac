"""Acronyms of a table, and searches that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import QueryBundle

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import ConversationalRetriever, ConversationQuery
from llama_index_contextual.search.search import missing_forms

TABLE = {"PP&E": "Property, plant and equipment", "IT": "information technology", "VAT": "value added tax"}


@pytest.mark.parametrize(
    ("question", "added"),
    [
        ("How is PP&E measured?", ("Property, plant and equipment",)),
        ("Who pays the VAT’s rate (IT)?", ("value added tax", "information technology")),
        ("Who measures property, plant, and equipment?", ("PP&E",)),
        ("Is VAT the value added tax?", ()),
        ("Is it due?", ()),
        ("", ()),
    ],
)
def test_a_question_gains_the_forms_that_it_lacks(question: str, added: tuple[str, ...]) -> None:
    assert missing_forms(question, TABLE) == added


# ---- in a project ----------------------------------------------------------------------------------------------------

TEXTS = {
    "policy.txt": "Property, plant and equipment are carried at cost.",
    "notes.txt": "The plant is inspected every year. Its equipment is old.",
    "menu.txt": "Soup is served at noon.",
}


def project_of(root: Path, texts: dict[str, str], **settings: Any) -> Project:
    for name, text in texts.items():
        (root / name).write_text(text)
    config = ProjectConfig.local(context="none", document_weight=0, **settings)
    made = ProjectManager(root / "knowledge").create("a", config)
    made.ingest([root / name for name in texts])
    return made


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_of(tmp_path, TEXTS, acronym_table={"PP&E": TABLE["PP&E"]})


def names(found) -> list[str]:  # type: ignore[no-untyped-def]
    return [chunk.source.file_name for chunk in found]


async def test_an_acronym_finds_its_long_form_and_the_response_says_so(project: Project) -> None:
    question = "What of PP&E?"
    found = project.retrieve(question, mode="lexical")
    assert names(found) == ["policy.txt", "notes.txt"]
    assert found.blend is not None
    assert found.blend.lexical == ((question, 1.0), ("Property, plant and equipment", 0.25))
    assert (await project.aretrieve(question, mode="lexical")).to_dict() == found.to_dict()
    assert project.retrieve_many([question], mode="lexical")[0].to_dict() == found.to_dict()
    assert project.retrieve("Who inspects?").blend is None
    project.update_config(acronym_table={})
    assert names(project.retrieve(question, mode="lexical")) == []


def test_the_terms_are_added_to_those_of_a_conversation(project: Project) -> None:
    retriever = ConversationalRetriever(project.as_retriever(), embed_model=project.embed_model)
    blend = retriever.respond(ConversationQuery("And PP&E?", history=[ChatMessage("Who inspects?")])).blend
    assert blend is not None
    assert [text for text, _ in blend.lexical] == ["And PP&E?", "Who inspects?", TABLE["PP&E"]]
    assert len(blend.embedded) == 2
    alone = retriever.respond("What of PP&E?")
    assert alone.confidence is not None
    assert alone.blend is not None


def test_a_table_of_ones_own_works_in_both_directions(tmp_path: Path) -> None:
    texts = {
        "agreement.txt": "The service level agreement guarantees an answer within four hours.",
        "short.txt": "Uptime according to the SLA is 99 %.",
        "menu.txt": "Soup is served at noon. Uptime of the soup is an hour.",
    }
    project = project_of(tmp_path, texts)
    assert names(project.retrieve("SLA", mode="lexical")) == ["short.txt"]
    assert project.update_config(acronym_table={"SLA": "service level agreement"}) == []
    found = project.retrieve("SLA", mode="lexical")
    assert names(found) == ["short.txt", "agreement.txt"]
    assert found.blend is not None
    assert found.blend.lexical == (("SLA", 1.0), ("service level agreement", 0.333))
    back = project.retrieve("Which service level agreement applies?", mode="lexical")
    assert names(back) == ["agreement.txt", "short.txt"]
    without = project.as_retriever(mode="lexical").changed(acronym_table={})
    assert names(without.respond(QueryBundle("SLA"))) == ["short.txt"]


@pytest.mark.parametrize("table", [{"": "x"}, {"S L A": "x"}, {"SLA": " "}, {" SLA": "x"}], ids=str)
def test_an_invalid_table_is_refused(table: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="acronym_table"):
        ProjectConfig(acronym_table=table)
