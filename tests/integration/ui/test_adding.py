"""The view that adds documents: forms without a script, prices, reasons, removal and undo, and one writer at a time."""

from __future__ import annotations

import asyncio
import errno
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.llms.openai import OpenAI
from starlette.testclient import TestClient

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, NoSpaceError
from llama_index_contextual.index import files
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.ingestion.report import IngestProgress, IngestReport
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers.process import ParserProcess
from llama_index_contextual.ui import adding as adding_view
from llama_index_contextual.ui import make_app
from llama_index_contextual.ui.adding import Adding
from llama_index_contextual.ui.background import BackgroundIngest
from llama_index_contextual.ui.users import OWNER, User
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider

BASE = "http://127.0.0.1:8010"
ADD = "/p/reports/add"


class Browser:
    """A browser without a script, on a project to which documents can be added."""

    def __init__(self, project: Project, **options: Any) -> None:
        self.project = project
        self.adding = Adding(project, **options)
        self._client = TestClient(make_app([project], adding={project.name: self.adding}), base_url=BASE)

    def page(self) -> str:
        """Return the text of the page."""
        return text_of(self._client.get(ADD).text)

    def send(self, *files: tuple[str, str], **options: Any) -> Any:
        """Send the form with files, and return the response after the redirect."""
        return self._client.post(ADD, files=[("file", (name, text.encode())) for name, text in files], **options)

    def press(self, **field: str) -> Any:
        """Press a button of the page, and return the response after the redirect."""
        return self._client.post(f"{ADD}/change", data=field)

    def buttons(self, name: str) -> list[str]:
        """Return the values of the buttons with a name."""
        return re.findall(rf'<button[^>]* name="{name}" value="([^"]*)"', self._client.get(ADD).text)

    def wait(self, condition: Callable[[], bool] | None = None) -> None:
        """Wait until a condition holds, or until all files have been read."""
        deadline = time.monotonic() + PATIENCE
        while not (condition() if condition else not (self.adding.ingest and self.adding.ingest.is_running)):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def documents(self) -> list[str]:
        """Return the ids of the documents."""
        return sorted(record.doc_id for record in self.project.documents())


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.fixture
def browser(project: Project) -> Iterator[Browser]:
    """A browser on an empty project."""
    one = Browser(project)
    yield one
    one.adding.stop()


# ---- adding ----------------------------------------------------------------------------------------------------------


def test_an_empty_project_leads_to_the_form_and_its_files_are_searched(browser: Browser) -> None:
    start = browser._client.get("/p/reports/").text
    assert f'href="{ADD}">Add documents</a>' in start
    assert "No files have been added here yet." in browser.page()
    response = browser.send(("a.md", "# Pumps\n\nPump P-7 stops."), ("Folder/b.txt", "Valves leak."), ("x.zip", "PK"))
    assert response.url == f"{BASE}{ADD}"
    browser.wait()
    page = browser.page()
    assert "2 can be searched." in page
    assert "1 file not added x.zip has the type .zip and is not read: unpack it" in page
    assert browser.documents() == ["inbox/Folder/b.txt", "inbox/a.md"]
    assert "Pump P-7" in text_of(browser._client.get("/p/reports/?q=P-7").text)
    browser.press(dismiss="all")
    assert "x.zip" not in browser.page()


def test_a_skipped_file_keeps_its_reason_and_is_read_again(browser: Browser) -> None:
    browser.send(("broken.pdf", "%PDF-1.4 broken"), ("good.txt", "The weir is open."))
    browser.wait()
    assert "1 can be searched, 1 cannot be read: correct the file and add it again" in browser.page()
    assert re.search(r"broken\.pdf Not read: the PDF is damaged", browser.page())
    (browser.adding.inbox.folder / "broken.pdf").write_bytes(b"")
    shutil.copy(browser.adding.inbox.folder / "good.txt", browser.adding.inbox.folder / "broken.pdf")
    browser.press(retry="all")
    browser.wait()
    assert "Not read" in browser.page()


