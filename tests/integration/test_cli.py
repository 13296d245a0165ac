"""The command line: output, exit codes, Ctrl-C, and control characters in texts."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document
from rich.cells import cell_len
from typer.main import get_command
from typer.testing import CliRunner

import llama_index_contextual
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import app as cli
from llama_index_contextual.cli import terminal
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry, content_key
from tests.support.pdf_files import encrypted
from tests.support.records import Request
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

SECONDS = 300.0

# Every command with arguments that succeed on a project "a" with one version of two documents.
COMMANDS: dict[str, list[str]] = {
    "create": ["b", "--local"],
    "settings": ["a"],
    "list": [],
    "info": ["a"],
    "cost": ["a"],
    "estimate": ["a", "{folder}"],
    "ingest": ["a", "{folder}"],
    "sync": ["a", "{folder}"],
    "search": ["a", "error TS-999"],
    "ask": ["a", "error TS-999"],
    "chat": ["a"],
    "evaluate": ["a", "{questions}"],
    "documents": ["a"],
    "remove": ["a", "reports/quarter.md"],
    "forget": ["a", "--yes"],
    "configure": ["a", "top_k=5"],
    "rebuild": ["a"],
    "retry": ["a"],
    "versions": ["a"],
    "rollback": ["a", "--to", "v000001"],
    "verify": ["a"],
    "export": ["a", "{empty}/exported"],
    "inspect": ["a", "--html", "{empty}/page.html", "--query", "error TS-999"],
    "ledger export": ["a", "{empty}/contexts.jsonl"],
    "ledger import": ["a", "{contexts}"],
    "delete": ["a", "--yes"],
}
# Needs no project, takes no root, and is run in test_demo.py.
WITHOUT_ROOT = {"demo"}
# Run until their client or user ends them; see test_mcp.py and ui/test_server.py.
SERVERS = ("mcp", "serve")


class Result:
    """What a command printed and how it ended."""

    def __init__(self, found: Any) -> None:
        self.code: int = found.exit_code
        self.out: str = found.stdout
        self.err: str = found.stderr
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: object, answer: str | None = None) -> Result:
    """Run a command in this process."""
    return Result(CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=answer))


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a terminal on standard input, where `run` answers."""
    monkeypatch.setattr("llama_index_contextual.cli.options.has_terminal", lambda: True)


