"""Records every operation on files, and can make one of them fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

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

    def make_directory(self, path: Path) -> None:
        """Record and perform the operation."""
        self._note("make_directory", path)
        super().make_directory(path)

    def write(self, path: Path, fill: Callable[[IO[bytes]], object]) -> None:
        """Record and perform the operation."""
        self._note("write", path)
        super().write(path, fill)

    def let_write(self, path: Path, write: Callable[[], object]) -> None:
        """Record and perform the operation."""
        self._note("let_write", path)
        super().let_write(path, write)

    def sync(self, path: Path) -> None:
        """Record and perform the operation."""
        self._note("sync", path)
        super().sync(path)

    def sync_directory(self, path: Path) -> None:
        """Record and perform the operation."""
        self._note("sync_directory", path)
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        """Record the operation under its target and perform it."""
        self._note("rename", target)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        """Record and perform the operation."""
        self._note("remove", path)
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        """Record and perform the operation."""
        self._note("remove_tree", path)
        super().remove_tree(path)
