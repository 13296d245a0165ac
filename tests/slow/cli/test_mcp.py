"""The server of the Model Context Protocol in a process of its own, used by the protocol's own client."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason='the server needs the MCP SDK: pip install "llama-index-contextual[mcp]"')

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from llama_index_contextual.project.project import Project


async def test_the_command_serves_over_standard_input_and_output(project: Project, text_folder: Path) -> None:
    project.ingest([text_folder])
    command = ["-m", "llama_index_contextual", "mcp", "reports", "--root", str(project.directory.parent)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    server = StdioServerParameters(command=sys.executable, args=command, env=environment)
    async with Client(server) as client:
        result = await client.call_tool("search", {"query": "What does error TS-999 mean?"})
    assert "TS-999 means that the pump runs dry" in result.content[0].text
