"""Long histories of sources beyond a folder, with outages: S3, WebDAV, web pages and fsspec's memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import tenacity

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import remote
from tests.support.sources import (
    SECRET,
    RandomSource,
    files_with,
    s3_history,
    sync_history,
    web_history,
    webdav_history,
)

CHANGES = 30
"""Number of changes; `python -m tests.benchmarks.sources` makes 500."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat requests without a pause."""
    monkeypatch.setattr(remote, "RETRYING", remote.RETRYING.copy(wait=tenacity.wait_none()))


@pytest.mark.parametrize(
    ("history", "modules"),
    [(s3_history, ("moto.server", "s3fs")), (webdav_history, ("wsgidav", "webdav4")), (web_history, ())],
)
def test_a_source_is_synced_and_an_outage_removes_nothing(
    manager: ProjectManager,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    history: Callable[[ProjectManager, Path, int, int], list[str]],
    modules: tuple[str, ...],
) -> None:
    for module in modules:
        pytest.importorskip(module, reason='needs the extra: pip install "llama-index-contextual[dev-all]"')
    caplog.set_level(logging.DEBUG, logger="llama_index_contextual")
    assert history(manager, tmp_path, CHANGES, 5) == []
    assert files_with(manager.root, SECRET) == []
    assert SECRET not in caplog.text


def test_memory_is_synced_and_an_outage_removes_nothing(manager: ProjectManager) -> None:
    store = fsspec.filesystem("memory")
    kind = type(store)
    source = RandomSource(
        lambda name, data: store.pipe_file(f"/history/{name}", data), lambda name: store.rm(f"/history/{name}"), seed=7
    )

    @contextlib.contextmanager
    def interrupt(mode: str) -> Iterator[None]:
        def fail(*arguments: Any, **options: Any) -> Any:
            raise TimeoutError("no answer")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "ls" if mode == "refuse" else "_open", fail)
            yield

    assert sync_history(manager, "memory://history", source, changes=CHANGES, interrupt=interrupt) == []
