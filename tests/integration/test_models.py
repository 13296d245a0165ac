"""Models by name: errors for missing keys and packages, options, and identities."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.llms import CustomLLM, LLMMetadata, MockLLM
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai.utils import ALL_AVAILABLE_MODELS, O1_MODELS
from llama_index.llms.openai_like import OpenAILike

from llama_index_contextual import models
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.contextualizer import LLMContextualizer
from llama_index_contextual.contextualizer.base import segments
from llama_index_contextual.contextualizer.prompts import chunks_by_key
from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding
from llama_index_contextual.errors import ConfigurationError, ModelError
from llama_index_contextual.index.ledger import vector_key
from llama_index_contextual.models import (
    Provider,
    embedding_identity,
    llm_identity,
    load_embed_model,
    load_llm,
    model_name,
)
from llama_index_contextual.money.price import Prices
from llama_index_contextual.project.manager import ProjectManager

NAMES = ("openai:gpt-4.1", "openai:text-embedding-3-small")


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key")


def load(setting: str, name: str) -> object:
    return load_llm(name) if setting == "llm" else load_embed_model(name)


# ---- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "name"), [("llm", NAMES[0]), ("embed_model", NAMES[1])])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_key_names_both_solutions(
    setting: str, name: str, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(ModelError) as raised:
        load(setting, name)
    assert str(raised.value) == (
        f"'{name}' needs OPENAI_API_KEY, which is not set. Either set it, or work without a key:"
        f" `ProjectConfig.local()`."
    )
    assert raised.value.setting == setting


@pytest.mark.parametrize(
    "name", ["", "gpt-4.1", "openai", "openai:", "nobody:gpt", ":gpt-4.1", "OpenAI:gpt-4.1", "os:system"]
)
def test_a_name_without_a_known_provider_is_refused(name: str) -> None:
    with pytest.raises(ModelError) as raised:
        load_llm(name)
    assert str(raised.value) == (
        f"Setting 'llm' is {name!r}, which is not the name of an LLM: use one of openai:…, openai-like:…, anthropic:…,"
        f" ollama:…, or pass a LlamaIndex object."
    )
    with pytest.raises(
        ModelError, match="ollama:…, voyage:…, huggingface:…, fastembed:…, local, or pass a LlamaIndex object"
    ) as raised:
        load_embed_model(name)
    assert raised.value.setting == "embed_model"


def test_a_provider_without_the_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="'anthropic:claude', which is not the name of an embedding model: use one of"):
        load_embed_model("anthropic:claude")
    monkeypatch.setattr(models, "PROVIDERS", {"vectors": Provider(pip="x")})
    with pytest.raises(ModelError, match="'vectors:any', which is not the name of an LLM"):
        load_llm("vectors:any")


@pytest.mark.parametrize(
    ("setting", "name", "module", "packages"),
    [
        ("llm", "ollama:llama", "llama_index.llms.ollama", "llama-index-llms-ollama$"),
        ("embed_model", "ollama:nomic", "llama_index.embeddings.ollama", "llama-index-embeddings-ollama$"),
        ("llm", "openai-like:x", "llama_index.llms.openai_like", "llama-index-llms-openai-like"),
        (
            *("embed_model", "openai-like:x"),
            *("llama_index.embeddings.openai_like", "llama-index-embeddings-openai-like$"),
        ),
        ("embed_model", "huggingface:x", "llama_index.embeddings.huggingface", '"llama-index-contextual.huggingface.'),
        ("embed_model", "fastembed:x", "fastembed", '"llama-index-contextual.fastembed.'),
    ],
)
def test_a_missing_package_is_named_with_its_pip_command(
    setting: str, name: str, module: str, packages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for own in ("huggingface", "fastembed", "openai_like"):
        monkeypatch.delitem(sys.modules, f"llama_index_contextual.embeddings.{own}", raising=False)
    with pytest.raises(
        ModelError, match=f"'{name}' needs a package that is not installed: pip install {packages}"
    ) as e:
        load(setting, name)
    assert e.value.setting == setting


# ---- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize(
    ("name", "address", "usual"),
    [
        ("openai:gpt-4.1", "https://models.example/v1", 60.0),
        ("openai-like:qwen2.5", "https://models.example/v1", 60.0),
        ("openai-like:qwen2.5", "http://localhost:1234/v1", 600.0),
        ("openai-like:qwen2.5", "http://192.168.1.20:8000/v1", 600.0),
        ("openai-like:qwen2.5", "http://100.101.102.103:8000/v1", 600.0),
        ("openai-like:qwen2.5", "http://[fd00::7]:8000/v1", 600.0),
        ("openai-like:qwen2.5", "http://vllm:8000/v1", 600.0),
        ("openai-like:qwen2.5", "http://host.docker.internal:8000/v1", 600.0),
        ("openai:gpt-4.1", "http://gpu.local/v1", 600.0),
        ("ollama:llama3.1", "https://ollama.example", 600.0),
    ],
)
def test_a_call_uses_the_given_timeout_and_a_local_server_has_more_time(
    name: str, address: str, usual: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, option = (
        ("OLLAMA_HOST", "request_timeout") if name.startswith("ollama") else ("OPENAI_BASE_URL", "timeout")
    )
    monkeypatch.setenv(variable, address)
    assert getattr(load_llm(name), option) == usual
    assert getattr(load_llm(name, timeout=7.0), option) == 7.0
    assert getattr(load_llm(name, timeout=7.0, least_timeout=9.0), option) == 9.0
    if not name.startswith("ollama"):
        assert load_embed_model("openai-like:nomic").timeout == usual  # type: ignore[attr-defined]


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
def test_a_new_embedding_model_is_accepted_although_llama_index_refuses_it() -> None:
    assert load_embed_model("openai:text-embedding-9").model_name == "text-embedding-9"
    with pytest.raises(ValueError, match="not a valid OpenAIEmbeddingModelType"):
        OpenAIEmbedding(model="text-embedding-9")


@pytest.mark.parametrize("made", [load_llm, load_embed_model])
def test_an_openai_like_server_needs_no_key_and_gets_one_that_is_set(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert made("openai-like:my-own-7b").api_key == "-"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert made("openai-like:my-own-7b").api_key != "-"


@pytest.mark.parametrize("made", [load_llm, load_embed_model])
def test_an_openai_like_server_without_an_address_is_not_openai(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key")
    message = "'openai-like:qwen' needs OPENAI_BASE_URL, which is not set: the address of its server, such as"
    with pytest.raises(ModelError, match=message):
        made("openai-like:qwen")
    missing = models.missing_for("openai-like:qwen", setting="llm" if made is load_llm else "embed_model")
    assert missing is not None
    assert missing.startswith(message)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:11434"),
        ("gpu:9000", "http://gpu:9000"),
        ("https://ollama.example", "https://ollama.example"),
        ("http://gpu:9000/", "http://gpu:9000/"),
    ],
)
def test_the_address_of_ollama_may_lack_its_scheme_and_port(
    host: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert load_llm("ollama:llama3.1").base_url == address  # type: ignore[attr-defined]
    assert load_embed_model("ollama:nomic").base_url == address  # type: ignore[attr-defined]


# ---- names of objects ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("key")
def test_an_object_has_the_name_of_its_setting() -> None:
    for name in (*NAMES, "local"):
        assert model_name(load_embed_model(name) if "gpt" not in name else load_llm(name)) == name
    assert model_name(OpenAI(model="gpt-4o")) == "openai:gpt-4o"
    assert model_name(OpenAIEmbedding()) == "openai:text-embedding-ada-002"


class Prefixed(OpenAIEmbedding):
    """A user's subclass."""


