"""An answer as HTML: links of citations, marks of quotations and figures, and findings in words."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser

import pytest

from llama_index_contextual.answering.citations import Passage, check_citations
from llama_index_contextual.answering.findings import findings_of
from llama_index_contextual.answering.response import GroundedResponse

nh3 = pytest.importorskip("nh3", reason="needs the extra ui")
from llama_index_contextual.ui.ask import SourceView, answer_html  # noqa: E402
from llama_index_contextual.ui.markdown import render_markdown  # noqa: E402

PASSAGES = [Passage("Food keeps for three days in the <cold> room."), Passage("Boil all water for 5 minutes & wait.")]
SOURCES = [
    SourceView(number=number, label=f"manual & notes {number}.md", url=f"/p/a/passage/{number}?q=a&b", is_cited=True)
    for number in (1, 2)
]


def html_of(answer: str) -> str:
    report = check_citations(answer, PASSAGES)
    return answer_html(report.text, report, SOURCES, lambda quotation: f"/quoted/{quotation.found_in}")


class Outline(HTMLParser):
    """Checks that elements are nested, and collects texts by the marks around them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.marked: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):  # type: ignore[no-untyped-def]
        if tag not in ("br", "hr", "img"):
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag):  # type: ignore[no-untyped-def]
        assert self.open.pop()[0] == tag

    def handle_data(self, data):  # type: ignore[no-untyped-def]
        self.text += data
        self.marked += [(css, data) for tag, css in self.open if tag == "mark"]


def outline(html: str) -> Outline:
    parsed = Outline()
    parsed.feed(str(html))
    parsed.close()
    assert parsed.open == []
    return parsed


def test_a_citation_is_a_link_to_its_passage() -> None:
    assert html_of("Three days [Source 1].") == (
        '<p>Three days <a class="cite" href="/p/a/passage/1?q=a&amp;b" title="manual &amp; notes 1.md"'
        ' aria-label="Source 1">1</a>.</p>'
    )
    html = html_of("Boil [Sources 1 and 2].")
    assert re.findall(r'href="/p/a/passage/(\d)', html) == ["1", "2"]
    assert outline(html).text == "Boil 1 2."


def test_each_quotation_has_its_check_as_text() -> None:
    html = html_of(
        'It “keeps for three days” [Source 1], "boil all water" [Source 1], “food keeps … boil all water” [Source 1],'
        " and “it never ends at all” [Source 2]."
    )
    labels = re.findall(r'class="check-label check-label-([\w-]+)"[^>]*>([^<]+)<', html)
    assert labels == [
        ("verified", "verified"),
        ("wrong-source", "other source"),
        ("stitched", "pieced together"),
        ("not-found", "not found"),
    ]
    assert re.findall(r'href="(/quoted/\d)"', html) == ["/quoted/1", "/quoted/2"]


def test_an_unsupported_figure_is_marked() -> None:
    parsed = outline(html_of("Wait 7 minutes, not 5 [Source 2]."))
    assert parsed.marked == [("check check-unsupported", "7")]
    assert "7unsupported minutes" in parsed.text


def without_brackets(text: str) -> str:
    return re.sub(r"\[Source (\d)\]", r"\1", text)


@pytest.mark.parametrize(
    "answer",
    [
        "> Food keeps for three days [Source 1]\n> in the room\n\nSo it is.",
        "> - boil all water\n> - for 5 minutes",
        "- “boil **all** water for `5` minutes” [Source 2]\n- next",
        "**“boil all water”** and *“keeps for three days”*",
        "| a | b |\n|---|---|\n| “boil all water” | 9 [Source 1] |",
        "# “Boil all water” [Source 2]\n\ntext",
        "“boil all water\nfor 5 minutes”",
        '["boil all water"](https://example.org "boil all water") [Source 2]',
        "[see [Source 1]](https://example.org/1)",
        "```\n“boil all water” 77 [Source 1]\n```",
        "<https://example.org/99>",
        "[Source 1]: https://example.org\n\n[Source 1]",
    ],
)
def test_marks_follow_the_elements_of_markdown(answer: str) -> None:
    report = check_citations(answer, PASSAGES)
    html = html_of(answer)
    parsed = outline(html)
    plain = outline(render_markdown(report.text).rstrip())
    without_labels = re.sub(r"<(a|span) class=\"check-label.*?</\1>", "", html)
    if not answer.startswith("[Source 1]:"):  # CommonMark reads this line as the target of a link
        expected = [
            tag for tag, _ in re.findall(r"<(\w+)([^>]*)>", render_markdown(report.text)) if tag not in ("mark", "a")
        ]
        assert [tag for tag in re.findall(r"<(\w+)", without_labels) if tag not in ("mark", "a")] == expected
        assert without_brackets(outline(without_labels).text) == without_brackets(plain.text)
    assert "[Source" not in parsed.text or "[see [Source 1]]" in answer


