"""Which parts are merged."""

from __future__ import annotations

from llama_index_contextual.ingestion import builder
from llama_index_contextual.ingestion.builder import merges


def test_a_chunk_is_copied_a_number_of_times_that_grows_with_the_logarithm_only() -> None:
    parts: list[int] = []
    copied = added = 0
    for _ in range(5_000):
        parts.append(10)
        added += 10
        for first, last in reversed(merges([(size, size) for size in parts])):
            copied += sum(parts[first:last])
            parts[first:last] = [sum(parts[first:last])]
        full = sum(size >= builder._FULL * builder.PART_CHUNKS for size in parts)
        assert len(parts) - full <= builder.MAX_SMALL_PARTS + 1
        assert max(parts) <= builder.PART_CHUNKS
    assert copied < 8 * added


def test_only_parts_after_the_last_full_one_are_merged() -> None:
    full = [(40_000, 40_000)]
    assert merges([*full, *[(10, 10)] * 9]) == [(1, 10)]
    assert merges([*full, *[(10, 10)] * 8]) == []
    assert merges([(100, 120), *full, (10, 10)]) == [(0, 1)]
    assert merges([]) == []
