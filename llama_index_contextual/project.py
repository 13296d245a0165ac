"""Projects: isolated knowledge bases in one root folder. Wiring only; the work is done by the components."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle, QueryType
from llama_index.core.storage.storage_context import StorageContext
from llama_index.core.vector_stores.types import MetadataFilters

from llama_index_contextual.calls import run_sync
from llama_index_contextual.config import Mode, ProjectConfig
from llama_index_contextual.contextualizer import Contextualizer, LLMContextualizer, StructuralContextualizer
from llama_index_contextual.contextualizer.prompts import DEFAULT_PROMPT
from llama_index_contextual.errors import ConfigurationError, InputError, NoVersionError, ProjectLockedError
from llama_index_contextual.ingestion.builder import VersionBuilder
from llama_index_contextual.ingestion.jobs import IngestInput, Intake
from llama_index_contextual.ingestion.pipeline import Stages, abuild
from llama_index_contextual.ingestion.progress import ProgressCounter, progress_bar
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress
from llama_index_contextual.models import load_embed_model, load_llm, model_name
from llama_index_contextual.node_parser import ChunkNodeParser, SegmentNodeParser
from llama_index_contextual.readers import DocumentReader, ReadLimits
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.results import RetrievalResponse
from llama_index_contextual.retrievers.base import as_bundle
from llama_index_contextual.retrievers.live import LiveIndexes, ProjectRetriever
from llama_index_contextual.storage import version as versions
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger, LedgerInfo
from llama_index_contextual.storage.version import DocumentRecord, OpenVersion

LOCK_FILE = ".lock"


@dataclass(frozen=True, kw_only=True)
class ProjectInfo:
    """What a project is and holds.

    Attributes:
        name: Its name.
        config: Its settings.
        version: Name of the live version, or None.
        documents: Number of documents in it.
        chunks: Number of chunks in it.
        tokens: Tokens of the chunks, overlaps counted twice.
        bytes: Size of the live version on disk.
        ledger: What was paid for so far.
    """

    name: str
    config: ProjectConfig
    version: str | None
    documents: int
    chunks: int
    tokens: int
    bytes: int
    ledger: LedgerInfo


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

    def _contextualizer(self, ledger: Ledger) -> Contextualizer | None:
        if self.config.context == "none":
            return None
        if self.config.context == "structural":
            return StructuralContextualizer(segment_size=self.config.segment_size)
        return LLMContextualizer(
            llm=self._llm,
            model=self.config.llm,
            prompt=self.config.context_prompt or DEFAULT_PROMPT,
            num_workers=self.config.llm_concurrency,
            segment_size=self.config.segment_size,
            ledger=ledger,
        )

    def _stages(self, ledger: Ledger) -> Stages:
        config = self.config
        embed_model = self.embed_model if config.faiss else None
        return Stages(
            parsers=(
                SegmentNodeParser(segment_size=config.segment_size, segment_overlap=config.segment_overlap),
                ChunkNodeParser(chunk_size=config.chunk_size, chunk_overlap=config.chunk_overlap),
            ),
            contextualizer=self._contextualizer(ledger),
            embed_model=embed_model,
            embed_model_name=None if embed_model is None else model_name(embed_model),
            ledger=ledger,
        )

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
        started = time.monotonic()
        items = list(inputs) if isinstance(inputs, Sequence) and not isinstance(inputs, str) else [inputs]
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._write_lock())
            ledger = stack.enter_context(contextlib.closing(Ledger(self.directory / LEDGER_FILE)))
            stages = self._stages(ledger)
            intake = Intake.of(items)
            if progress is None and show_progress:
                progress = stack.enter_context(progress_bar())
            counter = ProgressCounter(progress, documents_total=intake.total, bytes_total=intake.size)
            before = self._version_to_build_on(stages.embed_model_name)
            known = {} if before is None else {r.doc_id: r.content_hash for r in before.manifest.documents}
            builder = VersionBuilder(self.directory, self.config)
            stack.callback(builder.discard)
            reader = stack.enter_context(
                DocumentReader(limits=limits or ReadLimits(), passwords=passwords, file_metadata=file_metadata)
            )
            kept = self._take_over(builder, before, intake, replace=replace)
            outcome = await abuild(intake.jobs(reader, kept), stages, builder, report=counter.add)
            new = [record.doc_id for record in builder.records if record.doc_id not in kept]
            if not builder.records:
                raise InputError(_nothing_to_ingest(intake), value=inputs)
            changed = bool(new) or set(kept) != set(known)
            manifest = builder.publish(embed_model=stages.embed_model_name) if changed or before is None else None
        return IngestReport(
            version=manifest.version if manifest is not None else before.name if before is not None else None,
            added=tuple(doc_id for doc_id in new if doc_id not in known),
            updated=tuple(doc_id for doc_id in new if doc_id in known),
            unchanged=tuple(kept),
            skipped=tuple(intake.skipped),
            warnings=tuple(intake.warnings),
            failures=tuple(outcome.failures),
            chunks=sum(record.chunks for record in builder.records),
            contexts_paid=outcome.paid,
            seconds=time.monotonic() - started,
        )

    def _take_over(
        self, builder: VersionBuilder, before: OpenVersion | None, intake: Intake, *, replace: bool
    ) -> dict[str, str]:
        """Put what has not changed into the new version, and return its content hashes by document id."""
        kept: dict[str, str] = {}
        for record in () if before is None else before.manifest.documents:
            given = intake.content_hash(record.doc_id)
            if given == record.content_hash or (given is None and not replace):
                builder.take_over(before, record)  # type: ignore[arg-type]
                kept[record.doc_id] = record.content_hash
        return kept

    def _version_to_build_on(self, embed_model_name: str | None) -> OpenVersion | None:
        name = versions.current_name(self.directory)
        if name is None:
            return None
        version = OpenVersion(self.directory / versions.VERSIONS / name)
        built_with = version.manifest.embed_model
        if embed_model_name is not None and built_with not in (None, embed_model_name):
            raise ConfigurationError(
                f"The index was built with the embedding model {built_with!r}, the project is loaded with"
                f" {embed_model_name!r}: load it with the first, or create a project for the second.",
                setting="embed_model",
            )
        return version

    @contextlib.contextmanager
    def _write_lock(self) -> Iterator[None]:
        lock = FileLock(self.directory / LOCK_FILE, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise ProjectLockedError(
                f"Another process is writing to project {self.name!r}: wait until it has finished.", name=self.name
            ) from error
        try:
            yield
        finally:
            lock.release()

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
        return self.as_retriever(mode=mode, similarity_top_k=top_k, filters=filters).respond(_checked(query))

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
        return await retriever.arespond(_checked(query))

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
        """
        answering = llm or self._llm or load_llm(self.config.llm)
        engine: BaseQueryEngine = RetrieverQueryEngine.from_args(self.as_retriever(), llm=answering, **kwargs)
        return engine

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
        record = next((r for r in version.manifest.documents if r.doc_id == doc_id), None)
        if record is None:
            raise InputError(f"Project {self.name!r} has no document {doc_id!r}.", value=doc_id)
        return version.read_text(record, start, record.characters if end is None else end)

    def info(self) -> ProjectInfo:
        """Return what the project is and holds."""
        name = versions.current_name(self.directory)
        manifest = None if name is None else self._live.current().version.manifest
        with contextlib.closing(Ledger(self.directory / LEDGER_FILE)) as ledger:
            paid = ledger.info()
        return ProjectInfo(
            name=self.name,
            config=self.config,
            version=name,
            documents=len(manifest.documents) if manifest else 0,
            chunks=manifest.chunks if manifest else 0,
            tokens=sum(record.tokens for record in manifest.documents) if manifest else 0,
            bytes=sum(int(file["bytes"]) for file in manifest.files.values()) if manifest else 0,
            ledger=paid,
        )

    def import_contexts(self, path: str | Path) -> int:
        """Add the contexts of a file that `Ledger.export_contexts` wrote to the ledger, and return their number."""
        with self._write_lock(), contextlib.closing(Ledger(self.directory / LEDGER_FILE)) as ledger:
            return ledger.import_contexts(Path(path))

    def __repr__(self) -> str:
        return f"Project({self.name!r}, version={versions.current_name(self.directory)!r})"


def _checked(query: QueryType) -> QueryBundle:
    bundle = as_bundle(query)
    if not bundle.query_str.strip():
        raise InputError("The query is empty: ask something.", value=bundle.query_str)
    return bundle


def _nothing_to_ingest(intake: Intake) -> str:
    reasons = "; ".join(f"{file.path}: {file.reason}" for file in intake.skipped[:5])
    more = f"; and {len(intake.skipped) - 5} more" if len(intake.skipped) > 5 else ""
    return f"There is nothing to ingest. {reasons}{more}".strip()
