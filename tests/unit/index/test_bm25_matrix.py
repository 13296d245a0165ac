"""Scores from term frequencies, over one part and over several, equal those of bm25s over the same texts."""

from __future__ import annotations

import itertools

import bm25s
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.bm25 import LexicalIndex, LexicalIndexBuilder, TermCounts, TermCountsBuilder

VOCABULARY = ("pump", "dry", "valve", "sump")
texts = st.lists(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=9), min_size=1, max_size=9)
kept = st.lists(st.booleans(), min_size=27, max_size=27)
analyzer = Analyzer("none")


def counted(rows: list[list[int]]) -> TermCounts:
    builder = TermCountsBuilder()
    for term in VOCABULARY:
        _ = builder.vocabulary[term]
    for row in rows:
        builder.add(np.asarray(row, dtype=np.int32))
    return builder.build()


def scores_of_bm25s(rows: list[list[int]], query: dict[str, float]) -> np.ndarray:
    stock = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    stock.index((rows, {term: number for number, term in enumerate(VOCABULARY)}), show_progress=False)
    scores = np.zeros(len(rows))
    for term, weight in query.items():
        number = VOCABULARY.index(term)
        start, stop = stock.scores["indptr"][number : number + 2]
        scores[stock.scores["indices"][start:stop]] += weight * stock.scores["data"][start:stop]
    return scores


QUERY = {"pump": 1.0, "valve": 0.5, "sump": 2.0}


@given(st.lists(texts, min_size=1, max_size=3))
def test_the_scores_of_parts_equal_those_of_all_texts(parts: list[list[list[int]]]) -> None:
    together = [*itertools.chain(*parts)]
    index = LexicalIndex(analyzer, [counted(rows) for rows in parts])
    whole = LexicalIndex(analyzer, [counted(together)])
    assert index.size == whole.size == len(together)
    assert index.scores(QUERY).tolist() == whole.scores(QUERY).tolist()
    for term in VOCABULARY:
        [one], [other] = index.postings([term]), whole.postings([term])
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert [values.tolist() for values in one] == [values.tolist() for values in other]
            assert [values.dtype for values in one] == [np.int32, np.float32]
    if any(together):
        np.testing.assert_allclose(index.scores(QUERY), scores_of_bm25s(together, QUERY), rtol=1e-6)


@given(st.lists(texts, min_size=1, max_size=3), kept)
def test_merged_parts_equal_the_remaining_texts(parts: list[list[list[int]]], keep: list[bool]) -> None:
    flags = iter(keep)
    builder, remaining = TermCountsBuilder(), []
    for rows in parts:
        live = [next(flags) for _ in rows]
        remaining += [row for row, is_live in zip(rows, live, strict=True) if is_live]
        builder.add_counts(counted(rows), np.array(live, dtype=np.bool_))
    merged, whole = builder.build(), counted(remaining)
    assert merged.terms == whole.terms
    assert merged.lengths.tolist() == whole.lengths.tolist()
    for term in whole.terms:
        assert [a.tolist() for a in merged.frequencies_of(term) or ()] == [
            a.tolist() for a in whole.frequencies_of(term) or ()
        ]


def test_occurrences_are_counted_block_by_block(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    rows = [[0, 1, 0], [], [1], [3, 3, 3, 0], [2]]
    whole = counted(rows)
    monkeypatch.setattr("llama_index_contextual.index.bm25._PENDING", 2)
    blocks = counted(rows)
    for name in ("by_ending", "pointers", "holders", "frequencies", "lengths"):
        assert getattr(blocks, name).tolist() == getattr(whole, name).tolist()


def test_the_weight_of_a_term_is_lucenes() -> None:
    index = LexicalIndex(analyzer, [counted([[0, 0, 1], [1]])])
    # "pump": 1 of 2 texts, idf log(1 + 1.5 / 1.5); twice among 3 terms where the mean is 2: 2 / (1.5 * 1.375 + 2).
    expected = np.log(2) * 2 / (1.5 * (0.25 + 0.75 * 1.5) + 2)
    np.testing.assert_allclose(index.scores({"pump": 1.0}), [expected, 0.0], rtol=1e-6)


def test_numbers_do_not_count_in_the_length_of_a_text() -> None:
    builder = LexicalIndexBuilder()
    builder.add_texts(["Net sales $ 1,234 (5,678) 2023", "Net sales", "TS-999 pump of 2023", "FY2018 12 %", "12.5"])
    # "TS-999" has the terms ts-999, ts999, ts and 999, and "FY2018" has fy2018 and 2018.
    assert builder.build().lengths.tolist() == [2, 2, 5, 2, 0]


def test_the_words_of_a_table_weigh_as_much_as_those_of_a_sentence() -> None:
    figures = " ".join(str(number) for number in range(500))
    index = LexicalIndex.build(["net sales grew slowly", f"net sales grew slowly {figures}", "other words of a text"])
    scores = index.scores("sales").tolist()
    assert scores[0] == scores[1] > scores[2] == 0
    assert index.scores("499")[1] > 0, "numbers are still found"


@given(st.lists(st.text("abß😀", min_size=1, max_size=4), unique=True), st.text("abß😀", min_size=1, max_size=3))
def test_the_terms_that_begin_or_end_with_a_string_are_all_that_do(terms: list[str], part: str) -> None:
    builder = TermCountsBuilder()
    builder.add(np.array([builder.vocabulary[term] for term in terms], dtype=np.int32))
    counts = builder.build()
    others = [term for term in terms if term != part]
    assert counts.beginning_with(part) == sorted(term for term in terms if term.startswith(part))
    assert sorted(counts.containing(part, is_first=True)) == sorted(
        (term, term.removeprefix(part)) for term in others if term.startswith(part)
    )
    assert sorted(counts.containing(part, is_first=False)) == sorted(
        (term, term.removesuffix(part)) for term in others if term.endswith(part)
    )
