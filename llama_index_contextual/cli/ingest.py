"""Commands that add documents: `ingest`, and `estimate` for the cost."""

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

Paths = Annotated[list[str], typer.Argument(help="Files, folders or globs: PDF, Office, HTML, CSV, mail, text.")]
Replace = Annotated[bool, typer.Option("--replace", help="Remove all other documents.")]
Moved = Annotated[bool, typer.Option("--moved", help="The files were moved: documents with the same ids are updated.")]


@ingesting.command(rich_help_panel=DOCUMENTS)
def estimate(
    name: Name,
    paths: Paths,
    replace: Replace = False,
    moved: Moved = False,
    batch: Annotated[bool, typer.Option("--batch", help="Select the price of batches.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Show the cost of `ingest`, without sending or writing anything."""
    with errors_in_one_line():
        expected = open_project(root, name).estimate(list(paths), replace=replace, moved=moved, batch=batch)
        if as_json:
            say_json(expected.to_dict())
        else:
            show_estimate(expected)
        _exit_if_absent(expected.skipped)


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
            help="Stop before the run costs more than this; `estimate` suggests a limit.",
        ),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Request contexts in batches: half the price per token, within 24 hours.")
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
    """Exit with code 1 if no file exists at one of the given paths."""
    if any(file.absent for file in skipped):
        raise typer.Exit(1)
