"""Ingestion on a Ray cluster: tasks on all nodes read files, cut them into chunks, and embed texts.

The run itself stays in the calling process, which handles the plan, the ledger, the account with its limit, the calls
to providers and the new version. Nothing is therefore paid for twice, and `max_cost` applies to the whole cluster. The
calling process receives the documents in the order of the inputs, so chunks, contexts, vectors and their order are the
same as in a local run.

A task changes nothing outside its process, except that it stores pages read by OCR in the ledger, under a key based on
their content. It can therefore be repeated if a worker or its node dies. Documents that are passed as objects or are
processed again because settings have changed are cut in the calling process, because there is no file to read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
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
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual._version import __version__
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.batching import stacked
from llama_index_contextual.errors import ConfigurationError, ContextualError, ModelError, ReadError
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.storable import storable_fault
from llama_index_contextual.ingestion.pipeline import Executor, Stages, cut, make_parsers
from llama_index_contextual.ingestion.plan import Intake
from llama_index_contextual.ingestion.report import ProgressCounter
from llama_index_contextual.models import is_in_process, load_embed_model
from llama_index_contextual.readers import FileRef, ReadLimits
from llama_index_contextual.readers.documents import DocumentReader, FileContent, password_of
from llama_index_contextual.readers.files import printable
from llama_index_contextual.readers.ocr import PageStore

TRIES = 3
"""Maximum number of attempts to read a file or request embeddings if the worker dies."""

_BATCH_FILES = 4
_BATCH_BYTES = 4_000_000
_BATCHES_PER_CPU = 2
_SECONDS_TO_CONNECT = 10.0


# ---- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _File:
    """A file for a worker; its path is absolute, because the worker has a different working directory."""

    ref: FileRef
    password: str | None
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class _Reading:
    """Settings of the tasks that read files.

    Attributes:
        version: Release of the package that the workers must have.
        config: Settings of the project.
        limits: Limits for each file.
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
            is_storable = not storable_fault(content.document)  # if not, the calling process reports the fault
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
    """Store of scanned pages for a worker; uses the ledger through an actor on the project's node."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger

    def page(self, key: str) -> str | None:
        page: str | None = ray.get(self._ledger.page.remote(key))
        return page

    def add_page(self, key: str, page: str, engine: str) -> None:
        ray.get(self._ledger.add_page.remote(key, page, engine))


@dataclass(frozen=True)
class _Model:
    """Embedding model for the workers: its name in the settings, or a reference to an object that was passed."""

    version: str
    setting: str
    passed: ray.ObjectRef[Any] | None


def _embed(model: _Model, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of texts; runs in a worker."""
    _require_version(model.version)
    return stacked(_opened(model).get_text_embedding_batch(texts))


@lru_cache(maxsize=1)
def _opened(model: _Model) -> BaseEmbedding:
    """Load an embedding model, once in each worker."""
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
    "max_retries": 0,  # Ray would endlessly repeat a task that runs out of memory
    "scheduling_strategy": "SPREAD",
}
_READ = ray.remote(_read).options(**_OPTIONS)
_EMBED = ray.remote(_embed).options(**_OPTIONS)


# ---- executor --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ray_executor(
    address: str | None, *, ledger: Path, embed_model: BaseEmbedding | None
) -> AsyncIterator[Executor]:
    """Connect to a cluster, unless this process is already connected to one, and provide its executor.

    Args:
        address: Address of the cluster, as for `ray.init`; None selects the cluster that this process is connected to,
            the one in the environment variable RAY_ADDRESS, or the one on this machine, or starts Ray on this machine.
        ledger: The project's ledger.
        embed_model: Embedding model that was passed as an object, or None.

    Raises:
        ConfigurationError: The cluster cannot be reached.
    """
    by_client = (address or os.environ.get("RAY_ADDRESS", "")).startswith("ray://")
    if by_client or ray.util.client.ray.is_connected():  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            "Ray's client (ray://) works from outside of the cluster, but the project's files and its ledger must be"
            " on one of its nodes: run `ray start --address=HOST:PORT` on this machine, and use the address 'auto'.",
            setting="address",
        )
    is_ours = not ray.is_initialized()
    try:
        if is_ours:
            await asyncio.to_thread(_require_open, address or os.environ.get("RAY_ADDRESS", ""))
            # If Ray is started here, it reports no usage statistics unless the user enabled them.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            connect = partial(ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR)
            try:
                await run_to_completion(connect)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _unreachable(address or "this machine", error) from error
        yield await asyncio.to_thread(RayExecutor, ledger, embed_model)
    finally:
        if is_ours:
            await run_to_completion(ray.shutdown)


