"""Texts of every kind that the node parsers must cope with: drawn by hypothesis, generated, or read from real files."""

from __future__ import annotations

import json
import random
from functools import lru_cache

from hypothesis import strategies as st
from llama_index.core.schema import Document, TextNode

from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from tests.support.shared import shared_data

PIECES = (
    "The quick brown fox jumps over the lazy dog. ",
    "Dr. Smith paid $3.50 for 3.2 kg; he said “why?”\n\n",
    "# Heading\n\n",
    "- item one\n- item two\n",
    "```python\ndef f(x):\n    return x | 1\n```\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n",
    "你好，世界。今天天气很好！我们去公园吧？",
    "日本語のテキストです。カタカナとひらがな、漢字。",
    "ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ ",
    "هذا نص عربي. كيف حالك؟ ",
    "שלום עולם. ",
    "नमस्ते दुनिया। यह क्षत्रिय है। ",
    "한국어 문장입니다. ",
    "👨‍👩‍👧‍👦👍🏽🇩🇪🇫🇷",
    "é́́ ",
    "Supercalifragilisticexpialidocious" * 5,
    "aB9_" * 80,
    "1234567890" * 12,
    " " * 50,
    "\n" * 20,
    "\r\n\r\n",
    "\u00a0\u3000\u200b",
    "\u0301",
    "\u0600",
    "<|endoftext|>",
    '{"a":1,"b":[1,2,3]},',
    "http://example.com/a/b?c=d&e=f",
    "don't",
)

_character = st.characters(exclude_categories=("Cs",))
_piece = st.one_of(
    st.sampled_from(PIECES),
    st.text(_character, max_size=40),
    st.builds(lambda piece, times: piece * times, st.sampled_from(PIECES), st.integers(1, 30)),
)
texts = st.one_of(st.lists(_piece, max_size=40).map("".join), st.text(_character, max_size=400))


def prose(words: int, *, seed: int) -> str:
    """Return sentences of made-up words, in paragraphs under headings."""
    source = random.Random(seed)
    out = []
    for number in range(words):
        word = "".join(source.choice("aeioubcdfglmnprst") for _ in range(source.randint(2, 9)))
        out.append(word + (". " if number % 11 == 10 else " "))
        if number % 97 == 96:
            out.append("\n\n")
        if number % 700 == 699:
            out.append(f"## Part {number // 700}\n\n")
    return "".join(out)


def split(
    text: str, *, size: int, overlap: int, segment_size: int = 8_000, segment_overlap: int | None = None
) -> list[TextNode]:
    """Return the chunks of a text by way of segments."""
    shared = segment_size // 10 if segment_overlap is None else segment_overlap
    segments = SegmentNodeParser(segment_size=segment_size, segment_overlap=shared)([Document(id_="doc", text=text)])
    return ChunkNodeParser(chunk_size=size, chunk_overlap=overlap)(segments)  # type: ignore[return-value]


@lru_cache(maxsize=1)
def real_paragraphs() -> list[str]:
    """Return stretches of the real Markdown and source files, ready to be put together at random."""
    found = [
        path.read_text(encoding="utf-8")
        for folder in ("corpora", "conversations")
        for path in sorted((shared_data(folder) / "documents").iterdir())[:40]
    ]
    source = (shared_data("codebase") / "documents.jsonl").read_text(encoding="utf-8")
    found += [json.loads(line)["text"] for line in source.splitlines()[:40]]
    return [part + "\n\n" for text in found for part in text[:60_000].split("\n\n") if part.strip()]
