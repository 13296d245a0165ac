"""Reads the front matter of Markdown: the YAML block between `---` lines at its beginning."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from llama_index_contextual.metadata import TITLE
from llama_index_contextual.readers.facts import is_own_key, scalar_fault
from llama_index_contextual.readers.names import one_line

MAX_CHARACTERS = 65_536
"""A longer block is no front matter; YAML is slow, and its nesting is bounded by this too."""

MAX_VALUE = 1_000
"""Characters of one value."""

Scalar = str | int | float | bool


@dataclass(frozen=True)
class FrontMatter:
    """What the block says.

    Attributes:
        end: Offset of the first character after the block.
        title: Its `title`.
        metadata: Its other top-level scalars; dates as ISO text. Lists and nested mappings stay in the text only.
        warnings: Keys that were left out.
    """

    end: int = 0
    title: str | None = None
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_front_matter(text: str) -> FrontMatter | None:
    """Return the front matter, or None if the text has none."""
    block = _find_block(text)
    if block is None:
        return None
    content, end = block
    entries = _parse(content)
    if entries is None:
        return None
    title = entries.pop(TITLE, None)
    metadata, warnings = _accept(entries)
    return FrontMatter(end, one_line(str(title)) or None if title is not None else None, metadata, tuple(warnings))


def _find_block(text: str) -> tuple[str, int] | None:
    head = text[:MAX_CHARACTERS]
    lines = head.splitlines(keepends=True)
    if not lines or lines[0].rstrip() != "---":
        return None
    at = len(lines[0])
    for line in lines[1:]:
        if line.rstrip() in ("---", "..."):
            return head[len(lines[0]) : at], at + len(line)
        at += len(line)
    return None


def _parse(content: str) -> dict[object, object] | None:
    import yaml

    try:
        entries = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        return _parse_lines(content)
    return entries if isinstance(entries, dict) else None


def _parse_lines(content: str) -> dict[object, object] | None:
    """Read `key: value` lines of a block that is no valid YAML, such as `title: Rome: a history`."""
    entries: dict[object, object] = {}
    for line in content.splitlines():
        if not line.strip() or line[0] in " \t#-":
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.replace("_", "").replace("-", "").isalnum():
            return None
        entries[key] = value.strip().strip("\"'")
    return entries or None


def _accept(entries: Mapping[object, object]) -> tuple[dict[str, Scalar], list[str]]:
    metadata: dict[str, Scalar] = {}
    warnings = []
    for key, value in entries.items():
        scalar = _scalar(value)
        if scalar is None or scalar == "":
            continue
        if not isinstance(key, str) or one_line(key) != key or is_own_key(key):
            warnings.append(f"front matter: {one_line(repr(key))} cannot be used as a metadata key and is left out")
        else:
            metadata[key] = scalar
    return metadata, warnings


def _scalar(value: object) -> Scalar | None:
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        return one_line(value, MAX_VALUE)
    if isinstance(value, bool | int | float):
        return value if scalar_fault(value) is None else str(value)
    return None
