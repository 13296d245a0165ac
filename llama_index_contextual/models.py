"""Create LlamaIndex models from names and identify models by name, using a table of providers.

`project.json` contains names such as "openai:gpt-4.1". Only models of the providers in `PROVIDERS` can be loaded by
name, so that a settings file cannot import arbitrary classes. Other models are passed as objects.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.settings import Settings

from llama_index_contextual._utils.clients import LOCAL_TIMEOUT, address_of, is_local
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual.config import AUTO, LOCAL, Prefixes, ProjectConfig
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.embeddings.windows import known_model
from llama_index_contextual.errors import ModelError, Remedy
from llama_index_contextual.money.price import is_in_process

logger = get_logger(__name__)

CALL_TIMEOUT = 60.0
"""Default timeout of a call in seconds, unless the server is local."""

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
"""Number of reasoning tokens reserved for an answer, by requested effort; None is the model's default effort."""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """Properties of a provider.

    Attributes:
        llm: LLM class in the form module:class, or None.
        embedding: Embedding class in the form module:class, or None.
        pip: Package to install; None for the package of the class.
        module: Module that must be installed for an embedding class of this package; None if the class is part of
            its package.
        key: Environment variable with the API key, or None.
        optional_key: Environment variable that may contain a key; if it is not set, "-" is passed, because the client
            requires a value.
        address: Environment variables that may contain the address, in order of precedence; if none is set, the default
            of the class applies.
        takes_prefixes: Whether the embedding class has the fields `query_instruction` and `text_instruction`, and its
            server adds no prefixes itself.
        needs_address: Whether the address must be set, because the default of the class is the server of another
            provider.
        port: Port of an address that has neither a scheme nor a port.
        address_option: Name of the argument for the address; the same in both classes.
        llm_options: Keyword arguments for the LLM class.
        timeout_option: Name of the timeout argument of the LLM class and, if it has one, of the embedding class.
        embedding_options: Keyword arguments for the embedding class.
        limit_option: Name of the parameter that limits the tokens of an answer.
        class_names: Values that `class_name()` returns for the LLM and embedding classes, to identify objects.
        cache: Method of caching a prefix that several calls share: automatically ("prefix"), up to a mark in the
            message ("point"), in the slot that computed the prefix ("slot"), or not at all (None).
        min_cached_tokens: Minimum number of tokens in a prefix that is cached.
        min_cached_by_model: Values of `min_cached_tokens` for specific models, as pairs of a name pattern and a number;
            the first match applies.
        is_openai: Whether the provider is OpenAI itself, which accepts `prompt_cache_key`, `response_format` and the
            service tier "flex", and has a Batch API.
        is_self_hosted: Whether the models usually run on a server of the user, which may be slow.
        fixed_temperature: Pattern that matches the beginning of the names of models whose temperature cannot be set.
            None if there are none.
        plain_models: Pattern that matches the beginning of the names of models that do not reason before they answer.
            For these models, the number of tokens in an answer can be limited to the length of the text. None if
            unknown.
        efforts: Lowest `reasoning_effort` that other models accept, as pairs of a pattern and a value. The pattern
            matches the beginning of a model name; the first match applies. The value is None if the models do not
            accept `reasoning_effort`.
    """

    llm: str | None = None
    embedding: str | None = None
    pip: str | None = None
    module: str | None = None
    key: str | None = None
    optional_key: str | None = None
    address: tuple[str, ...] = ()
    takes_prefixes: bool = False
    needs_address: bool = False
    port: int | None = None
    address_option: str = "api_base"
    llm_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_option: str = "timeout"
    embedding_options: Mapping[str, Any] = field(default_factory=dict)
    limit_option: str = "max_tokens"
    class_names: frozenset[str] = frozenset()
    cache: Literal["prefix", "point", "slot"] | None = None
    min_cached_tokens: int = 1024
    min_cached_by_model: tuple[tuple[re.Pattern[str], int], ...] = ()
    is_openai: bool = False
    is_self_hosted: bool = False
    fixed_temperature: re.Pattern[str] | None = None
    plain_models: re.Pattern[str] | None = None
    efforts: tuple[tuple[re.Pattern[str], str | None], ...] = ()

    def is_plain(self, model: str) -> bool:
        """Return whether a model answers without reasoning first; `model` is its name without the provider."""
        return self.plain_models is not None and self.plain_models.match(model.removeprefix("ft:")) is not None

    def has_fixed_temperature(self, model: str) -> bool:
        """Return whether the temperature of a model cannot be set; `model` is its name without the provider."""
        name = model.removeprefix("ft:")
        return self.fixed_temperature is not None and self.fixed_temperature.match(name) is not None

    def lowest_effort(self, model: str) -> str | None:
        """Return the lowest `reasoning_effort` that a model accepts, or None if it does not accept this parameter."""
        name = model.removeprefix("ft:")
        return next((effort for names, effort in self.efforts if names.match(name)), None)


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        llm="llama_index.llms.openai:OpenAI",
        embedding="llama_index.embeddings.openai:OpenAIEmbedding",
        key="OPENAI_API_KEY",
        address=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        # `_utils/calls.py` handles retries; a client shared by several event loops fails (see `reuse_client`).
        llm_options={"max_retries": 0, "reuse_client": False, "temperature": 0.0},
        embedding_options={"max_retries": 0, "reuse_client": False, "embed_batch_size": 2048},
        class_names=frozenset({"openai_llm", "OpenAIEmbedding"}),
        cache="prefix",
        is_openai=True,
        fixed_temperature=re.compile(r"o\d|gpt-(?:[5-9]|1\d)|codex"),  # LlamaIndex's class always sends 1
        plain_models=re.compile(r"gpt-3\.5|gpt-4|chatgpt-4|gpt-5-chat"),
        # https://platform.openai.com/docs/guides/reasoning; a model rejects an unsupported effort with an error.
        efforts=(
            (re.compile(r"^.*-(?:chat|pro|search)\b|^o1-(?:mini|preview|pro)"), None),
            (re.compile(r"^o\d|^.*codex"), "low"),
            (re.compile(r"gpt-5(?:-mini|-nano)?(?:-\d{4}-|$|:)"), "minimal"),
            (re.compile(r"gpt-(?:5\.[1-9]|[6-9])"), "none"),
        ),
    ),
    "openai-like": Provider(
        llm="llama_index.llms.openai_like:OpenAILike",
        embedding="llama_index_contextual.embeddings.openai_like:PrefixedEmbedding",
        module="llama_index.embeddings.openai_like",
        takes_prefixes=True,
        optional_key="OPENAI_API_KEY",
        address=("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        needs_address=True,
        llm_options={"max_retries": 0, "reuse_client": False, "is_chat_model": True, "temperature": 0.0},
        embedding_options={"max_retries": 0, "reuse_client": False},
        class_names=frozenset({"OpenAILike", "OpenAILikeEmbedding"}),
        cache="prefix",
    ),
    "anthropic": Provider(
        llm="llama_index.llms.anthropic:Anthropic",
        key="ANTHROPIC_API_KEY",
        llm_options={"max_retries": 0, "temperature": 0.0},
        class_names=frozenset({"Anthropic_LLM"}),
        cache="point",
        # https://platform.claude.com/docs/en/build-with-claude/prompt-caching (shorter prompts are not cached)
        min_cached_by_model=(
            (re.compile(r"opus-4-[56]|haiku-(?:4-5|5)"), 4096),
            (re.compile(r"opus-4-7|sonnet-4-6|haiku"), 2048),
        ),
        fixed_temperature=re.compile(r"claude-(?:opus-4-[78]|(?:opus|sonnet|haiku|fable)-[5-9])"),
        # By default, later models reason before they answer, and some of them always do.
        plain_models=re.compile(r"claude-(?:[23]|instant|v1|(?:opus|sonnet|haiku)-4)"),
    ),
    "ollama": Provider(
        llm="llama_index.llms.ollama:Ollama",
        embedding="llama_index.embeddings.ollama:OllamaEmbedding",
        takes_prefixes=True,
        address=("OLLAMA_HOST",),
        port=11434,
        address_option="base_url",
        is_self_hosted=True,
        timeout_option="request_timeout",
        limit_option="num_predict",
        class_names=frozenset({"Ollama_llm", "OllamaEmbedding"}),
        cache="slot",
        min_cached_tokens=0,
    ),
    "voyage": Provider(
        embedding="llama_index_contextual.embeddings.voyage:VoyageContextualEmbedding",
        key="VOYAGE_API_KEY",
        address=("VOYAGE_API_BASE",),
        class_names=frozenset({"VoyageContextualEmbedding"}),
    ),
    "huggingface": Provider(
        embedding="llama_index_contextual.embeddings.huggingface:TransformerEmbedding",
        pip='"llama-index-contextual[huggingface]"',
        module="llama_index.embeddings.huggingface",
        class_names=frozenset({"TransformerEmbedding"}),
    ),
    "fastembed": Provider(
        embedding="llama_index_contextual.embeddings.fastembed:OnnxEmbedding",
        pip='"llama-index-contextual[fastembed]"',
        module="fastembed",
        class_names=frozenset({"OnnxEmbedding"}),
    ),
}


def provider_of(name: str) -> Provider | None:
    """Return the provider of a model, with the properties that apply to this model, or None if it is unknown.

    `name` has the form returned by `model_name`.
    """
    provider, _, model = name.partition(":")
    known = PROVIDERS.get(provider)
    least = next((least for part, least in known.min_cached_by_model if part.search(model)), None) if known else None
    return known if known is None or least is None else replace(known, min_cached_tokens=least)


ModelSetting = Literal["llm", "answer_llm", "embed_model"]
"""Name of a setting that contains a model name."""

_WITHOUT_KEY = Remedy(
    "work without a key: `ProjectConfig.local()`",
    "work without a key in a project created with `llama-index-contextual create NAME --local{root}`",
)


def load_llm(
    name: str,
    *,
    temperature: float | None = None,
    timeout: float | None = None,
    least_timeout: float = 0.0,
    advice: Remedy = _WITHOUT_KEY,
) -> LLM:
    """Return the LLM with a given name.

    Args:
        name: Name in the form provider:model, such as "openai:gpt-4.1".
        temperature: Temperature; None uses the value in `llm_options` or the default of the provider's class.
        timeout: Timeout of a call in seconds; None uses `CALL_TIMEOUT` or, for a local server, `LOCAL_TIMEOUT`.
        least_timeout: Minimum timeout in seconds, for callers that have longer timeouts for parts of a reply.
        advice: Advice for users without a key, which is added to the error message.

    Raises:
        ModelError: The provider is unknown or has no LLMs, its package is not installed, or its key is not set.
    """
    traits, model, made_by, options = _load_class(name, setting="llm", advice=advice)
    options = {**traits.llm_options, **options}
    if temperature is not None:
        options["temperature"] = temperature
    if timeout is None:
        timeout = LOCAL_TIMEOUT if _is_slow(traits, options) else CALL_TIMEOUT
    options[traits.timeout_option] = max(timeout, least_timeout)
    return cast(LLM, made_by(model=model, **options))


def load_embed_model(name: str, *, dimensions: int | None = None, prefixes: Prefixes = AUTO) -> BaseEmbedding:
    """Return the embedding model with a given name.

    Args:
        name: Name in the form provider:model, such as "openai:text-embedding-3-small" or
            "huggingface:BAAI/bge-small-en-v1.5", or "local".
        dimensions: Length of the vectors, for models that support several lengths; None uses the model's default.
        prefixes: Prefixes of questions and of passages for a model on a server, as in the setting `embed_prefixes`.

    Raises:
        ModelError: The provider is unknown or has no embeddings, its package is not installed, its key is not set, or
            a model that runs in this process cannot be loaded.
    """
    if name == LOCAL:
        from llama_index_contextual.embeddings.wordllama import WordLlamaEmbedding

        return WordLlamaEmbedding()
    traits, model, made_by, options = _load_class(name, setting="embed_model", advice=_WITHOUT_KEY)
    # Use `model_name`, because OpenAI's class accepts only known names for `model`.
    options = {**traits.embedding_options, **options, "model_name": model}
    fields = getattr(made_by, "model_fields", {})
    if traits.takes_prefixes:
        options["query_instruction"], options["text_instruction"] = prefixes_of(name, prefixes)
    if dimensions is not None and "dimensions" in fields:
        options["dimensions"] = dimensions
    if traits.timeout_option in fields and _is_slow(traits, options):
        options[traits.timeout_option] = LOCAL_TIMEOUT
    try:
        return cast(BaseEmbedding, made_by(**options))
    except Exception as error:  # unknown name, no network, damaged file: each library raises its own errors
        if not is_in_process(name) or isinstance(error, ModelError):
            raise
        reason = f"{error}".strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(
            f"{name!r} cannot be loaded: {reason}. Check the name; a model that is not on this machine yet is"
            f" downloaded, which requires a network.",
            setting="embed_model",
        ) from error


def prefixes_of(name: str, prefixes: Prefixes) -> tuple[str, str]:
    """Return the prefixes that are added to questions and passages for a model on a server, given the setting.

    Example:
        >>> prefixes_of("openai-like:intfloat/multilingual-e5-small", "auto"), prefixes_of("openai-like:bge-m3", "auto")
        (('query: ', 'passage: '), ('', ''))
    """
    known, provider = known_model(name), provider_of(name)
    if prefixes is None or provider is None or not provider.takes_prefixes:
        return "", ""
    if prefixes != AUTO:
        return prefixes
    return ("", "") if known is None else (known.query, known.passage)


def own_prefixes(model: BaseEmbedding) -> tuple[str, str]:
    """Return the prefixes of an object for a model on a server; those of other objects are part of the model."""
    provider = provider_of(model_name(model))
    if provider is None or not provider.takes_prefixes:
        return "", ""
    return getattr(model, "query_instruction", None) or "", getattr(model, "text_instruction", None) or ""


def _is_slow(traits: Provider, options: Mapping[str, Any]) -> bool:
    return traits.is_self_hosted or is_local(options.get(traits.address_option))


def _load_class(name: str, *, setting: ModelSetting, advice: Remedy) -> tuple[Provider, str, Any, dict[str, Any]]:
    """Import the class of a model, after checking that its package and key are available.

    Return the model's provider, its name without the provider, the class, and the options from the environment.
    """
    traits, model, target = _resolve(name, setting=setting)
    if traits.key and not os.environ.get(traits.key):
        assigned = Settings._embed_model if setting == "embed_model" else settings_llm()
        option = f", or pass the model of LlamaIndex's Settings: {setting}=Settings.{setting}" if assigned else ""
        raise ModelError(
            f"{name!r} needs {traits.key}, which is not set.",
            setting=setting,
            remedy=Remedy(
                f"Either set it, or {advice.python}{option}",
                f"Either set it in the environment or in a file `.env`, or {advice.command_line}",
            ),
        )
    module, _, attribute = target.partition(":")
    try:
        made_by = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ModelError(_missing_package(name, traits, module), setting=setting) from error
    address = address_in_environment(traits)
    if address is None and traits.needs_address:
        raise ModelError(_missing_address(name, traits), setting=setting)
    options = {traits.address_option: address} if address else {}
    if traits.optional_key is not None and not os.environ.get(traits.optional_key):
        options["api_key"] = "-"
    return traits, model, made_by, options


def address_in_environment(traits: Provider) -> str | None:
    """Return the address in the environment variables of a provider, with a scheme, or None if none is set."""
    address = next((os.environ[key] for key in traits.address if os.environ.get(key)), None)
    if address is None or "://" in address:
        return address
    has_port = traits.port is None or re.search(r":\d+(?:/|$)", address)
    return f"http://{address}" if has_port else f"http://{address.rstrip('/')}:{traits.port}"


def _missing_address(name: str, traits: Provider) -> str:
    return f"{name!r} needs {traits.address[0]}, which is not set: the address of its server, such as http://localhost:8000/v1."


def _missing_package(name: str, traits: Provider, module: str) -> str:
    if module.startswith(f"{__package__}."):
        module = traits.module or module
    package = traits.pip or re.sub(r"[._]", "-", module)
    return f"{name!r} needs a package that is not installed: pip install {package}"


def _resolve(name: str, *, setting: ModelSetting, option: str | None = None) -> tuple[Provider, str, str]:
    """Return a model's provider, the model's name without the provider, and the path of the model's class.

    The setting determines whether the path of the LLM class or of the embedding class is returned.
    """
    provider, _, model = name.partition(":")
    is_embedding = setting == "embed_model"
    targets = {each: traits.embedding if is_embedding else traits.llm for each, traits in PROVIDERS.items()}
    target = targets.get(provider)
    if not model or target is None:
        known = [*(f"{each}:…" for each, target in targets.items() if target), *([LOCAL] if is_embedding else [])]
        kind = "an embedding model" if is_embedding else "an LLM"
        raise ModelError(
            f"{option or f'Setting {setting!r}'} is {name!r}, which is not the name of {kind}: use one of"
            f" {', '.join(known)}",
            setting=setting,
            remedy=Remedy("or pass a LlamaIndex object", ""),
        )
    return PROVIDERS[provider], model, target


def model_folder(name: str, *, setting: str) -> Path | None:
    """Return the folder from which a model is loaded, or None if `name` is a name on a hub.

    Args:
        name: Name or path of the model; a path may start with `~` for the home folder.
        setting: The setting that contains the name, for the error message.

    Raises:
        ModelError: `name` is a path, and there is no such folder.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "~")) or folder.is_absolute():
        raise ModelError(
            f"{setting} {name!r} is a path, but there is no such folder: give the folder that contains the files of the"
            f" model, such as config.json.",
            setting=setting,
        )
    return None


