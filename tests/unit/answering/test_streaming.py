"""What the reader of a streamed answer sees: no invalid citation, no reasoning, and in the end the final answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.answering.citations import CitationFilter, Passage, check_citations
from llama_index_contextual.answering.streaming import StreamFilter, split_reasoning
from tests.support.streamed import invalid_citations, measure

_SIGNS = [*"[]［］【】\\ \n\ts1290.,-:", "Source ", "[Source 9", "Sources", "sou", "rce", "Answer:", "and"]
_ALPHABET = st.sampled_from(_SIGNS)
_FORMS = [
    *(
        "[1]",
        "[7]",
        "(Source 2)",
        "(",
        ")",
        "[^1]",
        "¹",
        "¹²",
        "【1†source】",
        "[Quelle 1]",
        "laut Quelle 2",
        "来源1",
        "[来源",
    ),
    *(
        "according to ",
        "source 3",
        "sources 1 ",
        "and 2",
        "`",
        "```",
        "[1](http",
        "x[1]",
        "<sup>1</sup>",
        "&lt;sup>2",
        "&",
    ),
    *(
        "[manual.pdf]",
        "Document 1",
        "१",
        "स्रोत",
        "power ",
        "word",
        "第",
        "の",
        "Source [2]",
        "/sup>",
        "<",
        "no. ",
        "p. 4",
    ),
]


def shown(pieces: list[str], sources: int = 3) -> str:
    stream = CitationFilter([Passage("")] * sources)
    return "".join([*map(stream.feed, pieces), stream.flush()])


def test_streamed_answers_show_no_invalid_citation_and_end_as_the_final_answer() -> None:
    result = measure(60, seed=20)
    assert result.planted["with an invalid citation"] > 20
    assert (list(result.shown), list(result.differing)) == ([], [])


@given(st.lists(st.sampled_from([*_SIGNS, *_FORMS]), max_size=20))
def test_citations_in_all_forms_do_not_depend_on_the_pieces(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert shown(pieces) == shown([text]) == shown(list(text))
    assert not invalid_citations(shown(pieces))


@given(st.lists(_ALPHABET, max_size=30), st.sampled_from(["instruction", "chain_of_thought"]))
def test_a_stream_shows_the_answer_without_the_reasoning(pieces: list[str], style: str) -> None:
    stream = StreamFilter(style, passages=[Passage("")] * 3)
    streamed = "".join([*map(stream.feed, pieces), stream.flush()])
    assert streamed == shown([split_reasoning("".join(pieces), style)[1]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes [Source 1] and [Source 99].", "Yes [Source 1] and."),
        ("Yes [Sources 1, 99] and [Sources 2-4]", "Yes [Source 1] and [Source 2][Source 3]"),
        ("Yes 【Source 2】 and 【Source ９９】.", "Yes [Source 2] and."),
        ("Yes ［source：1］ or 〔Source 99〕.", "Yes [Source 1] or."),
        ("Yes [Source 1234567].", "Yes."),
        ("See [sic], a[2] and [Sourdough 99].", "See [sic], a[2] and [Sourdough 99]."),
        ("\n Yes.\n\n[Source 99]\n", "Yes."),
        ("Yes [Source 1", "Yes"),
        ("Yes [Source 99", "Yes"),
        ("Yes [Sour", "Yes [Sour"),
        ("Yes [Source 99 [Source 1] [Source 2 [x]", "Yes [Source 1] [Source 2] [x]"),
        ("[Sou[Source 99]rce 98]", "[Sou[…]rce 98]"),
    ],
)
def test_what_is_shown_of_a_text(text: str, expected: str) -> None:
    assert shown(list(text)) == shown([text]) == expected
    assert check_citations(text, [Passage("a"), Passage("b"), Passage("c")]).text == expected


def test_an_unclosed_bracket_holds_back_no_more_than_a_citation_is_long() -> None:
    stream = CitationFilter([Passage("")] * 3)
    sent = "As [Source " + "words without an end " * 40
    assert len(stream.feed(sent)) > len(sent) - 10


def test_the_pieces_arrive_one_by_one() -> None:
    stream = CitationFilter([Passage("")] * 3)
    assert [stream.feed(word) for word in ("The", " pump", " runs ", "[Source", " 3]", ".")] == [
        *("The", " pump", " runs", "", " [Source 3]", "."),
    ]
