"""Tokens decide what a program may do and see: rights, forced filters, hosts and origins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from llama_index_contextual.api.app import OPERATIONS, add_api
from llama_index_contextual.ui.app import make_app
from tests.integration.api.conftest import ANSWER, BASE, QUESTION, Server

CHAT = {"model": "plant", "messages": [{"role": "user", "content": QUESTION}]}
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "models": ("GET", "/v1/models", {}),
    "chat": ("POST", "/v1/chat/completions", {"json": CHAT}),
    "passages": ("POST", "/v1/chat/completions", {"json": {**CHAT, "model": "plant:passages"}}),
    "search": ("POST", "/api/search", {"json": {"query": QUESTION, "project": "plant"}}),
    "ask": ("POST", "/api/ask", {"json": {"question": QUESTION, "project": "plant"}}),
    "documents": ("GET", "/api/documents", {"params": {"project": "plant"}}),
    "passage": ("GET", "/api/passage", {"params": {"project": "plant", "doc_id": "pumps.md"}}),
    "add": ("POST", "/api/add", {"params": {"project": "plant"}, "files": {"file": ("a.txt", b"text")}}),
    "added": ("GET", "/api/add", {"params": {"project": "plant"}}),
    "openapi": ("GET", "/api/openapi.json", {}),
}
RIGHTS = {"chat": "ask", "ask": "ask", "add": "add", "added": "add", "models": None, "openapi": None}


def call(server: Server, name: str, user: str | None = None, **headers: str) -> Any:
    method, path, options = CALLS[name]
    token = {} if user is None else server.headers(user)
    return server.client.request(method, path, headers={**token, **headers}, **options)


def test_every_operation_is_called_here() -> None:
    called = {(method, path) for method, path, _ in CALLS.values()}
    assert {(one.method, one.path) for one in OPERATIONS} - called == {("GET", "/v1/models/{model:path}")}


@pytest.mark.parametrize("name", CALLS)
def test_a_token_can_do_what_its_rights_say_and_no_more(server: Server, name: str) -> None:
    right = RIGHTS.get(name, "search")
    rights = {"ada": {"search", "ask", "add"}, "finder": {"search"}, "asker": {"ask"}, "it": {"search", "ask"}}
    for user, of_user in rights.items():
        server.provider.enqueue(ANSWER)
        response = call(server, name, user)
        assert response.status_code == (403 if right and right not in of_user else 202 if name == "add" else 200), user
        if response.status_code == 403:
            assert response.json()["error"]["code"] == "missing_right"
        server.provider.reset()


@pytest.mark.parametrize("name", CALLS)
def test_without_a_valid_token_nothing_is_answered(server: Server, name: str) -> None:
    token = server.tokens["ada"]
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": f"Bearer {token}x"},
        {"Authorization": f"Basic {token}"},
        {"Authorization": "Bearer "},
        {"x-api-key": token},
        {"Cookie": f"token={token}"},
    ]
    for headers in wrong:
        response = call(server, name, **headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert server.provider.calls() == []


def test_forced_filters_hide_documents_from_every_operation(server: Server) -> None:
    for user, sees in (("ada", True), ("it", False)):
        server.provider.enqueue(ANSWER, ANSWER)
        asked = {"project": "plant", "query": "severance quincunx", "top_k": 20}
        answers = [
            server.post("/api/search", asked, user).text,
            server.post("/api/search", {**asked, "filters": {"group": ["it", "hr"]}}, user).text,
            server.get("/api/documents", user, params={"project": "plant"}).text,
            server.ask("severance of the quincunx team", user, "plant:passages").text,
            server.ask("severance of the quincunx team", user, "plant:passages", filters={"group": ["hr", "it"]}).text,
        ]
        assert any("salaries.md" in answer for answer in answers) == sees
        assert any("90,000" in answer for answer in answers) == sees
        server.ask("What is the severance of the quincunx team?", user)
        prompts = [json.dumps(one.body) for one in server.provider.calls()]
        assert any("90,000" in prompt for prompt in prompts) == sees
        server.provider.reset()


@pytest.mark.parametrize(
    "filters", [{"group": "hr"}, "group=hr", ["group=hr"], {"group": {"!=": "it"}}, {"group": {"in": ["hr"]}}]
)
def test_filters_of_a_request_only_narrow(server: Server, filters: Any) -> None:
    body = {"project": "plant", "query": "severance", "filters": filters}
    response = server.post("/api/search", body, "it")
    assert "salaries" not in response.text
    assert "severance" not in json.dumps(response.json().get("passages", []))


def test_a_hidden_document_is_answered_like_one_that_does_not_exist(server: Server) -> None:
    texts = []
    for doc_id in ("salaries.md", "nothing.md"):
        response = server.get("/api/passage", "it", params={"project": "plant", "doc_id": doc_id})
        assert response.status_code == 400
        texts.append(response.text.replace(doc_id, "DOC"))
    assert texts[0] == texts[1]


def test_links_of_a_token_open_in_the_workbench_of_the_same_user_only(server: Server) -> None:
    body = server.ask("severance of the quincunx team", model="plant:passages").json()
    urls = {
        one["url_citation"]["doc_id"]: one["url_citation"]["url"]
        for one in body["choices"][0]["message"]["annotations"]
    }
    path = urls["salaries.md"].removeprefix(BASE).partition("#")[0]
    assert server.get(path).status_code == 200
    assert server.get(path, "it").status_code == 404
    assert server.client.get(path).status_code == 401


def test_the_workbench_of_a_filtered_user_shows_only_visible_documents(server: Server) -> None:
    for path in ("/p/plant/", "/p/plant/?q=severance", "/p/plant/project", "/p/plant/document?id=salaries.md"):
        assert "salaries" in server.get(path).text
        assert "quincunx" not in server.get(path, "it").text
        if "document" not in path:
            assert "salaries" not in server.get(path, "it").text
    assert "Cost" not in server.get("/p/plant/project", "it").text
    assert server.get("/p/plant/ask", "finder").status_code == 403
    assert 'href="/p/plant/ask"' not in server.get("/p/plant/", "finder").text
    assert server.get("/p/plant/", "asker").status_code == 403


def test_a_user_logs_in_with_the_token_and_is_logged_out_when_it_is_replaced(server: Server, tmp_path: Any) -> None:
    browser = TestClient(server.app, base_url=BASE, follow_redirects=False)
    assert browser.post("/login", data={"token": server.tokens["it"], "to": "/p/plant/"}).status_code == 303
    assert "pumps.md" in browser.get("/p/plant/").text
    assert "salaries.md" not in browser.get("/p/plant/").text
    content = json.loads((tmp_path / "tokens.json").read_text())
    content["tokens"] = [one for one in content["tokens"] if one["name"] != "it"]
    (tmp_path / "tokens.json").write_text(json.dumps(content))
    assert browser.get("/p/plant/").status_code == 401


@pytest.mark.parametrize("name", ["models", "chat", "add"])
def test_other_hosts_and_web_pages_are_refused_in_the_form_of_openai(server: Server, name: str) -> None:
    for headers, status in (
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
    ):
        response = call(server, name, "ada", **headers)
        assert response.status_code == status
        assert response.json()["error"]["message"]
        assert "access-control-allow-origin" not in response.headers


def test_tokens_are_neither_logged_nor_echoed(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        texts = [call(server, name, user).text for name in CALLS for user in ("ada", "it")]
        texts += [call(server, name, Authorization=f"Bearer {server.tokens['ada']}x").text for name in ("chat", "add")]
    for token in server.tokens.values():
        assert token not in caplog.text
        assert all(token not in text for text in texts)


def test_changes_are_refused_unless_the_server_allows_them(make_server: Callable[..., Server]) -> None:
    server = make_server(changes=False)
    for name in ("add", "added"):
        response = call(server, name, "ada")
        assert (response.status_code, response.json()["error"]["code"]) == (403, "changes_not_allowed")
    assert server.get("/p/plant/add").status_code == 403
    assert 'href="/p/plant/add"' not in server.get("/p/plant/").text


def test_without_tokens_the_api_serves_this_machine_only(make_server: Callable[..., Server]) -> None:
    project = make_server().project
    client = TestClient(add_api(make_app([project])), base_url=BASE)
    assert client.get("/v1/models").status_code == 200
    assert client.get("/v1/models", headers={"Authorization": "Bearer anything"}).status_code == 200
    assert client.get("/v1/models", headers={"Origin": "https://evil.example"}).status_code == 403
