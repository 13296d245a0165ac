"""Units of a passage: where they begin and end, their kinds, and the column headers of table rows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index.cutting import FIRST_OF_TEXT, Kind, Unit, header_of, is_code, spans_of, units_of
from llama_index_contextual.metadata import CONTEXT, FILE_NAME, SECTION, TABLE_HEAD, TITLE

TEXTS = st.text(alphabet="ab1 |.\n\r\t\u2028é。;=", max_size=400)


def pieces(text: str) -> list[str]:
    return [text[start:end] for start, end in spans_of(text)]


def kinds(text: str) -> list[Kind]:
    return [unit.kind for unit in units_of(text, {})[FIRST_OF_TEXT:]]


@given(TEXTS)
def test_units_are_ordered_and_contain_all_visible_characters(text: str) -> None:
    spans = spans_of(text)
    assert all(first_end <= second_start for (_, first_end), (second_start, _) in itertools.pairwise(spans))
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(text.split())
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in spans)


@given(TEXTS)
def test_a_unit_has_the_text_of_its_span_and_a_head_among_the_units_of_the_passage(text: str) -> None:
    units = units_of(text, {TITLE: "Tariffs"})
    assert [unit.text for unit in units[FIRST_OF_TEXT:]] == pieces(text)
    for at, unit in enumerate(units[FIRST_OF_TEXT:], start=FIRST_OF_TEXT):
        assert unit.text == text[unit.start : unit.end]
        assert unit.kind >= Kind.TEXT
        assert unit.head == 0 or (
            at - unit.head >= FIRST_OF_TEXT and units[at - unit.head].kind in (Kind.ROW, Kind.HEADING, Kind.TEXT)
        )


def test_the_first_two_units_are_the_texts_before_the_passage() -> None:
    metadata = {SECTION: "Gardens", TITLE: "Tariffs", CONTEXT: "It is about water.", TABLE_HEAD: "| a |", "page": 3}
    expected = [
        Unit(Kind.HEADER, "Tariffs\nGardens\n| a |", 0, 0, 0),
        Unit(Kind.CONTEXT, "It is about water.", 0, 0, 0),
    ]
    assert units_of("", metadata) == expected
    assert units_of(" \n", metadata) == expected
    assert [unit.text for unit in units_of("", {})] == ["", ""]
    assert header_of({FILE_NAME: "a.md", SECTION: None, TITLE: ""}) == "a.md"


def test_a_long_line_is_divided_into_sentences() -> None:
    sentences = [
        "The contract may be terminated by either party at any time.",
        "Notice is due within ninety days of it.",
    ]
    assert pieces(" ".join(sentences * 2)) == sentences * 2
    assert pieces(" ".join(sentences)) == [" ".join(sentences)]  # 99 characters


def test_lines_that_were_wrapped_by_hand_are_one_unit() -> None:
    text = "Water for gardens is metered apart from that of the\nhouse, and free in spring.\n\nnext paragraph"
    assert pieces(text) == [text.partition("\n\n")[0], "next paragraph"]


def test_blank_lines_before_a_line_do_not_make_it_long() -> None:
    line = "water is metered. It is free in spring. The fee is due in May."
    assert pieces("\n" * 200 + line) == [line]


def test_a_wrapped_sentence_continues_with_a_figure_but_not_with_an_item_or_row() -> None:
    line = "The rent for the boathouse and both berths amounts to"
    for following in ("4,800 euros a year.", "1.85 per cent of the value.", "4.800 Euro.", "0.5 Percent.", "30 days."):
        assert pieces(f"{line}\n{following}") == [f"{line}\n{following}"]
    dated = "Der Vertrag über das Bootshaus am Kai beginnt spätestens am\n12. März 2024 und endet nach drei Jahren."
    assert pieces(dated) == [dated]
    noted = "¹ Calculated with 40.0 million shares. The dividend amounts to EUR\n1.85 per share."
    assert pieces(noted) == [noted]
    for following in ("2. payable in January.", "3.1 Deposit", "4 Duties of the tenant", "4 | 5"):
        assert pieces(f"{line}\n{following}") == [line, following]
    rows = ["18:30 the gate was opened by the operator of the harbour", "18:45 the gate was closed"]
    assert pieces("\n".join(rows)) == rows
    assert pieces(f"{line}.\n12 boats may moor.") == [f"{line}.", "12 boats may moor."]


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("Dry running", Kind.HEADING),
        ("## Dry running", Kind.HEADING),
        ("In this case:", Kind.HEADING),
        ("**Note**", Kind.HEADING),
        ("2.1 Dry running in 2023 ff", Kind.HEADING),
        ("P1 dry 41 5.5 within limit", Kind.TEXT),  # several figures
        ("Dry running of the pumps of the upper zone", Kind.TEXT),  # 42 characters
        ("The pump stops.", Kind.TEXT),
        ("Running dry 2,100", Kind.FIGURES),
        ("Net sales $ 14,694 $ 14,544", Kind.FIGURES),
        ("Operating income as a percentage of net sales 10.3 % (8.5) %", Kind.FIGURES),
        ("Long-term debt, less current portion — 319", Kind.FIGURES),
        ("($ in millions, except per share data) 2023 2022", Kind.ROW),
        ("It was sold in 2019", Kind.TEXT),
        ("The contract has 12 pages - see page 3", Kind.TEXT),
        ("$ 11,511 $ 9,888", Kind.TEXT),  # without a name, it is not a row of its own
        ("| dry | 3 |", Kind.FIGURES),
        ("| dry | 2023 | 31.12.2024 |", Kind.ROW),
        ("Dry pump  Lena", Kind.ROW),
        ("Dry pump\tLena", Kind.ROW),
    ],
)
def test_the_kind_of_a_unit(unit: str, kind: Kind) -> None:
    assert kinds(unit) == [kind]


def test_all_units_of_source_code_are_lines_of_code() -> None:
    assert kinds("import os\n\nThe path\nos.remove(path)  # now\n") == [Kind.CODE] * 3


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("The fees.\nZone  2023  31.12.2024\nVale  1  2\nCoast  3  4\n\nThe end.", [0, 0, 1, 2, 0]),
        ("cash  1,234  987\ndebt  12  13", [0, 0]),  # the first row has figures
        ("a | b\n1 | 2\nThe end.\nc | d\n3 | 4", [0, 1, 0, 0, 1]),  # a text between rows ends a table
        ("The fees are:\n| Zone | Fee |\n| Vale | 3 |\n| Coast | 4 |", [0, 1, 1, 2]),
        ("Fees  Vale  Coast\nhouses:\nsmall  1  2\nboats:\nsmall  3  4", [0, 1, 1, 3, 1]),  # groups
        ("Fees\n| a | 1 |\n## Costs\n| b | 2 |", [0, 1, 0, 1]),
        ("| a | b |\n| 1 | 2 |\n# Costs\n## Of staff\n| b | 2 |", [0, 1, 0, 1, 1]),
        ("Fees in 2023 2022\nVale 1.00 1.10\nCosts in 2023 2022\nVale 0.50 0.60", [0, 1, 0, 1]),  # two tables
    ],
)
def test_a_row_is_headed_by_the_row_or_heading_above_it_which_may_have_a_head_itself(
    text: str, heads: list[int]
) -> None:
    assert [unit.head for unit in units_of(text, {})[FIRST_OF_TEXT:]] == heads


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('fn main() {\n    println!("hi");\n}', True),
        ("import os\nos.remove(path)", True),
        ("| Zone | Fee |\n| Upper Vale | 3.10 |", False),
        ("Revenue grew by 3 % (see page 4).\nIt was due to:", False),
        ("", False),
    ],
)
def test_source_code_is_recognised(text: str, expected: bool) -> None:
    assert is_code(text) is expected


def test_lines_of_code_are_not_joined() -> None:
    text = "def rate(zone, season, discount=0.0, fallback=None):\n    return rates[zone][season] * (1 - discount)\n"
    assert [text[start:end].strip() for start, end in spans_of(text)] == text.strip().replace("    ", "").split("\n")


def test_rows_drawn_with_spaces_or_tabs_are_not_joined() -> None:
    for gap in ("    ", "\t"):
        rows = [
            gap.join(("total assets of the company and its subsidiaries", "12", "13")),
            gap.join(("debt", "4", "5")),
        ]
        assert [end - start for start, end in spans_of("\n".join(rows))] == list(map(len, rows))


def test_years_with_commas_are_column_headers() -> None:
    units = units_of("| Item | 2024, | 2023. |\n| Debt | 12 | 13 |", {})
    assert [unit.head for unit in units] == [0, 0, 0, 1]
