"""What both sides of a project share: where it is, its settings, its models."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, overload

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.schema import BaseNode, QueryType
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.tools import FunctionTool
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual._utils.calls import run_sync, to_its_end
from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual.answering.build import Intents, by_intent, chat_engine, query_engine
from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.chat_engine import ChatMode, GroundedChatEngine
from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.contextualizer.estimate import EmbeddingCount
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    FormatError,
    InputError,
    NoVersionError,
)
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate
from llama_index_contextual.ingestion.pipeline import Stages, make_stages
from llama_index_contextual.ingestion.plan import IngestInput, RunOptions
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress, progress_bar
from llama_index_contextual.ingestion.run import arun, remove_documents
from llama_index_contextual.models import (
    embedding_identity,
    is_same_model,
    load_embed_model,
    load_llm,
    require_independent_vectors,
)
from llama_index_contextual.project.info import ProjectInfo, VersionInfo, describe_project, list_versions, project_cost
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.retrievers.live import LiveIndexes, ProjectRetriever
from llama_index_contextual.retrievers.queries import as_bundle, as_bundles
from llama_index_contextual.retrievers.response import RetrievalResponse
from llama_index_contextual.storage.check import read_manifest
from llama_index_contextual.storage.current import current_name, version_directory
from llama_index_contextual.storage.forget import Forgotten, forget
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.ledger_lines import export_contexts, import_contexts
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.project_file import project_ledger, read_config, write_config, write_lock
from llama_index_contextual.storage.publish import rollback
from llama_index_contextual.storage.receipts import ProjectCost
from llama_index_contextual.storage.verify import VerifyReport, repair_project, verify_project
from llama_index_contextual.storage.version import OpenVersion
from llama_index_contextual.tools import describe_documents, search_tool

if TYPE_CHECKING:
    from llama_index.core.llms import LLM

    from llama_index_contextual.answering.batch import QA
    from llama_index_contextual.evaluation.answers import AnswerSweep
    from llama_index_contextual.evaluation.compare import Comparison, Origin
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.evaluation.run import Questions
    from llama_index_contextual.evaluation.sweep import Sweep


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


class ProjectReading(ProjectBase):
    """What asks a project."""

    def retrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> RetrievalResponse:
        """Return the passages that answer a question best, with their evidence.

        Args:
            query: The question.
            mode: "semantic", "lexical" or "hybrid"; None takes `config.mode`. A mode whose index is absent falls back,
                with a warning in the response.
            top_k: Results; None takes `config.top_k`.
            filters: Only chunks whose metadata passes count, in every index, before ranking.
            explain: Say of every result why it stands where it stands, and of the next ones why not.

        Raises:
            InputError: The query is empty or top_k is not positive.
            NoVersionError: Nothing has been ingested yet.
        """
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return retriever.respond(as_bundle(query), explain=explain)

    def retrieve_many(
        self,
        queries: Sequence[QueryType],
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> list[RetrievalResponse]:
        """Do as `retrieve` does for several questions; all are answered by one version, and embedded together."""
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return retriever.respond_many(as_bundles(queries))

    async def aretrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> RetrievalResponse:
        """Do as `retrieve` does, without blocking the event loop."""
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return await retriever.arespond(as_bundle(query), explain=explain)

    @overload
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Literal[False] = False,
    ) -> ProjectRetriever: ...

    @overload
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents,
    ) -> BaseRetriever: ...

    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
    ) -> BaseRetriever:
        """Return a LlamaIndex retriever that answers from whatever version is live when it is asked.

        Args:
            mode: As in `retrieve`.
            similarity_top_k: Results; with `intents`, the plan of a question's intent decides.
            filters: As in `retrieve`.
            intents: As in `as_query_engine`.

        Raises:
            ModelError: `intents` is "llm", and the project's LLM cannot be made.
        """
        retriever = ProjectRetriever(
            self._live, self.config, mode=mode, similarity_top_k=similarity_top_k, filters=filters
        )
        return by_intent(retriever, intents, lambda: self._llm or self._load_answering_llm())

    def as_query_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
        **kwargs: Any,
    ) -> BaseQueryEngine:
        """Return a LlamaIndex query engine that answers from the passages only and checks its citations.

        Args:
            llm: Writes the answer; None takes the project's.
            mode: As in `retrieve`.
            similarity_top_k: Results of the search.
            filters: As in `retrieve`.
            intents: True searches every question by what it wants, as `PLANS` in `answering.intent` says: how many
                passages, by which indexes, a comparison by each side too, chitchat not at all; "llm" also asks the
                model where neither patterns nor words decide; a table of one's own changes single plans.
            **kwargs: For `GroundedQueryEngine`, `AnswerOptions` and `ConversationalRetriever`: style, answer_tokens
                (otherwise the project's), min_confidence, timeouts, streaming, reference_date, guards and judge (True:
                the usual ones), cache (True: `answer_cache`), adjacent ("bridge" also reads a chunk between two hits,
                "expand" those beside them that are on the topic, which embeds them), …; what only
                `RetrieverQueryEngine.from_args` knows gives that engine.

        Raises:
            ConfigurationError: An option is unknown or wrong.
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        answering = llm or self._llm or self._load_answering_llm()
        retriever = self.as_retriever(mode=mode, similarity_top_k=similarity_top_k, filters=filters)
        options = {"intents": intents, **self._with_cache(kwargs)}
        return query_engine(retriever, self._embed_model_of_live, answering, **options)

    def as_chat_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: ChatMode = "blend",
        search_mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
        **kwargs: Any,
    ) -> GroundedChatEngine:
        """Return a LlamaIndex chat engine that keeps one conversation.

        Args:
            llm: Writes the answers; None takes the project's.
            mode: How follow-up questions are searched: "blend", "condense" or "simple".
            search_mode: As `mode` in `retrieve`.
            similarity_top_k: Results of the search; the three best passages of them are read.
            filters: As in `retrieve`.
            intents: As in `as_query_engine`; all passages that a plan finds are then read.
            **kwargs: For `GroundedChatEngine`, `GroundedQueryEngine`, `AnswerOptions` and `ConversationalRetriever`,
                as in `as_query_engine`.

        Raises:
            ConfigurationError: An option is unknown or wrong.
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        answering = llm or self._llm or self._load_answering_llm()
        retriever = self.as_retriever(mode=search_mode, similarity_top_k=similarity_top_k, filters=filters)
        options = {"mode": mode, "intents": intents, **self._with_cache(kwargs)}
        return chat_engine(retriever, self._embed_model_of_live, answering, **options)

    @cached_property
    def answer_cache(self) -> AnswerCache:
        """The answers that the project's engines made with `cache=True` keep and share."""
        return AnswerCache()

    def _with_cache(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "cache": self.answer_cache} if options.get("cache") is True else options

    def _embed_model_of_live(self) -> BaseEmbedding:
        try:
            live = self._live.current()
        except NoVersionError:
            return self.embed_model
        return live.embed_model if live.version.has_semantic else self.embed_model

    def as_tool(self, *, name: str | None = None, description: str | None = None, **options: Any) -> FunctionTool:
        """Return the search as a tool for LlamaIndex agents (FunctionAgent, ReActAgent).

        Args:
            name: Name of the tool; None makes it from the project's.
            description: When to use it; None says it from the project's documents.
            **options: For `retrieve`: mode, top_k, filters.
        """
        return search_tool(
            name or f"search_{self.name}",
            description or describe_documents(self.name, self.documents()),
            retrieve=lambda query: self.retrieve(query, **options),
            aretrieve=lambda query: self.aretrieve(query, **options),
        )

    @property
    def storage_context(self) -> StorageContext:
        """The live version as a LlamaIndex StorageContext that cannot be changed."""
        return self._live.current().version.storage_context

    @property
    def index(self) -> VectorStoreIndex:
        """The live version as a LlamaIndex VectorStoreIndex that cannot be changed."""
        return self._live.current().index

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the live version's chunks: what a filter can name."""
        return self._live.current().version.docstore.metadata_keys()

    def chunks(self, doc_id: str) -> list[BaseNode]:
        """Return the chunks of a document with their contexts, in the order of its text; none where it is unknown."""
        return list(self._live.current().version.docstore.iterate(doc_id=doc_id))

    def read(self, doc_id: str, start: int = 0, end: int | None = None) -> str:
        """Return the original text of a document between two character offsets.

        Raises:
            InputError: No such document.
        """
        version = self._live.current().version
        record = version.manifest.document(doc_id)
        if record is None:
            raise InputError(f"Project {self.name!r} has no document {doc_id!r}.", value=doc_id)
        return version.read_text(record, start, end)


