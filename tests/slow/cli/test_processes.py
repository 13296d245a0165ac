"""Commands in processes of their own: Ctrl-C, pipes, and real terminals."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import httpx
import pytest
from rich.cells import cell_len

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.budgets import run_interrupted
from tests.support.cli import SECONDS, lines_of, run, show, started
from tests.support.records import Request
from tests.support.server import LoopbackProvider


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root folder, known to every command by the environment."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    return tmp_path / "knowledge"


def test_a_terminal_without_unicode_ends_no_command_and_warnings_appear_once(root: Path, text_folder: Path) -> None:
    (text_folder / "letters.txt").write_text("Ärger mit 日本語 — und Zeilen.", encoding="utf-8")
    ProjectManager(root).create("a", ProjectConfig.local(indexes="lexical")).ingest([text_folder])
    with started("search", "a", "Ärger", PYTHONIOENCODING="ascii") as child:
        out, err = child.communicate(timeout=SECONDS)
    assert (child.returncode, err.count("there is no semantic index")) == (0, 1)
    assert "\\xc4rger mit \\u65e5" in out
    with started("search", "a", "error TS-999", "--json") as child:
        child.stdout.close()
        assert (child.stderr.read(), child.wait(SECONDS)) == ("", 1), "a closed pipe is not an error"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_that_nobody_reads_or_that_finds_no_space_ends_a_command_with_code_1(unbuffered: str) -> None:
    for arguments in (["list", "--json"], ["--help"]):
        with started(*arguments, PYTHONUNBUFFERED=unbuffered) as child:
            child.stdout.close()
            assert (child.stderr.read(), child.wait(SECONDS)) == ("", 1)
    if Path("/dev/full").exists():
        with (
            open("/dev/full", "w") as full,
            started("list", "--json", stdout=full, PYTHONUNBUFFERED=unbuffered) as child,
        ):
            assert (child.stderr.read(), child.wait(SECONDS)) == ("Error: [Errno 28] No space left on device.\n", 1)


def test_a_folder_that_is_opened_is_shown_in_the_workbench(root: Path, text_folder: Path) -> None:
    pytest.importorskip("uvicorn", reason="the Workbench is part of the extra `ui`")
    with started("open", text_folder) as child:
        lines = [next(line for line in child.stdout if line.startswith(("Workbench: ", "The project is")))]
        lines.append(next(line for line in child.stdout if line.startswith(("Workbench: ", "The project is"))))
        address = next(line.split()[1] for line in lines if line.startswith("Workbench: "))
        page = httpx.get(address, follow_redirects=True, timeout=SECONDS)
        child.send_signal(signal.SIGINT)
        assert (page.status_code, text_folder.name in page.text, child.wait(SECONDS)) == (200, True, 0)
    assert len(ProjectManager(root).load(text_folder.name).documents()) == 2


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_while_a_folder_is_opened_keeps_what_was_paid(
    root: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("uvicorn", reason="the Workbench is part of the extra `ui`")
    released, answered = threading.Event(), 0

    def reply(_request: Request) -> str:
        nonlocal answered
        answered += 1
        if answered > 1:
            released.wait(SECONDS)
        return "A context that was paid for, and that says at some length where in its document the passage is."

    with LoopbackProvider(reply=reply) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        config = ProjectConfig(embed_model="local", chunk_size=24, chunk_overlap=0, llm_concurrency=1)
        ProjectManager(root).create("a", config)
        with started("open", text_folder, "--name", "a", "--yes") as child:
            try:
                address = next(line.split()[1] for line in child.stdout if line.startswith("Workbench: "))
                provider.wait_until(lambda: len(provider.chat_calls) == 2, SECONDS)
                page = httpx.get(f"{address}p/a/project", timeout=SECONDS).text
                child.send_signal(signal.SIGINT)
                _, err = child.communicate(timeout=SECONDS)
            finally:
                released.set()
        assert "Reading the folder" in page
        assert child.returncode == 130
        assert "Interrupted: there is no version yet; the ledger keeps 1 context and 0 embeddings." in err
        assert "Traceback" not in err


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
        config = ProjectConfig(embed_model="local", chunk_size=24, chunk_overlap=0, llm_concurrency=1)
        ProjectManager(root).create("a", config).ingest([text_folder / "quarter.md"])
        limit = answered + 1
        with started("ingest", "a", text_folder) as child:
            try:
                provider.wait_until(lambda: len(provider.chat_calls) == limit + 1, SECONDS)
                child.send_signal(signal.SIGINT)
                out, err = child.communicate(timeout=SECONDS)
            finally:
                released.set()
        assert (child.returncode, out) == (130, "")
        kept = f"the ledger keeps {pluralize(limit, 'context')} and 0 embeddings."
        assert f"Interrupted: version v000001 is live; {kept}" in err
        assert "Run the same command again to continue; `cost` shows the cost so far." in err
        assert "Traceback" not in err
        project = ProjectManager(root).load("a")
        assert project.verify().sound
        assert [record.doc_id for record in project.documents()] == ["quarter.md"]
        assert not list(project.directory.rglob("*.building"))
        again = run("ingest", "a", text_folder, "--quiet").out
        chunks = ProjectManager(root).load("a").info().chunks
        assert f" {pluralize(chunks - limit, 'context')} requested" in again
        assert chunks > limit


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_calls_in_flight_at_an_interruption_are_booked(tmp_path: Path) -> None:
    row = run_interrupted(tmp_path, signal.SIGINT, calls=2, parts=6)
    assert row.counted > 0
    assert row.holds, row
    assert row.booked > 0


def test_on_a_terminal_the_progress_bar_and_results_fit_and_the_bar_ends_with_the_result(
    root: Path, text_folder: Path
) -> None:
    ProjectManager(root).create("a", ProjectConfig.local())
    lines = lines_of(show(80, "ingest", "a", text_folder))
    assert all(cell_len(line) <= 80 for line in lines)
    bars = [line for line in lines if "documents ·" in line]
    assert re.search(r"━+ \d:\d\d:\d\d \d:\d\d:\d\d 2/2 documents · 2 chunks$", bars[-1])
    result = " ".join(lines[lines.index(bars[-1]) + 1 :])
    assert "Version v000001 is live: 2 added; 2 chunks;" in result
    found = show(60, "search", "a", "error TS-999")
    assert "\x1b[" in found, "colours"
    assert all(cell_len(line) <= 60 for line in lines_of(found))
