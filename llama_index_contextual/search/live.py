"""Search in the live version of a project.

`ProjectRetriever` answers queries, `LiveIndexes` finds the live version and detects when another one replaces it,
`SearchableVersion` opens the indexes of one version, `search` ranks, estimates relevance and explains, and `Candidates`
reranks and responds.
"""

from __future__ import annotations

import asyncio
import functools
import os
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.data_structs.data_structs import IndexDict
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters
from numpy.typing import NDArray

from llama_index_contextual import metadata as keys
from llama_index_contextual._utils.forks import cached_property, new_lock, new_rlock, renewed
from llama_index_contextual._utils.redaction import get_logger
from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.embeddings.batching import cut_to_input
from llama_index_contextual.errors import (
    ConfigurationError,
    ContextualError,
    CorruptVersionError,
    InputError,
    NoVersionError,
    Remedy,
)
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.bm25 import LexicalIndex, TermCounts
from llama_index_contextual.index.docstore import SQLiteDocumentStore
from llama_index_contextual.index.documents import DocumentIndex, DocumentLeg
from llama_index_contextual.index.export import INDEX_ID
from llama_index_contextual.index.filters import require_filters
from llama_index_contextual.index.manifest import BM25_DIRECTORY, DOCUMENTS_DIRECTORY
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import Stamp, parse_current, read_stamp, version_directory
from llama_index_contextual.models import is_same_model, model_name
from llama_index_contextual.retrievers.base import (
    CheckedRetriever,
    RankingRetriever,
    areported,
    reported,
    with_terms,
)
from llama_index_contextual.retrievers.hybrid import HybridRetriever
from llama_index_contextual.retrievers.lexical import LexicalRetriever
from llama_index_contextual.retrievers.semantic import QueryEmbedder, SemanticRetriever
from llama_index_contextual.search.acronyms import Acronyms
from llama_index_contextual.search.confidence import JUDGED, RANKED, READ, Judgement, judge
from llama_index_contextual.search.explain import NEAR_MISSES, explain, explain_reranked
from llama_index_contextual.search.queries import (
    as_bundles,
    bounded,
    number_of_results,
    require_positive,
    with_warnings,
)
from llama_index_contextual.search.rerank import LLM_RERANK, LLMReranker, Reranked, Reranker, Rerankers
from llama_index_contextual.search.response import Explanation, QueryBlend, RetrievalResponse, RetrievedChunk

T = TypeVar("T")

logger = get_logger(__name__)


_FUSION_FIELDS = (
    "semantic_weight",
    "lexical_weight",
    "document_weight",
    "sibling_weight",
    "document_idf",
    "candidates",
    "fusion",
    "rrf_k",
)

_FILES_REMOVED = (ContextualError, OSError, sqlite3.Error)
"""Errors that a query may raise if a writer removed its version before all its files were open."""


