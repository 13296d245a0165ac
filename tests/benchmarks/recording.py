"""Record and compare the rankings of the package: ids, scores within a tolerance, and evidence.

    python -m tests.benchmarks.recording write ../before.jsonl --data DATA
    python -m tests.benchmarks.recording compare ../before.jsonl --data DATA

`compare` records the current state of the package, or reads a second file instead. A recording contains the example
documents (every mode, a filter, the explanation, and each question as a follow-up to the two before it), files in
legacy encodings and, with `--data`, the five question sets: ids and scores of the first 20 results for each question
and mode, and nDCG@10 in per cent. Scores are compared with a relative tolerance, and results whose scores are equal
within it may change places. The package is accessed only through `adapter`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import adapter
from tests.benchmarks.sets import SETS, load, score
from tests.support.examples import DATA, rows

MODES = ("semantic", "lexical", "hybrid")
INDEX_NAMES = adapter.INDEX_NAMES
DEPTH = 20
TOLERANCE = 1e-5
"""Relative: processors add up single-precision products in different orders."""
NDCG_POINTS = 0.2
"""By how much the mean nDCG of the sets may change, in per cent."""
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


def record(data: Path | None = None, sets: Sequence[str] = SETS) -> Iterator[Record]:
    """Yield every record, each with a `key` that names it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        yield from examples(root / "projects")
        yield from encodings(root / "projects", root / "encodings")
        for name in sets if data else ():
            assert data is not None
            yield from rankings(root / "projects", data, name)


def examples(root: Path) -> Iterator[Record]:
    """Yield the records of the example documents."""
    project, messages = adapter.ingested(root, "examples", [DATA])
    documents = adapter.documents_of(project)
    yield {"key": "examples/documents", "value": [{**one, "text": len(one["text"])} for one in documents]}
    yield {"key": "examples/messages", "value": messages}
    questions = [row["question"] for row in rows(DATA / "questions.jsonl")]
    responses = adapter.answers(project, questions)
    for at, (question, response) in enumerate(zip(questions, responses, strict=True)):
        yield {"key": f"examples/{at}/many", "value": adapter.evidence_of(response)}
        file_name = documents[at % len(documents)]["file_name"]
        for mode in MODES:
            ways = {"filter": {"file_name": file_name}, "explain": {"top_k": 3, "explain": True}, "five": {"top_k": 5}}
            for way, options in ways.items():
                found = adapter.answer(project, question, mode=mode, **options)
                yield {"key": f"examples/{at}/{mode}/{way}", "value": adapter.evidence_of(found)}
        history = [
            message
            for earlier in questions[max(0, at - 2) : at]
            for message in (("user", earlier), ("assistant", f"See the documents about {earlier.lower()}"))
        ]
        found = adapter.follow_up(project, question, history)
        yield {"key": f"examples/{at}/follow-up", "value": adapter.evidence_of(found)}


def encodings(root: Path, folder: Path) -> Iterator[Record]:
    """Yield the text that is read from files in legacy encodings."""
    folder.mkdir()
    for name, text in ENCODINGS.items():
        (folder / f"{name}.txt").write_bytes((f"{name}\n\n" + f"{text}\n" * 8).encode(name))
    project, messages = adapter.ingested(root, "encodings", [folder])
    for document in adapter.documents_of(project):
        yield {"key": f"encodings/{document['doc_id']}", "value": document["text"]}
    yield {"key": "encodings/messages", "value": messages}


def rankings(root: Path, data: Path, name: str) -> Iterator[Record]:
    """Yield ids and scores of a question set in each mode, and nDCG@10."""
    questions = load(data, name)
    project, _ = adapter.ingested(root, name, questions.inputs())
    for mode in MODES:
        asked = [question.text for question in questions.questions]
        responses = adapter.answers(project, asked, mode=mode, top_k=DEPTH)
        results = dict(zip(asked, map(adapter.results_of, responses), strict=True))
        for at, question in enumerate(asked):
            hits = [{"id": hit.node_id, "score": hit.score} for hit in results[question]]
            yield {"key": f"{name}/{at}/{mode}", "value": {"results": hits}}
        _, ndcg, _ = score(questions.questions, results.__getitem__)
        yield {"key": f"{name}/{mode}/nDCG@10", "value": ndcg}


