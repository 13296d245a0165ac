"""Ingestion on a Ray cluster: it stores what a local run stores, and survives its workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.llms.openai import OpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError, ConfigurationError
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.deadly import Deadly, DeadlyOnce
from tests.support.charges import cost_at
from tests.support.documents import pdf_bytes
from tests.support.models import CountingEmbedding
from tests.support.recorder import PATIENCE
from tests.support.records import CHAT_PATH
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

# Here, before the suite forbids to unpickle: Ray takes its own reference.
ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
cluster_utils = pytest.importorskip("ray.cluster_utils", reason="the extra `ray` is not installed")
on_ray = pytest.importorskip("llama_index_contextual.ingestion.ray")

pytestmark = pytest.mark.xdist_group("ray")

KEY = "sk-of-a-test-on-ray"
SMALL: dict[str, Any] = {"segment_size": 500, "chunk_size": 80, "chunk_overlap": 8}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # `wait` would give up after 30 seconds, which a busy machine may need.
        node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000, "wait": False}
        running = cluster_utils.Cluster(initialize_head=True, head_node_args=node)
        running.wait_for_nodes(PATIENCE)
        running.add_node(**node)
        running.wait_for_nodes(PATIENCE)
        yield running
        ray.shutdown()
        running.shutdown()


@pytest.fixture
def connected(cluster: Any) -> str:
    """The address of the cluster, to which this process stays connected: workers are then used by several tests."""
    if not ray.is_initialized():
        ray.init(address=cluster.address, log_to_driver=False)
    return str(cluster.address)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_encoding="cl100k_base", require_key=KEY) as running:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a PDF, a damaged one, and ten Markdown files of several chunks."""
    folder = tmp_path / "größe"
    folder.mkdir()
    for number in range(10):
        parts = [
            f"## Part {part}\n\nFile {number} says that value {part} is {part * number}. " * 4 for part in range(4)
        ]
        (folder / f"file {number}.md").write_text("\n\n".join(parts), encoding="utf-8")
    (folder / "tariff.pdf").write_bytes(pdf_bytes())
    (folder / "damaged.pdf").write_bytes(b"%PDF-1.7\nnothing follows")
    return folder


def assert_equal(one: Project, other: Project) -> None:
    """Compare records, chunks with their contexts, and vectors, in their order."""
    assert list(one.documents()) == list(other.documents())
    for record in one.documents():
        assert one.chunks(record.doc_id) == other.chunks(record.doc_id)
    rows = np.arange(one.info().chunks)
    assert np.array_equal(*(project.live_version.index.vectors(rows) for project in (one, other)))


