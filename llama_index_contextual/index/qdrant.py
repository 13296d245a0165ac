"""Chunks, vectors and terms of a project in a collection of Qdrant.

A point is a chunk: its vector, a sparse vector with the weights of its terms, and a payload with the chunk as
LlamaIndex's own store writes it, the id of its document, its facets, and the versions between which it exists. Every
search filters by version.

`backend` contains the address of a server; its key is read from the environment variable QDRANT_API_KEY and never
stored. A path, or ":memory:", is the local mode of the client, which compares every vector in Python: for tests and a
few thousand chunks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import numpy as np
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict
from numpy.typing import NDArray

from llama_index_contextual._utils.calls import ProviderError, RetryPolicy, call, is_connection_error
from llama_index_contextual._utils.forks import new_lock, new_rlock
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BackendError, ConfigurationError, ContextualError
from llama_index_contextual.index.collection import (
    NEVER,
    Collection,
    Engine,
    Key,
    StoredChunk,
    TermHit,
    View,
    lost_collection,
    point_id,
    sorted_terms,
)
from llama_index_contextual.index.facets import AnyFacet, Condition

if TYPE_CHECKING:
    from qdrant_client import models

T = TypeVar("T")

KEY_VARIABLE = "QDRANT_API_KEY"
MEMORY = ":memory:"
_SERVER = ("http://", "https://")
_PORT = 6333  # if the address has none
VECTOR, TERMS = "dense", "terms"
"""Names of the two vectors of a point."""

BORN, DIED, DOCUMENT, FACETS, NODE_ID, LENGTH, NORM = "born", "died", "doc_id", "facets", "node_id", "length", "norm"
_NODE = ("_node_content", "_node_type")

_TIMEOUT = 60
_SETTLING, _POLL = 600.0, 1.0  # seconds
_RETRY = RetryPolicy(attempts=4)
_LINKS, _LINK_CANDIDATES = 32, 256  # twice Qdrant's defaults: questions are far from the chunks
_BATCH = 128  # points of one request that contain vectors or texts
_BATCH_CHARACTERS = 4_000_000  # of the chunks of one request; a server refuses requests of more than 32 MB
_PAGE = 1_000  # points of one request that contain neither
_DOCUMENTS = 500  # documents that are named in one filter
_INDEXES = {BORN: "integer", DIED: "integer", FACETS: "integer", DOCUMENT: "keyword"}
_UNREADABLE = frozenset({"_NotQdrantError", "AssertionError", "JSONDecodeError", "ValidationError"})


class QdrantEngine(Engine):
    """A collection of a Qdrant server, or of the client's local mode.

    Args:
        collection: Address and name of the collection.
    """

    def __init__(self, collection: Collection) -> None:
        super().__init__(collection)
        self._name = collection.name
        self._exists = self._is_ready = False
        self._is_server = collection.url.startswith(_SERVER)

    @staticmethod
    def check(config: ProjectConfig) -> None:
        """Check that Qdrant can do what the settings of a project require.

        Raises:
            ConfigurationError: It cannot, the address is invalid, or the client is not installed.
        """
        _models()
        _check_address(config.backend.partition(":")[2])
        if config.faiss_index != "auto":
            raise ConfigurationError(
                f"Qdrant stores the vectors itself: leave faiss_index at 'auto' instead of {config.faiss_index!r}, or"
                f" set backend to 'files'.",
                setting="faiss_index",
            )

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _call(self, send: Callable[[Any], T]) -> T:
        """Return what a call of the client returns, after some attempts.

        Raises:
            BackendError: All of them failed.
            CorruptVersionError: The collection has been removed.
        """
        client, lock = self._client_and_lock
        try:
            with lock:
                return call(functools.partial(_unwrapped, functools.partial(send, client)), _RETRY)
        except Exception as error:  # the client raises exceptions of many libraries; the user gets a sentence
            raise self._error(error) from error

    @property
    def _client_and_lock(self) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
        # At each call: the user may have corrected the key, or the process may have been forked.
        return _client(self.collection.url, os.environ.get(KEY_VARIABLE), os.getpid())

    @property
    def _client(self) -> Any:
        return self._client_and_lock[0]

    def _error(self, error: Exception) -> ContextualError:
        url, status, fault = self.collection.url, getattr(error, "status_code", None), " ".join(str(error).split())
        if self._name and self._name in fault and "not found" in fault.lower():
            self._exists = self._is_ready = False
            return lost_collection(self.collection)
        if status in (401, 403):
            message = f"Qdrant at {url} refuses the key: set the environment variable {KEY_VARIABLE} to a valid one"
        elif is_connection_error(error):
            name = type(error).__name__
            message = f"Qdrant at {_with_port(url)} does not answer ({name}): start it, or change `backend`"
        elif self._is_server and type(error).__name__ in _UNREADABLE:
            message = f"The server at {_with_port(url)} does not answer as Qdrant does: correct `backend`"
        else:
            message = f"Qdrant at {url} refuses a call ({fault[:300]}): see its log, and check its version and its disk"
        return BackendError(f"{message}; then run the same again.", url=url)

    def ping(self) -> None:
        """Check that the server answers and accepts the key."""
        self._call(lambda client: client.get_collections())

    def exists(self) -> bool:
        """Return whether the collection exists."""
        if not self._exists:
            self._exists = self._call(lambda client: client.collection_exists(self._name))
        return self._exists

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, chunks: Iterable[StoredChunk], dimensions: int | None) -> None:
        """Store chunks in batches; the collection is created with the first ones."""
        models = _models()
        self._prepare(dimensions)
        for points in _batches(_point(models, chunk) for chunk in chunks):
            self._call(lambda client, points=points: client.upsert(self._name, points, wait=True))  # type: ignore[misc]

    def _prepare(self, dimensions: int | None) -> None:
        """Create the collection and the indexes of its payload, as far as an interrupted writer has not.

        Raises:
            ConfigurationError: The vectors of the collection have another length.
        """
        if self._is_ready:
            return
        if not self.exists():
            self._create(dimensions)
        info = self._call(lambda client: client.get_collection(self._name))
        known = info.config.params.vectors or {}
        if dimensions is not None and (VECTOR not in known or known[VECTOR].size != dimensions):
            stored = f"vectors with {known[VECTOR].size} dimensions" if VECTOR in known else "no vectors"
            raise ConfigurationError(
                f"The collection of this project has {stored}, and cannot store vectors with {dimensions} dimensions:"
                f" set backend to 'files', `rebuild` and `forget`, then set backend to the address and `rebuild` again."
                f" Contexts and embeddings are not paid for again.",
                setting="embed_model" if VECTOR in known else "indexes",
            )
        # The local mode has no indexes, and warns about it.
        missing = [field for field in _INDEXES if self._is_server and field not in info.payload_schema]
        for field in missing:
            self._call(
                lambda client, field=field: client.create_payload_index(  # type: ignore[misc]
                    self._name, field, _INDEXES[field], wait=True
                )
            )
        self._is_ready = True

    def _create(self, dimensions: int | None) -> None:
        models = _models()
        dense = {}
        if dimensions is not None:
            graph = models.HnswConfigDiff(m=_LINKS, ef_construct=_LINK_CANDIDATES)
            # The vectors have unit length already.
            dense[VECTOR] = models.VectorParams(size=dimensions, distance=models.Distance.DOT, hnsw_config=graph)

        def create(client: Any) -> None:
            if not client.collection_exists(self._name):  # the response to an earlier attempt may have been lost
                client.create_collection(
                    self._name, vectors_config=dense, sparse_vectors_config={TERMS: models.SparseVectorParams()}
                )

        self._call(create)
        self._exists = True

    def end(self, doc_ids: Sequence[str] | None, version: int) -> None:
        """Let the chunks of documents, or all of them, that were added before a version die in it."""
        if not self.exists():
            return
        models = _models()
        alive = [_range(models, DIED, gte=NEVER), _range(models, BORN, lt=version)]
        groups: Iterable[list[Any]] = [[]]
        if doc_ids is not None:
            starts = range(0, len(doc_ids), _DOCUMENTS)
            named = (list(doc_ids[start : start + _DOCUMENTS]) for start in starts)
            groups = ([models.FieldCondition(key=DOCUMENT, match=models.MatchAny(any=ids))] for ids in named)
        for group in groups:
            self._set_died(models.Filter(must=[*alive, *group]), version)

    def end_chunks(self, keys: Sequence[Key], version: int) -> None:
        """Let some chunks die in a version."""
        models = _models()
        for start in range(0, len(keys), _DOCUMENTS):
            ids = [point_id(*key) for key in keys[start : start + _DOCUMENTS]]
            self._set_died(models.Filter(must=[models.HasIdCondition(has_id=ids)]), version)

    def drop_after(self, version: int) -> None:
        """Remove chunks that were added after a version, and revive those that died after it."""
        if self.exists():
            models = _models()
            self._delete(models.Filter(must=[_range(models, BORN, gt=version)]))
            self._set_died(models.Filter(must=[_range(models, DIED, gt=version, lt=NEVER)]), NEVER)

    def drop_before(self, version: int) -> None:
        """Remove chunks that had died when a version was published."""
        if self.exists():
            models = _models()
            self._delete(models.Filter(must=[_range(models, DIED, lte=version)]))

    def leftovers(self, version: int) -> int:
        """Return the number of chunks that `drop_after` would change."""
        models = _models()
        later = [_range(models, BORN, gt=version), _range(models, DIED, gt=version, lt=NEVER)]
        return self._count(models.Filter(should=later))

    def _set_died(self, selection: models.Filter, version: int) -> None:
        self._call(lambda client: client.set_payload(self._name, {DIED: version}, points=selection, wait=True))

    def _delete(self, selection: models.Filter) -> None:
        self._call(lambda client: client.delete(self._name, _models().FilterSelector(filter=selection), wait=True))

    def settle(self) -> bool:
        """Wait at most ten minutes until the indexes contain what was written, and return whether they do."""
        until = time.monotonic() + _SETTLING
        while (status := self._call(lambda client: client.get_collection(self._name)).status) != "green":
            if status == "red" or time.monotonic() > until:  # red: the server could not build them
                return False
            time.sleep(_POLL)
        return True

    def delete(self) -> None:
        """Remove the collection, if it exists."""
        if self._call(lambda client: client.collection_exists(self._name)):
            self._call(lambda client: client.delete_collection(self._name))
        self._exists = self._is_ready = False

    # ---- reading -----------------------------------------------------------------------------------------------------

    def rank_vectors(self, view: View, vector: NDArray[np.float32], k: int) -> list[tuple[str, float]]:
        """Return the ids of the k chunks with the largest inner product with a vector, and the products."""
        points = self._query(view, VECTOR, vector.tolist(), k, [NODE_ID], vectors=False)
        return [(point.payload[NODE_ID], float(point.score)) for point in points]

    def rank_terms(self, view: View, weights: Mapping[int, float], k: int) -> list[TermHit]:
        """Return the k chunks with the largest sum of weights of terms, each times the weight in the chunk."""
        sparse = _models().SparseVector(indices=list(weights), values=list(weights.values()))
        points = self._query(view, TERMS, sparse, k, [NODE_ID, LENGTH, NORM], vectors=[TERMS])
        return [
            TermHit(
                payload[NODE_ID],
                payload[LENGTH],
                payload[NORM],
                *sorted_terms(point.vector[TERMS].indices, point.vector[TERMS].values),
            )
            for point in points
            for payload in (point.payload,)
        ]

    def _query(
        self, view: View, using: str, query: Any, k: int, fields: list[str], *, vectors: list[str] | bool
    ) -> list[Any]:
        selection = _selection(view)
        if k <= 0 or selection is None:
            return []
        if not self.exists():
            raise lost_collection(self.collection)
        params = None  # the local mode always compares all, and warns about parameters
        if using == VECTOR and self._is_server:
            params = _models().SearchParams(exact=view.ef is None, hnsw_ef=view.ef)
        response = self._call(
            lambda client: client.query_points(
                self._name,
                query=query,
                using=using,
                query_filter=selection,
                limit=k,
                with_payload=fields,
                with_vectors=vectors,
                search_params=params,
            )
        )
        return list(response.points)

    def nodes(self, keys: Sequence[Key]) -> dict[str, BaseNode]:
        """Return the chunks that exist, by id."""
        nodes: dict[str, BaseNode] = {}
        for point in self._retrieve(keys, payload=[*_NODE], vectors=False):
            node = metadata_dict_to_node(point.payload)
            nodes[node.node_id] = node
        return nodes

    def vectors(self, keys: Sequence[Key]) -> dict[str, list[float]]:
        """Return the vectors of the chunks that exist, by id."""
        points = self._retrieve(keys, payload=[NODE_ID], vectors=[VECTOR])
        return {point.payload[NODE_ID]: point.vector[VECTOR] for point in points}

    def _retrieve(self, keys: Sequence[Key], *, payload: list[str], vectors: list[str] | bool) -> Iterator[Any]:
        if not self.exists():
            return
        for start in range(0, len(keys), _BATCH):
            ids = [point_id(*key) for key in keys[start : start + _BATCH]]
            yield from self._call(
                lambda client, ids=ids: client.retrieve(self._name, ids, with_payload=payload, with_vectors=vectors)  # type: ignore[misc]
            )

    def keys(self, view: View) -> Iterator[Key]:
        """Yield the keys of all chunks of a view."""
        selection, place = _selection(view), None
        while selection is not None and self.exists():
            points, place = self._call(
                lambda client, place=place: client.scroll(  # type: ignore[misc]
                    self._name, selection, limit=_PAGE, offset=place, with_payload=[NODE_ID, BORN], with_vectors=False
                )
            )
            yield from ((point.payload[NODE_ID], point.payload[BORN]) for point in points)
            if place is None:
                return

    def count(self, view: View) -> int:
        """Return the number of chunks of a view."""
        selection = _selection(view)
        return 0 if selection is None else self._count(selection)

    def _count(self, selection: models.Filter) -> int:
        if not self.exists():
            return 0
        return int(self._call(lambda client: client.count(self._name, selection, exact=True)).count)


def _batches(points: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield points in batches that a server accepts in one request."""
    batch: list[Any] = []
    size = 0
    for point in points:
        batch.append(point)
        size += len(point.payload[_NODE[0]])
        if len(batch) == _BATCH or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _point(models: Any, chunk: StoredChunk) -> Any:
    content = node_to_metadata_dict(chunk.node)
    vectors: dict[str, Any] = {}
    if chunk.vector is not None:
        vectors[VECTOR] = chunk.vector.tolist()
    vectors[TERMS] = models.SparseVector(indices=chunk.terms.tolist(), values=chunk.weights.tolist())
    return models.PointStruct(
        id=point_id(chunk.node.node_id, chunk.born),
        vector=vectors,
        payload={
            **{name: content[name] for name in _NODE},
            NODE_ID: chunk.node.node_id,
            DOCUMENT: chunk.doc_id,
            BORN: chunk.born,
            DIED: NEVER,
            FACETS: list(chunk.facets),
            LENGTH: chunk.length,
            NORM: chunk.norm,
        },
    )


