"""What stands in the prompt for a context: the default wording, the header, and text that cannot break out of it.

The wording is the published one of Contextual Retrieval
(https://www.anthropic.com/news/contextual-retrieval), with a header that names the document.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.templates import ContextPrompt
from llama_index_contextual.contextualizer.base import Segment
from llama_index_contextual.contextualizer.structural import truncate
from llama_index_contextual.metadata import SECTION
from llama_index_contextual.node_parser.tokens import count_tokens
from llama_index_contextual.storage.ledger import ContentKeys
from llama_index_contextual.storage.storable import storable_text

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

GROUP_INSTRUCTION = """
Do this for each of the chunks on its own, as many as are named by their ids. Answer with JSON only: \
{"contexts": [{"id": 1, "context": "…"}, …]}"""

_OUR_TAGS = ("document", "chunk")
_TAG = re.compile(r"</?\s*([A-Za-z][\w-]*)[^<>{}]*>")
# What names a source in the prompts of answers, and what marks a chunk in ours.
_MARKS = re.compile(r"\[(\s*source\s+\d+\s*|/?#\d+)\]", re.IGNORECASE)
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s|$)|[。！？]|$)", re.DOTALL)
_LONGEST_SENTENCE = 300


def header(segment: Segment, *, opening: bool = True) -> str:
    """Return what names the document: title or file name, its opening, the segment's section path.

    Args:
        segment: The segment.
        opening: Whether the opening is part of it.
    """
    lines = [f"Title: {segment.title}" if segment.title else ""]
    if opening and segment.opening and not segment.begins_document:
        lines.append(f"The document begins: {segment.opening}")
    if segment.section:
        lines.append(f"Section: {segment.section}")
    return "\n".join(line for line in lines if line)


def prefix(prompt: ContextPrompt, segment: Segment, *, marked: bool = False) -> str:
    """Return the beginning of the prompt, the same for all calls of a segment.

    Args:
        prompt: The template.
        segment: The segment.
        marked: Mark where each chunk begins and ends, by its number in the segment from 1.
    """
    tags = _tags(prompt.text)
    text = neutralise(segment.text, tags)
    values = {"header": neutralise(header(segment), tags), "segment": mark(text, segment) if marked else text}
    return prompt.prefix(values)


def suffix(prompt: ContextPrompt, segment: Segment, chunk: BaseNode) -> str:
    """Return the end of the prompt for one chunk: its section path, its text, what to do."""
    tags = _tags(prompt.text)
    section, text = chunk.metadata.get(keys.SECTION), chunk.get_content()
    values = {
        "chunk": neutralise(f"[Section: {section}]\n{text}" if section else text, tags),
        "neighbours": neutralise(_neighbours(segment, chunk), tags),
    }
    return prompt.suffix(values)


def group_suffix(prompt: ContextPrompt, segment: Segment, ids: Sequence[int]) -> str:
    """Return the end of the prompt for several chunks, which are named by their numbers instead of repeated."""
    sections = ((number, segment.chunks[number - 1].metadata.get(keys.SECTION)) for number in ids)
    lines = []
    for section, numbered in groupby(sections, key=lambda pair: pair[1]):
        names = " ".join(f"[#{number}]" for number, _ in numbered)
        lines.append(f"{names} Section: {neutralise(section, _tags(prompt.text))}" if section else names)
    named = "\n".join(["The chunks with these ids; each stands in the document between its [#id] and [/#id]:", *lines])
    return prompt.suffix({"chunk": named, "neighbours": ""}) + GROUP_INSTRUCTION


def mark(text: str, segment: Segment) -> str:
    """Return a text of the length of the segment's, with [#1] before its first chunk, [/#1] behind it, and so on."""
    marks = []
    for number, (start, chunk) in enumerate(zip(segment.starts, segment.chunks, strict=True), start=1):
        end = min(start + len(chunk.get_content()), len(text))
        marks += [(start, 1, f"[#{number}]"), (end, 0, f"[/#{number}]")]
    pieces, at = [], 0
    for place, _, name in sorted(marks, key=lambda mark: mark[:2]):
        pieces += [text[at:place], name]
        at = place
    return "".join([*pieces, text[at:]])


def neutralise(text: str, tags: Sequence[str] = _OUR_TAGS) -> str:
    """Return the text, of the same length, without what could pass for a part of the prompt.

    Tags of the prompt are made harmless, as are the marks of chunks, "[Source 1]", and what models separate messages
    by.
    """
    return _MARKS.sub(r"(\1)", _tag_pattern(tuple(tags)).sub(r"‹\1", text))


