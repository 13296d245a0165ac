"""BM25 retrieval: hits, scores, filters, and the index on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import Stemmer
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
from llama_index.retrievers.bm25 import BM25Retriever

from llama_index_contextual.contextualizer import StructuralContextualizer
from llama_index_contextual.errors import InputError
from llama_index_contextual.retrievers import LexicalRetriever
from llama_index_contextual.retrievers.base import Ranking
from llama_index_contextual.retrievers.bm25 import LexicalIndex, LexicalIndexBuilder, TermCounts
from llama_index_contextual.retrievers.response import RetrievedChunk
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.faiss_store import UnitFaissVectorStore
from tests.integration.retrievers.corpus import CountingStore, passages, vector_index
from tests.support.models import CountingEmbedding

STOP_WORDS = ["the and of", "is to be"]


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
def test_a_query_without_a_known_term_finds_nothing_where_stock_gives_nodes_with_score_zero(query: str) -> None:
    assert retriever().retrieve(query) == []
    stock = BM25Retriever.from_defaults(nodes=passages(), similarity_top_k=3)
    padding = stock.retrieve(query)
    assert [hit.score for hit in padding] == [0.0, 0.0, 0.0]


def test_stock_fills_up_with_misses_and_ours_does_not() -> None:
    stock = BM25Retriever.from_defaults(nodes=passages(), similarity_top_k=5)
    assert sorted(hit.score > 0 for hit in stock.retrieve("pump")) == [False, False, False, True, True]
    assert len(retriever(similarity_top_k=5).retrieve("pump")) == 2


def test_better_matches_come_first_and_equal_ones_in_the_order_of_the_corpus() -> None:
    texts = {"one": "pump", "both": "pump motor", "same": "motor pump", "none": "valve"}
    found = LexicalRetriever.from_defaults(nodes=passages(texts)).rank("pump motor", 10).first(10)
    assert [node_id for node_id, _ in found] == ["both", "same", "one"]
    scores = [score for _, score in found]
    assert scores[0] == scores[1] > scores[2] > 0


def test_the_score_of_a_term_is_bm25s() -> None:
    found = LexicalIndex.build(["pump pump dry", "pump"]).scores("pump")
    idf = math.log(1 + (2 - 2 + 0.5) / (2 + 0.5))
    long, short = 1.5 * (1 - 0.75 + 0.75 * 3 / 2), 1.5 * (1 - 0.75 + 0.75 * 1 / 2)
    assert found.tolist() == pytest.approx([idf * 2 / (long + 2), idf * 1 / (short + 1)])


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


def test_matched_terms_are_the_terms_of_the_query_in_the_passage() -> None:
    (first, *_) = retriever().retrieve("pumps and error TS-999 of the motors")
    assert isinstance(first, RetrievedChunk)
    assert first.lexical is not None
    assert first.lexical.matched_terms == ("pump", "error", "ts-999", "ts", "999")
    assert (first.lexical.rank, first.lexical.score) == (1, first.score)
    assert first.semantic is None


@given(st.lists(st.sampled_from(["pump", "motor", "valve", "TS-999", "the", "zebra"]), max_size=6))
def test_matched_terms_are_never_empty_and_never_foreign(words: list[str]) -> None:
    lexical = RETRIEVER
    query = " ".join(words)
    asked = set(lexical.lexical_index.analyzer.terms(query))
    for hit in lexical.retrieve(query):
        assert hit.lexical.matched_terms  # type: ignore[attr-defined]
        held = set(lexical.lexical_index.analyzer.terms(hit.node.get_content()))
        assert set(hit.lexical.matched_terms) == asked & held  # type: ignore[attr-defined]


RETRIEVER = retriever()


# ---- poor corpora ----------------------------------------------------------------------------------------------------


def test_a_corpus_of_stop_words_is_an_index_that_finds_nothing_where_stock_fails(tmp_path: Path) -> None:
    nodes = [TextNode(text=text) for text in STOP_WORDS]
    with pytest.raises(ValueError, match="max"):
        BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=1)
    lexical = LexicalRetriever.from_defaults(nodes=nodes)
    assert lexical.retrieve("the and") == []
    lexical.persist(str(tmp_path))
    assert LexicalRetriever.from_persist_dir(str(tmp_path)).retrieve("the and") == []


def test_an_empty_corpus_finds_nothing(tmp_path: Path) -> None:
    lexical = LexicalRetriever.from_defaults(nodes=[])
    assert lexical.retrieve("pump") == []
    assert lexical.lexical_index.size == 0
    lexical.persist(str(tmp_path))
    assert LexicalRetriever.from_persist_dir(str(tmp_path)).retrieve("pump") == []


def test_more_results_than_passages_can_be_requested() -> None:
    nodes = passages()
    stock = BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=50)
    assert stock.similarity_top_k == len(nodes), "stock lowers the setting for good"
    lexical = retriever(similarity_top_k=50)
    assert len(lexical.retrieve("pump error revenue iron")) == len(nodes)
    assert lexical.similarity_top_k == 50


@pytest.mark.parametrize("k", [0, -1])
def test_at_least_one_result_must_be_requested(k: int) -> None:
    with pytest.raises(InputError, match=f"top_k is {k}: request at least one result"):
        retriever(similarity_top_k=k).retrieve("pump")


# ---- filters ---------------------------------------------------------------------------------------------------------


def test_filters_leave_only_nodes_that_pass() -> None:
    assert set(ids(retriever(filters=only(kind="manual")).retrieve("pump error revenue"))) == {"dry", "sensor", "valve"}
    assert [node_id for node_id, _ in retriever().rank("pump revenue", 5, only(kind="report")).first(5)] == ["revenue"]


def test_filters_that_leave_nothing_find_nothing_where_stock_fails() -> None:
    assert retriever(filters=only(kind="novel")).retrieve("pump") == []
    if version("llama-index-retrievers-bm25") < "0.8":
        pytest.skip("stock does not look at its filters before 0.8")
    with pytest.raises(ValueError, match="All nodes were filtered out"):
        BM25Retriever.from_defaults(nodes=passages(), similarity_top_k=1, filters=only(kind="novel"))


# ---- where the nodes come from ---------------------------------------------------------------------------------------


def test_it_is_built_from_nodes_a_document_store_or_an_index() -> None:
    simple = SimpleDocumentStore()
    simple.add_documents(passages())
    sqlite = SQLiteDocumentStore()
    index = vector_index(passages(), CountingEmbedding(), sqlite)
    for built in (
        retriever(),
        LexicalRetriever.from_defaults(docstore=simple),
        LexicalRetriever.from_defaults(docstore=sqlite),
        LexicalRetriever.from_defaults(index=index),
    ):
        assert ids(built.retrieve("TS-999"))[0] == "dry"
    assert LexicalRetriever.from_defaults(docstore=sqlite).docstore is sqlite


def test_an_index_whose_vector_store_keeps_the_nodes_is_not_taken_for_empty() -> None:
    from llama_index.core import StorageContext, VectorStoreIndex

    context = StorageContext.from_defaults(vector_store=UnitFaissVectorStore())
    index = VectorStoreIndex(passages(), storage_context=context, embed_model=CountingEmbedding())
    assert not index.docstore.docs
    assert ids(LexicalRetriever.from_defaults(index=index).retrieve("TS-999"))[0] == "dry"


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


def test_settings_survive_on_disk_where_stock_forgets_them(tmp_path: Path) -> None:
    nodes = passages({"a": "Die Prüfungen der Straßen", "b": "Der Umsatz"})
    LexicalRetriever.from_defaults(nodes=nodes, language="german").persist(str(tmp_path / "ours"))
    loaded = LexicalRetriever.from_persist_dir(str(tmp_path / "ours"))
    assert loaded.lexical_index.analyzer.language == "german"
    assert ids(loaded.retrieve("Prüfung der STRASSE")) == ["a"]

    stock = BM25Retriever.from_defaults(
        nodes=nodes, stemmer=Stemmer.Stemmer("german"), token_pattern=r"(?u)[^ ]+", similarity_top_k=1
    )
    stock.persist(str(tmp_path / "stock"))
    again = BM25Retriever.from_persist_dir(str(tmp_path / "stock"))
    assert stock.retrieve("Prüfung")[0].score > 0
    assert again.token_pattern != stock.token_pattern
    assert again.retrieve("Prüfung")[0].score == 0


def test_a_loaded_index_answers_as_the_one_that_was_saved(tmp_path: Path) -> None:
    built = retriever()
    built.persist(str(tmp_path))
    loaded = LexicalRetriever.from_persist_dir(str(tmp_path), similarity_top_k=3)
    assert loaded.similarity_top_k == 3
    for query in ("TS-999", "pump error", "quarter"):
        assert loaded.rank(query, 5).first(5) == built.rank(query, 5).first(5)
        assert [hit.node.to_dict() for hit in loaded.retrieve(query)] == [
            hit.node.to_dict() for hit in built.retrieve(query)
        ][:3]


def test_a_loaded_index_is_mapped_and_not_read(tmp_path: Path) -> None:
    retriever().persist(str(tmp_path))
    counts = TermCounts.load(tmp_path, len(passages()))
    arrays = (counts.holders, counts.frequencies, counts.lengths)
    assert not any(array.flags.owndata or array.flags.writeable for array in arrays)


def test_no_node_is_stored_as_json_next_to_the_index(tmp_path: Path) -> None:
    retriever().persist(str(tmp_path / "ours"))
    written = {path.name: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    assert [name for name, data in written.items() if b"Close the valve" in data] == ["nodes.sqlite"]
    assert not [name for name in written if "corpus" in name]
    BM25Retriever.from_defaults(nodes=passages(), similarity_top_k=1).persist(str(tmp_path / "stock"))
    assert b"Close the valve" in (tmp_path / "stock" / "corpus.jsonl").read_bytes()


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
    assert loaded.rank("pump 1999", 5).first(5) == wanted
    for place in (here, there):
        assert LexicalRetriever.from_persist_dir(place).rank("pump 1999", 5).first(5) == wanted
        assert LexicalRetriever.from_persist_dir(place).retrieve("1999")[0].node.node_id == "n1999"


def test_saving_an_empty_index_removes_the_previous_files(tmp_path: Path) -> None:
    retriever().persist(str(tmp_path))
    LexicalIndex.build(STOP_WORDS).save(tmp_path)
    assert json.loads((tmp_path / "terms.json").read_text()) == []
    assert LexicalIndex.load(tmp_path).postings("pump") is None


def test_loading_from_a_folder_without_an_index_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no lexical index: persist a LexicalRetriever there first"):
        LexicalRetriever.from_persist_dir(str(tmp_path))


def test_texts_can_come_in_parts() -> None:
    builder = LexicalIndexBuilder(language="none")
    builder.add(["pump", "the valve"])
    builder.add(iter(["pump valve"]))
    whole = LexicalIndex.build(["pump", "the valve", "pump valve"], language="none")
    assert builder.build().scores("the pump valve").tolist() == whole.scores("the pump valve").tolist()


# ---- as a LlamaIndex component ---------------------------------------------------------------------------------------


def test_it_answers_in_a_query_engine() -> None:
    engine = RetrieverQueryEngine.from_args(retriever(similarity_top_k=2), llm=MockLLM())
    response = engine.query("Error code TS-999")
    assert ids(response.source_nodes)[0] == "dry"
    assert "runs dry" in str(response)


async def test_async_gives_what_sync_gives() -> None:
    lexical = retriever()
    assert await lexical.aretrieve("pump error") == lexical.retrieve("pump error")


async def test_ranking_does_not_block_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    lexical, loop, turned = retriever(), asyncio.get_running_loop(), asyncio.Event()
    real = lexical.rank

    def rank(*arguments: object) -> Ranking:
        # Returns only if the loop can run something while this thread waits.
        asyncio.run_coroutine_threadsafe(_set(turned), loop).result(300)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lexical, "rank", rank)
    assert ids(await lexical.aretrieve("TS-999"))[0] == "dry"
    assert turned.is_set()


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_the_query_is_not_changed() -> None:
    bundle = QueryBundle("pump")
    retriever().retrieve(bundle)
    assert bundle == QueryBundle("pump")


def test_importing_the_index_leaves_the_log_quiet() -> None:
    script = (
        "import logging; logging.basicConfig(level=logging.INFO);"
        "import llama_index_contextual.retrievers.bm25 as m;"
        "m.LexicalIndex.build(['pump', 'valve']).scores('pump');"
        "print(logging.getLogger('bm25s').getEffectiveLevel())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(logging.INFO)
    assert "bm25s" not in done.stderr
