"""Context from the document's own structure: no LLM, deterministic, free.

Names the document, the section, how the document begins, and its characteristic terms: what a chunk deep inside a
long document lacks most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import regex  # type: ignore[import-untyped]  # the package ships no types
from llama_index.core.schema import BaseNode
from pydantic import Field

from llama_index_contextual import metadata as keys
from llama_index_contextual.contextualizer.base import ChunkContext, Contextualizer, Segment
from llama_index_contextual.node_parser.tokens import count_tokens

# Scripts without spaces have no words to count.
_WORD = regex.compile(
    r"[\p{L}--[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]][\w\p{M}&'’-]{2,}", regex.V1
)
_LONGEST_WORD = 40
_MAX_TITLE_TOKENS = 40
_MAX_SECTION_TOKENS = 25
_MAX_TERMS = 6


class StructuralContextualizer(Contextualizer):
    """Writes a context of at most `max_tokens` from title, file name, section path, opening and characteristic terms.

    Example:
        >>> from llama_index.core.schema import TextNode
        >>> node = TextNode(text="Revenue grew by 3 %.", metadata={"title": "ACME Q2 2023", "section": "Results"})
        >>> StructuralContextualizer()([node])[0].metadata["context"]
        'ACME Q2 2023. Section: Results.'
    """

    max_tokens: int = Field(default=120, gt=0, description="Tokens of a context, at most.")

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which LlamaIndex serialises this class."""
        return "StructuralContextualizer"

    async def _acontexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        return await asyncio.to_thread(self.contexts, segment, chunks)

    def contexts(self, segment: Segment, chunks: Sequence[BaseNode]) -> list[ChunkContext]:
        """Return the contexts of some chunks of a segment."""
        head = _document_line(segment)
        terms = ", ".join(characteristic_terms(segment.text, _MAX_TERMS))
        # A lone chunk says itself how the document begins. Among several the first one is told as well: to say the
        # opening's words once, where all others say them beside their own, would put it at a disadvantage.
        alone = segment.begins_document and len(segment.chunks) == 1
        opening = "" if alone else segment.opening
        return [ChunkContext(self._write(head, opening, terms, chunk), "structural") for chunk in chunks]

    def _write(self, head: str, opening: str, terms: str, chunk: BaseNode) -> str:
        """Return the parts that fit, most telling first: names, the opening, and terms where there is room left."""
        section = chunk.metadata.get(keys.SECTION)
        parts = [head, f"Section: {truncate(section, _MAX_SECTION_TOKENS)}." if section else ""]
        parts += [f"Begins: {opening}" if opening else "", f"Terms: {terms}." if opening and terms else ""]
        return truncate(" ".join(part for part in parts if part), self.max_tokens)


def _document_line(segment: Segment) -> str:
    title, name = segment.title, segment.file_name
    if title and name and title != name:
        return f"{truncate(title, _MAX_TITLE_TOKENS)} ({truncate(name, _MAX_TITLE_TOKENS)})."
    return f"{truncate(title, _MAX_TITLE_TOKENS)}." if title else ""


def characteristic_terms(text: str, count: int) -> list[str]:
    """Return the most frequent words of a text that are not stop words, at most `count`, ties in order of appearance.

    A word is counted in any case and shown as it first appears.
    """
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    stopwords = frozenset(STOPWORDS_EN_PLUS)
    shown: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for word in _WORD.findall(text):
        folded = word.casefold()
        if folded not in stopwords:
            shown.setdefault(folded, word)
            counts[folded] += 1
    return [shown[word] for word, _ in counts.most_common(count)]


def truncate(text: str, max_tokens: int) -> str:
    """Return the text cut at a word so that it has at most `max_tokens` tokens.

    What is no ordinary word, such as a sentence in a script without spaces, is cut at a character.
    """
    text = " ".join(text.split())
    if count_tokens(text) <= max_tokens:
        return text
    words = text.split(" ")
    count = _most(len(words), lambda n: count_tokens(" ".join(words[:n])) <= max_tokens)
    kept = " ".join(words[:count])
    if count and len(words[count]) <= _LONGEST_WORD:
        return kept
    head, word = f"{kept} " if kept else "", words[count]
    return (head + word[: _most(len(word), lambda n: count_tokens(head + word[:n]) <= max_tokens)]).strip()


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, if all smaller ones do; 0 is taken to fit."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
