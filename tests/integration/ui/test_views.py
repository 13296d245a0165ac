"""The views of the search, a document and a project: what they show, and that text of documents stays text."""

from __future__ import annotations

import html
import io
import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, unquote_plus

import pytest
from llama_index.core.schema import Document, TextNode
from PIL import Image
from starlette.testclient import TestClient

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.money.receipt import ProjectCost, Receipt
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui import make_app
from llama_index_contextual.ui.overview import CHUNKS_PER_PAGE, DOCUMENTS_PER_PAGE
from tests.support.documents import pdf_bytes

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


def files_of(page: str) -> list[str]:
    """Return the files of the results, in order."""
    headers = re.findall(r"<article class=\"group\">\s*<header>(.*?)</header>", page, re.DOTALL)
    titles = (re.search(r"<a href=\"[^\"]*document\?id=([^\"]*)\"", header) for header in headers)
    return [unquote_plus(title[1]).rpartition("/")[2] for title in titles if title]


def values_of(page: str, parameter: str) -> dict[str, int]:
    """Return the offered values of a facet, with the number of documents of each."""
    field = rf'name="{parameter}" value="([^"]*)" form="search"[^>]*> <span>[^<]*</span> <span class="number">([\d,]+)<'
    return {html.unescape(value): int(count.replace(",", "")) for value, count in re.findall(field, page)}


# ---- search ----------------------------------------------------------------------------------------------------------

QUESTION = "What does error TS-999 mean?"


def test_a_result_is_its_sentence_with_the_words_of_the_question_and_its_place(browser: TestClient, root: Path) -> None:
    page = browser.get("/p/reports/", params={"q": QUESTION}).text
    hits = ProjectManager(root).load("reports").retrieve(QUESTION)
    assert files_of(page)[0] == "manual.txt"
    assert "<mark>TS-999</mark>" in page
    assert page.count('<li class="result">') == len(hits)
    quotes = re.findall(r'<blockquote class="quote">(.*?)</blockquote>', page, re.DOTALL)
    assert words(quotes[0]).replace(" ", "")[:200] == "".join(hits[0].spotlight.text.split())[:200]
    for hit in hits:
        address = f"?q=What+does+error+TS-999+mean%3F&amp;mark={hit.spotlight.start}-{hit.spotlight.end}#passage"
        assert f"/p/reports/passage/{hit.node_id}{address}" in page
        assert f"page {hit.place.page_start}" in words(page) or hit.place.page_start is None
    assert "Tariff note" in words(page)
    assert "tariff.pdf" in words(page)


def test_scores_and_contexts_are_shown_under_why_and_nowhere_else(browser: TestClient, root: Path) -> None:
    page = browser.get("/p/reports/", params={"q": QUESTION}).text
    hits = ProjectManager(root).load("reports").retrieve(QUESTION, explain=True)
    results, _, _ = page.partition('<details class="misses">')
    reasons = re.findall(r'<details class="why">\s*<summary>Why</summary>(.*?)</details>', results, re.DOTALL)
    by_rank = {int(words(one).partition("Rank ")[2].split(",")[0].split()[0]): words(one) for one in reasons}
    for hit, explanation in zip(hits, hits.explanations, strict=True):
        why = by_rank[hit.rank]
        assert explanation.arithmetic in why
        assert all(f"{value:+.3f}" in why for value in explanation.shares.values())
        assert "Place in the document" in why
    outside = words(re.sub(r'<details class="why">.*?</details>', "", results, flags=re.DOTALL))
    assert not re.search(r"\d\.\d{3}|score|Place in the document|semantic search", outside)


def test_the_results_of_a_document_stand_together_below_its_name(browser: TestClient) -> None:
    page = browser.get("/p/reports/?q=pump+water+report").text
    assert len(files_of(page)) == len(set(files_of(page))) == 3
    long = browser.get("/p/long/?q=valve&mode=lexical&top_k=100&file=valves").text
    assert long.count('<details class="more">') == 0  # all results of the only document


def test_passages_that_are_less_likely_are_folded_away(browser: TestClient, root: Path) -> None:
    everything = ProjectManager(root).load("reports").retrieve("xyzzyqq")
    page = browser.get("/p/reports/?q=xyzzyqq").text
    before, _, folded = page.partition('<details class="misses folded">')
    assert "Nothing found: no passage is likely to answer this. No document mentions “xyzzyqq”." in words(before)
    assert (before.count('<li class="result">'), folded.count('<li class="result">')) == (0, len(everything))
    assert words(folded).startswith(f"{len(everything)} passages less likely to answer this")


