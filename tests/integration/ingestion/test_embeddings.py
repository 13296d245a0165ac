"""Embeddings are stored as soon as they are paid for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llama_index.core.schema import TextNode
from pydantic import PrivateAttr

from llama_index_contextual.config import ProjectConfig, TokenPrice
from llama_index_contextual.errors import ModelError
from llama_index_contextual.project.manager import ProjectManager
from tests.support.models import CountingEmbedding

NODES = [TextNode(id_=f"n{at}", text=f"Passage {at} of the handbook of the yard.") for at in range(20)]
NAME = "CountingEmbedding:counting"


class FailsOnce(CountingEmbedding):
    """Fails for good at one of its requests."""

    _left: int = PrivateAttr(default=2)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        self._left -= 1
        if self._left == -1:
            raise ValueError("the third request")
        return await super()._aget_text_embeddings(texts)


def test_embeddings_received_before_a_failure_are_not_paid_for_again(tmp_path: Path) -> None:
    model = FailsOnce(embed_batch_size=4)
    config = ProjectConfig(context="none", prices={NAME: TokenPrice(input=1.0)})
    project = ProjectManager(tmp_path).create("a", config, embed_model=model)
    with pytest.raises(ModelError, match="the third request"):
        project.ingest(NODES, max_cost=1.0)
    assert len(model.texts) == 8
    ledger = project.info().ledger
    assert ledger is not None
    assert ledger.embeddings == 8
    report = project.ingest(NODES, max_cost=1.0)
    assert report.chunks == 20
    assert sorted(model.texts) == sorted(node.text for node in NODES), "a text was sent twice"


def test_equal_texts_are_sent_once(tmp_path: Path) -> None:
    model = CountingEmbedding()
    twice: list[Any] = [TextNode(id_=name, text="The same words.") for name in "ab"]
    ProjectManager(tmp_path).create("a", ProjectConfig(context="none"), embed_model=model).ingest(twice)
    assert model.texts == ["The same words."]
