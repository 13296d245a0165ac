"""Every command: its JSON, its help, and the commands that create, list, configure and delete projects."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest

import llama_index_contextual
from llama_index_contextual.config import ProjectConfig, described
from llama_index_contextual.index.archive import write_archive
from llama_index_contextual.index.ledger import Ledger, LedgerEntry, content_key
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import at_a_terminal, commands, run

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
    "evaluate": ["a", "{empty}/questions.jsonl"],
    "documents": ["a"],
    "remove": ["a", "reports/quarter.md"],
    "forget": ["a", "--yes"],
    "configure": ["a", "top_k=5"],
    "rebuild": ["a"],
    "retry": ["a"],
    "versions": ["a"],
    "rollback": ["a", "--to", "v000001"],
    "verify": ["a"],
    "doctor": ["a"],
    "export": ["a", "{empty}/exported"],
    "ledger export": ["a", "{empty}/written.jsonl"],
    "project export": ["a", "{empty}/written.zip"],
    "project import": ["{empty}/copy.zip", "--name", "copy"],
    "ledger import": ["a", "{empty}/contexts.jsonl"],
    "token": ["ada", "--file", "{empty}/tokens.json", "--only", "kind=report"],
    "delete": ["a", "--yes"],
}
# Needs no project, takes no root, and is run in test_demo.py.
WITHOUT_ROOT = {"demo"}
# Run until their client or user ends them; see test_mcp.py, test_opening.py and ui/test_server.py.
SERVERS = ("mcp", "open", "serve")
CONTEXT = "A context of the passage in its text, as long as it has to be here."


def test_every_command_is_tested_in_this_module() -> None:
    assert set(commands()) == set(COMMANDS) | WITHOUT_ROOT | set(SERVERS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_json_and_nothing_else(name: str, ingested: Project, text_folder: Path) -> None:
    empty = text_folder.parent / "empty"
    empty.mkdir()
    line = {"key": content_key("x"), "context": CONTEXT, "model": "openai:gpt-4.1"}
    (empty / "contexts.jsonl").write_text(json.dumps(line))
    question = {"question": "error TS-999", "evidence": ["the pump runs dry"]}
    (empty / "questions.jsonl").write_text(json.dumps(question))
    write_archive(ingested.directory, empty / "copy.zip")
    arguments = [argument.format(folder=text_folder, empty=empty) for argument in COMMANDS[name]]
    result = run(*name.split(), *arguments, "--root", ingested.directory.parent, "--json")
    assert (result.code, result.err if name != "ingest" else "") == (0, "")
    assert result.out.endswith(("}\n", "]\n"))
    assert result.json is not None


@pytest.mark.parametrize("name", [*COMMANDS, *WITHOUT_ROOT, *SERVERS])
def test_help_explains_the_command_and_every_option(name: str) -> None:
    command, result = commands()[name], run(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert run(*name.split(), "-h").out == result.out
    assert re.fullmatch(r"[A-Z].*\.", (command.help or "").partition("\n")[0])
    shown = " ".join(result.out.replace("│", " ").split())
    assert shown.startswith("Usage: ")
    assert " ".join(command.help.partition("\n\n")[0].split()) in shown
    for parameter in command.params:
        if parameter.name != "help":
            assert re.search(r"^[A-Z].*[.]$", parameter.help or ""), f"{parameter.name}: {parameter.help}"
            assert parameter.help.split()[0] in shown
            takes_value = parameter.param_type_name == "option" and not parameter.is_flag
            assert not takes_value or parameter.metavar, parameter.name
    options = {option for parameter in command.params for option in parameter.opts}
    assert all(option in shown for option in options if option.startswith("-"))
    assert ("--json" in options) == (name not in SERVERS)
    assert ("--root" in options) == (name not in WITHOUT_ROOT)


def test_without_a_command_all_of_them_are_listed_in_groups() -> None:
    assert run("--version").out == f"{llama_index_contextual.__version__}\n"
    bare = run()
    assert bare.code == 2
    assert all(name.split()[0] in bare.out + bare.err for name in commands())
    shown = run("--help").out
    places = [shown.index(f"─ {title} ─") for title in ("Projects", "Documents", "Questions", "Maintenance")]
    assert places == sorted(places)
    assert "─ Commands ─" not in shown


def test_the_commands_of_the_readme_lead_to_an_answer(root: Path, text_folder: Path) -> None:
    assert "No projects in" in run("list").err
    created = run("create", "reports", "--local")
    assert created.out == f"Created project reports in {root}.\nNext: llama-index-contextual ingest reports FILES…\n"
    assert run("list").out == "reports\n"
    (text_folder / "w.zip").write_text("x")
    done = run("ingest", "reports", text_folder, "--quiet")
    assert re.fullmatch(r"Version v000001 is live: 2 added, 1 skipped; 2 chunks; \d+\.\d s\.\n", done.out)
    assert done.err.startswith(f"skipped {text_folder}/w.zip: has the type .zip")
    assert done.err.count("\n") == 1
    again = run("ingest", "reports", text_folder / "quarter.md", text_folder / "manual.txt")
    assert again.out.startswith("Version v000001 is live: 0 added, 2 unchanged; 2 chunks;")
    assert again.err == "", "no progress bar if there is nothing to do"
    result = run("search", "reports", "error TS-999", "--top-k", 1)
    first, blank, place = result.out.splitlines()[:3]
    assert re.fullmatch(r"1 result\. (High|Medium) confidence: the best passage matches .*\.", first)
    assert (blank, place, result.err) == ("", " 1. reports/manual.txt", "")
    assert "Error TS-999 means that the pump runs dry." in result.out
    shown = run("info", "reports").out
    assert re.search(r"^documents +2$", shown, re.MULTILINE)
    assert re.search(r"^version +v000001 ", shown, re.MULTILINE)


def test_the_folder_of_projects_is_knowledge_unless_another_is_given(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("create", "by-environment", "--local")
    run("create", "by-option", "--local", "--root", tmp_path / "other")
    monkeypatch.delenv("LLAMA_INDEX_CONTEXTUAL_ROOT")
    run("create", "by-default", "--local")
    assert ProjectManager(root).list() == ["by-default", "by-environment"]
    assert ProjectManager(tmp_path / "other").list() == ["by-option"]


# ---- settings --------------------------------------------------------------------------------------------------------


def test_the_settings_are_listed_with_values_and_descriptions(reading_only: Path) -> None:
    defaults, own = run("settings").out, run("settings", "a").out
    for name in ProjectConfig.model_fields:
        assert re.search(rf"^{name}=.*\n    {re.escape(described(name) or '-')}$", defaults, re.MULTILINE), name
    assert 'embed_model="openai:text-embedding-3-small"  rebuild\n' in defaults
    assert 'embed_model="local"  rebuild\n' in own
    assert "top_k=20\n" in own
    listed = {row["name"]: row for row in run("settings", "a", "--json").json}
    assert list(listed) == list(ProjectConfig.model_fields)
    changed = listed["embed_model"]
    assert (changed["value"], changed["default"]) == ("local", "openai:text-embedding-3-small")
    assert changed["rebuild"]


def test_settings_are_given_as_json_or_as_text(root: Path) -> None:
    settings = ["chunk_size=256", "chunk_overlap=0", "indexes=lexical", "language=german", "context_prompt=null"]
    settings += ["semantic_weight=0.25", "embed_model=ollama:all=minilm"]
    options = [part for setting in settings for part in ("--set", setting)]
    config = run("create", "a", "--local", "--set", "context=none", *options, "--json").json["config"]
    expected = ProjectConfig.local(context="none", chunk_size=256, chunk_overlap=0, indexes="lexical").changed(
        language="german", semantic_weight=0.25, embed_model="ollama:all=minilm"
    )
    assert config == ProjectManager(root).load("a").config.model_dump() == expected.model_dump()


def test_configure_names_settings_that_need_a_rebuild(ingested: Project) -> None:
    assert run("configure", "a", "top_k=5").out == "Changed; takes effect with the next query.\n"
    changed = run("configure", "a", "chunk_size=64", "chunk_overlap=8").out
    assert changed.startswith("Changed. To apply chunk_size, chunk_overlap, run `llama-index-contextual rebuild a`")
    assert "2 rebuilt" in run("rebuild", "a", "--quiet").out


# ---- documents and projects ------------------------------------------------------------------------------------------


def test_files_with_a_used_id_renamed_and_moved_files_are_reported(
    root: Path, text_folder: Path, tmp_path: Path
) -> None:
    ProjectManager(root).create("a", ProjectConfig.local()).ingest([text_folder])
    (text_folder / "quarter.md").rename(text_folder / "spring.md")
    result = run("ingest", "a", text_folder, "--quiet")
    assert "renamed reports/quarter.md to reports/spring.md" in result.err
    assert "1 renamed, 1 unchanged" in result.out
    other = tmp_path / "x" / "reports"
    other.mkdir(parents=True)
    (other / "manual.txt").write_text("Another manual.", encoding="utf-8")
    result = run("ingest", "a", other, "--quiet")
    assert "1 added" in result.out
    assert "its document gets the id 'x/reports/manual.txt'" in result.err


def test_delete_asks_and_lists_what_is_lost(ingested: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("delete", "a", answer="y\n").code == 2, "there is no terminal to ask on"
    at_a_terminal(monkeypatch)
    with contextlib.closing(Ledger(ingested.directory / "ledger.sqlite")) as ledger:
        ledger.add_contexts([LedgerEntry(key="k", context=CONTEXT, model="openai:gpt-4.1")])
    refused = run("delete", "a", answer="n\n")
    assert refused.code == 1
    assert "Delete project 'a' with 2 documents and 1 paid context?" in refused.err
    assert run("delete", "a", answer="").code == 1
    assert run("list").out == "a\n"
    assert run("delete", "a", "--keep-ledger", answer="y\n").out.endswith("Deleted project a. Its ledger is kept.\n")
    assert run("list").out == ""
    assert (ingested.directory / "ledger.sqlite").exists()
