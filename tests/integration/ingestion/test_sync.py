"""Sync of folders: the documents are those of a fresh ingest, and none is lost because its file cannot be seen."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.errors import InputError, LargeRemovalError, PathNotFoundError, ProjectLockedError
from llama_index_contextual.index.project_file import write_lock
from llama_index_contextual.ingestion import plan as syncing
from llama_index_contextual.ingestion import run
from llama_index_contextual.ingestion.plan import CHANGED_MEANWHILE, POSTPONED, UNSETTLED
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import DocumentReader
from tests.integration.ingestion.support import ids
from tests.support.trees import write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three documents, one of them in a folder within."""
    root = tmp_path / "files"
    for name in ("one", "two", "within/three"):
        write(root / f"{name}.md", f"# Document {name}\n\nThe text of {name}.")
    return root


def listed(report: IngestReport) -> dict[str, Any]:
    """Return what a report lists, without empty entries."""
    names = ("added", "updated", "renamed", "removed", "missing")
    lists = {name: getattr(report, name) for name in names}
    return {name: dict(v) if name == "renamed" else sorted(v) for name, v in lists.items() if v}


def synced(project: Project, folder: Path, **options: Any) -> dict[str, Any]:
    """Sync and return what the report lists."""
    return listed(project.sync_folders([folder], **options))


# ---- the same state as one ingest ------------------------------------------------------------------------------------


async def test_all_changes_are_published_in_one_version(counted: Project, folder: Path) -> None:
    assert synced(counted, folder) == {"added": ["files/one.md", "files/two.md", "files/within/three.md"]}
    (folder / "one.md").rename(folder / "uno.md")
    (folder / "two.md").unlink()
    write(folder / "within" / "three.md", "# Changed\n\nAnother text.")
    write(folder / "four.md", "# Four\n\nA new one.")
    assert (await counted.async_folders(folder, dry_run=True)).removed == ("files/two.md",)
    assert listed(await counted.async_folders([folder])) == {
        "added": ["files/four.md"],
        "updated": ["files/within/three.md"],
        "renamed": {"files/one.md": "files/uno.md"},
        "removed": ["files/two.md"],
    }
    assert [version.name for version in counted.versions()] == ["v000001", "v000002"]
    assert {*ids(counted)} == {"files/uno.md", "files/within/three.md", "files/four.md"}


# ---- documents from elsewhere ----------------------------------------------------------------------------------------


def test_documents_from_elsewhere_are_never_removed(counted: Project, folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "elsewhere" / "files" / "one.md", "# Elsewhere\n\nAnother text.").parent
    counted.sync_folders([folder])
    strange = "files/\\Uffffffff.md"  # in the name of a file, this backslash would be escaped
    counted.ingest([other, Document(id_=strange, text="By hand."), Document(id_="note", text="Another.")])
    shutil.rmtree(other)
    (folder / "one.md").unlink()
    assert synced(counted, folder) == {"removed": ["files/one.md"]}
    assert {*ids(counted)} == {
        *("files/two.md", "files/within/three.md", "elsewhere/files/one.md", strange, "note"),
    }


def test_documents_ingested_alone_or_from_a_folder_within_belong_to_the_folder(
    counted: Project, folder: Path, tmp_path: Path
) -> None:
    write(folder / "deep" / "er" / "four.md", "# Four\n\nA text.")
    counted.ingest([folder / "deep" / "er", folder / "within" / "three.md"])
    assert {*ids(counted)} == {"er/four.md", "three.md"}
    counted.sync_folders([folder])
    assert {"er/four.md", "three.md"} < {*ids(counted)}, "documents keep their ids"
    (folder / "deep" / "er" / "four.md").unlink()
    (folder / "within" / "three.md").unlink()
    assert synced(counted, tmp_path / "files", allow_many=True) == {"removed": ["er/four.md", "three.md"]}


def test_two_folders_in_turn_do_not_remove_the_documents_of_each_other(counted: Project, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "files" / "same.md", f"# Of {name}\n\nThe text of {name}.")
        write(tmp_path / name / "files" / f"{name}.md", f"# Only {name}\n\nThe other text of {name}.")
        counted.sync_folders([tmp_path / name / "files"])
    (tmp_path / "a" / "files" / "same.md").unlink()
    assert synced(counted, tmp_path / "b" / "files") == {}
    assert synced(counted, tmp_path / "a" / "files") == {"removed": ["files/same.md"]}
    assert {*ids(counted)} == {"files/a.md", "b/files/same.md", "files/b.md"}


# ---- files that cannot be seen ---------------------------------------------------------------------------------------


def test_a_missing_folder_is_an_error_that_changes_nothing(counted: Project, folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "others" / "x.md", "# X\n\nA text.")
    counted.sync_folders([folder, tmp_path / "others"])
    folder.rename(tmp_path / "unmounted")
    for folders in ([folder], [tmp_path / "others", folder]):
        for dry_run in (True, False):
            with pytest.raises(PathNotFoundError, match=r"files does not exist: .* mount it; no document was changed"):
                counted.sync_folders(folders, dry_run=dry_run)
    assert len(ids(counted)) == 4


