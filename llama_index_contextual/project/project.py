"""A single knowledge base: documents, search, engines and maintenance.

`Project` is the interface to a directory created by `ProjectManager`. Each method calls a function in a lower layer
with the project's state, which contains its settings, models and live version. Less common operations are functions:
`compare_variants`, `sweep_variants` and `sweep_answers` in `evaluation.compare` and `evaluate_steps` in
`evaluation.steps` take a project, and `evaluation.questions.generate_questions` takes its `live_version`.

Every method that reads or writes files has an async version with the same signature, whose name begins with "a"; `twin`
derives one version from the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, TypedDict, Unpack, cast, overload

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import BaseNode, Document, QueryType
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.tools import FunctionTool

from llama_index_contextual._utils.calls import run_to_completion, twin
from llama_index_contextual._utils.files import explains_limit
from llama_index_contextual._utils.keywords import accepts, suggests_attributes
from llama_index_contextual.answering.build import (
    ChatEngineOptions,
    EngineBuilder,
    EngineOptions,
    Intents,
    by_intent,
)
from llama_index_contextual.answering.chat_engine import ChatMode, GroundedChatEngine
from llama_index_contextual.answering.query_engine import AnswerCache
from llama_index_contextual.answering.response import AnswerAccount, GroundedResponse
from llama_index_contextual.config import MinRelevance, Mode, ProjectConfig
from llama_index_contextual.embeddings.languages import unknown_languages
from llama_index_contextual.errors import CorruptVersionError, FormatError, InputError, NoVersionError
from llama_index_contextual.index.derived import has_outdated_edition
from llama_index_contextual.index.filters import restricting_filters
from llama_index_contextual.index.languages import in_main_language, languages_of
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger, LedgerInfo
from llama_index_contextual.index.manifest import DocumentRecord, read_manifest
from llama_index_contextual.index.project_file import require_existing, write_lock
from llama_index_contextual.index.verify import ForgetReport, VerifyReport, repair_project, verify_project
from llama_index_contextual.index.versions import current_name, rollback, version_directory, version_names
from llama_index_contextual.ingestion import changes, run
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate_ingest
from llama_index_contextual.ingestion.options import (
    FolderOptions,
    IngestOptions,
    ReadingOptions,
    RunOptions,
    SourceOptions,
    SyncOptions,
    WritingOptions,
)
from llama_index_contextual.ingestion.plan import IngestInput, as_inputs
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress
from llama_index_contextual.ingestion.state import ProjectState
from llama_index_contextual.money.receipt import ProjectCost
from llama_index_contextual.retrievers.base import as_bundle, as_bundles
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.filters import Filters, documents_named, to_filters
from llama_index_contextual.search.live import SearchableVersion
from llama_index_contextual.search.response import RerankerChoice, Standing
from llama_index_contextual.search.results import RetrievalResponse
from llama_index_contextual.stores import export_version
from llama_index_contextual.tools.document_tools import DocumentTools, describe_documents, function_tools, search_tool


class SearchOptions(TypedDict, total=False):
    """Options for a search.

    Attributes:
        mode: "semantic", "lexical" or "hybrid"; None uses `config.mode`. If the index of a mode is missing, the other
            one is searched, with a warning in the response.
        top_k: Number of results, as `similarity_top_k`, LlamaIndex's word; None uses `config.top_k`.
        similarity_top_k: The same.
        filters: Conditions on fields, such as {'kind': 'report'} or "year>=2023", applied in every index before
            ranking; see `to_filters`.
        min_relevance: Limit for the relevance; the results end with the last hit that reaches it, and the hits after it
            are in the response's `folded`. None returns all results; "auto" uses the project's `min_relevance`.
    """

    mode: Mode | None
    top_k: int | None
    similarity_top_k: int | None
    filters: Filters | None
    min_relevance: MinRelevance


class AskOptions(EngineOptions, total=False):
    """Options for an answer.

    Attributes:
        llm: LLM that writes the answer; None uses the project's LLM.
        mode: As in `retrieve`.
        top_k: Number of search results that the LLM reads; None uses `config.top_k`.
        filters: As in `retrieve`.
    """

    llm: LLM | None
    mode: Mode | None
    top_k: int | None
    filters: Filters | None


@dataclass(frozen=True, kw_only=True)
class ProjectInfo:
    """Settings, size and cost of a project.

    Attributes:
        name: Name of the project.
        config: Settings of the project.
        version: Name of the live version, or None.
        documents: Number of documents in the live version.
        languages: Number of chunks in each language, the most frequent language first; "" if it is unknown.
        chunks: Number of chunks in the live version.
        fallback_chunks: Number of chunks that have only a structural context because the LLM failed to write a context.
            `retry_failed` retries these contexts, but refused contexts only with `max_cost`.
        unembedded_chunks: Number of chunks for which the embedding model returned no usable vector. They are found by
            their words only; `retry_failed` embeds them again.
        tokens: Number of tokens in the chunks; overlaps are counted twice.
        bytes: Size of the live version on disk.
        is_outdated: Whether derived data of the live version, such as the lexical index, were made by an earlier
            release; the next call that publishes a version, or `rebuild(derived=True)`, makes them again.
        ledger: Contexts and embeddings in the ledger.
        cost: Cost so far, in total and by run.
        reranker: The reranker of a search with these settings, and the reason; None if `rerank` is None. For
            `rerank="auto"`, the models on this machine are looked up, but not loaded.
        unknown_languages: Message about languages of the documents that the embedding model does not know, or None.
    """

    name: str
    config: ProjectConfig
    version: str | None
    documents: int
    languages: Mapping[str, int]
    chunks: int
    fallback_chunks: int
    unembedded_chunks: int
    tokens: int
    bytes: int
    ledger: LedgerInfo
    cost: ProjectCost
    reranker: RerankerChoice | None = None
    is_outdated: bool = False
    unknown_languages: str | None = None


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """One version of a project.

    Attributes:
        name: Name of the version.
        created: Time of publication (UTC, ISO 8601); None if its manifest cannot be read.
        documents: Number of documents; None if its manifest cannot be read.
        chunks: Number of chunks; None if its manifest cannot be read.
        live: Whether this version is used to answer queries.
        damage: Reason why its manifest cannot be read, with the remedy; None if the manifest can be read.
        package: Release of this package that wrote the version; None if its manifest cannot be read.
        automatic: Whether the version was published by `sync --watch` or another program that watches folders.
    """

    name: str
    created: str | None
    documents: int | None
    chunks: int | None
    live: bool
    damage: str | None = None
    package: str | None = None
    automatic: bool = False


_OTHER_NAMES = {
    **dict.fromkeys(("add", "add_documents", "add_files", "add_texts", "insert", "update", "upload"), "ingest(files)"),
    **dict.fromkeys(
        ("add_folder", "ingest_folder", "refresh", "refresh_ref_docs", "sync"),
        "sync_folders(folders), or sync_documents(documents, source)",
    ),
    **dict.fromkeys(("docs", "list_documents"), "documents()"),
    **dict.fromkeys(("count", "stats"), "info()"),
    **dict.fromkeys(("persist", "save"), "ingest(files), which writes the project to disk"),
    **dict.fromkeys(("invoke", "query"), "ask(question), or search(question) for passages"),
    **dict.fromkeys(("ainvoke", "aquery"), "aask(question), or asearch(question) for passages"),
    **dict.fromkeys(("similarity_search", "vector_search"), "search(question)"),
    "as_index": "index",
    "delete": "remove(doc_ids), or ProjectManager.delete(name) for the whole project",
    "delete_ref_doc": "remove(doc_ids)",
    "estimate_cost": "estimate(files)",
    "evaluate": "evaluate(project, questions) of llama_index_contextual.evaluation.run",
    "stream": "as_query_engine(streaming=True).query(question)",
}


@suggests_attributes(_OTHER_NAMES)
@explains_limit
class Project:
    """A single knowledge base, with its documents, contexts and indexes in its own directory.

    Projects are created and loaded by `ProjectManager`.

    Args:
        state: Directory, settings, models and live version of the project, for functions in lower layers.

    Attributes:
        created: Whether the project was created when it was opened; see `ProjectManager.get_or_create`.
    """

    def __init__(self, state: ProjectState) -> None:
        if not isinstance(state, ProjectState):
            raise TypeError(
                "A project is opened with ProjectManager(root).load(name), and created with create(name) or"
                " get_or_create(name)."
            )
        self.state = state
        self.created = False
        self._conversation: GroundedChatEngine | None = None

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"

    def __reduce__(self) -> NoReturn:
        self.state.live.__reduce__()

    @property
    def name(self) -> str:
        """Name of the project."""
        return self.state.name

    @property
    def directory(self) -> Path:
        """Directory of the project."""
        return self.state.directory

    @property
    def config(self) -> ProjectConfig:
        """The settings; `update_config` changes them."""
        return self.state.config

    @property
    def is_restricted(self) -> bool:
        """Whether this object contains only some of the documents; see `only`."""
        return self.state.is_restricted

    @property
    def _whole(self) -> ProjectState:
        """The state, for methods that change the project or describe it as a whole."""
        return self.state.whole()

    @property
    def embed_model(self) -> BaseEmbedding:
        """The embedding model.

        Raises:
            ModelError: The model cannot be loaded because of a missing key or package, or an unknown name.
        """
        return self.state.embed_model

    # ---- documents ---------------------------------------------------------------------------------------------------

    def documents(self) -> Sequence[DocumentRecord]:
        """Return the documents of the live version; empty before the first `ingest`."""
        try:
            return list(self.live_version.records)
        except NoVersionError:
            return ()

    def chunks(self, doc_id: str) -> list[BaseNode]:
        """Return the chunks of a document with their contexts, in the order of its text; empty for an unknown id."""
        return list(self.live_version.docstore.iterate(doc_id=doc_id))

    def read(self, doc_id: str, start: int = 0, end: int | None = None) -> str:
        """Return the original text of a document between two character offsets.

        Raises:
            InputError: There is no such document.
        """
        version = self.live_version
        record = version.record(doc_id)
        if record is None:
            raise InputError(f"Project {self.name!r} has no document {doc_id!r}.", value=doc_id)
        return version.read_text(record, start, end)

    def only(self, filters: Filters) -> Project:
        """Return a read-only project that contains only the documents that pass the filters.

        A document is visible if all its chunks pass the filters. Searches, answers, tools, stores, scores, counts and
        messages of the returned object do not depend on the other documents. Methods that change the project, or that
        describe it as a whole (`info`, `versions`, `cost`, `verify`, `export`, ...), raise InputError.

        For the most recently used filters, the visible documents and their vectors are kept in memory.

        Args:
            filters: A dict of keys and values, or MetadataFilters. A document without a key passes `!=` and `nin`, so
                list the allowed values instead. If the object is already restricted, both filters apply.

        Raises:
            InputError: The filters are empty or invalid.

        Example:
            >>> project.only({"group": "hr"}).retrieve("How many days of leave?")  # doctest: +SKIP
        """
        return Project(self.state.restricted(restricting_filters(to_filters(filters, keep_blank=True))))

    @accepts(ReadingOptions, WritingOptions, IngestOptions)
    async def aingest(
        self,
        inputs: Iterable[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        reread: bool = False,
        max_cost: float | None = None,
        show_progress: bool = False,
        **options: Unpack[IngestOptions],
    ) -> IngestReport:
        """Add and update documents, and publish a new version.

        `ingest` blocks until the version is published; `aingest` does not block the event loop. If the run is
        interrupted or cancelled, it waits at most ten seconds for the calls in flight, whose answers are kept in the
        ledger; a second interruption ends the run immediately.

        Documents whose content has not changed are copied from the previous version. A file or chunk that fails is
        listed in the report, and the run continues. Until the new version is published, queries are answered from the
        previous version.

        The id of a document is its path relative to the parent of the given folder, or the file name if a single file
        was given. A file keeps its id, even if another path to it is passed later. An id that belongs to another file
        or to a Document is never reused: the new file gets a longer part of its path as its id, and the report contains
        a note. A renamed file gets a new id based on its new name, but its contexts and embeddings are not paid for
        again.

        Args:
            inputs: Files, folders, globs, URLs of files, folders and web pages, LlamaIndex Documents, or ready-made
                chunks. A URL that is not `http://` or `https://` needs the fsspec driver of its protocol.
            replace: Remove all documents that are not among the inputs.
            reread: Read unchanged files again, for example because this release or a newly installed extra reads them
                better. A chunk whose text stays the same keeps its context, even if its title or other text of its
                segment is read differently; `rebuild(renew=True)` requests such contexts again. Use `estimate` with the
                same option to see the cost of the other chunks.
            max_cost: Limit for the cost of the run in dollars, at list prices. A call in flight is counted at its
                maximum price, and keeps this price if it times out or is interrupted. When the limit is reached, the
                run waits for the calls in flight, keeps their answers in the ledger, publishes nothing and raises an
                error. `estimate` returns a sufficient limit. Only the last call can exceed the limit: if its answer is
                longer than the previous answers, if the provider's cache fails, or if the provider charges for more
                tokens than were requested.
            show_progress: Show a progress bar.
            **options

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`; `spent` is the total cost so far.
            ConfigurationError: `max_cost` is given and a price is unknown, the provider has no Batch API, Ray is not
                installed or cannot be reached, or a model cannot be sent to a Ray process.
            InputError: There is nothing to ingest, two inputs have the same document id, or a Document has the id of a
                file.
            PathNotFoundError: A path does not exist, and either nothing else could be read, or `replace` would remove
                its documents. Otherwise, the path is listed among the skipped files of the report.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        return await run.aingest(
            self._whole,
            as_inputs(inputs),
            RunOptions.from_keywords(options, replace=replace, reread=reread, max_cost=max_cost),
            show_progress=show_progress,
            progress=options.get("progress"),
            ray=options.get("ray"),
        )

    ingest = twin(aingest)

    @accepts(ReadingOptions, WritingOptions, SyncOptions, FolderOptions)
    async def async_folders(
        self,
        folders: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
        *,
        remove: Collection[str] | bool = True,
        dry_run: bool = False,
        max_cost: float | None = None,
        show_progress: bool = False,
        **options: Unpack[FolderOptions],
    ) -> IngestReport:
        """Synchronise the documents with folders: add, update, rename and remove documents, and publish a new version.

        `sync_folders` blocks until the version is published; `async_folders` does not block the event loop.

        Afterwards, the project contains the documents that a first `ingest` of the folders would create. Its other
        documents, which come from elsewhere or were passed as Documents or nodes, are never changed. A file that was
        renamed or moved within the folders remains the same document with a new id, and its contexts and embeddings are
        not paid for again. If nothing has changed, nothing is published.

        A document is removed if the folder it came from can be read but no longer contains its file. If a file cannot
        be read, its document is kept, and the report lists the file as skipped. If several files have the same content,
        only one of them becomes a document.

        Args:
            folders: Folders, and URLs of folders and web pages, searched in the same way as by `ingest`. If a source
                cannot be reached or listed completely, nothing is changed.
            remove: Whether to remove documents whose file no longer exists, or the ids of the documents that may be
                removed. Other documents without a file are kept and listed in the report as missing.
            dry_run: Return the report without reading, sending or writing anything. Files at URLs are not downloaded,
                so that a renamed one is listed as added and removed. To remove only documents that a person has
                reviewed, pass `removed` from this report as `remove` in the next call.
            max_cost: As in `ingest`.
            show_progress: Show a progress bar.
            **options

        Raises:
            InputError: A path is not a folder or cannot be opened, or all documents in a folder would be removed.
            LargeRemovalError: More than a tenth of the documents in a folder would be removed; nothing was changed.
            PathNotFoundError: A folder does not exist.
            BudgetExceededError: The next call could exceed `max_cost`; nothing is published.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        state, inputs = self._whole, changes.folder_inputs(folders)
        return await changes.async_inputs(
            state, inputs, options, remove, dry_run=dry_run, max_cost=max_cost, show_progress=show_progress
        )

    sync_folders = twin(async_folders)

    @accepts(WritingOptions, SyncOptions, SourceOptions)
    async def async_documents(
        self,
        documents: Iterable[Document],
        source: str,
        *,
        remove: Collection[str] | bool = True,
        dry_run: bool = False,
        max_cost: float | None = None,
        show_progress: bool = False,
        **options: Unpack[SourceOptions],
    ) -> IngestReport:
        """Synchronise the documents of a source with the Documents of a LlamaIndex reader, and publish a new version.

        `sync_documents` blocks until the version is published; `async_documents` does not block the event loop.

        Afterwards, the project contains these Documents, and no others from this source. Documents from other sources
        are never changed. The id of a document is the name of the source, a slash and the id of the Document, so that
        it stays the same in each call. If a reader assigns random ids, name the metadata that identifies a document as
        `id_key`; without it, an unchanged Document is recognised by its text and metadata. Contexts and embeddings are
        paid for only if they are not in the ledger. The filter `source`, such as {"source": "notion"}, restricts a
        search to a source.

        Args:
            documents: All Documents of the source, for example the result of `reader.load_data()`.
            source: Name of the source, such as "notion".
            remove: Whether to remove documents of the source that are not among the Documents, or the ids of the
                documents that may be removed. The others are listed in the report as missing.
            dry_run: Return the report without sending or writing anything.
            max_cost: As in `ingest`.
            show_progress: Show a progress bar.
            **options

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`; nothing is published.
            InputError: The name of the source is invalid, an input is not a Document or has no id, or all documents of
                the source would be removed.
            LargeRemovalError: More than a tenth of the documents of the source would be removed; nothing was changed.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
            ProjectLockedError: Another process is writing to the project.

        Example:
            >>> reader = NotionPageReader(integration_token=token)  # doctest: +SKIP
            >>> project.sync_documents(reader.load_data(page_ids=ids), source="notion")  # doctest: +SKIP
        """
        state, inputs = self._whole, changes.source_inputs(documents, source)
        given = {**options, "source": source}
        return await changes.async_inputs(
            state, inputs, given, remove, dry_run=dry_run, max_cost=max_cost, show_progress=show_progress
        )

    sync_documents = twin(async_documents)

    @accepts(ReadingOptions)
    def estimate(
        self,
        inputs: Iterable[IngestInput] | IngestInput = (),
        *,
        replace: bool = False,
        reread: bool = False,
        retry_failed: bool = False,
        renew: bool = False,
        source: str | None = None,
        id_key: str | None = None,
        **options: Unpack[ReadingOptions],
    ) -> CostEstimate:
        """Estimate the cost of `ingest` with the same arguments; nothing is sent or written.

        Without inputs, estimate the cost of `rebuild` or, if `retry_failed` is set, that of the method `retry_failed`.
        Scanned pages that are not in the ledger are read by OCR.

        Neither a key nor the provider's package is needed. Contexts and embeddings in the ledger cost nothing.

        Args:
            inputs: As in `ingest`.
            replace: As in `ingest`.
            reread: As in `ingest`.
            retry_failed: Whether to include chunks that failed earlier, except those that are retried only with
                `max_cost`.
            renew: As in `rebuild`.
            source: Name of a source, to estimate the cost of `sync_documents` with these Documents.
            id_key: As in `sync_documents`.
            **options
        """
        settings = RunOptions.from_keywords(
            {**options, "source": source, "id_key": id_key},
            replace=replace,
            reread=reread,
            retry_failed=retry_failed,
            renew=renew,
        )
        items = as_inputs(inputs) if source is None else changes.source_inputs(cast(Iterable[Document], inputs), source)
        return estimate_ingest(self._whole, items, settings)

    def remove(self, doc_ids: Sequence[str] | str, *, forget: bool = False) -> IngestReport:
        """Publish a version without the given documents.

        Earlier versions on disk still contain these documents, and the ledger still contains their contexts and
        embeddings, unless `forget` is set. The other documents do not change: no model is called, and settings that
        need a `rebuild` are not applied, except `language`. If the `aremove` task is cancelled, the removal is
        completed first.

        Args:
            doc_ids: Ids of the documents; if the sequence is empty, nothing is published.
            forget: Also call `forget`.

        Raises:
            InputError: A document is not in the live version.
            ProjectLockedError: Another process is writing to the project.
        """
        report = changes.remove_documents(self._whole, doc_ids)
        if forget:
            self.forget()
        return report

    async def arebuild(
        self,
        *,
        derived: bool = False,
        renew: bool = False,
        max_cost: float | None = None,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Publish a version of the stored documents with the current settings, without reading their files again.

        Contexts and embeddings in the ledger are not paid for again; `estimate()` returns the cost of the remaining
        contexts and embeddings.

        Derived data, such as the lexical index, are made from the stored chunks. If they were made by an earlier
        release, or with another `language`, the project can still be searched, and the next call that publishes a
        version makes them again. No model is called for that.

        Args:
            derived: Only make the derived data again, even if they are current. Other changed settings are not applied.
            renew: Request contexts again that were kept although the title or other text of their segment is read
                differently than when they were written; see `reread` in `ingest`.
            max_cost: Limit for the run in dollars, as in `ingest`.
            show_progress: Show a progress bar.
            progress: Function that is called with the progress of the run.

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`.
            CorruptVersionError: A file of the live version is damaged; `verify` reports the remedy.
            InputError: Nothing has been ingested yet.
        """
        if derived:
            return await run_to_completion(partial(changes.rebuild_derived, self._whole))
        settings = RunOptions(purpose="rebuild", renew=renew, max_cost=max_cost)
        return await run.aingest(self._whole, [], settings, show_progress=show_progress, progress=progress)

    async def aretry_failed(
        self,
        *,
        max_cost: float | None = None,
        batch: bool = False,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Retry failed contexts and embeddings, and publish a version with them, unless all of them fail again.

        Contexts that a batch left open are requested with live calls, or in a new batch if `batch` is set. The report
        of the failed run contains the expected cost of both.

        Two kinds of contexts are retried only with `max_cost`: contexts that the LLM refused to write, and contexts
        whose reply in a batch cannot be read although the provider may charge for it. Without `max_cost`, the replies
        to the batch are read again, which costs nothing. With `max_cost`, the maximum price of the batch still counts
        as a cost. The report contains a sufficient limit.

        Args:
            max_cost: Limit for the run in dollars, as in `ingest`.
            batch: Request contexts in batches, as in `ingest`.
            show_progress: Show a progress bar.
            progress: Function that is called with the progress of the run.

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`.
            ConfigurationError: Changed settings need a `rebuild`, which requests these contexts too, or the provider
                has no Batch API.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
        """
        settings = RunOptions(retry_failed=True, purpose="retry", max_cost=max_cost, batch=batch)
        return await run.aingest(self._whole, [], settings, show_progress=show_progress, progress=progress)

    # ---- questions ---------------------------------------------------------------------------------------------------

    @accepts(SearchOptions)
    def retrieve(
        self, query: QueryType, *, explain: bool = False, **options: Unpack[SearchOptions]
    ) -> RetrievalResponse:
        """Return the passages that best answer a question, with their evidence.

        Args:
            query: The question.
            explain: Whether to explain the ranks of the results and of the next hits.
            **options

        Raises:
            InputError: The query is empty, or `top_k` is not positive or contradicts `similarity_top_k`.
            NoVersionError: Nothing has been ingested yet.
        """
        return self._retriever(options).respond(as_bundle(query), explain=explain)

    @accepts(SearchOptions)
    async def aretrieve(
        self, query: QueryType, *, explain: bool = False, **options: Unpack[SearchOptions]
    ) -> RetrievalResponse:
        """Asynchronous version of `retrieve`, which runs in a thread; an LLM that reranks is awaited."""
        return await self._retriever(options).arespond(as_bundle(query), explain=explain)

    search, asearch = retrieve, aretrieve
    """Short names of `retrieve` and `aretrieve`."""

    @accepts(EngineOptions, AskOptions)
    def ask(self, question: str, **options: Unpack[AskOptions]) -> GroundedResponse:
        """Answer a question from the documents with checked citations, as the engine of `as_query_engine` does.

        Args:
            question: The question.
            **options

        Raises:
            ModelError: The project's LLM cannot be loaded or reached, for example because a key is missing.
            NoVersionError: Nothing has been ingested yet.

        Example:
            >>> print(project.ask("How many days of leave?"))  # doctest: +SKIP
        """
        return cast(GroundedResponse, self.as_query_engine(**options).query(question))

    @accepts(EngineOptions, AskOptions)
    async def aask(self, question: str, **options: Unpack[AskOptions]) -> GroundedResponse:
        """Asynchronous version of `ask`."""
        engine = await asyncio.to_thread(partial(self.as_query_engine, **options))
        return cast(GroundedResponse, await engine.aquery(question))

    def chat(self, message: str, *, reset: bool = False) -> GroundedResponse:
        """Answer the next message of a conversation, which this object keeps; see `as_chat_engine` for options.

        Args:
            message: The message.
            reset: Whether to begin a new conversation.

        Raises:
            ModelError: The project's LLM cannot be loaded or reached, for example because a key is missing.
            NoVersionError: Nothing has been ingested yet.
        """
        return cast(GroundedResponse, self._conversation_engine(reset).chat(message).grounded)

    async def achat(self, message: str, *, reset: bool = False) -> GroundedResponse:
        """Asynchronous version of `chat`."""
        engine = await asyncio.to_thread(self._conversation_engine, reset)
        return cast(GroundedResponse, (await engine.achat(message)).grounded)

    def _conversation_engine(self, reset: bool) -> GroundedChatEngine:
        if reset or self._conversation is None:
            self._conversation = self.as_chat_engine()
        return self._conversation

    @accepts(SearchOptions)
    def retrieve_many(self, queries: Sequence[QueryType], **options: Unpack[SearchOptions]) -> list[RetrievalResponse]:
        """Search for several questions as `retrieve` does; all of them use the same version."""
        return self._retriever(options).respond_many(as_bundles(queries))

    @accepts(SearchOptions)
    def why_not(self, query: QueryType, document: str, **options: Unpack[SearchOptions]) -> Standing:
        """Return where an expected document stands in the ranking of a question, and what it lacks to be a result.

        A model that reranks is not asked.

        Args:
            query: The question.
            document: Id of the document, the end of the id such as a file name, or a glob pattern; if several documents
                match, the best of them.
            **options

        Raises:
            InputError: There is no such document, or the query is empty.
            NoVersionError: Nothing has been ingested yet.

        Example:
            >>> print(project.why_not("How many days of leave?", "leave.docx"))  # doctest: +SKIP
        """
        named = documents_named(document, self.live_version.records, listing="`documents`")
        ids = {chunk.node_id for record in named for chunk in self.chunks(record.doc_id)}
        return self._retriever(options).why_not(as_bundle(query), ids)

    @overload
    def as_retriever(
        self, *, intents: Literal[False] = False, **options: Unpack[SearchOptions]
    ) -> ProjectRetriever: ...

    @overload
    def as_retriever(self, *, intents: Intents, **options: Unpack[SearchOptions]) -> BaseRetriever: ...

    @accepts(SearchOptions)
    def as_retriever(self, *, intents: Intents = False, **options: Unpack[SearchOptions]) -> BaseRetriever:
        """Return a LlamaIndex retriever, which always searches the version that is live at the time of the query.

        Without a number of results, `retrieve` returns as many as fit into `config.answer_tokens`, at most
        `config.top_k`, so that a stock query engine reads no more than the package's own engine.

        Args:
            intents: As in `as_query_engine`; the number of results then depends on the intent of the question.
            **options

        Raises:
            ModelError: `intents` is "llm", and the project's LLM cannot be loaded.
        """
        is_given = any(options.get(name) is not None for name in ("top_k", "similarity_top_k"))
        retriever = self._retriever(options, max_tokens=None if is_given else self.config.answer_tokens)
        return by_intent(retriever, intents, self.state.answering_llm)

    def _retriever(self, options: SearchOptions, *, max_tokens: int | None = None) -> ProjectRetriever:
        return ProjectRetriever(self.state.live, self.config, max_tokens=max_tokens, **options)

    @accepts(EngineOptions)
    def as_query_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
        streaming: bool = False,
        response_mode: ResponseMode | str | None = None,
        **options: Unpack[EngineOptions],
    ) -> BaseQueryEngine:
        """Return a LlamaIndex query engine that answers only from the passages and checks its citations.

        Options that are None take the value of the project setting with the same name.

        Args:
            llm: LLM that writes the answer; None uses the project's LLM.
            mode: As in `retrieve`.
            similarity_top_k: Number of search results.
            top_k: The same as `similarity_top_k`.
            filters: As in `retrieve`.
            streaming: Whether `query` returns a stream.
            response_mode: "compact", or another mode of LlamaIndex's own `RetrieverQueryEngine`. With another mode,
                LlamaIndex's engine is returned, which does not check citations, and a UserWarning is issued.
            **options

        Raises:
            ConfigurationError: A value is invalid.
            ModelError: The project's LLM cannot be loaded because of a missing key or package, or an unknown name.
        """
        retriever = self._retriever(
            {"mode": mode, "similarity_top_k": similarity_top_k, "top_k": top_k, "filters": filters}
        )
        engines, values = self._engines(retriever, llm), {"streaming": streaming or None, **options}
        if response_mode in (None, ResponseMode.COMPACT):
            return engines.query_engine(values)
        return engines.stock_engine(values, response_mode)

    @accepts(EngineOptions, ChatEngineOptions)
    def as_chat_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: ChatMode = "blend",
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
        memory: BaseMemory | None = None,
        **options: Unpack[ChatEngineOptions],
    ) -> GroundedChatEngine:
        """Return a LlamaIndex chat engine for a single conversation.

        Args:
            llm: LLM that writes the answers; None uses the project's LLM.
            mode: Search method for follow-up questions: "blend", "condense" or "simple".
            similarity_top_k: Number of search results.
            top_k: The same as `similarity_top_k`.
            filters: As in `retrieve`.
            memory: LlamaIndex memory for the conversation, such as `Memory` or `ChatMemoryBuffer`, instead of a store;
                it determines which messages the prompt contains, and `history_tokens` has no effect.
            **options

        Raises:
            ConfigurationError: A value is invalid.
            ModelError: The project's LLM cannot be loaded because of a missing key or package, or an unknown name.
        """
        search_mode = options.get("search_mode")
        retriever = self._retriever(
            {"mode": search_mode, "similarity_top_k": similarity_top_k, "top_k": top_k, "filters": filters}
        )
        return self._engines(retriever, llm).chat_engine(options, mode=mode, memory=memory)

    def _engines(self, retriever: ProjectRetriever, llm: LLM | None) -> EngineBuilder:
        return EngineBuilder(
            retriever,
            self.state.embed_model_of_live,
            llm or self.state.answering_llm(),
            AnswerAccount.from_project(self.directory, self.config.prices),
            AnswerCache.from_project(self.directory, self.state.live.scope),
        )

    @accepts(SearchOptions)
    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        explain: bool = False,
        **options: Unpack[SearchOptions],
    ) -> FunctionTool:
        """Return the search as a tool for LlamaIndex agents (FunctionAgent, ReActAgent).

        Args:
            name: Name of the tool; None derives it from the project's name.
            description: Description of the tool for the agent; None derives it from the project's documents.
            explain: As in `retrieve`.
            **options
        """
        return search_tool(
            name or f"search_{self.name}",
            description or describe_documents(self.name, self.documents()),
            partial(self.retrieve, explain=explain, **options),
        )

    def document_tools(
        self, *, mode: Mode | None = None, top_k: int | None = None, filters: Filters | None = None
    ) -> DocumentTools:
        """Return the `search`, `grep`, `outline` and `read` tools for use in programs; their results are structured.

        `as_tools` returns them for LlamaIndex agents, and `ContextualTools` for Agno.

        Args:
            mode: Default mode of the search; None uses `config.mode`.
            top_k: Default number of passages returned by a search; None uses `config.top_k`.
            filters: Filters that restrict all tools, as in `only`.

        Raises:
            InputError: The filters are empty or invalid, `mode` is unknown, or `top_k` is not positive.
        """
        return DocumentTools(self.name, self.state.live, lambda: self.config, mode=mode, top_k=top_k, filters=filters)

    def as_tools(
        self,
        *,
        suffix: str | None = None,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
    ) -> list[FunctionTool]:
        """Return the `search`, `grep`, `outline` and `read` tools for LlamaIndex agents.

        Args:
            suffix: Text appended to the names of the tools; None uses the project's name, so that an agent can use the
                tools of several projects, and "" appends nothing.
            mode: As in `document_tools`.
            top_k: As in `document_tools`.
            filters: As in `document_tools`.
        """
        tools = self.document_tools(mode=mode, top_k=top_k, filters=filters)
        return function_tools(tools, suffix=self.name if suffix is None else suffix)

    @property
    def storage_context(self) -> StorageContext:
        """The live version as a read-only LlamaIndex StorageContext."""
        return self.state.live.current().storage_context

    @property
    def index(self) -> VectorStoreIndex:
        """The live version as a read-only LlamaIndex VectorStoreIndex."""
        return self.state.live.current().vector_store_index

    @property
    def live_version(self) -> SearchableVersion:
        """The live version, opened read-only; a later `ingest` does not affect the returned object.

        Raises:
            NoVersionError: Nothing has been ingested yet.
        """
        return self.state.live.current()

    # ---- maintenance ------------------------------------------------------------------------------------------------

    def update_config(self, **settings: Any) -> list[str]:
        """Change settings and return the names of settings that take effect with the next `rebuild` or `ingest`.

        The names include settings changed by earlier calls if the live version was built without these changes.
        Retrieval settings (mode, top_k, weights, ...) take effect with the next query.

        Args:
            **settings: Fields of `ProjectConfig`.

        Raises:
            ConfigurationError: A setting is unknown, a value is invalid, or a model is from an unknown provider;
                nothing is changed.
        """
        return changes.update_config(self._whole, settings)

    def versions(self) -> list[VersionInfo]:
        """Return the versions on disk, oldest first; for a damaged version, `damage` contains the reason.

        Raises:
            CorruptVersionError: CURRENT is damaged; the message lists the versions.
        """
        live = current_name(require_existing(directory := self._whole.directory))
        directories = (version_directory(directory, name) for name in version_names(directory))
        return [version for version in (_version_info(directory, live) for directory in directories) if version]

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Check every file against its SHA-256 and check the ledger.

        Args:
            repair: First remove leftover files and damaged versions that are not live, and recover the readable rows of
                a damaged ledger. If parts of the live version are damaged, publish a version without them; `repair` in
                the report lists the documents to ingest again. No provider is called.

        Raises:
            ProjectNotFoundError: The project was deleted.
        """
        if not repair:
            return verify_project(self._whole.directory)
        return repair_project(self._whole.directory, partial(changes.publish_repaired, self._whole))

    def rollback(self, to: str | None = None) -> str:
        """Make an earlier version live and return its name; later versions stay on disk.

        Args:
            to: Name of the version; None selects the version before the live version.

        Raises:
            InputError: There is no such version.
        """
        with write_lock(directory := self._whole.directory):
            return rollback(directory, to)

    def forget(self, *, dry_run: bool = False) -> ForgetReport:
        """Permanently remove all data that is not in the live version.

        This removes all other versions, so that no `rollback` is possible, and every context and embedding in the
        ledger that is not used by a chunk of the live version. Pending batches are abandoned, because their replies
        would restore removed text; to keep the replies, first complete the `ingest` that sent the requests. Data stored
        by a provider is not affected. If `forget` is interrupted, it can be run again.

        Args:
            dry_run: Return the report without removing anything.

        Raises:
            NoVersionError: Nothing has been ingested yet; `delete` the project to remove its ledger.
            CorruptVersionError: The live version is damaged; nothing is removed.
            ProjectLockedError: Another process is writing to the project, or comparing variants of it.
        """
        return changes.forget_rest(self._whole, dry_run=dry_run)

    def export(self, directory: str | Path) -> None:
        """Export the live version to LlamaIndex's own stores; see `VersionStorageContext.persist` for loading them.

        Raises:
            InputError: The directory is not empty.
        """
        export_version(self._whole.live.current().storage_context, Path(directory))

    def cost(self) -> ProjectCost:
        """Return the cost of contexts, embeddings and answers so far, in total and by run.

        All answers from a model on the same day count as one run; question embeddings are not included. Calls that
        timed out, and calls from a run that was killed, are included at their maximum price.
        """
        path = require_existing(self._whole.directory) / LEDGER_FILE
        with contextlib.closing(Ledger(path, read_only=True)) as ledger:
            return ledger.receipts.cost()

    def info(self) -> ProjectInfo:
        """Return the settings, size and cost of the project."""
        live = None if current_name(require_existing(self._whole.directory)) is None else self.state.live.current()
        records = live.records if live else ()
        languages = languages_of(records)
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE, read_only=True)) as ledger:
            return ProjectInfo(
                name=self.name,
                config=self.config,
                version=live.name if live else None,
                documents=len(records),
                languages=languages,
                unknown_languages=unknown_languages(live.manifest.embed_model, languages) if live else None,
                chunks=live.manifest.chunks if live else 0,
                fallback_chunks=sum(len(record.fallback_chunks) for record in records),
                unembedded_chunks=sum(len(record.unembedded_chunks) for record in records),
                tokens=sum(record.tokens for record in records),
                bytes=live.manifest.size if live else 0,
                ledger=ledger.info(),
                cost=ledger.receipts.cost(),
                reranker=self.state.live.versions.rerankers.choice(in_main_language(self.config, records)),
                is_outdated=live is not None and has_outdated_edition(live.manifest),
            )

    # ---- blocking and asynchronous versions --------------------------------------------------------------------------

    rebuild = twin(arebuild)
    retry_failed = twin(aretry_failed)
    aestimate = twin(estimate)
    aremove = twin(remove, finish=True)
    aretrieve_many = twin(retrieve_many)
    adocuments = twin(documents)
    achunks = twin(chunks)
    aread = twin(read)
    aforget = twin(forget, finish=True)
    arollback = twin(rollback, finish=True)
    aupdate_config = twin(update_config, finish=True)
    averify = twin(verify, finish=True)
    aversions = twin(versions)
    aexport = twin(export, finish=True)
    acost = twin(cost)
    ainfo = twin(info)


def _version_info(directory: Path, live: str | None) -> VersionInfo | None:
    name = directory.name
    try:
        manifest = read_manifest(directory)
    except (CorruptVersionError, FormatError) as error:
        if not directory.is_dir():
            return None  # another process has just removed it
        return VersionInfo(name=name, created=None, documents=None, chunks=None, live=name == live, damage=str(error))
    facts = manifest.model_dump(include={"created", "documents", "chunks", "package", "automatic"})
    return VersionInfo(name=name, live=name == live, **facts)
