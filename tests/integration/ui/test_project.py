"""The view of a project: the progress of a folder that is being read, and skipped files."""

from __future__ import annotations

import asyncio
import html
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.ingestion.report import IngestProgress, IngestReport
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import SkippedFile
from tests.support.cli import run

testclient = pytest.importorskip("starlette.testclient", reason="needs the extra ui")
from llama_index_contextual.ui import app as workbench  # noqa: E402
from llama_index_contextual.ui.background import BackgroundIngest  # noqa: E402

SECONDS = 300.0


class Gate:
    """An ingestion that waits until the test ends it."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.outcome: IngestReport | Exception = IngestReport(version="v000002")
        self.cancelled = False

    async def ingest(self, report: Any) -> IngestReport:
        report(IngestProgress(stage="ingest", documents_read=3, documents_total=8, document="<b>.pdf", dollars=0.25))
        self.entered.set()
        try:
            while not self.opened.is_set():
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


def page_of(project: Project, path: str = "project", **options: Any) -> str:
    """Return the text of a page as a reader sees it."""
    return text_of(workbench.make_app([project], **options), f"/p/{project.name}/{path}")


def text_of(app: Any, path: str) -> str:
    """Return the text of a page of an application."""
    client = testclient.TestClient(app, base_url="http://127.0.0.1")
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", client.get(path).text)).split())


def test_the_progress_of_a_folder_is_shown_in_every_view_and_then_its_report(filled: Project, gate: Gate) -> None:
    ingest = BackgroundIngest("Papers", gate.ingest)
    ingest.start()
    assert gate.entered.wait(SECONDS)
    shown = page_of(filled, ingests={"reports": ingest})
    assert "Reading the folder Papers" in shown
    assert "3 of 8 files" in shown
    assert "Now <b>.pdf" in shown
    assert "$0.25 so far" in shown
    assert "Searches are answered from the documents that were read before." in shown
    for path in ("", "ask", "?q=pump"):
        assert "Reading the folder 3 of 8 files" in page_of(filled, path, ingests={"reports": ingest})
    gate.outcome = IngestReport(version="v2", skipped=[SkippedFile("old.doc", "has the type .doc: save it as .docx")])
    gate.opened.set()
    ingest._thread.join(SECONDS)
    shown = page_of(filled, ingests={"reports": ingest})
    assert "Reading the folder" not in shown
    assert "Could not be read 1" in shown
    assert "old.doc has the type .doc: save it as .docx" in shown


def test_a_folder_that_cannot_be_read_is_explained_and_searches_go_on(filled: Project, gate: Gate) -> None:
    gate.outcome = ModelError("The account has no quota left: top it up.")
    ingest = BackgroundIngest("Papers", gate.ingest)
    ingest.start()
    gate.opened.set()
    ingest._thread.join(SECONDS)
    shown = page_of(filled, ingests={"reports": ingest})
    assert "The folder Papers could not be read. The account has no quota left: top it up." in shown
    assert "The folder could not be read" in page_of(filled, "?q=pump", ingests={"reports": ingest})
    assert "TS-999" in page_of(filled, "?q=error+TS-999", ingests={"reports": ingest})


def test_an_ingestion_that_is_stopped_is_cancelled_and_waited_for(gate: Gate) -> None:
    ingest = BackgroundIngest("Papers", gate.ingest)
    ingest.start()
    assert ingest.stop()
    assert (gate.cancelled or not gate.entered.is_set(), ingest.is_running) == (True, False)
    assert not ingest.stop()


def test_open_serves_at_once_and_reads_the_folder_meanwhile(
    tmp_path: Path, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (text_folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    seen: list[str] = []

    def serve(app: Any, **_: Any) -> None:
        (name,) = app.state.projects
        seen.append(text_of(app, f"/p/{name}/project"))
        app.state.ingests[name]._thread.join(SECONDS)
        seen.extend(text_of(app, f"/p/{name}/{path}") for path in ("project", "?q=error+TS-999"))

    monkeypatch.setattr(workbench, "serve", serve)
    result = run("open", text_folder, "--root", tmp_path / "knowledge")
    assert (result.code, "2 added" in result.out) == (0, True)
    assert "old.doc" in result.err
    before, after, found = seen
    assert "There are no documents yet" not in before
    assert "Documents 2 Could not be read 1" in after
    assert "old.doc" in after
    assert "TS-999" in found


@pytest.mark.parametrize(
    ("name", "message"),
    [("letter.doc", "open it and save it as .docx"), (None, "is empty: add documents in the browser.")],
)
def test_open_shows_why_a_folder_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    if name is not None:
        (tmp_path / "empty" / name).write_bytes(b"?")
    seen: list[str] = []

    def serve(app: Any, **_: Any) -> None:
        app.state.ingests["empty"]._thread.join(SECONDS)
        seen.append(text_of(app, "/p/empty/project"))

    monkeypatch.setattr(workbench, "serve", serve)
    result = run("open", tmp_path / "empty", "--root", tmp_path / "knowledge")
    assert message in result.err
    assert ("could not be read." in seen[0]) == (name is not None)
    assert name is None or message in seen[0]


def test_the_files_that_the_last_ingestion_skipped_are_shown_with_their_remedies(tmp_path: Path) -> None:
    folder = tmp_path / "Papers"
    folder.mkdir()
    (folder / "pump.md").write_text("The pump runs.")
    (folder / "old.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    project = ProjectManager(tmp_path / "knowledge").create("papers", ProjectConfig.local())
    project.ingest([folder])
    shown = page_of(project)
    assert "Could not be read 1" in shown
    assert "Papers/old.doc has the type .doc and is not read: open it and save it as .docx" in shown
    assert str(tmp_path) not in shown
    (project.directory / "skipped.json").write_text("[1")
    assert "Could not be read" not in page_of(project)
    project.ingest([folder])  # nothing has changed, but the file is still skipped
    assert "Could not be read 1" in page_of(project)
    (folder / "old.doc").unlink()
    project.ingest([folder])
    assert "Could not be read" not in page_of(project)


def test_forget_removes_the_names_of_skipped_files(tmp_path: Path) -> None:
    (tmp_path / "pump.md").write_text("The pump runs.")
    (tmp_path / "secret.doc").write_bytes(b"\xd0\xcf\x11\xe0")
    project = ProjectManager(tmp_path / "knowledge").create("papers", ProjectConfig.local())
    project.ingest([tmp_path / "pump.md", tmp_path / "secret.doc"])
    project.forget()
    assert "secret" not in page_of(project)
    assert not (project.directory / "skipped.json").exists()


def test_a_project_without_a_folder_that_is_read_says_what_to_do(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path / "knowledge").create("new", ProjectConfig.local())
    assert "llama-index-contextual ingest new FOLDER" in page_of(project)
