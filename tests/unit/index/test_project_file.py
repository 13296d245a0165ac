"""`project.json` and the lock of the single writer."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import FormatError, ProjectError, ProjectLockedError, ProjectNotFoundError
from llama_index_contextual.index.project_file import read_config, scratch, scratch_directory, write_config, write_lock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "reports").mkdir()
    write_config(tmp_path / "reports", ProjectConfig.local(chunk_size=512))
    return tmp_path / "reports"


def rewrite(directory: Path, **changes: Any) -> None:
    raw = json.loads((directory / "project.json").read_bytes())
    content = {key: value for key, value in {**raw, **changes}.items() if value is not ...}
    (directory / "project.json").write_text(json.dumps(content), encoding="utf-8")


def test_settings_may_be_changed_by_hand_once_their_checksum_is_removed(directory: Path) -> None:
    changed = ProjectConfig.local(chunk_size=256).model_dump()
    rewrite(directory, config=changed)
    with pytest.raises(ProjectError, match=r"if it was changed by hand, remove its 'xxh3', otherwise restore the file"):
        read_config(directory)
    rewrite(directory, xxh3=...)
    assert read_config(directory).chunk_size == 256
    rewrite(directory, config={**changed, "chunk_size": 0})
    with pytest.raises(ProjectError, match=r"reports/project.json: Setting 'chunk_size' cannot be 0"):
        read_config(directory)
    rewrite(directory, config={**changed, "colour": "red"})
    with pytest.raises(ProjectError, match=r"Unknown setting 'colour'"):
        read_config(directory)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"format": 1}'])
def test_a_damaged_settings_file_is_an_error_with_advice(content: bytes, directory: Path) -> None:
    (directory / "project.json").write_bytes(content)
    with pytest.raises(ProjectError, match=r"reports/project.json is damaged \(\w+\): restore it, or delete it"):
        read_config(directory)


def test_a_project_of_a_newer_release_is_refused(directory: Path) -> None:
    rewrite(directory, format=2)
    with pytest.raises(FormatError, match=r"reports/project.json has format 2, this release reads up to 1: upgrade"):
        read_config(directory)


def test_a_project_from_before_the_first_release_is_refused_and_its_contexts_can_be_taken_along(
    directory: Path,
) -> None:
    content = json.loads((directory / "project.json").read_bytes())
    (directory / "project.json").write_text(json.dumps({"format_version": 2, "config": content["config"]}))
    with pytest.raises(
        FormatError, match=r"^reports/project.json was written before the first release: export"
    ) as info:
        read_config(directory)
    assert info.value.remedy is not None
    assert "`ledger import`" in info.value.remedy.command_line


def test_only_one_thread_or_process_writes_at_a_time(directory: Path) -> None:
    refused: list[str] = []

    def try_to_write() -> None:
        try:
            with write_lock(directory):
                refused.append("not refused")
        except ProjectLockedError as error:
            refused.append(str(error))

    with write_lock(directory):
        thread = threading.Thread(target=try_to_write)
        thread.start()
        thread.join()
    assert refused[0].startswith("Another process is writing to project 'reports': wait until it has finished; ")
    assert "wait=SECONDS" in refused[0]
    try_to_write()
    assert refused[1:] == ["not refused"]


def test_remains_of_a_killed_comparison_are_removed_by_the_next_writer(directory: Path) -> None:
    left = scratch_directory(directory) / "1" / "versions"
    left.mkdir(parents=True)
    (left / "half").write_text("text of a document")
    with write_lock(directory):
        assert not scratch_directory(directory).exists()


def test_the_workspace_of_a_running_comparison_is_not_removed(directory: Path) -> None:
    with scratch(directory) as place:
        (place / "1").mkdir()
        with write_lock(directory):
            assert (place / "1").exists()
        with (
            pytest.raises(ProjectLockedError, match="Another process is comparing variants of project 'reports'"),
            scratch(directory),
        ):
            pass
    assert not scratch_directory(directory).exists()


def test_locking_a_deleted_project_does_not_recreate_it(tmp_path: Path) -> None:
    with (
        pytest.raises(ProjectNotFoundError, match=r"'gone' no longer exists: it was deleted or moved"),
        write_lock(tmp_path / "gone"),
    ):
        pass
    assert not (tmp_path / "gone").exists()
