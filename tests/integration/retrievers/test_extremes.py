"""Extreme collections and questions with the local settings: no errors, and the right passage comes first."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

pytest.importorskip("wordllama")

PARTS = itertools.product(
    ("pump", "valve", "sensor", "filter", "heater", "motor"),
    ("dry", "blocked", "too hot", "not calibrated", "worn out"),
)
FAULTS = {
    f"TS-{number}": f"Error code TS-{number}: the {part} is {state}. Switch the machine off and call the service."
    for number, (part, state) in enumerate(PARTS, start=990)
}
TOPICS = {
    "refund": "Customers may return goods within thirty days and get their money back.",
    "parking": "Visitors leave their cars in the garage behind the town hall.",
    "holiday": "Employees have thirty days of paid leave a year.",
    "sun": "The sun is a star of moderate size, a million times as large as the earth.",
    "bread": "Mix flour, water and yeast, and bake the dough for forty minutes.",
}
OTHER_LANGUAGES = {
    "de": (
        "Der Mieter darf die Wohnung mit einer Frist von drei Monaten kündigen.",
        "Mit welcher Frist darf der Mieter kündigen?",
    ),
    "fr": (
        "Le locataire peut résilier le bail avec un préavis de trois mois.",
        "Quel est le préavis pour résilier le bail ?",
    ),
    "ru": ("Насос останавливают, когда фильтр засорился.", "Когда останавливают насос?"),
    "zh": ("水泵在过滤器堵塞时停止运行。", "过滤器堵塞"),
    "ja": ("返品は三十日以内に受け付けます。", "返品は何日以内ですか"),
}


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that tests share and do not change."""
    texts = TOPICS | {name: text for name, (text, _) in OTHER_LANGUAGES.items()}
    return project_of(tmp_path_factory.mktemp("topics"), *as_documents(texts))


def project_of(root: Path, *documents: Document, **settings: object) -> Project:
    project = ProjectManager(root).create("p", ProjectConfig.local(**settings))
    project.ingest(list(documents))
    return project


def as_documents(texts: dict[str, str]) -> list[Document]:
    return [Document(id_=name, text=text) for name, text in texts.items()]


def test_an_exact_code_comes_first_among_many_similar_ones(tmp_path: Path) -> None:
    project = project_of(tmp_path / "many", *as_documents(FAULTS))
    for code, text in FAULTS.items():
        for question in (code, f"What does error code {code} mean?"):
            assert project.retrieve(question, top_k=1)[0].text == text
    text = "\n\n".join(f"# {name}\n\n{text}" for name, text in FAULTS.items())
    in_one = project_of(tmp_path / "one", Document(text=text), chunk_size=40, chunk_overlap=0)
    for code in list(FAULTS)[::5]:
        assert code in in_one.retrieve(f"error {code}", top_k=1)[0].text


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_of_documents_that_are_single_chunks_the_right_one_comes_first(tmp_path: Path, weight: float) -> None:
    project = project_of(tmp_path, *as_documents(TOPICS), document_weight=weight)
    questions = {
        "refund": "Can I return goods and get my money back?",
        "parking": "Where do visitors leave a car?",
        "holiday": "How many days of paid leave do employees have?",
        "sun": "how large is our star",
        "bread": "how long is dough baked",
    }
    for name, question in questions.items():
        assert project.retrieve(question, top_k=1)[0].source.doc_id == name


@pytest.mark.parametrize("mode", ["hybrid", "lexical", "semantic"])
@pytest.mark.parametrize("question", ["what is the", "of", "?!", "¿?", "the the the", "\u200b.", "🙂"])
def test_a_question_without_content_raises_no_error(topics: Project, question: str, mode: Mode) -> None:
    found = topics.retrieve(question, mode=mode, top_k=3, explain=True)
    assert [chunk.rank for chunk in found] == list(range(1, len(found) + 1))
    assert len(found) <= 3


@pytest.mark.parametrize("name", OTHER_LANGUAGES)
def test_other_languages_are_found_with_the_english_settings(topics: Project, name: str) -> None:
    assert topics.retrieve(OTHER_LANGUAGES[name][1], top_k=1)[0].source.doc_id == name
