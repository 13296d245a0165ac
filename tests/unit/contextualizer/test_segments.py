"""Segments rebuilt from chunks: exact text, overlap, holes, and nodes of other parsers."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import BaseNode, Document, TextNode

from llama_index_contextual.contextualizer.base import HOLE, Segment, segments
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
from tests.integration.contextualizer.samples import REPORT, chunks, loose


def parsed(text: str, *, segment_size: int, chunk_size: int) -> tuple[list[TextNode], list[BaseNode]]:
    cut = SegmentNodeParser(segment_size=segment_size, segment_overlap=segment_size // 4)
    pieces = cut([Document(id_="d", text=text)])
    return list(pieces), list(ChunkNodeParser(chunk_size=chunk_size, chunk_overlap=chunk_size // 10)(pieces))  # type: ignore[arg-type]


def squeezed(text: str) -> str:
    return " ".join(text.split())


words = st.text("abcdefghij", min_size=1, max_size=9)
sentences = st.lists(words, min_size=1, max_size=12).map(lambda found: " ".join(found) + ".")
paragraphs = st.lists(sentences, min_size=1, max_size=5).map(" ".join)
bodies = st.lists(paragraphs, min_size=1, max_size=12).map("\n\n".join)


@settings(max_examples=60)
@given(text=bodies | st.text(min_size=1, max_size=400), segment_size=st.integers(20, 160))
def test_the_text_of_every_segment_is_rebuilt_with_its_overlap(text: str, segment_size: int) -> None:
    cut, nodes = parsed(text, segment_size=segment_size, chunk_size=max(4, segment_size // 5))
    rebuilt = segments(nodes, segment_size=8000)
    with_chunks = {node.metadata["segment_index"] for node in nodes}
    expected = [node.text for at, node in enumerate(cut) if at in with_chunks]
    assert [squeezed(segment.text) for segment in rebuilt] == [squeezed(text) for text in expected]
    assert [chunk for segment in rebuilt for chunk in segment.chunks] == nodes
    assert HOLE.strip() not in "".join(segment.text for segment in rebuilt) or HOLE.strip() in text


def test_a_segment_has_the_title_and_the_opening_of_its_document() -> None:
    first, *rest = (s for s in segments(chunks(), segment_size=8000) if s.doc_id == "report.md")
    assert rest
    assert (first.title, first.file_name) == ("Orlen Valve Works, second quarter", "report.md")
    assert {segment.opening for segment in (first, *rest)} == {squeezed(chunks()[0].get_content())}
    assert [segment.begins_document for segment in (first, *rest)] == [True] + [False] * len(rest)
    assert (first.section, rest[-1].section) == ("Results", "Outlook")


def test_documents_keep_the_order_of_their_first_chunk() -> None:
    mixed = [*loose("b1", doc_id="b"), *loose("a1", "a2", doc_id="a"), *loose("c1", doc_id="c")]
    assert [segment.doc_id for segment in segments(mixed[::-1], segment_size=10)] == ["c", "a", "b"]
    assert segments([], segment_size=10) == []


# ---- holes -----------------------------------------------------------------------------------------------------------


def test_a_missing_chunk_leaves_a_mark_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    _, nodes = parsed(REPORT, segment_size=400, chunk_size=16)
    present = [*nodes[:2], *nodes[4:]]
    assert len(present) > 2
    with caplog.at_level(logging.WARNING, logger="llama_index_contextual"):
        (segment,) = segments(present, segment_size=8000)
    start = present[2].start_char_idx  # type: ignore[attr-defined]
    assert [record.getMessage() for record in caplog.records] == [f"Chunks of d are missing before character {start}."]
    before, after = segment.text.split(HOLE)
    assert before.endswith(present[1].get_content())
    assert after.startswith(present[2].get_content())


# ---- nodes of other parsers ------------------------------------------------------------------------------------------


def contents(segment: Segment) -> list[str]:
    return [chunk.get_content() for chunk in segment.chunks]


def test_nodes_without_segments_are_put_into_windows() -> None:
    nodes = loose(*(f"Sentence number {n} of the text." for n in range(10)))
    size = count_tokens(nodes[0].get_content())
    windows = segments(nodes, segment_size=3 * size)
    assert [len(window.chunks) for window in windows] == [3, 3, 3, 1]
    assert windows[0].text == "\n\n".join(contents(windows[0]))
    assert [content for window in windows for content in contents(window)] == [n.get_content() for n in nodes]


def test_a_node_larger_than_a_window_is_a_window() -> None:
    nodes = loose("small", "word " * 50, "small too")
    assert [len(window.chunks) for window in segments(nodes, segment_size=10)] == [1, 1, 1]


def test_a_window_ends_with_its_last_node_even_if_the_next_one_overlaps() -> None:
    text = " ".join(f"Sentence number {n} of the text." for n in range(40))
    nodes = list(SentenceSplitter(chunk_size=40, chunk_overlap=15)([Document(text=text)]))
    windows = segments(nodes, segment_size=100)
    assert len(windows) > 2
    for window, following in pairwise(windows):
        last, first = window.chunks[-1], following.chunks[0]
        assert first.start_char_idx < last.end_char_idx  # type: ignore[attr-defined]
        assert window.text.endswith(last.get_content())
        assert following.text.startswith(first.get_content())
        assert window.text in text


def test_nodes_without_a_document_are_their_own_documents() -> None:
    nodes = [TextNode(id_="x", text="One."), TextNode(id_="y", text="Two.")]
    assert [(s.doc_id, s.text) for s in segments(nodes, segment_size=10)] == [("x", "One."), ("y", "Two.")]


def test_chunks_with_a_segment_but_without_offsets_are_joined_in_order() -> None:
    # ChunkNodeParser behind a parser that gives no offsets.
    parents = loose("First part of it. " * 10, "Second part of it. " * 10)
    nodes = list(ChunkNodeParser(chunk_size=20, chunk_overlap=0)(parents))
    assert {getattr(node, "start_char_idx", None) for node in nodes} == {None}
    result = segments(nodes, segment_size=8000)
    assert [segment.text.split()[0] for segment in result] == ["First", "Second"]
    for segment in result:
        assert segment.text == "\n\n".join(contents(segment))


def test_the_work_grows_with_the_document_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    real = TextNode.get_content

    def counted(self: TextNode, *arguments: Any, **options: Any) -> str:
        nonlocal calls
        calls += 1
        return real(self, *arguments, **options)

    monkeypatch.setattr(TextNode, "get_content", counted)
    numbers = []
    for length in (500, 1_000):
        text = "".join(f"Paragraph {number} says that the pump was checked.\n\n" for number in range(length))
        _, nodes = parsed(text, segment_size=200, chunk_size=40)
        calls = 0
        assert len(segments(nodes, segment_size=200)) > length / 20
        numbers.append(calls)
    assert numbers[1] < 2.5 * numbers[0]
