"""The server of the workbench: who may read, which headers every response has, and how errors look."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from llama_index.core.schema import Document
from starlette.testclient import TestClient
from typer.testing import CliRunner

from llama_index_contextual.cli.app import app as program
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, CorruptVersionError, InputError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui import make_app, security
from llama_index_contextual.ui.app import serve

TOKEN = "a-token-of-32-characters-for-test"
BASE = "http://127.0.0.1:8010"
PAGES = ("/", "/p/reports/", "/p/reports/?q=pump", "/p/reports/project", "/p/reports/ask", "/nothing", "/p/other/")


def client(*projects: Project, **options: Any) -> TestClient:
    """Return a browser of this machine that does not follow redirections."""
    return TestClient(make_app(projects, **options), base_url=BASE, follow_redirects=False)


# ---- headers and methods ---------------------------------------------------------------------------------------------


def test_every_response_forbids_scripts_frames_sniffing_and_storage(filled: Project) -> None:
    browser = client(filled, token=TOKEN)
    responses = [browser.get(path, headers={"Authorization": f"Bearer {TOKEN}"}) for path in PAGES]
    responses += [browser.get("/login"), browser.get("/static/workbench.css"), browser.get("/p/reports/")]
    responses += [browser.get("/", headers={"Host": "evil.example"}), browser.post("/p/reports/")]
    for response in responses:
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert "base-uri 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in response.headers
        assert response.headers["referrer-policy"] == "same-origin"
        assert response.headers["cache-control"] == ("max-age=86400" if "/static/" in str(response.url) else "no-store")


def test_static_files_are_kept_under_an_address_that_changes_with_them_and_no_others_are_read(filled: Project) -> None:
    browser = client(filled)
    addresses = re.findall(r'"(/static/[^"]+)"', browser.get("/p/reports/").text)
    assert len(addresses) == 4
    for address in addresses:
        assert re.search(r"\?v=[0-9a-f]{12}$", address)
        assert browser.get(address).headers["cache-control"] == "max-age=86400"
    assert browser.get("/static/missing.css").headers["cache-control"] == "no-store"
    for path in ("/static/../views.py", "/static/%2e%2e/views.py", "/static//etc/passwd", "/static/"):
        assert browser.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_views_can_only_be_read(filled: Project, method: str) -> None:
    browser = client(filled)
    for path in ("/", "/p/reports/", "/p/reports/project", "/p/reports/document", "/static/icon.svg"):
        assert browser.request(method, path).status_code == 405
    response = browser.head("/p/reports/?q=pump")
    assert (response.status_code, response.text) == (200, "")


# ---- who may read ----------------------------------------------------------------------------------------------------


OWN_NAMES = ("127.0.0.1", "127.0.0.1:8010", "localhost:1", "LOCALHOST", "[::1]:8010", "docs.example:443")
OTHER_NAMES = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8010", "localhost."),
    *("localhost@evil", "", "[::1", "[::2]", "0.0.0.0"),
)


@pytest.mark.parametrize(("hosts", "status"), [(OWN_NAMES, 200), (OTHER_NAMES, 421)])
def test_other_names_are_refused(filled: Project, hosts: tuple[str, ...], status: int) -> None:
    browser = client(filled, allowed_hosts=["docs.example"])
    assert {host: browser.get("/p/reports/", headers={"Host": host}).status_code for host in hosts} == dict.fromkeys(
        hosts, status
    )
    assert client(filled).get("/p/reports/", headers={"Host": "docs.example"}).status_code == 421


NAVIGATION = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),  # curl
        ({"Sec-Fetch-Site": "none", **NAVIGATION}, 200),  # typed into the address bar
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "cross-site", **NAVIGATION}, 200),  # a link in a mail
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example", **NAVIGATION}, 403),
        ({"Origin": BASE}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),  # another program of this machine
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[evil"}, 403),
    ],
)
def test_pages_of_other_origins_get_nothing(filled: Project, headers: dict[str, str], status: int) -> None:
    response = client(filled).get("/p/reports/?q=pump", headers=headers)
    assert response.status_code == status
    assert ("manual.txt" in response.text) == (status == 200)
    if "Origin" in headers and status == 403:
        headers = {**headers, "Authorization": f"Bearer {TOKEN}"}
        assert client(filled, token=TOKEN).get("/p/reports/", headers=headers).status_code == 403


# ---- the token -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong-token-of-32-characters-xx"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN.upper()}"},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Cookie": f"workbench={TOKEN}; token={TOKEN}; session={TOKEN}"},
        {"Cookie": "=;;=\x7f"},
    ],
)
def test_without_the_token_nothing_is_shown(filled: Project, headers: dict[str, str]) -> None:
    browser = client(filled, token=TOKEN)
    paths = ("/p/reports/image?doc=x&page=1", "/p/reports/project?token=wrong", "/p/x/")
    for path in (*PAGES, *paths):
        response = browser.get(path, headers=headers)
        assert response.status_code == 401
        assert "reports" not in response.text
    assert browser.post("/p/reports/ask", data={"q": "pump"}, headers=headers).status_code == 401
    right = {"Authorization": f"bearer {TOKEN}"}
    assert browser.get("/p/reports/", headers=right).status_code == 200


def test_a_browser_logs_in_once_and_comes_back_to_its_page(filled: Project) -> None:
    browser = client(filled, token=TOKEN)
    refused = browser.get("/p/reports/?q=pump&top_k=2", headers={"Accept": "text/html"})
    assert refused.status_code == 303
    login = browser.get(refused.headers["location"])
    assert 'value="/p/reports/?q=pump&amp;top_k=2"' in login.text
    assert "reports</a>" not in login.text

    wrong = browser.post("/login", data={"token": "wrong", "to": "/"})
    assert (wrong.status_code, "This is not the token" in wrong.text) == (403, True)
    assert "set-cookie" not in wrong.headers

    form = {"token": TOKEN, "to": "/p/reports/?q=pump&top_k=2"}
    assert browser.post("/login", data=form, headers={"Origin": "null"}).status_code == 403
    right = browser.post("/login", data=form, headers={"Origin": BASE})
    assert (right.status_code, right.headers["location"]) == (303, "/p/reports/?q=pump&top_k=2")
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert browser.get("/p/reports/?q=pump").status_code == 200


def test_wrong_tokens_are_slowed_and_logged_once_a_minute_and_the_right_one_never_waits(
    filled: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    now = [0.0]
    monkeypatch.setattr(security, "asyncio", SimpleNamespace(sleep=pause))  # not for servers in other threads
    monkeypatch.setattr(security.WrongTokens.__init__, "__defaults__", (lambda: now[0],))
    browser = client(filled, token=TOKEN)
    logged = "llama_index_contextual.ui.security"
    with caplog.at_level("WARNING", logger=logged):
        for number in range(20):
            assert browser.get("/p/reports/", headers={"Authorization": f"Bearer wrong-{number}"}).status_code == 401
            assert browser.get("/p/reports/", params={"token": f"wrong-{number}"}).status_code == 401
            assert browser.post("/login", data={"token": f"wrong-{number}"}).status_code == 403
    assert pauses[:10] == [0.0] * 10, "a typing error costs nothing"
    assert pauses[10:40] == [float(seconds) for seconds in range(1, 31)]
    assert set(pauses[40:]) == {30.0}
    assert [record.getMessage() for record in caplog.records] == ["Wrong tokens: 1, the last one from testclient"]

    pauses.clear()
    assert browser.get("/p/reports/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert browser.get("/p/reports/").status_code == 401, "without a token"
    assert browser.post("/login", data={"token": TOKEN}).status_code == 303
    assert browser.get("/p/reports/").status_code == 200, "with the cookie"
    assert pauses == []

    now[0] = 60.0
    with caplog.at_level("WARNING", logger=logged):
        assert browser.post("/login", data={"token": "wrong"}).status_code == 403
    assert pauses == [0.0], "a minute later"
    assert caplog.records[-1].getMessage() == "Wrong tokens: 60, the last one from testclient"
    assert TOKEN not in caplog.text
    assert "wrong-" not in caplog.text


def test_a_project_that_was_deleted_is_called_deleted_and_not_empty(tmp_path: Path) -> None:
    manager = ProjectManager(tmp_path)
    project, other = (manager.create(name, ProjectConfig.local(indexes="lexical")) for name in ("gone", "kept"))
    project.ingest([Document(text="The pump runs.")])
    browser = client(project, other)
    assert browser.get("/p/gone/?q=pump").status_code == 200
    manager.delete("gone")
    for path in ("", "?q=pump", "project", "ask"):
        response = browser.get(f"/p/gone/{path}")
        assert response.status_code == 410
        assert "was deleted" in response.text
        assert "ingest" not in response.text
    assert "deleted" in browser.get("/").text
    assert browser.get("/p/kept/").status_code == 200


def test_the_token_in_an_address_is_exchanged_for_a_cookie_which_no_other_server_accepts(filled: Project) -> None:
    browser = client(filled, token=TOKEN)
    response = browser.get(f"/p/reports/?q=pump&token={TOKEN}")
    assert (response.status_code, response.headers["location"]) == (303, "/p/reports/?q=pump")
    assert browser.get(response.headers["location"]).status_code == 200
    ((name, value),) = browser.cookies.items()
    other = f"{TOKEN}-2"
    (own,) = client(filled, token=other).post("/login", data={"token": other}).cookies.items()
    for cookie in (f"{name}={value}", f"{own[0]}={value}", f"{own[0]}={other}"):
        assert client(filled, token=other).get("/p/reports/", headers={"Cookie": cookie}).status_code == 401
    assert browser.post("/login", content=b"token=" + b"x" * 10_000).status_code == 413


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "//[x"]
)
def test_a_login_leads_to_this_server_only(filled: Project, target: str) -> None:
    response = client(filled, token=TOKEN).post("/login", data={"token": TOKEN, "to": target})
    address = httpx.URL(BASE).join(response.headers["location"].replace("\\", "/"))
    assert (response.status_code, address.host) == (303, "127.0.0.1")


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "texts"),
    [
        (
            ZeroDivisionError("a secret detail"),
            ["This is a bug: the log of the server has the details"],
        ),
        (
            CorruptVersionError("manifest.json <b>has changed</b>."),
            ["llama-index-contextual verify reports", "&lt;b&gt;has changed"],
        ),
    ],
)
def test_an_error_is_shown_as_a_sentence_and_an_unexpected_one_logged(
    filled: Project,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    texts: list[str],
) -> None:
    def broken(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr(filled, "documents", broken)
    with caplog.at_level(logging.ERROR):
        response = client(filled).get("/p/reports/project")
    assert response.status_code == 500
    assert [text for text in texts if text in response.text] == texts
    assert "secret detail" not in response.text
    assert "Traceback" not in response.text
    assert response.headers["content-security-policy"]
    assert ("a secret detail" in caplog.text) == isinstance(error, ZeroDivisionError)


def test_projects_and_unknown_pages_are_named(manager: ProjectManager) -> None:
    projects = [manager.create(name, ProjectConfig.local()) for name in ("größe", "b c")]
    browser = client(*projects)
    assert 'href="/p/gr%C3%B6%C3%9Fe/"' in browser.get("/").text
    assert browser.get("/p/gr%C3%B6%C3%9Fe/").status_code == browser.get("/p/b%20c/").status_code == 200
    assert client(projects[0]).get("/").headers["location"] == "/p/gr%C3%B6%C3%9Fe/"
    assert "There is no such page here" in browser.get("/nothing").text
    response = browser.get("/p/<i>other/")
    assert response.status_code == 404
    assert "There is no project &#39;&lt;i&gt;other&#39; here" in response.text
    for wrong, message in (([], "No project was passed"), (projects[:1] * 2, "Two projects have the same name")):
        with pytest.raises(InputError, match=message):
            make_app(wrong)


def test_a_new_version_is_shown_and_a_passage_that_it_lacks_is_named(project: Project) -> None:
    project.ingest([Document(id_="pump", text="The pump runs.")])
    browser = client(project)
    page = browser.get("/p/reports/?q=pump").text
    assert "v000001" in browser.get("/p/reports/project").text
    (passage,) = set(re.findall(r'href="(/p/reports/passage/[^"?]+)', page))
    project.ingest([Document(id_="zebra", text="Zebras graze at the weir.")], replace=True)
    page = browser.get("/p/reports/?q=zebras").text
    assert "v000002" in browser.get("/p/reports/project").text
    assert "<mark>Zebras</mark>" in page
    response = browser.get(passage)
    assert (response.status_code, "There is no such passage" in response.text) == (404, True)


# ---- the process -----------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(filled: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"Port {port} of 127.0.0.1 is in use: choose another port"):
            serve(make_app([filled]), port=port)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "192.168.1.5"}, "can be reached from other machines: set a token"),
        ({"host": "0.0.0.0", "token": TOKEN}, "name the host that clients use"),
        ({"token": "short"}, "The token has 5 characters: use at least 16"),
    ],
)
def test_an_open_server_is_refused(filled: Project, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_app([filled], **options)


@pytest.mark.parametrize(
    ("arguments", "variable", "message"),
    [
        (["reports", "--token", ""], None, "The token is empty"),
        (["reports"], "", "The token is empty"),
        (["reports", "--host", "192.168.1.5"], None, "set a token"),
        (["reports", "--documents", "nowhere"], None, "'nowhere' does not exist"),
        (["other"], None, "other"),
        (["reports", "--allow-changes"], None, "everyone who can reach the server could change the documents"),
        (["reports", "--tokens", "absent.json"], None, "create it with `llama-index-contextual token NAME"),
        (["reports", "--allow-changes", "--token", TOKEN, "--only", "kind=report"], None, "to whole projects only"),
    ],
)
def test_the_command_reports_errors_in_one_line(
    filled: Project, arguments: list[str], variable: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("llama_index_contextual"), "handlers", [])  # the command adds one
    environment = {} if variable is None else {"LLAMA_INDEX_CONTEXTUAL_UI_TOKEN": variable}
    result = CliRunner().invoke(program, ["serve", *arguments, "--root", str(filled.directory.parent)], env=environment)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
