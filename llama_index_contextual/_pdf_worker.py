"""Child process of `PdfWorker`: each line of JSON on stdin is a request, and each line of JSON on stdout an answer.

While a PDF is read, lines of the form `PAGES_READ` come before the answer.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.base import ParsedFile, ReadLimits
from llama_index_contextual.readers.pdf.process import NEXT_FILE, PAGES_READ

REPORT_SECONDS = 0.25  # between two reports of the pages read


def main() -> None:
    """Answer requests to parse files."""
    serve(answer)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Report that the process is ready, then answer requests until stdin ends.

    Args:
        answer: Returns the answer to a request.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # the last line on stderr should say why the process ended
    max_memory = int(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not mix with answers
    if isinstance(answers, TextIOWrapper):
        answers.reconfigure(encoding="utf-8", errors="surrogatepass")
    limit_memory(max_memory)
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        sys.stderr.write(f"\n{NEXT_FILE}")
        sys.stderr.flush()
        try:
            text = json.dumps(answer(json.loads(line)), ensure_ascii=False)
        except MemoryError:
            text = json.dumps({"reason": f"parsing needs more than {max_memory:,} bytes of memory"})
        answers.write(text + "\n")
        answers.flush()


def limit_memory(size: int) -> None:
    """Limit the address space of this process to `size` bytes, if the system supports it."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, ValueError, OSError):  # Windows lacks the module, macOS refuses this limit
        return


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the parsed file, or the reason why it cannot be read."""
    try:
        options = request["options"]
        if options.get("scans") is not None:
            options["scans"] = dict(options["scans"])  # JSON has no numbers as keys
        if request["reader"] == "pdf" and not options.get("scans"):  # with scans, the pages are read a second time
            options["on_page"] = page_reporter()
        parsed = _reader(request["reader"])(Path(request["path"]), limits=ReadLimits(**request["limits"]), **options)
    except ReadError as error:
        return {"reason": error.reason}
    return {
        "text": parsed.text,
        "map": parsed.map.to_metadata(),
        "title": parsed.title,
        "warnings": parsed.warnings,
        "metadata": dict(parsed.metadata),
        "digest": parsed.digest,
        "scanned": parsed.scanned,
    }


def page_reporter() -> Callable[[int, int], None]:
    """Return a function that reports pages read and their total: the first time, the last time, and now and then."""
    due = 0.0

    def report(done: int, total: int) -> None:
        nonlocal due
        if sys.__stdout__ is not None and ((now := time.monotonic()) >= due or done == total):
            due = now + REPORT_SECONDS
            sys.__stdout__.write(PAGES_READ.format(done, total))
            sys.__stdout__.flush()

    return report


def _reader(name: str) -> Callable[..., ParsedFile]:
    """Return a reader; its modules are loaded when the first file needs them."""
    if name == "office":
        from llama_index_contextual.readers.office import read_office

        return read_office
    from llama_index_contextual.readers.pdf.reader import read_pdf

    return read_pdf


if __name__ == "__main__":
    main()
