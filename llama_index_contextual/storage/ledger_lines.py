"""A ledger as JSON lines, and what can still be read of a damaged one: rows from outside are not trusted."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.ledger import FIELDS, Ledger, LedgerEntry

_MAX_COUNT = 2**53


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


def salvage(damaged: Path, ledger: Ledger) -> int:
    """Add what can still be read of a damaged ledger to another one, and return the number of contexts.

    Args:
        damaged: The file; it is only read.
        ledger: Where the contexts go.
    """
    found: list[LedgerEntry] = []
    uri = f"{damaged.resolve().as_uri()}?mode=ro"
    # Row by row in both directions: what lies beyond a damaged page is reached from the other end.
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(uri, uri=True)) as source:
            for row in source.execute(f"SELECT {', '.join(FIELDS)} FROM contexts ORDER BY key {order}"):
                with contextlib.suppress(ValueError, TypeError):
                    found.append(_entry(dict(zip(FIELDS, row, strict=True))))
    rows = {entry.key: entry for entry in found}
    ledger.add_contexts(rows.values())
    return len(rows)


def _entry(raw: Any) -> LedgerEntry:
    entry = LedgerEntry(**raw)
    texts = (entry.key, entry.context, entry.model)
    counts = (entry.input_tokens, entry.cached_tokens, entry.output_tokens)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError("key, context and model must be texts")
    "".join(texts).encode()
    if not all(count is None or (type(count) is int and 0 <= count < _MAX_COUNT) for count in counts):
        raise ValueError("token counts must be whole numbers")
    return entry
