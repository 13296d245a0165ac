"""`verify`: every damage is found, with the command that mends it; what is harmless is said to be."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.errors import FormatError
from llama_index_contextual.project import Project
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from llama_index_contextual.storage.verify import VerifyReport, repair_project


def found(report: VerifyReport) -> dict[str, str]:
    return {problem.file: problem.remedy for problem in report.problems}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_sound_project_has_no_problem(published: Project) -> None:
    assert published.verify() == VerifyReport(["v000001"], [])
    assert published.verify().sound


def test_a_damaged_live_version_is_mended_by_a_rollback_or_else_by_ingesting_again(
    published: Project, version: Path
) -> None:
    published.ingest([Document(id_="note", text="A note.")])
    flip(version.with_name("v000002") / "docstore.sqlite")
    report = published.verify()
    assert not report.sound
    remedy = f"llama-index-contextual rollback reports --to v000001 --root {published.directory.parent}"
    assert found(report) == {"versions/v000002/docstore.sqlite": remedy}
    assert "has another content than when it was published" in report.problems[0].message

    published.rollback()
    report = published.verify()
    assert report.sound  # the version that answers is sound
    flip(version / "docstore.sqlite")
    report = published.verify()
    assert not report.sound
    assert set(found(report)) == {"versions/v000001/docstore.sqlite", "versions/v000002/docstore.sqlite"}
    assert "ingest reports PATHS --replace" in found(report)["versions/v000001/docstore.sqlite"]


@pytest.mark.parametrize("content", [b"nonsense", None])
def test_a_damaged_manifest_of_an_earlier_version_is_listed_and_the_others_are_too(
    content: bytes | None, published: Project, version: Path
) -> None:
    published.ingest([Document(id_="note", text="A note.")])
    (version / "manifest.json").unlink()
    if content is not None:
        (version / "manifest.json").write_bytes(content)
    old, live = published.versions()
    assert (old.name, old.created, old.documents, old.chunks, old.live) == ("v000001", None, None, None, False)
    assert old.damage is not None
    assert old.damage.startswith("versions/v000001/manifest.json is ")
    assert (live.name, live.documents, live.live, live.damage) == ("v000002", 3, True, None)
    assert "versions/v000001/manifest.json" in found(published.verify())


def test_a_version_of_a_newer_release_is_neither_damaged_nor_removed(published: Project, version: Path) -> None:
    published.ingest([Document(id_="note", text="A note.")])
    manifest = version / "manifest.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"format_version": 2', '"format_version": 3'), "utf-8")
    assert "upgrade llama-index-contextual" in (published.versions()[0].damage or "")
    assert found(published.verify(repair=True)) == {"versions/v000001": "pip install --upgrade llama-index-contextual"}
    assert version.is_dir()


@pytest.mark.parametrize("content", [b"nonsense", None, b"v000007\n"])
def test_a_damaged_or_missing_pointer_is_mended_by_naming_a_version(content: bytes | None, published: Project) -> None:
    current = published.directory / "CURRENT"
    current.unlink()
    if content is not None:
        current.write_bytes(content)
    report = published.verify()
    assert not report.sound
    remedy = f"llama-index-contextual rollback reports --to v000001 --root {published.directory.parent}"
    assert found(report)["CURRENT"] == remedy
    published.rollback("v000001")
    assert published.verify().sound
    assert published.retrieve("pump").results


def test_a_damaged_ledger_is_found(published: Project) -> None:
    path = published.directory / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.add_contexts(LedgerEntry(key=f"{n:064}", context="c" * 500, model="m") for n in range(50))
    ledger.close()
    assert published.verify().sound
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = bytes(4096)
    path.write_bytes(content)
    report = published.verify()
    assert not report.sound
    assert "ledger.sqlite" in found(report)
    assert published.retrieve("pump").results  # queries do not need it
    path.write_bytes(b"not a database, but long enough to look like one" * 20)
    assert "ledger.sqlite" in found(published.verify())


def test_what_an_interrupted_writer_left_is_named_and_does_no_harm(published: Project, version: Path) -> None:
    (version.with_name("v000002.building")).mkdir()
    (published.directory / "CURRENT.new").write_bytes(b"v0")
    report = published.verify()
    assert report.sound
    assert set(found(report)) == {"versions/v000002.building", "CURRENT.new"}


def test_checking_changes_nothing_and_needs_no_lock(published: Project) -> None:
    before = {path: path.read_bytes() for path in published.directory.rglob("*") if path.is_file()}
    with sqlite3.connect(published.directory / "ledger.sqlite") as reader:
        reader.execute("SELECT count(*) FROM contexts").fetchone()
        published.verify()
    assert {path: path.read_bytes() for path in published.directory.rglob("*") if path.is_file()} == before


def test_a_repair_keeps_what_can_be_read_of_a_damaged_ledger_and_the_damaged_file(published: Project) -> None:
    path = published.directory / "ledger.sqlite"
    ledger = Ledger(path)
    rows = [LedgerEntry(key=f"{n:064}", context=f"context {n} " * 40, model="m", input_tokens=n) for n in range(200)]
    ledger.add_contexts(rows)
    ledger.close()
    content = bytearray(path.read_bytes())
    page = 4096
    middle = len(content) // page // 2 * page
    content[middle : middle + page] = b"\xff" * page
    path.write_bytes(content)
    assert not published.verify().sound

    report = repair_project(published.directory)
    assert report.sound, report
    assert (published.directory / "ledger.sqlite.damaged").read_bytes() == content
    ledger = Ledger(path)
    kept = [row for row in rows if ledger.context(row.key) == row.context]
    assert len(kept) == ledger.info().contexts >= 100
    assert ledger.info().input_tokens == sum(row.input_tokens or 0 for row in kept)
    ledger.close()


def test_a_repair_removes_damaged_versions_that_are_not_live_and_what_was_left_behind(
    published: Project, version: Path
) -> None:
    published.ingest([Document(id_="note", text="A note.")])
    flip(version / "docstore.sqlite")
    version.with_name("v000003.building").mkdir()
    assert published.verify().sound
    report = repair_project(published.directory)
    assert report == VerifyReport(["v000002"], [])
    assert published.retrieve("note").results


def test_a_repair_leaves_a_damaged_live_version_to_the_user(published: Project, version: Path) -> None:
    flip(version / "docstore.sqlite")
    report = repair_project(published.directory)
    assert list(found(report)) == ["versions/v000001/docstore.sqlite"]
    assert version.is_dir()


def test_a_ledger_of_a_newer_release_is_not_taken_for_damage(published: Project) -> None:
    path = published.directory / "ledger.sqlite"
    ledger = Ledger(path)
    ledger._kv.put("format", {"version": 3})
    ledger.close()
    before = path.read_bytes()
    assert found(published.verify())["ledger.sqlite"] == "pip install --upgrade llama-index-contextual"
    with pytest.raises(FormatError, match=r"ledger.sqlite has format 3"):
        published.verify(repair=True)
    assert path.read_bytes() == before
