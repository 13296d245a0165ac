"""Finds data that is too large to live in the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def shared_data(name: str) -> Path:
    """Return a folder of `LLAMA_INDEX_CONTEXTUAL_DATA` (default: `../shared/data`), or skip the test without it."""
    folder = Path(os.environ.get("LLAMA_INDEX_CONTEXTUAL_DATA", _DEFAULT)) / name
    if not folder.is_dir():
        pytest.skip(f"needs {name!r} in the folder that LLAMA_INDEX_CONTEXTUAL_DATA names")
    return folder
