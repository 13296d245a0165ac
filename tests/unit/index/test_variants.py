"""Terms that are searched in addition to those of a question: compounds, codes, other languages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llama_index_contextual.index.bm25 import LexicalIndex, LexicalIndexBuilder
from llama_index_contextual.index.languages import analyzer_of

GERMAN = (
    "Die Kündigungsfrist beträgt vier Wochen.",
    "Der Urlaubsantrag wird der Leitung vorgelegt.",
    "Bei einer Brandmeldung ist das Gebäude zu verlassen.",
    "Die Wohnungsschlüssel werden im Büro verwahrt.",
    "Jede Frist steht im Kalender.",
)
DUTCH = (
    "De opzegtermijn is vier weken.",
    "De arbeidsovereenkomst wordt getekend.",
    "Een huurcontract loopt een jaar.",
    "De fietsenstalling is dicht.",
)


def first(index: LexicalIndex, question: str) -> int | None:
    """Return the number of the text that a question finds first, or None if it finds none."""
    scores = index.scores(question)
    return int(scores.argmax()) if scores.any() else None


COMPOUNDS = [
    *(("german", GERMAN, word, 0) for word in ("Kündigung",)),
    *(("german", GERMAN, word, 1) for word in ("Urlaub", "Antrag")),
    *(("german", GERMAN, word, 2) for word in ("Brand", "Meldung")),
    *(("german", GERMAN, word, 3) for word in ("Wohnung", "Schlüssel")),
    *(("dutch", DUTCH, word, 0) for word in ("termijn",)),
    *(("dutch", DUTCH, word, 1) for word in ("arbeid", "overeenkomst")),
    *(("dutch", DUTCH, word, 2) for word in ("huur", "contract")),
    *(("dutch", DUTCH, word, 3) for word in ("fiets", "stalling")),
    ("swedish", ("Uppsägningstiden är en månad.", "x"), "uppsägning", 0),
    ("danish", ("Opsigelsesfristen er en måned.", "x"), "opsigelse", 0),
    ("norwegian", ("Oppsigelsesfristen er en måned.", "x"), "oppsigelse", 0),
    ("finnish", ("Vuokrasopimus on kirjallinen.", "x"), "vuokra", 0),
    # the last part, whichever ending the compound has
    ("dutch", ("x y z", "De slaapplaatsen zijn boven."), "plaats", 1),
    ("dutch", ("x y z", "De zomervakanties duren zes weken."), "vakantie", 1),
    ("danish", ("x y z", "Der er fem liggepladser."), "plads", 1),
    ("swedish", ("x y z", "Det finns fem sittplatser."), "plats", 1),
    ("norwegian", ("x y z", "Det er to lysbrytere ved døren."), "bryter", 1),
    ("finnish", ("x y z", "Jokaisessa huoneessa on yksi vedenkeitin."), "keitin", 1),
]


@pytest.mark.parametrize(("language", "texts", "question", "text"), COMPOUNDS, ids=lambda value: str(value)[:12])
def test_a_part_finds_a_compound(language: str, texts: Sequence[str], question: str, text: int) -> None:
    assert first(LexicalIndex.build(texts, language=language), question) == text


def test_a_short_last_part_finds_a_compound_although_it_also_occurs_alone() -> None:
    index = LexicalIndex.build(
        ["Es ist Zeit.", "Die Ruhezeiten stehen im Vertrag.", "Das ist ein Zeitvertreib."], language="german"
    )
    assert index.query("Zeit").variants["ruhezeit"].kind == "compound"
    scores = index.scores("Zeit")
    assert scores[0] > scores[1] > 0


def test_the_word_itself_ranks_before_its_compounds_and_a_compound_finds_its_parts() -> None:
    index = LexicalIndex.build(GERMAN, language="german")
    scores = index.scores("Frist")
    assert scores[4] > scores[0] > 0
    assert index.scores("Lieferfrist")[4] > 0
    assert index.query("Frist").variants["kundigungsfrist"].kind == "compound"
    assert index.query("Frist").variants["kundigungsfrist"].of == "frist"


@pytest.mark.parametrize("question", ["Bericht", "Recht", "Arbeit"])
def test_inflected_and_derived_words_are_not_compounds(question: str) -> None:
    texts = ("Er berichtigt den Fehler.", "Das Unrecht war gerecht verteilt.", "Alle Arbeiter sind da.")
    assert not LexicalIndex.build(texts, language="german").query(question).variants


@pytest.mark.parametrize("language", ["english", "french", "none"])
def test_languages_without_compounds_are_not_affected(language: str) -> None:
    index = LexicalIndex.build(["The pacemaker and the marketplace.", "A place."], language=language)
    for question in ("place", "market", "marketplace", "pace"):
        assert not index.query(question).variants


# ---- codes -----------------------------------------------------------------------------------------------------------

CODES = ("TS-999", "A/B-12", "4711-0815-22", "XK 20 4500", "DIN 4102")
SPELLINGS = {
    "TS-999": ("TS-999", "TS999", "ts 999", "TS_999", "TS/999", "ts-999", "TS.999", "TS\u2013999"),
    "A/B-12": ("A/B-12", "A/B 12", "AB-12", "AB12", "a/b12", "ab 12", "A-B-12"),
    "4711-0815-22": ("4711-0815-22", "4711081522", "4711 0815 22", "4711/0815/22", "4711.0815.22"),
    "XK 20 4500": ("XK204500", "XK-20-4500", "xk 20 4500"),
    "DIN 4102": ("DIN4102", "DIN-4102", "din 4102"),
}


@pytest.mark.parametrize(("code", "spelling"), [(code, one) for code, all_ in SPELLINGS.items() for one in all_])
def test_a_code_is_found_in_any_spelling(code: str, spelling: str) -> None:
    others = ["TS-998 and 999", "A/B-13", "4711-0816-22", "XK 21 4500", "DIN 4103"]
    index = LexicalIndex.build([f"The part {one} is in stock." for one in (*others, *CODES)])
    assert first(index, f"Where is {spelling}?") == len(others) + CODES.index(code)


def test_the_exact_form_of_a_code_ranks_first() -> None:
    index = LexicalIndex.build(["Part TS999 here.", "Part TS-999 here.", "Part TS_999 here."])
    assert [first(index, code) for code in ("TS999", "TS-999", "TS_999")] == [0, 1, 2]


@pytest.mark.parametrize(
    "texts", [("Part TS 999 here.", "Part TS999 here."), ("Part KX999 here.", "Part KX 999 here.")]
)
def test_a_code_with_a_space_and_one_without_rank_as_they_are_written(texts: Sequence[str]) -> None:
    index = LexicalIndex.build([*texts, "Part XK 998 here.", "Another text."])
    for at, text in enumerate(texts):
        code = text.removeprefix("Part ").removeprefix("A ").removesuffix(" here.")
        for question in (code, code.lower()):
            scores = index.scores(question)
            assert scores[at] > scores[1 - at] > scores[2:].max()


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("1,5 kg of salt", "1.5"),
        ("1.5 kg of salt", "1,5"),
        ("1.234,50 Euro", "1,234.50"),
        ("1,234 pumps", "1234"),
        ("20kg of salt", "20 kg"),
        ("20 kg of salt", "20kg"),
        ("Art. 5 of the act", "Artikel 5"),
        ("Artikel 5 GG", "art 5"),
        ("nach §623 BGB", "§ 623"),
    ],
)
def test_numbers_units_and_references_are_found_in_other_forms(text: str, question: str) -> None:
    index = LexicalIndex.build(["15 things", text, "Art. 6 and 624, 21 kg and 2 kg, 1.6 or 1,234.60, 1235 and 6"])
    assert first(index, question) == 1


def test_a_date_with_a_comma_is_a_date() -> None:
    index = LexicalIndex.build(["The year ended May 31,2018.", "The year 2018."])
    assert first(index, "fiscal 2018") == 0


# ---- languages -------------------------------------------------------------------------------------------------------


def mixed() -> LexicalIndex:
    builder = LexicalIndexBuilder()
    texts = {"english": "The connections of the pumps.", "german": "Die Kündigungsfristen der Verträge sind lang."}
    for language, text in texts.items():
        builder.add_words(text.replace(".", "").split(), analyzer_of([language]))
    return LexicalIndex(analyzer_of(["english", "german"]), [builder.build()])


@pytest.mark.parametrize(("question", "text"), [("connected pump", 0), ("Kündigungsfrist", 1), ("Vertrag", 1)])
def test_a_question_finds_texts_in_each_language(question: str, text: int) -> None:
    assert first(mixed(), question) == text


def test_terms_of_other_languages_are_variants_if_a_text_contains_them() -> None:
    terms = mixed().query("Kündigungsfristen unknown")
    assert {term: (one.of, one.kind) for term, one in terms.variants.items()} == {
        "kundigungsfrist": ("kundigungsfristen", "language")
    }
