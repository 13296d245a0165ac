"""SQLiteKVStore: durable commits, and read-only files."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_index_contextual.errors import ReadOnlyVersionError
from llama_index_contextual.index.kvstore import SQLiteKVStore


@pytest.mark.durable
def test_durable_files_are_synced_at_every_commit_without_a_write_ahead_log(tmp_path: Path) -> None:
    store = SQLiteKVStore(tmp_path / "ledger.sqlite", access="durable")
    extra = 3
    assert store.query("PRAGMA synchronous") == [(extra,)]
    assert store.query("PRAGMA journal_mode") == [("delete",)]


def test_a_published_file_refuses_changes_and_gets_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "with 100 % ?odd#name.sqlite"
    with_content = SQLiteKVStore(path)
    with_content.put("a", {"n": 1})
    with_content.close()
    before = path.read_bytes()
    store = SQLiteKVStore(path, access="read")
    for change in (lambda: store.put("b", {}), lambda: store.delete("a"), lambda: store.execute("DROP TABLE kv")):
        with pytest.raises(ReadOnlyVersionError):
            change()
    assert store.get("a") == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before
