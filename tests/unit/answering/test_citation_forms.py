"""Citations in the forms in which models write them, and numbers that are no citations."""

from __future__ import annotations

import pytest

from llama_index_contextual.answering.citations import CitationFilter, CitationReport, Passage, check_citations
from llama_index_contextual.search.response import Source

PASSAGES = [
    Passage(
        "Food keeps for three days. The method [12] is fast [2]. The room has 20 m². Attach document 1, see step 3."
        " It is [Source 2]. Connect the source 3.",
        Source(file_name="manual.pdf", title="Safety manual", page_start=1, page_end=2),
    ),
    Passage("Boil all water.", Source(file_name="docs/water.md")),
    Passage("Canned goods last.", Source(file_name="manual.pdf", title="Safety manual", page_start=3, page_end=4)),
]


def check(answer: str) -> CitationReport:
    """Return the report on an answer, which is the same if the answer is streamed."""
    report = check_citations(answer, PASSAGES)
    for size in (1, 2, 7):
        stream = CitationFilter(PASSAGES)
        pieces = [stream.feed(answer[at : at + size]) for at in range(0, len(answer), size)]
        assert "".join([*pieces, stream.flush()]) == report.text
        assert tuple(stream.invalid) == report.invalid
    return report


CITATIONS = [
    # numbers in brackets
    ("Three days [1].", (1,), "Three days [Source 1]."),
    ("Three days[1]. Then [2].", (1, 2), "Three days [Source 1]. Then [Source 2]."),
    ("Three days.[1][2]", (1, 2), "Three days. [Source 1][Source 2]"),
    ("Three days [1, 3].", (1, 3), "Three days [Source 1][Source 3]."),
    ("Three days [1-3].", (1, 2, 3), "Three days [Source 1][Source 2][Source 3]."),
    ("Three days [1; 2] [2 and 3].", (1, 2, 3), "Three days [Source 1][Source 2] [Source 2][Source 3]."),
    ("Three days [[1]].", (1,), "Three days [Source 1]."),
    ("Three days ([1], [2]).", (1, 2), "Three days ([Source 1], [Source 2])."),
    ("Three days [#2] [@3].", (2, 3), "Three days [Source 2] [Source 3]."),
    ("Three days [1, p. 4].", (1,), "Three days [Source 1]."),
    ("As in [1] and [2], it keeps.", (1, 2), "As in [Source 1] and [Source 2], it keeps."),
    ("- **[1]** | [2] |\n> [3]", (1, 2, 3), "- **[Source 1]** | [Source 2] |\n> [Source 3]"),
    # words and numbers in brackets
    ("Three days (Source 1).", (1,), "Three days [Source 1]."),
    ("Three days (see sources 1 and 3).", (1, 3), "Three days [Source 1][Source 3]."),
    ("Three days (cf. Source 2, p. 3).", (2,), "Three days [Source 2]."),
    ("Three days [Source #1] [source_2] [SOURCE-3].", (1, 2, 3), "Three days [Source 1] [Source 2] [Source 3]."),
    ("Three days [Source 1: manual.pdf, p. 3].", (1,), "Three days [Source 1]."),
    ("Three days [Source 2 (p. 3), 2019].", (2,), "Three days [Source 2]."),
    ("Three days [ID:1] [id 2].", (1, 2), "Three days [Source 1] [Source 2]."),
    ("Three days [doc1][Document 2] [S3].", (1, 2, 3), "Three days [Source 1][Source 2] [Source 3]."),
    ("Three days [citation:1] [cite: 2, 3] [ref. 1].", (1, 2, 3), None),
    ("Three days [passages 1, 2] (excerpt 3).", (1, 2, 3), None),
    # daggers, footnotes and superscripts
    ("Three days【1†source】【2†L3-L5】.", (1, 2), "Three days [Source 1][Source 2]."),
    ("Three days【3:2†source】[1†].", (2, 1), None),
    ("Three days.[^1] Then[^2].\n\n[^1]: manual.pdf", (1, 2), None),
    ("Three days [^1^][^2^] [^1,3].", (1, 2, 3), None),
    (
        "Three days.¹ Then²,³ and “so”¹.",
        (1, 2, 3),
        "Three days. [Source 1] Then [Source 2][Source 3] and “so” [Source 1].",
    ),
    ("Three days¹². Then³.", (1, 2, 3), "Three days [Source 1][Source 2]. Then [Source 3]."),
    ("Three days<sup>1</sup> or &lt;sup>2, 3&lt;/sup>.", (1, 2, 3), "Three days [Source 1] or [Source 2][Source 3]."),
    # running text
    ("According to source 2, boil it.", (2,), "According to [Source 2], boil it."),
    ("Source 1 says so. Source 2 does not.", (1, 2), "[Source 1] says so. [Source 2] does not."),
    ("Sources 1, 2, and 3 agree.", (1, 2, 3), "[Source 1][Source 2][Source 3] agree."),
    ("Source [1] and source (2) differ.", (1, 2), "[Source 1] and [Source 2] differ."),
    ("Sources: 1; 3", (1, 3), "[Source 1][Source 3]"),
    ("See passage 2. As per document 3, it keeps.", (2, 3), "See [Source 2]. As per [Source 3], it keeps."),
    ("Source 1 and 2 agree; sources 1-3, 24 hours.", (1, 2, 3), None),
    ("_Source 3_ **Source 2:** source(s) 1", (3, 2, 1), "_[Source 3]_ **[Source 2]:** [Source 1]"),
    # numbers in round brackets and between backquotes at the end of a sentence
    ("Opened tins keep long (3).", (3,), "Opened tins keep long [Source 3]."),
    ("Opened tins keep long (1)(3). All water is boiled (2)", (1, 3, 2), None),
    ("Opened tins keep long (1, 3).", (1, 3), "Opened tins keep long [Source 1][Source 3]."),
    ("Opened tins keep “quite long” (3).\n\nBoil it.", (3,), "Opened tins keep “quite long” [Source 3].\n\nBoil it."),
    ("Man kocht das Wasser immer (2).", (2,), "Man kocht das Wasser immer [Source 2]."),
    ("Opened tins keep long `[3]`.", (3,), "Opened tins keep long [Source 3]."),
    ("Opened tins keep long `[1]`", (1,), "Opened tins keep long [Source 1]"),
    # numbers in words
    ("According to source two, boil it.", (2,), "According to [Source 2], boil it."),
    ("Source one says so. Source Two does not.", (1, 2), "[Source 1] says so. [Source 2] does not."),
    ("Three days (source one) [Quelle zwei].", (1, 2), "Three days [Source 1] [Source 2]."),
    ("Laut Quelle drei hält es. Quelle eins nennt drei Tage.", (3, 1), None),
    ("Laut Quellen eins und drei hält es.", (1, 3), "Laut [Source 1][Source 3] hält es."),
    # names of files
    ("Three days [docs/water.md] (water.md).", (2,), "Three days [Source 2] [Source 2]."),
    ("Three days [manual.pdf, p. 3].", (3,), "Three days [Source 3]."),
    ("Three days [Source: Safety manual, page 1].", (1,), "Three days [Source 1]."),
    ("Three days 【4:9†manual.pdf】.", (1, 3), "Three days [Source 1][Source 3]."),
    # other languages and scripts
    ("Drei Tage [Quelle 1], (Quellen 2 und 3), laut Quelle 1.", (1, 2, 3), None),
    ("Drei Tage (vgl. Quelle 2, S. 4). Siehe [1] und [3].", (2, 1, 3), None),
    ("Trois jours (source 1), selon la source n° 2 [extrait 3].", (1, 2, 3), None),
    ("Tres días [Fuente 1], según la fuente 2 (fuentes 2 y 3).", (1, 2, 3), None),
    ("Tre giorni [fonte 1], secondo la fonte 2 [Fonti 1 e 3].", (1, 2, 3), None),
    ("Três dias [Fonte 1] e [documento 2], segundo a fonte 3.", (1, 2, 3), None),
    ("Drie dagen [bron 1], volgens bron 2 (bronnen 1 en 3).", (1, 2, 3), None),
    ("Trzy dni [źródło 1], według źródła 2.", (1, 2), None),
    ("Tři dny [zdroj 1], podle zdroje 2.", (1, 2), None),
    ("Tre dagar [källa 1], enligt källa 2; tre dage [kilde 3].", (1, 2, 3), None),
    ("Kolme päivää [lähde 1], lähteen 2 mukaan.", (1, 2), None),
    ("Három nap [1. forrás] [forrás 2], források 1 és 3.", (2, 1, 3), None),
    ("Три дня [источник 1], согласно источнику 2 (источники 1 и 3).", (1, 2, 3), None),
    ("Три дні [джерело 1], за джерелом 2.", (1, 2), None),
    ("Τρεις ημέρες [πηγή 1], σύμφωνα με την πηγή 2.", (1, 2), None),
    ("Üç gün [kaynak 1], kaynak 2'ye göre.", (1, 2), None),
    ("三天[来源 1]，根据来源2，煮沸【来源：3】。", (1, 2, 3), "三天[Source 1]，根据[Source 2]，煮沸[Source 3]。"),
    ("三日間［１］、出典2によると（出典：3）。", (1, 2, 3), None),
    ("사흘 [출처 1]. 출처 2에 따르면 [문서 3].", (1, 2, 3), None),
    ("ثلاثة أيام [المصدر ١]، وفقًا للمصدر 2 [٣].", (1, 2, 3), None),
    ("سه روز [منبع ۱] و منبع ۲.", (1, 2), None),
    ("שלושה ימים [מקור 1], לפי מקור 2 [מקורות 1 ו-3].", (1, 2, 3), None),
    ("तीन दिन [स्रोत १], स्रोत 2 के अनुसार।", (1, 2), None),
    ("สามวัน [แหล่งที่มา 1] ตามแหล่งที่มา ๒", (1, 2), None),
    ("Ba ngày [nguồn 1], theo nguồn 2 [tài liệu 3].", (1, 2, 3), None),
    ("Tiga hari [sumber 1], menurut sumber 2.", (1, 2), None),
]


