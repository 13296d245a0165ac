"""Damage is detected before a file is parsed, reported, and repaired by the command that `verify` prints."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import pytest
from typer.testing import CliRunner

from llama_index_contextual.errors import ContextualError, CorruptVersionError, FormatError, ProjectError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.check import read_manifest
from llama_index_contextual.storage.current import CURRENT, read_current, version_directory
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
from llama_index_contextual.storage.headers import check_faiss, check_npy
from llama_index_contextual.storage.manifest import MANIFEST, PART_MANIFEST, Manifest
from llama_index_contextual.storage.project_file import PROJECT_FILE, read_config
from llama_index_contextual.storage.verify import verify_project
from llama_index_contextual.storage.version import OpenVersion
from tests.slow.faults.cases import NAME, ROOT, create, documents, ingest, load, manager
from tests.slow.faults.damage import damage, damaged_projects

# What is damaged on purpose stays damaged.
LEAVES_DAMAGE = True

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
        for check in ("xxh3", "sha256"):
            try:
                OpenVersion(directory, check=check).close()  # type: ignore[arg-type]
                results.append(f"{name}, {kind}: opened by {check}")
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
    assert cases > 70


def test_an_undamaged_project_answers_in_a_child_process(disk: Path) -> None:
    ((*answers,),) = ask_in_a_child([disk])
    assert len(answers) == 3
    assert all(texts and all("mark2" in text for text in texts) for texts in answers)


def test_a_changed_bit_of_a_small_file_is_detected_or_harmless(copy: Path) -> None:
    cases, result = check_flips(copy, step=3, bits=(0, 5))
    assert result == []
    assert cases > 500


# ---- what verify prints mends it -----------------------------------------------------------------------------------


def run_remedy(remedy: str, folder: Path) -> None:
    """Run a command that `verify` printed, with the documents' folder for PATHS."""
    from llama_index_contextual.cli.app import app

    words = [str(folder) if word == "PATHS" else word for word in shlex.split(remedy)]
    assert words[0] == "llama-index-contextual"
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output


@pytest.fixture
def keyless(tmp_path: Path) -> tuple[Path, Path]:
    """A project that the command line can ingest into, with two versions, and the folder of its documents."""
    from llama_index_contextual.config import ProjectConfig

    folder = tmp_path / "notes"
    folder.mkdir()
    project = manager(tmp_path).create(NAME, ProjectConfig.local(faiss=False, keep_versions=2))
    for mark in (1, 2):
        (folder / "note.txt").write_text(documents(mark)[0].text, encoding="utf-8")
        project.ingest([folder])
    return project.directory, folder


def part_of(project_dir: Path, version: str) -> Path:
    """Return the part that was written for a version."""
    return project_dir / "parts" / version.replace("v", "p")


def first_file(part: Path) -> Path:
    return part / "docstore.sqlite"


def spoil(path: Path) -> None:
    damage(path, "bit 0", path, random.Random(0))


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda d: spoil(first_file(part_of(d, LIVE))), id="live version"),
        pytest.param(lambda d: spoil(first_file(part_of(d, BEFORE))), id="version before"),
        pytest.param(lambda d: [spoil(first_file(part_of(d, v))) for v in (LIVE, BEFORE)], id="every version"),
        pytest.param(lambda d: (version_directory(d, LIVE) / MANIFEST).unlink(), id="manifest gone"),
        pytest.param(lambda d: shutil.rmtree(version_directory(d, LIVE)), id="live version gone"),
        pytest.param(lambda d: (d / CURRENT).unlink(), id="CURRENT gone"),
        pytest.param(lambda d: (d / CURRENT).write_bytes(b"\xff" * 12), id="CURRENT garbled"),
        pytest.param(lambda d: (d / "ledger.sqlite").write_bytes(b"x" * 5000), id="ledger"),
        pytest.param(lambda d: (d / "versions" / "v000003.building").mkdir(), id="leftover"),
        pytest.param(lambda d: (d / "CURRENT.new").write_bytes(b"v0"), id="leftover file"),
    ],
)
def test_the_command_printed_by_verify_repairs_the_damage(
    keyless: tuple[Path, Path], break_it: Callable[[Path], object]
) -> None:
    project_dir, folder = keyless
    break_it(project_dir)
    problems = verify_project(project_dir).problems
    assert problems
    for _ in range(3):
        if not (problems := verify_project(project_dir).problems):
            break
        run_remedy(problems[0].remedy, folder)
    assert list(problems) == []
    project = manager(project_dir.parent.parent).load(NAME)
    assert project.retrieve("alpha report").results
    (folder / "note.txt").write_text("A third state: gamma.", encoding="utf-8")
    project.ingest([folder])
    assert "gamma" in project.retrieve("gamma")[0].text


