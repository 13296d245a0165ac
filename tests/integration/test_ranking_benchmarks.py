"""The benchmarks of ranking compare question by question."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.quality import differences, row
from tests.benchmarks.settings import DEFAULT, print_cost_of_one, print_left_out, variants


def test_a_row_has_all_measures_in_per_cent() -> None:
    # recall of both questions at 1: (1 + 0) / 2; at 5: (1 + 1/2) / 2; nDCG: (1 + (1/log2(4)) / (1 + 1/log2(3))) / 2
    assert row("set none hybrid", [[1], [3, None]]).split()[3:] == ["50.0", "75.0", "75.0", "75.0", "65.3"]


def test_differences_are_paired_and_their_interval_contains_the_mean() -> None:
    ranks, baseline = [[1]] * 30 + [[None]] * 10, [[None]] * 10 + [[1]] * 30
    assert differences(ranks, baseline, ["R@1"]).startswith("R@1 +0.0 (-")
    assert differences(ranks, ranks, ["nDCG@10"]) == "nDCG@10 +0.0 (+0.0 to +0.0, p 1)"
    with pytest.raises(ValueError, match="zip"):
        differences(ranks, baseline[1:])


def test_the_cost_of_one_setting_and_the_choice_without_a_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert variants(["fusion"]) == {
        DEFAULT: {},
        "fusion=rrf": {"fusion": "rrf", "semantic_weight": 0.5},
    }
    results = {
        ("one", "none", "local"): {DEFAULT: np.asarray([50.0, 50.0]), "b": np.asarray([60.0, 60.0])},
        ("two", "none", "other"): {DEFAULT: np.asarray([52.0, 52.0]), "b": np.asarray([51.0, 51.0])},
    }
    print_cost_of_one([DEFAULT, "b"], results)
    print_left_out([DEFAULT, "b"], results)
    assert capsys.readouterr().out.splitlines() == [
        "best for all: b",
        "best for local: b; b loses 0.00, default loses 10.00",
        "best for other: default; b loses 1.00, default loses 0.00",
        "without one: default is chosen; on one +0.00 (+0.00 to +0.00, p 1)",
        "without two: b is chosen; on two -1.00 (-1.00 to -1.00, p 0.5)",
    ]
