"""Stands in for the child process of `OcrReader`: a page is read as its number, and a file does as it is called."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import xxhash

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.ocr import CHANGED
from llama_index_contextual.readers.process import answer_requests

NAME = "tests.integration.readers.ocr_child"
PAGES = 5
SPENT = "OCR_CHILD_SPENT"  # environment variable: refuse to read, as if it cost something


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request about a file."""
    file, number = Path(request["path"]), request["page"] + 1
    digest = xxhash.xxh3_128_hexdigest(file.read_bytes())
    if request["digest"] not in (None, digest):
        raise ReadError(str(file), CHANGED)
    if request["what"] == "open":
        return {"pages": PAGES, "digest": digest}
    if request["what"] == "draw":
        return {"image": f"{file.name} {number}"}
    if os.environ.get(SPENT):
        raise ReadError(str(file), "it was read a second time")
    if file.stem == "crashes" and number == 3:
        sys.stderr.write("Traceback\nRuntimeError: no paper\n")
        sys.stderr.flush()
        os._exit(3)
    if file.stem == "hangs" and number == 3:
        time.sleep(3600)
    if file.stem == "fails" and number == 3:
        raise ReadError(str(file), "pdfium cannot draw it")
    box = [f"The text of page {number}.", 0.5 if number == 4 else 0.9, 100, 100, 500, 100, 500, 130, 100, 130]
    return {"width": 600, "height": 800, "dpi": 72, "boxes": [] if file.stem == "photo" else [box]}


if __name__ == "__main__":
    answer_requests(answer)
