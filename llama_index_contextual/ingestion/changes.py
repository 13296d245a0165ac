"""The changes of a project, each a function of its state: ingest, sync, remove, forget, repair and settings.

Every change of the documents builds a new version next to the live one, with `run.py`, and publishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args

from llama_index.core.schema import BaseNode

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual._utils.keywords import Option
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    FormatError,
    InputError,
    ModelError,
    NoVersionError,
    Remedy,
)
from llama_index_contextual.index.answers import ANSWERS_FILE, AnswerFile
from llama_index_contextual.index.check import read_manifest
from llama_index_contextual.index.engine import check_backend
from llama_index_contextual.index.forget import ForgetReport, forget
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.project_file import (
    project_ledger,
    read_config,
    record_embed_object,
    write_config,
    write_lock,
)
from llama_index_contextual.index.verify import PartFaults, Repair
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate
from llama_index_contextual.ingestion.executors import Executor
from llama_index_contextual.ingestion.plan import IngestInput, RunOptions
from llama_index_contextual.ingestion.repair import publish_sound
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress, progress_bar
from llama_index_contextual.ingestion.run import arun, preview, remove_documents, rewrite, settings_of
from llama_index_contextual.ingestion.stages import make_stages
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.ingestion.sync import SyncOptions
from llama_index_contextual.models import ModelSetting, contextual_model, missing_for
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.documents import FileMetadata

# ---- options ---------------------------------------------------------------------------------------------------------


class ReadingOptions(TypedDict, total=False):
    """How files are read, and their contexts requested: options of `ingest`, `estimate` and `sync_folders`."""

    moved: Annotated[
        bool,
        Option("The files were moved: a path that ends with the id of a document is that document.", default=False),
    ]
    file_metadata: Annotated[
        FileMetadata | None,
        Option(
            "Function that returns additional metadata for a file path; JSON scalars only. Without it, documents keep"
            " the metadata of earlier calls; `lambda path: {}` removes it."
        ),
    ]
    limits: Annotated[ReadLimits | None, Option("Limits for reading one file.")]
    passwords: Annotated[
        Mapping[str, str] | str | None,
        Option(
            'Passwords of encrypted PDFs: one for all, or one for each path, document id or file name; that of "*" is'
            " for all other files. They are not stored."
        ),
    ]
    batch: Annotated[
        bool,
        Option(
            "Send requests for contexts as batches, which the provider answers within 24 hours at half the price per"
            " token; its prompt cache may be less effective for them. The process may end before that: the same call,"
            " or any later one, fetches the replies.",
            default=False,
        ),
    ]


class RunningOptions(ReadingOptions, total=False):
    """Options of a run that is watched."""

    progress: Annotated[ReportProgress | None, Option("Called with the progress of the run.")]


class IngestOptions(RunningOptions, total=False):
    """Further options of `ingest`."""

    executor: Annotated[
        Literal["local", "ray"],
        Option(
            "Where files are read and cut into chunks, and texts embedded by a model that is not behind an API: in this"
            " process, or on all nodes of a Ray cluster (extra `ray`). Chunks, contexts and vectors are the same. The"
            " project must be on this machine, which is a node of the cluster; all nodes must reach the files by the"
            " same paths, and need the same version of this package.",
            default="local",
        ),
    ]
    address: Annotated[
        str | None,
        Option(
            'Address of the Ray cluster: "auto" for the one that this machine belongs to, HOST:PORT, or "local" to'
            " start Ray on this machine for this call. None takes the environment variable RAY_ADDRESS, then"
            ' "auto", then "local".'
        ),
    ]


class FolderOptions(RunningOptions, total=False):
    """Further options of `sync_folders`."""

    allow_empty: Annotated[
        bool,
        Option(
            "Whether all documents of a folder may be removed. Otherwise this is an error, because a drive that is not"
            " mounted looks like an empty folder.",
            default=False,
        ),
    ]
    allow_many: Annotated[
        bool,
        Option(
            "Whether more than a tenth of the documents of a folder, and more than one, may be removed at once."
            " Otherwise this is an error unless `remove` lists their ids, because a folder that is being restored looks"
            " like this. The version before such a removal is kept as long as the version after it.",
            default=False,
        ),
    ]
    settle: Annotated[
        float,
        Option(
            "Number of seconds to watch the files first; one that changes in that time is probably still being written,"
            " and is left for a later call. A large file must not have changed for a second for every 10 MB.",
            default=0.0,
        ),
    ]
    watching: Annotated[
        bool,
        Option(
            "Whether the caller watches the folders and calls again after every change. Small files are then read"
            " first, and larger ones left for the next call; a file of more than 20 MB is also left for it if other"
            " files change while it is read. `keep_versions` counts the version separately, so that it does not push"
            " the versions of other calls out of the history.",
            default=False,
        ),
    ]


def _run_options(given: ReadingOptions, **more: Any) -> RunOptions:
    names = {field.name for field in dataclasses.fields(RunOptions)}
    values = {name: value for name, value in given.items() if name in names and value is not None}
    return RunOptions(**{**values, **more})


# ---- runs ------------------------------------------------------------------------------------------------------------


async def aingest(
    state: ProjectState,
    inputs: Iterable[IngestInput] | IngestInput,
    options: IngestOptions,
    *,
    show_progress: bool,
    **more: Any,
) -> IngestReport:
    """Add and update documents here or on a Ray cluster; see `Project.ingest`."""
    run, items, progress = _run_options(options, **more), _items(inputs), options.get("progress")
    executor, address = options.get("executor", "local"), options.get("address")
    if executor == "local" and address is None:
        return await achange(state, items, run, show_progress=show_progress, progress=progress)
    on_ray = _on_ray(executor, batch=run.batch)
    models: dict[str, Any] = {"llm": state.llm, "embed_model": state.passed_embed_model}
    elsewhere = partial(ProjectState, state.directory, state.config, **models, model_id=state.model_id)
    with contextlib.ExitStack() as stack:
        if progress is None and show_progress:
            progress = stack.enter_context(progress_bar())
        return await on_ray(
            partial(_achange_elsewhere, elsewhere, items, run),
            address=address,
            models={argument: model for argument, model in models.items() if model is not None},
            project=state.name,
            progress=progress,
        )


async def async_folders(
    state: ProjectState,
    folders: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    options: FolderOptions,
    remove: Collection[str] | bool = True,
    *,
    dry_run: bool,
    show_progress: bool,
    max_cost: float | None,
) -> IngestReport:
    """Bring the documents in step with folders; see `Project.sync_folders`."""
    paths = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    if not paths:
        raise InputError("There is no folder to sync: pass at least one.", value=paths)
    removable = None if remove is True else frozenset([remove] if isinstance(remove, str) else remove or ())
    sync = SyncOptions(
        removable=removable,
        allow_empty=options.get("allow_empty", False),
        allow_many=options.get("allow_many", False) or dry_run or removable is not None,
        settle=options.get("settle", 0.0),
        watching=options.get("watching", False),
        digests=state.digests,
        gave_way=state.gave_way,
    )
    run = _run_options(options, sync=sync, purpose="sync", max_cost=max_cost)
    if dry_run:
        return await asyncio.to_thread(_preview, state, paths, run)
    return await achange(state, paths, run, show_progress=show_progress, progress=options.get("progress"))


def _preview(state: ProjectState, inputs: Sequence[IngestInput], options: RunOptions) -> IngestReport:
    with contextlib.ExitStack() as stack:
        before = state.open_live()
        if before is not None:
            stack.callback(before.close)
        return preview(inputs, options, state.config, before)


async def achange(
    state: ProjectState,
    inputs: Sequence[IngestInput],
    options: RunOptions,
    *,
    show_progress: bool = False,
    progress: ReportProgress | None = None,
    executor: Executor | None = None,
) -> IngestReport:
    """Execute one run, with the project locked and its ledger open."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(write_lock(state.directory))
        # Another program may hold the ledger for a while.
        ledger = await run_to_completion(partial(stack.enter_context, project_ledger(state.directory)))
        before = await asyncio.to_thread(state.version_to_build_on, replace=options.replace)
        if before is not None:
            stack.callback(before.close)
        if progress is None and show_progress:
            progress = stack.enter_context(progress_bar())
        report = await arun(
            inputs,
            options,
            project_dir=state.directory,
            config=state.config,
            make_stages=lambda: state.stages(ledger, state.embed_model if state.config.builds_semantic else None),
            before=before,
            progress=progress,
            executor=executor,
        )
        if report.version is not None:
            await run_to_completion(state.remember_embed_model)
        return report


