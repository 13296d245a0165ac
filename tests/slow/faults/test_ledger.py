"""Committed results are never lost, and readable rows of a damaged ledger are recovered."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import PrivateAttr

from llama_index_contextual.contextualizer.scheduler import ContextWriter
from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import CorruptVersionError, FormatError, LedgerBusyError
from llama_index_contextual.storage import kvstore, ledger_file
from llama_index_contextual.storage.batches import BatchReply
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger, LedgerEntry
from llama_index_contextual.storage.ledger_lines import salvage
from llama_index_contextual.storage.verify import DAMAGED, damaged_ledgers, repair_project, verify_project
from tests.slow.faults.cases import NAME, ROOT, create, documents, ingest, load, manager
from tests.slow.faults.commits import SYNCHRONOUS, faulty_commits, power_cuts, record
from tests.slow.faults.ledger_faults import (
    COMMANDS,
    HINDRANCES,
    Result,
    flips,
    held,
    is_reachable,
    kills,
    leave_a_journal,
    unavailable,
)
from tests.slow.faults.ledger_faults import rows_of as all_rows_of
from tests.slow.faults.sqlite_files import library
from tests.support.models import CountingEmbedding, ScriptedLLM


def entries(count: int) -> list[LedgerEntry]:
    return [LedgerEntry(key=f"k{n:04d}", context=f"Context {n}. " * 10, model="m") for n in range(count)]


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_killed_process_loses_no_committed_context(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.slow.faults.kills", str(tmp_path / LEDGER_FILE), "8", "1"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (result["lost"], result["damaged"]) == (0, 0)
    assert result["acknowledged"] >= 8


def test_the_removal_of_the_journal_is_synced_so_that_no_commit_is_undone(tmp_path: Path) -> None:
    path, journal = tmp_path / LEDGER_FILE, tmp_path / f"{LEDGER_FILE}-journal"
    with contextlib.closing(Ledger(path)) as ledger:
        with ledger._kv.transaction() as connection:
            connection.execute("INSERT INTO contexts VALUES ('k', 'c', 'm', 0, 0, 0, 0, NULL)")
            connection.execute("PRAGMA cache_spill = 1")
            connection.execute("SELECT 1")
            assert journal.exists()
        extra = 3
        assert ledger._kv.query("PRAGMA synchronous") == [(extra,)]
        assert not journal.exists()


def check(result: Result) -> None:
    assert result.wrong == []


needs_fork = pytest.mark.skipif(not is_reachable(), reason="needs fork, and the SQLite of this Python within reach")


@needs_fork
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_killed_in_a_transaction_loses_nothing_and_reports_no_damage(command: str, tmp_path: Path) -> None:
    check(kills(tmp_path, 3, 5, rows=400, commands=(command,)))


@needs_fork
def test_an_interrupted_write_is_rolled_back_and_not_reported_as_damage(tmp_path: Path) -> None:
    create(tmp_path)
    ingest(1)(tmp_path)
    project_dir = tmp_path / ROOT / NAME
    with contextlib.closing(Ledger(project_dir / LEDGER_FILE)) as ledger:
        ledger.add_contexts(entries(2000))
    whole = all_rows_of(project_dir / LEDGER_FILE)
    for check_or_repair in (verify_project, repair_project):
        leave_a_journal(project_dir / LEDGER_FILE)
        assert (project_dir / f"{LEDGER_FILE}-journal").stat().st_size > 4096
        assert list(check_or_repair(project_dir).problems) == []
        assert damaged_ledgers(project_dir) == []
        assert all_rows_of(project_dir / LEDGER_FILE) == whole


def test_a_flipped_bit_of_a_ledger_is_reported_or_harmless(tmp_path: Path) -> None:
    check(flips(tmp_path, 60, 11))


@needs_fork
@pytest.mark.skipif(sys.platform != "linux", reason="mounts, limits and preloading as on Linux")
@pytest.mark.parametrize("hindrance", HINDRANCES)
def test_an_inaccessible_ledger_is_neither_damaged_nor_replaced(hindrance: str, tmp_path: Path) -> None:
    if why := unavailable(hindrance, tmp_path):
        pytest.skip(why)
    check(held(tmp_path, 2, 0, only=(hindrance,)))


class HoldingLLM(ScriptedLLM):
    """Another program takes the ledger when the first question has arrived."""

    ledger: Path
    _holder: sqlite3.Connection | None = PrivateAttr(default=None)

    def _answer(self, prompt: str) -> str:
        if self._holder is None:
            self._holder = sqlite3.connect(self.ledger, isolation_level=None, check_same_thread=False)
            self._holder.execute("BEGIN EXCLUSIVE")
        return super()._answer(prompt)

    def let_go(self) -> None:
        """Close the ledger."""
        if self._holder is not None:
            self._holder.close()


def test_answers_received_while_the_ledger_is_locked_are_not_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path)
    ingest(1)(tmp_path)
    monkeypatch.setattr(ledger_file, "PATIENCE_WRITING", 0)
    pragmas = tuple(pragma.replace("1000", "0") for pragma in kvstore._PRAGMAS["durable"])
    monkeypatch.setitem(kvstore._PRAGMAS, "durable", pragmas)
    llm = HoldingLLM(ledger=tmp_path / ROOT / NAME / LEDGER_FILE)
    project = manager(tmp_path).load(NAME, llm=llm, embed_model=CountingEmbedding())
    real = ContextWriter.close

    async def close(self: ContextWriter) -> None:
        llm.let_go()
        await real(self)

    monkeypatch.setattr(ContextWriter, "close", close)
    with pytest.raises(LedgerBusyError, match=r"ledger.sqlite is locked by another program \(database is locked\)"):
        project.ingest(documents(2, 9))
    assert llm.history
    project.ingest(documents(2, 9))
    assert len(set(llm.history)) == len(llm.history) == 9


@pytest.mark.parametrize("command", ["rebuild", "retry_failed", "forget", "import_contexts"])
def test_a_command_that_meets_a_locked_ledger_gives_advice(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path)
    ingest(1)(tmp_path)
    monkeypatch.setattr(ledger_file, "PATIENCE_WRITING", 0)
    (tmp_path / "contexts.jsonl").write_text('{"key": "k", "context": "c", "model": "m"}')
    with contextlib.closing(
        sqlite3.connect(tmp_path / ROOT / NAME / LEDGER_FILE, isolation_level=None, timeout=0)
    ) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        arguments = [tmp_path / "contexts.jsonl"] if command == "import_contexts" else []
        with pytest.raises(LedgerBusyError, match="wait until it has finished, or close it"):
            getattr(load(tmp_path), command)(*arguments)


reachable = pytest.mark.skipif(library() is None, reason="the SQLite of this Python cannot be reached")


@reachable
def test_an_interrupted_commit_is_complete_or_absent_and_earlier_ones_stay(tmp_path: Path) -> None:
    lived = record(tmp_path / "whole")
    for at, seed, result in power_cuts(tmp_path, lived, 3, every=17):
        assert result == [], (at, seed)
    for at, fault, result in faulty_commits(tmp_path, every=29):
        assert result == [], (at, fault)


@reachable
@pytest.mark.parametrize("synchronous", SYNCHRONOUS)
def test_with_fewer_syncs_an_acknowledged_commit_is_lost(tmp_path: Path, synchronous: str) -> None:
    lived = record(tmp_path / "whole", synchronous)
    ends = [end for end, _ in lived.acknowledged]
    assert any(result for _, _, result in power_cuts(tmp_path, lived, 4, only=ends))


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be read" * 40, b"\0" * 8192])
def test_an_invalid_ledger_is_refused_with_advice(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(content)
    with pytest.raises(CorruptVersionError, match=r"ledger.sqlite is damaged .* `verify --repair`") as raised:
        Ledger(tmp_path / LEDGER_FILE)
    assert raised.value.file == LEDGER_FILE


def test_a_ledger_of_a_newer_format_is_refused_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / LEDGER_FILE
    Ledger(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("""UPDATE kv SET value = '{"version": 4}' WHERE key = 'format'""")
    with pytest.raises(FormatError, match=r"ledger.sqlite has format 4, this release reads up to 3: upgrade"):
        Ledger(path)


def test_repair_recovers_all_readable_rows_of_a_damaged_ledger(tmp_path: Path) -> None:
    create(tmp_path)
    ingest(1)(tmp_path)
    project_dir = tmp_path / ROOT / NAME
    path = project_dir / LEDGER_FILE
    with contextlib.closing(Ledger(path)) as ledger:
        ledger.add_contexts(entries(2000))
        before = ledger.info().contexts
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    problems = verify_project(project_dir).problems
    remedy = f"llama-index-contextual verify {NAME} --repair --root {project_dir.parent}"
    assert [(p.file, p.remedy) for p in problems] == [(LEDGER_FILE, remedy)]
    assert list(repair_project(project_dir).problems) == []
    assert (project_dir / f"{LEDGER_FILE}{DAMAGED}").read_bytes() == content
    with contextlib.closing(Ledger(path)) as ledger:
        assert before // 2 < ledger.info().contexts < before
    ingest(2)(tmp_path)
    assert load(tmp_path).retrieve("mark2").results


TABLES = ("contexts", "embeddings", "batch_replies", "batches", "batch_requests")


def rows_of(path: Path) -> dict[str, set[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return {table: set(connection.execute(f"SELECT * FROM {table}")) for table in TABLES}


def fill(path: Path) -> None:
    """Write a ledger with several pages of each kind of row that was paid for."""
    with contextlib.closing(Ledger(path)) as ledger:
        ledger.add_contexts(entries(60))
        keys = [f"k{n:04d}" for n in range(60)]
        vectors = unit_vectors(np.random.default_rng(1).normal(size=(60, 64)).astype(np.float32))
        ledger.add_vectors("m", keys, vectors)
        for name in ("answered", "under way", "not begun"):
            ledger.batches.uploaded(name, model="m", custom_ids=[f"{name} {key * 8}" for key in keys])
        ledger.batches.started("under way", "batch-2")
        replies = [BatchReply(custom_id=key, text=f"Context {key}. " * 20, output_tokens=9) for key in keys]
        ledger.batches.closed("answered", replies)


def test_a_repair_loses_only_the_rows_of_the_damaged_page(tmp_path: Path) -> None:
    fill(tmp_path / "whole.sqlite")
    content, whole = (tmp_path / "whole.sqlite").read_bytes(), rows_of(tmp_path / "whole.sqlite")
    assert min(map(len, whole.values())) > 1
    spoilt: set[str] = set()
    for page in range(4096, len(content), 4096):  # the first one says where the tables are
        (tmp_path / "spoilt.sqlite").write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
        rescued = tmp_path / f"rescued-{page}.sqlite"
        with contextlib.closing(Ledger(rescued)) as ledger:
            salvage(tmp_path / "spoilt.sqlite", ledger)
        kept = rows_of(rescued)
        assert all(kept[table] <= whole[table] for table in TABLES)
        missing_rows = {table for table in TABLES if kept[table] < whole[table]}
        # Requests of a batch that nobody knows any more would never be sent again.
        assert len(missing_rows) <= 1 or missing_rows == {"batches", "batch_requests"}
        assert {row[1] for row in kept["batch_requests"]} <= {row[0] for row in kept["batches"]}
        spoilt |= missing_rows
    assert spoilt == set(TABLES), "every table was damaged once"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE embeddings SET vector = zeroblob(256) WHERE key = 'k0000'",
        "UPDATE embeddings SET vector = substr(vector, 2) WHERE key = 'k0000'",
        "UPDATE embeddings SET model = x'00ff' WHERE key = 'k0000'",
        "UPDATE contexts SET context = '' WHERE key = 'k0000'",
        "UPDATE contexts SET output_tokens = -1 WHERE key = 'k0000'",
        "UPDATE batch_replies SET text = x'00ff' WHERE custom_id = 'k0000'",
        "UPDATE batches SET batch_id = x'00ff' WHERE file_id = 'under way'",
    ],
)
def test_an_implausible_row_is_not_recovered(tmp_path: Path, damage: str) -> None:
    fill(tmp_path / "spoilt.sqlite")
    whole = rows_of(tmp_path / "spoilt.sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "spoilt.sqlite")) as connection, connection:
        assert connection.execute(damage).rowcount == 1
    with contextlib.closing(Ledger(tmp_path / "rescued.sqlite")) as ledger:
        salvage(tmp_path / "spoilt.sqlite", ledger)
    kept, table = rows_of(tmp_path / "rescued.sqlite"), damage.split()[1]
    assert len(whole[table] - kept[table]) == 1
    assert all(kept[name] == whole[name] for name in TABLES if name not in (table, "batch_requests"))


def test_a_second_repair_keeps_the_file_saved_by_the_first(tmp_path: Path) -> None:
    create(tmp_path)
    ingest(1)(tmp_path)
    project_dir = tmp_path / ROOT / NAME
    spoilt = [bytes([number]) * 5000 for number in (1, 2, 3)]
    for content in spoilt:
        (project_dir / LEDGER_FILE).write_bytes(content)
        assert list(repair_project(project_dir).problems) == []
    assert [path.read_bytes() for path in damaged_ledgers(project_dir)] == spoilt
    assert [path.name for path in damaged_ledgers(project_dir)] == [
        "ledger.sqlite.damaged",
        "ledger.sqlite.damaged.2",
        "ledger.sqlite.damaged.3",
    ]
    manager(tmp_path).delete(NAME, keep_ledger=True)
    create(tmp_path)
    assert damaged_ledgers(project_dir) == []
