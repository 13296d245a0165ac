"""Arithmetic of versions: the exact scan, and ranges of documents that are gone."""

from __future__ import annotations

import itertools

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.errors import InputError
from llama_index_contextual.index.base import top
from llama_index_contextual.index.part import ranges
from llama_index_contextual.index.vectors import inner_products, products

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((300, 17), dtype=np.float32)
QUERIES = RNG.standard_normal((5, 17), dtype=np.float32)


@pytest.mark.parametrize("shift", [0, 1, 45])
def test_rows_need_no_alignment(shift: int) -> None:
    memory = bytearray(shift) + bytearray(ROWS.tobytes())
    matrix = np.frombuffer(memory, dtype=np.float32, offset=shift).reshape(ROWS.shape)
    result = inner_products(faiss.swig_ptr(matrix), ROWS.shape, QUERIES)
    np.testing.assert_allclose(result, QUERIES @ ROWS.T, rtol=1e-4, atol=1e-5)


def test_results_do_not_depend_on_other_queries_of_a_batch() -> None:
    together = inner_products(faiss.swig_ptr(ROWS), ROWS.shape, QUERIES)
    alone = [inner_products(faiss.swig_ptr(ROWS), ROWS.shape, query[None])[0] for query in QUERIES]
    assert np.array_equal(together, np.stack(alone))


def test_a_query_of_another_length_is_refused_before_anything_is_read() -> None:
    np.testing.assert_allclose(products(ROWS, QUERIES[0]), ROWS @ QUERIES[0], rtol=1e-4, atol=1e-5)
    assert len(products(ROWS[:0], QUERIES[0])) == 0
    with pytest.raises(InputError, match="has 18 dimensions, the index 17"):
        products(ROWS, np.zeros(18, dtype=np.float32))


def test_thread_settings_are_not_changed() -> None:
    before = faiss.omp_get_max_threads()
    inner_products(faiss.swig_ptr(ROWS), ROWS.shape, QUERIES)
    assert faiss.omp_get_max_threads() == before


def test_results_are_sorted_by_score_with_ties_in_row_order() -> None:
    scores, rows = top(np.array([1, 3, -np.inf, 3, 2, 3], dtype=np.float32), 4)
    assert (scores.tolist(), rows.tolist()) == ([3, 3, 3, 2], [1, 3, 5, 4])
    assert [part.tolist() for part in top(np.array([-np.inf], dtype=np.float32), 4)] == [[], []]
    assert len(top(np.ones(3, dtype=np.float32), 0)[1]) == 0


@given(st.sets(st.integers(0, 50)))
def test_ranges_contain_the_same_numbers_and_are_as_few_as_possible(numbers: set[int]) -> None:
    result = ranges(numbers)
    assert {number for first, last in result for number in range(first, last + 1)} == numbers
    assert all(one[1] + 1 < other[0] for one, other in itertools.pairwise(result))
