"""The opening of a document says what the document is."""

from __future__ import annotations

import time

import pytest

from llama_index_contextual.contextualizer.opening import OPENING_CHARACTERS, opening_of

COVER = """UNITED STATES
SECURITIES AND EXCHANGE COMMISSION
Washington, D.C. 20549
FORM 10-K
(Mark One)
☒ ANNUAL REPORT PURSUANT TO SECTION 13 OR 15(d) OF THE SECURITIES EXCHANGE ACT OF 1934
For the fiscal year ended June 30, 2023
☐ TRANSITION REPORT PURSUANT TO SECTION 13 OR 15(d) OF THE SECURITIES EXCHANGE ACT OF 1934
ORLEN VALVE WORKS, INC.
(Exact name of registrant as specified in its charter)
1 Harbour Road, Portland, Oregon 97201
(Address of principal executive offices) (Zip Code)"""

CONTENTS = """Table of Contents
Page
1. Definitions 1
2. Grant of the licence and of
the rights to sublicense 2
3. Payment ........ 4
4. Term 4
5. Termination .... 11
6. Notices 12"""

LICENCE = """/*
 * Copyright 2020 ACME LLC.
 *
 * Licensed under the Apache License, Version 2.0 (the "License"); you may not
 * use this file except in compliance with the License.
 */
package com.acme.pump;

/** Starts the pump. */"""


def test_the_cover_of_a_form_is_left_out_because_its_title_says_what_it_is() -> None:
    assert opening_of([COVER, "Item 1. Business"], "Form 10-K, Orlen Valve Works, 2023") == ""


@pytest.mark.parametrize("box", ["☐", "¨", "ý", "[ ]", "[X]"])
def test_the_boxes_and_captions_of_a_form_without_title_are_left_out(box: str) -> None:
    opening = opening_of([COVER.replace("☐", box).replace("☒", box)])
    assert opening == (
        "UNITED STATES SECURITIES AND EXCHANGE COMMISSION Washington, D.C. 20549 FORM 10-K "
        "For the fiscal year ended June 30, 2023 ORLEN VALVE WORKS, INC. 1 Harbour Road, Portland, Oregon 97201"
    )


@pytest.mark.parametrize("list_of", ["- [ ] Oil the pump\n- [x] Close valve V2", "☐ Oil the pump\n☐ Close valve V2"])
def test_a_checklist_is_not_a_form(list_of: str) -> None:
    text = f"Before the start of the pump:\n{list_of}"
    assert opening_of([text], "Pump") == " ".join(text.split())


def test_a_table_of_contents_is_left_out() -> None:
    before, after = "LICENCE AGREEMENT\nbetween Orlen and ACME", "This agreement is made on 3 May 2021."
    assert opening_of([f"{before}\n{CONTENTS}\n{after}"]) == " ".join(f"{before} {after}".split())


def test_after_a_chunk_with_only_a_table_of_contents_the_next_chunk_is_the_opening() -> None:
    assert opening_of([CONTENTS, "This agreement is made on 3 May 2021."]) == "This agreement is made on 3 May 2021."
    assert opening_of([CONTENTS]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Sales by region\nNorth 12\nSouth 3\nEast 250\nWest 7\nTotal 272\nMiddle 5",
        "Notes\nApril 30, 2024\nMay 3, 2024\nJune 12, 2024\nJuly 9, 2024\nAugust 1, 2024",
        "The pump needs oil.\nIt runs at 12\nIt stops at 15",
    ],
    ids=["figures", "dates", "few"],
)
def test_other_lines_that_end_with_numbers_are_kept(text: str) -> None:
    assert opening_of([text]) == " ".join(text.split())


TABLE = "| Year | Sales |\n| --- | --- |\n| 2019 | 12 |"


def test_a_table_is_left_out_unless_there_is_nothing_else() -> None:
    assert opening_of([f"{TABLE}\n\nSales rose.", "More."]) == "Sales rose."
    assert opening_of([TABLE, "Sales rose."]) == "Sales rose."
    assert opening_of([TABLE, "| 2020 | 14 |"]) == "| Year | Sales | | --- | --- | | 2019 | 12 |"


@pytest.mark.parametrize("notice", ["© 2024 ACME", "Copyright (c) 2019 by ACME", "ACME 2019. All rights reserved."])
def test_a_copyright_notice_is_left_out(notice: str) -> None:
    assert opening_of([f"Pump manual\n{notice}\nThe pump needs oil."]) == "Pump manual The pump needs oil."


def test_the_licence_of_source_code_is_left_out_with_its_comment() -> None:
    assert opening_of([LICENCE]) == "package com.acme.pump; /** Starts the pump. */"
    python = LICENCE.replace(" *", "#").replace("/*\n", "").replace("#/", "#")
    assert opening_of([python]).startswith("package com.acme.pump;")


def test_a_line_about_copyright_in_prose_is_kept() -> None:
    text = "The agency explains how copyright works for " + "authors and for publishers and " * 10
    assert opening_of([text]) == text.strip()


@pytest.mark.parametrize(
    ("text", "end"), [("an ox " * 500, " …"), ("文" * 2_000, "文文 …"), ("章 " + "文" * 500, "文文 …")]
)
def test_a_long_opening_is_cut_at_a_word(text: str, end: str) -> None:
    opening = opening_of([text])
    assert opening.endswith(end)
    assert text.startswith(opening.removesuffix(" …"))
    assert text[len(opening.removesuffix(" …")) :][:1] in (" ", "文")
    assert OPENING_CHARACTERS - 40 <= len(opening) <= OPENING_CHARACTERS + 2


@pytest.mark.parametrize("line", ["word ", "1 ", "(a) ", "Oil ... "])
def test_a_long_line_is_read_in_linear_time(line: str) -> None:
    started = time.thread_time()
    assert opening_of([line * 40_000]).startswith(line)
    assert time.thread_time() - started < 10  # quadratic time would be several minutes
