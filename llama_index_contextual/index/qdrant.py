"""Store the vectors of a project in a Qdrant collection.

A point contains the vector of a chunk, the chunk's id, its document's id, its facets, and the numbers of the versions
that added and removed the vector (`added_in` and `removed_in`). Version v contains the vectors with
added_in <= v < removed_in. Several versions can therefore share a vector, and a new version does not affect readers of
an old version. Every search filters by version.

The `backend` setting contains the address of the server. The server's API key is read from the QDRANT_API_KEY
environment variable and never stored. A path or ":memory:" selects the client's local mode, which compares a query with
every vector in Python. This mode is intended for tests and for at most a few thousand chunks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy, call, is_connection_error
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import (
    BackendError,
    ConfigurationError,
    ContextualError,
    CorruptVersionError,
    FormatError,
    ProjectError,
)
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import read_manifest
from llama_index_contextual.index.project_file import read_config
from llama_index_contextual.index.versions import (
    current_name,
    directories,
    number,
    remove_version,
    version_directory,
    version_names,
)

if TYPE_CHECKING:
    from qdrant_client import models

T = TypeVar("T")

COLLECTION_FILE = "collection.json"
"""File in a project's directory that contains the name of the engine, its address and the name of the collection."""

FILES = "files"
"""Name of the backend that stores vectors in files and needs no engine."""

logger = logging.getLogger(__name__)

KEY_VARIABLE = "QDRANT_API_KEY"
MEMORY = ":memory:"
_SERVER = ("http://", "https://")
VECTOR = "dense"
"""Name of the vector in each point."""

ADDED_IN, REMOVED_IN, DOCUMENT, FACETS, NODE_ID = "added_in", "removed_in", "doc_id", "facets", "node_id"

_TIMEOUT = 60
_RETRY = RetryPolicy(attempts=4)
# Twice as many links as Qdrant's default, and more candidates, because question vectors are far from chunk vectors.
_LINKS, _LINK_CANDIDATES, _SEARCH_CANDIDATES = 32, 256, 512
_BATCH = 128  # number of points in a request with vectors; servers refuse requests of more than 32 MB
_PAGE = 1_000  # number of points in a request without vectors
_DOCUMENTS = 500  # number of documents in one filter
_INDEXES = {ADDED_IN: "integer", REMOVED_IN: "integer", FACETS: "integer", DOCUMENT: "keyword"}


NEVER = 2**31 - 1
"""Value of `removed_in` for vectors that have not been removed."""

_NAMESPACE = uuid.UUID("7c0f4c0e-3f0b-5d0c-9a53-2f6a6a1f6f0e")

Key = tuple[str, int]
"""Id of a node, and the number of the version that added its vector."""


@dataclass(frozen=True)
class StoredVector:
    """The vector of a chunk, as stored in an engine.

    Attributes:
        node_id: Id of the chunk.
        added_in: Number of the version that added the vector.
        doc_id: Id of the document.
        facets: Numbers that represent the chunk's metadata values in filters.
        vector: The vector.
    """

    node_id: str
    added_in: int
    doc_id: str
    facets: Sequence[int]
    vector: NDArray[np.float32]


@dataclass(frozen=True)
class Collection:
    """Content of collection.json.

    Attributes:
        backend: Name of the engine.
        url: Address of the engine.
        name: Name of the collection.
    """

    backend: str
    url: str
    name: str


