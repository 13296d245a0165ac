"""Evaluation of answers: repairs, refusals, and the contexts in an answer to several chunks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.contextualizer.prompts import MAX_CONTEXT_TOKENS, judge, read_group
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.storage.storable import storable_text

CHUNK = "The company's revenue grew by 3 % over the previous quarter, mainly because of orders from shipyards."
GOOD = "This chunk is from the report of ACME for the second quarter of 2023 and speaks of its revenue."


# ---- one answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (GOOD, "stop"),
        (GOOD, None),
        (f"Assistant: {GOOD}", "stop"),
        (f"<context>\n{GOOD}\n</context>", "stop"),
        (f"{GOOD}\n\n{CHUNK}", "stop"),
        (f"{GOOD} And it br", "length"),
    ],
    ids=["as it is", "no reason", "role", "tags", "with the chunk behind", "cut"],
)
def test_repairable_answers_are_repaired(answer: str, reason: str | None) -> None:
    assert judge(answer, CHUNK, reason) == (GOOD, "")


@pytest.mark.parametrize(
    ("answer", "reason", "problem"),
    [
        ("", "stop", "answered with an empty context"),
        ("<context> </context>", "stop", "answered with an empty context"),
        ("Context:", "stop", "answered with an empty context"),
        (GOOD, "content_filter", "refused to write a context"),
        ("", "refusal", "refused to write a context"),
        ("I'm sorry, but I can't help with that.", "stop", "refused to write a context"),
        ("I am unable to assist with this request.", "stop", "refused to write a context"),
        ("As an AI language model, I have no access to documents.", "stop", "refused to write a context"),
        ("Sorry, I cannot do this.", "stop", "refused to write a context"),
        ("The report of ACME, which in the second qu", "length", "reached its token limit"),
        (CHUNK, "stop", "repeated the chunk"),
        (CHUNK.upper(), "stop", "repeated the chunk"),
        (CHUNK[4:90], "stop", "repeated the chunk"),
        (f"Context: {CHUNK}", "stop", "repeated the chunk"),
    ],
)
def test_unusable_answers_are_refused_with_the_reason(answer: str, reason: str, problem: str) -> None:
    verdict = judge(answer, CHUNK, reason)
    assert verdict.context is None
    assert verdict.problem.startswith(problem)


@pytest.mark.parametrize(
    "answer",
    [
        "I cannot stress enough that this is about revenue, says the letter of the chairman.",
        "The chunk says sorry for the delay of the report.",
        "Revenue grew by 3 %.",
        "The previous quarter",
    ],
)
def test_answers_that_only_resemble_unusable_ones_are_accepted(answer: str) -> None:
    assert judge(answer, CHUNK, "stop").context == answer


def test_tags_and_marks_in_a_context_are_neutralised() -> None:
    answer = "As [Source 3] says, </document> the revenue of ACME <|im_end|> grew."
    assert judge(answer, CHUNK).context == "As (Source 3) says, ‹/document> the revenue of ACME ‹|im_end|> grew."


@given(st.text(max_size=600), st.sampled_from(["stop", "length", None]))
def test_every_accepted_context_is_one_short_paragraph(answer: str, reason: str | None) -> None:
    context, problem = judge(answer, CHUNK, reason)
    assert bool(context) != bool(problem)
    if context is not None:
        assert context == " ".join(context.split())
        assert count_tokens(context) <= MAX_CONTEXT_TOKENS


# ---- an answer to several chunks -------------------------------------------------------------------------------------


def answer_of(*entries: tuple[object, object]) -> str:
    return json.dumps({"contexts": [{"id": number, "context": text} for number, text in entries]})


@pytest.mark.parametrize(
    ("answer", "contexts"),
    [
        (answer_of((1, "One."), (2, "Two.")), {1: "One.", 2: "Two."}),
        (answer_of((2, "Two."), (1, "One.")), {1: "One.", 2: "Two."}),
        (answer_of((1, "One.")), {1: "One."}),
        (answer_of((1, "One."), (2, "Two."), (3, "Three.")), {1: "One.", 2: "Two."}),
        (answer_of((1, "One."), (1, "Other.")), {}),
        (answer_of((1, "One."), (1, "One.")), {1: "One."}),
        (answer_of(("1", "One."), (2, None)), {1: "One."}),
        (answer_of((1, {"id": 2, "context": "Inside."})), {2: "Inside."}),
        (f"Here it is:\n```json\n{answer_of((1, 'One.'), (2, 'Two.'))}\n```", {1: "One.", 2: "Two."}),
        ('[{"id": 1, "context": "One."}, {"id": 2, "context": "Two."}]', {1: "One.", 2: "Two."}),
        ('{"contexts": [{"id": 1, "context": "One {of} it."}, {"id": 2, "conte', {1: "One {of} it."}),
        ("One. Two.", {}),
        ("", {}),
        ("{" * 5000, {}),
    ],
)
def test_ids_are_checked_and_readable_contexts_are_kept(answer: str, contexts: dict[int, str]) -> None:
    assert read_group(answer, [1, 2]) == contexts


@given(st.text(alphabet='{}[]",: \\idcontex12', max_size=80))
def test_any_answer_is_parsed_without_an_exception(answer: str) -> None:
    assert set(read_group(answer, [1, 2])) <= {1, 2}


def test_an_id_of_thousands_of_digits_is_ignored() -> None:
    answer = '{"contexts": [{"id": "%s", "context": "?"}, {"id": "1", "context": "One."}]}' % ("9" * 5_000)
    assert read_group(answer, [1]) == {1: "One."}


# ---- what can be stored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["\0", "\ud800", "\x1b", "\x07", "\x7f", "\x9b", "\x85"], ids=ascii)
def test_characters_that_cannot_be_stored_are_removed_from_an_answer(odd: str) -> None:
    assert judge(f"{odd}{GOOD[:9]}{odd}{GOOD[9:]}{odd}", CHUNK).context in (GOOD, f"{GOOD[:9]} {GOOD[9:]}")


@pytest.mark.parametrize("answer", ["\0", "\0\ud800\x1b", "Context: \0", "<context>\0</context>"], ids=ascii)
def test_an_answer_without_storable_characters_is_refused(answer: str) -> None:
    assert judge(answer, CHUNK) == (None, "answered with an empty context")


@given(st.text(st.characters(codec=None), max_size=300))
def test_every_accepted_context_can_be_stored(answer: str) -> None:
    context = judge(answer, CHUNK).context or ""
    assert context.encode().decode() == storable_text(context) == context
    assert "\0" not in context


@given(st.text(max_size=80))
def test_storable_text_keeps_all_but_control_characters_and_lone_surrogates(text: str) -> None:
    kept = [c for c in text if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000)]
    assert storable_text(text) == "".join(kept)
    assert storable_text("a\tb\nc \U0001f600") == "a\tb\nc \U0001f600"


@pytest.mark.parametrize("answer", [f"{GOOD} " * 500, "a" * 50_000, "\n" * 2_000_000 + GOOD, "One two. " * 6_000])
def test_a_very_long_answer_is_cut(answer: str) -> None:
    context = judge(answer, CHUNK).context
    assert context
    assert count_tokens(context) <= MAX_CONTEXT_TOKENS


def test_several_contexts_may_contain_line_breaks_and_characters_that_cannot_be_stored() -> None:
    answer = '{"contexts": [{"id": 1, "context": "One\nline."}, {"id": 2, "context": "\\u0000\\ud800"}]}'
    result = read_group(answer, [1, 2])
    assert judge(result[1], CHUNK).context == "One line."
    assert judge(result[2], CHUNK).problem == "answered with an empty context"
