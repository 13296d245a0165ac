"""Context prompts, the requests that contain them, and the replies.

The default prompt is the one published for Contextual Retrieval
(https://www.anthropic.com/news/contextual-retrieval), plus a header that identifies the document. Text from documents
is neutralised so that it cannot imitate parts of the prompt. All requests for a segment share a prefix, which providers
cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.calls import ReplyError
from llama_index_contextual._utils.reasoning import looks_like_reasoning, without_reasoning
from llama_index_contextual._utils.redaction import scrub
from llama_index_contextual._utils.replies import text_of
from llama_index_contextual._utils.templates import ContextPrompt, enclosed
from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import LANGUAGES
from llama_index_contextual.contextualizer.base import (
    MAX_CONTEXT_TOKENS,
    MAX_LINE_TOKENS,
    Segment,
    chunk_places,
    truncate,
)
from llama_index_contextual.index.ledger import ContentKeys
from llama_index_contextual.metadata import storable_text
from llama_index_contextual.money.tokens import Usage, field_of, reported_tokens, usage_of

DEFAULT_PROMPT = """\
<document>
{header}

{segment}
</document>
Here is the chunk we want to situate within the whole document
<chunk>
{chunk}
</chunk>
Please give a short succinct context to situate this chunk within the overall document for the purposes of improving \
search retrieval of the chunk. Answer only with the succinct context and nothing else."""

_LINES = """

