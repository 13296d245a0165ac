"""Remove API keys from all text that leaves the package.

Some providers include request headers in their error messages, and some clients quote a header that they reject.
Therefore, this module collects the keys from the environment and from the model objects that are called, and `scrub`
replaces them in text. Like the environment, the collection is global to the process.
"""

from __future__ import annotations

import base64
import html
import logging
import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

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
_BETWEEN = r"(?:\s|\\+[nrt])*"  # a message may be wrapped

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
    named = (value for name, value in os.environ.items() if _ENVIRONMENT.search(name))
    in_urls = (word for value in os.environ.values() if "://" in value for word in _PASSWORD_IN_URL.findall(value))
    return frozenset(_usable((*named, *in_urls))) | frozenset(tuple(_of_models))


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
    """Remove the keys in use from a string, however they are encoded.

    Keys are also recognised if they are URL-encoded, encoded in base64 (alone or within a longer text), escaped for
    JSON, Python or HTML, or split by white space. Keys that a provider has already masked are left unchanged.
    """
    return _without(keys_in_use(), text)


def _without(keys: frozenset[str], text: str) -> str:
    return _pattern(keys).sub(REMOVED, text) if keys and text else text


@lru_cache(maxsize=64)
def _pattern(keys: frozenset[str]) -> re.Pattern[str]:
    longest_first = sorted(keys, key=lambda key: (-len(key), key))
    forms = [_BETWEEN.join(map(_character, key)) for key in longest_first]
    forms += [re.escape(code) for key in longest_first for code in _in_base64(key)]
    return re.compile("|".join(forms))


def _character(char: str) -> str:
    """Return a regular expression that matches a character in plain, URL-encoded or escaped form."""
    code = ord(char)
    percent = "".join(f"%(?:25)*{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
    escaped = rf"{percent}|\\+u{code:04x}|\\+x{code:02x}|&#0*{code};|&#x0*{code:x};"
    plain = re.escape(char) if char.isalnum() else rf"\\*{re.escape(char)}|{re.escape(html.escape(char))}"
    return f"(?:{plain}|(?i:{escaped}))"


def _in_base64(key: str) -> Iterator[str]:
    """Yield the forms that a key can take within a longer base64 string, depending on its position."""
    raw = key.encode("utf-8", "surrogatepass")
    for before in range(3):
        code = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        # The first and last characters also depend on neighbouring characters.
        inner = code[(0, 2, 3)[before] : len(code) - ((before + len(raw)) % 3 != 0)]
        if len(inner) >= SHORTEST_KEY:
            yield from {inner, inner.replace("+", "-").replace("/", "_")}


class KeyFilter:
    """Filter that removes keys from streamed text, even if a key is split between pieces."""

    def __init__(self) -> None:
        self._keys = keys_in_use()
        self._buffer = ""

    def feed(self, piece: str) -> str:
        """Add a piece of the stream and return the text that can be passed on.

        If the text ends with what may be the beginning of a key, that part is kept in the buffer.
        """
        self._buffer = _without(self._keys, self._buffer + piece)
        longest = min(len(self._buffer), max(map(len, self._keys), default=0))
        pending = next((n for n in range(longest, 0, -1) if self._begins_key(self._buffer[-n:])), 0)
        passed, self._buffer = self._buffer[: len(self._buffer) - pending], self._buffer[len(self._buffer) - pending :]
        return passed

    def flush(self) -> str:
        """Return the buffered text, or `REMOVED` if it is long enough to be part of a key."""
        rest_of_text, self._buffer = self._buffer, ""
        return rest_of_text if len(rest_of_text) < SHORTEST_KEY else REMOVED

    def _begins_key(self, text: str) -> bool:
        return any(key.startswith(text) for key in self._keys)


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