class ProjectRetriever(CheckedRetriever):
    """A retriever over the live version of a project, for any LlamaIndex engine.

    Args:
        indexes: The indexes of the project's live version.
        config: Weights, candidates and fusion.
        mode: Indexes to search; None for the mode of `config`.
        similarity_top_k: Number of results; None for `top_k` of `config`.
        top_k: The same.
        filters: Only chunks that pass are ranked, in every index.
    """

    def __init__(
        self,
        indexes: LiveIndexes,
        config: ProjectConfig,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> None:
        super().__init__()
        self._indexes = indexes
        self._config = config
        self.mode: Mode = config.mode if mode is None else mode
        if self.mode not in get_args(Mode):
            raise InputError(f"Mode {self.mode!r} is unknown: use semantic, lexical or hybrid.", value=mode)
        self.similarity_top_k = require_positive(number_of_results(similarity_top_k, top_k, config.top_k))
        self.filters = require_filters(filters)

    def changed(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        **settings: Any,
    ) -> ProjectRetriever:
        """Return a copy with another mode, number of results, or settings of the project.

        `filters` apply in addition to the present ones.
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
        """Return a retriever that searches the same indexes more widely: five times the candidates, twice the results.

        The mode does not change: lexical mode must not send the question to an embedding API.
        """
        return self.changed(similarity_top_k=2 * self.similarity_top_k, candidates=5 * self._config.candidates)

    @property
    def config(self) -> ProjectConfig:
        """The settings of the project."""
        return self._config

    @property
    def embeds(self) -> bool:
        """Whether queries need the embedding model; they do not if only the lexical index is searched."""
        try:
            return self.mode != "lexical" and self._indexes.current().has_semantic
        except NoVersionError:
            return self._config.faiss

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the live version's chunks, which filters can use."""
        return self._indexes.current().docstore.metadata_keys()

    def docstore_of(self, version: str | None) -> SQLiteDocumentStore | None:
        """Return the document store of a version while it is live, or else None."""
        live = self._indexes.current()
        return live.docstore if live.name == version else None

    @reported
    def respond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        """Return the results with their evidence, and with `explain` the reasons for their order.

        Raises:
            InputError: The query is empty, or not a query.
            NoVersionError: Nothing has been ingested yet.
        """
        query, notes = bounded(bundle)

        def search(current: SearchableVersion) -> RetrievalResponse:
            retriever, mode, warnings = self._prepare(current)
            prepared = retriever.prepare(query)
            warnings += _embedding_notes(query, mode)
            return self._search(prepared, current, retriever, mode, warnings, explain=explain).respond()

        return _with_full_query(self._indexes.run(search), bundle, notes)

    @areported
    async def arespond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        """Asynchronous version of `respond`: awaits the query's embedding and ranks in a thread."""
        query, notes = await asyncio.to_thread(bounded, bundle)

        async def search(current: SearchableVersion) -> RetrievalResponse:
            retriever, mode, warnings = await asyncio.to_thread(self._prepare, current)
            prepared = await retriever.aprepare(query)
            warnings += await asyncio.to_thread(_embedding_notes, query, mode)
            candidates = await asyncio.to_thread(
                self._search, prepared, current, retriever, mode, warnings, explain=explain
            )
            return await candidates.arespond()

        return _with_full_query(await self._indexes.arun(search), bundle, notes)

    def respond_many(self, bundles: Sequence[QueryBundle]) -> list[RetrievalResponse]:
        """Return the results of several queries, in their order, all from one version."""
        # Check every query before anything is opened or paid for.
        checked = [bounded(bundle) for bundle in bundles]
        if not checked:
            return []

        def search(current: SearchableVersion) -> list[RetrievalResponse]:
            retriever, mode, warnings = self._prepare(current)
            prepared = retriever.prepare_many([query for query, _ in checked])
            return [
                self._search(one, current, retriever, mode, [*warnings, *_embedding_notes(query, mode)]).respond()
                for one, (query, _) in zip(prepared, checked, strict=True)
            ]

        notes = [notes for _, notes in checked]
        return list(map(_with_full_query, self._indexes.run(search), bundles, notes))

    def retrieve_many(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """Return the nodes of several queries, in their order."""
        return [[*response.results] for response in self.respond_many(as_bundles(queries))]

    def specificity(self, text: str) -> float | None:
        """Return how specific a text is among the chunks of the live version; see `specificity_of`."""
        return self._indexes.run(lambda current: current.lexical.specificity(text) if current.has_lexical else None)

    @property
    def analyzer(self) -> Analyzer:
        """The analyzer of the live version's lexical index; without this index, one for the project's language."""
        return self._indexes.run(
            lambda current: (
                current.lexical.lexical_index.analyzer if current.has_lexical else Analyzer(self._config.language)
            )
        )

    def _prepare(self, current: SearchableVersion) -> tuple[RankingRetriever, Mode, list[str]]:
        """Return the retriever, the mode that it answers in, and warnings if that is not the requested one."""
        mode, warnings = current.usable_mode(self.mode)
        for warning in warnings:
            logger.warning(warning)
        return current.retriever(mode, self._config), mode, warnings

    def _search(
        self,
        bundle: QueryBundle,
        current: SearchableVersion,
        retriever: RankingRetriever,
        mode: Mode,
        warnings: list[str],
        *,
        explain: bool = False,
    ) -> Candidates:
        added = self._added_forms(bundle.query_str)
        request = Request(
            k=self.similarity_top_k,
            filters=self.filters,
            explain=explain,
            reranker=self._indexes.rerankers.of(self._config),
            candidates=self._config.rerank_candidates,
            threshold=self._config.rerank_threshold,
            min_confidence=self._config.min_confidence,
            mode_requested=self.mode,
            mode_used=mode,
            warnings=warnings,
            version=current.name,
            slots=self._indexes.slots,
        )
        if not added:
            return search(bundle, retriever, request)
        expanded = bundle
        for text, weight in added.items():
            expanded = with_terms(expanded, [text], weight)
        blend = QueryBlend(lexical=getattr(expanded, "lexical_texts", ()))
        return replace(search(expanded, retriever, request), blend=blend)

    def _get_prompt_modules(self) -> PromptMixinType:
        """Return the LLM that reranks: its prompt applies to all searches of the project."""
        reranker = self._indexes.rerankers.of(self._config) if self._config.rerank == LLM_RERANK else None
        return {"reranker": reranker} if isinstance(reranker, LLMReranker) else {}

    def _added_forms(self, question: str) -> dict[str, float]:
        """Return the forms of acronyms that a question lacks, with the weight of each of their terms.

        A form means the same as the one in the question, so its terms together weigh as much as one term of it.
        """
        if not self._config.acronym_table:
            return {}
        added = Acronyms(self._config.acronym_table).added_to(question)
        return {text: round(1 / max(1, len(re.findall(r"\w+", text))), 3) for text in added}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [*self.respond(query_bundle).results]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [*(await self.arespond(query_bundle)).results]


def _embedding_notes(bundle: QueryBundle, mode: Mode) -> list[str]:
    """Return a warning for each text of the query that is too long to be embedded completely."""
    if mode == "lexical" or bundle.embedding is not None:
        return []
    lengths = [(len(cut_to_input(text)), len(text)) for text in bundle.embedding_strs]
    return [
        f"The query is longer than an embedding model accepts: only its beginning, {limit:,} characters, was embedded."
        for limit, length in lengths
        if limit < length
    ]


def _with_full_query(response: RetrievalResponse, bundle: QueryBundle, notes: Sequence[str]) -> RetrievalResponse:
    """Return the response to a shortened query with the full query and the warnings about it."""
    return replace(with_warnings(response, notes), query=bundle.query_str) if notes else response


class LiveIndexes:
    """The indexes of a project's live version; a new version is used from the next query on.

    Args:
        project_dir: Directory of the project.
        name: Name of the project, for messages.
        load_embed_model: Loads the model that embeds queries, given the setting that a version was built with, and
            the name of the model that built it.
        load_llm: Loads the LLM for reranking, if the settings require it.
    """

    def __init__(
        self,
        project_dir: Path,
        name: str,
        load_embed_model: Callable[[str, str], BaseEmbedding],
        load_llm: Callable[[], LLM] | None = None,
    ) -> None:
        self.rerankers = Rerankers(load_llm)
        self.slots = _slots()
        self._project_dir = project_dir
        self._name = name
        self._load_embed_model = load_embed_model
        self._lock = new_lock()
        self._opened: SearchableVersion | None = None
        self._stamp: Stamp | None = None
        self._embedder: QueryEmbedder | None = None
        renewed(self)

    def renew_after_fork(self) -> None:
        """Release all slots in a forked child, where the threads that acquired them do not exist."""
        self.slots = _slots()

    def __reduce__(self) -> NoReturn:
        root, name = str(self._project_dir.parent), self._project_dir.name
        raise InputError(
            f"A project and its retrievers and engines cannot be pickled or copied: open the project again where you"
            f" need it, with ProjectManager({root!r}).load({name!r})."
        )

    def current(self) -> SearchableVersion:
        """Return the indexes of the live version.

        A version that is no longer live is dropped; its files are closed when the last query that uses it ends.

        Raises:
            NoVersionError: Nothing has been ingested yet.
        """
        while True:
            with self._lock:
                stamp = read_stamp(self._project_dir)
                if self._opened is not None and stamp == self._stamp:
                    return self._opened
                former, self._opened, self._stamp = self._opened, None, None  # its parts stay open for the next version
                name = parse_current(self._project_dir, stamp).live
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
                    opened = SearchableVersion(version_directory(self._project_dir, name), self._load_embed_model)
                except (CorruptVersionError, OSError):
                    if read_stamp(self._project_dir) == stamp:
                        raise
                    continue  # a writer has published another version and removed this one
                opened.embedder_of = self._embedder_of
                self._opened, self._stamp = opened, stamp
                del former
                return opened

    def _embedder_of(self, model: BaseEmbedding) -> QueryEmbedder:
        """Return an embedder whose cache all versions share that are searched with the same model."""
        if self._embedder is None or self._embedder.model is not model:
            self._embedder = QueryEmbedder(model)
        return self._embedder

    def run(self, query: Callable[[SearchableVersion], T]) -> T:
        """Run a query on the live version, and again on the next one if a writer removes its files during the query."""
        while True:
            current = self.current()
            try:
                return query(current)
            except _FILES_REMOVED:
                if not self._is_superseded(current):
                    raise

    async def arun(self, query: Callable[[SearchableVersion], Awaitable[T]]) -> T:
        """Asynchronous version of `run`."""
        while True:
            current = await asyncio.to_thread(self.current)
            try:
                return await query(current)
            except _FILES_REMOVED:
                if not self._is_superseded(current):
                    raise

    def _is_superseded(self, current: SearchableVersion) -> bool:
        """Return whether another version has become live, so that the files of this one may have been removed."""
        with self._lock:
            return self._opened is not current or read_stamp(self._project_dir) != self._stamp


class PinnedIndexes(LiveIndexes):
    """The indexes of one version, for a call of several steps that must all see the same documents.

    Use it inside `LiveIndexes.run` or `arun`, which repeats the call if the version is removed meanwhile.

    Args:
        live: The indexes of the project.
        version: The version to search.
    """

    def __init__(self, live: LiveIndexes, version: SearchableVersion) -> None:
        self.__dict__.update(live.__dict__)
        self._version = version

    def current(self) -> SearchableVersion:
        """Return the version."""
        return self._version

    def _is_superseded(self, current: SearchableVersion) -> bool:
        return False


def _slots() -> threading.BoundedSemaphore:
    """Return a semaphore that limits how many threads rank at the same time.

    They compete for the interpreter: more threads than cores answer fewer queries.
    """
    return threading.BoundedSemaphore((os.cpu_count() or 1) + 1)


class SearchableVersion(OpenVersion):
    """A published version with its indexes, each opened when it is first used.

    Args:
        directory: versions/<name> of a project.
        load_embed_model: Loads the model that embeds queries, given the setting that the version was built with, and
            the name of the model that built it.

    Raises:
        CorruptVersionError: A file is damaged or missing, or belongs to another version.
        FormatError: The version was written by a newer release.
    """

    def __init__(self, directory: Path, load_embed_model: Callable[[str, str], BaseEmbedding]) -> None:
        super().__init__(directory)
        self._load_embed_model = load_embed_model
        self._lock = new_rlock()
        self._hybrid: tuple[tuple[Any, ...], HybridRetriever] | None = None
        self.embedder_of: Callable[[BaseEmbedding], QueryEmbedder] = QueryEmbedder

    @cached_property
    def index(self) -> VectorStoreIndex:
        """The version as a LlamaIndex index.

        Raises:
            ConfigurationError: The version has no semantic index, or was built with another embedding model.
        """
        if not self.has_semantic:
            raise ConfigurationError(
                "This version has no semantic index",
                setting="faiss",
                remedy=Remedy(
                    "create the project with faiss=True",
                    "run `llama-index-contextual configure {project} faiss=true`, then `rebuild`",
                ),
            )
        model = self.embed_model
        # Without transformations LlamaIndex creates a SentenceSplitter and loads its tokenizer: half a second for
        # something that an index which never changes does not use.
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
            ConfigurationError: The project is loaded with another model, or without the object that built the index.
            ModelError: The model cannot be loaded, for example because a key or a package is missing.
        """
        setting = self.manifest.config["embed_model"]
        model = self._load_embed_model(setting, self.manifest.embed_model or setting)
        if not is_same_model(self.manifest.embed_model, model_name(model)):
            raise ConfigurationError(
                f"The index was built with the embedding model {self.manifest.embed_model!r}, the project is"
                f" loaded with {model_name(model)!r}: load it with the former, or create a new project for the latter.",
                setting="embed_model",
            )
        return model

    @cached_property
    def semantic(self) -> SemanticRetriever:
        """The semantic retriever."""
        return SemanticRetriever(self.index, embedder=self.embedder_of(self.embed_model))

    @cached_property
    def lexical(self) -> LexicalRetriever:
        """The lexical retriever."""
        if self.is_remote:
            # Imported here, because a version in files needs none of it.
            from llama_index_contextual.retrievers.remote import RemoteLexicalIndex, RemoteLexicalRetriever

            analyzer = Analyzer(self.manifest.config["language"], has_periods=True)
            chunks: Any = self.docstore
            return RemoteLexicalRetriever(RemoteLexicalIndex(analyzer, self.parts), chunks)
        return LexicalRetriever(self._terms(BM25_DIRECTORY), self.docstore)

    @cached_property
    def documents(self) -> DocumentLeg | None:
        """The index of documents; None if the version has no lexical index."""
        if not self.has_lexical:
            return None
        return DocumentLeg(DocumentIndex(self._terms(DOCUMENTS_DIRECTORY), self._documents_of_rows()), self.docstore)

    def _terms(self, name: str) -> LexicalIndex:
        """Return the index with the given name over all parts."""
        parts = []
        for part in self.parts:
            of_chunks = name == BM25_DIRECTORY
            texts = len(part.document_of) if of_chunks else int(np.count_nonzero(part.chunks_of))
            counts = part.shared(name, functools.partial(TermCounts.load, part.directory / name, texts))
            parts.append((counts, part.live if of_chunks else part.live_entries))
        return LexicalIndex(Analyzer(self.manifest.config["language"], has_periods=True), parts)

    def _documents_of_rows(self) -> NDArray[np.int32]:
        """Return for each row the number of its document among the documents with chunks."""
        of_parts = (
            part.chunks_of if part.live_documents is None else part.chunks_of[part.live_documents]
            for part in self.parts
        )
        sizes = np.concatenate([np.zeros(0, dtype=np.int64), *of_parts])
        sizes = sizes[sizes > 0]
        return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)

    @cached_property
    def metadata_values(self) -> Mapping[str, Sequence[str | int | float]]:
        """The distinct values of the user's own metadata keys, by key; a filter can ask for them."""
        return self.docstore.metadata_values(skip=(*keys.OWN_KEYS, *keys.RESERVED_KEYS))

    def retriever(self, mode: Mode, config: ProjectConfig) -> RankingRetriever:
        """Return the retriever for a mode that the version supports."""
        with self._lock:  # the first query opens the files
            if mode == "semantic":
                return self.semantic
            if mode == "lexical":
                return self.lexical
            settings = tuple(getattr(config, name) for name in _FUSION_FIELDS)
            if self._hybrid is None or self._hybrid[0] != settings:
                self._hybrid = settings, self._make_hybrid(config)
            return self._hybrid[1]

    def _make_hybrid(self, config: ProjectConfig) -> HybridRetriever:
        return HybridRetriever(
            [self.semantic, self.lexical],
            retriever_weights=[config.semantic_weight, config.lexical_weight],
            candidates=config.candidates,
            fusion=config.fusion,
            rrf_k=config.rrf_k,
            documents=self.documents if config.document_weight or config.sibling_weight else None,
            document_weight=config.document_weight,
            sibling_weight=config.sibling_weight,
            document_idf=config.document_idf,
        )

    def usable_mode(self, requested: Mode) -> tuple[Mode, list[str]]:
        """Return the requested mode if the version supports it, or else another one and a warning."""
        has: dict[str, bool] = {"semantic": self.has_semantic, "lexical": self.has_lexical}
        if requested == "hybrid" and all(has.values()):
            return requested, []
        if has.get(requested):
            return requested, []
        used: Mode = "semantic" if has["semantic"] else "lexical"
        missing = " and ".join(name for name, exists in has.items() if not exists)
        return used, [f"Mode {requested!r} was requested, but there is no {missing} index: answered with {used!r}."]


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of one search in one version.

    Attributes:
        k: Number of results.
        filters: Only chunks that pass are ranked.
        explain: Whether to explain the order of the results.
        reranker: Reorders the best hits; None leaves them as they are ranked.
        candidates: Number of hits passed to the reranker.
        threshold: Probability of the reranker below which hits are dropped; None keeps all.
        mode_requested: Mode that was requested.
        mode_used: Mode that is used.
        warnings: Sentences about differences from the request.
        version: Name of the version.
        min_confidence: Limit of the level "low"; None uses the usual one.
        slots: Semaphore that limits how many searches rank at the same time.
    """

    k: int
    filters: MetadataFilters | None
    explain: bool
    reranker: Reranker | None
    candidates: int
    threshold: float | None
    mode_requested: Mode
    mode_used: Mode
    warnings: Sequence[str]
    version: str
    min_confidence: float | None
    slots: AbstractContextManager[object]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The best hits of a search, which the reranker of the request, if any, puts in order.

    Attributes:
        bundle: The question.
        request: Options of the search.
        hits: The best hits, in order.
        judgement: Relevances and confidence, if both indexes were searched.
        warnings: Sentences about differences from the request.
        explanations: The reasons for the order of the results; only on request.
        near_misses: Those of the next hits.
        blend: The texts that were searched, if they differ from the question; or None.
    """

    bundle: QueryBundle
    request: Request
    hits: Sequence[RetrievedChunk]
    judgement: Judgement | None
    warnings: Sequence[str]
    explanations: Sequence[Explanation] = ()
    near_misses: Sequence[Explanation] = ()
    blend: QueryBlend | None = None

    def respond(self) -> RetrievalResponse:
        """Rerank the hits if requested, and return the response."""
        reranker = self.request.reranker
        if reranker is None:
            return self._response()
        return self._reranked(reranker.rerank(self.bundle, self.hits, threshold=self.request.threshold))

    async def arespond(self) -> RetrievalResponse:
        """Respond like `respond`, without blocking the event loop."""
        reranker = self.request.reranker
        if reranker is None:
            return self._response()
        return self._reranked(await reranker.arerank(self.bundle, self.hits, threshold=self.request.threshold))

    def _reranked(self, reranked: Reranked) -> RetrievalResponse:
        """Return the response with the hits in the order of the reranker."""
        warnings, judgement = [*self.warnings, *reranked.warnings], self.judgement
        if self.hits and not reranked.hits:
            warnings.append(
                f"The reranker dropped all {len(self.hits)} hits: none has a probability of at least"
                f" {self.request.threshold:g}, the setting `rerank_threshold`."
            )
            judgement = judgement and Judgement((), 0.0, "none")
        explanations, near_misses = self.explanations, self.near_misses
        if self.request.explain:
            explanations, near_misses = explain_reranked([*explanations, *near_misses], reranked, self.request.k)
        hits = [hit.model_copy(update={"rank": rank}) for rank, hit in enumerate(reranked.hits, start=1)]
        return replace(
            self,
            hits=hits,
            judgement=judgement,
            warnings=warnings,
            explanations=explanations,
            near_misses=near_misses,
        )._response()

    def _response(self) -> RetrievalResponse:
        request, judgement = self.request, self.judgement
        return RetrievalResponse(
            query=self.bundle.query_str,
            mode_requested=request.mode_requested,
            mode_used=request.mode_used,
            warnings=tuple(self.warnings),
            results=tuple(self.hits[: request.k]),
            confidence=None if judgement is None else judgement.confidence,
            confidence_level=None if judgement is None else judgement.level,
            version=request.version,
            blend=self.blend,
            explanations=tuple(self.explanations),
            near_misses=tuple(self.near_misses[:NEAR_MISSES]),
        )


def search(bundle: QueryBundle, retriever: RankingRetriever, request: Request) -> Candidates:
    """Rank, fetch and judge the best hits for a query, and explain them if requested."""
    k = max(request.k, request.candidates) if request.reranker is not None else request.k
    count = k + NEAR_MISSES if request.explain else k
    # A fused ranking has more than k hits anyway, and asking for more could change it. That of a single index has as
    # many for every k, so that the probabilities do not depend on k.
    with request.slots:
        ranking = retriever.rank(bundle, k if request.mode_used == "hybrid" else max(RANKED, count), request.filters)
        evidence = ranking.evidence(max(JUDGED, count))
        hits = retriever.fetch(ranking, max(READ, count), evidence)
        judgement = judge(
            ranking,
            evidence,
            hits,
            question=bundle.query_str,
            is_filtered=request.filters is not None,
            low=request.min_confidence,
        )
    hits = hits[:count]
    for hit, relevance in zip(hits, judgement.relevances if judgement else (), strict=False):
        hit.relevance = relevance
    explanations, near_misses = explain(ranking, hits, request.k) if request.explain else ([], [])
    return Candidates(
        bundle=bundle,
        request=request,
        hits=hits[:k],
        judgement=judgement,
        warnings=[*request.warnings, *(warning for leaf in ranking.leaves() for warning in leaf.warnings)],
        explanations=explanations,
        near_misses=near_misses,
    )
