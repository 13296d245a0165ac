"""Code shared by all commands: output, one-line errors, options, opening projects, confirmation and completion."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from llama_index_contextual._utils.files import TOO_MANY_FILES
from llama_index_contextual._utils.keywords import split_docstring
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.text import parse_json, pluralize, quote_word
from llama_index_contextual.config import (
    PREFIX,
    RETRIEVAL_FIELDS,
    ProjectConfig,
    described,
    environment_settings,
    parsed_value,
)
from llama_index_contextual.errors import (
    ConfigurationError,
    ContextualError,
    OpenFilesError,
    PathNotFoundError,
    SettingWarning,
    end_sentence,
    with_advice,
)

if TYPE_CHECKING:
    from llama_index_contextual.ingestion.estimate import CostEstimate
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import Project

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PROGRAM = "llama-index-contextual"

# ---- output ----------------------------------------------------------------------------------------------------------

# Rich must not colour numbers, or replace ":key:" in a document with an emoji.
out = Console(emoji=False, highlight=False)
err = Console(stderr=True, emoji=False, highlight=False)

_LOGS_OF_CALLS = ("contextualizer", "ingestion.run")


def safe(text: str) -> str:
    """Escape control characters and Rich markup in text from documents or the user."""
    # Imported here because the readers import LlamaIndex, which `--help` and `--version` do not need.
    from llama_index_contextual.readers.files import printable

    # Names in messages and reports are already escaped, so their backslashes must not be doubled again.
    return escape("\\".join(printable(part) for part in text.split("\\")))


def snippet(text: str, width: int) -> str:
    """Return the beginning of a document's text as one line of at most `width` characters, escaped for markup."""
    from llama_index_contextual.readers.files import one_line

    return escape(one_line(text, width))


def say(markup: str = "", *, to: Console = out, indent: int = 0) -> None:
    """Print a paragraph. On a terminal, it is wrapped at word boundaries; otherwise, it is printed on one line."""
    if to.is_terminal and markup:
        to.print(Padding(Text.from_markup(markup, emoji=False), (0, 0, 0, indent), expand=False))
    else:
        to.print(f"{' ' * indent}{markup}", soft_wrap=True)


def say_result(value: Any, text: str | Callable[[], None]) -> None:
    """Print the result of a command: as JSON if `--json` is given, otherwise by printing or calling `text`."""
    if wants_json():
        say_json(value)
    elif isinstance(text, str):
        say(text)
    else:
        text()


def say_json(value: Any) -> None:
    """Print a value as JSON on standard output, with control characters escaped and dataclasses as objects."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=asdict)
    text = "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)
    sys.stdout.write(f"{text}\n")


def say_error(message: str) -> None:
    """Print an error message on one line to standard error."""
    say(f"[red]Error:[/] {safe(scrub(message))}", to=err)


def say_note(message: str) -> None:
    """Print a note on one line to standard error."""
    say(f"[yellow]note[/] {safe(message)}", to=err)


class _Notices(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on one line. If a progress bar is shown, it replaces `sys.stderr` and stays below the line."""
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


# ---- commands --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Invocation:
    """Context of the running command, with the options that all commands have.

    Attributes:
        context: Typer context of the command, with the values of its options; None outside of a command.
        root: Root folder of the projects.
        as_json: Whether the command prints JSON.
    """

    context: Any
    root: Path
    as_json: bool


DEFAULT_ROOT = Path("knowledge")
running: ContextVar[Invocation] = ContextVar("running", default=Invocation(None, DEFAULT_ROOT, False))  # noqa: B039 (frozen)


def root() -> Path:
    """Return the root folder of the running command."""
    return running.get().root


def root_option() -> list[str]:
    """Return the `--root` option of the running command for suggested commands, or [] if it was not given."""
    context = running.get().context
    source = None if context is None else context.get_parameter_source("root")
    return ["--root", str(root())] if source is not None and source.name == "COMMANDLINE" else []


