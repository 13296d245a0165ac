"""Change a folder at random while `sync --watch` runs, and compare the project with a fresh ingest of the folder.

    python -m tests.benchmarks.sync --changes 200 --seed 1

A separate process watches the folder and publishes versions while changes are made in bursts. The script then waits
until the project is equal to a fresh ingest, interrupts the process, and prints how long both took.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.changes import RandomChanges, differences
from tests.support.source import ROOT

IN_STEP = 180.0
"""Seconds after which the comparison fails."""


def main() -> int:
    """Run the measurement; the exit code is 1 if the states differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    # A shell in the background has Ctrl-C ignored, also by the processes that are started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as directory:
        return measure(Path(directory), arguments.changes, arguments.seed)


def measure(directory: Path, number: int, seed: int) -> int:
    """Make the changes next to a watching process, and compare the states."""
    folder = directory / "files"
    folder.mkdir()
    manager = ProjectManager(directory / "knowledge")
    project = manager.create("watched", ProjectConfig.local())
    command = [sys.executable, "-m", "llama_index_contextual", "sync", "watched", str(folder), "--watch", "--yes"]
    command += ["--allow-many", "--json", "--quiet", "--root", str(directory / "knowledge")]
    watcher = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    reports: list[dict[str, object]] = []
    ready = threading.Event()
    reader = threading.Thread(target=_read, args=(watcher, reports, ready), daemon=True)
    reader.start()
    if not ready.wait(IN_STEP):
        watcher.kill()
        print("the watcher did not start")
        return 1
    pause = random.Random(seed)
    changes = RandomChanges(folder, seed)
    started = time.monotonic()
    for _ in range(number):
        changes.change()
        if pause.random() < 0.15:
            time.sleep(pause.uniform(0.2, 3.0))
    changes.finish()
    finished = time.monotonic()
    fresh = manager.create("fresh", ProjectConfig.local())
    fresh.ingest([folder])
    problems = _wait_until_equal(project, fresh, finished + IN_STEP)
    in_step = time.monotonic()
    watcher.send_signal(signal.SIGINT)
    code = watcher.wait(60)
    reader.join(10)
    errors = [report["error"] for report in reports if "error" in report]
    versions = {report["version"] for report in reports if report.get("version")}
    print(
        f"seed {seed}: {number} changes in {finished - started:.0f} s, {len(versions)} versions;"
        f" {len(fresh.documents())} documents, {len(problems)} differences from a fresh ingest,"
        f" in step {in_step - finished:.1f} s after the last change; {len(errors)} errors; exit code {code}"
    )
    for problem in (*problems, *errors):
        print(f"  {str(problem)[:500]}")
    return int(bool(problems) or code != 130)


def _read(watcher: subprocess.Popen[str], reports: list[dict[str, object]], ready: threading.Event) -> None:
    assert watcher.stdout is not None
    for line in watcher.stdout:
        reports.append(json.loads(line))
        ready.set()


def _wait_until_equal(project: Project, fresh: Project, deadline: float) -> list[str]:
    while True:
        problems = differences(project, fresh)
        if not problems or time.monotonic() > deadline:
            return problems
        time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
