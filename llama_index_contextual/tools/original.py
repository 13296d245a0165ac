"""Access to original texts: find a document, read its sections, pages and chunks, and search with `grep`."""

from __future__ import annotations

import difflib
import itertools
import re
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import regex  # type: ignore[import-untyped]  # the package ships no types
from llama_index.core.schema import MetadataMode, TextNode

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.answering.prompts import defused
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import Source, visible
from llama_index_contextual.tools import models

MAX_CHARACTERS = 20_000
"""Maximum number of characters of original text in one reply of `read`."""

GREP_SECONDS = 5.0
"""Seconds after which `grep` stops and reports the documents that were not searched."""

Span = tuple[int, int]

# ---- documents -------------------------------------------------------------------------------------------------------

_MAX_NAMED = 8


def find_record(records: Sequence[DocumentRecord], name: str, project: str) -> DocumentRecord:
    """Return the document with this id, or else the only one with this file name or title.

    Raises:
        InputError: No document matches, or several do.
    """
    for names in ("doc_id", "file_name", "title"):
        named = [record for record in records if getattr(record, names) == name]
        if len(named) == 1:
            return named[0]
        if named:
            ids = ", ".join(repr(record.doc_id) for record in named[:_MAX_NAMED])
            raise InputError(f"{len(named)} documents are called {name!r}: choose a doc_id of {ids}.", value=name)
    near = difflib.get_close_matches(name[:500], [record.doc_id for record in records], n=3, cutoff=0.5)
    advice = f"nearest: {', '.join(map(repr, near))}" if near else "`outline` lists the documents"
    raise InputError(f"Project {project!r} has no document {name!r}; {advice}.", value=name)


