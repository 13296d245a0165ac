"""Metadata keys of this package, and their visibility to embedding models and LLMs.

A reader puts `FILE_KEYS` on a Document, and page starts and headings as JSON strings under the two reserved keys.
The node parsers turn those into the keys of a chunk and remove them. Keys of the user's own Documents are
kept, with the user's exclusions.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the process that parses PDFs does without LlamaIndex
    from llama_index.core.schema import BaseNode

CONTEXT = "context"
SOURCE_LINE = "source"
CONTEXT_SOURCE = "context_source"
CONTEXT_GIVEN = "context_given"
TITLE = "title"
FILE_NAME = "file_name"
FILE_PATH = "file_path"
PAGE_START = "page_start"
PAGE_END = "page_end"
PAGE_LABEL = "page_label"
SECTION = "section"
SEGMENT_INDEX = "segment_index"
SEGMENT_START = "segment_start"
SEGMENT_END = "segment_end"
CHUNK_INDEX = "chunk_index"
TOKEN_COUNT = "token_count"

PAGES = "_contextual_pages"
HEADINGS = "_contextual_headings"

RESERVED_KEYS = (PAGES, HEADINGS)
FILE_KEYS = (TITLE, FILE_NAME, FILE_PATH)
OWN_KEYS = (
    SOURCE_LINE,
    CONTEXT,
    CONTEXT_SOURCE,
    CONTEXT_GIVEN,
    *FILE_KEYS,
    PAGE_START,
    PAGE_END,
    PAGE_LABEL,
    SECTION,
    SEGMENT_INDEX,
    SEGMENT_START,
    SEGMENT_END,
    CHUNK_INDEX,
    TOKEN_COUNT,
)

METADATA_TEMPLATE = "{value}"
TEXT_TEMPLATE = "{metadata_str}\n\n{content}"

SECTION_SEPARATOR = " > "

MAX_NESTING = 100
"""Maximum nesting of lists and dicts in a value; Python's own tools fail at about a thousand."""


@dataclass(frozen=True)
class Heading:
    """A heading of a document.

    Attributes:
        start: Character offset at which the heading's line begins.
        level: Level of the heading; 1 is the highest.
        title: The heading's text, without marks.
        is_marked: Whether the file marks it as a heading; if not, it was recognised by its appearance.
    """

    start: int
    level: int
    title: str
    is_marked: bool = True


@dataclass(frozen=True)
class DocumentMap:
    """Positions of the pages and headings of a document.

    Attributes:
        page_starts: Character offset of each physical page's first character; empty if the format has no pages.
        page_labels: The printed page numbers, one per page; empty if the document has none.
        headings: The headings, in the order of the text.
    """

    page_starts: Sequence[int] = ()
    page_labels: Sequence[str] = ()
    headings: Sequence[Heading] = ()
    _heading_starts: list[int] = field(init=False, repr=False, compare=False)
    _paths: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_heading_starts", [h.start for h in self.headings])
        object.__setattr__(self, "_paths", list(_section_paths(self.headings)))

    def page(self, offset: int) -> int | None:
        """Return the number of the physical page (from 1) of the character at `offset`."""
        return max(1, bisect_right(self.page_starts, offset)) if self.page_starts else None

    def page_label(self, offset: int) -> str | None:
        """Return the printed number of the page of the character at `offset`."""
        page = self.page(offset)
        return self.page_labels[page - 1] if page and page <= len(self.page_labels) else None

    def section(self, offset: int) -> str | None:
        """Return the path of headings above the character at `offset`, such as "2 Results > Revenue"."""
        at = bisect_right(self._heading_starts, offset)
        return self._paths[at - 1] if at else None

    def to_metadata(self) -> dict[str, str]:
        """Return the two reserved Document keys."""
        out: dict[str, str] = {}
        if self.page_starts:
            out[PAGES] = json.dumps({"starts": list(self.page_starts), "labels": list(self.page_labels)})
        if self.headings:
            rows = [[h.start, h.level, h.title, *([] if h.is_marked else [False])] for h in self.headings]
            out[HEADINGS] = json.dumps(rows, ensure_ascii=False)
        return out

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> DocumentMap:
        """Read the two reserved keys of a Document; missing keys count as empty."""
        pages = json.loads(metadata.get(PAGES, "{}"))
        headings = json.loads(metadata.get(HEADINGS, "[]"))
        return cls(
            page_starts=tuple(pages.get("starts", ())),
            page_labels=tuple(pages.get("labels", ())),
            headings=tuple(Heading(*row) for row in headings),
        )


def _section_paths(headings: Sequence[Heading]) -> Iterable[str]:
    path: list[Heading] = []
    for heading in headings:
        while path and path[-1].level >= heading.level:
            path.pop()
        path.append(heading)
        yield SECTION_SEPARATOR.join(h.title for h in path)


def excluded_embed_keys(user_excluded: Iterable[str] = ()) -> list[str]:
    """Return the keys excluded from the embedded and indexed text: all of ours except the context."""
    return _merge((key for key in (*OWN_KEYS, *RESERVED_KEYS) if key != CONTEXT), user_excluded)


def excluded_llm_keys(user_excluded: Iterable[str] = ()) -> list[str]:
    """Return the keys hidden from the answering LLM: all of ours except the source line and the context."""
    return _merge(
        (key for key in (*OWN_KEYS, *RESERVED_KEYS) if key not in (SOURCE_LINE, CONTEXT)),
        user_excluded,
    )


def _merge(own: Iterable[str], user: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*own, *user]))


def source_line(metadata: dict[str, Any]) -> str:
    """Return one line for the answering LLM, such as "Source: acme.pdf, pages 3-4, section 2 Results".

    The line is empty if the metadata has neither a file name nor a title.
    """
    name = metadata.get(FILE_NAME) or metadata.get(TITLE)
    if not name:
        return ""
    parts = [f"Source: {name}"]
    first, last = metadata.get(PAGE_START), metadata.get(PAGE_END)
    if first is not None:
        parts.append(f"page {first}" if last in (None, first) else f"pages {first}–{last}")
    if metadata.get(SECTION):
        parts.append(f"section {metadata[SECTION]}")
    return ", ".join(parts)


def shape_fault(metadata: object) -> str | None:
    """Return why the structure of metadata cannot be written as JSON, and what to do, or None.

    All keys must be strings, and values must not be nested too deeply.
    """
    if not isinstance(metadata, dict):
        return f"its metadata is of type {type(metadata).__name__}: pass a dict"
    for key, value in metadata.items():
        if not isinstance(key, str):
            return f"its metadata has a key of type {type(key).__name__}: use text"
        nested = [(value, 0)]
        while nested:
            item, depth = nested.pop()
            if depth > MAX_NESTING:
                return f"the value of {key!r} in its metadata contains itself or is nested too deep: flatten it"
            if isinstance(item, dict):
                for name in item:
                    if not isinstance(name, str):
                        kind = type(name).__name__
                        return f"the value of {key!r} in its metadata has a key of type {kind}: use text"
                nested += [(below, depth + 1) for below in item.values()]
            elif isinstance(item, (list, tuple)):
                nested += [(below, depth + 1) for below in item]
    return None


def user_metadata(node: BaseNode) -> dict[str, Any]:
    """Return the metadata of a node without the keys that this package owns."""
    return {k: v for k, v in node.metadata.items() if k not in OWN_KEYS and k not in RESERVED_KEYS}
