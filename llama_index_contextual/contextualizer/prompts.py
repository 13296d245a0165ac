"""What stands in the prompt for a context: the default wording, the header, and text that cannot break out of it.

The wording is the published one of Contextual Retrieval
(https://www.anthropic.com/news/contextual-retrieval), with a header that names the document.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from llama_index.core.schema import BaseNode

from llama_index_contextual import metadata as keys
from llama_index_contextual.contextualizer.segments import Segment
from llama_index_contextual.templates import ContextPrompt

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
