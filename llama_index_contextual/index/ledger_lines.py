"""Export and import of a ledger as JSON lines, and recovery of rows from a damaged ledger."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import Ledger, LedgerEntry
from llama_index_contextual.index.ledger_file import TABLES, Row, is_sound
from llama_index_contextual.index.storable import storable_text

_MAX_COUNT = 2**53
_RANGES = ("", *(f"{byte:02x}" for byte in range(256)), "g")
"""Bounds of the ranges of keys in which a damaged table is read; most keys are hexadecimal."""


def export_contexts(ledger: Ledger, path: Path) -> int:
    """Write all contexts as JSON lines, and return their number."""
    lines = [json.dumps(asdict(entry), ensure_ascii=False) for entry in ledger.entries()]
    files.replace(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def import_contexts(ledger: Ledger, path: Path) -> int:
    """Add the contexts of a JSON lines file, replacing existing ones, and return their number.

    Raises:
        InputError: The file does not exist, or a line was not written by `export_contexts`; nothing is added.
    """
    if not path.is_file():
        raise InputError(
            f"{path} does not exist",
            value=path,
            remedy=Remedy("name a file that `export_contexts` wrote", "name a file that `ledger export` wrote"),
        )
    entries = []
    # Split bytes, because str.splitlines also splits at line separators that JSON allows in a string.
    for number, line in enumerate(files.read(path).splitlines(), start=1):
        try:
            entries.append(_entry(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path.name}, line {number}, is not a ledger row: {error}.", value=line) from error
    ledger.add_contexts(entries)
    return len(entries)


def salvage(damaged: Path, ledger: Ledger) -> None:
    """Copy all rows that can still be read from a damaged ledger to a new one.

    Args:
        damaged: The damaged file, which is only read.
        ledger: The new ledger.
    """
    for table in ("contexts", "embeddings", "batch_replies", "batches", "runs", "pages"):
        ledger.restore(table, _readable(damaged, table))
    # Without its batch, a request would neither be answered nor be sent again.
    batches = {batch.file_id for batch in ledger.batches.open_batches()}
    ledger.restore("batch_requests", (row for row in _readable(damaged, "batch_requests") if row[1] in batches))


def _readable(damaged: Path, table: str) -> Iterator[Row]:
    """Yield the sound rows of a table that can be read, some of them repeatedly.

    Rows after a damaged page are read backwards from the end, and rows between damaged pages by ranges of keys.
    """
    key = TABLES[table][0]
    with contextlib.suppress(sqlite3.DatabaseError):
        yield from _select(damaged, table, f"ORDER BY {key}")
        return
    for first, last in zip(_RANGES, (*_RANGES[1:], "\U0010ffff"), strict=True):
        for order in ("ASC", "DESC"):
            with contextlib.suppress(sqlite3.DatabaseError):
                yield from _select(
                    damaged, table, f"WHERE {key} >= '{first}' AND {key} < '{last}' ORDER BY {key} {order}"
                )
                break


def _select(damaged: Path, table: str, rest: str) -> Iterator[Row]:
    # Not mode=ro, which cannot read anything before an interrupted write is rolled back.
    uri = f"{damaged.resolve().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as source:
        source.execute("PRAGMA query_only = ON")
        source.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        for row in source.execute(f"SELECT * FROM {table} {rest}"):
            if is_sound(table, row):
                yield row[: len(TABLES[table])]


def _entry(raw: Any) -> LedgerEntry:
    entry = LedgerEntry(**raw)
    if isinstance(entry.context, str):
        entry = replace(entry, context=storable_text(entry.context))
    texts = (entry.key, entry.context, entry.model)
    counts = (entry.input_tokens, entry.cached_tokens, entry.output_tokens)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError("key, context and model must be text")
    "".join(texts).encode()
    if not all(count is None or (type(count) is int and 0 <= count < _MAX_COUNT) for count in counts):
        raise ValueError("token counts must be whole numbers")
    return entry
