"""Ingests in processes that are interrupted or killed: no answered request is paid for twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.core.schema import Document

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
from llama_index_contextual.project.manager import ProjectManager
from tests.benchmarks.budgets import SMALL, write_documents
from tests.support.recorder import PATIENCE
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_encoding="cl100k_base") as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


PATIENT_PROGRAM = f"""
from llama_index_contextual.ingestion import run
run.PATIENCE = {PATIENCE}
from llama_index_contextual.cli.app import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("interruptions", [1, 2])
def test_ctrl_c_waits_for_the_calls_in_flight_and_a_second_one_does_not(
    provider: LoopbackProvider, tmp_path: Path, interruptions: int
) -> None:
    documents = write_documents(tmp_path / "documents", parts=3)
    project = ProjectManager(tmp_path / "knowledge").create(
        "p", ProjectConfig(**SMALL, llm="openai:gpt-4.1", llm_concurrency=2)
    )
    command = [sys.executable, "-c", PATIENT_PROGRAM, "ingest", "p", str(documents), "--quiet"]
    root = ["--root", str(tmp_path / "knowledge")]
    with provider.hold():
        child = subprocess.Popen([*command, *root], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        provider.wait_in_flight(2)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        line = child.stderr.readline()
        if interruptions == 2:
            child.send_signal(signal.SIGINT)
            assert child.wait(PATIENCE) == 130
    rest = child.stderr.read()
    child.stderr.close()
    assert child.wait(PATIENCE) == 130
    assert line.startswith(f"Interrupted: waiting at most {PATIENCE:.0f} s for 2 calls in flight")
    assert "Run the same command again to continue" in rest
    assert "Traceback" not in rest
    assert len(provider.chat_calls) == 2
    assert project.info().ledger.contexts == (2 if interruptions == 1 else 0)
    assert (project.cost().booked > 0) == (interruptions == 2)


def ingest_pumps(root: str, address: str) -> None:
    # After Ctrl-C, the process ends when the request in flight does.
    model = VoyageContextualEmbedding(api_base=address, max_documents_per_request=1, timeout=12)
    documents = [Document(id_=str(at), text=f"Pump {at} runs dry. " * 30) for at in range(5)]
    ProjectManager(root).load("a", embed_model=model).ingest(documents)


@pytest.mark.parametrize("kind", ["kill", "interrupt"])
def test_an_ended_process_has_paid_for_no_answered_request_twice(
    kind: str, provider: LoopbackProvider, manager: ProjectManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOYAGE_API_KEY", "pa-a-key-of-the-tests-0123456789")
    manager.create("a", ProjectConfig.local(embed_model="voyage:voyage-context-3", context="none"))
    arguments = (str(manager.root), provider.api_base)
    program = f"from {__name__} import ingest_pumps; ingest_pumps(*{arguments!r})"
    provider.fault("hang", after=3)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE)
    provider.wait_until(lambda: len(provider.history) == 4)
    process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert len(answered(provider)) == 3
    ingest_pumps(*arguments)
    assert len(answered(provider)) == len(set(answered(provider))) == 5


def answered(provider: LoopbackProvider) -> list[tuple[str, ...]]:
    """Return the chunks of each document that was embedded."""
    records = [record for record in provider.contextual_calls if record.status == 200]
    return [tuple(chunks) for record in records for chunks in record.body["inputs"]]
