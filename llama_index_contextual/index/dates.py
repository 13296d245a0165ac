"""The date of a document, and the documents that newer ones supersede.

A date is taken from the metadata of a document, its title, the first lines of its text or the name of its file, in this
order. A document supersedes another one if both have the same file name or the same title apart from versions and
dates, if a version, a word such as "final" or a date says which one is newer, and if their texts are similar: the
minutes of two meetings have one title, but not one text.

Source: similarity is estimated from the smallest hashes of word triples, as in Broder, "On the Resemblance and
Containment of Documents", Compression and Complexity of Sequences, 1997.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from xxhash import xxh3_64_intdigest

from llama_index_contextual.index.manifest import DocumentRecord

# ---- dates in text ---------------------------------------------------------------------------------------------------

_MONTHS = (
    ("january", "jan", "januar", "jänner", "janvier", "enero"),
    ("february", "feb", "februar", "février", "febrero"),
    ("march", "mar", "märz", "mars", "marzo"),
    ("april", "apr", "avril", "abril"),
    ("may", "mai", "mayo"),
    ("june", "jun", "juni", "juin", "junio"),
    ("july", "jul", "juli", "juillet", "julio"),
    ("august", "aug", "août", "agosto"),
    ("september", "sept", "sep", "septembre", "septiembre"),
    ("october", "oct", "oktober", "okt", "octobre", "octubre"),
    ("november", "nov", "novembre", "noviembre"),
    ("december", "dec", "dezember", "dez", "décembre", "diciembre"),
)
_NUMBER_OF_MONTH = {name: number for number, names in enumerate(_MONTHS, 1) for name in names}
_MONTH = "|".join(sorted(_NUMBER_OF_MONTH, key=len, reverse=True))
_YEAR = r"(?:19|20)\d\d"
_DATE = re.compile(
    rf"(?<![\d.])(?:(?P<y1>{_YEAR})(?P<s1>[-/.])(?P<m1>\d\d?)(?P=s1)(?P<d1>\d\d?)"
    rf"|(?P<a2>\d\d?)(?P<s2>[-/.]) ?(?P<b2>\d\d?)(?P=s2) ?(?P<y2>{_YEAR})"
    rf"|(?:(?P<d3>\d\d?)(?:st|nd|rd|th|er|\.)? (?:of |de )?)?(?P<n3>{_MONTH})\b\.?,? (?:de )?(?P<y3>{_YEAR})"
    rf"|(?P<n4>{_MONTH})\b\.? (?P<d4>\d\d?)(?:st|nd|rd|th)?,? (?P<y4>{_YEAR}))(?![\d])",
    re.IGNORECASE,
)
_IN_NAME = re.compile(rf"(?<!\d)({_YEAR})[-_. ]?(0[1-9]|1[0-2])[-_. ]?(0[1-9]|[12]\d|3[01])(?!\d)")
_CHANGED = (
    r"last (?:updated|revised|changed|modified)|updated|revised|revision|dated|date|datum|stand|fecha|mise à jour"
)
_ISSUED = r"issued|published|effective(?: date)?|valid from|in force from|gültig ab|adopted|approved"
_LABELS = tuple(
    re.compile(rf"(?:^|[^\w])(?:{words})(?: (?:on|of|date|from|as of|vom|am|of issue))?\s?:?\s?", re.IGNORECASE)
    for words in (_CHANGED, _ISSUED)
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_OPENING, _LINES, _LONGEST_LINE, _LONGEST_PLACE = 2_000, 15, 200, 30


def _day(year: str | int, month: str | int, day: str | int) -> str:
    try:
        return date(int(year), int(month), int(day)).isoformat()
    except ValueError:
        return ""


def _of_match(match: re.Match[str]) -> str:
    """Return a date in ISO format, or "" if the day does not exist or its order is unclear, as in 3/4/2025."""
    groups = match.groupdict()
    if groups["y1"]:
        return _day(groups["y1"], groups["m1"], groups["d1"])
    if groups["y2"]:
        first, second = int(groups["a2"]), int(groups["b2"])
        if groups["s2"] == "." or first > 12:
            return _day(groups["y2"], second, first)
        return _day(groups["y2"], first, second) if second > 12 or first == second else ""
    name, year = (groups["n3"], groups["y3"]) if groups["n3"] else (groups["n4"], groups["y4"])
    return _day(year, _NUMBER_OF_MONTH[name.lower()], groups["d3"] or groups["d4"] or 1)


def dates_in(text: str) -> list[str]:
    """Return the dates in a text, in ISO format; a month without a day stands for its first day.

    Example:
        >>> dates_in("From 31. März 2025 to April 3rd, 2025; 3/4/2025 has two readings.")
        ['2025-03-31', '2025-04-03']
    """
    return [found for match in _DATE.finditer(text) if (found := _of_match(match))]


def document_date(metadata: Mapping[str, Any], title: str, opening: str, file_name: str) -> str:
    """Return the date of a document in ISO format, or "".

    Args:
        metadata: Its metadata; the first date in an entry with the word "date" in its key is used.
        title: Its title.
        opening: The beginning of its text.
        file_name: The name of its file.

    Example:
        >>> document_date({}, "Travel policy", "Last updated: 3 March 2025\\nValid from 1.4.2025", "travel.md")
        '2025-03-03'
    """
    return (
        _in_metadata(metadata) or _single(dates_in(title[:_LONGEST_LINE])) or _in_lines(opening) or _in_name(file_name)
    )


def _in_metadata(metadata: Mapping[str, Any]) -> str:
    for key, value in metadata.items():
        if "date" in map(str.lower, _WORDS.findall(key)):
            try:
                return datetime.fromisoformat(str(value)).date().isoformat()
            except ValueError:
                continue
    return ""


def _single(dates: Sequence[str]) -> str:
    return dates[0] if len(set(dates)) == 1 else ""


def _in_lines(opening: str) -> str:
    """Return the date of the first line that names it ("dated", "last updated") or consists of a place and a date."""
    lines = [line.strip(" \t#*_|>-") for line in opening[:_OPENING].splitlines() if line.strip()][:_LINES]
    short = [" ".join(line.split()) for line in lines if len(line) <= _LONGEST_LINE]
    for label in _LABELS:
        for line in short:
            for match in label.finditer(line):
                found = _DATE.match(line, match.end())
                if found and _of_match(found):
                    return _of_match(found)
    for line in short:
        found = _DATE.search(line)
        if found and len(line) - len(found[0]) <= _LONGEST_PLACE and not line[found.end() :].strip(" .,;*_|)"):
            before = line[: found.start()].strip(" ,:(*_|")
            if not any(sign.isdigit() for sign in before) and len(before.split()) <= 3:
                return _of_match(found)
    return ""


def _in_name(file_name: str) -> str:
    stem = file_name.rpartition("/")[2].rpartition(".")[0]
    match = _IN_NAME.search(stem)
    return _day(*match.groups()) if match else _single(dates_in(re.sub("[_-]", " ", stem[:_LONGEST_LINE])))


# ---- similar texts ---------------------------------------------------------------------------------------------------

_HASHES, _COMPARED = 48, 40_000
_FACTORS = np.array(
    [[xxh3_64_intdigest(kind, seed=number) >> 33 for number in range(_HASHES)] for kind in (b"factor", b"summand")],
    dtype=np.uint64,
)[:, :, None] * np.uint64(2) + np.uint64(1)
_TOKENS = re.compile(r"\w+")


def sketch_of(text: str) -> list[int]:
    """Return numbers that are equal for similar texts: the share of equal ones estimates the share of word triples.

    The result is empty if the text has fewer than three words.
    """
    words = [crc32(word.encode("utf-8", "surrogatepass")) for word in _TOKENS.findall(text[:_COMPARED].lower())]
    if len(words) < 3:
        return []
    hashes = np.array(words, dtype=np.uint64)
    triples = np.unique(hashes[:-2] * np.uint64(31) + hashes[1:-1] * np.uint64(1_009) + hashes[2:])
    mixed = (triples[None, :] * _FACTORS[0] + _FACTORS[1]) >> np.uint64(32)
    smallest: list[int] = mixed.min(axis=1).tolist()
    return smallest


def similarity(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the estimated share of equal word triples of two texts, from 0 to 1; 0 if a sketch is empty."""
    if not one or len(one) != len(other):
        return 0.0
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one)


