"""Batches within the provider's limits, vectors of unit length, and invalid answers."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.embeddings import contextual
from llama_index_contextual.embeddings.batching import as_row, fault_of, pack, unit_vectors
from llama_index_contextual.embeddings.contextual import GroupVectors, aembed, aembed_groups
from llama_index_contextual.errors import InputError, ModelError
from tests.support.models import CountingEmbedding

QUICK = RetryPolicy(attempts=3, base_delay=0)


@given(counts=st.lists(st.integers(0, 8_192) | st.just(8_192), max_size=300), max_inputs=st.integers(1, 60))
def test_packs_keep_both_limits_and_every_item_once(counts: list[int], max_inputs: int) -> None:
    most = contextual.MAX_TOKENS_PER_REQUEST
    packs = list(pack(range(len(counts)), lambda at: (1, counts[at]), (max_inputs, most)))
    assert [at for part in packs for at in part] == list(range(len(counts)))
    sizes = [sum(counts[at] for at in part) for part in packs]
    assert all(0 < len(part) <= max_inputs for part in packs)
    assert all(size <= most for size in sizes)
    for part, size, following in zip(packs, sizes, packs[1:], strict=False):
        assert len(part) == max_inputs or size + counts[following[0]] > most, "not filled"


def test_an_item_above_a_limit_is_alone() -> None:
    assert list(pack([3, 9, 1, 1], lambda number: (number,), (4,))) == [[3], [9], [1, 1]]


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=3, max_size=3), min_size=1, max_size=5))
def test_rows_become_unit_vectors_or_stay_zero(rows: list[list[float]]) -> None:
    units = unit_vectors(np.asarray(rows, dtype=np.float32))
    for row, unit in zip(rows, units, strict=True):
        assert np.linalg.norm(unit) == (pytest.approx(1, abs=1e-4) if any(row) else 0)
    with_nan = unit_vectors(np.array([[math.nan, 3, 4], [math.nan] * 3], dtype=np.float32))
    assert with_nan == pytest.approx(np.array([[0, 0.6, 0.8], [0, 0, 0]]))


# ---- aembed ----------------------------------------------------------------------------------------------------------


async def test_vectors_come_in_the_order_of_the_texts() -> None:
    model = CountingEmbedding(embed_batch_size=2)
    texts = ["pump", "valve", "pump valve", "oil", "steam"]
    result = await aembed(model, texts, name="m")
    assert model.batches == [2, 2, 1]
    assert result.dtype == np.float32
    assert result == pytest.approx(unit_vectors(np.array([model.vector(text) for text in texts], dtype=np.float32)))
    assert (await aembed(model, [], name="m")).shape[0] == 0
    assert model.batches == [2, 2, 1]


async def test_a_text_that_is_too_long_is_refused_before_anything_is_sent() -> None:
    model = CountingEmbedding()
    with pytest.raises(InputError, match=r"8193 tokens, but 'openai:m' accepts at most 8192: lower chunk_s"):
        await aembed(model, ["short", "a" + " a" * 8192], name="openai:m")
    assert model.batches == []


async def test_the_local_model_has_no_limit() -> None:
    model = CountingEmbedding(embed_batch_size=2048)
    await aembed(model, ["a" + " a" * 9000] * 40, name="local")
    assert model.batches == [40]


class Crooked(CountingEmbedding):
    """Returns the scripted vector of each text, or the whole scripted answer, whatever is sent."""

    dimensions: Any = None
    vectors: dict[str, Any] = Field(default_factory=dict)
    answer: list[Any] | None = None

    def vector(self, text: str) -> Any:
        return self.vectors.get(text, [1.0, 0.0])

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self._texts.extend(texts)
        return [self.vector(text) for text in texts] if self.answer is None else self.answer


async def groups(model: Crooked, texts: list[str], name: str = "m") -> dict[int, GroupVectors]:
    result: dict[int, GroupVectors] = {}
    async for answer in aembed_groups(model, [[text] for text in texts], name=name, policy=QUICK):
        assert not result.keys() & answer.keys()
        result |= answer
    return result


@pytest.mark.parametrize("answer", [[], [[1.0] * 2], [[1.0]] * 3, [[1.0, 2, 3, 4]]])
async def test_a_wrong_number_of_vectors_is_an_error_that_names_the_model(answer: list[Any]) -> None:
    message = rf"^'m' did not return one vector per text \({len(answer)} for 2\): run the same call again"
    with pytest.raises(ModelError, match=message) as raised:
        await aembed(Crooked(answer=answer, dimensions=2), ["one", "two"], name="m")
    assert raised.value.setting == "embed_model"


NOT_FINITE = "contains values that are not finite numbers"
FAULTS = {
    "NaN": ([math.nan, 1.0], NOT_FINITE),
    "infinity": ([math.inf, 1.0], NOT_FINITE),
    "too large for 32 bits": ([1e300, 1.0], NOT_FINITE),
    "absurdly long": ([1e38, 1.0], "has the length 1e+38"),
    "long in 64 bits": ([3e38] * 2, "has the length 4e+38"),
    "zero": ([0.0, 0.0], "is zero"),
    "too short": ([1.0], "has 1 dimensions instead of 2"),
    "too long": ([1.0, 2.0, 3.0], "has 3 dimensions instead of 2"),
    "empty": ([], "is not a list of numbers"),
}


@pytest.mark.parametrize("dimensions", [2, None])
@pytest.mark.parametrize(("vector", "fault"), FAULTS.values(), ids=FAULTS.keys())
async def test_an_unusable_vector_is_refused_alone_and_requested_once_more(
    vector: list[float], fault: str, dimensions: Any
) -> None:
    model = Crooked(vectors={"bad": vector}, embed_batch_size=24, dimensions=dimensions)
    texts = [f"text {number}" for number in range(23)]
    result = await groups(model, [*texts[:5], "bad", *texts[5:]])
    assert model.texts == [*texts[:5], "bad", *texts[5:], "bad"]
    assert [at for at, vectors in result.items() if vectors.faults] == [5]
    assert result[5].faults == {0: fault}
    assert result[5].rows.tolist() == [[0.0, 0.0]]
    assert all(vectors.rows.tolist() == [[1.0, 0.0]] for at, vectors in result.items() if at != 5)
    with pytest.raises(ModelError, match=f"^'m' returned a vector that {re.escape(fault)}. Run the same call again"):
        await aembed(model, [*texts, "bad"], name="m")


@pytest.mark.parametrize("vector", [None, "text", [None, "x"], [[1.0], [2.0]], [10**400], {"x": 1}, 1.0])
def test_a_row_of_anything_but_numbers_is_unusable(vector: Any) -> None:
    assert fault_of(as_row(vector)) is not None


async def test_a_vector_that_is_usable_the_second_time_is_used() -> None:
    class Recovering(Crooked):
        def vector(self, text: str) -> Any:
            return [0.0, 3.0] if self.texts.count(text) > 1 else self.vectors.get(text, [1.0, 0.0])

    result = await groups(Recovering(vectors={"bad": [math.nan] * 2}), ["good", "bad"])
    assert [vectors.rows.tolist() for vectors in (result[0], result[1])] == [[[1.0, 0.0]], [[0.0, 1.0]]]
    assert not any(vectors.faults for vectors in result.values())


async def test_vectors_of_two_lengths_equally_often_are_all_refused() -> None:
    result = await groups(Crooked(vectors={"a": [1.0], "b": [1.0, 0.0]}), ["a", "b"])
    assert [vectors.faults[0] for vectors in result.values()] == [
        "has 1 dimensions instead of the same number as the others",
        "has 2 dimensions instead of the same number as the others",
    ]


async def test_a_model_that_returns_only_unusable_vectors_is_not_asked_for_more() -> None:
    texts = [f"text {number}" for number in range(200)]
    model = Crooked(vectors={key: [math.nan, 1.0] for key in texts}, embed_batch_size=4)
    with pytest.raises(ModelError, match=f"'m' returned a vector that {NOT_FINITE}"):
        await groups(model, texts)
    assert len(set(model.texts)) == contextual.MOST_UNUSABLE
    half = Crooked(vectors={key: [math.nan, 1.0] for key in texts[:100]}, embed_batch_size=200)
    assert sum(bool(vectors.faults) for vectors in (await groups(half, texts)).values()) == 100


async def test_a_text_in_more_windows_than_a_request_takes_is_sent_in_several_requests() -> None:
    model = CountingEmbedding(embed_batch_size=2)
    windows = ["one", "two", "three", "four", "five"]
    answers = [answer async for answer in aembed_groups(model, [windows, ["six"]], name="m", policy=QUICK)]
    assert model.batches == [2, 2, 1, 1]
    assert [(at, len(vectors.rows)) for answer in answers for at, vectors in answer.items()] == [(0, 5), (1, 1)]


@pytest.mark.parametrize("error", [ValueError("refused"), ConnectionError("gone"), ModelError("Said already.")])
async def test_a_failure_is_a_message_that_names_the_model(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    async def fail(self: CountingEmbedding, texts: list[str]) -> list[list[float]]:
        calls.append(len(texts))
        raise error

    monkeypatch.setattr(CountingEmbedding, "_aget_text_embeddings", fail)
    with pytest.raises(ModelError) as raised:
        await aembed(CountingEmbedding(), ["one"], name="some:model", policy=QUICK)
    assert len(calls) == (QUICK.attempts if isinstance(error, ConnectionError) else 1)
    if isinstance(error, ModelError):
        assert raised.value is error
    else:
        assert repr(raised.value.__cause__) == repr(error)
        assert "'some:model'" in str(raised.value)
        assert raised.value.setting == "embed_model"


async def test_a_vector_of_the_local_model_may_be_zero() -> None:
    result = await aembed(Crooked(vectors={"odd": [0.0, 0.0]}), ["pump", "odd"], name="local")
    assert result.any(axis=1).tolist() == [True, False]
