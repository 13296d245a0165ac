"""Conversations: the search and the prompt of a turn, the history, and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.chat_engine import GroundedChatEngine
from llama_index_contextual.answering.prompts import SMALL_TALK
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.errors import ConfigurationError, InputError, ModelError
from llama_index_contextual.project.project import Project
from tests.integration.answering.conftest import QUESTION
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider


def chat(project: Project, *answers: str | BaseException, **options: Any) -> tuple[GroundedChatEngine, ScriptedLLM]:
    llm = ScriptedLLM(default="An answer.")
    llm.enqueue(*answers)
    return project.as_chat_engine(llm=llm, **{"min_confidence": 0.0, **options}), llm


def contents(engine: GroundedChatEngine) -> list[str | None]:
    return [message.content for message in engine.chat_history]


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_a_follow_up_is_searched_and_answered_with_the_previous_exchange(reports: Project) -> None:
    engine, llm = chat(reports, "“the pump runs dry” [Source 1].", "Because of V2 [Source 1].")
    first = engine.chat(QUESTION)
    second: Any = engine.chat("And why is that?")
    assert second.source_nodes[0].node.metadata["file_name"] == "manual.txt"
    searched = [text for text, _ in second.grounded.retrieval.blend.lexical]
    assert searched == ["And why is that?", QUESTION, str(first)]
    assert str(first).replace(" [Source 1]", "") in llm.history[1]
    assert llm.history[1].endswith("Question: And why is that?")
    assert contents(engine) == [QUESTION, str(first), "And why is that?", str(second)]


def test_a_prompt_contains_no_citation_of_an_earlier_turn(reports: Project) -> None:
    engine, llm = chat(
        reports, "Dry [Source 1].", "And why, standing alone?", "Because [Sources 1 and 2].", mode="condense"
    )
    engine.chat(QUESTION)
    engine.chat("And why?")
    _, condensing, answering = llm.history
    assert condensing.endswith(f"user: {QUESTION}\nassistant: Dry.\n\nLast question: And why?")
    assert "\nDry.\nSources:" in answering
    engine.chat("What did you just say?")
    assert llm.history[-1].endswith("And why?\nBecause.\nWhat did you just say?")
    assert contents(engine)[1] == "Dry [Source 1].", "the history itself is not changed"


@pytest.mark.parametrize(
    ("question", "mode"),
    [
        ("What did you just say?", "blend"),
        ("what have you said so far", "condense"),
        ("What was my first question?", "simple"),
        ("Repeat your last answer.", "blend"),
        ("Can you summarize our conversation?", "condense"),
        ("What do you mean by that?", "blend"),
        ("Say that again", "condense"),
    ],
)
def test_a_question_about_the_conversation_is_answered_from_it_alone(
    reports: Project, mode: str, question: str
) -> None:
    engine, llm = chat(reports, "The pump runs dry [Source 1].", "I said that it runs dry.", mode=mode)
    engine.chat(QUESTION)
    answer = engine.chat(question)
    assert (str(answer), answer.source_nodes) == ("I said that it runs dry.", [])
    assert len(llm.history) == 2
    assert llm.history[1].startswith("The last message asks about this conversation.")
    assert "Sources:" not in llm.history[1]
    assert "The pump runs dry." in llm.history[1]


@pytest.mark.parametrize("question", ["What did you say in article 5 of the lease?", "Repeat the steps for TS-999."])
def test_a_question_about_a_subject_is_searched_in_a_conversation(reports: Project, question: str) -> None:
    engine, llm = chat(reports)
    engine.chat(QUESTION)
    assert engine.chat(question).source_nodes
    assert "Sources:" in llm.history[1]


@pytest.mark.parametrize("message", ["thanks!", "Hello", "ok, thank you very much"])
def test_chitchat_costs_no_call(reports: Project, message: str) -> None:
    engine, llm = chat(reports)
    answers = [str(engine.chat(message)), "".join(engine.stream_chat(message).response_gen)]
    assert (answers, llm.history) == ([SMALL_TALK] * 2, [])
    assert engine.chat(f"thanks! {QUESTION}").source_nodes


def test_the_number_of_passages_in_the_prompt_can_be_limited(reports: Project) -> None:
    engine, llm = chat(reports, similarity_top_k=2)
    assert len(engine.chat("What does it say of pumps, revenue and duty?").source_nodes) == 2
    assert "[Source 3]" not in llm.history[0].partition("Sources:")[2]


@pytest.mark.parametrize(
    ("options", "absent", "present"),
    [
        ({}, ("question 0",), ("question 1", "question 2", "question 3")),  # the last three exchanges
        ({"turns": 0}, ("question 3",), ()),
        (
            {"history_tokens": 100},
            ("question 0", "question 1", "question 2"),
            ("question 3",),
        ),  # oldest first
    ],
    ids=str,
)
def test_a_prompt_has_the_last_exchanges(
    reports: Project, options: dict[str, Any], absent: tuple[str, ...], present: tuple[str, ...]
) -> None:
    engine, llm = chat(reports, "one", "two", "word " * 200, "three", **options)
    for number in range(4):
        engine.chat(f"question {number}")
    last: Any = engine.chat("question 4")
    assert (last.grounded.retrieval.blend is None) == (options == {"turns": 0})
    assert not [text for text in absent if text in llm.history[4]]
    assert [text for text in present if text in llm.history[4]] == list(present)


@pytest.mark.parametrize(
    ("reply", "rewritten"), [("What does error TS-104 mean?",) * 2, (ValueError("no"), None)], ids=["written", "failed"]
)
def test_condense_asks_the_model_for_a_standalone_question_or_blends_if_it_fails(
    reports: Project, reply: Any, rewritten: str | None
) -> None:
    engine, llm = chat(reports, "Write {question}.", reply, "Not calibrated.", mode="condense")
    engine.chat(QUESTION)
    second: Any = engine.chat("And {history}?")
    assert str(second) == "Not calibrated."
    blend = second.grounded.retrieval.blend
    assert (blend.rewritten, bool(blend.lexical)) == (rewritten, rewritten is None)
    # Placeholders in a conversation are not filled in.
    assert f"user: {QUESTION}\nassistant: Write {{question}}.\n\nLast question: And {{history}}?" in llm.history[1]
    assert llm.history[2].endswith("Question: And {history}?")


def test_simple_searches_for_the_question_as_it_is(reports: Project) -> None:
    engine, llm = chat(reports, mode="simple")
    engine.chat(QUESTION)
    assert engine.chat("And revenue?").grounded.retrieval.blend is None  # type: ignore[union-attr]
    assert QUESTION in llm.history[1]


@pytest.mark.parametrize("options", [{"mode": "rewrite"}, {"turns": -1}])
def test_invalid_settings_are_refused(reports: Project, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        chat(reports, **options)
    with pytest.raises(InputError, match="empty"):
        chat(reports)[0].chat("  ")


# ---- the history -----------------------------------------------------------------------------------------------------


def test_a_history_can_be_reset_and_replaced_and_is_not_shared(reports: Project) -> None:
    engine, other = chat(reports)[0], chat(reports)[0]
    assert isinstance(engine, BaseChatEngine)
    engine.chat("one")
    assert (len(engine.chat_history), other.chat_history) == (2, [])
    history = [ChatMessage(role="user", content="before"), ChatMessage(role="assistant", content="yes")]
    engine.chat("two", history)
    assert contents(engine) == ["before", "yes", "two", "An answer."]
    assert len(history) == 2
    engine.reset()
    assert engine.chat_history == []


def test_a_conversation_is_saved_and_loaded_without_characters_that_cannot_be_stored(
    reports: Project, tmp_path: Path
) -> None:
    engine, llm = chat(reports, "It\0 runs \ud800dry.\x1b")
    assert str(engine.chat("Is Weiß there?")) == "It runs dry."
    engine.save(tmp_path / "talk.json")
    other, reading = chat(reports)
    other.load(tmp_path / "talk.json")
    assert contents(other) == ["Is Weiß there?", "It runs dry."]
    other.chat("And now?")
    assert "Is Weiß there?" in reading.history[0]
    llm.default = "\0\0"
    before, reply = contents(engine), engine.chat("And then?")
    assert (str(reply), reply.grounded.partial) == ("The model returned an empty answer.",) * 2
    assert contents(engine) == before


@pytest.mark.parametrize("content", ["", "{}x", '{"a": 1}', "[1]", '[{"role": "nobody", "content": ""}]', "\xff"])
def test_a_file_without_a_conversation_is_refused(reports: Project, tmp_path: Path, content: str) -> None:
    (tmp_path / "talk.json").write_text(content, encoding="latin-1")
    engine, _ = chat(reports)
    engine.chat("one")
    with pytest.raises(InputError, match=r"talk\.json"):
        engine.load(tmp_path / "talk.json")
    with pytest.raises(InputError, match="is not a conversation"):
        engine.load(tmp_path / "none.json")
    assert len(engine.chat_history) == 2


# ---- streams and failures, against the real client -------------------------------------------------------------------


def test_a_streamed_turn_is_in_the_history_at_its_end(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    provider.enqueue("The pump runs dry, as the manual of the test bench says [Source 9].")
    engine = reports.as_chat_engine(llm=openai, min_confidence=0.0)
    stream = engine.stream_chat("What does TS-999 mean?")
    assert engine.chat_history == []
    assert len(list(stream.response_gen)) > 2
    assert stream.grounded is not None
    assert stream.grounded.citations.invalid == (9,)  # type: ignore[union-attr]
    assert contents(engine)[1] == "The pump runs dry, as the manual of the test bench says."
    assert stream.metadata["answer"]["found"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_turn_has_its_citations_in_one_form_and_says_when_there_are_none(reports: Project, streams: bool) -> None:
    llm = ScriptedLLM(default="The pump runs dry.")
    llm.enqueue("The pump【1†source】 runs dry[1], says source 1 (Quelle 1).")
    engine = reports.as_chat_engine(llm=llm, min_confidence=0.0)

    def turn(question: str) -> tuple[str, GroundedResponse]:
        if not streams:
            reply = engine.chat(question)
            return str(reply), reply.grounded  # type: ignore[return-value]
        stream = engine.stream_chat(question)
        return "".join(stream.response_gen), stream.grounded  # type: ignore[return-value]

    text, answer = turn("What does TS-999 mean?")
    assert text == "The pump [Source 1] runs dry [Source 1], says [Source 1] [Source 1]."
    assert answer.citations is not None
    assert (answer.citations.cited, answer.citations.is_clean, answer.citation_note) == ((1,), True, "")
    text, answer = turn("And what does it mean for the pump?")
    assert answer.citations is not None
    assert (text, answer.citations.is_clean) == ("The pump runs dry.", False)
    assert answer.citation_note == "The answer cites no source."
    assert (answer.cited_sources, answer.read_sources[0][0]) == ([], 1)


async def test_a_turn_streams_in_an_event_loop(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    provider.enqueue("The pump runs dry.", "Because.")
    engine = reports.as_chat_engine(llm=openai, min_confidence=0.0)
    stream = await engine.astream_chat("What does TS-999 mean?")
    assert "".join([piece async for piece in stream.async_response_gen()]) == "The pump runs dry."
    assert str(await engine.achat("Why?")) == "Because."
    assert len(engine.chat_history) == 4


def test_a_failed_turn_leaves_the_history_unchanged(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    engine = reports.as_chat_engine(llm=openai, min_confidence=0.0)
    provider.fault("invalid_key", times=2)
    with pytest.raises(ModelError, match="API key"):
        engine.chat("one")
    with pytest.raises(ModelError, match="API key"):
        list(engine.stream_chat("one").response_gen)
    assert engine.chat_history == []


def test_a_partial_answer_is_in_the_history(reports: Project, openai: OpenAI, provider: LoopbackProvider) -> None:
    provider.enqueue(*[" ".join(str(number) for number in range(400))] * 2)
    provider.fault("drop_in_body")
    engine = reports.as_chat_engine(llm=openai, min_confidence=0.0)
    response: Any = engine.chat(QUESTION)
    assert response.grounded.partial is not None
    assert contents(engine)[1] == str(response)
    engine.reset()
    stream: Any = engine.stream_chat(QUESTION)
    first = next(stream.response_gen)
    stream.chat_stream.close()  # the reader stops
    assert contents(engine)[1].startswith(first.strip())  # type: ignore[union-attr]
    assert stream.grounded.partial == "Reading stopped before the end of the answer."


def test_an_answer_without_a_model_is_in_the_history_if_the_reader_stops_after_it(reports: Project) -> None:
    engine, _ = chat(reports, intents=True)
    stream: Any = engine.stream_chat("Thank you!")
    shown = next(stream.chat_stream).delta
    stream.chat_stream.close()
    assert contents(engine) == ["Thank you!", shown]
