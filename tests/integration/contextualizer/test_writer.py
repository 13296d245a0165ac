"""Writing contexts to the ledger: acknowledged when on disk, committed together under load."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from llama_index_contextual.contextualizer.llm import ContextWriter
from llama_index_contextual.errors import LedgerBusyError
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from tests.support.recorder import PATIENCE


def entry(number: int) -> LedgerEntry:
    return LedgerEntry(key=f"{number:064}", context=f"Context {number}.", model="m")


class SlowLedger(Ledger):
    """Commits when it is told to, and remembers how many at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits: list[int] = []
        self.go = threading.Event()

    def add_contexts(self, entries: Iterable[LedgerEntry]) -> None:
        """Wait, then commit."""
        rows = list(entries)
        assert self.go.wait(PATIENCE)
        self.commits.append(len(rows))
        super().add_contexts(rows)


@pytest.fixture
def ledger(tmp_path: Path) -> SlowLedger:
    return SlowLedger(tmp_path / "ledger.sqlite")


def on_disk(ledger: Ledger) -> int:
    assert ledger.path is not None
    with sqlite3.connect(ledger.path) as connection:
        return int(connection.execute("SELECT count(*) FROM contexts").fetchone()[0])


async def tasks_begin() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_contexts_that_arrive_during_a_commit_are_committed_together(ledger: SlowLedger) -> None:
    writer = ContextWriter(ledger)
    first = asyncio.create_task(writer.add([entry(0)]))
    await tasks_begin()
    others = [asyncio.create_task(writer.add([entry(n)])) for n in range(1, 20)]
    await tasks_begin()
    assert not first.done()
    ledger.go.set()
    await asyncio.gather(first, *others)
    assert ledger.commits == [1, 19]


async def test_a_context_is_on_the_disk_when_add_returns(ledger: SlowLedger) -> None:
    ledger.go.set()
    writer = ContextWriter(ledger)
    for number in range(3):
        await writer.add([entry(number)])
        assert on_disk(ledger) == number + 1


async def test_contexts_are_committed_even_if_their_caller_was_cancelled(ledger: SlowLedger) -> None:
    writer = ContextWriter(ledger)
    adding = asyncio.create_task(writer.add([entry(0)]))
    await tasks_begin()
    adding.cancel()
    ledger.go.set()
    await writer.close()
    assert on_disk(ledger) == 1


async def test_an_unwritable_ledger_raises_an_error_in_add(ledger: SlowLedger) -> None:
    ledger.go.set()
    writer = ContextWriter(ledger)
    ledger.close()
    with pytest.raises(sqlite3.ProgrammingError):
        await writer.add([entry(0)])


async def test_an_answer_that_cannot_be_stored_does_not_affect_others(ledger: SlowLedger) -> None:
    writer = ContextWriter(ledger)
    bad = LedgerEntry(key="bad", context="half a letter: \ud800", model="m")
    first = asyncio.create_task(writer.add([entry(0)]))
    await tasks_begin()
    others = [writer.add([entry(1)]), writer.add([entry(2), bad, entry(3)]), writer.add([entry(4)])]
    adding = [asyncio.create_task(other) for other in others]
    await tasks_begin()
    ledger.go.set()
    refused = await asyncio.gather(first, *adding)
    assert [list(one) for one in refused] == [[], [], ["bad"], []]
    assert isinstance(refused[2]["bad"], UnicodeEncodeError)
    assert set(ledger.contexts([entry(n).key for n in range(5)])) == {entry(n).key for n in range(5)}


@pytest.mark.parametrize("lets_go", [True, False])
async def test_answers_refused_by_a_locked_ledger_are_stored_at_the_end(
    lets_go: bool, ledger: SlowLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.go.set()
    writer = ContextWriter(ledger)
    ledger.patience = 0
    ledger._connection.execute("PRAGMA busy_timeout = 0")
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    for number in range(2):
        with pytest.raises(LedgerBusyError, match="is locked by another program"):
            await writer.add([entry(number)])
    if lets_go:
        holder.close()
        await writer.close()
        assert on_disk(ledger) == 2
    else:
        with pytest.raises(LedgerBusyError):
            await writer.close()
        holder.close()
