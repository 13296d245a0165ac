"""A provider that knows the environment's key, and an empty ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_index_contextual.index.ledger import Ledger
from tests.support.server import LoopbackProvider


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    """A server on the loopback interface, which models named in settings call."""
    with LoopbackProvider(context_tokens=20) as running:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """An empty ledger."""
    return Ledger(tmp_path / "ledger.sqlite")
