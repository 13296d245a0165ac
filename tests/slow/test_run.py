"""What a run of pytest prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_run_ends_with_the_number_of_tests_that_passed(quiet: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-n1", *quiet]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_one.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"\b1 passed in ", done.stdout.splitlines()[-1]), done.stdout
