"""Group commit of contexts into the ledger: `add` returns when they are on the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence

from llama_index_contextual.errors import LedgerBusyError
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry

_OF_A_ROW = (ValueError, TypeError, OverflowError, sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""What a single row can raise; what concerns the file is raised for every row."""

_Refused = Mapping[str, Exception]


class ContextWriter:
    """Commits contexts in a thread; those that arrive while one commit is under way go into the next one together.

    So one context alone is committed at once, and under load a commit costs each of them a part only: none waits for
    more than the commit before its own. A row that cannot be stored does not keep the others from being stored.

    Args:
        ledger: Where they go.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[Sequence[LedgerEntry], asyncio.Future[_Refused]]] = []
        self._kept_back: list[LedgerEntry] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, entries: Sequence[LedgerEntry]) -> _Refused:
        """Commit contexts; they are on the disk when this returns, and will be if it is cancelled.

        Returns:
            The keys of those that cannot be stored, with the reason.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        done: asyncio.Future[_Refused] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        return await done

    async def close(self) -> None:
        """Wait until everything is committed; what another program kept from the ledger is tried a last time.

        Raises:
            LedgerBusyError: It still holds the ledger.
        """
        if self._task is not None:
            await asyncio.shield(self._task)
        if self._kept_back:
            await asyncio.shield(asyncio.to_thread(self._store, self._kept_back))
            self._kept_back = []

    async def _commit(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            rows = [entry for entries, _ in group for entry in entries]
            try:
                refused = await asyncio.to_thread(self._store, rows)
            except LedgerBusyError as error:
                self._kept_back += rows
                _finish(group, error)
            except Exception as error:  # noqa: BLE001 - raised by those who wait; the task itself goes on
                _finish(group, error)
            else:
                _finish(group, refused)
        self._task = None

    def _store(self, rows: Sequence[LedgerEntry]) -> _Refused:
        try:
            self._ledger.add_contexts(rows)
        except _OF_A_ROW:
            return self._store_one_by_one(rows)
        return {}

    def _store_one_by_one(self, rows: Sequence[LedgerEntry]) -> _Refused:
        refused: dict[str, Exception] = {}
        for row in rows:
            try:
                self._ledger.add_contexts([row])
            except _OF_A_ROW as error:
                refused[row.key] = error
        return refused


def _finish(
    group: Sequence[tuple[Sequence[LedgerEntry], asyncio.Future[_Refused]]], result: _Refused | Exception
) -> None:
    for entries, done in group:
        if done.done():
            continue  # who added it was cancelled meanwhile
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result({entry.key: result[entry.key] for entry in entries if entry.key in result})
