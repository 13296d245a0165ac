"""`verify`: all damage is found, with the command that repairs it; harmless problems are marked as such."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import FormatError, LedgerBusyError, LedgerError, ProjectNotFoundError
from llama_index_contextual.index import files
from llama_index_contextual.index import ledger as ledger_module
from llama_index_contextual.index.ledger import Ledger, LedgerEntry, content_key, damaged_ledgers
from llama_index_contextual.index.ledger_lines import export_ledger
from llama_index_contextual.index.verify import VerifyReport, repair_project
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.cli import run
from tests.support.models import ScriptedLLM
from tests.support.trees import write


def found(report: VerifyReport) -> dict[str, str]:
    return {problem.file: problem.remedy for problem in report.problems}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


LIVE, FORMER = "parts/p000002/docstore.sqlite", "parts/p000001/docstore.sqlite"
PART, MANIFEST = "parts/p000002/documents.json", "versions/v000002/manifest.json"
CURRENT, LEDGER = "CURRENT", "ledger.sqlite"
LEFT_VERSION, LEFT_PART, LEFT_FILE = "versions/v000003.building", "parts/p000003.building", "CURRENT.new"


@pytest.fixture
def notes(tmp_path: Path) -> Project:
    """A project that the command line can ingest into, with two versions of one file, and that file."""
    config = ProjectConfig.local(indexes="lexical", keep_versions=2)
    project = ProjectManager(tmp_path).create("reports", config)
    for state in ("alpha", "beta"):
        write(tmp_path / "notes" / "note.txt", f"A report in its state {state}.")
        project.ingest([tmp_path / "notes"])
    return project


DAMAGE: dict[str, tuple[Callable[[Path], object], str, bool, str]] = {
    "live version": (lambda d: flip(d / LIVE), LIVE, False, "verify reports --repair"),
    "version before": (lambda d: flip(d / FORMER), FORMER, True, "verify reports --repair"),
    "every version": (lambda d: [flip(d / LIVE), flip(d / FORMER)], LIVE, False, "verify reports --repair"),
    "part": (lambda d: (d / PART).unlink(), PART, False, "verify reports --repair"),
    "manifest": (lambda d: (d / MANIFEST).unlink(), MANIFEST, False, "rollback reports --to v000001"),
    "directory": (lambda d: shutil.rmtree(d / Path(MANIFEST).parent), CURRENT, False, "rollback reports --to v000001"),
    "no switch": (lambda d: (d / CURRENT).unlink(), CURRENT, False, "rollback reports --to v000002"),
    "switch": (lambda d: (d / CURRENT).write_bytes(b"\xff" * 12), CURRENT, False, "rollback reports --to v000002"),
    "wrong switch": (lambda d: (d / CURRENT).write_bytes(b"v7\n"), CURRENT, False, "rollback reports --to v000002"),
    "ledger": (lambda d: (d / LEDGER).write_bytes(b"x" * 5000), LEDGER, False, "verify reports --repair"),
    "left version": (lambda d: (d / LEFT_VERSION).mkdir(), LEFT_VERSION, True, "verify reports --repair"),
    "left part": (lambda d: (d / LEFT_PART).mkdir(), LEFT_PART, True, "verify reports --repair"),
    "left file": (lambda d: (d / LEFT_FILE).write_bytes(b"v0"), LEFT_FILE, True, "verify reports --repair"),
}


@pytest.mark.parametrize(("spoil", "file", "harmless", "remedy"), DAMAGE.values(), ids=DAMAGE.keys())
def test_the_command_printed_by_verify_mends_the_damage(
    spoil: Callable[[Path], object], file: str, harmless: bool, remedy: str, notes: Project, tmp_path: Path
) -> None:
    spoil(notes.directory)
    problem = next(one for one in notes.verify().problems if one.file == file)
    assert (problem.harmless, notes.verify().sound) == (harmless, harmless)
    assert f"llama-index-contextual {remedy}" in problem.remedy
    for _ in range(4):
        if not (problems := notes.verify().problems):
            break
        words = [str(tmp_path / "notes") if word == "PATHS" else word for word in shlex.split(problems[0].remedy)]
        result = run(*words[1:])
        assert result.code == 0, result.err
    assert list(problems) == []
    assert notes.retrieve("report").results
    write(tmp_path / "notes" / "note.txt", "A third state: gamma.")
    notes.ingest([tmp_path / "notes"])
    assert "gamma" in notes.retrieve("gamma")[0].text


def test_a_repair_says_what_to_ingest_again(manager: ProjectManager, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / "files" / f"{name}.md", f"# {name}\n\nThe text of {name}.")
    project = manager.create("hurt", ProjectConfig.local())
    project.ingest([tmp_path / "files"])
    project.ingest([Document(id_="note", text="A note without a file.")])
    (project.directory / "parts" / "p000001" / "docstore.sqlite").unlink()
    result = run("verify", "hurt", "--repair", "--root", manager.root)
    assert result.code == 0, result.err
    shown = " ".join(result.out.split())
    assert "Version v000003 is live: v000002 without its damaged parts." in shown
    assert f"Ingest 2 documents again from {tmp_path / 'files'}" in shown
    assert "files/one.md, files/two.md." in shown
    assert [hit.source.doc_id for hit in project.retrieve("note", mode="semantic")] == ["note"]
    project.ingest([tmp_path / "files"])
    assert {record.doc_id for record in project.documents()} == {"files/one.md", "files/two.md", "note"}
    assert project.verify(repair=True).problems == []


def test_a_version_of_a_newer_release_is_neither_damaged_nor_removed(published: Project, version: Path) -> None:
    published.ingest([Document(id_="note", text="A note.")])
    manifest = version / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"format": 1', '"format": 2'), "utf-8")
    assert "upgrade llama-index-contextual" in (published.versions()[0].damage or "")
    assert found(published.verify(repair=True)) == {"versions/v000001": "pip install --upgrade llama-index-contextual"}
    assert version.is_dir()


def test_a_defective_disk_at_the_current_file_is_damage(published: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def open_(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path).name == "CURRENT":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        (problem,) = published.verify().problems
        assert (problem.file, problem.message) == ("CURRENT", f"cannot be read ({os.strerror(errno.EIO)})")
        assert " rollback reports --to v000001 " in problem.remedy


def test_verify_changes_nothing_and_needs_no_lock(published: Project) -> None:
    before = {path: path.read_bytes() for path in published.directory.rglob("*") if path.is_file()}
    with sqlite3.connect(published.directory / "ledger.sqlite") as reader:
        reader.execute("SELECT count(*) FROM contexts").fetchone()
        published.verify()
    assert {path: path.read_bytes() for path in published.directory.rglob("*") if path.is_file()} == before


def test_a_repair_recovers_readable_rows_and_keeps_the_damaged_file(published: Project) -> None:
    path = published.directory / "ledger.sqlite"
    ledger = Ledger(path)
    rows = [LedgerEntry(key=f"{n:064}", context=f"context {n} " * 40, model="m", input_tokens=n) for n in range(200)]
    ledger.add_contexts(rows)
    ledger.close()
    content = bytearray(path.read_bytes())
    page = 4096
    middle = len(content) // page // 2 * page
    content[middle : middle + page] = b"\xff" * page
    path.write_bytes(content)
    assert not published.verify().sound
    assert published.retrieve("pump").results  # queries do not need it
    report = repair_project(published.directory)
    assert report.sound, report
    assert (published.directory / "ledger.sqlite.damaged").read_bytes() == content
    ledger = Ledger(path)
    kept = [row for row in rows if ledger.contexts([row.key]).get(row.key) == row.context]
    assert len(kept) == ledger.info().contexts >= 100
    assert ledger.info().input_tokens == sum(row.input_tokens or 0 for row in kept)
    ledger.close()


def test_a_damaged_part_names_its_documents_if_they_can_be_read(published: Project, part: Path) -> None:
    flip(part / "bm25" / "counts.bin")
    (problem,) = published.verify().problems
    assert problem.file == "parts/p000001/bm25/counts.bin"
    assert problem.documents == ("reports/manual.txt", "reports/quarter.md")
    assert problem.message.endswith("; it belongs to 2 documents: reports/manual.txt, reports/quarter.md")
    (part / "documents.json").unlink()
    assert {problem.documents for problem in published.verify().problems} == {()}


@pytest.mark.parametrize(
    "name", ["versions/v000001/manifest.json", "parts/p000001/documents.json", "parts/p000001/bm25/counts.bin"]
)
def test_a_repair_keeps_a_version_whose_files_cannot_be_read_now(
    name: str, published: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.ingest([Document(id_="note", text="A note.")], replace=True)
    path = published.directory / name

    def fail(error: int) -> None:
        def reading(read: Callable[[Path], object]) -> Callable[[Path], object]:
            def of(file: Path) -> object:
                if file == path:
                    raise OSError(error, os.strerror(error), str(file))
                return read(file)

            return of

        monkeypatch.undo()
        for owner, function in ((files, "read"), (files, "sha256")):
            monkeypatch.setattr(owner, function, reading(getattr(owner, function)))

    fail(errno.EMFILE)
    (problem,) = published.verify(repair=True).problems
    assert (problem.file, problem.harmless) == (name, True)
    assert problem.message.startswith(f"cannot be read ({os.strerror(errno.EMFILE)})")
    fail(errno.EIO)  # a defective disk
    assert published.verify(repair=True) == VerifyReport(["v000002"], [])


def test_a_ledger_of_a_newer_release_is_not_reported_as_damaged(published: Project) -> None:
    path = published.directory / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.query("PRAGMA user_version = 4")
    ledger.close()
    before = path.read_bytes()
    assert found(published.verify())["ledger.sqlite"] == "pip install --upgrade llama-index-contextual"
    with pytest.raises(FormatError, match=r"ledger.sqlite has format 4"):
        published.verify(repair=True)
    assert path.read_bytes() == before


# ---- the ledger ------------------------------------------------------------------------------------------------------


def ledger_problem(project: Project) -> str | None:
    messages = [problem.message for problem in project.verify().problems if problem.file == "ledger.sqlite"]
    assert len(messages) < 2
    return messages[0] if messages else None


@pytest.fixture
def paid(published: Project) -> Project:
    """A project with contexts in its ledger."""
    with closing(Ledger(published.directory / "ledger.sqlite")) as ledger:
        ledger.add_contexts(
            LedgerEntry(key=content_key(str(n)), context=f"Context {n}. " * 9, model="m") for n in range(99)
        )
    return published


@pytest.mark.parametrize(("content", "what"), [(None, "is missing: "), (b"", "is empty: ")])
def test_a_missing_or_empty_ledger_is_reported_until_a_new_one_is_accepted(
    content: bytes | None, what: str, manager: ProjectManager
) -> None:
    project = manager.create("paid", ProjectConfig.local(context="llm"), llm=ScriptedLLM())
    project.ingest([Document(id_="note", text="A note.")])
    path = project.directory / "ledger.sqlite"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert (ledger_problem(project) or "").startswith(what)
    assert project.verify(repair=True).sound
    assert path.stat().st_size > 0


def test_damaged_rows_are_reported_and_only_they_are_removed_by_a_repair(paid: Project) -> None:
    path = paid.directory / "ledger.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE contexts SET context = 'Another.' WHERE key = ?", (content_key("3"),))
    message = ledger_problem(paid) or ""
    assert message == "has 1 damaged row, which are not used and will be requested again"
    assert not paid.verify().sound
    assert paid.verify(repair=True).sound
    with closing(Ledger(path)) as ledger:
        assert len(ledger.contexts([content_key(str(n)) for n in range(99)])) == 98
    assert [kept.name for kept in damaged_ledgers(paid.directory)] == ["ledger.sqlite.damaged"]


def test_rows_unreachable_by_key_are_dropped_by_writing_a_new_file(paid: Project) -> None:
    path = paid.directory / "ledger.sqlite"
    keys = sorted(content_key(str(n)) for n in range(99))
    content = path.read_bytes()
    assert content.count(keys[50].encode()) == 1
    path.write_bytes(content.replace(keys[50].encode(), b"~" + keys[50].encode()[1:]))  # not in order any more
    assert ledger_problem(paid) is not None
    assert paid.verify(repair=True).sound
    with closing(Ledger(path)) as ledger:
        assert set(ledger.contexts(keys)) == {*keys} - {keys[50]}


def test_a_repair_keeps_the_damaged_file_and_removes_its_journal(paid: Project) -> None:
    path = paid.directory / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[4096 * 8 : 4096 * 9] = b"\xff" * 4096
    path.write_bytes(content)
    journal = paid.directory / "ledger.sqlite-journal"
    journal.write_bytes(b"not one that SQLite would undo")
    assert paid.verify(repair=True).sound
    aside = {file.name: file.read_bytes() for file in damaged_ledgers(paid.directory)}
    assert aside == {"ledger.sqlite.damaged": content}
    assert not journal.exists()


@pytest.mark.parametrize("fault", ["copy", "rename"])
def test_an_interrupted_repair_loses_no_readable_row(
    fault: str, paid: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = paid.directory / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[4096 * 8 : 4096 * 9] = b"\xff" * 4096
    path.write_bytes(content)

    def fail(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, fault, fail)
        with pytest.raises(LedgerError, match=r"could not be repaired \(No space left on device\): .* was not changed"):
            paid.verify(repair=True)
    assert path.read_bytes() == content
    assert paid.verify(repair=True).sound
    assert paid.info().ledger.contexts > 50


def test_a_ledger_locked_by_another_program_is_not_repaired(paid: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE_READING", 0)
    path = paid.directory / "ledger.sqlite"
    before = path.read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert (ledger_problem(paid) or "").startswith(
            "could not be checked: it is locked by another program (database "
        )
        with pytest.raises(LedgerBusyError, match="is locked by another program"):
            paid.verify(repair=True)
        for use in (
            paid.info,
            lambda: export_ledger(paid.directory, paid.directory / "out"),
            lambda: paid.estimate(["x.md"]),
        ):
            with pytest.raises(LedgerBusyError):
                use()
    assert path.read_bytes() == before
    assert paid.verify(repair=True).sound
    assert path.read_bytes() == before


def test_a_deleted_project_is_not_called_sound(manager: ProjectManager) -> None:
    project = manager.create("gone", ProjectConfig.local())
    project.ingest([Document(text="The pump runs dry.")])
    manager.delete("gone")
    for repair in (False, True):
        with pytest.raises(ProjectNotFoundError, match=r"'gone' does not exist|gone"):
            project.verify(repair=repair)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", None])
def test_a_damaged_or_missing_project_file_is_listed(content: bytes | None, manager: ProjectManager) -> None:
    project = manager.create("hurt", ProjectConfig.local())
    project.ingest([Document(text="The pump runs dry.")])
    path = project.directory / "project.json"
    sound = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    (problem,) = project.verify().problems
    assert (problem.file, problem.harmless) == ("project.json", False)
    assert ("is missing" if content is None else "is damaged") in problem.message
    if content is not None:
        assert manager.verify("hurt").problems == [problem]
        result = run("verify", "hurt", "--root", manager.root)
        assert (result.code, result.out.partition(" ")[0]) == (1, "project.json")
    path.write_bytes(sound)
    assert project.verify().sound
