"""Pictures in Office files and emails: their text is read by OCR, or a warning says that it was not."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from docx import Document
from PIL import Image
from pptx import Presentation

from llama_index_contextual.readers import ocr, read_documents
from llama_index_contextual.readers.files import FileAccount, FileSource, ReadLimits
from llama_index_contextual.readers.ocr import OcrEngine, PictureFile
from llama_index_contextual.readers.pictures import pictures_of
from tests.integration.readers import ocr_child
from tests.integration.readers.office_files import saved, workbook
from tests.support.pdf_files import lines, pdf_of
from tests.support.trees import write

SCAN = b"q 600 0 0 800 0 0 cm BI /W 1 /H 1 /CS /G /BPC 8 ID \x80 EI Q"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the process that runs an engine; it reads a picture as its number."""
    monkeypatch.setattr(ocr, "CHILD", ocr_child.NAME)
    engine = OcrEngine("rapidocr", "3.10.0")
    monkeypatch.setattr("llama_index_contextual.readers.documents.engine_for", lambda *_: engine)


def picture(seed: int, *, size: tuple[int, int] = (200, 120), kind: str = "PNG", frames: int = 1) -> bytes:
    images = []
    for frame in range(frames):
        image = Image.new("L", size, 255)
        image.putpixel((random.Random(seed).randrange(size[0]), frame), 0)
        images.append(image)
    file = io.BytesIO()
    more: dict[str, Any] = {"save_all": True, "append_images": images[1:]} if frames > 1 else {}
    images[0].save(file, kind, **more)
    return file.getvalue()


def letter() -> bytes:
    document = Document()
    document.add_heading("Lease", 1)
    document.add_paragraph("Before.")
    document.add_picture(io.BytesIO(picture(1)))
    document.add_picture(io.BytesIO(picture(2, size=(20, 20))))  # an icon
    table = document.add_table(2, 2)
    for at, text in enumerate(("Plan", "Page", "North")):
        table.cell(at // 2, at % 2).text = text
    table.cell(1, 1).paragraphs[0].add_run().add_picture(io.BytesIO(picture(3)))
    document.add_picture(io.BytesIO(picture(1)))  # again
    document.add_paragraph("After.")
    return saved(document)


def slides() -> bytes:
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    slide.shapes.title.text = "Scan"
    slide.shapes.add_picture(io.BytesIO(picture(1)), 0, 0)
    slide.shapes.add_picture(io.BytesIO(picture(2, kind="JPEG")), 0, 100)
    return saved(presentation)


def sheets() -> bytes:
    from openpyxl.drawing.image import Image as SheetImage

    book = workbook(S=[["text"]])
    book["S"].add_image(SheetImage(io.BytesIO(picture(1))), "B2")
    return saved(book)


def mail() -> bytes:
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("See the scans.")
    message.add_attachment(picture(1), maintype="image", subtype="png", filename="lease.png")
    message.add_attachment(picture(2), maintype="image", subtype="png", filename="inline.png", cid="<x>")
    message.add_attachment(picture(4, kind="TIFF", frames=2), maintype="image", subtype="tiff", filename="fax.tif")
    message.add_attachment(pdf_of([SCAN]).data(), maintype="application", subtype="pdf", filename="scan.pdf")
    return message.as_bytes()


FILES = {"a.docx": letter, "a.pptx": slides, "a.xlsx": sheets, "a.eml": mail}


def numbers(name: str) -> dict[str, int]:
    path, data = Path(name), FILES[name]()
    source = FileSource(path, data, FileAccount(path, len(data), ReadLimits()))
    return {picture.key: number for number, picture in enumerate(pictures_of(source), 1)}


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.docx", "# Lease\n\nBefore.\n\n{1}\n\nPlan  Page\nNorth  {2}\n\nAfter.", 2),
        ("a.pptx", "# Scan\n\n{1}\n\n{2}", 2),
        ("a.xlsx", "# S\n\ntext\n\n{1}", 1),
        (
            "a.eml",
            "From: ada@example.org\n\nSee the scans.\n\n# Attachment: lease.png\n\n{1}\n\n# Attachment: inline.png\n\n"
            "{2}\n\n# Attachment: fax.tif\n\n{3}\n{4}\n\n# Attachment: scan.pdf\n\n{5}",
            5,
        ),
    ],
)
def test_the_text_of_a_picture_stands_where_the_picture_does(
    child: None, tmp_path: Path, name: str, text: str, count: int
) -> None:
    write(tmp_path / name, FILES[name]())
    result = read_documents([tmp_path / name])
    (document,) = result.documents
    assert document.text == text.format(*(f"The text of page {n}." for n in range(6)))
    assert result.warnings[0].message.startswith(f"{count} picture")
    assert "read by OCR (confidence 0." in result.warnings[0].message