# ---- without a cluster -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ray": "auto", "batch": True}, "Batches cannot be combined with Ray"),
        ({"ray": "ray://head:10001"}, "run `ray start --address=HOST:PORT` on it"),
    ],
)
def test_what_ray_cannot_do_is_refused_with_its_reason(
    arguments: dict[str, Any], message: str, project: Project, folder: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        project.ingest(folder, **arguments)
    assert project.info().version is None


# ---- on a cluster ----------------------------------------------------------------------------------------------------


def test_a_run_on_ray_stores_what_a_local_run_stores_and_pays_for_nothing_twice(
    connected: str, manager: ProjectManager, provider: LoopbackProvider, folder: Path
) -> None:
    config = ProjectConfig(**SMALL, llm="openai:gpt-4.1", embed_model="openai:text-embedding-3-small")
    here, there = manager.create("here", config), manager.create("there", config)
    local = here.ingest(folder)
    calls = len(provider.calls())
    progress: list[IngestProgress] = []
    report = there.ingest(folder, ray=connected, progress=progress.append)
    assert_equal(here, there)
    assert len(provider.calls()) == 2 * calls
    assert (report.added, report.skipped, report.warnings) == (local.added, local.skipped, local.warnings)
    assert report.receipt() == local.receipt() != ""
    assert [file.path for file in report.skipped] == [str(folder / "damaged.pdf")]
    assert (progress[-1].stage, progress[-1].chunks_done) == ("done", report.chunks)
    # Read again, so that tasks and actor work as the first time.
    again = there.ingest(folder, reread=True, ray=connected)
    assert len(again.updated) == len(report.added)
    assert len(provider.calls()) == 2 * calls


def test_the_limit_holds_for_the_whole_cluster(
    connected: str, manager: ProjectManager, provider: LoopbackProvider, folder: Path
) -> None:
    project = manager.create("limited", ProjectConfig(**SMALL, llm="openai:gpt-4.1", indexes="lexical"))
    with pytest.raises(BudgetExceededError) as caught:
        project.ingest(folder, max_cost=0.05, ray=connected)
    assert caught.value.max_cost == 0.05
    assert 0 < cost_at(provider.calls(CHAT_PATH)) <= caught.value.spent <= 0.05
    assert project.info().version is None


def test_the_logs_of_ray_contain_no_key(
    connected: str, cluster: Any, manager: ProjectManager, provider: LoopbackProvider, folder: Path
) -> None:
    llm = OpenAI(model="gpt-4.1", api_key=KEY, api_base=provider.api_base)
    project = manager.create("keyed", ProjectConfig(**SMALL, indexes="lexical"), llm=llm)
    assert project.ingest(folder / "file 0.md", ray=connected).contexts_paid
    logs = [path for path in Path(cluster.head_node.get_logs_dir_path()).rglob("*") if path.is_file()]
    assert logs
    assert [path for path in logs if KEY.encode() in path.read_bytes()] == []


def test_a_file_that_kills_its_workers_is_reported_and_a_worker_that_dies_once_is_not(
    connected: str, manager: ProjectManager, folder: Path, tmp_path: Path
) -> None:
    flag = str(tmp_path / "died once")
    here, there = (manager.create(name, ProjectConfig.local(**SMALL)) for name in ("here", "there"))
    passwords = {"file 3.md": Deadly("x"), "file 7.md": DeadlyOnce(flag)}  # passed to the workers with each file
    report = there.ingest(folder, passwords=passwords, ray=connected)
    reasons = {Path(file.path).name: file.reason for file in report.skipped}
    assert set(reasons) == {"damaged.pdf", "file 3.md"}
    assert "ended each of the 3 worker processes that read it" in reasons["file 3.md"]
    assert Path(flag).exists()
    (folder / "file 3.md").unlink()
    here.ingest(folder)
    assert_equal(here, there)


async def test_an_interrupted_run_leaves_the_old_version_live(
    cluster: Any, manager: ProjectManager, provider: LoopbackProvider, folder: Path
) -> None:
    ray.shutdown()
    project = manager.create("interrupted", ProjectConfig(**SMALL, llm="openai:gpt-4.1", indexes="lexical"))
    await project.aingest(folder / "file 0.md")
    before = project.info().version
    provider.clear_history()
    loopback = f"127.0.0.1:{cluster.address.rpartition(':')[2]}"  # other addresses are out of bounds for tests
    with provider.hold():
        run = asyncio.create_task(project.aingest(folder, ray=loopback))
        await asyncio.to_thread(provider.wait_in_flight, 1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert not ray.is_initialized()
    assert project.info().version == before
    report = await project.aingest(folder)  # neither the lock nor the ledger is held
    assert (len(report.added), len(report.unchanged)) == (10, 1)


class WorkerEmbedding(CountingEmbedding):
    """A model that the workers run; others that are passed are called by the calling process."""

    @classmethod
    def class_name(cls) -> str:
        return "OnnxEmbedding"


def test_a_model_passed_as_an_object_embeds_in_the_workers(
    connected: str, manager: ProjectManager, folder: Path
) -> None:
    here, there = (
        manager.create(name, ProjectConfig(**SMALL, context="none"), embed_model=WorkerEmbedding())
        for name in ("here", "there")
    )
    here.ingest(folder)
    there.ingest(folder, ray=connected)
    assert there.embed_model.texts == []
    assert_equal(here, there)
