"""Commands that give people (`open`, `serve`) and programs (`serve --api`, `mcp`) access to projects."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import regex  # type: ignore[import-untyped]  # the package ships no types
import typer

from llama_index_contextual._utils.http import is_loopback, server_address
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli import common
from llama_index_contextual.cli.common import Commands, err, safe, say
from llama_index_contextual.cli.documents import show_estimate, show_report
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    ContextualError,
    InputError,
    ModelError,
    PathNotFoundError,
    ProjectExistsError,
)

if TYPE_CHECKING:
    from llama_index_contextual.ingestion.report import IngestProgress, IngestReport, ReportProgress
    from llama_index_contextual.project.project import Project
    from llama_index_contextual.ui.background import BackgroundIngest

opening = Commands("Projects")
commands = Commands("Questions")

_TOKEN_VARIABLE = "LLAMA_INDEX_CONTEXTUAL_UI_TOKEN"
_NEEDS_UI = 'pip install "llama-index-contextual[ui]"'
_INVALID_IN_NAMES = regex.compile(r"(?V1)[^[\p{L}\p{N}\p{M}_\- .]--\p{DI}]+")

Documents = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        exists=True,
        file_okay=False,
        help="Folder with copies of the original files, if they are no longer where they were ingested; may be"
        " repeated.",
    ),
]
Host = Annotated[
    str, typer.Option(metavar="HOST", help="Address to listen on; a token is required unless it is a loopback address.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST", help="Additional host name by which clients reach the server; may be repeated."),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="FIELD=VALUE", help="Show only documents that meet this condition; repeatable."),
]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="Names of the projects.")]


def _token(variable: str) -> Any:
    help_text = (
        f"Token that clients need. Prefer the variable {variable}: other users of this machine can read command lines."
    )
    return typer.Option(metavar="TOKEN", envvar=variable, show_envvar=False, help=help_text)


# ---- open ------------------------------------------------------------------------------------------------------------


@opening.command("open", as_json=False)
def open_folder(
    location: Annotated[str, typer.Argument(metavar="FOLDER")],
    llm: common.Llm = None,
    settings: common.Settings = None,
    name: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT")] = 0,
    token: Annotated[str | None, _token(_TOKEN_VARIABLE)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser")] = False,
    max_cost: common.MaxCost = None,
    wait: common.Wait = 0.0,
    yes: common.Yes = False,
) -> None:
    """Create or update a project from the documents in a folder, and open it in a browser to search and add to it.

    Without --llm, the documents are read, embedded and searched on this machine, at no cost. In a new project, the LLM
    writes contexts and answers; in one that was opened without an LLM, only answers.

    Args:
        location: Folder with the documents, including its subfolders, or its URL.
        name: Name of the project; by default, the name of the folder.
        port: Port of the Workbench; 0 chooses a free one.
        no_browser: Only print the address of the Workbench.
    """
    from llama_index_contextual.readers.files import is_url

    folder = location if is_url(location) else Path(location)
    if isinstance(folder, Path) and not folder.is_dir():
        problem = "is a file: name its folder" if folder.is_file() else "there is no such folder"
        raise PathNotFoundError(f"{folder}: {problem}.", value=[str(folder)])
    options = [*(["--name", name] if name else []), *(["--llm", llm] if llm else [])]
    options += [word for item in settings or () for word in ("--set", item)]
    again = common.suggested_command("open", str(folder), *options)
    name = project_name(folder) if name is None else name
    project = _project_of(folder, name, llm, settings)
    _show_needs(folder, project.config)
    if project.config.context == "llm":
        expected = project.estimate([folder])
        if expected.contexts.calls:
            show_estimate(expected)
            common.confirm("Request the contexts?", yes=yes or max_cost is not None)
    try:
        import llama_index_contextual.ui.app  # noqa: F401
    except ImportError:
        work = partial(project.sync_folders, [folder], remove=False, max_cost=max_cost, wait=wait, show_progress=True)
        _show_opened(common.interruptible(project, work), folder, name, again)
        say(safe(f"To search it: {common.suggested_command('search', name, 'QUESTION')}"))
        say(safe(f"To show it in a browser: {_NEEDS_UI}"), to=err)
        return

    def work_on(show: ReportProgress) -> Awaitable[IngestReport]:
        return project.async_folders([folder], remove=False, max_cost=max_cost, wait=wait, progress=show)

    adding_to = folder if is_loopback(host) and isinstance(folder, Path) else None
    show = partial(_show_opened, folder=folder, name=name, again=again, can_add=adding_to is not None)
    ingest = _start_ingest(folder, work_on, show)
    try:
        serve(
            [name],
            host=host,
            port=port,
            token=token,
            document_folders=[folder] if isinstance(folder, Path) else [],
            open_browser=common.out.is_terminal and not no_browser,
            ingests={name: ingest},
            adding_to=adding_to,
        )
    finally:
        was_interrupted = ingest.stop()
    if was_interrupted:
        common.end_interrupted(project)


def _show_needs(folder: Path | str, config: ProjectConfig) -> None:
    """Print the extras that the files of a folder need, and the LLM that is used, before the files are read."""
    from llama_index_contextual.cli.opening import describe_models, needed_extras

    extras, reasons = needed_extras(folder) if isinstance(folder, Path) else ([], [])
    if extras:
        common.say_note(f'{"; ".join(reasons)}: pip install "{common.PROGRAM}[{",".join(extras)}]"')
    say(f"[dim]{safe(describe_models(config))}[/]", to=err)


def _start_ingest(
    folder: Path | str,
    start: Callable[[ReportProgress], Awaitable[IngestReport]],
    finished: Callable[[IngestReport], None],
) -> BackgroundIngest:
    """Start to read a folder in a thread, so that its documents are searchable in the meantime."""
    from llama_index_contextual.ingestion.report import progress_bar
    from llama_index_contextual.ui.background import BackgroundIngest

    async def work(show: ReportProgress) -> IngestReport:
        with progress_bar() as bar:

            def report(progress: IngestProgress) -> None:
                bar(progress)
                show(progress)

            return await start(report)

    def describe(error: ContextualError | OSError | sqlite3.Error) -> str:
        message = common.cli_message(error)
        common.say_error(message)
        return message

    ingest = BackgroundIngest(_name_of(folder), work, describe=describe, finished=finished)
    ingest.start()
    return ingest


def _show_opened(report: IngestReport, folder: Path | str, name: str, again: str, *, can_add: bool = False) -> None:
    """Print the report on a folder. With `can_add`, an empty folder is no error, because documents can be added.

    Raises:
        InputError: The folder has no document that can be read, and there is no version yet.
    """
    if report.version is None and can_add and isinstance(folder, Path) and not any(folder.iterdir()):
        common.say_note(f"{folder} is empty: add documents in the browser.")
        return
    if report.version is None:
        raise InputError(
            f"{folder} has no document that can be read:"
            f" {'; '.join(f'{file.path}: {file.reason}' for file in report.skipped[:3]) or 'it is empty'}."
        )
    show_report(replace(report, missing=()), name)
    if report.missing:
        common.say_note(
            f"The files of {pluralize(len(report.missing), 'document')} are gone; to remove the documents too:"
            f" {common.suggested_command('sync', name, str(folder))}"
        )
    say(f"The project is [bold]{safe(name)}[/] in {safe(os.path.realpath(common.root()))}.")
    say(safe(f"To open it again: {again}"))


def _name_of(folder: Path | str) -> str:
    """Return the name of a folder, or the last name in its URL."""
    return folder.resolve().name if isinstance(folder, Path) else regex.split("[/?]+", folder.rstrip("/"))[-1]


def project_name(folder: Path | str) -> str:
    """Return the project name for a folder or its URL.

    Raises:
        InputError: The folder's name cannot be turned into a project name.

    Example:
        >>> project_name(Path("/srv/Supply (2024), signed"))
        'Supply 2024 signed'
    """
    from llama_index_contextual.index.project_file import MAX_NAME_LENGTH, check_name

    words = " ".join(_INVALID_IN_NAMES.sub(" ", _name_of(folder)).split())
    name = ".".join(filter(None, words.split(".")))[:MAX_NAME_LENGTH].strip(" -_.")
    try:
        return check_name(name)
    except InputError as error:
        raise InputError(f"{folder} has a name that cannot be that of a project: choose one with --name.") from error


def _project_of(folder: Path | str, name: str, llm: str | None, settings: Sequence[str] | None) -> Project:
    """Return the project for a folder; create it if it does not exist.

    An LLM that is given for an existing project without contexts by an LLM is stored as the one that answers.

    Args:
        folder: The folder.
        name: Name of the project.
        llm: Value of `--llm`.
        settings: Values of `--set`.

    Raises:
        ConfigurationError: The project has other settings.
        ModelError: The LLM is unknown, or its package or key is missing.
        ProjectExistsError: A project with this name contains the documents of another folder.
    """
    from llama_index_contextual.models import missing_for

    manager, changes = common.open_root(), common.changed_settings(llm, settings)
    if llm is not None and (missing := missing_for(llm, setting="llm")):
        raise ModelError(missing, setting="llm")
    if name not in manager.list():
        manager.create(name, ProjectConfig.local(**changes))
    project = common.open_project(name)
    if llm is not None and project.config.context != "llm":
        changes = common.changed_settings(llm, settings, answers=True)
        if project.config.answer_llm != llm:
            project.update_config(answer_llm=llm)
            command = common.suggested_command("configure", name, "context=llm", f"llm={llm}")
            common.say_note(f"Stored in the settings of the project: answer_llm. For contexts by this LLM: {command}")
    if project.config.changed(**changes) != project.config:
        items = [
            f"{field}={value if isinstance(value, str) else json.dumps(value)}" for field, value in changes.items()
        ]
        raise ConfigurationError(
            f"Project {name!r} was made with other settings: leave --llm and --set out, or change them with"
            f" `{common.suggested_command('configure', name, *items)}`."
        )
    if project.documents():
        plan = project.sync_folders([folder], dry_run=True, remove=False)
        if not (plan.updated or plan.renamed or plan.unchanged or plan.missing):
            raise ProjectExistsError(
                f"Project {name!r} has the documents of another folder: choose a name for this one with --name.",
                name=name,
            )
    return project


# ---- servers and pages -----------------------------------------------------------------------------------------------


@commands.command("serve", as_json=False)
def serve_projects(
    names: Names,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT")] = 8010,
    token: Annotated[str | None, _token(_TOKEN_VARIABLE)] = None,
    allow_host: AllowedHosts = None,
    documents: Documents = None,
    only: Only = None,
    open_browser: Annotated[bool, typer.Option("--open")] = False,
    api: Annotated[bool, typer.Option("--api")] = False,
    tokens: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    allow_changes: Annotated[bool, typer.Option("--allow-changes")] = False,
) -> None:
    """Show projects in a browser: search, passages on their pages, answers, documents and costs.

    Args:
        port: Port; 0 chooses a free one.
        open_browser: Open the address in a browser.
        api: Also serve an OpenAI-compatible API at /v1 and a JSON API at /api, for other programs.
        tokens: File with the tokens of users, written by `token`; each user has rights and sees some or all documents.
        allow_changes: Let users add documents, and remove the documents that they added; needs --token or --tokens.
    """
    serve(
        names,
        host=host,
        port=port,
        token=token,
        allowed_hosts=allow_host or (),
        document_folders=documents or (),
        only=only,
        open_browser=open_browser,
        api=api,
        tokens=tokens,
        allow_changes=allow_changes,
    )


def serve(
    names: Sequence[str],
    *,
    host: str,
    port: int,
    allowed_hosts: Sequence[str] = (),
    document_folders: Sequence[Path] = (),
    token: str | None = None,
    tokens: Path | None = None,
    only: Sequence[str] | None = None,
    open_browser: bool = False,
    api: bool = False,
    allow_changes: bool = False,
    adding_to: Path | None = None,
    ingests: Mapping[str, BackgroundIngest] = MappingProxyType({}),
) -> None:
    """Serve projects until the process is interrupted.

    With `only`, the projects are restricted; see `common.open_project`. With `adding_to`, added files are stored in
    this folder, from which the project is read.

    Raises:
        ConfigurationError: The extra `ui` is not installed, or a token is empty or missing.
    """
    try:
        from llama_index_contextual.api.app import add_api
        from llama_index_contextual.ui.adding import Adding
        from llama_index_contextual.ui.app import make_app
        from llama_index_contextual.ui.app import serve as serve_app
        from llama_index_contextual.ui.users import TokensFile
    except ImportError as error:
        raise ConfigurationError(f"The Workbench needs an extra: {_NEEDS_UI}") from error
    _require_no_empty_token(token, os.environ.get(_TOKEN_VARIABLE))
    if allow_changes and token is None and tokens is None:
        raise ConfigurationError(
            "With --allow-changes, everyone who can reach the server could change the documents: set --token, or create"
            f" tokens with `{common.suggested_command('token', 'NAME')}` and pass their file with --tokens.",
            setting="token",
        )
    users = None if tokens is None else TokensFile(tokens)
    logging.getLogger("llama_index_contextual").addHandler(logging.StreamHandler())

    def announce(address: str) -> None:
        say(f"Workbench: {safe(address)} (Ctrl-C ends it)")
        if api:
            say(f"OpenAI-compatible API: {safe(address)}v1, JSON API: {safe(address)}api/openapi.json")
        if open_browser:
            typer.launch(address)

    projects = [common.open_project(name, only) for name in dict.fromkeys(names)]
    can_change = allow_changes or adding_to is not None
    adding = {
        project.name: Adding(project, folder=adding_to, ingest=ingests.get(project.name))
        for project in (projects if can_change else ())
    }
    workbench = make_app(
        projects,
        host=host,
        token=token,
        users=users,
        allowed_hosts=allowed_hosts,
        document_folders=document_folders,
        ingests=ingests,
        adding=adding,
    )
    app = add_api(workbench) if api else workbench
    serve_app(app, host=host, port=port, allowed_hosts=allowed_hosts, adding=adding.values(), announce=announce)


def _require_no_empty_token(*tokens: str | None) -> None:
    if "" in tokens:
        raise ConfigurationError("The token is empty: set one, or leave out --token and the environment variable.")


@commands.command("token")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    file: Annotated[Path, typer.Option(metavar="FILE")] = Path("tokens.json"),
    right: Annotated[list[str] | None, typer.Option(metavar="RIGHT")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="FIELD=VALUE")] = None,
    dollars_per_hour: Annotated[float | None, typer.Option(metavar="DOLLARS")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(metavar="NUMBER")] = None,
) -> None:
    """Create a token for a user of `serve --tokens FILE`, and print it once; the file contains only a hash of it.

    If the file contains a user with this name, the user's former token becomes invalid.

    Args:
        name: Name of the user.
        file: File with the tokens; it is created if it does not exist.
        right: What the user may do: search, ask or add; may be repeated. By default, search and ask.
        only: Show the user only documents that meet this condition; repeatable. Documents that the user adds get these
            values as metadata.
        dollars_per_hour: Limit for the cost of the user's answers and added documents in an hour.
        requests_per_minute: Limit for the user's requests to the API in a minute.
    """

    def as_list(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [value]

    try:
        from llama_index_contextual.ui.users import add_token, new_user
    except ImportError as error:
        raise ConfigurationError(f"The Workbench needs an extra: {_NEEDS_UI}") from error
    filters: dict[str, Any] = {}
    for field, value in map(common.parse_setting, only or ()):
        filters[field] = [*as_list(filters[field]), value] if field in filters else value
    limits = {"dollars_per_hour": dollars_per_hour, "requests_per_minute": requests_per_minute}
    options = {name: value for name, value in limits.items() if value is not None}
    token = add_token(file, new_user(name, rights=right, filters=filters, **options))

    def show() -> None:
        say(safe(token))
        say(f"The token of {safe(name)} is in {safe(str(file))} only as a hash: it is not shown again.", to=err)

    common.say_result({"name": name, "token": token, "file": str(file)}, show)


@commands.command("mcp", as_json=False)
def serve_mcp(
    names: Names,
    http: Annotated[bool, typer.Option("--http")] = False,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT")] = 8000,
    token: Annotated[str | None, _token("LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN")] = None,
    allow_host: AllowedHosts = None,
    only: Only = None,
) -> None:
    """Serve projects to MCP clients over standard input and output, or over HTTP; the tools never change a document.

    Args:
        http: Serve over streamable HTTP at http://HOST:PORT/mcp instead of standard input.
        port: Port for HTTP.
    """
    try:
        from llama_index_contextual.mcp import make_server, serve_http
    except ImportError as error:
        raise ConfigurationError('The server needs the MCP SDK: pip install "llama-index-contextual[mcp]"') from error
    projects = [common.open_project(name, only) for name in names]
    if not http:
        make_server(projects).run("stdio")
        return
    _require_no_empty_token(token)
    allowed_hosts = allow_host or ()
    say(f"Serving at {safe(server_address(host, port, allowed_hosts))}/mcp; Ctrl-C stops it.", to=err)
    serve_http(projects, host=host, port=port, token=token, allowed_hosts=allowed_hosts)
