"""Pitfalls of LlamaIndex components, compared with this package."""

from __future__ import annotations

import pytest
from llama_index.core import Document
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import PrevNextNodePostprocessor
from llama_index.core.schema import BaseNode, RelatedNodeInfo

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding


@pytest.fixture
def counted(manager: ProjectManager) -> Project:
    """A project whose embedding model counts what it is asked for."""
    return manager.create("a", ProjectConfig.local(context="none"), embed_model=CountingEmbedding())


# ---- links between nodes -------------------------------------------------------------------------------------------


def linked(nodes: list[BaseNode]) -> list[RelatedNodeInfo]:
    return [info for node in nodes for info in node.relationships.values() if isinstance(info, RelatedNodeInfo)]


def test_relationships_of_stock_chunks_repeat_the_metadata_but_not_in_this_package(counted: Project) -> None:
    document = Document(text="One sentence. " * 400, id_="long", metadata={"quarter": "Q2"})
    stock = SentenceSplitter(chunk_size=128, chunk_overlap=0).get_nodes_from_documents([document])
    assert {"quarter": "Q2"} in [info.metadata for info in linked(stock)]

    counted.ingest([document])
    ours = list(counted.storage_context.docstore.docs.values())
    assert len(ours) > 1
    assert all(node.metadata["quarter"] == "Q2" for node in ours)
    assert linked(ours)
    assert all(info.metadata == {} for info in linked(ours))


def test_the_stock_postprocessor_that_fetches_neighbours_works_on_our_store(counted: Project) -> None:
    counted.ingest(
        [Document(text="\n\n".join(f"Paragraph {n}. " + "The pump runs. " * 100 for n in range(9)), id_="d")]
    )
    best = counted.retrieve("Paragraph 5", mode="lexical", top_k=1).to_nodes()
    fetch = PrevNextNodePostprocessor(docstore=counted.storage_context.docstore, num_nodes=1, mode="both")
    places = [hit.node.metadata["chunk_index"] for hit in fetch.postprocess_nodes(best)]
    middle = best[0].node.metadata["chunk_index"]
    assert places == [middle - 1, middle, middle + 1]