def test_random_answers_stay_well_formed_and_keep_their_text() -> None:
    source = random.Random(18)
    pieces = (
        *("“boil all water” ", '"it never ends" ', "[Source 1]", "[Source 2]", " 77 ", "**", "*", "`", "\n\n", "\n> "),
        *("\n- ", "| a | b |\n", "[x](https://a.example/“boil all water”)", "<b>", "</b>", "&amp;", "<", "\\", "# "),
        *("Food keeps for three days", "‘keeps for three days’", "\U000f0003", "![“boil all water”](a.png)", "~~~\n"),
    )
    for round_ in range(300):
        answer = "".join(source.choice(pieces) for _ in range(source.randint(1, 14)))
        html = html_of(answer)
        cleaned = nh3.clean(
            html,
            attributes={
                "a": {"class", "href", "title"},
                "mark": {"class", "title"},
                "span": {"class", "title"},
                "img": {"src", "alt"},
            },
            link_rel=None,
        )
        assert outline(cleaned).text == outline(html).text, (round_, answer)


def test_findings_are_sentences_with_the_words_concerned() -> None:
    text = "“it never ends at all” 77 [Source 1] [Source 9]. “boil all water” [Source 1]. “for three days” [Source 1]"
    report = check_citations(text, PASSAGES)
    answer = GroundedResponse(report.text, [], citations=report, partial="The model sent nothing for 10 seconds.")
    assert [(one.kind, one.text, list(one.quotations)) for one in findings_of(answer)] == [
        ("bad", "The answer is incomplete: The model sent nothing for 10 seconds.", []),
        ("bad", "A citation of Source 9, which does not exist, was removed.", []),
        ("bad", "1 quotation in no passage:", ["it never ends at all"]),
        ("bad", "1 quotation in Source 2, which is not cited for it:", ["boil all water"]),
        ("bad", "1 figure in no cited passage:", ["77"]),
        ("good", "1 quotation verified word for word.", []),
    ]


def test_a_statement_that_a_source_supports_which_it_does_not_cite_is_noted() -> None:
    report = check_citations("You should boil all water for 5 minutes [Source 1].", PASSAGES)
    notes = [one for one in findings_of(GroundedResponse(report.text, [], citations=report)) if one.kind == "note"]
    assert [(one.text, list(one.quotations)) for one in notes] == [
        ("1 statement supported by a source that is not cited there:", ["You should boil all water for 5 minutes."])
    ]


@pytest.mark.parametrize(
    ("verdict", "original", "text"),
    [
        (
            {"unsupported": [], "relevant": True, "confidence": 0.9},
            {},
            "The judge found the answer supported by the passages (confidence 0.90 of 1).",
        ),
        (
            {"unsupported": ["It flies."], "relevant": True, "confidence": 0.8},
            {"original": "Yes."},
            "The judge withheld the answer: no cited passage supports “It flies.” (confidence 0.80 of 1).",
        ),
        ({"error": "No reply."}, {"original": "Yes."}, "The judge could not check the answer: No reply."),
    ],
)
def test_the_verdict_of_the_judge_is_a_sentence(
    verdict: dict[str, object], original: dict[str, str], text: str
) -> None:
    answer = GroundedResponse("Yes.", [], verdict=verdict, metadata=original)
    assert [one.text for one in findings_of(answer)] == [text]
