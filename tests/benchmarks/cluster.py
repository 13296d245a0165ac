"""Ingest PDFs on a Ray cluster of three nodes, and kill nodes and the actor: `python -m tests.benchmarks.cluster`.

Compares chunks, contexts and vectors with those of a local run, and counts the calls that arrive at a provider on the
loopback interface, which the real client of OpenAI talks to. The exit status is 1 unless every line holds. Needs Linux,
because the process of the actor is found in /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
from fpdf import FPDF
from ray.cluster_utils import Cluster

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BudgetExceededError, ProjectError
from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.benchmarks.budgets import cost_at
from tests.support.records import CHAT_PATH
from tests.support.server import LoopbackProvider
from tests.support.source import ROOT

CPUS = 3
"""CPUs of each of the two nodes that work; the third one has the actor, and no CPU for tasks."""

_NODE = {"include_dashboard": False, "object_store_memory": 100_000_000}


def main() -> int:
    """Run the benchmark, print a line for each part, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, help="take the smallest PDFs below this folder; without it, PDFs are generated"
    )
    parser.add_argument("--files", type=int, default=40)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, _provider() as provider:
        root = Path(scratch)
        files = _pdfs(arguments.data, root / "pdf", arguments.files)
        bench = Bench(ProjectManager(root / "knowledge"), provider, files)
        bench.run_here()
        with _cluster() as cluster:
            bench.run_with_a_node_killed(cluster, "reading", lambda state: state.documents_read >= 1)
            bench.run_with_a_node_killed(
                cluster, "writing contexts", lambda state: state.chunks_done > bench.local_chunks // 3
            )
            bench.run_again()
            bench.run_with_the_actor_killed()
            bench.run_with_a_limit(cluster)
    return 0 if bench.all_hold else 1


