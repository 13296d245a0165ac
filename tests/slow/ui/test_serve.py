"""The command `serve` as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.documents import write_texts
from tests.support.source import ROOT


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_ctrl_c_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    ProjectManager(tmp_path / "root").create("reports", ProjectConfig.local()).ingest([write_texts(tmp_path / "texts")])
    command = [sys.executable, "-m", "llama_index_contextual", "serve", "reports", "--port", "0", "--root"]
    child = subprocess.Popen(
        [*command, str(tmp_path / "root")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        address = child.stdout.readline().removeprefix("Workbench: ").split(" ")[0]
        assert httpx.get(f"{address}p/reports/", timeout=300, trust_env=False).status_code == 200
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=300)
    assert (child.returncode, out, err) == (0, "", "")
