"""Commands that ingest, list and remove the documents of a project, and show their cost."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, MaxCost, Name, Quiet, Yes
from llama_index_contextual.cli.terminal import (
    err,
    out,
    safe,
    say,
    say_json,
    say_result,
    say_with_details,
    snippet,
    wants_json,
)
from llama_index_contextual.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from llama_index_contextual.index.forget import ForgetReport
    from llama_index_contextual.index.manifest import DocumentRecord
    from llama_index_contextual.ingestion.estimate import CostEstimate
    from llama_index_contextual.ingestion.report import IngestReport
    from llama_index_contextual.readers import SkippedFile

commands = Commands("Documents")

ALL_FILES = "*"  # key for the password of all files that have no password of their own
_FILE_AND_PASSWORD = re.compile(r"(?is)(.+?\.pdf)=(.*)")

Moved = Annotated[bool, typer.Option("--moved", help="The files were moved: documents with the same ids are updated.")]
Password = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[FILE=]PASSWORD",
        help="Password of the encrypted PDFs, or of one of them by its path or name; `-` asks for it. Repeatable.",
    ),
]
FactsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="JSON",
        help='Facts about files, which filters can name: {"FILE or glob": {"kind": "report", "year": 2024}, …}.',
    ),
]
Batch = Annotated[
    bool, typer.Option("--batch", help="Request contexts in batches: half the price per token, within 24 hours.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Remove all other documents.")]
Reread = Annotated[bool, typer.Option("--reread", help="Read files again whose content has not changed.")]


def passwords_of(options: Sequence[str] | None) -> dict[str, str]:
    """Return the passwords given by `--password`, by file."""
    passwords = {}
    for option in options or ():
        of_one = _FILE_AND_PASSWORD.fullmatch(option)
        file, secret = of_one.groups() if of_one else (ALL_FILES, option)
        if secret == "-":
            asked = "the encrypted PDFs" if file == ALL_FILES else file
            secret = typer.prompt(f"Password of {asked}", hide_input=True, err=True)
        passwords[file] = secret
    return passwords


class Facts:
    """Facts about files from a JSON file, as a `file_metadata` function that records which entries are used.

    Args:
        path: JSON file that contains an object with facts for each file name, path or glob. If several match a file,
            later entries override earlier ones.

    Raises:
        ConfigurationError: The file cannot be read, or it is not a JSON object.
        InputError: An entry is not an object.
    """

    def __init__(self, path: Path) -> None:
        form = 'write {"report.pdf": {"kind": "report"}, "contracts/*": {"kind": "contract"}}'
        self._facts = common.read_object(path, form)
        if not all(isinstance(entry, dict) for entry in self._facts.values()):
            raise InputError(f"--facts {path} is not an object of facts by file: {form}.", value=str(path))
        self._unused = dict.fromkeys(self._facts)

    def __call__(self, path: str) -> dict[str, Any]:
        """Return the facts about the file with this path."""
        from llama_index_contextual.tools.filters import is_named

        facts: dict[str, Any] = {}
        for pattern, entry in self._facts.items():
            if is_named(pattern, PurePath(path).as_posix()):
                self._unused.pop(pattern, None)
                facts |= entry
        return facts

    def warn_of_unused(self) -> None:
        """Print the entries that matched no file."""
        for pattern in self._unused:
            say(f"[yellow]note[/] The facts about {safe(pattern)} were not used: no file has that name.", to=err)


# ---- adding documents ------------------------------------------------------------------------------------------------


@commands.command()
def estimate(
    name: Name,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="FILES", help="As for `ingest`; without any, for `rebuild`.")
    ] = None,
    replace: Replace = False,
    moved: Moved = False,
    reread: Reread = False,
    facts: FactsFile = None,
    password: Password = None,
    batch: Annotated[bool, typer.Option("--batch", help="Select the price of batches.")] = False,
) -> None:
    """Show the cost of `ingest` or `rebuild`, without sending or writing anything."""
    project, file_metadata = common.open_project(name), Facts(facts) if facts else None
    expected = project.estimate(
        list(paths or ()),
        replace=replace,
        moved=moved,
        reread=reread,
        file_metadata=file_metadata,
        passwords=passwords_of(password),
        batch=batch,
    )
    say_result(expected.to_dict(), partial(show_estimate, expected))
    if file_metadata is not None:
        file_metadata.warn_of_unused()
    _exit_if_absent(expected.skipped)


@commands.command()
def ingest(
    name: Name,
    paths: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Files, folders, globs: PDF, Office, HTML, CSV, mail, text, images."),
    ],
    replace: Replace = False,
    moved: Moved = False,
    reread: Reread = False,
    facts: FactsFile = None,
    password: Password = None,
    max_cost: MaxCost = None,
    batch: Batch = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Read and embed on a Ray cluster: `auto` for the one of this machine, HOST:PORT, or `local`.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Add and update documents, and publish a new version."""
    project, passwords = common.open_project(name), passwords_of(password)
    file_metadata = Facts(facts) if facts else None
    work = partial(
        project.ingest,
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
    )
    # Ray prints the log of a dead node to standard output, which is reserved for the report.
    with contextlib.redirect_stdout(sys.stderr) if ray is not None else contextlib.nullcontext():
        report = common.interruptible(project, work)
    show_report(report, name)
    if file_metadata is not None:
        file_metadata.warn_of_unused()
    _exit_if_absent(report.skipped)


