"""The command line: `llama-index-contextual COMMAND`. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llama_index_contextual._version import __version__
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.readers.names import printable

if TYPE_CHECKING:
    from llama_index_contextual.manager import ProjectManager
    from llama_index_contextual.project import Project
    from llama_index_contextual.results import RetrievalResponse

app = typer.Typer(
    name="llama-index-contextual",
    help="Contextual Retrieval over your PDF, TXT and Markdown documents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

Root = Annotated[
    Path,
    typer.Option("--root", envvar="LLAMA_INDEX_CONTEXTUAL_ROOT", help="Folder that holds the projects."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Name = Annotated[str, typer.Argument(help="Name of the project.")]
DEFAULT_ROOT = Path("knowledge")


def main() -> None:
    """Run the command line."""
    app()


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except ContextualError as error:
        err.print(f"[red]Error:[/] {_safe(str(error))}")
        raise typer.Exit(1) from None
    except OSError as error:
        err.print(f"[red]Error:[/] {_safe(str(error))}")
        raise typer.Exit(1) from None


def _safe(text: str) -> str:
    """Return text from documents or the user without control characters and without Rich markup."""
    return escape(printable(text))


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


def _manager(root: Path) -> ProjectManager:
    from llama_index_contextual.manager import ProjectManager

    return ProjectManager(root)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def create(
    name: Name,
    local: Annotated[bool, typer.Option("--local", help="Work without key and network.")] = False,
    context: Annotated[str | None, typer.Option(help="llm, structural or none.")] = None,
    language: Annotated[str | None, typer.Option(help="Language of the documents, for stemming.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any setting; may be repeated.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Create an empty project."""
    from llama_index_contextual.config import ProjectConfig

    with _errors_in_one_line():
        changes: dict[str, Any] = dict(_setting(item) for item in settings or [])
        changes |= {k: v for k, v in (("context", context), ("language", language)) if v is not None}
        config = ProjectConfig.local(**changes) if local else ProjectConfig(**changes)
        project = _manager(root).create(name, config)
        if as_json:
            _print_json({"name": project.name, "config": config.model_dump()})
            return
        out.print(f"Created project [bold]{_safe(name)}[/] in {_safe(str(root))}.")
        out.print(f"Next: llama-index-contextual ingest {_safe(name)} FILES…")


def _setting(item: str) -> tuple[str, Any]:
    field, equals, value = item.partition("=")
    if not equals:
        raise typer.BadParameter(f"{item!r} is not FIELD=VALUE.", param_hint="--set")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


