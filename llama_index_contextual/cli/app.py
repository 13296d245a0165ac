"""The command line, `llama-index-contextual COMMAND`, and the commands that manage projects.

Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual._version import __version__
from llama_index_contextual.cli import answer, common, documents, evaluate, serve
from llama_index_contextual.cli.common import Commands, Name, err, safe, say
from llama_index_contextual.cli.installation import Check, check_installation
from llama_index_contextual.config import (
    LOCAL,
    PREFIX,
    RETRIEVAL_FIELDS,
    ProjectConfig,
    described,
    environment_settings,
    read_dotenv,
)
from llama_index_contextual.errors import ContextualError, ProjectNotFoundError, end_sentence

if TYPE_CHECKING:
    from llama_index_contextual.index.ledger_lines import LedgerRows
    from llama_index_contextual.money.receipt import ProjectCost
    from llama_index_contextual.project.manager import ProjectManager
    from llama_index_contextual.project.project import ProjectInfo, VersionInfo

app = Commands(
    "Projects",
    name=common.PROGRAM,
    help="Contextual Retrieval over your documents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with [bold]llama-index-contextual open FOLDER[/].",
    context_settings={"help_option_names": ["-h", "--help"]},
)
upkeep = Commands("Maintenance")
project = Commands(help="Export and import whole projects, for copies on other machines.", no_args_is_help=True)
ledger = Commands(help="Export and import paid contexts, embeddings and pages.", no_args_is_help=True)

_SETTINGS_FORM = 'write an object, such as {"top_k": 5}'


def main() -> None:
    """Run the command line."""
    output = sys.stdout
    for stream in (output, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot display must not make the command fail.
            stream.reconfigure(errors="backslashreplace")
    read_dotenv(Path(".env"), os.environ)
    # Commands print warnings in their output; without a handler, Python would print them again.
    logging.getLogger("llama_index_contextual").addHandler(logging.NullHandler())
    try:
        app()
    except Exception as error:  # noqa: BLE001 - printed, and converted into an exit code
        # `Command` handles expected errors; any other error is a bug.
        for line in scrub("".join(traceback.format_exception(error))).splitlines():
            err.print(safe(line), soft_wrap=True)
        common.say_error("This is a bug: please report it with the lines above.")
        raise SystemExit(1) from None
    finally:
        if output is not None:  # None if standard output is closed, as with `>&-`
            _flush(output)


def _flush(output: TextIO) -> None:
    """Flush the output. If that fails, exit, but print no error if the program that reads the output has ended."""
    try:
        output.flush()
    except OSError as error:
        # Python flushes again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if not isinstance(error, BrokenPipeError):
            common.say_error(common.cli_message(error))
        raise SystemExit(1) from None


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        say(__version__)
        raise typer.Exit


# ---- projects --------------------------------------------------------------------------------------------------------


@app.command()
def create(
    name: Name,
    local: Annotated[bool, typer.Option("--local")] = False,
    llm: common.Llm = None,
    settings: common.Settings = None,
    config_file: Annotated[Path | None, typer.Option("--config", metavar="FILE")] = None,
) -> None:
    """Create an empty project.

    Args:
        local: Use models that need no key and no network; with --llm, only that LLM is sent texts.
        config_file: JSON file with settings; --llm and --set override it.
    """
    from llama_index_contextual.project.manager import missing_for_models

    of_environment = environment_settings(os.environ)
    if local:  # no data leaves this machine, unless the file or an option changes these settings
        of_environment = {k: v for k, v in of_environment.items() if k not in ("embed_model", "context")}
    changes = of_environment | (common.read_object(config_file, _SETTINGS_FORM) if config_file else {})
    changes |= common.changed_settings(llm, settings)
    config = ProjectConfig.local(**changes) if local else ProjectConfig(**changes)
    project = common.open_root().create(name, config)
    if common.wants_json():
        common.say_json({"name": project.name, "config": config.model_dump()})
        return
    for note in missing_for_models(config):
        common.say_note(note)
    say(f"Created project [bold]{safe(name)}[/] in {safe(str(common.root()))}.")
    say(f"Next: {safe(common.suggested_command('ingest', name))} FILES…")


@app.command("settings")
def list_settings(
    name: Annotated[str | None, typer.Argument(metavar="NAME", autocompletion=common.complete_project)] = None,
) -> None:
    """List all settings with their values and descriptions; `create` and `configure` change them.

    Args:
        name: Project whose settings are shown; without it, the defaults.
    """
    config = ProjectConfig() if name is None else common.open_project(name).config
    values, defaults = config.model_dump(mode="json"), ProjectConfig().model_dump(mode="json")
    settings = [
        {
            "name": field,
            "value": value,
            "default": defaults[field],
            "description": described(field),
            "rebuild": field not in RETRIEVAL_FIELDS,
        }
        for field, value in values.items()
    ]
    common.say_result(settings, partial(_show_settings, settings))


def _show_settings(settings: Sequence[Mapping[str, Any]]) -> None:
    """Print all settings in the form FIELD=VALUE with their descriptions, and highlight changed values."""
    for setting in settings:
        value = common.snippet(json.dumps(setting["value"], ensure_ascii=False), 60)
        text = value if setting["value"] == setting["default"] else f"[bold green]{value}[/]"
        say(f"[bold]{setting['name']}[/]={text}{'  [yellow]rebuild[/]' if setting['rebuild'] else ''}")
        say(f"[dim]{safe(setting['description'])}[/]", indent=4)
    say(
        "\nrebuild: a change takes effect with the next `rebuild` or `ingest`. To change settings: `create NAME --set"
        f" FIELD=VALUE`, `configure NAME FIELD=VALUE`, or {PREFIX}FIELD in the environment or in a `.env`"
        " file, which `create` stores, and which overrides the project's setting if no rebuild is needed."
    )


@app.command("list")
def list_projects() -> None:
    """List the projects."""
    manager = common.open_root()
    names = manager.list()
    if common.wants_json():
        common.say_json(names)
    elif not names:
        advice = safe(common.suggested_command("create", "NAME", "--local"))
        say(f"No projects in {safe(str(common.root()))} yet. Create one: {advice}", to=err)
    else:
        for name in names:  # other programs read only the names
            say(f"{safe(name)}  [dim]{_size_text(manager, name)}[/]" if common.out.is_terminal else safe(name))


def _size_text(manager: ProjectManager, name: str) -> str:
    try:
        documents = manager.load(name).documents()
    except ContextualError as error:
        return safe(common.cli_message(error))
    return pluralize(len(documents), "document") if documents else "empty"


@app.command()
def info(name: Name) -> None:
    """Show the contents and settings of a project."""
    project_info = common.open_project(name).info()
    value = {**asdict(project_info), "config": project_info.config.model_dump(), "cost": project_info.cost.to_dict()}
    common.say_result(value, partial(_show_info, project_info))


def _show_info(info: ProjectInfo) -> None:
    from llama_index_contextual.index.languages import describe_languages
    from llama_index_contextual.ingestion.report import describe_failed

    failed = {
        "fallback": describe_failed(info.fallback_chunks, 0),
        "unembedded": describe_failed(0, info.unembedded_chunks),
    }
    pending = info.ledger.batched_requests
    rows = [
        ("project", info.name),
        ("documents", f"{info.documents:,}" if info.version else "none yet (see `ingest`)"),
        ("passages", f"{info.chunks:,} ({pluralize(info.tokens, 'token')})"),
        *([("languages", describe_languages(info.languages))] if info.languages else []),
        *([("", f"{info.unknown_languages} (see `doctor`)")] if info.unknown_languages else []),
        *((label, f"{chunks} (see `retry`)") for label, chunks in failed.items() if chunks),
        *([("derived data", "of an earlier release (see `rebuild --derived`)")] if info.is_outdated else []),
        ("version", f"{info.version} (see `versions`)" if info.version else "none yet"),
        ("on disk", f"{info.bytes / 1e6:,.1f} MB"),
        *([("paid and kept", _kept(info))] if info.ledger.contexts or info.ledger.embeddings else []),
        *([("in batches", f"{pluralize(pending, 'request')} pending")] if pending else []),
        *([("cost so far", _total_cost(info.cost))] if info.cost.runs else []),
        ("searches", f"{_MODES[info.config.mode]}; {pluralize(info.config.top_k, 'result')}"),
        ("embeddings", f"{info.config.embed_model}{_ON_THIS_MACHINE * (info.config.embed_model == LOCAL)}"),
        ("contexts", _contexts_text(info.config)),
        ("answers", info.config.answer_llm or (info.config.llm if info.config.context == "llm" else None) or _NO_LLM),
        ("reranking", "none" if info.reranker is None else str(info.reranker)),
    ]
    for label, value in rows:
        say(f"[dim]{label:<14}[/]{safe(value)}")


_MODES = {"hybrid": "by meaning and words", "semantic": "by meaning", "lexical": "by words"}
_ON_THIS_MACHINE, _NO_LLM = " (on this machine, free)", "none: no LLM is set (see `ask --llm`)"


def _contexts_text(config: ProjectConfig) -> str:
    if config.context == "llm":
        return f"written by {config.llm}"
    return "from titles and headings (free)" if config.context == "structural" else config.context


def _kept(info: ProjectInfo) -> str:
    return f"{pluralize(info.ledger.contexts, 'context')}, {pluralize(info.ledger.embeddings, 'embedding')}"


def _total_cost(cost: ProjectCost) -> str:
    from llama_index_contextual.money.price import money

    booked = f", of which {money(cost.booked)} for calls of unknown price" if cost.booked else ""
    unpriced = f", and {pluralize(cost.without_price, 'run')} without a known price" if cost.without_price else ""
    total = money(cost.dollars, is_estimated=cost.is_estimated)
    return f"{total} in {pluralize(len(cost.runs), 'run')}{booked}{unpriced}"


@app.command()
def cost(name: Name) -> None:
    """Show the cost of a project so far, by run and in total."""
    costs = common.open_root().load(name).cost()
    common.say_result(costs.to_dict(), partial(_show_cost, costs))


def _show_cost(cost: ProjectCost) -> None:
    from llama_index_contextual.money.price import money

    if not cost.runs:
        say("Nothing was sent to a paid model so far: $0.00.")
        return
    for receipt in cost.runs:
        day = datetime.fromtimestamp(receipt.started).strftime("%Y-%m-%d %H:%M")
        parts = [" + ".join(name for name in (receipt.llm, receipt.embed_model) if name)]
        parts += [pluralize(receipt.calls, "call")] if receipt.calls else []
        parts += [f"{pluralize(receipt.embedding_tokens, 'token')} embedded"] if receipt.embedding_tokens else []
        parts += ["estimated: the provider did not report all tokens"] if receipt.is_estimated else []
        parts += [f"{money(receipt.booked)} booked for calls without a reply"] if receipt.booked else []
        parts += ["running or killed"] if receipt.ended is None else []
        dollars = money(receipt.dollars, is_estimated=receipt.is_estimated)
        say(f"{day}  {receipt.purpose:<8}{dollars}  [dim]{safe('; '.join(parts))}[/]")
    say(f"total: {safe(_total_cost(cost))}, without the embeddings of questions")


@app.command()
def delete(
    name: Name,
    keep_ledger: Annotated[bool, typer.Option("--keep-ledger")] = False,
    yes: common.Yes = False,
) -> None:
    """Delete a project permanently.

    Args:
        keep_ledger: Keep the ledger with the contexts and embeddings that were paid for.
    """
    manager = common.open_root()
    contents = _contents_text(manager, name)
    common.confirm(f"Delete project {name!r}{contents}?", yes=yes)
    manager.delete(name, keep_ledger=keep_ledger)
    note = " Its ledger is kept." if keep_ledger else ""
    result = {"deleted": name, "ledger_kept": keep_ledger}
    common.say_result(result, f"Deleted project [bold]{safe(name)}[/].{note}")


def _contents_text(manager: ProjectManager, name: str) -> str:
    try:
        info = manager.load(name).info()
    except ProjectNotFoundError:
        raise
    except ContextualError as error:
        # Even a damaged project can be deleted.
        say(f"[yellow]{safe(common.cli_message(error))}[/]", to=err)
        return ""
    return f" with {pluralize(info.documents, 'document')} and {pluralize(info.ledger.contexts, 'paid context')}"


@app.command(root=False)
def demo() -> None:
    """Show the effect of contexts on example documents, without a key or a network."""
    from llama_index_contextual.cli.demo import run_demo, show_answer

    answers = run_demo(lambda step: say(f"[dim]{safe(step)} …[/]", to=err))

    def show() -> None:
        for one in answers:
            show_answer(one)
        say("\nTo try your own documents: llama-index-contextual open FOLDER")

    ranks = [{"question": a.question, "rank_without": a.rank_without, "rank_with": a.rank_with} for a in answers]
    common.say_result(ranks, show)


# ---- maintenance -----------------------------------------------------------------------------------------------------


@upkeep.command("versions")
def list_versions(name: Name) -> None:
    """List the versions of a project."""
    versions = common.open_root().load(name).versions()
    common.say_result(versions, partial(_show_versions, versions))


def _show_versions(versions: Sequence[VersionInfo]) -> None:
    for version in versions:
        sizes = f"{pluralize(version.documents or 0, 'document')}  {pluralize(version.chunks or 0, 'chunk')}"
        day = version.created and f"{datetime.fromisoformat(version.created).astimezone():%Y-%m-%d %H:%M}"
        facts = f"[red]damaged[/]  {safe(version.damage)}" if version.damage else f"{day}  {sizes}"
        marks = ["[dim]automatic[/]"] * version.automatic + ["[green]live[/]"] * version.live
        say("  ".join([version.name, facts, *marks]))


@upkeep.command()
def rollback(
    name: Name,
    to: Annotated[str | None, typer.Option(metavar="VERSION")] = None,
) -> None:
    """Make an earlier version live.

    Args:
        to: Name of the version; the default is the previous one.
    """
    live = common.open_root().load(name).rollback(to)
    common.say_result({"live": live}, f"Version [bold]{live}[/] is live.")


@upkeep.command()
def verify(
    name: Name,
    repair: Annotated[bool, typer.Option("--repair")] = False,
) -> None:
    """Compare all files with their checksums, and show how to repair damage.

    Args:
        repair: Repair the damage, and list the documents to ingest again.
    """
    report = common.open_root().verify(name, repair=repair)
    lines = [safe(line) for line in report.repair.lines()] if report.repair is not None else []
    for problem in report.problems:
        colour = "yellow" if problem.harmless else "red"
        advice = f"To repair it: {safe(problem.remedy)}"
        lines.append(f"[{colour}]{safe(problem.file)}[/] {end_sentence(safe(problem.message))} {advice}")
    if not report.problems:
        lines.append(f"No damage in {pluralize(len(report.versions), 'version')} and the ledger.")
    common.say_result(report, "\n".join(lines))
    if not report.sound:
        raise typer.Exit(1)


@upkeep.command()
def doctor(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME")] = None,
    online: Annotated[bool, typer.Option("--online")] = False,
) -> None:
    """Check the installation, keys, models, disk and projects, and show a command for each problem.

    Nothing is changed, and no key is shown. Model servers on this machine are contacted, others only with --online.
    Files are checked by their sizes; `verify` checks every byte. The exit code is 1 if there is a problem.

    Args:
        names: Projects; by default, all.
        online: Also contact other machines, and download models if needed.
    """
    checks = list(check_installation())
    try:
        from llama_index_contextual.cli.doctor import check_projects

        checks += check_projects(common.root(), names or [], online=online)
    except ImportError as error:
        checks.append(Check("Projects", f"are not checked: {error}"))
    problems = [check for check in checks if check.command is not None and not check.harmless]
    common.say_result({"sound": not problems, "checks": checks}, partial(_show_checks, checks))
    if problems:
        raise typer.Exit(1)


def _show_checks(checks: Sequence[Check]) -> None:
    for place, of_place in itertools.groupby(checks, key=lambda check: check.place):
        say(f"[bold]{safe(place)}[/]")
        for check in of_place:
            mark = "[green]ok[/]" if not check.command else "[yellow]note[/]" if check.harmless else "[red]problem[/]"
            say(f"{mark}: {safe(check.message)}", indent=2)
            if check.command:
                common.out.print(f"    [bold]{safe(check.command)}[/]", soft_wrap=True)


@upkeep.command()
def export(
    name: Name,
    directory: Annotated[Path, typer.Argument(metavar="FOLDER")],
) -> None:
    """Export the live version to files that LlamaIndex's own stores can load.

    Args:
        directory: A new folder.
    """
    common.open_root().load(name).export(directory)
    common.say_result({"exported": str(directory)}, f"Exported to {safe(str(directory))}.")


@upkeep.command()
def configure(
    name: Name,
    settings: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE", autocompletion=common.complete_setting)],
) -> None:
    """Change settings, and show which of them need a `rebuild`.

    Args:
        settings: Settings to change.
    """
    changes = dict(common.parse_setting(item) for item in settings)
    pending = common.open_root().load(name).update_config(**changes)
    message = "Changed; takes effect with the next query."
    if pending:
        message = f"Changed. To apply {', '.join(pending)}, run `{safe(common.suggested_command('rebuild', name))}`."
    common.say_result({"needs_rebuild": pending}, message)
    if not common.wants_json():
        for field in sorted(changes.keys() & environment_settings(os.environ).keys() & common.OF_A_COMMAND):
            common.say_note(f"{PREFIX}{field.upper()} is set and overrides it.")


LedgerPath = Annotated[Path, typer.Argument(metavar="FILE", help="A JSON lines file.")]


@ledger.command("export")
def export_ledger(name: Name, path: LedgerPath) -> None:
    """Export contexts, embeddings, pages read by OCR and receipts as JSON lines."""
    _say_rows(common.open_root().export_ledger(name, path), "exported")


@ledger.command("import")
def import_ledger(name: Name, path: LedgerPath) -> None:
    """Import a file written by `ledger export`, so that its contents are not paid for again."""
    from llama_index_contextual.index import ledger_lines

    rows = ledger_lines.import_ledger(common.open_root().load(name).directory, path)
    _say_rows(rows, "imported")


@project.command("export")
def export_project(
    name: Name,
    target: Annotated[str, typer.Argument(metavar="FILE")],
    without_ledger: Annotated[bool, typer.Option("--without-ledger")] = False,
) -> None:
    """Export settings, live version and ledger as one file, which other machines import.

    Args:
        target: The file, or its URL, such as s3://bucket/contracts.zip; it is replaced.
        without_ledger: Leave out the contexts and embeddings that were paid for.
    """
    copy = common.open_root().export_project(name, target, ledger=not without_ledger)
    size = f"{copy.bytes / 1e6:,.1f} MB"
    text = f"Exported {copy.version} with {pluralize(copy.documents, 'document')} to {target}: {size}."
    common.say_result(asdict(copy), safe(text))


@project.command("import")
def import_project(
    source: Annotated[str, typer.Argument(metavar="FILE")],
    name: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    allow_private: Annotated[bool, typer.Option("--allow-private")] = False,
) -> None:
    """Import a file written by `project export`, or update an earlier import of the same project.

    Args:
        source: The file, or its URL.
        name: Name of the project here; by default, its name where it was exported.
        allow_private: Also read from a web server at an internal address.
    """
    copy = common.open_root().import_project(source, name, allow_private_addresses=allow_private)
    state = "is live" if copy.is_new else "was live already"
    text = f"{copy.version} of {name or copy.name} with {pluralize(copy.documents, 'document')} {state}."
    common.say_result(asdict(copy), safe(text))


def _say_rows(rows: LedgerRows, verb: str) -> None:
    counts = asdict(rows)
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    common.say_result({verb: counts}, f"{verb.capitalize()}: {text or 'nothing'}.")


app.add_typer(serve.opening)
for module in (documents, answer, evaluate, serve):
    app.add_typer(module.commands)
app.add_typer(upkeep)
app.add_typer(ledger, name="ledger", rich_help_panel="Maintenance")
app.add_typer(project, name="project", rich_help_panel="Maintenance")


if __name__ == "__main__":
    main()
