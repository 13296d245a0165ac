"""Ways of naming the models of a project, and the use of such a project in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llama_index.core import Settings
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.project.manager import ProjectManager
from tests.support.cli import run
from tests.support.models import CountingEmbedding, ScriptedLLM

QUESTION = "What does error TS-999 mean?"
ANSWER = "The pump runs dry [Source 1]."
CONTEXT = "This passage is from the manual of the pump and describes the error codes of the pump."

_CONNECTED: dict[str, Any] = {"api_key": "sk-any-key-0000", "max_retries": 0}


def reply(request: Any) -> str:
    """Return an answer, or a context, as a reply function of the provider."""
    return ANSWER if "Sources:" in request.text else CONTEXT


class OwnLLM(ScriptedLLM):
    """A user's own model, without a server."""

    def _answer(self, prompt: str) -> str:
        return ANSWER if "Sources:" in prompt else CONTEXT


class Prefixed(OpenAIEmbedding):
    """A user's subclass of a provider's class."""

    def _get_query_embedding(self, query: str) -> list[float]:
        return super()._get_query_embedding(f"query: {query}")


class Logged(OpenAI):
    """A user's subclass of a provider's class."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of naming an embedding model and an LLM.

    Attributes:
        embed_model: Expected name of the embedding model.
        llm: Expected name of the LLM.
        settings: Settings of the project.
        environment: Environment variables; `{url}` and `{host}` stand for the address of the server.
        objects: Function that returns the models to pass, given the address of the server.
        created_with: Models to pass when the project is created, if they differ from `objects`.
        loaded_with: Models to pass when it is loaded, if they differ from `objects`.
        file: Name of the file in the working directory that contains the settings or the variables.
        module: Module that must be installed.
        package: What to install for it.
    """

    embed_model: str
    llm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    objects: Callable[[str], Mapping[str, Any]] = lambda _url: {}
    created_with: Callable[[str], Mapping[str, Any]] | None = None
    loaded_with: Callable[[str], Mapping[str, Any]] | None = None
    file: str | None = None
    module: str | None = None
    package: str | None = None

    @property
    def missing(self) -> str | None:
        """What must be installed before this way can be tried, or None."""
        try:
            return None if self.module is None or find_spec(self.module) is not None else f"needs {self.package}"
        except ModuleNotFoundError:
            return f"needs {self.package}"

    def variables(self, url: str) -> dict[str, str]:
        """Return the environment variables for a server."""
        host = url.removeprefix("http://")
        return {name: value.format(url=url, host=host) for name, value in self.environment.items()}


# ---- objects ---------------------------------------------------------------------------------------------------------


def _openai(url: str, *, llm: type[OpenAI] = OpenAI, embedding: type[OpenAIEmbedding] = OpenAIEmbedding) -> Any:
    options: Any = {**_CONNECTED, "api_base": f"{url}/v1"}
    return {
        "llm": llm(model="gpt-4o-mini", **options),
        "embed_model": embedding(model_name="text-embedding-3-large", **options),
    }


def _embedding(url: str, **options: Any) -> Any:
    name = "text-embedding-3-small"
    return {"embed_model": OpenAIEmbedding(model=name, api_base=f"{url}/v1", **_CONNECTED, **options)}


def _openai_like(url: str) -> Any:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.llms.openai_like import OpenAILike

    options: Any = {**_CONNECTED, "api_base": f"{url}/v1"}
    llm = OpenAILike(model="qwen", is_chat_model=True, **options)
    return {"llm": llm, "embed_model": OpenAILikeEmbedding(model_name="nomic", **options)}


def _ollama(url: str) -> Any:
    from llama_index.embeddings.ollama import OllamaEmbedding
    from llama_index.llms.ollama import Ollama

    llm = Ollama(model="llama3.1", base_url=url)
    return {"llm": llm, "embed_model": OllamaEmbedding(model_name="nomic", base_url=url)}


def _azure(url: str) -> Any:
    from llama_index.embeddings.azure_openai import AzureOpenAIEmbedding
    from llama_index.llms.azure_openai import AzureOpenAI

    options: Any = {**_CONNECTED, "azure_endpoint": url, "api_version": "2024-10-21"}
    llm = AzureOpenAI(model="gpt-4o-mini", engine="answers", **options)
    return {
        "llm": llm,
        "embed_model": AzureOpenAIEmbedding(model="text-embedding-3-small", deployment_name="vectors", **options),
    }