@pytest.mark.parametrize("left", [(), (".hidden.md", "lost+found.zip", "readme")])
def test_an_empty_folder_does_not_remove_its_documents_unless_a_person_says_so(
    left: tuple[str, ...], counted: Project, folder: Path, tmp_path: Path
) -> None:
    write(tmp_path / "others" / "x.md", "# X\n\nA text.")
    counted.sync_folders([folder, tmp_path / "others"])
    shutil.rmtree(folder)
    folder.mkdir()
    for name in left:
        write(folder / name, "not a document")
    for dry_run in (True, False):
        with pytest.raises(InputError, match=r"contains no file .* 3 documents came from it.*allow_empty=True"):
            counted.sync_folders([folder, tmp_path / "others"], dry_run=dry_run)
    assert len(ids(counted)) == 4
    assert len(synced(counted, folder, remove=False)["missing"]) == 3
    assert len(synced(counted, folder, allow_empty=True)["removed"]) == 3
    assert ids(counted) == ["others/x.md"]
    assert synced(counted, folder) == {}, "no documents came from it"
    (tmp_path / "others" / "x.md").unlink()
    counted.sync_folders([tmp_path / "others"], allow_empty=True)
    assert (ids(counted), counted.retrieve("text").results) == ([], ()), "the last one can be removed, too"


