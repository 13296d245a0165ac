"""The chunks of a small Markdown file, kept as JSON.

After a change that is meant, a run of this file with `LLAMA_INDEX_CONTEXTUAL_REGENERATE=1` writes it anew; read the
difference before it is committed.
"""

from __future__ import annotations

import json
import os
from typing import Any

from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.readers import read_documents
from tests.support.source import ROOT

FLAG = "LLAMA_INDEX_CONTEXTUAL_REGENERATE"
MARKDOWN = ROOT / "tests" / "data" / "handbook.md"
GOLDEN = MARKDOWN.with_suffix(".md.json")


def chunks() -> list[dict[str, Any]]:
    """Return the chunks of the file, small ones so that there are some in several segments."""
    segmenter = SegmentNodeParser(segment_size=300, segment_overlap=40)
    nodes = ChunkNodeParser(chunk_size=128, chunk_overlap=12)(segmenter(read_documents([MARKDOWN])))
    return [
        {
            "id": node.node_id,
            "span": [node.start_char_idx, node.end_char_idx],  # type: ignore[attr-defined]
            "text": node.get_content(),
            "metadata": node.metadata,
        }
        for node in nodes
    ]


def test_the_chunks_of_the_handbook_are_the_known_ones() -> None:
    if os.environ.get(FLAG):
        GOLDEN.write_text(json.dumps(chunks(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert chunks() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_file_is_not_being_regenerated() -> None:
    assert not os.environ.get(FLAG), f"{FLAG} is set: the golden file was just written, not checked. Unset it."