# ---- filters ---------------------------------------------------------------------------------------------------------


def _selection(view: View) -> Any:
    """Return the filter of a view, or None if it contains nothing."""
    if view.condition is False:
        return None
    models = _models()
    visible = [_range(models, BORN, lte=view.version), _range(models, DIED, gt=view.version)]
    return models.Filter(must=visible if view.condition is True else [*visible, to_filter(view.condition)])


def to_filter(condition: Condition) -> Any:
    """Return a condition in Qdrant's terms; True and False have none."""
    models = _models()
    if isinstance(condition, bool):
        raise TypeError("A condition that always or never holds is not a filter.")
    if isinstance(condition, AnyFacet):
        return models.FieldCondition(key=FACETS, match=models.MatchAny(any=list(condition.facets)))
    parts = [to_filter(part) for part in condition.conditions]
    clause = {"all": "must", "any": "should", "none": "must_not"}[condition.kind]
    return models.Filter(**{clause: parts})


def _range(models: Any, field: str, **limits: int) -> Any:
    return models.FieldCondition(key=field, range=models.Range(**limits))


# ---- clients ---------------------------------------------------------------------------------------------------------


def _models() -> Any:
    try:
        from qdrant_client import models
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "The backend 'qdrant' needs its client: pip install 'llama-index-contextual[qdrant]'.", setting="backend"
        ) from error
    return models


