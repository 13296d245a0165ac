"""The file of a ledger: formats, checksums, identity, locks of other programs, and translation of SQLite's errors."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import CorruptVersionError, FormatError, LedgerBusyError, LedgerError
from llama_index_contextual.index import kvstore
from llama_index_contextual.index import ledger as ledger_module
from llama_index_contextual.index.ledger import (
    TABLES,
    BatchReply,
    Ledger,
    LedgerEntry,
    content_key,
    row_checksum,
    translate_error,
)
from llama_index_contextual.index.ledger_lines import read_ledger
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.money.receipt import Receipt

CONTEXTS = {content_key("q", str(n)): f"Context {n} of the valve manual, Zölle \u2028 🦙." for n in range(6)}
CONTEXTS[content_key("q", "nul")] = "Context with controls.\n\tKept."
COLUMNS = [(table, column) for table, names in TABLES.items() for column in (*names, "checksum")]


def entry(
    key: str, context: str = "A context of the passage in its text, as long as it has to be here."
) -> LedgerEntry:
    return LedgerEntry(key=key, context=context, model="m")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with rows of every kind."""
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.add_contexts(entry(content_key(str(n)), f"Context {n}. " * 9) for n in range(20))
        ledger.add_vectors("m", ["v0", "v1", "v2"], np.eye(3, 8, dtype=np.float32))
        ledger.batches.uploaded("file", model="m", custom_ids=["one", "two"])
        ledger.batches.started("file", "batch")
        ledger.batches.closed("other", [BatchReply(custom_id="done", text="A reply.", output_tokens=3)])
        ledger.receipts.write(Receipt(paid=0.5))
        ledger.add_page("scan", '{"boxes": []}', "rapidocr 3.10.0")
        ledger.add_chunk_contexts("m", {"chunk": "The context of a chunk."})
    return tmp_path / "ledger.sqlite"


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


# ---- formats -------------------------------------------------------------------------------------------------------


def test_a_ledger_in_another_format_is_refused_and_its_contexts_can_be_taken_along(path: Path) -> None:
    for version in (2, 9):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        for read_only in (True, False):
            with pytest.raises(FormatError, match=rf"^ledger.sqlite has format {version}, this release reads 3: "):
                Ledger(path, read_only=read_only)


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    before = (tmp_path / "ledger.sqlite").read_bytes()
    for read_only in (True, False):
        with pytest.raises(CorruptVersionError, match=r"it has no table"):
            Ledger(tmp_path / "ledger.sqlite", read_only=read_only)
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


