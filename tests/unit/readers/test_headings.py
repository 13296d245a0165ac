"""Headings and tables of plain texts, and which lines only look so."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import Table
from llama_index_contextual.readers.files import FileAccount, FileSource, ReadLimits
from llama_index_contextual.readers.lines import Line
from llama_index_contextual.readers.tables import figure_tables, tables_in_text
from llama_index_contextual.readers.text import parse_text, plain_headings
from tests.unit.readers.examples import sections

BODY = "The landlord lets the premises to the tenant for the term that is stated below, and the tenant pays the rent."


def between_paragraphs(block: str) -> list[tuple[int, str]]:
    """Return level and title of the headings of a block between two paragraphs."""
    text = f"{BODY}\n\n{block}\n\n{BODY}\n{BODY}\n"
    found = plain_headings(text)
    for heading in found:
        assert text[heading.start :].lstrip().startswith(heading.title[:10])
        assert heading.start == 0 or text[heading.start - 1] == "\n"
    return [(heading.level, heading.title) for heading in found]


EXAMPLES = sections("headings")


@pytest.mark.parametrize("example", EXAMPLES.pop("headings")[0].split("\n"))
def test_a_heading_is_recognised(example: str) -> None:
    level, _, line = example.partition(" ")
    assert between_paragraphs(line) == [(int(level), line.strip())]


@pytest.mark.parametrize("block", [block for blocks in EXAMPLES.values() for block in blocks])
def test_what_only_looks_like_a_heading_is_none(block: str) -> None:
    assert between_paragraphs(block) == []


def test_a_keyword_and_its_title_may_stand_on_two_lines() -> None:
    assert between_paragraphs("ARTICLE IV\nREPRESENTATIONS AND WARRANTIES") == [
        (1, "ARTICLE IV REPRESENTATIONS AND WARRANTIES")
    ]
    title = "Item 7. Management’s Discussion and Analysis of Financial Condition and"
    assert between_paragraphs(f"{title}\nResults of Operations") == [(1, f"{title} Results of Operations")]


def test_levels_follow_keywords_and_numbers() -> None:
    lines = ["PART I", "ARTICLE 1", "1. Term", "1.1 Begin", "1.2.1 Notice", "ARTICLE 2", "2. Rent"]
    text = "\n\n".join(f"{line}\n\n{BODY}" for line in lines)
    assert [(h.level, h.title) for h in plain_headings(text)] == list(zip([1, 2, 3, 4, 5, 2, 3], lines, strict=True))


def test_running_headers_are_no_headings() -> None:
    page = f"ACME CORPORATION\n\n{BODY}\n\n"
    assert plain_headings(page * 2)
    assert plain_headings(page * 3) == ()


def test_a_text_in_capitals_has_no_headings_in_capitals() -> None:
    paragraphs = "\n\n".join(f"LINE {name}\n\n{BODY.upper()}" for name in ("ONE", "TWO", "SIX"))
    assert plain_headings(paragraphs) == ()


def title_of(text: str) -> str | None:
    path = Path("a.txt")
    return parse_text(FileSource(path, text.encode(), FileAccount(path, len(text), ReadLimits()))).title


def test_the_line_that_opens_the_text_is_its_title() -> None:
    assert title_of(f"\n  SUPPLY AGREEMENT\n\n{BODY}\n\n{BODY}\n\n{BODY}\n\n{BODY}") == "SUPPLY AGREEMENT"
    assert title_of(f"ARTICLE I\n\n{BODY}") is None
    assert title_of(f"{BODY}\n\nRECITALS\n\n{BODY}\n\n{BODY}\n\n{BODY}") is None


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_every_newline_counts(newline: str) -> None:
    text = f"{BODY}\n\n3.2 Lease approval\n\n{BODY}".replace("\n", newline)
    (heading,) = plain_headings(text)
    assert text[heading.start :].startswith("3.2 Lease approval")


@given(st.text(alphabet="aAIV1. \n\r\t=-é|", max_size=200))
def test_offsets_are_line_starts_in_order(text: str) -> None:
    starts = [heading.start for heading in plain_headings(text)]
    assert starts == sorted(set(starts))
    assert all(start == 0 or text[start - 1] in "\n\r" for start in starts)


# ---- tables in lines with cells, and in Markdown: where they are, and their column heads ---------------


def lines_of(page: str) -> list[Line]:
    """Return the lines of a page on which two spaces separate cells, with their offsets in the joined text."""
    lines, at = [], 0
    for line in page.split("\n"):
        cells = [cell for cell in line.split("  ") if cell.strip()]
        text = " ".join(" ".join(cell.split()) for cell in cells)
        lines.append(Line(text, start=at, cells=len(cells), x0=float(len(line) - len(line.lstrip()))))
        at += len(text) + 1
    return lines


@pytest.mark.parametrize("pattern", [(3, 2, 2), (3, 3, 1, 1), (9, 8, 7, 6, 5, 4, 3)])
def test_lines_that_may_begin_a_table_take_no_longer_than_their_number(pattern: tuple[int, ...]) -> None:
    def seconds(count: int) -> float:
        lines = [Line("Ann Alder Kern", start=15 * at, cells=pattern[at % len(pattern)]) for at in range(count)]
        start = time.process_time()
        figure_tables(lines)
        return time.process_time() - start

    assert min(seconds(16_000) for _ in range(3)) < 8 * min(seconds(4_000) for _ in range(3)) + 0.01


TABLES = sections("tables")


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_a_page_and_their_heads_are_those_of_the_example(name: str) -> None:
    page, expected = TABLES[name]
    lines = lines_of(page)
    text = "\n".join(line.text for line in lines)
    found = []
    for table in figure_tables(lines):
        first, last = text[table.body :].partition("\n")[0], text[: table.end].rpartition("\n")[2]
        found.append(f"{table.head}\nfirst: {first}\nlast: {last}")
    assert "\n".join(found) == expected


# ---- Markdown --------------------------------------------------------------------------------------------------------

PIPES = "Table 3: Fees\n\n| Service | **2023** | 2022 |\n|:--|--:|--:|\n| Copy | 2 | 1 |\n| Scan | 3 | |\n"


def test_a_markdown_table_has_its_first_line_as_head_and_the_caption_above() -> None:
    (table,) = tables_in_text(f"Some text.\n\n{PIPES}\nMore text.")
    text = f"Some text.\n\n{PIPES}\nMore text."
    assert table.head == "Table 3: Fees\nService | 2023 | 2022"
    assert text[table.start :].startswith("| Service")
    assert text[table.body :].startswith("| Copy")
    assert text[: table.end].endswith("| Scan | 3 | |")


@pytest.mark.parametrize(
    ("above", "named"),
    [
        ("**Bilanz**\n\n(in Mio. €)\n", ["Bilanz", "(in Mio. €)"]),
        ("Compte de résultat\nen milliers d'euros\n", ["Compte de résultat", "en milliers d'euros"]),
        ("Sales\n31.12.2023\n", ["Sales", "31.12.2023"]),
        ("# Sales\nin thousands\n", ["in thousands"]),
        ("- in thousands\n", []),
        ("in thousands\n\n\n", []),
        ("A sentence about millions of people.\n", []),
        ("Sales\n", []),
    ],
)
def test_the_lines_above_a_markdown_table_that_name_its_unit_are_in_its_head(above: str, named: list[str]) -> None:
    (table,) = tables_in_text(f"Some text.\n\n{above}{PIPES.partition('Fees')[2].lstrip()}")
    assert table.head.splitlines() == [*named, "Service | 2023 | 2022"]


@pytest.mark.parametrize(
    "text",
    [
        "a | b\nc | d\n",  # no row of hyphens
        "| a | b |\n|---|---|\n",  # no rows
        "|   |   |\n|---|---|\n| 1 | 2 |\n",  # an empty head
        "x = a | b\n---\ny = c | d\n",
    ],
)
def test_pipes_alone_are_no_table_with_a_head(text: str) -> None:
    assert tables_in_text(text) == []


def test_tables_in_code_are_left_out() -> None:
    text = f"```\n{PIPES}```\n\n{PIPES}"
    assert [table.start for table in tables_in_text(text)] == [text.rindex("| Serv")]


# ---- any text --------------------------------------------------------------------------------------------------------


@given(st.text(alphabet="|-: \n\taB12,.$%)(—", max_size=400))
def test_tables_of_any_text_are_in_order_within_it_and_have_a_head(text: str) -> None:
    tables = tables_in_text(text)
    end = 0
    for table in tables:
        assert end <= table.start < table.body < table.end <= len(text)
        assert table.head.strip()
        assert not text[table.body].isspace()
        end = table.end


@given(st.lists(st.tuples(st.text(alphabet="aB 12,$%—:.", min_size=1, max_size=30), st.integers(1, 4)), max_size=30))
def test_tables_of_any_lines_are_in_order_and_have_a_head(given_lines: list[tuple[str, int]]) -> None:
    lines, at = [], 0
    for text, cells in given_lines:
        lines.append(Line(text, start=at, cells=cells))
        at += len(text) + 1
    end = 0
    for table in figure_tables(lines):
        assert isinstance(table, Table)
        assert end <= table.start < table.body < table.end <= at
        end = table.end
