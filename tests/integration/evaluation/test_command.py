"""The command `evaluate`: figures, comparison, sweep, reports, and confirmation of the cost."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli import app as cli
from llama_index_contextual.evaluation import compare
from llama_index_contextual.evaluation.questions import load_questions, write_questions
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import ScriptedLLM
from tests.unit.evaluation.support import QUESTIONS


@pytest.fixture
def questions(tmp_path: Path, filled: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of questions, and project "reports" in the root folder that the environment names."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(filled.directory.parent))
    write_questions(QUESTIONS, tmp_path / "q.jsonl")
    return tmp_path / "q.jsonl"


def run(*arguments: object, answer: str | None = None, code: int = 0) -> tuple[str, str]:
    """Run the command on the project and return its standard output and standard error."""
    result = CliRunner().invoke(cli.app, ["evaluate", "reports", *map(str, arguments)], input=answer)
    assert result.exit_code == code, (result.stdout, result.stderr)
    return result.stdout, result.stderr


def test_the_figures_of_a_project_are_shown_and_reports_written(questions: Path, tmp_path: Path) -> None:
    pages = [tmp_path / "r.html", tmp_path / "r.csv"]
    out, err = run(questions, "--report", pages[0], "--report", pages[1])
    lines = [line.split() for line in out.splitlines()]
    assert ["recall@20", "100.0"] in lines
    assert "Evidence missing from the first 20 results: 0 of 2 questions." in out
    assert all(page.stat().st_size > 100 and f"Wrote {page}." in err for page in pages)


def test_failed_questions_are_shown(questions: Path) -> None:
    evidence = ["the pump runs dry", "bronze fittings"]
    questions.write_text(json.dumps({"question": "Does the pump run dry?", "evidence": evidence}))
    out, _ = run(questions)
    assert ": 1 of 1 question." in out
    assert "Does the pump run dry?" in out


ABSENT = {
    "text": {"evidence": ["bronze fittings are exported free of duty"]},
    "text of another file": {"file": "quarter.md", "evidence": ["the pump runs dry"]},
    "span": {"file": "manual.txt", "evidence": [{"start": 5_000, "end": 5_090}]},
    "page": {"file": "manual.txt", "evidence": [{"page": 7}]},
    "chunk": {"relevant": ["absent"]},
}


@pytest.mark.parametrize("options", [(), ("--compare", "none,structural"), ("--sweep", "20,800"), ("--steps",)])
def test_evidence_that_no_passage_contains_is_named_in_a_note(questions: Path, options: tuple[str, ...]) -> None:
    absent = {kind: value for kind, value in ABSENT.items() if kind != "chunk" or "--sweep" not in options}
    rows = [{"question": "Is it?", "id": kind, **evidence} for kind, evidence in absent.items()]
    page = questions.with_name("r.html")
    questions.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    refusal = f"No passage of the project contains evidence of {len(rows)} questions, such as 'text', 'text of"
    assert refusal in run(questions, *options, code=1)[1]
    with questions.open("a") as file:
        file.write(json.dumps({"question": "What does TS-999 mean?", "evidence": ["the pump runs dry"]}))
    note = f"In no passage of the project: evidence of {len(rows)} questions ('text', 'text of another file', 'span')"
    assert note in " ".join("".join(run(questions, *options, "--report", page)).split())
    assert note in unescape(page.read_text())
    assert note in run(questions, *options, "--json")[0]


def test_questions_about_missing_files_are_counted_in_a_note(questions: Path) -> None:
    lines = [{"question": "Does it?", "file": file, "evidence": ["the pump runs dry"]} for file in ("no", "manual.txt")]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    note = "In files that the project does not have: evidence of 1 question."
    assert note in run(questions)[1].splitlines()
    assert note in run(questions, "--compare", "none,structural")[0].splitlines()
    assert note in run(questions, "--sweep", "20,800")[0].splitlines()


@pytest.mark.parametrize("arguments", [["--compare", "none,structural"], ["--sweep", "20,800"]])
def test_ctrl_c_reports_what_the_ledger_keeps(
    questions: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "_build", interrupted)
    _, err = run(questions, *arguments, code=130)
    assert "Interrupted: version v000001 is live; the ledger keeps 0 contexts and 0 embeddings. Run the same" in err


def test_variants_are_compared_and_one_is_recommended(questions: Path) -> None:
    out, err = run(questions, "--compare", "none,structural")
    assert "structural − none, nDCG@10: +0.0 points" in out
    assert "Use 'none': 'structural' (+0.0 points" in " ".join(out.split())
    assert "Building 'none' …" in err
    assert "cost" not in err


def test_steps_are_shown_recommended_and_drawn(questions: Path, tmp_path: Path) -> None:
    chart = tmp_path / "steps.svg"
    out, err = run(questions, "--steps", "--top-k", 1, "--report", chart)
    words = " ".join(out.split())
    assert "Failed retrievals (1 − recall@1) in per cent" in words
    assert "+ LLM context skipped: The settings name no LLM: set `llm`." in words
    assert "+ reranker skipped: No model is named" in words
    assert "Use 'embeddings': no other step has significantly fewer failed retrievals on 2 questions" in words
    assert f"Wrote {chart}." in err
    assert chart.read_text(encoding="utf-8").startswith("<svg ")
    values = json.loads(run(questions, "--steps", "--json")[0])
    assert [row["step"] for row in values["steps"] if row["skipped"]] == ["+ LLM context", "+ reranker"]


def test_a_reranker_that_costs_more_than_the_limit_is_not_used(
    questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "rerank_price", lambda *_: 0.5)
    _, err = run(questions, "--rerank", "spotlight", "--max-cost", 0.4, code=1)
    assert "would cost about $0.5000, more than the limit of $0.4000" in " ".join(err.split())


def test_a_sweep_is_one_table(questions: Path) -> None:
    out, _ = run(questions, "--sweep", "20,800", "--compare", "none")
    rows = [line.split() for line in out.splitlines() if line.startswith("none")]
    assert [(row[1], row[2], row[3]) for row in rows] == [
        (size, mode, k)
        for size in ("20", "800")
        for mode in ("semantic", "lexical", "hybrid")
        for k in ("1", "5", "10", "20")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "a"], "--sweep is 'a': pass whole numbers"),
        (["--compare", "none,best"], "use two or three of none, structural, llm"),
        (["--report", "r.pdf"], "use the extension .csv, .json or .html"),
        (["--steps", "--sweep", "800"], "--steps measures its own variants: omit --compare and --sweep."),
        (["--report", "s.svg"], "s.svg is not a report: use the extension .csv, .json or .html."),
        (["--steps", "--report", "s.png"], "use the extension .csv, .json, .html or .svg."),
        (["--answers", "--rerank", "none"], "omit --compare, --steps, --sweep and --rerank."),
        (["--report", "absent/r.csv"], "absent is not a folder: create it, or choose another one for r.csv"),
        ([], "Error: q.jsonl, line 1: The question has no evidence: add "),
    ],
)
def test_an_invalid_option_or_question_is_a_one_line_error(questions: Path, arguments: list[str], message: str) -> None:
    if not arguments:
        questions.write_text('{"question": "Why?"}\n')
    out, err = run(questions, *arguments, code=1)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def with_llm(monkeypatch: pytest.MonkeyPatch) -> ScriptedLLM:
    """Give every loaded project an LLM with a price."""
    llm = ScriptedLLM(default="1. What does error TS-999 mean?\n2. " + "What grew over the quarter before? " * 3)
    prices = {"ScriptedLLM:scripted": Price(input=2.0, output=8.0)}
    load = ProjectManager.load

    def loaded(manager: ProjectManager, name: str) -> Project:
        project = load(manager, name, llm=llm)
        project.state.config = project.config.changed(prices=prices)
        return project

    monkeypatch.setattr(ProjectManager, "load", loaded)
    return llm


@pytest.mark.parametrize(
    "arguments",
    [["--compare", "none,llm"], ["--sweep", "800", "--compare", "llm"], ["--steps"]],
    ids=["compare", "sweep", "steps"],
)
def test_the_price_is_shown_and_confirmed_before_anything_is_sent(
    questions: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = with_llm(monkeypatch)
    _, err = run(questions, *arguments, answer="n\n", code=1)
    assert "will cost about $0.00" in err
    assert llm.history == []
    run(questions, *arguments, "--yes")
    assert len(llm.history) == 2


@pytest.mark.parametrize(
    ("option", "path", "message"),
    [("--report", "r.pdf", "use the extension"), ("--save", "absent/q.jsonl", "absent is not a folder")],
)
def test_questions_are_not_generated_if_they_or_the_report_cannot_be_written(
    questions: Path, option: str, path: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = with_llm(monkeypatch)
    _, err = run(option, questions.parent / path, code=1)
    assert message in err
    assert llm.history == []


def test_without_a_file_questions_are_generated_and_saved(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_llm(monkeypatch)
    out, err = run("--number", "3", "--save", tmp_path / "written.jsonl")
    assert "The LLM is writing 3 questions" in err
    assert len(load_questions(tmp_path / "written.jsonl")) == 3
    assert " of 3 questions." in out


def test_the_limits_of_relevance_are_chosen_and_stored(questions: Path, filled: Project) -> None:
    _, err = run("--calibrate", code=1)
    assert "--calibrate needs a file of questions" in err
    _, err = run(questions, "--calibrate", "--steps", code=1)
    assert "omit --compare, --steps, --sweep and --sample" in err
    _, err = run(questions, "--calibrate", code=1)
    assert "at least 30 are needed" in err
    write_questions([replace(QUESTIONS[0], id=str(number)) for number in range(30)], questions)
    out, err = run(questions, "--calibrate")
    stored = ProjectManager(filled.directory.parent).load(filled.name).config
    assert stored.min_relevance is not None
    assert out.startswith(f"min_relevance={stored.min_relevance:g} keeps 100.0% of the evidence among the first 5")
    assert "Stored in the settings" in err
