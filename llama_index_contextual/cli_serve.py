"""The command that serves projects to other programs."""

from __future__ import annotations

from typing import Annotated

import typer

from llama_index_contextual.cli_options import DEFAULT_ROOT, Root, open_root
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.terminal import errors_in_one_line

serving = typer.Typer()


@serving.command("mcp")
def serve_mcp(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Names of the projects.")],
    root: Root = DEFAULT_ROOT,
) -> None:
    """Serve projects to a client of the Model Context Protocol, over standard input and output; nothing is changed."""
    with errors_in_one_line():
        try:
            from llama_index_contextual.mcp import make_server
        except ImportError as error:
            raise ConfigurationError(
                'The server needs the MCP SDK: pip install "llama-index-contextual[mcp]"'
            ) from error
        manager = open_root(root)
        make_server([manager.load(name) for name in names]).run("stdio")
