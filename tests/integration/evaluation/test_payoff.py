"""Trying LLM contexts on a sample of documents: its search, its cost, and the price of the other documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from llama_index.core.schema import Document
from typer.testing import CliRunner

from llama_index_contextual.cli import app as cli
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.compare import VariantProgress
from llama_index_contextual.evaluation.payoff import Payoff, evaluate_payoff
from llama_index_contextual.evaluation.questions import Evidence, Question, load_questions, write_questions
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import ScriptedLLM
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider

PRICES = {"ScriptedLLM:scripted": Price(input=2.0, cached=0.5, output=8.0)}
PLACES = [f"Station {letter}" for letter in "ABCDEFGHIJKL"]
QUESTIONS = [
    Question(
        id=place,
        text=f"How deep is the well of {place}?",
        evidence=[Evidence(file=f"wells/{at}.md", text=f"The well of {place} is {at + 10} metres deep.")],
    )
    for at, place in enumerate(PLACES)
]


def documents() -> list[Document]:
    """Return one document for each question."""
    return [Document(id_=item.file, text=item.text) for question in QUESTIONS for item in question.evidence]


@pytest.fixture
def llm() -> ScriptedLLM:
    return ScriptedLLM()


@pytest.fixture
def project(manager: ProjectManager, llm: ScriptedLLM) -> Project:
    """A project of twelve documents with structural contexts and an LLM."""
    created = manager.create("wells", ProjectConfig.local(indexes="lexical", prices=PRICES), llm=llm)
    created.ingest(documents())
    return created


def contexts(result: Payoff, name: str) -> dict[str, str]:
    """Return the source of the context of each document that was retrieved."""
    chunks = [chunk for one in result[name].results for chunk in one.results]
    return {chunk.source.doc_id or "": chunk.node.metadata["context_source"] for chunk in chunks}


def test_the_llm_writes_contexts_for_the_sample_and_all_documents_are_searched(
    project: Project, llm: ScriptedLLM
) -> None:
    versions = project.versions()
    result = evaluate_payoff(project, QUESTIONS, sample=5)
    assert len(result.sample) == len(llm.history) == 5
    assert [question.question.id for question in result["llm"].results] == [
        question.id for question in QUESTIONS if question.evidence[0].file in result.sample
    ]
    assert set(contexts(result, "structural").values()) <= {"structural", "none"}
    sources = contexts(result, "llm")
    assert {doc_id for doc_id, source in sources.items() if source == "llm"} == set(result.sample)
    assert len(sources) == len(PLACES), "the other documents compete"
    assert (result.documents, result.questions_outside, result.verdict) == (12, 7, "not measurable")
    assert result.notes[:2] == (
        "LLM contexts for 5 of 12 documents; all are searched. 5 questions.",
        "Left out because of evidence outside the sample: 7 questions.",
    )
    assert project.versions() == versions
    assert {path.name for path in project.directory.parent.iterdir()} == {project.name}


def test_a_second_sample_pays_for_its_new_documents_only(project: Project, llm: ScriptedLLM) -> None:
    first = evaluate_payoff(project, QUESTIONS, sample=5)
    assert evaluate_payoff(project, QUESTIONS, sample=5).gain == first.gain
    assert len(llm.history) == 5
    second = evaluate_payoff(project, QUESTIONS, sample=5, seed=1)
    assert len(llm.history) == len({*first.sample, *second.sample})
    everything = evaluate_payoff(project, QUESTIONS, sample=99)
    assert len(llm.history) == len(everything.sample) == 12
    assert (everything.rest.calls, everything.rest_dollars, everything.questions_outside) == (0, 0.0, 0)


def test_the_price_is_reported_before_anything_is_sent_and_limits_the_sample(
    project: Project, llm: ScriptedLLM
) -> None:
    prices: list[float | None] = []

    def stop(progress: VariantProgress) -> None:
        prices.append(progress.dollars)
        raise KeyboardInterrupt

    for size, questions in ((3, QUESTIONS), (6, QUESTIONS), (3, None)):
        with pytest.raises(KeyboardInterrupt):
            evaluate_payoff(project, questions, sample=size, progress=stop)
    few, many, with_questions = (dollars or 0.0 for dollars in prices)
    assert 0 < few < many < 0.1
    assert with_questions > few, "the questions are paid for as well"
    with pytest.raises(InputError, match="more than the limit"):
        evaluate_payoff(project, QUESTIONS, sample=6, max_cost=few)
    assert llm.history == []


def test_the_rest_is_priced_at_the_tokens_that_the_sample_took(
    manager: ProjectManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackProvider(reply=lambda request: Reply("The sentence gives the depth of a well.")) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_API_BASE", provider.api_base)
        config = ProjectConfig.local(indexes="lexical", llm="openai:gpt-4.1")
        project = manager.create("wells", config)
        project.ingest(documents())
        result = evaluate_payoff(project, QUESTIONS, sample=4)
        spent = project.cost()
        assert len(provider.calls()) == 4
        assert result.rest.calls == 8
        again = evaluate_payoff(project, QUESTIONS, sample=99)
        paid = project.cost()
    assert result.rest_dollars
    assert result.rest_dollars == pytest.approx((paid.dollars or 0.0) - (spent.dollars or 0.0), rel=0.05)
    assert again.rest.calls == 0


def test_without_questions_the_llm_writes_some_about_the_sample(project: Project, llm: ScriptedLLM) -> None:
    llm.default = "1. How deep is the well of the station?\n2. Which well is it, and where?"
    result = evaluate_payoff(project, sample=4, number=6)
    questions = [one.question for one in result["llm"].results]
    assert len(questions) == 6
    assert {item.file for question in questions for item in question.evidence} <= set(result.sample)
    assert "your own questions are a better measure" in " ".join(result.notes)


def run(*arguments: object, answer: str | None = None, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(cli.app, ["evaluate", "wells", *map(str, arguments)], input=answer)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result.stdout, result.stderr


@pytest.fixture
def questions(project: Project, llm: ScriptedLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of questions; the command finds the project and its LLM."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(project.directory.parent))
    load = ProjectManager.load
    monkeypatch.setattr(ProjectManager, "load", lambda self, name, **options: load(self, name, **options, llm=llm))
    write_questions(QUESTIONS, tmp_path / "q.jsonl")
    return tmp_path / "q.jsonl"


def test_the_command_confirms_the_price_and_prints_the_recommendation(questions: Path, llm: ScriptedLLM) -> None:
    _, err = run(questions, "--sample", 6, answer="n\n", code=1)
    page = questions.with_name("r.html")
    assert re.search(r"will cost about \$0\.\d+ for contexts", err)
    assert llm.history == []
    out, err = run(questions, "--sample", 6, "--report", page, answer="y\n")
    words = " ".join(out.split())
    assert "llm − structural, nDCG@10:" in words
    assert "llm − structural, recall@20:" in words
    assert "Contexts for the 6 other documents, at the token counts of the sample: 6 calls," in words
    assert "Not measurable with so few questions: the gain in nDCG@10 on 6 questions is" in words
    assert "Not measurable with so few questions" in page.read_text(encoding="utf-8")
    assert "Building 'llm' …" in err
    assert len(llm.history) == 6
    values = json.loads(run(questions, "--sample", 6, "--json", "--yes")[0])
    assert values["payoff"]["verdict"] == "not measurable"


def test_the_command_saves_the_questions_that_the_llm_wrote(questions: Path, tmp_path: Path, llm: ScriptedLLM) -> None:
    llm.default = "1. How deep is the well of the station?\n2. Which well is it, and where?"
    path = tmp_path / "written.jsonl"
    _, err = run("--sample", 3, "--number", 4, "--save", path, "--max-cost", 1)
    assert "The LLM is writing questions …" in err
    assert len(load_questions(path)) == 4
