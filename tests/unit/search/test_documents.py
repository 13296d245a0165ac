"""The index of documents: entries, scores, ranks, and their effect on hybrid search."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.index.documents import DocumentIndex, document_entry
from llama_index_contextual.index.hits import Hits
from llama_index_contextual.retrievers import HybridRetriever, LexicalRetriever
from llama_index_contextual.retrievers.lexical import NodeIndex
from llama_index_contextual.search.rank import (
    FusionSettings,
    add_support,
    best_of_group,
    fuse_lists,
    lexical_list,
    reciprocal_shares,
    scaled_shares,
)
from llama_index_contextual.search.response import Hit
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.search.search import hits_of

QUERY = "When does the licence of Borealis end?"


def chunks_of(doc: str, *texts: str, **metadata: str) -> list[TextNode]:
    starts = itertools.accumulate((len(text) + 1 for text in texts), initial=0)
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc)}
    return [
        TextNode(id_=f"{doc}{number}", text=text, start_char_idx=start, metadata=metadata, relationships=source)
        for number, (text, start) in enumerate(zip(texts, starts, strict=False))
    ]


A = chunks_of("a", "Agreement with Aurora Oy.", "The licence ends in May.")
B = chunks_of("b", "Agreement with Borealis AG.", "The licence ends in June.")
C = chunks_of("c", "Cafeteria menu.")


def index_of(*documents: list[TextNode]) -> DocumentIndex:
    return DocumentIndex.build(documents)


def index() -> DocumentIndex:
    return index_of(A, B, C)


def search(query: str, *documents: list[TextNode], **settings: Any) -> list[Hit]:
    """Search documents, given as their chunks, by words, and add the scores of the documents."""
    index = NodeIndex(list(itertools.chain(*documents or (A, B, C))))
    support = index_of(*documents or (A, B, C))
    fusion = FusionSettings(weights=(1.0,), **settings)
    ranking = fuse_lists([lexical_list(index, query, 100)], index.ids, fusion, documents=support, query=query)
    count = len(ranking.hits.rows)
    return hits_of(ranking, index.fetch(ranking.hits.rows.tolist()), ranking.evidence(count))


def scores(query: str, *documents: list[TextNode], **settings: Any) -> dict[str, float]:
    """Return the scores by node id, best first."""
    return {hit.chunk.node_id: hit.score for hit in search(query, *documents, **settings)}


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_an_entry_is_the_words_of_the_file_name_the_title_and_the_opening() -> None:
    nodes = chunks_of("d", "It begins.", "It ends.", file_name="Acme_Corp-2019(EX-10).pdf", title="Supply Agreement")
    assert document_entry(nodes[::-1]) == "Acme Corp 2019 EX 10 pdf Supply Agreement It begins."
    dated = chunks_of("d", "It begins.", file_name="ACME_2022_8K_dated-2022-07-01.pdf")
    assert document_entry(dated) == "ACME 2022 8K dated 2022-07-01 pdf  It begins.", "a date stays whole"
    assert document_entry(chunks_of("d", "x" * 1000)) == "x" * 400


# ---- scores and ranks ------------------------------------------------------------------------------------------------


def test_chunks_have_score_and_rank_of_their_document() -> None:
    found = index().support("agreement Borealis", np.array([1, 2, 3, 4]))
    assert found.ranks.tolist() == [2, 1, 1, 0]
    a, b0, b1, c = found.scores
    assert b0 == b1 > a > c == 0
    assert index().support("agreement", np.array([0, 2])).ranks.tolist() == [1, 1], "equal documents"


def test_an_index_without_any_term_supports_nothing() -> None:
    found = index_of(chunks_of("d", "…")).support(QUERY, np.array([0]))
    assert (found.scores.tolist(), found.ranks.tolist()) == ([0.0], [0])


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def test_shares_of_scores_are_squares_of_their_ratio_to_the_largest() -> None:
    assert scaled_shares(np.array([4.0, 0.0, 1.0]), 0.1).tolist() == [0.1 * (4 / 4) ** 2, 0.0, 0.1 * (1 / 4) ** 2]
    assert scaled_shares(np.zeros(0), 0.1).tolist() == []
    assert scaled_shares(np.zeros(2), 0.1).tolist() == [0.0, 0.0]


def test_shares_of_ranks_are_reciprocal() -> None:
    assert reciprocal_shares(np.array([1, 0, 2]), 0.1, k=10).tolist() == [0.1 / 11, 0.0, 0.1 / 12]


def test_support_adds_to_scores_and_adds_no_hits() -> None:
    hits, before = add_support(Hits(np.array([7, 8, 9]), np.array([0.5, 0.5, 0.25])), np.array([0, 0.25, 0.25]))
    assert hits.rows.tolist() == [8, 7, 9]
    assert hits.scores.tolist() == [0.75, 0.5, 0.5]
    assert before.tolist() == [1, 0, 2]


# ---- in hybrid search ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", ["score", "rrf"])
def test_the_passage_of_the_document_that_the_question_names_comes_first(fusion: Any) -> None:
    query = "licence ends Borealis"
    assert next(iter(scores(query, by=fusion, document_weight=1.0))) == "b1"


def test_a_misspelt_name_finds_its_document() -> None:
    found = {hit.chunk.node_id: hit.document for hit in search("licence of Borealiz")}
    assert found["b1"] is not None
    assert found["a1"] is None


def test_a_word_of_the_chunks_is_not_corrected_to_a_word_of_a_name() -> None:
    nodes = chunks_of("j", "Agreement with Marlin.", "Signed at Marvin.")
    assert index_of(nodes).lexical_index.query("Marvin").known == ("marlin",)
    assert [(hit.chunk.node_id, hit.document) for hit in search("Marvin", nodes)] == [("j1", None)]


def test_the_weight_of_documents_is_relative_to_the_best_score() -> None:
    query = "licence Borealis"
    plain, low, high = (scores(query, document_weight=weight) for weight in (0.0, 0.1, 0.2))
    # Only the entry of b has a term of the query: its share is the whole weight, for its chunks and the score of the
    # best chunk, which is added to them. The three documents have five chunks.
    share = 0.1 * math.log(1 + 5 / 3) / math.log(1 + 10) * max(plain.values())
    wanted = {"a1": 0.0, "b0": 2 * share, "b1": 2 * share}
    assert {key: high[key] - low[key] for key in plain} == pytest.approx(wanted)


def test_with_reciprocal_ranks_a_score_contains_that_of_the_document_and_of_its_best_chunk() -> None:
    query = "licence Borealis"
    plain = scores(query, by="rrf", document_weight=0.0)
    best = max(plain["b0"], plain["b1"]) + 0.1 / 11
    wanted = {"a1": 2 * plain["a1"], **{key: plain[key] + 0.1 / 11 + best for key in ("b0", "b1")}}
    assert scores(query, by="rrf", document_weight=0.1) == pytest.approx(wanted)


@pytest.mark.parametrize(("chunks", "factor"), [(1, 0.289), (10, 1.0), (120, 2.0)])
def test_the_weight_of_documents_grows_with_the_logarithm_of_their_length(chunks: int, factor: float) -> None:
    documents = [chunks_of(name, *["Some text."] * chunks) for name in ("a", "b")]
    assert index_of(*documents).emphasis == pytest.approx(factor, abs=0.001)


# ---- terms within a document -----------------------------------------------------------------------------------------


def shared_terms(texts_of: dict[str, list[str]], query: str) -> dict[str, float]:
    """Return by chunk how much of its score comes from terms that its document has elsewhere as well."""
    documents = [chunks_of(name, *texts) for name, texts in texts_of.items()]
    nodes = list(itertools.chain(*documents))
    terms = LexicalIndex.build(node.text for node in nodes).query(query)
    shared = index_of(*documents).shared_terms(terms, np.arange(len(nodes))[::-1])
    return dict(zip([node.id_ for node in nodes], shared[::-1].tolist(), strict=True))


def test_a_term_counts_by_its_rarity_among_the_other_chunks_of_the_document() -> None:
    texts = {
        "a": ["Aurora pump", "Aurora fee"],
        "b": ["cafeteria menu", "fee", "menu"],
        "c": ["dinner", "lunch", "tea"],
    }
    index = LexicalIndex.build(text for document in texts.values() for text in document)
    shared = shared_terms(texts, "Aurora")
    # Two of eight chunks have the term, which gives p = 2.5 / 9; the one other chunk of the document has it as well.
    p = (2 + 0.5) / (8 + 1)
    ratio = math.log((1 + 100 * p) / (1 + 100)) / math.log(p)
    assert shared["a0"] == pytest.approx(float(index.scores("Aurora")[0]) * (1 - ratio), rel=1e-6)
    assert shared["a0"] == shared["a1"] > 0
    assert all(shared[name] == 0 for name in shared if name[0] != "a")


def test_a_term_that_the_rest_of_the_document_lacks_counts_more() -> None:
    texts = {"a": ["fee", *["pump"] * 9], "b": ["fee"] * 10}
    shared = shared_terms(texts, "fee")
    assert shared["a0"] < 0 < shared["b0"]


@given(st.lists(st.sampled_from(["aurora", "fee aurora", "pump fee", "pump pump", "menu"]), min_size=1, max_size=8))
def test_nothing_is_taken_off_the_only_chunk_of_a_document(texts: list[str]) -> None:
    shared = shared_terms({chr(97 + at): [text] for at, text in enumerate(texts)}, "fee of the Aurora pump")
    assert set(shared.values()) == {0.0}


@pytest.mark.parametrize(("document_weight", "best"), [(0.0, "l0"), (0.15, "l99")])
def test_among_the_chunks_of_a_document_its_name_counts_little(document_weight: float, best: str) -> None:
    lease = ["Borealis signs.", *[f"Borealis and Aurora agree on {point}." for point in range(98)], "Fee: seven."]
    documents = chunks_of("l", *lease), chunks_of("o", *["Another fee."] * 110, *["Some text."] * 300)
    assert next(iter(scores("Borealis fee", *documents, document_weight=document_weight))) == best


def test_periods_count_in_full_for_documents() -> None:
    index = index_of(*(chunks_of(name, "Sales.", file_name=name) for name in ("ACME_2018Q1.pdf", "ACME_2018Q2.pdf")))
    scores = index.support("Sales of ACME in the first quarter of 2018", np.arange(2)).scores
    terms = index.lexical_index.query("Sales of ACME in the first quarter of 2018")
    idf = terms.weights["2018q1"] / terms.counts["2018q1"]
    assert scores[0] - scores[1] == pytest.approx(idf / (1 + 1.5), rel=1e-5)
    assert index.support(terms.counts, np.arange(2)).scores.tolist() == scores.tolist()


def test_the_best_of_a_group_is_its_largest_score() -> None:
    best = best_of_group(np.array([-1.0, -3.0, 2.0, 0.0]), np.array([4, 4, 1, 4], dtype=np.int32))
    assert best.tolist() == [0.0, 0.0, 2.0, 0.0]
    assert best_of_group(np.zeros(0), np.zeros(0, dtype=np.int32)).tolist() == []


def test_a_hit_carries_score_and_rank_of_its_document() -> None:
    hits = {hit.chunk.node_id: RetrievedChunk.of_hit(hit) for hit in search("licence Borealis")}
    assert hits["a1"].document is None
    chunk = hits["b1"]
    assert chunk.document is not None
    response = RetrievalResponse(query="", mode_requested="hybrid", mode_used="hybrid", results=(chunk,))
    assert response.to_dict()["results"][0]["document"] == {"score": chunk.document.score, "rank": 1}
    assert response.to_nodes()[0].document == chunk.document  # type: ignore[attr-defined]


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_the_weight_of_the_documents_is_checked(weight: float) -> None:
    with pytest.raises(ConfigurationError, match="document_weight"):
        HybridRetriever([LexicalRetriever(NodeIndex(A))], document_weight=weight)
