"""What a process needs that was forked while other threads were at work.

A child of `os.fork` has one thread, and a copy of every lock: one that another thread held would never be released. So
locks of this package are made here, and are free in a child. A library with locks of its own, such as SQLite, cannot be
helped like that: nobody may be inside it at the moment of the fork, and a connection is not used in both processes.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from llama_index_contextual.errors import ProjectError

T = TypeVar("T")

WAIT = 10.0
"""Seconds that a fork waits for what other threads are doing inside a library, at most."""


class Inherited(Protocol):
    """What does more than release a lock in a child."""

    def renew_after_fork(self) -> None:
        """Make anew what the child cannot share with its parent."""
        ...


class _State:
    """What is known of the locks of this process."""

    def __init__(self) -> None:
        self.locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self.guards: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
        self.calls: list[Callable[[], object]] = []
        self.kept: list[object] = []
        self.held: list[Any] = []
        self.given_up = False  # at the last fork
        self.is_unsafe = False  # in this process


_state = _State()


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child."""
    lock = threading.Lock()
    _state.locks.add(lock)
    return lock


def new_rlock() -> Any:
    """Return a reentrant lock that is free in a forked child."""
    lock = threading.RLock()
    _state.locks.add(lock)
    return lock


def new_guard(*, last: bool = False) -> Any:
    """Return a reentrant lock to be held inside a library with locks of its own: a fork waits until it is free.

    Args:
        last: Whether it may be taken while another guard is held.
    """
    lock = new_rlock()
    _state.guards[lock] = int(last)
    return lock


class cached_property(functools.cached_property[T]):
    """`functools.cached_property` whose lock, which Python 3.11 has for each class, is free in a forked child."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        if (lock := getattr(self, "lock", None)) is not None:
            _state.locks.add(lock)


def renewed(owner: Inherited) -> None:
    """Call `renew_after_fork` of an object in a forked child, for as long as the object lives."""
    _state.inherited.add(owner)


def in_child(call: Callable[[], object]) -> None:
    """Call a function in every forked child."""
    _state.calls.append(call)


def keep(thing: object) -> None:
    """Keep what a child has inherited and must neither use nor close, because its parent does."""
    _state.kept.append(thing)


def require_safe() -> None:
    """See that no other thread was inside a library when this process was forked.

    Raises:
        ProjectError: One was, and may hold a lock for ever.
    """
    if _state.is_unsafe:
        raise ProjectError(
            f"This process was forked while another thread had been reading or writing a project for more than"
            f" {WAIT:g} seconds: fork when it has ended, or start the process anew (multiprocessing: 'spawn')."
        )


def _before() -> None:
    end = time.monotonic() + WAIT
    guards = sorted(_state.guards.items(), key=lambda item: item[1])
    _state.held = [lock for lock, _ in guards if lock.acquire(timeout=max(0.0, end - time.monotonic()))]
    _state.given_up = len(_state.held) < len(guards)


def _in_parent() -> None:
    while _state.held:
        _state.held.pop().release()


def _in_child() -> None:
    _state.held = []
    _state.is_unsafe = _state.is_unsafe or _state.given_up
    for lock in list(_state.locks):
        lock._at_fork_reinit()  # as Python does with its own
    for owner in list(_state.inherited):
        owner.renew_after_fork()
    for call in _state.calls:
        call()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
