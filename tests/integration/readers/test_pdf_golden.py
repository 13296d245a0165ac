"""One PDF with everything in it, and what is read from it, to the character.

After a change that is meant, a run of this file with `LLAMA_INDEX_CONTEXTUAL_REGENERATE=1` writes it anew; read the
difference before it is committed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from llama_index_contextual.readers.pdf.reader import PdfEngine, read_pdf
from tests.integration.readers.pdf_sample import sample
from tests.support.source import ROOT

FLAG = "LLAMA_INDEX_CONTEXTUAL_REGENERATE"
PDF = ROOT / "tests" / "data" / "lease.pdf"
GOLDEN = PDF.with_suffix(".pdf.json")


def reading(engine: PdfEngine = "pypdf") -> dict[str, Any]:
    parsed = read_pdf(PDF, engine=engine)
    return {
        "text": parsed.text.split("\n"),
        "page_starts": list(parsed.map.page_starts),
        "page_labels": list(parsed.map.page_labels),
        "headings": [asdict(heading) for heading in parsed.map.headings],
        "title": parsed.title,
        "warnings": list(parsed.warnings),
        "metadata": dict(parsed.metadata),
    }


def test_the_sample_is_read_as_before() -> None:
    if os.environ.get(FLAG):
        PDF.write_bytes(sample())
        GOLDEN.write_text(json.dumps(reading(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    assert reading() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_files_are_not_being_regenerated() -> None:
    assert not os.environ.get(FLAG), f"{FLAG} is set: the golden files were just written, not checked. Unset it."


def test_the_stored_pdf_is_the_one_that_the_code_makes() -> None:
    assert PDF.read_bytes() == sample()


def test_the_other_engine_reads_the_same_words() -> None:
    golden, other = json.loads(GOLDEN.read_text(encoding="utf-8")), reading("pdfium")

    assert sorted(" ".join(other["text"]).split()) == sorted(" ".join(golden["text"]).split())
    assert other["page_labels"] == golden["page_labels"]
    assert other["warnings"] == golden["warnings"]
    assert other["metadata"] == golden["metadata"]
    assert [heading["title"] for heading in other["headings"]] == [heading["title"] for heading in golden["headings"]]
