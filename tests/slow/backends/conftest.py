"""Each test runs on each engine that can be tested here, without waiting for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.backends.conftest import site as site  # a fixture
from tests.integration.backends.site import Backend, Site
from tests.slow.backends.backends import BACKENDS


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """An engine."""
    row: Backend = request.param
    if reason := row.missing():
        pytest.skip(reason)
    with row.environment(tmp_path):
        yield row


@pytest.fixture
def twin(site: Site) -> Site:
    """An empty place for the same projects on files."""
    return site.on_files()
