"""The view that asks an LLM, without a browser: what it refuses, and what it never does."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_index_contextual.project.manager import ProjectManager
from tests.support.models import ScriptedLLM

testclient = pytest.importorskip("starlette.testclient", reason="needs the extra ui")
from llama_index_contextual.ui.app import make_app  # noqa: E402

EVENTS = {"Accept": "application/x-ndjson"}


@pytest.fixture
def llm() -> ScriptedLLM:
    return ScriptedLLM(default="The pump runs dry [Source 1].")


@pytest.fixture
def client(root: Path, llm: ScriptedLLM) -> Iterator[Any]:
    app = make_app([ProjectManager(root).load(name, llm=llm) for name in ("reports", "empty")])
    with testclient.TestClient(app, base_url="http://127.0.0.1", follow_redirects=False) as client:
        yield client


def events(response: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


def test_a_question_is_answered_with_events(client: Any, llm: ScriptedLLM) -> None:
    response = client.post("/p/reports/ask", data={"q": "What does error TS-999 mean?"}, headers=EVENTS)
    assert response.headers["content-type"].startswith("application/x-ndjson")
    kinds = [event["event"] for event in events(response)]
    assert kinds[0] == "passages"
    assert kinds[-1] == "answer"
    assert set(kinds[1:-1]) == {"text"}
    shown = client.get(events(response)[-1]["url"])
    assert "The pump runs dry" in shown.text
    assert "price unknown." in shown.text, "list prices are named only where there is a price"
    assert len(llm.history) == 1


def test_citations_and_sources_open_at_the_sentence(root: Path) -> None:
    question = "What does error TS-999 mean?"
    (record,) = [one for one in ProjectManager(root).load("reports").documents() if one.file_name == "manual.txt"]
    text = ProjectManager(root).load("reports").read(record.doc_id)
    quoted = next(line for line in text.splitlines() if "TS-999" in line).strip().rstrip(".")
    app = make_app([ProjectManager(root).load("reports", llm=ScriptedLLM(default=f"“{quoted}” [Source 1]."))])
    with testclient.TestClient(app, base_url="http://127.0.0.1", follow_redirects=True) as client:
        shown = client.post("/p/reports/ask", data={"q": question}).text
        links = [html.unescape(link) for link in re.findall(r'href="(/p/reports/passage/[^"]+)"', shown)]
        span = f"mark={text.index(quoted)}-{text.index(quoted) + len(quoted)}#passage"
        verified, citation, source, *others = links
        assert verified.endswith(span)
        assert citation == source
        assert citation.endswith(span)
        assert others
        assert all(re.search(r"&mark=\d+-\d+#passage$", link) for link in others)
        statements = shown.partition("and the sentences that support them</summary>")[2]
        assert "supported by" in statements
        assert f"<q>{html.escape(quoted, quote=False)}</q>" in statements
        page = client.get(citation).text
        app.state.originals.renderer.close()
    marked = page.partition('<mark id="passage" class="spotlight">')[2].partition("\n")[0]
    assert html.unescape(re.sub("<[^>]+>", "", marked)).startswith(quoted)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_reading_never_calls_the_model(client: Any, llm: ScriptedLLM, method: str) -> None:
    for path in ("ask", "ask?q=What+does+error+TS-999+mean%3F&mode=lexical", "", "project"):
        assert client.request(method, f"/p/reports/{path}", headers=EVENTS).status_code == 200
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
        ({"q": "pump", "other": "x" * 200_000}, "The request has more than 100,000 bytes"),
        ({"q": "pump", **{f"field{number}": "x" for number in range(600)}}, "The form has too many fields"),
    ],
)
def test_a_wrong_form_is_explained_and_costs_nothing(
    client: Any, llm: ScriptedLLM, fields: dict[str, Any], text: str
) -> None:
    (problem,) = events(client.post("/p/reports/ask", data=fields, headers=EVENTS))
    assert problem["event"] == "problem"
    assert text in problem["text"]
    page = client.post("/p/reports/ask", data=fields)
    assert page.status_code == (413 if "bytes" in text else 400)
    assert text.partition("'")[0] in page.text
    assert llm.history == []


def test_an_error_of_the_model_is_told_in_words(client: Any, llm: ScriptedLLM) -> None:
    llm.enqueue(*[ConnectionError("the wire is cut")] * 6)
    last = events(client.post("/p/reports/ask", data={"q": "pump"}, headers=EVENTS))[-1]
    assert (last["event"], last["title"]) == ("problem", "A model is not available")


def test_a_form_leads_to_an_answer_whose_address_cannot_be_guessed_and_belongs_to_a_project(client: Any) -> None:
    responses = [client.post("/p/reports/ask", data={"q": "pump", "style": "persona"}) for _ in range(2)]
    assert [response.status_code for response in responses] == [303, 303]
    url, other = (response.headers["location"] for response in responses)
    assert url != other
    assert len(url.partition("answer=")[2]) >= 20
    assert "The pump runs dry" in client.get(url).text
    for wrong in (url.replace("/p/reports/", "/p/empty/"), f"{url}x"):
        assert client.get(wrong).status_code == 404
        assert "no longer in memory" in client.get(wrong).text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://elsewhere.invalid"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 403),
        ({"Host": "elsewhere.invalid"}, 421),
    ],
)
def test_a_question_of_another_page_is_refused(
    client: Any, llm: ScriptedLLM, headers: dict[str, str], status: int
) -> None:
    assert client.post("/p/reports/ask", data={"q": "pump"}, headers=headers).status_code == status
    assert llm.history == []


def test_a_follow_up_is_answered_with_the_conversation_and_a_lost_one_without_it(client: Any, llm: ScriptedLLM) -> None:
    first = client.post("/p/reports/ask", data={"q": "What does error TS-999 mean?"}).headers["location"]
    key = first.partition("answer=")[2]
    second = client.post("/p/reports/ask", data={"q": "And who repairs it?", "after": key}).headers["location"]
    prompt = str(llm.history[-1])
    assert "What does error TS-999 mean?" in prompt
    assert "The pump runs dry" in prompt
    page = client.get(second).text
    assert page.index("What does error TS-999 mean?</h2>") < page.index("And who repairs it?</h2>")
    assert f'name="after" value="{second.partition("answer=")[2]}"' in page
    assert "earlier answers" not in page
    alone = client.post("/p/reports/ask", data={"q": "And who repairs it?", "after": "unknown"}).headers["location"]
    assert (
        "The earlier answers are no longer in memory: this question was answered without them."
        in client.get(alone).text
    )
    assert "What does error TS-999 mean?" not in str(llm.history[-1])
    assert client.get(first).text.count('<article class="turn"') == 1


def test_without_a_model_a_question_shows_passages_and_the_way_to_a_model(root: Path) -> None:
    app = make_app([ProjectManager(root).load("reports")])
    with testclient.TestClient(app, base_url="http://127.0.0.1") as client:
        start = client.get("/p/reports/ask").text
        assert "llama-index-contextual configure reports answer_llm=ollama:llama3.1" in start
        assert "<blockquote" not in start
        page = client.get("/p/reports/ask?q=What+does+error+TS-999+mean%3F").text
        first = re.search(r'<blockquote class="quote"><a href="([^"]+)">(.*?)</a>', page)
        assert first is not None
        assert "<mark>TS-999</mark>" in first[2]
        assert "mark=" in first[1]
        assert 'data-question="What does error TS-999 mean?"' in page
        evidence = json.loads(html.unescape(re.search(r'data-evidence="([^"]+)"', page)[1]))
        text = ProjectManager(root).load("reports").read(evidence["file"], evidence["start"], evidence["end"])
        assert "TS-999" in text


def test_a_search_result_can_be_collected_as_evidence(client: Any, root: Path) -> None:
    page = client.get("/p/reports/?q=What+does+error+TS-999+mean%3F").text
    button = re.search(r"data-question=\"([^\"]+)\" data-evidence=\"([^\"]+)\" aria-pressed=\"false\" hidden", page)
    assert button is not None
    evidence = json.loads(html.unescape(button[2]))
    assert html.unescape(button[1]) == "What does error TS-999 mean?"
    assert "TS-999" in ProjectManager(root).load("reports").read(evidence["file"], evidence["start"], evidence["end"])
