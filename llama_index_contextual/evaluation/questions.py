"""Questions and their evidence, the question file, and which results and documents contain an evidence item.

A question set is a file of JSON lines. Every line has a `question`; its evidence has one of these forms:

    {"question": "…", "relevant": ["chunk id", …]}                                    the chunks themselves
    {"question": "…", "file": "a.pdf", "evidence": [{"start": 120, "end": 340}]}      character spans
    {"question": "…", "file": "a.pdf", "evidence": [{"page": 3}, {"pages": [5, 6]}]}  physical pages, from 1
    {"question": "…", "file": "a.pdf", "evidence": ["…", {"text": "…"}]}              the text that answers it

`file` may also be in an evidence item, and is optional for texts only. `id` is optional; other keys are ignored.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.storable import has_surrogate
from llama_index_contextual.search.results import RetrievedChunk

SPAN_SHARE = 0.5
"""Minimum share of the characters of a span (or of the pages of a range) that a result must cover."""
TEXT_SHARE = 0.8
"""Minimum share of the word tokens of a text that a result must contain."""

# Runs of ASCII letters and digits; any other letter is a token of its own, since many scripts have no spaces.
_WORD = re.compile(r"[a-z0-9]+|[^\W_\x00-\x7f]")


def words(text: str) -> list[str]:
    """Return the lower-case word tokens of a text, regardless of white space.

    Example:
        >>> words("Clause 4(b): 第四条")
        ['clause', '4', 'b', '第', '四', '条']
    """
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class Passage:
    """A result, prepared for comparison with evidence.

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
        """The names that evidence may use for its document."""
        source = self.chunk.source
        return frozenset(name for name in (source.file_name, source.file_path, source.doc_id) if name)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One item of evidence for a question: exactly one of a chunk, a span, pages and a text.

    Attributes:
        file: File name, path or document id; None for chunks and for texts that may be in any file.
        chunk_id: Id of the chunk.
        span: Start and end offset; the end is exclusive.
        pages: First and last physical page, from 1.
        text: The text.
    """

    file: str | None = None
    chunk_id: str | None = None
    span: tuple[int, int] | None = None
    pages: tuple[int, int] | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        kinds = [value for value in (self.chunk_id, self.span, self.pages, self.text) if value is not None]
        if len(kinds) != 1:
            raise InputError("Evidence must be exactly one of a chunk id, a span, pages or a text.", value=kinds)
        if self.file is None and (self.span or self.pages):
            raise InputError("Evidence by characters or pages needs a `file`.", value=kinds)
        if self.span and not 0 <= self.span[0] < self.span[1]:
            raise InputError(f"The span {self.span[0]}–{self.span[1]} is empty or negative.", value=self.span)
        if self.pages and not 1 <= self.pages[0] <= self.pages[1]:
            raise InputError(f"The pages {self.pages[0]}–{self.pages[1]} are invalid: count from 1.", value=self.pages)
        if self.text is not None and not self._tokens:
            raise InputError("The text of an evidence item has no words.", value=self.text)

    @cached_property
    def _tokens(self) -> Counter[str]:
        tokens = words(self.text or "")
        ascii_tokens = [token for token in tokens if token.isascii()]
        letters = len(tokens) - len(ascii_tokens)
        # Ignore a few non-ASCII letters: each would weigh as much as a word.
        return Counter(ascii_tokens if letters <= sum(map(len, ascii_tokens)) else tokens)

    def is_in(self, passage: Passage) -> bool:
        """Return whether a result contains this item.

        A result contains a chunk if it is that chunk. It contains other items if it is from the same file and covers
        at least half of the characters or pages, or has at least 80 % of the word tokens.
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
        words = passage.words
        return sum(min(n, words[word]) for word, n in self._tokens.items()) >= TEXT_SHARE * self._tokens.total()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and its evidence.

    Attributes:
        text: The question.
        evidence: The evidence, at least one item.
        id: Identifier of the question in reports.

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
            raise InputError("The question has no evidence, so its results cannot be evaluated.")

    def ranks(self, passages: Sequence[Passage]) -> list[int | None]:
        """Return for each evidence item the rank (from 1) of the first result that contains it, or None."""
        return [
            next((rank for rank, passage in enumerate(passages, start=1) if item.is_in(passage)), None)
            for item in self.evidence
        ]

    def is_in(self, passage: Passage) -> bool:
        """Return whether a result contains any evidence item."""
        return any(item.is_in(passage) for item in self.evidence)


def ids_by_name(documents: Sequence[DocumentRecord]) -> dict[str, set[str]]:
    """Return the ids of documents by the names that evidence may use: document ids and file names."""
    ids: dict[str, set[str]] = {}
    for record in documents:
        for name in filter(None, (record.doc_id, record.file_name)):
            ids.setdefault(name, set()).add(record.doc_id)
    return ids


def require_files(documents: Sequence[DocumentRecord], questions: Sequence[Question]) -> None:
    """Check that at least some evidence is in the project; otherwise every figure would be zero.

    Raises:
        InputError: The evidence of every question is in files that are not documents of the project.
    """
    present = ids_by_name(documents)
    items = [item for question in questions for item in question.evidence]
    if items and all(item.file is not None and item.file not in present for item in items):
        raise InputError(
            f"The evidence of {pluralize(len(questions), 'question')} is in files that the project does not have, such"
            f" as {items[0].file!r}: ingest them, or use questions about its documents.",
            value=items[0].file,
        )


