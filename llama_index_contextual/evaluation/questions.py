"""Questions with evidence, the format of question files, and questions written by an LLM.

A question set is a JSON Lines file. Each line contains a `question` and its evidence in one of these forms:

    {"question": "…", "relevant": ["chunk id", …]}                                    the chunks themselves
    {"question": "…", "file": "a.pdf", "evidence": [{"start": 120, "end": 340}]}      character spans
    {"question": "…", "file": "a.pdf", "evidence": [{"page": 3}, {"pages": [5, 6]}]}  physical pages, starting at 1
    {"question": "…", "file": "a.pdf", "evidence": ["…", {"text": "…"}]}              text that answers the question

The `file` may also be part of an evidence item. It may be omitted only if the evidence is text. The `id` is optional;
other keys are ignored.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, Self, TypeVar

from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, TextNode
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from llama_index_contextual._utils.calls import RetryPolicy, acall, describe, run_sync
from llama_index_contextual._utils.clients import own_client
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.templates import enclosed
from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.batch import QA
from llama_index_contextual.errors import InputError, ModelError
from llama_index_contextual.index import files
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.models import model_name
from llama_index_contextual.search.results import RetrievedChunk

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

SPAN_SHARE = 0.5
"""Minimum fraction of the characters in a span, or of the pages in a range, that a result must cover."""
TEXT_SHARE = 0.8
"""Minimum fraction of the pairs of neighbouring words in a text that a result must contain."""
_WHOLE = 20  # number of letters and digits from which a text may be contained without regard to words

_MAX_NAMED, _MAX_NAME = 3, 60  # numbers of questions in a note, and of characters of each of them

_FORMS = '"relevant": [chunk ids], or "file" and "evidence": [{"start": 0, "end": 90} | {"page": 3} | "the text"]'

# Runs of ASCII letters and digits, or any other letter on its own, because many scripts do not use spaces.
_WORD = re.compile(r"[a-z0-9]+|[^\W_\x00-\x7f]")


def words(text: str) -> list[str]:
    """Return the word tokens of a text in lower case, regardless of white space.

    Example:
        >>> words("Clause 4(b): 第四条")
        ['clause', '4', 'b', '第', '四', '条']
    """
    return _WORD.findall(text.lower())


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _pairs(tokens: Sequence[str]) -> Counter[tuple[str, ...]]:
    return Counter[tuple[str, ...]]([*((token,) for token in tokens), *pairwise(tokens)])


@dataclass(frozen=True)
class ResultChunk:
    """Search result prepared for comparison with evidence.

    Attributes:
        chunk: The result.
    """

    chunk: RetrievedChunk

    @cached_property
    def letters(self) -> str:
        """Letters and digits of the result."""
        return _letters(self.chunk.text)

    @cached_property
    def pairs(self) -> Counter[tuple[str, ...]]:
        """Words, and pairs of neighbouring words, of the result."""
        return _pairs(words(self.chunk.text))

    @cached_property
    def ascii_pairs(self) -> Counter[tuple[str, ...]]:
        """The same for its words of ASCII letters and digits only."""
        return _pairs([word for word in words(self.chunk.text) if word.isascii()])

    @cached_property
    def names(self) -> frozenset[str]:
        """Names by which evidence may refer to the result's document."""
        source = self.chunk.source
        return frozenset(name for name in (source.file_name, source.file_path, source.doc_id) if name)


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value


_Text = Annotated[str, AfterValidator(_not_blank)]
_Number = Annotated[int, Field(strict=True, ge=0, le=2**53)]


