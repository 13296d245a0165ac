"""The package matches evidence as the benchmarks do, on every shared question set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from llama_index_contextual.evaluation.questions import Passage, load_questions
from llama_index_contextual.retrievers.response import RetrievedChunk
from tests.benchmarks.sets import SETS, covers, load
from tests.support.shared import shared_data

SHARES = (0.3, 0.45, 0.5, 0.55, 0.75, 0.79, 0.8, 0.82, 0.9, 1.0)


def result(node_id: str, file: str, text: str, span: tuple[int, int], **pages: int) -> RetrievedChunk:
    node = TextNode(
        id_=node_id,
        text=text,
        start_char_idx=span[0],
        end_char_idx=span[1],
        metadata={"file_name": file, **pages},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"folder/{file}")},
    )
    return RetrievedChunk.of(1, NodeWithScore(node=node, score=1.0))


def candidates(item: dict[str, Any], text: str, random_: random.Random) -> Iterator[RetrievedChunk]:
    """Yield results that contain an item fully, barely, almost, and not at all."""
    if "id" in item:
        yield from (result(name, "a.py", "text", (0, 4)) for name in (item["id"], f"{item['id']}0"))
        return
    if "page" in item:
        page = item["page"]
        for first, last in ((page, page), (page - 1, page), (page, page + 2), (page + 1, page + 1)):
            for file in (item["file"], f"{item['file']}x"):
                yield result("c", file, "text", (0, 4), page_start=first, page_end=last)
        yield result("c", item["file"], "text", (0, 4))
        return
    words = text.split()
    for share in SHARES:
        some = random_.sample(words, max(1, round(share * len(words)))) if words else ["none"]
        start, end = item.get("span", (0, 100))
        kept = round(share * (end - start))
        for file in (item["file"], f"{item['file']}x"):
            yield result("c", file, f"Noise — {' '.join(some)}.", (max(0, start - 50), start + kept))
            yield result("c", file, " ".join([*some, *some]), (end - kept, end + 700))


@pytest.mark.parametrize("name", SETS)
def test_evidence_matches_as_in_the_benchmarks(name: str) -> None:
    folder = shared_data(name)
    ours = load_questions(folder / "questions.jsonl")
    theirs = load(folder.parent, name).questions
    assert [question.text for question in ours] == [question.text for question in theirs]
    random_, stored, checked = random.Random(0), 0, 0
    for question, other in list(zip(ours, theirs, strict=True))[::9]:
        for evidence, item in list(zip(question.evidence, other.evidence, strict=True))[:2]:
            for chunk in candidates(item, evidence.text or "", random_):
                expected = covers(chunk, item)
                assert evidence.is_in(Passage(chunk)) == expected, (question.id, chunk.text)
                stored, checked = stored + expected, checked + 1
    assert 0.1 < stored / checked < 0.9