def absent_files(documents: Sequence[DocumentRecord], questions: Sequence[Question]) -> list[str]:
    """Return a note if questions have evidence in files that are not documents of the project.

    Args:
        documents: The documents of the project.
        questions: The questions.
    """
    present = ids_by_name(documents)
    number = sum(any(item.file not in present for item in q.evidence if item.file is not None) for q in questions)
    return [f"In files that the project does not have: evidence of {pluralize(number, 'question')}."] if number else []


_FORMS = '"relevant": [chunk ids], or "file" and "evidence": [{"start": 0, "end": 90} | {"page": 3} | "the text"]'
_MAX_NUMBER = 2**53


def load_questions(path: str | Path) -> list[Question]:
    """Read a question file; the module docstring of `evaluation/questions.py` describes its format.

    Raises:
        InputError: The file cannot be read, or a line is not a question with evidence; the message names the line.

    Example:
        >>> load_questions("questions.jsonl")  # doctest: +SKIP
    """
    path = Path(path)
    try:
        data = files.read(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read ({reason}): name a file of JSON lines.", value=str(path)) from error
    return parse_questions(data, name=path.name)


def parse_questions(data: bytes, *, name: str = "questions") -> list[Question]:
    """Parse the content of a question file; empty lines are skipped.

    Args:
        data: JSON lines in UTF-8.
        name: Name of the file in messages.

    Raises:
        InputError: A line is not a question with evidence, two questions have the same id, or there are no questions.
    """
    questions: list[Question] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            question = _question(_object(line))
        except InputError as error:
            raise InputError(f"{name}, line {number}: {error}", value=number) from error
        if question.id and question.id in lines:
            first = lines[question.id]
            raise InputError(f"{name}, line {number}: has the same id as line {first}: ids must differ.", value=number)
        lines[question.id] = number
        questions.append(question)
    if not questions:
        raise InputError(f'{name} has no questions: write one JSON object per line, with "question" and {_FORMS}.')
    return questions


def write_questions(questions: Sequence[Question], path: str | Path) -> None:
    """Write a question file for `load_questions`; an existing file is replaced."""
    rows = [_row(question) for question in questions]
    files.replace(Path(path), "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON in UTF-8 ({type(error).__name__}): write one JSON object per line.") from error
    if not isinstance(row, dict):
        raise InputError('is not a JSON object: write {"question": …, "evidence": …}.')
    return row


def _question(row: Mapping[str, Any]) -> Question:
    evidence = tuple(_evidence(row))
    if not evidence:
        raise InputError(f"has no evidence: add {_FORMS}.")
    identifier = row.get("id", "")
    if isinstance(identifier, bool) or not isinstance(identifier, (str, int)):
        raise InputError('"id" is neither a string nor an integer.')
    return Question(text=_text(row, "question"), evidence=evidence, id=_clean(str(identifier), "id"))


def _evidence(row: Mapping[str, Any]) -> Iterator[Evidence]:
    for chunk_id in _list(row, "relevant"):
        yield Evidence(chunk_id=_text({"relevant": chunk_id}, "relevant"))
    for item in _list(row, "evidence"):
        yield _item({"text": item} if isinstance(item, str) else item, row)


def _item(item: Any, row: Mapping[str, Any]) -> Evidence:
    if not isinstance(item, dict):
        raise InputError(f"an evidence item is neither a string nor an object: use {_FORMS}.")
    place = item if item.get("file") is not None else row
    file = None if place.get("file") is None else _text(place, "file")
    if "chunk_id" in item:
        return Evidence(chunk_id=_text(item, "chunk_id"))
    if "start" in item or "end" in item:
        return Evidence(file=file, span=(_number(item, "start"), _number(item, "end")))
    if "page" in item:
        page = _number(item, "page")
        return Evidence(file=file, pages=(page, page))
    if "pages" in item:
        pages = _list(item, "pages")
        if len(pages) != 2:
            raise InputError('"pages" is not [first, last].')
        return Evidence(file=file, pages=(_number({"pages": pages[0]}, "pages"), _number({"pages": pages[1]}, "pages")))
    if "text" in item:
        return Evidence(file=file, text=_text(item, "text"))
    raise InputError(f"an evidence item has no chunk, span, page or text: use {_FORMS}.")


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f'"{key}" is missing, empty or not a string.')
    return _clean(value, key)


def _clean(value: str, key: str) -> str:
    if has_surrogate(value):
        raise InputError(f'"{key}" contains half a character (a lone surrogate): remove it.')
    return value


def _number(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise InputError(f'"{key}" is missing or not a non-negative integer.')
    return value


def _list(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise InputError(f'"{key}" is not a list.')
    return value


def _row(question: Question) -> dict[str, Any]:
    row: dict[str, Any] = {"id": question.id} if question.id else {}
    return {**row, "question": question.text, "evidence": [_item_row(item) for item in question.evidence]}


def _item_row(item: Evidence) -> dict[str, Any]:
    row: dict[str, Any] = {} if item.file is None else {"file": item.file}
    if item.span is not None:
        return {**row, "start": item.span[0], "end": item.span[1]}
    if item.pages is not None:
        return {**row, "pages": list(item.pages)}
    return {**row, "text": item.text} if item.text is not None else {"chunk_id": item.chunk_id}