def is_creatable(name: str) -> bool:
    """Return whether `load_embed_model` can create a model by name.

    `name` has the form returned by `model_name`.
    """
    traits = PROVIDERS.get(name.partition(":")[0])
    return name == LOCAL or (traits is not None and traits.embedding is not None and is_named(name))


def settings_llm() -> LLM | None:
    """Return the LLM that the user has assigned to LlamaIndex's `Settings.llm`, or None.

    If nothing was assigned, reading `Settings.llm` would create OpenAI's default model, which requires a key. If
    LlamaIndex has already created this model with the key from the environment, the model is not returned.
    """
    model: Any = Settings._llm
    is_default = (
        model is not None
        and model.class_name() == "openai_llm"
        and model.api_key == os.environ.get("OPENAI_API_KEY")
        and model.model == "gpt-3.5-turbo"
    )
    return None if is_default else model


def settings_embed_model() -> BaseEmbedding | None:
    """Return the embedding model that the user has assigned to LlamaIndex's `Settings.embed_model`, or None."""
    model: Any = Settings._embed_model
    is_default = (
        model is not None
        and model_name(model) == "openai:text-embedding-ada-002"
        and model.api_key == os.environ.get("OPENAI_API_KEY")
    )
    return None if is_default else model


def environment_of(name: str) -> tuple[str | None, ...]:
    """Return the values of the environment variables that determine how a model is loaded by name."""
    traits = provider_of(name) or Provider()
    variables = (traits.key, traits.optional_key, *traits.address)
    return tuple(os.environ.get(variable) for variable in variables if variable is not None)


