"""The OpenAI-compatible API: the list of models, and chat completions, complete or streamed.

Each project is a model, which answers from its documents, and `PROJECT:passages` is a model that returns the passages
without an LLM. An answer cites its sources as [Source 1]; a list of the sources follows it, and `annotations` contain
their files, pages and quotations.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.schema import NodeWithScore
from pydantic import BaseModel, Field

from llama_index_contextual.answering.citations import citations_of
from llama_index_contextual.answering.findings import findings_of
from llama_index_contextual.answering.response import GroundedResponse
from llama_index_contextual.api.errors import ApiError, as_api_error, error_body
from llama_index_contextual.errors import ContextualError, ModelError
from llama_index_contextual.project.project import Project
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.search.results import RetrievedChunk
from llama_index_contextual.tools.models import FilterArgument
from llama_index_contextual.ui.ask import SourceView, source_views
from llama_index_contextual.ui.users import Right, Spent, User
from llama_index_contextual.ui.views import MAX_QUESTION

PASSAGES = ":passages"
"""Ending of the model that returns passages without an LLM."""

SOURCES = "\n\n---\n**Sources**\n"
"""Heading of the list of sources below an answer, which is left out of the history of a conversation."""

MAX_QUOTE = 400
"""Maximum number of characters of a quotation in the list of sources."""
MAX_PASSAGE = 1_500
"""Maximum number of characters of a passage in the answer of `PROJECT:passages`."""

Link = Callable[..., str]
"""Function that returns the URL of a passage in the Workbench; see `Links.passage`."""


class ContentPart(BaseModel):
    """A part of a message."""

    type: str
    text: str | None = None


class Message(BaseModel):
    """A message of the conversation."""

    role: str
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text or "" for part in self.content or ())


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool | None = None


class ResponseFormat(BaseModel):
    """Form of the answer."""

    type: str = "text"


class ChatRequest(BaseModel):
    """Request of a chat completion. Sampling options such as `temperature` are accepted and ignored."""

    model: str = Field(max_length=300)
    messages: list[Message] = Field(min_length=1, max_length=1_000)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: ResponseFormat | None = None
    filters: FilterArgument = None


def model_entries(projects: Mapping[str, Project], rights: frozenset[Right]) -> list[dict[str, Any]]:
    """Return the models that a user may call, as in OpenAI's list of models.

    A project whose LLM is missing has only the model that returns passages.
    """
    names = []
    for name, project in projects.items():
        names += [name] if "ask" in rights and _has_llm(project) else []
        names += [f"{name}{PASSAGES}"] if "search" in rights else []
    return [{"id": name, "object": "model", "created": 0, "owned_by": "llama-index-contextual"} for name in names]


def _has_llm(project: Project) -> bool:
    try:
        project.as_chat_engine()
    except ModelError:
        return False
    return True


# ---- a completion ----------------------------------------------------------------------------------------------------


@dataclass
class Completion:
    """An answer while it is written.

    Attributes:
        model: Name of the model.
        content: The text so far.
        annotations: The cited sources, at the end.
        usage: Tokens, at the end.
        spent: Price of the answer.
        finish_reason: "stop", or "length" if the answer is incomplete.
    """

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))
    content: str = ""
    annotations: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=lambda: _usage(0, 0))
    spent: Spent = field(default_factory=Spent)
    finish_reason: Literal["stop", "length"] = "stop"

    def body(self) -> dict[str, Any]:
        """Return the complete answer."""
        message = {"role": "assistant", "content": self.content, "refusal": None, "annotations": self.annotations}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self.usage}

    def chunk(self, delta: Mapping[str, Any], *, finish_reason: str | None = None) -> dict[str, Any]:
        """Return a piece of a streamed answer."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self) -> dict[str, Any]:
        """Return the last piece of a stream, which contains only the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def find_model(name: str, projects: Mapping[str, Project], user: User) -> tuple[Project, bool]:
    """Return the project of a model, and whether the model returns passages.

    Raises:
        ApiError: There is no such model, or the user may not call it.
    """
    is_passages = name.endswith(PASSAGES)
    project = projects.get(name.removesuffix(PASSAGES))
    if project is None:
        message = f"The model {name[:100]!r} does not exist: GET /v1/models lists the models."
        raise ApiError(404, message, code="model_not_found", param="model")
    right: Right = "search" if is_passages else "ask"
    if right not in user.rights:
        raise ApiError(403, f"This token has no right to {right}.", code="missing_right", param="model")
    return project, is_passages


def check(request: ChatRequest) -> tuple[str, list[ChatMessage]]:
    """Return the question and the earlier messages of a request.

    Raises:
        ApiError: The request asks for something that a project cannot do.
    """

    def refuse(message: str, param: str, code: str = "unsupported_value") -> ApiError:
        return ApiError(400, message, code=code, param=param)

    if request.n not in (None, 1):
        raise refuse("Only one answer can be requested: leave out `n`.", "n")
    if request.tool_choice == "required" or isinstance(request.tool_choice, Mapping):
        raise refuse("A project answers in text and calls no tools: leave out `tool_choice`.", "tool_choice")
    if request.response_format is not None and request.response_format.type != "text":
        raise refuse("A project answers in text, not in JSON: leave out `response_format`.", "response_format")
    for message in request.messages:
        if not isinstance(message.content, str) and any(part.type != "text" for part in message.content or ()):
            raise refuse("A project reads only the text of messages: leave out images and files.", "messages")
    last = request.messages[-1]
    question = person_text(last.text).strip()
    if last.role != "user" or not question:
        raise refuse("The last message must be a question of the user.", "messages", "invalid_value")
    roles = {"user": MessageRole.USER, "assistant": MessageRole.ASSISTANT}
    history = [
        ChatMessage(role=roles[message.role], content=text)
        for message in request.messages[:-1]
        if message.role in roles and (text := message.text.partition(SOURCES)[0].strip())
    ]
    return question, history


async def write(
    completion: Completion, request: ChatRequest, project: Project, *, is_passages: bool, link: Link
) -> AsyncGenerator[str, None]:
    """Yield the pieces of an answer, and complete the completion.

    Raises:
        ApiError: The request asks for something that a project cannot do.
        InputError: A filter matches nothing.
        ModelError: The LLM cannot be reached or does not begin to answer in time.
    """
    reply = task_reply(request.messages[-1].text)
    if reply is None:
        question, history = check(request)
        if len(question) > MAX_QUESTION:
            message = f"The question has {len(question):,} characters: use at most {MAX_QUESTION:,}."
            raise ApiError(400, message, code="context_length_exceeded", param="messages")
        link = partial(link, q=question)
        pieces = (
            _passages(completion, project, question, request.filters, link)
            if is_passages
            else _answer(completion, project, question, history, request.filters, link)
        )
    else:
        pieces = _single(reply)
    async with aclosing(pieces):
        async for piece in pieces:
            completion.content += piece
            yield piece


async def _single(text: str) -> AsyncGenerator[str, None]:
    yield text


async def _passages(
    completion: Completion, project: Project, question: str, filters: Any, link: Link
) -> AsyncGenerator[str, None]:
    response = await project.aretrieve(question, filters=filters, min_relevance="auto")
    hits = response.to_nodes()
    views = await asyncio.to_thread(source_views, hits, link)
    lines = [] if hits else [response.verdict()]
    at = 0
    for view, hit in zip(views, hits, strict=True):
        heading = f"**[Source {view.number}]** {_linked(view.label, view.url)}"
        text = RetrievedChunk.of(view.number, hit).excerpt(question, MAX_PASSAGE)
        quoted = "\n".join(f"> {escape_markdown(line)}" for line in visible(text).splitlines())
        block = f"{heading}\n\n{quoted}"
        completion.annotations.append(_annotation(at, at + len(heading), view, hit))
        lines.append(block)
        at += len(block) + 2
    yield "\n\n".join(lines)


async def _answer(
    completion: Completion,
    project: Project,
    question: str,
    history: Sequence[ChatMessage],
    filters: Any,
    link: Link,
) -> AsyncGenerator[str, None]:
    chat = await asyncio.to_thread(partial(project.as_chat_engine, filters=filters))
    stream = await chat.astream_chat(question, list(history))
    images = _ImageFilter()
    try:
        async with aclosing(cast("AsyncGenerator[ChatResponse, None]", stream.achat_stream)) as pieces:
            async for piece in pieces:
                if text := images.feed(piece.delta or ""):
                    yield text
    finally:  # an answer that the client does not read to its end has a price, too
        if stream.grounded is not None and stream.grounded.usage is not None:
            usage = stream.grounded.usage
            completion.usage = _usage(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
            completion.spent.dollars = usage.dollars or 0.0
    if text := images.flush():
        yield text
    response = cast(GroundedResponse, stream.grounded)
    views = await asyncio.to_thread(source_views, response.source_nodes, link, response.cited_sources)
    completion.annotations = _annotations(completion.content, views, response.source_nodes)
    if response.partial and not response.is_missing:
        completion.finish_reason = "length"
    if ending := _ending(response, views):
        yield ending


def _ending(response: GroundedResponse, views: Sequence[SourceView]) -> str:
    """Return the list of the cited sources, and the checks that found something wrong, as Markdown."""
    lines = []
    for view in views if response.found else ():
        for excerpt in view.excerpts if view.is_cited else ():
            quote = " ".join(excerpt.quote.text.split())
            quote = quote if len(quote) <= MAX_QUOTE else f"{quote[: MAX_QUOTE - 2]} …"
            file_name = Source.of(response.source_nodes[view.number - 1].node).file_name
            label = ", ".join(filter(None, (file_name or excerpt.title, excerpt.place)))
            lines.append(f"- [Source {view.number}] {_linked(label, excerpt.url)}: “{escape_markdown(quote)}”")
    for finding in findings_of(response):
        if finding.kind == "bad":
            texts = "; ".join(f"“{escape_markdown(text)}”" for text in finding.quotations)
            lines.append(f"- ⚠ {finding.text}{f' {texts}' if texts else ''}")
    return f"{SOURCES}{chr(10).join(lines)}" if lines else ""


def _annotations(content: str, views: Sequence[SourceView], hits: Sequence[NodeWithScore]) -> list[dict[str, Any]]:
    """Return one annotation for each cited source of each citation in the text."""
    by_number = {view.number: (view, hit) for view, hit in zip(views, hits, strict=True)}
    return [
        _annotation(start, end, *by_number[number])
        for start, end, numbers in citations_of(content)
        for number in numbers
        if number in by_number
    ]


def _annotation(start: int, end: int, view: SourceView, hit: NodeWithScore) -> dict[str, Any]:
    """Return a citation in OpenAI's form, with the file, the page and the quotation as additional fields."""
    source, excerpt = Source.of(hit.node), view.excerpts[0]
    citation = {
        "start_index": start,
        "end_index": end,
        "title": view.label,
        "url": excerpt.url,
        "source": view.number,
        "doc_id": source.doc_id,
        "file": source.file_name or source.doc_id,
        "page": RetrievedChunk.of(view.number, hit).place.page_start,
        "quote": " ".join(excerpt.quote.text.split()),
    }
    return {"type": "url_citation", "url_citation": citation}


