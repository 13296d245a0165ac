"""Scanned pages: engines, processes, the store, layout of boxes, warnings and confidence."""

from __future__ import annotations

import json
import math
import random
import struct
import threading
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual import metadata as keys
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, ReadError
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import ReadLimits, content_hash, ocr, read_documents
from llama_index_contextual.readers.ocr import OcrEngine, OcrReader, _reading_of_tsv, engine_for
from llama_index_contextual.readers.pdf.scans import page_content
from llama_index_contextual.readers.process import ChildProcess
from tests.integration.readers import ocr_child
from tests.support.pdf_files import RawPdf, lines, pdf_of
from tests.support.trees import write

ENGINE = OcrEngine("rapidocr", "3.10.0")
LIMITS = ReadLimits()
SCAN = b"q 600 0 0 800 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI Q"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the process that runs an engine."""
    monkeypatch.setattr(ocr, "CHILD", ocr_child.NAME)
    monkeypatch.setattr("llama_index_contextual.readers.documents.engine_for", lambda *_: ENGINE)


def scans(number: int) -> bytes:
    """Return a PDF with a page of text and then pages that are drawn."""
    return pdf_of([lines(["A page with text."]), *[SCAN] * number]).data()


def box(text: str, x: float, y: float, *, width: float | None = None, height: float = 14, turn: float = 0) -> list[Any]:
    """Return a box whose lower left corner is given, turned about the origin."""
    right = x + (width if width is not None else 6 * len(text))
    corners = ((x, y - height), (right, y - height), (right, y), (x, y))
    along, across = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    return [text, 0.9, *(value for px, py in corners for value in (px * along - py * across, px * across + py * along))]


def texts(*boxes: list[Any]) -> list[str]:
    """Return the lines of a page with these boxes, which come in any order."""
    shuffled = random.Random(3).sample(boxes, len(boxes))
    return [line.text for line in page_content({"width": 600, "height": 800, "dpi": 72, "boxes": shuffled}).lines]


# ---- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [-2.0, -1.0, 0.0, 1.0, 2.0])
def test_the_cells_of_a_row_stay_together_on_a_skewed_page(skew: float) -> None:
    rows = [
        ("Revenue", "1,204.7", "1,318.2"),
        ("Cost of sales", "(713.4)", "(768.1)"),
        ("Gross profit", "491.3", "550"),
    ]
    boxes = [
        box(cell, 60 + 170 * column, 100 + 18 * row, turn=skew)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    ]
    assert texts(*boxes) == [" ".join(cells) for cells in rows]


@pytest.mark.parametrize("offset", [0, 7])
def test_columns_are_read_one_after_the_other_even_if_their_lines_are_not_level(offset: int) -> None:
    left = [f"left line {n} of the column goes on" for n in range(8)]
    right = [f"right line {n} of the column goes on" for n in range(8)]
    boxes = [box("A Heading Over Both Columns of the Page", 150, 90, width=300, height=20)]
    boxes += [box(text, 50, 130 + 15 * n, width=230) for n, text in enumerate(left)]
    boxes += [box(text, 310, 130 + offset + 15 * n, width=230) for n, text in enumerate(right)]
    boxes += [box("A line below that is as wide as both of the columns together", 50, 300, width=490)]
    assert texts(*boxes) == [boxes[0][0], *left, *right, boxes[-1][0]]


def test_a_table_of_words_is_not_taken_for_columns() -> None:
    rows = [(f"part number {n} of list", f"a screw of size {n}") for n in range(8)]
    boxes = [box(cell, 60 + 300 * c, 100 + 18 * r) for r, cells in enumerate(rows) for c, cell in enumerate(cells)]
    boxes.append(box("The widest of all the parts in this list has a very long name", 60, 260, width=240))
    boxes.append(box("and what it is needed for takes as many words", 360, 260, width=240))
    assert texts(*boxes)[:8] == [" ".join(cells) for cells in rows]


def test_lines_of_one_font_have_one_size_whatever_their_letters() -> None:
    heights = [12, 14, 13, 15, 12.5]
    boxes = [box(f"line number {n} of a paragraph", 60, 100 + 18 * n, height=h) for n, h in enumerate(heights)]
    page = page_content({"width": 600, "height": 800, "dpi": 72, "boxes": [*boxes, box("Title", 60, 60, height=28)]})
    title, *rest = page.lines
    assert len({line.size for line in rest}) == 1
    assert title.size > 1.5 * rest[0].size
    assert page.span == (0.0, 800.0)


# ---- engines ---------------------------------------------------------------------------------------------------------


def installed(
    monkeypatch: pytest.MonkeyPatch, packages: set[str], tesseract: tuple[str, set[str]] = ("", set())
) -> None:
    monkeypatch.setattr(ocr, "find_spec", lambda name: object() if name in packages else None)
    monkeypatch.setattr(ocr, "version", lambda name: "3.10.0")
    monkeypatch.setattr(ocr, "_tesseract", lambda: (tesseract[0], frozenset(tesseract[1])))


ALL = {"pypdfium2", "PIL", "numpy", "rapidocr", "onnxruntime"}
DRAWS = {"pypdfium2", "PIL", "numpy"}
PROGRAM = ("5.3.0", {"eng", "deu"})
MISSING = "install tesseract (Debian: apt install tesseract-ocr)"


@pytest.mark.parametrize(
    ("setting", "packages", "program", "expected"),
    [
        ("auto", ALL, PROGRAM, ENGINE),
        ("auto", DRAWS, PROGRAM, OcrEngine("tesseract", "5.3.0", "eng")),
        ("tesseract:deu+eng", ALL, PROGRAM, OcrEngine("tesseract", "5.3.0", "deu+eng")),
        ("tesseract", ALL, PROGRAM, OcrEngine("tesseract", "5.3.0", "eng")),
        ("rapidocr", ALL, ("", set()), ENGINE),
        ("auto", set(), ("", set()), ocr.INSTALL),
        ("auto", DRAWS, ("", set()), ocr.INSTALL),
        ("rapidocr", DRAWS, PROGRAM, ocr.INSTALL),
        ("tesseract:deu", ALL, ("", set()), MISSING),
        ("tesseract", ALL, ("", set()), MISSING),
        (
            "tesseract:eng+rus",
            ALL,
            PROGRAM,
            "tesseract has no language 'rus': install it (Debian: apt install tesseract-ocr-rus)",
        ),
        (None, ALL, PROGRAM, "set `ocr` to 'auto'"),
    ],
)
def test_the_engine_follows_the_settings_and_what_is_installed(
    setting: Any, packages: set[str], program: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, packages, program)
    assert engine_for(setting) == expected


def test_another_engine_version_or_language_reads_a_page_again() -> None:
    others = OcrEngine("rapidocr", "3.11.0"), OcrEngine("tesseract", "5", "eng"), OcrEngine("tesseract", "5", "deu")
    assert len({engine.key("image") for engine in (ENGINE, *others)}) == 4
    assert ENGINE.key("image") != ENGINE.key("other image")


@pytest.mark.parametrize("language", ["", "german language", "deu+", "deu;eng", "../eng", "-x"])
def test_a_language_that_is_none_or_has_no_engine_is_refused(language: str) -> None:
    with pytest.raises(ConfigurationError, match="tesseract:"):
        ProjectConfig(ocr=f"tesseract:{language}")
    with pytest.raises(ConfigurationError, match="tesseract:"):
        ProjectConfig(ocr="rapidocr:deu")
    assert ProjectConfig(ocr="tesseract:deu+chi_sim+script/Latin").ocr


# ---- processes -------------------------------------------------------------------------------------------------------


def test_pages_are_read_several_at_a_time_and_come_in_order(child: None, tmp_path: Path) -> None:
    path = write(tmp_path / "scan.png", "image")
    seen: list[tuple[int, int]] = []
    with closing(OcrReader(ENGINE, on_page=lambda _, *state: seen.append(state), processes=2)) as reader:
        pages = reader.read(path, limits=LIMITS)
    assert [page["boxes"][0][0] for page in pages.pages.values()] == [f"The text of page {n}." for n in range(1, 6)]
    assert (list(pages.pages), pages.failed, pages.total, pages.digest) == ([1, 2, 3, 4, 5], [], 5, content_hash(path))
    assert sorted(seen) == [(n, 5) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("fails.png", "page 3 was left out: pdfium cannot draw it"),
        ("crashes.png", "page 3 was left out: OCR crashed (exit code 3: RuntimeError: no paper)"),
        ("hangs.png", "page 3 was left out: OCR took longer than 0.05 seconds and was stopped"),
    ],
)
def test_a_page_that_cannot_be_read_is_left_out_and_the_others_are_read(
    name: str, warning: str, child: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ChildProcess.ask

    def patient(child: ChildProcess, path: Path, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        is_stuck = name == "hangs.png" and (request["what"], request["page"]) == ("read", 2)
        return ask(child, path, request, seconds=seconds if is_stuck else 300)

    monkeypatch.setattr(ChildProcess, "ask", patient)
    with closing(OcrReader(ENGINE, processes=1)) as reader:
        pages = reader.read(write(tmp_path / name, "image"), limits=ReadLimits(max_seconds=0.05))
    assert (list(pages.pages), pages.failed) == ([1, 2, 4, 5], [warning])


def test_a_stored_page_is_not_read_again(child: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, store = write(tmp_path / "scan.png", "image"), Ledger(tmp_path / "ledger.sqlite")
    for spent in ("", "1"):
        monkeypatch.setenv(ocr_child.SPENT, spent)
        with closing(OcrReader(ENGINE, store=store, processes=1)) as reader:
            pages = reader.read(path, [2, 4], limits=LIMITS)
        assert (list(pages.pages), pages.failed) == ([2, 4], [])
    assert store.info().pages == 2


def test_a_file_that_was_replaced_or_has_too_many_pages_is_refused(child: None, tmp_path: Path) -> None:
    path = write(tmp_path / "scan.pdf", "image")
    with closing(OcrReader(ENGINE, processes=1)) as reader:
        with pytest.raises(ReadError, match="was replaced by another file"):
            reader.read(path, [1], digest="0" * 32, limits=LIMITS)
        with pytest.raises(ReadError, match="has 5 pages, more than the limit of 4"):
            reader.read(path, limits=ReadLimits(max_pages=4))


def test_closing_ends_a_read_in_another_thread(child: None, tmp_path: Path) -> None:
    path = write(tmp_path / "hangs.png", "image")
    two_done, errors = threading.Event(), []
    reader = OcrReader(ENGINE, on_page=lambda _, done, total: two_done.set() if done == 2 else None, processes=1)

    def read() -> None:
        try:
            reader.read(path, limits=LIMITS)
        except ReadError as error:
            errors.append(error.reason)

    thread = threading.Thread(target=read)
    thread.start()
    assert two_done.wait(300)
    reader.close()
    thread.join(300)
    assert errors == ["was not read to its end, because the run was stopped"]


def test_a_child_with_a_request_that_is_half_written_is_closed(child: None, tmp_path: Path) -> None:
    reader = OcrReader(ENGINE, processes=1)
    reader.read(write(tmp_path / "scan.png", "image"), [1], limits=LIMITS)
    process = reader._children[0]._process
    assert process is not None
    assert process.stdin is not None
    process.kill()
    process.wait()
    process.stdin.write('{"read": 0')
    reader.close()
    assert process.stdin.closed


# ---- files -----------------------------------------------------------------------------------------------------------


def test_scanned_pages_stand_between_the_others_and_are_listed(child: None, tmp_path: Path) -> None:
    write(tmp_path / "docs/scan.pdf", scans(4))
    result = read_documents(tmp_path / "docs")
    (document,) = result.documents
    assert document.text.splitlines() == ["A page with text.", *(f"The text of page {n}." for n in range(2, 6))]
    assert [warning.message for warning in result.warnings] == [
        "pages 2–5 were read by OCR (confidence 0.80)",
        "page 4 is hard to read (confidence 0.50): check the text, or scan it again at 300 dpi",
    ]
    assert json.loads(document.metadata[keys.PAGES])["ocr"] == [None, 0.9, 0.9, 0.5, 0.9]


def test_an_image_is_read_as_a_document_with_pages(child: None, tmp_path: Path) -> None:
    path = write(tmp_path / "docs/scan.TIFF", "image")
    result = read_documents(tmp_path / "docs")
    (document,) = result.documents
    assert document.text.splitlines() == [f"The text of page {n}." for n in range(1, 6)]
    assert len(json.loads(document.metadata[keys.PAGES])["starts"]) == 5
    assert [warning.path for warning in result.warnings] == [str(path)] * 2


def test_pages_without_any_text_are_skipped_with_the_reason(child: None, tmp_path: Path) -> None:
    write(tmp_path / "photo.pdf", pdf_of([SCAN, SCAN]).data())
    write(tmp_path / "photo.jpg", "image")
    result = read_documents(tmp_path)
    assert {Path(file.path).name: file.reason for file in result.skipped} == {
        "photo.pdf": "has no text layer, and OCR found no text",
        "photo.jpg": "is an image in which OCR found no text",
    }


def test_without_the_extra_scans_and_images_are_skipped_with_its_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, set())
    write(tmp_path / "scan.pdf", pdf_of([SCAN]).data())
    write(tmp_path / "scan.png", "image")
    write(tmp_path / "some.pdf", scans(2))
    result = read_documents(tmp_path)
    todo = '`pip install "llama-index-contextual[ocr]"` to have it read by OCR, and ingest it again'
    assert {Path(file.path).name: file.reason for file in result.skipped} == {
        "scan.pdf": f"has no text layer: {todo}",
        "scan.png": f"is an image: {todo}",
    }
    assert [warning.message for warning in result.warnings] == [
        'pages 2–3 have no text: they need OCR (`pip install "llama-index-contextual[ocr]"`)'
    ]


# ---- projects --------------------------------------------------------------------------------------------------------


def test_a_page_is_read_once_in_the_life_of_a_project(
    child: None, manager: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = manager.create("scans", ProjectConfig.local(context="none"))
    path = write(tmp_path / "scan.pdf", scans(3))
    report = project.ingest([path])
    assert f"  note {path}: pages 2–4 were read by OCR (confidence 0.77)" in str(report).splitlines()
    (chunk,) = project.chunks("scan.pdf")
    assert chunk.metadata[keys.OCR_CONFIDENCE] == 0.5
    assert keys.OCR_CONFIDENCE in {*chunk.excluded_embed_metadata_keys} & {*chunk.excluded_llm_metadata_keys}

    monkeypatch.setenv(ocr_child.SPENT, "1")
    assert list(project.ingest([path]).unchanged) == ["scan.pdf"]
    project.update_config(chunk_size=400)
    assert list(project.rebuild().rebuilt) == ["scan.pdf"]
    project.remove("scan.pdf")
    assert project.estimate([path]).tokens == 26
    report = project.ingest([path])
    assert not [warning for warning in report.warnings if "left out" in warning.message]
    assert "The text of page 3." in project.chunks("scan.pdf")[0].get_content()


def test_progress_counts_the_pages_of_a_file_with_text_before_those_that_ocr_reads(
    child: None, manager: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocr, "MAX_PROCESSES", 1)
    project = manager.create("scans", ProjectConfig.local(context="none"))
    states: list[IngestProgress] = []
    project.ingest([write(tmp_path / "scan.pdf", scans(4))], progress=states.append)
    counts = [(state.pages_done, state.pages_total) for state in states if state.pages_total]
    assert list(dict.fromkeys(counts)) == [(n, 5) for n in range(1, 6)]
    assert states[-1].pages_total == 0


def test_forgetting_removes_the_pages(child: None, manager: ProjectManager, tmp_path: Path) -> None:
    project = manager.create("scans", ProjectConfig.local(context="none"))
    project.ingest([write(tmp_path / "scan.pdf", scans(2)), write(tmp_path / "kept.txt", "Kept.")])
    assert "The text of page 3." in (project.directory / "ledger.sqlite").read_bytes().decode(errors="replace")
    project.remove("scan.pdf", forget=True)
    assert "The text of page" not in (project.directory / "ledger.sqlite").read_bytes().decode(errors="replace")


# ---- the engines themselves ------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    """Return the head of a PNG of this size, without its pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + IDAT


