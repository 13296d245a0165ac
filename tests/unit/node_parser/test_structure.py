"""Where cuts stand: headings, paragraphs, sentences; what is never cut: fences, tables, rows, words, graphemes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.schema import Document

from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
from llama_index_contextual.readers.boundaries import (
    Rank,
    blocks,
    grapheme_boundaries,
    grapheme_floor,
    heading_offsets,
    structural_offsets,
)
from tests.unit.node_parser.invariants import GRAPHEME
from tests.unit.node_parser.texts import prose, split, texts


def heads(text: str, rank: Rank) -> list[str]:
    return [text[offset : offset + 4] for offset in structural_offsets(text)[rank]]


def test_sentences_end_at_stops_but_not_at_abbreviations_and_numbers() -> None:
    text = 'He met Dr. Who at 3. That e.g. cost 3.5 m. Then "why?" Nice!  End.) Last of Fig. 2 no. 4 etc. and on. Over.'
    assert heads(text, Rank.SENTENCE) == ["Nice", "End.", "Last", "Over"]


SENTENCES = {
    "今天好。明天呢？走吧": ["明天呢？", "走吧"],
    "هل تعرف؟ نعم": ["نعم"],
    "एक। दो": ["दो"],
    "「好。」他说": ["他说"],
    "Wirklich?! Ja": ["Ja"],
    "we need:\nthis and\nthat\n- one\n  * two\nend": ["this", "- on", "* tw"],  # list items, lines after a colon
}


@pytest.mark.parametrize("text", SENTENCES)
def test_sentences_end_at_the_marks_of_other_scripts_and_before_list_items(text: str) -> None:
    assert heads(text, Rank.SENTENCE) == SENTENCES[text]


def test_paragraphs_and_lines_are_told_apart_for_all_line_ends() -> None:
    for end in ("\n", "\r\n", "\r"):
        text = end.join(["one", "two", "", "three", "", " ", "four"])
        assert heads(text, Rank.PARAGRAPH) == ["thre", "four"], repr(end)
        assert "two" + end in {text[o : o + 3 + len(end)] for o in structural_offsets(text)[Rank.LINE]}


def test_marks_at_line_heads_are_headings_unless_a_reader_knows_better_or_code_surrounds_them() -> None:
    text = "# One\ntext\n```\n# comment\n```\n## Two\n#hashtag\n"
    assert [text[offset:][:6].strip() for offset in heading_offsets(text)] == ["# One", "## Two"]
    assert heading_offsets(text, [6]) == [6]
    assert heading_offsets(text, []) == []
    assert heading_offsets(text, [3, 10_000, -1]) == [], "offsets of another text"


def test_fences_and_tables_are_found() -> None:
    fence, table = "~~~sh\nls | wc\n\nx\n~~~", "| a |\n|---|\n| 1 |"
    text = f"a\n\n{fence}\n\nb | c\n\n{table}\nd\n```\nnever closed | x\n"
    assert [text[start:end] for start, end in blocks(text)] == [fence, table]


def wholes_in(size: int) -> str:
    code = "```python\n" + "".join(f"value_{n} = compute({n})\n\n" for n in range(size // 20)) + "```\n"
    table = "| name | value |\n|---|---|\n" + "".join(f"| row {n} | {n * 7} |\n" for n in range(size // 20))
    return "".join(prose(60 + 23 * n, seed=n) + "\n\n" + (code if n % 2 else table) + "\n" for n in range(16))


@pytest.mark.parametrize("size", [256, 384, 512, 800])
def test_a_fence_or_table_that_fits_is_whole_in_one_chunk(size: int) -> None:
    text = wholes_in(size)
    chunks = split(text, size=size, overlap=size // 10)
    spans = blocks(text)
    assert len(spans) == 16
    for start, end in spans:
        assert count_tokens(text[start:end]) <= size
        holders = [c for c in chunks if c.start_char_idx <= start and end <= c.end_char_idx]  # type: ignore[operator]
        assert holders, text[start : start + 40]
        divided = [c for c in chunks if start < c.end_char_idx < end]  # type: ignore[operator]
        assert not divided
        if text[start] == "`":
            assert not [c for c in chunks if start < c.start_char_idx < end], "half a fence at the head of a chunk"  # type: ignore[operator]


def test_a_fence_longer_than_half_a_segment_is_cut_between_its_lines() -> None:
    prose = " ".join(f"Pump {number} is inspected every week by the crew." for number in range(16))
    fence = "\n".join(["```", *(f"line {number} of the listing has some words" for number in range(60)), "```"])
    document = Document(text=f"{prose}\n\n{fence}\n")
    segments = [node.get_content() for node in SegmentNodeParser(segment_size=256, segment_overlap=0)([document])]
    assert segments[0].startswith("Pump 0")
    assert segments[0].endswith("has some words")  # not cut at the start of the fence
    assert all(segment.startswith("line ") for segment in segments[1:])


def test_a_table_that_does_not_fit_is_cut_between_its_rows_and_code_between_its_lines() -> None:
    rows = "".join(f"| {n} | the value of the row. It has two sentences | {n * n} |\n" for n in range(300))
    code = "```\n" + "".join(f"call({n}); print('a sentence. And one more')\n" for n in range(300)) + "```\n"
    for text in (rows, code):
        for chunk in split(text, size=256, overlap=25):
            assert chunk.start_char_idx == 0 or text[chunk.start_char_idx - 1] == "\n"
            assert text[chunk.end_char_idx : chunk.end_char_idx + 1] in ("", "\n")  # type: ignore[operator, misc]


def test_cuts_stand_at_headings_where_a_chunk_is_half_full() -> None:
    section = "Words of a section that go on for a while, with a comma. " * 12
    text = "".join(f"## Part {n}\n\n{section}\n\n" for n in range(30))
    chunks = split(text, size=256, overlap=0)
    assert all(chunk.text.startswith("## Part") for chunk in chunks)


def test_headings_that_the_reader_found_are_taken_where_the_text_has_no_marks() -> None:
    body = "Words that go on and on, with a comma and never a stop, " * 14
    parts = [f"Title {n}\n{body}\n" for n in range(12)]
    starts = [sum(map(len, parts[:n])) for n in range(12)]
    where = DocumentMap(headings=[Heading(start, 1, f"Title {n}") for n, start in enumerate(starts)])
    document = Document(id_="d", text="".join(parts), metadata=where.to_metadata())
    chunks = ChunkNodeParser(chunk_size=256, chunk_overlap=0)(SegmentNodeParser()([document]))
    assert [chunk.get_content().split("\n")[0] for chunk in chunks] == [f"Title {n}" for n in range(12)]
    assert [chunk.metadata["section"] for chunk in chunks] == [f"Title {n}" for n in range(12)]


def test_the_section_is_that_of_the_chunk_s_own_text_and_not_of_its_overlap() -> None:
    body = "Words of a section that go on for a while, with a comma. " * 14
    text = "".join(f"# Part {n}\n\n{body}\n\n" for n in range(8))
    where = DocumentMap(headings=[Heading(text.index(f"# Part {n}\n"), 1, f"Part {n}") for n in range(8)])
    document = Document(id_="d", text=text, metadata=where.to_metadata())
    nodes = ChunkNodeParser(chunk_size=256, chunk_overlap=25)([document])
    assert [node.metadata["section"] for node in nodes] == [f"Part {n}" for n in range(8)]
    assert all("# Part" not in node.get_content()[:20] for node in nodes[1:]), "the overlap stands first"


def test_the_section_is_the_one_in_which_most_of_the_chunk_stands() -> None:
    text = f"preamble\n\n# One\n\n{'first words. ' * 5}\n\n# Two\n\n{'second words. ' * 20}"
    where = DocumentMap(headings=[Heading(text.index("# One"), 1, "One"), Heading(text.index("# Two"), 1, "Two")])
    (chunk,) = ChunkNodeParser()([Document(text=text, metadata=where.to_metadata())])
    assert chunk.metadata["section"] == "Two"
    (short,) = ChunkNodeParser()([Document(text=text[: text.index("# Two")], metadata=where.to_metadata())])
    assert short.metadata["section"] == "One"


@settings(max_examples=100)
@given(text=texts, offset=st.integers(0, 3_000))
def test_grapheme_boundaries_are_those_of_the_whole_text(text: str, offset: int) -> None:
    expected = {match.start() for match in GRAPHEME.finditer(text)} | {0, len(text)}
    offset = min(offset, len(text))
    assert (grapheme_floor(text, offset) == offset) == (offset in expected)
    window = range(max(1, offset - 40), min(len(text), offset + 40))
    assert grapheme_boundaries(text, window) == [o for o in window if o in expected]


@pytest.mark.parametrize("shift", range(0, 100, 20))
def test_segments_share_less_rather_than_nothing_where_a_long_word_fills_the_place_to_begin(shift: int) -> None:
    long_word = "xDxxDDxD" * 14
    text = "a " * shift + " ".join(f"{long_word} " + "word " * 25 for _ in range(60))
    segments = SegmentNodeParser(segment_size=400, segment_overlap=80)([Document(id_="d", text=text)])
    assert len(segments) > 5
    for before, behind in pairwise(segments):
        assert behind.start_char_idx < before.end_char_idx, text[behind.start_char_idx - 200 : behind.start_char_idx]


def sections_of(text: str, headings: list[Heading]) -> list[tuple[int, str | None]]:
    document = Document(text=text, metadata=dict(DocumentMap(headings=headings).to_metadata()))
    nodes = ChunkNodeParser(chunk_size=100, chunk_overlap=0)([document])
    return [(node.start_char_idx or 0, node.metadata.get("section")) for node in nodes]


def test_headings_that_were_only_recognised_name_sections_but_are_not_cut_at() -> None:
    text = "\n".join(prose(80, seed=seed) for seed in range(6))
    starts = [at + 1 for at, char in enumerate(text) if char == "\n"]
    unmarked, recognised, marked = (
        sections_of(text, [Heading(start, 1, str(number), **how) for number, start in enumerate(at)])
        for at, how in (([], {}), (starts, {"is_marked": False}), (starts, {}))
    )
    assert [start for start, _ in recognised] == [start for start, _ in unmarked]
    assert {section for _, section in recognised} & {section for _, section in marked}


def test_a_chunk_with_many_recognised_headings_is_in_the_section_that_holds_half_of_it() -> None:
    text = "word " * 90
    parts = [Heading(10 + 50 * number, 2, f"1.{number}", is_marked=False) for number in range(8)]

    assert sections_of(text, [Heading(0, 1, "1", is_marked=False), *parts]) == [(0, "1")]
    assert sections_of(text, [Heading(0, 1, "1", is_marked=False), *parts[:1]]) == [(0, "1 > 1.0")]
    assert sections_of(text, [Heading(0, 1, "1"), *(Heading(p.start, 2, p.title) for p in parts)])[0][1] == "1 > 1.7"
    assert sections_of(text, parts[-1:]) == [(0, None)], "most of the chunk stands before the only heading"
