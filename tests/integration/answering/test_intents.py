"""Search by intent in the engines and retrievers of a project."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_contextual.answering.intent import IntentRetriever, SearchPlan
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.project.project import Project
from tests.support.models import ScriptedLLM

GOOD = "It means “the pump runs dry” [Source 1]."
REPAIR = "Who repairs a pump after TS-999?"
COMPARISON = "Compare error TS-999 with error TS-104"


def asked(reports: Project, question: str, *replies: str, **options: Any) -> tuple[Any, ScriptedLLM]:
    llm = ScriptedLLM(default=GOOD)
    llm.enqueue(*replies)
    return reports.as_query_engine(llm=llm, **{"intents": True, **options}).query(question), llm


def test_one_argument_searches_every_question_by_its_intent(reports: Project) -> None:
    response, llm = asked(reports, REPAIR)
    assert (response.retrieval.intent, len(llm.history)) == ("factual", 1)
    assert response.retrieval.confidence is not None
    assert response.retrieval.to_dict()["intent"] == "factual"
    plain, _ = asked(reports, REPAIR, intents=False)
    assert (plain.retrieval.intent, "intent" in plain.retrieval.to_dict()) == (None, False)


@pytest.mark.parametrize(
    ("question", "options", "words"),
    [
        ("Thank you!", {}, SMALL_TALK),
        ("Tell me a joke", {}, NOT_FOUND),
        ("Hello!", {"small_talk": "Ask me."}, "Ask me."),
    ],
)
def test_chitchat_and_out_of_scope_questions_need_neither_search_nor_model(
    reports: Project, question: str, options: dict[str, Any], words: str
) -> None:
    response, llm = asked(reports, question, **options)
    assert (str(response), response.found, llm.history) == (words, False, [])
    assert (response.retrieval.mode_used, response.retrieval.results) == ("none", ())


def test_a_table_changes_mode_count_and_weights(reports: Project) -> None:
    plans = {"factual": SearchPlan(top_k=2, mode="lexical")}
    response, _ = asked(reports, REPAIR, intents=plans, min_confidence=0.0)
    assert (response.retrieval.mode_used, len(response.retrieval)) == ("lexical", 2)
    semantic = {"factual": SearchPlan(top_k=3, semantic_weight=1.0)}
    response, _ = asked(reports, REPAIR, intents=semantic, min_confidence=0.0)
    whole = reports.as_retriever(similarity_top_k=3).changed(semantic_weight=1.0)
    assert [chunk.node_id for chunk in response.retrieval] == [hit.node.node_id for hit in whole.retrieve(REPAIR)]


def test_a_plan_does_not_leave_the_lexical_mode(reports: Project) -> None:
    response, _ = asked(reports, REPAIR, mode="lexical", intents={"factual": SearchPlan(mode="semantic")})
    assert response.retrieval.mode_used == "lexical"


@pytest.mark.parametrize(
    ("message", "intent", "is_blended"),
    [
        ("Can you elaborate on that?", "clarification", True),
        ("What do you mean by TS-999?", "clarification", False),
        ("No, I meant error TS-999.", "clarification", False),
        ("How do I repair it?", "procedural", True),
    ],
)
def test_a_follow_up_is_searched_by_intent_with_its_conversation(
    reports: Project, message: str, intent: str, is_blended: bool
) -> None:
    chat = reports.as_chat_engine(llm=ScriptedLLM(default="Dry [Source 1]."), intents=True)
    chat.chat("What does error TS-999 mean?")
    answer: Any = chat.chat(message).grounded
    assert (answer.retrieval.intent, answer.retrieval.mode_used) == (intent, "hybrid")
    assert (answer.retrieval.blend is not None) == is_blended
    assert answer.source_nodes[0].node.metadata["file_name"] == "manual.txt"
    assert str(chat.chat("Thanks!")) == SMALL_TALK


@pytest.mark.parametrize("streaming", [False, True])
def test_a_request_for_clarification_is_answered_from_the_conversation(reports: Project, streaming: bool) -> None:
    llm = ScriptedLLM(default="Dry [Source 1].")
    chat = reports.as_chat_engine(llm=llm, intents=True)
    chat.chat("What does error TS-999 mean?")
    llm.enqueue("It has no water left.")
    turn = (chat.stream_chat if streaming else chat.chat)("What do you mean by that?")
    if streaming:
        assert "".join(turn.response_gen) == "It has no water left."
    answer: Any = turn.grounded
    assert (answer.retrieval.intent, answer.retrieval.mode_used) == ("clarification", "none")
    assert (str(answer), answer.found) == ("It has no water left.", True)
    assert (answer.citations, answer.source_nodes) == (None, [])
    assert "Sources:" not in llm.history[-1]
    assert "\nDry.\n" in llm.history[-1]
    assert chat.chat_history[-1].content == "It has no water left."


async def test_a_project_gives_a_retriever_that_searches_by_intent(reports: Project) -> None:
    retriever = reports.as_retriever(intents=True)
    assert isinstance(retriever, IntentRetriever)
    assert 0 < len(retriever.retrieve(COMPARISON)) <= 10
    assert await retriever.aretrieve("Thank you!") == []
    narrow = reports.as_retriever(similarity_top_k=9, intents={"comparison": SearchPlan(top_k=1)})
    assert len(narrow.retrieve(COMPARISON)) == 1