def test_a_damaged_live_version_is_rebuilt_without_paying_again(copy: Path) -> None:
    disk = copy.parent.parent
    paid = load(disk).info().ledger.contexts
    for version in (LIVE, BEFORE):
        spoil(first_file(part_of(copy, version)))
    with pytest.raises(CorruptVersionError, match=r"docstore.sqlite has changed .* `rebuild`"):
        load(disk).ingest(documents(2))
    report = load(disk).ingest(documents(2), replace=True)
    assert report.contexts_paid == 0
    assert load(disk).info().ledger.contexts == paid
    assert load(disk).verify(repair=True).sound


def test_a_damaged_old_version_does_not_affect_the_live_one(copy: Path) -> None:
    spoil(first_file(part_of(copy, BEFORE)))
    report = verify_project(copy)
    assert report.sound
    assert [p.harmless for p in report.problems] == [True]
    assert load(copy.parent.parent).retrieve("alpha").results
    with pytest.raises(CorruptVersionError):
        load(copy.parent.parent).rollback()
    assert read_current(copy).live == LIVE
    assert list(load(copy.parent.parent).verify(repair=True).problems) == []


# ---- headers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "value"), [(4, 2**31 - 1), (8, 2**40), (37, 2**40), (4, 0), (12, 2**31 - 1)])
def test_a_faiss_header_that_asks_for_too_much_is_refused_before_faiss_reads_it(
    copy: Path, at: int, value: int
) -> None:
    path = part_of(copy, LIVE) / "default__vector_store.faiss"
    content = bytearray(path.read_bytes())
    size = 4 if at in (4, 12) else 8
    content[at : at + size] = value.to_bytes(size, "little")
    path.write_bytes(content)
    with pytest.raises(CorruptVersionError, match=r"claims to contain"):
        check_faiss(path)
    with pytest.raises(CorruptVersionError):
        UnitFaissVectorStore.from_persist_path(str(path), docstore=SQLiteDocumentStore())


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


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        b"{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }",
        b"(" * 2000,
    ],
)
def test_a_numpy_header_with_a_false_size_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "data.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64)
    with pytest.raises(CorruptVersionError, match=r"data.npy (is|claims)"):
        check_npy(path)


# ---- newer formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"),
    [(PROJECT_FILE, 2), (f"versions/{LIVE}/{MANIFEST}", 3), (f"parts/{LIVE.replace('v', 'p')}/part.json", 3)],
)
def test_files_of_a_newer_release_are_refused_with_a_message(copy: Path, name: str, known: int) -> None:
    path = copy / name
    path.write_text(path.read_text("utf-8").replace(f'"format_version": {known}', f'"format_version": {known + 1}'))
    if path.name == PART_MANIFEST:  # a version names it by its checksum
        directory = version_directory(copy, LIVE)
        manifest = read_manifest(directory)
        (entry,) = manifest.parts
        manifest = replace(manifest, parts=[replace(entry, xxh3=files.xxh3(path))])
        (directory / MANIFEST).write_bytes(manifest.to_json())
    with pytest.raises(FormatError, match=f"has format {known + 1}, this release reads up to {known}: upgrade llama-"):
        load(copy.parent.parent).retrieve("alpha")


def test_a_changed_digit_of_the_format_of_a_part_is_damage(copy: Path) -> None:
    path = part_of(copy, LIVE) / PART_MANIFEST
    path.write_text(path.read_text("utf-8").replace('"format_version": 3', '"format_version": 7'))
    with pytest.raises(CorruptVersionError, match=r"part.json has changed since it was published"):
        load(copy.parent.parent).retrieve("alpha")
    assert set(load(copy.parent.parent).rebuild().rebuilt) == {"doc0", "doc1", "doc2"}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"1", b'"x"', b"{" * 100_000, b"\xff\xfe", b'{"a": 1e999}']
)
def test_invalid_manifests_and_settings_raise_errors_of_the_package(copy: Path, content: bytes) -> None:
    with pytest.raises(CorruptVersionError):
        Manifest.from_json(content, file=MANIFEST)
    (copy / PROJECT_FILE).write_bytes(content)
    with pytest.raises(ContextualError):
        load(copy.parent.parent)
