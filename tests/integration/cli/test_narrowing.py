"""`--filter`, `--file` and `--facts` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import run

TEXTS = {
    "a/report.txt": "The pump of the plant runs dry.",
    "b/report.txt": "The pump of the other plant is new.",
    "notes.md": "# Notes\n\nThe pump was named in the notes.",
    "old.md": "# Old\n\nThe pump was in an old text.",
}
FACTS = {
    "*.txt": {"kind": "report", "year": 2024, "open": True},
    "b/report.txt": {"year": 2025},
    "notes.md": {"kind": "note", "label": "2024", "owner": "Ann Müller"},
    "none.md": {"kind": "lost"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with project "p" of four files, with facts about three of them; no test changes it."""
    folder = tmp_path_factory.mktemp("narrow")
    root, facts = folder / "knowledge", folder / "facts.json"
    for name, text in TEXTS.items():
        (folder / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "texts" / name).write_text(text, encoding="utf-8")
    facts.write_text(json.dumps(FACTS), encoding="utf-8")
    ProjectManager(root).create("p", ProjectConfig.local(indexes="lexical"))
    result = run("ingest", "p", folder / "texts", "--facts", facts, "--quiet", "--root", root)
    assert result.code == 0
    return root


REPORTS = {"a/report.txt", "b/report.txt"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], set(TEXTS)),
        (["--filter", "kind=report"], REPORTS),
        (["--filter", "kind=report", "--filter", "kind=note"], REPORTS | {"notes.md"}),
        (["--filter", "year>=2024"], REPORTS),
        (["--file", "report.txt"], REPORTS),
        (["--file", "*.md", "--file", "b/*"], {"notes.md", "old.md", "b/report.txt"}),
        (["--file", "*.txt", "--filter", "year=2025"], {"b/report.txt"}),
    ],
)
def test_a_search_is_narrowed(root: Path, options: list[str], expected: set[str]) -> None:
    result = run("search", "p", "pump", "--json", "--root", root, *options)
    assert result.code == 0, result.err
    assert {hit["source"]["doc_id"].partition("/")[2] for hit in result.json["results"]} == expected


def test_ask_without_an_llm_shows_passages_that_pass_the_filter(root: Path) -> None:
    result = run("ask", "p", "pump", "--filter", "kind=note", "--root", root)
    assert (result.code, result.out.count(" 1. "), result.out.count(" 2. ")) == (0, 1, 0)
    assert "notes.md" in result.out
    chat = run("chat", "p", "--file", "old.md", "--json", "--root", root, answer="pump\n")
    assert len(chat.json[0]["retrieval"]["results"]) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{file} cannot be read as JSON ([Errno 2] No such file"),
        (None, 'write {"report.pdf": {"kind": "report"}'),
        ("{", "cannot be read as JSON"),
        ("[1]", "is not a JSON object: write {"),
        ('{"a": 1}', "is not an object of facts by file: write {"),
        ('{"*": {"kind": [36893488147419103232]}}', "The value of the metadata 'kind' of a file does not fit"),
    ],
)
def test_facts_that_cannot_be_used_are_refused(tmp_path: Path, root: Path, content: str | None, message: str) -> None:
    file = tmp_path / "facts.json"
    if content is not None:
        file.write_text(content)
    for command in ("estimate", "ingest"):
        result = run(command, "p", root.parent / "texts", "--facts", file, "--root", root)
        assert result.code == 1
        assert message.replace("{file}", str(file)) in result.err
