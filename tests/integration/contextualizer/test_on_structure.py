"""The context of an LLM below the structural line: where both go, which gives way, and what stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import Document, MetadataMode

from llama_index_contextual import (
    LLMContextualizer,
    Project,
    ProjectConfig,
    ProjectManager,
    StructuralContextualizer,
)
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.answering.prompts import passages_prompt
from llama_index_contextual.contextualizer.base import MAX_CONTEXT_TOKENS, ChunkContext, segments, with_context
from llama_index_contextual.metadata import context_parts
from llama_index_contextual.tools.models import SearchResult
from tests.integration.contextualizer.samples import chunks
from tests.support.models import CountingEmbedding, ScriptedLLM

ANSWER = "The quarterly report of the valve works; this part compares the orders with those of the year before."


def contextualizer(**options: object) -> LLMContextualizer:
    return LLMContextualizer(llm=ScriptedLLM(default=ANSWER), **options)  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path, text_folder: Path) -> Project:
    config = ProjectConfig.local(context="llm")
    manager = ProjectManager(tmp_path / "knowledge")
    made = manager.create("p", config, llm=ScriptedLLM(default=ANSWER), embed_model=CountingEmbedding())
    made.ingest([text_folder])
    return made


def test_the_context_is_the_structural_line_and_the_sentences_of_the_llm() -> None:
    structural = StructuralContextualizer()(chunks())
    both = contextualizer()(chunks())
    for line, node in zip(structural, both, strict=True):
        assert context_parts(node.metadata) == (line.metadata["context"], ANSWER)
        embedded = node.get_content(metadata_mode=MetadataMode.EMBED)
        assert embedded == f"{line.metadata['context']}\n{ANSWER}\n\n{node.get_content()}"
        assert node.metadata["context_source"] == "llm"


def test_without_the_structural_line_the_context_is_the_answer() -> None:
    for node in contextualizer(on_structure=False)(chunks()):
        assert node.metadata["context"] == ANSWER
        assert "context_written_at" not in node.metadata


@given(st.integers(0, 260))
def test_both_parts_together_have_at_most_200_tokens_and_the_structural_line_gives_way(words: int) -> None:
    nodes = chunks()
    (segment, *_) = segments(nodes, segment_size=8000)
    text = " ".join(["valve"] * min(words, 190)) or "A."
    structural = StructuralContextualizer()
    (context,) = structural.add_structure(segment, segment.chunks[:1], [ChunkContext(text, "llm")])
    assert context.text == text
    assert count_tokens(context.structure) + count_tokens(text) <= MAX_CONTEXT_TOKENS
    (whole,) = structural.contexts(segment, segment.chunks[:1])
    assert whole.text.startswith(context.structure)


def test_a_context_of_another_source_gets_no_structural_line() -> None:
    (segment, *_) = segments(chunks(), segment_size=8000)
    given_context = ChunkContext("Structure.", "structural", "failed")
    assert StructuralContextualizer().add_structure(segment, segment.chunks[:1], [given_context]) == [given_context]


def test_a_new_context_replaces_both_parts() -> None:
    node = with_context(chunks()[0], ChunkContext("Second.", "llm", structure="First."))
    assert context_parts(node.metadata) == ("First.", "Second.")
    again = with_context(node, ChunkContext("Only this.", "llm"))
    assert context_parts(again.metadata) == ("", "Only this.")


def test_the_answering_prompt_and_the_tools_show_the_sentences_of_the_llm_only(project: Project) -> None:
    response = project.retrieve("valve")
    for text in (
        passages_prompt(response.to_nodes()),
        SearchResult.from_response(response).text_for_model(places=False),
    ):
        assert f"Background: {ANSWER}" in text
        assert "Terms:" not in text


def test_an_explanation_names_terms_that_only_the_structural_line_has(project: Project) -> None:
    (first, *_) = project.retrieve("manual.txt", mode="lexical", explain=True).explanations
    assert first.in_structure == ("manual.txt", "txt")
    assert not {"manual.txt", "txt"} & {*first.in_text, *first.in_context, *first.missing}
    assert "only in its structural part: " in str(first)


@pytest.mark.parametrize("key", ["title", "file_name", "section"])
@pytest.mark.parametrize(("value", "shown"), [(2024, "2024"), (["a"], ""), ({"a": 1}, ""), (None, "")])
def test_metadata_that_is_not_text_is_no_error(tmp_path: Path, key: str, value: object, shown: str) -> None:
    project = ProjectManager(tmp_path).create("p", ProjectConfig.local(context="structural"))
    project.ingest([Document(id_="a", text="The pump runs dry. " * 50, metadata={key: value})])
    (hit,) = project.retrieve("Which pump runs dry?")
    expected = f"Section: {shown}." if key == "section" else f"{shown}."
    assert hit.node.metadata.get("context", "").startswith(expected if shown else "")
    assert shown or "context" not in hit.node.metadata
