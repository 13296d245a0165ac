"""The command line: `llama-index-contextual COMMAND`.

Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, get_args

import typer

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._version import __version__
from llama_index_contextual.cli.answer import answering
from llama_index_contextual.cli.commands import PROGRAM, Commands, complete_project, complete_setting
from llama_index_contextual.cli.evaluate import evaluating
from llama_index_contextual.cli.ingest import ingesting
from llama_index_contextual.cli.opening import opening
from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    PROJECTS,
    Json,
    Name,
    Root,
    Yes,
    confirm,
    open_project,
    open_root,
    parse_setting,
    proposed,
)
from llama_index_contextual.cli.serve import serving
from llama_index_contextual.cli.sync import syncing
from llama_index_contextual.cli.terminal import (
    err,
    errors_in_one_line,
    in_words,
    safe,
    say,
    say_error,
    say_json,
    say_traceback,
    show_answer,
    show_cost,
    show_info,
    show_settings,
)
from llama_index_contextual.cli.upkeep import upkeep
from llama_index_contextual.config import ContextKind, ProjectConfig
from llama_index_contextual.environment import read_dotenv
from llama_index_contextual.errors import ContextualError, ProjectNotFoundError
from llama_index_contextual.retirement import retirement_notice
from llama_index_contextual.settings import (
    OF_A_COMMAND,
    describe_settings,
    environment_settings,
    file_settings,
)

if TYPE_CHECKING:
    from llama_index_contextual.project.manager import ProjectManager

app = Commands(
    name=PROGRAM,
    help="Contextual Retrieval over your documents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

TRACEBACK_VARIABLE = "LLAMA_INDEX_CONTEXTUAL_TRACEBACK"


def main() -> None:
    """Run the command line."""
    output = sys.stdout
    for stream in (output, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    read_dotenv(Path(".env"), os.environ)
    # Warnings are part of the output of commands; without a handler, Python would print them again.
    logging.getLogger("llama_index_contextual").addHandler(logging.NullHandler())
    try:
        app()
    except Exception as error:  # noqa: BLE001 - shown, and turned into an exit code
        # Expected errors were handled by `errors_in_one_line`. Any other is a bug: it is printed in one line, with
        # instructions for the traceback.
        if os.environ.get(TRACEBACK_VARIABLE):
            say_traceback(error)
            raise SystemExit(1) from None
        say_error(
            f"{type(error).__name__}: {error} (this is a bug: please report it, with the output of the same command"
            f" with {TRACEBACK_VARIABLE}=1)"
        )
        raise SystemExit(1) from None
    finally:
        if output is not None:  # as after `>&-`
            _flush(output)


def _flush(output: TextIO) -> None:
    """Write what is left of the output; exit if that fails, silently if the program that reads it has ended."""
    try:
        output.flush()
    except OSError as error:
        # Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if not isinstance(error, BrokenPipeError):
            say_error(in_words(error))
        raise SystemExit(1) from None


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        say(__version__)
        raise typer.Exit


@app.command(rich_help_panel=PROJECTS)
def create(
    name: Name,
    local: Annotated[bool, typer.Option("--local", help="Work without a key or a network.")] = False,
    context: Annotated[
        ContextKind | None,
        typer.Option(metavar="|".join(get_args(ContextKind)), help="Source of the context of chunks."),
    ] = None,
    language: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Language of the documents, for stemming.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            autocompletion=complete_setting,
            help="A setting listed by `settings`; may be repeated.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="JSON file with settings; --set overrides it.")
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Create an empty project."""
    with errors_in_one_line():
        from llama_index_contextual.project.manager import missing_for_models

        of_environment = environment_settings(os.environ)
        if local:  # nothing leaves this machine, unless a file or an option says so
            of_environment = {k: v for k, v in of_environment.items() if k not in ("embed_model", "context")}
        changes = of_environment | (file_settings(config_file) if config_file else {})
        changes |= dict(parse_setting(item) for item in settings or [])
        changes |= {k: v for k, v in (("context", context), ("language", language)) if v is not None}
        config = ProjectConfig.local(**changes) if local else ProjectConfig(**changes)
        project = open_root(root).create(name, config)
        if as_json:
            say_json({"name": project.name, "config": config.model_dump()})
            return
        notes = missing_for_models(config)
        if config.context == "llm" and (notice := retirement_notice(config.llm, project=name)):
            notes.append(notice)
        for note in notes:
            say(f"[yellow]note[/] {safe(note)}", to=err)
        say(f"Created project [bold]{safe(name)}[/] in {safe(str(root))}.")
        say(f"Next: {safe(proposed('ingest', name))} FILES…")


