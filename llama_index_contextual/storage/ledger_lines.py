"""A ledger as JSON lines, and what can still be read of a damaged one: rows from outside are not trusted."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.ledger import Ledger, LedgerEntry
from llama_index_contextual.storage.ledger_file import TABLES, Row, is_sound
from llama_index_contextual.storage.storable import storable_text

_MAX_COUNT = 2**53
_RANGES = ("", *(f"{byte:02x}" for byte in range(256)), "g")
"""Where a damaged table is entered: most keys are hexadecimal."""


def export_contexts(ledger: Ledger, path: Path) -> int:
    """Write all contexts as JSON lines and return their number."""
    lines = [json.dumps(asdict(entry), ensure_ascii=False) for entry in ledger.entries()]
    files.replace(path, "".join(f"{line}\n" for line in lines).encode())
    return len(lines)


def import_contexts(ledger: Ledger, path: Path) -> int:
    """Add the contexts of a JSON lines file and return their number; known keys are replaced.

    Raises:
        InputError: The file is not there, or a line is not what `export_contexts` writes; nothing is added then.
    """
    if not path.is_file():
        raise InputError(f"{path} is not there: name a file that `export_contexts` wrote.", value=path)
    entries = []
    # Bytes, because a text would also be split at the separators that JSON leaves inside a context.
    for number, line in enumerate(files.read(path).splitlines(), start=1):
        try:
            entries.append(_entry(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path.name}, line {number}, is not a ledger row: {error}.", value=line) from error
    ledger.add_contexts(entries)
    return len(entries)


def salvage(damaged: Path, ledger: Ledger) -> None:
    """Add all that was paid for, as far as it can still be read of a damaged ledger, to a new one.

    These are contexts, embeddings, replies of batches, batches under way, and what the runs have cost. The texts of
    documents are not among them: they are in the versions.

    Args:
        damaged: The file; it is only read.
        ledger: Where the rows go.
    """
    for table in ("contexts", "embeddings", "batch_replies", "batches", "runs"):
        ledger.restore(table, _readable(damaged, table))
    # A request of a batch that is not known any more would not be answered, and not be sent again either.
    batches = {batch.file_id for batch in ledger.batches.open_batches()}
    ledger.restore("batch_requests", (row for row in _readable(damaged, "batch_requests") if row[1] in batches))


def _readable(damaged: Path, table: str) -> Iterator[Row]:
    """Yield the sound rows of a table that can be reached, some more than once.

    What lies beyond a damaged page is reached from the other end, and what lies between two of them by its key.
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
    # Not mode=ro, with which nothing can be read before a write that was interrupted is undone.
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
        raise ValueError("key, context and model must be texts")
    "".join(texts).encode()
    if not all(count is None or (type(count) is int and 0 <= count < _MAX_COUNT) for count in counts):
        raise ValueError("token counts must be whole numbers")
    return entry
