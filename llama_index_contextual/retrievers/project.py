"""Retriever that searches the live version of a project, for any LlamaIndex engine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, cast, get_args

from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, QueryType
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual._utils.tokens import count_tokens
from llama_index_contextual.config import SPOTLIGHT, MinRelevance, Mode, ProjectConfig
from llama_index_contextual.errors import InputError, NoVersionError
from llama_index_contextual.index.analysis import Analyzer
from llama_index_contextual.index.languages import analyzer_of, in_main_language, languages_of
from llama_index_contextual.retrievers.base import CheckedRetriever, as_bundles, limit_query, query_of, with_events
from llama_index_contextual.search.filters import Filters, to_filters
from llama_index_contextual.search.live import LiveIndexes, SearchableVersion
from llama_index_contextual.search.rerank import LLM_RERANK, LLMReranker
from llama_index_contextual.search.response import SearchResponse, Standing, mark_superseded
from llama_index_contextual.search.results import RetrievalResponse, RetrievedChunk
from llama_index_contextual.search.search import (
    Candidates,
    SearchSettings,
    complete_response,
    find_candidates,
    find_standing,
    number_of_results,
    require_positive,
    require_relevance,
    search,
    usable_mode,
)


class ProjectRetriever(CheckedRetriever):
    """A retriever for the live version of a project, for any LlamaIndex engine.

    Args:
        indexes: The indexes of the project's live version.
        config: Settings of the project, such as the fusion weights.
        mode: Indexes to search; None uses `config.mode`.
        similarity_top_k: Number of results; None uses `config.top_k`.
        top_k: The same as `similarity_top_k`.
        filters: Filters in any form; see `to_filters`. In each index, only chunks that pass them are ranked.
        min_relevance: Limit for the relevance; the results end with the last hit that reaches it, and the hits after it
            are in the response's `folded`. None returns all results; "auto" uses the project's `min_relevance`.
        max_tokens: Maximum number of tokens in the nodes that `retrieve` returns, as an LLM reads them; at least one
            node is returned. None has no limit.
    """

    def __init__(
        self,
        indexes: LiveIndexes,
        config: ProjectConfig,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
        min_relevance: MinRelevance = None,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self._indexes = indexes
        self._config = config
        self.mode: Mode = config.mode if mode is None else mode
        if self.mode not in get_args(Mode):
            raise InputError(f"Mode {self.mode!r} is unknown: use semantic, lexical or hybrid.", value=mode)
        self.similarity_top_k = require_positive(number_of_results(similarity_top_k, top_k, config.top_k))
        self.filters = to_filters(filters)
        self.min_relevance = require_relevance(min_relevance)
        self.max_tokens = None if max_tokens is None else require_positive(max_tokens, "max_tokens", "token")

    def changed(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: Filters | None = None,
        min_relevance: MinRelevance = None,
        **settings: Any,
    ) -> ProjectRetriever:
        """Return a copy with another mode, another number of results, another `min_relevance`, or other settings.

        `filters` apply in addition to the existing filters.
        """
        parts = [part for part in (self.filters, to_filters(filters)) if part is not None]
        return ProjectRetriever(
            self._indexes,
            self._config.changed(**settings) if settings else self._config,
            mode=self.mode if mode is None else mode,
            similarity_top_k=self.similarity_top_k if similarity_top_k is None else similarity_top_k,
            filters=MetadataFilters(filters=list(parts)) if len(parts) == 2 else next(iter(parts), None),
            min_relevance=self.min_relevance if min_relevance is None else min_relevance,
            max_tokens=self.max_tokens,
        )

    def with_more_results(self) -> ProjectRetriever:
        """Return a retriever for the same indexes with twice the number of results.

        The mode does not change, because in lexical mode, the question must not be sent to an embedding API.
        """
        return self.changed(similarity_top_k=2 * self.similarity_top_k)

    @property
    def config(self) -> ProjectConfig:
        """The settings of the project."""
        return self._config

    @property
    def embeds(self) -> bool:
        """True if queries need the embedding model; False if only the lexical index is searched."""
        try:
            return self.mode != "lexical" and self._indexes.current().has_semantic
        except NoVersionError:
            return self._config.builds_semantic

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the live version's chunks, for use in filters."""
        return self._indexes.current().docstore.metadata_keys()

    def metadata_values(self, *, skip: Sequence[str] = ()) -> dict[str, list[str | int | float]]:
        """Return the sorted distinct values of each metadata key of the live version, except the keys in `skip`."""
        return self._indexes.current().docstore.metadata_values(skip=skip)

    @with_events
    def respond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        """Return the results with their evidence and, if `explain` is set, the reasons for their order.

        Raises:
            InputError: The query is empty.
            NoVersionError: Nothing has been ingested yet.
        """
        return self._respond(bundle, explain=explain)

    @with_events
    async def arespond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        """Asynchronous version of `respond`, which does not block the event loop."""
        return await self._arespond(bundle, explain=explain)

    # Without events, which `retrieve` and `aretrieve` send themselves.
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._fitting(self._respond(query_bundle).results)

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._fitting((await self._arespond(query_bundle)).results)

    def _fitting(self, results: Sequence[RetrievedChunk]) -> list[NodeWithScore]:
        """Return the first results, up to the first one that exceeds `max_tokens`."""
        if self.max_tokens is None:
            return [*results]
        sizes = (count_tokens(result.node.get_content(metadata_mode=MetadataMode.LLM)) for result in results)
        totals = zip(results, accumulate(sizes), strict=True)
        fitting = [result for result, _ in takewhile(lambda pair: pair[1] <= cast(int, self.max_tokens), totals)]
        return [*(fitting or results[:1])]

    def _respond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        candidates, superseded, notes = self._find_candidates(bundle, explain=explain)
        return _as_response(candidates.respond(), superseded, bundle, notes)

    async def _arespond(self, bundle: QueryBundle, *, explain: bool = False) -> RetrievalResponse:
        # Everything except an LLM that reranks runs in a single call in a thread, because each change of threads takes
        # time. This includes the embedding: all loops and threads share the connections of the blocking client.
        if self._config.rerank != LLM_RERANK:
            return await asyncio.to_thread(self._respond, bundle, explain=explain)
        candidates, superseded, notes = await asyncio.to_thread(self._find_candidates, bundle, explain=explain)
        return _as_response(await candidates.arespond(), superseded, bundle, notes)

    def _find_candidates(
        self, bundle: QueryBundle, *, explain: bool
    ) -> tuple[Candidates, Mapping[str, str], tuple[str, ...]]:
        """Return the best hits before a model reranks them, the superseded documents, and a warning if it was cut."""
        query, notes = limit_query(bundle)

        def find(version: SearchableVersion) -> tuple[Candidates, Mapping[str, str]]:
            settings = self._search_settings(version, explain=explain)
            candidates = find_candidates(query_of(query), version.index, settings, **self._models(version))
            return candidates, version.docstore.superseded

        return *self._indexes.run(find), notes

    def why_not(self, bundle: QueryBundle, ids: Collection[str]) -> Standing:
        """Return where the best of the given chunks stands in the ranking of a question, and what it lacks.

        A model that reranks is not asked.

        Args:
            bundle: The question.
            ids: Ids of the chunks.

        Raises:
            InputError: The question is empty.
            NoVersionError: Nothing has been ingested yet.
        """
        query, _ = limit_query(bundle)

        def find(version: SearchableVersion) -> Standing:
            settings = self._search_settings(version)
            mode, _ = usable_mode(version.index, self.mode)
            embedder = None if mode == "lexical" else version.embedder
            return find_standing(query_of(query), version.index, settings, ids, embedder=embedder)

        return self._indexes.run(find)

    def respond_many(self, bundles: Sequence[QueryBundle]) -> list[RetrievalResponse]:
        """Run several queries on the same version, and return their results in the order of the queries."""
        # Check every query before files are opened and before an API is called.
        queries = [limit_query(bundle) for bundle in bundles]

        def run(version: SearchableVersion) -> list[SearchResponse]:
            settings, models = self._search_settings(version), self._models(version)
            if (embedder := models["embedder"]) is not None:
                # Embed all questions now, so that the calls are concurrent; `search` finds the vectors in the cache.
                embedder.embed_many([query.embedding_strs for query, _ in queries if query.embedding is None])
            superseded = version.docstore.superseded
            return [
                mark_superseded(search(query_of(query), version.index, settings, **models), superseded)
                for query, _ in queries
            ]

        if not queries:
            return []
        responses = zip(self._indexes.run(run), bundles, queries, strict=True)
        return [_as_response(response, {}, bundle, notes) for response, bundle, (_, notes) in responses]

    def retrieve_many(self, queries: Sequence[QueryType]) -> list[list[NodeWithScore]]:
        """Return the results of several queries as LlamaIndex nodes, in the order of the queries."""
        return [[*response.results] for response in self.respond_many(as_bundles(queries))]

    def specificity(self, text: str) -> float | None:
        """Return the specificity of a text among the chunks of the live version; see `specificity_of`."""

        def measure(version: SearchableVersion) -> float | None:
            lexical = version.index.lexical
            return None if lexical is None else lexical.specificity(text)

        return self._indexes.run(measure)

    @property
    def analyzer(self) -> Analyzer:
        """The analyzer of the live version's lexical index.

        Without such an index, this is a new analyzer for the languages of the documents.
        """

        def find(version: SearchableVersion) -> Analyzer:
            lexical = version.index.lexical
            return analyzer_of(list(languages_of(version.records))) if lexical is None else lexical.analyzer

        return self._indexes.run(find)

    def _search_settings(self, version: SearchableVersion, *, explain: bool = False) -> SearchSettings:
        # Created for each query, because `mode`, `similarity_top_k` and `filters` can be changed at any time.
        return SearchSettings.of(
            self._config,
            mode=self.mode,
            k=self.similarity_top_k,
            filters=version.resolved(to_filters(self.filters)),
            min_relevance=self.min_relevance,
            explain=explain,
        )

    def _models(self, version: SearchableVersion) -> dict[str, Any]:
        """Return the keyword arguments for `search` that depend on the version or the models."""
        mode, _ = usable_mode(version.index, self.mode)
        name = self._config.rerank
        choice = (
            None
            if name in (None, SPOTLIGHT)
            else self._indexes.versions.rerankers.of(name, in_main_language(self._config, version.records))
        )
        return {
            "embedder": None if mode == "lexical" else version.embedder,
            "reranker": None if choice is None else choice.reranker,
            "rerank_reason": "" if choice is None else choice.reason,
            "turn": self._indexes.versions.turn,
            "version": version.name,
        }

    def _get_prompt_modules(self) -> PromptMixinType:
        """Return the LLM reranker, whose prompt applies to all searches of the project."""
        is_llm = self._config.rerank == LLM_RERANK
        reranker = self._indexes.versions.rerankers.of(LLM_RERANK, self._config).reranker if is_llm else None
        return {"reranker": reranker} if isinstance(reranker, LLMReranker) else {}


def _as_response(
    response: SearchResponse, superseded: Mapping[str, str], bundle: QueryBundle, notes: Sequence[str]
) -> RetrievalResponse:
    marked = mark_superseded(response, superseded)
    return RetrievalResponse.of(complete_response(marked, bundle.query_str, notes))
