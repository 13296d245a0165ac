"""Places among calls in flight, given to those who wait in the order of a rank."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Slots:
    """So many places; who waits gets one in the order of a rank, the smallest first.

    Args:
        count: Number of places.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: list[tuple[tuple[int, ...], int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    async def acquire(self, *rank: int) -> None:
        """Wait for a place; `release` gives it back."""
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give a place to the next one who waits."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