class QdrantEngine:
    """A collection on a Qdrant server, or in the client's local mode.

    Every method raises `BackendError` if the server cannot be reached after several attempts. If the collection does
    not exist, a search raises `CorruptVersionError`, and the other methods find no vectors.

    Args:
        collection: Address and name of the collection.
    """

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._name = collection.name
        self._exists = self._is_ready = False
        self._is_server = collection.url.startswith(_SERVER)

    @staticmethod
    def check(config: ProjectConfig) -> None:
        """Check that Qdrant supports the settings of a project.

        Raises:
            ConfigurationError: The address is invalid, or the client is not installed.
        """
        models_module()
        _check_address(config.backend.partition(":")[2])

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _call(self, send: Callable[[Any], T]) -> T:
        """Call the client, retrying if necessary, and return the result.

        Raises:
            BackendError: All attempts failed.
            CorruptVersionError: The collection has been removed.
        """
        client, lock = self._client_and_lock
        try:
            with lock:
                return call(functools.partial(_unwrapped, functools.partial(send, client)), _RETRY)
        except Exception as error:  # the client raises exceptions from many libraries; they are translated for the user
            raise self._error(error) from error

    @property
    def _client_and_lock(self) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
        # Looked up for each call, because the user may have corrected the key, or the process may have been forked.
        return _client(self.collection.url, os.environ.get(KEY_VARIABLE), os.getpid())

    @property
    def _client(self) -> Any:
        return self._client_and_lock[0]

    def _error(self, error: Exception) -> ContextualError:
        url, fault = self.collection.url, " ".join(str(error).split())
        if self._name and self._name in fault and "not found" in fault.lower():
            self._exists = self._is_ready = False
            return _lost_collection(self.collection)
        if getattr(error, "status_code", None) in (401, 403):
            message = f"refuses the key: set the environment variable {KEY_VARIABLE} to a valid one"
        elif is_connection_error(error):
            message = f"does not answer ({fault[:300]}): start it, or change `backend`"
        else:
            message = f"does not answer as expected ({fault[:300]}): check `backend`, and the server's log and version"
        return BackendError(f"Qdrant at {url} {message}; then run the same again.", url=url)

    def ping(self) -> None:
        """Check that the server responds and accepts the key."""
        self._call(lambda client: client.get_collections())

    def exists(self) -> bool:
        """Return whether the collection exists."""
        if not self._exists:
            self._exists = self._call(lambda client: client.collection_exists(self._name))
        return self._exists

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, vectors: Sequence[StoredVector]) -> None:
        """Store vectors in batches, and create the collection if necessary.

        Storing a vector again has no effect.

        Raises:
            ConfigurationError: The vectors in the collection have another length.
        """
        if not vectors:
            return
        models = models_module()
        self._prepare(len(vectors[0].vector))
        for start in range(0, len(vectors), _BATCH):
            points = [_point(models, vector) for vector in vectors[start : start + _BATCH]]
            self._call(lambda client, points=points: client.upsert(self._name, points, wait=True))  # type: ignore[misc]

    def _prepare(self, dimensions: int) -> None:
        """Create the collection and its payload indexes if they do not exist.

        Raises:
            ConfigurationError: The vectors of the collection have another length.
        """
        if self._is_ready:
            return
        if not self.exists():
            self._create(dimensions)
        info = self._call(lambda client: client.get_collection(self._name))
        size = info.config.params.vectors[VECTOR].size
        if size != dimensions:
            raise ConfigurationError(
                f"The collection of this project has vectors with {size} dimensions, and cannot store vectors with"
                f" {dimensions} dimensions: set backend to 'files', `rebuild` and `forget`, then set backend to the"
                f" address and `rebuild` again. Contexts and embeddings are not paid for again.",
                setting="embed_model",
            )
        # The local mode has no indexes, and warns if they are created.
        missing = [field for field in _INDEXES if self._is_server and field not in info.payload_schema]
        for field in missing:
            self._call(
                lambda client, field=field: client.create_payload_index(  # type: ignore[misc]
                    self._name, field, _INDEXES[field], wait=True
                )
            )
        self._is_ready = True

    def _create(self, dimensions: int) -> None:
        models = models_module()
        graph = models.HnswConfigDiff(m=_LINKS, ef_construct=_LINK_CANDIDATES)
        # The vectors already have unit length.
        dense = {VECTOR: models.VectorParams(size=dimensions, distance=models.Distance.DOT, hnsw_config=graph)}

        def create(client: Any) -> None:
            if not client.collection_exists(self._name):  # the response to an earlier attempt may have been lost
                client.create_collection(self._name, vectors_config=dense)

        self._call(create)
        self._exists = True

    def mark_removed(self, doc_ids: Sequence[str] | None, version: int) -> None:
        """Mark the vectors of documents as removed in a version, except vectors that this version added.

        If `doc_ids` is None, the vectors of all documents are marked.
        """
        if not self.exists():
            return
        models = models_module()
        alive = [_range(models, REMOVED_IN, gte=NEVER), _range(models, ADDED_IN, lt=version)]
        groups: Iterable[list[Any]] = [[]]
        if doc_ids is not None:
            starts = range(0, len(doc_ids), _DOCUMENTS)
            batches = (list(doc_ids[start : start + _DOCUMENTS]) for start in starts)
            groups = ([of_documents(ids)] for ids in batches)
        for group in groups:
            self._set_removed_in(models.Filter(must=[*alive, *group]), version)

    def end_keys(self, keys: Sequence[Key], version: int) -> None:
        """Mark the vectors with the given keys as removed in a version."""
        models = models_module()
        for start in range(0, len(keys), _DOCUMENTS):
            ids = [point_id(*key) for key in keys[start : start + _DOCUMENTS]]
            self._set_removed_in(models.Filter(must=[models.HasIdCondition(has_id=ids)]), version)

    def drop_after(self, version: int) -> None:
        """Delete the vectors added after a version, and restore the vectors marked as removed after this version."""
        if self.exists():
            models = models_module()
            self._delete(models.Filter(must=[_range(models, ADDED_IN, gt=version)]))
            self._set_removed_in(models.Filter(must=[_range(models, REMOVED_IN, gt=version, lt=NEVER)]), NEVER)

    def drop_before(self, version: int) -> None:
        """Delete vectors that were marked as removed in the given version or in an earlier version."""
        if self.exists():
            models = models_module()
            self._delete(models.Filter(must=[_range(models, REMOVED_IN, lte=version)]))

    def leftovers(self, version: int) -> int:
        """Return the number of vectors that `drop_after` would change."""
        models = models_module()
        later = [_range(models, ADDED_IN, gt=version), _range(models, REMOVED_IN, gt=version, lt=NEVER)]
        return self._count(models.Filter(should=later))

    def _set_removed_in(self, selection: models.Filter, version: int) -> None:
        self._call(lambda client: client.set_payload(self._name, {REMOVED_IN: version}, points=selection, wait=True))

    def _delete(self, selection: models.Filter) -> None:
        selector = models_module().FilterSelector(filter=selection)
        self._call(lambda client: client.delete(self._name, selector, wait=True))

    def delete(self) -> None:
        """Remove the collection, if it exists."""
        if self._call(lambda client: client.collection_exists(self._name)):
            self._call(lambda client: client.delete_collection(self._name))
        self._exists = self._is_ready = False

    # ---- reading -----------------------------------------------------------------------------------------------------

    def rank(
        self,
        version: int,
        vector: NDArray[np.float32],
        k: int,
        condition: models.Filter | None = None,
        *,
        exact: bool,
    ) -> list[tuple[str, float]]:
        """Return the ids and inner products of the k chunks whose vectors are most similar to a vector.

        Args:
            version: Number of the version.
            vector: The vector; shape (dimensions,).
            k: Maximum number of chunks.
            condition: Condition that the chunks must meet, or None.
            exact: Whether to compare every stored vector, instead of searching approximately.
        """
        if not self.exists():
            raise _lost_collection(self.collection)
        params = None  # the local mode always compares all vectors, and warns about parameters
        if self._is_server:
            params = models_module().SearchParams(exact=exact, hnsw_ef=_SEARCH_CANDIDATES)
        response = self._call(
            lambda client: client.query_points(
                self._name,
                query=vector.tolist(),
                using=VECTOR,
                query_filter=_selection(version, condition),
                limit=k,
                with_payload=[NODE_ID],
                with_vectors=False,
                search_params=params,
            )
        )
        return [(point.payload[NODE_ID], float(point.score)) for point in response.points]

    def vectors(self, keys: Sequence[Key]) -> dict[str, list[float]]:
        """Return a mapping of chunk ids to the vectors with the given keys, omitting missing vectors."""
        vectors: dict[str, list[float]] = {}
        for start in range(0, len(keys) if self.exists() else 0, _BATCH):
            ids = [point_id(*key) for key in keys[start : start + _BATCH]]
            points = self._call(
                lambda client, ids=ids: client.retrieve(self._name, ids, with_payload=[NODE_ID], with_vectors=[VECTOR])  # type: ignore[misc]
            )
            vectors.update((point.payload[NODE_ID], point.vector[VECTOR]) for point in points)
        return vectors

    def keys(self, version: int) -> Iterator[Key]:
        """Yield the keys of all vectors in a version."""
        selection, place = _selection(version), None
        while self.exists():
            points, place = self._call(
                lambda client, place=place: client.scroll(  # type: ignore[misc]
                    self._name,
                    selection,
                    limit=_PAGE,
                    offset=place,
                    with_payload=[NODE_ID, ADDED_IN],
                    with_vectors=False,
                )
            )
            yield from ((point.payload[NODE_ID], point.payload[ADDED_IN]) for point in points)
            if place is None:
                return

    def count(self, version: int) -> int:
        """Return the number of vectors in a version."""
        return self._count(_selection(version))

    def _count(self, selection: models.Filter) -> int:
        if not self.exists():
            return 0
        return int(self._call(lambda client: client.count(self._name, selection, exact=True)).count)


