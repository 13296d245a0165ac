"""The tokenizer: offline, for special tokens, for any length; what the bare one does beside it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from itertools import pairwise
from typing import Any

import pytest
from llama_index.core.schema import Document, TextNode

from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
from llama_index_contextual.node_parser import tokens as spans
from llama_index_contextual.node_parser.tokens import PIECE_SIZE, TokenMap, get_tokenizer, pieces
from tests.unit.node_parser.texts import prose, split

_OFFLINE = """
import os, socket

def refuse(*arguments, **options):
    raise OSError("no network")

socket.socket.connect = socket.getaddrinfo = refuse
os.environ.pop("TIKTOKEN_CACHE_DIR", None)
from llama_index_contextual.node_parser import count_tokens
print(count_tokens("three small words"), os.environ.get("TIKTOKEN_CACHE_DIR"))
"""


def test_the_tokenizer_is_found_without_network_and_the_environment_stays_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", _OFFLINE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "None"]


def test_a_cache_folder_that_the_user_set_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "of-the-user")
    get_tokenizer.cache_clear()
    assert count_tokens("a") == 1
    assert os.environ["TIKTOKEN_CACHE_DIR"] == "of-the-user"


def test_many_threads_get_the_same_tokenizer_and_leave_no_trace() -> None:
    get_tokenizer.cache_clear()
    before, counts = os.environ.get("TIKTOKEN_CACHE_DIR"), []
    threads = [threading.Thread(target=lambda: counts.append(count_tokens("one two three"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [3] * 8
    assert os.environ.get("TIKTOKEN_CACHE_DIR") == before


def test_bare_tiktoken_raises_on_special_tokens_and_ours_counts_them_as_text() -> None:
    text = "a <|endoftext|> b"
    with pytest.raises(ValueError, match="endoftext"):
        get_tokenizer().encode(text)
    assert count_tokens(text) == len(get_tokenizer().encode(text, disallowed_special=())) > 3
    assert [chunk.text for chunk in split(text, size=50, overlap=0)] == [text]


def test_bare_tiktoken_raises_on_a_million_spaces_and_ours_reads_them_in_pieces() -> None:
    text = "a" + " " * 1_500_000 + "b"
    with pytest.raises(ValueError, match="stack"):
        get_tokenizer().encode(text, disallowed_special=())
    assert count_tokens(text) > 1_000
    assert all(stop - start <= PIECE_SIZE for start, stop in pieces(text))


def test_a_slice_of_800_tokens_may_have_more_when_encoded_alone_and_ours_never_has() -> None:
    text = prose(40_000, seed=11)
    ends = TokenMap.of(text).ends
    cuts = [0, *(int(ends[n - 1]) for n in range(800, len(ends), 800))]
    slices = [count_tokens(text[start:end].strip()) for start, end in pairwise(cuts)]
    assert max(slices) > 800
    chunks = split(text, size=800, overlap=80)
    assert max(count_tokens(chunk.text) for chunk in chunks) <= 800


def test_pieces_tile_any_text_for_any_size() -> None:
    for text in ("", "x", prose(5_000, seed=3), "字" * 250_000, " " * 250_000, "a b" * 1_000):
        for size in (1, 999, PIECE_SIZE, 10 * PIECE_SIZE):
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


def test_a_document_is_tokenised_once_for_both_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    real = spans.token_widths

    def counting(text: str, **options: Any) -> Any:
        encoded.append(len(text))
        return real(text, **options)

    monkeypatch.setattr(spans, "token_widths", counting)
    text = prose(8_000, seed=5)
    segmenter, chunker = small()
    segments = segmenter([Document(text=text)])
    assert len(segments) > 10
    assert len(chunker(segments)) > 100
    assert encoded[0] == len(text)
    assert sum(encoded[1:]) < 100 * len(segments), "but for the ends of each segment"


def test_segments_that_were_copied_or_stored_or_came_from_elsewhere_give_the_same_chunks() -> None:
    segmenter, chunker = small()
    segments = segmenter([Document(id_="d", text=prose(3_000, seed=6) + "字" * 3_000 + " \ud800 end. " * 400)])
    expected = chunker(segments)
    stored = [TextNode.from_dict(segment.to_dict()) for segment in segments]
    assert all(type(segment).class_name() == "TextNode" for segment in segments)
    for others in (stored, copy.deepcopy(segments), [segment.model_copy() for segment in segments]):
        assert chunker(others) == expected
    assert segments == segmenter([Document(id_="d", text=prose(3_000, seed=6) + "字" * 3_000 + " \ud800 end. " * 400)])


def test_a_segment_whose_text_a_component_changed_is_tokenised_anew() -> None:
    segmenter, chunker = small()
    segments = segmenter([Document(id_="d", text=prose(3_000, seed=7))])
    for segment in segments:
        segment.set_content(segment.get_content().replace("a", "字")[:-7])  # type: ignore[attr-defined]
    plain = [TextNode.from_dict(segment.to_dict()) for segment in segments]
    assert chunker(segments) == chunker(plain)
    assert max(count_tokens(chunk.get_content()) for chunk in chunker(segments)) <= 128