def test_the_text_of_a_picture_in_a_page_header_is_read(child: None, tmp_path: Path) -> None:
    document = Document()
    document.add_paragraph("Rent.")
    header = document.sections[0].header.paragraphs[0].add_run("File: ")
    header.add_picture(io.BytesIO(picture(1)))
    write(tmp_path / "a.docx", saved(document))
    (read,) = read_documents([tmp_path / "a.docx"]).documents
    assert read.text == "Rent.\n\nPage header: File: The text of page 1."


@pytest.mark.parametrize("name", FILES)
def test_without_an_engine_a_warning_counts_the_pictures(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, FILES[name]())
    result = read_documents([tmp_path / name], ocr=None)
    count = len(numbers(name))
    verb, them = ("was", "it") if count == 1 else ("were", "them")
    noun = "picture" if count == 1 else "pictures"
    assert [warning.message for warning in result.warnings] == [
        f"{count} {noun} {verb} not read: set `ocr` to 'auto' to have {them} read by OCR"
    ]


def test_a_document_of_pictures_only_is_skipped_with_what_to_do(tmp_path: Path) -> None:
    document = Document()
    document.add_picture(io.BytesIO(picture(1)))
    write(tmp_path / "a.docx", saved(document))
    (skipped,) = read_documents([tmp_path / "a.docx"], ocr=None).skipped
    advice = "set `ocr` to 'auto' to have them read by OCR, and ingest it again"
    assert skipped.reason == f"has pictures but no text: {advice}"


def test_a_picture_that_cannot_be_read_is_reported_and_the_rest_is_read(child: None, tmp_path: Path) -> None:
    document = Document()
    for seed in range(3):
        document.add_paragraph(f"Text {seed}.")
        document.add_picture(io.BytesIO(picture(seed)))
    write(tmp_path / "fails.docx", saved(document))
    result = read_documents([tmp_path / "fails.docx"])
    assert "Text 2." in result.documents[0].text
    assert [warning.message for warning in result.warnings][-1] == "picture 3 was left out: pdfium cannot draw it"


@pytest.mark.parametrize("name", FILES)
def test_the_process_for_ocr_draws_every_picture(name: str) -> None:
    path, data = Path(name), FILES[name]()
    file = PictureFile(FileSource(path, data, FileAccount(path, len(data), ReadLimits())))
    assert file.page_count == len(numbers(name)) > 0
    for index in range(file.page_count):
        image, _ = file.draw(index, 72, 1_000_000, "L")
        assert image.width >= 80


def test_damaged_attachments_are_reported(tmp_path: Path) -> None:
    message = EmailMessage()
    message["From"] = "ada@example.org"
    message.set_content("text")
    for name, data in (("a.png", b"\x89PNG broken"), ("b.jpg", b"\xff\xd8\xff"), ("c.pdf", b"%PDF-1.4 broken")):
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    message.add_attachment(pdf_of([lines(["A page"])]).data(), maintype="application", subtype="pdf", filename="d.pdf")
    write(tmp_path / "a.eml", message.as_bytes())
    result = read_documents([tmp_path / "a.eml"], ocr=None)
    assert result.documents[0].text == "From: ada@example.org\n\ntext\n\n# Attachment: d.pdf\n\nA page"
    other, pictures = (warning.message for warning in result.warnings)
    assert other.startswith("attachment 'c.pdf' was left out")
    assert pictures.startswith("2 pictures are damaged and left out (attachment 'a.png'; attachment 'b.jpg')")


def damaged(data: bytes, pattern: str) -> bytes:
    """Return an Office file in which each picture with this pattern in its name has lost its header."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            is_picture = "/media/" in name and pattern in name
            target.writestr(name, content[:4] + bytes(20) + content[24:] if is_picture else content)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "make", "place"),
    [("a.docx", letter, "after 'Before.'"), ("a.pptx", slides, "slide 1"), ("a.xlsx", sheets, "sheet 'S'")],
)
@pytest.mark.usefixtures("child")
def test_a_damaged_picture_is_reported_with_its_place(
    tmp_path: Path, name: str, make: Callable[[], bytes], place: str
) -> None:
    write(tmp_path / name, damaged(make(), "image1."))
    warnings = [warning.message for warning in read_documents([tmp_path]).warnings]

    assert f"1 picture is damaged and left out ({place}): insert it again" in warnings
