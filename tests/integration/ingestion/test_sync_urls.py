"""Files and pages at URLs: what is read and downloaded, what is refused, and what an outage leaves alone."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import fsspec.config
import pytest
import tenacity

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, InputError, LargeRemovalError, PathNotFoundError
from llama_index_contextual.index.sources import DOWNLOADS_FILE
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import ReadLimits, remote
from llama_index_contextual.readers import web as web_driver
from tests.integration.ingestion.test_sync import listed
from tests.support.sources import SECRET, Page, WebServer, files_with

HTML = b"<html><head><title>Tariff</title></head><body><h1>Tariff</h1><p>Water costs two crowns.</p></body></html>"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat requests without a pause."""
    monkeypatch.setattr(remote, "RETRYING", remote.RETRYING.copy(wait=tenacity.wait_none()))


@pytest.fixture
def store() -> Iterator[Any]:
    """An in-memory store in which other tests have no files; its root is `store.root`."""
    store = fsspec.filesystem("memory", skip_instance_cache=True)
    store.root = f"/{uuid4().hex}"
    for name in ("one", "two", "within/three"):
        store.pipe_file(f"{store.root}/docs/{name}.md", f"# Document {name}\n\nThe text of {name}.".encode())
    yield store
    for path in store.find(store.root):
        store.rm_file(path)


@pytest.fixture
def url(store: Any) -> str:
    """URL of the documents in the store."""
    return f"memory:/{store.root}/docs"


@pytest.fixture
def server() -> Iterator[WebServer]:
    """A web server with a page and a text file."""
    with WebServer() as running:
        running.pages["/tariff"] = Page(HTML, etag='"1"')
        running.pages["/a.txt"] = Page(b"Plain text about valves.", kind="text/plain", etag='"1"')
        yield running


@pytest.fixture
def web(manager: ProjectManager) -> Project:
    """An empty project that may ask servers on this machine."""
    return manager.create("web", ProjectConfig.local(allow_private_addresses=True))


def ids(project: Project) -> list[str]:
    """Return the ids of the documents."""
    return sorted(record.doc_id for record in project.documents())


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_all_changes_of_a_source_are_published_in_one_version(counted: Project, store: Any, url: str) -> None:
    assert listed(counted.sync_folders(url)) == {"added": ["docs/one.md", "docs/two.md", "docs/within/three.md"]}
    store.mv(f"{store.root}/docs/one.md", f"{store.root}/docs/uno.md")
    store.rm(f"{store.root}/docs/two.md")
    store.pipe_file(f"{store.root}/docs/within/three.md", b"# Changed\n\nAnother text.")
    store.pipe_file(f"{store.root}/docs/four.md", b"# Four\n\nA new one.")
    assert listed(counted.sync_folders(url)) == {
        "added": ["docs/four.md"],
        "updated": ["docs/within/three.md"],
        "renamed": {"docs/one.md": "docs/uno.md"},
        "removed": ["docs/two.md"],
    }
    version = counted.sync_folders(url).version
    assert version == "v000002"


