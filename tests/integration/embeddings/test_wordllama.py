"""The local embedding: unit vectors, no NaN, files that are read once, and clear errors."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.embeddings import words
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.errors import ModelError

model = WordLlamaEmbedding()


@given(st.text(max_size=200))
def test_every_vector_is_of_unit_length_or_zero(text: str) -> None:
    vector = np.array(model.get_text_embedding(text))
    assert vector.shape == (256,)
    assert np.isfinite(vector).all()
    length = np.linalg.norm(vector)
    assert length == pytest.approx(1, abs=1e-5) or length == 0


def test_texts_alone_and_in_batches_have_the_same_vectors() -> None:
    texts = [f"sentence {n} about the pump" + " and more" * (n % 7) for n in range(20)]
    alone = [model.get_text_embedding(text) for text in texts]
    together = model.get_text_embedding_batch(texts)
    assert np.allclose(alone, together, atol=1e-6)
    assert np.allclose(alone, [model.get_query_embedding(text) for text in texts], atol=1e-6)
    assert model.get_text_embedding_batch([]) == []


async def test_async_gives_what_sync_gives_and_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the pump", "the valve"]
    expected = model.get_text_embedding_batch(texts)
    loop, real = asyncio.get_running_loop(), words._model

    def turning() -> object:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
        return real()

    monkeypatch.setattr(words, "_model", turning)
    assert await model.aget_text_embedding_batch(texts) == expected
    assert await model.aget_query_embedding("the pump") == expected[0]
    assert await model.aget_text_embedding("the pump") == expected[0]


def test_the_files_are_read_once_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words._load.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        assert len({id(one) for one in threads.map(lambda _: words._model(), range(4))}) == 1
    for name in ("wordllama", "tokenizers"):
        with monkeypatch.context() as missing:
            missing.setitem(sys.modules, name, None)
            words._load.cache_clear()
            with pytest.raises(ModelError, match=r'pip install "llama-index-contextual\[local\]"') as raised:
                model.get_text_embedding("x")
        assert raised.value.setting == "embed_model"
    words._load.cache_clear()


# ---- damaged files ---------------------------------------------------------------------------------------------------


def header(data: bytes, **changes: object) -> bytes:
    """Change the header of a safetensors file, and keep its numbers."""
    end = 8 + int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:end])
    tensors["embedding.weight"] |= changes
    changed = json.dumps(tensors).encode()
    return len(changed).to_bytes(8, "little") + changed + data[end:]


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes | None]]] = {
    "no weights": (words._WEIGHTS, lambda data: None),
    "no numbers": (words._WEIGHTS, lambda data: b""),
    "part of the length": (words._WEIGHTS, lambda data: data[:5]),
    "the header alone": (words._WEIGHTS, lambda data: data[:96]),
    "half of the numbers": (words._WEIGHTS, lambda data: data[: len(data) // 2]),
    "whole rows are missing": (words._WEIGHTS, lambda data: data[:-512]),
    "an endless header": (words._WEIGHTS, lambda data: b"\xff" * 8 + data[8:]),
    "a header that is no JSON": (words._WEIGHTS, lambda data: data[:8] + b"\xff" + data[9:]),
    "a header that is a list": (words._WEIGHTS, lambda data: (2).to_bytes(8, "little") + b"[]"),
    "no such tensor": (words._WEIGHTS, lambda data: data.replace(b"embedding.weight", b"embedding.height", 1)),
    "other numbers": (words._WEIGHTS, lambda data: header(data, dtype="BF16")),
    "numbers elsewhere": (words._WEIGHTS, lambda data: header(data, data_offsets=[512, 16_384_511])),
    "offsets that are no numbers": (words._WEIGHTS, lambda data: header(data, data_offsets=["a", None])),
    "no tokenizer": (words._TOKENIZER, lambda data: None),
    "half of a tokenizer": (words._TOKENIZER, lambda data: data[: len(data) // 2]),
    "another kind of tokenizer": (words._TOKENIZER, lambda data: b"{}"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_missing_or_damaged_file_is_named_with_the_remedy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = find_spec("wordllama")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path, change = DAMAGE[name]
    for file in (words._WEIGHTS, words._TOKENIZER):
        intact, copy = Path(spec.submodule_search_locations[0], file), tmp_path / file
        copy.parent.mkdir()
        if file != path:
            shutil.copy(intact, copy)
        elif (data := change(intact.read_bytes())) is not None:
            copy.write_bytes(data)
    elsewhere = ModuleSpec("wordllama", None, is_package=True)
    elsewhere.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(words, "find_spec", lambda _: elsewhere)
    words._load.cache_clear()
    with pytest.raises(ModelError, match="missing or damaged: pip install --force-reinstall") as raised:
        model.get_text_embedding("x")
    assert str(tmp_path / path) in str(raised.value)
    words._load.cache_clear()
