"""Command `open`: from a folder to a search of it, in one step."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import regex  # type: ignore[import-untyped]  # the package ships no types
import typer

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.cli.answer import TOP_K_WITHOUT_LLM, typed_lines
from llama_index_contextual.cli.commands import Commands
from llama_index_contextual.cli.options import (
    DEFAULT_ROOT,
    PROJECTS,
    MaxCost,
    Root,
    Yes,
    confirm,
    interruptible,
    open_project,
    open_root,
    proposed,
)
from llama_index_contextual.cli.results import show_response
from llama_index_contextual.cli.serve import serve
from llama_index_contextual.cli.terminal import (
    err,
    errors_in_one_line,
    in_words,
    out,
    safe,
    say,
    say_error,
    show_estimate,
    show_report,
)
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    ContextualError,
    InputError,
    PathNotFoundError,
    ProjectExistsError,
)

if TYPE_CHECKING:
    from llama_index_contextual.project.project import Project

opening = Commands()

_INVALID = regex.compile(r"(?V1)[^[\p{L}\p{N}\p{M}_\- .]--\p{DI}]+")


@opening.command("open", rich_help_panel=PROJECTS)
def open_folder(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The documents, in this folder and those below it.")],
    llm: Annotated[
        str | None,
        typer.Option(
            "--llm",
            metavar="MODEL",
            help="LLM that writes the contexts and answers, as provider:name; without it, no model is called.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the project; by default, the name of the folder.")
    ] = None,
    terminal: Annotated[bool, typer.Option("--terminal", help="Search in the terminal, not in a browser.")] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port of the Workbench; 0 takes a free one.")
    ] = 0,
    max_cost: MaxCost = None,
    yes: Yes = False,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Search a folder: make a project of its documents, or bring it up to date, and show it in a browser.

    Without --llm, the documents are read, embedded and searched on this machine, and nothing is paid for.
    """
    with errors_in_one_line():
        if not folder.is_dir():
            raise PathNotFoundError(f"{folder}: there is no such folder.", value=[str(folder)])
        name = project_name(folder) if name is None else name
        project = _project(root, name, folder, llm)
        if project.config.context == "llm":
            expected = project.estimate([folder])
            if expected.chosen is not None:
                show_estimate(expected)
                confirm("Request the contexts?", yes=yes)
        report = interruptible(
            project, lambda: project.sync_folders([folder], remove=False, max_cost=max_cost, show_progress=True)
        )
        if report.version is None:
            raise InputError(
                f"{folder} has no document that can be read:"
                f" {'; '.join(f'{file.path}: {file.reason}' for file in report.skipped[:3]) or 'it is empty'}."
            )
        show_report(replace(report, missing=()), retry=proposed("retry", name))
        if report.missing:
            say(
                f"[yellow]note[/] The files of {pluralize(len(report.missing), 'document')} are gone; to remove the"
                f" documents too: {safe(proposed('sync', name, str(folder)))}",
                to=err,
            )
        say(f"The project is [bold]{safe(name)}[/] in {safe(os.path.realpath(root))}.")
    if terminal or not _has_workbench():
        _search(project)
    else:
        serve([name], port=port, documents=[folder], open_browser=out.is_terminal, root=root)


def project_name(folder: Path) -> str:
    """Return the name of the project for a folder.

    Raises:
        InputError: No name can be made of the folder's.

    Example:
        >>> project_name(Path("/srv/Supply (2024), signed"))
        'Supply 2024 signed'
    """
    from llama_index_contextual.project.lookup import MAX_NAME_LENGTH, check_name

    parts = _INVALID.sub(" ", folder.resolve().name).split(".")
    name = ".".join(filter(None, (" ".join(part.split()) for part in parts)))[:MAX_NAME_LENGTH].strip(" -_.")
    try:
        return check_name(name)
    except InputError as error:
        raise InputError(f"{folder} has a name that cannot be that of a project: choose one with --name.") from error


def _project(root: Path, name: str, folder: Path, llm: str | None) -> Project:
    """Return the project of a folder; it is created if there is none.

    Raises:
        ConfigurationError: It has another LLM.
        ProjectExistsError: The project of that name has the documents of another folder.
    """
    manager = open_root(root)
    if name not in manager.list():
        config = ProjectConfig.local() if llm is None else ProjectConfig.local(context="llm", llm=llm)
        manager.create(name, config)
    project = open_project(root, name)
    if llm is not None and (project.config.context, project.config.llm) != ("llm", llm):
        raise ConfigurationError(
            f"Project {name!r} was made with other settings: leave --llm out, or change them with"
            f" `{proposed('configure', name, 'context=llm', f'llm={llm}')}`."
        )
    if project.documents():
        plan = project.sync_folders([folder], dry_run=True, remove=False)
        if not (plan.updated or plan.renamed or plan.unchanged or plan.missing):
            raise ProjectExistsError(
                f"Project {name!r} has the documents of another folder: choose a name for this one with --name.",
                name=name,
            )
    return project


def _search(project: Project) -> None:
    """Search for each line of standard input."""
    try:
        for line in typed_lines():
            try:
                show_response(project.retrieve(line, top_k=TOP_K_WITHOUT_LLM), project.config.language)
            except ContextualError as error:
                say_error(in_words(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _has_workbench() -> bool:
    """Return whether the packages of the Workbench are installed; say how to install them if not."""
    try:
        import llama_index_contextual.ui.app  # noqa: F401
    except ImportError:
        say('For the Workbench in a browser: pip install "llama-index-contextual[ui]"', to=err)
        return False
    return True