class Evidence(BaseModel):
    """One item of evidence for a question: exactly one of a chunk, a span, pages or a text.

    During validation, a string is converted to `text`, `start` and `end` to `span`, and a single `page` to `pages`.

    Attributes:
        file: File name, path or document id; None for a chunk or for a text that may be in any file.
        chunk_id: Id of the chunk.
        span: Start and end offset; the end is exclusive.
        pages: First and last physical page, starting at 1.
        text: The text.

    Raises:
        ValueError: Not exactly one of the four forms is given, or a value is invalid.
    """

    model_config = ConfigDict(frozen=True)

    file: _Text | None = None
    chunk_id: _Text | None = None
    span: tuple[_Number, _Number] | None = None
    pages: tuple[_Number, _Number] | None = None
    text: _Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_short_forms(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if isinstance(value, dict) and ("start" in value or "end" in value):
            return {**value, "span": (value.get("start"), value.get("end"))}
        if isinstance(value, dict) and "page" in value:
            return {**value, "pages": (value["page"], value["page"])}
        return value

    @model_validator(mode="after")
    def _require_one_form(self) -> Self:
        forms = [form for form in (self.chunk_id, self.span, self.pages, self.text) if form is not None]
        if len(forms) != 1:
            raise ValueError(f"must be exactly one of a chunk, a span, pages or a text: use {_FORMS}")
        if self.span and self.span[0] >= self.span[1]:
            raise ValueError(f"has an empty span, {self.span[0]}–{self.span[1]}")
        if self.pages and not 1 <= self.pages[0] <= self.pages[1]:
            raise ValueError(f"has invalid pages, {self.pages[0]}–{self.pages[1]}: count from 1")
        if self.text is not None and not self._tokens:
            raise ValueError("has a text without words")
        return self

    @cached_property
    def _tokens(self) -> list[str]:
        tokens = words(self.text or "")
        ascii_tokens = [token for token in tokens if token.isascii()]
        letters = len(tokens) - len(ascii_tokens)
        # In a mostly ASCII text, ignore other letters, because each of them would count as much as a word.
        return ascii_tokens if letters <= sum(map(len, ascii_tokens)) else tokens

    def _is_text_in(self, passage: ResultChunk) -> bool:
        letters = _letters(self.text or "")
        if len(letters) >= _WHOLE and letters in passage.letters:
            return True
        of_passage = passage.ascii_pairs if all(map(str.isascii, self._tokens)) else passage.pairs
        pairs = Counter[tuple[str, ...]](pairwise(self._tokens)) or Counter([(self._tokens[0],)])
        return (pairs & of_passage).total() >= TEXT_SHARE * pairs.total()

    def is_in(self, passage: ResultChunk) -> bool:
        """Return whether a result contains this item.

        For a chunk, the result must be that chunk. For any other item, the result must be from the same file and cover
        at least half of the characters or pages, or contain the text or at least 80 % of its pairs of neighbouring
        words.
        """
        if self.chunk_id is not None:
            return passage.chunk.node_id == self.chunk_id
        if self.file is not None and self.file not in passage.names:
            return False
        if self.text is not None:
            return self._is_text_in(passage)
        source = passage.chunk.source
        if self.span is not None:
            start, end = self.span
            overlap = min(end, source.end_char or 0) - max(start, source.start_char or 0)
            return overlap >= SPAN_SHARE * (end - start)
        if self.pages is None or source.page_start is None:
            return False
        first, last = self.pages
        overlap = min(last, source.page_end or source.page_start) - max(first, source.page_start) + 1
        return overlap >= SPAN_SHARE * (last - first + 1)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question and its evidence.

    Attributes:
        text: The question.
        evidence: At least one item of evidence.
        id: Identifier of the question in reports.

    Raises:
        InputError: The question is empty, has no evidence, or has a span or pages without a file.

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
            raise InputError(f"The question has no evidence: add {_FORMS}.")
        if any(item.file is None for item in self.evidence if item.span or item.pages):
            raise InputError("Evidence by characters or pages needs a `file`.")

    def ranks(self, passages: Sequence[ResultChunk]) -> list[int | None]:
        """Return, for each evidence item, the rank (starting at 1) of the first result that contains it, or None."""
        return [
            next((rank for rank, passage in enumerate(passages, start=1) if item.is_in(passage)), None)
            for item in self.evidence
        ]

    def is_in(self, passage: ResultChunk) -> bool:
        """Return whether a result contains any evidence item."""
        return any(item.is_in(passage) for item in self.evidence)


def ids_by_name(documents: Sequence[DocumentRecord]) -> dict[str, set[str]]:
    """Map each document id and file name, by which evidence may refer to documents, to the ids of these documents."""
    ids: dict[str, set[str]] = {}
    for record in documents:
        for name in filter(None, (record.doc_id, record.file_name)):
            ids.setdefault(name, set()).add(record.doc_id)
    return ids


def require_files(documents: Sequence[DocumentRecord], questions: Sequence[Question]) -> None:
    """Check that the project contains at least some of the evidence, because otherwise every figure would be zero.

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


def evidence_notes(version: OpenVersion, questions: Sequence[Question], hits: Set[Evidence]) -> list[str]:
    """Return notes on evidence that cannot be retrieved, because no passage of the project contains it.

    Args:
        version: The version of the project that contains the passages.
        questions: The questions.
        hits: The evidence that was retrieved, which is not looked up.

    Raises:
        InputError: No passage contains any of the evidence, so every figure would be zero.
    """
    present, items = ids_by_name(version.records), {item for question in questions for item in question.evidence}
    without_file = {item for item in items if item.file is not None and item.file not in present}
    absent = _not_in_passages(version, items - without_file - hits, present)
    of_files, of_passages = (
        [q for q in questions if not kind.isdisjoint(q.evidence)] for kind in (without_file, absent)
    )
    names = ", ".join(repr(q.id or shorten(q.text, _MAX_NAME, placeholder=" …")) for q in of_passages[:_MAX_NAMED])
    number = pluralize(len(of_passages), "question")
    check = "check its texts, pages, spans and chunk ids; a text must fit into one passage."
    if absent and absent | without_file == items:
        raise InputError(f"No passage of the project contains evidence of {number}, such as {names}: {check}")
    notes = []
    if of_files:
        notes.append(f"In files that the project does not have: evidence of {pluralize(len(of_files), 'question')}.")
    if of_passages:
        notes.append(f"In no passage of the project: evidence of {number} ({names}), counted as not retrieved; {check}")
    return notes


def _not_in_passages(version: OpenVersion, items: Set[Evidence], present: Mapping[str, set[str]]) -> Set[Evidence]:
    """Return the items that no passage contains.

    Args:
        version: The version.
        items: The items.
        present: Ids of the documents by each name, which include the names in the items.
    """
    in_any = any(item.file is None for item in items)
    doc_ids = [None] if in_any else {doc_id for item in items for doc_id in present[item.file or ""]}
    for doc_id in doc_ids:
        for node in version.docstore.iterate(doc_id=doc_id):
            passage = ResultChunk(RetrievedChunk(node=node))
            items = {item for item in items if not item.is_in(passage)}
    return items


class _Row(BaseModel):
    question: _Text
    id: str = Field(default="", coerce_numbers_to_str=True)
    file: _Text | None = None
    relevant: list[_Text] = []
    evidence: list[Evidence] = []

    def to_question(self) -> Question:
        chunks = [Evidence(chunk_id=chunk_id) for chunk_id in self.relevant]
        in_file = [
            item if item.file or item.chunk_id else item.model_copy(update={"file": self.file})
            for item in self.evidence
        ]
        return Question(text=self.question, evidence=(*chunks, *in_file), id=self.id)


class _AnswerRow(BaseModel):
    question: _Text
    answers: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        default=[], validation_alias=AliasChoices("answers", "answer")
    )
    evidence: list[Evidence] = []


def as_question(value: Question | Mapping[str, Any], number: int) -> Question:
    """Return a question, given as an object or as a dict with the keys of a line in a question file.

    Raises:
        InputError: The value is not a question with evidence; the message contains the number.
    """
    if isinstance(value, Question):
        return value
    if not isinstance(value, Mapping):
        raise InputError(
            f'Question {number} is of type {type(value).__name__}: pass a Question, or a dict with "question" and'
            f" {_FORMS}.",
            value=value,
        )
    try:
        return _Row.model_validate(value).to_question()
    except (InputError, ValidationError) as error:
        reason = _first_fault(error) if isinstance(error, ValidationError) else str(error)
        raise InputError(f"Question {number}: {reason}", value=value) from error


def load_questions(path: str | Path) -> list[Question]:
    """Read a question file in the format described in the module docstring of `evaluation/questions.py`.

    Raises:
        InputError: The file cannot be read, or a line is not a question with evidence; the message contains the line
            number.

    Example:
        >>> load_questions("questions.jsonl")  # doctest: +SKIP
    """
    return parse_questions(_read_bytes(path), name=Path(path).name)


def parse_questions(data: bytes, *, name: str = "questions") -> list[Question]:
    """Parse the content of a question file, skipping empty lines.

    Args:
        data: JSON lines in UTF-8.
        name: File name for messages.

    Raises:
        InputError: A line is not a question with evidence, two questions have the same id, or there are no questions.
    """
    lines: dict[str, int] = {}

    def question(row: _Row, number: int) -> Question:
        first = lines.setdefault(row.id, number)
        if row.id and first != number:
            raise InputError(f"has the same id as line {first}: ids must differ.")
        return row.to_question()

    if questions := _parse_lines(data, name, _Row, question):
        return questions
    raise InputError(f'{name} has no questions: write one JSON object per line, with "question" and {_FORMS}.')


def load_qa(path: str | Path) -> list[QA]:
    """Read questions with their correct answers from a JSON Lines file.

    A line has the form `{"question": "…", "answers": ["…"]}`. A single answer may be given as `"answer": "…"`, and the
    answers may be omitted. The first text in `"evidence"` is used to determine whether the evidence was retrieved.

    Raises:
        InputError: The file cannot be read, or a line is not a question; the message contains the line number.
    """

    def qa(row: _AnswerRow, _number: int) -> QA:
        evidence = next((item.text for item in row.evidence if item.text), "")
        return QA(question=row.question, answers=row.answers, evidence=evidence)

    name = Path(path).name
    if items := _parse_lines(_read_bytes(path), name, _AnswerRow, qa):
        return items
    raise InputError(f'{name} has no questions: write one JSON object per line, with "question" and "answers".')


def _read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read ({reason}): name a file of JSON lines.", value=str(path)) from error


def _parse_lines(data: bytes, name: str, row: type[M], parse: Callable[[M, int], T]) -> list[T]:
    """Parse the non-blank lines of a JSON Lines file; error messages contain the line number.

    Args:
        data: Content of the file.
        name: File name for messages.
        row: Model that validates the object in a line.
        parse: Function that converts the validated object, given its line number.
    """
    items = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                items.append(parse(row.model_validate_json(line), number))
            except (InputError, ValidationError) as error:
                reason = _first_fault(error) if isinstance(error, ValidationError) else str(error)
                raise InputError(f"{name}, line {number}: {reason}", value=number) from error
    return items


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if not first["loc"]:
        return f'is not a JSON object in UTF-8: write one per line, with "question" and {_FORMS}.'
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f'has no "{place}".'
    return f'"{place}" {first["msg"].removeprefix("Value error, ").replace("Input should", "should")}.'


def write_questions(questions: Sequence[Question], path: str | Path) -> None:
    """Write a question file for `load_questions`, replacing an existing file."""
    rows = [
        {
            "id": question.id,
            "question": question.text,
            "evidence": [item.model_dump(exclude_none=True) for item in question.evidence],
        }
        for question in questions
    ]
    files.replace(Path(path), "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())


# ---- Questions written by an LLM -------------------------------------------------------------------------------------

QUESTIONS = 50
PER_CHUNK = 2
CONCURRENCY = 8


def generate_questions(
    version: OpenVersion, llm: LLM, *, number: int = QUESTIONS, doc_ids: Set[str] | None = None
) -> list[Question]:
    """Have an LLM write questions about randomly chosen chunks.

    The prompt contains only the text of a chunk, without its document or context, so the chunk is the evidence. The
    questions share words with the chunk, which makes them easier than real questions for every retriever.

    Args:
        version: The version with the chunks.
        llm: Any LlamaIndex LLM; it writes two questions per call, with up to eight concurrent calls.
        number: Maximum number of questions.
        doc_ids: Ids of the documents with the chunks; None for all.

    Raises:
        InputError: `number` is not positive, or the LLM did not write any questions.
        ModelError: The LLM cannot be reached or rejects the request.
    """
    require_number(number)
    nodes = version.docstore.iterate()
    ids = [node.node_id for node in nodes if doc_ids is None or node.ref_doc_id in doc_ids]
    chunks = version.docstore.get_nodes(random.Random(0).sample(ids, min(len(ids), -(-number // PER_CHUNK))))
    with warnings.catch_warnings(record=True):
        # The deprecation warning recommends a class that llama-index-core no longer contains.
        warnings.simplefilter("always")
        answers = run_sync(lambda: _ask_all(llm, chunks))
    questions: list[Question] = []
    for chunk, texts in zip(chunks, answers, strict=True):
        for text in texts:
            questions.append(Question(text=text, evidence=(_evidence_in(chunk),), id=f"generated-{len(questions) + 1}"))
    if not questions:
        raise InputError("The LLM wrote no question about the documents: name a file of questions.")
    return questions[:number]


def require_number(number: int) -> None:
    """Check that a number of questions is positive.

    Raises:
        InputError: It is not.
    """
    if number < 1:
        raise InputError(f"The number of questions is {number}: it must be at least 1.", value=number)


async def _ask_all(llm: LLM, chunks: Sequence[BaseNode]) -> list[Sequence[str]]:
    semaphore = asyncio.Semaphore(CONCURRENCY)

    async def ask(client: LLM, chunk: BaseNode) -> Sequence[str]:
        async with semaphore:
            return await acall(lambda: _ask_llm(client, chunk), RetryPolicy())

    async with own_client(llm) as client:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(client, chunk)) for chunk in chunks]
        except ExceptionGroup as errors:  # any exception raised by an LLM class cancels the other tasks
            error = errors.exceptions[0]
            raise ModelError(describe(error, setting="llm", model=model_name(llm)), setting="llm") from error
    return [task.result() for task in tasks]


async def _ask_llm(llm: LLM, chunk: BaseNode) -> Sequence[str]:
    from llama_index.core.evaluation.dataset_generation import DEFAULT_QUESTION_GENERATION_PROMPT, DatasetGenerator

    text = enclosed(chunk.get_content(), DEFAULT_QUESTION_GENERATION_PROMPT)
    generator = DatasetGenerator([TextNode(text=text)], llm=llm, num_questions_per_chunk=PER_CHUNK)
    questions = await generator.agenerate_questions_from_nodes()
    texts = (scrub(storable_text(text)).strip() for text in questions)
    return [text for text in dict.fromkeys(texts) if text][:PER_CHUNK]


def _evidence_in(chunk: BaseNode) -> Evidence:
    start, end = getattr(chunk, "start_char_idx", None), getattr(chunk, "end_char_idx", None)
    if chunk.ref_doc_id is None or start is None or end is None:
        return Evidence(chunk_id=chunk.node_id)
    return Evidence(file=chunk.ref_doc_id, span=(start, end))
