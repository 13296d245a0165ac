"""The code of the documentation site runs, page by page, and prints the output shown."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings, StorageContext
from typer.main import get_command
from typer.testing import CliRunner

from llama_index_contextual import (
    GroundedChatEngine,
    GroundedQueryEngine,
    LLMContextualizer,
    Project,
    ProjectManager,
    RetrievalResponse,
)
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.cli.app import app
from tests.support.examples import EXAMPLES
from tests.support.pages import Block, blocks, pages
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.source import PACKAGE, ROOT

PROGRAM = "llama-index-contextual"
SETUP = "guide/index.md"
"""Its Python creates the project that every page of the guide and of the concepts uses."""

STAY = ("chat", "mcp", "serve")
"""Commands that run until they are stopped."""

LANGUAGES = {"python", "bash", "text", "json", "html"}
NOT_RUN = 24
"""How many blocks may be marked as not run: a mark is for what needs a download, a key or a server that stays."""

ANSWER = "The watchdog has reset the station, as the manual says about the errors of telemetry [Source 1]."
CONTEXT = (
    "This passage is from the operating manual of the Haldermoor utility and describes how the station's telemetry"
    " reports errors."
)
VERDICT = {"unsupported": [], "relevant": True, "confidence": 0.9}

WITH_CODE = [page for page in pages() if any(block.language in ("python", "bash") for block in blocks(page))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a checkout as a reader has it: only the examples, no key, nothing left of another page."""
    for extra in ("wordllama", "agno", "matplotlib", "docx", "nh3", "phonenumbers"):
        pytest.importorskip(extra, reason="needs the extras of the documented features")
    (tmp_path / "examples").symlink_to(EXAMPLES, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    for name in [*os.environ]:
        if name.startswith("LLAMA_INDEX_CONTEXTUAL_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("_llm", "_embed_model", "_callback_manager"):
        monkeypatch.setattr(Settings, name, None)
    return tmp_path


def reply(request: Request) -> Reply | str:
    """Answer as a model does: a context for a chunk, a verdict for a judge, the call of a tool, or an answer."""
    if "<answer>" in request.text:
        return json.dumps(VERDICT)
    if "<chunk>" in request.text:
        return CONTEXT
    if (tools := request.fields.get("tools")) and not any(message["role"] == "tool" for message in request.messages):
        name = next(tool["function"]["name"] for tool in tools if "search" in tool["function"]["name"])
        call = {"name": name, "arguments": json.dumps({"query": "What does error TS-999 mean?"})}
        return Reply(tool_calls=[{"id": "1", "type": "function", "function": call}], finish_reason="tool_calls")
    return ANSWER


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs_from_top_to_bottom_and_prints_what_is_shown(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = [block for block in blocks(SETUP) if block.language == "python"]
    run(
        [*(setup if page.startswith(("guide/", "concepts/")) and page != SETUP else ()), *blocks(page)],
        folder,
        monkeypatch,
    )


def test_the_readme_the_start_and_the_tutorial_run_one_after_another_in_one_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creating = [
        block for block in blocks("../README.md") if re.search(r"\bmanager\.create|contextual create ", block.text)
    ]
    assert {block.language for block in creating} == {"python", "bash"}
    for page in (creating, blocks("start.md"), blocks("tutorial.md")):
        run([block for block in page if "contextual demo" not in block.text], folder, monkeypatch)


def test_the_quickstart_runs_from_anywhere(tmp_path: Path) -> None:
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "5 documents" in done.stdout
    assert "  1. station-manual.md" in done.stdout
    assert "The processor did not answer its watchdog for eight seconds" in done.stdout
    assert list(tmp_path.iterdir()) == []


def run(to_run: Sequence[Block], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of one page from top to bottom, and compare what they print with what is shown."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    with LoopbackProvider(reply=reply) as model:
        for block in to_run:
            if block.comment("not run: ") is not None:
                printed = ""
                continue
            if re.fullmatch(r"[\w./-]+\.\w+", block.title):  # a file that the reader writes
                path = folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
                continue
            with monkeypatch.context() as environment:
                if block.needs_model:
                    environment.setenv("OPENAI_API_KEY", "any")
                    environment.setenv("OPENAI_BASE_URL", model.api_base)
                    environment.setenv("OPENAI_API_BASE", model.api_base)
                if block.language == "python":
                    printed = run_python(block, names)
                elif block.language == "bash":
                    printed = run_commands(block, folder)
            if block.language == "text" and block.follows:
                assert_shown(block, printed)


def run_python(block: Block, names: dict[str, Any]) -> str:
    """Run a block in the namespace of its page and return what it prints."""
    out = io.StringIO()
    # The lines of a traceback are those of the page.
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    with contextlib.redirect_stdout(out):
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    return out.getvalue()


def commands_of(block: Block) -> list[list[str]]:
    """Return the commands of a block: one a line, or several joined by `&&`; a line may end in a backslash."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines for part in line.split(" && ") if (words := shlex.split(part, comments=True))]


def run_commands(block: Block, folder: Path) -> str:
    """Run the commands of a block and return what they print; installations are only checked."""
    printed = ""
    commands = commands_of(block)
    for place, (program, *arguments) in enumerate(commands):
        expected = int(block.comment("exits with ") or 0) if place == len(commands) - 1 else 0
        if program == PROGRAM:
            stays = arguments[0] in STAY or "--watch" in arguments
            assert not stays, f"{block}: mark it as not run, because it does not end"
            result = CliRunner().invoke(app, arguments, catch_exceptions=False)
            assert result.exit_code == expected, f"{block}: {shlex.join(arguments)}\n{result.output}"
            printed += result.output
        elif program in ("python", "cp", "mkdir", "rm", "mv"):
            argv = [sys.executable if program == "python" else program, *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == expected, f"{block}: {shlex.join(argv)}\n{done.stderr}"
            printed += done.stdout
        else:
            assert program == "pip", f"{block}: mark a block with {program!r} as not run, with the reason"
            assert extras_in(arguments) <= known_extras(), block
    return printed


def assert_shown(block: Block, printed: str) -> None:
    """Compare an output with the one shown, where `…` stands for anything: for the rest of a line, or for lines."""
    shown = [line.rstrip() for line in block.text.strip("\n").splitlines()]
    pattern = "\n".join(re.escape(line).replace("…", ".*") if line != "…" else r"[\s\S]*?" for line in shown)
    actual = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    assert re.fullmatch(pattern, actual), f"{block} is not what was printed:\n{actual}"


def extras_in(arguments: Sequence[str]) -> set[str]:
    found = re.findall(r"(?:^\.|llama-index-contextual)\[([\w,]+)\]", "\n".join(arguments), re.MULTILINE)
    return {extra for group in found for extra in group.split(",")}


def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


# ---- what is said about the blocks -----------------------------------------------------------------------------------


def test_every_block_says_its_language_and_few_are_not_run() -> None:
    every = [block for page in pages() for block in blocks(page)]
    assert [str(block) for block in every if block.language not in LANGUAGES] == []
    marked = [block for block in every if block.comment("not run: ") is not None]
    assert len(marked) <= NOT_RUN, [str(block) for block in marked]
    assert all(len(block.comment("not run: ") or "") > 15 for block in marked), "a reason is a sentence"


def test_commands_that_are_not_run_exist_with_their_options() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for block in (block for page in WITH_CODE for block in blocks(page) if block.language == "bash"):
        for program, *arguments in commands_of(block):
            if program != PROGRAM or arguments[0].startswith("-"):
                continue
            command = commands[arguments[0]]
            if hasattr(command, "commands"):
                command = command.commands[arguments[1]]
            options = {option for part in command.params for option in (*part.opts, *part.secondary_opts)} | {"--help"}
            assert {word for word in arguments if word.startswith("--")} <= options, block


def test_python_that_is_not_run_compiles() -> None:
    for block in (block for page in pages() for block in blocks(page) if block.language == "python"):
        compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_json_is_valid_and_the_client_of_mcp_starts_a_command_that_exists() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    every = [block for page in pages() for block in blocks(page) if block.language == "json"]
    configured = [
        json.loads(text)
        for block in every
        for text in (block.text.splitlines() if block.title.endswith(".jsonl") else [block.text])
    ]
    (client,) = (entry for entry in configured if "mcpServers" in entry)
    (server,) = client["mcpServers"].values()
    assert server["command"] == PROGRAM
    name, *arguments = server["args"]
    assert {word for word in arguments if word.startswith("--")} <= {o for p in commands[name].params for o in p.opts}


def test_the_documentation_and_the_notebooks_import_from_the_package_itself() -> None:
    cells = [
        "".join(cell["source"])
        for path in sorted(EXAMPLES.glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    code = [*cells, *(block.text for page in pages() for block in blocks(page) if block.language == "python")]
    modules = {module for text in code for module in re.findall(rf"^from ({PACKAGE}[\w.]*) import", text, re.M)}
    # The class for Agno needs the extra `agno`, which not every installation has.
    assert modules == {PACKAGE, f"{PACKAGE}.agno"}


NAMED = {
    "project": Project,
    "manager": ProjectManager,
    "response": RetrievalResponse,
    "engine": GroundedQueryEngine,
    "chat": GroundedChatEngine,
    "answer": GroundedResponse,
    "contextualizer": LLMContextualizer,
    "storage_context": StorageContext,
}
"""What the documentation means by a name in a sentence."""


@pytest.mark.parametrize("page", ["../README.md", "../SECURITY.md", "../llms.txt", *pages()])
def test_the_attributes_that_a_sentence_of_the_documentation_mentions_exist(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    mentioned = re.findall(
        rf"\b({'|'.join(NAMED)})\.(?!(?:json|py)\b)(\w+)", " ".join(re.findall(r"`([^`\n]+)`", text))
    )
    assert [f"{name}.{attribute}" for name, attribute in mentioned if attribute not in members(NAMED[name])] == []


def members(kind: type) -> set[str]:
    """Return the attributes of a class, and of its instances as far as they are annotated."""
    return {*dir(kind), *(name for base in kind.__mro__ for name in vars(base).get("__annotations__", ()))}


def test_an_attribute_of_a_sentence_that_does_not_exist_is_noticed() -> None:
    assert {"explanations", "near_misses", "results"} <= members(RetrievalResponse)
    assert "explain" not in members(RetrievalResponse)
