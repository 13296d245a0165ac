"""A project is built again with other settings or a better reader: unchanged texts cost nothing, others are priced."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli.app import app
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError
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


def test_contexts_of_text_that_is_read_better_are_requested_again_at_the_estimated_price(
    former: Project, provider: LoopbackProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "documents"
    assert former.estimate([folder]).documents == 0
    known = former.estimate([folder], reread=True)
    again = former.ingest([folder], reread=True)
    assert sorted(again.updated) == ["documents/handbook.md", "documents/lease.pdf"]
    sent = len(provider.history)
    assert again.contexts_paid == sent == known.contexts.calls
    # The reader of Markdown gives the same text as ever.
    assert "handbook" not in "".join(str(request.body) for request in provider.history).lower()
    better(monkeypatch)
    assert list(former.ingest([folder]).updated) == []  # an upgrade alone changes nothing
    expected = former.estimate([folder], reread=True)
    report = former.ingest([folder], reread=True)
    assert len(provider.history) - sent == report.contexts_paid == expected.contexts.calls > 0
    assert "It was not read before." in former.read("documents/handbook.md")
    assert former.ingest([folder], reread=True).contexts_paid == 0
    assert len(provider.history) - sent == len(former.chunks("documents/handbook.md"))


def test_the_command_says_the_price_of_a_rebuild_before(former: Project, provider: LoopbackProvider) -> None:
    former.update_config(chunk_size=60)
    expected = former.estimate()
    done = CliRunner().invoke(app, ["rebuild", "first", "--root", str(former.directory.parent)])
    assert done.exit_code == 0
    assert expected.summary() in " ".join(done.output.split())