# ---- compare ---------------------------------------------------------------------------------------------------------


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield where two recordings differ; nDCG is not compared."""
    for key in sorted(before.keys() | after.keys()):
        if not key.endswith("/nDCG@10"):
            yield from differences(before.get(key), after.get(key), key)


def differences(before: Any, after: Any, at: str) -> Iterator[str]:
    """Yield where two values differ, each with its place."""
    if isinstance(before, float) and isinstance(after, float):
        if not equal(before, after):
            yield f"{at}: {before!r} became {after!r}"
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key == "results" and key in before and key in after:
                yield from ranking_differences(before[key], after[key], f"{at}.results")
            else:
                yield from differences(before.get(key), after.get(key), f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif before != after:
        yield f"{at}: {str(before)[:120]} became {str(after)[:120]}"


def ranking_differences(before: Sequence[Record], after: Sequence[Record], at: str) -> Iterator[str]:
    """Yield where two rankings differ.

    Ids must be the same at each rank, unless their scores are equal: then they may have changed places, with each other
    or with a result after the last one.
    """
    if len(before) != len(after):
        yield f"{at}: {len(before)} results became {len(after)}"
        return
    before, after = list(map(_tied_ranks(before), before)), list(map(_tied_ranks(after), after))
    was = {hit["id"]: hit for hit in before}
    for rank, (one, other) in enumerate(zip(before, after, strict=True)):
        yield from differences(one["score"], other["score"], f"{at}[{rank}].score")
        same = was.get(other["id"])
        if one["id"] != other["id"]:
            tied = equal(one["score"], same["score"] if same else before[-1]["score"])
            if not (tied and equal(one["score"], other["score"])):
                yield f"{at}[{rank}].id: {one['id']} became {other['id']}"
        if same:
            yield from differences({**same, "score": 0.0}, {**other, "score": 0.0}, f"{at}[{rank}]")


def _tied_ranks(hits: Sequence[Record]) -> Any:
    """Return a function that gives a result the best rank of those with an equal score, in each leg."""
    best: dict[tuple[str, str], int] = {}
    for leg in INDEX_NAMES:
        found = sorted((hit[leg]["score"], hit[leg]["rank"]) for hit in hits if leg in hit)
        for value, rank in found:
            tied = [other for score, other in found if equal(score, value)]
            best[leg, repr(value)] = min([rank, *tied])

    def tied(hit: Record) -> Record:
        legs = {leg: {**hit[leg], "rank": best[leg, repr(hit[leg]["score"])]} for leg in INDEX_NAMES if leg in hit}
        return {**hit, **legs}

    return tied


def equal(one: float, other: float) -> bool:
    """Return whether two scores are equal to the tolerance."""
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def load_records(path: Path) -> dict[str, Any]:
    """Read a recording, by key."""
    if path.suffix != ".gz":
        return {row["key"]: row["value"] for row in rows(path)}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {row["key"]: row["value"] for row in map(json.loads, file)}


def lines(records: Iterator[Record]) -> Iterator[str]:
    """Yield records as JSON lines."""
    return (json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in records)


def ndcg_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Print nDCG@10 of each set and mode before and after, and return the largest difference of a mode's means."""
    largest = 0.0
    for mode in MODES:
        found = [key for key in before.keys() & after.keys() if key.endswith(f"/{mode}/nDCG@10")]
        for key in sorted(found):
            print(f"{key:36s} {before[key]:6.2f} {after[key]:6.2f} {after[key] - before[key]:+6.2f}")
        if found:
            mean = sum(after[key] - before[key] for key in found) / len(found)
            print(f"{f'mean of {len(found)} sets, {mode}':36s} {mean:+20.2f}")
            largest = max(largest, abs(mean))
    return largest


def main() -> None:
    """Write a recording, or compare with one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["write", "compare"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, help="folder of the question sets; without it only the examples")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    arguments = parser.parse_args()
    if arguments.command == "write":
        with open(arguments.files[0], "w", encoding="utf-8") as file:
            file.writelines(lines(record(arguments.data, arguments.sets)))
        print(f"recorded in {arguments.files[0]}")
        return
    before = load_records(arguments.files[0])
    if len(arguments.files) > 1:
        after = load_records(arguments.files[1])
    else:
        after = {row["key"]: row["value"] for row in map(json.loads, lines(record(arguments.data, arguments.sets)))}
        recorded = ("examples", "encodings", *(arguments.sets if arguments.data else ()))
        before = {key: value for key, value in before.items() if key.split("/")[0] in recorded}
    found = list(compare(before, after))
    print("\n".join(found[:40]))
    largest = ndcg_difference(before, after)
    print(f"{len(before)} records before, {len(after)} after, {len(found)} differences")
    sys.exit(bool(found) or largest > NDCG_POINTS)


if __name__ == "__main__":
    main()
