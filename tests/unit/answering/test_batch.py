"""Answering many questions: predictions, SQuAD scores, and the files."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from pydantic import PrivateAttr

from llama_index_contextual.answering.batch import QA, Predictions, answer_many, exact_match, f1_score
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.errors import InputError
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM
from tests.support.recorder import PATIENCE


@pytest.mark.parametrize(
    ("answer", "truth", "exact", "f1"),
    [
        ("The ACME corp.", "acme Corp", 1.0, 1.0),
        ("three whole days [Source 1]", "three days", 0.0, 2 * 2 / (3 + 2)),
        ("days days", "days", 0.0, 2 * 1 / (2 + 1)),
        ("no", "yes", 0.0, 0.0),
        ("", "yes", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
    ],
)
def test_scores(answer: str, truth: str, exact: float, f1: float) -> None:
    assert (exact_match(answer, truth), f1_score(answer, truth)) == (exact, pytest.approx(f1))


def predictions() -> Predictions:
    llm = ScriptedLLM(default="pump")
    llm.enqueue("The pump [Source 1]", ValueError("down"), "a valve")
    engine = GroundedQueryEngine(FixedRetriever(hits(pump=1.0, other=0.5)), llm)
    items = [
        QA(question="one?", answers=["pump", "x"]),
        QA(question="=two?", answers=["y"]),
        QA(question="three?", answers=["x valve"], evidence="nowhere"),
        "four?",
    ]
    return answer_many(engine, items, concurrency=1)


def test_predictions_are_scored_and_a_failure_does_not_stop_the_rest() -> None:
    answers = predictions()
    assert [row.answer for row in answers.rows] == ["The pump [Source 1]", "", "a valve", "pump"]
    assert [row.exact for row in answers.rows] == [1.0, 0.0, 0.0, None]
    assert "down" in str(answers.rows[1].error)
    assert answers.exact == pytest.approx(1 / 3)
    assert answers.f1 == pytest.approx((1 + 0 + 2 / 3) / 3)


def test_failed_retrievals_and_hard_negatives_are_listed() -> None:
    answers = predictions()
    assert [row.retrieved for row in answers.rows] == [True, False, False, None]
    assert [row.qa.question for row in answers.failed_retrievals] == ["=two?", "three?"]
    assert [hit.node.node_id for hit in answers.rows[0].hard_negatives] == ["other"]
    assert answers.rows[3].hard_negatives == []


def test_no_cell_of_the_table_is_a_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(predictions().to_csv())))
    assert [row["question"] for row in rows] == ["one?", "'=two?", "three?", "four?"]
    assert list(rows[0].values())[:9] == [
        *("one?", "The pump [Source 1]", "pump | x", "1.0", "1.0", "True", "", "", "other"),
    ]


def test_ares_lines_have_three_fields() -> None:
    lines = predictions().to_ares().splitlines()
    assert lines[0] == "Query\tDocument\tAnswer"
    assert lines[1] == "one?\tpump other\tThe pump [Source 1]"
    assert all(line.count("\t") == 2 for line in lines)


class InFours(ScriptedLLM):
    """A model that answers when four calls are waiting, and remembers the most that ever waited."""

    _barrier: asyncio.Barrier = PrivateAttr(default_factory=lambda: asyncio.Barrier(4))
    _waiting: int = PrivateAttr(default=0)
    _most_waiting: int = PrivateAttr(default=0)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)
        async with asyncio.timeout(PATIENCE):
            for _ in range(100):  # a fifth call that was allowed would come in meanwhile
                await asyncio.sleep(0)
            await self._barrier.wait()
        self._waiting -= 1
        return self.chat(messages)


def test_answers_keep_the_order_of_questions_and_the_concurrency_limit() -> None:
    llm = InFours()
    llm.enqueue(*(f"Answer {number}" for number in range(40)))
    engine = GroundedQueryEngine(FixedRetriever(hits(pump=1.0)), llm)
    answers = answer_many(engine, [f"pump number {number}?" for number in range(40)], concurrency=4)
    assert [f"Question: {row.qa.question}" in llm.history[int(row.answer.split()[1])] for row in answers.rows] == [
        True
    ] * 40
    assert [row.qa.question for row in answers.rows] == [f"pump number {number}?" for number in range(40)]
    assert llm._most_waiting == 4


def test_the_extension_decides_the_format(tmp_path: Path) -> None:
    answers = predictions()
    answers.write(tmp_path / "out.csv")
    answers.write(tmp_path / "out.tsv")
    assert (tmp_path / "out.csv").read_text() == answers.to_csv()
    assert (tmp_path / "out.tsv").read_text() == answers.to_ares()
    with pytest.raises(InputError, match="neither"):
        answers.write(tmp_path / "out.txt")


def test_concurrency_must_be_positive() -> None:
    with pytest.raises(InputError, match="concurrency"):
        answer_many(GroundedQueryEngine(FixedRetriever([]), ScriptedLLM()), ["a"], concurrency=0)