def _exit_if_absent(skipped: Sequence[SkippedFile]) -> None:
    """Exit with code 1 if any of the given paths does not exist."""
    if any(file.absent for file in skipped):
        raise typer.Exit(1)


def show_estimate(estimate: CostEstimate) -> None:
    """Print the expected cost of an ingestion, with a row for each method of requesting contexts."""
    from llama_index_contextual.ingestion.estimate import CHOSEN
    from llama_index_contextual.ingestion.report import skipped_lines

    for line in skipped_lines(estimate.skipped):
        say(f"[yellow]skipped[/] {safe(line)}", to=err)
    for line in str(estimate).splitlines():
        if line.startswith(("  ", CHOSEN)):  # this is a table row, so wrapping words would collapse its columns
            out.print(f"[bold]{escape(line)}[/]" if line.startswith(CHOSEN) else escape(line), soft_wrap=True)
        else:
            say(safe(line))
    if estimate.max_cost:
        say(f"[dim]To set a limit for the run: `ingest` or `rebuild` with --max-cost {estimate.max_cost:g}[/]")


def show_report(report: IngestReport, name: str, *, is_new: bool = True) -> None:
    """Print the report of an ingestion as JSON, or as text with problems on standard error.

    Args:
        report: The report.
        name: Name of the project.
        is_new: Whether the version has not been printed before; if False, only problems and costs are printed as text.
    """
    from llama_index_contextual.ingestion.report import skipped_lines

    if wants_json():
        say_json(report.to_dict())
        return
    kept = "its file no longer exists; the document is kept unless --replace is given"
    lines = [
        *(("[dim]renamed[/] ", f"{former} to {doc_id}") for former, doc_id in report.renamed.items()),
        *(("[yellow]note[/] ", notice) for notice in report.notices),
        *(("[yellow]missing[/] ", f"{doc_id}: {kept}") for doc_id in report.missing),
        *(("[yellow]skipped[/] ", line) for line in skipped_lines(report.skipped)),
        *(("[yellow]note[/] ", f"{warning.path}: {warning.message}") for warning in report.warnings),
        *(("", remedy.command_line) for remedy in report.advice() if remedy.command_line),
        *(("[yellow]no LLM context[/] for ", line) for line in report.failure_lines()),
    ]
    for label, text in lines:
        say(f"{label}{safe(text)}", to=err)
    retry = common.proposed("retry", name)
    for sentence, command in report.retry_advice(retry, f"{retry} --max-cost {{}}"):
        say(f"{safe(sentence)}:", to=err)
        say(safe(command), to=err, indent=2)
    requested = f" {pluralize(report.contexts_paid, 'context')} requested;" if report.contexts_paid else ""
    if is_new:
        say(f"Version [bold]{report.version}[/] is live: {report.summary()};{requested} {report.seconds:.1f} s.")
    if receipt := report.receipt():
        say(f"[dim]{safe(receipt)}.[/]")


@commands.command()
def rebuild(
    name: Name,
    max_cost: MaxCost = None,
    quiet: Quiet = False,
) -> None:
    """Publish a version with the current settings, from the stored documents."""
    project = common.open_project(name)
    if project.config.context == "llm" and not quiet:
        say(safe(project.estimate().in_short()), to=err)
    report = common.interruptible(project, partial(project.rebuild, max_cost=max_cost, show_progress=not quiet))
    show_report(report, name)


