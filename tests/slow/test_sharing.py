"""All attempts of `tests/support/sharing.py` to learn something about hidden documents."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("agno", reason='needs the extra: pip install "llama-index-contextual[agno]"')
pytest.importorskip("mcp", reason='needs the extra: pip install "llama-index-contextual[mcp]"')
pytest.importorskip("starlette", reason='needs the extra: pip install "llama-index-contextual[ui]"')

from tests.benchmarks.sharing import measure


def test_no_attempt_through_any_door_learns_anything(tmp_path: Path) -> None:
    rows = measure(tmp_path)
    assert {door: (row.different, row.leaks) for door, row in rows.items()} == dict.fromkeys(rows, ([], []))
    assert sum(row.attempts for row in rows.values()) >= 300
    assert min(row.open for row in rows.values()) >= 20, "without the restriction, most attempts succeed"
