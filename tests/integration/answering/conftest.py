"""A small project, a provider of models, and a model that stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ChatResponseAsyncGen
from llama_index.llms.openai import OpenAI
from pydantic import PrivateAttr

from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import pdf_bytes, write_texts
from tests.support.models import ScriptedLLM
from tests.support.server import LoopbackProvider

QUESTION = "What does error TS-999 mean?"
LOW = "Low confidence: even the best passage has little in common with the question, in words and in meaning."


class StallingLLM(ScriptedLLM):
    """A model that sends some words, sets an event, and then sends nothing."""

    words: tuple[str, ...] = ("The ", "pump")
    _stalled: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    @property
    def stalled(self) -> asyncio.Event:
        """Set when the words have been sent."""
        return self._stalled

    async def astream_chat(self, messages: Any, **kwargs: Any) -> ChatResponseAsyncGen:
        """Return a stream that never ends."""

        async def pieces() -> ChatResponseAsyncGen:
            for word in self.words:
                yield ChatResponse(message=ChatMessage(role="assistant", content=word), delta=word)
            self._stalled.set()
            await asyncio.Event().wait()

        return pieces()


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the tiny corpus and a price for the scripted model; tests must not change it."""
    folder: Path = write_texts(tmp_path_factory.mktemp("answering") / "reports")
    (folder / "tariff.pdf").write_bytes(pdf_bytes())
    prices = {"ScriptedLLM:scripted": Price(input=1.0, output=10.0)}
    project = ProjectManager(folder.parent / "knowledge").create("reports", ProjectConfig.local(prices=prices))
    project.ingest([folder])
    return project


@pytest.fixture
def cache(tmp_path: Path) -> AnswerCache:
    """A cache of answers of its own."""
    return AnswerCache(tmp_path / "answers.sqlite")


@pytest.fixture
def provider() -> Iterator[LoopbackProvider]:
    """The provider on the loopback interface."""
    with LoopbackProvider() as provider:
        yield provider


@pytest.fixture
def openai(provider: LoopbackProvider) -> OpenAI:
    """The real OpenAI client, connected to the provider."""
    return OpenAI(model="gpt-4o-mini", api_base=provider.api_base, api_key="any", max_retries=0, reuse_client=False)
