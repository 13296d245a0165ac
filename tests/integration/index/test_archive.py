"""Whole projects as one file: equal copies, updates, damage, interruptions and concurrent publishes."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    InputError,
    NoVersionError,
    ProjectLockedError,
)
from llama_index_contextual.index import archive, files
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import remote
from tests.support.changes import differences, state_of


@pytest.fixture
def elsewhere(tmp_path: Path) -> ProjectManager:
    """The projects of another machine."""
    return ProjectManager(tmp_path / "elsewhere")


@pytest.fixture
def project(manager: ProjectManager) -> Project:
    """A project with three documents."""
    created = manager.create("docs", ProjectConfig.local(top_k=7))
    created.ingest(documents(3))
    return created


@pytest.fixture
def url() -> Iterator[str]:
    """URL of a file in memory, in which other tests write nothing."""
    path = f"/{uuid4().hex}/docs.zip"
    yield f"memory:/{path}"
    store = fsspec.filesystem("memory")
    if store.exists(path):
        store.rm(path)


def documents(count: int, word: str = "pumps") -> list[Document]:
    """Return documents with ids from d0."""
    return [Document(id_=f"d{number}", text=f"Document {number} is about {word}.") for number in range(count)]


def test_a_copy_is_equal_and_can_be_continued(project: Project, elsewhere: ProjectManager, tmp_path: Path) -> None:
    manager, path = ProjectManager(project.directory.parent), tmp_path / "docs.zip"
    exported = manager.export_project("docs", path)
    assert (exported.version, exported.documents, exported.bytes) == ("v000001", 3, path.stat().st_size)
    assert elsewhere.import_project(path).is_new
    copy = elsewhere.load("docs")
    assert copy.config == project.config
    assert differences(copy, project) == []
    assert copy.verify().sound
    assert copy.ingest(documents(4)).added == ("d3",)
    first = path.read_bytes()
    manager.export_project("docs", path)
    assert path.read_bytes() == first, "equal projects give equal files"


def test_later_exports_update_a_copy_and_add_only_new_parts(
    project: Project, elsewhere: ProjectManager, url: str
) -> None:
    manager = ProjectManager(project.directory.parent)
    manager.export_project("docs", url)
    elsewhere.import_project(url, "copy")
    opened = elsewhere.load("copy")
    assert len(opened.documents()) == 3
    kept = {path: path.stat().st_ino for path in files.walk(opened.directory / "parts")}
    project.ingest(documents(5))
    manager.export_project("docs", url)
    assert elsewhere.import_project(url, "copy").version == "v000002"
    assert differences(opened, project) == [], "an open project changes to the new version"
    assert {path: path.stat().st_ino for path in kept if path.exists()}.items() <= kept.items()


def test_an_unchanged_file_is_not_downloaded_again(
    project: Project, elsewhere: ProjectManager, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ProjectManager(project.directory.parent).export_project("docs", url)
    elsewhere.import_project(url, "copy")
    monkeypatch.setattr(remote.RemoteFiles, "download", None)
    assert not elsewhere.import_project(url, "copy").is_new


def test_a_copy_that_was_changed_here_is_not_overwritten(
    project: Project, elsewhere: ProjectManager, tmp_path: Path
) -> None:
    manager, path = ProjectManager(project.directory.parent), tmp_path / "docs.zip"
    manager.export_project("docs", path)
    elsewhere.import_project(path)
    copy = elsewhere.load("docs")
    copy.ingest(documents(4, "valves"))
    project.ingest(documents(5))
    manager.export_project("docs", path)
    before = state_of(copy)
    with pytest.raises(InputError, match="has a version v000002 with other documents"):
        elsewhere.import_project(path)
    assert state_of(copy) == before
    assert elsewhere.import_project(path, "other").documents == 5


@pytest.mark.parametrize("at", [0.02, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("change", ["cut", "flip", "mix"])
def test_a_damaged_file_changes_nothing(
    project: Project, elsewhere: ProjectManager, tmp_path: Path, change: str, at: float
) -> None:
    manager, path, newer = ProjectManager(project.directory.parent), tmp_path / "docs.zip", tmp_path / "newer.zip"
    manager.export_project("docs", path)
    elsewhere.import_project(path)
    project.ingest(documents(3, "valves"))
    manager.export_project("docs", newer)
    first, second = path.read_bytes(), bytearray(newer.read_bytes())
    place = int(len(second) * at)
    if change == "cut":
        del second[place:]
    elif change == "mix":
        second[place:] = first[place:]
    else:
        second[place] ^= 0xFF
    newer.write_bytes(second)
    before = state_of(elsewhere.load("docs"))
    try:
        elsewhere.import_project(newer)
        allowed = [before, state_of(project)]  # a flipped bit may be without effect, and a mixture the former file
    except CorruptVersionError:
        allowed = [before]
    assert state_of(elsewhere.load("docs")) in allowed
    assert elsewhere.load("docs").verify().sound


def test_files_outside_the_version_are_refused(project: Project, elsewhere: ProjectManager, tmp_path: Path) -> None:
    path = tmp_path / "docs.zip"
    ProjectManager(project.directory.parent).export_project("docs", path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("../../evil.txt", "x")
    elsewhere.import_project(path)
    assert sorted(found.name for found in tmp_path.rglob("evil*")) == []


class Killed(BaseException):
    """The process was killed."""


class Interrupted(files.System):
    """Operations of which the one with a given number, and all later ones, fail as in a killed process."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in vars(files.System) and callable(value):
            self.left -= 1
            if self.left < 0:
                raise Killed
        return value


