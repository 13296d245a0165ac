"""Comparison of the units of passages with a question: marks, scores, and how much of a question one unit covers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from numpy.typing import NDArray

from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.base import ChunkIndex
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.index.units import Units, words_identity
from llama_index_contextual.metadata import CONTEXT, TITLE
from llama_index_contextual.retrievers.lexical import NodeIndex
from llama_index_contextual.search.rank import FusionSettings, RankedList, Ranking, lexical_list
from llama_index_contextual.search.search import with_best_units
from llama_index_contextual.search.spotlight import (
    Matches,
    Spot,
    match_units,
    spotlight_shares,
)

ENGLISH = Analyzer("english")
NEEDS_WORDLLAMA = pytest.mark.skipif(not words_identity(), reason="needs the extra local")


def matches(
    weights: Mapping[str, float], *passages: str, meaning: Sequence[float] | None = None, **before: str
) -> Matches:
    """Compare passages with weighted terms and, if they are given, with the similarities of all units."""
    units = Units.of([(text, before) for text in passages], ENGLISH, has_vectors=False)
    result = Matches.of(units, weights)
    if meaning is None:
        return result
    return Matches(units, weights, result.contains, np.array(meaning, dtype=np.float32))


def marked(weights: Mapping[str, float], text: str, **options: object) -> str:
    """Return the marked part of a passage."""
    (spot,) = matches(weights, text, **options).spots()  # type: ignore[arg-type]
    return text[spot.start : spot.end]


# ---- coverage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "header", "share"),
    [
        ("The pump stops.\nThe motor runs.", "", 0.75),
        ("The pump stops the motor.", "", 1.0),
        ("The pump stops.\nThe valve.", "Motors", 1.0),
        ("The valve.", "Motors", 0.25),
        ("", "Motors", 0.0),  # a header alone answers nothing
    ],
)
def test_a_question_is_covered_by_one_unit_with_its_header(text: str, header: str, share: float) -> None:
    weights = {"pump": 3.0, "motor": 1.0}
    assert matches(weights, text, **{TITLE: header}).coverage(weights).tolist() == [share]
    assert matches({}, text, **{TITLE: header}).coverage({}).tolist() == [0.0]


def test_the_context_of_a_passage_covers_nothing() -> None:
    weights = {"pump": 3.0, "motor": 1.0}
    assert matches(weights, "The motor runs.", **{CONTEXT: "Pumps and motors"}).coverage(weights).tolist() == [0.25]


def test_each_passage_is_covered_on_its_own() -> None:
    weights = {"pump": 3.0, "motor": 1.0}
    assert matches(weights, "The valve.", "A pump.", "A motor.").coverage(weights).tolist() == [0.0, 0.75, 0.25]
    assert matches(weights).coverage(weights).tolist() == []


def test_a_word_that_no_passage_contains_counts_in_full() -> None:
    weights = {"pump": 1.0, "zembla": 3.0}
    assert matches(weights, "The pump stops.").coverage(weights).tolist() == [0.25]


def test_a_variant_covers_the_word_that_it_stands_for() -> None:
    weights = {"pump": 1.0, "ts999": 3.0, "999": 2.0}
    covered = matches(weights, "The pump 999 stops.").coverage({"pump": 1.0, "ts999": 3.0}, {"999": "ts999"})
    assert covered.tolist() == [1.0]


# ---- marks -----------------------------------------------------------------------------------------------------------


def test_the_unit_with_most_of_the_questions_words_is_marked() -> None:
    text = "Water is metered.\nGarden water is free from May.\nPumps lift water."
    assert marked({"garden": 3.0, "water": 1.0}, text) == "Garden water is free from May."


def test_a_term_before_the_passage_counts_for_all_units_and_hardly_for_the_mark() -> None:
    text = "Acme pays.\nThe term is ten years."
    weights = {"acm": 5.0, "term": 2.0}
    for name in (TITLE, CONTEXT):
        # 2.05 against 0.25 + 0.4
        assert marked(weights, text, **{name: "Contract of Acme"}) == "The term is ten years."
        (spot,) = matches(weights, text, **{name: "Contract of Acme"}).spots()
        assert spot.words == 5.0 + 2.0


def test_the_words_of_the_best_unit_count_whatever_its_length() -> None:
    weights = {"garden": 3.0, "water": 1.0}
    long = "Garden water is free from May" + " of the year" * 4
    assert [matches(weights, text).spots()[0].words for text in ("Garden water", long, "Water")] == [4.0, 4.0, 1.0]
    assert matches(weights, "", "The valve.").spots() == [Spot(0, 0, 0.0, 0.0)] * 2


def test_the_terms_of_the_units_before_and_after_count_a_fifth() -> None:
    text = (
        "Water for the garden is metered apart (p. 1)\nSome of it is free of charge in spring (p. 2)\n"
        "The fee for it is due by the end of May (p. 3)\nPumps stop when they are running dry (p. 4)\n"
        "The fee is high (p. 5)"
    )
    weights = {"fee": 2.0, "garden": 3.0, "pump": 1.0}
    assert marked(weights, text).endswith("(p. 1)")  # 3.0
    # 2.0 + 0.2 x 1.0, like the last unit, but longer
    assert marked({**weights, "garden": 0.5}, text).endswith("(p. 3)")


def test_of_equal_units_the_longest_is_marked_and_of_equally_long_ones_the_first() -> None:
    weights = {"garden": 3.0}
    assert marked(weights, "A garden.\n\nThe valve.\n\nThe garden is green.") == "The garden is green."
    assert matches(weights, "A garden.\n\nThe valve.\n\nA garden.").spots()[0].start == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Dry running\nThe pump has no water.\nOpen the valve.", "Dry running\nThe pump has no water."),
        ("**E-1, dry.** The pump has no water. Open the valve.\n" + "x " * 70, "**E-1, dry.** The pump has no water."),
        ("| dry | 3 |\n| wet | 4 |", "| dry | 3 |"),
        ("Running dry 2,100\nRunning wet 2,200", "Running dry 2,100"),
        ("P1 dry 41 5.5 within limit\nP2 wet 44 5.8 exceeded", "P1 dry 41 5.5 within limit"),
        ("Dry pump  Lena Krüger\nWet pump  Omar Haddad", "Dry pump  Lena Krüger"),
        ("2.1 Dry running in 2023 ff\nThe pump has no water.", "2.1 Dry running in 2023 ff\nThe pump has no water."),
        ("The pump runs dry.\nOpen the valve.", "The pump runs dry."),
        ("Open the valve.\nDry running", "Dry running"),
    ],
)
def test_a_short_heading_is_marked_with_the_text_below_it_and_a_row_alone(text: str, expected: str) -> None:
    assert marked({"dri": 3.0}, text) == expected


def test_a_heading_at_the_end_is_not_marked_with_the_next_passage() -> None:
    spots = matches({"dri": 3.0}, "Open the valve.\nDry running", "The pump has no water.").spots()
    assert [(spot.start, spot.end) for spot in spots] == [(16, 27), (0, 0)]


@pytest.mark.parametrize(
    "table",
    [
        "| Zone | price per m3 | standing charge |\n|---|---|---|\n| zone 6 | 1.95 | 62 |\n| zone 7 | 2.10 | 64 |",
        "Zone  price per m3  standing charge\nzone 6  1.95  62\nzone 7  2.1  64",
        "Price per m3 in  2023  2024  12.31.2025\nzone 6  1.95  1.97  2.00\nzone 7  2.10  2.12  2.20",
    ],
    ids=["Markdown", "sheet", "years"],
)
def test_a_row_is_marked_rather_than_its_column_headers(table: str) -> None:
    weights = {"price": 1.0, "per": 1.0, "m3": 1.0, "zone": 1.0, "7": 1.0}
    text = f"The tariff of the town.\n\n{table}\n\nBills are due in June."
    assert marked(weights, text).strip("| ").startswith("zone 7")


def test_column_headers_are_marked_if_no_row_has_a_term_of_its_own() -> None:
    text = "Tariff\n\nPlace  price\nUpper Vale  1.95\nThe Mill by the Old Weir  2.10"
    assert marked({"price": 1.0}, text) == "Place  price"


def test_a_row_with_figures_is_marked_rather_than_the_headings_and_the_sentence_about_it() -> None:
    text = (
        "Results\nConsolidated income of the group, in thousands 2023 2022\nNet sales $ 11,511 $ 9,888\n"
        "Costs:\nOf materials 4,100 3,900\nOf staff 2,050 1,990\n"
        "Net sales include what subsidiaries and the group have sold to others."
    )
    assert marked({"net": 1.0, "sale": 1.0}, text) == "Net sales $ 11,511 $ 9,888"
    assert marked({"cost": 1.0, "staff": 1.0, "2023": 0.5}, text) == "Of staff 2,050 1,990"
    assert marked({"incom": 1.0, "group": 1.0, "materi": 1.0}, text) == "Of materials 4,100 3,900"
    assert marked({"result": 1.0}, "Results\n$ 11,511 $ 9,888\nThe end.") == "Results\n$ 11,511 $ 9,888"


def test_a_first_row_with_figures_is_not_the_head_of_the_others() -> None:
    weights = {"cash": 1.0, "debt": 1.1, "old": 0.5, "sold": 0.5}
    text = "cash  1,234  987\ndebt  12  13\n\nThe end.\nBonds  old  new\nsold  1  2"
    assert marked(weights, text) == "debt  12  13"


def test_without_a_matching_word_the_unit_closest_in_meaning_is_marked() -> None:
    text = "Pump\nCost\nValve"
    assert marked({"fee": 2.0}, text, meaning=[0.9, 0.8, 0.1, 0.3, 0.2]) == "Cost\nValve"
    assert marked({"fee": 2.0, "valv": 1.0}, text, meaning=[0.9, 0.8, 0.1, 0.3, 0.2]) == "Valve"
    assert marked({"fee": 2.0}, text, meaning=[0.0] * 5) == marked({"fee": 2.0}, text) == ""
    assert marked({}, text, meaning=[0.9, 0.8, 0.1, 0.3, 0.2]) == "Cost\nValve"


def test_the_meaning_of_a_passage_is_that_of_its_closest_unit_but_never_negative() -> None:
    first, second = matches(
        {}, "The pump.\nThe fee.", "The valve.", meaning=[0.9, 0.9, 0.2, 0.5, 0.9, 0.9, -0.3]
    ).spots()
    assert (first.meaning, second.meaning) == (pytest.approx(0.5), 0.0)
    assert (second.start, second.end) == (0, 10)


@given(st.lists(st.lists(st.sampled_from(("Garden", "water fee.", "| a |", "2  3", "\n")), max_size=9), max_size=5))
def test_passages_are_compared_alike_alone_and_together(parts: Sequence[Sequence[str]]) -> None:
    texts, weights = ["\n".join(lines) for lines in parts], {"garden": 3.0, "water": 1.0, "fee": 2.0}
    together = matches(weights, *texts)
    alone = [matches(weights, text) for text in texts]
    assert [spot[2:] for spot in together.spots()] == [one.spots()[0][2:] for one in alone]
    assert together.coverage(weights).tolist() == [one.coverage(weights)[0] for one in alone]
    assert all(0 <= spot.start <= spot.end <= len(text) for spot, text in zip(together.spots(), texts, strict=True))


HANDBOOK = """The travel policy of {site} is about travel at the site of {site}.
Travel at the site of {site} is booked by the travel desk.
Costs are claimed on form {form} after the journey.
Claims are checked by the finance office.
Questions about travel at the site of {site} are answered by the travel desk."""
SITES = ("Zembla", "Korvik", "Baldor", "Trimere")
# As in a collection of such handbooks: only the name of the site is rare.
OF_HANDBOOK = {"zembla": 4.0, "site": 0.01, "travel": 0.01, "form": 0.01}


def handbook_marks(weights: Mapping[str, float], *texts: str) -> list[str]:
    return [text[start:end] for text, (start, end, *_) in zip(texts, matches(weights, *texts).spots(), strict=True)]


def test_in_similar_passages_the_unit_that_answers_is_marked_rather_than_those_that_repeat_the_subject() -> None:
    texts = [HANDBOOK.format(site=site, form=f"F-{number}") for number, site in enumerate(SITES, start=101)]
    assert handbook_marks(OF_HANDBOOK, *texts)[0] == "Costs are claimed on form F-101 after the journey."
    # What all of them say is marked as well.
    weights = {"zembla": 4.0, "site": 0.01, "travel": 0.01, "financ": 0.01}
    assert set(handbook_marks(weights, *texts)) == {"Claims are checked by the finance office."}


def test_the_weights_of_terms_count_in_a_passage_that_is_not_similar_to_others() -> None:
    text = HANDBOOK.format(site="Zembla", form="F-101")
    others = ["The pumps of Korvik run dry.", "Water is metered.\nClaims are checked by the finance office."]
    (expected,) = handbook_marks(OF_HANDBOOK, text)
    assert "Zembla" in expected
    assert handbook_marks(OF_HANDBOOK, text, *others)[0] == expected


# ---- ranking ---------------------------------------------------------------------------------------------------------

TEXTS = ("The pump stops.", "The garden fee is 3 euros.\nFees are due in May.", "Tariffs of the coast.")
QUESTION = "What is the garden fee?"


def ranked(texts: Sequence[str], fusion: FusionSettings | None = None) -> tuple[NodeIndex, Ranking]:
    """An index of texts, and its ranking by words; the second leg, if there is one, has no hits."""
    index = NodeIndex([TextNode(text=text) for text in texts])
    leg = lexical_list(index, QUESTION, len(texts))
    legs = [leg] if fusion is None else [RankedList("semantic", NO_HITS, NO_SCALE), leg]
    return index, Ranking(leg.hits, index.ids, legs, fusion)


def shares_of(index: ChunkIndex, ranking: Ranking) -> NDArray[np.float64]:
    found = match_units(ranking, index.units(ranking.hits.rows), QUESTION, index.lexical)
    return spotlight_shares(ranking, found.spots(), found)


def test_the_words_of_the_best_unit_count_in_the_unit_of_the_ranking() -> None:
    index, alone = ranked(TEXTS)
    assert alone.terms is not None
    units = Units.of([(TEXTS[row], {}) for row in alone.hits.rows.tolist()], alone.terms.analyzer, has_vectors=False)
    expected = [0.4 * spot.words for spot in Matches.of(units, alone.terms.weights).spots()]
    assert len(expected) == 1
    assert expected[0] > 0
    shares = shares_of(index, alone)
    assert shares[:, 0] == pytest.approx(expected)
    assert not shares[:, 1].any()  # words only
    unit = alone.lists[0].scale.unit
    in_fusion = shares_of(*ranked(TEXTS, FusionSettings(weights=(0.35, 0.65))))
    assert in_fusion[:, 0] == pytest.approx([0.65 * value / unit for value in expected])


def test_source_code_is_not_ranked_again() -> None:
    texts = ("def fee(garden):\n    return 3 * garden\n", "garden.fee(3)\nfee = 2\n", "The garden fee.")
    assert not shares_of(*ranked(texts)).any()


def test_with_reciprocal_ranks_the_best_units_are_ranked_in_the_same_way() -> None:
    fusion = FusionSettings(by="rrf", rrf_k=60, weights=(0.5, 0.5))
    index, ranking = ranked(("The garden fee.", "The garden.", "The fee of the garden is high."), fusion)
    matches = match_units(ranking, index.units(ranking.hits.rows), QUESTION, index.lexical)
    words = [spot.words for spot in matches.spots()]
    shares = spotlight_shares(ranking, matches.spots(), matches)[:, 0]
    order = sorted(range(len(words)), key=lambda at: -words[at])
    assert len(words) == 3
    assert shares[order].tolist() == pytest.approx(
        [0.5 / (60 + rank) if words[at] > 0 else 0.0 for rank, at in enumerate(order, start=1)]
    )


def test_a_lexical_search_does_not_read_wordllamas_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ModelError("The files are read.")

    monkeypatch.setattr("llama_index_contextual.embeddings.words._model", refuse)
    index, ranking = ranked(TEXTS)
    again, spots, covered, *_ = with_best_units(index, ranking, QUESTION, results=3, rerank=True)
    assert again.hits.scores[0] > ranking.hits.scores[0]
    assert spots[0].end > spots[0].start
    assert covered.tolist() == [1.0]


@NEEDS_WORDLLAMA
def test_meaning_is_measured_in_wordllamas_deviation_whichever_model_embeds() -> None:
    index, _ = ranked(TEXTS)
    vector = np.array([1.0, 0.0], dtype=np.float32)  # by another model, with other dimensions
    leg = RankedList(
        "semantic", Hits(np.arange(3), np.array([0.9, 0.8, 0.7])), Scale(0.1, 0.2), vector=vector, model="other"
    )
    ranking = Ranking(leg.hits, index.ids, [leg])
    units = Units.of([(text, {}) for text in TEXTS], None)
    found = match_units(ranking, units, QUESTION, index.lexical)
    shares = spotlight_shares(ranking, found.spots(), found)
    cosine = found.spots()[1].meaning
    assert 0.3 < cosine < 1.0
    assert shares[1, 1] == pytest.approx(0.8 * 0.2 * cosine / 0.1)
    assert shares[:, 1].argmax() == 1
    assert not shares[:, 0].any()


def test_without_directions_words_alone_are_compared_in_a_search_by_meaning() -> None:
    index, _ = ranked(TEXTS)
    vector = np.array([1.0, 0.0], dtype=np.float32)
    leg = RankedList(
        "semantic", Hits(np.arange(3), np.array([0.9, 0.8, 0.7])), Scale(0.1, 0.2), vector=vector, model="other"
    )
    ranking, spots, covered, *_ = with_best_units(
        index, Ranking(leg.hits, index.ids, [leg]), QUESTION, results=3, rerank=True
    )
    assert ranking.hits.rows.tolist() == [0, 1, 2]
    assert [spot.meaning for spot in spots] == [0.0] * 3
    assert (spots[1].start, spots[1].end) == (0, 26)  # marked for its words
    assert covered.tolist() == [0.0] * 3  # the search ranked no words


@given(
    st.lists(st.floats(0, 5), min_size=1, max_size=30).map(lambda scores: sorted(scores, reverse=True)),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20),
)
def test_hits_that_were_not_compared_stay_after_the_others(
    scores: list[float], drawn: list[tuple[float, float]]
) -> None:
    hits = Hits(np.arange(len(scores)), np.array(scores))
    shares = np.array(drawn[: len(scores)])
    ranking, before = Ranking(hits, [str(row) for row in hits.rows], []).with_spotlight(shares)
    assert sorted(before) == list(range(len(shares)))
    assert ranking.hits.rows.tolist() == [*before, *range(len(shares), len(scores))]
    assert all(first >= second for first, second in itertools.pairwise(ranking.hits.scores.tolist()))
    assert ranking.hits.scores[: len(before)] == pytest.approx([scores[at] + shares[at].sum() for at in before])
