"""Taking documents out of a project: the others stay as they stand, so that no model is asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.version import OpenVersion


def remove_documents(
    doc_ids: Collection[str], *, project_dir: Path, config: ProjectConfig, before: OpenVersion | None
) -> IngestReport:
    """Publish a version without some documents; where there is none to remove, nothing is published.

    Settings that have changed since the version before was built have no effect: they wait for the next rebuild.

    Args:
        doc_ids: Ids of the documents.
        project_dir: The project, whose lock is held.
        config: Its settings.
        before: Its live version, or None.

    Raises:
        InputError: The live version does not have one of them.
    """
    started = time.monotonic()
    records = () if before is None else before.manifest.documents
    known = {record.doc_id for record in records}
    if unknown := [doc_id for doc_id in doc_ids if doc_id not in known]:
        raise InputError(f"Project {project_dir.name!r} has no document {unknown[0]!r}.", value=unknown[0])
    kept = [record for record in records if record.doc_id not in doc_ids]
    version = None if before is None else before.name
    if before is not None and doc_ids:
        version = _publish(kept, project_dir, config, before)
    return IngestReport(
        version=version,
        removed=tuple(record.doc_id for record in records if record.doc_id in doc_ids),
        chunks=sum(record.chunks for record in kept),
        seconds=time.monotonic() - started,
    )


def _publish(kept: Sequence[DocumentRecord], project_dir: Path, config: ProjectConfig, before: OpenVersion) -> str:
    built_with = ProjectConfig.recorded(before.manifest.config)
    pending = config.rebuild_fields(built_with)
    builder = VersionBuilder(project_dir, config.changed(**{name: getattr(built_with, name) for name in pending}))
    with contextlib.ExitStack() as stack:
        stack.callback(builder.discard)
        for record in kept:
            builder.take_over(before, record)
        return builder.publish(embed_model=before.manifest.embed_model).version
