"""Operations on files: written data is synced, and replacements are atomic."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest
import xxhash

from llama_index_contextual.storage import files
from tests.integration.storage.file_spy import FileSpy


@pytest.fixture
def spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileSpy:
    system = FileSpy(tmp_path)
    monkeypatch.setattr(files, "system", system)
    return system


def test_a_file_is_synced_after_it_was_written(tmp_path: Path, spy: FileSpy) -> None:
    files.write(tmp_path / "a", b"content")
    assert spy.calls == [("write", "a"), ("sync", "a")]
    assert files.read(tmp_path / "a") == b"content"


def test_a_replacement_is_synced_before_its_rename_and_the_directory_after(tmp_path: Path, spy: FileSpy) -> None:
    (tmp_path / "a").write_bytes(b"old")
    files.replace(tmp_path / "a", b"new")
    assert spy.calls == [("write", "a.new"), ("sync", "a.new"), ("rename", "a"), ("sync_directory", ".")]
    assert os.listdir(tmp_path) == ["a"]
    assert files.read(tmp_path / "a") == b"new"


@pytest.mark.parametrize("at", range(4))
def test_a_failed_replacement_leaves_the_old_or_the_new_content(at: int, tmp_path: Path, spy: FileSpy) -> None:
    (tmp_path / "a").write_bytes(b"old")
    spy.fail_at = at
    with pytest.raises(OSError, match="Input/output error"):
        files.replace(tmp_path / "a", b"new")
    assert files.read(tmp_path / "a") == (b"old" if at < 3 else b"new")


def test_a_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(files.System):
        def write(self, path: Path, fill: object) -> None:
            path.write_bytes(b"con")

    monkeypatch.setattr(files, "system", Short())
    with pytest.raises(OSError, match="only 3 of 7 bytes were written") as caught:
        files.write(tmp_path / "a", b"content")
    assert caught.value.errno == errno.EIO


def test_a_directory_is_created_with_its_parents_and_not_synced(tmp_path: Path, spy: FileSpy) -> None:
    files.make_directory(tmp_path / "a" / "b")
    assert spy.calls == [("make_directory", "a"), ("make_directory", "a/b")]
    files.make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_removing_a_missing_file_is_not_an_error(tmp_path: Path) -> None:
    files.remove(tmp_path / "a")
    files.remove_tree(tmp_path / "b")
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "d").write_bytes(b"")
    files.remove_tree(tmp_path / "b")
    assert os.listdir(tmp_path) == []


def test_a_directory_is_removed_only_if_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"")
    assert not files.remove_if_empty(tmp_path / "a")
    (tmp_path / "a" / "file").unlink()
    assert files.remove_if_empty(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        files.remove_if_empty(tmp_path / "a")


def test_files_are_walked_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/2", "a", "b/1/x", "b/0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    discovery = [path.relative_to(tmp_path).as_posix() for path in files.walk(tmp_path)]
    assert discovery == ["a", "b/0", "b/1/x", "b/2"]


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, (1 << 20) + 1])
def test_hashes_cover_the_whole_content(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    assert files.xxh3(tmp_path / "a") == xxhash.xxh3_128(content).hexdigest()
    assert files.sha256(tmp_path / "a") == hashlib.sha256(content).hexdigest()
