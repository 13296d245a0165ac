"""Functions that change a project in other ways than by an ingest: sync, remove, forget, repair, update settings.

Every change to the documents builds a new version next to the live version and then publishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from llama_index.core.schema import Document

from llama_index_contextual._utils.keywords import nearest
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import CorruptVersionError, FormatError, InputError, NoVersionError, Remedy
from llama_index_contextual.index.answers import ANSWERS_FILE, AnswerFile
from llama_index_contextual.index.inbox import Inbox
from llama_index_contextual.index.manifest import Manifest, read_manifest
from llama_index_contextual.index.project_file import read_config, record_embed_object, write_config, write_lock
from llama_index_contextual.index.qdrant import check_backend
from llama_index_contextual.index.sources import inputs_of, store_downloads
from llama_index_contextual.index.verify import (
    ForgetReport,
    PartFaults,
    Repair,
    damaged_pictures,
    forget,
    only_derived,
    records_of,
    without_pictures,
)
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.ingestion.options import RunOptions
from llama_index_contextual.ingestion.plan import IngestInput, nothing_to_ingest
from llama_index_contextual.ingestion.report import IngestReport, store_skipped
from llama_index_contextual.ingestion.run import IngestRun, aingest, publish_copy
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.models import ModelSetting, missing_for

# ---- synchronising ---------------------------------------------------------------------------------------------------


def folder_inputs(
    folders: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
) -> list[IngestInput]:
    """Return the folders of a sync as a list.

    Raises:
        InputError: There are none.
    """
    paths: list[IngestInput] = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not paths:
        raise InputError("There is no folder to sync: pass at least one.", value=paths)
    return paths


def source_inputs(documents: Iterable[Document], source: str) -> list[IngestInput]:
    """Check and return the Documents of a source.

    Raises:
        InputError: The name of the source is invalid, or an input is not a Document.
    """
    if not source.strip() or not source.isprintable() or {*source} & {*"/\\:"} or source.strip() != source:
        raise InputError(
            f"{source!r} is not the name of a source: use a word such as 'notion', without '/' or ':'.", value=source
        )
    if source == "files":
        raise InputError("The source 'files' stands for files on this machine: choose another name.", value=source)
    inputs: list[IngestInput] = [documents] if isinstance(documents, Document) else list(documents)
    for one in inputs:
        if not isinstance(one, Document):
            raise InputError(
                f"sync_documents accepts only Documents, got {type(one).__name__}: pass the result of"
                f" `reader.load_data()`, or pass paths and URLs to `sync_folders`.",
                value=one,
            )
    return inputs


async def async_inputs(
    state: ProjectState,
    inputs: Sequence[IngestInput],
    options: Mapping[str, Any],
    remove: Collection[str] | bool,
    *,
    dry_run: bool,
    show_progress: bool,
    max_cost: float | None,
) -> IngestReport:
    """Synchronise the documents with folders, or with the Documents of a source; see `Project.sync_folders`."""
    removable = None if remove is True else frozenset([remove] if isinstance(remove, str) else remove or ())
    allow_many = options.get("allow_many", False) or dry_run or removable is not None
    settings = RunOptions.from_keywords(
        {**options, "allow_many": allow_many}, purpose="sync", max_cost=max_cost, removable=removable
    )
    if not dry_run:
        return await aingest(state, inputs, settings, show_progress=show_progress, progress=options.get("progress"))

    def preview() -> IngestReport:
        with state.open_live() as previous, state.remote_files(settings.limits, only_lists=True) as remote:
            return IngestRun(inputs, settings, state.config, previous, remote).report()

    return await asyncio.to_thread(preview)


# ---- removing documents and versions ---------------------------------------------------------------------------------


def remove_documents(state: ProjectState, doc_ids: Sequence[str] | str) -> IngestReport:
    """Publish a version without some documents and clear the cached answers; see `Project.remove`."""
    started = time.monotonic()
    ids = frozenset([doc_ids] if isinstance(doc_ids, str) else doc_ids)
    with write_lock(state.directory), state.open_live() as previous:
        records = {} if previous is None else {record.doc_id: record for record in previous.records}
        if unknown := sorted(ids - records.keys()):
            raise InputError(
                f"Project {state.name!r} has no document {unknown[0]!r}{nearest(unknown[0], records)}",
                value=unknown[0],
                remedy=Remedy(
                    "`project.documents()` returns all of them",
                    "`llama-index-contextual documents {project}` lists all of them",
                ),
            )
        manifest = None if previous is None else previous.manifest
        if previous is not None and ids:
            config = _settings_of(previous.manifest, state.config)
            manifest = publish_copy(state.directory, config, previous, remove=ids)
    AnswerFile(state.directory / ANSWERS_FILE).clear()
    return IngestReport(
        version=None if manifest is None else manifest.version,
        removed=tuple(doc_id for doc_id in records if doc_id in ids),
        chunks=0 if manifest is None else manifest.chunks,
        seconds=time.monotonic() - started,
    )


def rebuild_derived(state: ProjectState) -> IngestReport:
    """Publish the documents with derived data that are made again, without calling a model; see `Project.rebuild`."""
    started = time.monotonic()
    with write_lock(state.directory), state.open_live() as previous:
        if previous is None:
            raise InputError(nothing_to_ingest(()), value=None)
        config = _settings_of(previous.manifest, state.config)
        manifest = publish_copy(state.directory, config, previous, remake=True)
        return IngestReport(
            version=manifest.version,
            rebuilt=tuple(previous.records.by_id),
            chunks=manifest.chunks,
            seconds=time.monotonic() - started,
        )


def _settings_of(manifest: Manifest, config: ProjectConfig) -> ProjectConfig:
    """Return the current settings, but with the version's values for settings whose change may require a model."""
    former = ProjectConfig(**manifest.config)
    fields = config.rebuild_fields(former, derived=False)
    return config.changed(**{name: getattr(former, name) for name in fields})


