"""A server on loopback with Qdrant's HTTP interface, which can fail at any request."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import TypeAdapter
from qdrant_client import QdrantClient, models

Fault = Callable[["Request", Callable[[], None]], bool]
"""Receives a request and a function that processes it; returns whether the connection ends without a response."""


class Request:
    """A request that the server has received.

    Attributes:
        method: Its method.
        path: Its path.
        body: Its body.
    """

    def __init__(self, method: str, path: str, body: Any) -> None:
        self.method, self.path, self.body = method, path, body

    @property
    def writes(self) -> bool:
        """Whether it changes stored data."""
        return self.method in ("PUT", "DELETE", "PATCH") or bool(re.search(r"/points/(payload|delete)$", self.path))


class QdrantServer:
    """Collections in memory behind Qdrant's HTTP interface.

    Attributes:
        requests: Every request so far.
        key: Key that requests must have; None accepts all.
        fault: Fails requests; None processes all.
        status: Status of every response instead of its result, with `body`; None processes requests.
        indexes: The payload indexes of each collection.
    """

    def __init__(self) -> None:
        self.client = QdrantClient(":memory:", force_disable_check_same_thread=True)
        self.requests: list[Request] = []
        self.key: str | None = None
        self.fault: Fault | None = None
        self.status: int | None = None
        self.body = b"{}"
        self.headers: Mapping[str, str] = {}
        self.indexes: dict[str, dict[str, str]] = {}
        self.url = ""
        self._lock = threading.RLock()

    def answer(self, request: Request) -> tuple[int, Any]:
        """Process a request, and return the status and the result of the response."""
        with self._lock:
            if request.path == "/collections":
                return 200, {"collections": [one.model_dump() for one in self.client.get_collections().collections]}
            match = re.fullmatch(r"/collections/([^/]+)(/.*)?", request.path)
            assert match is not None, request.path
            name, rest = match[1], match[2] or ""
            exists = self.client.collection_exists(name)
            if rest == "/exists":
                return 200, {"exists": exists}
            if not rest and request.method in ("PUT", "DELETE"):
                return getattr(self, f"_{request.method.lower()}")(name, request.body, exists=exists)  # type: ignore[no-any-return]
            if not exists:
                return 404, f"Not found: Collection `{name}` doesn't exist!"
            try:
                return 200, _ANSWERS[f"{request.method} {rest}"](self, name, request.body)
            except ValueError as error:
                return 400, f"Wrong input: {error}"

    def _put(self, name: str, body: Any, *, exists: bool) -> tuple[int, Any]:
        if exists:
            return 409, f"Wrong input: Collection `{name}` already exists!"
        given = models.CreateCollection.model_validate(body)
        self.indexes[name] = {}
        return 200, self.client.create_collection(
            name, vectors_config=given.vectors or {}, sparse_vectors_config=given.sparse_vectors
        )

    def _delete(self, name: str, _: Any, *, exists: bool) -> tuple[int, Any]:
        return 200, exists and self.client.delete_collection(name)

    def _info(self, name: str, _: Any) -> Any:
        info = self.client.get_collection(name).model_dump(mode="json")
        schema = {field: {"data_type": kind, "points": 0} for field, kind in self.indexes[name].items()}
        return info | {"payload_schema": schema}

    def _index(self, name: str, body: Any) -> Any:
        self.indexes[name][body["field_name"]] = body["field_schema"]
        return _DONE

    def _upsert(self, name: str, body: Any) -> Any:
        points = models.PointsList.model_validate(body).points
        for point in points:
            sizes = self.client.get_collection(name).config.params.vectors
            for key, vector in point.vector.items():  # type: ignore[union-attr]
                if isinstance(vector, list):
                    if key not in sizes:  # type: ignore[operator]
                        raise ValueError(f"Not existing vector name error: {key}")
                    if sizes[key].size != len(vector):  # type: ignore[index, union-attr, arg-type]
                        raise ValueError(f"Vector dimension error: expected dim: {sizes[key].size}")  # type: ignore[index, union-attr]
        self.client.upsert(name, points)
        return _DONE

    def _payload(self, name: str, body: Any) -> Any:
        given = models.SetPayload.model_validate(body)
        self.client.set_payload(name, given.payload, points=given.filter or given.points)  # type: ignore[arg-type]
        return _DONE

    def _delete_points(self, name: str, body: Any) -> Any:
        selector: Any = TypeAdapter(models.FilterSelector | models.PointIdsList).validate_python(body)
        self.client.delete(name, selector)
        return _DONE

    def _query(self, name: str, body: Any) -> Any:
        given: Any = models.QueryRequest.model_validate(body)
        return self.client.query_points(
            name,
            query=given.query,
            using=given.using,
            query_filter=given.filter,
            limit=given.limit,
            with_payload=given.with_payload,
            with_vectors=given.with_vector,
        ).model_dump(mode="json")

    def _retrieve(self, name: str, body: Any) -> Any:
        given: Any = models.PointRequest.model_validate(body)
        found = self.client.retrieve(name, given.ids, with_payload=given.with_payload, with_vectors=given.with_vector)
        return [point.model_dump(mode="json") for point in found]

    def _scroll(self, name: str, body: Any) -> Any:
        given: Any = models.ScrollRequest.model_validate(body)
        points, place = self.client.scroll(
            name, given.filter, limit=given.limit, offset=given.offset, with_payload=given.with_payload
        )
        return {"points": [point.model_dump(mode="json") for point in points], "next_page_offset": place}

    def _count(self, name: str, body: Any) -> Any:
        return {"count": self.client.count(name, models.CountRequest.model_validate(body).filter).count}


_DONE = {"operation_id": 0, "status": "completed"}
_ANSWERS: Mapping[str, Callable[[QdrantServer, str, Any], Any]] = {
    "GET ": QdrantServer._info,
    "PUT /index": QdrantServer._index,
    "PUT /points": QdrantServer._upsert,
    "POST /points": QdrantServer._retrieve,
    "POST /points/payload": QdrantServer._payload,
    "POST /points/delete": QdrantServer._delete_points,
    "POST /points/query": QdrantServer._query,
    "POST /points/scroll": QdrantServer._scroll,
    "POST /points/count": QdrantServer._count,
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        server: QdrantServer = self.server.qdrant  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path.partition("?")[0], json.loads(body) if body else None)
        server.requests.append(request)
        if server.status is not None:
            self._send(server.status, server.body)
            return
        if server.key is not None and self.headers.get("api-key") != server.key:
            self._send(401, b"Must provide an API key or an Authorization bearer token")
            return
        results: list[tuple[int, Any]] = []
        if server.fault is not None and server.fault(request, lambda: results.append(server.answer(request))):
            self.close_connection = True
            return
        status, result = results[0] if results else server.answer(request)
        content = {"result": result, "status": "ok"} if status == 200 else {"status": {"error": result}}
        self._send(status, json.dumps({**content, "time": 0.0}).encode())

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = handle_request

    def _send(self, status: int, body: bytes) -> None:
        server: QdrantServer = self.server.qdrant  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {**server.headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@contextmanager
def qdrant_server() -> Iterator[QdrantServer]:
    """Run a server within the block."""
    qdrant = QdrantServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.daemon_threads = True
    http.qdrant = qdrant  # type: ignore[attr-defined]
    qdrant.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield qdrant
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
        qdrant.client.close()
