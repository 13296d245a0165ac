"""The command `open`: a project for a folder, made once, brought up to date, and never mixed with another folder's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import httpx
import pytest

from llama_index_contextual.cli import opening
from llama_index_contextual.cli.serve import project_name
from llama_index_contextual.errors import InputError
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import at_a_terminal, run
from tests.support.server import LoopbackProvider


@pytest.fixture(autouse=True)
def _without_workbench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command find no Workbench, which would run until it is ended."""
    monkeypatch.setitem(sys.modules, "llama_index_contextual.ui.app", None)


def opened(folder: Path, *options: object) -> str:
    """Open a folder and return what is printed."""
    result = run("open", folder, *options)
    assert result.code == 0, result.err
    return result.out


def test_a_folder_becomes_a_local_project_that_can_be_opened(root: Path, text_folder: Path) -> None:
    printed = opened(text_folder)
    project = ProjectManager(root).load(text_folder.name)
    assert f"The project is {text_folder.name} in {root}." in printed
    assert f"To search it: llama-index-contextual search {text_folder.name} QUESTION\n" in printed
    assert len(project.retrieve("pump")) == 2
    assert (len(project.documents()), project.config.context) == (2, "structural")
    assert project.config.embed_model == "local"


def test_the_extras_that_a_folder_needs_are_named_before_it_is_read(
    root: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"office": ["mammoth"], "ui": ["nh3"]}
    monkeypatch.setattr(opening, "missing_packages", lambda extra: absent.get(extra, []))
    monkeypatch.setattr(opening, "engine_for", lambda _: "install it")
    for name in ("a.docx", "b.docx", "c.xlsx", "d.png", "e.csv"):
        (text_folder / name).write_bytes(b"?")
    command = 'pip install "llama-index-contextual[office,ocr,ui]"'
    needs = (
        "2 Word files need [office]; 1 Excel file needs [office]; 1 image needs [ocr]; the view in a browser needs [ui]"
    )
    lines = run("open", text_folder).err.splitlines()
    assert lines[0] == f"note {needs}: {command}"
    absent.clear()
    monkeypatch.setattr(opening, "engine_for", lambda _: None)
    assert "pip install" not in run("open", text_folder).err.partition("No LLM is used")[0]


