"""Publishing: a version becomes live as a whole or not at all, and the live version is never removed."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.index import files, part_writer, versions
from llama_index_contextual.index.manifest import FAISS_FILE, FileEntry
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.index.versions import current_name, leftovers, version_names
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.index.file_spy import FileSpy
from tests.support.models import CountingEmbedding


def note(number: int) -> Document:
    return Document(id_="note", text=f"Note number {number} about iron.")


@pytest.fixture
def small(manager: ProjectManager) -> Project:
    """An empty project that keeps as few versions as possible."""
    return manager.create("small", ProjectConfig.local(keep_versions=2), embed_model=CountingEmbedding())


@pytest.fixture
def spy(small: Project, monkeypatch: pytest.MonkeyPatch) -> FileSpy:
    system = FileSpy(small.directory)
    monkeypatch.setattr(files, "system", system)
    return system


# ---- order ---------------------------------------------------------------------------------------------------------


def test_a_version_is_synced_verified_and_renamed_before_it_is_live(
    small: Project, spy: FileSpy, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = part_writer.PartWriter._check

    def check(writer: part_writer.PartWriter, described: Mapping[str, FileEntry]) -> None:
        spy.calls.append(("verify", writer.directory.name))
        real(writer, described)

    monkeypatch.setattr(part_writer.PartWriter, "_check", check)
    small.ingest([note(1)])
    calls = spy.calls
    part, version = "parts/p000001.building", "versions/v000001.building"

    def at(*call: str) -> int:
        return len(calls) - 1 - calls[::-1].index(call)  # type: ignore[arg-type]

    contents = [
        path.relative_to(small.directory / "parts" / "p000001").as_posix()
        for path in files.walk(small.directory / "parts" / "p000001")
    ]
    assert FAISS_FILE in contents
    order = [
        max(at("sync", f"{part}/{name}") for name in contents),
        max(at("sync_directory", part), at("sync_directory", f"{part}/bm25")),
        calls.index(("verify", "p000001.building")),
        calls.index(("rename", "parts/p000001")),
        at("sync_directory", "parts"),
        calls.index(("write", f"{version}/manifest.json")),
        at("sync", f"{version}/manifest.json"),
        at("sync_directory", version),
        calls.index(("rename", "versions/v000001")),
        at("sync_directory", "versions"),
        calls.index(("write", "CURRENT.new")),
        calls.index(("sync", "CURRENT.new")),
        calls.index(("rename", "CURRENT")),
        at("sync_directory", "."),
    ]
    assert order == sorted(order)
    after_check = calls[calls.index(("verify", "p000001.building")) :]
    assert not [call for call in after_check if call[0] in ("write", "let_write") and "parts" in call[1]]


# ---- old versions --------------------------------------------------------------------------------------------------


def test_after_a_rollback_the_formerly_live_version_is_kept(small: Project) -> None:
    for number in (1, 2):
        small.ingest([note(number)])
    assert small.rollback() == "v000001"
    assert small.read("note") == note(1).text
    small.ingest([note(3)])
    assert current_name(small.directory) == "v000003"
    assert "v000001" in version_names(small.directory)
    assert small.rollback("v000001") == "v000001"
    small.ingest([note(4)])
    assert {"v000001", "v000004"} <= set(version_names(small.directory))


def test_a_rollback_needs_an_existing_sound_version(small: Project) -> None:
    small.ingest([note(1)])
    with pytest.raises(InputError, match=r"There is no version before the live one; versions: v000001"):
        small.rollback()
    with pytest.raises(InputError, match=r"There is no version v000009; versions: v000001"):
        small.rollback("v000009")
    with pytest.raises(InputError, match=r"There is no version ../other"):
        small.rollback("../other")
    small.ingest([note(2)])
    (small.directory / "parts" / "p000001" / "docstore.sqlite").write_bytes(b"damaged")
    with pytest.raises(CorruptVersionError, match=r"parts/p000001/docstore.sqlite has 7 bytes"):
        small.rollback()
    assert current_name(small.directory) == "v000002"


def test_a_version_with_missing_chunks_is_never_published(small: Project, monkeypatch: pytest.MonkeyPatch) -> None:

    small.ingest([note(1)])
    monkeypatch.setattr(NodeTable, "add", lambda *_: None)
    with pytest.raises(CorruptVersionError):
        small.ingest([Document(id_="other", text="Lost.")])
    assert current_name(small.directory) == "v000001"
    assert leftovers(small.directory) == []


@pytest.mark.parametrize(("refusals", "is_windows", "attempts"), [(2, True, 3), (4, True, 4), (2, False, 1)])
def test_current_is_opened_again_if_windows_refuses_it_while_it_is_replaced(
    refusals: int, is_windows: bool, attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.write_current(tmp_path, "v000001")
    real, opened = os.open, list[object]()

    def refuse(path: Any, *arguments: Any) -> int:
        opened.append(path)
        if len(opened) <= refusals:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments)

    monkeypatch.setattr(versions, "_WINDOWS", is_windows)
    monkeypatch.setattr(versions, "_ATTEMPTS", 3)
    monkeypatch.setattr(os, "open", refuse)
    with nullcontext() if refusals < attempts else pytest.raises(PermissionError):
        assert versions.current_name(tmp_path) == "v000001"
    assert len(opened) == attempts
