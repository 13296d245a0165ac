"""The ledger: no paid result is lost or confused, and an export restores it."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llama_index_contextual.embeddings.batching import unit_vectors
from llama_index_contextual.errors import InputError, LedgerError
from llama_index_contextual.index.ledger import (
    BatchReply,
    ContentKeys,
    Ledger,
    LedgerEntry,
    content_key,
    vector_key,
)
from llama_index_contextual.index.ledger_lines import LedgerRows, read_ledger, write_ledger
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.money.receipt import Receipt

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
parts = st.lists(st.text(max_size=4), max_size=4)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def entry(
    key: str, context: str = "A context of the passage in its text, as long as it has to be here.", **fields: Any
) -> LedgerEntry:
    return LedgerEntry(key=key, context=context, model="openai:gpt-4.1", **fields)


# ---- forgetting ----------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(), st.integers(0, 300))
def test_removed_data_is_not_in_a_copy_of_the_file(seed: int, kept: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        with closing(Ledger(path)) as ledger:
            names = [f"{number:04d}" * chance.randrange(1, 300) for number in range(300)]
            ledger.add_contexts(entry(content_key(name), f"<{name}>") for name in names)
            vectors = np.asarray([[number + 0.123] * 16 for number in range(300)], dtype=np.float32)
            ledger.add_vectors("m", [vector_key(name, "m", None) for name in names], vectors)
            chance.shuffle(names)
            stay, removed = names[:kept], names[kept:]
            assert ledger.keep_only({f"<{name}>" for name in stay}, [stay]) == (len(removed), len(removed))
            ledger.copy_to(path.with_name("copy"))
        content = path.with_name("copy").read_bytes()
        assert [name for name in removed if f"<{name[:4]}".encode() in content] == []
        numbers = [int(name[:4]) for name in removed]
        assert [number for number in numbers if vectors[number].tobytes() in content] == []
        with closing(Ledger(path.with_name("copy"))) as copy:
            assert {name for name in names if copy.contexts([content_key(name)]).get(content_key(name))} == set(stay)
            assert len(copy.vectors([vector_key(name, "m", None) for name in names])) == kept


def test_an_embedding_of_another_length_or_model_is_kept_with_its_text(ledger: Ledger) -> None:
    rows = np.ones((1, 4), dtype=np.float32)
    for model, dimensions in (("m", None), ("m", 4), ("n", None)):
        ledger.add_vectors(model, [vector_key("stays", model, dimensions)], rows)
        ledger.add_vectors(model, [vector_key("goes", model, dimensions)], rows)
    assert ledger.keep_only((), [["stays"]]) == (0, 3)
    assert len(ledger.vectors([vector_key("stays", "m", 4), vector_key("stays", "n", None)])) == 2


def test_stored_replies_of_batches_are_removed_too(ledger: Ledger) -> None:
    ledger.batches.closed("file", [BatchReply(custom_id="one", text="About the secret.")])
    ledger.keep_only((), ())
    assert not ledger.batches.has_replies()


def test_a_pending_batch_does_not_restore_removed_data(ledger: Ledger) -> None:
    ledger.batches.uploaded("file", model="m", custom_ids=["one", "two"])
    ledger.keep_only((), ())
    assert ledger.batches.open_batches() == []
    assert ledger.batches.reply("one") is ledger.batches.file_of("one") is None
    assert ledger.info().batched_requests == 0


# ---- keys ----------------------------------------------------------------------------------------------------------


@given(parts, parts)
@example(["a", "bc"], ["ab", "c"])
@example(["a", ""], ["a"])
@example(['a", "b'], ["a", "b"])
@example(["\ud800"], ["\\ud800"])
@example([], [""])
def test_keys_are_equal_only_if_all_parts_are_equal(one: list[str], other: list[str]) -> None:
    assert (content_key(*one) == content_key(*other)) == (one == other)


@given(shared=st.lists(st.text(), min_size=1, max_size=3), rest=st.lists(st.text(), min_size=1, max_size=3))
def test_a_key_with_a_precomputed_beginning_is_the_same(shared: list[str], rest: list[str]) -> None:
    keys = ContentKeys(*shared)
    assert [keys.key(*rest), keys.key(*rest)] == [content_key(*shared, *rest)] * 2


def test_keys_do_not_change_between_releases() -> None:
    assert content_key("a", "é\n") == hashlib.sha256(b'["a", "\\u00e9\\n"]').hexdigest()


# ---- contexts and vectors ------------------------------------------------------------------------------------------


def test_a_stored_context_is_returned_to_every_later_reader(tmp_path: Path, ledger: Ledger) -> None:
    assert ledger.contexts(["k"]).get("k") is None
    ledger.add_contexts([entry("k", "First.\u2028 🦙"), entry("l", "Second.")])
    ledger.add_contexts([entry("l", "Replaced.")])
    for reader in (ledger, Ledger(tmp_path / "ledger.sqlite")):
        assert reader.contexts(["k"]).get("k") == "First.\u2028 🦙"
        assert reader.contexts(["l"]).get("l") == "Replaced."
        assert reader.contexts(["m"]).get("m") is None


def test_embeddings_of_another_length_are_left_out(ledger: Ledger) -> None:
    ledger.add_vectors("model", ["a", "b"], np.ones((2, 3), dtype=np.float32))
    ledger.add_vectors("model", ["c"], np.ones((1, 2), dtype=np.float32))
    assert set(ledger.vectors(["a", "b", "c"])) == {"a", "b"}, "the most frequent length"
    assert set(ledger.vectors(["a", "b", "c"], dimensions=2)) == {"c"}
    assert ledger.vectors(["a"], dimensions=2) == {}


def test_known_vectors_are_read_back_exactly(ledger: Ledger) -> None:
    rows = np.random.default_rng(5).normal(size=(1_000, 3)).astype(np.float32)
    keys = [f"key {n}" for n in range(len(rows))]
    ledger.add_vectors("model", keys, rows)
    result = ledger.vectors(["unknown", *keys])
    assert list(result) != []
    assert set(result) == set(keys)
    assert all(np.array_equal(result[key], row) for key, row in zip(keys, rows, strict=True))
    assert ledger.vectors([]) == {}
    with pytest.raises(ValueError, match="zip"):
        ledger.add_vectors("model", ["too", "many"], rows[:1])


def test_a_batch_is_committed_as_a_whole_or_not_at_all(ledger: Ledger) -> None:
    with pytest.raises(UnicodeEncodeError):
        ledger.add_contexts([entry("good"), entry("bad", "\ud800")])
    assert ledger.contexts(["good"]).get("good") is None


# ---- export and import ---------------------------------------------------------------------------------------------

entries = st.builds(
    LedgerEntry,
    key=st.text("0123456789abcdef", min_size=4, max_size=4),
    context=texts.map(storable_text).filter(bool),
    model=st.sampled_from(["openai:gpt-4.1", "ollama:qwen3"]),
    input_tokens=st.one_of(st.none(), st.integers(0, 2**40)),
    cached_tokens=st.one_of(st.none(), st.integers(0, 2**40)),
    output_tokens=st.one_of(st.none(), st.integers(0, 2**40)),
)


def rows_of(ledger: Ledger) -> list[tuple[Any, ...]]:
    return ledger.query(
        "SELECT key, context, model, input_tokens, cached_tokens, output_tokens FROM contexts ORDER BY key"
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for ledgers that many examples use, because a new one costs several syncs."""
    return tmp_path_factory.mktemp("ledgers")


