"""The matrix that is built by one sort equals the matrix of bm25s."""

from __future__ import annotations

import bm25s
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.retrievers.bm25 import SortedBM25

VOCABULARY = {"pump": 0, "dry": 1, "valve": 2, "sump": 3}
texts = st.lists(st.lists(st.sampled_from(list(VOCABULARY.values())), max_size=9), min_size=1, max_size=9)


@given(texts.filter(any))
def test_the_matrix_equals_that_of_bm25s(rows: list[list[int]]) -> None:
    ours, theirs = SortedBM25(), bm25s.BM25()
    theirs.index((rows, dict(VOCABULARY)), show_progress=False)
    ours.index(([np.asarray(row, dtype=np.int32) for row in rows], dict(VOCABULARY)), show_progress=False)
    assert ours.vocab_dict == theirs.vocab_dict
    np.testing.assert_array_equal(ours.scores["indices"], theirs.scores["indices"])
    np.testing.assert_array_equal(ours.scores["indptr"], theirs.scores["indptr"])
    np.testing.assert_allclose(ours.scores["data"], theirs.scores["data"], rtol=1e-6)
    assert all(ours.scores[name].dtype == theirs.scores[name].dtype for name in ("data", "indices", "indptr"))


def test_the_weight_of_a_term_is_lucenes() -> None:
    bm25 = SortedBM25(k1=1.5, b=0.75)
    bm25.index(([np.asarray([0, 0, 1]), np.asarray([1])], {"pump": 0, "dry": 1}), show_progress=False)
    # "pump": 1 of 2 texts, idf log(1 + 1.5 / 1.5); twice among 3 terms where the mean is 2: 2 / (1.5 * 1.375 + 2).
    np.testing.assert_allclose(bm25.scores["data"][0], np.log(2) * 2 / (1.5 * (0.25 + 0.75 * 1.5) + 2), rtol=1e-6)