def spawn(*arguments: object, stdin: int = subprocess.DEVNULL, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "llama_index_contextual", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def commands() -> dict[str, Any]:
    """Return every command by its full name."""
    results: dict[str, Any] = {}
    for name, command in get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        results.update({f"{name} {sub}": leaf for sub, leaf in inner.items()} if inner else {name: command})
    return results


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root folder, known to every command by the environment."""
    path = tmp_path / "knowledge"
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(path))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def ingested(root: Path, text_folder: Path) -> Project:
    """Project "a" with one version of two documents."""
    project = ProjectManager(root).create("a", ProjectConfig.local())
    project.ingest([text_folder])
    return project


# ---- every command -------------------------------------------------------------------------------------------------


def test_every_command_is_tested_in_this_module() -> None:
    assert set(commands()) == set(COMMANDS) | WITHOUT_ROOT | set(SERVERS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_json_and_nothing_else(
    name: str, ingested: Project, root: Path, text_folder: Path, tmp_path: Path
) -> None:
    contexts, empty = tmp_path / "contexts.jsonl", tmp_path / "empty"
    contexts.write_text(
        json.dumps(
            {
                "key": content_key("x"),
                "context": "A context of the passage in its text, as long as it has to be here.",
                "model": "openai:gpt-4.1",
            }
        )
    )
    empty.mkdir()
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"question": "error TS-999", "evidence": ["the pump runs dry"]}))
    places = {"folder": text_folder, "empty": empty, "contexts": contexts, "questions": questions}
    arguments = [argument.format(**places) for argument in COMMANDS[name]]
    result = run(*name.split(), *arguments, "--root", root, "--json")
    assert (result.code, result.err if name != "ingest" else "") == (0, "")
    assert result.out.endswith(("}\n", "]\n"))
    assert result.json is not None


@pytest.mark.parametrize("name", [*COMMANDS, *WITHOUT_ROOT, *SERVERS])
def test_help_explains_the_command_and_every_option(name: str) -> None:
    result = run(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    command = commands()[name]
    first = (command.help or "").partition("\n")[0]
    assert re.fullmatch(r"[A-Z].*\.", first), first
    assert first.split()[0] in result.out
    for parameter in command.params:
        if parameter.name != "help":
            assert re.search(r"^[A-Z].*[.]$", parameter.help or ""), f"{name}: {parameter.name}: {parameter.help}"
    options = {option for parameter in command.params for option in parameter.opts}
    assert ("--json" in options) == (name not in SERVERS)
    assert ("--root" in options) == (name not in WITHOUT_ROOT)


def test_the_options_of_each_command_are_documented() -> None:
    results = {
        name: sorted({o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")})
        for name, command in commands().items()
    }
    extra = {name: sorted(set(options) - {"--json", "--root", "--help"}) for name, options in results.items()}
    switches = [f"--{no}{name}" for name in ("guard", "intents", "judge") for no in ("", "no-")]
    answering = ["--file", "--filter", "--llm", "--min-confidence", "--mode", "--reference-date", "--style", *switches]
    answering += [
        "--cache",
        "--no-cache",
        "--system-prompt",
        "--llm-intents",
        "--between-tokens-timeout",
        "--call-timeout",
        "--first-token-timeout",
    ]
    assert {name: options for name, options in extra.items() if options} == {
        "ask": sorted(answering),
        "chat": sorted([*answering, "--follow-ups", "--history"]),
        "create": ["--config", "--context", "--language", "--local", "--set"],
        "delete": ["--keep-ledger", "--yes", "-y"],
        "estimate": ["--batch", "--facts", "--moved", "--password", "--replace", "--reread"],
        "evaluate": [
            *("--answers", "--compare", "--contextual-embedding", "--k", "--max-cost", "--metric", "--number"),
            *("--report", "--sample", "--save", "--similarity", "--sweep", "--yes", "-y"),
        ],
        "forget": ["--dry-run", "--yes", "-y"],
        "ingest": [
            *("--batch", "--facts", "--max-cost", "--moved", "--password", "--quiet", "--ray", "--replace", "--reread"),
        ],
        "inspect": ["--documents", "--html", "--query", "--top-k"],
        "mcp": ["--allow-host", "--host", "--http", "--port", "--token"],
        "rebuild": ["--allow-loss", "--max-cost", "--quiet"],
        "remove": ["--forget", "--yes", "-y"],
        "retry": ["--max-cost", "--quiet"],
        "rollback": ["--to"],
        "search": ["--explain", "--file", "--filter", "--full", "--mode", "--top-k", "-k"],
        "sync": [
            *("--allow-empty", "--allow-many", "--batch", "--dry-run", "--facts", "--max-cost", "--moved"),
            *("--password", "--poll", "--quiet", "--rescan", "--settle", "--watch", "--yes", "-y"),
        ],
        "serve": ["--allow-host", "--documents", "--host", "--open", "--port", "--token"],
        "verify": ["--repair"],
    }


def test_a_proposed_command_is_quoted_for_any_name(root: Path, text_folder: Path) -> None:
    created = run("create", "my reports", "--local", "--set", "faiss=false")
    assert created.out.endswith("Next: llama-index-contextual ingest 'my reports' FILES…\n")
    run("ingest", "my reports", text_folder, "--quiet")
    assert "`llama-index-contextual rebuild 'my reports'`" in run("configure", "my reports", "chunk_size=400").out


def test_the_commands_of_the_readme_lead_to_an_answer(root: Path, text_folder: Path) -> None:
    assert "No projects in" in run("list").err
    created = run("create", "reports", "--local")
    assert created.out == (f"Created project reports in {root}.\nNext: llama-index-contextual ingest reports FILES…\n")
    assert run("list").out == "reports\n"
    (text_folder / "w.zip").write_text("x")
    done = run("ingest", "reports", text_folder, "--quiet")
    assert re.fullmatch(r"Version v000001 is live: 2 added, 1 skipped; 2 chunks; \d+\.\d s\.\n", done.out)
    assert done.err.startswith(f"skipped {text_folder}/w.zip: has the type .zip")
    assert done.err.count("\n") == 1
    result = run("search", "reports", "error TS-999", "--top-k", 1)
    first, blank, place = result.out.splitlines()[:3]
    assert re.fullmatch(r"1 result\. (High|Medium) confidence: the best passage matches .*\.", first)
    assert (blank, place) == ("", " 1. reports/manual.txt")
    assert "Error TS-999 means that the pump runs dry." in result.out
    assert result.err == ""
    shown = run("info", "reports").out
    assert re.search(r"^documents +2$", shown, re.MULTILINE)
    assert re.search(r"^live version +v000001$", shown, re.MULTILINE)


def test_an_excerpt_starts_at_the_rarest_word_of_the_question(root: Path, tmp_path: Path) -> None:
    text = "The pump was inspected. " * 12 + "Then Ukraine was named. " + "The pump was inspected again. " * 20
    (tmp_path / "long.txt").write_text(text)
    ProjectManager(root).create("a", ProjectConfig.local(context="none")).ingest([tmp_path / "long.txt"])
    passage = run("search", "a", "Was the pump inspected in Ukraine?").out.splitlines()[3].strip()
    assert passage.startswith("… Then Ukraine was named. The pump")
    assert len(passage) <= 320


def test_the_settings_are_listed_with_values_and_descriptions(ingested: Project) -> None:
    defaults, own = run("settings").out, run("settings", "a").out
    for name, field in ProjectConfig.model_fields.items():
        assert re.search(rf"^{name}=.*\n    {re.escape(field.description or '-')}$", defaults, re.MULTILINE), name
    assert 'embed_model="openai:text-embedding-3-small"  rebuild\n' in defaults
    assert 'embed_model="local"  rebuild\n' in own
    assert "top_k=20\n" in own
    listed = json.loads(run("settings", "a", "--json").out)
    assert [row["name"] for row in listed] == list(ProjectConfig.model_fields)
    (changed,) = (row for row in listed if row["name"] == "embed_model")
    assert (changed["value"], changed["default"]) == ("local", "openai:text-embedding-3-small")
    assert changed["rebuild"]


def test_help_shows_the_commands_in_four_groups() -> None:
    lines = run("--help").out.splitlines()
    places = [lines.index(title) for title in ("Projects", "Documents", "Questions", "Maintenance", "Options")]
    assert places == sorted(places)
    assert "Commands" not in lines


def test_a_search_without_results_says_so(ingested: Project) -> None:
    assert run("search", "a", "zebra", "--mode", "lexical").out == "No results.\n"
    reasons = run("search", "a", "TS-999", "-k", 1, "--explain").out
    assert "semantic 0.35 ×" in reasons
    assert "in the text: ts-999" in reasons


def test_the_folder_of_projects_is_knowledge_unless_another_is_given(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("create", "by-environment", "--local")
    run("create", "by-option", "--local", "--root", tmp_path / "other")
    monkeypatch.delenv("LLAMA_INDEX_CONTEXTUAL_ROOT")
    run("create", "by-default", "--local")
    assert ProjectManager(root).list() == ["by-default", "by-environment"]
    assert root == tmp_path / "knowledge"
    assert ProjectManager(tmp_path / "other").list() == ["by-option"]


def test_settings_are_given_as_json_or_as_text(root: Path) -> None:
    settings = ["chunk_size=256", "chunk_overlap=0", "faiss=false", "language=german", "context_prompt=null"]
    settings += ["semantic_weight=0.25", "embed_model=ollama:all=minilm"]
    options = [part for item in settings for part in ("--set", item)]
    config = run("create", "a", "--local", "--context", "none", *options, "--json").json["config"]
    assert (
        config
        == ProjectConfig.local(
            context="none",
            chunk_size=256,
            chunk_overlap=0,
            faiss=False,
            language="german",
            semantic_weight=0.25,
            embed_model="ollama:all=minilm",
        ).model_dump()
    )
    assert ProjectManager(root).load("a").config.chunk_size == 256


def test_configure_names_settings_that_need_a_rebuild(ingested: Project) -> None:
    assert run("configure", "a", "top_k=5").out == "Changed; takes effect with the next query.\n"
    changed = run("configure", "a", "chunk_size=64", "chunk_overlap=8").out
    assert changed.startswith("Changed. To apply chunk_size, chunk_overlap, run `llama-index-contextual rebuild a`")
    assert "2 rebuilt" in run("rebuild", "a", "--quiet").out


def test_version_and_help_of_the_whole() -> None:
    assert run("--version").out == f"{llama_index_contextual.__version__}\n"
    bare = run()
    assert bare.code == 2
    for name in commands():
        assert name.split()[0] in bare.out + bare.err


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "b"], r"There is no project 'b' in .*: projects there: a\."),
        (
            ["create", "a"],
            "'a' exists already: choose another name, or delete it first with `llama-index-contextual delete a`",
        ),
        (["create", "../a"], r"'\.\./a' is not a valid project name"),
        (["create", ""], "A project needs a name"),
        (["create", "b", "--set", "chunk_size=0"], "Setting 'chunk_size' cannot be 0"),
        (
            ["create", "b", "--set", "chunk_sise=800"],
            "Unknown setting 'chunk_sise'. Did you mean 'chunk_size'[?]",
        ),
        (["create", "b", "--language", "klingon"], "'language' cannot be 'klingon': must be one of "),
        (["search", "a", " "], "The query is empty: ask a question"),
        (["search", "a", "x", "-k", "0"], "top_k is 0: request at least one result"),
        (["remove", "a", "c.pdf"], "Project 'a' has no document 'c.pdf'"),
        (["rollback", "a"], "version"),
        (["ledger", "import", "a", "{nowhere}"], "nowhere does not exist: name a file that `ledger export` wrote"),
        (
            ["ledger", "export", "a", "{nowhere}/x.jsonl"],
            "nowhere is not a folder: create it, or choose another one for x.jsonl",
        ),
        (
            ["inspect", "a", "--html", "{nowhere}/x.html"],
            "nowhere is not a folder: create it, or choose another one for x.html",
        ),
        (["delete", "b", "--yes"], "There is no project 'b'"),
        (["create", "b", "--root", "{file}"], "file.txt is a file: choose another name or another root folder"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    ingested: Project, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "file.txt").write_text("x")
    places = {"nowhere": tmp_path / "nowhere", "file": tmp_path / "file.txt"}
    result = run(*(argument.format(**places) for argument in arguments))
    assert (result.code, result.out) == (1, "")
    assert re.match(f"Error: .*{message}", result.err), result.err
    assert result.err.count("\n") == 1


def test_a_missing_path_exits_with_2_or_with_1_if_others_were_read(
    ingested: Project, text_folder: Path, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    for arguments in (["ingest"], ["ingest", "--replace"], ["estimate"]):
        result = run(*arguments, "a", nowhere)
        assert (result.code, result.out) == (2, "")
        assert result.err == f"Error: There is nothing to ingest. {nowhere}: does not exist.\n"
    for arguments in (["ingest", "--quiet"], ["ingest", "--json"], ["estimate"], ["estimate", "--json"]):
        result = run(*arguments, "a", text_folder, nowhere)
        assert result.code == 1
        assert f"{nowhere}" in result.out + result.err
        assert "Error" not in result.err
    assert len(ProjectManager(ingested.directory.parent).load("a").versions()) == 1


def test_passwords_open_encrypted_files_and_are_not_stored(ingested: Project, tmp_path: Path) -> None:
    folder = tmp_path / "safe"
    folder.mkdir()
    for name, password in (("one.pdf", "ses=ame"), ("two.pdf", "mustard")):
        (folder / name).write_bytes(encrypted(password))
    result = run("ingest", "a", folder, "--quiet")
    assert "--password" in result.out + result.err
    result = run("ingest", "a", folder, "--password", "mustard", "--quiet")
    assert "1 added" in result.out
    assert "the password given for it does not open it" in result.out + result.err
    with_passwords = ("--password", f"{folder / 'one.pdf'}=ses=ame", "--password", "mustard")
    assert run("estimate", "a", folder, *with_passwords, "--json").json["documents"] == 1
    assert "1 added, 1 unchanged" in run("ingest", "a", folder, *with_passwords, "--quiet").out
    written = b"".join(path.read_bytes() for path in ingested.directory.rglob("*") if path.is_file())
    assert b"mustard" not in written
    assert b"ses=ame" not in written


def test_a_file_with_a_used_id_is_reported_and_a_moved_one_is_recognised(
    ingested: Project, text_folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "x" / "reports"
    other.mkdir(parents=True)
    (other / "manual.txt").write_text("Another manual.", encoding="utf-8")
    result = run("ingest", "a", other, "--quiet")
    assert "1 added" in result.out
    assert "its document gets the id 'x/reports/manual.txt'" in result.err
    assert "--moved" in result.err
    shown = [line.split("\t")[0] for line in run("documents", "a").out.splitlines()]
    assert shown == ["reports/manual.txt", "reports/quarter.md", "x/reports/manual.txt"]
    assert run("remove", "a", "x/reports/manual.txt").code == 0
    result = run("ingest", "a", other, "--moved", "--quiet")
    assert "0 added, 1 updated" in result.out
    assert run("estimate", "a", other, "--moved", "--json").json["documents"] == 0


def test_a_renamed_file_is_reported(ingested: Project, text_folder: Path) -> None:
    (text_folder / "manual.txt").rename(text_folder / "handbook.txt")
    result = run("ingest", "a", text_folder, "--quiet")
    assert "renamed reports/manual.txt to reports/handbook.txt" in result.err
    assert "1 renamed, 1 unchanged" in result.out


def test_an_evaluation_without_any_of_its_files_is_an_error(ingested: Project, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    lines = [{"question": f"Question {n}?", "file": f"{n}.pdf", "evidence": [{"page": 1}]} for n in range(2)]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for options in ([], ["--compare", "none,structural"], ["--sweep", "20"], ["--json"]):
        result = run("evaluate", "a", questions, *options)
        assert (result.code, result.out) == (1, "")
        assert "The evidence of 2 questions is in files that the project does not have, such as '0.pdf'" in result.err


def test_without_a_key_the_error_names_both_solutions(root: Path, text_folder: Path) -> None:
    run("create", "a")
    result = run("ingest", "a", text_folder, "--quiet")
    assert (result.code, result.out) == (1, "")
    assert re.match(
        r"Error: .*needs OPENAI_API_KEY.* set it in the environment or .*, or .* NAME --local`\.\n$", result.err
    )


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


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["info"],
        ["info", "a", "b"],
        ["ingest", "a"],
        ["search", "a", "x", "--mode", "magic"],
        ["search", "a", "x", "-k", "many"],
        ["create", "a", "--context", "magic"],
        ["create", "a", "--set", "chunk_size"],
        ["configure", "a", "chunk_size"],
        ["list", "--nonsense"],
    ],
)
def test_wrong_usage_is_exit_code_2(root: Path, arguments: list[str]) -> None:
    ProjectManager(root).create("a", ProjectConfig.local())
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Usage: " in result.err
    assert "Traceback" not in result.err


def test_a_bug_is_one_line_with_instructions_for_a_traceback(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_self: ProjectManager) -> list[str]:
        raise RuntimeError("[bold]boom[/bold]\n\x1b[31m")

    monkeypatch.setattr(ProjectManager, "list", broken)
    monkeypatch.setattr(sys, "argv", ["llama-index-contextual", "list"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (1, "")
    assert printed.err.startswith(r"Error: RuntimeError: [bold]boom[/bold]\x0a\x1b[31m (this is a bug")
    assert printed.err.count("\n") == 1
    monkeypatch.setenv(cli.TRACEBACK_VARIABLE, "1")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("Traceback (most recent call last):")


# ---- delete --------------------------------------------------------------------------------------------------------


def test_delete_asks_and_lists_what_is_lost(ingested: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("delete", "a", answer="y\n").code == 2, "there is no terminal to ask on"
    at_a_terminal(monkeypatch)
    with contextlib.closing(Ledger(ingested.directory / "ledger.sqlite")) as ledger:
        ledger.add_contexts(
            [
                LedgerEntry(
                    key="k",
                    context="A context of the passage in its text, as long as it has to be here.",
                    model="openai:gpt-4.1",
                )
            ]
        )
    refused = run("delete", "a", answer="n\n")
    assert refused.code == 1
    assert "Delete project 'a' with 2 documents and 1 paid context?" in refused.err
    assert run("delete", "a", answer="").code == 1
    assert run("list").out == "a\n"
    assert run("delete", "a", "--keep-ledger", answer="y\n").out.endswith("Deleted project a. Its ledger is kept.\n")
    assert run("list").out == ""
    assert (ingested.directory / "ledger.sqlite").exists()


# ---- hostile and foreign text --------------------------------------------------------------------------------------

HOSTILE = "[red]alert[/red] [/] :key: C:\\new \x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u200b end"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e]")


@pytest.fixture
def hostile(root: Path, tmp_path: Path) -> Project:
    """A project with a document whose name and text want to act on the terminal."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "[bold]a[_b] \x1b[31m:key:.txt").write_text(
        f"Beginning. {HOSTILE}\n\n日本語のテキスト。", encoding="utf-8"
    )
    (folder / "empty \x1b[31m[i].txt").write_text("")
    project = ProjectManager(root).create("a", ProjectConfig.local())
    result = run("ingest", "a", folder, "--quiet")
    assert r"empty \x1b[31m[i].txt: is empty" in result.err
    assert not CONTROLS.search(result.out + result.err)
    return project


def test_names_and_texts_of_documents_are_printed_without_control_characters(hostile: Project) -> None:
    for arguments in (["search", "a", "beginning"], ["documents", "a"], ["search", "a", HOSTILE.replace("\0", "")]):
        result = run(*arguments)
        assert result.code == 0
        assert r"[bold]a[_b] \x1b[31m:key:.txt" in result.out
        assert not CONTROLS.search(result.out + result.err)
    shown = run("search", "a", "beginning").out
    assert "[red]alert[/red] [/] :key: C:\\new " in shown
    assert "日本語のテキスト" in shown


def test_json_output_has_the_exact_text_with_control_characters_escaped(hostile: Project) -> None:
    result = run("search", "a", "beginning", "--json")
    assert not CONTROLS.search(result.out)
    assert "日本語" in result.out
    (chunk,) = result.json["results"]
    assert chunk["text"] == hostile.retrieve("beginning")[0].text
    assert "\x1b]0;owned\x07" in chunk["text"]
    assert "\u202e" in chunk["text"]


def test_names_with_wide_letters_are_kept(root: Path) -> None:
    assert run("create", "契約書 2024", "--local").out.startswith("Created project 契約書 2024 in ")
    assert run("list").out == "契約書 2024\n"
    assert run("list", "--json").out == '[\n  "契約書 2024"\n]\n'


# ---- in a process of its own ---------------------------------------------------------------------------------------


def test_the_module_runs_as_a_program() -> None:
    child = spawn("--version")
    assert child.communicate(timeout=SECONDS) == (f"{llama_index_contextual.__version__}\n", "")
    assert child.returncode == 0


def test_a_terminal_without_unicode_ends_no_command_and_warnings_appear_once(root: Path, text_folder: Path) -> None:
    (text_folder / "letters.txt").write_text("Ärger mit 日本語 — und Zeilen.", encoding="utf-8")
    ProjectManager(root).create("a", ProjectConfig.local(faiss=False)).ingest([text_folder])
    child = spawn("search", "a", "Ärger", PYTHONIOENCODING="ascii")
    out, err = child.communicate(timeout=SECONDS)
    assert (child.returncode, err.count("there is no semantic index")) == (0, 1)
    assert "\\xc4rger mit \\u65e5" in out


def test_json_for_a_terminal_without_unicode_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(screen, encoding="ascii", write_through=True))
    terminal.say_json({"text": "Ärger mit 日本語 \udcff"})
    assert json.loads(screen.getvalue()) == {"text": "Ärger mit 日本語 \udcff"}


