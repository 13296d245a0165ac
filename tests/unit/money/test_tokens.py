"""Token counts as reported by the providers."""

from __future__ import annotations

from llama_index_contextual.money.tokens import Usage


def test_the_counts_of_a_stream_replace_earlier_counts_and_are_kept_if_a_piece_has_none() -> None:
    start = {"message": {"usage": {"input_tokens": 70, "cache_read_input_tokens": 30, "output_tokens": 1}}}
    usage = Usage().updated(start)
    assert usage == Usage(100, 30, 1)
    assert usage.updated({"delta": "Close the valve."}) == usage
    assert usage.updated({"usage": {"output_tokens": 9}}) == Usage(100, 30, 9)
    assert usage.updated({"usage": {"prompt_tokens": 120, "completion_tokens": 8}}) == Usage(120, 30, 8)
