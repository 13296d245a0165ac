"""Beside foreign components and with foreign nodes; what the stock parsers do in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from llama_index.core.extractors import TitleExtractor
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import BaseNode, Document, ImageDocument, MetadataMode, NodeRelationship, TextNode

from llama_index_contextual.metadata import HEADINGS, PAGES, RESERVED_KEYS, DocumentMap, Heading
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from tests.unit.node_parser.texts import prose

TEXT = prose(6_000, seed=21)


def document(**fields: Any) -> Document:
    return Document(id_="folder/a.md", text=TEXT, metadata={"file_name": "a.md"}, **fields)


def small() -> tuple[SegmentNodeParser, ChunkNodeParser]:
    return SegmentNodeParser(segment_size=2_000, segment_overlap=200), ChunkNodeParser(chunk_size=256, chunk_overlap=25)


def assert_slices(nodes: Sequence[BaseNode], text: str = TEXT) -> None:
    assert nodes
    for node in nodes:
        assert isinstance(node, TextNode)
        assert node.text == text[node.start_char_idx : node.end_char_idx]


def test_segments_and_chunks_name_the_document_as_source_and_the_segment_as_parent() -> None:
    segmenter, chunker = small()
    segments = segmenter([document()])
    chunks = chunker(segments)
    assert len({segment.node_id for segment in segments}) > 3
    for node in [*segments, *chunks]:
        assert node.ref_doc_id == "folder/a.md"
        assert node.source_node is not None
        assert node.source_node.hash == document().hash
        assert all(info.metadata == {} for info in node.relationships.values())  # type: ignore[union-attr]
    parents = [chunk.parent_node.node_id for chunk in chunks if chunk.parent_node]
    assert parents == [segments[chunk.metadata["segment_index"]].node_id for chunk in chunks]
    ids = [chunk.node_id for chunk in chunks]
    assert [chunk.prev_node and chunk.prev_node.node_id for chunk in chunks] == [None, *ids[:-1]]
    assert [chunk.next_node and chunk.next_node.node_id for chunk in chunks] == [*ids[1:], None]


def test_documents_and_their_metadata_stay_as_they_were() -> None:
    source, (segmenter, chunker) = document(excluded_llm_metadata_keys=["file_name"]), small()
    before = source.to_dict()
    segments = segmenter([source])
    frozen = [segment.to_dict() for segment in segments]
    chunker(segments)
    assert source.to_dict() == before
    assert [segment.to_dict() for segment in segments] == frozen


def test_chunks_of_foreign_nodes_keep_their_place_and_parent_in_the_document() -> None:
    foreign = SentenceSplitter(chunk_size=700, chunk_overlap=0)([document()])
    chunks = ChunkNodeParser(chunk_size=256, chunk_overlap=25)(foreign)
    assert_slices(chunks)
    assert {chunk.ref_doc_id for chunk in chunks} == {"folder/a.md"}
    assert {chunk.parent_node.node_id for chunk in chunks if chunk.parent_node} == {node.node_id for node in foreign}
    assert [chunk.metadata["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert sorted({chunk.metadata["segment_index"] for chunk in chunks}) == list(range(len(foreign)))


def test_a_stock_splitter_between_ours_loses_no_text() -> None:
    between = SentenceSplitter(chunk_size=600, chunk_overlap=0)(small()[0]([document()]))
    chunks = ChunkNodeParser(chunk_size=256, chunk_overlap=0)(between)
    ours, theirs = ("".join("".join(node.get_content().split()) for node in nodes) for nodes in (chunks, between))
    assert ours == theirs
    # The stock splitter finds the place of some nodes only, and counts from the segment's beginning.
    placed = [chunk for chunk in chunks if chunk.start_char_idx is not None]  # type: ignore[attr-defined]
    assert_slices(placed)
    for chunk in placed:
        assert chunk.metadata["segment_start"] <= chunk.start_char_idx  # type: ignore[attr-defined]
        assert chunk.end_char_idx <= chunk.metadata["segment_end"]  # type: ignore[attr-defined]


async def test_sync_and_async_give_the_same_nodes_in_a_pipeline_too() -> None:
    segmenter, chunker = small()
    ours = chunker(segmenter([document()]))
    assert await chunker.acall(await segmenter.acall([document()])) == ours
    steps = [*small(), TitleExtractor(llm=MockLLM(), num_workers=1)]
    nodes = await IngestionPipeline(transformations=steps, disable_cache=True).arun(documents=[document()])
    assert_slices(nodes)
    assert all("document_title" in node.metadata for node in nodes)
    assert [node.node_id for node in nodes] == [node.node_id for node in ours]


def test_a_node_without_place_or_document_is_its_own_document() -> None:
    nodes = ChunkNodeParser(chunk_size=100, chunk_overlap=10)([TextNode(id_="orphan", text=TEXT[:3_000])])
    assert_slices(nodes, TEXT[:3_000])
    assert {node.ref_doc_id for node in nodes} == {"orphan"}


def test_a_node_that_does_not_tell_its_place_gives_chunks_that_do_not_pretend_to() -> None:
    source = {NodeRelationship.SOURCE: document().as_related_node_info()}
    parents = [TextNode(id_=f"part-{n}", text="Equal text. " * 60, relationships=source) for n in range(2)]
    chunks = ChunkNodeParser(chunk_size=50, chunk_overlap=0)(parents)
    assert {chunk.start_char_idx for chunk in chunks} == {None}  # type: ignore[attr-defined]
    assert {chunk.ref_doc_id for chunk in chunks} == {"folder/a.md"}
    assert len({chunk.node_id for chunk in chunks}) == len(chunks), "equal spans of two parents are two chunks"


def test_nodes_of_other_kinds_and_interleaved_documents_do_not_disturb() -> None:
    segmenter, chunker = small()
    first, second = Document(id_="1", text=TEXT[:9_000]), Document(id_="2", text=TEXT[9_000:])
    one, two = segmenter([first]), segmenter([second])
    mixed = [node for pair in zip(one, two, strict=False) for node in pair] + two[len(one) :] + one[len(two) :]
    chunks = chunker([*mixed, ImageDocument(image="", text="")])
    assert chunks == [*chunker(one), *chunker(two)]
    markdown = MarkdownNodeParser()([Document(id_="m", text="# A\n\n" + TEXT[:4_000] + "\n\n# B\n\nmore words")])
    assert all(node.ref_doc_id == "m" for node in chunker(markdown))


def test_nothing_comes_from_nothing_and_foreign_arguments_are_accepted() -> None:
    for parser in small():
        assert parser([]) == []
        assert parser.get_nodes_from_documents([], show_progress=False, foreign="argument") == []
        assert parser([Document(text=" \n ")], foreign="argument") == []


def test_json_brings_an_equal_parser_back_and_bad_sizes_are_refused() -> None:
    segmenter = SegmentNodeParser(segment_size=900, segment_overlap=90, include_prev_next_rel=False)
    for parser in (segmenter, ChunkNodeParser(chunk_size=99, chunk_overlap=9)):
        assert type(parser).from_json(parser.to_json())([document()]) == parser([document()])
    with pytest.raises(ValueError, match="greater than 0"):
        ChunkNodeParser(chunk_size=0, chunk_overlap=0)
    with pytest.raises(ValueError, match=r"chunk_overlap must be smaller than chunk_size \(50\)"):
        ChunkNodeParser(chunk_size=50, chunk_overlap=50)
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        SegmentNodeParser(segment_overlap=-1)


def test_links_between_neighbours_can_be_left_out() -> None:
    segmenter = SegmentNodeParser(segment_size=2_000, segment_overlap=200, include_prev_next_rel=False)
    chunker = ChunkNodeParser(chunk_size=256, chunk_overlap=25, include_prev_next_rel=False)
    for node in [*segmenter([document()]), *chunker(segmenter([document()]))]:
        assert node.prev_node is None
        assert node.next_node is None
        assert node.source_node is not None


def test_without_metadata_the_position_stays() -> None:
    where = DocumentMap(page_starts=[0, 5_000], headings=[Heading(0, 1, "One")])
    source = Document(
        id_="d", text=TEXT, metadata={"file_name": "a.md", "fund": "Alpha", "title": "T", **where.to_metadata()}
    )
    for segmenter_metadata in (True, False):
        segmenter = SegmentNodeParser(include_metadata=segmenter_metadata)
        chunk = ChunkNodeParser(include_metadata=False)(segmenter([source]))[-1]
        assert {"file_name", "fund", "title", "source", *RESERVED_KEYS}.isdisjoint(chunk.metadata)
        assert chunk.metadata["page_end"] == 2
        assert chunk.metadata["section"] == "One"
        assert chunk.get_content(MetadataMode.EMBED) == chunk.get_content()


def test_metadata_is_of_json_scalars_and_what_the_user_excluded_stays_excluded() -> None:
    where = DocumentMap(page_starts=[0, 5_000], page_labels=["i", "1"], headings=[Heading(0, 1, "Intro")])
    source = document(excluded_embed_metadata_keys=["internal"], excluded_llm_metadata_keys=["internal"])
    source.metadata |= {"internal": "secret", "title": "A", "fund": "Alpha", **where.to_metadata()}
    chunks = small()[1](small()[0]([source]))
    for chunk in chunks:
        assert all(isinstance(value, str | int | float | bool) for value in chunk.metadata.values())
        assert chunk.get_content(MetadataMode.EMBED) == f"fund: Alpha\n\n{chunk.get_content()}"
        assert chunk.get_content(MetadataMode.LLM).startswith("Source: a.md, page")
        assert "secret" not in chunk.get_content(MetadataMode.LLM)
        assert not any(key.startswith("_contextual") for key in chunk.metadata)
        assert not any(key == "_contextual_segment_own_start" for key in chunk.excluded_embed_metadata_keys)
        assert {PAGES, HEADINGS}.isdisjoint(chunk.metadata)
    first = chunks[0].metadata
    assert (first["page_start"], first["page_label"], first["section"]) == (1, "i", "Intro")
    assert first["source"].startswith("Source: a.md, page")
    assert chunks[-1].metadata["page_end"] == 2


def test_keys_of_the_user_that_are_named_like_ours_are_kept_where_we_know_nothing_better() -> None:
    source = Document(
        id_="d", text=TEXT[:500], metadata={"page_label": "iv", "source": "https://example.com", "section": "Mine"}
    )
    (chunk,) = ChunkNodeParser()([source])
    assert (chunk.metadata["page_label"], chunk.metadata["section"]) == ("iv", "Mine")
    assert chunk.metadata["source"] == "https://example.com"
