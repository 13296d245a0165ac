"""Sources of documents at URLs, for tests: an object store, a WebDAV server and a web server, all on this machine.

`RandomSource` makes random changes in any of them and remembers the files. `Relay` stands between a client and a
server and interrupts their connections, and `WebServer` serves pages and breaks its word about them.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import fsspec
import fsspec.config
import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, PathNotFoundError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.readers import web
from tests.support.changes import WORDS, differences, state_of

SECRET = "Wq7-hidden-41xPz9"
"""Password of all sources, which must appear nowhere."""
NAMES = ("report", "Report", "notes", "über", "合同", "a b", "q&a", "x.y", "100%", "con", "a#b", "a+b")
FOLDERS = ("", "", "2023", "2024", "2024/q1", "合同", "deep/er/still")


@dataclass
class RandomSource:
    """Makes random changes in a source.

    Args:
        put: Function that writes a file.
        delete: Function that deletes a file.
        seed: Seed of the random numbers.
        names: Beginnings of the names of files.

    Attributes:
        files: The content of each file, by its path.
        log: The changes, for the message of a failed test.
    """

    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    seed: int
    names: Sequence[str] = NAMES
    files: dict[str, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def change(self) -> None:
        """Write, change, touch, rename or delete one file."""
        names = sorted(self.files)
        kind = self._random.choice(("add", "add", "change", "touch", "rename", "copy", "delete"))
        if len(names) < 5 or (kind == "delete" and len(names) < 12):
            kind = "add"
        self.log.append(kind)
        if kind == "add":
            self._write(self._new_name(), self._text())
            return
        name = self._random.choice(names)
        if kind == "change":
            self._write(name, self._text())
        elif kind == "touch":
            self._write(name, self.files[name])
        elif kind == "copy":
            self._write(self._new_name(), self.files[name])
        elif kind == "rename":
            self._write(self._new_name(), self.files[name])
            self._delete(name)
        else:
            self._delete(name)

    def _write(self, name: str, data: bytes) -> None:
        self.put(name, data)
        self.files[name] = data

    def _delete(self, name: str) -> None:
        self.delete(name)
        del self.files[name]

    def _new_name(self) -> str:
        folder = self._random.choice(FOLDERS)
        name = f"{self._random.choice(self.names)} {self._random.randrange(1000)}.md"
        return f"{folder}/{name}" if folder else name

    def _text(self) -> bytes:
        words = " ".join(self._random.choices(WORDS, k=30))
        return f"# Number {self._random.randrange(10_000)}\n\nThe {words}.".encode()


# ---- interrupted connections -----------------------------------------------------------------------------------------


class Relay:
    """Server that passes connections on to another one on this machine, or interrupts them.

    Args:
        port: Port of the other server.

    Attributes:
        port: Port of the relay.
        mode: "pass"; "refuse" closes each connection at once; "cut" closes it after `cut_after` bytes of the reply.
        cut_after: Number of bytes.
    """

    def __init__(self, port: int) -> None:
        self.mode: Literal["pass", "refuse", "cut"] = "pass"
        self.cut_after = 400
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                if self.mode == "refuse":
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, target, is_reply in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=(source, target, is_reply), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        total = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.mode == "refuse":
                    break
                if is_reply and self.mode == "cut":
                    target.sendall(data[: max(0, self.cut_after - total)])
                    total += len(data)
                    if total >= self.cut_after:
                        break
                else:
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


# ---- servers ---------------------------------------------------------------------------------------------------------


@dataclass
class Page:
    """A page of `WebServer`.

    Attributes:
        body: The content.
        kind: Its media type, or "".
        etag: Its ETag, or "".
        fault: "stall" sends nothing, "short" announces more bytes than it sends, "large" fewer, "new etags" sends
            another ETag with each response, "error" answers with 503, and "moved" redirects to `body`.
    """

    body: bytes
    kind: str = "text/html"
    etag: str = ""
    fault: Literal["", "stall", "short", "large", "new etags", "error", "moved", "chunked"] = ""


class WebServer:
    """Web server whose pages break its word.

    Attributes:
        pages: The pages by their path.
        requests: The path and the Authorization header of each request.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.requests: list[tuple[str, str | None]] = []
        self._released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version: ClassVar[str] = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append((self.path, self.headers.get("Authorization")))
                with contextlib.suppress(OSError):
                    outer._answer(self)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(handler.path, Page(b"", fault="error" if None in self.pages else ""))
        handler.close_connection = True
        if handler.path not in self.pages or page.fault == "error":
            handler.send_response(503 if page.fault == "error" else 404)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if page.fault == "stall":
            self._released.wait()
            return
        if page.fault == "moved":
            handler.send_response(302)
            handler.send_header("Location", page.body.decode())
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(200)
        etag = f'"{len(self.requests)}"' if page.fault == "new etags" else page.etag
        for name, value in (("Content-Type", page.kind), ("ETag", etag)):
            if value:
                handler.send_header(name, value)
        sizes = {"short": len(page.body) + 100, "large": max(0, len(page.body) - 10)}
        if page.fault == "chunked":
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for at in range(0, len(page.body), 4096):
                block = page.body[at : at + 4096]
                handler.wfile.write(f"{len(block):x}\r\n".encode() + block + b"\r\n")
            handler.wfile.write(b"0\r\n\r\n")
            return
        handler.send_header("Content-Length", str(sizes.get(page.fault, len(page.body))))
        handler.end_headers()
        handler.wfile.write(page.body)


