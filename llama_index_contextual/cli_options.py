"""What the commands share: their common options, the root folder, and what Ctrl-C leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_index_contextual.terminal import err, say

if TYPE_CHECKING:
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.manager import ProjectManager
    from llama_index_contextual.project import Project

Root = Annotated[
    Path,
    typer.Option("--root", envvar="LLAMA_INDEX_CONTEXTUAL_ROOT", help="Folder that holds the projects."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Name = Annotated[str, typer.Argument(help="Name of the project.")]
DEFAULT_ROOT = Path("knowledge")


def open_root(root: Path) -> ProjectManager:
    """Return the projects of a root folder."""
    from llama_index_contextual.manager import ProjectManager

    return ProjectManager(root)


def parse_setting(item: str) -> tuple[str, Any]:
    """Return the name and the value of FIELD=VALUE; a value that is JSON is read as JSON, any other as text."""
    field, equals, value = item.partition("=")
    if not equals:
        raise typer.BadParameter(f"{item!r} is not FIELD=VALUE.")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


def interruptible(project: Project, work: Callable[[], IngestReport]) -> IngestReport:
    """Do the work; on Ctrl-C say what is live and what was kept."""
    try:
        return work()
    except KeyboardInterrupt:
        found = project.info()
        live = f"version {found.version} is live" if found.version else "there is no version yet"
        say(
            f"Interrupted: {live}; the ledger keeps {found.ledger.contexts:,} contexts and"
            f" {found.ledger.embeddings:,} embeddings.{_under_way(found.ledger.batched_requests)}"
            f" Run the same command again to go on.",
            to=err,
        )
        raise typer.Exit(130) from None


def _under_way(requests: int) -> str:
    return f" The provider goes on with {requests:,} requests in batches: nothing of them is lost." if requests else ""
