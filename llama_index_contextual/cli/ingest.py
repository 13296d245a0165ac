"""Commands that add documents: `ingest`, and `estimate` for the cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from llama_index_contextual.cli.narrowing import Facts, FactsFile
from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    DOCUMENTS,
    Json,
    MaxCost,
    Name,
    Root,
    interruptible,
    open_project,
    proposed,
)
from llama_index_contextual.cli.terminal import (
    err,
    errors_in_one_line,
    safe,
    say,
    say_json,
    show_estimate,
    show_report,
)

if TYPE_CHECKING:
    from llama_index_contextual.readers import SkippedFile

ALL_FILES = "*"  # key of the password for all files without one of their own

_FILE_AND_PASSWORD = re.compile(r"(?is)(.+?\.pdf)=(.*)")

ingesting = typer.Typer()

Paths = Annotated[list[str], typer.Argument(help="Files, folders, globs: PDF, Office, HTML, CSV, mail, text, images.")]
Replace = Annotated[bool, typer.Option("--replace", help="Remove all other documents.")]
Moved = Annotated[bool, typer.Option("--moved", help="The files were moved: documents with the same ids are updated.")]
Reread = Annotated[bool, typer.Option("--reread", help="Read files again whose content has not changed.")]
Password = Annotated[
    list[str] | None,
    typer.Option(
        "--password",
        metavar="[FILE=]PASSWORD",
        help="Password of the encrypted PDFs, or of one of them by its path or name; `-` asks for it. Repeatable.",
    ),
]


@ingesting.command(rich_help_panel=DOCUMENTS)
def estimate(
    name: Name,
    paths: Annotated[list[str] | None, typer.Argument(help="As for `ingest`; without any, for `rebuild`.")] = None,
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
            passwords=_passwords(password),
            batch=batch,
        )
        if as_json:
            say_json(expected.to_dict())
        else:
            show_estimate(expected)
        _warn_of_unused(file_metadata)
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
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Add and update documents, and publish a new version."""
    with errors_in_one_line():
        project, passwords = open_project(root, name), _passwords(password)
        file_metadata = Facts(facts) if facts else None
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
                show_progress=not quiet,
            ),
        )
        show_report(report, retry=proposed("retry", name, root), as_json=as_json)
        _warn_of_unused(file_metadata)
        _exit_if_absent(report.skipped)


def _passwords(options: Sequence[str] | None) -> dict[str, str]:
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


def _warn_of_unused(facts: Facts | None) -> None:
    for pattern in facts.unused() if facts else ():
        say(f"[yellow]note[/] The facts about {safe(pattern)} were not used: no file has that name.", to=err)


def _exit_if_absent(skipped: Sequence[SkippedFile]) -> None:
    """Exit with code 1 if no file exists at one of the given paths."""
    if any(file.absent for file in skipped):
        raise typer.Exit(1)
