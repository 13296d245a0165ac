"""Arithmetic of versions: the exact scan."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import pytest

from llama_index_contextual._utils.locks import searching
from llama_index_contextual.errors import InputError
from llama_index_contextual.index import vectors
from llama_index_contextual.index.hits import top
from llama_index_contextual.index.vectors import products

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((300, 17), dtype=np.float32)
QUERIES = RNG.standard_normal((5, 17), dtype=np.float32)


@pytest.mark.parametrize("shift", [0, 1, 45])
def test_rows_need_no_alignment(shift: int) -> None:
    memory = bytearray(shift) + bytearray(ROWS.tobytes())
    matrix = np.frombuffer(memory, dtype=np.float32, offset=shift).reshape(ROWS.shape)
    np.testing.assert_allclose(products(matrix, QUERIES[0]), ROWS @ QUERIES[0], rtol=1e-4, atol=1e-5)


def test_a_query_of_another_length_is_refused_before_anything_is_read() -> None:
    np.testing.assert_allclose(products(ROWS, QUERIES[0]), ROWS @ QUERIES[0], rtol=1e-4, atol=1e-5)
    assert len(products(ROWS[:0], QUERIES[0])) == 0
    with pytest.raises(InputError, match="has 18 dimensions, the index 17"):
        products(ROWS, np.zeros(18, dtype=np.float32))


def test_sixteen_callers_scan_the_same_rows() -> None:
    rows = RNG.standard_normal((2_000, 64), dtype=np.float32)
    queries = RNG.standard_normal((64, 64), dtype=np.float32)
    expected = [products(rows, query).tolist() for query in queries]
    with ThreadPoolExecutor(16) as threads:
        assert [scores.tolist() for scores in threads.map(lambda query: products(rows, query), queries)] == expected


@pytest.mark.parametrize("shift", [0, 1, 45])
def test_a_large_matrix_is_shared_between_two_threads(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = bytearray(shift) + bytearray(ROWS[:299].tobytes())
    matrix = np.frombuffer(memory, dtype=np.float32, offset=shift).reshape(299, 17)
    expected = products(matrix, QUERIES[0])
    sizes: list[int] = []
    compute = vectors._compute
    monkeypatch.setattr(vectors, "_LARGE", 1)
    monkeypatch.setattr(vectors, "_compute", lambda scores, *rest: (sizes.append(len(scores)), compute(scores, *rest)))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert products(matrix, QUERIES[0]).tolist() == expected.tolist()
    assert sorted(sizes) == [149, 150]
    sizes.clear()
    with searching(), searching():  # two searches at a time use both cores anyway
        assert products(matrix, QUERIES[0]).tolist() == expected.tolist()
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert products(matrix, QUERIES[0]).tolist() == expected.tolist()
    assert sizes == [299, 299]


def test_thread_settings_are_not_changed() -> None:
    before = faiss.omp_get_max_threads()
    products(ROWS, QUERIES[0])
    assert faiss.omp_get_max_threads() == before


def test_results_are_sorted_by_score_with_ties_in_row_order() -> None:
    scores, rows = top(np.array([1, 3, -np.inf, 3, 2, 3], dtype=np.float32), 4)
    assert (scores.tolist(), rows.tolist()) == ([3, 3, 3, 2], [1, 3, 5, 4])
    assert [part.tolist() for part in top(np.array([-np.inf], dtype=np.float32), 4)] == [[], []]
    assert len(top(np.ones(3, dtype=np.float32), 0)[1]) == 0
