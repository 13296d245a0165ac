"""SegmentNodeParser and ChunkNodeParser: what every chunk of every text keeps, on arbitrary and on real text."""

from __future__ import annotations

import random
import uuid
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, NodeRelationship, TextNode, TransformComponent
from pydantic import ValidationError

from llama_index_contextual.metadata import HEADINGS, PAGES, DocumentMap, Heading
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
from llama_index_contextual.node_parser.tokens import TokenMap
from tests.unit.node_parser.invariants import check_chunks
from tests.support.shared import shared_data

PIECES = (
    "The supplier shall deliver the goods within thirty days. ",
    "Revenue grew by 3 %.\n\n",
    "# Results\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "```python\nprint('x')\n```\n",
    "请在三十天内交货。质量必须符合标准。",
    "สินค้าต้องส่งภายในสามสิบวัน",
    "يجب تسليم البضائع خلال ثلاثين يوما. ",
    "👩‍👩‍👧‍👦🇩🇪é ",
    "Donaudampfschifffahrtsgesellschaftskapitän" * 3 + " ",
    "\t \n",
    "1.2 Lease approval\n",
)


def words(count: int, seed: int) -> str:
    """Return sentences of made-up words, in paragraphs."""
    source = random.Random(seed)
    out = []
    for number in range(count):
        word = "".join(source.choice("aeioubcdfglmnprst") for _ in range(source.randint(2, 9)))
        out.append(word + (". " if number % 11 == 10 else " ") + ("\n\n" if number % 97 == 96 else ""))
    return "".join(out)