def test_a_closed_pipe_is_not_reported_as_an_error(ingested: Project) -> None:
    child = spawn("search", "a", "error TS-999", "--json")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    child.wait(SECONDS)
    child.stderr.close()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_leaves_the_old_version_live_and_lists_what_the_ledger_keeps(
    root: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, limit, released = 0, 1_000, threading.Event()

    def reply(_request: Request) -> str:
        nonlocal answered
        answered += 1
        if answered > limit:
            released.wait(SECONDS)
        return "A context that was paid for, and that says at some length where in its document the passage is."

    with LoopbackProvider(reply=reply) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        settings = ["embed_model=local", "chunk_size=24", "chunk_overlap=0", "llm_concurrency=1"]
        run("create", "a", *(part for item in settings for part in ("--set", item)))
        assert run("ingest", "a", text_folder / "quarter.md", "--quiet").code == 0
        limit = answered + 1
        child = spawn("ingest", "a", text_folder)
        try:
            provider.wait_until(lambda: len(provider.chat_calls) == limit + 1, SECONDS)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=SECONDS)
        finally:
            released.set()
            child.kill()
        assert (child.returncode, out) == (130, "")
        assert (
            f"Interrupted: version v000001 is live; the ledger keeps {pluralize(limit, 'context')} and 0 embeddings."
            in err
        )
        assert "Run the same command again to continue." in err
        assert "Traceback" not in err
        project = ProjectManager(root).load("a")
        assert project.verify().sound
        assert [record.doc_id for record in project.documents()] == ["quarter.md"]
        assert not list(project.directory.rglob("*.building"))
        again = run("ingest", "a", text_folder, "--quiet").out
        chunks = ProjectManager(root).load("a").info().chunks
        assert f" {pluralize(chunks - limit, 'context')} requested" in again
        assert chunks > limit


