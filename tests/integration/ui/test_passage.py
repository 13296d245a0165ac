"""The view of a passage: on its page, with its contexts and neighbours, whatever happened to the file."""

from __future__ import annotations

import asyncio
import html
import io
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pypdfium2
import pytest
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode
from starlette.testclient import TestClient

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.metadata import DocumentMap
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui import make_app
from llama_index_contextual.ui.marks import Box
from llama_index_contextual.ui.pages import Originals, PageRenderer
from llama_index_contextual.ui.passage import PagePart, parts_on_pages, passage_view
from llama_index_contextual.ui.places import place_of
from llama_index_contextual.ui.views import Links
from tests.integration.ui.conftest import PATIENCE
from tests.support.pdf_files import encrypted, lines, pdf_of

ATTACK = """</script><script>alert(1)</script><img src=x onerror="alert(2)"> {{ 7 * 7 }} &amp;"""
LEXICAL = ProjectConfig.local(mode="lexical", indexes="lexical", chunk_size=60, chunk_overlap=6)
PAGES = [
    [f"Clause {page}.{line}: the lessee pays {page}{line}00 euros of rent." for line in range(8)] for page in range(3)
]
WORDS = ("water", "bread", "paper", "light")
NOTES = "# Notes\n\n" + "\n\n".join(
    f"## Part {part}\n\n- item *{part}* of the notes\n- {ATTACK}\n\n" + f"Sentence {part} about valves. " * 20
    for part in range(30)
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a project of a PDF, a Markdown file, a text and a Document; tests do not change it."""
    folder = tmp_path_factory.mktemp("passages")
    texts = folder / "texts"
    texts.mkdir()
    (texts / "lease.pdf").write_bytes(pdf_of(map(lines, PAGES)).data())
    (texts / "notes.md").write_text(NOTES, encoding="utf-8")
    (texts / "plain.txt").write_text("\n".join(f"Row {row}\t{ATTACK if row == 40 else row}" for row in range(400)))
    project = ProjectManager(folder / "knowledge").create("all", LEXICAL)
    project.ingest([texts, Document(text="A remark on pumps.", id_="remark"), *odd_chunks()])
    return folder / "knowledge"


ODD_IDS = ("two\nlines", "ends\n", "a/b?c#d", " spaces ", "\u2028")


def odd_chunks() -> list[TextNode]:
    """Return chunks whose ids are hard to write into an address."""
    source = RelatedNodeInfo(node_id="odd")
    return [
        TextNode(text=f"Odd chunk {at}.", id_=id_, relationships={NodeRelationship.SOURCE: source})
        for at, id_ in enumerate(ODD_IDS)
    ]


@pytest.fixture(scope="module")
def project(root: Path) -> Project:
    return ProjectManager(root).load("all")


@pytest.fixture(scope="module")
def originals() -> Iterator[Originals]:
    originals = Originals(renderer=PageRenderer(processes=1))
    yield originals
    originals.renderer.close()


@pytest.fixture(scope="module")
def browser(project: Project) -> Iterator[TestClient]:
    app = make_app([project])
    yield TestClient(app, base_url="http://127.0.0.1")
    app.state.originals.renderer.close()


def chunk(project: Project, name: str, text: str) -> str:
    """Return the id of the first chunk of a document that contains a text."""
    record = next(record for record in project.documents() if record.doc_id.endswith(name))
    return next(node.node_id for node in project.chunks(record.doc_id) if text in node.get_content())


def words(page: str) -> str:
    """Return the text of a page as a reader sees it."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def address(node_id: str, query: str = "") -> str:
    return f"/p/all/passage/{quote(node_id, safe='')}{query}"


# ---- on its page -----------------------------------------------------------------------------------------------------


def test_the_lines_of_a_passage_are_marked_on_its_pages(project: Project, originals: Originals) -> None:
    view = passage_view(project, chunk(project, "lease.pdf", "Clause 1.3"), question="rent", originals=originals)
    assert view is not None
    assert view.original.kind == "pages"
    assert view.original.file_pages == 3
    shown = {page.number: page for page in view.original.pages}
    text = re.sub("<[^>]+>", "", view.text)
    expected = re.findall(r"(\d)\d00 euros\s+of\s+rent", text)  # the passage may begin within a line
    assert expected, text
    for number, page in shown.items():
        assert page.marks is not None
        assert len(page.marks.lines) == expected.count(str(number - 1))
    assert "<mark>rent</mark>" in view.text


def test_the_page_of_a_passage_links_its_image_marks_and_neighbours(browser: TestClient, project: Project) -> None:
    page = browser.get(address(chunk(project, "lease.pdf", "Clause 1.3"), "?q=rent+of+the+lessee")).text
    image = html.unescape(re.search(r'<img src="([^"]+)" width="800" height="1067" alt="([^"]+)"', page)[1])  # type: ignore[index]
    assert image.startswith("/p/all/image?")
    response = browser.get(image)
    assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    assert response.headers["cache-control"] == "private, max-age=31536000, immutable"
    other = browser.get(re.sub("v=[0-9a-f]+", "v=0", image))
    assert (other.content, other.headers["cache-control"]) == (response.content, "no-store")
    assert response.content.startswith(b"\x89PNG")
    assert re.search(r'<rect id="passage" class="mark-sentence" x="[\d.]+" y="[\d.]+" width="[\d.]+"', page)
    assert page.count('id="passage"') == 1
    assert "lines of the passage marked; its text follows" in page
    assert "style=" not in page
    assert "Place in the document" in page
    assert re.search(r'href="/p/all/passage/[^"]+\?q=rent\+of\+the\+lessee#passage">Passage after', page)
    assert "Results for “rent of the lessee”" in words(page)


@pytest.mark.parametrize(
    "query",
    [
        *("?doc=texts/lease.pdf", "?doc=texts/lease.pdf&page=0x1", "?page=1", "?doc=/etc/passwd&page=1"),
        *("?doc=../texts/lease.pdf&page=1", "?doc=texts/notes.md&page=1", "?doc=texts/lease.pdf&page=4"),
        "?doc=texts/lease.pdf&page=99999999999",
    ],
)
def test_only_pages_of_documents_are_served(browser: TestClient, query: str) -> None:
    response = browser.get(f"/p/all/image{query}")
    assert response.status_code in (400, 404)
    assert response.headers["content-type"].startswith("text/")


def test_pages_are_shown_while_many_pictures_wait(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    app, node_id = make_app([project]), chunk(project, "lease.pdf", "Clause 1.3")
    drawing, release = threading.Event(), threading.Event()

    def picture(*_: object) -> bytes:
        drawing.set()
        assert release.wait(PATIENCE)
        return b"picture"

    monkeypatch.setattr(app.state.originals.renderer, "picture", picture)

    async def visit() -> tuple[int, set[bytes]]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=PATIENCE) as client:
            waiting = [asyncio.create_task(client.get(Links("all").picture(node_id, None, ""))) for _ in range(60)]
            assert await asyncio.to_thread(drawing.wait, PATIENCE)
            page = await client.get(address(node_id))  # the pool has fewer than 60 threads
            release.set()
            return page.text.count("mark-line"), {one.content for one in await asyncio.gather(*waiting)}

    marks, pictures = asyncio.run(visit())
    app.state.originals.renderer.close()
    assert marks > 0
    assert pictures == {b"picture"}


def test_a_picture_that_nobody_waits_for_is_not_drawn(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    app, sent = make_app([project]), []
    path, _, query = Links("all").picture(chunk(project, "lease.pdf", "Clause 1.3"), None, "").partition("?")
    monkeypatch.setattr(app.state.originals.renderer, "picture", lambda *_: pytest.fail("it was drawn"))
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "scheme": "http", "root_path": "", "http_version": "1.1"}

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("status"))

    asyncio.run(app({**scope, "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}, receive, send))
    assert sent[0] == 499


def test_parts_of_a_passage_follow_the_pages() -> None:
    node = TextNode(text="abcdefgh", start_char_idx=6, end_char_idx=14)
    where = DocumentMap(page_starts=(0, 8, 10, 11, 20))
    assert parts_on_pages(Chunk.from_node(node), where) == [
        PagePart(1, 0, 2),
        PagePart(2, 2, 4),
        PagePart(3, 4, 5),
        PagePart(4, 5, 8),
    ]
    both = TextNode(text="ab", metadata={"page_start": 4, "page_end": 5})
    assert parts_on_pages(Chunk.from_node(both), DocumentMap()) == [PagePart(4, 0, 2), PagePart(5, 0, 2)]
    assert parts_on_pages(Chunk.from_node(TextNode(text="ab")), DocumentMap()) == []


# ---- the marked sentence ---------------------------------------------------------------------------------------------

SENTENCES = [[f"Sentence {page}.{at} says that {word} is free." for at in range(6)] for page, word in enumerate(WORDS)]


def boxed_text(path: Path, number: int, boxes: Sequence[Box]) -> str:
    """Return the letters and digits of a page whose middle is in one of the boxes."""
    with closing(pypdfium2.PdfDocument(path)) as document:
        page = document[number - 1]
        text, height = page.get_textpage(), page.get_height()
        signs = []
        for at, sign in enumerate(text.get_text_range()):
            x0, y0, x1, y1 = text.get_charbox(at)
            x, y = (x0 + x1) / 2, height - (y0 + y1) / 2
            if sign.isalnum() and any(box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1 for box in boxes):
                signs.append(sign)
    return "".join(signs)


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose PDF has one sentence in each line, and as many pages as there are words."""
    folder = tmp_path_factory.mktemp("sentences")
    (folder / "words.pdf").write_bytes(pdf_of(map(lines, SENTENCES)).data())
    config = ProjectConfig.local(mode="lexical", indexes="lexical", chunk_size=600)
    project = ProjectManager(folder / "knowledge").create("all", config)
    project.ingest([folder / "words.pdf"])
    return project


@pytest.fixture(scope="module")
def sentence_browser(sentences: Project) -> Iterator[TestClient]:
    app = make_app([sentences])
    yield TestClient(app, base_url="http://127.0.0.1")
    app.state.originals.renderer.close()


def marked_sentence(project: Project, page: int, at: int) -> tuple[str, tuple[int, int]]:
    """Return the id of the chunk with a sentence, and its start and end in the document."""
    (record,) = project.documents()
    sentence = SENTENCES[page][at]
    start = project.read(record.doc_id).index(sentence)
    return chunk(project, "words.pdf", sentence), (start, start + len(sentence))


@pytest.mark.parametrize(("page", "at"), [(0, 0), (1, 3), (2, 5), (3, 2)])
def test_the_boxes_of_the_mark_contain_the_words_of_the_sentence_and_no_others(
    sentences: Project, originals: Originals, page: int, at: int
) -> None:
    node_id, mark = marked_sentence(sentences, page, at)
    by_question = passage_view(sentences, node_id, question=f"{page}.{at} {WORDS[page]}", originals=originals)
    for view in (passage_view(sentences, node_id, mark=mark, originals=originals), by_question):
        assert view is not None
        assert view.mark == mark
        first = view.original.pages[0]
        assert (first.number, first.is_first_marked) == (page + 1, True)
        assert (view.place.page_start, view.place.page_end) == (page + 1, page + 1)
        assert view.original.begins_on == (1 if page else None)
        assert first.marks is not None
        path = Path(view.record.path or "")
        assert boxed_text(path, page + 1, first.marks.mark) == letters(SENTENCES[page][at])
        assert boxed_text(path, page + 1, first.marks.lines) == letters(" ".join(SENTENCES[page]))
        marked = view.text.partition('<mark class="spotlight">')[2]
        assert words(marked).replace(" .", ".").startswith(SENTENCES[page][at])


@pytest.mark.parametrize(
    "mark", ["", "5", "5-", "9-5", "-1-5", "5-5", "1e3-2e3", "٣-٤", "0-99999999999", "9" * 5000, "<b>"]
)
def test_a_mark_that_is_not_in_the_document_is_ignored(
    sentences: Project, sentence_browser: TestClient, mark: str
) -> None:
    node_id, _ = marked_sentence(sentences, 0, 0)
    response = sentence_browser.get(f"/p/all/passage/{node_id}", params={"mark": mark})
    assert response.status_code == 200
    assert "mark-sentence" not in response.text
    assert '<rect id="passage" class="mark-line"' in response.text


def test_without_a_lexical_index_only_the_requested_sentence_is_marked(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("one", ProjectConfig.local(indexes="semantic"))
    project.ingest([Document(text="The pump runs. The valve is closed.", id_="a")])
    (node,) = project.chunks("a")
    shown: list[Any] = [passage_view(project, node.node_id, question="valve", mark=mark) for mark in (None, (15, 35))]
    assert [view.mark for view in shown] == [None, (15, 35)]
    assert "The <mark>valve</mark> is closed.</mark>" in shown[1].original.html


def test_a_mark_that_ends_in_the_next_chunk_is_marked_to_its_end(project: Project) -> None:
    record = next(record for record in project.documents() if record.doc_id.endswith("plain.txt"))
    first, second = project.chunks(record.doc_id)[3:5]
    span = (first.end_char_idx - 5, second.start_char_idx + 30)
    view = passage_view(project, first.node_id, mark=span)
    assert view is not None
    marked = re.search(r'<mark id="passage" class="spotlight">(.*?)</mark>', view.original.html, re.DOTALL)
    assert marked is not None
    assert html.unescape(marked[1]) == project.read(record.doc_id)[slice(*span)]


def test_the_sentence_is_marked_in_text_and_markdown(browser: TestClient, project: Project) -> None:
    page = browser.get(address(chunk(project, "plain.txt", "Row 200"), "?q=row+200")).text
    assert '<mark id="passage" class="spotlight"><mark>Row</mark> <mark>200</mark>\t<mark>200</mark></mark>' in page
    page = browser.get(address(chunk(project, "notes.md", "item *12*"), "?q=item+12")).text
    assert '<mark id="passage" class="spotlight"><mark>item</mark> </mark><em>' in page
    assert page.count('id="passage"') == 1


# ---- if the page cannot be shown -------------------------------------------------------------------------------------


def ingested(tmp_path: Path, name: str, data: bytes, **options: str) -> tuple[Project, Path]:
    path = tmp_path / name
    path.write_bytes(data)
    project = ProjectManager(tmp_path / "knowledge").create("one", LEXICAL)
    project.ingest([path], passwords=options.get("password"))
    return project, path


REASONS = {
    "missing": ("The file lease.pdf is not where", "llama-index-contextual serve one --documents FOLDER"),
    "changed": ("The file has changed since it was", "llama-index-contextual ingest one FOLDER"),
    "broken": ("The file has changed since it was", "llama-index-contextual ingest one FOLDER"),
    "locked": ("The page cannot be shown: the PDF is encrypted", ""),
    "folder": ("", ""),
}


@pytest.mark.parametrize("what", REASONS)
def test_the_text_is_shown_with_the_reason_if_the_page_cannot_be(
    tmp_path: Path, originals: Originals, what: str
) -> None:
    data = encrypted("secret") if what == "locked" else pdf_of(map(lines, PAGES)).data()
    project, path = ingested(tmp_path, "lease.pdf", data, password="secret")
    node_id = project.chunks(project.documents()[0].doc_id)[0].node_id
    if what in ("missing", "folder"):
        (tmp_path / "elsewhere").mkdir()
        path.rename(tmp_path / "elsewhere" / path.name)
    elif what in ("changed", "broken"):
        path.write_bytes(pdf_of([lines(["Other text"])]).data() if what == "changed" else b"")
    folders = [tmp_path / "elsewhere"] if what == "folder" else []
    view = passage_view(project, node_id, originals=Originals(folders, originals.renderer))
    assert view is not None
    original = view.original
    note, command = REASONS[what]
    assert (original.kind, original.command) == ("pages" if what == "folder" else "text", command)
    assert original.note.startswith(note)
    if what != "folder":
        assert str(tmp_path) not in str(view)
        assert 'id="passage" class="in-passage"' in original.html


# ---- the file itself -------------------------------------------------------------------------------------------------


def test_the_original_is_opened_without_scripts_or_downloaded(browser: TestClient, project: Project) -> None:
    page = browser.get(address(chunk(project, "lease.pdf", "Clause 1.3"))).text
    assert re.search(r'href="/p/all/original\?doc=texts%2Flease.pdf#page=2"[^>]*>.*?Open original at page 2</a>', page)
    for name, kind in (("lease.pdf", "application/pdf"), ("notes.md", "text/plain; charset=utf-8")):
        record = next(record for record in project.documents() if record.doc_id.endswith(name))
        response = browser.get(Links("all").original(record.doc_id))
        assert (response.status_code, response.headers["content-type"]) == (200, kind)
        assert response.content == Path(record.path or "").read_bytes()
        assert response.headers["content-disposition"] == f"inline; filename*=UTF-8''{name}"
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert ("sandbox" in policy) == (kind != "application/pdf")  # Safari shows nothing of a PDF in a sandbox
        assert "script-src" not in policy


def test_files_that_browsers_would_run_are_downloaded(tmp_path: Path) -> None:
    name = "page\r\nX: \u202e.html"
    project, path = ingested(tmp_path, name, b"<h1>A</h1><script>alert(1)</script><p>The pump runs.")
    app = make_app([project])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        (record,) = project.documents()
        response = client.get(Links("one").original(record.doc_id))
        assert (response.status_code, response.headers["content-type"]) == (200, "application/octet-stream")
        assert re.fullmatch(r"attachment; filename\*=UTF-8''[\w%.]+", response.headers["content-disposition"])
        assert "x" not in response.headers
        path.write_bytes(b"<p>Another text")
        assert client.get(Links("one").original(record.doc_id)).status_code == 404
        page = client.get(Links("one").passage(project.chunks(record.doc_id)[0].node_id)).text
        assert "The pump runs." in page
        assert "Open original" not in page


@pytest.mark.parametrize("doc", ["", "/etc/passwd", "../texts/lease.pdf", "texts", "lease.pdf", "remark", "odd"])
def test_only_files_of_documents_are_opened(browser: TestClient, doc: str) -> None:
    response = browser.get(Links("all").original(doc))
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/html")


# ---- the results of a search -----------------------------------------------------------------------------------------


def test_a_passage_links_to_the_results_before_and_after_it(project: Project) -> None:
    app = make_app([ProjectManager(project.directory.parent).load("all")])
    parameters = {"q": "valves", "top_k": "4", "file": ["texts/notes.md"]}
    with TestClient(app, base_url="http://127.0.0.1") as client:
        url = html.unescape(Links("all").search(**parameters))
        client.get(url)
        hits = project.retrieve("valves", top_k=4)
        urls = [Links("all").passage(hit.node_id, **parameters) for hit in hits]
        pages = [client.get(one).text for one in urls]
        assert len(hits) == 4
        for at, page in enumerate(pages):
            assert f"{at + 1} of 4" in words(page)
            links = {rel: html.unescape(link) for link, rel in re.findall(r'href="([^"]+)" rel="(prev|next)"', page)}
            assert set(links) == {name for name, is_there in (("prev", at), ("next", at < 3)) if is_there}
            for rel, step in (("prev", -1), ("next", 1)):
                if rel in links:
                    spot = hits[at + step].spotlight
                    assert spot is not None
                    assert f"/{quote(hits[at + step].node_id)}?q=valves&mark={spot.start}-{spot.end}&" in links[rel]
            assert f'href="{html.escape(url)}"' in page
            assert page.count('aria-current="true"') == 1  # in the list of the results of this document
        other = client.get(Links("all").passage(hits[0].node_id, q="pumps")).text
    assert " of 4" not in words(other)
    assert 'rel="next"' not in other


# ---- in its text -----------------------------------------------------------------------------------------------------


def test_markdown_is_rendered_with_the_passage_marked_and_nothing_active(browser: TestClient, project: Project) -> None:
    page = browser.get(address(chunk(project, "notes.md", "item *12*"), "?q=notes")).text
    assert re.search(r"<em>(<mark[^>]*>)?12(</mark>)?</em>", page)
    assert 'class="in-passage"' in page
    assert page.count('id="passage"') == 1
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "{{ 7 * 7 }}" in words(page)
    assert "This is a part of the document." in words(page)
    assert "<mark>notes</mark>" in page


def test_a_quotation_is_copied_with_its_file_and_place(tmp_path: Path) -> None:
    project, _ = ingested(
        tmp_path, "valves.md", b"# Valves\n\n| Valve | Pressure |\n|---|---|\n| Ball | 40 bar |\n\nA **gate** valve."
    )
    (node,) = project.chunks(project.documents()[0].doc_id)
    row, sentence = (passage_view(project, node.node_id, question=one) for one in ("ball", "gate"))
    assert row is not None
    assert sentence is not None
    assert row.citation == "“Ball (Pressure: 40 bar)” (valves.md, Valves)"
    assert sentence.citation == "“A gate valve.” (valves.md, Valves)"


def test_a_sheet_is_named_and_shown_without_the_others(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="needs the extra `office`")
    book, data = openpyxl.Workbook(), io.BytesIO()
    for name, word in (("Stock", "pump"), ("Prices", "valve")):
        sheet = book.create_sheet(name)
        for row in (["Part", "Number"], [word, 7]):
            sheet.append(row)
    del book["Sheet"]
    book.save(data)
    project, _ = ingested(tmp_path, "parts.xlsx", data.getvalue())
    (node,) = project.chunks(project.documents()[0].doc_id)
    view = passage_view(project, node.node_id, question="valve")
    assert view is not None
    assert (view.original.kind, view.original.position, str(place_of(view.place))) == (
        *("sheet", "Sheet 2 of 2", "Sheet “Prices”"),
    )
    assert words(view.original.html) == "Sheet “ Prices ” Part Number valve 7"
    assert view.quotation.grid is not None
    assert (view.quotation.grid.head, view.quotation.grid.rows) == (["Part", "Number"], [["valve", "7"]])


def test_a_text_is_shown_with_whole_lines_around_the_passage(browser: TestClient, project: Project) -> None:
    page = browser.get(address(chunk(project, "plain.txt", "Row 200"))).text
    block = re.search(r'<div class="document-text text-text"[^>]*><pre>(.*?)</pre></div>', page, re.DOTALL)
    assert block is not None
    text = html.unescape(re.sub(r"<[^>]+>", "", block[1]))
    record = next(record for record in project.documents() if record.doc_id.endswith("plain.txt"))
    assert text in project.read(record.doc_id)
    assert re.match(r"Row \d+\t", text)
    assert "Row 200\t200" in re.search(r'id="passage" class="in-passage">(.*?)</span>', page, re.DOTALL)[1]  # type: ignore[index]


def test_contexts_of_the_structure_and_of_an_llm_are_told_apart(tmp_path: Path) -> None:
    project = ProjectManager(tmp_path).create("given", LEXICAL)
    given = {"context": "The lease of ACME.\nIt concerns the rent.", "context_source": "llm", "context_written_at": 19}
    project.ingest([TextNode(text="Rent is due.", id_="one", metadata={**given, "fund": "Halpha"})])
    view = passage_view(project, "one", question="rent")
    assert view is not None
    assert (view.structure, view.context) == ("The lease of ACME.", "It concerns the <mark>rent</mark>.")
    assert view.facts == {"fund": "Halpha"}


def test_text_of_a_document_is_never_markup(browser: TestClient, project: Project) -> None:
    page = browser.get(address(chunk(project, "plain.txt", "<script>"), "?q=" + quote(ATTACK))).text
    assert "<script>alert" not in page
    assert "onerror=&#34;" in page
    assert "<img" not in page


def test_a_chunk_is_found_whatever_its_id_is_and_documents_without_a_file_show_their_text(
    browser: TestClient, project: Project
) -> None:
    for at, node_id in enumerate(ODD_IDS):
        page = browser.get(Links("all").passage(node_id))
        assert (page.status_code, f"Odd chunk {at}." in page.text) == (200, True)
    assert "A remark on pumps." in words(browser.get(address(chunk(project, "remark", "pumps"))).text)
    for missing in ("/p/all/passage/nothing", "/p/other/passage/nothing", "/p/other/image?doc=a.pdf&page=1"):
        assert browser.get(missing).status_code == 404


def test_the_neighbours_of_a_passage_are_those_in_the_text(project: Project, tmp_path: Path) -> None:
    record = next(record for record in project.documents() if record.doc_id.endswith("notes.md"))
    nodes = project.chunks(record.doc_id)
    views: list[Any] = [passage_view(project, nodes[at].node_id) for at in (0, 5, -1)]
    places = [("", nodes[1].node_id), (nodes[4].node_id, nodes[6].node_id), (nodes[-2].node_id, "")]
    assert [(view.before, view.after) for view in views] == places

    other = ProjectManager(tmp_path).create("long", LEXICAL)  # of many chunks only those near the passage are read
    other.ingest([Document(text="\n\n".join(f"Row {at}. " + "It says little. " * 12 for at in range(450)), id_="long")])
    nodes = other.chunks("long")
    assert len(nodes) > 400
    view: Any = passage_view(other, nodes[300].node_id)
    assert (view.before, view.after) == (nodes[299].node_id, nodes[301].node_id)
