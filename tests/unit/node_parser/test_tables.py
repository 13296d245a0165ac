"""A chunk that begins inside a table carries its column head; rows are not divided, nor a first row from its head."""

from __future__ import annotations

import random

import pytest
import tiktoken
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.contextualizer import StructuralContextualizer
from llama_index_contextual.metadata import RESERVED_KEYS, TABLE_HEAD, TABLES, DocumentMap, Table
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
from llama_index_contextual.node_parser.chunk import MAX_HEAD_TOKENS
from tests.unit.node_parser.texts import prose

HEAD = "Fees by service and year, in thousands:\nService 2023 2022"
SIZE = 200


def table_of(rows: int, *, seed: int = 7) -> str:
    """Return the rows of a table as lines."""
    numbers = random.Random(seed)
    return "\n".join(f"Service {n} {numbers.randint(1, 9_999)} {numbers.randint(1, 9_999)}" for n in range(rows))


def with_table(text: str, table: Table, **facts: str) -> Document:
    return Document(id_="d", text=text, metadata={**facts, **DocumentMap(tables=[table]).to_metadata()})


def document(rows: int = 80, head: str = HEAD) -> Document:
    """Return prose, a table whose position a reader has recorded, and prose."""
    before, body = prose(150, seed=1), table_of(rows)
    text = f"{before}\n{HEAD}\n{body}\n{prose(150, seed=2)}"
    start, first = text.index("Service 2023 2022"), text.index("Service 0 ")
    return with_table(text, Table(start, first, text.index(body) + len(body), head), fund="Alpha")