@settings(max_examples=25)
@given(st.lists(entries, max_size=5, unique_by=lambda row: row.key))
@example([entry("k", "LS\u2028PS\u2029\n\ufeff")])
@example([])
def test_an_export_holds_everything_that_an_import_needs(shared: Path, rows: list[LedgerEntry]) -> None:
    with closing(Ledger(shared / "one.sqlite")) as one, closing(Ledger(shared / "other.sqlite")) as other:
        for ledger in (one, other):
            ledger.execute("DELETE FROM contexts")
        one.add_contexts(rows)
        assert write_ledger(one, shared / "contexts.jsonl") == LedgerRows(contexts=len(rows))
        assert read_ledger(other, shared / "contexts.jsonl") == LedgerRows(contexts=len(rows))
        assert rows_of(other) == rows_of(one)
        assert [row[0] for row in rows_of(one)] == sorted(row.key for row in rows)


def test_an_export_can_be_read_by_people_and_other_programs(tmp_path: Path, ledger: Ledger) -> None:
    ledger.add_contexts([entry("b", "Zölle"), entry("a", "Duty", input_tokens=3)])
    write_ledger(ledger, tmp_path / "contexts.jsonl")
    lines = (tmp_path / "contexts.jsonl").read_text(encoding="utf-8").split("\n")
    assert "Zölle" in lines[1]
    assert json.loads(lines[0]) == {
        "key": "a",
        "context": "Duty",
        "model": "openai:gpt-4.1",
        "input_tokens": 3,
        "cached_tokens": None,
        "output_tokens": None,
    }
    assert lines[2:] == [""]