def _require_open(address: str) -> None:
    """Check that the port of an address can be reached; Ray itself would keep trying for 15 minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" or "local", or an address that Ray reports as invalid
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


class RayExecutor(Executor):
    """Executor that reads, cuts and embeds documents in tasks on all nodes.

    Args:
        ledger: The project's ledger.
        embed_model: Embedding model that was passed as an object, or None.
    """

    def __init__(self, ledger: Path, embed_model: BaseEmbedding | None) -> None:
        cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._ledger, self._passed = ledger.absolute(), embed_model
        self.batches_ahead = max(1, int(cluster.get("CPU", 1)))

    def reader(
        self, intake: Intake, config: ProjectConfig, page_store: PageStore, progress: ProgressCounter
    ) -> RayReader:
        """Return the reader for the files of a run; it reads several files together and does not report pages."""
        here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
        pages: Any = None
        if config.ocr is not None:
            pages = ray.remote(Ledger).options(num_cpus=0, scheduling_strategy=here).remote(self._ledger)
        settings = _Reading(__version__, config, intake.options.limits, pages)
        return RayReader(settings, intake, progress, ahead=_BATCHES_PER_CPU * self.batches_ahead)

    def place(self, stages: Stages) -> Stages:
        """Return stages whose model runs in the workers; a provider's model is called and booked by this process.

        Raises:
            ConfigurationError: The model cannot be sent to another process.
        """
        model, name = stages.embed_model, stages.embed_model_name
        if model is None or name is None or not is_in_process(name):
            return stages
        passed = None if self._passed is None else _sent(self._passed)
        return replace(stages, embed_model=_WorkerEmbedding.of(model, _Model(__version__, name, passed)))


class RayReader:
    """Reader that reads and cuts batches of files in tasks; a file that kills its worker is reported.

    Args:
        settings: Settings of the tasks.
        intake: Documents of the call.
        progress: Counter of the finished work.
        ahead: Number of batches that are read concurrently.
    """

    def __init__(self, settings: _Reading, intake: Intake, progress: ProgressCounter, *, ahead: int) -> None:
        self._pages, self._settings = settings.pages, ray.put(settings)
        self._intake, self._progress, self._ahead = intake, progress, ahead
        self._running: set[ray.ObjectRef[Any]] = set()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the tasks that are still running after an error or an interruption."""
        self._is_closed = True
        for task in list(self._running):
            ray.cancel(task, force=True)
        if self._pages is not None:
            ray.kill(self._pages)

    def read_all(self, refs: Iterable[FileRef]) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        """Read files and yield the content and chunks of each in order, or the error.

        Raises:
            ConfigurationError: A node has a different version of the package.
        """
        waiting: deque[tuple[list[FileRef], list[_File], ray.ObjectRef[Any]]] = deque()
        for batch in _batches(refs):
            files = [self._file(ref) for ref in batch]
            waiting.append((batch, files, self._start(files)))
            if len(waiting) > self._ahead:
                yield from self._next(*waiting.popleft())
        while waiting:
            yield from self._next(*waiting.popleft())

    def _next(
        self, batch: Sequence[FileRef], files: Sequence[_File], task: ray.ObjectRef[Any]
    ) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        self._progress.reading(printable(batch[0].path.name))
        yield from zip(batch, self._contents(files, task), strict=True)

    def _file(self, ref: FileRef) -> _File:
        # Device numbers differ between nodes, so they cannot be used to detect a replaced file.
        there = replace(ref, path=Path(os.path.abspath(ref.path)), identity=None)
        password = password_of(ref, self._intake.options.passwords)
        return _File(there, password, self._intake.facts.get(str(ref.path), {}))

    def _start(self, files: Sequence[_File]) -> ray.ObjectRef[Any]:
        task = _READ.remote(self._settings, files)
        self._running.add(task)
        return task

    def _contents(
        self, files: Sequence[_File], task: ray.ObjectRef[Any], attempt: int = 1
    ) -> list[FileContent | ReadError]:
        """Return the contents of a batch; if its worker dies, each file is read again in a separate task."""
        try:
            result: list[FileContent | ReadError] = ray.get(task)
        except RayError as error:
            reason = _reason(error)
            if self._is_closed or not isinstance(reason, _WorkerDied):
                raise reason from error
        else:
            return result
        finally:
            self._running.discard(task)
        if attempt == TRIES:
            ended = f"ended each of the {TRIES} worker processes that read it ({reason}): leave it out or repair it"
            return [ReadError(file.ref.shown, ended) for file in files]
        alone = [([file], self._start([file])) for file in files]
        return [content for one, again in alone for content in self._contents(one, again, attempt + 1)]


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
    """Embedding model that embeds texts in tasks."""

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
        for _ in range(TRIES):
            try:
                rows: list[list[float]] = (await _EMBED.remote(self._model, texts)).tolist()
            except RayError as error:
                reason = _reason(error)
                if not isinstance(reason, _WorkerDied):
                    raise reason from error
            else:
                return rows
        raise ModelError(
            f"{self._model.setting!r} ended each of the {TRIES} worker processes that embedded the same {len(texts)}"
            f" texts ({reason}): give the Ray nodes more memory, or lower embed_batch_size.",
            setting="embed_model",
        )

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_query_embedding(self, query: str) -> list[float]:
        raise NotImplementedError("an ingestion embeds no queries")

    def _get_text_embedding(self, text: str) -> list[float]:
        raise NotImplementedError("an ingestion embeds asynchronously")


