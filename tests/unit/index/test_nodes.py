"""Nodes are read back equal, also by LlamaIndex's document store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest
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

from llama_index_contextual.errors import InputError, ReadOnlyVersionError
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.stores import IndexDocumentStore
from tests.support.nodes import chunk


def filled(*nodes: BaseNode, path: Path | None = None) -> IndexDocumentStore:
    table = NodeTable(path)
    table.add(nodes)
    return IndexDocumentStore(table)


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
    assert list(store.nodes.iterate()) == NODES
    assert [type(node) for node in store.nodes.iterate()] == [type(node) for node in NODES]
    assert store.get_nodes([node.node_id for node in reversed(NODES)]) == NODES[::-1]
    assert list(store.docs.values()) == NODES
    assert store.nodes.ids == [node.node_id for node in NODES]


def test_texts_are_read_back_exactly_and_compressed(tmp_path: Path) -> None:
    path, text = tmp_path / "nodes.sqlite", "tab\tNUL\0CR\r\nLS\u2028 e\u0301 🦙 \ufeff\u202e"
    filled(chunk("a", text * 100), chunk("b", text), path=path)
    with closing(sqlite3.connect(path)) as connection:
        ((size,), _) = connection.execute("SELECT length(body) FROM nodes ORDER BY position")
    assert size < 1000
    assert [node.get_content() for node in NodeTable(path, access="read").iterate()] == [text * 100, text]


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
        store.nodes.add([chunk("other"), node])  # type: ignore[attr-defined]
    assert store.nodes.ids == ["kept"]


# ---- LlamaIndex's interface ----------------------------------------------------------------------------------------


def test_a_missing_node_raises_only_if_asked_to() -> None:
    store = filled(chunk("a"))
    with pytest.raises(ValueError, match="doc_id b not found"):
        store.get_document("b")
    with pytest.raises(ValueError, match="doc_id b not found"):
        store.get_nodes(["a", "b"])
    assert store.get_document("b", raise_error=False) is None
    assert [node.node_id for node in store.get_nodes(["b", "a"], raise_error=False)] == ["a"]
    assert store.document_exists("a")
    assert not store.document_exists("b")


async def test_the_async_methods_do_the_same() -> None:
    store = filled(chunk("a", doc_id="d"), chunk("b", doc_id="d"), chunk("c", doc_id="e"))
    assert await store.aget_document("a") == store.get_document("a")
    assert await store.aget_nodes(["b", "a"]) == store.get_nodes(["b", "a"])
    assert await store.adocument_exists("a")
    assert await store.aget_ref_doc_info("d") == store.get_ref_doc_info("d")
    assert await store.aget_all_ref_doc_info() == store.get_all_ref_doc_info()
    assert await store.aget_all_document_hashes() == store.get_all_document_hashes() == {}
    for change in (store.async_add_documents([chunk("new")]), store.adelete_document("a"), store.adelete_ref_doc("d")):
        with pytest.raises(ReadOnlyVersionError):
            await change
    for one in (store.aset_document_hash("a", "1"), store.aset_document_hashes({"a": "1"})):
        with pytest.raises(ReadOnlyVersionError):
            await one


def test_the_nodes_are_persisted_for_the_stock_store(tmp_path: Path) -> None:
    store = filled(*NODES)
    store.persist(str(tmp_path / "docstore.json"))
    assert SimpleDocumentStore.from_persist_path(str(tmp_path / "docstore.json")).docs == store.docs


# ---- cached chunks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [{"dept": "hr"}, {"tags": ["a", "b"]}, {"size": {"width": 3}}], ids=str)
def test_a_change_of_a_chunk_does_not_reach_the_next_one(metadata: dict[str, Any]) -> None:
    table = NodeTable()
    table.add([TextNode(id_="a", text="The pump.", metadata=metadata), TextNode(id_="b", text="The valve.")])
    for _ in range(3):
        first, second = table.at([0, 1])
        assert (first.metadata, first.node.metadata, second.node_id) == (metadata, metadata, "b")
        for found in (first.metadata, first.node.metadata):
            found["new"] = 1
            for value in found.values():
                if isinstance(value, list):
                    value.append("c")
                elif isinstance(value, dict):
                    value["height"] = 5


def test_a_node_that_is_added_is_not_hidden_by_the_cache() -> None:
    table = NodeTable()
    table.add([TextNode(id_="a", text="The pump.")])
    assert [chunk.node_id for chunk in table.at([0])] == ["a"]
    table.add([TextNode(id_="b", text="The valve.")])
    assert [chunk.node_id for chunk in table.at([1, 0, 1])] == ["b", "a", "b"]


def test_fields_that_nodes_share_are_stored_once() -> None:
    table = NodeTable()
    table.add(
        [
            TextNode(id_=str(number), text=f"Pump {number}.", excluded_embed_metadata_keys=["page"])
            for number in range(9)
        ]
    )
    table.add([TextNode(id_="other", text="A pump.", excluded_embed_metadata_keys=["title"])])
    assert table._kv.query("SELECT count(*) FROM forms") == [(2,)]
    assert [node.excluded_embed_metadata_keys for node in table.find_nodes(["3", "other"])] == [["page"], ["title"]]
