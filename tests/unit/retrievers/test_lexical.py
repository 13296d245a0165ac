"""BM25 retrieval: hits, scores, filters, and the index on disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual.contextualizer import StructuralContextualizer
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.retrievers import LexicalRetriever
from tests.integration.retrievers.corpus import passages, ranking
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
    found = ranking(LexicalRetriever.from_defaults(nodes=passages(texts)), "pump motor", 10)
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
    everything = ranking(many, "pump motor", 500)
    assert len(everything) == sum(bool(n % 7 or n % 5) for n in range(200))
    scores = [score for _, score in everything]
    assert scores == sorted(scores, reverse=True)
    for k in (1, 10, 57):
        assert [score for _, score in ranking(many, "pump motor", k)] == scores[:k]


def test_the_context_is_searched_and_not_the_excluded_metadata() -> None:
    nodes = StructuralContextualizer()(
        [TextNode(id_="a", text="It grew by 3 %.", metadata={"title": "ACME Q2 2023", "file_path": "secret/place"})]
    )
    lexical = LexicalRetriever.from_defaults(nodes=nodes)
    assert ids(lexical.retrieve("ACME")) == ["a"]
    assert lexical.retrieve("secret") == []


@given(st.lists(st.sampled_from(["pump", "motor", "valve", "TS-999", "the", "zebra"]), max_size=6))
def test_matched_terms_are_never_empty_and_never_foreign(words: list[str]) -> None:
    analyzer, query = RETRIEVER.chunk_index.lexical.analyzer, " ".join(words)
    for hit in RETRIEVER.retrieve(query):
        held = set(analyzer.terms(hit.node.get_content()))
        matched = set(hit.lexical.matched_terms)  # type: ignore[attr-defined]
        assert matched == set(analyzer.terms(query)) & held != set()


RETRIEVER = retriever()


# ---- poor corpora ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [[], ["the and of", "is to be"]])
def test_a_corpus_without_words_is_an_index_that_finds_nothing(texts: list[str]) -> None:
    lexical = LexicalRetriever.from_defaults(nodes=[TextNode(text=text) for text in texts])
    assert lexical.retrieve("the pump") == []
    assert len(lexical.chunk_index.ids) == len(texts)


def test_more_results_than_passages_can_be_requested_and_at_least_one_must_be() -> None:
    assert len(retriever(similarity_top_k=50).retrieve("pump error revenue iron")) == len(passages())
    with pytest.raises(InputError, match="top_k is 0: request at least one result"):
        retriever(similarity_top_k=0).retrieve("pump")


# ---- filters ---------------------------------------------------------------------------------------------------------


def test_filters_leave_only_nodes_that_pass() -> None:
    assert set(ids(retriever(filters=only(kind="manual")).retrieve("pump error revenue"))) == {"dry", "sensor", "valve"}
    assert [node_id for node_id, _ in ranking(retriever(), "pump revenue", 5, only(kind="report"))] == ["revenue"]
    assert retriever(filters=only(kind="novel")).retrieve("pump") == []


# ---- where the nodes come from ---------------------------------------------------------------------------------------


def test_it_is_built_from_nodes_a_document_store_or_an_index() -> None:
    store = SimpleDocumentStore()
    store.add_documents(passages())
    index = VectorStoreIndex(passages(), embed_model=CountingEmbedding())
    for source in ({"nodes": passages()}, {"docstore": store}, {"index": index}):
        lexical = LexicalRetriever.from_defaults(**source)  # type: ignore[arg-type]
        assert ids(lexical.retrieve("TS-999"))[0] == "dry"
        assert lexical.chunk_index.fetch([0])[0].node == store.docs["dry"]


@pytest.mark.parametrize("sources", [{}, {"nodes": [], "docstore": SimpleDocumentStore()}])
def test_exactly_one_source_is_required(sources: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Give exactly one of index, nodes and docstore"):
        LexicalRetriever.from_defaults(**sources)  # type: ignore[arg-type]


def test_an_index_without_terms_is_refused_with_advice() -> None:
    for index in (passages(), VectorStoreIndex(passages(), embed_model=CountingEmbedding())):
        with pytest.raises(InputError, match=r"needs an index with terms.* use LexicalRetriever\.from_defaults\(\)"):
            LexicalRetriever(index)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"stemmer": object()}, {"token_pattern": r"\w+"}, {"skip_stemming": True}])
def test_options_of_another_tokenizer_are_refused_with_advice(option: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"own tokenizer: omit `{next(iter(option))}`, or choose a `language`"):
        retriever(**option)
    assert ids(retriever(stemmer=None, skip_stemming=False, verbose=True).retrieve("TS-999"))[0] == "dry"


def test_settings_are_those_of_the_index() -> None:
    nodes = passages({"a": "Die Prüfungen der Straßen", "b": "Der Umsatz"})
    german = LexicalRetriever.from_defaults(nodes=nodes, language="german")
    assert ids(german.retrieve("Prüfung der STRASSE")) == ["a"]
