"""Embedding models of every kind, whose real clients talk to a provider on the loopback interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from llama_index.core.embeddings import BaseEmbedding
from llama_index.embeddings.openai import OpenAIEmbedding
from openai import AsyncAzureOpenAI, AzureOpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.ingestion.report import IngestReport
from llama_index_contextual.models import load_embed_model, model_name
from llama_index_contextual.money.price import Price
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.integration.ingestion.support import passages
from tests.support.server import LoopbackProvider

PRICE = Price(input=0.02)
PER_TOKEN = 0.02 / 1e6
OPENAI = "openai:text-embedding-3-small"
CHUNKS = 24


class AzureEmbedding(OpenAIEmbedding):
    """A stand-in for LlamaIndex's class for Azure, which creates Azure's client, with its own retries."""

    address: str = ""

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class that it stands in for."""
        return "AzureOpenAIEmbedding"

    def _options(self) -> dict[str, Any]:
        return {
            "api_key": "any",
            "azure_endpoint": self.address,
            "azure_deployment": "ours",
            "api_version": "2024-10-21",
        }

    def _get_client(self) -> AzureOpenAI:
        if self._client is None:
            self._client = AzureOpenAI(**self._options())
        return self._client  # type: ignore[return-value]

    def _get_aclient(self) -> AsyncAzureOpenAI:
        if self._aclient is None:
            self._aclient = AsyncAzureOpenAI(**self._options())
        return self._aclient  # type: ignore[return-value]


def openai(provider: LoopbackProvider, **options: Any) -> OpenAIEmbedding:
    """Return a model of OpenAI as an object."""
    return OpenAIEmbedding(api_key="any", api_base=provider.api_base, **options)


MODELS: dict[str, Callable[[LoopbackProvider], BaseEmbedding]] = {
    "OpenAI": lambda _: load_embed_model(OPENAI),
    "OpenAI, floats": lambda p: openai(p, additional_kwargs={"encoding_format": "float"}, reuse_client=False),
    "OpenAI, own HTTP client": lambda p: openai(p, async_http_client=httpx.AsyncClient()),
    "OpenAI's interface": lambda _: load_embed_model("openai-like:nomic"),
    "Azure": lambda p: AzureEmbedding(api_key="any", address=p.url),
    "Ollama": lambda _: load_embed_model("ollama:nomic"),
    "Voyage": lambda _: load_embed_model("voyage:voyage-context-3"),
}
"""Functions that return a model, by the kind of the model."""


def embedded(manager: ProjectManager, model: BaseEmbedding, **options: Any) -> tuple[Project, IngestReport]:
    """Ingest `CHUNKS` passages, `n0` and so on, with a model that has a known price."""
    config = ProjectConfig(context="none", prices={model_name(model): PRICE})
    project = manager.create("p", config, embed_model=model)
    return project, project.ingest(passages(CHUNKS), **options)


def billed(provider: LoopbackProvider) -> int:
    """Return the tokens of all calls that the provider has worked on, as it counts them."""
    usages = [record.worked for record in provider.history if record.worked]
    return sum(usage.get("total_tokens", usage.get("prompt_tokens")) for usage in usages)
