"""Contexts from the structure of a document: without an LLM, deterministic, free of charge.

A structural context names the document and the section, and quotes the beginning of the document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from llama_index.core.schema import BaseNode
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.contextualizer.base import (
    MAX_CONTEXT_TOKENS,
    ChunkContext,
    Contextualizer,
    Segment,
    segments,
)

_LONGEST_WORD = 40
_MAX_TITLE_TOKENS = 40
_MAX_SECTION_TOKENS = 25
# A paged document of so many chunks begins with a cover, whose first lines say what the document is. In hundreds of
# chunks the rest of it only displaces their own words.
_LONG_DOCUMENT = 100
_COVER_CHARACTERS = 150


class StructuralContextualizer(Contextualizer):
    """Build contexts from title, file name, section path and opening of the document.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> node = TextNode(text="Revenue grew by 3 %.", metadata={"title": "ACME Q2 2023", "section": "Results"})
        >>> StructuralContextualizer()([node])[0].metadata["context"]
        'ACME Q2 2023. Section: Results.'
    """

    max_tokens: int = Field(
        default=120,
        gt=0,
        description="Maximum number of tokens of a context; half as many more for a document with pages, whose title"
        " and section names are longer.",
    )

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "StructuralContextualizer"

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return await asyncio.to_thread(self.contexts, segment, chunks)

    def contexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        """Return one context for each of the given chunks of a segment."""
        head = _document_line(segment)
        # A single chunk contains the opening itself. The first of several gets it as well: with the words of the
        # opening only once, it would rank below the other chunks, which have them in addition to their own text.
        alone = segment.begins_document and len(segment.chunks) == 1
        opening = "" if alone else segment.opening
        if segment.document_size > _LONG_DOCUMENT and keys.PAGE_START in segment.chunks[0].metadata:
            opening = _shortened(opening, _COVER_CHARACTERS)
        return [ChunkContext(self._write(head, opening, chunk), "structural") for chunk in chunks]

    def below(
        self, segment: Segment, chunks: Sequence[BaseNode], written: Sequence[ChunkContext]
    ) -> list[ChunkContext]:
        """Return contexts written by an LLM with the structural line before them.

        Line and context together have at most 200 tokens; where the context leaves no room, the line is shortened.

        Args:
            segment: The segment.
            chunks: Chunks of the segment.
            written: Their contexts; those from another source stay as they are.
        """
        lines = self.contexts(segment, chunks)
        return [
            replace(context, structure=truncate(line.text, max(0, MAX_CONTEXT_TOKENS - count_tokens(context.text))))
            if context.source == "llm"
            else context
            for line, context in zip(lines, written, strict=True)
        ]

    def put_below(self, nodes: Sequence[BaseNode], written: Mapping[str, str]) -> None:
        """Give chunks of a document the contexts that an LLM wrote for them earlier, below their structural lines.

        Args:
            nodes: All chunks of the document; their metadata is changed.
            written: Contexts by the id of the chunk.
        """
        for segment in segments(nodes, segment_size=self.segment_size):
            chunks = [chunk for chunk in segment.chunks if chunk.node_id in written]
            contexts = [ChunkContext(written[chunk.node_id], "llm") for chunk in chunks]
            for chunk, context in zip(chunks, self.below(segment, chunks, contexts), strict=True):
                chunk.metadata |= context.to_metadata()

    def _write(self, head: str, opening: str, chunk: BaseNode) -> str:
        """Join the parts that fit, the most informative first: names, opening."""
        section = keys.label_of(chunk.metadata, keys.SECTION)
        parts = [head, f"Section: {truncate(section, _MAX_SECTION_TOKENS)}." if section else ""]
        parts += [f"Begins: {opening}" if opening else ""]
        limit = self.max_tokens * 3 // 2 if keys.PAGE_START in chunk.metadata else self.max_tokens
        return truncate(" ".join(part for part in parts if part), limit)


def _document_line(segment: Segment) -> str:
    title, name = segment.title, segment.file_name
    if title and name and title != name:
        return f"{truncate(title, _MAX_TITLE_TOKENS)} ({truncate(name, _MAX_TITLE_TOKENS)})."
    return f"{truncate(title, _MAX_TITLE_TOKENS)}." if title else ""


def _shortened(text: str, length: int) -> str:
    """Return the first words of a text, up to a number of characters, with an ellipsis after them."""
    if len(text) <= length:
        return text
    cut = text.rfind(" ", 0, length + 1)
    return f"{text[: cut if cut > 0 else length]} …"


def truncate(text: str, max_tokens: int) -> str:
    """Return the text cut to at most `max_tokens` tokens, at the end of a word.

    A very long word, such as a sentence in a script without spaces, is cut at a character.
    """
    text = " ".join(text.split())
    if count_tokens(text) <= max_tokens:
        return text
    words = text.split(" ")
    count = _most(len(words), lambda n: count_tokens(" ".join(words[:n])) <= max_tokens)
    whole_words = " ".join(words[:count])
    if count and len(words[count]) <= _LONGEST_WORD:
        return whole_words
    head, word = f"{whole_words} " if whole_words else "", words[count]
    return (head + word[: _most(len(word), lambda n: count_tokens(head + word[:n]) <= max_tokens)]).strip()


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, by bisection; 0 is assumed to fit."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
