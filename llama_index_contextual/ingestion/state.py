"""State of a project: its directory, settings, models and live version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode

from llama_index_contextual._utils.calls import run_sync
from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.embeddings.contextual import aembed
from llama_index_contextual.errors import ConfigurationError, CorruptVersionError, ModelError, NoVersionError, Remedy
from llama_index_contextual.index.ledger import Ledger
from llama_index_contextual.index.manifest import Manifest
from llama_index_contextual.index.project_file import embed_object, record_embed_object, require_existing
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, version_directory
from llama_index_contextual.ingestion.pipeline import Stages, make_stages
from llama_index_contextual.models import (
    ModelObject,
    embedding_identity,
    is_creatable,
    load_embed_model,
    load_llm,
    missing_for,
    model_name,
    settings_llm,
)
from llama_index_contextual.search.live import LiveIndexes

_PROBED = 100
"""Number of chunks considered when recognising the model that built an index; the shortest of them is embedded."""

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
        self.live = LiveIndexes(directory, self.name, self.embed_model_of, self.answering_llm)

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
        remembered = self.recorded_model
        if remembered is None or remembered.name == self.config.embed_model:
            return load_embed_model(self.config.embed_model, dimensions=remembered.dimensions if remembered else None)
        try:
            model = remembered.create()
        except ModelError as error:
            raise self._needs_object(remembered.name) from error
        if model is None or not self._is_model_of_live(model):
            raise self._needs_object(remembered.name)
        return model

    @property
    def recorded_model(self) -> ModelObject | None:
        """Description of the embedding model passed as an object when the index was built, or None."""
        described = embed_object(self.directory)
        is_current = described is not None and described.get("setting") == self.config.embed_model
        return ModelObject(**described) if described is not None and is_current else None

    def remember_embed_model(self) -> None:
        """Record the embedding model if it was passed as an object. The write lock must be held."""
        if self.passed_embed_model is not None and self.config.builds_semantic:
            described = ModelObject.of(self.passed_embed_model, setting=self.config.embed_model)
            record_embed_object(self.directory, asdict(described))

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
        (made,) = run_sync(lambda: aembed(model, [texts[row]], name=model_name(model)))
        (stored,) = index.vectors(np.array([row]))
        return len(made) == len(stored) and float(made @ stored) >= _SAME

    @property
    def embed_model_name(self) -> str | None:
        """Name of the embedding model, or None if there is no semantic index; the model is not loaded."""
        if not self.config.builds_semantic:
            return None
        passed = self.passed_embed_model
        if passed is not None:
            return embedding_identity(passed)
        remembered = self.recorded_model
        return self.config.embed_model if remembered is None else remembered.name

    def embed_model_of(self, setting: str, built: str) -> BaseEmbedding:
        """Return the embedding model for a version that may have been built with other settings.

        Args:
            setting: Value of the `embed_model` setting with which the version was built.
            built: Name of the model that built the index; it differs from the setting if the model was passed as an
                object.

        Raises:
            ConfigurationError: The model was passed as an object, and the project was loaded without this object.
        """
        if self.passed_embed_model is not None:
            return self.passed_embed_model
        if built not in (self.config.embed_model, setting):
            if self.recorded_model is None or self.recorded_model.name != built:
                raise self._needs_object(built)
            return self.embed_model
        return self.embed_model if self.config.embed_model in (setting, built) else load_embed_model(setting)

    def embed_model_of_live(self) -> BaseEmbedding:
        """Return the model of the live version, or the model in the settings if there is no version yet."""
        try:
            live = self.live.current()
        except NoVersionError:
            return self.embed_model
        return live.embed_model if live.has_semantic else self.embed_model

    def answering_llm(self) -> LLM:
        """Return the LLM for questions and answers: the object that was passed, or the LLM in the settings.

        If the key or package for the LLM in the settings is missing, the LLM assigned to LlamaIndex's `Settings.llm` is
        used.

        Raises:
            ModelError: The LLM cannot be loaded because of a missing key or package, or an unknown name.
        """
        name = self.config.answer_llm or self.config.llm
        if self.llm is None and missing_for(name, setting="llm") and (assigned := settings_llm()) is not None:
            return assigned
        return self.llm or load_llm(
            name,
            temperature=self.config.answer_temperature,
            timeout=self.config.call_timeout,
            advice=Remedy(
                "use another LLM: the setting `answer_llm`, such as ollama:llama3.1, one assigned to LlamaIndex's"
                " `Settings.llm`, or an object passed as `llm=`",
                "name another LLM with --llm, such as ollama:llama3.1",
            ),
        )

    @property
    def context_llm_name(self) -> str:
        """Name of the LLM that writes contexts, as used in prices and reports, without loading the LLM."""
        return self.config.llm if self.llm is None else model_name(self.llm, self.model_id)

    def stages(self, ledger: Ledger, embed_model: BaseEmbedding | None) -> Stages:
        """Return the components that process a document."""
        return make_stages(self.config, ledger=ledger, llm=self.llm, embed_model=embed_model, model_id=self.model_id)

    def _needs_object(self, built: str) -> ConfigurationError:
        """Return the error for a project that was loaded without passing the embedding model that built its index."""
        remembered = self.recorded_model
        what = "" if remembered is None or remembered.name != built else f" ({remembered})"
        pass_it = f"pass it again, as in load({self.name!r}, embed_model=...)"
        by_command = "the command line can only search it with `--mode lexical`, because it cannot create this model"
        if is_creatable(built):
            by_name = "create it by name if it had only default options:"
            pass_it += f", or {by_name} project.update_config(embed_model={built!r})"
            by_command = f"{by_name} `llama-index-contextual configure {{project}} embed_model={built}`"
        return ConfigurationError(
            f"The index was built with the embedding model {built!r}{what}, which was passed as an object",
            setting="embed_model",
            remedy=Remedy(pass_it, by_command),
        )

    # ---- versions ----------------------------------------------------------------------------------------------------

    @contextmanager
    def open_live(self) -> Iterator[OpenVersion | None]:
        """Open the live version for a change to the project, or yield None if there is none; the lock must be held."""
        name = current_name(require_existing(self.directory))
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
