"""What the commands share: their common options, the root folder, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.terminal import err, say, say_error
from llama_index_contextual.config import Mode
from llama_index_contextual.settings import with_environment

if TYPE_CHECKING:
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.storage.receipts import ProjectCost

T = TypeVar("T")

Root = Annotated[
    Path,
    typer.Option("--root", envvar="LLAMA_INDEX_CONTEXTUAL_ROOT", help="Folder that holds the projects."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Name = Annotated[str, typer.Argument(help="Name of the project.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DEFAULT_ROOT = Path("knowledge")

# The panels of `--help`, in the order in which their first commands are added.
PROJECTS, DOCUMENTS, QUESTIONS, UPKEEP = "Projects", "Documents", "Questions", "Upkeep"


# ---- how questions are answered ------------------------------------------------------------------------------------


def _day(text: str) -> date:
    try:
        return date.today() if text == "today" else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a day: write it as 2026-11-22, or today.") from None


Style = Annotated[
    str,
    typer.Option(
        envvar="LLAMA_INDEX_CONTEXTUAL_STYLE",
        show_envvar=False,
        help="How it is written: instruction, persona, chain_of_thought, or rules of your own.",
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        envvar="LLAMA_INDEX_CONTEXTUAL_MIN_CONFIDENCE",
        show_envvar=False,
        help="Answer only from this confidence of the search on, 0 to 1; without it, the LLM decides.",
    ),
]
Guard = Annotated[
    bool,
    typer.Option(
        "--guard",
        envvar="LLAMA_INDEX_CONTEXTUAL_GUARD",
        show_envvar=False,
        help="Remove HTML and unsafe links, hide personal data.",
    ),
]
Judged = Annotated[
    bool,
    typer.Option(
        "--judge",
        envvar="LLAMA_INDEX_CONTEXTUAL_JUDGE",
        show_envvar=False,
        help="Let the LLM look at every answer once more; what the passages do not bear out is held back.",
    ),
]
ByIntent = Annotated[
    bool,
    typer.Option(
        "--intents",
        envvar="LLAMA_INDEX_CONTEXTUAL_INTENTS",
        show_envvar=False,
        help="Search every question by what it wants.",
    ),
]
Day = Annotated[
    date | None,
    typer.Option(
        parser=_day,
        metavar="DAY",
        envvar="LLAMA_INDEX_CONTEXTUAL_REFERENCE_DATE",
        show_envvar=False,
        help="Day by which `last quarter` and the like are understood: 2026-11-22, or today.",
    ),
]
FirstToken = Annotated[
    float,
    typer.Option(
        envvar="LLAMA_INDEX_CONTEXTUAL_FIRST_TOKEN_TIMEOUT",
        show_envvar=False,
        help="Seconds to wait for the answer's beginning.",
    ),
]
BetweenTokens = Annotated[
    float,
    typer.Option(
        envvar="LLAMA_INDEX_CONTEXTUAL_BETWEEN_TOKENS_TIMEOUT",
        show_envvar=False,
        help="Seconds to wait for its next piece; then it ends as a partial answer.",
    ),
]
CallTimeout = Annotated[
    float | None,
    typer.Option(
        envvar="LLAMA_INDEX_CONTEXTUAL_CALL_TIMEOUT",
        show_envvar=False,
        help="Seconds for a whole call, where the answer is not shown as it comes (--json, --judge); otherwise the"
        " project's `call_timeout`, or 60.",
    ),
]
FollowUps = Annotated[
    Literal["blend", "condense", "simple"],
    typer.Option(
        help="How a follow-up is searched: blended with what was said, made to stand alone by the LLM, or as it is."
    ),
]
SearchMode = Annotated[Mode | None, typer.Option(help="Which indexes are searched.")]


# ---- what commands do ----------------------------------------------------------------------------------------------


def open_root(root: Path) -> ProjectManager:
    """Return the projects of a root folder."""
    from llama_index_contextual.project.manager import ProjectManager

    return ProjectManager(root)


def open_project(root: Path, name: str) -> Project:
    """Return a project that is to be asked or built, by the settings that hold for this command."""
    project = open_root(root).load(name)
    project.config = with_environment(project.config, os.environ)
    return project


def proposed(command: str, name: str, root: Path) -> str:
    """Return a command for a project as it can be copied."""
    words = ["llama-index-contextual", command, name, *([] if root == DEFAULT_ROOT else ["--root", str(root)])]
    return shlex.join(words)


def has_terminal() -> bool:
    """Return whether there is somebody to ask."""
    return sys.stdin.isatty()


def require_answer(*, yes: bool) -> None:
    """End the command with exit code 2 where it would have to ask, and there is no terminal to ask on."""
    if not yes and not has_terminal():
        say_error("There is no terminal to ask on: add --yes to go on without a question.")
        raise typer.Exit(2)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is removed for good, unless `--yes` has answered already."""
    require_answer(yes=yes)
    if not yes:
        typer.confirm(question, abort=True, err=True)


def parse_setting(item: str) -> tuple[str, Any]:
    """Return the name and the value of FIELD=VALUE; a value that is JSON is read as JSON, any other as text."""
    field, equals, value = item.partition("=")
    if not equals:
        raise typer.BadParameter(f"{item!r} is not FIELD=VALUE.")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


def interruptible(project: Project, work: Callable[[], T]) -> T:
    """Do the work; on Ctrl-C say what is live and what was kept."""
    try:
        return work()
    except KeyboardInterrupt:
        found = project.info()
        live = f"version {found.version} is live" if found.version else "there is no version yet"
        say(
            f"Interrupted: {live}; the ledger keeps {pluralize(found.ledger.contexts, 'context')} and"
            f" {pluralize(found.ledger.embeddings, 'embedding')}.{_under_way(found.ledger.batched_requests)}"
            f"{_spent(found.cost)}"
            f" Run the same command again to go on.",
            to=err,
        )
        raise typer.Exit(130) from None


def _spent(cost: ProjectCost) -> str:
    from llama_index_contextual.contextualizer.cost import money

    last = cost.runs[-1] if cost.runs else None
    if last is None or not last.dollars:
        return ""
    booked = f", of which {money(last.booked)} is booked for calls that were cut off" if last.booked else ""
    return f" The last run has cost {money(last.dollars)}{booked}."


def _under_way(requests: int) -> str:
    going_on = f" The provider goes on with {pluralize(requests, 'request')} in batches: nothing of them is lost."
    return going_on if requests else ""