# ---- newer documents -------------------------------------------------------------------------------------------------

LEAST_SIMILARITY = 0.35
"""Similarity from which two documents may be editions of one text."""

_MOST_EDITIONS = 60
_VERSION = re.compile(
    r"(?<![^\W_])(?:v|ver|version|rev|revision)[ ._-]?(\d{1,4}(?:[._]\d{1,4}){0,2})(?![^\W_])", re.IGNORECASE
)
_STAGES = {"draft": 0, "entwurf": 0, "old": 0, "alt": 0, "final": 2, "endfassung": 2, "signed": 2, "new": 2, "neu": 2}
_PLAIN_YEAR = re.compile(rf"(?<!\d){_YEAR}(?!\d)")
_COPY = re.compile(
    r"\(\d{1,2}\)|(?<![^\W_])(?:copy|kopie|final|draft|entwurf|endfassung|signed|old|new|alt|neu)(?![^\W_])",
    re.IGNORECASE,
)


class _Edition(NamedTuple):
    """What a name says about an edition: the name without it, and what orders it; None if it says nothing."""

    base: str
    version: tuple[int, ...] | None
    stage: int | None
    day: str | None


def _edition(name: str) -> _Edition:
    """Read a file name without its extension, or a title."""
    text = name[:_LONGEST_LINE]
    versions = [tuple(map(int, re.split("[._]", match[1]))) for match in _VERSION.finditer(text)]
    text = _VERSION.sub(" ", text)
    days = [_day(*match.groups()) for match in _IN_NAME.finditer(text)] + dates_in(text)
    text = _DATE.sub(" ", _IN_NAME.sub(" ", text))
    years = _PLAIN_YEAR.findall(text)
    text = _PLAIN_YEAR.sub(" ", text)
    stages = [_STAGES[word] for word in re.findall(r"[^\W_]+", text.lower()) if word in _STAGES]
    base = " ".join(re.findall(r"[^\W_]+", _COPY.sub(" ", text).lower()))
    day = _single(days) or (f"{years[0]}-01-01" if len(set(years)) == 1 and not days else "")
    return _Edition(base, versions[0] if len(versions) == 1 else None, max(stages, default=None), day or None)


