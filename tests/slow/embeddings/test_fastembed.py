"""fastembed models by name: a tiny model in ONNX format, written here, in the real fastembed and ONNX Runtime."""

from __future__ import annotations

import asyncio
import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.windows import window_splitter
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import embedding_identity, load_embed_model
from llama_index_contextual.project.manager import ProjectManager

fastembed = pytest.importorskip("fastembed", reason='needs the extra fastembed: pip install -e ".[fastembed]"')

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", ":", "pump", "oil", "valve", "water", "noise"]
MAX_TOKENS = 16


# ---- a model in ONNX format ------------------------------------------------------------------------------------------


def field(number: int, value: int | bytes | str) -> bytes:
    """Return a field of a protocol buffer."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def value_info(name: str, element: int, dimensions: int) -> bytes:
    """Return a tensor of a graph with named dimensions."""
    shape = b"".join(field(1, field(2, f"d{at}")) for at in range(dimensions))
    return field(1, name) + field(2, field(1, field(1, element) + field(2, shape)))


def onnx_model(rows: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Return a model that looks up a row for each token: `last_hidden_state = rows[input_ids]`."""
    table = b"".join(field(1, size) for size in rows.shape) + field(2, 1) + field(8, "rows")
    table += field(9, struct.pack(f"<{rows.size}f", *rows.ravel()))
    node = field(1, "rows") + field(1, "input_ids") + field(2, "last_hidden_state") + field(4, "Gather")
    graph = field(1, node) + field(2, "lookup") + field(5, table)
    graph += field(11, value_info("input_ids", 7, 2)) + field(11, value_info("attention_mask", 7, 2))
    graph += field(12, value_info("last_hidden_state", 1, 3))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one dimension per word, in which padding and the tokens around a text are zero."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    path = tmp_path_factory.mktemp("model")
    rows = np.eye(len(WORDS), dtype=np.float32)
    rows[[0, 2, 3]] = 0
    (path / "model.onnx").write_bytes(onnx_model(rows))
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(path / "tokenizer.json"))
    settings = {"model_max_length": MAX_TOKENS, "pad_token": "[PAD]"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"pad_token_id": 0}))
    (path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]", "unk_token": "[UNK]"}))
    return path


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a model by name; `fastembed` finds its files in the folder instead of downloading them."""
    from fastembed.common.model_description import ModelSource, PoolingType

    def load(name: str) -> Any:
        known = [description["model"] for description in fastembed.TextEmbedding.list_supported_models()]
        if name not in known:
            fastembed.TextEmbedding.add_custom_model(
                model=name,
                pooling=PoolingType.MEAN,
                normalization=True,
                sources=ModelSource(hf="nobody/nothing"),
                dim=len(WORDS),
                model_file="model.onnx",
            )
        return load_embed_model(f"fastembed:{name}")

    original = fastembed.TextEmbedding.__init__

    def with_folder(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options, specific_model_path=str(folder))

    monkeypatch.setattr(fastembed.TextEmbedding, "__init__", with_folder)
    return load


def words(vector: list[float]) -> dict[str, float]:
    return {WORDS[at]: round(float(value), 3) for at, value in enumerate(vector) if abs(value) > 1e-6}


# ---- tests -----------------------------------------------------------------------------------------------------------


def test_a_name_loads_the_model_and_is_its_identity(model: Any) -> None:
    plain = model("tests/plain")
    assert embedding_identity(plain) == "fastembed:tests/plain"
    assert words(plain.get_text_embedding("pump oil oil")) == {"pump": 0.447, "oil": 0.894}
    assert words(plain.get_query_embedding("valve")) == {"valve": 1.0}
    assert plain.get_text_embedding_batch(["pump", "oil water"])[1] == plain.get_text_embedding("oil water")


def test_prefixes_that_fastembed_leaves_out_are_added_once(model: Any) -> None:
    e5 = model("tests/e5-small")
    assert words(e5.get_query_embedding("pump")) == {"query": 0.577, ":": 0.577, "pump": 0.577}
    assert words(e5.get_text_embedding("pump")) == {"passage": 0.577, ":": 0.577, "pump": 0.577}


async def test_asynchronous_calls_and_threads_return_the_same(model: Any) -> None:
    plain = model("tests/plain")
    texts = [" ".join(["pump", "oil", "water", "noise"][: 1 + at % 4]) for at in range(40)]
    expected = [plain.get_text_embedding(text) for text in texts]
    assert await asyncio.gather(*map(plain.aget_text_embedding, texts)) == expected
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(plain.get_text_embedding, texts)) == expected
    assert await plain.aget_query_embedding("pump") == plain.get_query_embedding("pump")


def test_the_limit_and_the_tokenizer_are_those_of_the_model(model: Any) -> None:
    splitter = window_splitter(model("tests/e5-small"), "fastembed:tests/e5-small", "auto")
    assert splitter is not None
    # [CLS] and [SEP], "passage" and ":", and a margin of 2.
    assert (splitter.limit, splitter.room) == (MAX_TOKENS, 10)
    windows = splitter.split("pump " * 10 + "oil " * 10)
    assert [window.tokens for window in windows] == [8, 8, 8]


def test_a_project_finds_words_beyond_what_the_model_reads(model: Any, manager: ProjectManager, tmp_path: Path) -> None:
    (tmp_path / "first.txt").write_text("pump " * 30 + "valve " * 10)
    (tmp_path / "second.txt").write_text("water " * 30 + "noise")
    model("tests/plain")
    best = {}
    for window in ("auto", None):
        config = ProjectConfig.local(embed_model="fastembed:tests/plain", context="none", embed_window=window)
        project = manager.create(f"p-{window}", config)
        report = project.ingest([tmp_path])
        assert report.paid is None or report.paid.dollars == 0
        best[window] = [hit.score for hit in project.retrieve("valve", mode="semantic")]
    assert best["auto"][0] > 0.2
    assert max(best[None], default=0) < 1e-6


def test_an_unknown_name_says_what_to_do() -> None:
    said = (
        r"^'fastembed:no/such-model' cannot be loaded: Model no/such-model is not supported.* Check the name; a model"
        r" that is not on this machine yet is downloaded, which requires a network\.$"
    )
    with pytest.raises(ModelError, match=said) as raised:
        load_embed_model("fastembed:no/such-model")
    assert raised.value.setting == "embed_model"
