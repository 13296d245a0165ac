"""UnitFaissVectorStore: cosine order, consistency with the nodes, LlamaIndex's interface, and files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import NodeRelationship, TextNode
from llama_index.core.vector_stores.types import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)

from llama_index_contextual.errors import CorruptVersionError, InputError
from llama_index_contextual.stores.docstore import SQLiteDocumentStore
from llama_index_contextual.stores.faiss import UnitFaissVectorStore
from tests.support.models import CountingEmbedding
from tests.support.nodes import chunk


def embedded(node_id: str, vector: Sequence[float], **fields: Any) -> TextNode:
    return chunk(node_id, embedding=[float(value) for value in vector], **fields)


def store_of(*nodes: TextNode, **options: Any) -> UnitFaissVectorStore:
    store = UnitFaissVectorStore(**options)
    store.add(nodes)
    return store


def ids_of(ranking: Sequence[tuple[str, float]]) -> list[str]:
    return [node_id for node_id, _ in ranking]


def ask(store: UnitFaissVectorStore, vector: Sequence[float], k: int = 10, **restrictions: Any) -> list[str]:
    results = store.query(VectorStoreQuery(query_embedding=list(vector), similarity_top_k=k, **restrictions))
    assert results.ids is not None
    assert [node.node_id for node in results.nodes or []] == results.ids
    return results.ids


def year(value: int, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key="year", value=value, operator=operator)])


# ---- ranking -------------------------------------------------------------------------------------------------------

vectors = npst.arrays(
    np.float32, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(-1, 1, width=32, allow_subnormal=False)
)


@settings(max_examples=60)
@given(vectors, npst.arrays(np.float32, 3, elements=st.sampled_from([-1, -0.5, 0, 0.25, 1])), st.integers(1, 15))
def test_results_are_ranked_by_cosine_regardless_of_vector_length(rows: Any, query: Any, k: int) -> None:
    store = store_of(*(embedded(str(n), row) for n, row in enumerate(rows)))
    ranking = store.rank(query, k)
    if not query.any():
        assert ranking == []
        return
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1) * np.linalg.norm(query.astype(np.float64))
    cosines = np.divide(rows.astype(np.float64) @ query, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    assert len(ranking) == min(k, len(rows))
    assert [score for _, score in ranking] == pytest.approx(sorted(cosines, reverse=True)[:k], abs=1e-5)
    for node_id, score in ranking:
        assert score == pytest.approx(cosines[int(node_id)], abs=1e-5)


@settings(max_examples=50)
@given(st.lists(st.sampled_from([(1, 0), (0, 1), (1, 1)]), min_size=1, max_size=40), st.integers(1, 12))
def test_ties_are_in_row_order_also_at_the_last_rank(rows: list[tuple[int, int]], k: int) -> None:
    store = store_of(*(embedded(str(n), row) for n, row in enumerate(rows)))
    order = {(1, 0): 0, (1, 1): 1, (0, 1): 2}
    expected = sorted(range(len(rows)), key=lambda n: (order[rows[n]], n))[:k]
    assert ids_of(store.rank(np.array([1.0, 0.0]), k)) == [str(n) for n in expected]


def test_very_large_and_very_small_vectors_keep_their_direction() -> None:
    store = store_of(embedded("large", [1e30, 1e30]), embedded("small", [1e-30, 0]))
    assert store.rank(np.array([2e-25, 0]), 2) == [("small", 1.0), ("large", pytest.approx(0.7071068))]
    assert ids_of(store.rank(np.array([1e38, 1e38]), 1)) == ["large"]


def test_vectors_of_zeros_or_nan_are_never_similar() -> None:
    nan = float("nan")
    store = store_of(embedded("zero", [0, 0]), embedded("nan", [nan, nan]), embedded("a", [1, 0]))
    assert store.rank(np.array([1.0, 0.0]), 3) == [("a", 1.0), ("zero", 0.0), ("nan", 0.0)]
    assert store.rank(np.array([0.0, 0.0]), 3) == []
    assert store.rank(np.array([nan, nan]), 3) == []
    assert ask(store, [0.0, 0.0]) == []


def test_a_query_without_an_embedding_or_of_another_model_is_refused() -> None:
    store = store_of(embedded("a", [1, 0]))
    with pytest.raises(InputError, match=r"The query has no embedding: pass an embed_model to the retriever"):
        store.query(VectorStoreQuery(query_str="revenue"))
    with pytest.raises(InputError, match=r"query's embedding has 3 dimensions, the index 2: search with the embedding"):
        store.rank(np.array([1.0, 0.0, 0.0]), 1)


# ---- adding, replacing, removing -----------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Any]]:
    batch = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 359), st.sampled_from("de")), max_size=4)
    step = st.one_of(
        st.tuples(st.just("add"), batch),
        st.tuples(st.just("delete"), st.sampled_from("de")),
        st.tuples(st.just("delete nodes"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3)),
    )
    return draw(st.lists(step, max_size=8))


@settings(max_examples=50)
@given(histories())
def test_after_any_changes_every_node_is_the_best_hit_for_its_own_vector(history: list[tuple[str, Any]]) -> None:
    store, expected = UnitFaissVectorStore(), dict[str, tuple[int, str]]()
    for action, argument in history:
        if action == "add":
            nodes = [embedded(i, direction(angle), doc_id=f"doc {doc}") for i, angle, doc in argument]
            assert store.add(nodes) == [i for i, _, _ in argument]
            for node_id in {i for i, _, _ in argument}:
                expected.pop(node_id, None)
            expected.update({i: (angle, f"doc {doc}") for i, angle, doc in argument})
        elif action == "delete":
            store.delete(f"doc {argument}")
            expected = {i: stored for i, stored in expected.items() if stored[1] != f"doc {argument}"}
        else:
            store.delete_nodes(argument)
            expected = {i: stored for i, stored in expected.items() if i not in argument}
        assert len(store) == len(store.docstore) == len(expected)
    for node_id, (angle, doc_id) in expected.items():
        assert dict(store.rank(np.array(direction(angle)), 10))[node_id] == pytest.approx(1.0)
        assert store.docstore.get_node(node_id).ref_doc_id == doc_id


def direction(degrees: int) -> list[float]:
    return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([chunk("b")], r"Node 'b' has no embedding"),
        ([embedded("b", [1, 2]), embedded("c", [1])], r"have \[1, 2\] dimensions: all must come from one"),
        ([embedded("a", [1, 2, 3])], r"has 3 dimensions, the index 2: it was built with another embedding model"),
        ([embedded("a", [1, 2], metadata={"v": float("nan")})], r"cannot be stored"),
    ],
)
def test_invalid_nodes_are_refused_before_anything_changes(nodes: list[TextNode], message: str) -> None:
    store = store_of(embedded("a", [1, 0]))
    with pytest.raises(InputError, match=message):
        store.add(nodes)
    assert store.rank(np.array([1.0, 0.0]), 9) == [("a", 1.0)]
    assert len(store) == len(store.docstore) == 1


def test_deleting_by_filter_removes_matches_and_an_empty_filter_removes_nothing() -> None:
    store = store_of(*(embedded(str(y), [1, y], metadata={"year": y}) for y in (2021, 2022, 2023)))
    store.delete_nodes(filters=MetadataFilters(filters=[]))
    store.delete_nodes([])
    assert len(store) == 3
    store.delete_nodes(filters=year(2022, FilterOperator.GTE))
    assert [node.node_id for node in store.get_nodes()] == ["2021"]
    store.delete_nodes(["2021"], filters=year(1999))
    assert len(store) == 1


# ---- restrictions --------------------------------------------------------------------------------------------------


@pytest.fixture
def years() -> UnitFaissVectorStore:
    return store_of(*(embedded(f"{d}{y}", [1, y], doc_id=d, metadata={"year": y}) for d in "pq" for y in (1, 2, 3)))


def test_filters_node_ids_and_document_ids_apply_before_ranking(years: UnitFaissVectorStore) -> None:
    query = [1.0, 0.0]
    assert ask(years, query, filters=year(3)) == ["p3", "q3"]
    assert ask(years, query, doc_ids=["q"]) == ["q1", "q2", "q3"]
    assert ask(years, query, node_ids=["q3", "p2"]) == ["p2", "q3"]
    assert ask(years, query, doc_ids=["q"], node_ids=["q1", "p1"], filters=year(2, FilterOperator.LT)) == ["q1"]
    assert ask(years, query, k=1, filters=year(3)) == ["p3"]
    assert ids_of(years.rank(np.array(query), 2, year(3))) == ["p3", "q3"]
    assert [node.node_id for node in years.get_nodes(["q2", "p1"])] == ["p1", "q2"]
    assert [node.node_id for node in years.get_nodes(filters=year(2))] == ["p2", "q2"]


def test_empty_lists_do_not_restrict_and_unknown_ids_match_nothing(years: UnitFaissVectorStore) -> None:
    query = [1.0, 0.0]
    assert len(ask(years, query, node_ids=[], doc_ids=[])) == 6
    assert ask(years, query, node_ids=["other"]) == []
    assert ask(years, query, doc_ids=["other"]) == []
    assert ask(years, query, filters=year(1999)) == []


@pytest.mark.parametrize("kind", ["HNSW8", "IVF2,Flat", "SQ8"])
def test_other_inner_product_indexes_answer_with_and_without_filters(kind: str) -> None:
    index = faiss.index_factory(4, kind, faiss.METRIC_INNER_PRODUCT)
    rows = np.random.default_rng(7).normal(size=(60, 4)).astype(np.float32)
    index.train(rows)
    store = UnitFaissVectorStore(index)
    store.add([embedded(str(n), row, metadata={"year": n}) for n, row in enumerate(rows)])
    ranking = store.rank(rows[40], 5, year(30, FilterOperator.GT))
    assert ranking[0] == ("40", pytest.approx(1.0, abs=0.02))
    assert all(int(node_id) > 30 for node_id in ids_of(ranking))
    assert len(store.rank(rows[0], 3)) == 3
    with pytest.raises(InputError, match=r"Nodes of a Index\w+ cannot be removed or replaced: build a new one"):
        store.delete_nodes(["1"])
    assert len(store) == len(store.docstore) == 60


def test_an_index_that_compares_distances_is_refused() -> None:
    with pytest.raises(InputError, match=r"needs an inner-product index, such as faiss.IndexFlatIP\(dimensions\)"):
        UnitFaissVectorStore(faiss.IndexFlatL2(2))


# ---- nodes and rows must belong together ---------------------------------------------------------------------------


# ---- files ---------------------------------------------------------------------------------------------------------


def test_a_store_with_its_own_nodes_is_read_back_and_can_be_extended(tmp_path: Path) -> None:
    path = str(tmp_path / "new folder" / "vectors.faiss")
    store_of(embedded("a", [1, 0], metadata={"year": 1}), embedded("b", [0, 1])).persist(path)
    assert sorted(os.listdir(tmp_path / "new folder")) == ["vectors.faiss", "vectors.faiss.nodes.sqlite"]

    loaded = UnitFaissVectorStore.from_persist_path(path)
    assert ask(loaded, [0.1, 1.0]) == ["b", "a"]
    assert ask(loaded, [0.1, 1.0], filters=year(1)) == ["a"]
    loaded.add([embedded("c", [1, 1])])
    loaded.persist(path)
    assert ask(UnitFaissVectorStore.from_persist_path(path), [1.0, 1.0], k=1) == ["c"]


def test_a_shared_document_store_is_not_written_twice(tmp_path: Path) -> None:
    docstore = SQLiteDocumentStore()
    store = store_of(embedded("a", [1, 0]), docstore=docstore)
    store.persist(str(tmp_path / "vectors.faiss"))
    assert os.listdir(tmp_path) == ["vectors.faiss"]
    loaded = UnitFaissVectorStore.from_persist_path(str(tmp_path / "vectors.faiss"), docstore=docstore)
    assert loaded.docstore is docstore
    assert ask(loaded, [1.0, 0.0]) == ["a"]
    with pytest.raises(CorruptVersionError, match=r"contains 1 vectors, the document store 0 nodes"):
        UnitFaissVectorStore.from_persist_path(str(tmp_path / "vectors.faiss"), docstore=SQLiteDocumentStore())


def test_missing_files_and_an_empty_store_are_errors_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "vectors.faiss"
    with pytest.raises(InputError, match=r"vectors.faiss does not exist"):
        UnitFaissVectorStore.from_persist_path(str(path))
    store_of(embedded("a", [1, 0]), docstore=SQLiteDocumentStore()).persist(str(path))
    with pytest.raises(InputError, match=r"vectors.faiss.nodes.sqlite does not exist"):
        UnitFaissVectorStore.from_persist_path(str(path))
    with pytest.raises(InputError, match=r"The vector store is empty: add nodes before it is persisted"):
        UnitFaissVectorStore().persist(str(path))


@pytest.mark.parametrize("content", [b"", b"I", b"IxF2" + bytes(40), b"nonsense", b"IxFI" + bytes(60)])
def test_a_file_that_is_not_an_index_is_an_error_that_names_it(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "vectors.faiss").write_bytes(content)
    with pytest.raises(CorruptVersionError, match=r"^vectors.faiss "):
        UnitFaissVectorStore.from_persist_path(str(tmp_path / "vectors.faiss"), docstore=SQLiteDocumentStore())


# ---- inside LlamaIndex ---------------------------------------------------------------------------------------------


def test_it_works_in_a_vector_store_index_with_insert_delete_and_filters() -> None:
    store = UnitFaissVectorStore()
    documents = [Document(id_=name, text=f"the {name} duty", metadata={"year": n}) for n, name in enumerate("abc")]
    index = VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=CountingEmbedding(),
    )
    assert [hit.node.ref_doc_id for hit in index.as_retriever(similarity_top_k=1).retrieve("b")] == ["b"]
    assert [hit.node.ref_doc_id for hit in index.as_retriever(filters=year(2)).retrieve("b")] == ["c"]
    assert [hit.node.ref_doc_id for hit in index.as_retriever(doc_ids=["a"]).retrieve("b")] == ["a"]
    assert len(store) == 3, "an empty store is truthy, so that the index uses it"
    index.delete_ref_doc("b")
    index.insert(Document(id_="d", text="the d duty"))
    assert {hit.node.ref_doc_id for hit in index.as_retriever(similarity_top_k=9).retrieve("duty")} == {"a", "c", "d"}
    assert "duty" in str(index.as_query_engine(llm=MockLLM()).query("duty"))


async def test_it_works_in_a_pipeline_that_replaces_changed_documents() -> None:
    store = UnitFaissVectorStore()
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), CountingEmbedding()],
        docstore=SQLiteDocumentStore(),
        vector_store=store,
    )
    pipeline.run(documents=[Document(id_="a", text="iron"), Document(id_="b", text="bronze")])
    await pipeline.arun(documents=[Document(id_="a", text="iron"), Document(id_="b", text="brass")])
    assert [node.get_content() for node in store.get_nodes()] == ["iron", "brass"]
    assert all(NodeRelationship.SOURCE in node.relationships for node in store.get_nodes())


# ---- what the stock store does -------------------------------------------------------------------------------------