class Original:
    """The original text of a document in one version, with its pages, sections and chunks.

    If a document was ingested as chunks without offsets, the chunks, joined by blank lines, replace the original text.

    Args:
        version: The version.
        record: The document's record.
    """

    def __init__(self, version: SearchableVersion, record: DocumentRecord) -> None:
        self._version = version
        self.record = record

    @cached_property
    def map(self) -> DocumentMap:
        """Pages and headings."""
        frame = self._version.frame(self.record.doc_id)
        return DocumentMap() if frame is None else DocumentMap.from_metadata(dict(frame.metadata))

    @cached_property
    def _nodes(self) -> list[TextNode]:
        nodes = self._version.docstore.iterate(doc_id=self.record.doc_id)
        return [node for node in nodes if isinstance(node, TextNode)]

    @cached_property
    def _joined(self) -> str | None:
        """The joined chunks, if they have no offsets."""
        is_whole = self._version.frame(self.record.doc_id) is not None
        if is_whole or all(node.start_char_idx is not None for node in self._nodes):
            return None
        return "\n\n".join(node.get_content(MetadataMode.NONE) for node in self._nodes)

    @property
    def length(self) -> int:
        """Length of the text in characters."""
        return self.record.characters if self._joined is None else len(self._joined)

    def text(self, start: int = 0, end: int | None = None) -> str:
        """Return the text between two offsets."""
        if self._joined is not None:
            return self._joined[start:end]
        return self._version.read_text(self.record, start, end)

    @cached_property
    def sections(self) -> list[models.OutlinedSection]:
        """The sections, each with its subsections."""
        headings = self.map.headings
        return [
            models.OutlinedSection(
                number=number,
                level=heading.level,
                title=heading.title[: models.LONGEST_SHOWN],
                path=self.map.section(heading.start) or heading.title,
                page=self.map.page(heading.start),
                start=heading.start,
                end=end,
            )
            for number, (heading, end) in enumerate(
                zip(headings, _section_ends(headings, self.length), strict=True), start=1
            )
        ]

    def outlined(self) -> models.OutlinedDocument:
        """Return the entry of the outline."""
        record = self.record
        return models.OutlinedDocument(
            doc_id=record.doc_id,
            title=record.title or record.file_name or record.doc_id,
            file_name=record.file_name,
            characters=self.length,
            pages=len(self.map.page_starts) or None,
            sections=len(self.map.headings),
            chunks=record.chunks,
        )

    def section_span(self, name: str) -> Span:
        """Return the offsets of a section by number, path or heading; case and white space are ignored.

        Raises:
            InputError: No section matches, or several do.
        """
        doc_id, sections, wanted = self.record.doc_id, self.sections, _plain(name)
        named = [section for section in sections if wanted in (f"#{section.number}", _plain(section.path))]
        named = named or [section for section in sections if wanted and wanted in _plain(section.path)]
        exact = [section for section in named if _plain(section.title) == wanted] or named
        if len(exact) == 1:
            return exact[0].start, exact[0].end
        if exact:
            more = f"; and {len(exact) - _MAX_NAMED} more" if len(exact) > _MAX_NAMED else ""
            listed = "; ".join(models.describe_section(section, section.path) for section in exact[:_MAX_NAMED])
            raise InputError(
                f"{len(exact)} sections of {doc_id!r} match {name!r}: choose one by its number: {listed}{more}.",
                value=name,
            )
        raise InputError(
            f"Document {doc_id!r} has no section {name!r}: `outline` with its doc_id lists its"
            f" {pluralize(len(sections), 'section')}.",
            value=name,
        )

    def pages_span(self, pages: str) -> Span:
        """Return the offsets of a page or a range of pages."""
        starts = self.map.page_starts
        if not starts:
            raise InputError(f"Document {self.record.doc_id!r} has no pages: read a section or offsets.", value=pages)
        numbers = re.fullmatch(r"\s*(\d{1,9})\s*(?:[-–—]\s*(\d{1,9})\s*)?", pages)
        if numbers is None:
            raise InputError(f"Pages {pages!r} are not a page or a range: write `3` or `3-5`.", value=pages)
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if not 1 <= first <= last or first > len(starts):
            raise InputError(
                f"Document {self.record.doc_id!r} has the pages 1 to {len(starts)}, not {pages.strip()}.", value=pages
            )
        return starts[first - 1], starts[last] if last < len(starts) else self.length

    def with_neighbours(self, span: Span, number: int) -> Span:
        """Extend a span to whole chunks, and by a number of chunks before and after."""
        offsets = [(node.start_char_idx, node.end_char_idx) for node in self._nodes]
        places = sorted((start, end) for start, end in offsets if start is not None and end is not None)
        touched = [at for at, (start, end) in enumerate(places) if start < max(span[1], span[0] + 1) and end > span[0]]
        if not touched:
            return span
        around = places[max(0, touched[0] - number) : touched[-1] + number + 1]
        return min(start for start, _ in around), max(end for _, end in around)

    def read(self, start: int, end: int) -> models.ReadResult:
        """Return the text between two offsets, up to the maximum length."""
        stop, record = min(end, start + MAX_CHARACTERS), self.record
        source = Source(doc_id=record.doc_id, file_name=record.file_name, title=record.title).at(start, stop, self.map)
        return models.ReadResult(
            doc_id=record.doc_id,
            source=str(source),
            text=self.text(start, stop),
            start=start,
            end=stop,
            characters=self.length,
            page_start=source.page_start,
            page_end=source.page_end,
            section=source.section,
            next_start=stop if stop < end else None,
            requested_end=end,
            version=self._version.name,
        )


def _section_ends(headings: Sequence[Heading], length: int) -> list[int]:
    """Return the end of each section, which is the start of the next heading of the same or a higher level."""
    ends = [length] * len(headings)
    open_sections: list[int] = []
    for at, heading in enumerate(headings):
        while open_sections and headings[open_sections[-1]].level >= heading.level:
            ends[open_sections.pop()] = heading.start
        open_sections.append(at)
    return ends


def _plain(text: str) -> str:
    return " ".join(defused(text).casefold().split())


# ---- grep ------------------------------------------------------------------------------------------------------------

_LONGEST_LINE = 240
_WINDOW, _OVERLAP = 100_000, 4_000
LOOKS_LIKE_REGEX = re.compile(r"\\[dswbDSW]|\.[*+?]|\[[^\]]+\][*+?{]|\w\|\w")
_RECURSION = re.compile(r"\(\?(?:R|&|P>|[+-]?\d)")


