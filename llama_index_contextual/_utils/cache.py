"""A bounded cache that threads share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from llama_index_contextual._utils.forks import new_lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Keeps what was used last; threads may share it.

    Args:
        size: Entries, at most.

    Example:
        >>> cache = LRUCache[str, int](2)
        >>> for key in ("a", "b", "c"):
        ...     cache.put(key, ord(key))
        >>> cache.get("a"), cache.get("c")
        (None, 99)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = new_lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return what is kept under a key, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Keep a value; the one that was not used for longest goes."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
