"""The text of a document is shown in the form of its file, with the passage and the sentence marked."""

from __future__ import annotations

import html
import re

import pytest
from markupsafe import Markup

from llama_index_contextual.metadata import DocumentMap, Heading, Table
from llama_index_contextual.ui.texts import TextMarks, kind_of, render_text

SHEET = "# Stock\n\nPart  Price\nPump  3.50\nValve  –\n\n# Notes\n\nBefore audit."
SHEETS = DocumentMap(
    page_starts=(0, SHEET.index("# Notes")),
    page_labels=("Stock", "Notes"),
    headings=(Heading(0, 1, "Stock"), Heading(SHEET.index("# Notes"), 1, "Notes")),
    tables=(Table(SHEET.index("Part"), SHEET.index("Pump"), SHEET.index("\n\n# Notes"), "Part  Price"),),
)
SLIDES = "# Plan\n\nA new main.\n\n# Costs\n\nItem  2025\nPipes  1.2\n\nWork starts in May.  It ends in June."
DECK = DocumentMap(
    page_starts=(0, SLIDES.index("# Costs")),
    headings=(Heading(0, 1, "Plan"), Heading(SLIDES.index("# Costs"), 1, "Costs")),
    tables=(Table(SLIDES.index("Item"), SLIDES.index("Pipes"), SLIDES.index("\n\nWork"), "Item  2025"),),
)
MAIL = "Subject: Pumps\nFrom: ada@example.org\n\nDear Ben,\nFrom: here on it runs.\n\n> Does it run?"


def span(text: str, part: str) -> tuple[int, int]:
    return text.index(part), text.index(part) + len(part)


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", page)).split())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("a.xlsx", "sheet"), ("a.CSV", "sheet"), ("a.pptx", "slides"), ("a.eml", "mail"), ("a.md", "markdown")),
        *(
            ("a.docx", "blocks"),
            ("a.html", "blocks"),
            ("a.py", "code"),
            ("a.txt", "text"),
            ("a", "text"),
            (None, "text"),
        ),
    ],
)
def test_the_form_follows_the_extension(name: str | None, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_sheet_is_a_grid_whose_marked_row_is_strong() -> None:
    marks = TextMarks(span(SHEET, "Pump  3.50\nValve  –"), span(SHEET, "Pump  3.50"))
    page = render_text(SHEET, 0, "sheet", SHEETS, marks)
    assert '<th scope="col">Part</th><th scope="col">Price</th>' in page
    assert '<tr id="passage" class="spotlight"><td>Pump</td><td class="number">3.50</td></tr>' in page
    assert '<tr class="in-passage"><td>Valve</td><td></td></tr>' in page
    assert page.count("<tr><td>") == 1
    assert "<h2>Sheet “Stock”</h2>" in page
    assert "#" not in words(page)


def test_a_grid_that_begins_within_a_table_has_its_column_headers() -> None:
    at = SHEET.index("Valve")
    page = render_text(SHEET[at : at + 8], at, "sheet", SHEETS, TextMarks())
    assert words(page) == "Part Price Valve"


def test_slides_have_their_numbers_and_titles() -> None:
    marks = TextMarks(span(SLIDES, SLIDES), span(SLIDES, "Work starts in May."))
    page = render_text(SLIDES, 0, "slides", DECK, marks)
    assert page.count('<section class="slide">') == 2
    assert "Slide 2: Costs" in words(page)
    assert '<mark id="passage" class="spotlight">Work starts in May.</mark>' in page
    assert page.count("<table") == 1  # two spaces between sentences are not a row


def test_a_mail_has_its_headers() -> None:
    page = render_text(MAIL, 0, "mail", DocumentMap(), TextMarks())
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page) == [("Subject", "Pumps"), ("From", "ada@example.org")]
    assert '<p class="lines">Dear Ben,\nFrom: here on it runs.</p>' in page
    assert '<p class="lines quoted">' in page


def test_code_and_text_keep_their_characters() -> None:
    code = "if a < b:\n\tprint('x')  # y\n"
    for kind in ("code", "text"):
        page = render_text(code, 10, kind, DocumentMap(), TextMarks((10, 20), (10, 15)))
        assert html.unescape(re.sub("<[^>]+>", "", page)) == code
        assert '<mark id="passage" class="spotlight">if a </mark><span class="in-passage">&lt; b:\n</span>' in page


@pytest.mark.parametrize("kind", ["markdown", "sheet", "slides", "mail", "blocks", "code", "text"])
def test_text_is_never_markup_and_nothing_is_lost(kind: str) -> None:
    attack = "# <script>alert(1)</script>\n\n<img src=x onerror=alert(2)>  <b>\nSubject: <i>\n\n> &amp; “q”"
    where = DocumentMap((0,), ("<u>",), (Heading(0, 1, "<script>"),), (Table(40, 41, len(attack), "<s>  <a>"),))
    marks = TextMarks((3, 60), (8, 50), lambda text: Markup("<mark>{}</mark>").format(text))
    page = render_text(attack, 0, kind, where, marks)  # type: ignore[arg-type]
    assert not re.search(r"<(script|img|b|i|u|s|a)\b", page)
    shown = html.unescape(re.sub("<[^>]+>", "", page))
    for word in ("alert(1)", "onerror=alert(2)", "Subject", "“q”"):
        assert word in shown
    assert page.count('id="passage"') == 1
