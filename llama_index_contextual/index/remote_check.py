"""Check of the chunks that an engine keeps, against the records of the versions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import CorruptVersionError, FormatError
from llama_index_contextual.index.collection import View
from llama_index_contextual.index.engine import COLLECTION_FILE, FILES, open_engine, read_collection
from llama_index_contextual.index.manifest import MANIFEST
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import number, version_directory, version_names

_SAMPLE = 128  # chunks of a version that are read and compared
_MAX_LISTED = 5


def damaged_chunks(project_dir: Path, names: Sequence[str]) -> dict[str, CorruptVersionError]:
    """Return the error of each version that lacks chunks in the engine, or has others than its records.

    The chunks of a version are counted, and some are read. If their number is wrong, all ids are compared.

    Args:
        project_dir: The project.
        names: Versions whose files are sound.

    Raises:
        BackendError: The engine does not answer.
    """
    damage = {}
    for name in names:
        try:
            with closing(OpenVersion(version_directory(project_dir, name), check="size")) as version:
                if version.manifest.engine != FILES:
                    _check(version)
        except FormatError:
            continue  # reported with the files
        except CorruptVersionError as error:
            if not (version_directory(project_dir, name) / MANIFEST).exists():
                continue  # a writer has removed it, and then its chunks, in the meantime
            damage[name] = CorruptVersionError(str(error), file=COLLECTION_FILE, remedy=error.remedy)
    return damage


def leftover_chunks(project_dir: Path) -> int:
    """Return the number of chunks that an interrupted writer has left; see `drop_leftover_chunks`."""
    if read_collection(project_dir) is None:
        return 0
    return open_engine(project_dir).leftovers(_newest(version_names(project_dir)))


def drop_leftover_chunks(project_dir: Path, names: Sequence[str]) -> None:
    """Remove the chunks of versions that were never published, and revive those that were to die in one.

    Args:
        project_dir: The project, whose write lock must be held.
        names: The published versions.
    """
    if read_collection(project_dir) is not None:
        open_engine(project_dir).drop_after(_newest(names))


def _newest(names: Sequence[str]) -> int:
    return max(map(number, names), default=0)


def _check(version: OpenVersion) -> None:
    """Check the chunks of a version.

    Raises:
        CorruptVersionError: Chunks are missing or wrong.
    """
    store: Any = version.docstore
    expected, actual = len(store), store.engine.count(View(store.number))
    if actual != expected:
        documents = lost_documents(version)
        shown = ", ".join(documents[:_MAX_LISTED])
        raise CorruptVersionError(
            f"{COLLECTION_FILE} names a collection with {pluralize(actual, 'chunk')} of {store.directory.name} instead"
            f" of {expected}; documents concerned: {shown or 'none'}{', …' if documents[_MAX_LISTED:] else ''}."
        )
    sample = np.linspace(0, max(0, expected - 1), min(expected, _SAMPLE), dtype=np.int64)
    places = store.places_of_rows(sample)
    nodes = {node.node_id: node for _, node in store.nodes_at([node_id for node_id, _ in places])}
    for node_id, doc_id in places:
        if node_id not in nodes or nodes[node_id].ref_doc_id != doc_id:
            raise CorruptVersionError(
                f"{COLLECTION_FILE} names a collection with a chunk {node_id!r} that does not belong to {doc_id!r}."
            )


def lost_documents(version: OpenVersion) -> list[str]:
    """Return the ids of the documents of a version of which its engine lacks a chunk; none without an engine.

    Raises:
        BackendError: The engine does not answer.
    """
    if not version.is_remote:
        return []
    store: Any = version.docstore
    present = set(store.engine.keys(View(store.number)))
    lost: list[str] = []
    for part in version.parts:
        rows = np.arange(len(part.document_of)) if part.rows is None else part.rows
        keys = part.docstore.keys_of_rows(rows)  # type: ignore[attr-defined]
        documents = part.document_of[rows].tolist()
        numbers = {document for key, document in zip(keys, documents, strict=True) if key not in present}
        lost += [part.record_index.records[document].doc_id for document in sorted(numbers)]
    return lost
