"""Question sets as files of JSON lines: read with an error that names the line, and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.storage import files
from llama_index_contextual.storage.storable import has_surrogate

_FORMS = '"relevant": [chunk ids], or "file" and "evidence": [{"start": 0, "end": 90} | {"page": 3} | "the text"]'
_MAX_NUMBER = 2**53


def load_questions(path: str | Path) -> list[Question]:
    """Read a question set; see `evaluation/questions.py` for what a line holds.

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
    """Read a question set from the bytes of a file; empty lines are skipped.

    Args:
        data: JSON lines in UTF-8.
        name: What the file is called in messages.

    Raises:
        InputError: A line is not a question with evidence, two have one id, or there is none at all.
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
            raise InputError(f"{name}, line {number}: has the id of line {first}: give it its own.", value=number)
        lines[question.id] = number
        questions.append(question)
    if not questions:
        raise InputError(f'{name} holds no question: write one JSON object a line, with "question" and {_FORMS}.')
    return questions


def write_questions(questions: Sequence[Question], path: str | Path) -> None:
    """Write a question set that `load_questions` reads; an existing file is replaced."""
    rows = [_row(question) for question in questions]
    files.replace(Path(path), "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON in UTF-8 ({type(error).__name__}): write one JSON object a line.") from error
    if not isinstance(row, dict):
        raise InputError('is not a JSON object: write {"question": …, "evidence": …}.')
    return row


def _question(row: Mapping[str, Any]) -> Question:
    evidence = tuple(_evidence(row))
    if not evidence:
        raise InputError(f"has no evidence: give {_FORMS}.")
    given = row.get("id", "")
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise InputError('"id" is neither a text nor a whole number.')
    return Question(text=_text(row, "question"), evidence=evidence, id=_clean(str(given), "id"))


def _evidence(row: Mapping[str, Any]) -> Iterator[Evidence]:
    for chunk_id in _list(row, "relevant"):
        yield Evidence(chunk_id=_text({"relevant": chunk_id}, "relevant"))
    for item in _list(row, "evidence"):
        yield _item({"text": item} if isinstance(item, str) else item, row)


def _item(item: Any, row: Mapping[str, Any]) -> Evidence:
    if not isinstance(item, dict):
        raise InputError(f"an evidence item is neither a text nor an object: give {_FORMS}.")
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
    raise InputError(f"an evidence item says nothing of where it stands: give {_FORMS}.")


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f'"{key}" is missing, empty or no text.')
    return _clean(value, key)


def _clean(value: str, key: str) -> str:
    if has_surrogate(value):
        raise InputError(f'"{key}" holds half a character (a lone surrogate): remove it.')
    return value


def _number(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise InputError(f'"{key}" is missing or no whole number from 0.')
    return value


def _list(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise InputError(f'"{key}" is no list.')
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
