"""The live version of a project, which is opened once and replaced when a new version is published."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.cache import LRUCache
from llama_index_contextual._utils.files import explains_limit
from llama_index_contextual._utils.locks import Lock
from llama_index_contextual.errors import (
    ConfigurationError,
    ContextualError,
    CorruptVersionError,
    InputError,
    NoVersionError,
    Remedy,
)
from llama_index_contextual.index.languages import languages_of
from llama_index_contextual.index.project_file import deleted_error, is_project
from llama_index_contextual.index.restricted import RestrictedPart
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import Stamp, parse_current, read_stamp, version_directory

if TYPE_CHECKING:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.indices.vector_store.base import VectorStoreIndex
    from llama_index.core.llms import LLM
    from llama_index.core.vector_stores.types import MetadataFilters

    from llama_index_contextual.config import Prefixes
    from llama_index_contextual.embeddings.queries import QueryEmbedder
    from llama_index_contextual.index.part import Part
    from llama_index_contextual.search.rerank import Rerankers
    from llama_index_contextual.stores import VersionStorageContext

T = TypeVar("T")

_FILES_REMOVED = (ContextualError, OSError, sqlite3.Error)
"""Errors that a query may raise if its version is removed before all of the version's files have been opened."""


_RESTRICTIONS = 8  # number of copies of a version for different filters that are kept in memory


class LiveVersions:
    """Opens a project's live version, and opens the next one when it is published.

    All `LiveIndexes` of a project share this object, and with it the models and caches for queries.

    Args:
        project_dir: Directory of the project.
        name: Name of the project, for messages.
        load_embed_model: Function that loads the embedding model for queries; its arguments are the `embed_model`
            setting of a version, the name of the model that the version was built with, and its `embed_prefixes`.
        load_llm: Function that loads the LLM for reranking, if the settings require it.
        rerankers: Cache of rerankers to share with other projects; None creates one.

    Attributes:
        project_dir: Directory of the project.
        turn: Lock that a search holds while it ranks. Threads that rank at the same time would compete for the
            interpreter, and answer fewer queries per second.
    """

    def __init__(
        self,
        project_dir: Path,
        name: str,
        load_embed_model: Callable[[str, str, Prefixes], BaseEmbedding],
        load_llm: Callable[[], LLM] | None = None,
        *,
        rerankers: Rerankers | None = None,
    ) -> None:
        self.project_dir = project_dir
        self.turn = Lock()
        self._name = name
        self._load_embed_model = load_embed_model
        self._load_llm = load_llm
        self._rerankers = rerankers
        self._embedder: QueryEmbedder | None = None
        self._restricted: LRUCache[str, LiveIndexes] = LRUCache(_RESTRICTIONS)
        self._lock = Lock(self._forget)
        self._forget()

    def _forget(self) -> None:
        self._opened: SearchableVersion | None = None
        self._stamp: Stamp | None = None

    @property
    def rerankers(self) -> Rerankers:
        """The cache of rerankers, created on first use."""
        from llama_index_contextual.search.rerank import Rerankers

        with self._lock:
            if self._rerankers is None:
                self._rerankers = Rerankers(self._load_llm)
            return self._rerankers

    def current(self) -> SearchableVersion:
        """Return the live version.

        A version that is no longer live is released, and its files are closed when the last query that uses it ends.

        Raises:
            NoVersionError: Nothing has been ingested yet.
            ProjectNotFoundError: The project was deleted.
        """
        while True:
            with self._lock:
                stamp = read_stamp(self.project_dir, self._stamp)
                if self._opened is not None and stamp == self._stamp:
                    return self._opened
                former, self._opened, self._stamp = self._opened, None, None  # keeps its open parts for reuse
                name = parse_current(self.project_dir, stamp).live
                if name is None and not is_project(self.project_dir):
                    raise deleted_error(self._name)
                if name is None:
                    raise NoVersionError(
                        f"Project {self._name!r} has no version yet",
                        name=self._name,
                        remedy=Remedy(
                            "run `project.ingest([...])` first",
                            "add documents with `llama-index-contextual ingest {project} FILES…`",
                        ),
                    )
                try:
                    opened = SearchableVersion(version_directory(self.project_dir, name), self._load_embed_model)
                except (CorruptVersionError, OSError):
                    if read_stamp(self.project_dir) == stamp:
                        raise
                    continue  # a writer has published another version and removed this one
                opened.embedder_of = self._embedder_of
                self._opened, self._stamp = opened, stamp
                del former
                return opened

    def is_live(self, version: SearchableVersion) -> bool:
        """Return whether a version is still live. The files of other versions may have been removed."""
        with self._lock:
            return self._opened is version and read_stamp(self.project_dir) == self._stamp

    def restricted(self, filters: MetadataFilters) -> LiveIndexes:
        """Return indexes of the documents that pass the filters; the most recent ones are cached."""
        scope = filters.model_dump_json()
        indexes = self._restricted.get(scope) or LiveIndexes(self, filters=filters)
        self._restricted.put(scope, indexes)
        return indexes

    def _embedder_of(self, model: BaseEmbedding) -> QueryEmbedder:
        """Return the embedder for a model; versions with the same model share an embedder and its cache."""
        from llama_index_contextual.embeddings.queries import QueryEmbedder

        if self._embedder is None or self._embedder.model is not model:
            self._embedder = QueryEmbedder(model)
        return self._embedder


