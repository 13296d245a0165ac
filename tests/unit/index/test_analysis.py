"""Terms of words, of compounds, and of scripts without spaces."""

from __future__ import annotations

import itertools
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.analysis import Analyzer, Memory, match_spans, normalise, token_spans, tokens
from llama_index_contextual.index.bm25 import LexicalIndex

english = Analyzer("english")
plain = Analyzer("none")


TERMS = {
    # a compound gives its parts and the whole
    "TS-999": ["ts-999", "ts999", "ts", "999"],
    "camelCase": ["camelcase", "camel", "case"],
    "HTTPServer2": ["httpserver2", "http", "server", "2"],
    "snake_case_name": ["snake_case_name", "snake", "case", "name"],
    "__init__": ["__init__", "init"],
    "v2.3.1": ["v2.3.1", "v231", "2", "3", "1"],
    "§4.2": ["4.2", "4", "2"],
    "R&D": ["r&d"],
    "A4/B5": ["a4/b5", "a4b5", "4", "5"],
    "max@acme.org": ["max@acme.org", "max", "acme", "org"],
    "https://acme.org/a-b": ["https", "acme.org/a-b", "acme", "org"],
    "state-of-the-art": ["state-of-the-art", "state", "of", "the", "art"],
    "IPv6": ["ipv6", "pv", "6"],
    # names keep their apostrophe, contractions are no compounds
    "O'Reilly": ["o'reilly", "reilly"],
    "l’homme": ["l'homme", "homme"],
    "don't we'll I'm": ["don", "we"],
    # repeated words are kept, repeated parts and single letters are not
    "pump pump": ["pump", "pump"],
    "9-9": ["9-9", "9"],
    "a b C ü я 7": ["7"],
    # scripts without spaces are cut into pairs; vowel signs do not cut a word
    "売上高が": ["売上", "上高", "高が"],
    "公司收入": ["公司", "司收", "收入"],
    "ปั๊ม": ["ปั", "ั๊", "๊ม"],
    "회사는": ["회사", "사는"],
    "水。油": ["水", "油"],
    "ISO9001規格": ["iso9001", "iso", "9001", "規格"],
    "𠮷野": ["𠮷野"],
    "हिन्दी நிறுவனம்": ["हिन्दी", "நிறுவனம்"],
}


@pytest.mark.parametrize("text", TERMS)
def test_a_text_has_these_terms(text: str) -> None:
    assert plain.terms(text) == TERMS[text]


@pytest.mark.parametrize(
    "word", ["revenue", "Revenue", "REVENUE", "999", "Prüfung", "élève", "Ярославль", "ﬁnance", "3"]
)
def test_an_ordinary_word_gives_one_term(word: str) -> None:
    assert plain.terms(word) == [unicodedata.normalize("NFKC", word).casefold()]


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("What does the pump do?", ["pump"]),
        ("How can I reset it, and why shouldn't you?", ["reset"]),
        ("What's the company's revenue?", ["compani", "revenu"]),
        ("What does the WHO recommend?", ["who", "recommend"]),
        ("Who speaks on the CAN bus?", ["speak", "can", "bus"]),
        ("the how-to", ["how-to", "how"]),
        ("Who are you?", []),
    ],
)
def test_question_words_are_left_out(question: str, terms: list[str]) -> None:
    assert english.query_terms(question) == terms


@pytest.mark.parametrize("language", ["none", "german", "spanish"])
def test_stop_words_of_other_languages_include_question_words(language: str) -> None:
    analyzer = Analyzer(language)
    for question in ("Was macht die Pumpe?", "¿Qué hace la bomba?", "What does the pump do?"):
        assert analyzer.query_terms(question) == analyzer.terms(question)


@pytest.mark.parametrize("text", ["", " \n\t", "… – !?", "_____", "\u200b\u00ad", "\u0301"])
def test_text_without_words_has_no_terms(text: str) -> None:
    assert plain.terms(text) == []


# ---- languages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "forms"),
    [
        ("english", "terminated terminating"),
        ("german", "Prüfung Prüfungen"),
        ("german", "Straße STRASSE"),
        ("french", "continuellement continuelle"),
        ("russian", "насосы насосов"),
        ("hindi", "किताब किताबें"),
        ("porter", "connected connection"),
    ],
)
def test_forms_of_a_word_share_a_stem(language: str, forms: str) -> None:
    one, other = forms.split()
    assert Analyzer(language).terms(one) == Analyzer(language).terms(other)
    assert Analyzer("none").terms(one) != Analyzer("none").terms(other) or one.casefold() == other.casefold()


