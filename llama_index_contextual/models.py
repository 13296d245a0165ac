"""Names of models to LlamaIndex objects, by one table of providers.

`project.json` holds names such as "openai:gpt-4.1"; only the providers in `PROVIDERS` can be made from a name, so a
settings file never names a class to import. Whoever has another model passes the object itself.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual.config import LOCAL
from llama_index_contextual.errors import ModelError

HIDDEN_TOKENS: Mapping[str | None, int] = {
    "none": 0,
    "minimal": 1_000,
    "low": 4_000,
    "medium": 16_000,
    "high": 32_000,
    "xhigh": 64_000,
    "max": 64_000,
    None: 16_000,
}
"""Tokens of reasoning that an answer is given room for, by the effort that is asked for; None: the model's own."""


@dataclass(frozen=True)
class Reasoning:
    """How a model reasons before it answers.

    Attributes:
        effort: The least `reasoning_effort` that it takes, or None where it takes none.
        hidden_tokens: Tokens of reasoning that an answer is given room for; they are charged and not shown.
    """

    effort: str | None
    hidden_tokens: int


@dataclass(frozen=True, kw_only=True)
class Provider:
    """What is particular about one provider.

    Attributes:
        llm: module:class of its LLM, or None.
        embedding: module:class of its embedding model, or None.
        pip: What to install for it.
        key: Environment variable that holds its API key, or None.
        optional_key: Environment variable that may hold one; where it does not, the client, which insists, gets "-".
        address: Environment variables that may hold its address, first one wins; empty: the class's own default.
        address_option: What its classes call the address.
        llm_options: Keyword arguments for the LLM class.
        timeout_option: What its LLM class calls the seconds of a call.
        embedding_options: Keyword arguments for the embedding class.
        class_names: `class_name()` of its LLM and embedding, to name an object that was passed.
        cache: How it keeps the prefix that several calls share: by itself ("prefix"), up to a mark in the message
            ("point"), in the one slot that computed it ("slot"), or not at all (None).
        min_cached_tokens: Tokens of the shortest prefix that it keeps.
        min_cached_by_model: The same for some of its models, by a part of their names; the first that fits holds.
        takes_cache_key: Whether `prompt_cache_key` can be sent.
        takes_json_schema: Whether `response_format` can be sent.
        service_tiers: Values of `service_tier` that can be sent.
        has_batch_api: Whether it is spoken to by OpenAI's Batch API.
        late_import: What its client imports at its first call, or None.
        plain_models: Names, from their beginning, of models that do not reason before they answer: the tokens of an
            answer can be limited to those of the text that is wanted. None: not known of any.
        efforts: The least `reasoning_effort` of other models, by their names from the beginning; the first that fits
            holds. None: the model takes none.
    """

    llm: str | None = None
    embedding: str | None = None
    pip: str
    key: str | None = None
    optional_key: str | None = None
    address: tuple[str, ...] = ()
    address_option: str = "api_base"
    llm_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_option: str = "timeout"
    embedding_options: Mapping[str, Any] = field(default_factory=dict)
    class_names: frozenset[str] = frozenset()
    cache: Literal["prefix", "point", "slot"] | None = None
    min_cached_tokens: int = 1024
    min_cached_by_model: tuple[tuple[re.Pattern[str], int], ...] = ()
    takes_cache_key: bool = False
    takes_json_schema: bool = False
    service_tiers: frozenset[str] = frozenset()
    has_batch_api: bool = False
    late_import: str | None = None
    plain_models: re.Pattern[str] | None = None
    efforts: tuple[tuple[re.Pattern[str], str | None], ...] = ()

    def reasoning(self, model: str) -> Reasoning | None:
        """Return how a model reasons at the least effort, or None where answers are not limited.

        Args:
            model: Its name, without the provider.
        """
        name = model.removeprefix("ft:")
        if self.plain_models is None:
            return None
        if self.plain_models.match(name):
            return Reasoning(None, 0)
        effort = next((least for names, least in self.efforts if names.match(name)), None)
        return Reasoning(effort, HIDDEN_TOKENS[effort])


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        llm="llama_index.llms.openai:OpenAI",
        embedding="llama_index.embeddings.openai:OpenAIEmbedding",
        pip="llama-index-llms-openai llama-index-embeddings-openai",
        key="OPENAI_API_KEY",
        address=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        # calls.py retries; one client for several event loops fails (see `reuse_client`).
        llm_options={"max_retries": 0, "reuse_client": False, "temperature": 0.0, "timeout": 60.0},
        embedding_options={"max_retries": 0, "reuse_client": False, "embed_batch_size": 2048},
        class_names=frozenset({"openai_llm", "OpenAIEmbedding"}),
        cache="prefix",
        takes_cache_key=True,
        takes_json_schema=True,
        service_tiers=frozenset({"flex"}),
        has_batch_api=True,
        late_import="openai.resources",
        plain_models=re.compile(r"gpt-3\.5|gpt-4|chatgpt-4|gpt-5-chat"),
        # https://platform.openai.com/docs/guides/reasoning; what a model does not take, it refuses with an error.
        efforts=(
            (re.compile(r".*-(?:chat|pro|search)\b|o1-(?:mini|preview|pro)"), None),
            (re.compile(r"o\d|.*codex"), "low"),
            (re.compile(r"gpt-5(?:-mini|-nano)?(?:-\d{4}-|$|:)"), "minimal"),
            (re.compile(r"gpt-(?:5\.[1-9]|[6-9])"), "none"),
        ),
    ),
    "openai-like": Provider(
        llm="llama_index.llms.openai_like:OpenAILike",
        embedding="llama_index.embeddings.openai_like:OpenAILikeEmbedding",
        pip="llama-index-llms-openai-like llama-index-embeddings-openai-like",
        optional_key="OPENAI_API_KEY",
        address=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        llm_options={"max_retries": 0, "reuse_client": False, "is_chat_model": True, "temperature": 0.0},
        embedding_options={"max_retries": 0, "reuse_client": False},
        class_names=frozenset({"OpenAILike", "OpenAILikeEmbedding"}),
        cache="prefix",
        late_import="openai.resources",
    ),
    "anthropic": Provider(
        llm="llama_index.llms.anthropic:Anthropic",
        pip="llama-index-llms-anthropic",
        key="ANTHROPIC_API_KEY",
        llm_options={"max_retries": 0, "temperature": 0.0},
        class_names=frozenset({"Anthropic_LLM"}),
        cache="point",
        # https://platform.claude.com/docs/en/build-with-claude/prompt-caching; fewer tokens are not kept, in silence.
        min_cached_by_model=(
            (re.compile(r"opus-4-[56]|haiku-(?:4-5|5)"), 4096),
            (re.compile(r"opus-4-7|sonnet-4-6|haiku"), 2048),
        ),
        # Later ones reason before they answer unless they are told not to, and some cannot be told.
        plain_models=re.compile(r"claude-(?:[23]|instant|v1|(?:opus|sonnet|haiku)-4)"),
    ),
    "ollama": Provider(
        llm="llama_index.llms.ollama:Ollama",
        embedding="llama_index.embeddings.ollama:OllamaEmbedding",
        pip="llama-index-llms-ollama llama-index-embeddings-ollama",
        address=("OLLAMA_HOST",),
        address_option="base_url",
        llm_options={"request_timeout": 300.0},
        timeout_option="request_timeout",
        class_names=frozenset({"Ollama_llm", "OllamaEmbedding"}),
        cache="slot",
        min_cached_tokens=0,
    ),
}


