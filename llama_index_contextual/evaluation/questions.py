"""Questions with the evidence that answers them, and when a result holds it.

A question set is a file of JSON lines. What all lines have in common is `question`; the evidence is one of

    {"question": "…", "relevant": ["chunk id", …]}                                    the chunks themselves
    {"question": "…", "file": "a.pdf", "evidence": [{"start": 120, "end": 340}]}      character spans
    {"question": "…", "file": "a.pdf", "evidence": [{"page": 3}, {"pages": [5, 6]}]}  physical pages, from 1
    {"question": "…", "file": "a.pdf", "evidence": ["…", {"text": "…"}]}              the text that answers it

`file` may also stand in an evidence item; only texts may do without. Other keys are ignored, `id` is kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from llama_index_contextual.errors import InputError
from llama_index_contextual.results import RetrievedChunk

SPAN_SHARE = 0.5
"""Share of a span's characters (or of a range's pages) that a result must cover."""
TEXT_SHARE = 0.8
"""Share of a text's word tokens that a result must hold."""

# Runs of ASCII letters and digits; any other letter stands alone, since many scripts write without spaces.
_WORD = re.compile(r"[a-z0-9]+|[^\W_\x00-\x7f]")


def words(text: str) -> list[str]:
    """Return the lower-case word tokens of a text, whatever its white space.

    Example:
        >>> words("Clause 4(b): 第四条")
        ['clause', '4', 'b', '第', '四', '条']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Passage:
    """A result, prepared for comparing it with evidence.

    Attributes:
        chunk: The result.
    """

    chunk: RetrievedChunk

    @cached_property
    def words(self) -> Counter[str]:
        """Its word tokens."""
        return Counter(words(self.chunk.text))

    @cached_property
    def names(self) -> frozenset[str]:
        """What its document may be called."""
        source = self.chunk.source
        return frozenset(name for name in (source.file_name, source.file_path, source.doc_id) if name)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One item that answers a question: exactly one of chunk, span, pages and text.

    Attributes:
        file: File name, path or document id; None for chunks and for texts that may stand anywhere.
        chunk_id: Id of the chunk.
        span: First character and the one behind the last.
        pages: First and last physical page, from 1.
        text: The words.
    """

    file: str | None = None
    chunk_id: str | None = None
    span: tuple[int, int] | None = None
    pages: tuple[int, int] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.chunk_id, self.span, self.pages, self.text) if value is not None]
        if len(given) != 1:
            raise InputError("Evidence is one of a chunk id, a span, pages or a text.", value=given)
        if self.file is None and (self.span or self.pages):
            raise InputError("Evidence by characters or pages needs a `file`.", value=given)
        if self.span and not 0 <= self.span[0] < self.span[1]:
            raise InputError(f"The span {self.span[0]}–{self.span[1]} is empty or negative.", value=self.span)
        if self.pages and not 1 <= self.pages[0] <= self.pages[1]:
            raise InputError(f"The pages {self.pages[0]}–{self.pages[1]} are none: count from 1.", value=self.pages)
        if self.text is not None and not self._need:
            raise InputError("The text of an evidence item has no words.", value=self.text)

    @cached_property
    def _need(self) -> Counter[str]:
        tokens = words(self.text or "")
        ascii_tokens = [token for token in tokens if token.isascii()]
        letters = len(tokens) - len(ascii_tokens)
        # A few foreign letters in a text say little: each would weigh as much as a word.
        return Counter(ascii_tokens if letters <= sum(map(len, ascii_tokens)) else tokens)

    def held_by(self, passage: Passage) -> bool:
        """Return whether a result holds this item.

        It is the chunk itself; or it is of the same file and covers at least half of the characters or pages, or holds
        at least 80 % of the word tokens.
        """
        if self.chunk_id is not None:
            return passage.chunk.node_id == self.chunk_id
        if self.file is not None and self.file not in passage.names:
            return False
        source = passage.chunk.source
        if self.span is not None:
            start, end = self.span
            overlap = min(end, source.end_char or 0) - max(start, source.start_char or 0)
            return overlap >= SPAN_SHARE * (end - start)
        if self.pages is not None:
            if source.page_start is None:
                return False
            first, last = self.pages
            shared = min(last, source.page_end or source.page_start) - max(first, source.page_start) + 1
            return shared >= SPAN_SHARE * (last - first + 1)
        have = passage.words
        return sum(min(n, have[word]) for word, n in self._need.items()) >= TEXT_SHARE * self._need.total()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and the evidence that answers it.

    Attributes:
        text: The question.
        evidence: At least one item.
        id: What the question is called in reports.

    Raises:
        InputError: The question is empty or has no evidence.

    Example:
        >>> Question(text="Who may terminate?", evidence=[Evidence(file="a.pdf", pages=(3, 3))]).id
        ''
    """

    text: str
    evidence: Sequence[Evidence]
    id: str = ""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError("The question is empty.", value=self.text)
        if not self.evidence:
            raise InputError("The question has no evidence: without it, nothing can be counted as found.")

    def ranks(self, passages: Sequence[Passage]) -> list[int | None]:
        """Return for each evidence item the rank (from 1) of the first result that holds it."""
        return [
            next((rank for rank, passage in enumerate(passages, start=1) if item.held_by(passage)), None)
            for item in self.evidence
        ]

    def held_by(self, passage: Passage) -> bool:
        """Return whether a result holds any evidence item."""
        return any(item.held_by(passage) for item in self.evidence)