def test_an_import_that_is_killed_leaves_the_former_or_the_new_version(
    project: Project, elsewhere: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, path, newer = ProjectManager(project.directory.parent), tmp_path / "docs.zip", tmp_path / "newer.zip"
    manager.export_project("docs", path)
    former = state_of(project)
    project.ingest(documents(6, "valves"))
    manager.export_project("docs", newer)
    latest = state_of(project)
    outcomes, last, is_done = set(), 0, False
    while not is_done:
        name = f"copy{last}"
        elsewhere.import_project(path, name)
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Interrupted(last))
            try:
                elsewhere.import_project(newer, name)
                is_done = True
            except Killed:
                pass
        copy = elsewhere.load(name)
        found = state_of(copy)
        assert found in (former, latest), f"after {last} operations"
        outcomes.add(found == latest)
        elsewhere.import_project(newer, name)
        assert state_of(elsewhere.load(name)) == latest
        assert copy.verify().sound
        last += 3
    assert outcomes == {False, True}


def test_a_first_import_that_is_killed_can_be_repeated(
    project: Project, elsewhere: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "docs.zip"
    ProjectManager(project.directory.parent).export_project("docs", path)
    for last in range(0, 40, 3):
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Interrupted(last))
            with pytest.raises(Killed):
                elsewhere.import_project(path, f"copy{last}")
        elsewhere.import_project(path, f"copy{last}")
        assert state_of(elsewhere.load(f"copy{last}")) == state_of(project)


def test_an_export_during_publishes_contains_one_version(
    project: Project, elsewhere: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is copied after so many publishes that the version at the beginning no longer exists."""
    project.update_config(keep_versions=2)
    copied, published = archive._copy, 0

    def copy_after_publishes(*arguments: Any) -> Any:
        nonlocal published
        if published < 12:
            for _ in range(3):
                published += 1
                with contextlib.suppress(ProjectLockedError):  # in the end, the export locks writers out
                    project.ingest(documents(3, f"edition {published}"))
        return copied(*arguments)

    monkeypatch.setattr(archive, "_copy", copy_after_publishes)
    path = tmp_path / "docs.zip"
    exported = ProjectManager(project.directory.parent).export_project("docs", path, ledger=False)
    monkeypatch.setattr(archive, "_copy", copied)
    elsewhere.import_project(path)
    assert elsewhere.load("docs").verify().sound
    texts = {text for text, _ in state_of(elsewhere.load("docs")).values()}
    words = {text.partition("about ")[2] for text in texts}
    assert len(words) == 1, f"{exported.version} has documents of one version: {texts}"


def fail(*arguments: Any, **options: Any) -> Any:
    """Fail as a store whose network is down."""
    raise TimeoutError("no answer")


def test_what_cannot_be_exported_or_imported_is_explained(
    manager: ProjectManager, project: Project, elsewhere: ProjectManager, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "RETRYING", remote.RETRYING.copy(wait=lambda state: 0))
    manager.create("empty", ProjectConfig.local())
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (NoVersionError, "has no version yet", lambda: manager.export_project("empty", url)),
        (InputError, "cannot be written to", lambda: manager.export_project("docs", "https://example.org/a.zip")),
        (InputError, "does not exist", lambda: elsewhere.import_project(url)),
        (InputError, "does not exist", lambda: elsewhere.import_project("nowhere.zip")),
        (InputError, "is at the internal address", lambda: elsewhere.import_project("http://127.0.0.1:9/a.zip")),
        (ConfigurationError, "Protocol not known", lambda: elsewhere.import_project("nosuch://a.zip")),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()
    manager.export_project("docs", url)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "_open", fail)
    with pytest.raises(InputError, match=r"cannot be reached \(TimeoutError: no answer\)\. Nothing was changed"):
        elsewhere.import_project(url)
    assert elsewhere.list() == []
