"""Ingestion on a Ray cluster.

    the calling process ──▶ one actor on the same node ──▶ tasks on all nodes
    connects to Ray,        the whole run: plan, ledger,    read files and cut them into chunks, a batch of
    shows the progress      account, limits, all calls      whole documents at a time; embed texts, if the
                            to providers, the new version   model runs in their process

The actor opens the ledger once and works on one event loop, so nothing is paid for twice and `max_cost` holds for the
whole cluster. It receives the documents in the order of the call, and processes them as a local run does: chunks,
contexts, vectors and their order are the same. A task changes nothing outside its process, except that it stores pages
that it has read by OCR, under a key of their content; so it can be repeated when a worker or its node dies. If the
actor dies, so do its tasks; the live version is not affected, and the ledger lacks the calls in flight at most.

Documents that are passed as objects, and those that are processed again because settings have changed, are cut in the
actor: there is no file to read.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import ray
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray
from pydantic import PrivateAttr
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual._version import __version__
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.batching import stacked
from llama_index_contextual.errors import ConfigurationError, ContextualError, ModelError, ProjectError, ReadError
from llama_index_contextual.index.storable import storable_fault
from llama_index_contextual.ingestion.executors import Executor
from llama_index_contextual.ingestion.plan import Intake, RunOptions
from llama_index_contextual.ingestion.report import IngestProgress, IngestReport, ReportProgress
from llama_index_contextual.ingestion.stages import Stages, cut, make_parsers
from llama_index_contextual.models import is_in_process, load_embed_model
from llama_index_contextual.readers import FileRef, ReadLimits
from llama_index_contextual.readers.base import user_facts
from llama_index_contextual.readers.discovery import printable
from llama_index_contextual.readers.documents import DocumentReader, FileContent, FileMetadata, password_of
from llama_index_contextual.readers.ocr import PageStore

Run = Callable[[Executor, ReportProgress], Awaitable[IngestReport]]
"""A run that needs only its executor, and a function that receives its progress; it is sent to the actor."""

TRIES = 3
"""Number of times that a file is read if the worker that reads it dies, and that a request for embeddings is made."""

_BATCH_FILES = 4
_BATCH_BYTES = 4_000_000
_BATCHES_PER_CPU = 2
_SECONDS_TO_STOP = 60.0
_SECONDS_TO_CONNECT = 10.0


# ---- Tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """A file for a worker, which has another working directory: its path is absolute."""

    ref: FileRef
    password: str | None
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class _Reading:
    """Settings of the tasks that read files.

    Attributes:
        version: Release of the package that the workers must have.
        config: Settings of the project.
        limits: Limits of each file.
        pages: Actor that stores scanned pages, or None.
    """

    version: str
    config: ProjectConfig
    limits: ReadLimits
    pages: Any


def _read(settings: _Reading, files: Sequence[_File]) -> list[FileContent | ReadError]:
    """Return the content of files with their chunks, or their errors; runs in a worker."""
    _require_version(settings.version)
    config, parsers = settings.config, make_parsers(settings.config)
    facts = {str(file.ref.path): file.facts for file in files}
    passwords = {str(file.ref.path): file.password for file in files if file.password is not None}
    contents: list[FileContent | ReadError] = []
    with DocumentReader(
        limits=settings.limits,
        passwords=passwords,
        pdf_engine=config.pdf_engine,
        file_metadata=facts.get,
        ocr=config.ocr,
        page_store=None if settings.pages is None else _RemotePages(settings.pages),
    ) as reader:
        for file in files:
            try:
                content = reader.read(_present(file.ref))
            except ReadError as error:
                contents.append(error)
                continue
            is_storable = not storable_fault(content.document)  # otherwise, the actor reports the fault
            contents.append(content._replace(chunks=cut(content.document, parsers)) if is_storable else content)
    return contents


def _present(ref: FileRef) -> FileRef:
    if not os.path.lexists(ref.path):
        raise ReadError(
            ref.shown,
            f"does not exist on the Ray node {_node()}: put it into a folder that all nodes reach by the same path",
        )
    return ref


class _RemotePages:
    """Store of scanned pages for a worker: the ledger of the actor."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def page(self, key: str) -> str | None:
        page: str | None = ray.get(self._owner.page.remote(key))
        return page

    def add_page(self, key: str, page: str, engine: str) -> None:
        ray.get(self._owner.add_page.remote(key, page, engine))


