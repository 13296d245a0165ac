"""Errors of commands: one line that says what to do, and an exit code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from llama_index_contextual.cli import app as cli
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.pdf_files import encrypted

ERRORS = [
    ("info b", r"There is no project 'b' in .*: projects there: a\."),
    ("create a", "'a' exists already: choose another name, or delete it first with `llama-index-contextual delete a`"),
    ("create ../a", r"'\.\./a' is not a valid project name"),
    ("create b --set chunk_size=0", "Setting 'chunk_size' cannot be 0"),
    ("create b --set chunk_sise=800", "Unknown setting 'chunk_sise'. Did you mean 'chunk_size'[?]"),
    ("create b --set language=klingon", "'language' cannot be 'klingon': must be one of "),
    ("create b --root {file}", "file.txt is a file: choose another name or another root folder"),
    ("create b --config {nowhere}.json", "nowhere.json"),
    ("search a x -k 0", "top_k is 0: request at least one result"),
    ("documents a nosuch", "No document is named 'nosuch'"),
    ("remove a c.pdf", "Project 'a' has no document 'c.pdf'"),
    ("rollback a", "version"),
    ("ledger import a {nowhere}", "nowhere does not exist: name a file that `ledger export` wrote"),
    ("ledger export a {nowhere}/x.jsonl", "nowhere is not a folder: create it, or choose another one for x.jsonl"),
    ("delete b --yes", "There is no project 'b'"),
]


@pytest.mark.parametrize(("line", "message"), [*ERRORS, ("search a _", "The query is empty: ask a question")])
def test_an_error_is_one_line_and_exit_code_1(reading_only: Path, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    words = line.format(nowhere=tmp_path / "nowhere", file=tmp_path / "file.txt").split()
    result = run(*(" " if word == "_" else word for word in words))
    assert (result.code, result.out) == (1, "")
    assert re.match(f"Error: .*{message}", result.err), result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        *("nonsense", "info", "info a b", "ingest a", "list --nonsense", "configure a chunk_size"),
        *("search a x --mode magic", "search a x -k many", "create a --set chunk_size"),
    ],
)
def test_wrong_usage_is_exit_code_2(reading_only: Path, line: str) -> None:
    result = run(*line.split())
    assert (result.code, result.out) == (2, "")
    assert "Usage: " in result.err
    assert "Traceback" not in result.err


def test_a_missing_path_exits_with_2_or_with_1_if_others_were_read(
    ingested: Project, text_folder: Path, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    for arguments in (["ingest"], ["estimate"]):
        result = run(*arguments, "a", nowhere)
        assert (result.code, result.out) == (2, "")
        assert result.err == f"Error: There is nothing to ingest. {nowhere}: does not exist.\n"
    for arguments in (["ingest", "--quiet"], ["ingest", "--json"], ["estimate"], ["estimate", "--json"]):
        result = run(*arguments, "a", text_folder, nowhere)
        assert result.code == 1
        assert f"{nowhere}" in result.out + result.err
        assert "Error" not in result.err
    assert len(ingested.versions()) == 1


def test_passwords_open_encrypted_files_and_are_not_stored(ingested: Project, tmp_path: Path) -> None:
    folder = tmp_path / "safe"
    folder.mkdir()
    for name, password in (("one.pdf", "ses=ame"), ("two.pdf", "mustard")):
        (folder / name).write_bytes(encrypted(password))
    result = run("ingest", "a", folder, "--password", "mustard", "--quiet")
    assert "1 added" in result.out
    assert "the password given for it does not open it" in result.out + result.err
    assert "--password" in run("ingest", "a", folder / "one.pdf", "--quiet").err
    with_passwords = ("--password", f"{folder / 'one.pdf'}=ses=ame", "--password", "mustard")
    assert run("estimate", "a", folder, *with_passwords, "--json").json["documents"] == 1
    assert "1 added, 1 unchanged" in run("ingest", "a", folder, *with_passwords, "--quiet").out
    written = b"".join(path.read_bytes() for path in ingested.directory.rglob("*") if path.is_file())
    assert b"mustard" not in written
    assert b"ses=ame" not in written


def test_an_evaluation_without_any_of_its_files_is_an_error(reading_only: Path, tmp_path: Path) -> None:
    lines = [{"question": f"Question {n}?", "file": f"{n}.pdf", "evidence": [{"page": 1}]} for n in range(2)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for options in ([], ["--compare", "none,structural"], ["--sweep", "20"], ["--json"]):
        result = run("evaluate", "a", tmp_path / "questions.jsonl", *options)
        assert (result.code, result.out) == (1, "")
        assert "The evidence of 2 questions is in files that the project does not have, such as '0.pdf'" in result.err


@pytest.mark.parametrize(
    ("file", "content"), [("project.json", b"[["), ("CURRENT", b"junk"), ("ledger.sqlite", b"no database " * 999)]
)
def test_a_damaged_project_is_a_one_line_error_and_can_be_deleted(ingested: Project, file: str, content: bytes) -> None:
    (ingested.directory / file).write_bytes(content)
    result = run("info", "a")
    assert (result.code, result.out) == (1, "")
    assert file in result.err
    assert result.err.count("\n") == 1
    assert run("delete", "a", "--yes").out == "Deleted project a.\n"
    assert run("list").out == ""


def test_a_bug_is_a_traceback_that_cannot_act_on_the_terminal(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_self: ProjectManager) -> list[str]:
        raise RuntimeError("[bold]boom[/bold]\n\x1b[31m")

    monkeypatch.setattr(ProjectManager, "list", broken)
    monkeypatch.setattr(sys, "argv", ["llama-index-contextual", "list"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    printed = capsys.readouterr()
    assert printed.out == ""
    *trace, last, report = printed.err.splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert last == r"\x1b[31m"
    assert report == "Error: This is a bug: please report it with the lines above."
