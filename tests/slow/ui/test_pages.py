"""Pages are drawn and marked in processes of their own; whatever a file does, the server goes on."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from llama_index_contextual.errors import ReadError
from llama_index_contextual.index.sources import SourceFile
from llama_index_contextual.readers import content_hash
from llama_index_contextual.ui import pages
from llama_index_contextual.ui.marks import Box
from llama_index_contextual.ui.pages import PageRenderer
from tests.support.pdf_files import RawPdf, encrypted, lines, pdf_of, show
from tests.support.scans import broken_image, pdf_of_images

PATIENCE = 300.0
TEXT = ["The tenant pays the rent on the first day.", "Late payment bears interest."]


@pytest.fixture(scope="module")
def renderer() -> Iterator[PageRenderer]:
    renderer = PageRenderer(processes=1, seconds=PATIENCE, waiting_seconds=PATIENCE)
    yield renderer
    renderer.close()


def source(path: Path, data: bytes) -> SourceFile:
    path.write_bytes(data)
    return SourceFile(path, content_hash(path))


def one_page(entries: bytes = b"", *, content: bytes | None = None) -> bytes:
    pdf = RawPdf()
    pdf.page(lines(TEXT) if content is None else content, entries)
    return pdf.data()


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        (b"/Rotate 90", (800, 600)),
        (b"/Rotate 180", (600, 800)),
        (b"/Rotate 270", (800, 600)),
        (b"/CropBox[40 700 340 790]", (300, 90)),
        (b"/CropBox[40 700 340 790]/Rotate 90", (90, 300)),
        (b"/UserUnit 2", None),
        (b"/MediaBox[-100 -50 500 790]", (600, 840)),
    ],
)
def test_marks_lie_on_the_letters_of_turned_and_cropped_pages(
    tmp_path: Path, renderer: PageRenderer, entries: bytes, size: tuple[int, int] | None
) -> None:
    file = source(tmp_path / "a.pdf", one_page(entries))
    marks = renderer.marks(file, 1, TEXT[0])
    assert size is None or (marks.width, marks.height) == pytest.approx(size)
    image = Image.open(io.BytesIO(renderer.image(file, 1))).convert("L")
    scale = image.width / marks.width
    ink = sum(image.histogram()[:128])
    inside = sum(sum(part.histogram()[:128]) for part in (_part(image, box, scale) for box in marks.lines))
    both = renderer.marks(file, 1, " ".join(TEXT)).lines
    covered = sum(sum(part.histogram()[:128]) for part in (_part(image, box, scale) for box in both))
    assert covered > 0.95 * ink  # there is no other ink on the page
    assert 0.4 * ink < inside < 0.8 * ink  # the first of two lines


def _part(image: Image.Image, box: Box, scale: float) -> Image.Image:
    return image.crop(tuple(round(edge * scale) for edge in box))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "PDF"])
def test_an_image_is_a_page_without_marks(tmp_path: Path, renderer: PageRenderer, kind: str) -> None:
    data = io.BytesIO()
    frame = Image.new("RGB", (320, 160), "white")
    frame.save(data, kind, **({"save_all": True, "append_images": [frame]} if kind == "TIFF" else {}))
    scan = pdf_of_images([Image.new("L", (300, 400), 128)]) if kind == "PDF" else data.getvalue()
    file = source(tmp_path / f"scan.{kind.lower()}", scan)
    marks = renderer.marks(file, 1, TEXT[0])
    assert (marks.has_text, marks.lines, marks.mark) == (False, [], [])
    if kind != "PDF":
        assert (marks.width, marks.height, marks.pages) == (144, 72, 2 if kind == "TIFF" else 1)
        assert Image.open(io.BytesIO(renderer.image(file, marks.pages))).size == (320, 160)


@pytest.mark.parametrize(
    ("name", "data", "number", "reason"),
    [
        ("encrypted.pdf", encrypted("secret"), 1, "the PDF is encrypted, and passwords are not stored"),
        ("broken.pdf", b"%PDF-1.7\nnothing", 1, "the PDF is damaged"),
        ("empty.pdf", b"", 1, "the PDF is damaged"),
        ("broken.png", b"\x89PNG\r\n\x1a\nno", 1, "the image cannot be decoded"),
        ("broken.jpg", broken_image(), 1, "the image cannot be decoded"),
        ("text.tiff", b"Just text", 1, "the image cannot be decoded"),
        *(("a.pdf", one_page(), number, f"the file has 1 pages, and no page {number}") for number in (0, 2, 10**9)),
    ],
)
def test_a_page_that_cannot_be_shown_has_a_reason(
    tmp_path: Path, renderer: PageRenderer, name: str, data: bytes, number: int, reason: str
) -> None:
    file = source(tmp_path / name, data)
    with pytest.raises(ReadError) as caught:
        renderer.image(file, number)
    assert reason in caught.value.reason
    assert renderer.marks(source(tmp_path / "good.pdf", one_page()), 1, TEXT[0]).lines


def test_a_file_that_changes_after_it_was_checked_is_not_shown(tmp_path: Path, renderer: PageRenderer) -> None:
    file = source(tmp_path / "a.pdf", one_page(content=show(50, 700, "Genuine")))
    (tmp_path / "a.pdf").write_bytes(one_page(content=show(50, 700, "Forged")))
    with pytest.raises(ReadError, match="was replaced by another file"):
        renderer.image(file, 1)
    (tmp_path / "a.pdf").unlink()
    with pytest.raises(ReadError, match="cannot be read"):
        renderer.image(SourceFile(file.path, "0" * 32), 1)
    with pytest.raises(ReadError, match="was not found"):
        renderer.image(SourceFile(None, problem="missing"), 1)


@pytest.mark.parametrize(
    "entries", [b"/MediaBox[0 0 0 0]", b"/MediaBox[0 0 1e9 1e9]", b"/MediaBox[5 5 5 900]", b"/CropBox[9 9 1 1]"]
)
def test_a_page_without_a_sensible_size_does_no_harm(tmp_path: Path, renderer: PageRenderer, entries: bytes) -> None:
    file = source(tmp_path / "a.pdf", one_page(entries))
    with contextlib.suppress(ReadError):  # it may be refused
        image = Image.open(io.BytesIO(renderer.image(file, 1)))
        assert image.width * image.height < 20_000_000
        renderer.marks(file, 1, TEXT[0])
    assert renderer.marks(source(tmp_path / "good.pdf", one_page()), 1, TEXT[0]).lines


def test_a_page_with_very_many_letters_is_shown_without_marks(tmp_path: Path, renderer: PageRenderer) -> None:
    many = [f"{number:06}" * 30 for number in range(400)]
    content = b"".join(show(1, 1 + 1.9 * at, text, size=1.8) for at, text in enumerate(many))
    marks = renderer.marks(source(tmp_path / "a.pdf", one_page(content=content)), 1, many[7])
    assert marks.lines == []


def test_the_images_drawn_last_are_kept_up_to_a_size(tmp_path: Path) -> None:
    file = source(tmp_path / "a.pdf", pdf_of([lines(TEXT)] * 3).data())
    renderer = PageRenderer(processes=1)
    size = len(renderer.image(file, 1))
    renderer.close()
    small = PageRenderer(processes=1, cache_bytes=2 * size + 10)
    first = small.image(file, 1)
    assert small.image(file, 1) is first
    small.image(file, 2)
    small.image(file, 3)
    assert small.image(file, 1) is not first
    small.close()


class TestProcesses:
    """What happens to a child process, with one that does what the name of the file says."""

    @pytest.fixture
    def stuck(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageRenderer]:
        monkeypatch.setattr(pages, "CHILD", "tests.integration.ui.stuck_page_child")
        renderer = PageRenderer(processes=1, waiting_seconds=0.2)
        yield renderer
        renderer.close()

    def test_a_page_that_takes_too_long_is_given_up_and_the_next_one_is_drawn(
        self, stuck: PageRenderer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = stuck.image(SourceFile(Path("one.pdf"), "1"), 1)
        with monkeypatch.context() as patch:
            patch.setattr(stuck, "_seconds", 0.1)
            with pytest.raises(ReadError, match=r"took longer than 0\.1 seconds"):
                stuck.image(SourceFile(Path("hangs.pdf"), "2"), 1)
        assert stuck.image(SourceFile(Path("three.pdf"), "3"), 1) != first  # by another process

    def test_a_crash_is_a_reason_and_the_next_page_is_drawn(self, stuck: PageRenderer) -> None:
        with pytest.raises(ReadError, match="crashed"):
            stuck.image(SourceFile(Path("crashes.pdf"), "1"), 1)
        assert stuck.image(SourceFile(Path("two.pdf"), "2"), 1)

    def test_who_waits_for_too_long_is_told_so(self, stuck: PageRenderer) -> None:
        process = int(base64.b64encode(stuck.image(SourceFile(Path("zero.pdf"), "0"), 1)))
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(stuck.image, SourceFile(Path("hangs.pdf"), "1"), 1)
            while not stuck._idle.empty():
                time.sleep(0.001)
            with pytest.raises(ReadError, match="busy with other pages"):
                stuck.image(SourceFile(Path("two.pdf"), "2"), 1)
            os.kill(process, signal.SIGKILL)
            with pytest.raises(ReadError):
                hanging.result()
        assert stuck.image(SourceFile(Path("two.pdf"), "2"), 1)

    def test_requests_of_many_users_are_answered_by_a_few_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pages, "CHILD", "tests.integration.ui.stuck_page_child")
        renderer = PageRenderer(processes=2)
        with ThreadPoolExecutor(8) as pool:
            answers = set(pool.map(lambda at: renderer.image(SourceFile(Path("a.pdf"), str(at)), 1), range(80)))
        assert 1 <= len(answers) <= 2
        pids = [int(base64.b64encode(answer)) for answer in answers]
        assert os.getpid() not in pids
        renderer.close()
