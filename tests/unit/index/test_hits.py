"""The mean and the deviation of the scores of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llama_index_contextual.index.hits import mean_and_deviation

SCORES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-40, 40, width=32))


@given(SCORES)
def test_they_are_those_of_numpy(scores: np.ndarray) -> None:
    exact = scores.astype(np.float64)
    assert mean_and_deviation(scores) == pytest.approx((exact.mean(), exact.std()), rel=1e-6, abs=1e-5)


def test_equal_scores_do_not_deviate_by_rounding() -> None:
    assert mean_and_deviation(np.full(1_000, 0.1, dtype=np.float32))[1] < 1e-6
