"""A small project and a provider of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_index.llms.openai import OpenAI

from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.documents import pdf_bytes, write_texts
from tests.support.server import LoopbackProvider


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the tiny corpus; tests must not change it."""
    folder: Path = write_texts(tmp_path_factory.mktemp("answering") / "reports")
    (folder / "tariff.pdf").write_bytes(pdf_bytes())
    project = ProjectManager(folder.parent / "knowledge").create("reports", ProjectConfig.local())
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
