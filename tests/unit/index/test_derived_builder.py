"""Derived data of a part, made from the chunks of its documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual.index.bm25 import LexicalIndexBuilder
from llama_index_contextual.index.derived import DerivedBuilder
from llama_index_contextual.index.manifest import BM25_DIRECTORY
from llama_index_contextual.metadata import CONTEXT, TITLE

PIECES = (
    *(
        "a",
        "n",
        "water",
        "pumps",
        "TS-",
        "999",
        "3.",
        "10",
        "FY",
        "2018",
        "May 2, 2019",
        "水泵",
        "停止。",
        "ポンプ",
        "\u0301",
    ),
    *("é", "🙂", "|", "\n", "\n\n", ". ", "。", "\t", "  ", " ", "\u00a0", "\u2028", "x" * 170, "_", "-", "'s"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@given(TEXTS, st.fixed_dictionaries({}, optional={TITLE: TEXTS, CONTEXT: TEXTS}))
def test_the_lexical_index_of_chunks_is_that_of_their_embedded_texts(text: str, metadata: dict[str, str]) -> None:
    node = TextNode(text=text, metadata=metadata)
    builder, expected = DerivedBuilder(has_terms=True), LexicalIndexBuilder(language="english")
    builder.add([node], "english")
    expected.add_texts([node.get_content(metadata_mode=MetadataMode.EMBED)])
    assert counts(builder.terms[BM25_DIRECTORY]) == counts(expected)


@pytest.mark.parametrize(
    ("text", "metadata", "template"),
    [
        ("a", {TITLE: "banana"}, "{metadata_str}\n\n{content}"),
        ("a", {TITLE: "banana"}, "{content}\n\n{metadata_str}"),
        ("pump", {TITLE: "water"}, "{metadata_str}{content}"),
        ("pump ", {TITLE: "water"}, "{metadata_str}\n\n{content}"),
        ("", {TITLE: "water"}, "{metadata_str}\n\n{content}"),
    ],
)
def test_a_text_that_is_also_in_the_metadata_is_indexed_as_it_is_embedded(
    text: str, metadata: dict[str, str], template: str
) -> None:
    node = TextNode(text=text, metadata=metadata, text_template=template)
    builder, expected = DerivedBuilder(has_terms=True), LexicalIndexBuilder(language="none")
    builder.add([node], "none")
    expected.add_texts([node.get_content(metadata_mode=MetadataMode.EMBED)])
    assert counts(builder.terms[BM25_DIRECTORY]) == counts(expected)


def counts(builder: LexicalIndexBuilder) -> object:
    """Return the terms of an index and its arrays."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in vars(builder.build()).items()
    }
