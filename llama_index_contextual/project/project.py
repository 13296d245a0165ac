"""One knowledge base: documents, search, engines and maintenance.

`Project` is the interface to one directory that `ProjectManager` creates. It has the settings, the models, and a
`LiveIndexes`, which opens the version that is live at the time of a query. Every change of the documents builds a new
version next to the live one and then publishes it; `ingestion/run.py` builds versions.

An async method and its synchronous counterpart have one implementation and one signature: `blocking` and `in_thread`
derive one from the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, overload

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.chat_engine.types import ChatMode as LlamaIndexChatMode
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.memory.types import BaseMemory
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.response_synthesizers import BaseSynthesizer, ResponseMode
from llama_index.core.schema import BaseNode, QueryType
from llama_index.core.storage.chat_store.base import BaseChatStore
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.tools import FunctionTool
from llama_index.core.vector_stores.types import MetadataFilters
from pydantic import BaseModel

from llama_index_contextual._utils.calls import blocking, in_thread, run_to_completion
from llama_index_contextual._utils.forks import cached_property
from llama_index_contextual._utils.keywords import suggests_keywords
from llama_index_contextual.answering.build import (
    EngineOptions,
    Intents,
    StockOptions,
    by_intent,
    chat_engine,
    query_engine,
)
from llama_index_contextual.answering.cache import AnswerCache
from llama_index_contextual.answering.chat_engine import ChatMode, GroundedChatEngine
from llama_index_contextual.answering.guards import Guards
from llama_index_contextual.answering.judge import Judge
from llama_index_contextual.answering.prompts import NOT_FOUND, SMALL_TALK
from llama_index_contextual.answering.streaming import Timeouts
from llama_index_contextual.answering.usage import AnswerAccount
from llama_index_contextual.config import Adjacent, ContextKind, Mode, ProjectConfig
from llama_index_contextual.contextualizer.cost import PriceTable
from llama_index_contextual.embeddings.contextual import ContextualEmbedding
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    FormatError,
    InputError,
    ModelError,
    NoVersionError,
    Remedy,
)
from llama_index_contextual.index.answers import ANSWERS_FILE
from llama_index_contextual.index.check import read_manifest
from llama_index_contextual.index.engine import check_backend
from llama_index_contextual.index.forget import ForgetReport, forget
from llama_index_contextual.index.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.index.ledger_lines import (
    LedgerRows,
    export_ledger,
    import_ledger,
)
from llama_index_contextual.index.manifest import DOCSTORE, DocumentRecord
from llama_index_contextual.index.project_file import (
    ledger_identity,
    project_ledger,
    read_config,
    write_config,
    write_lock,
)
from llama_index_contextual.index.receipts import ProjectCost, RunCost, record_answers
from llama_index_contextual.index.verify import PartFaults, Repair, VerifyReport, repair_project, verify_project
from llama_index_contextual.index.version import OpenVersion
from llama_index_contextual.index.versions import current_name, live_if_sound, rollback, version_directory
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate
from llama_index_contextual.ingestion.executors import Executor
from llama_index_contextual.ingestion.pipeline import Stages, make_stages
from llama_index_contextual.ingestion.plan import IngestInput, RunOptions
from llama_index_contextual.ingestion.repair import publish_sound
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress, progress_bar
from llama_index_contextual.ingestion.run import arun, preview, remove_documents, rewrite, settings_of
from llama_index_contextual.ingestion.sync import FileDigests, SyncOptions
from llama_index_contextual.models import (
    ModelSetting,
    contextual_model,
    embedding_identity,
    is_creatable,
    is_same_model,
    load_embed_model,
    load_llm,
    missing_for,
    require_independent_vectors,
    settings_llm,
)
from llama_index_contextual.project.info import ProjectInfo, VersionInfo, describe_project, list_versions, project_cost
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.retrievers.conversational import BlendWeights
from llama_index_contextual.retrievers.project import ProjectRetriever
from llama_index_contextual.search.live import LiveIndexes, SearchableVersion
from llama_index_contextual.search.response import RetrievalResponse
from llama_index_contextual.search.search import as_bundle, as_bundles
from llama_index_contextual.tools.document_tools import DocumentTools, function_tools
from llama_index_contextual.tools.filters import Filters
from llama_index_contextual.tools.texts import describe_documents, search_tool

if TYPE_CHECKING:  # imported by the methods that use them, so that a search does not load the evaluation
    from llama_index_contextual.answering.batch import QA
    from llama_index_contextual.evaluation.answers import AnswerSweep
    from llama_index_contextual.evaluation.compare import Comparison, Origin
    from llama_index_contextual.evaluation.questions import Question
    from llama_index_contextual.evaluation.run import Questions, ShowVariants
    from llama_index_contextual.evaluation.sweep import Sweep


class Project:
    """One knowledge base: its documents, contexts and indexes, in its own directory.

    `ProjectManager` creates and loads it.

    Args:
        directory: The project's directory.
        config: Its settings.
        llm: LLM for contexts and answers; None loads `config.llm` when it is needed.
        embed_model: Embedding model for chunks and queries; None loads `config.embed_model`.
        model_id: Name of the model of `llm`; None uses the model's own name.

    Attributes:
        created: Whether the project was created when it was opened; see `ProjectManager.get_or_create`.

    Raises:
        ConfigurationError: `model_id` is given without `llm`.
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
        self.created = False
        self.directory = directory
        self.name = directory.name
        self.config = config
        self._llm = llm
        self._model_id = model_id
        self._passed_embed_model = embed_model
        self._live = LiveIndexes(directory, self.name, self._embed_model_of, self._answering_llm)
        self._digests, self._gave_way = FileDigests(), dict[str, float]()

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"

    def __reduce__(self) -> NoReturn:
        self._live.__reduce__()

    @cached_property
    def embed_model(self) -> BaseEmbedding:
        """The embedding model.

        Raises:
            ModelError: The model cannot be loaded: no key, no package, or an unknown name.
        """
        return self._passed_embed_model or load_embed_model(self.config.embed_model)

    def _embed_model_of(self, setting: str, built: str) -> BaseEmbedding:
        """Return the model for a version built with that setting, which stays live until the next one is published.

        Args:
            setting: The setting `embed_model` at that time.
            built: Name of the model that built the index: another one if it was passed as an object.

        Raises:
            ConfigurationError: The model was passed as an object, and the project is loaded without it.
        """
        if self._passed_embed_model is not None:
            return self._passed_embed_model
        if built != self.config.embed_model and not is_same_model(built, setting):
            raise self._needs_object(built)
        return self.embed_model if self.config.embed_model in (setting, built) else load_embed_model(setting)

    def _needs_object(self, built: str) -> ConfigurationError:
        """Return the error of a project that was loaded without the embedding object that built its index."""
        pass_it = f"pass it again, as in load({self.name!r}, embed_model=...)"
        by_command = "the command line can only search it with `--mode lexical`, because it cannot create this model"
        if is_creatable(built):
            by_name = "create it by name if it had only default options:"
            pass_it += f", or {by_name} project.update_config(embed_model={built!r})"
            by_command = f"{by_name} `llama-index-contextual configure {{project}} embed_model={built}`"
        return ConfigurationError(
            f"The index was built with the embedding model {built!r}, which was passed as an object",
            setting="embed_model",
            remedy=Remedy(pass_it, by_command),
        )

    def _embed_model_of_live(self) -> BaseEmbedding:
        try:
            live = self._live.current()
        except NoVersionError:
            return self.embed_model
        return live.embed_model if live.has_semantic else self.embed_model

    def _answering_llm(self) -> LLM:
        """Return the LLM for questions and answers: the given object, or the LLM of the settings.

        If the key or the package of the latter is missing, it is the LLM assigned to LlamaIndex's `Settings.llm`.
        """
        name = self.config.answer_llm or self.config.llm
        if self._llm is None and missing_for(name, setting="llm") and (assigned := settings_llm()) is not None:
            return assigned
        return self._llm or load_llm(
            name,
            temperature=self.config.answer_temperature,
            timeout=self.config.call_timeout,
            advice=Remedy(
                "use another LLM: the setting `answer_llm`, such as ollama:llama3.1, one assigned to LlamaIndex's"
                " `Settings.llm`, or an object passed as `llm=`",
                "name another LLM with --llm, such as ollama:llama3.1",
            ),
        )

    def _answer_account(self) -> AnswerAccount:
        """Return the prices of answers and the place of their receipts."""
        return AnswerAccount(PriceTable(self.config.prices), self._record_answers)

    def _record_answers(self, cost: RunCost) -> None:
        ledger = self.directory / LEDGER_FILE
        if ledger.exists() or ledger_identity(self.directory) is not None:
            record_answers(ledger, cost)
            return
        with write_lock(self.directory), project_ledger(self.directory) as created:  # nothing was paid for before
            created.receipts.add_answers(cost)

    @property
    def has_llm(self) -> bool:
        """Whether there is an LLM for answers; its key is not tried."""
        if self._llm is not None or settings_llm() is not None:
            return True
        try:
            return missing_for(self.config.answer_llm or self.config.llm, setting="llm") is None
        except ModelError:  # the provider is unknown
            return False

    # ---- documents ---------------------------------------------------------------------------------------------------

    def documents(self) -> Sequence[DocumentRecord]:
        """Return the documents of the live version; none before the first `ingest`."""
        try:
            return list(self._live.current().records)
        except NoVersionError:
            return ()

    def chunks(self, doc_id: str) -> list[BaseNode]:
        """Return the chunks of a document with their contexts, in the order of its text; none for an unknown id."""
        return list(self._live.current().docstore.iterate(doc_id=doc_id))

    def read(self, doc_id: str, start: int = 0, end: int | None = None) -> str:
        """Return the original text of a document between two character offsets.

        Raises:
            InputError: There is no such document.
        """
        version = self._live.current()
        record = version.record(doc_id)
        if record is None:
            raise InputError(f"Project {self.name!r} has no document {doc_id!r}.", value=doc_id)
        return version.read_text(record, start, end)

    @suggests_keywords
    async def aingest(
        self,
        inputs: Iterable[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        moved: bool = False,
        reread: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        max_cost: float | None = None,
        batch: bool = False,
        executor: Literal["local", "ray"] = "local",
        address: str | None = None,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Add and update documents, and publish a new version.

        `ingest` blocks until the version is published; `aingest` does not block the event loop. If it is interrupted or
        cancelled, it waits at most ten seconds for the calls in flight, whose answers are kept in the ledger; a second
        interruption ends it at once.

        Documents whose content has not changed are copied from the previous version. A file or chunk that fails is
        listed in the report and does not stop the others. Until the new version is published, queries are answered from
        the previous one.

        The id of a document is its path relative to the parent of the given folder, or the file name for a single
        file. A file keeps its id, even if another path to it is passed later. An id that belongs to another file or to
        a Document is never reused: the new file gets a longer part of its path as its id, and the report contains a
        note. A renamed file gets the id of its new name, and its contexts and embeddings are not paid for again.

        Args:
            inputs: Files, folders and globs, LlamaIndex Documents, or ready chunks.
            replace: Remove all documents that are not among the inputs.
            moved: The files were moved: a path that ends with the id of a document is that document.
            reread: Read unchanged files again, because this release or an extra that was installed since reads them
                better. Where the text stays the same, contexts and embeddings come from the ledger; `estimate` with
                the same option prices the others.
            file_metadata: Function that returns additional metadata for a file path; JSON scalars only. Without it,
                documents keep the metadata of earlier calls; `lambda path: {}` removes it.
            limits: Limits for reading one file.
            passwords: Passwords of encrypted PDFs: one for all, or one for each path, document id or file name; that of
                "*" is for all other files. They are not stored.
            max_cost: Limit for the cost of the run in dollars, at list prices. A call in flight counts with its maximum
                price, and so does, permanently, a call that timed out or was interrupted. At the limit, the run waits
                for the calls in flight, keeps their answers in the ledger, publishes nothing and raises an error.
                `estimate` returns a sufficient limit. Only the last call can exceed the limit: if its answer is longer
                than the previous ones, if the provider's cache fails, or if the provider charges more tokens than were
                requested.
            batch: Send requests for contexts as batches, which the provider answers within 24 hours at half the price
                per token; its prompt cache may be less effective for them. The process may end before that: the
                same call, or any later one, fetches the replies.
            executor: Where files are read and cut into chunks, and texts embedded by a model that is not behind an API:
                in this process, or on all nodes of a Ray cluster (extra `ray`). Chunks, contexts and vectors are the
                same. The project must be on this machine, which is a node of the cluster; all nodes must reach the
                files by the same paths, and need the same version of this package.
            address: Address of the Ray cluster: "auto" for the one that this machine belongs to, HOST:PORT, or "local"
                to start Ray on this machine for this call. None takes the environment variable RAY_ADDRESS, then
                "auto", then "local".
            show_progress: Show a progress bar.
            progress: Called with the progress of the run.

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`; `spent` is the total cost so far.
            ConfigurationError: `max_cost` is given and a price is unknown, the provider has no batches, or Ray cannot
                be used: it is not installed or cannot be reached, or a model cannot be sent to another process.
            InputError: There is nothing to ingest, two inputs have the same document id, or a Document has the id of a
                file.
            PathNotFoundError: A path does not exist, and either nothing else could be read, or `replace` would remove
                its documents. Otherwise, the path is listed among the skipped files of the report.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        options = RunOptions(
            replace=replace,
            moved=moved,
            reread=reread,
            file_metadata=file_metadata,
            limits=limits or ReadLimits(),
            passwords=passwords,
            max_cost=max_cost,
            batch=batch,
        )
        on_ray = None if executor == "local" and address is None else _on_ray(executor, batch=batch)
        if on_ray is None:
            return await self._arun(_items(inputs), options, show_progress=show_progress, progress=progress)
        models: dict[str, Any] = {"llm": self._llm, "embed_model": self._passed_embed_model}
        project = partial(Project, self.directory, self.config, **models, model_id=self._model_id)
        with contextlib.ExitStack() as stack:
            if progress is None and show_progress:
                progress = stack.enter_context(progress_bar())
            return await on_ray(
                partial(_arun_elsewhere, project, _items(inputs), options),
                address=address,
                models={argument: model for argument, model in models.items() if model is not None},
                project=self.name,
                progress=progress,
            )

    ingest = blocking(aingest)

    @suggests_keywords
    async def async_(
        self,
        folders: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
        *,
        remove: Collection[str] | bool = True,
        allow_empty: bool = False,
        allow_many: bool = False,
        dry_run: bool = False,
        settle: float = 0.0,
        watching: bool = False,
        moved: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        max_cost: float | None = None,
        batch: bool = False,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Bring the documents in step with folders: add, update, rename and remove, and publish one new version.

        `sync` blocks until the version is published; `async_` does not block the event loop (`async` is a keyword of
        Python).

        Afterwards, the project contains the documents that a first `ingest` of the folders would have, and all others
        that it had: documents from elsewhere, and those that were passed as Documents or nodes, are never changed. A
        file that was renamed or moved within the folders is the same document with a new id, and its contexts and
        embeddings are not paid for again. If nothing has changed, nothing is published.

        A document is removed if the folder it came from can be read, and its file is not there any more. If a file
        cannot be read, its document is kept, and the report lists the file among the skipped ones. Of several files
        with the same content, one is a document.

        Args:
            folders: Folders, searched as by `ingest`.
            remove: Whether to remove documents whose file is gone, or the ids of those that may be removed. The others
                are kept, and listed in the report as missing.
            allow_empty: Whether all documents of a folder may be removed. Otherwise this is an error, because a drive
                that is not mounted looks like an empty folder.
            allow_many: Whether more than a tenth of the documents of a folder, and more than one, may be removed at
                once. Otherwise this is an error unless `remove` lists their ids, because a folder that is being
                restored looks like this. The version before such a removal is kept as long as the version after it.
            dry_run: Return the report without reading, sending or writing anything. To remove only documents that a
                person has seen, pass `removed` of this report as `remove` to the next call.
            settle: Number of seconds to watch the files first; one that changes in that time is probably still being
                written, and is left for a later call. A large file must not have changed for a second for every 10 MB.
            watching: Whether the caller watches the folders and calls again after every change. Small files are then
                read first, and larger ones left for the next call; a file of more than 20 MB is also left for it if
                other files change while it is read. `keep_versions` counts the version separately, so that it does not
                push the versions of other calls out of the history.
            moved: The folders were moved: a path that ends with the id of a document is that document.
            file_metadata: As in `ingest`.
            limits: As in `ingest`.
            passwords: As in `ingest`.
            max_cost: As in `ingest`.
            batch: As in `ingest`.
            show_progress: Show a progress bar.
            progress: Called with the progress of the run.

        Raises:
            InputError: A path is not a folder or cannot be opened, or all documents of a folder would be removed.
            LargeRemovalError: More than a tenth of the documents of a folder would be removed; nothing was changed.
            PathNotFoundError: A folder does not exist.
            BudgetExceededError: The next call could exceed `max_cost`; nothing is published.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
            ProjectLockedError: Another process is writing to the project.

        Example:
            >>> report = project.sync(["contracts"], dry_run=True)  # doctest: +SKIP
            >>> project.sync(["contracts"], remove=report.removed)  # doctest: +SKIP
            Version v000002: 1 added, 1 renamed, 40 unchanged, 2 removed; 311 chunks.
        """
        paths = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
        if not paths:
            raise InputError("There is no folder to sync: pass at least one.", value=paths)
        removable = None if remove is True else frozenset([remove] if isinstance(remove, str) else remove or ())
        options = RunOptions(
            moved=moved,
            file_metadata=file_metadata,
            limits=limits or ReadLimits(),
            passwords=passwords,
            max_cost=max_cost,
            batch=batch,
            sync=SyncOptions(
                removable=removable,
                allow_empty=allow_empty,
                allow_many=allow_many or dry_run or removable is not None,
                settle=settle,
                watching=watching,
                digests=self._digests,
                gave_way=self._gave_way,
            ),
            purpose="sync",
        )
        if dry_run:
            return await asyncio.to_thread(self._preview, paths, options)
        return await self._arun(paths, options, show_progress=show_progress, progress=progress)

    sync = blocking(async_)

    def _preview(self, inputs: Sequence[IngestInput], options: RunOptions) -> IngestReport:
        with contextlib.ExitStack() as stack:
            before = self._open_live()
            if before is not None:
                stack.callback(before.close)
            return preview(inputs, options, self.config, before)

    @suggests_keywords
    def estimate(
        self,
        inputs: Iterable[IngestInput] | IngestInput = (),
        *,
        replace: bool = False,
        moved: bool = False,
        reread: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        batch: bool = False,
    ) -> CostEstimate:
        """Estimate the cost of `ingest` with the same arguments; nothing is sent or written.

        Without inputs, it is what `rebuild` would cost. Scanned pages that are not in the ledger are read by OCR.

        Neither a key nor the provider's package is needed. Contexts and embeddings in the ledger cost nothing.
        `aestimate` does not block the event loop.
        """
        options = RunOptions(
            replace=replace,
            moved=moved,
            reread=reread,
            file_metadata=file_metadata,
            limits=limits or ReadLimits(),
            passwords=passwords,
        )
        with contextlib.ExitStack() as stack:
            ledger = stack.enter_context(contextlib.closing(Ledger(self.directory / LEDGER_FILE, read_only=True)))
            embed_model = self._embed_model_name()
            given = _items(inputs)
            before = self._version_to_build_on(embed_model, replace=replace)
            if before is not None:
                stack.callback(before.close)
            passed = self._passed_embed_model
            contextual = contextual_model(embed_model or "") if passed is None else passed
            return estimate(
                given,
                options,
                config=self.config,
                stages=self._stages(ledger, None),
                embed_model=embed_model,
                dimensions=getattr(passed, "dimensions", None),
                before=before,
                sender="batch" if batch else self.config.service_tier or "live",
                contextual=contextual if isinstance(contextual, ContextualEmbedding) else None,
            )

    aestimate = in_thread(estimate)

    def remove(self, doc_ids: Sequence[str] | str, *, forget: bool = False) -> IngestReport:
        """Publish a version without some documents.

        Earlier versions on disk still contain them, and the ledger still contains their contexts and embeddings, unless
        `forget` is set. The other documents do not change: no model is called, and settings that need a `rebuild` are
        not applied.

        `aremove` does not block the event loop; if its task is cancelled, the removal is completed first.

        Args:
            doc_ids: Ids of the documents; if there are none, nothing is published.
            forget: Also call `forget`.

        Raises:
            InputError: A document is not in the live version.
            ProjectLockedError: Another process is writing to the project.
        """
        unwanted = frozenset([doc_ids] if isinstance(doc_ids, str) else doc_ids)
        with write_lock(self.directory), contextlib.ExitStack() as stack:
            before = self._open_live()
            if before is not None:
                stack.callback(before.close)
            report = remove_documents(unwanted, project_dir=self.directory, config=self.config, before=before)
        self.answer_cache.clear()
        if forget:
            self.forget()
        return report

    aremove = in_thread(remove, finish=True)

    @suggests_keywords
    async def arebuild(
        self,
        *,
        max_cost: float | None = None,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Publish a version with the current settings from the stored documents; their files are not read again.

        Contexts and embeddings whose request has not changed are read from the ledger; `estimate()` counts and prices
        the others. `rebuild` blocks until the version is published; `arebuild` does not block the event loop.

        Args:
            max_cost: Limit of the run in dollars, as in `ingest`.
            show_progress: Show a progress bar.
            progress: Called as the work proceeds.

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`.
            CorruptVersionError: A file of the live version is damaged; `verify` shows how to repair it.
        """
        options = RunOptions(purpose="rebuild", max_cost=max_cost)
        return await self._arun([], options, show_progress=show_progress, progress=progress)

    rebuild = blocking(arebuild)

    async def aretry_failed(
        self,
        *,
        max_cost: float | None = None,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Request failed contexts again, and publish a version with them; nothing is published if none is new.

        `retry_failed` blocks until the version is published; `aretry_failed` does not block the event loop.

        A context is held back if the LLM refused to write it, or if the provider may charge for it although its reply
        in a batch cannot be read. Without `max_cost`, such contexts are not requested from the LLM again; the replies
        of the batch are read again, which costs nothing. With it, they are requested again, and what is booked for the
        batch stays booked. The report contains a sufficient limit.

        Args:
            max_cost: Limit of the run in dollars, as in `ingest`; also requests the contexts that are held back.
            show_progress: Show a progress bar.
            progress: Called with the progress of the run.

        Raises:
            BudgetExceededError: The next call could exceed `max_cost`.
            ConfigurationError: Changed settings need a `rebuild`, which requests these contexts too.
            ModelError: A model cannot be loaded or reached; contexts and embeddings paid for so far are in the ledger.
        """
        options = RunOptions(retry_failed=True, purpose="retry", max_cost=max_cost)
        return await self._arun([], options, show_progress=show_progress, progress=progress)

    retry_failed = blocking(aretry_failed)

    async def _arun(
        self,
        inputs: Sequence[IngestInput],
        options: RunOptions,
        *,
        show_progress: bool,
        progress: ReportProgress | None,
        executor: Executor | None = None,
    ) -> IngestReport:
        with contextlib.ExitStack() as stack:
            stack.enter_context(write_lock(self.directory))
            # Another program may hold the ledger for a while.
            ledger = await run_to_completion(partial(stack.enter_context, project_ledger(self.directory)))
            name = await asyncio.to_thread(self._embed_model_name)
            before = await asyncio.to_thread(self._version_to_build_on, name, replace=options.replace)
            if before is not None:
                stack.callback(before.close)
            if progress is None and show_progress:
                progress = stack.enter_context(progress_bar())
            return await arun(
                inputs,
                options,
                project_dir=self.directory,
                config=self.config,
                make_stages=lambda: self._stages(ledger, self.embed_model if self.config.faiss else None),
                before=before,
                progress=progress,
                executor=executor,
            )

    def _stages(self, ledger: Ledger, embed_model: BaseEmbedding | None) -> Stages:
        return make_stages(self.config, ledger=ledger, llm=self._llm, embed_model=embed_model, model_id=self._model_id)

    def _embed_model_name(self) -> str | None:
        """Return the name of the embedding model without loading it, or None without a semantic index."""
        if not self.config.faiss:
            return None
        passed = self._passed_embed_model
        return require_independent_vectors(self.config.embed_model) if passed is None else embedding_identity(passed)

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
            if self._passed_embed_model is None:
                raise self._needs_object(manifest.embed_model)
            raise ConfigurationError(
                f"The index was built with the embedding model {manifest.embed_model!r}, the project is loaded with"
                f" {embed_model_name!r}: load it with the former, or create a new project for the latter.",
                setting="embed_model",
            )
        return version

    def _open_live(self, open_version: Callable[[Path], OpenVersion] | None = None) -> OpenVersion | None:
        """Open the live version for a change of the project; None before the first one. The lock must be held.

        Of its parts, the document stores are compared with their checksums; see `index/part.py`.
        """
        name = current_name(self.directory)
        opened = open_version or partial(OpenVersion, reads=(DOCSTORE,))
        return None if name is None else opened(version_directory(self.directory, name))

    # ---- questions ---------------------------------------------------------------------------------------------------

    @suggests_keywords
    def retrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> RetrievalResponse:
        """Return the passages that answer a question best, with their evidence.

        Args:
            query: The question.
            mode: "semantic", "lexical" or "hybrid"; None uses `config.mode`. If the index of a mode is missing, the
                other one is searched, with a warning in the response.
            top_k: Number of results; None uses `config.top_k`.
            similarity_top_k: The same, in LlamaIndex's word.
            filters: Conditions on the metadata of chunks, applied in every index before ranking.
            explain: Whether to explain the ranks of the results, and of the next hits.

        Raises:
            InputError: The query is empty, or `top_k` is not positive or contradicts `similarity_top_k`.
            NoVersionError: Nothing has been ingested yet.
        """
        retriever = self._retriever(mode, similarity_top_k, top_k, filters)
        return retriever.respond(as_bundle(query), explain=explain)

    @suggests_keywords
    async def aretrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> RetrievalResponse:
        """Do the same as `retrieve`, without blocking the event loop."""
        retriever = self._retriever(mode, similarity_top_k, top_k, filters)
        return await retriever.arespond(as_bundle(query), explain=explain)

    @suggests_keywords
    def retrieve_many(
        self,
        queries: Sequence[QueryType],
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> list[RetrievalResponse]:
        """Search for several questions as `retrieve` does, in one version, and embed them together."""
        retriever = self._retriever(mode, similarity_top_k, top_k, filters)
        return retriever.respond_many(as_bundles(queries))

    @overload
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Literal[False] = False,
    ) -> ProjectRetriever: ...

    @overload
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents,
    ) -> BaseRetriever: ...

    @suggests_keywords
    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents = False,
    ) -> BaseRetriever:
        """Return a LlamaIndex retriever that always searches the version that is live at the time of the query.

        Args:
            mode: As in `retrieve`.
            similarity_top_k: Number of results; with `intents`, it depends on the intent of the question.
            top_k: The same.
            filters: As in `retrieve`.
            intents: As in `as_query_engine`.

        Raises:
            ModelError: `intents` is "llm", and the project's LLM cannot be loaded.
        """
        return by_intent(self._retriever(mode, similarity_top_k, top_k, filters), intents, self._answering_llm)

    def _retriever(
        self, mode: Mode | None, similarity_top_k: int | None, top_k: int | None, filters: MetadataFilters | None
    ) -> ProjectRetriever:
        return ProjectRetriever(
            self._live, self.config, mode=mode, similarity_top_k=similarity_top_k, top_k=top_k, filters=filters
        )

    @suggests_keywords
    def as_query_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents | None = None,
        style: str | None = None,
        answer_tokens: int | None = None,
        max_passages: int | None = None,
        context: bool | None = None,
        min_confidence: float | None = None,
        not_found: str = NOT_FOUND,
        small_talk: str = SMALL_TALK,
        system_prompt: str | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        weights: BlendWeights | None = None,
        reference_date: date | Callable[[], date] | None = None,
        adjacent: Adjacent | None = None,
        guards: Guards | bool | None = None,
        cache: AnswerCache | bool | None = None,
        judge: Judge | bool | None = None,
        timeouts: Timeouts | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        response_synthesizer: BaseSynthesizer | None = None,
        response_mode: ResponseMode | str | None = None,
        refine_template: BasePromptTemplate | None = None,
        summary_template: BasePromptTemplate | None = None,
        simple_template: BasePromptTemplate | None = None,
        chat_content_qa_template: BasePromptTemplate | None = None,
        chat_content_refine_template: BasePromptTemplate | None = None,
        output_cls: type[BaseModel] | None = None,
        use_async: bool | None = None,
        verbose: bool | None = None,
        multimodal: bool | None = None,
    ) -> BaseQueryEngine:
        """Return a LlamaIndex query engine that answers from the passages only and checks its citations.

        Options that are None have the value of the project's setting of the same name; `cache` has that of
        `answer_cache`.

        The options from `response_synthesizer` on are those of LlamaIndex's own engine: if any of them is given, except
        `response_mode="compact"`, the result is a `RetrieverQueryEngine` over the same search, which does not check
        citations; a UserWarning says so. Of the other options, it supports only llm, mode, similarity_top_k, filters,
        intents, text_qa_template, node_postprocessors, streaming and callback_manager.

        Args:
            llm: LLM that writes the answer; None uses the project's.
            mode: As in `retrieve`.
            similarity_top_k: Number of results of the search.
            top_k: The same.
            filters: As in `retrieve`.
            intents: True adapts the search to the intent of the question, as defined by `PLANS` in `answering.intent`:
                the number of passages, the indexes, a search for each side of a comparison, no search for chitchat.
                "llm" also asks the model if the wording does not decide; a dict of plans replaces individual plans.
            style: "instruction", "persona" (few words), "chain_of_thought", or a description of your own, which is
                added to the rules: answer from the sources only, and cite them.
            answer_tokens: Maximum number of passage tokens that the model reads.
            max_passages: Maximum number of passages that the model reads; without it, as many as fit.
            context: Whether the model sees the generated contexts, marked as background.
            min_confidence: Searches with a lower confidence are repeated more widely, and the prompt says how little
                the passages have in common with the question; None applies the level "low".
            not_found: Answer if nothing was found, or if the passages do not answer the question.
            small_talk: Reply to chitchat, if `intents` is set.
            system_prompt: The whole system prompt, instead of the rules and the style; {not_found} in it stands for
                `not_found`. Citations are checked nevertheless.
            text_qa_template: Template of the message with {context_str}, the numbered passages, and {query_str};
                citations are required and checked as before.
            weights: Weights of the conversation in the search for a follow-up question.
            reference_date: Current date, or a function that returns it, to resolve time words such as "last quarter".
            adjacent: "merge" joins neighbouring hits, "bridge" also reads a chunk between two hits, and "expand"
                also neighbouring chunks on the same topic, which are embedded to find out.
            guards: True removes harmful HTML and links from every answer and masks personal data, False shows it as
                it is; None only removes harmful HTML and links, if the extra `answering` is installed.
            cache: Cache of answers; True uses `answer_cache`, which keeps them in the project's directory.
            judge: Judge of every answer before it is shown; True uses `llm`.
            timeouts: Timeouts of calls to the model; None uses the settings `first_token_timeout`,
                `between_tokens_timeout` and `call_timeout`.
            node_postprocessors: Applied to the hits first, such as a reranker.
            streaming: Whether `query` returns a stream.
            callback_manager: Receives LlamaIndex's events.
            response_synthesizer: As in `RetrieverQueryEngine.from_args`, like all following options.
            response_mode: How LlamaIndex's own engine writes its answer; "compact" is the grounded engine's way.
            refine_template: Its prompt to refine an answer.
            summary_template: Its prompt for a summary.
            simple_template: Its prompt without passages.
            chat_content_qa_template: Its multimodal prompt for an answer.
            chat_content_refine_template: Its multimodal prompt to refine an answer.
            output_cls: Pydantic class of its answer.
            use_async: Whether it calls the model asynchronously.
            verbose: Whether it prints.
            multimodal: Whether it reads images too.

        Raises:
            ConfigurationError: A value is invalid, or options of both engines are given.
            ModelError: The project's LLM cannot be loaded: no key, no package, or an unknown name.
        """
        return query_engine(
            self._retriever(mode, similarity_top_k, top_k, filters),
            self._embed_model_of_live,
            llm or self._answering_llm(),
            EngineOptions(
                style=style,
                answer_tokens=answer_tokens,
                max_passages=max_passages,
                context=context,
                min_confidence=min_confidence,
                not_found=not_found,
                small_talk=small_talk,
                system_prompt=system_prompt,
                text_qa_template=text_qa_template,
                weights=weights,
                reference_date=reference_date,
                intents=intents,
                adjacent=adjacent,
                guards=guards,
                cache=cache,
                project_cache=self.answer_cache,
                judge=judge,
                timeouts=timeouts,
                node_postprocessors=node_postprocessors,
                streaming=streaming,
                callback_manager=callback_manager,
            ),
            StockOptions(
                response_synthesizer=response_synthesizer,
                response_mode=response_mode,
                refine_template=refine_template,
                summary_template=summary_template,
                simple_template=simple_template,
                chat_content_qa_template=chat_content_qa_template,
                chat_content_refine_template=chat_content_refine_template,
                output_cls=output_cls,
                use_async=use_async,
                verbose=verbose,
                multimodal=multimodal,
            ),
            self._answer_account(),
        )

    @suggests_keywords
    def as_chat_engine(
        self,
        *,
        llm: LLM | None = None,
        mode: ChatMode = "blend",
        chat_mode: LlamaIndexChatMode | str | None = None,
        search_mode: Mode | None = None,
        similarity_top_k: int | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        intents: Intents | None = None,
        turns: int = 3,
        history_tokens: int = 1000,
        chat_store: BaseChatStore | None = None,
        chat_store_key: str = "chat_history",
        memory: BaseMemory | None = None,
        style: str | None = None,
        answer_tokens: int | None = None,
        max_passages: int | None = None,
        context: bool | None = None,
        min_confidence: float | None = None,
        not_found: str = NOT_FOUND,
        small_talk: str = SMALL_TALK,
        system_prompt: str | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        weights: BlendWeights | None = None,
        reference_date: date | Callable[[], date] | None = None,
        adjacent: Adjacent | None = None,
        guards: Guards | bool | None = None,
        cache: AnswerCache | bool | None = None,
        judge: Judge | bool | None = None,
        timeouts: Timeouts | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> GroundedChatEngine:
        """Return a LlamaIndex chat engine that keeps one conversation.

        The options from `style` on are those of `as_query_engine`.

        Args:
            llm: LLM that writes the answers; None uses the project's.
            mode: How follow-up questions are searched: "blend", "condense" or "simple".
            chat_mode: The same in LlamaIndex's words: "best" is "blend", "condense_question" and
                "condense_plus_context" are "condense", "context" is "simple".
            search_mode: As `mode` in `retrieve`.
            similarity_top_k: Number of results of the search.
            top_k: The same.
            filters: As in `retrieve`.
            intents: As in `as_query_engine`.
            turns: Number of previous exchanges used in searches and in the prompt.
            history_tokens: Maximum number of tokens of exchanges in the prompt; the oldest are left out first.
            chat_store: Store of the history.
            chat_store_key: Name of this conversation in the store.
            memory: LlamaIndex's memory of the conversation, such as `Memory` or `ChatMemoryBuffer`, instead of a store;
                it decides what the prompt contains, and `history_tokens` has no effect.
            style: As in `as_query_engine`, like all following options.
            answer_tokens: Maximum number of passage tokens.
            max_passages: Maximum number of passages that the model reads; None reads as many as fit.
            context: Whether the model sees the generated contexts.
            min_confidence: Searches with a lower confidence are repeated, and the prompt says so.
            not_found: Answer if nothing was found.
            small_talk: Reply to chitchat, if `intents` is set.
            system_prompt: The whole system prompt, instead of the rules and the style.
            text_qa_template: Template of the message with passages and question.
            weights: Weights of the conversation in a search; None uses the default weights with `turns`.
            reference_date: Current date, or a function that returns it.
            adjacent: Treatment of neighbouring hits.
            guards: Checks and filters for every answer.
            cache: Cache of answers.
            judge: Judge of every answer before it is shown.
            timeouts: Timeouts of calls to the model.
            node_postprocessors: Applied to the hits first.
            streaming: Whether the query engine of the chat engine returns a stream.
            callback_manager: Receives LlamaIndex's events.

        Raises:
            ConfigurationError: A value is invalid.
            ModelError: The project's LLM cannot be loaded: no key, no package, or an unknown name.
        """
        return chat_engine(
            self._retriever(search_mode, similarity_top_k, top_k, filters),
            self._embed_model_of_live,
            llm or self._answering_llm(),
            EngineOptions(
                style=style,
                answer_tokens=answer_tokens,
                max_passages=max_passages,
                context=context,
                min_confidence=min_confidence,
                not_found=not_found,
                small_talk=small_talk,
                system_prompt=system_prompt,
                text_qa_template=text_qa_template,
                weights=weights,
                reference_date=reference_date,
                intents=intents,
                adjacent=adjacent,
                guards=guards,
                cache=cache,
                project_cache=self.answer_cache,
                judge=judge,
                timeouts=timeouts,
                node_postprocessors=node_postprocessors,
                streaming=streaming,
                callback_manager=callback_manager,
            ),
            self._answer_account(),
            mode=mode,
            chat_mode=chat_mode,
            turns=turns,
            history_tokens=history_tokens,
            chat_store=chat_store,
            chat_store_key=chat_store_key,
            memory=memory,
        )

    @cached_property
    def answer_cache(self) -> AnswerCache:
        """The cache of the project's engines with `cache=True`, on disk; `remove` and `forget` clear it."""
        return AnswerCache(self.directory / ANSWERS_FILE, current=lambda: live_if_sound(self.directory))

    @suggests_keywords
    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
        explain: bool = False,
    ) -> FunctionTool:
        """Return the search as a tool for LlamaIndex agents (FunctionAgent, ReActAgent).

        Args:
            name: Name of the tool; None derives it from the project's.
            description: When to use the tool; None derives it from the project's documents.
            mode: As in `retrieve`.
            top_k: As in `retrieve`.
            filters: As in `retrieve`.
            explain: As in `retrieve`.
        """

        def search(query: str) -> RetrievalResponse:
            return self.retrieve(query, mode=mode, top_k=top_k, filters=filters, explain=explain)

        async def asearch(query: str) -> RetrievalResponse:
            return await self.aretrieve(query, mode=mode, top_k=top_k, filters=filters, explain=explain)

        return search_tool(
            name or f"search_{self.name}",
            description or describe_documents(self.name, self.documents()),
            retrieve=search,
            aretrieve=asearch,
        )

    def document_tools(
        self, *, mode: Mode | None = None, top_k: int | None = None, filters: Filters | None = None
    ) -> DocumentTools:
        """Return the tools `search`, `grep`, `outline` and `read` for programs, with structured results.

        `as_tools` returns them for LlamaIndex agents, and `ContextualTools` for Agno.

        Args:
            mode: Default mode of the search; None uses `config.mode`.
            top_k: Default number of passages of a search; None uses `config.top_k`.
            filters: Restricts every tool: `search` to passages that pass, the others to documents with such a passage.
                A dict of keys and values, or MetadataFilters.

        Raises:
            InputError: A filter is invalid, or `top_k` is not positive.
        """
        return DocumentTools(self.name, self._live, lambda: self.config, mode=mode, top_k=top_k, filters=filters)

    def as_tools(
        self,
        *,
        suffix: str | None = None,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: Filters | None = None,
    ) -> list[FunctionTool]:
        """Return the tools `search`, `grep`, `outline` and `read` for LlamaIndex agents.

        Args:
            suffix: Added to the names of the tools; None uses the project's name, so that an agent can have the tools
                of several projects, and "" adds nothing.
            mode: As in `document_tools`.
            top_k: As in `document_tools`.
            filters: As in `document_tools`.
        """
        tools = self.document_tools(mode=mode, top_k=top_k, filters=filters)
        return function_tools(tools, suffix=self.name if suffix is None else suffix)

    @property
    def storage_context(self) -> StorageContext:
        """The live version as a read-only LlamaIndex StorageContext."""
        return self._live.current().storage_context

    @property
    def index(self) -> VectorStoreIndex:
        """The live version as a read-only LlamaIndex VectorStoreIndex."""
        return self._live.current().vector_store_index

    @property
    def live_version(self) -> SearchableVersion:
        """The live version, opened read-only; a later `ingest` does not change it.

        Raises:
            NoVersionError: Nothing has been ingested yet.
        """
        return self._live.current()

    def metadata_keys(self) -> list[str]:
        """Return the metadata keys of the live version's chunks, which filters can name."""
        return self._live.current().docstore.metadata_keys()

    def metadata_values(self) -> Mapping[str, Sequence[str | int | float]]:
        """Return the distinct values of the user's own metadata keys in the live version, by key."""
        return self._live.current().metadata_values

    # ---- maintenance ------------------------------------------------------------------------------------------------

    def update_config(self, **changes: Any) -> list[str]:
        """Change settings, and return the names of those that take effect with the next `rebuild` or `ingest`.

        The names include settings changed by earlier calls, as long as the live version was built without them.
        Settings of retrieval (mode, top_k, weights, ...) take effect with the next query.

        Args:
            **changes: Fields of `ProjectConfig`.

        Raises:
            ConfigurationError: A setting is unknown, its value is invalid, or it names a model of an unknown provider;
                nothing is changed then.
        """
        with write_lock(self.directory):
            # Another process may have changed them since they were read.
            config = read_config(self.directory).changed(**changes)
            for setting in get_args(ModelSetting):
                if changes.get(setting) is not None:
                    missing_for(changes[setting], setting=setting)
            if changes.keys() & {"backend", "backend_url"}:
                check_backend(config)
            write_config(self.directory, config)
            pending = config.rebuild_fields(self._built_with() or self.config)
            self.config = config
            self.__dict__.pop("embed_model", None)
        return pending

    def _built_with(self) -> ProjectConfig | None:
        """Return the settings that the live version was built with; None if there is no readable version."""
        try:
            name = current_name(self.directory)
            if name is None:
                return None
            return ProjectConfig(**read_manifest(version_directory(self.directory, name)).config)
        except (CorruptVersionError, FormatError):
            return None

    def versions(self) -> list[VersionInfo]:
        """Return the versions on disk, oldest first; a damaged one is marked, and `verify` shows how to repair it.

        Raises:
            CorruptVersionError: CURRENT is damaged; the message names the versions.
        """
        return list_versions(self.directory)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Compare every file with its SHA-256 and check the ledger.

        Args:
            repair: First remove leftovers and damaged versions that are not live, and recover the readable rows of a
                damaged ledger. If parts of the live version are damaged, publish a version without them; `repair` in
                the report names the documents to ingest again, and says what that costs. No provider is called.

        Raises:
            ProjectNotFoundError: The project was deleted.
        """
        return repair_project(self.directory, self._publish_sound) if repair else verify_project(self.directory)

    def _publish_sound(self, live: str, faults: PartFaults) -> Repair:
        """Publish the live version without damaged parts; the lock must be held."""
        directory = version_directory(self.directory, live)
        manifest = read_manifest(directory)
        config = settings_of(manifest, self.config)
        embed_model = None
        if manifest.embed_model is not None:
            with contextlib.suppress(ModelError, ConfigurationError):  # its vectors are in the ledger by its name
                embed_model = self._embed_model_of(config.embed_model, manifest.embed_model)
        with project_ledger(self.directory) as ledger:
            stages = make_stages(config, ledger=ledger, llm=self._llm, embed_model=embed_model, model_id=self._model_id)
            stages = dataclasses.replace(stages, embed_model_name=manifest.embed_model)
            repair = publish_sound(directory, faults, config, stages)
        inputs = sorted({path for path in repair.missing.values() if path is not None})
        try:
            return dataclasses.replace(repair, cost=self.estimate(inputs).in_short()) if inputs else repair
        except ConfigurationError:  # the embedding model was passed as an object, without which nothing is ingested
            return repair

    def rollback(self, to: str | None = None) -> str:
        """Make an earlier version the live one, and return its name; the later ones stay on disk.

        Args:
            to: Name of the version; None selects the version before the live one.

        Raises:
            InputError: There is no such version.
        """
        with write_lock(self.directory):
            return rollback(self.directory, to)

    def forget(self, *, dry_run: bool = False) -> ForgetReport:
        """Permanently remove all data that is not in the live version.

        This removes all other versions, so that no `rollback` is possible, and every context and embedding in the
        ledger that no chunk of the live version uses. Pending batches are abandoned, because their replies would
        restore removed text; to keep the replies, complete the `ingest` that sent them first. Data that a provider
        keeps is not affected. If `forget` is interrupted, it can be run again.

        Args:
            dry_run: Remove nothing, and return what would be removed.

        Raises:
            NoVersionError: Nothing has been ingested yet: `delete` the project to remove its ledger.
            CorruptVersionError: The live version is damaged; nothing is removed then.
            ProjectLockedError: Another process is writing to the project, or comparing variants of it.
        """
        with write_lock(self.directory):
            live = self._open_live(OpenVersion)  # all files are compared, as the other versions are removed
            if live is None:
                raise NoVersionError(
                    f"Project {self.name!r} has no version yet",
                    name=self.name,
                    remedy=Remedy(
                        "delete the project to remove its ledger",
                        "`llama-index-contextual delete {project}` removes its ledger too",
                    ),
                )
            if not dry_run:
                self.answer_cache.clear()
            with contextlib.closing(live):
                if dry_run or not any(part.gone for part in live.parts):
                    return forget(self.directory, live, dry_run=dry_run)
                rewritten = rewrite(self.directory, self.config, live)
            with contextlib.closing(OpenVersion(version_directory(self.directory, rewritten))) as live:
                return forget(self.directory, live)

    def export(self, directory: str | Path) -> None:
        """Write the live version for LlamaIndex's own stores; `index/export.py` shows how to load it.

        Raises:
            InputError: The directory is not empty.
        """
        from llama_index_contextual.stores.storage_context import export_version

        export_version(self._live.current().storage_context, Path(directory))

    def export_ledger(self, path: str | Path) -> LedgerRows:
        """Write everything that was paid for or read by OCR as JSON lines: contexts, embeddings, pages and receipts.

        Another project that imports the file pays for none of it again.

        Raises:
            LedgerError: A provider is working on a batch.
        """
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE, read_only=True)) as ledger:
            return export_ledger(ledger, Path(path))

    def import_ledger(self, path: str | Path) -> LedgerRows:
        """Add the rows of a file that `export_ledger` wrote, and return their number."""
        with write_lock(self.directory), project_ledger(self.directory) as ledger:
            return import_ledger(ledger, Path(path))

    def cost(self) -> ProjectCost:
        """Return the cost of contexts, embeddings and answers so far, in total and by run.

        The answers of a day by one model are one run; the embeddings of questions are not included. Calls that timed
        out and calls of a run that was killed are included at their maximum price.
        """
        return project_cost(self.directory)

    def info(self) -> ProjectInfo:
        """Return the settings, size and cost of the project."""
        live = None if current_name(self.directory) is None else self._live.current()
        return describe_project(self.directory, self.config, live)

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def generate_questions(self, number: int = 50, *, seed: int = 0) -> list[Question]:
        """Let the project's LLM write questions about its documents, with the chunks that answer them as evidence.

        Raises:
            ModelError: There is no LLM, or it cannot be reached.
        """
        from llama_index_contextual.evaluation.generate import generate_questions

        return generate_questions(self._live.current(), self._answering_llm(), number=number, seed=seed)

    @suggests_keywords
    def compare(
        self,
        questions: Questions | None = None,
        *,
        variants: Sequence[ContextKind] = ("none", "structural", "llm"),
        contextual_embedding: str | BaseEmbedding | None = None,
        sample: int | None = None,
        ks: Sequence[int] = (1, 5, 10, 20),
        metric: str | None = None,
        max_cost: float | None = None,
        number: int = 50,
        seed: int = 0,
        progress: ShowVariants | None = None,
    ) -> Comparison:
        """Compare the project without contexts, with structural contexts and with LLM contexts, and recommend one.

        Args:
            questions: Questions with evidence, or a file of them; None lets the project's LLM write some.
            variants: Kinds of context, at least two; the others are compared with the first one. With
                `contextual_embedding`, one is enough.
            contextual_embedding: Contextual embedding model, such as "voyage:voyage-context-3", for one more variant:
                "contextual embedding", without contexts.
            sample: Maximum number of documents to build, those with evidence first; None uses all.
            ks: Numbers of results to evaluate.
            metric: Metric of the recommendation; None uses nDCG@10.
            max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if it is higher or unknown.
                The cost of generated questions is not included.
            number: Number of questions to write if none are given.
            seed: Seed of the random numbers.
            progress: Called with the progress, first with the price; it may raise an exception to stop.

        Raises:
            InputError: A variant or metric is unknown, no question has its evidence in the sample, or the cost would
                exceed `max_cost`.
            ModelError: A variant or the questions need an LLM that cannot be loaded or reached.
        """
        from llama_index_contextual.evaluation.compare import compare_variants

        return compare_variants(
            self._origin(),
            questions,
            variants=variants,
            contextual_embedding=contextual_embedding,
            sample=sample,
            ks=ks,
            metric=metric,
            max_cost=max_cost,
            number=number,
            seed=seed,
            progress=progress,
        )

    @suggests_keywords
    def sweep(
        self,
        questions: Questions,
        *,
        chunk_sizes: Sequence[int] = (),
        contexts: Sequence[ContextKind] = (),
        modes: Sequence[Mode] = ("semantic", "lexical", "hybrid"),
        top_ks: Sequence[int] = (5, 10, 20),
        sample: int | None = None,
        max_cost: float | None = None,
        seed: int = 0,
        progress: ShowVariants | None = None,
    ) -> Sweep:
        """Evaluate combinations of chunk sizes, kinds of context, modes and numbers of results.

        Args:
            questions: Questions with evidence, or a file of them; for several chunk sizes, the evidence cannot be
                chunks.
            chunk_sizes: Sizes in tokens; if empty, the project's.
            contexts: Kinds of context; if empty, the project's.
            modes: Modes of the search.
            top_ks: Numbers of results.
            sample: Maximum number of documents to build; None uses all.
            max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if it is higher or unknown.
            seed: Seed of the random numbers.
            progress: Called with the progress, first with the price; it may raise an exception to stop.

        Raises:
            InputError: There is nothing to try, the evidence cannot be compared across chunk sizes, or the cost would
                exceed `max_cost`.
        """
        from llama_index_contextual.evaluation.sweep import sweep_variants

        return sweep_variants(
            self._origin(),
            questions,
            chunk_sizes=chunk_sizes,
            contexts=contexts,
            modes=modes,
            top_ks=top_ks,
            sample=sample,
            max_cost=max_cost,
            seed=seed,
            progress=progress,
        )

    @suggests_keywords
    def sweep_answers(
        self,
        questions: Sequence[QA],
        *,
        llm: LLM | None = None,
        chunk_sizes: Sequence[int] = (),
        contexts: Sequence[ContextKind] = (),
        modes: Sequence[Mode] = (),
        top_ks: Sequence[int] = (3, 5, 10),
        concurrency: int = 8,
        max_cost: float | None = None,
        progress: ShowVariants | None = None,
        intents: Intents | None = None,
        style: str | None = None,
        answer_tokens: int | None = None,
        max_passages: int | None = None,
        context: bool | None = None,
        min_confidence: float | None = None,
        not_found: str = NOT_FOUND,
        small_talk: str = SMALL_TALK,
        system_prompt: str | None = None,
        text_qa_template: BasePromptTemplate | None = None,
        weights: BlendWeights | None = None,
        reference_date: date | Callable[[], date] | None = None,
        adjacent: Adjacent | None = None,
        guards: Guards | bool | None = None,
        cache: AnswerCache | bool | None = None,
        judge: Judge | bool | None = None,
        timeouts: Timeouts | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        callback_manager: CallbackManager | None = None,
    ) -> AnswerSweep:
        """Answer questions with several chunk sizes, kinds of context, modes and numbers of results.

        The options from `intents` on are those of `as_query_engine`.

        Args:
            questions: Questions with their correct answers.
            llm: LLM that writes the answers; None uses the project's.
            chunk_sizes: Sizes in tokens; if empty, the project's.
            contexts: Kinds of context; if empty, the project's.
            modes: Modes of the search; if empty, the project's.
            top_ks: Numbers of results.
            concurrency: Maximum number of questions answered concurrently.
            max_cost: Maximum cost of contexts and embeddings in dollars; nothing is built if it is higher or unknown.
                The cost of the answers is not included.
            progress: Called with the progress, first with the price; it may raise an exception to stop.
            intents: As in `as_query_engine`, like all following options.
            style: Style of the answers.
            answer_tokens: Maximum number of passage tokens.
            max_passages: Maximum number of passages that the model reads.
            context: Whether the model sees the generated contexts.
            min_confidence: Searches with a lower confidence are repeated, and the prompt says so.
            not_found: Answer if nothing was found.
            small_talk: Reply to chitchat, if `intents` is set.
            system_prompt: The whole system prompt, instead of the rules and the style.
            text_qa_template: Template of the message with passages and question.
            weights: Weights of the conversation in a search.
            reference_date: Current date, or a function that returns it.
            adjacent: Treatment of neighbouring hits.
            guards: Checks and filters for every answer.
            cache: Cache of answers; True uses `answer_cache`, which keeps only those from the live version.
            judge: Judge of every answer.
            timeouts: Timeouts of calls to the model.
            node_postprocessors: Applied to the hits first.
            callback_manager: Receives LlamaIndex's events.

        Raises:
            InputError: There is nothing to try, or the cost would exceed `max_cost`.
            ModelError: The project's LLM cannot be loaded: no key, no package, or an unknown name.
        """
        from llama_index_contextual.evaluation.answers import sweep_answers

        return sweep_answers(
            self._origin(),
            questions,
            llm or self._answering_llm(),
            chunk_sizes=chunk_sizes,
            contexts=contexts,
            modes=modes,
            top_ks=top_ks,
            concurrency=concurrency,
            max_cost=max_cost,
            progress=progress,
            options=EngineOptions(
                style=style,
                answer_tokens=answer_tokens,
                max_passages=max_passages,
                context=context,
                min_confidence=min_confidence,
                not_found=not_found,
                small_talk=small_talk,
                system_prompt=system_prompt,
                text_qa_template=text_qa_template,
                weights=weights,
                reference_date=reference_date,
                intents=intents,
                adjacent=adjacent,
                guards=guards,
                cache=cache,
                project_cache=self.answer_cache,
                judge=judge,
                timeouts=timeouts,
                node_postprocessors=node_postprocessors,
                callback_manager=callback_manager,
            ),
            account=self._answer_account(),
        )

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


def require_llm(llm: LLM | None, model_id: str | None) -> None:
    """Check that a `model_id` is passed only together with an LLM.

    Raises:
        ConfigurationError: There is no `llm`, or the name is empty.
    """
    if model_id is not None and (llm is None or not model_id.strip()):
        raise ConfigurationError(
            f"model_id={model_id!r} names the object passed as llm=: pass both, or neither.", setting="model_id"
        )


def _items(inputs: Iterable[IngestInput] | IngestInput) -> list[IngestInput]:
    if isinstance(inputs, str | os.PathLike | BaseNode) or not isinstance(inputs, Iterable):
        return [inputs]
    return list(inputs)


def _on_ray(executor: str, *, batch: bool) -> Callable[..., Coroutine[Any, Any, IngestReport]]:
    """Return the function that executes a run on a Ray cluster.

    Raises:
        ConfigurationError: Another executor is requested, Ray is not installed, or it cannot be used for this run.
    """
    if executor == "local":
        raise ConfigurationError("`address` is the address of a Ray cluster: pass executor='ray', or omit it.")
    if executor != "ray":
        raise ConfigurationError(f"There is no executor {executor!r}: choose 'local' or 'ray'.", setting="executor")
    if batch:
        raise ConfigurationError(
            "Batches of the provider and Ray exclude each other: a batch is answered within 24 hours, in which the"
            " cluster would wait, and to send it every document is read before the first one is processed",
            setting="batch",
            remedy=Remedy("omit batch or executor='ray'", "omit --batch or --ray"),
        )
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(
            'Ingestion on a cluster needs Ray: pip install "llama-index-contextual[ray]"', setting="executor"
        )
    from llama_index_contextual.ingestion.executors.ray import arun_on_ray

    return arun_on_ray


async def _arun_elsewhere(
    open_project: Callable[[], Project],
    inputs: Sequence[IngestInput],
    options: RunOptions,
    executor: Executor,
    progress: ReportProgress,
) -> IngestReport:
    """Execute a run in another process."""
    return await open_project()._arun(inputs, options, show_progress=False, progress=progress, executor=executor)