IDAT = b"\0\0\0\x01IDAT\x78" + struct.pack(">I", zlib.crc32(b"IDAT\x78"))


NO_IMAGES = {
    "empty": (b"", "the image cannot be decoded"),
    "only the start": (b"\x89PNG\r\n\x1a\nno more", "the image cannot be decoded"),
    "another format": (b"GIF89a", "the image cannot be decoded"),
    "PDF": (RawPdf().data(), "the image cannot be decoded"),
    "no rows": (png(100, 100), "page 1 was left out: the image cannot be decoded"),
    "large": (
        png(15_000, 15_000),
        "page 1 was left out: the image has 225,000,000 pixels, more than the limit of 200,000,000",
    ),
    "huge": (png(2**31 - 1, 2**31 - 1), "the image cannot be decoded (Image size"),
}


def test_files_that_are_no_images_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.setattr("llama_index_contextual.readers.documents.engine_for", lambda *_: ENGINE)
    for name, (data, _) in NO_IMAGES.items():
        write(tmp_path / f"{name}.png", data)
    reasons = {Path(skipped.path).stem: skipped.reason for skipped in read_documents(tmp_path).skipped}
    assert reasons.keys() == NO_IMAGES.keys()
    assert [name for name, (_, reason) in NO_IMAGES.items() if not reasons[name].startswith(reason)] == []


def test_the_words_of_tesseract_are_joined_to_lines_and_split_into_cells() -> None:
    head = "level page_num block_num par_num line_num word_num left top width height conf text".replace(" ", "\t")
    words = [(100, 50, "96", "Cost"), (155, 30, "94", "of"), (190, 60, "90", 'sales"'), (500, 70, "60", "(713.4)")]
    rows = [
        f"5\t1\t1\t1\t1\t{n}\t{x}\t200\t{width}\t20\t{conf}\t{text}" for n, (x, width, conf, text) in enumerate(words)
    ]
    boxes, is_sideways = _reading_of_tsv("\n".join([head, "4\t1\t1\t1\t1\t0\t100\t200\t470\t20\t-1\t", *rows]))
    assert [row[:2] for row in boxes] == [['Cost of sales"', 0.933], ["(713.4)", 0.6]]
    assert boxes[0][2:] == [100, 196, 250, 196, 250, 224, 100, 224]
    assert not is_sideways