def provider_of(name: str) -> Provider | None:
    """Return what is known about a model's provider with regard to it, by its name as `model_name` gives it."""
    provider, _, model = name.partition(":")
    known = PROVIDERS.get(provider)
    least = next((least for part, least in known.min_cached_by_model if part.search(model)), None) if known else None
    return known if known is None or least is None else replace(known, min_cached_tokens=least)


_WITHOUT_KEY = "work without a key: `ProjectConfig.local()` in Python, `--local` on the command line"


def load_llm(
    name: str, *, temperature: float | None = None, timeout: float | None = None, instead: str = _WITHOUT_KEY
) -> LLM:
    """Return the LLM of that name.

    Args:
        name: provider:model, such as "openai:gpt-4.1".
        temperature: Of its answers; None takes 0, at which contexts are written, or what the provider's class takes.
        timeout: Seconds that a call may take; None takes those of `llm_options`, or of the provider's class.
        instead: What whoever has no key can do, for the message.

    Raises:
        ModelError: The provider is unknown or has no LLMs, its package is not installed, or its key is not set.
    """
    provider, model = _split(name, setting="llm")
    traits = PROVIDERS[provider]
    if traits.llm is None:
        raise ModelError(f"Provider {provider!r} has no LLMs; choose another in the setting 'llm'.", setting="llm")
    _require_key(traits, name, setting="llm", instead=instead)
    options = {**traits.llm_options, **_address(traits), **_optional_key(traits)}
    if temperature is not None:
        options["temperature"] = temperature
    if timeout is not None:
        options[traits.timeout_option] = timeout
    return cast(LLM, _load_class(traits.llm, traits, name, setting="llm")(model=model, **options))


