"""Metadata keys of this package, and their visibility to embedding models and LLMs.

A reader stores the `FILE_KEYS` in a Document, and page starts, headings and tables as JSON strings under the three
reserved keys. The node parsers replace the reserved keys with the keys of each chunk. Metadata of the user's own
Documents is kept, and so are the user's lists of excluded keys.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from llama_index_contextual._utils.text import parse_json
from llama_index_contextual.errors import InputError
from llama_index_contextual.figures import Figure, FigureIndex

if TYPE_CHECKING:  # the process that parses PDFs does not import LlamaIndex
    from llama_index.core.schema import BaseNode

CONTEXT = "context"
SOURCE_LINE = "source"
CONTEXT_SOURCE = "context_source"
CONTEXT_GIVEN = "context_given"
CONTEXT_WRITTEN_AT = "context_written_at"
TITLE = "title"
FILE_NAME = "file_name"
FILE_PATH = "file_path"
PAGE_START = "page_start"
PAGE_END = "page_end"
PAGE_LABEL = "page_label"
OCR_CONFIDENCE = "ocr_confidence"
SECTION = "section"
PLACES = "places"
SEGMENT_INDEX = "segment_index"
SEGMENT_START = "segment_start"
SEGMENT_END = "segment_end"
CHUNK_INDEX = "chunk_index"
TOKEN_COUNT = "token_count"
TABLE_HEAD = "table_head"
TABLE_COLUMNS = "table_columns"
FACTS = "document_facts"
FIGURES = "figure_records"

PAGES = "_contextual_pages"
HEADINGS = "_contextual_headings"
TABLES = "_contextual_tables"
FIGURES_OF_DOCUMENT = "_contextual_figures"

RUNNING_LINES = ("running_header", "running_footer")
"""Keys of lines that are repeated on the pages of a PDF; they are part of the layout and not specific to a chunk."""

SEGMENT_OWN_START = "_contextual_segment_own_start"
"""Key of a segment only: offset in the document of its first character that is not in the previous segment."""

CHUNK_KEY = "_contextual_chunk_key"
"""Key under which the ledger stores the context of a chunk of an unchanged file; see `chunk_keys`."""
FORMER_CONTEXT = "_contextual_former_context"
"""Context that an LLM wrote for the same chunk when the rest of its segment was read differently."""

RESERVED_KEYS = (PAGES, HEADINGS, TABLES, FIGURES_OF_DOCUMENT)
INTERNAL_KEYS = (*RESERVED_KEYS, SEGMENT_OWN_START, CHUNK_KEY, FORMER_CONTEXT)
"""Keys that only node parsers and contextualizers read; a chunk with a context has none of them."""
FILE_KEYS = (TITLE, FILE_NAME, FILE_PATH)
_CONTEXT_KEYS = (SOURCE_LINE, CONTEXT, CONTEXT_SOURCE, CONTEXT_GIVEN, CONTEXT_WRITTEN_AT)
_PLACE_KEYS = (PAGE_START, PAGE_END, PAGE_LABEL, OCR_CONFIDENCE, SECTION, PLACES)
_CHUNK_KEYS = (
    *(SEGMENT_INDEX, SEGMENT_START, SEGMENT_END, CHUNK_INDEX, TOKEN_COUNT),
    *(TABLE_HEAD, TABLE_COLUMNS, FACTS, FIGURES),
)
OWN_KEYS = (*_CONTEXT_KEYS, *FILE_KEYS, *_PLACE_KEYS, *_CHUNK_KEYS)
_EMBEDDED = (CONTEXT, TABLE_HEAD, FACTS)
_READ = (SOURCE_LINE, TABLE_HEAD, FACTS)

CONTINUED_TABLE = "Column head of the table that the Text continues"
"""Label of `TABLE_HEAD` in text that is sent to a model."""

METADATA_TEMPLATE = "{value}"
TEXT_TEMPLATE = "{metadata_str}\n\n{content}"

_PLACES = {"pptx": "slide", "pptm": "slide", "xlsx": "sheet", "xlsm": "sheet"}
LANGUAGE_LINE = re.compile(r"([a-z]{2}): (.+)")
"""A line of a context in another language, which begins with the code of the language."""
SECTION_SEPARATOR = " > "
_MOST_SECTIONS, _LONGEST_SECTIONS = 6, 300
_SECTION_NUMBER = re.compile(r"(?:(?:section|article)\s+|§\s*)?(\d+)\b(\.\d)?", re.IGNORECASE)


@dataclass(frozen=True)
class Heading:
    """A heading of a document.

    Attributes:
        start: Character offset of the beginning of the line with the heading.
        level: Level of the heading; 1 is the highest.
        title: The heading's text, without markup.
        is_marked: Whether the file marks up the line as a heading; otherwise it was recognised by its appearance.
    """

    start: int
    level: int
    title: str
    is_marked: bool = True


class Table(NamedTuple):
    """A table of a document. Its rows are lines, or groups of lines, of the text.

    Attributes:
        start: Character offset of the beginning of the column headers.
        body: Offset of the beginning of the first row; `start` if the headers are not part of the table's text.
        end: Offset of the end of the last row.
        head: The column headers as one or more lines, including any line with the caption or the unit of the table.
        columns: The header of each column, the column of labels first, if the text does not separate the cells and
            they are known from their positions; otherwise empty.
    """

    start: int
    body: int
    end: int
    head: str
    columns: Sequence[str] = ()

    def moved(self, by: int) -> Table:
        """Return the table with its offsets increased by a number of characters."""
        return self._replace(start=self.start + by, body=self.body + by, end=self.end + by)


def _may_contain(title: str, other: str) -> bool:
    """Return whether the section numbers allow one section to contain another.

    For example, "3. Delivery" cannot contain "12.3 License". Without this check, section 12.3 would become part of
    section 3 if the heading "12. Warranties" was not recognised.
    """
    number, part = _SECTION_NUMBER.match(title), _SECTION_NUMBER.match(other)
    return number is None or part is None or part[2] is None or number[1] == part[1]


class Place(NamedTuple):
    """A span of a document on one page and in one section, which ends where the next place begins.

    Attributes:
        start: Character offset at which the place begins.
        page: Number of the physical page, starting at 1; None if the document has no pages.
        page_label: Printed number of the page, or None.
        section: Path of headings above the place, or None.
    """

    start: int
    page: int | None
    page_label: str | None
    section: str | None


@dataclass(frozen=True)
class DocumentMap:
    """Positions of the pages, headings and tables of a document.

    Attributes:
        page_starts: Character offset of each physical page's first character; empty if the format has no pages.
        page_labels: The printed page numbers, one per page; empty if the document has none.
        headings: The headings, in the order of the text.
        tables: The tables with column headers, in the order of the text and without overlap.
        page_confidences: OCR confidence of each page, from 0 to 1, or None if the page has a text layer; empty if no
            page was read by OCR.
        figures: The figures, in the order of the document.
    """

    page_starts: Sequence[int] = ()
    page_labels: Sequence[str] = ()
    headings: Sequence[Heading] = ()
    tables: Sequence[Table] = ()
    page_confidences: Sequence[float | None] = ()
    figures: Sequence[Figure] = ()

    @cached_property
    def _sections(self) -> list[tuple[int, str]]:
        """Start of each heading, and the path of headings that leads to it."""
        path: list[Heading] = []
        sections = []
        for heading in self.headings:
            while path and path[-1].level >= heading.level:
                path.pop()
            path.append(heading)
            titles = [above.title for above in path if _may_contain(above.title, heading.title)]
            sections.append((heading.start, SECTION_SEPARATOR.join(titles)))
        return sections

    @cached_property
    def figure_index(self) -> FigureIndex:
        """The figures, from which those of a chunk are selected."""
        return FigureIndex(self.figures)

    def page(self, offset: int) -> int | None:
        """Return the number of the physical page, starting at 1, that contains the character at `offset`."""
        return max(1, bisect_right(self.page_starts, offset)) if self.page_starts else None

    def page_label(self, offset: int) -> str | None:
        """Return the printed number of the page that contains the character at `offset`."""
        page = self.page(offset)
        return self.page_labels[page - 1] if page and page <= len(self.page_labels) else None

    def ocr_confidence(self, start: int, end: int) -> float | None:
        """Return the lowest OCR confidence of the pages from `start` to `end` (exclusive).

        The result is None if none of these pages was read by OCR.
        """
        first, last = self.page(start), self.page(max(start, end - 1))
        pages = self.page_confidences[first - 1 : last] if first and last else ()
        return min((score for score in pages if score is not None), default=None)

    def section(self, offset: int) -> str | None:
        """Return the path of headings above the character at `offset`, such as "2 Results > Revenue"."""
        at = bisect_right(self._sections, offset, key=itemgetter(0))
        return self._sections[at - 1][1] if at else None

    def places(self, start: int, end: int) -> list[Place]:
        """Return the places from `start` to `end` (exclusive): each page and each heading begins a new place."""
        pages = self.page_starts[bisect_right(self.page_starts, start) : bisect_left(self.page_starts, end)]
        first = bisect_right(self._sections, start, key=itemgetter(0))
        sections = self._sections[first : bisect_left(self._sections, end, lo=first, key=itemgetter(0))]
        starts = sorted({start, *pages, *(begin for begin, _ in sections)})
        return [Place(at, self.page(at), self.page_label(at), self.section(at)) for at in starts]

    def table(self, offset: int) -> Table | None:
        """Return the table that begins before the character at `offset` and continues after it, or None."""
        at = bisect_left(self.tables, offset, key=lambda table: table.start)
        return self.tables[at - 1] if at and offset < self.tables[at - 1].end else None

    def columns(self, start: int, end: int) -> list[tuple[int, int, Sequence[str]]]:
        """Return the start and the end of the rows of each table from `start` to `end` (exclusive), and its columns.

        Tables whose columns are not known, because their text separates the cells or for lack of positions, are
        omitted.
        """
        first = bisect_right(self.tables, start, key=lambda table: table.end)
        last = bisect_left(self.tables, end, lo=first, key=lambda table: table.start)
        return [(table.body, table.end, table.columns) for table in self.tables[first:last] if table.columns]

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata to store under the reserved keys of a Document."""
        out: dict[str, str] = {}
        if self.page_starts:
            pages = {"starts": list(self.page_starts), "labels": list(self.page_labels)}
            confidences = {"ocr": list(self.page_confidences)} if self.page_confidences else {}
            out[PAGES] = json.dumps({**pages, **confidences})
        if self.headings:
            rows = [[h.start, h.level, h.title, *([] if h.is_marked else [False])] for h in self.headings]
            out[HEADINGS] = json.dumps(rows, ensure_ascii=False)
        if self.tables:
            out[TABLES] = json.dumps([t if t.columns else t[:4] for t in self.tables], ensure_ascii=False)
        if self.figures:
            out[FIGURES_OF_DOCUMENT] = json.dumps([f.to_json() for f in self.figures], ensure_ascii=False)
        return out

    @classmethod
    def from_metadata(cls, metadata: dict[str, Any]) -> DocumentMap:
        """Create a map from the reserved keys of a Document. Missing keys are treated as empty."""
        pages = parse_json(metadata.get(PAGES, "{}"))
        headings = parse_json(metadata.get(HEADINGS, "[]"))
        tables = parse_json(metadata.get(TABLES, "[]"))
        return cls(
            page_starts=tuple(pages.get("starts", ())),
            page_labels=tuple(pages.get("labels", ())),
            page_confidences=tuple(pages.get("ocr", ())),
            headings=tuple(Heading(*row) for row in headings),
            tables=tuple(Table(*table[:4], *map(tuple, table[4:])) for table in tables),
            figures=tuple(map(Figure.from_json, parse_json(metadata.get(FIGURES_OF_DOCUMENT, "[]")))),
        )