def show(columns: int, *arguments: object) -> str:
    """Run a command on a pseudo-terminal of so many columns and 24 lines, and return what it wrote."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals of POSIX")
    ours, theirs = pty.openpty()
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as screen:
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "llama_index_contextual", *map(str, arguments)],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "COLUMNS": str(columns),
                    "LINES": "24",
                    "TERM": "xterm-256color",
                },
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            )
        finally:
            os.close(theirs)
        pieces = []
        with contextlib.suppress(OSError):  # Linux ends the reading with an error once the other side is closed
            while piece := screen.read(65536):
                pieces.append(piece)
    assert child.wait(SECONDS) == 0
    return b"".join(pieces).decode()


def lines_of(screen: str) -> list[str]:
    """Return the lines that were ever shown, without colours and movements of the cursor."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain)]


def test_a_terminal_shows_the_results_that_fit_and_how_to_see_all(root: Path) -> None:
    project = ProjectManager(root).create("many", ProjectConfig.local(faiss=False, mode="lexical"))
    project.ingest([Document(text=f"Pump {number} runs. " * 20, doc_id=f"pump {number}") for number in range(20)])

    def ranks(lines: Sequence[str]) -> list[str]:
        return [line.split(".")[0].strip() for line in lines if re.match(r" ?\d+\. pump", line)]

    output = show(80, "search", "many", "pump")
    screen, everything = lines_of(output), [str(rank) for rank in range(1, 21)]
    assert ranks(screen) == everything[: len(ranks(screen))]
    assert 3 <= len(ranks(screen)) < 20
    assert f"{20 - len(ranks(screen))} more: repeat the search with -k 20 to see all" in screen
    assert len(output.splitlines()) < 24
    assert ranks(lines_of(show(80, "search", "many", "pump", "-k", "20"))) == everything
    piped = run("search", "many", "pump")
    assert ranks(piped.out.splitlines()) == everything
    assert "more:" not in piped.out