@app.command("settings", rich_help_panel=PROJECTS)
def list_settings(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Project whose settings are shown; without it, the defaults.",
            autocompletion=complete_project,
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """List all settings with their values and descriptions; `create` and `configure` change them."""
    with errors_in_one_line():
        config = ProjectConfig() if name is None else open_project(root, name).config
        if as_json:
            say_json([asdict(setting) for setting in describe_settings(config)])
        else:
            overriding = () if name is None else environment_settings(os.environ).keys() & OF_A_COMMAND
            show_settings(describe_settings(config), by_environment=overriding)


@app.command("list", rich_help_panel=PROJECTS)
def list_projects(root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """List the projects."""
    with errors_in_one_line():
        names = open_root(root).list()
        if as_json:
            say_json(names)
            return
        if not names:
            say(
                f"No projects in {safe(str(root))} yet. Create one: {safe(proposed('create', 'NAME', '--local'))}",
                to=err,
            )
        for name in names:
            say(safe(name))


@app.command(rich_help_panel=PROJECTS)
def info(name: Name, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Show the contents and settings of a project."""
    with errors_in_one_line():
        shown = open_project(root, name).info()
        if as_json:
            say_json({**asdict(shown), "config": shown.config.model_dump(), "cost": shown.cost.to_dict()})
        else:
            show_info(shown)


@app.command(rich_help_panel=PROJECTS)
def cost(name: Name, root: Root = DEFAULT_ROOT, as_json: Json = False) -> None:
    """Show the cost of a project so far, by run and in total."""
    with errors_in_one_line():
        costs = open_root(root).load(name).cost()
        if as_json:
            say_json(costs.to_dict())
        else:
            show_cost(costs)


@app.command(rich_help_panel=PROJECTS)
def delete(
    name: Name,
    keep_ledger: Annotated[bool, typer.Option("--keep-ledger", help="Keep the paid contexts.")] = False,
    yes: Yes = False,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Delete a project permanently."""
    with errors_in_one_line():
        manager = open_root(root)
        contents = _contents(manager, name, keep_ledger=keep_ledger)
        confirm(f"Delete project {name!r}{contents}?", yes=yes)
        manager.delete(name, keep_ledger=keep_ledger)
        if as_json:
            say_json({"deleted": name, "ledger_kept": keep_ledger})
        else:
            say(f"Deleted project [bold]{safe(name)}[/]." + (" Its ledger is kept." if keep_ledger else ""))


def _contents(manager: ProjectManager, name: str, *, keep_ledger: bool) -> str:
    try:
        info = manager.load(name).info()
    except ProjectNotFoundError:
        raise
    except ContextualError as error:
        # A damaged project can be deleted too.
        say(f"[yellow]{safe(in_words(error))}[/]", to=err)
        return ""
    contexts = "" if keep_ledger else f" and {pluralize(info.ledger.contexts, 'paid context')}"
    return f" with {pluralize(info.documents, 'document')}{contexts}"


@app.command(rich_help_panel=PROJECTS)
def demo(as_json: Json = False) -> None:
    """Show the effect of contexts on example documents, without a key or a network."""
    from llama_index_contextual.cli.demo import TOP_K, run_demo

    with errors_in_one_line():
        answers = run_demo(lambda step: say(f"[dim]{safe(step)} …[/]", to=err))
        if as_json:
            rows = [{"question": a.question, "rank_without": a.rank_without, "rank_with": a.rank_with} for a in answers]
            say_json(rows)
            return
        for answer in answers:
            show_answer(answer, top_k=TOP_K)
        say("\nTo try your own documents:")
        say("  llama-index-contextual create mine --local")
        say("  llama-index-contextual ingest mine FOLDER")


app.add_typer(opening)
app.add_typer(ingesting)
app.add_typer(syncing)
app.add_typer(answering)
app.add_typer(evaluating)
app.add_typer(upkeep)
app.add_typer(serving)


if __name__ == "__main__":
    main()