def _lost_collection(collection: Collection) -> CorruptVersionError:
    """Return the error to raise if a version has vectors but their collection does not exist."""
    return CorruptVersionError(
        f"There is no collection {collection.name!r} at {collection.url}: correct `backend` if it is on another"
        f" server, or restore it from a backup. Without it, `verify --repair` names the documents to ingest again."
    )


def point_id(node_id: str, added_in: int) -> str:
    """Return the id under which an engine stores a vector.

    Example:
        >>> point_id("a", 1) == point_id("a", 1), point_id("a", 1) == point_id("a", 2)
        (True, False)
    """
    return str(uuid.uuid5(_NAMESPACE, f"{added_in}/{node_id}"))


def _point(models: Any, stored: StoredVector) -> Any:
    return models.PointStruct(
        id=point_id(stored.node_id, stored.added_in),
        vector={VECTOR: stored.vector.tolist()},
        payload={
            NODE_ID: stored.node_id,
            DOCUMENT: stored.doc_id,
            ADDED_IN: stored.added_in,
            REMOVED_IN: NEVER,
            FACETS: list(stored.facets),
        },
    )


# ---- filters ---------------------------------------------------------------------------------------------------------


def _selection(version: int, condition: models.Filter | None = None) -> Any:
    """Return a Qdrant filter for the vectors of a version, or only for those that meet a given condition."""
    models = models_module()
    visible = [_range(models, ADDED_IN, lte=version), _range(models, REMOVED_IN, gt=version)]
    return models.Filter(must=visible if condition is None else [*visible, condition])