def settings_without_effect(config: ProjectConfig) -> list[str]:
    """Return a sentence for each setting that a model named in the settings does not support.

    Settings are left out if they have no value, because their default depends on the model.
    """
    problems = []
    answering = config.answer_llm or config.llm or ""
    traits = provider_of(answering)
    if config.answer_temperature is not None and traits and traits.has_fixed_temperature(answering.partition(":")[2]):
        problems.append(
            f"answer_temperature={config.answer_temperature:g} has no effect: the temperature of {answering!r} cannot"
            f" be set. Set it to null, or choose another answer_llm."
        )
    writer = config.llm if config.context == "llm" else None
    traits = provider_of(writer or "")
    usual = ProjectConfig.model_fields["llm_concurrency"].default
    if traits and traits.cache == "slot" and config.llm_concurrency not in (1, usual):
        problems.append(
            f"llm_concurrency={config.llm_concurrency} has no effect: contexts are requested from {writer!r} one at a"
            f" time, so that it reuses the segment that it has read. Set it to 1."
        )
    provider = PROVIDERS.get(config.embed_model.partition(":")[0], Provider())
    if config.embed_prefixes not in (AUTO, None) and not provider.takes_prefixes:
        problems.append(
            f"embed_prefixes has no effect: {config.embed_model!r} does not run on a server that takes prefixes. Set it"
            f' to "auto".'
        )
    if traits and config.service_tier is not None and not traits.is_openai:
        problems.append(f"{writer!r} has no service tier {config.service_tier!r}: set service_tier to null.")
    return problems