def places_of(metadata: Mapping[str, Any]) -> Sequence[Place]:
    """Return the places of a chunk; the sequence is empty if it lies in one section on one page."""
    places = metadata.get(PLACES)
    return _places(places) if places else ()


@lru_cache(maxsize=4_096)  # for chunks that are found again
def _places(text: str) -> Sequence[Place]:
    return tuple(map(Place._make, from_json(text)))


def columns_at(metadata: Mapping[str, Any], offset: int) -> Sequence[str]:
    """Return the column headers of the row at an offset in the document; empty if they are not known for each column.

    Args:
        metadata: Metadata of the chunk that contains the row.
        offset: Offset of a character of the row.
    """
    tables = parse_json(metadata.get(TABLE_COLUMNS) or "[]")
    return next((columns for start, end, columns in tables if start <= offset < end), ())


def section_label(metadata: Mapping[str, Any]) -> str | None:
    """Return the section of a chunk, or one label for all sections in which it lies, or None if it has none."""
    places = metadata.get(PLACES)
    return (_section_label(places) if places else None) or metadata.get(SECTION)


@lru_cache(maxsize=4_096)  # for chunks that are found again
def _section_label(places: str) -> str | None:
    return joint_section([place.section for place in _places(places)])


def joint_section(paths: Iterable[str | None]) -> str | None:
    """Return one label for several sections.

    The headings above all of them are written once. A label for more than six sections, or with more than 300
    characters, contains only the first and the last section.

    Args:
        paths: The paths of the sections, in the order of the text; None for text without a section.

    Example:
        >>> joint_section(["Manual > Faults", "Manual > Faults", "Manual > Repairs", "Manual > Repairs > Pump"])
        'Manual > Faults; Repairs > Pump'
    """
    distinct = [path for path in dict.fromkeys(paths) if path]
    is_above = (after.startswith(f"{path}{SECTION_SEPARATOR}") for path, after in pairwise([*distinct, ""]))
    lowest = [path.split(SECTION_SEPARATOR) for path, above in zip(distinct, is_above, strict=True) if not above]
    if not lowest:
        return None
    first, *others = lowest
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == first[shared] for path in lowest):
        shared += 1
    labels = [SECTION_SEPARATOR.join(path) for path in (first, *(path[shared:] for path in others))]
    label = "; ".join(labels)
    is_short = len(labels) <= _MOST_SECTIONS and (len(labels) < 3 or len(label) <= _LONGEST_SECTIONS)
    return label if is_short else f"{labels[0]} … {labels[-1]}"


