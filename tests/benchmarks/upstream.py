"""Question sets of ready passages, read from unchanged upstream files in a local folder.

`cookbook` reads the evaluation set of Anthropic's cookbook for contextual embeddings, `xquad` a language of XQuAD, and
`tatqa` the development and test sets of TAT-QA. The passages and the evidence are those of the files: the chunks of the
cookbook, the paragraphs of XQuAD, and the tables and paragraphs of TAT-QA.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.benchmarks.sets import Question, QuestionSet

TATQA_FILES = ("tatqa_dataset_dev.json", "tatqa_dataset_test_gold.json")


def cookbook(folder: Path) -> QuestionSet:
    """Read `codebase_chunks.json` and `evaluation_set.jsonl` of the cookbook.

    A question refers to a chunk by the UUID of its document and the number of the chunk in it.

    Raises:
        ValueError: A question refers to a chunk that does not exist.
    """
    chunks, ids = [], {}
    for document in _read(folder / "codebase_chunks.json"):
        position = 0
        for chunk in document["chunks"]:
            ids[document["original_uuid"], chunk["original_index"]] = chunk["chunk_id"]
            position = max(0, document["content"].find(chunk["content"], position))
            chunks.append(_chunk(chunk["chunk_id"], document["doc_id"], position, chunk["content"]))
    questions = []
    for line in (folder / "evaluation_set.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        wanted = [ids.get(tuple(reference)) for reference in row["golden_chunk_uuids"]]
        if None in wanted:
            raise ValueError(f"A chunk of the question {row['query']!r} does not exist: are both files of one version?")
        questions.append(Question(row["query"], [{"id": one} for one in wanted]))
    return QuestionSet("cookbook", None, chunks, questions)


def xquad(folder: Path, language: str) -> QuestionSet:
    """Read `xquad.<language>.json`: the passages are the paragraphs, and the evidence is the question's paragraph."""
    chunks, questions = [], []
    for article in _read(folder / f"xquad.{language}.json")["data"]:
        paragraphs = _passages(article["title"], (paragraph["context"] for paragraph in article["paragraphs"]))
        chunks += paragraphs
        for chunk, paragraph in zip(paragraphs, article["paragraphs"], strict=True):
            questions += [Question(qa["question"], [{"id": chunk["chunk_id"]}]) for qa in paragraph["qas"]]
    return QuestionSet(f"xquad-{language}", None, chunks, questions)


def tatqa(folder: Path) -> QuestionSet:
    """Read the development and test sets of TAT-QA.

    The passages of a document are its table, in Markdown format, and its paragraphs. The evidence is what the
    annotators name: the table, paragraphs, or both. Questions that are asked about several documents in the same words,
    such as "What does the table show?", are left out.
    """
    chunks, questions = [], []
    for name in TATQA_FILES:
        for document in _read(folder / name):
            table = document["table"]
            passages = _passages(
                table["uid"], [markdown(table["table"]), *(paragraph["text"] for paragraph in document["paragraphs"])]
            )
            chunks += passages
            ids = {
                str(paragraph["order"]): chunk["chunk_id"]
                for paragraph, chunk in zip(document["paragraphs"], passages[1:], strict=True)
            }
            for row in document["questions"]:
                wanted = [passages[0]["chunk_id"]] if "table" in row["answer_from"] else []
                wanted += [ids[order] for order in row["rel_paragraphs"]]
                questions.append(Question(row["question"], [{"id": one} for one in wanted]))
    asked = Counter(question.text.strip().casefold() for question in questions)
    unique = [question for question in questions if asked[question.text.strip().casefold()] == 1]
    return QuestionSet("tatqa", None, chunks, unique)


def markdown(rows: list[list[str]]) -> str:
    """Return a table in Markdown format, the first row as its header."""
    lines = [f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]])


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _passages(document: str, texts: Iterable[str]) -> list[dict[str, Any]]:
    """Return the chunks of a document whose passages follow one another after empty lines."""
    chunks: list[dict[str, Any]] = []
    position = 0
    for number, text in enumerate(texts):
        chunks.append(_chunk(f"{document}-{number}", document, position, text))
        position += len(text) + 2
    return chunks


def _chunk(chunk_id: str, document: str, start: int, text: str) -> dict[str, Any]:
    return {"chunk_id": chunk_id, "doc_id": document, "start": start, "end": start + len(text), "text": text}