async def _achange_elsewhere(
    open_state: Callable[[], ProjectState],
    inputs: Sequence[IngestInput],
    options: RunOptions,
    executor: Executor,
    progress: ReportProgress,
) -> IngestReport:
    """Execute a run in another process."""
    return await achange(open_state(), inputs, options, progress=progress, executor=executor)


def _on_ray(executor: str, *, batch: bool) -> Callable[..., Coroutine[Any, Any, IngestReport]]:
    """Return the function that executes a run on a Ray cluster.

    Raises:
        ConfigurationError: Another executor is requested, Ray is not installed, or it cannot be used for this run.
    """
    if executor == "local":
        raise ConfigurationError("`address` is the address of a Ray cluster: pass executor='ray', or omit it.")
    if executor != "ray":
        raise ConfigurationError(f"There is no executor {executor!r}: choose 'local' or 'ray'.", setting="executor")
    if batch:
        raise ConfigurationError(
            "Batches of the provider and Ray exclude each other: a batch is answered within 24 hours, in which the"
            " cluster would wait, and to send it every document is read before the first one is processed",
            setting="batch",
            remedy=Remedy("omit batch or executor='ray'", "omit --batch or --ray"),
        )
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(
            'Ingestion on a cluster needs Ray: pip install "llama-index-contextual[ray]"', setting="executor"
        )
    from llama_index_contextual.ingestion.executors.ray import arun_on_ray

    return arun_on_ray


