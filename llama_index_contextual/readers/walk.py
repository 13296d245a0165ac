"""Walks a folder without following what leads out of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

MAX_DEPTH = 64
"""Folders below the given one that are entered."""

_MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class FoundFile:
    """An ordinary file below the folder: its path from there, and what the system says about it."""

    parts: tuple[str, ...]
    status: os.stat_result


@dataclass(frozen=True)
class Refused:
    """Something below the folder that is not read, and why."""

    parts: tuple[str, ...]
    reason: str


class Pattern:
    """A glob, matched one path component at a time: `*`, `?`, `[…]`, and `**` for any number of folders.

    Extensions match in either case, since `*.pdf` is meant to find `A.PDF`.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        self._parts = tuple(parts)

    def start(self) -> frozenset[int]:
        """Return the state before the first component."""
        return self._closure({0})

    def step(self, state: frozenset[int], name: str) -> frozenset[int]:
        """Return the state after one more component; empty if nothing below it can match."""
        after = set()
        for at in state:
            if at == len(self._parts):
                continue
            if self._parts[at] == "**":
                after.add(at)
            elif _matches(name, self._parts[at]):
                after.add(at + 1)
        return self._closure(after)

    def accepts(self, state: frozenset[int]) -> bool:
        """Say whether a path that ends here matches."""
        return len(self._parts) in state

    def goes_on(self, state: frozenset[int]) -> bool:
        """Say whether a longer path can match."""
        return any(at < len(self._parts) for at in state)

    def _closure(self, state: set[int]) -> frozenset[int]:
        for at in sorted(state):
            while at < len(self._parts) and self._parts[at] == "**":
                at += 1
                state.add(at)
        return frozenset(state)


EVERYTHING = Pattern(["**"])


def has_magic(part: str) -> bool:
    """Say whether a path component is a glob."""
    return not _MAGIC.isdisjoint(part)


def split_glob(path: Path) -> tuple[Path, Pattern]:
    """Split a glob into its fixed folder and the pattern below it."""
    parts = path.parts
    fixed = next(index for index, part in enumerate(parts) if has_magic(part))
    return Path(*parts[:fixed]), Pattern(parts[fixed:])


def walk(root: Path, pattern: Pattern) -> Iterator[FoundFile | Refused]:
    """Yield what matches below `root`, in the order of the names.

    Links are not followed, hidden names are not entered, devices are not opened; each of them is yielded as `Refused`.
    """
    stack: list[tuple[tuple[str, ...], frozenset[int]]] = [((), pattern.start())]
    while stack:
        parts, state = stack.pop()
        path = root.joinpath(*parts)
        if parts:
            if not pattern.accepts(state) and not (pattern.goes_on(state) and os.path.isdir(path)):
                continue
            verdict = _visit(path, parts, state, pattern)
            if verdict is not None:
                yield verdict
                continue
        try:
            names = sorted(os.listdir(path), reverse=True)
        except OSError as error:
            yield Refused(parts, f"the folder cannot be opened: {error.strerror}")
            continue
        children = ((name, pattern.step(state, name)) for name in names)
        stack.extend(((*parts, name), child) for name, child in children if child)


def _visit(path: Path, parts: tuple[str, ...], state: frozenset[int], pattern: Pattern) -> FoundFile | Refused | None:
    """Judge one entry; None is a folder to enter."""
    try:
        status = os.lstat(path)
    except OSError as error:
        return Refused(parts, f"cannot be looked at: {error.strerror}")
    is_folder = stat.S_ISDIR(status.st_mode)
    if parts[-1].startswith("."):
        return Refused(parts, f"is a hidden {'folder' if is_folder else 'file'}: name it directly to read it")
    if stat.S_ISLNK(status.st_mode) or _is_junction(path):
        return Refused(parts, "is a link, and links in a folder are not followed: name its target to read it")
    if is_folder:
        return _visit_folder(parts, state, pattern)
    reason = special_reason(status.st_mode)
    return FoundFile(parts, status) if reason is None else Refused(parts, reason)


def _visit_folder(parts: tuple[str, ...], state: frozenset[int], pattern: Pattern) -> Refused | None:
    if not pattern.goes_on(state):
        return Refused(parts, "is a folder, and the pattern matches files: end it with /** to read what is in it")
    if len(parts) >= MAX_DEPTH:
        return Refused(parts, f"lies {MAX_DEPTH} folders deep: name it directly to read what is in it")
    return None


def special_reason(mode: int) -> str | None:
    """Return why something that is no ordinary file is not read, or None for an ordinary file."""
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))
    kind = next((name for test, name in kinds if test(mode)), "a device")
    return f"is {kind}: only ordinary files are read"


def _matches(name: str, pattern: str) -> bool:
    stem, suffix = os.path.splitext(name)
    return fnmatchcase(name, pattern) or fnmatchcase(stem + suffix.lower(), pattern)


def _is_junction(path: Path) -> bool:
    # Python 3.11 cannot tell a junction (Windows) from a folder.
    return hasattr(os.path, "isjunction") and bool(os.path.isjunction(path))