@pytest.mark.parametrize("content", [None, b""])
def test_reading_a_missing_or_empty_ledger_does_not_create_one(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    if content is not None:
        path.write_bytes(content)
    with closing(Ledger(path, read_only=True)) as ledger:
        assert ledger.info().contexts == 0
    assert (path.read_bytes() if path.exists() else None) == content


def test_a_ledger_without_the_tables_of_later_releases_is_read_as_it_is_and_completed_when_it_is_written(
    path: Path,
) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE chunk_contexts")
    before = path.read_bytes()
    with closing(Ledger(path, read_only=True)) as ledger:
        assert ledger.chunk_contexts(["chunk"]) == ledger.damaged_rows() == {}
        assert list(ledger.iterate("chunk_contexts")) == []
        assert ledger.info().contexts == 20
        ledger.add_page("another scan", '{"boxes": []}', "rapidocr 3.10.0")  # as in an estimate, which writes nothing
    assert path.read_bytes() == before
    with closing(Ledger(path)) as ledger:
        ledger.add_chunk_contexts("m", {"chunk": "A context."})
        assert ledger.chunk_contexts(["chunk"]) == {"chunk": "A context."}
        assert ledger.info().contexts == 20


def test_text_that_is_forgotten_is_also_gone_from_the_contexts_of_chunks(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.add_chunk_contexts("m", {"chunk": "Context 1. " * 9, "other": "A context that no chunk has."})
        ledger.keep_only(["Context 1. " * 9], [], dry_run=True)
        assert ledger.chunk_contexts(["chunk", "other"]).keys() == {"chunk", "other"}
        ledger.keep_only(["Context 1. " * 9], [])
        assert ledger.chunk_contexts(["chunk", "other"]).keys() == {"chunk"}


# ---- checksums -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_a_modified_row_is_reported_and_never_returned(table: str, column: str, path: Path) -> None:
    key = TABLES[table][0]
    if table == "batch_requests" and column == "file_id":
        return  # see the next test: this one needs its batch
    with closing(sqlite3.connect(path)) as connection, connection:
        first = connection.execute(f"SELECT min({key}) FROM {table}").fetchone()[0]
        was = connection.execute(f"SELECT {column} FROM {table} WHERE {key} = ?", (first,)).fetchone()[0]
        kinds = {str: lambda v: v + "x", bytes: lambda v: v[:-1] + bytes([v[-1] ^ 1]), type(None): lambda v: "7"}
        new = kinds.get(type(was), lambda v: v + 1)(was)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (new, first))
    with closing(Ledger(path)) as ledger:
        ((named, keys),) = ledger.damaged_rows().items()
        assert (named, len(keys)) == (table, 1)
        known = {
            "contexts": lambda: ledger.contexts([first]).get(first),
            "embeddings": lambda: ledger.vectors([first]).get(first),
            "batches": lambda: next(iter(ledger.batches.open_batches()), None),
            "batch_requests": lambda: ledger.batches.file_of(first),
            "batch_replies": lambda: ledger.batches.reply(first),
            "runs": lambda: next(iter(ledger.receipts.cost().runs), None),
            "pages": lambda: ledger.page(first),
            "chunk_contexts": lambda: ledger.chunk_contexts([first]).get(first),
        }
        assert known[table]() is None
        assert ledger.contexts([content_key("7")]).get(content_key("7")) == "Context 7. " * 9


def test_a_request_of_an_unknown_batch_is_sent_again(path: Path) -> None:
    change(path, "UPDATE batches SET file_id = 'another' WHERE file_id = 'file'")
    with closing(Ledger(path)) as ledger:
        assert ledger.batches.reply("one") is ledger.batches.file_of("one") is None


def test_a_row_with_invalid_utf8_does_not_prevent_reading_the_others(path: Path) -> None:
    change(path, "UPDATE contexts SET context = CAST(x'ff41' AS TEXT) WHERE key = ?", content_key("3"))
    change(path, "UPDATE contexts SET key = CAST(x'ff41' AS TEXT) WHERE key = ?", content_key("4"))
    with closing(Ledger(path)) as ledger:
        assert len(ledger.contexts([content_key(str(n)) for n in range(20)])) == 18
        assert len(list(ledger.iterate("contexts"))) == 18
        assert len(ledger.damaged_rows()["contexts"]) == 2


values = st.lists(st.one_of(st.none(), st.text(max_size=3), st.binary(max_size=3), st.integers(), st.floats()))


@given(values, values)
def test_checksums_are_equal_only_if_rows_are_equal(one: list[object], other: list[object]) -> None:
    equal = list(map(repr, one)) == list(map(repr, other))
    assert (row_checksum("contexts", one) == row_checksum("contexts", other)) == equal
    assert row_checksum("contexts", one) != row_checksum("batches", one)


# ---- vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[0.0] * 8, [math.nan] * 8, [math.inf] + [0.0] * 7])
def test_an_unusable_vector_counts_as_absent(bad: list[float], path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        ledger.add_vectors("m", ["v1"], np.array([bad], dtype=np.float32))
        assert set(ledger.vectors(["v0", "v1", "v2"])) == {"v0", "v2"}
        assert ledger.damaged_rows() == {"embeddings": ["v1"]}


# ---- texts ---------------------------------------------------------------------------------------------------------


def test_characters_that_cannot_be_stored_are_removed() -> None:
    assert storable_text("a\0b\ud800c\x07d\x85e\x7f\r\n\tf\u2028🦙") == "abcde\n\tf\u2028🦙"


def test_an_import_removes_characters_that_cannot_be_stored(tmp_path: Path) -> None:
    (tmp_path / "contexts.jsonl").write_bytes(rb'{"key": "k", "context": "A\u0000B\ud800C", "model": "m"}')
    with closing(Ledger(None)) as ledger:
        assert read_ledger(ledger, tmp_path / "contexts.jsonl").contexts == 1
        assert ledger.contexts(["k"]).get("k") == "ABC"


def test_an_unstorable_reply_of_a_batch_does_not_affect_the_others() -> None:
    with closing(Ledger(None)) as ledger:
        replies = [BatchReply(custom_id="bad", text="A\ud800B\0"), BatchReply(custom_id="good", text="Good.")]
        ledger.batches.closed("file", replies)
        assert [reply.text for name in ("bad", "good") if (reply := ledger.batches.reply(name))] == ["AB", "Good."]


# ---- other programs, and errors ------------------------------------------------------------------------------------


@contextlib.contextmanager
def held(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold a ledger as another program does."""
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield holder
    finally:
        holder.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE_READING", 0)
    monkeypatch.setattr(ledger_module, "PATIENCE_WRITING", 0)
    pragmas = tuple(pragma.replace("1000", "0") for pragma in kvstore._PRAGMAS["durable"])
    monkeypatch.setitem(kvstore._PRAGMAS, "durable", pragmas)


@pytest.mark.usefixtures("impatient")
def test_a_ledger_locked_by_another_program_is_busy_not_damaged(path: Path) -> None:
    with closing(Ledger(path)) as ledger:
        with held(path):
            for use in (
                lambda: ledger.add_contexts([entry("k")]),
                lambda: ledger.contexts(["k"]).get("k"),
                lambda: ledger.batches.open_batches(),
                lambda: Ledger(path, read_only=True),
            ):
                with pytest.raises(LedgerBusyError, match=r"^ledger.sqlite is locked by another program \(database is"):
                    use()
        ledger.add_contexts([entry("k")])
        assert ledger.contexts(["k"]).get("k") == "A context of the passage in its text, as long as it has to be here."


@pytest.mark.parametrize(
    ("begin", "rounds"), [("BEGIN EXCLUSIVE", 3), ("BEGIN; SELECT * FROM contexts", 1)], ids=["writer", "reader"]
)
def test_a_commit_waits_for_another_program_and_is_not_lost(
    begin: str, rounds: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    with closing(Ledger(path)) as ledger, closing(sqlite3.connect(path, isolation_level=None)) as other:
        ledger._connection.execute("PRAGMA busy_timeout = 0")
        for statement in begin.split("; "):
            other.execute(statement).fetchone()

        def let_go(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == rounds:
                other.execute("ROLLBACK")

        monkeypatch.setattr(kvstore, "time", SimpleNamespace(monotonic=time.monotonic, sleep=let_go))
        ledger.add_contexts([entry("k")])
        assert ledger.contexts(["k"]).get("k") == "A context of the passage in its text, as long as it has to be here."
    assert len(waits) == rounds


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        (sqlite3.SQLITE_BUSY, LedgerBusyError, "is locked by another program"),
        (sqlite3.SQLITE_BUSY_RECOVERY, LedgerBusyError, "wait until it has finished, or close it"),
        (sqlite3.SQLITE_IOERR_WRITE, LedgerError, "quotas and limits of file sizes"),
        (sqlite3.SQLITE_FULL, LedgerError, "there is free space"),
        (sqlite3.SQLITE_READONLY_ROLLBACK, LedgerError, "this user may write to the file and its folder"),
        (sqlite3.SQLITE_CANTOPEN, LedgerError, "cannot be read or written"),
        (sqlite3.SQLITE_CORRUPT, CorruptVersionError, "is damaged (it says so). `verify --repair` keeps"),
        (sqlite3.SQLITE_CORRUPT_INDEX, CorruptVersionError, "is damaged"),
    ],
)
def test_an_sqlite_error_becomes_a_message_with_advice(code: int, kind: type[Exception], sentence: str) -> None:
    error = sqlite3.OperationalError("it says so")
    error.sqlite_errorcode = code
    result = translate_error(error, "ledger.sqlite")
    assert type(result) is kind
    assert str(result).startswith("ledger.sqlite ")
    assert sentence in str(result)
    assert "it says so" in str(result)
