"""The reading order of a page, where the positions of the text refute the stored order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.pdf_files import RawPdf, lines, pdf_of, read_pdf, show

LEFT, TOP, STEP, WIDTH = 50.0, 740.0, 18.0, 110.0
WORDS = ["pump", "valve", "gauge", "crane", "rope", "winch", "motor", "switch", "hinge", "cable", "piston", "filter"]
Cell = tuple[int, int]  # row and column
PARAGRAPH = [
    "the committee reviewed the annual report",
    "of the harbour office and noted that the",
    "dredging of the east basin was late and",
    "therefore decided to ask for a new plan",
    "and to withhold the second payment until",
    "the contractor shows how it will be done",
]


def text_of(path: Path, *pages: bytes) -> str:
    path.write_bytes(pdf_of(pages).data())
    return read_pdf(path).text


def by_rows(rows: int, columns: int, chance: random.Random) -> list[Cell]:
    return [(row, column) for row in range(rows) for column in range(columns)]


def by_columns(rows: int, columns: int, chance: random.Random) -> list[Cell]:
    return [(row, column) for column in range(columns) for row in range(rows)]


def upwards(rows: int, columns: int, chance: random.Random) -> list[Cell]:
    return [(row, column) for row in reversed(range(rows)) for column in range(columns)]


def at_random(rows: int, columns: int, chance: random.Random) -> list[Cell]:
    return chance.sample(by_rows(rows, columns, chance), rows * columns)


def table(chance: random.Random, rows: int, columns: int) -> list[list[str]]:
    head = [f"{chance.choice(WORDS)} {chance.choice(WORDS)}" for _ in range(columns)]
    body = [
        [
            f"{chance.choice(WORDS)} {chance.choice(WORDS)}",
            *(f"{chance.randrange(1, 9999):,}" for _ in range(columns - 1)),
        ]
        for _ in range(rows - 1)
    ]
    return [head, *body]


def rules(rows: int, columns: int) -> bytes:
    right, bottom = LEFT - 4 + WIDTH * columns, TOP + 12 - STEP * rows
    level = [(LEFT - 4, TOP + 12 - STEP * row, right, TOP + 12 - STEP * row) for row in range(rows + 1)]
    upright = [(LEFT - 4 + WIDTH * at, bottom, LEFT - 4 + WIDTH * at, TOP + 12) for at in range(columns + 1)]
    return b"".join(b"%g %g m %g %g l S\n" % line for line in [*level, *upright])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("order", [by_rows, by_columns, upwards, at_random])
@pytest.mark.parametrize("is_ruled", [False, True])
def test_a_table_comes_back_row_by_row(
    tmp_path: Path, seed: int, order: Callable[..., list[Cell]], is_ruled: bool
) -> None:
    chance = random.Random(seed)
    pages, expected = [], []
    for _ in range(2):
        rows, columns = chance.randint(4, 12), chance.randint(2, 4)
        cells = table(chance, rows, columns)
        drawn = (show(LEFT + WIDTH * c, TOP - STEP * r, cells[r][c]) for r, c in order(rows, columns, chance))
        pages.append((rules(rows, columns) if is_ruled else b"") + b"".join(drawn))
        expected += [" ".join(row) for row in cells]

    assert text_of(tmp_path / "table.pdf", *pages).splitlines() == expected


HEADS = {
    "figures": ["Company", "Town", "Employees", "Paid"],
    "dates": ["Company", "Town", "Notice date", "Effective date"],
    "words": ["Company", "Town", "Reason", "County"],
}


def record(kind: str, number: int, chance: random.Random) -> list[str]:
    """Return a row whose last two cells are of this kind."""
    days = [f"{chance.randint(1, 12):02d}/{chance.randint(1, 28):02d}/2016" for _ in range(2)]
    figures = [f"{chance.randint(1, 999)}", f"{chance.randint(1000, 9999):,}"]
    words = [chance.choice(["Closure permanent", "Layoff temporary"]), chance.choice(["Alameda", "Kern"])]
    rest = {"figures": figures, "dates": days, "words": words}[kind]
    return [f"{chance.choice(WORDS).title()} Works {number}", chance.choice(["San Jose", "Fresno", "Irvine"]), *rest]


@pytest.mark.parametrize("order", [by_rows, by_columns, upwards])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("is_ruled", [False, True])
@pytest.mark.parametrize("has_heads", [False, True], ids=["head on the first page", "head on every page"])
def test_every_row_of_a_table_over_pages_has_the_column_heads(
    tmp_path: Path, order: Callable[..., list[Cell]], kind: str, is_ruled: bool, has_heads: bool
) -> None:
    chance = random.Random(4)
    records = [record(kind, number, chance) for number in range(27)]
    pages = []
    for at in range(0, 27, 10):
        rows = [*([HEADS[kind]] if has_heads or not at else []), *records[at : at + 10]]
        drawn = (show(LEFT + WIDTH * c, TOP - STEP * r, rows[r][c]) for r, c in order(len(rows), 4, chance))
        pages.append((rules(len(rows), 4) if is_ruled else b"") + b"".join(drawn))
    path = tmp_path / "table.pdf"
    path.write_bytes(pdf_of([show(50, 775, "Notices of the year", size=14) + pages[0], *pages[1:]]).data())
    parsed = read_pdf(path)
    (table,) = parsed.map.tables

    assert table.head.splitlines()[-1] == " ".join(HEADS[kind])
    for row in records:
        assert (
            table.body <= parsed.text.index(" ".join(row) + "\n" if row != records[-1] else " ".join(row)) < table.end
        )


def ruled(cells: Sequence[Sequence[Sequence[str]]], heights: Sequence[float]) -> Iterator[bytes]:
    """Draw a table whose cells have several lines, each row as high as given, and each cell in the middle."""
    top = TOP
    for row, height in zip(cells, heights, strict=True):
        for column, texts in enumerate(row):
            x = LEFT + 160 * column
            yield b"%g %g 160 %g re S\n" % (x - 4, top - height, height)
            first = top - height / 2 + 6 * len(texts) - 10
            yield lines(texts, top=first, x=x, step=12)
        top -= height


def test_wrapped_cells_between_rules_are_one_row(tmp_path: Path) -> None:
    cells = [
        [["Grade"], ["Conditions"], ["Allowance"]],
        [["A"], ["Staff with more than ten", "years of service who", "work at night"], ["400"]],
        [["B"], ["Staff who work only", "by day"], ["250"]],
    ]

    assert text_of(tmp_path / "table.pdf", b"".join(ruled(cells, [20, 44, 32]))).splitlines() == [
        "Grade Conditions Allowance",
        "A Staff with more than ten years of service who work at night 400",
        "B Staff who work only by day 250",
    ]


@pytest.mark.parametrize("order", [by_rows, by_columns, upwards])
def test_rows_without_rules_between_them_are_apart_below_ruled_heads(
    tmp_path: Path, order: Callable[..., list[Cell]]
) -> None:
    cells = [
        [["Work"], ["Hours"], ["Parts"], ["Remark"]],
        [["Wiring"], ["Up to 79 hours at the", "usual rate"], ["Up to 3,790"], ["Agreed in May"]],
        [["Sensor test"], ["One day"], ["None"], ["By the owner"]],
        [["Software"], ["Half a day"], ["None"], ["By the maker"]],
    ]
    tops = [740, 720, 696, 684]
    drawn = (lines(cells[r][c], top=tops[r], x=50 + 130 * c, step=12) for r, c in order(4, 4, random.Random(0)))
    level = b"".join(b"46 %d m 566 %d l S\n" % (y, y) for y in (754, 734, 676))
    upright = b"".join(b"%d 754 m %d 676 l S\n" % (46 + 130 * at, 46 + 130 * at) for at in range(1, 4))

    assert text_of(tmp_path / "table.pdf", level + upright + b"".join(drawn)).splitlines() == [
        " ".join(text for cell in row for text in cell) for row in cells
    ]


def test_column_heads_that_end_at_the_same_height_are_one_row(tmp_path: Path) -> None:
    heads = [["Fund"], ["Total changes in", "value"], ["Other income"], ["Total changes in", "capital"]]
    columns = [lines(texts, top=716 + 12 * len(texts), x=50 + 130 * at, step=12) for at, texts in enumerate(heads)]
    level = b"".join(b"46 %d m 566 %d l S\n" % (y, y) for y in (778, 758, 722))
    upright = b"".join(b"%d 778 m %d 722 l S\n" % (46 + 130 * at, 46 + 130 * at) for at in range(1, 4))
    years = b"".join(show(50 + 130 * at, 764, f"Part {at}") for at in range(4))

    assert text_of(tmp_path / "table.pdf", level + upright + years + b"".join(columns)).splitlines() == [
        "Part 0 Part 1 Part 2 Part 3",
        "Fund Total changes in value Other income Total changes in capital",
    ]


def test_a_blank_cell_between_rules_is_a_dash(tmp_path: Path) -> None:
    cells = [
        [["Grade"], ["Conditions"], ["Allowance"]],
        [["A"], [], ["400"]],
        [["B"], ["Staff who work only", "by day"], ["250"]],
    ]

    assert "A – 400" in text_of(tmp_path / "table.pdf", b"".join(ruled(cells, [20, 32, 32]))).splitlines()


def test_wrapped_cells_without_rules_are_one_row(tmp_path: Path) -> None:
    rows = [
        ("Night shift", ["Staff with more than ten", "years of service"], "400"),
        ("Day", ["All other staff"], "250"),
    ]
    drawn = [show(50, 700, "Kind") + show(150, 700, "Conditions") + show(350, 700, "Euros")]
    for at, (kind, conditions, amount) in enumerate(rows):
        top = 680 - 30 * at
        drawn += [show(50, top, kind), lines(conditions, top=top, x=150, step=12), show(350, top, amount)]

    assert text_of(tmp_path / "table.pdf", b"".join(drawn)).splitlines() == [
        "Kind Conditions Euros",
        "Night shift Staff with more than ten years of service 400",
        "Day All other staff 250",
    ]


RECORDS = [
    [["No"], ["Group"], ["Reason"], ["Euros"]],
    [["A-1"], ["Staff with more than ten", "years of service"], ["Because the contract", "says so"], ["1,200"]],
    [["A-2"], ["Pilots"], ["Law of the land"], ["300"]],
    [["A-3"], ["Crew of cranes and boats", "who work at night and", "on holidays"], ["Agreed"], ["45"]],
    [["A-4"], ["Guards"], ["By a decision of", "the board"], ["77"]],
]
Placed = tuple[int, int, int, float, str]  # row, line of its cell, column, height on the page, text


def placed(row_space: float) -> list[Placed]:
    out, y = [], TOP
    for row, cells in enumerate(RECORDS):
        out += [(row, at, c, y - 12 * at, text) for c, cell in enumerate(cells) for at, text in enumerate(cell)]
        y -= 12 * max(map(len, cells)) + row_space
    return out


@pytest.mark.parametrize(
    "order",
    [lambda p: (p[0], p[1], p[2]), lambda p: (p[0], p[2], p[1]), lambda p: (p[2], p[0]), lambda p: (-p[0], p[2], p[1])],
    ids=["by lines", "by cells", "by columns", "upwards"],
)
@pytest.mark.parametrize("separator", ["space", "rules", "labels"])
def test_cells_with_several_lines_in_several_columns_are_one_row(
    tmp_path: Path, order: Callable[[Placed], tuple[int, ...]], separator: str
) -> None:
    pieces = placed(8 if separator == "space" else 0)
    drawn = b"".join(show([50, 110, 260, 400][c], y, text) for _, _, c, y, text in sorted(pieces, key=order))
    for row in range(len(RECORDS) if separator == "rules" else 0):
        y = max(y for at, _, _, y, _ in pieces if at == row) + 9
        drawn += b"48 %g m 450 %g l S\n" % (y, y)

    assert text_of(tmp_path / "table.pdf", drawn).splitlines() == [
        " ".join(text for cell in cells for text in cell) for cells in RECORDS
    ]


def test_columns_of_sentences_with_space_between_them_are_not_rows(tmp_path: Path) -> None:
    pieces = [show(50 + 190 * c, 700 - 14 * r - 8 * (r // 2), PARAGRAPH[r]) for r in range(6) for c in range(3)]
    text = text_of(tmp_path / "page.pdf", b"".join(pieces))

    assert "the committee reviewed the annual report of the harbour" in text.replace("\n", " ")


@pytest.mark.parametrize("order", [by_columns, upwards])
def test_short_numbers_in_a_table_are_not_taken_for_marks_of_notes(
    tmp_path: Path, order: Callable[..., list[Cell]]
) -> None:
    rows = [["Area", "Sales", "Costs"], *([f"Area {r}", f"{r + 10}", f"{r + 20}"] for r in range(6))]
    drawn = b"".join(show(LEFT + WIDTH * c, TOP - STEP * r, rows[r][c]) for r, c in order(7, 3, random.Random(1)))

    assert text_of(tmp_path / "table.pdf", drawn).splitlines() == [" ".join(row) for row in rows]


def test_columns_that_are_stored_line_by_line_are_read_one_after_another(tmp_path: Path) -> None:
    left, right = [f"{text} now" for text in PARAGRAPH], [f"{text} then" for text in PARAGRAPH]
    drawn = (
        show(50, 700 - 12 * at, a) + show(320, 700 - 12 * at, b)
        for at, (a, b) in enumerate(zip(left, right, strict=True))
    )

    assert text_of(tmp_path / "columns.pdf", b"".join(drawn)).split() == " ".join([*left, *right]).split()


def test_three_columns_that_are_stored_line_by_line_are_read_one_after_another(tmp_path: Path) -> None:
    columns = [[" ".join(text.split()[:4]) + f" {at}" for text in PARAGRAPH] for at in "xyz"]
    drawn = (show(40 + 185 * c, 700 - 12 * r, columns[c][r]) for r in range(len(PARAGRAPH)) for c in range(3))
    expected = " ".join(text for column in columns for text in column)

    assert text_of(tmp_path / "columns.pdf", b"".join(drawn)).split() == expected.split()


def test_columns_that_are_stored_line_by_line_from_the_bottom_are_read_from_the_top(tmp_path: Path) -> None:
    left, right = [f"{text} now" for text in PARAGRAPH], [f"{text} then" for text in PARAGRAPH]
    pairs = list(enumerate(zip(left, right, strict=True)))
    drawn = b"".join(show(50, 700 - 12 * at, a) + show(320, 700 - 12 * at, b) for at, (a, b) in reversed(pairs))

    assert text_of(tmp_path / "columns.pdf", drawn).split() == " ".join([*left, *right]).split()


def test_a_right_column_that_is_stored_before_the_left_one_is_read_after_it(tmp_path: Path) -> None:
    left, right = [f"{text} now" for text in PARAGRAPH], [f"{text} then" for text in PARAGRAPH]

    def column(texts: list[str], x: float) -> bytes:
        return lines(texts, x=x, top=700) + lines(texts, x=x, top=590)  # two paragraphs

    note = show(50, 60, "1 The note stands below the left column.", size=7)
    drawn = show(50, 740, "Harbour report", size=16) + column(right, 320) + column(left, 50) + note
    expected = ["Harbour report", *left, *left, *right, *right, "1 The note stands below the left column."]

    assert text_of(tmp_path / "columns.pdf", drawn).split() == " ".join(expected).split()


def test_columns_in_reading_order_are_left_alone(tmp_path: Path) -> None:
    drawn = lines(PARAGRAPH, x=50) + lines(PARAGRAPH[::-1], x=320)

    assert text_of(tmp_path / "columns.pdf", drawn).split() == " ".join([*PARAGRAPH, *PARAGRAPH[::-1]]).split()


def test_rows_of_sentences_are_not_taken_for_columns(tmp_path: Path) -> None:
    rows = [
        (f"Question {at} about the lease of rooms", f"Answer {at} gives the rule and its reason") for at in range(6)
    ]
    drawn = (show(50, 700 - 14 * at, a) + show(320, 700 - 14 * at, b) for at, (a, b) in enumerate(rows))

    assert text_of(tmp_path / "rows.pdf", b"".join(drawn)).splitlines() == [f"{a} {b}" for a, b in rows]


@pytest.mark.parametrize("size", [10, 18])
def test_a_heading_that_is_stored_last_is_read_first(tmp_path: Path, size: int) -> None:
    drawn = lines(PARAGRAPH, top=600) + show(50, 640, "Fees and dates", size=size)

    assert text_of(tmp_path / "heading.pdf", drawn).startswith("Fees and dates\n")


def test_lines_that_are_stored_from_the_bottom_are_read_from_the_top(tmp_path: Path) -> None:
    steps = [f"Step {at}: do this with care, and write it down." for at in range(1, 9)]
    drawn = b"".join(show(50, 700 - 20 * at, step) for at, step in reversed(list(enumerate(steps))))

    assert text_of(tmp_path / "steps.pdf", drawn).split() == " ".join(steps).split()


def test_footnotes_that_are_stored_first_are_read_last(tmp_path: Path) -> None:
    note = lines(["1 The note stands below the left column."], top=60, size=7)
    drawn = note + lines(PARAGRAPH, x=50) + lines(PARAGRAPH[::-1], x=320)

    assert text_of(tmp_path / "notes.pdf", drawn).endswith("1 The note stands below the left column.")


def test_addresses_and_signatures_side_by_side_keep_the_stored_order(tmp_path: Path) -> None:
    left, right = ["John Smith", "Main Street", "Boston"], ["Jane Doe", "High Street", "London"]

    assert text_of(tmp_path / "page.pdf", lines(left) + lines(right, x=300)).splitlines() == left + right


def test_no_letter_is_lost_or_made_up(tmp_path: Path) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        words = [f"{chance.choice(WORDS)}{at}" for at in range(chance.randint(5, 60))]
        places = chance.sample([(x, y) for x in range(6) for y in range(2, 40)], len(words))
        pieces = [
            show(100.0 * x, 19.0 * y, word, size=chance.choice([7, 10, 10, 14]))
            for word, (x, y) in zip(words, places, strict=True)
        ]
        frame = rules(chance.randint(2, 9), chance.randint(1, 4)) if seed % 2 else b""
        text = text_of(tmp_path / f"{seed}.pdf", frame + b"".join(pieces)).replace("–", "")

        assert sorted("".join(text.split())) == sorted("".join(words)), f"seed {seed}"


def test_many_scattered_blocks_keep_the_stored_order(tmp_path: Path) -> None:
    pdf = RawPdf()
    words = [f"label{at}" for at in range(1_500)]
    chance = random.Random(1)
    pdf.page(b"".join(show(chance.uniform(20, 560), chance.uniform(20, 780), word, size=3) for word in words))
    (tmp_path / "drawing.pdf").write_bytes(pdf.data())

    assert sorted(read_pdf(tmp_path / "drawing.pdf").text.split()) == sorted(words)
