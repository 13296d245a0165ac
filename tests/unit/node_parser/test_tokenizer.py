"""The tokenizer: offline, for special tokens, for any length; what the bare one does beside it."""

from __future__ import annotations

import copy
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual._utils.tokens import PIECE_SIZE, get_tokenizer, pieces
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
from tests.unit.node_parser.texts import prose, split


@pytest.mark.parametrize("folder", [None, "of-the-user"])
def test_many_threads_get_the_same_tokenizer_and_leave_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    if folder is not None:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    get_tokenizer.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(count_tokens, ["one two three"] * 8)) == [3] * 8
    assert os.environ.get("TIKTOKEN_CACHE_DIR") == folder


def test_a_million_spaces_are_read_in_pieces() -> None:
    text = "a" + " " * 1_200_000 + "b"
    assert count_tokens(text) > 1_000
    assert all(stop - start <= PIECE_SIZE for start, stop in pieces(text))
    assert [chunk.text for chunk in split(text, size=800, overlap=80)] == ["a", "b"]


@pytest.mark.parametrize("size", [1, 999, PIECE_SIZE, 10 * PIECE_SIZE])
def test_pieces_tile_any_text_for_any_size(size: int) -> None:
    long = PIECE_SIZE + 10
    for text in ("", "x", prose(1_000, seed=3), "a b" * 1_000, *(["字" * long, " " * long] if size > 1 else [])):
        spans = list(pieces(text, size))
        assert "".join(text[start:stop] for start, stop in spans) == text
        assert all(0 < stop - start <= PIECE_SIZE for start, stop in spans)


def test_a_character_of_several_tokens_is_never_divided() -> None:
    text = "𓀀𓀁𓀂 " * 40
    assert count_tokens("𓀀") > 1
    for chunk in ChunkNodeParser(chunk_size=8, chunk_overlap=0)(split(text, size=100, overlap=0)):
        chunk.get_content().encode("utf-8")
        assert set(chunk.get_content()) <= set(text)


def small() -> tuple[SegmentNodeParser, ChunkNodeParser]:
    return SegmentNodeParser(segment_size=1_000, segment_overlap=100), ChunkNodeParser(chunk_size=128, chunk_overlap=12)


def test_segments_that_were_copied_or_stored_or_came_from_elsewhere_give_the_same_chunks() -> None:
    segmenter, chunker = small()
    text = prose(1_500, seed=6) + "字" * 1_500
    segments = segmenter([Document(id_="d", text=text)])
    expected = chunker(segments)
    stored = [TextNode.from_dict(segment.to_dict()) for segment in segments]
    for others in (stored, copy.deepcopy(segments), [segment.model_copy() for segment in segments]):
        assert chunker(others) == expected
    assert segments == segmenter([Document(id_="d", text=text)])
