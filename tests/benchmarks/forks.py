"""Fork a process while its threads search, and let every child search: `python -m tests.benchmarks.forks --forks 200`.

Prints how many children answered as their parent does, how many hung (no answer within `--seconds`) and how many failed
otherwise; the exit status is 1 unless all answered. Of a child that hung, the stack is printed. The indexes are exact
and compact ones by turns, and the threads of the parent open the project anew again and again, so that a fork also
meets them while they do so.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NoReturn

from llama_index.core.schema import Document

from llama_index_contextual.config import FaissIndex, ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project

QUESTION = "Which pump runs dry after an agrement?"
_PARTS = ("pump", "valve", "sensor", "filter", "heater", "motor", "agreement")

Outcome = tuple[str, str]
"""("answered", ""), ("hung", where), or ("failed", why)."""


def build(root: Path, name: str, *, faiss_index: FaissIndex = "flat", documents: int = 60) -> Project:
    """Return a project whose every search uses both indexes."""
    config = ProjectConfig.local(faiss_index=faiss_index, context="none", chunk_size=60, chunk_overlap=5)
    project = ProjectManager(root).create(name, config)
    project.ingest(
        [
            Document(id_=f"{at}", text=f"Error {at}: the {_PARTS[at % 7]} runs dry near the {_PARTS[at % 5]}. " * 6)
            for at in range(documents)
        ]
    )
    return project


def answer(project: Project) -> list[str]:
    """Return the ids of the passages that answer the question."""
    return [chunk.node_id for chunk in project.retrieve(QUESTION, top_k=5)]


@contextlib.contextmanager
def searching(project: Project, threads: int, *, opening: bool) -> Iterator[None]:
    """Let threads search a project meanwhile; one of them opens it anew each time, where `opening`."""
    ended = threading.Event()
    manager = ProjectManager(project.directory.parent)

    def search() -> None:
        while not ended.is_set():
            answer(project)

    def reopen() -> None:
        while not ended.is_set():
            answer(manager.load(project.name))

    workers = [threading.Thread(target=search) for _ in range(threads)]
    workers += [threading.Thread(target=reopen)] if opening else []
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        ended.set()
        for worker in workers:
            worker.join()


def fork_once(ask: Callable[[], list[str]], expected: list[str], seconds: float) -> Outcome:
    """Fork, let the child ask, and return what became of it; a child that hangs is killed, and says where it hung."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as stacks:
        with warnings.catch_warnings(), _untraced():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads, as is meant here
            child = os.fork()
            if child == 0:
                _in_child(ask, writing, stacks, seconds)
        os.close(writing)
        try:
            message = _read(reading, time.monotonic() + seconds)
            if message is None:
                os.kill(child, signal.SIGKILL)
        finally:
            os.close(reading)
            os.waitpid(child, 0)
        if message is None:
            stacks.seek(0)
            return "hung", stacks.read().decode(errors="replace")
    reply = json.loads(message or b'"it said nothing"')
    return ("answered", "") if reply == expected else ("failed", str(reply))


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Measure no coverage of this thread meanwhile: another thread may hold a lock of `coverage` during a fork."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def _in_child(ask: Callable[[], list[str]], writing: int, stacks: IO[bytes], seconds: float) -> NoReturn:
    threading.settrace(None)  # type: ignore[arg-type]
    faulthandler.dump_traceback_later(seconds * 0.8, file=stacks)
    try:
        reply = json.dumps(ask())
    except BaseException:  # noqa: BLE001 - a test runner must not go on in the child
        reply = json.dumps(traceback.format_exc())
    os.write(writing, reply.encode()[:60_000])
    os._exit(0)


def _read(pipe: int, end: float) -> bytes | None:
    """Return all that comes through a pipe, or None where it is not closed in time."""
    messages = b""
    while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(pipe, 65_536)
        if not piece:
            return messages
        messages += piece
    return None


def run(
    project: Project, forks: int, *, threads: int = 4, seconds: float = 20.0, opening: bool = True
) -> list[Outcome]:
    """Fork so many times while threads search; after a child that hangs, no more."""
    expected, outcomes = answer(project), list[Outcome]()
    with searching(project, threads, opening=opening):
        while len(outcomes) < forks and not any(outcome == "hung" for outcome, _ in outcomes[-3:]):
            outcomes.append(fork_once(lambda: answer(project), expected, seconds))
    return outcomes


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forks", type=int, default=200)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    result: Counter[str] = Counter()
    kinds: tuple[FaissIndex, ...] = ("flat", "rabitq")
    with tempfile.TemporaryDirectory() as folder:
        for at, kind in enumerate(kinds):
            project = build(Path(folder), kind, faiss_index=kind)
            number = (options.forks + at) // len(kinds)
            outcomes = run(project, number, threads=options.threads, seconds=options.seconds)
            counts = Counter(outcome for outcome, _ in outcomes)
            print(f"{kind}: {len(outcomes)} forks, {dict(counts)}")
            print("".join(sorted({why for _, why in outcomes})), end="")
            result += counts
            result["left out"] += number - len(outcomes)
    print(
        f"{sum(result.values())} forks: {result['answered']} answered, {result['hung']} hung, {result['failed']} failed"
    )
    return 0 if result["answered"] == options.forks else 1


if __name__ == "__main__":
    sys.exit(main())
