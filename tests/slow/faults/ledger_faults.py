"""Ledgers of whole projects under faults: `python -m tests.slow.faults.ledger_faults FOLDER PART NUMBER SEED`.

`kills` ends processes inside transactions of the ledger, `flips` changes single bits of it, `held` checks and repairs
it where it cannot be had. Each prints JSON: what was tried, and what did not hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import ContextualError, CorruptVersionError, FormatError
from llama_index_contextual.index import ledger as ledger_module
from llama_index_contextual.index.ledger import (
    LEDGER_FILE,
    TABLES,
    BatchReply,
    Ledger,
    LedgerEntry,
    content_key,
    damaged_ledgers,
)
from llama_index_contextual.index.verify import LEFTOVER, repair_project, verify_project
from tests.slow.faults.cases import LINES, NAME, ROOT, SCENARIOS, Bench, Scenario, create, documents, load, violations
from tests.slow.faults.sqlite_files import Event, SQLiteFiles, library, recording

JOURNAL = f"{LEDGER_FILE}-journal"
COMMANDS = ("ledger import", "ingest, update", "rebuild", "retry", "remove, for good")

_ON_A_PAGE = 30
_TREE = (0x02, 0x05, 0x0A, 0x0D)

Rows = dict[str, dict[Any, tuple[Any, ...]]]


@dataclass
class Result:
    """What was tried, and what did not hold."""

    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def count(self, name: str) -> None:
        """Add one to a figure."""
        self.counts[name] = self.counts.get(name, 0) + 1


def rows_of(path: Path) -> Rows:
    """Return all rows of a ledger by table and key, without the time of their writing and the checksums."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        return {
            table: {row[0]: row for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table}")}
            for table, columns in TABLES.items()
        }


# ---- kills ----------------------------------------------------------------------------------------------------------


@dataclass
class _Deadly(SQLiteFiles):
    """Ends the process before one operation; counts them otherwise."""

    count: int = 0
    journal: Path | None = None

    def _failed(self, event: Event) -> int:
        if self.count == self.fail_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return 0