class Logged(OpenAI):
    """A user's subclass."""


class Renamed(OpenAI):
    """A user's subclass that claims to be its parent."""

    @classmethod
    def class_name(cls) -> str:
        return "openai_llm"


class RenamedAgain(Renamed):
    """A user's subclass that inherits this claim."""


class Words(WordLlamaEmbedding):
    """A user's subclass."""


def test_a_subclass_is_not_its_parent_unless_it_says_so() -> None:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    options: dict[str, Any] = {"api_key": "any", "api_base": "http://localhost:8000/v1"}
    assert model_name(OpenAILikeEmbedding(model_name="nomic", **options)) == "openai-like:nomic"
    assert model_name(OpenAILike(model="qwen", **options)) == "openai-like:qwen"
    assert model_name(Prefixed(model_name="nomic", **options)) == "Prefixed:nomic"
    assert model_name(Logged(model="gpt-4o", **options)) == "Logged:gpt-4o"
    assert model_name(Renamed(model="gpt-4o", **options)) == "openai:gpt-4o"
    assert model_name(RenamedAgain(model="gpt-4o", **options)) == "openai:gpt-4o"
    assert model_name(Words(model_name="mine@1")) == "Words:mine@1"


def test_a_subclass_has_no_prices_and_no_batches_of_its_parent() -> None:
    logged = LLMContextualizer(llm=Logged(model="gpt-4o", api_key="any"))
    assert Prices().price(logged.model) is None
    assert models.provider_of(logged.model) is None


# ---- identity --------------------------------------------------------------------------------------------------------

SENTENCE = "Revenue grew by three percent."


