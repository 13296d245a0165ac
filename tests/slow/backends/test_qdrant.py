"""Vectors in Qdrant, in the client's local mode and in Qdrant Edge: their life over versions, filters, errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BackendError, ConfigurationError, CorruptVersionError, ProjectError
from llama_index_contextual.index import qdrant
from llama_index_contextual.index.qdrant import COLLECTION_FILE, Collection, QdrantEngine, StoredVector
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding

pytest.importorskip("qdrant_client")

from tests.integration.index.qdrant_server import QdrantServer, Request, qdrant_server


@pytest.fixture(params=["local", "edge"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QdrantEngine]:
    """An empty collection."""
    with contextlib.ExitStack() as stack:
        if request.param == "edge":
            pytest.importorskip("qdrant_edge")
            from tests.integration.index.edge import edge_engine

            url, _ = stack.enter_context(edge_engine(tmp_path / "edge"))
        else:
            url = qdrant.MEMORY
        engine = QdrantEngine(Collection("qdrant", url, f"test-{tmp_path.name}"))
        yield engine
        engine.delete()


def test_vectors_of_another_length_are_refused_with_the_way_out(engine: QdrantEngine) -> None:
    def stored(node_id: str, dimensions: int) -> StoredVector:
        return StoredVector(node_id, 1, "d", [], np.ones(dimensions, dtype=np.float32))

    engine.write([stored("a", 2)])
    again = QdrantEngine(engine.collection)
    with pytest.raises(ConfigurationError, match=r"has vectors with 2 dimensions, .* 3 dimensions: set backend to"):
        again.write([stored("b", 3)])


# ---- settings and errors ---------------------------------------------------------------------------------------------


def test_an_invalid_backend_is_refused(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    for backend in ("qdrant", "qdrant:", "files:", "chroma:http://localhost:8000"):
        with pytest.raises(ConfigurationError, match="must be 'files', or 'qdrant:' with an address"):
            ProjectConfig.local(backend=backend)
    with pytest.raises(ConfigurationError, match="an absolute path, or :memory:"):
        ProjectConfig.local(backend="qdrant:qdrant/data")
    with pytest.raises(ConfigurationError, match="QDRANT_API_KEY") as refused:
        ProjectConfig.local(backend="qdrant:https://user:secret@host:6333")
    assert "secret" not in str(refused.value)
    for url in ("ftp://host", "HTTP://host", "http://", "http://host:99999", "http://[::1"):
        with pytest.raises(ConfigurationError, match="it must be an address such as"):
            manager.create("p", ProjectConfig.local(backend=f"qdrant:{url}"))
    assert manager.list() == []


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant, "_RETRY", RetryPolicy(attempts=2, base_delay=0.001))


@pytest.mark.usefixtures("_impatient")
def test_a_server_that_does_not_answer_is_named_and_no_project_is_created(tmp_path: Path) -> None:
    manager, url = ProjectManager(tmp_path), "http://127.0.0.9:9"
    with pytest.raises(BackendError, match=rf"Qdrant at {url} does not answer .*start it") as raised:
        manager.create("p", ProjectConfig.local(backend=f"qdrant:{url}"))
    assert raised.value.url == url
    assert manager.list() == []


# ---- a server --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[QdrantServer]:
    with qdrant_server() as running:
        yield running


def on(server: QdrantServer, tmp_path: Path) -> Project:
    """Return a new project on a server."""
    config = ProjectConfig.local(backend=f"qdrant:{server.url}")
    return ProjectManager(tmp_path).create("p", config, embed_model=CountingEmbedding())


def pumps(number: int = 5) -> list[Document]:
    return [Document(text=f"report {at} about pump {at}", id_=f"d{at}") for at in range(number)]


def indexes(server: QdrantServer) -> list[set[str]]:
    return [set(fields) for fields in server.indexes.values()]


FIELDS = {"added_in", "removed_in", "facets", "doc_id"}


def test_every_call_is_understood_by_a_server(server: QdrantServer, tmp_path: Path) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    project.ingest([Document(text="a valve", id_="d1")])
    assert indexes(server) == [FIELDS]
    for mode in ("semantic", "lexical", "hybrid"):
        (hit,) = project.retrieve("valve", mode=mode, top_k=1)
        assert hit.text == "a valve"
    assert project.read("d2") == "report 2 about pump 2"
    assert project.verify().problems == []
    project.remove("d1", forget=True)
    (name,) = server.indexes
    assert server.client.count(name).count == 4
    ProjectManager(tmp_path).delete("p")
    assert not server.client.collection_exists(name)


def first(matches: Callable[[Request], bool], *, processed: bool) -> Callable[[Request, Callable[[], None]], bool]:
    """Return a fault that ends the connection at the first request that matches, processed or not."""
    struck: list[Request] = []

    def fault(request: Request, process: Callable[[], None]) -> bool:
        if struck or not matches(request):
            return False
        struck.append(request)
        if processed:
            process()
        return True

    return fault


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("processed", [True, False])
def test_an_ingest_survives_the_loss_of_any_request_or_response(
    server: QdrantServer, tmp_path: Path, processed: bool
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps(2))
    server.requests.clear()
    project.ingest(pumps(4))
    paths = {(one.method, one.path.rpartition("/")[2]) for one in server.requests if one.writes}
    assert len(paths) > 2
    for number, (method, end) in enumerate([*sorted(paths), ("PUT", "/index"), ("PUT", "")]):
        (tmp_path / str(number)).mkdir()
        project = on(server, tmp_path / str(number))
        server.fault = first(
            lambda one: one.method == method and one.path.count("/") == 2 if not end else one.path.endswith(end),  # noqa: B023 - called in this turn
            processed=processed,
        )
        project.ingest(pumps(2))
        project.ingest(pumps(4))
        server.fault = None
        assert len(project.retrieve("pump", top_k=50)) == 4
        assert project.verify().problems == []
    assert all(fields == FIELDS for fields in indexes(server))


@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_key_is_read_from_the_environment_at_each_call_and_never_shown(
    server: QdrantServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    project.retrieve("pump")
    server.key = "qd-secret-key"
    monkeypatch.setenv("QDRANT_API_KEY", "qd-other-key")
    with pytest.raises(BackendError, match="set the environment variable QDRANT_API_KEY") as raised:
        project.retrieve("pump")
    assert "qd-other-key" not in str(raised.value)
    monkeypatch.setenv("QDRANT_API_KEY", "qd-secret-key")
    assert len(project.retrieve("pump")) == 5


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, b"<html>Welcome</html>", "does not answer as expected .* check `backend`"),
        (200, b"{}", "does not answer as expected"),
        (301, b"", "does not answer as expected"),
        (404, b"<html>Not found</html>", "does not answer as expected"),
        (400, b'{"status": {"error": "Wrong input: no"}}', r"does not answer as expected .*Wrong input: no"),
        (502, b"<html>Bad gateway</html>", r"does not answer as expected .*502"),
    ],
)
def test_an_address_that_is_not_that_of_qdrant_is_said(
    server: QdrantServer, tmp_path: Path, status: int, body: bytes, message: str
) -> None:
    server.status, server.body = status, body
    with pytest.raises(BackendError, match=message):
        on(server, tmp_path)
    assert ProjectManager(tmp_path).list() == []


@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
def test_a_collection_that_is_gone_is_an_error_and_no_empty_answer(
    server: QdrantServer, tmp_path: Path, mode: Any
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    project.retrieve("pump")
    (name,) = server.indexes
    server.client.delete_collection(name)
    fresh = ProjectManager(tmp_path).load("p", embed_model=CountingEmbedding())
    for reader in (project, fresh):
        with pytest.raises(
            CorruptVersionError, match=r"There is no collection .*`verify --repair` names the documents"
        ):
            reader.retrieve("pump", mode=mode)
    assert not project.verify().sound
    with pytest.raises(CorruptVersionError, match="has 1 vector of the new version instead of 6, so it is not pub"):
        project.ingest([Document(text="one more", id_="new")])
    with pytest.raises(CorruptVersionError, match="has no vectors of version v000001: run `verify`"):
        project.retrieve("pump", mode=mode)
    assert len(project.documents()) == 5


def test_another_server_without_the_collection_is_refused_and_one_with_it_is_used(
    server: QdrantServer, tmp_path: Path
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    former = server.url
    with qdrant_server() as other:
        project.update_config(backend=f"qdrant:{other.url}")
        with pytest.raises(ProjectError, match=f"There is no collection .*{former} until now.*snapshot"):
            project.ingest([Document(text="one more", id_="new")])
        assert len(project.documents()) == 5
        other.client, copied = server.client, other.client
        other.indexes = server.indexes
        project.ingest([Document(text="one more", id_="new")])
        other.client = copied
    reader = ProjectManager(tmp_path).load("p", embed_model=CountingEmbedding())
    reader.update_config(backend=f"qdrant:{former}")
    assert len(reader.retrieve("pump", mode="semantic", top_k=50)) == 6


@pytest.mark.usefixtures("_impatient")
def test_a_project_whose_server_is_gone_can_be_deleted_without_its_collection(
    server: QdrantServer, tmp_path: Path
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    server.fault = lambda *_: True
    manager = ProjectManager(tmp_path)
    with pytest.raises(BackendError, match=r"If the server is gone for good, remove collection.json from .*p first"):
        manager.delete("p")
    (project.directory / COLLECTION_FILE).unlink()
    manager.delete("p")
    assert manager.list() == []


@pytest.mark.usefixtures("_impatient")
def test_a_server_that_stops_after_the_switch_does_not_make_a_published_version_fail(
    server: QdrantServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    published = project.directory / "versions" / "v000002"
    server.fault = lambda *_: published.exists()
    assert project.ingest(pumps(6)).version == "v000002"
    assert "Version v000002 is published" in caplog.text
    server.fault = None
    assert len(project.retrieve("pump", top_k=50)) == 6


def test_after_the_repair_of_a_collection_that_is_gone_its_documents_are_ingested_again(
    server: QdrantServer, tmp_path: Path
) -> None:
    folder = tmp_path / "größe"
    folder.mkdir()
    for number in range(3):
        (folder / f"合同 {number}.md").write_text(f"# Note {number}\n\nThe pump {number}.", encoding="utf-8")
    project = on(server, tmp_path)
    project.ingest(folder)
    (name,) = server.indexes
    server.client.delete_collection(name)
    repair = project.verify(repair=True).repair
    assert repair is not None
    assert len(repair.missing) == 3
    project.ingest(sorted(set(map(str, repair.missing.values()))))
    assert len(project.retrieve("pump", top_k=50)) == 3
    assert project.verify(repair=True).sound


@pytest.mark.usefixtures("_impatient")
def test_a_server_that_never_answers_is_given_up(
    server: QdrantServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = on(server, tmp_path)
    project.ingest(pumps())
    monkeypatch.setattr(qdrant, "_TIMEOUT", 1)
    monkeypatch.setattr(qdrant, "_clients", {})  # the time is that of a new client
    ended = threading.Event()
    server.fault = lambda *_: ended.wait()
    try:
        with pytest.raises(BackendError, match=r"does not answer \(ReadTimeout.*start it"):
            project.retrieve("pump")
    finally:
        ended.set()


@pytest.mark.parametrize("name", ["ReadError", "WriteError", "CloseError", "ConnectError", "RemoteProtocolError"])
@pytest.mark.usefixtures("_impatient")
def test_a_connection_that_breaks_is_made_again(name: str) -> None:
    import httpx
    from qdrant_client.http.exceptions import ResponseHandlingException

    attempts = []

    def send(_: Any) -> str:
        attempts.append(name)
        if len(attempts) == 1:
            raise ResponseHandlingException(getattr(httpx, name)("Broken pipe"))
        return "answer"

    engine: Any = QdrantEngine(Collection("qdrant", qdrant.MEMORY, "c"))
    assert engine._call(send) == "answer"
