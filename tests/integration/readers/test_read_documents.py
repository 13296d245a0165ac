"""From files to Documents: metadata, duplicates, and bad files among good ones."""

from __future__ import annotations

import os
import random
import sys
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest
from llama_index.core.schema import MetadataMode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, ReadError
from llama_index_contextual.metadata import (
    FILE_NAME,
    FILE_PATH,
    HEADINGS,
    OWN_KEYS,
    PAGES,
    RESERVED_KEYS,
    TITLE,
    DocumentMap,
    Heading,
    excluded_embed_keys,
    excluded_llm_keys,
)
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import (
    DocumentReader,
    FileRef,
    FileWarning,
    ReadLimits,
    content_hash,
    discover,
    read_documents,
)
from llama_index_contextual.readers.files import ParsedFile
from tests.integration.readers.office_files import docx, pptx
from tests.integration.readers.office_files import read as parse
from tests.support.pdf_files import encrypted, lines, pdf_of
from tests.support.shared import shared_data
from tests.support.trees import reasons, write

GOOD = "The rent is due on Monday.\n"


class TestDocument:
    def test_it_carries_the_text_its_map_and_the_names_of_the_file(self, tmp_path: Path) -> None:
        text = "---\nauthor: Jane\n---\n# Lease\r\n\r\n## Rent\r\n\r\nDue on Monday.\r\n"
        write(tmp_path / "contracts/2023/a.md", text)
        (document,) = read_documents([tmp_path / "contracts"])
        assert document.id_ == "contracts/2023/a.md"
        assert document.text == text
        headings = (Heading(21, 1, "Lease"), Heading(32, 2, "Rent"))
        assert document.metadata == {
            FILE_NAME: "a.md",
            FILE_PATH: "contracts/2023/a.md",
            TITLE: "Lease",
            "author": "Jane",
            **DocumentMap(headings=headings).to_metadata(),
        }
        assert DocumentMap.from_metadata(document.metadata).section(len(text) - 1) == "Lease > Rent"

    def test_no_absolute_path_is_in_it(self, tmp_path: Path) -> None:
        write(tmp_path / "docs/a.md", "# A\n\ntext")
        assert str(tmp_path) not in read_documents([tmp_path / "docs"]).documents[0].to_json()

    def test_what_is_embedded_is_the_text_and_the_facts_of_the_user(self, tmp_path: Path) -> None:
        write(tmp_path / "a.md", "---\nauthor: Jane\nfund: II\n---\n# A\n\ntext")
        (document,) = read_documents([tmp_path / "a.md"], file_metadata=lambda path: {"fund": "III"})
        assert document.excluded_embed_metadata_keys == excluded_embed_keys(["author"])
        assert document.excluded_llm_metadata_keys == excluded_llm_keys()
        assert document.get_content(MetadataMode.EMBED) == f"fund: III\n\n{document.text}"


class TestFileMetadata:
    def test_it_is_called_with_the_path_as_named_and_may_set_the_title(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "docs/a.md", "# A\n")
        monkeypatch.chdir(tmp_path)
        asked: list[str] = []

        def facts(path: str) -> dict[str, Any]:
            asked.append(path)
            return {TITLE: "Mine", "year": 2023, "final": True, "share": 0.5, "note": None}

        (document,) = read_documents(["docs"], file_metadata=facts)
        assert asked == [os.path.join("docs", "a.md")]
        assert {key: document.metadata[key] for key in ("title", "year", "final", "share", "note")} == facts("")

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            (["a"], "must return a dict, got list"),
            ({"a": [{"b"}]}, "The value of the metadata 'a' of a file is of type set: pass text, numbers"),
            ({"a": float("nan")}, "The value of the metadata 'a' of a file is not a finite number"),
            ({"a": 2**63}, "The value of the metadata 'a' of a file does not fit into 64 bits"),
            ({"a": "\ud800"}, "The value of the metadata 'a' of a file contains lone surrogates"),
            ({3: "a"}, "A key of the metadata of a file must be a non-empty string, not 3"),
            ({" ": "a"}, "A key of the metadata of a file must be a non-empty string"),
            *(
                ({key: "a"}, f"The key '{key}' of the metadata of a file is set by this package: choose another name")
                for key in (*OWN_KEYS, *RESERVED_KEYS)
                if key != TITLE
            ),
        ],
    )
    def test_what_cannot_be_stored_is_an_error(self, tmp_path: Path, facts: Any, message: str) -> None:
        with pytest.raises(InputError) as caught:
            read_documents([write(tmp_path / "a.txt", GOOD)], file_metadata=lambda path: facts)
        assert message in str(caught.value)


