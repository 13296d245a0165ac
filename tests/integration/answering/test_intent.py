"""Intents of questions, and the search by intent."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.schema import QueryBundle

from llama_index_contextual.answering.intent import (
    INTENTS,
    PLANS,
    IntentRetriever,
    SearchPlan,
    aspects_of,
    guess_intent,
    read_intent,
)
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.project.project import Project
from llama_index_contextual.retrievers.conversational import ConversationQuery
from llama_index_contextual.retrievers.response import RetrievalResponse
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM

QUESTIONS = {
    "factual": [
        "Who is the approving authority?",
        "Where is the plant?",
        "What is the fee?",
        "TS-999",
        "Is it free?",
        # What only begins like talk that no document answers:
        "What is the weather compensation of the heating curve?",
        "Who are you supposed to call in an emergency?",
        "What can you do when TS-999 appears?",
    ],
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
    "procedural": [
        "How do I file a claim?",
        "How do I set an alarm limit on the outstation?",
        "What are the steps to enrol?",
    ],
    "clarification": ["What do you mean?", "No, I meant the other one.", "Can you rephrase that?"],
    "chitchat": ["Hi!", "Thank you very much!", "ok bye", "All right, see ya", "omg."],
    "out_of_scope": [
        "Tell me a joke",
        "What's the weather in Rome?",
        "Who are you?",
        "Hey, what can you do?",
        "Set a timer for 5 minutes, please.",
    ],
    "opinion": ["Should I accept it?", "Do you think it is fair?", "Is it worth it to appeal?"],
    "temporal": ["When does the contract end?", "What changed last quarter?", "In which year was it signed?"],
}


@pytest.mark.parametrize(("intent", "question"), [(i, q) for i, questions in QUESTIONS.items() for q in questions])
def test_the_intent_of_a_question_is_as_recorded(intent: str, question: str) -> None:
    assert guess_intent(question).intent == intent


def test_every_intent_has_a_plan_and_questions() -> None:
    assert set(INTENTS) == set(PLANS) == set(QUESTIONS)


@given(st.text(max_size=200))
def test_any_text_has_an_intent(text: str) -> None:
    assert guess_intent(text).intent in INTENTS


ASKING_FOR_MORE = [
    *("Can you elaborate on that?", "Could you please elaborate?", "Elaborate, please.", "Please elaborate on this."),
    *(
        "Can you expand on your last answer?",
        "Tell me more.",
        "Tell me more about that.",
        "Could you go into more detail?",
    ),
    *("Would you clarify that a bit more?", "Give me more details", "More information, please", "For example?"),
    *("OK, can you explain that in simpler terms?", "In other words?", "So, what exactly do you mean by that?"),
    *("Can you give me an example of that?", "What do you mean?", "Can you rephrase that?", "Say that again"),
    *("Kannst du das näher erläutern?", "Können Sie das bitte genauer erklären?", "Was meinst du damit?"),
    *("Was bedeutet das genau?", "Könnten Sie darauf näher eingehen?", "Mehr dazu, bitte", "Das verstehe ich nicht."),
    *("Peux-tu préciser ?", "Pouvez-vous développer ce point ?", "Qu'est-ce que cela signifie ?", "Par exemple ?"),
    *("¿Puedes aclarar eso?", "¿Qué quieres decir con eso?", "No entiendo", "¿Podría explicarlo más?"),
    *("Puoi spiegare meglio?", "Cosa intendi?", "Non ho capito"),
]
NAMING_A_SUBJECT = [
    *("Can you elaborate on the termination clause?", "Tell me more about fees", "Explain the clause."),
    *("For example, when does the lease end?", "Can you expand the list of pumps to those of 2024?"),
    *("Kannst du das Protokoll erklären?", "Was bedeutet TS-999?", "Was meinst du zu Pumpen?"),
    *("Pouvez-vous expliquer la clause 7 ?", "¿Puedes aclarar la cláusula 7?", "Puoi spiegare la clausola 7?"),
]


@pytest.mark.parametrize("question", ASKING_FOR_MORE)
def test_a_request_for_more_that_names_nothing_is_a_clarification(question: str) -> None:
    assert guess_intent(question).intent == "clarification"


@pytest.mark.parametrize("question", NAMING_A_SUBJECT)
def test_a_request_that_names_a_subject_is_not(question: str) -> None:
    assert guess_intent(question).intent != "clarification"


@pytest.mark.parametrize(
    "text", ["can you elaborate on that " * 80, "more " * 400, "kannst du das " * 140, "meaning, " * 220]
)
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


@pytest.mark.parametrize(("question", "top_k"), [("Who paid?", 5), ("List all fees", 15), ("How do I pay?", 6)])
def test_the_plan_decides_the_number_of_passages(question: str, top_k: int) -> None:
    created = Made(a=1.0)
    IntentRetriever(created).retrieve(question)
    assert [plan.top_k for plan in created.plans] == [top_k]


@pytest.mark.parametrize("question", ["Thank you!", "Tell me a joke"])
async def test_chitchat_and_out_of_scope_questions_retrieve_nothing(question: str) -> None:
    created = Made(a=1.0)
    retriever = IntentRetriever(created)
    assert (retriever.retrieve(question), await retriever.aretrieve(question), created.plans) == ([], [], [])


async def test_a_comparison_is_searched_by_each_side_too() -> None:
    created = Made(a=1.0, b=0.5)
    nodes = IntentRetriever(created).retrieve("Compare the lease with the loan")
    assert [query.query_str for query in created.retriever.queries] == [
        "Compare the lease with the loan",
        "the lease",
        "the loan",
    ]
    assert [hit.node.node_id for hit in nodes] == ["a", "b"]
    again = await IntentRetriever(created).aretrieve("Compare the lease with the loan")
    assert [hit.node.node_id for hit in again] == ["a", "b"]


def test_the_table_can_be_changed() -> None:
    created = Made(a=1.0, b=0.5)
    retriever = IntentRetriever(created, plans={"chitchat": SearchPlan(top_k=1, mode="lexical")})
    assert len(retriever.retrieve("Thank you!")) == 1
    assert created.plans[0].mode == "lexical"
    assert retriever.plans["factual"] == PLANS["factual"]


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


def test_the_model_reads_what_each_intent_means_and_the_last_exchange() -> None:
    llm = ScriptedLLM(default="temporal")
    history = [
        *(ChatMessage("Who paid first?"), ChatMessage("Ann.", role="assistant")),
        *(ChatMessage("Who paid last?"), ChatMessage("Bob [Source 3].", role="assistant")),
    ]
    IntentRetriever(Made(a=1.0), llm=llm).respond(ConversationQuery("And how much?", history=history))
    (prompt,) = llm.history
    assert all(f"{intent} (" in prompt for intent in INTENTS)
    assert prompt.endswith("user: Who paid last?\nassistant: Bob.\n\nQuestion: And how much?")
    assert "Who paid first?" not in prompt


def test_it_serves_a_project(reports: Project) -> None:
    retriever = IntentRetriever(lambda plan: reports.as_retriever(mode=plan.mode, similarity_top_k=plan.top_k))
    assert retriever.retrieve("What does error TS-999 mean?")[0].node.metadata["file_name"] == "manual.txt"


# ---- in a project's engines ------------------------------------------------------------------------------------------


def asked(reports: Project, question: str, **options: Any) -> tuple[GroundedResponse, ScriptedLLM]:
    llm = ScriptedLLM(default="It means “the pump runs dry” [Source 1].")
    response = reports.as_query_engine(llm=llm, **{"intents": True, **options}).query(question)
    assert isinstance(response, GroundedResponse)
    return response, llm


def test_one_argument_searches_every_question_by_its_intent(reports: Project) -> None:
    response, llm = asked(reports, "Who repairs a pump after TS-999?")
    assert response.retrieval is not None
    assert (response.retrieval.intent, len(llm.history)) == ("factual", 1)
    assert response.retrieval.confidence is not None
    assert response.retrieval.to_dict()["intent"] == "factual"
    plain, _ = asked(reports, "Who repairs a pump after TS-999?", intents=False)
    assert plain.retrieval is not None
    assert (plain.retrieval.intent, "intent" in plain.retrieval.to_dict()) == (None, False)


@pytest.mark.parametrize(("question", "words"), [("Thank you!", SMALL_TALK), ("Tell me a joke", NOT_FOUND)])
def test_chitchat_and_out_of_scope_questions_need_neither_search_nor_model(
    reports: Project, question: str, words: str
) -> None:
    response, llm = asked(reports, question)
    assert (str(response), response.found, llm.history) == (words, False, [])
    assert response.retrieval is not None
    assert (response.retrieval.mode_used, response.retrieval.results) == ("none", ())


def test_the_answer_to_chitchat_is_an_option(reports: Project) -> None:
    assert str(asked(reports, "Hello!", small_talk="Ask me.")[0]) == "Ask me."


def test_the_passages_of_each_side_are_compared(reports: Project) -> None:
    response, _ = asked(reports, "Compare error TS-999 with error TS-104")
    assert response.retrieval is not None
    searches = ("Compare error TS-999 with error TS-104", "error TS-999", "error TS-104")
    first = dict.fromkeys(reports.retrieve(search)[0].node_id for search in searches)
    nodes = [chunk.node_id for chunk in response.retrieval]
    assert nodes[: len(first)] == list(first)
    assert [chunk.rank for chunk in response.retrieval] == list(range(1, len(nodes) + 1))
    assert len(set(nodes)) == len(nodes)


def test_a_table_changes_mode_count_and_weights(reports: Project) -> None:
    plans = {"factual": SearchPlan(top_k=2, mode="lexical")}
    response, _ = asked(reports, "Who repairs a pump after TS-999?", intents=plans, min_confidence=0.0)
    assert response.retrieval is not None
    assert (response.retrieval.mode_used, len(response.retrieval)) == ("lexical", 2)
    semantic = {"factual": SearchPlan(top_k=3, semantic_weight=1.0)}
    response, _ = asked(reports, "Who repairs a pump after TS-999?", intents=semantic, min_confidence=0.0)
    assert response.retrieval is not None
    whole = reports.as_retriever(similarity_top_k=3).changed(semantic_weight=1.0, lexical_weight=0.0)
    assert [chunk.node_id for chunk in response.retrieval] == [
        hit.node.node_id for hit in whole.retrieve(response.retrieval.query)
    ]


WARRANTY: dict[str, Any] = {
    "warranty": {"examples": ["How long is the warranty?", "warranty period"], "mode": "lexical", "top_k": 2},
    "prices": {"examples": ["What does it cost?"], "top_k": 0, "reply": "Prices are on the website."},
}


@pytest.mark.parametrize(
    ("question", "intent", "tier"),
    [
        ("How long is my warranty?", "warranty", "examples"),
        ("What is the warranty period of the X200 pump?", "warranty", "examples"),
        ("What does it cost?", "prices", "examples"),
        ("Why is the warranty so short, compared with the lease?", "comparison", "pattern"),
        ("Who pays?", "factual", "words"),
    ],
)
def test_own_intents_are_recognised_by_their_examples(question: str, intent: str, tier: str) -> None:
    guess = IntentRetriever(Made(a=1.0), plans=WARRANTY).guess(question)
    assert (guess.intent, guess.tier) == (intent, tier)


def test_own_intents_have_their_own_search_and_reply(reports: Project) -> None:
    response, _ = asked(reports, "Is error TS-999 within the warranty period?", intents=WARRANTY, min_confidence=0.0)
    assert response.retrieval is not None
    assert (response.retrieval.intent, response.retrieval.mode_used) == ("warranty", "lexical")
    priced, llm = asked(reports, "What does it cost?", intents=WARRANTY)
    assert (str(priced), priced.found, llm.history) == ("Prices are on the website.", False, [])


def test_examples_can_be_added_to_an_intent_of_the_table() -> None:
    plans = {"temporal": SearchPlan(top_k=7, examples=["deadline for objections"])}
    created = Made(a=1.0)
    IntentRetriever(created, plans=plans).retrieve("What deadline is there for objections?")
    assert [plan.top_k for plan in created.plans] == [7]


def test_the_model_is_told_about_own_intents(reports: Project) -> None:
    plans = {"warranty": {"description": "asks about the guarantee of a product", "top_k": 2}}
    llm = ScriptedLLM(default="It means “the pump runs dry” [Source 1].")
    llm.enqueue("warranty")
    response: Any = reports.as_query_engine(llm=llm, intents=plans).query("Pumps TS-999")
    assert "warranty (asks about the guarantee of a product)" in llm.history[0]
    assert (response.retrieval.intent, len(response.retrieval)) == ("warranty", 2)


@pytest.mark.parametrize(
    ("plans", "words"),
    [
        ({"warranty": SearchPlan(top_k=3)}, "Intent 'warranty' is your own: give its search plan `examples`"),
        ({"Warranty!": {"examples": ["x"]}}, "Intent 'Warranty!' has an invalid name"),
        ({"warranty": {"example": ["x"]}}, "Intent 'warranty' has an unknown option 'example'"),
        ({"factual": 3}, "cannot be 3: the table has a search plan, or an object"),
        ({"factual": {"top_k": -1}}, "cannot have the top_k -1"),
        ({"factual": {"mode": "fuzzy"}}, "cannot have the mode 'fuzzy'"),
        ({"factual": {"examples": "one"}}, "cannot have the examples 'one'"),
    ],
    ids=str,
)
def test_an_invalid_plan_is_refused(reports: Project, plans: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        reports.as_query_engine(llm=ScriptedLLM(), intents=plans)


def test_a_request_for_more_is_searched_with_its_conversation(reports: Project) -> None:
    llm = ScriptedLLM(default="Dry [Source 1].")
    chat = reports.as_chat_engine(llm=llm, intents=True)
    chat.chat("What does error TS-999 mean?")
    answer: Any = chat.chat("Can you elaborate on that?").grounded
    assert (answer.retrieval.intent, answer.retrieval.mode_used) == ("clarification", "hybrid")
    assert answer.source_nodes[0].node.metadata["file_name"] == "manual.txt"


def test_intents_llm_lets_the_model_decide(reports: Project) -> None:
    llm = ScriptedLLM(default="It means “the pump runs dry” [Source 1].")
    llm.enqueue("temporal")
    response = reports.as_query_engine(llm=llm, intents="llm").query("Pumps TS-999")
    assert isinstance(response, GroundedResponse)
    assert response.retrieval is not None
    assert response.retrieval.intent == "temporal"


@pytest.mark.parametrize("streaming", [False, True])
def test_a_request_for_clarification_is_answered_from_the_conversation(reports: Project, streaming: bool) -> None:
    llm = ScriptedLLM(default="Dry [Source 1].")
    chat = reports.as_chat_engine(llm=llm, intents=True)
    chat.chat("What does error TS-999 mean?")
    llm.enqueue("It has no water left.")
    if streaming:
        stream = chat.stream_chat("What do you mean by that?")
        assert "".join(stream.response_gen) == "It has no water left."
        answer = stream.grounded
    else:
        answer = chat.chat("What do you mean by that?").grounded
    assert answer is not None
    assert answer.retrieval is not None
    assert (answer.retrieval.intent, answer.retrieval.mode_used) == ("clarification", "none")
    assert (str(answer), answer.found, answer.citations, answer.source_nodes) == (
        "It has no water left.",
        True,
        None,
        [],
    )
    assert "Sources:" not in llm.history[-1]
    assert "\nDry.\n" in llm.history[-1]
    assert [message.content for message in chat.chat_history][-1] == "It has no water left."


@pytest.mark.parametrize("message", ["What do you mean by TS-999?", "No, I meant error TS-999."])
def test_a_clarification_that_names_something_is_searched(reports: Project, message: str) -> None:
    chat = reports.as_chat_engine(llm=ScriptedLLM(default="Dry [Source 1]."), intents=True)
    chat.chat("What does error TS-104 mean?")
    answer = chat.chat(message).grounded
    assert answer is not None
    assert answer.retrieval is not None
    assert (answer.retrieval.intent, len(answer.retrieval)) == ("clarification", 3)


def test_without_a_conversation_a_request_for_clarification_is_searched() -> None:
    created = Made(a=1.0)
    assert len(IntentRetriever(created).retrieve("What do you mean?")) == 1


def test_a_conversation_is_searched_by_intent_too(reports: Project) -> None:
    chat = reports.as_chat_engine(llm=ScriptedLLM(default="Dry [Source 1]."), intents=True)
    chat.chat("What does error TS-999 mean?")
    answer = chat.chat("How do I repair it?").grounded
    assert answer is not None
    assert answer.retrieval is not None
    assert answer.retrieval.intent == "procedural"
    assert answer.retrieval.blend is not None
    assert str(chat.chat("Thanks!")) == SMALL_TALK


async def test_a_project_gives_a_retriever_that_searches_by_intent(reports: Project) -> None:
    retriever = reports.as_retriever(intents=True)
    assert isinstance(retriever, IntentRetriever)
    nodes = retriever.retrieve("Compare error TS-999 with error TS-104")
    assert 0 < len(nodes) <= 10
    assert await retriever.aretrieve("Thank you!") == []
    narrow = reports.as_retriever(similarity_top_k=9, intents={"comparison": SearchPlan(top_k=1)})
    assert len(narrow.retrieve("Compare error TS-999 with error TS-104")) == 1


def test_only_a_retriever_that_lets_the_model_decide_needs_one(
    reports: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        reports.as_retriever(intents="llm")
