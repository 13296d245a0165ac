"""Answers on a terminal are shown block by block as they are streamed."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.cli.answer import split_blocks


@given(st.text(alphabet="a1.-` \n", max_size=40), st.randoms())
def test_blocks_of_a_streamed_answer_do_not_depend_on_its_pieces_and_lose_no_text(text: str, random: Random) -> None:
    cuts = sorted(random.randint(0, len(text)) for _ in range(3))
    blocks, rest = [], ""
    for start, end in pairwise([0, *cuts, len(text)]):
        complete, rest = split_blocks(rest + text[start:end])
        blocks += complete
    assert (blocks, rest) == split_blocks(text)
    assert "\n".join([*blocks, rest]).split() == text.split()