@pytest.mark.parametrize(("answer", "cited", "text"), CITATIONS)
def test_a_citation_is_recognised_and_shown_in_one_form(answer: str, cited: tuple[int, ...], text: str | None) -> None:
    report = check(answer)
    assert (report.cited, report.invalid) == (cited, ())
    assert text is None or report.text == text
    assert check(report.text).text == report.text


NO_CITATIONS = [
    "The method [12] is fast [2]. It is (Source 2).",  # as in the passage, where the prompt has "(Source 2)"
    "The room has 20 m², 10² of it, x² and E = mc².",
    "Attach document 1 and see step 3. Connect the source 3.",
    "It was so in 2019 (2019), and [2019] on page [404].",
    "Use items[0], x[1], my_list[2], itemList[1], f()[1], args[1] = 2, and rows[1].name.",
    "Use `data [1]` or\n```\nprint(a [2])\nsource 1\n```\n",
    "1. First\n2) Second\n(3) Third",
    "See [1](https://example.org/2), ![2](a.png) and [text][1].\n\n[1]: https://example.org",
    "See https://example.org/source/1 and #source-2.",
    "Values in [0, 1], the interval [1, 2], the array [1, 2, 3], x ∈ [1, 3] and y = [2].",
    "See section [1], step [2] and Table [3]. Version [1.2] of [2024-01-15] at [12:30], [x] and [ ].",
    "The power source 1 is off, and source 2.5 too. Resource 1 and Sourcebook 2 are new.",
    "Nahrung [S. 4] für 3 Tage, Seite 1, Absatz (2).",
    "It is [1/3], [1e5], [10%], [+1], [page 3], [p. 2], [1st] and [Source ten thousand] of source 1.5.",
    "1. This is not a source.\n2. This is not a source.\n3. The pump is a source.",
    "It names the source. 2 days are enough. The documents:\n1. Boil it.\n2. Wait.",
    "Das ist die Quelle. 2 Tage reichen.",
    "(1) First boil it. (2) Then wait for a while.",
    "Boil it for a while (1), then wait for two days (2) or more.",
    "It keeps for three whole days (3). Keep three tins of it (3).",
    "It takes place in section (1). It seems to be quite fast (2).",
    "The answer to that is (1). The function returns `[1]`. It is `[3]`.",
    "Call it with the first element `[1]` of the list. The method is quite fast `[2]`.",
    "There are not many left (7). It was a very good year (2019).",
    "They source one part from Spain, and the firm sources three parts. Source one part today.",
    "Sources two suppliers. From a source one trusts. Eine Quelle drei Meter tief.",
    "A [note], (a remark about 1 or 2 things), 【提示】, [see 9], [Sourcebook] and [Source].",
]


