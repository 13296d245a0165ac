"""Retrievers over whatever version is live: resolved once per query, so that one answer comes from one version."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import LLM
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.embeddings.batching import cut_to_input
from llama_index_contextual.errors import (
    ContextualError,
    CorruptVersionError,
    InputError,
    NoVersionError,
)
from llama_index_contextual.forks import new_lock, renewed
from llama_index_contextual.redaction import get_logger
from llama_index_contextual.results import QueryBlend, RetrievalResponse
from llama_index_contextual.retrievers.base import CheckedRetriever, RankingRetriever, with_terms
from llama_index_contextual.retrievers.instrument import areported, reported
from llama_index_contextual.retrievers.queries import (
    as_bundles,
    bounded,
    require_positive,
    with_warnings,
)
from llama_index_contextual.retrievers.rerank import Rerankers
from llama_index_contextual.retrievers.respond import Request, respond
from llama_index_contextual.retrievers.version_indexes import VersionIndexes
from llama_index_contextual.storage.current import Stamp, parse_current, read_stamp, version_directory
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.filters import require_filters
from llama_index_contextual.storage.version import OpenVersion

logger = get_logger(__name__)

ACRONYM_WEIGHT = 0.1
"""Weight of each term that a question gains by acronyms, in the lexical indexes; 1 is a term of the question."""

_FILES_GONE = (ContextualError, OSError, sqlite3.Error)
"""What a query may raise when a writer has removed its version before all its files were open."""


class LiveIndexes:
    """The indexes of the live version of a project; a new version takes over at the next query.

    Args:
        project_dir: The project.
        name: Its name, for messages.
        load_embed_model: Gives the model that embeds queries, from the setting that a version was built with.
        load_llm: Gives the LLM that reranks, where the settings want that.
    """

    def __init__(
        self,
        project_dir: Path,
        name: str,
        load_embed_model: Callable[[str], BaseEmbedding],
        load_llm: Callable[[], LLM] | None = None,
    ) -> None:
        self.rerankers = Rerankers(load_llm)
        self.turns = _turns()
        self._project_dir = project_dir
        self._name = name
        self._load_embed_model = load_embed_model
        self._lock = new_lock()
        self._opened: VersionIndexes | None = None
        self._stamp: Stamp | None = None
        renewed(self)

    def renew_after_fork(self) -> None:
        """Let all turns be free in a forked child, where the threads that have some do not exist."""
        self.turns = _turns()

    def __reduce__(self) -> NoReturn:
        root, name = str(self._project_dir.parent), self._project_dir.name
        raise InputError(
            f"A project and its retrievers and engines cannot be pickled or copied: open the project again where you"
            f" need it, with ProjectManager({root!r}).load({name!r})."
        )

    def current(self) -> VersionIndexes:
        """Return the indexes of the live version.

        A version that is no longer live is let go: its files are closed when the last query that uses it has ended.

        Raises:
            NoVersionError: Nothing has been ingested yet.
        """
        while True:
            with self._lock:
                stamp = read_stamp(self._project_dir)
                if self._opened is not None and stamp == self._stamp:
                    return self._opened
                self._opened = self._stamp = None
                name = parse_current(self._project_dir, stamp).live
                if name is None:
                    raise NoVersionError(
                        f"Project {self._name!r} has no version yet; run `project.ingest([...])` first.",
                        name=self._name,
                    )
                try:
                    opened = VersionIndexes(
                        OpenVersion(version_directory(self._project_dir, name)), self._load_embed_model
                    )
                except (CorruptVersionError, OSError):
                    if read_stamp(self._project_dir) == stamp:
                        raise
                    continue  # a writer has published, and removed this version, meanwhile
                self._opened, self._stamp = opened, stamp
                return opened

    def overtaken(self, current: VersionIndexes) -> bool:
        """Return whether another version has become live, so that the files of this one may be gone."""
        with self._lock:
            return self._opened is not current or read_stamp(self._project_dir) != self._stamp


def _turns() -> threading.BoundedSemaphore:
    # Threads that rank take the interpreter from each other: more of them than cores answer fewer questions.
    return threading.BoundedSemaphore((os.cpu_count() or 1) + 1)


class ProjectRetriever(CheckedRetriever):
    """A retriever over the live version of a project, for any LlamaIndex engine.

    Args:
        indexes: Where the live version is found.
        config: Weights, candidates and fusion.
        mode: Which indexes answer.
        similarity_top_k: Results.
        filters: Only chunks that pass count, in every index, before ranking.
    """

    def __init__(
        self,
        indexes: LiveIndexes,
        config: ProjectConfig,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> None:
        super().__init__()
        self._indexes = indexes
        self._config = config
        self.mode: Mode = config.mode if mode is None else mode
        if self.mode not in get_args(Mode):
            raise InputError(f"Mode {self.mode!r} is unknown: use semantic, lexical or hybrid.", value=mode)
        self.similarity_top_k = require_positive(config.top_k if similarity_top_k is None else similarity_top_k)
        self.filters = require_filters(filters)

    def changed(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        **settings: Any,
    ) -> ProjectRetriever:
        """Return a retriever that differs in its mode, in how many it finds, or in settings of the project.

        `filters` hold beside those that it has.
        """
        both = [one for one in (self.filters, require_filters(filters)) if one is not None]
        return ProjectRetriever(
            self._indexes,
            self._config.changed(**settings) if settings else self._config,
            mode=self.mode if mode is None else mode,
            similarity_top_k=self.similarity_top_k if similarity_top_k is None else similarity_top_k,
            filters=MetadataFilters(filters=list(both)) if len(both) == 2 else next(iter(both), None),
        )

    def widened(self) -> ProjectRetriever:
        """Return a retriever that looks further in the same indexes: five times the candidates, twice the results.

        Who has chosen "lexical" may not want a question to leave the machine.
        """
        return self.changed(similarity_top_k=2 * self.similarity_top_k, candidates=5 * self._config.candidates)

    @property
    def config(self) -> ProjectConfig:
        """The settings of its project."""
        return self._config

    @property
    def embeds(self) -> bool:
        """Whether queries need the embedding model: not where the lexical index alone answers."""
        try:
            return self.mode != "lexical" and self._indexes.current().version.has_semantic
        except NoVersionError:
            return self._config.faiss

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the live version's chunks: what a filter can name."""
        return self._indexes.current().version.docstore.metadata_keys()

    def docstore_of(self, version: str | None) -> SQLiteDocumentStore | None:
        """Return where the chunks of a version are, while it is live; None afterwards."""
        live = self._indexes.current().version
        return live.docstore if live.name == version else None

    @reported
    def respond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        """Return the results with their evidence, and where `explain`, why they and not the next ones.

        Raises:
            InputError: The query is empty, or not a query.
            NoVersionError: Nothing has been ingested yet.
        """
        asked, notes = bounded(bundle)
        while True:
            current = self._indexes.current()
            try:
                retriever, mode, warnings = self._prepare(current)
                prepared = retriever.prepare(asked)
                warnings += _embedding_notes(asked, mode)
                found = self._respond(prepared, current, retriever, mode, warnings, explain=explain)
                return _whole(found, bundle, notes)
            except _FILES_GONE:
                if not self._indexes.overtaken(current):
                    raise

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is among the chunks of the live version; see `specificity_of`."""
        while True:
            current = self._indexes.current()
            try:
                return current.lexical.specificity(text) if current.version.has_lexical else None
            except _FILES_GONE:
                if not self._indexes.overtaken(current):
                    raise

    def respond_many(self, bundles: Sequence[QueryBundle]) -> list[RetrievalResponse]:
        """Return the results of several queries, in their order, all from one version."""
        # Before anything is opened or paid for, every query is looked at.
        checked = [bounded(bundle) for bundle in bundles]
        if not checked:
            return []
        while True:
            current = self._indexes.current()
            try:
                retriever, mode, warnings = self._prepare(current)
                prepared = retriever.prepare_many([asked for asked, _ in checked])
                found = [
                    self._respond(one, current, retriever, mode, [*warnings, *_embedding_notes(asked, mode)])
                    for one, (asked, _) in zip(prepared, checked, strict=True)
                ]
                notes = [notes for _, notes in checked]
                return list(map(_whole, found, bundles, notes))
            except _FILES_GONE:
                if not self._indexes.overtaken(current):
                    raise

    def retrieve_many(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """Return the nodes of several queries, in their order."""
        return [response.to_nodes() for response in self.respond_many(as_bundles(queries))]

    @areported
    async def arespond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        """Do as `respond` does; the query's embedding is awaited, ranking runs in a thread."""
        asked, notes = await asyncio.to_thread(bounded, bundle)
        while True:
            current = await asyncio.to_thread(self._indexes.current)
            try:
                retriever, mode, warnings = await asyncio.to_thread(self._prepare, current)
                prepared = await retriever.aprepare(asked)
                warnings += await asyncio.to_thread(_embedding_notes, asked, mode)
                found = await asyncio.to_thread(
                    self._respond, prepared, current, retriever, mode, warnings, explain=explain
                )
                return _whole(found, bundle, notes)
            except _FILES_GONE:
                if not self._indexes.overtaken(current):
                    raise

    def _prepare(self, current: VersionIndexes) -> tuple[RankingRetriever, Mode, list[str]]:
        mode, warnings = current.usable_mode(self.mode)
        for warning in warnings:
            logger.warning(warning)
        return current.retriever(mode, self._config), mode, warnings

    def _respond(
        self,
        bundle: QueryBundle,
        current: VersionIndexes,
        retriever: RankingRetriever,
        mode: Mode,
        warnings: list[str],
        *,
        explain: bool = False,
    ) -> RetrievalResponse:
        added = current.acronyms.added_to(bundle.query_str) if self._config.acronyms else ()
        asked = with_terms(bundle, added, ACRONYM_WEIGHT)
        request = Request(
            k=self.similarity_top_k,
            filters=self.filters,
            explain=explain,
            reranker=self._indexes.rerankers.of(self._config),
            candidates=self._config.rerank_candidates,
            mode_requested=self.mode,
            mode_used=mode,
            warnings=warnings,
            version=current.version.name,
            turns=self._indexes.turns,
        )
        if not added:
            return respond(bundle, retriever, request)
        return replace(respond(asked, retriever, request), blend=QueryBlend(lexical=asked.lexical_texts))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.respond(query_bundle).to_nodes()

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return (await self.arespond(query_bundle)).to_nodes()


def _embedding_notes(bundle: QueryBundle, mode: Mode) -> list[str]:
    """Return the warnings about what is not embedded of a query that is embedded by its text."""
    if mode == "lexical" or bundle.embedding is not None:
        return []
    lengths = [(len(cut_to_input(text)), len(text)) for text in bundle.embedding_strs]
    return [
        f"The query is longer than an embedding model takes: only its beginning, {kept:,} characters, was embedded."
        for kept, whole in lengths
        if kept < whole
    ]


def _whole(found: RetrievalResponse, bundle: QueryBundle, notes: Sequence[str]) -> RetrievalResponse:
    """Return a response to a query that was cut, with the query as it was asked."""
    return replace(with_warnings(found, notes), query=bundle.query_str) if notes else found
