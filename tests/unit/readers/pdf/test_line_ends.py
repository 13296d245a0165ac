"""Line ends in Chinese, Japanese and Korean paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llama_index_contextual.readers.lines import Line, joined, joint
from llama_index_contextual.readers.pdf.reader import _place_lines

SIZE = 10.0


def paragraph(texts: Sequence[str], *, spaced: Sequence[int] = (), width: float = SIZE) -> list[Line]:
    """Return lines from the left edge; those with the numbers `spaced` follow a space that the file stores."""
    return [
        Line(text, 700 - 14 * at, SIZE, 1, 50, 50 + width * len(text), spaced=at in spaced)
        for at, text in enumerate(texts)
    ]


def text_of(lines: Sequence[Line]) -> str:
    return "".join(line.text + line.end for line in _place_lines([lines])[0]).rstrip("\n")


@pytest.mark.parametrize(
    "texts",
    [
        ["期间的租金由承租人在每月五日之前", "支付逾期支付的每日加收千分之一的", "滞纳金出租人可以解除合同"],
        ["借主は毎月末日までに翌月分を支払", "うものとする支払いが遅延した場合", "には年利三パーセント"],
        ["承租人在签署协议后使用Word", "编写报告并且提交给出租人以及其", "代理人"],
        ["総額は３６，０００円とし毎月３，", "０００円を支払うものとするがＡＢ", "Ｃ社が"],
        ["สัญญาเช่าฉบับนี้ทำขึ้นระหว่างผู้ให้", "เช่าและผู้เช่าโดยมีเงื่อนไขดังต่อ", "ไปนี้"],
        ["代表取締役社長は吉田とする𠮷野家", "𠮷田太郎は株主総会において選任𠀋", "𠮷田の"],
        ["契約は4月1日に締結されて2020", "年まで続くものとし更新はその後", "協議して決める"],
    ],
)
def test_there_is_no_space_at_line_ends_in_scripts_without_spaces(texts: list[str]) -> None:
    assert text_of(paragraph(texts)) == "".join(texts)


def test_a_short_line_ends_a_paragraph() -> None:
    texts = ["期间的租金由承租人在每月五日之前支付", "逾期支付", "出租人可以在逾期超过三十日时解除合同并"]

    assert text_of(paragraph(texts)) == f"{texts[0]}{texts[1]}\n{texts[2]}"


def test_korean_lines_are_joined_where_the_file_stores_no_space() -> None:
    texts = ["임대료는 월 삼십만원으로 하며 또한", "임차인은 매월 말일까지 다음 달 지", "연되는 경우"]

    assert text_of(paragraph(texts, spaced=[1])) == f"{texts[0]} {texts[1]}{texts[2]}"


def test_korean_lines_that_end_between_words_keep_their_spaces() -> None:
    texts = ["임대료는 월 삼십만원으로 하며 또한", "임차인은 매월 말일까지 다음", "달마다는 지급하여야 한다"]

    assert text_of(paragraph(texts)) == " ".join(texts)


def test_offsets_count_the_characters_of_joined_lines() -> None:
    texts = ["期间的租金由承租人在每月五日之前支付", "逾期支付的每日加收千分之一的滞纳金出", "短"]
    lines = _place_lines([paragraph(texts), paragraph(["Next page"])])

    assert [line.start for page in lines for line in page] == [0, len("".join(texts)) + 1]


def test_lines_of_a_cell_are_joined() -> None:
    assert joined(["Staff with more", "than ten years"]) == "Staff with more than ten years"
    assert joined(["遅延", "損害金"]) == "遅延損害金"
    assert joined(["agree-", "ment"]) == "agree-ment"
    assert joint("rent", "is") == " "