def joint_places(chunks: Iterable[tuple[int | None, Mapping[str, Any]]]) -> str | None:
    """Return the places of consecutive chunks as their metadata, or None if they lie in one section on one page.

    Args:
        chunks: The start offset and the metadata of each chunk, in the order of the text.
    """
    places: list[Place] = []
    for start, metadata in chunks:
        if start is None:
            return None
        whole = Place(start, *(metadata.get(key) for key in (PAGE_START, PAGE_LABEL, SECTION)))
        for place in places_of(metadata) or (whole,):
            if not places or (place.start > places[-1].start and place[1:] != places[-1][1:]):
                places.append(place)
    return json.dumps(places, ensure_ascii=False) if len(places) > 1 else None


def is_own_key(key: str) -> bool:
    """Return whether a metadata key is reserved for this package. The title is not reserved."""
    return key != TITLE and (key in OWN_KEYS or key in RESERVED_KEYS)


def excluded_embed_keys(user_excluded: Iterable[str] = ()) -> list[str]:
    """Return the keys to exclude from embedded and indexed text.

    These are the keys that the user excluded, and all keys of this package except the context, column headers and
    facts.
    """
    return _excluded_keys(_EMBEDDED, user_excluded)


def excluded_llm_keys(user_excluded: Iterable[str] = ()) -> list[str]:
    """Return the keys to hide from the answering LLM.

    These are the keys that the user excluded, and all keys of this package except the source line, column headers and
    facts. The context helps to find a chunk. In a prompt of LlamaIndex, which does not label metadata, it would read
    like text of the document, and the structural line would be repeated before each chunk.
    """
    return _excluded_keys(_READ, user_excluded)