@explains_limit
class LiveIndexes:
    """The indexes that a query searches: those of the live version, of its visible documents, or of a pinned version.

    Args:
        versions: Opens the live version, which is looked up again for each query.
        filters: Filters returned by `restricting_filters`; only documents that pass them are visible. None for all.
        pinned: A version returned by `current`, for a call with several steps that must all use the same documents.
            Use it inside `run`, which repeats the call if the version is removed in the meantime.

    Attributes:
        versions: Opens the live version, and has the models for queries.
    """

    def __init__(
        self,
        versions: LiveVersions,
        *,
        filters: MetadataFilters | None = None,
        pinned: SearchableVersion | None = None,
    ) -> None:
        self.versions = versions
        self._filters = filters
        self._pinned = pinned
        self._lock = Lock(self._forget_visible)
        self._forget_visible()

    def _forget_visible(self) -> None:
        self._visible: RestrictedVersion | None = None

    def __reduce__(self) -> NoReturn:
        root, name = str(self.versions.project_dir.parent), self.versions.project_dir.name
        raise InputError(
            f"A project and its retrievers and engines cannot be pickled or copied: open the project again where you"
            f" need it, with ProjectManager({root!r}).load({name!r})."
        )

    @property
    def scope(self) -> str:
        """The filters that restrict the indexes, in JSON; "" if all documents are visible."""
        return "" if self._filters is None else self._filters.model_dump_json()

    def current(self) -> SearchableVersion:
        """Return the version to search; see `LiveVersions.current` and `RestrictedVersion`.

        Raises:
            NoVersionError: Nothing has been ingested yet.
            ProjectNotFoundError: The project was deleted.
        """
        if self._pinned is not None:
            return self._pinned
        whole = self.versions.current()
        if self._filters is None:
            return whole
        with self._lock:
            if self._visible is None or self._visible.whole is not whole:
                self._visible = RestrictedVersion(whole, self._filters, self._visible)
            return self._visible

    def restricted(self, filters: MetadataFilters) -> LiveIndexes:
        """Return indexes of those visible documents that also pass these filters.

        Args:
            filters: Filters returned by `restricting_filters`.
        """
        if self._filters is not None:
            filters = type(filters)(filters=[self._filters, filters])
        return self.versions.restricted(filters)

    def pinned(self, version: SearchableVersion) -> LiveIndexes:
        """Return the indexes of one version, which `current` has returned."""
        return LiveIndexes(self.versions, filters=self._filters, pinned=version)

    def parse_filters(
        self, conditions: Sequence[str] | None, files: Sequence[str] | None, *, listing: str = "`documents`"
    ) -> MetadataFilters | None:
        """Return the filters for conditions such as "kind=report" and for file names, or None if there are none.

        Args:
            conditions: Filters as text; see `to_filters`.
            files: Document ids, ends of ids such as file names, or glob patterns for either.
            listing: Command or method that lists the documents, for messages.

        Raises:
            InputError: A condition cannot be parsed, or no document meets it or matches a file.
        """
        from llama_index_contextual.search.filters import filter_on_documents, to_filters

        filters = to_filters(list(conditions or ()))
        if filters is not None:
            self.current().resolved(filters)
        if not files:
            return filters
        one = filter_on_documents(files, self.current().records, listing=listing)
        return type(one)(filters=[*(filters.filters if filters else ()), *one.filters])

    def run(self, query: Callable[[SearchableVersion], T]) -> T:
        """Run a query on the live version, and repeat it on the next version if a writer removes the version."""
        while True:
            current = self.current()
            try:
                return query(current)
            except _FILES_REMOVED:
                if self._pinned is not None or self.versions.is_live(current.whole):
                    raise


