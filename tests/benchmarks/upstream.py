"""Question sets read from unchanged upstream files in a local folder.

`cookbook` reads the evaluation set of Anthropic's cookbook for contextual embeddings, and `mtrag` the human retrieval
tasks of IBM's MTRAG, both without any conversion. The passages are ready chunks, so every system indexes the same text.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.benchmarks.sets import Question, QuestionSet

DOMAINS = ("clapnq", "cloud", "fiqa", "govt")


def cookbook(folder: Path) -> QuestionSet:
    """Read `codebase_chunks.json` and `evaluation_set.jsonl` of the cookbook.

    A question refers to a chunk by the UUID of its document and the number of the chunk in it.

    Raises:
        ValueError: A question refers to a chunk that does not exist.
    """
    chunks, ids = [], {}
    for document in json.loads((folder / "codebase_chunks.json").read_text(encoding="utf-8")):
        position = 0
        for chunk in document["chunks"]:
            ids[document["original_uuid"], chunk["original_index"]] = chunk["chunk_id"]
            position = max(0, document["content"].find(chunk["content"], position))
            chunks.append(_chunk(chunk["chunk_id"], document["doc_id"], position, chunk["content"]))
    questions = []
    for row in _rows((folder / "evaluation_set.jsonl").read_text(encoding="utf-8")):
        wanted = [tuple(reference) for reference in row["golden_chunk_uuids"]]
        questions.append(_question(row["query"], [ids.get(reference) for reference in wanted]))
    return QuestionSet("cookbook", None, chunks, questions)


def mtrag(folder: Path, domain: str) -> QuestionSet:
    """Read a domain of a checkout of MTRAG: passages (the ZIP file, or unpacked), rewritten queries and judgements.

    The id of a passage consists of the id of its document and the start and end of the passage in it. Queries without a
    judgement are not part of the retrieval task.

    Raises:
        ValueError: A query refers to a passage that does not exist.
    """
    chunks = []
    for row in _rows(_corpus(folder / "corpora" / "passage_level" / f"{domain}.jsonl")):
        document, start, _ = row["_id"].rsplit("-", 2)
        chunks.append(_chunk(row["_id"], document, int(start), row["text"]))
    known = {chunk["chunk_id"] for chunk in chunks}
    tasks = folder / "mtrag-human" / "retrieval_tasks" / domain
    relevant = defaultdict(list)
    with open(tasks / "qrels" / "dev.tsv", encoding="utf-8", newline="") as file:
        for judgement in csv.DictReader(file, delimiter="\t"):
            passage = judgement["corpus-id"]
            relevant[judgement["query-id"]].append(passage if passage in known else None)
    rows = _rows((tasks / f"{domain}_rewrite.jsonl").read_text(encoding="utf-8"))
    asked = [(row["text"].removeprefix("|user|: "), relevant[row["_id"]]) for row in rows if row["_id"] in relevant]
    return QuestionSet(f"mtrag-{domain}", None, chunks, [_question(text, ids) for text, ids in asked])


def _corpus(file: Path) -> str:
    packed = file.with_name(f"{file.name}.zip")
    if file.exists() or not packed.exists():
        return file.read_text(encoding="utf-8")
    with zipfile.ZipFile(packed) as archive, archive.open(file.name) as stream:
        return io.TextIOWrapper(stream, encoding="utf-8").read()


def _rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _chunk(chunk_id: str, document: str, start: int, text: str) -> dict[str, Any]:
    return {"chunk_id": chunk_id, "doc_id": document, "start": start, "end": start + len(text), "text": text}


def _question(text: str, relevant: list[str | None]) -> Question:
    if None in relevant:
        raise ValueError(f"A passage of the question {text!r} does not exist: are both files of one version?")
    return Question(text, [{"id": one} for one in relevant])
