"""Remove API keys from all text that leaves the package.

Some providers include request headers in their error messages, and some clients quote a header that they reject.
Therefore, this module collects the keys from the environment and from the model objects that are called, and `scrub`
replaces them in text, as well as parts of them and text that looks like a key of a well-known provider. Like the
environment, the collection is global to the process.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

REMOVED = "[API key removed]"
"""Replacement for a key."""

SHORTEST_KEY = 8
"""Minimum length of a key. Shorter values, such as "none" or "ollama", are placeholders and are not removed."""

_ENVIRONMENT = re.compile(r"(?:api|access|auth|secret)_?(?:key|token)$|^hf_token$", re.IGNORECASE)
_SECRET = re.compile(
    r"api[-_]?key|(?:access|auth|session|ad|bearer)[-_]?(?:key|token)$|secret|authorization|password|cookie",
    re.IGNORECASE,
)
_HOLDER = re.compile(r"client|headers|kwargs|llm|model|credentials?$", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
_DEPTH = 4

_of_models: set[str] = set()


# ---- the keys --------------------------------------------------------------------------------------------------------


def watch(model: object) -> None:
    """Collect the secrets of a model object: its API key, secret headers, and passwords in URLs.

    Args:
        model: A LlamaIndex LLM or embedding.
    """
    _of_models.update(_usable(_secrets_of(model, _DEPTH)))


def keys_in_use() -> frozenset[str]:
    """Return the API keys found in the environment and in the models called so far."""
    values = (value for name, value in os.environ.items() if _ENVIRONMENT.search(name))
    in_urls = (word for value in os.environ.values() if "://" in value for word in _PASSWORD_IN_URL.findall(value))
    return frozenset(_usable((*values, *in_urls))) | frozenset(tuple(_of_models))


def _usable(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        words = value.split()  # a value may begin with "Bearer", or end with a line break if it was read from a file
        if words and len(words[-1]) >= SHORTEST_KEY:
            yield words[-1]


def _secrets_of(holder: object, depth: int) -> Iterator[str]:
    for name, value in _named_values(holder):
        if callable(reveal := getattr(value, "get_secret_value", None)):
            value = reveal()
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        if isinstance(value, str):
            if _SECRET.search(name):
                yield value
            yield from _PASSWORD_IN_URL.findall(value)
        elif depth and (isinstance(value, Mapping) or _HOLDER.search(name)):
            yield from _secrets_of(value, depth - 1)


def _named_values(holder: object) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, Mapping):
        attributes = dict(holder)
    else:
        attributes = {**getattr(holder, "__dict__", {}), **(getattr(holder, "__pydantic_private__", None) or {})}
    return ((name, value) for name, value in attributes.items() if isinstance(name, str))


# ---- removal of the keys ---------------------------------------------------------------------------------------------


def scrub(text: str) -> str:
    """Remove API keys from a string.

    The keys in use are also recognised if they are URL-encoded, escaped for JSON, encoded in base64 as in the Basic
    scheme, or cut short. A part of a key is removed if it has eight characters that do not look like words, or three
    quarters of the key. Other keys are removed if they have the form of a well-known provider's keys. Keys that a
    provider has already masked are left unchanged.
    """
    return _without(keys_in_use(), text)


def _without(keys: frozenset[str], text: str) -> str:
    if keys and text:
        text = _without_parts(_pattern(keys).sub(REMOVED, text), _forms(keys))
    return _SHAPE.sub(lambda match: REMOVED if _is_random(match[0]) else match[0], text)


@lru_cache(maxsize=64)
def _pattern(keys: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _forms(keys))))


@lru_cache(maxsize=64)
def _forms(keys: frozenset[str]) -> tuple[str, ...]:
    """Return the keys in each of the forms in which they are sent or repeated, the longest first."""
    forms = set(keys)
    for key in keys:
        quoted = quote(key, safe="", errors="surrogatepass")
        escaped = json.dumps(key, ensure_ascii=False)[1:-1]
        forms |= {quoted, re.sub("%..", lambda code: code[0].lower(), quoted), escaped, escaped.replace("/", "\\/")}
        forms.update(_in_base64(key))
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _in_base64(key: str) -> Iterator[str]:
    """Yield the forms that a key can take within a longer base64 string, depending on its position."""
    raw = key.encode("utf-8", "surrogatepass")
    for before in range(3):
        code = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        # The first and last characters also depend on neighbouring characters.
        inner = code[(0, 2, 3)[before] : len(code) - ((before + len(raw)) % 3 != 0)]
        if len(inner) >= SHORTEST_KEY:
            yield inner


# Forms of keys: OpenAI, Anthropic, OpenRouter and DeepSeek (sk-), Google (AIza, ya29), AWS (AKIA), Groq (gsk_), Hugging
# Face (hf_), Replicate (r8_), xAI, NVIDIA, Perplexity, Voyage (pa-), Fireworks, Together, Jina, GitHub, GitLab, Slack;
# JSON Web Tokens; and the values of the Bearer and Basic schemes.
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:sk|rk|xai|nvapi|pplx|pa|glpat|xox[abprs])-[A-Za-z0-9_-]{20,}"
    r"|(?:gsk|hf|r8|fw|tgp|jina|gh[oprsu]|github_pat)_[A-Za-z0-9_-]{20,}"
    r"|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}|A(?:KI|SI)A[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|eyJ[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]{12,}(?:\.[A-Za-z0-9_-]*)?)"
    r"|(?<=Bearer )[A-Za-z0-9_.~+/=-]{20,}|(?<=Basic )[A-Za-z0-9+/=]{20,}"
)
_RUN = re.compile(r"[A-Za-z0-9]{12,}")
_MIXED = re.compile(r"[A-Za-z][0-9]|[0-9][A-Za-z]|[a-z][A-Z]")
_NO_WORD = re.compile(r"[A-Za-z][^A-Za-z0-9]*[0-9]|[0-9][^A-Za-z0-9]*[A-Za-z]|[a-z][A-Z]")
_SCHEME = re.compile(r"(?:[A-Za-z]{2,10}[0-9]{0,2}[-_]){1,3}")  # the beginning of a key that all keys of its kind have


def _is_random(text: str) -> bool:
    """Return whether a text has a long run of mixed letters and digits, unlike words joined by hyphens."""
    return any(_MIXED.search(match) for match in _RUN.findall(text))


# ---- parts of the keys -----------------------------------------------------------------------------------------------


def _without_parts(text: str, secrets: Iterable[str]) -> str:
    """Replace the parts of secrets that are long enough to be recognised, see `scrub`."""
    parts, at = [], 0
    for start, end in sorted(span for secret in secrets for span in _parts_of(secret, text)):
        if start >= at:
            parts += [text[at:start], REMOVED]
        at = max(at, end)
    return "".join([*parts, text[at:]])


def _parts_of(secret: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the parts of a secret in a text.

    Each part contains one of the pieces of eight characters, or the last eight characters, which are looked up first.
    """
    starts = {*range(0, len(secret) - SHORTEST_KEY + 1, SHORTEST_KEY), len(secret) - SHORTEST_KEY}
    for first in sorted(starts):
        at = text.find(secret[first : first + SHORTEST_KEY])
        while at >= 0:
            start, end = first, first + SHORTEST_KEY
            shift = at - first  # from offsets in the secret to offsets in the text
            while start > 0 and start + shift > 0 and secret[start - 1] == text[start + shift - 1]:
                start -= 1
            while end < len(secret) and end + shift < len(text) and secret[end] == text[end + shift]:
                end += 1
            if _is_substantial(secret, start, end):
                yield start + shift, end + shift
            at = text.find(secret[first : first + SHORTEST_KEY], end + shift)