def test_the_models_at_hand_are_named_and_the_command_for_the_next_time(
    root: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    result = run("open", text_folder)
    assert "No LLM is used: passages are found and shown, but no answers are written" in result.err
    assert "For answers, install Ollama (https://ollama.com), or set OPENAI_API_KEY, and add --llm." in result.err
    assert f"To open it again: llama-index-contextual open {text_folder}\n" in result.out
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-any")
    named = run("open", text_folder, "--name", "mine")
    assert "For answers: --llm openai:gpt-6-luna (OPENAI_API_KEY is set) or --llm anthropic:MODEL" in named.err
    assert f"To open it again: llama-index-contextual open {text_folder} --name mine\n" in named.out


def test_a_model_on_a_server_of_this_machine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(key, raising=False)
    with LoopbackProvider(models=["nomic-embed-text", "llama3.1:8b"]) as server:
        for address in (server.url.removeprefix("http://"), server.url, f"{server.url}/"):
            monkeypatch.setenv("OLLAMA_HOST", address)
            assert opening.models_at_hand() == ["--llm ollama:llama3.1:8b (Ollama is running on this machine)"]
        monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
        monkeypatch.setenv("OPENAI_BASE_URL", server.api_base)
        assert opening.models_at_hand() == [f"--llm openai-like:llama3.1:8b (it is served at {server.api_base})"]
        server.models = ["nomic-embed-text"]
        assert opening.models_at_hand() == []
    monkeypatch.setattr(httpx, "Client", None)  # a server on another machine is not contacted
    monkeypatch.setenv("OLLAMA_HOST", "models.example:11434")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/v1")
    assert opening.models_at_hand() == []


def test_a_model_whose_package_is_missing_is_named_with_the_command_that_installs_it(
    root: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec, package = importlib.util.find_spec, "llama_index.llms.ollama"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with LoopbackProvider(models=["phi"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        command = "'ollama:phi' needs a package that is not installed: pip install llama-index-llms-ollama"
        assert f"--llm ollama:phi (Ollama is running on this machine; {command})" in run("open", text_folder).err
        refused = run("open", text_folder, "--name", "second", "--llm", "ollama:phi")
    assert (refused.code, refused.err) == (1, f"Error: {command}\n")
    assert ProjectManager(root).list() == [text_folder.name]


def test_an_llm_given_for_a_project_without_one_answers_questions_and_leaves_the_contexts(
    root: Path, provider: LoopbackProvider, text_folder: Path
) -> None:
    opened(text_folder)
    result = run("open", text_folder, "--llm", "openai:gpt-4.1-mini")
    assert result.code == 0
    name = text_folder.name
    command = f"llama-index-contextual configure {name} context=llm llm=openai:gpt-4.1-mini"
    assert f"Stored in the settings of the project: answer_llm. For contexts by this LLM: {command}\n" in result.err
    assert "openai:gpt-4.1-mini answers questions" in result.err
    config = ProjectManager(root).load(name).config
    assert (config.context, config.answer_llm) == ("structural", "openai:gpt-4.1-mini")
    assert len(provider.chat_calls) == 0
    for options in ((), ("--llm", "openai:gpt-4.1-mini")):
        again = run("open", text_folder, *options)
        assert "Stored" not in again.err
        assert "openai:gpt-4.1-mini answers questions" in again.err
    assert run("ask", name, "What does the pump do?").code == 0


def test_opened_again_it_is_brought_up_to_date_and_documents_without_a_file_are_kept(
    root: Path, text_folder: Path
) -> None:
    opened(text_folder)
    gone, *_ = sorted(text_folder.iterdir())
    gone.unlink()
    (text_folder / "new.md").write_text("# Valves\n\nThe sluice opens at noon.\n")
    result = run("open", text_folder)
    assert "1 added" in result.out
    assert f"to remove the documents too: llama-index-contextual sync {text_folder.name} {text_folder}" in result.err
    assert len(ProjectManager(root).load(text_folder.name).documents()) == 3


def test_another_folder_of_the_same_name_needs_a_name(root: Path, text_folder: Path, tmp_path: Path) -> None:
    opened(text_folder)
    other = tmp_path / "other" / text_folder.name
    other.mkdir(parents=True)
    (other / "tariff.md").write_text("# Tariff\n\nWater costs 2.16.\n")
    result = run("open", other)
    assert (result.code, "choose a name for this one with --name" in result.err) == (1, True)
    opened(other, "--name", "tariffs")
    assert ProjectManager(root).list() == sorted([text_folder.name, "tariffs"])


def test_the_price_of_contexts_is_shown_and_nothing_is_sent_without_consent(
    root: Path, provider: LoopbackProvider, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("open", text_folder, "--llm", "openai:gpt-4.1-mini")
    assert run(*asked).code == 2
    at_a_terminal(monkeypatch)
    refused = run(*asked, answer="n\n")
    assert (refused.code, len(provider.chat_calls)) == (1, 0)
    assert "total with these settings: $" in refused.out
    assert ProjectManager(root).load(text_folder.name).info().version is None
    opened(text_folder, "--llm", "openai:gpt-4.1-mini", "--max-cost", "1")  # the limit is the consent
    assert len(provider.chat_calls) == 2
    again = opened(text_folder, "--llm", "openai:gpt-4.1-mini")  # nothing is left to pay, so nothing is asked
    assert ("total with these settings" in again, len(provider.chat_calls)) == (False, 2)
    assert run("open", text_folder, "--llm", "ollama:llama3.1").code == 1


def test_what_cannot_be_opened_is_named(root: Path, tmp_path: Path) -> None:
    absent = run("open", tmp_path / "absent")
    assert (absent.code, absent.err) == (2, f"Error: {tmp_path / 'absent'}: there is no such folder.\n")
    (tmp_path / "letter.txt").write_text("Dear Sir")
    assert run("open", tmp_path / "letter.txt").err.endswith("letter.txt: is a file: name its folder.\n")
    (tmp_path / "empty").mkdir()
    assert "has no document that can be read" in run("open", tmp_path / "empty").err
    (tmp_path / "empty" / "list.xyz").write_text("?")
    assert "list.xyz: has the type .xyz" in run("open", tmp_path / "empty").err


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Supply (2024), signed", "Supply 2024 signed"),
        ("Verträge.v2", "Verträge.v2"),
        ("..a..b...", "a.b"),
        ("契約", "契約"),
        ("x" * 80, "x" * 64),
    ],
)
def test_the_name_of_a_project_is_valid_on_every_system(folder: str, name: str) -> None:
    assert project_name(Path("/srv") / folder) == name


@pytest.mark.parametrize("folder", ["/", "/srv/()", "/srv/con"])
def test_a_folder_without_a_usable_name_needs_one(folder: str) -> None:
    with pytest.raises(InputError, match="choose one with --name"):
        project_name(Path(folder))
