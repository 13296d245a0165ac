"""Class methods that the package's classes inherit from LlamaIndex work, or say what to do."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage, MockLLM
from llama_index.core.schema import TextNode
from pydantic import BaseModel

import llama_index_contextual as package
from llama_index_contextual import (
    AdjacentChunkMerger,
    ChunkNodeParser,
    ContextWindowPacker,
    LexicalRetriever,
    LLMContextualizer,
    Project,
    RelevancePostprocessor,
    RetrievedChunk,
    SegmentNodeParser,
    StructuralContextualizer,
    WordLlamaEmbedding,
)
from llama_index_contextual.cli.demo import RecordedLLM
from llama_index_contextual.embeddings.openai_like import PrefixedEmbedding
from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding
from llama_index_contextual.errors import InputError
from llama_index_contextual.postprocessor import MergedChunk, SpotlightRerank
from llama_index_contextual.retrievers import ConversationQuery
from llama_index_contextual.retrievers.base import WeightedQuery
from llama_index_contextual.stores import IndexVectorStore, VersionStorageContext
from tests.integration.retrievers.corpus import passages, project_of

QUERIES = (
    WeightedQuery("pump", lexical_texts=(("error", 0.5),), custom_embedding_strs=["dry"]),
    ConversationQuery("And now?", history=[ChatMessage("Hi."), ChatMessage("Yes?", role="assistant")], rewrite="pump"),
)
"""Queries, which are compared with the result of `from_dict` and `from_json`."""

COMPONENTS: Mapping[type, Callable[[], Any]] = {
    AdjacentChunkMerger: AdjacentChunkMerger,
    ChunkNodeParser: lambda: ChunkNodeParser(chunk_size=300, chunk_overlap=30),
    ContextWindowPacker: lambda: ContextWindowPacker(max_tokens=500),
    LLMContextualizer: lambda: LLMContextualizer(llm=MockLLM(), model_id="openai:m"),
    MergedChunk: lambda: MergedChunk(node=TextNode(text="a"), score=1.0, chunks=[]),
    PrefixedEmbedding: lambda: PrefixedEmbedding(model_name="e5", api_key="k", query_instruction="query: "),
    RecordedLLM: RecordedLLM,
    RelevancePostprocessor: lambda: RelevancePostprocessor(relevance_cutoff=0.5),
    RetrievedChunk: lambda: RetrievedChunk(node=TextNode(text="a"), score=1.0, rank=2),
    SegmentNodeParser: lambda: SegmentNodeParser(segment_size=900, segment_overlap=9),
    SpotlightRerank: lambda: SpotlightRerank(top_n=3),
    StructuralContextualizer: lambda: StructuralContextualizer(segment_size=900),
    VoyageContextualEmbedding: lambda: VoyageContextualEmbedding(api_key="k"),
    WordLlamaEmbedding: WordLlamaEmbedding,
}
"""Components of LlamaIndex, which are compared by `to_dict`."""

NEED_A_MODEL = {"OnnxEmbedding"}
"""Components that need an extra and a model's files."""

OTHERS = {IndexVectorStore, LexicalRetriever, VersionStorageContext, WeightedQuery, ConversationQuery}
OTHER_METHODS = {"class_name", "of", "of_hit", "schema", "set_completion_to_prompt", "set_messages_to_prompt"}
"""Class methods that create no object, and the package's own."""


def class_methods() -> Iterator[tuple[type, set[str]]]:
    """Yield the concrete public classes derived from LlamaIndex's, with the constructors that they inherit."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # needs an extra
            continue
        for name, kind in vars(loaded).items():
            if not inspect.isclass(kind) or kind.__module__ != module.name or name.startswith("_"):
                continue
            if inspect.isabstract(kind) or not any(base.__module__.startswith("llama_index.") for base in kind.__mro__):
                continue
            methods = {
                name
                for name in dir(kind)
                if isinstance(inspect.getattr_static(kind, name), classmethod | staticmethod)
                and not name.startswith("_")
                and not hasattr(BaseModel, name)
            }
            yield kind, methods - OTHER_METHODS


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return project_of(tmp_path_factory.mktemp("root"), {"dry": "Error code TS-999 means that the pump runs dry."})


def test_every_inherited_constructor_is_checked_here() -> None:
    methods = {kind: names for kind, names in class_methods() if names and kind.__name__ not in NEED_A_MODEL}
    assert methods.keys() == {*COMPONENTS, *OTHERS}
    for kind, names in methods.items():
        if kind in COMPONENTS or kind in (IndexVectorStore, WeightedQuery, ConversationQuery):
            assert names == {"from_dict", "from_json"}, kind
    assert methods[LexicalRetriever] == {"from_defaults", "from_persist_dir"}
    assert methods[VersionStorageContext] == {"from_defaults", "from_dict"}


@pytest.mark.parametrize("kind", COMPONENTS, ids=lambda kind: kind.__name__)
def test_components_are_restored_from_dicts_and_json(kind: type) -> None:
    made: Any = COMPONENTS[kind]()
    for restored in (kind.from_dict(made.to_dict()), kind.from_json(made.to_json())):  # type: ignore[attr-defined]
        assert type(restored) is kind
        assert restored.to_dict() == made.to_dict()


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: type(query).__name__)
def test_queries_are_restored_from_dicts_and_json(query: Any) -> None:
    for restored in (type(query).from_dict(query.to_dict()), type(query).from_json(query.to_json())):
        assert type(restored) is type(query)
        assert restored == query


def test_stores_of_a_version_are_restored_or_refused_with_advice(project: Project) -> None:
    context = project.storage_context
    vectors = context.vector_store
    for restored in (IndexVectorStore.from_dict(vectors.to_dict()), IndexVectorStore.from_json(vectors.to_json())):
        assert restored.client.ids == vectors.client.ids
    for refused in (VersionStorageContext.from_defaults, lambda: VersionStorageContext.from_dict({})):
        with pytest.raises(InputError, match=r"opened with open_storage_context\(\): use LlamaIndex's StorageContext"):
            refused()


def test_the_lexical_retriever_is_built_and_restored(tmp_path: Path) -> None:
    made = LexicalRetriever.from_defaults(nodes=passages())
    made.persist(str(tmp_path))
    assert LexicalRetriever.from_persist_dir(str(tmp_path)).retrieve("TS-999") == made.retrieve("TS-999")