Below the context, write one more line for each of these languages: {line_languages}. Each line begins with the code \
of its language and a colon, and contains, separated by commas, the names, the subject and the most important terms of \
the chunk in this language."""

# ---- Prompt text -----------------------------------------------------------------------------------------------------

# Source names in answer prompts, and chunk marks such as [#1].
_MARKS = re.compile(r"\[(\s*source\s+\d+\s*|/?#\d+)\]", re.IGNORECASE)
_LONGEST_SENTENCE = 300
_LONGEST_FACTS = 1000


def header(segment: Segment, *, opening: bool = True) -> str:
    """Return the header of a prompt.

    It contains the document's title or file name, facts about the document, its opening, and the segment's section.

    Args:
        segment: The segment.
        opening: Whether to include the opening.
    """
    lines = [f"Title: {segment.title}" if segment.title else ""]
    if segment.facts:  # otherwise the header, and thus the ledger key, must be the same as in earlier releases
        lines.append(f"Facts: {segment.facts[:_LONGEST_FACTS]}")
    if opening and segment.opening and not segment.begins_document:
        lines.append(f"The document begins: {segment.opening}")
    if segment.section:
        lines.append(f"Section: {segment.section}")
    return "\n".join(line for line in lines if line)


def with_lines(prompt: ContextPrompt, line_languages: Sequence[str]) -> ContextPrompt:
    """Return a prompt that also asks for a line in each of the given languages, by code; without any, the same one."""
    if not line_languages:
        return prompt
    names = ", ".join(f"{code} ({LANGUAGES[code].capitalize()})" for code in line_languages)
    return replace(prompt, text=prompt.text + _LINES.format(line_languages=names))


def prefix(prompt: ContextPrompt, segment: Segment) -> str:
    """Return the beginning of the prompt, which is the same in all calls for a segment.

    Args:
        prompt: The template.
        segment: The segment.
    """
    values = {"header": neutralise(header(segment), prompt.text), "segment": neutralise(segment.text, prompt.text)}
    return prompt.prefix(values)


def suffix(prompt: ContextPrompt, segment: Segment, chunk: BaseNode) -> str:
    """Return the end of the prompt for one chunk: its section path, its text and the instruction."""
    section, text = keys.label_of(chunk.metadata, keys.SECTION), chunk.get_content()
    values = {
        "chunk": neutralise(f"[Section: {section}]\n{text}" if section else text, prompt.text),
        "neighbours": neutralise(_neighbours(segment, chunk), prompt.text),
    }
    return prompt.suffix(values)


def texts_of(segment: Segment) -> Iterator[str]:
    """Yield everything that the prompts for a segment say about the document."""
    yield header(segment)
    yield segment.file_name or ""
    yield segment.text
    for chunk in segment.chunks:
        yield keys.label_of(chunk.metadata, keys.SECTION) or ""


def neutralise(text: str, template: str = DEFAULT_PROMPT) -> str:
    """Replace characters so that nothing in a text can be mistaken for a part of the prompt.

    See `enclosed`; the brackets around chunk marks and source names such as "[Source 1]" are also replaced. The length
    of the text does not change.
    """
    return _MARKS.sub(r"(\1)", enclosed(text, template))


def _neighbours(segment: Segment, chunk: BaseNode) -> str:
    at = next((n for n, candidate in enumerate(segment.chunks) if candidate.node_id == chunk.node_id), None)
    if at is None:
        return ""
    before = [f"The chunk before begins: {_first_sentence(node)}" for node in segment.chunks[max(0, at - 1) : at]]
    behind = [f"The chunk behind begins: {_first_sentence(node)}" for node in segment.chunks[at + 1 : at + 2]]
    return "\n".join(before + behind)


def _first_sentence(node: BaseNode) -> str:
    text = " ".join(node.get_content()[: 2 * _LONGEST_SENTENCE].split())
    end = _SENTENCE_END.search(text)
    return (text[: end.end()] if end else text)[:_LONGEST_SENTENCE]


# ---- Reading an answer -----------------------------------------------------------------------------------------------

_COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}m")  # of a terminal
_ANSWER_TAGS = re.compile(r"</?\s*(?:context|answer|output)\s*>", re.IGNORECASE)
_MARKUP = re.compile(
    r"</?\s*(?:context|answer|output|chunk|section|segment|document|h[1-6]|p|div|[uo]l|li)\s*>",
    re.IGNORECASE,
)
_ROLE_PREFIX = re.compile(
    r"^(?:(?:assistant|(?:short |succinct )*context|answer|here(?:['’]s| is)\b[^:.!?]{0,160})\s*:\s*)+", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[。！？]")
_REFUSAL = re.compile(
    r"^(?:(?:i['’]?m|i am)?\s*(?:very )?sorry\b[,.]?|i apologi[sz]e[,.]?|unfortunately,?)\s+(?:but\s+)?(?:i|we)\s+"
    r"(?:can(?:no|['’])t|cannot|am (?:not able|unable)|won['’]t|do not|don['’]t)\b"
    r"|^i\s+(?:can(?:no|['’])t|cannot|am (?:not able|unable) to|won['’]t)\s+"
    r"(?:assist|help|provide|comply|situate|create|write|answer|fulfil)"
    r"|^as an? (?:ai|large) (?:language )?(?:model|assistant)\b",
    re.IGNORECASE,
)
_NOTHING = frozenset({"", "none", "none.", "null", "n/a", "n/a.", "undefined"})
_NO_LETTERS = re.compile(r"[\W_]+")
_SHORT_REFUSAL = 80
_SHORTEST_ECHO = 60
_LEFT_OF_ECHO = 20
_MOST_CHARACTERS = 20_000  # far more than 200 tokens, so the text after it need not be tokenised


_CUT = "reached its token limit before the end of a sentence"
_CUT_REASONING = "reached its token limit while it reasoned"
_CUT_EMPTY = "reached its token limit before it wrote anything"
_ONLY_REASONING = "wrote its reasoning, but no context"
_TOO_SHORT = frozenset({_CUT, _CUT_REASONING, _CUT_EMPTY, _ONLY_REASONING})

REFUSED = "refused to write a context"
"""Value of `problem` if the model declined to write a context, or if the provider's filter removed the answer."""


class Extraction(NamedTuple):
    """Context extracted from an answer, or the reason why there is none.

    Attributes:
        context: The context, or None.
        problem: Reason why there is no context, phrased as the end of a sentence about the model, such as "refused to
            write a context"; empty if there is a context.
        tokens: Number of tokens in the answer, before it was shortened; 0 if there is no context.
    """

    context: str | None
    problem: str = ""
    tokens: int = 0

    @property
    def needs_room(self) -> bool:
        """Whether a longer answer might contain a context."""
        return self.problem in _TOO_SHORT

    @property
    def has_reasoning(self) -> bool:
        """Whether the answer consisted of reasoning."""
        return self.problem in (_CUT_REASONING, _ONLY_REASONING)


