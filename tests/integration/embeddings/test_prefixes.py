"""Prefixes of embedding models on a server, which embed a text as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
from llama_index.core.schema import Document
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.openai_like import PrefixedEmbedding
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.models import load_embed_model
from llama_index_contextual.project.manager import ProjectManager
from llama_index_contextual.project.project import Project
from tests.support.server import LoopbackProvider

E5 = "openai-like:intfloat/multilingual-e5-small"
CONFIG = ProjectConfig.local(context="none", indexes="semantic", embed_model=E5)
NOTE = Document(id_="note", text="The pump stops at 40 degrees.")
QUESTION = "When does it stop?"


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackProvider]:
    with LoopbackProvider() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.api_base)
        yield running


def sent(provider: LoopbackProvider) -> list[str]:
    """Return the texts that the server embedded, in order."""
    texts = []
    for call in provider.calls():
        if call.path.endswith("/embeddings"):
            texts += call.body["input"] if isinstance(call.body["input"], list) else [call.body["input"]]
    return texts


@pytest.mark.parametrize(
    ("settings", "question", "passage"),
    [
        ({}, "query: ", "passage: "),
        ({"embed_model": "openai-like:bge-m3"}, "", ""),
        ({"embed_model": "openai-like:nomic-embed-text"}, "search_query: ", "search_document: "),
        ({"embed_prefixes": None}, "", ""),
        ({"embed_prefixes": ("Q: ", ""), "embed_model": "openai-like:my-own"}, "Q: ", ""),
    ],
)
def test_questions_and_passages_are_sent_with_the_prefixes_of_the_model_or_of_the_setting(
    settings: Mapping[str, Any], question: str, passage: str, manager: ProjectManager, provider: LoopbackProvider
) -> None:
    project = manager.create("p", CONFIG.changed(**settings))
    project.ingest([NOTE])
    project.retrieve(QUESTION)
    assert sent(provider) == [passage + NOTE.text, question + QUESTION]


def test_all_ways_to_embed_add_the_prefixes(provider: LoopbackProvider) -> None:
    model = load_embed_model(E5)
    model.get_text_embedding("a")
    model.get_text_embedding_batch(["b", "c"])
    model.get_query_embedding("d")
    asyncio.run(_embed(model))
    texts = ["a", "b", "c", "d", "e", "f", "g"]
    prefixes = {"d": "query: ", "g": "query: "}
    assert sent(provider) == [prefixes.get(text, "passage: ") + text for text in texts]


async def _embed(model: Any) -> None:
    await model.aget_text_embedding("e")
    await model.aget_text_embedding_batch(["f"])
    await model.aget_query_embedding("g")


def test_ollama_has_the_same_prefixes(provider: LoopbackProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", provider.url)
    model: Any = load_embed_model("ollama:nomic-embed-text")
    assert (model.query_instruction, model.text_instruction) == ("search_query: ", "search_document: ")
    model = load_embed_model("ollama:nomic-embed-text", prefixes=None)
    assert (model.query_instruction, model.text_instruction) == ("", "")


def _changed(project: Project, prefixes: object) -> None:
    assert project.update_config(embed_prefixes=prefixes) == ["embed_prefixes"]
    project.rebuild()


def test_vectors_with_another_prefix_are_not_reused_and_come_back_with_it(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    project = manager.create("p", CONFIG)
    project.ingest([NOTE])
    assert project.estimate([NOTE]).embedding_tokens == 0
    _changed(project, None)
    assert sent(provider) == [f"passage: {NOTE.text}", NOTE.text]
    _changed(project, "auto")
    assert len(sent(provider)) == 2
    with closing(Ledger(project.directory / LEDGER_FILE, read_only=True)) as ledger:
        assert {model for (model,) in ledger.query("SELECT model FROM embeddings")} == {E5, f"{E5} after 'passage: '"}


def test_a_version_is_searched_with_the_prefixes_that_it_was_built_with(
    manager: ProjectManager, provider: LoopbackProvider
) -> None:
    project = manager.create("p", CONFIG)
    project.ingest([NOTE])
    project.update_config(embed_prefixes=["Q: ", "P: "])
    manager.load("p").retrieve(QUESTION)
    assert sent(provider)[-1] == f"query: {QUESTION}"


def test_an_object_keeps_its_own_prefixes(manager: ProjectManager, provider: LoopbackProvider) -> None:
    options: Any = {"model_name": E5.partition(":")[2], "api_base": provider.api_base, "api_key": "-"}
    for name, model, prefix in (
        ("plain", OpenAILikeEmbedding(**options), ""),
        ("own", PrefixedEmbedding(**options, query_instruction="Q: ", text_instruction="P: "), "Q: "),
    ):
        manager.create(name, CONFIG, embed_model=model).ingest([NOTE])
        manager.load(name).retrieve(QUESTION)
        assert sent(provider)[-1] == prefix + QUESTION


@pytest.mark.parametrize("value", ["query: ", ["query: "], 5])
def test_invalid_prefixes_are_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="embed_prefixes"):
        ProjectConfig(embed_prefixes=value)  # type: ignore[arg-type]