def has_facet(facets: Sequence[int]) -> Any:
    """Return a Qdrant filter that selects the chunks with at least one of the given facets."""
    models = models_module()
    return models.Filter(must=[models.FieldCondition(key=FACETS, match=models.MatchAny(any=list(facets)))])


def of_documents(doc_ids: Sequence[str]) -> Any:
    """Return a Qdrant condition that selects the chunks of the given documents."""
    models = models_module()
    return models.FieldCondition(key=DOCUMENT, match=models.MatchAny(any=list(doc_ids)))


def _range(models: Any, field: str, **limits: int) -> Any:
    return models.FieldCondition(key=field, range=models.Range(**limits))


# ---- clients ---------------------------------------------------------------------------------------------------------


def models_module() -> Any:
    """Return the `qdrant_client.models` module, which contains the request classes.

    Raises:
        ConfigurationError: The client is not installed.
    """
    try:
        from qdrant_client import models
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The backend 'qdrant' needs its client: pip install 'llama-index-contextual[qdrant]'.", setting="backend"
        ) from error
    return models


def _check_address(url: str) -> None:
    """Check that an address is the URL of a server, a path, or ":memory:".

    Raises:
        ConfigurationError: The address is invalid.
    """
    if "://" not in url:
        return
    try:
        parts = urlsplit(url)
        is_valid = url.startswith(_SERVER) and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or too large
        is_valid = False
    if not is_valid:
        raise ConfigurationError(
            f"The address of the backend is {url!r}: it must be an address such as http://localhost:6333 or https://host:6333.",
            setting="backend",
        )


