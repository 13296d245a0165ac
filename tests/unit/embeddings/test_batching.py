"""Batches within the provider's limits, vectors of unit length, and invalid answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual._utils.calls import RetryPolicy
from llama_index_contextual.embeddings import contextual
from llama_index_contextual.embeddings.batching import pack, product_in_blocks, unit_vectors
from llama_index_contextual.embeddings.contextual import aembed
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
    """Answers with what `answer` says."""

    answer: list[Any]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.answer


WRONG_NUMBER = "'m' did not return one vector per text"
NOT_FINITE = "'m' returned vectors that are not finite numbers: run the same"
ANSWERS = [
    *((answer, WRONG_NUMBER) for answer in ([], [[1.0] * 2], [[1.0]] * 3, [[1.0, 2, 3, 4]])),
    ([[1.0], [1.0, 2.0]], "'m' did not return vectors of 2 dimensions: set the"),
    *(([[bad, 1.0]] * 2, NOT_FINITE) for bad in (math.nan, math.inf, 1e300)),
    ([[1.0, 2.0, 3.0]] * 2, "'m' did not return vectors of 2 dimensions: set the"),
]


@pytest.mark.parametrize(("answer", "message"), ANSWERS)
async def test_an_answer_with_wrong_vectors_is_an_error_that_names_the_model(answer: list[Any], message: str) -> None:
    with pytest.raises(ModelError, match=f"^{message}") as raised:
        await aembed(Crooked(answer=answer, dimensions=2), ["one", "two"], name="m")
    assert raised.value.setting == "embed_model"


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


async def test_a_vector_that_is_zero_stays_zero() -> None:
    answer = [[1.0, 0.0], [0.0, 0.0]]
    result = await aembed(Crooked(answer=answer, dimensions=2), ["pump", "odd valve"], name="m")
    assert result.any(axis=1).tolist() == [True, False]


# ---- products --------------------------------------------------------------------------------------------------------

THREADS = 262_144  # OpenBLAS: SMP_THRESHOLD_MIN × GEMM_MULTITHREAD_THRESHOLD multiplications


@pytest.fixture
def multiplications(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of multiplications in each product that NumPy passes to OpenBLAS."""
    sizes: list[int] = []
    matmul = np.matmul

    def count(left: Any, right: Any) -> Any:
        sizes.append(math.prod(left.shape[-2:]) * right.shape[-1])
        return matmul(left, right)

    monkeypatch.setattr(np, "matmul", count)
    return sizes


@pytest.mark.parametrize("count", [1, 9, 64])
@pytest.mark.parametrize("rows", [0, 1, 23, 24, 1_562, 1_563, 5_000])
def test_a_product_in_blocks_is_the_product_and_no_block_starts_threads(
    rows: int, count: int, multiplications: list[int]
) -> None:
    draw = np.random.default_rng(rows + count)
    left = draw.standard_normal((rows, 128), dtype=np.float32)
    right = draw.standard_normal((count, 128), dtype=np.float32).T
    result = product_in_blocks(left, right)
    assert result.shape == (rows, count)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, left.astype(np.float64) @ right, rtol=1e-5, atol=1e-5)
    assert 0 <= max(multiplications) < THREADS