@dataclass(frozen=True)
class _Model:
    """Embedding model for the workers: its name in the settings, or a reference to the object that was passed."""

    version: str
    setting: str
    passed: ray.ObjectRef[Any] | None


def _embed(model: _Model, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of texts; runs in a worker."""
    _require_version(model.version)
    return stacked(_opened(model).get_text_embedding_batch(texts))


@lru_cache(maxsize=1)
def _opened(model: _Model) -> BaseEmbedding:
    """Return an embedding model, which each worker opens once."""
    opened: BaseEmbedding = load_embed_model(model.setting) if model.passed is None else ray.get(model.passed)
    return opened


def _require_version(version: str) -> None:
    if version != __version__:
        raise ConfigurationError(
            f"The Ray node {_node()} has llama-index-contextual {__version__}, this process"
            f" {version}: install the same version on all nodes."
        )


def _node() -> str:
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


_OPTIONS: dict[str, Any] = {
    "num_cpus": 1,
    "max_retries": 0,  # Ray would repeat a task that runs out of memory without end
    "scheduling_strategy": "SPREAD",
}
_READ = ray.remote(_read).options(**_OPTIONS)
_EMBED = ray.remote(_embed).options(**_OPTIONS)


# ---- Executor, in the actor ------------------------------------------------------------------------------------------


class RayExecutor:
    """Executor whose documents are read, cut and embedded by tasks on all nodes; lives in the actor.

    Args:
        owner: Handle of the actor.
        passed: Reference to the embedding model if it was passed as an object, or None.

    Attributes:
        page_store: Store of scanned pages of the run, or None before the run reads files.
    """

    def __init__(self, owner: Any, passed: ray.ObjectRef[Any] | None) -> None:
        self._owner, self._passed = owner, passed
        cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._cpus = max(1, int(cluster.get("CPU", 1)))
        self.page_store: PageStore | None = None

    @property
    def batches_ahead(self) -> int:
        """Number of batches whose texts keep the CPUs of the cluster busy."""
        return self._cpus

    def make_reader(
        self,
        options: RunOptions,
        config: ProjectConfig,
        intake: Intake,
        *,
        page_store: PageStore | None = None,
        on_file: Callable[[str], None] | None = None,
        on_page: Callable[[int, int], None] | None = None,
    ) -> RayReader:
        """Return the reader for the files of a run, which does not report pages: it reads files together."""
        self.page_store = page_store
        settings = _Reading(__version__, config, options.limits, None if page_store is None else self._owner)
        return RayReader(
            settings,
            passwords=options.passwords,
            file_metadata=options.file_metadata or intake.facts.get,
            on_file=on_file,
            ahead=_BATCHES_PER_CPU * self._cpus,
        )

    def place(self, stages: Stages) -> Stages:
        """Return stages whose model runs in the workers; a provider's model is called by the actor, which books it."""
        model, name = stages.embed_model, stages.embed_model_name
        if model is None or name is None or not is_in_process(name):
            return stages
        return replace(stages, embed_model=_WorkerEmbedding.of(model, _Model(__version__, name, self._passed)))


class RayReader:
    """Reader of files that reads and cuts batches of them in tasks; a file that kills its worker is reported.

    Args:
        settings: Settings of the tasks.
        passwords: Passwords of encrypted PDFs.
        file_metadata: Returns the user's own metadata of a file; it is called in this process.
        on_file: Called with the name of each file whose turn it is.
        ahead: Number of batches that are read at the same time.
    """

    def __init__(
        self,
        settings: _Reading,
        *,
        passwords: Mapping[str, str] | str | None,
        file_metadata: FileMetadata,
        on_file: Callable[[str], None] | None,
        ahead: int,
    ) -> None:
        self._settings = ray.put(settings)
        self._passwords, self._file_metadata, self._on_file = passwords, file_metadata, on_file
        self._ahead = ahead
        self._running: set[ray.ObjectRef[Any]] = set()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the tasks that are still running after an error or an interruption."""
        self._is_closed = True
        for task in list(self._running):
            ray.cancel(task, force=True)

    def read_all(self, refs: Iterable[FileRef]) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        """Read files and yield the content of each with its chunks in order, or the error.

        Raises:
            InputError: `file_metadata` returned something that cannot be stored.
            ConfigurationError: A node does not have the package in the same version.
        """
        waiting: deque[tuple[list[FileRef], list[_File], ray.ObjectRef[Any]]] = deque()
        for batch in _batches(refs):
            files = [self._file(ref) for ref in batch]
            waiting.append((batch, files, self._start(files)))
            if len(waiting) > self._ahead:
                yield from self._next(*waiting.popleft())
        while waiting:
            yield from self._next(*waiting.popleft())

    def _file(self, ref: FileRef) -> _File:
        # A device can have another number on another node, so a replaced file is not recognised by it.
        there = replace(ref, path=Path(os.path.abspath(ref.path)), identity=None)
        return _File(there, password_of(ref, self._passwords), user_facts(self._file_metadata, ref.path))

    def _next(
        self, batch: Sequence[FileRef], files: Sequence[_File], task: ray.ObjectRef[Any]
    ) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        contents = self._contents(files, task)
        for ref in batch:
            if self._on_file is not None:
                self._on_file(printable(ref.path.name))
            yield ref, next(contents)

    def _contents(self, files: Sequence[_File], task: ray.ObjectRef[Any]) -> Iterator[FileContent | ReadError]:
        """Yield the contents of a batch; if its worker dies, each file is read in a task of its own."""
        try:
            yield from self._result(task)
        except _WorkerDied:
            alone = [[file] for file in files]
            for one, first in zip(alone, [self._start(one) for one in alone], strict=True):
                yield self._alone(one, first)

    def _alone(self, file: Sequence[_File], task: ray.ObjectRef[Any]) -> FileContent | ReadError:
        for attempt in itertools.count(2):  # the first one was in a batch
            try:
                return self._result(task)[0]
            except _WorkerDied as died:
                if attempt == TRIES:
                    reason = (
                        f"ended each of the {TRIES} worker processes that read it ({died}): leave it out or repair it"
                    )
                    return ReadError(file[0].ref.shown, reason)
            task = self._start(file)
        raise AssertionError  # not reached

    def _start(self, files: Sequence[_File]) -> ray.ObjectRef[Any]:
        task = _READ.remote(self._settings, files)
        self._running.add(task)
        return task

    def _result(self, task: ray.ObjectRef[Any]) -> list[FileContent | ReadError]:
        try:
            result: list[FileContent | ReadError] = ray.get(task)
        except RayError as error:
            if self._is_closed:
                raise TaskCancelledError from error
            raise _reason(error) from error
        finally:
            self._running.discard(task)
        return result


def _batches(refs: Iterable[FileRef]) -> Iterator[list[FileRef]]:
    batch: list[FileRef] = []
    for ref in refs:
        batch.append(ref)
        if len(batch) == _BATCH_FILES or sum(one.size for one in batch) >= _BATCH_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


class _WorkerEmbedding(BaseEmbedding):
    """Embedding model whose texts are embedded by tasks."""

    dimensions: int | None = None

    _model: _Model = PrivateAttr()

    @classmethod
    def of(cls, model: BaseEmbedding, there: _Model) -> _WorkerEmbedding:
        placed = cls(
            model_name=model.model_name,
            embed_batch_size=model.embed_batch_size,
            dimensions=getattr(model, "dimensions", None),
        )
        placed._model = there
        return placed

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        for attempt in itertools.count(1):
            try:
                rows: list[list[float]] = (await _EMBED.remote(self._model, texts)).tolist()
            except RayError as error:
                reason = _reason(error)
                if not isinstance(reason, _WorkerDied):
                    raise reason from error
                if attempt == TRIES:
                    raise ModelError(
                        f"{self._model.setting!r} ended each of the {TRIES} worker processes that embedded the same"
                        f" {len(texts)} texts ({reason}): give the Ray nodes more memory, or lower embed_batch_size.",
                        setting="embed_model",
                    ) from error
            else:
                return rows
        raise AssertionError  # not reached

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_query_embedding(self, query: str) -> list[float]:
        raise NotImplementedError("an ingestion embeds no queries")

    def _get_text_embedding(self, text: str) -> list[float]:
        raise NotImplementedError("an ingestion embeds asynchronously")


class _WorkerDied(Exception):
    """A worker process or its node died, or a result was lost with it."""


def _reason(error: RayError) -> Exception:
    """Return the exception that a task or the actor raised, or `_WorkerDied` if it could not finish."""
    if isinstance(error, TaskCancelledError):
        return error
    if "No module named 'llama_index_contextual" in str(error):
        return ConfigurationError(
            f"A node of the Ray cluster cannot import llama_index_contextual: install llama-index-contextual"
            f" {__version__} with the same extras on all nodes."
        )
    if not isinstance(error, RayTaskError):
        return _WorkerDied(type(error).__name__)
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, ContextualError) else error


# ---- Actor -----------------------------------------------------------------------------------------------------------


class Owner:
    """Actor that executes one run.

    Args:
        directory: Working directory of the calling process.
        environment: Environment of the calling process, which has the keys of the models.
    """

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        os.chdir(directory)
        os.environ.update(environment)
        self._executor: RayExecutor | None = None
        self._state: IngestProgress | None = None
        self._changed = asyncio.Event()
        self._has_ended = False

    async def run(self, run: Run, passed: Sequence[ray.ObjectRef[Any]]) -> IngestReport:
        """Execute the run."""
        self._loop = asyncio.get_running_loop()
        try:
            owner = ray.get_runtime_context().current_actor
            self._executor = await asyncio.to_thread(RayExecutor, owner, passed[0] if passed else None)
            return await run(self._executor, self._report)
        finally:
            self._has_ended = True
            self._changed.set()

    def _report(self, state: IngestProgress) -> None:
        self._state = state
        self._loop.call_soon_threadsafe(self._changed.set)

    async def progress(self) -> IngestProgress | None:
        """Return the progress when it has changed since the last call, and at once when the run has ended."""
        await self._changed.wait()
        if not self._has_ended:  # the caller may ask again before it receives the report
            self._changed.clear()
        return self._state

    async def page(self, key: str) -> str | None:
        """Return a scanned page, or None."""
        return None if self._pages is None else await asyncio.to_thread(self._pages.page, key)

    async def add_page(self, key: str, page: str, engine: str) -> None:
        """Store a scanned page; it is on disk when this returns."""
        if self._pages is not None:
            await asyncio.to_thread(self._pages.add_page, key, page, engine)

    @property
    def _pages(self) -> PageStore | None:
        return None if self._executor is None else self._executor.page_store


# ---- Calling process -------------------------------------------------------------------------------------------------


async def arun_on_ray(
    run: Run,
    *,
    address: str | None,
    models: Mapping[str, object],
    project: str,
    progress: ReportProgress | None,
) -> IngestReport:
    """Execute a run in an actor on this node of a cluster.

    Args:
        run: The run.
        address: Address of the cluster, as for `ray.init`; None selects the cluster that this process is connected to,
            the one of the environment variable RAY_ADDRESS, the one on this machine, or starts Ray on this machine.
        models: Models that were passed as objects, by the name of their argument.
        project: Name of the project, for error messages.
        progress: Called with the progress of the run.

    Raises:
        ConfigurationError: The cluster cannot be reached, or a model cannot be sent to another process.
        ProjectError: The actor died.
    """
    async with _connected(address):
        passed = await asyncio.to_thread(_sent, models)
        if fault := await asyncio.to_thread(_fault_of, run):
            raise ConfigurationError(
                f"The arguments cannot be sent to the processes of Ray ({fault}): pass a `file_metadata` and Documents"
                f" that can be pickled."
            )
        here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
        actor: Any = ray.remote(Owner)
        actor = actor.options(num_cpus=0, max_restarts=0, max_task_retries=0, scheduling_strategy=here)
        owner = actor.remote(os.getcwd(), _environment())
        running = owner.run.remote(run, passed)
        try:
            return await _awaited(running) if progress is None else await _shown(owner, running, progress)
        except RayError as error:
            reason = _reason(error)
            if isinstance(reason, _WorkerDied):
                raise ProjectError(
                    f"The Ray actor that wrote to project {project!r} died ({reason}). Nothing is published, and the"
                    f" ledger keeps the contexts and embeddings received: run the same call again to continue.",
                    name=project,
                ) from error
            raise reason from error
        except BaseException:
            ray.cancel(running)
            await run_to_completion(partial(ray.wait, [running], timeout=_SECONDS_TO_STOP))
            raise
        finally:
            ray.kill(owner)


async def _shown(owner: Any, running: ray.ObjectRef[Any], progress: ReportProgress) -> IngestReport:
    """Report the progress of a run until it ends, and return its report."""
    end = asyncio.ensure_future(_awaited(running))
    shown = None
    try:
        while not end.done():
            # Also returns when the run ends.
            if (state := await owner.progress.remote()) is not None and state != shown:
                progress(shown := state)
    except RayError:
        await asyncio.wait([end])  # the actor died, and with it the run
    except BaseException:
        end.cancel()
        raise
    return end.result()


async def _awaited(running: ray.ObjectRef[Any]) -> IngestReport:
    report: IngestReport = await running
    return report


@asynccontextmanager
async def _connected(address: str | None) -> AsyncIterator[None]:
    """Connect to a cluster, unless this process is connected to one."""
    by_client = (address or os.environ.get("RAY_ADDRESS", "")).startswith("ray://")
    if by_client or ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "Ray's client (ray://) works from outside of the cluster, but the project's files and its ledger must be"
            " on one of its nodes: run `ray start --address=HOST:PORT` on this machine, and use the address 'auto'.",
            setting="address",
        )
    if ray.is_initialized():
        yield
        return
    await asyncio.to_thread(_require_open, address or os.environ.get("RAY_ADDRESS", ""))
    # A Ray that is started here reports no usage statistics unless the user wants that.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    connect = partial(ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        try:
            await run_to_completion(connect)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _unreachable(address or "this machine", error) from error
        yield
    finally:
        await run_to_completion(ray.shutdown)


def _require_open(address: str) -> None:
    """Check that the port of an address can be reached: Ray itself would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" or "local", or Ray says what is wrong with it
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"Ray cannot be reached at {address!r} ({' '.join(str(error).split())[:300]}): start it with"
        f" `ray start --head`, or join a cluster with `ray start --address=HOST:PORT`.",
        setting="address",
    )


