"""Operations on files: written data is synced, and replacements are atomic."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

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


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, (1 << 20) + 1])
def test_hashes_cover_the_whole_content(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    assert files.xxh3(tmp_path / "a") == xxhash.xxh3_128(content).hexdigest()
    assert files.sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
