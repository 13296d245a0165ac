"""Units of a passage, and how much of a question one of them covers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.schema import TextNode
from numpy.typing import NDArray

from llama_index_contextual.embeddings.words import embedded, word_vectors
from llama_index_contextual.errors import ModelError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.base import Chunk
from llama_index_contextual.index.hits import NO_HITS, NO_SCALE, Hits, Scale
from llama_index_contextual.metadata import TOKEN_COUNT
from llama_index_contextual.retrievers.lexical import NodeIndex
from llama_index_contextual.search.rank import FusionSettings, Leg, Ranking, lexical_leg
from llama_index_contextual.search.search import best_chunks
from llama_index_contextual.search.spotlight import (
    DIMENSIONS,
    HeadedText,
    Spot,
    Spotlight,
    coverage,
    is_code,
    question_parts,
    spotlight_shares,
    spots_of,
    units,
)

ENGLISH = Analyzer("english")


def pieces(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in units(text)]


@given(st.text(alphabet="ab |.\n\r\u2028é。", max_size=400))
def test_units_are_ordered_and_hold_all_visible_characters(text: str) -> None:
    spans = units(text)
    assert all(first_end <= second_start for (_, first_end), (second_start, _) in itertools.pairwise(spans))
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(text.split())
    assert all(text[start:end].strip() for start, end in spans)


def test_rows_of_a_table_are_units() -> None:
    text = "Revenue by zone\nUpper Vale    2.95    3.10\nTarn Coast    2.10    2.20\n"
    assert pieces(text) == ["Revenue by zone", "Upper Vale    2.95    3.10", "Tarn Coast    2.10    2.20"]


def test_a_long_line_is_divided_into_sentences() -> None:
    sentences = [
        "The contract may be terminated by either party at any time.",
        "Notice is due within ninety days of it.",
    ]
    assert pieces(" ".join(sentences * 2)) == sentences * 2


def test_lines_that_were_wrapped_by_hand_are_one_unit() -> None:
    text = "Water for gardens is metered apart from that of the\nhouse, and free in spring.\n\nnext paragraph"
    assert pieces(text) == [text.partition("\n\n")[0], "next paragraph"]


def test_a_wrapped_sentence_continues_with_a_figure_but_not_with_an_item_or_row() -> None:
    line = "The rent for the boathouse and both berths amounts to"
    for following in ("4,800 euros a year.", "1.85 per cent of the value.", "4.800 Euro.", "0.5 Percent.", "30 days."):
        assert pieces(f"{line}\n{following}") == [f"{line}\n{following}"]
    dated = "Der Vertrag über das Bootshaus am Kai beginnt spätestens am\n12. März 2024 und endet nach drei Jahren."
    assert pieces(dated) == [dated]
    noted = "¹ Calculated with 40.0 million shares. The dividend amounts to EUR\n1.85 per share."
    assert pieces(noted) == [noted]
    for following in ("2. payable in January.", "3.1 Deposit", "4 Duties of the tenant"):
        assert pieces(f"{line}\n{following}") == [line, following]
    rows = ["18:30 the gate was opened by the operator of the harbour", "18:45 the gate was closed"]
    assert pieces("\n".join(rows)) == rows
    assert pieces(f"{line}.\n12 boats may moor.") == [f"{line}.", "12 boats may moor."]


@pytest.mark.parametrize(
    ("text", "header", "share"),
    [
        ("The pump stops.\nThe motor runs.", "", 0.75),
        ("The pump stops the motor.", "", 1.0),
        ("The pump stops.\nThe valve.", "Motors", 1.0),
        ("", "Motors", 0.0),  # a header alone says nothing
    ],
)
def test_a_part_of_the_question_is_covered_by_one_unit_only(text: str, header: str, share: float) -> None:
    assert coverage(text, header, [{"pump": 3.0, "motor": 1.0}], ENGLISH) == share
    assert coverage(text, header, question_parts("of the", {}, ENGLISH), ENGLISH) == 0.0


def test_the_best_covered_sentence_of_the_question_counts() -> None:
    question = "Which pump feeds the upper reservoir? Answer in full sentences with figures in millions."
    weights = dict.fromkeys(ENGLISH.query_terms(question), 1.0)
    parts = question_parts(question, weights, ENGLISH)
    assert len(parts) == 2
    assert coverage("The old pump feeds the upper reservoir.", "", parts, ENGLISH) == 1.0


@pytest.mark.parametrize("question", ["And the pump?", "Pump. Motor. Valve.", ""])
def test_a_question_of_short_sentences_is_one_part(question: str) -> None:
    weights = {"pump": 2.0, "motor": 1.0, "valve": 1.0}
    assert question_parts(question, weights, ENGLISH) == [weights]


def passage(text: str, before: str = "", heading: str = "") -> HeadedText:
    return HeadedText(text, before, heading)


def test_the_unit_with_most_of_the_questions_words_is_marked() -> None:
    text = "Water is metered.\nGarden water is free from May.\nPumps lift water."
    (spot,) = Spotlight(ENGLISH).spots({"garden": 3.0, "water": 1.0}, "garden water", [passage(text)])
    assert text[spot.start : spot.end] == "Garden water is free from May."


def test_a_term_that_stands_before_the_passage_counts_for_all_units_and_hardly_for_the_mark() -> None:
    text = "Acme pays.\nThe term is ten years."
    weights = {"acm": 5.0, "term": 2.0}
    (spot,) = Spotlight(ENGLISH).spots(weights, "Acme term", [passage(text, before="Contract of Acme")])
    assert text[spot.start : spot.end] == "The term is ten years."  # 2.05 against 0.25 + 0.4
    length = (0.6 + 0.4 * 5 / 40) ** 0.25
    assert spot.words == pytest.approx((5.0 + 2.0) / length)


def test_the_terms_of_the_units_before_and_after_count_a_fifth() -> None:
    text = (
        "Water for the garden is metered apart (p. 1)\nSome of it is free of charge in spring (p. 2)\n"
        "The fee for it is due by the end of May (p. 3)\nPumps stop when they are running dry (p. 4)\n"
        "The fee is high (p. 5)"
    )
    weights = {"fee": 2.0, "garden": 3.0, "pump": 1.0}
    (spot,) = Spotlight(ENGLISH).spots(weights, "fee for pumps", [passage(text)])
    assert text[spot.start : spot.end].endswith("(p. 1)")  # 3.0
    (spot,) = Spotlight(ENGLISH).spots({**weights, "garden": 0.5}, "fee for pumps", [passage(text)])
    assert text[spot.start : spot.end].endswith("(p. 3)")  # 2.0 + 0.2 x 1.0, like the last unit, but shorter


@pytest.mark.parametrize(
    ("text", "marked"),
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
def test_a_short_heading_is_marked_with_the_text_below_it_and_a_row_alone(text: str, marked: str) -> None:
    (spot,) = Spotlight(ENGLISH).spots({"dri": 3.0}, "dry", [passage(text)])
    assert text[spot.start : spot.end] == marked


def test_without_a_matching_word_the_unit_closest_in_meaning_is_marked() -> None:
    vectors = {"fee": [1.0, 0.0], "pump": [0.0, 1.0], "cost": [0.9, 0.1]}

    def embed(words: Sequence[str]) -> NDArray[np.float32]:
        return np.array([vectors[word] for word in words], dtype=np.float32)

    text = "pump\ncost"
    question = np.array([1.0, 0.0], dtype=np.float32)
    (spot,) = Spotlight(Analyzer("none"), embed).spots({"fee": 2.0}, "fee", [passage(text)], question)
    assert text[spot.start : spot.end] == "cost"
    (none,) = Spotlight(Analyzer("none")).spots({"fee": 2.0}, "fee", [passage(text)])
    assert none.start == none.end == 0


def test_similar_words_count_by_the_square_of_their_similarity() -> None:
    vectors = {"fee": [1.0, 0.0], "charge": [0.8, 0.6], "pump": [0.0, 1.0]}

    def embed(words: Sequence[str]) -> NDArray[np.float32]:
        return np.array([vectors[word] for word in words], dtype=np.float32)

    spotlight = Spotlight(Analyzer("none"), embed)
    question = np.array([1.0, 0.0], dtype=np.float32)
    near, far = spotlight.spots({"fee": 2.0}, "fee", [passage("charge"), passage("pump")], question)
    length = (0.6 + 0.4 * 1 / 40) ** 0.25
    assert near.words == pytest.approx(2.0 * 0.8**2 / length)
    assert far.words == 0.0  # a similarity of 0 is below 0.5
    assert near.meaning == pytest.approx(0.8)
    assert far.meaning == pytest.approx(0.0)
    (headed,) = spotlight.spots({"fee": 2.0}, "fee", [passage("pump", heading="fee")], question)
    assert headed.meaning == pytest.approx(math.sqrt(0.5))  # the direction between both


def test_passages_are_compared_alike_alone_and_together() -> None:
    texts = ["Fees are due in May.", "The pump is green.\nGarden water is free.", "Tariffs of the upper zone."]
    weights = {"garden": 3.0, "water": 1.0, "fee": 2.0}
    together = Spotlight(ENGLISH).spots(weights, "garden water fees", [passage(text) for text in texts])
    assert together == [Spotlight(ENGLISH).spots(weights, "garden water fees", [passage(text)])[0] for text in texts]


def test_threads_share_a_spotlight() -> None:
    spotlight = Spotlight(ENGLISH)
    passages = [passage(f"Zone {number} has garden water.\nFee {number} is due.") for number in range(50)]
    asked = [{"garden": 1.0, "water": 1.0, str(number): 5.0} for number in range(50)]

    def spots(number: int) -> list[Spot]:
        return spotlight.spots(asked[number], f"garden water {number}", passages)

    with ThreadPoolExecutor(8) as pool:
        concurrent = list(pool.map(spots, range(50)))
    assert concurrent == [spots(number) for number in range(50)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('fn main() {\n    println!("hi");\n}', True),
        ("import os\nos.remove(path)", True),
        ("| Zone | Fee |\n| Upper Vale | 3.10 |", False),
        ("Revenue grew by 3 % (see page 4).\nIt was due to:", False),
        ("", False),
    ],
)
def test_source_code_is_recognised(text: str, expected: bool) -> None:
    assert is_code(text) is expected


# ---- ranking ---------------------------------------------------------------------------------------------------------

TEXTS = ("The pump stops.", "The garden fee is 3 euros.\nFees are due in May.", "Tariffs of the coast.")
QUESTION = "What is the garden fee?"


def chunk(text: str, tokens: int = 800) -> Chunk:
    return Chunk.from_node(TextNode(text=text, metadata={TOKEN_COUNT: tokens}))


def ranked(texts: Sequence[str], fusion: FusionSettings | None = None) -> tuple[NodeIndex, Ranking]:
    """An index of texts, and its ranking by words; the second leg, if there is one, has no hits."""
    index = NodeIndex([TextNode(text=text) for text in texts])
    leg = lexical_leg(index, QUESTION, len(texts))
    legs = [leg] if fusion is None else [Leg("semantic", NO_HITS, NO_SCALE), leg]
    return index, Ranking(leg.hits, index.ids, legs, fusion)


def shares_of(texts: Sequence[str], fusion: FusionSettings | None = None, *, tokens: int = 800) -> NDArray[np.float64]:
    ranking, chunks = ranked(texts, fusion)[1], [chunk(text, tokens) for text in texts]
    return spotlight_shares(ranking, spots_of(ranking, chunks, QUESTION, rerank=True), chunks)


def test_the_words_of_the_best_unit_count_in_the_unit_of_the_ranking() -> None:
    _, ranking = ranked(TEXTS)
    assert ranking.terms is not None
    passages = [HeadedText(text, "", "") for text in TEXTS]
    spots = Spotlight(ranking.terms.analyzer, lambda words: word_vectors(words)[:, :DIMENSIONS]).spots(
        ranking.terms.weights, QUESTION, passages
    )
    expected = [0.4 * spot.words for spot in spots]
    assert expected[1] > 0
    alone, in_fusion = shares_of(TEXTS), shares_of(TEXTS, FusionSettings(weights=(0.35, 0.65)))
    assert alone[:, 0] == pytest.approx(expected)
    unit = ranking.legs[0].scale.unit
    assert in_fusion[:, 0] == pytest.approx([0.65 * value / unit for value in expected])
    assert not alone[:, 1].any()  # words only


def test_the_best_unit_counts_less_in_shorter_chunks() -> None:
    whole = shares_of(TEXTS)
    assert shares_of(TEXTS, tokens=200) == pytest.approx(whole / 4)
    assert shares_of(TEXTS, tokens=1_000) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("texts", "fusion"),
    [
        (TEXTS, FusionSettings(by="rrf")),
        (("def fee(garden):\n    return 3 * garden\n", "garden.fee(3)\nfee = 2\n", "The garden fee."), None),
    ],
    ids=["reciprocal ranks", "source code"],
)
def test_neither_reciprocal_ranks_nor_source_code_are_ranked_again(
    texts: Sequence[str], fusion: FusionSettings | None
) -> None:
    assert not shares_of(texts, fusion).any()


def test_without_wordllama_nothing_is_ranked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_index_contextual.search.spotlight.find_spec", lambda _: None)
    assert not shares_of(TEXTS).any()


def test_a_lexical_search_that_only_marks_does_not_read_wordllamas_files(monkeypatch: pytest.MonkeyPatch) -> None:
    index, ranking = ranked(TEXTS)
    _, chunks, spots = best_chunks(index, ranking, QUESTION, count=3, results=3, rerank=False)
    with_vectors = spots_of(ranking, chunks, QUESTION, rerank=True)
    assert [spot[:2] for spot in spots] == [spot[:2] for spot in with_vectors]

    def refuse() -> None:
        raise ModelError("The files are read.")

    monkeypatch.setattr("llama_index_contextual.embeddings.words._model", refuse)
    index, ranking = ranked([f"{text} Zephyrs hum." for text in TEXTS])  # with words that are not in the cache
    _, _, spots = best_chunks(index, ranking, QUESTION, count=3, results=3, rerank=False)
    assert spots[0].end > spots[0].start
    with pytest.raises(ModelError, match="files are read"):
        best_chunks(index, ranking, QUESTION, count=3, results=3, rerank=True)


def test_meaning_is_measured_in_wordllamas_deviation_whichever_model_embeds() -> None:
    index, _ = ranked(TEXTS)
    vector = np.array([1.0, 0.0], dtype=np.float32)  # by another model, with other dimensions
    leg = Leg("semantic", Hits(np.arange(3), np.array([0.9, 0.8, 0.7])), Scale(0.1, 0.2), vector=vector, model="other")
    ranking = Ranking(leg.hits, index.ids, [leg])
    chunks = [chunk(text) for text in TEXTS]
    shares = spotlight_shares(ranking, spots_of(ranking, chunks, QUESTION, rerank=True), chunks)
    question = embedded([QUESTION])[0]
    direction = question[:DIMENSIONS] / np.linalg.norm(question[:DIMENSIONS])
    sentence = embedded(["The garden fee is 3 euros."])[0][:DIMENSIONS]
    cosine = float(sentence @ direction / np.linalg.norm(sentence))
    assert shares[1, 1] == pytest.approx(0.8 * 0.2 * cosine / 0.1, rel=1e-3)
    assert shares[:, 1].argmax() == 1


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
    passage = HeadedText(f"The tariff of the town.\n\n{table}\n\nBills are due in June.", "", "")
    weights = {"price": 1.0, "per": 1.0, "m3": 1.0, "zone": 1.0, "7": 1.0}
    spot = Spotlight(Analyzer("english")).spots(weights, "price per m3 in zone 7", [passage])[0]
    assert passage.text[spot.start : spot.end].strip("| ").startswith("zone 7")


def test_column_headers_are_marked_if_no_row_has_a_term_of_its_own() -> None:
    passage = HeadedText("Tariff\n\nPlace  price\nUpper Vale  1.95\nThe Mill by the Old Weir  2.10", "", "")
    spot = Spotlight(Analyzer("english")).spots({"price": 1.0}, "What is the price?", [passage])[0]
    assert passage.text[spot.start : spot.end] == "Place  price"


def test_a_first_row_with_figures_is_no_head_of_the_others() -> None:
    passage = HeadedText("cash  1,234  987\ndebt  12  13\n\nThe end.\nBonds  old  new\nsold  1  2", "", "")
    weights = {"cash": 1.0, "debt": 1.1, "old": 0.5, "sold": 0.5}
    spot = Spotlight(Analyzer("english")).spots(weights, "cash debt old sold", [passage])[0]
    assert passage.text[spot.start : spot.end] == "debt  12  13"