def _environment() -> dict[str, str]:
    """Return the environment for the actor; as an argument, because Ray logs the variables of a `runtime_env`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "CUDA_"))}


def _sent(models: Mapping[str, object]) -> list[ray.ObjectRef[Any]]:
    """Check that models survive being sent to another process, and return a reference to the embedding model."""
    sent = {}
    for argument, model in models.items():
        kind = type(model).__name__
        advice = f"name it in the settings instead of passing {argument}=, or give {kind} a working __reduce__"
        if fault := _fault_of(model):
            raise ConfigurationError(
                f"{kind}, passed as {argument}=, cannot be sent to the processes of Ray ({fault}): {advice}.",
                setting=argument,
            )
        sent[argument] = ray.put(model)
        # LlamaIndex leaves out attributes that cannot be pickled, and creates the copy without them.
        if lost := sorted(_attributes(model) - _attributes(ray.get(sent[argument]))):
            raise ConfigurationError(
                f"{kind}, passed as {argument}=, cannot be sent to the processes of Ray: its attribute {lost[0]!r} is"
                f" lost on the way; {advice}.",
                setting=argument,
            )
    return [sent["embed_model"]] if "embed_model" in sent else []


def _fault_of(value: object) -> str:
    """Return the reason why a value cannot be pickled; Ray itself would print it, perhaps with the key of a model."""
    try:
        ray.cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - the class of the user may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


def _attributes(model: object) -> set[str]:
    return {*getattr(model, "__dict__", ()), *(getattr(model, "__pydantic_private__", None) or ())}
