"""Engines that fulfil the contract of `tests/integration/backends`: to add one, add a row to BACKENDS.

A row says how a project is created on the engine, and what the engine cannot do.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from llama_index_contextual.project.project import Project
from tests.integration.backends.site import Backend, damage_a_file

QDRANT_URL = "QDRANT_URL"
_REAL_PICKLE = SimpleNamespace(dumps=pickle.dumps, loads=pickle.loads)  # before the suite forbids it

_CLIENT_WRITES = (
    *("create_collection", "delete_collection", "update_collection", "create_payload_index", "upsert", "upload_points"),
    *("update_vectors", "batch_update_points", "set_payload", "overwrite_payload", "delete_payload", "delete"),
)


def no_qdrant(package: str = "qdrant_client") -> str | None:
    if importlib.util.find_spec(package) is None:
        extra = "qdrant" if package == "qdrant_client" else "dev-all"
        return f"{package} is not installed: it is part of the extra `{extra}`"
    return None


def no_server() -> str | None:
    return no_qdrant() or (
        None if os.environ.get(QDRANT_URL) else f"{QDRANT_URL} is not set: it names a server, http://127.0.0.1:6333"
    )


def no_edge() -> str | None:
    return no_qdrant("qdrant_edge") or (
        None if importlib.util.find_spec("tests.integration.index.edge") else "there is no adapter for Qdrant Edge"
    )


def writes_of(client: type) -> Sequence[tuple[type, str]]:
    return [(client, name) for name in _CLIENT_WRITES if hasattr(client, name)]


def client_writes() -> Sequence[tuple[type, str]]:
    from qdrant_client import QdrantClient

    return writes_of(QdrantClient)


def edge_writes() -> Sequence[tuple[type, str]]:
    edge: Any = importlib.import_module("tests.integration.index.edge")
    return writes_of(edge.EdgeClient)


@contextmanager
def in_process(folder: Path) -> Iterator[None]:
    """Let an address stand for Qdrant's engine in this process."""
    edge: Any = importlib.import_module("tests.integration.index.edge")
    with edge.edge_engine(folder / "edge"):
        yield


@contextmanager
def in_local_mode(_folder: Path) -> Iterator[None]:
    """Let the local mode of the client unpickle the points that it has stored in SQLite, and close it in the end."""
    qdrant: Any = importlib.import_module("llama_index_contextual.index.qdrant")
    opened = []

    def connect(*arguments: Any) -> Any:
        opened.append(real(*arguments))
        return opened[-1]

    real = qdrant.connect
    with (
        mock.patch("qdrant_client.local.persistence.pickle", _REAL_PICKLE),
        mock.patch.object(qdrant, "connect", connect),
    ):
        yield
    for client in opened:
        client.close()


def lose_a_vector(project: Project) -> None:
    """Remove the vector of a chunk of the live version from the collection, without the knowledge of the project."""
    from qdrant_client import models

    engine: Any = importlib.import_module("llama_index_contextual.index.qdrant").open_engine(project.directory)
    chunk = project.chunks(project.documents()[0].doc_id)[0]
    selection = models.Filter(must=[models.FieldCondition(key="node_id", match=models.MatchAny(any=[chunk.node_id]))])
    engine._client.delete(engine.collection.name, models.FilterSelector(filter=selection), wait=True)


def on_qdrant(url: Callable[[Path], str]) -> Callable[[Path], Mapping[str, Any]]:
    return lambda folder: {"backend": f"qdrant:{url(folder)}"}


BACKENDS = (
    Backend(
        name="qdrant-local",
        settings=on_qdrant(lambda folder: str(folder / "qdrant")),
        missing=no_qdrant,
        environment=in_local_mode,
        writes=client_writes,
        damages=(damage_a_file, lose_a_vector),
    ),
    Backend(
        name="qdrant-edge",
        settings=on_qdrant(lambda _folder: "http://edge.invalid/edge"),
        missing=no_edge,
        environment=in_process,
        writes=edge_writes,
        damages=(damage_a_file, lose_a_vector),
        frees_at_once=False,
    ),
    Backend(
        name="qdrant-server",
        settings=on_qdrant(lambda _folder: os.environ[QDRANT_URL]),
        missing=no_server,
        writes=client_writes,
        damages=(damage_a_file, lose_a_vector),
    ),
)
