"""Ingestion on a Ray cluster: tasks on all nodes read files, cut them into chunks, and embed texts.

The run itself stays in the calling process, which handles the plan, the ledger, the account with its limit, the calls
to providers and the new version. Therefore nothing is paid for twice, and `max_cost` applies to the whole cluster. The
calling process receives the documents in the order of the inputs, so chunks, contexts and vectors, and their order, are
the same as in a local run.

A task has no effects outside its process, so it can be repeated if a worker or its node dies. Documents that are passed
as objects, or processed again because settings have changed, are cut in the calling process, because there is no file
to read.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
from llama_index.core.base.embeddings.base import BaseEmbedding
from numpy.typing import NDArray
from pydantic import PrivateAttr
from ray.exceptions import RayError, RayTaskError, TaskCancelledError

from llama_index_contextual._utils.calls import run_to_completion
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.batching import as_matrix
from llama_index_contextual.embeddings.contextual import BatchEmbedding
from llama_index_contextual.errors import ConfigurationError, ContextualError, ModelError, ReadError
from llama_index_contextual.ingestion.pipeline import Executor, Pipeline, cut, make_parsers
from llama_index_contextual.ingestion.plan import Inputs
from llama_index_contextual.ingestion.report import ProgressCounter
from llama_index_contextual.metadata import storable_fault
from llama_index_contextual.models import load_embed_model
from llama_index_contextual.money.price import is_in_process
from llama_index_contextual.readers import FileRef, ReadLimits
from llama_index_contextual.readers.documents import DocumentReader, FileContent, password_of
from llama_index_contextual.readers.files import printable
from llama_index_contextual.readers.ocr import PageStore

TRIES = 3
"""Maximum number of attempts to read a file or embed texts if the worker dies."""

_GROUP_FILES = 4
_GROUPS_PER_CPU = 2

PageRows = list[tuple[str, str, str]]
"""Key, text and OCR engine of each scanned page."""


# ---- tasks -----------------------------------------------------------------------------------------------------------


class _NewPages:
    """Temporary store, in a worker, for scanned pages that the calling process then adds to the ledger."""

    def __init__(self) -> None:
        self.pages: PageRows = []

    def page(self, key: str) -> str | None:
        return None

    def add_page(self, key: str, page: str, engine: str) -> None:
        self.pages.append((key, page, engine))


def _read_files(
    config: ProjectConfig,
    limits: ReadLimits,
    files: Sequence[tuple[FileRef, str | None, Mapping[str, Any]]],
) -> tuple[list[FileContent | ReadError], PageRows]:
    """Read files, each listed with its password and metadata. This function runs in a worker.

    Returns:
        The contents with their chunks, or the errors; and the pages read by OCR.
    """
    parsers, store = make_parsers(config), _NewPages()
    facts = {str(ref.path): facts for ref, _, facts in files}
    contents: list[FileContent | ReadError] = []
    with DocumentReader(
        limits=limits,
        passwords={str(ref.path): password for ref, password, _ in files if password is not None},
        pdf_engine=config.pdf_engine,
        file_metadata=facts.get,
        ocr=config.ocr,
        figures=config.figures,
        page_store=store,
    ) as reader:
        for ref, _, _ in files:
            try:
                content = reader.read(ref)
            except ReadError as error:
                contents.append(error)
                continue
            is_storable = not storable_fault(content.document)  # otherwise, the calling process reports the fault
            contents.append(content._replace(chunks=cut(content.document, parsers)) if is_storable else content)
    return contents, store.pages


def _embed(setting: str, references: tuple[ray.ObjectRef[Any], ...], texts: list[str]) -> NDArray[np.float32]:
    """Embed texts and return their vectors. This function runs in a worker."""
    return as_matrix(_worker_model(setting, references).get_text_embedding_batch(texts))


@lru_cache(maxsize=1)
def _worker_model(setting: str, references: tuple[ray.ObjectRef[Any], ...]) -> BaseEmbedding:
    """Return the embedding model, which is loaded once per worker.

    Args:
        setting: Value of the `embed_model` setting.
        references: Tuple with a reference to the model if it was passed as an object, otherwise empty.
    """
    model: BaseEmbedding = ray.get(references[0]) if references else load_embed_model(setting)
    return model


_OPTIONS: dict[str, Any] = {
    "num_cpus": 1,
    "max_retries": 0,  # Ray would endlessly repeat a task that runs out of memory
    "scheduling_strategy": "SPREAD",
}
_READ = ray.remote(_read_files).options(**_OPTIONS)
_EMBED = ray.remote(_embed).options(**_OPTIONS)


class _WorkerDied(Exception):
    """A worker process or its node died, or a result was lost as a consequence."""


def _task_result(task: ray.ObjectRef[Any]) -> Any:
    """Wait for a task and return its result.

    Raises:
        _WorkerDied: The task did not finish.
    """
    try:
        return ray.get(task)
    except (RayTaskError, TaskCancelledError) as error:
        cause = getattr(error, "cause", None)
        raise cause if isinstance(cause, ContextualError) else error from error
    except RayError as error:
        raise _WorkerDied(type(error).__name__) from error


# ---- executor --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ray_executor(address: str, embed_model: BaseEmbedding | None) -> AsyncIterator[Executor]:
    """Provide the executor for a cluster, and connect to it unless this process is already connected.

    Args:
        address: Address of the cluster, as for `ray.init`.
        embed_model: Embedding model that was passed as an object, or None.

    Raises:
        ConfigurationError: The cluster cannot be reached.
    """
    if address.startswith("ray://"):
        raise ConfigurationError(
            "Ray's client (ray://) works from outside of the cluster, but this machine must be one of its nodes: run"
            " `ray start --address=HOST:PORT` on it, and use the address 'auto'.",
            setting="ray",
        )
    is_ours = not ray.is_initialized()
    try:
        if is_ours:
            # If Ray is started here, it reports no usage statistics unless the user enabled them.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            connect = partial(ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR)
            try:
                await run_to_completion(connect)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigurationError(
                    f"Ray cannot be reached at {address!r} ({error}): start it with"
                    f" `ray start --head`, or join a cluster with `ray start --address=HOST:PORT`.",
                    setting="ray",
                ) from error
        yield await asyncio.to_thread(RayExecutor, embed_model)
    finally:
        if is_ours:
            await run_to_completion(ray.shutdown)


class RayExecutor(Executor):
    """Executor that reads, cuts and embeds documents in tasks on all nodes.

    Args:
        embed_model: Embedding model that was passed as an object, or None.
    """

    def __init__(self, embed_model: BaseEmbedding | None) -> None:
        cluster: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._passed = embed_model
        self.groups_ahead = max(1, int(cluster.get("CPU", 1)))

    def reader(
        self, inputs: Inputs, config: ProjectConfig, page_store: PageStore, progress: ProgressCounter
    ) -> RayReader:
        """Return the reader for a run, which reads files in groups and does not report the number of pages read."""
        return RayReader(inputs, config, page_store, progress, ahead=_GROUPS_PER_CPU * self.groups_ahead)

    def embed_model(self, pipeline: Pipeline) -> BaseEmbedding | None:
        """Return the embedding model of a run, which runs in the workers if it does not use an API.

        APIs are called only from this process.
        """
        model, name = pipeline.embed_model, pipeline.embed_model_name
        if model is None or name is None or not is_in_process(name):
            return model
        references = () if self._passed is None else (ray.put(self._passed),)
        return _WorkerEmbedding.wrap(model, partial(_EMBED.remote, name, references))


class RayReader:
    """Reader that reads and cuts groups of files in tasks, and reports files that repeatedly crash their worker.

    Args:
        inputs: Inputs of the call.
        config: Settings of the project.
        page_store: Store of pages read by OCR.
        progress: Counter of the finished work.
        ahead: Number of groups that are read concurrently.
    """

    def __init__(
        self,
        inputs: Inputs,
        config: ProjectConfig,
        page_store: PageStore,
        progress: ProgressCounter,
        *,
        ahead: int,
    ) -> None:
        self._inputs, self._config, self._page_store = inputs, config, page_store
        self._progress, self._ahead = progress, ahead
        self._waiting: deque[tuple[Sequence[FileRef], ray.ObjectRef[Any]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the tasks that are still running after an error or an interruption."""
        for _refs, task in self._waiting:
            ray.cancel(task)

    def read_all(self, refs: Iterable[FileRef]) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        """Read files in order and yield the content and chunks of each file, or the error."""
        files = list(refs)
        for at in range(0, len(files), _GROUP_FILES):
            group = files[at : at + _GROUP_FILES]
            self._waiting.append((group, self._start(group)))
            if len(self._waiting) > self._ahead:
                yield from self._next()
        while self._waiting:
            yield from self._next()

    def _next(self) -> Iterator[tuple[FileRef, FileContent | ReadError]]:
        group, task = self._waiting[0]
        self._progress.reading(printable(group[0].path.name))
        contents = self._contents(group, task)
        self._waiting.popleft()
        yield from zip(group, contents, strict=True)

    def _start(self, group: Sequence[FileRef]) -> ray.ObjectRef[Any]:
        options = self._inputs.options
        files = []
        for ref in group:
            # Workers have a different working directory, and device numbers differ between nodes.
            there = replace(ref, path=Path(os.path.abspath(ref.path)), identity=None)
            files.append((there, password_of(ref, options.passwords), self._inputs.facts.get(str(ref.path), {})))
        return _READ.remote(self._config, options.limits, files)

    def _contents(
        self, group: Sequence[FileRef], task: ray.ObjectRef[Any], attempt: int = 1
    ) -> list[FileContent | ReadError]:
        """Wait for the task that reads a group of files, and return the content or the error of each file.

        If the worker dies, each file is read again in a separate task.
        """
        try:
            contents, pages = _task_result(task)
        except _WorkerDied as error:
            if attempt == TRIES:
                reason = f"ended each of the {TRIES} worker processes that read it ({error}): leave it out or repair it"
                return [ReadError(ref.shown, reason) for ref in group]
            tasks = [(ref, self._start([ref])) for ref in group]
            return [content for ref, task in tasks for content in self._contents([ref], task, attempt + 1)]
        for page in pages:
            self._page_store.add_page(*page)
        result: list[FileContent | ReadError] = contents
        return result


class _WorkerEmbedding(BatchEmbedding):
    """Embedding model that embeds texts in Ray tasks."""

    dimensions: int | None = None

    _start: Callable[[list[str]], ray.ObjectRef[Any]] = PrivateAttr()

    @classmethod
    def wrap(cls, model: BaseEmbedding, start: Callable[[list[str]], ray.ObjectRef[Any]]) -> _WorkerEmbedding:
        worker_model = cls(
            model_name=model.model_name,
            embed_batch_size=model.embed_batch_size,
            dimensions=getattr(model, "dimensions", None),
        )
        worker_model._start = start
        return worker_model

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        for _ in range(TRIES):
            try:
                rows: list[list[float]] = _task_result(self._start(texts)).tolist()
            except _WorkerDied as error:
                reason = error
            else:
                return rows
        raise ModelError(
            f"{self.model_name!r} ended each of the {TRIES} worker processes that embedded the same {len(texts)} texts"
            f" ({reason}): give the Ray nodes more memory, or lower embed_batch_size.",
            setting="embed_model",
        )

    def _get_query_embedding(self, query: str) -> list[float]:
        raise NotImplementedError("an ingestion embeds no queries")
