"""Retrievers over LlamaIndex's own indexes, and the files that LlamaIndex's own retriever reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from llama_index_contextual import HybridRetriever, LexicalRetriever, Project, SemanticRetriever
from llama_index_contextual.errors import InputError
from tests.integration.retrievers.corpus import passages
from tests.support.models import CountingEmbedding

QUERY = "error TS-999 of the pump"


def simple() -> None:
    return None


def inner_product() -> FaissVectorStore:
    return FaissVectorStore(faiss.IndexFlatIP(64))


def distances() -> FaissVectorStore:
    return FaissVectorStore(faiss.IndexFlatL2(64))


def mapped_distances() -> FaissVectorStore:
    return FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(64)))


STORES = pytest.mark.parametrize("store", [simple, inner_product, distances, mapped_distances])


def index_of(store: Any, embedding: CountingEmbedding) -> VectorStoreIndex:
    """Return LlamaIndex's own index of the passages."""
    context = StorageContext.from_defaults(vector_store=store())
    return VectorStoreIndex(passages(), storage_context=context, embed_model=embedding)


def ids(hits: Any) -> list[str]:
    return [hit.node.node_id for hit in hits]


@STORES
async def test_a_semantic_retriever_takes_any_index(store: Any) -> None:
    embedding = CountingEmbedding()
    index = index_of(store, embedding)
    retriever = SemanticRetriever(index)
    hits = retriever.retrieve(QUERY)
    assert ids(hits) == ids(index.as_retriever(similarity_top_k=20).retrieve(QUERY))
    assert ids(hits)[0] == "dry"
    assert len(hits) == 5
    scores = [hit.get_score() for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[-1]
    assert await retriever.aretrieve(QUERY) == hits
    bundle = QueryBundle("something else", embedding=embedding.get_query_embedding(QUERY))
    embedding.queries.clear()
    assert retriever.retrieve(bundle) == hits == await retriever.aretrieve(bundle)
    assert embedding.queries == []
    few = SemanticRetriever(index, top_k=2).retrieve(QUERY)
    assert [hit.score for hit in few] == scores[:2]


def test_what_is_not_an_index_is_refused_with_advice(built: Project) -> None:
    for value in (built, built.live_version.index, built.storage_context.vector_store, FaissVectorStore):
        with pytest.raises(InputError, match=r"SemanticRetriever needs a LlamaIndex index: `project.index`"):
            SemanticRetriever(value)  # type: ignore[arg-type]


def test_filters_reach_the_vector_store() -> None:
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="report")])
    hits = SemanticRetriever(index_of(simple, CountingEmbedding()), filters=filters).retrieve(QUERY)
    assert sorted(ids(hits)) == ["revenue", "tariff"]


@STORES
@pytest.mark.parametrize("fusion", ["score", "rrf"])
async def test_a_hybrid_retriever_takes_retrievers_over_any_index(store: Any, fusion: Any) -> None:
    index = index_of(store, CountingEmbedding())
    stock = BM25Retriever.from_defaults(nodes=passages(), similarity_top_k=5)
    lexical = LexicalRetriever.from_defaults(nodes=passages())
    for semantic in (SemanticRetriever(index), index.as_retriever(similarity_top_k=20)):
        hybrid = HybridRetriever([semantic, lexical], fusion=fusion)
        hits = hybrid.retrieve(QUERY)
        assert ids(hits)[0] == "dry"
        assert ids(hits)[-1] in ("revenue", "tariff"), "the farthest node is last"
        assert ids(await hybrid.aretrieve(QUERY)) == ids(hits)
        assert ids(HybridRetriever([semantic, stock], fusion=fusion).retrieve(QUERY))[0] == "dry"


def test_stock_retrievers_have_the_weights_of_a_project() -> None:
    index = index_of(simple, CountingEmbedding())
    stock = BM25Retriever.from_defaults(nodes=passages(), similarity_top_k=5)
    assert HybridRetriever([index.as_retriever(), stock]).settings.weights == [0.35, 0.65]
    assert HybridRetriever([stock, index.as_retriever()]).settings.weights == [0.65, 0.35]
    assert HybridRetriever([stock, stock]).settings.weights == [0.5, 0.5]