@dataclass
class Bench:
    """The runs, each in a project of its own.

    Attributes:
        manager: Creates the projects.
        provider: Answers the calls.
        files: The PDFs.
        all_hold: Whether every line held so far.
        local: Project of the local run.
        local_chunks: Number of its chunks.
        prompts: Number of its distinct prompts.
        cost: Its cost in dollars.
    """

    manager: ProjectManager
    provider: LoopbackProvider
    files: Sequence[Path]
    all_hold: bool = True
    local: Project = field(init=False)
    local_chunks: int = 0
    prompts: int = 0
    cost: float = 0.0

    def run_here(self) -> None:
        """Ingest in this process."""
        self.local = self._project("local")
        started = time.monotonic()
        report = self.local.ingest(self.files)
        self.local_chunks, self.prompts = report.chunks, len(self._prompts())
        self.cost = cost_at(self.provider.calls(CHAT_PATH))
        calls = sum(self._prompts().values())
        self._say(
            f"local: {len(report.added)} files, {report.chunks} chunks, {calls} calls, {self.prompts} distinct prompts,"
            f" {time.monotonic() - started:.1f} s",
            calls == self.prompts and len(report.added) == len(self.files),
        )

    def run_with_a_node_killed(self, cluster: Cluster, when: str, is_time: Callable[[IngestProgress], bool]) -> None:
        """Ingest on the cluster, and kill a node with its workers at some time."""
        project = self._project(f"node-killed-{when.split()[0]}")
        node = cluster.add_node(num_cpus=CPUS, **_NODE)
        cluster.wait_for_nodes()
        kill = threading.Thread(target=cluster.remove_node, args=(node,), kwargs={"allow_graceful": False})

        def on_progress(state: IngestProgress) -> None:
            if is_time(state) and kill.ident is None:
                kill.start()

        started = time.monotonic()
        report = project.ingest(self.files, executor="ray", progress=on_progress)
        was_killed = kill.ident is not None
        if was_killed:
            kill.join()
        calls, differing = sum(self._prompts().values()), self._differing(project)
        self._say(
            f"Ray, node killed while {when}: {report.chunks} chunks, {differing} differ in text, context or vector;"
            f" {calls} calls, {len(self._prompts())} distinct prompts, {time.monotonic() - started:.1f} s",
            was_killed and not differing and calls == len(self._prompts()) == self.prompts,
        )

    def run_again(self) -> None:
        """Read all files again on the cluster, into the project of the last run."""
        project = self.manager.load("node-killed-writing")
        self.provider.clear_history()
        report = project.ingest(self.files, reread=True, executor="ray")
        calls, differing = sum(self._prompts().values()), self._differing(project)
        self._say(
            f"Ray, second run: {len(report.updated)} files read again, {calls} calls, {differing} chunks differ",
            calls == 0 and not differing and len(report.updated) == len(self.files),
        )

    def run_with_the_actor_killed(self) -> None:
        """Kill the actor in the middle, and run again."""
        project = self._project("actor-killed")
        killed: list[int] = []

        def on_progress(state: IngestProgress) -> None:
            if not killed and state.chunks_done > self.local_chunks // 3:
                killed.extend(_actors())
                for process in killed:
                    os.kill(process, signal.SIGKILL)

        try:
            project.ingest(self.files, executor="ray", progress=on_progress)
            message = "the run was not interrupted"
        except ProjectError as error:
            message = str(error).partition(":")[0]
        info, first = project.info(), sum(self._prompts().values())
        in_flight = first - info.ledger.contexts
        project.ingest(self.files, executor="ray")
        calls, differing = sum(self._prompts().values()), self._differing(project)
        repeats = calls - len(self._prompts())
        self._say(
            f"Ray, actor killed: {first} calls, of which {info.ledger.contexts} in the ledger and {in_flight}"
            f" in flight (limit {project.config.llm_concurrency}): {message}; run again: {repeats} calls repeated,"
            f" {differing} chunks differ",
            len(killed) == 1
            and info.version is None
            and repeats <= in_flight <= project.config.llm_concurrency
            and not differing,
        )

    def run_with_a_limit(self, cluster: Cluster) -> None:
        """Ingest on both nodes with limits below the cost."""
        cluster.add_node(num_cpus=CPUS, **_NODE)
        cluster.wait_for_nodes()
        for share in (0.1, 0.5, 0.8):
            project = self._project(f"limited-{share}".replace(".", ""))
            limit = share * self.cost
            try:
                project.ingest(self.files, max_cost=limit, executor="ray")
                stated = float("nan")
            except BudgetExceededError as error:
                stated = error.spent
            cost = cost_at(self.provider.calls(CHAT_PATH))
            self._say(
                f"Ray, max_cost {limit:.4f} with {int(ray.cluster_resources()['CPU'])} workers: stopped, stated"
                f" {stated:.4f}, charged {cost:.4f}",
                0 < cost <= stated <= limit,
            )

    def _project(self, name: str) -> Project:
        self.provider.reset()
        return self.manager.create(name, ProjectConfig(llm="openai:gpt-4.1-mini", embed_model="local"))

    def _prompts(self) -> Counter[str]:
        return Counter(json.dumps(record.body, sort_keys=True) for record in self.provider.calls(CHAT_PATH))

    def _differing(self, project: Project) -> int:
        """Return the number of chunks that differ from those of the local run, which has them in the same order."""
        if list(project.documents()) != list(self.local.documents()):
            return self.local_chunks
        ours, theirs = (
            [chunk for record in one.documents() for chunk in one.chunks(record.doc_id)]
            for one in (self.local, project)
        )
        rows = np.arange(self.local_chunks)
        store, other = (one.storage_context.vector_store for one in (self.local, project))
        is_same: Any = (store.vectors(rows) == other.vectors(rows)).all(axis=1)  # type: ignore[attr-defined]
        return sum(not (one == two and same) for one, two, same in zip(ours, theirs, is_same, strict=True))

    def _say(self, line: str, holds: bool) -> None:
        self.all_hold &= holds
        print(f"{'holds' if holds else 'FAILS'}  {line}", flush=True)


def _actors() -> Iterator[int]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                title = (process / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if title.startswith(b"ray::Owner"):
                yield int(process.name)


@contextmanager
def _provider() -> Iterator[LoopbackProvider]:
    with LoopbackProvider(latency=0.05) as provider:
        os.environ["OPENAI_API_KEY"], os.environ["OPENAI_BASE_URL"] = "sk-any", provider.api_base
        yield provider


@contextmanager
def _cluster() -> Iterator[Cluster]:
    """Provide a cluster of a node for the actor and one that works; this process is connected to it."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_NODE})
    cluster.add_node(num_cpus=CPUS, **_NODE)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def _pdfs(data: Path | None, folder: Path, number: int) -> list[Path]:
    """Return PDFs of the data sets, or generated ones."""
    if data is not None:
        files = sorted(data.rglob("*.pdf"), key=lambda file: file.stat().st_size)
        if len(files) < number:
            sys.exit(f"There are only {len(files)} PDFs in {data}.")
        return files[:number]
    folder.mkdir(parents=True)
    return [_generated(folder / f"report {at:02}.pdf", at) for at in range(number)]


def _generated(path: Path, seed: int) -> Path:
    pdf = FPDF()
    pdf.set_font("Helvetica", size=11)
    for page in range(1, 4):
        pdf.add_page()
        lines = (
            f"On page {page}, report {seed} counts {seed * page + at} pumps in hall {at}. " * 3 for at in range(20)
        )
        pdf.multi_cell(0, text="\n".join(lines))
    pdf.output(str(path))
    return path


if __name__ == "__main__":
    sys.exit(main())
