"""The storage backends that fulfil the contract in `test_contract.py`: to add one, add a row to BACKENDS.

A row says how a project is created on the engine, and what the engine cannot do; the tests use nothing but the public
interface of `Project` besides.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from llama_index.core.vector_stores.types import FilterOperator

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files
from tests.slow.faults.system import OPERATIONS

QDRANT_URL = "QDRANT_URL"
_REAL_PICKLE = SimpleNamespace(dumps=pickle.dumps, loads=pickle.loads)  # before the suite forbids it


def always() -> str | None:
    return None


def no_writes() -> Sequence[tuple[type, str]]:
    return ()


@contextmanager
def unchanged(_folder: Path) -> Iterator[None]:
    yield


def damage_a_file(project: Project) -> None:
    """Change one byte in the middle of the largest file of the newest part."""
    newest = max((project.directory / "parts").iterdir())
    largest = max(files.walk(newest), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.write_bytes(content)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """An engine that stores the versions of projects.

    Attributes:
        name: Name of the row.
        settings: Returns the settings of a project on it, given a folder of the test.
        missing: Returns why it cannot be tested here, or None.
        environment: Context manager in which a test runs, given its folder.
        writes: Returns the methods, as (class, name), that change what the engine stores; besides those that write
            files of the project. A publish is interrupted at each call of them.
        damages: Each damages what the live version needs, so that `verify` must report it.
        shared: Whether several processes can use it at once.
        reopens: Whether a process can open what an earlier one has stored.
        refused_settings: Settings that `create` refuses, by name.
        refused_operators: Filters that a search refuses by their name.
    """

    name: str
    settings: Callable[[Path], Mapping[str, Any]]
    missing: Callable[[], str | None] = always
    environment: Callable[[Path], AbstractContextManager[None]] = unchanged
    writes: Callable[[], Sequence[tuple[type, str]]] = no_writes
    damages: Sequence[Callable[[Project], None]] = (damage_a_file,)
    shared: bool = True
    reopens: bool = True
    refused_settings: Mapping[str, Any] = field(default_factory=dict)
    refused_operators: Collection[FilterOperator] = ()

    def interruptible(self) -> list[tuple[type, str]]:
        """Return every method that changes stored data, as (class, name)."""
        return [*((files.System, name) for name in OPERATIONS), *self.writes()]


# ---- Qdrant ----------------------------------------------------------------------------------------------------------

_CLIENT_WRITES = (
    *("create_collection", "delete_collection", "update_collection", "create_payload_index", "upsert", "upload_points"),
    *("update_vectors", "batch_update_points", "set_payload", "overwrite_payload", "delete_payload", "delete"),
)
NOT_ON_QDRANT = {"faiss_index": "flat"}


def no_qdrant(package: str = "qdrant_client") -> str | None:
    if "backend" not in ProjectConfig.model_fields:
        return "ProjectConfig has no setting `backend`"
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: it is part of the extra `qdrant`"
    return None


def no_server() -> str | None:
    return no_qdrant() or (
        None if os.environ.get(QDRANT_URL) else f"{QDRANT_URL} is not set: it names a server, http://127.0.0.1:6333"
    )


def no_edge() -> str | None:
    return no_qdrant("qdrant_edge") or (
        None if importlib.util.find_spec("tests.support.edge") else "there is no adapter for Qdrant Edge"
    )


def writes_of(client: type) -> Sequence[tuple[type, str]]:
    return [(client, name) for name in _CLIENT_WRITES if hasattr(client, name)]


def client_writes() -> Sequence[tuple[type, str]]:
    from qdrant_client import QdrantClient

    return writes_of(QdrantClient)


def edge_writes() -> Sequence[tuple[type, str]]:
    edge: Any = importlib.import_module("tests.support.edge")
    return writes_of(edge.EdgeClient)


@contextmanager
def in_process(folder: Path) -> Iterator[None]:
    """Let an address stand for Qdrant's engine in this process."""
    edge: Any = importlib.import_module("tests.support.edge")
    with edge.edge_engine(folder / "edge"):
        yield


@contextmanager
def in_local_mode(_folder: Path) -> Iterator[None]:
    """Let the local mode of the client unpickle the points that it has stored in SQLite, and close it in the end."""
    qdrant: Any = importlib.import_module("llama_index_contextual.storage.qdrant")
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


def lose_a_chunk(project: Project) -> None:
    """Remove a chunk of the live version from the collection, without the knowledge of the project."""
    from qdrant_client import models

    engine: Any = importlib.import_module("llama_index_contextual.storage.engine").open_engine(project.directory)
    chunk = project.chunks(project.documents()[0].doc_id)[0]
    selection = models.Filter(must=[models.FieldCondition(key="node_id", match=models.MatchAny(any=[chunk.node_id]))])
    engine._client.delete(engine.collection.name, models.FilterSelector(filter=selection), wait=True)


def on_qdrant(url: Callable[[Path], str]) -> Callable[[Path], Mapping[str, Any]]:
    return lambda folder: {"backend": "qdrant", "backend_url": url(folder)}


BACKENDS = (
    Backend(name="files", settings=lambda _folder: {}),
    Backend(
        name="qdrant-local",
        settings=on_qdrant(lambda folder: str(folder / "qdrant")),
        missing=no_qdrant,
        environment=in_local_mode,
        writes=client_writes,
        damages=(damage_a_file, lose_a_chunk),
        refused_settings=NOT_ON_QDRANT,
        shared=False,
    ),
    Backend(
        name="qdrant-edge",
        settings=on_qdrant(lambda _folder: "http://edge.invalid/edge"),
        missing=no_edge,
        environment=in_process,
        writes=edge_writes,
        damages=(damage_a_file, lose_a_chunk),
        refused_settings=NOT_ON_QDRANT,
        shared=False,
        reopens=False,
    ),
    Backend(
        name="qdrant-server",
        settings=on_qdrant(lambda _folder: os.environ[QDRANT_URL]),
        missing=no_server,
        writes=client_writes,
        damages=(damage_a_file, lose_a_chunk),
        refused_settings=NOT_ON_QDRANT,
    ),
)
BY_NAME = {backend.name: backend for backend in BACKENDS}
