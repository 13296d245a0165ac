"""BM25 retrieval: hits, scores, filters, and the index on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.contextualizer import StructuralContextualizer
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.bm25 import LexicalIndex, TermCounts
from llama_index_contextual.retrievers import LexicalRetriever
from llama_index_contextual.stores.docstore import SQLiteDocumentStore
from llama_index_contextual.stores.faiss import UnitFaissVectorStore
from tests.integration.retrievers.corpus import CountingStore, passages, vector_index
from tests.support.models import CountingEmbedding


def retriever(**options: object) -> LexicalRetriever:
    return LexicalRetriever.from_defaults(nodes=passages(), **options)  # type: ignore[arg-type]


def ids(hits: list) -> list[str]:  # type: ignore[type-arg]
    return [hit.node.node_id for hit in hits]


def only(**equal: str) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value) for key, value in equal.items()])


# ---- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["Error code TS-999", "what does ts-999 mean?", "TS-999.", "ＴＳ－９９９"])
def test_an_error_code_finds_its_passage(query: str) -> None:
    assert ids(retriever().retrieve(query))[0] == "dry"


def test_only_passages_with_a_term_of_the_query_are_hits() -> None:
    found = retriever().retrieve("pump")
    assert set(ids(found)) == {"dry", "valve"}
    assert all(hit.score > 0 for hit in found)


@pytest.mark.parametrize("query", ["quince", "the of and", "?!", " "])
def test_a_query_without_a_known_term_finds_nothing(query: str) -> None:
    assert retriever().retrieve(query) == []


def test_better_matches_come_first_and_equal_ones_in_the_order_of_the_corpus() -> None:
    texts = {"one": "pump", "both": "pump motor", "same": "motor pump", "none": "valve"}
    found = LexicalRetriever.from_defaults(nodes=passages(texts)).rank("pump motor", 10).first(10)
    assert [node_id for node_id, _ in found] == ["both", "same", "one"]
    scores = [score for _, score in found]
    assert scores[0] == scores[1] > scores[2] > 0


def test_question_words_find_nothing_next_to_other_words() -> None:
    index = LexicalIndex.build(["What does it do, and how?", "The pump."])
    assert index.scores("What does the pump do?").tolist() == index.scores("pump").tolist()


def test_a_query_of_only_question_words_is_searched() -> None:
    index = LexicalIndex.build(["What does it do, and how?", "The pump."])
    assert index.query("How and what?").known == ("how", "what")
    # Of several texts, only those with other words than question words count.
    assert index.query([("How?", 1.0), ("The pump.", 0.1)]).counts == {"pump": 0.1}


def test_terms_with_weights_are_searched_unchanged() -> None:
    index = LexicalIndex.build(["What a form", "The pump."])
    assert index.query({"what": 1.0, "forl": 0.5}).counts == {"what": 1.0, "forl": 0.5}


def test_the_best_of_many_are_the_same_as_when_all_are_ranked() -> None:
    texts = {f"n{n:03d}": " ".join(["pump"] * (n % 7) + ["motor"] * (n % 5) + ["x"]) for n in range(200)}
    many = LexicalRetriever.from_defaults(nodes=passages(texts))
    everything = many.rank("pump motor", 500).first(500)
    assert len(everything) == sum(bool(n % 7 or n % 5) for n in range(200))
    scores = [score for _, score in everything]
    assert scores == sorted(scores, reverse=True)
    for k in (1, 10, 57):
        assert [score for _, score in many.rank("pump motor", k).first(k)] == scores[:k]


def test_the_context_is_searched_and_not_the_excluded_metadata() -> None:
    nodes = StructuralContextualizer()(
        [TextNode(id_="a", text="It grew by 3 %.", metadata={"title": "ACME Q2 2023", "file_path": "secret/place"})]
    )
    lexical = LexicalRetriever.from_defaults(nodes=nodes)
    assert ids(lexical.retrieve("ACME")) == ["a"]
    assert lexical.retrieve("secret") == []


@given(st.lists(st.sampled_from(["pump", "motor", "valve", "TS-999", "the", "zebra"]), max_size=6))
def test_matched_terms_are_never_empty_and_never_foreign(words: list[str]) -> None:
    analyzer, query = RETRIEVER.lexical_index.analyzer, " ".join(words)
    for hit in RETRIEVER.retrieve(query):
        held = set(analyzer.terms(hit.node.get_content()))
        matched = set(hit.lexical.matched_terms)  # type: ignore[attr-defined]
        assert matched == set(analyzer.terms(query)) & held != set()


RETRIEVER = retriever()


# ---- poor corpora ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [[], ["the and of", "is to be"]])
def test_a_corpus_without_words_is_an_index_that_finds_nothing(tmp_path: Path, texts: list[str]) -> None:
    lexical = LexicalRetriever.from_defaults(nodes=[TextNode(text=text) for text in texts])
    assert lexical.retrieve("the pump") == []
    assert lexical.lexical_index.size == len(texts)
    retriever().persist(str(tmp_path))
    lexical.persist(str(tmp_path))
    assert LexicalRetriever.from_persist_dir(str(tmp_path)).retrieve("the pump") == []
    assert json.loads((tmp_path / "terms.json").read_text()) == []


def test_more_results_than_passages_can_be_requested_and_at_least_one_must_be() -> None:
    assert len(retriever(similarity_top_k=50).retrieve("pump error revenue iron")) == len(passages())
    with pytest.raises(InputError, match="top_k is 0: request at least one result"):
        retriever(similarity_top_k=0).retrieve("pump")


# ---- filters ---------------------------------------------------------------------------------------------------------


def test_filters_leave_only_nodes_that_pass() -> None:
    assert set(ids(retriever(filters=only(kind="manual")).retrieve("pump error revenue"))) == {"dry", "sensor", "valve"}
    assert [node_id for node_id, _ in retriever().rank("pump revenue", 5, only(kind="report")).first(5)] == ["revenue"]
    assert retriever(filters=only(kind="novel")).retrieve("pump") == []


# ---- where the nodes come from ---------------------------------------------------------------------------------------


def test_it_is_built_from_nodes_a_document_store_or_an_index() -> None:
    simple, sqlite = SimpleDocumentStore(), SQLiteDocumentStore()
    simple.add_documents(passages())
    index = vector_index(passages(), CountingEmbedding(), sqlite)
    context = StorageContext.from_defaults(vector_store=UnitFaissVectorStore())
    in_vectors = VectorStoreIndex(passages(), storage_context=context, embed_model=CountingEmbedding())
    assert not in_vectors.docstore.docs, "its vector store keeps the nodes"
    for source in ({"docstore": simple}, {"docstore": sqlite}, {"index": index}, {"index": in_vectors}):
        assert ids(LexicalRetriever.from_defaults(**source).retrieve("TS-999"))[0] == "dry"  # type: ignore[arg-type]
    assert LexicalRetriever.from_defaults(docstore=sqlite).chunk_index.fetch([0])[0].node == sqlite.docs["dry"]


@pytest.mark.parametrize("sources", [{}, {"nodes": [], "docstore": SQLiteDocumentStore()}])
def test_exactly_one_source_is_required(sources: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Give exactly one of index, nodes and docstore"):
        LexicalRetriever.from_defaults(**sources)  # type: ignore[arg-type]


def test_an_index_and_a_store_of_different_size_are_refused() -> None:
    store = SQLiteDocumentStore()
    store.add_documents(passages())
    with pytest.raises(InputError, match=r"contains 1 text, the document store 5 nodes: they do not belong together"):
        LexicalRetriever(LexicalIndex.build(["pump"]), store)


def test_nodes_are_fetched_once_per_search_and_not_at_all_to_rank() -> None:
    store = CountingStore()
    store.add_documents(passages())
    lexical = LexicalRetriever.from_defaults(docstore=store)
    lexical.rank("pump", 5).first(5)
    assert store.fetches == []
    lexical.retrieve("pump")
    assert [sorted(fetch) for fetch in store.fetches] == [["dry", "valve"]]


# ---- on disk ---------------------------------------------------------------------------------------------------------


def test_settings_survive_on_disk(tmp_path: Path) -> None:
    nodes = passages({"a": "Die Prüfungen der Straßen", "b": "Der Umsatz"})
    LexicalRetriever.from_defaults(nodes=nodes, language="german").persist(str(tmp_path))
    loaded = LexicalRetriever.from_persist_dir(str(tmp_path))
    assert (loaded.lexical_index.analyzer.language, loaded.lexical_index.analyzer.has_periods) == ("german", True)
    assert ids(loaded.retrieve("Prüfung der STRASSE")) == ["a"]


def test_a_loaded_index_answers_as_the_one_that_was_saved(tmp_path: Path) -> None:
    built = retriever()
    built.persist(str(tmp_path))
    loaded = LexicalRetriever.from_persist_dir(str(tmp_path), similarity_top_k=3)
    assert loaded.similarity_top_k == 3
    for query in ("TS-999", "pump error", "quarter"):
        assert loaded.rank(query, 5).first(5) == built.rank(query, 5).first(5)
        nodes = [[hit.node.to_dict() for hit in one.retrieve(query)] for one in (loaded, built)]
        assert nodes[0] == nodes[1][:3]
    assert [path.name for path in tmp_path.iterdir() if b"Close the valve" in path.read_bytes()] == ["nodes.sqlite"]
    counts = TermCounts.load(tmp_path, len(passages()))
    for array in (counts.holders, counts.frequencies, counts.lengths):
        assert (array.flags.owndata, array.flags.writeable) == (False, False), "mapped and not read"


def test_a_shared_document_store_is_not_written_a_second_time(tmp_path: Path) -> None:
    store = SQLiteDocumentStore()
    store.add_documents(passages())
    LexicalRetriever.from_defaults(docstore=store).persist(str(tmp_path))
    assert not (tmp_path / "nodes.sqlite").exists()
    assert ids(LexicalRetriever.from_persist_dir(str(tmp_path), docstore=store).retrieve("TS-999"))[0] == "dry"
    with pytest.raises(InputError, match="contains no nodes: pass the document store"):
        LexicalRetriever.from_persist_dir(str(tmp_path))


def test_a_loaded_retriever_can_be_saved_elsewhere_and_over_itself(tmp_path: Path) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    # The arrays are larger than one block, so that overwriting a mapped file would be noticed.
    texts = {f"n{n}": f"pump number {n} of line {n % 50}" for n in range(2000)}
    LexicalRetriever.from_defaults(nodes=passages(texts)).persist(here)
    loaded = LexicalRetriever.from_persist_dir(here)
    wanted = loaded.rank("pump 1999", 5).first(5)
    loaded.persist(here)
    loaded.persist(there)
    for one in (loaded, *map(LexicalRetriever.from_persist_dir, (here, there))):
        assert one.rank("pump 1999", 5).first(5) == wanted
        assert one.retrieve("1999")[0].node.node_id == "n1999"


def test_loading_from_a_folder_without_an_index_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no lexical index: persist a LexicalRetriever there first"):
        LexicalRetriever.from_persist_dir(str(tmp_path))
