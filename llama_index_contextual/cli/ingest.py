"""Commands that bring documents in, and the one that says before what it will cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    DOCUMENTS,
    Json,
    Name,
    Root,
    interruptible,
    open_project,
    proposed,
)
from llama_index_contextual.cli.terminal import errors_in_one_line, say_json, show_estimate, show_report

if TYPE_CHECKING:
    from llama_index_contextual.readers import SkippedFile

ingesting = typer.Typer()

Paths = Annotated[list[str], typer.Argument(help="Files, folders or globs: PDF, TXT, Markdown.")]
Replace = Annotated[bool, typer.Option("--replace", help="Make the project exactly these documents.")]
Moved = Annotated[
    bool, typer.Option("--moved", help="The files have a new place: documents whose ids match are the same.")
]


@ingesting.command(rich_help_panel=DOCUMENTS)
def estimate(
    name: Name,
    paths: Paths,
    replace: Replace = False,
    moved: Moved = False,
    batch: Annotated[bool, typer.Option("--batch", help="Mark the price of batches as the one that is meant.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Show what `ingest` would cost; nothing is sent, nothing is written."""
    with errors_in_one_line():
        found = open_project(root, name).estimate(list(paths), replace=replace, moved=moved, batch=batch)
        if as_json:
            say_json(found.to_dict())
        else:
            show_estimate(found)
        _exit_if_absent(found.skipped)


@ingesting.command(rich_help_panel=DOCUMENTS)
def ingest(
    name: Name,
    paths: Paths,
    replace: Replace = False,
    moved: Moved = False,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost",
            metavar="DOLLARS",
            help="Stop before the run costs more than this; `estimate` says what is enough.",
        ),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Ask for contexts in batches: half the price of a token, within 24 hours.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Add and update documents, and publish a new version."""
    with errors_in_one_line():
        project = open_project(root, name)
        report = interruptible(
            project,
            lambda: project.ingest(
                list(paths),
                replace=replace,
                moved=moved,
                max_cost=max_cost,
                batch=batch,
                show_progress=not quiet,
            ),
        )
        show_report(report, retry=proposed("retry", name, root), as_json=as_json)
        _exit_if_absent(report.skipped)


def _exit_if_absent(skipped: Sequence[SkippedFile]) -> None:
    """End the command with exit code 1 if a path that was given leads to no file."""
    if any(file.absent for file in skipped):
        raise typer.Exit(1)
