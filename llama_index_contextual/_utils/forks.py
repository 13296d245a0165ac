"""Locks and resources in a process that was forked while other threads were running.

A child of `os.fork` has one thread and a copy of every lock; a lock that another thread held would never be released.
Therefore the locks of this package are created here, and are released in a child. This is not possible for a library
with its own locks, such as SQLite: a fork has to wait until no thread is executing code of the library, and a
connection must not be used in both processes.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from llama_index_contextual.errors import ProjectError

T = TypeVar("T")

WAIT = 10.0
"""Maximum number of seconds that a fork waits for other threads to leave a library."""


class Renewable(Protocol):
    """An object with resources that must be replaced in a child."""

    def renew_after_fork(self) -> None:
        """Replace the resources that the child cannot share with its parent."""
        ...


class _State:
    """The locks and callbacks of this process."""

    def __init__(self) -> None:
        self.locks: weakref.WeakSet[Any] = weakref.WeakSet()
        self.guards: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.inherited: weakref.WeakSet[Renewable] = weakref.WeakSet()
        self.calls: list[Callable[[], object]] = []
        self.references: list[object] = []
        self.acquired: list[Any] = []
        self.incomplete = False  # at the last fork
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
    """Return a reentrant lock to hold while using a library with its own locks; a fork waits until it is free.

    Args:
        last: Whether it may be acquired while another guard is held.
    """
    lock = new_rlock()
    _state.guards[lock] = int(last)
    return lock


class cached_property(functools.cached_property[T]):
    """`functools.cached_property` whose lock, which exists in Python 3.11, is free in a forked child."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        if (lock := getattr(self, "lock", None)) is not None:
            _state.locks.add(lock)


def renewed(owner: Renewable) -> None:
    """Call `renew_after_fork` of an object in a forked child, for as long as the object lives."""
    _state.inherited.add(owner)


def in_child(call: Callable[[], object]) -> None:
    """Call a function in every forked child."""
    _state.calls.append(call)


def keep_alive(resource: object) -> None:
    """Keep a reference to an inherited object that a child must neither use nor close."""
    _state.references.append(resource)


def require_safe() -> None:
    """Check that no other thread was using a guarded library when this process was forked.

    Raises:
        ProjectError: A thread was using a library, whose lock may never be released.
    """
    if _state.is_unsafe:
        raise ProjectError(
            f"This process was forked while another thread had been reading or writing a project for more than"
            f" {WAIT:g} seconds: fork after it has finished, or start a new process (multiprocessing: 'spawn')."
        )


def _before() -> None:
    end = time.monotonic() + WAIT
    # A thread may create a guard, and enter a library, while this one waits for another guard.
    while not _acquire(_guards(), end) and time.monotonic() < end:
        _in_parent()
    _state.incomplete = not set(_guards()) <= set(_state.acquired)


def _guards() -> list[Any]:
    """Return all guards in the order in which they are acquired."""
    guards = [guard for reference in _state.guards.keyrefs() if (guard := reference()) is not None]
    return sorted(guards, key=lambda guard: _state.guards.get(guard, 0))


def _acquire(guards: Sequence[Any], end: float) -> bool:
    """Acquire guards, and return whether all existing guards are now held."""
    _state.acquired = [guard for guard in guards if guard.acquire(timeout=max(0.0, end - time.monotonic()))]
    new = set(_guards()) - set(_state.acquired)
    _state.acquired += [guard for guard in new if guard.acquire(blocking=False)]
    return new <= set(_state.acquired)


def _in_parent() -> None:
    while _state.acquired:
        _state.acquired.pop().release()


def _in_child() -> None:
    _state.acquired = []
    _state.is_unsafe = _state.is_unsafe or _state.incomplete
    for lock in list(_state.locks):
        lock._at_fork_reinit()  # as Python does with its own locks
    for owner in list(_state.inherited):
        owner.renew_after_fork()
    for call in _state.calls:
        call()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
