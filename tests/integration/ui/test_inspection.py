"""The page of `inspect`: complete, self-contained, and safe from text of documents."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui.overview import inspection_page, write_page
from tests.support.cli import run

ATTACK = "</script></style><script>alert(1)</script><img src=x onerror=alert(2)> \u2028 <!-- error TS-999"


class Tags(HTMLParser):
    """What a browser would take for markup."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Every tag of a page with its attributes."""
    parser = Tags()
    parser.feed(page)
    return parser.tags


def words(page: str) -> str:
    """The text of a page as a reader sees it."""
    return " ".join(html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)).split())


def chunks(page: str) -> list[str]:
    """The text of the part of a page about each chunk."""
    parts = re.findall(r'<article class="chunk" id="chunk-\d+">(.*?)</article>', page, re.DOTALL)
    return [words(part) for part in parts]


QUESTION = "What does error TS-999 mean?"


def test_every_document_segment_and_chunk_is_on_the_page(filled: Project) -> None:
    page = inspection_page(filled)
    nodes = [node for record in filled.documents() for node in filled.chunks(record.doc_id)]
    shown = chunks(page)
    assert len(shown) == len(nodes) == filled.info().chunks
    for text, node in zip(shown, nodes, strict=True):
        for part in (node.get_content(), node.metadata["context"], f"kind {node.metadata['kind']}"):
            assert " ".join(part.split()) in text
    assert f"Version v000001: 3 documents, {len(nodes)} chunks" in words(page)


def test_a_search_is_explained_by_index_with_its_near_misses(filled: Project) -> None:
    page = inspection_page(filled, [QUESTION], top_k=2)
    best = filled.retrieve(QUESTION, top_k=2, explain=True)
    shown = words(page)
    assert QUESTION in shown
    assert page.count('<li class="result">') == 2
    for leg in (best[0].semantic, best[0].lexical):
        assert leg is not None
        assert f"rank {leg.rank}, score {leg.score:.4f}" in shown
    assert best.explanations[0].arithmetic in shown
    assert f"In the text {', '.join(best.explanations[0].in_text)}" in shown
    assert "<mark>TS-999</mark>" in page
    assert best.near_misses
    assert all(f"Why not {miss.why_not}" in shown for miss in best.near_misses)


def test_text_of_documents_is_never_markup(project: Project, tmp_path: Path) -> None:
    def page(text: str) -> str:
        (tmp_path / "attack.md").write_text(f"# {text}\n\n{text}", encoding="utf-8")
        project.ingest([tmp_path / "attack.md"], file_metadata=lambda _path: {"kind": text})
        return inspection_page(project, [text])

    harmless = [tag for tag, _ in tags(page("error TS-999")) if tag != "mark"]
    attacked = page(ATTACK)
    assert {tag for tag, _ in tags(attacked)} - {"mark"} <= set(harmless)
    assert not any(name.startswith("on") for _, attributes in tags(attacked) for name in attributes)
    assert attacked.count("</style>") == 1
    assert " ".join(ATTACK.split()) in chunks(attacked)[0]


def test_the_page_loads_nothing_and_runs_nothing(filled: Project) -> None:
    page = inspection_page(filled, ["pump", "duty on bronze fittings"])
    for tag, attributes in tags(page):
        assert tag not in ("script", "link", "iframe", "object", "embed", "form", "base")
        assert not {"srcset", "style", "onerror", "onclick"} & attributes.keys()
        assert str(attributes.get("src", "data:image/png;base64,")).startswith("data:image/png;base64,")
        assert str(attributes.get("href", "#")).startswith("#")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert not re.search(r"@import|url\(|https?:", style[1])
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(str(a["content"]) for _, a in tags(page) if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'"


def test_the_page_of_a_result_is_shown_with_its_marks(filled: Project, tmp_path: Path) -> None:
    question = "Are exports of bronze fittings free of duty?"
    page = inspection_page(filled, [question], top_k=1)
    images = [str(attributes["src"]) for tag, attributes in tags(page) if tag == "img"]
    assert [base64.b64decode(image.partition(",")[2])[:4] for image in images] == [
        b"\x89PNG"
    ]  # from the page of the mark
    assert "Page 2 of 2" in words(page)
    assert 'class="mark-sentence"' in page

    reports = filled.directory.parent.with_name("texts")
    moved = reports.rename(tmp_path / "moved")
    try:
        assert "<img" not in inspection_page(filled, [question], top_k=1)
        assert "<img" in inspection_page(filled, [question], top_k=1, document_folders=[moved])
    finally:
        moved.rename(reports)


def test_the_command_writes_the_page(filled: Project, tmp_path: Path) -> None:
    target, root = tmp_path / "page.html", filled.directory.parent
    assert run("inspect", "reports", "--root", root, "--html", target, "--query", "pump").code == 0
    assert '<h2 class="title" id="search-title-1">pump</h2>' in target.read_text(encoding="utf-8")
    with pytest.raises(InputError, match="is not a folder: create it"):
        write_page(filled, tmp_path / "nowhere" / "page.html")


@pytest.mark.parametrize("questions", [["pump"], []])
def test_a_project_without_a_version_gives_advice(project: Project, questions: list[str]) -> None:
    with pytest.raises(NoVersionError, match="has no version yet: run"):
        inspection_page(project, questions)
