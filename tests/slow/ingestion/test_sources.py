"""Long histories of sources beyond a folder, with outages: S3, WebDAV and fsspec's memory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config
import pytest
import tenacity

from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import remote
from tests.support.sources import (
    NAMES,
    SECRET,
    RandomSource,
    Relay,
    files_with,
    object_store,
    sync_history,
    webdav_server,
)

CHANGES = 100
"""Number of changes; `python -m tests.benchmarks.sources` makes 500."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat requests without a pause."""
    monkeypatch.setattr(remote, "RETRYING", remote.RETRYING.copy(wait=tenacity.wait_none()))


def interrupted(relay: Relay) -> Callable[[str], contextlib.AbstractContextManager[object]]:
    """Return a context manager that interrupts the connections of a relay."""

    @contextlib.contextmanager
    def interrupt(mode: Any) -> Iterator[None]:
        relay.mode = mode
        try:
            yield
        finally:
            relay.mode = "pass"

    return interrupt


def test_s3_is_synced_and_an_outage_removes_nothing(
    manager: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("moto.server", reason='needs pip install "moto[server]"')
    s3fs = pytest.importorskip("s3fs", reason="needs pip install s3fs")
    caplog.set_level(logging.DEBUG, logger="llama_index_contextual")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    with object_store() as port, Relay(port) as relay:
        settings = {"key": "AKIAEXAMPLE", "secret": SECRET, "config_kwargs": {"retries": {"max_attempts": 0}}}
        client = s3fs.S3FileSystem(**settings, endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
        client.mkdir("bucket")
        endpoint = f"http://127.0.0.1:{relay.port}"
        monkeypatch.setitem(fsspec.config.conf, "s3", {**settings, "endpoint_url": endpoint})
        source = RandomSource(
            lambda name, data: client.pipe_file(f"bucket/docs/{name}", data),
            lambda name: client.rm_file(f"bucket/docs/{name}"),
            seed=5,
        )
        interrupt = interrupted(relay)
        assert sync_history(manager, "s3://bucket/docs", source, changes=CHANGES, interrupt=interrupt) == []
    assert files_with(tmp_path, SECRET) == []
    assert SECRET not in caplog.text


def test_webdav_is_synced_and_an_outage_removes_nothing(
    manager: ProjectManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module, package in (("wsgidav", "wsgidav cheroot"), ("webdav4", "webdav4[fsspec]")):
        pytest.importorskip(module, reason=f"needs pip install {package}")
    caplog.set_level(logging.DEBUG, logger="llama_index_contextual")
    folder = tmp_path / "served"
    (folder / "docs").mkdir(parents=True)

    def put(name: str, data: bytes) -> None:
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    with webdav_server(folder) as port, Relay(port) as relay:
        settings = {"base_url": f"http://127.0.0.1:{relay.port}", "auth": ["me", SECRET]}
        monkeypatch.setitem(fsspec.config.conf, "webdav", settings)
        names = [name for name in NAMES if "#" not in name]  # webdav4 cannot open such files
        source = RandomSource(put, lambda name: (folder / "docs" / name).unlink(), seed=6, names=names)
        interrupt = interrupted(relay)
        assert sync_history(manager, "webdav://docs", source, changes=CHANGES, interrupt=interrupt) == []
    assert files_with(manager.root, SECRET) == []
    assert SECRET not in caplog.text


def test_memory_is_synced_and_an_outage_removes_nothing(
    manager: ProjectManager, monkeypatch: pytest.MonkeyPatch
) -> None:
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
