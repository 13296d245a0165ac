"""Intents of questions, and the search by intent."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import QueryBundle

from llama_index_contextual.answering.intent import (
    PLANS,
    IntentRetriever,
    SearchPlan,
    aspects_of,
    guess_intent,
    read_intent,
)
from llama_index_contextual.errors import ConfigurationError, InputError
from llama_index_contextual.search.results import RetrievalResponse
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM
from tests.support.source import ROOT

QUESTIONS: dict[str, list[str]] = json.loads((ROOT / "tests" / "data" / "intents.json").read_text(encoding="utf-8"))
NAMING_A_SUBJECT = QUESTIONS.pop("a subject, so no clarification")


@pytest.mark.parametrize(("intent", "question"), [(i, q) for i, questions in QUESTIONS.items() for q in questions])
def test_the_intent_of_a_question_is_as_recorded(intent: str, question: str) -> None:
    assert guess_intent(question).intent == intent


def test_every_intent_has_a_plan_and_questions() -> None:
    assert set(PLANS) == set(QUESTIONS)


@pytest.mark.parametrize("question", NAMING_A_SUBJECT)
def test_a_request_that_names_a_subject_is_not(question: str) -> None:
    assert guess_intent(question).intent != "clarification"


@pytest.mark.parametrize("text", ["can you elaborate on that " * 80, "more " * 400, "meaning, " * 220])
def test_a_long_text_does_not_take_long_to_classify(text: str) -> None:
    guess_intent(text * 400)  # a pattern that backtracks would not end


@pytest.mark.parametrize(
    ("answer", "intent"),
    [("comparison", "comparison"), ("  Out of scope. ", "out_of_scope"), ("factual or temporal", None), ("", None)],
)
def test_the_intent_in_a_reply_is_parsed(answer: str, intent: str | None) -> None:
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
    """Factory of retrievers with the same nodes, which records plans and queries."""

    def __init__(self, **scores: float) -> None:
        self.retriever = FixedRetriever(hits(**scores))
        self.plans: list[SearchPlan] = []

    def __call__(self, plan: SearchPlan) -> BaseRetriever:
        self.plans.append(plan)
        return self.retriever


@pytest.mark.parametrize(
    ("question", "top_k"), [("Who paid?", 5), ("List all fees", 15), ("How do I pay?", 6), ("What do you mean?", 3)]
)
def test_the_plan_decides_the_number_of_passages(question: str, top_k: int) -> None:
    created = Made(a=1.0)
    assert len(IntentRetriever(created).retrieve(question)) == 1
    assert [plan.top_k for plan in created.plans] == [top_k]


@pytest.mark.parametrize("question", ["Thank you!", "Tell me a joke"])
async def test_chitchat_and_out_of_scope_questions_retrieve_nothing(question: str) -> None:
    created = Made(a=1.0)
    retriever = IntentRetriever(created)
    assert (retriever.retrieve(question), await retriever.aretrieve(question), created.plans) == ([], [], [])


async def test_a_comparison_is_searched_by_each_side_too() -> None:
    created = Made(a=1.0, b=0.5)
    nodes = IntentRetriever(created).retrieve("Compare the lease with the loan")
    searches = ["Compare the lease with the loan", "the lease", "the loan"]
    assert [query.query_str for query in created.retriever.queries] == searches
    again = await IntentRetriever(created).aretrieve("Compare the lease with the loan")
    assert [hit.node.node_id for hit in nodes] == [hit.node.node_id for hit in again] == ["a", "b"]


async def test_a_text_is_answered_like_a_bundle_and_asynchronously() -> None:
    retriever = IntentRetriever(Made(a=2.0, b=1.0))
    response = retriever.respond("Who paid?")
    assert [chunk.node_id for chunk in response] == ["a", "b"]
    assert response == retriever.respond(QueryBundle("Who paid?")) == await retriever.arespond("Who paid?")
    with pytest.raises(InputError):
        retriever.respond(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "top_k"), [("temporal", 6), ("no idea", 5), (ValueError("down"), 5)], ids=["named", "unclear", "down"]
)
def test_the_model_decides_if_patterns_and_words_do_not(answer: Any, top_k: int) -> None:
    llm, created = ScriptedLLM(), Made(a=1.0)
    llm.enqueue(answer)
    retriever = IntentRetriever(created, llm=llm)
    retriever.retrieve("Pollution in water")
    retriever.retrieve("Why?")
    assert [plan.top_k for plan in created.plans] == [top_k, PLANS["explanation"].top_k]
    assert len(llm.history) == 1


@pytest.mark.parametrize("question", ["What is the capital of France?", "Who paid?", "Pollution in water"])
def test_a_guess_from_words_that_say_little_is_left_to_the_model(question: str) -> None:
    llm, created = ScriptedLLM(default="temporal"), Made(a=1.0)
    assert IntentRetriever(created, llm=llm).respond(QueryBundle(question)).intent == "temporal"
    assert IntentRetriever(created).respond(QueryBundle(question)).intent == "factual"
    assert (
        IntentRetriever(created, llm=llm).respond(QueryBundle("What is the best and safer option?")).intent == "opinion"
    )
    assert len(llm.history) == 1


class Near(Made):
    """Factory of retrievers whose search has a level of confidence."""

    def __init__(self, level: Any) -> None:
        super().__init__(a=1.0)
        self.retriever = _WithLevel(hits(a=1.0), level)


class _WithLevel(FixedRetriever):
    def __init__(self, nodes: Any, level: Any) -> None:
        super().__init__(nodes)
        self.level = level

    def respond(self, query: QueryBundle) -> RetrievalResponse:
        response = RetrievalResponse.of_nodes(query.query_str, self.retrieve(query))
        return replace(response, confidence=0.5, confidence_level=self.level)

    async def arespond(self, query: QueryBundle) -> RetrievalResponse:
        return self.respond(query)


@pytest.mark.parametrize(
    ("level", "intent", "number"),
    [("low", "out_of_scope", 0), ("none", "out_of_scope", 0), ("medium", "factual", 1), ("high", "factual", 1)],
)
async def test_what_the_model_calls_out_of_scope_is_searched_and_kept_if_the_documents_are_near(
    level: str, intent: str, number: int
) -> None:
    retriever = IntentRetriever(Near(level), llm=ScriptedLLM(default="out_of_scope"))
    question = QueryBundle("What is the capital of France?")
    for response in (retriever.respond(question), await retriever.arespond(question)):
        assert (response.intent, len(response)) == (intent, number)


@pytest.mark.parametrize(("level", "intent"), [("low", "out_of_scope"), ("medium", "factual")])
def test_without_a_model_the_evidence_of_the_search_decides_but_refuses_nothing(level: str, intent: str) -> None:
    response = IntentRetriever(Near(level)).respond(QueryBundle("What is the capital of France?"))
    assert (response.intent, len(response)) == (intent, 1)


# ---- search plans ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plans", [{"warranty": {"top_k": 3}}, {"factual": 3}, {"factual": {"top_k": -1}}, {"factual": {"k": 1}}], ids=str
)
def test_an_invalid_plan_is_refused(plans: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^intents\..* is invalid: "):
        IntentRetriever(Made(a=1.0), plans=plans)
