"""The example documents are ranked as recorded in `tests/data/recording.jsonl.gz`: ids, scores to 1e-5, and evidence.

After a change that is meant to change answers: `python -m tests.integration.test_recording` writes it anew.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.benchmarks.recording import compare, lines, load_records, record
from tests.support.source import ROOT

GOLDEN = ROOT / "tests" / "data" / "recording.jsonl.gz"


def test_answers_are_those_that_were_recorded() -> None:
    now = {row["key"]: row["value"] for row in map(json.loads, lines(record()))}
    assert len(now) > 200
    assert list(compare(load_records(GOLDEN), now)) == []


def hit(name: str, score: float, rank: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": name, "score": score, "lexical": {"rank": rank, "score": score}, **more}


BEFORE = [hit("a", 2.0, 1), hit("b", 1.0, 2), hit("c", 1.0, 3), hit("d", 0.5, 4)]


@pytest.mark.parametrize(
    ("after", "places"),
    [
        ([hit("a", 2.00001, 1), *BEFORE[1:]], []),
        ([BEFORE[0], hit("c", 1.0, 2), hit("b", 1.0, 3), BEFORE[3]], []),
        ([*BEFORE[:3], hit("e", 0.5, 4)], []),
        ([hit("a", 2.1, 1), *BEFORE[1:]], ["[0].lexical.score", "[0].score"]),
        ([BEFORE[1], BEFORE[0], *BEFORE[2:]], ["[0].id", "[0].score", "[1].id", "[1].score"]),
        ([*BEFORE[:2], hit("e", 1.0, 3), BEFORE[3]], ["[2].id"]),
        ([hit("a", 2.0, 4), *BEFORE[1:]], ["[0].lexical.rank"]),
        ([hit("a", 2.0, 1, source={"page_start": 3}), *BEFORE[1:]], ["[0].source"]),
        (BEFORE[:3], [""]),
    ],
    ids=["tolerance", "ties", "tie at the end", "score", "order", "other id", "rank", "source", "number"],
)
def test_a_difference_is_named_by_its_place(after: list[dict[str, Any]], places: list[str]) -> None:
    differences = compare({"k": {"results": BEFORE}}, {"k": {"results": after}})
    assert sorted(line.partition(": ")[0] for line in differences) == [f"k.results{place}" for place in places]


if __name__ == "__main__":
    GOLDEN.write_bytes(gzip.compress("".join(lines(record())).encode(), mtime=0))
