"""Commands that show projects to people (`serve`, `inspect`) and to other programs (`mcp`)."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from llama_index_contextual.cli.commands import Commands
from llama_index_contextual.cli.options import DEFAULT_ROOT, QUESTIONS, Json, Name, Root, open_project
from llama_index_contextual.cli.terminal import err, errors_in_one_line, safe, say, say_json
from llama_index_contextual.errors import ConfigurationError, PathNotFoundError

serving = Commands()

_TOKEN_VARIABLE = "LLAMA_INDEX_CONTEXTUAL_UI_TOKEN"
Documents = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder with copies of the original files, if they are no longer where they were ingested; may be"
        " repeated.",
    ),
]
_NEEDS_UI = 'This needs the packages of an extra: pip install "llama-index-contextual[ui]"'


@serving.command(rich_help_panel=QUESTIONS)
def serve(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of the projects.")],
    host: Annotated[str, typer.Option(help="Address; others than this machine's own need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8010,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=_TOKEN_VARIABLE,
            show_envvar=False,
            help="Token that readers need. Prefer the variable LLAMA_INDEX_CONTEXTUAL_UI_TOKEN: other users of this"
            " machine can read command lines.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further host name under which browsers reach the server; may be repeated."),
    ] = None,
    documents: Documents = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the address in a browser.")] = False,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Show projects in a browser: search, passages on their pages, answers, documents and costs. Nothing is changed.

    Example: llama-index-contextual serve mine --documents FOLDER --open
    """
    with errors_in_one_line():
        try:
            from llama_index_contextual.ui.app import serve as serve_workbench
        except ImportError as error:
            raise ConfigurationError(_NEEDS_UI) from error
        if token == "" or os.environ.get(_TOKEN_VARIABLE) == "":
            raise ConfigurationError(
                f"The token is empty: pass one with --token or {_TOKEN_VARIABLE}, or remove option and variable."
            )
        _require_folders(documents or ())

        logging.getLogger("llama_index_contextual").addHandler(logging.StreamHandler())

        def announce(address: str) -> None:
            say(f"Workbench: {safe(address)} (Ctrl-C ends it)")
            if open_browser:
                typer.launch(address)

        serve_workbench(
            [open_project(root, name) for name in dict.fromkeys(names)],
            host=host,
            port=port,
            token=token,
            allowed_hosts=allow_host or (),
            document_folders=documents or (),
            announce=announce,
        )


@serving.command("inspect", rich_help_panel=QUESTIONS)
def inspect_project(
    name: Name,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write; the default is NAME.html.")] = None,
    query: Annotated[list[str] | None, typer.Option(metavar="QUERY", help="Query to explain; may be repeated.")] = None,
    top_k: Annotated[int, typer.Option(metavar="NUMBER", help="Number of results of each query.")] = 10,
    documents: Documents = None,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write an HTML page to browse documents, segments and chunks, and explain search results."""
    with errors_in_one_line():
        try:
            from llama_index_contextual.ui.inspection import write_page
        except ImportError as error:
            raise ConfigurationError(_NEEDS_UI) from error
        _require_folders(documents or ())
        path = write_page(
            open_project(root, name),
            html or Path(f"{name}.html"),
            query or (),
            top_k=top_k,
            document_folders=documents or (),
        )
        if as_json:
            say_json({"html": str(path)})
        else:
            say(f"Wrote {safe(str(path))}: open it in a browser.")


def _require_folders(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise PathNotFoundError(f"--documents {folder}: there is no such folder.", value=[str(folder)])


@serving.command("mcp", rich_help_panel=QUESTIONS)
def serve_mcp(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of the projects.")],
    http: Annotated[
        bool, typer.Option("--http", help="Serve over streamable HTTP at http://HOST:PORT/mcp, not standard input.")
    ] = False,
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address for HTTP; others than this machine's own need a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Port for HTTP.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN",
            show_envvar=False,
            help="Token that HTTP clients must send. Prefer the variable LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN: other users"
            " of this machine can read command lines.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST", help="Further host name under which HTTP clients reach the server; may be repeated."
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Serve projects to MCP clients over standard input and output, or over HTTP; the tools change no document."""
    with errors_in_one_line():
        try:
            from llama_index_contextual.mcp import make_server, serve_http
        except ImportError as error:
            raise ConfigurationError(
                'The server needs the MCP SDK: pip install "llama-index-contextual[mcp]"'
            ) from error
        projects = [open_project(root, name) for name in names]
        if http:
            if token == "":
                raise ConfigurationError("The token is empty: pass one with --token, or leave the option out.")
            say(f"Serving at http://{safe(host)}:{port}/mcp; Ctrl-C stops it.", to=err)
            serve_http(projects, host=host, port=port, token=token, allowed_hosts=allow_host or ())
        else:
            make_server(projects).run("stdio")
