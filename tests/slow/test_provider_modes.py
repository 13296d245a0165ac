"""Misbehaving providers: a later ingest completes, usable results are paid for once, and keys stay hidden.

A sample of the modes of `python -m tests.benchmarks.providers`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.modes import MODES, run_mode

SAMPLE = (
    *("429 storm, Retry-After", "400, echo", "500, echo", "truncated body", "HTML page", "empty choices"),
    *("NUL", "only NUL", "lone surrogates", "50,000 letters", "key in the answer"),
    *("usage: absurd", "usage: 100 times", "embeddings: usage: missing", "embeddings: usage: 100 times"),
    *("expired", "cancelled", "failed", "embeddings: index 1 twice", "embeddings: absurdly long"),
    *("embeddings: NaN once", "embeddings: wrong order", "embeddings: missing items"),
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_misbehaving_provider_causes_no_extra_cost(name: str, tmp_path: Path) -> None:
    assert run_mode(MODES[name], tmp_path).wrong == []
