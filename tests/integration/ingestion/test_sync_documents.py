"""Documents of LlamaIndex readers: stable ids, changes within one source, and the calls that are paid for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import UUID

import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import InputError, LargeRemovalError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.test_sync import listed
from tests.support.changes import WORDS
from tests.support.server import LoopbackProvider


def page(name: str, text: str = "", **metadata: object) -> Document:
    """Return the Document of a page."""
    return Document(id_=name, text=text or f"The page {name} is about pumps.", metadata={"title": name, **metadata})


@pytest.fixture
def paid(manager: ProjectManager, provider: LoopbackProvider) -> Iterator[Project]:
    """An empty project whose contexts are written by a provider."""
    return manager.create("paid", ProjectConfig.local(context="llm", llm="openai:gpt-4o-mini"))


def ids(project: Project) -> list[str]:
    """Return the ids of the documents."""
    return sorted(record.doc_id for record in project.documents())


def test_pages_are_added_changed_and_removed_and_calls_are_paid_for_changes_only(
    paid: Project, provider: LoopbackProvider
) -> None:
    pages = [page(name) for name in ("a", "b", "c")]
    assert paid.estimate(pages, source="notion").contexts.calls == 3
    assert listed(paid.sync_documents(pages, "notion")) == {"added": ["notion/a", "notion/b", "notion/c"]}
    assert provider.totals()["paid_calls"] == 3
    assert listed(paid.sync_documents(pages, "notion")) == {}
    changed = [page("a"), page("c", "Another text."), page("d")]
    assert paid.estimate(changed, source="notion").contexts.calls == 2
    assert listed(paid.sync_documents(changed, "notion", dry_run=True)) == {
        "added": ["notion/d"],
        "updated": ["notion/c"],
        "removed": ["notion/b"],
    }
    assert provider.totals()["paid_calls"] == 3
    paid.sync_documents(changed, "notion")
    assert ids(paid) == ["notion/a", "notion/c", "notion/d"]
    assert provider.totals()["paid_calls"] == 5
    paid.sync_documents([*changed, page("b")], "notion")
    assert provider.totals()["paid_calls"] == 5, "the page that is back has its context in the ledger"


def test_random_changes_of_a_reader_end_in_its_documents(counted: Project) -> None:
    draw = random.Random(1)
    pages = {f"p{number}": f"Page {number} is new." for number in range(30)}
    for _ in range(10):
        for _ in range(5):
            kind, name = draw.choice(("add", "change", "remove")), draw.choice(sorted(pages))
            if kind == "remove" and len(pages) > 10:
                del pages[name]
            else:
                name = f"p{draw.randrange(1000)}" if kind == "add" else name
                pages[name] = f"{name} is about {' '.join(draw.choices(WORDS, k=8))}."
        reader = [Document(id_=name, text=text) for name, text in pages.items()]
        draw.shuffle(reader)
        counted.sync_documents(reader, "wiki", allow_many=True)
        assert {record.doc_id: counted.read(record.doc_id) for record in counted.documents()} == {
            f"wiki/{name}": text for name, text in pages.items()
        }


def test_only_documents_of_the_same_source_are_removed(counted: Project) -> None:
    counted.ingest(page("own"))
    counted.sync_documents([page("a"), page("b")], "notion")
    counted.sync_documents([page("a"), page("x")], "drive")
    assert listed(counted.sync_documents([page("a")], "notion")) == {"removed": ["notion/b"]}
    assert ids(counted) == ["drive/a", "drive/x", "notion/a", "own"]
    assert [record.source for record in counted.documents() if record.doc_id == "drive/a"] == ["drive"]


def test_random_ids_of_a_reader_do_not_duplicate_unchanged_documents(counted: Project) -> None:
    def load(*texts: str) -> list[Document]:
        return [Document(text=text) for text in texts]

    first = load("Pumps need oil.", "Valves need air.")
    assert UUID(first[0].doc_id).version == 4
    counted.sync_documents(first, "drive")
    before = ids(counted)
    assert listed(counted.sync_documents(load("Valves need air.", "Pumps need oil."), "drive")) == {}
    report = counted.sync_documents(load("Valves need air.", "Pumps need grease."), "drive")
    assert (len(report.added), len(report.removed)) == (1, 1)
    assert len(set(ids(counted)) & set(before)) == 1


def test_metadata_identifies_documents_and_pages_of_a_file_are_numbered(counted: Project) -> None:
    def load(*pages: str) -> list[Document]:
        return [Document(text=text, metadata={"file_id": "f 1"}) for text in pages]

    counted.sync_documents(load("One.", "Two."), "drive", id_key="file_id")
    assert ids(counted) == ["drive/f 1", "drive/f 1 (2)"]
    assert listed(counted.sync_documents(load("One.", "Three."), "drive", id_key="file_id")) == {
        "updated": ["drive/f 1 (2)"]
    }
    with pytest.raises(InputError, match="has no metadata 'page_id'"):
        counted.sync_documents(load("One."), "drive", id_key="page_id")


def test_a_reader_that_returns_nothing_or_little_removes_nothing(counted: Project) -> None:
    pages = [page(str(number)) for number in range(30)]
    counted.sync_documents(pages, "notion")
    with pytest.raises(InputError, match=r"30 documents came from 'notion'"):
        counted.sync_documents([], "notion")
    with pytest.raises(LargeRemovalError, match=r"10 of 30 documents from notion would be removed"):
        counted.sync_documents(pages[:20], "notion")
    empty = [*pages[1:], Document(id_="0", text=" ")]
    assert listed(counted.sync_documents(empty, "notion")) == {}
    assert len(ids(counted)) == 30
    report = counted.sync_documents(pages[:20], "notion", remove=["notion/20"])
    assert (report.removed, len(report.missing)) == (("notion/20",), 9)
    assert len(counted.sync_documents([], "notion", allow_empty=True).removed) == 29


def test_the_source_is_a_filter_even_if_a_reader_uses_the_key(counted: Project) -> None:
    counted.sync_documents([page("a"), page("b", source="https://wiki.example/b")], "notion")
    counted.sync_documents([page("c")], "drive")

    def found(source: object) -> list[str]:
        response = counted.retrieve("pumps", filters={"source": source})
        return sorted(hit.metadata["title"] for hit in response.results)

    assert found("notion") == ["a", "b"]
    assert found(["notion", "drive"]) == ["a", "b", "c"]
    assert found({"!=": "notion"}) == ["c"]
    assert [record.doc_id for record in counted.only({"source": "drive"}).documents()] == ["drive/c"]
    with pytest.raises(InputError, match="nowhere"):
        found("nowhere")


async def test_a_rebuild_keeps_the_source(counted: Project) -> None:
    await counted.async_documents([page("a")], "notion")
    counted.update_config(chunk_size=100, chunk_overlap=0)
    counted.rebuild()
    assert [record.source for record in counted.documents()] == ["notion"]


@pytest.mark.parametrize("source", ["", " ", "a/b", "files", "a\nb", "C:"])
def test_the_name_of_a_source_is_checked(counted: Project, source: str) -> None:
    with pytest.raises(InputError, match="source"):
        counted.sync_documents([page("a")], source)


def test_only_documents_are_accepted(counted: Project) -> None:
    nodes: list[object] = ["folder", TextNode(text="chunk")]
    for node in nodes:
        with pytest.raises(InputError, match="accepts only Documents"):
            counted.sync_documents([node], "notion")  # type: ignore[list-item]
    counted.ingest(page("notion/a"))
    with pytest.raises(InputError, match="not from the source 'notion'"):
        counted.sync_documents([page("a")], "notion")
