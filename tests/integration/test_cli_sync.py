"""The command `sync`: what it shows, asks and publishes, and watching a folder with real events."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.cli import sync as cli_sync
from llama_index_contextual.cli.sync import _matters, _Sync, watch_folders
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.project_file import write_lock
from tests.integration.test_cli import SECONDS, at_a_terminal, run, spawn
from tests.support.changes import RandomChanges, differences
from tests.support.trees import write


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root folder, known to every command by the environment."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "knowledge"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three documents."""
    for name in ("one", "two", "three"):
        write(tmp_path / "files" / f"{name}.md", f"# Document {name}\n\nThe text of {name}.")
    return tmp_path / "files"


@pytest.fixture
def project(root: Path, folder: Path) -> Project:
    """Project "a" in step with the folder."""
    project = ProjectManager(root).create("a", ProjectConfig.local())
    project.sync([folder])
    return project


def change(folder: Path) -> None:
    (folder / "one.md").rename(folder / "uno.md")
    (folder / "two.md").unlink()
    write(folder / "three.md", "# Changed\n\nAnother text.")
    write(folder / "four.md", "# Four\n\nA new one.")


def ids(project: Project) -> set[str]:
    return {record.doc_id for record in project.documents()}


PLAN = """1 new, 1 changed, 1 moved, 1 gone; 0 unchanged.
new      files/four.md
changed  files/three.md
moved    files/one.md to files/uno.md
gone     files/two.md
"""


# ---- once ------------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_every_change_and_changes_nothing(project: Project, folder: Path) -> None:
    change(folder)
    result = run("sync", "a", folder, "--dry-run")
    assert (result.code, result.out, result.err) == (0, PLAN, "")
    listed = run("sync", "a", folder, "--dry-run", "--json").json
    assert (listed["removed"], listed["renamed"]) == (["files/two.md"], {"files/one.md": "files/uno.md"})
    assert (listed["dry_run"], [version.name for version in project.versions()]) == (True, ["v000001"])


def test_without_a_terminal_nothing_is_removed_without_yes(project: Project, folder: Path) -> None:
    change(folder)
    result = run("sync", "a", folder)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"{PLAN}Error: There is no terminal for a confirmation: add --yes to continue without one.\n"
    assert "files/two.md" in ids(project)
    (folder / "two.md").write_text("# Back\n\nIt is back.")
    assert run("sync", "a", folder, "--quiet").code == 0, "without a removal there is nothing to confirm"


def test_the_removal_is_shown_asked_for_and_published_with_the_rest(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch)
    change(folder)
    declined = run("sync", "a", folder, "--quiet", answer="n\n")
    assert declined.code == 1
    assert "Remove 1 document whose files are gone? [y/N]" in declined.err
    assert [version.name for version in project.versions()] == ["v000001"]
    accepted = run("sync", "a", folder, "--quiet", answer="y\n")
    assert accepted.code == 0
    assert (
        accepted.out.strip()
        .removeprefix("y\n")
        .startswith("Version v000002 is live: 1 added, 1 updated, 1 renamed, 1 removed; 3 chunks;")
    )
    assert ids(project) == {"files/uno.md", "files/three.md", "files/four.md"}


def test_yes_removes_and_prints_one_json_object(project: Project, folder: Path) -> None:
    change(folder)
    result = run("sync", "a", folder, "--yes", "--quiet", "--json")
    assert (result.code, result.err) == (0, "")
    assert (result.json["version"], result.json["removed"]) == ("v000002", ["files/two.md"])


