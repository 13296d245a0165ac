"""The answer in a reply is found without its reasoning, whatever marks the reasoning has."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual._utils.reasoning import ReasoningFilter, without_reasoning
from tests.support.growth import MAX_EXPONENT, Run, exponent
from tests.support.reasoning import (
    ANSWER,
    MENTIONS,
    REPLIES,
    THOUGHT,
    WITHOUT_ANSWER,
    marks_in,
    random_pieces,
    streamed,
    written,
)


@pytest.mark.parametrize("name", REPLIES)
def test_the_answer_remains(name: str) -> None:
    reply, source = written(REPLIES[name]), random.Random(name)
    assert without_reasoning(reply).strip() == ANSWER
    assert {streamed(random_pieces(reply, source)).strip() for _ in range(8)} == {ANSWER}


@pytest.mark.parametrize("name", WITHOUT_ANSWER)
def test_a_reply_of_reasoning_only_is_empty(name: str) -> None:
    reply, source = written(WITHOUT_ANSWER[name]), random.Random(name)
    assert without_reasoning(reply) == without_reasoning(reply, is_cut=True) == ""
    assert {streamed(random_pieces(reply, source)) for _ in range(8)} == {""}


@pytest.mark.parametrize("answer", MENTIONS)
def test_an_answer_that_mentions_a_mark_is_complete(answer: str) -> None:
    source = random.Random(answer)
    assert without_reasoning(answer) == answer
    assert {streamed(random_pieces(answer, source)) for _ in range(8)} == {answer}


@pytest.mark.parametrize("name", [name for name in REPLIES if not REPLIES[name].startswith("{")])
def test_a_marked_reply_that_is_cut_off_shows_no_reasoning(name: str) -> None:
    reply = written(REPLIES[name], thought="Hm?")
    for end in range(len(REPLIES[name].partition("{")[0]) + 1, len(reply)):
        shown = without_reasoning(reply[:end], is_cut=True)
        assert not marks_in(shown)
        assert streamed(list(reply[:end]), is_cut=True) == shown


@pytest.mark.parametrize("mark", ["think", "THINKING", "deep_thought", "reason", "analysis", "inner_voice"])
def test_long_reasoning_is_removed_from_a_stream(mark: str) -> None:
    reply = f"<{mark}>" + f"{THOUGHT}\n" * 200 + f"</{mark}>\n{ANSWER * 40}"
    assert streamed(random_pieces(reply, random.Random(mark))) == ANSWER * 40


def test_a_plain_answer_is_returned_piece_by_piece_after_its_opening() -> None:
    stream = ReasoningFilter(opening=20)
    assert [stream.feed(word) for word in ("The notice ", "period ", "is three ", "days.")] == [
        *([], [], ["The notice ", "period ", "is three "], ["days."]),
    ]
    assert stream.flush() == []


def test_an_opening_that_looks_like_reasoning_is_kept_back_until_the_end() -> None:
    stream = ReasoningFilter(opening=10)
    assert stream.feed("The user wants to know the number of days. ") == []
    assert stream.feed("It is three.") == []
    assert stream.feed("</think>Three days.") + stream.flush() == ["Three days."]
    assert stream.has_reasoning


def test_reasoning_whose_mark_comes_too_late_is_reported() -> None:
    stream = ReasoningFilter(opening=0)
    shown = stream.feed(f"{THOUGHT}</think>{ANSWER}") + stream.flush()
    assert stream.has_shown_reasoning
    assert "".join(shown) == THOUGHT + ANSWER


_TAGS = (
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "◁think▷",
    "&lt;think&gt;",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
)
_PARTS = st.sampled_from([*_TAGS, *"<>[ \n:`a", "</", "&l", "think", "```\n", "B.", "analysis", "final", "<answer>"])


@given(st.lists(_PARTS, max_size=14), st.booleans(), st.randoms(use_true_random=False))
def test_what_remains_does_not_depend_on_the_pieces(parts: list[str], is_cut: bool, source: random.Random) -> None:
    reply = "".join(parts)
    assert streamed(random_pieces(reply, source), is_cut=is_cut) == without_reasoning(reply, is_cut=is_cut).lstrip()


def _in_pieces(text: str) -> None:
    streamed([text[at : at + 4] for at in range(0, len(text), 4)])


@pytest.mark.parametrize(
    "unit", ["<think>", "<", "<think", "</think>", "`", "analysi", "&lt;", "<|channel|>", "\n[", "a"]
)
def test_a_stream_takes_linear_time(unit: str) -> None:
    assert exponent(_in_pieces, Run("", unit)) < MAX_EXPONENT


def test_the_list_of_marks_for_these_tests_finds_what_is_left() -> None:
    assert all(marks_in(written(form)) for form in [*REPLIES.values(), *WITHOUT_ANSWER.values()])
    assert not marks_in(ANSWER)
