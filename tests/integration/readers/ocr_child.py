"""Stands in for the child process of `OcrReader`: a page is read as its number, and a file does as it is called."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import xxhash

NAME = "tests.integration.readers.ocr_child"
PAGES = 5
SPENT = "OCR_CHILD_SPENT"  # environment variable: refuse to read, as if it cost something


def answer(request: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the answer to a request about a file."""
    if "open" in request:
        return {"pages": PAGES, "digest": xxhash.xxh3_128_hexdigest(file.read_bytes())}
    if "draw" in request:
        return {"image": f"{file.name} {request['draw']}"}
    if "read" not in request:
        return {}
    if os.environ.get(SPENT):
        return {"reason": "it was read a second time"}
    number = request["read"] + 1
    if file.stem == "crashes" and number == 3:
        sys.stderr.write("Traceback\nRuntimeError: no paper\n")
        sys.stderr.flush()
        os._exit(3)
    if file.stem == "hangs" and number == 3:
        time.sleep(3600)
    if file.stem == "fails" and number == 3:
        return {"reason": "pdfium cannot draw it"}
    box = [f"The text of page {number}.", 0.5 if number == 4 else 0.9, 100, 100, 500, 100, 500, 130, 100, 130]
    return {"width": 600, "height": 800, "dpi": 72, "boxes": [] if file.stem == "photo" else [box]}


def main() -> None:
    """Answer requests until standard input ends."""
    file = Path()
    for line in sys.stdin:
        request = json.loads(line)
        file = Path(request.get("open", file))
        sys.stdout.write(json.dumps(answer(request, file)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
