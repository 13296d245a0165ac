"""The local embedding: the vectors of WordLlama's package without importing it, no NaN, and clear errors."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
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
import sys
print("wordllama" in sys.modules)
"""


def test_models_and_indexes_need_no_network_and_leave_logs_and_environment_as_they_were() -> None:
    environment = {"PATH": "", "HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["256", "3", "None", "True", "True", "False"], done.stderr
    assert "bm25s" not in done.stderr


PACKAGE = """
import random
from pathlib import Path
import numpy as np
import wordllama
from llama_index_contextual.embeddings.words import embedded, word_vectors

package = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
draw = random.Random(7)
words = ["pump", "TS-999", "überprüft", "文字", "\\n\\n", "🦜", "</s>", "3.5", "naïve", "x" * 300, "\\x00", "|", "  "]
texts = ["", " ", "…", *(" ".join(draw.choices(words, k=draw.choice([1, 5, 50, 400]))) for _ in range(150))]
expected = package.embed([text or " " for text in texts], norm=True)
print(embedded(texts).tobytes() == expected.tobytes())
print(np.concatenate([embedded([text]) for text in texts]).tobytes() == expected.tobytes())
single = [word for word in words if word.strip()]
sums = []
for word in single:
    ids = package.tokenizer.encode([word], is_pretokenized=True, add_special_tokens=False).ids
    sums.append(np.add.reduceat(package.embedding[ids], [0], axis=0)[0])
print(word_vectors(single).tobytes() == np.stack(sums).tobytes())
print(word_vectors(single, 128).tobytes() == np.stack(sums)[:, :128].tobytes())
"""


def test_the_vectors_are_those_of_the_package_to_the_byte() -> None:
    done = subprocess.run([sys.executable, "-c", PACKAGE], capture_output=True, text=True)  # it sets the root logger up
    assert done.stdout.split() == ["True"] * 4, done.stderr


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