def _in_a_child(run: Callable[[], object]) -> int:
    """Return how a child process ends that runs this."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def _acknowledging(file: Path) -> contextlib.AbstractContextManager[object]:
    """Write down the contexts whose commit was acknowledged."""
    real = Ledger.add_contexts

    def add(self: Ledger, entries: Any) -> None:
        rows = list(entries)
        real(self, rows)
        with file.open("a") as noted:
            noted.write("".join(f"{json.dumps([row.key, row.context])}\n" for row in rows))

    return mock.patch.object(Ledger, "add_contexts", add)


def kills(folder: Path, number: int, seed: int, *, commands: Sequence[str] = COMMANDS) -> Result:
    """Kill a process before an operation of SQLite: what was paid for is there, and the command can be run again.

    Args:
        folder: Where everything happens.
        number: How many kills in all.
        seed: Where.
        commands: Names of scenarios.
    """
    chance, result, bench = random.Random(seed), Result(), Bench(folder)
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in commands]
    operations = [_operations(bench, scenario) for scenario in scenarios]
    for case in range(number):
        scenario = scenarios[case % len(scenarios)]
        at = chance.randrange(operations[case % len(scenarios)])
        failures = _one_kill(bench, scenario, at, result)
        result.wrong += [f"{scenario.name}, killed before operation {at}: {failure}" for failure in failures]
    return result


def _operations(bench: Bench, scenario: Scenario) -> int:
    """Return how many operations of SQLite a command needs."""
    disk = bench.disk(scenario)
    counted = disk.with_name("operations")

    def count() -> None:
        with recording(_Deadly()) as system:
            scenario.run(disk)
        counted.write_text(str(system.count))

    if _in_a_child(count):
        raise RuntimeError(f"{scenario.name} fails without a kill")
    return int(counted.read_text())


def _one_kill(bench: Bench, scenario: Scenario, at: int, result: Result) -> list[str]:
    disk = bench.disk(scenario)
    project_dir, noted = disk / ROOT / NAME, disk.with_name("acknowledged")
    before = rows_of(project_dir / LEDGER_FILE)
    paid = {} if scenario.gone else {key: row[1] for key, row in before["contexts"].items()}

    def live() -> None:
        with recording(_Deadly(fail_at=at)), _acknowledging(noted):
            scenario.run(disk)

    code = _in_a_child(live)
    result.count(f"{scenario.name} {'killed' if code == signal.SIGKILL else 'ended before'}")
    if (project_dir / JOURNAL).exists():
        result.count("with a journal")
    if noted.exists():
        paid |= dict(map(json.loads, noted.read_text().splitlines()))
    problems = [p.message for p in repair_project(project_dir).problems if p.message != LEFTOVER]
    problems += ["a ledger is set aside"] if damaged_ledgers(project_dir) else []
    after = rows_of(project_dir / LEDGER_FILE)
    if lost := [key for key, row in before["embeddings"].items() if after["embeddings"].get(key) != row]:
        problems += [] if scenario.gone else [f"{len(lost)} embeddings are lost"]
    if scenario.name == "ledger import" and len(after["contexts"]) - len(before["contexts"]) not in (0, LINES):
        problems.append("half an import is there")
    entries = [LedgerEntry(key=key, context=context, model="m") for key, context in paid.items()]
    return problems + violations(bench, scenario, disk, entries, finished=code == 0)


# ---- flips ----------------------------------------------------------------------------------------------------------


def fill(path: Path, rows: int = 60) -> None:
    """Write a ledger with rows of every kind, on several pages."""
    with contextlib.closing(Ledger(path)) as ledger:
        keys = [content_key(str(number)) for number in range(rows)]
        ledger.add_contexts(
            LedgerEntry(key=key, context=f"Zölle {key[-8:]}. " * 9, model="m", input_tokens=3, output_tokens=at)
            for at, key in enumerate(keys)
        )
        vectors = unit_vectors(np.random.default_rng(1).normal(size=(rows, 64)).astype(np.float32))
        ledger.add_vectors("m", keys, vectors)
        long = unit_vectors(np.random.default_rng(2).normal(size=(4, 1_536)).astype(np.float32))
        ledger.add_vectors("long", [f"long {key}" for key in keys[:4]], long)
        for name in ("answered", "under way"):
            ledger.batches.uploaded(name, model="m", custom_ids=[content_key(name, key) for key in keys[:20]])
        ledger.batches.started("under way", "batch-2")
        ledger.batches.closed("answered", [BatchReply(custom_id=key, text=f"Reply {key}. " * 9) for key in keys[:20]])


def flips(folder: Path, number: int, seed: int) -> Result:
    """Change one bit of a ledger, anywhere in the file, verify it, and ask for every answer.

    Args:
        folder: Where everything happens.
        number: How many bits, one after the other.
        seed: Which.
    """
    chance, result = random.Random(seed), Result()
    folder.mkdir(exist_ok=True)
    disk = folder / "disk"
    disk.mkdir()
    create(disk)
    project_dir = disk / ROOT / NAME
    path = project_dir / LEDGER_FILE
    fill(path)
    with contextlib.closing(Ledger(path)) as ledger:
        answers = _answers(ledger, rows_of(path))
    ledger_module.logger.disabled = True
    content, whole = path.read_bytes(), rows_of(path)
    places = list(_row_bytes(content))
    for _ in range(number):
        at, bit = chance.choice(places), chance.randrange(8)
        changed = bytearray(content)
        changed[at] ^= 1 << bit
        path.write_bytes(changed)
        what = f"bit {bit} of byte {at}"
        named = [p.message for p in verify_project(project_dir).problems if p.file == LEDGER_FILE]
        result.count("flips")
        if named:
            result.count("named")
        elif rows_of(path) != whole:
            result.wrong.append(f"{what} is not named")
        else:
            result.count("harmless")
        try:
            with contextlib.closing(Ledger(path, read_only=True)) as ledger:
                _compare(answers, _answers(ledger, whole), what, result)
        except (CorruptVersionError, FormatError):
            result.count("refused")
        if result.counts["flips"] % 20 == 0 and named:
            _check_repair(project_dir, path, whole, what, result)
            for damaged in damaged_ledgers(project_dir):
                damaged.unlink()
    path.write_bytes(content)
    return result


def _row_bytes(content: bytes) -> Iterator[int]:
    """Yield where the rows of a ledger stand in its file: everything but its first page, headers and free space."""
    size = int.from_bytes(content[16:18], "big")
    for page in range(size, len(content), size):
        if content[page] in _TREE:  # cells stand behind the space that is free
            yield from range(page + int.from_bytes(content[page + 5 : page + 7], "big"), page + size)
        elif content[page] == 0:  # the rest of a long row, behind the number of the next page
            yield from range(page + 4, page + size)


def _answers(ledger: Ledger, whole: Rows) -> dict[str, Any]:
    answers: dict[str, Any] = {f"c{key}": text for key, text in ledger.contexts(list(whole["contexts"])).items()}
    for is_long in (True, False):
        keys = [key for key in whole["embeddings"] if key.startswith("long") == is_long]
        answers |= {f"v{key}": row.tobytes() for key, row in ledger.vectors(keys).items()}
    answers |= {f"r{key}": ledger.batches.reply(key) for key in whole["batch_replies"]}
    answers |= {f"b{batch.file_id}": batch.batch_id for batch in ledger.batches.open_batches()}
    return answers


def _compare(answers: Mapping[str, Any], now: Mapping[str, Any], what: str, result: Result) -> None:
    changed = [key for key, answer in now.items() if answer is not None and answers.get(key) != answer]
    if changed:
        result.wrong.append(f"{what} changes {len(changed)} answers")


def _check_repair(project_dir: Path, path: Path, whole: Rows, what: str, result: Result) -> None:
    try:
        problems = repair_project(project_dir).problems
    except FormatError:
        return  # it says that a newer release wrote it
    result.count("repaired")
    if problems:
        result.wrong.append(f"{what}: after the repair {[p.message for p in problems]}")
    kept = rows_of(path)
    for table in TABLES:
        missing_rows = len(whole[table]) - len(kept[table])
        result.counts["rows given up"] = result.counts.get("rows given up", 0) + missing_rows
        if missing_rows > _ON_A_PAGE:
            result.wrong.append(f"{what}: the repair loses {missing_rows} rows of {table}")
        if any(whole[table].get(key) != row for key, row in kept[table].items()):
            result.wrong.append(f"{what}: the repair changes rows of {table}")


# ---- held -----------------------------------------------------------------------------------------------------------


def check_both(project_dir: Path) -> list[list[str]]:
    """Return what `verify` and the repair say of a ledger, without patience."""
    messages: list[list[str]] = []
    with mock.patch.multiple(ledger_module, PATIENCE_READING=0, PATIENCE_WRITING=0):
        for check in (verify_project, repair_project):
            try:
                messages.append([p.message for p in check(project_dir).problems if p.file == LEDGER_FILE])
            except ContextualError as error:
                messages.append([f"{type(error).__name__}: {error}"])
    return messages


def leave_a_journal(path: Path, rows: int = 3_000) -> None:
    """Let a process die in the middle of a transaction, when pages have come to the file already."""

    def die() -> None:
        with contextlib.closing(Ledger(path)) as ledger:
            ledger.query("PRAGMA cache_size = 10")
            with ledger.transaction() as connection:
                connection.execute("UPDATE contexts SET context = 'half'")
                values = ((f"x{number}", "half " * 50, "m", 0.0, None, None, None) for number in range(rows))
                ledger.insert("contexts", values)
                os.kill(os.getpid(), signal.SIGKILL)

    if _in_a_child(die) != signal.SIGKILL:
        raise RuntimeError("the process was not killed")


def _hold(project_dir: Path) -> None:
    _kept.append(sqlite3.connect(project_dir / LEDGER_FILE, isolation_level=None))
    _kept[-1].execute("BEGIN EXCLUSIVE")


def _refuse_locks(project_dir: Path) -> None:
    _kept.append(recording(SQLiteFiles(refuses_locks=True)))
    _kept[-1].__enter__()


def _mount_read_only(project_dir: Path) -> None:
    new_mounts = 0x20000
    if ctypes.CDLL(None).unshare(new_mounts):
        raise OSError("no mounts of its own")
    place = str(project_dir)
    for arguments in (("--make-rprivate", "/"), ("--bind", place, place), ("-o", "remount,bind,ro", place)):
        subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _limit_files(project_dir: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


_kept: list[Any] = []
HINDRANCES: Mapping[str, Callable[[Path], None]] = {
    "held": _hold,
    "without locks": _refuse_locks,
    "read-only": _mount_read_only,
    "small files": _limit_files,
}


def _said(project_dir: Path, hinder: Callable[[Path], None]) -> list[list[str]] | None:
    """Return what `verify` and the repair say in a hindered process; None where it cannot be hindered."""
    reading, writing = os.pipe()

    def check() -> None:
        messages = None
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            hinder(project_dir)
            messages = check_both(project_dir)
        os.write(writing, json.dumps(messages).encode())

    code = _in_a_child(check)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    return json.loads(answer) if code == 0 else [[f"foreign: ends with {code}"]]  # type: ignore[no-any-return]


def held(folder: Path, number: int, seed: int, *, only: tuple[str, ...] = ()) -> Result:
    """Verify and repair a project whose ledger cannot be had: nothing is set aside, and every byte stays.

    Every other run has a journal that a killed process has left.

    Args:
        folder: Where everything happens.
        number: Runs.
        seed: Not used: nothing is left to chance.
        only: Hindrances; all without any.
    """
    result, names = Result(), only or tuple(HINDRANCES)
    template = folder / "template"
    template.mkdir(parents=True)
    create(template)
    load(template).ingest(documents(1, 3))
    fill(template / ROOT / NAME / LEDGER_FILE)
    for run in range(number):
        _one_held(folder, template, names[run % len(names)], run // len(names) % 2 == 1, result)
    return result


def _one_held(folder: Path, template: Path, name: str, with_journal: bool, result: Result) -> None:
    disk = folder / "case"
    shutil.copytree(template, disk)
    project_dir = disk / ROOT / NAME
    path = project_dir / LEDGER_FILE
    whole = rows_of(path)
    if with_journal and name != "held":  # who holds it exclusively has undone it
        leave_a_journal(path)
    what = f"{name}{', with a journal' if with_journal else ''}"
    ours = {at: at.read_bytes() for at in (path, project_dir / JOURNAL) if at.exists()}
    messages = _said(project_dir, HINDRANCES[name])
    result.count(what if messages is not None else f"{what}: skipped")
    if messages is not None:
        said = [line for lines in messages for line in lines]
        # Without a journal a file that cannot grow, or cannot be written, can be checked all the same.
        is_readable = name in ("small files", "read-only") and not with_journal
        # What SQLite could undo in part stands in the journal still.
        may_change = name == "small files"
        failures = {
            f"{messages}": len(messages) != 2 or any("foreign" in line or "is damaged" in line for line in said),
            f"it is not said that the ledger cannot be checked: {messages}": not is_readable and not all(messages),
            "the ledger is not as it was": not may_change and any(at.read_bytes() != ours[at] for at in ours),
            "a ledger is set aside": bool(damaged_ledgers(project_dir)),
            "it is not sound afterwards": bool(verify_project(project_dir).problems),
            "rows are lost": rows_of(path) != whole,
        }
        result.wrong += [f"{what}: {failure}" for failure, is_so in failures.items() if is_so]
    shutil.rmtree(disk)


PARTS = {"kills": kills, "flips": flips, "held": held}


def is_reachable() -> bool:
    """Return whether the operations of SQLite can be counted here."""
    return library() is not None and hasattr(os, "fork")


if __name__ == "__main__":
    with mock.patch("os.fsync", return_value=None):
        found = PARTS[sys.argv[2]](Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))  # type: ignore[operator]
    sys.stdout.write(json.dumps({"counts": found.counts, "wrong": found.wrong}))
