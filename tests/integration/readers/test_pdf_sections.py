"""Headings are recognised by style, numbering, tables of contents and running headers; other lines are not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import DocumentMap, Heading
from llama_index_contextual.readers.pdf.engine import OutlineEntry
from llama_index_contextual.readers.pdf.outline import PlacedLine
from llama_index_contextual.readers.pdf.sections import headings

PROSE = "The Seller delivers the goods to the place that the Buyer names in its order, at the cost of the Buyer alone"
WIDTH = 500.0


@dataclass(frozen=True)
class Row:
    """A line to print."""

    text: str
    size: float = 10.0
    bold: bool = False
    cells: int = 1
    gap: float = 1.2
    centred: bool = False


def body(count: int = 3) -> list[Row]:
    return [*(Row(PROSE, gap=2.0 if at == 0 else 1.2) for at in range(count)), Row("and at its risk.")]


def bold(text: str, *, gap: float = 2.0, centred: bool = False) -> Row:
    return Row(text, bold=True, gap=gap, centred=centred)


def placed(*pages: Sequence[Row]) -> list[list[PlacedLine]]:
    """Print the rows below each other, from x = 50 to 550."""
    out, start = [], 0
    for rows in pages:
        lines: list[PlacedLine] = []
        y = 780.0
        for row in rows:
            y -= row.gap * row.size
            width = min(WIDTH, 5.0 * len(row.text))
            x0 = 50.0 + (WIDTH - width) / 2 if row.centred else 50.0
            end = " " if row.text == PROSE else "\n"
            lines.append(PlacedLine(row.text, start, y, end, row.cells, x0, x0 + width, row.size, row.bold))
            start += len(row.text) + 1
        out.append(lines)
    return out


def found(*pages: Sequence[Row], headers: Sequence[Sequence[str]] = (), title: Heading | None = None) -> list[str]:
    return [heading.title for heading in headings([], placed(*pages), headers=headers, title=title)]


def paths(*pages: Sequence[Row], headers: Sequence[Sequence[str]] = ()) -> list[str | None]:
    """The section of the end of each page."""
    lines = placed(*pages)
    where = DocumentMap(headings=headings([], lines, headers=headers))
    return [where.section(page[-1].start) for page in lines]


@pytest.mark.parametrize(
    "line",
    [
        Row("Results of Operations", size=14),
        bold("Results of Operations"),
        bold("RESULTS OF OPERATIONS", centred=True),
        Row("RESULTS OF OPERATIONS", gap=2.0, centred=True),
        bold("PART II"),
        Row("Item 7. Management’s Discussion and Analysis", gap=2.0),
        Row("ARTICLE IV – REPRESENTATIONS", gap=2.0),
        Row("SECTION 5 MISCELLANEOUS", gap=2.0),
        Row("Note 12 — Leases", gap=2.0),
        Row("§ 4 Haftung", gap=2.0),
        bold("3.2 Term of the Agreement"),
    ],
)
def test_a_line_that_looks_like_a_heading_is_one(line: Row) -> None:
    assert found([*body(), line, *body()]) == [line.text]


@pytest.mark.parametrize(
    "line",
    [
        Row("Section 4.2 of this Agreement, the Seller shall deliver the goods"),
        Row("Item 7 and the notes to the statements"),
        Row("1. The Seller shall deliver the goods.", gap=2.0),
        Row("(a) to pay the price;", gap=2.0),
        bold(
            "The goods are delivered; the Buyer pays them at once and without any deduction, set-off or counterclaim,"
        ),
        bold("42"),
        bold("December 31, 2022"),
        bold("Years Ended December 31, 2022 and 2021"),
        bold("(in millions)"),
        bold("New York, NY 10001"),
        bold("By: ____________"),
        bold("ACME HOLDINGS, INC."),
        bold("www.example.com"),
        Row("Net sales 17,018 14,581", bold=True, cells=3),
        Row("13 Weeks Ended 52 Weeks Ended", bold=True, cells=2),
    ],
)
def test_a_line_of_another_kind_is_not_a_heading(line: Row) -> None:
    assert found([*body(), line, *body()]) == []


def test_a_run_in_heading_ends_before_its_text() -> None:
    rows = [
        Row(f"{number}. {title}. {PROSE}", gap=2.0)
        for number, title in enumerate(["Sale of Goods", "Price", "Term"], 1)
    ]

    assert found([*body(), *rows]) == ["1. Sale of Goods", "2. Price", "3. Term"]


def test_a_number_without_others_is_not_a_heading() -> None:
    assert found([*body(), Row(f"7. Sale of Goods. {PROSE}", gap=2.0), *body()]) == []


def test_items_of_a_list_are_not_headings() -> None:
    rows = [Row(f"{number}. {fruit}") for number, fruit in enumerate(["Apples", "Pears", "Plums", "Quinces"], 1)]

    assert found([*body(), *rows, *body()]) == []


def test_labels_in_a_table_are_not_headings() -> None:
    rows = [
        bold("Assets"),
        Row("Cash 100 120", cells=3),
        bold("Current Liabilities", gap=1.2),
        Row("Debt 20 30", cells=3),
    ]

    assert found([*body(), *rows, *body()]) == []


def test_the_cells_of_a_column_head_are_not_headings() -> None:
    rows = [bold("Reported"), bold("Change", gap=1.2), bold("Measure", gap=1.2), Row("Europe 12 8 4", cells=4)]

    assert found([*body(), *rows, *body()]) == []


def test_a_heading_of_two_lines_is_one_heading() -> None:
    rows = [
        bold("Item 5. Market for the Registrant’s Common Equity, Related Stockholder Matters and Issuer Purchases of"),
        bold("Equity Securities", gap=1.2),
    ]

    assert found([*body(), *rows, *body()]) == [" ".join(row.text for row in rows)]


def test_a_number_and_the_title_below_it_are_one_heading() -> None:
    rows = [bold("ARTICLE II", centred=True), bold("SALE OF GOODS", gap=1.2, centred=True)]

    assert found([*body(), *rows, *body()]) == ["ARTICLE II SALE OF GOODS"]


def test_numbering_decides_the_level_even_against_the_size() -> None:
    pages = [
        [*body(), bold("PART I"), bold("Item 1. Business"), Row("Overview", size=16), *body()],
        [bold("Note 1 – Policies"), *body(), bold("Leases"), *body()],
        [bold("Item 2. Properties"), *body()],
        [bold("PART II"), *body()],
    ]

    assert paths(*pages) == [
        "PART I > Item 1. Business > Overview",
        "PART I > Item 1. Business > Overview > Note 1 – Policies > Leases",
        "PART I > Item 2. Properties",
        "PART II",
    ]


def test_a_decimal_number_is_below_its_first_part() -> None:
    pages = [
        [*body(), bold("1. Sale"), *body(), bold("1.1 Goods"), *body(), bold("1.1.1 Quality"), *body()],
        [bold("2. Price"), *body(), bold("2.1 Payment"), *body()],
    ]

    assert paths(*pages) == ["1. Sale > 1.1 Goods > 1.1.1 Quality", "2. Price > 2.1 Payment"]


def test_a_decimal_number_is_not_below_another_first_part() -> None:
    pages = [[*body(), bold("9. Secrecy"), *body()], [bold("10.1 Operation"), *body()], [bold("10.2 Hours"), *body()]]

    assert paths(*pages) == ["9. Secrecy", "10.1 Operation", "10.2 Hours"]


def test_entries_of_a_table_of_contents_are_not_headings_but_confirm_them() -> None:
    titles = ["Our history", "People and culture", "Sites and plants", "What we plan", "Thanks to all"]
    contents = [bold("CONTENTS"), *(Row(f"{title} {at + 3}", cells=2) for at, title in enumerate(titles))]
    pages = [contents, *([*body(), Row(title, gap=2.0), *body()] for title in titles)]

    assert found([*body()], *pages) == ["CONTENTS", *titles]


def test_a_list_of_exhibits_is_not_a_row_of_headings() -> None:
    rows = [
        Row(f"Exhibit {letter} – {name}", gap=2.0)
        for letter, name in zip("ABC", ["Fees", "Sites", "Marks"], strict=True)
    ]

    assert found([*body(), bold("1. Sale"), *body(), *rows]) == ["1. Sale"]


def test_an_attachment_in_the_middle_does_not_end_the_numbering() -> None:
    pages = [
        [*body(), bold("ARTICLE I"), *body(), bold("Schedule 1"), *body()],
        [bold("ARTICLE II"), *body(), bold("Schedule 2"), *body()],
    ]

    assert paths(*pages) == ["ARTICLE I", "Schedule 2"]


def test_a_continued_heading_is_not_repeated() -> None:
    pages = [[*body(), bold("Note 5 – Debt"), *body()], [bold("Note 5 – Debt (continued)"), *body()]]

    assert found(*pages) == ["Note 5 – Debt"]


def test_the_signatures_end_the_last_section_and_names_in_them_are_not_headings() -> None:
    page = [*body(), bold("9. General"), *body(), Row(f"IN WITNESS WHEREOF, {PROSE}", gap=2.0), bold("ACME GROUP")]

    assert found(page) == ["9. General", "In Witness Whereof"]
    assert paths(page) == ["In Witness Whereof"]


def test_running_headers_name_the_section_where_the_text_does_not() -> None:
    pages = [body() for _ in range(8)]
    headers = [["PART I", "Item 1"]] * 3 + [["PART I", "Item 1A"]] * 3 + [["PART II", "Item 7"]] * 2

    assert paths(*pages, headers=headers) == [
        *["PART I > Item 1"] * 3,
        *["PART I > Item 1A"] * 3,
        *["PART II > Item 7"] * 2,
    ]


def test_running_headers_add_nothing_to_headings_of_the_text() -> None:
    pages = [[bold("PART I"), bold("Item 1. Business"), *body()], body(), body()]

    assert found(body(), *pages, headers=[[], *[["PART I", "Item 1"]] * 3]) == ["PART I", "Item 1. Business"]


def test_running_headers_that_change_with_the_chapter_name_it_and_the_name_of_the_document_does_not() -> None:
    chapters = ["Risk Management"] * 4 + ["Consolidated Accounts"] * 4 + ["Glossary of Terms"] * 4
    headers = [["Annual Report"] if at % 2 else [chapter] for at, chapter in enumerate(chapters)]
    headers = [
        [*header, chapter] if header == ["Annual Report"] else header
        for header, chapter in zip(headers, chapters, strict=True)
    ]

    assert paths(*(body() for _ in chapters), headers=headers) == chapters


def test_few_bookmarks_are_supplemented() -> None:
    pages = placed(
        [
            bold("Business"),
            *body(),
            *(row for at in range(6) for row in (bold(f"Topic {'ABCDEF'[at]} Today"), *body())),
        ],
        [bold("Risks"), *body()],
    )
    marks = [OutlineEntry("Business", 1, 0), OutlineEntry("Risks", 1, 1)]
    where = DocumentMap(headings=headings(marks, pages))

    assert where.section(pages[0][-1].start) == "Business > Topic F Today"
    assert where.section(pages[1][-1].start) == "Risks"


def test_bookmarks_that_suffice_are_taken_as_they_are() -> None:
    pages = placed([bold("Business"), *body(), bold("Sites"), *body()], [bold("Risks"), *body()])
    marks = [OutlineEntry("Business", 1, 0), OutlineEntry("Risks", 1, 1)]

    assert [heading.title for heading in headings(marks, pages)] == ["Business", "Risks"]


def test_flat_bookmarks_take_their_levels_from_their_numbers() -> None:
    titles = ["Part I", "Item 1. Business", "Products", "Item 2. Properties", "Part II"]
    pages = placed(*([bold(title), *body()] for title in titles))
    found = headings([OutlineEntry(title, 1, at) for at, title in enumerate(titles)], pages)

    assert [heading.level for heading in found] == [1, 2, 3, 2, 1]


def test_the_title_holds_what_comes_before_the_first_heading_and_nothing_more() -> None:
    pages = placed([bold("SUPPLY AGREEMENT", centred=True), *body(), bold("1. Sale"), *body()])
    found = headings([], pages, title=Heading(0, 1, "SUPPLY AGREEMENT"))

    assert DocumentMap(headings=found).section(pages[0][2].start) == "SUPPLY AGREEMENT"
    assert DocumentMap(headings=found).section(pages[0][-1].start) == "1. Sale"


LINES = st.builds(
    PlacedLine,
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


@given(
    st.lists(st.lists(LINES, max_size=12), max_size=5),
    st.lists(st.lists(st.sampled_from(["Item 2", "X y", ""]), max_size=2)),
)
def test_headings_are_lines_in_the_order_of_the_text(drawn: list[list[PlacedLine]], headers: list[list[str]]) -> None:
    pages, start = [], 0
    for lines in drawn:
        pages.append([])
        for line in lines:
            pages[-1].append(line._replace(start=start))
            start += len(line.text) + 1
    found = headings([], pages, headers=headers)

    starts = [heading.start for heading in found]
    assert starts == sorted(starts)
    assert set(starts) <= {line.start for lines in pages for line in lines}
    assert all(heading.level >= 1 and heading.title for heading in found)


@pytest.mark.parametrize("text", ["1. " * 600, "A" * 1_900, "(a) " * 400, "December " * 200, "Item 1. " + "a." * 500])
def test_long_lines_take_no_longer_than_their_length(text: str) -> None:
    pages = placed(*([Row(text.strip(), bold=True)] * 20 for _ in range(20)))
    started = time.thread_time()
    headings([], pages)

    assert time.thread_time() - started < 10
