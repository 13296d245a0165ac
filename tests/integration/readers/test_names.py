"""Names and titles that can be printed, logged and put into a prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.readers.discovery import one_line, printable

names = st.text(st.characters(), max_size=12)


@given(names, names)
def test_no_two_names_are_shown_alike(first: str, second: str) -> None:
    assert (printable(first) == printable(second)) == (first == second)


@given(names)
def test_a_shown_name_can_be_printed_and_stored(name: str) -> None:
    shown = printable(name)
    assert shown.encode() is not None
    assert shown.replace("\u200c", "").replace("\u200d", "").isprintable() or not shown.isascii()
    assert not set(shown) & set("\n\r\x1b\x00\u202e\u2066\u200b\ufeff\u2028")


@given(st.text(st.characters(), max_size=300), st.integers(1, 50))
def test_a_title_is_one_line_of_limited_length(text: str, limit: int) -> None:
    title = one_line(text, limit)
    assert len(title) <= limit
    assert title == " ".join(title.split())
    assert title.encode() is not None
    assert not set(title) & set("\x1b\x00\u202e\u200b")
