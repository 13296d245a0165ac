"""Shared parts of the commands: classes, examples, options, opening projects, confirmation and completion."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, get_type_hints

import typer
from rich.markup import escape
from typer.core import TyperCommand

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.terminal import (
    Invocation,
    err,
    errors_in_one_line,
    notices,
    root_option,
    running,
    say,
    say_error,
)
from llama_index_contextual.config import (
    PREFIX,
    RETRIEVAL_FIELDS,
    Mode,
    ProjectConfig,
    described,
    environment_settings,
    parsed_value,
)
from llama_index_contextual.errors import ConfigurationError

if TYPE_CHECKING:
    from llama_index_contextual.index.receipts import ProjectCost
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import Project

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

PROGRAM = "llama-index-contextual"

SEARCH, ANSWER, TIMEOUTS = "Search", "Answer", "Timeouts"  # option panels in `--help`

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("open FOLDER", "create contracts --local", "ingest contracts FOLDER", 'search contracts "notice period"'),
    "open": ("open FOLDER", "open FOLDER --llm ollama:llama3.1", "open FOLDER --terminal"),
    "create": ("create contracts --local", "create reports --set chunk_size=400"),
    "settings": ("settings", "settings contracts"),
    "list": ("list", "list --root /srv/knowledge"),
    "delete": ("delete contracts", "delete contracts --keep-ledger --yes"),
    "estimate": ("estimate contracts FOLDER", "estimate contracts"),
    "ingest": (
        "ingest contracts FOLDER",
        "ingest contracts lease.pdf --password -",
        'ingest contracts "inbox/**/*.pdf" --max-cost 2.50',
        "ingest contracts FOLDER --ray auto",
    ),
    "sync": ("sync contracts FOLDER", "sync contracts FOLDER --watch"),
    "remove": ("remove contracts 2023/lease.pdf",),
    "forget": ("forget contracts --dry-run", "forget contracts"),
    "documents": ("documents contracts", 'documents contracts "2024/*.pdf"'),
    "rebuild": ("rebuild contracts", "rebuild contracts --max-cost 2.50"),
    "search": ('search contracts "notice period" -k 3', 'search contracts "notice period" --file "2024/*" --full'),
    "ask": ('ask contracts "How long is the notice period?"', 'ask contracts "Who may leave?" --llm ollama:llama3.1'),
    "chat": ("chat contracts", "chat contracts --history talk.json"),
    "evaluate": ("evaluate contracts q.jsonl", "evaluate contracts q.jsonl --compare none,structural"),
    "inspect": ('inspect contracts --query "notice period"',),
    "serve": ("serve contracts", "serve contracts reports --port 8080"),
    "mcp": ("mcp contracts", "mcp contracts reports --http --port 8080"),
    "rollback": ("rollback contracts", "rollback contracts --to v000001"),
    "verify": ("verify contracts", "verify contracts --repair"),
    "export": ("export contracts exported",),
    "configure": ("configure contracts top_k=10", "configure contracts chunk_size=400 mode=lexical"),
    "ledger export": ("ledger export contracts paid.jsonl",),
    "ledger import": ("ledger import contracts paid.jsonl",),
}
"""Examples for the help of commands that take more than a project name, without the program name."""


class Command(TyperCommand):
    """Command that prints expected errors in one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        root, as_json = Path(ctx.params.get("root", DEFAULT_ROOT)), ctx.params.get("as_json", False)
        token = running.set(Invocation(ctx, root, as_json))
        try:
            with errors_in_one_line():
                return super().invoke(ctx)
        finally:
            running.reset(token)


class Commands(typer.Typer):
    """Typer application whose commands show examples in their help and print expected errors in one line.

    Args:
        panel: Panel for the commands in the program's help.
        group: Name of a group of commands, such as "ledger".
        options: Other options of `Typer`.
    """

    def __init__(self, panel: str | None = None, *, group: str = "", **options: Any) -> None:
        super().__init__(epilog=_examples(group), **options)
        self._panel, self._group = panel, group

    def command(
        self, name: str | None = None, *, root: bool = True, as_json: bool = True, **options: Any
    ) -> Callable[[F], F]:
        """Return a decorator that adds a command, with `--root` and `--json` unless `root` or `as_json` is False.

        The values of these two options are not passed to the function; use `root` and `wants_json` instead.
        """
        add = super().command
        common: dict[str, tuple[Any, Any]] = {"root": (Root, DEFAULT_ROOT)} if root else {}
        common |= {"as_json": (Json, False)} if as_json else {}

        def decorate(function: F) -> F:
            @wraps(function)
            def run(**values: Any) -> None:
                function(**{name: value for name, value in values.items() if name not in common})

            _add_options(run, common)
            epilog = _examples(f"{self._group} {name or function.__name__}".strip())
            add(name, cls=Command, epilog=epilog, rich_help_panel=self._panel, **options)(run)
            return function

        return decorate


