"""Kill a process that adds documents one by one: `python -m tests.slow.faults.merges DISK KILLS SEED`.

As each document gets a part of its own, most kills hit a process that is writing or merging parts. Prints JSON: the
number of kills, of those that left an unfinished merge, of acknowledged documents, and what did not hold.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from llama_index_contextual.storage.verify import LEFTOVER
from tests.slow.faults.cases import NAME, ROOT, create, ingest_one, load

MERGED = "p*-2.building"
"""Second part of a version: what is merged is written after the part with the new document."""


def main(disk: Path, kills: int, seed: int) -> dict[str, Any]:
    """Fork, kill, and check."""
    chance = random.Random(seed)
    _output_of(lambda writing: create(disk))
    acknowledged: list[int] = []
    unfinished = 0
    wrong: list[str] = []
    for _ in range(kills):
        first = (acknowledged[-1] if acknowledged else 0) + 1
        acknowledged += _live_and_die(disk, first, chance)
        unfinished += any((disk / ROOT / NAME / "parts").glob(MERGED))
        wrong += json.loads(_output_of(partial(_write_check, disk, acknowledged)))
    return {"kills": kills, "during merges": unfinished, "acknowledged": len(acknowledged), "wrong": wrong}


def _live_and_die(disk: Path, first: int, chance: random.Random) -> list[int]:
    """Add documents, kill at any point, usually of a merge, and return the documents that were acknowledged."""
    child, reading = _fork(lambda writing: _add_for_ever(disk, first, writing))
    heard = bytearray()
    at_once = chance.random() < 0.2
    with open(reading, "rb", buffering=0) as pipe:
        # What an earlier kill has left is removed before the first document is acknowledged.
        while not (heard and (at_once or any((disk / ROOT / NAME / "parts").glob(MERGED)))):
            if select.select([pipe], [], [], 0.001)[0]:
                heard += pipe.read(4096) or b""
        time.sleep(chance.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        while piece := pipe.read(4096):
            heard += piece
    os.waitpid(child, 0)
    return [int(line) for line in heard.decode().splitlines()]


def _add_for_ever(disk: Path, first: int, writing: int) -> None:
    for number in count(first):
        ingest_one(number)(disk)
        os.write(writing, f"{number}\n".encode())


def _write_check(disk: Path, acknowledged: list[int], writing: int) -> None:
    os.write(writing, _check(disk, acknowledged).encode())


def _check(disk: Path, acknowledged: list[int]) -> str:
    """Return what does not hold, as JSON."""
    project = load(disk)
    wrong = [f"{one.file} {one.message}" for one in project.verify().problems if one.message != LEFTOVER]
    ids = [record.doc_id for record in project.documents()]
    wrong += [f"one{number} is lost" for number in acknowledged if f"one{number}" not in ids]
    # The last document may have been published without being acknowledged.
    wrong += [f"{doc_id} is there twice" for doc_id in set(ids) if ids.count(doc_id) > 1]
    if ids:
        results = project.retrieve("alpha report of part", top_k=len(ids))
        wrong += [f"{len(results.results)} of {len(ids)} are found"] if len(results.results) != len(ids) else []
    return json.dumps(wrong)


def _output_of(run: Callable[[int], object]) -> str:
    """Run a function in a child process, as FAISS starts threads, which a fork does not copy; return what it writes."""
    child, reading = _fork(run)
    with open(reading, "rb") as pipe:
        output = pipe.read()
    status = os.waitpid(child, 0)[1]
    return output.decode() if status == 0 else json.dumps([f"a child ended with {status}"])


def _fork(run: Callable[[int], object]) -> tuple[int, int]:
    """Return the id of a child that runs a function, and the end of the pipe that the function writes to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_end(run, writing)
    os.close(writing)
    return child, reading


def _run_and_end(run: Callable[[int], object], writing: int) -> NoReturn:
    try:
        run(writing)
    except BaseException:  # noqa: BLE001 - the parent must not go on twice
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
