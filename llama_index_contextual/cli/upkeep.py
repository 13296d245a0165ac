"""Commands that maintain a project: versions, repair, settings, documents, the ledger."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.commands import Commands, complete_document, complete_setting
from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    DOCUMENTS,
    UPKEEP,
    Json,
    MaxCost,
    Name,
    Root,
    Yes,
    confirm,
    interruptible,
    open_project,
    open_root,
    parse_setting,
    proposed,
    require_answer,
)
from llama_index_contextual.cli.terminal import (
    err,
    errors_in_one_line,
    out,
    safe,
    say,
    say_json,
    show_documents,
    show_report,
)
from llama_index_contextual.environment import PREFIX
from llama_index_contextual.settings import OF_A_COMMAND, environment_settings

if TYPE_CHECKING:
    from rich.console import Console

    from llama_index_contextual.index.forget import ForgetReport
    from llama_index_contextual.index.ledger_lines import LedgerRows

upkeep = Commands()
_FINAL = "This cannot be undone, and no rollback is possible."
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


@upkeep.command("versions", rich_help_panel=UPKEEP)
def list_versions(name: Name, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """List the versions of a project."""
    with errors_in_one_line():
        versions = open_root(root).load(name).versions()
        if as_json:
            say_json([asdict(version) for version in versions])
            return
        for version in versions:
            if version.damage is None:
                sizes = f"{pluralize(version.documents or 0, 'document')}  {pluralize(version.chunks or 0, 'chunk')}"
                facts = f"{version.created}  {sizes}"
            else:
                facts = f"[red]damaged[/]  {safe(version.damage)}"
            say(f"{version.name}  {facts}  {'[green]live[/]' if version.live else ''}")


@upkeep.command(rich_help_panel=UPKEEP)
def rollback(
    name: Name,
    to: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Name of the version; the default is the previous one.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Make an earlier version live."""
    with errors_in_one_line():
        live = open_root(root).load(name).rollback(to)
        if as_json:
            say_json({"live": live})
        else:
            say(f"Version [bold]{live}[/] is live.")


@upkeep.command(rich_help_panel=UPKEEP)
def verify(
    name: Name,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair the damage, and name the documents that are to be ingested again.")
    ] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Compare all files with their checksums, and show how to repair damage."""
    with errors_in_one_line():
        report = open_root(root).verify(name, repair=repair)
        if as_json:
            say_json(asdict(report))
        for line in report.repair.lines() if report.repair is not None and not as_json else ():
            say(safe(line))
        for problem in report.problems if not as_json else ():
            colour = "yellow" if problem.harmless else "red"
            repair_hint = f"To repair it: {safe(problem.remedy)}"
            say(f"[{colour}]{safe(problem.file)}[/] {safe(problem.message)}. {repair_hint}")
        if not as_json and not report.problems:
            say(f"No damage in {pluralize(len(report.versions), 'version')} and the ledger.")
        if not report.sound:
            raise typer.Exit(1)


@upkeep.command(rich_help_panel=UPKEEP)
def export(
    name: Name,
    directory: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Export the live version for LlamaIndex's own stores."""
    with errors_in_one_line():
        open_root(root).load(name).export(directory)
        if as_json:
            say_json({"exported": str(directory)})
        else:
            say(f"Exported to {safe(str(directory))}.")


