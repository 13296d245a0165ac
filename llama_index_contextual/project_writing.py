"""The building side of a project: documents come in, and a new version is built beside the live one."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import BaseNode

from llama_index_contextual.calls import run_sync, to_its_end
from llama_index_contextual.contextualizer.estimate import EmbeddingCount
from llama_index_contextual.errors import ConfigurationError, CorruptVersionError
from llama_index_contextual.ingestion.estimate import CostEstimate, estimate
from llama_index_contextual.ingestion.jobs import IngestInput
from llama_index_contextual.ingestion.progress import progress_bar
from llama_index_contextual.ingestion.report import IngestReport, ReportProgress
from llama_index_contextual.ingestion.run import arun
from llama_index_contextual.ingestion.stages import Stages, make_stages
from llama_index_contextual.ingestion.work import RunOptions
from llama_index_contextual.models import embedding_identity, is_same_model, require_independent_vectors
from llama_index_contextual.project_base import ProjectBase
from llama_index_contextual.readers import ReadLimits
from llama_index_contextual.readers.documents import FileMetadata
from llama_index_contextual.storage.ledger import LEDGER_FILE, Ledger
from llama_index_contextual.storage.project_file import project_ledger, write_lock
from llama_index_contextual.storage.version import OpenVersion


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