def load_embed_model(name: str) -> BaseEmbedding:
    """Return the embedding model of that name.

    Args:
        name: provider:model, such as "openai:text-embedding-3-small", or "local".

    Raises:
        ModelError: The provider is unknown or has no embeddings, its package is not installed, or its key is not set.
    """
    if name == LOCAL:
        from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding

        return WordLlamaEmbedding()
    provider, model = _split(name, setting="embed_model")
    traits = PROVIDERS[provider]
    if traits.embedding is None:
        raise ModelError(
            f"Provider {provider!r} has no embeddings; choose another in the setting 'embed_model'.",
            setting="embed_model",
        )
    _require_key(traits, name, setting="embed_model", instead=_WITHOUT_KEY)
    options = {**traits.embedding_options, **_address(traits), **_optional_key(traits)}
    # `model_name`, because OpenAI's class takes for `model` only what it knows itself.
    options["model_name"] = model
    embedding = _load_class(traits.embedding, traits, name, setting="embed_model")
    return cast(BaseEmbedding, embedding(**options))


def preload(model: BaseEmbedding | LLM) -> None:
    """Import what a model's client imports at its first call: half a second, for which no event loop should wait."""
    provider = provider_of(model_name(model))
    if provider is not None and provider.late_import is not None:
        importlib.import_module(provider.late_import)


def _split(name: str, *, setting: str) -> tuple[str, str]:
    provider, colon, model = name.partition(":")
    if not colon or not model or provider not in PROVIDERS:
        known = ", ".join(f"{p}:…" for p in PROVIDERS)
        local = f", {LOCAL}" if setting == "embed_model" else ""
        raise ModelError(
            f"Setting {setting!r} is {name!r}, which names no model: use one of {known}{local},"
            f" or pass the LlamaIndex object itself.",
            setting=setting,
        )
    return provider, model


def _require_key(traits: Provider, name: str, *, setting: str, instead: str) -> None:
    if traits.key and not os.environ.get(traits.key):
        raise ModelError(
            f"{name!r} needs {traits.key}, which is not set. Either set it, or {instead}.", setting=setting
        )


def _address(traits: Provider) -> dict[str, str]:
    found = next((os.environ[key] for key in traits.address if os.environ.get(key)), None)
    return {traits.address_option: found} if found else {}


def _optional_key(traits: Provider) -> dict[str, str]:
    wanted = traits.optional_key is not None and not os.environ.get(traits.optional_key)
    return {"api_key": "-"} if wanted else {}


