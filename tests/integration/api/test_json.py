"""The JSON API: search, ask, documents, passages, adding, and the description of all operations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.api.app import OPERATIONS
from tests.integration.api.conftest import ANSWER, QUESTION, Server

PLANT = {"project": "plant"}


def test_a_search_returns_passages_with_their_places(server: Server) -> None:
    found = server.post("/api/search", {**PLANT, "query": QUESTION, "top_k": 1}).json()
    (passage,) = found["passages"]
    assert passage["doc_id"] == "pumps.md"
    assert passage["spotlight"]["text"] == "Pump P-7 stops after three days without oil."
    (only,) = server.post("/api/search", {**PLANT, "query": "team", "filters": "group=hr"}).json()["passages"]
    assert only["doc_id"] == "salaries.md"


def test_an_answer_has_its_citations(server: Server) -> None:
    server.provider.enqueue(ANSWER)
    body = server.post("/api/ask", {**PLANT, "question": QUESTION}).json()
    assert body["answer"].startswith(ANSWER)
    assert body["citations"][0]["quote"] == "Pump P-7 stops after three days without oil."
    assert body["is_complete"]
    assert body["dollars"] == pytest.approx(server.project.cost().answers)


def test_documents_are_listed_and_their_text_is_read(server: Server) -> None:
    listed = server.get("/api/documents", params=PLANT).json()
    assert [one["doc_id"] for one in listed["documents"]] == ["pumps.md", "salaries.md"]
    passage = server.get("/api/passage", params={**PLANT, "doc_id": "pumps.md", "start": "9", "end": "18"}).json()
    assert passage["text"] == "Pump P-7 "


@pytest.mark.parametrize(
    ("path", "values", "status", "message"),
    [
        ("/api/search", {"query": "x"}, 400, "There are several projects"),
        ("/api/search", {"query": "x", "project": "other"}, 404, "There is no project 'other'"),
        ("/api/search", PLANT, 400, "search needs the argument query"),
        ("/api/search", {**PLANT, "query": "x", "limit_to": 3}, 400, "search has no argument limit_to"),
        ("/api/search", {**PLANT, "query": "x", "top_k": "many"}, 400, "top_k of search cannot be"),
        ("/api/passage", {**PLANT, "doc_id": "other"}, 400, "has no document 'other'"),
        ("/api/documents", {"project": "empty"}, 400, "has no documents yet"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(
    server: Server, path: str, values: dict[str, Any], status: int, message: str
) -> None:
    response = server.post(path, values) if path == "/api/search" else server.get(path, params=values)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


# ---- adding ----------------------------------------------------------------------------------------------------------


def upload(server: Server, files: dict[str, bytes], user: str = "ada", **params: Any) -> Any:
    form = [("file", (name, content)) for name, content in files.items()]
    return server.client.post("/api/add", params=PLANT | params, files=form, headers=server.headers(user))


def test_added_files_are_searched_and_refused_ones_say_why(server: Server) -> None:
    response = upload(
        server, {"Notes/valve.md": b"# Valves\n\nValve V-3 leaks at night.", "x.zip": b"PK", "e.txt": b""}
    )
    assert response.status_code == 202
    body = response.json()
    assert [one["path"] for one in body["files"]] == ["ada/Notes/valve.md"]
    assert body["refused"] == [["x.zip", "has the type .zip and is not read: unpack it"], ["e.txt", "is empty"]]
    server.wait()
    (file,) = server.get("/api/add", params=PLANT).json()["files"]
    assert (file["state"], file["doc_id"]) == ("read", "inbox/ada/Notes/valve.md")
    found = server.post("/api/search", {**PLANT, "query": "Which valve leaks at night?"}).json()
    assert found["passages"][0]["doc_id"] == file["doc_id"]


def test_a_file_of_a_filtered_user_is_seen_by_this_group_only(server: Server) -> None:
    upload(server, {"secret.txt": b"The quarry gate code is 4711."}, "adder")
    upload(server, {"public.txt": b"The quarry opens at nine."})
    server.wait()
    query = {**PLANT, "query": "quarry"}
    seen = {
        user: {one["doc_id"] for one in server.post("/api/search", query, user).json()["passages"]}
        for user in ("ada", "it", "adder")
    }
    assert {"inbox/adder/secret.txt", "inbox/ada/public.txt"} <= seen["ada"]
    assert seen["it"] == seen["adder"] == {"inbox/adder/secret.txt"}
    assert [one["path"] for one in server.get("/api/add", "adder", params=PLANT).json()["files"]] == [
        "adder/secret.txt"
    ]


def test_the_same_content_is_not_said_to_be_another_users_document(server: Server) -> None:
    upload(server, {"plan-of-ada.txt": b"The quarry opens at nine."})
    server.wait()
    upload(server, {"mine.txt": b"The quarry opens at nine."}, "adder")
    server.wait()
    (file,) = server.get("/api/add", "adder", params=PLANT).json()["files"]
    assert (file["state"], "same content" in file["reason"]) == ("skipped", True)
    assert "plan-of-ada" not in file["reason"]


def test_an_unreadable_file_keeps_its_reason_and_the_others_are_read(server: Server) -> None:
    upload(server, {"broken.pdf": b"%PDF-1.4 broken", "good.txt": b"The weir is open."})
    server.wait()
    states = {one["path"]: one for one in server.get("/api/add", params=PLANT).json()["files"]}
    assert states["ada/good.txt"]["state"] == "read"
    assert states["ada/broken.pdf"]["state"] == "skipped"
    assert "damaged" in states["ada/broken.pdf"]["reason"]
    assert str(server.project.directory) not in json.dumps(states)


def test_the_price_of_contexts_must_be_accepted(make_server: Callable[..., Server]) -> None:
    server = make_server(config={"context": "llm", "llm": "openai:gpt-4o-mini"})
    files = {"valve.md": b"# Valves\n\nValve V-3 leaks at night."}
    for params in ({}, {"max_cost": "0"}):
        response = upload(server, files, **params)
        assert response.status_code == 402
        assert re.search(r"the price is \$0\.0\d+\. Accept it with \?max_cost", response.json()["error"]["message"])
    assert server.provider.calls() == []
    assert server.get("/api/add", params=PLANT).json()["files"] == []
    assert upload(server, files, "poor", max_cost="1").status_code == 429, "more than the user may spend in an hour"
    assert server.provider.calls() == []
    assert upload(server, files, max_cost="1").status_code == 202
    server.wait()
    assert server.get("/api/add", params=PLANT).json()["files"][0]["state"] == "read"
    assert len(server.provider.calls()) == 1 + 2, "the added passage, and those ingested without contexts before"


def test_files_that_wait_in_the_workbench_are_kept_if_a_program_adds_others(make_server: Callable[..., Server]) -> None:
    server = make_server(config={"context": "llm", "llm": "openai:gpt-4o-mini"})
    inbox = server.adding["plant"].inbox
    upload_of_ada = inbox.receive("waits.md", waits="ada", max_bytes=100)
    upload_of_ada.write(b"# Weirs")
    upload_of_ada.close()
    inbox.hold(upload_of_ada, "ada")
    response = upload(server, {"valve.md": b"# Valves"})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "files_waiting")
    assert [name for name, _ in inbox.waiting("ada")] == ["waits.md"]
    inbox.discard_waiting("ada")
    assert upload(server, {"valve.md": b"# Valves"}).status_code == 402


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"text", {"Content-Type": "text/plain"}, 415),
        (b"x", {"Content-Type": "multipart/form-data"}, 415),
        (b"not a form", {"Content-Type": "multipart/form-data; boundary=b"}, 400),
        (b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nhalf', {}, 400),
        (b"--b\r\n" + b"X: y\r\n" * 50 + b"\r\n\r\n--b--\r\n", {}, 400),
        (b"--b\r\n\r\nno headers\r\n--b--\r\n", {}, 202),
        (b'--b\r\nContent-Disposition: form-data; name="' + b"n" * 9_000 + b'"\r\n\r\n\r\n--b--\r\n', {}, 400),
        (b'--b\r\nContent-Disposition: form-data; name="t"\r\n\r\n' + b"x" * 20_000 + b"\r\n--b--\r\n", {}, 202),
    ],
)
def test_a_broken_form_is_refused_and_leaves_no_file(
    server: Server, content: bytes, headers: dict[str, str], status: int
) -> None:
    sent = {"Content-Type": "multipart/form-data; boundary=b", **server.headers("ada"), **headers}
    response = server.client.post("/api/add", params=PLANT, content=content, headers=sent)
    assert response.status_code == status, response.text
    left = [path for path in Path(server.project.directory).rglob("*") if path.suffix in (".part", ".txt")]
    assert left == []


def test_the_limit_of_files_in_an_hour_says_when_to_come_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from llama_index_contextual.ui import uploads

    monkeypatch.setattr(uploads, "FILES_PER_HOUR", 2)
    assert upload(server, {"a.txt": b"one", "b.txt": b"two"}).status_code == 202
    response = upload(server, {"c.txt": b"three"})
    assert response.status_code == 429
    assert 3_000 < int(response.headers["retry-after"]) <= 3_601
    assert upload(server, {"c.txt": b"three"}, "adder").status_code == 202
    monkeypatch.setattr(uploads, "MAX_REQUEST", 100)
    assert upload(server, {"d.txt": b"x" * 200}, "adder").status_code == 413


# ---- the description -------------------------------------------------------------------------------------------------


def test_the_description_names_every_operation_and_resolves(server: Server) -> None:
    described = server.get("/api/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    for one in OPERATIONS:
        entry = described["paths"][one.path.replace(":path}", "}")][one.method.lower()]
        assert entry["summary"].endswith(".")
        assert entry["responses"]["200"]
    names = [entry["operationId"] for path in described["paths"].values() for entry in path.values()]
    assert len(set(names)) == len(names)
    references = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(described)))
    assert references <= set(described["components"]["schemas"])
    passage = described["paths"]["/api/passage"]["get"]["parameters"]
    assert {one["name"] for one in passage} >= {"doc_id", "start", "section", "project"}
    assert "multipart/form-data" in described["paths"]["/api/add"]["post"]["requestBody"]["content"]
