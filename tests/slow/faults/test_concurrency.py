"""One writer across processes and any number of readers: nobody waits, versions are not mixed, files are closed."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llama_index_contextual.errors import NoVersionError, ProjectLockedError, ProjectNotFoundError
from llama_index_contextual.index.project_file import write_lock
from tests.slow.faults.cases import NAME, create, documents, ingest, ingest_one, load, manager, open_below
from tests.slow.faults.load import BUSY, STOP, Tally, read_until_stopped, stopped_at_the_end, wait_for_readers

WRITER = """
import os, sys
from pathlib import Path
from tests.slow.faults.cases import ingest
from tests.slow.faults.system import RecordingSystem, installed

class Stuck(RecordingSystem):
    def _before(self, operation, path):
        super()._before(operation, path)
        if path.name == "manifest.json":
            print("writing", flush=True)
            sys.stdin.read()

with installed(Stuck()):
    ingest(2)(Path(sys.argv[1]))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A project with one version."""
    create(tmp_path)
    ingest(1)(tmp_path)
    return tmp_path


def write_versions(disk: Path, count: int) -> None:
    """Publish versions, and roll back now and then."""
    project = load(disk)
    for mark in range(2, count + 2):
        project.ingest(documents(mark))
        if mark % 3 == 0:
            project.rollback()


def test_a_second_process_is_refused_and_takes_over_when_the_first_was_killed(disk: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(disk)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        with pytest.raises(ProjectLockedError):
            ingest(3)(disk)
        with pytest.raises(ProjectLockedError):
            manager(disk).delete(NAME)
        assert all("mark1" in chunk.text for chunk in load(disk).retrieve("alpha"))
        child.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    ingest(3)(disk)
    assert all("mark3" in chunk.text for chunk in load(disk).retrieve("alpha"))


def test_readers_in_processes_and_threads_see_one_version_without_errors(disk: Path) -> None:
    command = [sys.executable, "-m", "tests.slow.faults.load", str(disk), "2"]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    own, project = Tally(), load(disk)
    thread = threading.Thread(target=read_until_stopped, args=(disk, project, own))
    with stopped_at_the_end(disk):
        wait_for_readers(readers)
        thread.start()
        (disk / BUSY).touch()
        write_versions(disk, 6)
    thread.join()
    for reader in readers:
        data = json.loads(reader.communicate()[0])
        assert (data["errors"], data["mixed"]) == ({}, 0)
        assert data["answers"] > 0
    assert (own.errors, own.mixed) == ({}, 0)
    assert own.answers > 0
    (disk / STOP).unlink()
    (disk / BUSY).unlink()


def test_files_of_superseded_versions_are_closed(disk: Path) -> None:
    reader, counts = load(disk), []
    for mark in range(2, 9):
        ingest(mark)(disk)
        reader.retrieve("alpha")
        counts.append(len(open_below(disk)))
    gc.collect()
    assert len(open_below(disk)) == counts[0]
    assert max(counts) <= counts[0] + 2


def test_readers_see_whole_versions_while_parts_are_added_and_merged(tmp_path: Path) -> None:
    create(tmp_path)
    ingest_one(0)(tmp_path)
    reader, versions, wrong = load(tmp_path), set[str | None](), list[str]()
    answered = threading.Event()

    def read() -> None:
        while not (tmp_path / STOP).exists():
            answered.set()
            response = reader.retrieve("alpha report of a part")
            versions.add(response.version)
            # Version n contains the documents 0 to n - 1.
            newest = int(str(response.version)[1:])
            numbers = [int(str(chunk.source.doc_id).removeprefix("one")) for chunk in response]
            if len(set(numbers)) != min(20, newest) or max(numbers) >= newest:
                wrong.append(f"{response.version}: {numbers}")

    thread = threading.Thread(target=read)
    with stopped_at_the_end(tmp_path):
        thread.start()
        for number in range(1, 25):
            ingest_one(number)(tmp_path)
            while len(versions) < number // 8:  # the reader must not miss all of them
                answered.clear()
                assert answered.wait(300)
    thread.join()
    assert wrong == []
    assert len(versions) > 2
    assert reader.verify().sound


def test_a_query_uses_the_next_version_if_its_version_is_removed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = load(disk)
    retriever = reader.as_retriever()
    real, calls = retriever._models, []

    def slow(current: object) -> object:
        calls.append(current)
        if len(calls) == 1:
            for mark in (2, 3, 4):
                ingest(mark)(disk)
        return real(current)  # type: ignore[arg-type]

    monkeypatch.setattr(retriever, "_models", slow)
    assert [hit.node.get_content().split()[0] for hit in retriever.retrieve("alpha")] == ["mark4"] * 3
    assert len(calls) == 2


def test_readers_of_a_deleted_project_get_an_error_with_a_message(disk: Path) -> None:
    own, project = Tally(), load(disk)
    thread = threading.Thread(target=read_until_stopped, args=(disk, project, own))
    with stopped_at_the_end(disk):
        thread.start()
        manager(disk).delete(NAME)
    thread.join()
    assert own.mixed == 0
    gone = tuple(f"{error.__name__}: " for error in (NoVersionError, ProjectNotFoundError))
    assert all(error.startswith(gone) for error in own.errors)
    with pytest.raises(ProjectNotFoundError), write_lock(project.directory):
        pass
    (disk / STOP).unlink()
