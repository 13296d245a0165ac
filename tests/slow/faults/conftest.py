"""After each test: every project is sound, no file is open, and no files are left over. fsync is free here."""

from __future__ import annotations

import os

import pytest

from tests.slow.faults.cases import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The scenarios, prepared once."""
    return Bench(tmp_path_factory.mktemp("faults"))


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