def _excluded_keys(shown: Collection[str], user_excluded: Iterable[str]) -> list[str]:
    hidden = (key for key in (*OWN_KEYS, *RESERVED_KEYS) if key not in shown)
    return list(dict.fromkeys([*hidden, *(key for key in user_excluded if key != SEGMENT_OWN_START)]))


def context_parts(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Return the structural part of a chunk's context, and the sentences that an LLM or a person wrote.

    Example:
        >>> context_parts({"context": "ACME Q2 2023.\\nThe revenue of ACME.", "context_written_at": 14})
        ('ACME Q2 2023.', 'The revenue of ACME.')
    """
    context = str(metadata.get(CONTEXT) or "")
    if metadata.get(CONTEXT_SOURCE) == "structural":
        return context, ""
    at = metadata.get(CONTEXT_WRITTEN_AT) or 0
    return context[:at].rstrip(), context[at:]


def background(metadata: Mapping[str, Any]) -> str:
    """Return the sentences that an LLM or a person wrote as the context of a chunk, without lines in other languages.

    Example:
        >>> background({"context": "Of the lease.\\nde: Mietvertrag, Kündigungsfrist"})
        'Of the lease.'
    """
    _, written = context_parts(metadata)
    return "\n".join(line for line in written.split("\n") if not LANGUAGE_LINE.fullmatch(line))


def label_of(metadata: dict[str, Any], key: str) -> str:
    """Return a label, such as the title, from the metadata of a Document as a string.

    A value that is neither a string nor a number is returned as an empty string.

    Example:
        >>> label_of({"title": 2024}, "title"), label_of({"title": ["a"]}, "title")
        ('2024', '')
    """
    value = metadata.get(key)
    return str(value) if isinstance(value, str | int | float) else ""


def source_line(metadata: dict[str, Any]) -> str:
    """Return the source line for the answering LLM, such as "Source: acme.pdf, pages 3–4, section 2 Results".

    If a chunk lies in several sections, the line contains all of them; see `joint_section`. It is empty if the metadata
    has neither a file name nor a title.
    """
    name = label_of(metadata, FILE_NAME) or label_of(metadata, TITLE)
    if not name:
        return ""
    parts = [f"Source: {name}", *_page_labels(name, metadata)]
    section = section_label(metadata)
    if section and f"sheet {section}" not in parts:
        parts.append(f"section {section}")
    return ", ".join(parts)


def page_word(file_name: str) -> str:
    """Return what the pages of a file are called: "page", "slide" or "sheet"."""
    return _PLACES.get(file_name.rpartition(".")[2].lower(), "page")


def _page_labels(name: str, metadata: dict[str, Any]) -> list[str]:
    """Return the pages, slides or sheets of a chunk, or its page label if a LlamaIndex reader stored only the label."""
    first, last, label = metadata.get(PAGE_START), metadata.get(PAGE_END), metadata.get(PAGE_LABEL)
    word = page_word(name)
    if first is None:
        return [] if label in (None, "") else [f"{word} {label}"]
    if last in (None, first):
        return [f"{word} {label if word == 'sheet' and label else first}"]
    return [f"{word}s {first}–{last}"]


def shape_fault(metadata: object) -> str | None:
    """Explain why metadata cannot be written as a JSON object and how to fix it, or return None.

    Values whose type does not exist in JSON are not checked.
    """
    if not isinstance(metadata, dict):
        return f"its metadata is of type {type(metadata).__name__}: pass a dict"
    for key, value in metadata.items():
        if not isinstance(key, str):
            return f"its metadata has a key of type {type(key).__name__}: use text"
        if fault := json_fault(value):
            return f"the value of {key!r} in its metadata {fault}"
    return None


_MAX_NESTING = 100


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether lists and dicts are nested more deeply than the given number of levels."""
    if not isinstance(value, Mapping | list | tuple):
        return False
    items = value.values() if isinstance(value, Mapping) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def json_fault(value: object) -> str | None:
    """Explain why a metadata value cannot be written as JSON and how to fix it, or return None.

    Types that do not exist in JSON are not checked.
    """
    try:
        json.dumps(value, default=str)
        is_too_deep = _is_deeper(value, _MAX_NESTING)
    except RecursionError:
        is_too_deep = True
    except (TypeError, ValueError) as error:  # invalid keys, or a cycle
        return f"cannot be written as JSON ({error}): use simple values"
    return "is nested too deeply: use simple values" if is_too_deep else None


def facts_line(facts: Mapping[str, Any]) -> str:
    """Format facts about a document as a line of names and values, omitting empty values.

    Example:
        >>> facts_line({"fund": "Halpha", "quarter": "Q4 2024", "tags": ["equity", "growth"], "note": None})
        'fund: Halpha, quarter: Q4 2024, tags: equity; growth'
    """
    texts = {
        name: "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        for name, value in facts.items()
        if value is not None
    }
    return ", ".join(f"{name}: {' '.join(text.split())}" for name, text in texts.items() if text.strip())


def user_metadata(node: BaseNode) -> dict[str, Any]:
    """Return the metadata of a node without the keys of this package."""
    return {key: value for key, value in node.metadata.items() if key != TITLE and not is_own_key(key)}


# ---- text and metadata that SQLite can store unchanged ---------------------------------------------------------------

INTEGERS = range(-(2**63), 2**63)
"""The integers that SQLite can store."""

_NOT_STORABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def storable_text(text: str) -> str:
    """Remove lone surrogates and control characters, except line breaks and tabs, from a string.

    Example:
        >>> storable_text("Revenue\\x00 grew.\\n")
        'Revenue grew.\\n'
    """
    return _NOT_STORABLE.sub("", text)


def require_storable(nodes: Sequence[BaseNode]) -> None:
    """Check that nodes can be stored.

    Raises:
        InputError: A node cannot be stored.
    """
    for node in nodes:
        if fault := storable_fault(node):
            raise InputError(f"Node {node.node_id!r} cannot be stored: {fault}.", value=node)


def storable_fault(node: BaseNode) -> str | None:
    """Return the reason why a node cannot be stored and what to do about it, or None if it can be stored."""
    if fault := shape_fault(node.metadata):
        return fault
    for name, text in _stored_texts(node):
        if has_surrogate(text):
            return f"{name} contains lone surrogates: clean it with text.encode('utf-8', 'replace').decode()"
    for key, value in node.metadata.items():
        if fault := (_text_fault(key) or value_fault(value)):
            return f"the value of {key!r} in its metadata {fault}"
    return None


def _stored_texts(node: BaseNode) -> Iterator[tuple[str, str]]:
    yield "its id", node.node_id
    yield "its text", node.get_content()
    for relation in node.relationships.values():
        for info in relation if isinstance(relation, list) else [relation]:
            yield "the id of a related node", info.node_id


def value_fault(value: object) -> str | None:
    """Return the reason why a metadata value cannot be stored and what to do about it, or None if it can be stored."""
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
