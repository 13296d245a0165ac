"""The language of texts, and the analysis of texts in several languages."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.index.languages import (
    analyzer_of,
    describe_languages,
    detect_language,
    foreign_language,
    language_of_document,
    language_of_texts,
)

TEXTS = {
    "english": "The tenant may end the lease at the end of each month with a notice of four weeks in writing.",
    "german": "Der Mieter kann den Vertrag zum Ende eines jeden Monats mit einer Frist von vier Wochen kündigen.",
    "dutch": "De huurder kan het contract aan het einde van elke maand met een termijn van vier weken opzeggen.",
    "french": "Le locataire peut résilier le bail à la fin de chaque mois avec un préavis de quatre semaines.",
    "swedish": "Hyresgästen kan säga upp avtalet vid slutet av varje månad med fyra veckors uppsägningstid.",
    "polish": "Najemca może wypowiedzieć umowę na koniec każdego miesiąca z czterotygodniowym wypowiedzeniem.",
    "arabic": "يجوز للمستأجر إنهاء العقد في نهاية كل شهر بإشعار مدته أربعة أسابيع كتابيا.",
    "hebrew": "השוכר רשאי לסיים את החוזה בסוף כל חודש בהודעה של ארבעה שבועות בכתב.",
    "japanese": "借主は毎月末に四週間前の書面による通知をもって契約を終了することができます。",
    "chinese": "承租人可以在每月月底提前四周书面通知终止租赁合同。",
}


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_of_a_sentence_is_recognised(language: str) -> None:
    assert detect_language(TEXTS[language]) == language


@pytest.mark.parametrize("text", ["", "TS-999", "1 2 3 4", "x" * 200, "alpha beta gamma"])
def test_a_text_with_too_few_words_is_in_no_language(text: str) -> None:
    assert detect_language(text) == ""


def test_full_width_letters_do_not_hide_the_language() -> None:
    assert detect_language("Ｄｉｅ Ｐｕｍｐｅ ｉｓｔ ｄｅｆｅｋｔ ｕｎｄ ｗｉｒｄ ｅｒｓｅｔｚｔ．") == "german"


def test_rows_of_figures_do_not_hide_the_language_of_their_labels() -> None:
    rows = "\n".join(
        f"| Umsatzerlöse aus dem Verkauf von Ersatzteilen | {n:,} | {n / 7:.2f} |" for n in range(1000, 1020)
    )
    assert detect_language(rows) == "german"


def test_the_language_of_most_of_a_document_counts() -> None:
    english, german = TEXTS["english"], TEXTS["german"]
    assert language_of_texts([english[:60], *[german * 3] * 8, german]) == "german"
    assert language_of_texts([]) == ""


def test_the_longest_path_determines_the_language() -> None:
    config = ProjectConfig.local(languages={"letters": "german", "letters/nl/": "dutch", "letters/a.md": "none"})
    found = {
        name: language_of_document(name, [], config) for name in ("letters/b.md", "letters/nl/c.md", "letters/a.md")
    }
    assert found == {"letters/b.md": "german", "letters/nl/c.md": "dutch", "letters/a.md": "none"}
    assert language_of_document("letters-2/b.md", [], config) == ""
    assert language_of_document("letters-2/b.md", [], config.changed(language="french")) == "french"


@pytest.mark.parametrize("languages", [{"a": "klingon"}, {"a": "auto"}, {"": "german"}, {"/": "german"}])
def test_an_invalid_language_of_a_folder_is_an_error(languages: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="languages"):
        ProjectConfig.local(languages=languages)


def test_a_word_of_a_text_in_several_languages_yields_the_terms_of_each() -> None:
    analyzer = analyzer_of(["english", "german", ""])
    assert analyzer.languages == ("english", "german")
    assert analyzer.terms("Connections Kündigungsfristen") == [
        *("connect", "connection"),
        *("kundigungsfristen", "kundigungsfrist"),
    ]
    assert analyzer_of([]).languages == ("english",)


def test_a_question_is_analysed_in_its_own_language() -> None:
    analyzer = Analyzer("english", others=["german"])
    assert analyzer.query_terms("Wie lang ist die Kündigungsfrist?") == ["lang", "kundigungsfrist"]
    assert analyzer.query_terms("How long is the notice period?") == ["long", "notic", "period"]
    assert not analyzer.may_be_foreign("Wie lang ist die Frist?")
    assert analyzer.may_be_foreign("Quelle est la durée du contrat dans ce cas ?")


def test_a_question_in_the_language_of_contexts_is_analysed_in_it_and_foreign() -> None:
    analyzer = analyzer_of({"english": 10}, contexts=["german", "english"])
    assert analyzer.languages == ("english",)
    assert analyzer.query_terms("Welche Kündigungsfristen gelten?") == ["kundigungsfrist", "gelt"]
    assert analyzer.other_terms("connections") == ["connect"]
    assert analyzer.terms("Connections Kündigungsfristen") == Analyzer().terms("Connections Kündigungsfristen")
    assert analyzer.may_be_foreign("Welche Kündigungsfristen gelten nach der Satzung?")
    assert not analyzer.may_be_foreign("What is the notice period?")
    assert analyzer.context_languages == ("german",)


@pytest.mark.parametrize(
    ("question", "chunks", "language"),
    [
        ("Wie lang ist die Frist?", {"english": 100}, "german"),
        ("Wie lang ist die Frist?", {"english": 1000, "german": 5}, "german"),
        ("Wie lang ist die Frist?", {"english": 90, "german": 10}, ""),
        ("Wie lang ist die Frist?", {"german": 100}, ""),
        ("Wie lang ist die Frist?", {"": 60, "english": 40}, ""),
        ("Wie lang ist die Frist?", {"": 40, "english": 60}, "german"),
        ("Wie lang ist die Frist?", {"none": 100}, ""),
        ("ما هي مدة الإشعار في عقد الإيجار؟", {"english": 100}, "arabic"),
        ("Thời hạn báo trước trong hợp đồng thuê nhà là bao lâu?", {"english": 100}, "vietnamese"),
        ("Care este termenul de preaviz din contractul de închiriere?", {"english": 100}, "romanian"),
        ("What does the α of TS-999 mean?", {"english": 100}, ""),
        ("α of TS-999", {"english": 100}, ""),
        ("How long is the notice period of the lease?", {"german": 100}, "english"),
        ("The Who: Die Another Day?", {"english": 100}, ""),
        ("TS-999", {"german": 100}, ""),
        ("Frist?", {"english": 100}, ""),
    ],
)
def test_the_language_of_a_question_is_foreign_if_all_signs_agree(
    question: str, chunks: dict[str, int], language: str
) -> None:
    assert foreign_language(question, analyzer_of(chunks)) == language


@pytest.mark.parametrize(
    ("language", "spellings"),
    [
        ("arabic", "الإجازة الاجازه الأجازة إجَازَة إجـازة"),
        ("arabic", "المستشفى المستشفي"),
        ("arabic", "المسؤول المسئول"),
        ("arabic", "شؤون شئون"),
        ("arabic", "٢٠١٨ 2018"),
        ("hebrew", "שָׁלוֹם שלום"),
        ("turkish", "ISPARTA ısparta Isparta"),
        ("turkish", "İstanbul istanbul"),
        ("french", "élève eleve ÉLÈVE"),
        ("french", "œuvre oeuvre"),
        ("spanish", "año ano"),
        ("english", "café cafe ｃａｆｅ"),
        ("english", "ﬁles files"),
        ("german", "Maße MASSE"),
        ("russian", "ёлка елка"),
        ("polish", "łódź lodz"),
    ],
)
def test_forms_of_letters_share_a_term(language: str, spellings: str) -> None:
    terms = {tuple(Analyzer(language).terms(spelling)) for spelling in spellings.split()}
    assert len(terms) == 1
    assert terms != {()}


@pytest.mark.parametrize(("language", "words"), [("swedish", "får far"), ("danish", "må ma"), ("vietnamese", "má ma")])
def test_letters_of_their_own_are_kept(language: str, words: str) -> None:
    one, other = words.split()
    assert Analyzer(language).terms(one) != Analyzer(language).terms(other)


@pytest.mark.parametrize(
    ("language", "text", "question"),
    [
        ("turkish", "İSTANBUL ŞUBESİ dokuzda açılır", "subesi"),
        ("swedish", "Mötet börjar klockan tio", "motet"),
        ("finnish", "Päivähoito alkaa", "paivahoito"),
        ("vietnamese", "Hợp đồng thuê nhà", "hop dong"),
        ("hungarian", "A szerződés érvényes", "szerzodes"),
        ("danish", "Lønnen udbetales", "lonnen"),
    ],
)
def test_a_word_without_marks_finds_the_one_with_them_unless_it_is_a_word_itself(
    language: str, text: str, question: str
) -> None:
    index = LexicalIndex.build([text, "Another text"], language=language)
    assert index.scores(question)[0] > 0
    assert {one.kind for one in index.query(question).variants.values()} == {"form"}
    both = LexicalIndex.build([text, question], language=language)
    assert not both.query(question).variants


@pytest.mark.parametrize(
    ("text", "question"), [("החופשה השנתית", "חופשה"), ("חופשה שנתית", "החופשה"), ("אסור לעשן בבית", "בית")]
)
def test_hebrew_words_are_found_with_and_without_their_prefixes(text: str, question: str) -> None:
    index = LexicalIndex.build([text, "המנהל אחראי"], language="hebrew")
    scores = index.scores(question)
    assert scores[0] > scores[1] == 0


@pytest.mark.parametrize(
    ("language", "text", "question"),
    [
        ("german", "Frau Müller wohnt hier.", "Mueller"),
        ("german", "Frau Mueller wohnt hier.", "Müller"),
        ("german", "Die Größe ist bekannt.", "Groesse"),
        ("german", "Die Strasse ist gesperrt.", "Straße"),
        ("danish", "Ærø er en ø.", "Aeroe"),
        ("swedish", "Göteborg ligger vid havet.", "Goeteborg"),
    ],
)
def test_umlauts_are_found_as_two_letters_and_the_other_way_round(language: str, text: str, question: str) -> None:
    assert LexicalIndex.build(["Etwas anderes.", text], language=language).scores(question).tolist()[1] > 0


def test_languages_are_described_with_their_chunks() -> None:
    assert describe_languages({"german": 1_310, "": 1}) == "German (1,310 chunks), unknown (1 chunk)"


def test_threads_that_ask_at_the_same_time_get_the_terms_of_their_own_question() -> None:
    analyzer = analyzer_of(["english", "german"])
    questions = ["When are the fees of the tenants due?", "Wann sind die Gebühren der Mieter fällig?"] * 2_000
    expected = {text: analyzer_of(["english", "german"]).query_terms(text) for text in set(questions)}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(analyzer.query_terms, questions))
    finally:
        sys.setswitchinterval(interval)
    assert all(terms == expected[text] for text, terms in zip(questions, results, strict=True))
