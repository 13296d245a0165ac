"""What both sides of a project share: where it is, its settings, its models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM

from llama_index_contextual.config import ProjectConfig
from llama_index_contextual.errors import ConfigurationError, NoVersionError
from llama_index_contextual.forks import cached_property
from llama_index_contextual.models import load_embed_model, load_llm
from llama_index_contextual.retrievers.live import LiveIndexes
from llama_index_contextual.storage.current import current_name, version_directory
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.version import OpenVersion


class ProjectBase:
    """A project's directory, settings and models.

    Args:
        directory: Where it is.
        config: Its settings.
        llm: Writes contexts and answers; None makes the one that `config.llm` names when it is needed.
        embed_model: Embeds chunks and queries; None makes the one that `config.embed_model` names.
        model_id: What to call the model of `llm`; None takes its own name.

    Raises:
        ConfigurationError: There is a `model_id` without `llm`.
    """

    def __init__(
        self,
        directory: Path,
        config: ProjectConfig,
        *,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | None = None,
        model_id: str | None = None,
    ) -> None:
        require_llm(llm, model_id)
        self.directory = directory
        self.name = directory.name
        self.config = config
        self._llm = llm
        self._model_id = model_id
        self._given_embed_model = embed_model
        self._live = LiveIndexes(
            directory, self.name, self._embed_model_of, lambda: self._llm or self._load_answering_llm()
        )

    def __reduce__(self) -> NoReturn:
        self._live.__reduce__()

    @cached_property
    def embed_model(self) -> BaseEmbedding:
        """The embedding model.

        Raises:
            ModelError: It cannot be made: no key, no package, no such name.
        """
        return self._given_embed_model or load_embed_model(self.config.embed_model)

    def _embed_model_of(self, setting: str) -> BaseEmbedding:
        """Return the model for a version built with that setting: it answers until the next one is published."""
        if self._given_embed_model is not None or setting == self.config.embed_model:
            return self.embed_model
        return load_embed_model(setting)

    def _load_answering_llm(self) -> LLM:
        another = "take another LLM: the setting `llm`, such as ollama:llama3.1, or an object passed as `llm=`"
        return load_llm(
            self.config.llm,
            temperature=self.config.answer_temperature,
            timeout=self.config.call_timeout,
            instead=another,
        )

    def documents(self) -> Sequence[DocumentRecord]:
        """Return the documents of the live version; none before the first `ingest`."""
        try:
            return self._live.current().version.manifest.documents
        except NoVersionError:
            return ()

    def _open_live(self) -> OpenVersion | None:
        """Open the live version for a change of the project, whose lock is held; None before the first."""
        name = current_name(self.directory)
        return None if name is None else OpenVersion(version_directory(self.directory, name))


def require_llm(llm: LLM | None, model_id: str | None) -> None:
    """Refuse a `model_id` that names nothing.

    Raises:
        ConfigurationError: There is no `llm`, or the name is empty.
    """
    if model_id is not None and (llm is None or not model_id.strip()):
        raise ConfigurationError(
            f"model_id={model_id!r} names the object passed as llm=: pass both, or neither.", setting="model_id"
        )
