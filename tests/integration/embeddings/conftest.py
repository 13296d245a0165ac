"""A provider that every kind of embedding model finds by the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import LoopbackProvider


@pytest.fixture
def every_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider(embedding_dimensions=16, embedding_encoding="cl100k_base") as running:
        for name in ("OPENAI", "VOYAGE"):
            monkeypatch.setenv(f"{name}_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        monkeypatch.setenv("VOYAGE_API_BASE", running.api_base)
        monkeypatch.setenv("OLLAMA_HOST", running.url)
        yield running
