"""Units of a passage (sentences, rows of tables), and how much of a question one unit covers: pure functions.

A chunk of 800 tokens answers a question with one sentence or one row of a table. What stands before the chunk (title,
section, head of the table) counts for each of its units: it says what the unit is about.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.readers.boundaries import Rank, skip_space, strip_end, structural_offsets

LONG_LINE = 160
"""Characters of a line from which on it is divided into sentences; shorter ones are rows, items or sentences."""

_WRAPPED = 50  # characters of a line from which on it may be continued by a line that begins with a small letter
_FEW_TERMS = 3
_QUESTION_PARTS = re.compile(r"(?<=[.!?;:。！？；：])\s*")


def units(text: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences of a text, and of the rows of its tables, in order.

    A line is a unit, such as a row, an item or a heading. Lines of more than 160 characters are divided into
    sentences. A line that continues in the next one, as in text wrapped by hand, is joined with it.

    Example:
        >>> text = "| Zone | Tariff |\\n| Upper Vale | 2.95 |\\nThe tariff is reviewed."
        >>> [text[start:end] for start, end in units(text)]
        ['| Zone | Tariff |', '| Upper Vale | 2.95 |', 'The tariff is reviewed.']
    """
    return [unit for start, end in _lines(text) for unit in _sentences(text, start, end)]


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the lines with text; those that are wrapped are joined."""
    start = end = 0
    for line in text.splitlines(keepends=True):
        body = line.strip()
        is_continued = end - start >= _WRAPPED and body[:1].islower() and "|" not in body
        if body and not is_continued:
            if text[start:end].strip():
                yield start, end
            start = end
        elif not body and text[start:end].strip():
            yield start, end
            start = end + len(line)
        end += len(line)
    if text[start:end].strip():
        yield start, end


def _sentences(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the units of a line: its sentences if it is long, or else the line."""
    cuts = structural_offsets(text[start:end])[Rank.SENTENCE] if end - start > LONG_LINE else ()
    for first, last in itertools.pairwise([start, *(start + cut for cut in cuts), end]):
        span = skip_space(text, first), strip_end(text, first, last)
        if span[0] < span[1]:
            yield span


def question_parts(question: str, weights: Mapping[str, float], analyzer: Analyzer) -> list[dict[str, float]]:
    """Return the terms of each sentence of a question with their weights.

    A question is often followed by definitions and instructions ("Answer in millions."), which no passage repeats.
    Sentences of fewer than three terms are left out; if all are that short, the whole query is the only part.

    Args:
        question: The question.
        weights: Weights of all terms of the query, such as their idf.
        analyzer: The analyzer of the index.
    """
    parts = []
    for sentence in filter(None, _QUESTION_PARTS.split(question)):
        terms = dict.fromkeys(term for term in analyzer.query_terms(sentence) if term in weights)
        parts.append({term: weights[term] for term in terms})
    return [part for part in parts if len(part) >= _FEW_TERMS] or [dict(weights)]


def coverage(
    text: str, header: str, parts: Sequence[Mapping[str, float]], analyzer: Analyzer, *, least: float = 0.0
) -> float:
    """Return the largest share of a part of the question that one unit covers together with the header, 0 to 1.

    Args:
        text: Text of the passage.
        header: What stands before it: title, section, head of the table.
        parts: Terms of the question with their weights, from `question_parts`.
        analyzer: The analyzer of the index.
        least: Returned if no unit covers more, such as the coverage of another passage.

    Example:
        >>> analyzer = Analyzer("english")
        >>> parts = [{"garden": 3.0, "water": 1.0, "tariff": 1.0}]
        >>> coverage("Water is metered. Garden water is free.", "Tariffs of 2024", parts, analyzer)
        1.0
    """
    wanted = frozenset(term for part in parts for term in part)
    matching = analyzer.matching(wanted)
    of_header = matching(header)
    totals = [sum(part.values()) for part in parts]
    shares: dict[frozenset[str], float] = {}  # most units match the same few terms, or none

    def share(start: int, end: int) -> float:
        of_unit = matching(text[start:end])
        if of_unit not in shares:
            matched = of_header | of_unit
            covered = (sum(part[term] for term in part if term in matched) for part in parts)
            shares[of_unit] = max(one / total if total else 0.0 for one, total in zip(covered, totals, strict=True))
        return shares[of_unit]

    best = least
    for line in _lines(text):
        # A sentence covers no more than its line, and most lines cover no more than the best unit so far.
        if share(*line) > best:
            best = max(best, *(share(*unit) for unit in _sentences(text, *line)))
    return min(best, 1.0)