def extract_context(
    answer: str,
    chunk: str,
    finish_reason: str | None = None,
    *,
    has_reasoning: bool = False,
    line_languages: Sequence[str] = (),
) -> Extraction:
    """Extract the context from an answer.

    Reasoning, control characters, lone surrogates, tags, role prefixes and a copy of the chunk are removed. A context
    that is longer than 200 tokens or was cut off is shortened to its last complete sentence.

    Args:
        answer: Text of the answer.
        chunk: Text of the chunk.
        finish_reason: Reason why the model stopped: "stop", "length", "tool_calls", "content_filter", "refusal", or
            None if unknown.
        has_reasoning: Whether the provider reports reasoning apart from the answer.
        line_languages: Codes of the languages in which the answer should contain a line, below the context.

    Example:
        >>> extract_context("Context: From the report of 2023.", "Revenue grew.")
        Extraction(context='From the report of 2023.', problem='', tokens=8)
        >>> extract_context("I'm sorry, but I can't help with that.", "Revenue grew.").problem
        'refused to write a context'
    """
    if finish_reason in ("content_filter", "refusal"):
        return Extraction(None, REFUSED)
    is_cut = finish_reason == "length"
    visible, lines = _split_lines(without_reasoning(answer, is_cut=is_cut), line_languages)
    text = _without_wrapping(visible)
    if is_cut and looks_like_reasoning(text):
        return Extraction(None, _CUT_REASONING)
    if text.casefold() in _NOTHING:
        whole, _ = _split_lines(answer, line_languages)
        has_reasoning = has_reasoning or _without_wrapping(whole).casefold() not in _NOTHING
        return _empty(finish_reason, has_reasoning=has_reasoning)
    if len(text.split()) <= _SHORT_REFUSAL and _REFUSAL.match(text):
        return Extraction(None, REFUSED)
    text = _without_echo(text, chunk)
    if not text:
        return Extraction(None, "repeated the chunk instead of writing a context")
    tokens = count_tokens(text[:_MOST_CHARACTERS])
    if is_cut and not lines:
        text = _whole_sentences(text)
        if not text:
            return Extraction(None, _CUT)
    return Extraction("\n".join((shorten(neutralise(text)), *lines)), tokens=tokens)


def _split_lines(answer: str, line_languages: Sequence[str]) -> tuple[str, list[str]]:
    """Return an answer without the lines in other languages, and these lines, each with the code of its language."""
    if not line_languages:
        return answer, []
    codes = {spelling: code for code in line_languages for spelling in (code, LANGUAGES[code])}
    pattern = re.compile(
        rf"^[\s\[(*_-]{{0,6}}({'|'.join(codes)})(?: ?\([^()\n]{{0,40}}\))?[\])*_]{{0,4}} ?[:：](.*)$",
        re.IGNORECASE | re.MULTILINE,
    )
    lines: dict[str, str] = {}
    for match in pattern.finditer(answer):
        terms = truncate(neutralise(_without_wrapping(match[2].strip("*_ "))), MAX_LINE_TOKENS)
        if terms:
            lines.setdefault(codes[match[1].lower()], terms)
    return pattern.sub("", answer), [f"{code}: {lines[code]}" for code in line_languages if code in lines]


def _empty(finish_reason: str | None, *, has_reasoning: bool) -> Extraction:
    """Return the reason why an answer has no text apart from reasoning."""
    if finish_reason == "length":
        return Extraction(None, _CUT_REASONING if has_reasoning else _CUT_EMPTY)
    if finish_reason in ("tool_calls", "function_call"):
        return Extraction(None, "called a tool instead of writing a context")
    return Extraction(None, _ONLY_REASONING if has_reasoning else "answered with an empty context")


def _without_wrapping(answer: str) -> str:
    # White space is normalised first, because some control characters separate words.
    text = storable_text(_COLOURS.sub("", " ".join(answer.split())))
    tags = _MARKUP if _MARKUP.match(text) else _ANSWER_TAGS  # small models write HTML
    text = " ".join(tags.sub(" ", text).split())
    text = _ROLE_PREFIX.sub("", text).strip()
    if len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2:
        text = text[1:-1].strip()
    return text


