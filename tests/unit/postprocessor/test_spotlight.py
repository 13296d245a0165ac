"""Reranking of any nodes by their best sentence or row of a table."""

from __future__ import annotations

import copy

import pytest
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from llama_index_contextual.postprocessor import SpotlightRerank

pytest.importorskip("wordllama", reason="needs the extra local")

FEES = "The annual report has four parts.\nFees are due in May.\nThe board meets in spring."
GARDEN = "Water is metered in every zone.\nThe fee for garden water is 3 euros.\nPipes are inspected."
PUMPS = "Pumps lift water to the upper reservoir.\nTheir motors are green."
QUESTION = "What is the fee for garden water?"


def hits(*texts: str, scores: tuple[float | None, ...] = ()) -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=text, id_=str(number)), score=score)
        for number, (text, score) in enumerate(zip(texts, scores or (0.5,) * len(texts), strict=True))
    ]


def ids(nodes: list[NodeWithScore]) -> list[str]:
    return [hit.node.node_id for hit in nodes]


def test_the_node_whose_sentence_answers_comes_first() -> None:
    assert ids(SpotlightRerank().postprocess_nodes(hits(FEES, PUMPS, GARDEN), query_str=QUESTION))[0] == "2"


def test_a_row_of_a_table_answers_together_with_the_head_before_it() -> None:
    prose = "Garden fees are a topic of the report.\nThe Upper Vale is a valley.\nTarn Coast lies in the south."
    nodes = hits(prose, "| Lower Vale | 2.90 |\n| Upper Vale | 3.10 |")
    nodes[1].node.metadata["table_head"] = "| Zone | Garden fee |"
    assert ids(SpotlightRerank().postprocess_nodes(nodes, query_str="Garden fee of Upper Vale"))[0] == "1"


def test_the_order_of_the_retriever_counts() -> None:
    nodes = hits(FEES, GARDEN, PUMPS, scores=(9.0, 1.0, 0.9))
    assert ids(SpotlightRerank().postprocess_nodes(nodes, query_str=QUESTION)) == ["0", "1", "2"]


def test_nodes_without_scores_keep_the_order_of_their_ranks_where_they_are_equal() -> None:
    nodes = hits(PUMPS, PUMPS, GARDEN, scores=(None, None, None))
    assert ids(SpotlightRerank().postprocess_nodes(nodes, query_str="pump motors"))[:2] == ["0", "1"]


def test_nodes_after_the_candidates_follow_in_their_order() -> None:
    nodes = hits(FEES, PUMPS, GARDEN, GARDEN)
    assert ids(SpotlightRerank(candidates=2).postprocess_nodes(nodes, query_str=QUESTION))[2:] == ["2", "3"]
    assert len(SpotlightRerank(top_n=1).postprocess_nodes(nodes, query_str=QUESTION)) == 1


def test_source_code_is_left_as_it_is_ranked() -> None:
    code = ["def pump(rate):\n    return rate * 2\n", "def garden_water_fee(zone):\n    return FEES[zone]\n"]
    nodes = hits(*code)
    assert SpotlightRerank().postprocess_nodes(nodes, query_str=QUESTION) == nodes


def test_the_nodes_that_were_passed_are_not_changed() -> None:
    nodes = hits(FEES, PUMPS, GARDEN)
    SpotlightRerank().postprocess_nodes(nodes, query_str=QUESTION)
    assert [hit.score for hit in nodes] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("texts", [(), ("",), ("", "?"), (GARDEN,)])
@pytest.mark.parametrize("question", ["", "???", "the of and", "\ud800", QUESTION])
def test_empty_texts_and_questions_raise_nothing(texts: tuple[str, ...], question: str) -> None:
    ranked = SpotlightRerank().postprocess_nodes(hits(*texts), query_bundle=QueryBundle(question))
    assert sorted(ids(ranked)) == [str(number) for number in range(len(texts))]


async def test_it_works_asynchronously() -> None:
    nodes = hits(FEES, PUMPS, GARDEN)
    assert ids(await SpotlightRerank().apostprocess_nodes(nodes, query_str=QUESTION))[0] == "2"


def test_a_missing_question_is_named() -> None:
    with pytest.raises(ValueError, match="needs the question"):
        SpotlightRerank().postprocess_nodes(hits(FEES))


def test_it_is_restored_from_its_settings() -> None:
    rerank = SpotlightRerank.from_dict(SpotlightRerank(top_n=3, language="german").to_dict())
    assert (rerank.top_n, rerank.language) == (3, "german")


def test_it_can_be_copied_after_use() -> None:
    rerank = SpotlightRerank(top_n=1)
    first = rerank.postprocess_nodes(hits(FEES, PUMPS, GARDEN), query_str=QUESTION)
    assert copy.deepcopy(rerank).postprocess_nodes(hits(FEES, PUMPS, GARDEN), query_str=QUESTION) == first