def test_no_results_of_a_filter_with_a_pattern_name_what_to_use(root: Path, text_folder: Path) -> None:
    ProjectManager(root).create("a", ProjectConfig.local()).ingest([text_folder])
    for condition, hints in {
        "file_name=man*": ['use --filter "file_name~man" for a part of it', 'or --file "man*" for names of files'],
        "title=*handbook?": ['use --filter "title~handbook" for a part of it'],
    }.items():
        result = run("search", "a", "pump", "--filter", condition)
        assert result.out.startswith("No results.")
        assert all(hint in result.err for hint in hints), result.err
        assert ("--file" in result.err.replace("--filter", "")) == condition.startswith("file_name")
    assert run("search", "a", "pump", "--filter", "file_name~manual").err == ""
    assert "compares the whole value" not in run("search", "a", "pump", "--filter", "file_name=nothing").err


def test_facts_that_are_no_file_are_told_what_a_file_contains(root: Path, text_folder: Path) -> None:
    ProjectManager(root).create("a", ProjectConfig.local(faiss=False))
    result = run("ingest", "a", text_folder, "--facts", "kind=report")
    assert result.code == 1
    assert "--facts needs the name of a JSON file, and 'kind=report' cannot be read (No such file" in result.err
    assert 'write {"report.pdf": {"kind": "report"}' in result.err


