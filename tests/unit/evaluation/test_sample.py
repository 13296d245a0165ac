"""A sample of documents: folders, types and lengths in proportion, documents with evidence, the same for a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode

from llama_index_contextual.errors import InputError
from llama_index_contextual.evaluation.questions import Evidence, Question
from llama_index_contextual.evaluation.sample import draw_sample
from llama_index_contextual.index.manifest import DocumentRecord, Records


def version_of(ids: Iterable[str], chunks: Iterable[TextNode] = ()) -> Any:
    """Return a version with these documents, of 10, 20, 30 … tokens, and these chunks."""
    records = [
        DocumentRecord(doc_id=doc_id, content_hash=doc_id, file_name=PurePosixPath(doc_id).name, tokens=10 * at)
        for at, doc_id in enumerate(ids, start=1)
    ]
    return SimpleNamespace(records=Records(records), docstore=SimpleNamespace(iterate=lambda: iter(chunks)))


def about(*files: str) -> Question:
    return Question(text=f"What is in {files}?", evidence=[Evidence(file=file, text="words") for file in files])


def sampled(version: Any, questions: list[Question], size: int, seed: int = 0) -> tuple[list[Question], list[str]]:
    selected, outside = draw_sample(version, questions, size, seed=seed)
    return list(selected), [record.doc_id for record in version.records if record.doc_id not in outside]


FOLDERS = [f"mail/{at:03}.eml" for at in range(80)] + [f"law/{at:03}.pdf" for at in range(20)]


@pytest.mark.parametrize("seed", range(5))
def test_folders_types_and_lengths_are_drawn_in_proportion(seed: int) -> None:
    _, chosen = sampled(version_of(FOLDERS), [], 20, seed)
    assert Counter(PurePosixPath(doc_id).parent.name for doc_id in chosen) == {"mail": 16, "law": 4}
    lengths = [int(PurePosixPath(doc_id).stem) // 5 for doc_id in chosen if doc_id.startswith("mail")]
    assert sorted(lengths) == list(range(16)), "one of each five consecutive lengths"
    _, mixed = sampled(version_of(f"{at:03}.{'md' if at % 4 else 'csv'}" for at in range(80)), [], 8, seed)
    assert Counter(PurePosixPath(doc_id).suffix for doc_id in mixed) == {".md": 6, ".csv": 2}


def test_a_seed_determines_the_sample() -> None:
    version = version_of(FOLDERS)
    first = sampled(version, [], 10)
    assert sampled(version, [], 10) == first
    assert len({tuple(sampled(version, [], 10, seed)[1]) for seed in range(10)}) > 1


def test_documents_with_evidence_are_three_quarters_and_other_documents_the_rest() -> None:
    questions = [about(doc_id) for doc_id in FOLDERS[:40]]
    selected, chosen = sampled(version_of(FOLDERS), questions, 20)
    assert len(chosen) == 20
    assert len(selected) == len(set(chosen) & set(FOLDERS[:40])) == 15
    assert {item.file for question in selected for item in question.evidence} <= set(chosen)


@pytest.mark.parametrize(
    ("documents", "size", "expected"),
    [(3, 20, 3), (40, 1, 1), (100, 20, 20), (95, 20, 15)],
    ids=["all with evidence", "a single document", "no other documents", "five others"],
)
def test_no_place_in_the_sample_is_left_empty(documents: int, size: int, expected: int) -> None:
    questions = [about(doc_id) for doc_id in FOLDERS[:documents]]
    selected, chosen = sampled(version_of(FOLDERS), questions, size)
    assert (len(selected), len(chosen)) == (expected, size)


def test_a_question_needs_all_its_documents() -> None:
    questions = [about("a.md", "b.md"), about("c.md"), about("a.md", "c.md", "d.md")]
    for seed in range(10):
        selected, chosen = sampled(version_of(["a.md", "b.md", "c.md", "d.md", "e.md", "f.md"]), questions, 4, seed)
        assert len(chosen) == 4
        assert selected == [
            question for question in questions if {item.file for item in question.evidence} <= set(chosen)
        ]
        assert selected


def test_evidence_without_a_file_is_looked_up_in_the_passages() -> None:
    chunks = [
        TextNode(
            id_=f"{name}-0",
            text=f"The {name} is here.",
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=doc_id)},
        )
        for name, doc_id in (("pump", "a.md"), ("motor", "b.md"))
    ]
    version = version_of(["a.md", "b.md", "c.md"], chunks)
    by_chunk = Question(text="Which motor?", evidence=[Evidence(chunk_id="motor-0")])
    by_text = Question(text="Which pump?", evidence=[Evidence(text="The pump is here.")])
    assert "b.md" in sampled(version, [by_chunk], 1)[1]
    assert "a.md" in sampled(version, [by_text], 1)[1]


@pytest.mark.parametrize(("size", "message"), [(0, "use at least one"), (1, "use a larger one")])
def test_a_sample_that_answers_no_question_is_an_error(size: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_sample(version_of(["a.md", "b.md", "c.md"]), [about("a.md", "b.md")], size)