class Bare(CustomLLM):
    """A model as LlamaIndex's documentation shows it: no class_name, its name in the metadata alone, if anywhere."""

    name: str = "unknown"
    answer: str = "About the revenue."

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name=self.name)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        return MockLLM().complete(prompt).model_copy(update={"text": self.answer})

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_models_of_one_class_are_distinguished_by_their_metadata() -> None:
    assert model_name(Bare(name="one")) == llm_identity(Bare(name="one")) == "custom_llm:one"
    assert llm_identity(Bare(name="two")) == "custom_llm:two"


@pytest.mark.parametrize("llm", [Bare(), Bare(name=""), Bare(name=" "), Bare(name="<Model at 0x7f00>"), MockLLM()])
def test_an_llm_without_a_name_writes_contexts_with_a_warning(
    llm: CustomLLM, manager: ProjectManager, caplog: pytest.LogCaptureFixture
) -> None:
    (node,) = LLMContextualizer(llm=llm)([TextNode(text=SENTENCE)])
    assert node.metadata["context_source"] == "llm"
    (record,) = caplog.records
    assert 'Pass model_id="my-model@1", and change it' in record.getMessage()
    project = manager.create("p", ProjectConfig.local(context="llm"), llm=llm)
    assert project.ingest([TextNode(text=SENTENCE)]).contexts_paid == 1


def test_a_model_id_names_an_llm() -> None:
    assert LLMContextualizer(llm=Bare(), model_id="mine@2").model == "custom_llm:mine@2"
    assert LLMContextualizer(llm=OpenAI(model="gpt-4.1", api_key="k"), model_id="tuned").model == "openai:tuned"


@pytest.mark.parametrize(("llm", "model_id"), [(None, "mine@1"), (Bare(), "")])
def test_a_model_id_names_the_object_that_is_passed(
    llm: CustomLLM | None, model_id: str, manager: ProjectManager
) -> None:
    for make in (manager.create, manager.load):
        with pytest.raises(ConfigurationError, match=r"model_id='.*' names the object passed as llm=: pass both, or"):
            make("p", llm=llm, model_id=model_id)
        if make == manager.create:
            assert manager.list() == []
            manager.create("p")
    with pytest.raises(ConfigurationError, match="model_id names the object passed as llm="):
        LLMContextualizer(model_id="mine@1")


def test_contexts_of_one_model_are_not_used_for_another(manager: ProjectManager) -> None:
    nodes = [TextNode(id_="n", text=SENTENCE)]

    def context(model_id: str, answer: str) -> str:
        load = manager.load if manager.list() else manager.create
        options = {} if manager.list() else {"config": ProjectConfig.local(context="llm")}
        project = load("p", llm=Bare(answer=answer), model_id=model_id, **options)  # type: ignore[operator]
        project.ingest(nodes)
        project.update_config(chunk_size=project.config.chunk_size - 1)
        project.rebuild()
        return str(project.chunks(project.documents()[0].doc_id)[0].metadata["context"])

    assert context("mine@1", "Of the first.") == "Of the first."
    assert context("mine@2", "Of the second.") == "Of the second."
    assert context("mine@1", "Never asked.") == "Of the first."


def test_the_cache_of_a_pipeline_sees_another_model() -> None:
    cache, nodes = IngestionCache(), [TextNode(id_="n", text=SENTENCE)]

    def context(**names: str) -> str:
        name, model_id = names.get("name", "unknown"), names.get("model_id")
        llm = Bare(name=name, answer=f"of {name} {model_id or name}")
        steps = [LLMContextualizer(llm=llm, model_id=model_id)]
        (node,) = IngestionPipeline(transformations=steps, cache=cache).run(nodes=nodes)
        return str(node.metadata["context"])

    assert context(name="one") == "of one one"
    assert context(name="two") == "of two two"
    assert context(model_id="three") == "of unknown three"
    assert context(model_id="four") == "of unknown four"


def test_ledger_keys_of_named_models_are_unchanged() -> None:
    nodes = [TextNode(id_="n", text=SENTENCE)]
    (segment,) = segments(nodes, segment_size=8000)
    llms = [
        (OpenAI(model="gpt-4.1", api_key="k"), "e8bedc9cc128da71c75e8673ec800aef8f42e5f0d9c31506afe3e07c2c6061ad"),
        (OpenAILike(model="qwen2.5-7b-instruct"), "12ad62150d66a91a4cfa8dd1a4a0981c8fcc3338e523ae9a46205869c3acd9cc"),
        (Ollama(model="llama3.1"), "1c581bf0f4fc2ba24a84c2f5495d06c89cf85fc1c27a0596111ef1e9017187ac"),
    ]
    for llm, key in llms:
        writer = LLMContextualizer(llm=llm)
        assert list(chunks_by_key(segment, nodes, prompt=writer.template, model=writer.model)) == [key]
    vectors = {
        None: "59417daf36305df0964bae4707cb8795b47110b7507fec799edf8c958cfdd558",
        256: "ef4e0667d388f52d02d822ab5635c34ff45adc96c4e137afc77e3cdaaceb5cba",
    }
    for dimensions, key in vectors.items():
        model = OpenAIEmbedding(model="text-embedding-3-small", api_key="k", dimensions=dimensions)
        assert vector_key(SENTENCE, embedding_identity(model), dimensions) == key


