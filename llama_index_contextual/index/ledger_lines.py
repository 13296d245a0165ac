"""Export and import of a ledger as JSON lines."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from llama_index_contextual._utils.files import open_file
from llama_index_contextual._utils.text import parse_json, pluralize
from llama_index_contextual.errors import InputError, LedgerError, Remedy
from llama_index_contextual.index import files
from llama_index_contextual.index.ledger import FIELDS, LEDGER_FILE, TABLES, Ledger, Row, is_plausible
from llama_index_contextual.index.project_file import project_ledger, require_existing, write_lock
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.money.receipt import Receipt

_EXPORTED = {
    "contexts": "contexts",
    "embeddings": "embeddings",
    "pages": "pages",
    "batch_replies": "replies",
    "runs": "receipts",
    "chunk_contexts": None,
}
"""The exported tables, with the corresponding fields of `LedgerRows`; rows that repeat others are not counted."""


@dataclass(frozen=True, kw_only=True)
class LedgerRows:
    """Numbers of exported or imported rows, by kind.

    Attributes:
        contexts: Contexts written by an LLM, and refusals.
        embeddings: Vectors.
        pages: OCR results for scanned pages.
        replies: Batch replies whose contexts are not stored yet.
        receipts: Costs of runs.
    """

    contexts: int = 0
    embeddings: int = 0
    pages: int = 0
    replies: int = 0
    receipts: int = 0


def export_ledger(project_dir: str | Path, path: str | Path) -> LedgerRows:
    """Export a ledger as JSON lines: contexts, embeddings, OCR results and receipts.

    If a project imports the file, these results are not paid for again. A ledger that was written before the first
    release can be exported too.

    Args:
        project_dir: Directory of the project: `project.directory`.
        path: The file to write.

    Raises:
        LedgerError: A provider is still working on a batch, so its replies would be missing.
        ProjectNotFoundError: The directory does not exist.
    """
    directory = require_existing(Path(project_dir))
    with contextlib.closing(Ledger(directory / LEDGER_FILE, read_only=True)) as ledger:
        return write_ledger(ledger, Path(path))


def import_ledger(project_dir: str | Path, path: str | Path) -> LedgerRows:
    """Import a file written by `export_ledger` into the ledger of a project and return the number of rows.

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
    """Write the contexts, embeddings, OCR results, replies and receipts of a ledger as JSON lines.

    Lines without a `table` key are contexts. Vectors are stored as little-endian 32-bit floats, encoded in base64.

    Raises:
        LedgerError: A provider is still working on a batch, so its replies would be missing.
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
            for row in ledger.iterate(table):
                counts[table] += 1
                file.write(f"{json.dumps(_line_of(table, row), ensure_ascii=False)}\n".encode())

    files.replace_with(path, fill)
    return _counted(counts)


def read_ledger(ledger: Ledger, path: Path) -> LedgerRows:
    """Add the rows of a JSON lines file to a ledger, and return the number of rows.

    Existing contexts with the same keys are replaced. Receipts that are already in the ledger are not added again.

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
        with open_file(path) as file:  # in binary mode, because JSON strings may contain other line separators
            for number, line in enumerate(file, start=1):
                try:
                    table, row = _row_of(parse_json(line))
                except (ValueError, TypeError, KeyError) as error:
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
    return LedgerRows(**{name: counts.get(table, 0) for table, name in _EXPORTED.items() if name is not None})


def _line_of(table: str, row: Row) -> dict[str, Any]:
    values = dict(zip(TABLES[table], row, strict=True))
    if table == "contexts":
        return {field: values[field] for field in FIELDS}
    if table == "embeddings":
        values["vector"] = base64.b64encode(values["vector"]).decode()
    return {"table": table, **values}


def _row_of(raw: Any) -> tuple[str, Row]:
    """Convert a parsed line of an export to a row, and return the row with the name of its table."""
    if not isinstance(raw, dict):
        raise TypeError("it must be a mapping")
    table = raw.pop("table", "contexts")
    if table not in _EXPORTED:
        raise ValueError(f"{table!r} is not a table of an export")
    if table == "contexts":
        raw = {**dict.fromkeys(FIELDS[3:]), **raw, "created": time.time()}
        if isinstance(text := raw.get("context"), str) and text:  # an empty context is a refusal
            raw["context"] = storable_text(text)
            if not raw["context"]:
                raise ValueError("its context has no character that can be stored")
    if unknown := raw.keys() ^ set(TABLES[table]):
        raise ValueError(f"it must have {', '.join(TABLES[table])}: {min(unknown)!r} is missing or unknown")
    if table == "embeddings":
        raw["vector"] = base64.b64decode(raw["vector"], validate=True)
    row = tuple(raw[column] for column in TABLES[table])
    if not is_plausible(table, row):
        raise ValueError(f"it is not a row of {table}")
    if table == "runs":
        Receipt(**json.loads(raw["receipt"]))
    return table, row
