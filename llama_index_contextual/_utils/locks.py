"""Locks that a forked process can acquire.

A fork copies only the thread that forks. A lock that another thread holds at that moment would therefore never be
released in the child, and the data that it protects may be incomplete. In the child, such locks are replaced, and their
data is discarded.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

_PATIENCE = 1.0
"""Seconds that a fork waits for the locks of `Lock(delays_fork=True)`."""

_locks: set[weakref.ref[Lock]] = set()
_calls: set[weakref.WeakMethod[Callable[[], None]]] = set()
_forking = threading.local()


class Lock:
    """Reentrant lock that is free in a forked child, unless the thread that forks holds it.

    Args:
        reset: Method that discards the protected data. It is called in a child if another thread held the lock; it must
            not acquire locks. None if the data is complete at any time.
        delays_fork: Whether a fork waits until the lock is free, because the library that is called under the lock has
            locks of its own. Such a lock must be held for a short time only.
    """

    def __init__(self, reset: Callable[[], None] | None = None, *, delays_fork: bool = False) -> None:
        self._lock = threading.RLock()
        self._reset = None if reset is None else weakref.WeakMethod(reset)
        self._delays_fork = delays_fork
        _locks.add(weakref.ref(self, _locks.discard))

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_details: object) -> None:
        self._lock.release()

    def _acquire_until(self, end: float) -> bool:
        return self._lock.acquire(timeout=max(0.0, end - time.monotonic()))

    def _replace_if_held(self) -> bool:
        """Replace the lock if a thread holds it that does not exist in this process, and return whether one did."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return False
        self._lock = threading.RLock()
        return True

    def _reset_data(self) -> None:
        reset = self._reset and self._reset()
        if reset is not None:
            reset()


_searches: list[None] = []
"""One item for each search that is running in this process."""


@contextmanager
def searching() -> Iterator[None]:
    """Context manager that counts a search; see `has_idle_core`."""
    _searches.append(None)  # unlike adding to a number, this cannot be interrupted
    try:
        yield
    finally:
        if _searches:  # a fork may have cleared it
            _searches.pop()


def has_idle_core() -> bool:
    """Return whether a core is free for a second thread of the only search, as far as this process knows."""
    return len(_searches) <= 1 and (os.cpu_count() or 1) > 1


def call_in_child(method: Callable[[], None]) -> None:
    """Call a method in every forked child, as long as its object exists. It must not acquire locks."""
    _calls.add(weakref.WeakMethod(method, _calls.discard))


def _all_locks() -> list[Lock]:
    return [lock for reference in list(_locks) if (lock := reference()) is not None]


def _before_fork() -> None:
    end = time.monotonic() + _PATIENCE
    _forking.held = [lock for lock in _all_locks() if lock._delays_fork and lock._acquire_until(end)]


def _after_fork() -> None:
    for lock in vars(_forking).pop("held", ()):
        lock.__exit__()


def _after_fork_in_child() -> None:
    _after_fork()
    _searches.clear()
    locks = [lock for lock in _all_locks() if lock._replace_if_held()]
    if sys.version_info < (3, 12):
        _replace_locks_of_properties()
    for lock in locks:
        lock._reset_data()
    for reference in list(_calls):
        method = reference()
        if method is not None:
            method()


def _replace_locks_of_properties() -> None:
    """Replace the locks of the cached properties of this package; before Python 3.12, each property has a lock."""
    package = __name__.partition(".")[0]
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    for member in (member for module in modules for member in _members_of_classes(module)):
        if isinstance(member, cached_property):
            setattr(member, "lock", threading.RLock())  # noqa: B010 - not in the type stubs


def _members_of_classes(module: ModuleType) -> list[Any]:
    classes = [value for value in list(vars(module).values()) if isinstance(value, type)]
    return [member for cls in classes for member in list(vars(cls).values())]


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