def _load_class(target: str, traits: Provider, name: str, *, setting: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ModelError(
            f"{name!r} needs a package that is not installed: pip install {traits.pip}", setting=setting
        ) from error


# ---- identity --------------------------------------------------------------------------------------------------------

_UNNAMED = "unknown"  # what LlamaIndex's classes have where nobody named the model
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_VECTORS_BY_REQUEST = re.compile(r"voyage-context\b", re.IGNORECASE)


def model_name(model: BaseEmbedding | LLM, model_id: str | None = None) -> str:
    """Return the name of a model, such as "openai:gpt-4.1"; "unknown" behind the colon where it has none.

    An object of a provider in the table has the same name as the setting that would make it.

    Args:
        model: The object.
        model_id: What to call it instead of its own name.
    """
    kind = model.class_name()
    if kind == "WordLlamaEmbedding":
        return LOCAL
    provider = next((name for name, traits in PROVIDERS.items() if kind in traits.class_names), kind)
    return f"{provider}:{model_id or _own_name(model) or _UNNAMED}"


def _own_name(model: BaseEmbedding | LLM) -> str | None:
    for attribute in ("model_name", "model"):
        if is_name(named := f"{getattr(model, attribute, None) or ''}"):
            return named
    named = model.metadata.model_name if isinstance(model, LLM) else ""
    return named if is_name(named) else None


def is_name(text: str) -> bool:
    """Return whether a text names a model: it is neither empty, nor LlamaIndex's "unknown", nor an object's address."""
    return bool(text.strip()) and text != _UNNAMED and not _ADDRESS.search(text)


def is_named(name: str) -> bool:
    """Return whether a name of `model_name` tells its model from others."""
    return name == LOCAL or is_name(name.partition(":")[2])


def llm_identity(llm: LLM, model_id: str | None = None) -> str:
    """Return the name under which contexts of an LLM are kept in the ledger.

    Args:
        llm: The object.
        model_id: What to call it instead of its own name, which it may lack.

    Raises:
        ModelError: It cannot be told from another LLM.
    """
    name = model_name(llm, model_id)
    if model_id is None and not is_named(name):
        raise ModelError(
            f"{type(llm).__name__} does not say which model it is ({name!r}), so its contexts could be taken for those"
            f' of another: pass model_id="my-model@1" next to llm=, and change it when the model changes, or let the'
            f" object's `metadata` give a model_name.",
            setting="llm",
        )
    return name


_unnamed_models = itertools.count(1)


def answer_identity(llm: LLM) -> str:
    """Return the name under which answers of an LLM are kept in memory: each object without a name has its own."""
    name = model_name(llm)
    return name if is_named(name) else f"{name} {next(_unnamed_models)}"


def embedding_identity(model: BaseEmbedding) -> str:
    """Return the name under which vectors of an embedding model are kept in the ledger.

    Raises:
        ModelError: It cannot be told from another model, or its vectors depend on the other texts of a request.
    """
    name = model_name(model)
    if not is_named(name):
        kind = type(model).__name__
        raise ModelError(
            f"{kind} does not say which model it is ({name!r}), so its vectors could be taken for those of another:"
            f' name it, as in {kind}(model_name="my-embedding@1"), and change the name when the model changes.',
            setting="embed_model",
        )
    return require_independent_vectors(name)


def require_independent_vectors(name: str) -> str:
    """Return the name of an embedding model whose vectors depend on their own text alone.

    Raises:
        ModelError: They depend on what else is in the request.
    """
    if _VECTORS_BY_REQUEST.search(name):
        raise ModelError(
            f"{name!r} embeds each text in the light of the others in the same request, which are chunks of other"
            f" documents here, so its vectors cannot be kept: contextual embedding models are not supported yet; take"
            f" another, such as voyage-3-large.",
            setting="embed_model",
        )
    return name


def is_same_model(built: str | None, loaded: str) -> bool:
    """Return whether an index that was built with one model can be used with another of that name.

    Indexes of earlier releases may not say which model of a class built them.
    """
    kind, _, named = (built or "").partition(":")
    return built == loaded or (named == _UNNAMED and loaded.partition(":")[0] == kind)
