"""The response of a search: complete as JSON, readable as text, safe as HTML and in a terminal."""

from __future__ import annotations

import dataclasses
import json

import pytest
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from llama_index_contextual.index.base import Chunk
from llama_index_contextual.metadata import Place
from llama_index_contextual.search.response import IndexScore, Mark, Source
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk

ATTACK = "<script>alert(1)</script> & \"quoted\" 'too' \x1b[31mred\x1b[0m \u202ecba"


def node(text: str = "Revenue grew by 3 %.", **metadata: object) -> TextNode:
    return TextNode(
        id_="n1",
        text=text,
        start_char_idx=10,
        end_char_idx=30,
        metadata={
            "file_name": "acme.pdf",
            "file_path": "reports/acme.pdf",
            "page_start": 3,
            "page_end": 4,
            "page_label": "iii",
            "section": "2 Results",
            "title": "ACME Q2",
            "segment_index": 1,
            "chunk_index": 7,
            "context": "From ACME's second quarter.",
            **metadata,
        },
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="reports/acme.pdf")},
    )


def hit(**changes: object) -> RetrievedChunk:
    values = {
        "node": node(),
        "score": 0.5,
        "semantic": IndexScore(score=0.8, rank=2),
        "lexical": IndexScore(score=3.25, rank=1, matched_terms=("revenu",)),
    }
    return RetrievedChunk(**{**values, **changes})  # type: ignore[arg-type]


def response(*hits: NodeWithScore, **changes: object) -> RetrievalResponse:
    chunks = tuple(RetrievedChunk.of(rank, one) for rank, one in enumerate(hits, start=1))
    values = {"query": "ACME revenue", "mode_requested": "hybrid", "mode_used": "hybrid", "results": chunks}
    return RetrievalResponse(**{**values, **changes})  # type: ignore[arg-type]


# ---- one result ------------------------------------------------------------------------------------------------------


def test_a_result_has_its_source_and_its_evidence() -> None:
    chunk = RetrievedChunk.of(1, hit())
    assert (chunk.rank, chunk.node_id, chunk.score) == (1, "n1", 0.5)
    assert chunk.text == "Revenue grew by 3 %."
    assert chunk.context == "From ACME's second quarter."
    assert chunk.relevance is None
    assert chunk.source == Source(
        file_name="acme.pdf",
        file_path="reports/acme.pdf",
        doc_id="reports/acme.pdf",
        page_start=3,
        page_end=4,
        page_label="iii",
        section="2 Results",
        title="ACME Q2",
        segment_index=1,
        chunk_index=7,
        start_char=10,
        end_char=30,
    )
    assert str(chunk.source) == "acme.pdf, pages 3–4, section 2 Results"


def test_a_node_of_any_parser_makes_a_result() -> None:
    chunk = RetrievedChunk.of(2, NodeWithScore(node=TextNode(id_="x", text="Bare."), score=None))
    assert (chunk.score, chunk.context, chunk.semantic, chunk.lexical) == (0.0, None, None, None)
    assert set(dataclasses.asdict(chunk.source).values()) == {None}
    assert str(chunk.source) == "unknown source"


TEXT = "The lease ends in May. The deposit is two rents. Pets are allowed."
PLACES = json.dumps([[10, 3, "iii", "2 Term"], [33, 4, "iv", "3 Deposit"]])


def marked(text: str = "The deposit is two rents.") -> RetrievedChunk:
    one = node(TEXT, places=PLACES).model_copy(update={"end_char_idx": 10 + len(TEXT)})
    start = TEXT.index(text)
    return hit(node=one, spotlight=Mark.of(Chunk.from_node(one), start, start + len(text)))


def test_a_mark_has_its_offsets_in_the_document_and_its_own_page_and_section() -> None:
    chunk = RetrievedChunk.of(1, marked())
    mark = chunk.spotlight
    assert mark is not None
    assert (mark.start, mark.end, mark.text) == (33, 58, "The deposit is two rents.")
    assert str(chunk.place) == "acme.pdf, page 4, section 3 Deposit"
    assert str(chunk.source) == "acme.pdf, pages 3–4, section 2 Term; 3 Deposit"
    across = marked("May. The deposit")
    assert str(across.place) == "acme.pdf, pages 3–4, section 2 Term"


def test_a_mark_before_the_first_heading_is_in_no_section() -> None:
    source = Source(section="2 Results", page_start=3, page_end=4)
    before, after = Place(10, 3, None, None), Place(40, 4, None, "1 Term")
    assert source.at(10, 20, [before, after]).section is None
    assert source.at(10, 20, [before]).section == "2 Results", "a section that the user gave"


