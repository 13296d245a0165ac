"""Questions in another language than the documents, which the search cannot relate to each other."""

from __future__ import annotations

import pytest
from llama_index.core.schema import Document
from pydantic import Field

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.models import CountingEmbedding

ENGLISH = Document(id_="lease", text="The tenant may end the lease with a notice of four weeks to the end of a month.")
GERMAN = Document(id_="haus", text="Die Haustür ist nach 22 Uhr zu schließen, und der Müll ist am Montag zu bringen.")
QUESTION = "Wie lang ist die Frist, mit der ich kündigen kann?"
WARNING = (
    "The question is in German, and most documents are in English: ask in English, set `context_languages`, or choose"
    " an `embed_model` that knows both languages."
)


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    """A project with an English document."""
    project = manager.create("papers", ProjectConfig.local())
    project.ingest([ENGLISH])
    return project


def test_the_response_says_what_to_do(project: Project) -> None:
    response = project.retrieve(QUESTION)
    assert response.warnings == (WARNING,)
    assert WARNING in str(response)
    assert project.retrieve("How long is the notice period of the lease?").warnings == ()


def test_the_command_shows_the_warning(project: Project) -> None:
    root = project.directory.parent
    assert WARNING in " ".join(run("search", "papers", QUESTION, "--root", root).err.split())
    assert run("search", "papers", QUESTION, "--json", "--root", root).json["warnings"] == [WARNING]


def test_there_is_no_warning_if_there_are_documents_in_the_language_of_the_question(project: Project) -> None:
    project.ingest([GERMAN])
    assert project.retrieve(QUESTION).warnings == ()


def test_english_questions_on_german_documents_have_a_warning_too(manager: ProjectManager) -> None:
    project = manager.create("papers", ProjectConfig.local())
    project.ingest([GERMAN])
    (warning,) = project.retrieve("When is the front door to be locked?").warnings
    assert warning.startswith("The question is in English, and most documents are in German: ask in German, set")


class NamedEmbedding(CountingEmbedding):
    """An embedding with the name of a known model."""

    model_name: str = Field(default="multilingual-e5-small")


def test_an_embedding_that_knows_both_languages_needs_no_warning_except_in_lexical_mode(
    manager: ProjectManager,
) -> None:
    project = manager.create("papers", ProjectConfig(context="none"), embed_model=NamedEmbedding())
    project.ingest([ENGLISH])
    assert project.retrieve(QUESTION).warnings == ()
    assert project.retrieve(QUESTION, mode="lexical").warnings == (WARNING,)


def test_why_not_ranks_a_foreign_question_like_a_search(manager: ProjectManager) -> None:
    project = manager.create("papers", ProjectConfig(context="none"), embed_model=NamedEmbedding())
    texts = [
        f"The alarm {'TS-' * (number % 2)}{number} of the pump and of the valve is for part {number}."
        for number in range(9)
    ]
    project.ingest([Document(id_=f"alarm-{number}", text=text) for number, text in enumerate(texts)])
    question = "Was bedeutet die Meldung TS-3 oder TS-7, und wie kann ich sie abstellen?"
    hits = project.retrieve(question, top_k=9)
    standings = [project.why_not(question, hit.source.doc_id, top_k=9) for hit in hits]
    assert [standing.rank for standing in standings] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [standing.explanation.score for standing in standings if standing.explanation] == [hit.score for hit in hits]
