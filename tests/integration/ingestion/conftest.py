"""A project whose embedding model counts its calls, and a provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.models import CountingEmbedding
from tests.support.server import LoopbackProvider


@pytest.fixture
def model() -> CountingEmbedding:
    """An embedding model that remembers what it embedded."""
    return CountingEmbedding()


@pytest.fixture
def counted(manager: ProjectManager, model: CountingEmbedding) -> Project:
    """An empty project with that model, whose vectors are kept in the ledger like those of a provider."""
    return manager.create("counted", ProjectConfig.local(), embed_model=model)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    """The provider of OpenAI's models, whose batches are looked for without a pause."""
    monkeypatch.setattr("llama_index_contextual.contextualizer.sending.POLL_SECONDS", 0.0)
    with LoopbackProvider(embedding_encoding="cl100k_base") as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            monkeypatch.setenv(name, running.api_base)
        yield running
