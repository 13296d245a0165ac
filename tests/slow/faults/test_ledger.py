"""Committed results are never lost, and readable rows of a damaged ledger are recovered."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path

import pytest
from pydantic import PrivateAttr

from llama_index_contextual.contextualizer.llm import LLMSession
from llama_index_contextual.errors import LedgerBusyError
from llama_index_contextual.index import kvstore
from llama_index_contextual.index import ledger as ledger_module
from llama_index_contextual.index.ledger import LEDGER_FILE, TABLES, Ledger, LedgerEntry, damaged_ledgers
from llama_index_contextual.index.verify import repair_project, salvage, verify_project
from tests.slow.faults.cases import NAME, ROOT, create, documents, ingest, manager
from tests.slow.faults.commits import faulty_commits, power_cuts, record
from tests.slow.faults.ledger_faults import (
    COMMANDS,
    HINDRANCES,
    Result,
    Rows,
    fill,
    flips,
    held,
    is_reachable,
    kills,
    leave_a_journal,
    rows_of,
)
from tests.slow.faults.sqlite_files import library
from tests.support.models import CountingEmbedding, ScriptedLLM


def entries(count: int) -> list[LedgerEntry]:
    return [LedgerEntry(key=f"k{n:04d}", context=f"Context {n}. " * 10, model="m") for n in range(count)]


def check(result: Result) -> None:
    assert result.wrong == []


needs_fork = pytest.mark.skipif(not is_reachable(), reason="needs fork, and the SQLite of this Python within reach")


@needs_fork
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_killed_in_a_transaction_loses_nothing_and_reports_no_damage(command: str, tmp_path: Path) -> None:
    result = kills(tmp_path, 2, 5, commands=(command,))
    check(result)
    assert result.counts[f"{command} killed"] == 2


@needs_fork
def test_an_interrupted_write_is_rolled_back_and_not_reported_as_damage(tmp_path: Path) -> None:
    create(tmp_path)
    ingest(1)(tmp_path)
    project_dir = tmp_path / ROOT / NAME
    with contextlib.closing(Ledger(project_dir / LEDGER_FILE)) as ledger:
        ledger.add_contexts(entries(2000))
    whole = rows_of(project_dir / LEDGER_FILE)
    for check_or_repair in (verify_project, repair_project):
        leave_a_journal(project_dir / LEDGER_FILE)
        assert (project_dir / f"{LEDGER_FILE}-journal").stat().st_size > 4096
        assert list(check_or_repair(project_dir).problems) == []
        assert damaged_ledgers(project_dir) == []
        assert rows_of(project_dir / LEDGER_FILE) == whole


def test_a_flipped_bit_of_a_ledger_is_reported_or_harmless(tmp_path: Path) -> None:
    check(flips(tmp_path, 40, 11))


@needs_fork
@pytest.mark.skipif(sys.platform != "linux", reason="mounts and limits as on Linux")
@pytest.mark.parametrize("hindrance", HINDRANCES)
def test_an_inaccessible_ledger_is_neither_damaged_nor_replaced(hindrance: str, tmp_path: Path) -> None:
    result = held(tmp_path, 2, 0, only=(hindrance,))
    check(result)
    if f"{hindrance}: skipped" in result.counts:
        pytest.skip("it cannot be hindered so here")


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
    monkeypatch.setattr(ledger_module, "PATIENCE_WRITING", 0)
    pragmas = tuple(pragma.replace("1000", "0") for pragma in kvstore._PRAGMAS["durable"])
    monkeypatch.setitem(kvstore._PRAGMAS, "durable", pragmas)
    llm = HoldingLLM(ledger=tmp_path / ROOT / NAME / LEDGER_FILE)
    project = manager(tmp_path).load(NAME, llm=llm, embed_model=CountingEmbedding())
    real = LLMSession.close

    async def close(self: LLMSession) -> None:
        llm.let_go()
        await real(self)

    monkeypatch.setattr(LLMSession, "close", close)
    with pytest.raises(LedgerBusyError, match=r"ledger.sqlite is locked by another program \(database is locked\)"):
        project.ingest(documents(2, 9))
    assert llm.history
    project.ingest(documents(2, 9))
    assert len(set(llm.history)) == len(llm.history) == 9


reachable = pytest.mark.skipif(library() is None, reason="the SQLite of this Python cannot be reached")


@reachable
def test_an_interrupted_commit_is_complete_or_absent_and_earlier_ones_stay(tmp_path: Path) -> None:
    lived = record(tmp_path / "whole")
    for at, seed, result in power_cuts(tmp_path, lived, 3, every=17):
        assert result == [], (at, seed)
    for at, fault, result in faulty_commits(tmp_path, every=29):
        assert result == [], (at, fault)


def salvaged(path: Path) -> Rows:
    """Return the rows that a repair saves from a ledger."""
    with contextlib.closing(Ledger(path.with_name("rescued.sqlite"))) as ledger:
        salvage(path, ledger)
    kept = rows_of(path.with_name("rescued.sqlite"))
    path.with_name("rescued.sqlite").unlink()
    return kept


def test_a_repair_loses_only_the_rows_of_the_damaged_page(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    fill(path)
    content, whole = path.read_bytes(), rows_of(path)
    spoilt: set[str] = set()
    for page in range(4096, len(content), 4096):  # the first one says where the tables are
        path.write_bytes(content[:page] + b"\xff" * 4096 + content[page + 4096 :])
        kept = salvaged(path)
        assert all(kept[table].items() <= whole[table].items() for table in whole)
        missing = {table for table in whole if kept[table] != whole[table]}
        # Requests of a batch that nobody knows any more would never be sent again.
        assert len(missing) <= 1 or missing == {"batches", "batch_requests"}
        assert {row[1] for row in kept["batch_requests"].values()} <= kept["batches"].keys()
        spoilt |= missing
    assert spoilt == {table for table, rows in whole.items() if rows}, "every table was damaged once"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE embeddings SET vector = zeroblob(256)",
        "UPDATE embeddings SET vector = substr(vector, 2)",
        "UPDATE embeddings SET model = x'00ff'",
        "UPDATE contexts SET context = ''",
        "UPDATE contexts SET output_tokens = -1",
        "UPDATE batch_replies SET text = x'00ff'",
        "UPDATE batches SET batch_id = x'00ff'",
    ],
)
def test_an_implausible_row_is_not_recovered(tmp_path: Path, damage: str) -> None:
    path, table = tmp_path / "ledger.sqlite", damage.split()[1]
    fill(path)
    whole = rows_of(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"{damage} WHERE {TABLES[table][0]} = (SELECT min({TABLES[table][0]}) FROM {table})")
    kept = salvaged(path)
    assert len(whole[table]) - len(kept[table]) == 1
    assert all(kept[name] == whole[name] for name in whole if name not in (table, "batch_requests"))


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
