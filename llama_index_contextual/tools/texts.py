"""Texts for models that search: passages, descriptions of documents, and the search as a LlamaIndex tool."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from llama_index.core.tools import FunctionTool

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import ContextualError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.tools.models import SearchResult, describe_place

_MAX_DOCUMENTS = 8
_LONGEST_TITLE = 80
_INVALID_IN_TOOL_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_TOOL_NAME = 64
_QUOTED = re.compile(r"`(\w+)`")


def passages(response: RetrievalResponse, *, places: bool = False) -> str:
    """Return the passages of a response as text for a model: source, context, original text.

    The context is marked as background, because it is not part of the document and must not be quoted. The column head
    of a table that began before the passage stands above the text.

    Args:
        response: The response.
        places: Whether to add the document's id and the offsets, for a model that can read on from there.
    """
    return SearchResult.of(response).text_for_model(places=places)


def place(source: Source) -> str:
    """Return the place of a passage in its document, as text for a model."""
    return describe_place(source.doc_id, source.start_char, source.end_char)


def describe_documents(name: str, documents: Sequence[DocumentRecord]) -> str:
    """Return a description of the search over a project, for a model that has to choose a tool."""
    named = (record.title or record.file_name or record.doc_id for record in documents)
    titles = dict.fromkeys(" ".join(visible(name).split()) for name in named)
    shown = [title if len(title) <= _LONGEST_TITLE else _beginning(title) for title in titles]
    more = f", and {len(shown) - _MAX_DOCUMENTS} more" if len(shown) > _MAX_DOCUMENTS else ""
    listed = f": {'; '.join(shown[:_MAX_DOCUMENTS])}{more}" if shown else ""
    return (
        f"Searches the {pluralize(len(documents), 'document')} of {name!r}{listed}. Returns the passages that"
        f" answer a question best, each with its file and pages. Ask a whole question, with the names and numbers that"
        f" matter."
    )


def _beginning(title: str) -> str:
    """Return the first words of a long title; a single long word is cut."""
    space = title.rfind(" ", _LONGEST_TITLE // 2, _LONGEST_TITLE + 1)
    return f"{title[: space if space > 0 else _LONGEST_TITLE]}…"


def tool_name(name: str) -> str:
    """Return a tool name that every provider accepts: at most 64 letters a to z, digits, `_` and `-`.

    If characters are replaced or cut off, a hash of the whole name follows, so that different names stay different.

    Example:
        >>> tool_name("search_contracts"), tool_name("search_契約"), tool_name("search_報告")
        ('search_contracts', 'search_8d4d03b7', 'search_f8f44404')
    """
    plain = _INVALID_IN_TOOL_NAME.sub("_", name)[:_LONGEST_TOOL_NAME]
    if plain == name and name:
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain[: _LONGEST_TOOL_NAME - 9].strip('_') or 'search'}_{digest}"


def with_tool_names(text: str, names: Mapping[Any, str]) -> str:
    """Return a text in which the tools in backquotes have the names under which they are offered.

    Example:
        >>> with_tool_names("`grep` finds words, then `read` them.", {"grep": "grep_a", "read": "read_a"})
        '`grep_a` finds words, then `read_a` them.'
    """
    return _QUOTED.sub(lambda word: f"`{names.get(word[1], word[1])}`", text)


def search_tool(
    name: str,
    description: str,
    *,
    retrieve: Callable[[str], RetrievalResponse],
    aretrieve: Callable[[str], Awaitable[RetrievalResponse]],
) -> FunctionTool:
    """Return a search as a LlamaIndex tool for FunctionAgent, ReActAgent or any other agent.

    The model reads `passages`; `ToolOutput.raw_output` is the `RetrievalResponse`. The model also reads the message of
    an error, so that it can react.

    Args:
        name: Name of the tool; see `tool_name`.
        description: When to use the search.
        retrieve: The search.
        aretrieve: The same search, awaited.
    """

    def search(query: str) -> RetrievalResponse | ContextualError:
        try:
            return retrieve(query)
        except ContextualError as error:
            return error

    async def asearch(query: str) -> RetrievalResponse | ContextualError:
        try:
            return await aretrieve(query)
        except ContextualError as error:
            return error

    def as_text(output: Any) -> str:
        return passages(output) if isinstance(output, RetrievalResponse) else f"The search failed: {output}"

    return FunctionTool.from_defaults(
        search,
        async_fn=asearch,
        name=tool_name(name),
        description=description,
        callback=as_text,
    )