@pytest.mark.parametrize("answer", NO_CITATIONS)
def test_a_number_of_the_text_is_no_citation(answer: str) -> None:
    report = check(answer)
    assert (report.cited, report.invalid) == ((), ())
    assert report.text == answer.strip()


@pytest.mark.parametrize(
    ("answer", "cited", "invalid", "text"),
    [
        ("Three days [7].", (), (7,), "Three days."),
        ("Three days [Source 0] long.", (), (0,), "Three days long."),
        ("Three days [Source 1-4][Source 5].", (1, 2, 3), (4, 5), "Three days [Source 1][Source 2][Source 3]."),
        ("Three days [1, 9].", (1,), (9,), "Three days [Source 1]."),
        ("Three days (Source 8) 【5†source】[^6].", (), (8, 5, 6), "Three days."),
        ("Drei Tage [Quelle 4], laut Quelle 5.", (), (4, 5), "Drei Tage, laut […]."),
        ("Three days.⁷", (), (7,), "Three days."),
        ("三天【来源 9】。", (), (9,), "三天。"),
        ("Three days [٩].", (), (9,), "Three days."),
    ],
)
def test_a_number_that_no_source_has_is_reported(
    answer: str, cited: tuple[int, ...], invalid: tuple[int, ...], text: str
) -> None:
    report = check(answer)
    assert (report.cited, report.invalid, report.text) == (cited, invalid, text)
    assert not report.is_clean


def test_the_numbers_of_citations_are_not_checked_as_figures() -> None:
    answer = "It keeps[1]. According to source 2, boil it.³ So says 【1†source】 (Quelle 2)."
    assert check(answer).unsupported == ()


def test_an_answer_without_citations_is_not_clean_unless_nothing_was_found() -> None:
    report = check_citations("It keeps for three days.", PASSAGES)
    assert (report.cites_nothing, report.is_clean) == (True, False)
    report = check_citations("I could not find this.", PASSAGES, found=False)
    assert (report.cites_nothing, report.is_clean) == (False, True)
    assert check_citations("It keeps for three days [1].", PASSAGES).is_clean