def _is_substantial(secret: str, start: int, end: int) -> bool:
    if end - start >= max(0.75 * len(secret), 1.5 * SHORTEST_KEY):
        return True
    scheme = _SCHEME.match(secret)
    key = secret[max(start, scheme.end() if scheme else 0) : end]
    return len(key) >= SHORTEST_KEY and bool(_NO_WORD.search(key))


class KeyFilter:
    """Filter that removes keys from streamed text, even if a key is split between pieces."""

    def __init__(self) -> None:
        self._keys = keys_in_use()
        self._forms = _forms(self._keys)
        self._buffer = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the stream and return the text that can be passed on.

        An end of the text that may be a part of a key is kept in the buffer.
        """
        text = self._buffer + piece
        pending = max((self._end_in(form, text) for form in self._forms), default=0)
        head, self._buffer = text[: len(text) - pending], text[len(text) - pending :]
        return _without(self._keys, head)

    def flush(self) -> str:
        """Return the buffered text without keys."""
        rest_of_text, self._buffer = self._buffer, ""
        return _without(self._keys, rest_of_text)

    @staticmethod
    def _end_in(secret: str, text: str) -> int:
        """Return the number of characters at the end of a text that are a part of a secret."""
        length = 0
        while length < len(text) and text[-length - 1 :] in secret:
            length += 1
        return length


# ---- logs ------------------------------------------------------------------------------------------------------------


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, which removes keys from its records."""
    logger = logging.getLogger(name)
    logger.addFilter(_scrubbed)
    return logger


def _scrubbed(record: logging.LogRecord) -> bool:
    record.msg, record.args = scrub(record.getMessage()), ()
    if record.exc_info:
        record.exc_text, record.exc_info = scrub("".join(traceback.format_exception(*record.exc_info))).rstrip(), None
    return True
