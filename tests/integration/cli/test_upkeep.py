"""Maintenance commands: damaged versions, `forget`, and skipped files."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.index.verify import ForgetReport
from llama_index_contextual.project.project import Project
from tests.support.cli import at_a_terminal, run


def test_a_damaged_version_is_listed_with_the_others(ingested: Project) -> None:
    ingested.ingest([Document(text="A note.")])
    (ingested.directory / "versions" / "v000001" / "manifest.json").write_text("nonsense")
    first, second = run("versions", "a").out.splitlines()
    assert first.startswith("v000001  damaged  versions/v000001/manifest.json is not a manifest")
    assert re.fullmatch(r"v000002  \d{4}-\d\d-\d\d \d\d:\d\d  3 documents  \d chunks  live", second)
    assert [version["damage"] is None for version in run("versions", "a", "--json").json] == [False, True]


def test_many_skipped_files_are_grouped_and_complete_as_json(ingested: Project, tmp_path: Path) -> None:
    folder = tmp_path / "inbox"
    folder.mkdir()
    for number in range(200):
        (folder / f"letter {number:03}.zip").write_text("A letter.")
    (folder / "note.md").write_text("# Note\n\nThe pump is red.")
    for command in ("estimate", "ingest"):
        (skipped,) = [line for line in run(command, "a", folder).err.splitlines() if line.startswith("skipped")]
        assert skipped.startswith(f"skipped 200 files, such as {folder}/letter 000.zip: has the type .zip")
    assert len(run("ingest", "a", folder, "--json").json["skipped"]) == 200


# ---- forgetting ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_versions(ingested: Project) -> Project:
    """Project "a" with three versions, and a context in the ledger that the live one does not use."""
    for number in (2, 3):
        ingested.ingest([Document(id_="note", text=f"Note {number}.")])
    with closing(Ledger(ingested.directory / "ledger.sqlite")) as ledger:
        ledger.add_contexts([LedgerEntry(key="k", context="A former context.", model="openai:gpt-4.1")])
    return ingested


DOOMED = "`forget` permanently removes: 2 versions (v000001, v000002), 1 context, 0 embeddings.\n"


def names(project: Project) -> list[str]:
    return [version.name for version in project.versions()]


def test_forget_asks_and_lists_what_it_will_remove(three_versions: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch)
    for answer in ("n\n", "\n", ""):
        refused = run("forget", "a", answer=answer)
        assert refused.code == 1
        assert refused.err.startswith(f"{DOOMED}Remove them? This cannot be undone. [y/N]")
    assert names(three_versions) == ["v000001", "v000002", "v000003"], "nothing has happened"
    done = run("forget", "a", answer="y\n")
    assert done.code == 0
    assert done.out.endswith("Permanently removed: 2 versions (v000001, v000002), 1 context, 0 embeddings.\n")
    assert names(three_versions) == ["v000003"]
    assert run("remove", "a", "note").code == 0, "a rollback is possible: nothing is asked"


@pytest.mark.parametrize("line", ["forget a", "forget a --json"])
def test_without_a_terminal_forget_needs_yes(three_versions: Project, line: str) -> None:
    refused = run(*line.split(), answer="y\n")
    assert refused.code == 2
    assert "There is no terminal for a confirmation: add --yes to continue without one.\n" in refused.err
    assert names(three_versions) == ["v000001", "v000002", "v000003"], "nothing has happened"
    assert run(*line.split(), "--yes").code == 0
    assert len(names(three_versions)) == 1


def test_a_dry_run_lists_what_would_be_removed_and_removes_nothing(three_versions: Project) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in three_versions.directory.rglob("*") if path.is_file()}

    before = files()
    assert run("forget", "a", "--dry-run").out == DOOMED
    doomed = {"versions": ["v000001", "v000002"], "contexts": 1, "embeddings": 0, "batched_requests": 0}
    assert run("forget", "a", "--dry-run", "--json").json == {**doomed, "dry_run": True}
    assert files() == before
    assert three_versions.forget(dry_run=True) == three_versions.forget()
    assert three_versions.forget(dry_run=True) == ForgetReport(versions=[], contexts=0, embeddings=0)