def test_an_unknown_language_is_an_error_that_names_the_known() -> None:
    with pytest.raises(ConfigurationError, match=r"for the language 'klingon': use one of arabic, .*, none, "):
        Analyzer("klingon").terms("pump")


def test_stop_words_are_left_out_by_language() -> None:
    for language, words in {"english": "the of and is", "german": "der die und", "french": "le dans et nous"}.items():
        assert Analyzer(language).terms(words) == []
        assert Analyzer("none").terms(words) == words.split()
    assert Analyzer("finnish").terms("ja ei talo") == ["ei", "talo"], "a list of this package; a negation is kept"
    assert Analyzer("irish").terms("agus teach") == ["agus", "teach"], "a language without a list"
    assert english.terms("AND-OR") == ["and-or"]


# ---- Unicode ---------------------------------------------------------------------------------------------------------


SPELLINGS = {
    "TS-999": (
        *("ＴＳ－９９９", "TS\u2010999", "TS\u2011999", "TS\u2013999", "TS\u2212999", "T\u200bS-9\u00ad99"),
        *("TS\u200e-\u2066999\u2069", "\ufeffTS-999\ufe0f"),
    ),
    "company": ("the company's", "the company’s", "the COMPANY'S", "The company"),
}


@pytest.mark.parametrize(("text", "variant"), [(text, one) for text, variants in SPELLINGS.items() for one in variants])
def test_an_error_code_and_a_possessive_have_one_spelling(text: str, variant: str) -> None:
    assert english.terms(variant) == english.terms(text)


@pytest.mark.parametrize(
    "pair",
    [
        *("café cafe\u0301", "ﬁnance finance", "İstanbul Istanbul", "Ⅷ VIII", "ﾎﾟﾝﾌﾟ ポンプ", "كِتَابٌ كتاب"),
        *("كتـــاب كتاب", "שָׁלוֹם שלום", "می\u200cخواهم میخواهم", "² 2"),
    ],
)
def test_ways_to_write_the_same_give_the_same_terms(pair: str) -> None:
    one, other = pair.split()
    assert plain.terms(one) == plain.terms(other) != []


def test_the_tokens_of_a_character_do_not_depend_on_its_line() -> None:
    # A Chinese character makes the slower pattern, which supports every script, read the whole line.
    for char in map(chr, [*range(0xD800), *range(0xE000, 0x10000)]):
        if len(f"a{char}b".splitlines()) == 1:
            assert tokens(f"a{char}b-{char} 水") == [*tokens(f"a{char}b-{char}"), "水"], hex(ord(char))


@given(lines=st.lists(st.text(max_size=30) | st.sampled_from(["café – TS-999", "水ポンプ", "हिन्दी x"]), max_size=4))
def test_a_text_has_the_tokens_of_its_lines(lines: list[str]) -> None:
    assert tokens("\n".join(lines)) == [token for line in lines for token in tokens(line)]


def test_the_memory_is_bounded() -> None:
    asked: list[str] = []
    lengths = Memory(lambda text: asked.append(text) or len(text), 3)
    assert [lengths[text] for text in ("a", "bb", "a", "ccc", "dddd", "dddd")] == [1, 2, 1, 3, 4, 4]
    assert asked == ["a", "bb", "ccc", "dddd"]
    assert len(lengths) <= 3


# ---- what holds for any text -----------------------------------------------------------------------------------------

texts = st.text(max_size=60) | st.from_regex(r"\A[A-Za-z0-9_.'’/@:+&\- ]{0,40}\Z")
languages = st.sampled_from(["english", "german", "french", "none"])


@given(text=texts, language=languages)
def test_the_index_and_the_query_see_the_same_terms(text: str, language: str) -> None:
    analyzer = Analyzer(language)
    terms = analyzer.terms(text)
    assert terms == analyzer.terms(text) == Analyzer(language).terms(text)
    index = LexicalIndex.build([text, "unrelated"], language=language)
    if terms:
        assert index.scores(text)[0] > 0
        query = index.query(text)
        assert set(query.known) == set(analyzer.query_terms(text) or terms) <= set(terms)
        assert query.contain(np.zeros(1, dtype=np.int64)).all()
    else:
        assert index.scores(text)[0] == 0