def connect(url: str, key: str | None) -> Any:
    """Return a client for an address, which is the URL of a server, a path, or ":memory:".

    Raises:
        BackendError: The address is invalid, or another process is using the path.
    """
    models_module()
    from qdrant_client import QdrantClient

    if url.startswith(_SERVER):
        return QdrantClient(url=url, api_key=key, timeout=_TIMEOUT, check_compatibility=False)
    try:
        if url == MEMORY:
            return QdrantClient(MEMORY, force_disable_check_same_thread=True)
        return QdrantClient(path=url, force_disable_check_same_thread=True)
    except (RuntimeError, OSError) as error:
        raise BackendError(
            f"Qdrant's local mode cannot open {url} ({error}): end the other process that uses it, or start a server"
            f" and set `backend` to its address.",
            url=url,
        ) from error


_lock = Lock()
_clients: dict[tuple[str, str | None, int], tuple[Any, Any]] = {}


def _client(url: str, key: str | None, process: int) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
    """Return the client that a process uses for an address, and a lock for its calls.

    Projects share the client, because a path can be opened only once. A forked process has its own client, because it
    must not use the connections of its parent.
    """
    with _lock:
        if (url, key, process) not in _clients:
            lock = contextlib.nullcontext() if url.startswith(_SERVER) else Lock()
            client = connect(url, key)
            atexit.register(_close, client, process)  # closed while modules can still be imported
            _clients[url, key, process] = client, lock
        return _clients[url, key, process]


def _close(client: Any, process: int) -> None:
    """Close a client, unless this is a forked child of the process that opened it."""
    if process == os.getpid():
        client.close()


def _unwrapped(send: Callable[[], T]) -> T:
    """Call the client, and translate its errors, so that the caller can decide whether to retry the call.

    Connection errors become ConnectionError, and rate-limit errors become ProviderError. Other errors are re-raised.
    """
    try:
        return send()
    except Exception as error:  # the client may raise any exception
        if (seconds := getattr(error, "retry_after_s", None)) is not None:  # too many requests
            raise ProviderError(str(error), status_code=429, retry_after=float(seconds)) from error
        source = getattr(error, "source", error)
        if type(source).__module__.startswith(("httpx", "httpcore")):
            raise ConnectionError(f"{type(source).__name__}: {source}") from error
        raise


# ---- the collection of a project ---------------------------------------------------------------------------------


def check_backend(config: ProjectConfig) -> None:
    """Check that the backend of a new project can be reached and supports the settings.

    Raises:
        ConfigurationError: The backend does not support the settings; the message explains what to do.
        BackendError: The backend does not respond.
    """
    if config.engine != FILES:
        QdrantEngine.check(config)
        QdrantEngine(Collection(config.engine, _address(config), "")).ping()


def _address(config: ProjectConfig) -> str:
    return config.backend.partition(":")[2]


