"""From the installation of the wheel to an answer without a network, in a network namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.documents import PDF_PAGES, TEXT, pdf_bytes, write_texts
from tests.support.source import ROOT

pytest.importorskip("hatchling", reason="builds the wheel")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "What", "does", "error", "Error", "TS", "999", "pump", "tariff", "duty"]

RECORD = """
import os, socket
connect, resolve = socket.socket.connect, socket.getaddrinfo

def record(host):
    if str(host).strip("[]") not in ("127.0.0.1", "::1", "localhost", "None", ""):
        with open(os.environ["CONTACTED"], "a") as file:
            file.write(f"{host}\\n")

def recording_connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6):
        record(address[0])
    return connect(self, address)

def recording_resolve(host, *args, **options):
    record(host)
    return resolve(host, *args, **options)

socket.socket.connect, socket.getaddrinfo = recording_connect, recording_resolve
"""
"""Module that is imported when Python starts, and records every other host that a program tries to reach."""


def can_unshare() -> bool:
    """Return whether this user may create a network namespace."""
    try:
        return subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command line in a new environment, with the wheel and the dependencies of the tests.

    A path file takes the place of `pip install` for the dependencies, because their wheels are not on this machine.
    """
    folder = tmp_path_factory.mktemp("offline")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        folder,
        ROOT,
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--no-index", "--no-deps", wheel], check=True, capture_output=True)
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "sitecustomize.py").write_text(RECORD)
    return python.with_name("llama-index-contextual")


def onnx_folder(folder: Path, *, is_reranker: bool) -> Path:
    """Write a model with one dimension for each word and its tokenizer."""
    from tests.support.onnx_models import best_word_model, lookup_model, write_tokenizer

    folder.mkdir()
    rows = np.eye(len(WORDS), dtype=np.float32)
    rows[[0, 2, 3]] = 0
    best = np.arange(len(WORDS), dtype=np.float32)[:, None]
    (folder / "model.onnx").write_bytes(best_word_model(best) if is_reranker else lookup_model(rows))
    write_tokenizer(folder, WORDS, length=64)
    return folder


def transformer_folder(folder: Path) -> Path:
    """Write a transformer with random weights for sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(7)
    source = folder.with_name("source")
    source.mkdir()
    words = [*WORDS[:4], "[MASK]", *dict.fromkeys(word.lower() for word in WORDS[4:])]
    (source / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab_file=str(source / "vocab.txt")).save_pretrained(source)
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(source)
    word = models.Transformer(str(source))
    SentenceTransformer(modules=[word, models.Pooling(word.get_word_embedding_dimension())]).save(str(folder))
    return folder


def settings_of(kind: str, folder: Path) -> dict[str, str]:
    if kind == "local":
        return {}
    if kind == "fastembed":
        pytest.importorskip("fastembed", reason='needs the extra fastembed: pip install -e ".[fastembed]"')
        reranker = onnx_folder(folder / "reranker", is_reranker=True)
        embedding = onnx_folder(folder / "embedding", is_reranker=False)
        return {"embed_model": f"fastembed:{embedding}", "rerank": f"fastembed:{reranker}"}
    pytest.importorskip("llama_index.embeddings.huggingface", reason="needs the extra huggingface")
    return {"embed_model": f"huggingface:{transformer_folder(folder / 'transformer')}"}


@pytest.mark.skipif(not can_unshare(), reason="this user may not create a network namespace (`unshare -rn`)")
@pytest.mark.parametrize("kind", ["local", "fastembed", "huggingface"])
def test_without_a_network_documents_are_ingested_searched_and_answered_from(
    program: Path, tmp_path: Path, kind: str
) -> None:
    documents = write_texts(tmp_path / "documents")
    (documents / "tariff.pdf").write_bytes(pdf_bytes())
    has_ocr = all(map(find_spec, ("rapidocr", "onnxruntime", "PIL")))
    if has_ocr:
        from tests.support.scans import drawn, pdf_of_images, table

        (documents / "scan.pdf").write_bytes(pdf_of_images([drawn(table, dpi=150)]))
    settings = {"llm": "openai-like:any", "ocr": "auto" if has_ocr else "null", **settings_of(kind, tmp_path)}
    contacted = tmp_path / "contacted"
    subprocess.run(
        ["unshare", "-rn", sys.executable, "-m", "tests.slow.offline.inside", program, tmp_path, json.dumps(settings)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "CONTACTED": str(contacted), "PYTHONPATH": str(ROOT)},
    )
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert results["closed"]
    assert not contacted.exists(), contacted.read_text()
    assert results["ingest"]["skipped"] == []
    assert len(results["ingest"]["added"]) == 3 + has_ocr
    hits = [*results["search"]["results"], *results["search"].get("folded", ())]
    (manual,) = [hit for hit in hits if hit["source"]["file_name"] == "manual.txt"]
    assert manual["text"] in TEXT
    assert manual["semantic"]["score"] > 0
    assert kind != "local" or hits[0] == manual, "the other models have not been trained"
    assert any(page in hit["text"] for hit in hits for page in PDF_PAGES)
    assert results["ask"]["answer"].startswith("TS-999 means that the pump runs dry")
    assert results["calls"] > 0
    assert results["doctor"]["sound"], results["doctor"]
    shown = [check["message"] for check in results["doctor"]["checks"]]
    assert f"{settings.get('embed_model', 'local')} can be loaded" in shown
