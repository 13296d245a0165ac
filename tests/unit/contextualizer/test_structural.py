"""Structural contexts: short, deterministic, informative."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import BaseNode, NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.contextualizer import StructuralContextualizer
from llama_index_contextual.contextualizer.base import truncate
from llama_index_contextual.node_parser import count_tokens
from tests.integration.contextualizer.samples import chunks


def contexts(nodes: list[BaseNode], **options: int) -> list[str]:
    return [node.metadata["context"] for node in StructuralContextualizer(**options)(nodes)]


def segment_of(*texts: str, **metadata: str) -> list[BaseNode]:
    """Return a document whose first segment is an opening and whose second one holds `texts`."""
    opening = TextNode(text="This annual account opens with a letter.", metadata={**metadata, "segment_index": 0})
    rest = [TextNode(text=text, metadata={**metadata, "segment_index": 1}) for text in texts]
    for node in (opening, *rest):
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc")
    return [opening, *rest]


def second(nodes: list[BaseNode], **options: int) -> str:
    """Return the context of the second node."""
    return str(StructuralContextualizer(**options)(nodes)[1].metadata["context"])


# ---- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "head"),
    [
        ({"title": "m.pdf", "file_name": "m.pdf"}, "m.pdf."),
        ({"title": "Manual"}, "Manual."),
        ({}, "Begins:"),
    ],
)
def test_a_document_without_a_title_is_named_by_its_file(metadata: dict[str, str], head: str) -> None:
    assert second(segment_of("The pump needs oil.", **metadata)).startswith(head)


@pytest.mark.parametrize(
    ("size", "metadata", "quoted"),
    [
        (101, {"page_start": 1}, f"{'Cover page. ' * 12}Cover …"),
        (100, {"page_start": 1}, f"{'Cover page. ' * 30}".strip()),
        (101, {}, f"{'Cover page. ' * 30}".strip()),
    ],
    ids=["long", "short", "without pages"],
)
def test_of_a_long_paged_document_only_the_first_words_are_quoted(
    size: int, metadata: dict[str, int], quoted: str
) -> None:
    nodes: list[BaseNode] = [TextNode(text="Cover page. " * 30, metadata={**metadata, "segment_index": 0})]
    nodes += [TextNode(text="It", metadata={**metadata, "segment_index": 1}) for _ in range(size - 1)]
    for node in nodes:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc")
    assert second(nodes) == f"Begins: {quoted}"


def test_the_context_of_a_single_chunk_does_not_repeat_its_opening() -> None:
    assert contexts([TextNode(text="It grew by 3 %.", metadata={"title": "Results"})]) == ["Results."]


def test_a_chunk_without_any_structure_has_no_context() -> None:
    (node,) = StructuralContextualizer()([TextNode(text="It grew by 3 %.")])
    assert "context" not in node.metadata


# ---- how long it is --------------------------------------------------------------------------------------------------

odd_texts = st.text(max_size=2000) | st.sampled_from(
    ["word " * 900, "文" * 900, "x" * 5000, "🙂" * 400, "\u0e01" * 600, "a\n\n\n" * 300, "‰" * 700]
)


@given(title=odd_texts, name=odd_texts, section=odd_texts, opening=odd_texts, text=odd_texts)
def test_a_structural_context_never_exceeds_120_tokens(
    title: str, name: str, section: str, opening: str, text: str
) -> None:
    nodes = segment_of(text, title=title, file_name=name, section=section)
    nodes[0].set_content(opening)
    for node in StructuralContextualizer()(nodes):
        assert count_tokens(node.metadata.get("context", "")) <= 120


def test_a_long_context_is_cut_at_its_end() -> None:
    nodes = segment_of("oil water steam", title="The manual of the pump")
    nodes[0].set_content("an ox " * 500)
    context = second(nodes)
    assert context.startswith("The manual of the pump. Begins: an ox an ox")
    assert 110 <= count_tokens(context) <= 120


@pytest.mark.parametrize("text", ["公司第二季度收入增长。" * 60, "บริษัทเติบโตขึ้น" * 60])
def test_scripts_without_spaces_have_an_opening(text: str) -> None:
    nodes = segment_of(text, title="季报")
    nodes[0].set_content(text)
    context = second(nodes)
    assert context.startswith(f"季报. Begins: {text[:30]}")
    assert 100 <= count_tokens(context) <= 120


def test_the_same_chunks_give_the_same_contexts_everywhere() -> None:
    title = "Orlen Valve Works, second quarter (report.md)."
    opening = "Begins: # Results Revenue grew by 3 % over the quarter before. Orders from shipyards made up half of it."
    close = "Begins: Close valve V2 before the bench is switched off. Error TS-999 means that the pump runs"
    assert contexts(chunks()) == [
        f"{title} Section: Results. {opening}",
        f"{title} Section: Results. {opening}",
        f"{title} Section: Outlook. {opening}",
        f"{title} Section: Outlook. {opening}",
        f"manual.txt. {close}",
        f"manual.txt. {close}",
    ]


# ---- its parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("one two three", 2, "one two"),
        ("one two three", 3, "one two three"),
        ("one  two\nthree", 3, "one two three"),
        ("the antidisestablishmentarianism", 2, "the"),
        ("short " + "文" * 60, 10, "short 文文文文文文文文文"),
    ],
)
def test_a_text_is_cut_at_a_word_or_else_at_a_character(text: str, limit: int, cut: str) -> None:
    assert truncate(text, limit) == cut


def test_the_limit_is_half_as_high_again_for_pages() -> None:
    nodes = segment_of("oil water steam " * 50, title="The manual of the pump", section="2 Use", page_start=1)
    nodes[0].set_content("oil water steam " * 50)
    assert 28 <= max(count_tokens(text) for text in contexts(nodes, max_tokens=20)) <= 30