def read_collection(project_dir: Path) -> Collection | None:
    """Return the content of collection.json, or None if there is no such file.

    Raises:
        ProjectError: The file is damaged.
    """
    try:
        return Collection(**parse_json(files.read(project_dir / COLLECTION_FILE)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ProjectError(
            f"{COLLECTION_FILE} of project {project_dir.name!r} is damaged ({type(error).__name__}): restore it from a"
            f" backup; without it, the collection of the project cannot be found.",
            name=project_dir.name,
        ) from error


def write_collection(project_dir: Path, collection: Collection) -> None:
    """Replace collection.json."""
    files.replace(project_dir / COLLECTION_FILE, json.dumps(asdict(collection), indent=1).encode())


def open_engine(project_dir: Path) -> QdrantEngine:
    """Open the collection of a project at the address in its settings.

    Raises:
        ProjectError: The project has no collection.
    """
    engine = _engine(project_dir)
    if engine is None:
        raise ProjectError(
            f"{COLLECTION_FILE} of project {project_dir.name!r} is missing: restore it from a backup; without it, the"
            f" collection of the project cannot be found.",
            name=project_dir.name,
        )
    return engine


def _engine(project_dir: Path) -> QdrantEngine | None:
    """Open the collection of a project, or return None if it has no collection."""
    collection = read_collection(project_dir)
    if collection is None:
        return None
    with contextlib.suppress(ProjectError):  # otherwise, the address of the last writer is used
        config = read_config(project_dir)
        if config.engine == collection.backend:
            collection = replace(collection, url=_address(config))
    return QdrantEngine(collection)


def use_engine(project_dir: Path, config: ProjectConfig) -> QdrantEngine | None:
    """Open the collection of a project for writing, and choose its name on first use.

    The result is None if the vectors are stored in files. The project's write lock must be held.

    Raises:
        ProjectError: There are versions with vectors, but no collection at the address in the settings.
    """
    if config.engine == FILES:
        return None
    collection, address = read_collection(project_dir), _address(config)
    if collection is None or collection.backend != config.engine:
        collection = Collection(config.engine, address, f"contextual-{uuid.uuid4().hex}")
        write_collection(project_dir, collection)
    elif collection.url != address:
        former, collection = collection, replace(collection, url=address)
        if _has_vectors(project_dir) and not QdrantEngine(collection).exists():
            raise ProjectError(
                f"There is no collection {collection.name!r} at {collection.url}: set backend to the address of the"
                f" server that has it ({former.url} until now), or copy it to the new one with a snapshot. Without a"
                f" copy, set backend to 'files', `rebuild` and `forget`, then set the new address and `rebuild` again.",
                name=project_dir.name,
            )
        write_collection(project_dir, collection)
    return QdrantEngine(collection)


def _has_vectors(project_dir: Path) -> bool:
    """Return whether an engine stores the vectors of any version."""
    for name in version_names(project_dir):
        with contextlib.suppress(CorruptVersionError, FormatError):
            manifest = read_manifest(version_directory(project_dir, name))
            if manifest.dimensions is not None and manifest.engine != FILES:
                return True
    return False


def drop_unpublished(project_dir: Path, engine: QdrantEngine) -> None:
    """Remove vectors left by an interrupted writer, and all versions after the live version.

    After a rollback, the next version is based on the live version. The versions after the live version are removed
    first, because their changes to the vectors are undone.

    Args:
        project_dir: The project, whose write lock must be held.
        engine: The project's collection.
    """
    live = _base(project_dir)
    for name in directories(project_dir):
        if number(name) > live:
            remove_version(project_dir, name)
    engine.drop_after(live)


def _base(project_dir: Path) -> int:
    """Return the number of the version on which the next version is based, or 0 if there is none.

    This is the live version or, if CURRENT is damaged, the newest version.
    """
    try:
        name = current_name(project_dir)
    except ProjectError:
        name = next(reversed(version_names(project_dir)), None)
    return 0 if name is None else number(name)


def drop_unused(project_dir: Path, engine: QdrantEngine) -> None:
    """Remove the vectors that are not in any version on disk."""
    names = version_names(project_dir)
    if names:
        engine.drop_before(min(map(number, names)))


def forget_vectors(project_dir: Path, live: str, *, is_remote: bool) -> None:
    """Remove all vectors that are not in the live version.

    Args:
        project_dir: The project, whose write lock must be held.
        live: Name of the live version.
        is_remote: Whether an engine stores the vectors of this version.
    """
    if not is_remote:
        delete_collection(project_dir)
    elif (engine := _engine(project_dir)) is not None:
        engine.drop_after(number(live))
        engine.drop_before(number(live))


def delete_collection(project_dir: Path) -> None:
    """Remove the collection of a project if it exists, and remove collection.json.

    Raises:
        BackendError: The engine does not respond.
    """
    if (engine := _engine(project_dir)) is None:
        return
    try:
        engine.delete()
    except BackendError as error:
        raise BackendError(
            f"{error} If the server is gone for good, remove {COLLECTION_FILE} from {project_dir} first: then the"
            f" collection is left alone.",
            url=error.url,
        ) from error
    files.remove(project_dir / COLLECTION_FILE)
