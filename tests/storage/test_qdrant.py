"""Chunks in Qdrant, in the client's local mode and in Qdrant Edge: their life over versions, filters, errors."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_index.core.schema import Document, TextNode
from llama_index.core.vector_stores.types import VectorStoreQuery

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import BackendError, ConfigurationError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.storage import qdrant
from llama_index_contextual.storage.collection import NEVER, Collection, Engine, StoredChunk, View, point_id
from llama_index_contextual.storage.engine import open_engine
from llama_index_contextual.storage.facets import AnyFacet, Junction
from llama_index_contextual.storage.qdrant import QdrantEngine, to_filter
from tests.support.models import CountingEmbedding

pytest.importorskip("qdrant_client")


@pytest.fixture(params=["local", "edge"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty collection."""
    with contextlib.ExitStack() as stack:
        if request.param == "edge":
            pytest.importorskip("qdrant_edge")
            from tests.support.edge import edge_engine

            url, _ = stack.enter_context(edge_engine(tmp_path / "edge"))
        else:
            url = qdrant.MEMORY
        engine = QdrantEngine(Collection("qdrant", url, f"test-{tmp_path.name}"))
        yield engine
        engine.delete()


def chunk(node_id: str, born: int, doc_id: str = "d", **fields: Any) -> StoredChunk:
    values: dict[str, Any] = {
        "facets": [],
        "length": 3,
        "norm": 1.5,
        "terms": np.array([7, 2], dtype=np.int32),
        "weights": np.array([0.5, 0.25], dtype=np.float32),
        "vector": np.array([1.0, 0.0], dtype=np.float32),
    }
    return StoredChunk(node=TextNode(id_=node_id, text=node_id), born=born, doc_id=doc_id, **{**values, **fields})


def visible(engine: Engine, version: int) -> list[str]:
    names = sorted(node_id for node_id, _ in engine.keys(View(version)))
    assert engine.count(View(version)) == len(names)
    return names


def test_a_collection_without_chunks_answers_with_nothing(engine: Engine) -> None:
    assert visible(engine, 1) == []
    assert engine.rank_vectors(View(1), np.ones(2, dtype=np.float32), 5) == []
    assert engine.rank_terms(View(1), {1: 1.0}, 5) == []
    assert engine.nodes([("a", 1)]) == {}
    engine.end(["d"], 1)
    engine.drop_after(0)
    engine.drop_before(1)
    assert engine.leftovers(0) == 0


def test_a_version_sees_the_chunks_that_are_born_and_have_not_died(engine: Engine) -> None:
    engine.write([chunk("a", 1), chunk("b", 1, "e")], 2)
    engine.end(["d"], 2)
    engine.write([chunk("a", 2)], 2)
    assert [visible(engine, version) for version in (0, 1, 2, 3)] == [[], ["a", "b"], ["a", "b"], ["a", "b"]]
    assert sorted(engine.keys(View(2))) == [("a", 2), ("b", 1)]
    engine.end(None, 3)
    assert visible(engine, 3) == []
    assert sorted(engine.keys(View(1))) == [("a", 1), ("b", 1)]


def test_writing_a_chunk_again_changes_nothing(engine: Engine) -> None:
    for _ in range(2):
        engine.write([chunk("a", 1)], 2)
    assert visible(engine, 1) == ["a"]
    assert point_id("a", 1) != point_id("a", 2)


def test_an_abandoned_version_is_dropped_and_what_it_ended_lives_on(engine: Engine) -> None:
    engine.write([chunk("a", 1), chunk("b", 1, "e")], 2)
    engine.end(["d"], 2)
    engine.write([chunk("c", 2)], 2)
    assert engine.leftovers(1) == 2
    assert engine.leftovers(2) == 0
    engine.drop_after(1)
    assert engine.leftovers(1) == 0
    assert [visible(engine, version) for version in (1, 2, NEVER - 1)] == [["a", "b"]] * 3


