"""Words that match a query are marked, and nothing of a text becomes markup."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.retrievers.analysis import Analyzer
from llama_index_contextual.ui.highlight import highlight, mark

english = Analyzer("english", has_periods=True)
texts = st.text(st.sampled_from("abcst-. <>&'\"/\n1290é\u0301ﬁ\u200b契約"), max_size=60)


def test_every_form_of_a_word_is_marked_as_a_whole_word() -> None:
    page = highlight("TERMINATION. Terminated? Determined.", english.query_terms("termination"), english)
    assert page == "<mark>TERMINATION</mark>. <mark>Terminated</mark>? Determined."


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"onmouseover="x', "&lt;b&gt;", "<mark>x</mark>"])
def test_markup_of_a_text_is_shown_as_text(text: str) -> None:
    page = highlight(text, english.query_terms("script alert x"), english)
    assert html.unescape(re.sub("</?mark>", "", page)) == text


@given(text=texts, question=texts)
def test_without_its_marks_a_text_is_the_escaped_text(text: str, question: str) -> None:
    terms = set(english.terms(question))
    page = highlight(text, terms, english)
    assert re.sub("</?mark>", "", page) == mark(text, [])
    assert html.unescape(re.sub("</?mark>", "", page)) == text
    for marked in re.findall("<mark>(.*?)</mark>", page, re.DOTALL):
        assert terms.intersection(english.terms(html.unescape(marked)))