def test_a_broken_file_is_not_read_again_with_each_new_one(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = ParserProcess.read

    def counted(process: ParserProcess, path: Path, **options: Any) -> Any:
        read.append(path.name)
        return parse(process, path, **options)

    monkeypatch.setattr(ParserProcess, "read", counted)
    for name, text in (("broken.pdf", "%PDF-1.4 broken"), ("a.txt", "Pumps run."), ("b.txt", "Valves leak.")):
        browser.send((name, text))
        browser.wait()
    assert set(read) == {"broken.pdf"}
    before = len(read)
    assert "1 cannot be read" in browser.page()
    browser.press(retry="all")
    browser.wait()
    assert len(read) > before
    assert before == len(read) - before, "each attempt opens the file as often"


def test_a_name_that_is_taken_is_numbered_and_the_same_file_is_kept_once(browser: Browser) -> None:
    for text in ("one", "two", "one"):
        browser.send(("a.txt", text))
    browser.wait()
    assert browser.documents() == ["inbox/a (2).txt", "inbox/a.txt"]


def test_removed_documents_come_back(browser: Browser) -> None:
    browser.send(("a.txt", "Pumps run."), ("b.txt", "Valves leak."))
    browser.wait()
    browser.press(remove="a.txt")
    browser.wait()
    assert browser.documents() == ["inbox/b.txt"]
    assert "Removed a.txt" in browser.page()
    browser.press(undo=browser.buttons("undo")[0])
    browser.wait()
    assert browser.documents() == ["inbox/a.txt", "inbox/b.txt"]
    for path in ("a.txt", "b.txt"):  # the last documents, too
        browser.press(remove=path)
    browser.wait()
    assert browser.documents() == []


@pytest.mark.parametrize(
    "field", [{"remove": "../../etc/passwd"}, {"remove": "other.txt"}, {"undo": "nothing"}, {}, {"other": "x"}]
)
def test_a_wrong_action_changes_nothing(browser: Browser, field: dict[str, str]) -> None:
    browser.send(("a.txt", "Pumps run."))
    browser.wait()
    assert browser.press(**field).status_code == 400
    assert browser.documents() == ["inbox/a.txt"]


def test_documents_from_elsewhere_are_not_touched(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "c.txt").write_text("Weirs are dams.")
    browser.project.ingest([tmp_path / "papers"], file_metadata=lambda path: {"kind": "paper"})
    browser.send(("a.txt", "Pumps run."))
    browser.wait()
    browser.press(remove="a.txt")
    browser.wait()
    assert browser.documents() == ["papers/c.txt"]
    assert browser.project.documents()[0].facts == {"kind": "paper"}


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_pages_of_other_origins_change_nothing(browser: Browser, headers: dict[str, str]) -> None:
    browser.send(("a.txt", "Pumps run."))
    browser.wait()
    assert browser.send(("b.txt", "Valves leak."), headers=headers).status_code == 403
    for field in ({"remove": "a.txt"}, {"undo": browser.buttons("undo")[0]}):
        response = browser._client.post(f"{ADD}/change", data=field, headers=headers)
        assert response.status_code == 403
    assert browser.documents() == ["inbox/a.txt"]


# ---- the price -------------------------------------------------------------------------------------------------------


@pytest.fixture
def paid(tmp_path: Path) -> Iterator[tuple[Browser, LoopbackProvider]]:
    """A browser on a project in which an LLM writes the contexts."""
    with LoopbackProvider() as provider:
        options = {"api_key": "any", "api_base": provider.api_base, "max_retries": 0, "reuse_client": False}
        manager = ProjectManager(tmp_path / "paid")
        manager.create("reports", ProjectConfig.local(context="llm", llm="openai:gpt-4o-mini"))
        browser = Browser(manager.load("reports", llm=OpenAI(model="gpt-4o-mini", **options)))
        yield browser, provider
        browser.adding.stop()


def test_nothing_is_paid_before_the_price_is_confirmed(paid: tuple[Browser, LoopbackProvider]) -> None:
    browser, provider = paid
    browser.send(("a.md", "# Pumps\n\nPump P-7 stops."))
    browser.wait(lambda: "being calculated" not in browser.page())
    page = browser.page()
    price = re.search(r"1 file, 1 kB: confirm the price \$(\S+) for 1 call of openai:gpt-4o-mini", page)
    assert price is not None
    assert provider.calls() == []
    assert browser.documents() == []
    again = Browser(browser.project)  # the page was left, and the server started again
    assert again.buttons("discard") == ["all"]
    shown = browser.buttons("confirm")[0]
    browser.send(("b.md", "# Valves\n\nValve V-3 leaks."))  # in another window
    refused = browser.press(confirm=shown)
    assert refused.status_code == 400
    assert re.search("The price is not known yet|confirm the new price", text_of(refused.text))
    assert provider.calls() == []
    browser.wait(lambda: "being calculated" not in browser.page())
    assert "2 files, 1 kB: confirm the price" in browser.page()
    browser.press(confirm=browser.buttons("confirm")[0])
    browser.wait()
    assert browser.documents() == ["inbox/a.md", "inbox/b.md"]
    assert len(provider.calls()) == 2
    assert browser.project.cost().dollars <= 2 * float(price[1]) * 1.5


def test_a_price_that_cannot_be_calculated_says_why(
    paid: tuple[Browser, LoopbackProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(adding: Adding, user: User) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Adding, "calculate", fail)
    browser, _ = paid
    browser.send(("a.md", "# Pumps\n\nPump P-7 stops."))
    browser.wait(lambda: "being calculated" not in browser.page())
    assert "disk I/O error" in browser.page()
    assert browser.buttons("discard") == ["all"]


def test_discarded_files_cost_nothing(paid: tuple[Browser, LoopbackProvider]) -> None:
    browser, provider = paid
    browser.send(("a.md", "# Pumps\n\nPump P-7 stops."))
    browser.press(discard="all")
    assert "No files have been added here yet." in browser.page()
    assert provider.calls() == []


# ---- one writer, and interruptions -----------------------------------------------------------------------------------


def test_files_wait_for_another_program_and_the_user_is_told(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding_view, "LOCKED_SECONDS", 0.05)
    with write_lock(browser.project.directory):
        browser.send(("a.txt", "Pumps run."))
        browser.wait(lambda: "Another program is changing this project" in browser.page())
        assert "Your files are kept" in browser.page()
    browser.wait()
    assert browser.documents() == ["inbox/a.txt"]


def test_files_that_arrive_during_an_ingestion_are_read_after_it(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    follow = Adding._follow

    async def held(adding: Adding, show: Any) -> Any:
        if not entered.is_set():
            report = await follow(adding, show)
            entered.set()
            assert release.wait(PATIENCE)
            return report
        return await follow(adding, show)

    monkeypatch.setattr(Adding, "_follow", held)
    browser.send(("a.txt", "Pumps run."))
    assert entered.wait(PATIENCE)
    browser.send(("b.txt", "Valves leak."))
    assert "Waits" in browser.page()
    release.set()
    browser.wait()
    assert browser.documents() == ["inbox/a.txt", "inbox/b.txt"]


def test_files_that_arrive_when_an_ingestion_ends_are_read_by_one_other(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    adding, entered, release = browser.adding, threading.Event(), threading.Event()
    ingests: list[Any] = []

    class Ending:
        """The lock of the files; when an ingestion has ended, files arrive."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            is_ended = not adding._is_working
            lock.release()
            if is_ended and len(ingests) == 1:
                adding.start()

    async def follow(adding: Adding, show: Any) -> IngestReport:
        ingests.append(adding.ingest)
        if len(ingests) == 2:
            entered.set()
            await asyncio.to_thread(release.wait, PATIENCE)
        return IngestReport(version=None)

    lock = threading.Lock()
    monkeypatch.setattr(adding, "_lock", Ending())
    monkeypatch.setattr(Adding, "_follow", follow)
    adding.start()
    assert entered.wait(PATIENCE)
    browser.wait(lambda: not ingests[0].is_running)
    second = adding.ingest
    adding.start()
    assert adding.ingest is second, "there is one ingestion at a time"
    release.set()


def test_the_file_that_is_being_read_is_found_by_its_whole_name(browser: Browser) -> None:
    inbox = browser.adding.inbox
    for name in ("a.txt", "ba.txt"):
        upload = inbox.receive(name, waits=None, max_bytes=100)
        upload.write(name.encode())
        upload.close()
        inbox.add([upload], "", {})
    browser.adding.ingest = BackgroundIngest("inbox", lambda show: pytest.fail("not started"))
    browser.adding.ingest.progress = IngestProgress(stage="ingest", document="a.txt")
    assert {one.name: one.state for one in browser.adding.files(OWNER)} == {"a.txt": "reading", "ba.txt": "queued"}
    browser.adding.ingest = None


def test_a_server_that_was_stopped_continues_with_the_files_of_the_inbox(browser: Browser) -> None:
    inbox = browser.adding.inbox
    upload = inbox.receive("a.txt", waits=None, max_bytes=100)
    upload.write(b"Pumps run.")
    upload.close()
    inbox.add([upload], "", {})
    half = inbox.receive("b.txt", waits=None, max_bytes=100)
    half.write(b"Val")
    again = Browser(browser.project)
    again.adding.resume()
    again.wait()
    assert again.documents() == ["inbox/a.txt"]
    assert [path.name for path in inbox.folder.iterdir()] == ["a.txt"]


def test_a_full_disk_is_named_and_the_files_can_be_read_later(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise NoSpaceError("inbox", "its disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("llama_index_contextual.index.inbox.Inbox.require_space", full)
        response = browser.send(("a.txt", "Pumps run."))
        assert response.status_code == 507
        assert "its disk is full. Free space" in text_of(response.text)
    with monkeypatch.context() as patch:
        patch.setattr("llama_index_contextual.ingestion.run.IngestRun.abuild", full)
        browser.send(("a.txt", "Pumps run."))
        browser.wait()
    assert "The files could not be read. inbox cannot be written: its disk is full." in browser.page()
    browser.press(retry="all")
    browser.wait()
    assert browser.documents() == ["inbox/a.txt"]


def test_a_folder_that_cannot_be_written_to_is_named(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(files, "make_directory", denied)
    response = browser.send(("a.txt", "Pumps run."))
    assert response.status_code == 500
    assert "inbox cannot be changed: make it writable" in text_of(response.text)


# ---- a folder of one's own -------------------------------------------------------------------------------------------


def test_files_go_to_the_folder_that_was_opened(project: Project, tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "c.txt").write_text("Weirs are dams.")
    project.ingest([papers], file_metadata=lambda path: {"kind": "paper"})
    browser = Browser(project, folder=papers)
    browser.send(("a.txt", "Pumps run."))
    browser.wait()
    assert sorted(path.name for path in papers.iterdir()) == ["a.txt", "c.txt"]
    assert browser.documents() == ["papers/a.txt", "papers/c.txt"]
    assert {record.doc_id: record.facts for record in project.documents()}["papers/c.txt"] == {"kind": "paper"}
    browser.press(remove="a.txt")
    browser.wait()
    assert [path.name for path in papers.iterdir()] == ["c.txt"]
    assert browser.documents() == ["papers/c.txt"]
    browser.adding.stop()


def test_versions_of_added_files_do_not_displace_those_of_the_owner(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "c.txt").write_text("Weirs are dams.")
    browser.project.ingest([tmp_path / "papers"])
    (own,) = browser.project.versions()
    for number in range(8):
        browser.send((f"{number}.txt", f"Pump {number} runs."))
        browser.wait()
    versions = browser.project.versions()
    assert own.name in [version.name for version in versions]
    assert all(version.automatic for version in versions if version.name != own.name)


# ---- what belongs to the project -------------------------------------------------------------------------------------


def test_the_log_says_who_changed_what(browser: Browser) -> None:
    browser.send(("a.txt", "Pumps run."))
    browser.press(remove="a.txt")
    browser.wait()
    changes = browser.adding.inbox.changes()
    assert [(one.user, one.action, list(one.files)) for one in changes] == [
        ("", "add", ["a.txt"]),
        ("", "remove", ["a.txt"]),
    ]
    page = text_of(browser._client.get("/p/reports/project").text)
    assert re.search(r"Who added and removed files The owner removed a\.txt .* The owner added a\.txt", page)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", one.at) for one in changes)


def test_forget_erases_removed_files_and_delete_erases_all(browser: Browser, manager: ProjectManager) -> None:
    browser.send(("kept.txt", "Pumps run."), ("gone.txt", "Valves leak."))
    browser.wait()
    browser.press(remove="gone.txt")
    browser.wait()
    directory = browser.project.directory
    assert any(b"Valves" in path.read_bytes() for path in (directory / "removed").rglob("*.txt"))
    browser.project.forget()
    assert not (directory / "removed").exists()
    assert "gone" not in (directory / "changes.jsonl").read_text()
    assert browser.documents() == ["inbox/kept.txt"]
    manager.delete("reports")
    assert not directory.exists()


def test_a_restricted_project_takes_no_documents(project: Project) -> None:
    restricted = project.only({"group": "hr"})
    with pytest.raises(ConfigurationError, match="documents can be added to whole projects only"):
        make_app([restricted], adding={restricted.name: Adding(project)})


def test_the_owner_may_do_everything() -> None:
    assert OWNER.rights == {"search", "ask", "add"}
