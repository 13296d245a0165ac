"""Database: durable commits, and read-only files."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.errors import ReadOnlyVersionError
from llama_index_contextual.index.kvstore import Database


@pytest.mark.durable
def test_durable_files_are_synced_at_every_commit_without_a_write_ahead_log(tmp_path: Path) -> None:
    store = Database(tmp_path / "ledger.sqlite", access="durable")
    extra = 3
    assert store.query("PRAGMA synchronous") == [(extra,)]
    assert store.query("PRAGMA journal_mode") == [("delete",)]


def test_a_published_file_refuses_changes_and_gets_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "with 100 % ?odd#name.sqlite"
    with_content = Database(path)
    with_content.put("a", {"n": 1}, "data")
    with_content.close()
    before = path.read_bytes()
    store = Database(path, access="read")
    changes = (
        lambda: store.put("b", {}, "data"),
        lambda: store.execute("DROP TABLE kv"),
    )
    for change in changes:
        with pytest.raises(ReadOnlyVersionError):
            change()
    assert store.get("a", "data") == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
