"""Bookmarks are found in the text."""

from __future__ import annotations

import math

import pytest

from llama_index_contextual.metadata import Heading
from llama_index_contextual.readers.pdf.engine import OutlineEntry
from llama_index_contextual.readers.pdf.outline import PlacedLine, bookmarks


def placed(*pages: list[str]) -> list[list[PlacedLine]]:
    out, start = [], 0
    for texts in pages:
        lines = []
        for at, text in enumerate(texts):
            lines.append(PlacedLine(text, start, 700.0 - 12 * at))
            start += len(text) + 1
        out.append(lines)
    return out


def starts(outline: list[OutlineEntry], *pages: list[str]) -> list[int]:
    return [heading.start for heading in bookmarks(outline, placed(*pages))]


def test_case_spaces_and_punctuation_do_not_matter() -> None:
    assert starts([OutlineEntry("2.1  Term & Termination", 1, 0)], ["Intro", "2.1 TERM & TERMINATION. This"]) == [6]


def test_a_title_that_occurs_twice_is_found_at_the_height_of_the_bookmark() -> None:
    page = ["Term", "Body of the section", "Term", "Body"]

    assert starts([OutlineEntry("Term", 1, 0, top=690)], page) == [len("Term\nBody of the section\n")]
    assert starts([OutlineEntry("Term", 1, 0)], page) == [0]


def test_a_title_over_several_lines_is_found_at_its_first() -> None:
    page = ["Article 4", "Representations and", "Warranties of the Seller", "Body"]

    assert starts([OutlineEntry("Representations and Warranties of the Seller", 1, 0)], page) == [10]


def test_headings_come_in_the_order_of_the_text_and_keep_their_levels() -> None:
    outline = [OutlineEntry("Annex", 1, 1), OutlineEntry("Term", 1, 0), OutlineEntry("Notice", 2, 0)]

    assert bookmarks(outline, placed(["Term", "Notice"], ["Annex"])) == [
        Heading(0, 1, "Term"),
        Heading(5, 2, "Notice"),
        Heading(12, 1, "Annex"),
    ]


def test_bookmarks_without_a_title_or_a_page_with_text_are_left_out() -> None:
    outline = [OutlineEntry("  ", 1, 0), OutlineEntry("Term", 1, 7), OutlineEntry("Term", 1, 1)]

    assert bookmarks(outline, placed(["Term"], [])) == []


def test_lines_of_unknown_height_do_not_disturb() -> None:
    page = [[PlacedLine("Body", 0, math.nan), PlacedLine("More", 5, math.nan)]]

    assert bookmarks([OutlineEntry("Odd", 1, 0, top=300)], page) == [Heading(0, 1, "Odd")]


def test_signs_alone_are_no_match_for_everything() -> None:
    assert starts([OutlineEntry("***", 1, 0, top=690)], ["Body", "More"]) == [5]


@pytest.mark.parametrize("titles", [["Page 1", "Page 2", "Page 3"], ["i", "ii", "1"], ["a.pdf", "B 2.docx", "Term"]])
def test_bookmarks_that_name_pages_or_files_are_not_headings(titles: list[str]) -> None:
    outline = [OutlineEntry(title, 1, page) for page, title in enumerate(titles)]

    assert bookmarks(outline, placed(["Body"], ["Body"], ["Body"])) == []
