"""What the tests of ingestion look at, and small inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from llama_index.core.schema import BaseNode, TextNode

from llama_index_contextual.ingestion.report import IngestProgress
from llama_index_contextual.project.project import Project

MANUAL, QUARTER, TARIFF = "reports/manual.txt", "reports/quarter.md", "reports/tariff.pdf"
"""Ids of the documents of `tiny_folder`."""


def ids(project: Project) -> list[str]:
    return [record.doc_id for record in project.documents()]


def texts_of(project: Project) -> dict[str, str]:
    """Return the text of every document by its id."""
    return {doc_id: project.read(doc_id) for doc_id in ids(project)}


def nodes_of(project: Project, doc_id: str | None = None) -> list[BaseNode]:
    return list(project.storage_context.docstore.nodes.iterate(doc_id=doc_id))  # type: ignore[attr-defined]


def vectors_of(project: Project) -> dict[str, list[float]]:
    index = project.live_version.index
    vectors = index.vectors(np.arange(len(index.ids)))
    return {node_id: row.tolist() for node_id, row in zip(index.ids, vectors, strict=True)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def passages(number: int, *, name: str = "n") -> list[TextNode]:
    """Return chunks, each of a document of its own."""
    return [TextNode(id_=f"{name}{at}", text=f"Passage {at} of the handbook {name}.") for at in range(number)]


def interrupt_batch(state: IngestProgress) -> None:
    """Interrupt an ingest while it waits for a batch."""
    if state.stage == "batch":
        raise KeyboardInterrupt
