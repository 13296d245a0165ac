"""Segments served as parents of their chunks, and LlamaIndex's AutoMergingRetriever over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.retrievers import AutoMergingRetriever
from llama_index.core.schema import (
    BaseNode,
    MetadataMode,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.index.nodes import NodeTable
from llama_index_contextual.node_parser import SegmentNodeParser
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.readers import read_documents
from llama_index_contextual.stores import IndexDocumentStore

SIZES = {"segment_size": 400, "chunk_size": 50, "chunk_overlap": 0}


class Given(BaseRetriever):
    """A retriever with given results."""

    def __init__(self, nodes: Sequence[BaseNode]) -> None:
        super().__init__()
        self._nodes = nodes

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=node, score=1.0) for node in self._nodes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("segments") / "files"
    path.mkdir()
    lines = [f"Clause {number} says that part {number * 7} is due after {number} days.\n\n" for number in range(150)]
    (path / "contract.md").write_text("# Contract\n\n" + "".join(lines), encoding="utf-8")
    (path / "short.md").write_text("One line.", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def project(folder: Path) -> Project:
    project = ProjectManager(folder.parent / "knowledge").create("contracts", ProjectConfig.local(**SIZES))
    project.ingest([folder])
    return project


def families(project: Project) -> dict[str, list[BaseNode]]:
    """Return the chunks by the id of their parent."""
    out: dict[str, list[BaseNode]] = {}
    for record in project.documents():
        for chunk in project.chunks(record.doc_id):
            assert chunk.parent_node is not None
            out.setdefault(chunk.parent_node.node_id, []).append(chunk)
    return out


def test_the_parent_of_a_chunk_is_its_segment_word_for_word(project: Project, folder: Path) -> None:
    parser = SegmentNodeParser(segment_size=400, segment_overlap=40)
    segments = {node.node_id: node for node in parser.get_nodes_from_documents(read_documents([folder]).documents)}
    found = families(project)
    assert set(found) == set(segments)
    assert len(found) > 5
    for parent_id, chunks in found.items():
        parent = project.storage_context.docstore.get_document(parent_id)
        assert isinstance(parent, TextNode)
        expected = segments[parent_id]
        assert (parent.text, parent.start_char_idx) == (expected.get_content(), expected.start_char_idx)  # type: ignore[attr-defined]
        assert [child.node_id for child in parent.child_nodes or ()] == [chunk.node_id for chunk in chunks]
        assert parent.ref_doc_id == chunks[0].ref_doc_id
        assert parent.metadata["file_name"] == chunks[0].metadata["file_name"]
        assert "context" not in parent.metadata
        assert parent.get_content(metadata_mode=MetadataMode.LLM).startswith("Source: ")


def test_one_hit_of_several_children_does_not_merge_but_most_of_them_do(project: Project) -> None:
    chunks = max(families(project).values(), key=len)
    assert len(chunks) >= 7
    context = project.storage_context

    def merged(nodes: Sequence[BaseNode]) -> list[str]:
        return [hit.node.node_id for hit in AutoMergingRetriever(Given(nodes), context).retrieve("any")]  # type: ignore[arg-type]

    assert merged(chunks[:1]) == [chunks[0].node_id]
    assert chunks[0].parent_node is not None
    assert merged([chunks[at] for at in range(0, len(chunks), 2)]) == [chunks[0].parent_node.node_id]


def test_an_auto_merging_retriever_works_over_a_project(project: Project) -> None:
    retriever = AutoMergingRetriever(project.as_retriever(), project.storage_context)  # type: ignore[arg-type]
    hits = retriever.retrieve("After how many days is part 49 due?")
    assert any("Clause 7 says" in hit.node.get_content() for hit in hits)
    assert len(retriever.retrieve(QueryBundle("One line."))) > 0


def test_nodes_with_an_unknown_parent_get_one_of_their_texts() -> None:
    nodes_of_file = NodeTable()
    store = IndexDocumentStore(nodes_of_file)
    parent = RelatedNodeInfo(node_id="p")
    nodes = [TextNode(id_=name, text=name * 3, relationships={NodeRelationship.PARENT: parent}) for name in "ab"]
    nodes_of_file.add(nodes)
    assembled = store.get_document("p")
    assert isinstance(assembled, TextNode)
    assert assembled.text == "aaa\n\nbbb"
    assert [child.node_id for child in assembled.child_nodes or ()] == ["a", "b"]
    nodes_of_file.add([TextNode(id_="c", text="c", relationships={NodeRelationship.PARENT: parent})])
    assert len(store.get_document("p").child_nodes or ()) == 3  # type: ignore[union-attr]
    nodes_of_file.add([TextNode(id_="p", text="stored")])
    assert store.get_document("p").get_content() == "stored"  # type: ignore[union-attr]
