"""Every way of naming the models of a project works in create, ingest, load, search, ask and doctor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import Settings

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support import naming
from tests.support.cli import run
from tests.support.naming import ANSWER, WAYS, Way
from tests.support.onnx_models import lookup_model, write_tokenizer
from tests.support.server import LoopbackProvider

TEXT = "# Manual of the pump\n\nError TS-999: the pump runs dry. Close valve V2.\n"
TOKENS = "[PAD] [UNK] [CLS] [SEP] what does error ts 999 mean the pump runs dry close valve v2 - : ."
WORDS = TOKENS.split(" ")


@pytest.fixture(scope="module")
def provider() -> Iterator[LoopbackProvider]:
    """A server that speaks the protocols of all providers."""
    with LoopbackProvider(reply=naming.reply) as running:
        yield running


@pytest.fixture(autouse=True)
def _unassigned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr(Settings, "_embed_model", None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a document, and a model for fastembed in `model`."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "pump.md").write_text(TEXT)
    (tmp_path / "model").mkdir()
    return tmp_path


def write_model(way: str, folder: Path) -> None:
    """Write the files of a transformer that has one dimension for each word."""
    if way == "fastembed":
        rows = np.eye(len(WORDS), dtype=np.float32)
        rows[[0, 2, 3]] = 0
        (folder / "model.onnx").write_bytes(lookup_model(rows))
        write_tokenizer(folder, WORDS, length=64)
    elif way == "huggingface":
        from tests.slow.embeddings.test_huggingface import write_model as write_transformer

        write_transformer(folder)


def create(way: Way, root: Path, folder: Path, url: str) -> None:
    """Create the project `p` and ingest the documents, by the command line unless objects are passed."""
    settings = {
        name: value.format(folder=folder / "model") if isinstance(value, str) else value
        for name, value in way.settings.items()
    }
    objects = dict((way.created_with or way.objects)(url))
    if objects:
        ProjectManager(root).create("p", ProjectConfig(**settings), **objects).ingest([folder / "documents"])
        return
    options = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    if way.file == "settings.json":
        (folder / way.file).write_text(json.dumps(settings))
        options = ["--config", way.file]
    assert run("create", "p", *options, "--root", root).code == 0
    ingested = run("ingest", "p", folder / "documents", "--root", root)
    assert ingested.code == 0, ingested.err


@pytest.mark.parametrize("name", WAYS)
def test_models_work_in_another_process_however_they_are_named(
    name: str, folder: Path, provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = WAYS[name]
    if way.missing:
        pytest.skip(way.missing)
    root, environment = folder / "knowledge", way.variables(provider.url)
    monkeypatch.chdir(folder)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    write_model(name, folder / "model")
    create(way, root, folder, provider.url)
    if way.file == ".env":
        (folder / ".env").write_text("".join(f"{key}={value}\n" for key, value in environment.items()))
        for key in environment:
            monkeypatch.delenv(key)

    assert ProjectManager(root).load("p").info().version is not None
    used = naming.used_in_a_new_process(name, root, provider.url)
    assert used["files"] == ["pump.md"]
    assert (used["answer"], used["cited"], used["models"]) == (ANSWER, ["pump.md"], [way.llm])
    missing = [check["message"] for check in used["doctor"] if check["command"]]
    if "search" in used:
        assert used["search"]["mode_used"] in ("hybrid", "semantic")
        assert ANSWER in used["ask"]
        assert missing == []
    else:  # commands need what the objects contain
        assert all("which is not set" in message for message in missing)
        assert not any("text-embedding-3-small" in message for message in missing), "it is not used"