def test_everything_that_was_paid_for_is_exported_and_nothing_twice(tmp_path: Path, ledger: Ledger) -> None:
    vectors = unit_vectors(np.random.default_rng(3).normal(size=(2, 8)).astype(np.float32))
    ledger.add_contexts([entry("a", "Duty"), entry("refused", "")])
    ledger.add_vectors("openai:x", ["v", "w:digest:0:2"], vectors)
    ledger.add_page("p", "Scanned “text”", "rapidocr")
    ledger.batches.uploaded("file", model="openai:x", custom_ids=["r"])
    with pytest.raises(LedgerError, match="working on a batch of 1 request, whose replies the export would lack"):
        write_ledger(ledger, tmp_path / "all.jsonl")
    assert not (tmp_path / "all.jsonl").exists()
    ledger.batches.closed("file", [BatchReply(custom_id="r", text="A reply.", input_tokens=7)])
    ledger.receipts.write(Receipt(purpose="ingest", started=5.0, ended=9.0, calls=3, paid=0.25))
    rows = LedgerRows(contexts=2, embeddings=2, pages=1, replies=1, receipts=1)
    assert write_ledger(ledger, tmp_path / "all.jsonl") == rows
    with closing(Ledger(None)) as other:
        other.receipts.write(Receipt(purpose="sync", started=1.0, calls=1, paid=0.5))
        for _ in range(2):
            assert read_ledger(other, tmp_path / "all.jsonl") == rows
        assert (other.contexts(["a"]).get("a"), other.refusals(["a", "refused"])) == ("Duty", {"refused"})
        assert np.array_equal(other.vectors(["v", "w:digest:0:2"])["w:digest:0:2"], vectors[1])
        assert (other.page("p"), other.batches.reply("r")) == ("Scanned “text”", ledger.batches.reply("r"))
        assert [(run.run, run.purpose, run.paid) for run in other.receipts.cost().runs] == [
            (1, "sync", 0.5),
            (2, "ingest", 0.25),
        ]


GOOD = json.dumps({"key": "k", "context": "c", "model": "m"}).encode()


def row(**changes: Any) -> bytes:
    return json.dumps({"key": "k", "context": "c", "model": "m"} | changes).encode()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"null", "it must be a mapping"),
        (b'{"table": "batches"}', "'batches' is not a table of an export"),
        (b'{"table": "runs", "run": "1"}', "'receipt' is missing or unknown"),
        (b'{"table": "embeddings", "key": "k", "vector": "AAAA", "model": "m", "created": 1.0}', "not a row of"),
        (b"[1, 2]", "must be a mapping"),
        (b'"text"', "must be a mapping"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"key": "\xff"}', "can't decode"),
        (row(extra=1), "'extra' is missing or unknown"),
        (b'{"key": "k", "context": "c"}', "'model' is missing or unknown"),
        (row(key=7), "not a row of contexts"),
        (row(model=None), "not a row of contexts"),
        (row(key="\ud800"), "not a row of contexts"),
        (row(context="\ud800"), "has no character that can be stored"),
        (row(input_tokens="many"), "not a row of contexts"),
        (row(output_tokens=True), "not a row of contexts"),
        (row(cached_tokens=1.5), "not a row of contexts"),
        (row(input_tokens=-1), "not a row of contexts"),
        (row(input_tokens=2**70), "not a row of contexts"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_nothing_is_added(
    bad: bytes, reason: str, tmp_path: Path, ledger: Ledger
) -> None:
    file = tmp_path / "contexts.jsonl"
    file.write_bytes(b"\n".join([GOOD, bad, GOOD]))
    with pytest.raises(InputError, match=r"contexts.jsonl, line 2, is not a ledger row \(") as caught:
        read_ledger(ledger, file)
    assert reason in str(caught.value)
    assert ledger.info().contexts == 0


def test_windows_line_ends_are_accepted_and_a_missing_file_is_an_error(tmp_path: Path, ledger: Ledger) -> None:
    file = tmp_path / "contexts.jsonl"
    file.write_bytes(GOOD + b"\r\n" + row(key="l") + b"\r\n")
    assert read_ledger(ledger, file).contexts == 2
    with pytest.raises(InputError, match=r"other.jsonl does not exist: name a file that `export_ledger` wrote"):
        read_ledger(ledger, tmp_path / "other.jsonl")


def test_two_connections_can_write_in_turn(tmp_path: Path) -> None:
    one, other = Ledger(tmp_path / "ledger.sqlite"), Ledger(tmp_path / "ledger.sqlite")
    for number in range(10):
        (one, other)[number % 2].add_contexts([entry(f"key {number}")])
    assert one.info().contexts == other.info().contexts == 10
    one.close()
    with pytest.raises(sqlite3.ProgrammingError):
        one.contexts(["key 1"]).get("key 1")
