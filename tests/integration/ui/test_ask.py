"""The view that asks an LLM, without a browser: what it refuses, and what it never does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.documents import write_texts
from tests.support.models import ScriptedLLM

testclient = pytest.importorskip("starlette.testclient", reason="needs the extra ui")
from llama_index_contextual.ui.app import make_app  # noqa: E402

EVENTS = {"Accept": "application/x-ndjson"}


@pytest.fixture
def llm() -> ScriptedLLM:
    return ScriptedLLM(default="The pump runs dry [Source 1].")


@pytest.fixture
def client(tmp_path: Path, llm: ScriptedLLM) -> Iterator[Any]:
    manager = ProjectManager(tmp_path / "knowledge")
    manager.create("a", ProjectConfig.local()).ingest([write_texts(tmp_path / "reports")])
    manager.create("empty", ProjectConfig.local())
    app = make_app([manager.load("a", llm=llm), manager.load("empty", llm=llm)])
    with testclient.TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as client:
        yield client


def events(response: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_question_is_answered_with_events(client: Any, llm: ScriptedLLM) -> None:
    response = client.post("/p/a/ask", data={"q": "What does error TS-999 mean?"}, headers=EVENTS)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    kinds = [event["event"] for event in events(response)]
    assert kinds[0] == "passages"
    assert kinds[-1] == "answer"
    assert set(kinds[1:-1]) == {"text"}
    shown = client.get(events(response)[-1]["url"])
    assert "The pump runs dry" in shown.text
    assert "price unknown." in shown.text, "list prices are named only where there is a price"
    assert len(llm.history) == 1


def test_a_form_leads_to_the_finished_answer(client: Any, llm: ScriptedLLM) -> None:
    response = client.post("/p/a/ask", data={"q": "What does error TS-999 mean?", "style": "persona"})
    assert response.status_code == 303
    assert "The pump runs dry" in client.get(response.headers["location"]).text
    assert len(llm.history) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_never_calls_the_model(client: Any, llm: ScriptedLLM, method: str) -> None:
    for path in ("/p/a/ask", "/p/a/ask?q=What+does+error+TS-999+mean%3F&mode=lexical", "/p/a/", "/p/a/project"):
        assert client.request(method, path, headers=EVENTS).status_code == 200
    assert llm.history == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"q": ""}, "The question is empty"),
        ({"q": "  \n "}, "The question is empty"),
        ({}, "The question is empty"),
        ({"q": "a" * 4001}, "The question has 4,001 characters"),
        ({"q": "pump", "mode": "psychic"}, "The mode 'psychic' is unknown: choose"),
        ({"q": "pump", "style": "rude"}, "The style 'rude' is unknown: choose"),
        ({"q": "pump", "where": "colour=red"}, "No document has the field 'colour'"),
        ({"q": "pump", "where": "nonsense"}, "nonsense"),
        ({"q": "pump", "file": "missing.pdf"}, "missing.pdf"),
        ({"q": "pump", "where": ["a=b"] * 60}, "There are 60 filters: use at most 50"),
        ({"q": "pump", "other": "x" * 200_000}, "The form is larger than 100,000 bytes"),
        ({"q": "pump", **{f"field{number}": "x" for number in range(300)}}, "The form has too many fields"),
    ],
)
def test_a_wrong_form_is_explained_and_costs_nothing(
    client: Any, llm: ScriptedLLM, fields: dict[str, Any], text: str
) -> None:
    (problem,) = events(client.post("/p/a/ask", data=fields, headers=EVENTS))
    assert problem["event"] == "problem"
    assert text in problem["text"]
    page = client.post("/p/a/ask", data=fields)
    assert page.status_code == 400
    assert text.partition("'")[0] in page.text
    assert llm.history == []


def test_an_empty_project_says_what_to_do(client: Any, llm: ScriptedLLM) -> None:
    (problem,) = events(client.post("/p/empty/ask", data={"q": "pump"}, headers=EVENTS))
    assert problem["command"] == "llama-index-contextual ingest empty FOLDER"
    assert "ingest empty FOLDER" in client.get("/p/empty/ask").text
    assert client.post("/p/missing/ask", data={"q": "pump"}).status_code == 404
    assert llm.history == []


def test_an_unexpected_error_of_the_model_is_told_in_words(client: Any, llm: ScriptedLLM) -> None:
    llm.enqueue(ConnectionError("the wire is cut"), *[ConnectionError("the wire is cut")] * 5)
    last = events(client.post("/p/a/ask", data={"q": "pump"}, headers=EVENTS))[-1]
    assert last["event"] == "problem"
    assert last["title"] == "A model is not available"


def test_answers_have_addresses_that_cannot_be_guessed_and_belong_to_a_project(client: Any) -> None:
    url = client.post("/p/a/ask", data={"q": "pump"}).headers["location"]
    other = client.post("/p/a/ask", data={"q": "pump"}).headers["location"]
    assert url != other
    assert len(url.partition("answer=")[2]) >= 20
    assert client.get(url).status_code == 200
    assert client.get(url.replace("/p/a/", "/p/empty/")).status_code == 404
    assert client.get(f"{url}x").status_code == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.invalid"},
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Host": "elsewhere.invalid"},
    ],
)
def test_a_question_of_another_page_is_refused(client: Any, llm: ScriptedLLM, headers: dict[str, str]) -> None:
    assert client.post("/p/a/ask", data={"q": "pump"}, headers=headers).status_code in (403, 421)
    assert llm.history == []
