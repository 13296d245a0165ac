"""Maintenance commands: damaged versions, `forget`, and reports of problems."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from llama_index.core.schema import Document
from typer.testing import CliRunner, Result

from llama_index_contextual.cli.app import app
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage.forget import ForgetReport
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from tests.integration.test_cli import at_a_terminal
from tests.support.records import ApiError
from tests.support.server import LoopbackProvider


@pytest.fixture
def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_folder: Path) -> Project:
    """Project "a" with one version of two documents."""
    monkeypatch.setenv("LLAMA_INDEX_CONTEXTUAL_ROOT", str(tmp_path / "knowledge"))
    project = ProjectManager(tmp_path / "knowledge").create("a", ProjectConfig.local())
    project.ingest([text_folder])
    return project


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_a_damaged_version_is_listed_with_the_others(ingested: Project) -> None:
    ingested.ingest([Document(text="A note.")])
    (ingested.directory / "versions" / "v000001" / "manifest.json").write_text("nonsense")
    first, second = run("versions", "a").stdout.splitlines()
    assert first.startswith("v000001  damaged  versions/v000001/manifest.json is not a manifest")
    assert re.fullmatch(r"v000002  .*  3 documents  \d chunks  live", second)
    assert [version["damage"] is None for version in json.loads(run("versions", "a", "--json").stdout)] == [False, True]


def test_forget_counts_what_it_removes(ingested: Project) -> None:
    data = json.loads(run("remove", "a", "reports/quarter.md", "--forget", "--yes", "--json").stdout)
    assert data["removed"] == ["reports/quarter.md"]
    assert data["forgotten"] == {"versions": ["v000001"], "contexts": 0, "embeddings": 0, "batched_requests": 0}
    with closing(Ledger(ingested.directory / "ledger.sqlite")) as ledger:
        ledger.batches.uploaded("file", model="openai:gpt-4.1", custom_ids=["one", "two"])
    message = run("forget", "a", "--yes")
    assert message.stdout == "Permanently removed: 0 versions, 0 contexts, 0 embeddings.\n"
    assert message.stderr.startswith(
        "abandoned 2 requests in batches, which the provider may still process and charge\n"
    )


# ---- forgetting asks -------------------------------------------------------------------------------------------------


@pytest.fixture
def three_versions(ingested: Project) -> Project:
    """Project "a" with three versions, and a context in the ledger that the live one does not use."""
    for number in (2, 3):
        ingested.ingest([Document(id_="note", text=f"Note {number}.")])
    with closing(Ledger(ingested.directory / "ledger.sqlite")) as ledger:
        ledger.add_contexts([LedgerEntry(key="k", context="A former context.", model="openai:gpt-4.1")])
    return ingested


DOOMED = (
    "`forget` permanently removes 2 versions (v000001, v000002), 1 context, 0 embeddings. This cannot be undone, and no"
    " rollback is possible.\n"
)


def names(project: Project) -> list[str]:
    return [version.name for version in project.versions()]


def test_forget_asks_and_lists_what_it_will_remove(three_versions: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    at_a_terminal(monkeypatch)
    for answer in ("n\n", "\n", ""):
        refused = CliRunner().invoke(app, ["forget", "a"], input=answer)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"{DOOMED}Remove them? [y/N]")
        assert "Removed" not in refused.stdout
    assert names(three_versions) == ["v000001", "v000002", "v000003"]
    done = CliRunner().invoke(app, ["forget", "a"], input="y\n")
    assert done.exit_code == 0
    assert done.stdout.endswith("Permanently removed: 2 versions, 1 context, 0 embeddings.\n")
    assert names(three_versions) == ["v000003"]


@pytest.mark.parametrize("arguments", [["forget", "a"], ["forget", "a", "--json"], ["remove", "a", "note", "--forget"]])
def test_without_a_terminal_forget_needs_yes(three_versions: Project, arguments: list[str]) -> None:
    refused = CliRunner().invoke(app, arguments, input="y\n")
    assert refused.exit_code == 2
    assert refused.stderr == "Error: There is no terminal for a confirmation: add --yes to continue without one.\n"
    assert names(three_versions) == ["v000001", "v000002", "v000003"], "nothing has happened"
    run(*arguments, "--yes")
    assert len(names(three_versions)) == 1


def test_a_dry_run_lists_what_would_be_removed_and_removes_nothing(three_versions: Project) -> None:
    before = {path: path.read_bytes() for path in three_versions.directory.rglob("*") if path.is_file()}
    assert run("forget", "a", "--dry-run").stdout == DOOMED
    data = json.loads(run("forget", "a", "--dry-run", "--json").stdout)
    assert data == {
        "versions": ["v000001", "v000002"],
        "contexts": 1,
        "embeddings": 0,
        "batched_requests": 0,
        "dry_run": True,
    }
    assert {path: path.read_bytes() for path in three_versions.directory.rglob("*") if path.is_file()} == before
    dry, removed = three_versions.forget(dry_run=True), three_versions.forget()
    assert dry == removed
    assert three_versions.forget(dry_run=True) == ForgetReport(versions=[], contexts=0, embeddings=0)


def test_remove_with_forget_asks_before_anything_is_removed(
    three_versions: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch)
    refused = CliRunner().invoke(app, ["remove", "a", "note", "--forget"], input="n\n")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(
        "`remove --forget` permanently removes 1 document, 3 versions (v000001, v000002, v000003), and the contexts and"
    )
    assert names(three_versions) == ["v000001", "v000002", "v000003"]
    assert run("remove", "a", "note").exit_code == 0, "without --forget, a rollback is possible: nothing is asked"


# ---- contexts that failed --------------------------------------------------------------------------------------------


def test_failed_contexts_are_reported_with_the_command_to_retry_and_counted_by_info(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_folder: Path
) -> None:
    root = ["--root", str(tmp_path / "my projects")]
    config = ProjectConfig.local(context="llm", chunk_size=40, chunk_overlap=0)
    ProjectManager(root[1]).create("a", config)
    with LoopbackProvider() as provider:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", provider.api_base)
        provider.enqueue(*(ApiError(400, f"The prompt of request req_{number} was blocked.") for number in range(4)))
        done = run("ingest", "a", str(text_folder), "--quiet", *root)
        first, second, third = done.stderr.splitlines()
        assert first.startswith("no LLM context for 4 chunks of 2 documents, such as reports/")
        assert re.search(
            r"failed: BadRequestError: Error code: 400: The prompt of request req_\d was blocked\.$", first
        )
        retry = f"llama-index-contextual retry a --root '{root[1]}'"
        assert (second, third) == (
            "These chunks have the structural context. To request it again:",
            f"  {retry}",
        )
        assert (
            "fallback      4 chunks without an LLM context (`retry` requests it again)\n"
            in run("info", "a", *root).stdout
        )
        assert json.loads(run("info", "a", *root, "--json").stdout)["fallback_chunks"] == 4
        assert run("retry", "a", *root, "--quiet").stderr == ""
        assert "fallback" not in run("info", "a", *root).stdout
    assert ProjectManager(root[1]).load("a").info().fallback_chunks == 0


def test_many_skipped_files_are_grouped_and_complete_as_json(ingested: Project, tmp_path: Path) -> None:
    folder = tmp_path / "inbox"
    folder.mkdir()
    for number in range(200):
        (folder / f"letter {number:03}.zip").write_text("A letter.")
    (folder / "note.md").write_text("# Note\n\nThe pump is red.")
    line = "200 .zip files, such as {}/letter 000.zip: has the type .zip"
    for command in ("estimate", "ingest"):
        skipped = [row for row in run(command, "a", str(folder)).stderr.splitlines() if row.startswith("skipped")]
        assert len(skipped) == 1
        assert skipped[0].startswith("skipped " + line.format(folder))
    assert len(json.loads(run("ingest", "a", str(folder), "--json").stdout)["skipped"]) == 200
