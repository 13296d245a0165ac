"""Projects: isolated knowledge bases in one root folder. Wiring only; the work is done by the components."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryType
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.calls import run_sync
from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.errors import (
    ConfigurationError,
    CorruptVersionError,
    InputError,
    ModelError,
    NoVersionError,
)
from llama_index_contextual.ingestion.jobs import IngestInput
from llama_index_contextual.ingestion.pipeline import Stages
from llama_index_contextual.ingestion.progress import progress_bar
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress
from llama_index_contextual.ingestion.run import RunOptions, arun
from llama_index_contextual.ingestion.stages import make_stages
from llama_index_contextual.models import load_embed_model, load_llm
from llama_index_contextual.project_info import ProjectInfo, VersionInfo, describe_project, list_versions
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.results import RetrievalResponse
from llama_index_contextual.retrievers.base import as_bundle
from llama_index_contextual.retrievers.live import LiveIndexes, ProjectRetriever
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.manifest import DocumentRecord
from llama_index_contextual.storage.project_file import read_config, write_config, write_lock
from llama_index_contextual.storage.publish import current_name, rollback, version_directory
from llama_index_contextual.storage.verify import VerifyReport, repair_project, verify_project
from llama_index_contextual.storage.version import OpenVersion


class Project:
    """One knowledge base: its documents, contexts and indexes, in its own directory.

    Made by `ProjectManager`.

    Args:
        directory: Where it is.
        config: Its settings.
        llm: Writes contexts and answers; None makes the one that `config.llm` names when it is needed.
        embed_model: Embeds chunks and queries; None makes the one that `config.embed_model` names.
    """

    def __init__(
        self,
        directory: Path,
        config: ProjectConfig,
        *,
        llm: LLM | None = None,
        embed_model: BaseEmbedding | None = None,
    ) -> None:
        self.directory = directory
        self.name = directory.name
        self.config = config
        self._llm = llm
        self._given_embed_model = embed_model
        self._live = LiveIndexes(directory, self.name, lambda: self.embed_model)

    # ---- models ----------------------------------------------------------------------------------------------------

    @cached_property
    def embed_model(self) -> BaseEmbedding:
        """The embedding model.

        Raises:
            ModelError: It cannot be made: no key, no package, no such name.
        """
        return self._given_embed_model or load_embed_model(self.config.embed_model)

    def _stages(self, ledger: Ledger) -> Stages:
        embed_model = self.embed_model if self.config.faiss else None
        return make_stages(self.config, ledger=ledger, llm=self._llm, embed_model=embed_model)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def ingest(
        self,
        inputs: Sequence[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Add and update documents, and publish a new version.

        Documents whose content has not changed are taken over from the version before. A file or chunk that fails is
        in the report; the rest goes on. Until the new version is published, queries are answered by the one before.

        Args:
            inputs: Files, folders and globs (PDF, TXT, Markdown), LlamaIndex Documents, or ready chunks.
            replace: Make the version exactly these inputs; otherwise documents that are not named are kept.
            file_metadata: Gives further facts about a file, from its path; JSON scalars only.
            limits: What one file may cost.
            passwords: Password of encrypted PDFs: one for all, or one for each document id or file name.
            show_progress: Show a progress bar.
            progress: Called as the work proceeds.

        Raises:
            InputError: Nothing can be ingested, or two inputs would get one document id.
            ModelError: A model cannot be made or reached; what was paid for is in the ledger.
            ProjectLockedError: Another process is writing to the project.
        """
        return run_sync(
            lambda: self.aingest(
                inputs,
                replace=replace,
                file_metadata=file_metadata,
                limits=limits,
                passwords=passwords,
                show_progress=show_progress,
                progress=progress,
            )
        )

    async def aingest(
        self,
        inputs: Sequence[IngestInput] | IngestInput,
        *,
        replace: bool = False,
        file_metadata: FileMetadata | None = None,
        limits: ReadLimits | None = None,
        passwords: Mapping[str, str] | str | None = None,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        """Do as `ingest` does, without blocking the event loop."""
        options = RunOptions(
            replace=replace,
            file_metadata=file_metadata,
            limits=limits or ReadLimits(),
            passwords=passwords,
        )
        items = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else [inputs]
        return await self._arun(items, options, show_progress=show_progress, progress=progress)

    def remove(self, doc_ids: Sequence[str] | str) -> IngestReport:
        """Publish a version without some documents.

        Raises:
            InputError: The live version does not have one of them.
        """
        wanted = [doc_ids] if isinstance(doc_ids, str) else doc_ids
        known = {record.doc_id for record in self.documents()}
        if unknown := [doc_id for doc_id in wanted if doc_id not in known]:
            raise InputError(f"Project {self.name!r} has no document {unknown[0]!r}.", value=unknown[0])
        return run_sync(lambda: self._arun([], RunOptions(remove=frozenset(wanted))))

    def retry_failed(self, *, show_progress: bool = False) -> IngestReport:
        """Ask again for the contexts that the LLM failed to write, and publish a version that has them."""
        return run_sync(lambda: self._arun([], RunOptions(retry_failed=True), show_progress=show_progress))

    def rebuild(self, *, show_progress: bool = False) -> IngestReport:
        """Publish a version by the present settings, from the documents as they are stored; files are not read again.

        Contexts and embeddings whose question has not changed come from the ledger.
        """
        return run_sync(lambda: self._arun([], RunOptions(), show_progress=show_progress))

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

        What only concerns retrieval (mode, top_k, weights, ...) has an effect at the next query.

        Raises:
            ConfigurationError: A setting is unknown or cannot have that value; nothing is changed then.
        """
        with write_lock(self.directory):
            # Another process may have changed them since they were read.
            config = read_config(self.directory).changed(**changes)
            write_config(self.directory, config)
            pending = config.rebuild_fields(self.config)
            self.config = config
            self.__dict__.pop("embed_model", None)
        return pending

    async def _arun(
        self,
        inputs: Sequence[IngestInput],
        options: RunOptions,
        *,
        show_progress: bool = False,
        progress: ReportProgress | None = None,
    ) -> IngestReport:
        with contextlib.ExitStack() as stack:
            stack.enter_context(write_lock(self.directory))
            ledger = stack.enter_context(contextlib.closing(Ledger(self.directory / LEDGER_FILE)))
            stages = self._stages(ledger)
            before = self._version_to_build_on(stages.embed_model_name, replace=options.replace)
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
            name = current_name(self.directory)
            if name is None:
                return None
            version = OpenVersion(version_directory(self.directory, name))
        except CorruptVersionError:
            if replace:
                return None
            raise
        manifest = version.manifest
        same_setting = manifest.config["embed_model"] == self.config.embed_model
        if same_setting and embed_model_name is not None and manifest.embed_model not in (None, embed_model_name):
            raise ConfigurationError(
                f"The index was built with the embedding model {manifest.embed_model!r}, the project is loaded with"
                f" {embed_model_name!r}: load it with the first, or create a project for the second.",
                setting="embed_model",
            )
        return version

    # ---- reading ---------------------------------------------------------------------------------------------------

    def retrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> RetrievalResponse:
        """Return the passages that answer a question best, with their evidence.

        Args:
            query: The question.
            mode: "semantic", "lexical" or "hybrid"; None takes `config.mode`. A mode whose index is absent falls back,
                with a warning in the response.
            top_k: Results; None takes `config.top_k`.
            filters: Only chunks whose metadata passes count, in every index, before ranking.

        Raises:
            InputError: The query is empty or top_k is not positive.
            NoVersionError: Nothing has been ingested yet.
        """
        return self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters).respond(as_bundle(query))

    async def aretrieve(
        self,
        query: QueryType,
        *,
        mode: Mode | None = None,
        top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> RetrievalResponse:
        """Do as `retrieve` does, without blocking the event loop."""
        retriever = self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters)
        return await retriever.arespond(as_bundle(query))

    def as_retriever(
        self,
        *,
        mode: Mode | None = None,
        similarity_top_k: int | None = None,
        filters: MetadataFilters | None = None,
    ) -> ProjectRetriever:
        """Return a LlamaIndex retriever that answers from whatever version is live when it is asked."""
        return ProjectRetriever(self._live, self.config, mode=mode, similarity_top_k=similarity_top_k, filters=filters)

    def as_query_engine(self, *, llm: LLM | None = None, **kwargs: Any) -> BaseQueryEngine:
        """Return a LlamaIndex query engine over `as_retriever()`.

        Args:
            llm: Writes the answer; None takes the project's.
            **kwargs: For `RetrieverQueryEngine.from_args`.

        Raises:
            ModelError: The project's LLM cannot be made: no key, no package, no such name.
        """
        answering = llm or self._llm or self._load_answering_llm()
        engine: BaseQueryEngine = RetrieverQueryEngine.from_args(self.as_retriever(), llm=answering, **kwargs)
        return engine

    def _load_answering_llm(self) -> LLM:
        try:
            return load_llm(self.config.llm)
        except ModelError as error:
            raise ModelError(f"{error} Answers need an LLM: it can be passed as `llm=`.", setting="llm") from error

    @property
    def storage_context(self) -> StorageContext:
        """The live version as a LlamaIndex StorageContext that cannot be changed."""
        return self._live.current().version.storage_context

    @property
    def index(self) -> VectorStoreIndex:
        """The live version as a LlamaIndex VectorStoreIndex that cannot be changed."""
        return self._live.current().index

    def documents(self) -> Sequence[DocumentRecord]:
        """Return the documents of the live version; none before the first `ingest`."""
        try:
            return self._live.current().version.manifest.documents
        except NoVersionError:
            return ()

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

    def versions(self) -> list[VersionInfo]:
        """Return the versions on disk, oldest first."""
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

    def import_contexts(self, path: str | Path) -> int:
        """Add the contexts of a file that `Ledger.export_contexts` wrote to the ledger, and return their number."""
        with write_lock(self.directory), contextlib.closing(Ledger(self.directory / LEDGER_FILE)) as ledger:
            return ledger.import_contexts(Path(path))

    def export_contexts(self, path: str | Path) -> int:
        """Write the contexts that were paid for as JSON lines, and return their number."""
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE)) as ledger:
            return ledger.export_contexts(Path(path))

    def __repr__(self) -> str:
        try:
            version = repr(current_name(self.directory))
        except CorruptVersionError:
            version = "damaged"
        return f"Project({self.name!r}, version={version})"