def wants_json() -> bool:
    """Return whether the running command prints JSON on standard output."""
    return running.get().as_json


def cli_message(error: ContextualError | OSError | sqlite3.Error) -> str:
    """Return an error message whose advice refers to commands and options that the user can copy."""
    if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
        error = OpenFilesError()
    if isinstance(error, OSError) and not isinstance(error, ContextualError):
        return end_sentence(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    if not isinstance(error, ContextualError):
        return end_sentence(f"SQLite: {error}")
    if error.remedy is None:
        return str(error)
    context = running.get().context
    name = "NAME" if context is None else str(context.params.get("name") or "NAME")
    root = "".join(f" {quote_word(word)}" for word in root_option())
    advice = error.remedy.command_line.replace("{project}", f"{quote_word(name)}{root}").replace("{root}", root)
    return with_advice(error.problem, scrub(advice))


def _show_warning(show: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning of this package as a note, and other warnings with `show`."""
    if issubclass(category, SettingWarning):
        say_note(str(message))
    else:
        show(message, category, *place)


class Command(TyperCommand):
    """Command that prints an expected error on one line and exits with code 1, or 2 if a given path does not exist."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        root, as_json = Path(ctx.params.get("root", DEFAULT_ROOT)), ctx.params.get("as_json", False)
        token = running.set(Invocation(ctx, root, as_json))
        try:
            with warnings.catch_warnings():
                warnings.showwarning = partial(_show_warning, warnings.showwarning)
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the program that reads the output has ended
        except (ContextualError, OSError, sqlite3.Error) as error:
            say_error(cli_message(error))
            raise typer.Exit(2 if isinstance(error, PathNotFoundError) else 1) from None
        finally:
            running.reset(token)


_UsageError: Any = typer.BadParameter.__base__  # of the click that typer uses
_WORDS_OF_TYPES = (
    (re.compile(r"Input should be a valid integer.*"), "it must be a whole number"),
    (re.compile(r"Input should be a valid number.*"), "it must be a number"),
    (re.compile(r"Input should be (greater|less) than (or equal to )?(\S+)"), r"it must be \1 than \2\3"),
    (re.compile(r"Value error, "), ""),
    (re.compile(r"' / '"), ", "),
)


def _usage_message(error: Any) -> str:
    """Return the message of a usage error in the words of this package.

    Example:
        >>> _usage_message(typer.BadParameter("Value error, 'x' is not one of 'a', 'b'."))
        "Invalid value: 'x' is not one of 'a', 'b'."
    """
    message = " ".join(str(error.format_message()).split())
    for pattern, words in _WORDS_OF_TYPES:
        message = pattern.sub(words, message)
    return end_sentence(message)


class Group(TyperGroup):
    """Group of commands that prints a usage error on one line, like every other error, and exits with code 2."""

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """Parse the options before the command."""
        with _usage_errors():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of the command, and run it."""
        with _usage_errors():
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        say_error(_usage_message(error))
        if error.ctx is not None:
            say(safe(" ".join(error.ctx.get_usage().split())), to=err)
            say(safe(f"Its options: {error.ctx.command_path} --help"), to=err)
        raise typer.Exit(2) from None


class Commands(typer.Typer):
    """Typer application whose commands have `--root` and `--json` and print expected errors on one line.

    Args:
        panel: Panel of the `--help` output in which the commands are listed.
        options: Other options for `Typer`.
    """

    def __init__(self, panel: str | None = None, **options: Any) -> None:
        super().__init__(cls=Group, **options)
        self._panel = panel

    def command(
        self, name: str | None = None, *, root: bool = True, as_json: bool = True, **options: Any
    ) -> Callable[[F], F]:
        """Return a decorator that adds a command, with `--root` and `--json` unless `root` or `as_json` is False.

        The values of these two options are not passed to the function; use `root` and `wants_json` instead. The help
        texts of other parameters are their descriptions in the docstring, unless their annotations contain them.
        """
        add = super().command
        keyword = inspect.Parameter.KEYWORD_ONLY
        common = [inspect.Parameter("root", keyword, default=DEFAULT_ROOT, annotation=Root)] if root else []
        common += [inspect.Parameter("as_json", keyword, default=False, annotation=Json)] if as_json else []

        def decorate(function: F) -> F:
            signature = inspect.signature(function, eval_str=True)
            text, descriptions = split_docstring(function.__doc__, "Args")
            for parameter, description in descriptions.items():
                signature.parameters[parameter].annotation.__metadata__[0].help = description

            @wraps(function)
            def run(**values: Any) -> None:
                function(**{name: values[name] for name in signature.parameters})

            run.__doc__ = text
            parameters = [*signature.parameters.values(), *common]
            run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
            add(name, cls=Command, rich_help_panel=self._panel, **options)(run)
            return function

        return decorate


# ---- completion ------------------------------------------------------------------------------------------------------


def complete_project(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of projects that start with the given string."""
    names = (file.parent.name for file in Path(ctx.params.get("root") or DEFAULT_ROOT).glob("*/project.json"))
    return sorted(name for name in names if name.startswith(incomplete))


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return the names and descriptions of settings that start with the given string."""
    return [(f"{name}=", described(name)) for name in ProjectConfig.model_fields if name.startswith(incomplete)]


# ---- options ---------------------------------------------------------------------------------------------------------

SEARCH = "Search"  # a panel of options in `--help`

Root = Annotated[
    Path,
    typer.Option(envvar="LLAMA_INDEX_CONTEXTUAL_ROOT", metavar="FOLDER", help="Root folder of the projects."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the project.", autocompletion=complete_project)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Time to wait for another process that is writing to the project."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="DOLLARS", help="Stop before the run costs more than this; `estimate` suggests a limit."),
]
Llm = Annotated[
    str | None,
    typer.Option("--llm", metavar="MODEL", help="LLM that writes contexts and answers, as provider:name."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        autocompletion=complete_setting,
        help="A setting listed by `settings`. Repeatable. Commands that write documents store it; others use it once.",
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD=VALUE",
        rich_help_panel=SEARCH,
        help="Condition on metadata; also with !=, <, <=, >, >= or ~ (contains). Repeatable: all conditions must hold;"
        " several values of one field are alternatives.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="FILE",
        rich_help_panel=SEARCH,
        help="Search only in this file: its id, name, or a glob. Repeatable.",
    ),
]


def parse_setting(item: str) -> tuple[str, Any]:
    """Split FIELD=VALUE into the name and the value, which is parsed as JSON or, if that fails, used as a string."""
    field, equals, value = item.partition("=")
    if not equals:
        raise typer.BadParameter(f"{item!r} is not FIELD=VALUE.")
    return field, parsed_value(value)


def changed_settings(llm: str | None, settings: Sequence[str] | None, *, answers: bool = False) -> dict[str, Any]:
    """Return the settings given with `--llm` and `--set`; `--set` has precedence.

    Args:
        llm: Value of `--llm`.
        settings: Values of `--set`.
        answers: Whether the LLM only writes answers, not contexts.

    Raises:
        ModelError: `llm` is not the name of a model.
    """
    changes: dict[str, Any] = {}
    if llm is not None:
        # Imported here because other commands do not need the models.
        from llama_index_contextual.models import missing_for

        missing_for(llm, setting="answer_llm" if answers else "llm", option="--llm")
        changes = {"answer_llm": llm} if answers else {"context": "llm", "llm": llm}
    return changes | dict(parse_setting(item) for item in settings or ())


def read_object(path: Path, form: str) -> dict[str, Any]:
    """Read a JSON object from a file that was given as an option.

    Args:
        path: The file.
        form: Description of the expected content, for error messages.

    Raises:
        ConfigurationError: The file cannot be read, or it does not contain a JSON object.
    """
    try:
        value = parse_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read as JSON ({error}): {form}.") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is not a JSON object: {form}.")
    return value


# ---- projects --------------------------------------------------------------------------------------------------------


def open_root() -> ProjectManager:
    """Return the manager of the projects in the root folder."""
    from llama_index_contextual.project.manager import ProjectManager

    return ProjectManager(root())


OF_A_COMMAND = RETRIEVAL_FIELDS - {"keep_versions"}
"""Settings that the environment overrides when an existing project is queried or built.

These are the settings that do not require a new version, except `keep_versions`, which would remove versions.
"""


def with_environment(config: ProjectConfig, environment: Mapping[str, str]) -> ProjectConfig:
    """Return a project's settings; environment variables override the settings listed in `OF_A_COMMAND`.

    Raises:
        ConfigurationError: A value in the environment is invalid.
    """
    overrides = {field: value for field, value in environment_settings(environment).items() if field in OF_A_COMMAND}
    try:
        return config.changed(**overrides)
    except ConfigurationError as error:
        raise ConfigurationError(f"In the environment ({PREFIX}…): {error}", setting=error.setting) from error


def open_project(name: str, only: Sequence[str] | None = None) -> Project:
    """Open a project to query or build it, and apply the settings from the environment.

    Args:
        name: Name of the project.
        only: Conditions on metadata that restrict the project; see `Project.only`.

    Raises:
        InputError: A condition is invalid, or no document has its field.
    """
    project = open_root().load(name)
    project.state.config = with_environment(project.config, os.environ)
    if not only:
        return project
    from llama_index_contextual.search.filters import to_filters

    filters = to_filters(list(only), keep_blank=True)
    project.live_version.resolved(filters)  # refuses a field or value that no document has
    return project.only(filters or {})


def open_to_build(name: str, llm: str | None, settings: Sequence[str] | None) -> Project:
    """Open a project to build it, and first store the settings given with `--llm` and `--set`."""
    if changes := changed_settings(llm, settings):
        open_root().load(name).update_config(**changes)
        say_note(f"Stored in the settings of the project: {', '.join(changes)}.")
    return open_project(name)


def open_with(name: str, changes: Mapping[str, Any]) -> Project:
    """Open a project, and use changed settings in this command only."""
    project = open_project(name)
    project.state.reconfigure(project.config.changed(**changes))
    return project


def suggested_command(command: str, *arguments: str) -> str:
    """Return a command that the user can copy, with `--root` if it was given to the running command."""
    return " ".join(map(quote_word, [PROGRAM, command, *arguments, *root_option()]))


def has_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless `--yes` is given; without a terminal, exit with code 2."""
    if yes:
        return
    if not has_terminal():
        say_error(f"{question} There is no terminal for a confirmation: add --yes to continue without one.")
        raise typer.Exit(2)
    typer.confirm(question, abort=True, err=True)


def confirm_price(estimate: CostEstimate, *, yes: bool, max_cost: float | None) -> None:
    """Print the expected cost, and ask on a terminal for confirmation of paid calls without a limit."""
    say(safe(estimate.summary()), to=err)
    if estimate.contexts.calls and max_cost is None and has_terminal():
        confirm("Request the contexts?", yes=yes)


def interruptible(project: Project, work: Callable[[], T]) -> T:
    """Run `work` and print its log messages about paid calls on standard error.

    On Ctrl-C, print the live version and the state of the ledger, and exit with code 130.
    """
    try:
        with notices():
            return work()
    except KeyboardInterrupt:
        end_interrupted(project)


def end_interrupted(project: Project) -> NoReturn:
    """Print the live version and the state of the ledger, and exit with code 130."""
    info = project.info()
    live = f"version {info.version} is live" if info.version else "there is no version yet"
    say(
        f"Interrupted: {live}; the ledger keeps {pluralize(info.ledger.contexts, 'context')} and"
        f" {pluralize(info.ledger.embeddings, 'embedding')}. Run the same command again to continue; `cost` shows"
        f" the cost so far.",
        to=err,
    )
    raise typer.Exit(130) from None