def chunks_of(given: Document, *, segment_size: int = 8_000, size: int = SIZE) -> list[TextNode]:
    """Return the chunks of a document by way of segments."""
    segments = SegmentNodeParser(segment_size=segment_size, segment_overlap=segment_size // 10)([given])
    return ChunkNodeParser(chunk_size=size, chunk_overlap=size // 10)(segments)  # type: ignore[return-value]


@pytest.mark.parametrize("segment_size", [8_000, 500])
def test_only_a_chunk_that_begins_inside_a_table_carries_its_head(segment_size: int) -> None:
    given = document()
    (table,) = DocumentMap.from_metadata(given.metadata).tables
    chunks = chunks_of(given, segment_size=segment_size)
    inside = [chunk for chunk in chunks if table.start < chunk.start_char_idx < table.end]  # type: ignore[operator]
    assert len(inside) > 3
    for chunk in chunks:
        assert chunk.metadata.get(TABLE_HEAD) == (HEAD if chunk in inside else None)
        assert chunk.text == given.text[chunk.start_char_idx : chunk.end_char_idx], "text and offsets stay exact"
        assert not set(RESERVED_KEYS) & set(chunk.metadata)


def test_the_head_is_embedded_and_read_right_above_the_text() -> None:
    for chunk in StructuralContextualizer()(chunks_of(document())):
        head = chunk.metadata.get(TABLE_HEAD)
        above = ["fund: Alpha", *([] if head is None else [head])]
        read = "\n".join(above) + f"\n\n{chunk.get_content()}"
        assert chunk.get_content(MetadataMode.LLM) == read
        assert chunk.get_content(MetadataMode.EMBED) == f"{chunk.metadata['context']}\n{read}"


def test_without_a_continued_table_the_embedded_text_is_the_same() -> None:
    given = document()
    recorded, unrecorded = chunks_of(given), chunks_of(Document(id_="d", text=given.text, metadata={"fund": "Alpha"}))
    assert [(c.text, c.node_id) for c in recorded] == [(c.text, c.node_id) for c in unrecorded]
    for one, other in zip(recorded, unrecorded, strict=True):
        if TABLE_HEAD not in one.metadata:
            assert one.get_content(MetadataMode.EMBED) == other.get_content(MetadataMode.EMBED)


def test_a_long_head_keeps_its_lower_lines_or_its_first_words() -> None:
    column = "Service 2023 2022"
    tall = "\n".join([*(f"Line {n} of a head with several words" for n in range(20)), column])
    wide = " ".join(f"Column{n}" for n in range(200))
    for head, part in ((tall, column), (wide, "Column0 Column1")):
        carried = [c.metadata[TABLE_HEAD] for c in chunks_of(document(head=head)) if TABLE_HEAD in c.metadata]
        assert carried
        for one in carried:
            assert part in one
            assert one in head
            assert MAX_HEAD_TOKENS // 2 < count_tokens(one) <= MAX_HEAD_TOKENS


@pytest.mark.parametrize("before", range(0, 200, 20))
@pytest.mark.parametrize("segment_size", [8_000, 400])
def test_the_first_row_is_not_divided_from_the_head(before: int, segment_size: int) -> None:
    head, body = "Year ended June 30,\nService 2023 2022", table_of(40)
    text = f"{prose(60 + before, seed=before)}\n{head}\n{body}\n"
    start = text.index(head)
    given = with_table(text, Table(start, text.index("Service 0 "), len(text) - 1, head))
    for chunk in chunks_of(given, segment_size=segment_size):
        assert not start < chunk.end_char_idx < text.index("\nService 1 ")  # type: ignore[operator]


@pytest.mark.parametrize("segment_size", [8_000, 500])
def test_no_row_of_a_recorded_table_is_divided(segment_size: int) -> None:
    rows = [f"Note {n}. Leases of offices. See also the notes on page {n}. {n * 17} {n * 13}" for n in range(120)]
    text = "\n".join(["Item 2023 2022", *rows])
    given = with_table(text, Table(0, text.index("Note 0"), len(text), "Item 2023 2022"))
    for chunk in chunks_of(given, segment_size=segment_size):
        assert set(chunk.text.splitlines()) <= {*rows, "Item 2023 2022"}


@pytest.mark.parametrize("above", ["Statements of income\n(in millions)", "Statements of income\n\n(in millions)"])
def test_every_part_of_a_statement_is_indexed_with_its_title_unit_and_years(above: str) -> None:
    rows = "\n".join(f"| Cost of service {n} | {n * 17} | {n * 13} |" for n in range(90))
    text = f"{prose(100, seed=3)}\n\n{above}\n\n| Year ended June 30, | 2023 | 2022 |\n|---|--:|--:|\n{rows}"
    parts = [node for node in StructuralContextualizer()(chunks_of(Document(text=text))) if "service" in node.text]
    assert len(parts) > 3
    for node in parts:
        indexed = node.get_content(MetadataMode.EMBED)
        for words in ("Statements of income", "(in millions)", "Year ended June 30, | 2023 | 2022"):
            assert indexed.count(words) == 1


# ---- tables that no reader has recorded ------------------------------------------------------------------------------


def markdown(rows: int) -> str:
    """Return Markdown with a table that does not fit into a chunk."""
    body = "\n".join(f"| Service {n} | {n * 17} | {n * 13} |" for n in range(rows))
    return f"{prose(100, seed=3)}\n\n| Service | 2023 | 2022 |\n|---|--:|--:|\n{body}\n\n{prose(100, seed=4)}"


@pytest.mark.parametrize("segment_size", [8_000, 400])
def test_a_markdown_table_of_any_document_is_known_in_all_of_its_segments(segment_size: int) -> None:
    text = markdown(90)
    start, end = text.index("| Service |"), text.index("| Service 89 ")
    for chunk in chunks_of(Document(id_="d", text=text), segment_size=segment_size):
        is_inside = start < chunk.start_char_idx < end  # type: ignore[operator]
        assert chunk.metadata.get(TABLE_HEAD) == ("Service | 2023 | 2022" if is_inside else None)
        assert not start < chunk.end_char_idx < text.index("| Service 1 ")  # type: ignore[operator]


def test_a_row_of_several_lines_is_whole() -> None:
    rows = [f"| Service {n} | delivered on\n| | working days | {n} |" for n in range(60)]
    text = "| Name | Terms | Fee |\n|---|---|---|\n" + "\n".join(rows)
    chunks = chunks_of(Document(id_="d", text=text))
    assert len(chunks) > 3
    for chunk in chunks:
        assert chunk.text.endswith("|")
        assert chunk.text.startswith(("| Name", "| Service"))
        assert not chunk.text.rpartition("\n")[2].startswith("| Service")


def test_chunks_without_segments_and_of_unknown_position_carry_heads_too() -> None:
    text = markdown(60)
    nameless = TextNode(text=text, relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="d")})
    for given in (Document(text=text), nameless):
        chunks = ChunkNodeParser(chunk_size=SIZE, chunk_overlap=20)([given])
        continued = [c for c in chunks if c.get_content().startswith("| Service ") and "2023" not in c.get_content()]
        assert continued
        assert {c.metadata.get(TABLE_HEAD) for c in continued} == {"Service | 2023 | 2022"}


def test_nodes_of_another_parser_take_the_recorded_tables_by_their_offsets() -> None:
    given = document()
    (table,) = DocumentMap.from_metadata(given.metadata).tables
    nodes = SentenceSplitter(chunk_size=400, chunk_overlap=0, include_metadata=True)([given])
    assert all(TABLES in node.metadata for node in nodes)
    for chunk in ChunkNodeParser(chunk_size=SIZE, chunk_overlap=0)(nodes):
        start = chunk.start_char_idx  # type: ignore[attr-defined]
        assert (TABLE_HEAD in chunk.metadata) == (table.start < start < table.end)


def test_the_head_of_a_table_is_not_tokenised_for_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    head = "  ".join(f"column {n}" for n in range(4_000))
    rows = "\n".join("  ".join(str(n % 10) for n in range(4_000)) for _ in range(20))
    text = f"{head}\n{rows}"
    tokenised: list[int] = []
    encode = tiktoken.Encoding.encode_ordinary

    def counted(encoding: tiktoken.Encoding, text: str) -> list[int]:
        tokenised.append(len(text))
        return encode(encoding, text)

    monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", counted)
    chunks = chunks_of(with_table(text, Table(0, len(head) + 1, len(text), head)))
    assert len({chunk.metadata[TABLE_HEAD] for chunk in chunks[1:]}) == 1
    assert len(chunks) > 400
    assert sum(tokenised) < 5 * len(text)