def test_only_files_with_another_fingerprint_are_downloaded(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[str] = []
    read = remote.FsspecDriver.read
    monkeypatch.setattr(
        remote.FsspecDriver, "read", lambda self, url, write: (downloads.append(url), read(self, url, write))[1]
    )
    counted.sync_folders(url)
    assert len(downloads) == 3
    store.pipe_file(f"{store.root}/docs/one.md", b"# Changed\n\nAnother text.")
    assert listed(counted.sync_folders(url, dry_run=True)) == {"updated": ["docs/one.md"]}
    assert len(downloads) == 3, "a preview downloads nothing"
    counted.sync_folders(url)
    assert downloads[3:] == [f"{url}/one.md"]
    (counted.directory / DOWNLOADS_FILE).write_text("[1")
    assert listed(counted.sync_folders(url)) == {}
    assert len(downloads) == 7, "without a list of downloads, all files are compared again"


def test_a_glob_and_a_single_file_keep_the_ids_of_the_documents(counted: Project, url: str) -> None:
    counted.ingest(f"{url}/**/*.md")
    assert ids(counted) == ["docs/one.md", "docs/two.md", "docs/within/three.md"]
    assert counted.ingest(f"{url}/within/three.md").unchanged == ("docs/within/three.md",)
    assert counted.estimate(url).documents == 0


def test_metadata_is_given_by_url(counted: Project, url: str) -> None:
    counted.ingest(url, file_metadata=lambda path: {"from": path})
    assert next(record.facts for record in counted.documents()) == {"from": f"{url}/one.md"}


def test_a_local_copy_of_a_remote_file_is_another_document(counted: Project, url: str, tmp_path: Path) -> None:
    counted.ingest(url)
    (tmp_path / "one.md").write_bytes(b"# Document one\n\nThe text of one.")
    report = counted.ingest(tmp_path / "one.md")
    assert (report.renamed, ids(counted)) == ({}, ["docs/one.md", "docs/two.md", "docs/within/three.md"])
    assert "has the same content as the document 'docs/one.md'" in report.skipped[0].reason


# ---- outages ---------------------------------------------------------------------------------------------------------


def fail(*arguments: Any, **options: Any) -> Any:
    """Fail as a store whose network is down, with a message that contains a password."""
    raise TimeoutError(f"https://me:{SECRET}@store.example/?sig={SECRET} does not answer")


@pytest.mark.parametrize("operation", ["ls", "info"])
def test_a_source_that_cannot_be_listed_changes_nothing(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    counted.sync_folders(url)
    store.rm(f"{store.root}/docs/two.md")
    monkeypatch.setattr(type(store), operation, fail)
    with pytest.raises(InputError, match=r"No document was changed") as caught:
        counted.sync_folders(url, allow_empty=True)
    assert SECRET not in str(caught.value)
    assert len(ids(counted)) == 3
    with pytest.raises(PathNotFoundError, match=r"documents from this path would be removed|nothing to ingest"):
        counted.ingest(url, replace=True)
    assert len(ids(counted)) == 3


def test_a_listing_without_a_file_that_still_exists_removes_nothing(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders(url)
    whole = type(store).ls
    monkeypatch.setattr(type(store), "ls", lambda self, path, **options: whole(self, path, **options)[:1])
    assert listed(counted.sync_folders(url)) == {}
    assert len(ids(counted)) == 3


def test_a_folder_that_cannot_be_listed_within_a_source_removes_nothing(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders(url)
    whole = type(store).ls
    monkeypatch.setattr(
        type(store), "ls", lambda self, path, **options: (fail if "within" in path else whole)(self, path, **options)
    )
    with pytest.raises(InputError, match="No document was changed"):
        counted.sync_folders(url)
    assert len(ids(counted)) == 3


def test_a_file_that_cannot_be_downloaded_keeps_its_document(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.sync_folders(url)
    store.pipe_file(f"{store.root}/docs/one.md", b"# Changed\n\nAnother text.")
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "_open", fail)
        report = counted.sync_folders(url)
        assert "cannot be reached (TimeoutError" in report.skipped[0].reason
        assert SECRET not in report.skipped[0].reason
        assert len(ids(counted)) == 3
        with pytest.raises(PathNotFoundError):
            counted.ingest(url, replace=True)
    assert listed(counted.sync_folders(url)) == {"updated": ["docs/one.md"]}


def test_an_emptied_source_is_an_error_unless_it_is_allowed(counted: Project, store: Any, url: str) -> None:
    counted.sync_folders(url)
    for name in ("one", "within/three"):
        store.rm(f"{store.root}/docs/{name}.md")
    with pytest.raises(LargeRemovalError):
        counted.sync_folders(url)
    store.rm(f"{store.root}/docs/two.md")
    with pytest.raises(InputError, match="There is nothing at"):
        counted.sync_folders(url)
    assert len(ids(counted)) == 3
    assert len(counted.sync_folders(url, allow_empty=True).removed) == 3


def test_a_fingerprint_that_changes_during_a_download_is_not_trusted(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old text of a file must not be kept under the fingerprint of the new one."""
    opened = type(store)._open

    def replace_first(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        file = opened(self, path, *arguments, **options)
        if path.endswith("one.md"):
            monkeypatch.setattr(type(store), "_open", opened)
            store.pipe_file(path, b"# Document one\n\nThe tale of one.")
        return file

    monkeypatch.setattr(type(store), "_open", replace_first)
    counted.sync_folders(url)
    counted.sync_folders(url)
    assert "The tale of one." in counted.read("docs/one.md")


# ---- web pages -------------------------------------------------------------------------------------------------------


def test_pages_and_files_of_a_web_server_are_read(web: Project, server: WebServer) -> None:
    assert web.ingest([f"{server.url}/tariff", f"{server.url}/a.txt"]).added == ("tariff.html", "a.txt")
    assert "Water costs two crowns." in web.read("tariff.html")
    server.pages["/tariff"] = Page(HTML.replace(b"two", b"three"), etag='"2"')
    assert listed(web.sync_folders([f"{server.url}/tariff", f"{server.url}/a.txt"])) == {"updated": ["tariff.html"]}
    del server.pages["/a.txt"]
    with pytest.raises(PathNotFoundError, match="There is nothing at"):
        web.sync_folders(f"{server.url}/a.txt")
    assert web.sync_folders(f"{server.url}/a.txt", allow_empty=True).removed == ("a.txt",)


def test_a_page_whose_etag_changes_is_compared_by_its_content(web: Project, server: WebServer) -> None:
    server.pages["/tariff"] = Page(HTML, fault="new etags")
    url = f"{server.url}/tariff"
    assert [web.sync_folders(url).version for _ in range(3)] == ["v000001"] * 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", r"is refused by its server \(503 Service Unavailable\)"),
        ("stall", r"cannot be reached \(ReadTimeout"),
        ("short", r"cannot be read completely \(RemoteProtocolError"),
    ],
)
def test_a_server_that_fails_removes_nothing(
    web: Project, server: WebServer, monkeypatch: pytest.MonkeyPatch, fault: Any, reason: str
) -> None:
    monkeypatch.setattr(web_driver, "_SILENCE", 0.05)
    url = f"{server.url}/tariff"
    web.sync_folders(url)
    server.pages["/tariff"] = Page(HTML.replace(b"two", b"three"), etag='"2"', fault=fault)
    if fault == "short":
        report = web.sync_folders(url)
        assert re.search(reason, report.skipped[0].reason)
    else:
        with pytest.raises(InputError, match=reason):
            web.sync_folders(url)
    assert "two crowns" in web.read("tariff.html")
    server.pages["/tariff"].fault = ""
    assert listed(web.sync_folders(url)) == {"updated": ["tariff.html"]}


def test_a_server_that_announces_too_few_bytes_is_read_as_far_as_announced(web: Project, server: WebServer) -> None:
    server.pages["/a.txt"] = Page(b"Plain text about valves. And more.", kind="text/plain", fault="large")
    web.ingest(f"{server.url}/a.txt")
    assert web.read("a.txt") == "Plain text about valves."


def test_the_size_of_files_and_pages_is_limited_while_they_are_read(
    web: Project, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_driver, "MAX_PAGE_BYTES", 10_000)
    server.pages["/large"] = Page(HTML + b" " * 20_000, fault="chunked")
    server.pages["/large.txt"] = Page(b"word " * 20_000, kind="text/plain", fault="chunked")
    urls = [f"{server.url}/large", f"{server.url}/large.txt", f"{server.url}/a.txt"]
    report = web.ingest(urls, limits=ReadLimits(max_bytes=50_000))
    assert [file.reason for file in report.skipped] == [
        "is a page of more than 10,000 bytes: save it as a file",
        "has more than 50,000 bytes: split it into smaller files",
    ]
    assert ids(web) == ["a.txt"]


def test_a_download_that_takes_too_long_is_given_up(web: Project, server: WebServer) -> None:
    with pytest.raises(InputError, match="takes more than 0 seconds to download"):
        web.ingest([f"{server.url}/tariff"], limits=ReadLimits(max_seconds=0.0))


# ---- addresses and credentials ---------------------------------------------------------------------------------------


def test_internal_addresses_are_not_asked_unless_it_is_allowed(manager: ProjectManager, server: WebServer) -> None:
    project = manager.create("careful", ProjectConfig.local())
    with pytest.raises(InputError, match=r"internal address 127\.0\.0\.1, which is not asked"):
        project.ingest(f"{server.url}/tariff")
    assert server.requests == []
    project.update_config(allow_private_addresses=True)
    assert project.ingest(f"{server.url}/tariff").added == ("tariff.html",)


def test_a_redirect_to_an_internal_address_is_not_followed(
    manager: ProjectManager, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server seems public; the one it redirects to has a name that leads to this machine."""
    monkeypatch.setattr(web_driver, "is_public", lambda address: address == "127.0.0.1")
    port = server.url.rpartition(":")[2]
    server.pages["/moved"] = Page(f"http://[::1]:{port}/tariff".encode(), fault="moved")
    project = manager.create("careful", ProjectConfig.local())
    with pytest.raises(InputError, match="internal address ::1"):
        project.ingest(f"{server.url}/moved")
    assert [path for path, _ in server.requests] == ["/moved"]


def test_a_name_that_changes_its_address_after_the_check_is_found_out(
    manager: ProjectManager, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def public_first(host: Any, *arguments: Any, **options: Any) -> Any:
        found = real("127.0.0.1", *arguments, **options)
        return [(*one[:4], ("93.184.215.14", *one[4][1:])) for one in found] if host == "rebound.example" else found

    monkeypatch.setattr(web_driver.socket, "getaddrinfo", public_first)
    driver = web_driver.WebDriver(allow_private=False)
    driver._client = web_driver.httpx.Client(transport=_To(server))
    with pytest.raises(remote.RemoteError, match=r"internal address 127\.0\.0\.1"):
        driver.entry("http://rebound.example/tariff")


class _To(web_driver.httpx.HTTPTransport):
    """Transport that connects to a server on this machine, whatever the name of the host is."""

    def __init__(self, server: WebServer) -> None:
        super().__init__()
        self._url = web_driver.httpx.URL(server.url)

    def handle_request(self, request: web_driver.httpx.Request) -> web_driver.httpx.Response:
        request.url = request.url.copy_with(host=self._url.host, port=self._url.port)
        return super().handle_request(request)


def test_configured_credentials_are_sent_to_the_named_host_only_and_stored_nowhere(
    web: Project, server: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="llama_index_contextual")
    headers = {"Authorization": f"Bearer {SECRET}"}
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": {"headers": headers}})
    port = server.url.rpartition(":")[2]
    server.pages["/moved"] = Page(f"http://localhost:{port}/tariff".encode(), fault="moved")
    web.ingest([f"{server.url}/moved", f"{server.url}/a.txt"])
    sent = dict(server.requests)
    assert sent == {"/moved": f"Bearer {SECRET}", "/tariff": None, "/a.txt": f"Bearer {SECRET}"}
    assert files_with(web.directory, SECRET) == []
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (f"https://me:{SECRET}@example.org/a.pdf", "a name or password before the @"),
        (f"webdav://me:{SECRET}@example.org/docs", "a name or password before the @"),
        (f"https://example.org/a.pdf?X-Amz-Signature={SECRET}", "the key 'X-Amz-Signature'"),
        (f"https://example.org/a.pdf?access_token={SECRET}", "the key 'access_token'"),
        ("file:///etc/passwd", "names a local file"),
        ("simplecache::s3://bucket/a", "is a URL|does not exist"),
        ("https:///a.pdf", "has no host"),
        (f"https://example.org/{'a' * 5_000}", "5,020 characters"),
    ],
)
def test_urls_with_credentials_or_local_files_are_refused(counted: Project, url: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        counted.ingest(url)
    assert SECRET not in f"{caught.value!r} {caught.value.value!r}"


def test_a_password_in_the_message_of_a_driver_is_removed(
    counted: Project, store: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError(f"The user me with {SECRET} is not known")

    monkeypatch.setitem(fsspec.config.conf, "memory", {"auth": ["me", SECRET]})
    monkeypatch.setattr(type(store), "ls", refuse)
    with pytest.raises(InputError, match="RuntimeError: The user me with") as caught:
        counted.sync_folders(url)
    assert SECRET not in str(caught.value)


def test_a_missing_driver_is_named_with_its_install_line(counted: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(protocol: str) -> Any:
        raise ImportError("Install it") from ModuleNotFoundError("No module", name="webdav4.fsspec")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(ConfigurationError, match=r'webdav:// needs .* pip install "webdav4\[fsspec\]"'):
        counted.ingest("webdav://docs")


def test_an_unknown_protocol_and_a_missing_setting_are_explained(counted: Project) -> None:
    with pytest.raises(ConfigurationError, match="Protocol not known: nosuch"):
        counted.ingest("nosuch://docs")


def test_ray_cannot_read_urls(counted: Project, url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Ray cannot read URLs|needs Ray"):
        counted.ingest(url, ray="local")