def forget_rest(state: ProjectState, *, dry_run: bool) -> ForgetReport:
    """Remove all data that is not in the live version; see `Project.forget`."""
    with write_lock(state.directory), state.open_live() as live:
        if live is None:
            raise NoVersionError(
                f"Project {state.name!r} has no version yet",
                name=state.name,
                remedy=Remedy(
                    "delete the project to remove its ledger",
                    "`llama-index-contextual delete {project}` removes its ledger too",
                ),
            )
        if not dry_run:
            AnswerFile(state.directory / ANSWERS_FILE).clear()
            store_skipped(state.directory, ())
            Inbox(state.directory).forget()
            store_downloads(state.directory, {})
        return forget(state.directory, live, dry_run=dry_run)


def publish_repaired(state: ProjectState, live: str, faults: PartFaults) -> Repair:
    """Publish the live version without its damaged parts; see `Project.verify`. The write lock must be held.

    Documents with a damaged picture are left out as well, so that their files are read again.
    """
    directory = version_directory(state.directory, live)
    whole = read_manifest(directory)
    remade = [entry.name for entry in whole.parts if only_derived(faults[entry.name])]
    damaged = [entry.name for entry in whole.parts if without_pictures(faults[entry.name])]
    parts = [name for name in damaged if name not in remade]
    missing = [record for part in parts for record in records_of(state.directory, part, faults)]
    with contextlib.closing(OpenVersion(directory, without=parts, remade=remade)) as previous:
        damaged_ids = set(previous.lost_documents())
        for part in previous.parts:
            if pictures := damaged_pictures(faults[part.entry.name]):
                damaged_ids |= {
                    record.doc_id
                    for record in part.records
                    if any(figure.file_name in pictures for figure in part.figures_of(record.doc_id))
                }
        missing += (record for record in previous.records if record.doc_id in damaged_ids)
        config = _settings_of(whole, state.config)
        manifest = publish_copy(state.directory, config, previous, remove=damaged_ids, keeps=live)
    inputs = inputs_of(missing)
    return Repair(
        version=manifest.version,
        former=live,
        missing={record.doc_id: inputs.get(record.doc_id) for record in missing},
        unnamed=max(0, whole.documents - manifest.documents - len(missing)),
        remade=sum(len(records_of(state.directory, part, faults)) for part in remade),
    )


# ---- settings --------------------------------------------------------------------------------------------------------


def update_config(state: ProjectState, changes: Mapping[str, Any]) -> list[str]:
    """Change settings and return the names of settings that require a new version; see `Project.update_config`."""
    with write_lock(state.directory):
        # Another process may have changed the settings since they were read.
        config = read_config(state.directory).changed(**changes)
        for setting in get_args(ModelSetting):
            if changes.get(setting) is not None:
                missing_for(changes[setting], setting=setting)
        if "backend" in changes:
            check_backend(config)
        if changes.get("embed_model", state.config.embed_model) != state.config.embed_model:
            record_embed_object(state.directory, None)
        write_config(state.directory, config)
        pending = config.rebuild_fields(_built_with(state.directory) or state.config)
        state.reconfigure(config)
    state.warn_of_settings()
    return pending


def _built_with(directory: Path) -> ProjectConfig | None:
    """Return the settings that the live version was built with, or None if there is no readable version."""
    try:
        name = current_name(directory)
        if name is None:
            return None
        return ProjectConfig(**read_manifest(version_directory(directory, name)).config)
    except (CorruptVersionError, FormatError):
        return None