@contextlib.contextmanager
def object_store() -> Iterator[int]:
    """Run moto's S3 server and yield its port."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield int(server.get_host_and_port()[1])
    finally:
        server.stop()


@contextlib.contextmanager
def webdav_server(folder: Path) -> Iterator[int]:
    """Serve a folder with WsgiDAV to the user "me" and yield the port."""
    from cheroot import wsgi
    from wsgidav.wsgidav_app import WsgiDAVApp

    application = WsgiDAVApp(
        {
            "provider_mapping": {"/": str(folder)},
            "simple_dc": {"user_mapping": {"*": {"me": {"password": SECRET}}}},
            "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
            "verbose": 0,
            "logging": {"enable": False},
        }
    )
    server = wsgi.Server(("127.0.0.1", 0), application, numthreads=8)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield int(server.bind_addr[1])
    finally:
        server.stop()
        thread.join()


def interrupting(relay: Relay) -> Callable[[str], contextlib.AbstractContextManager[object]]:
    """Return a context manager that interrupts the connections of a relay."""

    @contextlib.contextmanager
    def interrupt(mode: Any) -> Iterator[None]:
        relay.mode = mode
        try:
            yield
        finally:
            relay.mode = "pass"

    return interrupt


def files_with(directory: Path, text: str) -> list[str]:
    """Return the files below a directory whose content or name contains a text."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path.name for path in paths if text in str(path) or text.encode() in path.read_bytes()]


# ---- histories -------------------------------------------------------------------------------------------------------


