"""fastembed models by name: a tiny model in ONNX format, written here, in the real fastembed and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.windows import window_splitter
from llama_index_contextual.models import embedding_identity, load_embed_model
from llama_index_contextual.project.manager import ProjectManager
from tests.support.onnx_models import lookup_model, write_tokenizer

fastembed = pytest.importorskip("fastembed", reason='needs the extra fastembed: pip install -e ".[fastembed]"')

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", "passage", ":", "pump", "oil", "valve", "water", "noise"]
MAX_TOKENS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one dimension per word, in which padding and the tokens around a text are zero."""
    path = tmp_path_factory.mktemp("model")
    rows = np.eye(len(WORDS), dtype=np.float32)
    rows[[0, 2, 3]] = 0
    (path / "model.onnx").write_bytes(lookup_model(rows))
    write_tokenizer(path, WORDS, length=MAX_TOKENS)
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
