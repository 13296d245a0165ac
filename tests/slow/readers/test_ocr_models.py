"""Scanned pages, read by the models of RapidOCR."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from llama_index_contextual.readers import ReadLimits, read_documents
from tests.support.trees import write

PATIENT = ReadLimits(max_seconds=3600)
pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("rapidocr", "onnxruntime", "pypdfium2"))), reason="needs the extra `ocr`"
)


def test_rapidocr_reads_a_skewed_table_and_a_page_that_lies_on_its_side(tmp_path: Path) -> None:
    from tests.support.scans import ROWS, drawn, pdf_of_images, skewed, table

    image = drawn(table, dpi=150)
    image = image.crop((0, 0, image.width, image.height * 2 // 5))
    write(tmp_path / "scan.pdf", pdf_of_images([skewed(image, 1.0)]))
    image.rotate(90, expand=True, fillcolor=255).save(tmp_path / "sideways.png")
    result = read_documents(tmp_path, limits=PATIENT)
    assert result.skipped == []
    for document in result.documents:
        assert document.text.splitlines() == [" ".join(row) for row in ROWS]


def test_rapidocr_reads_chinese(tmp_path: Path) -> None:
    from tests.support.scans import CHINESE, DATA

    write(tmp_path / "scan.png", (DATA / "scan-chinese.png").read_bytes())
    (document,) = read_documents(tmp_path, limits=PATIENT).documents
    # Lines that end in the middle of a sentence are joined without a space.
    assert document.text.replace("\n", "") == "".join(CHINESE)
    assert document.text.splitlines()[0] == CHINESE[0]
