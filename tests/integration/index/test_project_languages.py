"""Documents in several languages in one project."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.trees import write

TEXTS = {
    "de/vertrag.md": "Der Mieter kann den Vertrag mit einer Kündigungsfrist von vier Wochen zum Ende beenden.",
    "en/lease.md": "The tenant may end the lease at the end of each month. The connections of the pump are tested.",
    "ar/contract.md": "يجوز للمستأجر إنهاء العقد في نهاية كل شهر بإشعار مدته أربعة أسابيع. الإجازة ثلاثون يوما.",
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name, text in TEXTS.items():
        write(tmp_path / "files" / name, text)
    project = ProjectManager(tmp_path / "knowledge").create("mixed", ProjectConfig.local())
    project.ingest([tmp_path / "files"])
    return project


def languages(project: Project) -> dict[str, str]:
    return {record.doc_id.removeprefix("files/"): record.language for record in project.documents()}


def known(project: Project, term: str) -> bool:
    """Return whether the lexical index of the live version contains a term."""
    lexical = project.live_version.index.lexical
    return lexical is not None and term in lexical.known({term})


def first(project: Project, question: str) -> str | None:
    results = project.retrieve(question, mode="lexical").results
    return (results[0].source.doc_id or "").removeprefix("files/") if results else None


def test_each_document_has_its_language(project: Project) -> None:
    assert languages(project) == {"de/vertrag.md": "german", "en/lease.md": "english", "ar/contract.md": "arabic"}
    assert dict(project.info().languages) == {"arabic": 1, "english": 1, "german": 1}
    assert "does not know Arabic and German" in (project.info().unknown_languages or "")
    shown = run("documents", "mixed", "--root", project.directory.parent).out
    assert all(name in shown for name in ("German", "English", "Arabic"))


@pytest.mark.parametrize(
    ("question", "document"),
    [
        ("Kündigungsfristen", "de/vertrag.md"),
        ("Welche Frist gilt?", "de/vertrag.md"),
        ("connecting pumps", "en/lease.md"),
        ("الاجازه", "ar/contract.md"),
    ],
)
def test_a_question_finds_documents_in_each_language(project: Project, question: str, document: str) -> None:
    assert first(project, question) == document


def test_the_language_of_a_folder_can_be_set_without_a_model(project: Project) -> None:
    assert project.update_config(languages={"files/de": "none"}) == ["languages"]
    assert project.rebuild().contexts_paid == 0
    assert languages(project)["de/vertrag.md"] == "none"
    assert not known(project, "kundigungsfrist")
    project.update_config(languages={}, language="german")
    project.rebuild()
    assert set(languages(project).values()) == {"german"}
    assert known(project, "kundigungsfrist")


def test_a_corrected_word_is_reported_in_the_response(project: Project) -> None:
    response = project.retrieve("conections", mode="lexical")
    assert any("'conections'" in warning and "'connections'" in warning for warning in response.warnings)
