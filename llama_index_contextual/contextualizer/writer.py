"""Contexts into the ledger as they arrive: whoever adds some waits until they are on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llama_index_contextual.storage.ledger import Ledger, LedgerEntry


class ContextWriter:
    """Commits contexts in a thread; those that arrive while one commit is under way go into the next one together.

    So one context alone is committed at once, and under load a commit costs each of them a part only: none waits for
    more than the commit before its own.

    Args:
        ledger: Where they go.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: list[tuple[Sequence[LedgerEntry], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, entries: Sequence[LedgerEntry]) -> None:
        """Commit contexts; they are on the disk when this returns, and will be if it is cancelled."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((entries, done))
        if self._task is None:
            self._task = asyncio.create_task(self._commit())
        await done

    async def close(self) -> None:
        """Wait until everything is committed."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _commit(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            rows = [entry for entries, _ in group for entry in entries]
            try:
                await asyncio.to_thread(self._ledger.add_contexts, rows)
            except Exception as error:  # noqa: BLE001 - raised by those who wait; the task itself goes on
                _tell(group, error)
            else:
                _tell(group, None)
        self._task = None


def _tell(group: Sequence[tuple[Sequence[LedgerEntry], asyncio.Future[None]]], error: Exception | None) -> None:
    for _, done in group:
        if done.done():
            continue  # who added it was cancelled meanwhile
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
