"""The child process of `PdfWorker`: reads a request per line from stdin, writes an answer per line to stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import ReadError
from llama_index_contextual.readers.base import ReadLimits
from llama_index_contextual.readers.pdf import read_pdf


def main() -> None:
    """Answer requests until stdin ends."""
    limit_memory(int(sys.argv[1]))
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def limit_memory(size: int) -> None:
    """Limit the address space of this process to `size` bytes, where the system can."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ImportError, ValueError, OSError):  # Windows has no such module, macOS refuses this limit
        return


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the parsed file of a request, or the reason why there is none."""
    try:
        parsed = read_pdf(
            Path(request["path"]),
            password=request["password"],
            limits=ReadLimits(**request["limits"]),
            engine=request["engine"],
        )
    except ReadError as error:
        return {"reason": error.reason}
    return {
        "text": parsed.text,
        "map": parsed.map.to_metadata(),
        "title": parsed.title,
        "warnings": parsed.warnings,
        "metadata": dict(parsed.metadata),
    }


if __name__ == "__main__":
    main()
