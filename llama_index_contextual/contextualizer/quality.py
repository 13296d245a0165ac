"""What an LLM's answer is worth as a context: repaired where that is possible, else refused with the reason. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from llama_index_contextual.contextualizer.prompts import neutralise
from llama_index_contextual.contextualizer.structural import truncate
from llama_index_contextual.node_parser.tokenizer import count_tokens
from llama_index_contextual.storage.storable import storable_text

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
