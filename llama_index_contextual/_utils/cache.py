"""A bounded, thread-safe cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from llama_index_contextual._utils.locks import Lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """A thread-safe cache that keeps the most recently used entries.

    Args:
        size: Maximum total size of the values; with the default `weigh`, the maximum number of entries.
        weigh: Function that returns the size of a value.

    Example:
        >>> cache = LRUCache[str, int](2)
        >>> for key in ("a", "b", "c"):
        ...     cache.put(key, ord(key))
        >>> cache.get("a"), cache.get("c")
        (None, 99)
    """

    def __init__(self, size: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        self._size = size
        self._weigh = weigh
        self._weight = 0
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock(self._forget)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Return the value for a key, or None if the key is not in the cache."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """Return the value for each key, or None for each key that is not in the cache."""
        with self._lock:
            values = []
            for key in keys:
                value = self._entries.get(key)
                if value is not None:
                    self._entries.move_to_end(key)
                values.append(value)
            return values

    def put(self, key: K, value: V) -> None:
        """Store a value and evict the least recently used entries if the cache is full."""
        self.put_all([(key, value)])

    def put_all(self, entries: Iterable[tuple[K, V]]) -> None:
        """Store several values and evict the least recently used entries if the cache is full."""
        with self._lock:
            for key, value in entries:
                if (former := self._entries.pop(key, None)) is not None:
                    self._weight -= self._weigh(former)
                self._entries[key] = value
                self._weight += self._weigh(value)
            while self._weight > self._size:
                self._weight -= self._weigh(self._entries.popitem(last=False)[1])

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._entries.clear()
        self._weight = 0
