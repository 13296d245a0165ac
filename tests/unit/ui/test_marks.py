"""The lines of a page that a passage occupies are found, whatever the reader made of its text."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.ui.marks import Box, Char, align, line_boxes, mark_span, scan_chars

WIDTH, HEIGHT, LEADING = 6.0, 10.0, 14.0
LINES = (
    "Running header 2024",
    "The tenant pays the rent on the first day of each month",
    "to the account that the landlord names. Late pay-",
    "ment bears interest of 5 % a year, from the first",
    "reminder on.",
    "Revenue 27,810 837 26,973",
    "Costs 12,345 99 12,246",
    "Page 7",
)
words = st.lists(st.text("abcdeé1", min_size=1, max_size=8), min_size=1, max_size=40)


def page(lines: Iterable[str], *, x: float = 50, top: float = 40, number: int = 0) -> list[Char]:
    """Return the characters of lines below each other, with the line ends and spaces of pdfium."""
    chars: list[Char] = []
    for at, line in enumerate(lines, number):
        y = top + LEADING * at
        for column, sign in enumerate(line):
            if sign == " ":
                chars.append(Char(" ", 0, 0, 0, 0))
            else:
                left = x + WIDTH * column
                chars.append(Char(sign, left, y, left + WIDTH, y + HEIGHT))
        chars += [Char("\r", 0, 0, 0, 0), Char("\n", 0, 0, 0, 0)]
    return chars


def text_in(chars: Sequence[Char], boxes: Sequence[Box]) -> str:
    """Return the characters whose middle is in a box."""
    inside = []
    for char in chars:
        x, y = (char.x0 + char.x1) / 2, (char.y0 + char.y1) / 2
        if char.text.strip() and any(box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1 for box in boxes):
            inside.append(char.text)
    return "".join(inside)


def mark_lines(chars: Sequence[Char], text: str) -> list[Box]:
    """Return a box for each line, or part of a line, that the text occupies."""
    return line_boxes(chars, {at for at in align([char.text for char in chars], text) if at is not None})


def solid(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        (LINES[1], [LINES[1]]),
        (
            "Late payment bears interest of 5 % a year, from the first reminder on.",
            ["Latepay", LINES[3], "reminder on"],
        ),
        ("REVENUE 27,810 837 26,973\nCosts 12,345 99 12,246", [LINES[5], LINES[6]]),
        ("each month to the account", ["each month", "to the account"]),
        ("27,810", ["27,810"]),
        ("no such words here at all", []),
        ("", []),
        ("– – —", []),
    ],
)
def test_lines_are_marked_from_the_first_to_the_last_word(text: str, marked: list[str]) -> None:
    chars = page(LINES)
    boxes = mark_lines(chars, text)
    assert text_in(chars, boxes) == solid("".join(marked))
    assert len(boxes) == len(marked)


def test_a_box_covers_its_line_and_no_other() -> None:
    box, *others = mark_lines(page(LINES), "tenant pays the rent")
    assert others == []
    assert box == Box(50 + 4 * WIDTH, 40 + LEADING, 50 + 24 * WIDTH, 40 + LEADING + HEIGHT)


def test_columns_are_marked_one_by_one() -> None:
    left = ["Noninterest revenue is", "recognised when the", "service was rendered."]
    right = ["Card income consists of", "interchange and fees of", "merchants and others"]
    # pdfium gives what is drawn on one baseline as one line
    chars = [char for at in range(3) for char in page([left[at]], number=at)[:-2] + page([right[at]], x=300, number=at)]
    boxes = mark_lines(chars, " ".join(right))
    assert text_in(chars, boxes) == solid("".join(right))
    assert [box.x0 for box in boxes] == [300, 300, 300]


def test_of_repeated_lines_those_in_the_context_of_the_passage_are_marked() -> None:
    head = "Three months ended June 30, 2023 2022"
    lines = ["Lending fees by kind", head, "Lending 590 362", "Asset management fees", head, "Assets 3,695 3,425"]
    chars = page(lines)
    boxes = mark_lines(chars, "\n".join(lines[3:]))
    assert text_in(chars, boxes) == solid("".join(lines[3:]))


def test_accents_ligatures_case_and_hyphens_make_no_difference() -> None:
    chars = page(["Die Pru\u0308fung der Ef\ufb01zienz", "im Groß\u00adbetrieb a\u0300 la carte"])
    boxes = mark_lines(chars, "die prüfung der EFFIZIENZ im grossbetrieb à la carte".replace("ff", "f"))
    assert len(boxes) == 2


def test_text_that_runs_upwards_is_one_box() -> None:
    chars = [Char(sign, 20, 400 - 6 * at, 30, 406 - 6 * at) for at, sign in enumerate("Annual-report")]
    assert mark_lines(chars, "Annual report") == [Box(20, 328, 30, 406)]


def test_lines_whose_letters_reach_into_the_next_line_do_not_overlap() -> None:
    chars = [char._replace(y1=char.y1 + 8) if char.x1 else char for char in page(LINES)]
    boxes = mark_lines(chars, " ".join(LINES[1:5]))
    assert len(boxes) == 4
    assert all(one.y1 <= other.y0 for one, other in pairwise(boxes))


def test_a_footnote_mark_does_not_interrupt_a_line() -> None:
    chars = page(["Income before taxes (a) and interest"])
    assert len(mark_lines(chars, "Income before taxes and interest")) == 1


def test_the_characters_of_a_scan_are_spread_over_the_boxes_of_its_lines() -> None:
    corners = [200, 100, 600, 100, 600, 150, 200, 150]
    page = {"width": 1000, "height": 2000, "dpi": 200, "boxes": [["ab c", 0.9, *corners]]}
    chars = scan_chars(page, (500.0, 1000.0))
    assert [char.text for char in chars] == ["a", "b", " ", "c"]
    assert [tuple(char[1:]) for char in chars] == [(100 + 50 * at, 50, 150 + 50 * at, 75) for at in range(4)]
    assert mark_lines(chars, "ab c") == [Box(100, 50, 300, 75)]


@pytest.mark.parametrize(
    ("turns", "size", "first", "last"),
    [
        (0, (100, 50), (10, 20, 20, 30), (40, 20, 50, 30)),
        (1, (50, 100), (20, 10, 30, 20), (20, 40, 30, 50)),
        (2, (100, 50), (80, 20, 90, 30), (50, 20, 60, 30)),
        (3, (50, 100), (20, 80, 30, 90), (20, 50, 30, 60)),
    ],
)
def test_the_boxes_of_a_page_that_was_turned_are_turned_back(
    turns: int, size: tuple[int, int], first: tuple[int, ...], last: tuple[int, ...]
) -> None:
    box = ["abcd", 0.9, 10, 20, 50, 20, 50, 30, 10, 30]
    chars = scan_chars({"width": 100, "height": 50, "dpi": 72, "turns": turns, "boxes": [box]}, size)
    assert [tuple(round(edge) for edge in chars[at][1:]) for at in (0, -1)] == [first, last]


def test_a_span_is_marked_on_its_own() -> None:
    chars = page(LINES)
    text = "Late payment bears interest of 5 % a year"
    places = align([char.text for char in chars], text)
    boxes = mark_span(chars, places, (5, 27))
    assert text_in(chars, boxes) == "paymentbearsinterest"
    assert len(boxes) == 2


@given(words, st.integers(0, 39), st.integers(1, 40))
def test_any_run_of_words_is_covered_and_nothing_before_or_after_it(parts: list[str], first: int, count: int) -> None:
    # Words with their numbers, so that there is one right answer.
    parts = [f"{part}{number:02}x" for number, part in enumerate(parts)]
    passage = parts[first % len(parts) :][:count]
    chars = page(" ".join(parts[at : at + 5]) for at in range(0, len(parts), 5))
    assert text_in(chars, mark_lines(chars, " ".join(passage))) == solid("".join(passage))


def test_a_page_of_one_repeated_letter_takes_no_more_time_than_others() -> None:
    chars = page(["a" * 100] * 60)
    started = time.thread_time()
    mark_lines(chars, "a" * 4_000)
    assert time.thread_time() - started < 10


@given(st.text(max_size=200), st.text(max_size=200))
def test_characters_are_used_once_and_only_for_equal_ones(ours: str, theirs: str) -> None:
    places = align(list(theirs), ours)
    assert len(places) == len(ours)
    used = [place for place in places if place is not None]
    assert all(0 <= place < len(theirs) for place in used)
    for at, place in enumerate(places):
        if place is not None and ours[at].isascii() and theirs[place].isascii():
            assert ours[at].lower() == theirs[place].lower()
            assert ours[at].isalnum()


def test_rows_in_another_order_are_found() -> None:
    seed = 11
    chance = random.Random(seed)
    rows = [f"{chance.randint(100, 999)} pieces of kind {chance.randint(1000, 9999)}" for _ in range(12)]
    chars = page(rows)
    shuffled = rows[3:9]
    chance.shuffle(shuffled)
    covered = text_in(chars, mark_lines(chars, "\n".join(shuffled)))
    assert sorted(covered) == sorted(solid("".join(rows[3:9]))), seed
