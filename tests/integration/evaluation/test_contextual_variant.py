"""A contextual embedding as one more variant of a comparison, in Python and on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document
from typer.testing import CliRunner

from llama_index_contextual.cli import app as cli
from llama_index_contextual.config import ProjectConfig, TokenPrice
from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
from llama_index_contextual.errors import ConfigurationError, InputError, ModelError
from llama_index_contextual.evaluation.compare import VariantProgress, compare_variants
from llama_index_contextual.evaluation.questions import Evidence, Question, write_questions
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.server import LoopbackProvider

NAME = "voyage:voyage-context-3"
PRICES = {NAME: TokenPrice(input=1_000.0), "ScriptedLLM:scripted": TokenPrice(input=2.0, output=8.0)}
YARDS = ["Orlen", "Marsk", "Tavira", "Kilrush", "Ostrava", "Lindau"]
SUBJECTS = ["the crane is inspected", "the dock is flooded", "the gate is painted", "the pump is greased"]


def documents() -> list[Document]:
    """Return one document per yard: only the first sentence names it, all others are the same but for a number."""
    return [
        Document(
            id_=f"{yard}.txt",
            text=f"Rules of the yard {yard}.\n\n"
            + "".join(f"Each month {thing} {at + 3} times by two people of the night shift.\n\n" for thing in SUBJECTS),
            metadata={"file_name": f"{yard}.txt"},
        )
        for at, yard in enumerate(YARDS)
    ]


QUESTIONS = [
    Question(
        id=f"{yard} {thing}",
        text=f"{yard}: how often is it that {thing}",
        evidence=[Evidence(file=f"{yard}.txt", text=f"Each month {thing} {at + 3} times")],
    )
    for at, yard in enumerate(YARDS)
    for thing in SUBJECTS
]


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=256, embedding_encoding="cl100k_base") as running:
        monkeypatch.setenv("VOYAGE_API_KEY", "pa-a-key-of-the-tests-0123456789")
        monkeypatch.setenv("VOYAGE_API_BASE", running.api_base)
        yield running


@pytest.fixture(scope="session")
def yards_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with the project "yards"."""
    root = tmp_path_factory.mktemp("yards")
    config = ProjectConfig.local(context="none", chunk_size=20, chunk_overlap=0, prices=PRICES, document_weight=0)
    ProjectManager(root).create("yards", config).ingest(documents())
    return root


@pytest.fixture
def yards(yards_template: Path, manager: ProjectManager, provider: LoopbackProvider) -> Project:
    """A copy of it."""
    shutil.copytree(yards_template, manager.root)
    return manager.load("yards", llm=ScriptedLLM())


def test_the_variant_is_built_with_the_named_model_and_without_contexts(
    yards: Project, provider: LoopbackProvider
) -> None:
    versions = yards.versions()
    comparison = compare_variants(
        yards,
        QUESTIONS,
        variants=["none", "structural"],
        contextual_embedding=NAME,
        ks=[1, 3],
        metric="recall@3",
    )
    assert comparison.names == ["none", "structural", "contextual embedding"]
    chunks = [chunk for result in comparison["contextual embedding"].results for chunk in result.results]
    assert all(chunk.context is None for chunk in chunks)
    documents_of = [r.body["inputs"] for r in provider.contextual_calls if r.body["input_type"] == "document"]
    assert [len(inputs) for inputs in documents_of] == [len(YARDS)]
    queries = [r for r in provider.contextual_calls if r.body["input_type"] == "query"]
    assert len(queries) == len(QUESTIONS)
    assert comparison.difference("none", "contextual embedding").mean > 0.1, "the neighbours name the yard"
    assert yards.versions() == versions
    assert {path.name for path in yards.directory.parent.iterdir()} == {yards.name}


