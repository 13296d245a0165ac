"""What every chunk of every text keeps, whatever the text, the sizes and the overlap."""

from __future__ import annotations

import uuid
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import Document

from llama_index_contextual._utils.tokens import TokenMap
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.readers.boundaries import Rank, structural_offsets
from tests.unit.node_parser.invariants import GRAPHEME, check_chunks, check_segment_nodes, tokens
from tests.unit.node_parser.texts import prose, real_paragraphs, split, texts


@settings(max_examples=80)
@given(text=texts, size=st.sampled_from([4, 7, 12, 20, 33, 64, 128, 256]), share=st.sampled_from([0.0, 0.1, 0.3]))
def test_a_whole_document_is_cut_without_loss(text: str, size: int, share: float) -> None:
    chunks = ChunkNodeParser(chunk_size=size, chunk_overlap=int(share * size))([Document(id_="d", text=text)])
    check_chunks(text, chunks, size=size, overlap=int(share * size))  # type: ignore[arg-type]


@settings(max_examples=80)
@given(text=texts, size=st.sampled_from([7, 12, 20, 33]), segment_size=st.sampled_from([210, 400, 1_200]))
def test_segments_are_cut_without_loss(text: str, size: int, segment_size: int) -> None:
    parser = SegmentNodeParser(segment_size=segment_size, segment_overlap=segment_size // 10)
    segments = parser([Document(id_="d", text=text)])
    check_segment_nodes(text, segments, size=segment_size, overlap=segment_size // 10)  # type: ignore[arg-type]
    chunks = ChunkNodeParser(chunk_size=size, chunk_overlap=size // 10)(segments)
    check_chunks(text, chunks, size=size, overlap=size // 10)  # type: ignore[arg-type]


@settings(max_examples=5)
@given(
    data=st.data(),
    size=st.sampled_from([256, 384, 512, 800]),
    segment_size=st.sampled_from([2_000, 4_000, 8_000]),
    piece=st.integers(100, 100_000),
)
def test_real_documents_put_together_at_random_are_cut_without_loss(
    data: st.DataObject, size: int, segment_size: int, piece: int
) -> None:
    paragraphs = real_paragraphs()
    stretch = st.tuples(st.integers(0, len(paragraphs) - 1), st.integers(1, 60))
    stretches = data.draw(st.lists(stretch, min_size=2, max_size=8))
    text = "".join(part for first, count in stretches for part in paragraphs[first : first + count])
    segments = SegmentNodeParser(segment_size=segment_size, segment_overlap=segment_size // 10)([Document(text=text)])
    check_segment_nodes(text, segments, size=segment_size, overlap=segment_size // 10)  # type: ignore[arg-type]
    chunks = ChunkNodeParser(chunk_size=size, chunk_overlap=size // 10)(segments)
    check_chunks(text, chunks, size=size, overlap=size // 10)  # type: ignore[arg-type]
    assert TokenMap.from_text(text, piece_size=piece).ends.tolist() == TokenMap.from_text(text).ends.tolist()


@settings(max_examples=100)
@given(text=texts, bounds=st.tuples(st.integers(0, 500), st.integers(0, 500)))
def test_tokens_of_a_slice_are_counted_exactly_without_encoding_it(text: str, bounds: tuple[int, int]) -> None:
    start, end = sorted(min(bound, len(text)) for bound in bounds)
    assert TokenMap.from_text(text).count(start, end) == tokens(text[start:end])


@settings(max_examples=60)
@given(text=texts, piece=st.integers(1, 3_000))
def test_the_tokens_are_the_same_for_any_piece_size_fed_to_the_tokenizer(text: str, piece: int) -> None:
    assert TokenMap.from_text(text, piece_size=piece).ends.tolist() == TokenMap.from_text(text).ends.tolist()


@settings(max_examples=40)
@given(text=texts)
def test_the_same_text_gives_the_same_nodes_and_ids(text: str) -> None:
    first, second = (split(text, size=40, overlap=4, segment_size=240) for _ in range(2))
    assert [node.to_dict() for node in first] == [node.to_dict() for node in second]
    assert len({node.node_id for node in first}) == len(first)
    assert all(uuid.UUID(node.node_id).version == 5 for node in first)


@settings(max_examples=60)
@given(text=texts, bounds=st.tuples(st.integers(0, 300), st.integers(0, 300)))
def test_the_structure_of_a_window_is_that_of_the_whole_text(text: str, bounds: tuple[int, int]) -> None:
    start, stop = sorted(min(bound, len(text)) for bound in bounds)
    part, whole = structural_offsets(text, start, stop), structural_offsets(text)
    for rank in (Rank.LINE, Rank.PARAGRAPH):
        assert set(part[rank]) <= set(whole[rank]) | {o for o in part[rank] if text[start:o].isspace()}


@pytest.mark.parametrize("size", [256, 384, 512, 800])
def test_all_neighbours_share_5_to_15_per_cent_also_across_segments(size: int) -> None:
    text = prose(12_000, seed=size)
    chunks = split(text, size=size, overlap=size // 10)
    check_chunks(text, chunks, size=size, overlap=size // 10)
    assert len({chunk.metadata["segment_index"] for chunk in chunks}) > 2
    for before, behind in pairwise(chunks):
        assert behind.start_char_idx < before.end_char_idx  # type: ignore[operator]
        assert 0.05 * size <= tokens(text[behind.start_char_idx : before.end_char_idx]) <= 0.15 * size


def test_the_overlap_of_segments_is_chunked_once() -> None:
    text = prose(30_000, seed=1)
    segments = SegmentNodeParser()([Document(id_="doc", text=text)])
    assert len(segments) > 4
    spans = [(s.start_char_idx, s.end_char_idx) for s in segments]  # type: ignore[attr-defined]
    assert all(behind[0] < before[1] for before, behind in pairwise(spans)), "segments overlap"
    covered = sum(tokens(chunk.get_content()) for chunk in ChunkNodeParser()(segments))
    assert covered <= 1.16 * tokens(text), "chunked once, but for the overlap of a tenth"


def test_words_at_the_head_leave_most_segments_as_they_were() -> None:
    text, head = prose(60_000, seed=3), prose(60, seed=4)
    before, after = ([node.text for node in SegmentNodeParser()([Document(text=one)])] for one in (text, head + text))  # type: ignore[attr-defined]
    assert sum(segment in before for segment in after) >= 0.75 * len(after)


def test_the_last_chunk_is_never_a_scrap() -> None:
    for seed in range(20):
        chunks = split(prose(500 + 37 * seed, seed=seed), size=256, overlap=25)
        if len(chunks) > 1:
            assert chunks[-1].metadata["token_count"] >= 0.3 * 256


LONG = {"x": 100_000, "👨‍👩‍👧‍👦": 3_000, "🇩🇪": 3_000, "क्षि": 3_000, "字": 20_000, "a" + 10_000 * "\u0301": 1}


@pytest.mark.parametrize("unit", LONG, ids=len)
def test_a_long_text_without_a_place_to_cut_is_cut_between_graphemes(unit: str) -> None:
    text = unit * LONG[unit]
    starts = {match.start() for match in GRAPHEME.finditer(text)}
    for nodes in ([Document(text=text)], SegmentNodeParser()([Document(text=text)])):
        chunks = ChunkNodeParser()(nodes)
        assert chunks[0].start_char_idx == 0  # type: ignore[attr-defined]
        assert chunks[-1].end_char_idx == len(text)  # type: ignore[attr-defined]
        assert all(tokens(chunk.get_content()) <= 800 for chunk in chunks)
        assert len(starts) == 1 or starts.issuperset(chunk.start_char_idx for chunk in chunks)  # type: ignore[attr-defined]