def test_a_missing_or_empty_folder_is_refused_with_advice(project: Project, folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    empty = run("sync", "a", folder, "--yes")
    assert (empty.code, empty.out) == (1, "")
    assert "contains no file that can be read, but 3 documents came from it" in empty.err
    folder.rmdir()
    missing = run("sync", "a", folder, "--yes")
    assert (missing.code, missing.out) == (2, "")
    assert "does not exist: if it is on a drive or share that is not mounted, mount it" in missing.err
    assert len(ids(project)) == 3
    folder.mkdir()
    assert run("sync", "a", folder, "--yes", "--allow-empty").out.startswith("Version v000002 is live: 0 added, 3 rem")


def test_many_changes_are_listed_in_part_and_by_a_dry_run_completely(project: Project, folder: Path) -> None:
    for number in range(30):
        write(folder / f"new{number}.md", f"# New {number}\n\nThe text.")
    result = run("sync", "a", folder, "--quiet")
    assert result.err.count("new      files/new") == 20
    assert "new      and 10 more; --dry-run lists all of them" in result.err
    for number in range(30):
        (folder / f"new{number}.md").unlink()
    assert run("sync", "a", folder, "--dry-run").out.count("gone     files/new") == 30


def test_an_empty_folder_of_a_new_project_is_no_error(root: Path, tmp_path: Path) -> None:
    ProjectManager(root).create("a", ProjectConfig.local())
    (tmp_path / "inbox").mkdir()
    result = run("sync", "a", "inbox", "--quiet")
    assert (result.code, result.out.splitlines()[-1]) == (
        0,
        "There is no version yet: the folders contain no document that can be read.",
    )


def test_without_the_extra_watching_says_what_to_install(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_watchfiles(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "watchfiles":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_watchfiles)
    result = run("sync", "a", folder, "--watch")
    assert (result.code, result.out) == (1, "")
    assert 'pip install "llama-index-contextual[watch]"' in result.err.replace("\n", " ")


# ---- watching --------------------------------------------------------------------------------------------------------


def syncs_of(project: Project, folder: Path, **options: Any) -> _Sync:
    return _Sync(project, [str(folder)], {}, settle=0.0, max_cost=None, retry="", as_json=False, **options)


class Watching:
    """A `_Sync` that watches in a thread, and tells when it has synced; conditions are examined between two syncs."""

    def __init__(self, run: _Sync, *, poll: bool = False, rescan: float = 300.0) -> None:
        self._run = run
        self._condition = threading.Condition()
        self._synced = 0
        real = run._batch

        def batch(seconds: float) -> float:
            with self._condition:
                try:
                    return real(seconds)
                finally:
                    self._synced += 1
                    self._condition.notify_all()

        run._batch = batch  # type: ignore[method-assign]
        self._thread = threading.Thread(
            target=run.watch, kwargs={"poll": poll, "rescan": rescan, "ignored": str(run.project.directory.parent)}
        )
        self._thread.start()

    def wait(self, holds: Callable[[], bool]) -> bool:
        """Wait until a condition holds after some sync."""
        with self._condition:
            return self._condition.wait_for(lambda: self._synced > 0 and holds(), SECONDS)

    def stop(self) -> None:
        self._run.stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


@contextmanager
def watching(project: Project, folder: Path, **options: Any) -> Iterator[Watching]:
    """Watch a folder while the block runs."""
    run = syncs_of(project, folder, removes=options.pop("removes", True))
    run.settle, run.as_json, run.allow_many = 0.05, True, options.pop("allow_many", False)
    watcher = Watching(run, **options)
    try:
        yield watcher
    finally:
        watcher.stop()


def test_watching_200_random_changes_leads_to_the_state_of_a_fresh_ingest(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, folder = 5, tmp_path / "files"
    folder.mkdir()
    project = ProjectManager(root).create("a", ProjectConfig.local())
    fresh = ProjectManager(root).create("fresh", ProjectConfig.local())
    changes = RandomChanges(folder, seed)
    with watching(project, folder, allow_many=True) as watcher:
        assert watcher.wait(lambda: True)
        for batch in range(5):
            for _ in range(40):
                changes.change()
            # One more file tells that the events up to here have arrived.
            write(folder / f"batch{batch}.md", f"# Batch {batch}\n\nIt is complete.")
            name = f"files/batch{batch}.md"
            assert watcher.wait(lambda name=name: name in ids(project)), f"seed {seed}, batch {batch}"
        changes.finish()
        write(folder / "last.md", "# Last\n\nAll changes are made.")
        fresh.ingest([folder])
        assert watcher.wait(lambda: differences(project, fresh) == []), (seed, differences(project, fresh))
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    versions = [report["version"] for report in reports]
    assert sorted(set(versions), key=lambda version: version or "") == list(dict.fromkeys(versions))
    # Those of the watcher, those that removed many documents, and each one before these.
    assert len(project.versions()) <= 3 * project.config.keep_versions + 1


def test_polling_finds_changes_without_events(project: Project, folder: Path) -> None:
    with watching(project, folder, poll=True) as watcher:
        assert watcher.wait(lambda: True)
        change(folder)
        assert watcher.wait(lambda: ids(project) == {"files/uno.md", "files/three.md", "files/four.md"})


def test_a_rescan_finds_changes_whose_events_were_lost(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_sync, "_matters", lambda *arguments: False)
    with watching(project, folder, rescan=0.1) as watcher:
        assert watcher.wait(lambda: True)
        change(folder)
        assert watcher.wait(lambda: ids(project) == {"files/uno.md", "files/three.md", "files/four.md"})


def test_a_folder_that_vanishes_while_watching_keeps_its_documents_until_it_is_back(
    project: Project, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(project, folder) as watcher:
        assert watcher.wait(lambda: True)
        printed: list[str] = []

        def has_error() -> bool:
            printed.append(capsys.readouterr().out)
            return "does not exist" in "".join(printed)

        folder.rename(tmp_path / "unmounted")
        assert watcher.wait(has_error)
        assert len(ids(project)) == 3
        change(tmp_path / "unmounted")
        (tmp_path / "unmounted").rename(folder)
        assert watcher.wait(lambda: ids(project) == {"files/uno.md", "files/three.md", "files/four.md"})
        write(folder / "five.md", "# Five\n\nThe folder is watched again.")
        assert watcher.wait(lambda: "files/five.md" in ids(project))


def test_a_folder_that_is_deleted_and_created_again_is_watched_again(project: Project, folder: Path) -> None:
    with watching(project, folder, allow_many=True) as watcher:
        assert watcher.wait(lambda: True)
        for number in range(3):  # the new folder may have the inode of the deleted one
            shutil.rmtree(folder)
            write(folder / f"first-{number}.md", f"# First {number}\n\nA text.")
            assert watcher.wait(lambda number=number: ids(project) == {f"files/first-{number}.md"})
            write(folder / f"second-{number}.md", f"# Second {number}\n\nA text.")
            assert watcher.wait(lambda number=number: f"files/second-{number}.md" in ids(project))


def test_without_permission_watching_keeps_documents_and_reports_them(
    project: Project, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(project, folder, removes=False) as watcher:
        assert watcher.wait(lambda: True)
        change(folder)
        assert watcher.wait(lambda: "files/four.md" in ids(project))
    assert "files/two.md" in ids(project)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["missing"] == ["files/two.md"]


def test_another_writer_is_waited_for(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_sync, "LOCKED", 0.1)
    with ExitStack() as held:
        held.enter_context(write_lock(project.directory))
        with watching(project, folder) as watcher:
            assert watcher.wait(lambda: True)
            change(folder)
            held.close()
            assert watcher.wait(lambda: ids(project) == {"files/uno.md", "files/three.md", "files/four.md"})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["writing to project" in line.get("error", "") for line in lines].count(True) == 1, "it is said once"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_ctrl_c_ends_watching_with_the_last_version_live(project: Project, folder: Path) -> None:
    process = spawn("sync", "a", folder, "--watch", "--yes", "--json", "--quiet")
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["version"] == "v000001"
        (folder / "two.md").unlink()  # a single change leads to a single version
        assert json.loads(process.stdout.readline())["removed"] == ["files/two.md"]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert "Interrupted: version v000002 is live" in errors.replace("\n", " ")
    assert "Traceback" not in errors
    assert project.verify().sound


def refill(folder: Path) -> None:
    """Replace a folder by one with one of its files and a new one."""
    other = folder.with_name("other")
    write(other / "one.md", (folder / "one.md").read_bytes())
    write(other / "new.md", "# New\n\nA new file.")
    folder.rename(folder.with_name("deleted"))
    other.rename(folder)
    shutil.rmtree(folder.with_name("deleted"))


ALL = {"files/one.md", "files/two.md", "files/three.md", "files/new.md"}


@pytest.mark.parametrize("poll", [False, True])
def test_a_folder_that_is_being_refilled_keeps_its_documents_and_publishes_the_others(
    poll: bool, project: Project, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(project, folder, poll=poll) as watcher:
        assert watcher.wait(lambda: True)
        refill(folder)
        assert watcher.wait(lambda: ids(project) == ALL)
        for name in ("two", "three"):
            write(folder / f"{name}.md", f"# Document {name}\n\nThe text of {name}.")
        (folder / "new.md").unlink()
        assert watcher.wait(lambda: ids(project) == ALL - {"files/new.md"}), "when the files are back, one is removed"
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (waiting,) = [line["waiting"] for line in lines if "waiting" in line]
    assert "2 of 3 documents from" in waiting
    assert "add --allow-many. Until then, no document is removed; all other changes are published." in waiting
    assert {removed for line in lines for removed in line.get("removed", ())} == {"files/new.md"}


def test_while_a_large_removal_waits_not_even_one_document_is_removed(project: Project, folder: Path) -> None:
    (folder / "two.md").unlink()
    (folder / "three.md").unlink()
    syncs = syncs_of(project, folder, removes=True)
    syncs._batch(300.0)
    write(folder / "two.md", "# Back\n\nA slow restore.")
    syncs._batch(300.0)
    assert "files/three.md" in ids(project)


def test_a_person_confirms_a_removal_while_everything_else_is_published(
    project: Project, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for removes in (False, True):
        refill(folder)
        syncs = syncs_of(project, folder, removes=removes, asks=True)
        syncs._batch(300.0)
        syncs._batch(300.0)
        asked = " ".join(capsys.readouterr().err.split())
        assert asked.count("Remove 2 documents whose files are gone? Type y and Enter; otherwise they are kept.") == 1
        assert asked.count("missing files/two.md") == 1
        assert ids(project) == ALL
        syncs.answer("perhaps\n")
        assert not syncs.answered.is_set()
        syncs.answer("Y\n")
        assert syncs.answered.is_set()
        syncs._batch(300.0)
        assert ids(project) == {"files/one.md", "files/new.md"}
        for name in ("two", "three"):
            write(folder / f"{name}.md", f"# Document {name}\n\nThe text of {name}.")
        syncs._batch(300.0)


def test_more_than_a_tenth_needs_a_word_at_the_start(project: Project, folder: Path) -> None:
    refill(folder)
    refused = run("sync", "a", folder, "--yes", "--quiet")
    assert (refused.code, refused.out) == (1, "")
    assert "2 of 3 documents" in refused.err
    assert "add --allow-many" in refused.err
    assert len(ids(project)) == 3
    assert run("sync", "a", folder, "--yes", "--quiet", "--allow-many").code == 0
    assert ids(project) == {"files/one.md", "files/new.md"}


def test_a_skipped_file_is_mentioned_once_until_it_changes(
    project: Project, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "empty.md", " ")
    write(folder / "copy.md", (folder / "one.md").read_bytes())
    syncs = syncs_of(project, folder)
    counts = []
    for name in ("four", "five", "six"):
        write(folder / f"{name}.md", f"# {name}\n\nThe text of {name}.")
        syncs._batch(300.0)
        printed = capsys.readouterr()
        counts.append((printed.err.count("empty.md"), printed.err.count("copy.md")))
        assert f"files/{name}.md" in printed.out
    assert counts == [(1, 1), (0, 0), (0, 0)]
    syncs._batch(300.0)
    assert capsys.readouterr() == ("", ""), "nothing is new"
    write(folder / "empty.md", "   ")
    syncs._batch(300.0)
    assert "empty.md" in capsys.readouterr().err


def test_300_random_changes_are_one_line_each_and_each_skipped_file_one_until_it_changes(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, folder = 7, tmp_path / "files"
    folder.mkdir()
    project = ProjectManager(root).create("a", ProjectConfig.local())
    syncs = syncs_of(project, folder, removes=True, allow_many=True)
    reports: list[IngestReport] = []
    once = syncs.once

    def remembered(**options: Any) -> IngestReport:
        reports.append(once(**options))
        return reports[-1]

    syncs.once = remembered  # type: ignore[method-assign]
    changes = RandomChanges(folder, seed)
    write(folder / "empty.md", " ")
    states: dict[str, object] = {}
    last, skipped, mentioned = None, 0, 0
    for _ in range(30):
        for _ in range(10):
            changes.change()
        syncs._batch(300.0)
        (report,), printed = reports, capsys.readouterr()
        reports.clear()
        kinds = (report.added, report.updated, report.removed)
        changed = sum(map(len, kinds)) + len(report.renamed)
        assert (changed > 0) == (report.version != last), f"seed {seed}: a version that changes nothing"
        lines = sum(min(len(kind), 21) for kind in kinds)
        assert len(printed.out.splitlines()) == lines + bool(changed), (seed, printed.out)
        assert printed.err.count("renamed ") == len(report.renamed), (seed, printed.err)
        new = {file.path: (file.reason, Path(file.path).lstat().st_mtime_ns) for file in report.skipped}
        unseen = [path for path, state in new.items() if states.get(path) != state]
        assert printed.err.count("skipped ") == len(unseen), (seed, printed.err)
        states |= new
        last, skipped, mentioned = report.version, skipped + len(new), mentioned + len(unseen)
    assert mentioned < skipped / 2, "the others would be repetitions"


def test_polling_without_a_change_publishes_no_version_and_prints_nothing(
    project: Project, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "empty.md", " ")
    syncs = syncs_of(project, folder, removes=True)
    syncs._batch(300.0)
    capsys.readouterr()
    for path in folder.iterdir():
        os.utime(path, ns=(0, 0))  # seen as changed by polling
    rounds = itertools.count()
    real = syncs._batch

    def batch(rescan: float) -> float:
        if next(rounds) == 3:
            syncs.stop.set()
        real(rescan)
        return 0.0

    syncs._batch = batch  # type: ignore[method-assign]
    syncs.watch(poll=True, rescan=300.0, ignored=str(project.directory.parent))
    assert [version.name for version in project.versions()] == ["v000001"]
    assert "Version" not in capsys.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_at_a_terminal_watching_starts_at_once_and_a_typed_answer_removes(project: Project, folder: Path) -> None:
    typed, terminal = os.openpty()
    (folder / "two.md").unlink()
    write(folder / "four.md", "# Four\n\nA new one.")
    process = spawn("sync", "a", folder, "--watch", "--json", "--quiet", stdin=terminal)
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert (first["added"], first["missing"], first["removed"]) == (["files/four.md"], ["files/two.md"], [])
        os.write(typed, b"y\n")
        assert json.loads(process.stdout.readline())["removed"] == ["files/two.md"]
    finally:
        process.kill()
        process.communicate()
        os.close(typed)
        os.close(terminal)


def test_the_limit_of_costs_holds_for_all_batches_together(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float | None] = []
    spent = iter([1.0, 1.0, 2.5, 9.0])
    monkeypatch.setattr(Project, "cost", lambda self: type("Cost", (), {"dollars": next(spent) + 0.5, "answers": 0.5}))
    monkeypatch.setattr(Project, "sync", lambda self, folders, **options: limits.append(options["max_cost"]))
    syncs = _Sync(project, [str(folder)], {}, settle=0.0, max_cost=2.0, retry="", as_json=True)
    for _ in range(3):
        syncs.once(remove=True)
    assert limits == [2.0, 0.5, 0.0]


def test_errors_while_watching_name_options(project: Project, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.iterdir():
        path.unlink()
    syncs = syncs_of(project, folder, removes=True)
    syncs._batch(300.0)
    message = " ".join(capsys.readouterr().err.split())
    assert "add --allow-empty. The sync is repeated after the next change." in message
    assert "allow_empty" not in message


def test_changes_that_cannot_change_a_document_are_ignored(tmp_path: Path) -> None:
    folder, projects = tmp_path / "files", tmp_path / "files" / "knowledge"
    write(folder / "film.mp4", "x")
    write(folder / "v1.2" / "a.md", "x")
    matter = {
        "a.md": True,
        "A.PDF": True,
        "v1.2": True,
        "deleted folder": True,
        "film.mp4": False,
        ".hidden.md": False,
        ".git/index.md": False,
        "knowledge/a/CURRENT": False,
        "knowledge/a/page.html": False,
    }
    found = {name: _matters(str(folder / name), [str(folder)], str(projects)) for name in matter}
    assert found == matter


def test_a_change_during_a_sync_leads_to_another_one(tmp_path: Path) -> None:
    folder, stop, wake = tmp_path / "files", threading.Event(), threading.Event()
    write(folder / "a.md", "one")
    seen: list[str] = []

    def sync() -> float:
        seen.append((folder / "a.md").read_text())
        if len(seen) == 1:
            write(folder / "a.md", "two")  # after the folder was read
        elif seen[-1] == "two":
            stop.set()
        return 300.0

    guard = threading.Timer(SECONDS, stop.set)
    guard.start()
    watch_folders([str(folder)], sync, poll=False, rescan=300.0, ignored=str(tmp_path / "none"), stop=stop, wake=wake)
    guard.cancel()
    assert seen[-1] == "two"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_without_a_terminal_watching_starts_without_yes_and_removes_nothing(project: Project, folder: Path) -> None:
    process = spawn("sync", "a", folder, "--watch", "--quiet")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Version v000001 is live")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 130
    assert "Documents whose files are deleted are kept: start with --yes to remove them." in errors
    assert "Ctrl-C ends it." in errors
