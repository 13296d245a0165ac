"""Conversations: the search and the prompt of a turn, the history, and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.chat_engine import GroundedChatEngine, end_of
from llama_index_contextual.answering.prompts import SMALL_TALK
from llama_index_contextual.answering.query_engine import GroundedQueryEngine
from llama_index_contextual.errors import ConfigurationError, InputError, ModelError
from llama_index_contextual.node_parser.tokens import count_tokens
from llama_index_contextual.project.project import Project
from llama_index_contextual.storage import files
from tests.integration.retrievers.corpus import FixedRetriever
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

LOW = "Low confidence: even the best passage has little in common with the question, in words and in meaning."


def chat(project: Project, *answers: str | BaseException, **options: Any) -> tuple[GroundedChatEngine, ScriptedLLM]:
    llm = ScriptedLLM(default="An answer.")
    llm.enqueue(*answers)
    return project.as_chat_engine(llm=llm, **{"min_confidence": 0.0, **options}), llm


def contents(engine: GroundedChatEngine) -> list[str | None]:
    return [message.content for message in engine.chat_history]


# ---- turns -----------------------------------------------------------------------------------------------------------


def test_a_follow_up_is_searched_and_answered_with_the_previous_exchange(reports: Project) -> None:
    engine, llm = chat(reports, "“the pump runs dry” [Source 1].", "Because of V2 [Source 1].")
    first = engine.chat("What does error TS-999 mean?")
    second = engine.chat("And why is that?")
    assert second.source_nodes[0].node.metadata["file_name"] == "manual.txt"
    assert second.grounded is not None
    assert second.grounded.retrieval is not None
    assert second.grounded.retrieval.blend is not None
    assert [text for text, _ in second.grounded.retrieval.blend.lexical] == [
        "And why is that?",
        "What does error TS-999 mean?",
        str(first),
    ]
    assert str(first).replace(" [Source 1]", "") in llm.history[1]
    assert llm.history[1].endswith("Question: And why is that?")
    assert contents(engine) == ["What does error TS-999 mean?", str(first), "And why is that?", str(second)]


def test_a_prompt_contains_no_citation_of_an_earlier_turn(reports: Project) -> None:
    engine, llm = chat(
        reports, "Dry [Source 1].", "And why, standing alone?", "Because [Sources 1 and 2].", mode="condense"
    )
    engine.chat("What does error TS-999 mean?")
    engine.chat("And why?")
    _, condensing, answering = llm.history
    assert condensing.endswith("user: What does error TS-999 mean?\nassistant: Dry.\n\nLast question: And why?")
    assert "\nDry.\nSources:" in answering
    engine.chat("What did you just say?")
    assert llm.history[-1].endswith("And why?\nBecause.\nWhat did you just say?")
    assert contents(engine)[1] == "Dry [Source 1].", "the history itself is not changed"


ABOUT_THE_CONVERSATION = [
    *("What did you just say?", "what have you said so far", "What was my first question?", "Repeat your last answer."),
    *(
        "Can you summarize our conversation?",
        "Was hast du gerade gesagt?",
        "What do you mean by that?",
        "Say that again",
    ),
]


@pytest.mark.parametrize("question", ABOUT_THE_CONVERSATION)
@pytest.mark.parametrize("mode", ["blend", "condense", "simple"])
def test_a_question_about_the_conversation_is_answered_from_it_alone(
    reports: Project, mode: Any, question: str
) -> None:
    engine, llm = chat(reports, "The pump runs dry [Source 1].", "I said that it runs dry.", mode=mode)
    engine.chat("What does error TS-999 mean?")
    answer = engine.chat(question)
    assert (str(answer), answer.source_nodes) == ("I said that it runs dry.", [])
    assert len(llm.history) == 2
    assert llm.history[1].startswith("The last message asks about this conversation.")
    assert "Sources:" not in llm.history[1]
    assert "The pump runs dry." in llm.history[1]


@pytest.mark.parametrize("question", ["What did you say in article 5 of the lease?", "Repeat the steps for TS-999."])
def test_a_question_about_a_subject_is_searched_in_a_conversation(reports: Project, question: str) -> None:
    engine, llm = chat(reports)
    engine.chat("What does error TS-999 mean?")
    assert engine.chat(question).source_nodes
    assert "Sources:" in llm.history[1]


@pytest.mark.parametrize("message", ["thanks!", "Hello", "ok, thank you very much"])
def test_chitchat_costs_no_call(reports: Project, message: str) -> None:
    engine, llm = chat(reports)
    answers = [str(engine.chat(message)), "".join(engine.stream_chat(message).response_gen)]
    assert (answers, llm.history) == ([SMALL_TALK] * 2, [])
    assert engine.chat("thanks! What does error TS-999 mean?").source_nodes


def test_the_number_of_passages_in_the_prompt_can_be_limited(reports: Project) -> None:
    question = "What does it say of pumps, revenue and duty?"
    engine, llm = chat(reports, max_passages=3)
    assert len(engine.chat(question).source_nodes) <= 3
    assert engine.engine.options.max_passages == 3
    assert chat(reports)[0].engine.options.max_passages is None
    assert "[Source 4]" not in llm.history[0].partition("Sources:")[2]


def test_the_last_three_exchanges_are_used(reports: Project) -> None:
    engine, llm = chat(reports)
    for number in range(5):
        engine.chat(f"question {number}")
    assert "question 0" not in llm.history[4]
    assert all(f"question {number}" in llm.history[4] for number in (1, 2, 3, 4))


def test_the_oldest_exchanges_leave_the_prompt_first(reports: Project) -> None:
    engine, llm = chat(reports, "word " * 200, "short", history_tokens=100)
    for question in ("first question", "second question", "third question"):
        engine.chat(question)
    assert "first question" not in llm.history[2]
    assert "second question" in llm.history[2]


@pytest.mark.parametrize("mode", ["blend", "condense"])
def test_of_an_exchange_that_is_too_long_the_newest_part_stays_in_the_prompt(reports: Project, mode: str) -> None:
    answer = " ".join(f"Fact {number} of the pump." for number in range(400))
    engine, llm = chat(reports, answer, "Why does it run dry?", mode=mode, history_tokens=100)
    engine.chat("What is known about the pump?")
    engine.chat("Why?")
    for prompt in llm.history[1:]:
        assert "What is known about the pump?" in prompt
        assert "… Fact 3" in prompt, "cut at the beginning of a sentence"
        assert "Fact 399 of the pump." in prompt
        assert "Fact 370 " not in prompt


def test_of_a_long_question_the_newest_part_stays_in_the_prompt(reports: Project) -> None:
    engine, llm = chat(reports, "It runs dry.", "Yes.", history_tokens=60)
    engine.chat("Read this. " + "The pump is old. " * 200 + "What does error TS-999 mean?")
    engine.chat("Why?")
    assert "What does error TS-999 mean?\nIt runs dry.\n" in llm.history[1]
    assert "Read this" not in llm.history[1]


@given(
    st.lists(st.text(st.sampled_from("ab .\n。字😀\u0301"), max_size=300), min_size=1, max_size=7),
    st.integers(0, 60),
)
def test_the_history_fits_its_budget_and_ends_with_the_newest_text(contents: list[str], budget: int) -> None:
    roles = ("user", "assistant")
    recent = [ChatMessage(role=roles[at % 2], content=content) for at, content in enumerate(contents)]
    engine = GroundedChatEngine(GroundedQueryEngine(FixedRetriever([]), ScriptedLLM()), history_tokens=budget)
    kept = engine._within_budget(recent)
    assert sum(count_tokens(message.content or "") for message in kept) <= budget
    assert [message.role.value for message in kept[:1]] in ([], ["user"])
    for message, original in zip(reversed(kept), reversed(recent), strict=False):
        if message.role == original.role:
            assert (original.content or "").rstrip().endswith((message.content or "").removeprefix("… ").rstrip())


@pytest.mark.parametrize(
    "text", ["word " * 50_000, "字" * 20_000, "x" * 100_000, " " * 5_000 + "end", "a\n\n" * 20_000]
)
@pytest.mark.parametrize("limit", [1, 3, 50, 1000])
def test_the_end_of_any_text_fits_and_is_not_cut_shorter_than_needed(text: str, limit: int) -> None:
    end = end_of(text, limit)
    assert count_tokens(end) <= limit
    assert text.rstrip().endswith(end.removeprefix("… "))
    assert count_tokens(end) >= limit // 2 - 2 or end == text or end.removeprefix("… ") == text.strip()


def test_without_turns_every_question_stands_alone(reports: Project) -> None:
    engine, llm = chat(reports, turns=0)
    engine.chat("first question")
    assert engine.chat("second question").grounded.retrieval.blend is None  # type: ignore[union-attr]
    assert "first question" not in llm.history[1]


def test_condense_asks_the_model_for_a_standalone_question(reports: Project) -> None:
    engine, llm = chat(reports, "It runs dry.", "What does error TS-104 mean?", "Not calibrated.", mode="condense")
    engine.chat("What does TS-999 mean?")
    second = engine.chat("And the other one?")
    assert second.grounded.retrieval.blend.rewritten == "What does error TS-104 mean?"  # type: ignore[union-attr]
    assert "user: What does TS-999 mean?\nassistant: It runs dry." in llm.history[1]
    assert llm.history[2].endswith("Question: And the other one?")


def test_placeholders_in_a_conversation_are_not_filled_in(reports: Project) -> None:
    engine, llm = chat(reports, "Write {question}.", "What of TS-999?", mode="condense")
    engine.chat("What does TS-999 mean?")
    engine.chat("And {history}?")
    assert "assistant: Write {question}.\n\nLast question: And {history}?" in llm.history[1]


def test_min_confidence_applies_to_follow_ups(reports: Project) -> None:
    engine, llm = chat(reports, min_confidence=0.4)
    engine.chat("Hello there.", chat_history=[])
    llm.history.clear()
    engine.chat("What is the colour of it?")
    assert LOW in llm.history[0]
    assert engine.chat("What does error TS-999 mean?").grounded.found  # type: ignore[union-attr]
    follow_up = engine.chat("And why?").grounded
    assert follow_up is not None
    assert follow_up.found
    assert follow_up.retrieval is not None
    assert (follow_up.retrieval.confidence or 0.0) >= 0.4
    assert LOW not in llm.history[-1]


def test_condense_falls_back_to_blend_if_the_model_fails(reports: Project) -> None:
    engine, _ = chat(reports, "It runs dry.", ValueError("no"), "So it is.", mode="condense")
    engine.chat("What does TS-999 mean?")
    second = engine.chat("And why?")
    assert str(second) == "So it is."
    blend = second.grounded.retrieval.blend  # type: ignore[union-attr]
    assert blend.rewritten is None
    assert blend.lexical


def test_simple_searches_for_the_question_as_it_is(reports: Project) -> None:
    engine, llm = chat(reports, mode="simple")
    engine.chat("What does TS-999 mean?")
    assert engine.chat("And revenue?").grounded.retrieval.blend is None  # type: ignore[union-attr]
    assert "What does TS-999 mean?" in llm.history[1]


@pytest.mark.parametrize("options", [{"mode": "rewrite"}, {"turns": -1}])
def test_invalid_settings_are_refused(reports: Project, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        chat(reports, **options)


# ---- the history -----------------------------------------------------------------------------------------------------


def test_reset_clears_the_history(reports: Project) -> None:
    engine, _ = chat(reports)
    engine.chat("one")
    assert isinstance(engine, BaseChatEngine)
    engine.reset()
    assert engine.chat_history == []


def test_a_given_history_replaces_the_stored_one(reports: Project) -> None:
    engine, _ = chat(reports)
    engine.chat("one")
    history = [ChatMessage(role="user", content="before"), ChatMessage(role="assistant", content="yes")]
    engine.chat("two", history)
    assert contents(engine) == ["before", "yes", "two", "An answer."]
    assert len(history) == 2


def test_a_conversation_is_saved_and_loaded(reports: Project, tmp_path: Path) -> None:
    engine, _ = chat(reports)
    engine.chat("Wie heißt das?")
    engine.save(tmp_path / "talk.json")
    other, llm = chat(reports)
    other.load(tmp_path / "talk.json")
    assert contents(other) == contents(engine)
    other.chat("And now?")
    assert "Wie heißt das?" in llm.history[0]


def test_characters_that_cannot_be_stored_are_removed_from_answers_and_history(
    reports: Project, tmp_path: Path
) -> None:
    engine, llm = chat(reports)
    llm.default = "It\0 runs \ud800dry.\x1b"
    assert str(engine.chat("Why?")) == "It runs dry."
    engine.save(tmp_path / "talk.json")
    other, _ = chat(reports)
    other.load(tmp_path / "talk.json")
    assert [message.content for message in other.chat_history] == ["Why?", "It runs dry."]
    llm.default = "\0\0"
    grounded = engine.chat("And then?").grounded
    assert grounded is not None
    assert (grounded.response, grounded.partial) == ("", "The model returned an empty answer.")


def test_a_failed_save_leaves_the_file_unchanged(
    reports: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = chat(reports)
    engine.chat("one")
    engine.save(tmp_path / "talk.json")
    before = (tmp_path / "talk.json").read_bytes()

    def full(path: Path, fill: object) -> None:
        path.write_bytes(b"[")
        raise OSError("disk full")

    monkeypatch.setattr(files.system, "write", full)
    engine.chat("two")
    with pytest.raises(OSError, match="disk full"):
        engine.save(tmp_path / "talk.json")
    assert (tmp_path / "talk.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "{}x", '{"a": 1}', "[1]", '[{"role": "nobody", "content": ""}]', "\xff"])
def test_a_file_without_a_conversation_is_refused(reports: Project, tmp_path: Path, content: str) -> None:
    (tmp_path / "talk.json").write_text(content, encoding="latin-1")
    engine, _ = chat(reports)
    engine.chat("one")
    with pytest.raises(InputError, match=r"talk\.json"):
        engine.load(tmp_path / "talk.json")
    with pytest.raises(InputError, match="does not exist"):
        engine.load(tmp_path / "none.json")
    assert len(engine.chat_history) == 2


def test_conversations_share_a_store_by_key(reports: Project) -> None:
    store = SimpleChatStore()
    first, _ = chat(reports, chat_store=store, chat_store_key="a")
    second, _ = chat(reports, chat_store=store, chat_store_key="b")
    first.chat("one")
    assert (len(first.chat_history), second.chat_history) == (2, [])
    assert store.get_keys() == ["a"]


def test_an_empty_message_is_refused(reports: Project) -> None:
    with pytest.raises(InputError, match="empty"):
        chat(reports)[0].chat("  ")


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
    provider.enqueue("one two three four five six seven eight nine ten eleven twelve thirteen fourteen")
    provider.fault("drop_in_body")
    engine = reports.as_chat_engine(llm=openai, min_confidence=0.0)
    response = engine.chat("What does TS-999 mean?")
    assert response.grounded is not None
    assert response.grounded.partial is not None
    assert contents(engine)[1] == str(response)


def test_if_the_reader_stops_the_partial_answer_is_in_the_history(
    reports: Project, openai: OpenAI, provider: LoopbackProvider
) -> None:
    provider.enqueue(" ".join(str(number) for number in range(400)))
    engine = reports.as_chat_engine(llm=openai, min_confidence=0.0)
    stream = engine.stream_chat("What does TS-999 mean?")
    pieces = stream.response_gen
    first = next(pieces)
    stream.chat_stream.close()  # type: ignore[union-attr]
    assert contents(engine)[1].startswith(first.strip())  # type: ignore[union-attr]
    assert stream.grounded is not None
    assert stream.grounded.partial == "Reading stopped before the end of the answer."


def test_an_answer_without_a_model_is_in_the_history_if_the_reader_stops_after_it(reports: Project) -> None:
    engine, _ = chat(reports, intents=True)
    stream: Any = engine.stream_chat("Thank you!")
    shown = next(stream.chat_stream).delta
    stream.chat_stream.close()
    assert contents(engine) == ["Thank you!", shown]
