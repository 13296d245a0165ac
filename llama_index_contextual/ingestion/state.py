"""State of a project: its directory, settings, models and live version."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from copy import copy
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual.config import DEFAULT_LLM, Prefixes, ProjectConfig
from llama_index_contextual.embeddings.contextual import aembed
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    InputError,
    ModelError,
    NoVersionError,
    Remedy,
    SettingWarning,
)
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.manifest import Manifest
from llama_index_contextual.index.project_file import embed_object, record_embed_object, require_existing
from llama_index_contextual.index.sources import read_downloads
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.ingestion.pipeline import Pipeline, make_pipeline
from llama_index_contextual.models import (
    ModelObject,
    embedding_identity,
    environment_of,
    is_creatable,
    limit_problem,
    load_embed_model,
    load_llm,
    missing_for,
    model_name,
    own_prefixes,
    prefixes_of,
    settings_embed_model,
    settings_llm,
    settings_without_effect,
)
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.remote import RemoteFiles
from llama_index_contextual.search.live import LiveIndexes, LiveVersions

_PROBED = 100
"""Number of chunks considered when recognising the model that built an index; the shortest of them is embedded."""

ANSWER_TEMPERATURE = 0.1
"""Default temperature of an answering LLM that is created from its name."""

_SAME = 0.999
"""Minimum cosine similarity of two vectors from the same model for the same text; stored vectors are rounded."""


class ModelObjects(TypedDict, total=False):
    """Models passed as objects.

    Attributes:
        llm: Writes contexts and answers, instead of the model that the settings name.
        embed_model: Embeds chunks and queries, instead of the model that the settings name; identified by its
            `model_name`.
        model_id: Name of the model of `llm`, such as "my-model@2", for an object that does not provide one. Contexts
            are stored under that name, so change it when the model changes.
    """

    llm: LLM | None
    embed_model: BaseEmbedding | None
    model_id: str | None


class ProjectState:
    """The directory, settings and models of a project, and its live version.

    Args:
        directory: The project's directory.
        config: The project's settings.
        **models: Models passed as objects; any other model is loaded according to the settings when it is needed.

    Attributes:
        live: The indexes of the live version.
        is_restricted: Whether only some of the documents are visible.

    Raises:
        ConfigurationError: `model_id` is given without `llm`.
    """

    def __init__(self, directory: Path, config: ProjectConfig, **models: Unpack[ModelObjects]) -> None:
        require_llm(models)
        self.directory = directory
        self.name = directory.name
        self.config = config
        self.llm, self.model_id = models.get("llm"), models.get("model_id")
        self.passed_embed_model = models.get("embed_model")
        self._loaded: tuple[object, LLM] | None = None
        self._warned: set[str] = set()
        self.live = LiveIndexes(LiveVersions(directory, self.name, self.embed_model_of, self.answering_llm))
        self.is_restricted = False

    def restricted(self, filters: MetadataFilters) -> ProjectState:
        """Return the same state, in which only the documents that pass the filters are visible.

        Args:
            filters: Filters returned by `restricting_filters`.
        """
        state = copy(self)
        state.live, state.is_restricted = self.live.restricted(filters), True
        return state

    def whole(self) -> ProjectState:
        """Return this state, for a method that changes the project or describes it as a whole.

        Raises:
            InputError: Only some of the documents are visible.
        """
        if self.is_restricted:
            raise InputError(
                "A restricted project only reads: to change the project or to describe it as a whole, use the project"
                " without `only`."
            )
        return self

    def reconfigure(self, config: ProjectConfig) -> None:
        """Replace the settings."""
        self.config = config
        self.__dict__.pop("embed_model", None)

    # ---- models ------------------------------------------------------------------------------------------------------

    @cached_property
    def embed_model(self) -> BaseEmbedding:
        """The embedding model.

        Raises:
            ModelError: The model cannot be loaded because of a missing key or package, or an unknown name.
        """
        if self.passed_embed_model is not None:
            return self.passed_embed_model
        self._warn_of_unused("embed_model", settings_embed_model(), self.embed_model_name)
        record = self.recorded_model
        if record is None:
            return load_embed_model(self.config.embed_model, prefixes=self.config.embed_prefixes)
        if record.name == self.config.embed_model:
            return load_embed_model(record.name, dimensions=record.dimensions, prefixes=record.prefixes)
        try:
            model = record.create()
        except ModelError as error:
            raise self._needs_object(record.name) from error
        if model is None or not self._is_model_of_live(model):
            raise self._needs_object(record.name)
        return model

    @property
    def recorded_model(self) -> ModelObject | None:
        """Description of the embedding model passed as an object when the index was built, or None."""
        description = embed_object(self.directory)
        is_current = description is not None and description.get("setting") == self.config.embed_model
        return ModelObject(**description) if description is not None and is_current else None

    def remember_embed_model(self) -> None:
        """Record the embedding model if it was passed as an object. The write lock must be held."""
        if self.passed_embed_model is not None and self.config.builds_semantic:
            description = ModelObject.of(self.passed_embed_model, setting=self.config.embed_model)
            record_embed_object(self.directory, asdict(description))

    def _is_model_of_live(self, model: BaseEmbedding) -> bool:
        """Return whether the live version seems to have been built with the given model.

        The shortest of the first chunks is embedded and compared with its stored vector. The result is true if the
        version has no vectors.
        """
        try:
            index = self.live.current().index
        except NoVersionError:
            return True
        if index.dimensions is None:
            return True
        chunks = index.fetch(range(min(_PROBED, len(index.ids))))
        texts = [chunk.node.get_content(MetadataMode.EMBED) for chunk in chunks]
        row = min(range(len(texts)), key=lambda row: len(texts[row]))  # short enough for the model
        (vector,) = run_sync(lambda: aembed(model, [texts[row]], name=model_name(model)))
        (expected,) = index.vectors(np.array([row]))
        return len(vector) == len(expected) and float(vector @ expected) >= _SAME

    @property
    def embed_model_name(self) -> str | None:
        """Name of the embedding model, or None if there is no semantic index; the model is not loaded."""
        if not self.config.builds_semantic:
            return None
        if self.passed_embed_model is not None:
            return embedding_identity(self.passed_embed_model)
        record = self.recorded_model
        return self.config.embed_model if record is None else record.name

    @property
    def passage_prefix(self) -> str:
        """Prefix of passages for an embedding model on a server; the model is not loaded."""
        if self.passed_embed_model is not None:
            return own_prefixes(self.passed_embed_model)[1]
        if (record := self.recorded_model) is not None:
            return record.prefixes[1]
        return prefixes_of(self.config.embed_model, self.config.embed_prefixes)[1]

    def embed_model_of(self, setting: str, name: str, prefixes: Prefixes) -> BaseEmbedding:
        """Return the embedding model for a version that may have been built with other settings.

        Args:
            setting: Value of the `embed_model` setting with which the version was built.
            name: Name of the model that built the index; it differs from the setting if the model was passed as an
                object.
            prefixes: Value of the `embed_prefixes` setting with which the version was built.

        Raises:
            ConfigurationError: The model was passed as an object, and the project was loaded without this object.
        """
        if self.passed_embed_model is not None:
            return self.passed_embed_model
        if name not in (self.config.embed_model, setting):
            if self.recorded_model is None or self.recorded_model.name != name:
                raise self._needs_object(name)
            return self.embed_model
        is_current = self.config.embed_model in (setting, name) and self.config.embed_prefixes == prefixes
        return self.embed_model if is_current else load_embed_model(setting, prefixes=prefixes)

    def embed_model_of_live(self) -> BaseEmbedding:
        """Return the model of the live version, or the model in the settings if there is no version yet."""
        try:
            live = self.live.current()
        except NoVersionError:
            return self.embed_model
        return live.embed_model if live.has_semantic else self.embed_model

    def answering_llm(self) -> LLM:
        """Return the LLM for questions and answers: the object that was passed, or the LLM in the settings.

        If the settings name no LLM, or its key or package is missing, the LLM assigned to LlamaIndex's `Settings.llm`
        is used. The same object is returned until the settings or the environment change, so that its connections are
        reused.

        Raises:
            ModelError: The settings name no LLM, or it cannot be loaded because of a missing key or package, or an
                unknown name.
        """
        config = self.config
        if self.llm is not None:
            if config.answer_temperature is not None:
                self._warn(
                    f"answer_temperature={config.answer_temperature:g} has no effect on an LLM that is passed as an"
                    f" object: set its own temperature instead."
                )
            self._warn(limit_problem(self.llm))
            return self.llm
        name, settings_model = config.answer_llm or config.llm, settings_llm()
        if settings_model is not None and (name is None or missing_for(name, setting="llm")):
            return settings_model
        if name is None:
            raise ModelError(
                f"Project {self.name!r} has no LLM, because its settings name none",
                setting="answer_llm",
                remedy=Remedy(
                    "name one, as in project.update_config(answer_llm='ollama:llama3.1'), pass an object as llm=, or"
                    " assign one to LlamaIndex's `Settings.llm`",
                    "name one with --llm, such as ollama:llama3.1, or for all questions with"
                    " `llama-index-contextual configure {project} answer_llm=ollama:llama3.1`",
                ),
            )
        self.warn_of_settings()
        if config.answer_llm is None:
            self._warn_of_unused("llm", settings_model, name)
        timeouts = (config.call_timeout, config.first_token_timeout, config.between_tokens_timeout)
        key = name, config.answer_temperature, timeouts, environment_of(name)
        # An engine with callbacks of its own sets them on the object.
        if self._loaded is None or self._loaded[0] != key or self._loaded[1].callback_manager.handlers:
            self._loaded = key, self._load_answering_llm(name)
        return self._loaded[1]

    def _load_answering_llm(self, name: str) -> LLM:
        config = self.config
        advice = Remedy(
            "use another LLM: the setting `answer_llm`, such as ollama:llama3.1, one assigned to LlamaIndex's"
            " `Settings.llm`, or an object passed as `llm=`",
            "name another LLM with --llm, such as ollama:llama3.1",
        )
        longest = max(config.first_token_timeout or 0, config.between_tokens_timeout or 0)
        return load_llm(
            name,
            temperature=ANSWER_TEMPERATURE if config.answer_temperature is None else config.answer_temperature,
            timeout=config.call_timeout,
            least_timeout=longest,
            advice=advice,
        )

    def warn_of_settings(self) -> None:
        """Warn once of each setting that a model in the settings does not support."""
        for problem in settings_without_effect(self.config):
            self._warn(problem)

    def _warn_of_unused(self, setting: str, settings_model: LLM | BaseEmbedding | None, name: str | None) -> None:
        """Warn if a model assigned to LlamaIndex's Settings is not used."""
        if settings_model is None or name in (None, model_name(settings_model)):
            return
        keep = f", or set answer_llm={name!r} to keep this one" if setting == "llm" else ""
        self._warn(
            f"Settings.{setting} of LlamaIndex ({model_name(settings_model)}) is not used: project {self.name!r} uses"
            f" {name!r}. To use yours, pass {setting}=Settings.{setting} when you create and load the project{keep}."
        )

    def _warn(self, message: str | None) -> None:
        """Show a warning, unless this project has already shown it."""
        if message is not None and message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, SettingWarning, stacklevel=3)

    @property
    def context_llm_name(self) -> str:
        """Name of the LLM that writes contexts, as used in prices and reports, without loading the LLM."""
        if self.llm is not None:
            return model_name(self.llm, self.model_id)
        return DEFAULT_LLM if self.config.llm is None else self.config.llm

    def pipeline(
        self, ledger: Ledger, *, embeds: bool = True, retries_refused: bool = False, renews_kept: bool = False
    ) -> Pipeline:
        """Return the components that process a document.

        Args:
            ledger: Store of contexts and vectors that have already been paid for.
            embeds: Whether to load the embedding model, if the settings have one.
            retries_refused: Whether to request contexts again that the LLM refused to write in earlier runs.
            renews_kept: As in `make_pipeline`.
        """
        embed_model = self.embed_model if embeds and self.config.builds_semantic else None
        if self.config.context == "llm":
            if self.llm is None:
                self._warn_of_unused("llm", settings_llm(), self.config.llm)
            else:
                self._warn(limit_problem(self.llm))
        return make_pipeline(
            self.config,
            ledger=ledger,
            llm=self.llm,
            embed_model=embed_model,
            model_id=self.model_id,
            retries_refused=retries_refused,
            renews_kept=renews_kept,
        )

    def _needs_object(self, name: str) -> ConfigurationError:
        """Return the error for a project that was loaded without passing the embedding model that built its index."""
        record = self.recorded_model
        what = "" if record is None or record.name != name else f" ({record})"
        pass_it = f"pass it again, as in load({self.name!r}, embed_model=...)"
        by_command = "the command line can only search it with `--mode lexical`, because it cannot create this model"
        if is_creatable(name):
            by_name = "create it by name if it had only default options:"
            pass_it += f", or {by_name} project.update_config(embed_model={name!r})"
            by_command = f"{by_name} `llama-index-contextual configure {{project}} embed_model={name}`"
        return ConfigurationError(
            f"The index was built with the embedding model {name!r}{what}, which was passed as an object",
            setting="embed_model",
            remedy=Remedy(pass_it, by_command),
        )

    # ---- versions ----------------------------------------------------------------------------------------------------

    @contextmanager
    def open_live(self) -> Iterator[OpenVersion | None]:
        """Open the live version for a change to the project, or yield None if there is none; the lock must be held."""
        name = current_name(require_existing(self.whole().directory))
        if name is None:
            yield None
            return
        with closing(OpenVersion(version_directory(self.directory, name))) as version:
            yield version

    @contextmanager
    def version_to_build_on(self, *, replace: bool) -> Iterator[OpenVersion | None]:
        """Open the version from which unchanged documents are copied to the next version; yield None if there is none.

        Args:
            replace: Whether all documents are replaced, so that a damaged version can be ignored.

        Raises:
            ConfigurationError: The version was built with another embedding model.
        """
        with ExitStack() as stack:
            try:
                version = stack.enter_context(self.open_live())
            except CorruptVersionError:
                if not replace:
                    raise
                version = None
            if version is not None:
                self._require_model_of(version.manifest)
            yield version

    def remote_files(self, limits: ReadLimits, *, only_lists: bool = False) -> RemoteFiles:
        """Return the access to files at URLs; see `RemoteFiles`."""
        is_allowed = self.config.allow_private_addresses
        downloads = read_downloads(self.directory)
        return RemoteFiles(downloads, limits=limits, allow_private=is_allowed, only_lists=only_lists)

    def _require_model_of(self, manifest: Manifest) -> None:
        embed_model_name = self.embed_model_name
        same_setting = manifest.config["embed_model"] == self.config.embed_model
        is_other = embed_model_name is not None and manifest.embed_model != embed_model_name
        if same_setting and manifest.embed_model is not None and is_other:
            if self.passed_embed_model is None:
                raise self._needs_object(manifest.embed_model)
            raise ConfigurationError(
                f"The index was built with the embedding model {manifest.embed_model!r}, the project is loaded with"
                f" {embed_model_name!r}: load it with the former, or create a new project for the latter.",
                setting="embed_model",
            )


class HasState(Protocol):
    """Protocol implemented by `Project`, for functions in lower layers."""

    @property
    def state(self) -> ProjectState:
        """The directory, settings and models of the project, and its live version."""


def require_llm(models: ModelObjects) -> None:
    """Check that a `model_id` is passed only together with an LLM.

    Raises:
        ConfigurationError: There is no `llm`, or the name is empty.
    """
    model_id = models.get("model_id")
    if model_id is not None and (models.get("llm") is None or not model_id.strip()):
        raise ConfigurationError(
            f"model_id={model_id!r} names the object passed as llm=: pass both, or neither.", setting="model_id"
        )
