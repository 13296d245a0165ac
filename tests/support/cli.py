"""Commands of the command line: in this process, in a process of their own, and on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer import testing
from typer.main import get_command

from llama_index_contextual.cli import app as cli
from tests.support.source import ROOT

SECONDS = 300.0
"""Longest wait for a process."""

# Each call would build all commands again, which takes longer than most of them run.
testing._get_command = functools.cache(get_command)  # type: ignore[attr-defined]

PROGRAM = [sys.executable, "-m", "llama_index_contextual"]


class Result:
    """What a command printed and how it ended."""

    def __init__(self, found: Any) -> None:
        self.code: int = found.exit_code
        self.out: str = found.stdout
        self.err: str = found.stderr
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: object, answer: str | None = None) -> Result:
    """Run a command in this process."""
    return Result(testing.CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=answer))


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find a terminal on standard input, where `run` answers."""
    monkeypatch.setattr("llama_index_contextual.cli.common.has_terminal", lambda: True)


@functools.cache
def commands() -> dict[str, Any]:
    """Return every command by its full name."""
    results: dict[str, Any] = {}
    for name, command in get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        results.update({f"{name} {sub}": leaf for sub, leaf in inner.items()} if inner else {name: command})
    return results


@contextlib.contextmanager
def started(
    *arguments: object, stdin: int = subprocess.DEVNULL, stdout: Any = subprocess.PIPE, **environment: str
) -> Iterator[Any]:
    """Run a command in a process of its own, which is killed at the end of the block."""
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def show(columns: int, *arguments: object) -> str:
    """Run a command on a pseudo-terminal of so many columns and 24 lines, and return what it wrote."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals of POSIX")
    size = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"}
    ours, theirs = pty.openpty()
    with contextlib.closing(os.fdopen(ours, "rb", buffering=0)) as screen:
        try:
            child = subprocess.Popen(
                [*PROGRAM, *map(str, arguments)],
                env={**os.environ, "PYTHONPATH": str(ROOT), **size},
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            )
        finally:
            os.close(theirs)
        pieces = []
        with contextlib.suppress(OSError):  # Linux ends the reading with an error once the other side is closed
            while piece := screen.read(65536):
                pieces.append(piece)
    assert child.wait(SECONDS) == 0
    return b"".join(pieces).decode()


def lines_of(screen: str) -> list[str]:
    """Return the lines that were ever shown, without colours and movements of the cursor."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    return [line.rstrip() for line in re.split(r"[\r\n]+", plain)]