def test_vectors_of_an_unnamed_embedding_model_are_not_stored(manager: ProjectManager) -> None:
    project = manager.create("p", ProjectConfig.local(), embed_model=MockEmbedding(embed_dim=3))
    message = (
        r'results could be confused with those of another: name it, as in MockEmbedding\(model_name="my-embedding@1"\)'
    )
    for attempt in (project.ingest, project.estimate):
        with pytest.raises(ModelError, match=message) as raised:
            attempt([TextNode(text=SENTENCE)])
        assert raised.value.setting == "embed_model"
    named = MockEmbedding(embed_dim=3, model_name="mine@1")
    assert manager.load("p", embed_model=named).ingest([TextNode(text=SENTENCE)]).chunks == 1


# ---- settings without effect -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"answer_temperature": 0.3}, "answer_temperature=0.3 has no effect: the temperature of 'openai:gpt-6-luna'"),
        ({"answer_temperature": 0.3, "answer_llm": "openai:gpt-4.1"}, None),
        ({"answer_temperature": 0.3, "answer_llm": "openai:o4-mini"}, "of 'openai:o4-mini' cannot be set"),
        ({"answer_temperature": 0.3, "answer_llm": "openai:ft:gpt-5-mini:us"}, "answer_temperature=0.3 has no effect"),
        (
            {"answer_temperature": 0.3, "answer_llm": "anthropic:claude-opus-4-7"},
            "answer_temperature=0.3 has no effect",
        ),
        ({"answer_temperature": 0.3, "answer_llm": "anthropic:claude-sonnet-4-5"}, None),
        ({"answer_temperature": 0.3, "answer_llm": "ollama:llama3.1"}, None),
        ({}, None),
        ({"llm": "ollama:llama3.1", "llm_concurrency": 16}, "llm_concurrency=16 has no effect"),
        ({"llm": "ollama:llama3.1"}, None),
        ({"llm": "openai-like:qwen", "llm_concurrency": 16}, None),
        ({"llm": "openai-like:qwen", "service_tier": "flex"}, "'openai-like:qwen' has no service tier 'flex'"),
        ({"service_tier": "flex"}, None),
        ({"llm": "openai-like:qwen", "service_tier": "flex", "context": "structural"}, None),
        ({"embed_prefixes": ("query: ", "passage: ")}, "embed_prefixes has no effect"),
        ({"embed_prefixes": ("query: ", "passage: "), "embed_model": "ollama:e5"}, None),
        ({"embed_prefixes": None}, None),
    ],
)
def test_a_setting_that_a_model_cannot_take_is_reported(settings: dict[str, Any], words: str | None) -> None:
    problems = models.settings_without_effect(ProjectConfig(**settings))
    assert len(problems) == (words is not None)
    assert words is None or words in problems[0]


def test_the_models_with_a_fixed_temperature_are_those_of_llama_index() -> None:
    provider = models.PROVIDERS["openai"]
    assert [name for name in O1_MODELS if not provider.has_fixed_temperature(name)] == []
    others = set(ALL_AVAILABLE_MODELS) - set(O1_MODELS)
    assert [name for name in sorted(others) if provider.has_fixed_temperature(name)] == []


@pytest.mark.parametrize(
    ("options", "is_tight"),
    [
        ({"model": "gpt-6-luna", "max_tokens": 200}, True),
        ({"model": "gpt-6-luna", "additional_kwargs": {"max_completion_tokens": 200}}, True),
        ({"model": "gpt-6-luna", "max_tokens": 200, "reasoning_effort": "none"}, False),
        ({"model": "gpt-6-luna", "max_tokens": 20_000}, False),
        ({"model": "gpt-6-luna"}, False),
        ({"model": "gpt-4.1", "max_tokens": 200}, False),
    ],
)
def test_a_limit_that_leaves_no_room_for_reasoning_is_reported(options: dict[str, Any], is_tight: bool) -> None:
    problem = models.limit_problem(OpenAI(api_key="any", **options))
    assert (problem is not None) == is_tight
    assert problem is None or "max_tokens=200 of 'openai:gpt-6-luna' also counts the tokens of its reasoning" in problem
