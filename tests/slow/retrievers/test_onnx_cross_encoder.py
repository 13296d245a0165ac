"""Cross-encoders of fastembed: a tiny model in ONNX format, written here, in the real fastembed and ONNX Runtime."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from llama_index_contextual.search import cross_encoders
from llama_index_contextual.search.rerank import CrossEncoderReranker, Rerankers
from tests.integration.retrievers.test_rerank import hits_of
from tests.support.onnx_models import best_word_model, write_tokenizer

pytest.importorskip("fastembed", reason='needs the extra fastembed: pip install -e ".[fastembed]"')

LOGITS = {"[PAD]": -9.0, "[UNK]": -3.0, "[CLS]": -9.0, "[SEP]": -9.0, "good": 1.0, "best": 2.0, "bad": -2.0}
LENGTH = 64


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def write_model(folder: Path, *, columns: int = 1, activation: str | None = None, path: str = "onnx/model.onnx") -> str:
    """Write a model whose logit is that of the best word in a pair, and return its name."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    rows = np.repeat(np.array([*LOGITS.values()], dtype=np.float32)[:, None], columns, axis=1)
    (folder / path).write_bytes(best_word_model(rows))
    write_tokenizer(folder, [*LOGITS], length=LENGTH)
    if activation is not None:
        settings = {"pad_token_id": 0, "sentence_transformers": {"activation_fn": activation}}
        (folder / "config.json").write_text(json.dumps(settings))
    return f"fastembed:{folder}"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model")


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of fastembed and of the hub without models."""
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "fastembed"))
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "hub"))
    return tmp_path / "fastembed"


def cached(cache: Path, name: str) -> str:
    """Write a model to the cache of fastembed, as a download does, and return its name."""
    repository, _ = cross_encoders._onnx_files(name)
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("1" * 40)
    write_model(folder / "snapshots" / ("1" * 40))
    return f"fastembed:{name}"


async def test_passages_are_sorted_by_their_best_window(model: str) -> None:
    reranker = CrossEncoderReranker(model, device="cpu", batch_size=2)
    hits = hits_of("bad", "good words", f"{'word ' * 150}best", "", "words")
    reranked = reranker.rerank("what is it ?", hits, threshold=0.2)
    assert {name: decision.score for name, decision in reranked.decisions.items()} == pytest.approx(
        {"n1": sigmoid(-2), "n2": sigmoid(1), "n3": sigmoid(2), "n4": sigmoid(-3), "n5": sigmoid(-3)}
    )
    assert [hit.node_id for hit in reranked.hits] == ["n3", "n2"]
    assert reranked.decisions["n3"].reason == "probability 0.8808, the best of 4 windows (number 4)"
    assert (reranked.windows, reranker.device, reranker.length) == (8, "cpu", LENGTH)
    assert await reranker.arerank("what is it ?", hits, threshold=0.2) == reranked
    assert await asyncio.gather(*(reranker.arerank("what is it ?", hits, threshold=0.2) for _ in range(4))) == 4 * [
        reranked
    ]


@pytest.mark.parametrize(
    ("activation", "kept"),
    [(None, 2), ("torch.nn.modules.activation.Sigmoid", 2), ("torch.nn.modules.linear.Identity", 3)],
)
def test_the_default_threshold_applies_to_models_that_return_probabilities(
    tmp_path: Path, activation: str | None, kept: int
) -> None:
    reranker = CrossEncoderReranker(write_model(tmp_path, activation=activation))
    hits = hits_of("best", "good", "bad")
    assert len(reranker.rerank("why ?", hits, threshold="auto").hits) == kept
    assert len(reranker.rerank("why ?", hits, threshold=0.3).hits) == 2
    assert len(reranker.rerank("why ?", hits).hits) == 3


def test_a_project_reports_the_model_its_device_and_its_time(tmp_path: Path, model: str) -> None:
    project = project_of(tmp_path, rerank=model)
    response = project.retrieve("Which words are there?", explain=True)
    assert [hit.source.doc_id for hit in response] == ["best.txt", "good.txt"]
    use = response.reranker
    assert use is not None
    assert (use.name, use.reason, use.device, use.passages) == (model, "the `rerank` setting", "cpu", 3)
    assert (use.windows, use.batch_size, use.threshold) == (3, 32, 0.3)
    assert use.seconds > 0
    assert response.to_dict()["reranker"]["device"] == "cpu"
    assert f"Reranker: {model} on cpu (the `rerank` setting); 3 passages, 3 windows in batches of 32" in repr(response)


def project_of(root: Path, **settings: Any) -> Project:
    project = ProjectManager(root).create("words", ProjectConfig.local(indexes="lexical", **settings))
    for name in ("good", "best", "bad"):
        (root / name).with_suffix(".txt").write_text(f"These words are {name} .")
    project.ingest([str((root / name).with_suffix(".txt")) for name in ("good", "best", "bad")])
    return project


def test_auto_takes_the_best_cached_model_or_the_preferred_one(tmp_path: Path, empty_cache: Path, model: str) -> None:
    mini = cached(empty_cache, "Xenova/ms-marco-MiniLM-L-6-v2")
    project = project_of(tmp_path, rerank="auto")
    choice = project.info().reranker
    assert choice is not None
    assert (choice.name, choice.device) == (mini, None)  # not loaded
    assert choice.reason == "the best cross-encoder on this machine, in the cache of fastembed"
    response = project.retrieve("Which words are there?")
    assert response[0].source.doc_id == "best.txt"
    assert response.reranker is not None
    assert (response.reranker.name, response.reranker.reason) == (mini, choice.reason)
    assert str(project.info().reranker) == f"{mini} on cpu ({choice.reason})"

    better = cached(empty_cache, "BAAI/bge-reranker-base")
    assert Rerankers().of("auto", ProjectConfig.local(rerank="auto", language="english")).choice.name == better
    german = Rerankers().of("auto", ProjectConfig.local(rerank="auto", language="german"))
    assert german.reranker is None  # both read only English
    preferred = Rerankers().of(f"auto:{model}", ProjectConfig.local(rerank=f"auto:{model}"))
    assert (preferred.choice.name, preferred.reason) == (model, "named in the `rerank` setting")


def test_auto_skips_a_model_that_cannot_be_loaded_and_says_why(empty_cache: Path) -> None:
    better = cached(empty_cache, "BAAI/bge-reranker-base")
    (damaged,) = empty_cache.glob("*/snapshots/*/onnx/model.onnx")
    damaged.write_bytes(b"damaged")
    auto = ProjectConfig.local(rerank="auto", language="english")
    alone = Rerankers().of("auto", auto)
    assert alone.reranker is None
    assert alone.reason.startswith(f"The reranker {better!r} cannot be loaded")
    assert "if its download was interrupted, delete its files in the cache" in alone.reason
    mini = cached(empty_cache, "Xenova/ms-marco-MiniLM-L-6-v2")
    selected = Rerankers().of("auto", auto)
    assert selected.choice.name == mini
    assert f"The reranker {better!r} cannot be loaded" in selected.reason


@pytest.mark.usefixtures("empty_cache")
def test_a_model_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is neither a folder nor one of the cross-encoders of fastembed .*/ms"):
        CrossEncoderReranker("fastembed:no/such")
    with pytest.raises(ModelError, match=r"is not on this machine and cannot be downloaded .*: check the name and the"):
        CrossEncoderReranker("fastembed:Xenova/ms-marco-MiniLM-L-6-v2")
    with pytest.raises(ModelError, match=r"is a folder without a file model\.onnx"):
        CrossEncoderReranker(f"fastembed:{tmp_path}")
    with pytest.raises(ModelError, match="returns 2 values for a passage instead of one"):
        CrossEncoderReranker(write_model(tmp_path / "pairs", columns=2, path="model.onnx"))
