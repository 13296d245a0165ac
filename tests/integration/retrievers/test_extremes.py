"""Extreme collections and questions with the local settings: no errors, and the right passage comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

pytest.importorskip("wordllama")

FAULTS = {
    f"TS-{number}": f"Error code TS-{number}: the {part} is {state}. Switch the machine off and call the service."
    for number, (part, state) in enumerate(
        [
            (part, state)
            for part in ("pump", "valve", "sensor", "filter", "heater", "motor")
            for state in ("dry", "blocked", "too hot", "not calibrated", "worn out")
        ],
        start=990,
    )
}
TOPICS = {
    "refund": "Customers may return goods within thirty days and get their money back.",
    "parking": "Visitors leave their cars in the garage behind the town hall.",
    "holiday": "Employees have thirty days of paid leave a year.",
    "sun": "The sun is a star of moderate size, a million times as large as the earth.",
    "bread": "Mix flour, water and yeast, and bake the dough for forty minutes.",
}
OTHER_LANGUAGES = {
    "de": "Der Mieter darf die Wohnung mit einer Frist von drei Monaten kündigen.",
    "fr": "Le locataire peut résilier le bail avec un préavis de trois mois.",
    "ru": "Насос останавливают, когда фильтр засорился.",
    "zh": "水泵在过滤器堵塞时停止运行。",
    "ja": "返品は三十日以内に受け付けます。",
}


def project_of(root: Path, *documents: Document, **settings: object) -> Project:
    project = ProjectManager(root).create("p", ProjectConfig.local(**settings))
    project.ingest(list(documents))
    return project


def as_documents(texts: dict[str, str]) -> list[Document]:
    return [Document(id_=name, text=text) for name, text in texts.items()]


def as_one(texts: dict[str, str]) -> Document:
    return Document(id_="all", text="\n\n".join(f"# {name}\n\n{text}" for name, text in texts.items()))


def test_an_exact_code_comes_first_among_many_similar_ones(tmp_path: Path) -> None:
    project = project_of(tmp_path, *as_documents(FAULTS))
    for code, text in FAULTS.items():
        for question in (code, f"What does error code {code} mean?"):
            assert project.retrieve(question, top_k=1)[0].text == text


def test_an_exact_code_comes_first_in_one_long_document(tmp_path: Path) -> None:
    project = project_of(tmp_path, as_one(FAULTS), chunk_size=40, chunk_overlap=0)
    for code, text in list(FAULTS.items())[::5]:
        assert code in project.retrieve(f"error {code}", top_k=1)[0].text, text


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_of_documents_that_are_single_chunks_the_right_one_comes_first(tmp_path: Path, weight: float) -> None:
    project = project_of(tmp_path, *as_documents(TOPICS), sibling_weight=weight)
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
def test_a_question_without_content_raises_no_error(tmp_path: Path, question: str, mode: Mode) -> None:
    project = project_of(tmp_path, *as_documents(TOPICS))
    found = project.retrieve(question, mode=mode, top_k=3, explain=True)
    assert len(found) <= 3
    assert [chunk.rank for chunk in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("Mit welcher Frist darf der Mieter kündigen?", "de"),
        ("Quel est le préavis pour résilier le bail ?", "fr"),
        ("Когда останавливают насос?", "ru"),
        ("过滤器堵塞", "zh"),
        ("返品は何日以内ですか", "ja"),
    ],
)
def test_other_languages_are_found_with_the_english_settings(tmp_path: Path, question: str, name: str) -> None:
    project = project_of(tmp_path, *as_documents({**TOPICS, **OTHER_LANGUAGES}))
    assert project.retrieve(question, top_k=1)[0].source.doc_id == name


def test_a_single_chunk_is_found_and_explained(tmp_path: Path) -> None:
    project = project_of(tmp_path, Document(id_="sun", text=TOPICS["sun"]))
    (found,) = project.retrieve("How large is the sun?", explain=True)
    assert found.text == TOPICS["sun"]


def test_chunks_with_the_same_text_keep_their_order(tmp_path: Path) -> None:
    project = project_of(tmp_path, *(Document(id_=name, text=TOPICS["bread"]) for name in "abc"))
    orders = {tuple(chunk.node_id for chunk in project.retrieve("how long is dough baked")) for _ in range(3)}
    assert len(orders) == 1
    assert len(orders.pop()) == 3
