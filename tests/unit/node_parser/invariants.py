"""What must hold for the chunks of a document, checked without the package's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import regex
import tiktoken
from llama_index.core.schema import TextNode

from llama_index_contextual._utils.tokens import get_tokenizer

WORD_RUN = regex.compile(r"[\w\p{L}\p{M}\p{N}]+")
GRAPHEME = regex.compile(r"\X")


@lru_cache(maxsize=1)
def encoding() -> tiktoken.Encoding:
    return get_tokenizer()


@lru_cache(maxsize=1_024)  # One long word may stand at the edges of hundreds of chunks.
def tokens(text: str) -> int:
    return len(encoding().encode(text, disallowed_special=()))


def check_chunks(text: str, chunks: Sequence[TextNode], *, size: int, overlap: int) -> None:
    """Assert all that DESIGN promises of the chunks of one document, given in order."""
    check_slices(text, chunks)
    check_gaps(text, chunks)
    check_sizes(chunks, size)
    check_cuts(text, chunks, size)
    check_overlaps(text, chunks, overlap, size)
    check_segments(chunks)


def check_segment_nodes(text: str, segments: Sequence[TextNode], *, size: int, overlap: int) -> None:
    """Assert all that DESIGN promises of the segments of one document, given in order."""
    covered = 0
    for number, segment in enumerate(segments):
        start, end = segment.start_char_idx, segment.end_char_idx
        assert segment.text == text[start:end]
        assert (segment.metadata["segment_index"], segment.metadata["segment_start"]) == (number, start)
        assert not text[covered:start].strip(), "a gap with text"
        assert end > covered, "a segment that adds nothing"
        assert tokens(segment.text) <= size
        assert tokens(text[start:covered]) <= overlap
        covered = end
    assert not text[covered:].strip(), "text after the last segment"
    check_cuts(text, segments, size // 4)


def check_slices(text: str, chunks: Sequence[TextNode]) -> None:
    for chunk in chunks:
        assert chunk.text == text[chunk.start_char_idx : chunk.end_char_idx]
        assert chunk.text, "an empty chunk"
        assert chunk.text == chunk.text.strip()


def check_gaps(text: str, chunks: Sequence[TextNode]) -> None:
    covered, last_start = 0, -1
    for chunk in chunks:
        assert chunk.start_char_idx > last_start
        assert not text[covered : chunk.start_char_idx].strip(), "a gap with text"
        assert chunk.end_char_idx > covered, "a chunk that adds nothing"
        covered, last_start = chunk.end_char_idx, chunk.start_char_idx
    assert not text[covered:].strip(), "text after the last chunk"


def check_sizes(chunks: Sequence[TextNode], size: int) -> None:
    for chunk in chunks:
        count = tokens(chunk.text)
        assert chunk.metadata["token_count"] == count
        assert count <= size or len(chunk.text) == 1, f"{count} tokens"


def check_cuts(text: str, chunks: Sequence[TextNode], size: int) -> None:
    words = {offset: run for run in WORD_RUN.finditer(text) for offset in range(run.start() + 1, run.end())}
    inside = {offset: run for run in GRAPHEME.finditer(text) for offset in range(run.start() + 1, run.end())}
    for chunk in chunks:
        for offset in (chunk.start_char_idx, chunk.end_char_idx):
            edge = text[chunk.end_char_idx :] if offset == chunk.end_char_idx else text[:offset]
            if not edge.strip():
                continue
            if offset in words:
                # A mark at the head of a word belongs to the character before it.
                start, end = words[offset].span()
                word = text[inside[start].start() if start in inside else start : end]
                assert tokens(word) > size, f"a word is cut: {word!r} at {offset}"
            if offset in inside:
                cluster = inside[offset].group()
                # A mark behind a space forms a cluster with it, and a chunk has no white space at its ends.
                loose = cluster[0].isspace() or cluster[-1].isspace()
                assert loose or tokens(cluster) > size, f"a grapheme is cut: {cluster!r}"


def check_overlaps(text: str, chunks: Sequence[TextNode], overlap: int, size: int) -> None:
    for before, behind in pairwise(chunks):
        shared = text[behind.start_char_idx : before.end_char_idx]
        if behind.start_char_idx >= before.end_char_idx:
            if overlap >= 16:
                assert not _has_word_start(before, behind, overlap, size), "no overlap though a word begins there"
            continue
        count = tokens(shared)
        # Half to one and a half times the wanted overlap: 5 to 15 % of a chunk when 10 % are wanted.
        slack = 0 if overlap >= 16 else 2
        assert 0.5 * overlap - slack <= count <= 1.5 * overlap + slack, f"{count} tokens shared"
        assert behind.start_char_idx == 0 or not WORD_RUN.fullmatch(
            text[behind.start_char_idx - 1 : behind.start_char_idx + 1]
        )


def _has_word_start(before: TextNode, behind: TextNode, overlap: int, size: int) -> bool:
    """Return whether an ordinary word begins where the overlap may begin and nothing forbids it."""
    tail, first = before.text, behind.text.split(None, 1)[0]
    if "```" in tail or "~~~" in tail or "|" in tail:
        return False
    for match in re.finditer(r"(?<=[a-z] )[a-z]", tail):
        count = tokens(tail[match.start() :])
        if 0.6 * overlap + 2 <= count <= 1.4 * overlap - 2 and count + tokens(first) + 4 <= size:
            return True
    return False


def check_segments(chunks: Sequence[TextNode]) -> None:
    indexes = [chunk.metadata["segment_index"] for chunk in chunks]
    assert indexes == sorted(indexes)
    assert [chunk.metadata["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert chunk.metadata["segment_start"] <= chunk.start_char_idx
        assert chunk.end_char_idx <= chunk.metadata["segment_end"]
