"""`export` writes a directory that LlamaIndex's stock stores can load without this package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from llama_index.core import StorageContext, load_index_from_storage
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_contextual.errors import InputError
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding


def test_an_export_loaded_into_the_stock_stores_gives_the_same_results(published: Project, tmp_path: Path) -> None:
    target = tmp_path / "exported"
    published.export(target)
    context = StorageContext.from_defaults(
        persist_dir=str(target), vector_store=FaissVectorStore.from_persist_dir(str(target))
    )
    assert context.docstore.docs == published.storage_context.docstore.docs
    index = load_index_from_storage(context, embed_model=published.embed_model)
    question = "What does error TS-999 mean?"
    ours = published.as_retriever(mode="semantic", similarity_top_k=3).changed(rerank=None).retrieve(question)
    stock = index.as_retriever(similarity_top_k=3).retrieve(question)
    assert [hit.node.node_id for hit in stock] == [hit.node.node_id for hit in ours]
    # The stock store takes the query as it comes, so that its scores are cosines times the length of the query.
    length = np.linalg.norm(CountingEmbedding().vector(question))
    assert [hit.score for hit in stock] == pytest.approx([hit.get_score() * length for hit in ours])
    lexical = BM25Retriever.from_persist_dir(str(target / "bm25"))
    assert "TS-999" in lexical.retrieve("pump runs dry")[0].node.get_content()


def test_an_export_does_not_overwrite_a_directory_with_content(published: Project, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"full is not empty: export into a new directory"):
        published.export(tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["letter.txt"]
    (tmp_path / "empty").mkdir()
    published.export(tmp_path / "empty")
    assert (tmp_path / "empty" / "docstore.json").is_file()