def test_an_empty_folder_without_documents_is_no_error(counted: Project, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    write(tmp_path / "files" / "empty.md", " ")
    report = counted.sync_folders([tmp_path / "files"])
    assert (report.version, report.chunks, len(report.skipped)) == (None, 0, 1)
    assert counted.versions() == []


def test_a_folder_that_is_replaced_during_the_search_removes_nothing(
    counted: Project, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders([folder])
    real = syncing.changing_files

    def unmount(files: Any, seconds: float) -> Any:
        folder.rename(tmp_path / "unmounted")
        write(folder / "one.md", "# Of the drive below")
        return real(files, seconds)

    monkeypatch.setattr("llama_index_contextual.ingestion.plan.changing_files", unmount)
    with pytest.raises(InputError, match="was replaced while it was searched"):
        counted.sync_folders([folder])
    assert len(ids(counted)) == 3


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(116, "Stale file handle")])
def test_a_folder_within_that_cannot_be_read_keeps_its_documents(
    error: OSError, counted: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders([folder])
    (folder / "one.md").unlink()
    blocked = str(folder / "within")
    listdir, lstat = os.listdir, os.lstat

    def list_unless_blocked(path: Any) -> list[str]:
        if str(path) == blocked:
            raise error
        return listdir(path)

    def look_unless_blocked(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(blocked + os.sep):
            raise error
        return lstat(path, **options)

    monkeypatch.setattr(os, "listdir", list_unless_blocked)
    monkeypatch.setattr(os, "lstat", look_unless_blocked)
    report = counted.sync_folders([folder])
    assert list(report.removed) == ["files/one.md"]
    assert "the folder cannot be opened" in next(file.reason for file in report.skipped)
    assert {*ids(counted)} == {"files/two.md", "files/within/three.md"}


# ---- many documents at once ------------------------------------------------------------------------------------------


def fill(folder: Path, number: int) -> list[Path]:
    return [write(folder / f"{at:02}.md", f"# Number {at}\n\nThe text of {folder.name} {at}.") for at in range(number)]


def test_more_than_a_tenth_is_removed_only_if_a_person_says_so(counted: Project, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    paths = fill(folder, 20)
    counted.sync_folders([folder])
    for path in paths[1:]:
        path.unlink()
    message = (
        r"19 of 20 documents from .*files would be removed at once.*'files/01.md', .* and 16 more.*`allow_many=True`"
    )
    with pytest.raises(LargeRemovalError, match=message) as refused:
        counted.sync_folders([folder])
    assert len(ids(counted)) == 20
    plan = counted.sync_folders([folder], dry_run=True)
    assert list(refused.value.documents) == sorted(plan.removed)
    assert len(synced(counted, folder, remove=plan.removed[:5])["removed"]) == 5, "ids that were named may be removed"
    assert len(synced(counted, folder, allow_many=True)["removed"]) == 14
    assert {*ids(counted)} == {"files/00.md"}


@pytest.mark.parametrize(("number", "may_go"), [(3, 1), (19, 1), (20, 2), (29, 2), (30, 3)])
def test_a_tenth_is_removed_at_once_and_in_small_folders_one(
    number: int, may_go: int, counted: Project, tmp_path: Path
) -> None:
    paths = fill(tmp_path / "files", number)
    counted.sync_folders([tmp_path / "files"])
    for path in paths[: may_go + 1]:
        path.unlink()
    fill(tmp_path / "large", 40)
    with pytest.raises(LargeRemovalError, match=rf"{may_go + 1} of {number} documents from .*files would"):
        counted.sync_folders([tmp_path / "files", tmp_path / "large"])
    write(paths[0], "# Back\n\nIt is back.")
    (tmp_path / "files" / "archive").mkdir()
    for path in paths[may_go + 1 :]:
        path.rename(tmp_path / "files" / "archive" / path.name)
    changes = synced(counted, tmp_path / "files")
    assert (len(changes["removed"]), len(changes["renamed"])) == (may_go, number - may_go - 1), "renamed ones stay"


def test_the_version_before_a_large_removal_and_those_by_hand_outlive_the_versions_of_a_watcher(
    counted: Project, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    paths = fill(folder, 4)
    for number in range(3):  # v000001 to v000003
        write(folder / "00.md", f"# By hand\n\nEdition {number}.")
        counted.sync_folders([folder])
    write(folder / "00.md", "# Of the watcher\n\nThe edition before the removal.")
    before = counted.sync_folders([folder], watching=True).version
    for path in paths[1:]:
        path.unlink()
    after = counted.sync_folders([folder], watching=True, allow_many=True).version
    for number in range(8):
        write(folder / "00.md", f"# Of the watcher\n\nEdition {number}.")
        counted.sync_folders([folder], watching=True)
    names = [version.name for version in counted.versions()]
    assert (before, after) == ("v000004", "v000005")
    assert names == ["v000001", "v000002", "v000003", before, after, "v000011", "v000012", "v000013"]
    assert counted.rollback(before) == before
    assert len(ids(counted)) == 4


# ---- files that are being written ------------------------------------------------------------------------------------


def test_a_file_that_changes_while_it_is_read_is_left_for_the_next_sync(
    counted: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders([folder])
    real = DocumentReader._parse

    def append_first(self: DocumentReader, ref: Any) -> Any:
        with ref.path.open("a") as file:
            file.write(" More.")
        return real(self, ref)

    write(folder / "one.md", "# First half")
    write(folder / "new.md", "# First half of another file")
    with monkeypatch.context() as patch:
        patch.setattr(DocumentReader, "_parse", append_first)
        report = counted.sync_folders([folder])
    assert {file.reason for file in report.skipped} == {CHANGED_MEANWHILE}
    assert (report.version, len(report.skipped)) == ("v000001", 2)
    assert synced(counted, folder) == {"added": ["files/new.md"], "updated": ["files/one.md"]}
    assert counted.read("files/one.md") == "# First half More."


def test_a_file_that_does_not_settle_is_left_for_the_next_sync(
    counted: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders([folder])
    write(folder / "one.md", "# First half")
    (folder / "two.md").unlink()
    monkeypatch.setattr("time.sleep", lambda seconds: write(folder / "one.md", "# First half, second half"))
    report = counted.sync_folders([folder], settle=0.5)
    assert [file.reason for file in report.skipped] == [UNSETTLED]
    assert list(report.removed) == ["files/two.md"]
    assert counted.read("files/one.md").startswith("# Document one")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert synced(counted, folder, settle=0.5) == {"updated": ["files/one.md"]}
    assert counted.read("files/one.md") == "# First half, second half"


def test_a_watching_sync_publishes_small_files_before_large_ones(
    counted: Project, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders([folder])
    monkeypatch.setattr(run, "SYNC_BYTES", 200)
    for name in ("a", "b"):
        write(folder / f"large-{name}.md", f"# Large {name}\n\n" + f"The text of {name}. " * 50)
    write(folder / "one.md", "# Large one\n\n" + "It has become large. " * 50)
    write(folder / "small.md", "# Small\n\nA text.")
    published = []
    for _ in range(4):
        report = counted.sync_folders([folder], watching=True)
        published.append([*report.added, *report.updated])
        assert {file.reason for file in report.skipped} <= {POSTPONED}
        assert len(ids(counted)) == 3 + len({name for names in published for name in names} - {"files/one.md"})
    assert published == [["files/small.md"], ["files/large-a.md"], ["files/large-b.md"], ["files/one.md"]]
    assert counted.sync_folders([folder], watching=True).version == report.version


# ---- wrong inputs and other processes --------------------------------------------------------------------------------


def test_only_folders_can_be_synced(counted: Project, folder: Path) -> None:
    with pytest.raises(InputError, match=r"one\.md is not a folder: name the folder that contains it"):
        counted.sync_folders([folder / "one.md"])
    with pytest.raises(InputError, match="There is no folder to sync"):
        counted.sync_folders([])
    with pytest.raises(PathNotFoundError, match="does not exist"):
        counted.sync_folders([folder / "*.md"])


def test_a_locked_project_is_an_error_and_a_dry_run_needs_no_lock(counted: Project, folder: Path) -> None:
    counted.sync_folders([folder])
    (folder / "one.md").unlink()
    with write_lock(counted.directory):
        with pytest.raises(ProjectLockedError):
            counted.sync_folders([folder])
        assert list(counted.sync_folders([folder], dry_run=True).removed) == ["files/one.md"]