def _own(_url: str) -> Any:
    return {"llm": OwnLLM(), "embed_model": CountingEmbedding()}


def _assigned(url: str) -> Any:
    """Assign models to LlamaIndex's Settings, and pass them from there."""
    models = _openai(url)
    Settings.llm, Settings.embed_model = models["llm"], models["embed_model"]
    return {"llm": Settings.llm, "embed_model": Settings.embed_model}


# ---- the ways --------------------------------------------------------------------------------------------------------

_KEY = {"OPENAI_API_KEY": "sk-any-key-0000"}
_OPENAI = {**_KEY, "OPENAI_BASE_URL": "{url}/v1"}
_LIKE = {"OPENAI_BASE_URL": "{url}/v1"}
_BY_LIKE = {"embed_model": "openai-like:nomic", "llm": "openai-like:qwen"}
_BY_OLLAMA = {"embed_model": "ollama:nomic-embed-text", "llm": "ollama:llama3.1", "segment_size": 4000}
_TRANSFORMER = {"llm": "openai-like:qwen", "context": "structural"}
_VARIABLES = {f"LLAMA_INDEX_CONTEXTUAL_{name.upper()}": str(value) for name, value in _BY_LIKE.items()}
_SMALL, _LARGE = "openai:text-embedding-3-small", "openai:text-embedding-3-large"

WAYS: Mapping[str, Way] = {
    "defaults": Way(embed_model=_SMALL, llm="openai:gpt-6-luna", environment=_OPENAI),
    "openai": Way(
        embed_model=_LARGE,
        llm="openai:gpt-4.1",
        settings={"embed_model": _LARGE, "llm": "openai:gpt-4.1"},
        environment={**_KEY, "OPENAI_API_BASE": "{url}/v1"},
    ),
    "openai-like": Way(embed_model="openai-like:nomic", llm="openai-like:qwen", settings=_BY_LIKE, environment=_LIKE),
    "openai-like with a key": Way(
        embed_model="openai-like:nomic",
        llm="openai-like:qwen",
        settings=_BY_LIKE,
        environment={**_KEY, "OPENAI_API_BASE": "{url}/v1"},
    ),
    "local": Way(
        embed_model="local",
        llm="openai-like:qwen",
        settings={"embed_model": "local", "context": "structural", "answer_llm": "openai-like:qwen"},
        environment=_LIKE,
    ),
    "ollama": Way(
        embed_model=_BY_OLLAMA["embed_model"],  # type: ignore[arg-type]
        llm="ollama:llama3.1",
        settings=_BY_OLLAMA,
        environment={"OLLAMA_HOST": "{url}"},
    ),
    "ollama at a host without a scheme": Way(
        embed_model=_BY_OLLAMA["embed_model"],  # type: ignore[arg-type]
        llm="ollama:llama3.1",
        settings=_BY_OLLAMA,
        environment={"OLLAMA_HOST": "{host}"},
    ),
    "voyage": Way(
        embed_model="voyage:voyage-context-3",
        llm="openai-like:qwen",
        settings={"embed_model": "voyage:voyage-context-3", "llm": "openai-like:qwen", "context": "none"},
        environment={**_LIKE, "VOYAGE_API_KEY": "pa-any-key-0000", "VOYAGE_API_BASE": "{url}/v1"},
    ),
    "fastembed": Way(
        embed_model="fastembed:{folder}",
        llm="openai-like:qwen",
        settings={**_TRANSFORMER, "embed_model": "fastembed:{folder}"},
        environment=_LIKE,
        module="fastembed",
        package='the extra fastembed: pip install -e ".[fastembed]"',
    ),
    "huggingface": Way(
        embed_model="huggingface:{folder}",
        llm="openai-like:qwen",
        settings={**_TRANSFORMER, "embed_model": "huggingface:{folder}"},
        environment=_LIKE,
        module="llama_index.embeddings.huggingface",
        package='the extra huggingface: pip install -e ".[huggingface]"',
    ),
    "anthropic": Way(
        embed_model="local",
        llm="anthropic:claude-sonnet-4-5",
        settings={"embed_model": "local", "llm": "anthropic:claude-sonnet-4-5"},
        environment={"ANTHROPIC_API_KEY": "sk-ant-any-key", "ANTHROPIC_BASE_URL": "{url}"},
        module="llama_index.llms.anthropic",
        package="llama-index-llms-anthropic",
    ),
    "environment variables": Way(
        embed_model="openai-like:nomic", llm="openai-like:qwen", environment={**_LIKE, **_VARIABLES}
    ),
    "a file of variables": Way(
        embed_model="openai-like:nomic", llm="openai-like:qwen", environment={**_LIKE, **_VARIABLES}, file=".env"
    ),
    "a file of settings": Way(
        embed_model="openai-like:nomic",
        llm="openai-like:qwen",
        settings=_BY_LIKE,
        environment=_LIKE,
        file="settings.json",
    ),
    "OpenAI objects": Way(embed_model=_LARGE, llm="openai:gpt-4o-mini", objects=_openai),
    "OpenAILike objects": Way(embed_model="openai-like:nomic", llm="openai-like:qwen", objects=_openai_like),
    "Ollama objects": Way(embed_model="ollama:nomic", llm="ollama:llama3.1", objects=_ollama),
    "AzureOpenAI objects": Way(
        embed_model="AzureOpenAIEmbedding:text-embedding-3-small",
        llm="azure_openai_llm:gpt-4o-mini",
        objects=_azure,
        module="llama_index.llms.azure_openai",
        package="llama-index-llms-azure-openai and llama-index-embeddings-azure-openai",
    ),
    "own objects": Way(embed_model="CountingEmbedding:counting", llm="ScriptedLLM:scripted", objects=_own),
    "objects of subclasses": Way(
        embed_model="Prefixed:text-embedding-3-large",
        llm="Logged:gpt-4o-mini",
        objects=partial(_openai, llm=Logged, embedding=Prefixed),
    ),
    "LlamaIndex's Settings": Way(embed_model=_LARGE, llm="openai:gpt-4o-mini", objects=_assigned),
    "an object, then its name": Way(
        embed_model=_LARGE,
        llm="openai:gpt-6-luna",
        environment=_OPENAI,
        created_with=lambda url: {"embed_model": _openai(url)["embed_model"]},
    ),
    "an object with the name of the setting, then the setting": Way(
        embed_model=_SMALL,
        llm="openai:gpt-6-luna",
        environment=_OPENAI,
        created_with=partial(_embedding, dimensions=64),
    ),
    "a setting, then an object with its name": Way(
        embed_model=_SMALL, llm="openai:gpt-6-luna", environment=_OPENAI, loaded_with=_embedding
    ),
    "OpenAILike objects, then their names": Way(
        embed_model="openai-like:nomic",
        llm="openai-like:qwen",
        settings={"llm": "openai-like:qwen"},
        environment=_LIKE,
        created_with=lambda url: {"embed_model": _openai_like(url)["embed_model"]},
    ),
}


