"""The demo: the effect of contexts on the example documents, without a key or a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli import demo
from llama_index_contextual.cli.app import app
from llama_index_contextual.cli.demo import CONTEXTS_FILE, QUESTIONS_FILE, TOP_K, DemoAnswer, data_directory, run_demo
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.ledger import content_key
from llama_index_contextual.index.ledger_lines import import_ledger
from llama_index_contextual.project.manager import ProjectManager
from tests.support.examples import DATA, rows, script

RECORD = "the ledger is out of date: run `python examples/record_contexts.py`"
FOREIGN = json.dumps({"key": content_key("another chunk"), "context": "Of another chunk.", "model": "none"}) + "\n"


@pytest.fixture(scope="module")
def steps_and_answers() -> tuple[list[str], list[DemoAnswer]]:
    """The whole demo, run once."""
    steps: list[str] = []
    return steps, run_demo(steps.append)


@pytest.fixture(scope="module")
def answers(steps_and_answers: tuple[list[str], list[DemoAnswer]]) -> Sequence[DemoAnswer]:
    return steps_and_answers[1]


def test_three_answers_are_among_the_first_five_with_contexts_and_none_without(answers: Sequence[DemoAnswer]) -> None:
    assert TOP_K == 5
    assert len({answer.hit.source.file_name for answer in answers if answer.hit}) == len(answers) == 3
    assert [answer.rank_without for answer in answers] == [None, None, None]
    ranks = [answer.rank_with for answer in answers]
    assert all(rank is not None and 1 <= rank <= 5 for rank in ranks), ranks


def test_the_passage_shown_holds_the_evidence_and_a_recorded_context(answers: Sequence[DemoAnswer]) -> None:
    recorded = {row["context"] for row in rows(DATA / CONTEXTS_FILE)}
    for answer in answers:
        assert answer.hit is not None
        assert " ".join(answer.evidence.split()) in " ".join(answer.hit.text.split())
        assert answer.hit.written_context in recorded, RECORD


def test_the_default_llm_finds_every_context_in_the_ledger_without_a_key(manager: ProjectManager) -> None:
    project = manager.create("recorded", ProjectConfig.local(context="llm"))
    imported = import_ledger(project.directory, DATA / CONTEXTS_FILE).contexts
    report = project.ingest([DATA])
    assert [Path(file.path).name for file in report.skipped] == [CONTEXTS_FILE, QUESTIONS_FILE]
    assert not report.failures, RECORD
    assert report.contexts_paid == 0
    assert report.chunks == imported, RECORD
    nodes = project.storage_context.docstore.docs.values()
    assert {node.metadata["context_source"] for node in nodes} == {"llm"}


def test_the_recorded_ledger_is_what_the_recorder_writes_today(tmp_path: Path) -> None:
    fresh = tmp_path / CONTEXTS_FILE
    script("record_contexts").record(fresh)
    assert rows(fresh) == rows(DATA / CONTEXTS_FILE), RECORD


def test_a_chunk_without_recorded_context_is_reported_and_no_provider_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "note.md").write_text("# Valve works\n\nThe pump runs dry.\n", encoding="utf-8")
    (tmp_path / CONTEXTS_FILE).write_text(FOREIGN, encoding="utf-8")
    row = {"question": "What runs dry?", "file": "note.md", "evidence": ["The pump\nruns dry."], "demo": True}
    (tmp_path / QUESTIONS_FILE).write_text(json.dumps(row), encoding="utf-8")
    monkeypatch.setattr(demo, "data_directory", lambda: tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    steps: list[str] = []
    (answer,) = run_demo(steps.append)
    (message,) = (step for step in steps if "structural context" in step)
    assert "instead: 1" in message
    assert "There is no recorded context for this chunk" in message
    assert answer.hit is not None
    assert answer.hit.node.metadata["context_source"] == "structural"
    assert (answer.rank_without, answer.rank_with) == (1, 1)


def test_documents_inside_the_installed_package_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, beside = tmp_path / "package" / "_demo_data", tmp_path / "examples" / "data"
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "package" / "cli" / "demo.py"))
    with pytest.raises(InputError, match=r"install the package from its wheel or its source tree"):
        data_directory()
    for folder in (beside, inside):
        folder.mkdir(parents=True)
        (folder / CONTEXTS_FILE).touch()
        assert data_directory() == folder


def test_the_command_shows_both_ranks_the_context_and_the_answer(
    answers: Sequence[DemoAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "run_demo", lambda _report: list(answers))
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert shown.count("not in the first 5") == 3
    for answer in answers:
        assert answer.hit is not None
        assert f"rank {answer.rank_with}" in shown
        for text in (
            answer.question,
            answer.evidence,
            answer.hit.written_context or "",
            answer.hit.source.file_name or "",
        ):
            assert " ".join(text.split()) in shown


def test_the_command_gives_the_ranks_as_json(answers: Sequence[DemoAnswer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "run_demo", lambda _report: list(answers))
    result = CliRunner().invoke(app, ["demo", "--json"])
    assert [(row["rank_without"], row["rank_with"]) for row in json.loads(result.stdout)] == [
        (None, answer.rank_with) for answer in answers
    ]
