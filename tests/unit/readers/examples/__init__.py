"""Examples for readers, as text files: `== TITLE` begins a section, and a line `%` separates its blocks."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parent


def sections(name: str, folder: Path = EXAMPLES) -> dict[str, list[str]]:
    """Return the blocks of each section of a file of examples."""
    text = (folder / f"{name}.txt").read_text(encoding="utf-8")
    parts = re.split(r"^== (.*)\n", text, flags=re.MULTILINE)[1:]
    return {
        title: [block.strip("\n") for block in re.split(r"^%$", body, flags=re.MULTILINE)]
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }
