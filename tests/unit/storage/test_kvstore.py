"""SQLiteKVStore: LlamaIndex's key-value interface, atomic batches, and read-only files."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_index_contextual.errors import ReadOnlyVersionError
from llama_index_contextual.storage.kvstore import SQLiteKVStore

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.dictionaries(keys, st.one_of(st.none(), st.integers(), keys, st.lists(st.booleans())), max_size=3)
steps = st.lists(st.tuples(st.sampled_from(["put", "delete"]), keys, st.sampled_from(["data", "kv"]), values))


@settings(max_examples=50)
@given(steps)
def test_each_collection_behaves_like_a_dict(steps: list[tuple[str, str, str, dict[str, Any]]]) -> None:
    store, expected = SQLiteKVStore(), dict[str, dict[str, Any]](data={}, kv={})
    for action, key, collection, value in steps:
        if action == "put":
            store.put(key, value, collection)
            expected[collection][key] = value
        else:
            assert store.delete(key, collection) == (expected[collection].pop(key, None) is not None)
        assert store.get(key, collection) == expected[collection].get(key)
    for collection, content in expected.items():
        assert store.get_all(collection) == content


def test_a_batch_is_stored_as_a_whole_or_not_at_all() -> None:
    store = SQLiteKVStore()
    store.put_all([("a", {"n": 1}), ("b", {"n": 2})], batch_size=2)
    with pytest.raises(TypeError):
        store.put_all([("a", {"n": 3}), ("c", {"n": object()})])
    with pytest.raises(UnicodeEncodeError):
        store.put_all([("a", {"n": 3}), ("\ud800", {})])
    assert store.get_all() == {"a": {"n": 1}, "b": {"n": 2}}


def test_another_connection_sees_what_was_committed(tmp_path: Path) -> None:
    for access in ("build", "durable"):
        path = tmp_path / f"{access}.sqlite"
        store = SQLiteKVStore(path, access=access)  # type: ignore[arg-type]
        store.put("a", {"n": 1})
        assert SQLiteKVStore(path, access="read").get("a") == {"n": 1}
        store.close()
        with pytest.raises(sqlite3.ProgrammingError):
            store.get("a")


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


def test_threads_share_one_connection() -> None:
    store = SQLiteKVStore()

    def work(number: int) -> None:
        for n in range(50):
            store.put(f"{number}-{n}", {"n": n})
            assert store.get(f"{number}-{n}") == {"n": n}

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.get_all()) == 200
