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
    root: Root = DEFAULT_ROOT,
) -> None:
    """Serve projects to an MCP client over standard input and output; the tools change nothing."""
    with errors_in_one_line():
        try:
            from llama_index_contextual.mcp import make_server
        except ImportError as error:
            raise ConfigurationError(
                'The server needs the MCP SDK: pip install "llama-index-contextual[mcp]"'
            ) from error
        make_server([open_project(root, name) for name in names]).run("stdio")