def _tags(template: str) -> tuple[str, ...]:
    return tuple(sorted({*_OUR_TAGS, *(name.lower() for name in _TAG.findall(template))}))


@lru_cache(maxsize=64)
def _tag_pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in tags)
    # A bar behind the bracket is how many models have their messages separated.
    return re.compile(rf"<(\s*/?\s*(?:{names})\b|\|)", re.IGNORECASE)


def _neighbours(segment: Segment, chunk: BaseNode) -> str:
    at = next((n for n, other in enumerate(segment.chunks) if other.node_id == chunk.node_id), None)
    if at is None:
        return ""
    before = [f"The chunk before begins: {_first_sentence(node)}" for node in segment.chunks[max(0, at - 1) : at]]
    behind = [f"The chunk behind begins: {_first_sentence(node)}" for node in segment.chunks[at + 1 : at + 2]]
    return "\n".join(before + behind)


def _first_sentence(node: BaseNode) -> str:
    text = " ".join(node.get_content()[: 2 * _LONGEST_SENTENCE].split())
    found = _SENTENCE.match(text)
    return (found[0] if found else text)[:_LONGEST_SENTENCE]


MAX_CONTEXT_TOKENS = 200

_TAGS = re.compile(r"</?\s*(?:context|answer|output)\s*>", re.IGNORECASE)
_PREFIX = re.compile(
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
_NO_LETTERS = re.compile(r"[\W_]+")
_SHORT_REFUSAL = 80
_SHORTEST_ECHO = 60
_LEFT_OF_ECHO = 20
_LONGEST_ID = 9  # Python makes no number of thousands of digits
_MOST_CHARACTERS = 20_000  # far more than 200 tokens have; the rest need not be counted


class Verdict(NamedTuple):
    """An answer as a context, or what is wrong with it.

    Attributes:
        context: The context, or None.
        problem: What the model did, as the end of a sentence; empty where there is a context.
    """

    context: str | None
    problem: str = ""


def judge(answer: str, chunk: str, finish_reason: str | None = None) -> Verdict:
    """Return the context that an answer holds.

    Control characters, lone surrogates, tags, role prefixes and a copy of the chunk are taken off, and what is longer
    than 200 tokens, or broke off in the middle, ends with its last whole sentence.

    Args:
        answer: The model's text.
        chunk: The text of the chunk.
        finish_reason: Why the model stopped: "stop", "length", "content_filter", "refusal", or None where it is not
            known.

    Example:
        >>> judge("Context: From the report of 2023.", "Revenue grew.")
        Verdict(context='From the report of 2023.', problem='')
        >>> judge("I'm sorry, but I can't help with that.", "Revenue grew.").problem
        'refused to write a context'
    """
    if finish_reason in ("content_filter", "refusal"):
        return Verdict(None, "refused to write a context")
    text = _without_wrapping(answer)
    if not text:
        return Verdict(None, "answered with an empty context")
    if len(text.split()) <= _SHORT_REFUSAL and _REFUSAL.match(text):
        return Verdict(None, "refused to write a context")
    text = _without_echo(text, chunk)
    if not text:
        return Verdict(None, "repeated the chunk instead of writing a context")
    if finish_reason == "length":
        text = _whole_sentences(text)
        if not text:
            return Verdict(None, "broke off at its limit of tokens before the end of a sentence")
    return Verdict(shortened(neutralise(text)))


def clean(answer: str) -> str:
    """Return an LLM's answer as a context: no tags, no role prefix, one paragraph, at most 200 tokens.

    A longer answer is cut behind its last whole sentence, or at a word where it has none.
    """
    return shortened(_without_wrapping(answer))


def _without_wrapping(answer: str) -> str:
    # White space first: some control characters stand between words.
    text = storable_text(" ".join(answer.split()))
    text = " ".join(_TAGS.sub(" ", text).split())
    text = _PREFIX.sub("", text).strip()
    if len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2:
        text = text[1:-1].strip()
    return text


def shortened(text: str) -> str:
    """Return a text of at most 200 tokens: whole sentences, or whole words where the first is longer."""
    if len(text) <= _MOST_CHARACTERS and count_tokens(text) <= MAX_CONTEXT_TOKENS:
        return text
    cut = truncate(text[:_MOST_CHARACTERS], MAX_CONTEXT_TOKENS)
    return _whole_sentences(cut) or cut


def _whole_sentences(text: str) -> str:
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def _without_echo(text: str, chunk: str) -> str:
    """Return the text without a copy of the chunk; nothing where it is but a part of the chunk."""
    whole = " ".join(chunk.split())
    if len(whole) >= _SHORTEST_ECHO and whole in text:
        text = text.replace(whole, " ").strip()
        return " ".join(text.split()) if len(text) >= _LEFT_OF_ECHO else ""
    said = _letters(text)
    return "" if len(said) >= _SHORTEST_ECHO and said in _letters(chunk) else text


def _letters(text: str) -> str:
    return _NO_LETTERS.sub("", text.casefold())


def read_group(answer: str, ids: Sequence[int]) -> dict[int, str]:
    """Return the contexts by id that an answer to a call for several chunks holds.

    Ids that were not asked for, and those that come with different texts, are left out; what can be read of an answer
    that breaks off is kept.

    Example:
        >>> read_group('{"contexts": [{"id": 1, "context": "One."}, {"id": 7, "context": "?"}, {"id": 2, "con', [1, 2])
        {1: 'One.'}
    """
    found: dict[int, set[str]] = {}
    for number, text in _entries(answer):
        found.setdefault(number, set()).add(text)
    return {number: next(iter(found[number])) for number in ids if len(found.get(number, ())) == 1}


def _entries(answer: str) -> Iterator[tuple[int, str]]:
    decoder = json.JSONDecoder(strict=False)  # a line break within a string is understood all the same
    at = answer.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(answer, at)
        except (ValueError, RecursionError):
            end = at + 1  # an object that breaks off may hold others that do not
        else:
            yield from _of(value)
        at = answer.find("{", end)


def _of(value: Any) -> Iterator[tuple[int, str]]:
    if isinstance(value, list):
        for item in value:
            yield from _of(item)
    elif isinstance(value, dict):
        number, text = value.get("id"), value.get("context")
        if isinstance(number, str) and number.isdecimal() and len(number) <= _LONGEST_ID:
            number = int(number)
        if isinstance(number, int) and isinstance(text, str):
            yield number, text
        else:
            for item in value.values():
                yield from _of(item)


ChunksPerCall = int | Literal["all"]

MAX_CHUNKS_PER_CALL = 100
"""More contexts than these would not fit into the answer of most models."""

RESPONSE_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "contexts",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "contexts": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"id": {"type": "integer"}, "context": {"type": "string"}},
                        "required": ["id", "context"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["contexts"],
            "additionalProperties": False,
        },
    },
}
"""What a call for several contexts asks for, in OpenAI's words. It is part of the cached prefix, so it never varies."""