def _add_options(function: Callable[..., Any], added: Mapping[str, tuple[Any, Any]]) -> None:
    """Add options with their type and default to a command's signature, because Typer does not read `**options`."""
    signature = inspect.signature(function, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD),
        *(
            inspect.Parameter(name, keyword, default=default, annotation=kind)
            for name, (kind, default) in added.items()
        ),
    ]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


def _examples(name: str) -> str | None:
    lines = [f"  {escape(f'{PROGRAM} {line}')}" for line in EXAMPLES.get(name, ())]
    # Use blank lines because Typer joins consecutive lines.
    return "\n\n".join(["[bold]Examples[/]", *lines]) if lines else None


# ---- completion ------------------------------------------------------------------------------------------------------


def complete_project(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of projects that start with the given string."""
    names = (file.parent.name for file in _root(ctx).glob("*/project.json"))
    return sorted(name for name in names if name.startswith(incomplete))


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """Return the names and descriptions of settings that start with the given string."""
    return [(f"{name}=", described(name)) for name in ProjectConfig.model_fields if name.startswith(incomplete)]


def _root(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("root") or DEFAULT_ROOT)


# ---- options ---------------------------------------------------------------------------------------------------------

Root = Annotated[
    Path,
    typer.Option(envvar="LLAMA_INDEX_CONTEXTUAL_ROOT", metavar="FOLDER", help="Root folder of the projects."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the project.", autocompletion=complete_project)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
MaxCost = Annotated[
    float | None,
    typer.Option(metavar="DOLLARS", help="Stop before the run costs more than this; `estimate` suggests a limit."),
]
DEFAULT_ROOT = Path("knowledge")


def _overriding(setting: str, *names: str, metavar: str | None = None, panel: str = ANSWER) -> Any:
    """Return an option that overrides a setting, with the setting's description except the meaning of None."""
    help_text = described(setting).partition("; None")[0].rstrip(".") + "."
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, help=help_text)


def _seconds(setting: str) -> Any:
    return _overriding(setting, metavar="SECONDS", panel=TIMEOUTS)


class AnswerOptions(TypedDict):
    """The options of `ask` and `chat`; those with the name of a setting override it if they are not None."""

    answer_llm: Annotated[str | None, _overriding("answer_llm", "--llm", metavar="MODEL")]
    style: Annotated[str | None, _overriding("style", metavar="STYLE")]
    system_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            rich_help_panel=ANSWER,
            help="Replaces the rules for answers (only from the sources, with citations) and the style.",
        ),
    ]
    min_confidence: Annotated[float | None, _overriding("min_confidence", metavar="NUMBER")]
    guards: Annotated[bool | None, _overriding("guards", "--guard/--no-guard")]
    judge: Annotated[bool | None, _overriding("judge", "--judge/--no-judge")]
    answer_cache: Annotated[bool | None, _overriding("answer_cache", "--cache/--no-cache")]
    mode: SearchMode
    conditions: Filters
    files: Files
    intents: Annotated[
        bool | None,
        typer.Option(
            "--intents/--no-intents", rich_help_panel=SEARCH, help="Adapt the search to the kind of question."
        ),
    ]
    llm_intents: Annotated[
        bool | None,
        typer.Option(
            "--llm-intents",
            rich_help_panel=SEARCH,
            help="As --intents; if the wording does not decide the kind of question, the LLM is asked.",
        ),
    ]
    reference_date: Annotated[str | None, _overriding("reference_date", metavar="DAY", panel=SEARCH)]
    first_token_timeout: Annotated[float | None, _seconds("first_token_timeout")]
    between_tokens_timeout: Annotated[float | None, _seconds("between_tokens_timeout")]
    call_timeout: Annotated[float | None, _seconds("call_timeout")]