def test_a_table_row_is_shown_as_cells_under_its_column_headers(project: Project, tmp_path: Path) -> None:
    table = "| Town | Customers |\n|---|---|\n| Upper Vale | 20,311 |\n| Port Averly | 40,120 |\n"
    (tmp_path / "towns.md").write_text(f"# Towns\n\n{table}", encoding="utf-8")
    project.ingest([tmp_path / "towns.md"])
    page = TestClient(make_app([project]), base_url="http://127.0.0.1").get("/p/reports/?q=Port+Averly").text
    row = re.search(r'<table class="row">(.*?)</table>', page, re.DOTALL)
    assert row is not None
    assert words(row[1]) == "Town Customers Port Averly 40,120"
    copied = re.search(r'data-copy="([^"]*)"', page)
    assert copied is not None
    assert html.unescape(copied[1]) == "“Port Averly (Customers: 40,120)” (towns.md, Towns)"


def test_a_long_row_is_shown_as_a_list_of_headers_and_cells(project: Project, tmp_path: Path) -> None:
    remark = "The meter of this town was replaced in spring, and the old one was sold."
    table = f"| Town | Customers | Remark | Empty |\n|---|---|---|---|\n| Quorn Harbour | 40,120 | {remark} |  |\n"
    (tmp_path / "towns.md").write_text(f"# Towns\n\n{table}", encoding="utf-8")
    project.ingest([tmp_path / "towns.md"])
    page = TestClient(make_app([project]), base_url="http://127.0.0.1").get("/p/reports/?q=Quorn+Harbour").text
    cells = re.search(r'<dl class="cells">(.*?)</dl>', page, re.DOTALL)
    assert cells is not None
    assert words(cells[1]) == f"Town Quorn Harbour Customers 40,120 Remark {remark}"
    assert '<table class="row' not in page.partition("</article>")[0]


def test_facets_count_the_documents_with_each_item_of_a_list_and_leave_points_in_time_to_the_date(
    tmp_path: Path,
) -> None:
    facts = {
        "a.md": {"tags": ["water", "old"], "sent_at": "2024-03-04T10:00:00+01:00", "floor": 1},
        "b.md": {"tags": ["water", "water"], "sent_at": "2024-03-05T10:00:00+01:00", "floor": 1},
        "c.md": {"tags": "old", "sent_at": "2024-03-06T10:00:00+01:00", "floor": 2},
        "d.md": {"tags": [], "plan": {"floor": 3}},
    }
    for name in facts:
        (tmp_path / name).write_text(f"# Pump {name}\n\nThe pump of {name} runs.\n", encoding="utf-8")
    project = ProjectManager(tmp_path / "knowledge").create("p", ProjectConfig.local())
    project.ingest([tmp_path / name for name in facts], file_metadata=lambda path: facts[Path(path).name])
    browser = TestClient(make_app([project]), base_url="http://127.0.0.1")
    offered = values_of(browser.get("/p/p/?q=pump").text, "where")
    assert offered == {"tags=water": 2, "tags=old": 2, "floor=1": 2, "floor=2": 1}
    for condition, count in offered.items():
        assert len(files_of(browser.get("/p/p/", params={"q": "pump", "where": condition}).text)) == count


def test_a_picture_shows_the_marked_part_of_the_page(browser: TestClient) -> None:
    page = browser.get("/p/reports/?q=duty+on+bronze+fittings").text
    picture = re.search(r'<img src="([^"]*/picture[^"]*)"', page)
    assert picture is not None
    response = browser.get(html.unescape(picture[1]))
    assert response.headers["content-type"] == "image/jpeg"
    assert "immutable" in response.headers["cache-control"]
    with Image.open(io.BytesIO(response.content)) as image:
        assert image.width <= 510
        colours = [colour for _, colour in image.convert("RGB").getcolors(1_000_000)]
        sentence = (255, 213, 74)
        assert any(max(abs(a - b) for a, b in zip(one, sentence, strict=True)) < 12 for one in colours)
    assert browser.get("/p/reports/picture?chunk=none").status_code == 404


