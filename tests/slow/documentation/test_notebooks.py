"""Executed notebooks are compared with the saved ones: a changed output is noticed, a time, path or id is not."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.examples import script

pytest.importorskip("nbclient", reason='needs the extra: pip install "llama-index-contextual[dev-all]"')
pytest.importorskip("ipykernel", reason='needs the extra: pip install "llama-index-contextual[dev-all]"')

from nbformat import NotebookNode, from_dict, write


def notebook(source: str, *outputs: dict[str, Any]) -> NotebookNode:
    """Return a notebook of one cell."""
    cell = {"id": "one", "cell_type": "code", "source": source, "metadata": {}, "execution_count": None}
    cells = [{**cell, "outputs": [*outputs]}]
    return from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for the notebooks of a temporary folder."""
    module = script("run_notebooks")
    monkeypatch.setattr(module, "EXAMPLES", tmp_path)
    for key in (*module.KEYS, "PYTHONWARNINGS"):
        monkeypatch.setenv(key, "any")
    return module


SOURCE = """
import time, uuid
print("nDCG@10 is 80.1")
print("after", time.perf_counter(), "s in", f"/tmp/{uuid.uuid4().hex}", uuid.uuid4(), object())
"""


def test_a_changed_output_is_noticed_and_a_time_path_or_id_is_not(
    runner: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "01_first.ipynb"
    write(notebook(SOURCE), path)
    assert runner.main([]) == 0
    saved = path.read_text(encoding="utf-8")
    assert "nDCG@10 is 80.1" in saved
    assert runner.main(["--check"]) == 0
    path.write_text(saved.replace('nDCG@10 is 80.1\\n"', 'nDCG@10 is 79.9\\n"'), encoding="utf-8")
    changed = path.read_text(encoding="utf-8")
    assert changed != saved
    capsys.readouterr()
    assert runner.main(["--check", "01_first"]) == 1
    printed = capsys.readouterr().out
    assert "--- cell 1, saved" in printed
    assert "\n-nDCG@10 is 79.9\n+nDCG@10 is 80.1\n" in printed
    assert path.read_text(encoding="utf-8") == changed
