"""Readers at full speed: `python -m tests.slow.faults.load DISK THREADS` prints JSON after DISK/stop exists.

Once it has an answer, it prints a line that says so.

Every chunk of a version carries the version's mark, so an answer with two marks is a mixed one. Latencies count
separately once DISK/busy is there.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.slow.faults.cases import load, open_below

STOP, BUSY, READY = "stop", "busy", "ready\n"
QUERIES = ("alpha report", "beta", "report number 1")
_EVERY = 200


@dataclass
class Tally:
    """What one reader has seen."""

    answers: int = 0
    mixed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    versions: set[str] = field(default_factory=set)
    quiet: array[float] = field(default_factory=lambda: array("d"))  # hundreds of thousands, in a process whose memory
    busy: array[float] = field(default_factory=lambda: array("d"))  # is measured
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


def read_until_stopped(disk: Path, project: Any, tally: Tally) -> None:
    """Ask, at least once, until there is a file that says stop."""
    number = 0
    busy = False
    while number == 0 or not (disk / STOP).exists():
        number += 1
        busy = busy or (disk / BUSY).exists()
        begin = time.perf_counter()
        try:
            response = project.retrieve(QUERIES[number % len(QUERIES)])
        except Exception as error:  # noqa: BLE001 - whatever comes is counted
            tally.errors[f"{type(error).__name__}: {error}"] += 1
            continue
        (tally.busy if busy else tally.quiet).append(time.perf_counter() - begin)
        tally.answers += 1
        tally.versions.add(response.version)
        tally.mixed += len({chunk.text.split()[0] for chunk in response}) != 1
        if number % _EVERY == 0:
            tally.memory.append(memory())
            tally.files.append(len(open_below(disk)))


def wait_for_readers(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Return once each process that runs this module has an answer."""
    for process in processes:
        if process.stdout is None or process.stdout.readline() != READY:
            raise RuntimeError("a reader has ended before it had an answer")


@contextmanager
def stopped_at_the_end(disk: Path) -> Iterator[None]:
    """Let readers go on until the block ends, however it ends."""
    try:
        yield
    finally:
        (disk / STOP).touch()


def memory() -> int:
    """Return the resident memory of this process in bytes; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def run_threads(disk: Path, threads: int) -> dict[str, Any]:
    """Ask in threads that share one project, and return what they have seen together."""
    project = load(disk)
    project.retrieve("alpha")
    sys.stdout.write(READY)
    sys.stdout.flush()
    tallies = [Tally() for _ in range(threads)]
    workers = [threading.Thread(target=read_until_stopped, args=(disk, project, tally)) for tally in tallies]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gc.collect()
    errors: Counter[str] = sum((tally.errors for tally in tallies), Counter())
    quiet = [value for tally in tallies for value in tally.quiet]
    busy = [value for tally in tallies for value in tally.busy]
    samples = [value for tally in tallies for value in tally.memory]
    return {
        "answers": sum(tally.answers for tally in tallies),
        "mixed": sum(tally.mixed for tally in tallies),
        "errors": dict(errors),
        "versions": len(set().union(*(tally.versions for tally in tallies))),
        "p99_quiet": percentile(quiet, 0.99),
        "p99_busy": percentile(busy, 0.99),
        "memory_first": tallies[0].memory[len(tallies[0].memory) // 10] if tallies[0].memory else 0,
        "memory_last": tallies[0].memory[-1] if tallies[0].memory else 0,
        "memory_most": max(samples, default=0),
        "files_first": tallies[0].files[0] if tallies[0].files else 0,
        "files_most": max((value for tally in tallies for value in tally.files), default=0),
        "files_last": len(open_below(disk)),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_threads(Path(sys.argv[1]), int(sys.argv[2]))))