_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~!])")


def escape_markdown(text: str) -> str:
    r"""Return text from a document so that a client shows it as it is, and loads and links nothing in it.

    Example:
        >>> print(escape_markdown("![x](http://evil.example/a_b)"))
        \!\[x\](http://evil.example/a\_b)
    """
    return _SPECIAL.sub(r"\\\1", text)


def _linked(label: str, url: str) -> str:
    text = escape_markdown(visible(label))
    return f"[{text}](<{url}>)" if url else text


class _ImageFilter:
    """Filter that escapes images in a streamed text, which a client would load from an address in the text."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, piece: str) -> str:
        """Return the text that can be shown."""
        text = self._rest + piece
        self._rest = "!" if text.endswith("!") else ""
        return text.removesuffix(self._rest).replace("![", "!\\[")

    def flush(self) -> str:
        """Return the rest."""
        return self._rest


# ---- responses -------------------------------------------------------------------------------------------------------


async def events(
    completion: Completion, pieces: AsyncGenerator[str, None], first: str | None, *, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yield a completion as server-sent events. If the client disconnects, the call to the LLM is stopped.

    Args:
        completion: The completion.
        pieces: The pieces of the answer after the first.
        first: The first piece, or None if the answer is empty.
        with_usage: Whether the stream ends with the usage.
    """
    async with aclosing(pieces):
        yield _event(completion.chunk({"role": "assistant", "content": ""}))
        try:
            if first is not None:
                yield _event(completion.chunk({"content": first}))
            async for piece in pieces:
                yield _event(completion.chunk({"content": piece}))
        except ContextualError as error:
            yield _event(error_body(as_api_error(error)))
            return
        if completion.annotations:
            yield _event(completion.chunk({"annotations": completion.annotations}))
        yield _event(completion.chunk({}, finish_reason=completion.finish_reason))
        if with_usage:
            yield _event(completion.usage_chunk())
        yield b"data: [DONE]\n\n"


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=True).encode() + b"\n\n"


# ---- requests of clients --------------------------------------------------------------------------------------------

# Open WebUI and LibreChat ask the model of a conversation for its title, its tags and follow-up questions, with a long
# prompt that contains the conversation. These are no questions about the documents, so they are answered from their own
# text, without a search or an LLM. The phrases are those of the clients' default prompts.

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
