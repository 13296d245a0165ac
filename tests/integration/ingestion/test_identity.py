"""Identity of files: no file overwrites a document from another folder, and a renamed file gets its new name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import MANUAL, QUARTER, nodes_of, texts_of
from tests.support.documents import MARKDOWN, TEXT
from tests.support.models import CountingEmbedding, ScriptedLLM
from tests.support.nodes import chunk, written
from tests.support.trees import write


@pytest.fixture
def years(tmp_path: Path) -> dict[int, Path]:
    """Two folders of the same name, each with a file of the same name."""
    for year in (2023, 2024):
        write(tmp_path / str(year) / "reports" / "annual.md", f"# Annual report\n\nThe year was {year}.")
    return {year: tmp_path / str(year) / "reports" for year in (2023, 2024)}


OLD, NEW = "# Annual report\n\nThe year was 2023.", "# Annual report\n\nThe year was 2024."


# ---- an id belongs to one file ---------------------------------------------------------------------------------------


def test_a_file_from_another_folder_with_the_same_id_overwrites_no_document(
    counted: Project, years: dict[int, Path]
) -> None:
    counted.ingest([years[2023]])
    report = counted.ingest([years[2024]])
    assert (list(report.added), list(report.updated)) == (["2024/reports/annual.md"], [])
    assert texts_of(counted) == {"reports/annual.md": OLD, "2024/reports/annual.md": NEW}
    assert [(warning.path, warning.message) for warning in report.warnings] == [
        (
            str(years[2024] / "annual.md"),
            "its document gets the id '2024/reports/annual.md', because 'reports/annual.md' is the id of another"
            " document",
        )
    ]
    assert counted.retrieve("The year was 2024.").results[0].source.file_path == "2024/reports/annual.md"


def test_a_file_is_recognised_by_any_path(
    counted: Project, years: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.ingest([years[2023]])
    monkeypatch.chdir(years[2023])
    link = years[2023].parent / "link"
    link.symlink_to(years[2023])
    for name in (".", "annual.md", "../reports", str(years[2023] / "annual.md"), link, link / "annual.md", "*.md"):
        report = counted.ingest([name])
        assert (list(report.unchanged), report.version) == (["reports/annual.md"], "v000001"), name


def test_a_link_with_a_new_target_overwrites_nothing(counted: Project, years: dict[int, Path]) -> None:
    link = years[2023].parent.parent / "current"
    link.symlink_to(years[2023])
    counted.ingest([link])
    link.unlink()
    link.symlink_to(years[2024])
    report = counted.ingest([link])
    assert OLD in texts_of(counted).values()
    assert list(report.added) == [f"{years[2023].parent.parent.name}/current/annual.md"]
    assert "because 'current/annual.md' is the id of another document" in str(report)


def test_files_and_documents_do_not_overwrite_each_other(counted: Project, years: dict[int, Path]) -> None:
    counted.ingest([Document(id_="reports/annual.md", text="By hand.")])
    report = counted.ingest([years[2023]])
    assert list(report.added) == ["2023/reports/annual.md"]
    assert counted.read("reports/annual.md") == "By hand."
    for other in (Document(id_="2023/reports/annual.md", text="x"), chunk("n", doc_id="2023/reports/annual.md")):
        with pytest.raises(InputError, match=r"is the id of a document that was read from a file: assign another id"):
            counted.ingest([other])
    assert counted.read("2023/reports/annual.md") == OLD


def test_a_copy_of_a_document_is_skipped_and_reported_as_a_copy(counted: Project, years: dict[int, Path]) -> None:
    counted.ingest([years[2023]])
    copy = write(years[2023].parent / "copy of it.md", OLD)
    report = counted.ingest([copy, years[2024]])
    assert [(file.path, file.reason) for file in report.skipped] == [
        (str(copy), "has the same content as the document 'reports/annual.md'")
    ]


def test_a_file_with_the_same_name_and_content_elsewhere_is_the_same_document_until_they_differ(
    counted: Project, years: dict[int, Path]
) -> None:
    write(years[2024] / "annual.md", OLD)
    counted.ingest([years[2023]])
    report = counted.ingest([years[2024]])
    assert (list(report.unchanged), report.version) == (["reports/annual.md"], "v000001")
    write(years[2024] / "annual.md", NEW)
    counted.ingest([years[2024]])
    assert texts_of(counted) == {"reports/annual.md": OLD, "2024/reports/annual.md": NEW}


def test_replacing_gives_the_same_result_as_a_new_project(counted: Project, years: dict[int, Path]) -> None:
    counted.ingest([years[2023]])
    report = counted.ingest([years[2024]], replace=True)
    assert (list(report.added), list(report.removed)) == (["reports/annual.md"], ["reports/annual.md"])
    assert report.warnings == ()
    assert texts_of(counted) == {"reports/annual.md": NEW}
    assert list(counted.ingest([years[2024]]).unchanged) == ["reports/annual.md"]


# ---- a folder that was moved -----------------------------------------------------------------------------------------


@pytest.fixture
def moved(counted: Project, years: dict[int, Path], tmp_path: Path) -> Path:
    """The folder of 2023 after it was ingested and moved, and one of its two files corrected."""
    write(years[2023] / "notes.md", "# Notes\n\nNothing new.")
    counted.ingest([years[2023]])
    (tmp_path / "archive").mkdir()
    moved = years[2023].rename(tmp_path / "archive" / "reports")
    write(moved / "annual.md", "# Annual report\n\nCorrected.")
    return moved


def test_a_moved_folder_loses_nothing_and_replaces_its_documents_if_asked(counted: Project, moved: Path) -> None:
    report = counted.ingest([moved])
    assert (list(report.added), list(report.updated)) == (["archive/reports/annual.md"], ["reports/notes.md"])
    assert counted.read("reports/annual.md") == OLD
    assert list(counted.ingest([moved]).unchanged) == ["archive/reports/annual.md", "reports/notes.md"]
    counted.ingest([moved], replace=True)
    assert {record.doc_id for record in counted.documents()} == {"archive/reports/annual.md", "reports/notes.md"}


# ---- a file that was renamed -----------------------------------------------------------------------------------------


@pytest.fixture
def paid(manager: ProjectManager, text_folder: Path) -> tuple[Project, ScriptedLLM, CountingEmbedding]:
    """A project whose contexts were written by an LLM; one of its documents has no title."""
    llm, model = ScriptedLLM(), CountingEmbedding()
    project = manager.create("paid", ProjectConfig.local(context="llm"), llm=llm, embed_model=model)
    project.ingest([text_folder])
    return project, llm, model


@pytest.mark.parametrize("replace", [False, True])
def test_a_renamed_file_is_renamed_everywhere_without_new_calls(
    replace: bool, paid: tuple[Project, ScriptedLLM, CountingEmbedding], text_folder: Path
) -> None:
    project, llm, model = paid
    contexts = list(map(written, nodes_of(project, MANUAL)))
    calls, embedded = len(llm.history), len(model.texts)
    (text_folder / "manual.txt").rename(text_folder / "handbook.txt")
    assert project.estimate([text_folder], replace=replace).known_contexts == 0
    report = project.ingest([text_folder], replace=replace)
    assert dict(report.renamed) == {MANUAL: "reports/handbook.txt"}
    assert (report.added, report.updated, report.removed, report.missing) == ((), (), (), ())
    assert (list(report.unchanged), report.contexts_paid) == ([QUARTER], 0)
    assert "1 renamed, 1 unchanged" in report.summary()
    assert f"renamed {MANUAL} to reports/handbook.txt" in str(report)
    assert len(llm.history) == calls
    assert len(model.texts) == embedded + 1  # the structural line of a document without a title names the file
    assert texts_of(project) == {QUARTER: MARKDOWN, "reports/handbook.txt": TEXT}
    response = project.retrieve("The pump runs dry").results[0]
    assert (response.source.file_name, response.source.doc_id) == ("handbook.txt", "reports/handbook.txt")
    nodes = nodes_of(project, "reports/handbook.txt")
    assert list(map(written, nodes)) == contexts
    assert {node.metadata["context_source"] for node in nodes} == {"llm"}
    assert "context_given" not in nodes[0].metadata
    assert "manual" not in str([node.to_dict() for node in nodes]).replace("manual for the test bench", "")
    again = project.ingest([text_folder])
    assert (again.version, sorted(again.unchanged)) == (report.version, ["reports/handbook.txt", QUARTER])


def test_a_renamed_file_keeps_its_contexts_if_its_old_name_is_reused(
    paid: tuple[Project, ScriptedLLM, CountingEmbedding], text_folder: Path
) -> None:
    project, llm, _ = paid
    (text_folder / "manual.txt").rename(text_folder / "handbook.txt")
    (text_folder / "manual.txt").write_text("Procedure manual. Nothing is left of it.", encoding="utf-8")
    calls = len(llm.history)
    report = project.ingest([text_folder])
    assert (list(report.added), list(report.updated)) == (["reports/handbook.txt"], [MANUAL])
    assert len(llm.history) == calls + 1
    assert texts_of(project)["reports/handbook.txt"] == TEXT


def test_a_renamed_file_that_is_no_longer_readable_keeps_its_document(
    counted: Project, text_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.ingest([text_folder])
    (text_folder / "manual.txt").rename(text_folder / "handbook.txt")
    (text_folder / "note.txt").write_text("A note.", encoding="utf-8")
    from llama_index_contextual.errors import ReadError
    from llama_index_contextual.readers import DocumentReader

    real = DocumentReader._content

    def failing(self: DocumentReader, ref: Any, parsed: Any) -> Any:
        if getattr(ref, "doc_id", "").endswith("handbook.txt"):
            raise ReadError("handbook.txt", "cannot be opened: Input/output error")
        return real(self, ref, parsed)

    monkeypatch.setattr(DocumentReader, "_content", failing)
    report = counted.ingest([text_folder])
    assert (dict(report.renamed), list(report.added)) == ({}, ["reports/note.txt"])
    assert MANUAL in report.unchanged
    assert texts_of(counted)[MANUAL] == TEXT