def test_there_are_pictures_of_files_that_were_moved_to_a_folder_of_the_server(
    project: Project, tmp_path: Path
) -> None:
    path = tmp_path / "tariff.pdf"
    path.write_bytes(pdf_bytes())
    project.ingest([path])
    (tmp_path / "archive" / "2024").mkdir(parents=True)
    path.rename(tmp_path / "archive" / "2024" / "tariff.pdf")
    pictures = []
    for folders in ([], [tmp_path / "archive"]):
        app = make_app([project], document_folders=folders)
        client = TestClient(app, base_url="http://127.0.0.1")
        page = client.get("/p/reports/?q=duty+on+bronze+fittings").text
        pictures.append(re.findall(r'<img src="([^"]*/picture[^"]*)"', page))
        statuses = [client.get(html.unescape(one)).status_code for one in pictures[-1]]
        app.state.originals.renderer.close()
    assert (len(pictures[0]), len(pictures[1]), set(statuses)) == (0, 1, {200})


# ---- facets ----------------------------------------------------------------------------------------------------------


def test_facets_are_offered_with_their_numbers_of_documents_and_narrow_the_search(browser: TestClient) -> None:
    page = browser.get("/p/reports/?q=pump").text
    assert values_of(page, "type") == {"markdown": 1, "text": 1, "pdf": 1}
    assert values_of(page, "where") == {
        **{f"kind={kind}": 1 for kind in ("report", "manual", "tariff")},
        "year=2024": 1,
        "year=2025": 2,
    }
    assert "running_footer" not in browser.get("/p/reports/").text  # a line of the layout
    pdf = browser.get("/p/reports/?q=pump&type=pdf").text
    assert set(files_of(pdf)) == {"tariff.pdf"}
    assert 'name="type" value="pdf" form="search" checked' in pdf
    assert values_of(pdf, "type") == values_of(page, "type")
    either = browser.get("/p/reports/?q=pump&type=pdf&type=text&where=year=2025").text
    assert set(files_of(either)) == {"tariff.pdf", "manual.txt"}
    assert "No document has type 'sheet'; there are" in words(browser.get("/p/reports/?q=pump&type=sheet").text)


def test_folder_date_and_language_are_facets(project: Project, tmp_path: Path) -> None:
    texts = {
        "Reports/a.md": "The pump of the plant is old and has to be replaced.",
        "Reports/2024/b.md": "The pump was serviced in the spring, and it is safe.",
        "Manuals/c.md": "Die Pumpe muss nach dem Halt zehn Minuten stehen und wird dann geprüft.",
    }
    for at, (name, text) in enumerate(texts.items()):
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        day = datetime(2024 + at % 2, 5, 6, 12, tzinfo=UTC).timestamp()
        os.utime(path, (day, day))
    project.ingest([tmp_path / "all"])
    browser = TestClient(make_app([project]), base_url="http://127.0.0.1")
    page = browser.get("/p/reports/?q=pump").text
    assert values_of(page, "folder") == {"all/Reports": 2, "all/Manuals": 1}
    assert values_of(page, "date") == {"2025": 1, "2024": 2}
    assert values_of(page, "language") == {"english": 2, "german": 1}
    assert values_of(page, "type") == {}  # all are Markdown
    narrowed = {
        "folder=all/Reports": {"a.md", "b.md"},
        "date=2025": {"b.md"},
        "language=german": {"c.md"},
        "folder=all/Reports&date=2024": {"a.md"},
    }
    for query, files in narrowed.items():
        assert set(files_of(browser.get(f"/p/reports/?q=pump&{query}").text)) == files, query
        assert all(name in browser.get(f"/p/reports/?{query}").text for name in files)  # the list without a question
    assert "c.md" not in browser.get("/p/reports/?folder=all/Reports").text


def test_a_chip_removes_its_filter_and_keeps_the_others(browser: TestClient) -> None:
    page = browser.get("/p/reports/?q=pump&type=pdf&where=year>2024&file=*.pdf&mode=semantic").text
    links = re.findall(r'<li><a href="([^"]*)"><span class="hidden">Remove the filter</span> ([^<]*?) <', page)
    chips = {html.unescape(text): parse_qs(html.unescape(address).partition("?")[2]) for address, text in links}
    rest = {"q": ["pump"], "mode": ["semantic"], "type": ["pdf"], "where": ["year>2024"], "file": ["*.pdf"]}
    for text, name in {"PDF": "type", "year>2024": "where", "*.pdf": "file"}.items():
        assert chips[text] == {key: value for key, value in rest.items() if key != name}
    for name in ("where", "file"):  # a search from this page keeps what no checkbox shows
        assert f'<input type="hidden" name="{name}"' in page
    assert set(files_of(page)) == {"tariff.pdf"}


