"""Each test runs on files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.backends.site import FILES, Backend, Site


@pytest.fixture
def backend() -> Backend:
    """The backend."""
    return FILES


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Iterator[Site]:
    """An empty place for projects on the backend; it is empty again in the end."""
    site = Site(tmp_path, backend)
    yield site
    site.delete_all()
    assert site.manager.list() == []
