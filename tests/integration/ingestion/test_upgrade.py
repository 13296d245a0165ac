"""A project is built again with other settings or a better reader: unchanged texts cost nothing, others are priced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli.app import app
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError
from llama_index_contextual.index.ledger_lines import export_ledger, import_ledger
from llama_index_contextual.metadata import context_parts
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import documents
from llama_index_contextual.readers.files import FileSource, ParsedFile
from llama_index_contextual.readers.text import parse_markdown
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

DATA = ROOT / "tests" / "data"


@pytest.fixture
def former(tmp_path: Path, provider: LoopbackProvider) -> Project:
    """A project with contexts that were paid for, next to its documents."""
    (tmp_path / "documents").mkdir()
    for name in ("handbook.md", "lease.pdf"):
        shutil.copy(DATA / name, tmp_path / "documents")
    config = ProjectConfig(
        llm="openai:gpt-4.1-mini",
        embed_model="openai:text-embedding-3-small",
        indexes="lexical",
        ocr=None,
        segment_size=1000,
        chunk_size=100,
        chunk_overlap=10,
    )
    project = ProjectManager(tmp_path / "projects").create("first", config)
    project.ingest([tmp_path / "documents"])
    provider.history.clear()
    return project


def better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a later release read Markdown better: with one more sentence."""

    def read(source: FileSource) -> ParsedFile:
        parsed = parse_markdown(source)
        return ParsedFile(
            f"{parsed.text.rstrip()} It was not read before.\n", parsed.map, parsed.title, digest=parsed.digest
        )

    monkeypatch.setattr(documents, "parse_markdown", read)


def test_a_rebuild_with_unchanged_text_and_prompt_sends_nothing(former: Project, provider: LoopbackProvider) -> None:
    former.update_config(embed_model="local")  # the project has no vectors
    expected = former.estimate()
    assert (expected.documents, expected.known_contexts, expected.dollars) == (2, expected.chunks, 0.0)
    assert expected.summary() == "2 documents, 9 chunks: 0 calls for contexts, $0.00"
    report = former.rebuild(max_cost=0.0)
    assert sorted(report.rebuilt) == ["documents/handbook.md", "documents/lease.pdf"]
    assert (report.contexts_paid, len(provider.history)) == (0, 0)


def test_a_rebuild_with_other_chunks_costs_what_the_estimate_says(former: Project, provider: LoopbackProvider) -> None:
    former.update_config(chunk_size=60)
    expected = former.estimate()
    assert expected.contexts.calls > 0
    with pytest.raises(BudgetExceededError):
        former.rebuild(max_cost=0.000001)
    report = former.rebuild(max_cost=expected.max_cost)
    assert len(provider.history) == report.contexts_paid == expected.contexts.calls


def test_only_chunks_whose_own_text_is_read_better_are_paid_for_again(
    former: Project, provider: LoopbackProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "documents"
    assert former.estimate([folder]).documents == 0
    known = former.estimate([folder], reread=True)
    again = former.ingest([folder], reread=True)
    assert sorted(again.updated) == ["documents/handbook.md", "documents/lease.pdf"]
    assert again.contexts_paid == again.contexts_kept == len(provider.history) == known.contexts.calls == 0
    before = contexts_of(former, "documents/handbook.md")
    better(monkeypatch)
    assert list(former.ingest([folder]).updated) == []  # an upgrade alone changes nothing
    expected = former.estimate([folder], reread=True)
    assert f"kept from before: {len(before) - 1} contexts, $0.00; a rebuild with `renew`" in str(expected)
    report = former.ingest([folder], reread=True)
    assert len(provider.history) == report.contexts_paid == expected.contexts.calls == 1
    assert report.contexts_kept == expected.kept_contexts == len(before) - 1
    assert f"kept from before: {len(before) - 1} contexts" in str(report)
    after = contexts_of(former, "documents/handbook.md")
    assert "It was not read before." in former.read("documents/handbook.md")
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    again = former.ingest([folder], reread=True)
    assert (again.contexts_paid, again.contexts_kept) == (0, len(before) - 1)


def test_contexts_are_kept_in_another_project_and_after_other_settings(
    former: Project, provider: LoopbackProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = len(former.chunks("documents/handbook.md"))
    export_ledger(former.directory, tmp_path / "paid.jsonl")
    better(monkeypatch)
    second = ProjectManager(tmp_path / "projects").create("second", former.config)
    import_ledger(second.directory, tmp_path / "paid.jsonl")
    report = second.ingest([tmp_path / "documents"])
    assert (report.contexts_paid, report.contexts_kept, len(provider.history)) == (1, chunks - 1, 1)
    second.update_config(embed_model="local", context_neighbours=True)
    report = second.rebuild(max_cost=0.0)
    assert (report.contexts_paid, report.contexts_kept, len(provider.history)) == (0, chunks - 1, 1)


def test_a_rebuild_replaces_kept_contexts_only_on_request(
    former: Project, provider: LoopbackProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better(monkeypatch)
    kept = former.ingest([tmp_path / "documents"], reread=True).contexts_kept
    provider.history.clear()
    former.rebuild()
    assert len(provider.history) == 0
    expected = former.estimate(renew=True)
    assert (expected.contexts.calls, expected.kept_contexts) == (kept, 0)
    done = CliRunner().invoke(app, ["rebuild", "first", "--renew", "--root", str(former.directory.parent)])
    assert done.exit_code == 0
    assert expected.summary() in " ".join(done.output.split())
    assert len(provider.history) == kept
    again = former.ingest([tmp_path / "documents"], reread=True)
    assert (again.contexts_paid, again.contexts_kept) == (0, 0)


@pytest.mark.parametrize("setting", [{"context_prompt": "{segment}\nSituate: {chunk}"}, {"segment_size": 2000}])
def test_no_context_is_kept_after_the_settings_for_contexts_have_changed(
    setting: dict[str, Any], former: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better(monkeypatch)
    former.update_config(**setting)
    report = former.ingest([tmp_path / "documents"], reread=True)
    assert report.contexts_kept == 0
    assert report.contexts_paid >= len(former.chunks("documents/handbook.md"))


def test_no_context_is_kept_after_a_person_has_edited_the_segment(
    former: Project, provider: LoopbackProvider, tmp_path: Path
) -> None:
    path = tmp_path / "documents" / "handbook.md"
    path.write_text(f"{path.read_text().rstrip()} This sentence is new.\n")
    report = former.ingest([tmp_path / "documents"])
    assert report.contexts_kept == 0
    assert report.contexts_paid == len(provider.history) == len(former.chunks("documents/handbook.md"))


def contexts_of(project: Project, doc_id: str) -> list[str]:
    """Return what an LLM wrote for each chunk of a document."""
    return [context_parts(chunk.metadata)[1] for chunk in project.chunks(doc_id)]