class _WorkerDied(Exception):
    """A worker process or its node died, or a result was lost as a consequence."""


def _reason(error: RayError) -> Exception:
    """Return the exception that a task raised, or `_WorkerDied` if it could not finish."""
    if "No module named 'llama_index_contextual" in str(error):
        return ConfigurationError(
            f"A node of the Ray cluster cannot import llama_index_contextual: install llama-index-contextual"
            f" {__version__} with the same extras on all nodes."
        )
    if not isinstance(error, RayTaskError):
        return _WorkerDied(type(error).__name__)
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, ContextualError) else error


def _sent(model: BaseEmbedding) -> ray.ObjectRef[Any]:
    """Check that a model can be sent to another process without loss, and return a reference to it."""
    kind = type(model).__name__
    refused = f"{kind}, passed as embed_model=, cannot be sent to the processes of Ray"
    advice = f"name it in the settings instead of passing embed_model=, or give {kind} a working __reduce__"
    try:
        ray.cloudpickle.dumps(model)  # type: ignore[no-untyped-call]
    except Exception as error:  # the user's class may raise anything, and Ray would print it, perhaps with a key
        fault = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise ConfigurationError(f"{refused} ({fault}): {advice}.", setting="embed_model") from error
    sent = ray.put(model)
    # LlamaIndex silently omits attributes that cannot be pickled.
    if lost := sorted(_attributes(model) - _attributes(ray.get(sent))):
        raise ConfigurationError(
            f"{refused}: its attribute {lost[0]!r} is lost on the way; {advice}.", setting="embed_model"
        )
    return sent


def _attributes(model: object) -> set[str]:
    return {*getattr(model, "__dict__", ()), *(getattr(model, "__pydantic_private__", None) or ())}