def _check_address(url: str) -> None:
    """Check that an address is that of a server, a path, or ":memory:".

    Raises:
        ConfigurationError: It is not.
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


def _with_port(url: str) -> str:
    """Return an address with the port that the client adds."""
    with contextlib.suppress(ValueError):
        if url.startswith(_SERVER) and urlsplit(url).port is None:
            return f"{url} (port {_PORT})"
    return url


def connect(url: str, key: str | None) -> Any:
    """Return a client for an address: a server, a path, or ":memory:".

    Raises:
        BackendError: The address is invalid, or another process uses the path.
    """
    _models()
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


_lock = new_lock()
_clients: dict[tuple[str, str | None, int], tuple[Any, Any]] = {}


def _client(url: str, key: str | None, process: int) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
    """Return the client of this process for an address, and a lock for its calls.

    Projects share it: a path can be opened once only, and a forked process must not use the connections of its parent.
    """
    with _lock:
        if (url, key, process) not in _clients:
            lock = contextlib.nullcontext() if url.startswith(_SERVER) else new_rlock()
            client = connect(url, key)
            atexit.register(client.close)  # while modules can still be imported
            _clients[url, key, process] = client, lock
        return _clients[url, key, process]


class _NotQdrantError(ProviderError):
    """A response that Qdrant does not send."""


def _response_error(error: Any) -> ProviderError:
    """Return the error for a response with an HTTP status, with the reason that Qdrant gives."""
    status, kind = int(error.status_code), ProviderError
    try:
        reason = str(json.loads(error.content)["status"]["error"])
    except (ValueError, TypeError, KeyError):
        reason = f"{status} {error.reason_phrase}"
        if status < 400 or status in (404, 405):
            kind = _NotQdrantError
    return kind(reason, status_code=status)


def _unwrapped(send: Callable[[], T]) -> T:
    """Call the client, and raise what its own errors are about: the connection, or the response."""
    try:
        return send()
    except Exception as error:  # of any class; it is raised again
        if (seconds := getattr(error, "retry_after_s", None)) is not None:  # too many requests
            raise ProviderError(str(error), status_code=429, retry_after=float(seconds)) from error
        if getattr(error, "status_code", None) is not None:
            raise _response_error(error) from error
        source = getattr(error, "source", error)
        if type(source).__name__.endswith("Timeout"):
            raise TimeoutError(f"{type(source).__name__} after {_TIMEOUT} seconds") from error
        if type(source).__name__ in ("WriteError", "CloseError"):
            raise ConnectionError(f"{type(source).__name__}: {source}") from error
        if source is not error:
            raise source from error
        raise
