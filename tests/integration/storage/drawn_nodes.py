"""Hypothesis strategies that draw nodes of every kind."""

from __future__ import annotations

from hypothesis import strategies as st
from llama_index.core.schema import (
    BaseNode,
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    Node,
    NodeRelationship,
    ObjectType,
    RelatedNodeInfo,
    TextNode,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_metadata_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    _metadata_texts,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
metadata_dicts = st.dictionaries(_metadata_texts, st.one_of(_scalars, st.lists(_scalars, max_size=3)), max_size=4)
_related = st.builds(
    RelatedNodeInfo,
    node_id=st.text("abc/.é", min_size=1, max_size=4),
    node_type=st.sampled_from([None, ObjectType.TEXT, ObjectType.DOCUMENT]),
    metadata=metadata_dicts,
    hash=st.one_of(st.none(), st.just("5f2a")),
)
_single = st.sampled_from([kind for kind in NodeRelationship if kind != NodeRelationship.CHILD])
_relationships = st.builds(
    lambda single, children: {**single, **({NodeRelationship.CHILD: children} if children else {})},
    st.dictionaries(_single, _related, max_size=3),
    st.lists(_related, max_size=2),
)
_common = {
    "metadata": metadata_dicts,
    "relationships": _relationships,
    "excluded_embed_metadata_keys": st.lists(_metadata_texts, max_size=2),
    "excluded_llm_metadata_keys": st.lists(_metadata_texts, max_size=2),
    "metadata_template": st.sampled_from(["{key}: {value}", "{value}"]),
    "metadata_separator": st.sampled_from(["\n", " | "]),
    "embedding": st.one_of(st.none(), st.lists(st.floats(-1, 1), min_size=1, max_size=3)),
}
_offsets = {
    "start_char_idx": st.one_of(st.none(), st.integers(0, 100)),
    "end_char_idx": st.one_of(st.none(), st.integers(0, 100)),
}
_kinds = st.one_of(
    st.builds(TextNode, text=texts, **_common, **_offsets),
    st.builds(Document, text=texts, **_common),
    st.builds(IndexNode, text=texts, index_id=_metadata_texts, **_common, **_offsets),
    st.builds(ImageNode, text=texts, image_path=st.just("plan.png"), **_common),
    st.builds(Node, text_resource=st.builds(MediaResource, text=texts), **_common),
    st.builds(Node, **_common),
)


@st.composite
def node_lists(draw: st.DrawFn, *, max_size: int = 5) -> list[BaseNode]:
    """Draw nodes of every kind, each with its own id."""
    sampled = draw(st.lists(_kinds, max_size=max_size))
    return [node.model_copy(update={"id_": f"{draw(_metadata_texts)}-{number}"}) for number, node in enumerate(sampled)]