# ---- files -----------------------------------------------------------------------------------------------------------


def evidence(retriever: Any) -> list[Any]:
    return [(hit.node, hit.score, hit.lexical) for hit in retriever.retrieve(QUERY)]


def test_a_persisted_lexical_retriever_gives_the_same_results(tmp_path: Path) -> None:
    lexical = LexicalRetriever.from_defaults(nodes=passages(), similarity_top_k=2)
    for _ in range(2):  # the second time, the files are replaced
        lexical.persist(str(tmp_path / "bm25"))
    loaded = LexicalRetriever.from_persist_dir(str(tmp_path / "bm25"))
    assert evidence(loaded) == evidence(lexical)
    assert len(evidence(loaded)) == 2
    assert len(evidence(LexicalRetriever.from_persist_dir(str(tmp_path / "bm25"), similarity_top_k=3))) == 3
    assert len(evidence(LexicalRetriever.from_persist_dir(str(tmp_path / "bm25"), top_k=1))) == 1


def test_a_persisted_lexical_retriever_keeps_its_language(tmp_path: Path) -> None:
    nodes = passages({"a": "Die Prüfungen der Straßen", "b": "Der Umsatz"})
    LexicalRetriever.from_defaults(nodes=nodes, language="german").persist(str(tmp_path))
    for options in ({}, {"language": "german"}):
        assert ids(LexicalRetriever.from_persist_dir(str(tmp_path), **options).retrieve("Prüfung")) == ["a"]
    assert ids(LexicalRetriever.from_persist_dir(str(tmp_path), language="none").retrieve("Prüfung")) == []


def test_the_stock_retriever_reads_the_files_and_its_files_are_read(tmp_path: Path) -> None:
    lexical = LexicalRetriever.from_defaults(nodes=passages())
    lexical.persist(str(tmp_path / "ours"))
    stock = BM25Retriever.from_persist_dir(str(tmp_path / "ours"))
    assert ids(stock.retrieve(QUERY))[0] == "dry"
    stock.persist(str(tmp_path / "stock"))
    assert sorted(ids(LexicalRetriever.from_persist_dir(str(tmp_path / "stock")).retrieve(QUERY))) == sorted(
        ids(lexical.retrieve(QUERY))
    )


def test_the_lexical_index_that_a_project_persists_is_read(built: Project, tmp_path: Path) -> None:
    built.storage_context.persist(tmp_path)
    loaded = LexicalRetriever.from_persist_dir(str(tmp_path / "bm25"))
    assert ids(loaded.retrieve(QUERY)) == ids(built.retrieve(QUERY, mode="lexical").results)


def test_what_cannot_be_persisted_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    filters = MetadataFilters(filters=[MetadataFilter(key="kind", value="manual")])
    with pytest.raises(InputError, match=r"Filters are not persisted: .* pass filters= to from_persist_dir"):
        LexicalRetriever.from_defaults(nodes=passages(), filters=filters).persist(str(tmp_path))
    for texts in ([], ["", "the and of", "§ 1"]):
        nodes = [TextNode(text=text) for text in texts]
        with pytest.raises(InputError, match="No chunk contains a word that LlamaIndex's BM25Retriever indexes"):
            LexicalRetriever.from_defaults(nodes=nodes).persist(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_directory_of_something_else_is_refused(tmp_path: Path, content: str | None) -> None:
    LexicalRetriever.from_defaults(nodes=passages()).persist(str(tmp_path))
    if content is None:
        (tmp_path / "params.index.json").unlink()
    else:
        (tmp_path / "retriever.json").write_text(content)
    with pytest.raises(
        InputError, match=r"was not written by `persist` of a BM25 retriever.* such as `bm25` in an export"
    ):
        LexicalRetriever.from_persist_dir(str(tmp_path))
    with pytest.raises(InputError, match="was not written by `persist` of a BM25 retriever"):
        LexicalRetriever.from_persist_dir(str(tmp_path / "nowhere"))
