"""What questions want, and how they are searched for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.base_retriever import BaseRetriever

from llama_index_contextual.answering.intent import INTENTS, PLANS, SearchPlan, aspects_of, guess_intent, read_intent
from llama_index_contextual.answering.routing import IntentRetriever
from llama_index_contextual.project import Project
from tests.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM

QUESTIONS = {
    "factual": ["Who is the approving authority?", "Where is the plant?", "What is the fee?", "TS-999", "Is it free?"],
    "comparison": ["A vs B?", "What is the difference between leave and absence?", "Is it the same as a grant?"],
    "explanation": [
        "Why did revenue fall?",
        "Explain the clause.",
        "What causes the alarm?",
        "How does the pump work?",
    ],
    "aggregation": [
        "List all contracts.",
        "Summarize the report",
        "What are the types of leave?",
        "Tell me about fees",
    ],
    "procedural": ["How do I file a claim?", "And how can I apply?", "What are the steps to enrol?"],
    "clarification": ["What do you mean?", "No, I meant the other one.", "Can you rephrase that?"],
    "chitchat": ["Hi!", "Thank you very much!", "ok bye", "All right, see ya", "omg."],
    "out_of_scope": ["Tell me a joke", "What's the weather in Rome?", "Who are you?"],
    "opinion": ["Should I accept it?", "Do you think it is fair?", "Is it worth it to appeal?"],
    "temporal": ["When does the contract end?", "What changed last quarter?", "In which year was it signed?"],
}


@pytest.mark.parametrize(("intent", "question"), [(i, q) for i, questions in QUESTIONS.items() for q in questions])
def test_a_question_is_understood_as_before(intent: str, question: str) -> None:
    assert guess_intent(question).intent == intent


def test_every_intent_has_a_plan_and_questions() -> None:
    assert set(INTENTS) == set(PLANS) == set(QUESTIONS)


@given(st.text(max_size=200))
def test_any_text_has_an_intent(text: str) -> None:
    assert guess_intent(text).intent in INTENTS


@pytest.mark.parametrize(
    ("answer", "intent"),
    [("comparison", "comparison"), ("  Out of scope. ", "out_of_scope"), ("factual or temporal", None), ("", None)],
)
def test_what_a_model_names_is_read(answer: str, intent: str | None) -> None:
    assert read_intent(answer) == intent


@pytest.mark.parametrize(
    ("question", "sides"),
    [
        ("Compare the lease with the loan.", ("the lease", "the loan")),
        ("Renting vs. buying a home?", ("Renting", "buying a home")),
        ("Is it the same?", ()),
    ],
)
def test_a_comparison_names_its_sides(question: str, sides: tuple[str, ...]) -> None:
    assert aspects_of(question) == sides


# ---- the search ------------------------------------------------------------------------------------------------------


class Made:
    """Makes retrievers that find the same nodes, and remembers the plans and queries."""

    def __init__(self, **scores: float) -> None:
        self.retriever = FixedRetriever(hits(**scores))
        self.plans: list[SearchPlan] = []

    def __call__(self, plan: SearchPlan) -> BaseRetriever:
        self.plans.append(plan)
        return self.retriever


@pytest.mark.parametrize(("question", "top_k"), [("Who paid?", 5), ("List all fees", 15), ("How do I pay?", 6)])
def test_the_table_says_how_many_passages(question: str, top_k: int) -> None:
    made = Made(a=1.0)
    IntentRetriever(made).retrieve(question)
    assert [plan.top_k for plan in made.plans] == [top_k]


@pytest.mark.parametrize("question", ["Thank you!", "Tell me a joke"])
async def test_chitchat_and_what_is_out_of_scope_retrieve_nothing(question: str) -> None:
    made = Made(a=1.0)
    retriever = IntentRetriever(made)
    assert (retriever.retrieve(question), await retriever.aretrieve(question), made.plans) == ([], [], [])


async def test_a_comparison_is_searched_by_each_side_too() -> None:
    made = Made(a=1.0, b=0.5)
    found = IntentRetriever(made).retrieve("Compare the lease with the loan")
    assert [query.query_str for query in made.retriever.queries] == [
        "Compare the lease with the loan",
        "the lease",
        "the loan",
    ]
    assert [hit.node.node_id for hit in found] == ["a", "b"]
    again = await IntentRetriever(made).aretrieve("Compare the lease with the loan")
    assert [hit.node.node_id for hit in again] == ["a", "b"]


def test_the_table_can_be_changed() -> None:
    made = Made(a=1.0, b=0.5)
    retriever = IntentRetriever(made, plans={"chitchat": SearchPlan(top_k=1, mode="lexical")})
    assert len(retriever.retrieve("Thank you!")) == 1
    assert made.plans[0].mode == "lexical"
    assert retriever.plans["factual"] == PLANS["factual"]


@pytest.mark.parametrize(
    ("answer", "top_k"), [("temporal", 6), ("no idea", 5), (ValueError("down"), 5)], ids=["named", "unclear", "down"]
)
def test_where_nothing_decides_a_model_does_if_it_can(answer: Any, top_k: int) -> None:
    llm, made = ScriptedLLM(), Made(a=1.0)
    llm.enqueue(answer)
    retriever = IntentRetriever(made, llm=llm)
    retriever.retrieve("Pollution in water")
    retriever.retrieve("Why?")
    assert [plan.top_k for plan in made.plans] == [top_k, PLANS["explanation"].top_k]
    assert len(llm.history) == 1


def test_it_serves_a_project(reports: Project) -> None:
    retriever = IntentRetriever(lambda plan: reports.as_retriever(mode=plan.mode, similarity_top_k=plan.top_k))
    assert retriever.retrieve("What does error TS-999 mean?")[0].node.metadata["file_name"] == "manual.txt"
