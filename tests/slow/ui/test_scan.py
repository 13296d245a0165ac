"""A passage of a scan is marked at its place on the page, as far as OCR has read it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui.marks import Box
from llama_index_contextual.ui.pages import Originals, PageRenderer
from llama_index_contextual.ui.passage import passage_view

LEXICAL = ProjectConfig.local(mode="lexical", indexes="lexical", chunk_size=60, chunk_overlap=6)
SCANNED = (
    "The pump of the plant runs from the first day of May to September.",
    "The valve is closed on the last day of October and opened in April.",
    "Water for the garden is free for all houses of the lower valley.",
)


@pytest.mark.skipif(not all(map(find_spec, ("rapidocr", "onnxruntime"))), reason="needs the extra `ocr`")
def test_the_sentence_is_marked_on_a_scan(tmp_path: Path) -> None:
    originals = Originals(renderer=PageRenderer(processes=1, seconds=300))
    image = Image.new("L", (1240, 600), "white")
    draw, places = ImageDraw.Draw(image), []
    for at, line in enumerate(SCANNED):
        draw.text((100, 100 + 90 * at), line, font=ImageFont.load_default(36), fill="black")
        places.append(draw.textbbox((100, 100 + 90 * at), line, font=ImageFont.load_default(36)))
    scans = tmp_path / "scans"
    scans.mkdir()
    image.save(scans / "pages.pdf", resolution=150)
    image.save(scans / "image.png")
    image.rotate(-90, expand=True).save(scans / "sideways.png")
    project = ProjectManager(tmp_path / "knowledge").create("one", LEXICAL)
    project.ingest([scans])
    ledger = (project.directory / "ledger.sqlite").read_bytes()
    for name in ("pages.pdf", "image.png", "sideways.png"):
        check_mark_of_scan(project, originals, name, image, places[1])
    assert (project.directory / "ledger.sqlite").read_bytes() == ledger

    (project.directory / "ledger.sqlite").write_bytes(b"damaged")
    view = passage_view(project, scanned_chunk(project, "pages.pdf"), question="valve", originals=originals)
    assert view is not None
    assert view.original.pages[0].note.startswith("This page is an image without a text layer")
    originals.renderer.close()


def scanned_chunk(project: Project, name: str) -> str:
    """Return the id of the only chunk of a scan."""
    (node,) = project.chunks(f"scans/{name}")
    return node.node_id


def check_mark_of_scan(
    project: Project, originals: Originals, name: str, image: Image.Image, place: tuple[float, float, float, float]
) -> None:
    """Check that the second line of a scan is marked at its place in the image, which may be shown turned."""
    question = "When is the valve closed?"
    view = passage_view(project, scanned_chunk(project, name), question=question, originals=originals)
    assert view is not None
    (page,) = view.original.pages
    assert page.marks is not None
    assert page.note == ""
    is_sideways = name == "sideways.png"
    if not is_sideways:  # where each word is a box
        assert (len(page.marks.lines), len(page.marks.mark)) == (len(SCANNED), 1)
    edges = list(zip(*page.marks.mark, strict=True))
    box = Box(*map(min, edges[:2]), *map(max, edges[2:]))
    left, top, right, bottom = place
    if is_sideways:
        left, top, right, bottom = image.height - bottom, left, image.height - top, right
    scale = page.marks.width / (image.height if is_sideways else image.width)
    expected = Box(*(scale * edge for edge in (left, top, right, bottom)))
    assert max(abs(one - other) for one, other in zip(box, expected, strict=True)) < 25 * scale, name