def test_on_a_terminal_a_passage_is_wrapped_at_words_and_indented(hostile: Project) -> None:
    columns = 60
    long = "The pump was inspected and found in good order by the engineers of the shipyard. " * 3
    (hostile.directory.parent.parent / "long.txt").write_text(f"Unique marker. {long}", encoding="utf-8")
    hostile.ingest([hostile.directory.parent.parent / "long.txt"])
    lines = lines_of(show(columns, "search", "a", "Unique marker, beginning"))
    assert all(cell_len(line) <= columns for line in lines)
    passage = [line for line in lines if line.startswith("    ") and ("pump" in line or "shipyard" in line)]
    assert len(passage) > 1
    words = set(f"Unique marker. {long} …".split())
    assert {word for line in passage for word in line.split()} <= words | {"…"} | _context_words(hostile)
    assert any("[red]alert[/red]" in line for line in lines)
    assert not CONTROLS.search("".join(lines))


def _context_words(project: Project) -> set[str]:
    return {word for chunk in project.retrieve("Unique marker, beginning") for word in (chunk.context or "").split()}


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_documents_are_listed_with_whole_ids_and_totals(root: Path, tmp_path: Path, columns: int) -> None:
    long, short = f"{'long ' * 8}name.txt", "short.txt"
    for name in (long, short):
        (tmp_path / name).write_text(f"The pump {name[0]} runs.")
    project = ProjectManager(root).create("a", ProjectConfig.local(faiss=False))
    project.ingest([tmp_path / long, tmp_path / short])
    lines = [line for line in lines_of(show(columns, "documents", "a")) if line]
    assert lines[-1] == "2 documents, 2 chunks, 10 tokens"
    if columns == 50:
        assert lines[:-1] == [long, "    1 chunk · 5 tokens", short, "    1 chunk · 5 tokens"]
    else:
        assert lines[0].split() == ["document", "chunks", "tokens"]
        assert [line.split("  ")[0].strip() for line in lines[1:-1]] == [long, short]
        assert [line.split()[-2:] for line in lines[1:-1]] == [["1", "5"]] * 2
        assert len({len(line.rstrip()) for line in lines[:-1]}) == 1  # the numbers end below the end of their heads
    plain = run("documents", "a", "short*", "long*")
    assert plain.out == f"{short}\t1\t5\t0\t\n{long}\t1\t5\t0\t\n"
    assert run("documents", "a", "nosuch").err.startswith("Error: No document is named 'nosuch'")


def test_on_a_terminal_the_progress_bar_fits_and_ends_with_the_result(root: Path, text_folder: Path) -> None:
    ProjectManager(root).create("a", ProjectConfig.local())
    lines = lines_of(show(80, "ingest", "a", text_folder))
    assert all(cell_len(line) <= 80 for line in lines)
    bars = [line for line in lines if "documents ·" in line]
    assert re.search(r"━+ 2/2 documents · 2 chunks.* \d:\d\d:\d\d$", bars[-1])
    result = " ".join(lines[lines.index(bars[-1]) + 1 :])
    assert "Version v000001 is live: 2 added; 2 chunks;" in result


def test_the_progress_bar_is_hidden_if_there_is_nothing_to_do(ingested: Project, text_folder: Path) -> None:
    result = run("ingest", "a", text_folder)
    assert result.err == ""
    assert result.out.startswith("Version v000001 is live: 0 added, 2 unchanged; 2 chunks;")
