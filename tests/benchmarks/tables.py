"""Column heads of continued tables, and what they do to retrieval: `python -m tests.benchmarks.tables --data DATA`.

For the PDFs of each set: how many tables with a head are found, how many chunks there are, how many of them begin with
a row of figures, and how many of these carry a column head. Then recall with and without the heads, on the same text:
`ProjectConfig.local()`, structural context, hybrid. Contracts are scored as in `tests.benchmarks.sets`; of filings, a
page is found when a result of the file spans it.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from llama_index.core.schema import Document

from llama_index_contextual import ChunkNodeParser, ProjectConfig, ProjectManager, SegmentNodeParser, read_documents
from llama_index_contextual.evaluation.metrics import permutation_p_value
from llama_index_contextual.metadata import HEADINGS, PAGES, TABLE_HEAD, TABLES, DocumentMap
from tests.benchmarks.sets import KS, Question, covers, load, recall

SETS = ("contracts", "filings")
_FIGURES = re.compile(r"[^\n]{0,90}?(?:[ $€£]+(?:\(?\d[\d,.]*\)?%?|[—–-])\)?){2,}[ %]*(?:\n|\Z)")


def questions_of(data: Path, name: str) -> list[Question]:
    """Return the questions of a set; the evidence of filings are pages."""
    if name != "filings":
        return load(data, name).questions
    with open(data / name / "questions.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        Question(row["question"], [{"file": row["file"], "page": item["page"]} for item in row["evidence"]])
        for row in rows
    ]


def documents_of(data: Path, name: str) -> list[Document]:
    """Read the PDFs of a set."""
    return read_documents([data / name / "pdf"]).documents


def without_tables(document: Document) -> Document:
    """Return a document whose tables are not known."""
    metadata = {key: value for key, value in document.metadata.items() if key != TABLES}
    return document.model_copy(update={"metadata": {PAGES: "{}", HEADINGS: "[]", **metadata}})


def ranks(documents: Sequence[Document], questions: Sequence[Question]) -> tuple[list[list[int | None]], int]:
    """Return the rank of each item of evidence by question, and the number of chunks."""
    with tempfile.TemporaryDirectory() as root:
        project = ProjectManager(root).create("tables", ProjectConfig.local(context="structural"))
        report = project.ingest(list(documents))
        for skipped in report.skipped:
            print(f"  skipped {skipped.path}: {skipped.reason}")
        out = []
        for question in questions:
            results = project.retrieve(question.text, top_k=max(KS)).results
            out.append(
                [
                    next((rank for rank, result in enumerate(results, 1) if _covers(result, item)), None)
                    for item in question.evidence
                ]
            )
        return out, project.info().chunks


def _covers(result: object, item: dict[str, object]) -> bool:
    if "page" not in item:
        return covers(result, item)  # type: ignore[arg-type]
    source = result.source  # type: ignore[attr-defined]
    return bool(source.file_name == item["file"] and source.page_start <= item["page"] <= source.page_end)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    arguments = parser.parse_args()
    for name in arguments.sets:
        documents = documents_of(arguments.data, name)
        tables = sum(len(DocumentMap.from_metadata(document.metadata).tables) for document in documents)
        chunks = ChunkNodeParser()(SegmentNodeParser()(documents))
        carrying = [chunk for chunk in chunks if TABLE_HEAD in chunk.metadata]
        rows = [chunk for chunk in chunks if _FIGURES.match(chunk.get_content())]
        named = sum(TABLE_HEAD in chunk.metadata for chunk in rows)
        print(f"{name}: {len(documents)} documents, {tables} tables with a head, {len(chunks)} chunks")
        print(f"  {len(carrying)} chunks carry a head; of {len(rows)} that begin with a row of figures, {named} do")
        questions = questions_of(arguments.data, name)
        before, _ = ranks([without_tables(document) for document in documents], questions)
        after, _ = ranks(documents, questions)
        for label, found in (("without heads", before), ("with heads", after)):
            figures = "".join(f"  @{k} {100 * sum(recall(r, k) for r in found) / len(found):5.1f}" for k in KS)
            print(f"  {label:14s}{figures}", flush=True)
        for k in KS:
            gains = [recall(a, k) - recall(b, k) for a, b in zip(after, before, strict=True)]
            better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
            p = permutation_p_value(gains)
            print(f"  @{k}: {better} questions better, {worse} worse, p = {p:.2g}", flush=True)


if __name__ == "__main__":
    main()
