"""Beside foreign components and with foreign nodes; what the stock parsers do in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from llama_index.core.extractors import TitleExtractor
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import MarkdownNodeParser, SentenceSplitter
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageDocument,
    MetadataMode,
    NodeRelationship,
    TextNode,
    TransformComponent,
)

from llama_index_contextual.metadata import RESERVED_KEYS, DocumentMap, Heading
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser, count_tokens
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
    ids = {segment.node_id for segment in segments}
    assert len(ids) > 3
    for node in [*segments, *chunks]:
        assert node.ref_doc_id == "folder/a.md"
        assert node.source_node is not None
        assert node.source_node.hash == document().hash
        assert all(info.metadata == {} for info in node.relationships.values())  # type: ignore[union-attr]
    by_index = {segment.metadata["segment_index"]: segment.node_id for segment in segments}
    for chunk in chunks:
        assert chunk.parent_node is not None
        assert chunk.parent_node.node_id == by_index[chunk.metadata["segment_index"]]
    for before, behind in pairwise(chunks):
        assert before.next_node is not None
        assert behind.prev_node is not None
        assert (before.next_node.node_id, behind.prev_node.node_id) == (behind.node_id, before.node_id)
    assert chunks[0].prev_node is None
    assert chunks[-1].next_node is None


def test_a_stock_parser_behind_another_loses_the_offsets_that_ours_keeps() -> None:
    repeated = "The same sentence again. " * 400
    source = Document(id_="d", text=repeated)
    first = SentenceSplitter(chunk_size=500, chunk_overlap=0)
    stock = SentenceSplitter(chunk_size=60, chunk_overlap=0)(first([source]))
    covered = {offset for node in stock for offset in range(node.start_char_idx, node.end_char_idx)}  # type: ignore[attr-defined]
    assert len(covered) < 0.9 * len(repeated), "all of the text is there, but the spans tell of its beginning only"
    segmenter, chunker = small()
    ours = chunker(segmenter([source]))
    assert_slices(ours, repeated)
    assert len({node.start_char_idx for node in ours}) == len(ours)  # type: ignore[attr-defined]
    assert all(node.parent_node is not None for node in ours)


def test_documents_and_their_metadata_stay_as_they_were() -> None:
    source = document(excluded_llm_metadata_keys=["file_name"])
    before = source.to_dict()
    segmenter, chunker = small()
    segments = segmenter([source])
    frozen = [segment.to_dict() for segment in segments]
    chunker(segments)
    assert source.to_dict() == before
    assert [segment.to_dict() for segment in segments] == frozen


async def test_sync_and_async_give_the_same_nodes() -> None:
    segmenter, chunker = small()
    ours = chunker(segmenter([document()]))
    theirs = await chunker.acall(await segmenter.acall([document()]))
    assert [node.to_dict() for node in ours] == [node.to_dict() for node in theirs]


async def test_a_pipeline_with_extractors_behind_runs_both_ways() -> None:
    steps = [*small(), TitleExtractor(llm=MockLLM(), num_workers=1)]
    pipeline = IngestionPipeline(transformations=steps, disable_cache=True)
    nodes = await pipeline.arun(documents=[document()])
    assert_slices(nodes)
    assert all("document_title" in node.metadata for node in nodes)
    assert [node.node_id for node in nodes] == [
        n.node_id for n in IngestionPipeline(transformations=[*small()]).run(documents=[document()])
    ]


def test_a_pipeline_with_a_cache_gives_the_same_nodes_again() -> None:
    pipeline = IngestionPipeline(transformations=[*small()], cache=IngestionCache())
    first = pipeline.run(documents=[document()])
    assert first == pipeline.run(documents=[document()])
    finer = ChunkNodeParser(chunk_size=128, chunk_overlap=12)
    segments_from_cache = IngestionPipeline(transformations=[small()[0], finer], cache=pipeline.cache)
    assert segments_from_cache.run(documents=[document()]) == finer(small()[0]([document()]))


class Cleaner(TransformComponent):
    """A foreign component that changes the text of Documents."""

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[BaseNode]:
        return [Document(id_=node.node_id, text=node.get_content().replace("a", "o")) for node in nodes]


def test_a_component_before_may_change_the_text() -> None:
    nodes = IngestionPipeline(transformations=[Cleaner(), *small()], disable_cache=True).run(documents=[document()])
    assert_slices(nodes, TEXT.replace("a", "o"))


def test_chunks_of_foreign_nodes_keep_their_place_and_parent_in_the_document() -> None:
    foreign = SentenceSplitter(chunk_size=700, chunk_overlap=0)([document()])
    chunks = ChunkNodeParser(chunk_size=256, chunk_overlap=25)(foreign)
    assert_slices(chunks)
    assert {chunk.ref_doc_id for chunk in chunks} == {"folder/a.md"}
    assert {chunk.parent_node.node_id for chunk in chunks if chunk.parent_node} == {node.node_id for node in foreign}
    assert [chunk.metadata["chunk_index"] for chunk in chunks] == list(range(len(chunks)))
    assert sorted({chunk.metadata["segment_index"] for chunk in chunks}) == list(range(len(foreign)))


def test_a_stock_splitter_between_ours_loses_no_text() -> None:
    segments = small()[0]([document()])
    between = SentenceSplitter(chunk_size=600, chunk_overlap=0)(segments)
    chunks = ChunkNodeParser(chunk_size=256, chunk_overlap=0)(between)
    assert "".join("".join(c.get_content().split()) for c in chunks) == "".join(
        "".join(node.get_content().split()) for node in between
    )
    # The stock splitter finds the place of some nodes only, and counts from the segment's beginning.
    placed = [chunk for chunk in chunks if chunk.start_char_idx is not None]  # type: ignore[attr-defined]
    assert_slices(placed)
    for chunk in placed:
        assert chunk.metadata["segment_start"] <= chunk.start_char_idx  # type: ignore[attr-defined]
        assert chunk.end_char_idx <= chunk.metadata["segment_end"]  # type: ignore[attr-defined]


def test_chunks_can_be_chunked_again() -> None:
    again = ChunkNodeParser(chunk_size=60, chunk_overlap=0)(small()[1](small()[0]([document()])))
    assert_slices(again)
    assert max(count_tokens(node.get_content()) for node in again) <= 60


def test_a_node_without_place_or_document_is_its_own_document() -> None:
    nodes = ChunkNodeParser(chunk_size=100, chunk_overlap=10)([TextNode(id_="orphan", text=TEXT[:3_000])])
    assert_slices(nodes, TEXT[:3_000])
    assert {node.ref_doc_id for node in nodes} == {"orphan"}


def test_a_node_that_does_not_tell_its_place_gives_chunks_that_do_not_pretend_to() -> None:
    parents = [
        TextNode(
            id_=f"part-{n}",
            text="Equal text. " * 60,
            relationships={NodeRelationship.SOURCE: document().as_related_node_info()},
        )
        for n in range(2)
    ]
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


def test_a_given_id_func_names_the_nodes_and_has_to_be_given_again() -> None:
    def numbered(i: int, doc: BaseNode) -> str:
        return f"{doc.node_id}#{i}"

    parser = ChunkNodeParser(chunk_size=256, chunk_overlap=0, id_func=numbered)
    chunks = parser([document()])
    assert [chunk.node_id for chunk in chunks] == [f"folder/a.md#{n}" for n in range(len(chunks))]
    with pytest.raises(ValueError, match="pass it again"):
        ChunkNodeParser.from_dict(parser.to_dict())
    assert ChunkNodeParser.from_dict(parser.to_dict(), id_func=numbered)([document()]) == chunks
    assert ChunkNodeParser(id_func=None).id_func is ChunkNodeParser().id_func  # type: ignore[arg-type]


def test_json_brings_an_equal_parser_back() -> None:
    parser = SegmentNodeParser(segment_size=900, segment_overlap=90, include_prev_next_rel=False)
    again = SegmentNodeParser.from_json(parser.to_json())
    assert again([document()]) == parser([document()])


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
    source = document(excluded_embed_metadata_keys=["internal"])
    source.metadata |= {"internal": "secret", "fund": "Alpha"}
    for chunk in small()[1](small()[0]([source])):
        assert all(isinstance(value, str | int | float | bool) for value in chunk.metadata.values())
        assert chunk.get_content(MetadataMode.EMBED) == f"Alpha\n\n{chunk.get_content()}"
        assert chunk.get_content(MetadataMode.LLM).startswith("Source: a.md\n")
        assert not any(key.startswith("_contextual") for key in chunk.metadata)
        assert not any(key == "_contextual_segment_core" for key in chunk.excluded_embed_metadata_keys)


def test_keys_of_the_user_that_are_named_like_ours_are_kept_where_we_know_nothing_better() -> None:
    source = Document(
        id_="d", text=TEXT[:500], metadata={"page_label": "iv", "source": "https://example.com", "section": "Mine"}
    )
    (chunk,) = ChunkNodeParser()([source])
    assert (chunk.metadata["page_label"], chunk.metadata["section"]) == ("iv", "Mine")
    assert chunk.metadata["source"] == "https://example.com"


def test_segments_given_one_at_a_time_give_the_same_spans() -> None:
    segmenter, chunker = small()
    segments = segmenter([document()])
    together = [(c.start_char_idx, c.end_char_idx) for c in chunker(segments)]  # type: ignore[attr-defined]
    alone = [(c.start_char_idx, c.end_char_idx) for s in segments for c in chunker([s])]  # type: ignore[attr-defined]
    assert together == alone