@dataclass(frozen=True)
class Usage:
    """Tokens of a call by the provider's own count; None where it gave none.

    Attributes:
        input_tokens: Tokens of the prompt, the cached ones included.
        cached_tokens: Those of them that the provider took from its cache.
        output_tokens: Tokens of the answer.
        written_tokens: Tokens of the prompt that the provider put into its cache.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    written_tokens: int | None = None

    def share(self, count: int, place: int) -> Usage:
        """Return the part of one of `count` contexts of a call; the parts of all places add up to the whole."""
        parts = (self.input_tokens, self.cached_tokens, self.output_tokens, self.written_tokens)
        return Usage(*(None if n is None else n // count + (place < n % count) for n in parts))


@dataclass(frozen=True)
class Prefix:
    """What all calls of a segment begin with; its counts are made once for all of them.

    Attributes:
        text: Header and segment.
    """

    text: str

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text (o200k_base)."""
        return count_tokens(self.text)

    @cached_property
    def cache_key(self) -> str:
        """A short hash of the text."""
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()[:32]


@dataclass(frozen=True)
class ContextRequest:
    """One call: a prefix that is the same for all calls of a segment, and what is asked.

    Attributes:
        segment: Where the chunks stand.
        chunks: The chunks whose contexts are asked for.
        shared: Header and segment.
        suffix: The chunk with its own section path, or the ids of several.
        keys: Under which the context of each chunk is kept; see `keyed`.
        ids: Numbers by which several chunks are named, one per chunk; empty where the chunk itself is in the suffix
            and the answer is its context.
    """

    segment: Segment
    chunks: tuple[BaseNode, ...]
    shared: Prefix
    suffix: str
    keys: tuple[str, ...]
    ids: tuple[int, ...] = ()

    @property
    def prefix(self) -> str:
        """Header and segment."""
        return self.shared.text

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prefix (o200k_base)."""
        return self.shared.tokens

    @property
    def prompt(self) -> str:
        """The whole prompt."""
        return self.prefix + self.suffix

    @property
    def response_format(self) -> dict[str, Any] | None:
        """The form of the answer, for providers that can be held to one."""
        return RESPONSE_FORMAT if self.ids else None

    @cached_property
    def suffix_tokens(self) -> int:
        """Tokens of the suffix (o200k_base)."""
        return count_tokens(self.suffix)

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt's text (o200k_base), without what the chat format adds."""
        return self.prefix_tokens + self.suffix_tokens

    @property
    def cache_key(self) -> str:
        """The same for all calls that share a prefix, so that a provider can bring them to the same machine."""
        return self.shared.cache_key