def superseded(records: Iterable[DocumentRecord]) -> dict[str, str]:
    """Return the ids of documents that a newer document supersedes, each with the id of the newest one.

    Documents are only compared if they have the same name in the same folder, or the same title, apart from versions
    and dates. If versions, words and dates contradict each other, neither is newer.
    """
    newest: dict[str, tuple[_Edition, DocumentRecord]] = {}
    for group in _groups(records):
        for edition, record in group:
            for other_edition, other in group:
                if _is_newer(other_edition, other, edition, record):
                    best = newest.get(record.doc_id)
                    if best is None or _is_newer(other_edition, other, *best):
                        newest[record.doc_id] = (other_edition, other)
    return {doc_id: other.doc_id for doc_id, (_, other) in newest.items()}


def _groups(records: Iterable[DocumentRecord]) -> Iterator[list[tuple[_Edition, DocumentRecord]]]:
    groups: dict[tuple[str, str], list[tuple[_Edition, DocumentRecord]]] = {}
    with_text = [record for record in records if record.sketch]
    keys = [(_letters(_stem(record)), _letters(_title(record))) for record in with_text]
    counts = Counter(key for pair in keys for key in enumerate(pair))
    for record, pair in zip(with_text, keys, strict=True):
        if all(counts[key] == 1 for key in enumerate(pair)):  # no other document has this name or title
            continue
        folder, by_name = record.doc_id.rpartition("/")[0], _edition(_stem(record))
        by_title = _edition(_title(record))
        if len(by_name.base) >= 3:
            groups.setdefault((f"name {folder}", by_name.base), []).append((_merged(by_name, by_title), record))
        if len(by_title.base) >= 5:
            groups.setdefault(("title", by_title.base), []).append((_merged(by_title, by_name), record))
    yield from (group for group in groups.values() if 2 <= len(group) <= _MOST_EDITIONS)


def _letters(name: str) -> str:
    """Return the words of a name that have letters, without those of versions and dates; fast, for a first selection.

    Names with the same `_Edition.base` have the same words.
    """
    return " ".join(word for word in _LETTERS.findall(name[:_LONGEST_LINE].lower()) if word not in _DROPPED)


def _title(record: DocumentRecord) -> str:
    """Return the title of a document, or "" if it has none or if the user gave it a value that is not text."""
    return record.title if isinstance(record.title, str) else ""


def _stem(record: DocumentRecord) -> str:
    """Return the file name of a document without its extension."""
    name = record.doc_id.rpartition("/")[2]
    return name.rpartition(".")[0] or name


_LETTERS = re.compile(r"[^\W\d_]+")
_DROPPED = frozenset(
    {*_NUMBER_OF_MONTH, *_STAGES, "copy", "kopie", "v", "ver", "version", "rev", "revision"}
    | {"st", "nd", "rd", "th", "er", "of", "de"}
)


def _merged(one: _Edition, other: _Edition) -> _Edition:
    version = one.version if one.version is not None else other.version
    stage = one.stage if one.stage is not None else other.stage
    return _Edition(one.base, version, stage, one.day or other.day)


def _is_newer(one: _Edition, record: DocumentRecord, other: _Edition, other_record: DocumentRecord) -> bool:
    """Return whether a document is newer than another one."""
    signs = []
    if one.version != other.version:
        signs.append((one.version or (1,)) > (other.version or (1,)))
    if one.stage != other.stage:
        signs.append((1 if one.stage is None else one.stage) > (1 if other.stage is None else other.stage))
    days = [(edition.day, each.date) for edition, each in ((one, record), (other, other_record))]
    own, others = (in_text or in_name for in_name, in_text in days)
    if own and others and own != others:
        signs.append(own > others)
    return bool(signs) and all(signs) and similarity(record.sketch, other_record.sketch) >= LEAST_SIMILARITY
