"""Commands that add documents: `ingest`, and `estimate` for the cost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from llama_index_contextual.cli.commands import Commands
from llama_index_contextual.cli.narrowing import Facts, FactsFile, warn_of_unused
from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    DOCUMENTS,
    Json,
    MaxCost,
    Moved,
    Name,
    Password,
    Root,
    interruptible,
    open_project,
    passwords_of,
    proposed,
)
from llama_index_contextual.cli.terminal import (
    errors_in_one_line,
    say_json,
    show_estimate,
    show_report,
)

if TYPE_CHECKING:
    from llama_index_contextual.readers import SkippedFile

ingesting = Commands()

Paths = Annotated[
    list[str],
    typer.Argument(metavar="FILES...", help="Files, folders, globs: PDF, Office, HTML, CSV, mail, text, images."),
]
Replace = Annotated[bool, typer.Option("--replace", help="Remove all other documents.")]
Reread = Annotated[bool, typer.Option("--reread", help="Read files again whose content has not changed.")]


@ingesting.command(rich_help_panel=DOCUMENTS)
def estimate(
    name: Name,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[FILES]...", help="As for `ingest`; without any, for `rebuild`.")
    ] = None,
    replace: Replace = False,
    moved: Moved = False,
    reread: Reread = False,
    facts: FactsFile = None,
    password: Password = None,
    batch: Annotated[bool, typer.Option("--batch", help="Select the price of batches.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Show the cost of `ingest` or `rebuild`, without sending or writing anything."""
    with errors_in_one_line():
        project, file_metadata = open_project(root, name), Facts(facts) if facts else None
        expected = project.estimate(
            list(paths or ()),
            replace=replace,
            moved=moved,
            reread=reread,
            file_metadata=file_metadata,
            passwords=passwords_of(password),
            batch=batch,
        )
        if as_json:
            say_json(expected.to_dict())
        else:
            show_estimate(expected)
        warn_of_unused(file_metadata)
        _exit_if_absent(expected.skipped)


@ingesting.command(rich_help_panel=DOCUMENTS)
def ingest(
    name: Name,
    paths: Paths,
    replace: Replace = False,
    moved: Moved = False,
    reread: Reread = False,
    facts: FactsFile = None,
    password: Password = None,
    max_cost: MaxCost = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Request contexts in batches: half the price per token, within 24 hours.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Read and embed on a Ray cluster: `auto` for the one of this machine, HOST:PORT, or `local`.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Add and update documents, and publish a new version."""
    with errors_in_one_line():
        project, passwords = open_project(root, name), passwords_of(password)
        file_metadata = Facts(facts) if facts else None
        # Ray prints the log of a node that died to standard output, which is for the report.
        with contextlib.redirect_stdout(sys.stderr) if ray is not None else contextlib.nullcontext():
            report = interruptible(
                project,
                lambda: project.ingest(
                    list(paths),
                    replace=replace,
                    moved=moved,
                    reread=reread,
                    file_metadata=file_metadata,
                    passwords=passwords,
                    max_cost=max_cost,
                    batch=batch,
                    executor="local" if ray is None else "ray",
                    address=ray,
                    show_progress=not quiet,
                ),
            )
        show_report(report, retry=proposed("retry", name), as_json=as_json)
        warn_of_unused(file_metadata)
        _exit_if_absent(report.skipped)


def _exit_if_absent(skipped: Sequence[SkippedFile]) -> None:
    """Exit with code 1 if no file exists at one of the given paths."""
    if any(file.absent for file in skipped):
        raise typer.Exit(1)
