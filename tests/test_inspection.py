"""The HTML page of a project: complete, self-contained, and safe from text of documents."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llama_index_contextual.cli.app import app
from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.project.project import Project
from llama_index_contextual.ui.inspection import inspection_page, write_page

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \u2028 <!-- error TS-999"


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


def data(page: str) -> Any:
    """What the page's script works on."""
    documents = re.search(r"^const data = (.*);$", page, re.MULTILINE)
    assert documents is not None
    return json.loads(documents[1])


@pytest.fixture
def filled(project: Project, tiny_folder: Path) -> Project:
    """A project of three documents."""
    project.ingest([tiny_folder], file_metadata=lambda path: {"kind": Path(path).suffix})
    return project


def test_every_document_segment_and_chunk_is_on_the_page(filled: Project) -> None:
    result = data(inspection_page(filled))
    assert (result["project"], result["version"], result["searches"]) == ("reports", "v000001", [])
    shown = {
        chunk["id"]: (chunk["text"], chunk["structure"] + chunk["context"], chunk["facts"]["kind"])
        for document in result["documents"]
        for segment in document["segments"]
        for chunk in segment
    }
    expected = {
        node.node_id: (node.get_content(), node.metadata.get("context", ""), node.metadata["kind"])
        for record in filled.documents()
        for node in filled.chunks(record.doc_id)
    }
    assert shown == expected
    assert len(shown) == filled.info().chunks


def test_a_search_is_explained_by_index(filled: Project) -> None:
    (search,) = data(inspection_page(filled, ["What does error TS-999 mean?"], top_k=2))["searches"]
    best = search["results"][0]
    chunk = filled.retrieve("What does error TS-999 mean?", top_k=2)[0]
    assert len(search["results"]) == 2
    assert best["node_id"] == chunk.node_id
    assert best["lexical"]["rank"] == 1
    assert "ts-999" in best["lexical"]["matched_terms"]
    assert best["score"] == pytest.approx(chunk.score)


def test_a_search_explains_its_results_and_near_misses(filled: Project) -> None:
    (search,) = data(inspection_page(filled, ["What does error TS-999 mean?"], top_k=1))["searches"]
    explained = filled.retrieve("What does error TS-999 mean?", top_k=1, explain=True)
    assert [one["node_id"] for one in search["explanations"]] == [search["results"][0]["node_id"]]
    assert search["explanations"][0]["arithmetic"] == explained.explanations[0].arithmetic
    assert [one["why_not"] for one in search["near_misses"]] == [miss.why_not for miss in explained.near_misses]
    assert search["near_misses"]
    read = set(re.findall(r"\b(?:search|one|miss)\.(\w+)", inspection_page_of_nothing()))
    assert read <= {*search, *search["explanations"][0]}  # the page asks for nothing that is not there


def test_text_of_documents_is_embedded_as_data(project: Project, tmp_path: Path) -> None:
    (tmp_path / "attack.md").write_text(f"# {ATTACK}\n\n{ATTACK}", encoding="utf-8")
    project.ingest([tmp_path / "attack.md"])
    page, harmless = inspection_page(project, [ATTACK]), inspection_page_of_nothing()
    assert [tag for tag, _ in tags(page)] == [tag for tag, _ in tags(harmless)]
    assert ATTACK in data(page)["documents"][0]["segments"][0][0]["text"]


def inspection_page_of_nothing() -> str:
    """The template itself."""
    from importlib.resources import files

    return files("llama_index_contextual.ui").joinpath("inspection.html").read_text(encoding="utf-8")


def test_the_page_loads_nothing(filled: Project) -> None:
    for tag, attributes in tags(inspection_page(filled)):
        assert tag not in ("link", "img", "iframe", "object", "embed")
        assert not {"src", "href", "onerror", "onclick"} & attributes.keys()
    assert "http" not in inspection_page_of_nothing().replace('http-equiv="', "")


def test_the_command_writes_the_page(filled: Project, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    root = str(filled.directory.parent)
    result = CliRunner().invoke(app, ["inspect", "reports", "--root", root, "--html", str(target), "--query", "pump"])
    assert result.exit_code == 0
    assert data(target.read_text(encoding="utf-8"))["searches"][0]["query"] == "pump"


def test_a_missing_folder_is_an_error(filled: Project, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder: create it"):
        write_page(filled, tmp_path / "nowhere" / "page.html")


def test_a_project_without_a_version_gives_advice(project: Project) -> None:
    with pytest.raises(NoVersionError, match="has no version yet; run"):
        inspection_page(project, ["pump"])
