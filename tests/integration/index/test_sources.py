"""The original file of a document is found, and accepted only if it holds what was ingested."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.sources import SourceFile, SourceFinder
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

LEXICAL = ProjectConfig.local(mode="lexical", indexes="lexical")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    (folder / "2023").mkdir(parents=True)
    (folder / "2023" / "annual.md").write_text("# Annual report\n\nRevenue grew by 3 %.", encoding="utf-8")
    (folder / "prüfung.txt").write_text("The audit found nothing.", encoding="utf-8")
    return folder


@pytest.fixture
def project(manager: ProjectManager, folder: Path) -> Project:
    project = manager.create("a", LEXICAL)
    project.ingest([folder])
    return project


def found(project: Project, name: str, *folders: Path) -> SourceFile:
    record = next(record for record in project.documents() if record.doc_id.endswith(name))
    return SourceFinder(folders).find(record)


def test_files_are_found_where_they_were_ingested(project: Project, folder: Path) -> None:
    file = found(project, "annual.md")
    assert file.path == Path(os.path.realpath(folder / "2023" / "annual.md"))
    assert (file.problem, len(file.digest)) == (None, 32)


def test_a_changed_file_is_not_accepted(project: Project, folder: Path) -> None:
    (folder / "2023" / "annual.md").write_text("# Annual report\n\nRevenue fell.", encoding="utf-8")
    assert found(project, "annual.md") == SourceFile(None, problem="changed")


def test_a_change_is_noticed_by_a_finder_that_knows_the_file(project: Project, folder: Path) -> None:
    finder = SourceFinder()
    record = next(record for record in project.documents() if record.doc_id.endswith("annual.md"))
    assert finder.find(record).path is not None
    (folder / "2023" / "annual.md").write_text("Something longer than it was before, by far.", encoding="utf-8")
    assert finder.find(record).problem == "changed"


@pytest.mark.parametrize("target", ["moved", "moved/reports", "moved/x/2023", "moved/x/y"])
def test_a_moved_file_is_found_below_a_named_folder(
    project: Project, folder: Path, tmp_path: Path, target: str
) -> None:
    there = tmp_path / target
    there.mkdir(parents=True)
    (folder / "2023" / "annual.md").rename(there / "annual.md")
    assert found(project, "annual.md").problem == "missing"
    assert found(project, "annual.md", tmp_path / "moved").path == Path(os.path.realpath(there / "annual.md"))


def test_of_files_with_one_name_the_one_with_the_content_is_taken(
    project: Project, folder: Path, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / "copies" / str(number)).mkdir(parents=True)
        (tmp_path / "copies" / str(number) / "annual.md").write_text(f"Other {number}")
    (folder / "2023" / "annual.md").rename(tmp_path / "copies" / "2" / "annual.md")
    assert found(project, "annual.md", tmp_path / "copies").path == tmp_path.resolve() / "copies" / "2" / "annual.md"


def test_the_facts_of_a_file_do_not_hide_it(manager: ProjectManager, folder: Path) -> None:
    project = manager.create("facts", LEXICAL)
    project.ingest([folder], file_metadata=lambda path: {"fund": "Halpha", "year": 2024, "title": "A title"})
    assert project.documents()[0].facts == {"fund": "Halpha", "year": 2024, "title": "A title"}
    assert found(project, "annual.md").path is not None


def test_a_document_that_was_passed_as_text_has_no_file(manager: ProjectManager, tmp_path: Path) -> None:
    project = manager.create("texts", LEXICAL)
    project.ingest([Document(text="Revenue grew by 3 %.")])
    record = project.documents()[0]
    assert SourceFinder([tmp_path]).find(record).problem == "text"


def test_a_document_id_leads_out_of_no_folder(project: Project, folder: Path, tmp_path: Path) -> None:
    outside = folder / "2023" / "annual.md"
    record = replace(
        next(record for record in project.documents() if record.doc_id.endswith("annual.md")),
        doc_id=f"../{folder.name}/2023/annual.md",
        path="/gone",
        file_name="other.md",
    )
    named = tmp_path / "named"
    named.mkdir()
    assert outside.exists()
    assert SourceFinder([named]).find(record).problem == "missing"


def test_a_path_with_bytes_that_are_no_text_is_kept(manager: ProjectManager, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"m\xe4rz")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has text as names only")
    (folder / "note.txt").write_text("A note on tin.")
    project = manager.create("bytes", LEXICAL)
    project.ingest([folder])
    assert found(project, "note.txt").path == Path(os.path.realpath(folder / "note.txt"))
    assert project.ingest([folder]).added == ()


def test_forget_removes_the_paths_of_removed_documents(project: Project) -> None:
    project.remove(next(record.doc_id for record in project.documents() if record.doc_id.endswith("annual.md")))
    project.forget()
    stored = b"".join(path.read_bytes() for path in project.directory.rglob("*") if path.is_file())
    assert b"annual.md" not in stored
