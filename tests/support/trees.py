"""Folders of small files, and what `discover` says about them."""

from __future__ import annotations

from pathlib import Path

from llama_index_contextual.readers import ReadResult
from llama_index_contextual.readers.files import Discovery


def write(path: Path, content: str | bytes) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def contracts_folder(parent: Path) -> Path:
    """Make a folder with two subfolders and four documents."""
    root = parent / "contracts"
    for name in ("b.md", "a.txt", "2023/c.pdf", "2023/q1/d.TXT"):
        write(root / name, name)
    return root


def ids(found: Discovery) -> list[str]:
    """Return the document ids."""
    return [ref.doc_id for ref in found.files]


def reasons(found: Discovery | ReadResult) -> dict[str, str]:
    """Return why files were skipped, by their name."""
    return {Path(skipped.path).name: skipped.reason for skipped in found.skipped}