def sync_history(
    manager: ProjectManager,
    url: str,
    source: RandomSource,
    *,
    changes: int,
    interrupt: Callable[[str], contextlib.AbstractContextManager[object]],
) -> list[str]:
    """Sync a project with a source during random changes and outages, and return what is wrong in the end.

    Args:
        manager: Creates the projects "synced" and "fresh".
        url: URL of the source.
        source: The source.
        changes: Number of changes; a tenth of them is made between two syncs.
        interrupt: Context manager in which the source is unreachable ("refuse") or its replies are cut ("cut").
    """
    project = manager.create("synced", ProjectConfig.local())
    problems: list[str] = []
    for batch in range(10):
        for _ in range(changes // 10):
            source.change()
        before = {record.doc_id for record in project.documents()}
        for mode in ("refuse", "cut") if before else ():
            with interrupt(mode):
                try:
                    report = project.sync_folders(url, allow_many=True, allow_empty=True)
                    removed: Sequence[str] = report.removed
                    problems += [f"{mode}: {file.reason}" for file in report.skipped if SECRET in file.reason]
                    if mode == "refuse":
                        problems.append("a sync without a connection succeeded")
                except (InputError, PathNotFoundError) as error:
                    removed = sorted(before - {record.doc_id for record in project.documents()})
                    problems += [f"{mode}: {error}"] if SECRET in str(error) else []
            live = set(source.files)
            ended = [doc_id for doc_id in removed if doc_id.partition("/")[2] in live]
            problems += [f"batch {batch}, {mode}: removed {ended}"] if ended else []
        project.sync_folders(url, allow_many=True)
    fresh = manager.create("fresh", ProjectConfig.local())
    skipped = fresh.ingest(url).skipped
    problems += [f"{file.path} {file.reason}" for file in skipped if "same content" not in file.reason]
    problems += differences(project, fresh)
    texts = {project.read(record.doc_id) for record in project.documents()}
    problems += [] if texts == {data.decode() for data in source.files.values()} else ["texts are missing"]
    version = project.sync_folders(url).version
    problems += [] if version == project.sync_folders(url).version else ["an idle sync publishes a version"]
    return problems


def s3_history(manager: ProjectManager, folder: Path, changes: int, seed: int) -> list[str]:
    """Sync a project with moto's S3 server, and return what is wrong in the end; see `sync_history`."""
    import s3fs

    with object_store() as port, Relay(port) as relay, pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "retries", 1)
        settings = {"key": "AKIAEXAMPLE", "secret": SECRET, "config_kwargs": {"retries": {"max_attempts": 0}}}
        client = s3fs.S3FileSystem(**settings, endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
        client.mkdir("bucket")
        endpoint = f"http://127.0.0.1:{relay.port}"
        patch.setitem(fsspec.config.conf, "s3", {**settings, "endpoint_url": endpoint})
        source = RandomSource(
            lambda name, data: client.pipe_file(f"bucket/docs/{name}", data),
            lambda name: client.rm_file(f"bucket/docs/{name}"),
            seed,
        )
        return sync_history(manager, "s3://bucket/docs", source, changes=changes, interrupt=interrupting(relay))


def webdav_history(manager: ProjectManager, folder: Path, changes: int, seed: int) -> list[str]:
    """Sync a project with WsgiDAV, and return what is wrong in the end; see `sync_history`."""
    served = folder / "served"
    (served / "docs").mkdir(parents=True)

    def put(name: str, data: bytes) -> None:
        path = served / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    with webdav_server(served) as port, Relay(port) as relay, pytest.MonkeyPatch.context() as patch:
        settings = {"base_url": f"http://127.0.0.1:{relay.port}", "auth": ["me", SECRET]}
        patch.setitem(fsspec.config.conf, "webdav", settings)
        names = [name for name in NAMES if "#" not in name]  # webdav4 cannot open such files
        source = RandomSource(put, lambda name: (served / "docs" / name).unlink(), seed, names)
        return sync_history(manager, "webdav://docs", source, changes=changes, interrupt=interrupting(relay))


def web_history(manager: ProjectManager, folder: Path, changes: int, seed: int) -> list[str]:
    """Sync a project with pages that change, and whose server fails, and return what is wrong in the end."""
    draw = random.Random(seed)
    problems: list[str] = []
    config = ProjectConfig.local(allow_private_addresses=True)
    with WebServer() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(web, "_SILENCE", 0.2)
        settings = {"client_kwargs": {"headers": {"Authorization": f"Bearer {SECRET}"}}}
        patch.setitem(fsspec.config.conf, "http", settings)
        urls = [f"{server.url}/page{number}" for number in range(12)]
        project = manager.create("synced", config)

        def text(number: int) -> bytes:
            words = " ".join(draw.choices(WORDS, k=20))
            return f"<html><title>Page {number}</title><p>Page {number}: {words}.</p></html>".encode()

        for number in range(12):
            server.pages[f"/page{number}"] = Page(text(number), etag='"0"')
        for change in range(changes):
            page = server.pages[f"/page{draw.randrange(12)}"]
            if draw.random() < 0.7:
                page.body = text(int(page.body.split(b"Page ")[1].split(b"<")[0]))
            page.etag = draw.choice((f'"{change}"', f'"{change}"', ""))  # without an ETag, a page is always compared
            page.fault = draw.choice(("", "new etags", "chunked"))
            if change % max(1, changes // 10):
                continue
            for fault in ("error", "stall", "short"):
                before = state_of(project)
                kept, page.fault = page.fault, fault
                try:
                    removed = project.sync_folders(urls, allow_many=True, allow_empty=True).removed
                except InputError as error:
                    removed = ()
                    problems += [f"{fault}: {error}"] if SECRET in str(error) or state_of(project) != before else []
                problems += [f"{fault}: removed {removed}"] if removed else []
                page.fault = kept
            project.sync_folders(urls)
        for page in server.pages.values():
            page.fault = ""
        project.sync_folders(urls)
        fresh = manager.create("fresh", config)
        fresh.ingest(urls)
        problems += differences(project, fresh)
        return problems if len(project.documents()) == 12 else [*problems, "pages are missing"]
