"""Commits of the ledger, interrupted at each operation of SQLite or by a power cut."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index import kvstore
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger, LedgerEntry
from tests.slow.faults.sqlite_files import FAULTS, Event, SQLiteFiles, recording

SIZES = (1, 3, 40)
SYNCHRONOUS = ("FULL", "NORMAL", "OFF")
"""Weaker settings than the one that the ledger uses."""


@dataclass
class Lived:
    """What a process did: its operations, and after how many each batch of contexts was acknowledged."""

    events: list[Event] = field(default_factory=list)
    acknowledged: list[tuple[int, list[LedgerEntry]]] = field(default_factory=list)
    begun: list[list[LedgerEntry]] = field(default_factory=list)


def batches() -> list[list[LedgerEntry]]:
    """Return contexts, in commits of several sizes."""
    return [
        [LedgerEntry(key=f"k{number}-{n}", context=f"Context {n}. " * 30, model="m") for n in range(size)]
        for number, size in enumerate((*SIZES, *SIZES))
    ]


def live(folder: Path, system: SQLiteFiles, lived: Lived) -> None:
    """Commit the batches, one after the other; an error ends it."""
    with recording(system), contextlib.closing(Ledger(folder / LEDGER_FILE)) as ledger:
        for number, batch in enumerate(batches()):
            lived.begun.append(batch)
            ledger.add_contexts(batch)
            lived.acknowledged.append((len(system.events), batch))
            ledger.add_vectors("m", [f"v{number}"], np.ones((1, 8), dtype=np.float32))


def violations(folder: Path, known: Sequence[list[LedgerEntry]], begun: Sequence[list[LedgerEntry]]) -> list[str]:
    """Return what does not hold of a ledger that an interruption has left."""
    results: list[str] = []
    path = folder / LEDGER_FILE
    try:
        with contextlib.closing(Ledger(path)) as ledger:
            for batch in begun:
                there = [ledger.contexts([entry.key]).get(entry.key) == entry.context for entry in batch]
                if batch in known and not all(there):
                    results.append(f"{there.count(False)} acknowledged contexts are lost")
                elif any(there) and not all(there):
                    results.append("half a commit is there")
            ledger.add_contexts([LedgerEntry(key="next", context="It goes on.", model="m")])
        with contextlib.closing(sqlite3.connect(path)) as connection:
            if (answer := connection.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
                results.append(f"damaged: {answer[0]}")
    except (ContextualError, sqlite3.Error) as error:
        results.append(f"{type(error).__name__}: {error}")
    return results


def faulty_commits(folder: Path, *, every: int = 1) -> Iterator[tuple[int, str, list[str]]]:
    """Let every operation (or each so many) fail in every way, and yield (number, fault, what does not hold)."""
    count = len(record(folder / "whole").events)
    for at in range(0, count, every):
        for fault in FAULTS:
            case = folder / f"{at}-{fault}"
            case.mkdir()
            lived = Lived()
            with contextlib.suppress(sqlite3.Error, ContextualError):
                live(case, SQLiteFiles(at, fault), lived)
            yield at, fault, violations(case, [batch for _, batch in lived.acknowledged], lived.begun)
            shutil.rmtree(case)


def record(folder: Path, synchronous: str = "EXTRA") -> Lived:
    """Return what a process did that nothing disturbed."""
    folder.mkdir(parents=True)
    system, lived = SQLiteFiles(), Lived()
    pragmas = tuple(p.replace("EXTRA", synchronous) for p in kvstore._PRAGMAS["durable"])
    with mock.patch.dict(kvstore._PRAGMAS, durable=pragmas):
        live(folder, system, lived)
    lived.events = system.events
    shutil.rmtree(folder)
    return lived


def power_cuts(
    folder: Path, lived: Lived, seeds: int, *, every: int = 1, only: Sequence[int] | None = None
) -> Iterator[tuple[int, int, list[str]]]:
    """Cut the power after every operation; yield (number, seed, what does not hold). Seed 0 is a process that ends.

    Args:
        folder: Where the states are laid out.
        lived: What the process did.
        seeds: States that are tried for each operation.
        every: Take each so many operations.
        only: Take these.
    """
    for at in range(0, len(lived.events) + 1, every) if only is None else only:
        known = [batch for end, batch in lived.acknowledged if end <= at]
        for seed in range(seeds):
            case = folder / f"{at}-{seed}"
            case.mkdir(parents=True)
            for name, content in after_power_cut(lived.events[:at], seed).items():
                (case / name).write_bytes(content)
            yield at, seed, violations(case, known, lived.begun)
            shutil.rmtree(case)


def after_power_cut(events: Sequence[Event], seed: int) -> dict[str, bytes]:
    """Return the files that a power cut may leave: what was synced, and of the rest whatever chance gives.

    Of what was not synced since the last sync of its file, each write is there, not there, half there, or zeros; a new
    or deleted name is as it was until its directory was synced, or as it is now.
    """
    chance = random.Random(seed)
    now: dict[str, list[Event]] = {}
    durable: dict[str, list[Event]] = {}
    synced: dict[int, int] = {}
    for event in events:
        if event.kind == "create":
            now[event.name] = []
            synced.pop(id(now[event.name]), None)  # it may be that of a list that is gone
        elif event.kind == "delete":
            now.pop(event.name, None)
        elif event.kind == "sync":
            synced[id(now[event.name])] = len(now[event.name])
        else:
            now[event.name].append(event)
        if event.directory:
            durable = dict(now)
    entries = now if seed == 0 else chance.choice((durable, now))
    if seed == 1:
        return {name: _content(changes[: synced.get(id(changes), 0)], [], chance) for name, changes in durable.items()}
    return {
        name: _content(changes, [], chance) if seed == 0 else _content_after(changes, synced, chance)
        for name, changes in entries.items()
    }


def _content_after(changes: list[Event], synced: dict[int, int], chance: random.Random) -> bytes:
    sure = synced.get(id(changes), 0)
    return _content(changes[:sure], changes[sure:], chance)


def _content(sure: Sequence[Event], unsure: Sequence[Event], chance: random.Random) -> bytes:
    content = bytearray()
    for event in sure:
        _apply(content, event, event.data)
    for event in unsure:
        fate = chance.choice(("there", "there", "not there", "half", "zeros"))
        if fate == "not there":
            continue
        if event.kind == "truncate" or fate == "there":
            _apply(content, event, event.data)
        elif fate == "half":
            _apply(content, event, event.data[: len(event.data) // 2])
        else:
            _apply(content, event, bytes(len(event.data)))
    return bytes(content)


def _apply(content: bytearray, event: Event, data: bytes) -> None:
    if event.kind == "truncate":
        del content[event.at :]
        content.extend(bytes(max(0, event.at - len(content))))
        return
    content.extend(bytes(max(0, event.at - len(content))))
    content[event.at : event.at + len(data)] = data
