"""A bounded, thread-safe cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from llama_index_contextual._utils.forks import new_lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A thread-safe cache that keeps the most recently used entries.

    Args:
        size: Maximum number of entries.

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
        """Return the value of a key, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Store a value, and evict the least recently used one if the cache is full."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()