class TestDuplicates:
    def test_the_same_content_is_read_once(self, tmp_path: Path) -> None:
        for name in ("a.txt", "b.txt", "sub/c.md"):
            write(tmp_path / "docs" / name, GOOD)
        write(tmp_path / "docs/d.txt", GOOD.upper())
        result = read_documents([tmp_path / "docs"])
        assert [document.id_ for document in result] == ["docs/a.txt", "docs/d.txt"]
        first = tmp_path / "docs/a.txt"
        assert reasons(result) == dict.fromkeys(("b.txt", "c.md"), f"has the same content as {first}")

    def test_a_colliding_hash_hides_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("xxhash.xxh3_128_hexdigest", lambda data: "same")
        write(tmp_path / "docs/a.txt", GOOD)
        write(tmp_path / "docs/b.txt", GOOD.upper())
        assert len(read_documents([tmp_path / "docs"])) == 2


class TestBadFiles:
    def test_each_has_its_message_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        docs, noise = tmp_path / "docs", random.Random(7).randbytes(10_000)
        write(docs / "a_good.txt", GOOD)
        write(docs / "b_empty.txt", "")
        write(docs / "c_spaces.txt", " " * 1_000_000)
        write(docs / "d_binary.txt", noise)
        write(docs / "e_pdf.txt", b"%PDF-1.7\n" + noise)
        write(docs / "f_nul.txt", GOOD * 5 + "\0")
        write(docs / "g_latin.txt", (GOOD + "at the café").encode("cp1252"))
        write(docs / "h_huge.txt", "x" * 2_000_000)
        write(docs / "i_broken.pdf", b"%PDF-1.7\n" + noise)
        write(docs / "i_encrypted.pdf", encrypted("sesame"))
        write(docs / "i_odd_page.pdf", pdf_of([b"[" * 100_000, lines(["The page after the odd one"])]).data())
        write(docs / "i_other_password.pdf", encrypted("mustard"))
        write(docs / "j_word.docx", b"PK\x03\x04" + noise)
        write(docs / "k_\x1b[2J\u202e.txt", "")
        write(docs / "l_bom.md", b"\xef\xbb\xbf# Title\n")
        write(docs / "z_good.md", "# Good\n")
        result = read_documents(
            [docs, tmp_path / "missing"],
            limits=ReadLimits(max_bytes=1_500_000),
            passwords={"i_encrypted.pdf": "sesame", "i_other_password.pdf": "ketchup"},
            pdf_engine="pypdf",
        )
        assert [document.metadata[FILE_NAME] for document in result] == [
            "a_good.txt",
            "f_nul.txt",
            "g_latin.txt",
            "i_encrypted.pdf",
            "i_odd_page.pdf",
            "l_bom.md",
            "z_good.md",
        ]
        found = reasons(result)
        assert found.pop("i_broken.pdf")
        assert {name: reason.partition(":")[0] for name, reason in found.items()} == {
            "b_empty.txt": "is empty",
            "c_spaces.txt": "is empty",
            "d_binary.txt": "is a binary file, not text",
            "e_pdf.txt": "is a binary file, not text",
            "h_huge.txt": "has more than 1,500,000 bytes",
            "i_other_password.pdf": "the PDF is encrypted, and the password given for it does not open it",
            "j_word.docx": "is damaged and cannot be read (File is not a zip file)",
            "k_\\x1b[2J\\u202e.txt": "is empty",
            "missing": "does not exist",
        }
        odd = next(warning for warning in result.warnings if warning.path.endswith("i_odd_page.pdf"))
        assert odd.message.startswith("page 1 was left out: pypdf cannot parse it")
        assert [warning for warning in result.warnings if warning is not odd] == [
            FileWarning(str(docs / "f_nul.txt"), "1 NUL character replaced by U+FFFD"),
            FileWarning(
                str(docs / "g_latin.txt"), "is not UTF-8: read as cp1252; save it as UTF-8 if letters look wrong"
            ),
        ]

    def test_a_gigabyte_is_refused_before_it_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with (tmp_path / "huge.txt").open("wb") as file:
            file.truncate(1_000_000_000)
        monkeypatch.setattr(os, "open", None)
        assert "more than 500,000,000 bytes" in reasons(read_documents([tmp_path / "huge.txt"]))["huge.txt"]
        monkeypatch.undo()
        tracemalloc.start()
        with pytest.raises(ReadError, match=r"split it into smaller files"):
            DocumentReader().read(FileRef(tmp_path / "huge.txt", "huge.txt", 5, "huge.txt"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000_000

    def test_a_file_that_is_exchanged_after_it_was_found_is_not_read(self, tmp_path: Path) -> None:
        secret = write(tmp_path / "secret.txt", "secret")
        (ref,) = discover([write(tmp_path / "docs/a.txt", GOOD).parent]).files
        ref.path.unlink()
        ref.path.symlink_to(secret)
        with DocumentReader() as reader, pytest.raises(ReadError, match="was replaced by another file"):
            reader.read(ref)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
    def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(self, tmp_path: Path) -> None:
        (ref,) = discover([write(tmp_path / "a.txt", GOOD)]).files
        ref.path.unlink()
        os.mkfifo(ref.path)
        # The pipe may have the number of the inode that the file had.
        with DocumentReader() as reader, pytest.raises(ReadError, match=r"is not a regular file|was replaced"):
            reader.read(ref)

    def test_a_file_that_is_gone_is_reported(self, tmp_path: Path) -> None:
        (ref,) = discover([write(tmp_path / "a.txt", GOOD)]).files
        ref.path.unlink()
        with DocumentReader() as reader, pytest.raises(ReadError) as caught:
            reader.read(ref)
        assert caught.value.path == ref.shown
        assert caught.value.reason == "cannot be opened: No such file or directory"


@pytest.mark.parametrize("name", ["corpora", "conversations"])
def test_every_real_markdown_file_is_read_to_the_character(name: str) -> None:
    folder = shared_data(name) / "documents"
    result = read_documents([folder])
    assert result.skipped == []
    assert result.warnings == []
    for document in result:
        text = (folder.parent / document.id_).read_bytes().decode("utf-8-sig")
        assert document.text == text
        for heading in DocumentMap.from_metadata(document.metadata).headings:
            assert heading.start == 0 or text[heading.start - 1] in "\n\r"


# ---- PDFs on their way through a `DocumentReader`; a stand-in takes the place of the process that parses them --------


class FakeWorker:
    """Stands for the process that parses PDFs; threads create several."""

    calls: ClassVar[list[tuple[str, str | None, str]]] = []
    started: ClassVar[list[FakeWorker]] = []
    running: ClassVar[list[FakeWorker]] = []

    def __init__(self, on_page: object, niceness: int) -> None:
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
        self,
        path: Path,
        *,
        password: str | None,
        limits: ReadLimits,
        engine: str,
        scans: Mapping[int, Any],
        figures: bool,
    ) -> ParsedFile:
        self.calls.append((path.name, password, engine))
        if password == "wrong":
            raise ReadError("some other name", "the password is wrong")
        return ParsedFile(
            "one\ntwo",
            DocumentMap(page_starts=(0, 4), page_labels=("i", "ii")),
            title="Lease",
            warnings=("page 3 has no text: it needs OCR",),
            digest=content_hash(path),
        )


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    """A stand-in for the PDF process that remembers its calls."""
    monkeypatch.setattr(FakeWorker, "calls", [])
    monkeypatch.setattr(FakeWorker, "started", [])
    monkeypatch.setattr(FakeWorker, "running", [])
    monkeypatch.setattr("llama_index_contextual.readers.documents.ParserProcess", FakeWorker)
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
        config = ProjectConfig.local(pdf_engine="pdfium", context="none", indexes="lexical", mode="lexical")
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


def test_without_the_extra_a_file_is_skipped_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    data = docx("text")
    monkeypatch.setitem(sys.modules, "mammoth", None)
    with pytest.raises(ReadError) as caught:
        parse("a.docx", data)
    assert caught.value.reason == 'needs further packages: pip install "llama-index-contextual[office]"'


def test_the_child_process_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.pptx"
    path.write_bytes(data := pptx(("Über", "Text")))
    with DocumentReader() as reader:
        content = reader.read(FileRef(path, "a.pptx", path.stat().st_size, str(path)))
    parsed = parse("a.pptx", data)
    assert (content.document.text, content.digest != "") == (parsed.text, True)
    assert content.document.metadata["title"] == "Über"
