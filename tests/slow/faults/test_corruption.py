"""Damage is detected before a file is parsed, reported, and repaired by the command that `verify` prints."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import faiss
import pytest

from llama_index_contextual.errors import CorruptVersionError, FormatError, ProjectError
from llama_index_contextual.index.manifest import MANIFEST, Manifest
from llama_index_contextual.index.project_file import PROJECT_FILE, read_config
from llama_index_contextual.index.verify import verify_project
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import CURRENT, read_current, version_directory
from tests.slow.faults.cases import NAME, ROOT, create, documents, ingest, load
from tests.slow.faults.damage import damage, damaged_projects

LIVE, BEFORE = "v000002", "v000001"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two versions that no test changes."""
    disk = tmp_path_factory.mktemp("sound")
    for command in (create, ingest(1), ingest(2)):
        command(disk)
    return disk


@pytest.fixture
def copy(disk: Path, tmp_path: Path) -> Path:
    """The directory of a project that may be damaged."""
    shutil.copytree(disk, tmp_path / "disk")
    return tmp_path / "disk" / ROOT / NAME


def ask_in_a_child(folders: Iterable[Path]) -> list[Any]:
    """Return what a process of its own found in each folder; a signal would end it."""
    inputs = json.dumps([str(folder) for folder in folders])
    command = [sys.executable, "-m", "tests.slow.faults.damage"]
    done = subprocess.run(command, input=inputs, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_damage(disk: Path, into: Path, *, bits: int, seed: int) -> tuple[int, list[str]]:
    """Damage every file in every way; return the number of cases and what went unnoticed."""
    results: list[str] = []
    cases = list(damaged_projects(disk, into, live=LIVE, other=BEFORE, bits=bits, seed=seed))
    for name, kind, folder in cases:
        directory = version_directory(folder / ROOT / NAME, LIVE)
        named = name
        try:
            OpenVersion(directory).close()
            results.append(f"{name}, {kind}: opened")
        except CorruptVersionError as error:
            if error.file != named:
                results.append(f"{name}, {kind}: {error.file} is named")
        if [p.file for p in verify_project(folder / ROOT / NAME).problems] != [named]:
            results.append(f"{name}, {kind}: verify does not name it")
    for (name, kind, folder), answer in zip(cases, ask_in_a_child(c[2] for c in cases), strict=True):
        if answer != ["CorruptVersionError", name]:
            results.append(f"{name}, {kind}: answered {answer}")
        shutil.rmtree(folder)
    return len(cases), results


def flips(content: bytes, step: int, bits: Iterable[int]) -> Iterable[bytes]:
    """Yield the content with one bit changed, at every `step`-th byte."""
    for at in range(0, len(content), step):
        for bit in bits:
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            yield bytes(changed)


def check_flips(project_dir: Path, *, step: int, bits: Iterable[int]) -> tuple[int, list[str]]:
    """Flip bits of the three files that no other file vouches for; return the cases and what behaves otherwise."""
    version = version_directory(project_dir, LIVE)
    readers: dict[Path, Callable[[], object]] = {
        project_dir / PROJECT_FILE: lambda: read_config(project_dir),
        project_dir / CURRENT: lambda: read_current(project_dir),
        version / MANIFEST: lambda: Manifest.from_json((version / MANIFEST).read_bytes(), file=MANIFEST),
    }
    result, cases = [], 0
    for path, read in readers.items():
        content, sound = path.read_bytes(), read()
        for changed in flips(content, step, list(bits)):
            cases += 1
            with open(path, "r+b") as file:  # not emptied before: some file systems wait for the disk then
                file.write(changed)
            try:
                same = read() == sound
            except (CorruptVersionError, FormatError, ProjectError):
                continue
            if not same:
                result.append(f"{path.name}: {changed!r}")
        path.write_bytes(content)
    return cases, result


def test_damage_to_any_file_is_reported_and_never_affects_an_answer(disk: Path, tmp_path: Path) -> None:
    cases, result = check_damage(disk, tmp_path, bits=1, seed=1)
    assert result == []
    assert cases > 60


def test_a_changed_bit_of_a_small_file_is_detected_or_harmless(copy: Path) -> None:
    cases, result = check_flips(copy, step=3, bits=(0, 5))
    assert result == []
    assert cases > 500


# ---- what verify prints mends it -----------------------------------------------------------------------------------


def part_of(project_dir: Path, version: str) -> Path:
    """Return the part that was written for a version."""
    return project_dir / "parts" / version.replace("v", "p")


def first_file(part: Path) -> Path:
    return part / "docstore.sqlite"


def spoil(path: Path) -> None:
    damage(path, "bit 0", path, random.Random(0))


def test_a_damaged_live_version_is_replaced_without_paying_again(copy: Path) -> None:
    disk = copy.parent.parent
    paid = load(disk).info().ledger.contexts
    for version in (LIVE, BEFORE):
        spoil(first_file(part_of(copy, version)))
    with pytest.raises(CorruptVersionError, match=r"docstore.sqlite has changed .* `verify\(repair=True\)`"):
        load(disk).ingest(documents(2))
    report = load(disk).ingest(documents(2), replace=True)
    assert report.contexts_paid == 0
    assert load(disk).info().ledger.contexts == paid
    assert load(disk).verify(repair=True).sound


# ---- headers -------------------------------------------------------------------------------------------------------


def test_faiss_allocates_no_more_than_the_file_has(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = part_of(copy, LIVE) / "default__vector_store.faiss"
    real, limits = faiss.read_index, []

    def read(*arguments: Any) -> Any:
        limits.append(faiss.get_deserialization_vector_byte_limit())
        return real(*arguments)

    monkeypatch.setattr(faiss, "read_index", read)
    usual = faiss.get_deserialization_vector_byte_limit()
    assert load(copy.parent.parent).retrieve("alpha", mode="semantic").results
    assert limits == [path.stat().st_size]
    assert faiss.get_deserialization_vector_byte_limit() == usual


# ---- newer formats -------------------------------------------------------------------------------------------------
