"""Tests for every contextualizer: inherit `ContextualizerContract` and provide one fixture.

class TestMine(ContextualizerContract):
    source = "mine"

    @pytest.fixture
    def contextualizer(self) -> Contextualizer:
        return MyContextualizer()
"""

from __future__ import annotations

import asyncio
import json

import pytest
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import BaseNode, MetadataMode

from llama_index_contextual.contextualizer import Contextualized, Contextualizer
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from tests.integration.contextualizer.samples import chunks, documents, foreign, loose

KEY = "sk-test-0123456789abcdef"


def texts(nodes: list[BaseNode]) -> list[str]:
    return [node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]


def context_of(node: BaseNode) -> str:
    return str(node.metadata["context"])


class ContextualizerContract:
    """The promises; `source` is what a chunk's `context_source` says."""

    source: str

    @pytest.fixture
    def contextualizer(self) -> Contextualizer:
        raise NotImplementedError("a subclass gives the contextualizer")

    def test_nothing_becomes_nothing(self, contextualizer: Contextualizer) -> None:
        assert contextualizer([]) == asyncio.run(contextualizer.acall([])) == []
        assert contextualizer.contextualize([]) == Contextualized([], [], 0)

    def test_every_chunk_gets_a_context_and_says_who_wrote_it(self, contextualizer: Contextualizer) -> None:
        done = contextualizer.contextualize(chunks())
        assert done.failures == []
        assert all(context_of(node) for node in done.nodes)
        assert {node.metadata["context_source"] for node in done.nodes} == {self.source}

    def test_ids_order_text_offsets_and_links_stay(self, contextualizer: Contextualizer) -> None:
        for originals in (chunks(), foreign(), loose("One.", "Two.")):
            done = contextualizer(originals)
            for before, after in zip(originals, done, strict=True):
                assert after.node_id == before.node_id
                assert type(after) is type(before)
                assert after.get_content() == before.get_content()
                assert after.relationships == before.relationships
                for name in ("start_char_idx", "end_char_idx", "embedding"):
                    assert getattr(after, name) == getattr(before, name)

    def test_a_shuffled_call_gives_the_same_contexts(self, contextualizer: Contextualizer) -> None:
        inputs = chunks()
        backwards = contextualizer(inputs[::-1])
        assert [node.node_id for node in backwards] == [node.node_id for node in inputs[::-1]]
        assert texts(backwards[::-1]) == texts(contextualizer(inputs))

    def test_the_input_is_not_changed(self, contextualizer: Contextualizer) -> None:
        for originals in (chunks(), foreign()):
            before = [node.model_copy(deep=True) for node in originals]
            done = contextualizer(originals)
            assert originals == before
            for node in done:
                node.metadata["touched"] = True
                node.relationships.clear()
            assert originals == before

    def test_embedding_and_bm25_read_context_blank_line_text(self, contextualizer: Contextualizer) -> None:
        for node in contextualizer([*chunks(), *loose("One.", "Two.", title="A title")]):
            embedded = node.get_content(metadata_mode=MetadataMode.EMBED)
            assert embedded == f"{context_of(node)}\n\n{node.get_content()}"

    def test_the_answering_model_reads_source_and_text(self, contextualizer: Contextualizer) -> None:
        for node in contextualizer(chunks()):
            shown = node.get_content(metadata_mode=MetadataMode.LLM)
            assert shown == f"{node.metadata['source']}\n\n{node.get_content()}"
            assert shown.startswith("Source: ")

    def test_keys_that_the_user_left_visible_stay_visible(self, contextualizer: Contextualizer) -> None:
        for node in contextualizer(foreign()):
            assert node.get_content(metadata_mode=MetadataMode.EMBED) == (
                f"{context_of(node)}\nAda\n\n{node.get_content()}"
            )
            assert "Ada" in node.get_content(metadata_mode=MetadataMode.LLM)

    def test_keys_that_the_user_hid_stay_hidden(self, contextualizer: Contextualizer) -> None:
        report = [node for node in contextualizer(chunks()) if node.ref_doc_id == "report.md"]
        assert all(node.metadata["fund"] == "Alpha" for node in report)
        assert not any("Alpha" in text for text in texts(report))
        assert not any("Alpha" in node.get_content(metadata_mode=MetadataMode.LLM) for node in report)

    def test_a_context_that_came_with_the_chunk_is_kept(self, contextualizer: Contextualizer) -> None:
        inputs = chunks()
        inputs[1].metadata["context"] = "Written by hand."
        done = contextualizer(inputs)
        assert context_of(done[1]) == "Written by hand."
        assert done[1].metadata["context_source"] == "given"
        assert {node.metadata["context_source"] for at, node in enumerate(done) if at != 1} == {self.source}

    def test_doing_it_again_writes_the_contexts_anew(self, contextualizer: Contextualizer) -> None:
        once = contextualizer(chunks())
        for node in once:
            node.metadata["context"] = "stale"
        again = contextualizer(once)
        assert not any(context_of(node) == "stale" for node in again)
        assert {node.metadata["context_source"] for node in again} == {self.source}

    def test_progress_counts_every_chunk_once(self, contextualizer: Contextualizer) -> None:
        counted: list[int] = []
        contextualizer.contextualize(chunks(), progress=counted.append)
        assert sum(counted) == len(chunks())

    async def test_async_and_sync_results_are_equal(self, contextualizer: Contextualizer) -> None:
        inputs = chunks()
        awaited = await contextualizer.acall(inputs)
        assert awaited == contextualizer(inputs), "inside a running loop"
        assert awaited == await asyncio.to_thread(contextualizer, inputs), "without a loop"

    def test_a_document_that_was_never_split_works(self, contextualizer: Contextualizer) -> None:
        (node,) = contextualizer(documents()[1:])
        assert node.get_content(metadata_mode=MetadataMode.EMBED).startswith(context_of(node))

    def test_the_model_is_serialised_as_a_dictionary(self, contextualizer: Contextualizer) -> None:
        data = json.loads(contextualizer.to_json())
        assert data["class_name"] == type(contextualizer).__name__
        again = type(contextualizer).from_dict(data)
        assert again.to_dict() == contextualizer.to_dict()

    def test_it_is_a_transformation_of_a_pipeline(self, contextualizer: Contextualizer) -> None:
        pipeline = IngestionPipeline(
            transformations=[
                SegmentNodeParser(segment_size=60, segment_overlap=10),
                ChunkNodeParser(chunk_size=24, chunk_overlap=4),
                contextualizer,
            ]
        )
        nodes = pipeline.run(documents=documents())
        assert [node.node_id for node in nodes] == [node.node_id for node in chunks()]
        assert texts(list(nodes)) == texts(contextualizer(chunks()))
        again = pipeline.run(documents=documents())
        assert texts(list(again)) == texts(list(nodes))
