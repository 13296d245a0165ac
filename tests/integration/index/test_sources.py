"""The original file of a document is found, and accepted only if it holds what was ingested."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index import files
from llama_index_contextual.index.sources import (
    SOURCES_FILE,
    SourceFile,
    SourceFinder,
    forget_sources,
    origin,
    read_sources,
    remember_sources,
)
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
    return SourceFinder(project.directory, folders).find(project.live_version, record)


def test_files_are_found_where_they_were_ingested(project: Project, folder: Path) -> None:
    file = found(project, "annual.md")
    assert file.path == Path(os.path.realpath(folder / "2023" / "annual.md"))
    assert (file.problem, len(file.digest)) == (None, 32)


def test_a_project_without_the_file_gets_it_from_the_next_ingest_even_of_unchanged_files(
    project: Project, folder: Path
) -> None:
    (project.directory / SOURCES_FILE).unlink()
    assert found(project, "annual.md").problem == "missing"
    assert project.ingest([folder]).added == ()
    assert found(project, "annual.md").path is not None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", b"[]", b'{"format": 2}', b'{"files": []}'])
def test_a_damaged_file_is_reported_and_written_anew(
    project: Project, folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (project.directory / SOURCES_FILE).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_sources(project.directory) == {}
    assert SOURCES_FILE in caplog.text
    project.ingest([folder])
    assert len(read_sources(project.directory)) == 2


@pytest.mark.parametrize("kept", [0, 1, 7])
def test_an_interrupted_write_loses_only_the_new_paths(project: Project, folder: Path, kept: int) -> None:
    path = project.directory / SOURCES_FILE
    before, known = path.read_bytes(), read_sources(project.directory)
    remember_sources(project.directory, [folder / "new.txt"])
    path.write_bytes(path.read_bytes()[: len(before) + kept])
    assert read_sources(project.directory) == known
    remember_sources(project.directory, [folder / "new.txt", folder / "newer.txt"])
    assert len(read_sources(project.directory)) == len(known) + 2


def test_forget_removes_an_incomplete_path_as_well(project: Project, folder: Path) -> None:
    path = project.directory / SOURCES_FILE
    path.write_bytes(path.read_bytes() + b'"/secret/fold')
    forget_sources(project.directory, list(read_sources(project.directory)))
    assert b"secret" not in path.read_bytes()
    assert len(read_sources(project.directory)) == 2


def test_a_failure_to_write_the_file_does_not_spoil_the_ingest(
    manager: ProjectManager, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replace = files.replace

    def fail(path: Path, data: bytes) -> None:
        if path.name == SOURCES_FILE:
            raise OSError(28, "No space left on device", str(path))
        replace(path, data)

    monkeypatch.setattr(files, "replace", fail)
    project = manager.create("b", LEXICAL)
    assert len(project.ingest([folder]).added) == 2
    assert "No space left on device" in caplog.text
    assert found(project, "annual.md").problem == "missing"


def test_a_changed_file_is_not_accepted(project: Project, folder: Path) -> None:
    (folder / "2023" / "annual.md").write_text("# Annual report\n\nRevenue fell.", encoding="utf-8")
    assert found(project, "annual.md") == SourceFile(None, problem="changed")


def test_a_change_is_noticed_by_a_finder_that_knows_the_file(project: Project, folder: Path) -> None:
    finder = SourceFinder(project.directory)
    record = next(record for record in project.documents() if record.doc_id.endswith("annual.md"))
    assert finder.find(project.live_version, record).path is not None
    (folder / "2023" / "annual.md").write_text("Something longer than it was before, by far.", encoding="utf-8")
    assert finder.find(project.live_version, record).problem == "changed"


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
    assert len(project.documents()[0].content_hash) == 64
    assert found(project, "annual.md").path is not None


def test_a_document_that_was_passed_as_text_has_no_file(manager: ProjectManager, tmp_path: Path) -> None:
    project = manager.create("texts", LEXICAL)
    project.ingest([Document(text="Revenue grew by 3 %.")])
    record = project.documents()[0]
    assert SourceFinder(project.directory, [tmp_path]).find(project.live_version, record).problem == "text"


def test_a_document_id_leads_out_of_no_folder(project: Project, folder: Path, tmp_path: Path) -> None:
    outside = folder / "2023" / "annual.md"
    record = replace(
        next(record for record in project.documents() if record.doc_id.endswith("annual.md")),
        doc_id=f"../{folder.name}/2023/annual.md",
        origin="0" * 64,
        file_name="other.md",
    )
    named = tmp_path / "named"
    named.mkdir()
    assert outside.exists()
    assert SourceFinder(project.directory, [named]).find(project.live_version, record).problem == "missing"


def test_forget_removes_the_paths_of_removed_documents(project: Project, folder: Path) -> None:
    project.remove(next(record.doc_id for record in project.documents() if record.doc_id.endswith("annual.md")))
    assert len(read_sources(project.directory)) == 2
    project.forget()
    assert list(read_sources(project.directory)) == [origin(folder / "prüfung.txt")]
    project.remove([record.doc_id for record in project.documents()], forget=True)
    assert not (project.directory / SOURCES_FILE).exists()
