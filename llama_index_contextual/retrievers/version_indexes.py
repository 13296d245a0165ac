"""The indexes of one version, each opened when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.loading import load_index_from_storage
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.schema import MetadataMode

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import ConfigurationError
from llama_index_contextual.forks import cached_property, new_rlock
from llama_index_contextual.models import is_same_model, model_name
from llama_index_contextual.retrievers.acronyms import Acronyms, find_acronyms
from llama_index_contextual.retrievers.base import RankingRetriever
from llama_index_contextual.retrievers.documents import DocumentIndex, DocumentLeg
from llama_index_contextual.retrievers.hybrid import HybridRetriever
from llama_index_contextual.retrievers.lexical import LexicalRetriever
from llama_index_contextual.retrievers.lexical_index import LexicalIndex
from llama_index_contextual.retrievers.semantic import SemanticRetriever
from llama_index_contextual.storage.version import OpenVersion

_FUSION_FIELDS = (
    "semantic_weight",
    "lexical_weight",
    "document_weight",
    "sibling_weight",
    "candidates",
    "fusion",
    "rrf_k",
)


class VersionIndexes:
    """The indexes of one version, each opened when it is first used.

    Args:
        version: The version.
        load_embed_model: Gives the model that embeds queries, from the setting that the version was built with.
    """

    def __init__(self, version: OpenVersion, load_embed_model: Callable[[str], BaseEmbedding]) -> None:
        self.version = version
        self._load_embed_model = load_embed_model
        self._lock = new_rlock()
        self._hybrid: tuple[tuple[Any, ...], HybridRetriever] | None = None

    @cached_property
    def index(self) -> VectorStoreIndex:
        """The version as a LlamaIndex index.

        Raises:
            ConfigurationError: The version has no semantic index, or was built with another embedding model.
        """
        if not self.version.has_semantic:
            raise ConfigurationError(
                "This version has no semantic index: create the project with faiss=True.", setting="faiss"
            )
        model = self.embed_model
        # Without transformations LlamaIndex makes a SentenceSplitter, which loads its tokenizer: half a second for what
        # an index that cannot be changed never uses.
        index = load_index_from_storage(self.version.storage_context, embed_model=model, transformations=[model])
        return cast(VectorStoreIndex, index)

    @cached_property
    def embed_model(self) -> BaseEmbedding:
        """The model that the version was built with, whatever the settings have become since.

        Raises:
            ConfigurationError: The project is loaded with another one.
            ModelError: It cannot be made: no key, no package, no such name.
        """
        model = self._load_embed_model(self.version.manifest.config["embed_model"])
        if not is_same_model(self.version.manifest.embed_model, model_name(model)):
            raise ConfigurationError(
                f"The index was built with the embedding model {self.version.manifest.embed_model!r}, the project is"
                f" loaded with {model_name(model)!r}: load it with the first, or create a project for the second.",
                setting="embed_model",
            )
        return model

    @cached_property
    def semantic(self) -> SemanticRetriever:
        """The semantic leg."""
        return SemanticRetriever(self.index)

    @cached_property
    def lexical(self) -> LexicalRetriever:
        """The lexical leg."""
        return LexicalRetriever(LexicalIndex.load(self.version.bm25_directory), self.version.docstore)

    @cached_property
    def documents(self) -> DocumentLeg | None:
        """What the documents say of their chunks; None where the version has no index of them."""
        if not self.version.has_documents:
            return None
        return DocumentLeg(DocumentIndex.load(self.version.documents_directory), self.version.docstore)

    @cached_property
    def acronyms(self) -> Acronyms:
        """The acronyms that the version's texts explain."""
        texts = (node.get_content(MetadataMode.NONE) for node in self.version.docstore.iterate())
        return Acronyms(find_acronyms(texts))

    def retriever(self, mode: Mode, config: ProjectConfig) -> RankingRetriever:
        """Return the retriever for a mode that the version can answer."""
        with self._lock:  # whoever comes first opens the files, once
            if mode == "semantic":
                return self.semantic
            if mode == "lexical":
                return self.lexical
            setting = tuple(getattr(config, name) for name in _FUSION_FIELDS)
            if self._hybrid is None or self._hybrid[0] != setting:
                self._hybrid = setting, self._fused(config)
            return self._hybrid[1]

    def _fused(self, config: ProjectConfig) -> HybridRetriever:
        return HybridRetriever(
            [self.semantic, self.lexical],
            retriever_weights=[config.semantic_weight, config.lexical_weight],
            candidates=config.candidates,
            fusion=config.fusion,
            rrf_k=config.rrf_k,
            documents=self.documents if config.document_weight or config.sibling_weight else None,
            document_weight=config.document_weight,
            sibling_weight=config.sibling_weight,
        )

    def usable_mode(self, wanted: Mode) -> tuple[Mode, list[str]]:
        """Return the mode that can answer, and a warning where it is not the wanted one."""
        has: dict[str, bool] = {"semantic": self.version.has_semantic, "lexical": self.version.has_lexical}
        if wanted == "hybrid" and all(has.values()):
            return wanted, []
        if has.get(wanted):
            return wanted, []
        used: Mode = "semantic" if has["semantic"] else "lexical"
        missing = " and ".join(leg for leg, there in has.items() if not there)
        return used, [f"Mode {wanted!r} was asked for, but there is no {missing} index: answered with {used!r}."]
