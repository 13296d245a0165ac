"""Each test runs on each backend that can be tested here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.backends.backends import BACKENDS, Backend
from tests.integration.backends.site import Site


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """A backend."""
    row: Backend = request.param
    if reason := row.missing():
        pytest.skip(reason)
    with row.environment(tmp_path):
        yield row


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Iterator[Site]:
    """An empty place for projects on the backend; it is empty again in the end."""
    site = Site(tmp_path, backend)
    yield site
    site.delete_all()
    assert site.manager.list() == []


@pytest.fixture
def twin(site: Site) -> Site:
    """An empty place for the same projects on files."""
    return site.on_files()


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
