"""The local embedding: unit vectors, no NaN, and an unchanged root logger."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_index_contextual.embeddings import words
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.errors import ModelError

model = WordLlamaEmbedding()


ALONE = """
import logging, os, socket
def refuse(*arguments, **options): raise OSError("no network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
root = logging.getLogger()
before = root.handlers[:], root.level
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.node_parser import count_tokens
from llama_index_contextual.index.bm25 import LexicalIndex
print(len(WordLlamaEmbedding().get_text_embedding("revenue")))
print(count_tokens("three small words"), os.environ.get("TIKTOKEN_CACHE_DIR"))
LexicalIndex.build(["pump", "valve"]).scores("pump")
print((root.handlers, root.level) == before, logging.getLogger("bm25s").getEffectiveLevel() == root.level)
"""


def test_models_and_indexes_need_no_network_and_leave_logs_and_environment_as_they_were() -> None:
    environment = {"PATH": "", "HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["256", "3", "None", "True", "True"], done.stderr
    assert "bm25s" not in done.stderr


@given(st.text(max_size=200))
def test_every_vector_is_of_unit_length_or_zero(text: str) -> None:
    vector = np.array(model.get_text_embedding(text))
    assert vector.shape == (256,)
    assert np.isfinite(vector).all()
    length = np.linalg.norm(vector)
    assert length == pytest.approx(1, abs=1e-5) or length == 0


@pytest.mark.parametrize("text", ["revenue grew by 3 %", "x", "文", "…", "\n"])
def test_ordinary_text_has_a_nonzero_vector(text: str) -> None:
    assert np.linalg.norm(model.get_text_embedding(text)) == pytest.approx(1, abs=1e-5)


def test_similar_texts_are_closer_than_others() -> None:
    pump, pumps, bread = np.array(
        model.get_text_embedding_batch(["the pump runs dry", "dry running of pumps", "bake the bread"])
    )
    assert pump @ pumps > pump @ bread + 0.2


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


def test_the_weights_are_loaded_once_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words._load.cache_clear()
    with ThreadPoolExecutor(4) as threads:
        assert len({id(one) for one in threads.map(lambda _: words._model(), range(4))}) == 1
    monkeypatch.setitem(sys.modules, "wordllama", None)
    words._load.cache_clear()
    with pytest.raises(ModelError, match=r'pip install "llama-index-contextual\[local\]"') as raised:
        model.get_text_embedding("x")
    assert raised.value.setting == "embed_model"
    words._load.cache_clear()