@given(st.text(max_size=60))
def test_the_form_of_a_text_does_not_matter(text: str) -> None:
    assert plain.terms(text) == plain.terms(unicodedata.normalize("NFC", text))
    assert normalise(normalise(text)) == normalise(text)


# ---- places ----------------------------------------------------------------------------------------------------------

with_periods = Analyzer("english", has_periods=True)


def matches(text: str, question: str, analyzer: Analyzer = english) -> list[str]:
    return [text[start:end] for start, end in match_spans(text, analyzer.query_terms(question), analyzer)]


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("Termination. It was determined and terminated.", "termination", ["Termination", "terminated"]),
        ("An undetermined term", "term", ["term"]),
        ("Fault TS-999, not TS-998", "TS-999", ["TS-999", "TS-998"]),
        ("Fault TS-999, not 998-TX", "999", ["TS-999"]),
        ("getUserName()", "user", ["getUserName"]),
        ("The company's plan", "company", ["company's"]),
        ("The \ufb01rst \ufb01les", "files", ["\ufb01les"]),
        ("co\u00adop\u00ader\u00adate now", "cooperate", ["co\u00adop\u00ader\u00adate"]),
        ("Caf\u0065\u0301 au lait", "caf\u00e9", ["Caf\u0065\u0301"]),
        ("\u5951\u7d04\u306e\u7d42\u4e86\u3068\u5951\u7d04", "\u5951\u7d04", ["\u5951\u7d04", "\u5951\u7d04"]),
        ("e\u200b\u0301t\u00e9 \u00e9t\u00e9", "\u00e9t\u00e9", ["e\u200b\u0301t\u00e9", "\u00e9t\u00e9"]),
        ("nothing here", "termination", []),
        ("the of and", "the of and", []),
    ],
)
def test_words_of_which_a_term_matches_are_found_as_a_whole(text: str, question: str, expected: list[str]) -> None:
    assert matches(text, question) == expected


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("the second quarter of 2018 was good", "Q2 2018", ["second quarter of 2018"]),
        ("FY18 and fiscal 2018", "fiscal year 2018", ["FY18", "fiscal 2018"]),
        ("fiscal years 2018 and 2017", "FY17", ["2017"]),
        ("for the year ended May 31, 2018", "FY2018", ["year ended May 31, 2018"]),
        ("the twelve months ended on Monday, May 31, 2018", "FY2018", ["twelve months ended on Monday, May 31, 2018"]),
        ("on 31.12.2022", "December 31, 2022", ["31.12.2022"]),
    ],
)
def test_periods_of_several_words_are_found_in_any_spelling(text: str, question: str, expected: list[str]) -> None:
    assert matches(text, question, with_periods) == expected


@given(st.text(max_size=60))
def test_places_belong_to_the_tokens_of_the_text(text: str) -> None:
    places = token_spans(text)
    assert [token for token, _ in places] == tokens(text)
    assert all(normalise(text[ends[0].start : ends[-1].stop]).count(token) for token, ends in places)


@given(text=texts, language=languages)
def test_the_spans_of_a_text_have_its_terms(text: str, language: str) -> None:
    analyzer = Analyzer(language, has_periods=True)
    spans, terms = list(analyzer.spans(text)), analyzer.terms(text)
    assert [term for span in spans for term in span.terms] == terms
    assert all(0 <= span.start < span.end <= len(text) for span in spans)
    assert all(term and not any(sign.isspace() for sign in term.replace(" ", "", 1)) for term in terms)


@given(text=texts, language=languages, pick=st.integers(0, 3))
def test_each_place_has_a_term_and_each_term_a_place(text: str, language: str, pick: int) -> None:
    analyzer = Analyzer(language, has_periods=True)
    terms = set(analyzer.terms(text)[pick::4])
    found = match_spans(text, terms, analyzer)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    spans = list(analyzer.spans(text))
    for start, end in found:
        assert any(start <= span.start < span.end <= end and terms.intersection(span.terms) for span in spans)
    for span in spans:
        is_marked = any(start <= span.start and span.end <= end for start, end in found)
        assert is_marked or not terms.intersection(span.terms)
