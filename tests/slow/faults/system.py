"""File systems that fail at one operation, or lose everything that was not synced."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, get_args

import pytest

from llama_index_contextual.index import files

Fault = Literal["exit", "EIO", "ENOSPC", "EACCES", "short"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
OPERATIONS = (
    *("make_directory", "write", "let_write", "sync", "sync_directory"),
    *("rename", "remove", "remove_directory", "remove_tree"),
)


class Crash(BaseException):
    """The process has ended here; nothing in the package may catch it."""


class RecordingSystem(files.System):
    """Counts operations and remembers them."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Path]] = []

    def _before(self, operation: str, path: Path) -> None:
        self.log.append((operation, path))

    def _during(self, operation: str, path: Path, run: Callable[[], Any]) -> None:
        run()


def _recorded(name: str) -> Callable[..., None]:
    real = getattr(files.System, name)

    def method(self: RecordingSystem, path: Path, *rest: Any) -> None:
        self._before(name, path)
        self._during(name, path, lambda: real(self, path, *rest))

    return method


for _name in OPERATIONS:
    setattr(RecordingSystem, _name, _recorded(_name))


class FaultySystem(RecordingSystem):
    """Does one thing wrong, at its `at`-th operation (from 0); a process that has ended does nothing any more.

    Args:
        at: Number of the operation; None never fails.
        fault: `exit` ends the process there; the others raise OSError, `short` after half of what was to be written.
        after: Whether an exit comes when the operation is done, instead of before.
    """

    def __init__(self, at: int | None, fault: Fault = "exit", *, after: bool = False) -> None:
        super().__init__()
        self.at, self.fault, self.after = at, fault, after
        self.dead = False

    @property
    def struck(self) -> bool:
        """Whether the operation was reached."""
        return self.at is not None and len(self.log) > self.at

    def _before(self, operation: str, path: Path) -> None:
        if self.dead:
            raise Crash
        super()._before(operation, path)

    def _during(self, operation: str, path: Path, run: Callable[[], Any]) -> None:
        number = len(self.log) - 1
        if number != self.at:
            run()
            return
        if self.fault == "exit":
            if self.after:
                with contextlib.suppress(OSError):
                    run()
            elif operation in ("write", "let_write", "remove_tree"):
                self._half(operation, path, run)
            self.dead = True
            raise Crash
        if self.fault == "short":
            self._half(operation, path, run)
        code = errno.EIO if self.fault == "short" else getattr(errno, self.fault)
        raise OSError(code, os.strerror(code), str(path))

    def _half(self, operation: str, path: Path, run: Callable[[], Any]) -> None:
        """Do half of what the operation does."""
        if operation == "remove_tree":
            for file in sorted(p for p in path.rglob("*") if p.is_file())[::2]:
                file.unlink()
        elif operation in ("write", "let_write"):
            known = set(_files(path))
            run()
            for file in _files(path):
                if operation == "write" or file not in known:
                    os.truncate(file, file.stat().st_size // 2)


class PowerLossSystem(FaultySystem):
    """Remembers what was synced; `lose_power` takes the rest away.

    What SQLite writes into the ledger is taken for durable, because SQLite syncs it by itself; a document store that is
    being built is not.

    Args:
        root: Folder that survives only as far as it was synced.
        at: The power goes at this operation; None: when the command has returned.
        skip: Call sites (see `site`) whose syncs do nothing, to show that they are needed.
    """

    def __init__(self, root: Path, at: int | None = None, *, skip: frozenset[str] = frozenset()) -> None:
        super().__init__(at)
        self.root = root
        self.skip = skip
        self.sites: set[str] = set()
        self._content: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._emptied: set[int] = set()
        self._given: set[int] = set()
        # What was removed lies here, so that no inode is given to another file.
        self._graveyard = root.with_name(f"{root.name}.graveyard")
        self._graveyard.mkdir()
        for path in _everything(root):
            if path.is_dir():
                self._entries[_inode(path)] = _children(path)
            else:
                self._content[_inode(path)] = path.read_bytes()

    def _during(self, operation: str, path: Path, run: Callable[[], Any]) -> None:
        if operation in ("sync", "sync_directory"):
            result = site()
            self.sites.add(result)
            if result in self.skip:
                run = _nothing
        elif operation in ("remove", "remove_directory", "remove_tree"):
            run = partial(self._bury, operation, path, run)
        elif operation == "rename":
            run = partial(self._keep_replaced, run)
        new = operation == "make_directory" and not path.exists()
        super()._during(operation, path, run)
        if operation in ("write", "let_write") and path.is_file():
            self._given.add(_inode(path))
        if new:
            self._entries[_inode(path)] = {}
        if run is _nothing or not path.is_relative_to(self.root):
            return
        if operation == "sync":
            self._content[_inode(path)] = path.read_bytes()
        elif operation == "sync_directory":
            self._entries[_inode(path)] = _children(path)

    def _half(self, operation: str, path: Path, run: Callable[[], Any]) -> None:
        """Do nothing of it: what is half on the disk is up to `lose_power`."""

    def _bury(self, operation: str, path: Path, run: Callable[[], Any]) -> None:
        if operation == "remove_directory" and any(path.iterdir()):
            run()  # fails as it should
        if operation == "remove_tree":
            self._emptied.update(_inode(below) for below in _everything(path) if below.is_dir())
        if path.exists():
            os.rename(path, self._graveyard / str(len(self.log)))

    def _keep_replaced(self, run: Callable[[], Any]) -> None:
        for number, path in enumerate(self.root.rglob("*")):
            if path.is_file():
                os.link(path, self._graveyard / f"{len(self.log)}-{number}")
        run()

    def lose_power(self, seed: int) -> None:
        """Rewrite the folder to one of the states in which a power cut may leave it.

        What was synced is there. A directory has either its durable entries or the present ones; a file whose content
        was not synced is empty, cut, zeroed, as it was, or as it was written.
        """
        chance = random.Random(f"{self.at} {seed}")  # seeds alone would draw the same at every operation
        present = {_inode(path): path for path in (*_everything(self.root), *_everything(self._graveyard))}
        target = self.root.with_name(f"{self.root.name}.after")
        target.mkdir()
        self._restore(target, _inode(self.root), present, chance)
        shutil.rmtree(self.root)
        shutil.rmtree(self._graveyard)
        target.rename(self.root)

    def _restore(self, target: Path, inode: int, present: dict[int, Path], chance: random.Random) -> None:
        now = {} if inode in self._emptied else _children(present[inode])
        durable = self._entries.get(inode, {})
        entries = dict(chance.choice((durable, now)))
        entries.update({name: number for name, number in now.items() if self._syncs_itself(name, number)})
        for name, child in sorted(entries.items()):
            path = target / name
            if present[child].is_dir():
                path.mkdir()
                self._restore(path, child, present, chance)
            else:
                path.write_bytes(self._after(name, child, present[child].read_bytes(), chance))

    def _syncs_itself(self, name: str, inode: int) -> bool:
        return name.startswith(_SELF_SYNCED) and inode not in self._given

    def _after(self, name: str, inode: int, written: bytes, chance: random.Random) -> bytes:
        durable = self._content.get(inode)
        if durable == written or self._syncs_itself(name, inode):
            return written
        former = () if durable is None else (durable,)
        return chance.choice((b"", written[: len(written) // 2], b"\0" * len(written), written, *former))


def site() -> str:
    """Return where in the package a sync was asked for: the functions of files.py, and the line that called them."""
    frame: FrameType | None = sys._getframe(1)
    chain: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == files.__name__:
            chain.append(frame.f_code.co_name)
        elif module.startswith("llama_index_contextual."):
            return f"{module.rpartition('.')[2]}.{frame.f_code.co_qualname}:{frame.f_lineno} > {'<'.join(chain)}"
        frame = frame.f_back
    return " < ".join(chain)


_SELF_SYNCED = ("ledger.sqlite", ".lock")


def _nothing() -> None:
    """Do nothing."""


def _everything(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def _children(path: Path) -> dict[str, int]:
    return {child.name: _inode(child) for child in path.iterdir()}


def _files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path] if path.exists() else []


def _inode(path: Path) -> int:
    return path.lstat().st_ino


@contextlib.contextmanager
def installed(system: files.System) -> Iterator[None]:
    """Let the package use another system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "system", system)
        yield
