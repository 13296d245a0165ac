"""Requests that chat clients send on their own are recognised, and questions of people are not."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette", reason="needs the extra ui")
from llama_index_contextual.api.chat import person_text, task_reply, title_of

HISTORY = (
    "### Chat History:\n<chat_history>\nUSER: what is the leakage limit?\nASSISTANT: 3 % [Source 1].\n</chat_history>"
)
TITLE = "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\n"
TAGS = "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history\n### Output:\n"
FOLLOW_UPS = "### Task:\nSuggest 3-5 relevant follow-up questions or prompts\n### Output:\n"
QUERIES = "### Task:\nAnalyze the chat history to determine the necessity of generating search queries\n### Output:\n"
AUTOCOMPLETE = "### Task:\nYou are an autocompletion system. Continue the text in `<text>`.\n<type>General</type>\n"


@pytest.mark.parametrize(
    ("prompt", "form", "expected"),
    [
        (TITLE, '{ "title": "your concise title here" }', {"title": "What is the leakage limit?"}),
        (TAGS, '{ "tags": ["tag1", "tag2", "tag3"] }', {"tags": ["General"]}),
        (FOLLOW_UPS, '{ "follow_ups": ["Question 1?", "Question 2?"] }', {"follow_ups": []}),
        (QUERIES, '{ "queries": ["query1", "query2"] }', {"queries": []}),
        (AUTOCOMPLETE, '{ "text": "<your_completion>" }', {"text": ""}),
    ],
)
def test_the_tasks_of_open_webui_are_answered_in_their_form(prompt: str, form: str, expected: object) -> None:
    reply = task_reply(f"{prompt}JSON format: {form}\n{HISTORY}")
    assert reply is not None
    assert json.loads(reply) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only return the"
        " title itself.\n\nConversation:\nUser: what is the leakage limit?\nAI: 3 %",
        "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title in"
        " the detected language\n\nUser: what is the leakage limit?\n",
        "Please generate a concise title (max 40 characters) for a conversation that starts with:\nUser: what is the"
        " leakage limit?\nAssistant: 3 %\n\nTitle:",
    ],
)
def test_the_titles_of_librechat_are_the_first_words_of_the_question(prompt: str) -> None:
    assert task_reply(prompt) in ("What is the leakage limit?", "What is the")


@pytest.mark.parametrize(
    "question",
    [
        "What is the title of the report?",
        "Generate a concise title for chapter 3.",
        "### Task:\nSummarise the leakage table.",
        'Which tags does valve V2 have? JSON format: { "tags": [] }',
        "Provide a title",
        "",
    ],
)
def test_questions_of_people_are_no_tasks(question: str) -> None:
    assert task_reply(question) is None
    assert person_text(question) == question


def test_the_question_is_taken_from_the_prompt_that_open_webui_wraps_around_it() -> None:
    prompt = (
        "### Task:\nRespond to the user query using the provided context, incorporating inline citations.\n"
        "<context>\nNotes.\n</context>\n\n<user_query>\nHow long does it rest?\n</user_query>\n"
    )
    assert task_reply(prompt) is None
    assert person_text(prompt) == "How long does it rest?"


def test_a_long_title_is_cut_and_a_conversation_without_a_question_has_one() -> None:
    assert title_of("User: " + "w" * 500) == "W" + "w" * 59
    assert title_of("nothing") == "Conversation"