@commands.command()
def retry(
    name: Name,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="DOLLARS",
            help="Also request contexts that the LLM refused, and those in a batch that cannot be read although they"
            " may be charged; stop before the run costs more than this.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Request failed contexts from the LLM again; refused ones only with --max-cost."""
    project = common.open_project(name)
    report = common.interruptible(project, partial(project.retry_failed, max_cost=max_cost, show_progress=not quiet))
    show_report(report, name)


# ---- listing and removing documents ----------------------------------------------------------------------------------


@commands.command()
def documents(
    name: Name,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Only these: ids, file names or globs."),
    ] = None,
) -> None:
    """List the documents of the live version with their ids, titles, chunks and tokens."""
    records = common.open_root().load(name).documents()
    if files:
        from llama_index_contextual.tools.filters import documents_named

        named = [record for pattern in files for record in documents_named(pattern, records)]
        records = list({record.doc_id: record for record in named}.values())
    if wants_json():
        say_json(list(records))
    elif not records:
        say("No documents yet.", to=err)
    elif out.is_terminal:
        _show_documents(records)
    else:
        for record in records:
            cells = [record.doc_id, record.chunks, record.tokens, len(record.fallback_chunks), record.title or ""]
            # Rich would replace tabs with spaces.
            typer.echo("\t".join(Text.from_markup(safe(str(cell)), emoji=False).plain for cell in cells))


def _show_documents(records: Sequence[DocumentRecord]) -> None:
    """Print documents with their titles and totals; ids are never cut or wrapped, so that they can be copied."""
    for record in records:
        title = "" if record.title in (None, "", record.doc_id, record.file_name) else record.title or ""
        facts = [snippet(title, 60)] if title else []
        facts += [pluralize(record.chunks, "chunk"), pluralize(record.tokens, "token")]
        if record.fallback_chunks:
            facts.append(f"[yellow]{pluralize(len(record.fallback_chunks), 'chunk')} without an LLM context[/]")
        say_with_details(f"[bold]{safe(record.doc_id)}[/]", " · ".join(facts))
    totals = [
        pluralize(len(records), "document"),
        pluralize(sum(record.chunks for record in records), "chunk"),
        pluralize(sum(record.tokens for record in records), "token"),
    ]
    if failed := sum(len(record.fallback_chunks) for record in records):
        totals.append(f"[yellow]{pluralize(failed, 'chunk')} without an LLM context[/] (see `retry`)")
    say()
    say(", ".join(totals))


@commands.command()
def remove(
    name: Name,
    doc_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="Document ids, as listed by `documents`."),
    ],
) -> None:
    """Remove documents, and publish a new version; `forget` then removes them from earlier versions too."""
    show_report(common.open_root().load(name).remove(list(doc_ids)), name)


@commands.command()
def forget(
    name: Name,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, without removing it.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Permanently remove all data outside the live version: other versions and their paid contexts."""
    project = common.open_root().load(name)
    if not dry_run and not yes:
        common.require_answer(yes=yes)
        _show_removal(project.forget(dry_run=True), to=err)
        common.confirm("Remove them?", yes=yes)
    removed = project.forget(dry_run=dry_run)
    if wants_json():
        say_json(asdict(removed) | ({"dry_run": True} if dry_run else {}))
    else:
        _show_removal(removed, to=out, done=not dry_run)


def _show_removal(removed: ForgetReport, *, to: Console, done: bool = False) -> None:
    """Print the data that `forget` will remove or has removed."""
    names = f" ({', '.join(removed.versions)})" if removed.versions and not done else ""
    versions = f"{pluralize(len(removed.versions), 'version')}{names}"
    rows = f"{versions}, {pluralize(removed.contexts, 'context')}, {pluralize(removed.embeddings, 'embedding')}"
    final = "This cannot be undone, and no rollback is possible."
    say(f"Permanently removed: {rows}." if done else f"`forget` permanently removes {rows}. {final}", to=to)
    if removed.batched_requests:
        requests = f"{pluralize(removed.batched_requests, 'request')} in batches"
        verb = "abandoned" if done else "It abandons"
        say(f"[yellow]{verb}[/] {requests}, which the provider may still process and charge", to=err)
