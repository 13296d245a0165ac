"""Search for exact texts and regular expressions in the original texts, within limits of time and memory."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import regex  # type: ignore[import-untyped]  # the package ships no types

from llama_index_contextual._utils.text import pluralize
from llama_index_contextual.errors import InputError
from llama_index_contextual.index.manifest import DocumentRecord
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import visible
from llama_index_contextual.tools.models import LONGEST_PATTERN, GrepResult, Match, shortened
from llama_index_contextual.tools.original import Original

GREP_SECONDS = 5.0
"""Seconds after which `grep` stops and reports what was not searched."""

_LONGEST_LINE = 240
_WINDOW, _OVERLAP = 100_000, 4_000
_LOOKS_LIKE_REGEX = re.compile(r"\\[dswbDSW]|\.[*+?]|\[[^\]]+\][*+?{]|\w\|\w")
_RECURSION = re.compile(r"\(\?(?:R|&|P>|[+-]?\d)")
_FIRST_SLICE = 0.1  # processor seconds

Span = tuple[int, int]


class TimeLimit:
    """Limit of a search by the clock, divided into slices of processor time.

    The timeout of `regex` counts the processor time of the whole process: other threads use it up, and on a busy
    machine it lasts longer than it says. Each slice is therefore scaled by how long the previous one has lasted, and
    the clock alone decides when the search ends.

    Args:
        seconds: Seconds from now.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._started = self._slice = 0.0
        self._pace = 1.0  # seconds for each processor second

    def next_slice(self, attempt: int = 0) -> float:
        """Return the processor seconds of the next slice, which double with each attempt.

        Raises:
            TimeoutError: The time is up.
        """
        self._started = time.monotonic()
        if (remaining := self._deadline - self._started) <= 0:
            raise TimeoutError
        self._slice = min(_FIRST_SLICE * 2**attempt, remaining / self._pace)
        return self._slice

    def measure(self) -> None:
        """Measure how long the slice that was used up has lasted."""
        self._pace = max((time.monotonic() - self._started) / self._slice, 1e-3)


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern.

    Attributes:
        given: The text or expression that was given.
        compiled: The compiled expression.
        is_regex: Whether it was given as a regular expression.
    """

    given: str
    compiled: Any
    is_regex: bool


def compile_pattern(pattern: str, *, is_regex: bool, case_sensitive: bool) -> Pattern:
    """Return the pattern for an exact text or a regular expression.

    In an exact text, white space matches any white space, and an accent may be written in one character or in two.

    Raises:
        InputError: The pattern is empty, too long, or no regular expression.
    """
    if not pattern.strip():
        raise InputError("The pattern is empty: pass the text to find.", value=pattern)
    if len(pattern) > LONGEST_PATTERN:
        raise InputError(
            f"The pattern has {len(pattern):,} characters, at most {LONGEST_PATTERN:,} are allowed: find a shorter"
            f" part of it.",
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
        return Pattern(pattern, compiled, is_regex)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(
            f"{shortened(pattern)!r} is no regular expression: {reason}. Pass regex=false to find it as it stands.",
            value=pattern,
        ) from error


def _literal(text: str) -> str:
    """Return the expression for an exact text; accents may be written in one character or in two."""
    forms = dict.fromkeys((text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)))
    return "|".join(r"\s+".join(map(regex.escape, form.split())) for form in forms)


def find_lines(
    version: SearchableVersion,
    records: Sequence[DocumentRecord],
    pattern: Pattern,
    *,
    offset: int,
    limit: int,
    progress: Callable[[int, int], object] | None,
) -> GrepResult:
    """Return the lines of some documents in which a pattern occurs.

    Args:
        version: The version with the documents.
        records: The documents to search.
        pattern: The pattern.
        offset: Number of lines to skip.
        limit: Maximum number of lines to return; all are counted.
        progress: Called with the number of searched documents and their total number.

    Raises:
        InputError: The pattern needs too much memory.
    """
    limit_of_time = TimeLimit(GREP_SECONDS)
    shown: list[Match] = []
    total = occurrences = documents = 0
    notes: list[str] = []
    for number, record in enumerate(records):
        original = Original(version, record)
        before = total
        try:
            for match in _matching_lines(original, pattern, limit_of_time):
                if offset <= total < offset + limit:
                    shown.append(match)
                total += 1
                occurrences += match.matches
        except TimeoutError:
            notes.append(
                f"The search stopped after {GREP_SECONDS:g} seconds in document {record.doc_id!r}:"
                f" {number} of {pluralize(len(records), 'document')} were searched completely, so the numbers are too"
                f" small. Search single documents with doc_id, or simplify the expression."
            )
        except MemoryError as error:
            raise InputError(
                f"{shortened(pattern.given)!r} needs too much memory: simplify the expression.", value=pattern.given
            ) from error
        documents += total > before
        if notes:
            break
        if progress is not None:
            progress(number + 1, len(records))
    if not total and not pattern.is_regex and _LOOKS_LIKE_REGEX.search(pattern.given):
        notes.append("The pattern was searched as exact text: pass regex=true for a regular expression.")
    return GrepResult(
        pattern=pattern.given,
        matches=shown,
        total=total,
        occurrences=occurrences,
        documents=documents,
        next_offset=offset + limit if offset + limit < total else None,
        notes=notes,
        version=version.name,
    )


def _matching_lines(original: Original, pattern: Pattern, limit: TimeLimit) -> Iterator[Match]:
    """Yield the lines of a document with a match, each with the number of matches that begin in it.

    Raises:
        TimeoutError: The time is up.
    """
    limit.next_slice()
    text = original.text()
    number, counted_to = 1, 0
    for line, first, count in _by_line(text, _matches(text, pattern, limit)):
        number += text.count("\n", counted_to, line[0])
        counted_to = line[0]
        yield Match(
            doc_id=original.record.doc_id,
            start=first[0],
            end=first[1],
            line=number,
            page=original.map.page(first[0]),
            section=original.map.section(first[0]),
            matches=count,
            text=_around(text, line, first),
        )


def _by_line(text: str, spans: Iterator[Span]) -> Iterator[tuple[Span, Span, int]]:
    """Yield the span of each line with a match, its first match, and the number of matches that begin in it.

    Raises:
        TimeoutError: The search timed out; the line with the last match is yielded before.
    """
    line, first, count = (0, -1), (0, 0), 0
    try:
        for span in spans:
            if span[0] > line[1]:
                if count:
                    yield line, first, count
                end = text.find("\n", span[0])
                line, first, count = (text.rfind("\n", 0, span[0]) + 1, len(text) if end < 0 else end), span, 0
            count += 1
    except TimeoutError:
        if count:
            yield line, first, count
        raise
    if count:
        yield line, first, count


def _matches(text: str, pattern: Pattern, limit: TimeLimit) -> Iterator[Span]:
    """Yield the offsets of all matches with text.

    The text is searched in windows that overlap, because the memory and the time of an expression can grow with the
    length of the text; a match that is longer than the overlap may be cut.

    Raises:
        TimeoutError: The time is up.
    """
    at = 0
    while at < len(text):
        end = _line_break(text, at + _WINDOW)
        is_last = end >= len(text)
        accepted_to = end if is_last else end - _OVERLAP
        last, attempt = at, 0
        while True:
            begin, seconds = last, limit.next_slice(attempt)
            try:
                for match in pattern.compiled.finditer(text, begin, end, timeout=seconds, concurrent=True):
                    start, stop = match.span()
                    if start >= accepted_to and not is_last:
                        break
                    if stop > start:
                        yield start, stop
                    last = stop
                break
            except TimeoutError:
                limit.measure()
                attempt = 0 if last > begin else attempt + 1
        at = max(accepted_to, last)


def _line_break(text: str, near: int) -> int:
    """Return the offset of the line break before `near`, or `near` in a long line."""
    if near >= len(text):
        return len(text)
    found = text.rfind("\n", near - _OVERLAP // 2, near)
    return near if found < 0 else found


def _around(text: str, line: tuple[int, int], match: tuple[int, int]) -> str:
    """Return a line, or the part of a long line around a match, without control characters."""
    first, last = line[0], max(line[1], min(match[1], match[0] + _LONGEST_LINE))
    if last - first > _LONGEST_LINE:
        room = max(20, (_LONGEST_LINE - min(match[1] - match[0], _LONGEST_LINE)) // 2)
        begin = max(first, match[0] - room)
        finish = min(last, max(begin + _LONGEST_LINE, min(match[1], match[0] + _LONGEST_LINE) + 20))
        cut = visible(text[begin:finish])
        return f"{'… ' if begin > first else ''}{cut}{' …' if finish < last else ''}"
    return visible(text[first:last])
