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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Settings
from typer.testing import CliRunner

from llama_index_contextual.cli.app import app
from tests.benchmarks import price
from tests.integration.documentation.test_pages import PROGRAM, commands_of, known_extras
from tests.support.examples import EXAMPLES, script
from tests.support.pages import Block, blocks, pages
from tests.support.records import Request
from tests.support.replies import Reply
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

SETUP = "guide/index.md"
"""Its Python creates the project that every page of the guide and of the concepts uses."""

STAY = ("chat", "mcp", "serve")
"""Commands that run until they are stopped."""

ANSWER = "The watchdog has reset the station, as the manual says about the errors of telemetry [Source 1]."
CONTEXT = (
    "This passage is from the operating manual of the Haldermoor utility and describes how the station's telemetry"
    " reports errors."
)
VERDICT = {"unsupported": [], "relevant": True, "confidence": 0.9}

README = "../README.md"
WITH_CODE = [page for page in (README, *pages()) if any(block.language in ("python", "bash") for block in blocks(page))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a checkout as a reader has it: only the examples, no key, nothing left of another page."""
    for extra in ("wordllama", "agno", "docx", "nh3", "phonenumbers"):
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
        block for block in blocks(README) if re.search(r"\bmanager\.(?:get_or_)?create|contextual create ", block.text)
    ]
    assert {block.language for block in creating} == {"python", "bash"}
    for page in (creating, blocks("start.md"), blocks("tutorial.md")):
        run([block for block in page if "contextual demo" not in block.text], folder, monkeypatch)


def test_the_prices_in_the_readme_are_those_that_its_commands_print(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    price.write_documents(tmp_path, 71)
    for folder, sentence in (
        (EXAMPLES / "data", r"five example documents, with ([\d,]+) tokens, it prints \$([\d.]+) and ([\d.]+) minutes"),
        (tmp_path, r"71 documents of this length, with ([\d,]+) tokens, .*? prints \$([\d.]+) and ([\d.]+) minutes"),
    ):
        stated = re.search(sentence, readme)
        assert stated is not None, sentence
        estimate = price.estimate(folder)
        assert estimate.minutes is not None
        assert (stated[1], stated[3]) == (f"{estimate.tokens:,}", f"{estimate.minutes:.1f}")
        if f"{estimate.prices}." in readme:  # another release of the table may have other prices
            assert f"total with these settings: ${stated[2]} " in str(estimate)


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


def run_commands(block: Block, folder: Path) -> str:
    """Run the commands of a block and return what they print; installations are only checked."""
    printed = ""
    commands = commands_of(block)
    for place, (program, *arguments) in enumerate(commands):
        expected = int(block.comment("exits with ") or 0) if place == len(commands) - 1 else 0
        if program == PROGRAM:
            stays = arguments[0] in STAY or "--watch" in arguments
            assert not stays, f"{block}: mark it as not run, because it does not end"
            with pytest.MonkeyPatch.context() as patch:
                if arguments[0] == "open":  # without the Workbench, it ends when the folder is read
                    patch.setitem(sys.modules, "llama_index_contextual.ui.app", None)
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


def test_own_contexts_writes_and_compares_contexts_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wordllama", reason="needs the extra local")
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "pump.md").write_text("# Pump P7\n\nError TS-999 means that the pump runs dry.\n", encoding="utf-8")
    (folder / "valve.md").write_text("# Valve V2\n\nThe valve is opened once a month.\n", encoding="utf-8")
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        '{"question": "What does TS-999 mean?", "file": "pump.md", "evidence": ["the pump runs dry"]}\n',
        encoding="utf-8",
    )
    out = tmp_path / "contexts.jsonl"
    arguments = ["own_contexts.py", str(folder), "--questions", str(questions), "--out", str(out)]
    arguments += ["--root", str(tmp_path / "knowledge"), "--yes"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    with LoopbackProvider() as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.api_base)
        monkeypatch.setenv("OPENAI_API_BASE", model.api_base)
        script("own_contexts").main()
        calls = len(model.calls("/v1/chat/completions"))
        script("own_contexts").main()
        assert len(model.calls("/v1/chat/completions")) == calls == 2
    printed = capsys.readouterr().out
    assert f"2 contexts in {out}" in printed
    assert "structural" in printed
    tables = [json.loads(line).get("table", "contexts") for line in out.read_text(encoding="utf-8").splitlines()]
    assert tables.count("contexts") == 2
