"""Every contextualizer of this package keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from llama_index.core.schema import BaseNode
from llama_index.llms.openai import OpenAI

from llama_index_contextual.contextualizer import (
    Contextualizer,
    LLMContextualizer,
    Segment,
    StructuralContextualizer,
)
from llama_index_contextual.contextualizer.base import ChunkContext
from tests.integration.contextualizer.contract import KEY, ContextualizerContract
from tests.support.models import ScriptedLLM


class TestStructural(ContextualizerContract):
    source = "structural"

    @pytest.fixture
    def contextualizer(self) -> Contextualizer:
        return StructuralContextualizer(max_tokens=60, segment_size=50)


class TestLLM(ContextualizerContract):
    source = "llm"

    @pytest.fixture
    def contextualizer(self) -> Contextualizer:
        return LLMContextualizer(llm=ScriptedLLM(default="From the report on the second quarter."), num_workers=3)


class Smallest(Contextualizer):
    """As little as a contextualizer needs."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "Smallest"

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return [ChunkContext(f"Of {segment.doc_id}, {len(segment.chunks)} chunks.", "tiny") for _ in chunks]


class TestOneMethodIsEnough(ContextualizerContract):
    source = "tiny"

    @pytest.fixture
    def contextualizer(self) -> Contextualizer:
        return Smallest()


def test_a_contextualizer_with_a_keyed_model_shows_neither_model_nor_key() -> None:
    contextualizer = LLMContextualizer(llm=OpenAI(model="gpt-4.1", api_key=KEY))
    shown = [
        repr(contextualizer),
        str(contextualizer),
        repr(contextualizer.to_dict()),
        contextualizer.to_json(),
        contextualizer.model_dump_json(),
    ]
    assert not any(KEY in text for text in shown)
    assert KEY in repr(OpenAI(model="gpt-4.1", api_key=KEY).to_dict()), "the stock class shows it"
    assert contextualizer.to_dict()["model"] == "openai:gpt-4.1"


def test_the_model_is_part_of_the_dictionary_so_that_a_pipelines_cache_sees_it() -> None:
    one, other = (LLMContextualizer(llm=ScriptedLLM(model_name=name)) for name in ("one", "other"))
    assert one.to_dict() != other.to_dict()
    assert LLMContextualizer.from_dict(one.to_dict()).model == "ScriptedLLM:one"
