"""The example documents give the same results as recorded in `tests/data/recording.jsonl.gz`.

After a change that is meant to change answers: `python -m tests.integration.test_recording` writes it anew.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.recording import differences, load_records, record
from tests.support.source import ROOT

GOLDEN = ROOT / "tests" / "data" / "recording.jsonl.gz"
LEFT_OUT = ("examples/files", "examples/estimate")
"""Bytes of files and prices follow the releases of the libraries."""


def recorded() -> Iterator[dict[str, Any]]:
    """Yield the records of the examples, without checksums of files, prices, and numbers inside sentences."""
    for row in record(None, ()):
        if row["key"] in LEFT_OUT:
            continue
        if row["key"].endswith("/explain"):
            for explanation in (*row["value"].get("explanations", ()), *row["value"].get("near_misses", ())):
                del explanation["arithmetic"], explanation["why_not"]
        yield row


def test_answers_are_those_that_were_recorded() -> None:
    now = {row["key"]: json.loads(json.dumps(row["value"])) for row in recorded()}
    assert len(now) > 200
    # Processors add up single-precision products in different orders.
    assert list(differences(load_records(GOLDEN), now, "", tolerance=1e-5)) == []


def test_a_difference_is_named_by_its_place() -> None:
    before = {"a": {"score": 1.0, "ids": ["x", "y"]}}
    assert list(differences(before, {"a": {"score": 1.0 + 1e-12, "ids": ["x", "y"]}}, "")) == []
    assert list(differences(before, {"a": {"score": 1.1, "ids": ["x", "z"]}}, "")) in (
        [".a.score: 1.0 became 1.1", ".a.ids[1]: y became z"],
        [".a.ids[1]: y became z", ".a.score: 1.0 became 1.1"],
    )


if __name__ == "__main__":
    lines = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in recorded())
    GOLDEN.write_bytes(gzip.compress(lines.encode(), mtime=0))