SearchMode = Annotated[
    Mode | None,
    typer.Option(
        metavar="MODE",
        rich_help_panel=SEARCH,
        help="Indexes to search: semantic, lexical or hybrid; by default the project's `mode`.",
    ),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="FIELD=VALUE",
        rich_help_panel=SEARCH,
        help="Condition on metadata, also with !=, <, <=, >, >= or ~ (contains). Repeatable: all must hold, and of"
        " several values of one field any.",
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


def takes_answer_options(function: F) -> F:
    """Add the options of `AnswerOptions` to a command that takes them as `**options`."""
    kinds = get_type_hints(AnswerOptions, include_extras=True)
    _add_options(function, {name: (kind, None) for name, kind in kinds.items()})
    return function


# ---- helpers ---------------------------------------------------------------------------------------------------------


def root() -> Path:
    """Return the root folder of the running command."""
    command = running.get()
    return DEFAULT_ROOT if command is None else command.root


def open_root() -> ProjectManager:
    """Return the projects of the root folder."""
    from llama_index_contextual.project.manager import ProjectManager

    return ProjectManager(root())


OF_A_COMMAND = RETRIEVAL_FIELDS - {"keep_versions"}
"""Settings that the environment overrides when an existing project is queried or built.

These are the settings that do not require a new version, except `keep_versions`, which would remove versions.
"""


def with_environment(config: ProjectConfig, environment: Mapping[str, str]) -> ProjectConfig:
    """Return a project's settings, overridden by those in `OF_A_COMMAND` that are set in the environment.

    Raises:
        ConfigurationError: A value in the environment is invalid.
    """
    named = {field: value for field, value in environment_settings(environment).items() if field in OF_A_COMMAND}
    try:
        return config.changed(**named)
    except ConfigurationError as error:
        raise ConfigurationError(f"In the environment ({PREFIX}…): {error}", setting=error.setting) from error


def open_project(name: str) -> Project:
    """Return a project to query or build, with the settings from the environment."""
    project = open_root().load(name)
    project.state.config = with_environment(project.config, os.environ)
    return project


def proposed(command: str, *arguments: str) -> str:
    """Return a command line that the user can copy, with `--root` if it was given to the running command."""
    return shlex.join([PROGRAM, command, *arguments, *root_option()])


def has_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin.isatty()


def require_answer(*, yes: bool) -> None:
    """Exit with code 2 if a confirmation is needed and there is no terminal."""
    if not yes and not has_terminal():
        say_error("There is no terminal for a confirmation: add --yes to continue without one.")
        raise typer.Exit(2)


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation of a permanent removal, unless `--yes` is given."""
    require_answer(yes=yes)
    if not yes:
        typer.confirm(question, abort=True, err=True)


def read_object(path: Path, form: str) -> dict[str, Any]:
    """Read a JSON object from the file given by an option.

    Args:
        path: The file.
        form: Expected form of the content, for messages.

    Raises:
        ConfigurationError: The file cannot be read, or it does not contain a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(f"{str(path)!r} cannot be read ({reason}): {form} into a JSON file.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid JSON ({error}): {form}.") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path} is not a JSON object: {form}.")
    return value


def parse_setting(item: str) -> tuple[str, Any]:
    """Return the name and value of FIELD=VALUE; the value is parsed if it is valid JSON, otherwise it is a string."""
    field, equals, value = item.partition("=")
    if not equals:
        raise typer.BadParameter(f"{item!r} is not FIELD=VALUE.")
    return field, parsed_value(value)


def interruptible(project: Project, work: Callable[[], T]) -> T:
    """Run `work`, and print its log messages about paid calls on standard error.

    On Ctrl-C, print the live version and the state of the ledger, and exit with code 130.
    """
    try:
        with notices():
            return work()
    except KeyboardInterrupt:
        info = project.info()
        live = f"version {info.version} is live" if info.version else "there is no version yet"
        say(
            f"Interrupted: {live}; the ledger keeps {pluralize(info.ledger.contexts, 'context')} and"
            f" {pluralize(info.ledger.embeddings, 'embedding')}.{_pending(info.ledger.batched_requests)}"
            f"{_spent(info.cost)}"
            f" Run the same command again to continue.",
            to=err,
        )
        raise typer.Exit(130) from None


def _spent(cost: ProjectCost) -> str:
    from llama_index_contextual.contextualizer.cost import money
    from llama_index_contextual.index.receipts import ANSWERS

    last = next((run for run in reversed(cost.runs) if run.purpose != ANSWERS), None)
    if last is None or not last.dollars:
        return ""
    booked = f", of which {money(last.booked)} is booked for interrupted calls" if last.booked else ""
    return f" The last run cost {money(last.dollars)}{booked}."


def _pending(requests: int) -> str:
    note = (
        f" The provider continues to process {pluralize(requests, 'request')} in batches; their results are not lost."
    )
    return note if requests else ""