def test_its_cost_is_shown_first_and_it_is_paid_for_once(yards: Project, provider: LoopbackProvider) -> None:
    events: list[VariantProgress] = []
    options: dict[str, Any] = {"variants": ["none"], "contextual_embedding": NAME, "ks": [3]}
    first = compare_variants(yards, QUESTIONS, **options, progress=events.append)
    assert events[0].stage == "price"
    cost = first.costs["contextual embedding"]
    assert events[0].dollars == pytest.approx(cost)
    assert first.costs["none"] == 0
    assert ("build", "contextual embedding") in {(event.stage, event.name) for event in events}
    (sent,) = [r.usage for r in provider.contextual_calls if r.body["input_type"] == "document"]
    assert cost == pytest.approx(sent["total_tokens"] / 1_000, rel=0.05)  # type: ignore[index]
    provider.clear_history()
    events.clear()
    again = compare_variants(yards, QUESTIONS, **options, progress=events.append)
    assert events[0].dollars == 0
    assert not [r for r in provider.contextual_calls if r.body["input_type"] == "document"]
    assert again.costs == first.costs


def test_nothing_is_sent_if_it_would_cost_more_than_allowed(yards: Project, provider: LoopbackProvider) -> None:
    with pytest.raises(InputError, match=r"6 documents would cost about \$0\.\d+, more than the limit"):
        compare_variants(yards, QUESTIONS, variants=["none"], contextual_embedding=NAME, max_cost=0.0001)
    yards.state.config = yards.config.changed(prices={NAME: PRICES[NAME]})
    assert provider.history == []
    assert compare_variants(yards, QUESTIONS, variants=["none"], contextual_embedding=NAME, max_cost=10).names[1:]


def test_an_object_is_compared_too_and_comes_before_the_llm(yards: Project, provider: LoopbackProvider) -> None:
    model = VoyageContextualEmbedding(api_base=provider.api_base, dimensions=512)
    comparison = compare_variants(
        yards, QUESTIONS[:4], variants=["structural", "llm"], contextual_embedding=model, sample=2
    )
    assert comparison.names == ["structural", "contextual embedding", "llm"]
    assert {r.body.get("output_dimension") for r in provider.contextual_calls} == {512}


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"variants": []}, InputError, "use one to three of none, structural, llm"),
        (
            {"contextual_embedding": CountingEmbedding()},
            InputError,
            "is not a contextual embedding model: use one such as 'voyage:voyage-context-",
        ),
        (
            {"contextual_embedding": "voyage-context-3"},
            ModelError,
            "Setting 'embed_model' is 'voyage-context-3', which is not the name",
        ),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    yards: Project, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compare_variants(yards, QUESTIONS, **{"contextual_embedding": NAME, **options})


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"indexes": "lexical"}, ConfigurationError, "The project has no semantic index"),
        ({"embed_model": NAME}, InputError, "is the project's own embedding model, which the variant 'none' measures"),
    ],
)
def test_a_project_must_have_an_index_of_another_embedding(
    manager: ProjectManager, provider: LoopbackProvider, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    project = manager.create("other", ProjectConfig.local(context="none", **settings))
    project.ingest(documents()[:1])
    with pytest.raises(error, match=message):
        compare_variants(project, QUESTIONS, variants=["none"], contextual_embedding=NAME)


# ---- command line --------------------------------------------------------------------------------------------------


def run(*arguments: object, answer: str | None = None, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], input=answer)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result.stdout, result.stderr


@pytest.fixture
def questions(yards: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(yards.directory.parent))
    write_questions(QUESTIONS, tmp_path / "q.jsonl")
    return tmp_path / "q.jsonl"


def test_the_command_asks_before_it_pays_and_shows_what_it_cost(questions: Path, provider: LoopbackProvider) -> None:
    arguments = ["yards", questions, "--compare", "none", "--contextual-embedding", NAME, "--k", "1,3"]
    _, err = run(*arguments, answer="n\n", code=1)
    assert "Contexts and embeddings will cost about $0." in err
    assert provider.history == []
    out, err = run(*arguments, "--yes")
    assert "contextual embedding − none, nDCG@3: " in out
    assert "contextual embedding: contexts and embeddings $0." in out
    assert "Building 'contextual embedding' …" in err


def test_the_option_needs_a_comparison(questions: Path) -> None:
    for others in ([], ["--compare", "none", "--sweep", "20,40"]):
        _, err = run("yards", questions, "--contextual-embedding", NAME, *others, code=1)
        assert "--contextual-embedding adds a variant to --compare: pass --compare none,structural as well" in err
