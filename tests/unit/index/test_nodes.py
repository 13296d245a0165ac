"""SQLiteDocumentStore: nodes read back equal, positions, LlamaIndex's interface, and read-only published files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    Node,
    NodeRelationship,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore

from llama_index_contextual.errors import InputError
from llama_index_contextual.stores.docstore import SQLiteDocumentStore
from tests.support.models import CountingEmbedding
from tests.support.nodes import chunk


def filled(*nodes: BaseNode, path: Path | None = None) -> SQLiteDocumentStore:
    store = SQLiteDocumentStore(path)
    store.add_documents(nodes)
    return store


# ---- what goes in comes out ----------------------------------------------------------------------------------------


METADATA = {"text": "é", "none": None, "yes": True, "whole": -(2**63), "real": 0.1 + 0.2, "list": [1, "a", None]}
RELATED = {
    NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d/é", node_type=ObjectType.DOCUMENT, metadata=METADATA),
    NodeRelationship.NEXT: RelatedNodeInfo(node_id="b", hash="5f2a"),
    NodeRelationship.CHILD: [RelatedNodeInfo(node_id="c"), RelatedNodeInfo(node_id="d")],
}
FIELDS: dict[str, Any] = {
    "metadata": METADATA,
    "relationships": RELATED,
    "excluded_embed_metadata_keys": ["none"],
    "excluded_llm_metadata_keys": ["yes"],
    "metadata_template": "{value}",
    "metadata_separator": " | ",
    "embedding": [0.5, -1.0],
}
NODES: list[BaseNode] = [
    TextNode(id_="text", text="a text", start_char_idx=3, end_char_idx=9, **FIELDS),
    TextNode(id_="plain"),
    Document(id_="document", text="a document", **FIELDS),
    IndexNode(id_="index", text="an index", index_id="other", **FIELDS),
    ImageNode(id_="image", text="an image", image_path="plan.png", **FIELDS),
    Node(id_="node", text_resource=MediaResource(text="a resource"), **FIELDS),
    Node(id_="empty", **FIELDS),
]


def test_nodes_of_every_kind_are_read_back_equal_and_in_order() -> None:
    store = filled(*NODES)
    assert list(store.iterate()) == NODES
    assert [type(node) for node in store.iterate()] == [type(node) for node in NODES]
    assert store.get_nodes([node.node_id for node in reversed(NODES)]) == NODES[::-1]
    assert list(store.docs.values()) == NODES
    assert store.nodes.ids == [node.node_id for node in NODES]


def test_texts_are_read_back_exactly_and_long_ones_are_compressed(tmp_path: Path) -> None:
    path, text = tmp_path / "nodes.sqlite", "tab\tNUL\0CR\r\nLS\u2028 e\u0301 🦙 \ufeff\u202e"
    filled(chunk("a", text * 100), chunk("b", text)).persist(str(path))
    with closing(sqlite3.connect(path)) as connection:
        (long, size), short = connection.execute("SELECT typeof(text), length(text) FROM nodes ORDER BY position")
    assert long == "blob"
    assert size < 200
    assert short[0] == "text"
    assert [node.get_content() for node in SQLiteDocumentStore(path, access="read").iterate()] == [text * 100, text]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (chunk("a", metadata={"v": [1.0, float("inf")]}), r"is not a finite number"),
        (chunk("a", metadata={"v": 2**63}), r"does not fit into 64 bits: pass it as text"),
        (chunk("a", metadata={"v": date(2023, 1, 1)}), r"is a date, which JSON lacks: pass its isoformat\(\)"),
        (chunk("a", metadata={"v": "a\0b"}), r"contains a NUL character"),
        (chunk("a", metadata={"v\0": "b"}), r"contains a NUL character"),
        (chunk("a", metadata={"v": "\udc80"}), r"'v' .* contains lone surrogates"),
        (chunk("a", "broken \ud800 text"), r"its text contains lone surrogates: clean it with"),
        (chunk("a\ud800"), r"its id contains lone surrogates"),
        (chunk("a", doc_id="d\ud800"), r"the id of a related node contains lone surrogates"),
    ],
)
def test_nodes_that_cannot_be_stored_are_refused_and_nothing_is_added(node: TextNode, message: str) -> None:
    store = filled(chunk("kept"))
    with pytest.raises(InputError, match=message):
        store.add_documents([chunk("other"), node])
    assert store.nodes.ids == ["kept"]


# ---- positions and batches -----------------------------------------------------------------------------------------


def test_a_batch_that_fails_adds_nothing() -> None:
    store = filled(chunk("kept"))
    with pytest.raises(InputError, match=r"'kept' is in the store already: pass allow_update=True to replace it"):
        store.add_documents([chunk("new"), chunk("kept", "other")], allow_update=False)
    assert store.nodes.ids == ["kept"]
    assert store.get_node("kept").get_content() == "Text of kept."
    store.add_documents([chunk("new")], allow_update=False)
    assert store.nodes.ids == ["kept", "new"]


# ---- LlamaIndex's interface ----------------------------------------------------------------------------------------


def test_a_missing_node_raises_only_if_asked_to() -> None:
    store = filled(chunk("a"))
    with pytest.raises(ValueError, match="doc_id b not found"):
        store.get_document("b")
    with pytest.raises(ValueError, match="doc_id b not found"):
        store.get_nodes(["a", "b"])
    with pytest.raises(ValueError, match="doc_id b not found"):
        store.delete_document("b")
    with pytest.raises(ValueError, match="doc_id b not found"):
        store.delete_ref_doc("b")
    assert store.get_document("b", raise_error=False) is None
    assert [node.node_id for node in store.get_nodes(["b", "a"], raise_error=False)] == ["a"]
    store.delete_document("b", raise_error=False)
    store.delete_ref_doc("b", raise_error=False)
    assert store.nodes.ids == ["a"]
    assert store.document_exists("a")
    assert not store.document_exists("b")


def test_deleting_a_document_removes_its_nodes_and_their_hashes_and_nothing_else() -> None:
    store = filled(chunk("a", doc_id="d"), chunk("b", doc_id="d"), chunk("c", doc_id="e"), chunk("orphan"))
    store.set_document_hashes({"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"})
    store.delete_ref_doc("d")
    assert store.nodes.ids == ["c", "orphan"]
    assert store.get_all_document_hashes() == {"3": "c", "5": "e"}
    store.delete_document("c")
    assert store.get_document_hash("c") is None


async def test_the_async_methods_do_the_same() -> None:
    store = SQLiteDocumentStore()
    await store.async_add_documents([chunk("a", doc_id="d"), chunk("b", doc_id="d"), chunk("c", doc_id="e")])
    assert await store.aget_document("a") == store.get_document("a")
    assert await store.aget_nodes(["b", "a"]) == store.get_nodes(["b", "a"])
    assert await store.adocument_exists("a")
    assert await store.aget_ref_doc_info("d") == store.get_ref_doc_info("d")
    assert await store.aget_all_ref_doc_info() == store.get_all_ref_doc_info()
    await store.aset_document_hashes({"a": "1"})
    await store.aset_document_hash("b", "2")
    assert await store.aget_document_hash("a") == "1"
    assert await store.aget_all_document_hashes() == {"1": "a", "2": "b"}
    await store.adelete_document("a")
    await store.adelete_ref_doc("d")
    assert store.nodes.ids == ["c"]


def run(pipeline: IngestionPipeline, *texts: tuple[str, str]) -> list[str]:
    nodes = pipeline.run(documents=[Document(id_=doc_id, text=text) for doc_id, text in texts])
    return [f"{node.ref_doc_id}: {node.get_content()}" for node in nodes]


@pytest.mark.parametrize("strategy", list(DocstoreStrategy))
def test_an_ingestion_pipeline_works_as_with_the_stock_store(strategy: DocstoreStrategy) -> None:
    def history(docstore: Any) -> list[Any]:
        pipeline = IngestionPipeline(
            transformations=[SentenceSplitter(), CountingEmbedding()],
            docstore=docstore,
            docstore_strategy=strategy,
            vector_store=SimpleVectorStore(),
        )
        pipeline.disable_cache = True
        return [
            run(pipeline, ("a", "iron"), ("b", "bronze")),
            run(pipeline, ("a", "iron"), ("b", "brass"), ("c", "tin")),
            run(pipeline, ("a", "iron")),
            run(pipeline, ("b", "bronze")),
            sorted(docstore.docs),
            {doc_id: node.get_content() for doc_id, node in docstore.docs.items()},
        ]

    assert history(SQLiteDocumentStore()) == history(SimpleDocumentStore())


# ---- files ---------------------------------------------------------------------------------------------------------


def test_persist_writes_a_readable_file_and_leaves_the_store_in_memory(tmp_path: Path) -> None:
    store = filled(chunk("a"))
    path = tmp_path / "new folder" / "nodes.sqlite"
    store.persist(str(path))
    store.add_documents([chunk("b")])
    assert SQLiteDocumentStore(path, access="read").nodes.ids == ["a"]
    store.persist(str(path))
    assert SQLiteDocumentStore(path, access="read").nodes.ids == ["a", "b"]
    assert os.listdir(path.parent) == ["nodes.sqlite"]


def test_persisting_to_its_own_file_leaves_it_intact(tmp_path: Path) -> None:
    path = tmp_path / "nodes.sqlite"
    store = filled(chunk("a"), path=path)
    store.persist(str(tmp_path / "." / "nodes.sqlite"))
    store.close()
    assert SQLiteDocumentStore(path, access="read").nodes.ids == ["a"]


def test_a_store_read_from_a_file_can_be_changed_and_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "nodes.sqlite"
    filled(chunk("a", doc_id="d")).persist(str(path))
    before = path.read_bytes()
    store = SQLiteDocumentStore.from_persist_path(str(path))
    store.add_documents([chunk("b")])
    assert store.nodes.ids == ["a", "b"]
    assert path.read_bytes() == before
    with pytest.raises(InputError, match=r"other.sqlite does not exist"):
        SQLiteDocumentStore.from_persist_path(str(tmp_path / "other.sqlite"))
