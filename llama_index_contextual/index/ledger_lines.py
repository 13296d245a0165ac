"""Export and import of a ledger as JSON lines, and recovery of rows from a damaged ledger."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError, LedgerError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import FIELDS, LEDGER_FILE, Ledger, LedgerEntry
from llama_index_contextual.index.ledger_file import TABLES, Row, is_plausible, is_sound
from llama_index_contextual.index.project_file import project_ledger, write_lock
from llama_index_contextual.index.receipts import RunCost
from llama_index_contextual.index.storable import storable_text

_EXPORTED = {
    "contexts": "contexts",
    "embeddings": "embeddings",
    "pages": "pages",
    "batch_replies": "replies",
    "runs": "receipts",
}
"""The tables of an export, with what their rows are called in `LedgerRows`."""
_MAX_COUNT = 2**53
_RANGES = ("", *(f"{byte:02x}" for byte in range(256)), "g")
"""Bounds of the ranges of keys in which a damaged table is read; most keys are hexadecimal."""


@dataclass(frozen=True, kw_only=True)
class LedgerRows:
    """Number of rows that were exported or imported.

    Attributes:
        contexts: Contexts by an LLM, and refusals to write one.
        embeddings: Vectors.
        pages: Scanned pages that were read by OCR.
        replies: Replies of a batch whose contexts are not stored yet.
        receipts: Costs of runs.
    """

    contexts: int = 0
    embeddings: int = 0
    pages: int = 0
    replies: int = 0
    receipts: int = 0


def export_ledger(project_dir: str | Path, path: str | Path) -> LedgerRows:
    """Write everything that was paid for or read by OCR as JSON lines: contexts, embeddings, pages and receipts.

    Another project that imports the file pays for none of it again. This also exports the ledger of a project that was
    written before the first release.

    Args:
        project_dir: Directory of the project: `project.directory`.
        path: The file to write.

    Raises:
        LedgerError: A provider is working on a batch, whose replies would be missing.
    """
    with contextlib.closing(Ledger(Path(project_dir) / LEDGER_FILE, read_only=True)) as ledger:
        return write_ledger(ledger, Path(path))


def import_ledger(project_dir: str | Path, path: str | Path) -> LedgerRows:
    """Add the rows of a file that `export_ledger` wrote to the ledger of a project, and return their number.

    Args:
        project_dir: Directory of the project: `project.directory`.
        path: The file to read.

    Raises:
        InputError: The file does not exist, or was not written by `export_ledger`; nothing is added.
        ProjectLockedError: Another process is writing to the project.
    """
    directory = Path(project_dir)
    with write_lock(directory), project_ledger(directory) as ledger:
        return read_ledger(ledger, Path(path))


def write_ledger(ledger: Ledger, path: Path) -> LedgerRows:
    """Write everything that was paid for or read by OCR as JSON lines.

    A line without `table` is a context; a vector is the base64 of its little-endian 32-bit floats.

    Raises:
        LedgerError: A provider is working on a batch, whose replies would be missing.
    """
    if batches := ledger.batches.open_batches():
        number = pluralize(sum(batch.requests for batch in batches), "request")
        raise LedgerError(
            f"A provider is working on a batch of {number}, whose replies the export would lack",
            remedy=Remedy(
                "collect them with `ingest` or `retry_failed` of the release that wrote the project, then export",
                "collect them with `llama-index-contextual retry {project}` of the release that wrote the project,"
                " then export",
            ),
        )
    counts = Counter[str]()

    def fill(file: IO[bytes]) -> None:
        for table in _EXPORTED:
            for row in ledger.rows(table):
                counts[table] += 1
                file.write(f"{json.dumps(_line(table, row), ensure_ascii=False)}\n".encode())

    files.replace_with(path, fill)
    return _counted(counts)


def read_ledger(ledger: Ledger, path: Path) -> LedgerRows:
    """Add the rows of a JSON lines file, and return their number; contexts replace existing ones of the same key.

    Receipts that the ledger has already are not added again.

    Raises:
        InputError: The file does not exist, or a line was not written by `export_ledger`; nothing is added.
    """
    if not path.is_file():
        raise InputError(
            f"{path} does not exist",
            value=path,
            remedy=Remedy("name a file that `export_ledger` wrote", "name a file that `ledger export` wrote"),
        )
    counts = Counter[str]()

    def rows() -> Iterator[tuple[str, Row]]:
        with open(path, "rb") as file:  # lines of bytes: JSON allows other line separators in a string
            for number, line in enumerate(file, start=1):
                try:
                    table, row = _row(json.loads(line))
                except (ValueError, TypeError, KeyError, RecursionError) as error:
                    raise InputError(
                        f"{path.name}, line {number}, is not a ledger row ({error}), and nothing was imported: export"
                        f" the ledger again, or remove the line.",
                        value=line,
                    ) from error
                counts[table] += 1
                yield table, row

    ledger.add_rows(rows())
    return _counted(counts)


def _counted(counts: Mapping[str, int]) -> LedgerRows:
    return LedgerRows(**{name: counts.get(table, 0) for table, name in _EXPORTED.items()})


def _line(table: str, row: Row) -> dict[str, Any]:
    values = dict(zip(TABLES[table], row, strict=True))
    if table == "contexts":
        return {field: values[field] for field in FIELDS}
    if table == "embeddings":
        values["vector"] = base64.b64encode(values["vector"]).decode()
    return {"table": table, **values}


def _row(raw: Any) -> tuple[str, Row]:
    """Return the table and the row of a line."""
    if not isinstance(raw, dict):
        raise TypeError("it must be a mapping")
    table = raw.pop("table", "contexts")
    if table not in _EXPORTED:
        raise ValueError(f"{table!r} is not a table of an export")
    if table == "contexts":
        entry = _entry(raw)
        tokens = (entry.input_tokens, entry.cached_tokens, entry.output_tokens)
        return table, (entry.key, entry.context, entry.model, time.time(), *tokens)
    if unknown := raw.keys() ^ set(TABLES[table]):
        raise ValueError(f"it must have {', '.join(TABLES[table])}: {min(unknown)!r} is missing or unknown")
    if table == "embeddings":
        raw["vector"] = base64.b64decode(raw["vector"], validate=True)
    row = tuple(raw[column] for column in TABLES[table])
    if not is_plausible(table, row):
        raise ValueError(f"it is not a row of {table}")
    if table == "runs":
        RunCost(**json.loads(raw["receipt"]))
    return table, row


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
    texts = [entry.key, entry.model]
    if entry.context != "":  # which is a refusal
        if isinstance(entry.context, str):
            entry = replace(entry, context=storable_text(entry.context))
        texts.append(entry.context)
    counts = (entry.input_tokens, entry.cached_tokens, entry.output_tokens)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError("key, context and model must be text")
    "".join(texts).encode()
    if not all(count is None or (type(count) is int and 0 <= count < _MAX_COUNT) for count in counts):
        raise ValueError("token counts must be whole numbers")
    return entry