def estimate_run(
    state: ProjectState, inputs: Iterable[IngestInput] | IngestInput, options: ReadingOptions, **more: Any
) -> CostEstimate:
    """Estimate the cost of a run; see `Project.estimate`."""
    with contextlib.ExitStack() as stack:
        ledger = stack.enter_context(contextlib.closing(Ledger(state.directory / LEDGER_FILE, read_only=True)))
        run, embed_model, items = _run_options(options, **more), state.embed_model_name, _items(inputs)
        before = state.version_to_build_on(replace=run.replace)
        if before is not None:
            stack.callback(before.close)
        passed = state.passed_embed_model
        contextual = contextual_model(embed_model or "") if passed is None else passed
        return estimate(
            items,
            run,
            config=state.config,
            stages=state.stages(ledger, None),
            embed_model=embed_model,
            dimensions=getattr(passed, "dimensions", None),
            before=before,
            sender="batch" if run.batch else state.config.service_tier or "live",
            contextual=contextual if isinstance(contextual, ContextualEmbedding) else None,
        )


def _items(inputs: Iterable[IngestInput] | IngestInput) -> list[IngestInput]:
    if isinstance(inputs, str | os.PathLike | BaseNode) or not isinstance(inputs, Iterable):
        return [inputs]
    return list(inputs)


# ---- documents and versions that go ----------------------------------------------------------------------------------


def remove(state: ProjectState, doc_ids: Sequence[str] | str) -> IngestReport:
    """Publish a version without some documents, and forget cached answers; see `Project.remove`."""
    unwanted = frozenset([doc_ids] if isinstance(doc_ids, str) else doc_ids)
    with write_lock(state.directory), contextlib.ExitStack() as stack:
        before = state.open_live()
        if before is not None:
            stack.callback(before.close)
        report = remove_documents(unwanted, project_dir=state.directory, config=state.config, before=before)
    AnswerFile(state.directory / ANSWERS_FILE).clear()
    return report


def forget_rest(state: ProjectState, *, dry_run: bool) -> ForgetReport:
    """Remove all data that is not in the live version; see `Project.forget`."""
    with write_lock(state.directory):
        live = state.open_live(OpenVersion)  # all files are compared, as the other versions are removed
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
        with contextlib.closing(live):
            if dry_run or not any(part.gone for part in live.parts):
                return forget(state.directory, live, dry_run=dry_run)
            rewritten = rewrite(state.directory, state.config, live)
        with contextlib.closing(OpenVersion(version_directory(state.directory, rewritten))) as live:
            return forget(state.directory, live)


def publish_repaired(state: ProjectState, live: str, faults: PartFaults) -> Repair:
    """Publish the live version without damaged parts; the lock must be held. See `Project.verify`."""
    directory = version_directory(state.directory, live)
    manifest = read_manifest(directory)
    config = settings_of(manifest, state.config)
    embed_model = None
    if manifest.embed_model is not None:
        with contextlib.suppress(ModelError, ConfigurationError):  # its vectors are in the ledger by its name
            embed_model = state.embed_model_of(config.embed_model, manifest.embed_model)
    with project_ledger(state.directory) as ledger:
        stages = make_stages(config, ledger=ledger, llm=state.llm, embed_model=embed_model, model_id=state.model_id)
        stages = dataclasses.replace(stages, embed_model_name=manifest.embed_model)
        repair = publish_sound(directory, faults, config, stages)
    inputs = sorted({path for path in repair.missing.values() if path is not None})
    try:
        return dataclasses.replace(repair, cost=estimate_run(state, inputs, {}).in_short()) if inputs else repair
    except ConfigurationError:  # the embedding model was passed as an object, without which nothing is ingested
        return repair


# ---- settings --------------------------------------------------------------------------------------------------------


def update_config(state: ProjectState, changes: Mapping[str, Any]) -> list[str]:
    """Change settings, and return the names of those that need a new version; see `Project.update_config`."""
    with write_lock(state.directory):
        # Another process may have changed them since they were read.
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
    return pending


def _built_with(directory: Path) -> ProjectConfig | None:
    """Return the settings that the live version was built with; None if there is no readable version."""
    try:
        name = current_name(directory)
        if name is None:
            return None
        return ProjectConfig(**read_manifest(version_directory(directory, name)).config)
    except (CorruptVersionError, FormatError):
        return None