def _items(inputs: Iterable[IngestInput] | IngestInput) -> list[IngestInput]:
    if isinstance(inputs, str | os.PathLike | BaseNode) or not isinstance(inputs, Iterable):
        return [inputs]
    return list(inputs)


class ProjectWriting(ProjectBase):
    """What asks models to build a version."""

    def ingest(
        self,
        inputs: Iterable[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        moved: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        max_cost: float | None = None,
        batch: bool = False,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Add and update documents, and publish a new version.

        Documents whose content has not changed are taken over from the version before. A file or chunk that fails is
        in the report; the rest goes on. Until the new version is published, queries are answered by the one before.

        The id of a document is its path as seen from the parent of the folder given, or the name of a file given by
        itself. A file keeps the id that it has, however it is named later. An id that belongs to a file elsewhere, or
        to a Document, is never taken over: the newcomer gets the shortest longer path that differs, and the report says
        so. A file that was renamed takes the id of its new name, and nothing is paid for again.

        Args:
            inputs: Files, folders and globs (PDF, TXT, Markdown), LlamaIndex Documents, or ready chunks.
            replace: Make the version exactly these inputs; otherwise documents that are not named are kept.
            moved: The files have a new place: a document whose id the new path ends with is taken for the same one.
            file_metadata: Gives further facts about a file, from its path; JSON scalars only.
            limits: What one file may cost.
            passwords: Password of encrypted PDFs: one for all, or one for each document id or file name.
            max_cost: Dollars at list prices that the run must not pass. Calls in flight count with the most that they
                can cost, and calls that timed out or were cut off stay counted so. At the limit the run waits for the
                calls in flight, keeps their answers in the ledger, publishes nothing and raises the error. `estimate`
                says which limit is enough. Only the last call can pass it, where its answer is longer than those
                before or the provider's cache fails, and a provider that charges more tokens than it was asked for.
            batch: Ask for contexts in batches of the provider, within 24 hours and at half the price of a token; calls
                of a batch may find less in the provider's cache. The process may be stopped meanwhile; the same call,
                or any later one, goes on where the provider is.
            show_progress: Show a progress bar.
            progress: Called as the work proceeds.

        Raises:
            BudgetExceededError: The next call could pass `max_cost`; it says what was spent in all.
            ConfigurationError: `max_cost` is given and a price is not known, or the provider has no batches.
            InputError: Nothing can be ingested, two inputs have one document id, or a Document has that of a file.
            PathNotFoundError: A path does not exist, and either nothing else could be read, or `replace` would take its
                documents out. Otherwise it is among the skipped files of the report.
            ModelError: A model cannot be made or reached; what was paid for is in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        return run_sync(
            lambda: self.aingest(
                inputs,
                replace=replace,
                moved=moved,
                file_metadata=file_metadata,
                limits=limits,
                passwords=passwords,
                max_cost=max_cost,
                batch=batch,
                show_progress=show_progress,
                progress=progress,
            )
        )

    async def aingest(
        self,
        inputs: Iterable[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        moved: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        max_cost: float | None = None,
        batch: bool = False,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Do as `ingest` does, without blocking the event loop."""
        options = RunOptions(
            replace=replace,
            moved=moved,
            file_metadata=file_metadata,
            limits=limits or ReadLimits(),
            passwords=passwords,
            max_cost=max_cost,
            batch=batch,
        )
        return await self._arun(_items(inputs), options, show_progress=show_progress, progress=progress)

    def estimate(
        self,
        inputs: Iterable[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        moved: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        batch: bool = False,
    ) -> CostEstimate:
        """Return what `ingest` would cost with the same arguments; nothing is sent, nothing is written.

        Neither a key nor the provider's package is needed. What the ledger holds costs nothing.
        """
        options = RunOptions(
            replace=replace,
            moved=moved,
            file_metadata=file_metadata,
            limits=limits or ReadLimits(),
            passwords=passwords,
        )
        with contextlib.ExitStack() as stack:
            ledger = stack.enter_context(contextlib.closing(Ledger(self.directory / LEDGER_FILE, read_only=True)))
            embedding = self._embedding_to_count()
            before = self._version_to_build_on(embedding.model, replace=replace)
            if before is not None:
                stack.callback(before.close)
            return estimate(
                _items(inputs),
                options,
                config=self.config,
                stages=self._stages_with(ledger, None),
                embedding=embedding,
                before=before,
                sender="batch" if batch else self.config.service_tier or "live",
                project=self.name,
            )

    async def aestimate(
        self,
        inputs: Iterable[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        moved: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        batch: bool = False,
    ) -> CostEstimate:
        """Do as `estimate` does, without blocking the event loop."""
        return await asyncio.to_thread(
            self.estimate,
            inputs,
            replace=replace,
            moved=moved,
            file_metadata=file_metadata,
            limits=limits,
            passwords=passwords,
            batch=batch,
        )

    def _embedding_to_count(self) -> EmbeddingCount:
        given = self._given_embed_model
        if not self.config.faiss:
            return EmbeddingCount(None, None)
        name = require_independent_vectors(self.config.embed_model) if given is None else embedding_identity(given)
        return EmbeddingCount(name, getattr(given, "dimensions", None))

    def retry_failed(self, *, show_progress: bool = False, progress: ReportProgress | None = None) -> IngestReport:
        """Ask again for the contexts that the LLM failed to write, and publish a version that has them.

        Raises:
            ConfigurationError: Settings wait for a `rebuild`, which asks again for these contexts too.
            ModelError: A model cannot be made or reached; what was paid for is in the ledger.
        """
        return run_sync(lambda: self.aretry_failed(show_progress=show_progress, progress=progress))

    async def aretry_failed(
        self, *, show_progress: bool = False, progress: ReportProgress | None = None
    ) -> IngestReport:
        """Do as `retry_failed` does, without blocking the event loop."""
        return await self._arun(
            [], RunOptions(retry_failed=True, purpose="retry"), show_progress=show_progress, progress=progress
        )

    def rebuild(self, *, show_progress: bool = False, progress: ReportProgress | None = None) -> IngestReport:
        """Publish a version by the present settings, from the documents as they are stored; files are not read again.

        Contexts and embeddings whose question has not changed come from the ledger.
        """
        return run_sync(lambda: self.arebuild(show_progress=show_progress, progress=progress))

    async def arebuild(self, *, show_progress: bool = False, progress: ReportProgress | None = None) -> IngestReport:
        """Do as `rebuild` does, without blocking the event loop."""
        return await self._arun([], RunOptions(purpose="rebuild"), show_progress=show_progress, progress=progress)

    async def _arun(
        self,
        inputs: Sequence[IngestInput],
        options: RunOptions,
        *,
        show_progress: bool,
        progress: ReportProgress | None,
    ) -> IngestReport:
        with contextlib.ExitStack() as stack:
            stack.enter_context(write_lock(self.directory))
            # Another program may hold it for a while.
            ledger = await to_its_end(partial(stack.enter_context, project_ledger(self.directory)))
            stages = await asyncio.to_thread(self._stages, ledger)
            before = await asyncio.to_thread(
                self._version_to_build_on, stages.embed_model_name, replace=options.replace
            )
            if before is not None:
                stack.callback(before.close)
            if progress is None and show_progress:
                progress = stack.enter_context(progress_bar())
            return await arun(
                inputs,
                options,
                project_dir=self.directory,
                config=self.config,
                stages=stages,
                before=before,
                progress=progress,
            )

    def _version_to_build_on(self, embed_model_name: str | None, *, replace: bool) -> OpenVersion | None:
        try:
            version = self._open_live()
        except CorruptVersionError:
            if replace:
                return None
            raise
        if version is None:
            return None
        manifest = version.manifest
        same_setting = manifest.config["embed_model"] == self.config.embed_model
        is_other = embed_model_name is not None and not is_same_model(manifest.embed_model, embed_model_name)
        if same_setting and manifest.embed_model is not None and is_other:
            raise ConfigurationError(
                f"The index was built with the embedding model {manifest.embed_model!r}, the project is loaded with"
                f" {embed_model_name!r}: load it with the first, or create a project for the second.",
                setting="embed_model",
            )
        return version

    def _stages(self, ledger: Ledger) -> Stages:
        embed_model = self.embed_model if self.config.faiss else None
        return self._stages_with(ledger, embed_model)

    def _stages_with(self, ledger: Ledger, embed_model: BaseEmbedding | None) -> Stages:
        return make_stages(self.config, ledger=ledger, llm=self._llm, embed_model=embed_model, model_id=self._model_id)


class Project(ProjectWriting, ProjectReading):
    """One knowledge base: its documents, contexts and indexes, in its own directory.

    Made by `ProjectManager`. What builds its versions is in `ProjectWriting`, what asks it in `ProjectReading`, its
    upkeep, which needs no model, here.
    """

    def remove(self, doc_ids: Sequence[str] | str, *, forget: bool = False) -> IngestReport:
        """Publish a version without some documents.

        Earlier versions on the disk still hold them, and the ledger what was paid for them, unless they are forgotten.

        The other documents stay as they stand: no model is asked, and settings that wait for a `rebuild` go on waiting.

        Args:
            doc_ids: Ids of the documents; without any, nothing is published.
            forget: Also do what `forget` does.

        Raises:
            InputError: The live version does not have one of them.
            ProjectLockedError: Another process is writing to the project.
        """
        wanted = frozenset([doc_ids] if isinstance(doc_ids, str) else doc_ids)
        with write_lock(self.directory), contextlib.ExitStack() as stack:
            before = self._open_live()
            if before is not None:
                stack.callback(before.close)
            report = remove_documents(wanted, project_dir=self.directory, config=self.config, before=before)
        if forget:
            self.forget()
        return report

    async def aremove(self, doc_ids: Sequence[str] | str, *, forget: bool = False) -> IngestReport:
        """Do as `remove` does, without blocking the event loop; whoever is cancelled meanwhile waits for its end."""
        return await to_its_end(partial(self.remove, doc_ids, forget=forget))

    def forget(self, *, dry_run: bool = False) -> Forgotten:
        """Remove from the disk, for good, what the live version does not hold.

        These are all other versions, so that no `rollback` is possible, and every context and embedding in the ledger
        that no chunk of the live version uses. Batches under way are given up, since their replies would bring text
        back: let the `ingest` that sent them finish first if their replies are wanted. What a provider keeps of its
        requests is out of reach. Interrupted, it can be run again.

        Args:
            dry_run: Remove nothing, and return what would be removed.

        Raises:
            NoVersionError: Nothing has been ingested yet: `delete` the project to remove its ledger.
            CorruptVersionError: The live version is damaged; nothing is removed then.
            ProjectLockedError: Another process is writing to the project, or comparing variants of it.
        """
        with write_lock(self.directory):
            live = self._open_live()
            if live is None:
                raise NoVersionError(
                    f"Project {self.name!r} has no version yet: delete the project to remove its ledger.",
                    name=self.name,
                )
            with contextlib.closing(live):
                return forget(self.directory, live, dry_run=dry_run)

    def rollback(self, to: str | None = None) -> str:
        """Make an earlier version the live one, and return its name; the later ones stay on disk.

        Args:
            to: Name of the version; None takes the one before the live one.

        Raises:
            InputError: There is no such version.
        """
        with write_lock(self.directory):
            return rollback(self.directory, to)

    def update_config(self, **changes: Any) -> list[str]:
        """Change settings, and return those that have no effect before the next `rebuild` or `ingest`.

        Settings that an earlier call has changed are among them for as long as the live version was built without
        them. What only concerns retrieval (mode, top_k, weights, ...) has an effect at the next query.

        Raises:
            ConfigurationError: A setting is unknown or cannot have that value; nothing is changed then.
        """
        with write_lock(self.directory):
            # Another process may have changed them since they were read.
            config = read_config(self.directory).changed(**changes)
            write_config(self.directory, config)
            pending = config.rebuild_fields(self._built_with() or self.config)
            self.config = config
            self.__dict__.pop("embed_model", None)
        return pending

    def _built_with(self) -> ProjectConfig | None:
        """Return the settings that the live version was built with; None where there is none that can be read."""
        try:
            name = current_name(self.directory)
            if name is None:
                return None
            return ProjectConfig.recorded(read_manifest(version_directory(self.directory, name)).config)
        except (CorruptVersionError, FormatError):
            return None

    def versions(self) -> list[VersionInfo]:
        """Return the versions on disk, oldest first; one that is damaged says so, and `verify` what mends it.

        Raises:
            CorruptVersionError: CURRENT is damaged; the message names the versions.
        """
        return list_versions(self.directory)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Compare every file with its SHA-256 and check the ledger.

        Args:
            repair: Before, remove leftovers and damaged versions that are not live, and rescue a damaged ledger's rows.
        """
        return (repair_project if repair else verify_project)(self.directory)

    def export(self, directory: str | Path) -> None:
        """Write the live version for LlamaIndex's stock stores; see `storage/export.py` for how to load it.

        Raises:
            InputError: There is something in the directory already.
        """
        from llama_index_contextual.storage.export import export_version

        export_version(self._live.current().version, Path(directory))

    def info(self) -> ProjectInfo:
        """Return what the project is and holds."""
        live = None if current_name(self.directory) is None else self._live.current().version.manifest
        return describe_project(self.directory, self.config, live)

    def cost(self) -> ProjectCost:
        """Return what the project has cost so far, in all and by run: contexts and embeddings, not questions.

        A run that was killed, and calls that timed out, count with the most that they can have cost.
        """
        return project_cost(self.directory)

    def import_contexts(self, path: str | Path) -> int:
        """Add the contexts of a file that `export_contexts` wrote to the ledger, and return their number."""
        with write_lock(self.directory), project_ledger(self.directory) as ledger:
            return import_contexts(ledger, Path(path))

    def export_contexts(self, path: str | Path) -> int:
        """Write the contexts that were paid for as JSON lines, and return their number."""
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE, read_only=True)) as ledger:
            return export_contexts(ledger, Path(path))

    def compare(self, questions: Questions | None = None, **options: Any) -> Comparison:
        """Build these documents without context, with structural and with LLM context, and say which one pays.

        Args:
            questions: Questions with evidence, or a file of them; None lets the project's LLM write some.
            **options: Of `evaluation.variants.compare_variants`: variants, sample, ks, metric, max_cost, progress.

        Raises:
            InputError: A variant or option is unknown, or no question has its evidence in the sample.
            ModelError: A variant or the questions need an LLM that cannot be made or reached.
        """
        from llama_index_contextual.evaluation.compare import compare_variants

        return compare_variants(self._origin(), questions, **options)

    def generate_questions(self, number: int = 50, *, seed: int = 0) -> list[Question]:
        """Let the project's LLM write questions about its documents, each with the chunk that answers it as evidence.

        Raises:
            ModelError: There is no LLM, or it cannot be reached.
        """
        from llama_index_contextual.evaluation.generate import generate_questions

        llm = self._llm or self._load_answering_llm()
        return generate_questions(self._live.current().version, llm, number=number, seed=seed)

    def sweep(self, questions: Questions, **options: Any) -> Sweep:
        """Build these documents with several chunk sizes and kinds of context, and ask them in several modes.

        Args:
            questions: Questions with evidence, or a file of them.
            **options: Of `evaluation.sweep.sweep_variants`: chunk_sizes, contexts, modes, top_ks, sample, max_cost.

        Raises:
            InputError: There is nothing to try, or the evidence cannot be compared over chunk sizes.
        """
        from llama_index_contextual.evaluation.sweep import sweep_variants

        return sweep_variants(self._origin(), questions, **options)

    def sweep_answers(self, questions: Sequence[QA], *, llm: LLM | None = None, **options: Any) -> AnswerSweep:
        """Answer questions with several chunk sizes, kinds of context, modes and numbers of results.

        Args:
            questions: Questions with their right answers.
            llm: Answers; None takes the project's.
            **options: Of `evaluation.answers.sweep_answers`: chunk_sizes, contexts, modes, top_ks, max_cost, …

        Raises:
            InputError: There is nothing to try.
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        from llama_index_contextual.evaluation.answers import sweep_answers

        return sweep_answers(self._origin(), questions, llm or self._llm or self._load_answering_llm(), **options)

    def _origin(self) -> Origin:
        from llama_index_contextual.evaluation.compare import Origin

        return Origin(
            directory=self.directory,
            config=self.config,
            live=self._live,
            llm=self._llm,
            model_id=self._model_id,
            load_embed_model=lambda: self.embed_model,
        )

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"