def keyed(
    segment: Segment, chunks: Sequence[BaseNode], *, prompt: ContextPrompt, model: str
) -> dict[str, list[BaseNode]]:
    """Return chunks of a segment by the keys of their contexts: template, model, header, segment, chunk.

    How many chunks a call asks for is not part of a key, so a change of `chunks_per_call` pays for nothing again. Nor
    is the document's opening: a few words at its head would otherwise change the keys of all its chunks. A chunk's own
    section is, where another chunk has the same text in another section.
    """
    keys = ContentKeys(prompt.identity, model, header(segment, opening=False), segment.text)
    found: dict[str, list[BaseNode]] = {}
    for chunk in chunks:
        text = chunk.get_content()
        section = [str(chunk.metadata.get(SECTION))] if text in segment.ambiguous else []
        found.setdefault(keys.key(text, *section), []).append(chunk)
    return found


def plan_requests(
    segment: Segment,
    chunks: Sequence[BaseNode],
    *,
    prompt: ContextPrompt,
    model: str,
    chunks_per_call: ChunksPerCall = 1,
) -> list[ContextRequest]:
    """Return the calls for the contexts of some chunks of a segment; chunks with the same key are asked for once.

    Args:
        segment: The segment.
        chunks: Those of its chunks that need a context.
        prompt: The template.
        model: Name of the LLM, as provider:name.
        chunks_per_call: See `plan_keyed`.
    """
    wanted = {key: same[0] for key, same in keyed(segment, chunks, prompt=prompt, model=model).items()}
    return plan_keyed(segment, wanted, prompt=prompt, chunks_per_call=chunks_per_call)


def plan_keyed(
    segment: Segment, wanted: Mapping[str, BaseNode], *, prompt: ContextPrompt, chunks_per_call: ChunksPerCall
) -> list[ContextRequest]:
    """Return the calls for the contexts of some chunks of a segment, which are given by their keys.

    Args:
        segment: The segment.
        wanted: Chunks by the keys of their contexts; see `keyed`.
        prompt: The template.
        chunks_per_call: 1 is the published method; with more, chunks are marked in the segment instead of repeated.
    """
    size = MAX_CHUNKS_PER_CALL if chunks_per_call == "all" else min(chunks_per_call, MAX_CHUNKS_PER_CALL)
    if size == 1 or len(wanted) == 1:
        return single_requests(segment, wanted, prompt=prompt)
    return group_requests(segment, wanted, prompt=prompt, size=size)


def group_requests(
    segment: Segment, wanted: Mapping[str, BaseNode], *, prompt: ContextPrompt, size: int
) -> list[ContextRequest]:
    """Return calls that ask for up to `size` chunks each by their marks.

    Args:
        segment: The segment.
        wanted: Chunks by their keys.
        prompt: The template.
        size: Chunks of a call, at most.
    """
    numbers = {chunk.node_id: number for number, chunk in enumerate(segment.chunks, start=1)}
    shared = Prefix(prefix(prompt, segment, marked=True))

    def requests() -> Iterator[ContextRequest]:
        items = list(wanted.items())
        for at in range(0, len(items), size):
            keys, group = zip(*items[at : at + size], strict=True)
            ids = tuple(numbers[chunk.node_id] for chunk in group)
            yield ContextRequest(segment, group, shared, group_suffix(prompt, segment, ids), keys, ids)

    return list(requests())


def single_requests(segment: Segment, wanted: Mapping[str, BaseNode], *, prompt: ContextPrompt) -> list[ContextRequest]:
    """Return one call for each chunk, as the published method has it."""
    shared = Prefix(prefix(prompt, segment))
    return [
        ContextRequest(segment, (chunk,), shared, suffix(prompt, segment, chunk), (key,))
        for key, chunk in wanted.items()
    ]
