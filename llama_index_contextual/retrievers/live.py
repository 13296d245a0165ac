"""The indexes of one version, each opened when it is first used."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.loading import load_index_from_storage
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

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
)
from llama_index_contextual.models import is_same_model, model_name
from llama_index_contextual.retrievers.acronyms import Acronyms, find_acronyms
from llama_index_contextual.retrievers.base import (
    CheckedRetriever,
    Hit,
    RankingRetriever,
    areported,
    reported,
    with_terms,
)
from llama_index_contextual.retrievers.bm25 import LexicalIndex
from llama_index_contextual.retrievers.confidence import JUDGED, Judgement, judge
from llama_index_contextual.retrievers.documents import DocumentIndex, DocumentLeg
from llama_index_contextual.retrievers.explain import NEAR_MISSES, explain
from llama_index_contextual.retrievers.hybrid import HybridRetriever
from llama_index_contextual.retrievers.lexical import LexicalRetriever
from llama_index_contextual.retrievers.queries import (
    as_bundles,
    bounded,
    require_positive,
    with_warnings,
)
from llama_index_contextual.retrievers.rerank import Reranked, Reranker, Rerankers
from llama_index_contextual.retrievers.response import Explanation, QueryBlend, RetrievalResponse, RetrievedChunk
from llama_index_contextual.retrievers.semantic import SemanticRetriever
from llama_index_contextual.storage.current import Stamp, parse_current, read_stamp, version_directory
from llama_index_contextual.storage.docstore import SQLiteDocumentStore
from llama_index_contextual.storage.filters import require_filters
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


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a version.

    Attributes:
        k: Results.
        filters: Only chunks that pass count.
        explain: Whether to say why.
        reranker: Looks again at the best hits, or None.
        candidates: Hits that the reranker looks at.
        mode_requested: Which indexes were asked for.
        mode_used: Which indexes answer.
        warnings: About what differs from what was asked for.
        version: Name of the version.
        turns: Bounds how many rank at once.
    """

    k: int
    filters: MetadataFilters | None
    explain: bool
    reranker: Reranker | None
    candidates: int
    mode_requested: Mode
    mode_used: Mode
    warnings: Sequence[str]
    version: str
    turns: AbstractContextManager[object]


def respond(bundle: QueryBundle, retriever: RankingRetriever, request: Request) -> RetrievalResponse:
    """Return the answer of a retriever to a query."""
    k = max(request.k, request.candidates) if request.reranker is not None else request.k
    shown = k + NEAR_MISSES if request.explain else k
    # A fused ranking has more than k hits anyway, and asking for more could change it.
    with request.turns:
        trace = retriever.trace(bundle, k if request.mode_used == "hybrid" else shown, request.filters)
        evidence = trace.evidence(max(JUDGED, shown))
        found = retriever.fetch(trace, shown, evidence)
        judgement = judge(trace, evidence)
    relevances = [None] * len(found) if judgement is None else judgement.relevances
    warnings = [*request.warnings, *(warning for leaf in trace.leaves() for warning in leaf.warnings)]
    order = [Reranked(at, hit.score) for at, hit in enumerate(found[:k])]
    if request.reranker is not None:
        order = request.reranker.order(bundle, found[:k])
        if found and not order:
            warnings.append(f"The reranker {request.reranker.name!r} has left out all {len(found[:k])} hits.")
            judgement = judgement and Judgement((), 0.0)
    explanations: list[Explanation] = []
    near_misses: list[Explanation] = []
    if request.explain:
        explanations, near_misses = explain(trace, found, request.k)
        if request.reranker is not None:
            explanations, near_misses = _reranked([*explanations, *near_misses], order, request.k)
    return RetrievalResponse(
        query=bundle.query_str,
        mode_requested=request.mode_requested,
        mode_used=request.mode_used,
        warnings=tuple(warnings),
        results=tuple(
            _chunk(rank, found[hit.at], hit.score, relevances[hit.at])
            for rank, hit in enumerate(order[: request.k], start=1)
        ),
        confidence=None if judgement is None else judgement.confidence,
        confidence_level=None if judgement is None else judgement.level,
        version=request.version,
        explanations=tuple(explanations),
        near_misses=tuple(near_misses[:NEAR_MISSES]),
    )


def _chunk(rank: int, hit: Hit, score: float, relevance: float | None) -> RetrievedChunk:
    return RetrievedChunk.made(rank, hit.node, score, hit.evidence, relevance)


def _reranked(
    explained: Sequence[Explanation], order: Sequence[Reranked], k: int
) -> tuple[list[Explanation], list[Explanation]]:
    """Return the explanations in the reranker's order, with its score, and those that it put behind the results."""
    moved = []
    for rank, hit in enumerate(order, start=1):
        one = explained[hit.at]
        why_not = None if rank <= k else f"the reranker's {hit.score:.4f} is less than {order[k - 1].score:.4f}"
        arithmetic = f"{one.arithmetic}; reranked from {one.rank} by {hit.score:.4f}"
        moved.append(replace(one, rank=rank, score=hit.score, arithmetic=arithmetic, why_not=why_not))
    return moved[:k], moved[k:]


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