def shorten(text: str) -> str:
    """Cut a text to at most 200 tokens at the end of a sentence, or between words if the first sentence is longer."""
    if len(text) <= _MOST_CHARACTERS and count_tokens(text) <= MAX_CONTEXT_TOKENS:
        return text
    text_start = truncate(text[:_MOST_CHARACTERS], MAX_CONTEXT_TOKENS)
    return _whole_sentences(text_start) or text_start


def _whole_sentences(text: str) -> str:
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def _without_echo(text: str, chunk: str) -> str:
    """Remove a copy of the chunk from a text.

    Return an empty string if little text remains, or if the text is only a part of the chunk.
    """
    whole = " ".join(chunk.split())
    if len(whole) >= _SHORTEST_ECHO and whole in text:
        text = text.replace(whole, " ").strip()
        return " ".join(text.split()) if len(text) >= _LEFT_OF_ECHO else ""
    letters = _letters(text)
    return "" if len(letters) >= _SHORTEST_ECHO and letters in _letters(chunk) else text


def _letters(text: str) -> str:
    return _NO_LETTERS.sub("", text.casefold())


# ---- Requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prefix:
    """Common prefix of all calls for a segment, with a cached token count and hash.

    Attributes:
        text: Beginning of the prompt, with the header and the segment.
    """

    text: str

    @cached_property
    def tokens(self) -> int:
        """Number of tokens in the text (o200k_base)."""
        return count_tokens(self.text)

    @cached_property
    def cache_key(self) -> str:
        """Short hash of the text, by which providers route calls with the same prefix to the same machine."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:32]


@dataclass(frozen=True)
class ContextRequest:
    """Request for the context of one chunk: a prefix shared by all requests for the segment, and a suffix.

    Attributes:
        chunk: The chunk.
        prefix: Prefix with the header and the segment.
        suffix: Section path and text of the chunk, and the instruction.
        key: Key of the context; see `chunks_by_key`.
        answer_tokens: Maximum number of tokens in the answer, or None for the usual limit.
        line_languages: Codes of the languages in which the answer should contain a line.
    """

    chunk: BaseNode
    prefix: Prefix
    suffix: str
    key: str
    answer_tokens: int | None = None
    line_languages: Sequence[str] = ()

    @property
    def prompt(self) -> str:
        """The whole prompt."""
        return self.prefix.text + self.suffix

    @cached_property
    def input_tokens(self) -> int:
        """Number of tokens in the prompt's text (o200k_base), without tokens added by the chat format."""
        return self.prefix.tokens + count_tokens(self.suffix)


def chunks_by_key(
    segment: Segment, chunks: Sequence[BaseNode], *, prompt: ContextPrompt, model: str
) -> dict[str, list[BaseNode]]:
    """Group chunks of a segment by the keys under which the ledger stores their contexts.

    A key depends on the template, the model, the header, the segment and the chunk, and on the section of the chunk if
    the same text also occurs in another section. It does not depend on the opening, because otherwise any edit to the
    beginning of a document would change the keys of all its chunks.
    """
    content_keys = ContentKeys(prompt.identity, model, header(segment, opening=False), segment.text)
    by_key: dict[str, list[BaseNode]] = {}
    for chunk in chunks:
        text = chunk.get_content()
        section = [str(chunk.metadata.get(keys.SECTION))] if text in segment.ambiguous else []
        by_key.setdefault(content_keys.key(text, *section), []).append(chunk)
    return by_key


def former_keys(
    segment: Segment, chunks: Sequence[BaseNode], *, prompt: ContextPrompt, model: str
) -> dict[str, list[BaseNode]]:
    """Group chunks of a segment by keys that earlier releases used, which read titles and running lines differently.

    Their title of a Markdown file was its first heading, and they left all running lines of PDFs out of the text.
    """
    running = {
        line for name in keys.RUNNING_LINES for line in keys.label_of(segment.chunks[0].metadata, name).split("\n")
    }
    texts = {chunk.node_id: _without_lines(chunk.get_content(), running) for chunk in chunks}
    by_key: dict[str, list[BaseNode]] = {}
    for title in dict.fromkeys((segment.title, segment.file_name, segment.first_heading)):
        head = header(replace(segment, title=title), opening=False)
        content_keys = ContentKeys(prompt.identity, model, head, _without_lines(segment.text, running))
        for chunk in chunks:
            by_key.setdefault(content_keys.key(texts[chunk.node_id]), []).append(chunk)
    return by_key


