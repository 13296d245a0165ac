"""Requests that chat clients send on their own: titles, tags and follow-up questions of a conversation.

Open WebUI and LibreChat send them to the model of the conversation, with a long prompt that contains the conversation.
They are no questions about the documents, so they are answered from their own text, without a search or an LLM. The
phrases are those of the clients' default prompts.
"""

from __future__ import annotations

import json
import re

_TITLE_WORDS = 6
_MAX_TITLE = 60

# Open WebUI: all default prompts begin with "### Task:" and contain one of these tags, except that of the emoji.
_OPEN_WEBUI = re.compile(r"\A\s*### Task:[ \t]*\n", re.IGNORECASE)
_TAGS = ("<chat_history>", "<type>")
_OPEN_WEBUI_TITLE = re.compile(r"\A\s*Create a concise, 3-5 word title with an emoji as a title for the chat history")
_OPEN_WEBUI_RAG = re.compile(r"\A\s*### Task:[ \t]*\nRespond to the user query using the provided context")
# LibreChat, in the packages `agents` (two prompts) and `api`, and its earlier releases.
_LIBRECHAT = re.compile(
    r"\A\s*(?:Provide a concise, 5-word-or-less title for the conversation"
    r"|Analyze this conversation and provide:"
    r"|Please generate a concise title \(max 40 characters\)"
    r"|Please generate a concise, 40 character"
    r"|Write a concise title for this conversation)"
)
_JSON_KEY = re.compile(r"""JSON format:\s*\{\s*["'](title|tags|follow_ups|queries|text|prompt)["']""", re.IGNORECASE)
_USER_LINE = re.compile(r"^[ \t]*(?:USER|User|user|Human|human):[ \t]*(\S.*)$", re.MULTILINE)
_EMPTY = {"tags": ["General"], "follow_ups": [], "queries": [], "text": "", "prompt": ""}


def task_reply(text: str) -> str | None:
    """Return the reply to a request that a chat client sent on its own, or None if the text is a question of a person.

    Args:
        text: The last message.

    Example:
        >>> task_reply('### Task:\\nGenerate a title.\\nJSON format: { "title": "…" }\\n<chat_history>\\nUSER: How?')
        '{"title": "How?"}'
        >>> task_reply("What is the task of the operator?") is None
        True
    """
    if _OPEN_WEBUI.match(text) and any(tag in text for tag in _TAGS):
        key = _JSON_KEY.search(text)
        name = key[1].lower() if key else "follow_ups" if "follow-up" in text[:400] else ""
        if name == "title":
            return json.dumps({"title": title_of(text)}, ensure_ascii=False)
        return json.dumps({name: _EMPTY[name]}) if name else ("{}" if "JSON" in text else "")
    if _OPEN_WEBUI_TITLE.match(text) or _LIBRECHAT.match(text):
        return title_of(text)
    return None


def person_text(text: str) -> str:
    """Return the question of a person in a message that a client has wrapped in a prompt of its own.

    Example:
        >>> person_text("### Task:\\nRespond to the user query using the provided context<user_query>Why?</user_query>")
        'Why?'
    """
    if not _OPEN_WEBUI_RAG.match(text):
        return text
    query = text.partition("<user_query>")[2].rpartition("</user_query>")[0]
    return query.strip() or text


def title_of(text: str) -> str:
    """Return a title for the conversation in a prompt: the first words of its first question.

    Example:
        >>> title_of("Conversation:\\nUser: what does error TS-999 mean on the old pump?\\nAI: It stops.")
        'What does error TS-999 mean on …'
    """
    question = _USER_LINE.search(text)
    words = (question[1] if question else "Conversation").split()
    title = " ".join(words[:_TITLE_WORDS])[:_MAX_TITLE]
    return f"{title[:1].upper()}{title[1:]}{' …' if len(words) > _TITLE_WORDS else ''}"
