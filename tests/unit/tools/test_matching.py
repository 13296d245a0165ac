"""Search in windows, and the ends of sections."""

from __future__ import annotations

import random
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.metadata import Heading
from llama_index_contextual.tools import document_tools


@given(seed=st.integers(0, 2**32))
def test_windows_find_what_a_search_of_the_whole_text_finds(seed: int) -> None:
    rng = random.Random(seed)
    words = ("ab", "b\n", "aab ", "c" * rng.randint(1, 30) + "b", "\n")
    text = "".join(rng.choice(words) for _ in range(rng.randint(0, 400)))
    pattern = document_tools.compile_pattern("ab|c+b", is_regex=True, case_sensitive=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_tools, "_WINDOW", 200)
        patch.setattr(document_tools, "_OVERLAP", 80)
        spans = list(document_tools._match_spans(text, pattern, time.monotonic() + 600))
    assert spans == [match.span() for match in re.finditer("ab|c+b", text)]


@given(st.lists(st.integers(1, 4), max_size=12))
def test_a_section_ends_where_one_of_its_level_or_above_begins(levels: list[int]) -> None:
    headings = [Heading(start=at * 10, level=level, title="x") for at, level in enumerate(levels)]
    expected = [
        next((later.start for later in headings[at + 1 :] if later.level <= heading.level), 999)
        for at, heading in enumerate(headings)
    ]
    assert document_tools._section_ends(headings, 999) == expected
