"""Versions whose derived data were made by an earlier release."""

from __future__ import annotations

import shutil
from pathlib import Path

from llama_index_contextual.index.derived import DERIVED
from llama_index_contextual.index.manifest import BM25_DIRECTORY, MANIFEST, PARTS, UNITS_FILE, PartEntry, read_manifest
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
