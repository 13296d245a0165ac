"""Versions whose derived data were made by an earlier release."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import zstandard

from llama_index_contextual.index.derived import DERIVED
from llama_index_contextual.index.manifest import (
    BM25_DIRECTORY,
    DOCSTORE,
    MANIFEST,
    PARTS,
    UNITS_FILE,
    PartEntry,
    read_manifest,
)
from llama_index_contextual.index.part_writer import _describe_files
from llama_index_contextual.index.versions import version_directory, version_names

_TERMS = (f"{BM25_DIRECTORY}/terms.bin", f"{BM25_DIRECTORY}/documents/terms.bin")


def make_outdated(project_dir: Path, *, has_files: bool = True) -> None:
    """Replace the derived data of all versions with those of an earlier release.

    Args:
        project_dir: The project.
        has_files: Whether the earlier release had files for them; the terms in them begin with "_".
    """
    parts: dict[str, PartEntry] = {}
    for name in version_names(project_dir):
        manifest = read_manifest(version_directory(project_dir, name))
        for entry in manifest.parts:
            if entry.name not in parts:
                parts[entry.name] = _outdated(project_dir / PARTS / entry.name, entry, has_files=has_files)
        entries = [parts[entry.name] for entry in manifest.parts]
        path = version_directory(project_dir, name) / MANIFEST
        path.write_bytes(manifest.model_copy(update={"parts": entries}).to_json())


def _outdated(part: Path, entry: PartEntry, *, has_files: bool) -> PartEntry:
    if not has_files:
        shutil.rmtree(part / BM25_DIRECTORY)
        (part / UNITS_FILE).unlink()
    for file in _TERMS if has_files else ():
        terms = (part / file).read_text("utf-8").split("\n")
        (part / file).write_text("\n".join(f"_{term}" for term in terms), "utf-8")
    derived = entry.derived.model_copy(update={"edition": DERIVED - 1})
    return entry.model_copy(update={"files": _describe_files(part), "derived": derived})


def make_first_edition(project_dir: Path) -> None:
    """Store the chunks and derived data of the only part of a project as the first edition did.

    The fields of a node were stored in one piece with its text, the units and the terms in files of another type.
    """
    version = version_directory(project_dir, version_names(project_dir)[-1])
    manifest = read_manifest(version)
    (entry,) = manifest.parts
    part = project_dir / PARTS / entry.name
    with closing(sqlite3.connect(part / DOCSTORE)) as connection, connection:
        forms = dict(connection.execute("SELECT id, fields FROM forms"))
        for position, body, form in connection.execute("SELECT position, body, form FROM nodes").fetchall():
            head, _, text = zstandard.decompress(body).partition(b"\n")
            kind, fields = json.loads(head)
            whole = json.dumps([kind, {**json.loads(forms[form]), **fields, "text": text.decode()}])
            compressed = zstandard.compress(whole.encode())
            connection.execute("UPDATE nodes SET body = ? WHERE position = ?", (compressed, position))
        connection.execute("ALTER TABLE nodes DROP COLUMN form")
        connection.execute("DROP TABLE forms")
    for file in _TERMS:
        (part / file).rename((part / file).with_suffix(".json"))
    (part / UNITS_FILE).write_bytes(b'{"kinds": {"type": "|i1", "shape": [1], "offset": 0}}\n\1')
    derived = entry.derived.model_copy(update={"edition": 1})
    entry = entry.model_copy(update={"files": _describe_files(part), "derived": derived})
    (version / MANIFEST).write_bytes(manifest.model_copy(update={"parts": [entry]}).to_json())
