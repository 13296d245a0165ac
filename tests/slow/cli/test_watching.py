"""`sync --watch` with the events of a real file system, in a thread and in a process."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llama_index_contextual.cli import documents
from llama_index_contextual.cli.documents import Watch
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.watching import simulate
from tests.integration.cli.synced import CHANGED, change, ids, synced_project, watch_of, write_folder
from tests.support.changes import RandomChanges, differences
from tests.support.cli import SECONDS, started
from tests.support.server import LoopbackProvider, Request
from tests.support.trees import write

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root folder, known to every command by the environment."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    return tmp_path / "knowledge"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three documents."""
    return write_folder(tmp_path / "files")


@pytest.fixture
def project(root: Path, folder: Path) -> Project:
    """Project "a" in step with the folder."""
    return synced_project(root, folder)


class Watching:
    """A `Watch` that runs in a thread, and tells when it has synced; conditions are examined between two syncs."""

    def __init__(self, run: Watch) -> None:
        self._run = run
        self._condition = threading.Condition()
        self._synced = 0
        real = run.sync

        def sync() -> float:
            with self._condition:
                try:
                    return real()
                finally:
                    self._synced += 1
                    self._condition.notify_all()

        run.sync = sync  # type: ignore[method-assign]
        self._thread = threading.Thread(target=run.start)
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
def watching(project: Project, folder: Path, *, allow_many: bool = False) -> Iterator[Watching]:
    """Watch a folder while the block runs, after a first sync."""
    watcher = Watching(watch_of(project, folder, settle=0.05, removes=True, allow_many=allow_many))
    try:
        assert watcher.wait(lambda: True)
        yield watcher
    finally:
        watcher.stop()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
@pytest.mark.parametrize(("changes", "allow_many"), [(200, False), (100, True)])
def test_a_day_of_changes_ends_like_one_ingest_with_a_short_log(tmp_path: Path, changes: int, allow_many: bool) -> None:
    simulation = simulate(tmp_path, changes=changes, seed=1, allow_many=allow_many)
    assert simulation.faults == []
    assert simulation.counts["changes"] >= changes
    assert simulation.counts["kept by hand"] >= simulation.counts["visits"] == 4
    assert simulation.counts["idle"] > 100


def test_watching_100_random_changes_leads_to_the_state_of_a_fresh_ingest(
    root: Path, tmp_path: Path, capsys: Printed
) -> None:
    seed, folder = 5, tmp_path / "files"
    folder.mkdir()
    project = ProjectManager(root).create("a", ProjectConfig.local())
    fresh = ProjectManager(root).create("fresh", ProjectConfig.local())
    changes = RandomChanges(folder, seed)
    with watching(project, folder, allow_many=True) as watcher:
        for batch in range(4):
            for _ in range(25):
                changes.change()
            # One more file tells that the events up to here have arrived.
            write(folder / f"batch{batch}.md", f"# Batch {batch}\n\nIt is complete.")
            name = f"files/batch{batch}.md"
            assert watcher.wait(lambda name=name: name in ids(project)), f"seed {seed}, batch {batch}"
        changes.finish()
        write(folder / "last.md", "# Last\n\nAll changes are made.")
        fresh.ingest([folder])
        assert watcher.wait(lambda: differences(project, fresh) == []), (seed, differences(project, fresh))
    lines = capsys.readouterr().out.splitlines()
    versions = [line.split()[1] for line in lines if line.startswith("Version ")]
    assert sorted(set(versions)) == list(dict.fromkeys(versions))
    # Those of the watcher, those that removed many documents, and each one before these.
    assert len(project.versions()) <= 3 * project.config.keep_versions + 1


@pytest.mark.parametrize("way", ["polling", "rescan"])
def test_changes_are_found_without_events(
    project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "rescan":
        monkeypatch.setattr(documents, "RESCAN", 0.1)
        monkeypatch.setattr(documents, "_changes", lambda _folders, stop: iter(lambda: stop.wait(0.1) or set(), True))
    else:
        monkeypatch.setenv("WATCHFILES_FORCE_POLLING", "true")
    with watching(project, folder) as watcher:
        change(folder)
        assert watcher.wait(lambda: ids(project) == CHANGED)


def test_a_folder_that_vanishes_while_watching_keeps_its_documents_until_it_is_back(
    project: Project, folder: Path, tmp_path: Path, capsys: Printed
) -> None:
    with watching(project, folder) as watcher:
        printed: list[str] = []

        def has_error() -> bool:
            printed.append(capsys.readouterr().err)
            return "does not exist" in " ".join("".join(printed).split())

        folder.rename(tmp_path / "unmounted")
        assert watcher.wait(has_error)
        assert len(ids(project)) == 3
        change(tmp_path / "unmounted")
        (tmp_path / "unmounted").rename(folder)
        assert watcher.wait(lambda: ids(project) == CHANGED)
        write(folder / "five.md", "# Five\n\nThe folder is watched again.")
        assert watcher.wait(lambda: "files/five.md" in ids(project))


def test_a_folder_that_is_deleted_and_created_again_is_watched_again(project: Project, folder: Path) -> None:
    with watching(project, folder, allow_many=True) as watcher:
        for number in range(2):  # the new folder may have the inode of the deleted one
            shutil.rmtree(folder)
            write(folder / f"first-{number}.md", f"# First {number}\n\nA text.")
            assert watcher.wait(lambda number=number: ids(project) == {f"files/first-{number}.md"})
            write(folder / f"second-{number}.md", f"# Second {number}\n\nA text.")
            assert watcher.wait(lambda number=number: f"files/second-{number}.md" in ids(project))


def test_a_change_during_a_sync_leads_to_another_one(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "changing"
    write(folder / "a.md", "one")
    seen: list[str] = []

    def sync() -> float:
        seen.append((folder / "a.md").read_text())
        if len(seen) == 1:
            write(folder / "a.md", "two")  # after the folder was read
        elif seen[-1] == "two":
            run.stop.set()
        return 300.0

    run = watch_of(project, folder)
    run.sync = sync  # type: ignore[method-assign]
    guard = threading.Timer(SECONDS, run.stop.set)
    guard.start()
    run.start()
    guard.cancel()
    assert seen[-1] == "two"


# ---- in a process ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_ctrl_c_during_a_sync_keeps_the_contexts_that_were_paid_for(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, released = 0, threading.Event()

    def reply(_request: Request) -> str:
        nonlocal answered
        answered += 1
        if answered > 2:
            released.wait(SECONDS)
        return "A context that was paid for, and that says at some length where in its document the passage is."

    with LoopbackProvider(reply=reply) as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        project = ProjectManager(root).create("a", ProjectConfig(embed_model="local", llm_concurrency=1))
        with started("sync", "a", folder, "--watch", "--max-cost", "1") as process:
            try:
                provider.wait_until(lambda: len(provider.chat_calls) == 3, SECONDS)
                process.send_signal(signal.SIGINT)
                out, errors = process.communicate(timeout=SECONDS)
            finally:
                released.set()
        assert (process.returncode, out) == (130, "")
        assert "Interrupted: there is no version yet; the ledger keeps 2 contexts" in errors
        assert "Traceback" not in errors
        project.sync_folders([folder])
        assert (len(ids(project)), len(provider.chat_calls)) == (3, 4), "only the third context is requested again"
