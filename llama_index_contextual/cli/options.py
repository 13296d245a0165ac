"""Options and helpers that several commands share: projects, confirmation, and interruption by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import typer

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.commands import PROGRAM, complete_project
from llama_index_contextual.cli.terminal import err, notices, root_option, say, say_error
from llama_index_contextual.config import Mode, described
from llama_index_contextual.settings import with_environment

if TYPE_CHECKING:
    from llama_index_contextual.index.receipts import ProjectCost
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import Project

T = TypeVar("T")

# Panels of `--help`, in the order of their first commands, and panels of options.
PROJECTS, DOCUMENTS, QUESTIONS, UPKEEP = "Projects", "Documents", "Questions", "Maintenance"
SEARCH, ANSWER, TIMEOUTS = "Search", "Answer", "Timeouts"

Root = Annotated[
    Path,
    typer.Option(
        "--root",
        envvar="LLAMA_INDEX_CONTEXTUAL_ROOT",
        metavar="FOLDER",
        help="Root folder of the projects.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the project.", autocompletion=complete_project)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
MaxCost = Annotated[
    float | None,
    typer.Option(
        "--max-cost",
        metavar="DOLLARS",
        help="Stop before the run costs more than this; `estimate` suggests a limit.",
    ),
]
Moved = Annotated[bool, typer.Option("--moved", help="The files were moved: documents with the same ids are updated.")]
Password = Annotated[
    list[str] | None,
    typer.Option(
        "--password",
        metavar="[FILE=]PASSWORD",
        help="Password of the encrypted PDFs, or of one of them by its path or name; `-` asks for it. Repeatable.",
    ),
]
DEFAULT_ROOT = Path("knowledge")
ALL_FILES = "*"  # key of the password for all files without one of their own

_FILE_AND_PASSWORD = re.compile(r"(?is)(.+?\.pdf)=(.*)")


# ---- options of questions and answers ------------------------------------------------------------------------------


def _help(setting: str) -> str:
    """Return the description of a setting for an option that overrides it; what None stands for is left out."""
    return described(setting).partition("; None")[0].rstrip(".") + "."


Style = Annotated[
    str | None,
    typer.Option(
        metavar="STYLE",
        rich_help_panel=ANSWER,
        help=_help("style"),
    ),
]
SystemPrompt = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        rich_help_panel=ANSWER,
        help="Replaces the rules for answers (only from the sources, with citations) and the style.",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        metavar="NUMBER",
        rich_help_panel=ANSWER,
        help=_help("min_confidence"),
    ),
]
Guard = Annotated[
    bool | None,
    typer.Option(
        "--guard/--no-guard",
        rich_help_panel=ANSWER,
        help="Also mask personal data; or leave harmful HTML and links, which are removed by default.",
    ),
]
Judged = Annotated[
    bool | None,
    typer.Option(
        "--judge/--no-judge",
        rich_help_panel=ANSWER,
        help=_help("judge"),
    ),
]
Cached = Annotated[
    bool | None,
    typer.Option(
        "--cache/--no-cache",
        rich_help_panel=ANSWER,
        help="Keep answers in the project, and show them again for the same question and passages; on by default.",
    ),
]
ByIntent = Annotated[
    bool | None,
    typer.Option(
        "--intents/--no-intents",
        rich_help_panel=SEARCH,
        help="Adapt the search to the kind of question.",
    ),
]
LLMIntents = Annotated[
    bool,
    typer.Option(
        "--llm-intents",
        rich_help_panel=SEARCH,
        help="As --intents; if the wording does not decide the kind of question, the LLM is asked.",
    ),
]
Day = Annotated[
    str | None,
    typer.Option(
        metavar="DAY",
        rich_help_panel=SEARCH,
        help=_help("reference_date"),
    ),
]
FirstToken = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=TIMEOUTS,
        help=_help("first_token_timeout"),
    ),
]
BetweenTokens = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=TIMEOUTS,
        help=_help("between_tokens_timeout"),
    ),
]
CallTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=TIMEOUTS,
        help="Time to wait for the whole answer if it is not streamed (--json); by default the project's"
        " `call_timeout`, or 60.",
    ),
]
FollowUps = Annotated[
    Literal["blend", "condense", "simple"],
    typer.Option(
        metavar="blend|condense|simple",
        rich_help_panel=SEARCH,
        help="Search of follow-up questions: blended with the conversation, rewritten by the LLM, or unchanged.",
    ),
]
AnswerLLM = Annotated[
    str | None,
    typer.Option("--llm", metavar="MODEL", rich_help_panel=ANSWER, help="LLM that answers, as provider:name."),
]
SearchMode = Annotated[
    Mode | None,
    typer.Option(
        metavar="|".join(get_args(Mode)),
        rich_help_panel=SEARCH,
        help="Indexes to search; by default the project's `mode`.",
    ),
]


# ---- helpers -------------------------------------------------------------------------------------------------------


def open_root(root: Path) -> ProjectManager:
    """Return the projects of a root folder."""
    from llama_index_contextual.project.manager import ProjectManager

    return ProjectManager(root)


def open_project(root: Path, name: str) -> Project:
    """Return a project to query or build, with the settings from the environment."""
    project = open_root(root).load(name)
    project.state.config = with_environment(project.config, os.environ)
    return project


def open_to_answer(root: Path, name: str, **options: Any) -> Project:
    """Return a project to ask, with the settings from the environment, and from those options that are not None."""
    from llama_index_contextual.models import missing_for

    project = open_project(root, name)
    if options.get("answer_llm") is not None:
        # Raises an error if it is not the name of a model.
        missing_for(options["answer_llm"], setting="answer_llm", option="--llm")
    if options.get("intents") is True and project.config.intents:  # the project's own intents, or its LLM
        options["intents"] = None
    if project.config.answer_cache is None and options.get("answer_cache") is None:
        options["answer_cache"] = True
    project.state.config = project.config.changed(
        **{field: value for field, value in options.items() if value is not None}
    )
    return project


def proposed(command: str, *arguments: str) -> str:
    """Return a command line that the user can copy, with `--root` if the running command has it."""
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


def parse_setting(item: str) -> tuple[str, Any]:
    """Return the name and the value of FIELD=VALUE; a value that is valid JSON is parsed, any other is a string."""
    field, equals, value = item.partition("=")
    if not equals:
        raise typer.BadParameter(f"{item!r} is not FIELD=VALUE.")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


def passwords_of(options: Sequence[str] | None) -> dict[str, str]:
    """Return the passwords of the options `--password` by file."""
    passwords = {}
    for option in options or ():
        of_one = _FILE_AND_PASSWORD.fullmatch(option)
        file, secret = of_one.groups() if of_one else (ALL_FILES, option)
        if secret == "-":
            asked = "the encrypted PDFs" if file == ALL_FILES else file
            secret = typer.prompt(f"Password of {asked}", hide_input=True, err=True)
        passwords[file] = secret
    return passwords


def interruptible(project: Project, work: Callable[[], T]) -> T:
    """Run `work`, and print what it logs about paid calls on standard error.

    On Ctrl-C, print the live version and the contents of the ledger, and exit with code 130.
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
