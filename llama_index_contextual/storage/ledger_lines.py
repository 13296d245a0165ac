"""A ledger as JSON lines, and what can still be read of a damaged one: rows from outside are not trusted."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from llama_index_contextual.errors import InputError
from llama_index_contextual.storage import files
from llama_index_contextual.storage.ledger import FIELDS, Ledger, LedgerEntry
from llama_index_contextual.storage.receipts import is_receipt

Row = tuple[Any, ...]

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


def salvage(damaged: Path, ledger: Ledger) -> None:
    """Add all that was paid for, as far as it can still be read of a damaged ledger, to a new one.

    These are contexts, embeddings, replies of batches, batches under way, and what the runs have cost. The texts of
    documents are not among them: they are in the versions.

    Args:
        damaged: The file; it is only read.
        ledger: Where the rows go.
    """
    for table, is_sound in _SOUND.items():
        ledger.restore(table, (row for row in _readable(damaged, table) if is_sound(row)))
    # A request of a batch that is not known any more would not be answered, and not be sent again either.
    batches = {batch.file_id for batch in ledger.batches.open_batches()}
    ledger.restore("batch_requests", (row for row in _readable(damaged, "batch_requests") if row[1] in batches))


def _readable(damaged: Path, table: str) -> Iterator[Row]:
    """Yield rows from one end of a table; what lies beyond a damaged page is reached from the other end."""
    uri = f"{damaged.resolve().as_uri()}?mode=ro"
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(uri, uri=True)) as source:
            yield from source.execute(f"SELECT * FROM {table} ORDER BY 1 {order}")
            return


def _are(*types: Any) -> Callable[[Row], bool]:
    return lambda row: all(map(isinstance, row, types))


def _is_context(row: Row) -> bool:
    key, context, model, created, *counts = row
    try:
        _entry(dict(zip(FIELDS, (key, context, model, *counts), strict=True)))
    except (ValueError, TypeError):
        return False
    return isinstance(created, float)


def _is_embedding(row: Row) -> bool:
    """Return whether this has the length of 1 that all embeddings in a ledger have, and damaged ones hardly have."""
    if not _are(str, bytes, str, float)(row) or len(row[1]) % 4:
        return False
    return bool(abs(np.linalg.norm(np.frombuffer(row[1], dtype="<f4")) - 1) < 1e-3)


_SOUND: dict[str, Callable[[Row], bool]] = {
    "contexts": _is_context,
    "embeddings": _is_embedding,
    "batch_replies": _are(str, str, str | None, int | None, int | None, int | None),
    "batches": _are(str, str | None, str, float),
    "runs": is_receipt,
}


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