def test_a_changed_version_has_new_facets(project: Project, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("The pump.", encoding="utf-8")
    (tmp_path / "b.txt").write_text("The pump runs.", encoding="utf-8")
    project.ingest([tmp_path])
    browser = TestClient(make_app([project]), base_url="http://127.0.0.1")
    assert values_of(browser.get("/p/reports/?q=pump").text, "type") == {"markdown": 1, "text": 1}
    (tmp_path / "c.txt").write_text("The valve.", encoding="utf-8")
    project.ingest([tmp_path])
    assert values_of(browser.get("/p/reports/?q=pump").text, "type") == {"text": 2, "markdown": 1}


# ---- the start page and requests -------------------------------------------------------------------------------------


def test_the_start_page_offers_facets_and_documents(browser: TestClient) -> None:
    page = browser.get("/p/reports/").text
    assert "What are you looking for?" in page
    assert "3 documents" in words(page)
    for address in re.findall(r"<dd>(.*?)</dd>", page, re.DOTALL):
        for link in re.findall(r'href="([^"]*)"', address):
            assert re.search(r"Remove the filter", browser.get(html.unescape(link)).text)
    for name in ("manual.txt", "Tariff note"):
        assert name in page


def test_typing_searches_words_only_and_sends_the_results_alone(browser: TestClient, root: Path) -> None:
    part = browser.get("/p/reports/?q=pump&mode=lexical&part=results")
    assert part.status_code == 200
    assert "<html" not in part.text
    assert "<form" not in part.text
    whole = browser.get("/p/reports/?q=pump&mode=lexical").text
    assert files_of(part.text) == files_of(whole) != []
    typed = browser.get("/p/reports/?q=bronze&mode=lexical&part=results").text
    for results, is_known in ((whole, True), (typed, False)):  # only submitted searches have a previous and a next hit
        first, *_ = re.findall(r'class="result-link" href="([^"]*)"', results)
        assert ('class="steps"' in browser.get(html.unescape(first)).text) == is_known
    assert "What are you looking for?" in browser.get("/p/reports/?part=results").text  # nothing has been typed


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("q=pump&where=knd=manual", "No document has the field 'knd'; did you mean 'kind'?"),
        ("q=pump&where=kind", "'kind' is not FIELD=VALUE, such as kind=report"),
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
    assert "No document has year > 2030; there are 2024, 2025." in words(filtered)
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


def test_passages_without_a_context_are_marked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = ProjectManager(root).load("long")
    version = project.live_version
    record = next(record for record in project.documents() if record.doc_id == "valves")
    failed, other = [node.node_id for node in project.chunks("valves")][:2]
    with_failure = replace(record, fallback_chunks=(failed,))
    monkeypatch.setattr(type(version), "record", lambda *_: with_failure)
    browser = TestClient(make_app([project]), base_url="http://127.0.0.1")
    page = browser.get("/p/long/document?id=valves").text
    assert re.findall(r'chunk-failed" id="chunk-([^"]+)"', page) == [failed]
    assert "The LLM wrote no context for 1 passage of this document." in words(page)
    assert "llama-index-contextual retry long" in page
    shown = [words(browser.get(f"/p/long/passage/{node_id}").text) for node_id in (failed, other)]
    assert ["The LLM wrote no context for this passage." in text for text in shown] == [True, False]


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
    assert len(re.findall(r'<span class="soft small">pump-00', found)) == 10
    assert "No document has this in its name" in browser.get("/p/long/project?find=nowhere").text


def test_the_project_shows_versions_costs_and_failures(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = ProjectManager(root).load("reports")
    run = Receipt(run=3, purpose="ingest", started=0.0, llm="openai:x", calls=12, input_tokens=3_400, paid=0.5)
    monkeypatch.setattr(project, "cost", lambda: ProjectCost(runs=(run, replace(run, run=4, paid=None)), damaged=1))
    records = project.documents()
    failed = replace(records[0], fallback_chunks=("a", "b"))
    monkeypatch.setattr(project, "documents", lambda: [failed, *records[1:]])
    page = words(TestClient(make_app([project]), base_url="http://127.0.0.1").get("/p/reports/project").text)
    assert "v000001" in page
    assert page.endswith(" live")
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