class SearchableVersion(OpenVersion):
    """A published version with its indexes, which are opened on first use.

    Args:
        directory: The `versions/<name>` directory of a project.
        load_embed_model: Function that loads the embedding model for queries; its arguments are the `embed_model`
            setting of the version, the name of the model that the version was built with, and its `embed_prefixes`.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.
    """

    def __init__(self, directory: Path, load_embed_model: Callable[[str, str, Prefixes], BaseEmbedding]) -> None:
        super().__init__(directory)
        self._load_embed_model = load_embed_model
        self.embedder_of: Callable[[BaseEmbedding], QueryEmbedder] | None = None

    @property
    def whole(self) -> SearchableVersion:
        """The version with all its documents."""
        return self

    @cached_property
    def storage_context(self) -> VersionStorageContext:
        """The version as a read-only LlamaIndex StorageContext."""
        from llama_index_contextual.stores import storage_context_of

        return storage_context_of(self)

    @cached_property
    def vector_store_index(self) -> VectorStoreIndex:
        """The version as a LlamaIndex index.

        Raises:
            ConfigurationError: The version has no semantic index, or was built with another embedding model.
        """
        if not self.has_semantic:
            raise ConfigurationError(
                "This version has no semantic index",
                setting="indexes",
                remedy=Remedy(
                    "create the project with indexes='hybrid'",
                    "run `llama-index-contextual configure {project} indexes=hybrid`, then `rebuild`",
                ),
            )
        from llama_index.core.data_structs.data_structs import IndexDict
        from llama_index.core.indices.vector_store.base import VectorStoreIndex

        from llama_index_contextual.stores import INDEX_ID

        model = self.embed_model
        # Without transformations, LlamaIndex creates a SentenceSplitter and loads its tokenizer. This takes half a
        # second, and a read-only index does not need them.
        return VectorStoreIndex(
            index_struct=IndexDict(index_id=INDEX_ID),
            storage_context=self.storage_context,
            embed_model=model,
            transformations=[model],
        )

    @cached_property
    def embed_model(self) -> BaseEmbedding:
        """The model that the version was built with, even if the settings have changed since.

        Raises:
            ConfigurationError: The project was loaded with another model, or without the model object that the version
                was built with.
            ModelError: The model cannot be loaded, for example because a key or a package is missing.
        """
        from llama_index_contextual.models import model_name

        config = self.manifest.config
        setting, prefixes = config["embed_model"], config.get("embed_prefixes", "auto")  # not in older versions
        model = self._load_embed_model(
            setting, self.manifest.embed_model or setting, tuple(prefixes) if isinstance(prefixes, list) else prefixes
        )
        if self.manifest.embed_model != model_name(model):
            raise ConfigurationError(
                f"The index was built with the embedding model {self.manifest.embed_model!r}, the project is"
                f" loaded with {model_name(model)!r}: load it with the former, or create a new project for the latter.",
                setting="embed_model",
            )
        return model

    @cached_property
    def embedder(self) -> QueryEmbedder:
        """The query embedder, which uses the version's model."""
        from llama_index_contextual.embeddings.queries import QueryEmbedder

        return (self.embedder_of or QueryEmbedder)(self.embed_model)

    def resolved(self, filters: MetadataFilters | None, *, is_checked: bool = True) -> MetadataFilters | None:
        """Read filters for the documents of this version; see `resolve`.

        Raises:
            InputError: No document has a field or a value.
        """
        if filters is None:
            return None
        from llama_index_contextual.search.filters import resolve

        return resolve(filters, self.docstore, is_checked=is_checked)

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the chunks, which can be used in filters."""
        return self.docstore.metadata_keys()

    @cached_property
    def metadata_values(self) -> Mapping[str, Sequence[str | int | float]]:
        """The distinct values of the user's own metadata keys, by key, for use in filters."""
        return self.docstore.metadata_values(skip=(*keys.OWN_KEYS, *keys.RESERVED_KEYS))


class RestrictedVersion(SearchableVersion):
    """The visible documents of a published version.

    Args:
        whole: The version.
        filters: Filters returned by `restricting_filters`.
        former: The visible documents of an earlier version, whose copies of unchanged parts are reused, or None.
    """

    is_restricted = True
    _copies: dict[Part, RestrictedPart]
    _filters: MetadataFilters

    def __init__(self, whole: SearchableVersion, filters: MetadataFilters, former: RestrictedVersion | None) -> None:
        self._whole = whole
        self.directory, self.name, self.without = whole.directory, whole.name, whole.without
        self._load_embed_model, self.embedder_of = whole._load_embed_model, whole.embedder_of
        resolved = whole.resolved(filters, is_checked=False) or filters
        copies = former._copies if former is not None and former._filters == resolved else {}
        self._filters = resolved
        self._copies = {part: copies.get(part) or RestrictedPart(part, resolved) for part in whole.parts}
        self.parts = [copy.acquire() for copy in self._copies.values()]
        visible = {
            "documents": len(self.records),
            "chunks": sum(part.size for part in self.parts),
            "size": 0,
            "parts": [],
            "languages": languages_of(self.records),
        }
        self.manifest = whole.manifest.model_copy(update=visible)

    @property
    def whole(self) -> SearchableVersion:
        """The version with all its documents."""
        return self._whole