def test_chunks_that_died_before_the_oldest_version_are_dropped(engine: Engine) -> None:
    engine.write([chunk("a", 1), chunk("b", 1, "e")], 2)
    engine.end(["d"], 3)
    engine.drop_before(2)
    assert visible(engine, 2) == ["a", "b"]
    engine.drop_before(3)
    assert engine.nodes([("a", 1)]) == {}
    assert visible(engine, 3) == ["b"]


def test_many_documents_end_and_many_chunks_are_read_in_several_calls(engine: Engine) -> None:
    names = [f"n{number:04}" for number in range(1_100)]
    engine.write([chunk(name, 1, name, vector=None) for name in names], None)
    engine.end(names[:1_050], 2)
    assert visible(engine, 1) == names
    assert visible(engine, 2) == names[1_050:]
    assert sorted(engine.nodes([(name, 1) for name in names])) == names


def test_chunks_are_ranked_by_vector_and_by_terms_within_a_view(engine: Engine) -> None:
    vectors = np.eye(2, dtype=np.float32)
    engine.write(
        [
            chunk("a", 1, vector=vectors[0], facets=[5, 2**62]),
            chunk("b", 1, vector=vectors[1], facets=[6], weights=np.array([0.25, 0.75], dtype=np.float32)),
            chunk("c", 2, vector=vectors[0]),
        ],
        2,
    )
    query = np.array([0.8, 0.6], dtype=np.float32)
    assert [name for name, _ in engine.rank_vectors(View(1), query, 5)] == ["a", "b"]
    assert [name for name, _ in engine.rank_vectors(View(1), query, 1)] == ["a"]
    assert engine.rank_vectors(View(1), query, 1)[0][1] == pytest.approx(0.8)
    assert [name for name, _ in engine.rank_vectors(View(1, AnyFacet([6, 9])), query, 5)] == ["b"]
    assert [name for name, _ in engine.rank_vectors(View(1, AnyFacet([2**62])), query, 5)] == ["a"]
    assert engine.rank_vectors(View(1, False), query, 5) == []
    assert [hit.node_id for hit in engine.rank_terms(View(1), {2: 1.0}, 5)] == ["b", "a"]
    (hit,) = engine.rank_terms(View(1), {7: 1.0}, 1)
    assert (hit.node_id, hit.length, hit.norm) == ("a", 3, 1.5)
    assert dict(zip(hit.terms.tolist(), hit.weights.tolist(), strict=True)) == {2: 0.25, 7: 0.5}
    assert engine.vectors([("b", 1), ("missing", 1)]) == {"b": [0.0, 1.0]}


def test_conditions_are_filters_of_the_engine(engine: Engine) -> None:
    engine.write([chunk(str(number), 1, facets=[number, 10 + number % 2]) for number in range(4)], 2)
    cases: Sequence[tuple[Any, str]] = (
        (AnyFacet([1, 2]), "12"),
        (Junction("all", [AnyFacet([1, 2]), AnyFacet([10])]), "2"),
        (Junction("any", [AnyFacet([1]), AnyFacet([3])]), "13"),
        (Junction("none", [AnyFacet([1]), AnyFacet([10])]), "3"),
        (Junction("any", [Junction("none", [AnyFacet([10])]), AnyFacet([0])]), "013"),
    )
    for condition, names in cases:
        assert sorted(name for name, _ in engine.keys(View(1, condition))) == list(names), condition
    with pytest.raises(TypeError):
        to_filter(True)


def test_nodes_are_returned_as_they_were_stored(engine: Engine) -> None:
    node = TextNode(id_="合同", text="e\u0301 🦙\n", metadata={"list": [1, "ß", None], "a.b[0]": {"c": 2**53 + 1}})
    engine.write([StoredChunk(node, 1, "d", [], 1, 1.0, np.zeros(0, np.int32), np.zeros(0, np.float32), None)], None)
    assert engine.nodes([("合同", 1)]) == {"合同": node}


# ---- settings and errors ---------------------------------------------------------------------------------------------


