"""Sentence-transformers models by name: a tiny model with random weights, built here, in the real libraries."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_index_contextual.embeddings.windows import window_splitter
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import embedding_identity, load_embed_model, model_name

_EXTRA = 'needs the extra huggingface: pip install -e ".[huggingface]"'
pytest.importorskip("torch", reason=_EXTRA)
sentence_transformers = pytest.importorskip("sentence_transformers", reason=_EXTRA)
huggingface = pytest.importorskip("llama_index.embeddings.huggingface", reason=_EXTRA)

WORDS = "query passage search ask : pump oil valve water noise the of in a b".split()  # noqa: SIM905
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with two layers and 32 dimensions that reads 32 tokens, without prompts."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(7)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    (folder / "1_Pooling").mkdir(parents=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    entries = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_TOKENS}))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def named(tiny: Path, folder: Path, prompts: dict[str, str] | None = None) -> Any:
    """Return the model from a folder of another name, with these prompts in its configuration."""
    shutil.copytree(tiny, folder)
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return load_embed_model(f"huggingface:{folder}")


@pytest.fixture(scope="module")
def encode(tiny: Path) -> Any:
    """Returns the vector of a text exactly as given."""
    encoder = sentence_transformers.SentenceTransformer(str(tiny), device="cpu", local_files_only=True)
    return lambda text: encoder.encode([text], prompt="", normalize_embeddings=True)[0]


def test_a_path_loads_the_model_and_is_its_identity(tiny: Path, encode: Any) -> None:
    model = load_embed_model(f"huggingface:{tiny}")
    assert embedding_identity(model) == model_name(model) == f"huggingface:{tiny}"
    np.testing.assert_allclose(model.get_text_embedding("the pump"), encode("the pump"), atol=1e-6)
    np.testing.assert_allclose(model.get_query_embedding("the pump"), encode("the pump"), atol=1e-6)


def test_an_object_of_llamaindex_keeps_its_identity(tiny: Path) -> None:
    model = huggingface.HuggingFaceEmbedding(model_name=str(tiny), device="cpu")
    assert embedding_identity(model) == f"HuggingFaceEmbedding:{tiny}"


@pytest.mark.parametrize(
    ("folder", "prompts", "query", "passage"),
    [
        ("e5-small", None, "query: ", "passage: "),
        ("e5-small-configured", {"query": "ask: ", "document": ""}, "ask: ", ""),
        ("plain", {"query": "ask: ", "passage": "in: "}, "ask: ", "in: "),
        ("plain", {"query": "ask: "}, "ask: ", ""),
        ("arctic-embed-m", {"query": "search: "}, "search: ", ""),
        ("plain", {"retrieval.query": "ask: ", "retrieval.passage": "in: ", "classification": "c"}, "ask: ", "in: "),
        ("plain", {"query": "", "document": ""}, "", ""),
        ("plain", None, "", ""),
    ],
)
def test_each_text_gets_one_prompt_the_models_own_first(
    tiny: Path, tmp_path: Path, encode: Any, folder: str, prompts: dict[str, str] | None, query: str, passage: str
) -> None:
    model = named(tiny, tmp_path / folder, prompts)
    assert (model.query_instruction, model.text_instruction) == (query, passage)
    np.testing.assert_allclose(model.get_query_embedding("pump oil"), encode(f"{query}pump oil"), atol=1e-6)
    np.testing.assert_allclose(model.get_text_embedding("pump oil"), encode(f"{passage}pump oil"), atol=1e-6)


def test_threads_can_share_a_model(tiny: Path) -> None:
    model = load_embed_model(f"huggingface:{tiny}")
    texts = [" ".join(WORDS[: 1 + at % len(WORDS)]) for at in range(60)]
    expected = [model.get_text_embedding(text) for text in texts]
    with ThreadPoolExecutor(8) as threads:
        np.testing.assert_allclose(list(threads.map(model.get_text_embedding, texts)), expected, atol=1e-6)


def test_windows_are_what_the_model_reads_with_its_prompt(tiny: Path, tmp_path: Path) -> None:
    model = named(tiny, tmp_path / "e5-small")
    splitter = window_splitter(model, "huggingface:x", "auto")
    assert splitter is not None
    # [CLS] and [SEP], "passage" and ":", and a margin of 2.
    assert (splitter.limit, splitter.room) == (MAX_TOKENS, 26)
    tokenizer = model._model.tokenizer
    for window in splitter.split("the pump, " * 40):
        assert len(tokenizer("passage: " + window.text)["input_ids"]) <= MAX_TOKENS


def test_a_folder_that_is_no_model_and_a_name_without_network_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in (f"{tmp_path}", "nobody/no-such-model"):
        with pytest.raises(ModelError, match=rf"^'huggingface:{name}' cannot be loaded: .*Check the name") as raised:
            load_embed_model(f"huggingface:{name}")
        assert "\n" not in str(raised.value)
        assert raised.value.setting == "embed_model"


def test_loading_a_model_on_this_machine_prints_nothing(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_embed_model(f"huggingface:{tiny}").get_text_embedding("pump")
    assert capfd.readouterr() == ("", "")
