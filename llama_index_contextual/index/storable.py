"""Checks that text and metadata can be stored in SQLite and read back unchanged."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING

from llama_index_contextual.errors import InputError
from llama_index_contextual.metadata import shape_fault

if TYPE_CHECKING:
    from llama_index.core.schema import BaseNode

INTEGERS = range(-(2**63), 2**63)
"""The integers that SQLite can store."""

_NOT_STORABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def storable_text(text: str) -> str:
    """Remove NUL, lone surrogates and control characters other than line breaks and tabs from a string.

    Example:
        >>> storable_text("Revenue\\x00 grew.\\n")
        'Revenue grew.\\n'
    """
    return _NOT_STORABLE.sub("", text)


def require_storable(nodes: Sequence[BaseNode]) -> None:
    """Check nodes before they are stored.

    Raises:
        InputError: A node cannot be stored.
    """
    for node in nodes:
        if fault := storable_fault(node):
            raise InputError(f"Node {node.node_id!r} cannot be stored: {fault}.", value=node)


def storable_fault(node: BaseNode) -> str | None:
    """Return why a node cannot be stored and what to do about it, or None if it can be stored."""
    if fault := shape_fault(node.metadata):
        return fault
    for name, text in _texts(node):
        if has_surrogate(text):
            return f"{name} contains lone surrogates: clean it with text.encode('utf-8', 'replace').decode()"
    for key, value in node.metadata.items():
        if fault := (_text_fault(key) or value_fault(value)):
            return f"the value of {key!r} in its metadata {fault}"
    return None


def _texts(node: BaseNode) -> Iterator[tuple[str, str]]:
    yield "its id", node.node_id
    yield "its text", node.get_content()
    for relation in node.relationships.values():
        for info in relation if isinstance(relation, list) else [relation]:
            yield "the id of a related node", info.node_id


def value_fault(value: object) -> str | None:
    """Return why a metadata value cannot be stored and what to do about it, or None if it can be stored."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _text_fault(value)
    if isinstance(value, int):
        return None if value in INTEGERS else "does not fit into 64 bits: pass it as text"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a finite number: leave it out"
    if isinstance(value, (list, tuple)):
        return next((fault for item in value if (fault := value_fault(item))), None)
    if isinstance(value, dict):
        return next((fault for item in (*value, *value.values()) if (fault := value_fault(item))), None)
    if isinstance(value, date):
        return "is a date, which JSON lacks: pass its isoformat()"
    return f"is of type {type(value).__name__}: pass text, numbers, True, False, None, or a list or dict of them"


def _text_fault(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character: remove it"
    return "contains lone surrogates: remove them" if has_surrogate(text) else None


def has_surrogate(text: str) -> bool:
    """Return whether a string contains a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
