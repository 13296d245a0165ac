"""The fixed sentences of answers, which are in German if the question is."""

from __future__ import annotations

from typing import Any

import pytest

from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.prompts import FALLBACK, NOT_FOUND, NOT_JUDGED, SMALL_TALK, in_language_of
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from tests.integration.retrievers.corpus import FixedRetriever, hits
from tests.support.models import ScriptedLLM

GERMAN, ENGLISH = "Was bedeutet die Meldung TS-999?", "What does error TS-999 mean?"


def engine_of(llm: ScriptedLLM, *, passages: bool = True, **options: Any) -> GroundedQueryEngine:
    return GroundedQueryEngine(FixedRetriever(hits(a=1.0) if passages else []), llm, **options)


@pytest.mark.parametrize("sentence", [NOT_FOUND, SMALL_TALK, FALLBACK, NOT_JUDGED])
def test_a_fixed_sentence_is_german_only_for_a_german_question(sentence: str) -> None:
    assert in_language_of(GERMAN, sentence) != sentence
    for question in (ENGLISH, "TS-999", "Que signifie le message dans le journal ?", ""):
        assert in_language_of(question, sentence) == sentence
    assert in_language_of(GERMAN, "Ask the operator.") == "Ask the operator."


@pytest.mark.parametrize("reply", [NOT_FOUND, in_language_of(GERMAN, NOT_FOUND)])
def test_the_model_is_told_the_german_sentence_and_both_are_understood(reply: str) -> None:
    llm = ScriptedLLM(default=reply)
    response: Any = engine_of(llm).query(GERMAN)
    assert not response.found
    assert f"write exactly: {in_language_of(GERMAN, NOT_FOUND)}" in llm.history[0]
    engine_of(llm).query(ENGLISH)
    assert f"write exactly: {NOT_FOUND}" in llm.history[1]


def test_a_german_refusal_is_not_judged() -> None:
    judge = ScriptedLLM()
    engine_of(ScriptedLLM(default=in_language_of(GERMAN, NOT_FOUND)), judge=Judge(judge)).query(GERMAN)
    assert judge.history == []


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [('{"unsupported": ["It flies."], "relevant": true, "confidence": 0.9}', FALLBACK), ("Well.", NOT_JUDGED)],
)
def test_a_withheld_answer_is_replaced_by_a_german_sentence(reply: str, sentence: str) -> None:
    engine = engine_of(ScriptedLLM(default="Es fliegt [Source 1]."), judge=Judge(ScriptedLLM(default=reply)))
    assert str(engine.query(GERMAN)) == in_language_of(GERMAN, sentence)