@upkeep.command(rich_help_panel=DOCUMENTS)
def remove(
    name: Name,
    doc_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", help="Document ids, as listed by `documents`.", autocompletion=complete_document
        ),
    ],
    forget: Annotated[
        bool, typer.Option("--forget", help="Also run `forget`; no rollback is possible afterwards.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation of --forget.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Remove documents, and publish a new version."""
    with errors_in_one_line():
        project = open_root(root).load(name)
        if forget:
            require_answer(yes=yes)
            if not yes:
                versions = [version.name for version in project.versions()]
                what = f"{pluralize(len(set(doc_ids)), 'document')}, {pluralize(len(versions), 'version')}"
                say(
                    f"`remove --forget` permanently removes {what} ({', '.join(versions)}), and the contexts and"
                    f" embeddings that no other document uses. {_FINAL}",
                    to=err,
                )
            confirm("Remove them?", yes=yes)
        report = project.remove(list(doc_ids))
        removed = project.forget() if forget else None
        if as_json:
            say_json(report.to_dict() | ({"forgotten": asdict(removed)} if removed else {}))
            return
        show_report(report, retry=proposed("retry", name))
        if removed is not None:
            _show_removed(removed)


@upkeep.command(rich_help_panel=DOCUMENTS)
def forget(
    name: Name,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed, without removing it.")
    ] = False,
    yes: Yes = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Permanently remove all data outside the live version: other versions and their paid contexts."""
    with errors_in_one_line():
        project = open_root(root).load(name)
        if not dry_run:
            require_answer(yes=yes)
        if not dry_run and not yes:
            _show_removal(project.forget(dry_run=True), to=err)
            confirm("Remove them?", yes=yes)
        removed = project.forget(dry_run=dry_run)
        if as_json:
            say_json(asdict(removed) | ({"dry_run": True} if dry_run else {}))
        elif dry_run:
            _show_removal(removed, to=out)
        else:
            _show_removed(removed)


def _paid_rows(removed: ForgetReport) -> str:
    return f"{pluralize(removed.contexts, 'context')}, {pluralize(removed.embeddings, 'embedding')}"


def _show_removal(removed: ForgetReport, *, to: Console) -> None:
    names = f" ({', '.join(removed.versions)})" if removed.versions else ""
    versions = f"{pluralize(len(removed.versions), 'version')}{names}"
    say(f"`forget` permanently removes {versions}, {_paid_rows(removed)}. {_FINAL}", to=to)
    if removed.batched_requests:
        requests = pluralize(removed.batched_requests, "request")
        say(f"[yellow]It abandons {requests} in batches, which the provider may still process and charge.[/]", to=to)


def _show_removed(removed: ForgetReport) -> None:
    say(f"Permanently removed: {pluralize(len(removed.versions), 'version')}, {_paid_rows(removed)}.")
    if removed.batched_requests:
        requests = pluralize(removed.batched_requests, "request")
        say(f"[yellow]abandoned[/] {requests} in batches, which the provider may still process and charge", to=err)


@upkeep.command(rich_help_panel=DOCUMENTS)
def documents(
    name: Name,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", autocompletion=complete_document, help="Only these: ids, file names or globs."
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """List the documents of the live version with their ids, titles, chunks and tokens."""
    with errors_in_one_line():
        records = open_root(root).load(name).documents()
        if files:
            from llama_index_contextual.tools.conditions import documents_named

            records = [record for pattern in files for record in documents_named(pattern, records)]
            records = list({record.doc_id: record for record in records}.values())
        if as_json:
            say_json([asdict(record) for record in records])
        else:
            show_documents(records)


@upkeep.command(rich_help_panel=UPKEEP)
def configure(
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="FIELD=VALUE...", help="Settings to change.", autocompletion=complete_setting)
    ],
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Change settings, and show which of them need a `rebuild`."""
    with errors_in_one_line():
        changes = dict(parse_setting(item) for item in settings)
        pending = open_root(root).load(name).update_config(**changes)
        if as_json:
            say_json({"needs_rebuild": pending})
            return
        if pending:
            fields = ", ".join(pending)
            say(f"Changed. To apply {fields}, run `{safe(proposed('rebuild', name))}`.")
        else:
            say("Changed; takes effect with the next query.")
        for field in sorted(changes.keys() & environment_settings(os.environ).keys() & OF_A_COMMAND):
            say(f"[yellow]{PREFIX}{field.upper()} is set and overrides it.[/]", to=err)


@upkeep.command(rich_help_panel=DOCUMENTS)
def rebuild(
    name: Name,
    max_cost: MaxCost = None,
    quiet: Quiet = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Publish a version with the current settings, from the stored documents."""
    with errors_in_one_line():
        project = open_project(root, name)
        if project.config.context == "llm" and not quiet:
            say(safe(project.estimate().in_short()), to=err)
        report = interruptible(project, lambda: project.rebuild(max_cost=max_cost, show_progress=not quiet))
        show_report(report, retry=proposed("retry", name), as_json=as_json)


@upkeep.command(rich_help_panel=DOCUMENTS)
def retry(
    name: Name,
    max_cost: Annotated[
        float | None,
        typer.Option(
            "--max-cost",
            metavar="DOLLARS",
            help="Also request contexts that the LLM refused, and those in a batch that cannot be read although they"
            " may be charged; stop before the run costs more than this.",
        ),
    ] = None,
    quiet: Quiet = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Request failed contexts from the LLM again; refused ones only with --max-cost."""
    with errors_in_one_line():
        project = open_project(root, name)
        report = interruptible(project, lambda: project.retry_failed(max_cost=max_cost, show_progress=not quiet))
        show_report(report, retry=proposed("retry", name), as_json=as_json)


ledger = Commands(help="Export and import what was paid for.", no_args_is_help=True)
upkeep.add_typer(ledger, name="ledger", rich_help_panel=UPKEEP)
LedgerPath = Annotated[Path, typer.Argument(metavar="FILE", help="A JSON lines file.")]


@ledger.command("export")
def export_ledger(name: Name, path: LedgerPath, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Export contexts, embeddings, pages read by OCR and receipts as JSON lines."""
    with errors_in_one_line():
        _say_rows(open_root(root).export_ledger(name, path), "exported", as_json)


@ledger.command("import")
def import_ledger(name: Name, path: LedgerPath, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Import what `ledger export` wrote, so that it is not paid for again."""
    with errors_in_one_line():
        from llama_index_contextual.index import ledger_lines

        rows = ledger_lines.import_ledger(open_root(root).load(name).directory, path)
        _say_rows(rows, "imported", as_json)


_SINGULAR = {
    "contexts": "context",
    "embeddings": "embedding",
    "pages": "page",
    "replies": "reply",
    "receipts": "receipt",
}


def _say_rows(rows: LedgerRows, verb: str, as_json: bool) -> None:
    counts = asdict(rows)
    if as_json:
        say_json({verb: counts})
    else:
        shown = [f"{count:,} {name if count > 1 else _SINGULAR[name]}" for name, count in counts.items() if count]
        say(f"{', '.join(shown)} {verb}." if shown else f"The ledger is empty: nothing {verb}.")
