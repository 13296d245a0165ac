"""Pipes, devices, folders and huge files in place of a project's files are reported; nothing waits for them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.cli.doctor import check_projects
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ContextualError, NoSpaceError, ProjectError
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import run

if not hasattr(os, "mkfifo"):
    pytest.skip("this system has no named pipes", allow_module_level=True)

GUARD = 120  # seconds after which a call that hangs fails
QUESTION = "Which pump runs dry?"


@pytest.fixture(autouse=True)
def _never_hangs() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("a call waits for a file")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(GUARD)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with a project of two parts; tests change copies of it."""
    root = tmp_path_factory.mktemp("template")
    project = ProjectManager(root).create("p", ProjectConfig.local(chunk_size=60, chunk_overlap=5, keep_versions=2))
    project.ingest([Document(id_=f"{at}", text=f"Pump {at} runs dry near the wall. " * 6) for at in range(20)])
    project.ingest([Document(id_="note", text="A note about dogs.")])
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    """A copy of the root folder."""
    return Path(shutil.copytree(template, tmp_path / "root"))


def _socket(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    try:  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 43)  # more than any disk has room for


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "a").write_text("a")


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": _socket,
    "folder": _folder,
    "huge file": _sparse,
    "loop": lambda path: path.symlink_to(path.name),
}
PLACES = (
    *("project.json", "CURRENT", "ledger.sqlite", "versions/v000001/manifest.json", "versions/v000002/manifest.json"),
    *(f"parts/p000001/{name}" for name in ("documents.json", "docstore.sqlite", "default__vector_store.faiss")),
    "parts/p000001/units.bin",
    *(f"parts/p000001/bm25/{name}" for name in ("terms.bin", "counts.bin")),
    *(f"parts/p000001/bm25/documents/{name}" for name in ("terms.bin", "counts.bin")),
)


# The settings, the version and the ledger are opened in ways of their own, the other files in the same way.
CASES = [
    *((place, kind) for place in PLACES[:4] for kind in KINDS),
    *((place, kind) for place in PLACES[4:] for kind in ("pipe", "folder", "huge file")),
]


def put(root: Path, place: str, kind: str) -> None:
    """Replace a file of the project."""
    path = root / "p" / place
    path.unlink()
    KINDS[kind](path)


def test_the_places_are_all_files_of_a_project(template: Path) -> None:
    files = {path.relative_to(template / "p").as_posix() for path in template.rglob("*") if path.is_file()}
    first = {name for name in files if not name.startswith("parts/p000002/")}
    assert first == {*PLACES, ".lock"}


@pytest.mark.parametrize(("place", "kind"), CASES)
def test_what_is_not_a_file_is_listed_and_no_call_waits_for_it(root: Path, place: str, kind: str) -> None:
    put(root, place, kind)
    report = ProjectManager(root).verify("p")
    problem = next(problem for problem in report.problems if problem.file == place)
    assert problem.message
    assert not report.sound or "v000001" in place
    checks = list(check_projects(root, [], online=False))
    assert any(place in check.message for check in checks if check.place == "p")
    for call in (
        lambda: [hit.source.doc_id for hit in ProjectManager(root).load("p").retrieve(QUESTION, top_k=3)],
        lambda: ProjectManager(root).load("p").info(),
        lambda: ProjectManager(root).load("p").versions(),
        lambda: ProjectManager(root).load("p").cost(),
        lambda: ProjectManager(root).load("p").documents(),
        lambda: ProjectManager(root).load("p").estimate([Document(id_="new", text="A new note.")]),
        lambda: ProjectManager(root).load("p").ingest([Document(id_="new", text="A new note.")]),
    ):
        with suppress(ContextualError):
            call()


@pytest.mark.parametrize(("place", "kind"), [case for case in CASES if case[0] != "project.json"])
def test_a_repair_replaces_what_is_not_a_file(root: Path, place: str, kind: str) -> None:
    put(root, place, kind)
    manager = ProjectManager(root)
    if (place, kind) == ("ledger.sqlite", "huge file"):
        with pytest.raises(NoSpaceError, match=r"ledger\.sqlite\.damaged"):
            manager.verify("p", repair=True)
        return
    if (place, kind) == ("CURRENT", "folder"):
        (problem,) = manager.verify("p").problems
        assert "is a folder: remove it" in run(*problem.remedy.split()[1:]).err
        return
    for _ in range(3):
        report = manager.verify("p", repair=True)
        if report.sound:
            break
        (problem, *_) = [problem for problem in report.problems if not problem.harmless]
        assert run(*problem.remedy.replace(" PATHS", "").split()[1:]).code == 0
    assert report.sound
    documents = {hit.source.doc_id for hit in manager.load("p").retrieve("a note about dogs", top_k=3)}
    assert "note" in documents or place.startswith("versions/v000002")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_lock_file_that_is_not_a_file_is_an_error_and_does_not_stop_a_search(root: Path, kind: str) -> None:
    put(root, ".lock", kind)
    project = ProjectManager(root).load("p")
    assert project.retrieve(QUESTION, top_k=3).results
    with suppress(ProjectError):
        project.ingest([Document(id_="new", text="A new note.")])


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_of_skipped_files_that_is_not_a_file_is_ignored(root: Path, kind: str, tmp_path: Path) -> None:
    KINDS[kind](root / "p" / "skipped.json")
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "a.md").write_text("# A\n\nA new note.")
    project = ProjectManager(root).load("p")
    assert project.ingest([tmp_path / "inputs"]).added


@pytest.mark.parametrize("kind", ["pipe", "device", "huge file"])
def test_a_dotenv_file_that_is_not_a_file_is_ignored(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS[kind](tmp_path / ".env")
    monkeypatch.chdir(tmp_path)
    assert run("list", "--root", tmp_path / "root").code == 0


def test_a_deleted_ledger_is_listed(root: Path) -> None:
    (root / "p" / "ledger.sqlite").unlink()
    report = ProjectManager(root).verify("p")
    (problem,) = report.problems
    assert (problem.file, problem.message.partition(":")[0], report.sound) == ("ledger.sqlite", "is missing", False)
    assert ProjectManager(root).verify("p", repair=True).sound


def test_a_project_whose_settings_were_deleted_is_verified(root: Path) -> None:
    (root / "p" / "project.json").unlink()
    (problem,) = ProjectManager(root).verify("p").problems
    assert (problem.file, problem.message.partition(":")[0]) == ("project.json", "is missing")
    result = run("verify", "p", "--root", root)
    assert (result.code, result.out.partition(" ")[0]) == (1, "project.json")