@app.command("list")
def list_projects(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """List the projects."""
    with _errors_in_one_line():
        manager = _manager(root)
        names = manager.list()
        if as_json:
            _print_json(names)
        elif not names:
            out.print(f"No projects in {_safe(str(root))} yet. Create one: llama-index-contextual create NAME")
        for name in names if not as_json else ():
            out.print(_safe(name))


@app.command()
def info(name: Name, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Show what a project is and holds."""
    with _errors_in_one_line():
        found = _manager(root).load(name).info()
        if as_json:
            _print_json({**asdict(found), "config": found.config.model_dump()})
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        rows = [
            ("project", found.name),
            ("live version", found.version or "none yet"),
            ("documents", f"{found.documents:,}"),
            ("chunks", f"{found.chunks:,} ({found.tokens:,} tokens)"),
            ("on disk", f"{found.bytes / 1e6:,.1f} MB"),
            ("ledger", f"{found.ledger.contexts:,} contexts, {found.ledger.embeddings:,} embeddings"),
            ("embedding", found.config.embed_model),
            ("context", found.config.context + (f" ({found.config.llm})" if found.config.context == "llm" else "")),
            ("mode", f"{found.config.mode}, top {found.config.top_k}"),
        ]
        for label, value in rows:
            table.add_row(f"[dim]{label}[/]", _safe(value))
        out.print(table)


@app.command()
def ingest(
    name: Name,
    paths: Annotated[list[str], typer.Argument(help="Files, folders or globs: PDF, TXT, Markdown.")],
    replace: Annotated[bool, typer.Option(help="Make the project exactly these documents.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Add and update documents, and publish a new version."""
    with _errors_in_one_line():
        project = _manager(root).load(name)
        report = _interruptible(project, lambda: project.ingest(list(paths), replace=replace, show_progress=not quiet))
        if as_json:
            _print_json(report.to_dict())
            return
        for file in report.skipped:
            err.print(f"[yellow]skipped[/] {_safe(file.path)}: {_safe(file.reason)}")
        for warning in report.warnings:
            err.print(f"[yellow]note[/] {_safe(warning.path)}: {_safe(warning.message)}")
        for failure in report.failures:
            err.print(f"[yellow]no LLM context[/] {_safe(failure.doc_id)}: {_safe(failure.error)}")
        out.print(
            f"Version [bold]{report.version}[/] is live: {len(report.added)} added, {len(report.updated)} updated,"
            f" {len(report.unchanged)} unchanged, {len(report.skipped)} skipped; {report.chunks:,} chunks;"
            f" {report.contexts_paid:,} contexts asked for; {report.seconds:.1f} s."
        )


def _interruptible(project: Project, work: Callable[[], Any]) -> Any:
    """Do the work; on Ctrl-C say what is live and what was kept."""
    try:
        return work()
    except KeyboardInterrupt:
        found = project.info()
        live = f"version {found.version} is still live" if found.version else "there is no version yet"
        err.print(
            f"Interrupted: {live}; the ledger keeps {found.ledger.contexts:,} contexts and"
            f" {found.ledger.embeddings:,} embeddings. Run the same command again to go on."
        )
        raise typer.Exit(130) from None


@app.command()
def search(
    name: Name,
    question: Annotated[str, typer.Argument(help="What to look for.")],
    mode: Annotated[str | None, typer.Option(help="semantic, lexical or hybrid.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", "-k", help="Results.")] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Show the passages that answer a question best."""
    with _errors_in_one_line():
        response = _manager(root).load(name).retrieve(question, mode=mode, top_k=top_k)  # type: ignore[arg-type]
        if as_json:
            _print_json(response.to_dict())
        else:
            _show(response)


def _show(response: RetrievalResponse) -> None:
    for warning in response.warnings:
        err.print(f"[yellow]{_safe(warning)}[/]")
    if not response.results:
        out.print("Nothing was found.")
    for chunk in response.results:
        ranks = [
            f"{leg} {evidence.rank}"
            for leg, evidence in (("semantic", chunk.semantic), ("lexical", chunk.lexical))
            if evidence is not None
        ]
        out.print(f"[bold cyan]{chunk.rank:>2}.[/] [bold]{_safe(str(chunk.source))}[/]  [dim]{' · '.join(ranks)}[/]")
        if chunk.context:
            out.print(f"    [italic dim]{_safe(_shorten(chunk.context, 200))}[/]")
        out.print(f"    {_safe(_shorten(_around(chunk.text, response.query), 320))}\n")


def _around(text: str, query: str) -> str:
    """Return the text from shortly before the first long word of the query that it holds."""
    folded = text.casefold()
    words = sorted({word for word in query.casefold().split() if len(word) > 3}, key=len, reverse=True)
    at = next((place for word in words if (place := folded.find(word)) >= 0), 0)
    start = 0 if at < 120 else text.rfind(" ", 0, at - 80) + 1
    return ("… " if start else "") + text[start:]


def _shorten(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


@app.command()
def delete(
    name: Name,
    keep_ledger: Annotated[bool, typer.Option("--keep-ledger", help="Keep the contexts that were paid for.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Delete a project for good."""
    with _errors_in_one_line():
        manager = _manager(root)
        found = manager.load(name).info()
        paid = found.ledger.contexts if not keep_ledger else 0
        if not yes:
            typer.confirm(
                f"Delete project {name!r} with {found.documents} documents and {paid} paid contexts?",
                abort=True,
                err=True,
            )
        manager.delete(name, keep_ledger=keep_ledger)
        if as_json:
            _print_json({"deleted": name, "contexts_lost": paid})
        else:
            out.print(f"Deleted project [bold]{_safe(name)}[/]." + (" Its ledger is kept." if keep_ledger else ""))


@app.command()
def demo(as_json: Json = False) -> None:
    """Show what contexts change, on example documents: no key, no network."""
    from llama_index_contextual.demo import TOP_K, run_demo

    with _errors_in_one_line():
        answers = run_demo(lambda step: err.print(f"[dim]{step} …[/]"))
        if as_json:
            rows = [{"question": a.question, "rank_without": a.rank_without, "rank_with": a.rank_with} for a in answers]
            _print_json(rows)
            return
        out.print(f"\nRank of the passage that answers, among the first {TOP_K}:\n")
        table = Table("question", "without", "with context", "passage", expand=False, show_lines=True)
        for answer in answers:
            passage = "" if answer.found is None else f"[bold]{_safe(str(answer.found.source))}[/]\n"
            if answer.found is not None and answer.found.context:
                passage += f"[italic dim]{_safe(_shorten(answer.found.context, 180))}[/]\n"
            table.add_row(
                _safe(answer.question),
                _rank(answer.rank_without),
                _rank(answer.rank_with),
                passage + _safe(_shorten(answer.evidence, 160)),
            )
        out.print(table)
        out.print("Your own documents: llama-index-contextual create mine --local, then ingest mine FOLDER")


def _rank(rank: int | None) -> str:
    return "[red]absent[/]" if rank is None else f"[green]{rank}[/]"


if __name__ == "__main__":
    main()