def _without_lines(text: str, lines: Collection[str]) -> str:
    return "\n".join(line for line in text.split("\n") if not line or line not in lines)


def chunk_keys(
    nodes: Sequence[BaseNode], *, prompt: ContextPrompt, model: str, segment_size: int, source: str
) -> list[str]:
    """Return the keys under which the ledger stores the contexts of a document's chunks for other readings of its file.

    Unlike the keys of `chunks_by_key`, they do not depend on the rest of the segment. The content of the file is part
    of the key instead, so that a context is only found for a file that was not edited.

    Args:
        nodes: All chunks of the document, in order.
        prompt: The template.
        model: Name of the LLM.
        segment_size: Size of segments in tokens.
        source: Hash of the file's content, and the user's metadata for the file.
    """
    content_keys = ContentKeys("chunk", prompt.identity, model, str(segment_size), source)
    return [content_keys.key(text, str(at), str(of)) for text, at, of in chunk_places(nodes)]


def context_requests(
    segment: Segment, chunks: Mapping[str, BaseNode], *, prompt: ContextPrompt, line_languages: Sequence[str] = ()
) -> list[ContextRequest]:
    """Return a request for the context of each chunk of a segment.

    Args:
        segment: The segment.
        chunks: The chunks, by the keys of their contexts; see `chunks_by_key`.
        prompt: The template.
        line_languages: Codes of the languages in which it asks for a line.
    """
    shared = Prefix(prefix(prompt, segment))
    return [
        ContextRequest(chunk, shared, suffix(prompt, segment, chunk), key, line_languages=line_languages)
        for key, chunk in chunks.items()
    ]


# ---- Replies ---------------------------------------------------------------------------------------------------------

_FINISHED = {"max_tokens": "length", "end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}


@dataclass(frozen=True)
class Reply:
    """Answer from a model.

    Attributes:
        text: Text of the answer.
        usage: Tokens as counted by the provider.
        finish_reason: Reason why the model stopped: "stop", "length", "tool_calls", "content_filter", "refusal",
            another value from the provider, or None if unknown.
        has_reasoning: Whether the provider reports reasoning apart from the text.
    """

    text: str
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    has_reasoning: bool = False

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the answer as counted by the provider, or None; a text without tokens is implausible."""
        return self.usage.output_tokens if self.usage.output_tokens or not self.text else None

    @property
    def is_counted(self) -> bool:
        """Whether the provider reported the tokens of both the prompt and the answer."""
        return self.usage.input_tokens is not None and self.output_tokens is not None


def reply_of(raw: Any) -> Reply:
    """Convert a provider's raw answer, which is an object from its client or parsed JSON, to a `Reply`.

    The formats of OpenAI, Anthropic and Ollama are supported. In other formats, only fields with the same names are
    read.
    """
    choices = field_of(raw, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message, text = field_of(choice, "message") or field_of(raw, "message"), None
    with contextlib.suppress(ReplyError):
        text = text_of(field_of(message, "content"))
    reason = field_of(choice, "finish_reason") or field_of(raw, "stop_reason") or field_of(raw, "done_reason")
    if field_of(message, "refusal"):
        reason = "refusal"
    elif field_of(message, "tool_calls") and not (text or "").strip():
        reason = "tool_calls"
    return Reply(
        scrub(text or ""),
        usage_of(usage := field_of(raw, "usage")),
        storable_text(_FINISHED.get(reason, reason)) if isinstance(reason, str) else None,
        has_reasoning=bool(
            any(field_of(message, name) for name in ("reasoning_content", "reasoning", "thinking"))
            or reported_tokens(field_of(usage, "completion_tokens_details", "reasoning_tokens"))
        ),
    )
