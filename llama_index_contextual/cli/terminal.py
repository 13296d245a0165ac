"""Command line output: escaped text, paragraphs, JSON, and one-line errors."""

from __future__ import annotations

import json
import logging
import shlex
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual.errors import ContextualError, PathNotFoundError, with_advice

# Rich must not replace ":key:" in a document with an emoji or colour numbers.
out = Console(emoji=False, highlight=False)
err = Console(stderr=True, emoji=False, highlight=False)

_LOGS_OF_CALLS = ("contextualizer", "ingestion.pipeline")


@dataclass(frozen=True)
class Invocation:
    """The running command.

    Attributes:
        context: Its Typer context, with the values of its options.
        root: Root folder of the projects.
        as_json: Whether it prints JSON.
    """

    context: Any
    root: Path
    as_json: bool


running: ContextVar[Invocation | None] = ContextVar("running", default=None)


def root_option() -> list[str]:
    """Return the option `--root` of the running command, if given, for use in suggested commands."""
    command = running.get()
    source = None if command is None else command.context.get_parameter_source("root")
    if command is None or source is None or source.name != "COMMANDLINE":
        return []
    return ["--root", str(command.root)]


def wants_json() -> bool:
    """Return whether the running command prints JSON on standard output."""
    command = running.get()
    return command is not None and command.as_json


def safe(text: str) -> str:
    """Return text from documents or the user without control characters, escaped for Rich markup."""
    # The readers import LlamaIndex, which is not needed for `--help` and `--version`.
    from llama_index_contextual.readers.discovery import printable

    # Names in messages and reports are already escaped, so their backslashes must not be doubled again.
    return escape("\\".join(printable(part) for part in text.split("\\")))


def snippet(text: str, width: int) -> str:
    """Return the beginning of a document's text as one line of at most `width` characters, escaped for markup."""
    from llama_index_contextual.readers.discovery import one_line

    return escape(one_line(text, width))


def say(markup: str = "", *, to: Console = out, indent: int = 0) -> None:
    """Print a paragraph, wrapped at words on a terminal or in one line for other programs."""
    if to.is_terminal and markup:
        to.print(Padding(Text.from_markup(markup, emoji=False), (0, 0, 0, indent), expand=False))
    else:
        to.print(f"{' ' * indent}{markup}", soft_wrap=True)


def say_with_details(markup: str, facts: str) -> None:
    """Print a name and dimmed facts about it in one line, or in two if the terminal is too narrow.

    The name is never wrapped, so that it can be copied.
    """
    if out.is_terminal and Text.from_markup(f"{markup}  {facts}", emoji=False).cell_len > out.width:
        out.print(markup, soft_wrap=True)
        say(f"[dim]{facts}[/]", indent=4)
    else:
        say(f"{markup}  [dim]{facts}[/]")


def say_result(value: Any, shown: str | Callable[[], None]) -> None:
    """Print the result of a command: with `--json` as JSON, otherwise as markup or by calling a function."""
    if wants_json():
        say_json(value)
    elif isinstance(shown, str):
        say(shown)
    else:
        shown()


def say_json(value: Any) -> None:
    """Print a value as JSON on standard output, with control characters escaped; dataclasses become objects."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=asdict)
    text = "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, default=asdict)
    sys.stdout.write(f"{text}\n")


def say_error(message: str) -> None:
    """Print an error message in one line on standard error."""
    say(f"[red]Error:[/] {safe(scrub(message))}", to=err)


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print a record in one line, above a progress bar, which replaces `sys.stderr`."""
        sys.stderr.write(f"{Text.from_markup(safe(record.getMessage()), emoji=False).plain}\n")


@contextmanager
def notices() -> Iterator[None]:
    """Print log messages about calls to a provider: rate limits, batches, and calls in flight after Ctrl-C."""
    handler = _Notices(logging.WARNING)
    loggers = [logging.getLogger(f"llama_index_contextual.{name}") for name in _LOGS_OF_CALLS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def in_words(error: ContextualError | OSError) -> str:
    """Return an error message in terms of the command line, with commands that can be copied."""
    if not isinstance(error, ContextualError):
        return f"{error.filename}: {error.strerror}." if error.filename and error.strerror else f"{error}."
    if error.remedy is None:
        return str(error)
    command = running.get()
    name = str(command.context.params.get("name") or "NAME") if command is not None else "NAME"
    root = "".join(f" {shlex.quote(word)}" for word in root_option())
    advice = error.remedy.command_line.replace("{project}", f"{shlex.quote(name)}{root}").replace("{root}", root)
    return with_advice(error.problem, scrub(advice))


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Print input, file or model errors in one line, and exit.

    The exit code is 1, or 2 if a given path does not exist.
    """
    code = 1
    try:
        yield
    except BrokenPipeError:
        raise  # the program reading the output has ended
    except PathNotFoundError as error:
        message, code = in_words(error), 2
    except (ContextualError, OSError) as error:
        message = in_words(error)
    except sqlite3.Error as error:
        message = f"SQLite: {error}."
    else:
        return
    say_error(message)
    raise typer.Exit(code)
