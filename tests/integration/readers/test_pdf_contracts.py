"""Real contracts: the clauses that lawyers marked are in the text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llama_index_contextual.readers.pdf.reader import read_pdf
from tests.support.shared import shared_data

NAMES = ("OAKTREE", "IdeanomicsInc", "COOLTECHNOLOGIES", "JOINTCORP_09", "TRANSPHORM")


@pytest.fixture(scope="module")
def folder() -> Path:
    return shared_data("contracts")


def letters(text: str) -> str:
    """The text without white space, hyphens and other signs, in lower case."""
    return "".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("name", NAMES)
def test_every_marked_clause_is_found_in_the_text(folder: Path, name: str) -> None:
    (path,) = (folder / "pdf").glob(f"{name}*")
    rows = map(json.loads, (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines())
    clauses = {clause for row in rows if row["file"] == path.name for clause in row["evidence"]}
    text = letters(read_pdf(path).text)

    assert clauses
    assert [clause for clause in clauses if letters(clause) not in text] == []
