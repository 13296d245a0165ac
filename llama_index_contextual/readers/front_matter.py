"""Reads the front matter of Markdown: the YAML block between `---` lines at its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llama_index_contextual.metadata import TITLE
from llama_index_contextual.readers.facts import is_own_key, scalar_fault
from llama_index_contextual.readers.names import one_line

MAX_CHARACTERS = 32_768
"""A longer block is no front matter."""

MAX_VALUE = 1_000
"""Characters of one value."""

Scalar = str | int | float | bool


@dataclass(frozen=True)
class FrontMatter:
    """What the block says.

    Attributes:
        end: Offset of the first character after the block.
        title: Its `title`.
        metadata: Its other top-level scalars. Lists and nested mappings stay in the text only.
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
    title = one_line(_unquoted(entries.pop(TITLE, "")))
    metadata, warnings = _accept(entries)
    return FrontMatter(end, title or None, metadata, tuple(warnings))


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


def _parse(content: str) -> dict[str, str] | None:
    """Return the scalars of the top level; quoted ones keep their quotes, so that "7" and 7 stay apart."""
    import yaml

    try:
        # Nodes are not turned into objects: no tag is resolved, no alias expanded, "1.10" and "no" stay as written.
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return _parse_lines(content)
    if not isinstance(root, yaml.MappingNode):
        return None
    scalars = [pair for pair in root.value if all(isinstance(node, yaml.ScalarNode) for node in pair)]
    return {key.value: f'"{value.value}"' if value.style in ("'", '"') else value.value for key, value in scalars}


def _parse_lines(content: str) -> dict[str, str] | None:
    """Read `key: value` lines of a block that is no valid YAML, such as `title: Rome: a history`."""
    entries: dict[str, str] = {}
    for line in content.splitlines():
        if not line.strip() or line[0] in " \t#-":
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.replace("_", "").replace("-", "").isalnum():
            return None
        entries[key] = value.strip()
    return entries or None


def _accept(entries: Mapping[str, str]) -> tuple[dict[str, Scalar], list[str]]:
    metadata: dict[str, Scalar] = {}
    warnings = []
    for key, value in entries.items():
        scalar = _scalar(value)
        if scalar is None:
            continue
        if not key or one_line(key) != key or is_own_key(key):
            warnings.append(f"front matter: {one_line(repr(key))} cannot be used as a metadata key and is left out")
        else:
            metadata[key] = scalar
    return metadata, warnings


def _scalar(written: str) -> Scalar | None:
    """Return a number or truth value only where writing it again gives the same text."""
    text = _unquoted(written)
    if text != written or not text:
        return text or None
    if text in ("null", "~"):
        return None
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if str(number) == text and scalar_fault(number) is None:
            return number
    return text


def _unquoted(written: str) -> str:
    is_quoted = len(written) > 1 and written[0] == written[-1] and written[0] in "\"'"
    return one_line(written[1:-1] if is_quoted else written, MAX_VALUE)