def test_without_a_mark_the_passage_is_the_place() -> None:
    chunk = RetrievedChunk.of(1, hit())
    assert chunk.spotlight is None
    assert chunk.place == chunk.source


def test_an_excerpt_begins_with_the_marked_sentence() -> None:
    chunk = RetrievedChunk.of(1, marked())
    assert chunk.excerpt("deposit", 40) == "… The deposit is two rents. Pets are allowed."


def test_a_mark_is_part_of_the_json_form_and_survives_serialisation() -> None:
    one = marked()
    (values,) = response(one).to_dict()["results"]
    place = {"page_start": 4, "page_end": 4, "page_label": "iv", "section": "3 Deposit"}
    assert values["spotlight"] == {"start": 33, "end": 58, "text": "The deposit is two rents.", **place}
    assert RetrievedChunk.from_dict(json.loads(json.dumps(one.to_dict()))).spotlight == one.spotlight


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def test_to_dict_is_complete_and_json_compatible() -> None:
    original = response(hit(), hit(semantic=None), hit(lexical=None), warnings=("A warning.",), version="v000001")
    data = json.loads(json.dumps(original.to_dict()))
    assert data == original.to_dict()
    assert {key: data[key] for key in data if key != "results"} == {
        "query": "ACME revenue",
        "searched": "ACME revenue",
        "mode_requested": "hybrid",
        "mode_used": "hybrid",
        "version": "v000001",
        "confidence": None,
        "confidence_level": None,
        "warnings": ["A warning."],
    }
    first, second, third = data["results"]
    assert first["semantic"] == {"score": 0.8, "rank": 2}
    assert first["lexical"] == {"score": 3.25, "rank": 1, "matched_terms": ["revenu"]}
    assert (second["semantic"], third["lexical"]) == (None, None)
    assert first["source"]["page_label"] == "iii"
    assert "node" not in first


def test_an_empty_answer_is_complete_too() -> None:
    empty = response()
    assert json.loads(json.dumps(empty.to_dict()))["results"] == []
    assert list(empty) == empty.to_nodes() == []
    assert repr(empty) == "0 results for 'ACME revenue' (hybrid)"
    assert "<table>" in empty._repr_html_()


# ---- as a sequence and as nodes --------------------------------------------------------------------------------------


def test_a_response_is_a_sequence_of_its_results() -> None:
    inputs = response(hit(), hit(score=0.1))
    assert len(inputs) == 2
    assert [chunk.rank for chunk in inputs] == [1, 2]
    assert inputs[1].score == 0.1
    with pytest.raises(IndexError):
        inputs[2]


def test_evidence_is_attached_to_nodes_not_to_shared_metadata() -> None:
    original = hit()
    (again,) = response(original).to_nodes()
    assert again == RetrievedChunk.of(1, original)
    assert again.node is original.node
    assert set(again.node.metadata) == set(node().metadata)
    assert RetrievedChunk.class_name() == "RetrievedChunk"


# ---- as text and HTML ------------------------------------------------------------------------------------------------


def test_the_text_form_has_a_line_per_result_and_per_warning() -> None:
    long = hit(node=node(text="word " * 100))
    stated = response(hit(), long, warnings=("No lexical index.",), confidence=0.923, confidence_level="high")
    assert repr(stated) == (
        "2 results for 'ACME revenue' (hybrid, confidence 0.92, high)\n"
        "  ! No lexical index.\n"
        "  1. acme.pdf, pages 3–4, section 2 Results  Revenue grew by 3 %.\n"
        f"  2. acme.pdf, pages 3–4, section 2 Results  {('word ' * 100)[:89]}…"
    )


def test_html_is_escaped_wherever_it_comes_from() -> None:
    hostile = hit(node=node(text=ATTACK, context=ATTACK, file_name=ATTACK, section=ATTACK))
    html = response(hostile, query=ATTACK, mode_used=ATTACK, warnings=(ATTACK,))._repr_html_()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 6
    assert "0.5000" in html


def test_control_characters_and_bidi_marks_are_escaped() -> None:
    hostile = response(
        hit(node=node(text=ATTACK, file_name=ATTACK, section="a\nb\x9bc")), query=ATTACK, warnings=(ATTACK,)
    )
    for shown in (repr(hostile), str(hostile[0].source), hostile._repr_html_().replace("\n", " ")):
        assert not any(sign in shown for sign in "\x1b\x9b\u202e")
    assert len(repr(hostile).splitlines()) == 3


def test_results_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        response().query = "other"  # type: ignore[misc]
