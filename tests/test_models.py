"""Names to models and back: what is missing is said, and what is found is set up for our own retries."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI

from llama_index_contextual import models
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.errors import ModelError
from llama_index_contextual.models import Provider, load_embed_model, load_llm, model_name
from tests.support.models import CountingEmbedding, ScriptedLLM

NAMES = ("openai:gpt-4.1", "openai:text-embedding-3-small")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key")


def load(setting: str, name: str) -> object:
    return load_llm(name) if setting == "llm" else load_embed_model(name)


# ---- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "name"), [("llm", NAMES[0]), ("embed_model", NAMES[1])])
@pytest.mark.parametrize("value", [None, ""])
def test_no_key_says_both_ways_out(setting: str, name: str, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(ModelError) as raised:
        load(setting, name)
    assert str(raised.value) == (
        f"'{name}' needs OPENAI_API_KEY, which is not set. Either set it, or work without a key:"
        f" `ProjectConfig.local()` in Python, `--local` on the command line."
    )
    assert raised.value.setting == setting


@pytest.mark.parametrize(
    "name", ["", "gpt-4.1", "openai", "openai:", "nobody:gpt", ":gpt-4.1", "OpenAI:gpt-4.1", "os:system"]
)
def test_a_name_without_a_known_provider_is_refused(name: str) -> None:
    with pytest.raises(ModelError) as raised:
        load_llm(name)
    assert str(raised.value) == (
        f"Setting 'llm' is {name!r}, which names no model: use one of openai:…, openai-like:…, anthropic:…, ollama:…,"
        f" or pass the LlamaIndex object itself."
    )
    with pytest.raises(ModelError, match="ollama:…, local, or pass the LlamaIndex object itself") as raised:
        load_embed_model(name)
    assert raised.value.setting == "embed_model"


def test_the_local_embedding_is_no_llm() -> None:
    with pytest.raises(ModelError, match="Setting 'llm' is 'local', which names no model"):
        load_llm("local")


def test_a_provider_without_the_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelError, match="Provider 'anthropic' has no embeddings; choose another in the setting 'embed_mo"
    ):
        load_embed_model("anthropic:claude")
    monkeypatch.setattr(models, "PROVIDERS", {"vectors": Provider(pip="x")})
    with pytest.raises(ModelError, match="Provider 'vectors' has no LLMs; choose another in the setting 'llm'"):
        load_llm("vectors:any")


@pytest.mark.parametrize(
    ("setting", "name", "module", "packages"),
    [
        ("llm", "ollama:llama", "llama_index.llms.ollama", "llama-index-llms-ollama llama-index-embeddings-ollama"),
        ("embed_model", "ollama:nomic", "llama_index.embeddings.ollama", "llama-index-llms-ollama llama-index-emb"),
        ("llm", "openai-like:x", "llama_index.llms.openai_like", "llama-index-llms-openai-like"),
    ],
)
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    setting: str, name: str, module: str, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ModelError, match=f"'{name}' needs a package that is not installed: pip install {packages}"
    ) as e:
        load(setting, name)
    assert e.value.setting == setting


# ---- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_openai_models_do_not_retry_on_their_own() -> None:
    llm, embedding = load_llm(NAMES[0]), load_embed_model(NAMES[1])
    assert isinstance(llm, OpenAI)
    assert isinstance(embedding, OpenAIEmbedding)
    assert (llm.model, llm.max_retries, llm.temperature) == ("gpt-4.1", 0, 0.0)
    assert (embedding.model_name, embedding.max_retries) == ("text-embedding-3-small", 0)
    assert embedding.embed_batch_size == 2048


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("name", "option", "usual"),
    [
        ("openai:gpt-4.1", "timeout", 60.0),
        ("openai-like:qwen2.5", "timeout", 60.0),
        ("ollama:llama3.1", "request_timeout", 300.0),
    ],
)
def test_a_call_takes_as_long_as_it_is_allowed_to(name: str, option: str, usual: float) -> None:
    assert getattr(load_llm(name), option) == usual
    assert getattr(load_llm(name, timeout=7.0), option) == 7.0


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("base_url", "api_base", "wanted"),
    [
        ("http://one/v1", None, "http://one/v1"),
        (None, "http://two/v1", "http://two/v1"),
        ("http://one/v1", "http://two/v1", "http://one/v1"),
        ("", "http://two/v1", "http://two/v1"),
        (None, None, "https://api.openai.com/v1"),
    ],
)
def test_both_variables_for_the_address_are_read(
    base_url: str | None, api_base: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("OPENAI_BASE_URL", base_url), ("OPENAI_API_BASE", api_base)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert load_llm(NAMES[0]).api_base == wanted  # type: ignore[attr-defined]
    assert load_embed_model(NAMES[1]).api_base == wanted  # type: ignore[attr-defined]


@pytest.mark.usefixtures("key")
def test_stock_reads_only_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one/v1")
    assert OpenAI(model="gpt-4.1").api_base == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_API_BASE", "http://two/v1")
    assert OpenAI(model="gpt-4.1").api_base == "http://two/v1"


@pytest.mark.usefixtures("key")
def test_a_new_embedding_model_is_not_refused_where_stock_refuses_it() -> None:
    assert load_embed_model("openai:text-embedding-9").model_name == "text-embedding-9"
    with pytest.raises(ValueError, match="not a valid OpenAIEmbeddingModelType"):
        OpenAIEmbedding(model="text-embedding-9")


@pytest.mark.parametrize("made", [load_llm, load_embed_model])
def test_a_server_of_ones_own_needs_no_key_and_gets_one_that_is_set(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, name in (("llms", "OpenAILike"), ("embeddings", "OpenAILikeEmbedding")):
        module = ModuleType(f"llama_index.{part}.openai_like")
        setattr(module, name, dict)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert made("openai-like:my-own-7b")["api_key"] == "-"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "api_key" not in made("openai-like:my-own-7b")


def test_the_local_embedding_needs_nothing() -> None:
    assert isinstance(load_embed_model("local"), WordLlamaEmbedding)


# ---- names of objects ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_an_object_has_the_name_of_the_setting_that_would_make_it() -> None:
    for name in (*NAMES, "local"):
        assert model_name(load_embed_model(name) if "gpt" not in name else load_llm(name)) == name
    assert model_name(OpenAI(model="gpt-4o")) == "openai:gpt-4o"
    assert model_name(OpenAIEmbedding()) == "openai:text-embedding-ada-002"


def test_other_objects_are_named_by_class_and_model() -> None:
    assert model_name(CountingEmbedding()) == "CountingEmbedding:counting"
    assert model_name(ScriptedLLM(model_name="s")) == "ScriptedLLM:s"
    assert model_name(MockLLM()) == "MockLLM:unknown"
    assert model_name(MockEmbedding(embed_dim=3)) == "MockEmbedding:unknown"


def test_only_the_table_says_which_classes_are_made() -> None:
    targets = [target for p in models.PROVIDERS.values() for target in (p.llm, p.embedding) if target]
    assert all(target.startswith(("llama_index.llms.", "llama_index.embeddings.")) for target in targets)