def test_settings_that_qdrant_cannot_follow_are_refused_at_creation(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    with pytest.raises(ConfigurationError, match="faiss_index"):
        manager.create("p", ProjectConfig.local(backend="qdrant", backend_url=":memory:", faiss_index="rabitq"))
    with pytest.raises(ConfigurationError, match="backend_url is not set"):
        ProjectConfig.local(backend="qdrant")
    with pytest.raises(ConfigurationError, match="an absolute path, or :memory:"):
        ProjectConfig.local(backend="qdrant", backend_url="qdrant/data")
    with pytest.raises(ConfigurationError, match="QDRANT_API_KEY"):
        ProjectConfig.local(backend="qdrant", backend_url="https://user:secret@host:6333")
    assert manager.list() == []


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant, "_RETRY", RetryPolicy(attempts=2, base_delay=0.001))


@pytest.mark.usefixtures("_impatient")
def test_a_server_that_does_not_answer_is_named_and_no_project_is_created(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    with pytest.raises(BackendError, match=r"Qdrant at http://127.0.0.1:9 does not answer .*start it") as raised:
        manager.create("p", ProjectConfig.local(backend="qdrant", backend_url="http://127.0.0.1:9"))
    assert raised.value.url == "http://127.0.0.1:9"
    assert manager.list() == []


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every call with a status, and records the keys."""

    status = 401
    keys: list[str | None] = []  # noqa: RUF012 - set by each test

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("api-key"))
        body = json.dumps({"status": {"error": "no"}}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Refusing.keys = []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("_impatient")
@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_a_refused_key_is_read_from_the_environment_and_never_shown(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", "qd-secret-key")
    monkeypatch.setattr(Refusing, "status", 401)
    with pytest.raises(BackendError, match="refuses the key: set the environment variable QDRANT_API_KEY") as raised:
        ProjectManager(tmp_path).create("p", ProjectConfig.local(backend="qdrant", backend_url=address))
    assert Refusing.keys == ["qd-secret-key"]
    assert "qd-secret-key" not in str(raised.value)


@pytest.mark.usefixtures("_impatient")
def test_a_server_that_is_overloaded_is_asked_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusing, "status", 503)
    with pytest.raises(BackendError, match="refuses a call"):
        QdrantEngine(Collection("qdrant", address, "c")).ping()
    assert len(Refusing.keys) == 2


def test_the_store_of_llamaindex_reads_the_chunks_of_a_version(tmp_path: Path) -> None:
    stock = pytest.importorskip("llama_index.vector_stores.qdrant")
    manager = ProjectManager(tmp_path)
    project = manager.create(
        "p", ProjectConfig.local(backend="qdrant", backend_url=":memory:"), embed_model=CountingEmbedding()
    )
    for mark in ("old", "new"):
        project.ingest([Document(text=f"{mark} pump", id_="a"), Document(text=f"{mark} valve", id_="b")])
    engine: Any = open_engine(project.directory)
    store = stock.QdrantVectorStore(engine.collection.name, client=engine._client, dense_vector_name=qdrant.VECTOR)
    query = VectorStoreQuery(query_embedding=CountingEmbedding().get_query_embedding("pump"), similarity_top_k=5)
    for version, mark in ((1, "old"), (2, "new")):
        result = store.query(query, qdrant_filters=qdrant._selection(View(version)))
        assert [node.get_content() for node in result.nodes] == [f"{mark} pump", f"{mark} valve"]
    own = project.index.as_retriever(similarity_top_k=5).retrieve("pump")
    assert [(hit.node, pytest.approx(hit.score)) for hit in own] == list(
        zip(result.nodes, result.similarities, strict=True)
    )
    manager.delete("p")


def test_a_deleted_project_leaves_no_collection(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    project = manager.create("p", ProjectConfig.local(backend="qdrant", backend_url=":memory:"))
    project.ingest([TextNode(text="pump")])
    engine: Any = open_engine(project.directory)
    name, client = engine.collection.name, engine._client
    assert client.collection_exists(name)
    manager.delete("p")
    assert not client.collection_exists(name)
    assert not (tmp_path / "p").exists()
