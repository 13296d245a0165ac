"""Commands that show a project to people (`inspect`) and to other programs (`mcp`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_index_contextual.cli.options import DEFAULT_ROOT, QUESTIONS, Json, Name, Root, open_project
from llama_index_contextual.cli.terminal import errors_in_one_line, safe, say, say_json
from llama_index_contextual.errors import ConfigurationError

serving = typer.Typer()


@serving.command("inspect", rich_help_panel=QUESTIONS)
def inspect_project(
    name: Name,
    html: Annotated[Path | None, typer.Option(help="File to write; the default is NAME.html.")] = None,
    query: Annotated[list[str] | None, typer.Option(help="Query to explain; may be repeated.")] = None,
    top_k: Annotated[int, typer.Option(help="Number of results of each query.")] = 10,
    root: Root = DEFAULT_ROOT,
    as_json: Json = False,
) -> None:
    """Write an HTML page to browse documents, segments and chunks, and explain search results."""
    with errors_in_one_line():
        from llama_index_contextual.ui.inspection import write_page

        path = write_page(open_project(root, name), html or Path(f"{name}.html"), query or (), top_k=top_k)
        if as_json:
            say_json({"html": str(path)})
        else:
            say(f"Wrote {safe(str(path))}: open it in a browser.")


@serving.command("mcp", rich_help_panel=QUESTIONS)
def serve_mcp(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of the projects.")],
    http: Annotated[
        bool, typer.Option("--http", help="Serve over streamable HTTP at http://HOST:PORT/mcp, not standard input.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address for HTTP; others than this machine's own need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for HTTP.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN",
            show_envvar=False,
            help="Token that HTTP clients must send. Prefer the variable LLAMA_INDEX_CONTEXTUAL_MCP_TOKEN: other users"
            " of this machine can read command lines.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further host name under which HTTP clients reach the server; may be repeated."),
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Serve projects to MCP clients over standard input and output, or over HTTP; the tools change nothing."""
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
            serve_http(projects, host=host, port=port, token=token, allowed_hosts=allow_host or ())
        else:
            make_server(projects).run("stdio")
