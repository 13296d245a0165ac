"""What the package answers, recorded before a change and compared after it.

    python -m tests.benchmarks.recording write BEFORE.jsonl --data ../shared/data
    python -m tests.benchmarks.recording write AFTER.jsonl --data ../shared/data
    python -m tests.benchmarks.recording compare BEFORE.jsonl AFTER.jsonl

Recorded are the example documents, the question sets (without `--data` only the examples), and files in legacy
encodings: for each question of a set the hybrid ranking, for up to 300 of them also each mode, a metadata filter, the
explanation, and the question as a follow-up of the two before it; the checksum of each file of the versions; and the
price of an ingest by an LLM. Results are compared to 1e-9 in their scores and exactly in everything else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

from llama_index_contextual import (
    ConversationalRetriever,
    ConversationQuery,
    IngestReport,
    Project,
    ProjectConfig,
    ProjectManager,
    RetrievalResponse,
)
from tests.benchmarks.sets import SHORT_SETS, load
from tests.support.examples import DATA, rows

MODES = ("semantic", "lexical", "hybrid")
SAMPLE = 300
TOLERANCE = 1e-9
ENCODINGS = {
    "cp1252": "Die Prüfgebühr beträgt 12 €. “Naïve” façades – déjà vu in the café.",
    "cp1250": "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń.",
    "cp1251": "Договор вступает в силу с момента подписания обеими сторонами.",
    "koi8-r": "Плата за воду устанавливается один раз в год.",
    "cp1253": "Η σύμβαση ισχύει από την ημερομηνία υπογραφής.",
    "iso-8859-2": "Árvíztűrő tükörfúrógép és a díjszabás új feltételei.",
    "shift_jis": "契約は両当事者が署名した日から効力を生じます。水道料金は年に一度改定されます。",
    "euc-jp": "契約は両当事者が署名した日から効力を生じます。",
    "gb18030": "合同自双方签字之日起生效。水费每年调整一次。",
    "big5": "合約自雙方簽字之日起生效。水費每年調整一次。",
    "euc-kr": "계약은 양 당사자가 서명한 날부터 효력이 발생한다.",
    "utf-16": "A file with a byte order mark: fees, 12 €.",
    "utf-8-sig": "A file with a mark in front: fees, 12 €.",
}

Record = dict[str, Any]


def record(data: Path | None, sets: Sequence[str]) -> Iterator[Record]:
    """Yield every record, each with a `key` that names it."""
    with tempfile.TemporaryDirectory() as root:
        manager = ProjectManager(Path(root) / "projects")
        yield from examples(manager)
        yield from encodings(manager, Path(root) / "encodings")
        for name in sets if data else ():
            assert data is not None
            questions = load(data, name)
            project = manager.create(name, ProjectConfig.local())
            report = project.ingest([questions.folder] if questions.folder else questions.nodes(context=True))
            yield from version(project, name, report)
            yield from answers(project, name, [question.text for question in questions.questions])
            manager.delete(name)


def examples(manager: ProjectManager) -> Iterator[Record]:
    """Yield the records of the example documents."""
    project = manager.create("examples", ProjectConfig.local())
    report = project.ingest([DATA])
    yield from version(project, "examples", report)
    yield from answers(project, "examples", [row["question"] for row in rows(DATA / "questions.jsonl")])
    estimated = manager.create("estimated", ProjectConfig(llm="openai:gpt-4.1")).estimate([DATA]).to_dict()
    estimated["skipped"] = len(estimated["skipped"])
    yield {"key": "examples/estimate", "value": estimated}


def encodings(manager: ProjectManager, folder: Path) -> Iterator[Record]:
    """Yield the text that is read from files in legacy encodings."""
    folder.mkdir()
    for name, text in ENCODINGS.items():
        (folder / f"{name}.txt").write_bytes((f"{name}\n\n" + f"{text}\n" * 8).encode(name))
    project = manager.create("encodings", ProjectConfig.local())
    report = project.ingest([folder])
    for document in project.documents():
        yield {"key": f"encodings/{document.doc_id}", "value": project.read(document.doc_id)}
    yield {
        "key": "encodings/warnings",
        "value": sorted(f"{Path(one.path).name}: {one.message}" for one in report.warnings),
    }


def version(project: Project, name: str, report: IngestReport) -> Iterator[Record]:
    """Yield what a version consists of, without its times and without the place of its documents."""
    directory = project.directory / "parts"
    files = {
        path.relative_to(directory).as_posix(): xxhash.xxh3_64_hexdigest(path.read_bytes())
        for path in sorted(directory.rglob("*"))
        # The document store contains the places of the documents, and the manifest the checksum of the document store.
        if path.is_file() and path.name not in ("part.json", "docstore.sqlite")
    }
    yield {"key": f"{name}/files", "value": files}
    documents = [{**asdict(document), "origin": None} for document in project.documents()]
    yield {"key": f"{name}/documents", "value": documents}
    yield {"key": f"{name}/skipped", "value": [f"{Path(file.path).name}: {file.reason}" for file in report.skipped]}


def answers(project: Project, name: str, questions: Sequence[str]) -> Iterator[Record]:
    """Yield the answers to questions: of all by the hybrid ranking, of a sample in every other way."""
    for at, response in enumerate(project.retrieve_many(list(questions))):
        yield {"key": f"{name}/{at}/hybrid", "value": shortened(response)}
    documents = project.documents()
    follow_up = ConversationalRetriever(project.as_retriever(), embed_model=project.embed_model)
    sample = range(0, len(questions), max(1, -(-len(questions) // SAMPLE)))
    for at in sample:
        question, doc_id = questions[at], documents[at % len(documents)].doc_id
        filters = MetadataFilters(filters=[MetadataFilter(key="file_name", value=doc_id.rpartition("/")[2])])
        for mode in MODES:
            key = f"{name}/{at}/{mode}"
            yield {"key": f"{key}/five", "value": shortened(project.retrieve(question, mode=mode, top_k=5))}
            yield {"key": f"{key}/filter", "value": shortened(project.retrieve(question, mode=mode, filters=filters))}
            explained = project.retrieve(question, mode=mode, top_k=3, explain=True)
            yield {"key": f"{key}/explain", "value": shortened(explained)}
        history = [
            ChatMessage(message, role=role)
            for earlier in questions[max(0, at - 2) : at]
            for message, role in ((earlier, "user"), (f"See the documents about {earlier.lower()}", "assistant"))
        ]
        blended = follow_up.respond(ConversationQuery(question, history=history))
        yield {"key": f"{name}/{at}/follow-up", "value": shortened(blended)}


def shortened(response: RetrievalResponse) -> Record:
    """Return a response as JSON values, with checksums instead of texts and of all but ids behind the tenth result."""
    value = json.loads(json.dumps(response.to_dict()))
    for result in value["results"]:
        for field in ("text", "context"):
            result[field] = xxhash.xxh3_64_hexdigest((result[field] or "").encode())
        del result["source"]
    value["results"][10:] = [[result["node_id"], result["score"]] for result in value["results"][10:]]
    value.pop("version")
    return value  # type: ignore[no-any-return]


def differences(before: Any, after: Any, at: str, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Yield where two records differ."""
    if isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{at}: {before!r} became {after!r}"
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from differences(before.get(key), after.get(key), f"{at}.{key}", tolerance)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at}[{number}]", tolerance)
    elif before != after:
        yield f"{at}: {str(before)[:120]} became {str(after)[:120]}"


def load_records(path: Path) -> dict[str, Any]:
    """Read a recording, by key."""
    if path.suffix != ".gz":
        return {row["key"]: row["value"] for row in rows(path)}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {row["key"]: row["value"] for row in map(json.loads, file)}


def main() -> None:
    """Write a recording, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="*", default=list(SHORT_SETS))
    arguments = parser.parse_args()
    if arguments.command == "write":
        with open(arguments.files[0], "w", encoding="utf-8") as file:
            for row in record(arguments.data, arguments.sets):
                file.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
        print(f"recorded in {arguments.files[0]}")
        return
    before, after = map(load_records, arguments.files)
    results = list(differences(before, after, ""))
    print("\n".join(results[:40]))
    print(f"{len(before)} records before, {len(after)} after, {len(results)} differences")
    sys.exit(bool(results))


if __name__ == "__main__":
    main()
