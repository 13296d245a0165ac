"""Bookmarks are found in the text."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.pdf.pages import OutlineEntry
from llama_index_contextual.readers.pdf.sections import bookmarks, headings
from llama_index_contextual.readers.pdf.title import document_title
from tests.unit.readers.examples import sections


def placed(*pages: list[str]) -> list[list[Line]]:
    out, start = [], 0
    for texts in pages:
        lines = []
        for at, text in enumerate(texts):
            lines.append(Line(text, 700.0 - 12 * at, start=start))
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


@pytest.mark.parametrize(
    ("title", "top", "line"),
    [
        ("1. Resultz", None, "1 Results"),  # the most similar line of the page
        ("Something quite different", 680, "1.1 Costs"),  # the first line below the point
        ("Something quite different", None, "Report"),  # the top of the page
    ],
)
def test_a_bookmark_without_its_title_finds_the_nearest_line(title: str, top: int | None, line: str) -> None:
    page = ["Report", "1 Results", "1.1 Costs", "Costs fell."]

    assert starts([OutlineEntry(title, 1, 0, top=top)], page) == ["\n".join(page).index(line)]


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
    page = [[Line("Body"), Line("More", start=5)]]

    assert bookmarks([OutlineEntry("Odd", 1, 0, top=300)], page) == [Heading(0, 1, "Odd")]


def test_signs_alone_are_no_match_for_everything() -> None:
    assert starts([OutlineEntry("***", 1, 0, top=690)], ["Body", "More"]) == [5]


@pytest.mark.parametrize("titles", [["Page 1", "Page 2", "Page 3"], ["i", "ii", "1"], ["a.pdf", "B 2.docx", "Term"]])
def test_bookmarks_that_name_pages_or_files_are_not_headings(titles: list[str]) -> None:
    outline = [OutlineEntry(title, 1, page) for page, title in enumerate(titles)]

    assert bookmarks(outline, placed(["Body"], ["Body"], ["Body"])) == []


# ---- the title of a PDF is what its first page states; metadata counts where the page states nothing else ------------


BODY = "Running text that fills the page from the left edge to the right one and says nothing else."


def page(*lines: str, large: int = 0) -> list[Line]:
    """A page whose first `large` lines are set in a larger size."""
    out, start = [], 0
    for at, text in enumerate(lines):
        out.append(Line(text, 700.0 - 20 * at, 20.0 if at < large else 10.0, start=start))
        start += len(text) + 1
    return out


def title(*lines: str, large: int = 0, stored: str | None = None) -> str | None:
    return document_title([page(*lines, BODY, BODY, large=large)], stored)[0]


@pytest.mark.parametrize("example", [example for examples in sections("pdf_title").values() for example in examples])
def test_contracts_are_named_by_kind_parties_and_date(example: str) -> None:
    lines, _, expected = example.rpartition("\n=> ")
    assert title(*lines.split("\n")) == expected


def test_the_largest_lines_name_another_document() -> None:
    lines = ("Alpha Announces Fourth Quarter", "Results for 2022; Raises Outlook", "March 9, 2023")

    assert title(*lines, large=2) == "Alpha Announces Fourth Quarter Results for 2022; Raises Outlook"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("Annual Report of Alpha", "Annual Report of Alpha"),  # says more about the same
        ("Template for letters", "Alpha Annual Report"),  # another document
        (None, "Alpha Annual Report"),
    ],
)
def test_metadata_counts_unless_the_page_contradicts(stored: str | None, expected: str) -> None:
    assert title("Alpha Annual Report", large=1, stored=stored) == expected


def test_without_a_title_on_the_page_the_metadata_count() -> None:
    assert title(stored="Minutes of May") == "Minutes of May"
    assert title() is None
    assert document_title([], "Minutes of May") == ("Minutes of May", None)


@given(
    st.lists(st.text(min_size=1, max_size=80).map(str.strip).filter(bool), max_size=8), st.text(max_size=20) | st.none()
)
def test_any_first_page_gives_a_title_or_none(lines: list[str], stored: str | None) -> None:
    found, heading = document_title([page(*lines, large=1)], stored)

    assert found is None or found == stored or 0 < len(found) <= 200
    assert heading is None or heading.title


# ---- headings are recognised by style, numbering and tables of contents; other lines are not ------------------------


PROSE = "The Seller delivers the goods to the place that the Buyer names in its order, at the cost of the Buyer alone"
WIDTH = 500.0
BODY_ROWS = f"apart | {PROSE}\n{PROSE}\n{PROSE}\nand at its risk."


def row(line: str, start: int, y: float) -> Line:
    """Print a line of an example from x = 50 to 550; `y` is the height of the line above."""
    words, _, text = line.rpartition(" | ")
    text = text.replace("{prose}", PROSE)
    options = dict(word.partition("=")[::2] for word in words.split())
    size = float(options.get("size", 10))
    y -= (1.2 if "close" in options or not {"bold", "apart"} & {*options} else 2.0) * size
    width = min(WIDTH, 5.0 * len(text))
    x0 = 50.0 + (WIDTH - width) / 2 if "centred" in options else 50.0
    end = " " if text == PROSE else "\n"
    return Line(text, y, size, int(options.get("cells", 1)), x0, x0 + width, "bold" in options, start, end)


def printed(text: str) -> list[list[Line]]:
    """Print the pages of an example."""
    pages, start = [], 0
    for page in text.replace("{body}", BODY_ROWS).split("---- page\n"):
        lines: list[Line] = []
        for line in page.strip("\n").split("\n"):
            lines.append(row(line, start, lines[-1].y if lines else 780.0))
            start += len(lines[-1].text) + 1
        pages.append(lines)
    return pages


def found(text: str) -> list[str]:
    return [heading.title for heading in headings([], printed(text))]


def paths(text: str) -> list[str | None]:
    """The section of the end of each page."""
    lines = printed(text)
    where = DocumentMap(headings=headings([], lines))
    return [where.section(page[-1].start) for page in lines]


EXAMPLES = sections("pdf_sections")


@pytest.mark.parametrize("line", EXAMPLES["lines that are headings"][0].split("\n"))
def test_a_line_that_looks_like_a_heading_is_one(line: str) -> None:
    assert found(f"{{body}}\n{line}\n{{body}}") == [line.rpartition(" | ")[2]]


@pytest.mark.parametrize("line", EXAMPLES["lines that are not headings"][0].split("\n"))
def test_a_line_of_another_kind_is_not_a_heading(line: str) -> None:
    assert found(f"{{body}}\n{line}\n{{body}}") == []


@pytest.mark.parametrize("name", [name for name in EXAMPLES if ": " in name])
def test_the_headings_and_sections_of_pages_are_those_of_the_example(name: str) -> None:
    text, expected = EXAMPLES[name]
    assert (found if name.startswith("headings") else paths)(text) == (expected.split("\n") if expected else [])


def test_few_bookmarks_are_supplemented() -> None:
    topics = "".join(f"bold | Topic {letter} Today\n{{body}}\n" for letter in "ABCDEF")
    pages = printed(f"bold | Business\n{{body}}\n{topics}---- page\nbold | Risks\n{{body}}")
    marks = [OutlineEntry("Business", 1, 0), OutlineEntry("Risks", 1, 1)]
    where = DocumentMap(headings=headings(marks, pages))

    assert where.section(pages[0][-1].start) == "Business > Topic F Today"
    assert where.section(pages[1][-1].start) == "Risks"


def test_bookmarks_that_suffice_are_taken_as_they_are() -> None:
    pages = printed("bold | Business\n{body}\nbold | Sites\n{body}\n---- page\nbold | Risks\n{body}")
    marks = [OutlineEntry("Business", 1, 0), OutlineEntry("Risks", 1, 1)]

    assert [heading.title for heading in headings(marks, pages)] == ["Business", "Risks"]


def test_the_title_holds_what_comes_before_the_first_heading_and_nothing_more() -> None:
    pages = printed("bold centred | SUPPLY AGREEMENT\n{body}\nbold | 1. Sale\n{body}")
    found = headings([], pages, title=Heading(0, 1, "SUPPLY AGREEMENT"))

    assert DocumentMap(headings=found).section(pages[0][2].start) == "SUPPLY AGREEMENT"
    assert DocumentMap(headings=found).section(pages[0][-1].start) == "1. Sale"


LINES = st.builds(
    Line,
    text=st.one_of(
        st.text(min_size=1, max_size=60).map(str.strip).filter(bool),
        st.sampled_from(
            ["PART I", "Item 1. A", "1.1 Foo", "(a) Bar", "Contents", "A 1", "IN WITNESS WHEREOF", "Exhibit A", "§ 1"]
        ),
    ),
    start=st.just(0),
    y=st.floats(allow_nan=True, allow_infinity=False, width=32),
    end=st.sampled_from(["\n", " "]),
    cells=st.integers(1, 4),
    x0=st.floats(-1e3, 1e3),
    x1=st.floats(-1e3, 1e3),
    size=st.floats(0, 100),
    bold=st.booleans(),
)


@given(st.lists(st.lists(LINES, max_size=12), max_size=5))
def test_headings_are_lines_in_the_order_of_the_text(drawn: list[list[Line]]) -> None:
    pages, start = [], 0
    for lines in drawn:
        pages.append([])
        for line in lines:
            pages[-1].append(replace(line, start=start))
            start += len(line.text) + 1
    found = headings([], pages)

    starts = [heading.start for heading in found]
    assert starts == sorted(starts)
    assert set(starts) <= {line.start for lines in pages for line in lines}
    assert all(heading.level >= 1 and heading.title for heading in found)


@pytest.mark.parametrize("text", ["1. " * 600, "A" * 1_900, "(a) " * 400, "December " * 200, "Item 1. " + "a." * 500])
def test_long_lines_take_no_longer_than_their_length(text: str) -> None:
    pages = printed("\n---- page\n".join([f"bold close | {text.strip()}\n" * 20] * 20))
    started = time.thread_time()
    headings([], pages)

    assert time.thread_time() - started < 10
