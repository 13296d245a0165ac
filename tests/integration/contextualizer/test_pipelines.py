"""Contextualizers behind LlamaIndex's node parsers and ours, in front of LlamaIndex's vector stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import cache

import faiss
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.ingestion import run_transformations
from llama_index.core.node_parser import (
    MarkdownNodeParser,
    SemanticSplitterNodeParser,
    SentenceSplitter,
    SentenceWindowNodeParser,
    TokenTextSplitter,
)
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TransformComponent
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_contextual import (
    ChunkNodeParser,
    LLMContextualizer,
    SegmentNodeParser,
    StructuralContextualizer,
    WordLlamaEmbedding,
    read_documents,
)
from llama_index_contextual.contextualizer.base import Contextualizer
from llama_index_contextual.metadata import INTERNAL_KEYS, context_parts
from tests.support.examples import EXAMPLES
from tests.support.models import ScriptedLLM

QUESTIONS = [
    "What does error TS-999 mean?",
    "By how much did the volume of water sold change in the second quarter?",
    "When must the seals of the pump be replaced?",
    "What was the net debt at the end of September?",
    "Which alarms does the control room see?",
]
FILES = ("station-manual.md", "quarterly-reports-2024.pdf")
WRITTEN = "A context of the passage in its text, as long as it has to be here."

SPLITTERS: dict[str, Callable[[], list[TransformComponent]]] = {
    "SentenceSplitter": lambda: [SentenceSplitter(chunk_size=400, chunk_overlap=40)],
    "TokenTextSplitter": lambda: [TokenTextSplitter(chunk_size=400, chunk_overlap=40)],
    "MarkdownNodeParser": lambda: [MarkdownNodeParser()],
    "SemanticSplitterNodeParser": lambda: [SemanticSplitterNodeParser(embed_model=WordLlamaEmbedding())],
    "SentenceWindowNodeParser": lambda: [SentenceWindowNodeParser()],
    "ours": lambda: [SegmentNodeParser(), ChunkNodeParser(chunk_size=400, chunk_overlap=40)],
    "ours and SentenceSplitter": lambda: [SegmentNodeParser(), SentenceSplitter(chunk_size=400, chunk_overlap=40)],
}


def simple() -> BasePydanticVectorStore:
    """A store in memory."""
    return SimpleVectorStore()


def flat_faiss() -> BasePydanticVectorStore:
    """A store that keeps vectors only."""
    return FaissVectorStore(faiss.IndexFlatIP(256))


def chroma() -> BasePydanticVectorStore:
    """A store that keeps texts and flat metadata, in memory."""
    reason = 'Chroma is not installed: pip install "llama-index-contextual[dev-all]"'
    chromadb = pytest.importorskip("chromadb", reason=reason)
    store = pytest.importorskip("llama_index.vector_stores.chroma", reason=reason)
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    collection = chromadb.EphemeralClient(settings).create_collection(f"c{uuid.uuid4().hex}")
    created: BasePydanticVectorStore = store.ChromaVectorStore(chroma_collection=collection)
    return created


@cache
def nodes_of(splitter: str) -> Sequence[BaseNode]:
    """The nodes of a document with headings, and of one with pages and tables; no test changes them."""
    return run_transformations(
        read_documents([EXAMPLES / "data" / name for name in FILES]).documents, SPLITTERS[splitter]()
    )


@pytest.mark.parametrize("store", [simple, flat_faiss, chroma])
@pytest.mark.parametrize("splitter", SPLITTERS)
def test_a_stock_pipeline_stores_contexts_and_sends_its_llm_little_more(
    splitter: str, store: Callable[[], BasePydanticVectorStore]
) -> None:
    chunks = StructuralContextualizer()(nodes_of(splitter))
    llm, storage = ScriptedLLM(), StorageContext.from_defaults(vector_store=store())
    index = VectorStoreIndex(chunks, storage, embed_model=WordLlamaEmbedding(), store_nodes_override=True)
    engine = index.as_query_engine(llm=llm)
    plain = {node.node_id: node for node in nodes_of(splitter)}
    # A sentence is replaced by the text around it; see the documentation of SentenceWindowNodeParser.
    windows = MetadataReplacementPostProcessor(target_metadata_key="window")
    lengths = [0, 0]
    for query in map(QueryBundle, QUESTIONS):
        hits = engine.retrieve(query)
        assert [hit.metadata["context_source"] for hit in hits] == ["structural"] * 2
        for kind, nodes in enumerate([[plain[hit.node_id] for hit in hits], [hit.node for hit in hits]]):
            copies = [NodeWithScore(node=node.model_copy()) for node in nodes]
            done = len(llm.history)
            engine.synthesize(query, windows.postprocess_nodes(copies))
            lengths[kind] += sum(map(len, llm.history[done:]))
        assert all(any(hit.metadata["source"] in prompt for prompt in llm.history[done:]) for hit in hits)
    without, with_contexts = lengths
    assert with_contexts <= 1.05 * without


@pytest.mark.parametrize("splitter", SPLITTERS)
@pytest.mark.parametrize(
    "contextualizer", [StructuralContextualizer(), LLMContextualizer(llm=ScriptedLLM())], ids=["structural", "llm"]
)
def test_chunks_have_flat_metadata_without_internal_keys(splitter: str, contextualizer: Contextualizer) -> None:
    for chunk in contextualizer(nodes_of(splitter)[-40:]):
        assert not set(INTERNAL_KEYS) & set(chunk.metadata)
        assert not any(key.startswith("_contextual") for key in chunk.metadata)
        assert node_to_metadata_dict(chunk, remove_text=True, flat_metadata=True)
        structure, written = context_parts(chunk.metadata)
        assert structure
        assert written == ("" if chunk.metadata["context_source"] == "structural" else WRITTEN)
        assert chunk.get_content(MetadataMode.EMBED).startswith(chunk.metadata["context"])
        assert chunk.metadata["context"] not in chunk.get_content(MetadataMode.LLM)