def compile_pattern(pattern: str, *, is_regex: bool, case_sensitive: bool) -> Any:
    """Compile an exact string or a regular expression.

    In an exact string, white space matches any white space, and accented letters match in composed and decomposed form.

    Raises:
        InputError: The pattern is empty, too long, or not a valid regular expression.
    """
    if not pattern.strip():
        raise InputError("The pattern is empty: pass the text to find.", value=pattern)
    if len(pattern) > models.LONGEST_PATTERN:
        raise InputError(
            f"The pattern has {len(pattern):,} characters, at most {models.LONGEST_PATTERN:,} are allowed: find a"
            f" shorter part of it.",
            value=pattern,
        )
    if is_regex and _RECURSION.search(pattern):
        raise InputError("A regular expression must not call itself, as in (?R) or (?1).", value=pattern)
    expression = pattern if is_regex else _literal(pattern)
    flags = regex.MULTILINE | (0 if case_sensitive else regex.IGNORECASE | regex.FULLCASE)
    try:
        compiled = regex.compile(expression, flags)
        if compiled.flags & regex.REVERSE:
            raise InputError("A regular expression must not search backwards, as with (?r).", value=pattern)
        return compiled
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(
            f"{models.shortened(pattern)!r} is no regular expression: {reason}. Pass regex=false to find it as it"
            f" stands.",
            value=pattern,
        ) from error


def _literal(text: str) -> str:
    """Return the expression for an exact string, with accented letters in composed or decomposed form."""
    forms = dict.fromkeys((text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)))
    return "|".join(r"\s+".join(map(regex.escape, form.split())) for form in forms)


def find_lines(
    version: SearchableVersion, records: Sequence[DocumentRecord], compiled: Any, *, offset: int, limit: int
) -> models.GrepResult:
    """Return the lines of some documents that match a pattern.

    Args:
        version: The version with the documents.
        records: The documents to search.
        compiled: The compiled pattern.
        offset: Number of lines to skip.
        limit: Maximum number of lines to return; all matches are counted.

    Raises:
        InputError: The pattern needs too much memory.
    """
    deadline = time.monotonic() + GREP_SECONDS
    result = models.GrepResult(pattern="", version=version.name)
    for number, record in enumerate(records):
        before = result.total
        try:
            for match in _matching_lines(Original(version, record), compiled, deadline):
                if offset <= result.total < offset + limit:
                    result.matches.append(match)
                result.total += 1
                result.occurrences += match.matches
        except TimeoutError:
            result.notes.append(
                f"The search stopped after {GREP_SECONDS:g} seconds in document {record.doc_id!r}:"
                f" {number} of {pluralize(len(records), 'document')} were searched completely, so the numbers are too"
                f" small. Search single documents with doc_id, or simplify the expression."
            )
        except MemoryError as error:
            raise InputError("The expression needs too much memory: simplify it.") from error
        result.documents += result.total > before
        if result.notes:
            break
    result.next_offset = offset + limit if offset + limit < result.total else None
    return result


def _matching_lines(original: Original, compiled: Any, deadline: float) -> Iterator[models.Match]:
    """Yield each line of a document with a match, and the number of matches that start in it.

    Raises:
        TimeoutError: The time is up.
    """
    text = original.text()
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    spans = _matches(text, compiled, deadline)
    for number, in_line in itertools.groupby(spans, key=lambda span: bisect_right(starts, span[0])):
        first, *others = in_line
        end = starts[number] - 1 if number < len(starts) else len(text)
        yield models.Match(
            doc_id=original.record.doc_id,
            start=first[0],
            end=first[1],
            line=number,
            page=original.map.page(first[0]),
            section=original.map.section(first[0]),
            matches=1 + len(others),
            text=_around(text, (starts[number - 1], end), first),
        )


def _matches(text: str, compiled: Any, deadline: float) -> Iterator[Span]:
    """Yield the offsets of all matches that are not empty.

    The text is searched in overlapping windows, because an expression may need more memory and time for longer text. A
    match that is longer than the overlap may be cut.

    Raises:
        TimeoutError: The time is up.
    """
    last = 0
    for begin in range(0, len(text), _WINDOW):
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        end = begin + _WINDOW
        for match in compiled.finditer(text, max(begin, last), end + _OVERLAP, timeout=seconds, concurrent=True):
            start, stop = match.span()
            if start >= end:
                break
            if stop > start:
                yield start, stop
            last = stop


def _around(text: str, line: Span, match: Span) -> str:
    """Return a line without control characters, or for a long line, the part around the beginning of a match."""
    begin = line[0] if line[1] - line[0] <= _LONGEST_LINE else max(line[0], match[0] - _LONGEST_LINE // 4)
    end = min(max(line[1], match[1]), begin + _LONGEST_LINE)
    return f"{'… ' if begin > line[0] else ''}{visible(text[begin:end])}{' …' if end < line[1] else ''}"