# ---- a project in a process of its own -------------------------------------------------------------------------------


def used_in_a_new_process(way: str, root: Path, url: str) -> Any:
    """Use a project in a new process, with this environment and working directory, and return the results."""
    file = root.parent / "used.json"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once for all processes
    process = context.Process(target=use, args=(way, root, url, file, Path.cwd(), dict(os.environ)))
    process.start()
    process.join()
    assert process.exitcode == 0
    return json.loads(file.read_text())


def use(way: str, root: Path, url: str, file: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Load the project, use it in Python and on the command line, and write the results to a file."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    objects = dict((WAYS[way].loaded_with or WAYS[way].objects)(url))
    ProjectConfig.from_env()  # also reads the file `.env`, as the command line does
    project = ProjectManager(root).load("p", **objects)
    hits = project.retrieve(QUESTION, mode="semantic").results
    answer: Any = project.as_query_engine(min_confidence=0.0).query(QUESTION)
    results: dict[str, Any] = {
        "files": [hit.source.file_name for hit in hits],
        "answer": str(answer),
        "cited": [source.file_name for _, source in answer.cited_sources],
        "models": answer.usage.models,
        "estimated": answer.usage.is_estimated,
        "doctor": run("doctor", "p", "--json", "--root", root).json["checks"],
    }
    if not objects:  # the command line creates models by name
        search, ask = run("search", "p", QUESTION, "--json", "--root", root), run("ask", "p", QUESTION, "--root", root)
        results |= {"search": search.json, "ask": ask.out}
    file.write_text(json.dumps(results))
