"""PDFs on their way through a `DocumentReader`; a stand-in takes the place of the process that parses them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest
from llama_index.core.schema import MetadataMode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.metadata import FILE_NAME, HEADINGS, PAGES, TITLE, DocumentMap
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import FileWarning, ParsedFile, ReadLimits, content_hash, read_documents
from llama_index_contextual.readers.discovery import discover
from llama_index_contextual.readers.documents import DocumentReader
from llama_index_contextual.readers.pdf import reader as pdf
from tests.support.trees import write


class FakeWorker:
    """Stands for the process that parses PDFs; threads create several."""

    calls: ClassVar[list[tuple[str, str | None, str]]] = []
    started: ClassVar[list[FakeWorker]] = []
    running: ClassVar[list[FakeWorker]] = []

    def __init__(self, on_page: object) -> None:
        self.started.append(self)
        self.running.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with suppress(ValueError):  # closed before
            self.running.remove(self)

    def read(
        self, path: Path, *, password: str | None, limits: ReadLimits, engine: str, scans: Mapping[int, Any]
    ) -> ParsedFile:
        self.calls.append((path.name, password, engine))
        if password == "wrong":
            raise ReadError("some other name", "the password is wrong")
        return ParsedFile(
            "one\ntwo",
            DocumentMap(page_starts=(0, 4), page_labels=("i", "ii")),
            title="Lease",
            warnings=("page 3 has no text: it needs OCR",),
            metadata={"running_header": "ACME"},
            digest=content_hash(path),
        )


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """A stand-in for the PDF process that remembers its calls."""
    monkeypatch.setattr(FakeWorker, "calls", [])
    monkeypatch.setattr(FakeWorker, "started", [])
    monkeypatch.setattr(FakeWorker, "running", [])
    monkeypatch.setattr(pdf, "PdfWorker", FakeWorker)
    return FakeWorker


class TestPdf:
    def test_pages_title_and_warnings_are_passed_on(self, tmp_path: Path, worker: type[FakeWorker]) -> None:
        result = read_documents([write(tmp_path / "docs/a.PDF", "x").parent])
        (document,) = result
        assert document.metadata[TITLE] == "Lease"
        assert PAGES in document.metadata
        assert HEADINGS not in document.metadata
        assert DocumentMap.from_metadata(document.metadata).page_label(5) == "ii"
        assert document.get_content(MetadataMode.EMBED) == "one\ntwo"
        assert result.warnings == [
            FileWarning(str(tmp_path / "docs/a.PDF"), "page 3 has no text: it needs OCR"),
        ]

    def test_processes_serve_all_files_and_are_ended(
        self, tmp_path: Path, worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: 3)
        names = [f"{number:02}.{'txt' if number % 3 == 0 else 'pdf'}" for number in range(20)]
        for name in names:
            write(tmp_path / "docs" / name, name)
        result = read_documents([tmp_path / "docs"], pdf_engine="pypdf")
        assert [document.metadata[FILE_NAME] for document in result] == names
        assert sorted(worker.calls) == [(name, None, "pypdf") for name in names if name.endswith("pdf")]
        assert 1 <= len(worker.started) <= 3
        assert worker.running == []

    def test_files_that_nobody_waits_for_are_not_parsed(
        self, tmp_path: Path, worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        for number in range(20):
            write(tmp_path / "docs" / f"{number:02}.pdf", str(number))
        with DocumentReader() as reader:
            contents = reader.read_all(discover([tmp_path / "docs"]).files)
            next(contents)
            contents.close()
        assert len(worker.calls) <= 4
        assert worker.running == []

    def test_no_process_is_started_without_pdf(self, tmp_path: Path, worker: type[FakeWorker]) -> None:
        read_documents([write(tmp_path / "a.txt", "text")])
        assert worker.started == []

    def test_the_process_is_ended_after_an_error(self, tmp_path: Path, worker: type[FakeWorker]) -> None:
        with pytest.raises(InputError):
            read_documents([write(tmp_path / "a.pdf", "x")], file_metadata=lambda path: {"page_start": 1})
        assert worker.running == []

    @pytest.mark.parametrize(
        "passwords",
        ["secret", {"docs/a.pdf": "secret", "a.pdf": "other"}, {"a.pdf": "secret"}, {"*": "secret", "b.pdf": "x"}],
        ids=str,
    )
    def test_the_password_is_looked_up(
        self, tmp_path: Path, worker: type[FakeWorker], passwords: Mapping[str, str] | str
    ) -> None:
        read_documents([write(tmp_path / "docs/a.pdf", "x").parent], passwords=passwords)
        assert worker.calls == [("a.pdf", "secret", "pdfium")]

    def test_a_project_chooses_the_engine_by_its_settings(self, tmp_path: Path, worker: type[FakeWorker]) -> None:
        config = ProjectConfig.local(pdf_engine="pdfium", context="none", faiss=False, mode="lexical")
        project = ProjectManager(tmp_path / "root").create("leases", config)
        path = write(tmp_path / "a.pdf", "x")
        project.estimate([path])
        project.ingest([path])
        assert worker.calls == [("a.pdf", None, "pdfium")] * 2
        assert project.update_config(pdf_engine="pypdf") == []
        project.ingest([path, write(tmp_path / "b.pdf", "y")])
        assert worker.calls[2:] == [("b.pdf", None, "pypdf")]

    def test_an_error_names_the_file_as_the_user_did(
        self, tmp_path: Path, worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "docs/a.pdf", "x")
        monkeypatch.chdir(tmp_path)
        (file,) = read_documents(["docs"], passwords="wrong").skipped
        assert (file.path, file.reason) == (os.path.join("docs", "a.pdf"), "the password is wrong")
