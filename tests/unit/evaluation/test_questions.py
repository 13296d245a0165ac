"""Question files: every form of evidence, when a result contains it, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode

from llama_index_contextual.errors import ContextualError, InputError
from llama_index_contextual.evaluation.questions import (
    Evidence,
    Question,
    ResultChunk,
    load_questions,
    parse_questions,
    write_questions,
)
from llama_index_contextual.search.results import RetrievedChunk


def passage(
    text: str = "Revenue grew.", *, file: str = "a.pdf", span: tuple[int, int] = (0, 100), **facts: Any
) -> ResultChunk:
    node = TextNode(
        id_="chunk-1",
        text=text,
        start_char_idx=span[0],
        end_char_idx=span[1],
        metadata={"file_name": file, "file_path": f"reports/{file}", **facts},
        relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"id-of-{file}")},
    )
    return ResultChunk(RetrievedChunk.of(1, NodeWithScore(node=node, score=1.0)))


# ---- matching of evidence ------------------------------------------------------------------------------------------

FIVE = Evidence(file="a.pdf", text="one two three four five")


@pytest.mark.parametrize(
    ("evidence", "result", "is_in"),
    [
        (Evidence(chunk_id="chunk-1"), passage(), True),
        (Evidence(chunk_id="chunk-2"), passage(), False),
        # half of a span is enough
        (Evidence(file="a.pdf", span=(60, 140)), passage(), True),
        (Evidence(file="a.pdf", span=(61, 141)), passage(), False),
        # every page that is touched, and half of a range of pages
        (Evidence(file="a.pdf", pages=(2, 2)), passage(page_start=3, page_end=4), False),
        (Evidence(file="a.pdf", pages=(3, 3)), passage(page_start=3, page_end=4), True),
        (Evidence(file="a.pdf", pages=(4, 4)), passage(page_start=3, page_end=4), True),
        (Evidence(file="a.pdf", pages=(5, 5)), passage(page_start=3, page_end=4), False),
        (Evidence(file="a.pdf", pages=(1, 4)), passage(page_start=3, page_end=4), True),
        (Evidence(file="a.pdf", pages=(1, 5)), passage(page_start=3, page_end=4), False),
        (Evidence(file="a.pdf", pages=(3, 3)), passage(), False),
        # the text, or four fifths of its pairs of neighbouring words, whatever the white space and letter case
        (FIVE, passage("Zero ONE\n\ntwo, three four FIVE six"), True),
        (FIVE, passage("one two three four"), False),
        (FIVE, passage("Five FOUR\n\nthree, two one!"), False),
        (Evidence(text="zero one two three four five"), passage("One two, three four five."), True),
        (Evidence(text="The information is kept by us"), passage("So the infor-\nmation is kept by us all"), True),
        (Evidence(text="revenue"), passage("Revenue grew."), True),
        (Evidence(text="revenue"), passage("Revenues grew."), False),
        (Evidence(text="to to to"), passage("to to to be"), True),
        (Evidence(text="to to to to to"), passage("to be"), False),
        (Evidence(text="revenue grew"), passage(file="other.pdf"), True),
        # scripts without spaces are compared letter by letter; a few letters of another script are ignored
        (Evidence(text="解除契约须书面通知"), passage("任何一方解除契约须书面通知对方。"), True),
        (Evidence(text="解除契约须书面通知"), passage("价格另行约定。"), False),
        (Evidence(text="the films 杨澜访谈录 and others"), passage("The films and others."), True),
        (Evidence(text="Статья 5 договора"), passage("Пункт 5 закона"), False),
    ],
)
def test_when_a_result_contains_evidence(evidence: Evidence, result: ResultChunk, is_in: bool) -> None:
    assert evidence.is_in(result) == is_in


@pytest.mark.parametrize("name", ["a.pdf", "reports/a.pdf", "id-of-a.pdf"])
def test_a_file_matches_by_name_path_or_document_id(name: str) -> None:
    assert Evidence(file=name, span=(0, 10)).is_in(passage())
    assert not Evidence(file=name, span=(0, 10)).is_in(passage(file="b.pdf"))


def test_ranks_are_the_first_rank_of_each_item() -> None:
    question = Question(
        text="Who?", evidence=[Evidence(file="b.pdf", span=(0, 9)), Evidence(file="c.pdf", span=(0, 9))]
    )
    passages = [passage(), passage(file="b.pdf"), passage(file="b.pdf")]
    assert question.ranks(passages) == [2, None]
    assert [question.is_in(result) for result in passages] == [False, True, True]
    assert question.ranks([]) == [None, None]


# ---- files ---------------------------------------------------------------------------------------------------------


def lines(*rows: Any) -> bytes:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()


def test_every_form_of_evidence_is_parsed() -> None:
    questions = parse_questions(
        lines(
            {"id": "q1", "question": "A?", "relevant": ["c1", "c2"]},
            {
                "question": "B?",
                "file": "b.md",
                "evidence": [{"start": 5, "end": 9}, {"file": "c.md", "start": 0, "end": 1}],
            },
            {"id": 3, "question": "C?", "file": "c.pdf", "evidence": [{"page": 3}, {"pages": [5, 6]}], "type": "x"},
            {"question": "D?", "file": "d.txt", "evidence": ["the words", {"text": "more", "file": "e.txt"}]},
            {"question": "E?", "evidence": [{"chunk_id": "c9"}, "anywhere"]},
        )
    )
    assert [(q.id, q.text) for q in questions] == [("q1", "A?"), ("", "B?"), ("3", "C?"), ("", "D?"), ("", "E?")]
    assert questions[0].evidence == (Evidence(chunk_id="c1"), Evidence(chunk_id="c2"))
    assert questions[1].evidence == (Evidence(file="b.md", span=(5, 9)), Evidence(file="c.md", span=(0, 1)))
    assert questions[2].evidence == (Evidence(file="c.pdf", pages=(3, 3)), Evidence(file="c.pdf", pages=(5, 6)))
    assert questions[3].evidence == (Evidence(file="d.txt", text="the words"), Evidence(file="e.txt", text="more"))
    assert questions[4].evidence == (Evidence(chunk_id="c9"), Evidence(text="anywhere"))


def test_a_written_question_file_is_read_back(tmp_path: Path) -> None:
    questions = [
        Question(id="ä", text="Wer?", evidence=(Evidence(chunk_id="c"), Evidence(text="überall"))),
        Question(text="Who?", evidence=(Evidence(file="a", span=(0, 3)), Evidence(file="a", pages=(1, 2)))),
    ]
    write_questions(questions, tmp_path / "q.jsonl")
    assert load_questions(tmp_path / "q.jsonl") == questions


def test_byte_order_mark_empty_lines_and_windows_line_ends_are_accepted() -> None:
    row = b'{"question": "A?", "relevant": ["c"]}'
    assert len(parse_questions(b"\xef\xbb\xbf" + row + b"\r\n\r\n  \n" + row)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not a JSON object in UTF-8: write one per line"),
        ("[1]", "is not a JSON object"),
        ({"question": None}, 'has no "question"'),
        ({"question": 7}, '"question" should be a valid string'),
        ({"question": " "}, '"question" is empty'),
        ({"relevant": []}, 'no evidence: add "relevant"'),
        ({"relevant": [7]}, '"relevant.0" should be a valid string'),
        ({"evidence": "x"}, '"evidence" should be a valid array'),
        ({"evidence": [7]}, '"evidence.0" should be an object'),
        ({"evidence": [{}]}, "must be exactly one of a chunk"),
        ({"evidence": [{"start": 1, "end": 2}]}, "needs a `file`"),
        ({"file": "a", "evidence": [{"start": 1}]}, '"evidence.0.span.1" should be a valid integer'),
        ({"file": "a", "evidence": [{"start": 1.5, "end": 2}]}, '"evidence.0.span.0" should be a valid integer'),
        ({"file": "a", "evidence": [{"start": -1, "end": 2}]}, '"evidence.0.span.0" should be greater than or equal'),
        ({"file": "a", "evidence": [{"start": 2, "end": 2}]}, "empty span, 2–2"),
        ({"file": "a", "evidence": [{"page": 0}]}, "count from 1"),
        ({"file": "a", "evidence": [{"page": True}]}, '"evidence.0.pages.0" should be a valid integer'),
        ({"file": "a", "evidence": [{"pages": [1, 2, 3]}]}, '"evidence.0.pages" '),
        ({"file": 7, "evidence": ["x"]}, '"file" should be a valid string'),
        ({"evidence": ["…"]}, "a text without words"),
        ({"question": "\ud800?"}, "is not a JSON object in UTF-8"),
        ({"id": []}, '"id" should be a valid string'),
        ({"id": True}, '"id" should be a valid string'),
        ({"id": "first"}, "has the same id as line 1"),
    ],
)
def test_an_invalid_line_is_named_with_its_error(line: Any, message: str) -> None:
    good = {"question": "A?", "relevant": ["c"]}
    if isinstance(line, dict):
        line = {key: value for key, value in {**good, **line}.items() if value is not None}
    with pytest.raises(InputError) as caught:
        parse_questions(lines({**good, "id": "first"}, "", line), name="q.jsonl")
    assert str(caught.value).startswith("q.jsonl, line 3: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["absent.jsonl", ".", "a\0b"])
def test_an_unreadable_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_questions(tmp_path / name)


def test_an_empty_file_is_an_error_that_shows_the_format() -> None:
    with pytest.raises(InputError, match='has no questions: write one JSON object per line, with "question"'):
        parse_questions(b"\n \n")


TOP_KEYS = ["id", "question", "relevant", "evidence", "file"]
ITEM_KEYS = ["file", "start", "end", "page", "pages", "text", "chunk_id"]

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("a.md")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(ITEM_KEYS), inner)),
    max_leaves=12,
)
rows = st.dictionaries(st.sampled_from(TOP_KEYS), json_values)


@given(st.lists(st.one_of(rows.map(lambda row: json.dumps(row).encode()), st.binary(max_size=40)), max_size=4))
def test_any_file_content_raises_only_errors_of_the_package(parts: list[bytes]) -> None:
    try:
        questions = parse_questions(b"\n".join(parts))
    except ContextualError:
        return
    for question in questions:
        question.ranks([passage()])
        json.dumps(question.text).encode()


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"question":' * 50_000, b'{"question": ' + b"9" * 5_000 + b"}"])
def test_extreme_nesting_and_numbers_are_errors_of_the_line(deep: bytes) -> None:
    with pytest.raises(InputError, match="line 1: "):
        parse_questions(deep)
