"""Metadata filters over a version whose documents are in many parts, some of which are gone."""

from __future__ import annotations

import random
from pathlib import Path

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.filter_oracle import draw_filters, draw_metadata, passes
from tests.support.models import CountingEmbedding


def test_filters_agree_when_documents_are_gone_and_parts_are_many(tmp_path: Path) -> None:
    chance = random.Random(1)
    metadata = [draw_metadata(chance) for _ in range(40)]
    project = ProjectManager(tmp_path).create("p", ProjectConfig.local(), embed_model=CountingEmbedding())
    for start in range(0, 40, 10):
        nodes = [
            TextNode(
                id_=str(n),
                text=f"The pump of plant {n}.",
                metadata=dict(metadata[n]),
                relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"document {n}")},
            )
            for n in range(start, start + 10)
        ]
        project.ingest(nodes)
    project.remove("document 3")
    store = project.state.live.current().docstore
    assert len(project.state.live.current().parts) > 1
    held = [metadata[int(node_id)] for node_id in store.ids]
    for _ in range(40):
        filters = draw_filters(chance)
        expected = [passes(data, filters) for data in held]
        mask = store.mask(filters)
        assert mask is not None
        assert mask.tolist() == expected, filters
        documents = {f"document {node_id}" for node_id, is_in in zip(store.ids, expected, strict=True) if is_in}
        assert store.document_ids(filters) == documents
