"""Operations on files: written data is synced, and replacements are atomic."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from unittest import mock

import pytest
import xxhash

from llama_index_contextual.index import files
from tests.integration.index.file_spy import FileSpy


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSpy:
    system = FileSpy(tmp_path)
    monkeypatch.setattr(files, "system", system)
    return system


def test_a_file_is_synced_after_it_was_written(tmp_path: Path, spy: FileSpy) -> None:
    files.write(tmp_path / "a", b"content")
    assert spy.calls == [("write", "a"), ("sync", "a")]
    assert (tmp_path / "a").read_bytes() == b"content"


def test_a_replacement_is_synced_before_its_rename_and_the_directory_after(tmp_path: Path, spy: FileSpy) -> None:
    (tmp_path / "a").write_bytes(b"old")
    files.replace(tmp_path / "a", b"new")
    assert spy.calls == [("write", "a.new"), ("sync", "a.new"), ("rename", "a"), ("sync_directory", ".")]
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("at", range(4))
def test_a_failed_replacement_leaves_the_old_or_the_new_content(at: int, tmp_path: Path, spy: FileSpy) -> None:
    (tmp_path / "a").write_bytes(b"old")
    spy.fail_at = at
    with pytest.raises(OSError, match="Input/output error"):
        files.replace(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == (b"old" if at < 3 else b"new")


def test_a_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(files.System):
        def write(self, path: Path, fill: object) -> None:
            path.write_bytes(b"con")

    monkeypatch.setattr(files, "system", Short())
    with pytest.raises(OSError, match="only 3 of 7 bytes were written") as caught:
        files.write(tmp_path / "a", b"content")
    assert caught.value.errno == errno.EIO


def test_a_rename_is_repeated_while_windows_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    refusals = [sharing_violation(5), sharing_violation(32)]
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if refusals:
            raise refusals.pop()
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    files.replace(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EIO, "I/O error")])
def test_other_failures_of_a_rename_are_reported_at_once(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Path] = []

    def replace(source: Path, target: Path) -> None:
        calls.append(target)
        raise error

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match=str(error.strerror)):
        files.rename(tmp_path / "a", tmp_path / "b")
    assert len(calls) == 1


def test_a_rename_that_windows_keeps_refusing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.0)
    monkeypatch.setattr(os, "replace", mock.Mock(side_effect=sharing_violation(32)))
    with pytest.raises(PermissionError, match="another process"):
        files.rename(tmp_path / "a", tmp_path / "b")


def sharing_violation(number: int) -> PermissionError:
    """Return the error that Windows raises for a file that another program has open."""
    error = PermissionError(errno.EACCES, "The file is being used by another process")
    error.winerror = number  # type: ignore[attr-defined,unused-ignore]
    return error


@pytest.mark.durable
@pytest.mark.parametrize("is_supported", [True, False])
def test_a_sync_reaches_the_disk_on_macos(is_supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows has no fcntl")
    full, plain = mock.Mock(side_effect=None if is_supported else OSError(errno.ENOTSUP, "")), mock.Mock()
    monkeypatch.setattr(files, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", plain)
    files.write(tmp_path / "a", b"content")
    assert [call.args[1] for call in full.call_args_list] == [51]
    assert plain.call_count == (not is_supported)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, (1 << 20) + 1])
def test_hashes_cover_the_whole_content(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    assert files.xxh3(tmp_path / "a") == xxhash.xxh3_128(content).hexdigest()
    assert files.sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
