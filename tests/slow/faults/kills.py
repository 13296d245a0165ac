"""Kill a process that adds contexts to a ledger, again and again: `python -m tests.slow.faults.kills FILE KILLS SEED`.

Prints JSON: the number of kills, of acknowledged contexts, and of those that are lost.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

from llama_index_contextual.storage.ledger import Ledger, LedgerEntry


def main(path: Path, kills: int, seed: int) -> dict[str, int]:
    """Fork, kill, and count."""
    chance = random.Random(seed)
    acknowledged: set[str] = set()
    missing_rows = damaged = 0
    for life in range(kills):
        acknowledged |= _live_and_die(path, life, chance)
        with closing(sqlite3.connect(path)) as connection:
            damaged += connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]
        with closing(Ledger(path)) as ledger:
            missing_rows += sum(ledger.context(key) != _context(key) for key in acknowledged)
    return {"kills": kills, "acknowledged": len(acknowledged), "lost": missing_rows, "damaged": damaged}


def _live_and_die(path: Path, life: int, chance: random.Random) -> set[str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _add_for_ever(path, life, writing)
    os.close(writing)
    heard = bytearray()
    with open(reading, "rb", buffering=0) as pipe:
        expected, extra = chance.randrange(1, 12), chance.random() * 0.004
        while heard.count(b"\n") < expected and (piece := pipe.read(4096)):
            heard += piece
        until = time.perf_counter() + extra
        while time.perf_counter() < until:
            pass  # so that the end comes at any point of a commit
        os.kill(child, signal.SIGKILL)
        while piece := pipe.read(4096):
            heard += piece
    os.waitpid(child, 0)
    return set(heard.decode().rpartition("\n")[0].splitlines())


def _add_for_ever(path: Path, life: int, writing: int) -> None:
    ledger = Ledger(path)
    number = 0
    while True:
        keys = [f"{life}-{number}-{part}" for part in range(1 + number % 3)]
        ledger.add_contexts([LedgerEntry(key=key, context=_context(key), model="m") for key in keys])
        os.write(writing, "".join(f"{key}\n" for key in keys).encode())
        number += 1


def _context(key: str) -> str:
    return f"The context of {key}. " * 20


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