def limit_problem(llm: LLM) -> str | None:
    """Return a sentence if the limit for the answers of a reasoning model leaves no room for its reasoning."""
    name, extra = model_name(llm), getattr(llm, "additional_kwargs", None) or {}
    traits = provider_of(name)
    limit = extra.get("max_completion_tokens") or extra.get("max_tokens") or getattr(llm, "max_tokens", None)
    if traits is None or not traits.is_openai or traits.is_plain(name.partition(":")[2]) or not isinstance(limit, int):
        return None
    effort = getattr(llm, "reasoning_effort", None) or extra.get("reasoning_effort")
    if limit >= HIDDEN_TOKENS.get(effort, HIDDEN_TOKENS[None]):
        return None
    return (
        f"max_tokens={limit} of {name!r} also counts the tokens of its reasoning, so replies may be empty or cut off:"
        f" omit it, or pass a lower reasoning_effort."
    )


def missing_for(name: str, *, setting: ModelSetting, option: str | None = None) -> str | None:
    """Return a message if a package or key that a model needs is missing, otherwise None.

    The model's package is not imported, and nothing is sent.

    Args:
        name: Name of the model, as in `load_llm` and `load_embed_model`.
        setting: The setting that contains this name.
        option: The command-line option that was given instead of the setting, for the error message.

    Raises:
        ModelError: The provider is unknown, or has no models of this kind.
    """
    if name == LOCAL and setting == "embed_model":
        return None
    traits, _, target = _resolve(name, setting=setting, option=option)
    module = target.partition(":")[0]
    try:
        is_own = module.startswith(f"{__package__}.")
        is_installed = importlib.util.find_spec((is_own and traits.module) or module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        is_installed = False
    if not is_installed:
        return _missing_package(name, traits, module)
    if traits.key and not os.environ.get(traits.key):
        return f"{name!r} needs {traits.key}, which is not set."
    if traits.needs_address and address_in_environment(traits) is None:
        return _missing_address(name, traits)
    return None


# ---- identity --------------------------------------------------------------------------------------------------------

_WORDLLAMA = "WordLlamaEmbedding"
_UNNAMED = "unknown"  # LlamaIndex's value for a model without a name
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def model_name(model: BaseEmbedding | LLM, model_id: str | None = None) -> str:
    """Return the name of a model, such as "openai:gpt-4.1"; if the model has no name, "unknown" follows the colon.

    If the provider is in the table, this name can be used in the settings to load the same model. A subclass of a
    provider's class may call another server, so it is named after itself.

    Args:
        model: The object.
        model_id: Name to use instead of the model's own name.
    """
    kind = model.class_name()
    if _inherits_class_name(type(model), _provider_named(kind)):
        kind = type(model).__name__
    provider = _provider_named(kind) or kind
    return LOCAL if provider == LOCAL else f"{provider}:{model_id or _own_name(model) or _UNNAMED}"


def _provider_named(kind: str) -> str | None:
    """Return the provider whose models have a class name, or None."""
    if kind == _WORDLLAMA:
        return LOCAL
    return next((name for name, traits in PROVIDERS.items() if kind in traits.class_names), None)


def _inherits_class_name(cls: type, provider: str | None) -> bool:
    """Return whether a class has the `class_name` of a provider only because it is derived from the provider's class.

    Other classes that return this name, such as recordings of a model, stand for the model.
    """
    definer = next(base for base in cls.__mro__ if "class_name" in vars(base))
    traits = PROVIDERS.get(provider or "", Provider())
    of_provider = {(target or "").partition(":")[2] for target in (traits.llm, traits.embedding)} | {_WORDLLAMA}
    return definer is not cls and definer.__name__ in of_provider


def _own_name(model: BaseEmbedding | LLM) -> str | None:
    for attribute in ("model_name", "model"):
        if is_name(named := f"{getattr(model, attribute, None) or ''}"):
            return named
    named = model.metadata.model_name if isinstance(model, LLM) else ""
    return named if is_name(named) else None


def is_name(text: str) -> bool:
    """Return whether a string is a model name.

    A model name is not empty, is not LlamaIndex's "unknown", and does not contain a memory address.
    """
    return bool(text.strip()) and text != _UNNAMED and not _ADDRESS.search(text)


def is_named(name: str) -> bool:
    """Return whether a name returned by `model_name` distinguishes the model from other models."""
    return name == LOCAL or is_name(name.partition(":")[2])


def llm_identity(llm: LLM, model_id: str | None = None) -> str:
    """Return the name under which contexts from an LLM are stored in the ledger.

    A warning is logged if the LLM has no name that distinguishes it from other LLMs.

    Args:
        llm: The object.
        model_id: Name to use instead of the LLM's own name, which may be missing.
    """
    name = model_name(llm, model_id)
    if model_id is None and not is_named(name):
        logger.warning(
            "%s has no model name: its contexts are stored under %r, like those of other models without one. Pass"
            ' model_id="my-model@1", and change it when the model changes.',
            type(llm).__name__,
            name,
        )
    return name


def embedding_identity(model: BaseEmbedding) -> str:
    """Return the name under which vectors from an embedding model are stored in the ledger.

    Raises:
        ModelError: The model has no name that distinguishes it from other models.
    """
    name = model_name(model)
    if is_named(name):
        return name
    raise ModelError(
        f"{type(model).__name__} has no model name ({name!r}), so its results could be confused with those of another:"
        f' name it, as in {type(model).__name__}(model_name="my-embedding@1"), and change the name when the model'
        " changes.",
        setting="embed_model",
    )


def is_self_hosted(model: LLM | BaseEmbedding) -> bool:
    """Return whether a model seems to run on a server of the user, according to its provider or address."""
    provider = provider_of(model_name(model))
    return (provider is not None and provider.is_self_hosted) or is_local(address_of(model))


def speaks_openai(llm: LLM) -> bool:
    """Return whether an LLM is an object of LlamaIndex's OpenAI class, or of a class derived from it."""
    module = sys.modules.get("llama_index.llms.openai")  # imported if there is such an object
    return module is not None and isinstance(llm, module.OpenAI)


@dataclass(frozen=True, kw_only=True)
class ModelObject:
    """Stored description of an embedding model that was passed as an object, without API keys.

    Attributes:
        setting: Value of the `embed_model` setting that the object replaced.
        name: Name of the model, as returned by `model_name`.
        kind: Class of the model.
        dimensions: Length of the vectors, if set on the object.
        url: Address of the model's server without credentials, if it has a server.
        prefixes: Its prefixes of questions and of passages, if it is on a server.
    """

    setting: str
    name: str
    kind: str
    dimensions: int | None = None
    url: str | None = None
    prefixes: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, model: BaseEmbedding, *, setting: str) -> ModelObject:
        """Describe a model object.

        Args:
            model: The object.
            setting: Value of the `embed_model` setting that the object replaces.
        """
        dimensions, kind = getattr(model, "dimensions", None), type(model)
        return cls(
            setting=setting,
            name=embedding_identity(model),
            kind=f"{kind.__module__}.{kind.__qualname__}",
            dimensions=dimensions if isinstance(dimensions, int) else None,
            url=address_of(model),
            prefixes=own_prefixes(model),
        )

    def create(self) -> BaseEmbedding | None:
        """Recreate the model by name.

        Return None if the model cannot be created by name, or if the stored address differs from the address in the
        environment.

        Raises:
            ModelError: The model cannot be loaded, for example because a key or a package is missing.
        """
        if not is_creatable(self.name):
            return None
        model = load_embed_model(self.name, dimensions=self.dimensions, prefixes=self.prefixes)
        # A key is sent only to the address in the environment, never to an address stored in a project.
        return model if (address_of(model) or "").rstrip("/") == (self.url or "").rstrip("/") else None

    def __str__(self) -> str:
        size = "" if self.dimensions is None else f", {self.dimensions} dimensions"
        return f"{self.kind.rpartition('.')[2]}{size}{'' if self.url is None else f' at {self.url}'}"


def contextual_model(name: str) -> ContextualEmbedding | None:
    """Return the contextual embedding model with a given name, or None if the name belongs to another kind of model.

    No API key is needed to create the model.
    """
    provider, _, model = name.partition(":")
    if provider != "voyage" or not model:
        return None
    from llama_index_contextual.embeddings.voyage import VoyageContextualEmbedding

    return VoyageContextualEmbedding(model_name=model)
