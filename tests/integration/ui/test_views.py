"""The views of the search, a document and a project: what they show, and that text of documents stays text."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from llama_index.core.schema import Document, TextNode
from starlette.testclient import TestClient

from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.receipts import ProjectCost, RunCost
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui import make_app
from llama_index_contextual.ui.overview import CHUNKS_PER_PAGE, DOCUMENTS_PER_PAGE

ATTACK = (
    """</script><script>alert(1)</script><img src=x onerror="alert(2)"> ' " {{ 7 * 7 }} javascript:alert(3) &amp;"""
)


@pytest.fixture
def browser(root: Path) -> TestClient:
    """A browser that reads the three projects."""
    manager = ProjectManager(root)
    return TestClient(make_app([manager.load(name) for name in manager.list()]), base_url="http://127.0.0.1")


def words(page: str) -> str:
    """Return the text of a page as a reader sees it."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def ranks(page: str) -> list[str]:
    """Return the names of the documents of the results, in order."""
    return re.findall(r'class="result-link" href="[^"]*">([^<]*)<', page)


# ---- search ----------------------------------------------------------------------------------------------------------


def test_a_result_has_its_source_its_words_its_contexts_and_its_score(browser: TestClient, root: Path) -> None:
    page = browser.get("/p/reports/?q=What+does+error+TS-999+mean?").text
    hit = ProjectManager(root).load("reports").retrieve("What does error TS-999 mean?", explain=True)
    assert ranks(page)[0] == "manual.txt"
    assert f"/p/reports/passage/{hit[0].node_id}?q=What+does+error+TS-999+mean%3F" in page
    assert "<mark>TS-999</mark>" in page
    assert "Place in the document" in page
    assert len(re.findall(r'<li class="result">', page)) == len(hit)
    for name, value in hit.explanations[0].shares.items():
        assert f"{name} {value:.3f}".replace("-", "-") in words(page)
    assert f"= {sum(hit.explanations[0].shares.values()):.3f}" in words(page)
    assert "version v000001" in page
    assert "Tariff note tariff.pdf" in words(page)
    assert "tariff.pdf" in words(page)
    for one in hit:
        assert f"?q=What+does+error+TS-999+mean%3F&amp;mark={one.spotlight.start}-{one.spotlight.end}#passage" in page
        assert f"page {one.place.page_start}" in words(page) or one.place.page_start is None
    best = " ".join(hit[0].spotlight.text.split())
    excerpt = re.search(r'<p class="excerpt">(?:… )?<mark class="spotlight">(.*?)</p>', page)
    assert excerpt is not None
    assert words(excerpt[1]).replace(" ", "").startswith(best[:300].replace(" ", ""))


def test_filters_are_offered_narrow_the_search_and_stay_selected(browser: TestClient) -> None:
    offered = browser.get("/p/reports/").text
    for field in ('name="where" value="kind=report"', 'name="where" value="year=2025"', 'value="texts/tariff.pdf"'):
        assert field in offered
    assert "running_footer" not in offered  # a line of the layout
    page = browser.get("/p/reports/?q=pump&where=kind=manual").text
    assert 'name="where" value="kind=manual" checked' in page
    assert set(ranks(page)) == {"manual.txt"}
    both = browser.get("/p/reports/?q=pump&where=kind=manual&where=kind=report").text
    assert {"manual.txt"} < set(ranks(both))
    assert set(ranks(browser.get("/p/reports/?q=pump&where=year>2024&file=*.pdf").text)) == {"Tariff note"}
    assert set(ranks(browser.get("/p/reports/?q=pump&file=texts/manual.txt").text)) == {"manual.txt"}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("q=pump&where=knd=manual", "No document has the field 'knd'; did you mean 'kind'?"),
        ("q=pump&where=kind", "The filter 'kind' is not FIELD=VALUE, such as kind=report"),
        ("q=pump&file=manul.txt", "No document is named 'manul.txt'; did you mean"),
        ("q=pump&mode=fast", "The mode 'fast' is unknown: choose semantic, lexical or hybrid"),
        ("q=pump&top_k=0", "The number of results must be between 1 and 100"),
        ("q=pump&top_k=many", "The number of results must be between 1 and 100"),
        ("q=pump&top_k=00000000150000000", "The number of results must be between 1 and 100"),
        ("q=pump&top_k=99999999999999", "The number of results must be between 1 and 100"),
        (f"q={'x' * 4_001}", "The question has 4,001 characters: use at most 4,000"),
        (f"q=x&where={'x' * 2_001}", "The parameter 'where' has 2,001 characters"),
        ("q=x" + "&file=y" * 51, "There are 51 filters: use at most 50"),
        ("q=x&where=kind=%ff%00", ""),
    ],
)
def test_a_wrong_request_is_explained_and_keeps_the_form(browser: TestClient, query: str, message: str) -> None:
    response = browser.get(f"/p/reports/?{query}")
    assert response.status_code in ((400,) if message else (200, 400))
    assert message in words(response.text)
    assert "--filter" not in response.text


def test_an_error_of_a_model_is_a_message_in_the_view(
    root: Path, browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = ProjectManager(root).load("reports")

    def without_key(*_arguments: object, **_options: object) -> None:
        raise ModelError("'openai:x' needs OPENAI_API_KEY, which is not set.")

    monkeypatch.setattr(project, "retrieve", without_key)
    response = TestClient(make_app([project]), base_url="http://127.0.0.1").get("/p/reports/?q=pump")
    assert response.status_code == 503
    assert "A model is not available. 'openai:x' needs OPENAI_API_KEY" in words(response.text)
    assert 'name="q" type="search" value="pump"' in response.text


def test_no_results_are_explained_and_an_empty_project_says_how_to_fill_it(browser: TestClient) -> None:
    filtered = browser.get("/p/reports/?q=pump&where=year>2030").text
    assert "No passage passes these filters" in filtered
    assert "Search without filters" in filtered
    page = words(browser.get("/p/reports/?q=xylophone&mode=lexical").text)
    assert "No passage was found" in page
    assert "search by meaning and words" in page
    for address in ("/p/empty/", "/p/empty/?q=pump", "/p/empty/project"):
        page = browser.get(address).text
        assert "llama-index-contextual ingest empty FOLDER" in page
        assert "project.ingest" not in page


def test_a_question_with_nothing_but_signs_is_answered(browser: TestClient) -> None:
    for question in ("?!", "\u202e\u0000", "😀", "' OR 1=1 --", "%", "a" * 4_000):
        assert browser.get("/p/reports/", params={"q": question}).status_code in (200, 400)
    assert browser.get("/p/reports/?q=%ED%A0%BD%FF").status_code == 200  # not UTF-8


# ---- documents -------------------------------------------------------------------------------------------------------


def test_a_document_shows_every_chunk_once(browser: TestClient, root: Path) -> None:
    project = ProjectManager(root).load("long")
    texts = [node.get_content() for node in project.chunks("valves")]
    assert len(texts) > CHUNKS_PER_PAGE
    shown: list[str] = []
    address = "/p/long/document?id=valves"
    while address:
        page = browser.get(address).text
        shown += [html.unescape(text) for text in re.findall(r'text-text"><pre>(.*?)</pre>', page, re.DOTALL)]
        following = re.search(r'<a href="([^"]*)" rel="next"', page)
        address = html.unescape(following[1]) if following else ""
    assert [" ".join(text.split()) for text in shown] == [" ".join(text.split()) for text in texts]


def test_an_unknown_document_or_passage_is_named(browser: TestClient) -> None:
    for address in ("/p/reports/document?id=none", "/p/reports/document", "/p/reports/passage/none"):
        response = browser.get(address)
        assert response.status_code == 404
        assert "There is no" in response.text
    assert browser.get("/p/reports/document?id=texts/manual.txt&start=x").status_code == 400


# ---- project ---------------------------------------------------------------------------------------------------------


def test_the_project_lists_its_documents_in_pages_and_finds_them(browser: TestClient) -> None:
    page = browser.get("/p/long/project").text
    assert "1–100 of 151 documents" in page
    assert f"start={DOCUMENTS_PER_PAGE}" in page
    assert "101–151 of 151 documents" in browser.get("/p/long/project?start=100").text
    found = browser.get("/p/long/project?find=PUMP-00").text
    assert len(re.findall(r'<span class="soft id">', found)) == 10
    assert "No document has this in its name" in browser.get("/p/long/project?find=nowhere").text


def test_the_project_shows_versions_costs_and_failures(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = ProjectManager(root).load("reports")
    run = RunCost(run=3, purpose="ingest", started=0.0, llm="openai:x", calls=12, input_tokens=3_400, paid=0.5)
    monkeypatch.setattr(project, "cost", lambda: ProjectCost(runs=(run, replace(run, run=4, paid=None)), damaged=1))
    records = project.documents()
    failed = replace(records[0], fallback_chunks=("a", "b"))
    monkeypatch.setattr(project, "documents", lambda: [failed, *records[1:]])
    page = words(TestClient(make_app([project]), base_url="http://127.0.0.1").get("/p/reports/project").text)
    assert "v000001" in page
    assert " live " in page
    assert "12 calls of openai:x, 3,400 tokens in" in page
    assert "1 run without a known price" in page
    assert "1 damaged row" in page
    assert "llama-index-contextual retry reports" in page
    assert "2 chunks" in page


# ---- hostile text ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(project: Project) -> Project:
    """A project whose ids, titles, metadata, contexts and texts all contain markup."""
    nodes = [
        TextNode(
            id_=f"{number}{ATTACK}/../x?y#z",
            text=f"pump {ATTACK}",
            metadata={"title": ATTACK, "file_name": ATTACK, "section": ATTACK, "kind": f"{ATTACK}{number}"},
        )
        for number in range(2)
    ]
    documents = [
        Document(text=f"pump {ATTACK}", id_=f"doc {ATTACK}", metadata={"title": ATTACK, ATTACK: ATTACK, "kind": ATTACK})
    ]
    project.ingest([*nodes, *documents])
    return project


def test_text_of_documents_and_requests_stays_text(hostile: Project) -> None:
    browser = TestClient(make_app([hostile]), base_url="http://127.0.0.1")
    attack = ATTACK.replace("&amp;", "").replace("#", "")
    queries = (f"?q=pump {attack}", f"?q=pump&where={attack}", f"project?find={attack}", "?q=pump", "project")
    addresses = [f"/p/reports/{query}" for query in queries]
    for address in addresses[-2:]:
        links = re.findall(r'href="(/p/[^"]*(?:/passage/|/document\?)[^"]*)"', browser.get(address).text)
        assert links
        addresses += map(html.unescape, links)
    for address in addresses:
        page = browser.get(address)
        assert page.status_code in (200, 400), address
        assert_inert(page.text)


def assert_inert(page: str) -> None:
    """Check that a page has only the elements and attributes that a browser shows."""
    assert page.count("<script") == page.count('<script src="/static/')
    assert "<img src=x" not in page
    assert not re.search(r"<[^>]*\son\w+\s*=", re.sub(r'"[^"]*"', '""', page))
    assert not re.search(r'\s(?:href|src|action)="(?!/|#)', page)
    assert not re.search(r"<[^>]*\sstyle\s*=", re.sub(r'"[^"]*"', '""', page))
    assert "49 javascript" not in page
