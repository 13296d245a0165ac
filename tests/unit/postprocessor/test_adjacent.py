"""Merging of adjacent hits: no repeated characters, exact offsets, evidence of the best hit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_contextual.postprocessor import AdjacentChunkMerger, MergedChunk
from llama_index_contextual.search.response import IndexScore
from llama_index_contextual.search.results import RetrievedChunk
from tests.integration.postprocessor.documents import chunks_of, cut_documents, hit

TEXT = "Alpha beta. Gamma delta. Epsilon zeta. Eta theta."
#       0         12           25            39
SPANS = [(0, 17), (12, 30), (25, 49)]  # overlapping
TOUCHING = [(0, 12), (12, 25), (25, 39), (39, 49)]


def ids(passage: NodeWithScore) -> list[str]:
    """Return the ids of the chunks of a passage, in the order of the text."""
    return [node.node_id for node in (passage.chunks if isinstance(passage, MergedChunk) else [passage.node])]


# ---- merging -------------------------------------------------------------------------------------------------------


async def test_the_overlap_of_two_hits_is_not_repeated() -> None:
    nodes = chunks_of(TEXT, SPANS)
    before = [node.model_dump() for node in nodes]
    hits = [hit(nodes[1]), hit(nodes[0], 0.5)]
    (passage,) = AdjacentChunkMerger().postprocess_nodes(hits)
    assert passage.node.text == TEXT[0:30]
    assert (passage.node.start_char_idx, passage.node.end_char_idx) == (0, 30)
    assert [node.model_dump() for node in nodes] == before, "the given nodes are not changed"
    assert await AdjacentChunkMerger().apostprocess_nodes(hits) == [passage]


def test_hits_with_a_chunk_between_them_and_hits_of_two_documents_stay_apart() -> None:
    nodes, other = chunks_of(TEXT, TOUCHING), chunks_of(TEXT, TOUCHING, doc_id="other")
    passages = AdjacentChunkMerger().postprocess_nodes([hit(nodes[0]), hit(nodes[2], 0.5), hit(other[0], 0.1)])
    assert [result.node.node_id for result in passages] == ["doc-0", "doc-2", "other-0"]


def test_score_evidence_context_and_position_are_those_of_the_best_hit() -> None:
    nodes = chunks_of(TEXT, SPANS)
    nodes[1].metadata["context"] = "About gamma."
    other = chunks_of("Something else.", [(0, 15)], doc_id="other")[0]
    leg = IndexScore(score=7.5, rank=2, matched_terms=("gamma",))
    given_hits = [hit(other, 0.9), hit(nodes[1], 0.8, lexical=leg), hit(nodes[0], 0.1)]
    passages = AdjacentChunkMerger().postprocess_nodes(given_hits)
    assert passages[0] is given_hits[0]
    merged = passages[1]
    assert isinstance(merged, MergedChunk)
    assert (merged.node.node_id, merged.score, merged.lexical) == ("doc-1", 0.8, leg)
    assert ids(merged) == ["doc-0", "doc-1"]
    assert RetrievedChunk.of(2, merged).context == "About gamma."


def test_pages_section_and_source_are_those_of_the_whole_passage() -> None:
    nodes = chunks_of(TEXT, SPANS, section="One", token_count=4, source="Source: doc.md, pages 1–2")
    nodes[2].metadata["section"] = "Two"
    (passage,) = AdjacentChunkMerger().postprocess_nodes([hit(nodes[2]), hit(nodes[1]), hit(nodes[0])])
    facts = passage.node.metadata
    assert (facts["page_start"], facts["page_end"], facts["chunk_index"], facts["section"]) == (1, 4, 0, "One; Two")
    assert facts["source"] == "Source: doc.md, pages 1–4, section One; Two"
    assert facts["token_count"] == 14
    assert passage.node.prev_node is None
    assert passage.node.next_node is None


def test_a_single_hit_and_a_node_without_offsets_are_not_changed() -> None:
    alone = hit(chunks_of(TEXT, SPANS)[0])
    foreign = NodeWithScore(node=TextNode(text="No offsets."), score=None)
    assert AdjacentChunkMerger().postprocess_nodes([alone, foreign]) == [alone, foreign]


def test_the_same_chunk_twice_is_one_result() -> None:
    node = chunks_of(TEXT, SPANS)[0]
    (passage,) = AdjacentChunkMerger().postprocess_nodes([hit(node, 0.2), hit(node, 0.7)])
    assert passage.score == 0.7


def test_a_chunk_inside_another_adds_nothing() -> None:
    outer, inner = chunks_of(TEXT, [(0, 30), (12, 25)])
    (passage,) = AdjacentChunkMerger().postprocess_nodes([hit(inner), hit(outer)])
    assert (passage.node.text, ids(passage)) == (TEXT[:30], ["doc-0", "doc-1"])


def test_offsets_that_contradict_the_text_merge_nothing() -> None:
    first, second, _ = chunks_of(TEXT, SPANS)
    lying = second.model_copy(update={"start_char_idx": 14, "end_char_idx": 32})
    short = second.model_copy(update={"end_char_idx": 31})
    for wrong in (lying, short):
        passages = AdjacentChunkMerger().postprocess_nodes([hit(first), hit(wrong)])
        assert [result.node.text for result in passages] == [first.text, wrong.text]


# ---- white space between chunks ------------------------------------------------------------------------------------


def test_a_paragraph_break_between_linked_chunks_is_restored_and_a_wider_gap_is_not_guessed() -> None:
    first, second = chunks_of("One.\n\nTwo.", [(0, 4), (6, 10)])
    (passage,) = AdjacentChunkMerger().postprocess_nodes([hit(first), hit(second)])
    assert passage.node.text == "One.\n\nTwo."
    wider = chunks_of("One. \n\n Two.", [(0, 4), (8, 12)])
    assert len(AdjacentChunkMerger().postprocess_nodes([hit(node) for node in wider])) == 2


# ---- as a LlamaIndex component -------------------------------------------------------------------------------------


def test_it_survives_serialisation() -> None:
    merger = AdjacentChunkMerger(max_tokens=900)
    again = AdjacentChunkMerger.from_dict(merger.to_dict())
    assert again.max_tokens == 900
    assert again.to_dict() == merger.to_dict()


# ---- for every document --------------------------------------------------------------------------------------------


@given(cut_documents(), cut_documents("other"), st.data())
def test_no_character_comes_twice_and_every_passage_is_the_documents_text(
    one: tuple[str, list[TextNode]], other: tuple[str, list[TextNode]], data: st.DataObject
) -> None:
    texts = {"doc": one[0], "other": other[0]}
    nodes = [*one[1], *other[1]]
    chosen = data.draw(st.lists(st.sampled_from(nodes), max_size=8)) if nodes else []
    scores = data.draw(st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=8, max_size=8))
    hits = [hit(node, score) for node, score in zip(chosen, scores, strict=False)]
    merger = AdjacentChunkMerger()
    passages = merger.postprocess_nodes(hits)
    covered: dict[str, set[int]] = {"doc": set(), "other": set()}
    for result in passages:
        node = result.node
        assert isinstance(node, TextNode)
        start, end = node.start_char_idx or 0, node.end_char_idx or 0
        original = texts[node.ref_doc_id or ""][start:end]
        # Without the frame of a document, only the length of white space is known.
        assert node.text.split() == original.split()
        assert len(node.text) == len(original)
        places = {at for at in range(start, end) if not original[at - start].isspace()}
        assert not places & covered[node.ref_doc_id or ""]
        covered[node.ref_doc_id or ""] |= places
    for node in chosen:
        span = range(node.start_char_idx or 0, node.end_char_idx or 0)
        text = texts[node.ref_doc_id or ""]
        assert all(at in covered[node.ref_doc_id or ""] for at in span if not text[at].isspace())
    # Merging the results again changes nothing.
    assert merger.postprocess_nodes(passages) == passages
