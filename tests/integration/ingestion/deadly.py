"""Texts that end the process which receives it, as a damaged file or a lack of memory may."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Deadly(str):
    """A text that aborts each process to which it is sent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.abort, ()


class DeadlyOnce(str):
    """A text that aborts the first process to which it is sent.

    Args:
        flag: Path of a file that is created at that time; also the text.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _abort_once, (str(self),)


def _abort_once(flag: str) -> str:
    path = Path(flag)
    if not path.exists():
        path.touch()
        os.abort()
    return flag
