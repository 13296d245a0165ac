"""Database: durable commits, and read-only files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import pytest

from llama_index_contextual.errors import ReadOnlyVersionError
from llama_index_contextual.index.kvstore import Database, sqlite_uri


@pytest.mark.durable
def test_durable_files_are_synced_at_every_commit_without_a_write_ahead_log(tmp_path: Path) -> None:
    store = Database(tmp_path / "ledger.sqlite", access="durable")
    extra = 3
    assert store.query("PRAGMA synchronous") == [(extra,)]
    assert store.query("PRAGMA journal_mode") == [("delete",)]


def test_a_published_file_refuses_changes_and_gets_no_journal(tmp_path: Path) -> None:
    path = tmp_path / f"with 100 % {'' if os.name == 'nt' else '?'}odd#name.sqlite"
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


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (PurePosixPath("/data/a b#1?.sqlite"), "file:///data/a%20b%231%3F.sqlite"),
        (PureWindowsPath(r"C:\data\100%.sqlite"), "file:///C:/data/100%25.sqlite"),
        (PureWindowsPath(r"\\server\share\é.sqlite"), "file:////server/share/%C3%A9.sqlite"),
    ],
)
def test_uris_of_files_name_no_server(path: PurePath, uri: str) -> None:
    assert sqlite_uri(path) == uri


def test_sqlite_opens_a_uri_of_the_form_of_a_network_share(tmp_path: Path) -> None:
    share = PurePosixPath(f"/{tmp_path.as_posix()}/nodes.sqlite")  # begins with two slashes, like that of a server
    with closing(sqlite3.connect(sqlite_uri(share), uri=True)) as connection:
        connection.execute("CREATE TABLE t (x)")
    assert (tmp_path / "nodes.sqlite").is_file()
