"""The command `evaluate`: figures, comparison, sweep, reports, and confirmation of the cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli import app as cli
from llama_index_contextual.config import ProjectConfig, TokenPrice
from llama_index_contextual.evaluation.compare import Workspace
from llama_index_contextual.evaluation.questions import load_questions, write_questions
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.evaluation.support import QUESTIONS
from tests.support.models import ScriptedLLM


@pytest.fixture
def questions(tmp_path: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of questions, and project "a" in the root folder that the environment names."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    ProjectManager(tmp_path / "knowledge").create("a", ProjectConfig.local()).ingest([text_folder])
    write_questions(QUESTIONS, tmp_path / "q.jsonl")
    return tmp_path / "q.jsonl"


def run(*arguments: object, answer: str | None = None, code: int = 0) -> tuple[str, str]:
    """Run the command and return its standard output and standard error."""
    result = CliRunner().invoke(cli.app, ["evaluate", *map(str, arguments)], input=answer)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result.stdout, result.stderr


def test_the_figures_of_a_project_are_shown(questions: Path) -> None:
    out, _ = run("a", questions, "--k", "1,3", "--similarity")
    lines = [line.split() for line in out.splitlines()]
    assert ["recall@3", "100.0"] in lines
    assert any(line[:2] == ["embedding", "similarity"] for line in lines)
    assert "Evidence missing from the first 3 results: 0 of 2 questions." in out


def test_failed_questions_are_shown_with_their_first_result(questions: Path) -> None:
    questions.write_text(json.dumps({"question": "Does the pump run dry?", "relevant": ["absent"]}))
    out, _ = run("a", questions)
    assert ": 1 of 1 question." in out
    assert "Does the pump run dry?: first result manual.txt" in out


def test_questions_about_missing_files_are_counted_in_a_note(questions: Path) -> None:
    lines = [{"question": "Does it?", "file": file, "evidence": ["the pump runs dry"]} for file in ("no", "manual.txt")]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    note = "In files that the project does not have: evidence of 1 question."
    assert note in run("a", questions)[1].splitlines()
    assert note in run("a", questions, "--compare", "none,structural")[0].splitlines()
    assert note in run("a", questions, "--sweep", "20,800")[0].splitlines()


@pytest.mark.parametrize("arguments", [["--compare", "none,structural"], ["--sweep", "20,800"]])
def test_ctrl_c_reports_what_the_ledger_keeps(
    questions: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workspace, "build", interrupted)
    _, err = run("a", questions, *arguments, code=130)
    assert "Interrupted: version v000001 is live; the ledger keeps 0 contexts and 0 embeddings. Run the same" in err


def test_variants_are_compared_and_one_is_recommended(questions: Path) -> None:
    out, err = run("a", questions, "--compare", "none,structural", "--k", "1,3")
    assert "structural − none, nDCG@3: +0.0 points" in out
    assert "Use 'none': 'structural' (+0.0 points" in " ".join(out.split())
    assert "Building 'none' …" in err
    assert "cost" not in err


def test_a_sweep_is_one_table(questions: Path) -> None:
    out, _ = run("a", questions, "--sweep", "20,800", "--compare", "none", "--k", "1,3")
    rows = [line.split() for line in out.splitlines() if line.startswith("none")]
    assert [(row[1], row[2], row[3]) for row in rows] == [
        (size, mode, k) for size in ("20", "800") for mode in ("semantic", "lexical", "hybrid") for k in ("1", "3")
    ]


def test_reports_are_written_and_named(questions: Path, tmp_path: Path) -> None:
    pages = [tmp_path / "r.html", tmp_path / "r.csv"]
    _, err = run("a", questions, "--report", pages[0], "--report", pages[1])
    assert all(page.stat().st_size > 100 and f"Wrote {page}." in err for page in pages)


def test_json_output_of_a_comparison_equals_the_report(questions: Path) -> None:
    out, _ = run("a", questions, "--compare", "none,structural", "--json")
    assert [variant["summary"]["name"] for variant in json.loads(out)["variants"]] == ["none", "structural"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k", "0"], "--k is '0': pass positive whole numbers"),
        (["--sweep", "a"], "--sweep is 'a': pass positive whole numbers"),
        (["--compare", "none,best"], "use two or three of none, structural, llm"),
        (["--report", "r.pdf"], "use the extension .csv, .json or .html"),
        (["--report", "absent/r.csv"], "absent is not a folder: create it, or choose another one for r.csv"),
    ],
)
def test_an_invalid_option_is_a_one_line_error(questions: Path, arguments: list[str], message: str) -> None:
    out, err = run("a", questions, *arguments, code=1)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_an_invalid_question_is_a_one_line_error(questions: Path) -> None:
    questions.write_text("{}\n")
    _, err = run("a", questions, code=1)
    assert err.startswith("Error: q.jsonl, line 1: has no evidence: add ")
    assert err.count("\n") == 1


def with_llm(monkeypatch: pytest.MonkeyPatch) -> ScriptedLLM:
    """Give every loaded project an LLM with a price."""
    llm = ScriptedLLM(default="1. What does error TS-999 mean?\n2. " + "What grew over the quarter before? " * 3)
    prices = {"ScriptedLLM:scripted": TokenPrice(input=2.0, output=8.0)}
    load = ProjectManager.load

    def loaded(manager: ProjectManager, name: str) -> Project:
        project = load(manager, name, llm=llm)
        project.config = project.config.changed(prices=prices)
        return project

    monkeypatch.setattr(ProjectManager, "load", loaded)
    return llm


def test_the_price_is_shown_and_confirmed_before_anything_is_sent(
    questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = with_llm(monkeypatch)
    _, err = run("a", questions, "--compare", "none,llm", answer="n\n", code=1)
    assert "will cost about $0.00" in err
    assert llm.history == []
    run("a", questions, "--compare", "none,llm", "--yes")
    assert len(llm.history) == 2


def test_a_report_that_cannot_be_written_fails_before_the_evaluation(
    questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = with_llm(monkeypatch)
    run("a", "--report", "r.pdf", code=1)
    assert llm.history == []


def test_questions_are_not_generated_if_they_cannot_be_saved(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Project, "generate_questions", lambda *_: pytest.fail("asked"))
    _, err = run("a", "--save", tmp_path / "absent" / "q.jsonl", code=1)
    assert "absent is not a folder" in err


def test_a_sweep_with_an_llm_is_confirmed_too(questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = with_llm(monkeypatch)
    arguments = ("a", questions, "--sweep", "800", "--compare", "llm", "--k", "3")
    _, err = run(*arguments, answer="n\n", code=1)
    assert "will cost about $0.00" in err
    assert "--sample 20 uses only twenty of them" in err
    assert llm.history == []
    out, _ = run(*arguments, "--yes")
    assert len(llm.history) == 2
    assert out.count("llm") == 3


def test_without_a_file_questions_are_generated_and_saved(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_llm(monkeypatch)
    out, err = run("a", "--number", "3", "--save", tmp_path / "written.jsonl")
    assert "The LLM is writing 3 questions" in err
    assert len(load_questions(tmp_path / "written.jsonl")) == 3
    assert " of 3 questions." in out
