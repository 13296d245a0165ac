"""Records every operation on files, and can make one of them fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llama_index_contextual.index.files import System


class FileSpy(System):
    """Performs the real operations, and records them.

    Attributes:
        calls: (operation, path relative to `root`), in order.
        fail_at: Number of the operation, from 0, that raises OSError instead; None lets all pass.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, str]] = []
        self.fail_at: int | None = None

    def _note(self, operation: str, path: Path) -> None:
        self.calls.append((operation, path.relative_to(self.root).as_posix()))
        if self.fail_at == len(self.calls) - 1:
            raise OSError(5, "Input/output error", str(path))


def _noted(operation: str) -> Callable[..., None]:
    """Return an operation that is recorded, then performed; a renaming is recorded under its target."""

    def perform(spy: FileSpy, *given: Any) -> None:
        spy._note(operation, given[1 if operation == "rename" else 0])
        getattr(System, operation)(spy, *given)

    return perform


OPERATIONS = ("make_directory", "write", "let_write", "sync", "sync_directory", "rename", "remove", "remove_tree")
for _operation in OPERATIONS:
    setattr(FileSpy, _operation, _noted(_operation))
