"""Words and icons for documents and places, such as "Slide 4: Costs" and "page 21 (printed 20)"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import PurePath
from typing import Any, NamedTuple

from llama_index_contextual import metadata as keys
from llama_index_contextual.readers.files import IMAGE_SUFFIXES, MARKDOWN_SUFFIXES, PDF_SUFFIXES
from llama_index_contextual.search.response import Source, visible

_ICONS = {
    **dict.fromkeys(PDF_SUFFIXES, "pdf"),
    **dict.fromkeys(MARKDOWN_SUFFIXES, "markdown"),
    **dict.fromkeys(IMAGE_SUFFIXES, "image"),
    **dict.fromkeys((".xlsx", ".xlsm", ".csv", ".tsv"), "sheet"),
    **dict.fromkeys((".pptx", ".pptm"), "slides"),
    **dict.fromkeys((".docx", ".docm"), "word"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "web"),
    ".eml": "mail",
}
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


class PlaceWords(NamedTuple):
    """The place of a passage in words.

    Attributes:
        section: The path of headings, or "".
        page: The page, sheet or slide, or "".
    """

    section: str
    page: str

    def __str__(self) -> str:
        return " · ".join(filter(None, self))


def icon_of(file_name: str | None) -> str:
    """Return the name of the icon for a file or the id of a document."""
    return _ICONS.get(suffix_of(file_name), "text")


def suffix_of(file_name: str | None) -> str:
    """Return the extension of a file in lower case, or "" if it has none."""
    return PurePath(file_name or "").suffix.lower()


def place_of(source: Source) -> PlaceWords:
    """Return the section of a passage, and its page, sheet or slide.

    Example:
        >>> place_of(Source(file_name="a.pdf", page_start=21, page_end=21, page_label="20", section="Costs > Pipes"))
        PlaceWords(section='Costs › Pipes', page='page 21 (printed 20)')
        >>> str(place_of(Source(file_name="a.pptx", page_start=4, page_end=4, page_label="4", section="Costs")))
        'Slide 4: Costs'
    """
    word = keys.page_word(source.file_name or source.doc_id or "")
    section = " › ".join(map(visible, (source.section or "").split(keys.SECTION_SEPARATOR)))
    first, last, label = source.page_start, source.page_end, visible(source.page_label or "")
    if first is None:
        return PlaceWords(section, f"{word} {label}" if label else "")
    if last not in (None, first):
        return PlaceWords("" if word == "sheet" else section, f"{word}s {first}–{last}")
    if word == "sheet":
        return PlaceWords("", f"Sheet “{label or first}”")
    if word == "slide":
        name = f"Slide {first}"
        return PlaceWords("", name if section in ("", name) else f"{name}: {section}")
    page_label = f" (printed {label})" if label not in ("", str(first)) else ""
    return PlaceWords(section, f"page {first}{page_label}")


def citation(quotation: str, file_name: str, *places: str) -> str:
    """Return a quotation with its file and its place as text to copy.

    Example:
        >>> citation("It is due.", "lease.pdf", "page 21", "")
        '“It is due.” (lease.pdf, page 21)'
    """
    return f"“{quotation}” ({', '.join(filter(None, (visible(file_name), *places)))})"


def day_of(metadata: Mapping[str, Any]) -> date | None:
    """Return the date of a document, from the first entry with the word "date" in its key, or None."""
    for key, value in metadata.items():
        if "date" in map(str.lower, _WORDS.findall(key)):
            try:
                return datetime.fromisoformat(str(value)).date()
            except ValueError:
                continue
    return None


def day_words(day: date | None) -> str:
    """Return a date in words, or "".

    Example:
        >>> day_words(date(2025, 2, 21))
        '21 February 2025'
    """
    return f"{day.day} {day:%B %Y}" if day else ""


def date_of(metadata: Mapping[str, Any]) -> str:
    """Return the date of a document in words, from the first entry with the word "date" in its key, or "".

    Example:
        >>> date_of({"mail_date": "2025-02-21T10:20:00+00:00"}), date_of({"updated": "2025-02-21"})
        ('21 February 2025', '')
    """
    return day_words(day_of(metadata))
