"""The guide and llms.txt: the Python code runs, and commands and links exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings
from typer.main import get_command

from llama_index_contextual.cli.app import app
from tests.support.examples import EXAMPLES
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

GUIDE = (EXAMPLES / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "llms.txt").read_text(encoding="utf-8")


def blocks(language: str, text: str = GUIDE) -> list[str]:
    """The fenced blocks of the guide in a language; `py` marks Python that needs a model."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """A section of the guide."""
    return GUIDE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_python_of_the_guide_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("wordllama", "agno", "matplotlib"):
        pytest.importorskip(package, reason="needs the extras local, agno and eval")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks("python"), start=1):
        exec(compile(block, f"examples/README.md, block {number}", "exec"), names)
    assert (tmp_path / "report.html").exists()
    assert "Use 'structural'" in capsys.readouterr().out


def test_the_python_of_the_guide_that_answers_runs_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("wordllama", "matplotlib", "nh3", "phonenumbers"):
        pytest.importorskip(package, reason="needs the extras local, eval and answering")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    names: dict[str, Any] = {}
    verdict = {"grounded": True, "hallucinated": False, "relevant": True, "confidence": 0.9}
    with LoopbackProvider() as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.api_base)
        model.reply = lambda asked: json.dumps(verdict) if "<answer>" in asked.text else "Watchdog reset [Source 1]."
        for block in (blocks("python")[0], *blocks("py", section("Answers and conversations"))):
            exec(compile(block, "examples/README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "Watchdog reset [Source 1].None True" in out
    assert "'grounded': True" in out
    assert "1.0 1.0 0\n" in out
    assert (tmp_path / "answers.csv").exists()
    assert (tmp_path / "answers.svg").exists()


def test_the_handles_of_llama_index_in_the_guide_run_with_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wordllama", reason="needs the extra local")
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setattr(Settings, "_llm", None)

    def reply(request: Request) -> Reply | str:
        if request.fields.get("tools") and not any(message["role"] == "tool" for message in request.messages):
            call = {"name": "search_utility", "arguments": json.dumps({"query": "TS-999"})}
            return Reply(tool_calls=[{"id": "1", "type": "function", "function": call}], finish_reason="tool_calls")
        return "The watchdog has reset the station, as the manual says about the errors of telemetry [Source 1]."

    names: dict[str, Any] = {}
    with LoopbackProvider(reply=reply) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.api_base)
        monkeypatch.setenv("OPENAI_API_BASE", model.api_base)
        for block in (blocks("python")[0], *blocks("py", section("LlamaIndex's handles"))):
            exec(compile(block, "examples/README.md", "exec", dont_inherit=True), names)
        prompts = [str(record.body) for record in model.calls("/v1/chat/completions")]
    out = capsys.readouterr().out
    assert out.startswith("1\n['clarify_prompt', 'system_prompt', 'text_qa_template']\nCitationReport(")
    assert out.count("The watchdog has reset the station") == 4  # citations, chat, agent, workflow
    assert any("Answer in one sentence: What does error TS-999 mean?" in prompt for prompt in prompts)
    assert any("You talk to operators." in prompt for prompt in prompts)


def test_the_python_that_needs_a_model_compiles_and_calls_what_exists() -> None:
    from llama_index_contextual import Project

    assert blocks("py")
    for block in blocks("py"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "project":
                assert hasattr(Project, node.attr), node.attr


def test_the_commands_of_the_guide_exist_with_their_options() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    used = [shlex.split(line, comments=True)[1:] for block in blocks("bash") for line in block.splitlines()]
    assert used
    (client,) = blocks("json")
    used.append(json.loads(client)["mcpServers"]["documents"]["args"])
    for name, *arguments in used:
        command = commands[name]
        if hasattr(command, "commands"):
            command = command.commands[arguments[0]]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= options, name


def test_the_guide_and_the_notebooks_import_from_the_package_itself() -> None:
    cells = [
        "".join(cell["source"])
        for path in sorted(EXAMPLES.glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    pages = [*blocks("python"), *blocks("py"), *cells]
    modules = {
        module for page in pages for module in re.findall(r"^from (llama_index_contextual[\w.]*) import", page, re.M)
    }
    # The class for Agno needs the extra `agno`, which not every installation has.
    assert modules == {"llama_index_contextual", "llama_index_contextual.agno"}


def test_the_calls_on_a_project_that_the_guide_mentions_exist() -> None:
    from llama_index_contextual import Project

    mentioned = re.findall(r"\bproject\.(\w+)", " ".join(re.findall(r"`([^`\n]+)`", GUIDE)))
    assert [name for name in mentioned if not hasattr(Project, name)] == []


@pytest.mark.parametrize(("page", "folder"), [(GUIDE, EXAMPLES), (INDEX, ROOT)], ids=["guide", "llms.txt"])
def test_the_links_have_targets(page: str, folder: Path) -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page)
    assert targets
    assert [target for target in targets if not (folder / target).exists()] == []


def test_the_page_for_language_models_has_title_summary_and_lists_of_links() -> None:
    title, blank, summary, *rest = INDEX.splitlines()
    assert title == "# llama-index-contextual"
    assert (blank, summary[:2]) == ("", "> ")
    headings = [line for line in rest if line.startswith("#")]
    assert all(line.startswith("## ") for line in headings)
    links = "\n".join(rest).split("## ", 1)[1]
    for line in filter(None, links.splitlines()[1:]):
        assert re.match(r"## |- \[[^\]]+\]\([^)]+\): .+", line), line