def parse(text: str, *, size: int, overlap: int, segment: int = 8000) -> list[TextNode]:
    """Return the chunks of a text by way of segments."""
    document = Document(id_="doc", text=text)
    segments = SegmentNodeParser(segment_size=segment, segment_overlap=segment // 10)([document])
    return ChunkNodeParser(chunk_size=size, chunk_overlap=overlap)(segments)  # type: ignore[return-value]


@settings(max_examples=150)
@given(text=st.text(max_size=600), size=st.integers(8, 60))
def test_any_unicode_text_is_cut_without_loss(text: str, size: int) -> None:
    check_chunks(text, parse(text, size=size, overlap=0, segment=4 * size), size=size, overlap=0)


@settings(max_examples=100)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=60), size=st.integers(40, 120))
def test_any_mixture_of_scripts_tables_and_code_is_cut_without_loss(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    chunks = parse(text, size=size, overlap=0, segment=5 * size)
    check_chunks(text, chunks, size=size, overlap=0)


@pytest.mark.parametrize("size", [256, 384, 512, 800])
def test_prose_is_cut_into_chunks_that_share_a_tenth(size: int) -> None:
    text = words(6_000, seed=size)
    chunks = parse(text, size=size, overlap=size // 10)
    check_chunks(text, chunks, size=size, overlap=size // 10)
    shared = [
        count_tokens(text[behind.start_char_idx : before.end_char_idx])
        for before, behind in pairwise(chunks)
        if behind.start_char_idx < before.end_char_idx
    ]
    assert len(shared) == len(chunks) - 1
    assert all(0.05 * size <= count <= 0.15 * size for count in shared)


def test_every_chunk_lies_in_one_segment_and_what_segments_share_is_chunked_once() -> None:
    text = words(30_000, seed=1)
    segments = SegmentNodeParser()([Document(id_="doc", text=text)])
    chunks = ChunkNodeParser()(segments)
    assert len(segments) > 4
    spans = [(s.start_char_idx, s.end_char_idx) for s in segments]  # type: ignore[attr-defined]
    assert all(behind[0] < before[1] for before, behind in pairwise(spans)), "segments overlap"
    for chunk in chunks:
        start, end = spans[chunk.metadata["segment_index"]]
        assert start <= chunk.start_char_idx < chunk.end_char_idx <= end  # type: ignore[attr-defined]
    covered = sum(count_tokens(chunk.get_content()) for chunk in chunks)
    assert covered <= 1.16 * count_tokens(text), "chunked once, but for the overlap of a tenth"


def test_the_same_document_gives_the_same_nodes_and_ids() -> None:
    text = words(3_000, seed=2)
    first, second = parse(text, size=200, overlap=20), parse(text, size=200, overlap=20)
    assert [node.to_dict() for node in first] == [node.to_dict() for node in second]
    assert all(uuid.UUID(node.node_id).version == 5 for node in first)
    assert len({node.node_id for node in first}) == len(first)


@settings(max_examples=60)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=80), piece=st.integers(50, 2_000))
def test_the_tokens_do_not_depend_on_the_size_of_the_pieces(pieces: list[str], piece: int) -> None:
    text = "".join(pieces)
    assert TokenMap.of(text, piece_size=piece).ends.tolist() == TokenMap.of(text).ends.tolist()


def test_words_at_the_head_leave_most_segments_as_they_were() -> None:
    for name, text in {"made up": words(60_000, seed=3)}.items():
        before = {node.get_content() for node in SegmentNodeParser()([Document(text=text)])}
        after = [node.get_content() for node in SegmentNodeParser()([Document(text=words(60, seed=4) + text)])]
        assert sum(segment in before for segment in after) >= 0.75 * len(after), name


def test_words_at_the_head_of_the_corpora_leave_three_quarters_of_the_segments() -> None:
    folder = shared_data("corpora") / "documents"
    same = total = 0
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8")
        before = {node.get_content() for node in SegmentNodeParser()([Document(text=text)])}
        after = [node.get_content() for node in SegmentNodeParser()([Document(text=words(60, seed=5) + text)])]
        same += sum(segment in before for segment in after)
        total += len(after)
    assert same >= 0.75 * total


def test_real_documents_are_cut_without_loss() -> None:
    folder = shared_data("corpora") / "documents"
    for path in sorted(folder.iterdir()):
        text = path.read_text(encoding="utf-8")[:60_000]
        check_chunks(text, parse(text, size=800, overlap=80), size=800, overlap=80)


def test_a_chunk_carries_place_links_and_nothing_else_of_ours_in_the_embedded_text() -> None:
    body = words(900, seed=6)
    text = f"Intro\n{body}"
    half = len(text) // 2
    where = DocumentMap(page_starts=(0, half), page_labels=("i", "1"), headings=(Heading(0, 1, "Intro"),))
    document = Document(
        id_="d/a.pdf",
        text=text,
        metadata={
            "file_name": "a.pdf",
            "file_path": "d/a.pdf",
            "title": "A",
            "quarter": "Q2",
            "secret": "x",
            **where.to_metadata(),
        },
        excluded_embed_metadata_keys=["secret"],
        excluded_llm_metadata_keys=["secret"],
    )
    chunks = ChunkNodeParser(chunk_size=300, chunk_overlap=30)(SegmentNodeParser()([document]))
    first, last = chunks[0], chunks[-1]
    assert PAGES not in first.metadata
    assert HEADINGS not in first.metadata
    assert first.metadata["page_start"] == 1
    assert first.metadata["page_label"] == "i"
    assert last.metadata["page_end"] == 2
    assert first.metadata["section"] == "Intro"
    assert first.metadata["source"].startswith("Source: a.pdf, page")
    assert first.get_content(MetadataMode.EMBED) == f"Q2\n\n{first.get_content()}"
    assert first.get_content(MetadataMode.LLM).startswith("Source: a.pdf, page")
    assert "x" not in first.get_content(MetadataMode.LLM).split("\n")
    assert first.ref_doc_id == "d/a.pdf"
    assert first.relationships[NodeRelationship.NEXT].node_id == chunks[1].node_id  # type: ignore[union-attr]
    assert all(info.metadata == {} for info in first.relationships.values())  # type: ignore[union-attr]
    assert NodeRelationship.PREVIOUS not in first.relationships
    assert document.metadata["quarter"] == "Q2"
    assert PAGES in document.metadata, "the input is not changed"


def test_stock_parsers_take_the_first_place_of_a_repeated_text_and_ours_the_right_one() -> None:
    text = "Same words here.\n\n" * 40
    ours = parse(text, size=20, overlap=0)
    assert [node.text for node in ours] == [text[n.start_char_idx : n.end_char_idx] for n in ours]
    assert len({node.start_char_idx for node in ours}) == len(ours)


def test_to_dict_and_back_gives_an_equal_parser_where_the_stock_one_fails() -> None:
    for parser in (
        SegmentNodeParser(segment_size=500, segment_overlap=50),
        ChunkNodeParser(chunk_size=99, chunk_overlap=9),
    ):
        again = type(parser).from_dict(parser.to_dict())
        assert again.to_dict() == parser.to_dict()
    stock = SentenceSplitter()
    with pytest.raises(ValidationError):
        SentenceSplitter.from_dict(stock.to_dict())


def test_bad_sizes_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        ChunkNodeParser(chunk_size=0, chunk_overlap=0)
    with pytest.raises(ValueError, match="lower chunk_overlap or raise chunk_size"):
        ChunkNodeParser(chunk_size=50, chunk_overlap=50)
    with pytest.raises(ValueError, match="cannot be negative"):
        SegmentNodeParser(segment_overlap=-1)


@pytest.mark.parametrize("text", ["", " \n\t ", "\u00a0"])
def test_white_space_gives_no_chunk(text: str) -> None:
    assert parse(text, size=50, overlap=5) == []


def test_special_tokens_and_a_long_run_of_spaces_are_text_like_any_other() -> None:
    assert count_tokens("<|endoftext|>") > 1
    text = "a" + " " * 1_200_000 + "b"
    chunks = parse(text, size=800, overlap=80)
    assert [chunk.text for chunk in chunks] == ["a", "b"]


def test_lone_surrogates_do_not_stop_the_parsers() -> None:
    text = "before \ud800 after. " * 50
    chunks = parse(text, size=60, overlap=6)
    assert all(text[c.start_char_idx : c.end_char_idx] == c.text for c in chunks)


class _Tag(TransformComponent):
    """A foreign component that notes that it has seen a node."""

    def __call__(self, nodes, **kwargs):  # type: ignore[no-untyped-def]
        for node in nodes:
            node.metadata["tagged"] = "yes"
        return nodes


async def test_in_a_pipeline_before_and_behind_foreign_components() -> None:
    document = Document(id_="d", text=words(2_000, seed=7))
    ours_first = IngestionPipeline(transformations=[SegmentNodeParser(), ChunkNodeParser(), _Tag()])
    chunks = ours_first.run(documents=[document])
    assert len(chunks) > 2
    assert all(chunk.metadata["tagged"] == "yes" for chunk in chunks)
    foreign_first = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=300), ChunkNodeParser(chunk_size=100)]
    )
    small = await foreign_first.arun(documents=[document])
    assert all(count_tokens(node.get_content()) <= 100 for node in small)
    assert {node.ref_doc_id for node in small} == {"d"}
    assert SegmentNodeParser()([]) == []
