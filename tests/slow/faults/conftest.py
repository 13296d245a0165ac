"""After each test: every project is sound, no file is open, and no files are left over. fsync is free here."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_index_contextual.storage.current import leftovers
from llama_index_contextual.storage.verify import verify_project
from tests.slow.faults.cases import Bench, open_below


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The scenarios, prepared once."""
    return Bench(tmp_path_factory.mktemp("faults"))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(autouse=True)
def _every_project_is_sound_in_the_end(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if getattr(request.module, "LEAVES_DAMAGE", False):
        return
    gc.collect()
    assert open_below(tmp_path) == []
    for file in tmp_path.rglob("project.json"):
        report = verify_project(file.parent)
        assert report.sound, report.problems
        assert leftovers(file.parent) == []
