"""Spelling candidates for words that no text contains, and their weights in a search."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index.analysis import edit_distance_one, may_be_misspelt
from llama_index_contextual.index.bm25 import LexicalIndex
from llama_index_contextual.index.variants import _errors

words = st.text("abc", min_size=1, max_size=5)


def distance(one: str, other: str) -> int:
    """Return the smallest number of letters removed, added, replaced, or swapped with their neighbour."""
    rows = [[max(i, j) if not i * j else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (one[i - 1] != other[j - 1]))
            if min(i, j) > 1 and (one[i - 2], one[i - 1]) == (other[j - 1], other[j - 2]):
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


def index(*texts: str) -> LexicalIndex:
    return LexicalIndex.build(texts)


@given(words, words)
def test_spelling_candidates_are_the_words_at_distance_1_with_the_same_first_letter(word: str, other: str) -> None:
    candidates = edit_distance_one(word)
    assert (other in candidates) == (distance(word, other) == 1 and word[:1] == other[:1])
    assert {distance(word, candidate) for candidate in candidates} == {1}


@pytest.mark.parametrize("token", ["TS-999", "NASA", "getUser", "mean", "3rd", "naïve", "snake_case", "Ünder"])
def test_exact_short_and_foreign_words_are_not_corrected(token: str) -> None:
    assert not may_be_misspelt(token)


@pytest.mark.parametrize("query", ["enviroment", "environmnet", "envoronment", "envirronment", "Enviroment"])
def test_a_misspelt_word_finds_the_intended_one(query: str) -> None:
    found = index("The environment of the plant.", "A pump.")
    (meant, other), (right, _) = found.scores(query), found.scores("environment")
    assert (meant, other) == pytest.approx((0.5 * right, 0.0))
    assert right > 0


@pytest.mark.parametrize(
    ("texts", "query", "known"),
    [
        ("formal formal format", "format", ("format",)),  # a known word
        ("TS-999", "TS-998", ("ts",)),  # an unknown part number
        ("which pump and before what", "whicj beforee pump", ("pump",)),  # stop words and question words
        ("bring the pump", "Being pumps?", ("pump",)),  # an unknown question word
        ("the ", "enviroment", ()),  # an index without terms
    ],
)
def test_these_words_are_not_corrected(texts: str, query: str, known: tuple[str, ...]) -> None:
    assert index(*texts.split(" ")).query(query).known == known


def test_a_candidate_that_is_in_the_question_gains_no_weight() -> None:
    counts = index("a pump agreement").query("pump agreement agreemnet").counts
    assert counts == {"pump": 1.0, "agreement": 1.0, "agreemnet": 1.0}


def test_candidates_share_half_the_weight_of_their_text_by_the_number_of_their_texts() -> None:
    formal = index("formal", "formal", "formal", "format")
    assert formal.query("formak").counts == {"formak": 1.0, "format": 0.125, "formal": 0.375}
    weighted = formal.query([("pump", 1.0), ("formak", 0.5)])
    assert weighted.counts == {"pump": 1.0, "formak": 0.5, "format": 0.0625, "formal": 0.1875}


def test_the_misspelt_word_is_listed_as_missing() -> None:
    terms = index("formal", "format").query("pump formak")
    assert terms.weights["formak"] == terms.weights["pump"] == math.log(1 + 2.5 / 0.5)
    assert terms.known == ("formal", "format")
    assert terms.contain(np.arange(2)).tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The diaphragm of the pump.", "diafragm"),
        ("The accommodation is paid.", "acomodation"),
        ("The environmental report.", "enviromnetal"),
        ("Two maintenances a year.", "maintainance"),
        ("The reconciliation of accounts.", "reconcilliaton"),
        ("An administrator signs.", "adminstrater"),
    ],
)
def test_two_errors_in_a_long_word_are_corrected(text: str, query: str) -> None:
    terms = index(text, "A valve.").query(query)
    assert len(terms.known) == 1
    assert terms.variants[terms.known[0]].kind == "spelling"


def test_long_words_with_umlauts_are_corrected() -> None:
    found = LexicalIndex.build(["Die Kündigungsfrist ist lang.", "Die Pumpe."], language="german")
    assert found.scores("Kündigungsfrsit").tolist()[0] > 0
    assert found.query("Kündigungsfrsit").variants["kundigungsfrist"].word == "kündigungsfrist"


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("Möglicee", "mögliche"),
        ("Prüfng", "prüfung"),
        ("Abmcahung", "abmachung"),  # "hung" is a word of another text
        ("Geschwindikeitsbegrentzung", "geschwindigkeitsbegrenzung"),
    ],
)
def test_german_words_are_corrected(query: str, word: str) -> None:
    texts = ("Mögliche Fehler.", "Die Prüfung endet.", "Die Abmachung gilt.", "Hung ist da.")
    index = LexicalIndex.build([*texts, "Die Geschwindigkeitsbegrenzung gilt."], language="german")
    assert word in {one.word for one in index.query(query).variants.values()}


def test_a_part_of_a_compound_is_a_word_and_not_corrected() -> None:
    index = LexicalIndex.build(["Die Lieferkosten steigen.", "Der Kasten ist leer."], language="german")
    assert {one.kind for one in index.query("Kosten").variants.values()} == {"compound"}


def test_a_compound_of_known_words_is_not_corrected_by_two_letters() -> None:
    index = LexicalIndex.build(["Die Lieferliste liegt bei.", "Die Frist endet."], language="german")
    assert {one.kind for one in index.query("Lieferfrist").variants.values()} == {"compound"}


@pytest.mark.parametrize(
    ("text", "query"), [("format", "farnet"), ("environment", "anvironmemt"), ("formal", "fxrmxl")]
)
def test_two_errors_in_a_short_word_or_in_the_first_letter_are_not_corrected(text: str, query: str) -> None:
    assert index(text).query(query).known == ()


@given(words, words)
def test_the_errors_of_a_term_are_the_distance_to_each_beginning_of_the_word(term: str, word: str) -> None:
    for most in (1, 2):
        errors = [distance(term, word[:length]) for length in range(len(word) + 1)]
        assert [min(number, most + 1) for number in _errors(term, word, most)] == [min(one, most + 1) for one in errors]
