"""Statements that were written by hand are given the sentence of the example documents that supports them."""

from __future__ import annotations

from tests.benchmarks.statements import check


def test_statements_written_by_hand_are_given_the_sentences_that_support_them() -> None:
    results = check()
    assert len(results) == 50
    assert sum(case.is_placed(found) for case, found in results) >= 43
    supported = [found for case, found in results if case.status == "supported"]
    assert sum(found is None or found.status != "supported" for found in supported) <= 2
    invented = [found for case, found in results if case.status == "not_found"]
    assert all(found is not None and found.status == "not_found" for found in invented)
